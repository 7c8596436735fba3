"""What a kernel's statements are made of and stand in: loop levels, names, sizes and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import sympy
import torch

from ...ir import sizes
from ...ir.expr import (
    Cast,
    Expr,
    Kind,
    Name,
    element,
    grouped,
    signed_sum,
    substituted,
    walk,
)
from ...ir.extent import extent
from ...ir.graph import Dim
from ...ir.index import AtPlace, Axis, Coordinate, Counting
from ...ir.prims import Coordinates, Prim, arithmetic_type
from ...ir.stmt import (
    Assign,
    Declare,
    Do,
    If,
    Statement,
    array,
    block,
    const,
    counted,
)
from .rows import COLUMN, ROW, Rows

VEC = Name("VEC")  # how many a vector has
LANE = "v"  # the variable that counts neighbouring elements of one vector


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


class Scope:
    """The levels of one kernel and what is named in them."""

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

    def value(self, name: str, at: Coordinates) -> Value:
        """A primitive's element, written where its operands are known: `Evaluator` says how."""
        raise NotImplementedError

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

    def row_depends(self, at: Coordinates) -> frozenset[str]:
        return frozenset().union(*(c.depends for c in at))

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

    def each_lane(self, body: list[Statement], variables: list[str] | None = None) -> list[Statement]:
        for variable, count in reversed(self.counted):
            if variables is None or variable in variables:
                body = [counted(variable, Name(count), body[0] if len(body) == 1 and is_one_line(body[0]) else body)]
        return body


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


def pointer(name: str) -> str:
    return f"{name}_ptr"
