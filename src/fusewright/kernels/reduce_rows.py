"""Reduce kernels by rows: a warp, a part of one or a block for each; what they read of it may stay with them."""

from __future__ import annotations

import re
from collections.abc import Collection

import torch

from .. import sizes
from ..access import tuple_key
from ..plan import Kernel
from ..prims import Prim
from . import text
from .accumulators import Accumulator
from .expression import LANE, Value, converted_to, indent
from .kept_values import worth_keeping
from .loops import c_product, decode
from .reduce_base import Base, scaled, whole_tensors
from .text import KernelText

KEPT = 32  # elements of a row that a thread keeps in registers from one pass to the next; chosen by register counts, not timed
KEPT_SHARED = 10 << 10  # elements of a longer row in shared memory: 40 KB, so that two blocks of 512 threads fit, one reading, one writing


def kept_in_registers(kernel: Kernel, prims: dict[str, Prim], length: int, parts: list[Accumulator]) -> bool:
    """A row that is gone over twice, and is short enough for its threads to hold what they read of it, or much of it.

    A multiprocessor works on several rows at once: rows of a 128 × 128 image, eight to each, are more than the L2 cache holds.
    """
    again = any(a.turn > 1 for a in parts) or any(kernel.members[name] == "full" for name in kernel.stores)
    tensors = whole_tensors(kernel, prims)
    read_first = set().union(*(loads_behind(a.source, kernel, prims) for a in parts))
    kept = [n for n in tensors if n in read_first]
    narrow = all(prims[n].dtype.itemsize <= 4 for n in tensors)
    most = 1 if length > 512 * KEPT else 2  # 1024 threads have 64 registers each
    return again and 1 <= len(kept) <= most and len(tensors) <= 2 and narrow


def loads_behind(root: str, kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """What the kernel reads to compute a value."""
    found: set[str] = set()
    stack = [root]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += prims[name].inputs if name not in kernel.loads else ()
    return found & set(kernel.loads)


class Rows(Base):
    """A warp, a part of one or a block for each row."""

    @property
    def threads(self) -> int:
        return self.share

    @property
    def planned_length(self) -> int:
        return self.graph.hint(sizes.product(loop.size for loop in self.loops.reduced))

    @property
    def shares_warp(self) -> bool:
        """Several rows are in one warp, whose threads meet."""
        return 1 < self.threads < 32

    @property
    def rows_a_block(self) -> int:
        return max(1, 128 // self.threads)

    def write(self) -> KernelText:
        per_block = self.rows_a_block
        row = (
            f"static_cast<Index>(blockIdx.x) * {per_block} + threadIdx.y"
            if per_block > 1
            else "static_cast<Index>(blockIdx.x)"
        )
        if self.shares_warp:
            lines = [
                f"const bool inside = {row} < rows;  // threads outside still take part in the merge",
                f"const Index row = inside ? {row} : 0;",
            ]
        else:
            lines = [f"const Index row = {row};"]
            lines += ["if (row >= rows) return;"] if per_block > 1 else []
        lines += decode(self.loops.kept, "row", self.evaluator)
        keeps = self.turns > 1 and kept_in_registers(self.kernel, self.prims, self.planned_length, self.parts)
        if keeps:
            each = f"{self.threads} * VEC" if self.width > 1 else str(self.threads)
            kept = min(self.planned_length, self.threads * KEPT)
            lines.append(
                f"constexpr int STEPS = ({kept} + {each} - 1) / ({each});  // of a thread over its row, kept in registers"
            )
            if self.kept_shared:
                lines.append(f"constexpr int MORE = ({self.kept_shared} + {each} - 1) / ({each});  // kept in shared memory")
        for turn in range(1, self.turns + 1):
            loop = self.loop(turn, keeps)  # may add values of the row that it uses
            lines += self.take_row_lines()
            lines += [f"{a.kind} {a.name};" for a in self.parts if a.turn == turn]
            lines += loop
            if self.threads > 1:
                lines += [f"{a.name} = merge_row<{self.threads}>({a.name});" for a in self.parts if a.turn == turn]
            self.publish(turn)
        stores = []
        for name in self.row_stores():
            result, offset = self.row_value(name)
            prim = self.prims[name]
            stores.append(
                f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
            )
        values = self.take_row_lines()
        if self.threads == 1:
            lines += [*values, *stores]
        elif stores:  # one thread reads and writes: a buffer may be overwritten
            first = "inside && threadIdx.x == 0" if self.shares_warp else "threadIdx.x == 0"
            lines += [f"if ({first}) {{", *indent([*values, *stores]), "}"]
        setup = [
            f"const long long rows = {c_product([loop.size for loop in self.loops.kept])};",
            "if (rows == 0) return nullptr;",
        ]
        grid = (
            f"dim3(static_cast<unsigned>((rows + {per_block - 1}) / {per_block}))"
            if per_block > 1
            else "dim3(static_cast<unsigned>(rows))"
        )
        return self.finish(
            lines=lines,
            threads=str(self.threads * per_block) if keeps and self.threads < 512 else self.bounds(self.threads * per_block),
            extra=[("Index", "rows")],
            setup=setup,
            grid=grid,
            block=f"dim3({self.threads}, {per_block})" if per_block > 1 else f"dim3({self.threads})",
        )

    def loop(self, turn: int, keeps: bool) -> list[str]:
        length = sizes.product(loop.size for loop in self.loops.reduced)
        inside = "inside && " if self.shares_warp else ""
        step = self.vec if self.threads == 1 else scaled(self.threads, self.vec)
        start = "0" if self.threads == 1 else scaled("threadIdx.x", self.vec)
        if not keeps:
            return self.sweep(turn, start, step, inside)
        keeping = self.keeping(turn)
        body = self.pass_over(turn, keeping, "item")
        lines = self.kept_loop(turn, body, step)
        lines[:0] = [f"float {row}[STEPS][VEC];" if self.width > 1 else f"float {row}[STEPS];" for row in keeping.values()]
        held, self.evaluator.held = self.evaluator.held, {}
        body = self.pass_over(turn, at="item") if keeping or held else body
        place, axes = (f"[step][{LANE}]", self.all_axes | {LANE}) if self.width > 1 else ("[step]", self.all_axes)
        new = {(name, tuple_key(self.at)): Value(f"{row}{place}", torch.float32, axes) for name, row in keeping.items()}
        self.evaluator.held = held | new
        if isinstance(length, int) and length <= self.threads * KEPT + self.kept_shared:
            return lines
        start = f"(STEPS + MORE) * {step} + {start}" if self.kept_shared else f"STEPS * {step} + {start}"
        return [  # what is not kept, if there is more
            *lines,
            f"for (Index item = {start}; {inside}item < {self.evaluator.size(length)}; item += {step}) {{",
            *indent(self.taken_apart("item", body)),
            "}",
        ]

    def keeping(self, turn: int) -> dict[str, str]:
        """Values that this pass leaves in registers for those after it: each with the array that it is in."""
        if self.kept_shared:
            return {}
        full = [name for name in self.kernel.stores if self.kernel.members[name] == "full"]
        roots = [(a.turn, a.source) for a in self.parts] + [(self.turn_of(name), name) for name in full]
        now, later = [root for t, root in roots if t == turn], [root for t, root in roots if t > turn]
        already = {name for name, _ in self.evaluator.held}
        found = worth_keeping(now, later, self.kernel, self.prims, most=len(whole_tensors(self.kernel, self.prims)))
        return {name: self.evaluator.fresh(f"{name}_row") for name in found if name not in already}

    @property
    def stride(self) -> int:
        return self.threads * self.width

    @property
    def kept_shared(self) -> int:
        """Elements of a row that are kept in shared memory: those for which its threads have no registers."""
        most = KEPT_SHARED // self.stride * self.stride if self.threads >= 512 else 0
        return max(0, min(self.planned_length - self.threads * KEPT, most))

    def kept_loop(self, turn: int, body: list[str], step: str) -> list[str]:
        """A pass over the part of a row that stays with its threads: all that is new of it is read before any of it is used."""
        declared, loads, changed = self.kept_rows(body, more=turn < self.turns)
        length = sizes.product(loop.size for loop in self.loops.reduced)
        whole = f"{self.evaluator.size(length)} % ({step}) != 0 && " if isinstance(length, int) else ""
        outside = f"{whole}item >= {self.evaluator.size(length)}"
        if self.shares_warp:
            outside = f"!inside || ({outside})" if whole else f"!inside || {outside}"

        def over(lines: list[str], first: str = "", steps: str = "STEPS") -> list[str]:
            place = "step" if self.threads == 1 else f"({first}step * {self.threads} + threadIdx.x)"
            return [
                "#pragma unroll",
                f"for (int step = 0; step < {steps}; ++step) {{",
                f"  const Index item = {place}" + (" * VEC;" if self.width > 1 else ";"),
                f"  if ({outside}) continue;",
                *indent(self.taken_apart("item", lines)),
                "}",
            ]

        found = [*(over(loads) if loads else []), *over(changed)]
        if self.kept_shared:
            first = f"STEPS * {self.threads} + "
            new = [row for row in self.kept.values() if any(f"{row}[step]" in line for line in loads)]
            through = [*over([passing(line, new) for line in loads], first, "MORE"), *over(self.put(new), first, "MORE")]
            arrays = [passing(line, new).replace("STEPS", "MORE") for line in declared]
            declared += [f"__shared__ alignas(16) {in_shared(line, new, self.threads).replace('STEPS', 'MORE')}" for line in declared]
            found = [
                *(["{", *indent([*arrays, *through]), "}"] if new else []),
                *found,
                *over([in_shared(line, self.kept.values()) for line in changed], first, "MORE"),
            ]
        return [*declared, *found]

    def put(self, rows: list[str]) -> list[str]:
        """Loads of what is kept in shared memory pass through registers, so that all are under way before one of them is put there."""
        here = [(in_shared(f"{row}[step]", [row]), passing(f"{row}[step]", [row])) for row in rows]
        return [f"store({there}, {value});" if self.width > 1 else f"{there} = {value};" for there, value in here]


def passing(line: str, rows: Collection[str]) -> str:
    """A line about kept rows, of registers in which they are on their way to shared memory."""
    return re.sub(rf"\b({'|'.join(rows)})\[", r"\1_next[", line) if rows else line


def in_shared(line: str, rows: Collection[str], threads: int | str = "threadIdx.x") -> str:
    """A line about kept rows, of what is in shared memory: every thread reads there what it put there itself."""
    return re.sub(rf"\b({'|'.join(rows)})\[(\w+)\]", rf"\1_more[\2][{threads}]", line) if rows else line
