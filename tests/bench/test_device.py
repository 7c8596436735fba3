"""What is read from a candidate's text, from a profile and from nvidia-smi."""

from __future__ import annotations

import pytest
import torch

from fusewright.bench.gpu import (
    Span,
    busy_ms,
    by_kernel,
    flags,
    label,
    own_functions,
    parsed_clocks,
    plain_name,
    versions,
)

CUDA = """
template <typename Index, int VEC>
__global__ void __launch_bounds__(256, (1 + 1)) rows_kernel(const float* __restrict__ x) {}

extern "C" const char* rows(const float* x, void* stream) {
  const auto launch = [&](auto variant, dim3 grid) { variant<<<grid, dim3(2)>>>(x); };
  if (x) launch(rows_kernel<long long, 1>, 1);
  else launch(rows_kernel<int, 4>, 2);
  return nullptr;
}

namespace first_detail {  // a brace { in a comment
__global__ void kernel(int a) { if (a) { } }
}
extern "C" const char* first(void* stream) {
  using namespace first_detail;
  kernel<<<1, 2>>>(3);
  return nullptr;
}
namespace second_detail {
template <int N> __global__ __launch_bounds__(128) void kernel(int a) {}
static __global__ void finish(int a) {}
}
extern "C" const char* second(void* stream) {
  second_detail::kernel<4><<<1, 2>>>(3);
  second_detail::finish<<<1, 2>>>(3);
  return nullptr;
}
"""
AT = "at::native::"
TRITON = """
@triton.autotune(configs=[], key=[])
@triton.jit
def tuned(x): ...

@triton.jit(do_not_specialize=["n"])
# why
def plain(x): ...

def host(x): ...
"""


def test_own_functions_of_cuda() -> None:
    assert own_functions(CUDA, ["rows", "first", "second"]) == {
        "rows_kernel": "rows",
        "first_detail::kernel": "first",
        "second_detail::kernel": "second",
        "second_detail::finish": "second",
    }
    assert own_functions(CUDA)["rows_kernel"] == "rows_kernel"


def test_own_functions_of_triton() -> None:
    assert own_functions(TRITON) == {"tuned": "tuned", "plain": "plain"}
    assert own_functions("x = 1") == {}


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void rows_kernel<int, 4>(float const*)", "rows"),
        ("void first_detail::kernel(int)", "first"),
        ("void second_detail::kernel<4>(int)", "second"),
        ("void (anonymous namespace)::other(int)", "other"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
    ],
)
def test_labels(kernel: str, name: str) -> None:
    assert label(kernel, own_functions(CUDA, ["rows", "first", "second"])) == name


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (f"void {AT}vectorized_elementwise_kernel<4, {AT}tanh_cuda(at::Iter&)::lambda>(int)", "tanh_cuda"),
        (f"void {AT}reduce_kernel<512, 1, {AT}ReduceOp<float, {AT}sum_functor<float>>>(x)", "sum_functor"),
        ("void at::native::elementwise_kernel<128, 2>(int)", "elementwise_kernel"),
        ("sm90_xmma_fprop_implicit_gemm_f32f32", "sm90_xmma_fprop_implicit_gemm_f32f32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(x)", "Kernel2"),
    ],
)  # fmt: skip
def test_plain_names(kernel: str, name: str) -> None:
    assert plain_name(kernel) == name


def test_a_profile() -> None:
    one = [Span("a", 0, 10), Span("void rows_kernel<int, 1>(x)", 12, 20), Span("void rows_kernel<int, 1>(x)", 18, 30)]
    two = [Span("a", 0, 14), Span("void rows_kernel<int, 1>(x)", 20, 30)]
    assert by_kernel([one, two], {"rows_kernel": "rows"}) == {"a": 0.012, "rows": 0.015}
    assert busy_ms([one, two]) == pytest.approx(0.026)
    assert (busy_ms([]), by_kernel([], {})) == (None, {})


def test_clocks() -> None:
    found = parsed_clocks("570.10, 1980, 2619, 1980, 34, 75.92, 700.00, 0x0000000000000004\n")
    assert found["driver"] == "570.10" and found["sm_clock_mhz"] == 1980.0 and found["power_w"] == 75.92
    assert found["held_back"] == ["power cap"]
    assert parsed_clocks("570, 1980, 2619, 1980, 34, 75, 700, 0x0000000000000001")["held_back"] == []  # idle
    assert parsed_clocks("") == {}
    assert parsed_clocks("[N/A], 5, [Not Supported]") == {"sm_clock_mhz": 5.0}


def test_flags_can_always_be_read() -> None:
    matmul = torch.backends.cuda.matmul
    before = flags()
    assert before["tf32 in matmuls"] is False and isinstance(before["tf32 in convolutions"], bool)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one name for the flag")
    old = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"  # from here on the old name raises
        assert flags()["tf32 in matmuls"] is True
    finally:
        matmul.fp32_precision = old
    assert flags() == before
    assert versions()["torch"] == torch.__version__
