"""Convolution kernels on the host target, over awkward shapes and every epilogue."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.chains import DOUBLED_PLUS_ONE, SOFTMAX, WITH_PLACE, C, N, here
from kernels.conv.founding import CONV1, CONV2, POOLED, STATISTICS, apply_epilogue
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, dtype_of, explain, operands, stored

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    KernelText,
    OverChannels,
    OverPositions,
    Pointwise,
    Tile,
    Window,
    candidate_tiles,
    conv_kernel,
    fits,
)
from fusewright.codegen.mma.conv_layout import layout
from fusewright.codegen.mma.conv_spec import VALUE, reading
from fusewright.host import run_sanitized, sanitizer_report
from fusewright.ir.expr import Name, element
from fusewright.ir.stmt import const


def conv2d(cin, cout, k, stride=1, padding=0, dilation=1, groups=1, **more) -> Conv:
    pair = lambda v: v if isinstance(v, tuple) else (v, v)  # noqa: E731
    return Conv(2, cin, cout, pair(k), pair(stride), pair(padding), pair(dilation), groups, **more)


def run(conv: Conv, epilogue: Epilogue, batch: int, sizes: tuple[int, ...], tile: Tile | None = None, **params):
    """The kernel's output (filled with NaN before), and the operands it saw."""
    x, w, b = operands(conv, batch, sizes)
    x = params.pop("input", x)
    text = conv_kernel("k", conv, epilogue, tile)
    out_sizes = conv.out_sizes(sizes)
    if epilogue.window:
        out_sizes = tuple(o // p for o, p in zip(out_sizes, epilogue.window.size, strict=False))
    reduced = isinstance(epilogue.reduce, OverChannels) and not epilogue.reduce.keep
    out = torch.full((batch, 1 if reduced else conv.out_channels, *out_sizes), float("nan"), dtype=dtype_of(conv))
    names = ("in_d", "in_h", "in_w")[3 - conv.dims :]
    values = dict(input=x, weight=w, out=out, batch=batch, **dict(zip(names, sizes, strict=False)), **params)
    if conv.bias:
        values["bias"] = b
    launch(load(text), text, **values)
    return out, convolved(conv, x, w, b, tile is not None and tile.warpgroups)


AWKWARD = {
    "3x3": (conv2d(8, 16, 3), 2, (11, 13)),
    "channels not a multiple of 8": (conv2d(3, 10, 3, padding=1), 1, (9, 17)),
    "channels over two chunks, not whole": (conv2d(13, 24, 3, padding=1), 1, (8, 12)),
    "several blocks of channels": (conv2d(8, 150, 3, padding=1), 1, (6, 10)),
    "1x1": (conv2d(40, 32, 1), 2, (7, 9)),
    "1x1 stride 2": (conv2d(16, 16, 1, stride=2), 1, (13, 21)),
    "7x7 stride 2": (conv2d(3, 16, 7, stride=2, padding=3), 1, (23, 30)),
    "5x3 dilated": (conv2d(8, 16, (5, 3), dilation=(2, 3), padding=(4, 3)), 1, (14, 20)),
    "2x4 uneven": (conv2d(9, 20, (2, 4), padding=(1, 2)), 1, (9, 15)),
    "stride 3, dilation 2": (conv2d(8, 16, 3, stride=3, dilation=2, padding=2), 1, (20, 19)),
    "smaller than a tile": (conv2d(8, 16, 3, padding=1), 3, (1, 2)),
    "one output": (conv2d(8, 16, 3), 2, (3, 3)),
    "groups": (conv2d(32, 48, 3, padding=1, groups=2), 2, (9, 12)),
    "groups of awkward size": (conv2d(27, 30, 3, groups=3), 1, (8, 11)),
    "no bias": (conv2d(8, 16, 3, bias=False), 1, (8, 8)),
    "1d": (Conv(1, 12, 20, (5,), (1,), (2,), (1,)), 2, (37,)),
    "1d strided": (Conv(1, 8, 16, (4,), (2,), (1,), (3,)), 1, (70,)),
    "3d": (Conv(3, 8, 16, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)), 1, (4, 7, 9)),
    "3d strided": (Conv(3, 5, 16, (2, 3, 1), (2, 1, 2), (0, 1, 0), (1, 2, 1)), 1, (6, 8, 13)),
    "transposed 2d": (conv2d(9, 16, 3, padding=1, transposed=True), 1, (8, 12)),
    "transposed 2d, cropped": (conv2d(8, 16, (2, 3), padding=(2, 3), transposed=True), 1, (9, 14)),
    "transposed, groups": (conv2d(16, 32, 3, groups=2, transposed=True), 1, (6, 9)),
    "transposed 1d": (Conv(1, 8, 16, (4,), (1,), (0,), (2,), transposed=True), 1, (19,)),
    "transposed 3d": (Conv(3, 8, 16, (3, 2, 3), (1, 1, 1), (1, 0, 2), (1, 1, 1), transposed=True), 1, (4, 5, 6)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", AWKWARD, ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = AWKWARD[case]
    out, (expected, allowed) = run(conv, Epilogue(), batch, sizes)
    assert explain(out, expected, allowed) is None


@pytest.mark.parametrize("width", [8, 9, 10])
def test_row_alignment(width: int) -> None:
    """Rows of 16-byte, 8-byte and 4-byte alignment."""
    out, (expected, allowed) = run(conv2d(8, 16, 3, padding=1), Epilogue(), 1, (5, width))
    assert explain(out, expected, allowed) is None


def transposed(dims: int, cin: int, cout: int, k, stride, padding=0, more=0, groups=1, bias=True) -> Conv:
    many = lambda v: v if isinstance(v, tuple) else (v,) * dims  # noqa: E731
    return Conv(
        dims, cin, cout, many(k), many(stride), many(padding), (1,) * dims, groups, bias,
        transposed=True, output_padding=many(more),
    )  # fmt: skip


PHASED = {
    "3x3 stride 2": (transposed(2, 9, 20, 3, 2, 1, 1), 2, (5, 7)),
    "2x2 stride 2, every tap its own phase": (transposed(2, 16, 16, 2, 2), 1, (6, 12)),
    "4x4 stride 2": (transposed(2, 8, 32, 4, 2, 1), 1, (7, 16)),
    "1x1 stride 2, phases with no tap": (transposed(2, 8, 16, 1, 2, 0, 1), 1, (5, 9)),
    "5x3 stride 2x3": (transposed(2, 11, 16, (5, 3), (2, 3), (2, 0), (1, 2)), 1, (6, 11)),
    "7x7 stride 2": (transposed(2, 3, 16, 7, 2, 3, 1), 1, (6, 10)),
    "stride 2x1": (transposed(2, 8, 16, 3, (2, 1), 1, (1, 0)), 1, (6, 19)),
    "stride 1x2": (transposed(2, 8, 16, 3, (1, 2), (0, 2)), 1, (6, 19)),
    "stride 4": (transposed(2, 8, 16, 4, 4), 1, (3, 5)),
    "padded by more than the kernel reaches": (transposed(2, 8, 16, (2, 3), 2, (3, 4)), 1, (9, 10)),
    "groups": (transposed(2, 16, 48, 3, 2, 1, groups=2), 1, (5, 9)),
    "groups of awkward size": (transposed(2, 27, 30, 4, 2, 1, groups=3), 1, (5, 6)),
    "several blocks of channels": (transposed(2, 8, 150, 3, 2, 1, 1), 1, (3, 5)),
    "one input": (transposed(2, 24, 16, 3, 2, bias=False), 3, (1, 1)),
    "1d": (transposed(1, 12, 20, 5, 3, 1, 2), 2, (37,)),
    "1d stride 8": (transposed(1, 8, 16, 16, 8, 4), 1, (21,)),
    "3d": (transposed(3, 8, 16, 3, 2, 1, 1), 1, (3, 4, 9)),
    "3d, 4x4x4": (transposed(3, 5, 16, 4, 2, 1), 1, (2, 3, 5)),
    "3d, stride 1x2x2": (transposed(3, 8, 20, (3, 4, 2), (1, 2, 2), (1, 1, 0)), 1, (3, 4, 5)),
}


@pytest.mark.parametrize("case", PHASED, ids=lambda name: name.replace(" ", "-"))
def test_strided_transposed(case: str) -> None:
    conv, batch, sizes = PHASED[case]
    out, (expected, allowed) = run(conv, Epilogue(), batch, sizes)
    assert explain(out, expected, allowed) is None


PHASED_TILES = {
    "alone": Tile(2, (1, 2, 1), (1, 1, 3), weights="resident", alone=True),
    "staged": Tile(1, (1, 2, 1), (1, 2, 1), warps_c=2, chunk=16),
    "rows not reused": Tile(2, (1, 2, 1), (1, 2, 2), together=False),
    "direct, wide": Tile(1, (1, 1, 2), (1, 1, 2), warps_c=2, weights="direct"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PHASED_TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "moments", "stored moments", "softmax"])
def test_tiles_of_phases(name: str, epilogue: str) -> None:
    conv, tile = transposed(2, 20, 32, 3, 2, 1, 1), PHASED_TILES[name]
    if "moments" in epilogue:
        check_moments(conv, OverPositions("CloseMoments"), (2, 5, 21), slices=2, tile=tile, beside="stored" in epilogue)
        return
    after = SOFTMAX
    epilogues = {
        "elements": Epilogue(), "rows": Epilogue(reduce=OverChannels("LogSumExp")),
        "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after),
    }  # fmt: skip
    out, (value, allowed) = run(conv, epilogues[epilogue], 2, (5, 21), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    elif epilogue == "softmax":
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("rows", [False, True])
def test_pool_of_phases(rows: bool) -> None:
    """A pool as wide as the stride; higher than it, and lower."""
    reduce = OverChannels("Max") if rows else None
    for conv, size in ((transposed(2, 8, 24, 3, 2, 1, 1), (4, 2)), (transposed(2, 8, 16, 4, 2, 1), (1, 2))):
        out, found = run(conv, Epilogue(window=Window("max", size), reduce=reduce), 1, (5, 19))
        value, allowed = (F.max_pool2d(part, size) for part in found)
        if rows:
            value, allowed = value.amax(1, keepdim=True), allowed.amax(1, keepdim=True)
        assert explain(out, value, allowed) is None


TILES = {
    "all together": Tile(2, (1, 2, 1), (1, 2, 2)),
    "rows not reused": Tile(2, (1, 2, 1), (1, 2, 2), together=False),
    "wide warps": Tile(2, (1, 1, 4), (1, 2, 1)),
    "two warps over channels": Tile(1, (1, 2, 1), (1, 1, 2), warps_c=2),
    "one column a step": Tile(2, (1, 2, 2), (1, 2, 1), columns=1),
    "16 channels a step": Tile(2, (1, 2, 1), (1, 2, 1), chunk=16, early=1.0, unrolled=1),
    "resident": Tile(2, (1, 2, 1), (1, 2, 1), weights="resident"),
    "resident, three rounds": Tile(2, (1, 2, 1), (1, 1, 2), weights="resident", repeats=3, chunk=24),
    "warps alone": Tile(2, (1, 2, 1), (1, 1, 3), weights="resident", alone=True),
    "warps alone, direct": Tile(2, (1, 4, 1), (1, 1, 2), weights="direct", alone=True),
    "direct": Tile(2, (1, 4, 1), (1, 1, 2), weights="direct", columns=1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "moments", "stored moments"])
def test_tiles(name: str, epilogue: str) -> None:
    conv, tile = conv2d(20, 32, 3, padding=1), TILES[name]
    if "moments" in epilogue:
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile, beside="stored" in epilogue)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, 21), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    assert explain(out, value, allowed) is None


WINDOWS = {
    "max 2x2": Window("max", (2, 2)), "max 3x3": Window("max", (3, 3)), "max 1x4": Window("max", (1, 4)),
    "avg 2x2": Window("avg", (2, 2)), "avg 3x1": Window("avg", (3, 1)), "avg 2x5": Window("avg", (2, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("rows", [False, True])
def test_windows(name: str, rows: bool) -> None:
    window = WINDOWS[name]
    reduce = OverChannels("Sum") if rows else None
    out, (value, allowed) = run(conv2d(8, 24, 3, padding=1), Epilogue(window=window, reduce=reduce), 1, (13, 35))
    if window.kind == "max":
        value, allowed = F.max_pool2d(value, window.size), F.max_pool2d(allowed, window.size)
    else:
        value, allowed = F.avg_pool2d(value, window.size), F.avg_pool2d(allowed, window.size) + 1e-6
    if rows:
        value, allowed = value.sum(1, keepdim=True), allowed.sum(1, keepdim=True) + 1e-5
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("rows", [False, True])
def test_a_wide_window_of_many_channels(rows: bool) -> None:
    """A lane cannot hold 16 positions of 64 channels: it takes fewer channels."""
    epilogue = Epilogue(window=Window("max", (4, 4)), reduce=OverChannels("Max") if rows else None)
    out, (value, allowed) = run(conv2d(8, 72, 3, padding=1), epilogue, 1, (14, 35))
    value, allowed = F.max_pool2d(value, 4), F.max_pool2d(allowed, 4)
    if rows:
        value, allowed = value.amax(1, keepdim=True), allowed.amax(1, keepdim=True)
    assert explain(out, value, allowed) is None
    assert fits(Conv(3, 16, 128, (3,) * 3, (1,) * 3, (0,) * 3, (1,) * 3), Epilogue(window=Window("max", (3, 3, 3))))


REDUCTIONS = {
    "LogSumExp": lambda v, a: (v.logsumexp(1, keepdim=True), a.amax(1, keepdim=True) + 4e-6),
    "Sum": lambda v, a: (v.sum(1, keepdim=True), a.sum(1, keepdim=True) + 1e-5),
    "Max": lambda v, a: (v.amax(1, keepdim=True), a.amax(1, keepdim=True)),
    "Min": lambda v, a: (v.amin(1, keepdim=True), a.amax(1, keepdim=True)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accumulator", REDUCTIONS)
@pytest.mark.parametrize("channels", [16, 20, 64, 144])
def test_over_channels(accumulator: str, channels: int) -> None:
    """All channels in one warp, some of them missing, and in several warps."""
    epilogue = Epilogue(reduce=OverChannels(accumulator))
    out, found = run(conv2d(8, channels, 3), epilogue, 2, (7, 19))
    assert explain(out, *REDUCTIONS[accumulator](*found)) is None


def test_bounded_logsumexp() -> None:
    out, found = run(conv2d(8, 64, 3), Epilogue(reduce=OverChannels("LogSumExp", bounded=True)), 1, (7, 12))
    assert explain(out, *REDUCTIONS["LogSumExp"](*found)) is None


def test_after_sees_the_reduced_value() -> None:
    after = WITH_PLACE
    out, found = run(conv2d(8, 16, 3), Epilogue(reduce=OverChannels("Max"), after=after), 1, (6, 11))
    value, allowed = REDUCTIONS["Max"](*found)
    place = torch.arange(4)[:, None] * 100 + torch.arange(9)
    assert explain(out, value * 2 + place, allowed * 2 + 1e-4) is None


@pytest.mark.parametrize("channels", [16, 40, 80])
def test_softmax_over_channels(channels: int) -> None:
    after = SOFTMAX
    epilogue = Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after)
    out, (value, allowed) = run(conv2d(8, channels, 3), epilogue, 2, (6, 13))
    expected = value.softmax(1)
    assert explain(out, expected, expected * (2 * allowed.amax(1, keepdim=True) + 4e-6)) is None


def test_body_operands() -> None:
    """Per-channel, per-sample and full-tensor operands, before and after a pool."""
    make = torch.Generator().manual_seed(1)
    gain, offset = torch.randn(20, generator=make), torch.randn(2, generator=make)
    full, pooled = torch.randn(2, 20, 9, 15, generator=make), torch.randn(2, 20, 4, 7, generator=make)
    before = Pointwise(
        Name("scaled") + here("full"),
        (const("float", "scaled", VALUE * element(Name("gain"), C) + element(Name("offset"), N)),),
        params=reading("float", "gain", "offset", "full"),
    )
    between = Pointwise(VALUE + here("pooled_add", "out"), params=reading("float", "pooled_add"))
    epilogue = Epilogue(before=before, window=Window("max", (2, 2)), between=between)
    out, (value, allowed) = run(
        conv2d(8, 20, 3, padding=1), epilogue, 2, (9, 15), gain=gain, offset=offset, full=full, pooled_add=pooled
    )
    scaled = value * gain.double()[:, None, None] + offset.double()[:, None, None, None] + full.double()
    expected = F.max_pool2d(scaled, 2) + pooled.double()
    assert explain(out, expected, F.max_pool2d(allowed * gain.abs()[:, None, None], 2) + 1e-5) is None


def check_moments(conv, reduce, sizes, slices, tile=None, window=None, beside=False):
    """Of the elements; where these are stored too, of something made of them."""
    batch, *spatial = sizes
    x, w, b = operands(conv, batch, tuple(spatial))
    epilogue = Epilogue(window=window, reduce=reduce, stored=beside, between=DOUBLED_PLUS_ONE if beside else Pointwise())
    text = conv_kernel("k", conv, epilogue, tile)
    words = {"CloseMoments": 4}.get(reduce.accumulator, 1)
    partials = torch.full((batch, slices, conv.out_channels, words), float("nan"))
    names = ("in_d", "in_h", "in_w")[3 - conv.dims :]
    shrunk = window.size if window else (1,) * conv.dims
    places = prod(o // p for o, p in zip(conv.out_sizes(spatial), shrunk, strict=True))
    out = torch.full((batch * conv.out_channels * places,), float("nan"), dtype=dtype_of(conv))
    values = dict(
        input=x,
        weight=w,
        bias=b,
        out=out,
        partials=partials,
        batch=batch,
        slices=slices,
        **dict(zip(names, spatial, strict=False)),
    )
    launch(load(text), text, **values)
    value, allowed = convolved(conv, x, w, b, tile is not None and tile.warpgroups)
    if window:
        value, allowed = F.max_pool2d(value, window.size), F.max_pool2d(allowed, window.size)
    if beside:
        assert explain(out.reshape(value.shape), value, stored(conv, value, allowed)) is None
        if conv.dtype != "float32":  # statistics are of what is in memory
            value, allowed = out.reshape(value.shape).double(), torch.full_like(value, 1e-6)
        value, allowed = 2 * value + 1, 2 * allowed + 1e-6
    value, allowed = value.flatten(2), allowed.flatten(2).amax(2)
    if reduce.accumulator != "CloseMoments":
        total = partials[..., 0].amax(1) if reduce.accumulator == "Max" else partials[..., 0].sum(1)
        expected = value.amax(2) if reduce.accumulator == "Max" else value.sum(2)
        assert explain(total, expected, allowed * (1 if reduce.accumulator == "Max" else value.shape[2])) is None
        return
    count, mean, m2, low = partials.double().unbind(-1)
    mean = mean + low
    assert (count.sum(1) == value.shape[2]).all()
    centre = (count * mean).sum(1) / value.shape[2]
    spread = (m2 + count * (mean - centre[:, None]) ** 2).sum(1) / value.shape[2]
    assert explain(centre, value.mean(2), allowed + 1e-6) is None
    assert explain(spread, value.var(2, correction=0), 4 * allowed * value.std(2, correction=0) + 1e-5) is None


@pytest.mark.parametrize("slices", [1, 3, 50])
@pytest.mark.parametrize("accumulator", ["CloseMoments", "Sum", "Max"])
def test_over_positions(accumulator: str, slices: int) -> None:
    """Also with more slices than tiles: empty slices merge to nothing."""
    check_moments(conv2d(8, 40, 3, padding=1), OverPositions(accumulator), (2, 13, 27), slices)


@pytest.mark.parametrize("stored", [False, True])
def test_over_positions_after_a_pool(stored: bool) -> None:
    for size in ((2, 2), (2, 3)):
        window = Window("max", size)
        check_moments(conv2d(8, 16, 3, padding=1), OverPositions("CloseMoments"), (1, 13, 27), 2, window=window, beside=stored)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [*AWKWARD, *PHASED], ids=lambda name: name.replace(" ", "-"))
def test_stored_beside_statistics(case: str) -> None:
    conv, batch, sizes = (AWKWARD | PHASED)[case]
    check_moments(conv, OverPositions("CloseMoments"), (batch, *sizes), 2, beside=True)


@pytest.mark.parametrize("accumulator", ["Sum", "Max"])
@pytest.mark.parametrize("width", [24, 25, 26])
def test_stored_beside_sums(accumulator: str, width: int) -> None:
    """Rows of every alignment."""
    check_moments(conv2d(8, 24, 3, padding=1), OverPositions(accumulator), (2, 9, width), 3, beside=True)


def test_moments_far_from_zero() -> None:
    """Mean 1000, deviation 1: a difference of squares would lose all of it."""
    conv = replace(conv2d(8, 16, 1), bias=True)
    x, w, _ = operands(conv, 1, (40, 40))
    bias = torch.full((16,), 1000.0)
    text = conv_kernel("k", conv, STATISTICS)
    partials = torch.full((1, 2, 16, 4), float("nan"))
    launch(load(text), text, input=x, weight=w, bias=bias, partials=partials, batch=1, in_h=40, in_w=40, slices=2)
    value, _ = convolved(conv, x, w, bias)
    count, mean, m2, low = partials.double().unbind(-1)
    mean = mean + low
    centre = (count * mean).sum(1) / 1600
    spread = (m2 + count * (mean - centre[:, None]) ** 2).sum(1) / 1600
    assert torch.allclose(spread, value.flatten(2).var(2, correction=0), rtol=2e-3)


@pytest.mark.parametrize("warpgroups", [False, True])
def test_moments_of_what_is_stored(warpgroups: bool) -> None:
    """Where the mean is a thousand deviations, a norm of the stored elements finds the deviation that these statistics say."""
    conv = conv2d(8, 64, 3)
    x, w, b = operands(conv, 2, (18, 34))
    epilogue = Epilogue(reduce=OverPositions("CloseMoments"), stored=True)
    tile = next(tile for tile in candidate_tiles(conv, epilogue) if tile.warpgroups == warpgroups)
    text = conv_kernel("k", conv, epilogue, tile)
    partials, out = torch.full((2, 3, 64, 4), float("nan")), torch.full((2, 64, 16, 32), float("nan"))
    sizes = {"batch": 2, "in_h": 18, "in_w": 34, "slices": 3}
    launch(load(text), text, input=x + 1000, weight=w, bias=b, out=out, partials=partials, **sizes)
    count, mean, m2, low = partials.double().flatten(0, 1).unbind(-1)
    mean = mean + low
    centre = (count * mean).sum(0) / 1024
    spread = (m2 + count * (mean - centre) ** 2).sum(0) / 1024
    expected = out.double().transpose(0, 1).flatten(1).var(1, correction=0)
    assert float((spread / expected - 1).square().mean().sqrt()) < 2.5e-6  # sums of the elements themselves: 3.8e-6, 5.4e-6


def test_nan_and_infinity_are_kept() -> None:
    conv = conv2d(8, 16, 3, padding=1)
    x, _, _ = operands(conv, 1, (12, 12))
    x[0, 3, 2, 2], x[0, 1, 9, 9] = float("nan"), float("inf")
    for epilogue in (Epilogue(), Epilogue(window=Window("max", (2, 2))), Epilogue(reduce=OverChannels("LogSumExp")),
                   Epilogue(reduce=OverChannels("Max"))):  # fmt: skip
        out, (value, _) = run(conv, epilogue, 1, (12, 12), input=x)
        if epilogue.window:
            value = F.max_pool2d(value, 2)
        if epilogue.reduce:
            value = (
                value.logsumexp(1, keepdim=True)
                if epilogue.reduce.accumulator == "LogSumExp"
                else value.amax(1, keepdim=True)
            )
        assert torch.equal(out.isnan(), value.isnan())
        assert torch.equal(out.isinf(), value.isinf())


def test_logsumexp_of_large_values() -> None:
    conv = conv2d(8, 64, 1)
    x, _, _ = operands(conv, 1, (5, 9))
    out, (value, allowed) = run(conv, Epilogue(reduce=OverChannels("LogSumExp")), 1, (5, 9), input=x * 1000)
    assert explain(out, *REDUCTIONS["LogSumExp"](value, allowed)) is None
    assert out.isfinite().all()


def test_first_founding_model() -> None:
    conv, epilogue = CONV1, apply_epilogue()
    x, w, b = operands(conv, 2, (20, 40))
    gamma, beta = torch.rand(64) + 0.5, torch.randn(64) * 0.1
    stats, apply = conv_kernel("stats", conv, STATISTICS), conv_kernel("apply", conv, epilogue)
    library = load(stats, apply)
    slices = 3
    moments, out = torch.full((2, slices, 64, 4), float("nan")), torch.full((2, 1, 18, 38), float("nan"))
    common = {"input": x, "weight": w, "bias": b, "batch": 2, "in_h": 20, "in_w": 40}
    launch(library, stats, partials=moments, slices=slices, **common)
    launch(library, apply, moments=moments, gamma=gamma, beta=beta, moment_slices=slices, out=out, **common)
    value, allowed = convolved(conv, x, w, b)
    normal = F.group_norm(value, 16, gamma.double(), beta.double(), 1e-5)
    expected = torch.logsumexp(value + F.hardswish(torch.tanh(normal)), 1, keepdim=True)
    assert explain(out, expected, 6 * allowed.amax(1, keepdim=True) + 1e-5) is None


def test_second_founding_model() -> None:
    out, (value, allowed) = run(CONV2, POOLED, 1, (4, 10, 36))
    expected = torch.relu(F.max_pool3d(value, 2).logsumexp(1, keepdim=True))
    assert explain(out, expected, F.max_pool3d(allowed, 2).amax(1, keepdim=True) + 4e-6) is None


SANITIZED = {
    "staged": Tile(1, (1, 2, 1), (1, 1, 2), warps_c=2, columns=1),
    "alone": Tile(2, (1, 2, 1), (1, 1, 2), weights="resident", alone=True),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
@pytest.mark.parametrize("kind", ["rows", "moments", "stored moments"])
def test_sanitized(sanitize: str, name: str, kind: str) -> None:
    """No address outside a buffer (each is exactly as large as needed), no undefined arithmetic, no race."""
    conv = conv2d(11, 20, 3, padding=1)
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    epilogue = {"rows": rows, "moments": STATISTICS, "stored moments": replace(STATISTICS, stored=True)}[kind]
    text = conv_kernel("k", conv, epilogue, SANITIZED[name])
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "partials": 2 * 2 * 20 * 4}
    floats["out"] = 2 * 4 * 6 if kind == "rows" else 2 * 20 * 9 * 13
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    sizes = {"batch": 2, "in_h": 9, "in_w": 13, "slices": 2}
    check_sanitized(text, floats, sizes, sanitize)


def check_sanitized(text: KernelText, floats: dict[str, int], sizes: dict[str, int], sanitize: str, first: str | None = None) -> None:
    """`first` is a number that the input begins with."""
    buffers = {name: {"floats": count} | ({"first": first} if first and name == "input" else {}) for name, count in floats.items()}
    arguments = [buffers[arg.name] if arg.is_pointer else sizes[arg.name] for arg in text.launcher_args]
    library = load(text, sanitize=sanitize, path=True)
    command = [str(Path(__file__).parent / "sanitized_run.py"), str(library), "k", json.dumps(arguments)]
    process = run_sanitized(command, sanitize, env={"PYTHONMALLOC": "malloc"})
    assert sanitizer_report(process.stderr) is None
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
@pytest.mark.parametrize("kind", ["elements", "moments", "stored moments"])
def test_phases_sanitized(sanitize: str, name: str, kind: str) -> None:
    conv = transposed(2, 11, 20, 3, 2, 1, 1)
    tile = replace(SANITIZED[name], columns=None)
    epilogue = {"elements": Epilogue(), "moments": STATISTICS, "stored moments": replace(STATISTICS, stored=True)}[kind]
    text = conv_kernel("k", conv, epilogue, tile)
    floats = {
        "input": 2 * 11 * 5 * 7,
        "weight": 20 * 11 * 9,
        "bias": 20,
        "out": 2 * 20 * 10 * 14,
        "partials": 2 * 2 * 20 * 4,
    }
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 5, "in_w": 7, "slices": 2}, sanitize)


def test_declines_what_it_cannot_do() -> None:
    plain = Epilogue()
    assert fits(conv2d(8, 16, 3), plain)
    assert not fits(conv2d(8, 16, 3, stride=2, dilation=2, transposed=True), plain)
    assert not fits(transposed(2, 8, 16, 3, 2), Epilogue(window=Window("max", (2, 3))))
    assert not fits(conv2d(32, 32, 3, groups=2), Epilogue(reduce=OverChannels("Sum")))
    assert not fits(conv2d(8, 4096, 3), Epilogue(reduce=OverChannels("Sum")))
    assert not fits(conv2d(8, 16, 3), Epilogue(reduce=OverChannels("Sum"), stored=True))


def test_a_bit_for_each_round_of_copies() -> None:
    """A thread that copies single elements keeps one bit for each in a word."""
    for conv in (conv2d(3, 64, 11, stride=4, padding=2), conv2d(3, 96, 16, stride=16)):
        for tile in candidate_tiles(conv, Epilogue()):
            shape = layout(conv, Epilogue(), tile)
            assert shape.rows[0] * shape.rows[1] * shape.pitch <= 32 * shape.stagers


def test_text_is_reproducible() -> None:
    epilogue = apply_epilogue()
    tile = candidate_tiles(CONV1, epilogue)[0]
    assert conv_kernel("k", CONV1, epilogue, tile) == conv_kernel("k", CONV1, epilogue, tile)
