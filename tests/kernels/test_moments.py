"""Variances of what lies far from zero: the mean's own rounding would show in them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of
from torch.utils import _pytree as pytree

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


OF_HALVES = {
    "variance": "x.var(-1, keepdim=True)",
    "deviation": "x.std((0, 2))",
    "both": "torch.var_mean(x, 1, correction=0)",
    "deviation and mean": "torch.std_mean(x, -1, keepdim=True)",
    "norm": "torch.nn.functional.normalize(x, dim=-1)",
    "norm of order one": "x.norm(p=1, dim=1)",
    "largest": "torch.linalg.vector_norm(x, float('inf'), dim=(1, 2))",
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", OF_HALVES, ids=lambda name: name.replace(" ", "-"))
def test_of_halves_in_float32_and_rounded_once(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    plan, _, original, new = made_of(problem_of(tmp_path, OF_HALVES[case], f"torch.randn(5, 6, 40).to({dtype})"))
    assert not [call for call in plan.calls if call.node.target != "getitem"]
    x = (torch.randn(5, 6, 40) * 3 + 2).to(dtype)
    with torch.no_grad():
        exact, found = (pytree.tree_leaves(r) for r in (original(x.double()), new(x)))
    for a, b in zip(exact, found, strict=True):
        assert b.dtype == dtype
        torch.testing.assert_close(b.double(), a, rtol=1.5 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).tiny)
