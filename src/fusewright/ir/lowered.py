"""A graph as primitives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .graph import Graph
from .prims import Prim


@dataclass(frozen=True)
class Lowered:
    """Primitives by name, in order, and which of them holds each node's value."""

    graph: Graph
    prims: dict[str, Prim]
    value: dict[str, str]
    library: frozenset[str]  # nodes that stay calls to PyTorch
    statistics: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # of norms: mean and reciprocal deviation, of floats
