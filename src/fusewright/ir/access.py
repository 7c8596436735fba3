"""Where evaluating a primitive reads what it is made of: coordinates, followed down to what is in memory."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import sizes
from .graph import Dim
from .index import Axis, Coordinate, LoopVariable, Tap, counted_inside, drawn_in, picked
from .prims import Coordinates, Iota, Picked, Pointwise, Prim, Unpooled, View, Window


def axes_of(space: Iterable[Dim]) -> tuple[Axis, ...]:
    return tuple(Axis(LoopVariable(d), size) for d, size in enumerate(space))


@dataclass(frozen=True)
class Access:
    """A leaf read at some coordinates, inside `windows` nested pools."""

    leaf: str
    at: Coordinates
    windows: int


def accesses(
    prims: dict[str, Prim],
    root: str,
    at: Coordinates,
    leaves: Container[str],
    inside: bool = False,
    uses: list[Coordinate] | None = None,
) -> list[Access]:
    """Every leaf that evaluating `root` at `at` reads. `inside` evaluates the root itself even if it is a leaf.

    Coordinates whose own value matters (compared with a bound, or computed with) are added to `uses`.
    """
    found: dict[tuple[str, Coordinates], Access] = {}
    seen: set[tuple[str, Coordinates]] = set()
    stack: list[tuple[str, Coordinates, int, bool]] = [(root, at, 0, inside)]
    while stack:
        name, here, windows, enter = stack.pop()
        prim = prims[name]
        key = (name, tuple_key(here))
        if key in seen:
            continue
        seen.add(key)
        if not enter and (name in leaves or prim.is_load or prim.is_collective):
            found[key] = Access(name, here, windows)
            continue
        if uses is not None and isinstance(prim.op, Iota):
            uses.append(here[prim.op.dim].plain())
        for child, where in inputs_at(prims, prim, here):
            if uses is not None and isinstance(prim.op, Window) and (prim.op.clipped or prim.op.kind == "largest"):
                uses += [c.plain() for c in where[-len(prim.op.kernel) :]]
            stack.append((child, where, windows + isinstance(prim.op, Window), False))
    return list(found.values())


def tuple_key(at: Coordinates) -> Any:
    return tuple((frozenset(c.terms.items()), c.offset) for c in at)


def inputs_at(prims: dict[str, Prim], prim: Prim, at: Coordinates) -> list[tuple[str, Coordinates]]:
    """Where a primitive at `at` reads each input. For a window: at the coordinate of its taps."""
    op = prim.op
    if isinstance(op, View):
        source = prims[prim.inputs[0]]
        return [(source.name, op.source(at, prim.shape, source.shape))]
    if isinstance(op, Window):
        return [(prim.inputs[0], inside(op, window_taps(op, at), prims[prim.inputs[0]].shape))]
    if isinstance(op, Unpooled):
        where = windows_at([window for window, _ in op.parts(at)], at, prims[prim.inputs[0]].shape)
        return [(name, where) for name in prim.inputs]
    if isinstance(op, Picked):
        source, *numbers = (prims[name] for name in prim.inputs)
        found = [(number.name, broadcast_at(at, number.shape)) for number in numbers]
        there = [picked(name, where, source.shape[d]) for (name, where), d in zip(found, op.dims, strict=True)]
        return [(source.name, op.source(at, there)), *found]
    if isinstance(op, Pointwise):
        return [(name, broadcast_at(at, prims[name].shape)) for name in prim.inputs]
    return []


def tap_names(at: Coordinates, rank: int) -> list[Tap]:
    """The variables that count the taps of a window: none that a window around it has."""
    used = [name.number for c in at for name in c.depends if isinstance(name, Tap)]
    first = max(used, default=-1) + 1
    return [Tap(i) for i in range(first, first + rank)]


def window_taps(op: Window, at: Coordinates) -> Coordinates:
    rank = len(op.kernel)
    taps = []
    for i, (c, name) in enumerate(zip(at[-rank:], tap_names(at, rank), strict=True)):
        tap = Coordinate({Axis(name, op.kernel[i]): 1})  # of a single tap too: it is read inside the window
        taps.append(c * op.stride[i] + tap * op.dilation[i] + -op.padding[i])
    return at[:-rank] + tuple(taps)


def windows_at(windows: Sequence[Coordinate], at: Coordinates, shape: tuple[Dim, ...]) -> Coordinates:
    """Where the window is that a position lies in; the last one's place, of those that lie in none behind it."""
    found = list(at)
    for dim, window in enumerate(windows, len(at) - len(windows)):
        there = all(sure(window, window, shape[dim]))
        found[dim] = window if there else drawn_in("clamped", window, shape[dim], f"window{dim}")
    return tuple(found)


def inside(op: Window, taps: Coordinates, shape: tuple[Dim, ...]) -> Coordinates:
    """Of a value put at some place: where it is not there, it is not read."""
    rank = len(op.kernel)
    if op.kind == "largest" or any(size > 1 for size in op.kernel):
        return taps
    return taps[:-rank] + tuple(map(counted_inside, taps[-rank:], shape[-rank:]))


def place_in(views: Sequence[Prim]) -> Coordinates:
    """Where an element of the first of `views`, each of the next, lies in the last."""
    at: Coordinates = tuple(map(Coordinate.of, axes_of(views[0].shape)))
    for view, source in itertools.pairwise(views):
        at = view.op.source(at, view.shape, source.shape)
    return at


def in_steps(views: Sequence[Prim]) -> bool:
    """The same steps lead from an element of the first to its neighbours everywhere in the last: PyTorch has the view without a copy."""
    return views[-1].offset(place_in(views)).terms.keys() <= set(axes_of(views[0].shape))


def broadcast_at(at: Coordinates, shape: tuple[Dim, ...]) -> Coordinates:
    kept = at[len(at) - len(shape) :]
    return tuple(Coordinate() if sizes.is_one(size) else c for c, size in zip(kept, shape, strict=True))


def sure(low: Coordinate, high: Coordinate, size: Dim) -> tuple[bool, bool]:
    """Whether coordinates from one to another lie beyond the beginning of a dimension, and before its end, whatever the sizes are."""
    above = all(map(sizes.nonnegative, [*low.terms.values(), low.offset]))
    return above, above and sizes.nonnegative(sizes.tidy(size - 1 - high.largest()))


def same_shape(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(map(sizes.same, a, b))


def without_ones(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return tuple(size for size in shape if not sizes.is_one(size))


def squeezed(at: Coordinates, shape: tuple[Dim, ...]) -> Coordinates:
    return tuple(c for c, size in zip(at, shape, strict=True) if not sizes.is_one(size))


def unsqueezed(row: Coordinates, row_shape: tuple[Dim, ...], shape: tuple[Dim, ...]) -> Coordinates:
    """The row's coordinates for a tensor of the same sizes, its ones elsewhere."""
    kept = iter(squeezed(row, row_shape))
    return tuple(Coordinate() if sizes.is_one(size) else next(kept) for size in shape)
