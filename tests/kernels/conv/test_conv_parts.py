"""Convolutions of float32 by two bf16 numbers for each, where TF32 is allowed and too coarse: on the host target, and by nvcc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.chains import SOFTMAX
from kernels.conv.founding import STATISTICS
from kernels.conv.harness import launch, load, source_of
from kernels.conv.reference import convolved, explain, operands
from kernels.conv.test_conv_halves import MORE
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
from kernels.conv.test_conv_strict import ODD
from kernels.nvcc import cubin_of, machine_code, needs_nvcc, spills_between_products

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    OverChannels,
    OverPositions,
    Tile,
    Window,
    candidate_tiles,
    conv_kernel,
)
from fusewright.codegen.mma.conv_tiles import best_tile, expected_ms, for_sizes

CASES = AWKWARD | {f"phases: {name}": case for name, case in PHASED.items()} | MORE


def words(name: str) -> str:
    return name.replace(" ", "-")


def parted(conv: Conv) -> Conv:
    return replace(conv, bf16_parts=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=words)
def test_elements(case: str) -> None:
    conv, batch, sizes = CASES[case]
    out, found = run(parted(conv), Epilogue(), batch, sizes)
    assert explain(out, *found) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TILES, ids=words)
@pytest.mark.parametrize("epilogue", ["elements", "rows", "stored moments"])
def test_tiles(name: str, epilogue: str) -> None:
    tile = TILES[name]
    conv = parted(conv2d(16 if tile.repeats > 1 else 37, 32, 3, padding=1))  # a tile is repeated where it is one step
    if epilogue == "stored moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile, beside=True)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, 20), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("name", PHASED_TILES, ids=words)
@pytest.mark.parametrize("epilogue", ["elements", "moments"])
def test_tiles_of_phases(name: str, epilogue: str) -> None:
    conv, tile = parted(transposed(2, 37, 32, 3, 2, 1, 1)), PHASED_TILES[name]
    if epilogue == "moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 5, 21), slices=2, tile=tile)
        return
    out, found = run(conv, Epilogue(), 2, (5, 21), tile)
    assert explain(out, *found) is None


@pytest.mark.parametrize("name", ["max 2x2", "avg 2x5"], ids=words)
def test_windows(name: str) -> None:
    window = WINDOWS[name]
    out, found = run(parted(conv2d(18, 24, 3, padding=1)), Epilogue(window=window), 1, (13, 35))
    pool = F.max_pool2d if window.kind == "max" else F.avg_pool2d
    value, allowed = (pool(part, window.size) for part in found)
    assert explain(out, value, allowed + (0 if window.kind == "max" else 2e-7)) is None


@pytest.mark.parametrize("accumulator", REDUCTIONS)
def test_over_channels(accumulator: str) -> None:
    """In several warps, of which the last lacks some."""
    out, found = run(parted(conv2d(18, 144, 3)), Epilogue(reduce=OverChannels(accumulator)), 2, (7, 19))
    assert explain(out, *REDUCTIONS[accumulator](*found)) is None


def test_softmax_over_channels() -> None:
    out, (value, allowed) = run(parted(conv2d(17, 40, 3)), Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=SOFTMAX), 2, (6, 13))
    expected = value.softmax(1)
    assert explain(out, expected, expected * (2 * allowed.amax(1, keepdim=True) + 4e-6)) is None


@pytest.mark.parametrize("offset", [1, 2])
def test_input_that_begins_anywhere(offset: int) -> None:
    """The width would allow wide loads, the address does not."""
    conv = parted(conv2d(9, 16, 3, padding=1))
    x, _, _ = operands(conv, 1, (5, 12))
    room = torch.zeros(x.numel() + offset)
    out, found = run(conv, Epilogue(), 1, (5, 12), input=room[offset:].view(x.shape).copy_(x))
    assert explain(out, *found) is None


def error(conv: Conv, positive: bool) -> tuple[float, float]:
    """The largest error over the rms, and over the sum of absolute products."""
    x, w, _ = operands(conv, 1, (24, 24))
    x, w = (x.abs(), w.abs()) if positive else (x, w)
    value, allowed = convolved(parted(conv), x, w, None)
    text, out = conv_kernel("k", conv, Epilogue()), torch.full(value.shape, float("nan"))
    launch(load(text), text, input=x, weight=w, out=out, batch=1, in_h=24, in_w=24)
    off = (out.double() - value).abs()
    return float(off.max() / value.square().mean().sqrt()), float((off / allowed).max())


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(
    "conv", [conv2d(3, 32, 3, bias=False), conv2d(8, 32, 3, bias=False), conv2d(16, 32, 5, bias=False), conv2d(96, 32, 3, bias=False)]
)
def test_near_enough(conv: Conv, positive: bool) -> None:
    """Within 1e-4 of the rms with room to spare, where one TF32 product errs ten times as much."""
    of_rms, of_bound = error(parted(conv), positive)
    coarse, _ = error(conv, positive)
    assert of_rms < 5e-5 and 10 * of_rms < coarse
    assert of_bound < 1


@pytest.mark.parametrize("dropped", ["multiply_part<1>(acc", "multiply_part<2>(acc"])
def test_each_part_counts(dropped: str) -> None:
    """With what either part of the inputs gives left out, the limit of these tests is passed."""
    conv = parted(conv2d(8, 16, 3, padding=1, bias=False))
    x, w, _ = operands(conv, 1, (12, 12))
    value, allowed = convolved(conv, x, w, None)
    text, out = conv_kernel("k", conv, Epilogue()), torch.zeros(value.shape)
    assert dropped in text.source
    broken = replace(text, source=text.source.replace(dropped, f"if (false) {dropped}"))
    launch(load(broken), broken, input=x, weight=w, out=out, batch=1, in_h=12, in_w=12)
    assert explain(out, value, allowed) is not None


@pytest.mark.parametrize("odd", ODD, ids=words)
@pytest.mark.parametrize(
    "conv",
    [
        conv2d(8, 16, 3, padding=1),
        conv2d(16, 40, 3, stride=2, padding=1, groups=2),
        conv2d(9, 16, (2, 3), padding=(1, 2), transposed=True),
        transposed(2, 10, 20, 3, 2, 1, 1),
    ],
    ids=["plain", "groups", "transposed", "phases"],
)
@pytest.mark.parametrize("resident", [True, False])
def test_numbers_without_parts(odd: str, conv: Conv, resident: bool) -> None:
    """Infinities, NaN, and what would round to an infinity: as plain float32 arithmetic has it."""
    conv = parted(conv)
    x, w, b = operands(conv, 1, (12, 12))
    for at, number in ODD[odd].items():
        x[at] = number
    w = w.clamp(-0.9, 0.9)
    tile = Tile(1, (1, 2, 1), (1, 1, 2), weights="resident" if resident else "staged")
    text = conv_kernel("k", conv, Epilogue(), tile)
    out = torch.zeros(1, conv.out_channels, *conv.out_sizes((12, 12)))
    launch(load(text), text, input=x, weight=w, bias=b, out=out, batch=1, in_h=12, in_w=12)
    value, allowed = convolved(conv, x, w, b)
    assert torch.equal(out.isnan(), value.isnan())
    assert torch.equal(out.isinf(), value.isinf() | (value.abs() > 3.4028235e38))
    assert (out.isnan().any() and out.isinf().any()) or odd != "not finite"
    here = out.isfinite()
    assert explain(out[here], value[here], allowed[here].nan_to_num(posinf=0.0)) is None


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30])
def test_any_range(scale: float) -> None:
    """bf16 has float32's exponents: numbers of any size have parts, down to where second parts are denormal."""
    conv = parted(conv2d(6, 16, 3, bias=False))
    x, w, _ = operands(conv, 1, (9, 12))
    x = x * scale
    value, allowed = convolved(conv, x, w, None)
    text, out = conv_kernel("k", conv, Epilogue()), torch.zeros(value.shape)
    launch(load(text), text, input=x, weight=w, out=out, batch=1, in_h=9, in_w=12)
    least = torch.finfo(torch.bfloat16).smallest_normal * 2.0**-7  # of bf16's denormals
    assert explain(out, value, allowed + 54 * least) is None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
@pytest.mark.parametrize("kind", ["rows", "stored moments", "phases"])
def test_sanitized(sanitize: str, name: str, kind: str) -> None:
    """With an infinity in the input, so that some sums are made again."""
    conv, tile = parted(conv2d(11, 20, 3, padding=1)), SANITIZED[name]
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    epilogue = {"rows": rows, "stored moments": replace(STATISTICS, stored=True), "phases": Epilogue()}[kind]
    if kind == "phases":
        conv, tile = parted(transposed(2, 11, 20, 3, 2, 1, 1)), replace(tile, columns=None)
    text = conv_kernel("k", conv, epilogue, tile)
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "partials": 2 * 2 * 20 * 4}
    floats["out"] = {"rows": 2 * 4 * 6, "phases": 2 * 20 * 18 * 26}.get(kind, 2 * 20 * 9 * 13)
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13, "slices": 2}, sanitize, first="inf")


SIZES = {
    "8 of 64": (conv2d(8, 64, 3), (128, 128, 128)),
    "3 of 64": (conv2d(3, 64, 3, padding=1), (32, 224, 224)),
    "16 of 64": (conv2d(16, 64, 3), (64, 128, 128)),
    "3 in three dimensions": (Conv(3, 3, 24, (3,) * 3, (1,) * 3, (0,) * 3, (1,) * 3), (16, 24, 32, 32)),
    "8 of 64, 5x5": (conv2d(8, 64, 5), (64, 128, 128)),
    "3 of 16, transposed": (Conv(3, 3, 16, (3,) * 3, (2,) * 3, (1,) * 3, (1,) * 3, transposed=True), (16, 16, 32, 32)),
}


@pytest.mark.parametrize("case", SIZES, ids=words)
def test_expected_to_take_less_than_tf32_parts(case: str) -> None:
    """Half the products of tensor cores, or fewer, and numbers are parted once instead of each time that they are read."""
    conv, sizes = SIZES[case]
    assert expected_ms(parted(conv), Epilogue(), sizes) < 0.9 * expected_ms(replace(conv, tf32=False), Epilogue(), sizes)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("epilogue", ["elements", "stored moments"])
@pytest.mark.parametrize("case", SIZES, ids=words)
def test_compiles_within_the_plan(case: str, epilogue: str, arch: str, tmp_path: Path) -> None:
    """What is spilled waits for the end of a tile (sums that are not finite are recomputed there, statistics are kept): at
    most eight numbers are, written and read, between products."""
    conv, sizes = SIZES[case]
    end = Epilogue() if epilogue == "elements" else replace(STATISTICS, stored=True)
    conv = for_sizes(parted(conv), end, sizes)
    text = conv_kernel("k", conv, end, best_tile(conv, end, sizes))
    found, _, cubin = cubin_of(source_of(text), tmp_path, arch)
    (taken,) = [resources for name, resources in found.items() if "kernelILi4E" in name]
    assert taken[0] <= text.tile.registers and taken[1] <= (900 if epilogue == "elements" else 1400)
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HMMA.16816.F32.BF16" in wide and (taken[1] <= 64 or not spills_between_products(wide))


def test_every_candidate_is_made() -> None:
    for conv, _ in SIZES.values():
        for tile in candidate_tiles(parted(conv), Epilogue())[::5]:
            assert "mma_bf16" in conv_kernel("k", parted(conv), Epilogue(), tile).calls
