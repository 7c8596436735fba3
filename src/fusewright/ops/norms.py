"""Norms: statistics, then one pointwise pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..ir import functions as fn
from ..ir.expr import Expr, product, total
from ..ir.graph import Dim, Node
from .declare import element_of, lowers, value_of
from .lowering import Lowering
from .reductions import moments
from .registry import aten


def normalise(
    build: Lowering,
    source: str,
    mean_: str,
    var: str,
    weight: str | None,
    bias: str | None,
    eps: float,
    dtype: torch.dtype,
    of: str,
) -> str:
    """`of` is the node whose derivative is one of these statistics, where it is."""
    rstd = build.pointwise("rstd", lambda var: fn.rsqrt(var + float(eps)), [var], torch.float32, cost=4)
    if of:
        build.statistics[of] = mean_, rstd
    scale = rstd if weight is None else build.pointwise("scale", lambda rstd, weight: rstd * weight, [rstd, weight], torch.float32)

    def normalised(x: Expr, mean: Expr, scale: Expr, *shift: Expr) -> Expr:
        return total([(x - mean) * scale, *shift])

    names = [source, mean_, scale, *([bias] if bias is not None else [])]
    return build.pointwise("", normalised, names, dtype, torch.float32, cost=4)


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
    return build.reshape(normalise(build, grouped, mean_, var, weight, bias, a["eps"], node.dtype, node.name), node.shape)


@lowers("layer_norm", aten.layer_norm.default)
def layer_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, rank = value_of(build, a["input"]), len(node.shape)
    inner = list(a["normalized_shape"])
    mean_, var = moments(build, source, range(rank - len(inner), rank))
    weight, bias = optional(build, a["weight"], inner), optional(build, a["bias"], inner)
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype, node.name)


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
    square = build.pointwise("square", lambda x: x * x, [source], torch.float32)
    squares = build.reduce("sum", "Sum", square, dims)
    scale = build.pointwise(
        "scale",
        lambda squares, count: fn.rsqrt(squares / count + float(eps)),
        [squares, build.count(source, dims)],
        torch.float32,
        cost=4,
    )
    weight = optional(build, a["weight"], inner)
    names = [source, scale] + ([weight] if weight else [])
    return build.pointwise("", lambda *factors: product(factors), names, node.dtype, torch.float32)


@lowers("instance_norm", aten.instance_norm.default)
def instance_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    if not a["use_input_stats"] or a["running_mean"] is not None or node.dtype is torch.float64:
        return None
    source, rank = value_of(build, a["input"]), len(node.shape)
    mean_, var = moments(build, source, range(2, rank))
    affine = [node.shape[1], *[1] * (rank - 2)]
    weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype, "")


def batch_statistics(build: Lowering, source: str) -> tuple[str, str, list[int], list[Dim]]:
    shape = build[source].shape
    dims = [d for d in range(len(shape)) if d != 1]
    mean_, var = moments(build, source, dims)
    return mean_, var, dims, [shape[1], *[1] * (len(shape) - 2)]


@element_of(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
def batch_norm_training_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """0: the result; 1 and 2: the batch's mean and 1 / deviation; 3 and 4: the running mean and variance after this batch."""
    source = value_of(build, a["input"])
    if not a["training"] or build[source].dtype is torch.float64 or node.dtype is None:
        return None
    mean_, var, dims, affine = batch_statistics(build, source)
    if i == 0:
        weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
        return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype, parent.name)
    if i == 1:
        found = build.drop(mean_, dims, False)
        return found if build[found].dtype is node.dtype else build.pointwise("", lambda mean: mean, [found], node.dtype, torch.float32)
    if i == 2:
        eps = float(a["eps"])
        batch = build.drop(var, dims, False)
        return build.pointwise("", lambda var: fn.rsqrt(var + eps), [batch], node.dtype, torch.float32, cost=4)
    if i in (3, 4):
        momentum = a["momentum"]
        old = value_of(build, a["running_mean" if i == 3 else "running_var"])
        batch = build.drop(mean_ if i == 3 else var, dims, False)
        keep, take = float(1 - momentum), float(momentum)
        if i == 3:
            return build.pointwise("", lambda old, new: keep * old + take * new, [old, batch], node.dtype, torch.float32)
        count = build.count(source, dims)
        return build.pointwise(
            "",
            lambda old, new, count: keep * old + take * new * (count / (count - 1.0)),
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
    return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype, "")


@lowers("batch_norm", aten.batch_norm.default)
def batch_norm(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if a["training"] and a["running_mean"] is None:
        source = value_of(build, a["input"])
        mean_, var, _, affine = batch_statistics(build, source)
        weight, bias = optional(build, a["weight"], affine), optional(build, a["bias"], affine)
        assert node.dtype is not None
        return normalise(build, source, mean_, var, weight, bias, a["eps"], node.dtype, "")
    return None if a["training"] else batch_norm_inference(build, node, a)


@element_of(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    return batch_norm_inference(build, node, a) if i == 0 else None
