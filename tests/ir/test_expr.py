"""Expressions as data: what they are made into as C++, and what can be asked of them."""

from __future__ import annotations

import ctypes
import math
import random
import subprocess
from pathlib import Path

import pytest

from fusewright.ir import functions as fn
from fusewright.ir.cpp import to_cpp
from fusewright.ir.expr import (
    Arg,
    Binary,
    Cast,
    Expr,
    Field,
    Number,
    Select,
    Unary,
    as_expr,
    both,
    changed,
    differs,
    either,
    equal,
    first_of,
    has_fast_functions,
    is_arithmetic,
    is_constant,
    negated,
    of_operands,
    select,
    total,
    uses,
)

x, y, z = Arg(0), Arg(1), Arg(2)
NAMES = ("x", "y", "z")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (x + y * z, "x + y * z"),
        ((x + y) * z, "(x + y) * z"),
        (x - (y - z), "x - (y - z)"),
        ((x - y) - z, "x - y - z"),
        (x + (y + z), "x + (y + z)"),  # floats do not associate
        (x / (y * z), "x / (y * z)"),
        (-x * y, "-x * y"),
        (-(x * y), "-(x * y)"),
        (Unary("-", -x), "-(-x)"),
        (x - as_expr(-1.0), "x - (-1.0f)"),
        (x * 0.5, "x * 0.5f"),
        (x + 2, "x + 2"),
        (select(x < 0, 0, x), "x < 0 ? 0 : x"),
        (select(x < 0, 0, x) * 2.0, "(x < 0 ? 0 : x) * 2.0f"),
        (first_of([(equal(x, 0), y), (equal(x, 1), z)], 0.0), "x == 0 ? y : x == 1 ? z : 0.0f"),
        (select(x < 0, select(y < 0, x, y), z), "x < 0 ? (y < 0 ? x : y) : z"),
        (both(x < y, either(y < z, z < x)), "x < y && (y < z || z < x)"),
        (differs(negated(x), negated(y)), "!x != !y"),
        ((x & y) | z, "(x & y) | z"),
        (x & (y + z), "x & (y + z)"),
        (Cast("long long", x + y) * z, "(long long)(x + y) * z"),
        (Cast("unsigned char", Cast("long long", x)), "(unsigned char)(long long)x"),
        (Cast("long long", Field(x, "position")), "(long long)x.position"),
        (fn.exp(x - y), "expf(x - y)"),
        (fn.larger(x, as_expr(-math.inf)), "larger(x, -INFINITY)"),
        (of_operands(lambda a, b: a * b, 2), "x * y"),
        (both(), "true"),
    ],
)
def test_as_cpp(expr: Expr, text: str) -> None:
    assert to_cpp(expr, NAMES) == text


def test_in_double_functions_and_numbers_are_others() -> None:
    expr = 0.7978845608028654 * fn.tanh(x) + fn.larger(x, 1.0)
    assert to_cpp(expr, NAMES) == "0.797884583f * tanhf(x) + larger(x, 1.0f)"
    assert to_cpp(expr, NAMES, double=True) == "0.7978845608028654 * ::tanh(x) + larger(x, 1.0)"


def test_trees_compare_by_what_they_are() -> None:
    assert x + y == Arg(0) + Arg(1) != y + x
    assert Number(0.0, "float") != Number(-0.0, "float")
    assert Number(0, "int") != Number(0.0, "float")
    assert Number(math.nan, "float") == Number(math.nan, "float")
    assert len({fn.exp(x), fn.exp(x), fn.exp(y)}) == 2


def test_questions() -> None:
    assert is_arithmetic((x - y) * 2.0 / z) and is_arithmetic(-x)
    for other in (fn.exp(x), select(x < 0, x, y), x + math.inf, x % y):
        assert not is_arithmetic(other)
    assert (uses(x * x + y, 0), uses(x * x + y, 2)) == (2, 0)
    assert is_constant(as_expr(1.0) / 6.0) and not is_constant(x)
    gate = x * fn.sigmoid(x + fn.tanh(y))
    assert has_fast_functions(gate) and not has_fast_functions(fn.erf(x) * y)
    assert changed(gate, lambda part: z if part == x else part) == z * fn.sigmoid(z + fn.tanh(y))


def drawn(source: random.Random, depth: int) -> Expr:
    """An expression of whole numbers: C++ and Python agree on its value."""
    if depth == 0 or source.random() < 0.15:
        return source.choice([x, y, z, as_expr(source.randint(-3, 3))])
    left, right = drawn(source, depth - 1), drawn(source, depth - 1)
    kind = source.choice(["+", "-", "*", "<", "<=", "==", "!=", "&", "|", "^", "&&", "||", "neg", "not", "select", "cast"])
    if kind == "neg":
        return Unary("-", left)
    if kind == "not":
        return negated(left)
    if kind == "cast":
        return Cast("long long", left)
    return Select(left, right, drawn(source, depth - 1)) if kind == "select" else Binary(kind, left, right)


def value(expr: Expr, at: tuple[int, ...]) -> int:
    parts = [value(part, at) for part in expr.parts]
    match expr:
        case Arg(index):
            return at[index]
        case Number(number):
            return int(number)
        case Unary("-"):
            return -parts[0]
        case Unary("!"):
            return int(not parts[0])
        case Select():
            return parts[1] if parts[0] else parts[2]
        case Binary(sign):
            word = {"&&": "and", "||": "or"}.get(sign, sign)
            found = eval(f"a {word} b", {"a": parts[0], "b": parts[1]})
            return int(bool(found)) if sign in ("&&", "||") else int(found)
    return parts[0]


def test_parentheses_are_enough(tmp_path: Path) -> None:
    """What the compiler reads is the tree: 300 drawn ones have its value."""
    source = random.Random(0)
    trees = [drawn(source, 4) for _ in range(300)]
    lines = [f"  out[{i}] = {to_cpp(tree, NAMES)};" for i, tree in enumerate(trees)]
    text = 'extern "C" void run(long long x, long long y, long long z, long long* out) {\n' + "\n".join(lines) + "\n}\n"
    (tmp_path / "trees.cpp").write_text(text)
    subprocess.run(["g++", "-w", "-shared", "-fPIC", "-O0", "-o", tmp_path / "trees.so", tmp_path / "trees.cpp"], check=True)
    library = ctypes.CDLL(str(tmp_path / "trees.so"))
    for at in ((1, -2, 3), (0, 5, -1), (7, 7, 2)):
        found = (ctypes.c_longlong * len(trees))()
        library.run(*map(ctypes.c_longlong, at), found)
        for tree, number in zip(trees, found, strict=True):
            assert number == value(tree, at), to_cpp(tree, NAMES)


def test_sums_are_added_from_the_first_on() -> None:
    assert to_cpp(total([x, y, z]), NAMES) == "x + y + z" and total([x]) == x
