"""Attention in whole models: where one kernel computes it, what stays in steps, and that both ways are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import models_of, problem_of

from fusewright.attention import attentions
from fusewright.candidate import load_candidate
from fusewright.options import Options
from fusewright.pipeline import Front, read_problem
from fusewright.products import products
from fusewright.tune import Choices, own_of
from fusewright.verify import verify

HEADS = "x[:, :, None].unflatten(-1, (3, 2, 8)).permute(3, 0, 4, 2, 1, 5)[:, :, :, 0]"  # q, k, v as permuted slices of x
QKV = ["q, k, v = x.view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)"]
TOGETHER = ".transpose(1, 2).reshape(x.shape[0], x.shape[1], 16)"
SHAPE = "torch.randn(3, 37, 48)"
CASES = {  # what is returned; inputs; lines before it; a statement of the constructor
    "softmax": (f"(torch.softmax(q @ k.mT * 0.3, -1) @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "left as heads": ("torch.softmax(q @ k.mT * 0.3, -1) @ v", [SHAPE], QKV, "pass"),
    "a mask that is a buffer": (
        f"(torch.softmax((q @ k.mT * 0.3).masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, -torch.inf), -1) @ v){TOGETHER}",
        [SHAPE], QKV, 'self.register_buffer("mask", torch.ones(64, 64).tril())',
    ),
    "a mask that is an input": (
        f"(torch.softmax(q @ k.mT * 0.3 + y[:, None, None, :], -1) @ v){TOGETHER}", [SHAPE, "torch.randn(3, 37)"], QKV, "pass",
    ),
    "a bias by positions": (
        f"(torch.softmax(q @ k.mT + self.bias.view(25, 2)[:9].T[:, None, :1] + self.bias[:, None, None], -1) @ v){TOGETHER}",
        [SHAPE], QKV, "self.bias = nn.Parameter(torch.randn(50))",
    ),
    "relu": (f"(torch.relu(q @ k.mT * 0.1) @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "a sigmoid and a square": (f"(torch.sigmoid(q @ k.mT).square() @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "cross attention": (
        "torch.softmax(self.q(x) @ self.k(y).mT / 4, -1) @ self.v(y)", ["torch.randn(3, 33, 20)", "torch.randn(3, 41, 24)"], (),
        "self.q, self.k, self.v = nn.Linear(20, 16), nn.Linear(24, 16), nn.Linear(24, 12)",
    ),
    "of two dimensions": ("torch.softmax(x @ y.T, -1) @ y", ["torch.randn(33, 16)", "torch.randn(41, 16)"], (), "pass"),
    "of a memory that is a parameter": (
        "torch.softmax(x @ self.keys.T, -1) @ self.values", ["torch.randn(3, 33, 16)"], (),
        "self.keys, self.values = nn.Parameter(torch.randn(20, 16)), nn.Parameter(torch.randn(20, 24))",
    ),
    "by bmm": ("torch.bmm(torch.softmax(torch.bmm(x, y.transpose(1, 2)) * 2, 2), y)", ["torch.randn(3, 33, 16)", "torch.randn(3, 41, 16)"], (), "pass"),
    "in one call": (f"F.scaled_dot_product_attention(q, k, v){TOGETHER}", [SHAPE], QKV, "pass"),
    "in one call, causal": (f"F.scaled_dot_product_attention(q, k, v, is_causal=True){TOGETHER}", [SHAPE], QKV, "pass"),
    "in one call, scaled": ("F.scaled_dot_product_attention(q, k, v, scale=0.2) * 2", [SHAPE], QKV, "pass"),
    "in one call, with a mask of numbers": (
        f"F.scaled_dot_product_attention(q, k, v, y){TOGETHER}", [SHAPE, "torch.randn(37, 37)"], QKV, "pass",
    ),
    "in one call, with a mask": (
        f"F.scaled_dot_product_attention(q, k, v, (y > -0.5)[:, None]){TOGETHER}", [SHAPE, "torch.randn(3, 37, 37)"], QKV, "pass",
    ),
    "a layer": ("self.layer(x, x, x, need_weights=False)[0]", ["torch.randn(3, 37, 16)"], (), "self.layer = nn.MultiheadAttention(16, 2, batch_first=True)"),
    "a layer in steps": ("self.layer(x, y, y)[0]", ["torch.randn(37, 3, 16)", "torch.randn(33, 3, 16)"], (), "self.layer = nn.MultiheadAttention(16, 2)"),
}  # fmt: skip


def front_of(folder: Path, case: str) -> Front:
    forward, inputs, lines, init = CASES[case]
    return read_problem(problem_of(folder, forward, *inputs, lines=lines, init=init), Options(target="host"))


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_models(case: str, tmp_path: Path) -> None:
    """One kernel where no gradients are asked for, forward and gradients right."""
    front = front_of(tmp_path, case)
    made, emitted = front.finish(Choices(own=attentions(front.graph)))
    assert len(made.shortcuts) == 1, emitted.text
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst
    assert "fused_attention" in verdict.kernels and not any("bmm" in call or "attention" in call for call in verdict.library_calls)
