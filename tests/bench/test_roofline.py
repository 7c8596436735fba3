"""What a model must move, what a GPU can do, and where a kernel stands between the two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fusewright.bench.roofline import (
    Ceilings,
    Work,
    floor_ms,
    is_contraction,
    least_share,
    limit_ms,
    matmul_rate,
    placed,
    rate_kind,
    reached,
    work_of,
)

H200 = Ceilings(4.0e12, 3.9e12, 50e12, 395e12, 741e12, l2_bytes=60_000_000)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x)).sum((2, 3))


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).relu()


class Corner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)[:, :4]


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


def test_work_of_a_convolution() -> None:
    work = work_of(Chain(), [torch.rand(2, 3, 10, 10)])
    assert (work.input_bytes, work.parameter_bytes, work.output_bytes) == (2400, (8 * 27 + 8) * 4, 64)
    assert work.compulsory_bytes == 2400 + 896 + 64
    products, pointwise = 2 * 2 * 8 * 64 * 27, 2 * 8 * 64 * 2
    assert work.flops == products + pointwise
    assert work.eager_bytes > 4 * 4096


def test_the_same_storage_counts_once() -> None:
    x = torch.rand(4, 4)
    work = work_of(Scaled(), [x, x])
    assert (work.input_bytes, work.output_bytes) == (64, 64)


def test_a_view_of_the_input_moves_nothing_more() -> None:
    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[0]

    work = work_of(First(), [torch.rand(4, 4)])
    assert (work.output_bytes, work.eager_bytes) == (0, 0)


def test_which_bytes_a_result_depends_on() -> None:
    assert reached(Chain(), [torch.rand(2, 3, 10, 10)]) == 1.0
    assert reached(Scaled(), [torch.rand(4, 4), torch.rand(4, 4)]) == 1.0
    assert reached(Lookup(), [torch.arange(8)]) < 0.1
    assert reached(Corner(), [torch.rand(4, 64)]) < 0.3


def test_probing_leaves_everything_as_it_was() -> None:
    model, x = Chain(), torch.rand(2, 3, 6, 6)
    before, weight = x.clone(), model.conv.weight.detach().clone()
    reached(model, [x])
    assert torch.equal(x, before) and torch.equal(model.conv.weight, weight)


def test_least_share() -> None:
    assert least_share(16, 16) == 1.0
    assert least_share(0, 16) == 0.0
    assert 0.2 < least_share(8, 16) < 0.5 < least_share(14, 16) < 1.0


def test_floor_and_limit() -> None:
    work = Work(400_000_000, 0, 100_000_000, 10**9, 10**9)
    assert floor_ms(work, H200) == pytest.approx(0.125)
    # 60 MB of the output may still lie in the L2 cache when the call ends
    assert limit_ms(work, H200) == pytest.approx(0.97 * 0.11)
    assert limit_ms(work, H200, share=0.5) == pytest.approx(0.97 * 0.06)
    small = Work(4_000_000, 0, 4_000_000, 0, 0)
    assert limit_ms(small, H200) == pytest.approx(0.97 * 0.001)
    assert (floor_ms(work, Ceilings()), limit_ms(work, Ceilings())) == (None, 0.0)
    assert Ceilings(copy=None, read=3.0).bandwidth == 3.0


def test_a_kernel_against_the_ceilings() -> None:
    here = placed(0.25, 500_000_000, 5_000_000_000, "fp32", H200)
    assert here.bytes_a_second == pytest.approx(2e12) and here.bandwidth_share == pytest.approx(0.5)
    assert here.rate_share == pytest.approx(0.4) and here.floor_ms == pytest.approx(0.125)
    assert placed(0.25, 10, 5_000_000_000, "fp32", H200).floor_ms == pytest.approx(0.1)
    unknown = placed(1.0, 10, 10, "fp32", Ceilings())
    assert (unknown.bandwidth_share, unknown.rate_share, unknown.floor_ms) == (None, None, None)


@pytest.mark.parametrize(
    ("dtype", "replaces", "flags", "kind"),
    [
        (torch.float32, ["conv2d", "tanh"], (True, False), "tf32"),
        (torch.float32, ["conv2d"], (False, True), "fp32"),
        (torch.float32, ["linear"], (True, False), "fp32"),
        (torch.float32, ["addmm"], (True, True), "tf32"),
        (torch.bfloat16, ["matmul"], (False, False), "bf16"),
        (torch.bfloat16, ["softmax"], (True, True), "fp32"),
        (torch.float32, ["tanh", "logsumexp"], (True, True), "fp32"),
    ],
)
def test_which_arithmetic_a_kernel_may_use(
    dtype: torch.dtype, replaces: list[str], flags: tuple[bool, bool], kind: str
) -> None:
    assert rate_kind(dtype, replaces, *flags) == kind


def test_contractions() -> None:
    assert is_contraction(["relu", "conv_transpose2d"]) and not is_contraction(["relu", "group_norm"])


@pytest.mark.parametrize("tf32", [True, False])
def test_measuring_puts_the_precision_flag_back(tf32: bool) -> None:
    flags = torch.backends.cuda.matmul
    before = getattr(flags, "fp32_precision", None), flags.allow_tf32
    seen = []

    def timed(call: Callable[[], object]) -> float:
        call()
        seen.append(flags.fp32_precision if hasattr(torch.backends, "fp32_precision") else flags.allow_tf32)
        return 2.0

    rate = matmul_rate(torch.device("cpu"), timed, torch.float32, 16, tf32=tf32)
    assert rate == pytest.approx(2 * 16**3 / 2e-3)
    assert set(seen) <= ({"tf32", True} if tf32 else {"ieee", False})
    assert (getattr(flags, "fp32_precision", None), flags.allow_tf32) == before
