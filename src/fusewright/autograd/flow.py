"""Where gradients flow in a graph: which values have one, whose is asked for, and what stops it."""

from __future__ import annotations

import functools

import torch
from torch import nn

from ..ir.graph import Graph, Node, Ref, refs
from ..ir.plan import Plan
from .trace import plain_form

# Results of these have no gradient, whatever they are made of.
STOPS = frozenset(
    getattr(packet, overload)
    for name in (
        "detach detach_ zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty "
        "linspace logspace"
    ).split()
    for packet in [getattr(torch.ops.aten, name)]
    for overload in packet.overloads()
)


def reference_reads(node: Node) -> tuple[str, ...]:
    """What the node's call reads where only its derivative matters: batch norm without its running statistics, a copy without what
    it takes the place of."""
    if node.target is torch.ops.aten.copy.default:
        return tuple(ref.name for ref in refs(node.args[1:]))
    return plain_form(node).inputs


def trainable(graph: Graph, model: nn.Module) -> set[str]:
    """Values that training asks gradients of: parameters that have them, inputs that are said to, and what is computed from these; of
    a model that has neither, a loss, its inputs, but for those that it changes: PyTorch refuses them a gradient."""
    parameters = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    changed = {output.path for output in graph.outputs if output.kind == "input"}
    found: set[str] = set()
    for node in graph.nodes:
        given = node.target == "input" and node.name not in changed
        asked = node.target == "parameter" and node.args[0] in parameters if parameters or graph.trained else given
        if carries(node) and (asked or node.name in graph.trained or any(name in found for name in node.inputs)):
            found.add(node.name)
    return found


def carries(node: Node) -> bool:
    """It may have a gradient if what it is made of has one. A mask, or what was drawn in the size of a value, has none."""
    of_numbers = node.dtype is None or node.dtype.is_floating_point or node.dtype.is_complex
    return of_numbers and node.target not in STOPS


class Flow:
    """What of a plan's graph autograd would follow."""

    def __init__(self, plan: Plan):
        self.plan, self.graph = plan, plan.graph

    def differentiable(self, name: str) -> bool:
        node = self.graph[name]
        assert node.dtype is not None
        return node.dtype.is_floating_point and name in self.smooth and name in self.followed and name not in self.only_updates

    @functools.cached_property
    def only_updates(self) -> set[str]:
        """New values of buffers that no one else sees."""
        leaving = [(o.value.name, o.kind) for o in self.graph.outputs if isinstance(o.value, Ref)]
        read = {name for call in self.plan.calls for name in call.node.inputs}
        return {n for n, kind in leaving if kind == "buffer"} - {n for n, kind in leaving if kind == "return"} - read

    @functools.cached_property
    def followed(self) -> set[str]:
        """Values whose gradient someone may ask for: a path along which nothing stops it leads on to what leaves the model."""
        found = {o.value.name for o in self.graph.outputs if isinstance(o.value, Ref) and o.kind != "buffer"}
        for node in reversed(self.graph.nodes):
            if node.name in found and node.name in self.smooth:
                found.update(reference_reads(node))
        return found

    @functools.cached_property
    def smooth(self) -> set[str]:
        """Values with a path back to a tensor that may ask for a gradient, along which nothing stops it."""
        found: set[str] = set()
        for node in self.graph.nodes:
            if carries(node) and (node.is_leaf or any(n in found for n in reference_reads(node))):
                found.add(node.name)
        return found
