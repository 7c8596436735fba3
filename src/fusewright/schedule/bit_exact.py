"""Values that are tested for equality, computed to the last bit alike by every kernel that computes them.

The gradient of a maximum goes where a value equals it. Kernels compute such a value again where they need it, and a compiler may
join a product and a sum into one rounding here and not there, by what else is around. `exactly(x)` is x, and the compiler does not
look through it: with each value of such a chain behind one, and each that an expression reads, the chain is the same few
instructions everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..ir import functions as fn
from ..ir.expr import Arg, Expr, changed, differs, equal, has_fast_functions
from ..ir.lowered import Lowered
from ..ir.prims import Iota, Picked, Pointwise, Prim, Reduce, Scan, Size, View, Window

HALVES = (torch.float16, torch.bfloat16)  # of which registers hold floats
EQUALITIES = equal(Arg(0), Arg(1)), differs(Arg(0), Arg(1))


def bit_exact(lowered: Lowered) -> Lowered | None:
    """The same primitives, where those that are compared for equality may be so; None where they may not."""
    prims = lowered.prims
    compared = [prim for prim in prims.values() if compares_floats(prim, prims)]
    chain, stack = dict[str, None](), [name for prim in compared for name in prim.inputs]
    while stack:
        prim = prims[stack.pop()]
        if prim.name in chain or prim.is_load or isinstance(prim.op, (Size, Iota, Scan)):
            continue
        chain[prim.name] = None
        if isinstance(prim.op, Reduce):  # computed once; but a maximum is to be one of the values that it is compared with
            stack += prim.inputs if prim.op.accumulator in ("Max", "Min", "DoubleMax", "DoubleMin") else ()
            continue
        exact = isinstance(prim.op, (Pointwise, View, Picked)) or (isinstance(prim.op, Window) and prim.op.kind != "sum")
        if not exact or prim.dtype is torch.float64 or (prim.dtype in HALVES and has_functions(prim)):
            return None
        stack += prim.inputs
    found = {name: opaque(prim, prims) if name in chain else prim for name, prim in prims.items()}
    return replace(lowered, prims=found)


def has_functions(prim: Prim) -> bool:
    """Kernels that only write halves take the quicker ones of these."""
    return isinstance(prim.op, Pointwise) and has_fast_functions(prim.op.expression)


def compares_floats(prim: Prim, prims: Mapping[str, Prim]) -> bool:
    if not isinstance(prim.op, Pointwise) or prim.op.expression not in EQUALITIES:
        return False
    return any(prims[name].dtype.is_floating_point for name in prim.inputs)


def opaque(prim: Prim, prims: Mapping[str, Prim]) -> Prim:
    if not isinstance(prim.op, Pointwise):
        return prim

    def read(part: Expr) -> Expr:
        if not isinstance(part, Arg):
            return part
        source = prims[prim.inputs[part.index]]
        with_position = isinstance(source.op, Window) and source.op.kind == "largest"
        return fn.exactly(part) if source.dtype.is_floating_point and not with_position else part

    whole = changed(prim.op.expression, read)
    return replace(prim, op=replace(prim.op, expression=fn.exactly(whole) if prim.dtype.is_floating_point else whole))
