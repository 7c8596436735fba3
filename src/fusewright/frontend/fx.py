"""A traced FX graph of aten calls -> `Graph`: the reader of calls that all captures share, and the one for graphs of AOTAutograd."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import Max

from ..errors import Unsupported
from ..ir import sizes
from ..ir.graph import Binding, Graph, Node, Output, Ref, Where, shows_memory
from ..ir.names import RESERVED, value_name

FRAME = re.compile(r'File "(.+)", line (\d+), in [^\n]*\n\s*([^\n]*)')  # of a stack trace: file, line, code
MADE_ANEW = {getattr(torch.ops.aten, name).default for name in ("new_empty", "new_zeros", "new_ones", "new_full")}
SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Tracer:
    """Reads calls of a traced graph: names that can be written down, sizes in our symbols."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.taken: set[str] = set(RESERVED)
        self.rename: dict[sympy.Symbol, sympy.Symbol] = {}
        self.known: dict[sympy.Expr, sympy.Expr] = {}  # parts of sizes that a guard says are one number

    def name(self, fx_name: str) -> str:
        if fx_name not in self.names:
            base = re.sub(r"_(default|tensor)$", "", value_name(re.sub(r"^(p|b|c|obj)_", "", fx_name)))
            name, count = base, 1
            while name in self.taken:
                name, count = f"{base}_{count}", count + 1
            self.taken.add(name)
            self.names[fx_name] = name
        return self.names[fx_name]

    def size_of(self, size: Any) -> Any:
        if isinstance(size, torch.SymInt):
            expression = sizes.whole(size.node.expr.xreplace(self.rename).xreplace(self.known))
            return int(expression) if expression.is_Integer else expression
        if isinstance(size, (torch.SymFloat, torch.SymBool)):
            expression = size.node.expr.xreplace(self.rename)
            return float(expression) if expression.is_number else expression
        return size

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            meta = value.meta.get("val")
            is_size = isinstance(meta, (*SIZES, int, float, bool))
            return self.size_of(meta) if is_size else Ref(self.name(value.name))
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        return self.size_of(value)

    def is_tensor_call(self, fx: torch.fx.Node) -> bool:
        return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(fx.meta.get("val")))

    def call(self, fx: torch.fx.Node, where: Where) -> Node:
        value = fx.meta["val"]
        single = isinstance(value, torch.Tensor)
        target: Any = fx.target
        if target is operator.getitem:
            target = "getitem"
        node = Node(
            self.name(fx.name),
            target,
            tuple(self.argument(a) for a in fx.args),
            {k: self.argument(v) for k, v in fx.kwargs.items()},
            tuple(self.size_of(size) for size in value.shape) if single else None,
            value.dtype if single else None,
            where,
        )
        return replace(node, strides=tuple(map(self.strides_read, self.tensors_read(fx)))) if shows_memory(node) else node

    def tensors_read(self, fx: torch.fx.Node) -> list[torch.fx.Node]:
        """As the node refers to them: in order, one twice where it is read twice."""
        given = [leaf for leaf in pytree.tree_leaves((list(fx.args), list(fx.kwargs.values()))) if isinstance(leaf, torch.fx.Node)]
        return [leaf for leaf in given if isinstance(leaf.meta.get("val"), Tensor)]

    def strides_read(self, fx: torch.fx.Node) -> tuple[Any, ...] | None:
        return None if fx.target in MADE_ANEW else self.strides_of(fx.meta["val"])

    def strides_of(self, value: Tensor) -> tuple[Any, ...] | None:
        """None for what lies in one order only, or overlaps itself."""
        if sum(not sizes.is_one(self.size_of(size)) for size in value.shape) < 2:
            return None
        hinted = sorted((stride, size) for stride, size in map(hints, value.stride(), value.shape) if size > 1 and stride)
        apart = all(stride * size <= beyond for (stride, size), (beyond, _) in itertools.pairwise(hinted))
        return tuple(map(self.stride_of, value.stride())) if apart else None

    def stride_of(self, stride: Any) -> Any:
        """As in the example where it is no matter of sizes."""
        found = self.size_of(stride)
        known = isinstance(found, int) or found.free_symbols <= set(self.rename.values())
        return found if known else hints(stride)[0]

    def where(self, fx: torch.fx.Node, file: str = "") -> Where:
        """The place in the user's code that the call was traced from: in `file`, or else in what is not PyTorch's."""
        stack = list((fx.meta.get("nn_module_stack") or {}).values())
        module = re.sub(r"^L\['self'\]\.?", "", str(stack[-1][0])) if stack else ""
        frames = FRAME.findall(fx.meta.get("stack_trace") or "")
        mine = [frame for frame in frames if file and frame[0] == file] or [
            frame for frame in frames if "/torch/" not in frame[0]
        ]
        if not mine:
            return Where(module=module)
        path, line, code = mine[-1]
        return Where(path.rsplit("/", 1)[-1], int(line), code.strip(), module)


def hints(*extents: Any) -> tuple[int, ...]:
    """Sizes and strides in the example."""
    return tuple(int(one.node.hint) if isinstance(one, torch.SymInt) else int(one) for one in extents)


# ---- graphs of AOTAutograd ----


@dataclass(frozen=True)
class Place:
    """Where a call's arguments have a size: the argument `position` itself, or its extent in dimension `dim`."""

    position: int
    dim: int | None = None


@dataclass(frozen=True)
class Layout:
    """How PyTorch's operators lay out a result."""

    strides: tuple[Any, ...]
    offset: Any  # of its first element in the memory that it lies in
    fills: bool  # its elements are all that lies there


@dataclass(frozen=True)
class FxGraph:
    """A `Graph` whose leaves are all inputs, and how they are had from the flat arguments of the FX graph."""

    graph: Graph
    tensors: tuple[int, ...]  # positions of the arguments that are its first inputs
    constants: tuple[Tensor, ...]  # its other inputs: tensors that the trace made and kept
    sizes: tuple[Place, ...]  # of the symbols of `graph`, in order
    shares: tuple[frozenset[int], ...]  # by output: the inputs (0, 1, …) and earlier outputs (-1, -2, …) in whose memory it may lie
    layouts: tuple[Layout | None, ...]  # by output; None for what is no tensor


def read_fx(module: torch.fx.GraphModule, called: Sequence[str] = ()) -> FxGraph:
    """The graph that AOTAutograd hands to a compiler: functional, every value with its fake tensor, sizes as arguments of their own.

    `called` is what the user calls the arguments of the graph that it was made of (`argument_names`). Raises `Unsupported` where it
    cannot be had: sizes that depend on values, several devices, calls that change something.
    """
    return _Reader(module, called).read()


def argument_names(module: torch.fx.GraphModule) -> list[str]:
    """What a graph of Dynamo calls its arguments, without the way to them: `conv_weight` for L_self_modules_conv_parameters_weight_."""
    names = [fx.name for fx in module.graph.find_nodes(op="placeholder")]
    return [re.sub(r"^l_(self_)?|modules_|parameters_|buffers_", "", name.lower()).strip("_") for name in names]


class _Reader(Tracer):
    """Reads one graph; lives for the length of `read_fx`."""

    def __init__(self, module: torch.fx.GraphModule, called: Sequence[str]):
        super().__init__()
        self.module, self.called = module, called
        self.symbols: dict[sympy.Symbol, Binding] = {}
        self.places: list[Place] = []
        self.device: torch.device | None = None

    def read(self) -> FxGraph:
        placeholders = self.module.graph.find_nodes(op="placeholder")
        given = [(i, fx) for i, fx in enumerate(placeholders) if isinstance(fx.meta.get("val"), Tensor)]
        for _, fx in given:  # these have their names before others do
            number = getattr(fx.meta.get("desc"), "idx", None)  # of an argument as it came, in versions of PyTorch that say so
            if isinstance(number, int) and number < len(self.called):
                name = self.name(self.called[number])
                del self.names[self.called[number]]  # which may be what the tracer calls another
                self.names[fx.name] = name
            self.name(fx.name)
        self.bind(placeholders)
        nodes = [self.leaf(fx, number) for number, (_, fx) in enumerate(given)]
        constants: dict[str, Tensor] = {}
        for fx in self.module.graph.nodes:
            if fx.op == "get_attr":
                value = self.constant(fx)
                constants[fx.name] = value
                nodes.append(self.leaf(fx, len(given) + len(constants) - 1, value))
            elif fx.op == "call_function" and self.is_tensor_call(fx):
                self.check(fx)
                nodes.append(self.call(fx, self.where(fx)))
        nodes.sort(key=lambda node: not node.is_leaf)  # leaves first; stable
        leaves = [node for node in nodes if node.is_leaf]
        if not leaves:
            raise Unsupported("a graph without tensors among its inputs")
        names = tuple(node.name for node in leaves)
        returned = list(self.module.graph.output_node().args[0])  # type: ignore[arg-type]
        outputs = tuple(Output(self.argument(value)) for value in returned)
        graph = Graph(tuple(nodes), names, outputs, self.symbols, (), tuple(map(Ref, names))).check()
        tensors = tuple(position for position, _ in given)
        given_values = [fx.meta["val"] for _, fx in given] + list(constants.values())
        results = [fx.meta.get("val") if isinstance(fx, torch.fx.Node) else None for fx in returned]
        layouts = tuple(self.layout(value) if isinstance(value, Tensor) else None for value in results)
        return FxGraph(graph, tensors, tuple(constants.values()), tuple(self.places), shares(given_values, results), layouts)

    def layout(self, value: Tensor) -> Layout:
        strides, offset = tuple(full(self.size_of(stride)) for stride in value.stride()), self.size_of(value.storage_offset())
        extents = sorted(zip(strides, map(self.size_of, value.shape), strict=True), key=lambda pair: self.hint(pair[0]))
        whole: Any = 1
        dense = True
        for stride, size in extents:
            dense &= sizes.is_one(size) or sizes.same(stride, whole)
            whole = sizes.tidy(whole * size)
        there = full(self.size_of(value.untyped_storage().nbytes()))
        dense |= whole == 0
        return Layout(strides, offset, dense and sizes.same(offset, 0) and sizes.same(there, whole * value.dtype.itemsize))

    def hint(self, size: Any) -> int:
        return size if isinstance(size, int) else int(size.subs({symbol: binding.hint for symbol, binding in self.symbols.items()}))

    def bind(self, placeholders: list[torch.fx.Node]) -> None:
        """Every symbol is an argument, or the extent of one."""
        values = [fx.meta.get("val") for fx in self.module.graph.nodes]
        used: set[sympy.Symbol] = set()
        for value in pytree.tree_leaves(values):
            for size in value.shape if isinstance(value, Tensor) else [value]:
                if isinstance(size, SIZES):
                    if free_unbacked_symbols(size):
                        raise Unsupported("the values of a tensor become a size")
                    used |= size.node.expr.free_symbols
        for position, fx in enumerate(placeholders):
            value = fx.meta.get("val")
            extents = [(d, s) for d, s in enumerate(value.shape)] if isinstance(value, Tensor) else [(None, value)]
            for dim, size in extents:
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.expr not in self.rename:
                    self.add_symbol(size, Place(position, dim))
        if left := used - set(self.rename):
            raise Unsupported(f"a size {min(map(str, left))} that is neither an argument nor the extent of one")

    def add_symbol(self, size: torch.SymInt, place: Place) -> None:
        name = f"n_{size.node.expr}"
        while name in self.taken:
            name += "_size"
        symbol = sympy.Symbol(name, integer=True, positive=True)
        self.taken.add(name)
        self.rename[size.node.expr] = symbol
        self.places.append(place)
        bounds = size.node.shape_env.bound_sympy(size.node.expr)
        lower = int(bounds.lower) if bounds.lower.is_Integer else 0
        if lower < 1:
            raise Unsupported("a size that may be zero")
        self.symbols[symbol] = Binding(place.position, place.dim or 0, int(size.node.hint), lower)

    def leaf(self, fx: torch.fx.Node, number: int, value: Tensor | None = None) -> Node:
        value = fx.meta["val"] if value is None else value
        self.on_one_device(value)
        if value.dtype.is_complex or value.layout is not torch.strided or value.is_quantized:
            raise Unsupported(f"an input of type {value.dtype} and layout {value.layout}")
        return Node(self.name(fx.name), "input", (number,), {}, tuple(map(self.size_of, value.shape)), value.dtype)

    def constant(self, fx: torch.fx.Node) -> Tensor:
        value: Any = self.module
        for part in str(fx.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, Tensor):
            raise Unsupported(f"a part of the graph that is no tensor ({type(value).__name__})")
        return value

    def check(self, fx: torch.fx.Node) -> None:
        if fx.target is operator.getitem:
            return
        if not isinstance(fx.target, OpOverload):
            raise Unsupported(f"`{fx.target}` is no operator of a library")
        if fx.target._schema.is_mutable:
            raise Unsupported(f"{fx.target} changes its arguments")
        for value in pytree.tree_leaves(fx.meta["val"]):
            if isinstance(value, Tensor):
                self.on_one_device(value)

    def on_one_device(self, value: Tensor) -> None:
        self.device = self.device or value.device
        if value.device != self.device:
            raise Unsupported(f"tensors on {self.device} and on {value.device}")


def full(extent: Any) -> Any:
    """A stride as a product of sizes: PyTorch counts a size as 1 where it is 0, and then there is no element to be found by it."""
    if isinstance(extent, int):
        return extent
    return sizes.tidy(extent.replace(lambda e: isinstance(e, Max) and {1} < set(e.args), lambda e: Max(*(set(e.args) - {1}))))


def shares(given: list[Tensor], results: list[Any]) -> tuple[frozenset[int], ...]:
    """Of each result: the inputs in whose memory it lies, by number, and the results before it, by -1 for the first and so on."""

    def memory(value: Tensor) -> int:
        return value.untyped_storage()._cdata

    homes: dict[int, list[int]] = {}
    for number, value in enumerate(given):
        homes.setdefault(memory(value), []).append(number)
    found = []
    for number, value in enumerate(results):
        known = homes.setdefault(memory(value), []) if isinstance(value, Tensor) else []
        found.append(frozenset(known))
        known.append(-1 - number)
    return tuple(found)


def sizes_of(read: FxGraph, arguments: Any) -> tuple[int, ...]:
    """The values of the graph's symbols in a call with these arguments."""
    return tuple(arguments[p.position] if p.dim is None else arguments[p.position].shape[p.dim] for p in read.sizes)

