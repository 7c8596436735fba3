"""Plan -> the text of one self-contained Python file, and what each of its kernels stands for."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
import zlib
from dataclasses import dataclass
from string import Template
from types import ModuleType
from typing import Any

import sympy
import torch
from torch import nn

from . import __version__, prelude, sizes
from .errors import Unsupported
from .graph import Graph, Node, Output, Ref
from .kernels.anchored import AnchoredText, anchored_kernel
from .kernels.pointwise import pointwise_kernel
from .kernels.reduce import reduce_kernel
from .kernels.text import KernelText
from .plan import Call, Kernel, Plan, counts_up, operator_name, origins
from .prims import Expand, Permute, Prim, Reshape, Slice, View
from .pytext import argument_text, attribute_text, call_text, shape_text
from .source import FORBIDDEN, without_forbidden_remarks
from .takeover import conv_flops

ASCII = str.maketrans(
    {
        "Σ": "sum",
        "−": "-",
        "·": "*",
        "×": "x",
        "≥": ">=",
        "≤": "<=",
        "²": "^2",
        "³": "^3",
        "…": "...",
        "–": "-",
        "—": "-",
        "→": "->",
        "’": "'",
    }
)


@dataclass(frozen=True)
class KernelFacts:
    """What the report says of a kernel before anything has run."""

    name: str
    replaces: tuple[str, ...]
    bytes: int
    flops: int


@dataclass(frozen=True)
class Emitted:
    text: str
    kernels: tuple[KernelFacts, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Region:
    """Kernels that run one after another with no library call between: one differentiable step."""

    name: str
    kernels: tuple[Kernel, ...]


def emit(plan: Plan, source: str, model: nn.Module) -> Emitted:
    return Writer(plan, source, model).write()


class Writer:
    """Writes one file; lives for the length of `emit`."""

    def __init__(self, plan: Plan, source: str, model: nn.Module):
        self.plan, self.source, self.model = plan, source, model
        self.graph, self.lowered, self.prims = plan.graph, plan.lowered, plan.lowered.prims
        self.texts: dict[str, KernelText] = {}
        self.anchored: dict[str, AnchoredText] = {}
        self.constants: dict[str, str] = {}
        self.home = {name: kernel for kernel in plan.kernels for name in kernel.stores}
        self.needed_nodes = self.find_needed_nodes()
        self.regions = self.find_regions()
        self.region_of = {id(kernel): region for region in self.regions for kernel in region.kernels}

    # ---- which values exist in memory

    def find_needed_nodes(self) -> list[str]:
        """Nodes whose value a library call reads or the model returns, in graph order."""
        wanted = {o.value.name for o in self.graph.outputs if isinstance(o.value, Ref) and counts_up(o, self.graph) is None}
        for call in self.plan.calls:
            wanted |= set(call.node.inputs)
        for kernel in self.plan.kernels:
            if self.condenses(kernel):
                wanted |= {name for name in map(self.node_of, kernel.stores) if name is not None}
        return [node.name for node in self.graph.nodes if node.name in wanted]

    def base(self, name: str) -> Prim:
        """The primitive in memory behind a value: through views."""
        prim = self.prims[name]
        while prim.name not in self.home and isinstance(prim.op, View):
            prim = self.prims[prim.inputs[0]]
        return prim

    def region_outputs(self, region: Region) -> list[str]:
        """Nodes that the region computes and something outside it needs."""
        found = []
        for name in self.needed_nodes:
            node = self.graph[name]
            if not node.is_leaf and name not in self.lowered.library:
                kernel = self.home.get(self.base(self.lowered.value[name]).name)
                if kernel is not None and self.region_of_kernel(kernel) is region:
                    found.append(name)
        return found

    def region_of_kernel(self, kernel: Kernel) -> Region:
        return next(region for region in self.regions if any(k is kernel for k in region.kernels))

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

    def node_of(self, prim: str) -> str | None:
        return next((name for name, value in self.lowered.value.items() if self.base(value).name == prim), None)

    # ---- the file

    def write(self) -> Emitted:
        for kernel in self.plan.kernels:
            if kernel.fused is not None:
                device = f"{self.region_arguments(self.region_of_kernel(kernel))[0][0]}.device"
                name_of = functools.partial(self.tensor_name, kernel)
                self.anchored[kernel.name] = anchored_kernel(
                    kernel, kernel.fused, self.plan, self.comment(kernel), name_of, device
                )
                continue
            make = reduce_kernel if kernel.is_reduce else pointwise_kernel
            self.texts[kernel.name] = make(kernel, self.prims, self.graph, self.comment(kernel))
        parts = [(self.anchored.get(k.name) or self.texts[k.name]).source for k in self.plan.kernels]
        support = list(dict.fromkeys(part for text in self.anchored.values() for part in text.support))
        kernels_text = "\n".join([*support, *parts])
        launchers = [name for k in self.plan.kernels for name in self.launchers(k)]
        cuda = "\n".join(prelude.device_text(s) for s in prelude.used(kernels_text)) + "\n" + kernels_text
        cuda = ascii_only(cuda)
        regions = "\n\n".join(self.region_text(region) for region in self.regions)
        forward = self.forward_text()
        ours = Template(FILE).substitute(
            version=__version__,
            cuda=cuda.replace("\\", "\\\\").replace("'''", ""),
            kernels="".join(f'\n    "{name}",' for name in launchers) + ("\n" if launchers else ""),
            flags=FLAGS if self.on_tensor_cores else "",
            constants=self.constants_text(),
            planned=self.planned_text(),
            regions=regions,
            forward=forward,
        )
        ours = ascii_only(re.sub(r"\n{4,}", "\n\n\n", ours))
        found = FORBIDDEN.search(ours)
        assert found is None, f"the emitted text holds the word {found[0] if found else ''!r}"
        text = without_forbidden_remarks(self.source) + "\n\n" + ours.strip("\n") + "\n"
        facts = tuple(fact for kernel in self.plan.kernels for fact in self.facts(kernel))
        return Emitted(
            text, facts, tuple(str(call.node.target) for call in self.plan.calls if call.node.target != "getitem")
        )

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
        if node.target == "constant":
            return self.constant_text(node)
        return attribute_text(self.model, node.args[0])

    def input_texts(self) -> dict[str, str]:
        return {name: name for name in self.graph.inputs}

    def constant_text(self, node: Node) -> str:
        owner: Any = self.model
        for part in str(node.args[0]).split("."):
            owner = getattr(owner, part, None)
        if isinstance(owner, torch.Tensor):
            return attribute_text(self.model, node.args[0])
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
        if name in self.lowered.library or (self.base(self.lowered.value[name]).name in self.home):
            return name
        return self.view_text(self.lowered.value[name], lambda prim: self.value_text(self.prims[prim].origin))

    def view_text(self, name: str, source: Any) -> str:
        """A view of something in memory, made by PyTorch."""
        prim = self.prims[name]
        if prim.name in self.home or prim.is_load:
            return source(prim.name)
        inner = self.view_text(prim.inputs[0], source)
        op = prim.op
        if isinstance(op, Reshape):
            return f"{inner}.reshape({shape_text(prim.shape)})"
        if isinstance(op, Expand):
            return f"{inner}.expand({shape_text(prim.shape)})"
        if isinstance(op, Permute):
            return f"{inner}.permute({shape_text(op.order)})"
        assert isinstance(op, Slice), f"{op} is no view PyTorch can make"
        stop = sizes.tidy(op.start + (prim.shape[op.dim] - 1) * op.step + 1)
        cut = f"{sizes.text(op.start)}:{sizes.text(stop)}" + (f":{op.step}" if op.step != 1 else "")
        return f"{inner}[{':, ' * op.dim}{cut}]"

    # ---- regions

    def region_inputs(self, region: Region) -> tuple[list[str], list[str], list[str]]:
        """(nodes that its meaning reads, primitives its kernels read from memory, those of them made by other regions)."""
        own = {id(kernel) for kernel in region.kernels}
        loads = [n for k in region.kernels for n in k.loads if n not in self.home or id(self.home[n]) not in own]
        loads = list(dict.fromkeys(loads))
        foreign = [n for n in loads if n in self.home and self.node_holding(n) is None]
        return self.meaning_inputs(region), loads, foreign

    def node_holding(self, prim: str) -> str | None:
        """A needed node whose value is this primitive itself."""
        for name in self.needed_nodes:
            if self.lowered.value.get(name) == prim:
                return name
        return None

    def meaning_nodes(self, region: Region) -> list[Node]:
        """Graph nodes that the region's outputs are computed from, back to what is in memory before the region runs."""
        outputs = [n for n in self.region_outputs(region) if self.differentiable(n)]
        stack, seen = list(outputs), set()
        while stack:
            name = stack.pop()
            if name in seen or self.before(name, region):
                continue
            seen.add(name)
            stack += self.graph[name].inputs
        return [node for node in self.graph.nodes if node.name in seen]

    def before(self, name: str, region: Region) -> bool:
        """Its value is in memory when the region starts."""
        node = self.graph[name]
        if node.is_leaf:
            return True
        if name in self.lowered.library:
            return any(call.node.name == name for call in self.plan.calls)
        if name not in self.needed_nodes:
            return False
        home = self.home.get(self.base(self.lowered.value[name]).name)
        return home is not None and self.region_of_kernel(home) is not region

    def meaning_inputs(self, region: Region) -> list[str]:
        inner = {node.name for node in self.meaning_nodes(region)}
        return list(
            dict.fromkeys(name for node in self.meaning_nodes(region) for name in node.inputs if name not in inner)
        )

    def differentiable(self, name: str) -> bool:
        node = self.graph[name]
        assert node.dtype is not None
        returned = any(
            isinstance(o.value, Ref) and o.value.name == name and o.kind == "return" for o in self.graph.outputs
        )
        read = any(name in call.node.inputs for call in self.plan.calls)
        updates = any(
            isinstance(o.value, Ref) and o.value.name == name and o.kind == "buffer" for o in self.graph.outputs
        )
        return node.dtype.is_floating_point and (returned or read or not updates)

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
        others = {n for k in self.plan.kernels if self.region_of_kernel(k) is not region for n in k.loads}
        own = [n for k in region.kernels for n in k.stores]
        outputs = self.region_outputs(region)
        held = {self.lowered.value[n] for n in outputs}
        return outputs, [n for n in own if n in others and n not in held]

    def region_text(self, region: Region) -> str:
        arguments = self.region_arguments(region)
        names = [name for name, _ in arguments]
        outputs, extra = self.region_results(region)
        symbols = [str(s) for s in self.graph.symbols]
        unpack = f"    {', '.join(symbols)}{',' if len(symbols) == 1 else ''} = sizes\n" if symbols else ""
        lines = []
        loaded = {
            self.argument_of(load)
            for kernel in region.kernels
            for load in kernel.loads
            if self.argument_of(load) in names
        }
        for name in (n for n in names if n in loaded):
            lines.append(f"    {name} = {name}.contiguous()")
        device = f"{names[0]}.device" if names else "torch.device('cuda')"
        for kernel in region.kernels:
            lines += [f"    {line}" for line in self.launch_lines(kernel, device)]
        results = [self.view_text(self.lowered.value[n], lambda p: p) for n in outputs] + extra
        run = f"def {region.name}(sizes, {', '.join(names)}):\n{unpack}" + "\n".join(lines)
        run += f"\n    return ({', '.join(results)},)"
        return run + "\n\n\n" + self.meaning_text(region, names, outputs, unpack)

    @property
    def on_tensor_cores(self) -> list[AnchoredText]:
        return [text for text in self.anchored.values() if text.tensor_cores]

    def launchers(self, kernel: Kernel) -> tuple[str, ...]:
        return self.anchored[kernel.name].names if kernel.fused is not None else (kernel.name,)

    def tensor_name(self, kernel: Kernel, prim: str) -> str:
        """What a tensor that the kernel reads is called in its region."""
        return prim if prim in self.own_values(kernel) else self.argument_of(prim)

    def launch_lines(self, kernel: Kernel, device: str) -> list[str]:
        if kernel.fused is not None:
            return list(self.anchored[kernel.name].lines)
        text = self.texts[kernel.name]
        lines = []
        for name in kernel.stores:
            prim = self.prims[name]
            lines.append(f"{name} = torch.empty({shape_text(prim.shape)}, dtype={prim.dtype}, device={device})")
        tensors = [name if name in kernel.stores else self.tensor_name(kernel, name) for name in text.tensors]
        if text.workspace is not None:
            count = sizes.tidy(text.workspace.count * text.workspace.words)
            words = sizes.text(count if isinstance(count, int) else sympy.factor(count))
            lines.append(f"partial = torch.empty(({words},), dtype=torch.int32, device={device})")
            tensors.append("partial")
        lines.append(f"_launch({', '.join([repr(kernel.name).replace(chr(39), chr(34)), *tensors, *text.sizes])})")
        return lines

    def own_values(self, kernel: Kernel) -> set[str]:
        region = self.region_of_kernel(kernel)
        return {name for k in region.kernels for name in k.stores}

    def meaning_text(self, region: Region, names: list[str], outputs: list[str], unpack: str) -> str:
        """The same values by PyTorch's operators; what backward differentiates."""
        lines = [f"def {region.name}_meaning(sizes, {', '.join(names)}):", *([unpack.rstrip("\n")] if unpack else [])]
        device = f"{names[0]}.device" if names else "torch.device('cuda')"
        for node in self.meaning_nodes(region):
            lines.append(f"    {node.name} = {meaning_call(node, self.graph, device)}")
        kept = [n for n in outputs if self.differentiable(n)]
        lines.append(f"    return ({', '.join(kept)}{',' if kept else ''})")
        return "\n".join(lines)

    # ---- forward

    def forward_text(self) -> str:
        lines: list[str] = []
        symbols = self.graph.symbols
        for symbol, binding in symbols.items():
            lines.append(f"{symbol} = {self.argument_name(binding.input)}.shape[{binding.dim}]")
        sizes_text = f"({', '.join(map(str, symbols))}{',' if len(symbols) == 1 else ''})"
        done: set[int] = set()
        for step in self.plan.steps:
            if isinstance(step, Call):
                lines.append(f"{step.node.name} = {call_text(step.node, self.value_text, self.device())}")
                continue
            region = self.region_of_kernel(step)
            if id(region) in done:
                continue
            done.add(id(region))
            outputs, extra = self.region_results(region)
            results = [*outputs, *extra]
            marks = [self.differentiable(n) for n in outputs] + [False] * len(extra)
            arguments = ", ".join(text for _, text in self.region_arguments(region))
            target = f"({', '.join(results)},)" if len(results) == 1 else ", ".join(results)
            changed = tuple(i for i, (name, _) in enumerate(self.region_arguments(region)) if self.is_overwritten(name))
            run = f"_run({region.name}, {region.name}_meaning, {tuple(marks)}, {changed}, {sizes_text}, {arguments})"
            lines.append(f"{target} = {run}")
        lines += self.updates()
        lines.append(f"return {self.result_text()}")
        body = "\n".join(f"        {line}" for line in lines)
        if not self.plan.kernels:
            return ""  # nothing of ours to run: the original's forward is inherited
        parameters, unpack = self.signature()
        given = ", ".join(self.argument_name(i) for i in range(len(self.graph.arguments)))
        check = f"        if not _planned_for(self, {given}):\n            return super().forward({parameters})\n"
        return f"    def forward(self, {parameters}):\n{unpack}{check}{body}"

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
        if not changed:
            return []
        lines = ["with torch.no_grad():"]
        for output in changed:
            where = attribute_text(self.model, output.path) if output.kind == "buffer" else output.path
            step = counts_up(output, self.graph)
            if step is not None:
                lines.append(f"    {where}.add_({step})")
                continue
            lines.append(f"    {where}.copy_({self.value_text(output.value.name)})")
        return lines

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
        used = self.kernel_leaves()
        tensors = list(self.graph.inputs) + [self.leaf_text(node) for node in used if node.target != "input"]
        tests.append(f"_on_device({', '.join(tensors)})")
        for name in self.graph.inputs:
            node = self.graph[name]
            assert node.shape is not None
            tests.append(f"{name}.dtype == {node.dtype} and {name}.dim() == {len(node.shape)}")
            position = self.graph.arguments.index(Ref(name))
            for dim, size in enumerate(node.shape):
                bound = (
                    isinstance(size, sympy.Symbol)
                    and self.graph.symbols[size].input == position
                    and self.graph.symbols[size].dim == dim
                )
                if not bound:
                    tests.append(f"{name}.shape[{dim}] == {self.size_text(size)}")
        for node in used:
            if node.target != "input":
                tests.append(f"{self.leaf_text(node)}.dtype == {node.dtype}")
        tests += [f"({self.size_text(guard)})" for guard in self.graph.guards if self.has_text(guard)]
        tests += [f"{path}.training == {training}" for path, training in training_flags(self.model)]
        if self.on_tensor_cores:
            shared = max(text.shared_bytes for text in self.on_tensor_cores)
            tests.append(f"_tf32_allowed() and _has_tensor_cores({self.device()}, {shared})")
        for position, argument in enumerate(self.graph.arguments):
            if not isinstance(argument, Ref):
                name = self.argument_name(position)
                tests.append(
                    f"type({name}) is {type(argument).__name__} and {name} == {argument!r}"
                    if argument is not None
                    else f"{name} is None"
                )
        every = [self.argument_name(position) for position in range(len(self.graph.arguments))]
        arguments = ", ".join(["self", *every])
        body = "\n".join(f"        and {test}" for test in tests[1:])
        return f"def _planned_for({arguments}):\n    return (\n        {tests[0]}\n{body}\n    )"

    def kernel_leaves(self) -> list[Node]:
        """Leaves that kernels read and that may be elsewhere or of another type than when the graph was captured."""
        names = {self.prims[n].origin for kernel in self.plan.kernels for n in kernel.loads if self.prims[n].is_load}
        leaves = [node for node in self.graph.nodes if node.is_leaf and node.name in names]
        return [node for node in leaves if not self.leaf_text(node).startswith("_constant(")]

    def size_text(self, size: Any) -> str:
        """A size or a condition on sizes, in terms of the inputs' shapes."""
        if isinstance(size, int):
            return str(size)
        text = sizes.text(size)
        for symbol, binding in sorted(self.graph.symbols.items(), key=lambda item: -len(str(item[0]))):
            text = re.sub(rf"\b{symbol}\b", f"{self.argument_name(binding.input)}.shape[{binding.dim}]", text)
        return text

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
        function = "@functools.lru_cache(maxsize=None)\ndef _constant(name, device):\n    return _CONSTANTS[name].to(device)\n"
        return f"{imports}_CONSTANTS = {{{table}\n}}\n\n\n{function}"


def packed(value: torch.Tensor) -> str:
    """A tensor too long to be read as a list: its bytes, compressed, in hexadecimal (which spells no word)."""
    data = zlib.compress(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), 9).hex()
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
            found.append((attribute_text(model, path) if path else "self", module.training))
    return found


def meaning_call(node: Node, graph: Graph, device: str) -> str:
    """The node's aten call, in a form that autograd knows."""
    name = str(node.target)
    if name in ("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.no_stats"):
        a = node.bound()
        given = [a["input"], a["weight"], a["bias"], None, None, a["training"], a["momentum"], a["eps"]]
        return f"aten.native_batch_norm({', '.join(argument_text(x, lambda n: n, device) for x in given)})"
    return call_text(node, lambda n: n, device)


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


def ascii_only(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "replace").decode()


def source_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


FLAGS = '''
def _tf32_allowed():
    """Whether the flags let a convolution round its operands to TF32, as PyTorch's default does."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return precision == "tf32" if precision in ("tf32", "ieee") else torch.backends.cudnn.allow_tf32


@functools.lru_cache(maxsize=None)
def _has_tensor_cores(device, shared_bytes):
    """TF32 tensor cores, and this much shared memory for a block."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    limit = getattr(properties, "shared_memory_per_block_optin", 232448 if properties.major == 9 else 0)
    return properties.major >= 8 and limit >= shared_bytes
'''

FILE = '''
# ---------------------------------------------------------------------------------------------------------------------
# Below: written by Fusewright $version. ModelNew computes what Model computes, with the CUDA kernels in _CUDA_SOURCE.

import ctypes
import functools
import hashlib

import torch
from torch.utils.cpp_extension import load_inline

aten = torch.ops.aten

_CUDA_SOURCE = \'\'\'
$cuda\'\'\'

_KERNELS = ($kernels)

$constants

@functools.lru_cache(maxsize=None)
def _library():
    """The kernels, built on first use and kept in PyTorch's extension cache."""
    name = "fusewright_" + hashlib.sha256(_CUDA_SOURCE.encode()).hexdigest()[:16]
    quick = {"no_implicit_headers": True} if "no_implicit_headers" in load_inline.__code__.co_varnames else {}
    path = load_inline(
        name, cpp_sources="", cuda_sources=_CUDA_SOURCE, extra_cuda_cflags=["-O3", "-std=c++17"], is_python_module=False, **quick
    )
    library = ctypes.CDLL(path or next(known for known in torch.ops.loaded_libraries if name in known))
    for kernel in _KERNELS:
        getattr(library, kernel).restype = ctypes.c_char_p
    return library


def _on_device(*tensors):
    """All tensors are on one CUDA device, and no autocast changes what the operators would do there."""
    if torch.is_autocast_enabled():
        return False
    device = tensors[0].device
    return device.type == "cuda" and all(tensor.device == device for tensor in tensors)


def _launch(kernel, *arguments):
    """Queues a kernel on the current stream of its first tensor's device."""
    device = arguments[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _launch(kernel, *arguments)
    function = getattr(_library(), kernel)
    if function.argtypes is None:
        kinds = [ctypes.c_void_p if isinstance(a, torch.Tensor) else ctypes.c_longlong for a in arguments]
        function.argtypes = [*kinds, ctypes.c_void_p]
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    problem = function(*values, torch.cuda.current_stream(device).cuda_stream)
    if problem is not None:
        raise RuntimeError(f"{kernel}: {problem.decode()}")


class _Differentiable(torch.autograd.Function):
    """Forward launches kernels; backward differentiates the same meaning, written in PyTorch's operators."""

    @staticmethod
    def forward(ctx, launches, meaning, differentiable, changed, sizes, *tensors):
        ctx.meaning, ctx.differentiable, ctx.sizes = meaning, differentiable, sizes
        ctx.save_for_backward(*[t.clone() if i in changed else t for i, t in enumerate(tensors)])
        results = launches(sizes, *tensors)
        ctx.mark_non_differentiable(*[r for r, smooth in zip(results, differentiable) if not smooth])
        return results

    @staticmethod
    def backward(ctx, *gradients):
        again = torch.is_grad_enabled()  # a second derivative will be asked for
        needed = ctx.needs_input_grad[5:]
        with torch.enable_grad():
            if again:
                tensors = [t.view_as(t) for t in ctx.saved_tensors]
            else:
                tensors = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, needed)]
            wanted = [t for t, need in zip(tensors, needed) if need]
            results = ctx.meaning(ctx.sizes, *tensors)
        upstream = [g for g, smooth in zip(gradients, ctx.differentiable) if smooth]
        pairs = [(r, g) for r, g in zip(results, upstream) if r.requires_grad]
        found = iter(torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True))
        return (None, None, None, None, None, *[next(found) if need else None for need in needed])


def _run(launches, meaning, differentiable, changed, sizes, *tensors):
    """`changed` are the positions of tensors that will be overwritten: backward needs them as they were."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Differentiable.apply(launches, meaning, differentiable, changed, sizes, *tensors)
    return launches(sizes, *tensors)


$flags

$regions


$planned


class ModelNew(Model):
    """Model, with fused kernels where _planned_for holds and the original operators elsewhere."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        if torch.cuda.is_available():
            _library()

$forward
'''
