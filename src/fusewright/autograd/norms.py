"""Norms in terms of smaller operators, and their derivatives. PyTorch's own formulas multiply the input before they subtract its mean, and
look at it more often. Where forward has saved a norm's statistics, the norm is computed from these (`with_statistics`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..ir.graph import Node

aten = torch.ops.aten



def _whitened(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x without its mean and of variance 1, mean, 1 / standard deviation)"""
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    return (x - mean) * rstd, mean, rstd


def _at_channels(weight: Tensor | None, rank: int) -> Tensor | float:
    return 1.0 if weight is None else weight.reshape([1, -1] + [1] * (rank - 2))


def _wide(x: Tensor | None) -> Any:
    """Arithmetic of half types is done in float."""
    return x.float() if x is not None and x.dtype in (torch.float16, torch.bfloat16) else x


def batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
    dims = [d for d in range(x.dim()) if d != 1]
    if training:
        white, mean, rstd = _whitened(_wide(x), dims, eps)
        saved = mean.reshape(-1), rstd.reshape(-1)
    else:
        rstd = torch.rsqrt(_wide(var) + eps)
        white = (_wide(x) - _at_channels(_wide(mean), x.dim())) * _at_channels(rstd, x.dim())
        saved = x.new_empty(0), x.new_empty(0)
    result = white * _at_channels(_wide(weight), x.dim())
    result = result + _at_channels(_wide(bias), x.dim()) if bias is not None else result
    return result.to(x.dtype), *saved


def batch_norm_backward(
    dy: Tensor, x: Tensor, weight: Any, running_mean: Any, running_var: Any, mean: Any, rstd: Any, train: bool, eps: float, mask: list[bool]
) -> Any:
    dims = [d for d in range(x.dim()) if d != 1]
    if not train:
        mean, rstd = _wide(running_mean), torch.rsqrt(_wide(running_var) + eps)
    g, scale = _wide(dy), _at_channels(_wide(weight), x.dim())
    rstd = _at_channels(rstd, x.dim())
    white = (_wide(x) - _at_channels(mean, x.dim())) * rstd
    dweight, dbias = (g * white).sum(dims, keepdim=True), g.sum(dims, keepdim=True)
    count = x.numel() // x.shape[1]
    centred = g - dbias / count - white * (dweight / count) if train else g
    dx = centred * (rstd * scale)
    kind = x.dtype if weight is None else weight.dtype
    return dx.to(x.dtype) if mask[0] else None, dweight.reshape(-1).to(kind), dbias.reshape(-1).to(kind)


def batch_norm_eval(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    return batch_norm(x, weight, bias, mean, var, False, momentum, eps)


def group_norm(x: Tensor, weight: Any, bias: Any, n: int, c: int, positions: int, groups: int, eps: float) -> Any:
    grouped = _wide(x).reshape(n, groups, c // groups, positions)
    white, mean, rstd = _whitened(grouped, [2, 3], eps)
    result = white.reshape(x.shape) * _at_channels(_wide(weight), x.dim())
    result = result + _at_channels(_wide(bias), x.dim()) if bias is not None else result
    return result.to(x.dtype), mean.reshape(n, groups).to(x.dtype), rstd.reshape(n, groups).to(x.dtype)


def group_norm_backward(
    dy: Tensor, x: Tensor, mean: Any, rstd: Any, weight: Any, n: int, c: int, positions: int, groups: int, mask: list[bool]
) -> Any:
    """Sums over positions first: of them the groups' sums and the weights' gradients are made without another look. The gradient of x is
    made in its own shape: what reads it, the sum for a bias, then goes over the same elements."""
    each = c // groups

    def of_channels(t: Tensor) -> Tensor:
        return t.expand(n, groups, each, 1).reshape([n, c] + [1] * (x.dim() - 2))

    g, wide = _wide(dy).reshape(n, groups, each, positions), _wide(x).reshape(n, groups, each, positions)
    rstd = _wide(rstd).reshape(n, groups, 1, 1)
    white = (wide - _wide(mean).reshape(n, groups, 1, 1)) * rstd
    products, sums = (g * white).sum(3, keepdim=True), g.sum(3, keepdim=True)
    scale = 1.0 if weight is None else _wide(weight).reshape(1, groups, each, 1)
    count = each * positions
    of_products, of_sums = ((t * scale).sum(2, keepdim=True) / count for t in (products, sums))
    mean = _wide(mean).reshape(n, groups, 1, 1)
    white = (_wide(x) - of_channels(mean)) * of_channels(rstd)
    dx = (_wide(dy) * _at_channels(_wide(weight), x.dim()) - of_channels(of_sums) - white * of_channels(of_products)) * of_channels(rstd)
    kind = x.dtype if weight is None else weight.dtype
    dweight, dbias = (t.sum(0).reshape(c).to(kind) for t in (products, sums))
    return dx.to(x.dtype) if mask[0] else None, dweight, dbias


def layer_norm(x: Tensor, shape: list[int], weight: Any, bias: Any, eps: float) -> Any:
    dims = list(range(x.dim() - len(shape), x.dim()))
    white, mean, rstd = _whitened(_wide(x), dims, eps)
    result = white if weight is None else white * _wide(weight)
    result = result if bias is None else result + _wide(bias)
    return result.to(x.dtype), mean, rstd


def layer_norm_backward(dy: Tensor, x: Tensor, shape: list[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: list[bool]) -> Any:
    outer = list(range(x.dim() - len(shape)))
    inner = list(range(len(outer), x.dim()))
    g = _wide(dy)
    white = (_wide(x) - mean) * rstd
    scaled = g if weight is None else g * _wide(weight)
    dx = (scaled - scaled.mean(inner, keepdim=True) - white * (scaled * white).mean(inner, keepdim=True)) * rstd
    dweight = (g * white).sum(outer).to(weight.dtype) if mask[1] else None
    dbias = g.sum(outer).to(bias.dtype) if mask[2] else None
    return dx.to(x.dtype) if mask[0] else None, dweight, dbias


NORMS: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: batch_norm,
    aten._native_batch_norm_legit_no_training.default: batch_norm_eval,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
}


# ---- of statistics that are there


@dataclass(frozen=True)
class Norm:
    """A norm of x by a mean and a reciprocal deviation that lie beside it, of the dimensions that they are of."""

    result: Callable[[Tensor, Any, Any, Tensor, Tensor], Tensor]  # of x, weight, bias, mean, 1 / deviation
    gradients: Callable[..., Any]  # of the result's gradient, the same five, and which of the first three are asked for


class Normalised(torch.autograd.Function):
    """A norm of x by statistics of x."""

    @staticmethod
    def forward(ctx: Any, norm: Norm, x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor) -> Tensor:
        ctx.norm, ctx.of = norm, (x, weight, bias, mean, rstd)
        return norm.result(x, weight, bias, mean, rstd)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        wanted = list(ctx.needs_input_grad[1:4])
        found = ctx.norm.gradients(gradient, *ctx.of, wanted)
        return (None, *(g if asked else None for g, asked in zip(found, wanted, strict=True)), None, None)


def with_statistics(node: Node, given: tuple[Any, ...], named: dict[str, Any], mean: Tensor, rstd: Tensor) -> Tensor:
    """The result of a norm of these arguments, in the order of its schema and by name."""
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    a = {**node.bound(), **dict(zip(names, given, strict=False)), **named}
    x, weight, bias = a["input"], a["weight"], a["bias"]
    result: Tensor = Normalised.apply(NORM_OF[node.target](x, a), x, weight, bias, mean, rstd)
    return result


def group_norm_of(x: Tensor, a: dict[str, Any]) -> Norm:
    n, c, groups = x.shape[0], x.shape[1], a["num_groups"]
    positions = x.numel() // (n * c)

    def of_channels(t: Tensor) -> Tensor:
        return t.reshape(n, groups, 1, 1).expand(n, groups, c // groups, 1).reshape([n, c] + [1] * (x.dim() - 2))

    def result(x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor) -> Tensor:
        white = (x - of_channels(mean)) * of_channels(rstd) * _at_channels(weight, x.dim())
        return white if bias is None else white + _at_channels(bias, x.dim())

    def gradients(dy: Tensor, x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor, wanted: list[bool]) -> Any:
        return group_norm_backward(dy, x, mean, rstd, weight, n, c, positions, groups, wanted)

    return Norm(result, gradients)


def layer_norm_of(x: Tensor, a: dict[str, Any]) -> Norm:
    def result(x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor) -> Tensor:
        white = (x - mean) * rstd
        white = white if weight is None else white * weight
        return white if bias is None else white + bias

    def gradients(dy: Tensor, x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor, wanted: list[bool]) -> Any:
        return layer_norm_backward(dy, x, a["normalized_shape"], mean, rstd, weight, bias, wanted)

    return Norm(result, gradients)


def batch_norm_of(x: Tensor, a: dict[str, Any]) -> Norm:
    def result(x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor) -> Tensor:
        white = (x - mean) * rstd * _at_channels(weight, x.dim())
        return white if bias is None else white + _at_channels(bias, x.dim())

    def gradients(dy: Tensor, x: Tensor, weight: Any, bias: Any, mean: Tensor, rstd: Tensor, wanted: list[bool]) -> Any:
        return batch_norm_backward(dy, x, weight, None, None, mean, rstd, True, a["eps"], wanted)

    return Norm(result, gradients)


NORM_OF: dict[Any, Callable[[Tensor, dict[str, Any]], Norm]] = {
    aten.group_norm.default: group_norm_of,
    aten.layer_norm.default: layer_norm_of,
    aten.native_batch_norm.default: batch_norm_of,  # a plain form
}
