"""Reductions and losses of doubles and of whole numbers, by accumulators as wide as they are, against PyTorch on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of

SHAPES = [(3, 70), (5, 7, 4), (2, 40000), (3, 300, 3)]  # rows, columns, few long rows
DOUBLES = {
    "sum": "x.sum({dim}), x.sum()",
    "mean": "x.mean({dim}), x.mean()",
    "extremes": "x.amax({dim}), x.amin(), x.max(), x.min()",
    "count": "x.count_nonzero({dim})",
}
WHOLE = {
    "sum": "x.sum({dim}), x.sum()",
    "extremes": "x.amax({dim}), x.amin({dim}), x.max(), x.min()",
    "product": "x.prod({dim}), x.prod()",
}
LOSSES = (
    "F.mse_loss(x, y), F.l1_loss(x, y, reduction='sum'), F.smooth_l1_loss(x, y), F.huber_loss(x, y, reduction='none'), "
    "F.kl_div(x, y.abs()), "
    "F.binary_cross_entropy_with_logits(x, y.sigmoid()), F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), "
    "F.margin_ranking_loss(x, y, y.sign()), F.hinge_embedding_loss(x, y.sign())"
)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", frame.a_part(DOUBLES))
def test_doubles(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """With kernels, and to the last bits of a double; a NaN and an infinity come through."""
    dim = 1 if len(shape) == 3 else -1
    problem = frame.problem_of(tmp_path, DOUBLES[name].format(dim=dim), f"torch.randn({shape}, dtype=torch.float64)")
    plan, text, original, new = made_of(problem)
    assert not plan.calls
    assert "Double" in text or name == "count"
    x = torch.randn(shape, dtype=torch.float64)
    for special in (None, float("inf"), float("nan")):
        if special is not None:
            x[-1, 2] = special
        with torch.no_grad():
            torch.testing.assert_close(new(x), original(x), rtol=1e-13, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, pytest.param(torch.int32, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    for shape in SHAPES[:3]:
        dim = 1 if len(shape) == 3 else -1
        problem = frame.problem_of(tmp_path, WHOLE[name].format(dim=dim), f"torch.ones({shape}, dtype={dtype})")
        plan, _, original, new = made_of(problem)
        assert not plan.calls
        info = torch.iinfo(dtype)
        for low, high in ((info.min, info.max), (max(-3, info.min), 4), (info.min, info.min + 2)):
            x = torch.randint(low, high, shape, dtype=dtype)
            for found, expected in zip(new(x), original(x), strict=True):
                assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_losses_of_doubles(tmp_path: Path) -> None:
    """Forward and backward, as exact as eager's."""
    given = ["torch.randn(8, 7, dtype=torch.float64)"] * 2
    weight = "self.weight = nn.Parameter(torch.randn(7, dtype=torch.float64))"
    problem = frame.problem_of(tmp_path, LOSSES, *given, init=weight, lines=["x = x * self.weight"])
    plan, _, original, new = made_of(problem, gradients=True)
    assert not plan.calls
    x, y = (torch.randn(33, 7, dtype=torch.float64) for _ in range(2))
    results = [model(x, y) for model in (new, original)]
    for found in results:
        sum(result.sum() for result in found).backward()
    torch.testing.assert_close(results[0], results[1], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(new.weight.grad, original.weight.grad, rtol=1e-12, atol=1e-12)


def test_a_count_in_double(tmp_path: Path) -> None:
    """Of more elements than a float can count."""
    problem = frame.problem_of(tmp_path, "x.expand(2**13 + 1, 2**12 + 1).mean() * 3", "torch.rand(1, 1, dtype=torch.float64)")
    plan, _, original, new = made_of(problem)
    assert not plan.calls
    x = torch.tensor([[1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(new(x), original(x), rtol=1e-9, atol=0)
