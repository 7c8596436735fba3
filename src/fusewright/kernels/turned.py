"""Turning kernel: pointwise, from tensors that lie one way in memory to tensors that lie the other way.

A block takes a tile of channels and positions. What lies across the way it writes is first read along its own way, into shared
memory: every access to memory is then one to neighbouring elements. Where a pool reads around each element, results take that
way instead of what is read.
"""

from __future__ import annotations

import math

from .. import sizes
from ..access import accesses, axes_of, same_shape, tuple_key
from ..graph import Dim, Graph
from ..index import Axis, Coordinate
from ..plan import Kernel
from ..prims import C_TYPES, Prim, Window, arithmetic_type
from . import text
from .expression import Evaluator, Level, converted_to, indent, pointer
from .loops import Loop, accessed, c_product, decode, moved
from .text import KernelText

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


def turned_loads(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> list[str]:
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
    """Memory moves less where threads follow what is read, and results are turned before they are written."""
    small = len(kernel.stores) <= MOST and all(prims[name].dtype.itemsize <= 4 for name in kernel.stores)
    if not small or not any(prims[name].channels_last for name in (*kernel.loads, *kernel.stores)):
        return False
    if not fits(kernel, prims, graph) or turned_loads(kernel, prims, graph):
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


def turned_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    batch, channels, *spatial = kernel.space
    axes = [Axis(f"i{d}", size) for d, size in enumerate(kernel.space)]
    body = Level(frozenset(axis.text for axis in axes))
    evaluator = Evaluator(prims, kernel.loads, [body], vector=False)
    at = tuple(map(Coordinate.of, axes))
    positions = sizes.product(spatial)
    channels_last = prims[kernel.stores[0]].channels_last
    along, across = (channels, positions) if channels_last else (positions, channels)
    loads = turned_loads(kernel, prims, graph)
    words = sum(prims[name].dtype.itemsize for name in loads)
    area = THREADS * MANY if loads and THREADS * MANY * 17 // 16 * words <= SHARED else TILE * TILE
    wide, deep = sides(graph.hint(channels), area)[:: 1 if channels_last else -1]
    length, depth = evaluator.size(along), evaluator.size(across)
    names = "tiles layers block first top n j k a b u".split()
    tiles, layers, block, first, top, n, j, k, a, b, u = map(evaluator.fresh, names)

    tile = {name: evaluator.fresh(f"{name}_tile") for name in loads or kernel.stores}
    for name in loads:
        kind, here = arithmetic_type(prims[name].dtype), f"{tile[name]}[{k}][{j}]"
        evaluator.results[name] = here if C_TYPES[prims[name].dtype] == kind else f"to_arithmetic<{kind}>({here})"
    value = {name: text.to_memory(prims[name], converted_to(evaluator.value(name, at), prims[name])) for name in kernel.stores}
    channel, position = (a, b) if channels_last else (b, a)
    loops = tuple(Loop((d,), kernel.space[d]) for d in range(2, len(kernel.space)))
    element = [f"const Index i1 = {channel};", *decode(loops, position, evaluator), *body.lines]
    target = f"[(i0 * {depth} + {b}) * {length} + {a}]"
    if loads:
        held = {name: evaluator.fresh(f"{name}_held") for name in loads}
        there = f"{a} < {length} && {b} < {depth}"
        source = f"[(i0 * {length} + {a}) * {depth} + {b}]"
        nothing = {name: f"static_cast<{C_TYPES[prims[name].dtype]}>(0)" for name in loads}
        gathered = [f"{held[name]}[{u}] = {there} ? {pointer(name)}{source} : {nothing[name]};" for name in loads]
        written = [*element, *(f"{pointer(name)}{target} = {value[name]};" for name in kernel.stores)]
    else:
        gathered = [*element, *(f"{tile[name]}[{k}][{j}] = {value[name]};" for name in kernel.stores)]
        written = [f"{pointer(name)}{target} = {tile[name]}[{k}][{j}];" for name in kernel.stores]
    side_by_side = bool(loads) or taps(kernel, prims) * (area // THREADS) <= TAPS
    every = f"for (int {n} = threadIdx.x; {n} < {area}; {n} += {THREADS}) {{"
    where = f"  const Index {a} = {first} + {j}, {b} = {top} + {k};"
    outside = f"  if ({a} >= {length} || {b} >= {depth}) continue;"
    along_read = f"  const int {k} = {n} % {deep}, {j} = {n} / {deep};  // along what is read"
    if loads:  # all are under way before the first of them is put down
        head = f"for (int {u} = 0; {u} < {area // THREADS}; ++{u}) {{"
        each = ["#pragma unroll", head, f"  const int {n} = threadIdx.x + {u} * {THREADS};"]
        gathering = [
            *(f"{C_TYPES[prims[name].dtype]} {held[name]}[{area // THREADS}];" for name in loads),
            *[*each, along_read, where, *indent(gathered), "}"],
            *[*each, along_read, *(f"  {tile[name]}[{k}][{j}] = {held[name]}[{u}];" for name in loads), "}"],
        ]
    else:
        unrolled = "#pragma unroll" if side_by_side else "#pragma unroll 1"
        gathering = [unrolled, every, along_read, where, outside, *indent(gathered), "}"]
    lines = [
        f"const Index {tiles} = ({length} + {wide - 1}) / {wide}, {layers} = ({depth} + {deep - 1}) / {deep};",
        f"const Index {block} = static_cast<Index>(blockIdx.x);",
        f"const Index {first} = {block} % {tiles} * {wide}, {top} = {block} / {tiles} % {layers} * {deep};",
        f"const Index i0 = {block} / {tiles} / {layers};",
        *(f"__shared__ {C_TYPES[prims[name].dtype]} {tile[name]}[{deep}][{wide + 1}];" for name in tile),
        *gathering,
        "__syncthreads();",
        "#pragma unroll",
        every,
        f"  const int {j} = {n} % {wide}, {k} = {n} / {wide};  // along what is written",
        where,
        outside,
        *indent(written),
        "}",
    ]
    counts = [f"({c_product([size])} + {side - 1}) / {side}" for size, side in ((along, wide), (across, deep))]
    setup = [
        f"const long long blocks = {c_product([batch])} * ({counts[0]}) * ({counts[1]});",
        "if (blocks == 0) return nullptr;",
    ]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        lines=lines,
        threads=str(THREADS) if side_by_side else f"{THREADS}, 2",  # else ptxas aims at 32 registers, and spills
        extra=[],
        width=1,
        conditions=[],
        setup=setup,
        grid="dim3(static_cast<unsigned>(blocks))",
        block=f"dim3({THREADS})",
    )
