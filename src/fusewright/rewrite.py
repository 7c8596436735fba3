"""Applies laws to a graph until none applies. A law is one function in rules.py; this file knows no law."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch._ops import OpOverload

from . import nonfinite, ops, sizes
from .graph import Dim, Graph, Node, Output, Ref, map_refs
from .ops import Interval
from .options import Options
from .ranges import keep_ranges, range_of

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

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.law}{place}: {self.identity}"


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

    def again(self, node: Node, shape: Sequence[Dim], changed: Mapping[str, Any]) -> Ref:
        """The same call with some arguments changed."""
        assert isinstance(node.target, OpOverload)
        arguments = {**node.bound(), **changed}
        schema = node.target._schema.arguments
        args = [arguments[a.name] for a in schema if not a.kwarg_only]
        defaults = {a.name: a.default_value for a in schema if a.kwarg_only and a.has_default_value()}
        kwargs = {k: v for k, v in arguments.items() if k in defaults and v != defaults[k]}
        return self.call(node.target, *args, shape=shape, dtype=node.dtype, **kwargs)

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
        from .lower import broadcast

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


def rewrite(
    graph: Graph, options: Options | None = None, laws: Sequence[Law] | None = None
) -> tuple[Graph, tuple[Applied, ...]]:
    """The graph after every law that applies, and what was applied, in order. Ends because every law removes work."""
    from . import rules  # noqa: F401  its decorators fill LAWS

    finite = options is not None and options.assume_finite
    allowed = [c for c in (LAWS if laws is None else laws) if finite or HIDES_NONFINITE not in c.tags]
    early, late = by_target([c for c in allowed if not c.last]), by_target(allowed)
    applied: list[Applied] = []
    graph, table, start = without_dead(graph), early, 0
    for _ in range(40 * len(graph.nodes) + 40):  # far above what laws that remove work can need
        step = next_application(graph, table, finite, start)
        if step is not None:
            graph, record, start = step
            applied.append(record)
            if table is late:
                table, start = early, 0
        elif start > 0:
            start = 0  # once more from the front
        elif table is early:
            table = late
        else:
            return graph.check(), tuple(applied)
    raise AssertionError(f"laws do not settle: {applied[-1]}")


def by_target(laws: Sequence[Law]) -> dict[Any, list[Law]]:
    found: dict[Any, list[Law]] = {}
    for candidate in laws:
        for target in candidate.at:
            found.setdefault(target, []).append(candidate)
    return found


def next_application(
    graph: Graph, laws: Mapping[Any, Sequence[Law]], finite: bool, start: int
) -> tuple[Graph, Applied, int] | None:
    """(the graph after the first law that applies at node number `start` or behind it, its record, where to go on)."""
    users = graph.users()
    for number, node in enumerate(graph.nodes[start:], start):
        for candidate in laws.get(node.target, ()):
            site = Site(graph, node, users)
            found = candidate.apply(site)
            if found is None or not stays_fresh(site, found):
                continue
            if NONFINITE_KIND in candidate.tags and not finite and nonfinite.tells_apart(graph, users, node.name):
                continue
            changed = replaced(graph, node, site.made, found, users[node.name])
            before = {n.name for n in graph.nodes[:number]}
            keep_ranges(graph, changed, before)
            record = Applied(candidate.name, made_for(node), str(node.where), candidate.identity, candidate.tags)
            return changed, record, sum(n.name in before for n in changed.nodes)
    return None


def stays_fresh(site: Site, value: Ref) -> bool:
    """A result that had memory of its own keeps it: it becomes neither the caller's tensor nor another result's."""
    if is_view(site.node, site.graph) or not reaches_result(site, site.node.name):
        return True
    base = site[value]
    while is_view(base, site.graph):
        base = site[Ref(base.inputs[0])]
    return base in site.made or not (base.is_leaf or reaches_result(site, base.name))


def reaches_result(site: Site, name: str) -> bool:
    """The value, or a view of it, leaves the graph."""
    return any(
        user not in site.graph.index
        or (is_view(site.graph[user], site.graph) and user != site.node.name and reaches_result(site, user))
        for user in site.users[name]
    )


def is_view(node: Node, graph: Graph) -> bool:
    record = ops.find(node, graph)
    return record is not None and record.view


def replaced(graph: Graph, node: Node, made: Sequence[Node], value: Ref, users: Sequence[str]) -> Graph:
    """The graph with `made` inserted before the node, and every use of the node reading `value`."""
    change = {node.name: value}
    nodes: list[Node] = []
    for old in graph.nodes:
        if old.name == node.name:
            nodes += made
        elif old.name in users:
            old = replace(old, args=map_refs(old.args, change), kwargs=map_refs(old.kwargs, change))
        nodes.append(whatever_the_strides(old))
    outputs = tuple(Output(map_refs(o.value, change), o.kind, o.path) for o in graph.outputs)
    return without_dead(replace(graph, nodes=tuple(nodes), outputs=outputs))


def whatever_the_strides(node: Node) -> Node:
    """A view as a reshape: what it looks at may now lie in memory in another order."""
    views = (aten.view.default, aten._unsafe_view.default)
    return replace(node, target=aten.reshape.default) if node.target in views else node


def draws(node: Node) -> bool:
    """It draws random numbers: attention does not, where nothing is dropped."""
    random = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return random and node.bound().get("dropout_p") != 0.0


def without_dead(graph: Graph) -> Graph:
    """A value nobody uses is dropped, unless making it draws random numbers."""
    live: set[str] = {o.value.name for o in graph.outputs if isinstance(o.value, Ref)}
    for node in reversed(graph.nodes):
        if node.name in live or draws(node):
            live.add(node.name)
            live |= set(node.inputs)
    nodes = tuple(n for n in graph.nodes if n.name in live or n.target == "input")
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=nodes)
