"""What the ways to write a reduce kernel share: a pass over the row, what it adds and writes, and the values of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import accesses, axes_of, tuple_key
from ...ir.expr import (
    Binary,
    Call,
    Cast,
    Expr,
    Field,
    Function,
    Grouped,
    Name,
    Operand,
    Subscript,
    Unary,
    address,
    as_expr,
    both,
    element,
    method,
    names_in,
    walk,
)
from ...ir.graph import Dim, Graph
from ...ir.index import Coordinate
from ...ir.plan import Kernel, element_at, evaluated
from ...ir.prims import Picked, Prim, arithmetic_type
from ...ir.stmt import Assign, Declare, Do, For, Lambda, Statement, array, block, const, counted, names_declared
from ...target.machine import H200, Machine
from . import text
from .accumulators import COLLECTED, POSITIONS, TAKES, WORDS, Accumulator, kind_of, reductions_behind
from .evaluator import Evaluator, converted_to, each_lane, in_lanes
from .scope import LANE, VEC, Level, Value, pointer
from .text import KernelText
from .walk import (
    Walk,
    counting,
    decode,
    full_at,
    needed_reduces,
    row_at,
    stores_halves,
    used,
    vector_conditions,
    vector_width,
)

TOGETHER = 4  # of a thread's loads that are under way before the first is used: the compiler waits for each in a loop that may end

TAKE = Function("take")  # so many elements of a thread, from an item on

KEPT_KINDS = ("float", "double", "int", "short", "bool")  # of single elements that stay in registers for the next pass


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


def scaled(count: Operand, step: Expr) -> Expr:
    """So many steps; where a step is a product itself, from left to right."""
    if step == as_expr(1):
        return as_expr(count)
    return scaled(count, step.left) * step.right if isinstance(step, Binary) else as_expr(count) * step


@dataclass(frozen=True)
class Kept:
    """Of a pass: the rows it keeps, declared; the loads that fill them; and its body, which uses them and those kept before."""

    declared: list[Declare]
    loads: list[Statement]
    body: list[Statement]


def vector_load(statement: Statement) -> tuple[Subscript, Name] | None:
    """What a load of neighbouring elements reads, and the array that it fills."""
    match statement:
        case Do(Call(fn.load, (Unary("&", Subscript() as source), Name() as into))):
            return source, into
    return None


def single_load(statement: Statement) -> Subscript | None:
    """What a constant of one element in memory reads."""
    match statement:
        case Declare(how="const", value=Subscript() as source) | Declare(
            how="const", value=Call(Function("to_arithmetic"), (Subscript() as source,))
        ):
            plain = not any(isinstance(part, Subscript) for part in walk(source.at))
            return source if plain and statement.kind in KEPT_KINDS else None
    return None


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
        machine: Machine = H200,
    ):
        self.machine = machine
        self.kernel, self.prims, self.graph, self.comment, self.loops, self.parts = (
            kernel,
            prims,
            graph,
            comment,
            loops,
            [replace(part, kind=kind_of(part, prims, stores_halves(kernel, prims))) for part in parts],
        )
        lanes = loops.reduced if loops.lanes_reduce else loops.kept
        single = not self.vectors or text.has_window(kernel, prims)
        self.width = 1 if single else vector_width(kernel, prims, lanes)
        self.row_axes = frozenset(loop.variable for loop in loops.kept)
        self.all_axes = self.row_axes | {loop.variable for loop in loops.reduced}
        self.row_body: list[Statement] = []
        levels = [Level(self.row_axes, self.row_body)]
        if not loops.lanes_reduce:
            levels.append(Level(self.row_axes | {LANE}, self.row_body, array=True))
        self.evaluator = Evaluator(prims, kernel.loads, levels, vector=self.width > 1, fast=stores_halves(kernel, prims))
        self.one_by_one = bool(lanes) and (self.width == 1 or graph.hint(lanes[-1].size) % self.width != 0)
        if self.one_by_one:
            self.evaluator.divisors = {}
        self.at, self.row = loops.at(kernel, lane=self.width > 1)
        self.stores: list[tuple[str, Coordinate]] = []
        self.share = share  # threads that work on one row
        self.width_of_shared = across  # threads side by side, where several work on one of the rows that lie so
        self.collecting = False  # what is added goes into tiles first, one for each accumulator
        self.tiles: dict[str, str] = {}
        self.collected_by = Name("u")  # the element of a thread that is collected
        self.kept: dict[Expr, str] = {}  # what is read in a pass -> the array that keeps it for the next

    # ---- one pass over the row

    def taken_apart(self, item: Expr, body: list[Statement]) -> list[Statement]:
        """The body of a loop over the items of a row, behind the loop variables."""
        variables = decode(self.loops.reduced, item, self.evaluator)
        return [*(used(variables, body) if self.one_by_one else variables), *body]

    def pass_over(self, pass_index: int, keeping: dict[str, str] | None = None, at: Expr | None = None) -> list[Statement]:
        """The body of the loop over the row in this pass: fills accumulators, writes full values that are ready.

        `keeping` are values that it leaves in an array for a later pass; `at` is the item, where that is a number.
        """
        self.evaluator.counting = counting(self.loops.reduced, at) if at is not None and self.one_by_one else None
        element, lanes = Level(self.all_axes), Level(self.all_axes | {LANE})
        self.evaluator.levels += [element, lanes]
        after: list[Statement] = []
        for part in (a for a in self.parts if a.pass_index == pass_index):
            self.accumulate(part, element, lanes, after)
        for name in self.kernel.stores:
            if self.kernel.members[name] == "full" and self.pass_of(name) == pass_index:
                self.store_full(name, element, lanes, after)
        for name, row in (keeping or {}).items():
            value = self.evaluator.value(name, self.at)
            self.single(element, lanes).append(Assign(self.of_row(row), value.expr))
        self.evaluator.levels.remove(element)
        self.evaluator.levels.remove(lanes)
        self.evaluator.counting = None
        return [*element.body, *([each_lane(lanes.body, self.vec)] if lanes.body else []), *after]

    def single(self, element: Level, lanes: Level) -> list[Statement]:
        """Where statements about a single element stand."""
        return (lanes if self.width > 1 else element).body

    def of_row(self, row: str) -> Expr:
        """A thread's element of a row that is kept."""
        return element(Name(row), Name("step"), *([Name(LANE)] if self.width > 1 else []))

    def sweep(self, pass_index: int, start: Expr, step: Expr, inside: Sequence[Expr] = ()) -> list[Statement]:
        """A pass over a row by threads that are `step` apart: TOGETHER elements of a thread at a time, then the rest one by one."""
        extent = sizes.product(loop.size for loop in self.loops.reduced)
        length = self.evaluator.size(extent)
        most = TOGETHER * self.stride  # of the widest vectors
        item, first = Name("item"), Declare("Index", "item", start)
        many = not isinstance(extent, int) or extent >= most
        rest = not many or not isinstance(extent, int) or extent % most != 0
        of_rest, further = both(*inside, item < length), Assign(item, step, "+=")
        if not many:
            return [For(first, of_rest, further, block(self.taken_apart(item, self.pass_over(pass_index, at=item))))]
        of_many, further_on = both(*inside, item + scaled(TOGETHER - 1, step) < length), Assign(item, scaled(TOGETHER, step), "+=")
        at = Grouped(item + scaled(Name("u"), step))
        if not rest:
            return [For(first, of_many, further_on, block(self.together(pass_index, at, as_expr(TOGETHER))))]
        body = self.together(pass_index, at, Name("count"))
        found = [
            Lambda("take", (("Index", "item"), ("auto", "count")), tuple(body)),
            first,
            For(None, of_many, further_on, Do(TAKE(item, fn.count_of.of(TOGETHER)()))),
            For(None, of_rest, further, Do(TAKE(item, fn.count_of.of(1)())), unroll=1),  # at most three
        ]
        return found if self.passes == 1 else [block(found)]

    @property
    def stride(self) -> int:
        """How many elements further a thread's next one lies."""
        raise NotImplementedError

    def together(self, pass_index: int, at: Expr, count: Expr) -> list[Statement]:
        """So many elements of a thread, the one of number u being at `at`; what accumulators rather take at once is collected."""
        self.tiles, self.collecting = {}, True
        body = self.taken_apart(at, self.pass_over(pass_index, at=at))
        self.collecting = False
        tiles = [self.tile(tile, count) for tile in self.tiles.values()]
        return [*tiles, counted("u", count, body), *self.add_tiles(pass_index)]

    def tile(self, name: str, count: Expr) -> Declare:
        """Of what is collected: by rows of a column's own; along a row, all of it."""
        if self.width == 1:
            return array("float", name, count)
        return array("float", name, count * VEC) if self.loops.lanes_reduce else array("float", name, VEC, count)

    def add_tiles(self, pass_index: int) -> list[Statement]:
        found: list[Statement] = []
        for part in (a for a in self.parts if a.pass_index == pass_index and a.name in self.tiles):
            columns, tile = not self.loops.lanes_reduce and self.width > 1, Name(self.tiles[part.name])
            add = Do(method(self.lane_accumulator(part), "add", element(tile, Name(LANE)) if columns else tile))
            found.append(each_lane(add) if columns else add)
        return found

    def kept_rows(self, body: list[Statement], more: bool) -> Kept:
        """Takes the loads of whole tensors out of a pass; with `more` to come, what is new is kept. A load from where the pass itself
        says stays in it."""
        kept, own = Kept([], [], []), names_declared(body)
        large = {pointer(name): name for name in whole_tensors(self.kernel, self.prims)}
        for statement in body:
            vector, single = vector_load(statement), single_load(statement)
            source = vector[0] if vector is not None else single
            of = large.get(source.of.name) if source is not None and isinstance(source.of, Name) else None
            declared = kept.body[-1] if vector is not None else statement
            read = statement.value if isinstance(statement, Declare) else source
            stays = read is None or not names_in(read).isdisjoint(own) or (read not in self.kept and not more)
            if of is None or read is None or stays or not isinstance(declared, Declare):
                kept.body.append(statement)
                continue
            if read not in self.kept:
                row = self.kept[read] = self.evaluator.fresh(f"{of}_row")
                kept.declared.append(array(declared.kind, row, Name("STEPS"), *([VEC] if vector is not None else [])))
                place = element(Name(row), Name("step"))
                kept.loads.append(Assign(place, read) if vector is None else Do(fn.load(address(read), place)))
            place = element(Name(self.kept[read]), Name("step"))
            if vector is not None:
                kept.body[-1] = Declare(declared.kind, declared.name, place, (VEC,), how="const", refers=True)
            else:
                kept.body.append(const(declared.kind, declared.name, place))
        return kept

    @property
    def vec(self) -> Expr:
        return VEC if self.width > 1 else as_expr(1)

    def pass_of(self, name: str) -> int:
        passes = {member: part.pass_index for part in self.parts for member in part.members}
        behind = reductions_behind(name, self.kernel, self.prims)
        return 1 + max((passes[n] for n in behind), default=0)

    def accumulate(self, part: Accumulator, element_level: Level, lanes: Level, after: list[Statement]) -> None:
        result = self.evaluator.value(part.source, self.at)
        kind = TAKES.get(part.kind, "float")
        value = result.expr if arithmetic_type(result.dtype) == kind else Cast(kind, Grouped(result.expr))
        single = self.single(element_level, lanes)
        if part.kind in POSITIONS:
            dim = self.prims[part.members[0]].op.dims[0]
            single.append(Do(method(self.lane_accumulator(part), "add", value, self.evaluator.offset(self.at[dim]))))
        elif self.collecting and part.kind in COLLECTED:
            tile = Name(self.tiles.setdefault(part.name, self.evaluator.fresh(f"{part.source}_tile")))
            u, lane = self.collected_by, Name(LANE)
            along = (u,) if self.width == 1 else (u * VEC + lane,) if self.loops.lanes_reduce else (lane, u)
            single.append(Assign(element(tile, *along), value))
        elif self.loops.lanes_reduce and self.width > 1 and (whole := in_lanes(value)) is not None:
            after.append(Do(method(Name(part.name), "add", whole)))
        elif self.loops.lanes_reduce and self.width > 1:
            tile = Name(self.evaluator.fresh(f"{part.source}_tile"))
            element_level.body.append(array(kind, tile.name, VEC))
            lanes.body.append(Assign(element(tile, Name(LANE)), value))
            after.append(Do(method(Name(part.name), "add", tile)))
        else:
            single.append(Do(method(self.lane_accumulator(part), "add", value)))

    def lane_accumulator(self, part: Accumulator) -> Expr:
        return element(Name(part.name), Name(LANE)) if not self.loops.lanes_reduce and self.width > 1 else Name(part.name)

    def declared(self, part: Accumulator) -> Declare:
        """The accumulator, of each of a thread's rows."""
        return array(part.kind, part.name, *([VEC] if not self.loops.lanes_reduce and self.width > 1 else []))

    def store_full(self, name: str, element_level: Level, lanes: Level, after: list[Statement]) -> None:
        prim = self.prims[name]
        at = full_at(self.at, self.kernel, self.prims, prim)
        result = self.evaluator.value(name, at)
        offset = prim.offset(at)
        if self.width > 1 and (whole := in_lanes(converted_to(result, prim))) is not None:
            after.append(self.store_vector(name, whole, offset))
        elif self.width > 1:
            out = self.evaluator.fresh(f"{name}_out")
            element_level.body.append(array(arithmetic_type(prim.dtype), out, VEC))
            lanes.body.append(Assign(element(Name(out), Name(LANE)), result.expr))
            after.append(self.store_vector(name, Name(out), offset))
        else:
            after.append(self.store_single(name, result, offset))

    def store_single(self, name: str, result: Value, offset: Coordinate) -> Statement:
        prim, place = self.prims[name], element(text.target(self.kernel, name), self.evaluator.offset(offset))
        return Assign(place, text.to_memory(prim, converted_to(result, prim)))

    def store_vector(self, name: str, out: Name, offset: Coordinate) -> Statement:
        """All lanes at once where they are neighbours in memory."""
        into = text.target(self.kernel, name)
        if any(axis.name == LANE and factor == 1 for axis, factor in offset.terms.items()):
            self.stores.append((self.kernel.overwrites.get(name, name), offset))
            return Do(fn.store(address(element(into, self.evaluator.offset(offset, without_lane=True))), out))
        value = text.to_memory(self.prims[name], element(out, Name(LANE)))
        return each_lane(Assign(element(into, self.evaluator.offset(offset)), value))

    # ---- rows

    def take_row_body(self) -> list[Statement]:
        found = list(self.row_body)
        self.row_body.clear()
        return found

    def publish(self, pass_index: int) -> None:
        """After a pass, its reductions are values of the row, and what it wrote can be read by the thread that wrote it."""
        written = [n for n in self.kernel.stores if self.kernel.members[n] == "full" and self.pass_of(n) == pass_index]
        self.evaluator.loads |= set(written)
        for part in self.parts:
            if part.pass_index == pass_index:
                for member in part.members:
                    self.evaluator.results[member] = Field(self.lane_accumulator(part), self.prims[member].op.field)

    def row_value(self, name: str) -> tuple[Value, Coordinate]:
        prim = self.prims[name]
        at = self.row if self.kernel.members[name] == "reduce" else row_at(self.row, self.kernel, prim)
        return self.evaluator.value(name, at), prim.offset(at)

    @property
    def passes(self) -> int:
        full = [self.pass_of(name) for name in self.kernel.stores if self.kernel.members[name] == "full"]
        return max([a.pass_index for a in self.parts] + full)

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
