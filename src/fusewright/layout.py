"""Channels-last values: the library's convolutions on tensor cores are made for them, and convert what lies otherwise on every call.

Nothing but the order in memory changes. Results of the library's convolutions, what they read, and what kernels make of such
values lie channels-last; what the caller sees and what convolutions of our own touch lie as they always do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import sizes
from .graph import Node, Ref
from .plan import Plan
from .prims import Prim, Reshape, View
from .rules.patterns import EVERY_CONVOLUTION


def channels_last(made: Plan) -> Plan:
    """The plan with the library's convolutions of images and volumes on channels-last data."""
    returned = {o.value.name for o in made.graph.outputs if isinstance(o.value, Ref)}
    calls = [call.node for call in made.calls if is_convolution(call.node) and call.node.name not in returned]
    value = made.lowered.value
    kept = {made.base(value[name]).name for name in returned if name in value}
    kept |= {value[node.name] for node in made.graph.nodes if node.is_leaf}
    kept |= {made.base(value[name]).name for call in made.calls for name in call.node.inputs if joins(made, name)}
    read = {made.base(value[node.args[0].name]).name for node in calls if node.args[0].name in value}
    return spread(made, {value[node.name] for node in calls} | read, kept)


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
