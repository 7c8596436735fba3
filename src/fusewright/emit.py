"""Plan -> the text of one self-contained Python file, and what each of its kernels stands for."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from string import Template
from types import ModuleType
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import nn

from . import __version__, sizes
from .emit_kernels import KernelFacts, Shared, ascii_only, kernel_text, together, with_prelude
from .emit_template import CONV_FLAGS, FILE, FOR_HOPPER, HELD, MODES, SLICES, TENSOR_CORES, TENSORS, UNCHANGED
from .errors import Unsupported
from .gradient import Trace, plain_form
from .graph import Dim, Graph, Node, Output, Ref
from .index import contiguous
from .inplace import overwritten
from .kernels.anchored import AnchoredText, anchored_kernel
from .kernels.text import KernelText, wrapped
from .layout import is_convolution, is_copy, memory_format
from .plan import Call, Kernel, Plan, counts_up, operator_name, origins
from .prims import Expand, Permute, Prim, Reshape, Slice, Unfold
from .pytext import argument_text, attribute_text, call_text, shape_text
from .source import FORBIDDEN, without_forbidden_remarks
from .takeover import conv_flops

if TYPE_CHECKING:
    from .emit_gradient import GradientText


@dataclass(frozen=True)
class Emitted:
    text: str
    kernels: tuple[KernelFacts, ...]
    calls: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the nodes that each of its functions computes


Scratch = dict[str, Dim]  # the parts of one allocation, and their bytes
ALIGNED = 256  # bytes: parts of known size, and those of sizes that say nothing, fill a multiple of it
FEW = 64  # elements read for each that is stored for backward's sake: who only infers pays 2 % at most
WIDEST = 16  # bytes: what one load takes; a part whose size is a multiple of it is left as it is


def padded(size: Dim) -> Dim | str:
    """As many bytes as leave the next part aligned; text where that takes a division."""
    if isinstance(size, int):
        return -(-size // ALIGNED) * ALIGNED
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(sympy.expand(size))]
    if all(factor.is_Integer and factor % WIDEST == 0 for factor in factors):
        return size
    return f"({sizes.text(sizes.factored(size))} + {ALIGNED - 1}) // {ALIGNED} * {ALIGNED}"


def partial_of(kernel: Kernel) -> str:
    """What the region calls the partial results of a kernel."""
    return f"{kernel.name.removeprefix('fused_')}_partial"


@dataclass(frozen=True)
class Region:
    """Kernels that run one after another with no library call between: one differentiable step."""

    name: str
    kernels: tuple[Kernel, ...]


def emit(plan: Plan, source: str, model: nn.Module, gradients: bool = True) -> Emitted:
    draft = Writer(Writer(plan, source, model).with_overwrites(), source, model)
    if gradients:
        draft.find_gradients()
    return draft.storing_what_is_kept().write()


class Writer:
    """Writes one file; lives for the length of `emit`."""

    def __init__(self, plan: Plan, source: str, model: nn.Module):
        self.plan, self.source, self.model = plan, source, model
        self.graph, self.lowered, self.prims = plan.graph, plan.lowered, plan.lowered.prims
        self.texts: dict[str, KernelText] = {}
        self.anchored: dict[str, AnchoredText] = {}
        self.constants: dict[str, str] = {}
        self.kernels, self.gradient_kernels = Shared(), Shared()
        self.gradients: dict[str, GradientText] = {}  # by region
        self.traces: dict[str, Trace | None] = {}  # of the regions' gradients, by form
        self.held: dict[str, Node] = {}  # path -> leaf: the tensors of the model that `forward` reads
        self.shaped: dict[str, tuple[Dim, ...]] = {}  # primitives that are allocated in another shape than theirs
        self.in_place = {new: old for kernel in plan.kernels for new, old in kernel.overwrites.items()}
        self.home = plan.home
        self.regions = self.find_regions()
        self.region_of = {id(kernel): region for region in self.regions for kernel in region.kernels}
        self.needed_nodes = self.find_needed_nodes()

    def with_overwrites(self) -> Plan:
        """The plan in which kernels write new values of buffers straight into them, where they may."""
        number = {region.name: i for i, region in enumerate(self.regions)}
        kept_by = {node: number[region.name] for region in self.regions for node in self.meaning_inputs(region)}  # the last

        def saved_later(kernel: Kernel, node: str) -> bool:
            return kept_by.get(node, -1) > number[self.region_of_kernel(kernel).name]

        found = overwritten(self.plan, self.model, saved_later)
        steps: list[Kernel | Call] = []
        for step in self.plan.steps:
            own = {new: old for old, (kernel, new) in found.items() if kernel is step}
            steps.append(replace(step, overwrites=own) if isinstance(step, Kernel) else step)
        return replace(self.plan, steps=tuple(steps))

    @functools.cached_property
    def channels_last(self) -> set[str]:
        """Nodes whose values lie so."""
        return {name for name, prim in self.lowered.value.items() if self.prims[prim].channels_last}

    # ---- which values exist in memory

    def find_needed_nodes(self) -> dict[str, None]:
        """Nodes whose value a library call reads or the model returns, in graph order."""
        wanted = {o.value.name for o in self.graph.outputs if isinstance(o.value, Ref) and not self.is_applied(o)}
        for call in self.plan.calls:
            wanted |= set(call.node.inputs)
        for kernel in self.plan.kernels:
            left = kernel.stores if self.condenses(kernel) else self.convolved_for_others(kernel)
            wanted |= {name for name in map(self.node_of, left) if name is not None}
        return dict.fromkeys(node.name for node in self.graph.nodes if node.name in wanted)

    def convolved_for_others(self, kernel: Kernel) -> tuple[str, ...]:
        """A convolution's result that other regions read: they go no further back, or its gradient would be computed for each."""
        value, own = (kernel.fused.anchor.value, self.region_of_kernel(kernel).name) if kernel.fused is not None else ("", "")
        return (value,) if value in kernel.stores and self.loaded_by.get(value, set()) - {own} else ()

    def is_applied(self, output: Output) -> bool:
        """No tensor of its own: a counter that PyTorch adds to, or a buffer that a kernel overwrites."""
        return counts_up(output, self.graph) is not None or self.overwrites(output)

    def overwrites(self, output: Output) -> bool:
        return isinstance(output.value, Ref) and self.lowered.value.get(output.value.name) in self.in_place

    def region_outputs(self, region: Region) -> list[str]:
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
                    found[self.region_of_kernel(kernel).name].append(name)
        return found

    def region_of_kernel(self, kernel: Kernel) -> Region:
        return self.region_of[id(kernel)]

    def find_regions(self) -> list[Region]:
        found: list[list[Kernel]] = []
        open_ = False
        for step in self.plan.steps:
            if isinstance(step, Kernel):
                if not open_:
                    found.append([])
                found[-1].append(step)
            open_ = isinstance(step, Kernel) and not self.condenses(step)
        regions, taken = [], set()
        for kernels in found:
            base = "_" + kernels[-1].name.removeprefix("fused_")
            name, count = base, 1
            while name in taken:
                count += 1
                name = f"{base}_{count}"
            taken.add(name)
            regions.append(Region(name, tuple(kernels)))
        return regions

    def condenses(self, kernel: Kernel) -> bool:
        """It leaves far less than it reads, all of it values of nodes: backward may start from these, not from what it read."""
        read, left = (
            sum(self.graph.hint(sizes.product(self.prims[n].shape)) for n in names)
            for names in (kernel.loads, kernel.stores)
        )
        return read >= 1 << 20 and left * 16 < read and all(self.node_of(name) is not None for name in kernel.stores)

    def worth_keeping(self, region: Region) -> dict[str, str]:
        """Nodes -> primitives that take long to compute again: those that the region's kernels leave to one another, and
        small ones that a kernel makes on its way and may as well store."""
        outputs = {self.plan.base(self.lowered.value[name]).name for name in self.region_outputs(region)}
        found: dict[str, str] = {}
        for node in self.meaning_nodes(region):
            prim = self.prims.get(self.lowered.value.get(node.name, ""))
            if prim is None or prim.name in outputs or prim.name in found.values() or not prim.dtype.is_floating_point:
                continue
            stored_by = self.home.get(prim.name)
            if stored_by is None:
                worth = self.maker(region, prim) is not None
            else:
                ours = self.region_of_kernel(stored_by) is region and prim.name not in stored_by.overwrites
                worth = ours and self.takes_long(stored_by, prim)
            if worth:
                found[node.name] = prim.name
        return found

    def maker(self, region: Region, prim: Prim) -> Kernel | None:
        """The kernel that has a value of each of its rows in registers and may store it: next to nothing beside what it reads."""
        left = self.graph.hint(sizes.product(prim.shape))
        for kernel in region.kernels:
            of_a_row = kernel.members.get(prim.name) in ("reduce", "row") and kernel.is_reduce
            if of_a_row and left * FEW < self.graph.hint(sizes.product(kernel.space)) and not self.condenses(kernel):
                return kernel if kernel.fused is None else None
        return None

    def find_gradients(self) -> None:
        """The kernels of backward, for each region where they can be had."""
        from .emit_gradient import gradient_text

        found = {region.name: gradient_text(self, region) for region in self.regions}
        self.gradients = {name: gradient for name, gradient in found.items() if gradient is not None}

    def storing_what_is_kept(self) -> Writer:
        """A writer of the plan in which kernels also store what backward is handed and was in no one's memory."""
        more: dict[int, list[str]] = {}
        for region in self.regions:
            for name in self.gradients[region.name].kept if region.name in self.gradients else ():
                kernel = self.maker(region, self.prims[name]) if name not in self.home else None
                if kernel is not None:
                    more.setdefault(id(kernel), []).append(name)
        if not more:
            return self
        steps = [
            replace(step, stores=(*step.stores, *more.get(id(step), ()))) if isinstance(step, Kernel) else step
            for step in self.plan.steps
        ]
        writer = Writer(replace(self.plan, steps=tuple(steps)), self.source, self.model)
        writer.gradients, writer.gradient_kernels = self.gradients, self.gradient_kernels
        return writer

    def takes_long(self, kernel: Kernel, prim: Prim) -> bool:
        """A convolution's result, or a sum of much: the latter is small as well."""
        if kernel.fused is not None:
            return bool(prim.name == kernel.fused.anchor.value)
        work, left = (self.graph.hint(sizes.product(shape)) for shape in (kernel.space, prim.shape))
        return kernel.is_reduce and left * 16 < work

    def node_of(self, prim: str) -> str | None:
        return self.first_of.get(prim)

    @functools.cached_property
    def first_of(self) -> dict[str, str]:
        """The first node whose value is a primitive in memory or a view of it."""
        return {self.plan.base(value).name: name for name, value in reversed(self.lowered.value.items())}

    # ---- the file

    def write(self) -> Emitted:
        calls = tuple(str(call.node.target) for call in self.plan.calls if call.node.target != "getitem")
        if not self.plan.kernels:
            ours = Template(UNCHANGED).substitute(version=__version__)
            return Emitted(without_forbidden_remarks(self.source) + "\n\n" + ours.strip("\n") + "\n", (), calls)
        for kernel in self.plan.kernels:
            if kernel.fused is not None:
                name_of = functools.partial(self.tensor_name, kernel)
                number = [k for k in self.region_of_kernel(kernel).kernels if k.fused is not None].index(kernel) + 1
                own = f"_{number}" if number > 1 else ""
                self.anchored[kernel.name] = anchored_kernel(
                    kernel, kernel.fused, self.plan, self.comment(kernel), name_of, own
                )
                continue
            written = kernel_text(kernel, self.prims, self.graph, self.comment(kernel))
            self.texts[kernel.name] = self.kernels.add(written)
        parts = [self.kernels.source(k.name) or self.anchored[k.name].source for k in self.plan.kernels if self.is_first(k)]
        support = list(dict.fromkeys(part for text in self.anchored.values() for part in text.support))
        kernels_text = "\n".join([*support, *parts])
        launchers = list(dict.fromkeys(name for k in self.plan.kernels for name in self.launchers(k)))
        cuda = with_prelude(kernels_text, launchers)
        regions = "\n\n\n".join(self.region_text(region) for region in self.regions)
        forward = self.forward_text()
        ours = Template(FILE).substitute(
            version=__version__,
            cuda=cuda,
            kernels=names_text(launchers),
            gradients=self.gradients_text(),
            flags=self.flags_text(),
            for_hopper=FOR_HOPPER if "wgmma" in cuda else "",
            architecture=", *_for_hopper()" if "wgmma" in cuda else "",
            held=self.held_text(),
            constants=self.constants_text(),
            planned=self.planned_text(),
            regions=regions,
            forward=forward,
        )
        ours = ascii_only(re.sub(r"\n{4,}", "\n\n\n", ours))
        found = FORBIDDEN.search(ours)
        assert found is None, f"the emitted text holds the word {found[0] if found else ''!r}"
        text = without_forbidden_remarks(self.source) + "\n\n" + ours.strip("\n") + "\n"
        facts = together([fact for kernel in self.plan.kernels for fact in self.facts(kernel)])
        nodes = {region.name: tuple(node.name for node in self.meaning_nodes(region)) for region in self.regions}
        return Emitted(text, facts, calls, nodes)

    def flags_text(self) -> str:
        """What the file asks of flags and GPU for its tensor cores."""
        if not self.on_tensor_cores:
            return ""
        convolves = any(text.tf32 for text in self.on_tensor_cores)
        return (CONV_FLAGS + SLICES if convolves else "") + TENSOR_CORES

    def gradients_text(self) -> str:
        """The kernels of backward, a unit of its own: who only infers never builds it."""
        found = [name for gradient in self.gradients.values() for name in gradient.kernels]
        if not found:
            return "_CUDA_GRADIENTS, _GRADIENT_KERNELS = None, ()  # no kernels for backward"
        cuda = with_prelude("\n".join(map(self.gradient_kernels.source, found)), found)
        names = names_text(found)
        return f"_CUDA_GRADIENTS = '''\n{cuda}'''\n\n_GRADIENT_KERNELS = ({names})"

    def origins(self, kernel: Kernel) -> list[Node]:
        return origins(kernel, self.prims, self.graph)

    def comment(self, kernel: Kernel) -> list[str]:
        lines = []
        for node in self.origins(kernel):
            place = f"{node.where.file}:{node.where.line}" if node.where.line else ""
            code = node.where.code if not FORBIDDEN.search(node.where.code) else ""
            lines.append(f"//   {operator_name(node, self.graph):<24} {place}  {code}".rstrip())
        own = {node.name for node in self.origins(kernel)}
        laws = [
            f"//   law: {rule}"
            for rule in self.plan.rules
            if any(name == rule.node or name.startswith(f"{rule.node}_") for name in own)
        ]
        roles = "statistics of" if kernel.name.endswith("_statistics") else "replaces"
        return [f"// {kernel.name} {roles}", *dict.fromkeys(lines), *laws]

    def facts(self, kernel: Kernel) -> list[KernelFacts]:
        moved = sum(
            self.graph.hint(sizes.product(self.prims[n].shape)) * self.prims[n].dtype.itemsize
            for n in (*kernel.loads, *kernel.stores)
        )
        replaces = tuple(dict.fromkeys(operator_name(node, self.graph) for node in self.origins(kernel)))
        flops = flops_of(kernel, self.prims, self.graph)
        if kernel.fused is not None:
            flops += conv_flops(kernel.fused.anchor, self.plan)
        first, *rest = self.launchers(kernel)
        return [KernelFacts(first, replaces, moved, flops), *(KernelFacts(name, replaces, 0, 0) for name in rest)]

    # ---- values as Python text

    def leaf_text(self, node: Node) -> str:
        if node.target == "input":
            return self.input_texts()[node.name]
        if node.target == "constant" and not isinstance(self.attribute(node), torch.Tensor):
            return self.constant_text(node)
        owner = str(node.args[0]).rpartition(".")[0]
        if owner and owner not in self.modules:
            return attribute_text(self.model, node.args[0])
        self.held.setdefault(str(node.args[0]), node)
        return node.name

    @functools.cached_property
    def modules(self) -> set[str]:
        return {path for path, _ in self.model.named_modules(remove_duplicate=False)}

    def attribute(self, node: Node) -> Any:
        owner: Any = self.model
        for part in str(node.args[0]).split("."):
            owner = getattr(owner, part, None)
        return owner

    def input_texts(self) -> dict[str, str]:
        return {name: name for name in self.graph.inputs}

    def constant_text(self, node: Node) -> str:
        value = node.kwargs["value"]
        if value.numel() > 1 << 16 or value.is_complex():
            raise Unsupported(
                f"a constant tensor of {value.numel()} elements is made inside forward; make it a buffer of the model"
            )
        numbers = re.sub(r"\b(inf|nan)\b", r'float("\1")', repr(value.tolist())) if value.numel() <= 64 else ""
        self.constants[node.name] = f"torch.tensor({numbers}, dtype={value.dtype})" if numbers else packed(value)
        return f'_constant("{node.name}", {self.device()})'

    def device(self) -> str:
        return f"{self.graph.inputs[0]}.device"

    def value_text(self, name: str) -> str:
        """A node's value in `forward`."""
        node = self.graph[name]
        if node.is_leaf:
            return self.leaf_text(node)
        if name in self.lowered.library or (self.plan.base(self.lowered.value[name]).name in self.home):
            return name
        return self.view_text(self.lowered.value[name], lambda prim: self.value_text(self.prims[prim].origin))

    def view_text(self, name: str, source: Any) -> str:
        """A view of something in memory, made by PyTorch."""
        prim = self.prims[name]
        if prim.name in self.home or prim.is_load:
            return source(prim.name)
        if self.elements(name) in self.shaped:
            return source(self.elements(name))
        op, behind = prim.op, prim.inputs[0]
        while isinstance(op, Reshape) and behind not in self.home and isinstance(self.prims[behind].op, Reshape):
            behind = self.prims[behind].inputs[0]  # the last shape is the one that counts
        inner = self.view_text(behind, source)
        if isinstance(op, Reshape):
            return f"{inner}.reshape({shape_text(prim.shape)})"
        if isinstance(op, Expand):
            return f"{inner}.expand({shape_text(prim.shape)})"
        if isinstance(op, Permute):
            return f"{inner}.permute({shape_text(op.order)})"
        if isinstance(op, Unfold):
            return f"{inner}.unfold({op.dim}, {sizes.text(prim.shape[-1])}, {op.step})"
        assert isinstance(op, Slice), f"{op} is no view PyTorch can make"
        stop = sizes.tidy(op.start + (prim.shape[op.dim] - 1) * op.step + 1)
        cut = f"{sizes.text(op.start)}:{sizes.text(stop)}" + (f":{op.step}" if op.step != 1 else "")
        return f"{inner}[{':, ' * op.dim}{cut}]"

    def library_text(self, node: Node, device: str) -> str:
        """A call to PyTorch. A convolution whose result lies channels-last is given an input that does."""
        layout = memory_format(self.prims[self.lowered.value[node.name]]) if is_convolution(node) else ""

        def value(name: str) -> str:
            straight = not layout or name != node.args[0].name or self.prims[self.lowered.value[name]].channels_last
            return self.value_text(name) if straight else f"{self.value_text(name)}.contiguous({layout})"

        return call_text(node, value, device)

    # ---- regions

    def region_inputs(self, region: Region) -> tuple[list[str], list[str], list[str]]:
        """(nodes that its meaning reads, primitives its kernels read from memory, those of them made by other regions)."""
        own = {id(kernel) for kernel in region.kernels}
        read = [n for k in region.kernels for n in (*k.loads, *k.overwrites.values())]
        loads = list(dict.fromkeys(n for n in read if n not in self.home or id(self.home[n]) not in own))
        foreign = [n for n in loads if n in self.home and self.node_holding(n) is None]
        return self.meaning_inputs(region), loads, foreign

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

    def meaning_nodes(self, region: Region) -> list[Node]:
        """Graph nodes that the region's outputs are computed from, back to what is in memory before the region runs."""
        return self.meanings[region.name]

    @functools.cached_property
    def meanings(self) -> dict[str, list[Node]]:
        return {region.name: self.find_meaning(region) for region in self.regions}

    def find_meaning(self, region: Region) -> list[Node]:
        outputs = [n for n in self.region_outputs(region) if self.differentiable(n)]
        stack, seen = list(outputs), set()
        while stack:
            name = stack.pop()
            if name in seen or self.before(name, region):
                continue
            seen.add(name)
            stack += meaning_reads(self.graph[name])
        return self.graph.in_order(seen)

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
        return home is not None and self.region_of_kernel(home) is not region

    @functools.cached_property
    def called(self) -> set[str]:
        return {call.node.name for call in self.plan.calls}

    def meaning_inputs(self, region: Region) -> list[str]:
        inner = {node.name for node in self.meaning_nodes(region)}
        return list(
            dict.fromkeys(
                name for node in self.meaning_nodes(region) for name in meaning_reads(node) if name not in inner
            )
        )

    def differentiable(self, name: str) -> bool:
        node = self.graph[name]
        assert node.dtype is not None
        return node.dtype.is_floating_point and name in self.smooth and name in self.followed and name not in self.only_updates

    @functools.cached_property
    def only_updates(self) -> set[str]:
        """New values of buffers that no one else sees."""
        leaving = [(o.value.name, o.kind) for o in self.graph.outputs if isinstance(o.value, Ref)]
        read = {name for call in self.plan.calls for name in call.node.inputs}
        return {n for n, kind in leaving if kind == "buffer"} - {n for n, kind in leaving if kind == "return"} - read

    @functools.cached_property
    def followed(self) -> set[str]:
        """Values whose gradient someone may ask for: a path along which nothing stops it leads on to what leaves the model."""
        found = {o.value.name for o in self.graph.outputs if isinstance(o.value, Ref) and o.kind != "buffer"}
        for node in reversed(self.graph.nodes):
            if node.name in found and node.name in self.smooth:
                found.update(meaning_reads(node))
        return found

    @functools.cached_property
    def smooth(self) -> set[str]:
        """Values with a path back to a tensor that may ask for a gradient, along which nothing stops it."""
        found: set[str] = set()
        for node in self.graph.nodes:
            carries = node.dtype is None or node.dtype.is_floating_point or node.dtype.is_complex
            if carries and node.target not in STOPS and (node.is_leaf or any(n in found for n in meaning_reads(node))):
                found.add(node.name)
        return found

    @functools.cached_property
    def trainable(self) -> set[str]:
        """Values that training asks gradients of: parameters that have them, and what is computed from these."""
        parameters = {name for name, p in self.model.named_parameters(remove_duplicate=False) if p.requires_grad}
        found: set[str] = set()
        for node in self.graph.nodes:
            if (node.target == "parameter" and node.args[0] in parameters) or any(name in found for name in node.inputs):
                found.add(node.name)
        return found

    def gradient_sources(self, region: Region, name: str) -> bool | tuple[int, ...]:
        """Positions of the tensors its meaning reads that a result's gradient flows to: True for all, False for none."""
        if not self.differentiable(name):
            return False
        read = self.meaning_inputs(region)
        reached: dict[str, set[str]] = {n: {n} & self.smooth for n in read}
        for node in self.meaning_nodes(region):
            behind = set().union(*(reached[n] for n in meaning_reads(node)))
            reached[node.name] = behind if node.name in self.smooth else set()
        found = tuple(i for i, n in enumerate(read) if n in reached[name])
        return found if len(found) < len(self.smooth & set(read)) else True

    def region_arguments(self, region: Region) -> list[tuple[str, str]]:
        """(name inside the region, text in `forward`) of every tensor it takes."""
        nodes, loads, _ = self.region_inputs(region)
        found = {name: self.value_text(name) for name in nodes}
        for load in loads:
            holder = self.prims[load].origin if self.prims[load].is_load else self.node_holding(load)
            if holder is not None:
                found.setdefault(holder, self.value_text(holder))
            else:
                found[load] = load
        if not found:  # constants only: an input says on which device
            found[self.graph.inputs[0]] = self.value_text(self.graph.inputs[0])
        return list(found.items())

    def argument_of(self, load: str) -> str:
        if self.prims[load].is_load:
            return self.prims[load].origin
        return self.node_holding(load) or load

    def region_results(self, region: Region) -> tuple[list[str], list[str]]:
        """Nodes it returns, and primitives that other regions' kernels read."""
        own = [n for k in region.kernels for n in k.stores]
        outputs = self.region_outputs(region)
        held = {self.elements(self.lowered.value[n]) for n in outputs}
        return outputs, [n for n in own if self.loaded_by.get(n, set()) - {region.name} and n not in held]

    @functools.cached_property
    def loaded_by(self) -> dict[str, set[str]]:
        """Primitive -> the regions whose kernels load it."""
        found: dict[str, set[str]] = {}
        for region in self.regions:
            for name in (n for kernel in region.kernels for n in kernel.loads):
                found.setdefault(name, set()).add(region.name)
        return found

    def region_text(self, region: Region) -> str:
        arguments = self.region_arguments(region)
        names = [name for name, _ in arguments]
        outputs, extra = self.region_results(region)
        symbols = [str(s) for s in self.graph.symbols]
        unpack = f"    {', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes\n" if symbols else ""
        lines = []
        read = [load for kernel in region.kernels for load in kernel.read_only if load not in self.home]
        loaded = {self.argument_of(load): load for load in read}
        for name in (n for n in names if n in loaded):  # (what kernels made lies as it should)
            lines.append(f"    {self.straightened(name, loaded[name])}")
        self.shape_results(outputs)
        scratch = self.scratch(region)
        work = self.scratch_lines(region, scratch)
        for kernel in region.kernels:
            work += self.launch_lines(kernel, scratch)
        lines += [f"    {line}" for line in work]
        results = [self.view_text(self.lowered.value[n], lambda p: p) for n in outputs] + extra
        gradient = self.gradients.get(region.name)
        given = list(names)
        if gradient is not None and gradient.kept:
            kept = self.free_name("kept")
            given.append(f"{kept}=None")
            lines += [f"    if {kept} is not None:  # for backward", f"        {kept} += [{', '.join(gradient.kept)}]"]
        run = f"def {region.name}(sizes, {', '.join(given)}):\n{unpack}" + "\n".join(lines)
        run += f"\n    return ({', '.join(results)},)" if results else ""
        if not results:
            return run
        parts = [run, self.meaning_text(region, names, outputs, unpack), *([gradient.function] if gradient else [])]
        return "\n\n\n".join([*parts, self.record_text(region, gradient)])

    def record_text(self, region: Region, gradient: GradientText | None) -> str:
        """What `_run` is told of the region."""
        outputs, extra = self.region_results(region)
        marks = [self.gradient_sources(region, n) for n in outputs] + [False] * len(extra)
        read = self.meaning_inputs(region)
        changed = tuple(i for i, name in enumerate(read) if self.is_overwritten(name))
        given = [region.name, f"{region.name}_meaning"]
        given += [f"{region.name}_gradient", f"asked={gradient.asked}"] if gradient is not None else []
        given += ["keeps=True"] if gradient is not None and gradient.kept else []
        given += [f"differentiable={tuple(marks)}"] if not all(mark is True for mark in marks) else []
        given += [f"changed={changed}"] if changed else []
        head, line = f"{region.name}_region = _Region(", ", ".join(given)
        return f"{head}{line})" if len(head + line) < 130 else "\n".join([head, *wrapped("    ", given, ","), ")"])

    def shape_results(self, nodes: list[str]) -> None:
        """What is seen only as a reshape of a kernel's result is allocated in that shape: PyTorch need not reshape it."""
        values = [self.lowered.value[name] for name in nodes if name in self.lowered.value]
        bases = [self.plan.base(value).name for value in values]
        for value, base in zip(values, bases, strict=True):
            alone = bases.count(base) == 1 and base in self.home and not self.prims[base].channels_last
            if alone and value != base and self.elements(value) == base:
                self.shaped[base] = self.prims[value].shape

    @property
    def on_tensor_cores(self) -> list[AnchoredText]:
        return [text for text in self.anchored.values() if text.tensor_cores]

    def launchers(self, kernel: Kernel) -> tuple[str, ...]:
        return self.anchored[kernel.name].names if kernel.fused is not None else (self.texts[kernel.name].name,)

    def is_first(self, kernel: Kernel) -> bool:
        """It stands in the file; another of its shape is launched by its name."""
        return kernel.fused is not None or self.texts[kernel.name].name == kernel.name

    def tensor_name(self, kernel: Kernel, prim: str) -> str:
        """What a tensor that the kernel reads is called in its region."""
        return prim if prim in self.own_values(kernel) else self.argument_of(prim)

    def launch_lines(self, kernel: Kernel, scratch: Scratch) -> list[str]:
        made = [name for name in kernel.stores if name not in kernel.overwrites and name not in scratch]
        lines = [self.allocation_of(self.prims[name]) for name in made]
        workspace = {name: size for name, size in self.workspace(kernel).items() if name not in scratch}
        lines += [self.allocation(name, (size,), (1,), torch.float32) for name, size in workspace.items()]
        if kernel.fused is not None:
            return [*lines, *self.anchored[kernel.name].lines]
        text = self.texts[kernel.name]
        tensors = [*(self.tensor_name(kernel, name) for name in text.tensors), *self.workspace(kernel)]
        lines.append(f"_launch({', '.join([repr(text.name).replace(chr(39), chr(34)), *tensors, *text.sizes])})")
        return lines

    def workspace(self, kernel: Kernel) -> dict[str, Dim]:
        """What the kernel needs besides its tensors, in words of four bytes."""
        if kernel.fused is not None:
            return dict(self.anchored[kernel.name].workspace)
        found = self.texts[kernel.name].workspace
        return {partial_of(kernel): sizes.tidy(found.count * found.words)} if found is not None else {}

    def straightened(self, name: str, load: str) -> str:
        """The tensor laid out as kernels read it; the same one if it lies so."""
        return f"{name} = {name}.contiguous({memory_format(self.prims[load])})"

    def allocation_of(self, prim: Prim) -> str:
        shape = self.shaped.get(prim.name)
        strides = prim.strides if shape is None else contiguous(shape)
        return self.allocation(prim.name, prim.shape if shape is None else shape, strides, prim.dtype)

    def allocation(self, name: str, shape: tuple[Any, ...], strides: tuple[Any, ...], dtype: torch.dtype) -> str:
        """Memory of its own, for a kernel to write."""

        def listed(sizes_: tuple[Any, ...]) -> str:
            words = [size if isinstance(size, str) else sizes.text(sizes.factored(size)) for size in sizes_]
            return f"({', '.join(words)}{',' if len(words) == 1 else ''})"

        return f"{name} = _empty({listed(shape)}, {listed(strides)}, {dtype})"

    def scratch(self, region: Region) -> Scratch:
        """What only the region's kernels see, and its bytes, to lie in one allocation: each takes as long as a launch."""
        outputs, extra = self.region_results(region)
        gradient = self.gradients.get(region.name)
        seen = {self.plan.base(self.lowered.value[n]).name for n in outputs} | set(extra)
        seen |= set(gradient.kept) if gradient is not None else set()
        needed: Scratch = {}
        for kernel in region.kernels:
            for name in (n for n in kernel.stores if n not in seen and n not in kernel.overwrites):
                prim = self.prims[name]
                needed[name] = sizes.tidy(sizes.product(prim.shape) * prim.dtype.itemsize)
            needed |= {name: sizes.tidy(words * 4) for name, words in self.workspace(kernel).items()}
        return needed if len(needed) > 1 else {}

    def scratch_lines(self, region: Region, scratch: Scratch) -> list[str]:
        """The allocation, and where each part begins: at the end of the one before it."""
        lines = [line for kernel in region.kernels if kernel.fused is not None for line in self.anchored[kernel.name].sizes]
        if not scratch:
            return lines
        whole, bytes_ = self.free_name("scratch"), [padded(size) for size in scratch.values()]
        exact = sizes.tidy(sum(size for size in bytes_ if not isinstance(size, str)))
        words = [sizes.text(sizes.factored(sizes.tidy(sympy.Rational(1, 4) * exact)))] if exact != 0 else []
        words += [f"{size} // 4" for size in bytes_ if isinstance(size, str)]
        lines.append(f"{self.allocation(whole, (' + '.join(words),), (1,), torch.float32)}  # what only kernels see")
        start = f"{whole}.data_ptr()"
        for name, size in zip(scratch, bytes_, strict=True):
            lines.append(f"{name} = {start}")
            start = f"{name} + {size if isinstance(size, str) else sizes.text(sizes.factored(size))}"
        return lines

    def free_name(self, name: str) -> str:
        """A name for something of ours that no value of the model has."""
        while name in self.graph.index or name in self.prims:
            name += "_"
        return name

    def own_values(self, kernel: Kernel) -> set[str]:
        return self.stored_by[self.region_of_kernel(kernel).name]

    @functools.cached_property
    def stored_by(self) -> dict[str, set[str]]:
        return {region.name: {name for k in region.kernels for name in k.stores} for region in self.regions}

    def meaning_text(self, region: Region, names: list[str], outputs: list[str], unpack: str) -> str:
        """The same values by PyTorch's operators; what backward differentiates."""
        read = self.meaning_inputs(region)
        parameters = ", ".join([*read, *(["*_"] if len(read) < len(names) else [])])
        lines = [f"def {region.name}_meaning(sizes, {parameters}):", *([unpack.rstrip("\n")] if unpack else [])]
        device = f"{(read or names)[0]}.device" if names else "torch.device('cuda')"
        for node in self.meaning_nodes(region):
            lines.append(f"    {node.name} = {meaning_call(node, self.graph, device)}")
        kept = [n for n in outputs if self.differentiable(n)]
        lines.append(f"    return ({', '.join(kept)}{',' if kept else ''})")
        return "\n".join(lines)

    # ---- what forward reads of the model

    def held_leaves(self) -> list[Node]:
        """Those tensors, the ones of a module next to each other."""
        modules = list(dict.fromkeys(path.rpartition(".")[0] for path in self.held))
        return sorted(self.held.values(), key=lambda node: modules.index(str(node.args[0]).rpartition(".")[0]))

    def held_text(self) -> str:
        """Tables of what the plan was made for, and the functions that look it up."""
        text, paths = "", []
        if self.held:
            rows = [f'    ("{n.args[0]}", {n.dtype}, {shape_text(n.shape or ())}),' for n in self.held_leaves()]
            text += "\n".join(["_TENSORS = (  # what forward reads of the model, its type and shape", *rows, ")\n"])
            paths.append('[tuple(path.split(".")[:-1]) for path, _, _ in _TENSORS]')
        if self.flags:
            rows = [f"    ({path_text(path)}, {training})," for path, training in self.flags]
            text += "\n".join(["_TRAINING = (  # modules that look at it", *rows, ")\n"])
            paths.append("[path for path, _ in _TRAINING]")
        if not text:
            return ""
        walk = Template(HELD).substitute(paths=" + ".join(paths))
        return text + walk + (TENSORS if self.held else "") + (MODES if self.flags else "")

    @functools.cached_property
    def flags(self) -> list[tuple[str, bool]]:
        return training_flags(self.model)

    # ---- forward

    def forward_text(self) -> str:
        lines: list[str] = []
        symbols = self.graph.symbols
        for position in dict.fromkeys(binding.input for binding in symbols.values()):
            lines.append(self.sizes_line(position))
        sizes_text = f"({', '.join(map(str, symbols))}{',' if len(symbols) == 1 else ''})"
        done: set[int] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines.append(f"{step.node.name} = {self.library_text(step.node, self.device())}")
                continue
            region = self.region_of_kernel(step)
            if id(region) in done:
                continue
            done.add(id(region))
            outputs, extra = self.region_results(region)
            results = [*outputs, *extra]
            if not results:  # it only overwrites buffers
                lines.append(f"{region.name}({sizes_text}, {', '.join(text for _, text in self.region_arguments(region))})")
                continue
            arguments = ", ".join(text for _, text in self.region_arguments(region))
            target = f"({', '.join(results)},)" if len(results) == 1 else ", ".join(results)
            run = f"_run({region.name}_region, {sizes_text}, {arguments})"
            lines.append(self.unless_turned(region, run) or f"{target} = {run}")
        lines += self.updates()
        lines.append(f"return {self.result_text()}")
        if self.held:
            lines[:0] = wrapped("(", [node.name for node in self.held_leaves()], f",) = {self.free_name('tensors')}", limit=112)
        body = "\n".join(f"        {line}" for line in lines)
        parameters, unpack = self.signature()
        given = ", ".join(self.argument_name(i) for i in range(len(self.graph.arguments)))
        modules, tensors = self.free_name("modules"), self.free_name("tensors")
        looked = [*([modules] if self.flags else []), *([tensors] if self.held else [])]
        check = f"        {modules} = _modules(self)\n" if self.flags else ""
        check += f"        {tensors} = _tensors({modules if self.flags else '_modules(self)'})\n" if self.held else ""
        check += f"        if not _planned_for({', '.join([*looked, given])}):\n"
        check += f"            return super().forward({parameters})\n"
        check += f"        if _elsewhere({self.graph.inputs[0]}):\n"
        check += f"            with torch.cuda.device({self.device()}):\n"
        check += f"                return ModelNew.forward(self, {parameters})\n"
        return f"    def forward(self, {parameters}):\n{unpack}{check}{body}"

    def sizes_line(self, position: int) -> str:
        """The sizes of an argument that have names."""
        argument = self.argument_name(position)
        named = {b.dim: str(symbol) for symbol, b in self.graph.symbols.items() if b.input == position}
        if len(named) == 1:
            ((dim, name),) = named.items()
            return f"{name} = {argument}.shape[{dim}]"
        return f"{', '.join(named.get(dim, '_') for dim in range(len(self.graph[argument].shape or ())))} = {argument}.shape"

    def unless_turned(self, region: Region, run: str) -> str:
        """Where a region only turns an input: nothing, if it lies so already."""
        stored = [self.prims[name] for kernel in region.kernels for name in kernel.stores]
        if len(stored) != 1 or not is_copy(self.graph.index.get(stored[0].name)):
            return ""
        (copy,) = stored
        source = self.value_text(self.prims[copy.inputs[0]].origin)
        return f"{copy.name} = {source} if {source}.is_contiguous({memory_format(copy)}) else {run}[0]"

    def argument_name(self, position: int) -> str:
        """What argument `position` of forward is called: an input's own name, or the original's for a plain value."""
        argument = self.graph.arguments[position]
        if isinstance(argument, Ref):
            return argument.name
        accepted = self.plain_parameters()
        return accepted[position] if accepted is not None else f"plain_{position}"

    def plain_parameters(self) -> list[str] | None:
        """The original's own parameter names, where each is one argument of the graph and none has a default."""
        accepted = list(inspect.signature(type(self.model).forward).parameters.values())[1:]
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in accepted)
        flat = self.graph.structure == tuple(range(len(self.graph.arguments)))
        names = [p.name for p in accepted]
        same = len(names) == len(self.graph.arguments) and all(
            not isinstance(a, Ref) or a.name == name for a, name in zip(self.graph.arguments, names, strict=True)
        )
        return names if plain and flat and same else None

    def signature(self) -> tuple[str, str]:
        """`forward`'s parameters, and the lines that take the graph's inputs out of them."""
        names = self.plain_parameters()
        if names is not None:
            return ", ".join(names), ""
        tests, takes = [f"len(arguments) == {len(self.graph.structure)}", "not named"], []

        def unpack(tree: Any, text: str) -> None:
            if isinstance(tree, int):
                takes.append(f"{self.argument_name(tree)} = {text}")
            elif isinstance(tree, (tuple, list)):
                if text != "arguments":
                    tests.append(f"len({text}) == {len(tree)}")
                for i, item in enumerate(tree):
                    unpack(item, f"{text}[{i}]")
            elif isinstance(tree, dict):
                tests.append(f"list({text}) == {list(tree)!r}")
                for key, item in tree.items():
                    unpack(item, f"{text}[{key!r}]")
            else:
                raise Unsupported(f"forward takes a {type(tree).__name__}, which is not taken apart")

        unpack(self.graph.structure, "arguments")
        lines = [f"if not ({' and '.join(tests)}):", "    return super().forward(*arguments, **named)", *takes]
        return "*arguments, **named", "".join(f"        {line}\n" for line in lines)

    def is_overwritten(self, name: str) -> bool:
        """A buffer or an input that `forward` changes after its kernels have read it."""
        node = self.graph.index.get(name)
        paths = {(o.kind, o.path) for o in self.graph.outputs}
        of_buffer = node is not None and node.target == "buffer" and ("buffer", node.args[0]) in paths
        return of_buffer or ("input", name) in paths

    def updates(self) -> list[str]:
        changed = [o for o in self.graph.outputs if o.kind != "return"]
        leaves = {node.args[0]: node for node in self.graph.nodes if node.target == "buffer"}
        where = {id(o): o.path for o in changed}
        for o in changed:
            if o.kind == "buffer":
                known = o.path in leaves
                where[id(o)] = self.leaf_text(leaves[o.path]) if known else attribute_text(self.model, o.path)
        lines = []
        counted: dict[int, list[str]] = {}
        for output in changed:
            step = counts_up(output, self.graph)
            if step is not None:
                counted.setdefault(step, []).append(where[id(output)])
            elif self.overwrites(output) and not self.is_batch_norm(output):
                lines.append(f"torch.autograd.graph.increment_version({where[id(output)]})")
        for step, counters in counted.items():
            several = f"torch._foreach_add_([{', '.join(counters)}], {step})"
            lines.append(several if len(counters) > 1 else f"{counters[0]}.add_({step})")
        copied = [o for o in changed if not self.is_applied(o)]
        copies = [f"    {where[id(o)]}.copy_({self.value_text(o.value.name)})" for o in copied]
        return [*lines, *(["with torch.no_grad():", *copies] if copies else [])]

    def is_batch_norm(self, output: Output) -> bool:
        """PyTorch's own batch norm changes its buffers without telling autograd."""
        node = self.graph[output.value.name]
        return node.target == "getitem" and operator_name(node, self.graph) == "batch_norm"

    def result_text(self) -> str:
        def write(tree: Any) -> str:
            kind = type(tree)
            if isinstance(tree, dict):
                text = "{" + ", ".join(f"{key!r}: {write(item)}" for key, item in tree.items()) + "}"
                return text if kind is dict else f"{self.class_text(kind)}({text})"
            if isinstance(tree, list):
                text = f"[{', '.join(map(write, tree))}]"
                return text if kind is list else f"{self.class_text(kind)}({text})"
            if isinstance(tree, tuple):
                items = ", ".join(map(write, tree))
                if hasattr(tree, "_fields"):  # a namedtuple
                    return f"{self.class_text(kind)}({items})"
                text = f"({items}{',' if len(tree) == 1 else ''})"
                return text if kind is tuple else f"{self.class_text(kind)}({text})"
            if kind is int:
                return self.output_text(self.graph.outputs[tree])
            raise Unsupported(f"the model returns a {kind.__name__}, which is not rebuilt")

        return write(self.graph.result)

    def class_text(self, kind: type) -> str:
        """How the model's own file names a class, such as that of a namedtuple; torch has names for its own."""
        if kind.__module__ == "torch.return_types":
            return f"torch.return_types.{kind.__name__}"
        known = vars(sys.modules[type(self.model).__module__])
        for name, value in known.items():
            if value is kind:
                return str(name)
            if isinstance(value, ModuleType) and getattr(value, kind.__name__, None) is kind:
                return f"{name}.{kind.__name__}"
        raise Unsupported(f"the model returns a {kind.__name__}, which its file has no name for")

    def output_text(self, output: Output) -> str:
        if not isinstance(output.value, Ref):
            return argument_text(output.value, self.value_text, self.device())
        node = self.graph[output.value.name]
        text = self.value_text(node.name)
        copied = (
            not node.is_leaf
            and node.name not in self.lowered.library
            and self.prims[self.lowered.value[node.name]].is_load
        )
        return f"{text}.clone()" if copied else text

    # ---- what the plan assumes

    def planned_text(self) -> str:
        tests: list[str] = []
        tensors = self.free_name("tensors")
        tests.append(f"_on_device({', '.join([*self.graph.inputs, *([f'*{tensors}'] if self.held else [])])})")
        if self.held:
            tests.append(f"[tensor.dtype for tensor in {tensors}] == _DTYPES")
            tests.append(f"[tensor.shape for tensor in {tensors}] == _SHAPES")
        if self.in_place:
            positions = {node.name: i for i, node in enumerate(self.held_leaves())}
            found = sorted(positions[self.prims[n].origin] for n in self.in_place.values())
            tests.append(f"all([{tensors}[i].is_contiguous() for i in {tuple(found)}])  # overwritten by kernels")
        tests += [f"{name}.dtype == {self.graph[name].dtype}" for name in self.graph.inputs]
        shapes = ", ".join(f"{name}.shape" for name in self.graph.inputs)
        tests += [f"_shapes_fit({shapes})"] if shapes else []
        modules = self.free_name("modules")
        if self.flags:
            tests.append(f"all([{modules}[place].training == training for place, training in _MODES])")
        if self.on_tensor_cores:
            shared = max(text.shared_bytes for text in self.on_tensor_cores)
            allowed = "_tf32_allowed() and " if any(text.tf32 for text in self.on_tensor_cores) else ""
            tests.append(f"{allowed}_has_tensor_cores({self.device()}, {shared})")
        for position, argument in enumerate(self.graph.arguments):
            if not isinstance(argument, Ref):
                name = self.argument_name(position)
                tests.append(
                    f"type({name}) is {type(argument).__name__} and {name} == {argument!r}"
                    if argument is not None
                    else f"{name} is None"
                )
        every = [self.argument_name(position) for position in range(len(self.graph.arguments))]
        arguments = ", ".join([*([modules] if self.flags else []), *([tensors] if self.held else []), *every])
        body = "\n".join(f"        and {test}" for test in tests[1:])
        return f"{self.shapes_text()}def _planned_for({arguments}):\n    return (\n        {tests[0]}\n{body}\n    )"

    def counted_by_int(self) -> list[Dim]:
        """Elements of tensors that convolutions of our own address with 32 bits."""
        names = [n for kernel in self.plan.kernels if kernel.fused is not None for n in (*kernel.loads, *kernel.stores)]
        counts = [sizes.product(self.prims[n].shape) for n in names]
        return list(dict.fromkeys(count for count in counts if not isinstance(count, int)))

    def shapes_text(self) -> str:
        if not self.graph.inputs:
            return ""
        ranks = [f"len({name}) != {len(self.graph[name].shape or ())}" for name in self.graph.inputs]
        lines = [
            "@functools.lru_cache(maxsize=256)",
            f"def _shapes_fit({', '.join(self.graph.inputs)}):",
            '    """Inputs of these shapes are what was planned for: the model takes the same way with them."""',
            f"    if {' or '.join(ranks)}:",
            "        return False",
        ]
        bound = {symbol: f"{self.argument_name(b.input)}[{b.dim}]" for symbol, b in self.graph.symbols.items()}
        lines += [f"    {', '.join(map(str, bound))} = {', '.join(bound.values())}"] if bound else []
        tests = []
        for name in self.graph.inputs:
            for dim, size in enumerate(self.graph[name].shape or ()):
                if bound.get(size) != f"{name}[{dim}]":
                    tests.append(f"{name}[{dim}] == {sizes.text(size)}")
        conditions = [sizes.text(guard) for guard in self.graph.guards if self.has_text(guard)]
        tests += [f"({test})" if " or " in test or " and " in test else test for test in conditions]
        tests += [f"{sizes.text(size)} < {1 << 31}" for size in self.counted_by_int()]
        lines += ["    return (", "        " + "\n        and ".join(tests), "    )"] if tests else ["    return True"]
        return "\n".join(lines) + "\n\n\n"

    def has_text(self, guard: sympy.Basic) -> bool:
        try:
            sizes.text(guard)
        except sizes.Unprintable:
            raise Unsupported(
                f"the model branches on its input sizes in a way that cannot be written down: {guard}"
            ) from None
        return True

    def constants_text(self) -> str:
        if not self.constants:
            return ""
        table = "".join(f'\n    "{name}": {text},' for name, text in self.constants.items())
        imports = "import zlib\n\n" if "zlib." in table else ""
        function = "@functools.lru_cache(maxsize=None)\ndef _constant(name, device):\n"
        function += "    with torch.inference_mode(False):  # training may save it\n        return _CONSTANTS[name].to(device)\n"
        return f"{imports}_CONSTANTS = {{{table}\n}}\n\n\n{function}"


def names_text(names: list[str]) -> str:
    return "".join(f'\n    "{name}",' for name in names) + ("\n" if names else "")


def packed(value: torch.Tensor) -> str:
    """A tensor too long to be read as a list: its bytes, compressed, in hexadecimal (which spells no word)."""
    data = zlib.compress(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), 9).hex()
    lines = "".join(f'\n        "{data[i : i + 100]}"' for i in range(0, len(data), 100))
    read = f"torch.frombuffer(bytearray(zlib.decompress(bytes.fromhex({lines}\n    ))), dtype={value.dtype})"
    return f"{read}.reshape({shape_text(tuple(value.shape))})"


def training_flags(model: nn.Module) -> list[tuple[str, bool]]:
    """Modules whose code looks at `training`, and how it was set when the graph was captured."""
    found = []
    for path, module in model.named_modules():
        functions = [f for cls in type(module).__mro__ if cls not in (nn.Module, object) for f in vars(cls).values()]
        codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
        if any("training" in code.co_names for code in codes):
            found.append((path, module.training))
    return found


# Results of these have no gradient, whatever they are made of.
STOPS = tuple(
    getattr(torch.ops.aten, name).default
    for name in "detach detach_ zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty".split()
)
def meaning_reads(node: Node) -> tuple[str, ...]:
    """What the node's call reads where only its derivative matters: batch norm without its running statistics."""
    return plain_form(node).inputs


def meaning_call(node: Node, graph: Graph, device: str) -> str:
    """The node's aten call, in a form that autograd knows."""
    return call_text(plain_form(node), lambda n: n, device)


def flops_of(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> int:
    total = 0
    stack, seen = list(kernel.stores), set()
    while stack:
        name = stack.pop()
        if name in seen or name in kernel.loads:
            continue
        seen.add(name)
        prim = prims[name]
        of_source = prims[prim.inputs[0]].shape if prim.inputs and type(prim.op).__name__ == "Reduce" else prim.shape
        total += graph.hint(sizes.product(of_source)) * getattr(prim.op, "cost", 1)
        stack += prim.inputs
    return total


def path_text(path: str) -> str:
    names = [f'"{name}"' for name in path.split(".") if name]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
