"""A file's model built from what the original's `get_init_inputs()` gives: objects of the original's own classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.driver.pipeline import compile_problem
from fusewright.emit.here import _as_here
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import Candidate, load_candidate

MODEL = """
import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn


class Act(enum.Enum):
    TANH = "tanh"
    RELU = "relu"


class Sizes(NamedTuple):
    width: int
    act: Act


@dataclass
class Config:
    scale: float = 2.0
    acts: list = field(default_factory=lambda: [Act.TANH])

    def scaled(self, x):
        return x * self.scale


@dataclass(frozen=True)
class Numbers:
    shift: float


class Block(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x


class Model(nn.Module):
    def __init__(self, config, sizes, act, numbers, block, options):
        super().__init__()
        assert isinstance(config, Config) and isinstance(sizes, Sizes) and issubclass(block, Block)
        self.config, self.act, self.numbers, self.block = config, act, numbers, block()
        self.sum = options["act"] is Act.RELU
        self.weight = nn.Parameter(torch.rand(sizes.width) if sizes.act is Act.TANH else torch.rand(1))

    def forward(self, x):
        x = self.config.scaled(self.block(x) * self.weight) + self.numbers.shift
        if self.config.acts[0] is Act.TANH:
            x = torch.tanh(x)
        x = torch.relu(x) if self.act == Act.RELU else x
        return x.cumsum(-1) if self.sum else x


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return [Config(), Sizes(6, Act.TANH), Act.RELU, Numbers(0.5), Block, {"act": Act.RELU}]
"""


def made(folder: Path, text: str = MODEL) -> tuple[Problem, Candidate]:
    (folder / "configured.py").write_text(text)
    problem = load_problem(folder / "configured.py")
    return problem, load_candidate(compile_problem(problem, Options())[2].text, "host", name="configured_new.py")


def test_a_model_from_the_originals_arguments(tmp_path: Path) -> None:
    """Its own `is`, `==` and `isinstance` hold for them, and its kernels run."""
    problem, candidate = made(tmp_path)
    for named in (False, True):
        arguments = problem.arguments()
        assert arguments is not None
        block = {"block": arguments[4], "options": arguments[5]} if named else {}
        torch.manual_seed(0)
        old = problem.namespace.Model(*arguments)
        torch.manual_seed(0)
        new = candidate.module.ModelNew(*arguments[: 4 if named else 6], **block)
        x = torch.randn(5, 6)
        with candidate.launches() as kernels, torch.no_grad():
            torch.testing.assert_close(new(x), old(x))
        assert kernels and new.act is candidate.module.Act.RELU
        torch.testing.assert_close(candidate.module.Model.forward(new, x), old(x))


@pytest.mark.filterwarnings("ignore:.*The original operators run")
def test_a_file_without_kernels(tmp_path: Path) -> None:
    text = MODEL.replace('return x.cumsum(-1) if self.sum else x', 'return torch.sort(x)[0] if self.sum else x')
    text = text.replace("x = self.config.scaled(self.block(x) * self.weight) + self.numbers.shift", "x = torch.sort(x)[0]")
    text = text.replace("x = torch.tanh(x)", "x = torch.sort(x, descending=True)[0]").replace("torch.relu(x) if", "torch.sort(x)[0] if")
    problem, candidate = made(tmp_path, text)
    assert not candidate.module._KERNELS
    arguments = problem.arguments() or []
    x = torch.randn(5, 6)
    torch.testing.assert_close(candidate.module.ModelNew(*arguments)(x), problem.namespace.Model(*arguments)(x))


def test_what_is_copied_and_what_is_shared(tmp_path: Path) -> None:
    """An object that holds nothing of the original's classes shares its attributes. Others of that name stay what they are."""
    there, here = load_problem(written(tmp_path / "a.py", MODEL)).namespace, vars(load_problem(written(tmp_path / "b.py", MODEL)).namespace)
    config = there.Config(acts=[])
    made = _as_here(config, here, {})
    assert type(made) is here["Config"]
    config.scale = 3.0
    assert made.scale == 3.0
    config.acts = [there.Act.TANH, config]
    made = _as_here(config, here, {})
    assert made.acts[0] is here["Act"].TANH and made.acts[1] is made
    plain = [1, (2, "x"), {"a": config.scale}, torch.ones(2)]
    assert _as_here(plain, here, {}) is plain
    numbers = _as_here((there.Numbers(1.5), there.Numbers), here, {})
    assert numbers == (here["Numbers"](1.5), here["Numbers"])


@pytest.mark.parametrize(
    ("before", "after"),
    [("return x * self.scale", "return x + self.scale"), ("scale: float = 2.0", "scale: float = 3.0"), ('TANH = "tanh"', 'TANH = "tan"')],
)
def test_classes_that_say_something_else(before: str, after: str, tmp_path: Path) -> None:
    """An object of another class of the same name is not taken for one of the file's."""
    there = load_problem(written(tmp_path / "a.py", MODEL.replace(before, after))).namespace
    here = vars(load_problem(written(tmp_path / "b.py", MODEL)).namespace)
    value = there.Act.TANH if "TANH" in before else there.Config(acts=[])
    assert _as_here(value, here, {}) is value


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
