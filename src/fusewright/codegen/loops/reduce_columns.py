"""Reduce kernels by columns: rows lie side by side, and each thread works on VEC neighbouring ones."""

from __future__ import annotations

from typing import Any

from ...ir import functions as fn
from ...ir.expr import Grouped, Name, as_expr, both, element, equal, select
from ...ir.prims import arithmetic_type
from ...ir.stmt import Assign, Do, If, Return, Statement, array, block, const
from . import text
from .evaluator import converted_to, each_lane, in_lanes
from .reduce_base import Base
from .scope import LANE, VEC
from .text import KernelText
from .walk import INSIDE, THREAD_Y, c_product, decode, in_blocks, thread_of


def first_row(width: int, vector: bool, sharing: bool) -> list[Statement]:
    """Which rows a thread works on, where rows lie side by side."""
    thread = Grouped(thread_of(width))
    position, row = thread * VEC if vector else thread, Name("row")
    if not sharing:
        return [const("Index", "row", position), If(row >= Name("rows"), Return())]
    return [
        const("bool", "inside", position < Name("rows"), note="threads outside still take part in the merge"),
        const("Index", "row", select(Name("inside"), position, 0)),
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

    def begin(self) -> list[Statement]:
        return [*first_row(self.across, self.width > 1, self.meets), *decode(self.loops.kept, Name("row"), self.evaluator)]

    def write(self) -> KernelText:
        body = self.begin()
        for pass_index in range(1, self.passes + 1):
            loop, filled = self.loop(pass_index), [a for a in self.parts if a.pass_index == pass_index]
            body += [*self.take_row_body(), *map(self.declared, filled), *loop]
            if self.split > 1:
                body += [Do(fn.merge_column.of(self.split, self.across)(Name(a.name))) for a in filled]
            self.publish(pass_index)
        stores = [statement for name in self.row_stores() for statement in self.store_row(name)]
        after = [*self.take_row_body(), *stores]
        if self.meets and after:
            after = [If(both(INSIDE, *([equal(THREAD_Y, 0)] if self.split > 1 else [])), block(after))]
        return self.finish(body=[*body, *after], **self.launch())

    def launch(self) -> dict[str, Any]:
        """Of the launcher: how many blocks of how many threads."""
        return {
            "threads": self.bounds(self.across * self.split),
            "extra": ["rows"],
            "setup": text.nothing_to_do("rows", c_product([loop.size for loop in self.loops.kept])),
            "grid": in_blocks("rows", self.across),
            "block": fn.dim3(self.across, self.split) if self.split > 1 else as_expr(self.across),
        }

    def store_row(self, name: str) -> list[Statement]:
        result, offset = self.row_value(name)
        if self.width == 1 or LANE not in offset.depends:
            return [self.store_single(name, result, offset)]
        if (whole := in_lanes(converted_to(result, self.prims[name]))) is not None:
            return [self.store_vector(name, whole, offset)]
        out = self.evaluator.fresh(f"{name}_out")
        return [
            array(arithmetic_type(self.prims[name].dtype), out, VEC),
            each_lane(Assign(element(Name(out), Name(LANE)), result.expr)),
            self.store_vector(name, Name(out), offset),
        ]

    def loop(self, pass_index: int) -> list[Statement]:
        start = THREAD_Y if self.split > 1 else as_expr(0)
        return self.sweep(pass_index, start, as_expr(self.split), [INSIDE] if self.meets else [])

    @property
    def stride(self) -> int:
        return self.split
