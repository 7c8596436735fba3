"""How an operator is declared: `pointwise(...)` for one that works element by element, `@lowers(...)` for one with structure,
`@element_of(...)` for one with several results."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from ..ir import functions as fn
from ..ir import sizes
from ..ir.expr import Arg, Cast, Expr, differs, joined
from ..ir.graph import Dim, Graph, Node, Ref
from ..ir.prims import C_TYPES, Size, constant
from .lowering import Lowering
from .registry import Interval, Record, find, register

Lower = Callable[["Lowering", Node, dict[str, Any]], str | None]
Part = Callable[["Lowering", Node, dict[str, Any], int, Node], str | None]

SIGNS = {"IntTrueDiv": "/", "FloatTrueDiv": "/", "ToFloat": "", "Mul": "*", "Add": "+"}  # of numbers that are no sizes
ELEMENTS: dict[Any, Part] = {}


def pointwise(
    name: str,
    *targets: OpOverload,
    expr: Callable[..., Expr],
    monotone: int = 0,
    valley: Interval | None = None,
    bounds: Callable[..., Interval] | None = None,
    cost: int = 1,
    floats: bool = False,
    whole: bool = False,
    exact: bool = False,
) -> None:
    """A record for an operator that works element by element. `expr` gets the schema's arguments by name, tensors and numbers as `Expr`.

    `floats`: the expression is right for floats only; on integers the operator stays with PyTorch. `whole`: the other way round.
    `exact`: a half is first rounded as memory would round it, because a bit decides the result.
    """

    def lower(build: Lowering, node: Node) -> str | None:
        assert node.dtype is not None
        compute = compute_type(node, build.graph)
        if (floats and not compute.is_floating_point) or (whole and (compute.is_floating_point or compute is torch.bool)):
            return None
        operands: list[str] = []
        given: dict[str, Any] = {}
        for argument, value in node.bound().items():
            if isinstance(value, Ref):
                given[argument] = Arg(len(operands))
                name = build.value[value.name]
                operands.append(as_in_memory(build, name) if exact else name)
            elif isinstance(value, sympy.Expr):  # a number computed from sizes
                given[argument] = Arg(len(operands))
                made = number(build, value, torch.float32 if compute.is_floating_point else torch.int64)
                if made is None:
                    return None
                operands.append(made)
            elif isinstance(value, (bool, int, float)):
                given[argument] = constant(value, compute)
            else:
                given[argument] = value
        meaning = expr(SimpleNamespace(**given, is_whole=not compute.is_floating_point))
        return build.pointwise("", meaning, operands, node.dtype, compute, cost)

    known = Record(name, targets, lower, True, expr=expr, monotone=monotone, valley=valley, bounds=bounds, cost=cost)
    register(known)


def number(build: Lowering, value: sympy.Expr, dtype: torch.dtype) -> str | None:
    """A number computed from sizes: one of them, or a quotient and the like, in double precision as Python has it."""
    parts = list(sympy.preorder_traversal(value))
    if not any(part.is_Float or "True" in type(part).__name__ or "Float" in type(part).__name__ for part in parts):
        return build.add("size", Size(value), [], (), dtype)
    sign = SIGNS.get(type(value).__name__)
    names = [number(build, part, torch.float64) for part in value.args if part.free_symbols]
    if sign is None or any(name is None for name in names):
        return None
    operands = map(Arg, range(len(names)))
    terms = [next(operands) if part.free_symbols else constant(float(part), torch.float64) for part in value.args]
    return build.pointwise("number", joined(sign, terms), [name for name in names if name], torch.float64, torch.float64)


def as_in_memory(build: Lowering, name: str) -> str:
    """A value of a half type rounded to it: in registers it is a float."""
    dtype = build[name].dtype
    if dtype not in (torch.float16, torch.bfloat16) or build[name].is_load:
        return name
    return build.pointwise("rounded", lambda x: fn.rounded_to(C_TYPES[dtype], x), [name], dtype)


def compute_type(node: Node, graph: Graph) -> torch.dtype:
    """The type in which the operator works: its result's where that is a float, else the promotion of its operands."""
    assert node.dtype is not None
    if node.dtype.is_floating_point:
        return node.dtype
    found: torch.dtype | None = None
    numbers = []
    for value in node.bound().values():
        if isinstance(value, Ref):
            other = graph[value.name].dtype
            assert other is not None
            found = other if found is None else torch.promote_types(found, other)
        elif isinstance(value, (int, float)):
            numbers.append(value)
    found = found or node.dtype
    if any(isinstance(n, float) for n in numbers) and not found.is_floating_point:
        found = torch.get_default_dtype()
    elif found is torch.bool and any(not isinstance(n, bool) for n in numbers):
        found = torch.int64
    return found


def lowers(name: str, *targets: OpOverload | str, view: bool = False, monotone: int = 0) -> Callable[[Lower], Lower]:
    """Registers the function as the record of `targets`: from arguments by name to a primitive, or None to decline."""

    def wrap(function: Lower) -> Lower:
        def lower(build: Lowering, node: Node) -> str | None:
            return function(build, node, node.bound() if isinstance(node.target, OpOverload) else {})

        register(Record(name, targets, lower, view=view, monotone=monotone))  # type: ignore[arg-type]
        return function

    return wrap


def element_of(*targets: OpOverload) -> Callable[[Part], Part]:
    def wrap(function: Part) -> Part:
        for target in targets:
            ELEMENTS[target] = function
        return function

    return wrap


def is_ours(node: Node, graph: Graph) -> bool:
    """The node becomes part of a kernel of ours, itself or by its elements; else it is a call to the library."""
    return find(node, graph) is not None or node.target in ELEMENTS


def value_of(build: Lowering, value: Any) -> str:
    assert isinstance(value, Ref)
    return build.value[value.name]


def dims_of(dims: Any, rank: int) -> list[int]:
    """The dimensions of a reduction as non-negative numbers; none given means all. A number has none, whichever is named."""
    if rank == 0 or dims is None or dims == []:
        return list(range(rank))
    return sorted({d % rank for d in ([dims] if isinstance(dims, int) else dims)})


def float_result(build: Lowering, source: str, dtype: torch.dtype | None) -> str:
    """The source in the float type that a reduction works in."""
    wanted = dtype or build[source].dtype
    return source if build[source].dtype == wanted else cast(build, source, wanted)


def cast(build: Lowering, source: str, dtype: torch.dtype) -> str:
    expression = differs(Arg(0), 0) if dtype is torch.bool and build[source].dtype is not torch.bool else Arg(0)
    compute = build[source].dtype if dtype is torch.bool else dtype
    if dtype is torch.uint8 and build[source].dtype.is_floating_point:  # negative numbers wrap, as PyTorch's do
        expression, compute = Cast("unsigned char", Cast("long long", Arg(0))), build[source].dtype
    return build.pointwise("cast", expression, [source], dtype, compute)


def slice_start(start: Any, size: Dim) -> Dim | None:
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        return max(0, size + start) if isinstance(size, int) else sizes.tidy(size + start)
    return start
