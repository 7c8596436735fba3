"""Adaptive pools: output i of n is made of the elements from ⌊i·size / n⌋ up to ⌈(i + 1)·size / n⌉, by a reduction over that part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from ..ir import sizes
from ..ir.expr import Arg, Cast, Expr, both, product, quotient, select
from ..ir.graph import Dim, Node
from ..ir.prims import Iota, Parts, Size, Window
from .declare import element_of, lowers, value_of
from .lowering import Lowering
from .pools import only_values
from .registry import aten

SHORT = 16  # elements of a part, below which a reduction's threads have nothing to do: taps of a window, or PyTorch's


@dataclass(frozen=True)
class Division:
    """A dimension of `size` elements as `parts` parts, which share elements where it does not divide."""

    size: Dim
    parts: Dim

    @property
    def even(self) -> Dim | None:
        """How long each part is, where they are all as long and it is known."""
        return sizes.divide(self.size, self.parts)

    @property
    def longest(self) -> Dim:
        """With size = q n + r: q where r is 0, which may not be known; q + 1 for r = 1, for more q + 2."""
        if self.even is not None:
            return self.even
        return sizes.tidy(FloorDiv(sympy.sympify(self.size + self.parts - 2), self.parts) + 1)


def divisions(build: Lowering, source: str, outputs: int | Sequence[Dim]) -> list[Division] | None:
    """None where the number of parts is a size that only a call knows, unless each part is one element."""
    parts = [outputs] if isinstance(outputs, int) else list(outputs)
    found = [Division(size, n) for size, n in zip(build[source].shape[-len(parts) :], parts, strict=True)]
    return found if all(isinstance(d.parts, int) or d.even is not None for d in found) else None


def reduced(build: Lowering, source: str, along: list[Division], accumulator: str, nothing: float) -> str | None:
    """Of each part. Parts are read as long as the longest; what lies beyond the end of a shorter one is `nothing`."""
    shape, rank = build[source].shape, len(along)
    lead, longest = shape[:-rank], [division.longest for division in along]
    if math.prod(build.graph.hint(size) for size in longest) < SHORT:
        return None
    whole = [*lead, *(division.parts for division in along), *longest]
    value = build.view("parts", Parts(rank), source, whole)
    uneven = [d for d, division in enumerate(along) if division.even is None]
    if uneven:
        tests: list[Expr] = []
        names: list[str] = []
        for d in uneven:
            position = build.add("position", Iota(len(lead) + rank + d), [], whole, torch.int64)
            tests.append(Arg(len(names)) < Arg(len(names) + 1))
            names += [position, lengths(build, along, d, rank)]
        inside = build.pointwise("inside", both(*tests), names, torch.bool, torch.int64)
        value = build.pointwise("part", lambda inside, x: select(inside, x, nothing), [inside, value], torch.float32)
    over = range(len(whole) - rank, len(whole))
    return build.drop(build.reduce("", accumulator, value, over, dtype=torch.float32), over, keepdim=False)


def lengths(build: Lowering, along: list[Division], dim: int, behind: int = 0) -> str:
    """How many elements each part has along a dimension, as a value that broadcasts; `behind` dimensions follow the parts'."""
    division = along[dim]
    size = build.add("size", Size(division.even if division.even is not None else division.size), [], (), torch.int64)
    if division.even is not None:
        return size
    shape = [division.parts if d == dim else 1 for d in range(len(along) + behind)]
    part, n = build.add("part", Iota(dim), [], shape, torch.int64), division.parts
    assert isinstance(n, int)

    def length(part: Expr, size: Expr) -> Expr:
        here = Cast("long long", part)
        return ((here + 1) * size + (n - 1)) / n - here * size / n

    return build.pointwise("length", length, [part, size], torch.int64)


@lowers(
    "adaptive_avg_pool",
    aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
)
def adaptive_avg_pool(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The sum of each part, divided by how many elements it has."""
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    along = divisions(build, source, a["output_size"])
    if along is None or build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    rank = len(along)
    if all(sizes.is_one(division.parts) for division in along):
        dims = range(len(node.shape) - rank, len(node.shape))
        total = build.reduce("sum", "Sum", source, dims)
        return build.pointwise("", quotient, [total, build.count(source, dims)], node.dtype, torch.float32, cost=4)
    found = reduced(build, source, along, "Sum", 0.0)
    if found is not None:
        counts = [lengths(build, along, d) for d in range(rank)]
        count = build.pointwise("count", lambda *n: Cast("float", product(n)), counts, torch.float32, torch.int64)
        return build.pointwise("", quotient, [found, count], node.dtype, torch.float32, cost=4)
    kernel = tuple(division.even for division in along if isinstance(division.even, int))
    if len(kernel) < rank:
        return None
    window = Window("sum", kernel, kernel, (0,) * rank, (1,) * rank, clipped=False)
    total = build.add("sum", window, [source], node.shape, torch.float32)
    return build.pointwise("", lambda total: total / float(math.prod(kernel)), [total], node.dtype, torch.float32)


@element_of(aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """The values alone; where the positions are wanted too, PyTorch computes both at once."""
    assert node.dtype is not None
    source = value_of(build, a["self"])
    along = divisions(build, source, a["output_size"])
    floats = build[source].dtype in (torch.float32, torch.float16, torch.bfloat16)
    if i != 0 or along is None or not floats or not only_values(build, parent):
        return None
    found = reduced(build, source, along, "Max", -math.inf)
    return None if found is None else build.pointwise("", Arg(0), [found], node.dtype, torch.float32)
