"""The gradients of each region, planned: which kernels and library calls compute them, and what they hold meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch
from torch import nn

from ..codegen.loops.text import KernelText, has_window
from ..codegen.mma.anchored import AnchoredText
from ..errors import Unsupported
from ..ir import sizes
from ..ir.expr import Arg
from ..ir.graph import Graph, Node, Ref, map_refs
from ..ir.lowered import Lowered
from ..ir.plan import Kernel, Plan
from ..ir.prims import Load, Pointwise, Prim, View
from ..ir.pytext import call_text
from ..laws.rewrite import rewrite
from ..ops.lower import lower
from ..schedule import product_fusion, weight_gradients
from ..schedule.bit_exact import bit_exact
from ..schedule.fusion import take_over, written_alone
from ..schedule.grouping import Cyclic
from ..schedule.layout import spread
from ..schedule.naming import named_gradients
from ..schedule.planner import plan
from .flow import trainable
from .peak import by_kernels, by_pytorch, too_heavy
from .regions import Region, Regions
from .saved import of_norms, worth_saving
from .storage import Steps, Storage, Variables
from .trace import Trace, gradient_graph, saved_extremes

aten = torch.ops.aten
SHAPING = {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default}
SHAPING |= {aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default}


@dataclass(frozen=True)
class Result:
    """A gradient that backward of a region returns: the value of a node, or a copy of it."""

    node: str
    copied: bool


@dataclass(frozen=True)
class RegionGradient:
    """Backward of one region."""

    plan: Plan
    kernels: Mapping[str, KernelText | AnchoredText]  # of the plan, in CUDA: what they need besides tensors counts for its memory
    results: tuple[Result | None, ...]  # for each tensor that the region's reference reads; None: no gradient, or none asked for
    saved: tuple[str, ...]  # activations: primitives inside the region that forward hands over to it
    handed: tuple[str, ...]  # inputs that are its own to free
    adds: int  # bytes that it holds at its peak, in the example, beyond what it was handed
    forward_guards: tuple[sympy.Basic, ...] = ()  # what holds of sizes wherever the region runs
    asked: tuple[bool, ...] = ()  # of which of these tensors it has the gradient, which may be none: what only chooses a position has none

    @property
    def guards(self) -> list[sympy.Basic]:
        """Conditions on sizes that do not follow from those of forward."""
        return [guard for guard in self.plan.graph.guards if not sizes.follows(guard, self.forward_guards)]

    @property
    def leaving(self) -> set[str]:
        """Variables that hold its results."""
        variables = Variables(OneRegion(self.plan))
        return {variables.variable(output.value.name) for output in self.plan.graph.outputs if isinstance(output.value, Ref)}


@dataclass(frozen=True)
class Gradients:
    """Of the regions of a plan."""

    regions: Mapping[str, RegionGradient]  # where there are kernels, or library calls that read no more than forward did
    heavy: frozenset[str] = frozenset()  # regions whose gradients are left to PyTorch: kernels for them would hold more memory


def find_gradients(
    regions: Regions,
    model: nn.Module,
    left: Collection[str] = (),
    traces: dict[str, Trace | None] | None = None,
    own_weights: frozenset[str] | None = None,
) -> Gradients:
    """Of every region that is not `left` to PyTorch's operators, and does not have to be so that training holds no more memory. `traces`
    are those that were made for the same graph. `own_weights`: whose gradients are of kernels of ours; None: as predicted."""
    known, asked = {} if traces is None else traces, trainable(regions.graph, model)
    taken: set[str] = set()  # names of kernels
    every = {
        region.name: region_gradient(region, regions, asked, known, taken, own_weights) for region in regions if region.name not in left
    }
    found = {name: gradient for name, gradient in every.items() if gradient is not None}
    if not found:
        return Gradients({})
    ours = {}
    for region in (region for region in regions if region.name in found):
        gradient = found[region.name]
        ours[region.name] = by_kernels(region, regions, gradient.saved, gradient.adds)
    theirs = {region.name: by_pytorch(region, regions, wanted_of(region, regions, asked)) for region in regions}
    heavy = frozenset(too_heavy(ours, theirs, regions))
    return Gradients({name: gradient for name, gradient in found.items() if name not in heavy}, heavy)


def wanted_of(region: Region, regions: Regions, asked: set[str]) -> list[str]:
    """Of what a region's reference reads: the values that training asks gradients of."""
    graph = regions.graph
    types = {name: graph[name].dtype for name in regions.reference_inputs(region) if name in asked}
    return [name for name, dtype in types.items() if dtype is not None and dtype.is_floating_point]


def region_gradient(
    region: Region,
    regions: Regions,
    asked: set[str],
    traces: dict[str, Trace | None],
    taken: set[str],
    own_weights: frozenset[str] | None = None,
) -> RegionGradient | None:
    """None where training asks for no gradient of what the region reads, or PyTorch's operators do as well."""
    graph, arguments, outputs = regions.graph, regions.reference_inputs(region), regions.differentiated(region)
    wanted = wanted_of(region, regions, asked)
    if not wanted or not outputs:
        return None
    saved = worth_saving(region, regions)
    nodes = regions.reference_nodes(region)
    found = gradient_graph(graph, nodes, arguments, outputs, wanted, traces, list(saved), of_norms(saved, regions))
    extremes = saved_extremes(found, graph, saved) if found is not None else set()
    if extremes:
        saved = {name: prim for name, prim in saved.items() if name not in extremes}
        found = gradient_graph(graph, nodes, arguments, outputs, wanted, traces, list(saved), of_norms(saved, regions))
    if found is None:
        return None
    saved = {name: prim for name, prim in saved.items() if name in found.inputs}
    try:
        graph_of_gradients, weights = with_own_weights(rewrite(found)[0], regions, own_weights)
        exact = bit_exact(lowered_by_role(graph_of_gradients, wanted))
        if exact is None:
            return None
        lowered = apart(exact, [name for name in wanted if graph[name].is_leaf], wanted)
        made = plan(lowered, channels_last=bool(regions.channels_last), machine=regions.plan.machine)
        made = weight_gradients.with_weight_gradients(replace(made, precision=regions.plan.precision), weights)
        made = recomputed(made) if not regions.channels_last else made
        made = multiplied(made) if any(product_fusion.is_product(kernel) for kernel in regions.plan.kernels) else made
        made = laid_out(made, regions.channels_last, outputs, wanted)
        upstream, returned = ([f"grad_{name}" for name in names] for names in (outputs, returned_of(regions, outputs)))
        made = named(stepped(made, upstream, returned), wanted, region, regions.plan, taken)
        own = {node.target for node in regions.reference_nodes(region)}
        if not made.kernels and any(call.node.target in own for call in made.calls):
            return None  # forward again, then all that PyTorch would do
        check_expressible(made)
        inner = [name for name in saved if name not in regions.outputs(region)]
        results = results_of(made, graph, arguments, wanted)
        copied = [name for name, result in zip(arguments, results, strict=True) if result is not None and result.copied]
        planned = with_memory(made, results, tuple(saved.values()), inner, copied, graph)
        return replace(planned, asked=tuple(name in wanted for name in arguments))
    except (Unsupported, Cyclic, sizes.Unprintable):
        return None


def with_own_weights(
    graph: Graph, regions: Regions, own: frozenset[str] | None
) -> tuple[Graph, list[weight_gradients.Site]]:
    """The graph in which the gradients of weights that kernels of ours compute are calls of their own. Their kernels read plain data."""
    if regions.channels_last:
        return graph, []
    found = weight_gradients.chosen(graph, own, regions.plan.precision, regions.plan.machine)
    return (weight_gradients.separated(graph, found) if found else graph), found


def lowered_by_role(graph: Graph, wanted: Sequence[str]) -> Lowered:
    """The gradient of x is called `grad_x`, unless lowering finds that it is that of another one too."""
    lowered = lower(with_roles(graph, wanted))
    outputs = zip(wanted, lowered.graph.outputs, strict=True)
    places = [(name, output.value.name) for name, output in outputs if isinstance(output.value, Ref)]
    own = {name: behind_views(lowered.value[node], lowered.prims).name for name, node in places}
    shared = {name for name in wanted for other, base in own.items() if other != name and base == f"grad_{name}"}
    return lower(with_roles(graph, [name if name not in shared else "" for name in wanted])) if shared else lowered


def with_roles(graph: Graph, wanted: Sequence[str]) -> Graph:
    """The output for x is called `grad_x`: what computes it, behind views that only shape it. No name, no role."""
    roles: dict[str, str] = {}
    for name, output in zip(wanted, graph.outputs, strict=True):
        if not name or not isinstance(output.value, Ref):
            continue
        node = graph[output.value.name]
        while node.target in SHAPING and len(graph.users()[node.inputs[0]]) == 1:
            node = graph[node.inputs[0]]
        if not node.is_leaf and f"grad_{name}" not in graph.index:
            roles.setdefault(node.name, f"grad_{name}")
    refs = {old: Ref(new) for old, new in roles.items()}

    def called(node: Node) -> Node:
        return replace(node, name=roles.get(node.name, node.name), args=map_refs(node.args, refs), kwargs=map_refs(dict(node.kwargs), refs))

    outputs = [replace(output, value=map_refs(output.value, refs)) for output in graph.outputs]
    return replace(graph, nodes=tuple(map(called, graph.nodes)), outputs=tuple(outputs))


def with_memory(
    made: Plan, results: tuple[Result | None, ...], saved: tuple[str, ...], inner: list[str], copied: list[str], forward: Graph
) -> RegionGradient:
    """The gradient of a region, and what it holds at its peak beyond what it was handed; of that, `inner` is held by no one else, and
    the gradients of what is `copied` are held twice."""
    steps = Steps(Variables(OneRegion(made)))
    activations = [name for name in made.graph.inputs if name not in forward.index or not forward[name].is_leaf]
    handed = tuple(name for name in activations if steps.may_be_large(name))
    planned = RegionGradient(made, steps.written, results, saved, handed, 0, tuple(forward.guards))
    for kernel in made.kernels:
        steps.write(kernel)
    storage = Storage(steps, made.steps, planned.leaving, handed)
    held, twice = (sum(steps.hint(steps.bytes(name)) for name in names) for names in (inner, copied))
    return replace(planned, adds=storage.peak({*made.graph.inputs} - set(inner)) - held + twice)


def results_of(made: Plan, forward: Graph, arguments: list[str], wanted: list[str]) -> tuple[Result | None, ...]:
    """A parameter's gradient has memory of its own: PyTorch keeps it as `.grad` and adds to it in place."""
    of_wanted = dict(zip(wanted, made.graph.outputs, strict=True))
    values = [of_wanted[name].value if name in of_wanted else None for name in arguments]

    def memory_of(value: Ref) -> str:
        return made.base(made.lowered.value[value.name]).name

    found: list[Result | None] = []
    for argument, value in zip(arguments, values, strict=True):
        if not isinstance(value, Ref):
            found.append(None)
            continue
        own = memory_of(value)
        made_here = own in made.home or made.lowered.prims[own].origin in made.lowered.library
        earlier = [memory_of(v) for v in values[: values.index(value)] if isinstance(v, Ref)]
        alone = made_here and own not in earlier and values.count(value) == 1
        found.append(Result(value.name, copied=not alone and forward[argument].is_leaf))
    return tuple(found)


def check_expressible(made: Plan) -> None:
    """Raises where a call or a size cannot be written down in Python."""
    for call in made.calls:
        call_text(call.node, str, "")
    written = [prim for prim in made.lowered.prims.values() if isinstance(prim.op, View)]
    written += [made.lowered.prims[name] for kernel in made.kernels for name in kernel.stores]
    for size in [*made.graph.guards, *(size for prim in written for size in prim.shape)]:
        sizes.text(size)


def behind_views(name: str, prims: Mapping[str, Prim]) -> Prim:
    prim = prims[name]
    while isinstance(prim.op, View):
        prim = prims[prim.inputs[0]]
    return prim


def apart(lowered: Lowered, parameters: list[str], wanted: list[str]) -> Lowered:
    """A value that is the gradient of two parameters is written twice: each has memory of its own."""
    prims, value, taken = dict(lowered.prims), dict(lowered.value), set[str]()
    nodes = [output.value.name for output in lowered.graph.outputs if isinstance(output.value, Ref)]
    for name, output in zip(wanted, lowered.graph.outputs, strict=True):
        if not isinstance(output.value, Ref) or name not in parameters:
            continue
        node = output.value.name
        source, behind = prims[value[node]], behind_views(value[node], prims)
        if behind.name in taken and not behind.is_load and nodes.count(node) == 1:
            copy = f"grad_{name}"
            while copy in prims or copy in lowered.graph.index:
                copy += "_"
            prims[copy] = Prim(copy, Pointwise(Arg(0), source.dtype), (source.name,), source.shape, source.dtype, node)
            value[node] = copy
        taken.add(behind.name)
    return replace(lowered, prims=prims, value=value)


def recomputed(made: Plan) -> Plan:
    """Convolutions that forward did not save, by kernels of ours where these are faster, and as exact as the library's."""
    precision = made.precision
    exact = replace(made, precision=replace(precision, split=True, bf16_parts=False, scaled=False) if precision is not None else None)
    return replace(written_alone(exact), precision=precision)


def multiplied(made: Plan) -> Plan:
    """Matrix products by kernels of ours, where that pays: forward has some, so nothing forbids them."""
    found = {call.node.name: product_fusion.product_of(call.node, made) for call in made.calls}
    return take_over(made, frozenset(name for name, anchor in found.items() if anchor is not None and product_fusion.pays(anchor, made)))


def laid_out(made: Plan, last: set[str], outputs: list[str], wanted: list[str]) -> Plan:
    """What lies channels-last in forward does so here, and so do the gradients of it."""
    value = made.lowered.value
    read = {value[name] for name in last if name in made.graph.inputs}
    read |= {value[f"grad_{name}"] for name in outputs if name in last}
    pairs = zip(wanted, made.graph.outputs, strict=True)
    written = {made.base(value[o.value.name]).name for name, o in pairs if name in last and isinstance(o.value, Ref)}
    return spread(made, read | written) if last else made


SMALL = 1 << 16  # elements: copying as few takes longer than reading them one by one


def returned_of(regions: Regions, outputs: list[str]) -> list[str]:
    """Those that the caller sees, perhaps by a view: of others the gradient comes from kernels and library calls, and lies in memory."""
    value, base = regions.lowered.value, regions.plan.base
    seen = {o.value.name for o in regions.graph.outputs if isinstance(o.value, Ref)} & value.keys()
    behind = {base(value[name]).name for name in seen}
    return [name for name in outputs if name in value and base(value[name]).name in behind]


def stepped(made: Plan, upstream: list[str], returned: list[str]) -> Plan:
    """Gradients of results are read with a step: that of a sum is one number that stands for all, which need not be copied. Small ones
    element by element; large ones, of what the model returns, in vectors as any other tensor."""
    prims = dict(made.lowered.prims)
    called = {name for call in made.calls for name in call.node.inputs}
    called |= {prims[name].origin for kernel in made.kernels if kernel.fused is not None for name in kernel.loads}  # as they are copied
    in_order = not any(prim.channels_last for prim in prims.values())
    in_runs = {name for kernel in made.kernels if has_window(kernel, prims) for name in kernel.loads}  # several vectors at once
    for node in upstream:
        load, step = prims[made.lowered.value[node]], f"{node}_step"
        small = made.graph.hint(sizes.product(load.shape)) <= SMALL
        if not load.is_load or node in called or step in prims:
            continue
        if small and in_order:
            prims[load.name] = replace(load, op=Load(step))
        elif not small and node in returned and not load.channels_last and load.name not in in_runs:
            prims[load.name] = replace(load, op=Load(step, repeated=True))
    return replace(made, lowered=replace(made.lowered, prims=prims))


def named(made: Plan, wanted: list[str], region: Region, of: Plan, taken: set[str]) -> Plan:
    """Its kernels are called after what they are the gradients of."""
    outputs = [(name, output.value) for name, output in zip(wanted, made.graph.outputs, strict=True) if isinstance(output.value, Ref)]
    stored = {made.base(made.lowered.value[value.name]).name: name for name, value in outputs}
    return named_gradients(made, region.kernels, of, stored, taken)


class OneRegion(Regions):
    """Every kernel of a plan whose steps all stand in one function, in order."""

    def find_regions(self) -> list[Region]:
        return [Region("gradient", tuple(self.plan.kernels))]

    def condenses(self, kernel: Kernel) -> bool:
        return False  # nothing is differentiated again from here
