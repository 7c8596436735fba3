"""Scan kernels: one pass along each row, which stays in registers from the load to the store.

By rows: the elements of a row lie together in memory. The threads of a row, a part of a warp up to a block, take a chunk of it at a
time, VEC neighbouring elements each; where vectors do not fit, several elements that lie a chunk's width apart.
By columns: the rows lie side by side. Each thread takes neighbouring elements along its own row, and SPLIT threads share a row.
Where what is read and written lies mostly against the scan (a flip on both sides) memory is walked from the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...ir import functions as fn
from ...ir import sizes
from ...ir.expr import Expr, Function, Grouped, Name, Template, address, as_expr, both, element, select
from ...ir.graph import Graph
from ...ir.index import Axis, Coordinate, LoopVariable
from ...ir.plan import Kernel
from ...ir.prims import Coordinates, Prim, arithmetic_type, constant
from ...ir.stmt import Assign, Declare, Do, For, If, Return, Statement, array, block, const
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .accumulators import reductions_behind
from .evaluator import Evaluator, converted, converted_to, each_lane
from .reduce import split_for
from .reduce_columns import first_row
from .scope import LANE, VEC, Level
from .text import KernelText
from .walk import (
    BLOCK,
    INSIDE,
    THREAD,
    THREAD_Y,
    accessed,
    c_product,
    decode,
    full_at,
    grid_of,
    needed_reduces,
    stores_halves,
    vector_conditions,
    vector_width,
    walk,
)

START_OF_CHUNK, ITEM, WITHIN = Name("start"), Name("item"), Name("within")
ITEMS = 4  # elements that a thread holds where they are not one vector
WIDTH = 32  # threads side by side where columns are split
START = {"Sum": 0.0, "Product": 1.0, "Max": float("-inf"), "Min": float("inf"), "LogSumExp": float("-inf")}


@dataclass(frozen=True)
class ScanSchedule(Schedule):
    writer: type[Rows]
    width: int  # elements that a thread takes side by side


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> ScanSchedule | None:
    if not kernel.is_scan:
        return None
    loops = walk(kernel, prims, graph)
    width = 1 if text.has_pool(kernel, prims) else vector_width(kernel, prims, loops.reduced)
    if not loops.lanes_reduce:
        return ScanSchedule(kernel, prims, graph, machine, Columns, 1)
    return ScanSchedule(kernel, prims, graph, machine, Vectors if width > 1 else Rows, width)


def render(schedule: ScanSchedule, comment: list[str]) -> KernelText:
    return schedule.writer(schedule.kernel, schedule.prims, schedule.graph, comment, schedule.width, schedule.machine).write()


TEMPLATE = KernelTemplate("scan", match, render)


def sum_type(prim: Prim) -> torch.dtype:
    """The type in which a row is scanned. A product of many floats leaves their range on the way; a double's it does not."""
    wide = prim.op.kind == "Product" and prim.dtype.is_floating_point
    return torch.float64 if wide else prim.dtype


def runs_back(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> bool:
    """Most of what lies along the scan in memory lies against it."""
    assert kernel.scanned is not None
    along, offsets = LoopVariable(kernel.scanned), accessed(kernel, prims, graph).offsets
    steps = [f for offset in offsets for a, f in offset.terms.items() if a.name == along]
    return sum(sizes.same(f, -1) for f in steps) > sum(sizes.is_one(f) for f in steps)


class Rows:
    """A part of a warp, a warp or a block for each row; each thread takes single elements."""

    vector = False

    def __init__(self, kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str], width: int, machine: Machine):
        self.kernel, self.prims, self.graph, self.comment, self.width = kernel, prims, graph, comment, width
        self.machine = machine
        self.loops = walk(kernel, prims, graph)
        (self.loop,) = self.loops.reduced
        self.reverse = runs_back(kernel, prims, graph)
        self.rows = graph.hint(sizes.product(kernel.row_shape))
        self.row_body: list[Statement] = []
        self.row_axes = frozenset(loop.variable for loop in self.loops.kept)
        fast = stores_halves(kernel, prims)
        self.evaluator = Evaluator(prims, kernel.loads, [Level(self.row_axes, self.row_body)], vector=self.vector, fast=fast)
        self.stores: list[tuple[str, Coordinate]] = []
        self.scans = needed_reduces(kernel, prims)
        self.before = {name: self.evaluator.fresh(f"{name}_before") for name in self.scans}

    # ---- where a thread is

    @property
    def items(self) -> Expr:
        """How many elements a thread holds."""
        return as_expr(ITEMS)

    @property
    def each(self) -> int:
        return ITEMS

    @property
    def threads(self) -> int:
        length = self.graph.hint(self.loop.size)
        return next((t for t in (4, 8, 16, 32, 64, 128) if length <= t * self.each), 256)

    @property
    def rows_a_block(self) -> int:
        return max(1, 128 // self.threads) if self.threads <= 32 else 1

    @property
    def shares_warp(self) -> bool:
        """Several rows are in one warp."""
        return self.threads < 32

    @property
    def length(self) -> Expr:
        return self.evaluator.size(self.loop.size)

    @property
    def at(self) -> Coordinates:
        """The element in the order of the scan, of which the loop variable is the place in memory."""
        _, row = self.loops.at(self.kernel, lane=False)
        here = Coordinate.of(Axis(self.loop.variable, self.loop.size))
        if self.vector:
            here = here + Coordinate({Axis(LANE, 1 << 20): 1})
        if self.reverse:
            here = here * -1 + sizes.tidy(self.loop.size - 1)
        return tuple(here if d == self.kernel.scanned else c for d, c in enumerate(row))

    @property
    def step(self) -> Expr:
        return self.threads * self.items

    def position(self) -> list[Statement]:
        """Of the thread in a chunk."""
        return [const("Index", "item", START_OF_CHUNK + THREAD)]

    def lane_position(self) -> Expr:
        """Of one of its elements in the order of the scan."""
        return ITEM + Name(LANE) * self.threads

    def scan_call(self, kind: str) -> Function:
        return Function("scan_row").of(f"Scan{kind}", self.threads, ITEMS)

    def row_position(self) -> list[Statement]:
        count, row = self.rows_a_block, fn.static_cast.of("Index")(BLOCK)
        row = row * count + THREAD_Y if count > 1 else row
        if self.shares_warp:
            return [
                const("bool", "inside", row < Name("rows"), note="threads outside still take part in the scan"),
                const("Index", "row", select(INSIDE, row, 0)),
            ]
        return [const("Index", "row", row), *([If(Name("row") >= Name("rows"), Return())] if count > 1 else [])]

    # ---- a chunk

    def chunk(self) -> list[Statement]:
        body = self.position()
        for names in self.rounds():
            body += self.scan(names)
        return [*body, *self.store_all()]

    def rounds(self) -> list[list[str]]:
        """Scans that need nothing of each other together, after those that they need."""
        round_of: dict[str, int] = {}
        for name in self.scans:
            needed = reductions_behind(self.prims[name].inputs[0], self.kernel, self.prims)
            round_of[name] = 1 + max((round_of[other] for other in needed), default=0)
        return [[name for name in self.scans if round_of[name] == n] for n in range(1, max(round_of.values()) + 1)]

    def scan(self, names: list[str]) -> list[Statement]:
        """Fill tiles with what is scanned, and scan them."""
        tiles = {name: self.evaluator.fresh(f"{name}_tile") for name in names}
        prims = [self.prims[name] for name in names]
        lanes = self.lanes_level()
        values = [converted(self.evaluator.value(prim.inputs[0], self.at), sum_type(prim)) for prim in prims]
        self.evaluator.levels.remove(lanes)
        self.evaluator.results |= {name: element(Name(tile), self.place) for name, tile in tiles.items()}
        targets = [self.evaluator.results[name] for name in names]
        body = self.filled(targets, lanes.body, values, [self.start(prim) for prim in prims])
        declared = [array(arithmetic_type(sum_type(self.prims[n])), tile, self.items) for n, tile in tiles.items()]
        calls = [Do(self.scan_call(self.prims[n].op.kind)(Name(tile), Name(self.before[n]))) for n, tile in tiles.items()]
        return [*declared, self.each_item(body), *calls]

    def start(self, prim: Prim) -> Expr:
        return constant(START[prim.op.kind], sum_type(prim))

    @property
    def place(self) -> Expr:
        """Of an element in its tile."""
        return Name(LANE)

    def lanes_level(self) -> Level:
        level = Level(self.row_axes | {self.loop.variable})
        self.evaluator.levels.append(level)
        return level

    def each_item(self, body: list[Statement]) -> Statement:
        return each_lane(body, self.items)

    @property
    def inside(self) -> Expr:
        """Whether there is such an element."""
        return both(*([INSIDE] if self.shares_warp else []), self.lane_position() < self.length)

    @property
    def in_memory(self) -> Statement:
        place = self.lane_position()
        if self.reverse:
            place = self.evaluator.size(sizes.tidy(self.loop.size - 1)) - Grouped(place)
        return const("Index", self.loop.variable, place)

    def filled(self, targets: list[Expr], body: list[Statement], values: list[Expr], starts: list[Expr]) -> list[Statement]:
        """Elements of the tiles, neutral ones where the row has ended."""
        taken = block([self.in_memory, *body, *map(Assign, targets, values)])
        return [*map(Assign, targets, starts), If(self.inside, taken)]

    def store_all(self) -> list[Statement]:
        lanes = self.lanes_level()
        stores = []
        for name in self.kernel.stores:
            prim = self.prims[name]
            at = full_at(self.at, self.kernel, self.prims, prim)
            result = self.evaluator.value(name, at)
            where = element(text.target(self.kernel, name), self.evaluator.offset(prim.offset(at)))
            stores.append(Assign(where, text.to_memory(prim, converted_to(result, prim))))
        self.evaluator.levels.remove(lanes)
        return [self.each_item([If(self.inside, block([self.in_memory, *lanes.body, *stores]))])]

    # ---- the whole

    def write(self) -> KernelText:
        chunk = self.chunk()  # may add values of the row that it uses
        body = [*self.row_position(), *decode(self.loops.kept, Name("row"), self.evaluator), *self.row_body]
        for name in self.scans:
            prim = self.prims[name]
            carry = Template("Carry", (f"Scan{prim.op.kind}", arithmetic_type(sum_type(prim))))
            body.append(Declare(carry, self.before[name], made_of=(self.start(prim),)))
        first, further = Declare("Index", "start", as_expr(0)), Assign(START_OF_CHUNK, self.step, "+=")
        body.append(For(first, Name("start") < self.length, further, block(chunk)))
        blocks, threads = self.launch()
        return text.finish(
            self.kernel,
            self.prims,
            self.evaluator,
            self.comment,
            body=body,
            extra=["rows"],
            width=self.width,
            conditions=self.conditions(),
            setup=text.nothing_to_do("rows", c_product([loop.size for loop in self.loops.kept])),
            threads=str(math.prod(threads)),
            grid=lambda _: grid_of(blocks),
            block=grid_of(*(as_expr(n) for n in threads if n > 1)),
        )

    def conditions(self) -> list[Expr]:
        return []

    def launch(self) -> tuple[Expr, tuple[int, int]]:
        """How many blocks, and how many threads each has along a row and how many rows."""
        count, rows = self.rows_a_block, Name("rows")
        return (rows + (count - 1)) / count if count > 1 else rows, (self.threads, count)


class Vectors(Rows):
    """As by rows, but each thread takes VEC neighbouring elements at once."""

    vector = True

    @property
    def items(self) -> Expr:
        return VEC

    @property
    def each(self) -> int:
        return self.width

    @property
    def place(self) -> Expr:
        return VEC - 1 - Name(LANE) if self.reverse else Name(LANE)

    def position(self) -> list[Statement]:
        """Threads beyond the row's end read its first elements and use none of them."""
        place = self.length - VEC - ITEM if self.reverse else ITEM
        return [
            const("Index", "item", START_OF_CHUNK + THREAD * VEC),
            const("bool", "within", both(*([INSIDE] if self.shares_warp else []), Name("item") < self.length)),
            const("Index", self.loop.variable, select(WITHIN, place, 0)),
        ]

    def scan_call(self, kind: str) -> Function:
        return Function("scan_row").of(f"Scan{kind}", self.threads, 1)

    def chunk(self) -> list[Statement]:
        self.element = Level(self.row_axes | {self.loop.variable})
        self.evaluator.levels.append(self.element)
        body = super().chunk()
        self.evaluator.levels.remove(self.element)
        return body

    def lanes_level(self) -> Level:
        level = Level(self.row_axes | {self.loop.variable, LANE})
        self.evaluator.levels.append(level)
        return level

    def taken(self) -> list[Statement]:
        """What the thread reads and computes once for all its elements."""
        found = list(self.element.body)
        self.element.body.clear()
        return found

    def scan(self, names: list[str]) -> list[Statement]:
        body = super().scan(names)
        return [*self.taken(), *body]

    def filled(self, targets: list[Expr], body: list[Statement], values: list[Expr], starts: list[Expr]) -> list[Statement]:
        each = zip(targets, values, starts, strict=True)
        return [*body, *(Assign(target, select(WITHIN, value, start)) for target, value, start in each)]

    def store_all(self) -> list[Statement]:
        lanes = self.lanes_level()
        declared: list[Statement] = []
        after: list[Statement] = []
        for name in self.kernel.stores:
            prim, into = self.prims[name], text.target(self.kernel, name)
            at = full_at(self.at, self.kernel, self.prims, prim)
            result, offset = self.evaluator.value(name, at), prim.offset(at)
            out = self.evaluator.fresh(f"{name}_out")
            lane = element(Name(out), Name(LANE))
            declared.append(array(arithmetic_type(prim.dtype), out, VEC))
            lanes.body.append(Assign(lane, converted_to(result, prim)))
            if any(axis.name == LANE and sizes.is_one(factor) for axis, factor in offset.terms.items()):
                where = self.evaluator.offset(offset, without_lane=True)
                after.append(Do(fn.store(address(element(into, where)), Name(out))))
                self.stores.append((self.kernel.overwrites.get(name, name), offset))
            else:
                place = element(into, self.evaluator.offset(offset))
                after.append(self.each_item([Assign(place, text.to_memory(prim, lane))]))
        self.evaluator.levels.remove(lanes)
        return [*self.taken(), *declared, self.each_item(lanes.body), If(WITHIN, block(after))]

    def conditions(self) -> list[Expr]:
        return vector_conditions(self.evaluator, self.stores, self.loop.size, self.width, self.prims)


class Columns(Rows):
    """Rows side by side; each thread takes neighbouring elements along its row, SPLIT threads share one."""

    @property
    def split(self) -> int:
        return split_for(self.rows, self.graph.hint(self.loop.size) // ITEMS, self.machine)

    @property
    def columns(self) -> int:
        """Threads side by side."""
        return WIDTH if self.split > 1 else 128

    @property
    def shares_warp(self) -> bool:
        return self.split > 1

    @property
    def step(self) -> Expr:
        return as_expr(self.split * ITEMS)

    def position(self) -> list[Statement]:
        return [const("Index", "item", START_OF_CHUNK + THREAD_Y * ITEMS if self.split > 1 else START_OF_CHUNK)]

    def lane_position(self) -> Expr:
        return ITEM + Name(LANE)

    def scan_call(self, kind: str) -> Function:
        return Function("scan_column").of(f"Scan{kind}", self.split, self.columns)

    def row_position(self) -> list[Statement]:
        return first_row(self.columns, vector=False, sharing=self.split > 1)

    def launch(self) -> tuple[Expr, tuple[int, int]]:
        return (Name("rows") + (self.columns - 1)) / self.columns, (self.columns, self.split)
