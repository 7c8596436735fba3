"""Gradients of norms: forward hands over the statistics, which are small beside what they are of; backward takes none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of

NORMS = {
    "group norm": ("nn.GroupNorm(4, 12)", (64, 12, 48, 48), [(3, 12, 7, 5), (2, 12, 16, 9)]),
    "group norm without weights": ("nn.GroupNorm(3, 12, affine=False)", (64, 12, 48, 48), [(3, 12, 7, 5)]),
    "group norm of a line": ("nn.GroupNorm(4, 12)", (128, 12, 900), [(3, 12, 35), (2, 12, 16)]),
    "batch norm": ("nn.BatchNorm2d(12)", (64, 12, 48, 48), [(3, 12, 7, 5), (2, 12, 16, 9)]),
    "batch norm of a volume": ("nn.BatchNorm3d(6)", (80, 6, 12, 14, 16), [(3, 6, 3, 7, 5)]),
    "batch norm without weights": ("nn.BatchNorm1d(12, affine=False)", (256, 12, 640), [(3, 12, 35)]),
    "layer norm": ("nn.LayerNorm(400)", (64, 50, 400), [(3, 50, 400), (1, 50, 400)]),
    "layer norm of two dimensions": ("nn.LayerNorm((20, 30), bias=False)", (2048, 20, 30), [(5, 20, 30)]),
}


@pytest.mark.parametrize("case", NORMS, ids=lambda name: name.replace(" ", "-"))
def test_statistics_are_forwards(tmp_path: Path, case: str) -> None:
    norm, shape, others = NORMS[case]
    init = f"self.norm, self.scale = {norm}, nn.Parameter(torch.randn({shape[1]}, {', '.join(['1'] * (len(shape) - 2))}))"
    problem = problem_of(tmp_path, "torch.tanh(self.norm(x * self.scale))", f"torch.randn({shape})", init=init)
    _, text, original, new = made_of(problem, gradients=True)
    assert "Moments" in text, "forward's"
    assert "Moments" not in text.split("_CUDA_GRADIENTS = _CUDA_SUPPORT")[1], "backward's"
    original.double()
    for given in others:
        original.zero_grad()
        new.zero_grad()
        x = torch.randn(given) * 3 + 5
        expected, found = original(x.double()), new(x)
        upstream = torch.randn(expected.shape)
        expected.backward(upstream.double())
        found.backward(upstream)
        for ours, theirs in zip(new.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-3)
