"""The plan of a graph that has no module -> the text of a Python module: kernels, and one function that runs the graph.

A graph of AOTAutograd, forward or backward, is like the gradients of a region: all its leaves are inputs, and nobody differentiates it
again. So it is written as these are. No guards stand in the text: who compiled the graph says when it may be called.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from string import Template

import torch

from .. import __version__
from ..autograd.gradients import RegionGradient, Result, check_expressible, with_memory
from ..autograd.regions import Region
from ..codegen.loops.text import wrapped
from ..errors import Unsupported
from ..frontend.chosen import chosen
from ..frontend.fx import FxGraph
from ..ir import sizes
from ..ir.graph import Dim, Graph, Ref
from ..ir.index import contiguous
from ..ir.plan import Kernel, Plan
from ..ir.prims import Expand, Permute, Reshape, Slice, View
from ..ir.pytext import argument_text, shape_text
from .backward import GradientFunction
from .file import MANY
from .kernels import KernelFacts, Shared, comment, facts, together, unit_of, units_text
from .lines import unpacked
from .template import IMPORTS, RUNTIME

FILE = '''"""A graph of torch.compile, in CUDA kernels: written by Fusewright $version."""

$imports

aten = torch.ops.aten

# ---- runtime: builds kernels and launches them

$runtime


def _sharing(results, *places):
    """Results that lie in the memory of another: (which, whose, shape, strides, offset)."""
    found = list(results)
    for number, home, shape, strides, offset in places:
        found[number] = found[home].as_strided(shape, strides, offset)
    return tuple(found)


# ---- kernels

$cuda

# ---- what runs


def _planned_for(sizes, device):
    """The flags, the device and the sizes are such that the kernels may be used."""
$planned


$function
'''

NAME = "_run_graph"  # the function: of the sizes' values and a list of tensors, which it empties
INNER = "_run_kernels"


@dataclass(frozen=True)
class GraphText:
    """The module's text, and what stands in it."""

    text: str
    kernels: tuple[KernelFacts, ...]
    calls: tuple[str, ...]  # to PyTorch's library


def emit_graph(plan: Plan, read: FxGraph, seen: Collection[int], owns_inputs: bool) -> GraphText:
    """`seen` are the outputs that leave compiled code: these are laid out as eager's. `owns_inputs`: each is freed after its last use."""
    check_expressible(plan)
    check_types(plan)
    results = results_of(plan, read)
    outside = Graph((), (), ()) if owns_inputs else plan.graph
    function = GraphFunction(with_memory(plan, results, (), [], [], outside), read, seen)
    launches, text = function.launches, function.text()
    launchers = list(dict.fromkeys(name for kernel in plan.kernels for name in launches.launchers(kernel)))
    unit = unit_of("_CUDA_SOURCE", "_KERNELS", launches.unit, launches.first(), launchers)
    on_tensor_cores = launches.on_tensor_cores
    there = {
        "tensor cores": on_tensor_cores,
        "convolves": any(one.tf32 for one in on_tensor_cores),
        "slices": any(one.sizes for one in on_tensor_cores),
        "steps": launches.steps,
        "laid out": True,
        "many": len(launchers) > MANY,
        "hopper": any(helper.on_hopper for helper in unit.helpers),
    }
    features = {name for name, needed in there.items() if needed}
    whole = Template(FILE).substitute(
        version=__version__,
        imports=chosen(IMPORTS, features),
        runtime=chosen(RUNTIME, features),
        cuda=units_text([unit]),
        planned=planned_text(function),
        function="\n\n\n".join(filter(None, [text, function.outer_text()])),
    )
    known = together([fact for kernel in plan.kernels for fact in facts(kernel, launches.launchers(kernel), plan)])
    calls = tuple(str(call.node.target) for call in plan.calls if call.node.target != "getitem")
    return GraphText(whole, known, calls)


def check_types(plan: Plan) -> None:
    """What leaves has the type that others were told: a graph that reads it was traced with it."""
    for output in plan.graph.outputs:
        if isinstance(output.value, Ref) and output.value.name in plan.lowered.value:
            node, prim = plan.graph[output.value.name], plan.lowered.prims[plan.lowered.value[output.value.name]]
            assert prim.dtype is node.dtype, f"{node.name} is of {node.dtype}, and kernels leave it in {prim.dtype}"


def results_of(plan: Plan, read: FxGraph) -> tuple[Result | None, ...]:
    """The tensors among the outputs. One that would lie in the memory of an input, or of an output before it, where eager's does not, is
    a copy."""
    inputs = {name: number for number, name in enumerate(plan.graph.inputs)}
    homes: dict[str, list[int]] = {name: [number] for name, number in inputs.items()}
    found: list[Result | None] = []
    for number, output in enumerate(plan.graph.outputs):
        if not isinstance(output.value, Ref):
            found.append(None)
            continue
        there = homes.setdefault(memory_of(output.value.name, plan), [])
        copied = not read.shares[number].issuperset(there)
        found.append(Result(output.value.name, copied))
        if not copied:
            there.append(-1 - number)
    return tuple(found)


def memory_of(name: str, plan: Plan) -> str:
    """The input, the call or the primitive whose memory a node's value lies in."""
    if name not in plan.lowered.value:  # an element of what a call of the library returns
        return name
    behind = plan.base(plan.lowered.value[name])
    return behind.name if behind.name in plan.home else behind.origin


def planned_text(function: GraphFunction) -> str:
    """The body of `_planned_for`."""
    plan, launches = function.plan, function.launches
    texts = launches.on_tensor_cores
    tests = ["_tf32_allowed()"] if any(text.tf32 for text in texts) else []
    if texts:
        tests.append(f"_has_tensor_cores(device, {max(text.shared_bytes for text in texts)})")
    anchored = [kernel for kernel in plan.kernels if kernel.fused is not None]  # these address with 32 bits
    counts = [sizes.product(function.prims[n].shape) for kernel in anchored for n in (*kernel.loads, *kernel.stores)]
    for count in dict.fromkeys(counts):
        if not isinstance(count, int) or count >= 1 << 31:
            tests.append(f"{sizes.text(count)} < {1 << 31}")
    symbols = [str(symbol) for symbol in plan.graph.symbols]
    lines = [f"{', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes"] if symbols and tests else []
    return "\n".join(f"    {line}" for line in [*lines, f"return {' and '.join(tests) or True}"])


class GraphFunction(GradientFunction):
    """Writes the function that runs a graph."""

    def __init__(self, planned: RegionGradient, read: FxGraph, seen: Collection[int]):
        self.read, self.seen, self.stated = read, seen, set[str]()
        super().__init__(planned, Shared(), Region(NAME, tuple(planned.plan.kernels)), planned.plan)
        self.launches.share_numbers()

    @property
    def name(self) -> str:
        return INNER if self.of_inputs else NAME

    @functools.cached_property
    def of_inputs(self) -> list[int]:
        """Outputs that are inputs, or views of one: made of them as they came, before kernels have them laid out anew."""
        results = enumerate(self.gradient.results)
        return [i for i, r in results if r is not None and not r.copied and memory_of(r.node, self.plan) in self.graph.inputs]

    def outer_text(self) -> str:
        """The function around, where some outputs are views of inputs."""
        if not self.of_inputs:
            return ""
        symbols, tensors = [str(symbol) for symbol in self.graph.symbols], self.values.free_name("tensors")
        lines = [f"{unpacked(symbols)} = sizes"] if symbols else []
        lines.append(f"{unpacked(self.graph.inputs)} = {tensors}")
        views = [f"{number}: {self.values.text(self.graph.outputs[number].value.name)}" for number in self.of_inputs]
        views_name = self.values.free_name("views")
        lines += wrapped(f"{views_name} = {{", views, "}  # as they came", limit=110)
        lines.append(f"del {', '.join(self.graph.inputs)}")
        results = self.values.free_name("results")
        lines.append(f"{results} = {INNER}(sizes, {tensors})")
        item = self.values.free_name("item")
        lines.append(f"return tuple([{views_name}.get(i, {item}) for i, {item} in enumerate({results})])")
        return f"def {NAME}(sizes, {tensors}):\n" + "\n".join(f"    {line}" for line in lines)

    def of_device(self) -> str:
        return ""  # `_planned_for` asks it, before the function is called

    def comment(self, kernel: Kernel) -> list[str]:
        return comment(kernel, self.plan, self.stated)

    def return_text(self) -> str:
        texts = [self.output_text(number) for number in range(len(self.graph.outputs))]
        places = [self.shared_text(number, home) for number, home in self.sharing().items()]
        for number in (*self.sharing(), *self.of_inputs):
            texts[number] = "None"
        listed = f"({', '.join(texts)},)"
        return f"return _sharing({listed}, {', '.join(places)})" if places else f"return {listed}"

    def sharing(self) -> dict[int, int]:
        """Outputs that eager leaves in the memory of another that fills it, where kernels would leave them apart."""
        found: dict[int, int] = {}
        outputs = self.graph.outputs
        for number in self.seen:
            before = {-1 - other for other in self.read.shares[number] if other < 0 and -1 - other in self.seen}
            of_inputs = any(other >= 0 for other in self.read.shares[number])
            after = {other for other in self.seen if -1 - number in self.read.shares[other]}
            others = before | after
            homes_of = {memory_of(outputs[other].value.name, self.plan) for other in others | {number}} if others else set()
            if of_inputs or (len(homes_of) < 2 and all(map(self.stays, others | {number}))):
                continue
            homes = [other for other in sorted(others | {number}) if self.fills(other) and self.kind(other) == self.kind(number)]
            if not homes:
                raise Unsupported("results share memory that none of them fills")
            if homes[0] != number:
                found[number] = homes[0]
        return found

    def stays(self, number: int) -> bool:
        """It is not laid out anew."""
        result, layout = self.gradient.results[number], self.read.layouts[number]
        return result is None or layout is None or self.lies_so(result.node, layout.strides)

    def fills(self, number: int) -> bool:
        layout = self.read.layouts[number]
        return layout is not None and layout.fills

    def kind(self, number: int) -> torch.dtype | None:
        return self.graph[self.graph.outputs[number].value.name].dtype

    def shared_text(self, number: int, home: int) -> str:
        layout, node = self.read.layouts[number], self.graph[self.graph.outputs[number].value.name]
        assert layout is not None and node.shape is not None
        return f"({number}, {home}, {shape_text(node.shape)}, {shape_text(layout.strides)}, {sizes.text(layout.offset)})"

    def output_text(self, number: int) -> str:
        value, result, layout = self.graph.outputs[number].value, self.gradient.results[number], self.read.layouts[number]
        if result is None:
            return argument_text(value, self.values.text, self.values.device())
        text = self.result_text(result)
        if number not in self.seen or layout is None or self.stays(number):
            return text
        return f"_laid_out({text}, {shape_text(layout.strides)})"

    def lies_so(self, node: str, strides: tuple[Dim, ...]) -> bool:
        """Kernels leave it with these strides, and so do the views that PyTorch makes of what they leave."""
        shape = self.graph[node].shape or ()
        own = self.strides_of(self.plan.lowered.value[node]) if node in self.plan.lowered.value else None
        if own is None:
            return False
        return all(sizes.is_one(size) or sizes.same(a, b) for a, b, size in zip(own, strides, shape, strict=True))

    def strides_of(self, name: str) -> tuple[Dim, ...] | None:
        """Of a primitive that kernels leave in memory, or of a view of it; None where only a call tells."""
        prim = self.prims[name]
        if self.regions.elements(name) in self.values.shaped:
            return contiguous(prim.shape)
        if name in self.regions.home:
            return prim.strides
        behind = self.strides_of(prim.inputs[0]) if isinstance(prim.op, View) else None
        if behind is None:
            return None
        before = self.prims[prim.inputs[0]].shape
        if isinstance(prim.op, Permute):
            return tuple(behind[dim] for dim in prim.op.order)
        if isinstance(prim.op, Slice):
            return tuple(stride * prim.op.step if dim == prim.op.dim else stride for dim, stride in enumerate(behind))
        if isinstance(prim.op, Expand) and len(before) == len(prim.shape):
            pairs = zip(behind, before, prim.shape, strict=True)
            return tuple(stride if sizes.same(old, new) else 0 for stride, old, new in pairs)
        in_order = all(sizes.is_one(n) or sizes.same(a, b) for a, b, n in zip(behind, contiguous(before), before, strict=True))
        return contiguous(prim.shape) if isinstance(prim.op, Reshape) and in_order else None
