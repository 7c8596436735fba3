"""Turns primitives into statements, each at the outermost loop level where all it depends on is known."""

from __future__ import annotations

import sympy
import torch

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import inputs_at, tuple_key, windows_at
from ...ir.expr import (
    Arg,
    Call,
    Cast,
    Expr,
    Name,
    Number,
    Operand,
    Select,
    Subscript,
    address,
    applied,
    both,
    element,
    equal,
    grouped,
    in_double,
    is_atom,
    select,
    uses,
    with_fast_functions,
)
from ...ir.extent import extent
from ...ir.index import Coordinate, Tap, linear
from ...ir.prims import (
    C_TYPES,
    Coordinates,
    Iota,
    Load,
    Picked,
    Pointwise,
    Prim,
    Size,
    Unpooled,
    View,
    Window,
    arithmetic_type,
)
from ...ir.stmt import (
    Do,
    Statement,
    array,
    counted,
    when,
)
from .rows import in_a_run, lead, without
from .scope import LANE, VEC, Run, Value, pointer
from .windows import Windows


class Evaluator(Windows):
    """Writes the statements of one kernel. `levels` runs from the outermost to the innermost."""

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
        if isinstance(op, Unpooled):
            return self.unpooled(prim, op, at)
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

    def unpooled(self, prim: Prim, op: Unpooled, at: Coordinates) -> Value:
        """What its window has, where this is the place in it that the window says."""
        source, parts = self.prims[prim.inputs[0]], self.parts_of(op, at)
        there = windows_at([window for window, _ in parts], at, source.shape)
        where, value = (self.value(name, there) for name in prim.inputs)
        sizes_of_all = source.shape[-len(parts) :]
        inside = [test for (window, _), size in zip(parts, sizes_of_all, strict=True) for test in self.within(window, size)]
        if inside:
            depends = frozenset().union(*(window.depends for window, _ in parts))
            inside = [self.say("in_window", both(*inside), torch.bool, depends)]
        here = self.offset(linear(tuple(place for _, place in parts), op.stride))
        chosen = both(*inside, equal(where.expr, grouped(here)))
        return self.declare(prim, select(chosen, value.expr, 0.0), self.row_depends(at))

    def parts_of(self, op: Unpooled, at: Coordinates) -> list[tuple[Coordinate, Coordinate]]:
        return op.parts(at)

    def say(self, label: str, expr: Expr, dtype: torch.dtype, depends: frozenset[str]) -> Expr:
        """An expression under a name, once at its level."""
        level = self.level(depends)
        if (level, dtype, expr) not in self.said:
            self.said[level, dtype, expr] = self.put(level, self.fresh(label), [], expr, dtype, depends)
        return self.said[level, dtype, expr].expr

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


def each_lane(body: Statement | list[Statement], count: Operand = VEC) -> Statement:
    """A loop over the elements of a vector; a single statement behind its head, several in braces."""
    return counted(LANE, count, body)


def in_lanes(value: Expr) -> Name | None:
    """The array whose element of a lane this is."""
    match value:
        case Subscript(Name() as of, Name(lane)) if lane == LANE:
            return of
    return None


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
