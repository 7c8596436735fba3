"""Applies laws to a graph until none applies. This file knows no law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..ir.graph import Graph, Node, Ref, draws, map_refs
from ..options import Options
from . import nonfinite
from .book import LAWS
from .law import HIDES_NONFINITE, NONFINITE_KIND, Applied, Law, Site, aten, is_view, made_for
from .ranges import keep_ranges


def rewrite(
    graph: Graph, options: Options | None = None, laws: Sequence[Law] | None = None
) -> tuple[Graph, tuple[Applied, ...]]:
    """The graph after every law that applies, and what was applied, in order. Ends because every law removes work."""
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


def replaced(graph: Graph, node: Node, made: Sequence[Node], value: Ref, users: Sequence[str]) -> Graph:
    """The graph with `made` inserted before the node, and every use of the node reading `value`."""
    change = {node.name: value}
    nodes: list[Node] = []
    for old in graph.nodes:
        if old.name == node.name:
            nodes += made
            if draws(node) and any(map(draws, made)):
                continue  # numbers are drawn once
        elif old.name in users:
            old = replace(old, args=map_refs(old.args, change), kwargs=map_refs(old.kwargs, change))
        nodes.append(whatever_the_strides(old))
    outputs = tuple(replace(o, value=map_refs(o.value, change)) for o in graph.outputs)
    return without_dead(replace(graph, nodes=tuple(nodes), outputs=outputs))


def whatever_the_strides(node: Node) -> Node:
    """A view as a reshape: what it looks at may now lie in memory in another order."""
    views = (aten.view.default, aten._unsafe_view.default)
    return replace(node, target=aten.reshape.default) if node.target in views else node


def without_dead(graph: Graph) -> Graph:
    """A value nobody uses is dropped, unless making it draws random numbers."""
    live: set[str] = {o.value.name for o in graph.outputs if isinstance(o.value, Ref)}
    for node in reversed(graph.nodes):
        if node.name in live or draws(node):
            live.add(node.name)
            live |= set(node.inputs)
    nodes = tuple(n for n in graph.nodes if n.name in live or n.target == "input")
    return graph if len(nodes) == len(graph.nodes) else replace(graph, nodes=nodes)
