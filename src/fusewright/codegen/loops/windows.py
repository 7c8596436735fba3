"""Windows: taps as loops inside the evaluation of an element, and what says whether a tap counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import inside as inside_of
from ...ir.access import sure, tap_names, window_taps
from ...ir.expr import (
    AllOf,
    Binary,
    Braced,
    Call,
    Expr,
    Function,
    Grouped,
    Kind,
    Name,
    Template,
    as_expr,
    both,
    changed,
    element,
    grouped,
    method,
    names_in,
    select,
    total,
    walk,
)
from ...ir.graph import Dim
from ...ir.index import Axis, Coordinate, LoopVariable, Tap, contiguous, linear
from ...ir.prims import Coordinates, Pointwise, Prim, Window, arithmetic_type
from ...ir.stmt import (
    Assign,
    Declare,
    Do,
    EitherWay,
    If,
    Statement,
    array,
    block,
    const,
    counted,
    expressions,
    rewritten,
    when,
)
from .rows import COLUMN, ROW, Along, Rows, Shared, without
from .scope import LANE, Around, Level, Run, Scope, Value

ANYWAY = 16  # instructions for a value put at some place, up to which they are done elsewhere too rather than branched around
HOLDS = Function("holds")  # a test that is the same for all of a warp but at edges: see `either_way`
COLUMNS = 8  # taps along a window's last dimension, up to which a thread holds where each of them lies


@dataclass(frozen=True)
class Column:
    """A column of a window: where it is read, and whether it lies in the input."""

    at: Coordinate
    inside: Expr


@dataclass(frozen=True)
class Taps:
    """A window as it is read: its loops over taps, for an element or for all of a thread's elements that share what they read."""

    prim: Prim
    op: Window
    at: Coordinates  # of the element
    level: Level  # that the result belongs to
    names: list[Tap]
    line: Level  # a row of the window,
    inner: Level  # and what is done at each of its taps
    rows: Rows | None
    shared: Shared | None
    read: Window
    where: Coordinates  # of a tap
    extents: tuple[Dim, ...]
    run: Run | None
    column: Column | None
    inside: Expr | None  # whether a column lies in the input, where that is known

    @property
    def rank(self) -> int:
        return len(self.op.kernel)

    @property
    def largest(self) -> bool:
        return self.op.kind == "largest"

    @property
    def single(self) -> bool:
        """No pool: a value put at some place."""
        return all(size == 1 for size in self.op.kernel) and not self.largest

    @property
    def together(self) -> list[str]:
        return self.shared.variables if self.shared is not None else []

    @property
    def source(self) -> str:
        return self.prim.inputs[0]

    @property
    def clipped(self) -> list[int]:
        """Dimensions along which a tap may lie outside the input, and each is asked."""
        by_column = self.column is not None or self.run is not None
        return [i for i in range(self.rank) if self.op.clipped and (not by_column or i < self.rank - 1)]

    @property
    def below(self) -> Along | None:
        """Where a thread's rows share the window."""
        along = self.shared.along if self.shared is not None else ()
        return next((one for one in along if one.variable == ROW), None)


@dataclass(frozen=True)
class Asked:
    """What is asked before a tap counts, and where."""

    tests: list[Expr]
    whole: list[Expr]  # where all of this is true, every tap counts
    known: Level
    depends: frozenset[str]


class Windows(Scope):
    """Writes the statements of windows."""

    def window(self, prim: Prim, op: Window, at: Coordinates) -> Value:
        """The taps of a pool, as loops inside the evaluation of one element, or of a thread's rows together."""
        taps = self.taps_of(prim, op, at)
        levels, around = self.levels, self.around
        self.step_inside(taps)
        asked = self.asked_of(taps)
        name = self.fresh(prim.name)
        nothing = as_expr(0.0 if op.kind == "sum" else float("-inf"))
        empty = Braced((nothing, self.first_inside(op, at, taps.extents))) if taps.largest else nothing
        aside = bool(asked.tests) and taps.single and self.cost(taps.source) > ANYWAY
        guarded = bool(asked.tests) and (not aside or asked.known is not taps.inner)
        guard = Name(self.fresh("counts")) if guarded else None
        if guard is not None:
            asked.known.body.append(const("bool", guard.name, AllOf(tuple(asked.tests))))
        self.around = replace(
            self.around,
            guard=guard,
            guarded={**self.around.guarded, taps.line: guard, taps.inner: guard},
            run=taps.run,
            asked=asked.depends - {LANE},
            one_by_one=self.around.one_by_one or LANE in asked.depends,
        )
        self.levels = [*self.levels, *([taps.line] if taps.run is not None else []), taps.inner]
        shape = self.prims[taps.source].shape
        tap = self.value(taps.source, inside_of(op, taps.where, shape) if taps.single else taps.where)
        position = self.position(taps) if taps.largest else None
        self.levels, self.around = levels, around
        if taps.single:  # a computation of where to read may still name its taps
            alone = at_zero(taps.names)
            taps.inner.body[:] = rewritten(taps.inner.body, alone)
            tap = replace(tap, expr=alone(tap.expr))
        by_column = taps.run is not None and op.kind == "max" and taps.inside is not None  # asked once a column
        counts = [test for test in (guard, None if by_column else taps.inside) if test is not None]
        taken = select(both(*counts), tap.expr, nothing) if counts else tap.expr
        if taps.single and not aside:
            return self.put(taps.level, name, taps.inner.body, taken, prim.dtype, self.row_depends(at))
        return self.pooled(taps, asked, name, guard, taken, position, empty, by_column, aside)

    def taps_of(self, prim: Prim, op: Window, at: Coordinates) -> Taps:
        """How a window is read."""
        level, rank = self.level(self.row_depends(at)), len(op.kernel)
        single = all(size == 1 for size in op.kernel) and op.kind != "largest"
        rows = self.rows if level.array else None
        shared = rows.shared(op, at) if rows is not None and not single else None
        together = shared.variables if shared is not None else []
        read, first = (shared.common, shared.first) if shared is not None else (op, at)
        names = tap_names(at, rank)
        line = Level((level.axes - set(together)) | set(names[:-1]))
        inner = Level(line.axes | set(names))
        run = Run(names[-1], read.kernel[-1], line) if COLUMN in together else None
        where, extents = window_taps(read, first), self.prims[prim.inputs[0]].shape[-rank:]
        column, inside = None, None
        if op.clipped and run is not None:
            inside = self.in_input(read, where[-1], extents[-1], names[-1])
        elif op.clipped and not single:
            column = self.column(read, where[-1], extents[-1], names[-1])
        if column is not None:
            where, inside = (*where[:-1], column.at), column.inside
        return Taps(prim, op, at, level, names, line, inner, rows, shared, read, where, extents, run, column, inside)

    def step_inside(self, taps: Taps) -> None:
        """A window that depends on no tap of those around it stands in front of them: it knows nothing of them, whose names it may use."""
        if taps.level not in self.around.guarded:
            self.around = Around(guard=self.around.guard, run=self.around.run)
        self.levels = self.levels[: next(i for i, other in enumerate(self.levels) if other is taps.level) + 1]
        if taps.single:
            self.around = replace(self.around, zero=self.around.zero | frozenset(taps.names))

    def asked_of(self, taps: Taps) -> Asked:
        """What says whether a tap counts."""
        read, rank, where = taps.read, taps.rank, taps.where
        there = self.row_exists() if taps.rows is not None else None
        edges = [(where[i - rank], taps.extents[i], taps.names[i], read.kernel[i]) for i in taps.clipped]
        whole = [test for at, size, name, count in edges for test in self.all_within(at, size, name, count)]
        tests = [test for at, size, _, _ in edges for test in self.within(at, size)]
        below = taps.below
        if below is not None and there is not None and below.dim not in taps.clipped:
            tests.append(self.of_some_row(below, taps.op, taps.names[below.dim]))
        if tests and not taps.single:
            tests = [HOLDS(AllOf(tuple(tests)))]
        if below is None and there is not None:
            tests.append(there)
        outer = self.around.guarded.get(taps.level)
        if outer is not None:
            tests.append(outer)  # of the window around this one
        known = taps.line if taps.run is not None else taps.inner
        if not self.vector or not tests:
            return Asked(tests, whole, known, frozenset())
        # of all elements of a vector at once, where they have the same answer
        depends = frozenset().union(*(at.depends for at, size, _, _ in edges if self.within(at, size)))
        depends = (depends - set(taps.names) - self.around.zero) | self.around.asked
        by_taps = any(isinstance(name, Tap) for test in tests for name in names_in(test))
        if LANE in depends or by_taps or self.around.one_by_one:
            return Asked(tests, whole, known, frozenset({LANE}))
        return Asked(tests, whole, self.level(depends), depends)

    def pooled(
        self,
        taps: Taps,
        asked: Asked,
        name: str,
        guard: Expr | None,
        taken: Expr,
        position: Expr | None,
        empty: Expr,
        by_column: bool,
        aside: bool,
    ) -> Value:
        """What the taps come to, by loops over them; a single one that takes long to compute, where it is there at all."""
        prim, op, shared, level = taps.prim, taps.op, taps.shared, taps.level
        kind: Kind = Template("Largest", ("Index",)) if taps.largest else arithmetic_type(prim.dtype)
        depends, sum_so_far = self.row_depends(taps.at), self.in_array(name) if shared is not None else Name(name)
        if position is not None:
            step: Statement = Do(method(sum_so_far, "add", taken, position))
        elif op.kind == "max":
            step = Assign(sum_so_far, fn.larger(taken, sum_so_far))
        else:
            step = Assign(sum_so_far, taken if taps.single else sum_so_far + grouped(taken))
        before, body, after = list[Statement](), [step], list[Statement]()
        if by_column and shared is not None and taps.inside is not None:
            before, body, after = self.by_column(shared, name, taken, taps.inside, taps.names)
        elif shared is not None:
            body = self.each_lane([If(shared.takes(taps.names), step)], taps.together)
        body = [*taps.inner.body, *body]
        if aside:
            body = [If(guard if guard is not None else both(*asked.tests), block(body))]
        else:
            for tap, count in reversed(list(zip(taps.names, taps.read.kernel, strict=True))):
                once = rewritten(body, at_zero([tap])) if count == 1 else [counted(tap, count, body)]
                body = [*(taps.line.body if tap == taps.names[-1] else []), *once]
        body = [*before, *body, *after]
        if taps.rows is not None:
            self.whole += [test for test in asked.whole if test not in self.whole and not taps.single]
        elif asked.tests and not taps.single:
            body = either_way(body, asked.whole, self.fresh(f"{prim.name}_taps"))
        if shared is not None:
            each = [variable for variable, _ in self.counted if variable not in taps.together]
            body = self.each_lane(body, each) if each else body
            level.body += [self.array(kind, name), *self.each_lane([Assign(sum_so_far, empty)]), *body]
            return Value(sum_so_far, prim.dtype, depends)
        body = [Declare(kind, name, empty), *body]
        if level.array:
            return self.put(level, f"{name}s", body, Name(name), prim.dtype, depends, kind)
        level.body += body
        return Value(Name(name), prim.dtype, depends)

    def position(self, taps: Taps) -> Expr:
        """Where a tap lies: in the input, or in the element's own window."""
        if not taps.op.span:
            return self.offset(linear(taps.where[-taps.rank :], taps.extents))
        places = [Coordinate({Axis(n, size): d}) for n, size, d in zip(taps.names, taps.read.kernel, taps.read.dilation, strict=True)]
        for along in taps.shared.along if taps.shared is not None else ():
            places[along.dim] += Coordinate({Axis(along.variable, 1 << 20): -along.step})
        return self.offset(linear(tuple(places), taps.op.span))

    def first_inside(self, op: Window, at: Coordinates, extents: tuple[Dim, ...]) -> Expr:
        """Where a window's first tap in the input lies: its largest, where all are -INFINITY."""
        rank, parts = len(op.kernel), list[Expr]()
        for i, (here, stride) in enumerate(zip(at[-rank:], contiguous(op.span or extents), strict=True)):
            begin = self.offset(here * op.stride[i] + -op.padding[i])
            start = fn.first_tap(begin, op.dilation[i]) if op.padding[i] != 0 else grouped(begin)
            if op.span and op.padding[i] == 0:
                continue
            start = grouped(start - grouped(begin)) if op.span else start
            parts.append(start if sizes.is_one(stride) else start * self.size(stride))
        return total(parts) if parts else as_expr(0)

    def by_column(
        self, shared: Shared, name: str, taken: Expr, inside: Expr, taps: Sequence[str]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """Maxima of columns first, in statements before, inside and after a window's loops: then those in the input are taken."""
        maxima, tap, count = self.fresh(f"{name}_columns"), taps[-1], shared.common.kernel[-1]
        rows = [along for along in shared.along if along.variable == ROW]
        each = [along.variable for along in rows]
        largest = element(Name(maxima), *map(Name, each), Name(tap))
        places = [Name(n) for variable, n in self.counted if variable in each]
        lowest, so_far = as_expr(float("-inf")), self.in_array(name)

        def of_each(statement: Statement, along: list[Along]) -> list[Statement]:
            return [when([shared.takes_along(one, taps[one.dim]) for one in along], statement)]

        emptied = self.each_lane([Assign(largest, lowest)], each)
        before: list[Statement] = [array("float", maxima, *places, count), counted(tap, count, emptied)]
        body = self.each_lane(of_each(Assign(largest, fn.larger(taken, largest)), rows), each)
        beside = [along for along in shared.along if along.variable == COLUMN]
        joined = Assign(so_far, fn.larger(select(inside, largest, lowest), so_far))
        after: list[Statement] = [counted(tap, count, self.each_lane(of_each(joined, beside), shared.variables))]
        return before, body, after

    def cost(self, name: str) -> int:
        """Instructions from memory to a value, roughly; what several values are made of is computed once."""
        found, stack, seen = 0, [name], set[str]()
        while stack:
            prim = self.prims[stack.pop()]
            if prim.name in seen or prim.name in self.loads or prim.is_load:
                continue
            seen.add(prim.name)
            found += prim.op.cost if isinstance(prim.op, Pointwise) else 0
            stack += prim.inputs
        return found

    # ---- what lies where

    def row_exists(self) -> Expr | None:
        """A test that a thread's row lies in its loop; nothing where that is sure."""
        if self.rows is None or not self.rows.ragged:
            return None
        return HOLDS(Name(self.rows.along) + Name(ROW) < self.size(self.rows.size))

    def of_some_row(self, below: Along, op: Window, tap: str) -> Expr:
        """A test that a common tap is one of a row that is there: a row that is not has taps beyond the input.

        The end is the loop's, not the input's: a loop may stand for several dimensions, rows of all images.
        """
        assert self.rows is not None
        here = Coordinate({Axis(self.rows.along, self.rows.size): below.step, Axis(tap, op.kernel[below.dim]): 1})
        end = (self.rows.size - 1) * below.step + (op.kernel[below.dim] - 1) * op.dilation[below.dim] + 1
        return grouped(self.offset(here)) < self.size(end)

    def exists(self) -> list[Expr]:
        """Tests that an element of a thread lies in its loops; none where that is sure."""
        columns, row = self.rows.columns if self.rows is not None else None, self.row_exists()
        tests = [] if row is None else [row]
        if columns is not None and sizes.divide(columns.size, columns.count) is None:
            tests.append(Name(columns.along) + Name(COLUMN) < self.size(columns.size))  # a warp goes along columns: no `holds`
        return tests

    def in_input(self, op: Window, at: Coordinate, size: Dim, tap: str) -> Expr:
        """Whether a column lies in the input, found out once for all rows of a window."""
        level, taps, tests = self.level(at.depends - {tap}), op.kernel[-1], self.within(at, size)
        key = (level, taps, *tests)
        if key not in self.columns:
            name = self.fresh("in_input")
            self.columns[key] = "", name
            level.body += [array("bool", name, taps), counted(tap, taps, Assign(element(Name(name), Name(tap)), both(*tests)))]
        return element(Name(self.columns[key][1]), Name(tap))

    def column(self, op: Window, at: Coordinate, size: Dim, tap: str) -> Column | None:
        """Where a window's columns lie, once for all its rows: a warp, which goes along them, needs no branch at the edges.

        What lies outside is read at the edge instead, and does not count.
        """
        level, taps, tests = self.level(at.depends - {tap}), op.kernel[-1], self.within(at, size)
        if not tests or taps > COLUMNS or level.array:
            return None
        key = (level, taps, *tests)
        if key not in self.columns:
            name, inside = self.columns[key] = self.fresh("column"), self.fresh("in_input")
            known = [
                Assign(element(Name(inside), Name(tap)), both(*tests)),
                Assign(element(Name(name), Name(tap)), fn.clamped.of("Index")(self.offset(at), self.size(size))),
            ]
            level.body += [array("Index", name, taps), array("bool", inside, taps), counted(tap, taps, known)]
        name, inside = self.columns[key]
        here = Axis("", size, at.depends, element(Name(name), Name(tap)), at.symbols)
        return Column(Coordinate.of(here), element(Name(inside), Name(tap)))

    def within(self, at: Coordinate, size: Dim) -> list[Expr]:
        """Tests that a coordinate lies in a dimension; none that is sure to hold."""
        return self.between(at, at, size)

    def all_within(self, at: Coordinate, size: Dim, tap: str, taps: int) -> list[Expr]:
        """Tests that it does for every tap."""
        along = next(((axis, factor) for axis, factor in at.terms.items() if axis.name == tap), None)
        if along is None:
            return self.within(at, size)
        others = Coordinate({axis: factor for axis, factor in at.terms.items() if axis != along[0]}, at.offset)
        return self.between(others, others + sizes.tidy(along[1] * (taps - 1)), size)

    def between(self, low: Coordinate, high: Coordinate, size: Dim) -> list[Expr]:
        above, below = sure(first_of_vector(low), first_of_vector(high), size)
        if self.around.zero:  # what is put at some place may be a part of something else, cut out there
            above, below = above or self.lies_inside(low, None), below or self.lies_inside(high, size)
        tests = [] if above else [grouped(self.offset(low)) >= 0]
        return tests if below else [*tests, grouped(self.offset(high)) < self.size(size)]

    def lies_inside(self, at: Coordinate, size: Dim | None) -> bool:
        """Wherever the place is; without a size, not before the beginning. What is divided may be outside where it does not count, and
        then its quotient and its rest are, too."""
        here = first_of_vector(self.settled(at))
        inside = all(sure(here, here, sizes.tidy(here.largest() + 1) if size is None else size))
        parts = [(axis.divided, sizes.tidy(axis.size * axis.by) if axis.quotient else None) for axis in here.terms]
        return inside and all(self.lies_inside(divided, most) for divided, most in parts if divided is not None)

    def settled(self, at: Coordinate) -> Coordinate:
        """In terms of loop variables, without those that are 0."""
        plain, zero = at.plain(), self.around.zero
        return Coordinate({axis: factor for axis, factor in plain.terms.items() if axis.name not in zero}, plain.offset)


def at_zero(taps: Sequence[str]) -> Callable[[Expr], Expr]:
    """Expressions where these variables are 0, and are not written."""
    zero = as_expr(0)

    def change(part: Expr) -> Expr:
        match part:
            case Name(name) if name in taps:
                return zero
            case Binary("+", left, right) if zero in (left, right):
                return right if left == zero else left
            case Binary("-", left, right) if right == zero:
                return left
            case Binary("*", left, right) if zero in (left, right):
                return zero
            case Grouped(Name() as only):
                return only
        return part

    return lambda expr: changed(expr, change)


def first_of_vector(at: Coordinate) -> Coordinate:
    """Of a vector's elements the first: all of them lie in a loop's dimension where it does, vectors being whole."""
    lane = next((axis for axis in at.terms if axis.name == LANE), None)
    loops = [f for a, f in at.terms.items() if isinstance(a.name, LoopVariable)]
    return without(at, LANE) if lane is not None and any(sizes.same(f, at.terms[lane]) for f in loops) else at


def either_way(body: list[Statement], whole: Sequence[Expr], name: str) -> list[Statement]:
    """Statements that ask `holds` at every step, or not at all where `whole` says that every answer is yes: always, if it is empty."""
    asks = any(isinstance(part, Call) and part.function == HOLDS for expr in expressions(body) for part in walk(expr))
    return [EitherWay(name, tuple(whole), tuple(body))] if asks else body
