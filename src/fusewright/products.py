"""Matrix products of our own: float32 on the tensor cores, with the pointwise chain behind them in the same kernel.

A product is taken over where it is named, as timing on a GPU does, or else where it is predicted to beat the library's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import sizes
from .access import accesses, same_shape, tuple_key
from .graph import Dim, Graph, Node
from .index import Axis, Coordinate
from .kernels.conv import Ending
from .kernels.product import Product, library_ms, product_ms, product_tile
from .plan import Call, Kernel, Plan
from .prims import Coordinates, Permute, Reshape
from .rewrite import Site
from .rules.patterns import PRODUCTS, product_at
from .takeover import MARGIN, Anchor, Fused, allows_tf32, is_needed_elsewhere, with_convolution

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
    weight = graph[found.right.name]
    if weight.shape is None:
        return None
    columns, depth = weight.shape if found.by_rows else weight.shape[:-3:-1]
    if graph.hint(columns) < LEAST or graph.hint(depth) < LEAST:
        return None
    matrix, by_rows = upright(lowered.value.get(found.right.name, ""), found.by_rows, plan)
    rows, upright_rows = upright(lowered.value.get(found.left.name, ""), True, plan)
    left, right = in_memory(rows, plan), in_memory(matrix, plan)
    bias = in_memory(lowered.value.get(found.bias.name, ""), plan) if found.bias is not None else None
    if not upright_rows and not found.batched and len(node.shape) != 2:  # each of several turned: not one matrix of rows
        return None
    if left is None or right is None or (found.bias is not None and bias is None):
        return None
    if found.bias is not None and graph[found.bias.name].shape != (columns,):  # one number for all columns, say
        return None
    product = Product(
        graph.hint(depth), graph.hint(columns), bias is not None, turned=not by_rows, rows_turned=not upright_rows,
        varies=not isinstance(depth, int), columns_vary=not isinstance(columns, int), batched=found.batched,
    )  # fmt: skip
    return Anchor(product, lowered.value[node.name], left, right, bias, node.shape, node.name, depth)


def upright(value: str, by_rows: bool, plan: Plan) -> tuple[str, bool]:
    """The matrix that a transposed one is, which lies the other way round."""
    prim = plan.lowered.prims.get(value)
    last = len(prim.shape) - 1 if prim is not None else 0
    turned = prim is not None and isinstance(prim.op, Permute) and prim.op.order == (*range(last - 1), last, last - 1)
    return (prim.inputs[0], not by_rows) if turned else (value, by_rows)  # type: ignore[union-attr]


def in_memory(value: str, plan: Plan) -> str | None:
    """What holds its elements in their order: itself, or what it is another shape of. None: a view of something else."""
    prims, stored = plan.lowered.prims, {name for kernel in plan.kernels for name in kernel.stores}
    prim = prims.get(value)
    while prim is not None and prim.name not in stored and isinstance(prim.op, Reshape):
        prim = prims[prim.inputs[0]]
    if prim is None or prim.channels_last or prim.dtype is not torch.float32:
        return None
    return prim.name if prim.is_load or prim.name in stored else None


def pays(anchor: Anchor, plan: Plan) -> bool:
    """The product alone is predicted to be faster than the library's."""
    rows, batch = rows_and_batch(anchor, plan)
    tile = product_tile(anchor.conv, rows, batch)
    return product_ms(anchor.conv, tile, rows, batch) < MARGIN * library_ms(anchor.conv, rows, batch)


def rows_and_batch(anchor: Anchor, plan: Plan) -> tuple[int, int]:
    """About how many rows each product has, and how many products there are."""
    *others, rows, _columns = anchor.out_shape if len(anchor.out_shape) > 1 else (1, *anchor.out_shape)
    batch, rows = plan.graph.hint(sizes.product(tuple(others))), plan.graph.hint(rows)
    return (rows, batch) if anchor.conv.batched else (batch * rows, 1)


def product_axes(shape: Sequence[Dim]) -> Coordinates:
    """Where row n, column c of a product lies in a tensor of its shape, of which all dimensions but the last make the rows."""
    rest = Coordinate.of(Axis("n", sizes.tidy(sizes.product(tuple(shape[:-1])))))
    at = [Coordinate.of(Axis("c", shape[-1]))]
    for size in reversed(shape[1:-1]):
        rest, inner = rest.split(size)
        at.insert(0, inner)
    return (rest, *at) if len(shape) > 1 else tuple(at)


def ended(kernel: Kernel, anchor: Anchor, plan: Plan) -> Fused | None:
    """How a pointwise kernel ends the product, or None where it reads it at other places than it writes."""
    from .kernels.anchored import body_of

    prims, shape = plan.lowered.prims, anchor.out_shape
    if not kernel.is_pointwise or len(kernel.stores) != 1 or not same_shape(kernel.space, shape):
        return None
    (store,) = kernel.stores
    at = product_axes(shape)
    if prims[store].dtype is not torch.float32 or prims[store].channels_last or kernel.overwrites:
        return None
    if store != anchor.value:
        reads = [a for a in accesses(prims, store, at, {anchor.value}, inside=True) if a.leaf == anchor.value]
        if not all(tuple_key(a.at) == tuple_key(at) and a.windows == 0 for a in reads):
            return None
    body = body_of(anchor, kernel, plan, root=store, leaf=anchor.value, shape=shape, at=at)
    return Fused(anchor, Ending(before=body))


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


__all__ = ["is_product", "pays", "product_axes", "product_of", "products", "rows_and_batch", "with_product"]
