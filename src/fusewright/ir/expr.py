"""Expressions as data: what one element of a value is computed by. Every pass reads the tree; text is made of it last, and once.

An operator's meaning is a Python function on expressions, written with Python's own operators:

    lambda x: x * fn.smaller(fn.larger(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)

Whole numbers are C++'s int, floats are float, or double where the operator computes in double; `number` has the type that it is told.
`==` compares trees; the C++ comparison is `equal`. To ask something new of expressions, write one function over `walk`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Scalar = bool | int | float


class Expr:
    """One value. Subclasses say how it is made; their operands are `parts`."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: Operand) -> Expr:
        return Binary("+", self, as_expr(other))

    def __radd__(self, other: Operand) -> Expr:
        return Binary("+", as_expr(other), self)

    def __sub__(self, other: Operand) -> Expr:
        return Binary("-", self, as_expr(other))

    def __rsub__(self, other: Operand) -> Expr:
        return Binary("-", as_expr(other), self)

    def __mul__(self, other: Operand) -> Expr:
        return Binary("*", self, as_expr(other))

    def __rmul__(self, other: Operand) -> Expr:
        return Binary("*", as_expr(other), self)

    def __truediv__(self, other: Operand) -> Expr:
        """C++'s quotient: of whole numbers it is whole."""
        return Binary("/", self, as_expr(other))

    def __rtruediv__(self, other: Operand) -> Expr:
        return Binary("/", as_expr(other), self)

    def __mod__(self, other: Operand) -> Expr:
        return Binary("%", self, as_expr(other))

    def __lt__(self, other: Operand) -> Expr:
        return Binary("<", self, as_expr(other))

    def __le__(self, other: Operand) -> Expr:
        return Binary("<=", self, as_expr(other))

    def __gt__(self, other: Operand) -> Expr:
        return Binary(">", self, as_expr(other))

    def __ge__(self, other: Operand) -> Expr:
        return Binary(">=", self, as_expr(other))

    def __and__(self, other: Operand) -> Expr:
        return Binary("&", self, as_expr(other))

    def __or__(self, other: Operand) -> Expr:
        return Binary("|", self, as_expr(other))

    def __xor__(self, other: Operand) -> Expr:
        return Binary("^", self, as_expr(other))

    def __neg__(self) -> Expr:
        return Unary("-", self)

    def __invert__(self) -> Expr:
        return Unary("~", self)


Operand = Expr | Scalar


@dataclass(frozen=True, slots=True)
class Arg(Expr):
    """The operand with this number."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Number(Expr):
    """A constant of a C++ type. A float is a double where the whole is computed in double."""

    value: Scalar
    kind: str

    def __eq__(self, other: object) -> bool:
        """Zeros of either sign differ, a NaN is itself."""
        return isinstance(other, Number) and (self.kind, repr(self.value)) == (other.kind, repr(other.value))

    def __hash__(self) -> int:
        return hash((self.kind, repr(self.value)))

    def __neg__(self) -> Expr:
        return Number(-self.value, self.kind)


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    sign: str
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    sign: str
    left: Expr
    right: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """One of two; only that one is computed."""

    test: Expr
    then: Expr
    otherwise: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.test, self.then, self.otherwise


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    kind: str
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Field(Expr):
    """A part of a value that has several."""

    of: Expr
    name: str

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.of,)


@dataclass(frozen=True, slots=True)
class Function:
    """A device function. What differs by precision is said here, so that no one looks for it in text."""

    name: str  # in float, or for every type
    double: str = ""  # in double, where that is another
    fast: str = ""  # with the special-function unit's own instructions: off by 1e-5 at most

    def __call__(self, *operands: Operand) -> Expr:
        return Call(self, tuple(map(as_expr, operands)))


@dataclass(frozen=True, slots=True)
class Call(Expr):
    function: Function
    operands: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.operands


# ---- making expressions


def as_expr(value: Operand) -> Expr:
    if isinstance(value, Expr):
        return value
    return Number(value, "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float")


def of_operands(meaning: Callable[..., Operand], count: int) -> Expr:
    """What a function of so many operands computes."""
    return as_expr(meaning(*map(Arg, range(count))))


def quotient(a: Operand, b: Operand) -> Expr:
    return as_expr(a) / b


def select(test: Operand, then: Operand, otherwise: Operand) -> Expr:
    return Select(as_expr(test), as_expr(then), as_expr(otherwise))


def first_of(choices: Sequence[tuple[Operand, Operand]], otherwise: Operand) -> Expr:
    """The value of the first test that holds."""
    found = as_expr(otherwise)
    for test, value in reversed(choices):
        found = select(test, value, found)
    return found


def equal(a: Operand, b: Operand) -> Expr:
    return Binary("==", as_expr(a), as_expr(b))


def differs(a: Operand, b: Operand) -> Expr:
    return Binary("!=", as_expr(a), as_expr(b))


def both(*tests: Expr) -> Expr:
    """All of several truths, asked in order; with none, true."""
    return joined("&&", tests) if tests else Number(True, "bool")


def either(*tests: Expr) -> Expr:
    return joined("||", tests)


def negated(test: Expr) -> Expr:
    return Unary("!", test)


def joined(sign: str, operands: Sequence[Expr]) -> Expr:
    found = operands[0]
    for operand in operands[1:]:
        found = Binary(sign, found, operand)
    return found


def total(operands: Sequence[Expr]) -> Expr:
    """Added from the first on."""
    return joined("+", operands)


def product(operands: Sequence[Expr]) -> Expr:
    return joined("*", operands)


# ---- asking expressions


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all that it is made of."""
    yield expr
    for part in expr.parts:
        yield from walk(part)


def is_arithmetic(expr: Expr) -> bool:
    """Sums, differences, products, quotients of operands and finite numbers: NaN comes out wherever one goes in."""
    return all(
        isinstance(part, Arg)
        or (isinstance(part, Number) and math.isfinite(part.value))
        or (isinstance(part, Binary) and part.sign in "+-*/")
        or (isinstance(part, Unary) and part.sign == "-")
        for part in walk(expr)
    )


def uses(expr: Expr, index: int) -> int:
    """How often it reads an operand."""
    return sum(part == Arg(index) for part in walk(expr))


def is_constant(expr: Expr) -> bool:
    return not any(isinstance(part, Arg) for part in walk(expr))


def changed(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The tree with `change` made to each of its parts, innermost first."""
    match expr:
        case Unary(sign, operand):
            expr = Unary(sign, changed(operand, change))
        case Binary(sign, left, right):
            expr = Binary(sign, changed(left, change), changed(right, change))
        case Select(test, then, otherwise):
            expr = Select(changed(test, change), changed(then, change), changed(otherwise, change))
        case Cast(kind, operand):
            expr = Cast(kind, changed(operand, change))
        case Field(of, name):
            expr = Field(changed(of, change), name)
        case Call(function, operands):
            expr = Call(function, tuple(changed(operand, change) for operand in operands))
    return change(expr)


def has_fast_functions(expr: Expr) -> bool:
    return any(isinstance(part, Call) and part.function.fast for part in walk(expr))


# ---- as C++, the last pass

POSTFIX, PREFIX, CHOICE = 100, 90, 10  # how tightly parts hold together
BINDS = {"*": 80, "/": 80, "%": 80, "+": 70, "-": 70, "<": 60, "<=": 60, ">": 60, ">=": 60, "==": 55, "!=": 55, "&": 50, "^": 48, "|": 46}
BINDS |= {"&&": 40, "||": 38}
BITS = ("&", "^", "|")  # whose place among the others nobody remembers


def to_cpp(expr: Expr, operands: Sequence[str] = (), double: bool = False) -> str:
    """The expression as C++ of operands that hold together; in double precision where that is wanted."""
    return Printer(operands, double).text(expr)


@dataclass(frozen=True)
class Printer:
    operands: Sequence[str]
    double: bool

    def text(self, expr: Expr, least: int = 0) -> str:
        """In parentheses where it holds together less tightly than it must."""
        text, binds = self.plain(expr)
        return text if binds >= least else f"({text})"

    def plain(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Arg(index):
                return self.operands[index], POSTFIX
            case Number(value, kind):
                return literal(value, "double" if kind == "float" and self.double else kind), POSTFIX
            case Unary(sign, operand):
                return f"{sign}{self.text(operand, PREFIX if isinstance(operand, Cast) else POSTFIX)}", PREFIX
            case Cast(kind, operand):
                return f"({kind}){self.text(operand, PREFIX)}", PREFIX
            case Field(of, name):
                return f"{self.text(of, POSTFIX)}.{name}", POSTFIX
            case Call(function, operands):
                name = (function.double or function.name) if self.double else function.name
                return f"{name}({', '.join(map(self.text, operands))})", POSTFIX
            case Select(test, then, otherwise):
                last = self.text(otherwise, CHOICE)  # a choice of several reads from left to right
                return f"{self.text(test, CHOICE + 1)} ? {self.text(then, CHOICE + 1)} : {last}", CHOICE
            case Binary(sign, left, right):
                binds = BINDS[sign]
                least = PREFIX if sign in BITS else binds
                return f"{self.text(left, least)} {sign} {self.text(right, max(least, binds + 1))}", binds
        raise AssertionError(f"{expr} is no expression")


def literal(value: Any, kind: str) -> str:
    """A Python number as C++ text of that type."""
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("float", "double"):
        number = float(value) if kind == "double" else as_float(float(value))
        if number != number:
            return "NAN"
        if math.isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        text = f"{number:.9g}" if kind == "float" else repr(number)
        text = text if any(mark in text for mark in ".e") else f"{text}.0"
        text += "f" if kind == "float" else ""
        return f"({text})" if text.startswith("-") else text
    text = f"{value}LL" if kind == "long long" and abs(value) > 2**31 - 1 else str(value)
    return f"({text})" if text.startswith("-") else text


def as_float(value: float) -> float:
    """Rounded to single precision; what is too large for it is infinite."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
