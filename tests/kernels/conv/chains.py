"""Pointwise chains behind convolutions and products, as tests write them."""

from fusewright.codegen.mma.conv_spec import TOTAL, VALUE, Pointwise
from fusewright.ir.expr import Expr, Field, Function, Name, element, method
from fusewright.ir.stmt import const

N, C, H, W = map(Name, "nchw")
EXP_FAST, OUT_CHANNELS = Function("exp_fast"), Name("OUT_CHANNELS")
SOFTMAX = Pointwise(EXP_FAST(VALUE - Field(TOTAL, "m")) / Field(TOTAL, "s"))
LOG_SOFTMAX = Pointwise(VALUE - method(TOTAL, "result"))
DOUBLED_PLUS_ONE = Pointwise(2.0 * VALUE + 1.0)
WITH_PLACE = Pointwise(VALUE * 2.0 + Name("place"), (const("float", "place", H * 100 + W),))  # of images


def here(tensor: str, sizes: str = "conv") -> Expr:
    """A tensor's element at the place of the chain's own."""
    return element(Name(tensor), ((N * OUT_CHANNELS + C) * Name(f"{sizes}_h") + H) * Name(f"{sizes}_w") + W)
