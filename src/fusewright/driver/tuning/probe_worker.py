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
from ...verify.shrink import Sizes, seconds_for, work
from ...verify.subjects import TWIN_SECONDS
from ...verify.variants import CPU, Source, Variant
from ...verify.worker import serve
from . import building
from .probe import inside, unpacked
from .training import NoGradients, Step

CALLS = 2  # without gradients: what a first one leaves behind, the second finds
STEPS = 3  # from the first backward on forward stores what backward reads; then once more
LOOKING = 0.5  # seconds between two looks for the process that asks


class Worker:
    """Each public method answers the question of its name."""

    module: nn.Module | None = None
    sizes: tuple[Sizes, ...] = ()

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

    def choose(self, sizes: tuple[Sizes, ...]) -> dict[str, Any]:
        """Of these sizes those at which the original runs on the CPU: a bad index would end the GPU's context by itself."""
        if self.sizes == sizes:
            return {}
        source, twin = Source(self.problem, home=self.device), self.problem.model().cpu()
        self.chosen = []
        for each in sizes:
            variant = Variant("shapes", each)
            took = work(twin, source.given, each)
            if took is None or seconds_for(*took) > TWIN_SECONDS:
                continue
            with contextlib.suppress(Exception), torch.no_grad():  # the user's own code
                twin(*source.inputs(variant, CPU))
                self.chosen.append(source.inputs(variant, self.device))
        self.sizes = sizes
        return {}

    def forward(self, text: str, name: str, place: str | None, libraries: list[str], training: bool) -> dict[str, Any]:
        """Its own calls at the example's sizes. `training`: libraries for steps are among these."""
        at = None if place is None else Path(place)
        candidate = load_candidate(text, self.target, "", name, at, behind=self.problem.behind)
        building.load_from(building.units_of(candidate, training), libraries)
        self.module = candidate.build_model(self.problem)
        for _ in range(CALLS):
            self.call()
        return {}

    def others(self, training: bool) -> dict[str, Any]:
        """At the sizes that were chosen last."""
        for inputs in self.chosen:
            with contextlib.suppress(Exception):  # it has another original then, or too little memory: what it raises, it raises there
                self.step(inputs) if training else self.call(inputs)
            self.synchronize()  # an error that stays is raised again
        return {}

    def steps(self) -> dict[str, Any]:
        """Those of training, at the example's sizes."""
        with contextlib.suppress(NoGradients):
            self.step(self.inputs)
        return {}

    def works(self) -> dict[str, Any]:
        """Nothing is held any more, and the GPU can be used."""
        self.free()
        return {"works": self.target != "cuda" or gpu_works()}

    # ----

    def free(self) -> None:
        """The GPU's memory is the other process's."""
        self.module = None
        with contextlib.suppress(RuntimeError):
            release()

    def call(self, inputs: list[Any] | None = None) -> None:
        assert self.module is not None
        with torch.no_grad():
            self.module(*(self.inputs if inputs is None else inputs))
        self.synchronize()

    def step(self, inputs: list[Any]) -> None:
        assert self.module is not None
        step = Step(self.module, inputs)
        for _ in range(STEPS):
            step()
            self.synchronize()

    def synchronize(self) -> None:
        if self.target == "cuda":
            torch.cuda.synchronize()


def end_with(parent: int) -> None:
    """End this process once that one has: what asks nothing more may have been killed while a kernel here never ends."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKING)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    end_with(os.getppid())
    inside()
    serve(Worker(), {})
