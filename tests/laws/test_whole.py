"""Small whole models through the line: the laws applied, the kernels run on the host, everything verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.driver.pipeline import optimize
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""

COLLAPSED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.linear = nn.Linear(8, 6)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.conv(x) * 0.5 + 1.0, 1).flatten(1)
        return self.linear(x).sum(1, keepdim=True).max(1, keepdim=True)[0] / 3.0


def get_inputs():
    return [torch.rand(6, 3, 9, 10)]


def get_init_inputs():
    return []
"""

POOLED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 6, 1)
        self.bias = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        norm = self.norm
        x = F.batch_norm(self.first(x / 4.0), norm.running_mean, norm.running_var, norm.weight, norm.bias)
        x = F.avg_pool2d(self.second(x), 2)
        return F.max_pool2d(torch.tanh(x + self.bias), 2)


def get_inputs():
    return [torch.rand(4, 3, 16, 20)]


def get_init_inputs():
    return []
"""

BOUNDED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(12))

    def forward(self, x, y):
        bounded = F.hardtanh(torch.tanh(x)) * 2.0 / 4.0
        weight = F.softmax(F.hardswish(bounded), 1)
        product = torch.diag(self.scale) @ y
        return torch.relu(weight.logsumexp(1)), product.clamp(-1.0, 1.0).clamp(min=-0.5)


def get_inputs():
    return [torch.randn(7, 12), torch.randn(12, 9)]


def get_init_inputs():
    return []
"""

COMPOSED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 3)
        self.hidden = nn.Linear(6, 32)
        self.last = nn.Linear(32, 4)

    def forward(self, x):
        x = self.second(F.avg_pool2d(self.first(x), 2)).mean(3)
        return self.last(self.hidden(x.transpose(1, 2)))


def get_inputs():
    return [torch.rand(8, 3, 16, 20)]


def get_init_inputs():
    return []
"""

WHOLE = {
    "composed": (
        COMPOSED,
        {
            "average pool of a convolution",
            "sum of a convolution over some of its dimensions",
            "linear map of a linear map",
        },
    ),
    "collapsed": (COLLAPSED, {"sum of a convolution over all positions", "sum of a matrix product over its columns"}),
    "pooled": (
        POOLED,
        {
            "batch norm, not training, of a layer's result",
            "average pool of a pointwise convolution",
            "scale or shift after a maximum",
            "monotone function after a maximum",
        },
    ),
    "bounded": (
        BOUNDED,
        {
            "clamp that cannot act",
            "hardswish between its bends",
            "exponentials that cannot overflow",
            "clamp of a clamp",
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_model_on_the_host(name: str, tmp_path: Path) -> None:
    text, laws = WHOLE[name]
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + text)
    run = optimize(load_problem(path), Options(target="host"))
    assert run.verdict.passed, f"{run.verdict.worst}\n" + "\n".join(map(str, run.verdict.checks))
    applied = {rule.split(" at ")[0] for rule in run.report["rules"]}
    assert laws <= applied, applied
    assert run.report["kernels"]
