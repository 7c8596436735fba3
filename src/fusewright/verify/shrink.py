"""Which sizes to verify at: the given ones where that takes seconds, else smaller ones that the model accepts too."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..frontend import stand_ins
from ..ir.graph import Graph
from .held import put_back

Sizes = tuple[tuple[int, ...] | None, ...]  # of each input; None for one that is no tensor
Point = Mapping[sympy.Symbol, int]  # a value for each axis

# Two cores: fp64 convolutions and products run at 4–20 GFLOP/s, the host's CUDA threads at 55 M/s, and a variant takes
# about eight runs of the model (eager, exact, rounded, candidate).
FLOPS_A_SECOND = 4e9
ELEMENTS_A_SECOND = 3e7
MAIN_SECONDS = 0.25
SMALL_SECONDS = 0.03
BEYOND = "beyond the given ones"
FACTORS = ((32, 5), (4, 5), (2, 1), (1, 5), (32, 0), (4, 0), (2, 0))  # times the given size, and so many more; some models refuse odd ones
MOST_PINNED = 8  # sizes that are tried
VECTOR = 8  # elements of the widest vectors: a launcher asks whether they divide sizes


@dataclass(frozen=True)
class Axis:
    """Input sizes that may vary, together where they share a symbol."""

    symbol: sympy.Symbol
    size: int
    lower: int
    batch: bool


@dataclass(frozen=True)
class Space:
    """The shapes a model accepts: each input's sizes as expressions in the axes."""

    dims: tuple[tuple[Any, ...] | None, ...]
    axes: tuple[Axis, ...]
    guards: tuple[sympy.Basic, ...] = ()
    longer: tuple[Axis, ...] = ()  # what may vary, but is tried only beyond its given size: rows for which a kernel may be written

    def at(self, point: Point) -> Sizes:
        point = {**{axis.symbol: axis.size for axis in self.longer}, **point}
        return tuple(None if d is None else tuple(int(_substituted(s, point)) for s in d) for d in self.dims)

    @property
    def given(self) -> dict[sympy.Symbol, int]:
        return {axis.symbol: axis.size for axis in self.axes}

    def holds(self, point: Point) -> bool:
        """The point keeps the graph's own guards."""
        bounded = all(point[axis.symbol] >= max(1, axis.lower) for axis in self.axes)
        try:
            return bounded and all(_substituted(guard, point) != sympy.false for guard in self.guards)
        except ZeroDivisionError:  # a guard divides by a size that is 0 here
            return False


@dataclass(frozen=True)
class Shapes:
    """The sizes to verify at, by name; `note` says what is smaller than given."""

    given: Sizes
    main: Sizes  # as close to the given sizes as time allows
    small: Sizes  # where most variants run
    others: Mapping[str, Sizes]  # batch ± 1, odd, least
    note: str = ""


@dataclass(frozen=True)
class Steps:
    """Sizes between the given ones and the small ones, for where memory is short: the batch is halved, then the rest."""

    sizes: tuple[Sizes, ...] = ()  # the given ones first
    words: tuple[str, ...] = ()
    batched: frozenset[int] = frozenset()  # positions of inputs whose first dimension is the batch

    def below(self, sizes: Sizes) -> tuple[Sizes, ...]:
        """Those that have fewer elements."""
        return tuple(s for s in self.sizes if elements(s) < elements(sizes))

    def name(self, sizes: Sizes) -> str:
        return self.words[self.sizes.index(sizes)] if sizes in self.sizes else "the small sizes"


def elements(sizes: Sizes) -> int:
    return sum(math.prod(size) for size in sizes if size is not None)


def steps_of(space: Space, shapes: Shapes, accepts: Callable[[Sizes], bool]) -> Steps:
    """From the given sizes down to the small ones, where the model accepts them."""
    batches = [axis.symbol for axis in space.axes if axis.batch]
    found, words, point = [space.at(space.given)], [_words(space, space.given)], dict(space.given)
    while True:
        halved = [s for s in batches if point[s] > 2] or [s for s in point if point[s] > 8]
        if not halved:
            break
        point = {s: (size + 1) // 2 if s in halved else size for s, size in point.items()}
        sizes = space.at(point)
        if elements(sizes) <= elements(shapes.small):
            break
        if space.holds(point) and accepts(sizes):
            found.append(sizes)
            words.append(_words(space, point))
    if shapes.small not in found:
        found.append(shapes.small)
        words.append("the small sizes")
    return Steps(tuple(found), tuple(words), _batched(space))


def _batched(space: Space) -> frozenset[int]:
    """Where one size is the batch of several inputs: all of these, if it is their first dimension."""
    batches = [axis.symbol for axis in space.axes if axis.batch and axis.size > 1]
    if len(batches) != 1:
        return frozenset()
    return frozenset(i for i, dims in enumerate(space.dims) if dims and dims[0] == batches[0])


def space_of(graph: Graph | None, model: nn.Module, inputs: Sequence[Any]) -> Space:
    """Read off the graph which sizes may vary; without one, ask the model about batch and trailing sizes."""
    if graph is not None:
        by_position = {node.args[0]: node.shape for node in graph.nodes if node.target == "input"}
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else None for x in inputs]
        places = itertools.accumulate((len(pytree.tree_leaves(x)) for x in inputs), initial=0)  # a graph counts what lists hold
        dims = tuple(None if shape is None else by_position.get(i, shape) for i, shape in zip(places, shapes, strict=False))
        axes = tuple(Axis(s, b.hint, b.lower, b.dim == 0) for s, b in graph.symbols.items())
        return Space(dims, axes, graph.guards)
    return _probed(model, inputs)


def _probed(model: nn.Module, inputs: Sequence[Any]) -> Space:
    """Dimensions of the same position and size move together; an axis is one the model accepts in other sizes."""
    places: dict[tuple[int, int], list[int]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, Tensor):
            for dim, size in enumerate(value.shape):
                may_vary = size > 1 and (dim != 1 or value.dim() == 3)
                if may_vary:
                    places.setdefault((dim, size), []).append(position)
    symbols = {key: sympy.Symbol(f"d{key[0]}_{key[1]}", integer=True, positive=True) for key in places}
    dims = tuple(
        tuple(symbols.get((d, s), s) for d, s in enumerate(x.shape)) if isinstance(x, Tensor) else None for x in inputs
    )
    axes = tuple(Axis(symbols[key], key[1], 1, key[0] == 0) for key in places)
    space = Space(dims, axes)
    kept = []
    for axis in axes:
        tried = [{**space.given, axis.symbol: size} for size in {max(1, axis.size - 1), axis.size + 1}]
        if all(work(model, inputs, space.at(point)) is not None for point in tried):
            kept.append(axis)
    fixed = {axis.symbol: axis.size for axis in axes if axis not in kept}
    pinned = tuple(None if d is None else tuple(_substituted(s, fixed) for s in d) for d in dims)
    return Space(pinned, tuple(kept))


def with_longer(space: Space, model: nn.Module, inputs: Sequence[Any]) -> Space:
    """Sizes that were pinned may grow where the model accepts that, those of one position and size together."""
    found = {(d, s) for dims in space.dims for d, s in enumerate(dims or ()) if isinstance(s, int) and s > 1}
    for dim, size in sorted(found)[:MOST_PINNED]:
        symbol = sympy.Symbol(f"longer{dim}_{size}", integer=True, positive=True)
        dims = tuple(d and tuple(symbol if (i, s) == (dim, size) else s for i, s in enumerate(d)) for d in space.dims)
        tried = replace(space, dims=dims, longer=(*space.longer, Axis(symbol, size, 1, False)))
        if work(model, inputs, tried.at({**tried.given, symbol: size + 1})) is not None:
            space = tried
    return space


def choose(
    space: Space, seconds: Callable[[Sizes], float | None], full_size: bool = False, slower: float = 1.0
) -> Shapes:
    """Sizes at which verifying takes seconds. `seconds` estimates one run; None where the model refuses the sizes.

    `slower`: how many times slower the candidate turned out to be than the estimate expects.
    """
    given = space.given

    def cost(point: Point) -> float | None:
        return seconds(space.at(point)) if space.holds(point) else None

    least = _least(space, cost)
    small = _fitting(space, cost, least, SMALL_SECONDS / slower)
    main = given if full_size else _shrunk(space, cost, given, MAIN_SECONDS / min(slower, 4.0))
    others: dict[str, Sizes] = {}
    batches = [axis.symbol for axis in space.axes if axis.batch]
    rest = [axis.symbol for axis in space.axes if not axis.batch]
    if rest:
        others["odd sizes"] = space.at({**small, **{s: (small[s] | 1) + 2 * i for i, s in enumerate(rest)}})
        others["remainders as given"] = space.at({**small, **_alike(space, small, least)})
    if batches:
        others["batch + 1"] = space.at({**small, **{s: small[s] + 1 for s in batches}})
        others["batch − 1"] = space.at({**small, **{s: max(1, small[s] - 1) for s in batches}})
        others["batch 1"] = space.at({**small, **dict.fromkeys(batches, 1)})
    if rest:
        others["odd sizes, the other way"] = space.at(
            {**small, **{s: (small[s] | 1) + 2 * i for i, s in enumerate(reversed(rest))}}
        )
    others["least sizes"] = space.at(least)
    others |= {name: space.at(point) for name, point in _beyond(space, cost, small, SMALL_SECONDS / slower)}
    known: set[Sizes] = {space.at(small)}
    distinct = {}
    for name, sizes in others.items():
        if sizes not in known:
            distinct[name] = sizes
            known.add(sizes)
    return Shapes(space.at(given), space.at(main), space.at(small), distinct, _note(space, main))


def _beyond(
    space: Space, cost: Callable[[Point], float | None], small: Point, limit: float
) -> Iterator[tuple[str, Point]]:
    """Larger than given in one dimension, as long as that is quick: what a kernel has room for may end at the file's own sizes."""
    batches = [axis for axis in space.axes if axis.batch]
    rows = [axis for axis in (*space.axes, *space.longer) if not axis.batch][-1:]
    wanted = [("batch", batches)] * bool(batches) + [("rows", rows)] * bool(rows)
    for words, axes in wanted:
        for times, more in FACTORS:
            point = {**small, **{a.symbol: times * a.size + more for a in axes}}
            seconds = cost(point)
            if seconds is not None and seconds <= limit:
                yield f"{words} {BEYOND}", point
                break


def _alike(space: Space, small: Point, least: Point) -> dict[sympy.Symbol, int]:
    """Extents no larger than the small ones, but for a little, with what is left of the given ones after vectors of 8."""
    found = {}
    for axis in space.axes:
        if not axis.batch:
            size = small[axis.symbol] - (small[axis.symbol] - axis.size) % VECTOR
            found[axis.symbol] = size if size >= max(1, axis.lower, least[axis.symbol]) else size + VECTOR
    return found


def _least(space: Space, cost: Callable[[Point], float | None]) -> dict[sympy.Symbol, int]:
    """Batch 1 and the smallest extents the model runs at."""
    for extent in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64):
        point = {a.symbol: min(a.size, max(1, a.lower) if a.batch else max(extent, a.lower)) for a in space.axes}
        if cost(point) is not None:
            return point
    return space.given


def _fitting(
    space: Space, cost: Callable[[Point], float | None], least: Point, limit: float
) -> dict[sympy.Symbol, int]:
    """The largest of a few modest sizes that stays below the limit."""
    for batch, extent in itertools.product((3, 2), (16, 12, 10, 8, 6, 4)):
        point = {
            a.symbol: min(a.size, max(batch, a.lower) if a.batch else max(extent, least[a.symbol])) for a in space.axes
        }
        seconds = cost(point)
        if seconds is not None and seconds <= limit:
            return point
    fallback = {a.symbol: min(a.size, 2) if a.batch else least[a.symbol] for a in space.axes}
    return fallback if cost(fallback) is not None else dict(least)


def _shrunk(space: Space, cost: Callable[[Point], float | None], point: Point, limit: float) -> dict[sympy.Symbol, int]:
    """Halve the batch down to 2, then the largest of the other extents, until one run stays below the limit."""
    point, pinned = dict(point), set()
    while (cost(point) or 0.0) > limit:
        batches = [a.symbol for a in space.axes if a.batch and point[a.symbol] > 2 and a.symbol not in pinned]
        rest = [a.symbol for a in space.axes if not a.batch and point[a.symbol] > 2 and a.symbol not in pinned]
        if not batches and not rest:
            break
        chosen = batches[0] if batches else max(rest, key=lambda s: point[s])
        smaller = {**point, chosen: max(2, (point[chosen] + 1) // 2)}
        if cost(smaller) is None:
            pinned.add(chosen)
        else:
            point = smaller
    return point


def _note(space: Space, main: Point) -> str:
    if dict(main) == space.given:
        return ""
    return f"verified at {_words(space, main)} instead of {_words(space, space.given)}"


def _words(space: Space, point: Point) -> str:
    batch = [f"batch {point[a.symbol]}" for a in space.axes if a.batch]
    rest = "x".join(str(point[a.symbol]) for a in space.axes if not a.batch)
    return ", ".join([*batch, *([rest] if rest else [])])


# ---- what a run costs ----


def work(model: nn.Module, inputs: Sequence[Any], sizes: Sizes) -> tuple[float, float] | None:
    """Operations and elements written by one forward at these sizes, found without computing; None where it raises."""
    counter = _Elements()
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    device = next((t.device for t in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))
    try:
        unmoved = put_back(model, set(), trusted=True)  # lists that forward appends to, too
        with stand_ins.kept(model), unmoved, FlopCounterMode(display=False) as flops, fake, counter, torch.no_grad():
            pairs = zip(inputs, sizes, strict=True)
            result = model(*(x if size is None else torch.empty(size, dtype=x.dtype, device=device) for x, size in pairs))
    except Exception:  # whatever the model or a fake operator raises: these sizes cannot be judged
        return None
    finally:
        logger.setLevel(level)
    empty = any(isinstance(t, Tensor) and not t.numel() for t in pytree.tree_leaves(result))
    return None if empty else (float(flops.get_total_flops()), float(counter.elements))


def seconds_for(operations: float, elements: float) -> float:
    return operations / FLOPS_A_SECOND + elements / ELEMENTS_A_SECOND


class _Elements(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.elements += sum(t.numel() for t in pytree.tree_leaves((args, result)) if isinstance(t, Tensor))
        return result


def _substituted(size: Any, point: Mapping[Any, int]) -> Any:
    if isinstance(size, sympy.Basic):
        value = size.subs(point)
        return int(value) if value.is_Integer else value
    return size
