"""Index arithmetic: coordinates as whole-number combinations of loop variables, with division that simplifies when it provably can."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from . import sizes
from .expr import Expr, Function, Grouped, Name, Number, grouped, signed_sum
from .extent import extent, signed_terms
from .graph import Dim


class LoopVariable(str):
    """The name of the variable that runs along a dimension of a kernel's space."""

    dim: int

    def __new__(cls, dim: int) -> LoopVariable:
        found = super().__new__(cls, f"i{dim}")
        found.dim = dim
        return found


class Tap(str):
    """The name of a variable that counts the taps of a window."""

    number: int

    def __new__(cls, number: int) -> Tap:
        found = super().__new__(cls, f"k{number}")
        found.number = number
        return found


@dataclass(frozen=True)
class Axis:
    """A variable with 0 ≤ value < size, or what is computed of others, the `axes`."""

    name: str  # none of what is computed
    size: Dim
    axes: frozenset[str] = frozenset()
    computed: Expr | None = None
    symbols: frozenset[sympy.Symbol] = frozenset()  # that are in it
    by: Dim = 0  # of a quotient or remainder: the divisor,
    divided: Coordinate | None = field(default=None, compare=False, repr=False)  # and what was divided

    quotient: bool = False
    label: str = field(default="", compare=False)  # of what takes computing: what kernels call it, and compute once
    picks: tuple[Pick, ...] = field(default=(), compare=False, repr=False)  # that are in it
    means: Coordinate | None = field(default=None, compare=False, repr=False)  # of one that is inside where it counts: what it is

    @property
    def expr(self) -> Expr:
        return Name(self.name) if self.computed is None else self.computed

    @property
    def depends(self) -> frozenset[str]:
        return frozenset({self.name}) if self.computed is None else self.axes

    @property
    def is_picked(self) -> bool:
        return any(self.computed == pick.expr for pick in self.picks)


@dataclass(frozen=True, slots=True)
class AtPlace(Expr):
    """A primitive at some place, in the place of its value until a kernel has that."""

    name: str
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class Pick:
    """A coordinate that is a value of the graph, a whole number inside its dimension."""

    name: str  # of the primitive,
    at: tuple[Coordinate, ...]  # and where it is evaluated

    @property
    def expr(self) -> AtPlace:
        return AtPlace(self.name, tuple(c.expr() for c in self.at))


@dataclass(frozen=True)
class Counting:
    """A running number, and the loop variables that it was taken apart into, outermost first."""

    number: Expr
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Coordinate:
    """offset + Σ factor · axis."""

    terms: Mapping[Axis, Dim] = field(default_factory=dict)
    offset: Dim = 0

    @staticmethod
    def of(axis: Axis) -> Coordinate:
        return Coordinate({axis: 1}) if not sizes.is_one(axis.size) else Coordinate()

    def __add__(self, other: Coordinate | Dim) -> Coordinate:
        if not isinstance(other, Coordinate):
            return Coordinate(self.terms, sizes.tidy(self.offset + other))
        terms = dict(self.terms)
        for axis, factor in other.terms.items():
            terms[axis] = sizes.tidy(terms.get(axis, 0) + factor)
        total = Coordinate(
            {a: f for a, f in terms.items() if not sizes.same(f, 0)}, sizes.tidy(self.offset + other.offset)
        )
        return total.rejoined()

    def rejoined(self) -> Coordinate:
        """(x / d) · d·f + (x % d) · f is x · f."""
        for rest, factor in self.terms.items():
            if rest.divided is None or rest.quotient:
                continue
            for whole, times in self.terms.items():
                if not whole.quotient or whole.divided is None or whole.divided.expr() != rest.divided.expr():
                    continue
                if sizes.same(whole.by, rest.by) and sizes.same(times, sizes.tidy(factor * rest.by)):
                    others = {a: f for a, f in self.terms.items() if a not in (rest, whole)}
                    return Coordinate(others, self.offset) + rest.divided * factor
        return self

    def __mul__(self, factor: Dim) -> Coordinate:
        if sizes.same(factor, 0):
            return Coordinate()
        return Coordinate({a: sizes.tidy(f * factor) for a, f in self.terms.items()}, sizes.tidy(self.offset * factor))

    def counted(self, by: Counting) -> Coordinate:
        """With the number in the place of the variables it was taken apart into, where they stand as they do in it."""
        found = {axis.name: factor for axis, factor in self.terms.items()}
        if not all(axis.name in found for axis in by.axes):
            return self
        factor = expected = found[by.axes[-1].name]
        for axis in reversed(by.axes):
            if not sizes.same(found[axis.name], expected):
                return self
            expected = sizes.tidy(expected * axis.size)
        terms = {axis: f for axis, f in self.terms.items() if axis.name not in {inner.name for inner in by.axes[1:]}}
        running = frozenset(axis.name for axis in by.axes)
        number = Axis("", sizes.product(axis.size for axis in by.axes), running, by.number)
        return Coordinate(dict((number, factor) if a.name == by.axes[0].name else (a, f) for a, f in terms.items()), self.offset)

    def plain(self) -> Coordinate:
        """In terms of loop variables and what was computed of them."""
        if all(axis.means is None for axis in self.terms):
            return self
        total = Coordinate({}, self.offset)
        for axis, factor in self.terms.items():
            total = total + (Coordinate({axis: 1}) if axis.means is None else axis.means.plain()) * factor
        return total

    @property
    def depends(self) -> frozenset[str]:
        return frozenset().union(*(axis.depends for axis in self.terms))

    @property
    def picks(self) -> tuple[Pick, ...]:
        return tuple({pick.expr: pick for axis in self.terms for pick in axis.picks}.values())

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """Symbols that are in it."""
        found: set[sympy.Symbol] = set(sympy.sympify(self.offset).free_symbols)
        for axis, factor in self.terms.items():
            found |= axis.symbols | sympy.sympify(factor).free_symbols
        return frozenset(found)

    def largest(self) -> Dim:
        """An upper bound, sharp when factors are positive."""
        return sizes.tidy(self.offset + sum(f * (sympy.sympify(a.size) - 1) for a, f in self.terms.items()))

    def split(self, by: Dim) -> tuple[Coordinate, Coordinate]:
        """(self // by, self % by)."""
        if sizes.is_one(by):
            return self, Coordinate()
        whole: dict[Axis, Dim] = {}
        rest: dict[Axis, Dim] = {}
        for axis, factor in self.terms.items():
            quotient = sizes.divide(factor, by)
            if quotient is not None:
                whole[axis] = quotient
            else:
                rest[axis] = factor
        offset = sizes.divide(self.offset, by) if not sizes.same(self.offset, 0) else 0
        beyond, behind = (offset, 0) if offset is not None else from_below(self.offset, by)
        remainder, quotient_part = Coordinate(rest, behind), Coordinate(whole, beyond)
        positive = all(sizes.nonnegative(f) for f in remainder.terms.values()) and sizes.nonnegative(remainder.offset)
        if positive and sizes.nonnegative(sizes.tidy(by - 1 - remainder.largest())):
            return quotient_part, remainder
        if not remainder.terms and isinstance(remainder.offset, int) and isinstance(by, int):
            return quotient_part + remainder.offset // by, Coordinate({}, remainder.offset % by)
        divided, divisor = Grouped(remainder.expr()), operand(by)
        axes, picks = remainder.depends, remainder.picks
        limit = sizes.tidy(_floor(remainder.largest(), by) + 1)
        symbols = remainder.symbols | frozenset(sympy.sympify(by).free_symbols)
        over = Axis("", limit, axes, Grouped(divided / divisor), symbols, by, remainder, quotient=True, picks=picks)
        under = Axis("", by, axes, Grouped(divided % divisor), symbols, by, remainder, picks=picks)
        return quotient_part + Coordinate({over: 1}), Coordinate({under: 1})

    def expr(self) -> Expr:
        terms: list[tuple[bool, Expr]] = []
        for axis, factor in self.terms.items():
            if sizes.is_one(factor):
                terms.append((False, axis.expr))
            elif sizes.same(factor, -1):
                terms.append((True, axis.expr))
            else:
                terms.append((False, axis.expr * operand(factor)))
        if not sizes.same(self.offset, 0) or not terms:
            terms += signed_terms(self.offset)
        return signed_sum(terms)


def from_below(offset: Dim, by: Dim) -> tuple[Dim, Dim]:
    """What is divided has a part that may be negative, and C++ rounds towards 0: (so many times `by`, what is left of it)."""
    if sizes.nonnegative(offset):
        return 0, offset
    if isinstance(offset, int) and isinstance(by, int):
        return offset // by, offset % by
    whole, rest = sympy.Integer(0), sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(sympy.sympify(offset))):
        times = sizes.divide(sizes.tidy(term), by)
        whole, rest = (whole + times, rest) if times is not None else (whole, rest + term)
    if rest.is_Integer and rest < 0:
        whole, rest = whole + rest, rest - rest * by
    return sizes.tidy(whole), sizes.tidy(rest)


def _floor(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    exact = sizes.divide(a, b)
    return exact if exact is not None else sympy.sympify(a)  # a bound, not sharp


def operand(size: Dim) -> Expr:
    """A size as an operand in index arithmetic; symbolic ones in the kernel's index type."""
    return Number(size, "int") if isinstance(size, int) else grouped(extent(size))


def counted_inside(at: Coordinate, size: Dim) -> Coordinate:
    """A coordinate that counts only where it lies in a dimension of `size`: there, rows of such dimensions are told apart without a
    division."""
    if len(at.terms) == 1 and sizes.same(at.offset, 0) and all(a.size == size and f == 1 for a, f in at.terms.items()):
        return at
    return Coordinate.of(Axis("", size, at.depends, Grouped(at.expr()), at.symbols, picks=at.picks, means=at))


def drawn_in(how: str, at: Coordinate, size: Dim, label: str = "") -> Coordinate:
    """A coordinate that may lie beyond 0 and `size`, brought inside by a device function."""
    symbols = at.symbols | frozenset(sympy.sympify(size).free_symbols)
    return Coordinate.of(Axis("", size, at.depends, Function(how)(at.expr(), operand(size)), symbols, label=label, picks=at.picks))


def sampled(how: str, at: Coordinate, scale: Expr, tap: int, size: Dim, resized: Dim, label: str) -> Coordinate:
    """Where a coordinate of a `resized` dimension lies in one of `size`, by device functions; `tap` elements further on."""
    symbols = at.symbols | frozenset(sympy.sympify(size).free_symbols | sympy.sympify(resized).free_symbols)
    here = at.expr()
    found = Function("sampled")(here, Function(how)(here, scale), extent(tap), operand(size))
    return Coordinate.of(Axis("", size, at.depends, found, symbols, label=label, picks=at.picks))


def picked(name: str, at: tuple[Coordinate, ...], size: Dim) -> Coordinate:
    """A coordinate of a dimension of `size` that the primitive `name` has at `at`."""
    pick, depends = Pick(name, at), frozenset().union(*(c.depends for c in at))
    return Coordinate.of(Axis("", size, depends, pick.expr, label=name, picks=(pick,)))


@functools.lru_cache(maxsize=65536)
def contiguous(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Strides of a contiguous tensor."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = sizes.tidy(step * size)
    return tuple(reversed(strides))


def linear(coordinates: tuple[Coordinate, ...], shape: tuple[Dim, ...]) -> Coordinate:
    """The offset of an element in a contiguous tensor."""
    total = Coordinate()
    for coordinate, stride, size in zip(coordinates, contiguous(shape), shape, strict=True):
        if not sizes.is_one(size):
            total = total + coordinate * stride
    return total


def reshape(
    coordinates: tuple[Coordinate, ...], shape: tuple[Dim, ...], source: tuple[Dim, ...]
) -> tuple[Coordinate, ...]:
    """Coordinates in a tensor of shape `source`, of the element at `coordinates` of its reshape to `shape`.

    Both shapes are cut into matching runs with equal products, so that untouched dimensions stay as they are.
    """
    result: list[Coordinate] = []
    for ours, theirs in _runs(shape, source):
        if len(ours) == 1 and len(theirs) == 1:
            result.append(coordinates[ours[0]])
            continue
        flat = linear(tuple(coordinates[i] for i in ours), tuple(shape[i] for i in ours))
        real = [position for position in theirs if not sizes.is_one(source[position])]
        run: dict[int, Coordinate] = {}
        for position in reversed(real[1:]):
            flat, run[position] = flat.split(source[position])
        if real:
            run[real[0]] = flat
        result += [run.get(position, Coordinate()) for position in theirs]
    return tuple(result)


@functools.lru_cache(maxsize=65536)
def _runs(shape: tuple[Dim, ...], source: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        ours: list[int] = []
        theirs: list[int] = []
        left: Dim = 1
        right: Dim = 1
        while True:
            if ours and theirs and sizes.same(left, right):
                break
            if not ours and i < len(shape):
                ours.append(i)
                left, i = shape[i], i + 1
            elif not theirs and j < len(source):
                theirs.append(j)
                right, j = source[j], j + 1
            elif i < len(shape) and (j >= len(source) or _smaller(left, right)):
                ours.append(i)
                left, i = sizes.tidy(left * shape[i]), i + 1
            elif j < len(source):
                theirs.append(j)
                right, j = sizes.tidy(right * source[j]), j + 1
            else:
                break
        runs.append((ours, theirs))
    return runs


def _smaller(left: Dim, right: Dim) -> bool:
    """Which side to extend: the one that still divides the other."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return sizes.divide(right, left) is not None
