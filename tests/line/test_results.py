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
