"""One emitted file, whose forward stores what backward reads from the first backward on; compiled once."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import fusewright
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

MODEL = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(64, channels, 3)

    def forward(self, x):
        return torch.relu(self.conv(x)).amax(1)


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.block = Block(channels)
        self.scale = nn.Parameter(torch.rand(1) + 0.5)

    def forward(self, x):
        return torch.softmax(self.block(x) * self.scale, -1)


def get_inputs():
    return [torch.randn(16, 64, 36, 36)]


def get_init_inputs():
    return [16]
'''


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("company")
    (folder / "model.py").write_text(MODEL)
    front = read_problem(load_problem(folder / "model.py"), Options(target="host"))
    convolution = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    _, emitted = front.finish(Choices(own=convolution))
    assert "saves=True, late=True" in emitted.text
    (folder / "model_new.py").write_text(emitted.text)
    return folder / "model_new.py"


@pytest.fixture(scope="session")
def new(file: Path) -> ModuleType:
    return fusewright.load(file)
