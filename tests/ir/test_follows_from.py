"""Conditions on sizes that follow from lower bounds need not be asked again."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv

from fusewright.ir import sizes

x, y = sympy.symbols("x y", integer=True, positive=True)
KNOWN = (sympy.Ge(x, 2), sympy.Ge(y, 3), sympy.Lt(x * y, 1000))


@pytest.mark.parametrize(
    "guard",
    [
        sympy.Ge(FloorDiv(x, 2), 1, evaluate=False),
        sympy.And(sympy.Ge(FloorDiv(x, 2), 1, evaluate=False), sympy.Gt(y, 2, evaluate=False)),
        sympy.Ge(x * y + 1, 7, evaluate=False),
    ],
)
def test_they_do(guard: sympy.Basic) -> None:
    assert sizes.follows(guard, KNOWN)


@pytest.mark.parametrize(
    "guard",
    [
        sympy.Ge(FloorDiv(x, 2), 2, evaluate=False),  # not where x is 2
        sympy.Ge(x - y, 0, evaluate=False),  # it falls as y grows
        sympy.Ge(y - x + 100, 1, evaluate=False),
        sympy.Ne(x, 5),
        sympy.Lt(x, 5000),
        sympy.Eq(FloorDiv(x, 2), 1, evaluate=False),
        sympy.And(sympy.Ge(FloorDiv(x, 2), 1, evaluate=False), sympy.Ge(x, 3)),
        sympy.Ge(sympy.Symbol("z", integer=True, positive=True), 1, evaluate=False),  # nothing is known of it
    ],
)
def test_they_do_not(guard: sympy.Basic) -> None:
    assert not sizes.follows(guard, KNOWN)
