"""Reductions over rows that lie side by side and are gone over twice: what a thread reads of a row stays in its registers.

A softmax or a norm over the channels of an image reads each channel's plane and then reads all of them again. What all
multiprocessors have under way at once is more than the L2 cache holds, so the second sweep would come from memory.
"""

from __future__ import annotations

from .. import sizes
from ..graph import Graph
from ..plan import Kernel
from ..prims import Prim
from .accumulators import COLLECTED, accumulators
from .expression import indent
from .loops import decode, vector_width, walk
from .reduce import split_for
from .reduce_columns import Columns
from .reduce_rows import KEPT, kept_in_registers
from .text import KernelText, has_window

MOST_SHARERS = 16  # threads for one row: 512 in a block


def sharers(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> int:
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
    split = split_for(graph.hint(sizes.product(kernel.row_shape)), length)
    while split <= MOST_SHARERS and -(-length // split) * width > KEPT:
        split *= 2
    return split if split <= MOST_SHARERS else 0


def kept_columns_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    loops, parts = walk(kernel, prims, graph), accumulators(kernel, prims)
    return KeptColumns(kernel, prims, graph, comment, loops, parts, sharers(kernel, prims, graph)).write()


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

    def begin(self) -> list[str]:
        return [*super().begin(), f"constexpr int STEPS = {self.steps};  // elements of a row that a thread keeps in registers"]

    def loop(self, turn: int) -> list[str]:
        filled = [a for a in self.parts if a.turn == turn]
        writes = any(self.kernel.members[n] == "full" and self.turn_of(n) == turn for n in self.kernel.stores)
        together = bool(filled) and not writes and all(a.kind in COLLECTED for a in filled) and self.length % self.split == 0
        self.collecting, self.tiles = together, {}
        declared, loads, body = self.kept_rows(self.pass_over(turn), more=turn < self.turns)
        self.collecting = False
        decoded = decode(self.loops.reduced, "item", self.evaluator)
        item = f"step * {self.split} + threadIdx.y" if self.split > 1 else "step"
        beyond = [f"item >= {self.length}"] if self.length % self.split else []
        outside = " || ".join([*(["!inside"] if self.meets and writes else []), *beyond])

        def over(lines: list[str]) -> list[str]:
            skip = [f"  if ({outside}) continue;"] if outside else []
            head = ["#pragma unroll", "for (int step = 0; step < STEPS; ++step) {", f"  const Index item = {item};"]
            return [*head, *skip, *indent([*decoded, *lines]), "}"]

        tiles = [f"float {tile}{self.tile_shape('STEPS')};" for tile in self.tiles.values()]
        found = [*declared, *tiles, *(over(loads) if loads else [])]
        found += over([line.replace("[u] =", "[step] =") for line in body])
        return [*found, *self.add_tiles(turn)]
