"""Several threads call one module at once: what each gets is what it would get alone."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from company.work import at_once, forward, inputs, same, step

import fusewright
from fusewright.host import HostLibrary, compile_host

THREADS, CALLS = 4, 6


@pytest.mark.parametrize("call", [forward, step])
def test_threads_share_a_module(call: Callable[..., Any], new: ModuleType) -> None:
    model, given = new.ModelNew(16), inputs(THREADS * CALLS)
    step(model, given[0])  # from the first backward on forward keeps what backward reads
    alone = [call(model, x) for x in given]

    def calls(first: int) -> list[Any]:
        return [call(model, x) for x in given[first::THREADS]]

    found = at_once([functools.partial(calls, first) for first in range(THREADS)])
    for first in range(THREADS):
        assert all(map(same, found[first], alone[first::THREADS]))


def test_a_first_backward_while_another_thread_is_in_forward(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides what forward keeps from then on: the forward that is under way keeps to what it began with."""
    (tmp_path / "again.py").write_text(file.read_text() + "\n")
    module = fusewright.load(tmp_path / "again.py")  # of its own: no backward has been here
    model, (x, other) = module.ModelNew(16), inputs(2)
    launch, others = module._launch, threading.Thread(target=step, args=(model, other))

    def launch_beside(kernel: str, *arguments: Any) -> None:
        launch(kernel, *arguments)
        if others.ident is None:
            others.start()
            others.join()

    monkeypatch.setattr(module, "_launch", launch_beside)
    beside = step(model, x)
    assert others.ident is not None
    assert same(beside, step(model, x))


def test_the_kernels_are_built_once(file: Path) -> None:
    """PyTorch's builder hands a second thread a library that the first one has not written yet."""
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    building: list[str] = []

    def build(name: str, cpp_sources: str, cuda_sources: str, **named: Any) -> str:
        building.append(name)
        time.sleep(0.05)
        return str(compile_host('extern "C" const char* nothing() { return nullptr; }'))

    space["load_inline"] = build
    units = [space["_CUDA_SOURCE"], space["_CUDA_SOURCE"], space["_CUDA_GRADIENTS"]] * 2
    libraries = at_once([functools.partial(space["_library"], unit) for unit in units])
    assert len(building) == len(set(building)) == 2
    assert len({id(library) for library in libraries}) == 2


SUMS = """
__global__ void sum_kernel(const float* x, float* sums, int n) {
  __shared__ float parts[64];
  float sum = 0.f;
  for (int i = threadIdx.x; i < n; i += 64) sum += x[blockIdx.x * n + i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}
extern "C" const char* sum(const float* x, float* sums, long long rows, long long n, void* stream) {
  sum_kernel<<<rows, 64, 0, (cudaStream_t)stream>>>(x, sums, n);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
__global__ void order_kernel(int* order, int* next) { order[threadIdx.x] = (*next)++; }
extern "C" const char* order(int* order, int* next, void* stream) {
  order_kernel<<<1, 64, 0, (cudaStream_t)stream>>>(order, next);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


@pytest.fixture(scope="module")
def sums() -> Path:
    return compile_host(SUMS)


def test_threads_launch_at_once(sums: Path) -> None:
    """Large launches, which take OS threads of their own, small ones, and ones that fail: each thread hears of its own."""
    library = HostLibrary(sums)

    def launches(rows: int) -> list[str]:
        said = []
        for i in range(20):
            x, result = torch.full((rows, 100), float(rows + i)), torch.zeros(rows)
            library.call("sum", x, result, rows, 100)
            assert torch.equal(result, x.sum(1))
            try:
                library.call("sum", x, result, 0, rows)
            except RuntimeError as error:
                said.append(str(error))
        return said

    said = at_once([functools.partial(launches, rows) for rows in (1, 3, 200, 400)])
    assert all("a grid of no blocks" in line for lines in said for line in lines) and [len(lines) for lines in said] == [20] * 4
    assert library.launched["sum"] == 4 * 40


def test_a_library_keeps_its_order_beside_another(sums: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch in another thread, after a library has said in which order its CUDA threads run and before they do, changes nothing."""
    ascending, descending = HostLibrary(sums), HostLibrary(sums)
    ascending.set_order("forward")
    descending.set_order("backward")

    def order(library: HostLibrary) -> list[int]:
        found, start = torch.zeros(64, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        library.call("order", found, start)
        return found.tolist()

    plain = ascending._library

    class Beside:
        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

        def cuda_on_cpu_set(self, *settings: int) -> None:
            plain.cuda_on_cpu_set(*settings)
            assert at_once([lambda: order(descending)]) == [list(range(63, -1, -1))]

    monkeypatch.setattr(ascending, "_library", Beside())
    assert order(ascending) == list(range(64))
