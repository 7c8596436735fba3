"""The templates of loop kernels. A new one is a module with a TEMPLATE, and its place in this list."""

from __future__ import annotations

from ...ir.graph import Graph
from ...ir.plan import Kernel
from ...ir.prims import Prim
from ...target.machine import Machine
from ..template import KernelTemplate, Schedule
from . import cells, pointwise, reduce, register_columns, scan, transpose, transpose_reduce
from .text import KernelText

# The first that matches is taken; the last three match every kernel of their kind.
KINDS = (cells, transpose, transpose_reduce, register_columns, scan, reduce, pointwise)
TEMPLATES = tuple(kind.TEMPLATE for kind in KINDS)


def scheduled(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> tuple[KernelTemplate, Schedule]:
    """The template that writes a kernel, and all that it chose."""
    for template in TEMPLATES:
        found = template.match(kernel, prims, graph, machine)
        if found is not None:
            return template, found
    raise AssertionError(f"{kernel.name}: no template")


def kernel_text(kernel: Kernel, prims: dict[str, Prim], graph: Graph, machine: Machine) -> KernelText:
    """The kernel in CUDA, by the first template that matches."""
    template, schedule = scheduled(kernel, prims, graph, machine)
    return template.render(schedule, [])
