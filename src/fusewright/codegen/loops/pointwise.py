"""Pointwise kernel: each thread computes VEC neighbouring elements of every output from whatever they depend on.

Where it reads through pools, or no vector fits, it computes ROWS elements instead, one below the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import axes_of, inputs_at, sure, tuple_key
from ...ir.expr import Expr, Grouped, Name, address, as_expr, either, element
from ...ir.expr import product as product_of
from ...ir.graph import Dim, Graph
from ...ir.index import Coordinate, LoopVariable, Tap
from ...ir.plan import Kernel, evaluated
from ...ir.prims import Coordinates, Pointwise, Prim, Window, arithmetic_type
from ...ir.stmt import Assign, Declare, Do, If, Return, Statement, array, const, when
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .evaluator import Evaluator, converted_to, each_lane
from .rows import COLUMN, ROW, Columns, Rows, in_a_run, lead, lying_along, pieces, reach, without
from .scope import LANE, Level
from .text import KernelText
from .walk import (
    BLOCK,
    SECTOR,
    THREAD,
    VECTOR_BYTES,
    Walk,
    accessed,
    c_product,
    counting,
    decode,
    grid_of,
    in_blocks,
    moved,
    stores_halves,
    thread_of,
    used,
    vector_conditions,
    vector_width,
    walk,
)
from .windows import either_way

THREADS = 256
LESS = 0.7  # of what memory moves otherwise: not timed
TILE_GROUPS = THREADS // 32  # vectors, one below the other, that a block takes of what is transposed: not timed
# H200, a 3x3 pool of 2048x224x224: 3.80 TB/s with 128 threads a block, 3.67 with 256. Of volumes, whose windows share more than a thread's
# rows and columns, larger blocks have more in common: a pool of 256x64x64x64 takes 0.0920 ms with 128 threads, 0.0903 with 256.
THREADS_OF_ROWS, THREADS_OF_VOLUMES = 128, 256
# Time against that of many rows, where nothing is shared. H200, pools of 2x2 by 2: 3.66, 4.14, 4.14 TB/s with 1, 2, 4 rows;
# of 4 by 2, along a line: 2.96, 3.75, 3.95.
ALONE = {1: 1.25, 2: 1.04, 3: 1.02, 4: 1.0}
MOST_LOADS, MOST_WORK = 96, 512  # of a thread: what is unrolled has to stay short enough to fetch
BYTES_A_CLOCK, WARP = 17, 32  # of an H200's memory for each multiprocessor: 4.2 TB/s, 132 of them at 1.85 GHz
BUSY = 0.5  # of the time that memory takes: from there on what caches take shows. H200: a 3x3x3 pool by 2, at 0.7, had 60 % of memory
MOST_IN_A_RUN = 16  # elements of a row that a thread holds
MOST_LOADS_OF_HALVES = 64  # which take conversions: of 81, for four rows of 3x3x3, ptxas spills a register


@dataclass(frozen=True)
class PointwiseSchedule(Schedule):
    loops: Walk
    width: int  # elements of a vector
    inner: int  # the dimension that neighbouring threads follow
    transposed: bool  # vectors lie along another dimension
    fits: bool  # vectors fill the innermost loop
    by_rows: bool  # a thread computes several rows
    columns: Columns | None = None  # and several elements of each


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> PointwiseSchedule | None:
    loops = walk(kernel, prims, graph)
    empty = 0 in [loop.size for loop in loops.kept]
    width = 1 if empty or not follows_lanes(kernel, prims, graph, loops) else width_of(kernel, prims, loops)
    inner = loops.kept[-1].dims[-1] if loops.kept else 0  # neighbouring threads follow it
    transposed = transposed_walk(kernel, prims, graph, loops) if width > 1 else None
    fits = width > 1 and (transposed is not None or graph.hint(loops.kept[-1].size) % width == 0)
    if not fits or mostly_one_by_one(kernel, prims, graph, loops):
        by_rows = with_rows(kernel, prims, graph, loops, resident(machine))
        if any(loop.step > 1 for loop in by_rows.kept):
            columns = columns_of(kernel, prims, graph, by_rows, machine)
            return PointwiseSchedule(kernel, prims, graph, machine, by_rows, 1, inner, False, fits, True, columns)
    if transposed is not None:
        loops, width = transposed, vector_width(kernel, prims, transposed.kept, SECTOR)
    return PointwiseSchedule(kernel, prims, graph, machine, loops, width, inner, transposed is not None, fits, False)


def resident(machine: Machine) -> int:
    """Threads that it holds at a time: with fewer, more elements for each of them gain nothing."""
    return machine.multiprocessors * machine.threads


def render(schedule: PointwiseSchedule, comment: list[str]) -> KernelText:
    kernel, prims, graph, loops = schedule.kernel, schedule.prims, schedule.graph, schedule.loops
    if schedule.by_rows:
        return rows_kernel(kernel, prims, loops, schedule.columns, comment)
    width, inner, fits = schedule.width, schedule.inner, schedule.fits
    axes = frozenset(loop.variable for loop in loops.kept)
    body, lanes = Level(axes), Level(axes | {LANE})
    evaluator = Evaluator(prims, kernel.loads, [body, lanes], vector=width > 1, fast=stores_halves(kernel, prims))
    number = Name("element")
    if not fits:
        evaluator.divisors, evaluator.counting = {}, counting(loops.kept, number)
    at, _ = loops.at(kernel, lane=width > 1)
    stores: list[tuple[str, Coordinate]] = []
    after: list[Statement] = []
    for name in kernel.stores:
        prim = prims[name]
        kind, offset = arithmetic_type(prim.dtype), prim.offset(at)
        result, into = evaluator.value(name, at), text.target(kernel, name)
        if width > 1 and LANE in offset.depends:
            out = evaluator.fresh(f"{name}_out")
            lane = element(Name(out), Name(LANE))
            body.body.append(array(kind, out, Name("VEC")))
            lanes.body.append(Assign(lane, result.expr))
            where = evaluator.offset(offset, without_lane=True)
            if any(axis.name == LANE and factor == 1 for axis, factor in offset.terms.items()):
                after.append(Do(fn.store(address(element(into, where)), Name(out))))
                stores.append((kernel.overwrites.get(name, name), offset))
            else:
                after.append(each_lane(Assign(element(into, evaluator.offset(offset)), text.to_memory(prim, lane))))
        else:
            assert LANE not in result.depends
            after.append(Assign(element(into, evaluator.offset(offset)), text.to_memory(prim, converted_to(result, prim))))
    written = [*body.body, *([each_lane(lanes.body)] if lanes.body else []), *after]

    total = c_product([loop.size for loop in loops.kept])
    variables = decode(loops.kept, number, evaluator)
    thread = thread_of(THREADS)
    position: list[Statement] = [
        const("Index", "element", Grouped(thread) * Name("VEC") if width > 1 else thread),
        If(number >= Name("elements"), Return()),
        *(variables if fits else used(variables, written)),
    ]
    setup = text.nothing_to_do("elements", total)
    extra, grid = ["elements"], in_blocks("elements", THREADS)
    if schedule.transposed and fills_tiles(loops, inner, width, graph):
        position, grid = in_tiles(loops, inner, evaluator)
        extra = []
    elif schedule.transposed:
        across = tuple(sorted(loops.kept, key=lambda loop: inner in loop.dims))
        position = [
            const("Index", "item", thread),
            If(Name("item") * Name("VEC") >= Name("elements"), Return()),
            *decode(across, Name("item"), evaluator, lanes=loops.kept[-1]),
        ]
    lanes_size: Dim = loops.kept[-1].size if loops.kept else 1
    conditions = vector_conditions(evaluator, stores, lanes_size, width, prims) if width > 1 else []
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        body=[*position, *written],
        threads=str(THREADS),
        extra=extra,
        width=width,
        conditions=conditions,
        setup=setup,
        grid=grid,
        block=as_expr(THREADS),
    )


def follows_lanes(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> bool:
    """No pool, and of values put at some place no edge that a vector may lie across; they are worth rows where vectors do not fit."""
    if text.has_pool(kernel, prims):
        return False
    if not loops.kept or not text.has_window(kernel, prims):
        return True
    lanes = set(map(LoopVariable, loops.kept[-1].dims))
    at, seen = tuple(map(Coordinate.of, axes_of(kernel.space))), set()
    stack = [(name, at) for name in kernel.stores]
    while stack:
        name, here = stack.pop()
        prim = prims[name]
        if name in kernel.loads or prim.is_load:
            if any(isinstance(variable, Tap) for axis in prim.offset(here).terms for variable in axis.axes):
                return False  # where it is read is computed from a tap
            continue
        if (name, tuple_key(here)) in seen:
            continue
        seen.add((name, tuple_key(here)))
        below = inputs_at(prims, prim, here)
        if isinstance(prim.op, Window):
            rank = len(prim.op.kernel)
            edges = zip((c.plain() for c in below[0][1][-rank:]), prims[prim.inputs[0]].shape[-rank:], strict=True)
            if any(lanes & c.depends and not all(sure(c, c, size)) for c, size in edges):
                return False
        stack += below
    width = width_of(kernel, prims, loops)
    return width > 1 and graph.hint(loops.kept[-1].size) % width == 0


def width_of(kernel: Kernel, prims: dict[str, Prim], loops: Walk) -> int:
    """Elements of a vector, none of those written wider than 16 bytes: two stores for one would each leave half of every sector.

    H200, two floats, an int64 and two bools made of two floats: 0.355 ms by 8, 0.234 by 4, 0.218 by 2; memory alone takes 0.208.
    """
    widest = max(prims[name].dtype.itemsize for name in kernel.stores)
    return min(vector_width(kernel, prims, loops.kept), max(1, VECTOR_BYTES // widest))


def transposed_walk(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> Walk | None:
    """With lanes along what is read, where that lies across what neighbouring threads follow, so that memory moves less: a transpose.

    A thread then takes a whole sector of it, and what lies along the other one is read and written an element at a time, which
    the threads of a warp do side by side.
    """
    inner, found = loops.kept[-1].dims[-1], accessed(kernel, prims, graph)
    long = [loop for loop in loops.kept if graph.hint(loop.size) >= SECTOR]
    if loops.kept[-1] not in long:
        return None
    best, transposed = LESS * moved([*found.read, *found.written], inner, graph), None
    for d in (loop.dims[-1] for loop in long[:-1]):
        along = [(p, o) for p, o in found.read if any(axis.name == LoopVariable(d) and sizes.is_one(f) for axis, f in o.terms.items())]
        across = [(p, o) for p, o in (*found.read, *found.written) if not any(o is other for _, other in along)]
        total = moved(along, d, graph) + moved(across, inner, graph)
        if along and total < best:
            best, transposed = total, d
    if transposed is None:
        return None
    found_walk = walk(kernel, prims, graph, along=transposed)
    return found_walk if vector_width(kernel, prims, found_walk.kept, SECTOR) > 1 else None


def fills_tiles(loops: Walk, inner: int, width: int, graph: Graph) -> bool:
    """Both ways are long enough that a block of a square piece has no fewer threads at work than one along a line."""
    along = next(loop for loop in loops.kept if inner in loop.dims)
    return graph.hint(along.size) >= THREADS and graph.hint(loops.kept[-1].size) >= 2 * TILE_GROUPS * width


def in_tiles(loops: Walk, inner: int, evaluator: Evaluator) -> tuple[list[Statement], Callable[[int], Expr]]:
    """Where a thread is, and how many blocks there are, each of a warp's width by TILE_GROUPS vectors.

    What lies across is then read a quarter of a kilobyte in a row by a block, instead of a sector.
    """
    along, lanes = next(loop for loop in loops.kept if inner in loop.dims), loops.kept[-1]
    others = tuple(loop for loop in loops.kept if loop not in (along, lanes))
    block, across, down = (Name(evaluator.fresh(name)) for name in ("block", "across", "down"))
    size, depth = evaluator.size(along.size), evaluator.size(lanes.size)
    rows, thread = TILE_GROUPS * Name("VEC"), THREAD
    downwards = (depth + rows - 1) / Grouped(rows)
    position = [
        const("Index", block.name, fn.static_cast.of("Index")(BLOCK)),
        Declare("Index", across.name, (size + (WARP - 1)) / WARP, how="const", also=((down.name, downwards),)),
        const("Index", along.variable, block % across * WARP + thread % WARP),
        const("Index", lanes.variable, (block / across % down * TILE_GROUPS + thread / WARP) * Name("VEC")),
        If(either(Name(along.variable) >= size, Name(lanes.variable) >= depth), Return()),
        *decode(others, Grouped(block / across / down), evaluator),
    ]

    def grid(width: int) -> Expr:
        span = TILE_GROUPS * width
        counts = [Grouped((c_product([along.size]) + (WARP - 1)) / WARP), Grouped((c_product([lanes.size]) + span - 1) / span)]
        return grid_of(product_of([*counts, *([c_product([loop.size for loop in others])] if others else [])]))

    return position, grid


def rows_kernel(
    kernel: Kernel, prims: dict[str, Prim], loops: Walk, columns: Columns | None, comment: list[str]
) -> KernelText:
    """Each thread computes the elements of several rows, all its loads under way together."""
    along = next(loop for loop in loops.kept if loop.step > 1)
    if columns is not None:
        loops = with_columns(loops, columns.count)
    threads = THREADS_OF_VOLUMES if shares_three_ways(kernel, prims) else THREADS_OF_ROWS
    axes = frozenset(loop.variable for loop in loops.kept)
    body, below = Level(axes), Level(axes | {ROW, COLUMN}, array=True)
    rows = Rows(along.step, along.variable, along.size, columns)
    evaluator = Evaluator(prims, kernel.loads, [body, below], vector=False, rows=rows, fast=stores_halves(kernel, prims))
    if not text.has_pool(kernel, prims):
        evaluator.divisors = {}
    if not isinstance(along.steps, int) and along is not loops.kept[0]:
        evaluator.named_sizes[along.steps] = evaluator.fresh("row_groups")
    if columns is not None and not isinstance(loops.kept[-1].steps, int):
        evaluator.named_sizes[loops.kept[-1].steps] = evaluator.fresh("column_groups")
    at, _ = loops.at(kernel, lane=False)
    there = evaluator.exists()
    for name in kernel.stores:
        prim = prims[name]
        result = text.to_memory(prim, converted_to(evaluator.value(name, at), prim))
        stored = Assign(element(text.target(kernel, name), evaluator.offset(prim.offset(at))), result)
        below.body += evaluator.each_lane([when(there, stored)])
    if rows.ragged:
        evaluator.whole.insert(0, Name(along.variable) + Name("ROWS") <= evaluator.size(along.size))
    lines = either_way(below.body, evaluator.whole, evaluator.fresh("compute")) if evaluator.whole else below.body
    counts = [Declare("int", "ROWS", as_expr(along.step), how="constexpr", note=f"that a thread computes, along {along.variable}")]
    if columns is not None:
        note = f"of each, along {columns.along}"
        counts.append(Declare("int", "COLUMNS", as_expr(columns.count), how="constexpr", note=note))
    position = [
        *counts,
        const("Index", "group", thread_of(threads)),
        If(Name("group") >= Name("groups"), Return()),
        *decode(loops.kept, Name("group"), evaluator),
    ]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        body=[*position, *body.body, *lines],
        threads=str(threads),  # as many registers as ptxas likes: with all loads under way at once none of six was quicker
        extra=["groups"],
        width=columns.vector if columns is not None else 1,
        conditions=list(dict.fromkeys(evaluator.run_conditions)),
        setup=text.nothing_to_do("groups", c_product([loop.steps for loop in loops.kept])),
        grid=lambda _: fn.ceil_div(Name("groups"), threads),
        block=as_expr(threads),
    )


def shares_three_ways(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """Neighbouring windows overlap in more dimensions than a thread's rows and columns run along."""
    windows = [prims[name].op for name in evaluated(kernel, prims) if isinstance(prims[name].op, Window)]
    return any(sum(k > step for k, step in zip(op.kernel, op.stride, strict=True)) > 2 for op in windows)


# ---- how many rows, and along which loop


def mostly_one_by_one(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> bool:
    """Most of what it reads along the innermost loop comes from where a computation says, which no vector follows."""
    inner = loops.kept[-1].variable
    read = [offset for _, offset in accessed(kernel, prims, graph).read if inner in offset.depends]
    hidden = [offset for offset in read if any(axis.name != inner and inner in axis.depends for axis in offset.terms)]
    return 2 * len(hidden) > len(read)


@dataclass(frozen=True)
class Pool:
    """A window of a kernel: where it lies in the kernel's space, and what one tap takes."""

    op: Window
    at: Coordinates
    read: list[tuple[Prim, Coordinates]]
    cost: int

    @property
    def reads(self) -> int:
        return len(self.read)

    def read_along(self, dim: int) -> list[tuple[Prim, Coordinates]]:
        """What is not the same at every tap along a dimension."""
        return [(prim, at) for prim, at in self.read if any(Tap(dim) in c.depends for c in at)]

    def taps(self, along: str, rows: int) -> int:
        """Taps that a thread takes for its rows along a loop."""
        kernel = self.op.kernel
        for dim, coordinate in enumerate(self.at[-len(kernel) :]):
            if along in coordinate.depends:
                own = min(reach(self.op, dim, rows, self.op.stride[dim]), rows * kernel[dim])
                return math.prod(kernel) // kernel[dim] * own
        return math.prod(kernel) * rows


@dataclass(frozen=True)
class Work:
    """What computing an element takes: its pools, and what is read and computed beside them."""

    pools: list[Pool]
    read: list[tuple[Prim, Coordinates]]
    cost: int
    windows: list[Window]  # of all kinds, at any depth

    @property
    def reads(self) -> int:
        return len(self.read)


def work_of(prims: dict[str, Prim], leaves: set[str], roots: list[tuple[str, Coordinates]]) -> Work:
    """Of all roots together, each value at each place once."""
    pools: list[Pool] = []
    read: list[tuple[Prim, Coordinates]] = []
    windows: list[Window] = []
    cost, seen = 0, set()
    stack = list(roots)
    while stack:
        name, at = stack.pop()
        prim, key = prims[name], (name, tuple_key(at))
        if key in seen:
            continue
        seen.add(key)
        if isinstance(prim.op, Window) and name not in leaves:
            windows.append(prim.op)
        if name in leaves or prim.is_load:
            read.append((prim, at))
        elif isinstance(prim.op, Window) and math.prod(prim.op.kernel) > 1:
            tap = work_of(prims, leaves, inputs_at(prims, prim, at))
            pools.append(Pool(prim.op, at, tap.read, tap.cost))
            windows += tap.windows
        else:
            cost += prim.op.cost if isinstance(prim.op, Pointwise) else 0
            stack += inputs_at(prims, prim, at)
    return Work(pools, read, cost, windows)


def with_columns(loops: Walk, count: int) -> Walk:
    """The walk with several elements side by side to a thread, along the innermost loop."""
    return replace(loops, kept=(*loops.kept[:-1], replace(loops.kept[-1], step=count, counted=COLUMN)))


def columns_of(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk, machine: Machine) -> Columns | None:
    """Elements side by side for each thread of a walk by rows, where loads of single elements would keep its caches busy for long.

    A load of a warp takes a clock of the first-level cache for every 128 bytes from its first element to its last. Single loads
    are as many as a window has taps, each as far apart as the windows; what a thread reads of a row for several windows is a few.
    """
    along = next(loop for loop in loops.kept if loop.step > 1)
    elements = graph.hint(sizes.product(loop.size for loop in loops.kept))
    moved_bytes = sum(graph.hint(sizes.product(prims[n].shape)) * prims[n].dtype.itemsize for n in (*kernel.loads, *kernel.stores))
    best, found = cache_clocks(kernel, prims, loops, None), None
    bytes_a_clock = machine.by_memory(BYTES_A_CLOCK) / machine.by_issue(1.0)
    if along is loops.kept[-1] or best < BUSY * WARP * moved_bytes / elements / bytes_a_clock:
        return None
    for count in (2, 4):
        columns = vectors_of(kernel, prims, loops, count)
        if columns is None or elements // (along.step * count) < resident(machine):
            continue
        clocks = cache_clocks(kernel, prims, loops, columns)
        if clocks < best:
            best, found = clocks, columns
    return found


def vectors_of(kernel: Kernel, prims: dict[str, Prim], loops: Walk, count: int) -> Columns | None:
    """So many elements side by side, where all that the kernel's pools read along them lies so too."""
    at, _ = with_columns(loops, count).at(kernel, lane=False)
    work = work_of(prims, set(kernel.loads), [(name, at) for name in kernel.stores])
    if len(work.windows) > len(work.pools):
        return None  # pools of pools, values put at some place
    if len(loops.kept[-1].dims) > 1:
        return None  # a run ends where its line does, and this loop goes on in the next
    whole: list[Dim] = []  # what vectors have to divide,
    most = MOST_IN_A_RUN  # and how long they may be
    for pool in work.pools:
        last = len(pool.op.kernel) - 1
        beside = lying_along(pool.op, pool.at, COLUMN)
        if beside is None or beside.dim != last or reach(pool.op, last, count, beside.step) > MOST_IN_A_RUN:
            return None
        for prim, where in pool.read_along(last):
            if not in_a_run(prim, where, Tap(last)):
                return None
            whole += [count * beside.step, prim.shape[-1]]
            most = min(most, 16 // prim.dtype.itemsize)
    vector = math.gcd(most, *(size for size in whole if isinstance(size, int)))
    return Columns(count, loops.kept[-1].variable, loops.kept[-1].size, vector) if whole and vector > 1 else None


def cache_clocks(kernel: Kernel, prims: dict[str, Prim], loops: Walk, columns: Columns | None) -> float:
    """Clocks that the first-level cache takes for what a warp computes of one element for each thread."""
    along, count = next(loop for loop in loops.kept if loop.step > 1), columns.count if columns is not None else 1
    at, _ = (with_columns(loops, count) if columns is not None else loops).at(kernel, lane=False)
    work = work_of(prims, set(kernel.loads), [(name, at) for name in kernel.stores])

    def clocks(prim: Prim, step: int) -> float:
        """Of a load or a store whose elements lie so far apart."""
        return max(1.0, WARP * step * count * prim.dtype.itemsize / 128)

    total = sum(clocks(prim, 1) for prim in [*(prim for prim, _ in work.read), *(prims[name] for name in kernel.stores)])
    for pool in work.pools:
        last = len(pool.op.kernel) - 1
        lines = pool.taps(along.variable, along.step) / along.step / pool.op.kernel[last]
        for prim, where in pool.read_along(last):
            loads = pool.op.kernel[last]
            if columns is not None:
                run = reach(pool.op, last, count, pool.op.stride[last])
                ahead = lead(without(without(where[-1], Tap(last)), COLUMN), columns)
                loads = run if ahead is None else pieces(ahead, run, columns.vector)
            total += lines * loads * clocks(prim, pool.op.stride[last]) / count
    return total


def with_rows(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk, resident: int) -> Walk:
    """The walk with several rows to a thread along one of its loops, where that reads less or keeps more loads under way.

    Not along the innermost one, which neighbouring threads follow, and not where threads would be too few to fill a GPU.
    """
    at, _ = loops.at(kernel, lane=False)
    work = work_of(prims, set(kernel.loads), [(name, at) for name in kernel.stores])
    elements = graph.hint(sizes.product(loop.size for loop in loops.kept))
    if not elements:
        return loops
    pooled = {variable for pool in work.pools for c in pool.at[-len(pool.op.kernel) :] for variable in c.depends}
    candidates = [loop for loop in loops.kept[:-1] if loop.variable in pooled] or list(loops.kept[-2:-1])
    most = MOST_LOADS_OF_HALVES if any(prims[name].dtype.itemsize < 4 for name in kernel.loads) else MOST_LOADS
    best, found = math.inf, loops
    for loop in candidates:
        for rows in (4, 3, 2, 1):
            taps = [(pool, pool.taps(loop.variable, rows)) for pool in work.pools]
            loads = sum(count * pool.reads for pool, count in taps) + rows * work.reads
            instructions = loads + sum(count * pool.cost for pool, count in taps) + rows * work.cost
            size = graph.hint(loop.size)
            groups = -(-size // rows)
            fits = loads <= most and instructions <= MOST_WORK and elements // size * groups >= resident
            time = ALONE[rows] * loads * groups / size
            if time < best and (fits or rows == 1):
                kept = tuple(replace(other, step=rows) if other is loop else other for other in loops.kept)
                best, found = time, replace(loops, kept=kept)
    return found


TEMPLATE = KernelTemplate("pointwise", match, render)
