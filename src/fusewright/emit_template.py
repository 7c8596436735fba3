"""The fixed parts of an emitted file, as text."""

from __future__ import annotations

MODULE = '''

def _module(model, path):
    """A part of the model, from the tables that modules keep: looking up an attribute takes ten times as long."""
    for name in path:
        model = model._modules[name]
    return model
'''

HELD = '''

_DTYPES = [dtype for _, dtype, _ in _TENSORS]
_SHAPES = [shape for _, _, shape in _TENSORS]
_HELD = {}  # their names, by the path of the module that holds them
for _path, _, _ in _TENSORS:
    _HELD.setdefault(tuple(_path.split(".")[:-1]), []).append(_path.split(".")[-1])


def _tensors(model):
    """The model's tensors, in the order of _TENSORS, each looked up once."""
    found = []
    for path, names in _HELD.items():
        module = _module(model, path)
        parameters, buffers = module._parameters, module._buffers
        for name in names:
            tensor = parameters.get(name)
            if tensor is None:
                tensor = buffers.get(name)
            if tensor is None:  # computed by the module, as by a parametrization
                tensor = getattr(module, name)
            found.append(tensor)
    return found
'''

FLAGS = '''
def _tf32_allowed():
    """Whether the flags let a convolution round its operands to TF32, as PyTorch's default does."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return precision == "tf32" if precision in ("tf32", "ieee") else torch.backends.cudnn.allow_tf32


@functools.lru_cache(maxsize=None)
def _slices(copies, seats):
    """How many blocks share a sum, of so many that are made: those of one to four full waves that waste the least."""
    return min((max(1, k * seats // max(1, copies)) for k in (1, 2, 3, 4)), key=lambda s: -(-copies * s // seats) / s)


@functools.lru_cache(maxsize=None)
def _has_tensor_cores(device, shared_bytes):
    """TF32 tensor cores, and this much shared memory for a block."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    limit = getattr(properties, "shared_memory_per_block_optin", 232448 if properties.major == 9 else 0)
    return properties.major >= 8 and limit >= shared_bytes
'''

FOR_HOPPER = '''
def _for_hopper():
    """Where every GPU is a Hopper, products of four warps at once are built; elsewhere the same products, warp by warp."""
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ["-gencode=arch=compute_90a,code=sm_90a"] if capabilities == {(9, 0)} else []

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

import ctypes
import functools
import hashlib

import torch
from torch.utils.cpp_extension import load_inline

aten = torch.ops.aten

_CUDA_SOURCE = \'\'\'
$cuda\'\'\'

_KERNELS = ($kernels)

$gradients

$constants

$for_hopper
@functools.lru_cache(maxsize=None)
def _library(gradients=False):
    """The kernels, built on first use and kept in PyTorch's extension cache."""
    source = _CUDA_GRADIENTS if gradients else _CUDA_SOURCE
    name = "fusewright_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    quick = {"no_implicit_headers": True} if "no_implicit_headers" in load_inline.__code__.co_varnames else {}
    path = load_inline(
        name, cpp_sources="", cuda_sources=source, extra_cuda_cflags=["-O3", "-std=c++17"$architecture], is_python_module=False, **quick
    )
    return ctypes.CDLL(path or next(known for known in torch.ops.loaded_libraries if name in known))


def _on_device(*tensors):
    """All tensors are on one CUDA device, and no autocast changes what the operators would do there."""
    if torch.is_autocast_enabled():
        return False
    device = tensors[0].device
    return device.type == "cuda" and [tensor.device for tensor in tensors].count(device) == len(tensors)


def _elsewhere(tensor):
    """It is on another GPU than the current one, which is where kernels are launched."""
    return tensor.is_cuda and tensor.get_device() != _current_device()


def _raw_stream(index):
    """The current stream of a GPU."""
    return torch.cuda.current_stream(index).cuda_stream


_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _raw_stream)  # the same, with no object made for it
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_launchers = {}


def _launcher(kernel, arguments):
    """The kernel's function in the library, told what it takes: addresses and sizes, then a stream."""
    launcher = getattr(_library(True) if kernel in _GRADIENT_KERNELS else _library(), kernel)
    launcher.restype = ctypes.c_char_p
    launcher.argtypes = [*(ctypes.c_longlong if type(a) is int else ctypes.c_void_p for a in arguments), ctypes.c_void_p]
    return _launchers.setdefault(kernel, launcher)


def _launch(kernel, *arguments):
    """Queues a kernel on the current stream. The current device is that of its tensors."""
    launcher = _launchers.get(kernel) or _launcher(kernel, arguments)
    values = [a if type(a) is int else a.data_ptr() for a in arguments]
    problem = launcher(*values, _raw_stream(arguments[0].get_device()))
    if problem is not None:
        raise RuntimeError(f"{kernel}: {problem.decode()}")


class _Differentiable(torch.autograd.Function):
    """Forward launches kernels. Backward does so too where there are kernels for the gradients that are asked for;
    otherwise it differentiates the same meaning, written in PyTorch's operators."""

    @staticmethod
    def forward(ctx, launches, meaning, gradient, differentiable, changed, sizes, *tensors):
        ctx.meaning, ctx.gradient, ctx.differentiable, ctx.sizes = meaning, gradient, differentiable, sizes
        read = tensors[: meaning.__code__.co_argcount - 1]  # as in _run
        read, kept = [t.clone() if i in changed else t for i, t in enumerate(read)], []
        results = launches(sizes, *tensors, kept) if hasattr(gradient, "keeps") else launches(sizes, *tensors)
        ctx.save_for_backward(*read, *kept)
        ctx.read = len(read)
        need = ctx.needs_input_grad[6:]
        smooth = [d if type(d) is bool else any(need[i] for i in d) for d in differentiable]
        ctx.mark_non_differentiable(*[r for r, is_smooth in zip(results, smooth) if not is_smooth])
        return results

    @staticmethod
    def backward(ctx, *gradients):
        again = torch.is_grad_enabled()  # a second derivative will be asked for
        saved = ctx.saved_tensors  # what the meaning reads, and values that forward kept
        read = saved[: ctx.read]
        needed, unread = ctx.needs_input_grad[6 : 6 + len(read)], ctx.needs_input_grad[6 + len(read) :]
        upstream = [g for g, smooth in zip(gradients, ctx.differentiable) if smooth]
        kernels = ctx.gradient is not None and not again and not torch.is_autocast_enabled()
        if kernels and all(asked or not need for asked, need in zip(ctx.gradient.asked, needed)):
            found = ctx.gradient(ctx.sizes, *saved, *upstream)
            if found is not None:
                return (*[None] * 6, *[g if need else None for g, need in zip(found, needed)], *[None] * len(unread))
        with torch.enable_grad():
            if again:
                tensors = [t.view_as(t) for t in read]
            else:
                tensors = [t.detach().requires_grad_(need) for t, need in zip(read, needed)]
            wanted = [t for t, need in zip(tensors, needed) if need]
            results = ctx.meaning(ctx.sizes, *tensors)
        pairs = [(r, g) for r, g in zip(results, upstream) if r.requires_grad]
        if not pairs or not wanted:
            return (None,) * len(ctx.needs_input_grad)
        found = iter(torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True))
        return (*[None] * 6, *[next(found) if need else None for need in needed], *[None] * len(unread))


def _run(launches, meaning, gradient, differentiable, changed, sizes, *tensors):
    """`differentiable` says of each result whether it has a gradient: True, False, or where one of these tensors asks for it.
    `changed` are the positions of tensors that will be overwritten: backward needs them as they were."""
    if torch.is_grad_enabled():
        read = tensors[: meaning.__code__.co_argcount - 1]  # backward goes through what the meaning reads, after the sizes
        if any(tensor.requires_grad for tensor in read):
            return _Differentiable.apply(launches, meaning, gradient, differentiable, changed, sizes, *tensors)
    return launches(sizes, *tensors)


$flags

$held

$regions


$planned


class ModelNew(Model):
    """Model, with fused kernels where _planned_for holds and the original operators elsewhere."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        if torch.cuda.is_available():
            _library()

$forward
'''
