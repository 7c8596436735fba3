"""Operators that put values elsewhere: pads, rolls, writes to a part of a tensor, pieces, repetition, positions.

A value is put at an offset of a larger tensor by a window of one tap: what lies outside the source does not take part,
so it is 0 there and is never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from ..ir import sizes
from ..ir.access import in_steps
from ..ir.expr import Arg, Expr, as_expr, both, equal, first_of, select
from ..ir.graph import Dim, Node, Ref
from ..ir.prims import Iota, Permute, Shift, Size, View, Window, constant
from .declare import cast, is_ours, lowers, slice_start, value_of
from .lowering import Lowering
from .registry import aten


def placed(build: Lowering, source: str, shape: Sequence[Dim], starts: Sequence[Dim], label: str = "placed") -> str:
    """A tensor of `shape` that holds the source from `starts` on (one for each of the last dimensions), 0 elsewhere."""
    ones = (1,) * len(starts)
    window = Window("sum", ones, ones, tuple(starts), ones, clipped=True)
    return build.add(label, window, [source], shape, build[source].dtype)


def inside(build: Lowering, source: str, shape: Sequence[Dim], starts: Sequence[Dim], step: int = 1) -> str:
    """Whether a position of `shape` lies in the source, put there from `starts` on; along the first of these, one of `step`."""
    tests: list[Expr] = []
    names: list[str] = []
    first = len(shape) - len(starts)
    for dim, start in enumerate(starts, first):
        stop, steps = sizes.tidy(start + build[source].shape[dim]), step if dim == first else 1
        if start == 0 and steps == 1 and sizes.same(stop, shape[dim]):
            continue
        at, stop_at = Arg(len(names)), Arg(len(names) + 1)
        names.append(build.add(f"position{dim}", Iota(dim), [], shape, torch.int64))
        names.append(build.add(f"stop{dim}", Size(stop), [], (), torch.int64))
        begin = as_expr(start) if isinstance(start, int) else Arg(len(names))
        if not isinstance(start, int):
            names.append(build.add(f"start{dim}", Size(start), [], (), torch.int64))
        tests += [at >= begin] if start != 0 else []
        tests.append(at < stop_at)
        tests += [equal((at - begin) % steps, 0)] if steps > 1 else []
    return build.pointwise("inside", both(*tests), names, torch.bool, torch.int64)


@lowers("pad", aten.pad.default, aten.constant_pad_nd.default)
def pad(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """A pad that is or may be negative, which cuts off, stays with PyTorch."""
    assert node.shape is not None and node.dtype is not None
    pads, value = list(a["pad"]), a.get("value") or 0
    if a.get("mode", "constant") in AT_ENDS:
        return padded_from_inside(build, node, value_of(build, a["self"]), pads, a["mode"])
    known = isinstance(value, (bool, int, float)) and all(sizes.never_negative(n) for n in pads)
    known = known and (value == 0 or all(isinstance(n, int) for n in pads))
    if a.get("mode", "constant") != "constant" or not known or not pads:
        return None
    source = value_of(build, a["self"])
    starts = pads[::2][::-1]  # given from the last dimension on
    result = placed(build, source, node.shape, starts, "" if value == 0 else "placed")
    if value == 0:
        return result
    where, number = inside(build, source, node.shape, starts), constant(value, node.dtype)
    return build.pointwise("", lambda inside, x: select(inside, x, number), [where, result], node.dtype)


def scattered(build: Lowering, node: Node, base: str, part: str, dim: int, start: Dim | None, step: int = 1) -> str | None:
    """`base` with `part` written over it from `start` along `dim` on, at every place or one of `step`."""
    assert node.shape is not None and node.dtype is not None
    least = {symbol: symbol + max(0, binding.lower - 1) for symbol, binding in build.graph.symbols.items()}
    if start is None or not sizes.never_negative(sympy.sympify(start).subs(least)):
        return None
    if start == 0 and step == 1 and sizes.same(build[part].shape[dim], node.shape[dim]):
        return part
    if step > 1:  # each element as wide as a step; only the first place of it is its own
        wide = [*build[part].shape[:dim], sizes.tidy(build[part].shape[dim] * step), *build[part].shape[dim + 1 :]]
        part = spread(build, part, [dim], [step], True, wide)
    starts = [start, *[0] * (len(node.shape) - dim - 1)]
    names = [inside(build, part, node.shape, starts, step), placed(build, part, node.shape, starts), base]
    return build.pointwise("", select, names, node.dtype)


@lowers("slice_scatter", aten.slice_scatter.default)
def slice_scatter(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """x[..., start:end:step] = part, as a new tensor."""
    base, part = value_of(build, a["self"]), value_of(build, a["src"])
    rank = len(build[base].shape)
    if not isinstance(a["step"], int) or build[base].dtype != build[part].dtype or len(build[part].shape) != rank:
        return None
    dim = a["dim"] % rank
    return scattered(build, node, base, part, dim, slice_start(a["start"], build[base].shape[dim]), a["step"])


@lowers("select_scatter", aten.select_scatter.default)
def select_scatter(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """x[..., i] = part, as a new tensor."""
    base, part = value_of(build, a["self"]), value_of(build, a["src"])
    shape = build[base].shape
    dim = a["dim"] % len(shape)
    row = [*shape[:dim], 1, *shape[dim + 1 :]]
    if build[base].dtype != build[part].dtype or len(build[part].shape) != len(shape) - 1:
        return None
    return scattered(build, node, base, build.reshape(part, row), dim, slice_start(a["index"], shape[dim]))


@lowers("diagonal_scatter", aten.diagonal_scatter.default)
def diagonal_scatter(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """A diagonal of the last two dimensions written over, as a new tensor: element n of it is in row n, or so much below."""
    assert node.shape is not None and node.dtype is not None
    base, part, rank, offset = value_of(build, a["self"]), value_of(build, a["src"]), len(node.shape), a["offset"]
    last = (a["dim1"] % rank, a["dim2"] % rank) == (rank - 2, rank - 1)
    if not last or not isinstance(offset, int) or build[base].dtype != build[part].dtype:
        return None
    column = build.reshape(part, [*build[part].shape, 1], "column")
    rows = placed(build, column, [*node.shape[:-1], 1], [max(0, -offset), 0])
    row, at = (build.add(label, Iota(dim), [], node.shape, torch.int64) for label, dim in (("row", rank - 2), ("at", rank - 1)))
    here = build.pointwise("here", lambda row, at: equal(at - row, offset), [row, at], torch.bool, torch.int64)
    return build.pointwise("", select, [here, build.expand(rows, node.shape), base], node.dtype)


MOST_PARTS = 8  # that an element of a joined tensor is chosen from
# Of parts that are in memory, for what reads them more than once, as norms in training do: each part is some 10 instructions an element
# and look (counted in the emitted text), and joining them is 8 bytes, as long as 57 instructions (H200: 4.2 TB/s, 30 T a second).
FEW_PARTS = 3


@lowers("cat", aten.cat.default)
def cat(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The part in which the coordinate along the joined dimension lies; only that one is read.

    Parts that are in memory and go to PyTorch as they are stay with PyTorch: nothing would be saved.
    """
    assert node.shape is not None and node.dtype is not None
    parts = [value_of(build, part) for part in a["tensors"]]
    rank, dim = len(node.shape), a["dim"] % max(1, len(node.shape))
    alike = all(len(build[p].shape) == rank and build[p].dtype == node.dtype for p in parts)
    if not alike or len(parts) > MOST_PARTS or (len(parts) > 1 and only_moves(build, node, parts)):
        return None
    starts = [sizes.tidy(sum((build[p].shape[dim] for p in parts[:i]), sympy.Integer(0))) for i in range(len(parts))]
    inputs = [build.add("position", Iota(dim), [], node.shape, torch.int64)]
    choices: list[tuple[Expr, Expr]] = []
    for i, (part, start) in enumerate(zip(parts, starts, strict=True), 1):
        inputs.append(placed(build, part, node.shape, [start, *[0] * (rank - dim - 1)], "part"))
        if i < len(parts):
            inputs.append(build.add("stop", Size(starts[i]), [], (), torch.int64))
            choices.append((Arg(0) < Arg(len(inputs) - 1), Arg(len(inputs) - 2)))
    return build.pointwise("", first_of(choices, Arg(len(inputs) - 1)), inputs, node.dtype) if len(parts) > 1 else parts[0]


def only_moves(build: Lowering, node: Node, parts: Sequence[str]) -> bool:
    users = [build.graph[user] for user in build.graph.users()[node.name] if user in build.graph.index]
    ours = [user for user in users if is_ours(user, build.graph)]
    to_library = not ours or (len(parts) > FEW_PARTS and all(user.shape is None for user in ours))  # several results: of several looks
    return to_library and all(is_in_memory(build, part) for part in parts)


def is_in_memory(build: Lowering, name: str) -> bool:
    """As a view that PyTorch makes without a copy: from element to element it is the same step everywhere."""
    views = [build[name]]
    while isinstance(views[-1].op, View):
        views.append(build[views[-1].inputs[0]])
    return views[-1].is_load and in_steps(views)


@lowers("fill", aten.fill.Scalar, aten.fill.Tensor, aten.copy.default)
def fill(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Another value in the shape and the type of the first."""
    assert node.shape is not None and node.dtype is not None
    value = a.get("value", a.get("src"))
    if isinstance(value, Ref):
        source = build.value[value.name]
        source = source if build[source].dtype == node.dtype else cast(build, source, node.dtype)
    elif isinstance(value, (bool, int, float)):
        source = build.pointwise("value", constant(value, node.dtype), [], node.dtype)
    else:
        return None
    return build.expand(source, node.shape)


# ---- what lies beyond the ends, from inside

AT_ENDS = {"reflect": "mirrored", "replicate": "clamped", "circular": "wrapped_once"}  # no pad is longer than what it joins


def padded_from_inside(build: Lowering, node: Node, source: str, pads: Sequence[Any], mode: str) -> str | None:
    """`pads` are given from the last dimension on: before it and behind it."""
    assert node.shape is not None
    if not all(isinstance(n, int) and n >= 0 for n in pads):
        return None
    rank, before = len(node.shape), list(pads[::2])
    dims = [rank - 1 - i for i in range(len(before)) if pads[2 * i] or pads[2 * i + 1]]
    places = [before[rank - 1 - d] for d in dims]
    return build.view("", Shift(AT_ENDS[mode], tuple(dims), tuple(places)), source, node.shape)


@lowers("reflection_pad", *(getattr(aten, f"reflection_pad{d}d").default for d in (1, 2, 3)))
def reflection_pad(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return padded_from_inside(build, node, value_of(build, a["self"]), a["padding"], "reflect")


@lowers("replication_pad", *(getattr(aten, f"replication_pad{d}d").default for d in (1, 2, 3)))
def replication_pad(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return padded_from_inside(build, node, value_of(build, a["self"]), a["padding"], "replicate")


@lowers("roll", aten.roll.default)
def roll(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Moved on, and round the ends; with no dimensions given, as one long row."""
    assert node.shape is not None
    source, shifts = value_of(build, a["self"]), list(a["shifts"])
    if not all(isinstance(n, int) for n in shifts) or not node.shape:
        return None
    if not a["dims"]:
        flat = build.reshape(source, [sizes.product(node.shape)])
        return build.reshape(rolled(build, flat, {0: shifts[0]}), node.shape)
    places: dict[int, int] = {}
    for dim, shift in zip(a["dims"], shifts, strict=True):
        places[dim % len(node.shape)] = places.get(dim % len(node.shape), 0) + shift
    return rolled(build, source, places)


def rolled(build: Lowering, source: str, places: dict[int, int]) -> str:
    """By so many places along each dimension: less than once around it where it is sure to be as long."""
    shape = build[source].shape
    for dim, by in places.items():
        size = shape[dim]
        places[dim] = by % size if isinstance(size, int) and size else by
    once = all(abs(by) <= at_least(build, shape[dim]) for dim, by in places.items())
    return build.view("", Shift("wrapped_once" if once else "wrapped", tuple(places), tuple(places.values())), source, shape)


def at_least(build: Lowering, size: Dim) -> int:
    """What a size is sure to be."""
    known = build.graph.symbols.get(size) if isinstance(size, sympy.Symbol) else None
    return size if isinstance(size, int) else known.lower if known is not None else 1


# ---- repetition


def spread(
    build: Lowering, source: str, dims: Sequence[int], times: Sequence[Dim], inner: bool, shape: Sequence[Dim]
) -> str:
    """Each of `dims` repeated: element by element (`inner`: aabb) or as a whole (abab)."""
    split: list[Dim] = []
    wide: list[Dim] = []
    for d, size in enumerate(build[source].shape):
        if d in dims:
            count = times[list(dims).index(d)]
            split += [size, 1] if inner else [1, size]
            wide += [size, count] if inner else [count, size]
        else:
            split.append(size)
            wide.append(size)
    return build.reshape(build.expand(build.reshape(source, split), wide), shape, "")


@lowers("repeat", aten.repeat.default, aten.tile.default)
def repeat(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source, rank = value_of(build, a["self"]), len(node.shape)
    times = list(a["repeats"] if "repeats" in a else a["dims"])
    times = [1] * (rank - len(times)) + times
    source = build.reshape(source, [1] * (rank - len(build[source].shape)) + list(build[source].shape))
    dims = [d for d in range(rank) if not sizes.is_one(times[d])]
    return spread(build, source, dims, [times[d] for d in dims], False, node.shape)


@lowers("repeat_interleave", aten.repeat_interleave.self_int)
def repeat_interleave(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    if a["dim"] is None:
        flat = build.reshape(source, [sizes.product(build[source].shape)])
        return spread(build, flat, [0], [a["repeats"]], True, node.shape)
    return spread(build, source, [a["dim"] % len(node.shape)], [a["repeats"]], True, node.shape)


@lowers("pixel_shuffle", aten.pixel_shuffle.default)
def pixel_shuffle(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """(…, c·r², h, w) becomes (…, c, h·r, w·r)."""
    assert node.shape is not None
    source, r = value_of(build, a["self"]), a["upscale_factor"]
    *outer, _, height, width = build[source].shape
    channels = node.shape[-3]
    split = build.reshape(source, [*outer, channels, r, r, height, width])
    n = len(outer)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    permuted = build.view("permuted", Permute(order), split, [*outer, channels, height, r, width, r])
    return build.reshape(permuted, node.shape, "")


@lowers("pixel_unshuffle", aten.pixel_unshuffle.default)
def pixel_unshuffle(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """(…, c, h·r, w·r) becomes (…, c·r², h, w)."""
    assert node.shape is not None
    source, r = value_of(build, a["self"]), a["downscale_factor"]
    *outer, channels, _, _ = build[source].shape
    height, width = node.shape[-2:]
    split = build.reshape(source, [*outer, channels, height, r, width, r])
    n = len(outer)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    permuted = build.view("permuted", Permute(order), split, [*outer, channels, r, r, height, width])
    return build.reshape(permuted, node.shape, "")


@lowers("channel_shuffle", aten.channel_shuffle.default)
def channel_shuffle(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Channels in g groups, taken one from each group in turn."""
    assert node.shape is not None
    source, g = value_of(build, a["self"]), a["groups"]
    batch, channels, *space = node.shape
    if not isinstance(channels, int):
        return None
    split = build.reshape(source, [batch, g, channels // g, *space])
    order = (0, 2, 1, *range(3, 3 + len(space)))
    permuted = build.view("permuted", Permute(order), split, [batch, channels // g, g, *space])
    return build.reshape(permuted, node.shape, "")


# ---- positions


@lowers("arange", aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Whole numbers only: a float's steps are rounded in PyTorch's own way."""
    assert node.shape is not None and node.dtype is not None
    start, step = a.get("start", 0), a.get("step", 1)
    if node.dtype not in (torch.int64, torch.int32) or not isinstance(start, int) or not isinstance(step, int):
        return None
    position = build.add("position", Iota(0), [], node.shape, torch.int64)
    plain = (start, step) == (0, 1)
    return build.pointwise("", lambda i: i if plain else start + i * step, [position], node.dtype, torch.int64)


@lowers("eye", aten.eye.default, aten.eye.m)
def eye(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None and node.dtype is not None
    row, column = (build.add(label, Iota(dim), [], node.shape, torch.int64) for dim, label in enumerate(("row", "column")))
    here = build.pointwise("here", equal, [row, column], torch.bool, torch.int64)
    return here if node.dtype is torch.bool else cast(build, here, node.dtype)
