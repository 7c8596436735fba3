"""A plan's kernels in regions: what each leaves in memory for others, what it reads, and which part of the graph it stands for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from ..codegen.mma.depthwise import is_depthwise
from ..codegen.mma.product import Product
from ..ir import sizes
from ..ir.graph import Graph, Node, Output, Ref
from ..ir.plan import Call, Kernel, Plan, Shortcut, counts_up, label
from ..ir.prims import Reshape
from ..schedule.attention_fusion import Attended
from ..schedule.inplace import overwritten
from ..schedule.naming import without_ending
from .flow import Flow, reference_reads


@dataclass(frozen=True)
class Region:
    """Kernels that run one after another with no library call between: one differentiable step."""

    name: str
    kernels: tuple[Kernel, ...]


def is_asked_for(name: str, kernel: Kernel) -> bool:
    """A convolution or a product that its kernel ends: written where memory is given for it."""
    if kernel.fused is None or isinstance(kernel.fused, Attended) or kernel.fused.anchor.value != name or name == kernel.stores[0]:
        return False
    return isinstance(kernel.fused.anchor.conv, Product) or not is_depthwise(kernel.fused.anchor.conv)


class Regions:
    """The regions of one plan, in order, and which values are in memory between them."""

    def __init__(self, plan: Plan):
        self.plan, self.home = plan, plan.home
        self.graph, self.lowered, self.prims = plan.graph, plan.lowered, plan.lowered.prims
        self.flow = Flow(plan)
        self.in_place = {new: old for kernel in plan.kernels for new, old in kernel.overwrites.items()}
        self.regions = self.find_regions()
        self.shorter = self.find_shorter()
        self.by_kernel = {id(kernel): region for region in (*self.regions, *self.shorter.values()) for kernel in region.kernels}
        self.needed_nodes = self.find_needed_nodes()

    def __iter__(self) -> Iterator[Region]:
        return iter(self.regions)

    def region_of(self, kernel: Kernel) -> Region:
        return self.by_kernel[id(kernel)]

    # ---- where they begin and end

    def find_regions(self) -> list[Region]:
        found: list[list[Kernel]] = []
        open_, before = False, None
        for step in self.plan.steps:
            shorter = self.shortcut_of(step)
            if isinstance(step, Kernel):
                if not open_ or shorter is not before:
                    found.append([])
                found[-1].append(step)
            open_, before = isinstance(step, Kernel) and not self.condenses(step), shorter
        regions, taken = [], set()
        for kernels in found:
            base = "_" + without_ending(kernels[-1].name)
            name, count = base, 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            taken.add(name)
            regions.append(Region(name, tuple(kernels)))
        return regions

    def shortcut_of(self, step: Kernel | Call) -> Shortcut | None:
        """The shortcut that the step is one of the steps of."""
        return next((shortcut for shortcut in self.plan.shortcuts if label(step) in shortcut.steps), None)

    def find_shorter(self) -> dict[str, Region]:
        """The region of each shortcut, by its kernel."""
        found, taken = {}, {region.name for region in self.regions}
        for shortcut in self.plan.shortcuts:
            name = "_" + without_ending(shortcut.kernel.name)
            while name in taken:
                name += "_"
            taken.add(name)
            found[shortcut.kernel.name] = Region(name, (shortcut.kernel,))
        return found

    def condenses(self, kernel: Kernel) -> bool:
        """It leaves far less than it reads, all of it values of nodes: backward may start from these, not from what it read."""
        stores = self.left_anyway(kernel)
        read, left = (
            sum(self.graph.hint(sizes.product(self.prims[n].shape)) for n in names)
            for names in (kernel.loads, stores)
        )
        return read >= 1 << 20 and left * 16 < read and all(self.node_of(name) is not None for name in stores)

    def left_anyway(self, kernel: Kernel) -> list[str]:
        """What it stores, whether backward asks for more or not."""
        return [name for name in kernel.stores if not is_asked_for(name, kernel)]

    # ---- which values exist in memory

    def find_needed_nodes(self) -> dict[str, None]:
        """Nodes whose value a library call reads or the model returns, in graph order."""
        wanted = {o.value.name for o in self.graph.outputs if isinstance(o.value, Ref) and not self.is_applied(o)}
        for call in self.plan.calls:
            wanted |= set(call.node.inputs)
        for kernel in self.plan.kernels:
            left = self.left_anyway(kernel) if self.condenses(kernel) else self.left_for_others(kernel)
            wanted |= {name for name in map(self.node_of, left) if name is not None}
        return dict.fromkeys(node.name for node in self.graph.nodes if node.name in wanted)

    def left_for_others(self, kernel: Kernel) -> list[str]:
        """Values of nodes that other regions read: they go no further back, or all that led to them would be differentiated, and
        computed, once more in each."""
        own = self.region_of(kernel).name
        return [name for name in kernel.stores if self.loaded_by.get(name, set()) - {own} and self.is_result(name)]

    def is_result(self, prim: str) -> bool:
        """It has a node's elements in their order; statistics beside a result are no node's of their own."""
        node = self.node_of(prim)
        if node is None or self.elements(self.lowered.value[node]) != prim:
            return False
        found = self.graph[node]
        return found.target != "getitem" or found.args[1] == 0

    def is_applied(self, output: Output) -> bool:
        """No tensor of its own: a counter that PyTorch adds to, or a buffer that a kernel overwrites."""
        return counts_up(output, self.graph) is not None or self.overwrites(output)

    def overwrites(self, output: Output) -> bool:
        return isinstance(output.value, Ref) and self.lowered.value.get(output.value.name) in self.in_place

    def node_of(self, prim: str) -> str | None:
        return self.first_of.get(prim)

    @functools.cached_property
    def first_of(self) -> dict[str, str]:
        """The first node whose value is a primitive in memory or a view of it."""
        return {self.plan.base(value).name: name for name, value in reversed(self.lowered.value.items())}

    def node_holding(self, prim: str) -> str | None:
        """A needed node whose elements are this primitive's, in the same order."""
        return self.holders.get(prim)

    @functools.cached_property
    def holders(self) -> dict[str, str]:
        value = self.lowered.value
        return {self.elements(value[name]): name for name in reversed(self.needed_nodes) if name in value}

    def elements(self, name: str) -> str:
        """The primitive in memory whose elements a value has in the same order: through reshapes alone."""
        while name not in self.home and isinstance(self.prims[name].op, Reshape):
            source = self.prims[name].inputs[0]
            if self.prims[source].channels_last:
                break  # PyTorch would put them into the order of the shape
            name = source
        return name

    @functools.cached_property
    def channels_last(self) -> set[str]:
        """Nodes whose values lie so."""
        return {name for name, prim in self.lowered.value.items() if self.prims[prim].channels_last}

    @functools.cached_property
    def called(self) -> set[str]:
        return {call.node.name for call in self.plan.calls}

    # ---- what a region reads and leaves

    def loads(self, region: Region) -> list[str]:
        """Primitives that its kernels read from memory, or overwrite, and that were there before."""
        own = {id(kernel) for kernel in region.kernels}
        read = [n for k in region.kernels for n in (*k.loads, *k.overwrites.values())]
        return list(dict.fromkeys(n for n in read if n not in self.home or id(self.home[n]) not in own))

    def argument_of(self, load: str) -> str:
        """What a region calls a tensor that it is given and its kernels read."""
        if self.prims[load].is_load:
            return self.prims[load].origin
        return self.node_holding(load) or load

    @functools.cached_property
    def loaded_by(self) -> dict[str, set[str]]:
        """Primitive -> the regions whose kernels load it."""
        found: dict[str, set[str]] = {}
        for region in self.regions:
            for name in (n for kernel in region.kernels for n in kernel.loads):
                found.setdefault(name, set()).add(region.name)
        return found

    def own_values(self, kernel: Kernel) -> set[str]:
        """Primitives that the kernels of its region store."""
        return self.stored_by[self.region_of(kernel).name]

    @functools.cached_property
    def stored_by(self) -> dict[str, set[str]]:
        every = (*self.regions, *self.shorter.values())
        return {region.name: {name for k in region.kernels for name in k.stores} for region in every}

    def outputs(self, region: Region) -> list[str]:
        """Nodes that the region computes and something outside it needs."""
        return self.outputs_of[region.name]

    @functools.cached_property
    def outputs_of(self) -> dict[str, list[str]]:
        """Needed nodes by the region that computes them."""
        found: dict[str, list[str]] = {region.name: [] for region in self.regions}
        for name in self.needed_nodes:
            node = self.graph[name]
            if not node.is_leaf and name not in self.called:
                kernel = self.home.get(self.plan.base(self.lowered.value[name]).name)
                if kernel is not None:
                    found[self.region_of(kernel).name].append(name)
        return found

    def results(self, region: Region) -> tuple[list[str], list[str]]:
        """Nodes it returns, and primitives that other regions' kernels read."""
        own = [n for k in region.kernels for n in k.stores]
        outputs = self.outputs(region)
        held = {self.elements(self.lowered.value[n]) for n in outputs}
        shorter = {name for shortcut in self.plan.shortcuts for name in shortcut.kernel.loads}
        return outputs, [n for n in own if (self.loaded_by.get(n, set()) - {region.name} or n in shorter) and n not in held]

    # ---- the part of the graph that a region stands for: its reference

    def reference_nodes(self, region: Region) -> list[Node]:
        """Graph nodes that the region's outputs are computed from, back to what is in memory before the region runs."""
        return self.references[region.name]

    def reference_inputs(self, region: Region) -> list[str]:
        inner = {node.name for node in self.reference_nodes(region)}
        return list(
            dict.fromkeys(
                name for node in self.reference_nodes(region) for name in reference_reads(node) if name not in inner
            )
        )

    def referable(self, region: Region) -> bool:
        """PyTorch's operators can compute all that it leaves, and autograd may keep what they read."""
        outputs, extra = self.results(region)
        overwrites = any(kernel.overwrites for kernel in region.kernels)
        changed = any(is_overwritten(name, self.graph) for name in self.reference_inputs(region))
        shortened = any(self.shortcut_of(kernel) is not None for kernel in region.kernels)  # nothing else would launch its kernels
        there = bool(outputs) and not extra and outputs == self.differentiated(region)
        return there and not overwrites and not changed and not shortened

    def read_by_kernels(self, region: Region) -> dict[str, str]:
        """Outputs that kernels of other regions read, which take their layout for granted -> the primitives whose layout it is."""
        shorter = {name for shortcut in self.plan.shortcuts for name in shortcut.kernel.loads}
        held = {name: self.elements(self.lowered.value[name]) for name in self.outputs(region)}
        return {name: prim for name, prim in held.items() if self.loaded_by.get(prim, set()) - {region.name} or prim in shorter}

    @functools.cached_property
    def references(self) -> dict[str, list[Node]]:
        return {region.name: self.find_reference(region) for region in self.regions}

    def find_reference(self, region: Region) -> list[Node]:
        stack, seen = self.differentiated(region), set()
        while stack:
            name = stack.pop()
            if name in seen or self.before(name, region):
                continue
            seen.add(name)
            stack += reference_reads(self.graph[name])
        return self.graph.in_order(seen)

    def differentiated(self, region: Region) -> list[str]:
        """Its outputs that have a gradient."""
        return [name for name in self.outputs(region) if self.flow.differentiable(name)]

    def before(self, name: str, region: Region) -> bool:
        """Its value is in memory when the region starts."""
        node = self.graph[name]
        if node.is_leaf:
            return True
        if name in self.called:
            return True
        if name not in self.needed_nodes:
            return False
        home = self.home.get(self.plan.base(self.lowered.value[name]).name)
        return home is not None and self.region_of(home) is not region


def with_overwrites(regions: Regions, model: nn.Module) -> Plan:
    """The plan in which kernels write new values of buffers straight into them, where they may."""
    plan = regions.plan
    number = {region.name: i for i, region in enumerate(regions)}
    kept_by = {node: number[region.name] for region in regions for node in regions.reference_inputs(region)}  # the last

    def saved_later(kernel: Kernel, node: str) -> bool:
        return kept_by.get(node, -1) > number[regions.region_of(kernel).name]

    found = overwritten(plan, model, saved_later)
    steps: list[Kernel | Call] = []
    for step in plan.steps:
        own = {new: old for old, (kernel, new) in found.items() if kernel is step}
        steps.append(replace(step, overwrites=own) if isinstance(step, Kernel) else step)
    return replace(plan, steps=tuple(steps))


def is_overwritten(name: str, graph: Graph) -> bool:
    """A buffer or an input that `forward` changes after its kernels have read it."""
    node = graph.index.get(name)
    paths = {(o.kind, o.path) for o in graph.outputs}
    of_buffer = node is not None and node.target == "buffer" and ("buffer", node.args[0]) in paths
    return of_buffer or ("input", name) in paths
