"""The numbers of one convolution kernel: how a tile lies in shared memory and in registers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ...target.machine import H200, Machine
from .code import Code, calling
from .conv_spec import PRODUCERS, Conv, Epilogue, OverChannels, OverPositions, Tile, triple, widened

FEW_HELD = 16  # positions of a lane: below, threads share what is left of a warpgroup's elements
WORDS = {"LogSumExp": 2, "Sum": 1, "Max": 1, "Min": 1, "CloseMoments": 4}  # 32-bit words of an accumulator
STRAIGHT_STEP = 144  # instructions of a warpgroup in a step, where producers fill stages: it is straight code
STRAIGHT_PRODUCTS = 1024  # of a strided transposed convolution, whose taps are written out
WINDOW_REGISTERS = 48  # most registers for input rows kept for several kernel rows
FOLDED_K_BLOCKS = 64  # most products deep that taps are folded into; beyond, input channels fill the depth on their own
OFFSET_REGISTERS = 8  # most registers for where folded taps lie; more are read from a table in shared memory


ROOM, ROOM_FOR_ROWS = 48, 64  # registers beside accumulators; nvcc: with 48 warpgroup tiles of rows, or of phases, spill 100 to 800 bytes
INSTRUCTIONS = range(4, 18)  # fragments of one warpgroup MMA (warpgroup_mma_tf32_F)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@functools.cache
def bank_conflicts(plane: int, step: int) -> int:
    """Most lanes that meet in one bank when lane (group, quad) reads word quad × plane + group × step."""
    banks = [(quad * plane + group * step) % 32 for quad in range(4) for group in range(8)]
    return max(banks.count(bank) for bank in banks)


@functools.cache
def folded_reads(channels: int, kernel: tuple[int, ...], dilation: tuple[int, ...], step: int, row: int, deep: int, plane: int) -> int:
    """Cycles of shared memory in which a warp reads one fragment's inputs of all folded taps, where lane (group, quad) reads word
    group × step of its tap and taps lie `row`, `deep` and `plane` words apart. Lanes that read the same word do not wait for each other."""
    taps = list(product(range(channels), *map(range, kernel)))
    cycles = 0
    for first in range(0, len(taps), 4):
        words: dict[int, set[tuple[int, ...]]] = {}
        for c, kd, kh, kw in taps[first : first + 4]:
            begin = c * plane + kd * dilation[0] * deep + kh * dilation[1] * row
            for column in range(kw * dilation[2], kw * dilation[2] + 8 * step, step):
                words.setdefault((begin + column) % 32, set()).add((c, kd, kh, column))
        cycles += max(map(len, words.values()))
    return cycles


@dataclass(frozen=True)
class Layout:
    """Derived constants; the names in upper case are those of the emitted CUDA."""

    conv: Conv  # widened to three dimensions
    tile: Tile
    window: tuple[int, int, int]
    interleave: int  # fragments that share one run of 8 × interleave positions (odd pool widths, phases, halves by fours)
    across: int  # pool columns that lie in neighbouring fragments
    pair: int  # neighbouring positions of a lane that survive the pool: 2, or 1 when the pool joins them
    tables: int
    scratch_words: int

    @functools.cached_property
    def spread(self) -> tuple[int, int, int]:
        """Fragments of a warp along each dimension of the output, phases included."""
        (fd, fh, fw), (sd, sh, sw) = self.tile.fragments, self.conv.phases
        return fd * sd, fh * sh, fw * sw

    @functools.cached_property
    def fragments(self) -> int:
        return prod(self.spread)

    @functools.cached_property
    def warps(self) -> tuple[int, int, int]:
        """Warps that share an input tile."""
        return (1, 1, 1) if self.tile.alone else self.tile.warps

    @functools.cached_property
    def tile_sizes(self) -> tuple[int, int, int]:
        (fd, fh, fw), (wd, wh, ww) = self.spread, self.warps
        return wd * fd, self.tile.repeats * wh * fh, ww * fw * 8

    @functools.cached_property
    def input_step(self) -> tuple[int, int, int]:
        """Input positions from one tile to the next."""
        steps = zip(self.tile_sizes, self.input_stride, self.conv.phases, strict=True)
        return tuple(t * s // p for t, s, p in steps)  # type: ignore[return-value]

    @functools.cached_property
    def input_stride(self) -> tuple[int, ...]:
        """Input positions from one output position to the next; of the same phase where there are phases."""
        return (1, 1, 1) if self.conv.transposed else self.conv.stride

    @functools.cached_property
    def held(self) -> tuple[int, int, int]:
        """Fragments of a warp that are left after the window."""
        fd, fh, fw = self.spread
        return fd // self.window[0], fh // self.window[1], fw // self.across

    @functools.cached_property
    def run(self) -> int:
        """Fragments interleaved along a row after the window."""
        return self.interleave // self.across

    @functools.cached_property
    def rows(self) -> tuple[int, int, int]:
        """Input depths, rows and columns a tile reads."""
        c = self.conv
        return tuple(  # type: ignore[return-value]
            (t // p - 1) * s + (k - 1) * d + 1
            for t, p, s, k, d in zip(self.tile_sizes, c.phases, self.input_stride, c.reach, c.dilation, strict=True)
        )

    @functools.cached_property
    def lead(self) -> int:
        """Columns staged in front of the first one needed, so that rows start at a multiple of four."""
        return -self.conv.halo[2] % 4

    @functools.cached_property
    def pitch(self) -> int:
        if self.tile.folded:
            return self.folded_places[1]
        return self.rows[2] if self.tile.warpgroups else round_up(self.lead + self.rows[2], 4)

    @functools.cached_property
    def folded_places(self) -> tuple[int, int, int]:
        """Cycles to read a fragment's folded taps, and the words of a row and of a channel for which they are fewest."""
        (deep, high, _), least = self.rows, round_up(self.lead + self.rows[2], 4)
        step = self.interleave * self.input_stride[2]

        def cycles(pitch: int, plane: int) -> int:
            conv = self.conv
            return folded_reads(conv.group_words, conv.kernel, conv.dilation, step, pitch % 32, high * pitch % 32, plane % 32)

        pitches = range(least, least + 12, 4)  # what rows are longer is copied too
        return min((cycles(p, plane), p, plane) for p in pitches for plane in range(deep * high * p, deep * high * p + 32, 4))

    @functools.cached_property
    def plane(self) -> int:
        """Words between two channels in shared memory: padded so that a fragment's 32 words meet no bank twice."""
        words = self.rows[0] * self.rows[1] * self.pitch
        if self.tile.folded:
            return self.folded_places[2]
        if self.tile.warpgroups:
            return words
        step = self.interleave // self.conv.phases[2] * self.input_stride[2]
        return min(range(words, words + 32, 4), key=lambda p: (bank_conflicts(p, step), p))

    @functools.cached_property
    def group_in(self) -> int:
        return self.conv.in_channels // self.conv.groups

    @functools.cached_property
    def group_out(self) -> int:
        return self.conv.out_channels // self.conv.groups

    @functools.cached_property
    def block_channels(self) -> int:
        return 16 * self.tile.channel_tiles * self.tile.warps_c

    @functools.cached_property
    def group_blocks(self) -> int:
        """Blocks of channels in one group of the convolution."""
        return -(-self.group_out // self.block_channels)

    @functools.cached_property
    def channel_blocks(self) -> int:
        return self.conv.groups * self.group_blocks

    @functools.cached_property
    def whole_channels(self) -> bool:
        """Every channel a block computes exists."""
        return self.group_out % self.block_channels == 0

    @functools.cached_property
    def chunk(self) -> int:
        """Input channels that lie in shared memory at a time, in words."""
        return self.conv.group_words if self.tile.folded else self.tile.chunk

    @functools.cached_property
    def chunks(self) -> int:
        return -(-self.conv.group_words // self.chunk)

    @functools.cached_property
    def depth(self) -> float:
        """Inputs that are multiplied for one output, in words; those that do not exist are zeros."""
        if self.tile.folded:
            return 8 * self.k_blocks
        return self.chunks * self.chunk * prod(self.conv.kernel) / prod(self.conv.phases)

    @functools.cached_property
    def rounds_staged(self) -> bool:
        """Inputs become TF32 in shared memory, once, and not each time that they are read: folded taps read them often."""
        return self.tile.folded and not self.conv.is_strict and self.conv.packed_in == 1

    @functools.cached_property
    def offset_words(self) -> int:
        """Where folded taps lie: a table in shared memory, unless lanes keep their own."""
        return 8 * self.k_blocks if self.tile.folded and not self.keeps_offsets else 0

    @functools.cached_property
    def keeps_offsets(self) -> bool:
        straight = (self.tile.unrolled or self.k_blocks) >= self.k_blocks
        room = self.tile.registers - 4 * self.tile.channel_tiles * self.fragments >= 80  # nvcc: with 64 some are spilled
        return self.tile.folded and straight and room and 2 * self.k_blocks <= OFFSET_REGISTERS

    @functools.cached_property
    def part_columns(self) -> int:
        return self.tile.columns or self.conv.kernel[0] * self.conv.kernel[2]

    @functools.cached_property
    def parts(self) -> int:
        return self.conv.kernel[0] * self.conv.kernel[2] // self.part_columns

    @functools.cached_property
    def input_stage(self) -> int:
        return self.chunk * self.plane * self.conv.stored_parts

    @functools.cached_property
    def weight_stage(self) -> int:
        steps = self.k_blocks if self.tile.folded else self.chunk // 8 * self.part_columns * self.conv.kernel[1]
        return steps * self.tile.channel_tiles * self.tile.warps_c * 128 * self.conv.stored_parts

    @functools.cached_property
    def packed_floats(self) -> int:
        chunks = self.chunks + (self.tf32_chunks if self.conv.scaled else 0)
        return self.channel_blocks * chunks * self.parts * self.weight_stage

    @functools.cached_property
    def tf32_chunks(self) -> int:
        """Stages that the input channels are where a word is one of them: of tiles that halves do not fit."""
        return -(-self.group_in // self.chunk)

    @functools.cached_property
    def kernel_rows_together(self) -> int:
        """Kernel rows served by one set of input rows in registers."""
        fd, fh, fw = self.tile.fragments
        rows = (fh - 1) * self.input_stride[1] + (self.conv.reach[1] - 1) * self.conv.dilation[1] + 1
        parts = 2 if self.conv.is_split else 1
        fits = 2 * parts * fd * rows * fw <= WINDOW_REGISTERS
        return self.conv.reach[1] if self.tile.together and fits and not self.tile.folded else 1

    @functools.cached_property
    def shared_words(self) -> int:
        stages = self.tile.stages if self.tile.producers else 2
        weight_stages = {"resident": self.chunks, "staged": stages, "direct": 0}[self.tile.weights]
        return (
            self.input_stages * self.input_stage
            + weight_stages * self.weight_stage
            + self.tables * self.block_channels
            + self.scratch_words
            + self.run_words
            + self.offset_words
            + (4 * (self.row_groups + self.behind_rows) if self.tile.warpgroups else 0)
        )

    @property
    def behind_rows(self) -> int:
        """Places of 16 bytes behind the table of rows: barriers of up to six stages, the last odd tile, and eight that did not fit."""
        return 6 if self.conv.scaled else 4 if self.tile.producers else 1

    @functools.cached_property
    def run_words(self) -> int:
        """Where warps transpose eight channels of a row of fragments before they write them."""
        return self.tile.threads // 32 * 8 * self.run_pitch if self.transposes_rows else 0

    @functools.cached_property
    def transposes_rows(self) -> bool:
        """Elements go through shared memory, so that all lanes of a warp write side by side: two sectors at least."""
        runs = self.conv.in_runs or (self.is_wide and not self.conv.is_phased)
        return runs and self.run_columns * self.conv.item_bytes >= 64

    @functools.cached_property
    def run_columns(self) -> int:
        """Positions of a row that a warp holds."""
        return self.held[2] * 4 * self.pair

    @functools.cached_property
    def run_pitch(self) -> int:
        """Words from one channel to the next: eight banks further."""
        return round_up(self.run_columns, 32) + 8

    @functools.cached_property
    def row_groups(self) -> int:
        """Input rows of four channels each that a step of warpgroup MMAs reads."""
        return self.conv.packed_in * self.tile.chunk // 4 * self.rows[0] * self.rows[1] if self.tile.warpgroups else 0

    @functools.cached_property
    def rounds(self) -> int:
        """How often each thread copies four columns of four channels in a step of warpgroup MMAs."""
        return -(-self.row_groups * -(-(self.lead + self.pitch) // 4) // self.tile.threads)

    @functools.cached_property
    def instruction(self) -> int:
        """Fragments of one warpgroup MMA."""
        return self.tile.fragments[2 if self.is_wide else 1]

    @functools.cached_property
    def producer_rounds(self) -> int:
        """How often each producer copies four columns of four channels in a step."""
        return -(-self.row_groups * -(-(self.lead + self.pitch) // 4) // PRODUCERS)

    @property
    def meeting(self) -> Code:
        """The barrier of all warps that multiply."""
        return calling("barrier_sync(1, THREADS);", "barrier_sync") if self.tile.producers else Code("__syncthreads();")

    @functools.cached_property
    def is_wide(self) -> bool:
        """The positions of one warpgroup MMA are neighbours in a row, not eight columns of several rows."""
        return self.tile.warpgroups and self.tile.fragments[2] > 1

    @functools.cached_property
    def exchanges(self) -> bool:
        """A warpgroup's elements go to shared memory to be reduced over channels: few positions are left, and threads share them.
        Where a lane holds more, it reduces its own channels and only what warps have of a position's total meets."""
        count = prod(self.held) * self.pair
        return self.tile.warpgroups and self.tile.warps_c == 4 and count < FEW_HELD and count & (count - 1) == 0

    @functools.cached_property
    def input_stages(self) -> int:
        if self.tile.producers:
            return self.tile.stages
        return 2 * (prod(self.tile.warps) if self.tile.alone else 1)

    @functools.cached_property
    def stagers(self) -> int:
        """Threads that copy one input tile."""
        return 32 if self.tile.alone else self.tile.threads

    @functools.cached_property
    def k_blocks(self) -> int:
        if self.tile.folded:
            return -(-self.conv.group_words * prod(self.conv.kernel) // 8)
        by_place = self.conv.is_phased and not self.tile.warpgroups
        columns = self.conv.reach[0] * self.conv.reach[2] if by_place else self.part_columns
        return self.chunk // 8 * columns

    @functools.cached_property
    def pairs_abreast(self) -> int:
        """Pairs of input channels whose rows threads copy side by side, where rows of one do not keep all of them busy."""
        places = self.rows[0] * self.rows[1] * self.pitch // 4
        return max(k for k in (1, 2, 4, 8) if k == 1 or (k * places <= self.stagers and self.chunk % k == 0))

    @functools.cached_property
    def held_words(self) -> int:
        """Registers of what a thread has on its way from memory, four columns at a time."""
        rounds = -(-self.rows[0] * self.rows[1] * self.pitch // 4 // self.stagers)
        k_blocks = self.tile.repeats * self.parts * self.k_blocks
        each = 4 if self.conv.is_half else 8
        return each * rounds * -(-self.chunk // self.pairs_abreast // k_blocks)

    @functools.cached_property
    def k_block_channels(self) -> int:
        """Input channels copied at each k-block, until all are."""
        k_blocks = self.tile.repeats * self.parts * self.k_blocks
        return -(-self.chunk // max(1, int(k_blocks * self.tile.early)))

    @functools.cached_property
    def k_block_weights(self) -> int:
        """Copies of 16 bytes each thread makes at each k-block for the next step's weights, until all are made."""
        return -(-self.weight_stage // (4 * self.tile.threads * max(1, int(self.k_blocks * self.tile.early))))


def halves_lie_by_fours(conv: Conv, epilogue: Epilogue, fragments: tuple[int, int, int]) -> bool:
    """Two fragments alternate along a row, so that a lane stores four halves and the lanes of a row a whole sector of memory. Lanes
    then read inputs two apart, and two of them meet in a bank."""
    elements_stored = epilogue.stored or epilogue.reduce is None or (isinstance(epilogue.reduce, OverChannels) and epilogue.reduce.keep)
    plain = not conv.is_phased and conv.stride[-1] == 1 and (epilogue.window is None or epilogue.window.size[-1] == 1)
    return conv.is_half and not conv.in_runs and plain and elements_stored and fragments[2] % 2 == 0


def layout(conv: Conv, epilogue: Epilogue, tile: Tile) -> Layout:
    """The layout, whether or not it fits the machine."""
    window = triple(epilogue.window.size, 1) if epilogue.window else (1, 1, 1)
    phases = conv.phases[-1]
    across = window[2] if window[2] > 2 or phases > 1 else 1
    by_fours = not tile.warpgroups and halves_lie_by_fours(conv, epilogue, tile.fragments)
    interleave = phases if phases > 1 else 2 if by_fours else across
    pair = 1 if window[2] == 2 and phases == 1 else 2
    tables = sum(len(body.tables) for body in epilogue.bodies) + conv.bias + conv.scaled
    shape = Layout(widened(conv), tile, window, interleave, across, pair, tables, 0)
    positions = prod(tile.warps) * prod(shape.held) * 4 * pair
    match epilogue.reduce:
        case OverChannels(keep=False) if shape.exchanges:
            scratch = positions * (shape.block_channels + 4)
        case OverChannels(accumulator=accumulator, keep=keep) if tile.warps_c > 1:
            scratch = tile.warps_c * (positions + 4 * prod(tile.warps)) * WORDS[accumulator] * (2 if keep else 1)
        case OverPositions(accumulator=accumulator):
            scratch = prod(tile.warps) * shape.block_channels * WORDS[accumulator]
        case _:
            scratch = 0
    return replace(shape, scratch_words=scratch) if scratch else shape


def refusal(shape: Layout, epilogue: Epilogue, machine: Machine = H200) -> str | None:
    """Why this tile cannot serve this convolution, or nothing."""
    conv, tile = shape.conv, shape.tile
    fd, fh, fw = shape.spread
    steps = shape.chunks * shape.parts
    window_splits = fd % shape.window[0] or fh % shape.window[1] or fw % shape.across or shape.interleave % shape.across
    accumulators = 4 * tile.channel_tiles * shape.fragments
    reduces_channels = isinstance(epilogue.reduce, OverChannels)
    if tile.warpgroups and conv.is_split:
        return "warpgroup MMAs multiply TF32 or halves, no split operands"
    if conv.scaled and not (tile.producers and tile.weights == "staged"):
        return "scaled halves are staged by producers, with weights that a kernel packs"
    if conv.scaled and isinstance(epilogue.reduce, OverPositions):
        return "what all tiles of a slice add up to has no tile that is computed once more"
    if tile.warpgroups and conv.packed_in > 1 and not tile.producers:
        return "halves for warpgroup MMAs are staged by producers"
    if tile.folded and (conv.is_half or conv.is_phased or tile.warpgroups):
        return "taps are folded into the depth of float32 numbers, without phases, warp by warp"
    if tile.folded and (shape.k_blocks > FOLDED_K_BLOCKS or tile.columns):
        return "folded taps are one part, and not too many"
    if conv.is_phased and max(conv.dilation) > 1:
        return "strided transposed convolutions are not dilated"
    if conv.is_phased and (tile.repeats > 1 or shape.parts > 1):
        return "phases are one part, once"
    straight = prod(conv.kernel) * tile.channel_tiles * prod(tile.fragments)
    if conv.is_phased and straight > STRAIGHT_PRODUCTS * (shape.instruction if tile.warpgroups else 1):
        return "more products in straight code than are worth compiling"
    if tile.producers and shape.k_blocks * conv.kernel[1] * tile.channel_tiles * prod(tile.fragments) > STRAIGHT_STEP * shape.instruction:
        return "more products in a step than are worth compiling"
    if tile.producers and not (tile.warpgroups and 2 <= tile.stages <= 6):
        return "producers fill two to six stages of warpgroup operands"
    if tile.warpgroups and (reason := refused_by_warpgroups(shape, epilogue)):
        return reason
    if epilogue.stored and not isinstance(epilogue.reduce, OverPositions):
        return "elements are stored beside a reduction over positions only"
    if window_splits:
        return "the pool window does not divide a warp's positions"
    if shape.conv.kernel[0] * shape.conv.kernel[2] % shape.part_columns:
        return "the columns of a part do not divide the kernel's"
    if tile.repeats > 1 and steps > 1:
        return "a tile is repeated only when it is one step"
    if tile.resident and shape.parts > 1:
        return "resident weights are one part"
    if tile.alone and (tile.weights == "staged" or tile.warps_c > 1):
        return "a warp alone shares no copies and has all channels"
    if reduces_channels and shape.channel_blocks > 1:
        return "a block must hold all channels it reduces"
    if isinstance(epilogue.reduce, OverChannels) and epilogue.reduce.keep:
        accumulators += WORDS[epilogue.reduce.accumulator] * prod(shape.held) * shape.pair
    if tile.warpgroups and not tile.producers:
        accumulators += 16 * -(-shape.rounds // shape.k_blocks)  # four columns of four channels on their way
    if conv.packed_in > 1 and not tile.warpgroups:
        accumulators += shape.held_words
    if conv.is_strict:  # what the tensor cores sum on its own, and the second part of each input
        accumulators += 4 * prod(tile.fragments) + WINDOW_REGISTERS // 2
    if conv.bf16_parts:  # the second part of each input
        accumulators += WINDOW_REGISTERS // 2
    room = ROOM_FOR_ROWS if shape.is_wide or (tile.warpgroups and conv.is_phased) else ROOM
    if accumulators + room > tile.registers * machine.registers // 65536:
        return "too many accumulators for the registers of a thread"
    if not tile.warpgroups and -(-shape.rows[0] * shape.rows[1] * shape.pitch // shape.stagers) > 32:
        return "more rounds of copies than a word has bits, where they are of single elements"
    if not machine.has_tf32 or (tile.warpgroups and not machine.has_wgmma):
        return "the machine has no such tensor cores"
    if tile.all_threads > 1024 or tile.all_threads * tile.blocks_per_sm > machine.threads:
        return "more threads than a multiprocessor has"
    if 4 * shape.shared_words > machine.shared_per_block // tile.blocks_per_sm - 1024:
        return "more shared memory than a multiprocessor has"
    return None


def refused_by_warpgroups(shape: Layout, epilogue: Epilogue) -> str | None:
    """Their operands lie in shared memory at one distance from position to position and from row to row."""
    tile = shape.tile
    if shape.input_stride[2] > 1 or shape.interleave > shape.conv.phases[2]:
        return "neighbouring positions do not read neighbouring inputs"
    if tile.warps_c not in (4, 8) or tile.alone or tile.repeats > 1 or shape.parts > 1 or tile.weights == "direct":
        return "four or eight warps over channels, all taps in a step"
    if shape.instruction not in INSTRUCTIONS:
        return "a product is 32 to 136 positions, eight columns wide or one row high"
    if shape.exchanges and isinstance(epilogue.reduce, OverChannels) and not epilogue.reduce.keep and shape.conv.out_channels % 4:
        return "elements go to shared memory to be reduced, four channels at a time"
    return None
