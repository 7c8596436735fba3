"""Primitives -> Plan: which share a kernel, which calls stay with PyTorch, and in which order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

from ..ir import sizes
from ..ir.access import accesses, axes_of, same_shape, squeezed, tuple_key, unsqueezed, without_ones
from ..ir.graph import Dim
from ..ir.index import Coordinate
from ..ir.lowered import Lowered
from ..ir.plan import Call, Kernel, Plan, element_at
from ..ir.prims import (
    Coordinates,
    Iota,
    Picked,
    Pointwise,
    Prim,
    Reduce,
    Reshape,
    Sampled,
    Scan,
    Size,
    Unfold,
    Unpooled,
    View,
    Window,
)
from ..laws.law import Applied, each_once
from ..target.machine import H200, Machine
from .grouping import Grouping
from .naming import name_kernels
from .places import cost_of, needed_at_several_places

# A row that a block reads twice comes from cache the second time while it is this short: 64 Ki elements.
CACHED_ROW = 1 << 16
# Instructions on an element that take as long as writing and reading it: 8 bytes at 4.2 TB/s, 30 T a second (H200). Less by what
# a pool costs anyway.
COMPUTED_AGAIN = 40
SURELY = 4  # times that: what neighbours compute again is counted roughly, and its growth is what matters; not timed
SMALL_SPACE = 1 << 20  # elements up to which another launch costs more than idle multiprocessors
SMALL_COLUMN = 1 << 9  # elements of a column up to which the same holds: few blocks go down it
FULL_ROWS = 512  # H200: batch norm over 64 to 256 channels in one kernel of as many blocks ran at 0.7 of eager's speed
FULL_COLUMNS = 1 << 14  # H200: 4096 columns in one kernel ran at 0.13 of eager's speed


class Planner(Grouping):
    """Assigns primitives to kernels, in order; lives for the length of `plan`."""

    def __init__(
        self, lowered: Lowered, channels_last: bool = False, pools: frozenset[str] = frozenset(), machine: Machine = H200
    ):
        super().__init__(lowered)
        self.pools = pools  # and other values that are to be in memory
        self.machine = machine
        self.most_recomputed = COMPUTED_AGAIN * machine.by_issue(1.0) / machine.by_memory(1.0)
        self.channels_last = channels_last  # images will lie so
        self.number: dict[int, int] = {}  # of a kernel, by its identity
        self.touching: dict[str, set[int]] = {}  # primitive -> the numbers of kernels that make it or read it
        self.users: dict[str, list[Prim]] = {}
        self.tables = {prim.inputs[0] for prim in self.prims.values() if isinstance(prim.op, Picked)}

    # ---- joining kernels

    def stops(self) -> Collection[str]:
        return self.home.keys()

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
        return any(self.is_large(leaf, total) for leaf in leaves if number in self.touching.get(leaf, ()))

    def is_large(self, leaf: str, total: int) -> bool:
        """As much is read of it as of a tensor as large as a kernel's space, or nearly. Of a table it is as much as is picked."""
        return leaf in self.tables or self.graph.hint(sizes.product(self.prims[leaf].shape)) * 4 >= total

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
        return any(self.is_large(leaf, total) for leaf, _ in shared)

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
        by_cells = self.has_unpooled(prim.name)
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
                if by_cells:
                    continue
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
        by_rows, cached = bool(real) and real[-1] in kernel.reduced, self.machine.by_cache(CACHED_ROW)
        if by_rows:
            return rows * length <= SMALL_SPACE or (length <= cached and rows >= self.machine.by_size(FULL_ROWS))
        return length <= SMALL_COLUMN or (length <= cached and rows >= self.machine.by_size(FULL_COLUMNS))

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
                if any(map(self.has_unpooled, writer.members)):
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
            return {(a.leaf, tuple_key(a.at)) for a in found if self.is_large(a.leaf, total)}

        ours = large(list(writer.members), True)
        divides = any(self.divides(self.prims[name], at, reader) for name in writer.members)
        return bool(ours) and ours <= large(sources, False) and not divides

    def heavy_window_input(self, prim: Prim, users: dict[str, list[Prim]]) -> bool:
        """Overlapping windows or pieces, and places in between, would compute this again and again; a pool of a pool, taps times taps,
        and so would whoever reads a pool repeated. What is repeated itself is in memory once for each element."""
        windows = [user for user in users.get(prim.name, []) if isinstance(user.op, (Window, Unfold, Sampled))]
        windows += [user for user in users.get(prim.name, []) if isinstance(user.op, Picked) and user.inputs[0] == prim.name]
        windows += self.put_elsewhere(prim, users)
        repeated = self.is_repeated(prim, users)
        if not (windows or repeated) or not isinstance(prim.op, (Pointwise, Window, View, Picked)) or self.repeats(prim):
            return False
        picked = sum(self.times(window, prim) for window in windows if isinstance(window.op, Picked))
        pooled = picked > 1 or any(isinstance(w.op, Sampled) or (isinstance(w.op, Window) and prod(w.op.kernel) > 1) for w in windows)
        cost, stack, seen = 0, [prim.name], set()
        while stack:
            here = self.prims[stack.pop()]
            if here.name in seen or here.name in self.home or here.is_load or here.is_collective:
                continue
            seen.add(here.name)
            if isinstance(here.op, Window) and (pooled or any(k > 1 for k in here.op.kernel)):
                return True
            cost += cost_of(here)
            stack += here.inputs
        sampled = picked + sum(self.times(window, prim) for window in windows if isinstance(window.op, Sampled))
        most = self.most_recomputed
        return any(again(window) * cost > most for window in windows) or (sampled - 1) * cost > most

    def looked_at_again(self, prim: Prim) -> bool:
        """The largest of a window, or its place there, where the window would be gone through again for the other, or for each of its
        positions: by a kernel that has a window's positions in one thread it is not."""
        pool = self.prims[prim.inputs[0]] if isinstance(prim.op, Pointwise) and len(prim.inputs) == 1 else None
        if pool is None or not isinstance(pool.op, Window) or not pool.op.span:
            return False
        unpooled = [user for user in self.users.get(prim.name, []) if isinstance(user.op, Unpooled)]
        return len(self.users[pool.name]) > 1 or not all(map(self.ends_in_cells, unpooled))

    def ends_in_cells(self, prim: Prim) -> bool:
        """Nothing but one pointwise kernel computes it, which goes along windows."""
        users = self.users.get(prim.name, [])
        alone = len(users) == 1 and isinstance(users[0].op, Pointwise) and same_shape(users[0].shape, prim.shape)
        return prim.name in self.wanted or (alone and self.ends_in_cells(users[0]))

    def has_unpooled(self, name: str) -> bool:
        """Computing it goes along the windows of a pool."""
        stack, seen = [name], set()
        while stack:
            prim = self.prims[stack.pop()]
            if prim.name not in seen and (prim.name == name or prim.name not in self.home) and not prim.is_collective:
                if isinstance(prim.op, Unpooled):
                    return True
                seen.add(prim.name)
                stack += prim.inputs
        return False

    def views_of(self, prim: Prim, users: dict[str, list[Prim]]) -> list[Prim]:
        """Views of what is none itself, and of these: those that have an element for each place in it, or more."""

        def views(name: str) -> list[Prim]:
            return [user for user in users.get(name, []) if isinstance(user.op, View) and not isinstance(user.op, (Unfold, Sampled))]

        found = views(prim.name) if not isinstance(prim.op, View) else []
        for view in found:
            found += views(view.name)
        return found

    def is_repeated(self, prim: Prim, users: dict[str, list[Prim]]) -> bool:
        """Someone reads it through views that show more than there is, element by element."""
        return any(self.times(view, prim) > 1 for view in self.views_of(prim, users))

    def put_elsewhere(self, prim: Prim, users: dict[str, list[Prim]]) -> list[Prim]:
        """Where several views of it, parts of it above all, are put at some place: rather it is in memory than each of them."""
        found = [user for view in self.views_of(prim, users) for user in users.get(view.name, []) if isinstance(user.op, Window)]
        return found if len(found) > 1 else []

    def repeats(self, view: Prim) -> bool:
        source = view
        while isinstance(source.op, View) and not isinstance(source.op, (Unfold, Sampled)):
            source = self.prims[source.inputs[0]]
        return self.times(view, source) > 1

    def times(self, view: Prim, source: Prim) -> float:
        """How many elements a view has for each of its source."""
        here, there = (self.graph.hint(sizes.product(p.shape)) for p in (view, source))
        return here / max(there, 1)

    def is_scattered(self, prim: Prim) -> bool:
        """Many elements that are picked one by one, each with all that memory gives at once: read once and stored it is less."""
        picked = [self.prims[name] for name in prim.inputs if isinstance(self.prims[name].op, Picked)]
        many = self.graph.hint(sizes.product(prim.shape)) >= SMALL_SPACE
        in_rows = [len(self.prims[p.inputs[0]].shape) - 1 not in p.op.dims and p.op.kept[-1] == len(p.shape) - 1 for p in picked]
        return many and not all(in_rows)

    def made_twice(self) -> frozenset[str]:
        """What several kernels compute and should not: what takes longer than any function, or is picked one by one; of images that lie
        channels-last, pools, each from all that they pool (with rows along them, a row stays in registers instead)."""
        makers: dict[str, int] = {}
        for kernel in self.kernels:
            stack, seen = [name for member in kernel.members for name in self.prims[member].inputs], set()
            while stack:
                prim = self.prims[stack.pop()]
                if prim.name in seen or prim.name in self.home or prim.is_load:
                    continue
                seen.add(prim.name)
                pool = isinstance(prim.op, Window) and prod(prim.op.stride) > 1 and prim.op.kind != "largest"
                dear = isinstance(prim.op, Pointwise) and (prim.op.cost > self.most_recomputed or self.is_scattered(prim))
                if (pool and self.channels_last) or dear:
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
        stored, most = self.wanted | self.pools, SURELY * self.most_recomputed
        self.pools = self.pools | needed_at_several_places(self.prims, live, stored, most, self.graph.hint)
        for prim in live:
            if isinstance(prim.op, Reduce):
                self.place_reduce(prim)
            elif isinstance(prim.op, Scan):
                self.place_scan(prim)
            elif isinstance(prim.op, (Pointwise, Reshape, Window, Unpooled, View, Size, Iota, Picked)) and not prim.is_load:
                kernel = self.row_kernel(prim)
                if kernel is not None:
                    self.assign(prim.name, kernel, "row")
                elif (
                    prim.name in self.wanted | self.pools
                    or self.looked_at_again(prim)
                    or self.heavy_window_input(prim, users)
                    or self.outlives_a_call(prim)
                ):
                    self.wanted.add(prim.name)
                    self.place_stored(prim)
        self.absorb()
        self.settle()
        return self.order()


def again(prim: Prim) -> float:
    """How often each element is computed besides once, where neighbouring windows, or pieces, have elements in common."""
    if isinstance(prim.op, (Sampled, Picked)):
        return 0.0  # several of them together are one operator
    if isinstance(prim.op, Unfold):
        length = prim.shape[-1] if isinstance(prim.shape[-1], int) else COMPUTED_AGAIN
        return max(0.0, length / prim.op.step - 1)
    return max(0.0, prod(prim.op.kernel) / prod(prim.op.stride) - 1)


def plan(lowered: Lowered, applied: Sequence[Applied] = (), channels_last: bool = False, machine: Machine = H200) -> Plan:
    planner = Planner(lowered, channels_last, machine=machine)
    steps = planner.run()
    if pools := planner.made_twice():
        steps = Planner(lowered, channels_last, pools, machine).run()
    result = Plan(lowered.graph, lowered, steps, each_once(applied), machine=machine)
    name_kernels(result)
    return result
