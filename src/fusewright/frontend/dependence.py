"""What the results provably do not depend on."""

from __future__ import annotations

from ..ir.graph import Graph, Node, Ref
from ..laws.ranges import is_constant, normalised_count, range_of
from ..ops.registry import aten

NORMS = {aten.layer_norm.default, aten.group_norm.default, aten.instance_norm.default}


def unused_inputs(graph: Graph) -> list[str]:
    """A sentence, with the reason, for each input that no result depends on as long as all values are finite."""
    reached: set[str] = set()
    stops: list[tuple[Node, str]] = []
    pending = [o.value.name for o in graph.outputs if isinstance(o.value, Ref) and o.kind == "return"]
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        node = graph[name]
        inputs, why = depends_on(graph, node)
        if why:
            stops.append((node, why))
        pending += inputs
    missed = [(i, name) for i, name in enumerate(graph.inputs) if name not in reached]
    return [f"output does not depend on input {i} ({name}){reason(graph, name, stops)}" for i, name in missed]


def depends_on(graph: Graph, node: Node) -> tuple[list[str], str]:
    """The operands that can change the node's value; where that is not all of them, what the value is."""
    interval = range_of(graph, node.name) if node.shape is not None else None
    if interval is not None and is_constant(interval) and node.inputs:
        return [], f"always {interval[0] + 0.0:g}"
    if node.target in NORMS and normalised_count(node) == 1:
        bound = node.bound()
        bias = bound["bias"].name if isinstance(bound["bias"], Ref) else None
        return ([bias] if bias else []), f"always {bias or 0}: a norm of one value at a time"
    return list(node.inputs), ""


def reason(graph: Graph, name: str, stops: list[tuple[Node, str]]) -> str:
    """The place at which the input's influence ends."""
    for node, why in stops:
        if name in ancestors(graph, node):
            code = f"`{node.where.code}`" if node.where.code else node.name
            return f": {code} ({node.where}) is {why}" if node.where.line else f": {code} is {why}"
    return ""


def ancestors(graph: Graph, node: Node) -> set[str]:
    found: set[str] = set()
    pending = list(node.inputs)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += graph[name].inputs
    return found
