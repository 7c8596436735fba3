"""Which buffers a kernel may overwrite itself, so that their new values need no copy afterwards.

A new value may be written where the old one was if nobody else needs either: one kernel computes it and nothing reads it but the
buffer, and the old value is read by earlier kernels or, in that kernel, by the very thread that overwrites it. (Not by library
calls: what they return may be a view.)
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .graph import Output, Ref
from .index import Coordinate
from .kernels.conv import OverPositions
from .kernels.loops import needed_reduces, row_at
from .plan import Kernel, Plan, accesses, axes_of, counts_up, same_shape, tuple_key
from .prims import Coordinates, View


def overwritten(
    plan: Plan, model: nn.Module, saved_later: Callable[[Kernel, str], bool]
) -> dict[str, tuple[Kernel, str]]:
    """Load of a buffer -> (the kernel that may overwrite it, the primitive it writes there).

    `saved_later(kernel, node)`: a step after the kernel keeps the node's value for backward.
    """
    found = {}
    for output in plan.graph.outputs:
        place = place_of(output, plan, model)
        if place is not None and not saved_later(place[0], plan.lowered.prims[place[1]].origin):
            kernel, old, new = place
            found[old] = (kernel, new)
    return found


def place_of(output: Output, plan: Plan, model: nn.Module) -> tuple[Kernel, str, str] | None:
    """(kernel, old value's load, new value) if the kernel may write this output straight into its buffer."""
    graph, lowered = plan.graph, plan.lowered
    if output.kind != "buffer" or not isinstance(output.value, Ref) or counts_up(output, graph) is not None:
        return None
    leaf = next((n for n in graph.nodes if n.target == "buffer" and n.args[0] == output.path), None)
    if leaf is None or output.value.name not in lowered.value or is_shared(model, output.path):
        return None
    old, new = lowered.prims[lowered.value[leaf.name]], lowered.prims[lowered.value[output.value.name]]
    kernel = next((k for k in plan.kernels if new.name in k.stores), None)
    alike = old.dtype == new.dtype and same_shape(old.shape, new.shape)
    if kernel is None or not alike or not old.is_load:
        return None
    later = plan.steps[next(i for i, step in enumerate(plan.steps) if step is kernel) + 1 :]
    needed_besides = (
        [o for o in graph.outputs if o is not output and behind(o.value, plan) in (old.name, new.name)]
        + [k for k in plan.kernels if new.name in k.loads]
        + [s for s in later if isinstance(s, Kernel) and old.name in s.loads]
        + [c for c in plan.calls if any(behind(Ref(n), plan) in (old.name, new.name) for n in c.node.inputs)]
    )
    return (
        (kernel, old.name, new.name) if not needed_besides and same_thread(kernel, plan, old.name, new.name) else None
    )


def is_shared(model: nn.Module, path: str) -> bool:
    """Some other parameter or buffer of the model lies in the same memory."""
    held = dict(model.named_buffers(remove_duplicate=False)) | dict(model.named_parameters(remove_duplicate=False))
    if path not in held:
        return True
    memory = held[path].untyped_storage()._cdata
    return sum(tensor.untyped_storage()._cdata == memory for tensor in held.values()) > 1


def behind(value: object, plan: Plan) -> str:
    """The primitive in memory of which a node's value is a view, or the value itself."""
    if not isinstance(value, Ref) or value.name not in plan.lowered.value:
        return ""
    stored = {name for kernel in plan.kernels for name in kernel.stores}
    prim = plan.lowered.prims[plan.lowered.value[value.name]]
    while prim.name not in stored and isinstance(prim.op, View):
        prim = plan.lowered.prims[prim.inputs[0]]
    return prim.name


def same_thread(kernel: Kernel, plan: Plan, old: str, new: str) -> bool:
    """In the kernel, an element of `old` is read by no thread but the one that then writes that element of `new`."""
    prims = plan.lowered.prims
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    if kernel.is_scan:
        return False
    if kernel.is_pointwise:
        return kernel.fused is None and all(reads_at(plan, kernel, root, at, old, at, new) for root in kernel.stores)
    merged_apart = kernel.fused is None or isinstance(kernel.fused.ending.reduce, OverPositions)
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
