"""Variances of what lies far from zero: the mean's own rounding would show in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of

CASES = {
    "rows": ("x.var(1)", (6, 3000)),
    "short rows": ("x.var(1)", (40, 30)),
    "columns": ("x.var(0)", (700, 12)),
    "rows cut into pieces": ("x.var()", (200, 300)),
    "channels of images": ("x.var((0, 2, 3))", (4, 5, 17, 19)),
    "halves of rows": ("x.flatten(1).view(x.shape[0], 2, -1).var(2)", (3, 4, 20, 20)),
}


@pytest.mark.parametrize("centre", [0.0, 1000.0, -50000.0])
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_far_from_zero(case: str, centre: float, tmp_path: Path) -> None:
    expression, shape = CASES[case]
    problem = problem_of(tmp_path, expression, f"torch.randn({shape})")
    made, _, original, new = made_of(problem)
    assert made.kernels and not made.calls
    (x,) = problem.inputs()
    x = x * 0.3 + centre
    expected = original(x.double())
    assert torch.allclose(new(x).double(), expected, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize("case", ["rows", "columns"])
def test_equal_elements_have_no_variance(case: str, tmp_path: Path) -> None:
    expression, shape = CASES[case]
    forward = expression.replace("x.var(", "torch.var_mean(x, ")
    _, _, _, new = made_of(problem_of(tmp_path, forward, f"torch.randn({shape})"))
    variance, mean = new(torch.full(shape, 0.7))
    assert not variance.any() and torch.equal(mean, torch.full_like(mean, 0.7))
