"""Scan kernels: one pass along each row, which stays in registers from the load to the store.

By rows: the elements of a row lie together in memory. The threads of a row, a part of a warp up to a block, take a chunk of it at a
time, VEC neighbouring elements each; where vectors do not fit, several elements that lie a chunk's width apart.
By columns: the rows lie side by side. Each thread takes neighbouring elements along its own row, and SPLIT threads share a row.
Where what is read and written lies mostly against the scan (a flip on both sides) memory is walked from the end.
"""

from __future__ import annotations

import math

import torch

from .. import sizes
from ..graph import Graph
from ..index import Axis, Coordinate
from ..plan import Kernel
from ..prims import Coordinates, Prim, arithmetic_type, literal
from . import text
from .accumulators import reductions_behind
from .expression import LANE, Evaluator, Level, converted, converted_to, indent
from .loops import accessed, c_product, decode, full_at, needed_reduces, vector_conditions, vector_width, walk
from .reduce import split_for
from .reduce_columns import first_row
from .text import KernelText

ITEMS = 4  # elements that a thread holds where they are not one vector
WIDTH = 32  # threads side by side where columns are split
START = {"Sum": 0.0, "Product": 1.0, "Max": float("-inf"), "Min": float("inf"), "LogSumExp": float("-inf")}


def scan_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    loops = walk(kernel, prims, graph)
    width = 1 if text.has_pool(kernel, prims) else vector_width(kernel, prims, loops.reduced)
    if not loops.lanes_reduce:
        return Columns(kernel, prims, graph, comment).write()
    return (Vectors if width > 1 else Rows)(kernel, prims, graph, comment, width).write()


def sum_type(prim: Prim) -> torch.dtype:
    """The type in which a row is scanned. A product of many floats leaves their range on the way; a double's it does not."""
    wide = prim.op.kind == "Product" and prim.dtype.is_floating_point
    return torch.float64 if wide else prim.dtype


def runs_back(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> bool:
    """Most of what lies along the scan in memory lies against it."""
    steps = [f for offset in accessed(kernel, prims, graph).offsets for a, f in offset.terms.items() if a.text == f"i{kernel.scanned}"]
    return sum(sizes.same(f, -1) for f in steps) > sum(sizes.is_one(f) for f in steps)


class Rows:
    """A part of a warp, a warp or a block for each row; each thread takes single elements."""

    vector = False

    def __init__(self, kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str], width: int = 1):
        self.kernel, self.prims, self.graph, self.comment, self.width = kernel, prims, graph, comment, width
        self.loops = walk(kernel, prims, graph)
        (self.loop,) = self.loops.reduced
        self.reverse = runs_back(kernel, prims, graph)
        self.rows = graph.hint(sizes.product(kernel.row_shape))
        self.row_lines: list[str] = []
        self.row_axes = frozenset(loop.variable for loop in self.loops.kept)
        self.evaluator = Evaluator(prims, kernel.loads, [Level(self.row_axes, self.row_lines)], vector=self.vector)
        self.stores: list[tuple[str, Coordinate]] = []
        self.scans = needed_reduces(kernel, prims)
        self.before = {name: self.evaluator.fresh(f"{name}_before") for name in self.scans}

    # ---- where a thread is

    @property
    def items(self) -> str:
        """How many elements a thread holds."""
        return str(ITEMS)

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
    def length(self) -> str:
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
    def step(self) -> str:
        return f"{self.threads} * {self.items}"

    def position(self) -> list[str]:
        """Of the thread in a chunk."""
        return ["const Index item = start + threadIdx.x;"]

    def lane_position(self) -> str:
        """Of one of its elements in the order of the scan."""
        return f"item + {LANE} * {self.threads}"

    def scan_call(self, kind: str) -> str:
        return f"scan_row<Scan{kind}, {self.threads}, {self.items}>"

    def row_position(self) -> list[str]:
        count = self.rows_a_block
        row = f"static_cast<Index>(blockIdx.x) * {count} + threadIdx.y" if count > 1 else "static_cast<Index>(blockIdx.x)"
        if self.shares_warp:
            return [
                f"const bool inside = {row} < rows;  // threads outside still take part in the scan",
                f"const Index row = inside ? {row} : 0;",
            ]
        return [f"const Index row = {row};", *(["if (row >= rows) return;"] if count > 1 else [])]

    # ---- a chunk

    def chunk(self) -> list[str]:
        lines = self.position()
        for names in self.turns():
            lines += self.scan(names)
        return [*lines, *self.store_all()]

    def turns(self) -> list[list[str]]:
        """Scans that need nothing of each other together, after those that they need."""
        turn: dict[str, int] = {}
        for name in self.scans:
            needed = reductions_behind(self.prims[name].inputs[0], self.kernel, self.prims)
            turn[name] = 1 + max((turn[other] for other in needed), default=0)
        return [[name for name in self.scans if turn[name] == n] for n in range(1, max(turn.values()) + 1)]

    def scan(self, names: list[str]) -> list[str]:
        """Fill tiles with what is scanned, and scan them."""
        tiles = {name: self.evaluator.fresh(f"{name}_tile") for name in names}
        prims = [self.prims[name] for name in names]
        lanes = self.lanes_level()
        values = [converted(self.evaluator.value(prim.inputs[0], self.at), sum_type(prim)) for prim in prims]
        self.evaluator.levels.remove(lanes)
        self.evaluator.results |= {name: f"{tile}[{self.place}]" for name, tile in tiles.items()}
        targets = [self.evaluator.results[name] for name in names]
        body = self.filled(targets, lanes.lines, values, [self.start(prim) for prim in prims])
        declared = [f"{arithmetic_type(sum_type(self.prims[n]))} {tile}[{self.items}];" for n, tile in tiles.items()]
        calls = [f"{self.scan_call(self.prims[n].op.kind)}({tile}, {self.before[n]});" for n, tile in tiles.items()]
        return [*declared, *self.each_item(body), *calls]

    def start(self, prim: Prim) -> str:
        return literal(START[prim.op.kind], sum_type(prim))

    @property
    def place(self) -> str:
        """Of an element in its tile."""
        return LANE

    def lanes_level(self) -> Level:
        level = Level(self.row_axes | {self.loop.variable})
        self.evaluator.levels.append(level)
        return level

    def each_item(self, body: list[str]) -> list[str]:
        return ["#pragma unroll", f"for (int {LANE} = 0; {LANE} < {self.items}; ++{LANE}) {{", *indent(body), "}"]

    @property
    def inside(self) -> str:
        """Whether there is such an element."""
        return f"{'inside && ' if self.shares_warp else ''}{self.lane_position()} < {self.length}"

    @property
    def in_memory(self) -> list[str]:
        place = self.lane_position()
        if self.reverse:
            place = f"{self.evaluator.size(sizes.tidy(self.loop.size - 1))} - ({place})"
        return [f"const Index {self.loop.variable} = {place};"]

    def filled(self, targets: list[str], lines: list[str], values: list[str], starts: list[str]) -> list[str]:
        """Elements of the tiles, neutral ones where the row has ended."""
        body = [*self.in_memory, *lines, *(f"{a} = {b};" for a, b in zip(targets, values, strict=True))]
        neutral = [f"{a} = {b};" for a, b in zip(targets, starts, strict=True)]
        return [*neutral, f"if ({self.inside}) {{", *indent(body), "}"]

    def store_all(self) -> list[str]:
        lanes = self.lanes_level()
        stores = []
        for name in self.kernel.stores:
            prim = self.prims[name]
            at = full_at(self.at, self.kernel, self.prims, prim)
            result = self.evaluator.value(name, at)
            where = f"{text.target(self.kernel, name)}[{self.evaluator.offset(prim.offset(at))}]"
            stores.append(f"{where} = {text.to_memory(prim, converted_to(result, prim))};")
        self.evaluator.levels.remove(lanes)
        return self.each_item([f"if ({self.inside}) {{", *indent([*self.in_memory, *lanes.lines, *stores]), "}"])

    # ---- the whole

    def write(self) -> KernelText:
        chunk = self.chunk()  # may add values of the row that it uses
        lines = [*self.row_position(), *decode(self.loops.kept, "row", self.evaluator), *self.row_lines]
        for name in self.scans:
            prim = self.prims[name]
            carry = f"Carry<Scan{prim.op.kind}, {arithmetic_type(sum_type(prim))}>"
            lines.append(f"{carry} {self.before[name]}{{{self.start(prim)}}};")
        lines += [
            f"for (Index start = 0; start < {self.length}; start += {self.step}) {{",
            *indent(chunk),
            "}",
        ]
        rows = c_product([loop.size for loop in self.loops.kept])
        blocks, block = self.launch()
        return text.finish(
            self.kernel,
            self.prims,
            self.evaluator,
            self.comment,
            lines=lines,
            extra=[("Index", "rows")],
            width=self.width,
            conditions=self.conditions(),
            setup=[f"const long long rows = {rows};", "if (rows == 0) return nullptr;"],
            threads=str(math.prod(block)),
            grid=f"dim3(static_cast<unsigned>({blocks}))",
            block=f"dim3({', '.join(str(n) for n in block if n > 1)})",
        )

    def conditions(self) -> list[str]:
        return []

    def launch(self) -> tuple[str, tuple[int, int]]:
        """How many blocks, and how many threads each has along a row and how many rows."""
        count = self.rows_a_block
        return f"(rows + {count - 1}) / {count}" if count > 1 else "rows", (self.threads, count)


class Vectors(Rows):
    """As by rows, but each thread takes VEC neighbouring elements at once."""

    vector = True

    @property
    def items(self) -> str:
        return "VEC"

    @property
    def each(self) -> int:
        return self.width

    @property
    def place(self) -> str:
        return f"VEC - 1 - {LANE}" if self.reverse else LANE

    def position(self) -> list[str]:
        """Threads beyond the row's end read its first elements and use none of them."""
        place = f"{self.length} - VEC - item" if self.reverse else "item"
        return [
            "const Index item = start + threadIdx.x * VEC;",
            f"const bool within = {'inside && ' if self.shares_warp else ''}item < {self.length};",
            f"const Index {self.loop.variable} = within ? {place} : 0;",
        ]

    def scan_call(self, kind: str) -> str:
        return f"scan_row<Scan{kind}, {self.threads}, 1>"

    def chunk(self) -> list[str]:
        self.element = Level(self.row_axes | {self.loop.variable})
        self.evaluator.levels.append(self.element)
        lines = super().chunk()
        self.evaluator.levels.remove(self.element)
        return lines

    def lanes_level(self) -> Level:
        level = Level(self.row_axes | {self.loop.variable, LANE})
        self.evaluator.levels.append(level)
        return level

    def taken(self) -> list[str]:
        """What the thread reads and computes once for all its elements."""
        lines = list(self.element.lines)
        self.element.lines.clear()
        return lines

    def scan(self, names: list[str]) -> list[str]:
        lines = super().scan(names)
        return [*self.taken(), *lines]

    def filled(self, targets: list[str], lines: list[str], values: list[str], starts: list[str]) -> list[str]:
        each = zip(targets, values, starts, strict=True)
        return [*lines, *(f"{target} = within ? {value} : {start};" for target, value, start in each)]

    def store_all(self) -> list[str]:
        lanes = self.lanes_level()
        declared: list[str] = []
        after: list[str] = []
        for name in self.kernel.stores:
            prim = self.prims[name]
            at = full_at(self.at, self.kernel, self.prims, prim)
            result, offset = self.evaluator.value(name, at), prim.offset(at)
            out = self.evaluator.fresh(f"{name}_out")
            declared.append(f"{arithmetic_type(prim.dtype)} {out}[VEC];")
            lanes.lines.append(f"{out}[{LANE}] = {converted_to(result, prim)};")
            if any(axis.text == LANE and sizes.is_one(factor) for axis, factor in offset.terms.items()):
                where = self.evaluator.offset(offset, without_lane=True)
                after.append(f"store(&{text.target(self.kernel, name)}[{where}], {out});")
                self.stores.append((self.kernel.overwrites.get(name, name), offset))
            else:
                where = f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}]"
                after += self.each_item([f"{where} = {text.to_memory(prim, f'{out}[{LANE}]')};"])
        self.evaluator.levels.remove(lanes)
        return [*self.taken(), *declared, *self.each_item(lanes.lines), "if (within) {", *indent(after), "}"]

    def conditions(self) -> list[str]:
        return vector_conditions(self.evaluator, self.stores, self.loop.size, self.width, self.prims)


class Columns(Rows):
    """Rows side by side; each thread takes neighbouring elements along its row, SPLIT threads share one."""

    @property
    def split(self) -> int:
        return split_for(self.rows, self.graph.hint(self.loop.size) // ITEMS)

    @property
    def columns(self) -> int:
        """Threads side by side."""
        return WIDTH if self.split > 1 else 128

    @property
    def shares_warp(self) -> bool:
        return self.split > 1

    @property
    def step(self) -> str:
        return str(self.split * ITEMS)

    def position(self) -> list[str]:
        return [f"const Index item = start + threadIdx.y * {ITEMS};" if self.split > 1 else "const Index item = start;"]

    def lane_position(self) -> str:
        return f"item + {LANE}"

    def scan_call(self, kind: str) -> str:
        return f"scan_column<Scan{kind}, {self.split}, {self.columns}>"

    def row_position(self) -> list[str]:
        return first_row(self.columns, vector=False, sharing=self.split > 1)

    def launch(self) -> tuple[str, tuple[int, int]]:
        return f"(rows + {self.columns - 1}) / {self.columns}", (self.columns, self.split)
