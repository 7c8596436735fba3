"""Graph -> primitives: every node that has a record becomes primitives; the others stay calls to PyTorch."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from ..ir import sizes
from ..ir.expr import Arg, Expr, as_expr, both, equal, select
from ..ir.graph import Graph, Node, Ref
from ..ir.lowered import Lowered
from ..ir.prims import C_TYPES, Iota, Load, Pointwise, Prim, Reduce, Size, Slice
from . import registry
from .declare import is_ours
from .lowering import Lowering


def lower(graph: Graph, left: frozenset[str] = frozenset()) -> Lowered:
    """Nodes in `left` stay calls to PyTorch whatever is known of them, and so do elements of their results. Where one of these stays,
    the call is made, which has the others."""
    build = Lowering(graph)
    users, given = graph.users(), left
    left = left | {n.name for n in graph.nodes if n.target == "getitem" and n.args[0].name in left}
    for node in graph.nodes:
        build.node = node
        if node.is_leaf:
            load(build, node)
            continue
        record = registry.find(node, graph) if node.name not in left else None
        empty = 0 in (node.shape or ())  # a kernel for it would run no thread
        known = record is not None and not empty and supported(node, graph, build) and not made_for_library(node, graph, users)
        value = record.lower(build, node) if record is not None and known else None
        if value is None:
            build.library.add(node.name)
            if node.shape is not None:
                load(build, node)
        else:
            build.value[node.name] = value
    elements = [node for node in graph.nodes if node.target == "getitem"]
    made, ours = ({n.args[0].name for n in elements if (n.name in build.library) == stays} for stays in (True, False))
    if made & ours:
        return lower(graph, given | (made & ours))
    return Lowered(graph, share_slices(build.prims), build.value, frozenset(build.library), build.statistics)


def made_for_library(node: Node, graph: Graph, users: dict[str, list[str]]) -> bool:
    """A tensor made from nothing for a call of the library: it expects one laid out as the original made it."""
    if node.inputs:
        return False
    return any(user not in graph.index or not is_ours(graph[user], graph) for user in users[node.name])


def share_slices(prims: dict[str, Prim]) -> dict[str, Prim]:
    """Sums of several boxes cut from one tensor become masked sums of the whole tensor, so that one look at it serves all."""
    boxes: dict[str, list[tuple[str, list[Prim]]]] = {}
    for prim in prims.values():
        if isinstance(prim.op, Reduce) and prim.op.accumulator == "Sum":
            cuts: list[Prim] = []
            here = prims[prim.inputs[0]]
            while isinstance(here.op, Slice) and here.op.dim in prim.op.dims:
                cuts.append(here)
                here = prims[here.inputs[0]]
            boxes.setdefault(here.name, []).append((prim.name, cuts))
    result: dict[str, Prim] = {}
    masked = {name: (base, cuts) for base, found in boxes.items() if len(found) > 1 for name, cuts in found if cuts}
    for prim in prims.values():
        if prim.name not in masked:
            result[prim.name] = prim
            continue
        base, cuts = prims[masked[prim.name][0]], masked[prim.name][1]
        tests, names = list[Expr](), list[str]()
        for cut in cuts:
            position = Prim(
                f"{prim.name}_position{cut.op.dim}", Iota(cut.op.dim), (), base.shape, torch.int64, prim.origin
            )
            result[position.name] = position
            names.append(position.name)
            tests += box_tests(Arg(len(names)), cut, result, names, prim)
        where = Prim(
            f"{prim.name}_inside",
            Pointwise(select(both(*tests), Arg(0), 0.0), base.dtype),
            (base.name, *names),
            base.shape,
            base.dtype,
            prim.origin,
        )
        result[where.name] = where
        result[prim.name] = Prim(prim.name, prim.op, (where.name,), prim.shape, prim.dtype, prim.origin)
    return result


def box_tests(position: Expr, cut: Prim, result: dict[str, Prim], names: list[str], prim: Prim) -> list[Expr]:
    """Conditions that a position along the cut dimension lies in the cut."""
    start, length, step = cut.op.start, cut.shape[cut.op.dim], cut.op.step
    stop = sizes.tidy(start + (length - 1) * step + 1)
    bounds: list[Expr] = []
    for size in (start, stop):
        if isinstance(size, int):
            bounds.append(as_expr(size))
        else:
            bound = Prim(f"{prim.name}_bound{len(names)}", Size(size), (), (), torch.int64, prim.origin)
            result[bound.name] = bound
            names.append(bound.name)
            bounds.append(Arg(len(names)))
    tests = [] if sizes.same(start, 0) else [position >= bounds[0]]
    tests.append(position < bounds[1])
    if step != 1:
        tests.append(equal((position - bounds[0]) % step, 0))
    return tests


# How CUDA's library calls leave their results, where it is not the order of the shape: heads next to each other for each token.
LEFT_AS: dict[Any, tuple[int, ...]] = {torch.ops.aten.scaled_dot_product_attention.default: (0, 2, 1, 3)}


def load(build: Lowering, node: Node) -> None:
    assert node.shape is not None and node.dtype is not None
    order = LEFT_AS.get(node.target, ()) if len(node.shape) == 4 else ()
    build.value[node.name] = build.add("", Load(order=order), [], node.shape, node.dtype)


def supported(node: Node, graph: Graph, build: Lowering) -> bool:
    """Types that kernels know, sizes that can be written down, operands that are values."""
    if node.target == "getitem":
        return node.dtype in C_TYPES
    names = [name for name in node.inputs if graph[name].shape is not None]
    known = all(graph[name].dtype in C_TYPES for name in names) and (node.dtype in C_TYPES or node.dtype is None)
    shapes = [graph[name].shape or () for name in names] + [node.shape or ()]
    return known and all(sizes.printable(size) for shape in shapes for size in shape if isinstance(size, sympy.Expr))


def operand(build: Lowering, value: Any) -> str:
    """The primitive that holds an argument."""
    assert isinstance(value, Ref)
    return build.value[value.name]
