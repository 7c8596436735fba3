"""What a plan is: kernels and calls in their order, where each value is, and what kernels are called.

A kernel iterates over a space. A *reduce* kernel keeps some of its dimensions (a row for each kept coordinate) and reduces the
others; it may hold several reductions over the same space, values computed for each row from them, and values of the whole space
that are written in a later pass over the row. A *scan* kernel goes along its rows once and writes running values and what is made
of them, element by element. A *pointwise* kernel only writes. Everything else is computed where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..target.machine import H200, Machine
from . import index, sizes
from .access import accesses, same_shape, tuple_key, without_ones
from .graph import Dim, Graph, Node, Output, Ref
from .index import Axis, Coordinate
from .lowered import Lowered
from .prims import Coordinates, Prim, Size, View


@dataclass
class Kernel:
    """One launch (or two, where a reduction is split). Mutable only while the plan is made."""

    space: tuple[Dim, ...]
    reduced: tuple[int, ...] = ()
    members: dict[str, str] = field(default_factory=dict)  # primitive -> "reduce" | "scan" | "row" | "full"
    stores: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    name: str = ""
    fused: Any = None  # anchor.Fused, where the kernel computes a convolution itself
    overwrites: dict[str, str] = field(default_factory=dict)  # store -> load of the buffer whose memory it is written to
    scanned: int | None = None  # the dimension that a scan kernel goes along

    @property
    def read_only(self) -> tuple[str, ...]:
        """Loads that the kernel does not overwrite."""
        return tuple(name for name in self.loads if name not in self.overwrites.values())

    @property
    def written(self) -> tuple[str, ...]:
        """For each store, the tensor that holds it."""
        return tuple(self.overwrites.get(name, name) for name in self.stores)

    @property
    def row_shape(self) -> tuple[Dim, ...]:
        return tuple(1 if d in self.along else size for d, size in enumerate(self.space))

    @property
    def along(self) -> tuple[int, ...]:
        """The dimensions that a row runs along."""
        return self.reduced if self.scanned is None else (self.scanned,)

    @property
    def is_reduce(self) -> bool:
        return bool(self.reduced)

    @property
    def is_scan(self) -> bool:
        return self.scanned is not None

    @property
    def is_pointwise(self) -> bool:
        return not self.along


@dataclass(frozen=True)
class Call:
    """A call to PyTorch: an operator with no record, kept as it was."""

    node: Node


@dataclass(frozen=True)
class Shortcut:
    """A kernel that runs in the place of some steps, one after the other, where no gradients are asked for."""

    kernel: Kernel
    steps: tuple[str, ...]  # their labels
    node: str  # by which it is chosen
    most: tuple[tuple[Dim, int], ...] = ()  # sizes up to which it works


@dataclass(frozen=True)
class Plan:
    graph: Graph
    lowered: Lowered
    steps: tuple[Kernel | Call, ...]
    rules: tuple[Any, ...] = ()
    captured: Graph | None = None  # the graph as it was before any law
    shortcuts: tuple[Shortcut, ...] = ()
    precision: Any = None  # precision.Precision; None: convolutions are as exact as the flags ask
    machine: Machine = H200  # that it is made for

    @cached_property
    def kernels(self) -> list[Kernel]:
        return [step for step in self.steps if isinstance(step, Kernel)]

    @cached_property
    def every_kernel(self) -> list[Kernel]:
        """Those of the steps, and of shortcuts."""
        return [*self.kernels, *(shortcut.kernel for shortcut in self.shortcuts)]

    @cached_property
    def home(self) -> dict[str, Kernel]:
        """The kernel that stores a primitive."""
        return {name: kernel for kernel in self.kernels for name in kernel.stores}

    def base(self, name: str) -> Prim:
        """The primitive in memory behind a value: through views."""
        prim = self.lowered.prims[name]
        while prim.name not in self.home and isinstance(prim.op, View):
            prim = self.lowered.prims[prim.inputs[0]]
        return prim

    def holds(self, prim: Prim) -> bool:
        """It is in memory: not where a kernel computes the call that it is the result of, and goes on without writing it."""
        return prim.name in self.home or (prim.is_load and prim.origin not in self.taken)

    @cached_property
    def taken(self) -> set[str]:
        """Calls that kernels of ours compute."""
        return {kernel.fused.anchor.node for kernel in self.kernels if kernel.fused is not None}

    @cached_property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]


def label(step: Kernel | Call) -> str:
    """What a step is known by, once kernels have names."""
    return step.name if isinstance(step, Kernel) else f"call of {step.node.name}"


def element_at(kernel: Kernel, prims: dict[str, Prim], prim: Prim, at: Coordinates) -> Coordinates | None:
    """Where a value has the element `at` of the kernel's space: the same elements in the same order.

    A reduction may run over the groups of a norm and write what is made of it in the shape of the tensor. What is made of a scan
    may lie the other way round.
    """
    shape = prim.shape
    beside = beside_scans(kernel, prims, prim, at) if kernel.is_scan else None
    if beside is not None or same_shape(kernel.space, shape):
        return beside or at
    if kernel.is_pointwise or not sizes.same(sizes.product(kernel.space), sizes.product(shape)):
        return None
    return index.reshape(at, kernel.space, shape)


def beside_scans(kernel: Kernel, prims: dict[str, Prim], prim: Prim, at: Coordinates) -> Coordinates | None:
    """Where a value has the element that reads the kernel's scans at `at`, if there is one for each `at`.

    Dimensions may be in another order and run backwards: of a flipped scan, the element at the other end.
    """
    scans = {name for name, role in kernel.members.items() if role == "scan"}
    axes = tuple(Axis(f"j{d}", size) for d, size in enumerate(prim.shape))
    own = tuple(map(Coordinate.of, axes))
    reads = [a for a in accesses(prims, prim.name, own, scans, inside=prim.name not in scans) if a.leaf in scans]
    if len({tuple_key(a.at) for a in reads}) != 1 or any(a.windows for a in reads):
        return None
    found: dict[Axis, Coordinate] = {}
    for here, there, size in zip(at, reads[0].at, kernel.space, strict=True):
        axis, backwards = (None, False) if sizes.is_one(size) else runs_along(there, size)
        if axis is not None:
            found[axis] = here * -1 + sizes.tidy(size - 1) if backwards else here
    wanted = {axis for axis in axes if not sizes.is_one(axis.size)}
    one_to_one = found.keys() == wanted and len(wanted) == len(without_ones(kernel.space))
    return tuple(found.get(axis, Coordinate()) for axis in axes) if one_to_one else None


def runs_along(there: Coordinate, size: Dim) -> tuple[Axis | None, bool]:
    """The axis along which a coordinate runs from end to end, if there is one, and whether it runs backwards."""
    axis, factor = next(iter(there.terms.items()), (None, 0))
    if axis is None or len(there.terms) != 1 or not sizes.same(axis.size, size):
        return None, False
    if sizes.is_one(factor) and sizes.same(there.offset, 0):
        return axis, False
    backwards = sizes.same(factor, -1) and sizes.same(there.offset, sizes.tidy(size - 1))
    return (axis, True) if backwards else (None, False)


def counts_up(output: Output, graph: Graph) -> int | None:
    """The step of a buffer that only counts (`num_batches_tracked`): PyTorch adds it in place."""
    node = graph[output.value.name] if isinstance(output.value, Ref) else None
    if output.kind != "buffer" or node is None or str(node.target) != "aten.add.Tensor" or node.shape != ():
        return None
    first, step = node.args[:2]
    same = isinstance(first, Ref) and graph[first.name].target == "buffer" and graph[first.name].args[0] == output.path
    return step if same and type(step) is int and len(graph.users()[node.name]) == 1 else None


def origins(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> list[Node]:
    """Graph nodes whose work the kernel does, in graph order."""
    made = (prims[name] for name in evaluated(kernel, prims))
    return graph.in_order({prim.origin for prim in made if not isinstance(prim.op, Size) or prim.origin == prim.name})  # sizes are shared


def evaluated(kernel: Kernel, prims: dict[str, Prim]) -> dict[str, None]:
    """Primitives that are computed in the kernel, as against read from memory."""
    found: dict[str, None] = {}
    stack = list(kernel.stores)
    while stack:
        name = stack.pop()
        if name not in found and name not in kernel.loads:
            found[name] = None
            stack += prims[name].inputs
    return found


def operator_name(node: Node, graph: Graph) -> str:
    """`group_norm` for aten.group_norm.default; an element of a call is named after the call."""
    if node.target == "getitem":
        return operator_name(graph[node.args[0].name], graph)
    name = str(node.target).removeprefix("aten.").rsplit(".", 1)[0].strip("_")
    return {
        "native_batch_norm_legit_functional": "batch_norm",
        "native_batch_norm_legit": "batch_norm",
        "native_batch_norm_legit_no_training": "batch_norm",
    }.get(name, name)


