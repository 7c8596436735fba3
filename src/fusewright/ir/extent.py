"""Symbolic sizes as expressions."""

from __future__ import annotations

import functools

import sympy

from .expr import Binary, Expr, Grouped, Name, Number, Select, Unary, product, signed_sum
from .graph import Dim
from .sizes import Unprintable

SUM, PRODUCT, ATOM = 0, 1, 2  # how tightly the parts of a size hold together


@functools.lru_cache(maxsize=65536)
def extent(size: Dim) -> Expr:
    """The size in C++'s whole numbers."""
    return of(sympy.sympify(size), SUM)


def of(e: sympy.Expr, outer: int) -> Expr:
    def wrap(expr: Expr, level: int) -> Expr:
        return Grouped(expr) if level < outer else expr

    if e.is_Symbol:
        return Name(str(e))
    if e.is_Integer:
        return Number(int(e), "int") if int(e) >= 0 else wrap(Unary("-", Number(-int(e), "int")), SUM)
    if e.is_Add:
        return wrap(signed_sum(signed_terms(e)), SUM)
    if e.is_Mul:
        coefficient, rest = e.as_coeff_Mul()
        if coefficient == -1:
            return wrap(Unary("-", of(rest, ATOM)), SUM)
        if coefficient.is_Rational and not coefficient.is_Integer:  # a multiple that the model's own guards make whole
            return wrap(of(coefficient.p * rest, PRODUCT) / int(coefficient.q), PRODUCT)
        return wrap(product([of(a, ATOM) for a in e.args]), SUM if coefficient.is_negative else PRODUCT)
    if e.is_Pow and e.exp.is_Integer and int(e.exp) > 0:
        return wrap(product([of(e.base, ATOM)] * int(e.exp)), PRODUCT)
    kind, arguments = type(e).__name__, [of(a, ATOM) for a in e.args]
    if kind in ("FloorDiv", "CleanDiv"):
        return wrap(arguments[0] / arguments[1], PRODUCT)
    if kind in ("Mod", "PythonMod"):
        return wrap(arguments[0] % arguments[1], PRODUCT)
    if kind == "CeilDiv":
        return wrap(Grouped(arguments[0] + arguments[1] - 1) / arguments[1], PRODUCT)
    if kind in ("Max", "Min"):  # of mixed types, which C++'s own min and max refuse
        sign = ">" if kind == "Max" else "<"
        return functools.reduce(lambda a, b: Grouped(Select(Binary(sign, a, b), a, b)), arguments)
    raise Unprintable(str(e))


def signed_terms(size: Dim) -> list[tuple[bool, Expr]]:
    """The terms of a sum, each with whether it is taken away."""
    e = sympy.sympify(size)
    ordered = sorted(e.args, key=lambda a: (a.is_number, str(a))) if e.is_Add else [e]
    return [signed(of(term, SUM)) for term in ordered]


def signed(term: Expr) -> tuple[bool, Expr]:
    """Whether a term is taken away, and what of it then is."""
    return (True, term.operand) if isinstance(term, Unary) and term.sign == "-" else (False, term)
