"""Matrices in memory, read as they lie: what an operand of a product is a view of, and how far apart its rows and columns are.

Heads of attention are permuted slices of one projection; a library call would copy each of them first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from ...ir import index, sizes
from ...ir.cpp import to_cpp
from ...ir.graph import Dim
from ...ir.index import Axis, Coordinate, linear
from ...ir.plan import Plan
from ...ir.prims import Coordinates, Prim, View


@dataclass(frozen=True)
class Matrices:
    """A matrix for each element of a batch: (batch…, i, j) lies at offset + Σ batch · step + i · row + j · column."""

    memory: str  # the primitive that holds them
    shape: tuple[Dim, ...]  # batch, rows, columns
    offset: Dim
    batch: tuple[Dim, ...]  # the step of each dimension
    row: Dim
    column: Dim

    @property
    def transposed(self) -> Matrices:
        """The same elements, each matrix transposed."""
        return replace(self, shape=(*self.shape[:-2], self.shape[-1], self.shape[-2]), row=self.column, column=self.row)

    @property
    def is_upright(self) -> bool:
        """The elements of a row lie side by side."""
        return sizes.is_one(self.column) or sizes.is_one(self.shape[-1])

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """What the text of a place mentions."""
        mentioned = (self.offset, *self.batch, *self.shape[1:-2], self.row, self.column)
        return frozenset().union(*(sympy.sympify(x).free_symbols for x in mentioned))

    def as_rows(self) -> Matrices | None:
        """All matrices below each other as one, where their rows are that far apart."""
        found = joined(self.shape[:-1], (*self.batch, self.row))
        if len(found) != 1:
            return None
        ((rows, step),) = found
        return replace(self, shape=(rows, self.shape[-1]), batch=(), row=step)


def matrices(value: str, plan: Plan) -> Matrices | None:
    """How a value of float32 lies in memory; None where it is computed, or the steps to its elements are not the same everywhere.

    What is only a copy of something in another order is read from there, if it can be.
    """
    prims = plan.lowered.prims
    prim = prims.get(value)
    if prim is None or prim.dtype is not torch.float32:
        return None
    behind = [prim]
    while isinstance(prim.op, View):
        prim = prims[prim.inputs[0]]
        behind.append(prim)
    ends = [n for n, prim in enumerate(behind) if plan.holds(prim)]
    for end in reversed(ends):
        found = lying(behind[: end + 1])
        if found is not None:
            return found
    return None


def lying(views: Sequence[Prim]) -> Matrices | None:
    """The first of `views`, each of the next, as matrices in the memory of the last. Steps may lead backward."""
    first, memory = views[0], views[-1]
    shape = first.shape if len(first.shape) > 1 else (1, *first.shape)
    parts = [(size,) for size in shape]  # a dimension of the batch may be several joined
    while not memory.step:
        axes = [[Axis(f"m{d}_{part}", size) for part, size in enumerate(dim)] for d, dim in enumerate(parts)]
        at = at_parts(axes)[-len(first.shape) :]
        for view, source in itertools.pairwise(views):
            at = view.op.source(at, view.shape, source.shape)
        place, flat = memory.offset(at), [axis for dim in axes for axis in dim]
        others = [axis for axis in place.terms if axis not in flat]
        if others:
            taken_apart = apart(parts, axes, others[0])
            if taken_apart is None:
                return None
            parts = taken_apart
            continue
        *batch, row, column = (place.terms.get(axis, 0) for axis in flat)
        return Matrices(memory.name, tuple(axis.size for axis in flat), place.offset, tuple(batch), row, column)
    return None


def at_parts(axes: Sequence[Sequence[Axis]]) -> Coordinates:
    """Where the element lies that these axes name, those of a dimension together."""
    return tuple(linear(tuple(map(Coordinate.of, dim)), tuple(axis.size for axis in dim)) for dim in axes)


def apart(parts: list[tuple[Dim, ...]], axes: list[list[Axis]], found: Axis) -> list[tuple[Dim, ...]] | None:
    """The parts of each dimension, the one that `found` divides as two: (64 m + k) / 512 divides m by 8."""
    for d, dim in enumerate(axes[:-2]):
        for part, axis in enumerate(dim):
            step = found.divided.terms.get(axis) if found.divided is not None else None
            inner = sizes.divide(found.by, step) if step is not None else None
            outer = sizes.divide(axis.size, inner) if inner is not None else None
            if inner is not None and outer is not None and not sizes.is_one(inner) and not sizes.is_one(outer):
                return [*parts[:d], (*parts[d][:part], outer, inner, *parts[d][part + 1 :]), *parts[d + 1 :]]
    return None


def joined(shape: Sequence[Dim], steps: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Dimensions with their steps, those as one that lie as one. Ones are left out."""
    found: list[tuple[Dim, Dim]] = []
    for size, step in zip(shape, steps, strict=True):
        if sizes.is_one(size):
            continue
        if found and sizes.same(found[-1][1], sizes.tidy(size * step)):
            found[-1] = (sizes.tidy(found[-1][0] * size), step)
        else:
            found.append((size, step))
    return found or [(1, 0)]


def operand(size: Dim) -> str:
    """A size as an operand in index arithmetic."""
    return to_cpp(index.operand(size))


def beginning(offset: Dim, shape: Sequence[Dim], steps: Sequence[Dim], number: str = "matrix") -> str:
    """Where matrix `number` of a batch begins, as C++ text: nothing where that is at 0.

    >>> beginning(768, (sympy.Symbol("b"), 8), (1000, 96))
    '(long long)(matrix / 8) * 1000 + matrix % 8 * 96 + 768'
    """
    terms = []
    for d, (size, step) in enumerate(zip(shape, steps, strict=True)):
        if sizes.same(step, 0):
            continue
        inner = sizes.product(shape[d + 1 :])
        which = f"{number} / {operand(inner)}" if not sizes.is_one(inner) else number
        which = f"{which} % {operand(size)}" if d else which
        far = d == 0 or not isinstance(step, int)
        which = f"(long long)({which})" if far and which != number else f"(long long){which}" if far else which
        terms.append(which if sizes.is_one(step) else f"{which} * {operand(step)}")
    terms += [sizes.c_text(offset)] if not sizes.same(offset, 0) else []
    return " + ".join(terms)
