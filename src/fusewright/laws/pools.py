"""Laws of pools and extremes: an average pool goes into the weights, a monotone function waits for the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import nn
from torch.nn import functional as F

from ..ir import sizes
from ..ir.graph import Node, Ref
from ..ops import registry
from ..ops.declare import dims_of
from ..ops.pools import window_of
from .examples import after, of, of_two
from .law import NONFINITE_KIND, REASSOCIATES, Site, aten, law
from .patterns import (
    AVG_POOLS,
    HALVES,
    LINEAR,
    RESHAPES,
    Convolution,
    Step,
    affine_at,
    aligned,
    constant_along,
    convolution_at,
    convolve,
    is_float,
    is_weight,
    number,
    product_at,
    spans,
    step_again,
    steps_at,
    without_dims,
)

# ---- average pools


def rank_of_pool(node: Node) -> int:
    return int(str(node.target).split("pool")[1][0])


def plain_avg_pool(site: Site, conv: Convolution) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(window, stride) of the average pool at the node, where every window lies whole inside its operand."""
    window = window_of(site.bound, conv.rank)
    if window is None or rank_of_pool(site.node) != conv.rank:
        return None
    kernel, stride, padding, _ = window
    if any(padding) or site.bound["ceil_mode"] or site.bound.get("divisor_override") is not None:
        return None
    return kernel, stride


@law(
    "average pool of a pointwise convolution", REASSOCIATES,
    at=AVG_POOLS,
    examples=[
        after(lambda: nn.Conv2d(3, 8, 1), lambda y: F.avg_pool2d(y, 2), 2, 3, 8, 9),
        after(lambda: nn.Conv1d(4, 8, 1, groups=2), lambda y: F.avg_pool1d(y, 3, 2), 2, 4, 9),
        after(lambda: nn.Conv2d(3, 8, 1), lambda y: F.avg_pool2d(y, 3, 1), 2, 3, 8, 9, applies=False),
        after(lambda: nn.Conv2d(3, 8, 1), lambda y: F.avg_pool2d(y, 2, padding=1), 2, 3, 8, 8, applies=False),
        after(lambda: nn.Conv2d(3, 8, 1), lambda y: F.avg_pool2d(y, 2, ceil_mode=True), 2, 3, 8, 9, applies=False),
        after(lambda: nn.Conv2d(3, 8, 1), lambda y: (y, F.avg_pool2d(y, 2)), 2, 3, 8, 8, applies=False),
    ],
)  # fmt: skip
def pool_before_pointwise(site: Site) -> Ref | None:
    """avg_pool(w x + b) = w avg_pool(x) + b for a convolution with one tap: fewer positions to convolve."""
    source = site[site.bound["self"]]
    conv = convolution_at(site, source)
    if conv is None or not site.only_user(source) or plain_avg_pool(site, conv) is None or site.node.shape is None:
        return None
    if any(k != 1 for k in conv.kernel + conv.stride) or any(conv.padding + conv.output_padding):
        return None
    if 2 * site.count(site.node) > site.count(source):
        return None
    shape = [*site.shape(conv.input)[:2], *site.node.shape[2:]]
    pooled = site.again(site.node, shape, {"self": conv.input})
    return site.again(source, site.node.shape, {"input": pooled})


@law(
    "average pool of a convolution", REASSOCIATES, NONFINITE_KIND,
    at=AVG_POOLS,
    examples=[
        after(lambda: nn.Conv2d(3, 8, 3, padding=1), lambda y: F.avg_pool2d(y, 2), 2, 3, 8, 9),
        after(lambda: nn.Conv2d(4, 8, 3, groups=2), lambda y: F.avg_pool2d(y, (2, 3), (2, 2)), 2, 4, 9, 12),
        after(lambda: nn.Conv1d(3, 8, 5, stride=2), lambda y: F.avg_pool1d(y, 2), 4, 3, 23),
        after(lambda: nn.Conv3d(2, 3, 3, bias=False), lambda y: F.avg_pool3d(y, 2), 1, 2, 7, 6, 8),
        after(lambda: nn.Conv2d(3, 8, (3, 1), stride=(1, 2)), lambda y: F.avg_pool2d(y, 2), 2, 3, 8, 9),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y, 3, 1), 2, 3, 8, 9, applies=False),
        after(lambda: nn.Conv1d(3, 8, 2, stride=3), lambda y: F.avg_pool1d(y, 2), 9, 3, 23, applies=False),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y, 2, padding=1), 2, 3, 8, 8, applies=False),
        after(lambda: nn.ConvTranspose2d(3, 8, 3), lambda y: F.avg_pool2d(y, 2), 2, 3, 8, 8, applies=False),
    ],
)  # fmt: skip
def pool_into_convolution(site: Site) -> Ref | None:
    """avg_pool(conv(x, w)) = conv(x, w') at the product of the strides, w'[t] = mean_p w[t - p]: fewer products."""
    source = site[site.bound["self"]]
    conv = convolution_at(site, source)
    if conv is None or conv.transposed or not site.only_user(source) or site.node.shape is None:
        return None
    pool = plain_avg_pool(site, conv)
    if pool is None or source.dtype in HALVES:
        return None
    window, stride = pool
    # Taps of the composed kernel: all of 0 … s (P - 1) + K - 1, or, for a kernel of one tap, s apart.
    dense = all(d == 1 or k == 1 for d, k in zip(conv.dilation, conv.kernel, strict=True))
    gaps = any(s > k > 1 for s, k in zip(conv.stride, conv.kernel, strict=True))
    if not dense or gaps:
        return None  # a tap with weight 0 would still make a NaN of an Inf
    kernel = [p if k == 1 else s * (p - 1) + k for p, s, k in zip(window, conv.stride, conv.kernel, strict=True)]
    before = site.count(source) * prod(conv.kernel)
    now = site.count(site.node) * prod(kernel)
    if 4 * now > 3 * before or 2 * site.count(conv.weight) > site.count(source):
        return None
    weight = conv.weight
    for dim in range(conv.rank):
        weight = spread_taps(site, weight, 2 + dim, conv.kernel[dim], conv.stride[dim], window[dim])
    weight = site.divide(weight, prod(window))
    composed = Convolution(
        **{
            **vars(conv),
            "stride": tuple(s * q for s, q in zip(conv.stride, stride, strict=True)),
            "dilation": tuple(s if k == 1 else 1 for s, k in zip(conv.stride, conv.kernel, strict=True)),
        }
    )
    return convolve(site, composed, conv.input, weight, conv.bias, site.node.shape, range(conv.rank))


def spread_taps(site: Site, weight: Ref, dim: int, taps: int, stride: int, window: int) -> Ref:
    """sum over p < window of the weight moved by p * stride along `dim`; a single tap is repeated, dilated."""
    shape, dtype = site.shape(weight), site[weight].dtype
    if window == 1:
        return weight
    if taps == 1:
        wide = [window if d == dim else size for d, size in enumerate(shape)]
        return site.call(aten.expand.default, weight, wide, shape=wide, dtype=dtype)
    total: Ref | None = None
    for move in range(window):
        front, back = move * stride, (window - 1 - move) * stride
        pads = [0, 0] * (len(shape) - dim - 1) + [front, back]
        wide = [taps + front + back if d == dim else size for d, size in enumerate(shape)]
        moved = site.call(aten.constant_pad_nd.default, weight, pads, shape=wide, dtype=dtype)
        total = moved if total is None else site.add(total, moved)
    assert total is not None
    return total


@law(
    "average pool over a linear map's outputs", REASSOCIATES, NONFINITE_KIND,
    at=[aten.avg_pool1d.default],
    examples=[
        after(lambda: nn.Linear(6, 9), lambda y: F.avg_pool1d(y.unsqueeze(1), 4).squeeze(1), 16, 6),
        after(lambda: nn.Linear(6, 8, bias=False), lambda y: F.avg_pool1d(y, 2), 16, 3, 6),
        after(lambda: nn.Linear(6, 8), lambda y: F.avg_pool1d(y.view(-1, 1, 8), 2).view(-1, 3, 4), 16, 3, 6),
        after(lambda: nn.Linear(6, 8), lambda y: F.gelu(F.avg_pool1d(y.unsqueeze(1), 2)).max(2)[0], 16, 6),
        after(lambda: nn.Linear(6, 8), lambda y: F.avg_pool1d(y, 2, 1), 16, 3, 6, applies=False),
        after(lambda: nn.Linear(6, 8), lambda y: F.avg_pool1d(y, 2), 1, 3, 6, applies=False),
        after(lambda: nn.Linear(6, 8), lambda y: (y, F.avg_pool1d(y, 2)), 16, 3, 6, applies=False),
    ],
)  # fmt: skip
def pool_into_linear(site: Site) -> Ref | None:
    """avg_pool(x w^T + b) over the outputs = x avg_pool(w)^T + avg_pool(b): the weights are averaged, not every row."""
    view = site[site.bound["self"]]
    source = same_rows(site, view)
    if source.target is not LINEAR or not site.only_user(view) or not site.only_user(source):
        return None
    product, window = product_at(site, source), window_of(site.bound, 1)
    if product is None or window is None or source.shape is None or site.node.shape is None:
        return None
    (size,), stride, padding, _ = window
    outputs, pooled = source.shape[-1], site.node.shape[-1]
    along_outputs = view.shape is not None and sizes.same(view.shape[-1], outputs)
    if not along_outputs or stride != (size,) or any(padding) or site.bound["ceil_mode"] or source.dtype in HALVES:
        return None
    rows = site.count(source) // site.hint(outputs)
    if rows < 4 or not isinstance(pooled, int) or not isinstance(outputs, int):
        return None  # averaging the weights would cost as much as the product
    inner = site.shape(product.right)[1]
    weight = site.reshape(site.slice(product.right, 0, 0, pooled * size), [pooled, size, inner])
    weight = site.divide(site.sum(weight, [1]), size)
    bias = product.bias
    if bias is not None:
        bias = site.divide(site.sum(site.reshape(site.slice(bias, 0, 0, pooled * size), [pooled, size]), [1]), size)
    shape = [*source.shape[:-1], pooled]
    return site.reshape(site.call(LINEAR, product.left, weight, bias, shape=shape), site.node.shape)


def same_rows(site: Site, view: Node) -> Node:
    """What a view has the rows of, in another number of dimensions; else itself."""
    source = site.graph[view.inputs[0]] if view.target in RESHAPES else view
    whole = bool(view.shape and source.shape) and sizes.same(view.shape[-1], source.shape[-1])  # type: ignore[index]
    return source if whole else view


@law(
    "scale or shift behind an average pool, where a layer takes the pool", REASSOCIATES,
    at=AVG_POOLS,
    examples=[
        after(lambda: nn.Linear(6, 9), lambda y: F.avg_pool1d((y / 3).unsqueeze(1), 4).squeeze(1), 16, 6),
        after(lambda: nn.Linear(6, 8), lambda y: F.avg_pool1d((1 - y).view(-1, 1, 8), 2), 16, 6),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y - 0.5, 2), 2, 3, 8, 9),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y + torch.arange(8.0).view(8, 1, 1), 2), 2, 3, 8, 9),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y - 0.5, 2, padding=1), 2, 3, 8, 9, applies=False),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y + 1, 2, divisor_override=3), 2, 3, 8, 9, applies=False),
        after(lambda: nn.Conv2d(3, 8, 3), lambda y: F.avg_pool2d(y + torch.arange(6.0), 2), 2, 3, 8, 8, applies=False),
        after(lambda: nn.Linear(6, 8), lambda y: F.avg_pool1d((y + torch.arange(8.0)).unsqueeze(1), 2), 16, 6, applies=False),
        of(lambda x: F.avg_pool1d(x - 1000, 2), 2, 3, 8, applies=False),
    ],
)  # fmt: skip
def shift_after_pool(site: Site) -> Ref | None:
    """avg_pool(s y + t) = s avg_pool(y) + t: then the pool goes into the layer that gives y."""
    view, window = site[site.bound["self"]], window_of(site.bound, rank_of_pool(site.node))
    source = same_rows(site, view)
    if window is None or any(window[2]) or site.bound.get("divisor_override") is not None or site.node.shape is None:
        return None
    if not site.only_user(view) or not site.only_user(source) or source.shape is None or view.shape is None:
        return None
    rank, viewed = len(source.shape), view is not source
    pooled = range(rank - len(window[0]), rank)
    for step in steps_at(site, source):
        layer = site[step.main]
        if (layer.target is not LINEAR and convolution_at(site, layer) is None) or not site.only_user(layer):
            continue
        if layer.shape is None or not all(map(sizes.same, layer.shape, source.shape)) or not is_weight(site, step.other):
            continue
        one = not isinstance(step.other, Ref) or all(map(sizes.is_one, site.shape(step.other)))
        if not one and (viewed or not constant_along(site, step.other, rank, pooled)):
            continue
        seen = site.reshape(step.main, view.shape) if viewed else step.main
        other = site.reshape(step.other, []) if viewed and isinstance(step.other, Ref) else step.other
        return step_again(site, step, site.again(site.node, site.node.shape, {"self": seen}), other)
    return None


# ---- monotone functions and extremes


@dataclass(frozen=True)
class Extreme:
    """A maximum or minimum over windows or whole dimensions, whose indices nobody uses."""

    call: Node  # the node, or the call it is the first element of
    source: Node
    largest: bool
    dims: list[int]
    keepdim: bool
    pool: bool


WHOLE = {
    aten.amax.default: True, aten.amin.default: False, aten.max.default: True, aten.min.default: False,
    aten.max.dim: True, aten.min.dim: False,
}  # fmt: skip
OPPOSITE = {
    aten.amax.default: aten.amin.default, aten.max.default: aten.min.default, aten.max.dim: aten.min.dim,
    aten.amin.default: aten.amax.default, aten.min.default: aten.max.default, aten.min.dim: aten.max.dim,
}  # fmt: skip
MAX_POOLS = {
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default,
    aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default,
}  # fmt: skip


def extreme_at(site: Site) -> Extreme | None:
    call = site.node
    if call.target == "getitem":
        call = site.graph[call.args[0].name]
        if site.node.args[1] != 0 or not site.only_user(call):
            return None  # its indices are used
    if call.target not in WHOLE and call.target not in MAX_POOLS:
        return None
    a = call.bound()
    source = site[a["self"]]
    if not is_float(source) or not site.only_user(source) or site.node.shape is None or source.shape is None:
        return None
    rank = len(source.shape)
    if call.target in MAX_POOLS:
        window = window_of(a, rank_of_pool(call))
        if window is None or (any(window[2]) and any(d != 1 for d in window[3])):
            return None  # a window may then lie outside altogether
        return Extreme(call, source, True, list(range(rank - len(window[0]), rank)), True, True)
    return Extreme(call, source, WHOLE[call.target], dims_of(a.get("dim"), rank), bool(a.get("keepdim")), False)


def extreme_again(site: Site, found: Extreme, ref: Ref, flip: bool) -> Ref:
    """The same extreme (or the opposite one) of another value."""
    call, a = found.call, found.call.bound()
    assert site.node.shape is not None and isinstance(call.target, torch._ops.OpOverload)
    target = OPPOSITE[call.target] if flip else call.target
    schema = call.target._schema.arguments
    args = [ref if s.name == "self" else a[s.name] for s in schema]
    if site.node.target == "getitem":
        dtype = site[ref].dtype
        assert dtype is not None
        return site.element(target, *args, index=0, shape=site.node.shape, dtype=dtype)
    return site.call(target, *args, shape=site.node.shape, dtype=site[ref].dtype)


# Where a function is defined; outside it gives NaN, which a maximum would lose.
DOMAINS = {
    "sqrt": (0.0, registry.INF), "log": (0.0, registry.INF), "log2": (0.0, registry.INF), "log10": (0.0, registry.INF),
    "log1p": (-1.0, registry.INF), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0),
}  # fmt: skip


def direction_of(site: Site, node: Node, largest: bool) -> int:
    """+1 where the function at this node never decreases, -1 where it never increases, 0 where that is not known.

    One with a valley (silu, gelu) does neither, unless all values are proven to lie on one side of it."""
    record = registry.find(node, site.graph)
    if record is None or not record.pointwise or record.name == "sign":  # the sign of NaN is 0
        return 0
    a = node.bound()
    operands = [v for v in a.values() if isinstance(v, Ref)]
    if len(operands) != 1 or site[operands[0]].dtype != node.dtype:
        return 0
    if record.name in DOMAINS:
        (low, high), (least, most) = DOMAINS[record.name], site.range(operands[0])
        inside = low <= least and most <= high
        found_by_least = not largest and high == registry.INF and record.monotone > 0  # the least one shows it
        return record.monotone if inside or found_by_least else 0
    if record.monotone:
        return record.monotone
    if record.valley is not None:
        least, most = site.range(operands[0])
        return 1 if least >= record.valley[1] else -1 if most <= record.valley[0] else 0
    rising = {
        "clamp": True,
        "clamp_min": True,
        "clamp_max": True,
        "leaky_relu": a.get("negative_slope", 0) >= 0,
        "elu": all((number(a.get(k, 1)) or 0.0) > 0 for k in ("alpha", "scale", "input_scale")),
        "celu": (number(a.get("alpha")) or 0.0) > 0,
    }
    return 1 if rising.get(record.name, False) else 0


@law(
    "monotone function after a maximum", REASSOCIATES,
    at=[*WHOLE, *MAX_POOLS, "getitem"],
    examples=[
        of(lambda x: F.max_pool2d(torch.tanh(x), 2), 2, 3, 6, 8),
        of(lambda x: F.max_pool1d(F.leaky_relu(x), 3, 2, 1), 2, 3, 9),
        of(lambda x: F.hardtanh(x).amax((2, 3)), 2, 3, 4, 5),
        of(lambda x: torch.sigmoid(x).max(1)[0], 4, 5),
        of(lambda x: torch.erfc(x).max(1, keepdim=True).values, 4, 5),
        of(lambda x: torch.exp(x).amin(1), 4, 5),
        of(lambda x: (-x).amax(), 4, 5),
        of(lambda x: x.clamp(-0.5, 0.5).max(), 4, 5),
        of(lambda x: torch.sqrt(torch.sigmoid(x)).amax(1), 4, 5),
        of(lambda x: torch.log(x.abs() + 1).amin(1), 4, 5),
        of(lambda x: F.max_pool2d(F.silu(x.clamp(min=-0.9)), 3, 2, 1), 2, 3, 6, 8),
        of(lambda x: F.mish(F.relu(x)).amax(1), 4, 5),
        of(lambda x: F.gelu(torch.tanh(x) * 0.7).amax(1), 4, 5),
        of(lambda x: F.hardswish(torch.sigmoid(x) - 2.6).amax(1), 4, 5),
        of(lambda x: torch.sqrt(x * x * x + 9).amax(1), 4, 5, applies=False),
        of(lambda x: F.silu(x.clamp(min=-1.4)).amax(1), 4, 5, applies=False),
        of(lambda x: F.max_pool1d(F.hardswish(torch.sigmoid(x) - 2.6), 2), 2, 3, 8, applies=False),
        of(lambda x: F.gelu(x).amax(1), 4, 5, applies=False),
        of(lambda x: F.silu(x).amax(1), 4, 5, applies=False),
        of(lambda x: torch.sign(x).amax(1), 4, 5, applies=False),
        of(lambda x: torch.tanh(x).max(1), 4, 5, applies=False),
        of(lambda x: torch.sigmoid(x).max(1)[1].float(), 4, 5, applies=False),
        of(lambda x: F.max_pool1d(torch.erfc(x), 2), 2, 3, 8, applies=False),
        of(lambda x: F.max_pool2d(torch.tanh(x), 3, 1, 1), 2, 3, 6, 8, applies=False),
        of(lambda x: (lambda t: (t * t, F.max_pool2d(t, 2)))(torch.tanh(x)), 2, 3, 6, 8, applies=False),
    ],
)  # fmt: skip
def monotone_after_extreme(site: Site) -> Ref | None:
    """max_i f(x_i) = f(max_i x_i) where f never decreases, f(min_i x_i) where it never increases: f once, not often."""
    found = extreme_at(site)
    if found is None or site.node.shape is None or site.count(site.node) >= site.count(found.source):
        return None
    direction = direction_of(site, found.source, found.largest)
    if direction == 0 or (direction < 0 and found.pool):
        return None
    a = found.source.bound()
    name, operand = next((k, v) for k, v in a.items() if isinstance(v, Ref))
    extreme = extreme_again(site, found, operand, flip=direction < 0)
    return site.again(found.source, site.node.shape, {name: extreme})


@law(
    "scale or shift after a maximum", REASSOCIATES,
    at=[*WHOLE, *MAX_POOLS, "getitem"],
    examples=[
        of(lambda x, p: F.max_pool2d(x + p, 2), 2, 3, 6, 8, parameter=(3, 1, 1)),
        of(lambda x, p: (p - x).amax((2, 3)), 2, 3, 4, 5, parameter=(3, 1, 1)),
        of(lambda x: F.max_pool1d(x * 0.5, 2), 2, 3, 8),
        of(lambda x: (x / -3).max(1)[0], 4, 5),
        of(lambda x: (x - 2).amin(1), 4, 5),
        of(lambda x, p: F.max_pool2d(x + p, 2), 2, 3, 6, 8, parameter=(8,), applies=False),
        of(lambda x, p: F.max_pool2d(x * p, 2), 2, 3, 6, 8, parameter=(3, 1, 1), applies=False),
        of(lambda x: F.max_pool1d(x * -0.5, 2), 2, 3, 8, applies=False),
        of_two(lambda x, y: (x + y).amax(1), (4, 5), (4, 5), applies=False),
    ],
)  # fmt: skip
def shift_after_extreme(site: Site) -> Ref | None:
    """max_i (s x_i + t) = s max_i x_i + t where s > 0, and s min_i x_i + t where s < 0: once, not for each."""
    found = extreme_at(site)
    if found is None or site.node.shape is None or site.count(site.node) >= site.count(found.source):
        return None
    shape = found.source.shape
    assert shape is not None
    for step in steps_at(site, found.source):
        direction = direction_of_step(site, step, found.source)
        whole = len(site.shape(step.main)) == len(shape) and spans(site, step.main, shape, range(len(shape)))
        if direction == 0 or (direction < 0 and found.pool) or not whole:
            continue
        if not constant_along(site, step.other, len(shape), found.dims) or not is_weight(site, step.other):
            continue
        other = step.other
        if isinstance(other, Ref) and not found.keepdim:
            other = site.reshape(other, without_dims(aligned(site.shape(other), len(shape)), found.dims))
        extreme = extreme_again(site, found, step.main, flip=direction < 0)
        return step_again(site, step, extreme, other)
    return None


def direction_of_step(site: Site, step: Step, node: Node) -> int:
    if step.kind in ("add", "sub"):
        return 1
    if step.kind in ("rsub", "neg"):
        return -1
    known = affine_at(site, node)
    if known is None or known.scale == 0:
        return 0  # the sign of a factor that is a value is not known
    return 1 if known.scale > 0 else -1
