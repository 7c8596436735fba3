"""What a kernel template is: two functions, and the schedule that one hands to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Graph
from ..ir.plan import Kernel
from ..ir.prims import Prim
from ..target.machine import Machine
from .loops.text import KernelText


@dataclass(frozen=True)
class Schedule:
    """Everything that is chosen for a kernel before its text is made. Each template adds its own choices."""

    kernel: Kernel
    prims: dict[str, Prim]
    graph: Graph
    machine: Machine


@dataclass(frozen=True)
class KernelTemplate:
    """`match` returns the schedule of a kernel that the template can write well, else None. `render` makes text and chooses nothing;
    its second argument is the comment above the kernel."""

    name: str
    match: Callable[[Kernel, dict[str, Prim], Graph, Machine], Schedule | None]
    render: Callable[[Any, list[str]], KernelText]
