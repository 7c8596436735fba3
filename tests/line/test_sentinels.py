"""A bare `object()` that stands for "none was given": which one it is, is all that forward can ask of it."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch

from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import Candidate, load_candidate

MODEL = """
import torch
from torch import nn

MISSING = object()
OTHER = object()


def shifted(x, by=MISSING):
    return x if by is MISSING else x + by


class Model(nn.Module):
    NONE = object()

    def __init__(self, mask=MISSING):
        super().__init__()
        self.mask, self.bound = mask, self.NONE
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = shifted(torch.tanh(x * self.weight))
        x = x if self.mask is MISSING else x * 3
        return x.softmax(-1) if self.bound is self.NONE else x.clamp(0, 1)


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, Candidate]:
    path = tmp_path_factory.mktemp("sentinels") / "missing.py"
    path.write_text(MODEL)
    problem = load_problem(path)
    text = compile_problem(problem, Options())[2].text
    assert '"mask": "object MISSING"' in text and '"bound": "object Model.NONE"' in text and not re.search(r"object at \d", text)
    return problem, load_candidate(text, "host", name="missing_new.py")


def ran(candidate: Candidate, new: torch.nn.Module, expected: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether kernels did; the result is right in any case."""
    with candidate.launches() as kernels, torch.no_grad():
        torch.testing.assert_close(new(x), expected)
    return bool(kernels)


def test_kernels_run_and_the_file_verifies(tmp_path: Path) -> None:
    """So do the checks that copy: a copy of the attribute is another object, which the original's own copy has too."""
    (tmp_path / "missing.py").write_text(MODEL)
    run = optimize(load_problem(tmp_path / "missing.py"), Options(target="host"))
    assert run.verdict.passed and run.verdict.kernels, run.verdict.worst


CHANGES = {
    "nothing": "",
    "the same again": "model.mask = space.MISSING",
    "another": "model.mask = space.OTHER",
    "one that nobody knows": "model.mask = object()",
    "another of the class": "model.bound = space.MISSING",
    "a number": "model.mask = 3",
    "the global": "space.MISSING = object()",
    "the global, and the attribute": "space.MISSING = model.mask = object()",
    "a default": "space.shifted.__defaults__ = (1.0,)",
}


@pytest.mark.filterwarnings("ignore:.*The original operators run")
@pytest.mark.parametrize("called", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.replace(" ", "-").replace(",", ""))
def test_what_is_changed_later(change: str, called: bool, made: tuple[Problem, Candidate], monkeypatch: pytest.MonkeyPatch) -> None:
    """`called`: the model has looked at what it was before."""
    problem, candidate = made
    new, x = candidate.build_model(problem), torch.randn(3, 8)
    space = candidate.module
    monkeypatch.setattr(space, "MISSING", space.MISSING)
    monkeypatch.setattr(space.shifted, "__defaults__", space.shifted.__defaults__)
    if called:
        new(x)
    exec(CHANGES[change], {"model": new, "space": space})
    if "the global" in change:  # a default of before is no longer it
        space.shifted.__defaults__ = (space.MISSING,)
    expected = space.Model.forward(new, x).detach()
    assert ran(candidate, new, expected, x) is (change in ("nothing", "the same again", "the global, and the attribute"))


@pytest.mark.filterwarnings("ignore:.*The original operators run")
def test_a_copy_has_another(made: tuple[Problem, Candidate]) -> None:
    problem, candidate = made
    new, x = candidate.build_model(problem), torch.randn(3, 8)
    other = copy.deepcopy(new)
    assert other.mask is not new.mask
    assert not ran(candidate, other, candidate.module.Model.forward(other, x).detach(), x)
