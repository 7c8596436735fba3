"""Resizing: an element of the result lies at some place of the source, and is made of what is next to it there.

Places are computed in float32, as PyTorch's CUDA kernels do, rounding for rounding: a nearest element is the same one, and weights
differ by no more than what comes after. The scale is what the model gives, or one size over the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import functions as fn
from ..ir import sizes
from ..ir.expr import Arg, Cast, Expr, Function, as_expr, total
from ..ir.extent import extent
from ..ir.graph import Dim, Node
from ..ir.prims import Iota, Sampled, Size
from .declare import lowers, value_of
from .lowering import Lowering
from .placement import spread
from .registry import aten

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Resized:
    """A dimension of `size` elements that becomes one of `resized`, by the factor that the model gives, if it gives one."""

    dim: int
    size: Dim
    resized: Dim
    factor: float | None
    corners: bool  # the first and the last elements of both lie at the same places

    @property
    def stays(self) -> bool:
        return sizes.same(self.size, self.resized) and (self.corners or self.factor in (None, 1.0))

    @property
    def is_sure(self) -> bool:
        """PyTorch goes by the sizes in some kernels and by the factor in others, where both say that nothing or twice as much is there."""
        if self.corners or self.factor is None or not isinstance(self.size, int) or not isinstance(self.resized, int):
            return True
        return self.resized not in (self.size, 2 * self.size) or self.resized == self.factor * self.size

    @property
    def scale(self) -> float | tuple[Dim, Dim]:
        """Elements of the source for each of the result: a float32, or two sizes whose quotient it is."""
        if self.factor is not None and not self.corners:
            return rounded(1.0 / self.factor)
        above, below = (sizes.tidy(n - 1) if self.corners else n for n in (self.size, self.resized))
        if isinstance(above, int) and isinstance(below, int):
            return rounded(torch.tensor(float(above)) / torch.tensor(float(below))) if below else 0.0
        return above, below

    @property
    def scale_expr(self) -> Expr:
        found = self.scale
        return as_expr(found) if isinstance(found, float) else fn.ratio_of(*map(extent, found))

    @property
    def repeats(self) -> int | None:
        """How often each element is there, where PyTorch's rounding has all of them equally often: i · (1 / n) may be less than i / n."""
        times = self.factor if self.factor is not None else sizes.divide(self.resized, self.size)
        if not isinstance(times, (int, float)) or times < 1 or times != int(times):
            return None
        n = torch.tensor(float(times))
        return int(times) if float((n * rounded(1.0 / float(times))).floor()) == 1.0 else None

    def place(self, build: Lowering, how: str, rank: int) -> str:
        """Where each element lies, as a value that broadcasts."""
        shape = [self.resized if d == self.dim else 1 for d in range(rank)]
        names = [build.add("position", Iota(self.dim), [], shape, torch.int64)]
        scale = self.scale
        if isinstance(scale, tuple):
            names += [build.add("size", Size(n), [], (), torch.int64) for n in scale]
        ratio = fn.ratio_of(Arg(1), Arg(2)) if isinstance(scale, tuple) else scale
        return build.pointwise("place", Function(how)(Arg(0), ratio), names, torch.float32, cost=4)


def rounded(value: float | torch.Tensor) -> float:
    return float(torch.as_tensor(value, dtype=torch.float32))


def dimensions(build: Lowering, node: Node, a: dict[str, Any]) -> tuple[str, list[Resized]] | None:
    """The source, and those of its dimensions that change; None where PyTorch is not sure of itself."""
    assert node.shape is not None
    source = value_of(build, a["input"] if "input" in a else a["self"])
    before, after = build[source].shape[2:], node.shape[2:]
    factors = a.get("scale_factors") or [a.get(name) for name in ("scales_d", "scales_h", "scales_w", "scales") if name in a]
    factors = list(factors) or [None] * len(after)
    if len(factors) != len(after) or not all(f is None or (isinstance(f, (int, float)) and f > 0) for f in factors):
        return None
    corners = bool(a.get("align_corners"))
    found = [Resized(2 + d, n, m, f, corners) for d, (n, m, f) in enumerate(zip(before, after, factors, strict=True))]
    if not all(one.is_sure and sizes.printable(one.resized) for one in found):
        return None
    return source, [one for one in found if not one.stays]


def tap(build: Lowering, source: str, how: str, along: Sequence[Resized], taps: Sequence[int], shape: Sequence[Dim]) -> str:
    """The element at each place, and so many on along each dimension."""
    view = Sampled(how, tuple(one.dim for one in along), tuple(one.scale_expr for one in along), tuple(taps))
    return build.view("near", view, source, shape)


def overloads(name: str, *ranks: int) -> list[Any]:
    packets = [getattr(aten, name.format(d)) for d in ranks]
    return [overload for packet in packets for overload in (packet.default, packet.vec)]


@lowers("upsample_nearest", *overloads("upsample_nearest{}d", 1, 2, 3), *overloads("_upsample_nearest_exact{}d", 1, 2, 3))
def upsample_nearest(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """By whole factors, every element repeated along each dimension; by others, the element at the place."""
    assert node.shape is not None
    found = dimensions(build, node, a)
    if found is None:
        return None
    source, along = found
    exact = "exact" in str(node.target)
    times = [one.repeats for one in along]
    if all(times):
        return spread(build, source, [one.dim for one in along], [n for n in times if n is not None], True, node.shape)
    view = tap(build, source, "halfway" if exact else "cornered", along, [0] * len(along), node.shape)
    return build.pointwise("", Arg(0), [view], build[view].dtype)


@lowers(
    "upsample_linear",
    *overloads("upsample_linear{}d", 1),
    *overloads("upsample_bilinear{}d", 2),
    *overloads("upsample_trilinear{}d", 3),
)
def upsample_linear(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Between the two neighbours along each dimension: along the last one first."""
    return interpolated(build, node, a, "cornered" if a["align_corners"] else "centred_inside", linear_weights, (0, 1))


@lowers("upsample_bicubic", *overloads("upsample_bicubic{}d", 2))
def upsample_bicubic(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """By the cubic through four neighbours along each dimension: along the last one first."""
    return interpolated(build, node, a, "cornered" if a["align_corners"] else "centred", cubic_weights, (-1, 0, 1, 2))


def interpolated(build: Lowering, node: Node, a: dict[str, Any], how: str, weights_at: Any, taps: tuple[int, ...]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    found = dimensions(build, node, a)
    if found is None or node.dtype not in FLOATS:
        return None
    source, along = found
    if not along:
        return build.pointwise("", Arg(0), [source], node.dtype)
    weights = {one.dim: weights_at(build, one.place(build, how, len(node.shape))) for one in along}
    values = {at: tap(build, source, how, along, at, node.shape) for at in itertools.product(taps, repeat=len(along))}
    weighted = total([Arg(i) * Arg(len(taps) + i) for i in range(len(taps))])
    for one in reversed(along):
        last = one is along[0]
        sides = {at[:-1]: [values[(*at[:-1], t)] for t in taps] for at in values}
        label, dtype = ("", node.dtype) if last else ("between", torch.float32)
        values = {
            at: build.pointwise(label, weighted, [*weights[one.dim], *side], dtype, torch.float32, cost=len(taps))
            for at, side in sides.items()
        }
    return values[()]


def linear_weights(build: Lowering, place: str) -> list[str]:
    above = build.pointwise("above", lambda x: x - Cast("float", fn.floor_of(x)), [place], torch.float32, cost=2)
    return [build.pointwise("below", lambda x: 1.0 - x, [above], torch.float32), above]


def cubic_weights(build: Lowering, place: str) -> list[str]:
    above = build.pointwise("above", lambda x: x - Cast("float", fn.floor_of(x)), [place], torch.float32, cost=2)
    x = Arg(0)
    weights = fn.cubic_far(x + 1.0), fn.cubic_near(x), fn.cubic_near(1.0 - x), fn.cubic_far((1.0 - x) + 1.0)
    return [build.pointwise("weight", weight, [above], torch.float32, cost=4) for weight in weights]
