"""Training steps of many models against eager: the clock's time, the device's own, and the kernels that take it.

    PYTHONPATH=src python3 benchmarks/steps.py MODEL.py [...]

All are captured and built side by side; only then is one after the other timed, on a machine that does nothing else:
what the host does in backward shows in short steps. Files are as predicted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS, SHOWN = 15, 0.03  # kernels that take less than this share of a step are not listed


def clock(run: Callable[[], Any]) -> float:
    """The median of a step by events on the device, as a training loop would see it."""
    import torch

    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernels(run: Callable[[], Any]) -> Counter[str]:
    """Milliseconds of the device by kernel."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    found: Counter[str] = Counter()
    for event in profile.events() or []:
        if str(event.device_type).endswith("CUDA"):
            found[event.name] += event.time_range.elapsed_us() / 1000
    return found


def smooth(x: Any) -> bool:
    import torch

    return isinstance(x, torch.Tensor) and x.is_floating_point()


def training_step(module: Any, inputs: list[Any]) -> Callable[[], Any]:
    """Forward and backward to the module's parameters, or to its inputs where it has none."""
    import torch
    from torch.utils import _pytree as pytree

    trained = [p for p in module.parameters() if p.requires_grad]
    given = inputs if trained else [x.detach().requires_grad_() if smooth(x) else x for x in inputs]
    by = trained or [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]

    def run() -> Any:
        results = [t for t in pytree.tree_leaves(module(*given)) if smooth(t) and t.requires_grad]
        return torch.autograd.grad(results, by, [torch.ones_like(t) for t in results], allow_unused=True)

    return run


def one(path: str, ready: str, go: str) -> None:
    import torch

    from fusewright.driver.pipeline import compile_problem
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    problem = load_problem(Path(path))
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(compile_problem(problem, Options())[2].text, "emitted", "exec"), space)
    model, new = problem.model().cuda(), space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
    new.load_state_dict(model.state_dict())
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]

    steps = {"eager": training_step(model, inputs), "new": training_step(new, inputs)}
    for run in steps.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    Path(ready).touch()
    while not Path(go).exists():
        time.sleep(0.01)
    found = {name: (clock(run), kernels(run)) for name, run in steps.items()}
    print(json.dumps({name: [ms, dict(by)] for name, (ms, by) in found.items()}))


def table(path: str, found: dict[str, Any]) -> str:
    (eager, eager_by), (new, new_by) = found["eager"], found["new"]
    busy, eager_busy = sum(new_by.values()), sum(eager_by.values())
    lines = [f"{eager / new:6.2f}x  {path}: eager {eager:.3f} (device {eager_busy:.3f}) new {new:.3f} (device {busy:.3f})"]
    for name, by, whole in (("eager", eager_by, eager_busy), ("new", new_by, busy)):
        for kernel, ms in sorted(by.items(), key=lambda pair: -pair[1]):
            if ms > SHOWN * whole:
                lines.append(f"            {name:<5} {ms:8.3f} ms  {kernel[:100]}")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1] == "--one":
        return one(*sys.argv[2:])
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    place = Path(tempfile.mkdtemp())
    running = []
    for number, path in enumerate(sys.argv[1:]):
        command = [sys.executable, __file__, "--one", path, str(place / f"ready{number}"), str(place / f"go{number}")]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for number, process in enumerate(running):
        while process.poll() is None and not (place / f"ready{number}").exists():
            time.sleep(0.05)
    for number, (path, process) in enumerate(zip(sys.argv[1:], running, strict=True)):
        (place / f"go{number}").touch()
        output, errors = process.communicate()
        if process.returncode:
            print(f"FAILED {path}: {(errors.strip().splitlines() or ['no word'])[-1]}", flush=True)
        else:
            print(table(path, json.loads(output.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
