"""The fixed parts of an emitted file, as text."""

from __future__ import annotations

UNCHANGED = '''
# ---------------------------------------------------------------------------------------------------------------------
# Below: written by Fusewright $version. PyTorch's own operators are left as they are: no kernel would gain on them.
# Generated code carries no licence obligation: what stands below is yours, under any terms.

${imports}_KERNELS = ()$here


class ModelNew(Model):
    """Model, unchanged."""
$constructor'''

UNCHANGED_CONSTRUCTOR = '''
    def __init__(self, *arguments, **named):
        $given
'''

HERE_IMPORTS = '''import functools

import torch

'''

FILE = '''
# ---------------------------------------------------------------------------------------------------------------------
# Below: written by Fusewright $version. ModelNew computes what Model computes, with the CUDA kernels in _CUDA_SOURCE.
# Generated code carries no licence obligation: what stands below is yours, under any terms.

$imports

aten = torch.ops.aten

# ---- runtime: builds kernels, launches them, and is their step in autograd

$runtime

# ---- guards: is the model still the one that was planned for?

$guards

# ---- tables: what it was planned for

$tables

# ---- kernels

$cuda

# ---- what runs

$functions$here


class ModelNew(Model):
    """Model, with fused kernels where _planned_for holds and the original operators elsewhere."""

    def __init__(self, *arguments, **named):
        $given
        if torch.cuda.is_available() and not _forked() and _buildable():
            _library(_CUDA_SOURCE)

$forward
'''

# Below, marks at the end of a line say in which files it stands (`chosen.py`).

IMPORTS = '''import _thread
import collections  # if: containers
import ctypes
import functools
import hashlib
import itertools
import operator
import os  # if: model
import shutil  # if: model
import struct
import sys  # if: globals, elsewhere
import types  # if: mutable, functions, objects
import warnings
import weakref  # if: objects
import zlib  # if: packed

import torch
from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available, load_inline  # if: model
from torch.utils.cpp_extension import load_inline  # unless: model'''

RUNTIME = '''# Not in every version of PyTorch. `_empty` is what files that torch.compile writes use: half the time of torch.empty_strided.
_guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_empty = getattr(_guards, "_empty_strided_cuda", lambda shape, strides, t: torch.empty_strided(shape, strides, dtype=t, device="cuda"))
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_forked = getattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # of a process that used the GPU: this one cannot
_let_go = getattr(torch.autograd.Function, "maybe_clear_saved_tensors", lambda ctx: None)  # frees what was saved  # if: gradient
_conv_flag = lambda *_: getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)  # if: convolves
_precision = getattr(torch._C, "_get_fp32_precision_getter", _conv_flag)  # the same, ten times as fast  # if: convolves
_count_one_up = lambda t: torch._C._autograd._unsafe_set_version_counter(t, t._version + 1)  # if: versions
_increment_version = getattr(torch.autograd.graph, "increment_version", _count_one_up)  # if: versions
_contiguous = torch.Tensor.contiguous  # if: contiguous
_requires_grad = operator.attrgetter("requires_grad")  # if: regions, needs gradients
_building, _launchers = _thread.allocate_lock(), {}


@functools.lru_cache(maxsize=None)
def _built(source):
    """A CUDA source as a library, kept in PyTorch's extension cache."""
    name = "fusewright_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    quick = {"no_implicit_headers": True} if "no_implicit_headers" in load_inline.__code__.co_varnames else {}
    flags = ["-O3", "-std=c++17"]
    if {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())} == {(9, 0)}:  # if: hopper
        flags.append("-gencode=arch=compute_90a,code=sm_90a")  # warpgroup MMA; elsewhere the same products, warp by warp
    if int((torch.version.cuda or "0").split(".")[0]) >= 13:  # if: many
        flags.append("-split-compile=0")  # in several threads
    path = load_inline(name, cpp_sources="", cuda_sources=source, extra_cuda_cflags=flags, is_python_module=False, **quick)
    return ctypes.CDLL(path or next(known for known in torch.ops.loaded_libraries if name in known))


@functools.lru_cache(maxsize=None)  # if: model
def _buildable():  # if: model
    """What builds kernels is here. Where it is not, the original operators run, which is said once."""
    nvcc = os.environ.get("PYTORCH_NVCC") or shutil.which("nvcc", path=os.path.join(CUDA_HOME or "", "bin"))
    missing = "nvcc" if not nvcc else "ninja" if not is_ninja_available() else ""
    if missing:
        warnings.warn(f"ModelNew: {missing} is not found, so its kernels cannot be built. The original operators run.", stacklevel=3)
    return not missing


def _library(source):
    with _building:  # PyTorch does not wait for another thread that builds the same
        return _built(source)


def _launch(kernel, *arguments):
    """Queues a kernel on the current stream. The current device is that of its tensors."""
    known = _launchers.get(kernel)
    if known is None:
        source = _CUDA_SOURCE  # unless: backward
        source = _CUDA_GRADIENTS if kernel in _GRADIENT_KERNELS else _CUDA_SOURCE  # if: backward
        name, _, saving = kernel.partition(" ")  # if: apart
        source = _CUDA_SAVING if saving else source  # if: apart
        entry = getattr(_library(source), f"{name}_entry")  # if: apart
        entry = getattr(_library(source), f"{kernel}_entry")  # unless: apart
        entry.restype = ctypes.c_char_p
        known = _launchers[kernel] = entry, struct.Struct(f"{len(arguments) + 1}q").pack  # of addresses and sizes, and a stream
    entry, pack = known
    problem = entry(pack(*[a if type(a) is int else a.data_ptr() for a in arguments], _raw_stream(_current_device())))
    if problem is not None:
        raise RuntimeError(f"{kernel}: {problem.decode()}")


def _on_device(*tensors):
    """All tensors are on one CUDA device, and no autocast or transform of torch.func changes what the operators would do there."""
    usual = tensors[0].is_cuda and not torch.is_autocast_enabled() and not _transformed()
    return usual and len({*map(torch.Tensor.get_device, tensors)}) == 1 and _buildable()  # if: model
    return usual and len({*map(torch.Tensor.get_device, tensors)}) == 1  # unless: model


def _tf32_allowed():  # if: convolves
    """Whether the flags let a convolution round its operands to TF32, as PyTorch's default does."""
    precision = _precision("cuda", "conv")
    return precision == "tf32" if precision in ("tf32", "ieee") else torch.backends.cudnn.allow_tf32


@functools.lru_cache(maxsize=None)  # if: slices
def _slices(copies, seats):  # if: slices
    """How many blocks share a sum, of so many that are made: those of one to four full waves that waste the least."""
    return min((max(1, k * seats // max(1, copies)) for k in (1, 2, 3, 4)), key=lambda s: -(-copies * s // seats) / s)


@functools.lru_cache(maxsize=None)  # if: tensor cores
def _has_tensor_cores(device, shared_bytes):  # if: tensor cores
    """TF32 tensor cores, and this much shared memory for a block."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    limit = getattr(properties, "shared_memory_per_block_optin", 232448 if properties.major == 9 else 0)
    return properties.major >= 8 and limit >= shared_bytes


@functools.lru_cache(maxsize=None)  # if: constants
def _constant(name, device):  # if: constants
    with torch.inference_mode(False):  # training may save it
        return _CONSTANTS[name].to(device)


def _needs_gradients(*tensors):  # if: needs gradients
    """Backward may follow, through what is computed from one of these."""
    return torch.is_grad_enabled() and any(map(_requires_grad, tensors))


def _trains(model, before=True):  # if: trains
    """Backward may follow, and did so `before`, to one of its parameters: as a rule the first one says so."""
    asked = torch.is_grad_enabled() and (not before or _Differentiable.trained)
    return asked and any(parameter.requires_grad for parameter in model.parameters())


def _laid_out(tensor, strides):  # if: laid out
    """With the strides that PyTorch's operators would have left it with: random numbers are drawn in the order of memory."""  # if: model
    """As PyTorch's operators would have left it."""  # unless: model
    same = zip(tensor.shape, tensor.stride(), strides)
    if tensor.stride() == strides or all([size == 1 or mine == other for size, mine, other in same]):
        return tensor
    part = tensor[tuple([slice(None) if stride else slice(1) for stride in strides])]  # what is repeated, once
    whole = torch.empty_strided(part.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(part)
    return whole if part is tensor else whole.expand(tensor.shape)


def _as_it_was(tensor):  # if: copies
    """What forward overwrites later, for a call whose backward may want it."""
    return tensor.clone() if torch.is_grad_enabled() else tensor


class _PlainGradients(torch.autograd.Function):  # if: plain gradients
    """A convolution on channels-last data whose gradients are computed on plain data: there the library rounds no operand to TF32."""

    @staticmethod
    def forward(ctx, x, weight, bias, *settings):
        ctx.save_for_backward(x, weight)
        ctx.settings, ctx.biases = settings, None if bias is None else [*bias.shape]
        return torch.convolution(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx, gradient):
        (x, weight), needed = ctx.saved_tensors, ctx.needs_input_grad[:3]
        found = aten.convolution_backward(gradient.contiguous(), x.contiguous(), weight, ctx.biases, *ctx.settings, needed)
        return (*[g if need else None for g, need in zip(found, needed)], *[None] * len(ctx.settings))


_differentiated_plainly = _PlainGradients.apply  # if: plain gradients


class _Convolution(torch.autograd.Function):  # if: convolved
    """The library's convolution. A kernel of ours computes the gradient of its weight."""

    @staticmethod
    def forward(ctx, own, x, weight, bias, *settings):
        ctx.save_for_backward(x, weight)
        ctx.own, ctx.settings, ctx.biases = own, settings, None if bias is None else [*bias.shape]
        return torch.convolution(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx, gradient):
        (x, weight), needed, found = ctx.saved_tensors, [*ctx.needs_input_grad[1:4]], [None, None, None]
        (kernel, floats, shared_bytes, rounds), of_weight = ctx.own, None
        able = _has_tensor_cores(x.device, shared_bytes) and (not rounds or _tf32_allowed())  # if: convolves
        able = _has_tensor_cores(x.device, shared_bytes)  # unless: convolves
        usual = not torch.is_grad_enabled() and not torch.is_autocast_enabled()  # no second derivative is asked for
        if needed[1] and able and usual:
            needed[1] = False
            still, moved = map(torch.Tensor.contiguous, (x, gradient) if ctx.settings[3] else (gradient, x))
            of_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
            sums = [of_weight.new_empty(floats)] if floats else []  # of the blocks that share a sum
            sizes = [size for t in (still, moved) for size in (*[1] * (5 - t.dim()), *t.shape[2:])]
            _launch(kernel, still, moved, of_weight, *sums, len(still), *sizes)
            del still, moved, sums
        if any(needed):
            found = aten.convolution_backward(gradient, x, weight, ctx.biases, *ctx.settings, needed)
        of_x, by_library, of_bias = [g if need else None for g, need in zip(found, needed)]
        return (None, of_x, by_library if of_weight is None else of_weight, of_bias, *[None] * len(ctx.settings))


def _convolved(own, x, weight, bias, *settings):  # if: convolved
    trained = torch.is_grad_enabled() and weight.requires_grad
    return _Convolution.apply(own, x, weight, bias, *settings) if trained else torch.convolution(x, weight, bias, *settings)


class _Region:  # if: regions
    """Kernels that run one after another, a step of autograd. `reference` computes the same by PyTorch's operators."""

    gradient, asked = None, ()  # launches kernels for the gradients that are `asked`, of what the reference reads  # if: gradient
    saves = False  # forward hands activations over to `gradient`  # if: saves
    late = False  # they are stored for its sake alone: so only from the first backward on, which runs the kernels again  # if: late
    overwrite = ()  # positions of tensors that its kernels overwrite: run again, they are given copies  # if: overwrite
    differentiable = (True,)  # which results have a gradient: True, False, or if one of these tensors does  # if: differentiable
    changed = ()  # positions of tensors that forward overwrites later: backward needs them as they were  # if: changed
    shared_bytes = 0  # of a block: a device that has less leaves it to the reference  # if: shared_bytes
    by_pytorch = eager = False  # in training PyTorch's operators compute it, from the first backward on  # if: by_pytorch

    def __init__(self, launches, reference, **others):
        vars(self).update(others, launches=launches, reference=reference)
        self.reads = reference.__code__.co_argcount - 1  # tensors, after the sizes; backward goes through these  # if: unread
        self.saving = self.saves and not self.late  # if: late
        self.smooth = all(d is True for d in self.differentiable)  # if: differentiable


def _with_step(gradient, at_once=1):  # if: steps
    """A gradient as kernels read it, `at_once` elements by a thread, and how far apart they lie: that of a sum is one number for all."""
    if gradient.is_contiguous() or any(gradient.stride()):
        return gradient.contiguous(), 1
    return (gradient.as_strided((at_once,), (0,)).contiguous() if at_once > 1 else gradient), 0


class _Differentiable(torch.autograd.Function):  # if: regions
    """Kernels forward; backward too where there are some for all gradients that are asked for, or else the reference's."""  # if: gradient
    """Kernels forward; backward differentiates the reference."""  # unless: gradient

    trained = False  # a backward was asked for  # if: trained

    @staticmethod
    def forward(ctx, region, sizes, *tensors):
        ctx.region, ctx.sizes, saved = region, sizes, [*tensors[: region.reads]]  # if: unread
        ctx.region, ctx.sizes, saved = region, sizes, [*tensors]  # unless: unread
        saved = [t.clone() if i in region.changed else t for i, t in enumerate(saved)]  # if: changed
        saving = region.saving  # asked once: backward in another thread may set it meanwhile  # if: late
        results = region.launches(sizes, [*tensors], saved) if saving else region.launches(sizes, [*tensors])  # if: late
        results = region.launches(sizes, [*tensors], saved) if region.saves else region.launches(sizes, [*tensors])  # if: saves early
        results = region.launches(sizes, [*tensors])  # unless: saves
        ctx.save_for_backward(*saved)
        ctx.late = region.saves and not saving  # if: late
        ctx.rest = tensors[region.reads :] if ctx.late else ()  # if: unread late
        if not region.smooth:  # if: differentiable
            need = ctx.needs_input_grad[2:]
            smooth = [d if type(d) is bool else any(need[i] for i in d) for d in region.differentiable]
            known = {id(r) for r, is_smooth in zip(results, smooth) if is_smooth}  # a value may be there twice, once detached
            results = tuple([r.detach() if id(r) in known and not is_smooth else r for r, is_smooth in zip(results, smooth)])
            ctx.mark_non_differentiable(*[r for r, is_smooth in zip(results, smooth) if not is_smooth])
        return results

    @staticmethod
    def backward(ctx, *upstream):
        region, saved, needed = ctx.region, ctx.saved_tensors, ctx.needs_input_grad[2:]
        needed, unread = needed[: region.reads], [None] * len(needed[region.reads :])  # if: unread
        region.eager = region.by_pytorch  # if: by_pytorch
        _Differentiable.trained = True  # if: trained
        again = torch.is_grad_enabled()  # a second derivative will be asked for
        if not region.smooth:  # if: differentiable
            upstream = [g for g, smooth in zip(upstream, region.differentiable) if smooth]
        planned = region.gradient and all(map(operator.ge, region.asked, needed))  # if: gradient
        if planned and not again and not torch.is_autocast_enabled():  # if: gradient
            if ctx.late:  # if: late
                region.saving, given, more = True, [*saved], []
                given += ctx.rest  # if: unread late
                given = [t.clone() if i in region.overwrite else t for i, t in enumerate(given)]  # if: overwrite
                region.launches(ctx.sizes, given, more)
                saved = (*saved, *more)
                more.clear()
            count = len(saved)  # if: unfit
            given = [*saved, *upstream]
            _let_go(ctx)
            del saved, upstream  # now the list alone holds them, and the gradient frees each after its last use
            return (None, None, *region.gradient(ctx.sizes, given), *unread)  # if: unread fit
            return (None, None, *region.gradient(ctx.sizes, given))  # unless: unread, unfit
            found = region.gradient(ctx.sizes, given)  # if: unfit
            if found is not None:  # if: unfit
                return (None, None, *found, *unread)  # if: unread
                return (None, None, *found)  # unless: unread
            saved, upstream = given[:count], given[count:]  # if: unfit
        with torch.enable_grad():
            tensors = [aten.alias(t) if again else t.detach().requires_grad_(need) for t, need in zip(saved, needed)]
            results = region.reference(ctx.sizes, *tensors)
        pairs = [(result, gradient) for result, gradient in zip(results, upstream) if result.requires_grad]
        wanted = [t for t, need in zip(tensors, needed) if need]
        if not pairs or not wanted:
            return (None,) * len(ctx.needs_input_grad)
        results, upstream = zip(*pairs)
        found = iter(torch.autograd.grad(results, wanted, upstream, create_graph=again, allow_unused=True))
        return (None, None, *[next(found) if need else None for need in needed], *unread)  # if: unread
        return (None, None, *[next(found) if need else None for need in needed])  # unless: unread


_apply = super(torch.autograd.Function, _Differentiable).apply  # not looking for transforms of torch.func: half the time  # if: regions


def _run(region, sizes, tensors):  # if: regions
    """A list of tensors goes through a region; one that frees some of them early empties the list."""
    if region.shared_bytes and not _has_tensor_cores(tensors[0].device, region.shared_bytes):  # if: shared_bytes
        return region.reference(sizes, *tensors)
    if torch.is_grad_enabled() and any(map(_requires_grad, tensors[: region.reads])):  # if: unread
        return region.reference(sizes, *tensors) if region.eager else _apply(region, sizes, *tensors)  # if: by_pytorch
        return _apply(region, sizes, *tensors)  # unless: by_pytorch
    if torch.is_grad_enabled() and any(map(_requires_grad, tensors)):  # unless: unread
        return region.reference(sizes, *tensors) if region.eager else _apply(region, sizes, *tensors)  # if: by_pytorch
        return _apply(region, sizes, *tensors)  # unless: by_pytorch
    return region.launches(sizes, tensors)'''
