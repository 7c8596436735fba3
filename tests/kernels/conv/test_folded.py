"""Convolutions of few input channels: taps folded into the depth of the products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.chains import SOFTMAX
from kernels.conv.founding import STATISTICS
from kernels.conv.reference import explain, operands
from kernels.conv.test_conv_host import WINDOWS, check_moments, check_sanitized, conv2d, run
from kernels.conv.test_conv_saved import EPILOGUES, saved_of

from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, OverPositions, Tile, Window, conv_kernel
from fusewright.codegen.mma.conv_layout import layout, refusal
from fusewright.codegen.mma.conv_tiles import best_tile, candidate_tiles, predicted_ms

ALONE = Tile(1, (1, 2, 1), (1, 1, 2), weights="resident", alone=True, folded=True)
FEW = {
    **{f"3x3 of {c}": (conv2d(c, 16, 3, padding=1), 2, (9, 13)) for c in range(1, 8)},
    "3x3 of 12": (conv2d(12, 16, 3, padding=1), 1, (6, 10)),
    "7x7 stride 2": (conv2d(3, 24, 7, stride=2, padding=3), 1, (23, 30)),
    "11x11 stride 4, rolled": (conv2d(3, 16, 11, stride=4, padding=2), 1, (40, 47)),
    "2x4 uneven": (conv2d(5, 20, (2, 4), padding=(1, 2)), 1, (9, 15)),
    "4x4 stride 4": (conv2d(3, 16, 4, stride=4), 1, (17, 36)),
    "5x3 dilated": (conv2d(2, 16, (5, 3), dilation=(2, 3), padding=(4, 3)), 1, (14, 20)),
    "stride 3, dilation 2": (conv2d(3, 16, 3, stride=3, dilation=2, padding=2), 1, (20, 19)),
    "1 wide": (conv2d(3, 16, (5, 1), padding=(2, 0)), 1, (8, 12)),
    "1x1": (conv2d(3, 16, 1), 2, (7, 9)),
    "depth a multiple of 8": (conv2d(2, 16, (2, 4)), 1, (7, 19)),
    "one output": (conv2d(3, 16, 3), 2, (3, 3)),
    "smaller than a tile": (conv2d(3, 16, 3, padding=1), 3, (1, 2)),
    "several blocks of channels": (conv2d(3, 150, 3, padding=1), 1, (6, 10)),
    "groups of 3": (conv2d(12, 20, 3, padding=1, groups=4), 2, (9, 12)),
    "no bias": (conv2d(1, 6, 5, bias=False), 1, (12, 12)),
    "1d": (Conv(1, 1, 20, (25,), (5,), (7,), (1,)), 2, (137,)),
    "1d dilated": (Conv(1, 3, 16, (4,), (2,), (1,), (3,)), 1, (70,)),
    "3d": (Conv(3, 3, 24, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)), 1, (4, 7, 9)),
    "3d strided": (Conv(3, 5, 16, (2, 3, 1), (2, 1, 2), (0, 1, 0), (1, 2, 1)), 1, (6, 8, 13)),
    "transposed 2d": (conv2d(3, 16, (3, 2), padding=1, transposed=True), 1, (8, 12)),
    "transposed, groups": (conv2d(6, 32, 3, groups=2, transposed=True), 1, (6, 9)),
    "transposed 3d": (Conv(3, 2, 16, (3, 2, 3), (1, 1, 1), (1, 0, 2), (1, 1, 1), transposed=True), 1, (4, 5, 6)),
}


def words(name: str) -> str:
    return name.replace(" ", "-")


# How float32 numbers are multiplied: one TF32 product; three, of two TF32 or two bf16 parts of each.
ARITHMETIC: dict[str, dict[str, bool]] = {"tf32": {}, "strict": {"tf32": False}, "parts": {"bf16_parts": True}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arithmetic", ARITHMETIC)
@pytest.mark.parametrize("case", FEW, ids=words)
def test_elements(case: str, arithmetic: str) -> None:
    conv, batch, sizes = FEW[case]
    tile = replace(ALONE, unrolled=4 if "rolled" in case else 1 if arithmetic == "strict" else None)
    out, (expected, allowed) = run(replace(conv, **ARITHMETIC[arithmetic]), Epilogue(), batch, sizes, tile)
    assert explain(out, expected, allowed) is None


TILES = {
    "alone": Tile(2, (1, 2, 1), (1, 1, 3), weights="resident", alone=True, folded=True),
    "alone, direct": Tile(2, (1, 4, 1), (1, 1, 2), weights="direct", alone=True, folded=True),
    "rolled": Tile(2, (1, 2, 1), (1, 1, 2), weights="resident", alone=True, unrolled=1, folded=True),
    "shared": Tile(2, (1, 2, 1), (1, 2, 2), weights="resident", folded=True),
    "wide warps": Tile(2, (1, 1, 4), (1, 2, 1), weights="resident", folded=True),
    "two warps over channels": Tile(1, (1, 2, 1), (1, 1, 2), warps_c=2, weights="resident", folded=True),
    "three rounds": Tile(2, (1, 2, 1), (1, 1, 2), weights="resident", repeats=3, folded=True),
    "direct": Tile(2, (1, 4, 1), (1, 1, 2), weights="direct", folded=True),
    "staged": Tile(1, (1, 2, 1), (1, 1, 2), warps_c=2, early=1.0, folded=True),
}


PLAIN_EPILOGUES = ["elements", "rows", "moments", "stored moments", "softmax", "in runs"]
TILE_EPILOGUES = [f"{arithmetic} {epilogue}" for arithmetic in ARITHMETIC for epilogue in PLAIN_EPILOGUES]


def every_third(pairs: Iterable[tuple[object, ...]]) -> Iterator[Any]:
    """Of many that take long together: the others with all tests only."""
    for number, pair in enumerate(pairs):
        yield pytest.param(*pair, id=words("-".join(map(str, pair))), marks=[pytest.mark.slow] if number % 3 else [])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "epilogue"), [*every_third(product(TILES, TILE_EPILOGUES))])
def test_tiles(name: str, epilogue: str) -> None:
    """Also with where taps lie in registers, not in a table."""
    in_registers = name in ("shared", "two warps over channels", "three rounds")
    in_runs, tile, arithmetic = "in runs" in epilogue, TILES[name], ARITHMETIC[epilogue.split()[0]]
    conv = conv2d(3, 32, 3 if in_registers else 5, padding=1, in_runs=in_runs, **arithmetic)
    assert layout(conv, Epilogue(), tile).keeps_offsets == in_registers
    if "moments" in epilogue:
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile, beside="stored" in epilogue)
        return
    after = SOFTMAX
    epilogues = {
        "rows": Epilogue(reduce=OverChannels("LogSumExp")),
        "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after),
    }
    out, (value, allowed) = run(conv, epilogues.get(epilogue.split()[-1], Epilogue()), 2, (10, 21), tile)
    if "rows" in epilogue:
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    elif "softmax" in epilogue:
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("name", WINDOWS, ids=words)
@pytest.mark.parametrize(("stride", "arithmetic"), [(1, "tf32"), (2, "tf32"), (1, "strict"), (1, "parts"), (2, "parts")])
def test_windows(name: str, stride: int, arithmetic: str) -> None:
    """Of the tiles that are proposed: some of a window's fragments alternate along a row."""
    conv, epilogue = conv2d(3, 24, 3, padding=1, stride=stride, **ARITHMETIC[arithmetic]), Epilogue(window=WINDOWS[name])
    tile = next(tile for tile in candidate_tiles(conv, epilogue) if tile.folded)
    out, (value, allowed) = run(conv, epilogue, 1, (26, 70), tile)
    pool, slack = (F.max_pool2d, 0.0) if epilogue.window.kind == "max" else (F.avg_pool2d, 1e-6)
    assert explain(out, pool(value, epilogue.window.size), pool(allowed, epilogue.window.size) + slack) is None


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=words)
@pytest.mark.parametrize("arithmetic", ARITHMETIC)
def test_saved(epilogue: str, arithmetic: str) -> None:
    conv = conv2d(3, 24, 3, padding=1, **ARITHMETIC[arithmetic])
    tile = next(tile for tile in candidate_tiles(conv, EPILOGUES[epilogue]) if tile.folded)
    saved_of(conv, EPILOGUES[epilogue], 2, (9, 17), tile)


@pytest.mark.parametrize("width", [8, 9, 10])
@pytest.mark.parametrize("arithmetic", ["tf32", "parts"])
def test_row_alignment(width: int, arithmetic: str) -> None:
    out, (expected, allowed) = run(conv2d(3, 16, 3, padding=1, **ARITHMETIC[arithmetic]), Epilogue(), 1, (5, width), ALONE)
    assert explain(out, expected, allowed) is None


@pytest.mark.parametrize("kernel, channels", [(3, 3), (3, 1), (5, 3)])
@pytest.mark.parametrize("arithmetic", ARITHMETIC)
def test_nan_and_infinity_are_kept_where_they_are(kernel: int, channels: int, arithmetic: str) -> None:
    """Lanes beyond the last tap read some input too, which may be an infinity: it must not meet their weights, which are zeros."""
    conv = conv2d(channels, 16, kernel, padding=1, **ARITHMETIC[arithmetic])
    x, _, _ = operands(conv, 1, (12, 12))
    x[0, 0, 2, 2], x[0, channels - 1, 9, 9], x[0, 0, 7, 0] = float("nan"), float("inf"), float("-inf")
    for tile in (ALONE, replace(ALONE, unrolled=1)):
        out, (value, _) = run(conv, Epilogue(), 1, (12, 12), tile, input=x)
        assert value.isinf().any() and value.isnan().any() and value.isfinite().any()
        assert torch.equal(out.isnan(), value.isnan())
        assert torch.equal(out.isinf(), value.isinf())


SANITIZED = product(
    ["address", "undefined", "thread"],
    [("alone", 3), ("alone", 5), ("two warps over channels", 5), ("staged", 3)],
    ["rows", "stored moments"],
    ["tf32", "parts"],
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("sanitize", "name", "kernel", "kind", "arithmetic"), [*every_third((how, *tile, kind, by) for how, tile, kind, by in SANITIZED)]
)
def test_sanitized(sanitize: str, name: str, kernel: int, kind: str, arithmetic: str) -> None:
    conv = conv2d(3, 20, kernel, padding=kernel // 2, **ARITHMETIC[arithmetic])
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    epilogue = rows if kind == "rows" else replace(STATISTICS, stored=True)
    text = conv_kernel("k", conv, epilogue, TILES[name])
    floats = {"input": 2 * 3 * 9 * 13, "weight": 20 * 3 * kernel**2, "bias": 20, "partials": 2 * 2 * 20 * 4}
    floats["out"] = 2 * 4 * 6 if kind == "rows" else 2 * 20 * 9 * 13
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13, "slices": 2}, sanitize)


def test_what_is_refused() -> None:
    folded = replace(ALONE, alone=False)
    refused = {
        "too deep": (Conv(3, 7, 16, (7,) * 3, (1,) * 3, (0,) * 3, (1,) * 3), folded),
        "halves": (conv2d(3, 16, 3, dtype="float16"), folded),
        "phases": (conv2d(3, 16, 3, stride=2, transposed=True), folded),
        "in parts": (conv2d(3, 16, 3), replace(folded, columns=1)),
    }
    for name, (conv, tile) in refused.items():
        assert refusal(layout(conv, Epilogue(), tile), Epilogue()), name
        assert not any(tile.folded for tile in candidate_tiles(conv, Epilogue()) if name != "in parts"), name


def test_where_it_pays() -> None:
    """Fewer products, and no fewer where channels fill the depth or a kernel is 1 wide."""
    for channels, kernel in product((1, 3), (3, 5, 7)):
        conv, sizes = conv2d(channels, 64, kernel, padding=kernel // 2), (64, 112, 112)
        tile = best_tile(conv, Epilogue(), sizes)
        assert tile.folded
        others = [tile for tile in candidate_tiles(conv, Epilogue()) if not tile.folded]
        assert predicted_ms(conv, Epilogue(), sizes, tile) < min(predicted_ms(conv, Epilogue(), sizes, other) for other in others)
    for conv in (conv2d(8, 64, 3), conv2d(16, 64, 3), conv2d(3, 64, 1)):
        assert not any(tile.folded for tile in candidate_tiles(conv, Epilogue()))


def test_banks() -> None:
    """Rows and channels lie so that the quads of a 3×3 kernel's taps meet no bank twice, in tiles of any width."""
    for width in (1, 2, 4, 8):
        shape = layout(conv2d(3, 64, 3, padding=1), Epilogue(), Tile(2, (1, 2, width), (1, 1, 1), weights="resident", folded=True))
        assert shape.folded_places == (7, shape.pitch, shape.plane)
