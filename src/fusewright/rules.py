"""The laws. Each is one function: it looks at a node, and gives what may stand in its place, or None. Its docstring is the identity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from . import ops, sizes
from .graph import Dim, Graph, Node, Ref
from .rewrite import NONFINITE_KIND, REASSOCIATES, Site, aten, law
from .structured import dims_of


@dataclass(frozen=True)
class Example:
    """A small model on which a law must apply, or (`applies` False) must decline."""

    make: Any
    shapes: tuple[tuple[int, ...], ...]
    applies: bool = True


class Chain(nn.Module):
    """A module and a function of its output: enough for most examples."""

    def __init__(self, module: nn.Module, after: Any, before: Any = None):
        super().__init__()
        self.module, self.after, self.before = module, after, before

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(self.module(self.before(x) if self.before else x))


CONVOLUTIONS = {
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
}  # fmt: skip
TRANSPOSED = {aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input}


@dataclass(frozen=True)
class Convolution:
    """A convolution's arguments, each a tuple over the spatial dimensions."""

    input: Ref
    weight: Ref
    bias: Ref | None
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)


def convolution_at(site: Site, node: Node) -> Convolution | None:
    """The convolution that a node is, with everything static, batched, and in floating point."""
    if node.target not in CONVOLUTIONS and node.target not in TRANSPOSED:
        return None
    a = node.bound()
    weight = site[a["weight"]]
    assert weight.shape is not None and node.shape is not None
    kernel = weight.shape[2:]
    rank = len(kernel)
    if len(node.shape) != rank + 2 or not all(isinstance(k, int) for k in kernel):
        return None

    def many(value: Any) -> tuple[int, ...]:
        value = [value] if isinstance(value, int) else list(value)
        return tuple(value * rank if len(value) == 1 else value)

    if isinstance(a["padding"], str):
        if a["padding"] == "same" and any((d * (k - 1)) % 2 for d, k in zip(many(a["dilation"]), kernel, strict=True)):
            return None
        half = tuple(d * (k - 1) // 2 for d, k in zip(many(a["dilation"]), kernel, strict=True))
        padding = half if a["padding"] == "same" else (0,) * rank
    else:
        padding = many(a["padding"])
    return Convolution(
        a["input"],
        a["weight"],
        a["bias"],
        tuple(kernel),
        many(a["stride"]),
        padding,
        many(a["dilation"]),
        a["groups"],
        node.target in TRANSPOSED,
        many(a.get("output_padding", 0)),
    )


def reduction_at(site: Site) -> tuple[Node, list[int], bool, bool] | None:
    """(source, dims, keepdim, is a mean) where the node is a sum or a mean of one value."""
    target = site.node.target
    is_mean = target in (aten.mean.dim, aten.mean.default)
    if not is_mean and target not in (aten.sum.dim_IntList, aten.sum.default):
        return None
    source = site[site.bound["self"]]
    if (
        source.shape is None
        or source.dtype is None
        or not source.dtype.is_floating_point
        or site.bound.get("dtype") not in (None, source.dtype)
    ):
        return None
    return source, dims_of(site.bound.get("dim"), len(source.shape)), bool(site.bound.get("keepdim", False)), is_mean


def floor_div(a: Dim, b: int) -> Dim:
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(a, b)


def touched(conv: Convolution, dim: int, tap: int, size_in: Dim, size_out: Dim) -> tuple[Dim, Dim, int]:
    """(start, length, step) of the input positions that tap `tap` of dimension `dim` multiplies, over all outputs.

    The far end is never out of reach while the padding there is at most what the taps beyond this one span; else it is cut.
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


# Products of input sums and weights up to this many terms are one small reduction of ours; above, a matrix product.
SMALL_PRODUCT = 1 << 22


def matmul_of_sums(
    site: Site, by_tap: list[Ref], weight: Ref, batch: Dim, groups: int, in_group: int, out_group: int, count: int
) -> Ref:
    """The products of sums and weights as one batched matrix product over the groups: (batch, groups, out_group)."""
    dtype = site[weight].dtype
    taps = count if len(by_tap) > 1 else 1
    sums = site.reshape(site.stack(by_tap, 2) if taps > 1 else by_tap[0], [batch, groups, in_group * taps])
    sums = site.call(aten.permute.default, sums, [1, 0, 2], shape=[groups, batch, in_group * taps], dtype=dtype)
    if taps == 1:
        weight = site.sum(weight, [3], keepdim=True)
    weight = site.call(
        aten.permute.default, weight, [0, 1, 3, 2], shape=[groups, in_group, taps, out_group], dtype=dtype
    )
    weight = site.reshape(weight, [groups, in_group * taps, out_group])
    product_ = site.call(aten.bmm.default, sums, weight, shape=[groups, batch, out_group], dtype=dtype)
    return site.call(aten.permute.default, product_, [1, 0, 2], shape=[batch, groups, out_group], dtype=dtype)


def _conv(kind: Any, reduce: Any, *args: Any, **kwargs: Any) -> Any:
    return lambda: Chain(kind(*args, **kwargs), reduce)


def _mean2(y: torch.Tensor) -> torch.Tensor:
    return y.mean(dim=(2, 3), keepdim=True)


@law(
    "sum of a convolution over all positions", REASSOCIATES, NONFINITE_KIND,
    examples=[
        Example(_conv(nn.ConvTranspose2d, _mean2, 3, 4, 3), ((2, 3, 6, 5),)),
        Example(_conv(nn.ConvTranspose2d, _mean2, 3, 4, 4, stride=2, padding=1, output_padding=1), ((2, 3, 6, 5),)),
        Example(_conv(nn.ConvTranspose2d, _mean2, 4, 6, 3, groups=2, dilation=2, padding=2), ((2, 4, 6, 7),)),
        Example(_conv(nn.Conv2d, _mean2, 3, 4, 3, padding=1), ((2, 3, 6, 5),)),
        Example(_conv(nn.Conv2d, _mean2, 3, 4, 3, stride=2), ((2, 3, 7, 9),)),
        Example(_conv(nn.Conv2d, _mean2, 4, 4, 3, padding=2, groups=4, bias=False), ((2, 4, 7, 9),)),
        Example(_conv(nn.Conv2d, _mean2, 3, 2, (1, 5), stride=(2, 3), padding=(1, 3), dilation=(1, 2)), ((2, 3, 8, 14),)),
        Example(_conv(nn.ConvTranspose1d, lambda y: y.sum(2), 3, 2, 2, stride=3, padding=4), ((2, 3, 8),)),
        Example(_conv(nn.Conv1d, lambda y: y.sum(-1), 3, 5, 4, padding=3), ((2, 3, 9),)),
        Example(_conv(nn.Conv3d, lambda y: y.mean(dim=(2, 3, 4)), 2, 3, 3, padding=1), ((2, 2, 5, 4, 6),)),
        Example(_conv(nn.Conv2d, lambda y: y.mean(dim=(2,)), 3, 4, 3), ((2, 3, 6, 5),), applies=False),
        Example(_conv(nn.Conv2d, lambda y: (y, y.mean(dim=(2, 3))), 3, 4, 3), ((2, 3, 6, 5),), applies=False),
    ],
)  # fmt: skip
def sum_of_convolution(site: Site) -> Ref | None:
    """sum_o conv(x, w)[o] = sum_k w[k] * (sum of x over the positions that tap k meets): no convolution, one look at x."""
    found = reduction_at(site)
    if found is None:
        return None
    source, dims, keepdim, is_mean = found
    conv = convolution_at(site, source)
    if conv is None or not site.only_user(source) or dims != list(range(2, 2 + conv.rank)):
        return None
    assert source.shape is not None
    shape_in, shape_out, rank = site.shape(conv.input), source.shape, conv.rank
    spans = [  # for each dimension, for each tap, where it touches the input
        [touched(conv, dim, tap, shape_in[2 + dim], shape_out[2 + dim]) for tap in range(conv.kernel[dim])]
        for dim in range(rank)
    ]
    if torch.Size(conv.kernel).numel() > 64:
        return None
    batch, channels_in, channels_out = shape_in[0], shape_in[1], shape_out[1]
    assert isinstance(channels_in, int) and isinstance(channels_out, int)
    groups = conv.groups
    in_group, out_group = channels_in // groups, channels_out // groups

    # Sums of the input, one for each distinct box of touched positions: (batch, groups, in_group)
    boxes: dict[Any, Ref] = {}
    by_tap: list[Ref] = []
    for taps in product(*[range(k) for k in conv.kernel]):
        box = tuple(spans[dim][tap] for dim, tap in enumerate(taps))
        if box not in boxes:
            part = conv.input
            for dim, span in enumerate(box):
                part = site.slice(part, 2 + dim, *span)
            boxes[box] = site.sum(part, range(2, 2 + rank))
        by_tap.append(boxes[box])

    # Weight as (groups, in_group, out_group, taps)
    weight = conv.weight
    count = torch.Size(conv.kernel).numel()
    by_matmul = site.hint(batch) * channels_in * out_group * count > SMALL_PRODUCT
    if conv.transposed:
        weight = site.reshape(weight, [groups, in_group, out_group, count])
    else:
        weight = site.reshape(weight, [groups, out_group, in_group, count])
        weight = site.call(
            aten.permute.default,
            weight,
            [0, 2, 1, 3],
            shape=[groups, in_group, out_group, count],
            dtype=site[weight].dtype,
        )
    if by_matmul:
        total = matmul_of_sums(
            site, by_tap if len(boxes) > 1 else by_tap[:1], weight, batch, groups, in_group, out_group, count
        )
    elif len(boxes) == 1:
        sums = site.reshape(by_tap[0], [batch, groups, in_group, 1, 1])
    else:
        sums = site.reshape(site.stack(by_tap, 2), [batch, groups, in_group, 1, count])
    if not by_matmul:
        total = site.sum(site.mul(sums, weight), [2, 4])
    total = site.reshape(total, [batch, channels_out])
    positions = sizes.product(shape_out[2:])
    if is_mean:
        total = site.divide(total, positions)
    if conv.bias is not None:
        total = site.add(total, conv.bias if is_mean else site.mul(conv.bias, positions))
    return site.reshape(total, [batch, channels_out, *[1] * rank]) if keepdim else total


@law(
    "bias of a convolution joins what follows", last=True,
    examples=[
        Example(_conv(nn.Conv2d, torch.relu, 3, 4, 3), ((2, 3, 6, 5),)),
        Example(_conv(nn.ConvTranspose3d, torch.tanh, 3, 4, 3, stride=2), ((2, 3, 4, 5, 3),)),
        Example(_conv(nn.Conv2d, torch.relu, 3, 4, 3, bias=False), ((2, 3, 6, 5),), applies=False),
        Example(_conv(nn.Conv2d, lambda y: y, 3, 4, 3), ((2, 3, 6, 5),), applies=False),
    ],
)  # fmt: skip
def bias_after_convolution(site: Site) -> Ref | None:
    """conv(x, w, b) = conv(x, w) + b: the library adds a bias in a sweep of its own, a fused kernel while it reads the result."""
    conv = convolution_at(site, site.node)
    if conv is None or conv.bias is None or site.node.dtype is None:
        return None
    users = site.users[site.node.name]
    if not users or not all(
        user in site.graph.index and reads_elements(site.graph[user], site.graph) for user in users
    ):
        return None
    arguments = {**site.node.bound(), "bias": None}
    assert isinstance(site.node.target, OpOverload) and site.node.shape is not None
    ordered = [arguments[a.name] for a in site.node.target._schema.arguments]
    plain = site.call(site.node.target, *ordered, shape=site.node.shape)
    return site.add(plain, site.reshape(conv.bias, [site.node.shape[1], *[1] * conv.rank]))


def reads_elements(node: Node, graph: Graph) -> bool:
    """The node becomes part of a kernel of ours that reads its operand element by element."""
    record = ops.find(node, graph)
    return record is not None and not record.view and record.name != "identity"


@law(
    "sum of a linear map over its outputs", REASSOCIATES, NONFINITE_KIND,
    examples=[
        Example(lambda: Chain(nn.Linear(6, 5), lambda y: y.sum(dim=1)), ((4, 6),)),
        Example(lambda: Chain(nn.Linear(6, 5, bias=False), lambda y: y.mean(dim=-1, keepdim=True)), ((4, 3, 6),)),
        Example(lambda: Chain(nn.Linear(6, 5), lambda y: y.sum(dim=0)), ((4, 6),), applies=False),
    ],
)  # fmt: skip
def sum_of_linear(site: Site) -> Ref | None:
    """sum_j (x w^T + b)_ij = x * (sum_j w_j) + sum_j b_j: a matrix product becomes a dot product."""
    found = reduction_at(site)
    if found is None:
        return None
    source, dims, keepdim, is_mean = found
    if (
        source.target is not aten.linear.default
        or not site.only_user(source)
        or source.shape is None
        or dims != [len(source.shape) - 1]
    ):
        return None
    a = source.bound()
    features = source.shape[-1]
    weight = site.sum(a["weight"], [0])
    total = site.sum(site.mul(a["input"], weight), [len(source.shape) - 1], keepdim)
    if a["bias"] is not None:
        total = site.add(total, site.sum(a["bias"], [0]))
    return site.divide(total, features) if is_mean else total
