"""Elements picked by number: kernels read where another tensor says, never outside, and gradients go back through PyTorch's operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of
from torch import Tensor

ROWS = "self.table = nn.Embedding(13, 8)"
WEIGHT = "self.weight = nn.Parameter(torch.rand(5, 6) + 0.5)"


def numbers(below: int, *shape: int, dtype: str = "torch.int64", low: int = 0) -> str:
    return f"torch.randint({low}, {below}, {shape}, dtype={dtype})"


# forward, inputs, a statement of the constructor
CASES = [
    ("self.table(x)", [numbers(13, 3, 5)], ROWS),
    ("self.table(x) * 2 + 1", [numbers(13, 3, 5, dtype="torch.int32")], ROWS),
    ("self.table(x).relu()", [numbers(13, 7)], "self.table = nn.Embedding(13, 9, padding_idx=2)"),
    ("self.table((x * 2 + 1).clamp(max=12))", [numbers(13, 4, 3)], ROWS),
    ("F.layer_norm(self.table(x) + self.places(torch.arange(x.shape[1])), (24,))", [numbers(13, 3, 5)],
     "self.table, self.places = nn.Embedding(13, 24), nn.Embedding(9, 24)"),
    ("self.table(x).sum(1)", [numbers(13, 3, 5)], ROWS),
    ("self.table(x).mean(1) + self.table(x).amax(1)", [numbers(13, 3, 5)], ROWS),
    ("torch.cat((self.first.expand(x.shape[0], 1, 8), self.table(x)), 1) * 2", [numbers(13, 3, 5)],
     "self.table, self.first = nn.Embedding(13, 8), nn.Parameter(torch.randn(8))"),
    ("F.pad(self.table(x), (0, 0, 2, 1)) + 1", [numbers(13, 3, 5)], ROWS),
    ("F.avg_pool1d(self.table(x).transpose(1, 2), 3, 1, 1)", [numbers(13, 3, 6)], ROWS),
    ("self.table(y[x])", [numbers(4, 3, 5), numbers(13, 4)], ROWS),
    ("torch.gather(x * self.weight, 1, y)", ["torch.randn(3, 5, 6)", numbers(5, 3, 2, 6)], WEIGHT),
    ("torch.gather(x * self.weight, 2, y) + 1", ["torch.randn(3, 5, 6)", numbers(6, 2, 4, 7)], WEIGHT),
    ("torch.gather(x * self.weight, 0, y)", ["torch.randn(3, 5, 6)", numbers(3, 4, 5, 6)], WEIGHT),
    ("torch.gather(torch.softmax(x * self.weight, -1), -1, y)", ["torch.randn(3, 5, 6)", numbers(6, 3, 5, 2)], WEIGHT),
    ("-torch.log_softmax(x * self.weight, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean()",
     ["torch.randn(3, 5, 6)", numbers(6, 3, 5)], WEIGHT),
    ("torch.softmax(torch.gather(x * self.weight, 2, y), -1)", ["torch.randn(3, 5, 6)", numbers(6, 3, 5, 7)], WEIGHT),
    ("torch.index_select(x * self.weight, 1, y).tanh()", ["torch.randn(3, 5, 6)", numbers(5, 4)], WEIGHT),
    ("torch.index_select(x * self.weight, -1, y)", ["torch.randn(3, 5, 6)", numbers(6, 4, dtype="torch.int32")], WEIGHT),
    ("torch.index_select(x * self.weight, 0, y).sum((0, 2))", ["torch.randn(3, 5, 6)", numbers(3, 8)], WEIGHT),
    ("torch.take_along_dim(x * self.weight, y, 1)", ["torch.randn(3, 5, 6)", numbers(5, 3, 2, 1)], WEIGHT),
    ("torch.take_along_dim(x * self.weight, x.argsort(-1), -1)", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("torch.take(x * self.weight, y)", ["torch.randn(3, 5, 6)", numbers(90, 4, 2, low=-90)], WEIGHT),
    ("(x * self.weight)[y]", ["torch.randn(3, 5, 6)", numbers(3, 4, 2, low=-3)], WEIGHT),
    ("(x * self.weight)[:, y] + 1", ["torch.randn(3, 5, 6)", numbers(5, 4, 2, low=-5)], WEIGHT),
    ("(x * self.weight)[:, :, y] + 1", ["torch.randn(3, 5, 6)", numbers(6, 7, low=-6, dtype="torch.int32")], WEIGHT),
    ("(x * self.weight)[:, [3, 0, -1]] + 1", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("(x * self.weight)[y, z]", ["torch.randn(3, 5, 6)", numbers(3, 4, 1, low=-3), numbers(5, 2, low=-5)], WEIGHT),
    ("(x * self.weight)[:, y, z]", ["torch.randn(3, 5, 6)", numbers(5, 4, 2), numbers(6, 4, 2, low=-6)], WEIGHT),
    ("(x * self.weight)[y, :, z]", ["torch.randn(3, 5, 6)", numbers(3, 4, 1, low=-3), numbers(6, 2)], WEIGHT),
    ("(x * self.weight)[torch.arange(x.shape[0]), y[:x.shape[0]]]", ["torch.randn(3, 5, 6)", numbers(5, 9, low=-5)], WEIGHT),
    ("(x * self.weight)[torch.arange(x.shape[0]), x.sum(-1).argmax(1)]", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("(x * self.weight).reshape(x.shape[0], 30)[:, y].cumsum(-1)", ["torch.randn(3, 5, 6)", numbers(30, 11)], WEIGHT),
    ("torch.softmax(x + self.bias[self.which].permute(2, 0, 1), -1)", ["torch.randn(3, 2, 5, 5)"],
     "self.bias = nn.Parameter(torch.randn(9, 2)); self.register_buffer('which', torch.arange(25).reshape(5, 5) % 9)"),
]


@pytest.mark.parametrize(("forward", "inputs", "init"), CASES, ids=[case[0] for case in CASES])
def test_is_picked(tmp_path: Path, forward: str, inputs: list[str], init: str) -> None:
    problem = problem_of(tmp_path, forward, *inputs, init=init)
    plan, _, original, new = made_of(problem, gradients=True)
    left = {str(call.node.target).split(".")[1] for call in plan.calls} - {"argsort", "sort", "getitem"}
    assert not left and plan.kernels
    original.double()
    for turn in range(2):
        given = problem.inputs(seed=turn)
        original.zero_grad()
        new.zero_grad()
        expected, found = original(*map(wide, given)), new(*given)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        upstream = torch.randn(expected.shape)
        expected.backward(upstream.double())
        found.backward(upstream)
        for ours, theirs in zip(new.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x
