"""What each kernel of a model's file takes on a GPU, as predicted, without gradients: microseconds and TB/s of what it has to move.

    PYTHONPATH=src python3 benchmarks/kernel_times.py [--jobs N] MODEL.py ...

Models are captured and built side by side, each in a process of its own; one at a time is on the clock. With the sources of another
state as PYTHONPATH the same models are timed as they were there.
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
from pathlib import Path

ROUNDS = 8
MOST = 8  # kernels of a model that are printed


def one(path: str, lock: str) -> dict[str, object]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from fusewright.driver import tune
    from fusewright.driver.pipeline import read_problem
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    problem = load_problem(Path(path))
    emitted = read_problem(problem, Options()).finish(tune.PREDICTED, gradients=False)[1]
    space: dict[str, object] = {"__name__": "emitted"}
    exec(compile(emitted.text, "emitted", "exec"), space)
    model = problem.model().cuda()
    new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()  # type: ignore[operator]
    new.load_state_dict(model.state_dict())
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    with torch.no_grad(), Path(lock).open("w") as file:
        new(*inputs)
        fcntl.flock(file, fcntl.LOCK_EX)
        for _ in range(3):
            new(*inputs)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(ROUNDS):
                flush.zero_()
                new(*inputs)
            torch.cuda.synchronize()
    bytes_of = {fact.name: fact.bytes for fact in emitted.kernels}
    rows = []
    for event in seen.key_averages():
        us = event.self_device_time_total / ROUNDS
        if us > 0 and "Memset" not in event.key and "FillFunctor" not in event.key:
            mine = next((name for name in sorted(bytes_of, key=len, reverse=True) if name in event.key), "")
            rows.append((us, event.count // ROUNDS, event.key[:70], bytes_of.get(mine, 0) / us * 1e-6))
    return {"model": path, "us": sum(row[0] for row in rows), "kernels": sorted(rows, reverse=True)}


def in_a_process(path: str, lock: str) -> str:
    done = subprocess.run([sys.executable, __file__, "--one", lock, path], capture_output=True, text=True)
    found = next((line for line in done.stdout.splitlines() if line.startswith("{")), "")
    if not found:
        return f"{path}: FAILED {done.stderr[-300:]}"
    row = json.loads(found)
    lines = [f"{path}  {row['us']:.1f} us"]
    for us, count, name, rate in row["kernels"][:MOST]:
        lines.append(f"  {us:8.1f} us x{count}  {name}" + (f"  {rate:.2f} TB/s" if rate else ""))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.models[0], arguments.one)))
        return
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lock = str(Path(tempfile.mkdtemp()) / "timing")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for text in pool.map(lambda path: in_a_process(path, lock), arguments.models):
            print(text, flush=True)


if __name__ == "__main__":
    main()
