"""Times every model of a folder on a GPU against eager: each in a process of its own, several at a time, one on the clock.

    PYTHONPATH=src python3 benchmarks/zoo_gpu.py [--compile] [--backward] [--tuned] [--jobs N] [--until S] [--again R]
                                                 [--json OUT] FOLDER_OR_FILE ...

Capturing, building and compiling go on side by side; whoever times holds a lock. --tuned lets timing choose, as `optimize`
does; without it the file is the predicted one. --backward times a training step too. No model is started after --until
seconds. Those that gain less than --again (1.1) on eager are timed once more in the end, one by one: whoever launches many short
kernels is slower while others build. Each line: ratio eager / new, milliseconds, the largest difference between the two relative
to the output's rms.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from steps import training_step

REPEATS, STEPS = 15, 7
LIMIT = 240  # seconds for one model


# ---- one model, in a process of its own ----


@contextlib.contextmanager
def alone(lock: str) -> Iterator[None]:
    """Nobody else is timed meanwhile."""
    with Path(lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def interleaved(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    order = list(runs) * repeats
    random.Random(0).shuffle(order)
    for name in order:
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        runs[name]()
        end.record()
        torch.cuda.synchronize()
        times[name].append(start.elapsed_time(end))
    return {name: round(statistics.median(values), 5) for name, values in times.items()}


def difference(a: Any, b: Any) -> float:
    import torch
    from torch.utils import _pytree as pytree

    worst = 0.0
    for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            scale = y.float().pow(2).mean().sqrt().item() or 1.0
            gap = (x.float() - y.float()).abs().max().item() / scale if x.numel() else 0.0
            worst = max(worst, gap if math.isfinite(gap) else float("inf"))
        elif isinstance(x, torch.Tensor):
            worst = max(worst, float((x != y).float().mean().item()))
    return worst


def one(path: str, lock: str, compare: bool, backward: bool, tuned: bool) -> dict[str, Any]:
    import torch

    from fusewright.bench.gpu import Gpu
    from fusewright.driver import tune
    from fusewright.driver.pipeline import read_problem
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    problem = load_problem(Path(path))
    front = read_problem(problem, Options())
    found: dict[str, Any] = {"model": path}
    choices = tune.PREDICTED
    if tuned:
        plain = tune.in_turn

        def in_turn(calls: Any, clock: Any, seconds: float) -> list[float]:
            with alone(lock):
                return plain(calls, clock, min(seconds, 0.15))

        tune.in_turn = in_turn
        chosen = tune.tune(problem, lambda c: front.finish(c, gradients=False), Gpu(torch.device("cuda", 0)))
        choices = chosen.choices
        found |= {"ways": dict(chosen.rows), "notes": list(chosen.notes), "choices": choices.to_dict()}
        torch.cuda.empty_cache()
    text = front.finish(choices, gradients=backward)[1].text
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(text, "emitted", "exec"), space)
    model = problem.model().cuda()
    new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
    new.load_state_dict(model.state_dict())
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]

    def forward(module: Any) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return module(*inputs)

        return run

    launched: list[str] = []
    plain_launch: Any = space.get("_launch")  # a file without kernels has none

    def watched(kernel: str, *arguments: Any) -> None:
        launched.append(kernel)
        plain_launch(kernel, *arguments)

    space["_launch"] = watched
    torch.manual_seed(1)
    got = forward(new)()
    space["_launch"] = plain_launch
    torch.manual_seed(1)
    found |= {"difference": difference(got, forward(model)()), "kernels": launched}
    del got
    runs = {"eager": forward(model), "new": forward(new)}
    if compare:
        runs["compile"] = forward(torch.compile(model))
        runs["compile"]()
    with alone(lock):
        found["ms"] = interleaved(runs, REPEATS)
    if backward:
        steps = {"eager": training_step(model, inputs), "new": training_step(new, inputs)}
        try:
            for run in steps.values():
                run()
        except RuntimeError as error:
            return found | {"no_backward": str(error).splitlines()[0]}
        with alone(lock):
            found["step_ms"] = interleaved(steps, STEPS)
    return found


# ---- all of them ----


def in_a_process(path: str, arguments: argparse.Namespace, started: float, lock: str, until: float) -> dict[str, Any]:
    if time.perf_counter() - started > until:
        return {"model": path, "error": "not started: out of time"}
    flags = [f"--{name}" for name in ("compile", "backward", "tuned") if getattr(arguments, name)]
    command = [sys.executable, __file__, "--one", lock, *flags, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"model": path, "error": f"longer than {LIMIT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = [line for line in done.stderr.splitlines() if "rror" in line]
        return {"model": path, "error": (words or [f"exit status {done.returncode}"])[-1][:200]}
    row: dict[str, Any] = json.loads(lines[-1])
    print(line_of(row), flush=True)
    return row


def line_of(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return f"  FAILED {row['model']}: {row['error']}"
    ms = row["ms"]
    words = [f"{ms['eager'] / ms['new']:6.2f}x", f"{row['model']:<60}", f"eager {ms['eager']:.3f} new {ms['new']:.3f}"]
    words += [f"compile {ms['compile']:.3f} ({ms['compile'] / ms['new']:.2f}x)"] if "compile" in ms else []
    step = row.get("step_ms")
    words += [f"step {step['eager']:.3f} {step['new']:.3f} ({step['eager'] / step['new']:.2f}x)"] if step else []
    words += [f"diff {row['difference']:.0e}", f"{len(row['kernels'])} kernels"]
    words += ["ways " + " ".join(f"[{k} {v:.3f}]" for k, v in row["ways"].items())] if row.get("ways") else []
    words += ["(alone)"] if row.get("alone") else []
    return "  ".join(words)


def gain(row: dict[str, Any]) -> float:
    return row["ms"]["eager"] / row["ms"]["new"] if "ms" in row else -1.0


def mean_of(title: str, ratios: list[float]) -> str:
    if not ratios:
        return f"{title}: none"
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    return f"{title}: geometric mean {mean:.3f} of {len(ratios)}, lowest {min(ratios):.2f}, {sum(r < 0.97 for r in ratios)} below 0.97"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+")
    for name in ("compile", "backward", "tuned"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    parser.add_argument("--until", type=float, default=1e9)
    parser.add_argument("--again", type=float, default=1.1)
    parser.add_argument("--json", default="")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        found = one(arguments.places[0], arguments.one, arguments.compile, arguments.backward, arguments.tuned)
        print(json.dumps(found))
        return
    places = [Path(place) for place in arguments.places]
    files = [str(f) for p in places for f in ([p] if p.suffix == ".py" else sorted(p.rglob("*.py")))]
    files = [f for f in files if "get_init_inputs" in Path(f).read_text()]
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started, lock = time.perf_counter(), str(Path(tempfile.mkdtemp()) / "timing")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(lambda file: in_a_process(file, arguments, started, lock, arguments.until), files))
    for i, row in enumerate(rows):
        if 0 < gain(row) < arguments.again:
            alone_now = in_a_process(row["model"], arguments, started, lock, 1.3 * arguments.until)
            rows[i] = alone_now | {"alone": True, "before": row} if "ms" in alone_now else row
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1))
    print(f"\n{len(files)} models in {time.perf_counter() - started:.0f} s, slowest against eager first")
    for row in sorted(rows, key=gain):
        print(line_of(row))
    timed = [row for row in rows if "ms" in row]
    print(mean_of("against eager", [gain(r) for r in timed]))
    print(mean_of("against compile", [r["ms"]["compile"] / r["ms"]["new"] for r in timed if "compile" in r["ms"]]))
    print(mean_of("training step", [r["step_ms"]["eager"] / r["step_ms"]["new"] for r in timed if "step_ms" in r]))


if __name__ == "__main__":
    main()
