"""Reduce kernels: one or more accumulators for each row of the space, in as many passes over the row as they depend on each other.

By rows: the elements of a row lie together in memory; a warp, a part of one or a block works on a row, its lanes along it.
By columns: the rows themselves lie side by side (a reduction over the channels of NCHW data); each thread works on VEC
neighbouring rows, so that what a warp reads at once is one piece of memory.
Split: too few rows to fill the GPU; blocks leave partial accumulators, and a second kernel merges them in a fixed order.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import sizes
from ..access import tuple_key
from ..graph import Dim, Graph
from ..index import Coordinate
from ..plan import Kernel
from ..prims import Prim, arithmetic_type
from . import text
from .expression import LANE, Evaluator, Level, Value, converted_to, indent, pointer
from .kept_values import maximum_first, worth_keeping
from .loops import Walk, c_product, decode, full_at, needed_reduces, row_at, vector_conditions, vector_width, walk
from .text import KernelText, Workspace

FULL_GPU = 132 * 2  # blocks below which a GPU of the H200's size stands partly idle
STREAMING = 132 * 920  # threads, each with TOGETHER loads of 16 bytes under way, that keep the memory of such a GPU busy
FULL_WAVE = 132 * 4  # blocks of 256 such threads: where rows are few they are cut into no more pieces, so that all begin at once
WORDS = {
    "Sum": 1,
    "Product": 1,
    "Max": 1,
    "Min": 1,
    "LogSumExp": 2,
    "FastLogSumExp": 2,
    "Moments": 3,
    "CloseMoments": 4,
    "IntegerSum": 2,
    "ArgMax": 4,
    "ArgMin": 4,
}
CLOSER = {"Moments": "CloseMoments"}  # what kernels that wait for memory have the time for; convolutions do not
WIDE = ("IntegerSum", "ArgMax", "ArgMin")  # of 64-bit words
TOGETHER = 4  # of a thread's loads that are under way before the first is used: the compiler waits for each in a loop that may end
COLLECTED = ("LogSumExp", "FastLogSumExp", "CloseMoments", "Sum")  # which take several elements at once for less, or more exactly


@dataclass(frozen=True)
class Accumulator:
    """One accumulator variable; reductions of the same source share it."""

    name: str
    kind: str
    source: str
    members: tuple[str, ...]
    turn: int  # the pass over the row in which it is filled


def accumulators(kernel: Kernel, prims: dict[str, Prim]) -> list[Accumulator]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in needed_reduces(kernel, prims):
        grouped.setdefault((prims[name].op.accumulator, prims[name].inputs[0]), []).append(name)
    for kind, source in [key for key in grouped if (f"Arg{key[0]}", key[1]) in grouped]:
        grouped[f"Arg{kind}", source] += grouped.pop((kind, source))  # who knows where the largest is knows how large it is
    turns: dict[str, int] = {}
    found: list[Accumulator] = []
    for (kind, source), members in grouped.items():
        turn = 1 + max((turns[n] for n in reductions_behind(source, kernel, prims) if n in turns), default=0)
        turns.update(dict.fromkeys(members, turn))
        found.append(Accumulator(f"{members[0]}_acc", kind, source, tuple(members), turn))
    return sorted(found, key=lambda a: a.turn)


def reductions_behind(root: str, kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """Reductions, or scans, of this kernel that a value depends on."""
    found: set[str] = set()
    stack, seen = [root], set()
    while stack:
        name = stack.pop()
        if name in seen or name in kernel.loads:
            continue
        seen.add(name)
        if kernel.members.get(name) in ("reduce", "scan"):
            found.add(name)
        stack += prims[name].inputs
    return found


def reduce_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    loops = walk(kernel, prims, graph)
    parts = accumulators(kernel, prims)
    rows = graph.hint(sizes.product(kernel.row_shape))
    length = graph.hint(sizes.product(kernel.space[d] for d in kernel.reduced))
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    one_pass = all(a.turn == 1 for a in parts) and not any(reductions_behind(name, kernel, prims) for name in full)
    if loops.lanes_reduce:
        threads = 32 if length <= 1024 else 128 if length <= 8192 else 256 if length <= 1 << 17 else 512
        if kept_in_registers(kernel, prims, length, parts):
            threads = next((t for t in (32, 128, 256) if length <= t * KEPT), 512 if length <= 512 * KEPT + KEPT_SHARED else 1024)
        width = 1 if text.has_window(kernel, prims) else vector_width(kernel, prims, loops.reduced)
        threads = 1 if length <= ALONE else next((t for t in SHORT_ROWS if length <= t * width), threads)
        if one_pass and rows * max(1, threads // 128) < FULL_GPU and length >= 1 << 14:
            return Split(kernel, prims, graph, comment, loops, parts).write()
        while one_pass and 128 <= threads < 1024 and rows * threads < STREAMING and length >= threads * width * 2 * TOGETHER:
            threads *= 2
        if kept_in_registers(kernel, prims, length, parts) and length <= threads * KEPT:
            prims = maximum_first(kernel, prims)
            parts = accumulators(kernel, prims)
        return Rows(kernel, prims, graph, comment, loops, parts, threads).write()
    width = 1 if text.has_window(kernel, prims) else vector_width(kernel, prims, loops.kept)
    across, down = columns_block(-(-rows // width), length, width, parts)
    if one_pass and rows * down < STREAMING * width and length >= 1 << 9:
        return Split(kernel, prims, graph, comment, loops, parts).write()
    return Columns(kernel, prims, graph, comment, loops, parts, down, across).write()


SHORT_ROWS = (1, 2, 4, 8, 16)  # threads of a warp for a row that leaves the others nothing to read
ALONE = 4  # elements of a row that one thread reads, if need be one by one: what several threads of it would say to each other is more
KEPT = 32  # elements of a row that a thread keeps in registers from one pass to the next; chosen by register counts, not timed
KEPT_SHARED = 10 << 10  # elements of a longer row in shared memory: 40 KB, so that two blocks of 512 threads fit, one reading, one writing


def kept_in_registers(kernel: Kernel, prims: dict[str, Prim], length: int, parts: list[Accumulator]) -> bool:
    """A row that is gone over twice, and is short enough for its threads to hold what they read of it, or much of it.

    A multiprocessor works on several rows at once: rows of a 128 × 128 image, eight to each, are more than the L2 cache holds.
    """
    again = any(a.turn > 1 for a in parts) or any(kernel.members[name] == "full" for name in kernel.stores)
    tensors = whole_tensors(kernel, prims)
    read_first = set().union(*(loads_behind(a.source, kernel, prims) for a in parts))
    kept = [n for n in tensors if n in read_first]
    narrow = all(prims[n].dtype.itemsize <= 4 for n in tensors)
    most = 1 if length > 512 * KEPT else 2  # 1024 threads have 64 registers each
    return again and 1 <= len(kept) <= most and len(tensors) <= 2 and narrow


def whole_tensors(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    """What the kernel reads as large as its space."""
    total = sizes.product(kernel.space)
    return [name for name in kernel.read_only if sizes.same(sizes.product(prims[name].shape), total)]


def loads_behind(root: str, kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """What the kernel reads to compute a value."""
    found: set[str] = set()
    stack = [root]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += prims[name].inputs if name not in kernel.loads else ()
    return found & set(kernel.loads)


def columns_block(vectors: int, length: int, width: int, parts: list[Accumulator]) -> tuple[int, int]:
    """Threads side by side, and threads that share a column: enough that memory is kept busy, each with some elements to add.

    Narrower blocks are more blocks where columns are few, down to the 128 bytes that memory gives at once.
    """
    words = sum(WORDS[a.kind] for a in parts)
    most = 1024 if words <= 5 and width <= 4 else 512  # of 1024 threads each has 64 registers
    across = next((n for n in (32, 16) if vectors * (most // n) >= STREAMING), max(8, 32 // width))
    down = 1
    while down * across < most and vectors * down < STREAMING and length >= down * 2 * TOGETHER:
        down *= 2
    return across, down


def split_for(rows: int, length: int) -> int:
    """Threads that share a column, so that a GPU's worth of threads is at work."""
    split = 1
    while split < 16 and rows * split < FULL_GPU * 1024 and length // (split * 2) >= 4:
        split *= 2
    return split


def scaled(count: int | str, step: str) -> str:
    return str(count) if step == "1" else f"{count} * {step}"


def kind_of(part: Accumulator, prims: dict[str, Prim]) -> str:
    """The accumulator as it is written. Of a sum of exp(x - maximum) only the logarithm may be wanted: what the short form of exp
    lacks grows with maximum - x, but the terms vanish faster."""
    logarithm = part.kind == "LogSumExp" and all(prims[name].op.field != "total()" for name in part.members)
    return "FastLogSumExp" if logarithm else CLOSER.get(part.kind, part.kind)


class Base:
    """State while one reduce kernel is written."""

    lanes_reduce = True
    vectors = True  # threads may take several neighbouring elements at once

    def __init__(
        self,
        kernel: Kernel,
        prims: dict[str, Prim],
        graph: Graph,
        comment: list[str],
        loops: Walk,
        parts: list[Accumulator],
        share: int = 1,
        across: int = 32,
    ):
        self.kernel, self.prims, self.graph, self.comment, self.loops, self.parts = (
            kernel,
            prims,
            graph,
            comment,
            loops,
            [replace(part, kind=kind_of(part, prims)) for part in parts],
        )
        lanes = loops.reduced if loops.lanes_reduce else loops.kept
        single = not self.vectors or text.has_window(kernel, prims)
        self.width = 1 if single else vector_width(kernel, prims, lanes)
        self.row_axes = frozenset(loop.variable for loop in loops.kept)
        self.all_axes = self.row_axes | {loop.variable for loop in loops.reduced}
        self.row_lines: list[str] = []
        levels = [Level(self.row_axes, self.row_lines)]
        if not loops.lanes_reduce:
            levels.append(Level(self.row_axes | {LANE}, self.row_lines, array=True))
        self.evaluator = Evaluator(prims, kernel.loads, levels, vector=self.width > 1)
        self.at, self.row = loops.at(kernel, lane=self.width > 1)
        self.stores: list[tuple[str, Coordinate]] = []
        self.share = share  # threads that work on one row
        self.width_of_shared = across  # threads side by side, where several work on one of the rows that lie so
        self.collecting = False  # what is added goes into tiles first, one for each accumulator
        self.tiles: dict[str, str] = {}
        self.kept: dict[str, str] = {}  # what is read in a pass -> the array that keeps it for the next

    # ---- one pass over the row

    def pass_over(self, turn: int, keeping: dict[str, str] | None = None) -> list[str]:
        """The body of the loop over the row in this pass: fills accumulators, writes full values that are ready.

        `keeping` are values that it leaves in an array for a later pass.
        """
        element = Level(self.all_axes)
        lanes = Level(self.all_axes | {LANE})
        self.evaluator.levels += [element, lanes]
        after: list[str] = []
        for part in (a for a in self.parts if a.turn == turn):
            self.accumulate(part, element, lanes, after)
        for name in self.kernel.stores:
            if self.kernel.members[name] == "full" and self.turn_of(name) == turn:
                self.store_full(name, element, lanes, after)
        for name, row in (keeping or {}).items():
            value, place = self.evaluator.value(name, self.at), f"{row}[step][{LANE}]" if self.width > 1 else f"{row}[step]"
            (lanes if self.width > 1 else element).lines.append(f"{place} = {value.text};")
        self.evaluator.levels.remove(element)
        self.evaluator.levels.remove(lanes)
        lines = list(element.lines)
        if lanes.lines:
            lines += [
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < {self.vec}; ++{LANE}) {{",
                *indent(lanes.lines),
                "}",
            ]
        return lines + after

    def sweep(self, turn: int, start: str, step: str, inside: str = "") -> list[str]:
        """A pass over a row by threads that are `step` apart: TOGETHER elements of a thread at a time, then the rest one by one."""
        extent = sizes.product(loop.size for loop in self.loops.reduced)
        length = self.evaluator.size(extent)
        most = TOGETHER * self.stride  # of the widest vectors
        first, rest = f"Index item = {start}", True
        lines: list[str] = []
        if not isinstance(extent, int) or extent >= most:
            last, next_items = scaled(TOGETHER - 1, step), scaled(TOGETHER, step)
            lines = [f"Index item = {start};", f"for (; {inside}item + {last} < {length}; item += {next_items}) {{"]
            lines += [*indent(self.together(turn, f"(item + {scaled('u', step)})")), "}"]
            first, rest = "", not isinstance(extent, int) or extent % most != 0
        if rest:
            body = [*decode(self.loops.reduced, "item", self.evaluator), *self.pass_over(turn)]
            lines += [f"for ({first}; {inside}item < {length}; item += {step}) {{", *indent(body), "}"]
        return ["{", *indent(lines), "}"] if not first else lines

    @property
    def stride(self) -> int:
        """How many elements further a thread's next one lies."""
        raise NotImplementedError

    def together(self, turn: int, at: str) -> list[str]:
        """TOGETHER elements of a thread, the one of number u being at `at`; what accumulators rather take at once is collected."""
        self.tiles, self.collecting = {}, True
        body, decoded = self.pass_over(turn), decode(self.loops.reduced, at, self.evaluator)
        self.collecting = False
        lines = [f"float {tile}{self.tile_shape(str(TOGETHER))};" for tile in self.tiles.values()]
        lines += ["#pragma unroll", f"for (int u = 0; u < {TOGETHER}; ++u) {{", *indent([*decoded, *body]), "}"]
        return [*lines, *self.add_tiles(turn)]

    def tile_shape(self, count: str) -> str:
        """Of what is collected: by rows of a column's own; along a row, all of it."""
        if self.loops.lanes_reduce:
            return f"[{count} * VEC]" if self.width > 1 else f"[{count}]"
        return f"[VEC][{count}]" if self.width > 1 else f"[{count}]"

    def add_tiles(self, turn: int) -> list[str]:
        lines: list[str] = []
        for part in (a for a in self.parts if a.turn == turn and a.name in self.tiles):
            columns = not self.loops.lanes_reduce and self.width > 1
            add = f"{self.lane_accumulator(part)}.add({self.tiles[part.name]}{f'[{LANE}]' if columns else ''});"
            lines += self.each_lane(add) if columns else [add]
        return lines

    def each_lane(self, statement: str) -> list[str]:
        return ["#pragma unroll", f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {statement}"]

    def kept_rows(self, body: list[str], more: bool) -> tuple[list[str], list[str], list[str]]:
        """Of a pass: the rows it keeps, declared; the loads that fill them; and its body, which uses them and those kept before."""
        declared: list[str] = []
        loads: list[str] = []
        body = list(body)
        large = {pointer(name) for name in whole_tensors(self.kernel, self.prims)}
        for n, line in enumerate(body):
            found = VECTOR_LOAD.fullmatch(line) or SINGLE_LOAD.fullmatch(line)
            if found is None or found["pointer"] not in large:
                continue
            source, name = found["source"], found["name"]
            vector = line.startswith("load(")
            kind = body[n - 1].split()[0] if vector else found["kind"]
            if source not in self.kept:
                if not more:
                    continue
                row = self.kept[source] = self.evaluator.fresh(f"{found['pointer'].removesuffix('_ptr')}_row")
                declared.append(f"{kind} {row}[STEPS][VEC];" if vector else f"{kind} {row}[STEPS];")
                loads.append(f"load(&{source}, {row}[step]);" if vector else f"{row}[step] = {source};")
            row = self.kept[source]
            if vector:
                body[n - 1], body[n] = f"const {kind}(&{name})[VEC] = {row}[step];", ""
            else:
                body[n] = f"const {kind} {name} = {row}[step];"
        return declared, loads, [line for line in body if line]

    @property
    def vec(self) -> str:
        return "VEC" if self.width > 1 else "1"

    def turn_of(self, name: str) -> int:
        turns = {member: part.turn for part in self.parts for member in part.members}
        behind = reductions_behind(name, self.kernel, self.prims)
        return 1 + max((turns[n] for n in behind), default=0)

    def accumulate(self, part: Accumulator, element: Level, lanes: Level, after: list[str]) -> None:
        result = self.evaluator.value(part.source, self.at)
        kind = "long long" if part.kind == "IntegerSum" else "float"
        value = result.text if arithmetic_type(result.dtype) == kind else f"({kind})({result.text})"
        if part.kind.startswith("Arg"):
            dim = self.prims[part.members[0]].op.dims[0]
            target, position = self.lane_accumulator(part), self.evaluator.offset(self.at[dim])
            (lanes if self.width > 1 else element).lines.append(f"{target}.add({value}, {position});")
        elif self.collecting and part.kind in COLLECTED:
            tile = self.tiles.setdefault(part.name, self.evaluator.fresh(f"{part.source}_tile"))
            along = f"[u * VEC + {LANE}]" if self.loops.lanes_reduce else f"[{LANE}][u]"
            where = f"{tile}{along}" if self.width > 1 else f"{tile}[u]"
            (lanes if self.width > 1 else element).lines.append(f"{where} = {value};")
        elif self.loops.lanes_reduce and self.width > 1:
            tile = self.evaluator.fresh(f"{part.source}_tile")
            element.lines.append(f"{kind} {tile}[VEC];")
            lanes.lines.append(f"{tile}[{LANE}] = {value};")
            after.append(f"{part.name}.add({tile});")
        else:
            (lanes if self.width > 1 else element).lines.append(f"{self.lane_accumulator(part)}.add({value});")

    def lane_accumulator(self, part: Accumulator) -> str:
        return f"{part.name}[{LANE}]" if not self.loops.lanes_reduce and self.width > 1 else part.name

    def store_full(self, name: str, element: Level, lanes: Level, after: list[str]) -> None:
        prim = self.prims[name]
        at = full_at(self.at, self.kernel, self.prims, prim)
        result = self.evaluator.value(name, at)
        offset = prim.offset(at)
        if self.width > 1:
            out = self.evaluator.fresh(f"{name}_out")
            element.lines.append(f"{arithmetic_type(prim.dtype)} {out}[VEC];")
            lanes.lines.append(f"{out}[{LANE}] = {result.text};")
            unit = any(axis.text == LANE and factor == 1 for axis, factor in offset.terms.items())
            if unit:
                after.append(
                    f"store(&{text.target(self.kernel, name)}[{self.evaluator.offset(offset, without_lane=True)}], {out});"
                )
                self.stores.append((self.kernel.overwrites.get(name, name), offset))
            else:
                after += [
                    "#pragma unroll",
                    f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, f'{out}[{LANE}]')};",  # noqa: E501
                ]
        else:
            after.append(
                f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
            )

    # ---- rows

    def take_row_lines(self) -> list[str]:
        lines = list(self.row_lines)
        self.row_lines.clear()
        return lines

    def publish(self, turn: int) -> None:
        """After a pass, its reductions are values of the row, and what it wrote can be read by the thread that wrote it."""
        written = [n for n in self.kernel.stores if self.kernel.members[n] == "full" and self.turn_of(n) == turn]
        self.evaluator.loads |= set(written)
        for part in self.parts:
            if part.turn == turn:
                for member in part.members:
                    self.evaluator.results[member] = f"{self.lane_accumulator(part)}.{self.prims[member].op.field}"

    def row_value(self, name: str) -> tuple[Value, Coordinate]:
        prim = self.prims[name]
        at = self.row if self.kernel.members[name] == "reduce" else row_at(self.row, self.kernel, prim)
        return self.evaluator.value(name, at), prim.offset(at)

    @property
    def turns(self) -> int:
        full = [self.turn_of(name) for name in self.kernel.stores if self.kernel.members[name] == "full"]
        return max([a.turn for a in self.parts] + full)

    def row_stores(self) -> list[str]:
        return [name for name in self.kernel.stores if self.kernel.members[name] != "full"]

    def bounds(self, threads: int) -> str:
        """Threads of a block and, where 64 registers are enough, how many blocks are to fit.

        Left to itself ptxas fits twice as many, and has no registers for loads that are under way.
        """
        few = len(whole_tensors(self.kernel, self.prims)) <= 1 and self.width * sum(WORDS[a.kind] for a in self.parts) <= 16
        return f"{threads}, {1024 // threads}" if few and 1024 % threads == 0 else str(threads)

    def finish(self, **arguments: Any) -> KernelText:
        inner: Dim = (
            (self.loops.reduced if self.loops.lanes_reduce else self.loops.kept)[-1].size if self.width > 1 else 1
        )
        conditions = (
            vector_conditions(self.evaluator, self.stores, inner, self.width, self.prims) if self.width > 1 else []
        )
        return text.finish(
            self.kernel, self.prims, self.evaluator, self.comment, width=self.width, conditions=conditions, **arguments
        )


class Rows(Base):
    """A warp, a part of one or a block for each row."""

    @property
    def threads(self) -> int:
        return self.share

    @property
    def planned_length(self) -> int:
        return self.graph.hint(sizes.product(loop.size for loop in self.loops.reduced))

    @property
    def shares_warp(self) -> bool:
        """Several rows are in one warp, whose threads meet."""
        return 1 < self.threads < 32

    @property
    def rows_a_block(self) -> int:
        return max(1, 128 // self.threads)

    def write(self) -> KernelText:
        per_block = self.rows_a_block
        row = (
            f"static_cast<Index>(blockIdx.x) * {per_block} + threadIdx.y"
            if per_block > 1
            else "static_cast<Index>(blockIdx.x)"
        )
        if self.shares_warp:
            lines = [
                f"const bool inside = {row} < rows;  // threads outside still take part in the merge",
                f"const Index row = inside ? {row} : 0;",
            ]
        else:
            lines = [f"const Index row = {row};"]
            lines += ["if (row >= rows) return;"] if per_block > 1 else []
        lines += decode(self.loops.kept, "row", self.evaluator)
        keeps = self.turns > 1 and kept_in_registers(self.kernel, self.prims, self.planned_length, self.parts)
        if keeps:
            each = f"{self.threads} * VEC" if self.width > 1 else str(self.threads)
            kept = min(self.planned_length, self.threads * KEPT)
            lines.append(
                f"constexpr int STEPS = ({kept} + {each} - 1) / ({each});  // of a thread over its row, kept in registers"
            )
            if self.kept_shared:
                lines.append(f"constexpr int MORE = ({self.kept_shared} + {each} - 1) / ({each});  // kept in shared memory")
        for turn in range(1, self.turns + 1):
            loop = self.loop(turn, keeps)  # may add values of the row that it uses
            lines += self.take_row_lines()
            lines += [f"{a.kind} {a.name};" for a in self.parts if a.turn == turn]
            lines += loop
            if self.threads > 1:
                lines += [f"{a.name} = merge_row<{self.threads}>({a.name});" for a in self.parts if a.turn == turn]
            self.publish(turn)
        stores = []
        for name in self.row_stores():
            result, offset = self.row_value(name)
            prim = self.prims[name]
            stores.append(
                f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
            )
        values = self.take_row_lines()
        if self.threads == 1:
            lines += [*values, *stores]
        elif stores:  # one thread reads and writes: a buffer may be overwritten
            first = "inside && threadIdx.x == 0" if self.shares_warp else "threadIdx.x == 0"
            lines += [f"if ({first}) {{", *indent([*values, *stores]), "}"]
        setup = [
            f"const long long rows = {c_product([loop.size for loop in self.loops.kept])};",
            "if (rows == 0) return nullptr;",
        ]
        grid = (
            f"dim3(static_cast<unsigned>((rows + {per_block - 1}) / {per_block}))"
            if per_block > 1
            else "dim3(static_cast<unsigned>(rows))"
        )
        return self.finish(
            lines=lines,
            threads=str(self.threads * per_block) if keeps and self.threads < 512 else self.bounds(self.threads * per_block),
            extra=[("Index", "rows")],
            setup=setup,
            grid=grid,
            block=f"dim3({self.threads}, {per_block})" if per_block > 1 else f"dim3({self.threads})",
        )

    def loop(self, turn: int, keeps: bool) -> list[str]:
        length = sizes.product(loop.size for loop in self.loops.reduced)
        inside = "inside && " if self.shares_warp else ""
        step = self.vec if self.threads == 1 else scaled(self.threads, self.vec)
        start = "0" if self.threads == 1 else scaled("threadIdx.x", self.vec)
        if not keeps:
            return self.sweep(turn, start, step, inside)
        keeping = self.keeping(turn)
        body, decoded = self.pass_over(turn, keeping), decode(self.loops.reduced, "item", self.evaluator)
        lines = self.kept_loop(turn, body, decoded, step)
        lines[:0] = [f"float {row}[STEPS][VEC];" if self.width > 1 else f"float {row}[STEPS];" for row in keeping.values()]
        held, self.evaluator.held = self.evaluator.held, {}
        body = self.pass_over(turn) if keeping or held else body
        place, axes = (f"[step][{LANE}]", self.all_axes | {LANE}) if self.width > 1 else ("[step]", self.all_axes)
        new = {(name, tuple_key(self.at)): Value(f"{row}{place}", torch.float32, axes) for name, row in keeping.items()}
        self.evaluator.held = held | new
        if isinstance(length, int) and length <= self.threads * KEPT + self.kept_shared:
            return lines
        start = f"(STEPS + MORE) * {step} + {start}" if self.kept_shared else f"STEPS * {step} + {start}"
        return [  # what is not kept, if there is more
            *lines,
            f"for (Index item = {start}; {inside}item < {self.evaluator.size(length)}; item += {step}) {{",
            *indent([*decoded, *body]),
            "}",
        ]

    def keeping(self, turn: int) -> dict[str, str]:
        """Values that this pass leaves in registers for those after it: each with the array that it is in."""
        if self.kept_shared:
            return {}
        full = [name for name in self.kernel.stores if self.kernel.members[name] == "full"]
        roots = [(a.turn, a.source) for a in self.parts] + [(self.turn_of(name), name) for name in full]
        now, later = [root for t, root in roots if t == turn], [root for t, root in roots if t > turn]
        already = {name for name, _ in self.evaluator.held}
        found = worth_keeping(now, later, self.kernel, self.prims, most=len(whole_tensors(self.kernel, self.prims)))
        return {name: self.evaluator.fresh(f"{name}_row") for name in found if name not in already}

    @property
    def stride(self) -> int:
        return self.threads * self.width

    @property
    def kept_shared(self) -> int:
        """Elements of a row that are kept in shared memory: those for which its threads have no registers."""
        most = KEPT_SHARED // self.stride * self.stride if self.threads >= 512 else 0
        return max(0, min(self.planned_length - self.threads * KEPT, most))

    def kept_loop(self, turn: int, body: list[str], decoded: list[str], step: str) -> list[str]:
        """A pass over the part of a row that stays with its threads: all that is new of it is read before any of it is used."""
        declared, loads, changed = self.kept_rows(body, more=turn < self.turns)
        length = sizes.product(loop.size for loop in self.loops.reduced)
        whole = f"{self.evaluator.size(length)} % ({step}) != 0 && " if isinstance(length, int) else ""
        outside = f"{whole}item >= {self.evaluator.size(length)}"
        if self.shares_warp:
            outside = f"!inside || ({outside})" if whole else f"!inside || {outside}"

        def over(lines: list[str], first: str = "", steps: str = "STEPS") -> list[str]:
            place = "step" if self.threads == 1 else f"({first}step * {self.threads} + threadIdx.x)"
            return [
                "#pragma unroll",
                f"for (int step = 0; step < {steps}; ++step) {{",
                f"  const Index item = {place}" + (" * VEC;" if self.width > 1 else ";"),
                f"  if ({outside}) continue;",
                *indent([*decoded, *lines]),
                "}",
            ]

        found = [*(over(loads) if loads else []), *over(changed)]
        if self.kept_shared:
            first = f"STEPS * {self.threads} + "
            new = [row for row in self.kept.values() if any(f"{row}[step]" in line for line in loads)]
            through = [*over([passing(line, new) for line in loads], first, "MORE"), *over(self.put(new), first, "MORE")]
            arrays = [passing(line, new).replace("STEPS", "MORE") for line in declared]
            declared += [f"__shared__ alignas(16) {in_shared(line, new, self.threads).replace('STEPS', 'MORE')}" for line in declared]
            found = [
                *(["{", *indent([*arrays, *through]), "}"] if new else []),
                *found,
                *over([in_shared(line, self.kept.values()) for line in changed], first, "MORE"),
            ]
        return [*declared, *found]

    def put(self, rows: list[str]) -> list[str]:
        """Loads of what is kept in shared memory pass through registers, so that all are under way before one of them is put there."""
        here = [(in_shared(f"{row}[step]", [row]), passing(f"{row}[step]", [row])) for row in rows]
        return [f"store({there}, {value});" if self.width > 1 else f"{there} = {value};" for there, value in here]


def passing(line: str, rows: Collection[str]) -> str:
    """A line about kept rows, of registers in which they are on their way to shared memory."""
    return re.sub(rf"\b({'|'.join(rows)})\[", r"\1_next[", line) if rows else line


def in_shared(line: str, rows: Collection[str], threads: int | str = "threadIdx.x") -> str:
    """A line about kept rows, of what is in shared memory: every thread reads there what it put there itself."""
    return re.sub(rf"\b({'|'.join(rows)})\[(\w+)\]", rf"\1_more[\2][{threads}]", line) if rows else line


# A load of neighbouring elements and of a single one, as `expression.py` writes them.
VECTOR_LOAD = re.compile(r"load\(&(?P<source>(?P<pointer>\w+_ptr)\[.*\]), (?P<name>\w+)\);")
SINGLE_LOAD = re.compile(
    r"const (?P<kind>\w+) (?P<name>\w+) = (?P<source>(?:to_arithmetic<\w+>\()?(?P<pointer>\w+_ptr)\[[^\[\]]*\]\)?);"
)


def first_row(width: int, vector: bool, sharing: bool) -> list[str]:
    """Which rows a thread works on, where rows lie side by side."""
    position = f"(static_cast<Index>(blockIdx.x) * {width} + threadIdx.x)" + (" * VEC" if vector else "")
    if not sharing:
        return [f"const Index row = {position};", "if (row >= rows) return;"]
    return [
        f"const bool inside = {position} < rows;  // threads outside still take part in the merge",
        f"const Index row = inside ? {position} : 0;",
    ]


class Columns(Base):
    """VEC neighbouring rows for each thread; SPLIT threads share a row."""

    @property
    def split(self) -> int:
        return self.share

    @property
    def across(self) -> int:
        """Threads side by side, each on rows of its own."""
        return self.width_of_shared if self.split > 1 else 128

    @property
    def meets(self) -> bool:
        """Threads of a block wait for each other: those that have no row too."""
        return self.split > 1

    def begin(self) -> list[str]:
        lines = first_row(self.across, self.width > 1, sharing=self.meets)
        return [*lines, *decode(self.loops.kept, "row", self.evaluator)]

    def write(self) -> KernelText:
        lines = self.begin()
        for turn in range(1, self.turns + 1):
            loop = self.loop(turn)
            lines += self.take_row_lines()
            for a in (a for a in self.parts if a.turn == turn):
                if self.width > 1:
                    lines += [f"{a.kind} {a.name}[VEC];"]
                else:
                    lines += [f"{a.kind} {a.name};"]
            lines += loop
            if self.split > 1:
                lines += [f"merge_column<{self.split}, {self.across}>({a.name});" for a in self.parts if a.turn == turn]
            self.publish(turn)
        after: list[str] = []
        for name in self.row_stores():
            after += self.store_row(name)
        after = [*self.take_row_lines(), *after]
        if self.meets and after:
            first = "inside && threadIdx.y == 0" if self.split > 1 else "inside"
            after = [f"if ({first}) {{", *indent(after), "}"]
        lines += after
        return self.finish(lines=lines, **self.launch())

    def launch(self) -> dict[str, Any]:
        """Of the launcher: how many blocks of how many threads."""
        return {
            "threads": self.bounds(self.across * self.split),
            "extra": [("Index", "rows")],
            "setup": [
                f"const long long rows = {c_product([loop.size for loop in self.loops.kept])};",
                "if (rows == 0) return nullptr;",
            ],
            "span": self.across,
            "grid": "dim3(static_cast<unsigned>((rows + {span} - 1) / {span}))",
            "block": f"dim3({self.across}, {self.split})" if self.split > 1 else f"dim3({self.across})",
        }

    def store_row(self, name: str) -> list[str]:
        result, offset = self.row_value(name)
        prim = self.prims[name]
        if self.width > 1 and LANE in offset.depends:
            out = self.evaluator.fresh(f"{name}_out")
            lines = [
                f"{arithmetic_type(prim.dtype)} {out}[VEC];",
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {out}[{LANE}] = {result.text};",
            ]
            unit = any(axis.text == LANE and factor == 1 for axis, factor in offset.terms.items())
            if unit:
                self.stores.append((self.kernel.overwrites.get(name, name), offset))
                return [
                    *lines,
                    f"store(&{text.target(self.kernel, name)}[{self.evaluator.offset(offset, without_lane=True)}], {out});",
                ]
            return [
                *lines,
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, f'{out}[{LANE}]')};",  # noqa: E501
            ]
        return [
            f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
        ]

    def loop(self, turn: int) -> list[str]:
        start = "threadIdx.y" if self.split > 1 else "0"
        return self.sweep(turn, start, str(self.split), "inside && " if self.meets else "")

    @property
    def stride(self) -> int:
        return self.split


class Split(Base):
    """Blocks take pieces of a row and leave partial accumulators; a warp for each row merges them."""

    THREADS = 256

    @property
    def across(self) -> int:
        """Threads side by side on columns: a warp takes in several items where the columns are few."""
        rows = self.graph.hint(sizes.product(self.kernel.row_shape))
        return next((lanes for lanes in (4, 8, 16) if rows <= lanes * self.width), 32)

    @property
    def down(self) -> int:
        """Threads that share a column."""
        return self.THREADS // self.across

    @property
    def pieces(self) -> int:
        """How many blocks share a row."""
        rows = self.graph.hint(sizes.product(self.kernel.row_shape))
        length = self.graph.hint(sizes.product(self.kernel.space[d] for d in self.kernel.reduced))
        if self.loops.lanes_reduce:
            blocks, most = rows, length // (self.THREADS * self.width * TOGETHER)
        else:
            blocks, most = -(-rows // (self.across * self.width)), length // (self.down * TOGETHER)
        fitting = max(2, min(most, FULL_WAVE // max(1, blocks)))
        return 1 << (fitting.bit_length() - 1)  # lengths are often such, and leave no rest then

    def write(self) -> KernelText:
        words = sum(WORDS[a.kind] for a in self.parts)
        rows_text = c_product([loop.size for loop in self.loops.kept])
        rows_size = sizes.product(loop.size for loop in self.loops.kept)
        workspace = Workspace("partial", sizes.tidy(rows_size * self.pieces), words)
        by_rows = self.loops.lanes_reduce
        lines = self.first_kernel(by_rows)
        last_kernel, last_launch = self.last_kernel(words)
        setup = [f"const long long rows = {rows_text};", "if (rows == 0) return nullptr;"]
        if by_rows:
            grid, block, span = f"dim3(static_cast<unsigned>(rows), {self.pieces})", f"dim3({self.THREADS})", 1
        else:
            grid, block, span = (
                "dim3(static_cast<unsigned>((rows + {span} - 1) / {span}), " + str(self.pieces) + ")",
                f"dim3({self.across}, {self.down})",
                self.across,
            )
        return self.finish(
            lines=lines,
            threads=self.bounds(self.THREADS),
            extra=[("Index", "rows")],
            setup=setup,
            grid=grid,
            block=block,
            span=span,
            workspace=workspace,
            workspace_parameter="unsigned* __restrict__ partial",
            last=(last_kernel, last_launch),
        )

    def first_kernel(self, by_rows: bool) -> list[str]:
        if by_rows:
            lines = ["const Index row = blockIdx.x;", "const Index piece = blockIdx.y;"]
        else:
            lines = [*first_row(self.across, self.width > 1, sharing=True), "const Index piece = blockIdx.y;"]
        lines += decode(self.loops.kept, "row", self.evaluator)
        if by_rows:
            vec = " * VEC" if self.width > 1 else ""
            start, step, inside = f"(piece * {self.THREADS} + threadIdx.x){vec}", f"{self.pieces * self.THREADS}{vec}", ""
        else:
            start, step, inside = f"piece * {self.down} + threadIdx.y", str(self.stride), "inside && "
        loop = self.sweep(1, start, step, inside)
        lines += self.take_row_lines()
        lines += [f"{a.kind} {a.name}[VEC];" if not by_rows and self.width > 1 else f"{a.kind} {a.name};" for a in self.parts]
        lines += loop
        for a in self.parts:
            where = self.partials(a)
            if by_rows:
                lines += [
                    f"{a.name} = merge_row<{self.THREADS}>({a.name});",
                    f"if (threadIdx.x == 0) {where}[row * {self.pieces} + piece] = {a.name};",
                ]
                continue
            row = f"(row + {LANE})" if self.width > 1 else "row"
            left = f"if (inside && threadIdx.y == 0) {where}[{row} * {self.pieces} + piece] = {self.lane_accumulator(a)};"
            lines.append(f"merge_column<{self.down}, {self.across}>({a.name});")
            lines += self.each_lane(left) if self.width > 1 else [left]
        return lines

    @property
    def stride(self) -> int:
        return self.pieces * (self.THREADS * self.width if self.loops.lanes_reduce else self.down)

    def partials(self, part: Accumulator, const: str = "") -> str:
        """Where the partial accumulators of a kind begin. Those of 64-bit words come first: the others would misalign them."""
        ordered = sorted(self.parts, key=lambda a: a.kind not in WIDE)
        word = sum(WORDS[a.kind] for a in ordered[: ordered.index(part)])
        start = f"&partial[{word}u * rows * {self.pieces}]" if word else "partial"
        return f"reinterpret_cast<{const}{part.kind}*>({start})"

    def last_kernel(self, words: int) -> tuple[list[str], list[str]]:
        """Merges the pieces of each row in order, computes the row's values and stores them."""
        kernel = self.kernel
        lines = [f"const Index row = static_cast<Index>(blockIdx.x) * 4 + threadIdx.y;", "if (row >= rows) return;"]  # noqa: F541
        row_lines: list[str] = []
        evaluator = Evaluator(self.prims, kernel.loads, [Level(self.row_axes, row_lines)], vector=False)
        _, row = self.loops.at(kernel, lane=False)
        lines += decode(self.loops.kept, "row", evaluator)
        for a in self.parts:
            where = self.partials(a, "const ")
            lines += [
                f"{a.kind} {a.name};",
                f"for (int piece = threadIdx.x; piece < {self.pieces}; piece += 32) {a.name}.merge({where}[row * {self.pieces} + piece]);",
                f"{a.name} = merge_warp({a.name});",
            ]
            for member in a.members:
                evaluator.results[member] = f"{a.name}.{self.prims[member].op.field}"
        stores = []
        for name in self.row_stores():
            prim = self.prims[name]
            at = row if kernel.members[name] == "reduce" else row_at(row, kernel, prim)
            result = evaluator.value(name, at)
            where = f"{text.target(kernel, name)}[{evaluator.offset(prim.offset(at))}]"
            stores.append(f"{where} = {text.to_memory(prim, converted_to(result, prim))};")
        lines += ["if (threadIdx.x == 0) {", *indent([*row_lines, *stores]), "}"]
        symbols = sorted(str(s) for s in evaluator.symbols)
        loads = [name for name in kernel.loads if any(f"{pointer(name)}[" in line for line in lines)]
        used = replace(kernel, loads=tuple(loads))
        arguments = [
            *text.parameters(used, self.prims),
            "const unsigned* __restrict__ partial",
            "Index rows",
            *(f"Index {s}" for s in symbols),
        ]
        source = [
            "template <typename Index>",
            *text.wrapped(f"__global__ void __launch_bounds__(128) {kernel.name}_merge(", arguments, ") {"),
        ]
        source += [f"  {line}" for line in evaluator.declare_sizes()]
        source += [*indent(lines), "}"]
        self.evaluator.symbols |= evaluator.symbols
        call = ", ".join([*used.read_only, *used.written, "partial", "rows", *symbols])
        launch = [
            f"{kernel.name}_merge<long long><<<dim3(static_cast<unsigned>((rows + 3) / 4)), dim3(32, 4), 0, static_cast<cudaStream_t>(stream)>>>({call});"  # noqa: E501
        ]
        return source, launch
