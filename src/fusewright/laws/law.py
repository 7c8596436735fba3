"""What a law is: a function from a node, and the means to build what replaces it, to that replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch._ops import OpOverload

from ..ir import sizes
from ..ir.graph import Dim, Graph, Node, Ref
from ..ops import registry
from ..ops.lowering import broadcast
from ..ops.registry import Interval
from .ranges import range_of

aten = torch.ops.aten

# What a law may do to rounding and to non-finite values.
REASSOCIATES = "reassociates"  # rounding may differ

NONFINITE_KIND = "nonfinite_kind"  # NaN may become Inf or the reverse: used where nothing that follows tells them apart

HIDES_NONFINITE = "hides_nonfinite"  # a non-finite input could give a finite result: only with --assume-finite


@dataclass(frozen=True)
class Law:
    name: str
    identity: str
    apply: Callable[[Site], Ref | None]
    tags: frozenset[str]
    at: frozenset[Any]  # targets of the nodes it is tried at
    examples: tuple[Any, ...]
    last: bool = False  # tried only when no other law applies any more: it hides structure that others look for


@dataclass(frozen=True)
class Applied:
    """A law, where it was used, and what it says."""

    law: str
    node: str
    where: str
    identity: str
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Rule:
    """A law, what it says, and wherever it was used."""

    law: str
    identity: str
    tags: frozenset[str]
    nodes: tuple[str, ...]
    places: tuple[str, ...]  # one for each node

    def __str__(self) -> str:
        """`law at two_outputs.py:12 (pool), two_outputs.py:14 and 3 more (7 times): identity`, whatever of that there is."""
        places = list(dict.fromkeys(filter(None, self.places)))
        shown, left = ", ".join(places[:PLACES_NAMED]), len(places) - PLACES_NAMED
        where = f" at {shown}" + (f" and {left} more" if left > 0 else "") if places else ""
        often = f" ({len(self.nodes)} times)" if len(self.nodes) > 1 else ""
        return f"{self.law}{where}{often}: {self.identity}"


PLACES_NAMED = 3  # of a deep network's many


def each_once(applied: Sequence[Applied]) -> tuple[Rule, ...]:
    """The laws that were applied, in the order of their first use."""
    uses: dict[str, list[Applied]] = {}
    for step in applied:
        uses.setdefault(step.law, []).append(step)
    return tuple(
        Rule(law, steps[0].identity, steps[0].tags, tuple(s.node for s in steps), tuple(s.where for s in steps))
        for law, steps in uses.items()
    )


LAWS: list[Law] = []


def law(
    name: str, *tags: str, at: Iterable[Any], examples: Sequence[Any] = (), last: bool = False
) -> Callable[[Callable[[Site], Ref | None]], Callable[[Site], Ref | None]]:
    """Registers a function from a site to what replaces the node there, or None; its docstring is the identity."""

    def wrap(function: Callable[[Site], Ref | None]) -> Callable[[Site], Ref | None]:
        assert function.__doc__, f"law {name} must state its identity"
        identity = " ".join(function.__doc__.split())
        LAWS.append(Law(name, identity, function, frozenset(tags), frozenset(at), tuple(examples), last))
        return function

    return wrap


class Site:
    """A node at which a law is tried, and the means to build what replaces it."""

    def __init__(self, graph: Graph, node: Node, users: dict[str, list[str]]):
        self.graph, self.node, self.users = graph, node, users
        self.made: list[Node] = []

    # ---- looking

    @cached_property
    def bound(self) -> dict[str, Any]:
        return self.node.bound() if isinstance(self.node.target, OpOverload) else {}

    def __getitem__(self, ref: Any) -> Node:
        assert isinstance(ref, Ref)
        for node in self.made:
            if node.name == ref.name:
                return node
        return self.graph[ref.name]

    def only_user(self, node: Node) -> bool:
        return len(self.users.get(node.name, [])) == 1

    def shape(self, ref: Ref) -> tuple[Dim, ...]:
        shape = self[ref].shape
        assert shape is not None
        return shape

    def hint(self, size: Dim) -> int:
        return self.graph.hint(size)

    def count(self, ref: Ref | Node) -> int:
        """Elements of a value in the example."""
        node = ref if isinstance(ref, Node) else self[ref]
        return self.graph.hint(sizes.product(node.shape or ()))

    def range(self, ref: Ref) -> Interval:
        return range_of(self.graph, ref.name)

    # ---- building

    def call(
        self, target: OpOverload, *args: Any, shape: Sequence[Dim], dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Ref:
        dtype = dtype or self.node.dtype
        return self._add(label_of(target), Node("", target, args, kwargs, tuple(shape), dtype, self.node.where))

    def again(self, node: Node, shape: Sequence[Dim], changed: Mapping[str, Any], strides: tuple[Any, ...] = ()) -> Ref:
        """The same call with some arguments changed; `strides` of what it reads, where it is called on memory (`Node.strides`)."""
        assert isinstance(node.target, OpOverload)
        arguments = {**node.bound(), **changed}
        schema = node.target._schema.arguments
        args = [arguments[a.name] for a in schema if not a.kwarg_only]
        defaults = {a.name: a.default_value for a in schema if a.kwarg_only and a.has_default_value()}
        kwargs = {k: v for k, v in arguments.items() if k in defaults and v != defaults[k]}
        made = self.call(node.target, *args, shape=shape, dtype=node.dtype, **kwargs)
        self.made[-1] = replace(self.made[-1], strides=strides)
        return made

    def element(self, target: OpOverload, *args: Any, index: int, shape: Sequence[Dim], dtype: torch.dtype) -> Ref:
        """One result of a call that gives several."""
        parent = self._add(label_of(target), Node("", target, args, {}, None, None, self.node.where))
        return self._add("value", Node("", "getitem", (parent, index), {}, tuple(shape), dtype, self.node.where))

    def _add(self, label: str, node: Node) -> Ref:
        base = made_for(self.node)
        stem = f"{base}_new" if re.fullmatch(rf"{label}(_\d+)?", base) else f"{base}_{label}"
        name, count = stem, 1
        taken = {n.name for n in self.made} | self.graph.index.keys()
        while name in taken:
            count += 1
            name = f"{stem}{count}"
        self.made.append(replace(node, name=name))
        return Ref(name)

    def reduced_shape(self, ref: Ref, dims: Sequence[int], keepdim: bool) -> tuple[Dim, ...]:
        return tuple(1 if d in dims else s for d, s in enumerate(self.shape(ref)) if keepdim or d not in dims)

    def sum(self, ref: Ref, dims: Sequence[int], keepdim: bool = False) -> Ref:
        """Of halves, in fp32: a sum can be far larger than its terms."""
        dtype = wide(self[ref].dtype)
        shape = self.reduced_shape(ref, dims, keepdim)
        kwargs = {} if dtype == self[ref].dtype else {"dtype": dtype}
        args = (ref, list(dims), keepdim)
        return self._add("sum", Node("", aten.sum.dim_IntList, args, kwargs, shape, dtype, self.node.where))

    def cast(self, ref: Ref, dtype: torch.dtype | None) -> Ref:
        if self[ref].dtype == dtype:
            return ref
        kwargs = {"dtype": dtype}
        return self._add(
            "cast", Node("", aten._to_copy.default, (ref,), kwargs, self.shape(ref), dtype, self.node.where)
        )

    def reshape(self, ref: Ref, shape: Sequence[Dim]) -> Ref:
        if len(shape) == len(self.shape(ref)) and all(map(sizes.same, shape, self.shape(ref))):
            return ref
        return self.call(aten.reshape.default, ref, list(shape), shape=shape, dtype=self[ref].dtype)

    def permute(self, ref: Ref, order: Sequence[int]) -> Ref:
        if list(order) == sorted(order):
            return ref
        shape = [self.shape(ref)[d] for d in order]
        return self.call(aten.permute.default, ref, list(order), shape=shape, dtype=self[ref].dtype)

    def slice(self, ref: Ref, dim: int, start: Dim, length: Dim, step: int = 1) -> Ref:
        shape = list(self.shape(ref))
        if sizes.same(start, 0) and sizes.same(length, shape[dim]) and step == 1:
            return ref
        shape[dim] = length
        stop = sizes.tidy(start + (length - 1) * step + 1)
        return self.call(aten.slice.Tensor, ref, dim, start, stop, step, shape=shape, dtype=self[ref].dtype)

    def binary(self, target: OpOverload, a: Ref, b: Any) -> Ref:
        shapes = [self.shape(a)] + ([self.shape(b)] if isinstance(b, Ref) else [])
        return self.call(target, a, b, shape=broadcast(shapes), dtype=self[a].dtype)

    def mul(self, a: Ref, b: Any) -> Ref:
        return a if isinstance(b, (int, float)) and b == 1 else self.binary(aten.mul.Tensor, a, b)

    def add(self, a: Ref, b: Any) -> Ref:
        return self.binary(aten.add.Tensor, a, b)

    def sub(self, a: Ref, b: Any) -> Ref:
        return self.binary(aten.sub.Tensor, a, b)

    def divide(self, a: Ref, b: Any) -> Ref:
        return a if isinstance(b, int) and b == 1 else self.binary(aten.div.Tensor, a, b)

    def unary(self, target: OpOverload, a: Ref) -> Ref:
        return self.call(target, a, shape=self.shape(a), dtype=self[a].dtype)

    def stack(self, refs: Sequence[Ref], dim: int) -> Ref:
        shape = list(self.shape(refs[0]))
        shape.insert(dim, len(refs))
        return self.call(aten.stack.default, list(refs), dim, shape=shape, dtype=self[refs[0]].dtype)


def label_of(target: OpOverload | str) -> str:
    """`mul` for aten.mul.Tensor."""
    return str(target).removeprefix("aten.").split(".")[0].strip("_")


def made_for(node: Node) -> str:
    """The name of the node that a law made this one for; its own where it is the model's."""
    label = "value" if node.target == "getitem" else label_of(node.target)
    return re.sub(rf"_({label}|new)\d*$", "", node.name)


def wide(dtype: torch.dtype | None) -> torch.dtype | None:
    """The type in which values of this type are summed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def is_view(node: Node, graph: Graph) -> bool:
    record = registry.find(node, graph)
    return record is not None and record.view
