"""What a plan is predicted to take on its machine, as far as its variants differ."""

from __future__ import annotations

from ...codegen.mma.anchor import rows_and_batch
from ...codegen.mma.product import Product
from ...codegen.mma.product import library_ms as library_product_ms
from ...emit.kernels import facts
from ...ir.plan import Plan
from ...report.explain import predicted_ms
from ...schedule.conv_fusion import anchor_of, library_ms
from ...schedule.layout import is_convolution
from ...schedule.product_fusion import product_of


def plan_ms(made: Plan) -> float:
    """Its kernels, and the convolutions and products among its calls that kernels of ours could compute. Other calls are those of every
    variant."""
    total = sum(predicted_ms(kernel, facts(kernel, (kernel.name,), made)[0], made) for kernel in made.kernels)
    channels_last = any(prim.channels_last for prim in made.lowered.prims.values())
    for call in made.calls:
        anchor = anchor_of(call.node, made) if is_convolution(call.node) else product_of(call.node, made)
        if anchor is not None and isinstance(anchor.conv, Product):
            total += library_product_ms(anchor.conv, *rows_and_batch(anchor, made), made.machine)
        elif anchor is not None:
            total += library_ms(anchor, (), made, channels_last)
    return total
