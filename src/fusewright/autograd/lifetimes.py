"""How long values in memory are needed: where `forward` frees each of them, and which temporaries of a function share an arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Dim, Ref
from ..ir.plan import Call, label
from .regions import Region, Regions

SMALL = 1 << 16  # bytes: what is known to be smaller is freed when its function returns
SLACK = 1 << 20  # bytes that an arena may add to a function's peak: each allocation less saves half as long as a launch takes


@dataclass(frozen=True)
class Lifetime:
    """A tensor of a function: the first of its steps that it is needed in, and the last."""

    name: str
    bytes: Dim
    first: int
    last: int

    @property
    def matters(self) -> bool:
        """It may be large."""
        return not isinstance(self.bytes, int) or self.bytes >= SMALL


Slots = list[list[Lifetime]]  # of an arena: those that lie at the same place, one after another


def last_steps(reads: Sequence[Iterable[str]]) -> dict[str, int]:
    """The last step that reads each variable."""
    return {name: step for step, names in enumerate(reads) for name in names}


def arena(parts: Sequence[Lifetime], others: Sequence[Lifetime], hint: Callable[[Dim], int]) -> Slots:
    """Temporaries that share one allocation, made before the first of them and freed after the last. One that would raise the function's
    peak, as it would be there longer than it is needed, is left out: it has memory of its own."""
    if sum(hint(part.bytes) for part in parts) <= SLACK:
        return [[part] for part in parts]

    least = most([*parts, *others], [], hint)
    inside = sorted(parts, key=lambda part: -hint(part.bytes))
    while inside:
        slots = in_slots(inside)
        if most([*others, *(part for part in parts if part not in inside)], slots, hint) <= least + SLACK:
            return slots
        inside = inside[1:]
    return []


def most(apart: Iterable[Lifetime], slots: Slots, hint: Callable[[Dim], int]) -> int:
    """The most bytes that tensors and an arena hold at once."""
    inside = [part for slot in slots for part in slot]
    whole = sum(max(hint(part.bytes) for part in slot) for slot in slots)
    begin, end = min((part.first for part in inside), default=0), max((part.last for part in inside), default=-1)
    held = [(part.first, part.last, hint(part.bytes)) for part in apart] + [(begin, end, whole)]
    return max(sum(size for first, last, size in held if first <= step <= last) for step in {first for first, _, _ in held})


def in_slots(parts: Sequence[Lifetime]) -> Slots:
    """Each in the first slot that is free as long as it is needed."""
    slots: Slots = []
    for part in parts:
        free = (slot for slot in slots if all(part.last < other.first or other.last < part.first for other in slot))
        slot = next(free, None)
        if slot is None:
            slots.append([part])
        else:
            slot.append(part)
    return slots


class ForwardLifetimes:
    """Of the variables of `forward`: calls to the library and regions make them and read them, in this order."""

    def __init__(self, regions: Regions, variable: Callable[[str], str], read_by: Callable[[Region], Mapping[str, str]]):
        self.regions = regions
        self.steps: list[Call | Region] = []
        for step in regions.plan.steps:
            entry = step if isinstance(step, Call) else regions.region_of(step)
            if not self.steps or entry is not self.steps[-1]:
                self.steps.append(entry)
        reads = [set(map(variable, s.node.inputs)) if isinstance(s, Call) else set(read_by(s).values()) for s in self.steps]
        makes = [[s.node.name] if isinstance(s, Call) else [n for names in regions.results(s) for n in names] for s in self.steps]
        self.made = {name: position for position, names in enumerate(makes) for name in names}
        self.groups = [self.group_of(step) for step in self.steps]
        for position, group in enumerate(self.groups):
            if group >= 0:  # a shortcut's kernel reads what its steps do, or comes in the place of the last
                kernel = regions.plan.shortcuts[group].kernel
                last = max(p for p, other in enumerate(self.groups) if other == group)
                if position == last:
                    reads[position] |= {variable(holder) for holder in map(self.holder, kernel.loads) if holder is not None}
                    reads[position] |= {load for load in kernel.loads if self.holder(load) is None}
        self.last = last_steps(reads)
        left = [o.value.name for o in regions.graph.outputs if isinstance(o.value, Ref) and not regions.is_applied(o)]
        leaving = set(map(variable, left))
        self.dying: dict[int, list[str]] = {}  # position of a step -> what nothing needs after it
        for name, position in self.made.items():
            if name not in leaving:
                self.dying.setdefault(max(position, self.last.get(name, position)), []).append(name)

    def holder(self, load: str) -> str | None:
        prim = self.regions.prims[load]
        return prim.origin if prim.is_load else self.regions.node_holding(load)

    def group_of(self, step: Call | Region) -> int:
        """The number of the shortcut that the step is one of the steps of, or -1."""
        one = step if isinstance(step, Call) else step.kernels[0]
        shortcuts = self.regions.plan.shortcuts
        return next((n for n, shortcut in enumerate(shortcuts) if label(one) in shortcut.steps), -1)

    def freed_after(self, step: Call | Region) -> tuple[list[str], list[str]]:
        """What nothing needs after a step: what was made inside its shortcut (or the step is in none), and what was there before it."""
        position = self.position(step)
        group, dying = self.groups[position], self.dying.get(position, [])
        inside = [name for name in dying if group < 0 or self.groups[self.made[name]] == group]
        return inside, [name for name in dying if name not in inside]

    def is_last(self, step: Call | Region) -> bool:
        return self.position(step) == len(self.steps) - 1

    def position(self, step: Call | Region) -> int:
        return next(p for p, other in enumerate(self.steps) if other is step)
