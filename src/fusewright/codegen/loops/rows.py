"""Several elements of a thread, one below the other, or side by side too: what they have in common, pools above all, is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ...ir import sizes
from ...ir.expr import Expr, Name, both, equal
from ...ir.graph import Dim
from ...ir.index import Coordinate
from ...ir.prims import Coordinates, Prim, Window

ROW = "r"  # the variable that counts the rows of a thread
COLUMN = "c"  # and its columns

T = TypeVar("T")


@dataclass(frozen=True)
class Along:
    """A thread's elements that lie along a dimension of a window."""

    variable: str  # that counts them
    dim: int
    step: int  # from one element's window to the next


@dataclass(frozen=True)
class Shared:
    """The windows of a thread's elements as one: from the first tap of the first to the last tap of the last."""

    along: tuple[Along, ...]
    first: Coordinates  # of the first element
    common: Window
    own: Window

    @property
    def variables(self) -> list[str]:
        return [along.variable for along in self.along]

    def takes(self, taps: Sequence[str]) -> Expr:
        """Whether a tap of the common window is one of an element's own."""
        return both(*(test for along in self.along for test in self.tests_along(along, taps[along.dim])))

    def takes_along(self, along: Along, tap: str) -> Expr:
        return both(*self.tests_along(along, tap))

    def tests_along(self, along: Along, tap: str) -> list[Expr]:
        here, first, dilation = Name(tap), Name(along.variable) * along.step, self.own.dilation[along.dim]
        between = [here >= first, here <= first + (self.own.kernel[along.dim] - 1) * dilation]
        return between if dilation == 1 else [*between, equal((here - first) % dilation, 0)]


@dataclass(frozen=True)
class Columns:
    """`count` elements side by side, along the innermost loop; what they read is taken in vectors of up to `vector` elements."""

    count: int
    along: str
    size: Dim
    vector: int


@dataclass(frozen=True)
class Rows:
    """`count` elements along a loop of `size`, each as many as `columns`."""

    count: int
    along: str  # the loop's variable: the first of the rows
    size: Dim
    columns: Columns | None = None

    @property
    def ragged(self) -> bool:
        """The last thread's rows may reach beyond the end."""
        return sizes.divide(self.size, self.count) is None

    def shared(self, op: Window, at: Coordinates) -> Shared | None:
        """Where they lie along dimensions of the window, and nothing else of its coordinates depends on them."""
        counted = [(ROW, self.count)] + ([(COLUMN, self.columns.count)] if self.columns else [])
        found: list[Along] = []
        common, first = op, at
        for variable, count in counted:
            along = lying_along(op, at, variable)
            if along is None:
                continue
            found.append(along)
            kernel = changed(common.kernel, along.dim, reach(op, along.dim, count, along.step))
            common = replace(common, kernel=kernel, dilation=changed(common.dilation, along.dim, 1))
            place = along.dim + len(at) - len(op.kernel)
            first = changed(first, place, without(first[place], variable))
        return Shared(tuple(found), first, common, op) if found else None


def lying_along(op: Window, at: Coordinates, variable: str) -> Along | None:
    where = [d for d, c in enumerate(at) if variable in c.depends]
    dim = where[0] - (len(at) - len(op.kernel)) if len(where) == 1 else -1
    if dim < 0:
        return None
    here = at[where[0]]
    factor = next((factor for axis, factor in here.terms.items() if axis.name == variable), 0)
    if variable in without(here, variable).depends or not isinstance(factor, int) or factor <= 0:
        return None
    return Along(variable, dim, op.stride[dim] * factor)


def without(at: Coordinate, variable: str) -> Coordinate:
    return Coordinate({axis: factor for axis, factor in at.terms.items() if axis.name != variable}, at.offset)


def reach(op: Window, dim: int, rows: int, step: int) -> int:
    """Taps from the first of the first row's window to the last of the last row's, those between them counted too."""
    return (rows - 1) * step + (op.kernel[dim] - 1) * op.dilation[dim] + 1


def in_a_run(prim: Prim, at: Coordinates, tap: str) -> bool:
    """What it has at the taps of a window lies side by side in memory."""
    if not at or any(tap in c.depends for c in at[:-1]) or tap not in at[-1].depends:
        return False
    factor = next((factor for axis, factor in at[-1].terms.items() if axis.name == tap), 0)
    hidden = tap in without(at[-1], tap).depends
    return sizes.is_one(factor) and not hidden and not prim.step and prim.order[-1] == len(at) - 1


def lead(first: Coordinate, columns: Columns) -> int | None:
    """How far behind a whole number of vectors a run begins that has its first element at `first`; None if that varies."""
    factors = [f * columns.count if axis.name == columns.along else f for axis, f in first.terms.items()]
    if not all(isinstance(n, int) for n in (*factors, first.offset)) or any(n % columns.vector for n in factors):
        return None
    return int(first.offset) % columns.vector


def pieces(ahead: int, count: int, vector: int) -> int:
    """Loads that `load_run` takes for a run of `count` elements that begins so many behind a whole vector."""
    at, found = 0, 0
    while at < count:
        wide = vector
        while (at + ahead) % wide or at + wide > count:
            wide //= 2
        at, found = at + wide, found + 1
    return found


def changed(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
