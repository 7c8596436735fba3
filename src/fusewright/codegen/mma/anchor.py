"""What a kernel with an anchor is: the convolution or product that it computes itself, and how it goes on from there.

Planners make these, kernel templates read them: they stand below both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ...ir import sizes
from ...ir.index import Axis, Coordinate
from ...ir.plan import Plan
from ...ir.prims import Coordinates
from .conv_spec import Epilogue
from .product import Product
from .weight_gradient import WeightGradient


@dataclass(frozen=True)
class Anchor:
    """A convolution or product that a kernel computes itself. `value` is the primitive that holds its result, bias included."""

    conv: Any  # conv.Conv, product.Product or weight_gradient.WeightGradient
    value: str
    input: str
    weight: str
    bias: str | None
    out_shape: tuple[object, ...]
    node: str  # in the graph
    depth: Any = 0  # of a product: how many numbers a sum has
    shapes: tuple[tuple[Any, ...], ...] = ()  # of the operands of a weight's gradient, which memory may have as other dimensions
    of: str = ""  # the weight, in the forward graph, that it is the gradient of
    exact: bool = False  # of a convolution: the library computes it in float32, although the flags allow TF32

    @property
    def coarser(self) -> bool:
        """Our kernel rounds operands that the library does not."""
        return self.exact and bool(self.conv.tf32)


@dataclass(frozen=True)
class Fused:
    """How a kernel ends its convolution."""

    anchor: Anchor
    epilogue: Epilogue
    window: str | None = None  # the primitive of the pool inside the tile


def axes_for(shape: tuple[object, ...]) -> Coordinates:
    names = ("n", "c", *("d", "h", "w")[5 - len(shape) :])
    return tuple(Coordinate.of(Axis(name, size)) for name, size in zip(names, shape, strict=True))


def input_sizes(anchor: Anchor, plan: Plan) -> tuple[int, ...]:
    batch, _, *spatial = plan.lowered.prims[anchor.input].shape
    return tuple(plan.graph.hint(size) for size in (batch, *spatial))


def arithmetic(anchor: Anchor, plan: Plan) -> str:
    """How a convolution on the tensor cores multiplies float32 numbers, and why, in words."""
    if isinstance(anchor.conv, WeightGradient):
        return anchor.conv.arithmetic
    conv, followed = anchor.conv, plan.precision is not None and plan.precision.library is not None
    if conv.is_strict:
        asked = plan.precision is not None and plan.precision.arithmetic == "ieee"
        why = "as was asked for" if asked else "the library computes this convolution in float32" if anchor.exact else "TF32 is not allowed"
        return f"three products of TF32 parts, as exact as float32: {why}"
    if conv.bf16_parts:
        return "three products of bf16 parts, each sum off by at most 3 * 2^-16 of what it adds up: the library computes it in float32"
    if conv.scaled:
        allowed = "the library's own accuracy allows" if anchor.exact else "the library has" if followed else "the flags allow"
        return f"one product of fp16 scaled by powers of two, with the 11 bits of TF32, which {allowed}; in TF32 where a tile does not fit"
    if anchor.exact:
        return "one TF32 product: results stay within 1e-4 of their rms of the library's, which is float32"
    return f"one TF32 product, as {'the library has it' if followed else 'the flags allow'}"


def conv_flops(anchor: Anchor, plan: Plan) -> int:
    """Of the convolution, the product, or the gradient of a weight."""
    conv = anchor.conv
    if isinstance(conv, Product):
        return 2 * plan.graph.hint(sizes.product(anchor.out_shape)) * conv.depth
    if isinstance(conv, WeightGradient):
        return 2 * plan.graph.hint(sizes.product(anchor.shapes[0])) // anchor.shapes[0][1] * conv.weights
    batch, *spatial = input_sizes(anchor, plan)
    positions = prod(spatial if conv.is_phased else conv.out_sizes(spatial))  # each of them meets every tap
    return 2 * batch * positions * conv.out_channels * conv.in_channels // conv.groups * prod(conv.kernel)


def rows_and_batch(anchor: Anchor, plan: Plan) -> tuple[int, int]:
    """About how many rows each product has, and how many products there are."""
    *others, rows, _columns = anchor.out_shape if len(anchor.out_shape) > 1 else (1, *anchor.out_shape)
    batch, rows = plan.graph.hint(sizes.product(tuple(others))), plan.graph.hint(rows)
    return (rows, batch) if anchor.conv.batched else (batch * rows, 1)
