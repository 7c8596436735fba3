"""Reductions over rows that lie side by side and are gone over twice: what a thread reads of a row stays in its registers.

A softmax or a norm over the channels of an image reads each channel's plane and then reads all of them again. What all
multiprocessors have under way at once is more than the L2 cache holds, so the second sweep would come from memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import sizes
from ...ir.expr import Name, as_expr, either, negated
from ...ir.graph import Graph
from ...ir.plan import Kernel
from ...ir.prims import Prim
from ...ir.stmt import Continue, Declare, If, Statement, const, counted
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from .accumulators import COLLECTED, accumulators
from .reduce import split_for
from .reduce_columns import Columns
from .reduce_rows import KEPT, kept_in_registers
from .text import KernelText, has_window
from .walk import INSIDE, THREAD_Y, decode, vector_width, walk

MOST_SHARERS = 16  # threads for one row: 512 in a block


def sharers(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> int:
    """How many threads share a row so that each holds its part of it; 0 where they cannot, or nothing is read twice."""
    length = sizes.product(kernel.space[d] for d in kernel.reduced)
    if not kernel.is_reduce or not isinstance(length, int) or has_window(kernel, prims):
        return 0
    if any(prims[name].channels_last for name in (*kernel.loads, *kernel.stores)):
        return 0
    loops = walk(kernel, prims, graph)
    if loops.lanes_reduce or not kept_in_registers(kernel, prims, length, accumulators(kernel, prims)):
        return 0
    width = vector_width(kernel, prims, loops.kept)
    split = split_for(graph.hint(sizes.product(kernel.row_shape)), length, machine)
    while split <= MOST_SHARERS and -(-length // split) * width > KEPT:
        split *= 2
    return split if split <= MOST_SHARERS else 0


@dataclass(frozen=True)
class KeptColumnsSchedule(Schedule):
    split: int  # threads of a row


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> KeptColumnsSchedule | None:
    split = sharers(kernel, prims, graph, machine)
    return KeptColumnsSchedule(kernel, prims, graph, machine, split) if split else None


def render(schedule: KeptColumnsSchedule, comment: list[str]) -> KernelText:
    kernel, prims, graph = schedule.kernel, schedule.prims, schedule.graph
    loops, parts = walk(kernel, prims, graph), accumulators(kernel, prims)
    return KeptColumns(kernel, prims, graph, comment, loops, parts, schedule.split).write()


TEMPLATE = KernelTemplate("register columns", match, render)


class KeptColumns(Columns):
    """VEC neighbouring rows for each thread, SPLIT threads to a row, of which each holds STEPS elements."""

    @property
    def length(self) -> int:
        found = sizes.product(loop.size for loop in self.loops.reduced)
        assert isinstance(found, int)
        return found

    @property
    def steps(self) -> int:
        return -(-self.length // self.split)

    def bounds(self, threads: int) -> str:
        return str(threads)

    def begin(self) -> list[Statement]:
        note = "elements of a row that a thread keeps in registers"
        return [*super().begin(), Declare("int", "STEPS", as_expr(self.steps), how="constexpr", note=note)]

    def loop(self, pass_index: int) -> list[Statement]:
        filled = [a for a in self.parts if a.pass_index == pass_index]
        writes = any(self.kernel.members[n] == "full" and self.pass_of(n) == pass_index for n in self.kernel.stores)
        together = bool(filled) and not writes and all(a.kind in COLLECTED for a in filled) and self.length % self.split == 0
        step, item = Name("step"), Name("item")
        self.collecting, self.tiles, self.collected_by = together, {}, step
        kept = self.kept_rows(self.pass_over(pass_index), more=pass_index < self.passes)
        self.collecting = False
        decoded = decode(self.loops.reduced, item, self.evaluator)
        beyond = [item >= self.length] if self.length % self.split else []
        outside = [*([negated(INSIDE)] if self.meets and writes else []), *beyond]

        def over(body: list[Statement]) -> Statement:
            here = const("Index", "item", step * self.split + THREAD_Y if self.split > 1 else step)
            skip = [If(either(*outside), Continue())] if outside else []
            return counted("step", Name("STEPS"), [here, *skip, *decoded, *body])

        tiles = [self.tile(tile, Name("STEPS")) for tile in self.tiles.values()]
        loads = [over(kept.loads)] if kept.loads else []
        return [*kept.declared, *tiles, *loads, over(kept.body), *self.add_tiles(pass_index)]
