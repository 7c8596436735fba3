"""What a plan is predicted to take on an H200, as far as its variants differ."""

from __future__ import annotations

from .emit.kernels import facts
from .explain import predicted_ms
from .kernels.product import Product
from .kernels.product import library_ms as library_product_ms
from .layout import is_convolution
from .plan import Plan
from .products import product_of, rows_and_batch
from .takeover import anchor_of, library_ms


def plan_ms(made: Plan) -> float:
    """Its kernels, and the convolutions and products among its calls that kernels of ours could compute. Other calls are those of every
    variant."""
    total = sum(predicted_ms(kernel, facts(kernel, (kernel.name,), made)[0], made) for kernel in made.kernels)
    turned = any(prim.channels_last for prim in made.lowered.prims.values())
    for call in made.calls:
        anchor = anchor_of(call.node, made) if is_convolution(call.node) else product_of(call.node, made)
        if anchor is not None and isinstance(anchor.conv, Product):
            total += library_product_ms(anchor.conv, *rows_and_batch(anchor, made))
        elif anchor is not None:
            total += library_ms(anchor, (), made, turned)
    return total
