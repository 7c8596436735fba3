"""Turning kernel: pointwise, from tensors that lie one way in memory to tensors that lie the other way.

A block takes a tile of channels and positions. What lies across the way it writes is first read along its own way, into shared
memory: every access to memory is then one to neighbouring elements.
"""

from __future__ import annotations

from .. import sizes
from ..access import accesses, axes_of, same_shape, tuple_key
from ..graph import Graph
from ..index import Axis, Coordinate
from ..plan import Kernel
from ..prims import C_TYPES, Prim, arithmetic_type
from . import text
from .expression import Evaluator, Level, converted_to, indent, pointer
from .loops import Loop, c_product, decode
from .text import KernelText

TILE, ROWS = 32, 8  # elements of a tile along each side, and rows of threads that take turns at it
MOST = 8  # tensors that go through shared memory: 4 KiB each
FEWEST_CHANNELS = 8  # below that most of a tile would be empty


def turned_loads(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> list[str]:
    """Tensors of the kernel's size that lie the other way than all it writes; none where this template does not fit."""
    if not kernel.is_pointwise or kernel.overwrites or len(kernel.space) < 3 or text.has_window(kernel, prims):
        return []
    written = {prims[name].channels_last for name in kernel.stores}
    whole = all(same_shape(prims[name].shape, kernel.space) for name in kernel.stores)
    positions = sizes.product(kernel.space[2:])
    if len(written) != 1 or not whole or graph.hint(positions) < TILE or graph.hint(kernel.space[1]) < FEWEST_CHANNELS:
        return []
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


def turned_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    batch, channels, *spatial = kernel.space
    axes = [Axis(f"i{d}", size) for d, size in enumerate(kernel.space)]
    body = Level(frozenset(axis.text for axis in axes))
    evaluator = Evaluator(prims, kernel.loads, [body], vector=False)
    at = tuple(map(Coordinate.of, axes))
    positions = sizes.product(spatial)
    channels_last = prims[kernel.stores[0]].channels_last
    along, across = (channels, positions) if channels_last else (positions, channels)
    length, depth = evaluator.size(along), evaluator.size(across)
    tiles, layers, block, first, top, u, j, a, b = map(evaluator.fresh, "tiles layers block first top u j a b".split())

    turned = turned_loads(kernel, prims, graph)
    tile = {name: evaluator.fresh(f"{name}_tile") for name in turned}
    for name in turned:
        kind, here = arithmetic_type(prims[name].dtype), f"{tile[name]}[{j}][threadIdx.x]"
        evaluator.results[name] = here if C_TYPES[prims[name].dtype] == kind else f"to_arithmetic<{kind}>({here})"
    stores = []
    for name in kernel.stores:
        value = text.to_memory(prims[name], converted_to(evaluator.value(name, at), prims[name]))
        stores.append(f"{pointer(name)}[(i0 * {depth} + {b}) * {length} + {a}] = {value};")
    channel, position = (a, b) if channels_last else (b, a)
    loops = tuple(Loop((d,), kernel.space[d]) for d in range(2, len(kernel.space)))
    every_row = ["#pragma unroll", f"for (int {u} = 0; {u} < {TILE}; {u} += {ROWS}) {{", f"  const int {j} = {u} + threadIdx.y;"]
    inside = f"{a} < {length} && {b} < {depth}"
    lines = [
        f"const Index {tiles} = ({length} + {TILE - 1}) / {TILE}, {layers} = ({depth} + {TILE - 1}) / {TILE};",
        f"const Index {block} = static_cast<Index>(blockIdx.x);",
        f"const Index {first} = {block} % {tiles} * {TILE}, {top} = {block} / {tiles} % {layers} * {TILE};",
        f"const Index i0 = {block} / {tiles} / {layers};",
        *(f"__shared__ {C_TYPES[prims[name].dtype]} {tile[name]}[{TILE}][{TILE + 1}];" for name in turned),
        *every_row,
        f"  const Index {a} = {first} + {j}, {b} = {top} + threadIdx.x;",
        f"  if ({inside}) {{",
        *(f"    {tile[n]}[threadIdx.x][{j}] = {pointer(n)}[(i0 * {length} + {a}) * {depth} + {b}];" for n in turned),
        "  }",
        "}",
        "__syncthreads();",
        *every_row,
        f"  const Index {a} = {first} + threadIdx.x, {b} = {top} + {j};",
        f"  if (!({inside})) continue;",
        *indent([f"const Index i1 = {channel};", *decode(loops, position, evaluator), *body.lines, *stores]),
        "}",
    ]
    sides = [f"({c_product([side])} + {TILE - 1}) / {TILE}" for side in (along, across)]
    setup = [
        f"const long long blocks = {c_product([batch])} * ({sides[0]}) * ({sides[1]});",
        "if (blocks == 0) return nullptr;",
    ]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        lines=lines,
        threads=str(TILE * ROWS),
        extra=[],
        width=1,
        conditions=[],
        setup=setup,
        grid="dim3(static_cast<unsigned>(blocks))",
        block=f"dim3({TILE}, {ROWS})",
    )
