"""Reduce kernels by columns: rows lie side by side, and each thread works on VEC neighbouring ones."""

from __future__ import annotations

from typing import Any

from ..prims import arithmetic_type
from . import text
from .expression import LANE, converted_to, indent
from .loops import c_product, decode
from .reduce_base import Base
from .text import KernelText


def first_row(width: int, vector: bool, sharing: bool) -> list[str]:
    """Which rows a thread works on, where rows lie side by side."""
    position = f"(static_cast<Index>(blockIdx.x) * {width} + threadIdx.x)" + (" * VEC" if vector else "")
    if not sharing:
        return [f"const Index row = {position};", "if (row >= rows) return;"]
    return [
        f"const bool inside = {position} < rows;  // threads outside still take part in the merge",
        f"const Index row = inside ? {position} : 0;",
    ]


class Columns(Base):
    """VEC neighbouring rows for each thread; SPLIT threads share a row."""

    @property
    def split(self) -> int:
        return self.share

    @property
    def across(self) -> int:
        """Threads side by side, each on rows of its own."""
        return self.width_of_shared if self.split > 1 else 128

    @property
    def meets(self) -> bool:
        """Threads of a block wait for each other: those that have no row too."""
        return self.split > 1

    def begin(self) -> list[str]:
        lines = first_row(self.across, self.width > 1, sharing=self.meets)
        return [*lines, *decode(self.loops.kept, "row", self.evaluator)]

    def write(self) -> KernelText:
        lines = self.begin()
        for turn in range(1, self.turns + 1):
            loop = self.loop(turn)
            lines += self.take_row_lines()
            for a in (a for a in self.parts if a.turn == turn):
                if self.width > 1:
                    lines += [f"{a.kind} {a.name}[VEC];"]
                else:
                    lines += [f"{a.kind} {a.name};"]
            lines += loop
            if self.split > 1:
                lines += [f"merge_column<{self.split}, {self.across}>({a.name});" for a in self.parts if a.turn == turn]
            self.publish(turn)
        after: list[str] = []
        for name in self.row_stores():
            after += self.store_row(name)
        after = [*self.take_row_lines(), *after]
        if self.meets and after:
            first = "inside && threadIdx.y == 0" if self.split > 1 else "inside"
            after = [f"if ({first}) {{", *indent(after), "}"]
        lines += after
        return self.finish(lines=lines, **self.launch())

    def launch(self) -> dict[str, Any]:
        """Of the launcher: how many blocks of how many threads."""
        return {
            "threads": self.bounds(self.across * self.split),
            "extra": [("Index", "rows")],
            "setup": [
                f"const long long rows = {c_product([loop.size for loop in self.loops.kept])};",
                "if (rows == 0) return nullptr;",
            ],
            "span": self.across,
            "grid": "dim3(static_cast<unsigned>((rows + {span} - 1) / {span}))",
            "block": f"dim3({self.across}, {self.split})" if self.split > 1 else f"dim3({self.across})",
        }

    def store_row(self, name: str) -> list[str]:
        result, offset = self.row_value(name)
        prim = self.prims[name]
        if self.width > 1 and LANE in offset.depends:
            out = self.evaluator.fresh(f"{name}_out")
            lines = [
                f"{arithmetic_type(prim.dtype)} {out}[VEC];",
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {out}[{LANE}] = {result.text};",
            ]
            unit = any(axis.text == LANE and factor == 1 for axis, factor in offset.terms.items())
            if unit:
                self.stores.append((self.kernel.overwrites.get(name, name), offset))
                return [
                    *lines,
                    f"store(&{text.target(self.kernel, name)}[{self.evaluator.offset(offset, without_lane=True)}], {out});",
                ]
            return [
                *lines,
                "#pragma unroll",
                f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, f'{out}[{LANE}]')};",  # noqa: E501
            ]
        return [
            f"{text.target(self.kernel, name)}[{self.evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
        ]

    def loop(self, turn: int) -> list[str]:
        start = "threadIdx.y" if self.split > 1 else "0"
        return self.sweep(turn, start, str(self.split), "inside && " if self.meets else "")

    @property
    def stride(self) -> int:
        return self.split
