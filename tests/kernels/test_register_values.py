"""Rows that stay in registers: what takes long to compute of them is computed once, and the results are the same."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from kernels.test_rows import check, made


def kernel_of(text: str) -> str:
    """The first kernel's own lines."""
    return text.partition("_kernel(")[2].partition("\n}\n")[0]


@pytest.mark.parametrize(
    ("forward", "shape", "function", "kept"),
    [
        ("torch.softmax(x * 2, -1)", (64, 512), "expf", "softmax_exp_row"),
        ("torch.softmax(F.gelu(x), -1)", (64, 512), "erff", "gelu_row"),
        ("F.layer_norm(F.gelu(x), (768,))", (64, 768), "erff", "gelu_row"),
        ("torch.softmax(x, -1)", (64, 96), "expf", "softmax_exp_row"),
        ("torch.softmax(x, -1)", (64, 20), "expf", "softmax_exp_row"),
        ("F.layer_norm(torch.exp(x), (501,))", (64, 501), "expf", "exp_row"),  # no vectors
    ],
)  # fmt: skip
def test_computed_once(tmp_path: Path, forward: str, shape: tuple[int, int], function: str, kept: str) -> None:
    plan, text, original, new = made(tmp_path, "pass", forward, ", ".join(map(str, shape)))
    body = kernel_of(text)
    in_loops = body.count(f"{function}(") - body.partition("what is not kept")[2].count(f"{function}(")
    assert len(plan.kernels) == 1 and re.search(rf"\b{kept}\[STEPS\]", body), body
    assert in_loops <= 3, "one of the row that is kept; one for what would be longer, in each pass"
    check(original, new, 5, shape[1])


def test_needed_twice_and_cheap_stays_with_its_operands(tmp_path: Path) -> None:
    _, text, original, new = made(tmp_path, "pass", "F.layer_norm(x + 1, (512,))", "64, 512")
    assert "add_row" not in text
    check(original, new, 5, 512)


def test_other_uses_of_the_row_keep_it(tmp_path: Path) -> None:
    """With x wanted in the last pass too, both would have to stay."""
    _, text, original, new = made(tmp_path, "pass", "F.layer_norm(F.gelu(x), (512,)) + x", "64, 512")
    assert "gelu_row" not in text
    check(original, new, 5, 512)


@pytest.mark.parametrize("length", [512, 24, 700, 2000])
def test_rows_of_other_lengths_than_planned(tmp_path: Path, length: int) -> None:
    _, _, original, new = made(tmp_path, "pass", "torch.softmax(x.flatten(0, 1) * 2, -1)", "64, 3, 512")
    check(original, new, 4, 3, length)


def test_softmax_of_what_is_not_finite(tmp_path: Path) -> None:
    _, _, original, new = made(tmp_path, "pass", "torch.softmax(x, -1)", "64, 512")
    x = torch.randn(7, 512)
    x[0, 3], x[1, 5], x[2, 7], x[3] = math.inf, -math.inf, math.nan, -math.inf
    x[4], x[5] = 1e38, -1e38
    x[6, ::2] = -3e38
    torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize(
    ("forward", "shape"),
    [
        ("x.amax(-1)", (300, 4)),
        ("x.sum(-1)", (300, 3)),
        ("torch.softmax(x, -1)", (300, 4)),
        ("F.layer_norm(x, (3,))", (300, 3)),
        ("x.unfold(1, 4, 2).amax(-1)", (30, 24)),
        ("torch.logsumexp(x, -1) * 2", (300, 2)),
        ("x.argmax(-1)", (300, 4)),
    ],
)
def test_one_thread_for_the_shortest_rows(tmp_path: Path, forward: str, shape: tuple[int, int]) -> None:
    _, text, original, new = made(tmp_path, "pass", forward, ", ".join(map(str, shape)))
    assert "merge_row<" not in kernel_of(text)
    check(original, new, 131, shape[1])


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("centre", [0.0, -9.0, 1e4])
def test_logarithms_of_sums_of_exponentials(tmp_path: Path, spread: float, centre: float) -> None:
    _, text, _, new = made(tmp_path, "pass", "torch.logsumexp(x, -1)", "512, 8192")
    assert "FastLogSumExp" in text
    x = torch.randn(6, 8192) * spread + centre
    expected = torch.logsumexp(x.double(), -1)
    room = 4e-7 * (1.0 + math.log(8192)) + 1.2e-7 * expected.abs()
    assert ((new(x).double() - expected).abs() <= room).all()
