"""Models that define a derivative themselves: kernels where no gradient is asked for, the original where one is."""

from __future__ import annotations

from pathlib import Path

import torch

from fusewright.candidate import load_candidate
from fusewright.options import Options
from fusewright.pipeline import compile_problem
from fusewright.problem import load_problem

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
