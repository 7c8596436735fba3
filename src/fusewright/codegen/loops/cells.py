"""Kernels that write what a pool's gradient gives where windows do not overlap: each thread takes a cell, a window and what lies behind it
up to the next, computes what the window has once, and writes the cell's positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch.utils._sympy.functions import FloorDiv

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import axes_of, inputs_at, same_shape, tuple_key
from ...ir.expr import Name, Unary, address, as_expr, element
from ...ir.graph import Dim, Graph
from ...ir.index import Axis, Coordinate
from ...ir.plan import Kernel
from ...ir.prims import Coordinates, Prim, Unpooled, arithmetic_type
from ...ir.stmt import Assign, Declare, Do, For, If, Return, Statement, array, block, const
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .evaluator import Evaluator, converted_to, each_lane
from .scope import LANE, Level
from .text import KernelText
from .walk import Walk, c_product, decode, in_blocks, stores_halves, thread_of, used, vector_conditions, walk

THREADS = 256
WIDTHS = (2, 4)  # elements of a cell's row that are one vector


class Place(str):
    """The name of a variable that counts a cell's positions along a dimension."""

    def __new__(cls, dim: int) -> Place:
        return super().__new__(cls, f"p{dim}")


@dataclass(frozen=True)
class CellsSchedule(Schedule):
    loops: Walk  # over cells
    stride: tuple[int, ...]
    width: int  # elements of a vector, which are a cell's row


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> CellsSchedule | None:
    stride = stride_of(kernel, prims) if kernel.is_pointwise else None
    if stride is None or not all(same_shape(prims[name].shape, kernel.space) for name in kernel.stores):
        return None
    loops, first = walk(kernel, prims, graph), len(kernel.space) - len(stride)
    inside = [loop for loop in loops.kept if loop.dims[-1] >= first]
    if any(len(loop.dims) > 1 for loop in inside) or 0 in kernel.space:
        return None
    cells = [replace(loop, size=cells_of(loop.size, stride[loop.dims[-1] - first])) if loop in inside else loop for loop in loops.kept]
    last = len(kernel.space) - 1
    side_by_side = bool(cells) and cells[-1].dims == (last,) and stride[-1] in WIDTHS
    in_order = all(prims[name].order[-1] == len(prims[name].shape) - 1 for name in (*kernel.loads, *kernel.stores) if prims[name].shape)
    widest = max(prims[name].dtype.itemsize for name in kernel.stores)
    vectors = side_by_side and in_order and stride[-1] * widest <= 16
    if vectors and isinstance(kernel.space[-1], int):
        vectors = kernel.space[-1] % stride[-1] == 0
    width = stride[-1] if vectors else 1
    return CellsSchedule(kernel, prims, graph, machine, replace(loops, kept=tuple(cells)), stride, width)


def stride_of(kernel: Kernel, prims: dict[str, Prim]) -> tuple[int, ...] | None:
    """From window to window, where that is the same for all that the kernel takes out of pools, and all of it is at the kernel's own
    positions, not at others by way of a view."""
    own = tuple(map(Coordinate.of, axes_of(kernel.space)))
    strides, seen = set[tuple[int, ...]](), set[Any]()
    stack = [(name, own) for name in kernel.stores]
    while stack:
        name, at = stack.pop()
        prim, key = prims[name], (name, tuple_key(at))
        if key in seen or name in kernel.loads or prim.is_load:
            continue
        seen.add(key)
        if isinstance(prim.op, Unpooled):
            rank = len(prim.op.stride)
            if tuple_key(at[-rank:]) != tuple_key(own[-rank:]):
                return None
            strides.add(prim.op.stride)
        stack += inputs_at(prims, prim, at)
    return strides.pop() if len(strides) == 1 else None


def cells_of(size: Dim, step: int) -> Dim:
    """How many it takes to cover a dimension."""
    whole = sizes.divide(size, step)
    return whole if whole is not None else sizes.tidy(FloorDiv(size + (step - 1), step))


class CellEvaluator(Evaluator):
    """Knows which cell it is in."""

    cells: Coordinates  # along the windows' dimensions
    places: Coordinates  # in the cell

    def parts_of(self, op: Unpooled, at: Coordinates) -> list[tuple[Coordinate, Coordinate]]:
        return list(zip(self.cells, self.places, strict=True))  # `stride_of` has seen that it is at no other position


def render(schedule: CellsSchedule, comment: list[str]) -> KernelText:
    kernel, prims, loops, stride = schedule.kernel, schedule.prims, schedule.loops, schedule.stride
    rank, vector = len(stride), schedule.width > 1
    first = len(kernel.space) - rank
    names = [Place(dim) for dim in range(first, len(kernel.space))]
    axes = frozenset(loop.variable for loop in loops.kept)
    cell, row = Level(axes), Level(axes | set(names))
    lanes = Level(row.axes | {LANE})
    evaluator = CellEvaluator(prims, kernel.loads, [cell, row, lanes], vector=vector, fast=stores_halves(kernel, prims))
    evaluator.names.update(names)
    evaluator.divisors = {}
    of_cell, _ = loops.at(kernel, lane=False)
    places = [Coordinate.of(Axis(name, step)) for name, step in zip(names, stride, strict=True)]
    if vector:
        places[-1] = places[-1] + Coordinate({Axis(LANE, stride[-1]): 1})
    evaluator.cells, evaluator.places = of_cell[first:], tuple(places)
    at = (*of_cell[:first], *(c * s + p for c, s, p in zip(of_cell[first:], stride, places, strict=True)))
    stores, after = list[tuple[str, Coordinate]](), list[Statement]()
    for name in kernel.stores:
        prim = prims[name]
        offset, result, into = prim.offset(at), evaluator.value(name, at), text.target(kernel, name)
        if not vector:
            row.body.append(Assign(element(into, evaluator.offset(offset)), text.to_memory(prim, converted_to(result, prim))))
            continue
        out = evaluator.fresh(f"{name}_out")
        row.body.append(array(arithmetic_type(prim.dtype), out, Name("VEC")))
        lanes.body.append(Assign(element(Name(out), Name(LANE)), result.expr))
        after.append(Do(fn.store(address(element(into, evaluator.offset(offset, without_lane=True))), Name(out))))
        stores.append((kernel.overwrites.get(name, name), without_places(offset)))
    evaluator.vector_loads = [(name, without_places(offset)) for name, offset in evaluator.vector_loads]
    written: list[Statement] = [*row.body, *([each_lane(lanes.body)] if lanes.body else []), *after]
    written = in_cell(written, evaluator, names, kernel.space[first:], stride, of_cell[first:], vector)
    number = Name("cell")
    position = [
        const("Index", "cell", thread_of(THREADS)),
        If(number >= Name("cells"), Return()),
        *used(decode(loops.kept, number, evaluator), [*cell.body, *written]),
    ]
    inner = kernel.space[-1]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        body=[*position, *cell.body, *written],
        threads=str(THREADS),
        extra=["cells"],
        width=schedule.width,
        conditions=vector_conditions(evaluator, stores, inner, schedule.width, prims) if vector else [],
        setup=text.nothing_to_do("cells", c_product([loop.size for loop in loops.kept])),
        grid=lambda _: in_blocks("cells", THREADS)(1),
        block=as_expr(THREADS),
    )


def without_places(offset: Coordinate) -> Coordinate:
    """Where a cell's row of vectors begins: the only vector of it where there are some."""
    return Coordinate({axis: f for axis, f in offset.terms.items() if not isinstance(axis.name, Place)}, offset.offset)


def in_cell(
    body: list[Statement],
    evaluator: Evaluator,
    names: list[Place],
    shape: tuple[Dim, ...],
    stride: tuple[int, ...],
    cells: Coordinates,
    vector: bool,
) -> list[Statement]:
    """Statements for each position of a cell that is there."""
    for i in reversed(range(len(names))):
        whole = sizes.divide(shape[i], stride[i]) is not None
        here = evaluator.offset(cells[i] * stride[i] + Coordinate({Axis(names[i], stride[i]): 1}))
        if not whole:
            body = [If(here < evaluator.size(shape[i]), together(body))]
        if stride[i] > 1:
            step = Assign(Name(names[i]), Name("VEC"), "+=") if vector and i == len(names) - 1 else Do(Unary("++", Name(names[i])))
            body = [For(Declare("int", names[i], as_expr(0)), Name(names[i]) < stride[i], step, together(body), unroll=True)]
    return body


def together(body: list[Statement]) -> Statement:
    """In braces, but a test or a statement of one line. An unrolled loop needs a line above it."""
    return body[0] if len(body) == 1 and not isinstance(body[0], For) else block(body)


TEMPLATE = KernelTemplate("cells", match, render)
