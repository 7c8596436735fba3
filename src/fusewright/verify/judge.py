"""A candidate that runs in a process of its own, as the process that judges it sees it: questions out, plain values and tensors back.

The judge loads the model file, never the candidate. It draws the inputs, computes the references, compares and prints. `worker.py`
is the other side.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import Ended, Raised, Refused
from ..frontend.problem import Problem, shown
from ..process import Limits, now, signal_name, terminable, watch, with_this_package
from . import wire
from .candidate import Trace
from .checks import Outcome, Trial
from .observe import Observed
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
        self.seconds = 0.0
        self.ended = ""
        self._asked = {"model": str(problem.path), "candidate": str(path), "target": target, "sanitize": sanitize}
        self._limits = limits
        self._state: Variant | None = None
        self._disabled: set[str] = set()
        self._traces: list[list[str]] = []
        self._why: list[str] = []
        self._stack = contextlib.ExitStack()
        self.emitted, self.kernels, self.forward_kernels = False, tuple[str, ...](), tuple[str, ...]()

    def __enter__(self) -> Remote:
        self._stack.enter_context(terminable())
        questions, answers = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fusewright.verify.worker", str(questions[0]), str(answers[1])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what the candidate prints is no verdict
            env=with_this_package(os.environ),
            start_new_session=True,
            pass_fds=(questions[0], answers[1]),
        )
        os.close(questions[0])
        os.close(answers[1])
        self._to, self._from = os.fdopen(questions[1], "wb"), os.fdopen(answers[0], "rb")
        start = now()
        self._watcher = threading.Thread(target=lambda: self._why.append(watch(self.process, start, self._limits, poll=0.02)), daemon=True)
        self._watcher.start()
        wire.send(self._to, {"ask": "load", **self._asked})  # answered while the judge reads the model
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._to.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.5)
        if self.process.poll() is None:
            self.process.kill()
        self._watcher.join()
        self._from.close()
        self._stack.close()

    # ---- questions ----

    def load(self) -> None:
        """Wait until the candidate's file has run."""
        found = self._answer()
        self.emitted = bool(found["emitted"])
        self.kernels, self.forward_kernels = (tuple(map(str, found[name])) for name in ("kernels", "forward_kernels"))

    def build_model(self, problem: Problem) -> str:
        return str(self._ask("construct")["class"])

    def begin(self, subjects: Subjects) -> Subjects:
        """The subjects with the candidate elsewhere, where it has the same initial state."""
        found = self._ask("begin", initial=dict(subjects.initial))
        built = frozenset((str(path), str(name)) for path, name in found["built"])
        return replace(subjects, elsewhere=self, built=built)

    def settle(self, trial: Trial) -> None:
        """Tell what was chosen."""
        subjects = trial.subjects
        given = {"shapes": trial.shapes, "variants": trial.variants, "rounding": subjects.rounding, "shrunk": subjects.shrunk}
        self._ask("settle", **given, kind_may_change=trial.kind_may_change, carried=subjects.carried)

    def check(self, name: str) -> Outcome:
        found = self._ask("check", name=name)
        number = float(found["number"]) if isinstance(found["number"], (int, float)) else None
        return Outcome(found["passed"] is True, str(found["detail"]), number, found["skipped"] is True)

    def trace_of_forward(self) -> Trace:
        found = self._ask("trace")
        return Trace([str(name) for name in found["kernels"]], [str(name) for name in found["library_calls"]])

    @property
    def not_run(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self._ask("not_run")["kernels"]) if not self.ended else ()

    def built_with(self, subjects: Subjects, construction: Construction) -> tuple[Subjects, dict[str, list[int]]]:
        found = self._ask("built_with", construction=construction)["shapes"]
        return subjects, {str(name): [int(size) for size in shape] for name, shape in found.items()}

    def set_state(self, variant: Variant) -> None:
        self._state = variant

    def run(self, subjects: Subjects, variant: Variant, fill: tuple[float, int | None] | None) -> Observed:
        found = self._ask(
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

    # ---- the wire ----

    def _ask(self, what: str, **given: Any) -> Mapping[str, Any]:
        if self.ended:
            raise Ended(self.ended)
        try:
            wire.send(self._to, {"ask": what, **given})
        except OSError as error:
            raise self._gone("") from error
        return self._answer()

    def _answer(self) -> Mapping[str, Any]:
        try:
            answer = wire.receive(self._from)
            self.seconds += float(answer["seconds"])
            known = {name: answer[name] for name in ("refused", "ended", "raised") if name in answer}
        except EOFError as error:
            raise self._gone("") from error
        except (wire.Nonsense, KeyError, TypeError, ValueError) as error:
            raise self._gone("its process answered nonsense") from error
        if "refused" in known:
            raise Refused(str(known["refused"]))
        if "ended" in known:
            raise Ended(str(known["ended"]))
        if "raised" in known:
            raise (torch.OutOfMemoryError if answer.get("memory") is True else Raised)(str(known["raised"]))
        return dict(answer)

    def _gone(self, why: str) -> Ended:
        """Its process has ended, or is ended now; says what for."""
        with contextlib.suppress(OSError):
            self._to.close()
        if why:
            self.process.kill()
        self._watcher.join()
        status, limit = self.process.returncode, self._why[0]
        how = f"ended by {signal_name(status)}" if status < 0 else f"ended its process with status {status}"
        self.ended = f"{self.name}: {why or (self._limits.why(limit) if limit else how)}"
        return Ended(self.ended)
