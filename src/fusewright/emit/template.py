"""The fixed parts of an emitted file, as text."""

from __future__ import annotations

TENSORS = '''_DTYPES = [dtype for _, dtype, _ in _TENSORS]
_SHAPES = [shape for _, _, shape in _TENSORS]
'''

CONV_FLAGS = '''
def _conv_precision():
    """torch.backends.cudnn.conv.fp32_precision, where there is one."""
    return getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)


if hasattr(torch._C, "_get_fp32_precision_getter"):  # the same, ten times as fast
    _conv_precision = functools.partial(torch._C._get_fp32_precision_getter, "cuda", "conv")


def _tf32_allowed():
    """Whether the flags let a convolution round its operands to TF32, as PyTorch's default does."""
    precision = _conv_precision()
    return precision == "tf32" if precision in ("tf32", "ieee") else torch.backends.cudnn.allow_tf32

'''

SLICES = '''
@functools.lru_cache(maxsize=None)
def _slices(copies, seats):
    """How many blocks share a sum, of so many that are made: those of one to four full waves that waste the least."""
    return min((max(1, k * seats // max(1, copies)) for k in (1, 2, 3, 4)), key=lambda s: -(-copies * s // seats) / s)

'''

TENSOR_CORES = '''
@functools.lru_cache(maxsize=None)
def _has_tensor_cores(device, shared_bytes):
    """TF32 tensor cores, and this much shared memory for a block."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    limit = getattr(properties, "shared_memory_per_block_optin", 232448 if properties.major == 9 else 0)
    return properties.major >= 8 and limit >= shared_bytes
'''

NEEDS_GRADIENTS = '''
def _needs_gradients(*tensors):
    """Backward may follow, through what is computed from one of these."""
    return torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors])


'''

AS_IT_WAS = '''
def _as_it_was(tensor):
    """What forward overwrites later, for a call whose backward may want it."""
    return tensor.clone() if torch.is_grad_enabled() else tensor


'''

FOR_HOPPER = '''
def _for_hopper():
    """Where every GPU is a Hopper, products of four warps at once are built; elsewhere the same products, warp by warp."""
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ["-gencode=arch=compute_90a,code=sm_90a"] if capabilities == {(9, 0)} else []

'''

SIDE_BY_SIDE = '''
def _side_by_side():
    """nvcc compiles so many kernels in several threads, where it knows how to: of CUDA 13, which is PyTorch's own then."""
    return ["-split-compile=0"] if int((torch.version.cuda or "0").split(".")[0]) >= 13 else []

'''

UNCHANGED = '''
# ---------------------------------------------------------------------------------------------------------------------
# Below: written by Fusewright $version. PyTorch's own operators are left as they are: no kernel would gain on them.

_KERNELS = ()


class ModelNew(Model):
    """Model, unchanged."""
'''

FILE = '''
# ---------------------------------------------------------------------------------------------------------------------
# Below: written by Fusewright $version. ModelNew computes what Model computes, with the CUDA kernels in _CUDA_SOURCE.

import _thread
import collections
import ctypes
import functools
import hashlib
import itertools
import operator
import struct
import sys
import types
import warnings

import torch
from torch.utils.cpp_extension import load_inline

aten = torch.ops.aten

_CUDA_SOURCE = \'\'\'
$cuda\'\'\'

_KERNELS = ($kernels)

$gradients

$constants

$for_hopper
$side_by_side
def _library(gradients=False, keeping=False):
    """The kernels, built on first use and kept in PyTorch's extension cache; those of forward that are `keeping` also write what
    backward is handed."""
    with _building:
        return _built(gradients, keeping)


_building = _thread.allocate_lock()  # PyTorch does not wait for another thread that builds the same


@functools.lru_cache(maxsize=None)
def _built(gradients, keeping):
    source = _CUDA_GRADIENTS if gradients else "#define KEEPING\\n" + _CUDA_SOURCE if keeping else _CUDA_SOURCE
    name = "fusewright_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    quick = {"no_implicit_headers": True} if "no_implicit_headers" in load_inline.__code__.co_varnames else {}
    path = load_inline(
        name, cpp_sources="", cuda_sources=source, extra_cuda_cflags=["-O3", "-std=c++17"$options], is_python_module=False, **quick
    )
    return ctypes.CDLL(path or next(known for known in torch.ops.loaded_libraries if name in known))


def _on_device(*tensors):
    """All tensors are on one CUDA device, and no autocast or transform of torch.func changes what the operators would do there."""
    if torch.is_autocast_enabled() or _transformed():
        return False
    index = tensors[0].get_device()
    return tensors[0].is_cuda and [*map(torch.Tensor.get_device, tensors)].count(index) == len(tensors)


def _elsewhere(tensor):
    """It is on another GPU than the current one, which is where kernels are launched."""
    return tensor.is_cuda and tensor.get_device() != _current_device()


def _raw_stream(index):
    """The current stream of a GPU."""
    return torch.cuda.current_stream(index).cuda_stream


def _empty(shape, strides, dtype):
    """Memory on the current device for a kernel to write."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


_quick = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # what files that torch.compile writes use
_empty = getattr(_quick, "_empty_strided_cuda", _empty)  # the same, in half the time
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)  # the same, with no object made for it
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_forked = getattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # of a process that used the GPU: this one cannot
_launchers = {}


def _launcher(kernel, arguments):
    """The kernel's function in the library, and what makes the array that it takes: addresses and sizes, then a stream."""
    name, _, keeping = kernel.partition(" ")
    entry = getattr(_library(name in _GRADIENT_KERNELS, bool(keeping)), f"{name}_entry")
    entry.restype = ctypes.c_char_p
    return _launchers.setdefault(kernel, (entry, struct.Struct(f"{len(arguments) + 1}q").pack))


def _launch(kernel, *arguments):
    """Queues a kernel on the current stream. The current device is that of its tensors."""
    entry, pack = _launchers.get(kernel) or _launcher(kernel, arguments)
    values = [a if type(a) is int else a.data_ptr() for a in arguments]
    problem = entry(pack(*values, _raw_stream(_current_device())))
    if problem is not None:
        raise RuntimeError(f"{kernel}: {problem.decode()}")


class _Region:
    """Kernels that run one after another: what launches them, what they mean in PyTorch's operators, and what launches the
    kernels of the gradients that are `asked`, of the tensors that the meaning reads; after these it reads what forward `keeps`.
    What would be `stored` for its sake alone is, from the first backward on: that one runs the kernels again, on copies of tensors
    that they `overwrite`.
    `differentiable` says of each result whether it has a gradient: True, False, or where one of these tensors asks for it.
    `changed` are the positions of tensors that will be overwritten: backward needs them as they were.
    `by_pytorch`: where gradients are asked for, PyTorch's operators compute it, forward and backward, from the first backward on."""

    def __init__(
        self, launches, meaning, gradient=None, asked=(), keeps=False, stored=False, overwrite=(), differentiable=(True,), changed=(),
        by_pytorch=False,
    ):
        self.launches, self.meaning, self.gradient, self.asked = launches, meaning, gradient, asked
        self.keeps, self.keeping, self.overwrite = keeps, keeps and not stored, overwrite
        self.differentiable, self.changed = differentiable, changed
        self.by_pytorch, self.reference = by_pytorch, False
        self.reads = meaning.__code__.co_argcount - 1  # after the sizes; backward goes through these
        self.smooth = all(d is True for d in differentiable)


def _with_step(gradient):
    """A gradient as kernels read it, and how far apart its elements lie: one number stands for all in that of a sum."""
    if gradient.is_contiguous():
        return gradient, 1
    return (gradient.contiguous(), 1) if any(gradient.stride()) else (gradient, 0)


@functools.lru_cache(maxsize=None)
def _no_more_than(asked, needed):
    """Every gradient that is needed is one of those asked."""
    return all(asks or not need for asks, need in zip(asked, needed))


# Frees what was saved while backward still runs, unless the graph is retained, where PyTorch knows how.
_let_go = getattr(torch.autograd.Function, "maybe_clear_saved_tensors", lambda ctx: None)


class _Differentiable(torch.autograd.Function):
    """Forward launches kernels. Backward does so too where there are kernels for the gradients that are asked for;
    otherwise it differentiates the same meaning, written in PyTorch's operators."""

    @staticmethod
    def forward(ctx, region, sizes, *tensors):
        ctx.region, ctx.sizes = region, sizes
        keeping = region.keeping  # asked once: backward in another thread may set it meanwhile
        read, kept = tensors[: region.reads], []
        if region.changed:
            read = [t.clone() if i in region.changed else t for i, t in enumerate(read)]
        results = region.launches(sizes, list(tensors), kept) if keeping else region.launches(sizes, list(tensors))
        ctx.save_for_backward(*read, *kept)
        ctx.rest = tensors[region.reads :] if region.keeps and not keeping else None
        if not region.smooth:
            need = ctx.needs_input_grad[2:]
            smooth = [d if type(d) is bool else any(need[i] for i in d) for d in region.differentiable]
            known = {id(r) for r, is_smooth in zip(results, smooth) if is_smooth}  # a value may be there twice, once detached
            results = tuple([r.detach() if id(r) in known and not is_smooth else r for r, is_smooth in zip(results, smooth)])
            ctx.mark_non_differentiable(*[r for r, is_smooth in zip(results, smooth) if not is_smooth])
        return results

    trained = False  # a backward was asked for

    @staticmethod
    def backward(ctx, *upstream):
        region = ctx.region
        region.reference, _Differentiable.trained = region.by_pytorch, True
        again = torch.is_grad_enabled()  # a second derivative will be asked for
        saved = ctx.saved_tensors  # what the meaning reads, and values that forward kept
        needs = ctx.needs_input_grad
        needed, unread = needs[2 : 2 + region.reads], needs[2 + region.reads :]
        if not region.smooth:
            upstream = [g for g, smooth in zip(upstream, region.differentiable) if smooth]
        if region.gradient and _no_more_than(region.asked, needed) and not again and not torch.is_autocast_enabled():
            if ctx.rest is not None:
                region.keeping, kept = True, []
                given = [t.clone() if i in region.overwrite else t for i, t in enumerate((*saved, *ctx.rest))]
                region.launches(ctx.sizes, given, kept)
                saved = (*saved, *kept)
                kept.clear()
            count, given = len(saved), [*saved, *upstream]
            _let_go(ctx)
            del saved, upstream  # now the list alone holds them, and the gradient frees each after its last use
            found = region.gradient(ctx.sizes, given)
            if found is not None:
                return (None, None, *found, *[None] * len(unread))
            saved, upstream = given[:count], given[count:]
        read = saved[: region.reads]
        with torch.enable_grad():
            if again:
                tensors = [t.view_as(t) for t in read]
            else:
                tensors = [t.detach().requires_grad_(need) for t, need in zip(read, needed)]
            wanted = [t for t, need in zip(tensors, needed) if need]
            results = region.meaning(ctx.sizes, *tensors)
        pairs = [(r, g) for r, g in zip(results, upstream) if r.requires_grad]
        if not pairs or not wanted:
            return (None,) * len(needs)
        found = iter(torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True))
        return (None, None, *[next(found) if need else None for need in needed], *[None] * len(unread))


_apply = super(torch.autograd.Function, _Differentiable).apply  # without looking for transforms of torch.func, which takes as long again


def _run(region, sizes, tensors):
    """A list of tensors goes through a region; one that frees some of them early empties the list."""
    if torch.is_grad_enabled():
        for tensor in tensors[: region.reads]:
            if tensor.requires_grad:
                return region.meaning(sizes, *tensors) if region.reference else _apply(region, sizes, *tensors)
        tensor = None
    return region.launches(sizes, tensors)


$flags

# ---- is the model still the one that was planned for?

$follow


$held

# ---- what runs

$regions


$planned


class ModelNew(Model):
    """Model, with fused kernels where _planned_for holds and the original operators elsewhere."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        if torch.cuda.is_available() and not _forked():
            _library()

$forward
'''
