"""Reduce kernels for few rows: blocks leave partial accumulators, and a second kernel merges them in a fixed order."""

from __future__ import annotations

from dataclasses import replace

from .. import sizes
from . import text
from .accumulators import WIDE, WORDS, Accumulator
from .expression import LANE, Evaluator, Level, converted_to, indent, pointer
from .loops import c_product, decode, row_at
from .reduce_base import TOGETHER, Base
from .reduce_columns import first_row
from .text import KernelText, Workspace

FULL_WAVE = 132 * 4  # blocks of 256 such threads: where rows are few they are cut into no more pieces, so that all begin at once


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
        fitting = max(2, min(most, FULL_WAVE // max(1, blocks)))
        return 1 << (fitting.bit_length() - 1)  # lengths are often such, and leave no rest then

    def write(self) -> KernelText:
        words = sum(WORDS[a.kind] for a in self.parts)
        rows_text = c_product([loop.size for loop in self.loops.kept])
        rows_size = sizes.product(loop.size for loop in self.loops.kept)
        workspace = Workspace("partial", sizes.tidy(rows_size * self.pieces), words)
        by_rows = self.loops.lanes_reduce
        lines = self.first_kernel(by_rows)
        last_kernel, last_launch = self.last_kernel(words)
        setup = [f"const long long rows = {rows_text};", "if (rows == 0) return nullptr;"]
        if by_rows:
            grid, block, span = f"dim3(static_cast<unsigned>(rows), {self.pieces})", f"dim3({self.THREADS})", 1
        else:
            grid, block, span = (
                "dim3(static_cast<unsigned>((rows + {span} - 1) / {span}), " + str(self.pieces) + ")",
                f"dim3({self.across}, {self.down})",
                self.across,
            )
        return self.finish(
            lines=lines,
            threads=self.bounds(self.THREADS),
            extra=[("Index", "rows")],
            setup=setup,
            grid=grid,
            block=block,
            span=span,
            workspace=workspace,
            workspace_parameter="unsigned* __restrict__ partial",
            last=(last_kernel, last_launch),
        )

    def first_kernel(self, by_rows: bool) -> list[str]:
        if by_rows:
            lines = ["const Index row = blockIdx.x;", "const Index piece = blockIdx.y;"]
        else:
            lines = [*first_row(self.across, self.width > 1, sharing=True), "const Index piece = blockIdx.y;"]
        lines += decode(self.loops.kept, "row", self.evaluator)
        if by_rows:
            vec = " * VEC" if self.width > 1 else ""
            start, step, inside = f"(piece * {self.THREADS} + threadIdx.x){vec}", f"{self.pieces * self.THREADS}{vec}", ""
        else:
            start, step, inside = f"piece * {self.down} + threadIdx.y", str(self.stride), "inside && "
        loop = self.sweep(1, start, step, inside)
        lines += self.take_row_lines()
        lines += [f"{a.kind} {a.name}[VEC];" if not by_rows and self.width > 1 else f"{a.kind} {a.name};" for a in self.parts]
        lines += loop
        for a in self.parts:
            where = self.partials(a)
            if by_rows:
                lines += [
                    f"{a.name} = merge_row<{self.THREADS}>({a.name});",
                    f"if (threadIdx.x == 0) {where}[row * {self.pieces} + piece] = {a.name};",
                ]
                continue
            row = f"(row + {LANE})" if self.width > 1 else "row"
            left = f"if (inside && threadIdx.y == 0) {where}[{row} * {self.pieces} + piece] = {self.lane_accumulator(a)};"
            lines.append(f"merge_column<{self.down}, {self.across}>({a.name});")
            lines += self.each_lane(left) if self.width > 1 else [left]
        return lines

    @property
    def stride(self) -> int:
        return self.pieces * (self.THREADS * self.width if self.loops.lanes_reduce else self.down)

    def partials(self, part: Accumulator, const: str = "") -> str:
        """Where the partial accumulators of a kind begin. Those of 64-bit words come first: the others would misalign them."""
        ordered = sorted(self.parts, key=lambda a: a.kind not in WIDE)
        word = sum(WORDS[a.kind] for a in ordered[: ordered.index(part)])
        start = f"&partial[{word}u * rows * {self.pieces}]" if word else "partial"
        return f"reinterpret_cast<{const}{part.kind}*>({start})"

    def last_kernel(self, words: int) -> tuple[list[str], list[str]]:
        """Merges the pieces of each row in order, computes the row's values and stores them."""
        kernel = self.kernel
        lines = [f"const Index row = static_cast<Index>(blockIdx.x) * 4 + threadIdx.y;", "if (row >= rows) return;"]  # noqa: F541
        row_lines: list[str] = []
        evaluator = Evaluator(self.prims, kernel.loads, [Level(self.row_axes, row_lines)], vector=False)
        _, row = self.loops.at(kernel, lane=False)
        lines += decode(self.loops.kept, "row", evaluator)
        for a in self.parts:
            where = self.partials(a, "const ")
            lines += [
                f"{a.kind} {a.name};",
                f"for (int piece = threadIdx.x; piece < {self.pieces}; piece += 32) {a.name}.merge({where}[row * {self.pieces} + piece]);",
                f"{a.name} = merge_warp({a.name});",
            ]
            for member in a.members:
                evaluator.results[member] = f"{a.name}.{self.prims[member].op.field}"
        stores = []
        for name in self.row_stores():
            prim = self.prims[name]
            at = row if kernel.members[name] == "reduce" else row_at(row, kernel, prim)
            result = evaluator.value(name, at)
            where = f"{text.target(kernel, name)}[{evaluator.offset(prim.offset(at))}]"
            stores.append(f"{where} = {text.to_memory(prim, converted_to(result, prim))};")
        lines += ["if (threadIdx.x == 0) {", *indent([*row_lines, *stores]), "}"]
        symbols = sorted(str(s) for s in evaluator.symbols)
        loads = [name for name in kernel.loads if any(f"{pointer(name)}[" in line for line in lines)]
        used = replace(kernel, loads=tuple(loads))
        arguments = [
            *text.parameters(used, self.prims),
            "const unsigned* __restrict__ partial",
            "Index rows",
            *(f"Index {s}" for s in symbols),
        ]
        source = [
            "template <typename Index>",
            *text.wrapped(f"__global__ void __launch_bounds__(128) {kernel.name}_merge(", arguments, ") {"),
        ]
        source += [f"  {line}" for line in evaluator.declare_sizes()]
        source += [*indent(lines), "}"]
        self.evaluator.symbols |= evaluator.symbols
        call = ", ".join([*used.read_only, *used.written, "partial", "rows", *symbols])
        launch = [
            f"{kernel.name}_merge<long long><<<dim3(static_cast<unsigned>((rows + 3) / 4)), dim3(32, 4), 0, static_cast<cudaStream_t>(stream)>>>({call});"  # noqa: E501
        ]
        return source, launch
