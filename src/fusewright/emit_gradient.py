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
from .layout import base, spread
from .lower import lower
from .plan import Call, Cyclic, Kernel, Plan, plan
from .rewrite import rewrite


@dataclass(frozen=True)
class GradientText:
    """What backward of one region needs in the file."""

    function: str  # Python: from the tensors that the region reads and the gradients of its results to theirs
    kernels: tuple[str, ...]  # those that stand in the file because of it


def gradient_text(writer: Writer, region: Region) -> GradientText | None:
    """None where training asks for no gradient of what the region reads, or PyTorch's operators do as well."""
    graph, arguments = writer.graph, writer.meaning_inputs(region)
    outputs = [n for n in writer.region_outputs(region) if writer.differentiable(n)]
    asked = writer.trainable
    wanted = [name for name in arguments if name in asked and graph[name].dtype.is_floating_point]  # type: ignore[union-attr]
    if not wanted or not outputs:
        return None
    found = gradient_graph(graph, writer.meaning_nodes(region), arguments, outputs, wanted, writer.traces)
    if found is None:
        return None
    try:
        lowered = lower(rewrite(found)[0])
        made = laid_out(plan(lowered, channels_last=bool(writer.channels_last)), writer, outputs, wanted)
        if made.calls and not made.kernels:
            return None
        return GradientWriter(made, writer, region, arguments, wanted).text()
    except (Unsupported, Cyclic, sizes.Unprintable):
        return None


def laid_out(made: Plan, of: Writer, outputs: list[str], wanted: list[str]) -> Plan:
    """What lies channels-last in forward does so here, and so do the gradients of it."""
    last = of.channels_last
    value = made.lowered.value
    read = {value[name] for name in last if name in made.graph.inputs}
    read |= {value[f"grad_{name}"] for name in outputs if name in last}
    pairs = zip(wanted, made.graph.outputs, strict=True)
    written = {base(made, value[o.value.name]).name for name, o in pairs if name in last and isinstance(o.value, Ref)}
    return spread(made, read | written) if last else made


class GradientWriter(Writer):
    """Writes one function; every step of its plan stands in it, in order."""

    def __init__(self, made: Plan, of: Writer, region: Region, arguments: list[str], wanted: list[str]):
        self.of, self.forward_region = of, region
        self.arguments, self.wanted = arguments, wanted
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
        return GradientText(self.function(), tuple(kernel.name for kernel in self.plan.kernels if self.is_first(kernel)))

    def function(self) -> str:
        region = self.regions[0]
        symbols = [str(s) for s in self.graph.symbols]
        lines = [f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes"] if symbols else []
        guards = " and ".join(f"({sizes.text(guard)})" for guard in self.graph.guards)
        lines += [f"if not ({guards}):", "    return None"] if guards else []
        if self.plan.steps:
            lines.append(f"{self.free_name('device')} = {self.graph.inputs[0]}.device")
        scratch = self.scratch(region)
        lines += self.scratch_lines(region, scratch)
        straight: set[str] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines.append(f"{step.node.name} = {self.library_text(step.node, self.free_name('device'))}")
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
        asked = ", ".join(str(name in self.wanted) for name in self.arguments)
        return head + "\n".join(f"    {line}" for line in lines) + f"\n\n\n{name}.asked = ({asked},)"

    def result_of(self, argument: str, value: Any, values: list[Any]) -> str:
        """A parameter's gradient has memory of its own: PyTorch keeps it as `.grad` and adds to it in place."""
        if not isinstance(value, Ref):
            return "None"
        own = self.memory_of(value)
        made_here = own in self.home or self.prims[own].origin in self.lowered.library
        alone = made_here and [self.memory_of(v) for v in values if isinstance(v, Ref)].count(own) == 1
        return self.value_text(value.name) + ("" if alone or not self.of.graph[argument].is_leaf else ".clone()")

    def memory_of(self, value: Ref) -> str:
        return self.base(self.lowered.value[value.name]).name
