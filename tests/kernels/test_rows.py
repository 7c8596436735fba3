"""Reduce kernels by rows, planned for large sizes and run on the host at small ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of
from torch import nn

from fusewright.ir.plan import Plan


def made(folder: Path, init: str, forward: str, shape: str) -> tuple[Plan, str, nn.Module, nn.Module]:
    """The plan for these sizes, the emitted text, the original and what was made of it, on the host."""
    return made_of(problem_of(folder, forward, f"torch.randn({shape})", init=init))


def check(original: nn.Module, new: nn.Module, *shape: int) -> None:
    x = torch.randn(*shape)
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "lanes", "rows"),
    [(16, 4, 4096), (32, 8, 4096), (64, 8, 4096), (64, 16, 100), (128, 8, 4096), (128, 32, 100), (256, 16, 4096), (30, 16, 4096)],
)
def test_short_rows_share_a_warp(tmp_path: Path, length: int, lanes: int, rows: int) -> None:
    """30 elements are 15 pairs: 16 threads a row. The last block has rows that are not there. Of many rows, fewer threads have each."""
    plan, text, original, new = made(
        tmp_path, f"self.norm = nn.LayerNorm({length})", "F.silu(self.norm(x))", f"{rows}, 12, {length}"
    )
    assert len(plan.kernels) == 1
    assert f"merge_row<{lanes}>" in text
    check(original, new, 3, 7, length)


@pytest.mark.parametrize("size", [(16, 16), (5, 7), (48, 48), (33, 37)])
def test_rows_of_any_length_stay_in_registers_as_far_as_they_fit(tmp_path: Path, size: tuple[int, int]) -> None:
    """Planned for rows of 1024 elements; shorter ones leave registers empty, what is longer is read again."""
    plan, text, original, new = made(
        tmp_path, "self.norm = nn.InstanceNorm2d(3)", "F.relu(self.norm(x)) + x", "512, 3, 32, 32"
    )
    assert len(plan.kernels) == 1
    assert "(1024 + 32 * VEC - 1) / (32 * VEC)" in text
    check(original, new, 2, 3, *size)


@pytest.mark.parametrize("size", [(160, 160), (31, 37), (150, 151), (171, 172)])
def test_long_rows_go_on_in_shared_memory(tmp_path: Path, size: tuple[int, int]) -> None:
    """Planned for rows of 25600 elements, 16384 of them in registers; what is longer than both is read again."""
    plan, text, original, new = made(
        tmp_path, "self.norm = nn.InstanceNorm2d(8)", "F.relu(self.norm(x)) + x", "128, 8, 160, 160"
    )
    assert len(plan.kernels) == 1
    assert "__launch_bounds__(512, 2)" in text and "MORE = (9216 + 512 * VEC - 1) / (512 * VEC)" in text
    check(original, new, 1, 8, *size)


def test_long_rows_of_a_known_length(tmp_path: Path) -> None:
    """The last threads of a block have nothing in the last step, or what is kept ends before the row does."""
    for length in (20001, 60000):
        _, text, original, new = made(tmp_path, "pass", "torch.softmax(x, dim=1) * 2.0 + x", f"1024, {length}")
        assert "MORE" in text
        check(original, new, 3, length)


def test_short_rows_that_are_only_reduced(tmp_path: Path) -> None:
    _, text, original, new = made(tmp_path, "self.k = 2.0", "torch.logsumexp(x, dim=-1) * self.k", "4096, 12, 24")
    assert "merge_row<8>" in text
    check(original, new, 3, 7, 24)


@pytest.mark.parametrize(
    ("init", "forward", "shape", "small"),
    [
        ("self.norm = nn.GroupNorm(256, 8192)", "F.silu(self.norm(x)) * 2.0", "1024, 8192", (3, 8192)),
        ("self.norm = nn.GroupNorm(8, 64)", "F.gelu(self.norm(x)) + x", "128, 64, 32, 32", (3, 64, 5, 7)),
        ("self.norm = nn.GroupNorm(8, 64)", "F.gelu(self.norm(x)) + x", "128, 64, 32, 32", (3, 64, 4, 8)),
        ("self.norm = nn.InstanceNorm2d(1)", "self.norm(x[:, None, None])[:, 0, 0] + x", "1024, 4096", (3, 4096)),
        ("self.k = 0.5", "torch.softmax(x, dim=1).flatten(2) * self.k", "64, 16, 128, 128", (3, 16, 5, 7)),
    ],
)
def test_what_follows_a_norm_is_written_where_its_statistics_are_made(
    tmp_path: Path, init: str, forward: str, shape: str, small: tuple[int, ...]
) -> None:
    """The kernel's space is cut into groups, the result is not: the same elements in the same order."""
    plan, _, original, new = made(tmp_path, init, forward, shape)
    assert [len(kernel.stores) for kernel in plan.kernels] == [1]
    check(original, new, *small)


@pytest.mark.parametrize("length", [1024, 1500, 2048, 5000, 9000, 16384])
def test_rows_longer_than_a_warp_have_blocks_of_their_own(tmp_path: Path, length: int) -> None:
    """Threads of different rows must not wait for each other: an odd number of rows leaves none of them hanging."""
    _, _, original, new = made(tmp_path, f"self.norm = nn.LayerNorm({length})", "self.norm(x)", f"4096, {length}")
    check(original, new, 5, length)


def test_partial_accumulators_are_aligned(tmp_path: Path) -> None:
    """Those of 64-bit words begin the workspace, whatever number of rows and pieces there is."""
    _, source, original, new = made(tmp_path, "pass", "(lambda t: (t.amin(1), t.argmax(1)))(torch.tanh(x))", "7, 1 << 20")
    assert "reinterpret_cast<ArgMax*>(partial)" in source and "reinterpret_cast<Min*>(&partial[4u" in source
    x = torch.randn(3, 5001)
    with torch.no_grad():
        assert all(map(torch.equal, new(x)[1:], original(x)[1:]))


@pytest.mark.parametrize("shape", ["7, 1 << 20", "16, 4096, 1024"])
def test_a_largest_value_is_where_it_is(tmp_path: Path, shape: str) -> None:
    """One accumulator for both; a NaN is the largest of all, and the first of equals counts."""
    _, source, original, new = made(tmp_path, "pass", "(*torch.max(x, dim=1), *torch.min(x, dim=1))", shape)
    assert not {"Max", "Min"} & set(source.partition("_kernel(")[2].split())
    x = torch.randint(-9, 9, (3, 501) if shape.count(",") == 1 else (2, 501, 24)).float()
    x[0, 400], x[1, 7:] = torch.nan, -torch.inf
    with torch.no_grad():
        for a, b in zip(new(x), original(x), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_many_rows_of_a_plan_for_few(tmp_path: Path) -> None:
    """Rows are counted along a grid's first dimension: the others end at 65535."""
    _, source, original, new = made(tmp_path, "pass", "torch.tanh(x).sum(1)", "8, 1 << 18")
    assert "<<<dim3(rows, " in source
    check(original, new, 300, 40)


def test_a_part_of_no_elements(tmp_path: Path) -> None:
    """As an exclusive running sum along a dimension of one has it."""
    forward = "torch.cumsum(torch.cat((torch.zeros_like(y.narrow(2, 0, 1)), y.narrow(2, 0, y.shape[2] - 1)), 2), 2)"
    forward = f"(lambda y: {forward})(torch.cat((torch.cummax(x.norm(dim=2, keepdim=True), 1).values, x.norm(dim=2, keepdim=True)), 0))"
    _, _, original, new = made(tmp_path, "pass", forward, "17, 7, 12")
    check(original, new, 3, 7, 12)


def test_few_long_rows_that_are_written_too_are_shared_by_blocks(tmp_path: Path) -> None:
    """64 channels are 64 rows: as many blocks would leave half of a GPU idle, whether the rows are only added up or written on the way."""
    init, forward = "self.scale = nn.Parameter(torch.randn(64, 1, 1))", "(lambda y: (y, y.sum((0, 2, 3))))(torch.tanh(x * self.scale))"
    plan, text, original, new = made(tmp_path, init, forward, "128, 64, 126, 126")
    assert len(plan.kernels) == 1
    assert "<<<dim3(rows, 8), 256, 0, " in text
    x = torch.randn(3, 64, 7, 6)
    with torch.no_grad():
        for found, expected in zip(new(x), original(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
