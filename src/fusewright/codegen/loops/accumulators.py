"""What a reduce kernel adds up: its accumulators, and the passes over the row in which they are filled."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.plan import Kernel
from ...ir.prims import Prim
from .walk import needed_reduces

WORDS = {
    "Sum": 1,
    "Product": 1,
    "Max": 1,
    "Min": 1,
    "LogSumExp": 2,
    "FastLogSumExp": 2,
    "Moments": 3,
    "CloseMoments": 4,
    "ArgMax": 4,
    "ArgMin": 4,
}
TAKES = {  # other than floats
    **dict.fromkeys(("IntegerSum", "IntegerMax", "IntegerMin"), "long long"),
    "IntegerProduct": "unsigned long long",
    **dict.fromkeys(("DoubleSum", "DoubleMax", "DoubleMin"), "double"),
}
WORDS.update({**dict.fromkeys(TAKES, 2), "DoubleSum": 4})
CLOSER = {"Moments": "CloseMoments"}  # wherever a row is longer than what one thread has in registers
WIDE = (*TAKES, "ArgMax", "ArgMin")  # of 64-bit words
POSITIONS = ("ArgMax", "ArgMin")  # which are told where an element is
COLLECTED = ("LogSumExp", "FastLogSumExp", "CloseMoments", "Sum")  # which take several elements at once for less, or more exactly


@dataclass(frozen=True)
class Accumulator:
    """One accumulator variable; reductions of the same source share it."""

    name: str
    kind: str
    source: str
    members: tuple[str, ...]
    pass_index: int  # the pass over the row in which it is filled


def accumulators(kernel: Kernel, prims: dict[str, Prim]) -> list[Accumulator]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in needed_reduces(kernel, prims):
        grouped.setdefault((prims[name].op.accumulator, prims[name].inputs[0]), []).append(name)
    for kind, source in [key for key in grouped if (f"Arg{key[0]}", key[1]) in grouped]:
        grouped[f"Arg{kind}", source] += grouped.pop((kind, source))  # who knows where the largest is knows how large it is
    passes: dict[str, int] = {}
    found: list[Accumulator] = []
    for (kind, source), members in grouped.items():
        pass_index = 1 + max((passes[n] for n in reductions_behind(source, kernel, prims) if n in passes), default=0)
        passes.update(dict.fromkeys(members, pass_index))
        found.append(Accumulator(f"{members[0]}_acc", kind, source, tuple(members), pass_index))
    return sorted(found, key=lambda a: a.pass_index)


def reductions_behind(root: str, kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """Reductions, or scans, of this kernel that a value depends on."""
    found: set[str] = set()
    stack, seen = [root], set()
    while stack:
        name = stack.pop()
        if name in seen or name in kernel.loads:
            continue
        seen.add(name)
        if kernel.members.get(name) in ("reduce", "scan"):
            found.add(name)
        stack += prims[name].inputs
    return found


def kind_of(part: Accumulator, prims: dict[str, Prim], fast: bool = False) -> str:
    """The accumulator as it is written; `fast` where functions may be off by 1e-5.

    Of a sum of exp(x - maximum) only the logarithm may be wanted: what the short form of exp
    lacks grows with maximum - x, but the terms vanish faster."""
    logarithm = part.kind == "LogSumExp" and all(prims[name].op.field != "total()" for name in part.members)
    logarithm = logarithm or (fast and part.kind == "LogSumExp")
    return "FastLogSumExp" if logarithm else CLOSER.get(part.kind, part.kind)
