"""The fp64 reference: nothing narrow is left in it, random draws are its own, rounding goes where it belongs."""

from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.verify.observe import cotangents
from fusewright.verify.reference import (
    TF32,
    TO_NEAREST,
    Rounding,
    in_float64,
    rounding_of,
    roundings,
    terms,
    to_tf32,
    type_of,
    widen_module,
    widened,
)

FP32 = Rounding(2.0**-24, 2.0**-24, 2.0**-24)
TF32_CONVOLUTIONS = Rounding(2.0**-24, TF32, 2.0**-24)


def spread(model: nn.Module, x: Tensor, rounding: Rounding) -> float:
    """The rms distance of a rounded reference from the exact one, relative to the result's rms."""
    wide = widen_module(copy.deepcopy(model))
    with torch.no_grad(), in_float64(torch.float32):
        exact = wide(x.double())
    with torch.no_grad(), in_float64(torch.float32, rounding, 1):
        rounded = wide(x.double())
    assert rounded.dtype == torch.float64
    return float((rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def test_one_reference_rounds_as_tensor_cores_are_given_it() -> None:
    """Of a constant input all elements err alike: where few numbers come out, no draw at random need come near that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(8, 8, 3), nn.AdaptiveAvgPool1d(1))
    wide = widen_module(copy.deepcopy(model))
    x, results = torch.full((2, 8, 512), 0.7), []
    for rounding in (None, TF32_CONVOLUTIONS):
        with torch.no_grad(), in_float64(torch.float32, rounding, TO_NEAREST):
            results.append(wide(x.double()))
    with torch.no_grad():
        conv = wide[0]
        expected = F.conv1d(to_tf32(x.double()), to_tf32(conv.weight), conv.bias).mean(-1, keepdim=True)
    exact, to_nearest = results
    assert torch.allclose(to_nearest, expected, rtol=1e-6) and not torch.allclose(exact, expected, rtol=1e-6)


def test_to_the_nearest_tf32() -> None:
    x = torch.tensor([[1 + 2.0**-11, 1 + 2.0**-12, -1 - 3 * 2.0**-12, math.inf, 0.0, math.nan]])
    found = to_tf32(x).tolist()[0]
    assert found[:5] == [1 + 2.0**-10, 1.0, -1 - 2.0**-10, math.inf, 0.0] and math.isnan(found[5])


class NarrowInside(nn.Module):
    """Names fp32 in every way a model can."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.tensor([1.0 / 3, 2.0 / 3])
        self.several = [torch.tensor([0.1, 0.2])]
        self.register_buffer("buffer", torch.tensor([0.7, 0.9]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() * self.plain + torch.zeros(2) + torch.full((2,), 0.1, dtype=torch.float32)
        x = x + torch.arange(2, dtype=torch.float32) / 3 + self.several[0] * self.buffer.to(torch.float32)
        return x.to(torch.float32) + torch.tensor(0.1)


def test_nothing_narrow_is_left() -> None:
    model, x = NarrowInside(), torch.rand(5, 2)
    wide = widen_module(copy.deepcopy(model))
    with in_float64(torch.float32):
        exact = wide(x.double())
    third, narrow = torch.tensor([1 / 3, 2 / 3]).double(), lambda *values: torch.tensor(values).double()
    expected = x.double() * third + 0.1 + torch.arange(2).double() / 3 + narrow(0.1, 0.2) * narrow(0.7, 0.9) + 0.1
    assert exact.dtype == torch.float64
    assert torch.allclose(exact, expected, rtol=1e-14, atol=0)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("draw", ["dropout", "rand", "randn_like", "bernoulli", "rrelu", "order"])
def test_random_numbers_are_the_models_own(draw: str) -> None:
    def model(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        if draw == "dropout":
            return F.dropout(x, 0.4, training=True)
        if draw == "rand":
            return x + torch.rand(7)
        if draw == "rrelu":
            return F.rrelu(x, training=True) + F.rrelu(x)
        if draw == "order":  # whole numbers in both
            return x[torch.randperm(5)][:, torch.randint(0, 7, (9,))]
        return x + torch.randn_like(x) if draw == "randn_like" else x * torch.bernoulli(torch.full_like(x, 0.3))

    x = torch.randn(5, 7)
    with in_float64(torch.float32):
        exact = model(x.double())
    assert exact.dtype == torch.float64
    assert torch.allclose(exact.float(), model(x), rtol=1e-5, atol=1e-6)


def test_running_statistics_are_updated_in_a_rounded_reference() -> None:
    model = widen_module(nn.BatchNorm2d(4))
    x = torch.randn(3, 4, 5, 5).double() + 2
    with in_float64(torch.float32, TF32_CONVOLUTIONS, 1):
        model(x)
    assert torch.allclose(model.running_mean, 0.1 * x.mean((0, 2, 3)), rtol=1e-5)
    assert int(model.num_batches_tracked) == 1


def test_rounding_goes_where_the_flags_allow_it() -> None:
    x = torch.randn(2, 8, 12, 12)
    convolution = nn.Conv2d(8, 16, 3, bias=False)
    assert 0.5 * TF32 < spread(convolution, x, TF32_CONVOLUTIONS) < 1.2 * TF32
    assert spread(convolution, x, FP32) < 20 * 2.0**-24
    assert spread(nn.Linear(12, 12), x, TF32_CONVOLUTIONS) < 20 * 2.0**-24
    assert spread(nn.ReLU(), x, FP32) == 0
    assert 0.2 * 2.0**-24 < spread(nn.Tanh(), x, FP32) < 2.0**-24


def test_an_infinity_is_not_rounded_to_nan() -> None:
    """∞ (1 + δu) = ∞: what saturates behind it keeps its spread."""
    x = torch.randn(2, 3, 8, 8)
    x[0, 1, 4, 4], x[1, 2, 2, 2] = float("inf"), float("-inf")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardtanh())
    assert 0 < spread(model, x, TF32_CONVOLUTIONS) < 1e-2


def test_gradients_are_rounded_too() -> None:
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, requires_grad=True)

    def gradient(rounding: Rounding | None) -> Tensor:
        with in_float64(torch.float32, rounding, 1):
            return torch.autograd.grad(F.conv2d(x, weight).square().sum(), weight)[0]

    exact = gradient(None)
    relative = float((gradient(TF32_CONVOLUTIONS) - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0.1 * TF32 < relative < 3 * TF32


def test_flags_by_their_old_and_new_names() -> None:
    assert rounding_of(torch.bfloat16) == Rounding(2.0**-8, 2.0**-8, 2.0**-8)
    assert rounding_of(torch.float32).convolution == TF32  # PyTorch's default
    assert rounding_of(torch.float32).matmul == 2.0**-24
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert rounding_of(torch.float32).matmul == TF32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    if hasattr(torch.backends.cudnn, "conv"):
        conv = torch.backends.cudnn.conv
        precision = conv.fp32_precision
        try:
            conv.fp32_precision = "ieee"  # after this, reading the old name raises
            assert rounding_of(torch.float32).convolution == 2.0**-24
        finally:
            conv.fp32_precision = precision
    assert rounding_of(torch.float32).convolution == TF32


def test_a_model_without_convolutions_gains_nothing_by_their_flag() -> None:
    rounding = rounding_of(torch.float32)
    assert rounding.coarse
    assert not rounding.for_operators({"mm", "relu"}).coarse
    assert rounding.for_operators({"convolution"}).coarse
    assert str(rounding.for_operators({"convolution"})) == "fp32 with TF32 convolutions"
    assert str(rounding.for_operators({"relu"})) == "fp32"


def test_how_many_terms_a_sum_has() -> None:
    x = torch.randn(4, 6, 8)
    assert terms("sum", (x, [1, 2])) == 48
    assert terms("sum", (x,)) == x.numel()
    assert terms("_softmax", (x, -1, False)) == 8
    assert terms("native_layer_norm", (x, [8], None, None, 1e-5)) == 8
    assert terms("native_group_norm", (x, None, None, 4, 6, 8, 3, 1e-5)) == 16
    assert terms("addmm", (torch.randn(5), torch.randn(3, 7), torch.randn(7, 5))) == 7
    assert terms("convolution", (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))) == 27
    assert roundings("relu", (x,)) == 0
    assert roundings("sum", (torch.randn(1, 10**6), [1])) == 9  # a thousand terms at most go one after another
    assert roundings("mm", (torch.randn(2, 4096), torch.randn(4096, 2))) == 17


def test_the_narrowest_type_is_the_models() -> None:
    assert type_of(nn.Linear(2, 2).bfloat16(), [torch.randn(2)]) == torch.bfloat16
    assert type_of(nn.ReLU(), [torch.arange(3), 2.0]) == torch.float32
    assert widened([torch.ones(2), 3, torch.arange(2)])[0].dtype == torch.float64


@pytest.mark.parametrize(("low", "largest"), [(torch.float32, 3.4028234663852886e38), (torch.float16, 65504.0)])
def test_an_infinity_becomes_the_largest_number_of_the_models_type(low: torch.dtype, largest: float) -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0], dtype=torch.float64)
    with in_float64(low):
        assert torch.nan_to_num(x).tolist() == [largest, -largest, 0.0, 1.0]
        assert torch.nan_to_num(x, nan=2.0, neginf=-3.0).tolist() == [largest, -3.0, 2.0, 1.0]
        assert x.clone().nan_to_num_(posinf=5.0).tolist() == [5.0, -largest, 0.0, 1.0]


def test_cotangents_are_the_same_for_every_model() -> None:
    """Whatever a mode widens or rounds; exact in every type; together as long for one number as for many."""
    outputs = [torch.empty(1000), torch.empty(())]
    given = cotangents(outputs)
    for rounding in (None, Rounding(2.0**-24, TF32, TF32)):
        with in_float64(torch.float32, rounding):
            wide = cotangents([t.double() for t in outputs])
        assert all(torch.equal(a.double(), b) for a, b in zip(given, wide, strict=True))
    assert all(torch.equal(c, c.bfloat16().float()) for c in given)
    assert 0.25 < float(given[0].norm() / given[1].abs()) < 4


@pytest.mark.parametrize("apart", [10.0, 0.0])
def test_means_of_samples_that_lie_apart_are_rounded(apart: float) -> None:
    """On a GPU PyTorch merges means in float32 (Welford); on a CPU it adds in float64, and its own error says nothing of that."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(3, 64, 14, 14, generator=draw) + apart * torch.randn(3, 64, 1, 1, generator=draw)
    merged = torch.zeros(64)
    for count, row in enumerate(x.mean(3).permute(0, 2, 1).flatten(0, 1), 1):
        merged = merged + (row - merged) / count
    wide = x.double()
    welford = (wide.mean((0, 2, 3)) - merged) / wide.var((0, 2, 3), correction=0).sqrt()
    with in_float64(torch.float32, Rounding(2.0**-24, 2.0**-24, 2.0**-24), 1):
        rounded = F.batch_norm(wide, None, None, training=True)
    share = float(rounded.mean((0, 2, 3)).norm() / welford.norm())
    assert 0.2 < share < 1


@pytest.mark.parametrize("few", [4, 2])
def test_what_causal_attention_leaves_out_counts_for_nothing(few: int) -> None:
    """PyTorch's attention in float64 adds -infinity to the score of a later key, and a NaN stays one; its fused kernels leave it out."""
    q, k, v = (torch.randn(2, heads, 9, 6, dtype=torch.float64) for heads in (4, few, few))
    attention = functools.partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    plain = attention(q, k, v)
    with in_float64(torch.float32):
        torch.testing.assert_close(attention(q, k, v), plain)
        k[1, 0, 5, 3] = math.nan
        found = attention(q, k, v).isfinite()
        k, v = torch.randn_like(k), torch.randn_like(v)
        k[0, 0, 0], q[0, 0, 0] = -math.inf, 1.0
        assert not attention(q, k, v)[0, 0, 0].any()  # all that is left is -infinity, as PyTorch's plain way has it
    shares = 4 // few
    assert found[0].all() and found[1, shares:].all()
    assert found[1, :shares, :5].all() and not found[1, :shares, 5:].any()


class Partly(nn.Module):
    """One result is computed under autocast, the other is not."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            within = torch.sin(x)
            with torch.autocast("cpu", enabled=False):
                between = torch.sin(x)
        return within, between, torch.sin(x)


def test_autocast_rounds_where_it_is_on() -> None:
    """In float64 it changes nothing: what it allows is added where it is, and nowhere else."""
    x = torch.randn(64, 64, dtype=torch.float64)
    with in_float64(torch.float32, FP32, 1):
        errors = [float(((found - torch.sin(x)) / torch.sin(x)).abs().max()) for found in Partly()(x)]
    assert 2.0**-9 < errors[0] <= 2.0**-8
    assert all(2.0**-25 < error <= 2.0**-23 for error in errors[1:])
    assert torch.autocast.__enter__.__module__ == torch.autocast.__exit__.__module__ == torch.autocast.__module__


@pytest.mark.parametrize("autocast", [True, False])
def test_autocast_rounds_backward_too(autocast: bool) -> None:
    """Which stands outside it, and computes in the types of its forward."""
    x = torch.randn(64, 64, dtype=torch.float64, requires_grad=True)
    with in_float64(torch.float32, FP32, 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = x.sin()
        (found,) = torch.autograd.grad(y.sum(), x)
        after = torch.sin(x.detach())  # of another forward, outside
    error = float(((found - torch.cos(x)) / torch.cos(x)).detach().abs().max())
    assert error > 2.0**-9 if autocast else error <= 2.0**-22
    assert float(((after - torch.sin(x.detach())) / torch.sin(x.detach())).abs().max()) <= 2.0**-23
