"""Convolution kernels of bf16 and fp16 on the host target: two channels to a word, over awkward shapes and every epilogue."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.chains import SOFTMAX, C, here
from kernels.conv.founding import STATISTICS
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, dtype_of, explain, operands, stored
from kernels.conv.test_conv_host import (
    AWKWARD,
    PHASED,
    PHASED_TILES,
    REDUCTIONS,
    SANITIZED,
    TILES,
    WINDOWS,
    check_moments,
    check_sanitized,
    conv2d,
    run,
    transposed,
)
from kernels.conv.test_warpgroup_wide import PHASED_TILES as WARPGROUP_PHASES
from kernels.conv.test_warpgroup_wide import TILES as WARPGROUP_TILES

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    OverChannels,
    OverPositions,
    Pointwise,
    Tile,
    Window,
    candidate_tiles,
    conv_kernel,
    fits,
)
from fusewright.codegen.mma.conv_layout import layout, refusal
from fusewright.codegen.mma.conv_spec import VALUE, reading
from fusewright.codegen.mma.conv_tiles import best_tile, for_sizes
from fusewright.ir.expr import Function, Name, element
from fusewright.ir.stmt import const

HALVES = ["bfloat16", "float16"]
MORE = {
    "an odd channel alone": (conv2d(1, 16, 3, padding=1), 2, (7, 12)),
    "an odd channel in the last chunk": (conv2d(33, 16, 3, padding=1), 1, (6, 12)),
    "odd groups": (conv2d(15, 18, 3, padding=1, groups=3), 2, (6, 8)),
    "1x1 of many channels": (conv2d(140, 32, 1), 1, (9, 16)),
    "7x7 of two channels": (conv2d(2, 20, 7, padding=3), 1, (12, 20)),
    "wider than a row": (conv2d(18, 16, (1, 7), padding=(0, 3)), 2, (3, 3)),
}
CASES = AWKWARD | {f"phases: {name}": case for name, case in PHASED.items()} | MORE


def half(conv: Conv, dtype: str = "bfloat16") -> Conv:
    return replace(conv, dtype=dtype)


def check(conv: Conv, out: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor) -> None:
    assert out.dtype is dtype_of(conv)
    assert explain(out, value, stored(conv, value, allowed)) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = CASES[case]
    conv = half(conv, HALVES[list(CASES).index(case) % 2])
    out, found = run(conv, Epilogue(), batch, sizes)
    check(conv, out, *found)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("width", [8, 9, 10])
@pytest.mark.parametrize("beside", [False, True])
def test_row_alignment(dtype: str, width: int, beside: bool) -> None:
    """Four, one and two columns a load; rows that begin anywhere in a word, and one behind the start of memory."""
    conv = half(conv2d(9, 16, 3, padding=1), dtype)
    if beside:
        check_moments(conv, OverPositions("CloseMoments"), (2, 5, width), 2, beside=True)
        return
    out, found = run(conv, Epilogue(), 2, (5, width))
    check(conv, out, *found)


@pytest.mark.parametrize("offset", [1, 2])
def test_input_that_begins_anywhere(offset: int) -> None:
    """The width would allow wide loads, the address does not."""
    conv = half(conv2d(9, 16, 3, padding=1))
    x, _, _ = operands(conv, 1, (5, 12))
    room = torch.zeros(x.numel() + offset, dtype=x.dtype)
    moved = room[offset:].view(x.shape).copy_(x)
    out, found = run(conv, Epilogue(), 1, (5, 12), input=moved)
    check(conv, out, *found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "stored moments"])
def test_tiles(name: str, epilogue: str) -> None:
    conv, tile = half(conv2d(37, 32, 3, padding=1), "float16"), TILES[name]
    if "chunk=24" not in repr(tile) and tile.repeats > 1:
        conv = half(conv2d(16, 32, 3, padding=1), "float16")  # one step
    if epilogue == "stored moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile, beside=True)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, 20), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    check(conv, out, value, allowed)


PRODUCED = {name: tile for name, tile in WARPGROUP_TILES.items() if tile.producers}
PRODUCED_PHASES = {name: tile for name, tile in WARPGROUP_PHASES.items() if tile.producers}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PRODUCED, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "stored moments"])
@pytest.mark.parametrize("width", [74, 75, 76])
def test_warpgroup_mma(name: str, epilogue: str, width: int) -> None:
    """Two, one and four columns a load; channels that fill neither a word nor a chunk."""
    conv, tile = half(conv2d(37, 72 if "eight warps" in name else 32, 3, padding=1), HALVES[width % 2]), PRODUCED[name]
    if epilogue == "stored moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, width), slices=2, tile=tile, beside=True)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, width), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    check(conv, out, value, allowed)


@pytest.mark.parametrize("name", PRODUCED_PHASES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("dtype", HALVES)
def test_warpgroup_phases(name: str, dtype: str) -> None:
    conv = half(transposed(2, 21, 72 if "eight warps" in name else 32, 3, 2, 1, 1), dtype)
    out, found = run(conv, Epilogue(), 2, (5, 41), PRODUCED_PHASES[name])
    check(conv, out, *found)


def test_halves_use_warpgroup_mma_where_producers_stage_them() -> None:
    conv = half(conv2d(64, 128, 3, padding=1))
    assert best_tile(for_sizes(conv, Epilogue(), (64, 128, 128)), Epilogue(), (64, 128, 128)).producers
    alone = replace(PRODUCED["producers"], producers=False)
    assert "staged by producers" in str(refusal(layout(conv, Epilogue(), alone), Epilogue()))


BY_FOURS = Tile(2, (1, 2, 2), (1, 1, 2))


@pytest.mark.parametrize("width", [21, 22, 24])
@pytest.mark.parametrize("epilogue", ["elements", "softmax", "stored moments"])
def test_four_halves_a_lane(width: int, epilogue: str) -> None:
    """Two fragments alternate along a row; rows of every alignment."""
    conv, after = half(conv2d(20, 40, 3, padding=1)), SOFTMAX
    softmax = Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after)
    whole = replace(BY_FOURS, channel_tiles=3)
    assert layout(conv, Epilogue(), BY_FOURS).run == 2 and layout(conv, Epilogue(reduce=OverChannels("Max")), whole).run == 1
    if epilogue == "stored moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 7, width), 3, BY_FOURS, beside=True)
        return
    asked, tile = (softmax, whole) if epilogue == "softmax" else (Epilogue(), BY_FOURS)
    out, (value, allowed) = run(conv, asked, 2, (7, width), tile)
    if epilogue == "softmax":
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    check(conv, out, value, allowed)


def test_a_pool_stored_beside_its_statistics() -> None:
    """What is left of a window two wide is one number of a lane, of others two."""
    conv, moments = half(conv2d(8, 16, 3, padding=1)), OverPositions("CloseMoments")
    for size in ((2, 2), (2, 3), (3, 1)):
        check_moments(conv, moments, (1, 13, 27), 2, window=Window("max", size), beside=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PHASED_TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "softmax", "moments"])
def test_tiles_of_phases(name: str, epilogue: str) -> None:
    conv, tile = half(transposed(2, 37, 32, 3, 2, 1, 1)), PHASED_TILES[name]
    if epilogue == "moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 5, 21), slices=2, tile=tile)
        return
    after = SOFTMAX
    softmax = Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after)
    out, (value, allowed) = run(conv, softmax if epilogue == "softmax" else Epilogue(), 2, (5, 21), tile)
    if epilogue == "softmax":
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    check(conv, out, value, allowed)


@pytest.mark.parametrize("rows", [False, True])
def test_pool_of_phases(rows: bool) -> None:
    reduce = OverChannels("Max") if rows else None
    for conv, size in ((transposed(2, 8, 24, 3, 2, 1, 1), (4, 2)), (transposed(2, 8, 16, 4, 2, 1), (1, 2))):
        conv = half(conv)
        out, found = run(conv, Epilogue(window=Window("max", size), reduce=reduce), 1, (5, 19))
        value, allowed = (F.max_pool2d(part, size) for part in found)
        if rows:
            value, allowed = value.amax(1, keepdim=True), allowed.amax(1, keepdim=True)
        check(conv, out, value, allowed)


@pytest.mark.parametrize("name", ["max 2x2", "max 3x3", "avg 2x5"], ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("width", [34, 35])
def test_windows(name: str, width: int) -> None:
    window, conv = WINDOWS[name], half(conv2d(8, 24, 3, padding=1))
    out, (value, allowed) = run(conv, Epilogue(window=window), 1, (13, width))
    if window.kind == "max":
        value, allowed = F.max_pool2d(value, window.size), F.max_pool2d(allowed, window.size)
    else:
        value, allowed = F.avg_pool2d(value, window.size), F.avg_pool2d(allowed, window.size) + 1e-6
    check(conv, out, value, allowed)


@pytest.mark.parametrize("accumulator", REDUCTIONS)
@pytest.mark.parametrize("channels", [20, 144])
def test_over_channels(accumulator: str, channels: int) -> None:
    conv = half(conv2d(24, channels, 3))
    out, found = run(conv, Epilogue(reduce=OverChannels(accumulator)), 2, (7, 19))
    check(conv, out, *REDUCTIONS[accumulator](*found))


@pytest.mark.parametrize("slices", [1, 50])
@pytest.mark.parametrize("accumulator", ["CloseMoments", "Sum", "Max"])
def test_over_positions(accumulator: str, slices: int) -> None:
    check_moments(half(conv2d(8, 40, 3, padding=1)), OverPositions(accumulator), (2, 13, 27), slices)


def test_operands_of_bodies() -> None:
    """A residual of halves and a float for each channel."""
    conv = half(conv2d(20, 24, 3, padding=1), "float16")
    make = torch.Generator().manual_seed(1)
    gain, full = torch.randn(24, generator=make), torch.randn(2, 24, 9, 15, generator=make).half()
    before = Pointwise(
        Name("scaled") + Function("__half2float")(here("full")),
        (const("float", "scaled", VALUE * element(Name("gain"), C)),),
        params=(*reading("float", "gain"), *reading("__half", "full")),
    )
    out, (value, allowed) = run(conv, Epilogue(before=before), 2, (9, 15), gain=gain, full=full)
    check(conv, out, value * gain.double()[:, None, None] + full.double(), allowed * 4 + 1e-5)


def test_what_overflows_or_is_no_number() -> None:
    """As eager: beyond 65504 fp16 is infinite, and a NaN stays where it is."""
    conv = half(conv2d(8, 16, 3, padding=1), "float16")
    x, w, b = operands(conv, 1, (12, 12))
    x[0, 3, 2, 2], x[0, 1, 9, 9] = float("nan"), 60000.0
    text = conv_kernel("k", conv, Epilogue())
    out = torch.zeros(1, 16, 12, 12, dtype=torch.float16)
    launch(load(text), text, input=x, weight=w * 8, bias=b, out=out, batch=1, in_h=12, in_w=12)
    expected = convolved(conv, x, w * 8, b)[0].half()
    assert expected.isinf().any() and expected.isnan().any()
    assert torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.isinf(), expected.isinf())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
@pytest.mark.parametrize("kind", ["rows", "stored moments", "phases"])
@pytest.mark.parametrize("width", [12, 13, 14])
def test_sanitized(sanitize: str, name: str, kind: str, width: int) -> None:
    """No address outside a buffer (each is exactly as large as needed), no undefined arithmetic, no race."""
    if sanitize == "undefined" and width != 13:
        pytest.skip("the same arithmetic")
    conv, tile = half(conv2d(11, 20, 3, padding=1)), SANITIZED[name]
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    epilogue = {"rows": rows, "stored moments": replace(STATISTICS, stored=True), "phases": Epilogue()}[kind]
    if kind == "phases":
        conv, tile = half(transposed(2, 11, 20, 3, 2, 1, 1)), replace(tile, columns=None)
    text = conv_kernel("k", conv, epilogue, tile)
    halves = {"input": 2 * 11 * 9 * width, "weight": 20 * 11 * 9, "bias": 20}
    halves["out"] = {"rows": 2 * 4 * (width // 2), "phases": 2 * 20 * 18 * 2 * width}.get(kind, 2 * 20 * 9 * width)
    floats = {name: -(-count // 2) for name, count in halves.items()} | {"partials": 2 * 2 * 20 * 4}
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": width, "slices": 2}, sanitize)


def test_chooses_what_it_can_do() -> None:
    plain = half(conv2d(64, 64, 3, padding=1))
    assert all(tile.producers for tile in candidate_tiles(plain, Epilogue()) if tile.warpgroups)
    assert fits(plain, Epilogue(reduce=OverChannels("Sum"))) and fits(half(transposed(3, 32, 64, 3, 2, 1)), STATISTICS)
    assert replace(plain, tf32=False) and fits(replace(plain, tf32=False), Epilogue())  # a flag of float32
