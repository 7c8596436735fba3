"""Gradients by kernels: a region's reference, differentiated once here and not on every backward.

PyTorch's own derivative formulas are traced through the region's reference with its symbolic sizes. What they compute is a graph like
any other, so the same laws, the same primitives and the same planner turn it into kernels. Its inputs are the tensors the
region reads, sums of much that its kernels left in memory, and the gradients of its results; other values in between are
recomputed in the kernels that need them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from ..frontend.capture import quiet
from ..frontend.exported import LAYOUT_GUARDS
from ..frontend.fx import Tracer
from ..frontend.tracing import lean
from ..ir import sizes
from ..ir.graph import Binding, Graph, Node, Output, Ref, map_refs
from ..ir.names import RESERVED
from ..ops import registry
from ..ops.declare import ELEMENTS
from .norms import NORMS, with_statistics

aten = torch.ops.aten

# Norms in training: autograd knows the form without running statistics.
BATCH_NORMS = (aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)

# Formulas that are short where PyTorch has looked at the values (no zero among them) and long in a graph, which cannot look.
LOOK_FIRST = (aten.cumprod.default,)

SHORTER = {getattr(aten, f"max_pool{d}d_with_indices_backward").default: f"max_pool{d}d_grad" for d in (2, 3)}

EXTREMES = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)


def plain_form(node: Node) -> Node:
    """The node in a form that autograd knows; of a batch norm, only what its derivative needs."""
    if isinstance(node.target, OpOverload) and node.target._overloadname == "vec" and node.shape is not None:
        return resized_form(node, node.target)
    if node.target not in BATCH_NORMS:
        return node
    a = node.bound()
    given = (a["input"], a["weight"], a["bias"], None, None, a["training"], a["momentum"], a["eps"])
    return replace(node, target=aten.native_batch_norm.default, args=given, kwargs={})


def resized_form(node: Node, target: OpOverload) -> Node:
    """Resizing by the sizes of the result: the form by factors holds on to the numbers that its operand's sizes have in the trace."""
    a, after = node.bound(), node.shape[2:]  # type: ignore[index]
    corners = [a["align_corners"]] if "align_corners" in a else []
    factors = a["scale_factors"] or [None] * len(after)
    return replace(node, target=target.overloadpacket.default, args=(a["input"], list(after), *corners, *factors), kwargs={})


def gradient_graph(
    graph: Graph,
    nodes: Sequence[Node],
    arguments: Sequence[str],
    outputs: Sequence[str],
    wanted: Sequence[str],
    traces: dict[str, Trace | None] | None = None,
    saved: Sequence[str] = (),
    statistics: Mapping[str, tuple[Node, Node]] | None = None,
) -> Graph | None:
    """From the arguments of some nodes and the gradients of what they compute to the gradients of `wanted`.

    Output i is the gradient of `wanted[i]`, or None where nothing depends on it. Gradients of results are inputs named
    `grad_<result>`; values in between that are `saved` are inputs too where they are read, before those. Of norms these may be the
    mean and the reciprocal deviation, which are no node's: `statistics` has them. None where PyTorch's formulas cannot be traced.
    What is traced stays in `traces`, which are of this graph: regions that differ only in names share one.
    """
    given = [graph[name] for name in arguments]
    if any(node.dtype is None or node.dtype.is_complex for node in given) or any(node.target in LOOK_FIRST for node in nodes):
        return None
    statistics = statistics or {}
    beside = {node.name: node for pair in statistics.values() for node in pair}
    results, left = [graph[name] for name in outputs], [beside[name] if name in beside else graph[name] for name in saved]
    traces = {} if traces is None else traces
    form = form_of(nodes, given, results, wanted, saved, statistics)
    with quiet(), lean():
        try:
            if form not in traces:
                traces[form] = None  # where it fails, it fails for all of its form
                traces[form] = Trace(graph, nodes, given, results, wanted, left, statistics)
            trace = traces[form]
            return _Differentiated(trace, [*given, *left], results).read() if trace is not None else None
        except Exception:  # the tracer raises many kinds; PyTorch's operators then do it on every backward
            return None


def form_of(
    nodes: Sequence[Node],
    given: Sequence[Node],
    results: Sequence[Node],
    wanted: Sequence[str],
    saved: Sequence[str] = (),
    statistics: Mapping[str, tuple[Node, Node]] | None = None,
) -> str:
    """What a trace depends on: calls, types and sizes, with numbers in the place of names."""
    number = {node.name: Ref(str(i)) for i, node in enumerate([*given, *nodes])}
    for norm, pair in (statistics or {}).items():
        number |= {node.name: Ref(f"{number[norm].name} {i}") for i, node in enumerate(pair)}
    calls = [(str(n.target), map_refs(n.args, number), map_refs(dict(n.kwargs), number)) for n in map(plain_form, nodes)]
    kinds = [(node.shape, node.dtype) for node in (*given, *nodes)]
    chosen = [[number[name] for name in names] for names in ([node.name for node in results], wanted, saved)]
    return repr((len(given), calls, kinds, chosen))


class _Handed(torch.autograd.Function):
    """A value as it was saved; its gradient is that of what computed it. Two copies, one after the other, show in the trace which is
    which. The result has the sizes of what was saved, which have names: what is computed of it asks of no other whether they are equal."""

    @staticmethod
    def forward(ctx: Any, computed: Tensor, saved: Tensor) -> Tensor:
        aten.copy(computed, computed)
        return aten.copy(saved, saved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Trace:
    """PyTorch's derivative formulas of some nodes, as the tracer saw them."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        given: Sequence[Node],
        results: Sequence[Node],
        wanted: Sequence[str],
        saved: Sequence[Node] = (),
        statistics: Mapping[str, tuple[Node, Node]] | None = None,
    ):
        self.saved, self.statistics = saved, statistics or {}
        self.forward, self.nodes, self.given, self.results, self.wanted = graph, nodes, given, results, wanted
        self.environment = ShapeEnv(duck_shape=False, specialize_zero_one=False)
        self.fake = FakeTensorMode(shape_env=self.environment)
        self.extent = {str(symbol): self._symbol(str(symbol), binding.hint) for symbol, binding in graph.symbols.items()}
        self.rename = {self.extent[str(symbol)].node.expr: symbol for symbol in graph.symbols}
        self.named: dict[sympy.Basic, sympy.Basic] = {}  # sizes that have a name of their own here: long ones take long to handle
        for size in {size: None for node in (*given, *saved, *results) for size in node.shape or ()}:
            if isinstance(size, sympy.Basic) and not size.is_Symbol and not size.is_number:
                self.named[size] = sympy.Symbol(f"extent_{len(self.named)}")
                self.extent[str(self.named[size])] = self._symbol(str(self.named[size]), graph.hint(size))
                self.rename[self.extent[str(self.named[size])].node.expr] = size
        self.missing: list[bool] = []
        with self.fake:
            tensors = [self.empty(node) for node in (*given, *saved, *results)]
            traced = make_fx(self.derivative, decomposition_table=formulas())(*tensors, *self.extent.values())
        self.graph = traced.graph
        self.hand_over()
        self.graph.eliminate_dead_code()

    def hand_over(self) -> None:
        """What was saved stands for what computed it, also in formulas that hold on to their own result."""
        inputs = [fx for fx in self.graph.nodes if fx.op == "placeholder"]
        saved = inputs[len(self.given) : len(self.given) + len(self.saved)]
        copies = [fx for fx in self.graph.nodes if fx.target is aten.copy.default]
        for computed, handed in itertools.pairwise(copies):
            if handed.args[1] in saved:
                computed.args[0].replace_all_uses_with(handed.args[1])
                handed.replace_all_uses_with(handed.args[1])

    def _symbol(self, name: str, hint: int) -> Any:
        from torch._dynamo.source import ConstantSource

        source = ConstantSource(name)
        symbol = self.environment.create_symbol(hint, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        return self.environment.create_symintnode(symbol, hint=hint, source=source)

    def extent_of(self, size: Any) -> Any:
        """A size of the forward graph as a size of the trace."""
        known = {"max": torch.sym_max, "min": torch.sym_min}
        return eval(sizes.text(size.xreplace(self.named)), known, self.extent) if isinstance(size, sympy.Basic) else size

    def empty(self, node: Node) -> Tensor:
        assert node.shape is not None
        return torch.empty([self.extent_of(extent) for extent in node.shape], dtype=node.dtype)

    def reference(self, values: dict[str, Any], saved: Mapping[str, Tensor]) -> list[Tensor]:
        for node in self.nodes:
            plain = plain_form(node)
            target: Any = plain.target
            read = plain.args[1:] if target is aten.copy.default else plain.args  # not what the copy takes the place of
            given = _filled((read, dict(plain.kwargs)), values, self.extent_of)
            if target == "getitem":
                values[node.name] = given[0][0][given[0][1]]
            elif node.name in self.statistics:
                mean, rstd = (saved[part.name] for part in self.statistics[node.name])
                result = with_statistics(plain, given[0], given[1], mean, rstd)
                values[node.name] = result if node.shape is not None else (result, mean, rstd)
            elif target is aten.copy.default:
                values[node.name] = given[0][0].to(node.dtype).expand(self.empty(node).shape).clone()
            else:
                values[node.name] = target(*given[0], **given[1])
            if node.name in saved:
                values[node.name] = _Handed.apply(values[node.name], saved[node.name])
        return [values[node.name] for node in self.results]

    def derivative(self, *arguments: Any) -> list[Tensor]:
        """Of tensors, values that were saved, gradients of results, and sizes: the tracer must see them all come in."""
        rest = iter(arguments)
        inputs, saved, upstream = ([next(rest) for _ in nodes] for nodes in (self.given, self.saved, self.results))
        self.extent = dict(zip(self.extent, rest, strict=True))
        with torch.enable_grad():
            leaves = {
                node.name: t.detach().requires_grad_() if node.name in self.wanted else t
                for node, t in zip(self.given, inputs, strict=True)
            }
            results = self.reference(dict(leaves), {node.name: t for node, t in zip(self.saved, saved, strict=True)})
        pairs = [(r, g) for r, g in zip(results, upstream, strict=True) if r.requires_grad]
        by = [leaves[name] for name in self.wanted]
        found = torch.autograd.grad([r for r, _ in pairs], by, [g for _, g in pairs], allow_unused=True)
        self.missing = [gradient is None for gradient in found]
        return [gradient for gradient in found if gradient is not None]

    @functools.cached_property
    def guards(self) -> tuple[sympy.Basic, ...]:
        """What the trace took for granted about sizes."""
        found: dict[sympy.Basic, None] = {}
        for guard in self.environment.guards:
            location = str(getattr(getattr(guard, "sloc", None), "framework_loc", None))
            expression = self.environment.simplify(guard.expr).xreplace(self.rename)
            about_layout = any(part in location for part in LAYOUT_GUARDS) and not isinstance(expression, sympy.Eq)
            if expression not in (sympy.true, True) and not about_layout:
                found[expression] = None
        for symbol, value in self.environment.replacements.items():
            found[sympy.Eq(symbol, value).xreplace(self.rename)] = None
        return tuple(guard for guard in found if guard not in (sympy.true, True))


class _Differentiated(Tracer):
    """Reads one trace, with the names of one region; lives for the length of `gradient_graph`."""

    def __init__(self, trace: Trace, given: Sequence[Node], results: Sequence[Node]):
        super().__init__()
        self.trace, self.given, self.results = trace, given, results
        self.rename = trace.rename
        self.taken = set(RESERVED) | {node.name for node in given} | set(trace.extent)

    def name_gradients(self) -> None:
        """Shorter than their operators are called."""
        for fx in self.trace.graph.nodes:
            if fx.target in SHORTER:
                label, count = SHORTER[fx.target], 1
                while label in self.taken:
                    label, count = f"{SHORTER[fx.target]}_{count}", count + 1
                self.taken.add(label)
                self.names[fx.name] = label

    def read(self) -> Graph | None:
        called = [node.name for node in self.given] + [f"grad_{node.name}" for node in self.results]
        nodes: list[Node] = []
        placeholders = [fx for fx in self.trace.graph.nodes if fx.op == "placeholder"]
        saved = set(placeholders[len(self.trace.given) : len(self.trace.given) + len(self.trace.saved)])
        self.name_gradients()
        for fx, name, like in zip(placeholders, called, [*self.given, *self.results], strict=False):  # the sizes come last
            self.names[fx.name] = name
            self.taken.add(name)
            if fx.users or fx not in saved:
                nodes.append(Node(name, "input", (len(nodes),), {}, like.shape, like.dtype))
        names = [node.name for node in nodes]
        where = self.results[-1].where
        for fx in self.trace.graph.nodes:
            if fx.target is aten.as_strided.default:
                return None  # it depends on where things lie in memory
            if not is_functional(fx):
                return None
            if fx.op == "call_function" and self.is_tensor_call(fx):
                nodes.append(self.call(fx, where))
            elif fx.op == "get_attr":
                return None  # a tensor that the trace made and saved
        (returned,) = next(fx for fx in self.trace.graph.nodes if fx.op == "output").args
        found = iter(returned)
        outputs = [Output(None if none else Ref(self.names[next(found).name])) for none in self.trace.missing]
        if all(self.trace.missing):
            return None
        arguments = tuple(map(Ref, names))
        return Graph(tuple(nodes), tuple(names), tuple(outputs), self.symbols(nodes), self.trace.guards, arguments).check()

    def symbols(self, inputs: Sequence[Node]) -> dict[sympy.Symbol, Binding]:
        """The forward's, read off the first input here that has the size."""
        found = dict(self.trace.forward.symbols)
        for symbol, binding in found.items():
            places = [(i, d) for i, n in enumerate(inputs) if n.is_leaf for d, s in enumerate(n.shape or ()) if s == symbol]
            if places:
                found[symbol] = replace(binding, input=places[0][0], dim=places[0][1])
        return found


def is_functional(fx: torch.fx.Node) -> bool:
    """A call that changes nothing, or is made one: of a tensor that it changes nobody sees the old value later."""
    if not isinstance(fx.target, OpOverload) or not fx.target._schema.is_mutable or fx.target in registry.RECORDS:
        return True
    changed, order = fx.args[0], list(fx.graph.nodes)
    packet = getattr(aten, fx.target._schema.name.removeprefix("aten::").removesuffix("_"), None)
    if packet is None or not isinstance(changed, torch.fx.Node) or changed.op != "call_function" or is_view(changed.target):
        return False
    if any(order.index(user) > order.index(fx) for user in changed.users):
        return False
    fx.target = getattr(packet, fx.target._overloadname)
    return True


def is_view(target: Any) -> bool:
    """Its result may lie in the memory of something else."""
    return not isinstance(target, OpOverload) or any(r.alias_info and not r.alias_info.is_write for r in target._schema.returns)


def saved_extremes(graph: Graph, forward: Graph, saved: Mapping[str, str]) -> set[str]:
    """Maxima and minima that forward saved and that are compared for equality with the values they are of: not one of these, as
    backward computes them."""
    found: set[str] = set()
    for node in graph.nodes:
        stack = list(node.inputs) if node.target in (aten.eq.Tensor, aten.ne.Tensor) else []
        while stack:
            behind = graph[stack.pop()]
            record = registry.RECORDS.get(behind.target)
            if behind.name in saved and behind.name in forward.index and forward[behind.name].target in EXTREMES:
                found.add(behind.name)
            elif record is not None and (record.view or record.name in ("identity", "detach")):
                stack += behind.inputs
    return found


def _filled(value: Any, values: Mapping[str, Any], size: Callable[[Any], Any]) -> Any:
    """Arguments with tensors for references and sizes for expressions; tensors are made where the trace runs."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, (list, tuple)):
        return [_filled(item, values, size) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, values, size) for key, item in value.items()}
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return size(value)


@functools.cache
def formulas() -> dict[Any, Callable[..., Any]]:
    """Derivatives and norms in terms of smaller operators, where we have no record of the operator itself."""
    from torch._decomp import core_aten_decompositions

    registry.find(Node("", "getitem"), Graph((), (), ()))  # the records are there after the first look
    known = {*registry.RECORDS, *ELEMENTS}
    known |= {getattr(aten, f"reflection_pad{d}d_backward").default for d in (1, 2, 3)}  # as an index_put it is slower
    known.add(aten.embedding_dense_backward.default)  # so is this
    known.add(aten.index_add.default)  # and this; PyTorch's formula does not take an index that is a number
    theirs = {target: formula for target, formula in core_aten_decompositions().items() if target not in known}
    return {**theirs, **NORMS, **SHRINKS}


def shrink_backward(dy: Tensor, x: Tensor, bound: float) -> Tensor:
    """PyTorch's own kernel takes no symbolic sizes."""
    return torch.where((x >= -bound) & (x <= bound), 0, dy)


SHRINKS = dict.fromkeys((aten.hardshrink_backward.default, aten.softshrink_backward.default), shrink_backward)

__all__ = ["NORMS", "Trace", "gradient_graph", "plain_form", "saved_extremes"]
