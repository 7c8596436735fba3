"""Several elements of a thread, one below the other: what they have in common, pools above all, is read once for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from .. import sizes
from ..graph import Dim
from ..index import Coordinate
from ..prims import Coordinates, Window

ROW = "r"  # the variable that counts the rows of a thread

T = TypeVar("T")


@dataclass(frozen=True)
class Shared:
    """The windows of a thread's rows as one: from the first tap of the first row to the last tap of the last."""

    dim: int  # of the window, along which the rows lie
    first: Coordinates  # of the first row
    common: Window
    own: Window
    step: int  # from one row's window to the next

    def takes(self, tap: str, row: str) -> str:
        """Whether a tap of the common window is one of a row's own."""
        first, dilation = f"{row} * {self.step}", self.own.dilation[self.dim]
        between = f"{tap} >= {first} && {tap} <= {first} + {(self.own.kernel[self.dim] - 1) * dilation}"
        return between if dilation == 1 else f"{between} && ({tap} - {first}) % {dilation} == 0"


@dataclass(frozen=True)
class Rows:
    """`count` elements along a loop of `size`."""

    count: int
    along: str  # the loop's variable: the first of the rows
    size: Dim

    @property
    def ragged(self) -> bool:
        """The last thread's rows may reach beyond the end."""
        return sizes.divide(self.size, self.count) is None

    def shared(self, op: Window, at: Coordinates) -> Shared | None:
        """Where the rows lie along one of the window's dimensions, and nothing else of its coordinates depends on them."""
        where = [d for d, c in enumerate(at) if ROW in c.depends]
        dim = where[0] - (len(at) - len(op.kernel)) if len(where) == 1 else -1
        if dim < 0:
            return None
        here = at[where[0]]
        others = Coordinate({axis: factor for axis, factor in here.terms.items() if axis.text != ROW}, here.offset)
        factor = next((factor for axis, factor in here.terms.items() if axis.text == ROW), 0)
        if ROW in others.depends or not isinstance(factor, int) or factor <= 0:
            return None
        step = op.stride[dim] * factor
        kernel = changed(op.kernel, dim, reach(op, dim, self.count, step))
        common = replace(op, kernel=kernel, dilation=changed(op.dilation, dim, 1))
        return Shared(dim, changed(at, where[0], others), common, op, step)


def reach(op: Window, dim: int, rows: int, step: int) -> int:
    """Taps from the first of the first row's window to the last of the last row's, those between them counted too."""
    return (rows - 1) * step + (op.kernel[dim] - 1) * op.dilation[dim] + 1


def changed(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
