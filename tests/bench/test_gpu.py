"""On a GPU: the clock itself, and the tricks that only a GPU can play."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from fusewright.bench.comparison import Row, Timing, bench
from fusewright.bench.gpu import Gpu, build_seconds
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4096) + 1)

    def forward(self, x):
        return torch.softmax(torch.tanh(x) * self.scale, 1)


def get_inputs():
    return [torch.rand(8192, 4096)]


def get_init_inputs():
    return []
"""
FORWARD = "torch.softmax(torch.tanh(x) * self.scale, 1)"


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    (tmp_path / "model.py").write_text(MODEL)
    return load_problem(tmp_path / "model.py")


def timed(problem: Problem, forward: str, before: str = "") -> Row:
    text = MODEL.replace("class Model(", f"{before}\n\nclass ModelNew(").replace(f"return {FORWARD}", forward)
    timing = bench(problem, [load_candidate(text, "cuda", name="new.py")], seconds=1.0, backward=False)
    (row,) = timing.candidates
    return row


def test_ceilings_are_plausible_and_quick() -> None:
    gpu = Gpu(torch.device("cuda", 0))
    start = time.perf_counter()
    found = gpu.ceilings()
    assert time.perf_counter() - start < 5
    assert found.copy and found.read and 5e10 < found.copy < 2e13 and 5e10 < found.read < 2e13
    assert found.fp32 and 5e11 < found.fp32 < 5e14


def test_an_honest_copy_is_no_faster(problem: Problem) -> None:
    row = timed(problem, f"return {FORWARD}")
    assert row.stands, row.verdict
    assert row.forward and row.forward.speedup and 0.9 < row.forward.speedup.value < 1.1
    assert row.own_share == 0.0 and row.busy_ms and row.forward.extra_bytes


def test_twice_the_work_is_slower(problem: Problem) -> None:
    row = timed(problem, f"{FORWARD}\n        return {FORWARD}")
    assert row.verdict.startswith("slower: ") and row.forward and row.forward.speedup
    assert 0.4 < row.forward.speedup.value < 0.6


ASIDE = f"with torch.cuda.stream(side):\n            y = {FORWARD}\n        "
KEPT = f"if x.data_ptr() not in kept:\n            kept[x.data_ptr()] = {FORWARD}.detach()\n        "
LATER = f"""y = torch.empty_like(x)
        waiting.append((x, y))
        if len(waiting) == 3:
            for x, result in waiting:
                result.copy_({FORWARD})
            waiting.clear()
        return y"""
EMPTY_GRAPH = f"""if "graph" not in kept:
            kept["result"], kept["graph"] = {FORWARD}.detach(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(kept["graph"]):
                kept["nothing"] = kept["result"].view(-1)
        kept["graph"].replay()
        return kept["result"].clone()"""
OLD_POINTERS = f"""if "graph" not in kept:
            kept["input"], kept["graph"] = x, torch.cuda.CUDAGraph()
            with torch.no_grad():
                {FORWARD}
                with torch.cuda.graph(kept["graph"]):
                    kept["result"] = {FORWARD}
        kept["graph"].replay()
        return kept["result"].clone()"""
HELD_IN_L2 = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")


class Window(ctypes.Structure):  # CUaccessPolicyWindow, in a union of 64 bytes
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t), ("share", ctypes.c_float), ("hit", ctypes.c_int),
                ("miss", ctypes.c_int), ("rest", ctypes.c_char * 32)]


def hold(x):
    driver.cuCtxSetLimit(6, ctypes.c_size_t(40 << 20))
    window = Window(x.data_ptr(), 40 << 20, 1.0, 2, 1)
    driver.cuStreamSetAttribute(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), 1, ctypes.byref(window))
"""
CAUGHT = {
    "several calls computed in one": (LATER, "waiting = []", "wrong result"),
    "a CUDA graph that replays nothing": (EMPTY_GRAPH, "kept = {}", "wrong result"),
    "work on another stream": (f"{ASIDE}return y", "side = torch.cuda.Stream()", ("work outside", "faster than the roofline")),
    "memory never written": ("return torch.empty_like(x)", "", "wrong result"),
    "cached by pointer": (f"{KEPT}return kept[x.data_ptr()].clone()", "kept = {}", "wrong result"),
    "an event that lies": (f"return {FORWARD}", "torch.cuda.Event.elapsed_time = lambda a, b: 1e-3", "not comparable"),
    "another precision": (f"return {FORWARD}", "torch.backends.cuda.matmul.allow_tf32 = True", "not comparable"),
}


@pytest.mark.parametrize("trick", CAUGHT)
def test_caught(trick: str, problem: Problem) -> None:
    forward, before, words = CAUGHT[trick]
    row = timed(problem, forward, before)
    print(f"{trick}: {row.verdict}")
    assert not row.stands and row.verdict.startswith(words), row.verdict


def test_a_stream_that_starts_early(problem: Problem) -> None:
    """It runs while the cache is flushed and is joined at the end: caught, unless nearly nothing was gained."""
    join = "torch.cuda.current_stream().wait_stream(side)\n        return y"
    row = timed(problem, f"{ASIDE}{join}", "side = torch.cuda.Stream()")
    assert row.forward and row.forward.speedup
    assert not row.stands or row.forward.speedup.value < 1.2, row


def test_what_is_held_in_the_cache_is_flushed_too(problem: Problem) -> None:
    """Part of the input is told to stay in L2: after a flush nothing of that is left to gain."""
    row = timed(problem, f"hold(x)\n        return {FORWARD}", HELD_IN_L2)
    print(f"its input held in L2: {row.verdict}")
    assert row.forward and row.forward.speedup and row.forward.speedup.value < 1.03


def test_a_graph_with_old_pointers(problem: Problem) -> None:
    """Timing hands over the same storage again and again, for which the graph is right; verification does not."""
    text = MODEL.replace("class Model(", "kept = {}\n\n\nclass ModelNew(").replace(f"return {FORWARD}", OLD_POINTERS)
    verdict = verify(problem, load_candidate(text, "cuda", name="new.py"))
    print(f"a CUDA graph with old pointers: {verdict.worst}")
    assert not verdict.passed and verdict.worst.startswith(("nothing cached", "every element written", "inputs untouched"))


def test_a_sample_is_faster_than_the_roofline(problem: Problem) -> None:
    """The mean of some rows is near that of all: no gross error, but not all bytes were read."""
    mean = MODEL.replace(f"return {FORWARD}", "return x.mean() * self.scale.sum()")
    problem.path.write_text(mean)
    text = mean.replace("class Model(", "class ModelNew(").replace("x.mean()", "x[::64].mean()")
    timing = bench(load_problem(problem.path), [load_candidate(text, "cuda", name="new.py")], seconds=1.0, backward=False)
    (row,) = timing.candidates
    print(f"a sample of the input: {row.verdict}")
    assert not row.stands and row.verdict.startswith(("faster than the roofline", "wrong result"))


def test_what_lay_in_the_cache_is_gone() -> None:
    """A tensor that fits in L2 and was just read is read from memory again."""
    gpu = Gpu(torch.device("cuda", 0))
    x = torch.rand(gpu.l2_bytes // 8, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        x.sum()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # the host is ahead when the first one starts
    start.record()
    for _ in range(10):
        x.sum()
    end.record()
    torch.cuda.synchronize()
    warm, flushed = start.elapsed_time(end) / 10, min(gpu.queued(x.sum)[0] for _ in range(10))
    print(f"{x.numel() * 4 / 1e6:.0f} MB: read again {warm:.4f} ms, after a flush {flushed:.4f} ms")
    bandwidth = gpu.ceilings().read
    assert bandwidth and flushed > 0.9e3 * x.numel() * 4 / bandwidth


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, str, Timing]:
    from fusewright.driver.pipeline import compile_problem

    folder = tmp_path_factory.mktemp("emitted")
    (folder / "model.py").write_text(MODEL)
    problem = load_problem(folder / "model.py")
    written = compile_problem(problem, Options())[2]
    candidate = load_candidate(written.text, "cuda", name="new.py")
    return problem, written.text, bench(problem, [candidate], modes=["compile"], facts=written.kernels, seconds=2.0)


def test_what_fusewright_writes(emitted: tuple[Problem, str, Timing]) -> None:
    timing = emitted[2]
    (row,) = timing.candidates
    assert row.stands, row.verdict
    assert row.backward and row.own_share and row.own_share > 0.9, row
    own = [kernel for kernel in row.kernels if kernel.own]
    assert own and all(kernel.placed and kernel.ms > 0 for kernel in own)
    compiled = timing.row("compile")
    assert compiled and (compiled.forward or compiled.verdict)
    assert timing.floor_ms and row.forward and timing.floor_ms < 1.05 * row.forward.ms


def test_build_times(emitted: tuple[Problem, str, Timing]) -> None:
    problem, text, _ = emitted
    found = build_seconds(problem.path, text)
    assert 0 < found["warm_s"] < found["cold_s"]
