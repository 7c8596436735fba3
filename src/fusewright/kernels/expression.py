"""Turns primitives into C++ statements, each at the outermost loop level where all it depends on is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import sympy
import torch

from .. import sizes
from ..access import inputs_at, tuple_key
from ..graph import Dim
from ..index import Coordinate
from ..prims import C_TYPES, Coordinates, Iota, Load, Pointwise, Prim, Size, View, Window, arithmetic_type

LANE = "v"  # the variable that counts neighbouring elements of one vector


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
class KnownSizes:
    """Of all primitives of a plan: the first word for each size and stride, and the symbols in them."""

    words: dict[Dim, str]
    symbols: frozenset[str]


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
    found = KnownSizes(words, frozenset(str(symbol) for size in extents for symbol in size.free_symbols))
    _last[:] = [(prims, len(prims), found)]
    return found


def sizes_of(prim: Prim) -> Iterator[tuple[str, Dim]]:
    for d, (extent, stride) in enumerate(zip(prim.shape, prim.strides, strict=True)):
        yield f"{prim.name}_size{d}", extent
        yield f"{prim.name}_stride{d}", stride


class Evaluator:
    """Writes the statements of one kernel. `levels` runs from the outermost to the innermost."""

    def __init__(self, prims: dict[str, Prim], loads: Iterable[str], levels: list[Level], vector: bool):
        self.prims, self.loads, self.levels, self.vector = prims, set(loads), levels, vector
        self.memo: dict[object, tuple[Value, Level]] = {}
        self.said: dict[object, Value] = {}  # what was written at a level: the same by another way of counting is the same
        self.known = known_sizes(prims)
        self.names: set[str] = set(self.known.symbols)
        self.symbols: set[sympy.Symbol] = set()
        self.named_sizes: dict[sympy.Expr, str] = {}
        self.vector_loads: list[tuple[str, Coordinate]] = []
        self.zero: frozenset[str] = frozenset()  # variables that are 0 here, and not written
        self.results: dict[str, str] = {}  # reductions of this kernel: primitive -> text of its value in a row

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

    def describe(self, size: sympy.Expr) -> str:
        """By a tensor that it is a size or a stride of; one that the kernel reads, if there is one."""
        read = (word for name in sorted(self.loads) for word, known in sizes_of(self.prims[name]) if sizes.same(known, size))
        return next(read, "") or self.known.words.get(size, "extent")

    def declare_sizes(self) -> list[str]:
        return [f"const Index {name} = {sizes.c_text(sizes.factored(size))};" for size, name in self.named_sizes.items()]

    def offset(self, at: Coordinate, without_lane: bool = False) -> str:
        parts = []
        for axis, factor in at.terms.items():
            if (without_lane and axis.text == LANE) or axis.text in self.zero:
                continue
            self.symbols |= axis.symbols
            term = axis.text
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

    # ---- names and levels

    def fresh(self, base: str) -> str:
        name, count = base, 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
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
        if isinstance(op, View):
            ((source, where),) = inputs_at(self.prims, prim, at)
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
            converted(v, op.compute, keep=isinstance(self.prims[n].op, (Iota, Size)))
            for v, n in zip(inputs, prim.inputs, strict=True)
        ]
        depends = frozenset().union(*(v.depends for v in inputs))
        return self.declare(prim, op.expression.format(*texts), depends)

    def row_depends(self, at: Coordinates) -> frozenset[str]:
        return frozenset().union(*(c.depends for c in at))

    def declare(self, prim: Prim, text: str, depends: frozenset[str]) -> Value:
        """A named constant at its level; an array over the lanes where the level holds lanes of a row."""
        level, kind = self.level(depends), arithmetic_type(prim.dtype)
        known = self.said.get((level, prim.dtype, text))
        if known is not None:
            return known
        name = self.fresh(prim.name)
        if level.array:
            level.lines += [
                f"{kind} {name}[VEC];",
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {name}[{LANE}] = {text};",
            ]
        else:
            level.lines.append(f"const {kind} {name} = {text};")
        found = Value(f"{name}[{LANE}]" if level.array else name, prim.dtype, depends)
        self.said[level, prim.dtype, text] = found
        return found

    def load(self, prim: Prim, at: Coordinates) -> Value:
        offset = prim.offset(at)
        kind = arithmetic_type(prim.dtype)
        lane_factor = next((f for a, f in offset.terms.items() if a.text == LANE), 0)
        opaque_lane = any(LANE in a.depends and a.text != LANE for a in offset.terms)
        depends = offset.depends
        if self.vector and sizes.is_one(lane_factor) and not opaque_lane and not prim.step:
            outer = self.level(depends - {LANE})
            source = f"&{pointer(prim.name)}[{self.offset(offset, without_lane=True)}]"
            if (outer, source) not in self.said:
                name = self.fresh(prim.name)
                outer.lines += [f"{kind} {name}[VEC];", f"load({source}, {name});"]
                self.vector_loads.append((prim.name, offset))
                self.said[outer, source] = Value(f"{name}[{LANE}]", prim.dtype, depends)
            return self.said[outer, source]
        where = self.offset(offset)
        if prim.step:
            self.symbols.add(sympy.Symbol(prim.step))
            where = f"{paren(where)} * {prim.step}"
        element = f"{pointer(prim.name)}[{where}]"
        text = element if C_TYPES[prim.dtype] == kind else f"to_arithmetic<{kind}>({element})"
        return self.declare(prim, text, depends)

    def window(self, prim: Prim, op: Window, at: Coordinates) -> Value:
        """The taps of a pool, as loops inside one element's evaluation."""
        ((source, where),) = inputs_at(self.prims, prim, at)
        rank = len(op.kernel)
        taps = [f"k{i}" for i in range(rank)]
        depends = self.row_depends(at)
        level = self.level(depends)
        inner = Level(level.axes | set(taps))
        single = all(size == 1 for size in op.kernel)  # no pool: a value put at some place
        outside, self.zero = self.zero, frozenset(taps) if single else frozenset()
        self.levels.append(inner)
        tap = self.value(source, where)
        self.levels.remove(inner)
        name, kind = self.fresh(prim.name), arithmetic_type(prim.dtype)
        combined = f"larger({tap.text}, {name})" if op.kind == "max" else tap.text if single else f"{name} + {tap.text}"
        block = [*inner.lines, f"{name} = {combined};"]
        shape = self.prims[source].shape
        tests = [test for c, s in zip(where[-rank:], shape[-rank:], strict=True) for test in self.within(c, s)]
        clipped = op.clipped and bool(tests)
        # Of volumes, whose rows are short, most warps have elements at an edge and would go both ways: 0.20 ms instead of 0.16 (H200).
        inside = self.fresh("inside") if clipped and not single and rank < 3 else ""
        if clipped:
            test = f"{inside}({', '.join(taps)})" if inside else " && ".join(tests)
            block = [f"if ({test}) {{", *indent(block), "}"]
        for i in reversed(range(rank)):
            if single and not any(re.search(rf"\b{taps[i]}\b", line) for line in block):
                continue
            block = [
                "#pragma unroll",
                f"for (int {taps[i]} = 0; {taps[i]} < {op.kernel[i]}; ++{taps[i]}) {{",
                *indent(block),
                "}",
            ]
        if inside:
            block = self.by_taps(prim, op, block, tests, taps, inside)
        self.zero = outside
        start = "-INFINITY" if op.kind == "max" else "0.0f"
        if level.array:
            level.lines += [
                f"{kind} {name}s[VEC];",
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {{",
            ]
            level.lines += [*indent([f"{kind} {name} = {start};", *block, f"{name}s[{LANE}] = {name};"]), "}"]
            return Value(f"{name}s[{LANE}]", prim.dtype, depends)
        level.lines += [f"{kind} {name} = {start};", *block]
        return Value(name, prim.dtype, depends)

    def by_taps(self, prim: Prim, op: Window, loops: list[str], tests: list[str], taps: list[str], inside: str) -> list[str]:
        """The loops over a window's taps, asked of each only where the window does not lie inside as a whole."""
        first = [re.sub(r"\bk\d\b", "0", test) for test in tests if test.endswith(">= 0")]
        last = [re.sub(r"\bk(\d)\b", lambda m: str(op.kernel[int(m[1])] - 1), test) for test in tests if not test.endswith(">= 0")]
        name, ints = self.fresh(f"{prim.name}_taps"), ", ".join(["int"] * len(taps))
        each = ", ".join(f"int {tap}" for tap in taps)
        return [
            f"auto {name} = [&](auto {inside}) {{",
            *indent(loops),
            "};",
            f"if ({' && '.join([*first, *last])}) {name}([]({ints}) {{ return true; }});  // the whole window",
            f"else {name}([&]({each}) {{ return {' && '.join(tests)}; }});",
        ]

    def within(self, at: Coordinate, size: Dim) -> list[str]:
        """Tests that a coordinate lies in a dimension; none that is sure to hold."""
        factors = [*at.terms.values(), at.offset]
        above = all(map(sizes.nonnegative, factors))
        below = above and sizes.nonnegative(sizes.tidy(size - 1 - at.largest()))
        tests = [] if above else [f"{paren(self.offset(at))} >= 0"]
        return tests if below else [*tests, f"{paren(self.offset(at))} < {self.size(size)}"]


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


def converted_to(value: Value, prim: Prim) -> str:
    return converted(value, prim.dtype)


def paren(text: str) -> str:
    return text if text.replace("[", "").replace("]", "").isidentifier() or text.isdigit() else f"({text})"


def pointer(name: str) -> str:
    return f"{name}_ptr"


def indent(lines: Iterable[str], by: int = 2) -> list[str]:
    return [line if line.startswith("#pragma") else " " * by + line for line in lines]
