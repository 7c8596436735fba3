"""Where the time of a training step goes: each part of it by the host's clock, then its kernels on the device.

PYTHONPATH=src python3 benchmarks/training_step.py MODEL.py [...]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

ROUNDS = 50
now = time.perf_counter


def trivial(parameter: torch.nn.Parameter) -> list[float]:
    """The least a backward costs on this machine."""
    parameter.grad = None
    torch.cuda.synchronize()
    start = now()
    result = (parameter * 2).sum()
    middle = now()
    result.backward()
    return [middle - start, now() - middle]


def parts(model: torch.nn.Module, inputs: list[Any], marks: list[tuple[str, float]]) -> dict[str, float]:
    torch.cuda.synchronize()
    marks.clear()
    times = [now()]
    model.zero_grad(set_to_none=True)
    times.append(now())
    result = model(*inputs)
    times.append(now())
    result = result.sum()
    times.append(now())
    result.backward()
    times.append(now())
    torch.cuda.synchronize()
    times.append(now())
    names = ["zero_grad", "forward", "sum", "backward", "wait"]
    found = {name: b - a for name, a, b in zip(names, times, times[1:], strict=False)}
    for name, at in marks:
        found[name] = at - times[3]  # since backward was called
    return found


def shown(rounds: list[dict[str, float]]) -> str:
    return ", ".join(f"{name} {1e6 * statistics.median(r[name] for r in rounds):.0f}" for name in rounds[0])


def main() -> None:
    parameter = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    found = [trivial(parameter) for _ in range(ROUNDS)][5:]
    forward, backward = (1e6 * statistics.median(column) for column in zip(*found, strict=True))
    print(f"microseconds of the host: (p * 2).sum() {forward:.0f}, its backward {backward:.0f}")
    for path in map(Path, sys.argv[1:]):
        problem = load_problem(path)
        space: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(compile_problem(problem, Options())[2].text, "emitted", "exec"), space)
        model, new = problem.model().cuda(), space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
        inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
        marks: list[tuple[str, float]] = []
        differentiable = space["_Differentiable"]
        plain = differentiable.backward

        def marked(ctx: Any, *gradients: Any, plain: Any = plain, marks: Any = marks) -> Any:
            marks.append((f"enters {len(marks) // 2}", now()))
            result = plain(ctx, *gradients)
            marks.append((f"leaves {len(marks) // 2}", now()))
            return result

        differentiable.backward = staticmethod(marked)
        for name, subject in (("eager", model), ("new", new)):
            rounds = [parts(subject, inputs, marks) for _ in range(ROUNDS)][5:]
            print(f"{path.stem}, {name}: {shown(rounds)}")
        with torch.profiler.profile() as profile:
            parts(new, inputs, marks)
        events = [e for e in profile.events() or [] if str(e.device_type).endswith("CUDA")]
        for event in sorted(events, key=lambda e: e.time_range.start):
            print(f"    {event.time_range.elapsed_us():8.1f} us  {event.name[:90]}")
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16, max_name_column_width=50))


if __name__ == "__main__":
    main()
