"""A region's gradients as text: kernels, and the function that launches them in backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import sizes
from .emit import Region, Writer
from .emit_kernels import kernel_text
from .errors import Unsupported
from .gradient import gradient_graph
from .graph import Ref
from .layout import spread
from .lower import Lowered, lower
from .plan import Call, Cyclic, Kernel, Plan, plan
from .prims import Load, Pointwise, Prim, View
from .rewrite import rewrite


@dataclass(frozen=True)
class GradientText:
    """What backward of one region needs in the file."""

    function: str  # Python: from the tensors that the region reads and the gradients of its results to theirs
    asked: tuple[bool, ...]  # of each tensor that the region's meaning reads: whether its gradient is among the results
    kernels: tuple[str, ...]  # those that stand in the file because of it
    kept: tuple[str, ...]  # primitives inside the region that forward hands over to it


def gradient_text(writer: Writer, region: Region) -> GradientText | None:
    """None where training asks for no gradient of what the region reads, or PyTorch's operators do as well."""
    graph, arguments = writer.graph, writer.meaning_inputs(region)
    outputs = [n for n in writer.region_outputs(region) if writer.differentiable(n)]
    asked = writer.trainable
    wanted = [name for name in arguments if name in asked and graph[name].dtype.is_floating_point]  # type: ignore[union-attr]
    if not wanted or not outputs:
        return None
    kept = writer.worth_keeping(region)
    while True:
        found = gradient_graph(graph, writer.meaning_nodes(region), arguments, outputs, wanted, writer.traces, list(kept))
        if found is None:
            return None
        unread = [name for name in kept if not found.users()[name]]
        if not unread:
            break
        kept = {name: prim for name, prim in kept.items() if name not in unread}
    try:
        lowered = apart(lower(rewrite(found)[0]), [name for name in wanted if graph[name].is_leaf], wanted)
        made = laid_out(plan(lowered, channels_last=bool(writer.channels_last)), writer, outputs, wanted)
        made = stepped(made, [f"grad_{name}" for name in outputs])
        if made.calls and not made.kernels:
            return None
        return GradientWriter(made, writer, region, arguments, wanted, tuple(kept.values())).text()
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
            prims[copy] = Prim(copy, Pointwise("{0}", source.dtype), (source.name,), source.shape, source.dtype, node)
            value[node] = copy
        taken.add(behind.name)
    return replace(lowered, prims=prims, value=value)


def laid_out(made: Plan, of: Writer, outputs: list[str], wanted: list[str]) -> Plan:
    """What lies channels-last in forward does so here, and so do the gradients of it."""
    last = of.channels_last
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
    in_order = not any(prim.channels_last for prim in prims.values())  # kernels that turn what they read know no step
    for node in upstream:
        load, step = prims[made.lowered.value[node]], f"{node}_step"
        small = made.graph.hint(sizes.product(load.shape)) <= SMALL
        if small and in_order and load.is_load and node not in called and step not in prims:
            prims[load.name] = replace(load, op=Load(step))
    return replace(made, lowered=replace(made.lowered, prims=prims))


class GradientWriter(Writer):
    """Writes one function; every step of its plan stands in it, in order."""

    def __init__(
        self, made: Plan, of: Writer, region: Region, arguments: list[str], wanted: list[str], kept: tuple[str, ...]
    ):
        self.of, self.forward_region = of, region
        self.arguments, self.wanted, self.kept = arguments, wanted, kept
        base = "fused" + region.name + "_gradient"
        steps: list[Kernel | Call] = []
        for step in made.steps:
            number = sum(isinstance(s, Kernel) for s in steps) + 1
            name = base if number == 1 else f"{base}_{number}"
            steps.append(replace(step, name=name) if isinstance(step, Kernel) else step)
        super().__init__(replace(made, steps=tuple(steps)), "", of.model)

    def find_regions(self) -> list[Region]:
        return [Region("gradient", tuple(self.plan.kernels))]

    def condenses(self, kernel: Kernel) -> bool:
        return False  # nothing is differentiated again from here

    def value_text(self, name: str) -> str:
        if self.graph[name].is_leaf or name in self.lowered.library:
            return name
        return self.view_text(
            self.lowered.value[name], lambda prim: prim if prim in self.home else self.prims[prim].origin
        )

    def comment(self, kernel: Kernel) -> list[str]:
        lines = [line for k in self.forward_region.kernels for line in self.of.comment(k)[1:] if "law:" not in line]
        first = kernel is self.plan.kernels[0]
        return [f"// {kernel.name} replaces the gradients of{'' if first else ' the same'}", *(dict.fromkeys(lines) if first else ())]

    def text(self) -> GradientText:
        for kernel in self.plan.kernels:
            text = kernel_text(kernel, self.prims, self.graph, self.comment(kernel))
            self.texts[kernel.name] = self.of.gradient_kernels.add(text)
        first = tuple(kernel.name for kernel in self.plan.kernels if self.is_first(kernel))
        asked = tuple(name in self.wanted for name in self.arguments)
        return GradientText(self.function(), asked, first, self.kept)

    def straightened(self, name: str, load: str) -> str:
        step = self.prims[load].step
        return f"{name}, {step} = _with_step({name})" if step else super().straightened(name, load)

    def function(self) -> str:
        region = self.regions[0]
        symbols = [str(s) for s in self.graph.symbols]
        lines = [f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes"] if symbols else []
        guards = " and ".join(f"({sizes.text(guard)})" for guard in self.graph.guards)
        lines += [f"if not ({guards}):", "    return None"] if guards else []
        leaving = [output.value.name for output in self.graph.outputs if isinstance(output.value, Ref)]
        self.shape_results([*leaving, *(name for call in self.plan.calls for name in call.node.inputs)])
        scratch = self.scratch(region)
        lines += self.scratch_lines(region, scratch)
        straight: set[str] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines.append(f"{step.node.name} = {self.library_text(step.node, self.device())}")
                continue
            for load in (name for name in step.read_only if self.prims[name].is_load):
                if load not in straight:
                    straight.add(load)
                    lines.append(self.straightened(self.prims[load].origin, load))
            lines += self.launch_lines(step, scratch)
        found = dict(zip(self.wanted, self.graph.outputs, strict=True))
        values = [found[name].value if name in found else None for name in self.arguments]
        results = [self.result_of(name, value, values) for name, value in zip(self.arguments, values, strict=True)]
        lines.append(f"return ({', '.join(results)},)")
        name = f"{self.forward_region.name}_gradient"
        head = f"def {name}(sizes, {', '.join(self.graph.inputs)}):\n"
        return head + "\n".join(f"    {line}" for line in lines)

    def result_of(self, argument: str, value: Any, values: list[Any]) -> str:
        """A parameter's gradient has memory of its own: PyTorch keeps it as `.grad` and adds to it in place."""
        if not isinstance(value, Ref):
            return "None"
        own = self.memory_of(value)
        made_here = own in self.home or self.prims[own].origin in self.lowered.library
        earlier = [self.memory_of(v) for v in values[: values.index(value)] if isinstance(v, Ref)]
        alone = made_here and own not in earlier and values.count(value) == 1
        return self.value_text(value.name) + ("" if alone or not self.of.graph[argument].is_leaf else ".clone()")

    def memory_of(self, value: Ref) -> str:
        return self.plan.base(self.lowered.value[value.name]).name
