"""Rows that stay with their threads for several passes: what takes long to compute of them is computed once, and kept in their place.

A softmax of such a row takes its maximum first and its exponentials then, each once: what one sweep would take to find both at
once, when it meets a larger element, is more than a look at registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...ir import functions as fn
from ...ir import sizes
from ...ir.expr import Arg
from ...ir.plan import Kernel
from ...ir.prims import Picked, Pointwise, Prim, Reduce, arithmetic_type

WORTH = 6  # instructions, roughly: an exponential


def maximum_first(kernel: Kernel, prims: dict[str, Prim]) -> dict[str, Prim]:
    """A running maximum and sum of exponentials as a maximum, and a sum of the exponentials that are wanted anyway."""
    found = dict(prims)
    reached = behind(kernel.stores, kernel, prims, through_reductions=True)
    for e in (prims[name] for name in reached if is_exponential(prims[name])):
        source, largest = e.inputs
        parts = [n for n in reached if isinstance(prims[n].op, Reduce) and prims[n].op.accumulator == "LogSumExp"]
        parts = [n for n in parts if prims[n].inputs == (source,) and kernel.members.get(n) == "reduce"]
        fields = {prims[n].op.field for n in parts}
        if largest not in parts or fields != {"pivot()", "total()"}:
            continue
        for n in parts:
            kind, of = ("Max", source) if prims[n].op.field == "pivot()" else ("Sum", e.name)
            found[n] = replace(prims[n], op=Reduce(kind, prims[n].op.dims), inputs=(of,))
    return found


def is_exponential(prim: Prim) -> bool:
    return isinstance(prim.op, Pointwise) and prim.op.expression == fn.exp(Arg(0) - Arg(1))


def worth_keeping(now: Iterable[str], later: Iterable[str], kernel: Kernel, prims: dict[str, Prim], most: int) -> list[str]:
    """Values of this pass that later ones are made of, if with these they need nothing else of the row; `most` have room."""
    computed = behind(now, kernel, prims)
    whole = {name for name in kernel.loads if sizes.same(sizes.product(prims[name].shape), sizes.product(kernel.space))}
    found: list[str] = []
    stack, seen = list(later), set()
    while stack:
        name = stack.pop()
        if name in seen or kernel.members.get(name) == "reduce":
            continue
        seen.add(name)
        if name in whole:
            return []
        if name in computed and lies_like(prims[name], kernel) and cost(name, kernel, prims) >= WORTH:
            found.append(name)
        elif name not in kernel.loads:
            stack += prims[name].inputs
    return sorted(found) if len(found) <= most else []


def lies_like(prim: Prim, kernel: Kernel) -> bool:
    """A float of each element of the space."""
    same = len(prim.shape) == len(kernel.space) and all(map(sizes.same, prim.shape, kernel.space))
    return same and isinstance(prim.op, Pointwise) and arithmetic_type(prim.dtype) == "float"


def cost(name: str, kernel: Kernel, prims: dict[str, Prim]) -> int:
    """Instructions from what is read to a value, roughly; to pick an element takes as long as some of them."""
    found = [prims[n].op for n in behind([name], kernel, prims)]
    return sum(op.cost if isinstance(op, Pointwise) else WORTH if isinstance(op, Picked) else 0 for op in found)


def behind(roots: Iterable[str], kernel: Kernel, prims: dict[str, Prim], through_reductions: bool = False) -> set[str]:
    """What values are made of, from what the kernel reads and what it has reduced."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        name = stack.pop()
        reduced = kernel.members.get(name) == "reduce"
        if name not in found and (through_reductions or not reduced):
            found.add(name)
            stack += prims[name].inputs if name not in kernel.loads else ()
    return found
