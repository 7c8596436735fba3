"""Operators that only say where an element comes from: kernels read through them, at any size, and gradients go back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of, weight_of

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import Problem
from fusewright.options import Options

IMAGE, ROW, VOLUME = (3, 4, 6, 9), (3, 4, 11), (2, 3, 4, 5, 6)
CASES = [
    ("torch.roll(y, 1, -1) * 2 + y", ROW),
    ("torch.roll(y, (2, -3), (2, 3)) * 2", IMAGE),
    ("torch.roll(y, (25, 4, -31), (2, 0, 2)) * 2", IMAGE),
    ("torch.roll(y, 5) * 2", IMAGE),
    ("torch.softmax(torch.roll(y, -2, 2), -1)", IMAGE),
    ("F.pad(y, (2, 3), mode='reflect') * 2", ROW),
    ("F.pad(y, (1, 2, 3, 0), mode='reflect') * 2", IMAGE),
    ("F.pad(y, (1, 2, 0, 3, 2, 1), mode='reflect') * 2", VOLUME),
    ("nn.ReflectionPad2d(3)(y) * 2", IMAGE),
    ("F.pad(y, (2, 0), mode='replicate') * 2", ROW),
    ("F.pad(y, (1, 12, 3, 0), mode='replicate') * 2", IMAGE),
    ("F.pad(y, (1, 2, 0, 3, 2, 1), mode='replicate') * 2", VOLUME),
    ("F.pad(y, (4, 5), mode='circular') * 2", ROW),
    ("F.pad(y, (1, 2, 3, 0), mode='circular') * 2", IMAGE),
    ("F.pad(y, (1, 2, 0, 3, 2, 1), mode='circular') * 2", VOLUME),
    ("F.avg_pool2d(F.pad(y, (1, 1, 1, 1), mode='reflect'), 3, 3)", IMAGE),
    ("y.repeat_interleave(3) * 2", ROW),
    ("y.unfold(2, 4, 3) * 2", ROW),
    ("y.unfold(-1, 4, 2).amax(-1) + 1", ROW),
    ("y.unfold(2, 3, 1).unfold(3, 2, 2).sum((-1, -2))", IMAGE),
    ("F.unfold(y, 3, padding=1) * 2", IMAGE),
    ("F.unfold(y, (2, 3), dilation=(2, 1), padding=(0, 2)).mean(1)", IMAGE),
    ("torch.diagonal(y, 0, 2, 3) * 2", IMAGE),
    ("torch.diagonal(y, 1, 1, -1).sum(-1)", IMAGE),
    ("torch.diagonal(y, -2, 3, 1).tanh()", IMAGE),
    ("torch.diag_embed(y) * 2", ROW),
    ("torch.diag_embed(y, 2).sum(-2)", ROW),
    ("torch.diag_embed(y, -1, 0, 2) + 1", ROW),
    ("torch.pixel_shuffle(y, 2)", IMAGE),
    ("torch.rot90(y, 1, (2, 3)) * 2", IMAGE),
    ("y * torch.arange(y.shape[2]).clamp(0, y.shape[2] - 2)", ROW),
    ("y.scatter(2, torch.arange(4)[None, :, None].expand(y.shape[0], -1, 1), 5.0) * 2", ROW),
    ("y.scatter(-2, torch.arange(y.shape[2]).expand(y.shape[0], 1, -1) % 4, y[:, :1] * 3) * 2", ROW),
    ("(torch.zeros_like(y).scatter_(0, torch.arange(y.shape[3]).expand(1, 4, y.shape[2], -1) % 3, -1.0) * y).sum(0)", IMAGE),
    ("torch.select_scatter(y, torch.slice_scatter(y, y[..., 1:] * 2, 2, 1)[..., 3].sin(), 2, 0) * 2", ROW),
    ("torch.cumsum(torch.roll(y, 1, 2), 2)", ROW),
    ("torch.cat((torch.roll(y, -2, 0), -torch.roll(y, -2, 0)), 0) * 2", ROW),
    ("torch.cat((torch.roll(y, -2, 0), -torch.roll(y, 1, 0)), 0).amax(2)", ROW),
]


def problem_of(folder: Path, forward: str, shape: tuple[int, ...]) -> Problem:
    """What is mapped is y: computed from x, with a weight for each channel."""
    mapped = "y = F.leaky_relu(x * self.weight, 0.3)"
    return frame.problem_of(folder, forward, f"torch.randn({shape})", init=weight_of(shape), lines=[mapped])


def other_sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another batch, and what follows the channels larger."""
    return (shape[0] + 2, shape[1], *(n + 1 + i for i, n in enumerate(shape[2:])))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("forward", "shape"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_is_read_through(tmp_path: Path, forward: str, shape: tuple[int, ...]) -> None:
    plan, _, original, new = made_of(problem_of(tmp_path, forward, shape), gradients=True)
    assert len(plan.kernels) == 1 and not plan.calls, [str(call.node.target) for call in plan.calls]
    frame.compare(original, new, (shape, other_sizes(shape)))


def test_more_places_than_one_are_left_to_pytorch(tmp_path: Path) -> None:
    """The last of equal places would count."""
    forward = "y.scatter(2, torch.tensor([0, 3, 0]).expand(y.shape[0], 4, 3), y[..., :3] * 2) + 1"
    plan, _, original, new = made_of(problem_of(tmp_path, forward, ROW))
    assert [call.node.target for call in plan.calls] == [torch.ops.aten.scatter.src]
    x = torch.randn(ROW)
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["reflect", "circular"])
def test_sizes_that_pytorch_refuses_are_refused(tmp_path: Path, mode: str) -> None:
    """A pad wider than what it is taken from: nothing is read from beyond it."""
    _, _, _, new = made_of(problem_of(tmp_path, f"F.pad(y, (4, 5), mode='{mode}') * 2", ROW))
    with torch.no_grad(), pytest.raises((RuntimeError, AssertionError)):
        new(torch.randn(3, 4, 3))


@pytest.mark.parametrize("forward", ["y.unfold(2, 4, 3)", "torch.roll(y, 1, 2)", "F.pad(y, (1, 1), mode='replicate')"])
def test_as_a_result(tmp_path: Path, forward: str) -> None:
    """With nothing done after it; of pieces PyTorch makes a view of what is in memory."""
    _, _, original, new = made_of(problem_of(tmp_path, forward, ROW))
    x = torch.randn(ROW)
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "forward", ["torch.sin(y).unfold(2, 8, 1).sum(-1)", "F.unfold(torch.sin(y)[..., None], (5, 1), padding=(2, 0)) + 1"]
)
def test_what_is_dear_is_not_computed_again_for_every_piece(tmp_path: Path, forward: str) -> None:
    plan = compile_problem(problem_of(tmp_path, forward, ROW), Options(gradients=False))[1]
    assert len(plan.kernels) == 2 and not plan.calls
