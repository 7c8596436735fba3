"""The error budget: how far from the fp64 result one element may be, and whether a tensor keeps within it.

For each element,

    allowed = K · max(|eager − exact|, spread) + one ulp,

where `spread` is the largest distance from the exact fp64 result of a few fp64 results whose rounding was put in at
random, as the model's type and the user's flags allow (`reference.py`). An element on which eager happens to be exact
must not have a budget of zero, so the noise is also pooled over the tensor, relative to |exact| + rms(exact): K times
its rms, or WORST times eager's largest.

A tensor as a whole keeps closer than its worst element: where the flags allow products coarser than the model's type
(TF32), its rms error may reach K_TENSOR times the spread's rms. That tells TF32 from bf16, which errs eight times more. It
tells nothing where no product shows, as in a gradient that cancels to zero: a tensor may always err as much as it might if the
flags did not allow such products, K times the spread that the model's type alone gives.

Where the flags allow a convolution TF32 and the library computes it in float32 all the same, its operands are not perturbed: the
spread is what eager may err. What the flags allow counts there up to NEAR of the result's rms and no further, so nothing may err more
than by the flags alone.

Both constants are fixed; `tests/verify/test_budget.py` calibrates them with honest and with deliberately wrong results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .reference import NEAR, UNIT_ROUNDOFF

K = 8.0  # honest results use 0.9 of it at most (a sum one after another), TF32 where it is not allowed 130 times
WORST = 4.0  # times eager's largest error: errors gather where a formula cancels, as in gelu's tail
GROSS = 2.0**-6  # relative: four roundings to bf16; an error beyond it is no matter of precision
K_TENSOR = 2.0  # TF32 rounded errs 0.7 times the spread, truncated 1.4; values stored in bf16 2.7, bf16 products 6


@dataclass(frozen=True)
class Evidence:
    """One tensor of a model's results: in exact fp64, by eager PyTorch, and in fp64 with rounding put in at random."""

    exact: Tensor
    eager: Tensor
    draws: tuple[Tensor, ...] = ()
    coarse: bool = False  # the flags allow products coarser than the model's type
    fine: tuple[Tensor, ...] = ()  # as `draws`, with no more rounding than the model's type has itself
    flagged: tuple[Tensor, ...] = ()  # as `draws`, with all that the flags allow, where the library is more exact than that


@dataclass(frozen=True)
class Budget:
    exact: Tensor  # float64
    eager: Tensor  # float64
    allowed: Tensor  # for each element
    scale: Tensor  # |exact| + rms(exact): what "relative" means for this tensor
    rms_allowed: float  # for the whole tensor, relative to `scale`
    outliers: int = 0  # elements that may lie beyond `allowed`, as honest results do where the function jumps
    ceiling: float = math.inf  # the most an outlier may err


@dataclass(frozen=True)
class Miss:
    """The worst element of a comparison."""

    ratio: float  # error over budget; at most 1 passes
    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float
    why: str = ""  # set where it is no matter of one element's size: a NaN, a wrong shape, the tensor as a whole
    gross: float = 0.0  # error over what even bf16 arithmetic would give; above 1 it is no rounding at all
    ours: float = math.nan  # the tensor's largest error over the rms of its exact values
    eager: float = math.nan  # the same of eager's own

    @property
    def error(self) -> float:
        return abs(self.got - self.expected)

    @property
    def passed(self) -> bool:
        return self.ratio <= 1 and not self.why

    def __str__(self) -> str:
        at = f"at {list(self.index)}: got {self.got:.9g}, expected {self.expected:.9g}, allowed ±{self.allowed:.3g}"
        return f"{self.why} {at}".strip()


PERFECT = Miss(0.0, (), 0.0, 0.0, 0.0)


def budget(evidence: Evidence) -> Budget:
    """What every element of this tensor, and the tensor as a whole, may err."""
    limit = _budget(evidence)
    if not evidence.flagged or not evidence.eager.dtype.is_floating_point:
        return limit
    flagged = _budget(replace(evidence, draws=evidence.flagged, coarse=True))
    near = torch.full_like(limit.exact, NEAR * _rms(torch.nan_to_num(limit.exact, nan=0.0, posinf=0.0, neginf=0.0)))
    allowed = torch.maximum(limit.allowed, torch.minimum(flagged.allowed, near))
    rms_allowed = max(limit.rms_allowed, min(flagged.rms_allowed, _rms(near / limit.scale)))
    return replace(limit, allowed=allowed, rms_allowed=rms_allowed)


def _budget(evidence: Evidence) -> Budget:
    exact, eager = evidence.exact.double(), evidence.eager.double()
    draws = [_distance(draw.double(), exact) for draw in evidence.draws]
    own = _distance(eager, exact)
    noise = functools.reduce(torch.maximum, draws, own)
    finite = torch.nan_to_num(exact, nan=0.0, posinf=0.0, neginf=0.0)
    scale = finite.abs().add_(_rms(finite))
    scale.masked_fill_(~(scale > 0), 1.0)
    if not evidence.eager.dtype.is_floating_point:  # indices and masks: equal, unless honest results differ themselves
        return Budget(exact, eager, K * noise, scale, math.inf)
    worst_own = float((own / scale).max()) if exact.numel() else 0.0
    rms_own, rms_draws = _rms(own / scale), [_rms(draw / scale) for draw in draws]
    del own, draws  # memory: from here on these would be the larger part of it
    floor = max(K * _rms(noise / scale), WORST * worst_own) * scale
    allowed = torch.maximum(noise.mul_(K), floor).add_(ulp(finite, evidence.eager.dtype))
    tiny = UNIT_ROUNDOFF[evidence.eager.dtype]
    rms_fine = max((_rms(_distance(draw.double(), exact) / scale) for draw in evidence.fine), default=0.0)
    rms_allowed = max(_rms_allowed(rms_own, rms_draws, evidence.coarse), K * rms_fine)
    return Budget(exact, eager, allowed, scale, rms_allowed + tiny)


def _rms_allowed(own: float, draws: Sequence[float], coarse: bool) -> float:
    """For a tensor as a whole. Where few independent errors make up its rms the draws differ, and it may be more."""
    spread = max(draws, default=0.0)
    if not coarse or own > K_TENSOR * spread:
        return K * max(own, spread)
    mean = sum(draws) / len(draws)
    variation = math.sqrt(sum((d - mean) ** 2 for d in draws) / len(draws)) / mean if mean else 0.0
    return min(K, K_TENSOR * (1 + 6 * variation)) * max(own, spread)


def compare(got: Tensor, limit: Budget, *, kind_may_change: bool = False) -> Miss:
    """The worst element of `got` under a budget: finite where eager is, and of the same kind where it is not."""
    if got.shape != limit.exact.shape:
        why = f"shape {tuple(got.shape)} instead of {tuple(limit.exact.shape)}"
        return Miss(math.inf, (), math.nan, math.nan, 0.0, why, math.inf)
    value = got.detach().double()
    if not value.numel():
        return PERFECT
    wrong_kind = _wrong_kind(value, limit, kind_may_change)
    if bool(wrong_kind.any()):
        index = _index(wrong_kind.double())
        why = f"{int(wrong_kind.sum())} of {value.numel()} elements differ in what is finite;"
        allowed = float(limit.allowed[index])
        return Miss(math.inf, index, float(value[index]), float(limit.eager[index]), allowed, why, math.inf)
    error = _distance(value, limit.exact)
    comparable = torch.isfinite(limit.exact) & torch.isfinite(limit.eager)
    error = torch.where(comparable, error, torch.zeros_like(error))
    ratio = torch.where(error > 0, error / limit.allowed, torch.zeros_like(error))
    beyond = ratio > 1
    if limit.outliers and int(beyond.sum()) <= limit.outliers:
        ratio = torch.where(beyond, torch.clamp(error / limit.ceiling, max=math.inf), ratio)
    index = _index(ratio)
    whole = _rms(error / limit.scale) / limit.rms_allowed if limit.rms_allowed else 0.0
    why = f"the rms error of the whole tensor is {whole:.2g} times what it may be;" if whole > 1 else ""
    gross = float((error / torch.maximum(limit.allowed, GROSS * limit.scale)).max())
    worst = max(float(ratio[index]), whole)
    ours, eager = (_largest(e, limit.exact, comparable) for e in (error, _distance(limit.eager, limit.exact)))
    return Miss(worst, index, float(value[index]), float(limit.exact[index]), float(limit.allowed[index]), why, gross, ours, eager)


def _largest(error: Tensor, exact: Tensor, comparable: Tensor) -> float:
    """The largest error over the rms of the exact values, of those that are numbers."""
    rms = _rms(exact[comparable])
    return float(error[comparable].max()) / rms if rms else math.nan


def with_outliers(limit: Budget, evidence: Evidence) -> Budget:
    """Allow as many elements beyond the budget as honest results have beyond a budget made without them.

    A function that jumps (the derivative of a relu or a max pool, a comparison) sends an element that lies within
    rounding of the jump to one side or the other; no finite number of draws has seen every such element.
    """
    samples = evidence.draws
    most, ceiling = 0, 0.0
    for i, sample in enumerate(samples):
        others = Evidence(evidence.exact, evidence.eager, samples[:i] + samples[i + 1 :], evidence.coarse)
        error = _distance(sample.double(), limit.exact)
        most = max(most, int((error > budget(others).allowed).sum()))
        ceiling = max(ceiling, float(error.max()) if error.numel() else 0.0)
    return Budget(
        limit.exact, limit.eager, limit.allowed, limit.scale, limit.rms_allowed, outliers=2 * most, ceiling=K * ceiling
    )


def zeros_pass(limit: Budget) -> bool:
    """Would an output of zeros be accepted? Then the budget says nothing about this tensor."""
    return compare(torch.zeros_like(limit.exact), limit, kind_may_change=True).passed


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next number of this type, in float64."""
    info = torch.finfo(dtype)
    return value.abs().clamp_(min=info.smallest_normal).log2_().floor_().exp2_().mul_(info.eps)


def _wrong_kind(value: Tensor, limit: Budget, kind_may_change: bool) -> Tensor:
    exact, eager = limit.exact, limit.eager
    must_be_finite = torch.isfinite(exact) & torch.isfinite(eager)
    must_not = ~torch.isfinite(exact) & ~torch.isfinite(eager)  # where eager alone overflows either is right
    wrong = (must_be_finite & ~torch.isfinite(value)) | (must_not & torch.isfinite(value))
    if not kind_may_change:
        agree = _same_kind(exact, eager)  # where fp64 and eager are of different kinds, either is right
        wrong |= must_not & agree & ~_same_kind(value, eager)
    return wrong


def _same_kind(a: Tensor, b: Tensor) -> Tensor:
    return (torch.isnan(a) & torch.isnan(b)) | (a == b) | (torch.isfinite(a) & torch.isfinite(b))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """|a − b| where both are finite, else 0: finiteness is compared on its own."""
    return (a - b).abs_().nan_to_num_(nan=0.0, posinf=0.0)


def _rms(x: Tensor) -> float:
    if not x.numel():
        return 0.0
    largest = max(abs(float(bound)) for bound in torch.aminmax(x))
    return largest * math.sqrt(float((x / largest).square_().mean())) if 0 < largest < math.inf else largest


def _index(x: Tensor) -> tuple[int, ...]:
    """The position of the largest element."""
    return tuple(int(i) for i in torch.unravel_index(x.flatten().argmax(), x.shape))
