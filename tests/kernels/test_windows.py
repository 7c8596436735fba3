"""Pools, and what else is read through windows, with several rows to a thread: at any size, along edges, in every type."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of, weight_of

from fusewright.codegen.loops import pointwise
from fusewright.frontend.problem import Problem

LINE, IMAGE, VOLUME = (3, 4, 17), (3, 4, 18, 13), (2, 3, 9, 10, 11)
MAXIMA = {  # that are the same bits as PyTorch's
    "padded": ("F.max_pool2d(x, 3, 2, 1)", IMAGE),
    "side by side": ("F.max_pool2d(x, 2)", IMAGE),
    "apart": ("F.max_pool2d(x, 2, 3)", IMAGE),
    "every row": ("F.max_pool2d(x, 3, 1, 1)", IMAGE),
    "dilated": ("F.max_pool2d(x, 3, 2, 1, 2)", IMAGE),
    "dilated by as much as the stride is odd": ("F.max_pool2d(x, (2, 3), (3, 1), (1, 0), (2, 1))", IMAGE),
    "with a part of a window at the end": ("F.max_pool2d(x, 3, 2, ceil_mode=True)", IMAGE),
    "padded, with a part of a window at the end": ("F.max_pool2d(x, 3, 2, 1, ceil_mode=True)", IMAGE),
    "of columns": ("F.max_pool2d(x, (3, 1), (2, 1), (1, 0))", IMAGE),
    "of lines": ("F.max_pool2d(x, (1, 3), (1, 2), (0, 1))", IMAGE),
    "wide": ("F.max_pool2d(x, (2, 11), (2, 2), (1, 5))", IMAGE),
    "along a line": ("F.max_pool1d(x, 5, 2, 2, 3)", LINE),
    "along a line, with a part of a window at the end": ("F.max_pool1d(x, 3, 2, ceil_mode=True)", LINE),
    "of a volume": ("F.max_pool3d(x, 3, 2, 1)", VOLUME),
    "of a volume, with a part of a window at the end": ("F.max_pool3d(x, 3, 2, 1, ceil_mode=True)", VOLUME),
    "of a volume's rows": ("F.max_pool3d(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))", VOLUME),
}
SUMS = {
    "padding that counts": ("F.avg_pool2d(x, 3, 2, 1)", IMAGE),
    "padding that does not": ("F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)", IMAGE),
    "padding that does not, and a part of a window": ("F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)", IMAGE),
    "no padding": ("F.avg_pool2d(x, (3, 2), (2, 2))", IMAGE),
    "along a line": ("F.avg_pool1d(x, 4, 2, 1)", LINE),
    "of a volume": ("F.avg_pool3d(x, 2)", VOLUME),
    "of a volume, padded": ("F.avg_pool3d(x, 3, 2, 1, count_include_pad=False)", VOLUME),
    "of something computed": ("F.avg_pool2d(F.relu(x * self.weight + 1), 3, 2, 1)", IMAGE),
    "and something made of it": ("torch.sigmoid(F.avg_pool2d(x, 3, 1)) * x[:, :, 2:, 2:]", IMAGE),
    "two pools of one thing": ("F.max_pool2d(x * self.weight, 2) - F.avg_pool2d(x, 2)", IMAGE),
    "two results": ("(lambda y: (y * 2, y + self.weight))(F.max_pool2d(x, 3, 2, 1))", IMAGE),
    "the same for every row": ("F.avg_pool1d(x.mean((0, 1), keepdim=True), 3, 1, 1) + x", LINE),
}
PLACES = {
    "pads": ("F.pad(x, (1, 2, 3, 0), value=0.5) + F.pad(x * 2, (1, 2, 2, 1), mode='reflect')", IMAGE),
    "joined": ("torch.cat((torch.tanh(x), x * self.weight), 1) * 2", IMAGE),
    "joined along the last": ("torch.cat((torch.tanh(x), x), -1) * 2", IMAGE),
    "a mirrored part put at some place": ("F.pad(F.pad(x, (1, 2, 1, 1), mode='reflect') + 1, (2, 1, 1, 0)) * 2", IMAGE),
    "moved on": ("torch.roll(F.pad(x, (1, 1)), 1, -1) * self.weight", LINE),
}


@pytest.fixture(autouse=True)
def rows_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "resident", lambda machine: 0)


def problem_of(folder: Path, forward: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Problem:
    """A model of one tensor, with a weight for each channel."""
    return frame.problem_of(folder, forward, f"torch.randn({shape}).to({dtype})", init=weight_of(shape))


def other_sizes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Rows that a thread's do and do not divide; one column, or as few as a window can be laid over."""
    batch, channels, *extents = shape
    found = [tuple(n + d for n in extents) for d in range(4)]
    found += [(*extents[:-1], 1), (*extents[:-1], 3), tuple(min(n, 4) for n in extents)]
    return [(batch + 1, channels, *sizes) for sizes in found]


def results(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(problem: Problem, shapes: list[tuple[int, ...]], dtype: torch.dtype, exact: bool) -> str:
    """Every shape that PyTorch takes, against PyTorch; the emitted text."""
    plan, text, original, new = made_of(problem)
    assert plan.kernels and not plan.calls, [str(call.node.target) for call in plan.calls]
    tested = 0
    for shape in shapes:
        x = torch.randn(shape).to(dtype)
        with torch.no_grad():
            try:
                expected = original(x)
            except (RuntimeError, ValueError):
                continue  # windows larger than what they are laid over
            found = new(x)
        tested += 1
        for e, f in zip(results(expected), results(found), strict=True):
            if exact:
                assert torch.equal(e, f), shape
            else:
                torch.testing.assert_close(f, e)
    assert tested >= 4
    return text


@pytest.mark.parametrize("case", MAXIMA, ids=lambda name: name.replace(" ", "-"))
def test_maxima_are_the_same_bits(tmp_path: Path, case: str) -> None:
    forward, shape = MAXIMA[case]
    text = check(problem_of(tmp_path, forward, shape), [shape, *other_sizes(shape)], torch.float32, exact=True)
    assert "ROWS" in text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", SUMS | PLACES, ids=lambda name: name.replace(" ", "-"))
def test_other_windows(tmp_path: Path, case: str) -> None:
    forward, shape = (SUMS | PLACES)[case]
    text = check(problem_of(tmp_path, forward, shape), [shape, *other_sizes(shape)], torch.float32, exact=False)
    assert "ROWS" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("forward", "shapes"),
    [
        ("x + 2 * x.transpose(1, 2)", [(3, 40, 40), (2, 64, 64), (3, 37, 37), (2, 4, 4), (5, 8, 8)]),
        ("x.permute(0, 2, 3, 1) * 2 + self.weight.view(-1)", [(2, 40, 6, 32), (3, 40, 5, 40), (2, 40, 3, 7), (2, 40, 2, 8)]),
        ("(x.transpose(1, 2) * 2, x.transpose(1, 2) + 1)", [(3, 40, 48), (2, 40, 33), (2, 40, 8), (3, 40, 3)]),
    ],
)
def test_transposes(tmp_path: Path, forward: str, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    """A thread takes a sector of what lies across, where sizes allow it."""
    text = check(problem_of(tmp_path, forward, shapes[0], dtype), shapes, dtype, exact=False)
    assert "(item * VEC >= elements)" in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("forward", "shapes"),
    [
        ("x + 2 * x.transpose(1, 2)", [(2, 256, 256), (1, 264, 264), (3, 136, 136), (2, 270, 270), (2, 37, 37), (2, 2, 2)]),
        ("x.transpose(1, 2) * 2", [(2, 256, 264), (3, 256, 128), (2, 256, 300), (2, 256, 33)]),
        ("(x.permute(0, 2, 3, 1) * 2, x.permute(0, 2, 3, 1) + 1)", [(2, 256, 3, 136), (3, 256, 2, 128), (2, 256, 5, 131), (2, 256, 2, 9)]),
    ],
)
def test_long_transposes(tmp_path: Path, forward: str, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    """A block takes a square piece: whole ones, and those that reach beyond an end."""
    text = check(problem_of(tmp_path, forward, shapes[0], dtype), shapes, dtype, exact=False)
    assert "threadIdx.x % 32;" in text and "threadIdx.x / 32) * VEC;" in text


def test_a_transpose_that_no_sector_divides(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "x.mT * 2 + self.weight.view(-1)[0]", (2, 33, 35))
    text = check(problem, [(2, 33, n) for n in (35, 33, 8, 2)], torch.float32, exact=False)
    assert "ROWS" in text or "VEC" in text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("forward", ["F.max_pool2d(x, 3, 2, 1)", "F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)"])
def test_halves(tmp_path: Path, forward: str, dtype: torch.dtype) -> None:
    problem = problem_of(tmp_path, forward, IMAGE, dtype)
    check(problem, [IMAGE, *other_sizes(IMAGE)], dtype, exact="max" in forward)


def test_what_is_no_number_and_what_is_infinite(tmp_path: Path) -> None:
    """NaN where a window holds one, also at the edges; a window of minus infinities is that."""
    _, _, original, new = made_of(problem_of(tmp_path, "F.max_pool2d(x, 3, 2, 1)", IMAGE))
    for row, column, value in itertools.product((0, 5, 17), (0, 6, 12), (float("nan"), float("inf"))):
        x = torch.full(IMAGE, -float("inf"))
        x[1, 2, row, column] = value
        with torch.no_grad():
            torch.testing.assert_close(new(x), original(x), rtol=0, atol=0, equal_nan=True)
