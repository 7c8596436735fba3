"""Rows that begin anywhere in memory, written through shared memory in runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch.nn.functional as F
from kernels.conv.chains import LOG_SOFTMAX
from kernels.conv.reference import explain, stored
from kernels.conv.test_conv_host import (
    AWKWARD,
    PHASED,
    SANITIZED,
    TILES,
    WINDOWS,
    check_moments,
    check_sanitized,
    conv2d,
    run,
)

from fusewright.codegen.mma.conv import Epilogue, OverChannels, OverPositions, Tile, candidate_tiles, conv_kernel
from fusewright.codegen.mma.conv_layout import layout
from fusewright.codegen.mma.conv_tiles import best_tile, for_sizes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [*AWKWARD, *PHASED], ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = (AWKWARD | PHASED)[case]
    conv = replace(conv, in_runs=True)
    assert layout(conv, Epilogue(), candidate_tiles(conv, Epilogue())[0]).transposes_rows
    out, (value, allowed) = run(conv, Epilogue(), batch, sizes)
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("name", WINDOWS, ids=lambda name: name.replace(" ", "-"))
def test_windows(name: str) -> None:
    window = WINDOWS[name]
    out, (value, allowed) = run(conv2d(8, 24, 3, padding=1, in_runs=True), Epilogue(window=window), 1, (13, 35))
    pool, slack = (F.max_pool2d, 0.0) if window.kind == "max" else (F.avg_pool2d, 1e-6)
    assert explain(out, pool(value, window.size), pool(allowed, window.size) + slack) is None


@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
def test_tiles(name: str) -> None:
    out, (value, allowed) = run(conv2d(24, 32, 3, padding=1, in_runs=True), Epilogue(), 2, (10, 21), TILES[name])
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves(dtype: str) -> None:
    conv = conv2d(13, 24, 3, padding=1, dtype=dtype, in_runs=True)
    out, (value, allowed) = run(conv, Epilogue(), 2, (9, 37))
    assert explain(out, value, stored(conv, value, allowed)) is None


def test_softmax_and_statistics() -> None:
    conv = conv2d(8, 40, 3, padding=1, in_runs=True)
    keep = Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=LOG_SOFTMAX)
    out, (value, allowed) = run(conv, keep, 2, (9, 30))
    assert explain(out, value - value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) * 2 + 4e-6) is None
    check_moments(conv, OverPositions("CloseMoments"), (2, 9, 30), 2, beside=True)


def test_where_rows_are_wide_of_the_mark() -> None:
    """126 floats are no whole sectors, 128 are; what is reduced has no rows to write."""
    conv = conv2d(8, 64, 3)
    ragged, whole = for_sizes(conv, Epilogue(), (64, 128, 128)), for_sizes(conv, Epilogue(), (64, 130, 130))
    assert ragged.in_runs and not whole.in_runs
    assert not for_sizes(conv, Epilogue(reduce=OverChannels("Max")), (64, 128, 128)).in_runs
    tile: Tile = best_tile(ragged, Epilogue(), (64, 128, 128))
    assert layout(ragged, Epilogue(), tile).transposes_rows and layout(ragged, Epilogue(), tile).run_columns >= 32


@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
def test_sanitized(sanitize: str, name: str) -> None:
    """Kept as well."""
    conv = conv2d(11, 20, 3, padding=1, in_runs=True, saves=True)
    tile = replace(SANITIZED[name], fragments=(1, 2, 2))
    assert layout(conv, Epilogue(), tile).transposes_rows
    text = conv_kernel("k", conv, Epilogue(), tile)
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "out": 2 * 20 * 9 * 13, "saved": 2 * 20 * 9 * 13}
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13}, sanitize)
