"""What forward asks PyTorch and no graph shows: how tensors lie in memory, whether gradients are enabled."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from line.test_follows import HEAD, TAIL, Pair
from torch import Tensor

from fusewright.driver.pipeline import optimize
from fusewright.errors import Unsupported
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

ASKING = {
    "whether it is contiguous": "x * 2 if x.is_contiguous() else x * 3",
    "what makes it so": "(x if x.is_contiguous(memory_format=torch.channels_last) else x + 1)",
    "strides": "x * x.stride(0) + x.stride()[-1]",
    "of what is computed": "x.sigmoid() if (x + 1).transpose(1, 2).is_contiguous() else x.exp()",
    "in a function": "chosen(x)",
    "with strides": "x.as_strided((4, 6), (6, 1)) * 2 + x.sum()",
    "with strides what is computed": "(x * 3).transpose(1, 2).exp().as_strided((4, 6), (6, 1)) * 2 + x.sum()",
}
SOURCE = """
def chosen(x):
    return x * 2 if x.stride(1) > x.stride(2) else x * 3

class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(ASKING) * 2
"""


def orders(x: Tensor) -> list[Tensor]:
    return [x.to(memory_format=torch.channels_last), x.mT.contiguous().mT, x[:, :, :, :5], x.transpose(0, 3).contiguous().transpose(0, 3)]


@pytest.mark.parametrize("case", ASKING, ids=lambda name: name.replace(" ", "-"))
def test_how_a_tensor_lies(case: str, tmp_path: Path) -> None:
    """Other orders of an input than that of the example are the original's."""
    pair = Pair(tmp_path, SOURCE.replace("ASKING", ASKING[case]))
    old, new = pair.models()
    x = torch.randn(4, 8, 6, 6)
    pair.same(old, new, kernels=True, x=x)
    for other in orders(x):
        pair.same(old, new, kernels=False, x=other)


def test_parameters_lie_as_they_did(tmp_path: Path) -> None:
    pair = Pair(tmp_path, """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 6))

        def forward(self, x):
            return torch.tanh(x * self.w) * (2 if self.w.is_contiguous() else 3)
    """)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    for model in (old, new):
        model.w.data = model.w.data.t().contiguous().t()
    pair.same(old, new, kernels=False)


def test_whether_gradients_are_enabled(tmp_path: Path) -> None:
    pair = Pair(tmp_path, """
    class Model(nn.Module):
        def forward(self, x):
            return torch.tanh(x * 2 if torch.is_grad_enabled() else x * 3) * 2
    """)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    with torch.no_grad():
        pair.same(old, new, kernels=False)


def test_a_checkpoint_computes_the_same(tmp_path: Path) -> None:
    pair = Pair(tmp_path, """
    class Model(nn.Module):
        def inner(self, x):
            return torch.tanh(x) * 2

        def forward(self, x):
            if torch.is_grad_enabled():
                return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False) + 1
            return self.inner(x) + 1
    """)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    with torch.no_grad():
        pair.same(old, new, kernels=True)


def test_a_forward_that_the_constructor_chooses_is_refused(tmp_path: Path) -> None:
    source = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.forward = self.quickly

        def quickly(self, x):
            return torch.tanh(x) * 2
    """
    with warnings.catch_warnings(), pytest.raises(Unsupported, match=r"constructor assigns self\.forward"):
        Pair(tmp_path, source)


DRAWN_OUTSIDE = {
    "random": "float(random.uniform(0.5, 1.5))",
    "numpy": "float(numpy.random.uniform(0.5, 1.5))",
    "a generator of its own": "self.own.uniform(0.5, 1.5)",
    "a generator of numpy's": "float(self.numpys.uniform(0.5, 1.5))",
    "a state of numpy's": "float(self.state.uniform(0.5, 1.5))",
}


@pytest.mark.parametrize("case", DRAWN_OUTSIDE, ids=lambda name: name.replace(" ", "-"))
def test_numbers_that_python_draws_are_refused(case: str, tmp_path: Path) -> None:
    """Each would stand in the file as the one number that the capture drew."""
    source = """
    import random
    import numpy

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.numpys, self.state = random.Random(3), numpy.random.default_rng(3), numpy.random.RandomState(3)

        def forward(self, x):
            return torch.tanh(x * DRAWN) * 2
    """
    with pytest.raises(Unsupported, match=r"model\.py:15: forward keeps state in (the global (numpy\.)?random|self\.\w+)"):
        Pair(tmp_path, source.replace("DRAWN", DRAWN_OUTSIDE[case]))


def test_an_original_that_no_seed_repeats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    body = "class Model(nn.Module):\n    def forward(self, x):\n        return torch.tanh(x * (time.perf_counter_ns() % 1000 + 1)) * 2\n"
    path.write_text(HEAD + "import time\n\n" + body + TAIL.format(arguments="[]"))
    run = optimize(load_problem(path), Options(target="host", seeds=1))
    assert not run.verdict.passed
    assert "the original itself gives another output 0" in run.verdict.worst
