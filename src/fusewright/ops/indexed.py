"""Elements picked by number: what is read where another tensor says.

A number may be any value of the graph. Kernels read at the number drawn into its dimension, so never outside a tensor, and where it
was outside before the result is NaN, or 0 of whole numbers: PyTorch raises an error there, which a kernel cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..ir import functions as fn
from ..ir import sizes
from ..ir.expr import Arg, Expr, as_expr, both, select
from ..ir.graph import Dim, Node, Ref
from ..ir.prims import Picked, Size, constant
from .declare import lowers, value_of
from .lowering import Lowering
from .registry import aten

NUMBERS = (torch.int64, torch.int32)
PICKED = 2  # instructions to find out whether a number is one of its dimension, and to draw it in


def picked(
    build: Lowering, source: str, numbers: Mapping[int, str], kept: Sequence[int], shape: Sequence[Dim], wraps: bool = False
) -> str | None:
    """The elements of the source that `numbers` say along their dimensions; what has `shape` runs along the other ones as `kept`
    says. Where it `wraps`, negative numbers count from the end."""
    extents = [build[source].shape[d] for d in numbers]
    typed = all(build[number].dtype in NUMBERS for number in numbers.values())
    if not typed or not numbers or any(sizes.same(extent, 0) for extent in extents):
        return None
    whole = [build.graph.hint(size) for size in shape]
    places: list[str] = []
    tests: list[Expr] = []
    inputs: list[str] = []
    for number, extent in zip(numbers.values(), extents, strict=True):
        names = [build.stretched(number, whole)]
        names += [build.add("extent", Size(extent), [], (), torch.int64)] if not isinstance(extent, int) else []
        size, own = (as_expr(extent),) * 2 if isinstance(extent, int) else (Arg(1), Arg(len(inputs) + 1))
        inside = select(Arg(0) < 0, Arg(0) + size, Arg(0)) if wraps else Arg(0)
        places.append(build.pointwise("place", fn.clamped.of("long long")(inside, size), names, torch.int64, cost=PICKED))
        here = Arg(len(inputs))
        tests += [here >= (-own if wraps else 0), here < own]
        inputs += names
    exists = build.pointwise("exists", both(*tests), inputs, torch.bool, torch.int64, cost=PICKED)
    found = build.add("picked", Picked(tuple(numbers), tuple(kept)), [source, *places], shape, build[source].dtype)
    nothing = constant(math.nan if build[source].dtype.is_floating_point else 0, build[source].dtype)
    return build.pointwise("", lambda exists, x: select(exists, x, nothing), [exists, found], build[source].dtype)


@lowers("embedding", aten.embedding.default)
def embedding(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """A row of the table for each number; which row stands for nothing, and how often one is there, only gradients ask."""
    assert node.shape is not None
    number = value_of(build, a["indices"])
    rows = build.reshape(number, [*build[number].shape, 1], "row")
    return picked(build, value_of(build, a["weight"]), {0: rows}, [len(node.shape) - 1], node.shape)


@lowers("index_select", aten.index_select.default)
def index_select(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """x[..., numbers, ...]: whole slices."""
    assert node.shape is not None
    rank = len(node.shape)
    source, number = value_of(build, a["self"]), value_of(build, a["index"])
    if not build[source].shape:
        return None
    dim = a["dim"] % rank
    along = build.reshape(number, [node.shape[dim], *[1] * (rank - dim - 1)], "row")
    return picked(build, source, {dim: along}, [d for d in range(rank) if d != dim], node.shape)


@lowers("gather", aten.gather.default)
def gather(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The number along one dimension is another one for each element."""
    assert node.shape is not None
    rank = len(node.shape)
    source, number = value_of(build, a["self"]), value_of(build, a["index"])
    if not rank or len(build[source].shape) != rank:
        return None
    dim = a["dim"] % rank
    return picked(build, source, {dim: number}, [d for d in range(rank) if d != dim], node.shape)


@lowers("take_along_dim", aten.take_along_dim.default)
def take_along_dim(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """As `gather`, of tensors that broadcast against each other, and numbers below 0 count from the end; with no dimension
    given, of all elements in a row."""
    assert node.shape is not None
    source, number = value_of(build, a["self"]), value_of(build, a["indices"])
    if a["dim"] is None:
        return taken(build, source, number, node.shape)
    rank = len(node.shape)
    dim = a["dim"] % max(rank, 1)
    if not rank or len(build[source].shape) != rank or len(build[number].shape) != rank:
        return None
    extent = build[source].shape[dim]
    wide = [extent if d == dim else size for d, size in enumerate(node.shape)]
    return picked(build, build.expand(source, wide), {dim: number}, [d for d in range(rank) if d != dim], node.shape, wraps=True)


def taken(build: Lowering, source: str, number: str, shape: Sequence[Dim], wraps: bool = False) -> str | None:
    """Elements by their number in the whole of a tensor."""
    flat = build.reshape(source, [sizes.product(build[source].shape)], "flat")
    return picked(build, flat, {0: build.reshape(number, shape)}, [], shape, wraps)


@lowers("take", aten.take.default)
def take(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    return taken(build, value_of(build, a["self"]), value_of(build, a["index"]), node.shape, wraps=True)


@lowers("index", aten.index.Tensor, aten._unsafe_index.Tensor)
def index(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """x[a, :, b]: numbers that broadcast against each other. Their dimensions stand where the first of them stood if nothing is
    between them, else in front."""
    assert node.shape is not None
    source, given = value_of(build, a["self"]), list(a["indices"])
    numbers = {d: value_of(build, value) for d, value in enumerate(given) if isinstance(value, Ref)}
    if not numbers or any(build[number].dtype not in NUMBERS for number in numbers.values()):
        return None
    rank = max(len(build[number].shape) for number in numbers.values())
    side_by_side = max(numbers) - min(numbers) == len(numbers) - 1
    first = min(numbers) if side_by_side else 0
    behind = len(node.shape) - first - rank
    kept = [d for d in range(len(node.shape)) if not first <= d < first + rank]
    for d, number in numbers.items():
        shape = build[number].shape
        numbers[d] = build.reshape(number, [*shape, *[1] * behind], "row") if shape and behind else number
    return picked(build, source, numbers, kept, node.shape, wraps=True)


def guards(nodes: Iterable[Node]) -> list[sympy.Basic]:
    """What has to hold for these reads besides what the numbers say, and PyTorch sees only when it runs: nothing is read of a tensor
    that has no elements, and what `gather` does not number lies inside its source."""
    shapes = {node.name: node.shape or () for node in nodes}
    found: dict[sympy.Basic, None] = {}
    for node in nodes:
        if node.target not in TABLES:
            continue
        a = node.bound()
        source = shapes[a[TABLES[node.target]].name]
        tests = [sympy.Ge(size, 1) for size in source if not isinstance(size, int)]
        if node.target is aten.gather.default and len(source) == len(node.shape or ()):
            dim = a["dim"] % max(len(source), 1)
            pairs = [pair for d, pair in enumerate(zip(node.shape or (), source, strict=True)) if d != dim]
            tests += [sympy.Le(*map(sympy.sympify, pair)) for pair in pairs]
        found |= dict.fromkeys(test for test in tests if test is not sympy.true)
    return list(found)


TABLES = {
    aten.embedding.default: "weight",
    aten.index_select.default: "self",
    aten.gather.default: "self",
    aten.take_along_dim.default: "self",
    aten.take.default: "self",
    aten.index.Tensor: "self",
    aten._unsafe_index.Tensor: "self",
}
