"""What nvcc makes of the convolution kernels, with no GPU: kernels present, no spills, registers within the plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from kernels.conv.founding import CONV1, CONV2, POOLED, STATISTICS, apply_epilogue
from kernels.conv.harness import source_of
from kernels.nvcc import Resources, cubin_of, machine_code, needs_nvcc, spills_between_products

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    KernelText,
    OverChannels,
    OverPositions,
    Window,
    candidate_tiles,
    conv_kernel,
)
from fusewright.codegen.mma.conv_tiles import best_tile, for_sizes

pytestmark = [needs_nvcc, pytest.mark.slow]


def plain(cin: int, cout: int, kernel: int, stride: int = 1) -> Conv:
    return Conv(2, cin, cout, (kernel, kernel), (stride, stride), (kernel // 2,) * 2, (1, 1))


def transposed(dims: int, cin: int, cout: int, kernel: int) -> Conv:
    """Of stride 2, twice as large as its input."""
    more = (kernel % 2,) * dims
    ones = (1,) * dims
    return Conv(
        dims, cin, cout, (kernel,) * dims, (2,) * dims, ones, ones, transposed=True, output_padding=more
    )  # fmt: skip


def few(dims: int, cin: int, cout: int, kernel: int, padding: int | None = None, groups: int = 1) -> Conv:
    around = kernel // 2 if padding is None else padding
    return Conv(dims, cin, cout, (kernel,) * dims, (1,) * dims, (around,) * dims, (1,) * dims, groups)


STORED = Epilogue(reduce=OverPositions("CloseMoments"), stored=True)
KERNELS = {
    "statistics of the first founding model": (CONV1, STATISTICS),
    "the rest of the first founding model": (CONV1, apply_epilogue()),
    "second founding model": (CONV2, POOLED),
    "plain 3x3": (plain(64, 128, 3), Epilogue()),
    "plain 1x1": (plain(256, 64, 1), Epilogue()),
    "7x7 stride 2": (plain(3, 64, 7, 2), Epilogue()),
    "softmax over 64 channels": (plain(32, 64, 3), Epilogue(reduce=OverChannels("LogSumExp", keep=True))),
    "maximum over 256 channels": (plain(32, 256, 3), Epilogue(reduce=OverChannels("Max"))),
    "average pool": (plain(32, 64, 3), Epilogue(window=Window("avg", (2, 2)))),
    "maximum in windows of 4x4": (plain(8, 64, 3), Epilogue(window=Window("max", (4, 4)))),
    "sum over positions": (plain(32, 64, 3), Epilogue(reduce=OverPositions("Sum"))),
    "stored beside statistics": (plain(32, 64, 3), STORED),
    "stored beside statistics of few channels": (CONV1, STORED),
    "transposed 2d": (transposed(2, 64, 64, 4), Epilogue()),
    "transposed 2d, logsumexp": (transposed(2, 64, 64, 3), Epilogue(reduce=OverChannels("LogSumExp"))),
    "transposed 2d, statistics": (transposed(2, 32, 64, 3), STATISTICS),
    "transposed 2d, stored beside statistics": (transposed(2, 32, 64, 3), STORED),
    "transposed 3d": (transposed(3, 32, 64, 3), Epilogue()),
    "transposed 3d, statistics": (transposed(3, 32, 64, 3), STATISTICS),
    "transposed 3d, softmax": (transposed(3, 32, 64, 3), Epilogue(reduce=OverChannels("LogSumExp", keep=True))),
}
WARPGROUP = [
    "statistics of the first founding model", "the rest of the first founding model", "second founding model", "plain 3x3",
    "plain 1x1", "maximum over 256 channels", "average pool", "sum over positions",
]  # fmt: skip
# A size or two, once a tile and outside the products.
SPILLED_BESIDE_WARPGROUP_MMA = {"plain 1x1": 32, "the rest of the first founding model": 64}
# Values that a whole tile leaves alone (running statistics, sizes) wait in local memory; the products never do.
SPILLED_OUTSIDE = {
    "transposed 3d, statistics": 300,
    "transposed 3d, softmax": 64,
    "transposed 2d, statistics": 300,
    "transposed 2d, stored beside statistics": 64,
}


def compiled(text: KernelText, folder: Path, arch: str = "sm_90") -> tuple[Resources, Path]:
    found, report, cubin = cubin_of(source_of(text), folder, arch)
    assert "serialized" not in report, "products wait for one another"
    return found, cubin


@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
def test_compiles_within_the_plan(case: str, tmp_path: Path) -> None:
    text = conv_kernel("k", *KERNELS[case])
    found, cubin = compiled(text, tmp_path)
    assert text.tile is not None
    allowed = min(255, 65536 // (text.tile.threads * text.tile.blocks_per_sm))
    for variant in ("kernelILi4E", "kernelILi1E"):  # 16-byte copies, 4-byte copies
        names = [name for name in found if variant in name]
        assert len(names) == 1
        registers, spilled = found[names[0]]
        assert registers <= allowed
        if variant == "kernelILi4E":
            assert spilled <= SPILLED_OUTSIDE.get(case, 0)
    assert text.tile.resident or any("pack" in name for name in found)
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HMMA.1688.F32.TF32" in wide
        assert not spills_between_products(wide)
        assert "LDGSTS.E.BYPASS.128" in wide


# Of halves, whose next inputs wait in registers.
SPILLED_BESIDE_HALVES = {
    "7x7 stride 2": 32,
    "softmax over 64 channels": 64,
    "stored beside statistics": 240,
    "transposed 2d, stored beside statistics": 32,
    "transposed 3d, statistics": 16,
    "transposed 3d, softmax": 32,
}


@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves_compile_within_the_plan(case: str, dtype: str, tmp_path: Path) -> None:
    conv, epilogue = KERNELS[case]
    if dtype == "float16" and case not in ("plain 3x3", "second founding model", "transposed 2d"):
        pytest.skip("the same but for the name of the product")
    text = conv_kernel("k", replace(conv, dtype=dtype), epilogue)
    found, cubin = compiled(text, tmp_path)
    assert text.tile is not None
    allowed = min(255, 65536 // (text.tile.threads * text.tile.blocks_per_sm))
    for variant in ("kernelILi4E", "kernelILi2E", "kernelILi1E"):  # columns a load
        ((registers, spilled),) = [resources for name, resources in found.items() if variant in name]
        assert registers <= allowed
        if variant == "kernelILi4E":
            assert spilled <= SPILLED_BESIDE_HALVES.get(case, 0)
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HMMA.16816.F32" + (".BF16" if dtype == "bfloat16" else "") in wide
        assert not spills_between_products(wide)
        assert "STS.128" in wide and "LDG.E.64" in wide


# Of float32 in two parts: taps of a strided transposed convolution are written out, and nvcc reads ahead as far as it can.
SPILLED_BESIDE_PARTS = {
    "transposed 2d": 64,
    "transposed 2d, stored beside statistics": 32,
    "transposed 3d": 240,
    "transposed 3d, statistics": 400,
    "transposed 3d, softmax": 240,
}


@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
def test_strict_compiles_within_the_plan(case: str, tmp_path: Path) -> None:
    conv, epilogue = KERNELS[case]
    text = conv_kernel("k", replace(conv, tf32=False), epilogue)
    found, cubin = compiled(text, tmp_path)
    assert text.tile is not None
    allowed = min(255, 65536 // (text.tile.threads * text.tile.blocks_per_sm))
    for variant in ("kernelILi4E", "kernelILi1E"):
        ((registers, spilled),) = [resources for name, resources in found.items() if variant in name]
        assert registers <= allowed
        if variant == "kernelILi4E":
            assert spilled <= SPILLED_BESIDE_PARTS.get(case, 0)
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HMMA.1688.F32.TF32" in wide
        assert not spills_between_products(wide) or case == "transposed 3d, statistics"


@pytest.mark.parametrize("case", WARPGROUP, ids=lambda name: name.replace(" ", "-"))
def test_warpgroup_mma(case: str, tmp_path: Path) -> None:
    """For Hopper no spills, and products that the compiler does not put in a row; for others it compiles too."""
    conv, epilogue = KERNELS[case]
    tile = next(tile for tile in candidate_tiles(conv, epilogue) if tile.warpgroups)
    text = conv_kernel("k", conv, epilogue, tile)
    found, cubin = compiled(text, tmp_path, "sm_90a")
    kernels = [resources for name, resources in found.items() if "kernelILi" in name]
    assert len(kernels) == 2
    for registers, spilled in kernels:
        assert spilled <= SPILLED_BESIDE_WARPGROUP_MMA.get(case, 0)
        assert registers <= min(255, 65536 // (tile.threads * tile.blocks_per_sm))
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HGMMA.64x" in wide
    compiled(text, tmp_path, "sm_90")
    compiled(text, tmp_path, "sm_80")


ELEMENTS = Epilogue()


def of_sizes(conv: Conv, sizes: tuple[int, ...], epilogue: Epilogue = ELEMENTS) -> tuple[Conv, Epilogue, tuple[int, ...]]:
    return conv, epilogue, sizes


# With the tile that they get at these sizes: one more warpgroup fills the stages. In parentheses what is spilled, outside the products.
PRODUCED = {
    "3x3, rows of 126": (of_sizes(few(2, 64, 128, 3, 0), (64, 128, 128)), 16),
    "3x3, stored beside statistics": (of_sizes(few(2, 64, 128, 3, 0), (64, 128, 128), STORED), 64),
    "3x3 of 256 channels": (of_sizes(few(2, 256, 256, 3, 1), (16, 56, 56)), 64),
    "1d": (of_sizes(few(1, 64, 128, 3, 0), (64, 16384)), 280),
    "transposed 2d, stride 1": (of_sizes(replace(few(2, 64, 64, 3, 0), transposed=True), (64, 128, 128)), 64),
    "transposed 2d": (of_sizes(transposed(2, 64, 128, 4), (64, 64, 64)), 160),
    "transposed 3d": (of_sizes(transposed(3, 64, 128, 3), (8, 24, 24, 24)), 208),
    "bf16": (of_sizes(replace(few(2, 64, 128, 3, 0), dtype="bfloat16"), (64, 128, 128)), 64),
    "scaled, rows of 126": (of_sizes(replace(few(2, 64, 128, 3, 0), scaled=True), (64, 128, 128)), 112),
    "fp16, transposed 2d": (of_sizes(replace(transposed(2, 64, 128, 4), dtype="float16"), (64, 64, 64)), 160),
}


@pytest.mark.parametrize("case", PRODUCED, ids=lambda name: name.replace(" ", "-"))
def test_producers(case: str, tmp_path: Path) -> None:
    """The compiler hands their registers over, puts no products in a row, and waits for a step's products once; others compile too."""
    (conv, epilogue, sizes), allowed = PRODUCED[case]
    conv = for_sizes(conv, epilogue, sizes)
    tile = best_tile(conv, epilogue, sizes)
    assert tile.producers
    text = conv_kernel("k", conv, epilogue, tile)
    found, report, cubin = cubin_of(source_of(text), tmp_path, "sm_90a")
    assert "serialized" not in report and "C7508" not in report, "setmaxnreg is heeded"
    kernels = [resources for name, resources in found.items() if "kernelILi" in name]
    assert len(kernels) == (3 if conv.is_half or conv.scaled else 2)
    for registers, spilled in kernels:
        assert spilled <= allowed
        assert not tile.moves_registers or registers == 65536 // (tile.all_threads * tile.blocks_per_sm) // 8 * 8, "the pool is shared out"
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert len(re.findall(r"HGMMA.*gsb0", wide)) == 1
        halves = conv.is_half or conv.scaled
        assert ("x16.F32.BF16" if conv.dtype == "bfloat16" else "x16.F32" if halves else "x8.F32.TF32") in wide
    for arch in ("sm_90", "sm_80"):
        compiled(text, tmp_path, arch)


# Of few input channels, whose taps are folded into the depth of the products.
FOLDED = {
    "7x7 stride 2": (plain(3, 64, 7, 2), Epilogue()),
    "3x3": (plain(3, 64, 3), Epilogue()),
    "3x3 of 16 channels": (plain(3, 16, 3), Epilogue()),
    "3x3 stride 2": (plain(3, 32, 3, 2), Epilogue()),
    "5x5 of one channel": (plain(1, 6, 5), Epilogue(window=Window("avg", (2, 2)))),
    "11x11 stride 4": (plain(3, 64, 11, 4), Epilogue()),
    "stored beside statistics": (plain(3, 64, 7, 2), STORED),
    "softmax over 64 channels": (plain(3, 64, 3), Epilogue(reduce=OverChannels("LogSumExp", keep=True))),
}

SPILLED_BESIDE_FOLDED = {"softmax over 64 channels": 8}  # outside the products of a tile


@pytest.mark.parametrize("case", FOLDED, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("tf32", [True, False])
def test_folded_taps_compile_within_the_plan(case: str, tf32: bool, tmp_path: Path) -> None:
    conv, epilogue = replace(FOLDED[case][0], tf32=tf32), FOLDED[case][1]
    tile = next(tile for tile in candidate_tiles(conv, epilogue) if tile.folded)
    found, cubin = compiled(conv_kernel("k", conv, epilogue, tile), tmp_path)
    for variant in ("kernelILi4E", "kernelILi1E"):
        ((registers, spilled),) = [resources for name, resources in found.items() if variant in name]
        assert registers <= tile.registers
        if variant == "kernelILi4E":
            assert spilled <= SPILLED_BESIDE_FOLDED.get(case, 0)
    wide = machine_code(cubin, "kernelILi4E")
    if wide:
        assert "HMMA.1688.F32.TF32" in wide and not spills_between_products(wide)


POOLED_ROWS = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
# Convolutions that the library computes in float32 although TF32 is allowed, with the tile that they get at these sizes.
FEW_CHANNELS = {
    "3x3 of 3": (few(2, 3, 64, 3), Epilogue(), (64, 128, 128)),
    "3x3 of 8, statistics": (few(2, 8, 64, 3), STATISTICS, (128, 128, 128)),
    "3x3 of 8, stored beside statistics": (few(2, 8, 64, 3), STORED, (128, 128, 128)),
    "3x3 of 16": (few(2, 16, 64, 3), Epilogue(), (64, 64, 64)),
    "3x3 of 8, logsumexp of pools": (few(2, 8, 32, 3), POOLED_ROWS, (64, 64, 64)),
    "1d of 4": (few(1, 4, 64, 5), Epilogue(), (64, 4096)),
    "3d of 3": (few(3, 3, 16, 3), Epilogue(), (16, 16, 32, 32)),
    "3d of 3, softmax": (few(3, 3, 16, 3), Epilogue(reduce=OverChannels("LogSumExp", keep=True)), (16, 16, 32, 32)),
    "groups of 4": (few(2, 32, 64, 3, groups=8), Epilogue(), (32, 64, 64)),
    "transposed 2d of 16": (transposed(2, 16, 32, 3), Epilogue(), (64, 32, 32)),
    "transposed 3d of 16, statistics": (transposed(3, 16, 32, 3), STATISTICS, (16, 8, 16, 16)),
}
SPILLED_BESIDE_FEW = {"transposed 3d of 16, statistics": 248}  # as above: taps of phases are written out


@pytest.mark.parametrize("case", FEW_CHANNELS, ids=lambda name: name.replace(" ", "-"))
def test_split_few_channels_compile_within_the_plan(case: str, tmp_path: Path) -> None:
    conv, epilogue, sizes = FEW_CHANNELS[case]
    conv = for_sizes(replace(conv, tf32=False), epilogue, sizes)
    tile = best_tile(conv, epilogue, sizes)
    text = conv_kernel("k", conv, epilogue, tile)
    assert text.smem <= 227 * 1024 // tile.blocks_per_sm
    found, _ = compiled(text, tmp_path)
    for variant in ("kernelILi4E", "kernelILi1E"):
        ((registers, spilled),) = [resources for name, resources in found.items() if variant in name]
        assert registers <= tile.registers
        if variant == "kernelILi4E":
            assert spilled <= SPILLED_BESIDE_FEW.get(case, 0)
