"""Which tiles can serve a convolution, and what each is expected to cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from math import gcd, prod

from ...ir import functions as fn
from ...ir.expr import Binary, Call, Expr, Number, Select, Unary, walk
from ...ir.stmt import expressions
from ...target.machine import H200, Machine
from .conv_layout import FOLDED_K_BLOCKS, INSTRUCTIONS, Layout, halves_lie_by_fours, layout, refusal, round_up
from .conv_spec import VALUE, Conv, Epilogue, OverChannels, OverPositions, Pointwise, Table, Tile, triple
from .shortened import SHORT_FORMS

# Measured on an H200, and scaled to other machines by what bounds them (target/machine.py).
# H200: the inner loop alone, 289 to 301 (benchmarks/conv_ceiling.py). Of halves twice that, by the instruction's rate (not measured).
PRODUCT_TFLOPS = 295.0
COPY_TB_PER_S = 15.0  # H200: copies to shared memory cost the second founding model 0.11 ms for 1.7 GB
MEMORY_TB_PER_S = 4.1  # H200: measured read
CYCLES_PER_MS = 1.76e6
PRODUCT_ISSUE = 6.4  # cycles of a warp scheduler that a product takes, by PRODUCT_TFLOPS
SPECIAL_SLOTS = 5.0  # H200: of the 8 cycles a special function takes of its own unit, those not hidden
SMALL_TILE = 1.10  # H200, statistics of the first founding model: 0.125 ms with 64 accumulators a lane, 0.115 with 128
FEW_WARPS = 1.15  # H200, its second kernel: 0.225 ms with 8 warps on a multiprocessor, 0.204 with 16
# Reads of shared memory and products overlap only in part. H200, five convolutions alone (benchmarks/results/transposed.txt): they take
# 0.9 to 1.3 times what is predicted.
PHASED_OVERHEAD = 1.4
STEP_MS = 0.0003  # H200: what a barrier costs all warps of a block (columns 3 against 9 in the second founding model)
LAUNCH_MS = 0.004
CANDIDATES = 24  # more would be noise
WIDE_CANDIDATES = 96  # with how many rows, warps and channels they are made
MOST_HELD = 34  # fragments of warpgroup tiles, times channel tiles: 136 accumulators
RESIDENT_BYTES = 40 * 1024  # weights up to here stay in shared memory; first founding model: 18 KB
WARPGROUP_TFLOPS = 390.0  # H200: warpgroup MMAs with nothing copied in between, 379 to 393 (conv_founding.py)
# H200, warpgroup MMAs, fitted to 24 tiles of six convolutions (benchmarks/results/tiles.txt): what they lose, what an element
# costs on its way to shared memory, and the cycles it takes: where it is stored earlier than that after its load, warps wait. An element
# cost 0.6 while lanes met in banks; 0.4 is such that the tiles measured fastest are chosen (benchmarks/results/rows.txt), no fit.
WARPGROUP_OVERHEAD, WARPGROUP_STAGED_MS, WARPGROUP_LATENCY = 1.15, 0.4e-9, 1500
MANY_WARPS = 1.1  # H200: a volume of 32 channels, 1.07 ms where 0.96 were expected: sixteen warps wait at one barrier
# Of a word of two weights that each block packs for itself, 390 instructions of a warp for six of a lane's words; counted, not measured.
HALVES_PACKED_CYCLES = 0.5
HALVES_STAGED_MS = 0.6e-9  # of an element of 16 bits, through registers; counted, not measured
# H200, 83 tiles of twelve convolutions (benchmarks/results/rows.txt), of which 89 % are expected within a fifth of what they take:
# cycles of producers for a round of copies, for each line of memory that a warp reads in it, and for a stage; what products lose.
ROUND_CYCLES, LINE_CYCLES, STAGE_CYCLES, PRODUCED_OVERHEAD = 400, 40, 300, 1.0
# H200, first founding model, whose tiles are one step: without this 0.092 ms were expected for its statistics, and 0.118 measured; 0.203
# and 0.210 for the second kernel.
TILE_CYCLES = 1200  # until the last products of a tile are through and the first ones of the next one begin
TWO_STAGES, MORE_STAGES = 0.4, 0.1  # of the shorter of copies and products, what the longer does not hide
# H200: rows that blocks of warpgroups write without shared memory, eight or sixteen columns at a time, cost 3.7 and 1.4
# to 2.3 times their bytes.
NARROW_COLUMNS = 32
# H200: what it costs more to write rows that do not begin at whole sectors, eight elements at a time: 110 columns instead of 112 took
# 0.26 ms for 200 MB (benchmarks/results/widths.txt); of runs by way of shared memory, two sectors of each at this rate: 443 MB in rows of
# 81 take 0.32 ms in runs of 32 and 0.29 in runs of 64, in rows of 80 0.19 (benchmarks/results/transposed.txt).
SECTOR, UNALIGNED_TB_PER_S, RUN_ENDS_TB_PER_S = 32, 0.77, 1.5
HALF_SECTORS = 1.3  # not measured: eight halves of a fragment's row are half a sector, which the caches join
# Folded taps: what they lose beside what is counted (H200, benchmarks/results/few_channels.txt: 1.14 to 1.35), and the slots for each
# product that PRODUCT_TFLOPS contains (3×3 of 32 products: 20 reads, two instructions to round each and 12 reads of weights for 96).
FOLDED_OVERHEAD, TAPS_SLOTS = 1.2, 0.75
DEEP_WARPS: dict[int, tuple[tuple[int, int, int], ...]] = {1: (), 2: (), 3: ((2, 1, 1), (2, 2, 1))}
FOLDED_STRAIGHT = 640  # products of a warp in one stretch of straight code, where taps are folded
# Functions by their units: the special-function unit's, with what is made of them, and single instructions. Others are not counted.
SPECIAL = {name for function in (
    fn.exp, fn.exp2, fn.expm1, fn.tanh, fn.log, fn.log2, fn.log10, fn.log1p, fn.sqrt, fn.rsqrt, fn.sigmoid, fn.erf, fn.erfc, fn.sin,
    fn.cos, fn.sinh, fn.cosh, fn.asin, fn.acos, fn.asinh, fn.acosh, fn.atanh, fn.log1p_unit, fn.expm1_below, fn.floor_divided,
    fn.whole_floor_divided, *SHORT_FORMS,
) for name in (function.name, function.double, function.fast) if name}  # fmt: skip
SINGLE = {function.name for function in (fn.fmax, fn.fmin, fn.fabs, fn.floor)}
STEP_PRODUCTS = 864  # H200, second founding model: 0.97 ms with 864 products a warp between barriers, 1.02 with 288


def fits(conv: Conv, epilogue: Epilogue, machine: Machine = H200) -> bool:
    """Some tile serves this convolution and this epilogue; of one that is to be scaled, if need be without that."""
    return has_tiles(replace(conv, scaled=False) if conv.scaled else conv, outline(epilogue), machine)


def candidate_tiles(conv: Conv, epilogue: Epilogue, machine: Machine = H200) -> tuple[Tile, ...]:
    """The tiles worth trying, the most promising first."""
    return tiles_of(conv, outline(epilogue), machine)


def outline(epilogue: Epilogue) -> Epilogue:
    """What of an epilogue says which tiles can serve it: of its bodies, how many tables they keep. Layers of a network share it."""
    tables = sum(len(body.tables) for body in epilogue.bodies)
    return Epilogue(Pointwise(tables=(Table("", VALUE),) * tables), epilogue.window, epilogue.stored, reduce=epilogue.reduce)


@functools.lru_cache(maxsize=1024)
def has_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> bool:
    proposals = (proposed_tiles, warpgroup_tiles, wide_tiles, *((fewer_tiles,) if conv.is_phased else ()))
    if conv.scaled:
        proposals = (producer_tiles,)
    return any(True for proposed in proposals for _ in able(conv, epilogue, machine, proposed))


@functools.lru_cache(maxsize=1024)
def tiles_of(conv: Conv, epilogue: Epilogue, machine: Machine) -> tuple[Tile, ...]:
    found = [islice(able(conv, epilogue, machine, proposed), CANDIDATES) for proposed in (proposed_tiles, warpgroup_tiles, folded_tiles)]
    found += [islice(able(conv, epilogue, machine, proposed), WIDE_CANDIDATES) for proposed in (wide_tiles, producer_tiles)]
    tiles = tuple(dict.fromkeys(chain.from_iterable(found)))
    return tiles if tiles or conv.scaled or not conv.is_phased else tuple(islice(able(conv, epilogue, machine, fewer_tiles), CANDIDATES))


def able(conv: Conv, epilogue: Epilogue, machine: Machine, proposed: Callable[[Conv, Epilogue, Machine], Iterator[Tile]]) -> Iterator[Tile]:
    return (tile for tile in proposed(conv, epilogue, machine) if refusal(layout(conv, epilogue, tile), epilogue, machine) is None)


def for_sizes(conv: Conv, epilogue: Epilogue, sizes: Sequence[int], machine: Machine = H200) -> Conv:
    """The convolution, with how its results are written at these sizes (batch first); scaled where some tile can do that."""
    if conv.scaled and not has_tiles(conv, outline(epilogue), machine):
        conv = replace(conv, scaled=False)
    elements = epilogue.stored or (isinstance(epilogue.reduce, OverChannels) and epilogue.reduce.keep) or epilogue.reduce is None
    wide = conv.out_sizes(sizes[1:])[-1] // (epilogue.window.size[-1] if epilogue.window else 1)
    in_runs = replace(conv, in_runs=True)
    if elements and wide * conv.item_bytes % SECTOR and fits(in_runs, epilogue, machine):
        conv = in_runs
    return replace(conv, row_fragments=suiting(conv, sizes)) if can_be_wide(conv, machine) else conv


def can_be_wide(conv: Conv, machine: Machine) -> bool:
    """Tiles whose products are of neighbours in a row are worth trying: others are eight columns wide."""
    return has_warpgroups(conv, machine) and conv.stride[-1] == conv.phases[-1]


def suiting(conv: Conv, sizes: Sequence[int]) -> int:
    """The fragments side by side with which rows of the output at these sizes (batch first) take least time."""
    columns = -(-conv.out_sizes(sizes[1:])[-1] // conv.phases[-1])
    return min(INSTRUCTIONS, key=lambda count: (-(-columns // (8 * count)) * count * instruction_loss(count), count))


def instruction_loss(fragments: int) -> float:
    """How much longer a warpgroup MMA takes where it has few positions: 64 channels by eight are read from shared memory in 16
    cycles, a fragment in two, and multiplied in four. H200: 0.82 ms with 64 positions in a product, 0.757 with 128."""
    return max(1.0, 1.1 * (16 + 2 * fragments) / (4 * fragments))


def has_warpgroups(conv: Conv, machine: Machine) -> bool:
    return not conv.is_split and machine.has_wgmma


def best_tile(conv: Conv, epilogue: Epilogue, sizes: Sequence[int], machine: Machine = H200) -> Tile:
    """The first candidate whose prediction for these sizes (batch first) is within 3 % of the lowest."""
    predicted = [(predicted_ms(conv, epilogue, sizes, tile, machine), tile) for tile in candidate_tiles(conv, epilogue, machine)]
    lowest = min(ms for ms, _ in predicted)
    return next(tile for ms, tile in predicted if ms <= 1.03 * lowest)


def expected_ms(conv: Conv, epilogue: Epilogue, sizes: Sequence[int], machine: Machine = H200) -> float:
    """What the convolution and this epilogue are expected to take with the tile that suits them."""
    conv = for_sizes(conv, epilogue, sizes, machine)
    return predicted_ms(conv, epilogue, sizes, best_tile(conv, epilogue, sizes, machine), machine)


def proposed_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> Iterator[Tile]:
    if conv.scaled:
        return  # warpgroup MMAs alone
    if conv.is_phased:
        yield from phased_tiles(conv, epilogue, most_fragments(conv), machine)
        return
    channel_tiles, warps_c = channel_split(conv, epilogue)
    weight_bytes = 4 * prod(conv.kernel) * round_up(conv.group_words, 8) * 16 * channel_tiles * warps_c
    window = prod(epilogue.window.size) if epilogue.window else 1
    heavy = isinstance(epilogue.reduce, OverChannels) and window < 4  # wants many warps, to hide its own latency
    most = most_fragments(conv)
    small, big = min(8, most // 2 // channel_tiles), min(16, most // channel_tiles)
    for warps in (8, 4, 2, 1):
        if warps < warps_c:
            break
        for count, blocks in ((small, 2), (big, 1)) if heavy else ((big, 1), (small, 2)):
            for fragments in fragment_shapes(conv, epilogue, count):
                if weight_bytes <= RESIDENT_BYTES and warps_c == 1:
                    base = Tile(channel_tiles, fragments, (1, 1, warps), weights="resident", alone=True)
                    if in_short_stretches(conv):
                        base = replace(base, unrolled=1)
                    if warps == 8:  # H200, second kernel of the first founding model: 0.1925 ms with 4 x 4 warps, 0.1988 with 2 x 8
                        yield replace(base, warps=(1, 1, 4), blocks_per_sm=2 * blocks)
                    yield replace(base, blocks_per_sm=blocks)
        for count in (big, small, 4, 2, 1):  # copied weights want long steps and few blocks
            for fragments in fragment_shapes(conv, epilogue, count):
                for shape in warp_shapes(conv, warps // warps_c):
                    base = Tile(channel_tiles, fragments, shape, warps_c, early=1.0)
                    yield from stepped(conv, epilogue, base, machine)


def warpgroup_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> Iterator[Tile]:
    """Tiles whose products are warpgroup MMAs: 64 channels each time, of 64 or 128 positions."""
    if conv.dims == 1 or conv.is_phased or conv.packed_in > 1 or not has_warpgroups(conv, machine):
        return  # a product is eight columns wide and eight rows high; of halves producers fill the stages
    wanted = -(-conv.out_channels // conv.groups // 64)
    deep, high, _ = window_fragments(conv, epilogue)
    for channel_tiles in (wanted,) if isinstance(epilogue.reduce, OverChannels) else (min(2, wanted), 1):
        for fragments in ((deep, 16, 1), (deep, 8, 1)):
            if fragments[1] % high:
                continue
            for warps in ((1, 1, 2), (1, 2, 1), (1, 1, 1)):
                for blocks in (2, 1, 3) if prod(warps) > 1 else (2, 1, 3, 4, 5):
                    for weights, chunk in (("resident", 16), ("resident", 8), ("staged", 16), ("staged", 8)):
                        base = Tile(channel_tiles, fragments, warps, 4, chunk, blocks_per_sm=blocks, weights=weights)
                        yield replace(base, warpgroups=True)


def wide_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> Iterator[Tile]:
    """Tiles whose products are warpgroup MMAs, of neighbours in a row; of phases, of eight columns of several rows too.
    Eight warps over channels share an input tile."""
    if conv.packed_in > 1 or not can_be_wide(conv, machine):
        return
    for (channel_tiles, fours), fragments in product(of_fours(conv, epilogue), wide_shapes(conv, epilogue)):
        if channel_tiles * prod(fragments) * prod(conv.phases) > MOST_HELD:
            continue
        for warps in ((1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 1), *DEEP_WARPS[conv.dims]):
            for blocks in (1, 2, 3):
                for weights, chunk in (("resident", 16), ("resident", 8), ("staged", 16), ("staged", 8)):
                    base = Tile(channel_tiles, fragments, warps, 4 * fours, chunk, blocks_per_sm=blocks, weights=weights)
                    yield replace(base, warpgroups=True)


def producer_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> Iterator[Tile]:
    """The same, and tiles eight columns wide, with one more warpgroup that fills the stages, as many of these as there is room for."""
    if not can_be_wide(conv, machine):
        return
    deep, high, _ = window_fragments(conv, epilogue)
    columns = [(deep, rows, 1) for rows in (16, 8) if rows % high == 0 and conv.dims > 1 and not conv.is_phased]
    for fragments, (channel_tiles, fours) in product([*wide_shapes(conv, epilogue), *columns], reversed(of_fours(conv, epilogue))):
        if channel_tiles * prod(fragments) * prod(conv.phases) > MOST_HELD:
            continue
        for warps in ((1, 1, 2), (1, 2, 1), (1, 1, 1), *DEEP_WARPS[conv.dims][:1]):
            threads = 128 * fours * prod(warps)
            for blocks in ((1, 2) if threads == 128 else (1,) if threads == 256 else ()):
                base = Tile(channel_tiles, fragments, warps, 4 * fours, blocks_per_sm=blocks)
                yield from filled_by_producers(conv, epilogue, machine, base)


def filled_by_producers(conv: Conv, epilogue: Epilogue, machine: Machine, base: Tile) -> Iterator[Tile]:
    """The tile with its weights in shared memory if they all fit, and as many stages as do: many short ones rather than few long ones. Of
    halves also with weights that another kernel packs."""
    for chunk, fewest in ((8, 2), (16, 3)):
        staged = replace(base, chunk=chunk, weights="staged", warpgroups=True, producers=True)
        kinds = [[replace(staged, weights=weights, stages=n) for n in range(4, fewest - 1, -1)] for weights in ("resident", "staged")]
        for tiles in kinds if conv.is_half else [[*chain.from_iterable(kinds)]]:  # what packing halves costs decides between these
            yield from islice((tile for tile in tiles if refusal(layout(conv, epilogue, tile), epilogue, machine) is None), 1)


def wide_shapes(conv: Conv, epilogue: Epilogue) -> list[tuple[int, int, int]]:
    """Fragments of a warpgroup, deep, high and wide: one instruction a row, or of phases eight columns of several rows too."""
    phases, (deep, high, _) = prod(conv.phases), window_fragments(conv, epilogue)
    widest = min(conv.row_fragments, MOST_HELD // (phases * deep * high))
    halves = (widest, widest // 2) if widest >= 16 else (widest,)  # more rows, which share more of the input
    deeps = (2 * deep, deep) if conv.dims == 3 else (deep,)
    shapes = [(d, rows * high, across) for d in deeps for across in halves for rows in (4, 2, 1)]
    if conv.is_phased and conv.dims > 1:
        shapes += [(deep, rows, 1) for rows in (8, 4) if rows % high == 0]
    return [shape for shape in shapes if (shape[2] if shape[2] > 1 else shape[1]) in INSTRUCTIONS]


def of_fours(conv: Conv, epilogue: Epilogue) -> list[tuple[int, int]]:
    """How many times 64 channels a warpgroup has, and how many warpgroups there are over channels."""
    wanted = -(-conv.out_channels // conv.groups // 64)
    return [split for fours in ((1, 2) if wanted > 1 else (1,)) for split in channels_of_fours(epilogue, wanted, fours)]


def channels_of_fours(epilogue: Epilogue, wanted: int, fours: int) -> list[tuple[int, int]]:
    """Tiles of 64 channels in each of so many warpgroups, with that number; what is reduced over channels is in one block."""
    least = -(-wanted // fours)
    tiles = [least] if isinstance(epilogue.reduce, OverChannels) else sorted({min(2, least), 1}, reverse=True)
    return [(count, fours) for count in tiles]


def folded_tiles(conv: Conv, epilogue: Epilogue, _machine: Machine) -> Iterator[Tile]:
    """Tiles whose depth is eight taps of any input channels, where that is fewer products. Each input is read for each tap: the more
    channels a warp has, the better."""
    deep, one_by_one = -(-conv.group_words * prod(conv.kernel) // 8), round_up(conv.group_words, 8) // 8 * prod(conv.kernel)
    if conv.is_half or conv.scaled or conv.is_phased or deep >= one_by_one or deep > FOLDED_K_BLOCKS:
        return
    most, (wanted, warps_c) = most_fragments(conv), channel_split(conv, epilogue)
    window = prod(epilogue.window.size) if epilogue.window else 1
    heavy = isinstance(epilogue.reduce, OverChannels) and window < 4  # as among other tiles
    for channel_tiles in (wanted,) if isinstance(epilogue.reduce, OverChannels) or wanted == 1 else (wanted, wanted // 2):
        small, big = min(8, most // 2 // channel_tiles), min(16, most // channel_tiles)
        for weights, alone, warps in product(("resident", "direct"), (True, False), (8, 4, 2, 1)):
            if warps < warps_c or (alone and warps_c > 1):
                continue
            for count, blocks in ((small, 2), (big, 1)) if heavy else ((big, 1), (small, 2)):
                for fragments in fragment_shapes(conv, epilogue, count):
                    products = (3 if conv.bf16_parts else 1) * deep * channel_tiles * prod(fragments)
                    stretches = -(-products // FOLDED_STRAIGHT)
                    unrolled = 1 if conv.is_strict else None if stretches == 1 else -(-deep // stretches)
                    base = Tile(channel_tiles, fragments, (1, 1, warps), warps_c, weights=weights, unrolled=unrolled, folded=True)
                    if alone and warps == 8 and blocks == 1:  # H200: four blocks for each of two are up to twice as slow
                        yield replace(base, warps=(1, 1, 4), blocks_per_sm=2, alone=True)
                    for shape in ((1, 1, warps),) if alone else warp_shapes(conv, warps // warps_c):
                        yield replace(base, warps=shape, blocks_per_sm=blocks, alone=alone)


def fewer_tiles(conv: Conv, epilogue: Epilogue, machine: Machine) -> Iterator[Tile]:
    """Where what waits in registers for its total leaves less room."""
    return phased_tiles(conv, epilogue, most_fragments(conv) // 2, machine)


def phased_tiles(conv: Conv, epilogue: Epilogue, most: int, machine: Machine) -> Iterator[Tile]:
    """Tiles of a strided transposed convolution, of at most so many fragments. All phases are in registers, so a weight serves
    few fragments: warps over channels leave each of them more positions."""
    wanted = -(-conv.out_channels // conv.groups // 16)
    most_tiles = max(1, most // prod(conv.phases))
    for warps in (8, 4, 2, 1):
        for warps_c in (8, 4, 2, 1):
            channel_tiles = -(-wanted // warps_c)
            if not isinstance(epilogue.reduce, OverChannels):
                channel_tiles = min(channel_tiles, 4)
            if warps_c > min(warps, wanted) or channel_tiles > most_tiles:
                continue
            count = most_tiles // channel_tiles
            for fragments in islice(fragment_shapes(conv, epilogue, count), 3):
                base = Tile(channel_tiles, fragments, (1, 1, warps // warps_c), warps_c, early=1.0)
                if warps_c == 1:
                    yield replace(base, weights="resident", alone=True, early=0.5)
                for shape in islice(warp_shapes(conv, warps // warps_c), 2):
                    yield phased_step(conv, epilogue, replace(base, warps=shape), machine)


def phased_step(conv: Conv, epilogue: Epilogue, base: Tile, machine: Machine) -> Tile:
    """The tile with as many input channels a step as shared memory allows; weights that do not fit are read through L1."""
    deep = round_up(conv.group_words, 8)
    tiles = [replace(base, chunk=chunk) for chunk in (32, 16, 8) if chunk <= deep]
    able = [tile for tile in tiles if refusal(layout(conv, epilogue, tile), epilogue, machine) is None]
    return able[0] if able else replace(base, weights="direct")


def channel_split(conv: Conv, epilogue: Epilogue) -> tuple[int, int]:
    """Tiles of 16 channels in a warp, and warps over channels. What is reduced over channels is in one block.

    A lane holds the whole of a pool's window: where that is wide, of fewer channels.
    """
    wanted = -(-conv.out_channels // conv.groups // 16)
    most = max(1, min(2 if conv.is_strict else 4, most_fragments(conv) // prod(window_fragments(conv, epilogue))))
    if not isinstance(epilogue.reduce, OverChannels):
        return min(most, wanted), 2 if conv.is_strict and wanted >= 2 * most else 1
    warps = next((w for w in (1, 2, 4, 8) if most * w >= wanted), 16)
    return -(-wanted // warps), warps


def window_fragments(conv: Conv, epilogue: Epilogue) -> tuple[int, int, int]:
    """The least fragments, deep, high and wide, that a pool's window divides. A window two wide lies in a lane's own pair."""
    window = triple(epilogue.window.size, 1) if epilogue.window else (1, 1, 1)
    deep, high, wide = (size // gcd(size, phase) for size, phase in zip(window, triple(conv.phases, 1), strict=True))
    return deep, high, wide if wide > 2 else 1


def fragment_shapes(conv: Conv, epilogue: Epilogue, count: int) -> Iterator[tuple[int, int, int]]:
    """Shapes of about `count` fragments that the pool window divides; tall ones first, whose rows are reused most; wide ones where what
    a warp has of a row is to be long. Of halves that are stored, those whose lanes store four side by side."""
    d, ph, pw = window_fragments(conv, epilogue)
    if conv.dims == 1:
        yield 1, 1, max(pw, count // pw * pw)
        return
    shapes = []
    for h in (2, 4, 1, 8, 6, 3) if conv.in_runs else (8, 6, 4, 3, 2, 1):
        h = h // ph * ph or ph
        w = count // (d * h) // pw * pw or pw
        if d * h * w <= count or (h == ph and w == pw):
            shapes.append((d, h, w))
    yield from sorted(shapes, key=lambda shape: not halves_lie_by_fours(conv, epilogue, shape))


def warp_shapes(conv: Conv, warps: int) -> Iterator[tuple[int, int, int]]:
    if conv.dims == 1:
        yield 1, 1, warps
    else:
        for high in (2, 4, 1):
            if warps % high == 0:
                yield 1, high, warps // high


def stepped(conv: Conv, epilogue: Epilogue, base: Tile, machine: Machine) -> Iterator[Tile]:
    """The tile with steps as long as shared memory allows, up to STEP_PRODUCTS."""
    columns = triple(conv.kernel, 1)[0] * triple(conv.kernel, 1)[2]
    deep = round_up(conv.group_words, 8)
    for chunk in (64, 32, 24, 16, 8):
        for part in sorted({k for k in range(1, columns + 1) if columns % k == 0}, reverse=True):
            tile = replace(base, chunk=chunk, columns=part, unrolled=1 if in_short_stretches(conv) else min(part, 3))
            shape = layout(conv, epilogue, tile)
            products = shape.k_blocks * conv.kernel[-2 if conv.dims > 1 else 0] * tile.channel_tiles * shape.fragments
            whole = part == columns or chunk == 8
            if chunk <= deep and whole and products <= STEP_PRODUCTS and refusal(shape, epilogue, machine) is None:
                yield tile
                return
    yield replace(base, columns=1, unrolled=1)


def most_fragments(conv: Conv) -> int:
    """Of a warp, for 128 accumulators; for 64 where the tensor cores' own sums and the second parts of inputs are beside them; for 96
    where the next inputs wait in registers to be parted (nvcc: with 128 some are spilled between products)."""
    return 16 if conv.is_strict else 24 if conv.bf16_parts else 32


def in_short_stretches(conv: Conv) -> bool:
    """One kernel column in a stretch of straight code: of halves, whose next inputs wait in registers, and of numbers in two parts
    more would spill."""
    return conv.packed_in > 1 or conv.is_strict


@functools.lru_cache(maxsize=1024)
def instructions(body: Pointwise, special_slots: float = SPECIAL_SLOTS) -> float:
    """A rough count of the issue slots one element of a body takes."""
    parts = (part for expr in (*expressions(body.statements), body.result) for part in walk(expr))
    return sum(slots(part, special_slots) for part in parts)


def slots(part: Expr, special_slots: float) -> float:
    """Of one operator, without its operands."""
    match part:
        case Binary("/"):
            return special_slots
        case Binary("+" | "-" | "*" | "<" | "<=" | ">" | ">=") | Unary("-") | Select():
            return 1.0
        case Number(value, "int" | "float") if value < 0:
            return 1.0
        case Call(function):
            special = special_slots if function.name in SPECIAL else 0.0
            return special + (1.0 if function.name in SINGLE else 0.0) + (2.0 if function.types else 0.0)  # with types: a conversion
    return 0.0


def shared_reads(shape: Layout) -> float:
    """How much longer products take where phases leave few fragments to a weight: one product in 1.6 cycles of a
    multiprocessor (PRODUCT_TFLOPS), four cycles to read a warp's weights from shared memory, two for an input fragment."""
    if not shape.conv.is_phased:
        return 1.0
    (fd, fh, fw), reach = shape.tile.fragments, shape.conv.reach
    rows = fh + reach[1] - 1 if shape.kernel_rows_together > 1 else fh * reach[1]
    weights = 4 * prod(shape.conv.kernel) * shape.tile.channel_tiles
    inputs = 2 * reach[0] * reach[2] * fd * rows * fw
    products = prod(shape.conv.kernel) * shape.tile.channel_tiles * fd * fh * fw
    through_l1 = 1.5 if shape.tile.weights == "direct" else 1.0
    return PHASED_OVERHEAD * max(1.0, through_l1 * (weights + inputs) / (1.6 * products))


def split_products(shape: Layout, machine: Machine) -> float:
    """How much longer products of float32 take than TF32's: three of these for each, and by count of instructions (not measured) what
    splitting numbers (13 for a weight's four, 8 for an input's two) and moving sums (4 for a fragment's four) issues beside them.
    Three of bf16 too, whose parts lie in shared memory and whose sums stay where they are."""
    conv, tile = shape.conv, shape.tile
    if conv.bf16_parts:
        return 3.0
    if not conv.is_strict:
        return 1.0
    (fd, fh, fw), rows = tile.fragments, 1 if conv.is_phased else shape.kernel_rows_together
    window = min(fh * rows, (fh - 1) * shape.input_stride[1] + (rows - 1) * conv.dilation[1] + 1)
    products = 3 * rows * tile.channel_tiles * fd * fh * fw
    issued = 13 * rows * tile.channel_tiles + 8 * fd * window * fw + 4 * tile.channel_tiles * fd * fh * fw
    return 3.0 * (1.0 + issued / (product_issue(machine) * products))


def product_issue(machine: Machine) -> float:
    """PRODUCT_ISSUE, where tensor cores and clocks are others."""
    return machine.by_issue(PRODUCT_ISSUE) / machine.by_warp_mma(1.0)


def issue_per_ms(machine: Machine) -> float:
    """Warp instructions: products and arithmetic do not overlap (conv_ceiling.py)."""
    return machine.multiprocessors * 4 * machine.by_clock(CYCLES_PER_MS)


def folded_products(shape: Layout, machine: Machine) -> float:
    """How much longer products of folded taps take than of taps one by one, whose inputs serve several kernel rows: what is issued
    beside them (two reads for a fragment's inputs, one for a weight's four and one for offsets, which are added; for four words that
    are copied ten to round them where they lie), or shared memory, which four schedulers share: a cycle for each read of inputs that
    meets no bank twice, four for a weight's, eight to round four words of a lane. Of bf16 parts both are read, for three products."""
    tile = shape.tile
    if not tile.folded or shape.conv.is_strict:
        return 1.0
    parts, each = (2, 3) if shape.conv.bf16_parts else (1, 1)
    products = each * product_issue(machine) * shape.k_blocks * tile.channel_tiles * shape.fragments
    read = parts * (2 * shape.fragments + tile.channel_tiles)
    issued = shape.k_blocks * (read + 3 - TAPS_SLOTS * each * tile.channel_tiles * shape.fragments)
    reads = parts * shape.fragments * shape.folded_places[0] + shape.k_blocks * (4 * parts * tile.channel_tiles + 1)
    # By a lane, for the products of its warp; parts are made on their way to shared memory (HALVES_STAGED_MS).
    rounded = 0.0 if parts > 1 else shape.input_stage / (4 * shape.stagers * tile.repeats)
    return FOLDED_OVERHEAD * max(1.0 + (issued + 10 * rounded) / products, 4 * (reads + 8 * rounded) / products)


def predicted_ms(conv: Conv, epilogue: Epilogue, sizes: Sequence[int], tile: Tile, machine: Machine = H200) -> float:
    """Milliseconds for `sizes` = (batch, *spatial sizes of the input)."""
    shape: Layout = layout(conv, epilogue, tile)
    batch, spatial = sizes[0], sizes[1:]
    out = triple(conv.out_sizes(spatial), 1)
    tiles = batch * prod(-(-size // step) for size, step in zip(out, shape.tile_sizes, strict=False))
    positions = prod(shape.tile_sizes)
    lone = prod(tile.warps) if tile.alone else 1
    seats = machine.multiprocessors * tile.blocks_per_sm * lone
    work = tiles * shape.channel_blocks
    rounds = max(work / seats, -(-work // seats) if work <= 4 * seats else 0)  # few rounds: the last one is felt
    crowd = rounds * seats / work
    written = written_bytes(shape, epilogue, batch, out)
    memory = machine.by_memory(MEMORY_TB_PER_S)
    least = (conv.item_bytes * batch * conv.in_channels * prod(spatial) + written) / memory * 1e-9
    writing = written / memory * 1e-9  # hardly overlaps where there are few blocks to a multiprocessor
    if conv.is_half and shape.run == 1 and not shape.transposes_rows:
        writing *= HALF_SECTORS
    if conv.in_runs or shape.transposes_rows:
        ends = SECTOR / conv.item_bytes / shape.run_columns / RUN_ENDS_TB_PER_S if shape.transposes_rows else 1.0 / UNALIGNED_TB_PER_S
        writing += ends * written * 1e-9 / machine.by_memory(1.0)
    launch = machine.by_launch(LAUNCH_MS)
    launches = launch + (0.0 if tile.resident else launch / 2)  # with that which packs the weights
    if conv.scaled:
        launches += launch  # that looks for tiles to compute once more, and samples of the input
    if tile.warpgroups:
        if not conv.in_runs and not shape.transposes_rows:
            writing *= max(1.0, NARROW_COLUMNS / shape.tile_sizes[2])
        return max(warpgroup_ms(shape, epilogue, work * crowd, rounds, machine) + writing, least) + launches
    small = SMALL_TILE if 4 * tile.channel_tiles * shape.fragments <= 64 and not conv.is_strict else 1.0
    few = FEW_WARPS if tile.threads * tile.blocks_per_sm < 512 else 1.0
    longer = small * split_products(shape, machine) * shared_reads(shape) * folded_products(shape, machine)
    product_ms = longer * 2e-9 * work * positions * shape.block_channels * shape.depth / machine.by_warp_mma(PRODUCT_TFLOPS)
    weights = 4 * work * shape.chunks * (shape.parts * shape.weight_stage if tile.weights == "staged" else 0)
    inputs = work * shape.chunks * shape.input_stage
    copied = machine.by_issue(COPY_TB_PER_S)  # as shared memory takes them
    staged_ms = (4 * inputs + weights) / copied * 1e-9
    if conv.packed_in > 1:  # as those of a warpgroup: through registers
        staged_ms = weights / copied * 1e-9 + inputs * HALVES_STAGED_MS / machine.by_issue(1.0)
    epilogue_ms = few * work * positions * shape.block_channels / 32 * element_slots(shape, epilogue, machine) / issue_per_ms(machine)
    steps = 0 if tile.alone else rounds * shape.chunks * shape.parts
    busy = (product_ms + epilogue_ms + staged_ms) * crowd + steps * STEP_MS / machine.by_clock(1.0)
    return max(busy + writing, least) + launches


def element_slots(shape: Layout, epilogue: Epilogue, machine: Machine) -> float:
    """Issue slots that one element of the convolution's output takes after its products."""
    reduce = {OverChannels: 7.0, OverPositions: 4.0}.get(type(epilogue.reduce), 2.0) + (2.0 if epilogue.stored else 0.0)
    special = machine.by_special(SPECIAL_SLOTS)
    return 2.0 + reduce + instructions(epilogue.before, special) + instructions(epilogue.between, special) / prod(shape.window)


def written_bytes(shape: Layout, epilogue: Epilogue, batch: int, out: Sequence[int]) -> float:
    if isinstance(epilogue.reduce, OverPositions) and not epilogue.stored:
        return 0  # partial results only
    rows = isinstance(epilogue.reduce, OverChannels) and not epilogue.reduce.keep
    channels = 1 if rows else shape.conv.out_channels
    return shape.conv.item_bytes * batch * prod(out) // prod(shape.window) * channels


def warpgroup_ms(shape: Layout, epilogue: Epilogue, work: float, rounds: float, machine: Machine) -> float:
    """Milliseconds by warpgroup MMA, without what is written."""
    tile, elements = shape.tile, work * prod(shape.tile_sizes) * shape.block_channels
    longer = instruction_loss(shape.instruction)
    product_ms = longer * 2e-9 * elements * shape.depth / machine.by_wgmma(WARPGROUP_TFLOPS)
    epilogue_ms = elements / 32 * element_slots(shape, epilogue, machine) / issue_per_ms(machine)
    staged_ms = work * shape.chunks * shape.input_stage * WARPGROUP_STAGED_MS / machine.by_issue(1.0)
    if tile.producers:
        places = -(-(shape.lead + shape.pitch) // 4)  # of four columns, in a row; 32 of them are a warp's
        cycles = shape.producer_rounds * (ROUND_CYCLES + LINE_CYCLES * (4 + 32 / places)) + STAGE_CYCLES
        filling_ms = rounds * shape.chunks * cycles / machine.by_clock(CYCLES_PER_MS)
        short, long = sorted((PRODUCED_OVERHEAD * product_ms, filling_ms))
        long += rounds * TILE_CYCLES / machine.by_clock(CYCLES_PER_MS)
        if tile.resident and shape.conv.is_half:
            packed = tile.blocks_per_sm * shape.chunks * shape.weight_stage
            long += packed * HALVES_PACKED_CYCLES / machine.by_clock(CYCLES_PER_MS)
        return long + (TWO_STAGES if tile.stages == 2 else MORE_STAGES) * short + WARPGROUP_OVERHEAD * epilogue_ms
    # What is loaded at one k-block is stored some k-blocks later; all products of a multiprocessor are made in between.
    copies = -(-shape.rounds // -(-shape.rounds // shape.k_blocks))  # in a step
    in_a_k_block = shape.conv.kernel[1] * tile.channel_tiles * 4 * prod(tile.fragments)  # cycles
    between = shape.k_blocks // copies * in_a_k_block * tile.threads // 128 * tile.blocks_per_sm
    waits_ms = max(0, WARPGROUP_LATENCY - between) * copies * shape.chunks * rounds / machine.by_clock(CYCLES_PER_MS)
    many = MANY_WARPS if tile.threads >= 512 else 1.0
    return many * (WARPGROUP_OVERHEAD * (product_ms + epilogue_ms) + staged_ms + waits_ms)
