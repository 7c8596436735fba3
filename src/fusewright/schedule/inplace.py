"""Which buffers a kernel may overwrite itself, so that their new values need no copy afterwards.

A new value may be written where the old one was if nobody else needs either: one kernel computes it and nothing reads it but the
buffer, and the old value is read by earlier kernels or, in that kernel, by the very thread that overwrites it. (Not by library
calls: what they return may be a view.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from ..codegen.loops.walk import needed_reduces, row_at
from ..codegen.mma.conv import OverPositions
from ..ir.access import accesses, axes_of, same_shape, tuple_key
from ..ir.graph import Output, Ref
from ..ir.index import Coordinate
from ..ir.plan import Kernel, Plan, counts_up
from ..ir.prims import Coordinates


def overwritten(
    plan: Plan, model: nn.Module, saved_later: Callable[[Kernel, str], bool]
) -> dict[str, tuple[Kernel, str]]:
    """Load of a buffer -> (the kernel that may overwrite it, the primitive it writes there).

    `saved_later(kernel, node)`: a step after the kernel keeps the node's value for backward.
    """
    found = {}
    needs = Needs(plan, model)
    for output in plan.graph.outputs:
        place = place_of(output, needs)
        if place is not None and not saved_later(place[0], plan.lowered.prims[place[1]].origin):
            kernel, old, new = place
            found[old] = (kernel, new)
    return found


@dataclass(frozen=True)
class Needs:
    """Who needs each value in memory."""

    plan: Plan
    model: nn.Module

    @cached_property
    def buffers(self) -> dict[str, str]:
        """Path -> the leaf that reads it."""
        return {node.args[0]: node.name for node in reversed(self.plan.graph.nodes) if node.target == "buffer"}

    @cached_property
    def leaving(self) -> Counter[str]:
        """How many outputs are the primitive or a view of it."""
        return Counter(behind(output.value, self.plan) for output in self.plan.graph.outputs)

    @cached_property
    def called(self) -> set[str]:
        """Primitives that library calls read, perhaps through views."""
        return {behind(Ref(name), self.plan) for call in self.plan.calls for name in call.node.inputs}

    @cached_property
    def loaded(self) -> dict[str, int]:
        """The number of the last kernel that loads the primitive."""
        return {name: number for number, kernel in enumerate(self.plan.kernels) for name in kernel.loads}

    @cached_property
    def stored(self) -> dict[str, int]:
        return {name: number for number, kernel in enumerate(self.plan.kernels) for name in kernel.stores}

    @cached_property
    def memory(self) -> dict[str, int]:
        """Where each parameter and buffer of the model lies."""
        held = dict(self.model.named_buffers(remove_duplicate=False)) | dict(self.model.named_parameters(remove_duplicate=False))
        return {path: tensor.untyped_storage()._cdata for path, tensor in held.items()}

    @cached_property
    def tenants(self) -> Counter[int]:
        return Counter(self.memory.values())

    def is_shared(self, path: str) -> bool:
        """Some other parameter or buffer of the model lies in the same memory."""
        return path not in self.memory or self.tenants[self.memory[path]] > 1

    def besides(self, output: Output, old: str, new: str) -> bool:
        """Someone other than the output needs its new value, or needs the old one after the new is there."""
        itself = behind(output.value, self.plan) in (old, new)
        leave = self.leaving[old] + self.leaving[new] > itself
        return leave or new in self.loaded or self.loaded.get(old, -1) > self.stored[new] or not self.called.isdisjoint((old, new))


def place_of(output: Output, needs: Needs) -> tuple[Kernel, str, str] | None:
    """(kernel, old value's load, new value) if the kernel may write this output straight into its buffer."""
    plan = needs.plan
    graph, lowered = plan.graph, plan.lowered
    if output.kind != "buffer" or not isinstance(output.value, Ref) or counts_up(output, graph) is not None:
        return None
    leaf = needs.buffers.get(output.path)
    if leaf is None or output.value.name not in lowered.value or needs.is_shared(output.path):
        return None
    old, new = lowered.prims[lowered.value[leaf]], lowered.prims[lowered.value[output.value.name]]
    kernel = plan.home.get(new.name)
    alike = old.dtype == new.dtype and same_shape(old.shape, new.shape)
    if kernel is None or not alike or not old.is_load:
        return None
    if needs.besides(output, old.name, new.name) or not same_thread(kernel, plan, old.name, new.name):
        return None
    return kernel, old.name, new.name


def behind(value: object, plan: Plan) -> str:
    """The primitive in memory of which a node's value is a view, or the value itself."""
    if not isinstance(value, Ref) or value.name not in plan.lowered.value:
        return ""
    return plan.base(plan.lowered.value[value.name]).name


def same_thread(kernel: Kernel, plan: Plan, old: str, new: str) -> bool:
    """In the kernel, an element of `old` is read by no thread but the one that then writes that element of `new`."""
    prims = plan.lowered.prims
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    if kernel.is_scan:
        return False
    if kernel.is_pointwise:
        return kernel.fused is None and all(reads_at(plan, kernel, root, at, old, at, new) for root in kernel.stores)
    merged_apart = kernel.fused is None or isinstance(kernel.fused.epilogue.reduce, OverPositions)
    elsewhere = [name for name in (*needed_reduces(kernel, prims), *kernel.stores) if name != new]
    if kernel.members[new] != "row" or not merged_apart or any(depends_on(plan, kernel, n, old) for n in elsewhere):
        return False
    row = tuple(Coordinate() if d in kernel.reduced else c for d, c in enumerate(at))
    here = row_at(row, kernel, prims[new])
    return reads_at(plan, kernel, new, here, old, here, new)


def depends_on(plan: Plan, kernel: Kernel, root: str, old: str) -> bool:
    stack, seen = [root], set()
    while stack:
        name = stack.pop()
        if name == old:
            return True
        if name not in seen and name not in kernel.loads:
            stack += plan.lowered.prims[name].inputs
        seen.add(name)
    return False


def reads_at(plan: Plan, kernel: Kernel, root: str, at: Coordinates, old: str, target: Coordinates, new: str) -> bool:
    """Evaluating `root` at `at` reads `old` only where `new` is written at `target`."""
    prims = plan.lowered.prims
    written = tuple_key((prims[new].offset(target),))
    found = [a for a in accesses(prims, root, at, set(kernel.loads), inside=True) if a.leaf == old]
    return all(not a.windows and tuple_key((prims[old].offset(a.at),)) == written for a in found)
