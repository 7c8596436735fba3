"""Endings with fewer instructions compute what they did: statements before and after are run with Python's numbers."""

from __future__ import annotations

import math
import re

import pytest

from fusewright.kernels.shortened import of_reciprocals, shortened

FUNCTIONS = {
    "tanh_of": lambda x: math.tanh(x * math.log(2) / 2),
    "tanh_fast": math.tanh,
    "tanh_part": lambda x: 1 / (1 + 2**x),
    "TANH_FACTOR": 2 / math.log(2),
}
HARDSWISH = [
    "const float t = tanh_of(y);",
    "const float a = t * 0.166666672f;",
    "const float b = a + 0.5f;",
    "const float c = t * b;",
]


def run(lines: list[str], final: str, **values: float) -> float:
    space = {**FUNCTIONS, **values}
    for line in lines:
        name, text = re.fullmatch(r"const float (\w+) = (.*);", line).groups()  # type: ignore[union-attr]
        space[name] = eval(re.sub(r"(\d)f\b", r"\1", text), space)
    return float(eval(final, space))


@pytest.mark.parametrize("y", [-9.0, -1.0, -0.01, 0.0, 0.3, 2.0, 40.0])
@pytest.mark.parametrize(
    ("lines", "final", "constant"),
    [
        ([*HARDSWISH, "const float s = x + c;"], "s", 2 / 3),
        (HARDSWISH, "c", 2 / 3),
        ([*HARDSWISH, "const float s = x * c;"], "s", 0.0),  # the constant is multiplied: it stays
        ([*HARDSWISH, "const float s = x + c;", "const float u = s * 2.0f;"], "u", 0.0),
        (["const float t = tanh_fast(y);", "const float a = t * 0.5f;", "const float b = 0.5f + a;"], "b", 1.0),
        (["const float t = tanh_fast(y);", "const float a = 1.0f - t;", "const float b = a * (-3.0f);"], "b", 0.0),
        (["const float t = tanh_of(y);", "const float a = t * t;", "const float b = a + 1.0f;"], "b", 2.0),
    ],
)  # fmt: skip
def test_polynomials_of_tanh(lines: list[str], final: str, constant: float, y: float) -> None:
    expected = run(lines, final, x=0.7, y=y)
    for may_shift in (False, True):
        made, left_out = of_reciprocals(lines, final, may_shift)
        assert "tanh_part" in "\n".join(made) and len(made) < len(lines)
        assert left_out == pytest.approx(constant if may_shift else 0.0, abs=1e-6)
        assert run(made, final, x=0.7, y=y) + left_out == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("lines", "final"),
    [
        (["const float t = tanh_of(y);", "const float s = x + t;"], "s"),  # tanh itself is wanted
        ([*HARDSWISH, "const float s = t + c;", "const float u = s * x;", "const float v = u + t;"], "v"),
        (["const float t = tanh_of(y);", "const float a = t * t;", "const float b = a * t;"], "b"),  # of the third degree
        (["const float t = tanh_of(y);", "const float a = t * t;", "const float b = a + x;"], "b"),  # as short as it is
        (["const float t = expf(y);", "const float a = t * 2.0f;"], "a"),
    ],
)  # fmt: skip
def test_other_uses_of_tanh_stay(lines: list[str], final: str) -> None:
    assert of_reciprocals(lines, final, True) == (lines, 0.0)


def test_two_polynomials() -> None:
    again = [re.sub(r"\b([tabcy])\b", r"\g<1>2", line) for line in HARDSWISH]
    lines = [*HARDSWISH, *again, "const float s = c + c2;"]
    made, left_out = of_reciprocals(lines, "s", True)
    assert len(made) == 5 and left_out == pytest.approx(4 / 3)
    assert run(made, "s", y=0.4, y2=-1.1) + left_out == pytest.approx(run(lines, "s", y=0.4, y2=-1.1), abs=1e-6)


@pytest.mark.parametrize(
    "line, made",
    [
        ("const float a = sinf(x) * x;", "const float a = sin_fast(x) * x;"),
        ("const float a = asinf(x) + cosf(x);", "const float a = asinf(x) + cos_fast(x);"),
        ("const float a = x / scale;", "const float a = div_fast(x, scale);"),
        ("const float a = 1.0f / x;", "const float a = div_fast(1.0f, x);"),
        ("const float a = x / (1.0f + y);", "const float a = div_fast(x, (1.0f + y));"),
        ("const float a = x / y + z;", "const float a = x / y + z;"),
        ("const float a = x / (y + z) * (y - z);", "const float a = x / (y + z) * (y - z);"),
        ("const int a = i / j;", "const int a = i / j;"),
    ],
)
def test_angles_and_quotients_behind_tf32(line: str, made: str) -> None:
    assert shortened([], [line], "a", hoist=False, exact=False, may_shift=False).element == [made]
    assert shortened([], [line], "a", hoist=False, exact=True, may_shift=False).element == [line]


def test_exact_functions_are_left_alone() -> None:
    lines = ["const float t = tanhf(value);", "const float a = t * 0.5f;"]
    kept = shortened([], lines, "a", hoist=True, exact=True, may_shift=True)
    assert kept.element == lines and kept.left_out == 0.0
