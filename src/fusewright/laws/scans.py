"""Laws that bring what stands beside a scan into the scan's own kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..ir import sizes
from ..ir.graph import Node, Ref
from ..ops.declare import is_ours, slice_start
from .examples import of
from .law import REASSOCIATES, Site, aten, law
from .ranges import is_constant

PADS = (aten.pad.default, aten.constant_pad_nd.default)
FILLED = {
    getattr(aten, name).default for name in "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full".split()
}
NEUTRAL = {aten.cumsum.default: 0, aten.cumprod.default: 1}  # what a scan does not notice in front of it


@law(
    "a constant beside a tensor",
    at=[aten.cat.default],
    examples=[
        of(lambda x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1).cumsum(1), 4, 5),
        of(lambda x: torch.cat((x, x.new_full((4, 2, 3), 1.5)), 1) * 2, 4, 5, 3),
        of(lambda x: torch.tanh(torch.cat((x.new_zeros(2), x, x.new_zeros(3)))), 5),
        of(lambda x: torch.cat((torch.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]), 1), 4, 5),
        of(lambda x: torch.cat((torch.zeros_like(x), x), 0), 4, 5, applies=False),
        of(lambda x: torch.tanh(torch.cat((x.new_zeros(2), x, x.new_ones(3)))), 5, applies=False),
        of(lambda x: torch.tanh(torch.cat((x, x.new_zeros(2), x))), 5, applies=False),
    ],
)  # fmt: skip
def constant_beside(site: Site) -> Ref | None:
    """cat(c, x) = pad(x) with c: the kernel that makes x or reads this does it on the way."""
    parts, shape = site.bound["tensors"], site.node.shape or ()
    others = [part for part in parts if not (site[part].target in FILLED and is_constant(site.range(part)))]
    if len(others) != 1 or site[others[0]].dtype != site.node.dtype or not beside_kernel(site, site[others[0]]):
        return None
    at, dim = parts.index(others[0]), site.bound["dim"] % len(shape)
    values = {site.range(part)[0] for part in parts if part not in others}
    before, behind = (sizes.tidy(sum(site.shape(part)[dim] for part in some)) for some in (parts[:at], parts[at + 1 :]))
    if len(values) != 1 or not isinstance(before, int) or not isinstance(behind, int):
        return None
    pads = [*[0, 0] * (len(shape) - 1 - dim), before, behind]
    return site.call(aten.constant_pad_nd.default, others[0], pads, values.pop(), shape=shape)


def beside_kernel(site: Site, source: Node) -> bool:
    """A kernel of ours makes the source for this node alone, or reads what the node gives."""
    readers = [site.graph[user] for user in site.users[site.node.name] if user in site.graph.index]
    made_here = is_ours(source, site.graph) and site.only_user(source)
    return made_here or any(is_ours(reader, site.graph) for reader in readers)


def with_next(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x[:, :-1], (1, 0)) + x


@law(
    "padding before a scan",
    REASSOCIATES,
    at=PADS,
    examples=[
        of(lambda x: F.pad(x.cumsum(1)[:, :-1], (1, 0)), 4, 5),
        of(lambda x: F.pad(x.cumprod(1)[:, :-2], (2, 0), value=1.0) * x, 4, 5),
        of(lambda x: F.pad(x.cumsum(0), (0, 0, 3, 0)), 4, 5),
        of(lambda x: F.pad(x.cumsum(1), (0, 1)), 4, 5, applies=False),
        of(lambda x: F.pad(x.cumprod(1), (1, 0)), 4, 5, applies=False),
        of(lambda x: F.pad(x.cumsum(1)[:, 1:], (1, 0)), 4, 5, applies=False),
        of(lambda x: with_next(x.cumsum(1)), 4, 5, applies=False),
    ],
)
def padding_before_scan(site: Site) -> Ref | None:
    """pad(cumsum(x)) = cumsum(pad(x)) for zeros in front, and so for cumprod and ones."""
    cuts, scan = cuts_of(site, site[site.bound["self"]])
    if scan.target not in NEUTRAL or not scan.shape or not all(map(site.only_user, (scan, *cuts))):
        return None
    source, dim = scan.bound()["self"], scan.bound()["dim"] % len(scan.shape)
    if not pads_in_front(site, len(scan.shape) - 1 - dim, NEUTRAL[scan.target]):
        return None
    for cut in reversed(cuts):
        a, assumed = cut.bound(), cut.shape or ()
        along = a["dim"] % len(assumed)
        start = slice_start(a["start"], site.shape(source)[along])
        if start is None or (along == dim and (start != 0 or a["step"] != 1)):
            return None
        source = site.slice(source, along, start, assumed[along], a["step"])
    padded = site.call(*padding(site, source), shape=site.node.shape or (), dtype=site[source].dtype)
    return site.again(scan, site.node.shape or (), {"self": padded})


def cuts_of(site: Site, node: Node) -> tuple[list[Node], Node]:
    """The slices that a value has been through, last first, and what they are of."""
    cuts = []
    while node.target is aten.slice.Tensor:
        cuts.append(node)
        node = site[node.args[0]]
    return cuts, node


def pads_in_front(site: Site, dims_behind: int, value: float) -> bool:
    """Nothing but this value, along the dimension that has so many behind it, and there only in front."""
    a, pads = site.bound, list(site.bound["pad"])
    along = len(pads) == 2 * dims_behind + 2 and not any(pads[:-2]) and pads[-1] == 0
    return along and a.get("mode", "constant") == "constant" and (a.get("value") or 0) == value


def padding(site: Site, source: Ref) -> tuple[Any, ...]:
    """The call that pads another tensor alike."""
    return aten.constant_pad_nd.default, source, list(site.bound["pad"]), site.bound.get("value") or 0
