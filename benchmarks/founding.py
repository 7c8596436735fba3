# ruff: noqa: B023, F821, E501
"""Builds, verifies and times the founding models on a GPU, against eager and torch.compile, in one run.

PYTHONPATH=src python3 benchmarks/founding.py [--compile] [--max-autotune] [MODEL.py ...]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

FOUNDING = ["conv2d_groupnorm_logsumexp", "conv3d_maxpool_logsumexp", "convtranspose2d_mean_logsumexp"]


def median_ms(run: Any, flush: torch.Tensor, repeats: int = 30) -> float:
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("-")]
    with_compile = "--compile" in sys.argv
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(
        torch.cuda.get_device_name(),
        torch.__version__,
        "conv tf32:",
        torch.backends.cudnn.allow_tf32,
        "matmul tf32:",
        torch.backends.cuda.matmul.allow_tf32,
    )
    rows = []
    for path in [Path(a) for a in arguments] or [Path("examples") / f"{name}.py" for name in FOUNDING]:
        problem = load_problem(path)
        _, _, emitted = compile_problem(problem, Options())
        space: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(emitted.text, "emitted", "exec"), space)
        torch.manual_seed(0)
        model = problem.model().cuda()
        started = time.perf_counter()
        torch.manual_seed(0)
        with torch.random.fork_rng():
            new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
        build = time.perf_counter() - started
        new.load_state_dict(model.state_dict())
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
        with torch.no_grad():
            got, expected = new(*inputs), model(*inputs)
            close = torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
            worst = (got - expected).abs().max().item()
            ms = {"new": median_ms(lambda: new(*inputs), flush), "eager": median_ms(lambda: model(*inputs), flush)}
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
            new(*inputs)
            extra = torch.cuda.max_memory_allocated() - base
            torch.cuda.reset_peak_memory_stats()
            base = torch.cuda.memory_allocated()
            model(*inputs)
            extra_eager = torch.cuda.max_memory_allocated() - base
            if with_compile:
                compiled = torch.compile(model)
                ms["compile"] = median_ms(lambda: compiled(*inputs), flush)
            if "--max-autotune" in sys.argv:
                torch.compiler.reset()
                tuned = torch.compile(model, mode="max-autotune")
                ms["max-autotune"] = median_ms(lambda: tuned(*inputs), flush)

        def step(m: Any) -> None:
            m.zero_grad(set_to_none=True)
            m(*inputs).sum().backward()

        ms["new fwd+bwd"] = median_ms(lambda: step(new), flush, 10)
        ms["eager fwd+bwd"] = median_ms(lambda: step(model), flush, 10)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile, torch.no_grad():
            new(*inputs)
            torch.cuda.synchronize()
        kernels = [
            (e.key[:70], round(e.device_time_total / 1e3, 4)) for e in profile.key_averages() if e.device_time_total > 0
        ]
        rows.append((path.stem, build, close, worst, ms, extra, extra_eager, kernels))
        del model, new, inputs, got, expected
        torch.cuda.empty_cache()
    for name, build, close, worst, ms, extra, extra_eager, kernels in rows:
        print(
            f"{name}: build {build:.1f} s, allclose 1e-4 {close}, largest difference {worst:.2e}, extra memory {extra / 1e6:.0f} MB (eager {extra_eager / 1e6:.0f})"
        )
        print(
            "   "
            + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items())
            + f"; speed-up {ms['eager'] / ms['new']:.2f}, with backward {ms['eager fwd+bwd'] / ms['new fwd+bwd']:.2f}"
        )
        for kernel, time_ms in kernels:
            print(f"      {time_ms:8.4f} ms  {kernel}")


if __name__ == "__main__":
    main()
