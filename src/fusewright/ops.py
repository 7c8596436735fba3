"""Operators: one record each. The aten operator is the meaning; beside it stand its CUDA and the range of its values.

To add a pointwise operator, add one `pointwise(...)` line here. Operators with structure (reductions, norms, pools,
views) are functions in `structured.py` under `@lowers(...)`, built from the primitives of `prims.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._ops import OpOverload

from .graph import Graph, Node, Ref
from .prims import C_TYPES, Size
from .prims import literal as literal

if TYPE_CHECKING:
    from .lower import Lowering

aten = torch.ops.aten
INF = float("inf")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Record:
    """What Fusewright knows of an operator."""

    name: str
    targets: tuple[OpOverload, ...]
    lower: Callable[[Lowering, Node], str | None]
    pointwise: bool = False
    view: bool = False
    cuda: Callable[..., str] | None = None
    monotone: int = 0  # +1 never decreasing, -1 never increasing, in its only tensor argument
    valley: Interval | None = None  # where it has its only minimum: never increasing before, never decreasing after
    bounds: Callable[..., Interval] | None = None  # range of the value, from the ranges of the tensor arguments
    cost: int = 1


RECORDS: dict[OpOverload | str, Record] = {}


def fill_records() -> None:
    from . import adaptive, indexed, losses, norms, pieces, placement, pools, reductions, resizing, scans, structured  # noqa: F401  their decorators do


def find(node: Node, graph: Graph) -> Record | None:
    fill_records()
    return RECORDS.get(node.target)


def register(record: Record) -> None:
    for target in record.targets:
        assert target not in RECORDS, f"{target} has two records"
        RECORDS[target] = record


def pointwise(
    name: str,
    *targets: OpOverload,
    cuda: Callable[..., str],
    monotone: int = 0,
    valley: Interval | None = None,
    bounds: Callable[..., Interval] | None = None,
    cost: int = 1,
    floats: bool = False,
    whole: bool = False,
    exact: bool = False,
) -> None:
    """A record for an operator that works element by element. `cuda` gets every schema argument by name, as C++ text.

    `floats`: the expression is right for floats only; on integers the operator stays with PyTorch. `whole`: the other way round.
    `exact`: a half is first rounded as memory would round it, because a bit decides the result.
    """

    def lower(build: Lowering, node: Node) -> str | None:
        assert node.dtype is not None
        compute = compute_type(node, build.graph)
        if (floats and not compute.is_floating_point) or (whole and (compute.is_floating_point or compute is torch.bool)):
            return None
        placeholders: list[str] = []
        texts: dict[str, Any] = {}
        for argument, value in node.bound().items():
            if isinstance(value, Ref):
                texts[argument] = f"{{{len(placeholders)}}}"
                name = build.value[value.name]
                placeholders.append(as_in_memory(build, name) if exact else name)
            elif isinstance(value, sympy.Expr):  # a number computed from sizes
                texts[argument] = f"{{{len(placeholders)}}}"
                made = number(build, value, torch.float32 if compute.is_floating_point else torch.int64)
                if made is None:
                    return None
                placeholders.append(made)
            elif isinstance(value, (bool, int, float)):
                texts[argument] = literal(value, compute)
            else:
                texts[argument] = value
        expression = cuda(SimpleNamespace(**texts, is_whole=not compute.is_floating_point))
        if compute is torch.float64:
            expression = in_double(expression)
        return build.pointwise("", expression, placeholders, node.dtype, compute, cost)

    known = Record(name, targets, lower, True, cuda=cuda, monotone=monotone, valley=valley, bounds=bounds, cost=cost)
    register(known)


SIGNS = {"IntTrueDiv": " / ", "FloatTrueDiv": " / ", "ToFloat": "", "Mul": " * ", "Add": " + "}  # of numbers that are no sizes


def number(build: Lowering, value: sympy.Expr, dtype: torch.dtype) -> str | None:
    """A number computed from sizes: one of them, or a quotient and the like, in double precision as Python has it."""
    parts = list(sympy.preorder_traversal(value))
    if not any(part.is_Float or "True" in type(part).__name__ or "Float" in type(part).__name__ for part in parts):
        return build.add("size", Size(value), [], (), dtype)
    sign = SIGNS.get(type(value).__name__)
    names = [number(build, part, torch.float64) for part in value.args if part.free_symbols]
    if sign is None or any(name is None for name in names):
        return None
    places = iter(range(len(names)))
    texts = [f"{{{next(places)}}}" if part.free_symbols else literal(float(part), torch.float64) for part in value.args]
    return build.pointwise("number", sign.join(texts), [name for name in names if name], torch.float64, torch.float64)


def as_in_memory(build: Lowering, name: str) -> str:
    """A value of a half type rounded to it: in registers it is a float."""
    dtype = build[name].dtype
    if dtype not in (torch.float16, torch.bfloat16) or build[name].is_load:
        return name
    kind = C_TYPES[dtype]
    return build.pointwise("rounded", f"to_arithmetic<float, {kind}>(to_memory<{kind}, float>({{0}}))", [name], dtype)


def in_double(expression: str) -> str:
    """The same expression in double precision: expf -> exp, 1.0f -> 1.0."""
    expression = re.sub(
        r"\b(exp|exp2|log|log2|log10|log1p|expm1|sqrt|rsqrt|tanh|erf|sin|cos|tan|fabs|fmod|floor|ceil|rint|trunc|pow|copysign|atan|atan2|sinh|cosh|asinh|acosh|atanh|asin|acos|erfc|hypot|fma|fmax|fmin)f\(",
        r"::\1(",  # the function, whatever a value may be called
        expression,
    )
    return re.sub(r"(\d\.\d*(?:e[-+]?\d+)?|\de[-+]?\d+)f\b", r"\1", expression)


def compute_type(node: Node, graph: Graph) -> torch.dtype:
    """The type in which the operator works: its result's where that is a float, else the promotion of its operands."""
    assert node.dtype is not None
    if node.dtype.is_floating_point:
        return node.dtype
    found: torch.dtype | None = None
    numbers = []
    for value in node.bound().values():
        if isinstance(value, Ref):
            other = graph[value.name].dtype
            assert other is not None
            found = other if found is None else torch.promote_types(found, other)
        elif isinstance(value, (int, float)):
            numbers.append(value)
    found = found or node.dtype
    if any(isinstance(n, float) for n in numbers) and not found.is_floating_point:
        found = torch.get_default_dtype()
    elif found is torch.bool and any(not isinstance(n, bool) for n in numbers):
        found = torch.int64
    return found


# ---- arithmetic


def _scaled(text: str, alpha: str) -> str:
    return text if alpha in ("1", "1.0f", "1.0", "true") else f"{alpha} * {text}"


def _add_bounds(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


pointwise("add", aten.add.Tensor, aten.add.Scalar, cuda=lambda a: f"{a.self} + {_scaled(a.other, a.alpha)}")
pointwise(
    "sub",
    *(aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, aten.subtract.Scalar),
    cuda=lambda a: f"{a.self} - {_scaled(a.other, a.alpha)}",
)
pointwise("rsub", aten.rsub.Tensor, aten.rsub.Scalar, cuda=lambda a: f"{a.other} - {_scaled(a.self, a.alpha)}")
pointwise(
    "mul",
    *(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, aten.multiply.Scalar),
    cuda=lambda a: f"{a.self} * {a.other}",
)
pointwise(
    "div",
    *(aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.divide.Scalar, aten.true_divide.Tensor),
    cuda=lambda a: f"{a.self} / {a.other}",
    cost=4,
)
pointwise(
    "neg",
    aten.neg.default,
    aten.negative.default,
    cuda=lambda a: f"-{a.self}",
    monotone=-1,
    bounds=lambda x: (-x[1], -x[0]),
)
pointwise(
    "abs",
    *(aten.abs.default, aten.absolute.default),
    cuda=lambda a: f"absolute({a.self})",
    valley=(0, 0),
    bounds=lambda x: (0 if x[0] < 0 < x[1] else min(abs(x[0]), abs(x[1])), max(abs(x[0]), abs(x[1]))),
)
pointwise("reciprocal", aten.reciprocal.default, cuda=lambda a: f"1.0f / {a.self}", cost=4)
pointwise("square", aten.square.default, cuda=lambda a: f"{a.self} * {a.self}", valley=(0, 0))


def _power(a: Any) -> str:
    x = a.self
    if a.exponent.startswith("{"):
        return f"exp2f({a.exponent})" if not x.startswith("{") and _number(x) == 2.0 else f"powf({x}, {a.exponent})"
    known = {
        0.5: f"sqrtf({x})",
        1.0: x,
        2.0: f"{x} * {x}",
        3.0: f"{x} * {x} * {x}",
        4.0: f"({x} * {x}) * ({x} * {x})",
        -0.5: f"1.0f / sqrtf({x})",
        -1.0: f"1.0f / {x}",
    }
    return known.get(_number(a.exponent), f"powf({x}, {a.exponent})")


def _lerp(a: Any) -> str:
    """From whichever end is nearer, so that a weight of 1 gives the end itself."""
    near, far = f"{a.self} + {a.weight} * ({a.end} - {a.self})", f"{a.end} - ({a.end} - {a.self}) * (1.0f - {a.weight})"
    if a.weight.startswith("{"):
        return f"(fabsf({a.weight}) < 0.5f ? {near} : {far})"
    return near if abs(_number(a.weight)) < 0.5 else far


def _rounded_quotient(a: Any) -> str:
    x, y, mode = a.self, a.other, getattr(a, "rounding_mode", "floor")
    if a.is_whole:
        return f"{'whole_floor_divided' if mode == 'floor' else 'whole_truncated'}({x}, {y})"
    if mode == "floor":
        return f"floor_divided({x}, {y})"
    return f"truncf({x} / {y})" if mode == "trunc" else f"{x} / {y}"


pointwise("pow", aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar, cuda=_power, cost=8, floats=True)
pointwise("fma", aten.addcmul.default, cuda=lambda a: f"{a.self} + {_scaled(f'{a.tensor1} * {a.tensor2}', a.value)}")
pointwise(
    "addcdiv",
    aten.addcdiv.default,
    cuda=lambda a: f"{a.self} + {_scaled(f'({a.tensor1} / {a.tensor2})', a.value)}",
    cost=4,
)
pointwise("lerp", aten.lerp.Scalar, aten.lerp.Tensor, cuda=_lerp)
pointwise(
    "remainder",
    aten.remainder.Scalar,
    aten.remainder.Tensor,
    cuda=lambda a: f"remainder_of({a.self}, {a.other})",
    cost=8,
)
pointwise(
    "div_rounded",
    *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default, aten.floor_divide.Scalar),
    cuda=_rounded_quotient,
    cost=12,
    exact=True,
)
pointwise("fmod", aten.fmod.Scalar, aten.fmod.Tensor, cuda=lambda a: f"fmod_of({a.self}, {a.other})", cost=8)

# ---- powers, exponentials, trigonometry

pointwise("sqrt", aten.sqrt.default, cuda=lambda a: f"sqrtf({a.self})", monotone=1, bounds=lambda x: (0, INF), cost=4)
pointwise("rsqrt", aten.rsqrt.default, cuda=lambda a: f"rsqrtf({a.self})", bounds=lambda x: (0, INF), cost=4)
pointwise("exp", aten.exp.default, cuda=lambda a: f"expf({a.self})", monotone=1, bounds=lambda x: (0, INF), cost=6)
pointwise("exp2", aten.exp2.default, cuda=lambda a: f"exp2f({a.self})", monotone=1, bounds=lambda x: (0, INF), cost=4)
pointwise(
    "expm1", aten.expm1.default, cuda=lambda a: f"expm1f({a.self})", monotone=1, bounds=lambda x: (-1, INF), cost=12
)
pointwise("log", aten.log.default, cuda=lambda a: f"logf({a.self})", monotone=1, cost=8)
pointwise("log2", aten.log2.default, cuda=lambda a: f"log2f({a.self})", monotone=1, cost=8)
pointwise("log10", aten.log10.default, cuda=lambda a: f"log10f({a.self})", monotone=1, cost=8)
pointwise("log1p", aten.log1p.default, cuda=lambda a: f"log1pf({a.self})", monotone=1, cost=12)
pointwise("sin", aten.sin.default, cuda=lambda a: f"sinf({a.self})", bounds=lambda x: (-1, 1), cost=12)
pointwise("cos", aten.cos.default, cuda=lambda a: f"cosf({a.self})", bounds=lambda x: (-1, 1), cost=12)
pointwise(
    "atan",
    aten.atan.default,
    cuda=lambda a: f"atanf({a.self})",
    monotone=1,
    bounds=lambda x: (-1.5707964, 1.5707964),
    cost=12,
)
pointwise(
    "erf",
    aten.erf.default,
    aten.special_erf.default,
    cuda=lambda a: f"erff({a.self})",
    monotone=1,
    bounds=lambda x: (-1, 1),
    cost=12,
)
pointwise("erfc", aten.erfc.default, cuda=lambda a: f"erfcf({a.self})", monotone=-1, bounds=lambda x: (0, 2), cost=16)
pointwise("asin", aten.asin.default, cuda=lambda a: f"asinf({a.self})", monotone=1, cost=16)
pointwise("acos", aten.acos.default, cuda=lambda a: f"acosf({a.self})", monotone=-1, cost=16)
pointwise("atan2", aten.atan2.default, cuda=lambda a: f"atan2f({a.self}, {a.other})", cost=24)
pointwise("hypot", aten.hypot.default, cuda=lambda a: f"hypotf({a.self}, {a.other})", cost=16)
pointwise("asinh", aten.asinh.default, cuda=lambda a: f"asinhf({a.self})", monotone=1, cost=24)
pointwise("acosh", aten.acosh.default, cuda=lambda a: f"acoshf({a.self})", monotone=1, bounds=lambda x: (0, INF), cost=24)
pointwise("atanh", aten.atanh.default, cuda=lambda a: f"atanhf({a.self})", monotone=1, cost=24)
pointwise("copysign", aten.copysign.Tensor, cuda=lambda a: f"copysignf({a.self}, {a.other})", floats=True)
pointwise(
    "xlogy",
    aten.xlogy.Tensor,
    cuda=lambda a: f"({a.self} == 0.0f && {a.other} == {a.other} ? 0.0f : {a.self} * logf({a.other}))",
    cost=12,
)
pointwise("frac", aten.frac.default, cuda=lambda a: f"({a.self} - truncf({a.self}))", floats=True)
pointwise("floor", aten.floor.default, cuda=lambda a: f"floorf({a.self})", monotone=1, floats=True)
pointwise("ceil", aten.ceil.default, cuda=lambda a: f"ceilf({a.self})", monotone=1, floats=True)
pointwise("round", aten.round.default, cuda=lambda a: f"rintf({a.self})", monotone=1, floats=True)
pointwise("trunc", aten.trunc.default, cuda=lambda a: f"truncf({a.self})", monotone=1, floats=True)
pointwise(
    "sign",
    aten.sign.default,
    aten.sgn.default,
    cuda=lambda a: f"sign_of({a.self})",
    monotone=1,
    bounds=lambda x: (-1, 1),
)

# ---- activations


def _clamp(x: str, low: str | None, high: str | None) -> str:
    """NaN stays NaN, as in PyTorch."""
    text = x if low is None else f"larger({x}, {low})"
    return text if high is None else f"smaller({text}, {high})"


def _clamp_between(x: str, low: str | None, high: str | None) -> str:
    """Bounds may be tensors, and a NaN among them counts; where they are in the wrong order the upper one holds."""
    known = not any(bound is not None and bound.startswith("{") for bound in (low, high))
    if known and low is not None and high is not None and not _number(low) <= _number(high):
        return f"({x} == {x} ? {high} : {x})"
    return _clamp(x, low, high)


def _number(text: str) -> float:
    """The value of a literal."""
    return float(text.strip("()").removesuffix("LL").removesuffix("f").replace("INFINITY", "inf").replace("NAN", "nan"))


def _gelu(a: Any) -> str:
    x = a.self
    if a.approximate == "tanh":
        return f"0.5f * {x} * (1.0f + tanhf(0.7978845608028654f * ({x} + 0.044715f * {x} * {x} * {x})))"
    return f"0.5f * {x} * (1.0f + erff({x} * 0.7071067811865476f))"


def _elu(a: Any) -> str:
    inner = a.self if a.input_scale in ("1", "1.0f", "1.0") else f"{a.self} * {a.input_scale}"
    below = _expm1(inner, _number(a.input_scale))
    return f"{_scaled(f'choose({a.self} > 0.0f, {a.self}, {a.alpha} * {below})', a.scale)}"


def _expm1(x: str, factor: float) -> str:
    """Of a multiple of what is not above 0."""
    return f"expm1_below({x})" if factor > 0 else f"expm1f({x})"


def _softplus(a: Any) -> str:
    """log(1 + exp(y)) = max(y, 0) + log(1 + exp(-|y|))"""
    single = a.beta in ("1.0f", "1.0", "1")
    y = a.self if single else f"({a.self} * {a.beta})"
    above = f"(fmaxf({y}, 0.0f) + log1p_unit(expf(-fabsf({y}))))"
    return f"choose({y} > {a.threshold}, {a.self}, {above if single else f'{above} * (1.0f / {a.beta})'})"


pointwise(
    "relu",
    aten.relu.default,
    cuda=lambda a: f"({a.self} < 0 ? 0 : {a.self})",
    monotone=1,
    bounds=lambda x: (max(x[0], 0), max(x[1], 0)),
)
pointwise(
    "relu6", aten.relu6.default, cuda=lambda a: _clamp(a.self, "0.0f", "6.0f"), monotone=1, bounds=lambda x: (0, 6)
)
pointwise(
    "leaky_relu",
    aten.leaky_relu.default,
    cuda=lambda a: f"({a.self} > 0.0f ? {a.self} : {a.negative_slope} * {a.self})",
)
pointwise(
    "prelu",
    aten._prelu_kernel.default,
    cuda=lambda a: f"({a.self} > 0.0f ? {a.self} : {a.weight} * {a.self})",
)
pointwise("elu", aten.elu.default, cuda=_elu, cost=12)
pointwise(
    "selu",
    aten.selu.default,
    cuda=lambda a: f"1.0507009873554805f * choose({a.self} > 0.0f, {a.self}, 1.6732632423543772f * expm1_below({a.self}))",
    monotone=1,
    bounds=lambda x: (-1.7580994, INF),
    cost=12,
)
pointwise(
    "celu",
    aten.celu.default,
    cuda=lambda a: f"choose({a.self} > 0.0f, {a.self}, {a.alpha} * {_expm1(f'{a.self} * (1.0f / {a.alpha})', _number(a.alpha))})",
    cost=16,
)
pointwise(
    "gelu",
    aten.gelu.default,
    cuda=_gelu,
    valley=(-0.753, -0.7517),  # of both forms
    bounds=lambda x: (-0.17, max(x[1], 0)),
    cost=16,
)
pointwise(
    "silu",
    aten.silu.default,
    cuda=lambda a: f"{a.self} * sigmoid_of({a.self})",
    valley=(-1.279, -1.278),
    bounds=lambda x: (-0.2785, max(x[1], 0)),
    cost=12,
)
pointwise(
    "mish",
    aten.mish.default,
    cuda=lambda a: f"mish_of({a.self}, expf({a.self}))",
    valley=(-1.193, -1.192),
    bounds=lambda x: (-0.309, max(x[1], 0)),
    cost=24,
)
pointwise(
    "sigmoid",
    aten.sigmoid.default,
    aten.special_expit.default,
    cuda=lambda a: f"sigmoid_of({a.self})",
    monotone=1,
    bounds=lambda x: (0, 1),
    cost=12,
)
pointwise(
    "log_sigmoid",
    aten.log_sigmoid.default,
    cuda=lambda a: f"fminf({a.self}, 0.0f) - log1p_unit(expf(-fabsf({a.self})))",
    monotone=1,
    bounds=lambda x: (-INF, 0),
    cost=16,
)
pointwise("tan", aten.tan.default, cuda=lambda a: f"tanf({a.self})", cost=24)
pointwise("sinh", aten.sinh.default, cuda=lambda a: f"sinhf({a.self})", monotone=1, cost=24)
pointwise("cosh", aten.cosh.default, cuda=lambda a: f"coshf({a.self})", valley=(0, 0), bounds=lambda x: (1, INF), cost=24)
pointwise("tanh", aten.tanh.default, cuda=lambda a: f"tanhf({a.self})", monotone=1, bounds=lambda x: (-1, 1), cost=16)
pointwise("softplus", aten.softplus.default, cuda=_softplus, monotone=1, bounds=lambda x: (0, INF), cost=16)
pointwise("hardtanh", aten.hardtanh.default, cuda=lambda a: _clamp(a.self, a.min_val, a.max_val), monotone=1)
pointwise(
    "hardsigmoid",
    aten.hardsigmoid.default,
    cuda=lambda a: f"{_clamp(f'({a.self} + 3.0f)', '0.0f', '6.0f')} * (1.0f / 6.0f)",
    monotone=1,
    bounds=lambda x: (0, 1),
)
pointwise(
    "hardswish",
    aten.hardswish.default,
    cuda=lambda a: f"{a.self} * fminf(fmaxf({a.self} + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f)",
    valley=(-1.5, -1.5),
    bounds=lambda x: (-0.375, max(x[1], 0)),
)
pointwise(
    "hardshrink",
    aten.hardshrink.default,
    cuda=lambda a: f"({a.self} >= -{a.lambd} && {a.self} <= {a.lambd} ? 0.0f : {a.self})",
)
pointwise(
    "softshrink",
    aten.softshrink.default,
    cuda=lambda a: (
        f"({a.self} > {a.lambd} ? {a.self} - {a.lambd} : "
        f"({a.self} < -{a.lambd} ? {a.self} + {a.lambd} : {a.self} * 0.0f))"
    ),
    monotone=1,
)
pointwise("threshold", aten.threshold.default, cuda=lambda a: f"({a.self} <= {a.threshold} ? {a.value} : {a.self})")
pointwise(
    "clamp",
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clip.default,
    aten.clip.Tensor,
    cuda=lambda a: _clamp_between(a.self, a.min, a.max),
)
pointwise(
    "clamp_min", aten.clamp_min.default, aten.clamp_min.Tensor, cuda=lambda a: _clamp_between(a.self, a.min, None)
)
pointwise(
    "clamp_max", aten.clamp_max.default, aten.clamp_max.Tensor, cuda=lambda a: _clamp_between(a.self, None, a.max)
)
pointwise("minimum", aten.minimum.default, aten.min.other, cuda=lambda a: f"smaller({a.self}, {a.other})")
pointwise("fmin", aten.fmin.default, cuda=lambda a: f"fminf({a.self}, {a.other})", floats=True)
pointwise("fmax", aten.fmax.default, cuda=lambda a: f"fmaxf({a.self}, {a.other})", floats=True)
pointwise("maximum", aten.maximum.default, aten.max.other, cuda=lambda a: f"larger({a.self}, {a.other})")

# ---- comparison, choice, logic

for _name, _symbol in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _packet = getattr(aten, _name)
    pointwise(
        _name,
        *(_packet.Tensor, _packet.Scalar),
        cuda=lambda a, symbol=_symbol: f"{a.self} {symbol} {a.other}",
        exact=True,
    )
pointwise("logical_not", aten.logical_not.default, cuda=lambda a: f"!{a.self}")
pointwise("logical_and", aten.logical_and.default, cuda=lambda a: f"({a.self} && {a.other})")
pointwise("logical_or", aten.logical_or.default, cuda=lambda a: f"({a.self} || {a.other})")
pointwise("logical_xor", aten.logical_xor.default, cuda=lambda a: f"(!{a.self} != !{a.other})")
for _name, _symbol in {"and": "&", "or": "|", "xor": "^"}.items():
    _packets = getattr(aten, f"__{_name}__"), getattr(aten, f"bitwise_{_name}")
    _targets = [getattr(packet, kind) for packet in _packets for kind in ("Tensor", "Scalar")]
    pointwise(f"bitwise_{_name}", *_targets, cuda=lambda a, symbol=_symbol: f"({a.self} {symbol} {a.other})")
for _name, _packets in {"left": (aten.__lshift__, aten.bitwise_left_shift), "right": (aten.__rshift__, aten.bitwise_right_shift)}.items():
    _targets = [getattr(packet, kind) for packet in _packets for kind in packet.overloads() if not kind.endswith(("out", "int"))]
    pointwise(f"shifted_{_name}", *_targets, cuda=lambda a, side=_name: f"shifted_{side}({a.self}, {a.other})", whole=True)
pointwise("isinf", aten.isinf.default, cuda=lambda a: f"(fabsf({a.self}) == INFINITY)", floats=True)
pointwise("isfinite", aten.isfinite.default, cuda=lambda a: f"(fabsf({a.self}) < INFINITY)", floats=True)
pointwise("signbit", aten.signbit.default, cuda=lambda a: f"(copysignf(1.0f, {a.self}) < 0.0f)", floats=True)
pointwise("isnan", aten.isnan.default, cuda=lambda a: f"({a.self} != {a.self})")
