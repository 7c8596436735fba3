"""Convolutions whose products are warpgroup MMAs: the same answers as the others, over awkward shapes and epilogues."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.chains import WITH_PLACE
from kernels.conv.founding import CONV1, CONV2, POOLED, STATISTICS, apply_epilogue
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, explain, operands
from kernels.conv.test_conv_host import AWKWARD, REDUCTIONS, check_moments, check_sanitized, conv2d, run

from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, OverPositions, Tile, Window, conv_kernel
from fusewright.codegen.mma.conv_layout import layout, refusal

SMALL = Tile(1, (1, 8, 1), (1, 1, 1), 4, weights="resident", warpgroups=True)
TILES = {
    "resident": SMALL,
    "128 positions": replace(SMALL, fragments=(1, 16, 1)),
    "staged": replace(SMALL, weights="staged"),
    "two fours of warps": replace(SMALL, warps=(1, 1, 2), weights="staged", chunk=16),
    "128 channels, deep": replace(SMALL, channel_tiles=2, fragments=(2, 8, 1), weights="staged"),
}


def tiles_for(conv: Conv, epilogue: Epilogue) -> list[Tile]:
    return [tile for tile in TILES.values() if refusal(layout(conv, epilogue, tile), epilogue) is None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", AWKWARD, ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = AWKWARD[case]
    tiles = tiles_for(conv, Epilogue())
    if conv.stride[-1] > 1:
        assert not tiles, "neighbouring positions do not read neighbouring inputs"
        return
    assert tiles
    for tile in (tiles[0], tiles[-1]):
        out, (expected, allowed) = run(conv, Epilogue(), batch, sizes, tile)
        assert explain(out, expected, allowed) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "moments"])
def test_tiles(name: str, epilogue: str) -> None:
    conv, tile = conv2d(20, 32, 3, padding=1), TILES[name]
    if epilogue == "moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, 21), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    assert explain(out, value, allowed) is None


def test_rows_a_stride_apart() -> None:
    conv = conv2d(8, 24, 3, stride=(2, 1), padding=1)
    out, (value, allowed) = run(conv, Epilogue(), 2, (19, 12), SMALL)
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("window", [Window("max", (2, 2)), Window("avg", (4, 1)), Window("avg", (2, 2))], ids=str)
@pytest.mark.parametrize("rows", [False, True])
def test_windows(window: Window, rows: bool) -> None:
    """Fewer positions are left than there are threads: several threads share a position's channels."""
    epilogue = Epilogue(window=window, reduce=OverChannels("Sum") if rows else None)
    out, (value, allowed) = run(conv2d(8, 24, 3, padding=1), epilogue, 1, (13, 35), SMALL)
    pool = F.max_pool2d if window.kind == "max" else F.avg_pool2d
    value, allowed = pool(value, window.size), pool(allowed, window.size) + 1e-6
    if rows:
        value, allowed = value.sum(1, keepdim=True), allowed.sum(1, keepdim=True) + 1e-5
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("accumulator", REDUCTIONS)
@pytest.mark.parametrize("channels", [20, 64, 144])
def test_over_channels(accumulator: str, channels: int) -> None:
    epilogue = Epilogue(reduce=OverChannels(accumulator))
    tile = replace(SMALL, channel_tiles=-(-channels // 64))
    out, found = run(conv2d(8, channels, 3), epilogue, 2, (7, 19), tile)
    assert explain(out, *REDUCTIONS[accumulator](*found)) is None


def test_after_sees_the_reduced_value() -> None:
    after = WITH_PLACE
    out, found = run(conv2d(8, 16, 3), Epilogue(reduce=OverChannels("Max"), after=after), 1, (6, 11), SMALL)
    value, allowed = REDUCTIONS["Max"](*found)
    place = torch.arange(4)[:, None] * 100 + torch.arange(9)
    assert explain(out, value * 2 + place, allowed * 2 + 1e-4) is None


def test_bounded_logsumexp() -> None:
    out, found = run(conv2d(8, 64, 3), Epilogue(reduce=OverChannels("LogSumExp", bounded=True)), 1, (7, 12), SMALL)
    assert explain(out, *REDUCTIONS["LogSumExp"](*found)) is None


@pytest.mark.parametrize("accumulator", ["CloseMoments", "Sum", "Max"])
def test_over_positions(accumulator: str) -> None:
    for slices in (1, 50):
        check_moments(conv2d(8, 40, 3, padding=1), OverPositions(accumulator), (2, 13, 27), slices, SMALL)


def test_nan_and_infinity_are_kept() -> None:
    conv = conv2d(8, 16, 3, padding=1)
    x, _, _ = operands(conv, 1, (12, 12))
    x[0, 3, 2, 2], x[0, 1, 9, 9] = float("nan"), float("inf")
    for accumulator, reduce in (("LogSumExp", torch.logsumexp), ("Max", torch.amax)):
        out, (value, _) = run(conv, Epilogue(reduce=OverChannels(accumulator)), 1, (12, 12), SMALL, input=x)
        value = reduce(value, 1, keepdim=True)
        assert torch.equal(out.isnan(), value.isnan()) and torch.equal(out.isinf(), value.isinf())


@pytest.mark.parametrize("channels", [22, 64])
def test_logsumexp_of_numbers_whose_exponentials_are_none(channels: int) -> None:
    """Some overflow, some all vanish: the block that has one does it again, relative to the largest."""
    conv = conv2d(8, channels, 3, padding=1)
    x, _, _ = operands(conv, 2, (20, 12))
    x[0, :, :10] *= 900.0
    x[1, :, 5, 5] = -700.0
    out, found = run(conv, Epilogue(reduce=OverChannels("LogSumExp")), 2, (20, 12), SMALL, input=x)
    value, allowed = REDUCTIONS["LogSumExp"](*found)
    assert float(value.max()) > 100 and bool(out.isfinite().all())
    assert explain(out, value, allowed + 1e-6 * value.abs()) is None


def test_what_is_refused() -> None:
    conv = conv2d(8, 62, 3)
    for tile, epilogue, why in (
        (SMALL, Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("Max")), "four channels at a time"),
        (replace(SMALL, fragments=(1, 3, 1)), Epilogue(), "32 to 136 positions"),
        (replace(SMALL, warps_c=2), Epilogue(), "four or eight warps"),
        (replace(SMALL, producers=True, stages=1), Epilogue(), "two to six stages"),
        (SMALL, Epilogue(window=Window("max", (3, 3))), "neighbouring"),
    ):
        with pytest.raises(ValueError, match=why):
            conv_kernel("k", conv, epilogue, tile)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("kind", ["rows", "moments"])
def test_sanitized(sanitize: str, kind: str) -> None:
    conv, staged = conv2d(11, 20, 3, padding=1), kind == "rows"
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    text = conv_kernel("k", conv, rows if staged else STATISTICS, TILES["staged"] if staged else SMALL)
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "out": 2 * 4 * 6, "partials": 2 * 2 * 20 * 4}
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13, "slices": 2}, sanitize)


def test_first_founding_model() -> None:
    conv, epilogue, tile = CONV1, apply_epilogue(), replace(SMALL, fragments=(1, 16, 1))
    x, w, b = operands(conv, 2, (20, 40))
    gamma, beta = torch.rand(64) + 0.5, torch.randn(64) * 0.1
    stats, apply = conv_kernel("stats", conv, STATISTICS, tile), conv_kernel("apply", conv, epilogue, tile)
    library, slices = load(stats, apply), 3
    moments, out = torch.full((2, slices, 64, 4), float("nan")), torch.full((2, 1, 18, 38), float("nan"))
    common = {"input": x, "weight": w, "bias": b, "batch": 2, "in_h": 20, "in_w": 40}
    launch(library, stats, partials=moments, slices=slices, **common)
    launch(library, apply, moments=moments, gamma=gamma, beta=beta, moment_slices=slices, out=out, **common)
    value, allowed = convolved(conv, x, w, b, even=True)
    normal = F.group_norm(value, 16, gamma.double(), beta.double(), 1e-5)
    expected = torch.logsumexp(value + F.hardswish(torch.tanh(normal)), 1, keepdim=True)
    assert explain(out, expected, 6 * allowed.amax(1, keepdim=True) + 1e-5) is None


def test_second_founding_model() -> None:
    tile = Tile(1, (2, 16, 1), (1, 1, 2), 4, warpgroups=True)
    out, (value, allowed) = run(CONV2, POOLED, 1, (4, 10, 36), tile)
    expected = torch.relu(F.max_pool3d(value, 2).logsumexp(1, keepdim=True))
    assert explain(out, expected, F.max_pool3d(allowed, 2).amax(1, keepdim=True) + 4e-6) is None
