"""Values put at some place, where vectors do not lie across their edges: read in vectors, each asked once whether it is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import cuda_of, made_of, weight_of

from fusewright.frontend.problem import Problem

IMAGE, ROW = (3, 4, 6, 16), (5, 4, 32)
CASES = {
    "joined": ("torch.cat((torch.relu(x), x * self.weight), 1) + 1", IMAGE),
    "joined, and what takes long": ("torch.cat((torch.tanh(torch.sin(x)), x), 1) * 2", IMAGE),
    "three, of two sizes": ("torch.cat((x[:, :, 1:], x * 2, x[:, :, :3] + 1), 2) * 2", IMAGE),
    "joined and rolled": ("torch.cat((x, x * 2), 1) + torch.roll(torch.cat((x * 3, x), 1), 1, 1)", IMAGE),
    "rolled before they are joined": ("torch.cat((torch.roll(x, 2, 2), x), 1) * 2", IMAGE),
    "rows above and below": ("F.pad(x, (0, 0, 2, 1)) * 2", IMAGE),
    "rows of another value": ("F.pad(x * 2, (0, 0, 2, 1), value=0.5) + 1", IMAGE),
    "channels and rows": ("F.pad(F.pad(x, (0, 0, 1, 0)) + 1, (0, 0, 0, 2, 1, 1)) * 2", IMAGE),
    "rows mirrored, then others": ("F.pad(F.pad(x, (0, 0, 2, 1), mode='reflect') + 1, (0, 0, 1, 1)) * 2", IMAGE),
    "a part overwritten": ("torch.slice_scatter(x, torch.sigmoid(x[:, 1:3]), 1, 1, 3) * 2", IMAGE),
    "samples written back, which a reduction reads": ("torch.slice_scatter(x, x[1:] - 1, 0, 1).amin(0, keepdim=True) + x", IMAGE),
    "joined and gone over twice": ("torch.cat((x, x * 2), 1).softmax(-1)", IMAGE),
    "with what all of them read": ("torch.cat((x * self.weight[0], x[:, :2] - self.weight[0]), 1) + x.mean()", IMAGE),
    "with a row that all of them read": ("torch.cat((x * x[:1, :1, :1], x[:, :2] - x[:1, :1, :1]), 1) * 2", IMAGE),
    "beside something that is not": ("torch.cat((x, x * 2), 1) * self.weight.view(-1)[:1] + x.repeat(1, 2, 1, 1)", IMAGE),
}
NOT_SO = (
    "samples written back, which a reduction reads",
    "joined and gone over twice",
    "rows mirrored, then others",
    "rolled before they are joined",
    "a part overwritten",  # it is read with the whole, of which it is a part, without asking
)
SCANNED = {
    "sums before each": ("torch.cumsum(F.pad(x, (1, -1)), -1)", ROW),
    "sums before each, with a first one": ("torch.cumsum(F.pad(x * 2, (3, 2), value=1.5), -1)", ROW),
    "sums of what is joined": ("torch.cumsum(torch.cat((x, torch.tanh(torch.sin(x)) * 3), -1), -1)", ROW),
    "sums of what is joined across": ("torch.cumsum(torch.cat((x, x * 2), 1), -1)", ROW),
    "from the end": ("torch.cumsum(F.pad(x, (1, 3)).flip(-1), -1).flip(-1)", ROW),
}


def problem_of(folder: Path, forward: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Problem:
    return frame.problem_of(folder, forward, f"torch.randn({shape}).to({dtype})", init=weight_of(shape))


def check(problem: Problem, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    plan, text, original, new = made_of(problem)
    assert plan.kernels and not [c for c in plan.calls if "pad" not in str(c.node.target)], [str(c.node.target) for c in plan.calls]
    batch, channels, *extents = shape
    for more in ([0] * len(extents), [1] * len(extents), [3, 8], [0, 4]):
        x = torch.randn(batch + 1, channels, *(n + d for n, d in zip(extents, more, strict=False))).to(dtype)
        with torch.no_grad():
            expected, found = original(x), new(x)
        apart = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(found, expected, rtol=apart, atol=apart)
    return cuda_of(text)


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_in_vectors(tmp_path: Path, case: str) -> None:
    source = check(problem_of(tmp_path, *CASES[case]), CASES[case][1], torch.float32)
    asks_once = ") load(&" in source and "if (counts" in source
    assert asks_once == (case not in NOT_SO)
    if case == "a part overwritten":
        assert source.count("load(&x_ptr[") == source.count("x_ptr[") == 1


EVERY = 9223372036854775807
ANYWHERE = {
    "every second column": (f"torch.slice_scatter(x, torch.sigmoid(x[..., ::2]), 3, 0, {EVERY}, 2) * 2", IMAGE),
    "every third row but the first": (f"torch.slice_scatter(x, x[:, :, 1::3] - 1, 2, 1, {EVERY}, 3) * 2", IMAGE),
    "the last row": ("torch.select_scatter(x, x[:, :, -1] * 2, 2, -1) + 1", IMAGE),
    "rows counted from the end": ("torch.slice_scatter(x, x[:, :, :3] * 2, 2, -3) + 1", IMAGE),
    "a diagonal": ("torch.diagonal_scatter(x, x.diagonal(0, -2, -1) * 3, 0, -2, -1) + 1", IMAGE),
    "a diagonal above": ("torch.diagonal_scatter(x, x.diagonal(2, -2, -1) * 3, 2, -2, -1) + 1", IMAGE),
    "a diagonal below": ("torch.diagonal_scatter(x, x.diagonal(-3, -2, -1) * 3, -3, -2, -1) + 1", IMAGE),
    "ones on a diagonal": ("x * torch.eye(x.shape[-2], x.shape[-1]) + torch.eye(x.shape[-1])[0]", IMAGE),
}


@pytest.mark.parametrize("case", ANYWHERE, ids=lambda name: name.replace(" ", "-"))
def test_written_over(tmp_path: Path, case: str) -> None:
    check(problem_of(tmp_path, *ANYWHERE[case]), ANYWHERE[case][1], torch.float32)


@pytest.mark.parametrize("case", SCANNED, ids=lambda name: name.replace(" ", "-"))
def test_under_scans(tmp_path: Path, case: str) -> None:
    source = check(problem_of(tmp_path, *SCANNED[case]), SCANNED[case][1], torch.float32)
    assert "scan_row<ScanSum" in source and "int VEC" in source


@pytest.mark.parametrize("case", ["three, of two sizes", "rows above and below", "a part overwritten"])
def test_halves(tmp_path: Path, case: str) -> None:
    check(problem_of(tmp_path, *CASES[case], torch.bfloat16), CASES[case][1], torch.bfloat16)


def test_nothing_is_read_from_elsewhere(tmp_path: Path) -> None:
    """A part that is not there is no number, and shows nowhere."""
    _, _, original, new = made_of(frame.problem_of(tmp_path, "torch.cat((x, y * 2), 1) + 1", *["torch.randn(3, 4, 32)"] * 2))
    x, y = torch.randn(3, 4, 32), torch.full((3, 4, 32), float("nan"))
    with torch.no_grad():
        torch.testing.assert_close(new(x, y), original(x, y), equal_nan=True)
        assert not new(x, y)[:, :4].isnan().any()


def test_samples_changed_in_place(tmp_path: Path) -> None:
    """What is written back is made of what is there: one load, inside a window and outside it."""
    lines = ["y = F.mish(x).clone()", "y[1:] -= 1"]
    _, _, original, new = made_of(frame.problem_of(tmp_path, "y", "torch.randn(24, 32)", lines=lines))
    for shape in ((24, 32), (7, 32), (5, 33)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-5)


def test_a_long_chain_whose_values_are_used_often(tmp_path: Path) -> None:
    """A recurrence unrolled: what each value costs is counted once, not along every way to it (there are 3 to the power of 30)."""
    lines = ["for _ in range(30):", "    x = x * torch.sigmoid(x) + x"]
    signal.alarm(120)
    try:
        _, _, original, new = made_of(frame.problem_of(tmp_path, "torch.cat((x, x * 2), 1) + 1", "torch.rand(3, 4, 32) - 3", lines=lines))
    finally:
        signal.alarm(0)
    x = torch.rand(3, 4, 32) - 3
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=1e-4, atol=1e-4)


HEADS = '''
import torch
from torch import nn


class Model(nn.Module):
    """Parts whose rows are joined of two dimensions, one of them in another order."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 48))

    def forward(self, a, b, c):
        n, t = a.shape[0], a.shape[2]
        rows = [a.transpose(1, 2), b.permute(0, 3, 1, 2), c.transpose(1, 2)]
        return torch.cat([part.reshape(n, t, 96) for part in rows], 2) * 2.0, a * self.scale[:, None]


def get_inputs():
    return [torch.randn(2, 2, 40, 48), torch.randn(2, 2, 48, 40), torch.randn(2, 2, 40, 48)]


def get_init_inputs():
    return []
'''


def test_nothing_outside_a_part_is_read(tmp_path: Path) -> None:
    """Where a part does not count, its row and its column lie outside it, though quotients and rests are said to be inside."""
    (tmp_path / "heads.py").write_text(HEADS)
    command = [sys.executable, "-m", "fusewright", "optimize", "heads.py", "--sanitize", "address", "--quick", "--forward-only"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
