"""A region as Python: the function that launches its kernels, its reference in PyTorch's operators, and what `_run` is told of both."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from torch.utils import _pytree as pytree

from ..autograd import JointPlan
from ..autograd.flow import reference_reads
from ..autograd.lifetimes import ForwardLifetimes, last_steps
from ..autograd.regions import Region, Regions, is_asked_for, is_overwritten
from ..autograd.trace import plain_form
from ..codegen.loops.text import wrapped
from ..codegen.mma.anchored import AnchoredText
from ..ir.graph import Node, Ref
from ..ir.plan import Call, Shortcut, label
from ..ir.pytext import call_pieces
from ..schedule.layout import memory_format
from ..schedule.training import KERNELS, PYTORCH, UNTRAINED, why
from ..target.machine import LEAST_SHARED
from .launches import Body, Launches
from .lines import WIDTH, given_lines, unpacked
from .values import Values


class Functions:
    """Writes the functions of regions. `values` are those of `forward`, which calls them; `gradients` are functions of backward."""

    def __init__(self, launches: Launches, values: Values, joint: JointPlan, gradients: Mapping[str, str]):
        self.launches, self.values, self.joint, self.gradients, self.training = launches, values, joint, gradients, joint.training
        self.regions, self.graph, self.prims = values.regions, values.graph, values.prims
        self.features: set[str] = set()  # what regions need of the runtime, as `template.py` names it

    def arguments(self, region: Region) -> list[tuple[str, str]]:
        """(name inside the region, text in `forward`) of every tensor it takes."""
        found = {name: self.values.text(name) for name in self.regions.reference_inputs(region)}
        self.add_loads(self.regions.loads(region), found)
        if not found:  # constants only: an input says on which device
            found[self.graph.inputs[0]] = self.values.text(self.graph.inputs[0])
        return list(found.items())

    def add_loads(self, loads: Iterable[str], found: dict[str, str]) -> None:
        for load in loads:
            holder = self.prims[load].origin if self.prims[load].is_load else self.regions.node_holding(load)
            if holder is not None:
                found.setdefault(holder, self.values.text(holder))
            else:
                found[load] = load

    def variables(self, region: Region) -> dict[str, str]:
        """As `arguments`, with the variable of `forward` that each is a view of."""
        found = {name: self.values.variable(name) for name in self.regions.reference_inputs(region)}
        for load in self.regions.loads(region):
            holder = self.prims[load].origin if self.prims[load].is_load else self.regions.node_holding(load)
            found.setdefault(holder or load, self.values.variable(holder) if holder is not None else load)
        return found

    @functools.cached_property
    def lifetimes(self) -> ForwardLifetimes:
        return ForwardLifetimes(self.regions, self.values.variable, self.variables)

    def handed_over(self, region: Region) -> dict[str, str]:
        """(name inside the region, variable of `forward`) of what nothing needs after the region, nor its own last kernel: `forward`
        lets go of it, and the region frees it after the last kernel that reads it."""
        dying, _ = self.lifetimes.freed_after(region)
        last = last_steps(self.launches.reads(region.kernels))
        early = {name for name in self.variables(region) if last.get(name, -1) < len(region.kernels) - 1}
        return {n: v for n, v in self.variables(region).items() if n in early and v in dying and self.launches.may_be_large(n)}

    def shortcut_arguments(self, shortcut: Shortcut) -> list[tuple[str, str]]:
        """As `arguments`, of the function that launches the kernel of a shortcut."""
        found: dict[str, str] = {}
        self.add_loads(shortcut.kernel.loads, found)
        return list(found.items())

    def shortcut_results(self, shortcut: Shortcut) -> tuple[list[str], list[str]]:
        """What it leaves in the place of its steps: what forward calls it, and how it is made of the tensor that the kernel writes."""
        last = [step for step in self.regions.plan.steps if label(step) in shortcut.steps][-1]
        if isinstance(last, Call):
            return [last.node.name], [shortcut.kernel.stores[0]]
        outputs, extra = self.regions.results(self.regions.region_of(last))
        value = self.regions.lowered.value
        return [*outputs, *extra], [*(self.values.view_text(value[n], lambda prim: prim) for n in outputs), *extra]

    def shortcut_text(self, shortcut: Shortcut) -> str:
        """The function that launches the kernel of a shortcut; its steps were written before, and say how results are shaped."""
        region, kernel = self.regions.shorter[shortcut.kernel.name], shortcut.kernel
        names = [name for name, _ in self.shortcut_arguments(shortcut)]
        symbols = [str(s) for s in self.graph.symbols]
        lines = [f"{unpacked(symbols)} = sizes"] if symbols else []
        loaded = {self.regions.argument_of(load): load for load in kernel.loads if load not in self.regions.home}
        lines += self.launches.straightened([(name, loaded[name]) for name in names if name in loaded])
        lines += self.launches.lines(kernel, {})
        _, results = self.shortcut_results(shortcut)
        lines.append(f"return ({', '.join(results)},)")
        return f"def {region.name}(sizes, {', '.join(names)}):\n" + "\n".join(f"    {line}" for line in lines)

    def text(self, region: Region) -> str:
        names = [name for name, _ in self.arguments(region)]
        outputs, extra = self.regions.results(region)
        symbols = [str(s) for s in self.graph.symbols]
        tensors, handed = self.values.free_name("tensors"), list(self.handed_over(region))
        read = [load for kernel in region.kernels for load in kernel.read_only if load not in self.regions.home]
        loaded = {self.regions.argument_of(load): load for load in read}
        loaded = {name: loaded[name] for name in names if name in loaded}  # (what kernels made lies as it should)
        straight = not handed and list(loaded) == names and all(map(self.launches.is_plainly_contiguous, loaded.values()))
        self.features |= {"contiguous"} if straight and len(names) > 1 else set()
        lines = given_lines(symbols, names, tensors, straight)
        lines += [f"{tensors}.clear()  # handed over: {', '.join(handed)}"] if handed else []
        lines += self.launches.straightened(list(loaded.items()), alone=handed) if not straight else []
        self.values.shape_results(outputs)
        activations = self.joint.saved(region)
        value = self.regions.lowered.value
        leaving = {*(self.regions.plan.base(value[n]).name for n in outputs), *extra}
        body = Body(self.launches, region.kernels, leaving, handed, activations)
        work = body.first_lines()
        for kernel in region.kernels:
            work += [*body.made_before(kernel), *self.launches.lines(kernel, body.scratch), *body.freed_after(kernel)]
        lines += work
        results = [self.values.view_text(value[n], lambda prim: prim) for n in outputs] + extra
        given = ["sizes", tensors]
        if activations:
            saved = self.values.free_name("saved")
            given.append(f"{saved}=None")
            lines += [f"if {saved} is not None:  # for backward", f"    {saved} += [{', '.join(activations)}]"]
        lines += [f"return ({', '.join(results)},)"] if results else []
        run = "\n    ".join([f"def {region.name}({', '.join(given)}):", *lines])
        if not results:
            return run
        parts = [run, self.reference_text(region, names), *filter(None, [self.gradients.get(region.name)])]
        return "\n\n\n".join([*parts, self.record_text(region)])

    def unused(self, region: Region) -> str:
        """Of a region that a shortcut always stands for, nothing is written: only how what leaves it is shaped matters."""
        self.values.shape_results(self.regions.results(region)[0])
        return ""

    def reference_text(self, region: Region, names: list[str]) -> str:
        """The same values by PyTorch's operators; what backward differentiates."""
        read = self.regions.reference_inputs(region)
        self.features |= {"unread"} if len(read) < len(names) else set()
        parameters = ", ".join([*read, *(["*_"] if len(read) < len(names) else [])])
        device = f"{(read or names)[0]}.device" if names else "torch.device('cuda')"
        nodes, found = self.regions.reference_nodes(region), self.regions.differentiated(region)
        used = [str(s) if any(s in symbols_of(node) for node in nodes) else "_" for s in self.graph.symbols]
        lines = [f"def {region.name}_reference(sizes, {parameters}):"]
        lines += [f"    {unpacked(used)} = sizes"] if set(used) - {"_"} else []
        last = last_steps([[node.name, *reference_reads(node)] for node in nodes])
        frees = self.joint.in_training(region) != KERNELS  # training runs it: what autograd does not save is to be freed as eager's is
        large = [node.name for node in nodes if frees and node.name not in found and self.launches.may_be_large(node.name)]
        for step, node in enumerate(nodes):
            head, arguments, tail = call_pieces(plain_form(node), str, device)  # in a form that autograd knows
            lines += [f"    {line}" for line in wrapped(f"{node.name} = {head}", arguments, tail, limit=WIDTH)]
            dying = [name for name in large if last[name] == step]
            lines += [f"    del {', '.join(dying)}"] if dying and step < len(nodes) - 1 else []
        others = dict(self.regions.read_by_kernels(region)) if self.regions.referable(region) else {}
        value = self.regions.lowered.value
        if self.regions.channels_last:  # operators hand such a layout on, and the caller is to see the original's
            returned = {output.value.name for output in self.graph.outputs if isinstance(output.value, Ref) and output.kind == "return"}
            others |= {name: value[name] for name in found if name in returned and name in value}
        laid_out = [f"{n}.contiguous({memory_format(self.prims[others[n]])})" if n in others else n for n in found]
        lines.append(f"    return ({', '.join(laid_out)}{',' if found else ''})")
        return "\n".join(lines)

    def shared_bytes(self, region: Region) -> int:
        """Most that a block of its kernels takes, forward and backward."""
        texts = [self.launches.anchored.get(kernel.name) for kernel in region.kernels]
        gradient = self.joint.gradients.get(region.name)
        texts += [text for text in gradient.kernels.values() if isinstance(text, AnchoredText)] if gradient is not None else []
        return max((text.shared_bytes for text in texts if text is not None), default=0)

    def guarded(self, region: Region) -> int:
        """The shared memory that a device may lack, where it costs this region alone; 0: the region asks for none, or the whole
        file does, since PyTorch's operators could not leave what its kernels leave."""
        wanted = self.shared_bytes(region)
        return wanted if wanted > LEAST_SHARED and self.regions.referable(region) else 0

    def record_text(self, region: Region) -> str:
        """What `_run` is told of the region."""
        outputs, extra = self.regions.results(region)
        gradient = self.joint.gradients.get(region.name)
        marks = [gradient_sources(name, region, self.regions) for name in outputs] + [False] * len(extra)
        read = self.regions.reference_inputs(region)
        changed = tuple(i for i, name in enumerate(read) if is_overwritten(name, self.graph))
        others: dict[str, Any] = {}
        if gradient is not None:
            others |= {"gradient": f"{region.name}_grad", "asked": gradient.asked}
        saved = self.joint.saved(region)
        others |= {"saves": True} if saved else {}
        if any(is_asked_for(name, kernel) for name in saved for kernel in region.kernels):
            written = {self.regions.argument_of(old) for kernel in region.kernels for old in kernel.overwrites.values()}
            overwrite = tuple(i for i, (name, _) in enumerate(self.arguments(region)) if name in written)
            others |= {"late": True} | ({"overwrite": overwrite} if overwrite else {})
        others |= {"differentiable": tuple(marks)} if not all(mark is True for mark in marks) else {}
        others |= {"changed": changed} if changed else {}
        others |= {"shared_bytes": shared} if (shared := self.guarded(region)) else {}
        what = self.joint.in_training(region)
        others |= {"by_pytorch": True} if what in (PYTORCH, UNTRAINED) else {}
        self.features |= {"regions", *others}
        given = [region.name, f"{region.name}_reference", *(f"{name}={value}" for name, value in others.items())]
        silent = what == KERNELS and region.name not in self.training.reasons()  # as the kernels beside it say
        head, line = f"{region.name}_region = _Region(", ", ".join(given)
        text = f"{head}{line})" if len(head + line) < WIDTH else "\n".join([head, *wrapped("    ", given, ",", limit=WIDTH), ")"])
        if silent or self.training.original:
            return text
        remark = f"training: {what} ({why(region.name, what, self.training)})"
        return "\n".join([*textwrap.wrap(remark, WIDTH, initial_indent="# ", subsequent_indent="#   "), text])


def symbols_of(node: Node) -> set[sympy.Basic]:
    """Sizes that the node's call names."""
    call = plain_form(node)
    shape = call.shape if str(call.target) == "aten.copy.default" else ()  # of which its text is made
    found = pytree.tree_leaves([call.args, call.kwargs, shape])
    return {symbol for leaf in found if isinstance(leaf, sympy.Basic) for symbol in leaf.free_symbols}


def gradient_sources(name: str, region: Region, regions: Regions) -> bool | tuple[int, ...]:
    """Positions of the tensors its reference reads that a result's gradient flows to: True for all, False for none."""
    if not regions.flow.differentiable(name):
        return False
    read, smooth = regions.reference_inputs(region), regions.flow.smooth
    reached: dict[str, set[str]] = {n: {n} & smooth for n in read}
    for node in regions.reference_nodes(region):
        behind = set().union(*(reached[n] for n in reference_reads(node)))
        reached[node.name] = behind if node.name in smooth else set()
    found = tuple(i for i, n in enumerate(read) if n in reached[name])
    return found if len(found) < len(smooth & set(read)) else True
