"""The convolution itself, written for backward beside whatever ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernels.conv.chains import LOG_SOFTMAX
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, dtype_of, explain, operands, stored
from kernels.conv.test_conv_host import AWKWARD, PHASED, TILES, conv2d, transposed

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    OverChannels,
    OverPositions,
    Pointwise,
    Tile,
    Window,
    conv_kernel,
)
from fusewright.codegen.mma.conv_spec import VALUE

DOUBLED = Pointwise(2.0 * VALUE)
EPILOGUES = {
    "elements": Epilogue(before=DOUBLED),
    "pool": Epilogue(before=DOUBLED, window=Window("max", (2, 2))),
    "wide pool": Epilogue(window=Window("avg", (1, 3))),
    "over channels": Epilogue(reduce=OverChannels("LogSumExp")),
    "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=LOG_SOFTMAX),
    "moments": Epilogue(reduce=OverPositions("CloseMoments")),
    "moments, stored": Epilogue(before=DOUBLED, reduce=OverPositions("CloseMoments"), stored=True),
}


def saved_of(conv: Conv, epilogue: Epilogue, batch: int, sizes: tuple[int, ...], tile: Tile | None = None) -> None:
    conv = replace(conv, saves=True)
    x, w, b = operands(conv, batch, sizes)
    text = conv_kernel("k", conv, epilogue, tile)
    library = load(text)
    shape = (batch, conv.out_channels, *conv.out_sizes(sizes))
    names = ("in_d", "in_h", "in_w")[3 - conv.dims :]
    values = dict(input=x, weight=w, batch=batch, slices=2, **dict(zip(names, sizes, strict=False)))
    values |= {"bias": b} if conv.bias else {}
    outs = {}
    for mode in ("saved", "not saved"):
        out = torch.full(shape, float("nan"), dtype=dtype_of(conv))  # large enough for any of them
        saved = torch.full(shape, float("nan"), dtype=dtype_of(conv))
        partials = torch.full((batch * 2 * conv.out_channels * 4,), float("nan"))
        launch(library, text, **values, out=out, partials=partials, saved=saved if mode == "saved" else 0)
        outs[mode] = (out, partials)
        if mode == "saved":
            value, allowed = convolved(conv, x, w, b, tile is not None and tile.warpgroups)
            assert explain(saved, value, stored(conv, value, allowed)) is None
        else:
            assert saved.isnan().all()
    for one, other in zip(outs["saved"], outs["not saved"], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("width", [14, 17])
def test_every_epilogue(epilogue: str, width: int) -> None:
    saved_of(conv2d(5, 24, 3, padding=1), EPILOGUES[epilogue], 2, (9, width))


@pytest.mark.parametrize("case", ["groups of awkward size", "7x7 stride 2", "several blocks of channels", "3d strided", "1d", "one output"])
def test_awkward_shapes(case: str) -> None:
    conv, batch, sizes = AWKWARD[case]
    saved_of(conv, EPILOGUES["elements"], batch, sizes)


@pytest.mark.parametrize("case", list(PHASED)[::3], ids=lambda name: name.replace(" ", "-"))
def test_phases(case: str) -> None:
    conv, batch, sizes = PHASED[case]
    saved_of(conv, EPILOGUES["elements"], batch, sizes)


@pytest.mark.parametrize("size", [(4, 2), (1, 2)])
def test_pools_of_phases(size: tuple[int, int]) -> None:
    conv = transposed(2, 8, 16, 4, 2, 1)
    saved_of(conv, Epilogue(window=Window("max", size)), 1, (5, 19))


@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
def test_tiles(name: str) -> None:
    conv = conv2d(24, 32, 3, padding=1)
    saved_of(conv, EPILOGUES["over channels"], 2, (10, 21), TILES[name])


def test_warpgroup_tiles() -> None:
    tile = Tile(1, (1, 8, 1), (1, 1, 1), warps_c=4, warpgroups=True)
    saved_of(conv2d(16, 64, 3, padding=1), Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("Max")), 1, (16, 16), tile)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves(dtype: str) -> None:
    saved_of(conv2d(13, 24, 3, padding=1, dtype=dtype), EPILOGUES["over channels"], 2, (9, 14))
