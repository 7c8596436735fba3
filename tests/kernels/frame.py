"""A model around one expression: its file, its problem, and what is made of it on the host."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import Problem, load_problem
from fusewright.ir.plan import Plan
from fusewright.options import Options
from fusewright.report.code import cuda_source
from fusewright.verify.candidate import load_candidate

FILE = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {names}):
        {lines}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def problem_of(
    folder: Path, forward: str, *inputs: str, init: str = "pass", lines: Sequence[str] = (), named: Sequence[str] = "xyz"
) -> Problem:
    """The model that returns `forward`, after `lines`, of its inputs x, y and z; `init` is a statement of its constructor."""
    names = ", ".join(named[: len(inputs)])
    body = "\n        ".join([*lines, f"return {forward}"])
    file = folder / "model.py"
    file.write_text(FILE.format(init=init, names=names, lines=body, inputs=", ".join(inputs)))
    return load_problem(file)


def a_part(cases: Iterable[str], every: int = 2) -> list[Any]:
    """Parameters of a test: one in so many with every change, all of them with the slow ones."""
    marks = ([pytest.mark.slow] if number % every else [] for number in itertools.count())
    return [pytest.param(case, marks=mark, id=case.replace(" ", "-")) for case, mark in zip(cases, marks, strict=False)]


def made_of(problem: Problem, gradients: bool = False) -> tuple[Plan, str, nn.Module, nn.Module]:
    """The plan, the emitted text, the original and what was made of it, on the host and with the same parameters."""
    _, plan, emitted = compile_problem(problem, Options(gradients=gradients))
    return plan, emitted.text, *models_of(problem, emitted.text)


def models_of(problem: Problem, text: str) -> tuple[nn.Module, nn.Module]:
    original, new = problem.model(), load_candidate(text, "host").build_model(problem)
    new.load_state_dict(original.state_dict())
    return original, new


def compare(original: nn.Module, new: nn.Module, shapes: Iterable[tuple[int, ...]]) -> None:
    """Results, and gradients of the parameter `weight`, against those in float64 at each of the shapes of one input."""
    original.double()
    for shape in shapes:
        original.zero_grad()
        new.zero_grad()
        x = torch.randn(shape)
        expected, found = original(x.double()), new(x)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        upstream = torch.randn(expected.shape)
        expected.backward(upstream.double())
        found.backward(upstream)
        torch.testing.assert_close(new.weight.grad.double(), original.weight.grad, rtol=1e-4, atol=1e-3)


def cuda_of(text: str) -> str:
    """The CUDA source in an emitted file."""
    return cuda_source(text)


def weight_of(shape: tuple[int, ...]) -> str:
    """A constructor's statement: one weight for each channel of a tensor of this shape."""
    return f"self.weight = nn.Parameter(torch.randn({shape[1]}, {', '.join(['1'] * (len(shape) - 2))}))"
