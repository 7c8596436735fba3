"""What is known of operators: one record each. The aten operator is the reference; beside it stand its expression and its value range.

The records themselves stand in the other modules of this package, which its `__init__` imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch._ops import OpOverload

from ..ir.expr import Expr
from ..ir.graph import Graph, Node
from .lowering import Lowering

aten = torch.ops.aten
INF = float("inf")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Record:
    """What Fusewright knows of an operator."""

    name: str
    targets: tuple[OpOverload, ...]
    lower: Callable[[Lowering, Node], str | None]
    pointwise: bool = False
    view: bool = False
    expr: Callable[..., Expr] | None = None  # of one element; gets the schema's arguments by name
    monotone: int = 0  # +1 never decreasing, -1 never increasing, in its only tensor argument
    valley: Interval | None = None  # where it has its only minimum: never increasing before, never decreasing after
    bounds: Callable[..., Interval] | None = None  # range of the value, from the ranges of the tensor arguments
    cost: int = 1


RECORDS: dict[OpOverload | str, Record] = {}


def find(node: Node, graph: Graph) -> Record | None:
    return RECORDS.get(node.target)


def register(record: Record) -> None:
    for target in record.targets:
        assert target not in RECORDS, f"{target} has two records"
        RECORDS[target] = record
