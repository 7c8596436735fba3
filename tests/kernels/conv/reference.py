"""What a convolution kernel should give: fp64 over operands as they are multiplied, and how far fp32 sums may stray."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fusewright.codegen.mma.conv import Conv

# Where each number is two TF32 ones: the product that is left out is 2^-22 of the whole at worst, and two second parts are rounded,
# which is 2^-23 each. Seldom so in all of a sum, so that fp32 sums of what these tests add stay below it too.
STRICT_ERROR = 2.0**-21
# Where it is two bf16 ones, which hold 16 bits: either operand is off by 2^-16, and so is the product that is left out.
PARTS_ERROR = 3 * 2.0**-16
SUM_ERROR = 2.0**-20  # a chain of truncating fp32 sums, relative to the sum of absolute products


def to_tf32(x: torch.Tensor, even: bool = False) -> torch.Tensor:
    """Round to nearest, ties away from zero or to even; infinities and NaN stay."""
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + (0xFFF + (bits >> 13 & 1) if even else 0x1000)) & ~0x1FFF).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x)


def operator(conv: Conv):
    plain = (F.conv1d, F.conv2d, F.conv3d)[conv.dims - 1]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[conv.dims - 1]

    def apply(x, w, b):
        if conv.transposed:
            return transposed(
                x, w, b, stride=conv.stride, padding=conv.padding, groups=conv.groups, dilation=conv.dilation,
                output_padding=conv.output_padding[-conv.dims :],
            )  # fmt: skip
        return plain(x, w, b, stride=conv.stride, padding=conv.padding, groups=conv.groups, dilation=conv.dilation)

    return apply


def convolved(conv: Conv, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, even: bool = False):
    """The convolution in fp64 over operands as they are multiplied, rounded where that is TF32, and the error its fp32 sums may have."""
    apply = operator(conv)
    if x.dtype is torch.float32 and conv.tf32 and not conv.bf16_parts:
        x, w = to_tf32(x, even), to_tf32(w, conv.scaled)
    x, w = x.double(), w.double()
    value = apply(x, w, None if b is None else b.double())
    scale = apply(x.abs(), w.abs(), None if b is None else b.double().abs())
    error = STRICT_ERROR if conv.is_strict else PARTS_ERROR if conv.bf16_parts else SUM_ERROR
    return value, error * scale + 1e-30


def operands(conv: Conv, batch: int, sizes: tuple[int, ...], seed: int = 0):
    make = torch.Generator().manual_seed(seed)
    shape = (conv.in_channels, conv.out_channels) if conv.transposed else (conv.out_channels, conv.in_channels)
    weight = (shape[0], shape[1] // conv.groups, *conv.kernel)
    x = torch.randn(batch, conv.in_channels, *sizes, generator=make)
    w = torch.randn(weight, generator=make) / (weight[1] * w_taps(conv)) ** 0.5
    b = torch.randn(conv.out_channels, generator=make) if conv.bias else None
    x, w, b = (None if t is None else t.to(dtype_of(conv)) for t in (x, w, b))
    return x, w, b


def dtype_of(conv: Conv) -> torch.dtype:
    return getattr(torch, conv.dtype)


def stored(conv: Conv, value: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """What a value may be off once it is rounded to the convolution's type."""
    kind = torch.finfo(dtype_of(conv))
    return allowed if conv.dtype == "float32" else allowed + (value.abs() + allowed) * kind.eps / 2 + kind.smallest_normal * kind.eps


def w_taps(conv: Conv) -> int:
    taps = 1
    for k in conv.kernel:
        taps *= k
    return taps


def explain(out: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor) -> str | None:
    """Nothing if every element is within its allowance, else where it strays most."""
    off = (out.double() - expected).abs()
    bad = ~(off <= allowed) & ~(out.double() == expected) & ~(out.isnan() & expected.isnan())
    if not bad.any():
        return None
    ratio = torch.where(bad, off / allowed, torch.zeros_like(off)).nan_to_num(nan=float("inf"))
    at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    worst = f"{out[at].item()} for {expected[at].item()} ± {allowed[at].item():.1e}"
    return f"{int(bad.sum())} of {bad.numel()} stray, most at {at}: {worst}"
