"""Applies laws to a graph until none applies. A law is one function in rules.py; this file knows no law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from . import sizes
from .graph import Dim, Graph, Node, Output, Ref, map_refs
from .options import Options

aten = torch.ops.aten

# What a law may do to rounding and to non-finite values.
REASSOCIATES = "reassociates"  # rounding may differ
NONFINITE_KIND = "nonfinite_kind"  # non-finite stays non-finite, but NaN may become Inf or the reverse
HIDES_NONFINITE = "hides_nonfinite"  # a non-finite input could give a finite result: only with --assume-finite


@dataclass(frozen=True)
class Law:
    name: str
    identity: str
    apply: Callable[[Site], Ref | None]
    tags: frozenset[str]
    examples: tuple[Any, ...]
    last: bool = False  # tried only when no other law applies any more: it hides structure that others look for


@dataclass(frozen=True)
class Applied:
    """A law, where it was used, and what it says."""

    law: str
    node: str
    where: str
    identity: str

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.law}{place}: {self.identity}"


LAWS: list[Law] = []


def law(
    name: str, *tags: str, examples: Sequence[Any] = (), last: bool = False
) -> Callable[[Callable[[Site], Ref | None]], Callable[[Site], Ref | None]]:
    """Registers a function from a site to the value that replaces the node there, or None. Its docstring states the identity."""

    def wrap(function: Callable[[Site], Ref | None]) -> Callable[[Site], Ref | None]:
        assert function.__doc__, f"law {name} must state its identity"
        LAWS.append(Law(name, " ".join(function.__doc__.split()), function, frozenset(tags), tuple(examples), last))
        return function

    return wrap


class Site:
    """A node at which a law is tried, and the means to build what replaces it."""

    def __init__(self, graph: Graph, node: Node, users: dict[str, list[str]]):
        self.graph, self.node, self.users = graph, node, users
        self.made: list[Node] = []
        self.bound = node.bound() if isinstance(node.target, OpOverload) else {}

    # ---- looking

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

    # ---- building

    def call(
        self, target: OpOverload, *args: Any, shape: Sequence[Dim], dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Ref:
        label = str(target).removeprefix("aten.").split(".")[0].strip("_")
        name, count = f"{self.node.name}_{label}", 1
        taken = {n.name for n in self.made} | self.graph.index.keys()
        while name in taken:
            count += 1
            name = f"{self.node.name}_{label}{count}"
        self.made.append(Node(name, target, args, kwargs, tuple(shape), dtype or self.node.dtype, self.node.where))
        return Ref(name)

    def reduced_shape(self, ref: Ref, dims: Sequence[int], keepdim: bool) -> tuple[Dim, ...]:
        return tuple(1 if d in dims else s for d, s in enumerate(self.shape(ref)) if keepdim or d not in dims)

    def sum(self, ref: Ref, dims: Sequence[int], keepdim: bool = False) -> Ref:
        return self.call(
            aten.sum.dim_IntList,
            ref,
            list(dims),
            keepdim,
            shape=self.reduced_shape(ref, dims, keepdim),
            dtype=self[ref].dtype,
        )

    def reshape(self, ref: Ref, shape: Sequence[Dim]) -> Ref:
        return self.call(aten.reshape.default, ref, list(shape), shape=shape, dtype=self[ref].dtype)

    def slice(self, ref: Ref, dim: int, start: Dim, length: Dim, step: int = 1) -> Ref:
        shape = list(self.shape(ref))
        if sizes.same(start, 0) and sizes.same(length, shape[dim]) and step == 1:
            return ref
        shape[dim] = length
        stop = sizes.tidy(start + (length - 1) * step + 1)
        return self.call(aten.slice.Tensor, ref, dim, start, stop, step, shape=shape, dtype=self[ref].dtype)

    def binary(self, target: OpOverload, a: Ref, b: Any) -> Ref:
        from .lower import broadcast

        shapes = [self.shape(a)] + ([self.shape(b)] if isinstance(b, Ref) else [])
        return self.call(target, a, b, shape=broadcast(shapes), dtype=self[a].dtype)

    def mul(self, a: Ref, b: Any) -> Ref:
        return self.binary(aten.mul.Tensor, a, b)

    def add(self, a: Ref, b: Any) -> Ref:
        return self.binary(aten.add.Tensor, a, b)

    def divide(self, a: Ref, b: Any) -> Ref:
        return self.binary(aten.div.Tensor, a, b)

    def stack(self, refs: Sequence[Ref], dim: int) -> Ref:
        shape = list(self.shape(refs[0]))
        shape.insert(dim, len(refs))
        return self.call(aten.stack.default, list(refs), dim, shape=shape, dtype=self[refs[0]].dtype)


def rewrite(
    graph: Graph, options: Options | None = None, laws: Sequence[Law] | None = None
) -> tuple[Graph, tuple[Applied, ...]]:
    """The graph after every law that applies, and what was applied, in order. Deterministic; ends because every law removes work."""
    from . import rules  # noqa: F401  its decorators fill LAWS

    allowed = [
        candidate
        for candidate in (LAWS if laws is None else laws)
        if HIDES_NONFINITE not in candidate.tags or (options is not None and options.assume_finite)
    ]
    applied: list[Applied] = []
    limit = 20 * len(graph.nodes) + 20  # far above what laws that remove work can need
    graph = without_dead(graph)
    for _ in range(limit):
        step = first_application(graph, [c for c in allowed if not c.last]) or first_application(graph, allowed)
        if step is None:
            return graph, tuple(applied)
        graph, record = step
        applied.append(record)
    raise AssertionError(f"laws do not settle: {applied[-1]}")


def first_application(graph: Graph, laws: Sequence[Law]) -> tuple[Graph, Applied] | None:
    users = graph.users()
    for node in graph.nodes:
        if node.is_leaf:
            continue
        for candidate in laws:
            site = Site(graph, node, users)
            found = candidate.apply(site)
            if found is not None:
                changed = replaced(graph, node, site.made, found)
                return changed, Applied(candidate.name, node.name, str(node.where), candidate.identity)
    return None


def replaced(graph: Graph, node: Node, made: Sequence[Node], value: Ref) -> Graph:
    """The graph with `made` inserted before the node, and every use of the node reading `value`."""
    change = {node.name: value}
    nodes: list[Node] = []
    for old in graph.nodes:
        if old.name == node.name:
            nodes += made
        nodes.append(
            replace(old, args=map_refs(old.args, change), kwargs=map_refs(old.kwargs, change))
            if old.name != node.name
            else old
        )
    outputs = tuple(Output(map_refs(o.value, change), o.kind, o.path) for o in graph.outputs)
    return without_dead(replace(graph, nodes=tuple(nodes), outputs=outputs)).check()


def without_dead(graph: Graph) -> Graph:
    """A value nobody uses is dropped, unless making it draws random numbers."""
    live: set[str] = {o.value.name for o in graph.outputs if isinstance(o.value, Ref)}
    for node in reversed(graph.nodes):
        random = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if node.name in live or random:
            live.add(node.name)
            live |= set(node.inputs)
    nodes = tuple(n for n in graph.nodes if n.name in live or n.target == "input")
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=nodes)


__all__ = ["LAWS", "Applied", "Law", "Site", "law", "rewrite", "tree_leaves"]
