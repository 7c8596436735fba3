"""A candidate that runs in a process of its own, as the process that judges it sees it: questions out, plain values and tensors back.

The judge loads the model file, never the candidate. It draws the inputs, computes the references, compares and prints. `worker.py`
is the other side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from ..frontend.problem import Problem, shown
from ..process import Limits, terminable
from .candidate import Trace
from .checks import Outcome, Trial
from .observe import Observed
from .peer import Peer
from .subjects import Construction, Subjects
from .variants import Variant

# Of these the candidate's process says itself what came out: they look at objects, storage, threads and copies that only it has.
# Every comparison with a reference, in all other checks, is the judge's.
OF_THE_WORKER = frozenset(
    {
        "PyTorch left alone", "state_dict", "real tensors", "every element written", "inputs untouched", "nothing cached",
        "same result again", "any order of threads", "no work after returning", "gradients of their own", "autograd modes", "copies",
    }
)  # fmt: skip


class Remote:
    """Stands for a `Candidate` in `verify`. It is started on entry and ended on exit; what ends it before its time raises `Ended`."""

    def __init__(self, problem: Problem, path: Path, target: str, sanitize: str, limits: Limits):
        self.name, self.target = shown(Path(path).absolute()), target
        self._asked = {"model": str(problem.path), "candidate": str(path), "target": target, "sanitize": sanitize}
        self._limits = limits
        self._state: Variant | None = None
        self._disabled: set[str] = set()
        self._traces: list[list[str]] = []
        self._stack = contextlib.ExitStack()
        self.emitted, self.kernels, self.forward_kernels = False, tuple[str, ...](), tuple[str, ...]()

    def __enter__(self) -> Remote:
        self._stack.enter_context(terminable())
        self._peer = Peer("fusewright.verify.worker", self.name, self._limits)
        self._peer.send("load", **self._asked)  # answered while the judge reads the model
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._peer.close()
        self._stack.close()

    @property
    def seconds(self) -> float:
        """Of the processor, that its answers took."""
        return self._peer.seconds

    @property
    def ended(self) -> str:
        return self._peer.ended

    # ---- questions ----

    def load(self) -> None:
        """Wait until the candidate's file has run."""
        found = self._peer.answer()
        self.emitted = bool(found["emitted"])
        self.kernels, self.forward_kernels = (tuple(map(str, found[name])) for name in ("kernels", "forward_kernels"))

    def build_model(self, problem: Problem) -> str:
        return str(self._peer.ask("construct")["class"])

    def begin(self, subjects: Subjects) -> Subjects:
        """The subjects with the candidate elsewhere, where it has the same initial state."""
        found = self._peer.ask("begin", initial=dict(subjects.initial))
        built = frozenset((str(path), str(name)) for path, name in found["built"])
        return replace(subjects, elsewhere=self, built=built)

    def settle(self, trial: Trial) -> None:
        """Tell what was chosen."""
        subjects = trial.subjects
        self._peer.ask(
            "settle", shapes=trial.shapes, variants=trial.variants, rounding=subjects.rounding, shrunk=subjects.shrunk,
            kind_may_change=trial.kind_may_change, carried=subjects.carried,
        )  # fmt: skip

    def check(self, name: str) -> Outcome:
        found = self._peer.ask("check", name=name)
        number = float(found["number"]) if isinstance(found["number"], (int, float)) else None
        return Outcome(found["passed"] is True, str(found["detail"]), number, found["skipped"] is True)

    def trace_of_forward(self) -> Trace:
        found = self._peer.ask("trace")
        return Trace([str(name) for name in found["kernels"]], [str(name) for name in found["library_calls"]])

    @property
    def not_run(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self._peer.ask("not_run")["kernels"]) if not self.ended else ()

    def built_with(self, subjects: Subjects, construction: Construction) -> tuple[Subjects, dict[str, list[int]]]:
        found = self._peer.ask("built_with", construction=construction)["shapes"]
        return subjects, {str(name): [int(size) for size in shape] for name, shape in found.items()}

    def set_state(self, variant: Variant) -> None:
        self._state = variant

    def run(self, subjects: Subjects, variant: Variant, fill: tuple[float, int | None] | None) -> Observed:
        found = self._peer.ask(
            "run", state=self._state, variant=variant, inputs=subjects.on_the_cpu(variant), way=subjects.way, twist=subjects.twist,
            fill=fill, without=sorted(self._disabled), construction=subjects.construction, carried=subjects.carried,
        )  # fmt: skip
        for trace in self._traces:
            trace += [str(kernel) for kernel in found["launched"]]
        tensors = {str(name): tensor.to(self.device) for name, tensor in found["tensors"].items() if isinstance(tensor, Tensor)}
        besides = tuple(map(str, found["besides"]))
        return Observed(tensors, str(found["structure"]), (), found["differentiable"] is True, dict(found["facts"]), besides)

    # ---- what checks ask a Candidate for ----

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.target == "cuda" else "cpu")

    @contextlib.contextmanager
    def launches(self) -> Iterator[list[str]]:
        trace: list[str] = []
        self._traces.append(trace)
        try:
            yield trace
        finally:
            self._traces = [other for other in self._traces if other is not trace]

    @contextlib.contextmanager
    def without(self, kernel: str) -> Iterator[None]:
        self._disabled.add(kernel)
        try:
            yield
        finally:
            self._disabled.discard(kernel)
