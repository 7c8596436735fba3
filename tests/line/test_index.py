"""Index arithmetic agrees with counting."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._sympy.functions import FloorDiv

from fusewright.ir import sizes
from fusewright.ir.cpp import to_cpp
from fusewright.ir.graph import Dim
from fusewright.ir.index import Axis, Coordinate, contiguous, linear, reshape

N = sympy.Symbol("N", integer=True, positive=True)
factors = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def value(coordinate: Coordinate, at: dict[str, int]) -> int:
    """Evaluates the C++ text, with C's division (all numbers here are non-negative)."""
    text = to_cpp(coordinate.expr()).replace("/", "//")
    return int(eval(text, {}, at))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_a_reshape_finds_every_element(shape: list[int], data: st.DataObject) -> None:
    total = math.prod(shape)
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    first = data.draw(st.sampled_from(divisors))
    second = data.draw(st.sampled_from([d for d in range(1, total // first + 1) if (total // first) % d == 0]))
    target = (first, second, total // first // second)
    axes = [Axis(f"i{d}", size) for d, size in enumerate(target)]
    found = reshape(tuple(map(Coordinate.of, axes)), target, tuple(shape))
    for flat, at in enumerate(itertools.product(*map(range, target))):
        here = {f"i{d}": x for d, x in enumerate(at)}
        source = tuple(value(c, here) for c in found)
        assert all(0 <= x < size for x, size in zip(source, shape, strict=True))
        assert sum(x * s for x, s in zip(source, contiguous(tuple(shape)), strict=True)) == flat


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
@settings(max_examples=80, deadline=None)
def test_division_splits_and_joins(a: int, b: int, c: int, by: int) -> None:
    axes = (Axis("x", a), Axis("y", b), Axis("z", c))
    flat = linear(tuple(map(Coordinate.of, axes)), (a, b, c))
    quotient, remainder = flat.split(by)
    joined = quotient * by + remainder
    for x, y, z in itertools.product(range(a), range(b), range(c)):
        at = {"x": x, "y": y, "z": z}
        whole = value(flat, at)
        assert (value(quotient, at), value(remainder, at)) == divmod(whole, by)
        assert value(joined, at) == whole


def test_a_flattened_tensor_is_read_without_division() -> None:
    n, c, h, w = (sympy.Symbol(s, integer=True, positive=True) for s in "nchw")
    flat = (Coordinate.of(Axis("row", n)), Coordinate.of(Axis("item", c * h * w)))
    source = reshape(flat, (n, c * h * w), (n, c, h, w))
    offset = linear(source, (n, c, h, w))
    assert {axis.name for axis in offset.terms} == {"row", "item"}, offset


def test_groups_of_channels_stay_affine() -> None:
    n, h = (sympy.Symbol(s, integer=True, positive=True) for s in "nh")
    at = tuple(Coordinate.of(Axis(f"i{d}", size)) for d, size in enumerate((n, 16, 4, h)))
    source = reshape(at, (n, 16, 4, h), (n, 64, h))
    assert to_cpp(source[1].expr()) == "i1 * 4 + i2"


def test_sizes_print_the_same_in_python_and_c() -> None:
    x, y = (sympy.Symbol(s, integer=True, positive=True) for s in "xy")
    for size in (x * y - 2 * x + 4, (x - 2) * (y - 3), 3 * x, x**2, sympy.Max(1, x - 2)):
        python = eval(sizes.text(size), {"max": max}, {"x": 7, "y": 11})
        assert python == int(size.subs({x: 7, y: 11}))
    assert sizes.divide(6 * x * y, 3 * x) == 2 * y
    assert sizes.divide(x + 1, 2) is None
    assert sizes.nonnegative(x * y - 1) and not sizes.nonnegative(x - 2)


def test_quotients_that_are_never_negative() -> None:
    x = sympy.Symbol("x_2", integer=True, positive=True)
    half, quarter = FloorDiv(x, 2), FloorDiv(x, 4)
    assert sizes.never_negative(x - 2 * half) and sizes.never_negative(half - 2 * quarter) and sizes.never_negative(3)
    for size in (x - 2 * half - 1, quarter - half, half - x, 2 * half - x, FloorDiv(x - 5, 2) - 2, x - 2):
        assert not sizes.never_negative(size)
        assert any(size.subs(x, n) < 0 for n in range(1, 12)), size


def test_a_quotient_that_leaves_no_rest_is_none() -> None:
    x, y = (sympy.Symbol(s, integer=True, positive=True) for s in "xy")
    assert sizes.whole(FloorDiv(x**2, x)) == x and sizes.whole(4 * FloorDiv(x * y + y, y) + 1) == 4 * x + 5
    for size in (FloorDiv(x, 2), FloorDiv(x * y + 1, y), x + y):
        assert sizes.whole(size) == size


@pytest.mark.parametrize(("offset", "by"), [(-1, 4), (-9, 4), (1 - N, N), (-2 - 3 * N, N), (-5, N)])
def test_what_may_be_negative_is_divided_downwards(offset: Dim, by: Dim) -> None:
    """C++ rounds towards 0: what is divided is never below it."""
    whole, rest = (Coordinate.of(Axis("i0", 7)) * by + Coordinate.of(Axis("i1", by)) + offset).split(by)
    for i0, i1, n in itertools.product(range(5, 7), range(2), (2, 3)):
        values = {"i0": i0, "i1": i1, "N": n}
        size, at = (eval(str(text), {}, values) for text in (by, f"i0 * ({by}) + i1 + {offset}"))
        truncated = [int(eval(text.replace(" / ", " // "), {}, values)) for text in (to_cpp(whole.expr()), to_cpp(rest.expr()))]
        assert truncated == [at // size, at % size]
        for text in (to_cpp(whole.expr()), to_cpp(rest.expr())):
            assert all(eval(part, {}, values) >= 0 for part in re.findall(r"\(\((.*?)\) [/%]", text))
