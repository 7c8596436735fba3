"""Losses by kernels alone, with every reduction, against the original on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of

CASES = {
    "probabilities": "F.cross_entropy(x, y)",
    "probabilities, smoothed": "F.cross_entropy(x, y, label_smoothing=0.1, reduction='sum')",
    "probabilities, weighed": "F.cross_entropy(x, y, weight=torch.linspace(0.5, 2.0, 7), reduction='none')",
    "probabilities, both": "F.cross_entropy(x, y, weight=torch.linspace(0.5, 2.0, 7), label_smoothing=0.2)",
}


@pytest.mark.parametrize("shape", [(5, 7), (3, 7, 4, 5)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_a_loss_of_probabilities(case: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    problem = frame.problem_of(tmp_path, CASES[case], f"torch.randn({shape})", f"torch.rand({shape}).softmax(1)")
    plan, _, original, new = made_of(problem)
    assert not [call for call in plan.calls if "linspace" not in str(call.node.target)]
    for scale in (1.0, 50.0):
        x, y = torch.randn(shape) * scale, torch.rand(shape).softmax(1)
        with torch.no_grad():
            torch.testing.assert_close(new(x, y), original(x, y), rtol=1e-5, atol=1e-5)
