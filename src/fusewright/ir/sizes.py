"""Symbolic sizes: arithmetic that is sure of itself, and their text in Python and in C++ (the two agree on positive integers)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import sympy

from .graph import Dim


def product(sizes: Iterable[Dim]) -> Dim:
    return tidy(math.prod(sizes, start=sympy.Integer(1)))


def tidy(size: Dim) -> Dim:
    """A plain int where it is one."""
    if isinstance(size, int):
        return size
    return _tidy(size)


@functools.lru_cache(maxsize=65536)
def _tidy(size: sympy.Expr) -> Dim:
    expanded = sympy.expand(size)
    return int(expanded) if expanded.is_Integer else expanded


def whole(size: sympy.Expr) -> sympy.Expr:
    """With a in the place of a·b // b: a quotient that leaves no rest is none."""

    def is_quotient(part: sympy.Basic) -> bool:
        return type(part).__name__ == "FloorDiv"

    if not any(map(is_quotient, size.atoms(sympy.Function))):
        return size
    found: sympy.Expr = size.replace(is_quotient, lambda part: part if (exact := divide(*part.args)) is None else sympy.sympify(exact))
    return found


def same(a: Dim, b: Dim) -> bool:
    """Provably equal for all values of the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return _same(a, b)


@functools.lru_cache(maxsize=65536)
def _same(a: Dim, b: Dim) -> bool:
    return a == b or tidy(sympy.sympify(a) - sympy.sympify(b)) == 0


def is_one(size: Dim) -> bool:
    return size == 1 if isinstance(size, int) else _same(size, 1)


def nonnegative(size: Dim) -> bool:
    """Provably ≥ 0: a number, or a polynomial in positive symbols (each at least 1) with no way to be negative."""
    return size >= 0 if isinstance(size, int) else _nonnegative(size)


@functools.lru_cache(maxsize=65536)
def _nonnegative(size: sympy.Expr) -> bool:
    tidied = tidy(size)
    if isinstance(tidied, int):
        return tidied >= 0
    size = tidied
    shifted = tidy(size.subs({s: sympy.Symbol(s.name, integer=True, nonnegative=True) + 1 for s in size.free_symbols}))
    if isinstance(shifted, int):
        return shifted >= 0
    return shifted.is_polynomial() and all(c >= 0 for c in sympy.Poly(shifted, *shifted.free_symbols).coeffs())


def never_negative(size: Dim) -> bool:
    """Provably ≥ 0, also of quotients: x // b lies between (x - b + 1) / b and x / b, and a whole number above -1 is at least 0."""
    if nonnegative(size):
        return True
    expression = sympy.expand(sympy.sympify(size))
    bound, by = expression, sympy.Integer(1)
    for quotient in (atom for atom in expression.atoms(sympy.Function) if type(atom).__name__ == "FloorDiv"):
        whole, divisor = quotient.args
        plain = divisor.is_Integer and divisor > 0 and not whole.atoms(sympy.Function) and nonnegative(whole)
        times = expression.coeff(quotient)
        if not plain or not times.is_Integer:
            return False
        bound = bound.subs(quotient, (whole if times < 0 else whole - divisor + 1) / divisor)
        by = sympy.ilcm(by, divisor)
    return not bound.atoms(sympy.Function) and nonnegative(tidy(sympy.expand(by * (bound + 1) - 1)))


def divide(size: Dim, by: Dim) -> Dim | None:
    """size / by where that is provably a whole number, else None."""
    if isinstance(size, int) and isinstance(by, int):
        return size // by if by and size % by == 0 else None
    return _divide(size, by)


@functools.lru_cache(maxsize=65536)
def _divide(size: Dim, by: Dim) -> Dim | None:
    if same(size, 0):
        return 0
    quotient = sympy.cancel(sympy.sympify(size) / sympy.sympify(by))
    numerator, denominator = quotient.as_numer_denom()
    if denominator != 1 or any(term.as_coeff_Mul()[0].q != 1 for term in sympy.Add.make_args(sympy.expand(numerator))):
        return None
    return tidy(quotient)


def text(size: Dim | sympy.Basic, division: str = "//") -> str:
    """The expression as source text; `division` is `//` for Python, `/` for C++."""
    return str(size) if type(size) is int else _whole_text(size, division)


@functools.lru_cache(maxsize=65536)
def _whole_text(size: Dim | sympy.Basic, division: str) -> str:
    return _text(sympy.sympify(size), division, 0)


@functools.lru_cache(maxsize=65536)
def factored(size: Dim) -> Dim:
    """As a product, where that is shorter to write."""
    return size if isinstance(size, int) else sympy.factor(size)


def follows(guard: sympy.Basic, known: Iterable[sympy.Basic]) -> bool:
    """A condition that holds wherever lower bounds of symbols do (`x >= 2`), which are among the `known` conditions: what is compared
    with a number grows with each of its symbols, and is large enough where all are as small as they can be."""
    if isinstance(guard, sympy.And):
        conditions = list(known)
        return all(follows(part, conditions) for part in guard.args)
    least = {one.lhs: one.rhs for one in known if isinstance(one, sympy.Ge) and one.lhs.is_Symbol and one.rhs.is_Integer and one.rhs >= 0}
    if not isinstance(guard, (sympy.Ge, sympy.Gt)) or not guard.rhs.is_Integer or not guard.free_symbols <= set(least):
        return False
    return _grows(guard.lhs) and guard.xreplace(least) == sympy.true


def _grows(size: sympy.Basic) -> bool:
    """It is never negative and never falls as one of its symbols, none of them negative, grows."""
    if size.is_Symbol or (size.is_number and size >= 0):
        return True
    if isinstance(size, (sympy.Add, sympy.Mul, sympy.floor)):
        return all(map(_grows, size.args))
    quotient = type(size).__name__ in ("FloorDiv", "CleanDiv")  # of torch.utils._sympy
    return quotient and _grows(size.args[0]) and bool(size.args[1].is_number) and size.args[1] > 0


def c_text(size: Dim | sympy.Basic) -> str:
    return text(size, "/")


RELATIONS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">="}


def _text(e: sympy.Basic, division: str, outer: int) -> str:
    """Precedence: 0 sum, 1 product, 2 atom."""

    def wrap(s: str, level: int) -> str:
        return f"({s})" if level < outer else s

    if e.is_Symbol:
        return str(e)
    if e.is_Integer:
        return str(e) if int(e) >= 0 else wrap(str(e), 0)
    if e.is_Float and division == "//":
        return repr(float(e)) if float(e) >= 0 else wrap(repr(float(e)), 0)
    if type(e) in RELATIONS:
        return f"{_text(e.args[0], division, 0)} {RELATIONS[type(e)]} {_text(e.args[1], division, 0)}"
    if e.is_Add:
        parts = [_text(a, division, 0) for a in sorted(e.args, key=lambda a: (a.is_number, str(a)))]
        return wrap(" + ".join(parts).replace("+ -", "- "), 0)
    if e.is_Mul:
        coefficient, rest = e.as_coeff_Mul()
        if coefficient == -1:
            return wrap(f"-{_text(rest, division, 2)}", 0)
        if coefficient.is_Rational and not coefficient.is_Integer:  # a multiple that the model's own guards make whole
            return wrap(f"{_text(coefficient.p * rest, division, 1)} {division} {coefficient.q}", 1)
        return wrap(" * ".join(_text(a, division, 2) for a in e.args), 0 if coefficient.is_negative else 1)
    if e.is_Pow and e.exp.is_Integer and int(e.exp) > 0:
        return wrap(" * ".join([_text(e.base, division, 2)] * int(e.exp)), 1)
    kind = type(e).__name__
    arguments = [_text(a, division, 2) for a in e.args]
    if kind in ("FloorDiv", "CleanDiv"):
        return wrap(f"{arguments[0]} {division} {arguments[1]}", 1)
    if kind in ("IntTrueDiv", "FloatTrueDiv") and division == "//":
        return wrap(f"{arguments[0]} / {arguments[1]}", 1)
    if kind == "ToFloat" and division == "//":
        return wrap(_text(e.args[0], division, 0), 0)
    if kind in ("Mod", "PythonMod"):
        return wrap(f"{arguments[0]} % {arguments[1]}", 1)
    if kind == "CeilDiv":
        return wrap(f"({arguments[0]} + {arguments[1]} - 1) {division} {arguments[1]}", 1)
    if kind in ("Max", "Min") and division == "/":  # of mixed types, which C++'s own min and max refuse
        sign = ">" if kind == "Max" else "<"
        return functools.reduce(lambda a, b: f"({a} {sign} {b} ? {a} : {b})", arguments)
    if kind in ("Max", "Min"):
        return functools.reduce(lambda a, b: f"{kind.lower()}({a}, {b})", arguments)
    if kind in ("And", "Or") and division == "//":
        return f" {kind.lower()} ".join(f"({a})" for a in arguments)
    if kind == "Not" and division == "//":
        return f"not ({arguments[0]})"
    raise Unprintable(str(e))


class Unprintable(Exception):
    """A size that has no short text; what depends on it stays with PyTorch."""


def printable(size: Dim) -> bool:
    try:
        text(size)
    except Unprintable:
        return False
    return True
