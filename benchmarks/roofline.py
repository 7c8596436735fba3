"""Convolution chains against their floor on a GPU: ours, the library's on channels-last data, eager and torch.compile.

    PYTHONPATH=src python3 benchmarks/roofline.py [--jobs N] [--no-compile] [--kernels] [--json OUT] [MODEL.py ...]

The floor is the larger of two times: inputs, parameters and results once at 4.19 TB/s, and the products of one convolution at 395 TFLOP/s
(TF32, measured; without multiplications by zeros). Forward, no gradients, L2 flushed, medians of interleaved runs. Each model is captured
and built in a process of its own; one at a time is on the clock. --kernels: what each kernel of our variant takes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

from zoo_gpu import difference, interleaved

TB_PER_S, TFLOPS = 4.19, 395.0  # H200: copy, and a matrix product of TF32 numbers (8192³)
REPEATS, ROUNDS, LIMIT = 15, 5, 240
VARIANTS = {"ours": "own=every", "last": "own=frozenset(), channels_last=True", "predicted": ""}


def floor_ms(model: Any, inputs: list[Any], result: Any) -> tuple[float, float]:
    """Milliseconds for what must be moved, and for what must be multiplied."""
    import torch
    from torch.utils import _pytree as pytree

    flops = 0.0

    def count(module: Any, given: Any, out: Any) -> None:
        nonlocal flops
        weight, positions = module.weight, given[0] if "Transpose" in type(module).__name__ else out
        flops += 2.0 * weight.numel() * positions.numel() / positions.shape[1]  # every weight meets each position once

    hooks = [m.register_forward_hook(count) for m in model.modules() if hasattr(m, "kernel_size") and hasattr(m, "weight")]
    model(*inputs)
    for hook in hooks:
        hook.remove()
    tensors = [t for t in pytree.tree_leaves((inputs, list(model.parameters()), result)) if isinstance(t, torch.Tensor)]
    moved = sum(t.element_size() * prod(t.shape) for t in tensors)
    return moved / TB_PER_S * 1e-9, flops / TFLOPS * 1e-9


def one(path: str, lock: str, compiles: bool) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from fusewright.driver.pipeline import read_problem
    from fusewright.driver.tuning.choices import Choices, convolutions
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    problem = load_problem(Path(path))
    front = read_problem(problem, Options())
    model = problem.model().cuda()
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
    row: dict[str, Any] = {"model": Path(path).stem}
    with torch.no_grad():
        runs: dict[str, Any] = {"eager": lambda: model(*inputs)}
        for name, choices in VARIANTS.items():
            given = eval(f"Choices({choices})", {"Choices": Choices, "every": convolutions(front.graph)})
            text = front.finish(given, gradients=False)[1].text
            space: dict[str, Any] = {"__name__": "emitted"}
            exec(compile(text, "emitted", "exec"), space)
            new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
            new.load_state_dict(model.state_dict())
            runs[name] = lambda new=new: new(*inputs)
        if compiles:
            compiled = torch.compile(model)
            runs["compile"] = lambda: compiled(*inputs)
        expected = model(*inputs)
        row["difference"] = {name: difference(run(), expected) for name, run in runs.items()}
        row["bytes_ms"], row["flops_ms"] = floor_ms(model, inputs, expected)
        del expected
        with Path(lock).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            row["ms"] = interleaved(runs, REPEATS)
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                for _ in range(ROUNDS):
                    runs["ours"]()
                torch.cuda.synchronize()
    row["kernels"] = [(e.key[:60], e.self_device_time_total / ROUNDS) for e in seen.key_averages() if e.self_device_time_total > 0]
    return row


def in_a_process(path: str, lock: str, compiles: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", lock, path, *([] if compiles else ["--no-compile"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"model": Path(path).stem, "failed": f"ran longer than {LIMIT} s"}
    found = next((line for line in done.stdout.splitlines() if line.startswith("{")), "")
    return json.loads(found) if found else {"model": Path(path).stem, "failed": done.stderr[-300:]}


def line_of(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['model']:32s} FAILED {row['failed']}"
    ms, floor = row["ms"], max(row["bytes_ms"], row["flops_ms"])
    times = "  ".join(f"{name} {value:.3f} ({value / floor:.2f})" for name, value in ms.items())
    return f"{row['model']:32s} bytes {row['bytes_ms']:.3f} flops {row['flops_ms']:.3f}  {times}  diff {row['difference']['ours']:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=sorted(map(str, (Path(__file__).parent / "roofline").glob("*.py"))))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--json", default="")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.models[0], arguments.one, not arguments.no_compile)))
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lock = str(Path(tempfile.mkdtemp()) / "timing")
    rows = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(lambda path: in_a_process(path, lock, not arguments.no_compile), arguments.models):
            rows.append(row)
            print(line_of(row), flush=True)
            for name, us in row.get("kernels", []) if arguments.kernels else []:
                print(f"    {us:9.1f} us  {name}")
            if arguments.json:
                Path(arguments.json).write_text("".join(json.dumps(each) + "\n" for each in rows))


if __name__ == "__main__":
    main()
