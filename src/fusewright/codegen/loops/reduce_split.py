"""Reduce kernels for few rows: blocks leave partial accumulators, and a second kernel merges them in a fixed order."""

from __future__ import annotations

from dataclasses import replace

from ...ir import functions as fn
from ...ir import sizes
from ...ir.expr import Expr, Field, Grouped, Name, Number, Pointer, address, as_expr, both, element, equal, method
from ...ir.stmt import Assign, Declare, Do, For, If, Launch, Return, Statement, block, const, names_read
from . import text
from .accumulators import WIDE, WORDS, Accumulator
from .evaluator import Evaluator, converted_to, each_lane
from .reduce_base import TOGETHER, Base
from .reduce_columns import first_row
from .scope import LANE, VEC, Level, pointer
from .text import Definition, KernelText, Parameter, Workspace
from .walk import BLOCK, INSIDE, THREAD, THREAD_Y, c_product, decode, grid_of, in_blocks, row_at, stores_halves

ROW, ROWS, PIECE = Name("row"), Name("rows"), Name("piece")

# Blocks of 256 such threads on a multiprocessor: where rows are few they are cut into no more pieces, so that all begin at once.
RESIDENT = 4


class Split(Base):
    """Blocks take pieces of a row and leave partial accumulators; a warp for each row merges them."""

    THREADS = 256

    @property
    def across(self) -> int:
        """Threads side by side on columns: a warp takes in several items where the columns are few."""
        rows = self.graph.hint(sizes.product(self.kernel.row_shape))
        return next((lanes for lanes in (4, 8, 16) if rows <= lanes * self.width), 32)

    @property
    def down(self) -> int:
        """Threads that share a column."""
        return self.THREADS // self.across

    @property
    def pieces(self) -> int:
        """How many blocks share a row."""
        rows = self.graph.hint(sizes.product(self.kernel.row_shape))
        length = self.graph.hint(sizes.product(self.kernel.space[d] for d in self.kernel.reduced))
        if self.loops.lanes_reduce:
            blocks, most = rows, length // (self.THREADS * self.width * TOGETHER)
        else:
            blocks, most = -(-rows // (self.across * self.width)), length // (self.down * TOGETHER)
        fitting = max(2, min(most, self.machine.multiprocessors * RESIDENT // max(1, blocks)))
        return 1 << (fitting.bit_length() - 1)  # lengths are often such, and leave no rest then

    def write(self) -> KernelText:
        words = sum(WORDS[a.kind] for a in self.parts)
        rows_size = sizes.product(loop.size for loop in self.loops.kept)
        by_rows = self.loops.lanes_reduce
        body = self.first_kernel(by_rows)
        return self.finish(
            body=body,
            threads=self.bounds(self.THREADS),
            extra=["rows"],
            setup=text.nothing_to_do("rows", c_product([loop.size for loop in self.loops.kept])),
            grid=(lambda _: grid_of(ROWS, as_expr(self.pieces))) if by_rows else in_blocks("rows", self.across, self.pieces),
            block=as_expr(self.THREADS) if by_rows else fn.dim3(self.across, self.down),
            workspace=Workspace("partial", sizes.tidy(rows_size * self.pieces), words),
            last=self.last_kernel(),
        )

    def first_kernel(self, by_rows: bool) -> list[Statement]:
        body: list[Statement]
        piece = const("Index", "piece", Field(Name("blockIdx"), "y"))
        body = [const("Index", "row", BLOCK)] if by_rows else first_row(self.across, self.width > 1, sharing=True)
        body += [piece, *decode(self.loops.kept, ROW, self.evaluator)]
        if by_rows:
            start, step = Grouped(PIECE * self.THREADS + THREAD), as_expr(self.pieces * self.THREADS)
            vector = self.width > 1
            loop = self.sweep(1, start * VEC if vector else start, step * VEC if vector else step)
        else:
            loop = self.sweep(1, PIECE * self.down + THREAD_Y, as_expr(self.stride), [INSIDE])
        body += [*self.take_row_body(), *map(self.declared, self.parts), *loop]
        for a in self.parts:
            where, part = self.partials(a), Name(a.name)
            if by_rows:
                body.append(Assign(part, fn.merge_row.of(self.THREADS)(part)))
                body.append(If(equal(THREAD, 0), Assign(element(where, ROW * self.pieces + PIECE), part)))
                continue
            row = Grouped(ROW + Name(LANE)) if self.width > 1 else ROW
            left = Assign(element(where, row * self.pieces + PIECE), self.lane_accumulator(a))
            first = If(both(INSIDE, equal(THREAD_Y, 0)), left)
            body.append(Do(fn.merge_column.of(self.down, self.across)(part)))
            body.append(each_lane(first) if self.width > 1 else first)
        return body

    @property
    def stride(self) -> int:
        return self.pieces * (self.THREADS * self.width if self.loops.lanes_reduce else self.down)

    def partials(self, part: Accumulator, const: bool = False) -> Expr:
        """Where the partial accumulators of a kind begin. Those of 64-bit words come first: the others would misalign them."""
        ordered = sorted(self.parts, key=lambda a: a.kind not in WIDE)
        word = sum(WORDS[a.kind] for a in ordered[: ordered.index(part)])
        partial = Name("partial")
        start = address(element(partial, Number(word, "unsigned") * ROWS * self.pieces)) if word else partial
        return fn.reinterpret_cast.of(Pointer(part.kind, const))(start)

    def last_kernel(self) -> tuple[Definition, Launch]:
        """Merges the pieces of each row in order, computes the row's values and stores them."""
        kernel, row_body = self.kernel, list[Statement]()
        fast = stores_halves(kernel, self.prims)
        evaluator = Evaluator(self.prims, kernel.loads, [Level(self.row_axes, row_body)], vector=False, fast=fast)
        _, row = self.loops.at(kernel, lane=False)
        body: list[Statement] = [
            const("Index", "row", fn.static_cast.of("Index")(BLOCK) * 4 + THREAD_Y),
            If(ROW >= ROWS, Return()),
            *decode(self.loops.kept, ROW, evaluator),
        ]
        for a in self.parts:
            part, one = Name(a.name), element(self.partials(a, const=True), ROW * self.pieces + PIECE)
            first, further = Declare("int", "piece", THREAD), Assign(PIECE, as_expr(32), "+=")
            body += [
                Declare(a.kind, a.name),
                For(first, Name("piece") < self.pieces, further, Do(method(part, "merge", one))),
                Assign(part, fn.merge_warp(part)),
            ]
            for member in a.members:
                evaluator.results[member] = Field(part, self.prims[member].op.field)
        stores = []
        for name in self.row_stores():
            prim = self.prims[name]
            at = row if kernel.members[name] == "reduce" else row_at(row, kernel, prim)
            result = evaluator.value(name, at)
            where = element(text.target(kernel, name), evaluator.offset(prim.offset(at)))
            stores.append(Assign(where, text.to_memory(prim, converted_to(result, prim))))
        body.append(If(equal(THREAD, 0), block([*row_body, *stores])))
        symbols = sorted(str(s) for s in evaluator.symbols)
        read = names_read(body)
        used = replace(kernel, loads=tuple(name for name in kernel.loads if pointer(name) in read))
        arguments = [
            *text.parameters(used, self.prims),
            Parameter("unsigned", "partial", const=True, pointer=True, restrict=True),
            *(Parameter("Index", s) for s in ("rows", *symbols)),
        ]
        name = f"{kernel.name}_merge"
        merge = Definition(name, tuple(arguments), (*evaluator.declare_sizes(), *body), "typename Index", "128")
        self.evaluator.symbols |= evaluator.symbols
        handed = map(Name, (*used.read_only, *used.written, "partial", "rows", *symbols))
        return merge, Launch(name, ("long long",), fn.ceil_div(ROWS, 4), fn.dim3(32, 4), tuple(handed))
