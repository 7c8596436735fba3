"""Reductions over dimensions: sums, extremes and where they are, softmax, variances and vector norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir import functions as fn
from ..ir import sizes
from ..ir.expr import Expr, differs, product, quotient, select
from ..ir.graph import Node
from .declare import as_in_memory, dims_of, element_of, float_result, lowers, value_of
from .lowering import Lowering
from .registry import aten

SUMMED_IN_FLOAT = (torch.float32, torch.float16, torch.bfloat16)  # and rounded once, to the type of the result


def counts_in(dtype: torch.dtype) -> torch.dtype:
    """What a reduction of this type works in."""
    return torch.float64 if dtype is torch.float64 else torch.float32


@lowers("sum", aten.sum.default, aten.sum.dim_IntList)
def sum_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    source = float_result(build, value_of(build, a["self"]), node.dtype)
    dims = dims_of(a.get("dim"), len(build[source].shape))
    return build.drop(build.reduce("", "Sum", source, dims), dims, a.get("keepdim", False))


@lowers("mean", aten.mean.default, aten.mean.dim)
def mean(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    source = float_result(build, value_of(build, a["self"]), node.dtype)
    dims = dims_of(a.get("dim"), len(build[source].shape))
    total = build.reduce("sum", "Sum", source, dims)
    found = build.pointwise("", quotient, [total, build.count(source, dims, counts_in(node.dtype))], node.dtype, cost=4)
    return build.drop(found, dims, a.get("keepdim", False))


@lowers("extreme", aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def extreme(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype is torch.bool:
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
    """The largest or the smallest of 0 and 1. Alone among reductions, over no dimensions it goes over none: each element for itself."""
    source = value_of(build, a["self"])
    if node.dtype is not torch.bool:
        return None
    dims = [] if a.get("dim") == [] else dims_of(a.get("dim"), len(build[source].shape))
    true = build.pointwise("true", lambda x: select(differs(x, 0), 1.0, 0.0), [source], torch.float32, build[source].dtype)
    number = build.reduce("number", "Max" if "any" in str(node.target) else "Min", true, dims)
    found = build.pointwise("", lambda x: differs(x, 0.0), [number], torch.bool, torch.float32)
    return build.drop(found, dims, a.get("keepdim", False))


@lowers("count_nonzero", aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    dims = dims_of(a.get("dim"), len(build[source].shape))
    one = build.pointwise("one", lambda x: select(differs(x, 0), 1, 0), [source], torch.int64, build[source].dtype)
    return build.drop(build.reduce("", "Sum", one, dims), dims, False)


@lowers("prod", aten.prod.default, aten.prod.dim_int)
def prod(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if node.dtype is None or node.dtype is torch.float64:  # PyTorch's rounding grows with the length, and is part of the reference
        return None
    source = float_result(build, source, node.dtype)
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
        return build.pointwise("", lambda x, pivot, rest: (x - pivot) - rest, [source, largest, log_total], node.dtype)
    total = build.reduce("sum", "LogSumExp", source, dims, "total()")
    inverse = build.pointwise("inverse", fn.inverse_of, [total], torch.float32, cost=4)  # 1 and more, the maximum's own, or NaN
    exponential = build.pointwise("exp", lambda x, pivot: fn.exp(x - pivot), [source, largest], torch.float32, cost=9)
    return build.pointwise("", lambda e, inverse: e * inverse, [exponential, inverse], node.dtype)


def moments(
    build: Lowering, source: str, dims: Sequence[int], correction: float = 0, label: str = ""
) -> tuple[str, str]:
    """(mean, variance) by Welford; variance divides by n − correction."""
    mean_ = build.reduce(f"{label}mean", "Moments", source, dims, "mean")
    squares = build.reduce(f"{label}m2", "Moments", source, dims, "m2")
    count = build.count(source, dims)

    def divided(squares: Expr, count: Expr) -> Expr:
        return squares / (count if correction == 0 else fn.fmax(count - float(correction), 0.0))

    return mean_, build.pointwise(f"{label}var", divided, [squares, count], build[squares].dtype, cost=4)


def _correction(a: dict[str, Any]) -> float:
    if "correction" in a:
        return 1 if a["correction"] is None else a["correction"]
    return 1 if a.get("unbiased", True) else 0


@lowers("var", aten.var.default, aten.var.dim, aten.var.correction, aten.std.default, aten.std.dim, aten.std.correction)
def variance(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype not in SUMMED_IN_FLOAT or node.dtype is None:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    _, found = moments(build, source, dims, _correction(a))
    if "std" in str(node.target):
        found = build.pointwise("std", fn.sqrt, [found], torch.float32, cost=4)
    return build.drop(float_result(build, found, node.dtype), dims, a.get("keepdim", False))


@element_of(aten.var_mean.correction, aten.var_mean.dim, aten.std_mean.correction, aten.std_mean.dim)
def var_mean_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    source = value_of(build, a["self"])
    if build[source].dtype not in SUMMED_IN_FLOAT or node.dtype is None:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    mean_, var = moments(build, source, dims, _correction(a))
    if "std" in str(parent.target) and i == 0:
        var = build.pointwise("std", fn.sqrt, [var], torch.float32, cost=4)
    return build.drop(float_result(build, mean_ if i == 1 else var, node.dtype), dims, a.get("keepdim", False))


@lowers("norm", aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim, aten.norm.Scalar)
def vector_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    source = value_of(build, a["self"])
    order = a.get("ord", a.get("p"))
    order = 2 if order is None else order
    if build[source].dtype not in SUMMED_IN_FLOAT or a.get("dtype") is not None or node.dtype is None:
        return None
    dims = dims_of(a.get("dim"), len(build[source].shape))
    size = build.pointwise("abs", fn.fabs, [source], torch.float32)
    if order == 1:
        found = build.reduce("", "Sum", size, dims)
    elif order == 2:
        square = build.pointwise("square", lambda x: x * x, [source], torch.float32)
        found = build.pointwise("", fn.sqrt, [build.reduce("sum", "Sum", square, dims)], torch.float32, cost=4)
    elif order in (float("inf"), float("-inf")):
        found = build.reduce("", "Max" if order > 0 else "Min", size, dims)
    elif order in (3, 4):
        power = build.pointwise("power", lambda x: product([x] * int(order)), [size], torch.float32)
        found = build.reduce("sum", "Sum", power, dims)
        found = build.pointwise("", fn.cbrt if order == 3 else lambda x: fn.sqrt(fn.sqrt(x)), [found], torch.float32, cost=8)
    elif order == 0:
        counts = build.pointwise("counts", lambda x: select(differs(x, 0.0), 1.0, 0.0), [source], torch.float32)
        found = build.reduce("", "Sum", counts, dims)
    elif isinstance(order, (int, float)):
        power = build.pointwise("power", lambda x: fn.pow_(x, float(order)), [size], torch.float32, cost=16)
        total = build.reduce("sum", "Sum", power, dims)
        found = build.pointwise("", lambda x: fn.pow_(x, 1 / order), [total], torch.float32, cost=16)
    else:
        return None
    return build.drop(float_result(build, found, node.dtype), dims, a.get("keepdim", False))


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
