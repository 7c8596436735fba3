"""Depthwise convolutions on the host target over awkward shapes, and what nvcc makes of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from kernels.conv.chains import DOUBLED_PLUS_ONE, OUT_CHANNELS, C, H, N, W
from kernels.conv.harness import launch, load
from kernels.conv.reference import explain, operands, operator
from kernels.conv.test_conv_host import check_sanitized
from kernels.conv.test_conv_nvcc import compiled

from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, OverPositions, Pointwise, Table, Window
from fusewright.codegen.mma.conv_spec import VALUE, reading
from fusewright.codegen.mma.depthwise import depthwise_kernel, fits
from fusewright.ir.expr import Name, element
from fusewright.ir.stmt import const


def depthwise(dims: int, channels: int, k, stride=1, padding=0, dilation=1, times=1, bias=True) -> Conv:
    many = lambda v: v if isinstance(v, tuple) else (v,) * dims  # noqa: E731
    return Conv(
        dims, channels, channels * times, many(k), many(stride), many(padding), many(dilation), channels, bias
    )  # fmt: skip


def convolved(conv: Conv, x, w, b):
    """In fp64, and the error a chain of fp32 fused multiply-adds may have: half a unit in the last place for each."""
    apply = operator(conv)
    value = apply(x.double(), w.double(), None if b is None else b.double())
    scale = apply(x.double().abs(), w.double().abs(), None if b is None else b.double().abs())
    return value, 2.0**-24 * (prod(conv.kernel) + 1) * scale + 1e-30


def arguments(conv: Conv, batch: int, sizes: tuple[int, ...]):
    x, w, b = operands(conv, batch, sizes)
    names = ("in_d", "in_h", "in_w")[3 - conv.dims :]
    values = dict(input=x, weight=w, batch=batch, **dict(zip(names, sizes, strict=True)))
    return values | ({"bias": b} if conv.bias else {}), convolved(conv, x, w, b)


AWKWARD = {
    "3x3": (depthwise(2, 5, 3, padding=1), 2, (11, 13)),
    "3x3, aligned": (depthwise(2, 8, 3, padding=1), 1, (19, 36)),
    "3x3, no padding": (depthwise(2, 4, 3), 1, (9, 20)),
    "1x1": (depthwise(2, 7, 1, bias=False), 2, (5, 8)),
    "5x5 stride 2": (depthwise(2, 6, 5, 2, 2), 1, (23, 24)),
    "7x7": (depthwise(2, 3, 7, 1, 3), 1, (14, 14)),
    "2x6 uneven": (depthwise(2, 3, (2, 6), 1, (1, 2)), 1, (9, 15)),
    "stride 3, dilation 2": (depthwise(2, 3, 3, 3, 2, 2), 1, (20, 28)),
    "dilation 4": (depthwise(2, 3, 3, 1, 4, 4), 1, (12, 16)),
    "two outputs a channel": (depthwise(2, 5, 3, 1, 1, times=2), 2, (8, 12)),
    "smaller than a strip": (depthwise(2, 40, 3, 1, 1), 3, (2, 3)),
    "one output": (depthwise(2, 9, 3), 2, (3, 3)),
    "1d": (depthwise(1, 6, 5, 1, 2), 2, (37,)),
    "1d strided": (depthwise(1, 6, 4, 2, 1, 3, times=3), 1, (64,)),
    "3d": (depthwise(3, 4, 3, 1, 1), 1, (4, 7, 12)),
    "3d strided": (depthwise(3, 5, (2, 3, 1), (2, 1, 2), (0, 1, 0), (1, 2, 1)), 1, (6, 8, 13)),
}


@pytest.mark.parametrize("case", AWKWARD, ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = AWKWARD[case]
    text = depthwise_kernel("k", conv, Epilogue())
    values, (expected, allowed) = arguments(conv, batch, sizes)
    out = torch.full(expected.shape, float("nan"))
    launch(load(text), text, out=out, **values)
    assert explain(out, expected, allowed) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("width", [12, 13])
def test_half_types(dtype: torch.dtype, width: int) -> None:
    """Sums are in fp32; what is stored is rounded once."""
    conv = replace(depthwise(2, 6, 3, 1, 1), dtype=str(dtype).removeprefix("torch."))
    text = depthwise_kernel("k", conv, Epilogue())
    values, _ = arguments(conv, 2, (9, width))
    values |= {name: values[name].to(dtype) for name in ("input", "weight", "bias")}
    value, allowed = convolved(conv, values["input"], values["weight"], values["bias"])
    out = torch.full(value.shape, float("nan"), dtype=dtype)
    launch(load(text), text, out=out, **values)
    assert explain(out, value, allowed + value.abs() * torch.finfo(dtype).eps + 1e-7) is None


def test_bodies_and_tables() -> None:
    conv = depthwise(2, 6, 3, 1, 1, times=2)
    body = Pointwise(
        Name("scaled") + H * 100 + W,
        (const("float", "scaled", VALUE * element(Name("gain_of"), C - Name("channel0"))),),
        params=reading("float", "gain"),
        tables=(Table("gain_of", element(Name("gain"), N * OUT_CHANNELS + C)),),
    )
    text = depthwise_kernel("k", conv, Epilogue(before=body))
    values, (value, allowed) = arguments(conv, 2, (9, 11))
    gain, out = torch.rand(2, 12) + 0.5, torch.full(value.shape, float("nan"))
    launch(load(text), text, out=out, gain=gain, **values)
    place = torch.arange(9)[:, None] * 100 + torch.arange(11)
    assert explain(out, value * gain[..., None, None] + place, allowed * 2 + 1e-4) is None


@pytest.mark.parametrize("slices", [1, 3, 50])
@pytest.mark.parametrize("accumulator", ["CloseMoments", "Sum", "Max"])
@pytest.mark.parametrize("stored", [False, True])
def test_over_positions(accumulator: str, slices: int, stored: bool) -> None:
    """Of the elements; where these are stored too, of something made of them."""
    conv = depthwise(2, 5, 3, 1, 1)
    epilogue = Epilogue(reduce=OverPositions(accumulator), stored=stored, between=DOUBLED_PLUS_ONE if stored else Pointwise())
    text = depthwise_kernel("k", conv, epilogue)
    values, (value, allowed) = arguments(conv, 2, (21, 30))
    partials = torch.full((2, slices, 5, 4 if accumulator == "CloseMoments" else 1), float("nan"))
    out = torch.full(value.shape, float("nan"))
    launch(load(text), text, out=out, partials=partials, slices=slices, **values)
    if stored:
        assert explain(out, value, allowed) is None
        value, allowed = 2 * value + 1, 2 * allowed + 1e-6
    value, allowed = value.flatten(2), allowed.flatten(2).amax(2)
    if accumulator == "CloseMoments":
        count, mean, m2, low = partials.double().unbind(-1)
        mean = mean + low
        assert (count.sum(1) == value.shape[2]).all()
        centre = (count * mean).sum(1) / value.shape[2]
        spread = (m2 + count * (mean - centre[:, None]) ** 2).sum(1) / value.shape[2]
        assert explain(centre, value.mean(2), allowed + 1e-6) is None
        assert explain(spread, value.var(2, correction=0), 4 * allowed * value.std(2) + 1e-5) is None
    elif accumulator == "Sum":
        assert explain(partials[..., 0].sum(1), value.sum(2), allowed * value.shape[2] + 1e-5) is None
    else:
        assert explain(partials[..., 0].amax(1), value.amax(2), allowed) is None


@pytest.mark.parametrize("sanitize", ["address", "undefined"])
@pytest.mark.parametrize("width", [12, 13])
@pytest.mark.parametrize("kind", ["elements", "moments", "stored moments"])
def test_sanitized(sanitize: str, width: int, kind: str) -> None:
    conv = depthwise(2, 6, 5, 1, 2)
    statistics = Epilogue(reduce=OverPositions("CloseMoments"), stored=kind == "stored moments")
    text = depthwise_kernel("k", conv, Epilogue() if kind == "elements" else statistics)
    plane = 2 * 6 * 9 * width
    floats = {"input": plane, "weight": 6 * 25, "bias": 6, "out": plane, "partials": 2 * 2 * 6 * 4}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": width, "slices": 2}, sanitize)


def test_declines_what_it_cannot_do() -> None:
    conv = depthwise(2, 8, 3)
    assert fits(conv, Epilogue())
    assert not fits(replace(conv, groups=4), Epilogue())
    assert not fits(depthwise(3, 8, 5), Epilogue())
    assert not fits(conv, Epilogue(window=Window("max", (2, 2))))
    assert not fits(conv, Epilogue(reduce=OverChannels("Sum")))


COMPILED = {
    "3x3": (depthwise(2, 64, 3, 1, 1), Epilogue()),
    "7x7": (depthwise(2, 64, 7, 1, 3), Epilogue()),
    "5x5 stride 2": (depthwise(2, 64, 5, 2, 2), Epilogue()),
    "3d": (depthwise(3, 64, 3, 1, 1), Epilogue()),
    "statistics": (depthwise(2, 64, 3, 1, 1), Epilogue(reduce=OverPositions("CloseMoments"))),
    "stored statistics": (depthwise(2, 64, 3, 1, 1), Epilogue(reduce=OverPositions("CloseMoments"), stored=True)),
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("case", COMPILED, ids=lambda name: name.replace(" ", "-"))
def test_compiles_without_spills(case: str, tmp_path: Path) -> None:
    found, _ = compiled(depthwise_kernel("k", *COMPILED[case]), tmp_path)
    assert len(found) == 2
    for registers, spilled in found.values():
        assert registers <= 168 and spilled == 0  # three blocks of 128 threads on a multiprocessor, at least
