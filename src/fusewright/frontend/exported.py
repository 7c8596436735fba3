"""An exported program -> Graph: its nodes with their places, sizes by the names of inputs, guards, and the structure of what it returns."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import Unsupported
from ..ir.graph import Binding, Graph, Node, Output, Ref, refs
from ..ops import indexed
from .fx import MADE_ANEW, Tracer

aten = torch.ops.aten
HOMES = "homes of results"
# Views of a contiguous tensor that are contiguous themselves.
IN_A_ROW = (
    aten.view.default, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default,
    aten.detach.default,
)  # fmt: skip
# Guards made while the tracer decides about strides and contiguity: the graph's meaning does not depend on them.
LAYOUT_GUARDS = ("torch/_prims_common", "torch/_prims/", "torch/_refs", "torch/_subclasses/fake_impls.py", "torch/_inductor")


def _structured(spec: Any, leaves: Iterator[int]) -> Any:
    """`pytree.tree_unflatten`, which makes plain tuples of shapes."""
    if spec.is_leaf():
        return next(leaves)
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    items = [_structured(child, leaves) for child in children]
    return torch.Size(items) if spec.type is torch.Size else pytree.SUPPORTED_NODES[spec.type].unflatten_fn(items, spec.context)


def homes_of_results(exported: torch.export.ExportedProgram) -> list[str]:
    """Of each result: the first node whose tensor lies in the same memory; empty where it is no tensor."""
    homes: dict[int, str] = {}
    for fx in exported.graph.nodes:
        if isinstance(fx.meta.get("val"), Tensor):
            homes.setdefault(fx.meta["val"].untyped_storage()._cdata, fx.name)
    values = [getattr(result, "meta", {}).get("val") for result in exported.graph.output_node().args[0]]
    return [homes[value.untyped_storage()._cdata] if isinstance(value, Tensor) else "" for value in values]


def _besides_groups(fx: torch.fx.Node) -> list[torch.fx.Node]:
    """What a convolution is given, but for its number of groups."""
    operator: Any = fx.target
    names = [argument.name for argument in operator._schema.arguments]
    given = {**dict(zip(names, fx.args, strict=False)), **fx.kwargs, "groups": None}
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.fx.Node)]


def _order_asked(fx: torch.fx.Node) -> torch.memory_format | None:
    """The order of elements that forward asks for in what it returns: in a copy, or in a copy of which this is the same row of elements."""
    source: Any = fx
    while source.target in IN_A_ROW:
        source = source.args[0]
    is_copy = source.target in (aten.clone.default, aten._to_copy.default)
    asked: torch.memory_format | None = source.kwargs.get("memory_format") if is_copy else None
    kept = asked is torch.contiguous_format or source is fx
    return asked if kept and asked is not torch.preserve_format else None


class ExportReader(Tracer):
    """Reads one exported program; only lives for the length of `capture`."""

    def __init__(
        self, exported: torch.export.ExportedProgram, inputs: Sequence[Any], file: str, assigns: bool = False, in_order: bool = False
    ):
        super().__init__()
        self.exported, self.inputs, self.file, self.assigns, self.in_order = exported, inputs, file, assigns, in_order
        self.symbols: dict[sympy.Symbol, Binding] = {}
        self.constants: dict[str, Any] = {}

    def graph(self) -> Graph:
        signature = self.exported.graph_signature
        kinds = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        user_inputs = [spec.arg for spec in signature.input_specs if spec.kind.name == "USER_INPUT"]
        position = {getattr(argument, "name", None): i for i, argument in enumerate(user_inputs)}
        nodes: list[Node] = []
        placeholders = [n for n in self.exported.graph.nodes if n.op == "placeholder"]
        for fx in placeholders:  # the user's names first: they keep theirs
            if fx.name in position and isinstance(fx.meta.get("val"), torch.Tensor):
                self._bind(fx, position[fx.name])
        self.known = self._known_sizes()
        for fx in self.exported.graph.nodes:
            if fx.op == "placeholder":
                if isinstance(fx.meta.get("val"), torch.Tensor):
                    nodes.append(self._leaf(fx, kinds[fx.name], position))
            elif fx.op == "call_function" and self.is_tensor_call(fx):
                nodes.append(self.call(fx, self.where(fx, self.file)))
        nodes = self._with_strides(nodes)
        outputs = self._outputs()
        used = {ref.name for node in nodes for ref in map(Ref, node.inputs)}
        used |= {o.value.name for o in outputs if isinstance(o.value, Ref)}
        nodes = [n for n in nodes if not n.is_leaf or n.target == "input" or n.name in used]
        arguments = tuple(self._given(argument) for argument in user_inputs)
        names = tuple(argument.name for argument in arguments if isinstance(argument, Ref))
        guards = tuple(dict.fromkeys((*self._guards(), *indexed.guards(nodes))))
        structure = pytree.tree_unflatten(range(len(arguments)), pytree.tree_structure(tuple(self.inputs)))
        result, assigned = self._result() if self.assigns else (self._result(), {})
        return Graph(
            tuple(nodes), names, tuple(outputs), self.symbols, guards, arguments, structure, result, assigned
        )

    def _given(self, argument: Any) -> Any:
        """An argument of forward: a tensor, or the plain value that the graph was captured with."""
        name = getattr(argument, "name", None)
        return Ref(self.names[name]) if name in self.names else getattr(argument, "value", None)

    # ---- names and sizes

    def _bind(self, fx: torch.fx.Node, position: int) -> None:
        name = self.name(fx.name)
        for dim, size in enumerate(fx.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr in self.pinned:
                self.rename[size.node.expr] = sympy.Integer(int(size.node.hint))
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.expr not in self.rename:
                free = next(word for n in itertools.count() if (word := f"{name}_{dim}" + "_size" * n) not in self.taken)
                symbol = sympy.Symbol(free, integer=True, positive=True)
                for alike in self.alike.get(size.node.expr, [size.node.expr]):
                    self.rename[alike] = symbol
                self.taken.add(symbol.name)
                bounds = self.exported.range_constraints.get(size.node.expr)
                lower = int(bounds.lower) if bounds is not None and bounds.lower.is_Integer else 0
                self.symbols[symbol] = Binding(position, dim, int(size.node.hint), lower)

    # ---- nodes

    def _leaf(self, fx: torch.fx.Node, spec: Any, position: dict[Any, int]) -> Node:
        kind = {"PARAMETER": "parameter", "BUFFER": "buffer", "USER_INPUT": "input"}.get(spec.kind.name, "constant")
        path: Any = position[fx.name] if kind == "input" else spec.target
        kwargs = {}
        if kind == "constant":
            held = self.exported.constants[spec.target]
            kwargs = {"value": held.detach() if isinstance(held, Tensor) else held}
        value = fx.meta["val"]
        shape = tuple(self.size_of(size) for size in value.shape)
        return Node(self.name(fx.name), kind, (path,), kwargs, shape, value.dtype)

    def _with_strides(self, nodes: list[Node]) -> list[Node]:
        """Leaves on which it depends in what order random numbers are drawn for the elements of a tensor, with their strides; all
        leaves where forward itself asks."""
        reached = {node.name for node in nodes if node.is_leaf and self.in_order}
        for node in reversed(nodes):
            if node.strides:
                read = [ref.name for ref in refs((node.args, dict(node.kwargs)))]
                reached |= {name for name, strides in zip(read, node.strides, strict=True) if strides is not None}
            if node.name in reached and node.target not in MADE_ANEW:
                reached |= set(node.inputs)
        own = {self.names[fx.name]: fx.meta["val"] for fx in self.exported.graph.nodes if fx.op == "placeholder" and fx.name in self.names}
        return [replace(n, strides=(self.strides_of(own[n.name]),)) if n.is_leaf and n.name in reached else n for n in nodes]

    # ---- what leaves the graph

    def _outputs(self) -> list[Output]:
        found = []
        nodes = {fx.name: fx for fx in self.exported.graph.nodes}
        buffers = {spec.target: spec.arg.name for spec in self.exported.graph_signature.input_specs if spec.kind.name == "BUFFER"}
        homes = iter(self.exported.graph_module.meta[HOMES])
        for spec in self.exported.graph_signature.output_specs:
            kind = spec.kind.name
            name = getattr(spec.arg, "name", None)
            meta = self._output_meta().get(str(name))
            home = "" if kind.endswith("MUTATION") else next(homes)
            if kind == "PARAMETER_MUTATION":
                raise Unsupported(f"{self.file or 'the model'}: forward changes the parameter {spec.target}")
            if hasattr(spec.arg, "value"):
                found.append(Output(spec.arg.value))
            elif name is None or not isinstance(meta, torch.Tensor):
                found.append(Output(self.size_of(meta)))
            elif kind == "BUFFER_MUTATION":
                found.append(Output(Ref(self.name(name)), "buffer", spec.target, memory=self.name(buffers[spec.target])))
            elif kind == "USER_INPUT_MUTATION":
                found.append(Output(Ref(self.name(name)), "input", self.name(spec.target)))
            else:
                found.append(Output(Ref(self.name(name)), memory=self._memory(home), order=_order_asked(nodes[name])))
        return found

    def _memory(self, home: str) -> str:
        """A leaf's name in the graph; that of a call in the program, marked as such."""
        leaves = {fx.name for fx in self.exported.graph.nodes if fx.op == "placeholder"}
        return self.name(home) if home in leaves else f"%{home}"

    def _output_meta(self) -> dict[str, Any]:
        return {n.name: n.meta.get("val") for n in self.exported.graph.nodes if n.op != "output"}

    def _result(self) -> Any:
        """The user's return structure, each leaf the position of its value in `outputs`."""
        specs = self.exported.graph_signature.output_specs
        returned = [
            i for i, spec in enumerate(specs) if spec.kind.name not in ("BUFFER_MUTATION", "USER_INPUT_MUTATION")
        ]
        return _structured(self.exported.call_spec.out_spec, iter(returned))

    def _guards(self) -> tuple[sympy.Basic, ...]:
        found: dict[sympy.Basic, None] = {}
        for symbol, binding in self.symbols.items():
            if binding.lower > 1:
                found[symbol >= binding.lower] = None
        environment = self._shape_environment()
        for guard in environment.guards if environment is not None else ():
            location = getattr(getattr(guard, "sloc", None), "framework_loc", None)
            expression = environment.simplify(guard.expr).xreplace(self.rename)
            meet = isinstance(expression, sympy.Eq) and "_prims_common" not in str(location)  # sizes in one operator
            about_layout = any(part in str(location) for part in LAYOUT_GUARDS) and not meet
            if (
                not about_layout
                and expression not in (sympy.true, True)
                and expression.free_symbols <= set(self.symbols)
            ):
                found[expression] = None
        return tuple(found)

    def _known_sizes(self) -> dict[sympy.Expr, sympy.Expr]:
        """From guards such as (s - 3) // 2 + 1 == 1, which let the model broadcast: (s - 3) // 2 is 0."""
        known = {}
        for guard in self._guards():
            if isinstance(guard, sympy.Eq) and guard.rhs.is_Integer:
                constant, rest = guard.lhs.as_coeff_Add()
                factor, core = rest.as_coeff_Mul()
                value = (guard.rhs - constant) / factor
                if value.is_Integer and not core.is_Symbol:
                    known[core] = value
        return known

    @functools.cached_property
    def pinned(self) -> set[sympy.Basic]:
        """Sizes that are as in the example: those whose product has to be a number (windows cut out, and put together to an image
        of a given size), and those that say how a convolution pads (an output of a given size). A number of groups stays a size:
        convolutions with weights for each sample have as many as the batch has samples."""
        environment = self._shape_environment()
        guards = [environment.simplify(guard.expr) for guard in environment.guards] if environment is not None else []
        products = [g.lhs for g in guards if isinstance(g, sympy.Eq) and g.rhs.is_Integer and g.lhs.is_Mul]
        found = {symbol for product in products if len(product.free_symbols) > 1 for symbol in product.free_symbols}
        convolutions = [fx for fx in self.exported.graph.nodes if str(fx.target).startswith("aten.conv")]
        given = [argument.meta.get("val") for fx in convolutions for argument in _besides_groups(fx)]
        return found.union(*(value.node.expr.free_symbols for value in given if isinstance(value, torch.SymInt)))

    @functools.cached_property
    def alike(self) -> dict[sympy.Symbol, list[sympy.Symbol]]:
        """Sizes that attention takes only where they are the same, though the tracer does not ask: keys and values are as many."""
        found: dict[sympy.Symbol, list[sympy.Symbol]] = {}
        for fx in self.exported.graph.nodes:
            if fx.target is not torch.ops.aten.scaled_dot_product_attention.default:
                continue
            lengths: list[Any] = [node.meta["val"].shape[-2] for node in fx.args[1:3]]
            keys, values = (n.node.expr if isinstance(n, torch.SymInt) else sympy.Integer(n) for n in lengths)
            if keys != values and keys.is_Symbol and values.is_Symbol:
                both = [*found.get(keys, [keys]), *found.get(values, [values])]
                found.update(dict.fromkeys(both, both))
        return found

    def _shape_environment(self) -> Any:
        for fx in self.exported.graph.nodes:
            value = fx.meta.get("val")
            extents: list[Any] = list(value.shape) if isinstance(value, torch.Tensor) else []
            for size in extents:
                if isinstance(size, torch.SymInt):
                    return size.node.shape_env
        return None
