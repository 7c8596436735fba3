"""Warpgroup MMAs whose positions are neighbours in a row, and those of strided transposed convolutions, phase by phase."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch.nn.functional as F
from kernels.conv.chains import SOFTMAX
from kernels.conv.reference import explain, operands
from kernels.conv.test_conv_host import (
    AWKWARD,
    PHASED,
    REDUCTIONS,
    check_moments,
    check_sanitized,
    conv2d,
    run,
    transposed,
)

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
from fusewright.codegen.mma.conv_layout import INSTRUCTIONS, layout, refusal
from fusewright.codegen.mma.conv_tiles import best_tile, for_sizes

ROW = Tile(1, (1, 1, 8), (1, 1, 1), 4, weights="resident", warpgroups=True)
TILES = {
    "a row of 64": ROW,
    "two rows of 40": replace(ROW, fragments=(1, 2, 5), warps=(1, 2, 1), weights="staged"),
    "a row of 136": replace(ROW, fragments=(1, 1, 17), weights="staged", chunk=16),
    "eight warps over channels": replace(ROW, fragments=(1, 1, 4), warps_c=8, weights="staged"),
    "eight warps over channels, eight columns": replace(ROW, fragments=(1, 8, 1), warps_c=8, warps=(1, 1, 2)),
    "producers": replace(ROW, weights="staged", producers=True, stages=3),
    "producers, eight columns": replace(ROW, fragments=(1, 16, 1), warps=(1, 1, 2), producers=True, chunk=16),
    "producers, eight warps over channels": replace(ROW, fragments=(1, 2, 5), warps_c=8, weights="staged", producers=True, stages=2),
    "256 channels, deep": replace(ROW, channel_tiles=2, fragments=(2, 1, 4), warps_c=8, weights="staged"),
}
# In input positions; each has all of its phases.
PHASED_TILES = {
    "a row of 32": replace(ROW, fragments=(1, 1, 4)),
    "two rows of 40": replace(ROW, fragments=(1, 2, 5), warps=(1, 2, 1), weights="staged"),
    "eight columns": replace(ROW, fragments=(1, 4, 1), warps=(1, 1, 2), weights="staged"),
    "eight warps over channels": replace(ROW, fragments=(1, 8, 1), warps_c=8, weights="staged", chunk=16),
    "producers": replace(ROW, fragments=(1, 1, 4), warps=(1, 2, 1), weights="staged", producers=True, stages=2),
    "producers, eight warps over channels": replace(ROW, fragments=(1, 8, 1), warps_c=8, producers=True, stages=4),
}
EPILOGUES = {
    "elements": Epilogue(),
    "rows": Epilogue(reduce=OverChannels("LogSumExp")),
    "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=SOFTMAX),
}
LIMITED = pytest.mark.sampled(3)


def check(conv: Conv, epilogue: str, batch: int, sizes: tuple[int, ...], tile: Tile) -> None:
    if "moments" in epilogue:
        check_moments(conv, OverPositions("CloseMoments"), (batch, *sizes), slices=2, tile=tile, beside="stored" in epilogue)
        return
    out, (value, allowed) = run(conv, EPILOGUES[epilogue], batch, sizes, tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    elif epilogue == "softmax":
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    assert explain(out, value, allowed) is None


@LIMITED
@pytest.mark.parametrize("case", AWKWARD, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("in_runs", [False, True])
def test_elements(case: str, in_runs: bool) -> None:
    conv, batch, sizes = AWKWARD[case]
    conv = replace(conv, in_runs=in_runs)
    tiles = [tile for tile in TILES.values() if refusal(layout(conv, Epilogue(), tile), Epilogue()) is None]
    assert bool(tiles) == (conv.stride[-1] == 1), "neighbouring positions read neighbouring inputs"
    for tile in (tiles[0], *[tile for tile in tiles if tile.producers][:2], tiles[-1]) if tiles else ():
        check(conv, "elements", batch, sizes, tile)


@LIMITED
@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", [*EPILOGUES, "moments", "stored moments"])
def test_tiles(name: str, epilogue: str) -> None:
    conv = conv2d(20, 72 if "eight warps" in name else 32, 3, padding=1, in_runs=epilogue != "rows")
    check(conv, epilogue, 2, (10, 75), TILES[name])


@LIMITED
@pytest.mark.parametrize("case", PHASED, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("in_runs", [False, True])
def test_phases(case: str, in_runs: bool) -> None:
    conv, batch, sizes = PHASED[case]
    conv = replace(conv, in_runs=in_runs)
    tiles = [tile for tile in PHASED_TILES.values() if refusal(layout(conv, Epilogue(), tile), Epilogue()) is None]
    assert tiles or "stride 4" in case or "1d stride 8" in case, "too many phases for the registers of a thread"
    for tile in (tiles[0], *[tile for tile in tiles if tile.producers][:1], tiles[-1]) if tiles else ():
        check(conv, "elements", batch, sizes, tile)


@LIMITED
@pytest.mark.parametrize("name", PHASED_TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", [*EPILOGUES, "moments", "stored moments"])
def test_tiles_of_phases(name: str, epilogue: str) -> None:
    tile = PHASED_TILES[name]
    if epilogue == "softmax":  # what waits for its total takes registers
        tile = replace(tile, fragments=(1, 4, 1) if tile.fragments[2] == 1 else (1, 1, 4))
    conv = transposed(2, 20, 72 if "eight warps" in name else 32, 3, 2, 1, 1)
    check(conv, epilogue, 2, (5, 41), tile)


@pytest.mark.parametrize("kind", ["rows", "elements"])
@pytest.mark.parametrize("window", [Window("max", (2, 2)), Window("avg", (1, 2)), Window("max", (2, 1))], ids=str)
def test_windows(window: Window, kind: str) -> None:
    epilogue = Epilogue(window=window, reduce=OverChannels("Max") if kind == "rows" else None)
    pool = F.max_pool2d if window.kind == "max" else F.avg_pool2d
    plain, phased = conv2d(8, 24, 3, padding=1, in_runs=True), transposed(2, 8, 24, 3, 2, 1, 1)
    for conv, tile in ((plain, TILES["two rows of 40"]), (phased, PHASED_TILES["a row of 32"])):
        if refusal(layout(conv, epilogue, tile), epilogue):
            assert window.size == (2, 1) and conv.is_phased  # which is not as wide as the stride
            continue
        out, (value, allowed) = run(conv, epilogue, 1, (13, 35), tile)
        value, allowed = pool(value, window.size), pool(allowed, window.size) + 1e-6
        if kind == "rows":
            value, allowed = REDUCTIONS["Max"](value, allowed)
        assert explain(out, value, allowed) is None


@LIMITED
@pytest.mark.parametrize("count", INSTRUCTIONS)
def test_every_instruction(count: int) -> None:
    check(conv2d(8, 16, 3), "elements", 1, (4, 8 * count + 5), replace(ROW, fragments=(1, 1, count)))


def test_rows_choose_their_instruction() -> None:
    """126 columns are 16 fragments, 66 are 9, and 130 are 17; of a strided transposed one a row of its input counts."""
    conv, three = conv2d(64, 128, 3), conv2d(64, 64, 3, transposed=True)
    assert for_sizes(conv, Epilogue(), (64, 128, 128)).row_fragments == 16
    assert for_sizes(three, Epilogue(), (64, 64, 64)).row_fragments == 9
    assert for_sizes(three, Epilogue(), (64, 128, 128)).row_fragments == 17
    assert for_sizes(transposed(2, 64, 64, 4, 2, 1), Epilogue(), (64, 64, 64)).row_fragments == 8
    line, phased = Conv(1, 64, 128, (3,), (1,), (1,), (1,)), transposed(2, 64, 128, 4, 2, 1)
    for of, sizes in ((conv, (64, 128, 128)), (phased, (32, 64, 64)), (line, (64, 8192))):
        assert best_tile(for_sizes(of, Epilogue(), sizes), Epilogue(), sizes).producers


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("kind", ["in runs", "phases", "producers", "producers of phases", "producers of rows"])
def test_sanitized(sanitize: str, kind: str) -> None:
    tile = {"in runs": TILES["two rows of 40"], "phases": PHASED_TILES["eight columns"], "producers": TILES["producers"]}.get(kind)
    conv = transposed(2, 11, 20, 3, 2, 1, 1) if "phases" in kind else conv2d(11, 20, 3, padding=1, in_runs=True, saves=True)
    epilogue = EPILOGUES["rows"] if "rows" in kind else Epilogue()
    of_rows = replace(TILES["producers"], fragments=(1, 2, 8))  # these reduce where they are, and meet
    text = conv_kernel("k", conv, epilogue, tile or (of_rows if "rows" in kind else PHASED_TILES["producers"]))
    size = 20 * 18 * 26
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "out": 2 * size, "saved": 2 * size}
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13}, sanitize)


@pytest.mark.parametrize("channels", [22, 64])
def test_logsumexp_of_numbers_whose_exponentials_are_none(channels: int) -> None:
    """With producers too: only the warps that multiply meet, to learn that one of them has sums that overflow or vanish."""
    conv = conv2d(8, channels, 3, padding=1)
    x, _, _ = operands(conv, 2, (20, 75))
    x[0, :, :10] *= 900.0
    x[1, :, 5, 5] = -700.0
    out, found = run(conv, Epilogue(reduce=OverChannels("LogSumExp")), 2, (20, 75), TILES["producers"], input=x)
    value, allowed = REDUCTIONS["LogSumExp"](*found)
    assert float(value.max()) > 100 and bool(out.isfinite().all())
    assert explain(out, value, allowed + 1e-6 * value.abs()) is None


def test_proposed_tiles_are_within_the_machine() -> None:
    conv = replace(conv2d(64, 128, 3), in_runs=True, row_fragments=16)
    wide = [tile for tile in candidate_tiles(conv, Epilogue()) if tile.warpgroups and tile.fragments[2] > 1]
    assert wide and {tile.warps_c for tile in wide} == {4, 8} and {tile.producers for tile in wide} == {False, True}
    assert all(layout(conv, Epilogue(), tile).transposes_rows for tile in wide)
