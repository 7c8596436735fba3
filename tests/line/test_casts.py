"""A cast that a model writes rounds, also where kernels keep the value in a register of a wider type."""

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


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.cat([torch.randn(6, 37), torch.full((1, 37), 1e5)])]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    "expression",
    [
        "(x * 1.37).half().float() * 3",
        "x.to(torch.bfloat16).float() - x",
        "(x.half().float() * 0.5).amax(1)",
        "x.half().double() * 2",
        "x.half().float().half().float() + 1",
    ],
)
def test_casts_round(expression: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(FILE.format(expression=expression))
    problem = load_problem(path)
    _, made, emitted = compile_problem(problem, Options(target="host"))
    assert made.kernels and not made.calls
    new = load_candidate(emitted.text, "host", name="new.py").module.ModelNew()
    (x,) = problem.inputs()
    expected = problem.model()(x)
    assert torch.equal(new(x), expected)


@pytest.mark.parametrize(
    ("expression", "width"),
    [
        ("x * 2", 4),
        ("x > 2", 8),  # a thread may read two vectors, not write two
        ("x.half()", 8),
        ("x.half().double()", 2),
        ("(x > 2, x * 2)", 4),
        ("(x > 2, x.long() + 1)", 2),
    ],
)
def test_a_thread_writes_no_more_than_a_vector(expression: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(FILE.format(expression=expression).replace("37", "64"))
    _, _, emitted = compile_problem(load_problem(path), Options(target="host", gradients=False))
    assert f"_kernel<int, {width}>" in emitted.text
