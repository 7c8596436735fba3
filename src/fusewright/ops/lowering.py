"""What an operator's record sees while it lowers a node: the means to build primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir import sizes
from ..ir.expr import Expr, Operand, of_operands
from ..ir.graph import Dim, Graph, Node
from ..ir.prims import Expand, Load, Pointwise, Prim, Reduce, Reshape, Size, Slice, View


class Lowering:
    """What an operator's record sees while it lowers a node."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.prims: dict[str, Prim] = {}
        self.value: dict[str, str] = {}
        self.library: set[str] = set()
        self.statistics: dict[str, tuple[str, str]] = {}  # of norms: mean and reciprocal deviation
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
        """What has that shape, where it is this or what this is a reshape of: a shape and back again is the same value."""
        behind = self.prims[source]
        while not (len(shape) == len(behind.shape) and all(map(sizes.same, shape, behind.shape))):
            if not isinstance(behind.op, Reshape):
                return self.view(label, Reshape(), source, shape)
            behind = self.prims[behind.inputs[0]]
        return behind.name

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
        """Dimensions stay, with size 1. Over dimensions that all have size 1 it is no reduction for most accumulators. Doubles and whole
        numbers have accumulators of their own, as wide as they are."""
        shape = [1 if d in dims else size for d, size in enumerate(self.prims[source].shape)]
        single = all(sizes.is_one(self.prims[source].shape[d]) for d in dims)
        if single and field == "result()" and accumulator in ("Sum", "Product", "Max", "Min", "LogSumExp"):
            return source  # of one element
        if dtype is None:  # a part of an accumulator is never rounded to a half type
            kind = self.prims[source].dtype
            half = kind in (torch.float16, torch.bfloat16)
            dtype = torch.float32 if half and field != "result()" else kind
        if accumulator in ("Sum", "Product", "Max", "Min"):
            of = self.prims[source].dtype
            wide = "Double" if of is torch.float64 else "" if of.is_floating_point else "Integer"
            accumulator = wide + accumulator
        if not shape:  # a number is a row of one element
            row = self.reshape(source, [1])
            return self.reshape(self.add(label, Reduce(accumulator, (0,), field), [row], [1], dtype), [])
        behind, there = self.behind_ones(source, dims)
        if behind != source and there:  # two sums of one tensor are seen to go over the same elements, however its shape is written
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

    def count(self, source: str, dims: Sequence[int], dtype: torch.dtype = torch.float32) -> str:
        """How many elements a reduction over `dims` takes in, as a float value, or a double."""
        shape = self.prims[source].shape
        return self.add("count", Size(sizes.product(shape[d] for d in dims)), [], (), dtype)

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
