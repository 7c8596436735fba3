"""The budget, calibrated: honest results keep within it, wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fusewright.schedule.library import Convolution, Library
from fusewright.verify.budget import (
    GROSS,
    K_TENSOR,
    Budget,
    Evidence,
    K,
    budget,
    compare,
    ulp,
    with_outliers,
    zeros_pass,
)
from fusewright.verify.reference import NEAR, TF32, TO_NEAREST, Rounding, in_float64, widened

FP32 = Rounding(2.0**-24, 2.0**-24, 2.0**-24)
TF32_CONVOLUTIONS = Rounding(2.0**-24, TF32, 2.0**-24)
Function = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def budget_of(model: Function, *inputs: Tensor, rounding: Rounding = FP32, draws: int = 4) -> Budget:
    """What `verify` does for one tensor: exact, eager, and rounded at random."""
    with in_float64(torch.float32):
        exact = model(*widened(list(inputs)))
    rounded = []
    for seed in range(draws):
        with in_float64(torch.float32, rounding, seed):
            rounded.append(model(*widened(list(inputs))))
    return budget(Evidence(exact, model(*inputs), tuple(rounded), rounding.coarse))


def tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def truncated(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(F.linear(x, w, b))


def convolution(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b)


def norm(x: Tensor) -> Tensor:
    return F.group_norm(x, 4)


def sequential(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0])
    for column in x.unbind(1):
        total = total + column
    return total


def chain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """One thread for each output adds the products one after another, as a plain matrix kernel does."""
    total = torch.zeros(x.shape[0], w.shape[0])
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * w[:, k]
    return torch.sigmoid(total + b)


LINEAR = (normal(24, 512), normal(40, 512, seed=1) / 20, normal(40, seed=2) / 20)
CONVOLUTION = (normal(4, 16, 14, 14), normal(24, 16, 3, 3, seed=1) / 12, normal(24, seed=2) / 10)
ROWS = torch.rand(64, 1024, generator=torch.Generator().manual_seed(3))
LARGE_MEAN = 1000 + normal(4, 16, 12, 12)

HONEST: dict[str, tuple[Function, tuple[Tensor, ...], Rounding, Function]] = {
    "sum, one after another": (lambda x: x.sum(1), (ROWS,), FP32, sequential),
    "sum of halves": (lambda x: x.sum(1), (ROWS,), FP32, lambda x: x[:, ::2].sum(1) + x[:, 1::2].sum(1)),
    "sum as a product with ones": (lambda x: x.sum(1), (ROWS,), FP32, lambda x: x @ torch.ones(1024)),
    "sum of both signs": (lambda x: (x - 0.5).sum(1), (ROWS,), FP32, lambda x: sequential(x - 0.5)),
    "matrix product as a chain": (linear, LINEAR, FP32, chain),
    "matrix product split": (
        linear,
        LINEAR,
        FP32,
        lambda x, w, b: torch.sigmoid(x[:, :200] @ w[:, :200].T + (x[:, 200:] @ w[:, 200:].T + b)),
    ),
    "TF32 convolution": (convolution, CONVOLUTION, TF32_CONVOLUTIONS, lambda x, w, b: F.conv2d(tf32(x), tf32(w), b)),
    "TF32 by truncation": (
        convolution,
        CONVOLUTION,
        TF32_CONVOLUTIONS,
        lambda x, w, b: F.conv2d(truncated(x), truncated(w), b),
    ),
    "fp32 convolution": (convolution, CONVOLUTION, TF32_CONVOLUTIONS, convolution),
    "logsumexp shifted by another maximum": (
        lambda x: torch.logsumexp(8 * x, 1),
        (ROWS,),
        FP32,
        lambda x: torch.log(torch.exp(8 * x - 4).sum(1)) + 4,
    ),
    "norm by mean and deviations": (
        norm,
        (LARGE_MEAN,),
        FP32,
        lambda x: (
            ((g := x.view(4, 4, -1)) - g.mean(-1, keepdim=True))
            * torch.rsqrt((g - g.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1e-5)
        ).view(x.shape),
    ),
    "tanh by one exponential": (torch.tanh, (normal(64, 64),), FP32, lambda x: 1 - 2 / (torch.exp(2 * x) + 1)),
}

WRONG: dict[str, tuple[Function, tuple[Tensor, ...], Rounding, Function]] = {
    "zeros": (linear, LINEAR, FP32, lambda x, w, b: torch.zeros(24, 40)),
    "bias dropped": (linear, LINEAR, FP32, lambda x, w, b: torch.sigmoid(F.linear(x, w))),
    "bias dropped after TF32": (convolution, CONVOLUTION, TF32_CONVOLUTIONS, lambda x, w, b: F.conv2d(x, w)),
    "one percent": (convolution, CONVOLUTION, TF32_CONVOLUTIONS, lambda x, w, b: 1.01 * F.conv2d(x, w, b)),
    "one tap shifted": (
        convolution,
        CONVOLUTION,
        TF32_CONVOLUTIONS,
        lambda x, w, b: F.conv2d(x, torch.cat([w[..., :2], w[..., 1:2]], -1), b),
    ),
    "bf16 product": (linear, LINEAR, FP32, lambda x, w, b: linear(bf16(x), bf16(w), b)),
    "TF32 product where it is not allowed": (linear, LINEAR, FP32, lambda x, w, b: linear(tf32(x), tf32(w), b)),
    "bf16 convolution where TF32 is allowed": (
        convolution,
        CONVOLUTION,
        TF32_CONVOLUTIONS,
        lambda x, w, b: F.conv2d(bf16(x), bf16(w), b),
    ),
    "bf16 between kernels": (convolution, CONVOLUTION, TF32_CONVOLUTIONS, lambda x, w, b: bf16(F.conv2d(x, w, b))),
    "variance as a difference of squares": (
        norm,
        (LARGE_MEAN,),
        FP32,
        lambda x: (
            ((g := x.view(4, 4, -1)) - g.mean(-1, keepdim=True))
            * torch.rsqrt((g.square().mean(-1, keepdim=True) - g.mean(-1, keepdim=True).square()).abs() + 1e-5)
        ).view(x.shape),
    ),
    "sum in bf16": (lambda x: x.sum(1), (ROWS,), FP32, lambda x: x.bfloat16().sum(1).float()),
    "one element forgotten": (lambda x: x.sum(1), (ROWS,), FP32, lambda x: x[:, :-1].sum(1)),
    "one row wrong": (
        lambda x: x.mean(1),
        (ROWS,),
        FP32,
        lambda x: torch.cat([x.mean(1)[:-1], x.mean(1)[-1:] * 1.0001]),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_results_keep_within_the_budget(name: str) -> None:
    model, inputs, rounding, variant = HONEST[name]
    miss = compare(variant(*inputs), budget_of(model, *inputs, rounding=rounding))
    print(f"k = {K:g}, {K_TENSOR:g} for a whole tensor: {name} uses {miss.ratio:.2f} of its budget")
    assert miss.ratio < 0.9, str(miss)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_do_not(name: str) -> None:
    model, inputs, rounding, variant = WRONG[name]
    miss = compare(variant(*inputs), budget_of(model, *inputs, rounding=rounding))
    print(f"k = {K:g}, {K_TENSOR:g} for a whole tensor: {name} is {miss.ratio:.1f} times over its budget")
    assert miss.ratio > 1.3, str(miss)
    assert not miss.passed


def test_no_draw_of_its_own_breaks_the_budget() -> None:
    """A further reference, rounded as the flags allow, is itself an honest result."""
    limit = budget_of(convolution, *CONVOLUTION, rounding=TF32_CONVOLUTIONS)
    for seed in range(50, 60):
        with in_float64(torch.float32, TF32_CONVOLUTIONS, seed):
            drawn = convolution(*widened(list(CONVOLUTION)))
        assert compare(drawn, limit).ratio < 0.8


@pytest.mark.parametrize(("rounded", "passes"), [("float", True), ("stored", False), ("zeros", False)])
def test_where_no_product_shows_the_type_is_the_measure(rounded: str, passes: bool) -> None:
    """The sum of a softmax less 1 is nothing but float32's rounding, whatever the convolution before it may lose: a kernel may err
    several times as much as the references do, as it might behind a convolution of float32. Where it shows, that changes nothing."""

    def model(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return convolution(x, w, b).softmax(1).sum(1) - 1

    def evidence(of: Function) -> Evidence:
        def draw(rounding: Rounding, seed: int) -> Tensor:
            with in_float64(torch.float32, rounding, seed):
                return of(*widened(list(CONVOLUTION)))

        with in_float64(torch.float32):
            exact = of(*widened(list(CONVOLUTION)))
        draws = tuple(draw(TF32_CONVOLUTIONS, seed) for seed in range(4))
        return Evidence(exact, exact.float(), draws, True, (draw(TF32_CONVOLUTIONS.fine, 9),))

    if rounded == "float":
        whole = evidence(model)
        other = whole.draws[0] + 3 * (whole.draws[1] - whole.exact)  # an honest error, 3 times as large
        assert not compare(other, budget(replace(whole, fine=()))).passed
        assert compare(other, budget(whole)).passed is passes
    else:
        other = bf16(convolution(*CONVOLUTION)) if rounded == "stored" else torch.zeros(4, 24, 12, 12)
        assert compare(other, budget(evidence(convolution))).passed is passes


def test_the_worst_element_is_named() -> None:
    model, inputs, rounding, _ = HONEST["sum of halves"]
    result = model(*inputs)
    result[17] += 1
    miss = compare(result, budget_of(model, *inputs, rounding=rounding))
    assert miss.index == (17,)
    assert miss.error == pytest.approx(1, abs=1e-3)
    assert miss.gross < 1 < miss.ratio  # one part in five hundred: not gross, but no rounding either
    assert "at [17]: got" in str(miss)


def test_an_element_on_which_eager_is_exact_has_a_budget() -> None:
    exact = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    limit = budget(Evidence(exact, exact.float() + torch.tensor([0.0, 0.0, 0.0, 3e-7])))
    assert float(limit.allowed[0]) > 0
    assert float(limit.allowed.max()) < 1e-5


@pytest.mark.parametrize(
    ("eager", "got", "strict", "lenient"),
    [
        (float("nan"), float("nan"), True, True),
        (float("inf"), float("inf"), True, True),
        (float("inf"), float("-inf"), False, True),
        (float("nan"), float("inf"), False, True),
        (float("inf"), 1.0, False, False),
        (float("nan"), 0.0, False, False),
        (1.0, float("nan"), False, False),
        (1.0, float("inf"), False, False),
    ],
)
def test_what_is_finite(eager: float, got: float, strict: bool, lenient: bool) -> None:
    expected = torch.tensor([eager, 2.0])
    limit = budget(Evidence(expected.double(), expected))
    value = torch.tensor([got, 2.0])
    assert compare(value, limit).passed is strict
    assert compare(value, limit, kind_may_change=True).passed is lenient


def test_where_eager_alone_overflows_either_is_right() -> None:
    limit = budget(Evidence(torch.tensor([1e39], dtype=torch.float64), torch.tensor([float("inf")])))
    assert compare(torch.tensor([float("inf")]), limit).passed
    assert compare(torch.tensor([1e39], dtype=torch.float64), limit).passed


def test_garbage_in_eager_gives_no_false_alarm() -> None:
    """1e8 + x − 1e8 in fp32 is noise: nothing can be told from it, and zeros would be accepted."""
    x = normal(64, 64)
    limit = budget_of(lambda v: v + 1e8 - 1e8, x)
    assert compare(torch.round(x / 8) * 8, limit).passed
    assert zeros_pass(limit)
    assert not zeros_pass(budget_of(lambda v: v * 1e-8, x))


def test_indices_are_equal_or_honestly_different() -> None:
    exact = torch.tensor([3, 5, 7])
    limit = budget(Evidence(exact, exact, (torch.tensor([3, 5, 8]),)))
    assert compare(torch.tensor([3, 5, 7]), limit).passed
    assert compare(torch.tensor([3, 5, 8]), limit).passed
    assert not compare(torch.tensor([3, 6, 7]), limit).passed


def test_shapes_must_agree() -> None:
    limit = budget(Evidence(torch.zeros(3, dtype=torch.float64), torch.zeros(3)))
    miss = compare(torch.zeros(3, 1), limit)
    assert not miss.passed
    assert "shape (3, 1) instead of (3,)" in str(miss)


def test_jumps_are_allowed_as_often_as_honest_results_have_them() -> None:
    """The sign of a value within rounding of zero: honest draws disagree there, and one more may disagree elsewhere."""
    generator = torch.Generator().manual_seed(0)
    exact = torch.ones(100_000, dtype=torch.float64)

    def flipped(count: int) -> Tensor:
        return exact.index_fill(0, torch.randperm(100_000, generator=generator)[:count], -1.0)

    evidence = Evidence(exact, exact.float(), tuple(flipped(40) for _ in range(8)), True)
    limit = with_outliers(budget(evidence), evidence)
    assert not compare(flipped(40).float(), budget(evidence)).passed
    assert 40 <= limit.outliers <= 80
    assert compare(flipped(40).float(), limit).passed
    assert not compare(flipped(100).float(), limit).passed
    assert not compare(flipped(1).float() * 100, limit).passed


def test_one_ulp() -> None:
    values = torch.tensor([1.0, 1.5, 2.0, 1000.0], dtype=torch.float64)
    assert ulp(values, torch.float32).tolist() == [2.0**-23, 2.0**-23, 2.0**-22, 2.0**-14]


def test_the_constants_are_what_the_documentation_says() -> None:
    assert (K, K_TENSOR, GROSS) == (8.0, 2.0, 2.0**-6)


# ---- where the library is more exact than the flags ask


def spared(model: Function, *inputs: Tensor) -> Budget:
    """As `verify` judges a model whose convolutions the library computes in float32, though TF32 is allowed."""
    rounding = TF32_CONVOLUTIONS.for_operators({"convolution", Convolution(4, 8, (3, 3), (1, 1), (0, 0), (1, 1))}, Library())
    assert rounding.spares and not rounding.coarse

    def run(how: Rounding | None, seed: int = 0) -> Tensor:
        with in_float64(torch.float32, how, seed):
            return model(*widened(list(inputs)))

    draws, flagged = (tuple(run(each, seed) for seed in range(TO_NEAREST, TO_NEAREST + 4)) for each in (rounding, rounding.as_flagged))
    return budget(Evidence(run(None), model(*inputs), draws, rounding.coarse, flagged=flagged))


def summed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b).logsumexp(1).mean((1, 2))


FEW = (normal(4, 4, 24, 24), normal(8, 4, 3, 3, seed=1) / 6, normal(8, seed=2))


def test_tf32_counts_up_to_a_share_of_the_rms() -> None:
    """One product of TF32 numbers: too coarse as it is, near enough where errors average out."""
    x, w, b = FEW
    assert compare(convolution(tf32(x), tf32(w), b), budget_of(convolution, x, w, b, rounding=TF32_CONVOLUTIONS)).passed
    assert not compare(convolution(tf32(x), tf32(w), b), spared(convolution, x, w, b)).passed
    found = compare(summed(tf32(x), tf32(w), b), spared(summed, x, w, b))
    assert found.passed and 10 * found.eager < found.ours < NEAR
    assert compare(convolution(x, w, b), spared(convolution, x, w, b)).passed


def test_that_share_is_for_what_the_flags_allow() -> None:
    """Where TF32 would not err so much, nothing else may."""
    x, w, b = FEW
    limit = spared(summed, x, w, b)
    rms = float(limit.exact.square().mean().sqrt())
    assert float(limit.allowed.max()) < NEAR * rms * 1.001
    wide, narrow = Evidence(limit.exact, limit.eager.float()), limit.exact + 1e-7 * rms
    near = budget(replace(wide, draws=(narrow,), flagged=(limit.exact + 1e-6 * rms,)))
    assert not compare(limit.exact.float() + 5e-5 * rms, near).passed and float(near.allowed.max()) < 2e-5 * rms
    far = budget(replace(wide, draws=(narrow,), flagged=(limit.exact + 1e-2 * rms,)))
    assert compare((limit.exact + 0.9 * NEAR * rms).float(), far).passed
    assert not compare((limit.exact + 1.1 * NEAR * rms).float(), far).passed


@pytest.mark.parametrize("asked", [True, False, None])
def test_convolutions_are_rounded_where_the_library_rounds_them(asked: bool | None) -> None:
    """As a GPU answered, or by the number of channels."""
    convolution_ = Convolution(4, 8, (3, 3), (1, 1), (0, 0), (1, 1))
    library = Library() if asked is None else Library(((convolution_, asked),))
    rounding = TF32_CONVOLUTIONS.for_operators({"convolution", convolution_}, library)
    error, exact = [], convolution(*widened(list(FEW)))
    for seed in (TO_NEAREST, TO_NEAREST + 1):
        with in_float64(torch.float32, rounding, seed):
            rounded = convolution(*widened(list(FEW)))
        error.append(float((rounded - exact).abs().max()))
    assert all((e > 1e-4) is bool(asked) for e in error) and rounding.coarse is bool(asked)
    assert rounding.spares is not bool(asked) and not rounding.as_flagged.spares and rounding.as_flagged.coarse
