"""Reduce kernels: one or more accumulators for each row of the space, in as many passes over the row as they depend on each other.

By rows: the elements of a row lie together in memory; a warp, a part of one or a block works on a row, its lanes along it.
By columns: the rows themselves lie side by side (a reduction over the channels of NCHW data); each thread works on VEC
neighbouring rows, so that what a warp reads at once is one piece of memory.
Split: too few rows to fill the GPU; blocks leave partial accumulators, and a second kernel merges them in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import sizes
from ...ir.graph import Graph
from ...ir.plan import Kernel
from ...ir.prims import Prim
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import text
from .accumulators import WORDS, Accumulator, accumulators, reductions_behind
from .reduce_base import TOGETHER
from .reduce_columns import Columns
from .reduce_rows import KEPT, KEPT_SHARED, Rows, kept_in_registers
from .reduce_split import Split
from .register_values import maximum_first
from .text import KernelText
from .walk import Walk, vector_width, walk

FULL_BLOCKS = 2  # of a multiprocessor: with fewer it stands partly idle
STREAMING = 920  # threads of a multiprocessor, each with TOGETHER loads of 16 bytes under way, that keep memory busy: H200
SHORT_ROWS = (1, 2, 4, 8, 16)  # threads of a warp for a row that leaves the others nothing to read
ALONE = 4  # elements of a row that one thread reads, if need be one by one: what several threads of it would say to each other is more


@dataclass(frozen=True)
class ReduceSchedule(Schedule):
    writer: type[Rows] | type[Columns] | type[Split]
    loops: Walk
    parts: list[Accumulator]
    share: int = 1  # threads of a row
    across: int = 32  # threads side by side, by columns


def match(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> ReduceSchedule | None:
    if not kernel.is_reduce:
        return None
    streaming = machine.multiprocessors * STREAMING
    loops = walk(kernel, prims, graph)
    parts = accumulators(kernel, prims)
    rows = graph.hint(sizes.product(kernel.row_shape))
    length = graph.hint(sizes.product(kernel.space[d] for d in kernel.reduced))
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    one_pass = all(a.pass_index == 1 for a in parts) and not any(reductions_behind(name, kernel, prims) for name in full)
    if loops.lanes_reduce:
        threads = 32 if length <= 1024 else 128 if length <= 8192 else 256 if length <= 1 << 17 else 512
        if not one_pass and kept_in_registers(kernel, prims, length, parts):
            threads = next((t for t in (32, 128, 256) if length <= t * KEPT), 512 if length <= 512 * KEPT + KEPT_SHARED else 1024)
        width = 1 if text.has_window(kernel, prims) else vector_width(kernel, prims, loops.reduced)
        threads = 1 if length <= ALONE else next((t for t in SHORT_ROWS if length <= t * width), threads)
        threads = min(threads, fewer(rows, length, width if length % width == 0 else 1, streaming))
        if one_pass and rows * max(1, threads // 128) < full_gpu(machine) and length >= 1 << 14:
            return ReduceSchedule(kernel, prims, graph, machine, Split, loops, parts)
        while one_pass and 128 <= threads < 1024 and rows * threads < streaming and length >= threads * width * 2 * TOGETHER:
            threads *= 2
        if kept_in_registers(kernel, prims, length, parts) and length <= threads * KEPT:
            prims = maximum_first(kernel, prims)
            parts = accumulators(kernel, prims)
        return ReduceSchedule(kernel, prims, graph, machine, Rows, loops, parts, threads)
    width = 1 if text.has_window(kernel, prims) else vector_width(kernel, prims, loops.kept)
    across, down = columns_block(-(-rows // width), length, width, parts, streaming)
    if one_pass and rows * down < streaming * width and length >= 1 << 9:
        return ReduceSchedule(kernel, prims, graph, machine, Split, loops, parts)
    return ReduceSchedule(kernel, prims, graph, machine, Columns, loops, parts, down, across)


def render(schedule: ReduceSchedule, comment: list[str]) -> KernelText:
    kernel, prims, graph, loops, parts = schedule.kernel, schedule.prims, schedule.graph, schedule.loops, schedule.parts
    return schedule.writer(kernel, prims, graph, comment, loops, parts, schedule.share, schedule.across, schedule.machine).write()


TEMPLATE = KernelTemplate("reduce", match, render)


def full_gpu(machine: Machine) -> int:
    """Blocks that leave no multiprocessor partly idle."""
    return machine.multiprocessors * FULL_BLOCKS


def fewer(rows: int, length: int, width: int, streaming: int) -> int:
    """Threads for one of many short rows: what they say to each other in the end takes more instructions than to read it (moments of
    96 elements by 32 threads: 223 for a row, by 8 of them 52). They still read 128 bytes side by side."""
    able = [t for t in (8, 16) if t * width >= 32 and length <= t * KEPT // 2 and rows * t >= streaming]
    return min(able, default=1024)


def columns_block(vectors: int, length: int, width: int, parts: list[Accumulator], streaming: int) -> tuple[int, int]:
    """Threads side by side, and threads that share a column: enough that memory is kept busy, each with some elements to add.

    Narrower blocks are more blocks where columns are few, down to the 128 bytes that memory gives at once.
    """
    words = sum(WORDS[a.kind] for a in parts)
    most = 1024 if words <= 5 and width <= 4 else 512  # of 1024 threads each has 64 registers
    across = next((n for n in (32, 16) if vectors * (most // n) >= streaming), max(8, 32 // width))
    down = 1
    while down * across < most and vectors * down < streaming and length >= down * 2 * TOGETHER:
        down *= 2
    return across, down


def split_for(rows: int, length: int, machine: Machine) -> int:
    """Threads that share a column, so that a GPU's worth of threads is at work."""
    split = 1
    while split < 16 and rows * split < full_gpu(machine) * 1024 and length // (split * 2) >= 4:
        split *= 2
    return split


__all__ = ["TEMPLATE", "WORDS", "accumulators", "split_for"]
