"""Values in memory as Python text: what a function of the file calls each, and the views of it that PyTorch makes."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from ..autograd.regions import Regions, is_overwritten
from ..autograd.storage import Variables
from ..codegen.loops.text import wrapped
from ..errors import Unsupported
from ..ir import sizes
from ..ir.graph import Dim, Graph, Node, Output, refs
from ..ir.plan import operator_name
from ..ir.prims import Diagonal, Expand, Permute, Reshape, Slice, Unfold
from ..ir.pytext import attribute_text, call_pieces, plain_text, shape_text
from ..laws.law import Site
from ..laws.patterns import convolution_at
from ..schedule.layout import is_convolution, memory_format, with_coarse_gradients
from .lines import WIDTH
from .views import shorter

aten = torch.ops.aten


class Values(Variables):
    """As text: what a function calls each, and the views of it that PyTorch makes."""

    def __init__(self, regions: Regions):
        super().__init__(regions)
        self.shaped: dict[str, tuple[Dim, ...]] = {}  # primitives that are allocated in another shape than theirs
        self.lays_out = False  # what a call that draws random numbers is given
        self.copies = False  # of something that forward overwrites, which a call to PyTorch is given

    def text(self, name: str) -> str:
        """A node's value."""
        if self.graph[name].is_leaf or name in self.lowered.library:
            return name
        return self.view_text(
            self.lowered.value[name], lambda prim: prim if prim in self.home else self.prims[prim].origin
        )

    def view_text(self, name: str, source: Callable[[str], str]) -> str:
        """A view of something in memory, made by PyTorch."""
        prim = self.prims[name]
        if prim.name in self.home or prim.is_load:
            return source(prim.name)
        if self.regions.elements(name) in self.shaped:
            return source(self.regions.elements(name))
        views = [prim]
        while views[-1].name not in self.home and not views[-1].is_load:
            views.append(self.prims[views[-1].inputs[0]])
        if short := shorter(views, self.graph):
            return source(views[-1].name) + short
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
        if isinstance(op, Diagonal):
            return f"{inner}.diagonal({op.offset}, {op.row}, {op.column})"
        if isinstance(op, Unfold):
            return f"{inner}.unfold({op.dim}, {sizes.text(prim.shape[-1])}, {op.step})"
        assert isinstance(op, Slice), f"{op} is no view PyTorch can make"
        stop = sizes.tidy(op.start + (prim.shape[op.dim] - 1) * op.step + 1)
        cut = f"{sizes.text(op.start)}:{sizes.text(stop)}" + (f":{op.step}" if op.step != 1 else "")
        return f"{inner}[{':, ' * op.dim}{cut}]"

    def library_lines(self, node: Node, width: int = WIDTH) -> list[str]:
        """A call to PyTorch, under the node's name."""
        head, arguments, tail = self.library_call(node)
        return wrapped(f"{node.name} = {head}", arguments, tail, limit=width)

    def library_call(self, node: Node) -> tuple[str, list[str], str]:
        """What stands before its arguments, the arguments, and what stands behind."""
        head, arguments, tail = call_pieces(node, lambda name: self.operand(node, name), self.device())
        if node.target is aten.bernoulli.p and node.strides[0] is not None:  # in place in the model: in the order of what is drawn into
            return "aten.bernoulli_.float(", [f"torch.empty_like({arguments[0]})", *arguments[1:]], tail
        return head, arguments, tail

    def operand(self, node: Node, name: str) -> str:
        """A value as such a call is given it. A convolution whose result lies channels-last is given an input that does."""
        layout = memory_format(self.prims[self.lowered.value[node.name]]) if is_convolution(node) else ""
        straight = not layout or name != node.args[0].name or self.prims[self.lowered.value[name]].channels_last
        text = self.text(name) if straight else f"{self.text(name)}.contiguous({layout})"
        changes = node.name in self.regions.flow.smooth and self.is_overwritten(name)
        self.copies |= changes
        text = f"_as_it_was({text})" if changes else text
        strides = dict(zip((ref.name for ref in refs((node.args, dict(node.kwargs)))), node.strides, strict=False)).get(name)
        self.lays_out |= strides is not None
        return f"_laid_out({text}, {shape_text(strides)})" if strides is not None else text

    def is_overwritten(self, name: str) -> bool:
        """A node's value is a buffer or an input that `forward` will change, or a view of it."""
        prim = self.plan.base(self.lowered.value[name]) if name in self.lowered.value else None
        return prim is not None and prim.is_load and is_overwritten(prim.origin, self.graph)

    def device(self) -> str:
        return f"{self.graph.inputs[0]}.device"

    def shape_results(self, nodes: list[str]) -> None:
        """What is seen only as a reshape of a kernel's result is allocated in that shape: PyTorch need not reshape it."""
        values = [self.lowered.value[name] for name in nodes if name in self.lowered.value]
        bases = [self.plan.base(value).name for value in values]
        for value, base in zip(values, bases, strict=True):
            alone = bases.count(base) == 1 and base in self.home and not self.prims[base].channels_last
            if alone and value != base and self.regions.elements(value) == base:
                self.shaped[base] = self.prims[value].shape


class ForwardValues(Values):
    """In `forward`: regions return nodes under their names, and leaves are looked up in the model."""

    def __init__(self, regions: Regions, model: nn.Module, convolved: Mapping[str, str] = MappingProxyType({})):
        super().__init__(regions)
        self.convolved = convolved  # nodes whose weight's gradient is a kernel's, and what the convolution is told of it
        self.model = model
        self.held: dict[str, Node] = {}  # path -> leaf: the tensors of the model that `forward` reads
        self.constants: dict[str, str] = {}
        self.packs = False  # some of them
        self.plain_gradients = False  # of some convolutions on channels-last data

    def library_call(self, node: Node) -> tuple[str, list[str], str]:
        own = self.convolved.get(node.name, "")
        convolution = convolution_at(Site(self.graph, node, {}), node) if own else with_coarse_gradients(self.plan, node)
        if convolution is None or node.name not in self.regions.flow.smooth:
            return super().library_call(node)
        self.plain_gradients, c = self.plain_gradients or not own, convolution
        operands = [self.operand(node, x.name) if x is not None else "None" for x in (c.input, c.weight, c.bias)]
        settings = (list(c.stride), list(c.padding), list(c.dilation), c.transposed, list(c.output_padding), c.groups)
        return f"_convolved({own}, " if own else "_differentiated_plainly(", [*operands, *map(str, settings)], ")"

    def text(self, name: str) -> str:
        """A node's value; of what is in memory with a gradient that the node itself stops, without it."""
        node = self.graph[name]
        if node.is_leaf:
            return self.leaf_text(node)
        if name in self.lowered.library or (self.plan.base(self.lowered.value[name]).name in self.home):
            return name
        view = self.view_text(self.lowered.value[name], lambda prim: self.text(self.prims[prim].origin))
        smooth = self.regions.flow.smooth
        return f"{view}.detach()" if name not in smooth and self.variable(name) in smooth else view

    def variable(self, name: str) -> str:
        if self.graph[name].is_leaf or name in self.lowered.library:
            return name
        base = self.plan.base(self.lowered.value[name]).name
        return name if base in self.home else self.variable(self.prims[base].origin)

    def leaf_text(self, node: Node) -> str:
        if node.target == "input":
            return node.name
        if "global" in node.kwargs:
            self.held.setdefault(str(node.args[0]), node)
            return node.name
        if self.is_in_the_file(node):
            return self.constant_text(node)
        owner = str(node.args[0]).rpartition(".")[0]
        if owner and owner not in self.modules:
            return attribute_text(self.model, node.args[0])
        self.held.setdefault(str(node.args[0]), node)
        return node.name

    def is_in_the_file(self, node: Node) -> bool:
        """A constant that `forward` makes: its values stand in the file, and no gradient flows into it."""
        return node.target == "constant" and not isinstance(self.attribute(node), torch.Tensor)

    @functools.cached_property
    def modules(self) -> set[str]:
        return {path for path, _ in self.model.named_modules(remove_duplicate=False)}

    def attribute(self, node: Node) -> Any:
        owner: Any = self.model
        for part in str(node.args[0]).split("."):
            owner = getattr(owner, part, None)
        return owner

    def held_leaves(self) -> list[Node]:
        """The tensors of the model that `forward` reads, the ones of a module next to each other."""
        modules = list(dict.fromkeys(path.rpartition(".")[0] for path in self.held))
        return sorted(self.held.values(), key=lambda node: modules.index(str(node.args[0]).rpartition(".")[0]))

    def behind_changes(self) -> list[str]:
        """Leaves whose gradients would flow into an input or a buffer that `forward` changes in place: by name. What it changes under
        `no_grad` is one itself: it stays the tensor whose gradient was asked for."""
        smooth, found = self.regions.flow.smooth, dict[str, None]()
        held = {node.name for node in self.held_leaves()}
        leaves = {(node.target, str(node.args[0])): node.name for node in self.graph.nodes if node.target == "buffer"}
        for output in self.graph.outputs:
            if output.kind == "return" or is_batch_norm(output, self.graph):
                continue
            itself = output.path if output.kind == "input" else leaves.get((output.kind, output.path))
            waiting, seen = [output.value.name, *([itself] if itself else [])], set[str]()
            while waiting:
                name = waiting.pop()
                node = self.graph[name]
                if name in seen or not (name in smooth or node.is_leaf):
                    continue
                seen.add(name)
                waiting += node.inputs
                floating = node.dtype is not None and node.dtype.is_floating_point
                if node.is_leaf and floating and (node.target == "input" or name in held):
                    found[name] = None
        return list(found)

    def constant_text(self, node: Node) -> str:
        value = node.kwargs["value"]
        if value.numel() > 1 << 16 or value.is_complex():
            raise Unsupported(
                f"a constant tensor of {value.numel()} elements is made inside forward; make it a buffer of the model"
            )
        numbers = numbers_text(value.tolist()) if value.numel() <= 64 else ""
        self.constants[node.name] = f"torch.tensor({numbers}, dtype={value.dtype})" if numbers else packed(value)
        self.packs |= not numbers
        return f'_constant("{node.name}", {self.device()})'

    def constants_text(self) -> str:
        """The table of constants, behind what stands before it."""
        if not self.constants:
            return ""
        table = "".join(f'\n    "{name}": {text},' for name, text in self.constants.items())
        return f"\n\n_CONSTANTS = {{{table}\n}}"


def numbers_text(value: Any) -> str:
    """Numbers in nested lists."""
    return f"[{', '.join(map(numbers_text, value))}]" if isinstance(value, list) else plain_text(value)


def packed(value: torch.Tensor) -> str:
    """A tensor too long to be read as a list: its bytes, compressed, in hexadecimal (which spells no word)."""
    data = zlib.compress(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), 9).hex()
    lines = "".join(f'\n        "{data[i : i + 100]}"' for i in range(0, len(data), 100))
    read = f"torch.frombuffer(bytearray(zlib.decompress(bytes.fromhex({lines}\n    ))), dtype={value.dtype})"
    return f"{read}.reshape({shape_text(tuple(value.shape))})"


def is_batch_norm(output: Output, graph: Graph) -> bool:
    """PyTorch's own batch norm changes its buffers without telling autograd. Those of halves are computed in float32."""
    node = graph[output.value.name]
    node = graph[node.inputs[0]] if node.target is torch.ops.aten._to_copy.default else node
    return node.target == "getitem" and operator_name(node, graph) == "batch_norm"
