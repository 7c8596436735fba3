"""Results of an emitted file lie in memory as the original's: where two share it, and where forward asks for an order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.host.loaded import from_text
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

FILE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return {returned}


def get_inputs():
    return [torch.randn(2, 5, 4, 6)]


def get_init_inputs():
    return []
"""
RETURNED = {
    "a copy beside": "y, y.clone(), y",
    "a copy of a view": "y.mT, y.mT.clone(), y[:, 1:], y[:, 1:].clone()",
    "a view beside": "y, y.mT, y.flatten(1)",
    "computed twice": "x + 1, x + 1",
    "copies of the input": "x, x.clone(), x.mT.clone(), x.mT.contiguous()",
    "asked for in order": "y.mT.contiguous(), y.permute(0, 2, 3, 1).contiguous().unsqueeze(1), (y * 2).flip(1).mT.contiguous()",
    "asked for channels-last": "y.contiguous(memory_format=torch.channels_last), y.mT, y.to(memory_format=torch.channels_last)",
}


def homes(tensors: tuple[Tensor, ...]) -> list[tuple[int, int]]:
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [(a, b) for a, b in itertools.combinations(range(len(places)), 2) if places[a] == places[b]]


STATE = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("copied", torch.zeros(5))
        self.register_buffer("added", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        y = torch.relu(x)
        mean = y.detach().mean(0)
        self.copied.copy_(mean)
        self.added.add_(mean)
        self.count += 1
        return y, mean, self.copied, self.added, self.added.clone(), self.count


def get_inputs():
    return [torch.rand(3, 5)]


def get_init_inputs():
    return []
"""


def test_a_buffer_that_is_returned_is_the_buffer(tmp_path: Path) -> None:
    """Not what it was copied from, nor what it is at the time: the next call changes it."""
    path = tmp_path / "model.py"
    path.write_text(STATE)
    problem = load_problem(path)
    text = compile_problem(problem, Options(target="host"))[2].text
    new = from_text(text, str(tmp_path / "new.py"), "host")
    (x,) = new.get_inputs()
    theirs, ours = new.Model(), new.ModelNew()
    expected, got = theirs(x.clone()), ours(x.clone())
    assert [any(t is b for b in ours.buffers()) for t in got] == [any(t is b for b in theirs.buffers()) for t in expected]
    theirs(x + 1), ours(x + 1)
    torch.testing.assert_close(got, expected)
    verdict = verify(problem, load_candidate(text, "host"))
    assert verdict.passed, [f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed]


@pytest.mark.parametrize("name", RETURNED)
def test_memory_and_order_are_the_original_s(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(FILE.format(returned=RETURNED[name]))
    text = compile_problem(load_problem(path), Options(target="host"))[2].text
    new = from_text(text, str(tmp_path / "new.py"), "host")
    (x,) = new.get_inputs()
    for needs in (False, True):
        x.requires_grad_(needs)
        theirs, ours = new.Model()(x), new.ModelNew()(x)
        torch.testing.assert_close(ours, theirs)
        assert homes((x, *ours)) == homes((x, *theirs))
        assert [t.stride() for t in ours] == [t.stride() for t in theirs]
