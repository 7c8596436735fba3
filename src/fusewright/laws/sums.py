"""Laws of sums, means and average pools: what can be done once, after the sum, is not done for each term."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..ir import index, sizes
from ..ir.graph import Node, Ref
from ..ops.declare import dims_of
from .examples import after, of, of_two
from .law import REASSOCIATES, Site, aten, is_view, law
from .patterns import (
    ADAPTIVE_AVG_POOLS,
    AVG_POOLS,
    MEANS,
    RESHAPES,
    SUMS,
    Reduction,
    Step,
    aligned,
    constant_along,
    convolution_at,
    is_float,
    is_weight,
    product_at,
    reduction_at,
    spans,
    step_again,
    steps_at,
    without_dims,
)


def reduced(site: Site, found: Reduction, ref: Ref, dims: Sequence[int], keepdim: bool) -> Ref:
    """The same kind of reduction of another value."""
    target = aten.mean.dim if found.is_mean else aten.sum.dim_IntList
    shape = site.reduced_shape(ref, dims, keepdim)
    return site.call(target, ref, list(dims), keepdim, shape=shape, dtype=site[ref].dtype)


def collapses(site: Site, node: Node, dims: Sequence[int]) -> bool:
    """The sum of this value over `dims` is one of which another law makes less work."""
    if not site.only_user(node) or not dims:
        return False
    conv = convolution_at(site, node)
    if conv is not None:
        return any(d in conv.spatial for d in dims) or list(dims) == [1]
    product = product_at(site, node)
    if product is not None:
        rank = len(node.shape or ())
        return rank >= 2 and any(d >= rank - 2 or not product.batched for d in dims)
    if is_view(node, site.graph):
        behind = dims_behind(site, node, dims)
        return behind is not None and collapses(site, site.graph[node.inputs[0]], behind)
    return any(
        spans(site, step.main, node.shape or (), dims) and collapses(site, site[step.main], dims)
        for step in steps_at(site, node)
        if len(site.shape(step.main)) == len(node.shape or ())
    )


# ---- an average pool that is a mean


@law(
    "average pool to one element",
    at=ADAPTIVE_AVG_POOLS | AVG_POOLS,
    examples=[
        of(lambda x: F.adaptive_avg_pool2d(x, 1), 2, 3, 5, 6),
        of(lambda x: F.adaptive_avg_pool3d(x, (1, 1, 1)), 2, 3, 4, 3, 5),
        of(lambda x: F.adaptive_avg_pool2d(x, (1, 2)), 2, 3, 6, 6, applies=False),
        of(lambda x: F.avg_pool1d(x, 3), 2, 3, 6, applies=False),
    ],
)
def pool_to_one(site: Site) -> Ref | None:
    """avg_pool(x) with one output = mean(x) over the window."""
    source, node = site[site.bound["self"]], site.node
    if not is_float(source) or node.shape is None or source.shape is None:
        return None
    rank = int(str(node.target).split("pool")[1][0])
    dims = list(range(len(source.shape) - rank, len(source.shape)))
    if not all(sizes.is_one(node.shape[d]) for d in dims):
        return None
    if node.target in AVG_POOLS:
        kernel = list(site.bound["kernel_size"]) * (1 if len(site.bound["kernel_size"]) == rank else rank)
        whole = all(map(sizes.same, kernel, source.shape[-rank:]))
        if not whole or any(site.bound["padding"]) or site.bound.get("divisor_override") is not None:
            return None
    return site.call(aten.mean.dim, Ref(source.name), dims, True, shape=node.shape)


# ---- a reduction of a reduction


KINDS = [
    SUMS, MEANS, {aten.amax.default}, {aten.amin.default}, {aten.logsumexp.default},
]  # fmt: skip


def merges(site: Site, outer: Node) -> bool:
    """The node's operand is a reduction of the same kind that nothing else uses."""
    inner = site[outer.bound()["self"]]
    same_kind = any(outer.target in kind and inner.target in kind for kind in KINDS)
    plain = same_kind and all(node.bound().get("dtype") is None for node in (outer, inner))
    return plain and site.only_user(inner) and is_float(inner)


@law(
    "reduction of a reduction", REASSOCIATES,
    at=set().union(*KINDS),
    examples=[
        of(lambda x: x.mean(3).mean(2), 2, 3, 4, 5),
        of(lambda x: x.sum(1, keepdim=True).sum((2, 3)), 2, 3, 4, 5),
        of(lambda x: x.sum(2).sum(), 2, 3, 4),
        of(lambda x: x.amax(1).amax(1, keepdim=True), 2, 3, 4),
        of(lambda x: x.logsumexp(2).logsumexp(1), 2, 3, 4),
        of(lambda x: x.sum(2).mean(1), 2, 3, 4, applies=False),
        of(lambda x: x.amax(2).amin(1), 2, 3, 4, applies=False),
        of(lambda x: (lambda m: (m, m.sum(1)))(x.sum(2)), 2, 3, 4, applies=False),
    ],
)  # fmt: skip
def reduction_of_reduction(site: Site) -> Ref | None:
    """The sum of sums is one sum over all their dimensions; so for means, maxima, minima and logsumexps."""
    if not merges(site, site.node) or site.node.shape is None:
        return None
    inner = site[site.bound["self"]]
    a = inner.bound()
    source = a["self"]
    rank = len(site.shape(source))
    dims = dims_of(a.get("dim"), rank)
    left = list(range(rank)) if a.get("keepdim") else [d for d in range(rank) if d not in dims]
    both = sorted({*dims, *(left[d] for d in dims_of(site.bound.get("dim"), len(left)))})
    target = next(t for kind in KINDS for t in (KIND_OF_DIMS & kind) if site.node.target in kind)
    shape = site.reduced_shape(source, both, False)
    total = site.call(target, source, both, False, shape=shape, dtype=site[source].dtype)
    return site.reshape(total, site.node.shape)


KIND_OF_DIMS = {
    aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.logsumexp.default,
}  # fmt: skip


# ---- factors


@law(
    "factor leaves a sum", REASSOCIATES,
    at=SUMS | MEANS | AVG_POOLS,
    examples=[
        of(lambda x: (x * 3).sum(1), 4, 5),
        of(lambda x: (x / 7).mean((2, 3), keepdim=True), 2, 3, 4, 5),
        of(lambda x: (-x).sum(), 4, 5),
        of(lambda x, p: (x * p).mean((2, 3)), 2, 3, 4, 5, parameter=(3, 1, 1)),
        of(lambda x, p: F.avg_pool2d(x * p, 2), 2, 3, 6, 8, parameter=(3, 1, 1)),
        of(lambda x, p: (p * x).sum(1), 2, 3, 4, parameter=(4,)),
        of(lambda x, p: (x * p).mean((2, 3)), 2, 3, 4, 5, parameter=(4, 1), applies=False),
        of(lambda x, p: (p / x).sum(1), 4, 5, parameter=(4, 1), applies=False),
        of(lambda x: (x * x.amax(1, keepdim=True)).sum(1), 4, 5, applies=False),
        of_two(lambda x, y: (x * y).sum(1), (4, 5), (4, 5), applies=False),
        of(lambda x: (lambda y: (y, y.sum(1)))(x * 3), 4, 5, applies=False),
    ],
)  # fmt: skip
def factor_of_sum(site: Site) -> Ref | None:
    """sum_i c * x_i = c * sum_i x_i: one product, not one for each term."""
    pool = site.node.target in AVG_POOLS
    found = None if pool else reduction_at(site)
    source = site[site.bound["self"]] if pool else (found.source if found else None)
    if source is None or source.shape is None or not site.only_user(source) or not is_float(source):
        return None
    if source.dtype is torch.float16 and not pool and not (found and found.is_mean):
        return None  # the sum without the factor may be too large for the type
    rank = len(source.shape)
    dims = found.dims if found else list(range(rank - int(str(site.node.target).split("pool")[1][0]), rank))
    if not dims:
        return None
    for step in steps_at(site, source):
        if not step.scales or not constant_along(site, step.other, rank, dims) or not is_weight(site, step.other):
            continue
        if len(site.shape(step.main)) != rank or not spans(site, step.main, source.shape, dims):
            continue
        if found is None:
            assert site.node.shape is not None
            if not spans(site, step.main, source.shape, range(rank)) or site.count(site.node) >= site.count(source):
                continue
            return step_again(site, step, site.again(site.node, site.node.shape, {"self": step.main}), step.other)
        total = reduced(site, found, step.main, dims, found.keepdim)
        return step_again(site, step, total, beside(site, step, rank, dims, found.keepdim))
    return None


def beside(site: Site, step: Step, rank: int, dims: Sequence[int], keepdim: bool) -> Ref | float | None:
    """The step's other operand, in the shape it needs beside the reduced value."""
    if not isinstance(step.other, Ref) or keepdim:
        return step.other
    return site.reshape(step.other, without_dims(aligned(site.shape(step.other), rank), dims))


# ---- terms


@law(
    "sum of a sum, where a part collapses", REASSOCIATES,
    at=SUMS | MEANS,
    examples=[
        after(lambda: nn.Conv2d(3, 4, 3), lambda y: (y + 2).mean((2, 3)), 2, 3, 6, 5),
        after(lambda: nn.Conv1d(3, 4, 3), lambda y: (5 - y).sum(2, keepdim=True), 2, 3, 6),
        after(lambda: nn.Linear(6, 5), lambda y: (y - torch.arange(5).to(y)).sum(1), 4, 6),
        of_two(lambda x, y: (torch.bmm(x, y) + x[:, :, :1]).sum((1, 2)), (2, 3, 4), (2, 4, 5)),
        of(lambda x: (x - 1000).mean(1), 4, 5, applies=False),
        after(lambda: nn.Conv2d(3, 4, 3), lambda y: (y, (y + 2).mean((2, 3))), 2, 3, 6, 5, applies=False),
    ],
)  # fmt: skip
def sum_of_sum(site: Site) -> Ref | None:
    """sum_i (y_i + z_i) = sum_i y_i + sum_i z_i, where the sum of y costs far less than y."""
    found = reduction_at(site)
    if found is None or not site.only_user(found.source):
        return None
    if found.source.dtype is torch.float16 and not found.is_mean:
        return None
    rank = len(found.shape)
    for step in steps_at(site, found.source):
        full = len(site.shape(step.main)) == rank and spans(site, step.main, found.shape, range(rank))
        if step.scales or not full or not collapses(site, site[step.main], found.dims):
            continue
        total = reduced(site, found, step.main, found.dims, found.keepdim)
        return step_again(site, step, total, reduced_other(site, found, step.other))
    return None


def reduced_other(site: Site, found: Reduction, other: Any) -> Any:
    """The sum or mean of a term that may be a number, or broadcast along some of the dimensions."""
    if not isinstance(other, Ref):
        return other if found.is_mean else sizes.tidy(other * found.count())
    shape = aligned(site.shape(other), len(found.shape))
    spread = [d for d in found.dims if sizes.is_one(shape[d])]
    varied = [d for d in found.dims if d not in spread]
    total = site.reshape(other, shape)
    if varied:
        total = reduced(site, found, total, varied, True)
    if spread and not found.is_mean:
        total = site.mul(total, found.count(spread))
    return total if found.keepdim else site.reshape(total, without_dims(site.shape(total), found.dims))


# ---- views


def dims_behind(site: Site, view: Node, dims: Sequence[int]) -> list[int] | None:
    """The source's dimensions that a view's `dims` are made of, whole; None where one is only partly so."""
    source = site.graph[view.inputs[0]]
    assert view.shape is not None
    if source.shape is None:
        return None
    order = permutation(view)
    if order is not None:
        return sorted(order[d] for d in dims)
    if view.target not in RESHAPES:
        return None
    found: list[int] = []
    for ours, theirs in index._runs(view.shape, source.shape):
        real = [d for d in ours if not sizes.is_one(view.shape[d])]
        inside = [d in dims for d in real]
        if any(inside) and not all(inside):
            return None
        found += theirs if any(inside) else []
    return found or None


def permutation(node: Node) -> list[int] | None:
    """Dimension i of the node is dimension order[i] of its source."""
    rank = len(node.shape or ())
    if node.target is aten.permute.default:
        return [d % rank for d in node.bound()["dims"]]
    if rank == 0:
        return None
    if node.target is aten.transpose.int:
        a, order = node.bound(), list(range(rank))
        i, j = a["dim0"] % rank, a["dim1"] % rank
        order[i], order[j] = j, i
        return order
    return [1, 0] if node.target is aten.t.default and rank == 2 else None


@law(
    "sum looks through a view, where it collapses",
    at=SUMS | MEANS,
    examples=[
        after(lambda: nn.Conv2d(3, 4, 3), lambda y: y.flatten(2).mean(2), 2, 3, 6, 5),
        after(lambda: nn.Conv2d(3, 4, 3), lambda y: y.flatten(2).transpose(1, 2).sum(1, keepdim=True), 2, 3, 6, 5),
        after(lambda: nn.Linear(6, 5), lambda y: y.unsqueeze(1).mean(2), 4, 6),
        after(lambda: nn.Conv2d(3, 4, 3), lambda y: y.reshape(y.shape[0], 2, -1).mean(2), 2, 3, 6, 5, applies=False),
        of(lambda x: x.flatten(1).sum(1), 2, 3, 4, applies=False),
    ],
)  # fmt: skip
def sum_of_view(site: Site) -> Ref | None:
    """sum of view(y) = view of sum(y), where the sum of y costs far less than y."""
    found = reduction_at(site)
    if found is None or not is_view(found.source, site.graph) or not collapses(site, found.source, found.dims):
        return None
    source, order = Ref(found.source.inputs[0]), permutation(found.source)
    behind = dims_behind(site, found.source, found.dims)
    assert behind is not None and site.node.shape is not None
    total = reduced(site, found, source, behind, False)
    if order is not None:
        kept = [d for d in range(len(order)) if d not in behind]
        total = site.permute(total, [kept.index(d) for d in order if d in kept])
    return site.reshape(total, site.node.shape)
