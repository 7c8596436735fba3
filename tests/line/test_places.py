"""Chains of steps that read neighbours: what would be computed again at each place is stored now and then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of

STEPS = {
    "shifted": "x = x + 0.1 * (x.roll(1, -1) + x.roll(-1, -1) + x.roll(1, -2) + x.roll(-1, -2) - 4 * x)",
    "made before it is shifted": "x = (x * 0.7).roll(1, -1) + (x * 0.3).roll(-1, -1) + torch.tanh(x)",
    "padded": "x = x + 0.1 * (F.pad(x, (1, 0))[..., :-1] - F.pad(x, (0, 1))[..., 1:])",
    "put back": "x = torch.cat((x[..., :1], x[..., 2:] - x[..., :-2], x[..., -1:]), -1).sin()",
}


@pytest.mark.parametrize("step", STEPS.values(), ids=[name.replace(" ", "-") for name in STEPS])
def test_a_chain_of_many_steps_is_planned(step: str, tmp_path: Path) -> None:
    """Without memory in between the last of eight steps would read thousands of places."""
    problem = problem_of(tmp_path, "x", "torch.randn(2, 6, 12)", lines=[step] * 8)
    plan, text, original, new = made_of(problem)
    assert not plan.calls and 1 < len(plan.kernels) <= 8
    assert len(text) < 200_000
    (x,) = problem.inputs(seed=1)
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=1e-4, atol=1e-4)


def test_parts_beside_each_other_are_not_stored(tmp_path: Path) -> None:
    """Halves are read at two places, but each element at one of them; a difference of neighbours takes less than memory would."""
    lines = ["y = torch.tanh(x) * torch.sigmoid(x)", "a, b = y.chunk(2, -1)"]
    plan, *_ = made_of(problem_of(tmp_path, "a * b, y[..., 1:] - y[..., :-1]", "torch.randn(2, 6, 12)", lines=lines))
    assert len(plan.kernels) == 2
