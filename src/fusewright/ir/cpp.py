"""Expressions as C++: the last pass, and the only one that makes text of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .expr import (
    AllOf,
    Arg,
    Binary,
    Braced,
    Call,
    Cast,
    Expr,
    Field,
    Grouped,
    Kind,
    Method,
    Name,
    Number,
    Pointer,
    Select,
    Subscript,
    Template,
    Unary,
    in_double,
)

POSTFIX, PREFIX, CHOICE = 100, 90, 10  # how tightly parts hold together
BINDS = {"*": 80, "/": 80, "%": 80, "+": 70, "-": 70, "<": 60, "<=": 60, ">": 60, ">=": 60, "==": 55, "!=": 55, "&": 50, "^": 48, "|": 46}
BINDS |= {"&&": 40, "||": 38}
BITS = ("&", "^", "|")  # whose place among the others nobody remembers


class Spelling:
    """How names and whole numbers are written: as they are."""

    def name(self, name: str) -> str:
        return name

    def number(self, text: str, divides: bool) -> str:
        """`divides` where something is divided by it."""
        return text

    def enter(self, part: object) -> None:
        """Told of each statement and function before it is printed."""


AS_IT_IS = Spelling()


def to_cpp(expr: Expr, operands: Sequence[str] = (), double: bool = False) -> str:
    """The expression as C++ of operands that hold together; in double precision where that is wanted."""
    expr = in_double(expr) if double else expr
    text = Printer(operands).text(expr)
    return f"({text})" if isinstance(expr, Grouped) else text


def kind_text(kind: Kind) -> str:
    match kind:
        case Template(name, types):
            return f"{name}<{', '.join(map(kind_text, types))}>"
        case Pointer(to, const):
            return f"{'const ' if const else ''}{kind_text(to)}*"
        case _:
            return kind


@dataclass(frozen=True)
class Printer:
    operands: Sequence[str] = ()
    spelling: Spelling = AS_IT_IS

    def text(self, expr: Expr, least: int = 0, divides: bool = False) -> str:
        """In parentheses where it holds together less tightly than it must."""
        text, binds = self.plain(expr, divides)
        return text if binds >= least else f"({text})"

    def several(self, operands: Sequence[Expr]) -> str:
        return ", ".join(map(self.text, operands))

    def plain(self, expr: Expr, divides: bool) -> tuple[str, int]:
        match expr:
            case Arg(index):
                return self.operands[index], POSTFIX
            case Name(name):
                return self.spelling.name(name), POSTFIX
            case Number(value, "int") if value >= 0:
                return self.spelling.number(str(value), divides), POSTFIX
            case Number(value, kind):
                return literal(value, kind), POSTFIX
            case Unary(sign, operand):
                return f"{sign}{self.text(operand, PREFIX if isinstance(operand, Cast) else POSTFIX)}", PREFIX
            case Cast(kind, operand):
                return f"({kind_text(kind)}){self.text(operand, PREFIX)}", PREFIX
            case Field(of, name):
                return f"{self.text(of, POSTFIX)}.{name}", POSTFIX
            case Subscript(of, at):
                return f"{self.text(of, POSTFIX)}[{self.text(at)}]", POSTFIX
            case Grouped(Unary() as operand):
                return f"({self.text(operand)})", POSTFIX
            case Grouped(operand):
                return self.plain(operand, divides)
            case Braced(operands):
                return f"{{{self.several(operands)}}}", POSTFIX
            case Call(function, operands):
                types = f"<{', '.join(map(kind_text, function.types))}>" if function.types else ""
                return f"{self.spelling.name(function.name)}{types}({self.several(operands)})", POSTFIX
            case Method(of, name, operands):
                return f"{self.text(of, POSTFIX)}.{name}({self.several(operands)})", POSTFIX
            case Select(test, then, otherwise):
                last = self.text(otherwise, CHOICE)  # a choice of several reads from left to right
                return f"{self.text(test, CHOICE + 1)} ? {self.text(then, CHOICE + 1)} : {last}", CHOICE
            case Binary(sign, left, right):
                binds = BINDS[sign]
                least = PREFIX if sign in BITS else binds
                before = self.text(left, least)
                return f"{before} {sign} {self.text(right, max(least, binds + 1), divides=sign in ('/', '%'))}", binds
            case AllOf(tests):
                return " & ".join(self.text(test, BINDS["&"] + 1) for test in tests), BINDS["&"]
        raise AssertionError(f"{expr} is no expression")


def literal(value: Any, kind: str) -> str:
    """A Python number as C++ text of that type; a `wide` one counts in 64 bits."""
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
        return f"({text})" if math.copysign(1.0, number) < 0 else text
    if kind == "unsigned":
        return f"{value}u"
    text = f"{value}LL" if kind == "wide" or (kind == "long long" and abs(value) > 2**31 - 1) else str(value)
    return f"({text})" if value < 0 else text


def as_float(value: float) -> float:
    """Rounded to single precision; what is too large for it is infinite."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
