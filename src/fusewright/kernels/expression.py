"""Turns primitives into C++ statements, each at the outermost loop level where all it depends on is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import sympy
import torch

from .. import sizes
from ..access import TAP, inputs_at, sure, tap_names, tuple_key, window_taps
from ..access import inside as inside_of
from ..graph import Dim
from ..index import Axis, Coordinate, Counting, contiguous, linear
from ..ir.expr import Arg, Select, to_cpp, uses
from ..prims import C_TYPES, Coordinates, Iota, Load, Picked, Pointwise, Prim, Size, View, Window, arithmetic_type
from .rows import COLUMN, ROW, Along, Rows, Shared, in_a_run, lead, without

LANE = "v"  # the variable that counts neighbouring elements of one vector
ANYWAY = 16  # instructions for a value put at some place, up to which they are done elsewhere too rather than branched around
COLUMNS = 8  # taps along a window's last dimension, up to which a thread holds where each of them lies


@dataclass(eq=False)
class Level:
    """A loop level: statements that may depend on `axes`. In a level of lanes, each value is an array over the lanes."""

    axes: frozenset[str]
    lines: list[str] = field(default_factory=list)
    array: bool = False


@dataclass(frozen=True)
class Value:
    text: str
    dtype: torch.dtype
    depends: frozenset[str]


@dataclass(frozen=True)
class Column:
    """A column of a window: where it is read, and the text that says whether it lies in the input."""

    at: Coordinate
    inside: str


@dataclass(frozen=True)
class Run:
    """The elements of a window's row that a thread reads together, for the windows of elements side by side."""

    tap: str
    count: int
    level: Level  # where they are read


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
    for d, (extent, stride) in enumerate(zip(prim.shape, prim.strides, strict=True)):
        yield f"{prim.name}_size{d}", extent
        yield f"{prim.name}_stride{d}", stride


class Evaluator:
    """Writes the statements of one kernel. `levels` runs from the outermost to the innermost."""

    def __init__(
        self, prims: dict[str, Prim], loads: Iterable[str], levels: list[Level], vector: bool, rows: Rows | None = None
    ):
        self.prims, self.loads, self.levels, self.vector, self.rows = prims, set(loads), levels, vector, rows
        self.counted = [(LANE, "VEC")] if rows is None else [(ROW, "ROWS")]  # what an array's elements are counted by
        if rows is not None and rows.columns is not None:
            self.counted.append((COLUMN, "COLUMNS"))
        self.place = "".join(f"[{variable}]" for variable, _ in self.counted)  # of an element in such an array,
        self.places = "".join(f"[{count}]" for _, count in self.counted)  # and how many there are
        self.memo: dict[object, tuple[Value, Level]] = {}
        self.held: dict[tuple[str, object], Value] = {}  # what an earlier pass has left where this one finds it
        self.said: dict[object, Value] = {}  # what was written at a level: the same by another way of counting is the same
        self.known = known_sizes(prims)
        self.names: set[str] = set(self.known.names)
        self.symbols: set[sympy.Symbol] = set()
        self.named_sizes: dict[sympy.Expr, str] = {}
        self.vector_loads: list[tuple[str, Coordinate]] = []
        self.zero: frozenset[str] = frozenset()  # variables that are 0 here, and not written
        self.columns: dict[object, tuple[str, str]] = {}  # of windows: where they are read, and whether they lie in the input
        self.whole: list[str] = []  # where all of this is true, what asks `holds` for the sake of a thread's rows is sure of a yes
        self.guard = ""  # inside a window: whether a tap is to be read
        self.guarded: dict[Level, str] = {}  # where that is asked, of this window and those around it
        self.asked: frozenset[str] = frozenset()  # what the answer depends on, where it is the same for all elements of a vector
        self.one_by_one = False  # inside a window that has another answer for each of them
        self.run: Run | None = None
        self.run_conditions: list[str] = []  # for vectors in runs
        self.results: dict[str, str] = {}  # reductions of this kernel: primitive -> text of its value in a row
        self.index = "Index"  # the type that what is picked is given in
        self.inside = False  # a template, whose own names do not end with an underscore: what is named here does
        self.divisors: dict[Dim, str] | None = None  # what is divided by with an inverse of the launcher's: parameters
        self.counting: Counting | None = None  # offsets are given in it where they can be

    # ---- sizes and offsets

    def size(self, size: Dim) -> str:
        """A size in the kernel's index type: a number, a symbol, or a named constant at the top of the kernel."""
        size = sizes.tidy(size)
        if isinstance(size, int):
            return str(size)
        self.symbols |= size.free_symbols
        if size.is_Symbol:
            return str(size)
        if size not in self.named_sizes:
            self.named_sizes[size] = self.fresh(self.describe(size))
        return self.named_sizes[size]

    def divisor(self, size: Dim) -> str:
        """A size that many numbers are divided by: one that is known takes its place in the instructions."""
        size = sizes.tidy(size)
        if self.divisors is None or isinstance(size, int):
            return self.size(size)
        if size not in self.divisors:
            name = str(size) if size.is_Symbol else self.named_sizes.get(size) or self.describe(size)
            self.divisors[size] = self.fresh(f"by_{name}")
        return self.divisors[size]

    def describe(self, size: sympy.Expr) -> str:
        """By a tensor that it is a size or a stride of; one that the kernel reads, if there is one."""
        read = (word for name in sorted(self.loads) for word, known in sizes_of(self.prims[name]) if sizes.same(known, size))
        return next(read, "") or self.known.words.get(size, "extent")

    def declare_sizes(self) -> list[str]:
        return [f"const Index {name} = {sizes.c_text(sizes.factored(size))};" for size, name in self.named_sizes.items()]

    def offset(self, at: Coordinate, without_lane: bool = False) -> str:
        at, parts = at.plain() if self.counting is None else at.plain().counted(self.counting), []
        for axis, factor in at.terms.items():
            if (without_lane and axis.text == LANE) or axis.text in self.zero:
                continue
            self.symbols |= axis.symbols
            term = self.term(axis)
            if sizes.same(factor, -1):
                parts.append(f"-{term}")
            else:
                parts.append(
                    term
                    if sizes.is_one(factor)
                    else f"{term} * {self.size(factor)}"
                    if not negative(factor)
                    else f"-{term} * {self.size(sizes.tidy(-factor))}"
                )
        if not sizes.same(at.offset, 0) or not parts:
            parts.append(self.size(at.offset) if not negative(at.offset) else f"-{self.size(sizes.tidy(-at.offset))}")
        return " + ".join(parts).replace("+ -", "- ")

    def term(self, axis: Axis) -> str:
        """A coordinate as text; with what was picked for it in the place of what stands for that."""
        text = axis.text
        for pick in sorted(axis.picks, key=lambda pick: -len(pick.text)):  # one may be named in another
            if pick.text in text:
                text = text.replace(pick.text, f"({self.index}){paren(self.value(pick.name, pick.at).text)}")
        return self.named(axis, text) if axis.label and not axis.is_picked else text

    def named(self, axis: Axis, text: str) -> str:
        """A coordinate that takes computing, as a constant at its level."""
        level = self.level(axis.depends)
        if (level, text) not in self.said:
            kind = "Index" if level.array else "auto"
            found = self.put(level, self.fresh(axis.label), [], text, torch.int64, axis.depends, kind)
            self.said[level, text] = found
        return self.said[level, text].text

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
        if prim.name in self.results:
            return self.declare(prim, self.results[prim.name], self.row_depends(at))
        if prim.name in self.loads or isinstance(op, Load):
            return self.load(prim, at)
        if isinstance(op, (View, Picked)):
            source, where = inputs_at(self.prims, prim, at)[0]
            return self.value(source, where)
        if isinstance(op, Size):
            text = self.size(op.size)
            return Value(
                text if prim.dtype is torch.int64 else f"({arithmetic_type(prim.dtype)}){paren(text)}",
                prim.dtype,
                frozenset(),
            )
        if isinstance(op, Iota):
            here = at[op.dim]
            return Value(paren(self.offset(here)), prim.dtype, here.depends)
        if isinstance(op, Window):
            return self.window(prim, op, at)
        assert isinstance(op, Pointwise), f"{prim.name}: {op} is not a value of this kernel"
        inputs = [self.value(name, where) for name, where in inputs_at(self.prims, prim, at)]
        texts = [
            converted(v, op.compute, keep=isinstance(self.prims[n].op, (Iota, Size)) or is_asked(i, v, op))
            for i, (v, n) in enumerate(zip(inputs, prim.inputs, strict=True))
        ]
        depends = frozenset().union(*(v.depends for v in inputs))
        return self.declare(prim, to_cpp(op.expression, texts, op.compute is torch.float64), depends)

    def row_depends(self, at: Coordinates) -> frozenset[str]:
        return frozenset().union(*(c.depends for c in at))

    def declare(self, prim: Prim, text: str, depends: frozenset[str]) -> Value:
        """A named constant at its level; an array over the lanes where the level holds lanes of a row."""
        level = self.level(depends)
        known = self.said.get((level, prim.dtype, text))
        if known is not None:
            return known
        found = self.put(level, self.fresh(prim.name), [], text, prim.dtype, depends)
        self.said[level, prim.dtype, text] = found
        return found

    def load(self, prim: Prim, at: Coordinates) -> Value:
        if self.run is not None and in_a_run(prim, at, self.run.tap):
            return self.load_run(prim, at, self.run)
        offset, anywhere = prim.offset(at), self.is_there_anyway(prim, at)
        offset = self.settled(offset) if anywhere else offset
        kind = arithmetic_type(prim.dtype)
        lane_factor = next((f for a, f in offset.terms.items() if a.text == LANE), 0)
        opaque_lane = any(LANE in a.depends and a.text != LANE for a in offset.terms)
        depends = offset.depends
        opaque_tap = any(map(TAP.fullmatch, frozenset().union(*(a.axes for a in offset.terms))))
        together = self.vector and not (opaque_lane or opaque_tap or (self.one_by_one and not anywhere) or prim.step)
        if together and sizes.is_one(lane_factor):  # windows are of one tap here: it is 0
            written = Coordinate({a: f for a, f in offset.terms.items() if not TAP.fullmatch(a.text)}, offset.offset)
            guard = self.guard if len(written.terms) < len(offset.terms) else ""  # what is read at every tap is there anyway
            outer = self.level((written.depends - {LANE}) | (self.asked if guard else frozenset()))
            source = f"&{pointer(prim.name)}[{self.offset(written, without_lane=True)}]"
            asked = f"if ({guard}) " if guard else ""
            if (outer, asked, source) not in self.said:
                name = self.fresh(prim.name)
                outer.lines += [f"{kind} {name}[VEC];", f"{asked}load({source}, {name});"]
                self.vector_loads.append((prim.name, written))
                self.said[outer, asked, source] = Value(f"{name}[{LANE}]", prim.dtype, depends if guard else written.depends)
            return self.said[outer, asked, source]
        where = self.offset(offset)
        if prim.step:
            self.symbols.add(sympy.Symbol(prim.step))
            where = f"{paren(where)} * {prim.step}"
        element = f"{pointer(prim.name)}[{where}]"
        text = element if C_TYPES[prim.dtype] == kind else f"to_arithmetic<{kind}>({element})"
        level = self.level(depends)
        there = self.exists() if level.array else self.guarded.get(level, "")
        if there:
            text = f"{there} ? {text} : 1"
        return self.declare(prim, text, depends)

    def is_there_anyway(self, prim: Prim, at: Coordinates) -> bool:
        """In a value put at some place: what lies inside its tensor wherever the place is (windows cut out and put back) is read there
        without asking, once for all that want it."""
        placed = [(c, size) for c, size in zip(at, prim.shape, strict=True) if c.depends & self.zero]
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
        plain = at.plain()
        return Coordinate({axis: factor for axis, factor in plain.terms.items() if axis.text not in self.zero}, plain.offset)

    def load_run(self, prim: Prim, at: Coordinates, run: Run) -> Value:
        """All that a thread takes of a row, at once; of a row that does not count, something else."""
        assert self.rows is not None and self.rows.columns is not None
        row, first, size = prim.offset((*at[:-1], Coordinate())), without(at[-1], run.tap), prim.shape[-1]
        ahead, vector = lead(first, self.rows.columns), self.rows.columns.vector
        start = f"{self.guard} ? {self.offset(row)} : 0" if self.guard else self.offset(row)
        how = f"VEC, {ahead}" if ahead is not None else "1, 0"
        text = f"load_run<{how}>(&{pointer(prim.name)}[{start}], {self.offset(first)}, {self.size(size)}"
        if (run.level, text) not in self.said:
            name = self.fresh(prim.name)
            run.level.lines += [f"{arithmetic_type(prim.dtype)} {name}[{run.count}];", f"{text}, {name});"]
            self.said[run.level, text] = Value(f"{name}[{run.tap}]", prim.dtype, prim.offset(at).depends)
            if ahead is not None:
                others = [n for n in (*row.terms.values(), row.offset) if sizes.divide(n, size) is None]
                whole = [n for n in (size, *others) if sizes.divide(n, vector) is None]
                self.run_conditions.append(f"aligned({prim.name}, {min(16, vector * prim.dtype.itemsize)})")
                self.run_conditions += [f"{paren(sizes.c_text(sizes.factored(n)))} % {vector} == 0" for n in whole]
        return self.said[run.level, text]

    # ---- windows

    def window(self, prim: Prim, op: Window, at: Coordinates) -> Value:
        """The taps of a pool, as loops inside the evaluation of one element, or of a thread's rows together."""
        depends = self.row_depends(at)
        level, rank = self.level(depends), len(op.kernel)
        largest = op.kind == "largest"
        single = all(size == 1 for size in op.kernel) and not largest  # no pool: a value put at some place
        rows = self.rows if level.array else None
        shared = rows.shared(op, at) if rows is not None and not single else None
        together = shared.variables if shared is not None else []
        read, first = (shared.common, shared.first) if shared is not None else (op, at)
        taps = tap_names(at, rank)
        line = Level((level.axes - set(together)) | set(taps[:-1]))  # a row of the window,
        inner = Level(line.axes | set(taps))  # and what is done at each of its taps
        run = Run(taps[-1], read.kernel[-1], line) if COLUMN in together else None
        source, where = prim.inputs[0], window_taps(read, first)
        extents = self.prims[source].shape[-rank:]
        column, inside = None, ""
        if op.clipped and run is not None:
            inside = self.in_input(read, where[-1], extents[-1], taps[-1])
        elif op.clipped and not single:
            column = self.column(read, where[-1], extents[-1], taps[-1])
        if column is not None:
            where, inside = (*where[:-1], column.at), column.inside

        # A window that depends on no tap of those around it stands in front of them: it knows nothing of them, whose names it may use.
        state = self.levels, self.zero, self.guard, self.guarded, self.run, self.asked, self.one_by_one
        if level not in self.guarded:
            self.zero, self.guarded, self.asked, self.one_by_one = frozenset(), {}, frozenset(), False
        self.levels = self.levels[: next(i for i, other in enumerate(self.levels) if other is level) + 1]
        self.zero |= frozenset(taps) if single else frozenset()
        there = self.row_exists() if rows is not None else ""
        clipped = [i for i in range(rank) if op.clipped and ((column is None and run is None) or i < rank - 1)]
        whole = [test for i in clipped for test in self.all_within(where[i - rank], extents[i], taps[i], read.kernel[i])]
        below = next((along for along in shared.along if along.variable == ROW), None) if shared is not None else None
        tests = [test for i in clipped for test in self.within(where[i - rank], extents[i])]
        if below is not None and there and below.dim not in clipped:
            tests.append(self.of_some_row(below, op, taps[below.dim]))
        if tests and not single:
            tests = [f"holds({' & '.join(tests)})"]
        if below is None and there:
            tests.append(there)
        if self.guarded.get(level):
            tests.append(self.guarded[level])  # of the window around this one

        name, kind = self.fresh(prim.name), "Largest<Index>" if largest else arithmetic_type(prim.dtype)
        nothing = "0.0f" if op.kind == "sum" else "-INFINITY"
        empty = f"{{{nothing}, {self.first_inside(op, at, extents)}}}" if largest else nothing
        total = f"{name}{self.place}" if shared is not None else name
        aside = bool(tests) and single and self.cost(source) > ANYWAY
        known = line if run is not None else inner
        asked = frozenset[str]()
        if self.vector and tests:  # of all elements of a vector at once, where they have the same answer
            asked = frozenset().union(*(where[i - rank].depends for i in clipped if self.within(where[i - rank], extents[i])))
            asked = (asked - set(taps) - self.zero) | self.asked
            alike = LANE not in asked and not any(re.search(rf"\b{TAP.pattern}\b", test) for test in tests) and not self.one_by_one
            known, asked = (self.level(asked), asked) if alike else (known, frozenset({LANE}))
        guard = self.fresh("counts") if tests and (not aside or known is not inner) else ""
        known.lines += [f"const bool {guard} = {' & '.join(tests)};"] if guard else []  # with &&, ptxas branches around each load
        self.guard, self.guarded, self.run = guard, {**self.guarded, line: guard, inner: guard}, run
        self.asked, self.one_by_one = asked - {LANE}, self.one_by_one or LANE in asked
        self.levels = [*self.levels, *([line, inner] if run is not None else [inner])]
        tap = self.value(source, inside_of(op, where, self.prims[source].shape) if single else where)
        position = self.offset(linear(where[-rank:], extents)) if largest else ""
        self.levels, self.zero, self.guard, self.guarded, self.run, self.asked, self.one_by_one = state
        if single:  # a computation of where to read may still name its taps
            named = [tap_name for tap_name in taps if any(re.search(rf"\b{tap_name}\b", text) for text in (*inner.lines, tap.text))]
            inner.lines[:0] = [f"constexpr int {tap_name} = 0;" for tap_name in named]
        by_column = run is not None and op.kind == "max" and bool(inside)  # whether it lies in the input is asked once a column
        counts = " && ".join(text for text in (guard, "" if by_column else inside) if text)
        taken = f"{counts} ? {tap.text} : {nothing}" if counts else tap.text
        if single and not aside:
            return self.put(level, name, inner.lines, taken, prim.dtype, depends)
        joined = f"larger({taken}, {total})" if op.kind == "max" else taken if single else f"{total} + {paren(taken)}"
        block = [f"{total}.add({taken}, {position});" if largest else f"{total} = {joined};"]
        before: list[str] = []
        after: list[str] = []
        if by_column and shared is not None:
            before, block, after = self.by_column(shared, name, taken, inside, taps)
        elif shared is not None:
            block = self.each_lane([f"if ({shared.takes(taps)}) {block[0]}"], together)
        block = [*inner.lines, *block]
        if aside:
            block = [f"if ({guard or ' && '.join(tests)}) {{", *indent(block), "}"]
        else:
            for tap_name, count in reversed(list(zip(taps, read.kernel, strict=True))):
                head = f"for (int {tap_name} = 0; {tap_name} < {count}; ++{tap_name}) {{"
                block = [*(line.lines if tap_name == taps[-1] else []), "#pragma unroll", head, *indent(block), "}"]
        block = [*before, *block, *after]
        if rows is not None:
            self.whole += [test for test in whole if test not in self.whole and not single]
        elif tests and not single:
            block = either_way(block, whole, self.fresh(f"{prim.name}_taps"))
        if shared is not None:
            each = [variable for variable, _ in self.counted if variable not in together]
            block = self.each_lane(block, each) if each else block
            level.lines += [f"{kind} {name}{self.places};", *self.each_lane([f"{total} = {empty};"]), *block]
            return Value(total, prim.dtype, depends)
        if level.array:
            return self.put(level, f"{name}s", [f"{kind} {name} = {empty};", *block], name, prim.dtype, depends, kind)
        level.lines += [f"{kind} {name} = {empty};", *block]
        return Value(name, prim.dtype, depends)

    def first_inside(self, op: Window, at: Coordinates, extents: tuple[Dim, ...]) -> str:
        """Where a window's first tap in the input lies: its largest, where all are -INFINITY."""
        rank, parts = len(op.kernel), list[str]()
        for i, (here, stride) in enumerate(zip(at[-rank:], contiguous(extents), strict=True)):
            start = self.offset(here * op.stride[i] + -op.padding[i])
            start = f"first_tap({start}, {op.dilation[i]})" if op.padding[i] != 0 else paren(start)
            parts.append(start if sizes.is_one(stride) else f"{start} * {self.size(stride)}")
        return " + ".join(parts)

    def by_column(
        self, shared: Shared, name: str, taken: str, inside: str, taps: list[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Maxima of columns first, in statements before, inside and after a window's loops: then those in the input are taken."""
        maxima, tap, count = self.fresh(f"{name}_columns"), taps[-1], shared.common.kernel[-1]
        rows = [along for along in shared.along if along.variable == ROW]
        each = [along.variable for along in rows]
        place = "".join(f"[{variable}]" for variable in each) + f"[{tap}]"
        places = "".join(f"[{n}]" for variable, n in self.counted if variable in each) + f"[{count}]"
        loop = ["#pragma unroll", f"for (int {tap} = 0; {tap} < {count}; ++{tap}) {{"]

        def of_each(statement: str, along: list[Along]) -> list[str]:
            tests = " && ".join(shared.takes_along(one, taps[one.dim]) for one in along)
            return [f"if ({tests}) {statement}" if tests else statement]

        before = [f"float {maxima}{places};", *loop, *indent(self.each_lane([f"{maxima}{place} = -INFINITY;"], each)), "}"]
        block = self.each_lane(of_each(f"{maxima}{place} = larger({taken}, {maxima}{place});", rows), each)
        total = f"{name}{self.place}"
        joined = f"{total} = larger({inside} ? {maxima}{place} : -INFINITY, {total});"
        beside = [along for along in shared.along if along.variable == COLUMN]
        after = [*loop, *indent(self.each_lane(of_each(joined, beside), shared.variables)), "}"]
        return before, block, after

    def put(
        self, level: Level, name: str, lines: list[str], text: str, dtype: torch.dtype, depends: frozenset[str], kind: str = ""
    ) -> Value:
        """What statements come to, as a constant, or as an array where the level has several elements."""
        kind = kind or arithmetic_type(dtype)
        if not level.array and any(line.startswith("constexpr ") for line in lines):  # names that others may use too
            level.lines += [f"{kind} {name};", "{", *indent([*lines, f"{name} = {text};"]), "}"]
            return Value(name, dtype, depends)
        if not level.array:
            level.lines += [*lines, f"const {kind} {name} = {text};"]
            return Value(name, dtype, depends)
        level.lines += [f"{kind} {name}{self.places};", *self.each_lane([*lines, f"{name}{self.place} = {text};"])]
        return Value(f"{name}{self.place}", dtype, depends)

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

    def row_exists(self) -> str:
        """A test that a thread's row lies in its loop; nothing where that is sure."""
        if self.rows is None or not self.rows.ragged:
            return ""
        return f"holds({self.rows.along} + {ROW} < {self.size(self.rows.size)})"

    def of_some_row(self, below: Along, op: Window, tap: str) -> str:
        """A test that a common tap is one of a row that is there: a row that is not has taps beyond the input.

        The end is the loop's, not the input's: a loop may stand for several dimensions, rows of all images.
        """
        assert self.rows is not None
        here = Coordinate({Axis(self.rows.along, self.rows.size): below.step, Axis(tap, op.kernel[below.dim]): 1})
        end = (self.rows.size - 1) * below.step + (op.kernel[below.dim] - 1) * op.dilation[below.dim] + 1
        return f"{paren(self.offset(here))} < {self.size(end)}"

    def exists(self) -> str:
        """A test that an element of a thread lies in its loops; nothing where that is sure."""
        columns = self.rows.columns if self.rows is not None else None
        tests = [self.row_exists()]
        if columns is not None and sizes.divide(columns.size, columns.count) is None:
            tests.append(f"{columns.along} + {COLUMN} < {self.size(columns.size)}")  # a warp goes along columns: no `holds`
        return " && ".join(filter(None, tests))

    def each_lane(self, lines: list[str], variables: list[str] | None = None) -> list[str]:
        for variable, count in reversed(self.counted):
            if variables is None or variable in variables:
                head = f"for (int {variable} = 0; {variable} < {count}; ++{variable})"
                body = [f"{head} {lines[0]}"] if len(lines) == 1 else [f"{head} {{", *indent(lines), "}"]
                lines = ["#pragma unroll", *body]
        return lines

    def in_input(self, op: Window, at: Coordinate, size: Dim, tap: str) -> str:
        """The text that says whether a column lies in the input, found out once for all rows of a window."""
        level, taps, tests = self.level(at.depends - {tap}), op.kernel[-1], self.within(at, size)
        key = (level, taps, *tests)
        if key not in self.columns:
            name = self.fresh("in_input")
            self.columns[key] = "", name
            known = f"for (int {tap} = 0; {tap} < {taps}; ++{tap}) {name}[{tap}] = {' && '.join(tests) or 'true'};"
            level.lines += [f"bool {name}[{taps}];", "#pragma unroll", known]
        return f"{self.columns[key][1]}[{tap}]"

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
            level.lines += [
                f"Index {name}[{taps}];",
                f"bool {inside}[{taps}];",
                "#pragma unroll",
                f"for (int {tap} = 0; {tap} < {taps}; ++{tap}) {{",
                f"  {inside}[{tap}] = {' && '.join(tests)};",
                f"  {name}[{tap}] = clamped<Index>({self.offset(at)}, {self.size(size)});",
                "}",
            ]
        name, inside = self.columns[key]
        here = Axis(f"{name}[{tap}]", size, at.depends, at.symbols)
        return Column(Coordinate.of(here), f"{inside}[{tap}]")

    def within(self, at: Coordinate, size: Dim) -> list[str]:
        """Tests that a coordinate lies in a dimension; none that is sure to hold."""
        return self.between(at, at, size)

    def all_within(self, at: Coordinate, size: Dim, tap: str, taps: int) -> list[str]:
        """Tests that it does for every tap."""
        along = next(((axis, factor) for axis, factor in at.terms.items() if axis.text == tap), None)
        if along is None:
            return self.within(at, size)
        others = Coordinate({axis: factor for axis, factor in at.terms.items() if axis != along[0]}, at.offset)
        return self.between(others, others + sizes.tidy(along[1] * (taps - 1)), size)

    def between(self, low: Coordinate, high: Coordinate, size: Dim) -> list[str]:
        above, below = sure(first_of_vector(low), first_of_vector(high), size)
        if self.zero:  # what is put at some place may be a part of something else, cut out there
            above, below = above or self.lies_inside(low, None), below or self.lies_inside(high, size)
        tests = [] if above else [f"{paren(self.offset(low))} >= 0"]
        return tests if below else [*tests, f"{paren(self.offset(high))} < {self.size(size)}"]


def first_of_vector(at: Coordinate) -> Coordinate:
    """Of a vector's elements the first: all of them lie in a loop's dimension where it does, vectors being whole."""
    lane = next((axis for axis in at.terms if axis.text == LANE), None)
    beside = lane is not None and any(a.text.startswith("i") and sizes.same(f, at.terms[lane]) for a, f in at.terms.items())
    return without(at, LANE) if beside else at


def either_way(lines: list[str], whole: list[str], name: str) -> list[str]:
    """Statements that ask `holds` at every step, or not at all where `whole` says that every answer is yes: always, if it is empty."""
    if not any("holds(" in line for line in lines):
        return lines
    calls = [f"{name}([](bool) {{ return true; }});"]
    if whole:
        calls = [f"if ({' && '.join(whole)}) {calls[0]}", f"else {name}([](bool test) {{ return test; }});  // at an edge"]
    return [f"auto {name} = [&](auto holds) {{", *indent(lines), "};", *calls]


def negative(size: Dim) -> bool:
    """Written with a minus in front."""
    size = sizes.tidy(size)
    if isinstance(size, int):
        return size < 0
    return not size.is_Symbol and sizes.nonnegative(sizes.tidy(-size)) and not sizes.nonnegative(size)


def converted(value: Value, dtype: torch.dtype, keep: bool = False) -> str:
    """The value in the type that is computed in; `keep` leaves a position as the index it is."""
    kind = arithmetic_type(dtype)
    return value.text if keep or arithmetic_type(value.dtype) == kind else f"({kind}){paren(value.text)}"


def is_asked(position: int, value: Value, op: Pointwise) -> bool:
    """A truth that the expression chooses by, and does not compute with."""
    chooses = isinstance(op.expression, Select) and op.expression.test == Arg(position)
    return value.dtype is torch.bool and chooses and uses(op.expression, position) == 1


def converted_to(value: Value, prim: Prim) -> str:
    return converted(value, prim.dtype)


def paren(text: str) -> str:
    return text if text.replace("[", "").replace("]", "").isidentifier() or text.isdigit() else f"({text})"


def pointer(name: str) -> str:
    return f"{name}_ptr"


def indent(lines: Iterable[str], by: int = 2) -> list[str]:
    return [line if line.startswith("#pragma") else " " * by + line for line in lines]
