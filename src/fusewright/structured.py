"""Operators with structure: choices, casts, views, reductions, norms and pools, each lowered by one function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._ops import OpOverload

from . import sizes
from .graph import Dim, Node, Ref
from .ops import Record, as_in_memory, aten, compute_type, literal, register
from .prims import Expand, Flip, Iota, Permute, Size, Slice, Window

if TYPE_CHECKING:
    from .lower import Lowering

Lower = Callable[["Lowering", Node, dict[str, Any]], str | None]


def lowers(name: str, *targets: OpOverload | str, view: bool = False, monotone: int = 0) -> Callable[[Lower], Lower]:
    """Registers the function as the record of `targets`: from arguments by name to a primitive, or None to decline."""

    def wrap(function: Lower) -> Lower:
        def lower(build: Lowering, node: Node) -> str | None:
            return function(build, node, node.bound() if isinstance(node.target, OpOverload) else {})

        register(Record(name, targets, lower, view=view, monotone=monotone))  # type: ignore[arg-type]
        return function

    return wrap


def value_of(build: Lowering, value: Any) -> str:
    assert isinstance(value, Ref)
    return build.value[value.name]


def dims_of(dims: Any, rank: int) -> list[int]:
    """Dimensions as non-negative numbers; none given means all."""
    if dims is None or dims == []:
        return list(range(rank))
    return sorted({d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims)})


def float_result(build: Lowering, source: str, dtype: torch.dtype | None) -> str:
    """The source in the float type that a reduction works in."""
    wanted = dtype or build[source].dtype
    return source if build[source].dtype == wanted else cast(build, source, wanted)


def cast(build: Lowering, source: str, dtype: torch.dtype) -> str:
    expression = "{0} != 0" if dtype is torch.bool and build[source].dtype is not torch.bool else "{0}"
    compute = build[source].dtype if dtype is torch.bool else dtype
    if dtype is torch.uint8 and build[source].dtype.is_floating_point:  # negative numbers wrap, as PyTorch's do
        expression, compute = "(unsigned char)(long long){0}", build[source].dtype
    return build.pointwise("cast", expression, [source], dtype, compute)


# ---- casts, choices, constants


@lowers("cast", aten._to_copy.default, aten.to.dtype, aten.type_as.default)
def to_copy(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if a.get("device") is not None and str(a["device"]) != "cpu":
        return None
    assert node.dtype is not None
    source = value_of(build, a["self"])
    made = cast(build, source, node.dtype)
    return made if build[source].dtype == node.dtype else as_in_memory(build, made)  # who writes .half() wants it rounded


@lowers(
    "identity",
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.detach_.default,
)
def identity(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return value_of(build, a["self"])


@lowers("dropout", aten.dropout.default)
def dropout(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return value_of(build, a["input"]) if not a["train"] or a["p"] == 0 else None


@lowers("where", aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    condition = value_of(build, a["condition"])
    names, texts = [condition], []
    for value in (a["self"], a["other"]):
        if isinstance(value, Ref):
            texts.append(f"{{{len(names)}}}")
            names.append(build.value[value.name])
        else:
            texts.append(literal(value, node.dtype))
    return build.pointwise("", f"({{0}} ? {texts[0]} : {texts[1]})", names, node.dtype, None)


@lowers("masked_fill", aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    names = [value_of(build, a["mask"]), value_of(build, a["self"])]
    if isinstance(a["value"], Ref):
        return build.pointwise("", "({0} ? {2} : {1})", [*names, value_of(build, a["value"])], node.dtype)
    return build.pointwise("", f"({{0}} ? {literal(a['value'], node.dtype)} : {{1}})", names, node.dtype)


@lowers(
    "full",
    aten.full.default,
    aten.full_like.default,
    aten.zeros.default,
    aten.ones.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.scalar_tensor.default,
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
)
def full(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None and node.shape is not None
    name = str(node.target)
    value = a.get("fill_value", a.get("s", 0 if "zeros" in name else 1))
    if not isinstance(value, (bool, int, float)):
        return None
    scalar = build.pointwise("value", literal(value, node.dtype), [], node.dtype)
    return build.expand(scalar, node.shape)


@lowers("nan_to_num", aten.nan_to_num.default)
def nan_to_num(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Numbers for NaN, Inf and -Inf; where none is given, 0 and the type's largest and smallest."""
    assert node.dtype is not None
    source = value_of(build, a["self"])
    if not node.dtype.is_floating_point:
        return source
    limits = torch.finfo(node.dtype)
    nan, high, low = (
        literal(default if given is None else given, node.dtype)
        for given, default in ((a["nan"], 0.0), (a["posinf"], limits.max), (a["neginf"], limits.min))
    )
    text = f"({{0}} != {{0}} ? {nan} : ({{0}} == INFINITY ? {high} : ({{0}} == -INFINITY ? {low} : {{0}})))"
    return build.pointwise("", text, [as_in_memory(build, source)], node.dtype)


@lowers("outer", aten.outer.default)
def outer(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Every element of one vector times every element of another."""
    assert node.dtype is not None and node.shape is not None
    column = build.reshape(value_of(build, a["self"]), [node.shape[0], 1], "column")
    return build.pointwise("", "{0} * {1}", [column, value_of(build, a["vec2"])], node.dtype)


@lowers("bitwise_not", aten.bitwise_not.default)
def bitwise_not(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    return build.pointwise("", "!{0}" if node.dtype is torch.bool else "~{0}", [value_of(build, a["self"])], node.dtype)


@lowers("triangle", aten.tril.default, aten.triu.default)
def triangle(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None and node.shape is not None
    source, rank, diagonal = value_of(build, a["self"]), len(node.shape), a["diagonal"]
    if isinstance(diagonal, sympy.Expr):
        return None
    row = build.add("row", Iota(rank - 2), [], node.shape, torch.int64)
    column = build.add("column", Iota(rank - 1), [], node.shape, torch.int64)
    test = "<=" if "tril" in str(node.target) else ">="
    keep = build.pointwise("keep", f"{{1}} - {{0}} {test} {diagonal}", [row, column], torch.bool, torch.int64)
    zero = literal(0, node.dtype)
    return build.pointwise("", f"({{0}} ? {{1}} : {zero})", [keep, source], node.dtype)


@lowers("stack", aten.stack.default)
def stack(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The part whose number is the coordinate along the new dimension; of few parts, so that choosing costs little."""
    assert node.shape is not None and node.dtype is not None
    dim, parts = a["dim"] % len(node.shape), [value_of(build, part) for part in a["tensors"]]
    if len(parts) > 32 or any(build[part].dtype != node.dtype for part in parts):
        return None
    which = build.add("which", Iota(dim), [], node.shape, torch.int64)
    wide = [build.reshape(part, [*node.shape[:dim], 1, *node.shape[dim + 1 :]]) for part in parts]
    choice = "".join(f"{{0}} == {i} ? {{{i + 1}}} : " for i in range(len(parts) - 1)) + f"{{{len(parts)}}}"
    return build.pointwise("", f"({choice})", [which, *wide], node.dtype)


# ---- views


@lowers(
    "view",
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    view=True,
)
def view(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    return build.reshape(value_of(build, a.get("self", a.get("input"))), node.shape, "")


@lowers("expand", aten.expand.default, aten.broadcast_to.default, aten.expand_as.default, view=True)
def expand(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    return build.view("", Expand(), build.stretched(value_of(build, a["self"]), node.shape), node.shape)


@lowers(
    "permute",
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.movedim.int,
    aten.mT.default if hasattr(aten, "mT") else "mT",
    view=True,
)
def permute(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    rank = len(node.shape)
    order = list(range(rank))
    if "dims" in a:
        order = [d % rank for d in a["dims"]]
    elif "dim0" in a:
        i, j = a["dim0"] % rank, a["dim1"] % rank
        order[i], order[j] = j, i
    elif "source" in a:
        order.remove(a["source"] % rank)
        order.insert(a["destination"] % rank, a["source"] % rank)
    elif rank >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    return build.view("", Permute(tuple(order)), value_of(build, a["self"]), node.shape)


def slice_start(start: Any, size: Dim) -> Dim | None:
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        return max(0, size + start) if isinstance(size, int) else sizes.tidy(size + start)
    return start


@lowers("slice", aten.slice.Tensor, view=True)
def slice_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    dim = a["dim"] % len(node.shape)
    start = slice_start(a["start"], build[source].shape[dim])
    if start is None or not isinstance(a["step"], int) or (isinstance(start, int) and start < 0):
        return None
    whole = sizes.same(start, 0) and sizes.same(node.shape[dim], build[source].shape[dim])
    return source if whole else build.view("", Slice(dim, start, a["step"]), source, node.shape)


@lowers("select", aten.select.int, view=True)
def select(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    shape = list(build[source].shape)
    dim = a["dim"] % len(shape)
    start = slice_start(a["index"], shape[dim])
    if start is None:
        return None
    shape[dim] = 1
    return build.reshape(build.view("row", Slice(dim, start), source, shape), node.shape, "")


@lowers("flip", aten.flip.default, aten.fliplr.default, aten.flipud.default)
def flip(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    dims = a.get("dims", [1] if "fliplr" in str(node.target) else [0])
    return build.view("", Flip(tuple(dims_of(dims, len(node.shape)))), value_of(build, a["self"]), node.shape)


@lowers("prelu", aten.prelu.default)
def prelu(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """One slope for all, or one for each channel."""
    assert node.shape is not None and node.dtype is not None
    source, slope = value_of(build, a["self"]), value_of(build, a["weight"])
    per_channel = [build[slope].shape[0], *[1] * (len(node.shape) - 2)] if len(node.shape) >= 2 else build[slope].shape
    names = [source, build.reshape(slope, per_channel)]
    return build.pointwise("", "({0} > 0.0f ? {0} : {1} * {0})", names, node.dtype)


@lowers("glu", aten.glu.default)
def glu(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The first half times the sigmoid of the second."""
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, dim = value_of(build, a["self"]), a["dim"] % len(node.shape)
    first = build.view("first", Slice(dim, 0), source, node.shape)
    second = build.view("second", Slice(dim, node.shape[dim]), source, node.shape)
    return build.pointwise("", "{0} * sigmoid_of({1})", [first, second], node.dtype, cost=12)


# ---- elements of operators with several results


@lowers("element", "getitem")
def getitem(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Element i of a split, of max/min over a dimension, of a norm with its statistics, of a pool with indices."""
    parent = build.graph[node.args[0].name]
    part = ELEMENTS.get(parent.target)
    if part is None or not isinstance(parent.target, OpOverload):
        return None
    return part(build, node, parent.bound(), node.args[1], parent)


Part = Callable[["Lowering", Node, dict[str, Any], int, Node], str | None]
ELEMENTS: dict[Any, Part] = {}


def element_of(*targets: OpOverload) -> Callable[[Part], Part]:
    def wrap(function: Part) -> Part:
        for target in targets:
            ELEMENTS[target] = function
        return function

    return wrap


@element_of(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    dim = a["dim"] % len(node.shape)
    given = a.get("split_size", a.get("split_sizes"))
    if isinstance(given, (list, tuple)):
        start: Dim = sizes.tidy(sum(given[:i], sympy.Integer(0)))
    elif isinstance(given, (int, sympy.Expr)):
        start = sizes.tidy(given * i)
    else:
        return None
    return build.view("", Slice(dim, start), source, node.shape)


@element_of(aten.unbind.int)
def unbind_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    shape = list(build[source].shape)
    dim = a["dim"] % len(shape)
    shape[dim] = 1
    return build.reshape(build.view("row", Slice(dim, i), source, shape), node.shape, "")


@element_of(aten.aminmax.default)
def both_extremes_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    source = value_of(build, a["self"])
    if not build[source].dtype.is_floating_point or build[source].dtype is torch.float64:
        return None
    dims = dims_of(a["dim"], len(build[source].shape))
    return build.drop(build.reduce("", "Max" if i == 1 else "Min", source, dims), dims, a["keepdim"])


@element_of(aten.max.dim, aten.min.dim)
def extreme_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    source = value_of(build, a["self"])
    if not build[source].dtype.is_floating_point or build[source].dtype is torch.float64:
        return None
    kind = "Max" if "max" in str(parent.target) else "Min"
    return index_or_value(build, node, source, a["dim"], a["keepdim"], kind, i == 1)


def index_or_value(
    build: Lowering, node: Node, source: str, dim: int, keepdim: bool, kind: str, wants_index: bool
) -> str | None:
    rank = len(build[source].shape)
    dims = dims_of(dim, rank)
    if wants_index:
        if rank == 0:
            return None
        found = build.reduce("index", f"Arg{kind}", as_in_memory(build, source), dims, "position()", torch.int64)
    else:
        found = build.reduce("", kind, source, dims)
    return build.drop(found, dims, keepdim)


# ---- reductions


@lowers("sum", aten.sum.default, aten.sum.dim_IntList)
def sum_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source = float_result(build, value_of(build, a["self"]), node.dtype)
    dims = dims_of(a.get("dim"), len(build[source].shape))
    kind = "Sum" if node.dtype.is_floating_point else "IntegerSum"
    return build.drop(build.reduce("", kind, source, dims), dims, a.get("keepdim", False))


@lowers("mean", aten.mean.default, aten.mean.dim)
def mean(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source = float_result(build, value_of(build, a["self"]), node.dtype)
    dims = dims_of(a.get("dim"), len(build[source].shape))
    total = build.reduce("sum", "Sum", source, dims)
    found = build.pointwise("", "{0} / {1}", [total, build.count(source, dims)], node.dtype, cost=4)
    return build.drop(found, dims, a.get("keepdim", False))


@lowers("extreme", aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def extreme(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    kind = "Max" if "max" in str(node.target) else "Min"
    return build.drop(build.reduce("", kind, source, dims), dims, a.get("keepdim", False))


@lowers("index_of_extreme", aten.argmax.default, aten.argmin.default)
def arg_extreme(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    kind = "Max" if "max" in str(node.target) else "Min"
    if a["dim"] is None:  # of the whole tensor, counted in memory order
        flat = build.reshape(as_in_memory(build, source), [sizes.product(build[source].shape)], "flat")
        found = build.reduce("index", f"Arg{kind}", flat, [0], "position()", torch.int64)
        return build.reshape(found, node.shape or (), "")
    return index_or_value(build, node, source, a["dim"], a["keepdim"], kind, True)


@lowers("any_all", aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def any_all(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The largest or the smallest of 0 and 1."""
    source = value_of(build, a["self"])
    if node.dtype is not torch.bool:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    true = build.pointwise("true", "({0} != 0 ? 1.0f : 0.0f)", [source], torch.float32, build[source].dtype)
    number = build.reduce("number", "Max" if "any" in str(node.target) else "Min", true, dims)
    found = build.pointwise("", "{0} != 0.0f", [number], torch.bool, torch.float32)
    return build.drop(found, dims, a.get("keepdim", False))


@lowers("count_nonzero", aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    dims = dims_of(a.get("dim"), len(build[source].shape))
    one = build.pointwise("one", "({0} != 0 ? 1 : 0)", [source], torch.int64, build[source].dtype)
    return build.drop(build.reduce("", "IntegerSum", one, dims), dims, False)


@lowers("prod", aten.prod.default, aten.prod.dim_int)
def prod(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype is not torch.float32 or node.dtype is not torch.float32:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    return build.drop(build.reduce("", "Product", source, dims), dims, a.get("keepdim", False))


@lowers("logsumexp", aten.logsumexp.default)
def logsumexp(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    dims = dims_of(a["dim"], len(build[source].shape))
    return build.drop(build.reduce("", "LogSumExp", source, dims), dims, a["keepdim"])


@lowers("softmax", aten.softmax.int, aten._softmax.default, aten.log_softmax.int, aten._log_softmax.default)
def softmax(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None and node.shape is not None
    source = value_of(build, a["self"])
    if node.dtype is torch.float64 or not node.shape:
        return None
    dims = dims_of(a["dim"], len(node.shape))
    largest = build.reduce("max", "LogSumExp", source, dims, "pivot()")
    if "log_softmax" in str(node.target):
        log_total = build.reduce("log_sum", "LogSumExp", source, dims, "log_total()")
        return build.pointwise("", "({0} - {1}) - {2}", [source, largest, log_total], node.dtype)
    total = build.reduce("sum", "LogSumExp", source, dims, "total()")
    inverse = build.pointwise("inverse", "inverse_of({0})", [total], torch.float32, cost=4)  # 1 and more, the maximum's own, or NaN
    exponential = build.pointwise("exp", "expf({0} - {1})", [source, largest], torch.float32, cost=9)
    return build.pointwise("", "{0} * {1}", [exponential, inverse], node.dtype)


def moments(
    build: Lowering, source: str, dims: Sequence[int], correction: float = 0, label: str = ""
) -> tuple[str, str]:
    """(mean, variance) by Welford; variance divides by n − correction."""
    mean_ = build.reduce(f"{label}mean", "Moments", source, dims, "mean")
    squares = build.reduce(f"{label}m2", "Moments", source, dims, "m2")
    count = build.count(source, dims)
    divisor = "{1}" if correction == 0 else f"fmaxf({{1}} - {literal(correction, torch.float32)}, 0.0f)"
    return mean_, build.pointwise(f"{label}var", f"{{0}} / {divisor}", [squares, count], build[squares].dtype, cost=4)


def _correction(a: dict[str, Any]) -> float:
    if "correction" in a:
        return 1 if a["correction"] is None else a["correction"]
    return 1 if a.get("unbiased", True) else 0


@lowers("var", aten.var.default, aten.var.dim, aten.var.correction, aten.std.default, aten.std.dim, aten.std.correction)
def variance(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype is not torch.float32:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    _, found = moments(build, source, dims, _correction(a))
    if "std" in str(node.target):
        found = build.pointwise("", "sqrtf({0})", [found], torch.float32, cost=4)
    return build.drop(found, dims, a.get("keepdim", False))


@element_of(aten.var_mean.correction, aten.var_mean.dim, aten.std_mean.correction, aten.std_mean.dim)
def var_mean_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype is not torch.float32:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    mean_, var = moments(build, source, dims, _correction(a))
    if "std" in str(parent.target) and i == 0:
        var = build.pointwise("std", "sqrtf({0})", [var], torch.float32, cost=4)
    return build.drop(mean_ if i == 1 else var, dims, a.get("keepdim", False))


@lowers("norm", aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def vector_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    order = a.get("ord", a.get("p"))
    order = 2 if order is None else order
    if build[source].dtype is not torch.float32 or a.get("dtype") is not None:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    size = build.pointwise("abs", "fabsf({0})", [source], torch.float32)
    if order == 1:
        found = build.reduce("", "Sum", size, dims)
    elif order == 2:
        square = build.pointwise("square", "{0} * {0}", [source], torch.float32)
        found = build.pointwise("", "sqrtf({0})", [build.reduce("sum", "Sum", square, dims)], torch.float32, cost=4)
    elif order in (float("inf"), float("-inf")):
        found = build.reduce("", "Max" if order > 0 else "Min", size, dims)
    elif order in (3, 4):
        power = build.pointwise("power", " * ".join(["{0}"] * int(order)), [size], torch.float32)
        found = build.reduce("sum", "Sum", power, dims)
        root = "cbrtf({0})" if order == 3 else "sqrtf(sqrtf({0}))"
        found = build.pointwise("", root, [found], torch.float32, cost=8)
    else:
        return None
    return build.drop(found, dims, a.get("keepdim", False))


# ---- norms: statistics, then one pointwise pass


def normalise(
    build: Lowering,
    source: str,
    mean_: str,
    var: str,
    weight: str | None,
    bias: str | None,
    eps: float,
    dtype: torch.dtype,
) -> str:
    rstd = build.pointwise("rstd", f"rsqrtf({{0}} + {literal(eps, torch.float32)})", [var], torch.float32, cost=4)
    scale = rstd if weight is None else build.pointwise("scale", "{0} * {1}", [rstd, weight], torch.float32)
    expression, names = "({0} - {1}) * {2}", [source, mean_, scale]
    if bias is not None:
        expression, names = f"{expression} + {{3}}", [*names, bias]
    return build.pointwise("", expression, names, dtype, torch.float32, cost=4)


def optional(build: Lowering, value: Any, shape: Sequence[Dim]) -> str | None:
    return None if value is None else build.reshape(value_of(build, value), shape)


@lowers("group_norm", aten.group_norm.default)
def group_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, groups = value_of(build, a["input"]), a["num_groups"]
    batch, channels, *space = node.shape
    if not isinstance(channels, int):
        return None
    in_group = channels // groups
    grouped = build.reshape(source, [batch, groups, in_group, *space], "groups")
    affine = [groups, in_group, *[1] * len(space)]
    mean_, var = moments(build, grouped, range(2, 3 + len(space)))
    weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
    return build.reshape(normalise(build, grouped, mean_, var, weight, bias, a["eps"], node.dtype), node.shape)


@lowers("layer_norm", aten.layer_norm.default)
def layer_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, rank = value_of(build, a["input"]), len(node.shape)
    inner = list(a["normalized_shape"])
    mean_, var = moments(build, source, range(rank - len(inner), rank))
    weight, bias = optional(build, a["weight"], inner), optional(build, a["bias"], inner)
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype)


@functools.cache
def default_eps(dtype: torch.dtype) -> float:
    """What rms_norm adds where it is told nothing: the epsilon of the type, or for halves in newer versions that of float."""
    small = torch.full((1,), 2.0**-8, dtype=dtype)  # its square is far above float's epsilon and far below those of halves
    in_float = torch.nn.functional.rms_norm(small, (1,)).item() > 0.5
    return torch.finfo(torch.float32 if in_float else dtype).eps


@lowers("rms_norm", aten.rms_norm.default if hasattr(aten, "rms_norm") else "rms_norm")
def rms_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, rank = value_of(build, a["input"]), len(node.shape)
    inner = list(a["normalized_shape"])
    dims = range(rank - len(inner), rank)
    eps = a["eps"] if a["eps"] is not None else default_eps(node.dtype)
    square = build.pointwise("square", "{0} * {0}", [source], torch.float32)
    total = build.reduce("sum", "Sum", square, dims)
    scale = build.pointwise(
        "scale",
        f"rsqrtf({{0}} / {{1}} + {literal(eps, torch.float32)})",
        [total, build.count(source, dims)],
        torch.float32,
        cost=4,
    )
    weight = optional(build, a["weight"], inner)
    names = [source, scale] + ([weight] if weight else [])
    return build.pointwise("", " * ".join(f"{{{i}}}" for i in range(len(names))), names, node.dtype, torch.float32)


@lowers("instance_norm", aten.instance_norm.default)
def instance_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if not a["use_input_stats"] or a["running_mean"] is not None or node.dtype is torch.float64:
        return None
    source, rank = value_of(build, a["input"]), len(node.shape)
    mean_, var = moments(build, source, range(2, rank))
    affine = [node.shape[1], *[1] * (rank - 2)]
    weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype)


def batch_statistics(build: Lowering, source: str) -> tuple[str, str, list[int], list[Dim]]:
    shape = build[source].shape
    dims = [d for d in range(len(shape)) if d != 1]
    mean_, var = moments(build, source, dims)
    return mean_, var, dims, [shape[1], *[1] * (len(shape) - 2)]


@element_of(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
def batch_norm_training_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """0: the result; 3 and 4: the running mean and variance after this batch."""
    source = value_of(build, a["input"])
    if not a["training"] or build[source].dtype is torch.float64 or node.dtype is None:
        return None
    mean_, var, dims, affine = batch_statistics(build, source)
    if i == 0:
        weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
        return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype)
    if i == 1:
        return build.drop(mean_, dims, False)
    if i in (3, 4):
        momentum = a["momentum"]
        old = value_of(build, a["running_mean" if i == 3 else "running_var"])
        batch = build.drop(mean_ if i == 3 else var, dims, False)
        keep, take = literal(1 - momentum, torch.float32), literal(momentum, torch.float32)
        if i == 3:
            return build.pointwise("", f"{keep} * {{0}} + {take} * {{1}}", [old, batch], node.dtype, torch.float32)
        count = build.count(source, dims)
        return build.pointwise(
            "",
            f"{keep} * {{0}} + {take} * {{1}} * ({{2}} / ({{2}} - 1.0f))",
            [old, batch, count],
            node.dtype,
            torch.float32,
        )
    return None


def batch_norm_inference(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["input"])
    if build[source].dtype is torch.float64 or node.dtype is None:
        return None
    shape = build[source].shape
    affine: list[Dim] = [shape[1], *[1] * (len(shape) - 2)]
    mean_, var = optional(build, a["running_mean"], affine), optional(build, a["running_var"], affine)
    weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
    assert mean_ is not None and var is not None
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype)


@lowers("batch_norm", aten.batch_norm.default)
def batch_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if a["training"] and a["running_mean"] is None:
        source = value_of(build, a["input"])
        mean_, var, _, affine = batch_statistics(build, source)
        weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
        assert node.dtype is not None
        return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype)
    return None if a["training"] else batch_norm_inference(build, node, a)


@element_of(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    return batch_norm_inference(build, node, a) if i == 0 else None


# ---- pools


def window_of(a: dict[str, Any], rank: int) -> tuple[tuple[int, ...], ...] | None:
    def many(value: Any, default: Sequence[int]) -> tuple[int, ...]:
        value = list(default) if value is None or value == [] else ([value] if isinstance(value, int) else list(value))
        return tuple(value * rank if len(value) == 1 else value)

    kernel = many(a["kernel_size"], ())
    found = kernel, many(a.get("stride"), kernel), many(a.get("padding"), [0]), many(a.get("dilation"), [1])
    return found if all(isinstance(n, int) for part in found for n in part) else None


def _reaches_outside(
    sizes_in: Sequence[Dim], sizes_out: Sequence[Dim], window: tuple[tuple[int, ...], ...], ceil_mode: bool
) -> bool:
    return ceil_mode or any(window[2])


def max_pool(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    rank = {"1d": 1, "2d": 2, "3d": 3}[next(k for k in ("1d", "2d", "3d") if k in str(a["target"]))]
    window = window_of(a, rank)
    if window is None or not build[source].dtype.is_floating_point or build[source].dtype is torch.float64:
        return None
    clipped = _reaches_outside(build[source].shape[-rank:], node.shape[-rank:], window, a["ceil_mode"])
    return build.add(
        "", Window("max", window[0], window[1], window[2], window[3], clipped), [source], node.shape, node.dtype
    )


@lowers("max_pool", aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
def max_pool_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return max_pool(build, node, {**a, "target": node.target})


@element_of(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """The values alone; where the positions are wanted too, PyTorch computes both at once."""
    return max_pool(build, node, {**a, "target": parent.target}) if i == 0 and only_values(build, parent) else None


def only_values(build: Lowering, pool: Node) -> bool:
    """Nothing uses the positions that a pool gives beside its values."""
    users = build.graph.users()
    elements = [n for n in build.graph.nodes if n.target == "getitem" and n.args[0].name == pool.name]
    return all(not users[n.name] for n in elements if n.args[1] != 0)


@lowers("avg_pool", aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Sum over the window divided by its size, or by how much of it lies inside where padding does not count."""
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    rank = 1 if "1d" in str(node.target) else 2 if "2d" in str(node.target) else 3
    window = window_of(a, rank)
    if window is None or build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    divisor, ceil_mode = a.get("divisor_override"), a["ceil_mode"]
    padded = any(window[2])
    pool = Window("sum", window[0], window[1], window[2], window[3], padded or ceil_mode)
    varies = divisor is None and (ceil_mode or (padded and not a["count_include_pad"]))
    if varies and padded and a["count_include_pad"]:
        return None  # what lies in the padding counts, what lies beyond it does not
    total = build.add("sum", pool, [source], node.shape, torch.float32)
    if varies:
        one = build.expand(build.pointwise("one", "1.0f", [], torch.float32), build[source].shape)
        count = build.add("count", pool, [one], node.shape, torch.float32)
        return build.pointwise("", "{0} / {1}", [total, count], node.dtype, torch.float32, cost=4)
    if divisor is None:
        divisor = int(torch.Size(window[0]).numel())
    exact = divisor & (divisor - 1) == 0  # a power of two: its inverse is no rounding
    text = f"{{0}} * {literal(1.0 / divisor, torch.float32)}" if exact else f"{{0}} / {literal(divisor, torch.float32)}"
    return build.pointwise("", text, [total], node.dtype, torch.float32)


__all__ = ["Size", "compute_type"]
