"""Gradients of max pools: where windows do not overlap a thread has a window's positions, and writes them all; to the bit as PyTorch's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of
from kernels.test_positions import kinds_of

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options

IMAGES = [(2, 3, 12, 10), (5, 3, 9, 7), (3, 3, 16, 16), (2, 3, 7, 12)]
VOLUMES = [(2, 3, 6, 8, 10), (3, 3, 5, 7, 9)]
APART = {
    "side by side": ("F.max_pool2d(x, 2)", IMAGES),
    "four wide": ("F.max_pool2d(x, 4)", IMAGES),
    "three wide": ("F.max_pool2d(x, 3)", IMAGES),
    "with gaps": ("F.max_pool2d(x, 2, 3)", IMAGES),
    "with gaps along rows": ("F.max_pool2d(x, (2, 1), (3, 2))", IMAGES),
    "of gaps": ("F.max_pool2d(x, 2, (4, 3), 0, (3, 2))", IMAGES),
    "of a volume": ("F.max_pool3d(x, 2)", VOLUMES),
    "of a volume's rows": ("F.max_pool3d(x, (1, 2, 2))", VOLUMES),
    "of something turned round": ("F.max_pool2d(x.flip(3), 2)", IMAGES),
    "of something moved on": ("F.max_pool2d(x.roll(1, 2) * 2, 2)", IMAGES),
    "of something computed": ("F.max_pool2d(torch.relu(x) - 1, 2)", IMAGES),
}
THROUGH_VIEWS = ["of something turned round", "of something moved on"]
OVER_ONE_ANOTHER = {
    "overlapping": ("F.max_pool2d(x, 3, 2)", IMAGES),
    "padded": ("F.max_pool2d(x, 2, 2, 1)", IMAGES),
    "overlapping and padded": ("F.max_pool2d(x, 3, 2, 1)", IMAGES),
    "overlapping gaps": ("F.max_pool2d(x, 3, (2, 3), 1, (2, 3))", IMAGES),
    "with a part of a window at the end": ("F.max_pool2d(x, 3, 3, ceil_mode=True)", IMAGES),
    "of a volume, padded": ("F.max_pool3d(x, (2, 3, 2), (2, 2, 2), (1, 1, 0))", VOLUMES),
}


def problem_of(folder: Path, forward: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Problem:
    """Without a parameter: kernels give the gradient of x."""
    return frame.problem_of(folder, forward, f"torch.randn({shape}).to({dtype})")


@pytest.mark.parametrize("case", [*APART, *OVER_ONE_ANOTHER], ids=lambda name: name.replace(" ", "-"))
def test_gradients_go_where_pytorchs_do(tmp_path: Path, case: str) -> None:
    """Equal numbers, NaN, infinities, nothing but -Inf; other batches and sizes, odd ones too."""
    forward, shapes = (APART | OVER_ONE_ANOTHER)[case]
    _, text, original, new = made_of(problem_of(tmp_path, forward, shapes[0]), gradients=True)
    assert "_CUDA_GRADIENTS = " in text and "_with_indices_backward(" not in text, "a call of PyTorch's"
    by_cells = re.search(r"for \(int p3 = 0;", text) is not None
    assert by_cells == (case in APART and case not in THROUGH_VIEWS)
    for shape in shapes:
        for x in kinds_of(shape):
            ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
            found, expected = new(ours), original(theirs)
            upstream = torch.randn(expected.shape)
            expected.backward(upstream)
            found.backward(upstream)
            # where windows overlap, the order of a sum is ours
            exact = {"rtol": 0, "atol": 0} if case in APART else {"rtol": 1e-6, "atol": 1e-6}
            torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True, **exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_halves(tmp_path: Path, dtype: torch.dtype) -> None:
    _, _, original, new = made_of(problem_of(tmp_path, "F.max_pool2d(x * 1.5, 2)", IMAGES[0], dtype), gradients=True)
    for shape in IMAGES:
        for x in kinds_of(shape):
            ours, theirs = x.to(dtype).requires_grad_(), x.to(dtype).requires_grad_()
            upstream = torch.randn(original(theirs).shape).to(dtype)
            original(theirs).backward(upstream)
            new(ours).backward(upstream)
            torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


def test_channels_last_in_memory(tmp_path: Path) -> None:
    _, _, original, new = made_of(problem_of(tmp_path, "torch.sin(F.max_pool2d(x, 2))", IMAGES[0]), gradients=True)
    x = torch.randn(IMAGES[1]).contiguous(memory_format=torch.channels_last)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    original(theirs).sum().backward()
    new(ours).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


LAYERS = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3, padding=1)

    def forward(self, x):
        return {}


def get_inputs():
    return [torch.rand(16, 8, 32, 32)]


def get_init_inputs():
    return []
"""


def test_positions_take_a_byte_and_windows_are_looked_at_once(tmp_path: Path) -> None:
    """Under a logsumexp over channels: its kernel leaves the pool's values and a byte for each; nobody reads the convolution again."""
    path = tmp_path / "model.py"
    path.write_text(LAYERS.format("torch.logsumexp(F.max_pool2d(self.conv(x), 2), 1)"))
    _, _, emitted = compile_problem(load_problem(path), Options(target="host"))
    backward = emitted.text.split("_CUDA_GRADIENTS = ")[1]
    assert "long long* __restrict__" not in backward and "unsigned char* __restrict__" in backward
    reading = [line for line in backward.splitlines() if "_ptr[" in line and "conv2d" in line and "k1" in line]
    assert len(reading) == 1, reading
