"""Models that define a derivative themselves: kernels where no gradient is asked for, the original where one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

FILE = """
import torch
from torch import nn


class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return Step.apply(torch.sigmoid(x * self.weight), 15)


def get_inputs():
    return [torch.randn(5, 6)]


def get_init_inputs():
    return []
"""


def test_a_function_with_a_derivative_of_its_own_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FILE)
    problem = load_problem(tmp_path / "model.py")
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host")
    old, new, (x,) = problem.model(), candidate.build_model(problem), problem.inputs()
    with torch.no_grad(), candidate.launches() as launched:
        torch.testing.assert_close(new(x), old(x))
    assert launched
    for model in (old, new):
        model(x).square().sum().backward()
    assert old.weight.grad.abs().sum() > 0  # type: ignore[union-attr,operator]
    torch.testing.assert_close(new.weight.grad, old.weight.grad)


def test_a_step_of_it_asks_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original runs in training anyway: what the model was planned for need not be looked at first."""
    (tmp_path / "model.py").write_text(FILE)
    problem = load_problem(tmp_path / "model.py")
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host")
    new, (x,) = candidate.build_model(problem), problem.inputs()
    looks: list[object] = []
    follow = vars(candidate.module)["_follow"]
    monkeypatch.setitem(vars(candidate.module), "_follow", lambda model: looks.append(model) or follow(model))
    new(x).sum().backward()
    assert not looks
    with torch.no_grad():
        new(x)
    assert looks
