"""The gradient of a convolution's weight, in float32 on the tensor cores.

It is a product of matrices: rows are the channels of what came from above, columns the input's channels and taps, and what is
summed over are all positions of all samples. Both operands lie in memory as the tensor cores read them, positions side by side, so
nothing is transposed. A block stages a few rows of positions, and the window of input that their taps read, and multiplies from
there: a column is a place in the window, whatever the kernel's size, stride and dilation. Blocks share the positions of a tile
(slices); a second kernel adds their sums in a fixed order.

Of a transposed convolution the same: its input stands where the gradient does, and the gradient where the input does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from string import Template

from ...ir.expr import Pointer
from ...target.helpers import Helper, section
from ...target.machine import H200, Machine
from .conv_spec import Conv, KernelText, Param, numbers, reading, triple
from .conv_text import by_vectors, launched, tidy

HERE = Path(__file__).parent
TEMPLATE, SUPPORT = (Template((HERE / name).read_text()) for name in ("weight_gradient.cuh", "weight_gradient_support.cuh"))
MERGED_AT_ONCE = 32  # elements of a block of the merging kernel
SIZES = ("batch", "out_d", "out_h", "out_w", "in_d", "in_h", "in_w")
MOST_SLICES = 1024
SMALL_SHARE, SMALL = 64, 2 << 20  # of what is read, and bytes: sums that leave a step within eager's memory
MOST_SHAPES = 12  # of warps, that steps are tried with
WARPS = [(m, n, k) for m in (1, 2, 4) for n in (1, 2, 3, 4, 6, 8) for k in (1, 2, 4, 8) if m * n * k in (4, 6, 8)]
# Counted, not measured: what the tensor cores take is as in convolutions on an H200 (`Machine.warp_tf32_tflops`).
ROUNDING, SPLITTING = 2, 5  # issue slots for a number: what rounds it takes two
ISSUED_BESIDE = 20  # instructions of a chunk that neither load, round, multiply nor add
WAVEFRONTS = 1.3  # of shared memory, for 32 lanes that read the input
STEP_CYCLES = 400  # of a step: its barrier, and what waits for it
L2_TB_PER_S, MEMORY_TB_PER_S, SECTOR = 5.5, 4.1, 32  # H200; bytes that memory is read in
FULL = 0.85  # of the slowest unit's rate that a kernel reaches, since not everything overlaps
LAUNCH_MS = 0.004
REGISTERS_BESIDE, MOST_REGISTERS = 72, 220  # of a thread: addresses, what is loaded ahead; with more, nvcc spills


@dataclass(frozen=True)
class WeightGradient:
    """Of the weight of `conv`: [rows, columns] = upstream [rows, positions] times input [positions, columns]. `split`: each number is the
    sum of two TF32 ones, as exact as float32; else one TF32 number."""

    conv: Conv
    split: bool = True

    dtype = "float32"

    @property
    def tf32(self) -> bool:
        return not self.split

    @property
    def arithmetic(self) -> str:
        """How it multiplies, in words."""
        exact = "three products of TF32 parts, as exact as float32"
        return exact if self.split else "one TF32 product, as the library has it or the flags allow"

    @property
    def groups(self) -> int:
        return self.conv.groups

    @functools.cached_property
    def channels(self) -> tuple[int, int]:
        """Of all groups: of upstream, and of the input."""
        channels = self.conv.out_channels, self.conv.in_channels
        return channels[::-1] if self.conv.transposed else channels

    @property
    def rows(self) -> int:
        """Of a group."""
        return self.channels[0] // self.groups

    @property
    def taps(self) -> int:
        return prod(self.conv.kernel)

    @property
    def columns(self) -> int:
        """Of a group."""
        return self.channels[1] // self.groups * self.taps

    @property
    def weights(self) -> int:
        return self.channels[0] * self.columns


@dataclass(frozen=True)
class GradientTile:
    """What a block computes, and how. A warp holds `tiles` x 16 rows and `fragments` x 8 columns."""

    tiles: int
    fragments: int
    warps_m: int
    warps_n: int
    warps_k: int  # warps that share the positions of a step
    high: int  # positions of a step: so many rows of so many
    wide: int
    stages: int = 2
    slices: int = 1
    pitch: int = 0  # words between rows of the window in shared memory; 0: as many as it has
    gap: int = 0  # words behind a channel's window, so that fewer lanes meet in a bank

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def block_rows(self) -> int:
        return 16 * self.tiles * self.warps_m

    @property
    def block_columns(self) -> int:
        return 8 * self.fragments * self.warps_n

    @property
    def positions(self) -> int:
        return self.high * self.wide

    @property
    def row_pitch(self) -> int:
        """Words from row to row of upstream: four more than a multiple of 32, so that 16 bytes of eight rows lie in all banks."""
        return self.positions + (4 - self.positions) % 32

    def registers(self, gradient: WeightGradient) -> int:
        """Of a thread, about."""
        parts = 2 if gradient.split else 1
        return (4 * self.tiles + 1) * self.fragments + parts * (8 * self.tiles + 4) + REGISTERS_BESIDE


@dataclass(frozen=True)
class Window:
    """What of the input a step's taps read, in words of shared memory."""

    channels: int
    depth: int
    high: int
    wide: int
    pitch: int
    plane: int
    channel: int

    @property
    def words(self) -> int:
        return self.channels * self.channel


@functools.lru_cache(maxsize=4096)
def window_of(gradient: WeightGradient, tile: GradientTile) -> Window:
    kernel, stride, dilation = (triple(t, 1) for t in (gradient.conv.kernel, gradient.conv.stride, gradient.conv.dilation))
    high = (tile.high - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    wide = (tile.wide - 1) * stride[2] + (kernel[2] - 1) * dilation[2] + 1
    pitch = max(tile.pitch, wide)
    plane = high * pitch
    # A block's columns begin in the middle of a channel's taps unless these divide them.
    spare = 0 if tile.block_columns % gradient.taps == 0 else 1
    channels = min(-(-tile.block_columns // gradient.taps) + spare, gradient.columns // gradient.taps)
    return Window(channels, kernel[0], high, wide, pitch, plane, kernel[0] * plane + tile.gap)


def shared_words(gradient: WeightGradient, tile: GradientTile) -> int:
    stages = tile.stages * stage_words(gradient, tile)
    merged = tile.tiles * tile.fragments * 128 * tile.warps_m * tile.warps_n if tile.warps_k > 1 else 0
    return max(stages, merged)


def stage_words(gradient: WeightGradient, tile: GradientTile) -> int:
    return tile.block_rows * tile.row_pitch + -(-window_of(gradient, tile).words // 4) * 4


def tiles_of(gradient: WeightGradient, tile: GradientTile) -> int:
    """How many the weight is cut into."""
    return gradient.groups * -(-gradient.rows // tile.block_rows) * -(-gradient.columns // tile.block_columns)


def blocks_per_sm(gradient: WeightGradient, tile: GradientTile, machine: Machine) -> int:
    """That fit a multiprocessor at once."""
    by_registers = machine.registers // (tile.threads * max(32, -(-tile.registers(gradient) // 8) * 8))
    by_memory = machine.shared_per_multiprocessor // (4 * shared_words(gradient, tile) + 1024)
    return min(by_registers, by_memory, machine.threads // tile.threads)


# ---- choosing a tile


@functools.lru_cache(maxsize=1024)
def gradient_tile(gradient: WeightGradient, batch: int, out_sizes: tuple[int, ...], machine: Machine = H200) -> GradientTile | None:
    """The tile that is predicted to be the fastest, with as many slices as fill the machine; None where none fits."""
    if not machine.has_tf32:
        return None
    able = [tile for tile in candidate_tiles(gradient, out_sizes, machine) if fits(gradient, tile, machine)]
    sliced = [with_slices(gradient, tile, batch, out_sizes, machine) for tile in able]
    found = min(sliced, key=lambda tile: (gradient_ms(gradient, tile, batch, out_sizes, machine), tile.threads), default=None)
    return without_conflicts(gradient, found, machine) if found is not None else None


def fits(gradient: WeightGradient, tile: GradientTile, machine: Machine) -> bool:
    return 4 * shared_words(gradient, tile) <= machine.shared_per_block and blocks_per_sm(gradient, tile, machine) > 0


def candidate_tiles(gradient: WeightGradient, out_sizes: Sequence[int], machine: Machine) -> Iterator[GradientTile]:
    """The most promising shapes of warps, each with the steps that waste few positions."""
    _, out_h, out_w = triple(tuple(out_sizes), 1)
    able = steps(out_h, out_w)
    chunks = max(high * wide // 16 for high, wide in able)
    shapes = [tile for tile in warp_shapes(gradient) if tile.warps_k <= chunks]
    for tile in sorted(shapes, key=lambda tile: cycles_of_all(gradient, tile, machine))[:MOST_SHAPES]:
        for high, wide in able:
            if high * wide // 16 >= tile.warps_k:
                yield from (replace(tile, high=high, wide=wide, stages=stages) for stages in (2, 3))


def warp_shapes(gradient: WeightGradient) -> Iterator[GradientTile]:
    """How warps may share a tile, without any that has nothing to do."""
    row_tiles, column_tiles = -(-gradient.rows // 16), -(-gradient.columns // 8)
    for tiles, fragments, (m, n, k) in itertools.product((1, 2, 4), range(1, 13), WARPS):
        idle = (m - 1) * tiles >= row_tiles or (n - 1) * fragments >= column_tiles
        tile = GradientTile(tiles, fragments, m, n, k, 1, 32)
        if not idle and tiles < 2 * row_tiles and tile.registers(gradient) <= MOST_REGISTERS:
            yield tile


def cycles_of_all(gradient: WeightGradient, tile: GradientTile, machine: Machine) -> float:
    """What 16 positions of the whole weight take, if nothing but its warps' own work counts."""
    return tiles_of(gradient, tile) * tile.warps_m * tile.warps_n * max(chunk_cycles(gradient, tile, machine))


def steps(out_h: int, out_w: int) -> list[tuple[int, int]]:
    """Rows of positions, and how many in a row, of which not many more lie beyond the output than need be."""
    able = [(high, wide) for wide in (4, 8, 16, 32, 64, 128) for high in (1, 2, 4, 8, 16) if high * wide in (32, 64, 128)]
    used = {(high, wide): whole_share(out_h, high) * whole_share(out_w, wide) for high, wide in able}
    return [shape for shape in able if used[shape] >= 0.85 * max(used.values())]


def whole_share(size: int, step: int) -> float:
    """Of what steps of this size cover, what is there."""
    return size / (-(-size // step) * step)


def with_slices(gradient: WeightGradient, tile: GradientTile, batch: int, out_sizes: tuple[int, ...], machine: Machine) -> GradientTile:
    """So many blocks that all multiprocessors have as many, if there are steps enough, whose sums are few beside what is read."""
    count, tiles = steps_of(tile, batch, out_sizes), tiles_of(gradient, tile)
    room = machine.multiprocessors * blocks_per_sm(gradient, tile, machine)
    read = 4 * batch * prod(out_sizes) * sum(gradient.channels)
    most = max(1, min(MOST_SLICES, count, (read // SMALL_SHARE + SMALL) // (4 * gradient.weights)))
    return replace(tile, slices=min(most, max(1, room // tiles)))


def steps_of(tile: GradientTile, batch: int, out_sizes: Sequence[int]) -> int:
    out_d, out_h, out_w = triple(tuple(out_sizes), 1)
    return batch * out_d * -(-out_h // tile.high) * -(-out_w // tile.wide)


def chunk_cycles(gradient: WeightGradient, tile: GradientTile, machine: Machine) -> tuple[float, float, float]:
    """Of a multiprocessor, for 16 positions of one warp's tile: tensor cores, instructions, shared memory."""
    parts, pairs = (3 if gradient.split else 1), tile.tiles * tile.fragments
    mma = 2 * pairs * parts
    operations = machine.warp_tf32_tflops * 1e12 / machine.multiprocessors / (machine.clock_ghz * 1e9)
    loads, values = 2 * tile.tiles + 4 * tile.fragments, 8 * tile.tiles + 4 * tile.fragments
    issued = mma + 4 * pairs + loads + values * (SPLITTING if gradient.split else ROUNDING) + tile.fragments + ISSUED_BESIDE
    return mma * 2 * 1024 / operations, issued / 4, 8 * tile.tiles + WAVEFRONTS * 4 * tile.fragments


def gradient_ms(gradient: WeightGradient, tile: GradientTile, batch: int, out_sizes: tuple[int, ...], machine: Machine = H200) -> float:
    """By count: the slowest of the tensor cores, instructions, shared memory and what crosses L2, for the steps of a block and as
    many rounds of blocks as there are; and the sums of slices."""
    per_sm, window, tiles = blocks_per_sm(gradient, tile, machine), window_of(gradient, tile), tiles_of(gradient, tile)
    clock = machine.clock_ghz * 1e6  # cycles of a millisecond
    rows = ((tile.block_rows * tile.high, tile.wide), (window.channels * window.depth * window.high, window.wide))  # that are copied
    copied = sum(count * length for count, length in rows)
    lines = sum(count * max(length, 32) / 32 for count, length in rows)  # of memory, that a warp's copies touch
    crossing = sum(count * (4 * length + SECTOR - 4) for count, length in rows)  # bytes: a row begins somewhere in a sector
    warps = tile.threads // 32
    mma, issued, wavefronts = (tile.positions // 16 * warps / tile.warps_k * cycles for cycles in chunk_cycles(gradient, tile, machine))
    by_l2 = crossing / (machine.by_memory(L2_TB_PER_S) * 1e9 / machine.multiprocessors / clock)
    of_step = max(mma, issued + copied / 32 * 3 / 4, wavefronts + lines, by_l2)
    blocks = tiles * tile.slices
    rounds = -(-blocks // (machine.multiprocessors * per_sm))
    together = per_sm if rounds > 1 else -(-blocks // machine.multiprocessors)
    waits = 1.35 if warps * together <= 4 else 1.0  # a warp that has a scheduler to itself waits for its own loads
    in_slice = -(-steps_of(tile, batch, out_sizes) // tile.slices) + tile.stages
    busy = rounds * in_slice * (of_step * together * waits / FULL + STEP_CYCLES) / clock
    moved = 4e-9 * batch * prod(out_sizes) * sum(gradient.channels) / machine.by_memory(MEMORY_TB_PER_S)
    launch = machine.by_launch(LAUNCH_MS)
    merged = 8e-9 * tile.slices * gradient.weights / machine.by_memory(MEMORY_TB_PER_S) + launch if tile.slices > 1 else 0.0
    return max(busy, moved) + merged + launch


def without_conflicts(gradient: WeightGradient, tile: GradientTile, machine: Machine) -> GradientTile:
    """The tile with distances of rows and channels in shared memory for which the fewest lanes meet in a bank."""
    wide = window_of(gradient, tile).wide
    able = [replace(tile, pitch=wide + more, gap=gap) for more in range(17) for gap in range(32)]
    most = blocks_per_sm(gradient, tile, machine)
    roomy = [one for one in able if fits(gradient, one, machine) and blocks_per_sm(gradient, one, machine) == most]
    return min(roomy or [tile], key=lambda one: (conflicts(gradient, one), window_of(gradient, one).words))


def conflicts(gradient: WeightGradient, tile: GradientTile) -> int:
    """Wavefronts that a block's fragments take to be read, for one position of each lane."""
    return sum(wavefronts_of(addresses) for addresses in lanes_of(gradient, tile))


def lanes_of(gradient: WeightGradient, tile: GradientTile) -> Iterator[tuple[int, ...]]:
    """Where the lanes of a warp read, of each of the first fragments; those behind do as one of these."""
    window, conv = window_of(gradient, tile), gradient.conv
    _, kernel_h, kernel_w = triple(conv.kernel, 1)
    stride_w, (_, dilation_h, dilation_w) = conv.stride[-1], triple(conv.dilation, 1)
    lane = [t * stride_w for t in range(4)]
    for fragment in range(min(-(-gradient.columns // 8), tile.fragments * tile.warps_n, 9)):
        columns = [min(8 * fragment + g, gradient.columns - 1) for g in range(8)]
        places = [
            own // gradient.taps * window.channel + own % gradient.taps // (kernel_h * kernel_w) * window.plane
            + own // kernel_w % kernel_h * dilation_h * window.pitch + own % kernel_w * dilation_w
            for own in columns
        ]  # fmt: skip
        yield tuple(place + at for place in places for at in lane)


def wavefronts_of(addresses: tuple[int, ...]) -> int:
    in_bank: dict[int, int] = {}
    for address in set(addresses):
        in_bank[address % 32] = in_bank.get(address % 32, 0) + 1
    return max(in_bank.values())


# ---- text


def weight_gradient_kernel(name: str, gradient: WeightGradient, tile: GradientTile, machine: Machine = H200) -> KernelText:
    """The CUDA text of one gradient, its merging kernel where blocks share the positions, and their launcher.

    >>> conv = Conv(2, 8, 64, (3, 3), (1, 1), (0, 0), (1, 1))
    >>> weight_gradient_kernel("k", WeightGradient(conv), GradientTile(2, 9, 1, 1, 4, 1, 64)).launcher_args[-1]
    Param(kind='long long', name='in_w', tensor='')
    """
    several = tile.slices > 1
    source = TEMPLATE.substitute(
        name=name,
        shape=shape_text(gradient, tile),
        blocks=max(1, blocks_per_sm(gradient, tile, machine)),
        merge=MERGE if several else "",
        launcher="\n".join(launcher(name, gradient, tile)),
    )
    return KernelText(
        name=name,
        source=tidy(source),
        calls=frozenset(),
        support=(support(),),
        launcher_args=launcher_args(several),
        workspace={"sums": str(tile.slices * gradient.weights)} if several else {},
        smem=4 * shared_words(gradient, tile),
    )


def support() -> Helper:
    """What gradients of all shapes share."""
    return section(SUPPORT.substitute())


MERGE = """
// Adds the sums of the blocks that share a tile, in a fixed order.
__global__ void __launch_bounds__(256) merge(const float* __restrict__ sums, float* __restrict__ out, int slices) {
  weight_gradient::merge<Shape>(sums, out, slices);
}
"""


def shape_text(gradient: WeightGradient, tile: GradientTile) -> str:
    """Every number that the kernel is made for."""
    conv, window = gradient.conv, window_of(gradient, tile)
    axes = ("D", "H", "W")

    def of_axes(name: str, values: Sequence[int], fill: int) -> str:
        return ", ".join(f"{name}_{axis} = {value}" for axis, value in zip(axes, triple(tuple(values), fill), strict=True))

    rows, channels = gradient.channels
    kernel = [of_axes("KERNEL", conv.kernel, 1), of_axes("STRIDE", conv.stride, 1)]
    more = [of_axes("DILATION", conv.dilation, 1), of_axes("PADDING", conv.padding, 0), f"TAPS = {gradient.taps}"]
    lines = [
        ("", kernel),
        ("", more),
        ("of upstream and of the input, and of one group of them", [
            f"ALL_ROWS = {rows}, ROWS = {gradient.rows}, ALL_CHANNELS = {channels}, CHANNELS = {channels // gradient.groups}",
        ]),
        ("of a group", [f"COLUMNS = {gradient.columns}"]),
        ("of a warp: by 16 rows, by 8 columns", [f"TILES = {tile.tiles}, FRAGMENTS = {tile.fragments}"]),
        ("that share rows, columns, positions", [
            f"WARPS_M = {tile.warps_m}, WARPS_N = {tile.warps_n}, WARPS_K = {tile.warps_k}, THREADS = {tile.threads}",
        ]),
        ("", [f"BLOCK_ROWS = {tile.block_rows}, BLOCK_COLUMNS = {tile.block_columns}, BLOCK_CHANNELS = {window.channels}"]),
        ("positions of a step", [f"HIGH = {tile.high}, WIDE = {tile.wide}, POSITIONS = {tile.positions}"]),
        ("what their taps read of a channel", [f"WINDOW_H = {window.high}, WINDOW_W = {window.wide}"]),
        ("words of shared memory", [
            f"PITCH = {tile.row_pitch}, WINDOW_PITCH = {window.pitch}, WINDOW_PLANE = {window.plane}, CHANNEL_PITCH = {window.channel}",
        ]),
        ("where a stage has the input", [
            f"INPUT = {tile.block_rows * tile.row_pitch}, STAGE = {stage_words(gradient, tile)}",
            f"STAGES = {tile.stages}, SHARED_BYTES = {4 * shared_words(gradient, tile)}",
        ]),
    ]  # fmt: skip
    body = [f"  static constexpr int {', '.join(words)};{f'  // {remark}' if remark else ''}" for remark, words in lines]
    split = f"  static constexpr bool SPLIT = {str(gradient.split).lower()};  // each number is the sum of two TF32 ones"
    return "\n".join(["struct Shape {", *body, split, "};"])


def launcher_args(several: bool) -> tuple[Param, ...]:
    sums = [Param(Pointer("float"), "sums")] if several else []
    return (*reading("float", "upstream", "input"), Param(Pointer("float"), "out"), *sums, *numbers(SIZES))


def launcher(name: str, gradient: WeightGradient, tile: GradientTile) -> Iterator[str]:
    several = tile.slices > 1
    args = ", ".join(arg.in_launcher for arg in launcher_args(several))
    yield f'extern "C" const char* {name}({args}, void* stream) {{'
    yield f"  using namespace {name}_detail;"
    yield f"  const weight_gradient::Sizes size = {{{', '.join(f'int({size})' for size in SIZES)}}};"
    grid = f"dim3({tiles_of(gradient, tile)}, {tile.slices})"
    call = f"upstream, input, {'sums' if several else 'out'}, size"
    test = "out_w % 4 == 0 && (size_t)upstream % 16 == 0" if tile.wide % 4 == 0 else ""
    lines = by_vectors(test, lambda vector: launched(f"kernel<{vector}>", grid, "Shape::THREADS", "Shape::SHARED_BYTES", call))
    yield from (f"  {line}" for line in lines)
    if several:
        blocks = -(-gradient.weights // MERGED_AT_ONCE)
        yield f"  merge<<<{blocks}, dim3(32, 8), 0, (cudaStream_t)stream>>>(sums, out, {tile.slices});"
    yield "  return launch_error();"
    yield "}"
