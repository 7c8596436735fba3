"""Sizes that stay sizes in a graph, so that the file is for inputs of others too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import sympy
import torch
from torch import nn

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import Problem, load_problem
from fusewright.frontend.stand_ins import _Whole, only_calls_int, quotient_of
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

WINDOWS = """
import torch
from torch import nn


def cut(x, w):
    B, H, W, C = x.shape
    return x.view(B, H // w, w, W // w, w, C).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, C)


def joined(windows, w, H, W):
    B = int(windows.shape[0] / (H * W / w / w))
    x = windows.view(B, H // w, W // w, w, w, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.size: int = 8
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        size = self.size if isinstance(self.size, int) else 0
        B, L, C = x.shape
        y = torch.softmax(cut(x.view(B, size, size, C), 4) * self.weight, -1)
        return joined(y, 4, size, size).view(B, L, C)


def get_inputs():
    return [torch.randn(4, 64, 6)]


def get_init_inputs():
    return []
"""


def test_a_batch_that_is_counted_from_its_windows(tmp_path: Path) -> None:
    problem = loaded(tmp_path, WINDOWS)
    new, original = made(problem)
    for batch in (2, 7):
        assert_near(problem, new, original, [torch.randn(batch, 64, 6)])


@pytest.mark.parametrize("size", ["int(h * 0.5)", "int(h / 2)", "int(h * 1.5 + 0)", "int(3 * h / 4)"])
def test_a_share_of_a_size(size: str, tmp_path: Path) -> None:
    """Whatever is kept as a size, results are right at others."""
    forward = f"h = x.shape[2]\n        return torch.relu(torch.cat([x, x], 2)[:, :, : {size}]) * {size}"
    problem = loaded(tmp_path, model_of(forward, "x", "torch.randn(2, 3, 8)"))
    new, original = made(problem)
    for height in (8, 9, 15):
        torch.testing.assert_close(new(x := torch.randn(2, 3, height)), original(x))


def test_what_a_quotient_is() -> None:
    """n // d is what `int` makes of it where nothing in it is rounded but the last quotient."""
    from torch.utils._sympy.functions import FloatTrueDiv, IntTrueDiv, ToFloat

    n, m = sympy.symbols("n m", integer=True, positive=True)
    assert quotient_of(IntTrueDiv(n, 3)) == (n, 3)
    assert quotient_of(FloatTrueDiv(ToFloat(4 * n), sympy.Float(4.0))) == (4 * n, 4)
    assert quotient_of(FloatTrueDiv(ToFloat(n * m), IntTrueDiv(n * m * 6, 2))) == (n * m, 3 * n * m)
    assert quotient_of(sympy.Float(1.5) * ToFloat(n)) == (3 * n, 2)
    for rounded in (sympy.Float(0.1) * ToFloat(n), FloatTrueDiv(IntTrueDiv(n, 3), sympy.Float(3.0)), IntTrueDiv(n - 8, 2)):
        assert quotient_of(rounded) is None
    for number in range(1, 2000):
        assert all(int(number / by) == number // by for by in range(1, 60))


def test_an_int_that_only_looks_like_it(tmp_path: Path) -> None:
    assert issubclass(bool, _Whole) and isinstance(3, _Whole) and not isinstance(3.0, _Whole) and _Whole("12", base=3) == 5
    lines = {"int(3)": True, "isinstance(3, (int, float))": True, "type(3) is int": False, "int.from_bytes": False, "3": False}
    for number, (line, good) in enumerate(lines.items()):
        (tmp_path / f"asks_{number}.py").write_text(f"a = {line}\n")
        assert only_calls_int(str(tmp_path / f"asks_{number}.py")) is good, line


ATTENTIONS = {
    "batch first": ("nn.MultiheadAttention(8, 2, batch_first=True)", "(4, 5, 8)", "(4, 7, 8)", ((3, 6, 8), (3, 2, 8))),
    "batch second": ("nn.MultiheadAttention(8, 2)", "(5, 4, 8)", "(7, 4, 8)", ((6, 3, 8), (2, 3, 8))),
}


@pytest.mark.parametrize("case", ATTENTIONS, ids=lambda case: case.replace(" ", "-"))
def test_lengths_of_cross_attention(case: str, tmp_path: Path) -> None:
    """That both batches are one is seen only behind the projections, by heads of a batch."""
    layer, x, y, others = ATTENTIONS[case]
    forward = "return torch.relu(x + self.layer(x, y, y)[0]) * 0.5"
    problem = loaded(tmp_path, model_of(forward, "x, y", f"torch.randn{x}, torch.randn{y}", f"self.layer = {layer}"))
    new, original = made(problem)
    assert_near(problem, new, original, [torch.randn(shape) for shape in others])


def test_inputs_that_meet_nowhere_keep_their_sizes(tmp_path: Path) -> None:
    """That two inputs have one size in the example is taken for a rule only where it has to be."""
    problem = loaded(tmp_path, model_of("return torch.relu(x), torch.relu(y)", "x, y", "torch.randn(4, 3, 5), torch.randn(4, 3, 5)"))
    graph = capture(problem.model(), problem.inputs(), str(problem.path))
    assert len(graph.symbols) == 6


LOSSES = {
    "ranking": "F.margin_ranking_loss(x, y, (x - y).sign(), reduction='{}')",
    "hinge": "F.hinge_embedding_loss(x, y.sign(), reduction='{}')",
    "classes": "F.nll_loss(x.log_softmax(1), y.argmax(1), reduction='{}')",
}


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_are_no_means(name: str, reduction: str, tmp_path: Path) -> None:
    """PyTorch's own formulas for them, with symbolic sizes, raise an error."""
    forward = f"return {LOSSES[name].format(reduction)}"
    problem = loaded(tmp_path, model_of(forward, "x, y", "torch.randn(4, 3), torch.randn(4, 3)"))
    graph = capture(problem.model(), problem.inputs(), str(problem.path))
    assert len(graph.symbols) == 1 and len(graph.nodes) < 7


def model_of(forward: str, names: str, inputs: str, init: str = "self.none = 0") -> str:
    return f"""
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {names}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def loaded(folder: Path, text: str) -> Problem:
    (folder / "sized.py").write_text(text)
    return load_problem(folder / "sized.py")


def made(problem: Problem) -> tuple[nn.Module, nn.Module]:
    candidate = load_candidate(compile_problem(problem, Options(gradients=False))[2].text, "host")
    original, new = problem.model(), candidate.build_model(problem)
    new.load_state_dict(original.state_dict())
    new.launches = candidate.launches  # type: ignore[assignment]
    return new, original


def assert_near(problem: Problem, new: nn.Module, original: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """By kernels, at other sizes than the example's."""
    with new.launches() as kernels, torch.no_grad():  # type: ignore[operator]
        torch.testing.assert_close(new(*inputs), original(*inputs), rtol=1e-5, atol=1e-5)
    assert kernels
