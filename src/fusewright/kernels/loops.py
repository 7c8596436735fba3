"""How a kernel walks its space: which dimensions run together as one loop, which one the vector lanes follow."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch.utils._sympy.functions import FloorDiv

from .. import sizes
from ..access import accesses, axes_of, unsqueezed
from ..graph import Dim, Graph
from ..index import Axis, Coordinate, Counting
from ..plan import Kernel, element_at, evaluated
from ..prims import Coordinates, Parts, Prim, Reshape
from .expression import LANE, Evaluator, pointer
from .rows import ROW

LONGEST_INT = 2**31 - 2**23  # elements that an `int` may count: the last step of a loop goes beyond them
VECTOR_BYTES = 16  # that a thread loads or stores by one instruction, at most
SECTOR = 32  # bytes that memory gives at once


@dataclass(frozen=True)
class Loop:
    """Dimensions that run together, outermost first; the last one's variable stands for all of them."""

    dims: tuple[int, ...]
    size: Dim
    step: int = 1  # elements that a thread takes
    counted: str = ROW  # the variable that counts them

    @property
    def variable(self) -> str:
        return f"i{self.dims[-1]}"

    @property
    def steps(self) -> Dim:
        """How many threads it takes."""
        return self.size if self.step == 1 else sizes.tidy(FloorDiv(self.size + self.step - 1, self.step))


@dataclass(frozen=True)
class Walk:
    """Kept and reduced loops, outermost first. The lanes follow the last kept loop, or the last reduced one if `lanes_reduce`."""

    kept: tuple[Loop, ...]
    reduced: tuple[Loop, ...]
    lanes_reduce: bool

    def at(self, kernel: Kernel, lane: bool) -> tuple[Coordinates, Coordinates]:
        """Coordinates in the kernel's space, of an element and of its row."""
        found: dict[int, Coordinate] = {}
        lane_loop = (self.reduced if self.lanes_reduce else self.kept)[-1:]
        for loop in (*self.kept, *self.reduced):
            here = Coordinate.of(Axis(loop.variable, loop.size))
            if lane and loop in lane_loop:
                here = here + Coordinate({Axis(LANE, 1 << 20): 1})
            if loop.step > 1:
                here = here + Coordinate({Axis(loop.counted, loop.step): 1})
            found[loop.dims[-1]] = here
        element = tuple(found.get(d, Coordinate()) for d in range(len(kernel.space)))
        row = tuple(Coordinate() if d in kernel.along else c for d, c in enumerate(element))
        return element, row


def needed_reduces(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    """Reductions, or scans, that the kernel's stores depend on, in order."""
    needed = evaluated(kernel, prims)
    return [name for name, role in kernel.members.items() if role in ("reduce", "scan") and name in needed]


@dataclass(frozen=True)
class Accessed:
    """Where a kernel reads and writes, in terms of its space."""

    offsets: list[Coordinate]
    uses: list[Coordinate]  # whose own value matters
    votes: dict[int, float]  # by dimension: how much lies how close together along it
    read: list[tuple[Prim, Coordinate]]  # tensors and where in them
    written: list[tuple[Prim, Coordinate]]


def accessed(kernel: Kernel, prims: dict[str, Prim], graph: Graph, at: Coordinates | None = None) -> Accessed:
    at = at or tuple(map(Coordinate.of, axes_of(kernel.space)))
    row = tuple(Coordinate() if d in kernel.along else c for d, c in enumerate(at))
    leaves = set(kernel.loads)
    offsets: list[Coordinate] = []
    uses: list[Coordinate] = []
    votes: dict[int, float] = {}
    read: list[tuple[Prim, Coordinate]] = []
    written: list[tuple[Prim, Coordinate]] = []

    def visit(root: str, where: Coordinates, inside: bool) -> None:
        for access in accesses(prims, root, where, leaves, inside, uses):
            if access.leaf in leaves or prims[access.leaf].is_load:
                prim = prims[access.leaf]
                offset = prim.offset(access.at)
                offsets.append(offset)
                read.append((prim, offset))
                vote(offset, prim)

    def vote(offset: Coordinate, prim: Prim) -> None:
        """For the dimension along which the tensor lies closest together in memory."""
        steps = {
            int(a.text[1:]): abs(f)  # backwards is as close together
            for a, f in offset.terms.items()
            if a.text.startswith("i") and isinstance(f, int) and f
        }
        if steps:
            closest = min(steps, key=lambda d: steps[d])
            size = graph.hint(sizes.product(prim.shape)) * prim.dtype.itemsize
            votes[closest] = votes.get(closest, 0) + size / steps[closest]

    for name in needed_reduces(kernel, prims):
        source = prims[name].inputs[0]
        visit(source, at, source not in leaves and not prims[source].is_collective)
        if kernel.is_reduce and prims[name].op.accumulator.startswith("Arg"):
            uses.append(at[prims[name].op.dims[0]])
    for name in kernel.stores:
        prim = prims[name]
        if kernel.members[name] in ("full", "scan"):
            here = full_at(at, kernel, prims, prim)
            visit(name, here, kernel.members[name] == "full")
            offset = prim.offset(here)
            offsets.append(offset)
            written.append((prim, offset))
            vote(offset, prim)
        elif kernel.members[name] == "row":
            visit(name, row_at(row, kernel, prim), True)
            offsets.append(prim.offset(row_at(row, kernel, prim)))
        else:
            offsets.append(prim.offset(row))
    return Accessed(offsets, uses, votes, read, written)


def moved(accesses: list[tuple[Prim, Coordinate]], along: int, graph: Graph) -> float:
    """Bytes that memory moves for these accesses where neighbouring threads follow a dimension: whole sectors."""
    total = 0.0
    for prim, offset in accesses:
        step = next((graph.hint(f) for axis, f in offset.terms.items() if f"i{along}" in axis.depends), 0)
        size = prim.dtype.itemsize
        total += graph.hint(sizes.product(prim.shape)) * max(size, min(SECTOR, abs(step) * size))
    return total


def walk(kernel: Kernel, prims: dict[str, Prim], graph: Graph, along: int | None = None) -> Walk:
    """Neighbouring dimensions run as one loop where every tensor agrees; lanes follow what most bytes lie along, or `along`."""
    found = accessed(kernel, prims, graph)
    real = [d for d, size in enumerate(kernel.space) if not sizes.is_one(size)]
    best = max(real, key=lambda d: (found.votes.get(d, 0), d), default=None) if along is None else along
    lanes_reduce = best in kernel.along
    kept = [d for d in real if d not in kernel.along]
    reduced = [d for d in real if d in kernel.along]
    for dims in (kept, reduced):
        if best in dims:
            dims.remove(best)
            dims.append(best)
    checks = [*found.offsets, *found.uses]
    joined = Walk(merge(kept, kernel, checks), merge(reduced, kernel, checks), lanes_reduce)
    if reads_the_same(joined, checks, kernel, prims, graph):
        return joined
    return Walk(tuple(Loop((d,), kernel.space[d]) for d in kept), tuple(Loop((d,), kernel.space[d]) for d in reduced), lanes_reduce)


def reads_the_same(joined: Walk, checks: list[Coordinate], kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> bool:
    """Loops that stand for several dimensions lead to the same elements: what is cut into pieces on the way, and joined again in the
    end, is cut elsewhere where a coordinate is larger than its dimension."""
    within = {d for loop in (*joined.kept, *joined.reduced) for d in loop.dims[:-1]}
    if not within or not any(isinstance(prims[name].op, Reshape) for name in evaluated(kernel, prims)):
        return True
    found = accessed(kernel, prims, graph, joined.at(kernel, lane=False)[0])

    def steps(at: Coordinate) -> tuple[dict[str, Dim], Dim]:
        return {axis.text: f for axis, f in at.terms.items() if axis.text not in {f"i{d}" for d in within} and not axis.picks}, at.offset

    return list(map(steps, checks)) == [steps(at) for at in (*found.offsets, *found.uses)]


def full_at(at: Coordinates, kernel: Kernel, prims: dict[str, Prim], prim: Prim) -> Coordinates:
    """Where a value of the whole space has the element `at`."""
    found = element_at(kernel, prims, prim, at)
    assert found is not None, f"{prim.name} does not lie like the space of {kernel.name}"
    return found


def row_at(row: Coordinates, kernel: Kernel, prim: Prim) -> Coordinates:
    return unsqueezed(row, kernel.row_shape, prim.shape)


def merge(dims: list[int], kernel: Kernel, offsets: list[Coordinate]) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for d in dims:
        size = kernel.space[d]
        if loops and all(together(loops[-1].dims[-1], d, size, offset) for offset in offsets):
            loops[-1] = Loop((*loops[-1].dims, d), sizes.tidy(loops[-1].size * size))
        else:
            loops.append(Loop((d,), size))
    return tuple(loops)


def together(outer: int, inner: int, size: Dim, offset: Coordinate) -> bool:
    """One step of the outer dimension is `size` steps of the inner one."""
    factors = {axis.text: factor for axis, factor in offset.terms.items()}
    hidden = frozenset().union(*(axis.axes for axis in offset.terms if not axis.is_picked))  # what says where is asked itself
    a, b = f"i{outer}", f"i{inner}"
    if a in hidden or b in hidden:
        return False
    return sizes.same(factors.get(a, 0), sizes.tidy(factors.get(b, 0) * size))


# ---- text that launchers and kernels of every kind share


def decode(
    loops: tuple[Loop, ...], index: str, evaluator: Evaluator, kind: str = "Index", lanes: Loop | None = None
) -> list[str]:
    """Loop variables from one running number, of which each step is VEC elements of `lanes`."""
    if not loops:
        return []
    if len(loops) == 1:
        return [f"const {kind} {loops[0].variable} = {index}{times(loops[0], lanes)};"]
    lines, rest = [], index
    for position in range(len(loops) - 1, 0, -1):
        steps = loops[position].steps
        size = f"({evaluator.size(steps)} / VEC)" if loops[position] == lanes else evaluator.divisor(steps)
        lines.append(f"const {kind} {loops[position].variable} = {paren(rest)} % {size}{times(loops[position], lanes)};")
        rest = f"{rest} / {size}" if rest.isidentifier() else f"({rest}) / {size}"
    return [*lines, f"const {kind} {loops[0].variable} = {rest}{times(loops[0], lanes)};"]


def used(variables: list[str], body: list[str]) -> list[str]:
    """Those of the loop variables that the body names."""
    words = set(re.findall(r"\w+", "\n".join(body)))
    return [line for line in variables if line.split()[2] in words]


def counting(loops: tuple[Loop, ...], number: str) -> Counting | None:
    """Offsets in a running number, where that is taken apart."""
    return Counting(number, tuple(Axis(loop.variable, loop.size) for loop in loops)) if len(loops) > 1 else None


def times(loop: Loop, lanes: Loop | None) -> str:
    return " * VEC" if loop == lanes else f" * {loop.step}" if loop.step > 1 else ""


def paren(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def vector_width(kernel: Kernel, prims: dict[str, Prim], lanes: tuple[Loop, ...], together: int = VECTOR_BYTES) -> int:
    """Elements in 16 bytes, or `together`, of the narrowest type that is moved, 8 at most.

    Fewer where the lanes' loop is known not to divide.
    """
    if not lanes:
        return 1
    narrowest = min((prims[name].dtype.itemsize for name in (*kernel.loads, *kernel.stores)), default=4)
    width = min(8, max(1, together // narrowest)) if narrowest < 8 else 2
    size = lanes[-1].size
    while isinstance(size, int) and size % width:
        width //= 2
    return width


def vector_conditions(
    evaluator: Evaluator, stores: list[tuple[str, Coordinate]], inner: Dim, width: int, prims: dict[str, Prim]
) -> list[str]:
    """What must hold at run time for vector loads and stores: aligned pointers and strides that are whole vectors."""
    conditions: list[str] = []
    if not (isinstance(inner, int) and inner % width == 0):
        conditions.append(f"{paren(c_size(inner))} % {width} == 0")
    for name, offset in [*evaluator.vector_loads, *stores]:
        conditions.append(f"aligned({name}, {min(VECTOR_BYTES, width * prims[name].dtype.itemsize)})")
        for axis, factor in offset.terms.items():
            whole = isinstance(factor, int) and factor % width == 0
            steps_by_vectors = axis.text == LANE or (
                sizes.is_one(factor) and LANE not in axis.depends and axis.text.startswith("i")
            )
            if not whole and not steps_by_vectors:
                conditions.append(f"{paren(c_size(factor))} % {width} == 0")
        if not sizes.same(offset.offset, 0) and not (isinstance(offset.offset, int) and offset.offset % width == 0):
            conditions.append(f"{paren(c_size(offset.offset))} % {width} == 0")
    return list(dict.fromkeys(conditions))


def c_size(size: Dim) -> str:
    return sizes.c_text(sizes.factored(size))


def c_product(items: list[Dim]) -> str:
    constant = math.prod(item for item in items if isinstance(item, int))
    parts = [
        f"({c_size(item)})" if not c_size(item).isidentifier() else c_size(item)
        for item in items
        if not isinstance(item, int)
    ]
    if constant != 1 or not parts:
        parts.insert(0, f"{constant}LL" if not parts else str(constant))
    return " * ".join(parts)


def largest_tensor(kernel: Kernel, prims: dict[str, Prim]) -> str | None:
    """A C++ expression that is true when some offset may pass 2³¹, or None when it cannot."""
    tests = []
    shapes = {prims[name].shape for name in (*kernel.loads, *kernel.stores)} | {kernel.space, *multiplied_positions(kernel, prims)}
    for shape in shapes:
        total = sizes.product(shape)
        if not isinstance(total, int):
            tests.append(f"{c_product(list(shape))} > {LONGEST_INT}LL")
        elif total > LONGEST_INT:
            return "true"
    return " || ".join(sorted(tests)) if tests else None


def multiplied_positions(kernel: Kernel, prims: dict[str, Prim]) -> set[tuple[Dim, ...]]:
    """The factors of what is divided to find where the parts of a dimension begin."""
    found: set[tuple[Dim, ...]] = set()
    for prim in (prims[name] for name in evaluated(kernel, prims)):
        if isinstance(prim.op, Parts):
            source = prims[prim.inputs[0]].shape
            found |= set(zip(prim.shape[-2 * prim.op.rank : -prim.op.rank], source[-prim.op.rank :], strict=True))
    return found


__all__ = ["Loop", "Walk", "pointer", "walk"]
