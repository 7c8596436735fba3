"""Pointwise kernel: each thread computes VEC neighbouring elements of every output from whatever they depend on.

Where it reads through pools, or no vector fits, it computes ROWS elements instead, one below the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .. import sizes
from ..access import inputs_at, tuple_key
from ..graph import Dim, Graph
from ..index import Coordinate
from ..plan import Kernel
from ..prims import Coordinates, Pointwise, Prim, Window, arithmetic_type
from . import text
from .expression import LANE, Evaluator, Level, converted_to, either_way, indent
from .loops import SECTOR, Walk, accessed, c_product, decode, moved, vector_conditions, vector_width, walk
from .rows import ROW, Rows, reach
from .text import KernelText

THREADS = 256
LESS = 0.7  # of what memory moves otherwise: not timed
THREADS_OF_ROWS = 128  # H200, a 3x3 pool of 2048x224x224: 3.80 TB/s with 128 threads a block, 3.67 with 256
RESIDENT = 132 * 2048  # threads that an H200 holds at a time: with fewer, more elements for each of them gain nothing
# Time against that of many rows, where nothing is shared. H200, pools of 2x2 by 2: 3.66, 4.14, 4.14 TB/s with 1, 2, 4 rows;
# of 4 by 2, along a line: 2.96, 3.75, 3.95.
ALONE = {1: 1.25, 2: 1.04, 3: 1.02, 4: 1.0}
MOST_LOADS, MOST_WORK = 96, 512  # of a thread: what is unrolled has to stay short enough to fetch
MOST_LOADS_OF_HALVES = 64  # which take conversions: of 81, for four rows of 3x3x3, ptxas spills a register


def pointwise_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    loops = walk(kernel, prims, graph)
    has_window = text.has_window(kernel, prims)
    width = 1 if has_window else vector_width(kernel, prims, loops.kept)
    inner = loops.kept[-1].dims[-1] if loops.kept else 0  # neighbouring threads follow it
    if width == 1 or mostly_one_by_one(kernel, prims, graph, loops):
        by_rows = with_rows(kernel, prims, graph, loops)
        if any(loop.step > 1 for loop in by_rows.kept):
            return rows_kernel(kernel, prims, by_rows, comment)
    turned = turned_walk(kernel, prims, graph, loops) if width > 1 else None
    if turned is not None:
        loops, width = turned, vector_width(kernel, prims, turned.kept, SECTOR)
    axes = frozenset(loop.variable for loop in loops.kept)
    body, lanes = Level(axes), Level(axes | {LANE})
    evaluator = Evaluator(prims, kernel.loads, [body, lanes], vector=width > 1)
    at, _ = loops.at(kernel, lane=width > 1)
    stores: list[tuple[str, Coordinate]] = []
    after: list[str] = []
    for name in kernel.stores:
        prim = prims[name]
        kind, offset = arithmetic_type(prim.dtype), prim.offset(at)
        result = evaluator.value(name, at)
        if width > 1 and LANE in offset.depends:
            out = evaluator.fresh(f"{name}_out")
            body.lines.append(f"{kind} {out}[VEC];")
            lanes.lines.append(f"{out}[{LANE}] = {result.text};")
            where = evaluator.offset(offset, without_lane=True)
            if any(axis.text == LANE and factor == 1 for axis, factor in offset.terms.items()):
                after.append(f"store(&{text.target(kernel, name)}[{where}], {out});")
                stores.append((kernel.overwrites.get(name, name), offset))
            else:
                after += [
                    "#pragma unroll",
                    f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {text.target(kernel, name)}[{evaluator.offset(offset)}] = {text.to_memory(prim, f'{out}[{LANE}]')};",  # noqa: E501
                ]
        else:
            body_or_lane = lanes if LANE in result.depends else body
            assert body_or_lane is body
            after.append(
                f"{text.target(kernel, name)}[{evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
            )
    lines = list(body.lines)
    if lanes.lines:
        lines += ["#pragma unroll", f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {{", *indent(lanes.lines), "}"]
    lines += after

    total = c_product([loop.size for loop in loops.kept])
    element = "element"
    thread = f"static_cast<Index>(blockIdx.x) * {THREADS} + threadIdx.x"
    position = [
        f"const Index {element} = ({thread}) * VEC;" if width > 1 else f"const Index {element} = {thread};",
        f"if ({element} >= elements) return;",
        *decode(loops.kept, element, evaluator),
    ]
    if turned is not None:
        position = [
            f"const Index item = {thread};",
            "if (item * VEC >= elements) return;",
            *decode(tuple(sorted(loops.kept, key=lambda loop: inner in loop.dims)), "item", evaluator, lanes=loops.kept[-1]),
        ]
    lanes_size: Dim = loops.kept[-1].size if loops.kept else 1
    conditions = vector_conditions(evaluator, stores, lanes_size, width, prims) if width > 1 else []
    setup = [f"const long long elements = {total};", "if (elements == 0) return nullptr;"]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        lines=[*position, *lines],
        threads=str(THREADS),
        extra=[("Index", "elements")],
        width=width,
        conditions=conditions,
        setup=setup,
        grid="dim3(static_cast<unsigned>((elements + {span} - 1) / {span}))",
        block=f"dim3({THREADS})",
        span=THREADS,
    )


def turned_walk(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> Walk | None:
    """With lanes along what is read, where that lies across what neighbouring threads follow, so that memory moves less: a transpose.

    A thread then takes a whole sector of it, and what lies along the other one is read and written an element at a time, which
    the threads of a warp do side by side.
    """
    inner, found = loops.kept[-1].dims[-1], accessed(kernel, prims, graph)
    long = [loop for loop in loops.kept if graph.hint(loop.size) >= SECTOR]
    if loops.kept[-1] not in long:
        return None
    best, turned = LESS * moved([*found.read, *found.written], inner, graph), None
    for d in (loop.dims[-1] for loop in long[:-1]):
        along = [(p, o) for p, o in found.read if any(axis.text == f"i{d}" and sizes.is_one(f) for axis, f in o.terms.items())]
        across = [(p, o) for p, o in (*found.read, *found.written) if not any(o is other for _, other in along)]
        total = moved(along, d, graph) + moved(across, inner, graph)
        if along and total < best:
            best, turned = total, d
    if turned is None:
        return None
    found_walk = walk(kernel, prims, graph, along=turned)
    return found_walk if vector_width(kernel, prims, found_walk.kept, SECTOR) > 1 else None


def rows_kernel(kernel: Kernel, prims: dict[str, Prim], loops: Walk, comment: list[str]) -> KernelText:
    """Each thread computes the elements of several rows, all its loads under way together."""
    along = next(loop for loop in loops.kept if loop.step > 1)
    axes = frozenset(loop.variable for loop in loops.kept)
    body, below = Level(axes), Level(axes | {ROW}, array=True)
    rows = Rows(along.step, along.variable, along.size)
    evaluator = Evaluator(prims, kernel.loads, [body, below], vector=False, rows=rows)
    if not isinstance(along.steps, int) and along is not loops.kept[0]:
        evaluator.named_sizes[along.steps] = evaluator.fresh("row_groups")
    at, _ = loops.at(kernel, lane=False)
    there = evaluator.row_exists()
    for name in kernel.stores:
        prim = prims[name]
        result = text.to_memory(prim, converted_to(evaluator.value(name, at), prim))
        stored = f"{text.target(kernel, name)}[{evaluator.offset(prim.offset(at))}] = {result};"
        below.lines += evaluator.each_lane([f"if ({there}) {stored}" if there else stored])
    if there:
        evaluator.whole.insert(0, f"{along.variable} + ROWS <= {evaluator.size(along.size)}")
    lines = either_way(below.lines, evaluator.whole, evaluator.fresh("compute")) if evaluator.whole else below.lines
    position = [
        f"constexpr int ROWS = {along.step};  // that a thread computes, along {along.variable}",
        f"const Index group = static_cast<Index>(blockIdx.x) * {THREADS_OF_ROWS} + threadIdx.x;",
        "if (group >= groups) return;",
        *decode(loops.kept, "group", evaluator),
    ]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        lines=[*position, *body.lines, *lines],
        threads=str(THREADS_OF_ROWS),  # as many registers as ptxas likes: with all loads under way at once none of six was quicker
        extra=[("Index", "groups")],
        width=1,
        conditions=[],
        setup=[
            f"const long long groups = {c_product([loop.steps for loop in loops.kept])};",
            "if (groups == 0) return nullptr;",
        ],
        grid="dim3(static_cast<unsigned>((groups + {span} - 1) / {span}))",
        block=f"dim3({THREADS_OF_ROWS})",
        span=THREADS_OF_ROWS,
    )


# ---- how many rows, and along which loop


def mostly_one_by_one(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> bool:
    """Most of what it reads along the innermost loop comes from where a computation says, which no vector follows."""
    inner = loops.kept[-1].variable
    read = [offset for _, offset in accessed(kernel, prims, graph).read if inner in offset.depends]
    hidden = [offset for offset in read if any(axis.text != inner and inner in axis.depends for axis in offset.terms)]
    return 2 * len(hidden) > len(read)


@dataclass(frozen=True)
class Pool:
    """A window of a kernel: where it lies in the kernel's space, and what one tap takes."""

    op: Window
    at: Coordinates
    reads: int
    cost: int

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
    reads: int
    cost: int


def work_of(prims: dict[str, Prim], leaves: set[str], roots: list[tuple[str, Coordinates]]) -> Work:
    """Of all roots together, each value at each place once."""
    pools: list[Pool] = []
    reads, cost, seen = 0, 0, set()
    stack = list(roots)
    while stack:
        name, at = stack.pop()
        prim, key = prims[name], (name, tuple_key(at))
        if key in seen:
            continue
        seen.add(key)
        if name in leaves or prim.is_load:
            reads += 1
        elif isinstance(prim.op, Window) and math.prod(prim.op.kernel) > 1:
            tap = work_of(prims, leaves, inputs_at(prims, prim, at))
            pools.append(Pool(prim.op, at, tap.reads, tap.cost))
        else:
            cost += prim.op.cost if isinstance(prim.op, Pointwise) else 0
            stack += inputs_at(prims, prim, at)
    return Work(pools, reads, cost)


def with_rows(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> Walk:
    """The walk with several rows to a thread along one of its loops, where that reads less or keeps more loads under way.

    Not along the innermost one, which neighbouring threads follow, and not where threads would be too few to fill a GPU.
    """
    at, _ = loops.at(kernel, lane=False)
    work = work_of(prims, set(kernel.loads), [(name, at) for name in kernel.stores])
    elements = graph.hint(sizes.product(loop.size for loop in loops.kept))
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
            fits = loads <= most and instructions <= MOST_WORK and elements // size * groups >= RESIDENT
            time = ALONE[rows] * loads * groups / size
            if time < best and (fits or rows == 1):
                kept = tuple(replace(other, step=rows) if other is loop else other for other in loops.kept)
                best, found = time, replace(loops, kept=kept)
    return found
