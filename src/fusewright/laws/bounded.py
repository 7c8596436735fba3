"""Laws that hold because of what values can be: clamps that cannot act, exponentials that cannot overflow."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ..ir.graph import Ref
from ..ops.declare import dims_of
from .examples import of
from .law import REASSOCIATES, Site, aten, law
from .patterns import CLAMPS, HALVES, clamp_at, is_float
from .ranges import is_constant


@law(
    "clamp that cannot act", REASSOCIATES,
    at=CLAMPS | {aten.abs.default, aten.absolute.default},
    examples=[
        of(lambda x: torch.relu(torch.sigmoid(x)) + 1, 4, 5),
        of(lambda x: F.hardtanh(torch.tanh(x)), 4, 5),
        of(lambda x: (torch.tanh(x) + torch.sigmoid(x)).clamp(-1, 2), 4, 5),
        of(lambda x: torch.relu((x * x).mean(1)), 4, 5),
        of(lambda x: F.relu6(x.softmax(1).sum(1)), 4, 5),
        of(lambda x: torch.abs(torch.exp(x)), 4, 5),
        of(lambda x: x.abs().clamp(min=-1.0), 4, 5),
        of(lambda x: F.layer_norm(x, (5,)).clamp(-2, 2), 4, 5),
        of(lambda x: torch.relu(torch.tanh(x)), 4, 5, applies=False),
        of(lambda x: F.hardtanh(torch.tanh(x) * 1.5), 4, 5, applies=False),
        of(lambda x: torch.relu(x), 4, 5, applies=False),
        of(lambda x: F.layer_norm(x, (5,)).clamp(-1.9, 2), 4, 5, applies=False),
    ],
)  # fmt: skip
def idle_clamp(site: Site) -> Ref | None:
    """clamp(x, a, b) = x where x is always between a and b."""
    if site.node.target in (aten.abs.default, aten.absolute.default):
        operand = site.bound["self"]
        found: tuple[Ref, float, float] | None = (operand, 0.0, float("inf")) if is_float(site[operand]) else None
    else:
        found = clamp_at(site, site.node)
    if found is None:
        return None
    low, high = site.range(found[0])
    return found[0] if found[1] <= low and high <= found[2] else None


@law(
    "hardswish between its bends", REASSOCIATES,
    at=[aten.hardswish.default],
    examples=[
        of(lambda x: F.hardswish(torch.tanh(x)), 4, 5),
        of(lambda x: F.hardswish(x.clamp(-1, 3)), 4, 5),
        of(lambda x: F.hardswish(torch.tanh(x) * 4), 4, 5, applies=False),
        of(lambda x: F.hardswish(x), 4, 5, applies=False),
    ],
)  # fmt: skip
def hardswish_between_bends(site: Site) -> Ref | None:
    """hardswish(x) = x (x / 6 + 1 / 2) where x is always between -3 and 3: no clamp."""
    operand = site.bound["self"]
    low, high = site.range(operand)
    if low < -3 or high > 3 or site.node.dtype in HALVES:
        return None
    return site.mul(operand, site.add(site.mul(operand, 1.0 / 6.0), 0.5))


BOUND = 20.0  # exp(20) = 5e8: no sum of such overflows, no such term vanishes


@law(
    "exponentials that cannot overflow", REASSOCIATES,
    at=[aten.logsumexp.default, aten.softmax.int, aten._softmax.default],
    examples=[
        of(lambda x: torch.tanh(x).logsumexp(1), 4, 5),
        of(lambda x: (torch.sigmoid(x) * 5 - 3).logsumexp((1, 2), keepdim=True), 4, 5, 3),
        of(lambda x: F.softmax(torch.tanh(x) * 3, 1), 4, 5),
        of(lambda x: (x + F.hardswish(torch.tanh(x))).logsumexp(1), 4, 5, applies=False),
        of(lambda x: (torch.tanh(x) * 50).logsumexp(1), 4, 5, applies=False),
        of(lambda x: torch.relu(x).softmax(1), 4, 5, applies=False),
    ],
)  # fmt: skip
def plain_exponentials(site: Site) -> Ref | None:
    """logsumexp(x) = log(sum(exp(x))) and softmax(x) = exp(x) (1 / sum(exp(x))): no maximum where |x| is at most 20."""
    operand = site.bound["self"]
    low, high = site.range(operand)
    if low < -BOUND or high > BOUND or is_constant((low, high)):
        return None
    if site[operand].dtype != site.node.dtype or site.node.dtype in HALVES:
        return None
    dims = dims_of(site.bound["dim"], len(site.shape(operand)))
    terms = site.unary(aten.exp.default, operand)
    if site.node.target is aten.logsumexp.default:
        return site.unary(aten.log.default, site.sum(terms, dims, bool(site.bound["keepdim"])))
    return site.mul(terms, site.unary(aten.reciprocal.default, site.sum(terms, dims, keepdim=True)))
