"""Laws of convolutions: the sum of one over its positions or its channels is no convolution of that size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..ir import sizes
from ..ir.graph import Dim, Ref
from .examples import Example, after
from .law import NONFINITE_KIND, REASSOCIATES, Site, aten, law
from .patterns import (
    CONVOLUTIONS,
    LINEAR,
    MEANS,
    SUMS,
    TRANSPOSED,
    Convolution,
    convolution_at,
    convolve,
    finished,
    only_elements_read,
    reduction_at,
)
from .sums import merges


def floor_div(a: Dim, b: int) -> Dim:
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(a, b)


def touched(conv: Convolution, dim: int, tap: int, size_in: Dim, size_out: Dim) -> tuple[Dim, Dim, int]:
    """(start, length, step) of the input positions that tap `tap` of dimension `dim` multiplies, over all outputs.

    The far end is never out of reach while the padding there is at most what the taps beyond this one span; else it is
    cut.
    """
    stride, padding = conv.stride[dim], conv.padding[dim]
    shift = tap * conv.dilation[dim] - padding
    beyond = conv.dilation[dim] * (conv.kernel[dim] - 1 - tap)
    first = max(0, -(shift // stride))
    if conv.transposed:  # output = stride * input + shift must lie in [0, size_out)
        whole = padding <= beyond + conv.output_padding[dim]
        last = sizes.tidy(size_in - 1) if whole else floor_div(sizes.tidy(size_out - 1 - shift), stride)
        return first, _length(last, first), 1
    whole = padding <= beyond  # input = stride * output + shift must lie in [0, size_in)
    last = sizes.tidy(size_out - 1) if whole else floor_div(sizes.tidy(size_in - 1 - shift), stride)
    return first * stride + shift, _length(last, first), stride


def _length(last: Dim, first: Dim) -> Dim:
    length = sizes.tidy(last - first + 1)
    return max(0, length) if isinstance(length, int) else length


@law(
    "convolution without a batch",
    at=CONVOLUTIONS | TRANSPOSED,
    examples=[
        after(lambda: nn.Conv2d(3, 4, 3, stride=2), torch.tanh, 3, 8, 9),
        after(lambda: nn.Conv1d(6, 4, 3, padding="same", groups=2), torch.tanh, 6, 9),
        after(lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, bias=False), torch.tanh, 3, 5, 4),
        after(lambda: nn.Conv2d(3, 4, 3), torch.tanh, 1, 3, 8, 9, applies=False),
    ],
)  # fmt: skip
def without_batch(site: Site) -> Ref | None:
    """A convolution of one image is that of a batch of one: what is known of those holds for it."""
    image, shape = site.bound["input"], site.node.shape
    if shape is None or len(shape) != len(site.shape(site.bound["weight"])) - 1:
        return None
    batch = site.reshape(image, [1, *site.shape(image)])
    return site.reshape(site.again(site.node, [1, *shape], {"input": batch}), shape)


MOST_TAPS = 64  # each may need a sum of its own


def sums_by_tap(site: Site, conv: Convolution, shape_out: Sequence[Dim], dims: Sequence[int]) -> list[Ref]:
    """For each tap over the spatial dimensions `dims`, the sum of the input over the positions it meets.

    Taps that meet the same positions share one value.
    """
    shape_in = site.shape(conv.input)
    spans = [
        [touched(conv, dim, tap, shape_in[2 + dim], shape_out[2 + dim]) for tap in range(conv.kernel[dim])]
        for dim in dims
    ]
    boxes: dict[Any, Ref] = {}
    by_tap: list[Ref] = []
    for taps in product(*[range(conv.kernel[dim]) for dim in dims]):
        box = tuple(span[tap] for span, tap in zip(spans, taps, strict=True))
        if box not in boxes:
            part = conv.input
            for dim, where in zip(dims, box, strict=True):
                part = site.slice(part, 2 + dim, *where)
            boxes[box] = site.sum(part, [2 + dim for dim in dims])
        by_tap.append(boxes[box])
    return by_tap


# Products of input sums and weights up to this many terms are one small reduction of ours; above, a matrix product.
SMALL_PRODUCT = 1 << 22


def products_of_sums(site: Site, conv: Convolution, by_tap: list[Ref], batch: Dim) -> Ref:
    """sum over input channels and taps of (sum of input) * weight: (batch, channels_out).

    The taps' weights are not summed first, even where all meet the same sum: Inf times each of them is NaN when their
    signs differ, as in the convolution.
    """
    groups, in_group, out_group = conv.groups, conv.in_group, conv.out_group
    taps, dtype = len(by_tap), site[by_tap[0]].dtype
    weight = site.cast(conv.weight, dtype)
    if conv.transposed:
        weight = site.reshape(weight, [groups, in_group, out_group, taps])
    else:
        weight = site.permute(site.reshape(weight, [groups, out_group, in_group, taps]), [0, 2, 1, 3])
    one_box = len(set(by_tap)) == 1
    sums = by_tap[0] if one_box else site.stack(by_tap, 2)
    if site.hint(batch) * conv.channels_in * out_group * taps <= SMALL_PRODUCT:
        sums = site.reshape(sums, [batch, groups, in_group, 1, 1 if one_box else taps])
        total = site.sum(site.mul(sums, weight), [2, 4])
    else:
        sums = site.permute(spread_over_taps(site, sums, groups, in_group, taps, one_box), [1, 0, 2])
        weight = site.reshape(site.permute(weight, [0, 1, 3, 2]), [groups, in_group * taps, out_group])
        total = site.call(aten.bmm.default, sums, weight, shape=[groups, batch, out_group], dtype=dtype)
        total = site.permute(total, [1, 0, 2])
    return site.reshape(total, [batch, conv.channels_out])


def spread_over_taps(site: Site, sums: Ref, groups: int, in_group: int, taps: int, one_box: bool) -> Ref:
    """(batch, groups, in_group * taps); where all taps meet the same sum, it is repeated."""
    batch = site.shape(sums)[0]
    if one_box:
        wide = [batch, groups, in_group, taps]
        sums = site.reshape(sums, [batch, groups, in_group, 1])
        sums = site.call(aten.expand.default, sums, wide, shape=wide, dtype=site[sums].dtype)
    return site.reshape(sums, [batch, groups, in_group * taps])


def _conv(kind: Any, reduce: Callable[[Tensor], Any], *shape: int, applies: bool = True, **options: Any) -> Example:
    channels_in, channels_out, kernel = options.pop("of")
    return after(lambda: kind(channels_in, channels_out, kernel, **options), reduce, *shape, applies=applies)


def _mean2(y: Tensor) -> Tensor:
    return y.mean(dim=(2, 3), keepdim=True)


@law(
    "sum of a convolution over all positions", REASSOCIATES,
    at=SUMS | MEANS,
    examples=[
        _conv(nn.ConvTranspose2d, _mean2, 2, 3, 6, 5, of=(3, 4, 3)),
        _conv(nn.ConvTranspose2d, _mean2, 2, 3, 6, 5, of=(3, 4, 4), stride=2, padding=1, output_padding=1),
        _conv(nn.ConvTranspose2d, _mean2, 2, 4, 6, 7, of=(4, 6, 3), groups=2, dilation=2, padding=2),
        _conv(nn.Conv2d, _mean2, 2, 3, 6, 5, of=(3, 4, 3), padding=1),
        _conv(nn.Conv2d, _mean2, 2, 3, 7, 9, of=(3, 4, 3), stride=2),
        _conv(nn.Conv2d, _mean2, 2, 4, 7, 9, of=(4, 4, 3), padding=2, groups=4, bias=False),
        _conv(nn.Conv2d, _mean2, 2, 3, 8, 14, of=(3, 2, (1, 5)), stride=(2, 3), padding=(1, 3), dilation=(1, 2)),
        _conv(nn.Conv2d, _mean2, 2, 3, 6, 5, of=(3, 4, 3), padding="same"),
        _conv(nn.ConvTranspose1d, lambda y: y.sum(2), 2, 3, 8, of=(3, 2, 2), stride=3, padding=4),
        _conv(nn.Conv1d, lambda y: y.sum(-1), 2, 3, 9, of=(3, 5, 4), padding=3),
        _conv(nn.Conv3d, lambda y: y.mean(dim=(2, 3, 4)), 2, 2, 5, 4, 6, of=(2, 3, 3), padding=1),
        _conv(nn.Conv2d, lambda y: y.mean(), 2, 3, 6, 5, of=(3, 4, 3)),
        _conv(nn.Conv2d, lambda y: y.sum(dim=(0, 2, 3)), 2, 3, 6, 5, of=(3, 4, 3)),
        _conv(nn.Conv2d, lambda y: y.mean(dim=(2,)), 2, 3, 6, 5, of=(3, 4, 3), applies=False),
        _conv(nn.Conv2d, lambda y: (y, y.mean(dim=(2, 3))), 2, 3, 6, 5, of=(3, 4, 3), applies=False),
        _conv(nn.Conv2d, lambda y: y.amax(dim=(2, 3)), 2, 3, 6, 5, of=(3, 4, 3), applies=False),
    ],
)  # fmt: skip
def sum_of_convolution(site: Site) -> Ref | None:
    """sum_o conv(x, w)[o] = sum_k w[k] * (sum of x where tap k meets it): no convolution, one look at x."""
    found = reduction_at(site)
    conv = convolution_at(site, found.source) if found else None
    if found is None or conv is None or not site.only_user(found.source):
        return None
    if not set(conv.spatial) <= set(found.dims) or prod(conv.kernel) > MOST_TAPS:
        return None
    batch, positions = found.shape[0], found.count(conv.spatial)
    if site.hint(positions) < 2:
        return None
    by_tap = sums_by_tap(site, conv, found.shape, range(conv.rank))
    total = products_of_sums(site, conv, by_tap, batch)
    if found.is_mean:
        total = site.divide(total, positions)
    if conv.bias is not None:
        bias = site.cast(conv.bias, site[total].dtype)
        total = site.add(total, bias if found.is_mean else site.mul(bias, positions))
    total = site.reshape(total, [batch, conv.channels_out, *[1] * conv.rank])
    return finished(site, total, found, conv.spatial)


def merges_on(site: Site) -> bool:
    """The sum's only user is a sum that takes it in: both together collapse further."""
    users = site.users[site.node.name]
    user = site.graph.index.get(users[0]) if len(users) == 1 else None
    return user is not None and user.target in SUMS | MEANS and merges(site, user)


_SOME = [
    _conv(nn.ConvTranspose3d, lambda y: y.mean(2, keepdim=True), 2, 2, 9, 4, 3, of=(2, 3, 3)),
    _conv(nn.ConvTranspose3d, lambda y: y.sum((2, 4)), 2, 2, 9, 4, 8, of=(2, 4, 2), stride=2, groups=2),
    _conv(nn.Conv2d, lambda y: (y, y.mean(3)), 2, 3, 6, 9, of=(3, 4, 3), applies=False),
    _conv(nn.Conv2d, lambda y: y.mean((2, 3)), 2, 3, 6, 9, of=(3, 4, 3), applies=False),
    _conv(nn.Conv2d, lambda y: y.mean(3), 2, 3, 6, 4, of=(3, 4, 3), padding=1, applies=False),
]


@law(
    "sum of a convolution over dimensions it covers whole", REASSOCIATES, NONFINITE_KIND,
    at=SUMS | MEANS,
    examples=[
        *_SOME,
        _conv(nn.ConvTranspose2d, lambda y: y.mean(2), 2, 4, 9, 5, of=(4, 4, 3), groups=2, padding=1, applies=False),
    ],
)  # fmt: skip
def sum_of_convolution_by_summed_taps(site: Site) -> Ref | None:
    """sum over a dimension of conv(x, w) = conv(sum x, sum w) over the others, where each summed tap meets all of x."""
    return sum_over_some(site, sum_taps=True)


@law(
    "sum of a convolution over some of its dimensions", REASSOCIATES,
    at=SUMS | MEANS,
    examples=[
        *_SOME,
        _conv(nn.Conv2d, lambda y: y.mean(3), 2, 3, 5, 9, of=(3, 4, 3), padding=1),
        _conv(nn.Conv3d, lambda y: y.sum((0, 2, 3)), 2, 4, 9, 14, 5, of=(4, 6, 2), groups=2, stride=(1, 1, 2)),
        _conv(nn.ConvTranspose2d, lambda y: y.mean(2), 2, 4, 9, 5, of=(4, 4, 3), groups=2, padding=1),
    ],
)  # fmt: skip
def sum_of_convolution_over_some(site: Site) -> Ref | None:
    """sum over a dimension of conv(x, w) = conv, over the others, of the sums of x that each summed tap meets."""
    return sum_over_some(site, sum_taps=False)


def sum_over_some(site: Site, sum_taps: bool) -> Ref | None:
    found = reduction_at(site)
    conv = convolution_at(site, found.source) if found else None
    if found is None or conv is None or not site.only_user(found.source):
        return None
    gone = [d for d in range(conv.rank) if 2 + d in found.dims]
    rest = [d for d in range(conv.rank) if 2 + d not in found.dims]
    taps = prod(conv.kernel[d] for d in gone)
    if not gone or not rest or taps > MOST_TAPS:
        return None
    if merges_on(site):
        return None
    positions = found.count([2 + d for d in gone])
    by_tap = sums_by_tap(site, conv, found.shape, gone)
    one_box = len(set(by_tap)) == 1
    if (sum_taps and not one_box) or site.hint(positions) < (2 if sum_taps else 2 * taps):
        return None  # the sums, one for each tap, are not much smaller than the input
    dtype = site[by_tap[0]].dtype
    weight = conv_weight_by_tap(site, conv, gone, rest, dtype)  # taps are the dimension behind the input channels
    if sum_taps:
        weight, input = site.sum(weight, [1 if conv.transposed else 2]), by_tap[0]
    else:
        space, kernel = site.shape(by_tap[0])[2:], [conv.kernel[d] for d in rest]
        front = [conv.channels_out, conv.in_group * taps]
        if conv.transposed:
            front = [conv.channels_in * taps, conv.out_group]
        weight = site.reshape(weight, [*front, *kernel])
        input = site.reshape(site.stack(by_tap, 2), [found.shape[0], conv.channels_in * taps, *space])
    bias = None if conv.bias is None else site.cast(conv.bias, dtype)
    if found.is_mean:
        weight = site.divide(weight, positions)
    elif bias is not None:
        bias = site.mul(bias, positions)
    done = [2 + d for d in gone]
    shape = [size for d, size in enumerate(found.shape) if d not in done]
    total = convolve(site, conv, input, weight, bias, shape, rest)
    total = site.reshape(total, [1 if d in done else size for d, size in enumerate(found.shape)])
    return finished(site, total, found, done)


def conv_weight_by_tap(
    site: Site, conv: Convolution, gone: Sequence[int], rest: Sequence[int], dtype: torch.dtype | None
) -> Ref:
    """The weight with the taps of the dimensions `gone` as one dimension behind the input channels."""
    weight = site.cast(conv.weight, dtype)
    channels = list(site.shape(weight)[:2])
    front = [0] if conv.transposed else [0, 1]  # input channels are the last of these
    back = [1] if conv.transposed else []
    order = [*front, *[2 + d for d in gone], *back, *[2 + d for d in rest]]
    taps = prod(conv.kernel[d] for d in gone)
    kernel = [conv.kernel[d] for d in rest]
    shape = [channels[0], taps, channels[1], *kernel] if conv.transposed else [*channels, taps, *kernel]
    return site.reshape(site.permute(weight, order), shape)


@law(
    "sum of a convolution over its channels", REASSOCIATES, NONFINITE_KIND,
    at=SUMS | MEANS,
    examples=[
        _conv(nn.Conv2d, lambda y: y.sum(1), 2, 3, 6, 5, of=(3, 8, 3), padding=1),
        _conv(nn.Conv1d, lambda y: y.mean(1, keepdim=True), 6, 4, 12, of=(4, 8, 3), groups=2, stride=2),
        _conv(nn.ConvTranspose2d, lambda y: y.sum(1), 2, 4, 6, 5, of=(4, 8, 3), groups=2, bias=False),
        _conv(nn.Conv2d, lambda y: y.sum(1), 2, 3, 6, 5, of=(3, 2, 3), applies=False),
        _conv(nn.Conv2d, lambda y: (y.sum(1), y), 2, 3, 6, 5, of=(3, 8, 3), applies=False),
    ],
)  # fmt: skip
def sum_of_convolution_over_channels(site: Site) -> Ref | None:
    """sum_c conv(x, w)[c] = conv(x, sum_c w[c]): one output channel instead of all."""
    found = reduction_at(site)
    conv = convolution_at(site, found.source) if found else None
    if found is None or conv is None or not site.only_user(found.source) or found.dims != [1]:
        return None
    if merges_on(site) or conv.channels_out < 4 or site.count(conv.weight) * 2 > site.count(found.source):
        return None
    if found.source.dtype in (torch.float16, torch.bfloat16):
        return None  # the summed weight would be rounded
    weight = conv.weight
    if conv.transposed:
        weight = site.sum(weight, [1], keepdim=True)
    else:
        by_group = site.reshape(weight, [conv.groups, conv.out_group, conv.in_group, *conv.kernel])
        weight = site.reshape(site.sum(by_group, [1]), [1, conv.channels_in, *conv.kernel])
    bias = None if conv.bias is None else site.sum(conv.bias, [0], keepdim=True)
    if found.is_mean:
        weight = site.divide(weight, conv.channels_out)
        bias = None if bias is None else site.divide(bias, conv.channels_out)
    shape = [found.shape[0], 1, *found.shape[2:]]
    ungrouped = Convolution(**{**vars(conv), "groups": 1})
    total = convolve(site, ungrouped, conv.input, weight, bias, shape, range(conv.rank))
    return finished(site, total, found, [1])


FEW_CHANNELS = 4  # cuDNN's tensor-core kernels want more; of patches of an image it makes plain arithmetic
LEAST_TAPS = 16


@law(
    "convolution of patches", REASSOCIATES,
    at=CONVOLUTIONS,
    examples=[
        _conv(nn.Conv2d, lambda y: torch.tanh(y.flatten(2).transpose(1, 2)), 2, 3, 8, 12, of=(3, 20, 4), stride=4),
        _conv(nn.Conv2d, torch.relu, 2, 1, 13, 9, of=(1, 16, (4, 4)), stride=4, bias=False),
        _conv(nn.Conv1d, torch.tanh, 2, 1, 50, of=(1, 16, 16), stride=16),
        _conv(nn.Conv2d, torch.relu, 2, 3, 8, 12, of=(3, 20, 4), stride=2, applies=False),
        _conv(nn.Conv2d, torch.relu, 2, 3, 8, 12, of=(3, 20, 4), stride=4, padding=1, applies=False),
        _conv(nn.Conv2d, torch.relu, 2, 8, 8, 12, of=(8, 20, 4), stride=4, applies=False),
    ],
)  # fmt: skip
def patches(site: Site) -> Ref | None:
    """Windows that lie side by side are rows, and their convolution is a linear map of them."""
    conv = convolution_at(site, site.node)
    if conv is None or conv.groups != 1 or conv.stride != conv.kernel or any(conv.padding) or any(d != 1 for d in conv.dilation):
        return None
    taps = prod(conv.kernel)
    if conv.channels_in > FEW_CHANNELS or taps < LEAST_TAPS or site.node.shape is None or site.node.dtype is not torch.float32:
        return None
    batch, _, *counts = site.node.shape
    image, rank = conv.input, conv.rank
    for dim, (count, size) in enumerate(zip(counts, conv.kernel, strict=True)):
        image = site.slice(image, 2 + dim, 0, sizes.tidy(count * size))  # what no whole window covers is left out
    cut = site.reshape(image, [batch, conv.channels_in, *(n for pair in zip(counts, conv.kernel, strict=True) for n in pair)])
    order = [0, *(2 + 2 * d for d in range(rank)), 1, *(3 + 2 * d for d in range(rank))]
    rows = site.reshape(site.permute(cut, order), [batch, *counts, conv.channels_in * taps])
    weight = site.reshape(conv.weight, [conv.channels_out, conv.channels_in * taps])
    mapped = site.call(LINEAR, rows, weight, conv.bias, shape=[batch, *counts, conv.channels_out], dtype=site.node.dtype)
    return site.permute(mapped, [0, rank + 1, *range(1, rank + 1)])


@law(
    "bias of a convolution joins what follows", last=True,
    at=CONVOLUTIONS | TRANSPOSED,
    examples=[
        _conv(nn.Conv2d, torch.relu, 2, 3, 6, 5, of=(3, 4, 3)),
        _conv(nn.ConvTranspose3d, torch.tanh, 2, 3, 4, 5, 3, of=(3, 4, 3), stride=2),
        _conv(nn.Conv1d, lambda y: torch.tanh(y.chunk(2, 1)[0]) * torch.sigmoid(y.chunk(2, 1)[1]), 2, 3, 9, of=(3, 4, 3)),
        _conv(nn.Conv2d, torch.relu, 2, 3, 6, 5, of=(3, 4, 3), bias=False, applies=False),
        _conv(nn.Conv2d, lambda y: y, 2, 3, 6, 5, of=(3, 4, 3), applies=False),
        _conv(nn.Conv2d, lambda y: (y.flatten(2), torch.relu(y)), 2, 3, 6, 5, of=(3, 4, 3), applies=False),
    ],
)  # fmt: skip
def bias_after_convolution(site: Site) -> Ref | None:
    """conv(x, w, b) = conv(x, w) + b: the library adds b in a sweep of its own, a fused kernel as it reads."""
    conv = convolution_at(site, site.node)
    if conv is None or conv.bias is None or site.node.shape is None:
        return None
    if not only_elements_read(site, site.node.name):
        return None
    plain = site.again(site.node, site.node.shape, {"bias": None})
    return site.add(plain, site.reshape(conv.bias, [conv.channels_out, *[1] * conv.rank]))
