"""The primitives that operators are lowered to: what a kernel can evaluate at one coordinate of its iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from . import index, sizes
from .cpp import to_cpp
from .expr import Expr, Number
from .graph import Dim
from .index import Coordinate

Coordinates = tuple[Coordinate, ...]


@dataclass(frozen=True)
class Load:
    """A tensor in memory: an input, a parameter, a library call's result, or another kernel's output.

    `step` names how far apart its elements lie, where only the caller knows: 0 if one stands for all of them. `repeated`: that one is
    then in memory as often as a thread reads at once. `order` has its dimensions as they lie in memory, where that is not the order
    of its shape.
    """

    step: str = ""
    repeated: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Size:
    """A size as a number."""

    size: Dim


@dataclass(frozen=True)
class Iota:
    """The coordinate along one dimension, as a number."""

    dim: int


@dataclass(frozen=True)
class Pointwise:
    """What `expression` makes of the inputs, which are first converted to `compute`."""

    expression: Expr
    compute: torch.dtype
    cost: int = 1  # instructions, roughly; transcendentals count more


@dataclass(frozen=True)
class Reduce:
    """An accumulator over `dims`, which stay as dimensions of size 1. `field` is the part of it that is the value."""

    accumulator: str
    dims: tuple[int, ...]
    field: str = "result()"


@dataclass(frozen=True)
class Scan:
    """What `kind` makes of all elements along `dim` up to each one: running sums, products, extremes."""

    kind: str
    dim: int


@dataclass(frozen=True)
class Window:
    """A pool: `kind` max or sum, over the last len(kernel) dimensions. What lies outside the input does not take part.

    Of kind largest it is a maximum and its position in the input, as one value of which pointwise primitives take parts. With a `span`
    the position is that in the window, as a number: its last digit is the place along the last dimension, of so many.
    """

    kind: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[Dim, ...]  # a number for a pool
    dilation: tuple[int, ...]
    clipped: bool  # some window may reach outside the input
    span: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unpooled:
    """Of two inputs, one element for each window of a pool, the second where the first says, 0 elsewhere: windows begin every `stride`
    along the last dimensions, do not overlap, and the first has the place in each as `Window.span` numbers it."""

    stride: tuple[int, ...]

    def parts(self, at: Coordinates) -> list[tuple[Coordinate, Coordinate]]:
        """Along each dimension: which window a position would lie in, and where in it."""
        return [c.split(step) for c, step in zip(at[-len(self.stride) :], self.stride, strict=True)]


@dataclass(frozen=True)
class Picked:
    """Elements of the first input where the others say: each of them numbers one of `dims`, always inside it, and broadcasts to
    the result's shape. The other dimensions of the first input are the dimensions `kept` of the result."""

    dims: tuple[int, ...]
    kept: tuple[int, ...]

    def source(self, at: Coordinates, numbers: Sequence[Coordinate]) -> Coordinates:
        picked, others = dict(zip(self.dims, numbers, strict=True)), iter(self.kept)
        rank = len(self.dims) + len(self.kept)
        return tuple(picked[d] if d in picked else at[next(others)] for d in range(rank))


class View:
    """Where an element of the view lies in its source."""

    is_free = True  # PyTorch makes it from what is in memory, without a copy or with the one that it would make anyway

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        raise NotImplementedError


@dataclass(frozen=True)
class Reshape(View):
    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        return index.reshape(at, shape, source)


@dataclass(frozen=True)
class Expand(View):
    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        kept = at[len(shape) - len(source) :]
        return tuple(Coordinate() if sizes.is_one(size) else c for c, size in zip(kept, source, strict=True))


@dataclass(frozen=True)
class Permute(View):
    order: tuple[int, ...]  # dimension i of the view is dimension order[i] of the source

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        return tuple(at[self.order.index(dim)] for dim in range(len(source)))


@dataclass(frozen=True)
class Slice(View):
    dim: int
    start: Dim
    step: int = 1

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        return tuple(c * self.step + self.start if d == self.dim else c for d, c in enumerate(at))


@dataclass(frozen=True)
class Unfold(View):
    """Overlapping pieces of `dim`, one begun every `step`; the last dimension of the view runs along a piece."""

    dim: int
    step: int
    dilation: int = 1

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        inside = at[-1] * self.dilation
        return tuple(c * self.step + inside if d == self.dim else c for d, c in enumerate(at[:-1]))


@dataclass(frozen=True)
class Diagonal(View):
    """What lies on a diagonal of the dimensions `row` and `column`, `offset` to the right of the main one, as the last dimension."""

    row: int
    column: int
    offset: int

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        others = iter(at[:-1])
        here = {self.row: at[-1] + max(0, -self.offset), self.column: at[-1] + max(0, self.offset)}
        return tuple(here[d] if d in here else next(others) for d in range(len(source)))


@dataclass(frozen=True)
class Parts(View):
    """The last `rank` dimensions, each as parts that begin where as many equal ones would, rounded down.

    The view has the dimensions that count the parts, then those that run along a part: beyond the end of the source at its last.
    """

    rank: int
    is_free = False

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        lead = len(source) - self.rank
        found = list(at[:lead])
        for part, along, parts, size in zip(at[lead:-self.rank], at[-self.rank :], shape[lead:], source[lead:], strict=False):
            start, _ = (part * size).split(parts)
            here = start + along
            found.append(here if sizes.divide(size, parts) is not None else index.drawn_in("clamped", here, size))
        return tuple(found)


@dataclass(frozen=True)
class Shift(View):
    """Each of `dims` moved on by its number of `places`; what comes from beyond an end is taken from elsewhere in the source.

    `how` is a device function: wrapped (from the other end; wrapped_once where nothing lies further), mirrored (the end is the
    mirror) or clamped (the end itself).
    """

    how: str
    dims: tuple[int, ...]
    places: tuple[int, ...]
    is_free = False

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        found = list(at)
        for dim, places in zip(self.dims, self.places, strict=True):
            found[dim] = index.drawn_in(self.how, at[dim] + -places, source[dim])
        return tuple(found)


@dataclass(frozen=True)
class Sampled(View):
    """Each of `dims` resized: the element of the source that lies where `how` says, and so many `taps` on; beyond an end, the end.

    `how` is a device function of a coordinate and of a scale, which may name the symbols of the sizes.
    """

    how: str
    dims: tuple[int, ...]
    scales: tuple[Expr, ...]
    taps: tuple[int, ...]
    is_free = False

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        found = list(at)
        for dim, scale, tap in zip(self.dims, self.scales, self.taps, strict=True):
            label = f"source{dim}_{tap}" if tap >= 0 else f"source{dim}_m{-tap}"
            found[dim] = index.sampled(self.how, at[dim], scale, tap, source[dim], shape[dim], label)
        return tuple(found)


@dataclass(frozen=True)
class Flip(View):
    dims: tuple[int, ...]
    is_free = False

    def source(self, at: Coordinates, shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> Coordinates:
        return tuple(c * -1 + sizes.tidy(shape[d] - 1) if d in self.dims else c for d, c in enumerate(at))


@dataclass(frozen=True)
class Prim:
    """One value of the lowered graph."""

    name: str
    op: Any  # one of the kinds above
    inputs: tuple[str, ...]
    shape: tuple[Dim, ...]
    dtype: torch.dtype
    origin: str = ""  # the graph node it was made for
    channels_last: bool = False  # in memory its dimension 1 lies innermost
    note: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_load(self) -> bool:
        return isinstance(self.op, Load)

    @property
    def step(self) -> str:
        """What the distance of its elements in memory is called, where only the caller knows it."""
        return self.op.step if isinstance(self.op, Load) else ""

    @property
    def one_by_one(self) -> bool:
        """No vector of it is read: one element may stand for all, and be there once."""
        return isinstance(self.op, Load) and bool(self.op.step) and not self.op.repeated

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Its dimensions as they lie in memory, the innermost last."""
        dims = range(len(self.shape))
        if isinstance(self.op, Load) and self.op.order:
            return self.op.order
        return (0, *dims[2:], 1) if self.channels_last else tuple(dims)

    @cached_property
    def strides(self) -> tuple[Dim, ...]:
        found = index.contiguous(tuple(self.shape[d] for d in self.order))
        return tuple(found[self.order.index(d)] for d in range(len(self.shape)))

    def offset(self, at: Coordinates) -> Coordinate:
        """Where in memory an element lies."""
        return index.linear(tuple(at[d] for d in self.order), tuple(self.shape[d] for d in self.order)).plain()

    @property
    def is_collective(self) -> bool:
        """Made from a whole row: a kernel is there for it, and the others read it from memory."""
        return isinstance(self.op, (Reduce, Scan))

    @property
    def is_inline(self) -> bool:
        """Computed where it is used, unless something needs it in memory."""
        return isinstance(self.op, (Pointwise, View, Size, Iota, Window, Unpooled, Picked))


C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


def arithmetic_type(dtype: torch.dtype) -> str:
    """The C++ type in which a value is computed: halves in float, the rest as it is."""
    return "float" if dtype in (torch.float16, torch.bfloat16) else C_TYPES[dtype]


def constant(value: bool | int | float, dtype: torch.dtype) -> Number:
    """A Python number in the type in which values of that type are computed."""
    kind = arithmetic_type(dtype)
    if kind in ("float", "double"):
        return Number(float(value), kind)
    if kind == "bool":
        return Number(bool(value), kind)
    return Number(int(value) % 256 if dtype is torch.uint8 else int(value), kind)  # as PyTorch converts a negative one


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """The same as C++ text."""
    return to_cpp(constant(value, dtype))
