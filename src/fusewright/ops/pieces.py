"""Pieces of a tensor that may overlap: cut out, and put together again by adding what lies at the same place.

Each is the other's gradient. A position looks at the pieces that it may lie in, so that nothing is added by two threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from ..ir import sizes
from ..ir.expr import Arg
from ..ir.graph import Dim, Node
from ..ir.prims import Permute, Slice, Unfold
from .declare import lowers, value_of
from .lowering import Lowering
from .placement import placed
from .pools import added
from .registry import aten

MOST_PIECES = 25  # that a position may lie in; beyond that PyTorch adds them, which makes shorter code


@dataclass(frozen=True)
class Cut:
    """A dimension of `size` elements as pieces of so many `taps`, one begun every `step`."""

    dim: int
    size: Dim
    taps: int
    step: int
    padding: int = 0
    dilation: int = 1

    @property
    def count(self) -> Dim:
        span = sizes.tidy(self.size + 2 * self.padding - self.dilation * (self.taps - 1) - 1 + self.step)
        return span // self.step if isinstance(span, int) else sizes.tidy(FloorDiv(sympy.sympify(span), self.step))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The taps in runs, (first, how many), such that no two pieces have the same one at one place."""
        long = self.step if self.dilation == 1 else 1
        return [(first, min(long, self.taps - first)) for first in range(0, self.taps, long)]


def cuts_of(a: dict[str, Any], space: Sequence[Dim]) -> list[Cut] | None:
    """Of an image."""
    given = [list(a[name]) for name in ("kernel_size", "stride", "padding", "dilation")]
    if not all(len(part) == 2 and all(isinstance(n, int) for n in part) for part in given):
        return None
    return [Cut(2 + i, n, *numbers) for i, (n, *numbers) in enumerate(zip(space, *given, strict=True))]


@lowers("unfold", aten.unfold.default, view=True)
def unfold(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    if not build[source].shape or not isinstance(a["step"], int):
        return None
    return build.view("", Unfold(a["dimension"] % len(build[source].shape), a["step"]), source, node.shape)


@lowers("im2col", aten.im2col.default)
def im2col(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """(n, c, h, w) becomes (n, c·kh·kw, positions): what a convolution's window sees at each of its positions."""
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    cuts = cuts_of(a, build[source].shape[2:]) if len(build[source].shape) == 4 else None
    if cuts is None:
        return None
    batch, channels, *space = build[source].shape
    if any(cut.padding for cut in cuts):
        wide = [sizes.tidy(n + 2 * cut.padding) for n, cut in zip(space, cuts, strict=True)]
        source = placed(build, source, [batch, channels, *wide], [cut.padding for cut in cuts])
    (kh, kw), (rows, columns) = (cut.taps for cut in cuts), (cut.count for cut in cuts)
    by_rows = [batch, channels, rows, build[source].shape[3], kh]
    source = build.view("rows", Unfold(2, cuts[0].step, cuts[0].dilation), source, by_rows)
    source = build.view("windows", Unfold(3, cuts[1].step, cuts[1].dilation), source, [*by_rows[:3], columns, kh, kw])
    permuted = build.view("permuted", Permute((0, 1, 4, 5, 2, 3)), source, [batch, channels, kh, kw, rows, columns])
    return build.pointwise("", Arg(0), [build.reshape(permuted, node.shape)], node.dtype)  # not views: PyTorch would copy twice


@lowers("col2im", aten.col2im.default)
def col2im(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """(n, c·kh·kw, positions) becomes (n, c, h, w): what windows hold of a place, added."""
    assert node.shape is not None
    source = value_of(build, a["self"])
    cuts = cuts_of(a, node.shape[2:]) if len(node.shape) == 4 and len(build[source].shape) == 3 else None
    if cuts is None:
        return None
    batch, channels, *_ = node.shape
    taps, counts = [cut.taps for cut in cuts], [cut.count for cut in cuts]
    apart = [batch, channels, *taps, *counts]
    for dim, size in ((1, sizes.product(apart[1:4])), (2, sizes.product(counts))):  # the same, in other words
        if not sizes.same(size, build[source].shape[dim]):
            named = [size if d == dim else n for d, n in enumerate(build[source].shape)]
            source = build.view("named", Slice(dim, 0), source, named)
    permuted = build.view("permuted", Permute((0, 1, 4, 5, 2, 3)), build.reshape(source, apart), [batch, channels, *counts, *taps])
    return put_together(build, permuted, node, cuts)


@lowers("unfold_gradient", aten.unfold_backward.default)
def unfold_gradient(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source, dim = value_of(build, a["grad_in"]), a["dim"] % max(1, len(node.shape))
    if not node.shape or not isinstance(a["size"], int) or not isinstance(a["step"], int) or not a["size"]:
        return None
    cut = Cut(dim, node.shape[dim], a["size"], a["step"])
    return put_together(build, source, node, [cut]) if sizes.same(cut.count, build[source].shape[dim]) else None


def put_together(build: Lowering, source: str, node: Node, cuts: Sequence[Cut]) -> str | None:
    """The sum of what pieces hold of each place. The source has the shape of the result with pieces counted along each dimension that
    is cut, and then dimensions that run along a piece."""
    assert node.shape is not None and node.dtype is not None
    runs = [cut.runs for cut in cuts]
    if prod(map(len, runs)) > MOST_PIECES or node.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    parts = [side_by_side(build, source, node.shape, cuts, chosen) for chosen in product(*runs)]
    if len(parts) == 1 and not any(cut.padding for cut in cuts) and all(map(sizes.same, build[parts[0]].shape, node.shape)):
        return parts[0]
    dims = {cut.dim: i for i, cut in enumerate(cuts)}
    for n, chosen in enumerate(product(*runs)):
        firsts = [first * cut.dilation - cut.padding for cut, (first, _) in zip(cuts, chosen, strict=True)]
        starts = [firsts[dims[d]] if d in dims else 0 for d in range(cuts[0].dim, len(node.shape))]
        parts[n] = placed(build, parts[n], node.shape, starts)
    return added(build, parts, node.dtype) if len(parts) > 1 else parts[0]


def side_by_side(build: Lowering, source: str, shape: Sequence[Dim], cuts: Sequence[Cut], runs: Sequence[tuple[int, int]]) -> str:
    """Of each piece only a run of its taps: they lie one beside the other, with nothing between them where a run is shorter than a step."""
    rank = len(shape)
    for i, (cut, (first, many)) in enumerate(zip(cuts, runs, strict=True)):
        if many < cut.taps:
            taken = [many if d == rank + i else size for d, size in enumerate(build[source].shape)]
            source = build.view("taps", Slice(rank + i, first), source, taken)
    behind = {cut.dim: rank + i for i, cut in enumerate(cuts)}
    order = [d for dim in range(rank) for d in (dim, *([behind[dim]] if dim in behind else []))]
    source = build.view("permuted", Permute(tuple(order)), source, [build[source].shape[d] for d in order])
    steps = {behind[cut.dim]: cut.step for cut in cuts}
    wide = [steps.get(d, size) for d, size in zip(order, build[source].shape, strict=True)]
    if any(many < cut.step for cut, (_, many) in zip(cuts, runs, strict=True)):
        source = placed(build, source, wide, [0] * (len(order) - cuts[0].dim - 1))
    step = {cut.dim: cut.step for cut in cuts}
    joined = [sizes.tidy(build[source].shape[order.index(d)] * step.get(d, 1)) for d in range(rank)]
    return build.reshape(source, joined, "joined")
