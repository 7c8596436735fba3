"""Random numbers are drawn as eager draws them: for the elements of a tensor in the order in which eager has them in memory."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from line.test_follows import HEAD, TAIL, Pair
from torch import Tensor

from fusewright.driver.pipeline import optimize
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.training import KERNELS

DRAWN = {
    "dropout": "F.dropout(y, 0.5)",
    "dropout in place": "F.dropout(y, 0.5, inplace=True)",
    "alpha dropout": "F.alpha_dropout(y, 0.3, True)",
    "rand_like": "torch.rand_like(y) * y",
    "randn_like, in the order of dimensions": "torch.randn_like(y, memory_format=torch.contiguous_format) * y",
    "randint_like": "torch.randint_like(y, 0, 7) * y",
    "bernoulli": "torch.bernoulli(y) * y",
    "bernoulli of one probability": "torch.bernoulli(y, 0.3) * y",
    "bernoulli_": "torch.empty_like(y).bernoulli_(0.3) * y",
    "uniform_": "torch.empty_like(y).uniform_(1, 2) * y",
    "rrelu": "F.rrelu(y - 0.5, training=True)",
    "normal": "torch.normal(y, 0.5)",
    "of a slice": "F.dropout(y[:, 1:3], 0.5)",
    "of what is repeated": "F.dropout(y[:, :1].expand(y.shape), 0.5)",
    "of channels": "F.dropout2d(y, 0.5)",
    "behind an operator of the library": "F.dropout(y.cumsum(2), 0.5)",
}
SOURCE = """
class Model(nn.Module):
    def forward(self, x):
        y = x.transpose(1, 3).sigmoid()
        return (DRAW).tanh() * 2 + 1
"""


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def drawn_twice(pair: Pair, x: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Results of both, after the same seed, and what was launched."""
    old, new = pair.models()
    found = []
    with warnings.catch_warnings(), pair.candidate.launches() as launched:
        warnings.simplefilter("ignore")
        for model in (old, new):
            torch.manual_seed(5)
            found.append(model(x.clone()))
    return found[0], found[1], list(launched)


@pytest.mark.parametrize("case", DRAWN, ids=lambda name: name.replace(" ", "-").replace(",", ""))
def test_in_the_order_of_memory(case: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, SOURCE.replace("DRAW", DRAWN[case]))
    for x in (torch.randn(4, 8, 6, 6), torch.randn(3, 8, 7, 5), channels_last(torch.randn(4, 8, 6, 6)), torch.randn(6, 8, 5, 4).mT):
        expected, got, launched = drawn_twice(pair, x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert bool(launched) == (x.is_contiguous() or case == "of channels")  # the original draws for what lies otherwise


CONVOLVED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Dropout(0.5)
        self.last = nn.Conv2d(6, 4, 3)

    def forward(self, x):
        return torch.tanh(self.last(self.drop(self.norm(self.conv(x)).relu()))) * 2
"""


def test_of_a_model_whose_weights_are_turned(tmp_path: Path) -> None:
    """Convolutions of channels-last weights leave channels-last results."""
    pair = Pair(tmp_path, CONVOLVED)
    x = torch.randn(4, 8, 6, 6)
    assert drawn_twice(pair, x)[2]
    old, new = (model.to(memory_format=torch.channels_last) for model in pair.models())
    results = []
    for model in (old, new):
        torch.manual_seed(5)
        results.append(model(x))
    torch.testing.assert_close(results[1], results[0])


def test_channels_last_inputs_train_by_kernels(tmp_path: Path) -> None:
    """Verification draws its inputs in the order that the file's own have: else no kernel would run."""
    given = "torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last)"
    path = tmp_path / "model.py"
    path.write_text(HEAD + CONVOLVED + TAIL.replace("torch.randn(4, 8, 6, 6)", given).format(arguments="[]"))
    run = optimize(load_problem(path), Options(target="host", seeds=1))
    assert run.verdict.passed and not run.degraded
    assert "_strides_fit(x.shape, x.stride())" in run.text
    assert set(run.emitted.training.values()) == {KERNELS}


IN_ORDER = {
    "a kernel stores more than what is drawn for": """
        a = F.dropout(x.tanh(), 0.5)
        r = torch.rand(x.shape[0], 1, 1, 1)
        return a, r, x.sin() + r""",
    "numbers that nobody uses": """
        noise = torch.rand_like(x)
        a = F.dropout(x.tanh(), 0.5)
        unused = torch.randn_like(a.exp())
        return F.dropout(a.sigmoid(), 0.25) + x.cos()""",
    "for the shape of what is computed later": """
        y = F.dropout(x.tanh(), 0.5)
        z = y.mean((2, 3), keepdim=True).exp()
        return y * z + torch.randn_like(z) + z.new_empty(z.shape[0], 1, 1, 1).bernoulli_(0.5)""",
}


@pytest.mark.parametrize("case", IN_ORDER, ids=lambda name: name.replace(" ", "-"))
def test_in_the_order_of_the_model(case: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, f"class Model(nn.Module):\n    def forward(self, x):{IN_ORDER[case]}\n")
    old, new = pair.models()
    x, found = torch.randn(4, 8, 6, 6), []
    with pair.candidate.launches() as launched:
        for model in (old, new):
            torch.manual_seed(5)
            results = model(x)
            found.append([*(results if isinstance(results, tuple) else [results]), torch.rand(3)])
    assert launched
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


REPARAMETRISED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.logvar = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        std = torch.exp(0.5 * self.logvar(x))
        keep = std.new_empty(std.shape[0], 1, 1, 1).bernoulli_(0.5)
        return self.mean(x) + std * torch.randn_like(std) * keep
"""


def test_what_is_asked_for_its_shape_alone_is_not_stored(tmp_path: Path) -> None:
    pair = Pair(tmp_path, REPARAMETRISED)
    kernels = re.findall(r"^// (\w+_fwd) replaces", pair.text, re.MULTILINE)
    assert len(kernels) == 1, kernels
    expected, got, launched = drawn_twice(pair, torch.randn(4, 8, 6, 6))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert launched


def test_whole_numbers_are_drawn_for_what_has_a_gradient(tmp_path: Path) -> None:
    """The operator of the library has no derivative; the function that Python calls asks for none."""
    path = tmp_path / "model.py"
    body = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = self.conv(x)
        return (y * torch.randint_like(y, 0, 5)).tanh() * 2
"""
    path.write_text(HEAD + body + TAIL.format(arguments="[]"))
    run = optimize(load_problem(path), Options(target="host", seeds=1))
    assert run.verdict.passed and not run.degraded
