"""What training holds in memory, step by step: regions whose gradients by kernels would hold more than PyTorch's own are left to PyTorch.

Counted for the sizes of the example. PyTorch's part is not predicted but run, on tensors that have no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..ir import sizes
from ..ir.graph import Graph, Ref
from ..ir.interpret import call
from ..ir.plan import Call
from ..schedule.footprint import Footprint
from .regions import Region, Regions
from .trace import plain_form

MORE = 1.04  # times what PyTorch holds, and so many bytes besides: within the bound of 5 % and 8 MB
BESIDES = 4 << 20


@dataclass(frozen=True)
class Held:
    """What one step holds for backward, in bytes, and what its backward adds to that at most."""

    named: Mapping[str, int] = field(default_factory=dict)  # nodes that others may hold too
    inner: int = 0
    adds: int = 0


def node_bytes(name: str, graph: Graph) -> int:
    """Of a value of the graph; none of what is there before the model runs."""
    node = graph[name]
    if node.is_leaf or node.shape is None or node.dtype is None:
        return 0
    return graph.hint(sizes.product(node.shape)) * node.dtype.itemsize


def by_pytorch(region: Region, regions: Regions, wanted: Sequence[str]) -> Held | None:
    """A region's reference under autograd. None where it cannot run without memory."""
    graph, arguments, outputs = regions.graph, regions.reference_inputs(region), regions.differentiated(region)
    symbols = {symbol: binding.hint for symbol, binding in graph.symbols.items()}
    values: dict[str, Any] = {}
    for name in arguments:
        node = graph[name]
        if node.shape is None or node.dtype is None:
            return None
        values[name] = torch.empty(tuple(map(graph.hint, node.shape)), dtype=node.dtype, device="meta", requires_grad=name in wanted)
    place = {values[name].untyped_storage()._cdata: name for name in arguments}
    packed: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        packed[storage._cdata] = storage.nbytes()
        return tensor

    try:
        with torch.enable_grad(), Footprint() as footprint:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                for node in map(plain_form, regions.reference_nodes(region)):
                    if node.target is torch.ops.aten.copy.default:  # what it takes the place of is not read
                        size = tuple(map(graph.hint, node.shape or ()))
                        values[node.name] = values[node.args[1].name].to(node.dtype).expand(size).clone()
                        continue
                    values[node.name] = call(node, values, symbols)
            targets, results = [values[name] for name in wanted], {name: values[name] for name in outputs}
            values.clear()
            smooth = [t for t in results.values() if t.requires_grad]
            if not targets or not smooth:
                return None
            upstream = [torch.empty_like(t) for t in smooth]
            before = footprint.peak = footprint.bytes
            found = torch.autograd.grad(smooth, targets, upstream, allow_unused=True)
            del smooth
            adds = footprint.peak - before
        del found
    except (RuntimeError, NotImplementedError):
        return None
    place |= {t.untyped_storage()._cdata: name for name, t in results.items()}
    named = {place[key]: node_bytes(place[key], graph) for key in packed if key in place}
    return Held(named, sum(size for key, size in packed.items() if key not in place), adds)


def by_kernels(region: Region, regions: Regions, saved: Iterable[str], adds: int) -> Held:
    """What its kernels save: all that its reference reads, and what is saved, as primitives."""
    outputs, _ = regions.results(region)
    named = {name: node_bytes(name, regions.graph) for name in regions.reference_inputs(region)}
    memory = {regions.plan.base(regions.lowered.value[name]).name: name for name in outputs}
    inner = 0
    for name in saved:
        prim = regions.prims[name]
        if name in memory:
            named[memory[name]] = node_bytes(memory[name], regions.graph)
        else:
            inner += regions.graph.hint(sizes.product(prim.shape)) * prim.dtype.itemsize
    return Held(named, inner, adds)


def by_recomputing(region: Region, regions: Regions, theirs: Held) -> Held:
    """Kernels forward, and PyTorch's operators once more in backward."""
    named = {name: node_bytes(name, regions.graph) for name in regions.reference_inputs(region)}
    results = sum(node_bytes(name, regions.graph) for name in regions.outputs(region))
    return Held(named, 0, theirs.inner + theirs.adds + results)


def too_heavy(ours: Mapping[str, Held], theirs: Mapping[str, Held | None], regions: Regions) -> set[str]:
    """Regions to leave to PyTorch, as few as it takes: then no step of backward holds more than PyTorch alone would."""
    graph = regions.graph
    steps: list[str] = []
    fixed: dict[str, Held] = {}
    for number, step in enumerate(regions.plan.steps):
        name = f"call {number}" if isinstance(step, Call) else regions.region_of(step).name
        if isinstance(step, Call):
            read = {n: node_bytes(n, graph) for n in step.node.inputs} if step.node.target != "getitem" else {}
            fixed[name] = Held(read, 0, sum(read.values()))
        if not steps or steps[-1] != name:
            steps.append(name)
    for region in regions:
        alone = theirs.get(region.name)
        if region.name not in ours:
            fixed[region.name] = alone or Held()
        elif alone is None:
            fixed[region.name] = ours[region.name]
    returned = {o.value.name: node_bytes(o.value.name, graph) for o in graph.outputs if isinstance(o.value, Ref)}
    reference = {**{name: held for name, held in theirs.items() if held is not None}, **fixed}
    most = MORE * peak(steps, reference, returned)[0] + BESIDES
    left: set[str] = set()
    now = {**ours, **fixed}
    other = {
        region.name: held if regions.referable(region) else by_recomputing(region, regions, held)
        for region in regions
        if region.name not in fixed and (held := theirs[region.name]) is not None
    }
    while True:
        found, at = peak(steps, now, returned)
        if found <= most:
            return left
        gains = {}
        for name in (n for n in steps[: at + 1] if n in other and n not in left):
            changed = {**now, name: other[name]}
            gains[name] = found - held_at(at, steps, changed, returned)
        best = max(gains, key=lambda name: gains[name], default=None)
        if best is None or gains[best] <= 0:
            return left
        left.add(best)
        now[best] = other[best]


def held_at(position: int, steps: Sequence[str], held: Mapping[str, Held], returned: Mapping[str, int]) -> int:
    """When backward has come to a step: what it and those before it saved, and what it adds."""
    named = dict(returned)
    for name in steps[: position + 1]:
        named.update(held[name].named)
    return sum(named.values()) + sum(held[name].inner for name in steps[: position + 1]) + held[steps[position]].adds


def peak(steps: Sequence[str], held: Mapping[str, Held], returned: Mapping[str, int]) -> tuple[int, int]:
    """The most bytes, and at which step."""
    named, inner, best = dict(returned), 0, (sum(returned.values()), 0)
    for position, name in enumerate(steps):
        named.update(held[name].named)
        inner += held[name].inner
        best = max(best, (sum(named.values()) + inner + held[name].adds, position))
    return best
