"""Operators with structure, each lowered by one function: choices, casts and views."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from ..ir import functions as fn
from ..ir import sizes
from ..ir.access import same_shape
from ..ir.expr import Arg, Binary, Expr, as_expr, differs, equal, first_of, negated, select
from ..ir.graph import Dim, Node, Ref
from ..ir.prims import Diagonal, Expand, Flip, Iota, Permute, Slice, constant
from .declare import ELEMENTS, as_in_memory, cast, element_of, lowers, slice_start, value_of
from .lowering import Lowering
from .placement import placed
from .registry import aten

# ---- casts, choices, constants


@lowers("cast", aten._to_copy.default, aten.to.dtype, aten.type_as.default)
def to_copy(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if a.get("device") is not None and str(a["device"]) != "cpu":
        return None
    assert node.dtype is not None
    source = value_of(build, a["self"])
    made = cast(build, source, node.dtype)
    return made if build[source].dtype == node.dtype else as_in_memory(build, made)  # who writes .half() wants it rounded


@lowers(
    "identity",
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.detach_.default,
)
def identity(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return value_of(build, a["self"])


@lowers("dropout", aten.dropout.default)
def dropout(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    return value_of(build, a["input"]) if not a["train"] or a["p"] == 0 else None


@lowers("where", aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    condition = value_of(build, a["condition"])
    names, sides = [condition], list[Expr]()
    for value in (a["self"], a["other"]):
        if isinstance(value, Ref):
            sides.append(Arg(len(names)))
            names.append(build.value[value.name])
        else:
            sides.append(constant(value, node.dtype))
    return build.pointwise("", select(Arg(0), *sides), names, node.dtype, None)


@lowers("rrelu", aten.rrelu.default)
def rrelu(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """In evaluation its slope is the middle one."""
    assert node.dtype is not None
    if a["training"] or not isinstance(a["lower"], (int, float)) or not isinstance(a["upper"], (int, float)):
        return None
    slope = constant((a["lower"] + a["upper"]) / 2, node.dtype)
    return build.pointwise("", lambda x: select(x > 0.0, x, slope * x), [value_of(build, a["self"])], node.dtype)


@lowers("masked_fill", aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    names = [value_of(build, a["mask"]), value_of(build, a["self"])]
    if isinstance(a["value"], Ref):
        return build.pointwise("", lambda mask, x, value: select(mask, value, x), [*names, value_of(build, a["value"])], node.dtype)
    value = constant(a["value"], node.dtype)
    return build.pointwise("", lambda mask, x: select(mask, value, x), names, node.dtype)


@lowers(
    "full",
    aten.full.default,
    aten.full_like.default,
    aten.zeros.default,
    aten.ones.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.scalar_tensor.default,
    aten.new_full.default,
    aten.new_zeros.default,
    aten.new_ones.default,
)
def full(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None and node.shape is not None
    name = str(node.target)
    value = a.get("fill_value", a.get("s", 0 if "zeros" in name else 1))
    if not isinstance(value, (bool, int, float)):
        return None
    scalar = build.pointwise("value", constant(value, node.dtype), [], node.dtype)
    return build.expand(scalar, node.shape)


@lowers("nan_to_num", aten.nan_to_num.default)
def nan_to_num(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Numbers for NaN, Inf and -Inf; where none is given, 0 and the type's largest and smallest."""
    assert node.dtype is not None
    source = value_of(build, a["self"])
    if not node.dtype.is_floating_point:
        return source
    limits = torch.finfo(node.dtype)
    nan, high, low = (
        constant(default if given is None else given, node.dtype)
        for given, default in ((a["nan"], 0.0), (a["posinf"], limits.max), (a["neginf"], limits.min))
    )

    def finite(x: Expr) -> Expr:
        return first_of([(differs(x, x), nan), (equal(x, math.inf), high), (equal(x, -math.inf), low)], x)

    return build.pointwise("", finite, [as_in_memory(build, source)], node.dtype)


@lowers("outer", aten.outer.default)
def outer(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Every element of one vector times every element of another."""
    assert node.dtype is not None and node.shape is not None
    column = build.reshape(value_of(build, a["self"]), [node.shape[0], 1], "column")
    return build.pointwise("", lambda x, y: x * y, [column, value_of(build, a["vec2"])], node.dtype)


@lowers("bitwise_not", aten.bitwise_not.default)
def bitwise_not(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None
    return build.pointwise("", negated if node.dtype is torch.bool else lambda x: ~x, [value_of(build, a["self"])], node.dtype)


@lowers("triangle", aten.tril.default, aten.triu.default)
def triangle(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.dtype is not None and node.shape is not None
    source, rank, diagonal = value_of(build, a["self"]), len(node.shape), a["diagonal"]
    if isinstance(diagonal, sympy.Expr):
        return None
    row = build.add("row", Iota(rank - 2), [], node.shape, torch.int64)
    column = build.add("column", Iota(rank - 1), [], node.shape, torch.int64)
    sign, zero = "<=" if "tril" in str(node.target) else ">=", constant(0, node.dtype)
    kept = Binary(sign, Arg(1) - Arg(0), as_expr(diagonal))
    keep = build.pointwise("keep", kept, [row, column], torch.bool, torch.int64)
    return build.pointwise("", lambda keep, x: select(keep, x, zero), [keep, source], node.dtype)


@lowers("one_hot", aten.one_hot.default)
def one_hot(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """1 at a row's class, 0 elsewhere; a class number that does not exist has none (PyTorch raises an error there)."""
    assert node.shape is not None
    if not isinstance(node.shape[-1], int):
        return None
    which = build.add("number", Iota(len(node.shape) - 1), [], node.shape, torch.int64)
    classes = build.reshape(value_of(build, a["self"]), [*node.shape[:-1], 1], "class")
    return build.pointwise("", lambda which, own: select(equal(which, own), 1, 0), [which, classes], torch.int64)


@lowers("scatter", aten.scatter.value, aten.scatter.src)
def scatter(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Another value at one place of each row, which the index names; a place that does not exist is in none (PyTorch raises an error
    there). An index of more than one place is declined, since the last of equal places counts."""
    assert node.shape is not None and node.dtype is not None
    source, index = value_of(build, a["self"]), value_of(build, a["index"])
    if not node.shape:
        return None
    dim = a["dim"] % len(node.shape)
    one = (*node.shape[:dim], 1, *node.shape[dim + 1 :])
    value: Any = a.get("value", a.get("src"))
    wanted = [index, *([value_of(build, value)] if isinstance(value, Ref) else [])]
    if not all(same_shape(build[name].shape, one) for name in wanted) or isinstance(value, sympy.Expr):
        return None
    which = build.add("place", Iota(dim), [], node.shape, torch.int64)
    here = build.pointwise("here", equal, [which, index], torch.bool, torch.int64)
    if isinstance(value, Ref):
        return build.pointwise("", lambda here, x, value: select(here, value, x), [here, source, wanted[1]], node.dtype)
    number = constant(value, node.dtype)
    return build.pointwise("", lambda here, x: select(here, number, x), [here, source], node.dtype)


@lowers("diagonal_matrix", aten.diag.default, aten.diag_embed.default)
def diagonal_matrix(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """A vector on a diagonal, 0 elsewhere; of a matrix, `diag` gives the diagonal."""
    assert node.shape is not None and node.dtype is not None
    source = value_of(build, a["self"])
    vector, rank, offset = build[source].shape, len(node.shape), a.get("offset", a.get("diagonal"))
    if not isinstance(offset, int):
        return None
    if len(vector) == 2 and rank == 1:
        return build.view("", Diagonal(0, 1, offset), source, node.shape)
    row, column = (a.get(name, default) % rank for name, default in (("dim1", -2), ("dim2", -1)))
    here = [build.add(label, Iota(dim), [], node.shape, torch.int64) for label, dim in (("row", row), ("column", column))]
    others = [d for d in range(rank) if d not in (row, column)]
    size = node.shape[row]
    if offset != 0:
        source = placed(build, source, [*vector[:-1], size], [max(0, -offset)])  # along rows, or what is above them
    order = [*others, row, column]
    shape = [1 if d == column else extent for d, extent in enumerate(node.shape)]
    permuted = Permute(tuple(order.index(d) for d in range(rank)))
    along = build.view("along", permuted, build.reshape(source, [*vector[:-1], size, 1]), shape)
    zero = constant(0, node.dtype)
    keep = build.pointwise("keep", lambda row, column: equal(column - row, offset), here, torch.bool, torch.int64)
    return build.pointwise("", lambda keep, x: select(keep, x, zero), [keep, along], node.dtype)


@lowers("stack", aten.stack.default)
def stack(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The part whose number is the coordinate along the new dimension; of few parts, so that choosing costs little."""
    assert node.shape is not None and node.dtype is not None
    dim, parts = a["dim"] % len(node.shape), [value_of(build, part) for part in a["tensors"]]
    if len(parts) > 32 or any(build[part].dtype != node.dtype for part in parts):
        return None
    which = build.add("which", Iota(dim), [], node.shape, torch.int64)
    wide = [build.reshape(part, [*node.shape[:dim], 1, *node.shape[dim + 1 :]]) for part in parts]
    choices = [(equal(Arg(0), i), Arg(i + 1)) for i in range(len(parts) - 1)]
    return build.pointwise("", first_of(choices, Arg(len(parts))), [which, *wide], node.dtype)


# ---- views


@lowers(
    "view",
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    view=True,
)
def view(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    return build.reshape(value_of(build, a.get("self", a.get("input"))), node.shape, "")


@lowers("expand", aten.expand.default, aten.broadcast_to.default, aten.expand_as.default, view=True)
def expand(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    return build.view("", Expand(), build.stretched(value_of(build, a["self"]), node.shape), node.shape)


@lowers(
    "permute",
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.movedim.int,
    aten.mT.default if hasattr(aten, "mT") else "mT",
    view=True,
)
def permute(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    rank = len(node.shape)
    order = list(range(rank))
    if rank == 0:
        return value_of(build, a["self"])
    if "dims" in a:
        order = [d % rank for d in a["dims"]]
    elif "dim0" in a:
        i, j = a["dim0"] % rank, a["dim1"] % rank
        order[i], order[j] = j, i
    elif "source" in a:
        order.remove(a["source"] % rank)
        order.insert(a["destination"] % rank, a["source"] % rank)
    elif rank >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    return build.view("", Permute(tuple(order)), value_of(build, a["self"]), node.shape)


@lowers("slice", aten.slice.Tensor, view=True)
def slice_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    dim = a["dim"] % len(node.shape)
    start = slice_start(a["start"], build[source].shape[dim])
    if start is None or not isinstance(a["step"], int) or (isinstance(start, int) and start < 0):
        return None
    whole = sizes.same(start, 0) and sizes.same(node.shape[dim], build[source].shape[dim])
    return source if whole else build.view("", Slice(dim, start, a["step"]), source, node.shape)


@lowers("diagonal", aten.diagonal.default, view=True)
def diagonal(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    rank = len(build[source].shape)
    if not isinstance(a["offset"], int):
        return None
    return build.view("", Diagonal(a["dim1"] % rank, a["dim2"] % rank, a["offset"]), source, node.shape)


@lowers("select", aten.select.int, view=True)
def select_(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    shape = list(build[source].shape)
    dim = a["dim"] % len(shape)
    start = slice_start(a["index"], shape[dim])
    if start is None:
        return None
    shape[dim] = 1
    return build.reshape(build.view("row", Slice(dim, start), source, shape), node.shape, "")


@lowers("flip", aten.flip.default, aten.fliplr.default, aten.flipud.default)
def flip(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    assert node.shape is not None
    source, dims = value_of(build, a["self"]), a.get("dims", [1] if "fliplr" in str(node.target) else [0])
    if not dims or not node.shape:
        return source
    return build.view("", Flip(tuple(sorted(d % len(node.shape) for d in dims))), source, node.shape)


@lowers("prelu", aten.prelu.default)
def prelu(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """One slope for all, or one for each channel."""
    assert node.shape is not None and node.dtype is not None
    source, slope = value_of(build, a["self"]), value_of(build, a["weight"])
    if build[slope].shape and len(node.shape) >= 2:
        slope = build.reshape(slope, [build[slope].shape[0], *[1] * (len(node.shape) - 2)])
    names = [source, slope]
    return build.pointwise("", lambda x, slope: select(x > 0.0, x, slope * x), names, node.dtype)


@lowers("glu", aten.glu.default)
def glu(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """The first half times the sigmoid of the second."""
    assert node.shape is not None and node.dtype is not None
    if node.dtype is torch.float64:
        return None
    source, dim = value_of(build, a["self"]), a["dim"] % len(node.shape)
    first = build.view("first", Slice(dim, 0), source, node.shape)
    second = build.view("second", Slice(dim, node.shape[dim]), source, node.shape)
    return build.pointwise("", lambda x, gate: x * fn.sigmoid(gate), [first, second], node.dtype, cost=12)


# ---- elements of operators with several results


@lowers("element", "getitem")
def getitem(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Element i of a split, of max/min over a dimension, of a norm with its statistics, of a pool with indices."""
    parent = build.graph[node.args[0].name]
    part = ELEMENTS.get(parent.target)
    if part is None or not isinstance(parent.target, OpOverload):
        return None
    return part(build, node, parent.bound(), node.args[1], parent)


@element_of(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    dim = a["dim"] % len(node.shape)
    given = a.get("split_size", a.get("split_sizes"))
    if isinstance(given, (list, tuple)):
        start: Dim = sizes.tidy(sum(given[:i], sympy.Integer(0)))
    elif isinstance(given, (int, sympy.Expr)):
        start = sizes.tidy(given * i)
    else:
        return None
    return build.view("", Slice(dim, start), source, node.shape)


@element_of(aten.unbind.int)
def unbind_part(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    assert node.shape is not None
    source = value_of(build, a["self"])
    shape = list(build[source].shape)
    dim = a["dim"] % len(shape)
    shape[dim] = 1
    return build.reshape(build.view("row", Slice(dim, i), source, shape), node.shape, "")
