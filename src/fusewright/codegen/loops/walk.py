"""How a kernel walks its space: which dimensions run together as one loop, which one the vector lanes follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._sympy.functions import FloorDiv

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import accesses, axes_of, unsqueezed
from ...ir.cpp import to_cpp
from ...ir.expr import Expr, Field, Grouped, Name, Number, as_expr, either, equal, grouped, product
from ...ir.extent import extent
from ...ir.graph import Dim, Graph
from ...ir.index import Axis, Coordinate, Counting, LoopVariable
from ...ir.plan import Kernel, element_at, evaluated
from ...ir.prims import Coordinates, Parts, Prim, Reshape
from ...ir.stmt import Declare, Statement, const, names_read
from .evaluator import Evaluator
from .rows import ROW
from .scope import LANE, pointer

BLOCK, THREAD, THREAD_Y = Field(Name("blockIdx"), "x"), Field(Name("threadIdx"), "x"), Field(Name("threadIdx"), "y")
INSIDE = Name("inside")  # whether a thread has a row, or another thing to do than to meet the others
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
        return LoopVariable(self.dims[-1])

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
            a.name.dim: abs(f)  # backwards is as close together
            for a, f in offset.terms.items()
            if isinstance(a.name, LoopVariable) and isinstance(f, int) and f
        }
        if steps:
            closest = min(steps, key=lambda d: steps[d])
            size = graph.hint(sizes.product(prim.shape)) * prim.dtype.itemsize
            votes[closest] = votes.get(closest, 0) + size / steps[closest]

    for name in needed_reduces(kernel, prims):
        source = prims[name].inputs[0]
        visit(source, at, source not in leaves and not prims[source].is_collective)
        if kernel.is_reduce and prims[name].op.accumulator in ("ArgMax", "ArgMin"):
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
        step = next((graph.hint(f) for axis, f in offset.terms.items() if LoopVariable(along) in axis.depends), 0)
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

    left_out = set(map(LoopVariable, within))

    def steps(at: Coordinate) -> tuple[dict[Expr, Dim], Dim]:
        return {axis.expr: f for axis, f in at.terms.items() if axis.name not in left_out and not axis.picks}, at.offset

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
    factors = {axis.name: factor for axis, factor in offset.terms.items()}
    hidden = frozenset().union(*(axis.axes for axis in offset.terms if not axis.is_picked))  # what says where is asked itself
    a, b = LoopVariable(outer), LoopVariable(inner)
    if a in hidden or b in hidden:
        return False
    return sizes.same(factors.get(a, 0), sizes.tidy(factors.get(b, 0) * size))


# ---- what launchers and kernels of every kind share


def decode(
    loops: tuple[Loop, ...], index: Expr, evaluator: Evaluator, kind: str = "Index", lanes: Loop | None = None
) -> list[Declare]:
    """Loop variables from one running number, of which each step is VEC elements of `lanes`."""
    if not loops:
        return []
    found, rest = list[Declare](), index
    for loop in reversed(loops[1:]):
        size = Grouped(evaluator.size(loop.steps) / Name("VEC")) if loop == lanes else evaluator.divisor(loop.steps)
        found.append(const(kind, loop.variable, times(loop, lanes, named(rest) % size)))
        rest = named(rest) / size
    return [*found, const(kind, loops[0].variable, times(loops[0], lanes, rest))]


def used(variables: list[Declare], body: list[Statement]) -> list[Declare]:
    """Those of the loop variables that the body names."""
    names = names_read(body)
    return [variable for variable in variables if variable.name in names]


def counting(loops: tuple[Loop, ...], number: Expr) -> Counting | None:
    """Offsets in a running number, where that is taken apart."""
    return Counting(number, tuple(Axis(loop.variable, loop.size) for loop in loops)) if len(loops) > 1 else None


def times(loop: Loop, lanes: Loop | None, steps: Expr) -> Expr:
    return steps * Name("VEC") if loop == lanes else steps * loop.step if loop.step > 1 else steps


def named(expr: Expr) -> Expr:
    """A name, or in parentheses."""
    return expr if isinstance(expr, Name) else Grouped(expr)


def stores_halves(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """All that it writes is rounded to 8 or 11 bits: functions may be off by 1e-5."""
    return all(prims[name].dtype in (torch.float16, torch.bfloat16) for name in kernel.stores)


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
) -> list[Expr]:
    """What must hold at run time for vector loads and stores: aligned pointers and strides that are whole vectors."""

    def divides(size: Dim) -> Expr:
        return equal(named(c_size(size)) % width, 0)

    conditions: list[Expr] = []
    if not (isinstance(inner, int) and inner % width == 0):
        conditions.append(divides(inner))
    for name, offset in [*evaluator.vector_loads, *stores]:
        conditions.append(fn.aligned(Name(name), min(VECTOR_BYTES, width * prims[name].dtype.itemsize)))
        for axis, factor in offset.terms.items():
            whole = isinstance(factor, int) and factor % width == 0
            steps_by_vectors = axis.name == LANE or (
                sizes.is_one(factor) and LANE not in axis.depends and isinstance(axis.name, LoopVariable)
            )
            if not whole and not steps_by_vectors:
                conditions.append(divides(factor))
        if not sizes.same(offset.offset, 0) and not (isinstance(offset.offset, int) and offset.offset % width == 0):
            conditions.append(divides(offset.offset))
    return list(dict.fromkeys(conditions))


def c_size(size: Dim) -> Expr:
    return extent(sizes.factored(size))


def c_product(items: Sequence[Dim]) -> Expr:
    constant = math.prod(item for item in items if isinstance(item, int))
    parts = [grouped(c_size(item)) for item in items if not isinstance(item, int)]
    if constant != 1 or not parts:
        parts.insert(0, Number(constant, "int" if parts else "wide"))
    return product(parts)


def thread_of(threads: int) -> Expr:
    """The number of a thread, where a block has so many."""
    return fn.static_cast.of("Index")(BLOCK) * threads + THREAD


def in_blocks(count: str, each: int, *others: int) -> Callable[[int], Expr]:
    """The grid in which a block takes `each` vectors of what is counted, by how many lanes those have."""

    def grid(lanes: int) -> Expr:
        return grid_of(fn.ceil_div(Name(count), each * lanes), *map(as_expr, others))

    return grid


def grid_of(*counts: Expr) -> Expr:
    """So many blocks along the first dimension of a grid, and others along the next."""
    return fn.dim3(*counts) if len(counts) > 1 else counts[0]


def largest_tensor(kernel: Kernel, prims: dict[str, Prim]) -> Expr | None:
    """True when some offset may pass 2³¹; None when it cannot."""
    counts: list[tuple[Dim, Expr]] = []
    shapes = {prims[name].shape for name in (*kernel.loads, *kernel.stores)} | {kernel.space, *multiplied_positions(kernel, prims)}
    for shape in shapes:
        count = sizes.product(shape)
        if not isinstance(count, int):
            counts.append((count, c_product(shape)))
        elif count > LONGEST_INT:
            return Number(True, "bool")
    counts.sort(key=lambda known: to_cpp(known[1]))
    others = [[is_less(count, other, i < j) for j, (other, _) in enumerate(counts) if i != j] for i, (count, _) in enumerate(counts)]
    largest = [text for (_, text), less in zip(counts, others, strict=True) if not any(less)]
    return either(*(text > Number(LONGEST_INT, "wide") for text in largest)) if largest else None


def is_less(count: Dim, other: Dim, first: bool) -> bool:
    """So many are some times as many as others, whatever their sizes; of equals, all but the first."""
    times = sizes.divide(other, count)
    return isinstance(times, int) and (times > 1 or (times == 1 and not first))


def multiplied_positions(kernel: Kernel, prims: dict[str, Prim]) -> set[tuple[Dim, ...]]:
    """The factors of what is divided to find where the parts of a dimension begin."""
    found: set[tuple[Dim, ...]] = set()
    for prim in (prims[name] for name in evaluated(kernel, prims)):
        if isinstance(prim.op, Parts):
            source = prims[prim.inputs[0]].shape
            found |= set(zip(prim.shape[-2 * prim.op.rank : -prim.op.rank], source[-prim.op.rank :], strict=True))
    return found


__all__ = ["Loop", "Walk", "pointer", "walk"]
