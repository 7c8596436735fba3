"""Pools with several rows and columns to a thread: vectors where rows begin at whole ones, single loads elsewhere."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from kernels.frame import made_of
from kernels.test_windows import IMAGE, LINE, MAXIMA, SUMS, VOLUME, check, other_sizes, problem_of

from fusewright.codegen.loops import pointwise
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

CASES = {f"maxima {name}": case for name, case in MAXIMA.items()} | {f"sums {name}": case for name, case in SUMS.items()}
CASES |= {
    "maxima of four by four": ("F.max_pool2d(x, 4, 4)", IMAGE),
    "maxima of five by two": ("F.max_pool2d(x, 5, 2, 2)", IMAGE),
    "maxima along a padded line": ("F.max_pool1d(x, 3, 2, 1, ceil_mode=True)", LINE),
    "sums of what differs by row and by column": ("F.avg_pool2d(x * x.amax(3, keepdim=True) + x[0, 0, 0], 3, 2, 1)", IMAGE),
    "sums of a part": ("F.avg_pool2d(x[:, :, 1:, 3:], 3, 2, 1)", IMAGE),
    "maxima of what is transposed": ("F.max_pool2d(x.transpose(2, 3), 3, 2, 1)", IMAGE),
}


@pytest.fixture(autouse=True)
def columns_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "resident", lambda machine: 0)
    monkeypatch.setattr(pointwise, "BUSY", 0)


def widths(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Rows of whole vectors, of one, and of fewer elements."""
    return [(*shape[:-1], width) for width in (16, 20, 24, 8, 4, 2)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_any_size(tmp_path: Path, case: str) -> None:
    forward, shape = CASES[case]
    exact = case.startswith("maxima")
    check(problem_of(tmp_path, forward, shape), [shape, *other_sizes(shape), *widths(shape)], torch.float32, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["maxima padded", "sums padding that does not, and a part of a window", "sums of something computed"])
def test_halves(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    forward, shape = CASES[case]
    check(problem_of(tmp_path, forward, shape, dtype), [shape, *other_sizes(shape), *widths(shape)], dtype, exact="maxima" in case)


@pytest.mark.parametrize(
    ("forward", "shape", "columns", "vector"),
    [
        ("F.max_pool3d(x, 3, 2, 1)", VOLUME, 2, 4),
        ("F.max_pool2d(x, 2)", IMAGE, 2, 4),
        ("F.avg_pool1d(x, 4, 2, 1)", LINE, 2, 4),
        ("F.max_pool2d(x, 3, 1, 1)", IMAGE, None, None),
        ("F.max_pool2d(x, (3, 1), (2, 1), (1, 0))", IMAGE, None, None),
        ("F.max_pool2d(x.transpose(2, 3), 3, 2, 1)", IMAGE, None, None),
    ],
)
def test_which_pools_have_columns(
    tmp_path: Path, forward: str, shape: tuple[int, ...], columns: int | None, vector: int | None
) -> None:
    text = compile_problem(problem_of(tmp_path, forward, shape), Options(gradients=False))[2].text
    assert (f"COLUMNS = {columns};" in text and f"_kernel<int, {vector}>" in text) if columns else "COLUMNS" not in text


def test_only_where_caches_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    volume = problem_of(tmp_path, "F.max_pool3d(x, 3, 2, 1)", (8, 32, 64, 64, 64))
    assert "COLUMNS" in compile_problem(volume, Options(gradients=False))[2].text
    image = problem_of(tmp_path, "F.max_pool2d(x, 3, 2, 1)", (32, 64, 224, 224))
    assert "COLUMNS" not in compile_problem(image, Options(gradients=False))[2].text


def test_rows_that_begin_at_no_whole_vector(tmp_path: Path) -> None:
    """A tensor from anywhere in its storage: single loads, the same values."""
    shape = (2, 3, 9, 16)
    _, _, original, new = made_of(problem_of(tmp_path, "F.max_pool2d(x, 3, 2, 1)", shape))
    for start in range(6):
        x = torch.randn(start + 2 * 3 * 9 * 16)[start:].view(shape)
        with torch.no_grad():
            assert torch.equal(new(x), original(x)), start


@pytest.mark.parametrize("forward", ["F.max_pool2d(x, 3, 2, 1)", "F.max_pool2d(x, 3, 2, 1, ceil_mode=True)"])
def test_what_is_no_number_and_what_is_infinite(tmp_path: Path, forward: str) -> None:
    """NaN where a window holds one, also at the edges; a window of minus infinities is that."""
    for width in (12, 13):
        shape = (3, 4, 18, width)
        _, _, original, new = made_of(problem_of(tmp_path, forward, shape))
        for row, column, value in itertools.product((0, 5, 17), (0, 3, 4, 7, width - 1), (float("nan"), float("inf"))):
            x = torch.full(shape, -float("inf"))
            x[1, 2, row, column] = value
            with torch.no_grad():
                torch.testing.assert_close(new(x), original(x), rtol=0, atol=0, equal_nan=True)


def test_a_value_called_as_the_loop_over_columns(tmp_path: Path) -> None:
    problem_of(tmp_path, "F.max_pool2d(x, 3, 2, 1) * self.weight", IMAGE)
    file = tmp_path / "model.py"
    file.write_text(file.read_text().replace("weight", "c"))
    check(load_problem(file), [IMAGE, *widths(IMAGE)], torch.float32, exact=True)
