"""Primitives -> Plan: which share a kernel, which calls stay with PyTorch, in which order, and what each costs.

A kernel iterates over a space. A *reduce* kernel keeps some of its dimensions (a row for each kept coordinate) and reduces the
others; it may hold several reductions over the same space, values computed for each row from them, and values of the whole space
that are written in a later pass over the row. A *scan* kernel goes along its rows once and writes running values and what is made
of them, element by element. A *pointwise* kernel only writes. Everything else is computed where it is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from . import index, sizes
from .access import accesses, axes_of, same_shape, squeezed, tuple_key, unsqueezed, without_ones
from .graph import Dim, Graph, Node, Output, Ref
from .index import Axis, Coordinate
from .lower import Lowered
from .prims import (
    Coordinates,
    Iota,
    Pointwise,
    Prim,
    Reduce,
    Reshape,
    Sampled,
    Scan,
    Size,
    Unfold,
    View,
    Window,
)
from .rules.patterns import EVERY_CONVOLUTION, PRODUCTS

# A row that a block reads twice comes from cache the second time while it is this short: 64 Ki elements.
CACHED_ROW = 1 << 16
# Instructions on an element that take as long as writing and reading it: 8 bytes at 4.2 TB/s, 30 T a second (H200). Less by what
# a pool costs anyway.
COMPUTED_AGAIN = 40
SAMPLED = 4  # instructions to read an element at a place that is computed
SMALL_SPACE = 1 << 20  # elements up to which another launch costs more than idle multiprocessors
SMALL_COLUMN = 1 << 9  # elements of a column up to which the same holds: few blocks go down it
FULL_ROWS = 512  # H200: batch norm over 64 to 256 channels in one kernel of as many blocks ran at 0.7 of eager's speed
FULL_COLUMNS = 1 << 14  # H200: 4096 columns in one kernel ran at 0.13 of eager's speed


@dataclass
class Kernel:
    """One launch (or two, where a reduction is split). Mutable only while the plan is made."""

    space: tuple[Dim, ...]
    reduced: tuple[int, ...] = ()
    members: dict[str, str] = field(default_factory=dict)  # primitive -> "reduce" | "scan" | "row" | "full"
    stores: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    name: str = ""
    fused: Any = None  # takeover.Fused, where the kernel computes a convolution itself
    overwrites: dict[str, str] = field(default_factory=dict)  # store -> load of the buffer whose memory it is written to
    scanned: int | None = None  # the dimension that a scan kernel goes along

    @property
    def read_only(self) -> tuple[str, ...]:
        """Loads that the kernel does not overwrite."""
        return tuple(name for name in self.loads if name not in self.overwrites.values())

    @property
    def written(self) -> tuple[str, ...]:
        """For each store, the tensor that holds it."""
        return tuple(self.overwrites.get(name, name) for name in self.stores)

    @property
    def row_shape(self) -> tuple[Dim, ...]:
        return tuple(1 if d in self.along else size for d, size in enumerate(self.space))

    @property
    def along(self) -> tuple[int, ...]:
        """The dimensions that a row runs along."""
        return self.reduced if self.scanned is None else (self.scanned,)

    @property
    def is_reduce(self) -> bool:
        return bool(self.reduced)

    @property
    def is_scan(self) -> bool:
        return self.scanned is not None

    @property
    def is_pointwise(self) -> bool:
        return not self.along


@dataclass(frozen=True)
class Call:
    """A call to PyTorch: an operator with no record, kept as it was."""

    node: Node


@dataclass(frozen=True)
class Shortcut:
    """A kernel that runs in the place of some steps, one after the other, where no gradients are asked for."""

    kernel: Kernel
    steps: tuple[str, ...]  # their labels
    node: str  # by which it is chosen
    most: tuple[tuple[Dim, int], ...] = ()  # sizes up to which it works


@dataclass(frozen=True)
class Plan:
    graph: Graph
    lowered: Lowered
    steps: tuple[Kernel | Call, ...]
    rules: tuple[Any, ...] = ()
    captured: Graph | None = None  # the graph as it was before any law
    shortcuts: tuple[Shortcut, ...] = ()

    @cached_property
    def kernels(self) -> list[Kernel]:
        return [step for step in self.steps if isinstance(step, Kernel)]

    @cached_property
    def every_kernel(self) -> list[Kernel]:
        """Those of the steps, and of shortcuts."""
        return [*self.kernels, *(shortcut.kernel for shortcut in self.shortcuts)]

    @cached_property
    def home(self) -> dict[str, Kernel]:
        """The kernel that stores a primitive."""
        return {name: kernel for kernel in self.kernels for name in kernel.stores}

    def base(self, name: str) -> Prim:
        """The primitive in memory behind a value: through views."""
        prim = self.lowered.prims[name]
        while prim.name not in self.home and isinstance(prim.op, View):
            prim = self.lowered.prims[prim.inputs[0]]
        return prim

    def holds(self, prim: Prim) -> bool:
        """It is in memory: not where a kernel computes the call that it is the result of, and goes on without writing it."""
        return prim.name in self.home or (prim.is_load and prim.origin not in self.taken)

    @cached_property
    def taken(self) -> set[str]:
        """Calls that kernels of ours compute."""
        return {kernel.fused.anchor.node for kernel in self.kernels if kernel.fused is not None and hasattr(kernel.fused, "anchor")}

    @cached_property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]


def label(step: Kernel | Call) -> str:
    """What a step is known by, once kernels have names."""
    return step.name if isinstance(step, Kernel) else f"call of {step.node.name}"


def element_at(kernel: Kernel, prims: dict[str, Prim], prim: Prim, at: Coordinates) -> Coordinates | None:
    """Where a value has the element `at` of the kernel's space: the same elements in the same order.

    A reduction may run over the groups of a norm and write what is made of it in the shape of the tensor. What is made of a scan
    may lie the other way round.
    """
    shape = prim.shape
    turned = beside_scans(kernel, prims, prim, at) if kernel.is_scan else None
    if turned is not None or same_shape(kernel.space, shape):
        return turned or at
    if kernel.is_pointwise or not sizes.same(sizes.product(kernel.space), sizes.product(shape)):
        return None
    return index.reshape(at, kernel.space, shape)


def beside_scans(kernel: Kernel, prims: dict[str, Prim], prim: Prim, at: Coordinates) -> Coordinates | None:
    """Where a value has the element that reads the kernel's scans at `at`, if there is one for each `at`.

    Dimensions may be in another order and run backwards: of a flipped scan, the element at the other end.
    """
    scans = {name for name, role in kernel.members.items() if role == "scan"}
    axes = axes_of(prim.shape, "j")
    own = tuple(map(Coordinate.of, axes))
    reads = [a for a in accesses(prims, prim.name, own, scans, inside=prim.name not in scans) if a.leaf in scans]
    if len({tuple_key(a.at) for a in reads}) != 1 or any(a.windows for a in reads):
        return None
    found: dict[Axis, Coordinate] = {}
    for here, there, size in zip(at, reads[0].at, kernel.space, strict=True):
        axis, backwards = (None, False) if sizes.is_one(size) else runs_along(there, size)
        if axis is not None:
            found[axis] = here * -1 + sizes.tidy(size - 1) if backwards else here
    wanted = {axis for axis in axes if not sizes.is_one(axis.size)}
    one_to_one = found.keys() == wanted and len(wanted) == len(without_ones(kernel.space))
    return tuple(found.get(axis, Coordinate()) for axis in axes) if one_to_one else None


def runs_along(there: Coordinate, size: Dim) -> tuple[Axis | None, bool]:
    """The axis along which a coordinate runs from end to end, if there is one, and whether it runs backwards."""
    axis, factor = next(iter(there.terms.items()), (None, 0))
    if axis is None or len(there.terms) != 1 or not sizes.same(axis.size, size):
        return None, False
    if sizes.is_one(factor) and sizes.same(there.offset, 0):
        return axis, False
    backwards = sizes.same(factor, -1) and sizes.same(there.offset, sizes.tidy(size - 1))
    return (axis, True) if backwards else (None, False)


class Planner:
    """Assigns primitives to kernels, in order; lives for the length of `plan`."""

    def __init__(self, lowered: Lowered, channels_last: bool = False, pools: frozenset[str] = frozenset()):
        self.pools = pools  # and other values that are to be in memory
        self.lowered, self.graph, self.prims = lowered, lowered.graph, lowered.prims
        self.channels_last = channels_last  # images will lie so
        self.kernels: list[Kernel] = []
        self.home: dict[str, Kernel] = {}
        self.wanted: set[str] = set()  # must be in memory
        self.live_calls: set[str] = set()
        self.rank = {name: number for number, name in enumerate(self.prims)}
        self.ancestors: dict[str, int] = {}  # of a primitive, the set of what it depends on: a bit for each, by rank
        self.number: dict[int, int] = {}  # of a kernel, by its identity
        self.touching: dict[str, set[int]] = {}  # primitive -> the numbers of kernels that make it or read it
        self.users: dict[str, list[Prim]] = {}

    # ---- what is needed

    def mark(self) -> None:
        """Which library calls run and which primitives must be in memory for them and for the outputs."""
        outputs = [o for o in self.graph.outputs if counts_up(o, self.graph) is None]
        pending = [output.value.name for output in outputs if isinstance(output.value, Ref)]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.graph[name]
            if node.name in self.lowered.library:
                self.live_calls.add(name)
                pending += node.inputs
            elif not node.is_leaf:
                for stored in self.want(self.lowered.value[name]):
                    pending += self.loads_behind(stored)
            # a leaf is in memory already

    def want(self, name: str) -> list[str]:
        """The primitive must be in memory; views are made by PyTorch from their source, for nothing. Where it would have to copy (a
        reshape of what is permuted), what it would make of the source is what must be in memory."""
        prim, found = self.prims[name], None
        axes = axes_of(prim.shape)
        at = tuple(map(Coordinate.of, axes))
        while isinstance(prim.op, View) and prim.op.is_free:
            if found is None and isinstance(prim.op, Reshape):
                found = prim
            source = self.prims[prim.inputs[0]]
            at, prim = prim.op.source(at, prim.shape, source.shape), source
        if found is None or prim.offset(at).terms.keys() <= set(axes) or not self.lies_in_order(prim):
            found = prim
        if not found.is_load:
            self.wanted.add(found.name)
        return [found.name]

    def lies_in_order(self, prim: Prim) -> bool:
        """Its order in memory is known. Some library calls leave a result in an order of their own, of which a view may be free."""
        node = self.graph[prim.origin]
        return not prim.is_load or node.is_leaf or bool(prim.op.order) or node.target in PRODUCTS | EVERY_CONVOLUTION

    def loads_behind(self, name: str) -> list[str]:
        """Library nodes whose results the primitive depends on, directly."""
        found, stack, seen = [], [name], set()
        while stack:
            prim = self.prims[stack.pop()]
            if prim.name in seen:
                continue
            seen.add(prim.name)
            if prim.is_load:
                found.append(prim.origin)
            stack += prim.inputs
        return found

    def live_prims(self) -> list[Prim]:
        live: set[str] = set()
        stack = list(self.wanted)
        while stack:
            name = stack.pop()
            if name not in live:
                live.add(name)
                stack += self.prims[name].inputs
        return [prim for prim in self.prims.values() if prim.name in live]

    def find_ancestors(self) -> None:
        """Every primitive that a primitive depends on, through library calls too."""
        for prim in self.prims.values():
            found = 0
            sources = list(prim.inputs)
            if prim.is_load and not self.graph[prim.origin].is_leaf:
                sources += self.sources_of_call(prim.origin)
            for name in sources:
                found |= 1 << self.rank[name] | self.ancestors.get(name, 0)
            self.ancestors[prim.name] = found

    def sources_of_call(self, name: str) -> list[str]:
        found = []
        for source in self.graph[name].inputs:
            if source in self.lowered.value:
                found.append(self.lowered.value[source])
            else:  # a call with several results has no primitive of its own
                found += self.sources_of_call(source)
        return found

    # ---- joining kernels

    def stops(self) -> Collection[str]:
        return self.home.keys()

    def is_behind(self, source: str, name: str) -> bool:
        """`name` depends on `source`."""
        return bool(self.ancestors[name] >> self.rank[source] & 1)

    def depends_on(self, name: str, kernel: Kernel) -> bool:
        return any(self.is_behind(member, name) for member in kernel.members)

    def legal(self, root: str, at: Coordinates, row: Coordinates, kernel: Kernel) -> bool:
        """Evaluating `root` in the kernel reads the kernel's own values only at its own row, and nothing made from them elsewhere.

        A row of a pointwise kernel is an element, and what is written of it is still at hand.
        """
        for access in accesses(self.prims, root, at, self.stops(), inside=True):
            if self.home.get(access.leaf) is kernel:
                there = squeezed(access.at, self.prims[access.leaf].shape)
                own_row = tuple_key(there) == tuple_key(squeezed(row, kernel.row_shape))
                at_hand = kernel.is_pointwise or kernel.members[access.leaf] != "full"
                if not at_hand or access.windows or not own_row:
                    return False
            elif self.depends_on(access.leaf, kernel):
                return False
        return True

    def coordinates(self, kernel: Kernel) -> tuple[Coordinates, Coordinates]:
        at = tuple(map(Coordinate.of, axes_of(kernel.space)))
        row = tuple(Coordinate() if d in kernel.reduced else c for d, c in enumerate(at))
        return at, row

    def leaves(self, root: str, shape: tuple[Dim, ...], inside: bool = True) -> set[str]:
        at = tuple(map(Coordinate.of, axes_of(shape)))
        return {access.leaf for access in accesses(self.prims, root, at, self.stops(), inside)}

    def shares(self, leaves: set[str], kernel: Kernel) -> bool:
        """They read a tensor of the kernel's own size in common, or one needs the other's result."""
        if any(self.home.get(leaf) is kernel for leaf in leaves):
            return True
        total = self.graph.hint(sizes.product(kernel.space))
        number = self.number[id(kernel)]
        theirs = [leaf for leaf in leaves if number in self.touching.get(leaf, ())]
        return any(self.graph.hint(sizes.product(self.prims[leaf].shape)) * 4 >= total for leaf in theirs)

    def near(self, leaves: set[str]) -> list[Kernel]:
        """The kernels that make or read one of them, in order."""
        found = set().union(*(self.touching.get(leaf, ()) for leaf in leaves))
        return [self.kernels[number] for number in sorted(found)]

    def open(self, kernel: Kernel) -> Kernel:
        self.number[id(kernel)] = len(self.kernels)
        self.kernels.append(kernel)
        return kernel

    def assign(self, name: str, kernel: Kernel, role: str) -> None:
        """What it is made of has been placed before: what it reads stays what it is now."""
        prim = self.prims[name]
        read = self.leaves(prim.inputs[0], kernel.space, False) if prim.is_collective else self.leaves(name, prim.shape)
        for leaf in {name, *read}:
            self.touching.setdefault(leaf, set()).add(self.number[id(kernel)])
        kernel.members[name] = role
        self.home[name] = kernel

    def place_reduce(self, prim: Prim) -> None:
        source = self.prims[prim.inputs[0]]
        leaves = self.leaves(
            source.name,
            source.shape,
            inside=source.name not in self.home and not source.is_load and not source.is_collective,
        )
        for kernel in self.near(leaves):
            if (
                kernel.reduced == prim.op.dims
                and same_shape(kernel.space, source.shape)
                and self.shares(leaves, kernel)
            ):
                at, row = self.coordinates(kernel)
                if (
                    source.name in self.home
                    and self.home[source.name] is kernel
                    and kernel.members[source.name] == "full"
                ):
                    continue
                waits = any(self.home.get(leaf) is kernel for leaf in leaves)  # a second pass over the rows
                if (not waits or self.fills_gpu(kernel)) and self.legal_reduce(source, at, row, kernel):
                    self.assign(prim.name, kernel, "reduce")
                    return
        self.assign(prim.name, self.open(Kernel(source.shape, prim.op.dims)), "reduce")

    def legal_reduce(self, source: Prim, at: Coordinates, row: Coordinates, kernel: Kernel) -> bool:
        if source.is_load or source.is_collective or source.name in self.home:
            return self.home.get(source.name) is not kernel and not self.depends_on(source.name, kernel)
        return self.legal(source.name, at, row, kernel)

    def place_scan(self, prim: Prim) -> None:
        """With other scans of the same rows, even of what they give, or in a kernel of its own."""
        source = prim.inputs[0]
        for kernel in self.kernels:
            if kernel.scanned == prim.op.dim and same_shape(kernel.space, prim.shape):
                at, _ = self.coordinates(kernel)
                if self.meets(source, at, kernel, False) and self.at_hand(source, at, kernel, False):
                    self.assign(prim.name, kernel, "scan")
                    return
        self.assign(prim.name, self.open(Kernel(prim.shape, scanned=prim.op.dim)), "scan")

    def meets(self, root: str, at: Coordinates, kernel: Kernel, inside: bool = True) -> bool:
        """It needs one of the kernel's scans, or no scan at all and reads a large tensor at the same elements as they do."""
        here, _ = self.coordinates(kernel)
        ours = accesses(self.prims, root, at, self.stops(), inside)
        needed = [self.home[a.leaf] for a in ours if a.leaf in self.home and self.home[a.leaf].is_scan]
        if needed:
            return any(home is kernel for home in needed)
        sources = [self.prims[name].inputs[0] for name, role in kernel.members.items() if role == "scan"]
        theirs = [access for source in sources for access in accesses(self.prims, source, here, self.stops())]
        shared = {(a.leaf, tuple_key(a.at)) for a in ours} & {(a.leaf, tuple_key(a.at)) for a in theirs}
        total = self.graph.hint(sizes.product(kernel.space))
        return any(self.graph.hint(sizes.product(self.prims[leaf].shape)) * 4 >= total for leaf, _ in shared)

    def at_hand(self, root: str, at: Coordinates, kernel: Kernel, inside: bool = True) -> bool:
        """Evaluating `root` in a scan kernel reads its scans only where they have come to, and nothing made from them elsewhere."""
        here = tuple_key(self.coordinates(kernel)[0])
        stops = {name for name in self.home if kernel.members.get(name) != "full"}
        for access in accesses(self.prims, root, at, stops, inside):
            if self.home.get(access.leaf) is kernel:
                if access.windows or tuple_key(access.at) != here:
                    return False
            elif self.depends_on(access.leaf, kernel):
                return False
        return True

    def row_kernel(self, prim: Prim) -> Kernel | None:
        """The kernel whose rows this value belongs to: computed from its reductions, one value for each row."""
        if not isinstance(prim.op, (Pointwise, Reshape)):
            return None
        leaves = self.leaves(prim.name, prim.shape)
        homes = {self.number[id(self.home[leaf])] for leaf in leaves if leaf in self.home}
        for kernel in (self.kernels[number] for number in sorted(homes, reverse=True)):
            if kernel.is_reduce:
                same_rows = same_shape(without_ones(prim.shape), without_ones(kernel.row_shape))
                _, row = self.coordinates(kernel)
                if same_rows and self.legal(prim.name, unsqueezed(row, kernel.row_shape, prim.shape), row, kernel):
                    return kernel
        return None

    def place_stored(self, prim: Prim) -> None:
        """A value that must be in memory: in a pass of a reduce kernel over the same space, or in a pointwise kernel."""
        leaves = self.leaves(prim.name, prim.shape)
        makers = {id(self.home[leaf]) for leaf in leaves if leaf in self.home}
        for kernel in sorted(self.near(leaves), key=lambda kernel: id(kernel) not in makers):  # where what it needs is at hand first
            element, row = self.coordinates(kernel)
            at = element_at(kernel, self.prims, prim, element)
            if at is None or self.divides(prim, at, kernel):
                continue
            if kernel.is_scan:
                if self.meets(prim.name, at, kernel) and self.at_hand(prim.name, at, kernel):
                    self.assign(prim.name, kernel, "full")
                    return
                continue
            if not self.shares(leaves, kernel):
                continue
            if kernel.is_reduce:
                reads_reduction = any(self.home.get(leaf) is kernel for leaf in leaves)
                if not reads_reduction or not self.fills_gpu(kernel):
                    continue
            if self.legal(prim.name, at, row, kernel):
                self.assign(prim.name, kernel, "full")
                return
        self.assign(prim.name, self.open(Kernel(prim.shape)), "full")

    def divides(self, prim: Prim, at: Coordinates, kernel: Kernel) -> bool:
        """To find the value's element, or what it is made of, takes a division, and not only one for each row."""
        inner = max((d for d, size in enumerate(kernel.space) if not sizes.is_one(size)), default=0)
        rows = {f"i{d}" for d in range(inner) if d not in kernel.reduced} if kernel.is_reduce else set()
        uses: list[Coordinate] = []
        read = accesses(self.prims, prim.name, at, self.stops(), inside=True, uses=uses)
        offsets = [prim.offset(at), *uses, *(self.prims[access.leaf].offset(access.at) for access in read)]
        return any(axis.divided is not None and not axis.depends <= rows for offset in offsets for axis in offset.terms)

    def fills_gpu(self, kernel: Kernel) -> bool:
        """One kernel may go over its rows twice: they are enough to occupy a GPU, and short enough to stay in cache."""
        rows = self.graph.hint(sizes.product(kernel.row_shape))
        length = self.graph.hint(sizes.product(kernel.space[d] for d in kernel.reduced))
        real = [d for d, size in enumerate(kernel.space) if not sizes.is_one(size)]
        if self.channels_last and len(kernel.space) in (4, 5) and 1 in real:
            real.append(1)
        by_rows = bool(real) and real[-1] in kernel.reduced
        if by_rows:
            return rows * length <= SMALL_SPACE or (length <= CACHED_ROW and rows >= FULL_ROWS)
        return length <= SMALL_COLUMN or (length <= CACHED_ROW and rows >= FULL_COLUMNS)

    def outlives_a_call(self, prim: Prim) -> bool:
        """A sum that is read again beside what a library call made of it (a residual): stored once instead of summed each time."""
        if not isinstance(prim.op, Pointwise) or prim.name in self.home:
            return False
        size = self.graph.hint(sizes.product(prim.shape))
        leaves = self.leaves(prim.name, prim.shape)
        large = [leaf for leaf in leaves if self.graph.hint(sizes.product(self.prims[leaf].shape)) * 2 >= size]
        if len(large) < 2:
            return False
        for user in self.users.get(prim.name, []):
            for other in user.inputs:
                if other != prim.name and self.is_behind(prim.name, other) and self.through_call(prim.name, other):
                    return True
        return False

    def through_call(self, source: str, name: str) -> bool:
        """`name` depends on `source` by way of a library call."""
        stack, seen = [name], set()
        while stack:
            prim = self.prims[stack.pop()]
            if prim.name in seen:
                continue
            seen.add(prim.name)
            if prim.is_load and self.is_behind(source, prim.name):
                return True
            stack += [name for name in prim.inputs if self.is_behind(source, name)]
        return False

    def absorb(self) -> None:
        """What a pointwise kernel writes and a kernel along the rows of the same space reads is written there, while it is at hand.

        So is what it makes of a tensor that the other reads too, element by element.
        """
        for writer in [k for k in self.kernels if k.is_pointwise]:
            for reader in self.kernels:
                if reader is writer or reader.is_pointwise or not same_shape(reader.space, writer.space):
                    continue
                if self.can_absorb(writer, reader) or self.reads_alike(writer, reader):
                    for name in writer.members:
                        self.home[name] = reader
                        reader.members[name] = "full"
                    self.kernels.remove(writer)
                    break

    def can_absorb(self, writer: Kernel, reader: Kernel) -> bool:
        at, _ = self.coordinates(reader)
        outside = self.reads(reader, list(reader.members))
        if not any(name in writer.members for name in outside):
            return False
        for name in outside - writer.members.keys():  # nothing else it reads may come from what the writer makes
            if self.depends_on(name, writer):
                return False
        if any(self.depends_on(name, reader) for name in writer.members):
            return False
        for member, role in reader.members.items():
            if role in ("reduce", "scan"):
                source = self.prims[member].inputs[0]
                for access in accesses(self.prims, source, at, self.stops(), source not in self.home):
                    if access.leaf in writer.members and (access.windows or tuple_key(access.at) != tuple_key(at)):
                        return False
        return True

    def reads_alike(self, writer: Kernel, reader: Kernel) -> bool:
        """All large tensors that a pointwise kernel reads are read at the same elements by reductions over many rows, and neither
        needs the other: one look at them serves both."""
        apart = not any(self.depends_on(name, reader) for name in writer.members)
        apart = apart and not any(self.depends_on(name, writer) for name in reader.members)
        if not apart or not reader.is_reduce or not self.fills_gpu(reader):
            return False
        at, _ = self.coordinates(reader)
        total = self.graph.hint(sizes.product(reader.space))
        sources = [self.prims[name].inputs[0] for name, role in reader.members.items() if role == "reduce"]

        def large(roots: list[str], inside: bool) -> set[Any]:
            found = [a for root in roots for a in accesses(self.prims, root, at, self.stops(), inside)]
            return {(a.leaf, tuple_key(a.at)) for a in found if self.graph.hint(sizes.product(self.prims[a.leaf].shape)) * 4 >= total}

        ours = large(list(writer.members), True)
        divides = any(self.divides(self.prims[name], at, reader) for name in writer.members)
        return bool(ours) and ours <= large(sources, False) and not divides

    def heavy_window_input(self, prim: Prim, users: dict[str, list[Prim]]) -> bool:
        """Overlapping windows or pieces, and places in between, would compute this again and again; a pool of a pool, taps times taps,
        and so would whoever reads a pool repeated. What is repeated itself is in memory once for each element."""
        windows = [user for user in users.get(prim.name, []) if isinstance(user.op, (Window, Unfold, Sampled))]
        repeated = self.is_repeated(prim, users)
        if not (windows or repeated) or not isinstance(prim.op, (Pointwise, Window, View)) or self.repeats(prim):
            return False
        pooled = any(isinstance(window.op, (Window, Sampled)) for window in windows)
        cost, stack, seen = 0, [prim.name], set()
        while stack:
            here = self.prims[stack.pop()]
            if here.name in seen or here.name in self.home or here.is_load or here.is_collective:
                continue
            seen.add(here.name)
            if isinstance(here.op, Window) and (pooled or any(k > 1 for k in here.op.kernel)):
                return True
            cost += here.op.cost if isinstance(here.op, Pointwise) else SAMPLED if isinstance(here.op, Sampled) else 0
            stack += here.inputs
        sampled = sum(self.times(window, prim) for window in windows if isinstance(window.op, Sampled))
        return any(again(window) * cost > COMPUTED_AGAIN for window in windows) or (sampled - 1) * cost > COMPUTED_AGAIN

    def is_repeated(self, prim: Prim, users: dict[str, list[Prim]]) -> bool:
        """Someone reads it through views that show more than there is, element by element."""

        def views(name: str) -> list[Prim]:
            return [user for user in users.get(name, []) if isinstance(user.op, View) and not isinstance(user.op, (Unfold, Sampled))]

        stack = views(prim.name) if not isinstance(prim.op, View) else []
        while stack:
            view = stack.pop()
            if self.times(view, prim) > 1:
                return True
            stack += views(view.name)
        return False

    def repeats(self, view: Prim) -> bool:
        source = view
        while isinstance(source.op, View) and not isinstance(source.op, (Unfold, Sampled)):
            source = self.prims[source.inputs[0]]
        return self.times(view, source) > 1

    def times(self, view: Prim, source: Prim) -> float:
        """How many elements a view has for each of its source."""
        here, there = (self.graph.hint(sizes.product(p.shape)) for p in (view, source))
        return here / max(there, 1)

    def made_twice(self) -> frozenset[str]:
        """What several kernels compute and should not: what takes longer than any function; of images that lie channels-last, pools,
        each from all that they pool (with rows along them, a row stays in registers instead)."""
        makers: dict[str, int] = {}
        for kernel in self.kernels:
            stack, seen = [name for member in kernel.members for name in self.prims[member].inputs], set()
            while stack:
                prim = self.prims[stack.pop()]
                if prim.name in seen or prim.name in self.home or prim.is_load:
                    continue
                seen.add(prim.name)
                pool = isinstance(prim.op, Window) and prod(prim.op.stride) > 1 and prim.op.kind != "largest"
                if (pool and self.channels_last) or (isinstance(prim.op, Pointwise) and prim.op.cost > COMPUTED_AGAIN):
                    makers[prim.name] = makers.get(prim.name, 0) + 1
                stack += prim.inputs
        return frozenset(name for name, count in makers.items() if count > 1)

    def run(self) -> tuple[Kernel | Call, ...]:
        self.mark()
        self.find_ancestors()
        live = self.live_prims()
        users: dict[str, list[Prim]] = {}
        for prim in live:
            for name in prim.inputs:
                users.setdefault(name, []).append(prim)
        self.users = users
        for prim in live:
            if isinstance(prim.op, Reduce):
                self.place_reduce(prim)
            elif isinstance(prim.op, Scan):
                self.place_scan(prim)
            elif isinstance(prim.op, (Pointwise, Reshape, Window, View, Size, Iota)) and not prim.is_load:
                kernel = self.row_kernel(prim)
                if kernel is not None:
                    self.assign(prim.name, kernel, "row")
                elif prim.name in self.wanted | self.pools or self.heavy_window_input(prim, users) or self.outlives_a_call(prim):
                    self.wanted.add(prim.name)
                    self.place_stored(prim)
        self.absorb()
        self.settle()
        return self.order()

    # ---- what is loaded and stored, and the order of it all

    def settle(self) -> None:
        """A kernel stores what is wanted of it and what other kernels read; it loads the rest of what it reads."""
        demanded = set(self.wanted)
        changed = True
        while changed:
            changed = False
            for kernel in reversed(self.kernels):  # who reads comes after who makes
                roots = [m for m in kernel.members if m in demanded]
                outside = {leaf for leaf in self.reads(kernel, roots) if self.home.get(leaf) is not kernel}
                new = {leaf for leaf in outside if leaf in self.home} - demanded
                changed |= bool(new)
                demanded |= new
        for kernel in self.kernels:
            kernel.stores = tuple(m for m in kernel.members if m in demanded)
            reads = self.reads(kernel, list(kernel.stores))
            kernel.loads = tuple(sorted((p for p in reads if self.home.get(p) is not kernel), key=self.rank.__getitem__))
        self.kernels = [kernel for kernel in self.kernels if kernel.stores]

    def reads(self, kernel: Kernel, roots: list[str]) -> set[str]:
        """Leaves outside the kernel that computing `roots` in it needs, and the members it goes through."""
        found: set[str] = set()
        stack, seen = list(roots), set()
        while stack:
            prim = self.prims[stack.pop()]
            if prim.name in seen:
                continue
            seen.add(prim.name)
            if prim.is_load or self.home.get(prim.name, kernel) is not kernel:
                found.add(prim.name)
            else:
                stack += prim.inputs
        return found

    def order(self) -> tuple[Kernel | Call, ...]:
        steps: list[Kernel | Call] = [Call(node) for node in self.graph.nodes if node.name in self.live_calls]
        steps += self.kernels
        made_by: dict[str, int] = {}
        for i, step in enumerate(steps):
            if isinstance(step, Kernel):
                made_by.update(dict.fromkeys(step.stores, i))
            elif step.node.shape is not None:
                made_by[self.lowered.value[step.node.name]] = i
        call_at = {step.node.name: i for i, step in enumerate(steps) if isinstance(step, Call)}
        needs: list[set[int]] = []
        for step in steps:
            if isinstance(step, Kernel):
                needs.append({made_by[name] for name in step.loads if name in made_by})
            else:
                wanted: set[int] = set()
                for source in step.node.inputs:
                    if source in call_at:
                        wanted.add(call_at[source])
                    elif source in self.lowered.value:
                        wanted |= {made_by[name] for name in self.want(self.lowered.value[source]) if name in made_by}
                needs.append(wanted)
        done = earliest_first(needs, list(map(self.first_position, steps)))
        return tuple(steps[i] for i in done)

    def first_position(self, step: Kernel | Call) -> int:
        if isinstance(step, Call):
            return self.graph.position[step.node.name]
        return max(self.graph.position[self.prims[name].origin] for name in step.stores)


def earliest_first(needs: list[set[int]], position: list[int]) -> list[int]:
    """Steps in an order that has what each needs before it; of those that are ready, the one with the lowest position."""
    users: list[list[int]] = [[] for _ in needs]
    for i, wanted in enumerate(needs):
        for other in wanted:
            users[other].append(i)
    left = [len(wanted) for wanted in needs]
    ready = [(position[i], i) for i, count in enumerate(left) if not count]
    heapq.heapify(ready)
    done: list[int] = []
    while ready:
        _, step = heapq.heappop(ready)
        done.append(step)
        for user in users[step]:
            left[user] -= 1
            if not left[user]:
                heapq.heappush(ready, (position[user], user))
    if len(done) < len(needs):
        raise Cyclic("kernels depend on each other in a circle")
    return done


def counts_up(output: Output, graph: Graph) -> int | None:
    """The step of a buffer that only counts (`num_batches_tracked`): PyTorch adds it in place."""
    node = graph[output.value.name] if isinstance(output.value, Ref) else None
    if output.kind != "buffer" or node is None or str(node.target) != "aten.add.Tensor" or node.shape != ():
        return None
    first, step = node.args[:2]
    same = isinstance(first, Ref) and graph[first.name].target == "buffer" and graph[first.name].args[0] == output.path
    return step if same and type(step) is int and len(graph.users()[node.name]) == 1 else None


def again(prim: Prim) -> float:
    """How often each element is computed besides once, where neighbouring windows, or pieces, have elements in common."""
    if isinstance(prim.op, Sampled):
        return 0.0  # several of them together are one operator
    if isinstance(prim.op, Unfold):
        length = prim.shape[-1] if isinstance(prim.shape[-1], int) else COMPUTED_AGAIN
        return max(0.0, length / prim.op.step - 1)
    return max(0.0, prod(prim.op.kernel) / prod(prim.op.stride) - 1)


class Cyclic(Exception):
    """The grouping would need a kernel to run before itself."""


def plan(lowered: Lowered, rules: tuple[Any, ...] = (), channels_last: bool = False) -> Plan:
    planner = Planner(lowered, channels_last)
    steps = planner.run()
    if pools := planner.made_twice():
        steps = Planner(lowered, channels_last, pools).run()
    result = Plan(lowered.graph, lowered, steps, rules)
    name_kernels(result)
    return result


def name_kernels(made: Plan) -> None:
    """A kernel is called after the operators it replaces."""
    taken: set[str] = set()
    prims = made.lowered.prims
    for kernel in made.kernels:
        all_words = [operator_word(node, made.graph) for node in origins(kernel, prims, made.graph)]
        words = list(dict.fromkeys(word for word in all_words if word))
        if len(words) > 5:
            words = [*words[:3], "to", words[-1]]
        only_parts = all(name != prims[name].origin for name in kernel.stores)
        base = "_".join(words or ["copy"]) + (
            "_statistics" if kernel.is_reduce and only_parts and "norm" in "".join(words) else ""
        )
        name, count = f"fused_{base}", 1
        while name in taken:
            count += 1
            name = f"fused_{base}_{count}"
        taken.add(name)
        kernel.name = name


def origins(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> list[Node]:
    """Graph nodes whose work the kernel does, in graph order."""
    made = (prims[name] for name in evaluated(kernel, prims))
    return graph.in_order({prim.origin for prim in made if not isinstance(prim.op, Size) or prim.origin == prim.name})  # sizes are shared


def evaluated(kernel: Kernel, prims: dict[str, Prim]) -> dict[str, None]:
    """Primitives that are computed in the kernel, as against read from memory."""
    found: dict[str, None] = {}
    stack = list(kernel.stores)
    while stack:
        name = stack.pop()
        if name not in found and name not in kernel.loads:
            found[name] = None
            stack += prims[name].inputs
    return found


def operator_name(node: Node, graph: Graph) -> str:
    """`group_norm` for aten.group_norm.default; an element of a call is named after the call."""
    if node.target == "getitem":
        return operator_name(graph[node.args[0].name], graph)
    name = str(node.target).removeprefix("aten.").rsplit(".", 1)[0].strip("_")
    return {
        "native_batch_norm_legit_functional": "batch_norm",
        "native_batch_norm_legit": "batch_norm",
        "native_batch_norm_legit_no_training": "batch_norm",
    }.get(name, name)


def operator_word(node: Node, graph: Graph) -> str:
    """What a kernel's name says of a node; views say nothing."""
    from . import ops

    record = ops.RECORDS.get(node.target)
    if record is not None and (record.view or record.name == "identity"):
        return ""
    return operator_name(node, graph).replace(".", "_")
