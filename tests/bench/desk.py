"""A stand-in for the GPU, so that everything around the clock can be tested anywhere.

It takes its time from the number of operators a call runs, not from a busy machine: 0.01 ms each, with a little noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.bench.gpu import Sample, Span
from fusewright.bench.roofline import Ceilings
from fusewright.frontend.problem import Problem, load_problem
from fusewright.verify.candidate import Candidate, load_candidate

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(16) + 1)

    def forward(self, x):
        return torch.softmax(torch.tanh(x) * self.scale, 1)


def get_inputs():
    return [torch.rand(32, 16)]


def get_init_inputs():
    return []
"""
FORWARD = "torch.softmax(torch.tanh(x) * self.scale, 1)"


def candidate_text(forward: str, before: str = "", init: str = "") -> str:
    """The model under its new name, with another forward."""
    text = MODEL.replace("class Model(", "class ModelNew(").replace(f"return {FORWARD}", forward)
    text = text.replace("+ 1)", f"+ 1)\n        {init}") if init else text
    return text.replace("class ModelNew", f"{before}\n\nclass ModelNew") if before else text


def problem_in(folder: Path, text: str = MODEL) -> Problem:
    (folder / "model.py").write_text(text)
    return load_problem(folder / "model.py")


def candidate(text: str, name: str = "new.py") -> Candidate:
    return load_candidate(text, "host", name=name)


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Desk:
    """What a profile or the ceilings would say is given."""

    bandwidth: float = 1e15
    kernels: dict[str, list[tuple[str, float]]] = field(default_factory=dict)  # by the call's position: name, µs
    late_ms: float = 0.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    calls: int = 0
    profiled: int = 0

    def queued(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self.calls += 1
        with Operators() as operators:
            result = call()
        # Noise that is spread evenly wherever it begins: how many calls come before is the machine's affair, and of medians of drawn
        # numbers one in twenty differs.
        return 0.01 * operators.count * (0.97 + 0.06 * (self.calls * 0.6180339887 % 1.0)), result

    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        ms, result = self.queued(call)
        return Sample(ms, self.late_ms, ms), result

    def spans(self, call: Callable[[], Any]) -> list[list[Span]]:
        call()
        self.profiled += 1
        at, spans = 0.0, []
        for name, microseconds in self.kernels.get(str(self.profiled - 1), []):
            spans.append(Span(name, at, at + microseconds))
            at += microseconds
        return [spans] if spans else []

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        call()
        return 4096

    def ceilings(self) -> Ceilings:
        return Ceilings(self.bandwidth, self.bandwidth, 50e12, 395e12, 741e12, 60_000_000)

    def settle(self) -> None:
        return None

    def facts(self) -> dict[str, Any]:
        return {"name": "a desk", "l2_bytes": 60_000_000}

    def clocks(self) -> dict[str, Any]:
        return {"sm_clock_mhz": 1980.0, "held_back": []}
