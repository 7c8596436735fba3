"""A process that is forked after an emitted file was loaded and run, and processes that build at once."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from company.work import inputs, same, step
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import fusewright
from fusewright.host import HostLibrary, compile_host

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # that is what is tested


def in_a_fork(work: Callable[[], bool], seconds: int = 60) -> bool:
    """Whether `work` gives True in a child of this process, in time."""
    child = get_context("fork").Process(target=lambda: os._exit(0 if work() else 1))
    child.start()
    child.join(seconds)
    hangs = child.is_alive()
    if hangs:
        child.kill()
    assert not hangs, "the child hangs"
    return child.exitcode == 0


def test_a_child_calls_the_module(new: ModuleType) -> None:
    model, (x, other) = new.ModelNew(16), inputs(2)
    expected = step(model, x), step(model, other)

    def work() -> bool:
        torch.set_num_threads(1)  # as a worker of a DataLoader: OpenMP's threads are not there after a fork
        return same(step(model, x), expected[0])

    assert in_a_fork(work)
    assert same(step(model, other), expected[1])


class Mapped(Dataset[Tensor]):
    """What a module makes of inputs, computed where they are loaded."""

    def __init__(self, model: torch.nn.Module, given: list[Tensor]) -> None:
        self.model, self.given = model, given

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.model(self.given[index])


def test_workers_of_a_loader_call_the_module(new: ModuleType) -> None:
    model, given = new.ModelNew(16), inputs(6)
    expected = [model(x).detach() for x in given]
    loader = DataLoader(Mapped(model, given), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert same(list(loader), expected)


def test_a_fork_while_another_thread_loads(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork waits until it is loaded: the child finds it, or can load it itself."""
    started, slow = threading.Event(), tmp_path / "slow.py"
    monkeypatch.setitem(sys.modules, "company_started", SimpleNamespace(started=started))
    slow.write_text("import time, company_started\n\ncompany_started.started.set()\ntime.sleep(0.2)\n" + file.read_text())
    other = threading.Thread(target=fusewright.load, args=(slow,))
    other.start()
    assert started.wait(20)
    assert in_a_fork(lambda: fusewright.load(slow).ModelNew(16) is not None, seconds=20)
    other.join()


def test_a_child_of_a_process_that_used_the_gpu_builds_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that there is a GPU, and raises where it is asked for anything."""
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    space["load_inline"] = lambda *given, **named: pytest.fail("nvcc was asked")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    space["_forked"] = lambda: True
    x = inputs(1)[0]
    assert space["ModelNew"](16)(x).shape == (2, 4, 10)


@pytest.mark.parametrize(("tool", "nvcc"), [("nvcc", ""), ("ninja", "/somewhere/nvcc")])
def test_without_a_compiler_the_original_runs(tool: str, nvcc: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU and no tools to build with: one warning, and what the model itself computes."""
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    space["load_inline"] = lambda *given, **named: pytest.fail("nvcc was asked")
    space["CUDA_HOME"], space["is_ninja_available"] = None, lambda: tool != "ninja"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_NVCC", nvcc)
    with pytest.warns(UserWarning, match=f"ModelNew: {tool} is not found, so its kernels cannot be built"):
        new = space["ModelNew"](16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert space["ModelNew"](16) is not None and not space["_buildable"]()
    x = inputs(1)[0]
    assert torch.equal(new(x), space["Model"].forward(new, x))


BUSY = """
__global__ void busy_kernel(int* x, long long rounds) {
  for (long long i = 0; i < rounds; ++i) x[threadIdx.x] = x[threadIdx.x] * 3 + 1;
}
extern "C" const char* busy(int* x, long long rounds, void* stream) {
  busy_kernel<<<1, 32, 0, (cudaStream_t)stream>>>(x, rounds);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


def test_a_fork_while_another_thread_launches() -> None:
    """The child has only the thread that forked: what the other one held must not be held there for ever."""
    library, ended = HostLibrary(compile_host(BUSY)), threading.Event()

    def launch() -> bool:
        x = torch.zeros(32, dtype=torch.int32)
        library.call("busy", x, 1)
        return bool((x == 1).all())

    def keep_launching() -> None:
        while not ended.is_set():
            library.call("busy", torch.zeros(32, dtype=torch.int32), 100_000)

    other = threading.Thread(target=keep_launching)
    other.start()
    try:
        assert all(in_a_fork(launch, seconds=20) for _ in range(5))
    finally:
        ended.set()
        other.join()


@pytest.mark.parametrize("what", ["kernels", pytest.param("the runtime too", marks=pytest.mark.slow)])
def test_processes_build_the_same_at_once(what: str, tmp_path: Path) -> None:
    """In a cache that nobody has filled: each gets a whole library."""
    if what == "kernels":
        there = compile_host(BUSY)
        (tmp_path / "host").mkdir()
        for path in there.parent.glob("runtime-[0-9a-f]*.so"):
            shutil.copy(path, tmp_path / "host")
    context = get_context("fork")
    ready, built = context.Barrier(2), context.Queue()

    def work() -> None:
        ready.wait(60)
        library = compile_host(BUSY, cache=tmp_path)
        x = torch.zeros(32, dtype=torch.int32)
        HostLibrary(library).call("busy", x, 2)
        built.put((library.name, x.tolist()))

    children = [context.Process(target=work) for _ in range(2)]
    for child in children:
        child.start()
    found = [built.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert len({name for name, _ in found}) == 1 and all(x == [4] * 32 for _, x in found)
    assert sorted({path.name.split("-")[0] for path in (tmp_path / "host").iterdir()}) == ["headers", "kernels", "runtime"]
