"""Pools: the largest of each window and where it is, or its mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch

from ..ir import sizes
from ..ir.expr import Arg, Cast, Expr, Field, as_expr, equal, grouped, quotient, select, total
from ..ir.graph import Dim, Node, Ref
from ..ir.index import contiguous
from ..ir.prims import Iota, Size, Unpooled, Window, constant
from .declare import as_in_memory, element_of, lowers, value_of
from .lowering import Lowering
from .placement import placed, spread
from .registry import aten


def window_of(a: dict[str, Any], rank: int) -> tuple[tuple[int, ...], ...] | None:
    def many(value: Any, default: Sequence[int]) -> tuple[int, ...]:
        value = list(default) if value is None or value == [] else ([value] if isinstance(value, int) else list(value))
        return tuple(value * rank if len(value) == 1 else value)

    kernel = many(a["kernel_size"], ())
    found = kernel, many(a.get("stride"), kernel), many(a.get("padding"), [0]), many(a.get("dilation"), [1])
    return found if all(isinstance(n, int) for part in found for n in part) else None


def _reaches_outside(
    sizes_in: Sequence[Dim], sizes_out: Sequence[Dim], window: tuple[tuple[int, ...], ...], ceil_mode: bool
) -> bool:
    return ceil_mode or any(window[2])


def max_pool(build: Lowering, node: Node, a: dict[str, Any], kind: str = "max", span: tuple[int, ...] = ()) -> str | None:
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    rank = {"1d": 1, "2d": 2, "3d": 3}[next(k for k in ("1d", "2d", "3d") if k in str(a["target"]))]
    window = window_of(a, rank)
    if window is None or not build[source].dtype.is_floating_point or build[source].dtype is torch.float64:
        return None
    clipped = _reaches_outside(build[source].shape[-rank:], node.shape[-rank:], window, a["ceil_mode"])
    pool = Window(kind, window[0], window[1], window[2], window[3], clipped, span)
    if kind == "largest":  # halves as memory has them: a bit may decide which is first
        return build.add("largest", pool, [as_in_memory(build, source)], node.shape, torch.float32)
    return build.add("", pool, [source], node.shape, node.dtype)


@lowers("max_pool", aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default)
def max_pool_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return max_pool(build, node, {**a, "target": node.target})


MAX_POOLS = [getattr(aten, f"max_pool{d}d_with_indices").default for d in (1, 2, 3)]


@element_of(*MAX_POOLS)
def max_pool_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """The values alone, or beside where they are: one look at a window gives both."""
    assert node.dtype is not None
    a = {**a, "target": parent.target}
    if only_values(build, parent):
        return max_pool(build, node, a) if i == 0 else None
    by_place = i == 0 and only_for_gradients(build, parent)
    largest = max_pool(build, node, a, "largest", span_of(a) if by_place else ())
    if largest is None:
        return None
    if i == 0:
        return build.pointwise("", lambda found: Field(found, "value"), [largest], node.dtype, torch.float32)
    return build.pointwise("", lambda found: Cast("long long", Field(found, "position")), [largest], node.dtype, torch.float32)


def only_values(build: Lowering, pool: Node) -> bool:
    """Nothing uses the positions that a pool gives beside its values."""
    users = build.graph.users()
    elements = [n for n in build.graph.nodes if n.target == "getitem" and n.args[0].name == pool.name]
    return all(not users[n.name] for n in elements if n.args[1] != 0)


def only_for_gradients(build: Lowering, pool: Node) -> bool:
    """What uses the positions that a pool gives are its gradients, which rather have the place in each window."""
    users = build.graph.users()
    elements = [n for n in build.graph.nodes if n.target == "getitem" and n.args[0].name == pool.name and n.args[1] == 1]
    return all(user in build.graph.index and build.graph[user].target in MAX_POOL_GRADIENTS for n in elements for user in users[n.name])


def span_of(a: dict[str, Any]) -> tuple[int, ...]:
    """Of a pool's windows, which numbers tell their places apart, and those that are a stride or more behind the last."""
    window = window_of(a, 3 if "3d" in str(a["target"]) else 2 if "2d" in str(a["target"]) else 1)
    found = tuple(count * step for count, step in zip(windows_over(window), window[1], strict=True)) if window is not None else ()
    return found if prod(found) <= 256 else ()  # a byte


@lowers("avg_pool", aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default)
def avg_pool(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Sum over the window divided by its size, or by how much of it lies inside where padding does not count."""
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    rank = 1 if "1d" in str(node.target) else 2 if "2d" in str(node.target) else 3
    window = window_of(a, rank)
    if window is None or build[source].dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    pool = Window("sum", window[0], window[1], window[2], window[3], any(window[2]) or a["ceil_mode"])
    total = build.add("sum", pool, [source], node.shape, torch.float32)
    return by_size(build, a, pool, total, build[source].shape, "", node.dtype)


def by_size(
    build: Lowering, a: dict[str, Any], pool: Window, value: str, shape: Sequence[Dim], label: str, dtype: torch.dtype
) -> str | None:
    """A value of each window, divided by its size: what is given, all of it, or how much of it lies inside the input of this shape."""
    divisor, padded = a.get("divisor_override"), any(pool.padding)
    if divisor is None and (a["ceil_mode"] or (padded and not a["count_include_pad"])):
        if padded and a["count_include_pad"]:
            return None  # what lies in the padding counts, what lies beyond it does not
        one = build.expand(build.pointwise("one", constant(1.0, torch.float32), [], torch.float32), shape)
        count = build.add("count", pool, [one], build[value].shape, torch.float32)
        return build.pointwise(label, quotient, [value, count], dtype, torch.float32, cost=4)
    divisor = prod(pool.kernel) if divisor is None else divisor
    exact = divisor & (divisor - 1) == 0  # a power of two: its inverse is no rounding
    return build.pointwise(label, lambda x: x * (1.0 / divisor) if exact else x / float(divisor), [value], dtype, torch.float32)


# ---- gradients: each position of the input looks at the windows that it lies in

LOOK = 12  # instructions, roughly, that one window takes
MOST_WINDOWS = 9  # that a position may lie in; beyond that, PyTorch's kernels add to each from all of them


def windows_over(window: tuple[tuple[int, ...], ...]) -> list[int]:
    """In how many windows a position may lie, along each dimension."""
    kernel, stride, _, dilation = window
    return [(k - 1) * d // s + 1 for k, s, d in zip(kernel, stride, dilation, strict=True)]


def seen_from_input(build: Lowering, source: str, shape: Sequence[Dim], window: tuple[tuple[int, ...], ...], back: Sequence[int]) -> str:
    """For each position of the input, the value of the last window that begins at or before it, or of one so many further `back`;
    0 where there is none."""
    _, stride, padding, _ = window
    rank = len(stride)
    if prod(stride) > 1:
        wide = [n * s for n, s in zip(build[source].shape[-rank:], stride, strict=True)]
        outer = list(build[source].shape[:-rank])
        source = spread(build, source, range(len(outer), len(outer) + rank), stride, True, [*outer, *map(sizes.tidy, wide)])
    starts = [b * s - p for b, s, p in zip(back, stride, padding, strict=True)]
    if not any(starts) and all(map(sizes.same, build[source].shape, shape)):
        return source
    return placed(build, source, shape, starts)


def added(build: Lowering, parts: list[str], dtype: torch.dtype) -> str:
    """What the windows give, in a fixed order."""
    return build.pointwise("", lambda *found: total(found), parts, dtype, torch.float32, LOOK * len(parts))


MAX_POOL_GRADIENTS = [getattr(aten, f"max_pool{d}d_with_indices_backward").default for d in (2, 3)]


@lowers("max_pool_gradient", *MAX_POOL_GRADIENTS)
def max_pool_gradient(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The gradients of those windows whose maximum is here."""
    assert node.shape is not None and node.dtype is not None
    gradient = value_of(build, a["grad_output"])
    rank = 2 if "2d" in str(node.target) else 3
    window = window_of(a, rank)
    if window is None or node.dtype is torch.float64 or prod(windows_over(window)) > MOST_WINDOWS:
        return None
    place, span = place_in_window(build, a["indices"]), span_of({**a, "target": node.target})
    _, stride, padding, _ = window
    apart = span == stride and not any(padding) and not a["ceil_mode"]
    if place is not None and apart and build[gradient].dtype == node.dtype:
        return build.add("", Unpooled(stride), [place, gradient], node.shape, node.dtype)
    where, here = place or value_of(build, a["indices"]), number_of(build, node.shape, rank) if place is None else ""
    parts = []
    for back in product(*map(range, windows_over(window))):
        index, value = (seen_from_input(build, source, node.shape, window, back) for source in (where, gradient))
        at = here or number_in_window(build, node.shape, window, span, back)
        chosen = build.pointwise("chosen", equal, [index, at], torch.bool, torch.int32 if place else torch.int64)
        parts.append(build.pointwise("part", lambda here, x: select(here, x, 0.0), [chosen, value], torch.float32, torch.float32))
    return added(build, parts, node.dtype)


def place_in_window(build: Lowering, positions: Any) -> str | None:
    """For each window of the pool that gave these positions, the place in it: nothing but gradients sees it, so it is a byte."""
    assert isinstance(positions, Ref)
    given = build.graph[positions.name]
    pool = build.graph[given.args[0].name] if given.target == "getitem" and given.name not in build.library else None
    if pool is None or pool.target not in MAX_POOLS or build[value_of(build, pool.args[0])].dtype is torch.float64:
        return None
    a = {**pool.bound(), "target": pool.target}
    largest = max_pool(build, given, a, "largest", span_of(a)) if span_of(a) else None
    if largest is None:
        return None
    return build.pointwise("place", lambda found: Cast("unsigned char", Field(found, "position")), [largest], torch.uint8, torch.float32)


def number_of(build: Lowering, shape: Sequence[Dim], rank: int) -> str:
    """Each position of the last dimensions as a number, as PyTorch counts them."""
    first = len(shape) - rank
    here = build.add(f"position{first}", Iota(first), [], shape, torch.int64)
    for dim in range(first + 1, len(shape)):
        inner = build.add(f"position{dim}", Iota(dim), [], shape, torch.int64)
        size = build.add("size", Size(shape[dim]), [], (), torch.int64)
        here = build.pointwise("here", lambda outer, size, inner: outer * size + inner, [here, size, inner], torch.int64)
    return here


def number_in_window(
    build: Lowering, shape: Sequence[Dim], window: tuple[tuple[int, ...], ...], span: tuple[int, ...], back: Sequence[int]
) -> str:
    """Each position as the number of a place in the last window that begins at or before it, or in one so many further `back`."""
    _, stride, padding, _ = window
    inputs = [build.add(f"position{dim}", Iota(dim), [], shape, torch.int64) for dim in range(len(shape) - len(stride), len(shape))]

    def number(*at: Expr) -> Expr:
        steps = list(zip(at, stride, padding, contiguous(span), strict=True))
        begun = sum(b * s * step for b, (_, s, _, step) in zip(back, steps, strict=True))
        inside = [((grouped(c + p) if p else c) % s, step) for c, s, p, step in steps if s > 1]
        places = [c if step == 1 else c * step for c, step in inside]
        return total([*places, *([as_expr(begun)] if begun or not places else [])])

    return build.pointwise("here", number, inputs, torch.int32, torch.int64)


def within_window(padding: int, stride: int, end: int) -> Expr:
    """Whether a window that begins so many strides before a position still reaches it."""
    return (Arg(0) + padding) % stride < end


@lowers("avg_pool_gradient", *(getattr(aten, f"avg_pool{d}d_backward").default for d in (2, 3)))
def avg_pool_gradient(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The sum of the windows' gradients, each by the size of its window."""
    assert node.shape is not None and node.dtype is not None
    gradient = value_of(build, a["grad_output"])
    rank = 2 if "2d" in str(node.target) else 3
    window = window_of(a, rank)
    if window is None or node.dtype is torch.float64 or prod(windows_over(window)) > MOST_WINDOWS:
        return None
    kernel, stride, padding, dilation = window
    pool = Window("sum", kernel, stride, padding, dilation, any(padding) or a["ceil_mode"])
    each = by_size(build, a, pool, gradient, node.shape, "each", torch.float32)
    if each is None:
        return None
    parts, first = [], len(node.shape) - rank
    for back in product(*map(range, windows_over(window))):
        part = seen_from_input(build, each, node.shape, window, back)
        for i, (k, s, p, b) in enumerate(zip(kernel, stride, padding, back, strict=True)):
            if (b + 1) * s > k:  # the window may have ended before this position
                here = build.add(f"position{first + i}", Iota(first + i), [], node.shape, torch.int64)
                within = build.pointwise("within", within_window(p, s, k - b * s), [here], torch.bool, torch.int64)
                part = build.pointwise("part", lambda here, x: select(here, x, 0.0), [within, part], torch.float32, torch.float32)
        parts.append(part)
    return added(build, parts, node.dtype)
