"""Which library calls become kernels of ours: convolutions, products and attention, each where it is asked for or predicted to pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..codegen.mma.anchor import Anchor
from ..ir.graph import Ref
from ..ir.plan import Call, Kernel, Plan
from . import product_fusion
from .attention_fusion import with_shortcuts
from .conv_fusion import (
    MARGIN,
    Fusion,
    anchor_of,
    epilogues_of,
    is_needed_elsewhere,
    ours_ms,
    own_result,
    pays,
    too_large,
    with_convolution,
)
from .conv_stored import stored_fusion, written_fusion
from .naming import name_kernels


def take_over(
    plan: Plan, own: frozenset[str] | None = None, stored: bool | None = None, channels_last: bool = False
) -> Plan:
    """The plan with convolutions and products computed by kernels of ours: those named in `own`, or else those that pay.

    `stored` says whether a result that several kernels read is written to memory, or computed by each of them; where it
    does not say, or it cannot be had, the prediction decides. `channels_last` is how the library's convolutions will lie.
    """
    steps = list(plan.steps)
    for call in plan.calls:
        if own is not None and call.node.name not in own:
            continue
        if (product := product_fusion.product_of(call.node, replace(plan, steps=tuple(steps)))) is not None:
            reading = [k for k in steps if isinstance(k, Kernel) and product.value in k.loads]
            if not too_large(reading, plan, product) and (own is not None or product_fusion.pays(product, plan)):
                steps = product_fusion.with_product(product, call, steps, plan)
            continue
        anchor = anchor_of(call.node, plan)
        if anchor is None:
            continue
        readers = [k for k in steps if isinstance(k, Kernel) and plan.lowered.value[call.node.name] in k.loads]
        several_anchors = any(kernel.fused is not None for kernel in readers)
        if not readers or several_anchors or is_needed_elsewhere(call.node, plan) or too_large(readers, plan):
            anchor, readers = own_result(anchor, plan), []  # whoever reads it finds it where the library would have put it
            fusion = written_fusion(anchor, plan)
        else:
            fusion = best_fusion(anchor, readers, steps, plan, stored)
        if fusion is None or (own is None and not pays(anchor, readers, fusion, plan, channels_last)):
            continue
        replaced: Sequence[Kernel | Call] = readers or [call]
        for step, kernels in zip(replaced, fusion.kernels, strict=True):
            position = next(i for i, other in enumerate(steps) if other is step)
            steps[position : position + 1] = kernels
        steps = [step for step in steps if step is not call]
    result_plan = replace(plan, steps=tuple(without_unread(steps, plan)))
    name_kernels(result_plan)
    return with_shortcuts(result_plan, own)


def written_alone(plan: Plan) -> Plan:
    """The plan with convolutions by kernels of ours that only write them, where these are predicted faster than the library's."""
    steps = list(plan.steps)
    for call in plan.calls:
        anchor = anchor_of(call.node, plan)
        anchor = own_result(anchor, plan) if anchor is not None else None
        fusion = written_fusion(anchor, plan) if anchor is not None else None
        if anchor is not None and fusion is not None and pays(anchor, (), fusion, plan):
            at = next(i for i, step in enumerate(steps) if step is call)
            steps[at : at + 1] = fusion.kernels[0]
    return replace(plan, steps=tuple(steps))


def without_unread(steps: Sequence[Kernel | Call], plan: Plan) -> list[Kernel | Call]:
    """Without the copies that library calls would have read: our products read what they are copies of."""
    value, made = plan.lowered.value, replace(plan, steps=tuple(steps))
    wanted = [o.value.name for o in plan.graph.outputs if isinstance(o.value, Ref)]
    wanted += [name for call in made.calls for name in call.node.inputs]
    read = {made.base(value[name]).name for name in wanted if name in value}
    read |= {name for kernel in made.kernels for name in kernel.loads}
    return [s for s in steps if not isinstance(s, Kernel) or not s.is_pointwise or s.overwrites or not read.isdisjoint(s.stores)]


def best_fusion(
    anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan, stored: bool | None
) -> Fusion | None:
    """The fusion that is asked for, or else the one predicted to be the cheapest."""
    ended, kept = epilogue_fusion(anchor, readers, plan), stored_fusion(anchor, readers, steps, plan)
    if ended is None or kept is None:
        return ended or kept
    computed_again = sum(map(len, ended.kernels)) > 1
    if stored is not None:
        return kept if stored and computed_again else ended
    # Readers with a library call between them are differentiated apart: each would compute the convolution's backward, too.
    if computed_again and call_between(readers, steps):
        return kept if MARGIN * kept.ms < ended.ms else ended
    return kept if kept.ms < MARGIN * ended.ms else ended


def call_between(kernels: Sequence[Kernel], steps: Sequence[Kernel | Call]) -> bool:
    at = [position for position, step in enumerate(steps) if any(step is kernel for kernel in kernels)]
    return any(isinstance(step, Call) for step in steps[at[0] : at[-1]])


def epilogue_fusion(anchor: Anchor, readers: Sequence[Kernel], plan: Plan) -> Fusion | None:
    """Every kernel that reads the result computes it and ends it in registers."""
    epilogues = [epilogues_of(kernel, anchor, plan) for kernel in readers]
    if not all(epilogues):
        return None
    kernels = tuple(tuple(with_convolution(kernel, how, plan) for kernel, how in pairs) for pairs in epilogues)
    return Fusion(kernels, sum(ours_ms(how, plan) for pairs in epilogues for _, how in pairs))
