"""Operators that work element by element, a line each: beside the aten operator stand its expression and the range of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir import functions as fn
from ..ir.expr import Binary, Expr, Number, as_expr, both, differs, either, equal, negated, select
from .declare import pointwise
from .registry import INF, aten

# ---- arithmetic


def _is_one(x: Expr) -> bool:
    return isinstance(x, Number) and x.value == 1


def _scaled(x: Expr, alpha: Expr) -> Expr:
    return x if _is_one(alpha) else alpha * x


def _product(x: Expr, y: Expr, alpha: Expr) -> Expr:
    return x * y if _is_one(alpha) else alpha * x * y


pointwise("add", aten.add.Tensor, aten.add.Scalar, expr=lambda a: a.self + _scaled(a.other, a.alpha))
pointwise(
    "sub",
    *(aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, aten.subtract.Scalar),
    expr=lambda a: a.self - _scaled(a.other, a.alpha),
)
pointwise("rsub", aten.rsub.Tensor, aten.rsub.Scalar, expr=lambda a: a.other - _scaled(a.self, a.alpha))
pointwise(
    "mul",
    *(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, aten.multiply.Scalar),
    expr=lambda a: a.self * a.other,
)
pointwise(
    "div",
    *(aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.divide.Scalar, aten.true_divide.Tensor),
    expr=lambda a: a.self / a.other,
    cost=4,
)
pointwise(
    "neg",
    aten.neg.default,
    aten.negative.default,
    expr=lambda a: -a.self,
    monotone=-1,
    bounds=lambda x: (-x[1], -x[0]),
)
pointwise(
    "abs",
    *(aten.abs.default, aten.absolute.default),
    expr=lambda a: fn.absolute(a.self),
    valley=(0, 0),
    bounds=lambda x: (0 if x[0] < 0 < x[1] else min(abs(x[0]), abs(x[1])), max(abs(x[0]), abs(x[1]))),
)
pointwise("reciprocal", aten.reciprocal.default, expr=lambda a: 1.0 / a.self, cost=4)
pointwise("square", aten.square.default, expr=lambda a: a.self * a.self, valley=(0, 0))


def _power(a: Any) -> Expr:
    x, exponent = a.self, a.exponent
    if a.is_whole and not (isinstance(exponent, Number) and 1 <= exponent.value <= 4):
        return fn.whole_power(x, exponent)
    if not isinstance(exponent, Number):
        return fn.exp2(exponent) if isinstance(x, Number) and x.value == 2 else fn.pow_(x, exponent)
    known: dict[Any, Callable[[], Expr]] = {
        0.5: lambda: fn.sqrt(x),
        1: lambda: x,
        2: lambda: x * x,
        3: lambda: x * x * x,
        4: lambda: (x * x) * (x * x),
        -0.5: lambda: 1.0 / fn.sqrt(x),
        -1: lambda: 1.0 / x,
    }
    return known.get(exponent.value, lambda: fn.pow_(x, exponent))()


def _lerp(a: Any) -> Expr:
    """From whichever end is nearer, so that a weight of 1 gives the end itself."""
    near, far = a.self + a.weight * (a.end - a.self), a.end - (a.end - a.self) * (1.0 - a.weight)
    if not isinstance(a.weight, Number):
        return select(fn.fabs(a.weight) < 0.5, near, far)
    return near if abs(a.weight.value) < 0.5 else far


def _rounded_quotient(a: Any) -> Expr:
    x, y, mode = a.self, a.other, getattr(a, "rounding_mode", "floor")
    if a.is_whole:
        return (fn.whole_floor_divided if mode == "floor" else fn.whole_truncated)(x, y)
    if mode == "floor":
        return fn.floor_divided(x, y)
    return fn.trunc(x / y) if mode == "trunc" else x / y


def _rounded_to_decimals(a: Any) -> Expr:
    ten = 10.0 ** abs(a.decimals.value)
    return fn.rint(a.self / ten) * ten if a.decimals.value < 0 else fn.rint(a.self * ten) / ten


pointwise("pow", aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, expr=_power, cost=8)
pointwise("fma", aten.addcmul.default, expr=lambda a: a.self + _product(a.tensor1, a.tensor2, a.value))
pointwise("addcdiv", aten.addcdiv.default, expr=lambda a: a.self + _scaled(a.tensor1 / a.tensor2, a.value), cost=4)
pointwise("lerp", aten.lerp.Scalar, aten.lerp.Tensor, expr=_lerp)
pointwise(
    "remainder",
    *(aten.remainder.Scalar, aten.remainder.Tensor, aten.remainder.Scalar_Tensor),
    expr=lambda a: fn.remainder_of(a.self, a.other),
    cost=8,
)
pointwise(
    "div_rounded",
    *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar),
    expr=_rounded_quotient,
    cost=12,
    exact=True,
)
pointwise("ldexp", aten.ldexp.Tensor, expr=lambda a: a.self * fn.exp2(a.other), cost=5, floats=True)
pointwise("fmod", aten.fmod.Scalar, aten.fmod.Tensor, expr=lambda a: fn.fmod_of(a.self, a.other), cost=8)

# ---- powers, exponentials, trigonometry

pointwise("sqrt", aten.sqrt.default, expr=lambda a: fn.sqrt(a.self), monotone=1, bounds=lambda x: (0, INF), cost=4)
pointwise("rsqrt", aten.rsqrt.default, expr=lambda a: fn.rsqrt(a.self), bounds=lambda x: (0, INF), cost=4)
pointwise("exp", aten.exp.default, expr=lambda a: fn.exp(a.self), monotone=1, bounds=lambda x: (0, INF), cost=6)
pointwise("exp2", aten.exp2.default, expr=lambda a: fn.exp2(a.self), monotone=1, bounds=lambda x: (0, INF), cost=4)
pointwise("expm1", aten.expm1.default, expr=lambda a: fn.expm1(a.self), monotone=1, bounds=lambda x: (-1, INF), cost=12)
pointwise("log", aten.log.default, expr=lambda a: fn.log(a.self), monotone=1, cost=8)
pointwise("log2", aten.log2.default, expr=lambda a: fn.log2(a.self), monotone=1, cost=8)
pointwise("log10", aten.log10.default, expr=lambda a: fn.log10(a.self), monotone=1, cost=8)
pointwise("log1p", aten.log1p.default, expr=lambda a: fn.log1p(a.self), monotone=1, cost=12)
pointwise("sin", aten.sin.default, expr=lambda a: fn.sin(a.self), bounds=lambda x: (-1, 1), cost=12)
pointwise("cos", aten.cos.default, expr=lambda a: fn.cos(a.self), bounds=lambda x: (-1, 1), cost=12)
pointwise(
    "atan",
    aten.atan.default,
    expr=lambda a: fn.atan(a.self),
    monotone=1,
    bounds=lambda x: (-1.5707964, 1.5707964),
    cost=12,
)
pointwise(
    "erf",
    aten.erf.default,
    aten.special_erf.default,
    expr=lambda a: fn.erf(a.self),
    monotone=1,
    bounds=lambda x: (-1, 1),
    cost=12,
)
pointwise("erfc", aten.erfc.default, expr=lambda a: fn.erfc(a.self), monotone=-1, bounds=lambda x: (0, 2), cost=16)
pointwise("asin", aten.asin.default, expr=lambda a: fn.asin(a.self), monotone=1, cost=16)
pointwise("acos", aten.acos.default, expr=lambda a: fn.acos(a.self), monotone=-1, cost=16)
pointwise("atan2", aten.atan2.default, expr=lambda a: fn.atan2(a.self, a.other), cost=24)
pointwise("hypot", aten.hypot.default, expr=lambda a: fn.hypot(a.self, a.other), cost=16)
pointwise("asinh", aten.asinh.default, expr=lambda a: fn.asinh(a.self), monotone=1, cost=24)
pointwise("acosh", aten.acosh.default, expr=lambda a: fn.acosh(a.self), monotone=1, bounds=lambda x: (0, INF), cost=24)
pointwise("atanh", aten.atanh.default, expr=lambda a: fn.atanh(a.self), monotone=1, cost=24)
pointwise("lgamma", aten.lgamma.default, aten.special_gammaln.default, expr=lambda a: fn.lgamma(a.self), cost=40)
pointwise("copysign", aten.copysign.Tensor, aten.copysign.Scalar, expr=lambda a: fn.copysign(a.self, a.other), floats=True)
pointwise(
    "xlogy",
    *(aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self),
    expr=lambda a: select(both(equal(a.self, 0.0), equal(a.other, a.other)), 0.0, a.self * fn.log(a.other)),
    cost=12,
)
pointwise(
    "entr",
    aten.special_entr.default,
    expr=lambda a: select(a.self <= 0.0, select(equal(a.self, 0.0), 0.0, -INF), -a.self * fn.log(a.self)),
    cost=12,
)
pointwise("heaviside", aten.heaviside.default, expr=lambda a: select(equal(a.self, 0), a.values, select(a.self > 0, 1, 0)))
pointwise("frac", aten.frac.default, expr=lambda a: a.self - fn.trunc(a.self), floats=True)
pointwise("floor", aten.floor.default, expr=lambda a: fn.floor(a.self), monotone=1, floats=True)
pointwise("ceil", aten.ceil.default, expr=lambda a: fn.ceil(a.self), monotone=1, floats=True)
pointwise("round", aten.round.default, expr=lambda a: fn.rint(a.self), monotone=1, floats=True)
pointwise("round_decimals", aten.round.decimals, expr=_rounded_to_decimals, cost=8, floats=True, exact=True)
pointwise("trunc", aten.trunc.default, expr=lambda a: fn.trunc(a.self), monotone=1, floats=True)
pointwise(
    "sign",
    aten.sign.default,
    aten.sgn.default,
    expr=lambda a: fn.sign_of(a.self),
    monotone=1,
    bounds=lambda x: (-1, 1),
)

# ---- activations


def _clamp(x: Expr, low: Any, high: Any) -> Expr:
    """NaN stays NaN, as in PyTorch."""
    found = x if low is None else fn.larger(x, low)
    return found if high is None else fn.smaller(found, high)


def _clamp_between(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    """Bounds may be tensors, and a NaN among them counts; where they are in the wrong order the upper one holds."""
    if isinstance(low, Number) and isinstance(high, Number) and not low.value <= high.value:
        return select(equal(x, x), high, x)
    return _clamp(x, low, high)


def _gelu(a: Any) -> Expr:
    x = a.self
    if a.approximate == "tanh":
        return 0.5 * x * (1.0 + fn.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1.0 + fn.erf(x * 0.7071067811865476))


def _elu(a: Any) -> Expr:
    inner = a.self if _is_one(a.input_scale) else a.self * a.input_scale
    return _scaled(fn.choose(a.self > 0.0, a.self, a.alpha * _expm1(inner, a.input_scale)), a.scale)


def _expm1(x: Expr, factor: Number) -> Expr:
    """Of a multiple of what is not above 0."""
    return fn.expm1_below(x) if factor.value > 0 else fn.expm1(x)


def _softplus(a: Any) -> Expr:
    """log(1 + exp(y)) = max(y, 0) + log(1 + exp(-|y|))"""
    single = _is_one(a.beta)
    y = a.self if single else a.self * a.beta
    above = fn.fmax(y, 0.0) + fn.log1p_unit(fn.exp(-fn.fabs(y)))
    return fn.choose(y > a.threshold, a.self, above if single else above * (1.0 / a.beta))


pointwise(
    "relu",
    aten.relu.default,
    expr=lambda a: select(a.self < 0, 0, a.self),
    monotone=1,
    bounds=lambda x: (max(x[0], 0), max(x[1], 0)),
)
pointwise("relu6", aten.relu6.default, expr=lambda a: _clamp(a.self, 0.0, 6.0), monotone=1, bounds=lambda x: (0, 6))
pointwise("leaky_relu", aten.leaky_relu.default, expr=lambda a: select(a.self > 0.0, a.self, a.negative_slope * a.self))
pointwise("prelu", aten._prelu_kernel.default, expr=lambda a: select(a.self > 0.0, a.self, a.weight * a.self))
pointwise("elu", aten.elu.default, expr=_elu, cost=12)
pointwise(
    "selu",
    aten.selu.default,
    expr=lambda a: 1.0507009873554805 * fn.choose(a.self > 0.0, a.self, 1.6732632423543772 * fn.expm1_below(a.self)),
    monotone=1,
    bounds=lambda x: (-1.7580994, INF),
    cost=12,
)
pointwise(
    "celu",
    aten.celu.default,
    expr=lambda a: fn.choose(a.self > 0.0, a.self, a.alpha * _expm1(a.self * (1.0 / a.alpha), a.alpha)),
    cost=16,
)
pointwise(
    "gelu",
    aten.gelu.default,
    expr=_gelu,
    valley=(-0.753, -0.7517),  # of both forms
    bounds=lambda x: (-0.17, max(x[1], 0)),
    cost=16,
)
pointwise(
    "silu",
    aten.silu.default,
    expr=lambda a: a.self * fn.sigmoid(a.self),
    valley=(-1.279, -1.278),
    bounds=lambda x: (-0.2785, max(x[1], 0)),
    cost=12,
)
pointwise(
    "mish",
    aten.mish.default,
    expr=lambda a: fn.mish(a.self, fn.exp(a.self)),
    valley=(-1.193, -1.192),
    bounds=lambda x: (-0.309, max(x[1], 0)),
    cost=24,
)
pointwise(
    "sigmoid",
    aten.sigmoid.default,
    aten.special_expit.default,
    expr=lambda a: fn.sigmoid(a.self),
    monotone=1,
    bounds=lambda x: (0, 1),
    cost=12,
)
pointwise(
    "log_sigmoid",
    aten.log_sigmoid.default,
    expr=lambda a: log_sigmoid(a.self),
    monotone=1,
    bounds=lambda x: (-INF, 0),
    cost=16,
)


def log_sigmoid(x: Expr) -> Expr:
    """log(1 / (1 + exp(-x))) = min(x, 0) - log(1 + exp(-|x|))"""
    return fn.fmin(x, 0.0) - fn.log1p_unit(fn.exp(-fn.fabs(x)))


pointwise("tan", aten.tan.default, expr=lambda a: fn.tan(a.self), cost=24)
pointwise("sinh", aten.sinh.default, expr=lambda a: fn.sinh(a.self), monotone=1, cost=24)
pointwise("cosh", aten.cosh.default, expr=lambda a: fn.cosh(a.self), valley=(0, 0), bounds=lambda x: (1, INF), cost=24)
pointwise("tanh", aten.tanh.default, expr=lambda a: fn.tanh(a.self), monotone=1, bounds=lambda x: (-1, 1), cost=16)
pointwise("softplus", aten.softplus.default, expr=_softplus, monotone=1, bounds=lambda x: (0, INF), cost=16)
pointwise("hardtanh", aten.hardtanh.default, expr=lambda a: _clamp(a.self, a.min_val, a.max_val), monotone=1)
SIXTH = as_expr(1.0) / 6.0
pointwise(
    "hardsigmoid",
    aten.hardsigmoid.default,
    expr=lambda a: _clamp(a.self + 3.0, 0.0, 6.0) * SIXTH,
    monotone=1,
    bounds=lambda x: (0, 1),
)
pointwise(
    "hardswish",
    aten.hardswish.default,
    expr=lambda a: a.self * fn.fmin(fn.fmax(a.self + 3.0, 0.0), 6.0) * SIXTH,
    valley=(-1.5, -1.5),
    bounds=lambda x: (-0.375, max(x[1], 0)),
)
pointwise(
    "hardshrink",
    aten.hardshrink.default,
    expr=lambda a: select(both(a.self >= -a.lambd, a.self <= a.lambd), 0.0, a.self),
)
pointwise(
    "softshrink",
    aten.softshrink.default,
    expr=lambda a: select(a.self > a.lambd, a.self - a.lambd, select(a.self < -a.lambd, a.self + a.lambd, a.self * 0.0)),
    monotone=1,
)
pointwise("threshold", aten.threshold.default, expr=lambda a: select(a.self <= a.threshold, a.value, a.self))
pointwise(
    "clamp",
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clip.default,
    aten.clip.Tensor,
    expr=lambda a: _clamp_between(a.self, a.min, a.max),
)
pointwise("clamp_min", aten.clamp_min.default, aten.clamp_min.Tensor, expr=lambda a: _clamp_between(a.self, a.min, None))
pointwise("clamp_max", aten.clamp_max.default, aten.clamp_max.Tensor, expr=lambda a: _clamp_between(a.self, None, a.max))
pointwise("minimum", aten.minimum.default, aten.min.other, expr=lambda a: fn.smaller(a.self, a.other))
pointwise("fmin", aten.fmin.default, expr=lambda a: fn.fmin(a.self, a.other), floats=True)
pointwise("fmax", aten.fmax.default, expr=lambda a: fn.fmax(a.self, a.other), floats=True)
pointwise("maximum", aten.maximum.default, aten.max.other, expr=lambda a: fn.larger(a.self, a.other))

# ---- comparison, choice, logic

for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _packet = getattr(aten, _name)
    pointwise(_name, *(_packet.Tensor, _packet.Scalar), expr=lambda a, sign=_sign: Binary(sign, a.self, a.other), exact=True)
pointwise("logical_not", aten.logical_not.default, expr=lambda a: negated(a.self))
pointwise("logical_and", aten.logical_and.default, expr=lambda a: both(a.self, a.other))
pointwise("logical_or", aten.logical_or.default, expr=lambda a: either(a.self, a.other))
pointwise("logical_xor", aten.logical_xor.default, expr=lambda a: differs(negated(a.self), negated(a.other)))
for _name, _sign in {"and": "&", "or": "|", "xor": "^"}.items():
    _packets = getattr(aten, f"__{_name}__"), getattr(aten, f"bitwise_{_name}")
    _targets = [getattr(packet, kind) for packet in _packets for kind in ("Tensor", "Scalar")]
    pointwise(f"bitwise_{_name}", *_targets, expr=lambda a, sign=_sign: Binary(sign, a.self, a.other))
for _name, _packets in {"left": (aten.__lshift__, aten.bitwise_left_shift), "right": (aten.__rshift__, aten.bitwise_right_shift)}.items():
    _targets = [getattr(packet, kind) for packet in _packets for kind in packet.overloads() if not kind.endswith(("out", "int"))]
    _shift = fn.shifted_left if _name == "left" else fn.shifted_right
    pointwise(f"shifted_{_name}", *_targets, expr=lambda a, shift=_shift: shift(a.self, a.other), whole=True)
pointwise("isinf", aten.isinf.default, expr=lambda a: equal(fn.fabs(a.self), INF), floats=True)
pointwise("isfinite", aten.isfinite.default, expr=lambda a: fn.fabs(a.self) < INF, floats=True)
pointwise("signbit", aten.signbit.default, expr=lambda a: fn.copysign(1.0, a.self) < 0.0, floats=True)
pointwise("isnan", aten.isnan.default, expr=lambda a: differs(a.self, a.self))

pointwise("gcd", aten.gcd.default, expr=lambda a: fn.common_divisor(a.self, a.other), cost=100, whole=True)
pointwise("lcm", aten.lcm.default, expr=lambda a: fn.common_multiple(a.self, a.other), cost=120, whole=True)
