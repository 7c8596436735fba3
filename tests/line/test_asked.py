"""What forward asks and no graph shows: how tensors lie in memory and on which device, whether gradients are enabled, the environment."""

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


ENVIRONMENT = {
    "getenv": 'os.getenv("FUSEWRIGHT_S", "2")',
    "get": '(os.environ.get("FUSEWRIGHT_S") or "2")',
    "in": '(os.environ["FUSEWRIGHT_S"] if "FUSEWRIGHT_S" in os.environ else "2")',
    "in a function": "found()",
}


@pytest.mark.parametrize("case", ENVIRONMENT, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("at_first", [None, "2", 'a"\\b'])
def test_variables_of_the_environment(case: str, at_first: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    import os

    def found():
        return os.environ.get("FUSEWRIGHT_S", "2")

    class Model(nn.Module):
        def forward(self, x):
            return torch.tanh(x * sum(map(ord, FOUND))) * 2
    """.replace("FOUND", ENVIRONMENT[case])
    monkeypatch.delenv("FUSEWRIGHT_S", raising=False)
    if at_first is not None:
        monkeypatch.setenv("FUSEWRIGHT_S", at_first)
    pair = Pair(tmp_path, source)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    for value in ("3", "2.5"):
        monkeypatch.setenv("FUSEWRIGHT_S", value)
        pair.same(old, new, kernels=False)
    monkeypatch.delenv("FUSEWRIGHT_S")
    pair.same(old, new, kernels=at_first is None)


BRANCHES_ON_THE_DEVICE = {
    "is cuda": "return torch.tanh(x * (2 if x.is_cuda else 3)) * 2",
    "is cpu": "return torch.tanh(x * (3 if x.is_cpu else 2)) * 2",
    "of a parameter": "return torch.tanh(x * (self.w + 1 if self.w.is_cuda else self.w)) * 2",
    "the device's type": "return torch.tanh(x.exp() if x.device.type == 'cuda' else x) * 2",
    "the device's text": "return torch.tanh(x.exp() if 'cuda' in str(x.device) else x) * 2",
    "another device": "return torch.tanh(x if x.device == torch.device('cpu') else x.sin()) * 2",
    "its number": "return torch.tanh(x * (x.get_device() + 3)) * 2",
    "any GPU": "return torch.tanh(x * (x.ndim + (2 if torch.cuda.is_available() else 3))) * 2",
    "of what is computed": "return torch.tanh(x[:, 1:] if (x * 2).is_cuda else x[:, 2:]) * 2",
    "in a function": "return torch.tanh(chosen(x)) * 2",
    "which is returned": "return (torch.tanh(x) * 2, x)[x.is_cuda]",
    "a call more": "return torch.tanh(x.exp() * x) * 2 if x.is_cuda else torch.tanh(x.exp() * x)",
}
ON_THE_DEVICE = {
    "a tensor made there": "return torch.tanh(x + torch.arange(6, device=x.device) + torch.ones(6).to(x.device)) * 2",
    "a tensor brought there": "return torch.tanh(x + torch.tensor([1.0], dtype=x.dtype, device=self.w.device) + self.w.to(x.device)) * 2",
    "the same device": "return torch.tanh(x if x.device == self.w.device else x.to(self.w.device)) * 2",
    "as text": "return torch.tanh(x + torch.ones(6, device=str(x.device))) * 2",
    "by its type": "return torch.tanh(x + torch.ones(6, device=x.device.type)) * 2",
    "no autocast": "with torch.autocast(x.device.type, enabled=False):\n                return torch.tanh(x.float()) * 2",
    "the same either way": "return torch.tanh((x * self.w) if x.is_cuda else (x * self.w)) * 2",
    "a norm in training": "return torch.tanh(self.norm(x) + torch.zeros(6, device=x.device)) * 2",
}
PLACED = """
    def chosen(x):
        return x * 2 if x.is_cuda else x * 3

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.norm = nn.Parameter(torch.randn(6, 6)), nn.BatchNorm2d(8)

        def forward(self, x):
            BODY
"""


@pytest.mark.parametrize("case", BRANCHES_ON_THE_DEVICE, ids=lambda name: name.replace(" ", "-"))
def test_branches_on_the_device_are_refused(case: str, tmp_path: Path) -> None:
    """Captured on the CPU, the file would do on a GPU what the model does on the CPU."""
    line = 7 if case == "in a function" else 15
    with pytest.raises(Unsupported, match=rf"model\.py:{line}: forward asks where its tensors are, and does something else on a GPU"):
        Pair(tmp_path, PLACED.replace("BODY", BRANCHES_ON_THE_DEVICE[case]))


@pytest.mark.parametrize("case", ON_THE_DEVICE, ids=lambda name: name.replace(" ", "-"))
def test_what_is_put_on_the_device_is_planned(case: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, PLACED.replace("BODY", ON_THE_DEVICE[case]))
    pair.same(*pair.models(), kernels=True)
