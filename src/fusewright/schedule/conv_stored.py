"""Convolutions of our own whose result goes to memory: one kernel computes it once, writes it and, where a reader asks for a
reduction over positions, leaves that too. The other readers are kernels like any other.

What is written is the convolution's result, which backward needs as well, unless a later value that all readers share is
less to move: the pool of it, or what it makes with another large tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ..codegen.mma.anchor import Anchor, Fused, axes_for
from ..codegen.mma.conv import OverPositions
from ..ir.access import same_shape
from ..ir.graph import Ref
from ..ir.plan import Call, Kernel, Plan, evaluated
from ..ir.prims import Pointwise, Window
from .conv_fusion import (
    DTYPES,
    Fusion,
    apart,
    can_end,
    fused,
    memory_ms,
    ours_ms,
    pool_of,
    read_by,
    reads_only_here,
    too_large,
    with_convolution,
)

GAIN = 0.98  # what another value than the convolution's result must win by


def stored_fusion(anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan) -> Fusion | None:
    """The cheapest fusion with the convolution, or what all readers share of its chain, in memory; None if there is none."""
    best: Fusion | None = None
    shared = shared_values(anchor, readers, plan)
    for value in dict.fromkeys((shared[0], shared[-1])):
        for fusion in fusions_with(value, anchor, readers, steps, plan):
            if best is None or fusion.ms < GAIN * best.ms:
                best = fusion
    normalised = normalised_fusion(anchor, readers, steps, plan)
    return normalised if normalised is not None and (best is None or normalised.ms < GAIN * best.ms) else best


def normalised_fusion(anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan) -> Fusion | None:
    """With a softmax over channels in memory, or whatever else needs a total of each position: the total is known where the
    convolution ends, and neither it nor the convolution's result is written."""
    for reader in readers:
        value = normalised_by(reader, anchor, readers, steps, plan)
        if value is None:
            continue
        prims = plan.lowered.prims
        others = [name for kernel in readers for name in kernel.loads if name not in reader.stores]
        reads = read_by(prims, [value, *reader.stores], others)
        loads = tuple(dict.fromkeys(name for name in others if name in reads))
        writer = Kernel(reader.space, reader.reduced, {**reader.members, value: "full"}, (value,), loads)
        how = fused(writer, anchor, plan)
        first = next(i for i, step in enumerate(steps) if step is readers[0])
        if how is None or not can_end(anchor, how.epilogue, plan) or not made_by(steps[first:], plan).isdisjoint(loads):
            continue
        behind = [() if kernel is reader else rest_of([kernel], value, plan) for kernel in readers]
        return fusion_of(with_convolution(writer, how, plan), behind, plan)
    return None


def normalised_by(
    reader: Kernel, anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan
) -> str | None:
    """The last value through which all other readers have both the convolution's result and what this one gathers over channels."""
    prims, others = plan.lowered.prims, [kernel for kernel in readers if kernel is not reader]
    if reader.reduced != (1,) or "full" in reader.members.values() or not others:
        return None
    if read_outside(reader.stores, readers, steps, plan):
        return None
    hidden = {anchor.value, *reader.stores}
    for value in reversed([name for name in prims if name in computed_in(others, plan)]):
        shaped = same_shape(prims[value].shape, reader.space) and DTYPES.get(prims[value].dtype) == anchor.conv.dtype
        if not shaped or value in loads_of(others):
            continue
        if all(hidden.isdisjoint(read_by(prims, kernel.stores, [value, *kernel.loads])) for kernel in others):
            return value
    return None


def read_outside(names: Collection[str], readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan) -> bool:
    """A kernel that is none of these, a library call or the caller wants one of the values."""
    inside = {id(kernel) for kernel in readers}
    kernels = [step for step in steps if isinstance(step, Kernel) and id(step) not in inside]
    wanted = [output.value.name for output in plan.graph.outputs if isinstance(output.value, Ref)]
    wanted += [name for call in plan.calls for name in call.node.inputs]
    found = {plan.base(plan.lowered.value[name]).name for name in wanted if name in plan.lowered.value}
    return not found.isdisjoint(names) or any(not set(kernel.loads).isdisjoint(names) for kernel in kernels)


def written_fusion(anchor: Anchor, plan: Plan) -> Fusion | None:
    """The convolution's result in memory, and nothing behind it: for the caller, for library calls, and for kernels that read it there."""
    if too_large([], plan, anchor):
        return None
    writer = Kernel(anchor.out_shape, (), {anchor.value: "full"}, (anchor.value,), ())
    how = fused(writer, anchor, plan)
    if how is None or not can_end(anchor, how.epilogue, plan):
        return None
    return Fusion(((with_convolution(writer, how, plan),),), ours_ms(how, plan))


def shared_values(anchor: Anchor, readers: Sequence[Kernel], plan: Plan) -> list[str]:
    """Values that all the convolution's readers go through, each made of the one before, element by element or as its pool."""
    prims = plan.lowered.prims
    loads = loads_of(readers)
    inside = computed_in(readers, plan)
    rows = {name for kernel in readers for name, role in kernel.members.items() if role in ("reduce", "scan")}
    found = [anchor.value]
    while True:
        last = found[-1]
        users = [name for name in inside if last in prims[name].inputs]
        in_memory = last in loads or any(last in kernel.stores for kernel in readers)
        if len(users) != 1 or (in_memory and last != anchor.value) or not made_here(users[0], last, anchor, plan):
            return found
        if read_by(prims, users, {*loads, *rows}) & rows:  # of something else: a reader has it once it has gone over its rows
            return found
        found.append(users[0])
        if isinstance(prims[users[0]].op, Window):
            return found


def loads_of(kernels: Sequence[Kernel]) -> set[str]:
    return {name for kernel in kernels for name in kernel.loads}


def computed_in(kernels: Sequence[Kernel], plan: Plan) -> set[str]:
    """Primitives that are evaluated in some of the kernels."""
    return {name for kernel in kernels for name in evaluated(kernel, plan.lowered.prims)}


def made_here(name: str, source: str, anchor: Anchor, plan: Plan) -> bool:
    """It is made of the convolution's element at the same place, or is a pool of such elements inside a tile."""
    prims = plan.lowered.prims
    prim = prims[name]
    if DTYPES.get(prim.dtype) != anchor.conv.dtype:
        return False
    if isinstance(prim.op, Window):
        return pool_of(prim, anchor) is not None
    shape = anchor.out_shape
    alike = isinstance(prim.op, Pointwise) and same_shape(prim.shape, shape)
    return alike and reads_only_here(prims, name, axes_for(shape), source, shape, set())


def fusions_with(
    value: str, anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan
) -> Iterator[Fusion]:
    """With `value` in memory: written by a kernel that does only that, or beside the statistics that a reader wants of it."""
    prims = plan.lowered.prims
    others = [name for kernel in readers for name in kernel.loads]
    loads = tuple(dict.fromkeys(name for name in others if name in read_by(prims, [value], others)))
    writer = Kernel(prims[value].shape, (), {value: "full"}, (value,), loads)
    how = fused(writer, anchor, plan)
    first = next(i for i, step in enumerate(steps) if step is readers[0])
    later = made_by(steps[first:], plan)
    if how is None or not later.isdisjoint(loads):
        return
    behind = [rest_of([kernel], value, plan) for kernel in readers]
    if can_end(anchor, how.epilogue, plan):
        yield fusion_of(with_convolution(writer, how, plan), behind, plan)
    for number, reader in enumerate(readers):
        for statistics, *rest in filter(None, ([reader], apart(reader, prims))):
            joined = beside(statistics, writer, how, plan)
            if joined is not None and later.isdisjoint(joined.loads) and can_end(anchor, joined.fused.epilogue, plan):
                left = [*behind[:number], rest_of(rest, value, plan), *behind[number + 1 :]]
                yield fusion_of(joined, left, plan)
                break


def made_by(steps: Sequence[Kernel | Call], plan: Plan) -> set[str]:
    found = {name for step in steps if isinstance(step, Kernel) for name in step.stores}
    calls = [step.node.name for step in steps if isinstance(step, Call)]
    return found | {plan.lowered.value[name] for name in calls if name in plan.lowered.value}


def rest_of(kernels: Sequence[Kernel], value: str, plan: Plan) -> tuple[Kernel, ...]:
    """What is left to do of the kernels once `value` is in memory."""
    found = []
    for kernel in kernels:
        stores = tuple(name for name in kernel.stores if name != value)
        if stores:
            reads = read_by(plan.lowered.prims, stores, [*kernel.loads, value])
            loads = tuple(dict.fromkeys(name for name in (*kernel.loads, value) if name in reads))
            members = {name: role for name, role in kernel.members.items() if name != value}
            found.append(replace(kernel, stores=stores, members=members, loads=loads))
    return tuple(found)


def beside(statistics: Kernel, writer: Kernel, how: Fused, plan: Plan) -> Kernel | None:
    """The kernel that writes a value and reduces it over positions, if the reader does no more than that."""
    (value,) = writer.stores
    epilogue, anchor = how.epilogue, replace(how.anchor, value=value, out_shape=writer.space)
    (reading,) = rest_of([statistics], value, plan) or (None,)
    if reading is None or not reading.is_reduce:
        return None
    found = fused(reading, anchor, plan, frozenset(epilogue.before.declares))
    if found is None or found.window or not isinstance(found.epilogue.reduce, OverPositions):
        return None
    whole = replace(epilogue, stored=True, between=found.epilogue.before, reduce=found.epilogue.reduce)
    kernel = replace(
        reading,
        members={value: "full", **reading.members},
        stores=(value, *reading.stores),
        loads=(*writer.loads, *(name for name in reading.loads if name != value)),
    )
    return with_convolution(kernel, replace(how, epilogue=whole), plan)


def fusion_of(writer: Kernel, behind: Sequence[tuple[Kernel, ...]], plan: Plan) -> Fusion:
    """The kernel that writes stands in the place of the first reader; the others follow."""
    first, *others = behind
    left = [kernel for kernels in behind for kernel in kernels]
    return Fusion(((writer, *first), *others), ours_ms(writer.fused, plan) + memory_ms(left, plan))
