"""The kernels of each variant of a model, of eager and of torch.compile, in the order they ran, with their times on the device.

    PYTHONPATH=src python3 benchmarks/variants.py MODEL.py [CHOICES ...]

CHOICES are the arguments of `choices.Choices`, as in 'own=frozenset(), channels_last=True'; nothing is the predicted variant.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from founding import median_ms

from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import load_problem
from fusewright.options import Options


def show(name: str, run: Callable[[], Any], flush: torch.Tensor) -> None:
    print(f"{name} {median_ms(run, flush):.3f} ms")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = [event for event in profile.events() or [] if str(event.device_type).endswith("CUDA")]
    for event in sorted(events, key=lambda event: event.time_range.start):
        print(f"    {event.time_range.elapsed_us():8.1f} us  {event.name[:120]}")


def main() -> None:
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    problem = load_problem(Path(sys.argv[1]))
    front = read_problem(problem, Options())
    model = problem.model().cuda()
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
    with torch.no_grad():
        for choices in sys.argv[2:] or [""]:
            space: dict[str, Any] = {"__name__": "emitted"}
            exec(compile(front.finish(eval(f"Choices({choices})", {"Choices": Choices}))[1].text, "emitted", "exec"), space)
            new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
            new.load_state_dict(model.state_dict())
            show(f"{problem.path.stem} {choices or 'as predicted'}", lambda new=new: new(*inputs), flush)
        compiled = torch.compile(model)
        show("eager", lambda: model(*inputs), flush)
        show("compile", lambda: compiled(*inputs), flush)


if __name__ == "__main__":
    main()
