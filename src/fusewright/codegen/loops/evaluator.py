"""Turns primitives into statements, each at the outermost loop level where all it depends on is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import inputs_at, sure, tap_names, tuple_key, window_taps
from ...ir.access import inside as inside_of
from ...ir.expr import (
    AllOf,
    Arg,
    Braced,
    Call,
    Cast,
    Expr,
    Function,
    Kind,
    Name,
    Number,
    Operand,
    Select,
    Subscript,
    Template,
    address,
    applied,
    as_expr,
    both,
    element,
    equal,
    grouped,
    in_double,
    is_atom,
    method,
    names_in,
    select,
    signed_sum,
    substituted,
    total,
    uses,
    walk,
    with_fast_functions,
)
from ...ir.extent import extent
from ...ir.graph import Dim
from ...ir.index import AtPlace, Axis, Coordinate, Counting, LoopVariable, Tap, contiguous, linear
from ...ir.prims import C_TYPES, Coordinates, Iota, Load, Picked, Pointwise, Prim, Size, View, Window, arithmetic_type
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
    names_read,
    when,
)
from .rows import COLUMN, ROW, Along, Rows, Shared, in_a_run, lead, without

VEC = Name("VEC")  # how many a vector has
LANE = "v"  # the variable that counts neighbouring elements of one vector
ANYWAY = 16  # instructions for a value put at some place, up to which they are done elsewhere too rather than branched around
HOLDS = Function("holds")  # a test that is the same for all of a warp but at edges: see `either_way`
COLUMNS = 8  # taps along a window's last dimension, up to which a thread holds where each of them lies


@dataclass(eq=False)
class Level:
    """A loop level: statements that may depend on `axes`. In a level of lanes, each value is an array over the lanes."""

    axes: frozenset[str]
    body: list[Statement] = field(default_factory=list)
    array: bool = False


@dataclass(frozen=True)
class Value:
    expr: Expr
    dtype: torch.dtype
    depends: frozenset[str]


@dataclass(frozen=True)
class Column:
    """A column of a window: where it is read, and whether it lies in the input."""

    at: Coordinate
    inside: Expr


@dataclass(frozen=True)
class Run:
    """The elements of a window's row that a thread reads together, for the windows of elements side by side."""

    tap: str
    count: int
    level: Level  # where they are read


@dataclass(frozen=True)
class Around:
    """What is known where a value is computed, of the windows around it."""

    zero: frozenset[str] = frozenset()  # variables that are 0 here, and not written
    guard: Expr | None = None  # whether a tap is to be read
    guarded: Mapping[Level, Expr | None] = field(default_factory=dict)  # where that is asked, of this window and those around it
    asked: frozenset[str] = frozenset()  # what the answer depends on, where it is the same for all elements of a vector
    one_by_one: bool = False  # each of them has another answer
    run: Run | None = None


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


@dataclass(frozen=True)
class KnownSizes:
    """Of all primitives of a plan: the first word for each size and stride, and names that are no value's: of the symbols in them, of
    pointers and of accumulators."""

    words: dict[Dim, str]
    names: frozenset[str]


_last: list[tuple[dict[str, Prim], int, KnownSizes]] = []  # kernels of one plan are written one after the other


def known_sizes(prims: dict[str, Prim]) -> KnownSizes:
    if _last and _last[0][0] is prims and _last[0][1] == len(prims):
        return _last[0][2]
    words: dict[Dim, str] = {}
    for prim in prims.values():
        for word, size in sizes_of(prim):
            if not isinstance(size, int):
                words.setdefault(sizes.tidy(size), word)
    extents = {size for prim in prims.values() for size in prim.shape if isinstance(size, sympy.Expr)}
    names = {str(symbol) for size in extents for symbol in size.free_symbols}
    found = KnownSizes(words, frozenset(names.union(*((pointer(name), f"{name}_acc") for name in prims))))
    _last[:] = [(prims, len(prims), found)]
    return found


def sizes_of(prim: Prim) -> Iterator[tuple[str, Dim]]:
    for d, (size, stride) in enumerate(zip(prim.shape, prim.strides, strict=True)):
        yield f"{prim.name}_size{d}", size
        yield f"{prim.name}_stride{d}", stride


class Evaluator:
    """Writes the statements of one kernel. `levels` runs from the outermost to the innermost."""

    def __init__(
        self,
        prims: dict[str, Prim],
        loads: Iterable[str],
        levels: list[Level],
        vector: bool,
        rows: Rows | None = None,
        fast: bool = False,
    ):
        self.prims, self.loads, self.levels, self.vector, self.rows = prims, set(loads), levels, vector, rows
        self.fast = fast  # functions may be off by 1e-5
        self.counted = [(LANE, "VEC")] if rows is None else [(ROW, "ROWS")]  # what an array's elements are counted by
        if rows is not None and rows.columns is not None:
            self.counted.append((COLUMN, "COLUMNS"))
        self.memo: dict[object, tuple[Value, Level]] = {}
        self.held: dict[tuple[str, object], Value] = {}  # what an earlier pass has left where this one finds it
        self.said: dict[object, Value] = {}  # what was written at a level: the same by another way of counting is the same
        self.known = known_sizes(prims)
        self.names: set[str] = set(self.known.names)
        self.symbols: set[sympy.Symbol] = set()
        self.named_sizes: dict[sympy.Expr, str] = {}
        self.vector_loads: list[tuple[str, Coordinate]] = []
        self.columns: dict[object, tuple[str, str]] = {}  # of windows: where they are read, and whether they lie in the input
        self.whole: list[Expr] = []  # where all of this is true, what asks `holds` for the sake of a thread's rows is sure of a yes
        self.around = Around()
        self.run_conditions: list[Expr] = []  # for vectors in runs
        self.results: dict[str, Expr] = {}  # reductions of this kernel: primitive -> its value in a row
        self.index = "Index"  # the type that what is picked is given in
        self.inside = False  # a template, whose own names do not end with an underscore: what is named here does
        self.divisors: dict[Dim, str] | None = None  # what is divided by with an inverse of the launcher's: parameters
        self.counting: Counting | None = None  # offsets are given in it where they can be

    # ---- sizes and offsets

    def size(self, size: Dim) -> Expr:
        """A size in the kernel's index type: a number, a symbol, or a named constant at the top of the kernel."""
        size = sizes.tidy(size)
        if isinstance(size, int):
            return extent(size)
        self.symbols |= size.free_symbols
        if size.is_Symbol:
            return Name(str(size))
        if size not in self.named_sizes:
            self.named_sizes[size] = self.fresh(self.describe(size))
        return Name(self.named_sizes[size])

    def divisor(self, size: Dim) -> Expr:
        """A size that many numbers are divided by: one that is known takes its place in the instructions."""
        size = sizes.tidy(size)
        if self.divisors is None or isinstance(size, int):
            return self.size(size)
        if size not in self.divisors:
            name = str(size) if size.is_Symbol else self.named_sizes.get(size) or self.describe(size)
            self.divisors[size] = self.fresh(f"by_{name}")
        return Name(self.divisors[size])

    def describe(self, size: sympy.Expr) -> str:
        """By a tensor that it is a size or a stride of; one that the kernel reads, if there is one."""
        read = (word for name in sorted(self.loads) for word, known in sizes_of(self.prims[name]) if sizes.same(known, size))
        return next(read, "") or self.known.words.get(size, "extent")

    def declare_sizes(self, kind: Kind = "Index") -> list[Declare]:
        return [const(kind, name, extent(sizes.factored(size))) for size, name in self.named_sizes.items()]

    def offset(self, at: Coordinate, without_lane: bool = False) -> Expr:
        at, terms = at.plain() if self.counting is None else at.plain().counted(self.counting), list[tuple[bool, Expr]]()
        for axis, factor in at.terms.items():
            if (without_lane and axis.name == LANE) or axis.name in self.around.zero:
                continue
            self.symbols |= axis.symbols
            term = self.term(axis)
            if sizes.is_one(factor) or sizes.same(factor, -1):
                terms.append((not sizes.is_one(factor), term))
            elif negative(factor):
                terms.append((True, term * self.size(sizes.tidy(-factor))))
            else:
                terms.append((False, term * self.size(factor)))
        if not sizes.same(at.offset, 0) or not terms:
            below = negative(at.offset)
            terms.append((below, self.size(sizes.tidy(-at.offset) if below else at.offset)))
        return signed_sum(terms)

    def term(self, axis: Axis) -> Expr:
        """A coordinate; with what was picked for it in the place of what stands for that."""
        expr = axis.expr
        if axis.picks:
            wanted = {part for part in walk(expr) if isinstance(part, AtPlace)}
            picks = sorted((pick for pick in axis.picks if pick.expr in wanted), key=lambda pick: -nodes(pick.expr))
            expr = substituted(expr, {p.expr: Cast(self.index, grouped(self.value(p.name, p.at).expr)) for p in picks})
        return self.named(axis, expr) if axis.label and not axis.is_picked else expr

    def named(self, axis: Axis, expr: Expr) -> Expr:
        """A coordinate that takes computing, as a constant at its level."""
        level = self.level(axis.depends)
        if (level, expr) not in self.said:
            kind = "Index" if level.array else "auto"
            self.said[level, expr] = self.put(level, self.fresh(axis.label), [], expr, torch.int64, axis.depends, kind)
        return self.said[level, expr].expr

    # ---- names and levels

    def fresh(self, base: str) -> str:
        end = "_" if self.inside else ""
        name, count = base + end, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}{end}"
        self.names.add(name)
        return name

    def level(self, depends: frozenset[str]) -> Level:
        for level in self.levels:
            if depends <= level.axes:
                return level
        raise AssertionError(f"no loop level knows {sorted(depends)}")

    def in_array(self, name: str) -> Expr:
        """The element of an array that a thread's elements, or lanes, are counted by."""
        return element(Name(name), *(Name(variable) for variable, _ in self.counted))

    def array(self, kind: Kind, name: str) -> Declare:
        return array(kind, name, *(Name(count) for _, count in self.counted))

    # ---- values

    def value(self, name: str, at: Coordinates) -> Value:
        key = (name, tuple_key(at))
        if key in self.held:
            return self.held[key]
        if key in self.memo and self.memo[key][1] in self.levels:
            return self.memo[key][0]
        found = self.compute(self.prims[name], at)
        self.memo[key] = (found, self.level(found.depends))
        return found

    def compute(self, prim: Prim, at: Coordinates) -> Value:
        op = prim.op
        if prim.name in self.results and isinstance(self.results[prim.name], Name):
            return Value(self.results[prim.name], prim.dtype, self.row_depends(at))
        if prim.name in self.results:
            return self.declare(prim, self.results[prim.name], self.row_depends(at))
        if prim.name in self.loads or isinstance(op, Load):
            return self.load(prim, at)
        if isinstance(op, (View, Picked)):
            source, where = inputs_at(self.prims, prim, at)[0]
            return self.value(source, where)
        if isinstance(op, Size):
            size = self.size(op.size)
            kept = prim.dtype is torch.int64
            return Value(size if kept else Cast(arithmetic_type(prim.dtype), grouped(size)), prim.dtype, frozenset())
        if isinstance(op, Iota):
            here = at[op.dim]
            return Value(grouped(self.offset(here)), prim.dtype, here.depends)
        if isinstance(op, Window):
            return self.window(prim, op, at)
        assert isinstance(op, Pointwise), f"{prim.name}: {op} is not a value of this kernel"
        inputs = [self.value(name, where) for name, where in inputs_at(self.prims, prim, at)]
        operands = [
            converted(v, op.compute, keep=isinstance(self.prims[n].op, (Iota, Size)) or is_asked(i, v, op))
            for i, (v, n) in enumerate(zip(inputs, prim.inputs, strict=True))
        ]
        depends = frozenset().union(*(v.depends for v in inputs))
        expression = in_double(op.expression) if op.compute is torch.float64 else op.expression
        found = applied(with_fast_functions(expression) if self.fast else expression, operands)
        kind = arithmetic_type(prim.dtype)
        same = op.expression == Arg(0) and found == inputs[0].expr and is_atom(found) and arithmetic_type(inputs[0].dtype) == kind
        if same or (isinstance(found, Number) and found.kind == kind == "float"):
            return Value(found, prim.dtype, depends)  # under another name it would be said twice
        return self.declare(prim, found, depends)

    def row_depends(self, at: Coordinates) -> frozenset[str]:
        return frozenset().union(*(c.depends for c in at))

    def declare(self, prim: Prim, expr: Expr, depends: frozenset[str]) -> Value:
        """A named constant at its level; an array over the lanes where the level holds lanes of a row."""
        level = self.level(depends)
        known = self.said.get((level, prim.dtype, expr))
        if known is not None:
            return known
        found = self.put(level, self.fresh(prim.name), [], expr, prim.dtype, depends)
        self.said[level, prim.dtype, expr] = found
        return found

    def load(self, prim: Prim, at: Coordinates) -> Value:
        around = self.around
        if around.run is not None and in_a_run(prim, at, around.run.tap):
            return self.load_run(prim, at, around.run)
        offset, anywhere = prim.offset(at), self.is_there_anyway(prim, at)
        offset = self.settled(offset) if anywhere else offset
        kind = arithmetic_type(prim.dtype)
        lane_factor = next((f for a, f in offset.terms.items() if a.name == LANE), 0)
        opaque_lane = any(LANE in a.depends and a.name != LANE for a in offset.terms)
        depends = offset.depends
        opaque_tap = any(isinstance(name, Tap) for a in offset.terms for name in a.axes)
        together = self.vector and not (opaque_lane or opaque_tap or (around.one_by_one and not anywhere) or prim.one_by_one)
        if together and sizes.is_one(lane_factor):  # windows are of one tap here: it is 0
            written = Coordinate({a: f for a, f in offset.terms.items() if not isinstance(a.name, Tap)}, offset.offset)
            guard = around.guard if len(written.terms) < len(offset.terms) else None  # what is read at every tap is there anyway
            outer = self.level((written.depends - {LANE}) | (frozenset() if guard is None else around.asked))
            source = element(Name(pointer(prim.name)), self.in_steps(prim, self.offset(written, without_lane=True)))
            if (outer, guard, source) not in self.said:
                name = self.fresh(prim.name)
                fill = Do(fn.load(address(source), Name(name)))
                outer.body += [array(kind, name, VEC), when([] if guard is None else [guard], fill)]
                self.vector_loads.append((prim.name, written))
                lane = element(Name(name), Name(LANE))
                self.said[outer, guard, source] = Value(lane, prim.dtype, written.depends if guard is None else depends)
            return self.said[outer, guard, source]
        found = in_arithmetic(prim, element(Name(pointer(prim.name)), self.in_steps(prim, self.offset(offset))))
        level = self.level(depends)
        there = self.exists() if level.array else [guard] if (guard := around.guarded.get(level)) is not None else []
        return self.declare(prim, select(both(*there), found, 1) if there else found, depends)

    def in_steps(self, prim: Prim, offset: Expr) -> Expr:
        """Where an element lies whose tensor may be one number that stands for all."""
        if not prim.step:
            return offset
        self.symbols.add(sympy.Symbol(prim.step))
        return grouped(offset) * Name(prim.step)

    def is_there_anyway(self, prim: Prim, at: Coordinates) -> bool:
        """In a value put at some place: what lies inside its tensor wherever the place is (windows cut out and put back) is read there
        without asking, once for all that want it."""
        placed = [(c, size) for c, size in zip(at, prim.shape, strict=True) if c.depends & self.around.zero]
        return bool(placed) and all(self.lies_inside(c, size) for c, size in placed)

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

    def load_run(self, prim: Prim, at: Coordinates, run: Run) -> Value:
        """All that a thread takes of a row, at once; of a row that does not count, something else."""
        assert self.rows is not None and self.rows.columns is not None
        row, first, size = prim.offset((*at[:-1], Coordinate())), without(at[-1], run.tap), prim.shape[-1]
        ahead, vector = lead(first, self.rows.columns), self.rows.columns.vector
        start = self.offset(row) if self.around.guard is None else select(self.around.guard, self.offset(row), 0)
        how = fn.load_run.of("VEC", ahead) if ahead is not None else fn.load_run.of(1, 0)
        read = how, (address(element(Name(pointer(prim.name)), start)), self.offset(first), self.size(size))
        if (run.level, read) not in self.said:
            name = self.fresh(prim.name)
            run.level.body += [array(arithmetic_type(prim.dtype), name, run.count), Do(Call(how, (*read[1], Name(name))))]
            self.said[run.level, read] = Value(element(Name(name), Name(run.tap)), prim.dtype, prim.offset(at).depends)
            if ahead is not None:
                others = [n for n in (*row.terms.values(), row.offset) if sizes.divide(n, size) is None]
                whole = [n for n in (size, *others) if sizes.divide(n, vector) is None]
                self.run_conditions.append(fn.aligned(Name(prim.name), min(16, vector * prim.dtype.itemsize)))
                self.run_conditions += [equal(grouped(extent(sizes.factored(n))) % vector, 0) for n in whole]
        return self.said[run.level, read]

    # ---- windows

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
        position = self.offset(linear(taps.where[-taps.rank :], taps.extents)) if taps.largest else None
        self.levels, self.around = levels, around
        if taps.single:  # a computation of where to read may still name its taps
            read = names_read(taps.inner.body) | names_in(tap.expr)
            taps.inner.body[:0] = [Declare("int", one, as_expr(0), how="constexpr") for one in taps.names if one in read]
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
                body = [*(taps.line.body if tap == taps.names[-1] else []), counted(tap, count, body)]
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

    def first_inside(self, op: Window, at: Coordinates, extents: tuple[Dim, ...]) -> Expr:
        """Where a window's first tap in the input lies: its largest, where all are -INFINITY."""
        rank, parts = len(op.kernel), list[Expr]()
        for i, (here, stride) in enumerate(zip(at[-rank:], contiguous(extents), strict=True)):
            start = self.offset(here * op.stride[i] + -op.padding[i])
            start = fn.first_tap(start, op.dilation[i]) if op.padding[i] != 0 else grouped(start)
            parts.append(start if sizes.is_one(stride) else start * self.size(stride))
        return total(parts)

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

    def put(
        self,
        level: Level,
        name: str,
        body: list[Statement],
        expr: Expr,
        dtype: torch.dtype,
        depends: frozenset[str],
        kind: Kind = "",
    ) -> Value:
        """What statements come to, as a constant, or as an array where the level has several elements."""
        kind = kind or arithmetic_type(dtype)
        own_names = any(isinstance(statement, Declare) and statement.how == "constexpr" for statement in body)
        if not level.array and own_names:  # that others may use too
            level.body += [Declare(kind, name), block([*body, Assign(Name(name), expr)])]
            return Value(Name(name), dtype, depends)
        if not level.array:
            level.body += [*body, const(kind, name, expr)]
            return Value(Name(name), dtype, depends)
        level.body += [self.array(kind, name), *self.each_lane([*body, Assign(self.in_array(name), expr)])]
        return Value(self.in_array(name), dtype, depends)

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

    def each_lane(self, body: list[Statement], variables: list[str] | None = None) -> list[Statement]:
        for variable, count in reversed(self.counted):
            if variables is None or variable in variables:
                body = [counted(variable, Name(count), body[0] if len(body) == 1 and is_one_line(body[0]) else body)]
        return body

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


def first_of_vector(at: Coordinate) -> Coordinate:
    """Of a vector's elements the first: all of them lie in a loop's dimension where it does, vectors being whole."""
    lane = next((axis for axis in at.terms if axis.name == LANE), None)
    loops = [f for a, f in at.terms.items() if isinstance(a.name, LoopVariable)]
    return without(at, LANE) if lane is not None and any(sizes.same(f, at.terms[lane]) for f in loops) else at


def either_way(body: list[Statement], whole: Sequence[Expr], name: str) -> list[Statement]:
    """Statements that ask `holds` at every step, or not at all where `whole` says that every answer is yes: always, if it is empty."""
    asks = any(isinstance(part, Call) and part.function == HOLDS for expr in expressions(body) for part in walk(expr))
    return [EitherWay(name, tuple(whole), tuple(body))] if asks else body


def each_lane(body: Statement | list[Statement], count: Operand = VEC) -> Statement:
    """A loop over the elements of a vector; a single statement behind its head, several in braces."""
    return counted(LANE, count, body)


def in_lanes(value: Expr) -> Name | None:
    """The array whose element of a lane this is."""
    match value:
        case Subscript(Name() as of, Name(lane)) if lane == LANE:
            return of
    return None


def is_one_line(statement: Statement) -> bool:
    """Short enough to stand behind the head of a loop."""
    match statement:
        case If(_, then, None):
            return is_one_line(then)
    return isinstance(statement, (Assign, Do))


def nodes(pick: AtPlace) -> int:
    return sum(1 for at in pick.at for _ in walk(at))


def negative(size: Dim) -> bool:
    """Written with a minus in front."""
    size = sizes.tidy(size)
    if isinstance(size, int):
        return size < 0
    return not size.is_Symbol and sizes.nonnegative(sizes.tidy(-size)) and not sizes.nonnegative(size)


def converted(value: Value, dtype: torch.dtype, keep: bool = False) -> Expr:
    """The value in the type that is computed in; `keep` leaves a position as the index it is."""
    kind = arithmetic_type(dtype)
    return value.expr if keep or arithmetic_type(value.dtype) == kind else Cast(kind, grouped(value.expr))


def is_asked(position: int, value: Value, op: Pointwise) -> bool:
    """A truth that the expression chooses by, and does not compute with."""
    chooses = isinstance(op.expression, Select) and op.expression.test == Arg(position)
    return value.dtype is torch.bool and chooses and uses(op.expression, position) == 1


def converted_to(value: Value, prim: Prim) -> Expr:
    return converted(value, prim.dtype)


def in_arithmetic(prim: Prim, element: Expr) -> Expr:
    """What is in memory, in the type that it is computed in."""
    kind = arithmetic_type(prim.dtype)
    return element if C_TYPES[prim.dtype] == kind else fn.to_arithmetic.of(kind)(element)


def pointer(name: str) -> str:
    return f"{name}_ptr"
