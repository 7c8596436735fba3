"""Matrix products of our own: float32 on the tensor cores, with the pointwise chain behind them in the same kernel.

A product is taken over where it is named, as timing on a GPU does, or else where it is predicted to beat the library's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy
import torch

from ..codegen.mma.anchor import Anchor, Fused, rows_and_batch
from ..codegen.mma.anchored import body_of
from ..codegen.mma.conv import Epilogue
from ..codegen.mma.operands import Matrices, apart, at_parts, beginning, joined, matrices
from ..codegen.mma.product import Place, Product, Triangle, block_shape, library_ms, product_ms, product_tile
from ..ir import sizes
from ..ir.access import accesses, same_shape, tuple_key
from ..ir.expr import Arg, Binary, Number, Select, is_constant
from ..ir.graph import Dim, Graph, Node
from ..ir.index import Axis, Coordinate, reshape
from ..ir.plan import Call, Kernel, Plan
from ..ir.prims import Coordinates, Iota, Permute, Pointwise, Prim, Reshape
from ..laws.law import Site
from ..laws.patterns import PRODUCTS, product_at
from .conv_fusion import MARGIN, allows_tf32, is_needed_elsewhere, with_convolution

LEAST = 16  # of depth and columns: below, nothing is gained by tensor cores


def tf32_allowed() -> bool:
    """What the user's flags allow to matrix products: the library is fast then."""
    return allows_tf32(torch.backends.cuda.matmul, torch.backends.cuda.matmul)


def products(graph: Graph) -> frozenset[str]:
    """The nodes that `take_over` may be told to compute by a kernel of ours."""
    return frozenset(node.name for node in graph.nodes if node.target in PRODUCTS)


def is_product(kernel: Kernel) -> bool:
    """It computes a product itself."""
    return kernel.fused is not None and isinstance(kernel.fused.anchor.conv, Product)


def product_of(node: Node, plan: Plan) -> Anchor | None:
    """The product that a call is, if a kernel can compute it: of rows in memory with a matrix in memory, or with one for each batch."""
    graph, lowered = plan.graph, plan.lowered
    found = product_at(Site(graph, node, {}), node)
    if found is None or node.dtype is not torch.float32 or tf32_allowed() or node.shape is None:
        return None
    left, right = (matrices(lowered.value.get(ref.name, ""), plan) for ref in (found.left, found.right))
    if left is None or right is None:
        return None
    right = right if found.by_rows else right.transposed  # a row for each column of the product
    columns, depth = right.shape[-2:]
    if graph.hint(columns) < LEAST or graph.hint(depth) < LEAST:
        return None
    bias = None
    if found.bias is not None:
        held = matrices(lowered.value.get(found.bias.name, ""), plan)
        if held is None or graph[found.bias.name].shape != (columns,) or not held.is_upright or not sizes.same(held.offset, 0):
            return None  # one number for all columns, say
        bias = held.memory
    one = None if found.batched else left.as_rows()
    batched = one is None  # matrices of rows that do not lie below each other, each times the same, are a batch too
    left = one or left
    if not found.batched:
        right = replace(right, shape=(*left.shape[:-2], columns, depth), batch=(0,) * (len(left.shape) - 2))
    upright, by_rows = left.is_upright, right.is_upright
    if not (upright or left.transposed.is_upright) or not (by_rows or right.transposed.is_upright):
        return None
    places = {m: place_of(m) for m in (left, right)}
    symbols = symbol_names(symbol for m, place in places.items() if place is not None for symbol in m.symbols)
    product = Product(
        graph.hint(depth), graph.hint(columns), bias is not None, transposed=not by_rows, rows_transposed=not upright,
        varies=not isinstance(depth, int), columns_vary=not isinstance(columns, int), batched=batched,
        input_place=places[left], weight_place=places[right], symbols=symbols,
    )  # fmt: skip
    if block_shape(product, plan.machine) is None:
        return None
    return Anchor(product, lowered.value[node.name], left.memory, right.memory, bias, node.shape, node.name, depth)


def place_of(operand: Matrices) -> Place | None:
    """Where an operand lies; None: one row, or matrix, after the other."""
    upright = operand if operand.is_upright else operand.transposed
    *shape, rows, length = upright.shape
    outer, steps = zip(*joined(shape, upright.batch), strict=True)
    pitch = upright.row if not sizes.is_one(rows) else length
    follow = len(steps) == 1 and (sizes.is_one(outer[0]) or sizes.same(steps[0], sizes.tidy(rows * length)))
    if sizes.same(pitch, length) and sizes.same(upright.offset, 0) and follow:
        return None
    far = pitch if isinstance(pitch, int) else sizes.c_text(pitch)
    return Place(far, beginning(upright.offset, outer, steps), whole_vectors([upright.offset, *steps, pitch]))


def whole_vectors(steps: Sequence[Dim]) -> int:
    """Up to 4 elements, so many that all steps are multiples of them."""
    return next(of for of in (4, 2, 1) if all(sizes.divide(step, of) is not None for step in steps))


def symbol_names(symbols: Iterable[sympy.Symbol]) -> tuple[str, ...]:
    return tuple(sorted({str(symbol) for symbol in symbols}))


def pays(anchor: Anchor, plan: Plan) -> bool:
    """The product alone is predicted to be faster than the library's."""
    rows, batch = rows_and_batch(anchor, plan)
    tile = product_tile(anchor.conv, rows, batch, plan.machine)
    return product_ms(anchor.conv, tile, rows, batch, plan.machine) < MARGIN * library_ms(anchor.conv, rows, batch, plan.machine)


def product_axes(shape: Sequence[Dim]) -> Coordinates:
    """Where row n, column c of a product lies in a tensor of its shape, of which all dimensions but the last make the rows."""
    rest = Coordinate.of(Axis("n", sizes.tidy(sizes.product(tuple(shape[:-1])))))
    at = [Coordinate.of(Axis("c", shape[-1]))]
    for size in reversed(shape[1:-1]):
        rest, inner = rest.split(size)
        at.insert(0, inner)
    return (rest, *at) if len(shape) > 1 else tuple(at)


def ended(kernel: Kernel, anchor: Anchor, plan: Plan) -> Fused | None:
    """How a pointwise kernel ends the product, or None where it reads it elsewhere than it writes. It may write it in another order."""
    prims, shape = plan.lowered.prims, anchor.out_shape
    if not kernel.is_pointwise or len(kernel.stores) != 1:
        return None
    (store,) = kernel.stores
    at = product_axes(shape)
    there = carried(prims, store, anchor.value, at)
    if there is None or prims[store].dtype is not torch.float32 or prims[store].channels_last or kernel.overwrites:
        return None
    if store != anchor.value:
        reads = [a for a in accesses(prims, store, there, {anchor.value}, inside=True) if a.leaf == anchor.value]
        if not all(tuple_key(a.at) == tuple_key(at) and a.windows == 0 for a in reads):
            return None
    if anchor.conv.batched or len(shape) == 2:  # else rows are those of several matrices
        anchor = replace(anchor, conv=replace(anchor.conv, triangle=triangle_of(prims, store, anchor.value)))
    if tuple_key(there) != tuple_key(at):
        placed = with_place(anchor, store, plan)
        if placed is None:
            return None
        anchor = placed
    body = body_of(anchor, kernel, plan, root=store, leaf=anchor.value, shape=prims[store].shape, at=there)
    return Fused(anchor, Epilogue(before=body))


def triangle_of(prims: dict[str, Prim], root: str, leaf: str) -> Triangle | None:
    """All that `root` takes of a product: wherever else it is asked for, what a triangle has put in its place is taken."""

    @functools.cache
    def cut(name: str) -> frozenset[Triangle] | None:
        """The triangles on every way to the product; None where none leads there."""
        prim = prims[name]
        ways = [way for way in map(cut, prim.inputs) if way is not None]
        if name == leaf or not ways:
            return frozenset() if name == leaf else None
        if not isinstance(prim.op, Pointwise) or not same_shape(prim.shape, prims[leaf].shape):
            return frozenset()  # a view: rows and columns are others
        own = triangle_at(prims, prim) if cut(prim.inputs[0]) is None else None
        return frozenset.intersection(*ways).union([own] if own is not None else [])

    return min(cut(root) or (), key=lambda triangle: (triangle.lower, triangle.diagonal), default=None)


def triangle_at(prims: dict[str, Prim], prim: Prim) -> Triangle | None:
    """As `tril` and `triu` are written: a choice by the distance of the column from the row."""
    choice = prim.op.expression
    if not isinstance(choice, Select) or choice.parts[:2] != (Arg(0), Arg(1)) or not is_constant(choice.otherwise):
        return None
    test, last = prims[prim.inputs[0]], len(prim.shape) - 1
    if not isinstance(test.op, Pointwise) or [prims[name].op for name in test.inputs] != [Iota(last - 1), Iota(last)]:
        return None
    match test.op.expression:
        case Binary("<=" | ">=" as sign, Binary("-", Arg(1), Arg(0)), Number(int(diagonal))):
            return Triangle(sign == "<=", diagonal)
    return None


def carried(prims: dict[str, Prim], name: str, leaf: str, at: Coordinates) -> Coordinates | None:
    """Where a value has the element that is made of `leaf` at `at`: element by element, and through views that only put them in order."""
    if name == leaf:
        return at
    prim = prims[name]
    if prim.is_load or not isinstance(prim.op, (Pointwise, Permute, Reshape)):
        return None
    for source in prim.inputs:
        here = carried(prims, source, leaf, at)
        if here is None:
            continue
        if isinstance(prim.op, Permute):
            return tuple(here[dim] for dim in prim.op.order)
        if isinstance(prim.op, Reshape):
            return reshape(here, prims[source].shape, prim.shape)
        return here if same_shape(prims[source].shape, prim.shape) else None
    return None


def put_in(store: str, value: str, plan: Plan) -> Matrices | None:
    """How matrices lie where another value has their elements; None where the steps to them are not the same everywhere. A dimension of
    the batch may be several joined."""
    prims = plan.lowered.prims
    parts = [(size,) for size in prims[value].shape]
    while len(parts) > 1:
        axes = [[Axis(f"m{d}_{part}", size) for part, size in enumerate(dim)] for d, dim in enumerate(parts)]
        there = carried(prims, store, value, at_parts(axes))
        offset = prims[store].offset(there) if there is not None else None
        if offset is None:
            return None
        flat = [axis for dim in axes for axis in dim]
        others = [axis for axis in offset.terms if axis not in flat]
        if not others:
            *batch, row, column = (offset.terms.get(axis, 0) for axis in flat)
            return Matrices(store, tuple(axis.size for axis in flat), offset.offset, tuple(batch), row, column)
        parts = apart(parts, axes, others[0]) or []
    return None


def with_place(anchor: Anchor, store: str, plan: Plan) -> Anchor | None:
    """The product that writes its elements where `store` has them: neighbours of a row side by side."""
    out = put_in(store, anchor.value, plan)
    if out is None or not sizes.is_one(out.column):
        return None
    product, rows = anchor.conv, None if anchor.conv.batched else out.as_rows()
    if rows is None and not product.batched:
        return None
    place = place_of(rows or out)
    names = symbol_names((rows or out).symbols) if place is not None else ()
    return replace(anchor, conv=replace(product, out_place=place, symbols=tuple(sorted({*product.symbols, *names}))))


def with_product(anchor: Anchor, call: Call, steps: list[Kernel | Call], plan: Plan) -> list[Kernel | Call]:
    """The steps with a kernel in place of the call: with the one that reads its result at its end, if only that one does."""
    readers = [k for k in steps if isinstance(k, Kernel) and anchor.value in k.loads]
    if len(readers) == 1 and readers[0].fused is None and not is_needed_elsewhere(call.node, plan):
        how = ended(readers[0], anchor, plan)
        if how is not None:
            kernel = with_convolution(readers[0], how, plan)
            return [kernel if step is readers[0] else step for step in steps if step is not call]
    writer = Kernel(anchor.out_shape, (), {anchor.value: "full"}, (anchor.value,), ())
    how = ended(writer, anchor, plan)
    if how is None:
        return steps
    kernel = with_convolution(writer, how, plan)
    return [kernel if step is call else step for step in steps]


