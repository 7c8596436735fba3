"""Transposing kernel: pointwise, from tensors that lie in one order in memory to tensors that lie in another.

A block takes a tile of channels and positions. What lies across the way it writes is first read along its own way, into shared
memory: every access to memory is then one to neighbouring elements. Where a pool reads around each element, results take that
way instead of what is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import accesses, axes_of, same_shape, tuple_key
from ...ir.expr import Grouped, Name, as_expr, both, either, element, product, select
from ...ir.graph import Dim, Graph
from ...ir.index import Coordinate
from ...ir.plan import Kernel
from ...ir.prims import C_TYPES, Prim, Window, arithmetic_type
from ...ir.stmt import Assign, Continue, Declare, Do, For, If, Statement, array, block, const, counted
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .evaluator import Evaluator, converted_to, in_arithmetic
from .scope import Level, pointer
from .text import KernelText
from .walk import BLOCK, THREAD, Loop, accessed, c_product, decode, grid_of, moved, stores_halves

TILE, THREADS = 32, 256  # elements along each side of a tile; where channels are fewer, as many more positions
MANY = 8  # loads of a thread that are under way together, where shared memory for as many positions more is there
SHARED = 36 * 1024  # bytes of a block up to which it is
MOST = 8  # tensors that go through shared memory: 4 KiB each, and a little
FEWEST_CHANNELS = 8  # below that most of a tile would be empty
LESS = 0.7  # of what memory moves otherwise: not timed
TAPS = 32  # reads of a thread for its elements of a tile, up to which they are written out side by side


def fits(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> bool:
    """It writes tensors of its own size, all in the same order, and a tile has enough to do."""
    if not kernel.is_pointwise or kernel.overwrites or len(kernel.space) < 3:
        return False
    whole = all(same_shape(prims[name].shape, kernel.space) for name in kernel.stores)
    one_order = len({prims[name].channels_last for name in kernel.stores}) == 1
    return whole and one_order and fills_tiles(kernel.space, graph)


def fills_tiles(shape: tuple[Dim, ...], graph: Graph) -> bool:
    return graph.hint(sizes.product(shape[2:])) >= TILE and graph.hint(shape[1]) >= FEWEST_CHANNELS


def transposed_loads(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> list[str]:
    """Tensors of the kernel's size that lie the other way than all it writes; none where this template does not fit."""
    if not fits(kernel, prims, graph) or text.has_window(kernel, prims):
        return []
    written = {prims[name].channels_last for name in kernel.stores}
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    leaves = set(kernel.loads)
    reads = [access for name in kernel.stores for access in accesses(prims, name, at, leaves, inside=True)]
    found = [
        name
        for name in dict.fromkeys(kernel.loads)
        if prims[name].channels_last not in written
        and same_shape(prims[name].shape, kernel.space)
        and {tuple_key(access.at) for access in reads if access.leaf == name} == {tuple_key(at)}
    ]
    small = all(prims[name].dtype.itemsize <= 4 for name in found)
    return found if small and len(found) <= MOST else []


def turns_results(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> bool:
    """Memory moves less where threads follow what is read, and results are transposed before they are written."""
    small = len(kernel.stores) <= MOST and all(prims[name].dtype.itemsize <= 4 for name in kernel.stores)
    if not small or not any(prims[name].channels_last for name in (*kernel.loads, *kernel.stores)):
        return False
    if not fits(kernel, prims, graph) or transposed_loads(kernel, prims, graph):
        return False
    found = accessed(kernel, prims, graph)
    inner = max(d for d, size in enumerate(kernel.space) if not sizes.is_one(size))
    along, across = (1, inner) if prims[kernel.stores[0]].channels_last else (inner, 1)
    read, written = found.read, found.written
    straight = min(moved([*read, *written], way, graph) for way in (along, across))
    return moved(read, across, graph) + moved(written, along, graph) < LESS * straight


def taps(kernel: Kernel, prims: dict[str, Prim]) -> int:
    """How often the largest pool of a kernel reads for one element."""
    most, stack, seen = 1, list(kernel.stores), set()
    while stack:
        name = stack.pop()
        if name in seen or name in kernel.loads:
            continue
        seen.add(name)
        op = prims[name].op
        most = max(most, math.prod(op.kernel) if isinstance(op, Window) else 1)
        stack += prims[name].inputs
    return most


def sides(channels: int, area: int) -> tuple[int, int]:
    """How many channels and how many positions a tile has."""
    across = next((side for side in (8, 16) if channels <= side), TILE)
    return across, area // across


@dataclass(frozen=True)
class TransposeSchedule(Schedule):
    loads: list[str]  # that go through shared memory; none: results do


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> TransposeSchedule | None:
    loads = transposed_loads(kernel, prims, graph)
    return TransposeSchedule(kernel, prims, graph, machine, loads) if loads or turns_results(kernel, prims, graph) else None


def render(schedule: TransposeSchedule, comment: list[str]) -> KernelText:
    kernel, prims, graph, loads = schedule.kernel, schedule.prims, schedule.graph, schedule.loads
    batch, channels, *spatial = kernel.space
    axes = axes_of(kernel.space)
    body = Level(frozenset(axis.name for axis in axes))
    evaluator = Evaluator(prims, kernel.loads, [body], vector=False, fast=stores_halves(kernel, prims))
    at = tuple(map(Coordinate.of, axes))
    positions = sizes.product(spatial)
    channels_last = prims[kernel.stores[0]].channels_last
    along, across = (channels, positions) if channels_last else (positions, channels)
    words = sum(prims[name].dtype.itemsize for name in loads)
    area = THREADS * MANY if loads and THREADS * MANY * 17 // 16 * words <= SHARED else TILE * TILE
    wide, deep = sides(graph.hint(channels), area)[:: 1 if channels_last else -1]
    length, depth = evaluator.size(along), evaluator.size(across)
    names = "tiles layers block first top n j k a b u".split()
    tiles, layers, block_, first, top, n, j, k, a, b, u = (Name(evaluator.fresh(name)) for name in names)
    i0 = Name("i0")

    tile = {name: evaluator.fresh(f"{name}_tile") for name in loads or kernel.stores}
    in_tile = {name: element(Name(found), k, j) for name, found in tile.items()}
    evaluator.results |= {name: in_arithmetic(prims[name], in_tile[name]) for name in loads}
    value = {name: text.to_memory(prims[name], converted_to(evaluator.value(name, at), prims[name])) for name in kernel.stores}
    channel, position = (a, b) if channels_last else (b, a)
    loops = tuple(Loop((d,), kernel.space[d]) for d in range(2, len(kernel.space)))
    computed = [const("Index", "i1", channel), *decode(loops, position, evaluator), *body.body]
    target = {name: element(Name(pointer(name)), (i0 * depth + b) * length + a) for name in kernel.stores}
    if loads:
        written = [*computed, *(Assign(target[name], value[name]) for name in kernel.stores)]
    else:
        written = [Assign(target[name], in_tile[name]) for name in kernel.stores]
    side_by_side = bool(loads) or taps(kernel, prims) * (area // THREADS) <= TAPS
    where = Declare("Index", a.name, first + j, how="const", also=((b.name, top + k),))
    outside = If(either(a >= length, b >= depth), Continue())
    along_read = Declare("int", k.name, n % deep, how="const", also=((j.name, n / deep),), note="along what is read")
    along_written = Declare("int", j.name, n % wide, how="const", also=((k.name, n / wide),), note="along what is written")

    def every(statements: Sequence[Statement], unroll: bool | int) -> Statement:
        start, further = Declare("int", n.name, THREAD), Assign(n, as_expr(THREADS), "+=")
        return For(start, n < area, further, block(statements), unroll)

    gathering: list[Statement]
    if loads:  # all are under way before the first of them is put down
        held = {name: evaluator.fresh(f"{name}_held") for name in loads}
        places = {name: evaluator.in_steps(prims[name], (i0 * length + a) * depth + b) for name in loads}
        source = {name: element(Name(pointer(name)), place) for name, place in places.items()}
        here, there = const("int", n.name, THREAD + u * THREADS), both(a < length, b < depth)
        gathered, put = list[Statement](), list[Statement]()
        for name in loads:
            nothing = text.to_memory(prims[name], fn.static_cast.of(arithmetic_type(prims[name].dtype))(0))
            gathered.append(Assign(element(Name(held[name]), u), select(there, source[name], nothing)))
            put.append(Assign(in_tile[name], element(Name(held[name]), u)))
        gathering = [
            *(array(C_TYPES[prims[name].dtype], held[name], area // THREADS) for name in loads),
            counted(u.name, area // THREADS, [here, along_read, where, *gathered]),
            counted(u.name, area // THREADS, [here, along_read, *put]),
        ]
    else:
        gathered = [*computed, *(Assign(in_tile[name], value[name]) for name in kernel.stores)]
        gathering = [every([along_read, where, outside, *gathered], True if side_by_side else 1)]
    rounded_up = (length + (wide - 1)) / wide, (depth + (deep - 1)) / deep
    statements = [
        Declare("Index", tiles.name, rounded_up[0], how="const", also=((layers.name, rounded_up[1]),)),
        const("Index", block_.name, fn.static_cast.of("Index")(BLOCK)),
        Declare("Index", first.name, block_ % tiles * wide, how="const", also=((top.name, block_ / tiles % layers * deep),)),
        const("Index", "i0", block_ / tiles / layers),
        *(array(C_TYPES[prims[name].dtype], found, deep, wide + 1, how="__shared__") for name, found in tile.items()),
        *gathering,
        Do(fn.sync_threads()),
        every([along_written, where, outside, *written], True),
    ]
    counts = [Grouped((c_product([size]) + (side - 1)) / side) for size, side in ((along, wide), (across, deep))]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        body=statements,
        threads=str(THREADS) if side_by_side else f"{THREADS}, 2",  # else ptxas aims at 32 registers, and spills
        extra=[],
        width=1,
        conditions=[],
        setup=text.nothing_to_do("blocks", product([c_product([batch]), *counts])),
        grid=lambda _: grid_of(Name("blocks")),
        block=as_expr(THREADS),
    )


TEMPLATE = KernelTemplate("transposed", match, render)
