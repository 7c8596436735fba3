"""Primitives in kernels: what must be in memory, what depends on what, what a kernel loads and stores, and the order of it all."""

from __future__ import annotations

import heapq
from dataclasses import replace

from ..ir import sizes
from ..ir.access import in_steps
from ..ir.graph import Node, Ref, draws
from ..ir.lowered import Lowered
from ..ir.plan import Call, Kernel, counts_up
from ..ir.prims import (
    Prim,
    Reshape,
    View,
)
from ..laws.patterns import EVERY_CONVOLUTION, LINEAR, PRODUCTS


class Grouping:
    """Which kernel makes which primitive, as far as that is decided."""

    def __init__(self, lowered: Lowered):
        self.lowered, self.graph, self.prims = lowered, lowered.graph, lowered.prims
        self.kernels: list[Kernel] = []
        self.home: dict[str, Kernel] = {}
        self.wanted: set[str] = set()  # must be in memory
        self.live_calls: set[str] = set()
        self.rank = {name: number for number, name in enumerate(self.prims)}
        self.drawn_before: dict[str, str] = {}  # of calls that draw random numbers, the one before
        self.ancestors: dict[str, int] = {}  # of a primitive, the set of what it depends on: a bit for each, by rank

    # ---- what is needed

    def mark(self) -> None:
        """Which library calls run and which primitives must be in memory for them and for the outputs."""
        outputs = [o for o in self.graph.outputs if counts_up(o, self.graph) is None]
        pending = [output.value.name for output in outputs if isinstance(output.value, Ref)]
        pending += [node.name for node in self.graph.nodes if draws(node)]  # later draws go on from there, whoever uses the numbers
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.graph[name]
            if node.name in self.lowered.library:
                self.live_calls.add(name)
                copied = self.flattened_for(node)
                if copied:
                    self.wanted.add(copied)
                    pending += self.loads_behind(copied)
                pending += [source for source in node.inputs if not copied or source != node.args[0].name]
            elif not node.is_leaf:
                for stored in self.want(self.lowered.value[name]):
                    pending += self.loads_behind(stored)

    def want(self, name: str) -> list[str]:
        """The primitive must be in memory; views are made by PyTorch from their source, for nothing. Where it would have to copy (a
        reshape of what is permuted), what it would make of the source is what must be in memory."""
        views = [self.prims[name]]
        while isinstance(views[-1].op, View) and views[-1].op.is_free:
            views.append(self.prims[views[-1].inputs[0]])
        found = views[-1]
        if not in_steps(views) and self.lies_in_order(found):
            found = next((view for view in views if isinstance(view.op, Reshape)), found)
        if not found.is_load:
            self.wanted.add(found.name)
        return [found.name]

    def flattened_for(self, node: Node) -> str:
        """A linear map has PyTorch flatten what it reads into rows. Where that would take a copy of what a kernel makes, and another sweep
        for the bias, the kernel writes it in that order: its primitive, or ""."""
        name = node.args[0].name if node.target is LINEAR else ""
        if name not in self.lowered.value or len(self.graph[name].shape or ()) < 3:
            return ""
        views = [self.prims[self.lowered.value[name]]]
        while isinstance(views[-1].op, View) and views[-1].op.is_free:
            views.append(self.prims[views[-1].inputs[0]])
        *rows, depth = views[0].shape
        flat = replace(views[0], name="rows", op=Reshape(), inputs=(views[0].name,), shape=(sizes.product(rows), depth))
        return views[0].name if not views[-1].is_load and in_steps(views) and not in_steps([flat, *views]) else ""

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
        """Every primitive that a primitive depends on, through library calls too. Random numbers are drawn in the order of the model."""
        drawing = [node.name for node in self.graph.nodes if draws(node)]
        self.drawn_before = dict(zip(drawing[1:], drawing, strict=False))
        for prim in self.prims.values():
            found = 0
            sources = list(prim.inputs)
            if prim.is_load and not self.graph[prim.origin].is_leaf:
                sources += self.sources_of_call(prim.origin)
            for name in sources:
                found |= 1 << self.rank[name] | self.ancestors.get(name, 0)
            self.ancestors[prim.name] = found

    def sources_of_call(self, name: str) -> list[str]:
        """What it reads, and what those that draw random numbers before it read: by then they have."""
        return [source for call in (name, *self.drawers_before(name)) for source in self.read_by_call(call)]

    def read_by_call(self, name: str) -> list[str]:
        found = []
        for source in self.graph[name].inputs:
            if source in self.lowered.value:
                found.append(self.lowered.value[source])
            else:  # a call with several results has no primitive of its own
                found += self.sources_of_call(source)
        return found

    def drawers_before(self, name: str) -> list[str]:
        """Of a call that draws random numbers: those that draw before it, the last first."""
        found = []
        while name in self.drawn_before:
            found.append(name := self.drawn_before[name])
        return found

    def is_behind(self, source: str, name: str) -> bool:
        """`name` depends on `source`."""
        return bool(self.ancestors[name] >> self.rank[source] & 1)

    def depends_on(self, name: str, kernel: Kernel) -> bool:
        return any(self.is_behind(member, name) for member in kernel.members)

    # ---- what is loaded and stored, and the order of it all

    def settle(self) -> None:
        """A kernel stores what is wanted of it and what other kernels read; it loads the rest of what it reads."""
        demanded = self.demanded()
        while again := [m for kernel in self.kernels for m in kernel.members if m in demanded and self.is_stored_twice(m, demanded)]:
            for name in again:
                kernel = self.home.pop(name)
                del kernel.members[name]
            demanded = self.demanded()
        for kernel in self.kernels:
            kernel.stores = tuple(m for m in kernel.members if m in demanded)
            reads = self.reads(kernel, list(kernel.stores))
            kernel.loads = tuple(sorted((p for p in reads if self.home.get(p) is not kernel), key=self.rank.__getitem__))
        self.kernels = [kernel for kernel in self.kernels if kernel.stores]

    def is_stored_twice(self, name: str, demanded: set[str]) -> bool:
        """A reshape of what its kernel stores too: it is the same memory, which whoever reads it may read."""
        prim = self.prims[name]
        if not isinstance(prim.op, Reshape) or name in self.wanted:
            return False
        source = self.prims[prim.inputs[0]]
        together = self.home.get(source.name) is self.home[name] and source.name in demanded
        return together and not source.channels_last and not prim.channels_last

    def demanded(self) -> set[str]:
        """What must be in memory, and what kernels read of others."""
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
        return demanded

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
                wanted: set[int] = {call_at[before] for before in self.drawers_before(step.node.name) if before in call_at}
                for source in step.node.inputs:
                    if source in call_at:
                        wanted.add(call_at[source])
                    elif source in self.lowered.value:
                        flat = self.flattened_for(step.node) if source == step.node.inputs[0] else ""
                        wanted |= {made_by[name] for name in ([flat] if flat else self.want(self.lowered.value[source])) if name in made_by}
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


class Cyclic(Exception):
    """The grouping would need a kernel to run before itself."""
