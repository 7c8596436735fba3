"""A region's gradients as text: kernels, and the function that launches them in backward."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from .. import products, sizes
from ..alike import alike
from ..errors import Unsupported
from ..gradient import Trace, gradient_graph, kept_extremes
from ..graph import Ref
from ..ir.expr import Arg
from ..layout import spread
from ..lower import Lowered, lower
from ..plan import Call, Kernel, Plan
from ..planner import Cyclic, plan
from ..prims import Load, Pointwise, Prim, View
from ..rewrite import rewrite
from ..takeover import take_over
from .flow import trainable
from .kept import worth_keeping
from .kernels import Shared, comment, cuda_text, names_text
from .launches import Body, Launches, unpacked
from .regions import Region, Regions
from .trained import by_kernels, by_pytorch, too_heavy
from .values import Values


@dataclass(frozen=True)
class GradientText:
    """What backward of one region needs in the file."""

    function: str  # Python: from the tensors that the region reads and the gradients of its results to theirs
    asked: tuple[bool, ...]  # of each tensor that the region's meaning reads: whether its gradient is among the results
    kernels: tuple[str, ...]  # those that stand in the file because of it
    by_library: bool  # it launches none
    kept: tuple[str, ...]  # primitives inside the region that forward hands over to it
    adds: int  # bytes that it holds at its peak, in the example, beyond what it was handed


@dataclass
class Gradients:
    """The kernels of backward, a unit of its own: who only infers never builds it."""

    regions: dict[str, GradientText] = field(default_factory=dict)  # where they can be had
    unit: Shared = field(default_factory=Shared)
    heavy: frozenset[str] = frozenset()  # regions whose gradients are left to PyTorch: kernels for them would hold more memory

    @property
    def kernels(self) -> list[str]:
        return [name for gradient in self.regions.values() for name in gradient.kernels]

    def text(self) -> str:
        found = self.kernels
        if not found:
            return "_CUDA_GRADIENTS, _GRADIENT_KERNELS = None, ()  # no kernels for backward"
        cuda = cuda_text(self.unit, found, found)
        return f"_CUDA_GRADIENTS = '''\n{cuda}'''\n\n_GRADIENT_KERNELS = ({names_text(found)})"


def find_gradients(
    regions: Regions, model: nn.Module, left: Collection[str] = (), traces: dict[str, Trace | None] | None = None
) -> Gradients:
    """Of every region that is not `left` to PyTorch's operators, and does not have to be so that training holds no more memory. `traces`
    are those that were made for the same graph."""
    known, asked = {} if traces is None else traces, trainable(regions.graph, model)

    def of_others(left: Collection[str]) -> Gradients:
        unit = Shared()
        found = {region.name: gradient_text(region, regions, asked, unit, known) for region in regions if region.name not in left}
        return Gradients({name: gradient for name, gradient in found.items() if gradient is not None}, unit)

    found = of_others(left)
    if not found.regions:
        return found
    ours = {}
    for region in (region for region in regions if region.name in found.regions):
        gradient = found.regions[region.name]
        ours[region.name] = by_kernels(region, regions, gradient.kept, gradient.adds)
    theirs = {region.name: by_pytorch(region, regions, wanted_of(region, regions, asked)) for region in regions}
    heavy = too_heavy(ours, theirs, regions)
    return replace(of_others({*left, *heavy}), heavy=frozenset(heavy)) if heavy else found


def wanted_of(region: Region, regions: Regions, asked: set[str]) -> list[str]:
    """Of what a region's meaning reads: the values that training asks gradients of."""
    graph = regions.graph
    return [n for n in regions.meaning_inputs(region) if n in asked and graph[n].dtype.is_floating_point]  # type: ignore[union-attr]


def gradient_text(
    region: Region, regions: Regions, asked: set[str], unit: Shared, traces: dict[str, Trace | None]
) -> GradientText | None:
    """None where training asks for no gradient of what the region reads, or PyTorch's operators do as well."""
    graph, arguments, outputs = regions.graph, regions.meaning_inputs(region), regions.differentiated(region)
    wanted = wanted_of(region, regions, asked)
    if not wanted or not outputs:
        return None
    kept = worth_keeping(region, regions)
    found = gradient_graph(graph, regions.meaning_nodes(region), arguments, outputs, wanted, traces, list(kept))
    extremes = kept_extremes(found, graph, kept) if found is not None else set()
    if extremes:
        kept = {name: prim for name, prim in kept.items() if name not in extremes}
        found = gradient_graph(graph, regions.meaning_nodes(region), arguments, outputs, wanted, traces, list(kept))
    if found is None:
        return None
    kept = {name: prim for name, prim in kept.items() if name in found.inputs}
    try:
        exact = alike(lower(rewrite(found)[0]))
        if exact is None:
            return None
        lowered = apart(exact, [name for name in wanted if graph[name].is_leaf], wanted)
        made = plan(lowered, channels_last=bool(regions.channels_last))
        made = multiplied(made) if any(products.is_product(kernel) for kernel in regions.plan.kernels) else made
        made = laid_out(made, regions.channels_last, outputs, wanted)
        made = named(stepped(made, [f"grad_{name}" for name in outputs]), region)
        own = {node.target for node in regions.meaning_nodes(region)}
        if not made.kernels and any(call.node.target in own for call in made.calls):
            return None  # forward again, then all that PyTorch would do
        function = GradientFunction(made, unit, region, regions.plan)
        text = function.text(arguments, wanted)
        first = tuple(kernel.name for kernel in made.kernels if function.launches.is_first(kernel))
        asked_for = tuple(name in wanted for name in arguments)
        adds = function.adds([name for name in kept if name not in regions.outputs(region)])
        return GradientText(text, asked_for, first, not made.kernels, tuple(kept.values()), adds)
    except (Unsupported, Cyclic, sizes.Unprintable):
        return None


def apart(lowered: Lowered, parameters: list[str], wanted: list[str]) -> Lowered:
    """A value that is the gradient of two parameters is written twice: each has memory of its own."""
    prims, value, taken = dict(lowered.prims), dict(lowered.value), set[str]()
    nodes = [output.value.name for output in lowered.graph.outputs if isinstance(output.value, Ref)]
    for name, output in zip(wanted, lowered.graph.outputs, strict=True):
        if not isinstance(output.value, Ref) or name not in parameters:
            continue
        node = output.value.name
        source = prims[value[node]]
        behind = source
        while isinstance(behind.op, View):
            behind = prims[behind.inputs[0]]
        if behind.name in taken and not behind.is_load and nodes.count(node) == 1:
            copy = f"{node}_own"
            while copy in prims:
                copy += "_"
            prims[copy] = Prim(copy, Pointwise(Arg(0), source.dtype), (source.name,), source.shape, source.dtype, node)
            value[node] = copy
        taken.add(behind.name)
    return replace(lowered, prims=prims, value=value)


def multiplied(made: Plan) -> Plan:
    """Matrix products by kernels of ours, where that pays: forward has some, so nothing forbids them."""
    found = {call.node.name: products.product_of(call.node, made) for call in made.calls}
    return take_over(made, frozenset(name for name, anchor in found.items() if anchor is not None and products.pays(anchor, made)))


def laid_out(made: Plan, last: set[str], outputs: list[str], wanted: list[str]) -> Plan:
    """What lies channels-last in forward does so here, and so do the gradients of it."""
    value = made.lowered.value
    read = {value[name] for name in last if name in made.graph.inputs}
    read |= {value[f"grad_{name}"] for name in outputs if name in last}
    pairs = zip(wanted, made.graph.outputs, strict=True)
    written = {made.base(value[o.value.name]).name for name, o in pairs if name in last and isinstance(o.value, Ref)}
    return spread(made, read | written) if last else made


SMALL = 1 << 16  # elements: copying as few takes longer than reading them one by one


def stepped(made: Plan, upstream: list[str]) -> Plan:
    """Small gradients of results are read with a step: that of a sum is one number that stands for all, which need not be copied."""
    prims = dict(made.lowered.prims)
    called = {name for call in made.calls for name in call.node.inputs}
    called |= {prims[name].origin for kernel in made.kernels if kernel.fused is not None for name in kernel.loads}  # as they are copied
    in_order = not any(prim.channels_last for prim in prims.values())  # kernels that turn what they read know no step
    for node in upstream:
        load, step = prims[made.lowered.value[node]], f"{node}_step"
        small = made.graph.hint(sizes.product(load.shape)) <= SMALL
        if small and in_order and load.is_load and node not in called and step not in prims:
            prims[load.name] = replace(load, op=Load(step))
    return replace(made, lowered=replace(made.lowered, prims=prims))


def named(made: Plan, region: Region) -> Plan:
    """Its kernels are called after the region."""
    base = "fused" + region.name + "_gradient"
    steps: list[Kernel | Call] = []
    for step in made.steps:
        number = sum(isinstance(s, Kernel) for s in steps) + 1
        name = base if number == 1 else f"{base}_{number}"
        steps.append(replace(step, name=name) if isinstance(step, Kernel) else step)
    return replace(made, steps=tuple(steps))


class OneRegion(Regions):
    """Every kernel of a plan whose steps all stand in one function, in order."""

    def find_regions(self) -> list[Region]:
        return [Region("gradient", tuple(self.plan.kernels))]

    def condenses(self, kernel: Kernel) -> bool:
        return False  # nothing is differentiated again from here


class GradientFunction:
    """Writes the function that launches the gradients of `region`, which is one of the plan `of`."""

    def __init__(self, made: Plan, unit: Shared, region: Region, of: Plan):
        self.plan, self.graph, self.lowered, self.prims = made, made.graph, made.lowered, made.lowered.prims
        self.region, self.of = region, of
        self.regions = OneRegion(made)
        self.values = Values(self.regions)
        self.launches = Launches(self.values, unit)
        for kernel in made.kernels:
            self.launches.add(kernel, self.comment(kernel))

    def comment(self, kernel: Kernel) -> list[str]:
        lines = [line for k in self.region.kernels for line in comment(k, self.of, laws=False)[1:]]
        first = kernel is self.plan.kernels[0]
        return [f"{kernel.name} replaces the gradients of{'' if first else ' the same'}", *(dict.fromkeys(lines) if first else ())]

    def text(self, arguments: list[str], wanted: list[str]) -> str:
        """From the region's `arguments` and the gradients of its results to the gradients of those that are wanted."""
        symbols = [str(s) for s in self.graph.symbols]
        lines = [f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes"] if symbols else []
        guards = " and ".join(f"({sizes.text(guard)})" for guard in self.graph.guards)
        lines += [f"if not ({guards}):", "    return None"] if guards else []
        leaving = [output.value.name for output in self.graph.outputs if isinstance(output.value, Ref)]
        self.values.shape_results([*leaving, *(name for call in self.plan.calls for name in call.node.inputs)])
        activations = [name for name in self.graph.inputs if name not in self.of.graph.index or not self.of.graph[name].is_leaf]
        given, handed = self.values.free_name("tensors"), [name for name in activations if self.launches.may_be_large(name)]
        lines.append(f"{unpacked(self.graph.inputs)} = {given}")
        lines += [f"{given}.clear()"] if len(self.plan.steps) > 1 else []
        body = self.body = Body(self.launches, self.plan.steps, set(map(self.values.variable, leaving)), handed)
        lines += body.first_lines()
        straight: set[str] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines += [f"{step.node.name} = {self.values.library_text(step.node)}", *body.freed_after(step)]
                continue
            for load in (name for name in step.read_only if self.prims[name].is_load and name not in self.regions.home):
                if load not in straight:
                    straight.add(load)
                    lines.append(self.launches.straightened(self.prims[load].origin, load))
            lines += [*body.made_before(step), *self.launches.lines(step, body.scratch), *body.freed_after(step)]
        found = dict(zip(wanted, self.graph.outputs, strict=True))
        values = [found[name].value if name in found else None for name in arguments]
        results = [self.result_of(name, value, values) for name, value in zip(arguments, values, strict=True)]
        copies = [name for name, text in zip(arguments, results, strict=True) if text.endswith(".clone()")]
        self.cloned = sum(self.launches.hint(self.launches.bytes(name)) for name in copies)
        lines.append(f"return ({', '.join(results)},)")
        head = f"def {self.region.name}_gradient(sizes, {given}):\n"
        return head + "\n".join(f"    {line}" for line in lines)

    def adds(self, inner: Collection[str]) -> int:
        """Bytes at its peak beyond what it was handed; of that, `inner` is held by no one else."""
        held = sum(self.launches.hint(self.launches.bytes(name)) for name in inner)
        return self.body.peak({*self.graph.inputs} - set(inner)) - held + self.cloned

    def result_of(self, argument: str, value: Any, values: list[Any]) -> str:
        """A parameter's gradient has memory of its own: PyTorch keeps it as `.grad` and adds to it in place."""
        if not isinstance(value, Ref):
            return "None"
        own = self.memory_of(value)
        made_here = own in self.regions.home or self.prims[own].origin in self.lowered.library
        earlier = [self.memory_of(v) for v in values[: values.index(value)] if isinstance(v, Ref)]
        alone = made_here and own not in earlier and values.count(value) == 1
        return self.values.text(value.name) + ("" if alone or not self.of.graph[argument].is_leaf else ".clone()")

    def memory_of(self, value: Ref) -> str:
        return self.plan.base(self.lowered.value[value.name]).name
