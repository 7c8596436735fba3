"""A region's gradients as text: kernels, and the function that launches them in backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..autograd.gradients import OneRegion, RegionGradient, Result
from ..autograd.regions import Region, Regions
from ..codegen.mma.anchored import AnchoredText, weight_gradient_text
from ..codegen.mma.conv_spec import triple
from ..codegen.mma.weight_gradient import WeightGradient
from ..ir import sizes
from ..ir.graph import Ref
from ..ir.plan import Call, Kernel, Plan, operator_name
from ..ir.prims import Load
from ..schedule.naming import BACKWARD, free, joined, value_words
from ..schedule.product_fusion import is_product
from ..schedule.weight_gradients import WeightOf, is_weight_gradient
from .kernels import Shared, places, source_lines, worked_on
from .launches import Body, Launches
from .lines import given_lines, unpacked
from .values import Values


@dataclass(frozen=True)
class WeightKernel:
    """A kernel that computes the gradient of a convolution's weight: what is needed to run it, and the library's call, on the example's
    sizes."""

    name: str
    weights: frozenset[str]  # in the forward graph
    operands: tuple[tuple[int, ...], ...]  # shapes: of what stands still, and of what the taps move over
    weight: tuple[int, ...]
    workspace: int  # floats
    sizes: tuple[int, ...]  # behind the tensors
    settings: tuple[Any, ...]  # of the convolution, as `aten.convolution_backward` has them
    transposed: bool


class Backward:
    """The kernels of backward, a unit of its own: who only infers never builds it. `weights` are those of convolutions that the library
    computes forward."""

    def __init__(self, gradients: Mapping[str, RegionGradient], regions: Regions, weights: Mapping[str, WeightOf]):
        self.unit, self.kernels = Shared(), list[str]()  # those that stand in the file
        self.functions: dict[str, str] = {}  # by region
        self.steps = False  # some read a gradient with a step
        self.unfit = any(gradient.guards for gradient in gradients.values())  # some kernels are not for all sizes, or all devices
        self.weight_kernels: list[WeightKernel] = []
        self.flags: set[str] = set()  # what the file asks of flags and GPU for them, as `template.py` names it
        for region in (region for region in regions if region.name in gradients):
            function = GradientFunction(gradients[region.name], self.unit, region, regions.plan)
            self.functions[region.name] = function.text()
            self.steps |= function.launches.steps
            self.unfit |= bool(function.of_device())
            self.flags |= {"tensor cores"} if function.of_device() else set()
            self.flags |= {"convolves"} if any(text.tf32 for text in function.launches.on_tensor_cores) else set()
            self.weight_kernels += function.weight_kernels()
            self.kernels += [kernel.name for kernel in function.plan.kernels if function.launches.is_first(kernel)]
        self.convolved: dict[str, str] = {}  # by node: of the kernel for its weight, what `_convolved` is told, as Python
        taken = {kernel.name for gradient in gradients.values() for kernel in gradient.plan.kernels}
        for node, of in weights.items():
            self.convolved[node] = self.add_weight(node, of, regions.plan, taken)

    def add_weight(self, node: str, of: WeightOf, plan: Plan, taken: set[str]) -> str:
        graph = plan.graph
        name, tile = free(joined(value_words([graph[of.name]], graph)), BACKWARD, taken), of.tile(plan.machine)
        assert tile is not None
        comment = [f"{name} replaces the gradient of a weight", *source_lines([graph[node]], graph), f"  {of.gradient.arithmetic}"]
        text = self.unit.add_anchored(name, weight_gradient_text(name, of.gradient, tile, plan.machine, comment))
        launched = text.launches[0].name
        self.kernels += [name] if launched == name else []
        self.flags |= {"tensor cores", *(["convolves"] if text.tf32 else [])}
        shapes = [tuple(map(graph.hint, graph[n].shape or ())) for n in (node, graph[node].args[0].name)]
        still, moved = reversed(shapes) if of.gradient.conv.transposed else shapes
        self.weight_kernels.append(weight_kernel(launched, of.name, of.gradient, text, still, moved, graph[of.name].shape or ()))
        return f'("{launched}", {floats_of(text)}, {text.shared_bytes}, {text.tf32})'

    def weights(self) -> tuple[WeightKernel, ...]:
        """Its kernels for weights, each once, with all weights that it is launched for."""
        found: dict[str, WeightKernel] = {}
        for one in self.weight_kernels:
            known = found.setdefault(one.name, one)
            found[one.name] = replace(known, weights=known.weights | one.weights)
        return tuple(found.values())


class GradientFunction:
    """Writes the function that launches the gradients of `region`, which is one of the plan `of`."""

    def __init__(self, gradient: RegionGradient, unit: Shared, region: Region, of: Plan):
        self.gradient, self.plan, self.graph, self.prims = gradient, gradient.plan, gradient.plan.graph, gradient.plan.lowered.prims
        self.region, self.of = region, of
        self.regions = OneRegion(self.plan)
        self.values = Values(self.regions)
        self.passed: dict[str, str] = {}  # gradients that are handed in and returned as they are: what they are called then
        self.launches = Launches(self.values, unit, gradient.kernels)
        for kernel in self.plan.kernels:
            self.launches.add(kernel, self.comment(kernel))

    @property
    def name(self) -> str:
        return f"{self.region.name}_grad"

    def comment(self, kernel: Kernel) -> list[str]:
        """The lines whose gradients it is a part of, with their code above the first kernel; and what it computes itself."""
        nodes = [node for k in self.region.kernels for node in worked_on(k, self.of)]
        first = f"{kernel.name} replaces the gradients of {places(nodes) or 'what runs forward'}"
        quoted = source_lines(nodes, self.of.graph) if kernel is self.plan.kernels[0] and places(nodes) else []
        own = dict.fromkeys(operator_name(node, self.graph) for node in worked_on(kernel, self.plan) if node.inputs)
        return [first, *quoted, *([f"  here: {', '.join(own)}"] if own else [])]

    def text(self) -> str:
        """From the tensors that the region's reference reads, saved activations and the gradients of its results to its gradients."""
        symbols = [str(s) for s in self.graph.symbols]
        guards = " and ".join(f"({sizes.text(guard)})" for guard in self.gradient.guards)
        given = self.values.free_name("tensors")
        lines = [f"{unpacked(symbols)} = sizes", f"if not ({guards}):", "    return None"] if guards else []
        if of_device := self.of_device():
            lines += [f"if not ({of_device}):", "    return None  # PyTorch's operators, then"]
        leaving = [output.value.name for output in self.graph.outputs if isinstance(output.value, Ref)]
        self.values.shape_results([*leaving, *(name for call in self.plan.calls for name in call.node.inputs)])
        lines += given_lines(symbols if not guards else (), self.graph.inputs, given)
        cleared = len(self.plan.steps) > 1
        lines += [f"{given}.clear()"] if cleared else []
        body = Body(self.launches, self.plan.steps, self.gradient.leaving, self.gradient.handed)
        kept = [result.node for result in self.gradient.results if result is not None and self.is_passed_on(result.node)]
        self.passed = {node: self.values.free_name(f"passed_{node}") for node in kept}
        lines += [f"{name} = {self.values.text(node)}  # as it is; kernels may read one number of it" for node, name in self.passed.items()]
        lines += body.first_lines()
        straight: set[str] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines += [*self.values.library_lines(step.node), *body.freed_after(step)]
                continue
            loads = [name for name in step.read_only if self.prims[name].is_load and name not in self.regions.home]
            loads = [load for load in dict.fromkeys(loads) if load not in straight]
            straight.update(loads)
            loaded = [(self.prims[load].origin, load) for load in loads]
            alone = [name for name, _ in loaded if cleared and self.launches.may_be_large(name)]
            lines += self.launches.straightened(loaded, alone)
            lines += [*body.made_before(step), *self.launches.lines(step, body.scratch), *body.freed_after(step)]
        lines.append(self.return_text())
        head = f"def {self.name}(sizes, {given}):\n"
        return head + "\n".join(f"    {line}" for line in lines)

    def of_device(self) -> str:
        """What convolutions and gradients of weights ask of flags and GPU: forward may have kernels that ask for less, or none."""
        ours = [kernel for kernel in self.plan.kernels if kernel.fused is not None and not is_product(kernel)]
        texts = [text for kernel in ours if (text := self.launches.anchored[kernel.name]).tensor_cores]
        if not texts:
            return ""
        allowed = "_tf32_allowed() and " if any(text.tf32 for text in texts) else ""
        shared = max(text.shared_bytes for text in texts)
        return f"{allowed}_has_tensor_cores({self.values.free_name('tensors')}[0].device, {shared})"

    def weight_kernels(self) -> Iterator[WeightKernel]:
        for kernel in self.plan.kernels:
            if not is_weight_gradient(kernel):
                continue
            anchor, text = kernel.fused.anchor, self.launches.anchored[kernel.name]
            still, moved = (tuple(map(self.graph.hint, shape)) for shape in anchor.shapes)
            yield weight_kernel(self.launches.launchers(kernel)[0], anchor.of, anchor.conv, text, still, moved, anchor.out_shape)

    def is_passed_on(self, node: str) -> bool:
        """It is a gradient that was handed in, which kernels read by one number where that stands for all of it."""
        value = self.plan.lowered.value.get(node)
        load = self.plan.base(value).op if value is not None else None
        return isinstance(load, Load) and load.repeated

    def return_text(self) -> str:
        return f"return ({', '.join(map(self.result_text, self.gradient.results))},)"

    def result_text(self, result: Result | None) -> str:
        if result is None:
            return "None"
        return self.passed.get(result.node, self.values.text(result.node)) + (".clone()" if result.copied else "")


def weight_kernel(
    name: str, weight: str, gradient: WeightGradient, text: AnchoredText, still: Sequence[int], moved: Sequence[int], shape: Sequence[int]
) -> WeightKernel:
    conv = gradient.conv
    settings = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.transposed, list(conv.output_padding), conv.groups)
    sizes_ = (still[0], *triple(tuple(still[2:]), 1), *triple(tuple(moved[2:]), 1))
    operands = (tuple(still), tuple(moved))
    return WeightKernel(name, frozenset({weight}), operands, tuple(shape), floats_of(text), sizes_, settings, conv.transposed)


def floats_of(text: AnchoredText) -> int:
    """Of its workspace, which is the same for all sizes."""
    return sum(int(words) for _, words in text.workspace)
