"""Laws that fold scales and shifts into the weights of a convolution or linear map, where that saves a sweep.

Arithmetic that a kernel of ours does while it reads the result costs nothing there and stays. What is folded is what
would be a sweep over a tensor of its own: between two library calls, or just before the result leaves the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..ir import sizes
from ..ir.graph import Dim, Node, Ref
from .examples import Example, after
from .law import REASSOCIATES, Site, aten, law
from .patterns import (
    AFFINE,
    CONVOLUTIONS,
    HALVES,
    LINEAR,
    TRANSPOSED,
    Convolution,
    Step,
    aligned,
    convolution_at,
    in_memory,
    is_weight,
    number,
    steps_at,
    stored_anyway,
)


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear map: what both have in common."""

    node: Node
    input: Ref
    weight: Ref
    bias: Ref | None
    conv: Convolution | None

    @property
    def out_dim(self) -> int:
        """The channel dimension of its result and of its input."""
        return 1 if self.conv else len(self.node.shape or ()) - 1


def layer_at(site: Site, node: Node) -> Layer | None:
    conv = convolution_at(site, node)
    if conv is not None:
        return Layer(node, conv.input, conv.weight, conv.bias, conv)
    if node.target is not LINEAR or len(site.shape(node.bound()["weight"])) != 2:
        return None
    a = node.bound()
    return Layer(node, a["input"], a["weight"], a["bias"], None)


def per_channel(site: Site, value: Any, rank: int, dim: int, channels: Dim) -> Any:
    """A number as it is, a weight that varies along the channel dimension alone as (channels,) or (1,); else None."""
    if not isinstance(value, Ref):
        return number(value)
    if len(site.shape(value)) > rank or not is_weight(site, value):
        return None
    shape = aligned(site.shape(value), rank)
    if not all(sizes.is_one(size) for d, size in enumerate(shape) if d != dim):
        return None
    if not sizes.is_one(shape[dim]) and not sizes.same(shape[dim], channels):
        return None
    return site.reshape(value, [shape[dim]])


def worth_it(site: Site, layer: Layer, swept: Ref | Node) -> bool:
    """Preparing the weight costs less than the sweep it saves. A half weight would be rounded once more."""
    return 2 * site.count(layer.weight) <= site.count(swept) and layer.node.dtype not in HALVES


def scale_outputs(site: Site, layer: Layer, weight: Ref, scale: Any) -> Ref:
    """The weight with each output channel scaled."""
    if not isinstance(scale, Ref) or sizes.is_one(site.shape(scale)[0]):
        return site.mul(weight, scale)
    conv = layer.conv
    if conv is None or not conv.transposed:
        return site.mul(weight, site.reshape(scale, [site.shape(scale)[0], *[1] * (len(site.shape(weight)) - 1)]))
    ones = [1] * conv.rank
    by_group = site.reshape(weight, [conv.groups, conv.in_group, conv.out_group, *conv.kernel])
    scaled = site.mul(by_group, site.reshape(scale, [conv.groups, 1, conv.out_group, *ones]))
    return site.reshape(scaled, site.shape(weight))


def with_input_channels(site: Site, layer: Layer, value: Any) -> tuple[Ref, Any]:
    """(weight, value) reshaped so that a value for each input channel is broadcast against the weight."""
    weight, conv = layer.weight, layer.conv
    if not isinstance(value, Ref) or conv is None or sizes.is_one(site.shape(value)[0]):
        return weight, value
    ones = [1] * conv.rank
    if conv.transposed:
        return weight, site.reshape(value, [conv.channels_in, 1, *ones])
    by_group = site.reshape(weight, [conv.groups, conv.out_group, conv.in_group, *conv.kernel])
    return by_group, site.reshape(value, [conv.groups, 1, conv.in_group, *ones])


def as_bias(site: Site, layer: Layer, shift: Any) -> Ref:
    """A shift as a vector over the output channels."""
    assert layer.node.shape is not None
    channels, dtype = layer.node.shape[layer.out_dim], layer.node.dtype
    if not isinstance(shift, Ref):
        return site.call(aten.new_full.default, layer.weight, [channels], shift, shape=[channels], dtype=dtype)
    if sizes.is_one(site.shape(shift)[0]) and not sizes.is_one(channels):
        return site.call(aten.expand.default, shift, [channels], shape=[channels], dtype=dtype)
    return shift


def rebuilt(site: Site, layer: Layer, **changed: Any) -> Ref:
    assert layer.node.shape is not None
    return site.again(layer.node, layer.node.shape, changed)


def folded_after(site: Site, layer: Layer, scale: Any, shift: Any) -> Ref:
    """scale * layer(x) + shift; either may be None."""
    weight, bias = layer.weight, layer.bias
    if scale is not None:
        weight = scale_outputs(site, layer, weight, scale)
        bias = None if bias is None else site.mul(bias, scale)
    if shift is not None:
        bias = as_bias(site, layer, shift) if bias is None else site.add(bias, shift)
    return rebuilt(site, layer, weight=weight, bias=bias)


def _pair(first: Any, between: Any, second: Any, *shape: int, applies: bool = True) -> Example:
    """A layer, arithmetic on its result, another layer."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.parameter = first(), second(), nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> Any:
            return self.second(between(self.first(x), self.parameter))

    return Example(Pair, (shape,), applies)


def _conv() -> nn.Module:
    return nn.Conv2d(3, 4, 3)


def _next() -> nn.Module:
    return nn.Conv2d(4, 2, 3)


@law(
    "scale or shift of a layer's result", REASSOCIATES,
    at=AFFINE,
    examples=[
        _pair(_conv, lambda y, p: y * p[:, None, None], _next, 2, 3, 12, 12),
        _pair(_conv, lambda y, p: y + p[:, None, None], _next, 2, 3, 12, 12),
        _pair(lambda: nn.Conv2d(3, 4, 3, bias=False), lambda y, p: 3 - y, _next, 2, 3, 12, 12),
        _pair(lambda: nn.ConvTranspose2d(4, 4, 3, groups=2), lambda y, p: y / p[:, None, None], _next, 2, 4, 12, 12),
        after(lambda: nn.Linear(3, 4), lambda y: y * 2.5, 64, 3),
        _pair(lambda: nn.Linear(3, 4, bias=False), lambda y, p: y - p, lambda: nn.Linear(4, 5), 64, 3),
        _pair(_conv, lambda y, p: torch.relu(y * p[:, None, None]), _next, 2, 3, 12, 12, applies=False),
        _pair(_conv, lambda y, p: y * y.mean((2, 3), keepdim=True), _next, 2, 3, 12, 12, applies=False),
        after(lambda: nn.Linear(3, 64), lambda y: y * 2.5, 2, 3, applies=False),
        after(lambda: nn.Linear(3, 4), lambda y: (y, y * 2.5), 64, 3, applies=False),
    ],
)  # fmt: skip
def fold_after(site: Site) -> Ref | None:
    """s * (w x + b) + t = (s w) x + (s b + t): the weights are scaled, not the result."""
    if site.node.shape is None or not stored_anyway(site, site.node.name):
        return None
    for step in steps_at(site, site.node):
        layer = layer_at(site, site[step.main])
        if layer is None or not site.only_user(layer.node) or not worth_it(site, layer, site.node):
            continue
        shape = layer.node.shape
        assert shape is not None
        other = per_channel(site, step.other, len(shape), layer.out_dim, shape[layer.out_dim])
        if other is None and step.kind != "neg":
            continue
        return folded_after(site, layer, *scale_and_shift(site, step, other))
    return None


def scale_and_shift(site: Site, step: Step, other: Any) -> tuple[Any, Any]:
    if step.kind == "neg":
        return -1.0, None
    if step.kind == "mul":
        return other, None
    if step.kind == "div":
        return (site.unary(aten.reciprocal.default, other) if isinstance(other, Ref) else 1.0 / other), None
    if step.kind == "add":
        return None, other
    negative = site.unary(aten.neg.default, other) if isinstance(other, Ref) else -other
    return (None, negative) if step.kind == "sub" else (-1.0, other)


BATCH_NORMS = {aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default}


def _normed(layer: Any, norm: Any, after_it: Any, *shape: int, training: bool = False, applies: bool = True) -> Example:
    def make() -> nn.Module:
        statistics = norm()
        statistics.running_mean.normal_()
        statistics.running_var.uniform_(0.5, 2)
        return nn.Sequential(layer(), statistics, after_it()).train(training)

    return Example(make, (shape,), applies)


@law(
    "batch norm, not training, of a layer's result", REASSOCIATES,
    at=[aten.batch_norm.default, "getitem"],
    examples=[
        _normed(_conv, lambda: nn.BatchNorm2d(4), _next, 2, 3, 12, 12),
        _normed(lambda: nn.Conv2d(3, 4, 3, bias=False), lambda: nn.BatchNorm2d(4, affine=False), _next, 2, 3, 12, 12),
        _normed(lambda: nn.Linear(3, 4), lambda: nn.BatchNorm1d(4), nn.Identity, 64, 3),
        _normed(_conv, lambda: nn.BatchNorm2d(4), nn.ReLU, 2, 3, 12, 12, applies=False),
        _normed(_conv, lambda: nn.BatchNorm2d(4), _next, 2, 3, 12, 12, training=True, applies=False),
    ],
)  # fmt: skip
def fold_batch_norm(site: Site) -> Ref | None:
    """g (w x + b - m) / sqrt(v + e) + c = (s w) x + (s (b - m) + c) with s = g / sqrt(v + e): into the weights."""
    node = site.node
    if node.target == "getitem":
        node = site.graph[node.args[0].name]
        if node.target not in BATCH_NORMS or site.node.args[1] != 0 or not site.only_user(node):
            return None
    a = node.bound()
    if a.get("training") or a["running_mean"] is None or not stored_anyway(site, site.node.name):
        return None
    layer = layer_at(site, site[a["input"]])
    if layer is None or not site.only_user(layer.node) or not worth_it(site, layer, site.node):
        return None
    if layer.out_dim != 1:  # a batch norm's channels are dimension 1
        return None
    scale = site.unary(aten.rsqrt.default, site.add(a["running_var"], a["eps"]))
    scale = scale if a["weight"] is None else site.mul(scale, a["weight"])
    shift = site.unary(aten.neg.default, site.mul(a["running_mean"], scale))
    shift = shift if a["bias"] is None else site.add(shift, a["bias"])
    return folded_after(site, layer, scale, shift)


def _before(function: Any, layer: Any, *shape: int, applies: bool = True) -> Example:
    class Before(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.parameter = layer(), nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(function(x, self.parameter))

    return Example(Before, (shape,), applies)


@law(
    "scale or shift before a layer", REASSOCIATES,
    at=CONVOLUTIONS | TRANSPOSED | {LINEAR},
    examples=[
        _before(lambda x, p: x * 0.5, lambda: nn.Conv2d(3, 4, 3, padding=1), 2, 3, 12, 12),
        _before(lambda x, p: x * p[:, None, None], lambda: nn.Conv2d(4, 4, 3, groups=2), 2, 4, 12, 12),
        _before(lambda x, p: x / p[:, None, None], lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), 2, 4, 12, 12),
        _before(lambda x, p: x - p, lambda: nn.Linear(4, 5), 64, 4),
        _before(lambda x, p: p[:, None, None] - x, lambda: nn.Conv2d(4, 4, 3, groups=2, bias=False), 2, 4, 12, 12),
        _before(lambda x, p: x + 1, lambda: nn.Conv2d(3, 4, 3), 2, 3, 12, 12),
        _before(lambda x, p: x + 1, lambda: nn.Conv2d(3, 4, 3, padding=1), 2, 3, 12, 12, applies=False),
        _before(lambda x, p: x + 1, lambda: nn.ConvTranspose2d(3, 4, 3), 2, 3, 12, 12, applies=False),
        _before(lambda x, p: torch.relu(x) * 2, lambda: nn.Conv2d(3, 4, 3), 2, 3, 12, 12, applies=False),
        _before(lambda x, p: x * x.amax((2, 3), keepdim=True), lambda: nn.Conv2d(3, 4, 3), 2, 3, 12, 12, applies=False),
    ],
)  # fmt: skip
def fold_before(site: Site) -> Ref | None:
    """w (s x + t) + b = (w s) x + (w t + b): the weights are scaled, not the input."""
    layer = layer_at(site, site.node)
    before = site[layer.input] if layer else None
    if layer is None or before is None or before.shape is None or not site.only_user(before):
        return None
    if not worth_it(site, layer, before):
        return None
    channel = 1 if layer.conv else len(before.shape) - 1
    for step in steps_at(site, before):
        own = site.shape(step.main)
        whole = len(own) == len(before.shape) and all(map(sizes.same, own, before.shape))
        if not whole or not in_memory(site, step.main):
            continue
        other = per_channel(site, step.other, len(before.shape), channel, before.shape[channel])
        if other is None and step.kind != "neg":
            continue
        if not step.scales and layer.conv and (layer.conv.transposed or any(layer.conv.padding)):
            continue  # what is padded is not shifted
        return folded_before(site, layer, step.main, *scale_and_shift(site, step, other))
    return None


def folded_before(site: Site, layer: Layer, input: Ref, scale: Any, shift: Any) -> Ref:
    """layer(scale * input + shift); either may be None."""
    bias = layer.bias
    if shift is not None:
        weight, value = with_input_channels(site, layer, shift)
        products = site.mul(weight, value)
        rank = len(site.shape(products))
        summed = range(1, rank) if rank == len(site.shape(layer.weight)) else range(2, rank)
        moved = site.sum(products, list(summed))
        assert layer.node.shape is not None
        moved = site.reshape(moved, [layer.node.shape[layer.out_dim]])
        bias = moved if bias is None else site.add(moved, bias)
    weight = layer.weight
    if scale is not None:
        wide, value = with_input_channels(site, layer, scale)
        weight = site.reshape(site.mul(wide, value), site.shape(layer.weight))
    return rebuilt(site, layer, input=input, weight=weight, bias=bias)
