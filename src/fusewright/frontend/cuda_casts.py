"""CUDA's autocast for tensors on the CPU: a model is captured there, whichever device its plan is for.

PyTorch has a list of operators for each kind of device, and they differ: a softmax is float32 on CUDA and bf16 on the CPU. While a model is
captured for CUDA, the CPU's operators cast as CUDA's do. Verification then compares with the model on the GPU itself.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .autocast import KINDS

AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

# The operators that PyTorch documents for CUDA ("Autocast Op Reference"). Those that cast and are in none of these lists are float32.
LOW = frozenset(
    """_convolution _convolution.deprecated _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm
    addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose einsum gru_cell linalg_multi_dot
    linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention""".split()
)
WIDEST = frozenset("addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot".split())
IN_FLOAT32 = frozenset(  # their `dtype` is set, unless it is given
    """cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int prod prod.dim_int softmax.int sum
    sum.dim_IntList""".split()
)


@contextlib.contextmanager
def casts_for(device: str) -> Iterator[list[str]]:
    """While a model is captured on the CPU for this kind of device. Lists the kinds that its forward enters autocast for.

    For CUDA an autocast casts tensors on the CPU as CUDA's casts those on a GPU, also one that is named by the device of a tensor.
    """
    init, seen = torch.autocast.__init__, list[str]()
    with contextlib.ExitStack() as stack:
        replaced = functools.cache(lambda: stack.enter_context(replaced_kernels()))  # only where there is an autocast

        def noted(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, *rest: Any, **named: Any) -> None:
            if device_type in KINDS and device == "cuda":
                replaced()
                dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
                init(self, "cpu", dtype, enabled, *rest, **named)
            else:
                init(self, device_type, dtype, enabled, *rest, **named)
            seen.append(device_type)

        with mock.patch.object(torch.autocast, "__init__", noted):
            yield seen


@contextlib.contextmanager
def replaced_kernels() -> Iterator[None]:
    """The CPU's casting operators, replaced by those of CUDA. For the whole process: whoever plans is alone with it."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            for name in sorted(casting("AutocastCPU") | casting("AutocastCUDA")):
                casts = name in casting("AutocastCUDA")
                library.impl(name, kernel(name) if casts else torch.library.fallthrough_kernel)
        yield
    finally:
        library._destroy()


@functools.cache
def casting(key: str) -> frozenset[str]:
    """The operators that have a kernel of their own under a dispatch key."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return frozenset(name.removeprefix("aten::") for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def kernel(name: str) -> Callable[..., Any]:
    """What CUDA's autocast does with an operator: cast its arguments, and call it with no autocast around."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    names = [argument.name for argument in op._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            if name == "binary_cross_entropy":
                raise RuntimeError("torch.nn.functional.binary_cross_entropy is unsafe to autocast")
            if name in IN_FLOAT32:
                asked = dict(zip(names, args, strict=False)) | kwargs
                float32 = {"dtype": torch.float32} if asked.get("dtype") is None and narrow(args[0]) else {}
                return op(**{**asked, **float32})
            low = torch.get_autocast_dtype("cpu")
            given = [value for value in pytree.tree_leaves((args, kwargs)) if narrow(value)]
            widest = torch.float32 if any(value.dtype is torch.float32 for value in given) else low
            dtype = low if name in LOW else widest if name in WIDEST else torch.float32
            args, kwargs = pytree.tree_map(lambda value: value.to(dtype) if narrow(value) else value, (args, kwargs))
            return op(*args, **kwargs)

    return call


def narrow(value: Any) -> bool:
    """Autocast changes the type of this: float64 and whole numbers stay."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64
