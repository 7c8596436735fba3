"""Adaptive pools as reductions over parts: of any size, even or not, in every type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of
from kernels.test_windows import check, problem_of

from fusewright.driver.pipeline import compile_problem
from fusewright.options import Options

LINE, IMAGE, VOLUME = (3, 4, 61), (3, 4, 18, 23), (2, 3, 9, 10, 11)
POOLS = {
    "uneven": ("F.adaptive_avg_pool2d(x, (3, 5))", IMAGE),
    "even here": ("F.adaptive_avg_pool2d(x, (3, 1))", IMAGE),
    "one dimension as it is": ("F.adaptive_avg_pool2d(x, (None, 1))", IMAGE),
    "along a line": ("F.adaptive_avg_pool1d(x, 3)", LINE),
    "of a volume": ("F.adaptive_avg_pool3d(x, (2, 3, 1))", VOLUME),
    "of something computed": ("torch.tanh(F.adaptive_avg_pool2d(F.relu(x * self.weight + 1), (2, 3)))", IMAGE),
    "maxima": ("F.adaptive_max_pool2d(x, (3, 4))", IMAGE),
    "maxima along a line": ("F.adaptive_max_pool1d(x, 2)", LINE),
    "maxima of a volume": ("F.adaptive_max_pool3d(x, (2, 1, 3))", VOLUME),
    "several": ("(F.adaptive_avg_pool2d(x, (2, 3)), F.adaptive_max_pool2d(x, (2, 3)), F.adaptive_avg_pool2d(x, 2))", IMAGE),
}


def other_sizes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Sizes that the parts do and do not divide, and as few elements as parts, or fewer."""
    batch, channels, *extents = shape
    found = [tuple(n + d for n in extents) for d in range(7)]
    found += [tuple([n] * len(extents)) for n in (2, 3, 4, 5)]
    return [(batch + 1, channels, *sizes) for sizes in found]


@pytest.mark.parametrize("case", POOLS, ids=lambda name: name.replace(" ", "-"))
def test_parts_of_any_size(tmp_path: Path, case: str) -> None:
    forward, shape = POOLS[case]
    exact = "max" in forward and "avg" not in forward
    check(problem_of(tmp_path, forward, shape), [shape, *other_sizes(shape)], torch.float32, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", ["uneven", "maxima"])
def test_halves(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    forward, shape = POOLS[case]
    check(problem_of(tmp_path, forward, shape, dtype), [shape, *other_sizes(shape)], dtype, exact=case == "maxima")


def test_what_is_no_number_and_what_is_infinite(tmp_path: Path) -> None:
    """A NaN is in every part that it lies in, and in no other; a part of minus infinities is that."""
    _, _, original, new = made_of(problem_of(tmp_path, POOLS["several"][0], IMAGE))
    for column in range(IMAGE[-1]):
        x = torch.full(IMAGE, -float("inf"))
        x[1, 2, 9, column] = float("nan")
        with torch.no_grad():
            for found, expected in zip(new(x), original(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_positions_are_pytorch_s(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1] + 1", IMAGE)
    _, plan, _ = compile_problem(problem, Options(gradients=False))
    assert "aten.adaptive_max_pool2d.default" in [str(call.node.target) for call in plan.calls]


def test_short_parts_are_no_reduction(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "F.adaptive_avg_pool2d(x, (9, 7))", IMAGE)
    _, plan, _ = compile_problem(problem, Options(gradients=False))
    assert not any(kernel.is_reduce for kernel in plan.kernels)


def test_positions_whose_products_need_64_bits(tmp_path: Path) -> None:
    """Where the parts begin is a quotient: of something larger than any offset."""
    problem = problem_of(tmp_path, "F.adaptive_avg_pool1d(x, 16000)", (1, 2, 300000))
    check(problem, [(1, 2, size) for size in (300000, 441000, 150001, 320000)], torch.float32, exact=False)
