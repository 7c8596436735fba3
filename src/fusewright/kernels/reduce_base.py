"""What the ways to write a reduce kernel share: a pass over the row, what it adds and writes, and the values of a row."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from .. import sizes
from ..access import accesses, axes_of, tuple_key
from ..graph import Dim, Graph
from ..index import Coordinate
from ..plan import Kernel, element_at, evaluated
from ..prims import Picked, Prim, arithmetic_type
from . import text
from .accumulators import COLLECTED, WORDS, Accumulator, kind_of, reductions_behind
from .expression import LANE, Evaluator, Level, Value, converted_to, indent, pointer
from .loops import Walk, counting, decode, full_at, needed_reduces, row_at, used, vector_conditions, vector_width
from .text import KernelText

TOGETHER = 4  # of a thread's loads that are under way before the first is used: the compiler waits for each in a loop that may end

# A load of neighbouring elements and of a single one, as `expression.py` writes them.
VECTOR_LOAD = re.compile(r"load\(&(?P<source>(?P<pointer>\w+_ptr)\[.*\]), (?P<name>\w+)\);")
SINGLE_LOAD = re.compile(
    r"const (?P<kind>\w+) (?P<name>\w+) = (?P<source>(?:to_arithmetic<\w+>\()?(?P<pointer>\w+_ptr)\[[^\[\]]*\]\)?);"
)


def whole_tensors(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    """What the kernel reads as large as its space, and what it picks another element of for each of the space's, as often."""
    total = sizes.product(kernel.space)
    found = [name for name in kernel.read_only if sizes.same(sizes.product(prims[name].shape), total)]
    return found + [name for name in picked_from(kernel, prims) if name in kernel.read_only and name not in found]


def picked_from(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    picks = [prims[name] for name in evaluated(kernel, prims) if isinstance(prims[name].op, Picked)]
    if not picks:
        return []
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    every = frozenset().union(*(c.depends for c in at))
    tables = {pick.inputs[0] for pick in picks}
    read: dict[Any, str] = {}
    for root in element_roots(kernel, prims):
        here = element_at(kernel, prims, prims[root], at)
        for access in accesses(prims, root, here, set(kernel.loads), root not in kernel.loads) if here is not None else ():
            if access.leaf in tables and not access.windows and prims[access.leaf].offset(access.at).depends >= every:
                read[access.leaf, tuple_key(access.at)] = access.leaf
    return list(read.values())


def element_roots(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    """What is computed at each element of the space: what its reductions are of, and what is written of it all."""
    roots = [prims[name].inputs[0] for name in needed_reduces(kernel, prims)]
    return roots + [name for name in kernel.stores if kernel.members[name] == "full"]


def scaled(count: int | str, step: str) -> str:
    return str(count) if step == "1" else f"{count} * {step}"


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
        self.one_by_one = bool(lanes) and (self.width == 1 or graph.hint(lanes[-1].size) % self.width != 0)
        if self.one_by_one:
            self.evaluator.divisors = {}
        self.at, self.row = loops.at(kernel, lane=self.width > 1)
        self.stores: list[tuple[str, Coordinate]] = []
        self.share = share  # threads that work on one row
        self.width_of_shared = across  # threads side by side, where several work on one of the rows that lie so
        self.collecting = False  # what is added goes into tiles first, one for each accumulator
        self.tiles: dict[str, str] = {}
        self.kept: dict[str, str] = {}  # what is read in a pass -> the array that keeps it for the next

    # ---- one pass over the row

    def taken_apart(self, item: str, body: list[str]) -> list[str]:
        """The body of a loop over the items of a row, behind the loop variables."""
        variables = decode(self.loops.reduced, item, self.evaluator)
        return [*(used(variables, body) if self.one_by_one else variables), *body]

    def pass_over(self, turn: int, keeping: dict[str, str] | None = None, at: str = "") -> list[str]:
        """The body of the loop over the row in this pass: fills accumulators, writes full values that are ready.

        `keeping` are values that it leaves in an array for a later pass; `at` is the item, where that is a number.
        """
        self.evaluator.counting = counting(self.loops.reduced, at) if at and self.one_by_one else None
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
        self.evaluator.counting = None
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
            body = self.taken_apart("item", self.pass_over(turn, at="item"))
            lines += [f"for ({first}; {inside}item < {length}; item += {step}) {{", *indent(body), "}"]
        return ["{", *indent(lines), "}"] if not first else lines

    @property
    def stride(self) -> int:
        """How many elements further a thread's next one lies."""
        raise NotImplementedError

    def together(self, turn: int, at: str) -> list[str]:
        """TOGETHER elements of a thread, the one of number u being at `at`; what accumulators rather take at once is collected."""
        self.tiles, self.collecting = {}, True
        body = self.taken_apart(at, self.pass_over(turn, at=at))
        self.collecting = False
        lines = [f"float {tile}{self.tile_shape(str(TOGETHER))};" for tile in self.tiles.values()]
        lines += ["#pragma unroll", f"for (int u = 0; u < {TOGETHER}; ++u) {{", *indent(body), "}"]
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
