"""Backward goes region by region, and computes nothing again that forward had in memory."""

from __future__ import annotations

import re
from pathlib import Path

from fusewright.driver.front import Front
from fusewright.driver.pipeline import optimize, read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.product_fusion import product_of

RESIDUAL = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(layers)])
        self.first = nn.ModuleList([nn.Linear(32, 48) for _ in range(layers)])
        self.second = nn.ModuleList([nn.Linear(48, 32) for _ in range(layers)])

    def forward(self, x):
        for norm, first, second in zip(self.norms, self.first, self.second):
            y = second(F.gelu(first(norm(x))))
            x = x + torch.cumsum(y, 1) * 0.1
        return x


def get_inputs():
    return [torch.randn(4, 24, 32)]


def get_init_inputs():
    return [3]
"""

LOSS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x, y):
        x = x * self.weight
        return F.mse_loss(torch.sigmoid(x), y) + x.std() + (x * (x.shape[0] / 3)).sum() * (1.5 / x.shape[0])


def get_inputs():
    return [torch.randn(16, 6), torch.rand(16, 6)]


def get_init_inputs():
    return []
"""


def front_of(text: str, tmp_path: Path) -> Front:
    path = tmp_path / "model.py"
    path.write_text(text)
    return read_problem(load_problem(path), Options(target="host"))


def backward_of(text: str) -> str:
    """The functions that launch gradients."""
    return "\n".join(re.findall(r"^def \w+_grad\(.*?\n(?=\S)", text, flags=re.MULTILINE | re.DOTALL))


def test_what_a_layer_leaves_is_where_the_next_one_starts(tmp_path: Path) -> None:
    """Backward of a residual network does each layer once: one that went back to the beginning of each would be quadratic."""
    front = front_of(RESIDUAL, tmp_path)
    made, _ = front.finish(Choices(own=frozenset()), gradients=False)
    ours = [call.node for call in made.calls if product_of(call.node, made) and "second" in call.node.inputs[1]]  # the others end a region
    _, emitted = front.finish(Choices(own=frozenset(node.name for node in ours)))
    backward = backward_of(emitted.text)
    assert backward.count("_launch(") > 3
    assert "addmm" not in backward and "linear(" not in backward  # nothing of forward is multiplied again
    for layer in range(3):
        uses = re.findall(rf"(?:torch\.mm\(|_launch\().*\bsecond_{layer}_weight\b", backward)
        assert len(uses) == 1, f"layer {layer} is differentiated {len(uses)} times"


def test_numbers_made_of_sizes_are_computed_in_kernels(tmp_path: Path) -> None:
    """2 / n in the gradient of a mean square; n / 3 in the model itself is no whole number."""
    front = front_of(LOSS, tmp_path)
    assert front.graph.symbols
    _, emitted = front.finish(Choices())
    assert "_grad(" in backward_of(emitted.text) and re.search(r"double \w+ =", emitted.text)
    run = optimize(front.problem, Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))


def test_what_backward_asks_for_is_no_result(tmp_path: Path) -> None:
    """A convolution that is kept beside a small result, of a size at which that ends the region."""
    path = tmp_path / "model.py"
    path.write_text(LOSS.replace("nn.Parameter(torch.rand(6) + 0.5)", "nn.Conv2d(64, 16, 3)").replace(
        LOSS[LOSS.index("        x = x * self.weight") : LOSS.index("\n\n\ndef get_inputs")],
        "        return torch.relu(self.weight(x)).amax(1)",
    ).replace("forward(self, x, y)", "forward(self, x)").replace("torch.randn(16, 6), torch.rand(16, 6)", "torch.randn(16, 64, 36, 36)"))
    front = read_problem(load_problem(path), Options(target="host"))
    made, emitted = front.finish(Choices(own=frozenset(n.name for n in front.graph.nodes if "conv" in str(n.target))))
    assert not made.calls and "late=True" in emitted.text and re.search(r"\(\w+,\) = _run\(", emitted.text)
