"""Channels-last values: the library's convolutions on tensor cores are made for them, and convert what lies otherwise on every call.

Nothing but the order in memory changes. Results of the library's convolutions, what they read, and what kernels make of such
values lie channels-last; what the caller sees and what convolutions of our own touch lie as they always do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch

from ..codegen.loops.transpose import fills_tiles
from ..ir import sizes
from ..ir.expr import Arg
from ..ir.graph import Graph, Node, Ref, refs
from ..ir.index import contiguous
from ..ir.lowered import Lowered
from ..ir.plan import Plan
from ..ir.prims import Pointwise, Prim, Reshape, View
from ..laws import patterns
from ..laws.law import Site
from ..laws.patterns import EVERY_CONVOLUTION, convolution_at
from .library import Convolution

COPY = "_channels_last"  # follows the name of an input that is copied for convolutions
CLONE = torch.ops.aten.clone.default


def channels_last(made: Plan) -> Plan:
    """The plan with the library's convolutions of images and volumes on channels-last data."""
    returned = {o.value.name for o in made.graph.outputs if isinstance(o.value, Ref)}
    calls = [call.node for call in made.calls if is_convolution(call.node) and call.node.name not in returned]
    value = made.lowered.value
    kept = {made.base(value[name]).name for name in returned if name in value}
    kept |= {value[node.name] for node in made.graph.nodes if node.is_leaf}
    kept |= {made.base(value[name]).name for call in made.calls for name in call.node.inputs if joins(made, name)}
    kept |= {made.base(value[name]).name for call in made.calls for name in drawn_for(call.node, made.graph) if name in value}
    read = {made.base(value[node.args[0].name]).name for node in calls if node.args[0].name in value}
    return spread(made, {value[node.name] for node in calls} | read, kept)


def coarse_calls(made: Plan) -> list[str]:
    """The library's convolutions on channels-last data that it rounds the operands of there, and not as eager calls it."""
    plain_only = made.precision.plain_only if made.precision is not None else ()
    found = []
    for node in (call.node for call in made.calls if plain_only and is_convolution(call.node)):
        at = convolution_at(Site(made.graph, node, {}), node)
        found += [node.name] if at is not None and as_asked(at) in plain_only and lies_channels_last(made, node) else []
    return found


def with_coarse_gradients(made: Plan, node: Node) -> patterns.Convolution | None:
    """The convolution that such a call is where it is a gradient whose operands the library rounds there, and not as eager calls it."""
    library = made.precision.library if made.precision is not None else None
    if library is None or not library.coarser_gradients or not is_convolution(node) or not lies_channels_last(made, node):
        return None
    at = convolution_at(Site(made.graph, node, {}), node)
    return at if at is not None and as_asked(at) in library.coarser_gradients else None


def lies_channels_last(made: Plan, node: Node) -> bool:
    """A convolution whose result or input lies channels-last."""
    prims, value = made.lowered.prims, made.lowered.value
    return any(name in value and prims[value[name]].channels_last for name in (node.name, node.args[0].name))


def as_asked(at: patterns.Convolution) -> Convolution:
    """The convolution as the library is asked about it."""
    return Convolution(at.in_group, at.channels_out, at.kernel, at.stride, at.padding, at.dilation, at.groups, at.transposed)


def spread(made: Plan, seeds: Iterable[str], kept: Iterable[str] = ()) -> Plan:
    """The plan in which `seeds`, and what kernels make of them, lie channels-last. `kept` stay as they are."""
    prims = made.lowered.prims
    fixed = set(kept) | {name for kernel in made.kernels if kernel.fused is not None for name in (*kernel.loads, *kernel.stores)}
    found = {name for name in seeds if has_channels(prims[name]) and name not in fixed}
    for kernel in made.kernels:
        if kernel.fused is None and not found.isdisjoint(kernel.loads):
            found |= {name for name in kernel.stores if has_channels(prims[name])} - fixed - kernel.overwrites.keys()
    marked = {name: replace(prim, channels_last=name in found) for name, prim in prims.items()}
    return replace(made, lowered=replace(made.lowered, prims=marked))


def with_copies(graph: Graph, made: Plan, left: Collection[str]) -> Graph:
    """The graph in which inputs are copied by a node of their own, where convolutions of its plan would have PyTorch do it.

    Nodes in `left` are not made: there PyTorch copies them faster.
    """
    prims, value = made.lowered.prims, made.lowered.value
    calls = [call.node for call in made.calls if is_convolution(call.node) and prims[value[call.node.name]].channels_last]
    copied = {node.name: node.args[0].name for node in calls}
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        source = graph[copied[node.name]] if node.name in copied else node
        name = source.name + COPY
        if source.target == "input" and source is not node and name not in left and is_copied_here(source, graph):
            order = torch.channels_last if len(source.shape or ()) == 4 else torch.channels_last_3d
            arguments = ((Ref(source.name),), {"memory_format": order})
            nodes.setdefault(name, Node(name, CLONE, *arguments, source.shape, source.dtype, node.where))
            node = replace(node, args=(Ref(name), *node.args[1:]))
        nodes[node.name] = node
    return replace(graph, nodes=tuple(nodes.values())).check() if len(nodes) > len(graph.nodes) else graph


def is_copied_here(source: Node, graph: Graph) -> bool:
    small = source.dtype is not None and source.dtype.itemsize <= 4
    return small and source.name + COPY not in graph.index and fills_tiles(source.shape or (), graph)


def is_copy(node: Node | None) -> bool:
    """One of those nodes."""
    return node is not None and node.target is CLONE and node.name.endswith(COPY) and "memory_format" in node.kwargs


def copied(lowered: Lowered) -> Lowered:
    """Those nodes as values of their own: a copy is otherwise what it is a copy of."""
    copies = {lowered.value[node.args[0].name]: node.name for node in lowered.graph.nodes if is_copy(node)}
    prims: dict[str, Prim] = {}
    for name, prim in lowered.prims.items():
        prims[name] = prim
        copy = copies.get(name)
        if copy is not None:
            prims[copy] = Prim(copy, Pointwise(Arg(0), prim.dtype), (name,), prim.shape, prim.dtype, copy)
    return replace(lowered, prims=prims, value=lowered.value | {copy: copy for copy in copies.values()})


def drawn_for(node: Node, graph: Graph) -> list[str]:
    """What random numbers are drawn for in the order of its dimensions: a tensor that lies otherwise would be copied."""
    read = [ref.name for ref in refs((node.args, dict(node.kwargs)))] if node.strides else []
    return [name for name, strides in zip(read, node.strides, strict=False) if strides == contiguous(graph[name].shape or ())]


def joins(made: Plan, name: str) -> bool:
    """A call reads it through a reshape, for which PyTorch would put it into the order of its shape first."""
    prim = made.lowered.prims[made.lowered.value[name]] if name in made.lowered.value else None
    while prim is not None and isinstance(prim.op, View):
        if isinstance(prim.op, Reshape):
            return True
        prim = made.lowered.prims[prim.inputs[0]]
    return False


def is_convolution(node: Node) -> bool:
    """Of images or volumes, the kind that may lie channels-last."""
    return node.target in EVERY_CONVOLUTION and node.shape is not None and len(node.shape) in (4, 5)


def has_channels(prim: Prim) -> bool:
    """An image or a volume for which the order makes a difference."""
    images = len(prim.shape) in (4, 5) and not sizes.is_one(prim.shape[1])
    return images and not all(map(sizes.is_one, prim.shape[2:]))


def memory_format(prim: Prim) -> str:
    """The argument of `contiguous` and `empty` for a value that lies so."""
    if not prim.channels_last:
        return ""
    return "memory_format=torch.channels_last" + ("_3d" if len(prim.shape) == 5 else "")
