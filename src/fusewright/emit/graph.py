"""The plan of a graph that has no module -> the text of a Python module: kernels, and one function that runs the graph.

A graph of AOTAutograd, forward or backward, is like the gradients of a region: all its leaves are inputs, and nobody differentiates it
again. So it is written as these are. No guards stand in the text: who compiled the graph says when it may be called.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from string import Template

from .. import __version__
from ..autograd.gradients import RegionGradient, Result, check_expressible, with_memory
from ..autograd.regions import Region
from ..frontend.chosen import chosen
from ..frontend.fx import FxGraph
from ..ir import sizes
from ..ir.graph import Dim, Graph, Ref
from ..ir.index import contiguous
from ..ir.plan import Kernel, Plan
from ..ir.pytext import argument_text, shape_text
from .backward import GradientFunction
from .file import MANY
from .kernels import KernelFacts, Shared, comment, facts, together, unit_of, units_text
from .template import IMPORTS, RUNTIME

FILE = '''"""A graph of torch.compile, in CUDA kernels: written by Fusewright $version."""

$imports

aten = torch.ops.aten

# ---- runtime: builds kernels and launches them

$runtime


def _laid_out(tensor, strides):  # as PyTorch's operators would have left it
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# ---- kernels

$cuda

# ---- what runs


def _planned_for(sizes, device):
    """The flags, the device and the sizes are such that the kernels may be used."""
$planned


$function
'''

NAME = "_run_graph"  # the function: of the sizes' values and a list of tensors, which it empties


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
    results = tuple(
        Result(output.value.name, copied=is_new(number, plan, read)) if isinstance(output.value, Ref) else None
        for number, output in enumerate(plan.graph.outputs)
    )
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
        function=text,
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


def is_new(number: int, plan: Plan, read: FxGraph) -> bool:
    """The output would lie in the memory of an input, or of an output before it, where eager's does not."""
    memory = [memory_of(output.value.name, plan) if isinstance(output.value, Ref) else None for output in plan.graph.outputs]
    own, allowed = memory[number], read.shares[number]
    earlier = {-1 - other for other, home in enumerate(memory[:number]) if home == own}
    of_inputs = {position for position, name in enumerate(plan.graph.inputs) if name == own}
    return bool((earlier | of_inputs) - allowed)


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
        self.read, self.seen = read, seen
        super().__init__(planned, Shared(), Region(NAME, tuple(planned.plan.kernels)), planned.plan)
        self.launches.share_numbers()

    @property
    def name(self) -> str:
        return NAME

    def comment(self, kernel: Kernel) -> list[str]:
        return comment(kernel, self.plan)

    def returned(self) -> list[str]:
        return [self.output_text(number) for number in range(len(self.graph.outputs))]

    def output_text(self, number: int) -> str:
        value, result = self.graph.outputs[number].value, self.gradient.results[number]
        if result is None:
            return argument_text(value, self.values.text, self.values.device())
        text, strides = self.result_text(result), self.read.strides[number]
        if number not in self.seen or strides is None or self.lies_so(result.node, strides):
            return text
        return f"_laid_out({text}, {shape_text(strides)})"

    def lies_so(self, node: str, strides: tuple[Dim, ...]) -> bool:
        """A kernel leaves it with these strides."""
        if self.graph[node].is_leaf:
            return True
        prim = self.prims[self.plan.lowered.value[node]] if node in self.plan.lowered.value else None
        if prim is None:
            return False
        held = self.regions.elements(prim.name)
        if prim.name in self.regions.home and held not in self.values.shaped:
            own = prim.strides
        elif held in self.regions.home and not self.prims[held].channels_last:
            own = contiguous(prim.shape)  # a reshape of what lies in order
        else:
            return False
        pairs = zip(own, strides, prim.shape, strict=True)
        return all(sizes.is_one(size) or sizes.same(a, b) for a, b, size in pairs)
