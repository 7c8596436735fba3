"""The process that files are first run in: it answers what `probe.Probe` asks.

python -m fusewright.driver.tuning.probe_worker QUESTIONS ANSWERS: two open file descriptors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...verify.candidate import gpu_works, load_candidate
from ...verify.memory import release
from ...verify.worker import serve
from . import building
from .probe import unpacked
from .training import NoGradients, Step

CALLS = 2  # without gradients: what a first one leaves behind, the second finds
STEPS = 3  # from the first backward on forward stores what backward reads; then once more
LOOKING = 0.5  # seconds between two looks for the process that asks


class Worker:
    """Each public method answers the question of its name."""

    module: nn.Module | None = None

    def load(self, parcel: str, target: str, device: int) -> dict[str, Any]:
        """Seconds that loading took, and that a call of eager's takes."""
        start = time.monotonic()
        self.target = target
        self.device = torch.device("cuda" if target == "cuda" else "cpu")
        if target == "cuda":
            torch.cuda.set_device(device)
        self.problem = unpacked(Path(parcel))
        self.inputs = [x.to(self.device) if isinstance(x, torch.Tensor) else x for x in self.problem.inputs()]
        self.module = self.problem.model().to(self.device)
        self.call()
        loaded = time.monotonic()
        self.call()
        called = time.monotonic()
        self.free()
        return {"loading": loaded - start, "call": called - loaded}

    def forward(self, text: str, name: str, place: str | None, libraries: list[str], training: bool) -> dict[str, Any]:
        """`training`: `steps` will be asked for."""
        at = None if place is None else Path(place)
        candidate = load_candidate(text, self.target, "", name, at, behind=self.problem.behind)
        building.load_from(building.units_of(candidate, training), libraries)
        self.module = candidate.build_model(self.problem)
        for _ in range(CALLS):
            self.call()
        if not training:
            self.free()
        return {}

    def steps(self) -> dict[str, Any]:
        assert self.module is not None
        step = Step(self.module, self.inputs)
        with contextlib.suppress(NoGradients):
            for _ in range(STEPS):
                step()
                self.synchronize()
        del step
        self.free()
        return {}

    def works(self) -> dict[str, Any]:
        self.free()
        return {"works": self.target != "cuda" or gpu_works()}

    # ----

    def call(self) -> None:
        assert self.module is not None
        with torch.no_grad():
            self.module(*self.inputs)
        self.synchronize()

    def synchronize(self) -> None:
        if self.target == "cuda":
            torch.cuda.synchronize()

    def free(self) -> None:
        """The GPU's memory is the other process's."""
        self.module = None
        with contextlib.suppress(RuntimeError):
            release()


def end_with(parent: int) -> None:
    """End this process once that one has: what asks nothing more may have been killed while a kernel here never ends."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKING)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    end_with(os.getppid())
    serve(Worker(), {})
