"""Epilogues with fewer instructions compute what they did: statements before and after are run with Python's numbers."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest

from fusewright.codegen.mma.shortened import TANH_OF, TANH_PART, of_reciprocals, shortened
from fusewright.ir import functions as fn
from fusewright.ir.expr import Binary, Call, Expr, Function, Grouped, Name, Number, walk
from fusewright.ir.stmt import Declare, Statement, const, expressions, printed, renamed

FUNCTIONS = {
    "tanh_of": lambda x: math.tanh(x * math.log(2) / 2),
    "tanh_fast": math.tanh,
    "tanh_part": lambda x: 1 / (1 + 2**x),
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
TANH_FAST = Function("tanh_fast")
a, b, c, s, t, u, x, y = map(Name, "abcstuxy")


def lines(**values: Expr) -> list[Statement]:
    """Floats, each by its name."""
    return [const("float", name, value) for name, value in values.items()]


HARDSWISH = lines(t=TANH_OF(y), a=t * 0.166666672, b=a + 0.5, c=t * b)


def value(expr: Expr, space: dict[str, float]) -> float:
    match expr:
        case Name(name):
            return space[name]
        case Number(number):
            return float(number)
        case Grouped(operand):
            return value(operand, space)
        case Binary(sign, left, right):
            return float(OPERATORS[sign](value(left, space), value(right, space)))
        case Call(function, operands):
            return FUNCTIONS[function.name](*(value(operand, space) for operand in operands))
    raise AssertionError(expr)


def run(body: list[Statement], final: Expr, **values: float) -> float:
    space = {"TANH_FACTOR": 2 / math.log(2), **values}
    for statement in body:
        assert isinstance(statement, Declare) and statement.value is not None
        space[statement.name] = value(statement.value, space)
    return value(final, space)


def calls(body: list[Statement], function: Function) -> bool:
    return any(isinstance(part, Call) and part.function == function for expr in expressions(body) for part in walk(expr))


@pytest.mark.parametrize("at", [-9.0, -1.0, -0.01, 0.0, 0.3, 2.0, 40.0])
@pytest.mark.parametrize(
    ("body", "final", "constant"),
    [
        ([*HARDSWISH, *lines(s=x + c)], s, 2 / 3),
        (HARDSWISH, c, 2 / 3),
        ([*HARDSWISH, *lines(s=x * c)], s, 0.0),  # the constant is multiplied: it stays
        ([*HARDSWISH, *lines(s=x + c, u=s * 2.0)], u, 0.0),
        (lines(t=TANH_FAST(y), a=t * 0.5, b=0.5 + a), b, 1.0),
        (lines(t=TANH_FAST(y), a=1.0 - t, b=a * -3.0), b, 0.0),
        (lines(t=TANH_OF(y), a=t * t, b=a + 1.0), b, 2.0),
    ],
)  # fmt: skip
def test_polynomials_of_tanh(body: list[Statement], final: Expr, constant: float, at: float) -> None:
    expected = run(body, final, x=0.7, y=at)
    for may_shift in (False, True):
        made, left_out = of_reciprocals(body, final, may_shift)
        assert calls(made, TANH_PART) and len(made) < len(body)
        assert left_out == pytest.approx(constant if may_shift else 0.0, abs=1e-6)
        assert run(made, final, x=0.7, y=at) + left_out == pytest.approx(expected, abs=1e-6)


def test_the_operand_of_a_tanh_is_scaled_as_a_whole() -> None:
    body = lines(t=TANH_FAST(x + y), a=t * 0.5, b=0.5 + a)
    made, _ = of_reciprocals(body, b, False)
    assert run(made, b, x=0.4, y=0.3) == pytest.approx(run(body, b, x=0.4, y=0.3), abs=1e-6)


@pytest.mark.parametrize(
    ("body", "final"),
    [
        (lines(t=TANH_OF(y), s=x + t), s),  # tanh itself is wanted
        ([*HARDSWISH, *lines(s=t + c, u=s * x, v=u + t)], Name("v")),
        (lines(t=TANH_OF(y), a=t * t, b=a * t), b),  # of the third degree
        (lines(t=TANH_OF(y), a=t * t, b=a + x), b),  # as short as it is
        (lines(t=fn.exp(y), a=t * 2.0), a),
    ],
)  # fmt: skip
def test_other_uses_of_tanh_stay(body: list[Statement], final: Expr) -> None:
    assert of_reciprocals(body, final, True) == (body, 0.0)


def test_two_polynomials() -> None:
    again = renamed(HARDSWISH, {name: f"{name}2" for name in "tabcy"})
    body = [*HARDSWISH, *again, *lines(s=c + Name("c2"))]
    made, left_out = of_reciprocals(body, s, True)
    assert len(made) == 5 and left_out == pytest.approx(4 / 3)
    assert run(made, s, y=0.4, y2=-1.1) + left_out == pytest.approx(run(body, s, y=0.4, y2=-1.1), abs=1e-6)


def short(body: list[Statement], **asked: Any) -> list[str]:
    return printed(shortened([], body, a, **({"hoist": False, "exact": False, "may_shift": False} | asked)).element)


@pytest.mark.parametrize(
    "made_of, made",
    [
        (fn.sin(x) * x, "const float a = sin_fast(x) * x;"),
        (fn.asin(x) + fn.cos(x), "const float a = asinf(x) + cos_fast(x);"),
        (x / Name("scale"), "const float a = div_fast(x, scale);"),
        (1.0 / x, "const float a = div_fast(1.0f, x);"),
        (x / (1.0 + y), "const float a = div_fast(x, 1.0f + y);"),
        (x / y + s, "const float a = x / y + s;"),
        (x / (y + s) * (y - s), "const float a = x / (y + s) * (y - s);"),
        (x / 3.0, "const float a = x / 3.0f;"),  # the compiler multiplies
    ],
)
def test_angles_and_quotients_behind_tf32(made_of: Expr, made: str) -> None:
    body = lines(a=made_of)
    assert short(body) == [made]
    assert short(body, exact=True) == printed(body)


def test_quotients_of_whole_numbers_stay() -> None:
    body: list[Statement] = [const("int", "a", Name("i") / Name("j"))]
    assert short(body) == ["const int a = i / j;"]


def test_norms_are_one_instruction() -> None:
    """(x - mean) * scale + bias; the factor of a function that alone takes it is joined to both."""
    outer = lines(mean_=Name("m"), scale_=Name("g"), bias_=Name("o"))
    normed = (x - Name("mean_")) * Name("scale_") + Name("bias_")
    found = shortened(outer, lines(y=normed, t=fn.tanh(y), a=t + y), a, hoist=True, exact=False, may_shift=False)
    assert printed(found.element)[0] == "const float y = x * scale_of_[c - channel0] + yshift_of_[c - channel0];"
    assert [table.name for table in found.tables] == ["scale_of_", "yshift_of_"]
    alone = shortened(outer, lines(y=normed, t=fn.tanh(y), a=t + x), a, hoist=True, exact=False, may_shift=False)
    assert printed(alone.element) == [
        "const float y = x * ysteep_of_[c - channel0] + ystart_of_[c - channel0];",
        "const float t = tanh_of(y);",
        "const float a = t + x;",
    ]


def test_exact_functions_are_left_alone() -> None:
    body = lines(t=fn.tanh(Name("value")), a=t * 0.5)
    kept = shortened([], body, a, hoist=True, exact=True, may_shift=True)
    assert kept.element == body and kept.left_out == 0.0
