"""Graph -> primitives: every node with a record in ops.py becomes primitives; the others stay calls to PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from . import ops, sizes
from .graph import Dim, Graph, Node, Ref
from .ir.expr import Arg, Expr, Operand, as_expr, both, equal, of_operands, select
from .prims import Expand, Iota, Load, Pointwise, Prim, Reduce, Reshape, Size, Slice, View


@dataclass(frozen=True)
class Lowered:
    """Primitives by name, in order, and which of them holds each node's value."""

    graph: Graph
    prims: dict[str, Prim]
    value: dict[str, str]
    library: frozenset[str]  # nodes that stay calls to PyTorch


class Lowering:
    """What an operator's record sees while it lowers a node."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.prims: dict[str, Prim] = {}
        self.value: dict[str, str] = {}
        self.library: set[str] = set()
        self.known: dict[tuple[Any, ...], str] = {}  # equal primitives are one
        self.node: Node = graph.nodes[0]

    # ---- what records call

    def __getitem__(self, name: str) -> Prim:
        return self.prims[name]

    def add(self, label: str, op: Any, inputs: Sequence[str], shape: Sequence[Dim], dtype: torch.dtype) -> str:
        known = (op, tuple(inputs), tuple(shape), dtype)
        if not isinstance(op, Load) and known in self.known:
            return self.known[known]
        name, count = (f"{self.node.name}_{label}" if label else self.node.name), 1
        while name in self.prims:
            count += 1
            name = f"{self.node.name}_{label}{count}" if label else f"{self.node.name}_{count}"
        self.prims[name] = Prim(name, op, tuple(inputs), tuple(shape), dtype, self.node.name)
        self.known[known] = name
        return name

    def pointwise(
        self,
        label: str,
        meaning: Expr | Callable[..., Operand],
        inputs: Sequence[str],
        dtype: torch.dtype,
        compute: torch.dtype | None = None,
        cost: int = 1,
    ) -> str:
        """An expression of inputs that broadcast against each other, or a function that makes it of them."""
        whole = broadcast([self.hints(name) for name in inputs])
        inputs = [self.stretched(name, whole) for name in inputs]
        shape = broadcast([self.prims[name].shape for name in inputs])
        expression = meaning if isinstance(meaning, Expr) else of_operands(meaning, len(inputs))
        return self.add(label, Pointwise(expression, compute or dtype, cost), inputs, shape, dtype)

    def hints(self, name: str) -> tuple[Dim, ...]:
        return tuple(self.graph.hint(size) for size in self.prims[name].shape)

    def stretched(self, name: str, whole: Sequence[Dim]) -> str:
        """The value with a plain 1 where a symbolic size is 1 in the example and meets a larger one.

        The model broadcasts there, so a guard holds that size to 1.
        """
        for dim, (hint, wide) in enumerate(zip(self.hints(name), whole[len(whole) - len(self.hints(name)) :], strict=True)):
            if hint == 1 and self.graph.hint(wide) != 1 and not sizes.is_one(self.prims[name].shape[dim]):
                shape = [1 if d == dim else size for d, size in enumerate(self.prims[name].shape)]
                name = self.view("one", Slice(dim, 0), name, shape)
        return name

    def view(self, label: str, op: View, source: str, shape: Sequence[Dim]) -> str:
        return self.add(label, op, [source], shape, self.prims[source].dtype)

    def reshape(self, source: str, shape: Sequence[Dim], label: str = "view") -> str:
        if len(shape) == len(self.prims[source].shape) and all(map(sizes.same, shape, self.prims[source].shape)):
            return source
        return self.view(label, Reshape(), source, shape)

    def expand(self, source: str, shape: Sequence[Dim]) -> str:
        return self.view("expand", Expand(), self.stretched(source, shape), shape)

    def reduce(
        self,
        label: str,
        accumulator: str,
        source: str,
        dims: Sequence[int],
        field: str = "result()",
        dtype: torch.dtype | None = None,
    ) -> str:
        """Dimensions stay, with size 1. Over dimensions that all have size 1 it is no reduction for most accumulators."""
        shape = [1 if d in dims else size for d, size in enumerate(self.prims[source].shape)]
        single = all(sizes.is_one(self.prims[source].shape[d]) for d in dims)
        if single and field == "result()" and accumulator in ("Sum", "Product", "Max", "Min", "LogSumExp"):
            return source  # of one element
        if dtype is None:  # a part of an accumulator is never rounded to a half type
            kind = self.prims[source].dtype
            half = kind in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half and field != "result()" else kind
        behind, there = self.behind_ones(source, dims)
        if behind != source:  # two sums of one tensor are seen to go over the same elements, however its shape is written
            return self.reshape(self.reduce(label, accumulator, behind, there, field, dtype), shape)
        return self.add(label, Reduce(accumulator, tuple(sorted(dims)), field), [source], shape, dtype)

    def behind_ones(self, source: str, dims: Sequence[int]) -> tuple[str, list[int]]:
        """What a view that only adds or drops dimensions of size 1 is of, and where these dimensions are there."""
        prim, found = self.prims[source], list(dims)
        while isinstance(prim.op, Reshape):
            inner = self.prims[prim.inputs[0]]
            here, there = ([d for d, size in enumerate(p.shape) if not sizes.is_one(size)] for p in (prim, inner))
            if len(here) != len(there) or not all(sizes.same(prim.shape[a], inner.shape[b]) for a, b in zip(here, there, strict=True)):
                break
            prim, found = inner, [there[here.index(d)] for d in found if d in here]
        return prim.name, found

    def count(self, source: str, dims: Sequence[int]) -> str:
        """How many elements a reduction over `dims` takes in, as a float value."""
        shape = self.prims[source].shape
        return self.add("count", Size(sizes.product(shape[d] for d in dims)), [], (), torch.float32)

    def drop(self, source: str, dims: Sequence[int], keepdim: bool) -> str:
        """Remove dimensions of size 1, unless they are to be kept."""
        if keepdim:
            return source
        return self.reshape(source, [s for d, s in enumerate(self.prims[source].shape) if d not in dims], "squeeze")


def broadcast(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape; where sizes differ symbolically, one that is not 1."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            if not sizes.is_one(size):
                result[rank - 1 - i] = size
    return tuple(result)


def lower(graph: Graph, left: frozenset[str] = frozenset()) -> Lowered:
    """Nodes in `left` stay calls to PyTorch whatever is known of them, and so do elements of their results."""
    build = Lowering(graph)
    users = graph.users()
    left = left | {n.name for n in graph.nodes if n.target == "getitem" and n.args[0].name in left}
    for node in graph.nodes:
        build.node = node
        if node.is_leaf:
            load(build, node)
            continue
        record = ops.find(node, graph) if node.name not in left else None
        known = record is not None and supported(node, graph, build) and not made_for_library(node, graph, users)
        value = record.lower(build, node) if record is not None and known else None
        if value is None:
            build.library.add(node.name)
            if node.shape is not None:
                load(build, node)
        else:
            build.value[node.name] = value
    return Lowered(graph, share_slices(build.prims), build.value, frozenset(build.library))


def made_for_library(node: Node, graph: Graph, users: dict[str, list[str]]) -> bool:
    """A tensor made from nothing for a call of the library: it expects one laid out as the original made it."""
    if node.inputs:
        return False
    return any(user not in graph.index or ops.find(graph[user], graph) is None for user in users[node.name])


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
    from .prims import C_TYPES

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
