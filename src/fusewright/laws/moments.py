"""Laws of means and variances: those of one value over the same dimensions are one reduction, in one look at it."""

from __future__ import annotations

import torch

from ..ir.graph import Node, Ref
from ..ops.declare import dims_of
from ..ops.reductions import SUMMED_IN_FLOAT
from .examples import of
from .law import NONFINITE_KIND, REASSOCIATES, Site, aten, law
from .patterns import ADD, AFFINE, MEANS, MUL, SUB, SUMS, reduction_at

VARIANCES = {
    aten.var.default, aten.var.dim, aten.var.correction, aten.std.default, aten.std.dim, aten.std.correction,
}  # fmt: skip
ARITHMETIC = AFFINE | {aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.pow.Tensor_Scalar}


@law(
    "variance written out", REASSOCIATES,
    at=SUMS | MEANS,
    examples=[
        of(lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True), 4, 9),
        of(lambda x: (lambda d: d / ((d * d).mean((0, 2, 3), keepdim=True) + 1e-5).sqrt())(x - x.mean((0, 2, 3), True)), 3, 2, 4, 5),
        of(lambda x: (x - x.mean((2, 3), keepdim=True)).square().sum((2, 3)), 2, 3, 4, 5),
        of(lambda x: (x.mean(1, keepdim=True) - x).pow(2).mean(1), 4, 5),
        of(lambda x: ((x - x.mean(-1, keepdim=True)) ** 2).mean(0), 4, 9, applies=False),
        of(lambda x: ((x - x.mean(1, keepdim=True)) ** 2).mean((1, 2)), 4, 5, 6, applies=False),
        of(lambda x: ((x - x.tanh().mean(-1, keepdim=True)) ** 2).mean(-1), 4, 9, applies=False),
        of(lambda x: ((x - x.mean(-1, keepdim=True)) ** 4).mean(-1), 4, 9, applies=False),
    ],
)  # fmt: skip
def variance_written_out(site: Site) -> Ref | None:
    """mean((x - mean(x))^2) = var(x): one look at x, not one for its mean and one more."""
    found = reduction_at(site)
    if found is None or not found.dims or found.source.dtype not in SUMMED_IN_FLOAT:
        return None
    centred = squared(site, found.source)
    if centred is None or centred.target not in SUB or centred.bound().get("alpha", 1) != 1:
        return None
    a, rank = centred.bound(), len(found.shape)
    for x, mean in ((a["self"], a["other"]), (a["other"], a["self"])):
        if isinstance(x, Ref) and isinstance(mean, Ref) and is_mean_of(site, site[mean], x, found.dims, rank):
            assert site.node.shape is not None
            variance = site.call(aten.var.dim, x, list(found.dims), False, found.keepdim, shape=site.node.shape)
            return variance if found.is_mean else site.mul(variance, found.count())
    return None


def is_mean_of(site: Site, node: Node, x: Ref, dims: list[int], rank: int) -> bool:
    """The mean of x over these dimensions, which are still there."""
    a = node.bound() if node.target in MEANS else {}
    plain = a.get("self") == x and a.get("keepdim") and a.get("dtype") is None
    return bool(plain) and len(site.shape(x)) == rank and dims_of(a["dim"], rank) == dims and site[x].dtype == site.node.dtype


def squared(site: Site, node: Node) -> Node | None:
    """Of what the node is the square."""
    a = node.bound() if not isinstance(node.target, str) else {}
    if node.target is aten.square.default or (node.target is aten.pow.Tensor_Scalar and a["exponent"] == 2):
        return site[a["self"]]
    return site[a["self"]] if node.target in MUL and isinstance(a["self"], Ref) and a["self"] == a["other"] else None


@law(
    "mean of what a deviation divides", REASSOCIATES,
    at=MEANS,
    examples=[
        of(lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5), 4, 9),
        of(lambda x: torch.relu((x - x.mean((0, 2), True)) * torch.rsqrt(x.var((0, 2), keepdim=True) + 1e-5)), 4, 5, 6),
        of(lambda x: torch.cat((x.mean((2, 3)), x.var((-1, -2))), 1), 2, 3, 4, 5, applies=False),
        of(lambda x: torch.tanh(x.mean(1)) + x.var(1), 4, 5, applies=False),
        of(lambda x: x.mean(1) / x.var(0), 4, 4, applies=False),
    ],
)  # fmt: skip
def mean_divided(site: Site) -> Ref | None:
    """The mean of x is a part of what var(x) is made of; with an Inf in x both give NaN in (x - mean(x)) / std(x)."""
    found = reduction_at(site)
    spoiled = {name for user in variances(site) for name in spoiled_by(site, user)} if found is not None else set()
    pending = [site.node.name]
    while pending and spoiled:
        for user in site.users[pending.pop()]:
            if user in spoiled:
                continue
            if user not in site.graph.index or site.graph[user].target not in SUB | ADD | MUL:
                return None
            pending.append(user)
    return mean_of_moments(site) if spoiled else None


@law(
    "mean beside a variance", REASSOCIATES, NONFINITE_KIND,
    at=MEANS,
    examples=[
        of(lambda x: torch.cat((x.mean((2, 3)), x.var((-1, -2))), 1), 2, 3, 4, 5),
        of(lambda x: x.mean() + x.var(unbiased=False), 4, 5),
        of(lambda x: x.mean(1) + x.var(0), 4, 4, applies=False),
        of(lambda x: x.mean(1) + torch.tanh(x).var(1), 4, 5, applies=False),
        of(lambda x: x.mean(1), 4, 5, applies=False),
    ],
)  # fmt: skip
def mean_beside_variance(site: Site) -> Ref | None:
    """The mean of x is a part of what var(x) is made of: one reduction has both."""
    return mean_of_moments(site) if variances(site) else None


def variances(site: Site) -> list[str]:
    """The variances and deviations of what the node is the mean of, over the same dimensions."""
    found = reduction_at(site)
    if found is None or not found.dims or found.source.dtype not in SUMMED_IN_FLOAT:
        return []
    users = [site.graph[user] for user in site.users[found.source.name] if user in site.graph.index]
    rank = len(found.shape)
    return [user.name for user in users if user.target in VARIANCES and dims_of(user.bound().get("dim"), rank) == found.dims]


def spoiled_by(site: Site, name: str) -> set[str]:
    """The values that are NaN wherever this one is, by arithmetic alone."""
    found, pending = set(), [name]
    while pending:
        for user in site.users[pending.pop()]:
            if user not in found and user in site.graph.index and site.graph[user].target in ARITHMETIC:
                found.add(user)
                pending.append(user)
    return found


def mean_of_moments(site: Site) -> Ref:
    found = reduction_at(site)
    assert found is not None and site.node.shape is not None and found.source.dtype is not None
    args, dtype = (Ref(found.source.name), list(found.dims), False, found.keepdim), found.source.dtype
    return site.element(aten.var_mean.dim, *args, index=1, shape=site.node.shape, dtype=dtype)


__all__ = ["mean_beside_variance", "mean_divided", "variance_written_out"]
