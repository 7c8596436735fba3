"""Kernels that are right give the right results, in every order of threads."""

from __future__ import annotations

import math
import random
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from host_sources import PRELUDE, RIGHT
from on_gpu import GpuLibrary, build

from fusewright.host import ORDERS, HostLibrary, compile_host
from fusewright.host.compile import _FLAGS


@pytest.fixture(params=[*ORDERS, pytest.param("on a GPU", marks=pytest.mark.gpu)])
def kernels(right: HostLibrary, request: pytest.FixtureRequest) -> Any:
    """The same kernels with their threads in each order, and by nvcc on a GPU: every wrapper of the prelude is among them."""
    if request.param == "on a GPU":
        return request.getfixturevalue("right_on_gpu")
    right.set_order(request.param, seed=7)
    return right


@pytest.fixture(scope="session")
def right_on_gpu() -> GpuLibrary:
    return GpuLibrary()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_takes_the_same_source(tmp_path: Path) -> None:
    assert build(tmp_path, "sm_90").exists()


def test_pointwise_with_a_tail(kernels: HostLibrary) -> None:
    for n in (1, 3, 4, 1023, 1024, 100_003):
        x, y = torch.randn(n), torch.full((n + 1,), -1.0)
        kernels.call("gelu", x, y, n)
        torch.testing.assert_close(y[:n], torch.nn.functional.gelu(x))
        assert y[n] == -1.0


def test_blocks_on_several_os_threads_give_the_same(right: HostLibrary) -> None:
    x = torch.randn(300_000)
    y = torch.empty_like(x)
    for workers in (1, 2, 5, 100):
        right.set_order("warps", seed=3, workers=workers)
        right.call("relu", x, y.zero_(), len(x))
        assert torch.equal(y, x.relu())


@pytest.mark.parametrize("threads", [128, 256, 1024])
def test_block_reduction(kernels: HostLibrary, threads: int) -> None:
    x = torch.randn(37, 501)
    half = x.half()
    y = torch.empty(37)
    kernels.call("row_sum", x, half, y, 37, 501, threads)
    expected = half.double().sum(1) if threads == 256 else x.double().sum(1)
    torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=0)


def test_dynamic_shared_memory_above_48_kib(kernels: HostLibrary) -> None:
    for n in (1, 100, 25_000, 57_000):
        x = torch.randn(n)
        y = torch.empty(n)
        kernels.call("reverse", x, y, n)
        assert torch.equal(y, x.flip(0))


def test_atomics(kernels: HostLibrary) -> None:
    x = torch.randint(1, 15, (100_000,), dtype=torch.int32)
    bins, extremes = torch.zeros(16, dtype=torch.int32), torch.tensor([100, -100], dtype=torch.int32)
    kernels.call("histogram", x, bins, extremes, len(x))
    assert bins.tolist() == torch.bincount(x, minlength=16).tolist()
    assert extremes.tolist() == [1, 14]


def test_last_block_adds_the_partial_sums(kernels: HostLibrary) -> None:
    x, partial, y = torch.randn(50_000), torch.empty(300), torch.empty(1)
    kernels.call("total", x, partial, torch.zeros(1, dtype=torch.int32), y, len(x), 300)
    torch.testing.assert_close(y[0].double(), x.double().sum(), atol=1e-3, rtol=0)


def test_shuffles_of_every_kind_and_type(kernels: HostLibrary) -> None:
    types = (torch.float32, torch.int32, torch.int32, torch.int64, torch.float64)
    outputs = [torch.zeros(5, 32, dtype=dtype) for dtype in types]
    kernels.call("shuffles", *outputs)
    lanes = range(32)
    sources = [
        [7 for _ in lanes],
        [lane // 8 * 8 + (lane + 1) % 8 for lane in lanes],
        [lane - 2 if lane >= 2 else lane for lane in lanes],
        [lane + 3 if lane % 16 < 13 else lane for lane in lanes],
        [lane ^ 5 for lane in lanes],
    ]
    expected = [[3 * source + 1 for source in row] for row in sources]
    for output in outputs:
        assert output.tolist() == expected


def test_votes_in_a_block_of_one_and_a_half_warps(kernels: HostLibrary) -> None:
    out = torch.zeros(6, 48, dtype=torch.int32)
    kernels.call("votes", out)
    thirds = sum(1 << lane for lane in range(0, 32, 3))
    ballot, any_, all_, count, or_and, in_group = out.tolist()
    assert [value & 0xFFFFFFFF for value in ballot] == [thirds] * 32 + [thirds & 0xFFFF] * 16
    assert any_ == [0] * 32 + [1] * 16
    assert all_ == [1] * 32 + [0] * 16
    assert count == [10] * 48
    assert or_and == [2] * 48
    assert in_group == [8] * 8 + [24] * 24 + [8] * 16


def test_three_dimensions(kernels: HostLibrary) -> None:
    out = torch.full((12, 60), -1, dtype=torch.int32)
    kernels.call("where", out)
    assert torch.equal(out, torch.arange(12).int()[:, None] * 1000 + torch.arange(60).int())


def test_functions_of_the_device(right: HostLibrary) -> None:
    x = torch.tensor([0.25, 1.0, 3.0, 0.7])
    out = torch.empty(25, 4)
    right.call("functions", x, out, 4)
    rows = [
        x.rsqrt(), x.exp(), x.log(), x.exp2(), 1 / x, 1 / x, x.tanh(), torch.special.ndtr(x), x, x, x, x.clamp(0, 1),
        x.log1p(), x**1.5, x.rsqrt(), x * x + 1, x, torch.full((4,), math.inf),
    ]  # fmt: skip
    rows += [torch.full((4,), float(value)) for value in (3, 7, 8, 31, 4, 2, 3)]
    torch.testing.assert_close(out, torch.stack(rows), rtol=3e-7, atol=0)


# ---- two-byte floats, bit for bit as torch converts them


def awkward_floats() -> torch.Tensor:
    """Every half and bfloat16, what lies halfway between neighbours, a little to either side, and random bits."""
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    values = [every.view(torch.float16).float(), every.view(torch.bfloat16).float()]
    halfway = [(v[:-1].double() + v[1:].double()).div(2).float() for v in values]
    around = torch.cat([*values, *halfway])
    bits = around.view(torch.int32)
    anything = torch.randint(-(2**31), 2**31, (300_000,), generator=torch.Generator().manual_seed(0)).int()
    return torch.cat([bits, bits + 1, bits - 1, anything]).view(torch.float32)


def test_float_to_half_and_bfloat16(right: HostLibrary) -> None:
    x = awkward_floats()
    half, bfloat16 = torch.empty_like(x, dtype=torch.float16), torch.empty_like(x, dtype=torch.bfloat16)
    right.call("to_small", x, half, bfloat16, len(x))
    number = ~x.isnan()
    assert torch.equal(half[number].view(torch.int16), x.half()[number].view(torch.int16))
    assert torch.equal(bfloat16[number].view(torch.int16), x.bfloat16()[number].view(torch.int16))
    assert half[~number].isnan().all() and bfloat16[~number].isnan().all()


def test_half_and_bfloat16_to_float(right: HostLibrary) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    half, bfloat16 = every.view(torch.float16), every.view(torch.bfloat16)
    x, y = torch.empty(65536), torch.empty(65536)
    right.call("from_small", half, bfloat16, x, y, 65536)
    assert torch.equal(x.nan_to_num(nan=9.9), half.float().nan_to_num(nan=9.9))
    assert torch.equal(y.nan_to_num(nan=9.9), bfloat16.float().nan_to_num(nan=9.9))


# ---- cp.async


def test_double_buffered_copies(kernels: HostLibrary) -> None:
    for n in (4, 256, 260, 4000):
        x, y = torch.randn(n), torch.empty(64)
        kernels.call("async_sum", x, y, n)
        padded = torch.nn.functional.pad(x, (0, -n % 256)).view(-1, 64, 4)
        torch.testing.assert_close(y, padded.sum((0, 2)).roll(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("order", ["warps", "forward", "backward", "random"])
def test_barriers_of_some_threads(kernels: HostLibrary, order: str) -> None:
    kernels.set_order(order, seed=1)
    for rounds in (1, 2, 5):
        x, y = torch.randn(rounds, 32), torch.empty(64)
        kernels.call("handed_on", x, y, rounds)
        torch.testing.assert_close(y, torch.cat([x.sum(0), x.sum(0).flip(0)]))


# ---- tensor cores


def tf32(x: torch.Tensor) -> torch.Tensor:
    """To nearest, ties away from zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_rounding_to_tf32(right: HostLibrary) -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.tensor(
        [1.0, 1 + 2**-11, 1 + 2**-11 - 2**-23, -1 - 2**-11, largest, math.inf, -math.inf, 0.0, -0.0, 1e-40]
    )
    nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    x = torch.cat([x, nans])
    y = torch.empty_like(x)
    right.call("round_tf32", x, y, len(x))
    assert y[:4].tolist() == [1.0, 1 + 2**-10, 1.0, -1 - 2**-10]
    assert y[4:7].tolist() == [math.inf, math.inf, -math.inf]
    assert torch.equal(y[7:10], tf32(x[7:10]))
    assert y[10:].isnan().all()


def exponent(x: Fraction) -> int:
    """Of the leading bit of a float that is normal or zero."""
    return math.frexp(float(x))[1] - 1 if x else -1000


def tensor_core(a: list[Fraction], b: list[Fraction], c: Fraction) -> float:
    """One element of d = a b + c by the documented model, in exact arithmetic."""
    places = [exponent(x) + exponent(y) for x, y in zip(a, b, strict=True)]
    unit = Fraction(2) ** (max(*places, exponent(c)) - 25)
    total = sum(math.trunc(term / unit) for term in [c, *(x * y for x, y in zip(a, b, strict=True))]) * unit
    if total == 0:
        return 0.0
    step = Fraction(2) ** (math.frexp(abs(total))[1] - 24)
    return float(math.trunc(total / step) * step)


def test_truncation_is_the_documented_model(right: HostLibrary) -> None:
    source = random.Random(5)
    for k in (8, 16, 40):
        a = tf32(
            torch.tensor([[source.gauss(0, 1) * 2.0 ** source.randint(-6, 6) for _ in range(k)] for _ in range(16)])
        )
        b = tf32(torch.tensor([[source.gauss(0, 1) for _ in range(8)] for _ in range(k)]))
        a[3] = 0.0
        d = torch.empty(16, 8)
        right.call("gemm_tf32", a, b, d, k, 0)
        for row in range(16):
            for column in range(8):
                expected = 0.0
                for start in range(0, k, 8):
                    left = [Fraction(a[row, i].item()) for i in range(start, start + 8)]
                    upper = [Fraction(b[i, column].item()) for i in range(start, start + 8)]
                    expected = tensor_core(left, upper, Fraction(expected))
                assert d[row, column].item() == expected


def test_products_are_close_to_fp64_and_never_larger(right: HostLibrary) -> None:
    a, b = torch.rand(16, 4096), torch.rand(4096, 8)
    d = torch.empty(16, 8)
    right.call("gemm_tf32", a, b, d, 4096, 1)
    exact = tf32(a).double() @ tf32(b).double()
    steps = 4096 // 8
    relative = (exact - d.double()) / exact
    assert (relative >= 0).all()  # truncation goes one way
    assert relative.max() < steps * 2.0**-22
    assert relative.mean() > 2.0**-22  # and does not average out, as rounding to nearest would


def test_operands_are_truncated_not_rounded(right: HostLibrary) -> None:
    a, b = torch.zeros(16, 8), torch.zeros(8, 8)
    a[:, 0], b[0] = 1 + 2**-10 + 2**-11 + 2**-12, 1.0
    d = torch.empty(16, 8)
    right.call("gemm_tf32", a, b, d, 8, 0)
    assert (d == 1 + 2**-10).all()


def test_not_finite_operands(right: HostLibrary) -> None:
    a, b = torch.ones(16, 16), torch.ones(16, 8)
    a[0, 3], a[1, 3], a[2, 3], a[2, 4], a[4, 0] = math.inf, math.nan, math.inf, -math.inf, math.inf
    b[0, 5] = 0.0
    b[9, 7] = -3e38
    a[5] *= 1e38  # these sums overflow in any order of adding,
    a[5, 9] = 0.0  # where no product is an infinity of the other sign
    d = torch.empty(16, 8)
    right.call("gemm_tf32", a, b, d, 16, 1)
    expected = (tf32(a).double() @ tf32(b).double()).float()
    assert torch.equal(d.isnan(), expected.isnan())
    assert torch.equal(d.isinf(), expected.isinf())
    assert torch.equal(d[d.isinf()], expected[d.isinf()])
    assert (d[6, :7] == expected[6, :7]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_products_through_ldmatrix(kernels: HostLibrary, dtype: torch.dtype) -> None:
    name = "gemm_bf16" if dtype == torch.bfloat16 else "gemm_f16"
    whole_a, whole_b = torch.randint(-9, 9, (16, 64)).to(dtype), torch.randint(-9, 9, (64, 8)).to(dtype)
    d = torch.empty(16, 8)
    kernels.call(name, whole_a, whole_b, d, 64)
    assert torch.equal(d, whole_a.float() @ whole_b.float())
    a, b = torch.randn(16, 256).to(dtype), torch.randn(256, 8).to(dtype)
    kernels.call(name, a, b, d, 256)
    bound = 256 // 16 * 2.0**-21 * (a.double().abs() @ b.double().abs())
    assert ((d.double() - a.double() @ b.double()).abs() <= bound).all()


def test_the_switch_for_other_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no switch in assembly, the C library's is used."""
    monkeypatch.setattr("fusewright.host.compile._FLAGS", ["-DCUDA_ON_CPU_UCONTEXT", *_FLAGS])
    library = HostLibrary(compile_host(RIGHT, include_text=PRELUDE))
    x, y = torch.randn(5, 501), torch.empty(5)
    library.call("row_sum", x, x, y, 5, 501, 128)
    torch.testing.assert_close(y, x.sum(1), atol=1e-4, rtol=0)
    library.call("gelu", x, out := torch.empty_like(x), x.numel())
    torch.testing.assert_close(out, torch.nn.functional.gelu(x))


def test_device_facts(right: HostLibrary) -> None:
    out = torch.zeros(3, dtype=torch.int32)
    right.call("device_facts", out)
    assert out.tolist() == [132, 227 * 1024, 8]
