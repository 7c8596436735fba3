"""A region's gradients as text: kernels, and the function that launches them in backward."""

from __future__ import annotations

from collections.abc import Mapping

from ..autograd.gradients import OneRegion, RegionGradient, Result
from ..autograd.regions import Region, Regions
from ..ir import sizes
from ..ir.graph import Ref
from ..ir.plan import Call, Kernel, Plan
from .kernels import Shared, places, worked_on
from .launches import Body, Launches, unpacked
from .values import Values


class Backward:
    """The kernels of backward, a unit of its own: who only infers never builds it."""

    def __init__(self, gradients: Mapping[str, RegionGradient], regions: Regions):
        self.unit, self.kernels = Shared(), list[str]()  # those that stand in the file
        self.functions: dict[str, str] = {}  # by region
        self.steps = False  # some read a gradient with a step
        for region in (region for region in regions if region.name in gradients):
            function = GradientFunction(gradients[region.name], self.unit, region, regions.plan)
            self.functions[region.name] = function.text()
            self.steps |= function.launches.steps
            self.kernels += [kernel.name for kernel in function.plan.kernels if function.launches.is_first(kernel)]


class GradientFunction:
    """Writes the function that launches the gradients of `region`, which is one of the plan `of`."""

    def __init__(self, gradient: RegionGradient, unit: Shared, region: Region, of: Plan):
        self.gradient, self.plan, self.graph, self.prims = gradient, gradient.plan, gradient.plan.graph, gradient.plan.lowered.prims
        self.region, self.of = region, of
        self.regions = OneRegion(self.plan)
        self.values = Values(self.regions)
        self.launches = Launches(self.values, unit, gradient.kernels)
        for kernel in self.plan.kernels:
            self.launches.add(kernel, self.comment(kernel))

    def comment(self, kernel: Kernel) -> list[str]:
        nodes = [node for k in self.region.kernels for node in worked_on(k, self.of)]
        return [f"{kernel.name} replaces the gradients of {places(nodes) or 'what runs forward'}"]

    def text(self) -> str:
        """From the tensors that the region's reference reads, saved activations and the gradients of its results to its gradients."""
        symbols = [str(s) for s in self.graph.symbols]
        lines = [f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes"] if symbols else []
        guards = " and ".join(f"({sizes.text(guard)})" for guard in self.graph.guards)
        lines += [f"if not ({guards}):", "    return None"] if guards else []
        leaving = [output.value.name for output in self.graph.outputs if isinstance(output.value, Ref)]
        self.values.shape_results([*leaving, *(name for call in self.plan.calls for name in call.node.inputs)])
        given = self.values.free_name("tensors")
        lines.append(f"{unpacked(self.graph.inputs)} = {given}")
        lines += [f"{given}.clear()"] if len(self.plan.steps) > 1 else []
        body = Body(self.launches, self.plan.steps, self.gradient.leaving, self.gradient.handed)
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
        lines.append(f"return ({', '.join(map(self.result_text, self.gradient.results))},)")
        head = f"def {self.region.name}_grad(sizes, {given}):\n"
        return head + "\n".join(f"    {line}" for line in lines)

    def result_text(self, result: Result | None) -> str:
        return "None" if result is None else self.values.text(result.node) + (".clone()" if result.copied else "")
