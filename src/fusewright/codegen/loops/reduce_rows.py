"""Reduce kernels by rows: a warp, a part of one or a block for each; what they read of it may stay with them."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...ir import functions as fn
from ...ir import sizes
from ...ir.access import tuple_key
from ...ir.expr import Expr, Grouped, Name, as_expr, both, differs, either, element, equal, negated, select
from ...ir.plan import Kernel
from ...ir.prims import Prim
from ...ir.stmt import (
    Assign,
    Continue,
    Declare,
    Do,
    For,
    If,
    Return,
    Statement,
    array,
    block,
    const,
    counted,
    with_values,
)
from . import text
from .accumulators import Accumulator
from .reduce_base import Base, scaled, whole_tensors
from .register_values import worth_keeping
from .scope import LANE, VEC, Value
from .text import KernelText
from .walk import BLOCK, INSIDE, THREAD, THREAD_Y, c_product, decode

KEPT = 32  # elements of a row that a thread keeps in registers from one pass to the next; chosen by register counts, not timed
KEPT_SHARED = 10 << 10  # elements of a longer row in shared memory: 40 KB, so that two blocks of 512 threads fit, one reading, one writing


def kept_in_registers(kernel: Kernel, prims: dict[str, Prim], length: int, parts: list[Accumulator]) -> bool:
    """A row that is gone over twice, and is short enough for its threads to hold what they read of it, or much of it.

    A multiprocessor works on several rows at once: rows of a 128 × 128 image, eight to each, are more than the L2 cache holds.
    """
    again = any(a.pass_index > 1 for a in parts) or any(kernel.members[name] == "full" for name in kernel.stores)
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
        per_block, row = self.rows_a_block, Name("row")
        here = fn.static_cast.of("Index")(BLOCK)
        here = here * per_block + THREAD_Y if per_block > 1 else here
        body: list[Statement]
        if self.shares_warp:
            body = [
                const("bool", "inside", here < Name("rows"), note="threads outside still take part in the merge"),
                const("Index", "row", select(INSIDE, here, 0)),
            ]
        else:
            body = [const("Index", "row", here), *([If(row >= Name("rows"), Return())] if per_block > 1 else [])]
        body += decode(self.loops.kept, row, self.evaluator)
        keeps = self.passes > 1 and kept_in_registers(self.kernel, self.prims, self.planned_length, self.parts)
        if keeps:
            body.append(self.steps("STEPS", min(self.planned_length, self.threads * KEPT), "of a thread over its row, kept in registers"))
            if self.kept_shared:
                body.append(self.steps("MORE", self.kept_shared, "kept in shared memory"))
        for pass_index in range(1, self.passes + 1):
            loop = self.loop(pass_index, keeps)  # may add values of the row that it uses
            filled = [a for a in self.parts if a.pass_index == pass_index]
            body += [*self.take_row_body(), *map(self.declared, filled), *loop]
            if self.threads > 1:
                body += [Assign(Name(a.name), fn.merge_row.of(self.threads)(Name(a.name))) for a in filled]
            self.publish(pass_index)
        stores = [self.store_single(name, *self.row_value(name)) for name in self.row_stores()]
        values = self.take_row_body()
        if self.threads == 1:
            body += [*values, *stores]
        elif stores:  # one thread reads and writes: a buffer may be overwritten
            first = both(*([INSIDE] if self.shares_warp else []), equal(THREAD, 0))
            body.append(If(first, block([*values, *stores])))
        rows = Name("rows")
        grid = fn.ceil_div(rows, per_block) if per_block > 1 else rows
        return self.finish(
            body=body,
            threads=str(self.threads * per_block) if keeps and self.threads < 512 else self.bounds(self.threads * per_block),
            extra=["rows"],
            setup=text.nothing_to_do("rows", c_product([loop.size for loop in self.loops.kept])),
            grid=lambda _: grid,
            block=fn.dim3(self.threads, per_block) if per_block > 1 else as_expr(self.threads),
        )

    def steps(self, name: str, elements: int, note: str) -> Declare:
        """How many steps a thread takes over so many elements."""
        each = self.threads * VEC if self.width > 1 else as_expr(self.threads)
        return Declare("int", name, (elements + each - 1) / Grouped(each), how="constexpr", note=note)

    def loop(self, pass_index: int, keeps: bool) -> list[Statement]:
        length = sizes.product(loop.size for loop in self.loops.reduced)
        inside = [INSIDE] if self.shares_warp else []
        step = self.vec if self.threads == 1 else scaled(self.threads, self.vec)
        start = as_expr(0) if self.threads == 1 else scaled(THREAD, self.vec)
        if not keeps:
            return self.sweep(pass_index, start, step, inside)
        keeping, item = self.keeping(pass_index), Name("item")
        body = self.pass_over(pass_index, keeping, item)
        rows = [array("float", row, Name("STEPS"), *([VEC] if self.width > 1 else [])) for row in keeping.values()]
        found = [*rows, *self.kept_loop(pass_index, body, step)]
        held, self.evaluator.held = self.evaluator.held, {}
        body = self.pass_over(pass_index, at=item) if keeping or held else body
        axes = self.all_axes | {LANE} if self.width > 1 else self.all_axes
        new = {(name, tuple_key(self.at)): Value(self.of_row(row), torch.float32, axes) for name, row in keeping.items()}
        self.evaluator.held = held | new
        if isinstance(length, int) and length <= self.threads * KEPT + self.kept_shared:
            return found
        steps = Grouped(Name("STEPS") + Name("MORE")) if self.kept_shared else Name("STEPS")
        first = Declare("Index", "item", scaled(steps, step) + start)
        rest = self.taken_apart(item, body)  # what is not kept, if there is more
        test = both(*inside, item < self.evaluator.size(length))
        return [*found, For(first, test, Assign(item, step, "+="), block(rest))]

    def keeping(self, pass_index: int) -> dict[str, str]:
        """Values that this pass leaves in registers for those after it: each with the array that it is in."""
        if self.kept_shared:
            return {}
        full = [name for name in self.kernel.stores if self.kernel.members[name] == "full"]
        roots = [(a.pass_index, a.source) for a in self.parts] + [(self.pass_of(name), name) for name in full]
        now, later = [root for t, root in roots if t == pass_index], [root for t, root in roots if t > pass_index]
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

    def kept_loop(self, pass_index: int, body: list[Statement], step: Expr) -> list[Statement]:
        """A pass over the part of a row that stays with its threads: all that is new of it is read before any of it is used."""
        kept = self.kept_rows(body, more=pass_index < self.passes)
        length = sizes.product(loop.size for loop in self.loops.reduced)
        item, size = Name("item"), self.evaluator.size(length)
        outside: Expr = item >= size
        if isinstance(length, int):
            outside = both(differs(size % Grouped(step), 0), outside)
        if self.shares_warp:
            outside = either(negated(INSIDE), Grouped(outside) if isinstance(length, int) else outside)

        def over(statements: list[Statement], steps: Expr, first: Expr | None = None) -> Statement:
            """`first` are the steps before these."""
            place: Expr = Name("step")
            if self.threads > 1:
                along = place * self.threads
                place = Grouped((along if first is None else first * self.threads + along) + THREAD)
            here = const("Index", "item", place * VEC if self.width > 1 else place)
            return counted("step", steps, [here, If(outside, Continue()), *self.taken_apart(item, statements)])

        found = [*([over(kept.loads, Name("STEPS"))] if kept.loads else []), over(kept.body, Name("STEPS"))]
        if not self.kept_shared:
            return [*kept.declared, *found]
        steps, more, rows = Name("STEPS"), Name("MORE"), [row.name for row in kept.declared]
        passing: dict[Expr, Expr] = {Name(row): Name(f"{row}_next") for row in rows}
        in_shared: dict[Expr, Expr] = {kept_at(row): shared_at(row) for row in self.kept.values()}
        through = [over(with_values(kept.loads, passing), more, steps), over([self.put(row) for row in rows], more, steps)]
        arrays = [replace(row, name=f"{row.name}_next", shape=(more, *row.shape[1:])) for row in kept.declared]
        shared = [array(r.kind, f"{r.name}_more", more, self.threads, *r.shape[1:], how="__shared__ alignas(16)") for r in kept.declared]
        return [
            *kept.declared,
            *shared,
            *([block([*arrays, *through])] if rows else []),
            *found,
            over(with_values(kept.body, in_shared), more, steps),
        ]

    def put(self, row: str) -> Statement:
        """Loads of what is kept in shared memory pass through registers, so that all are under way before one of them is put there."""
        value = kept_at(f"{row}_next")
        return Do(fn.store(shared_at(row), value)) if self.width > 1 else Assign(shared_at(row), value)


def kept_at(row: str) -> Expr:
    """What a thread has of a row in registers, at its step."""
    return element(Name(row), Name("step"))


def shared_at(row: str) -> Expr:
    """What is in shared memory: every thread reads there what it put there itself."""
    return element(Name(f"{row}_more"), Name("step"), THREAD)
