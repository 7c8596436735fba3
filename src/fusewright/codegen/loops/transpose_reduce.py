"""Reduce kernels that read one order in memory and write tensors of their whole space in the other.

Threads follow what is read. Where rows lie side by side and what is written runs along them (a softmax over the width of
channels-last data), results go through shared memory, a stretch of 32 rows at a time; where it runs along other rows (a softmax
over the height), those of a patch of rows. Where the row itself lies together and rows lie side by side in what is written (a
softmax over the channels), what is read goes through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import accesses, axes_of, same_shape, tuple_key
from ...ir.expr import Binary, Expr, Grouped, Name, as_expr, both, element, product, select
from ...ir.graph import Dim, Graph
from ...ir.index import Coordinate, LoopVariable
from ...ir.plan import Kernel
from ...ir.prims import C_TYPES, Prim
from ...ir.stmt import Assign, Continue, Declare, Do, For, If, Statement, array, block, const, counted
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .accumulators import accumulators, reductions_behind
from .evaluator import converted_to, in_arithmetic
from .reduce_columns import Columns
from .scope import Level, pointer
from .text import KernelText
from .transpose import FEWEST_CHANNELS, LESS
from .walk import (
    BLOCK,
    INSIDE,
    THREAD,
    THREAD_Y,
    Loop,
    Walk,
    accessed,
    c_product,
    decode,
    full_at,
    grid_of,
    moved,
    needed_reduces,
    walk,
)

TILE = 32  # rows of a block, and elements of a row that are transposed at once
SHARE = 8  # threads that share a row
PATCH, STEPS = 16, 4  # rows along what is written that a block takes, and elements of each that are transposed at once
MOST = 4  # tensors that are transposed
SHARED = 40 << 10  # bytes of shared memory for what is staged; 48 KiB need no asking


def transposed_reduce(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> type[Columns] | None:
    """The template for a reduce kernel that writes across what it reads; None where there is no need or none fits."""
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    touched = (*kernel.loads, *kernel.stores)
    if not kernel.is_reduce or not full or kernel.overwrites or not any(prims[name].channels_last for name in touched):
        return None
    found, loops = accessed(kernel, prims, graph), walk(kernel, prims, graph)
    lane = lane_of(loops)
    across = [(prim, offset) for prim, offset in found.written if not follows(offset, lane)]
    dims = {d for _, offset in across for d in range(len(kernel.space)) if follows(offset, d)}
    plain = all(prim.dtype.itemsize <= 4 and all(isinstance(axis.name, LoopVariable) for axis in offset.terms) for prim, offset in across)
    if len(dims) != 1 or not plain:
        return None
    (dim,) = dims
    along = [pair for pair in found.written if pair not in across]
    straight = min(moved([*found.read, *found.written], d, graph) for d in (lane, dim))
    if moved([*found.read, *along], lane, graph) + moved(across, dim, graph) >= LESS * straight:
        return None
    last = len(across) <= MOST and all(is_last(prim.name, kernel, prims) for prim, _ in across)
    if not loops.lanes_reduce and dim in loops.reduced[-1].dims:
        return TransposedColumns if last else None
    beside = [loop for loop in loops.kept[:-1] if loop.dims[-1] == dim and graph.hint(loop.size) >= PATCH]
    if not loops.lanes_reduce and beside and last and graph.hint(loops.kept[-1].size) >= FEWEST_CHANNELS:
        return PatchColumns
    return StagedColumns if loops.lanes_reduce and not along and staged(kernel, prims, dim) else None


def lane_of(loops: Walk) -> int:
    return (loops.reduced if loops.lanes_reduce else loops.kept)[-1].dims[-1]


def follows(offset: Coordinate, dim: int) -> bool:
    """Neighbours along the dimension are neighbours in memory."""
    return any(axis.name == LoopVariable(dim) and sizes.is_one(factor) for axis, factor in offset.terms.items())


def is_last(name: str, kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """It needs all passes over the row, so that none after it reads it."""
    passes = {member: part.pass_index for part in accumulators(kernel, prims) for member in part.members}
    behind = reductions_behind(name, kernel, prims)
    return max((passes[n] for n in behind), default=0) == max(passes.values())


def staged(kernel: Kernel, prims: dict[str, Prim], dim: int) -> list[str]:
    """Tensors of the kernel's space that it reads only element by element, if rows of all of them fit in shared memory."""
    if len(kernel.reduced) != 1 or dim in kernel.reduced or text.has_window(kernel, prims):
        return []
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    roots = [(prims[name].inputs[0], at) for name in needed_reduces(kernel, prims)]
    roots += [(n, full_at(at, kernel, prims, prims[n])) for n in kernel.stores if kernel.members[n] == "full"]
    leaves = set(kernel.loads)
    reads = [access for name, here in roots for access in accesses(prims, name, here, leaves, name not in leaves)]
    found = [name for name in kernel.loads if same_shape(prims[name].shape, kernel.space) and prims[name].channels_last]
    plain = all(tuple_key(access.at) == tuple_key(at) for access in reads if access.leaf in found)
    length = kernel.space[kernel.reduced[0]]
    fits = isinstance(length, int) and TILE * (length | 1) * sum(prims[n].dtype.itemsize for n in found) <= SHARED
    return found if plain and fits and all(prims[n].dtype.itemsize <= 4 for n in found) else []


@dataclass(frozen=True)
class TransposeReduceSchedule(Schedule):
    writer: type[Columns]
    loops: Walk
    share: int  # threads of a row


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> TransposeReduceSchedule | None:
    template = transposed_reduce(kernel, prims, graph)
    if template is None:
        return None
    loops, share = walk(kernel, prims, graph), SHARE
    if template is StagedColumns:
        loops = walk(kernel, prims, graph, along=written_along(kernel, prims, graph, loops))
    elif template is PatchColumns:
        share = 1
    return TransposeReduceSchedule(kernel, prims, graph, machine, template, loops, share)


def render(schedule: TransposeReduceSchedule, comment: list[str]) -> KernelText:
    kernel, prims, graph = schedule.kernel, schedule.prims, schedule.graph
    return schedule.writer(kernel, prims, graph, comment, schedule.loops, accumulators(kernel, prims), schedule.share).write()


TEMPLATE = KernelTemplate("transposed reduce", match, render)


def written_along(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> int:
    """The dimension along which what is transposed lies together."""
    across = [offset for _, offset in accessed(kernel, prims, graph).written if not follows(offset, lane_of(loops))]
    return next(d for d in range(len(kernel.space)) if follows(across[0], d))


class Turning(Columns):
    """What is written across goes into a tile first."""

    vectors = False
    place: tuple[Expr, ...] = ()  # in the tile, of a thread's element

    def store_full(self, name: str, element_level: Level, lanes: Level, after: list[Statement]) -> None:
        prim = self.prims[name]
        at = full_at(self.at, self.kernel, self.prims, prim)
        if follows(prim.offset(at), lane_of(self.loops)):
            super().store_full(name, element_level, lanes, after)
            return
        value = text.to_memory(prim, converted_to(self.evaluator.value(name, at), prim))
        self.tile_of[name] = self.evaluator.fresh(f"{name}_tile")
        after.append(Assign(element(Name(self.tile_of[name]), *self.place), value))

    def loop(self, pass_index: int) -> list[Statement]:
        """All that is transposed is written in the last pass."""
        self.tile_of: dict[str, str] = {}
        return super().loop(pass_index) if pass_index < self.passes else self.last_loop()

    def last_loop(self) -> list[Statement]:
        raise NotImplementedError

    def halves(self, name: str) -> tuple[Expr, Expr]:
        """An element's offset: where its row begins, and how far it is from there."""
        offset = self.prims[name].offset(full_at(self.at, self.kernel, self.prims, self.prims[name]))
        along = {loop.variable for loop in self.loops.reduced}
        inside = Coordinate({axis: factor for axis, factor in offset.terms.items() if axis.name in along})
        return self.evaluator.offset(offset + inside * -1), self.evaluator.offset(inside)

    def fresh(self, *names: str) -> list[Name]:
        return [Name(self.evaluator.fresh(name)) for name in names]


def behind(first: Expr, inside_row: Expr) -> Expr:
    """An offset that is counted from the beginning of a row: term by term."""
    if isinstance(inside_row, Binary) and inside_row.sign in ("+", "-"):
        return Binary(inside_row.sign, behind(first, inside_row.left), inside_row.right)
    return first + inside_row


class TransposedColumns(Turning):
    """Rows side by side; what is written along them is transposed, TILE elements of TILE rows at a time."""

    def last_loop(self) -> list[Statement]:
        place, u, start, line = self.fresh("place", "u", "start", "line")
        item = Name("item")
        self.place = place, THREAD
        length = self.evaluator.size(sizes.product(loop.size for loop in self.loops.reduced))
        decoded = decode(self.loops.reduced, item, self.evaluator)
        computed = [*decoded, *self.pass_over(self.passes)]

        def places(statements: Sequence[Statement]) -> Statement:
            return counted(u.name, TILE, [const("int", place.name, u + THREAD_Y), *statements], step=self.split)

        declared, begins, stores = list[Statement](), list[Statement](), list[Statement]()
        for name, tile in self.tile_of.items():
            begin, (of_row, inside_row) = self.evaluator.fresh(f"{name}_begin"), self.halves(name)
            here = element(Name(begin), u / self.split)
            declared.append(array(C_TYPES[self.prims[name].dtype], tile, TILE, TILE + 1, how="__shared__"))
            declared.append(array("Index", begin, TILE // self.split, note="of the rows that this thread writes"))
            begins.append(Assign(here, of_row))
            transposed = element(Name(tile), THREAD, place)
            stores.append(Assign(element(Name(pointer(name)), behind(here, inside_row)), transposed))
        row = const("Index", line.name, fn.static_cast.of("Index")(BLOCK) * TILE + place)
        sync = Do(fn.sync_threads())
        gather = [const("Index", "item", start + place), If(both(INSIDE, item < length), block(computed))]
        put = If(both(line < Name("rows"), item < length), block([*decoded, *stores]))
        first, further = Declare("Index", start.name, as_expr(0)), Assign(start, as_expr(TILE), "+=")
        body = [places(gather), sync, places([row, const("Index", "item", start + THREAD), put]), sync]
        return [
            *declared,
            places([row, *decode(self.loops.kept, line, self.evaluator), *begins]),
            For(first, start < length, further, block(body)),
        ]


class PatchColumns(Turning):
    """A row for each thread, TILE of them along what is read and PATCH along what is written."""

    meets = True

    def begin(self) -> list[Statement]:
        lane, beside, others = self.patch()
        tiles, layers, block_, self.first, self.top = self.fresh("tiles", "layers", "block", "first", "top")
        width, height = self.evaluator.size(lane.size), self.evaluator.size(beside.size)
        across, down = (width + (TILE - 1)) / TILE, (height + (PATCH - 1)) / PATCH
        top = block_ / tiles % layers * PATCH
        return [
            Declare("Index", tiles.name, across, how="const", also=((layers.name, down),)),
            const("Index", block_.name, fn.static_cast.of("Index")(BLOCK)),
            Declare("Index", self.first.name, block_ % tiles * TILE, how="const", also=((self.top.name, top),)),
            const("bool", "inside", both(self.first + THREAD < width, self.top + THREAD_Y < height)),
            const("Index", lane.variable, select(INSIDE, self.first + THREAD, 0)),
            const("Index", beside.variable, select(INSIDE, self.top + THREAD_Y, 0)),
            *decode(others, block_ / tiles / layers, self.evaluator),
        ]

    def patch(self) -> tuple[Loop, Loop, tuple[Loop, ...]]:
        """Among the kept loops: the one along what is read, the one along what is written, the others."""
        dim = written_along(self.kernel, self.prims, self.graph, self.loops)
        lane, beside = self.loops.kept[-1], next(loop for loop in self.loops.kept if loop.dims[-1] == dim)
        return lane, beside, tuple(loop for loop in self.loops.kept if loop not in (lane, beside))

    def launch(self) -> dict[str, Any]:
        lane, beside, others = self.patch()
        sides = ((lane, TILE), (beside, PATCH))
        counts = [Grouped((c_product([loop.size]) + (side - 1)) / side) for loop, side in sides]
        rest = c_product([loop.size for loop in others])
        return {
            "threads": str(TILE * PATCH),
            "extra": [],
            "setup": text.nothing_to_do("blocks", product([rest, *counts])),
            "grid": lambda _: grid_of(Name("blocks")),
            "block": fn.dim3(TILE, PATCH),
        }

    def last_loop(self) -> list[Statement]:
        u, start, thread, j, k, writes = self.fresh("u", "start", "thread", "j", "k", "writes")
        item = Name("item")
        self.place = u, THREAD_Y, THREAD
        lane, beside, _ = self.patch()
        length = self.evaluator.size(sizes.product(loop.size for loop in self.loops.reduced))
        decoded = decode(self.loops.reduced, item, self.evaluator)
        computed = [*decoded, *self.pass_over(self.passes)]

        def steps(test: Expr, statements: Sequence[Statement]) -> Statement:
            inside = If(both(test, item < length), block(statements))
            return counted(u.name, STEPS, [const("Index", "item", start + u), inside])

        declared, begins, stores = list[Statement](), list[Statement](), list[Statement]()
        for name, tile in self.tile_of.items():
            begin, (of_row, inside_row) = Name(self.evaluator.fresh(f"{name}_begin")), self.halves(name)
            # of a warp that reads, lanes that take another k are two banks further
            declared.append(array(C_TYPES[self.prims[name].dtype], tile, STEPS, PATCH, TILE + 2, how="__shared__"))
            declared.append(Declare("Index", begin.name, note="of the row that this thread writes"))
            begins.append(Assign(begin, of_row))
            transposed = element(Name(tile), u, k, j)
            stores.append(Assign(element(Name(pointer(name)), behind(begin, inside_row)), transposed))
        width, height = self.evaluator.size(lane.size), self.evaluator.size(beside.size)
        here = Declare("Index", lane.variable, self.first + j, how="const", also=((beside.variable, self.top + k),))
        split = ((k.name, thread % PATCH), (j.name, thread / PATCH))
        sync = Do(fn.sync_threads())
        first, further = Declare("Index", start.name, as_expr(0)), Assign(start, as_expr(STEPS), "+=")
        return [
            *declared,
            Declare("int", thread.name, THREAD_Y * TILE + THREAD, how="const", also=split),
            const("bool", writes.name, both(self.first + j < width, self.top + k < height)),
            block([here, *begins]),
            For(first, start < length, further, block([steps(INSIDE, computed), sync, steps(writes, [*decoded, *stores]), sync])),
        ]


class StagedColumns(Columns):
    """Rows that lie together, TILE of them in shared memory; from there on they are columns."""

    vectors = False

    def begin(self) -> list[Statement]:
        return [*super().begin(), *self.staging()]

    def staging(self) -> list[Statement]:
        (dim,) = self.kernel.reduced
        length, (reduced,) = self.kernel.space[dim], self.loops.reduced
        assert isinstance(length, int)
        names = staged(self.kernel, self.prims, lane_of(self.loops))
        n, line, along = Name(self.evaluator.fresh("n")), Name(self.evaluator.fresh("line")), Name(reduced.variable)
        declared, reads, whole = list[Statement](), list[Statement](), True
        for name in names:
            prim, tile = self.prims[name], Name(self.evaluator.fresh(f"{name}_tile"))
            self.evaluator.results[name] = in_arithmetic(prim, element(tile, THREAD, along))
            declared.append(array(C_TYPES[prim.dtype], tile.name, TILE, length | 1, how="__shared__"))
            together = self.in_line(prim)
            whole &= together
            offset = line * length + along if together else self.evaluator.offset(prim.offset(self.at))
            place = self.evaluator.in_steps(prim, offset)
            reads.append(Assign(element(tile, n / length, along), element(Name(pointer(name)), place)))
        body = [
            const("Index", line.name, fn.static_cast.of("Index")(BLOCK) * TILE + n / length),
            If(line >= Name("rows"), Continue()),
            *([] if whole else decode(self.loops.kept, line, self.evaluator)),
            const("Index", along.name, n % length),
            *reads,
        ]
        first, further = Declare("int", n.name, THREAD_Y * TILE + THREAD), Assign(n, as_expr(TILE * self.split), "+=")
        return [*declared, For(first, n < as_expr(TILE) * length, further, block(body), unroll=4), Do(fn.sync_threads())]

    def in_line(self, prim: Prim) -> bool:
        """Its rows lie one after another, in the order in which they are counted."""
        factors = {axis.name: factor for axis, factor in prim.offset(self.at).terms.items()}
        step: Dim = self.kernel.space[self.kernel.reduced[0]]
        for loop in reversed(self.loops.kept):
            if not sizes.same(factors.get(loop.variable, 0), step):
                return False
            step = sizes.tidy(step * loop.size)
        return True
