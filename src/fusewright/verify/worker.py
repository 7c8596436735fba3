"""The process that runs a candidate: it answers what `judge.Remote` asks, one question after another, and judges nothing. `serve` is
its side of the pipes, and that of others that are asked so.

python -m fusewright.verify.worker QUESTIONS ANSWERS: two open file descriptors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import Ended, Refused
from ..frontend.problem import load_problem
from ..frontend.quiet import unsaid
from ..schedule.library import Convolution, Library
from . import wire
from .candidate import load_candidate
from .checks import Trial, behaviour, sentence
from .memory import is_short
from .observe import Once
from .reference import Rounding
from .shrink import Shapes, Sizes
from .subjects import Construction, Subjects, subjects
from .variants import Variant, placed
from .verifier import forward_trace, questions
from .ways import Backward, Calls, Change, Changed, Graded, Hooked

RECORDS: Mapping[str, type] = {
    record.__name__: record
    for record in (Variant, Shapes, Rounding, Library, Convolution, Once, Backward, Calls, Change, Changed, Graded, Hooked, Construction)
}


class Worker:
    """One candidate. Each public method answers the question of its name with plain values and tensors."""

    subjects: Subjects
    trial: Trial

    def load(self, model: str, candidate: str, target: str, sanitize: str) -> dict[str, Any]:
        self.problem = load_problem(Path(model))
        self.candidate = load_candidate(Path(candidate), target, sanitize)
        self.threads = torch.get_num_threads()
        found = self.candidate
        return {"emitted": found.emitted, "kernels": list(found.kernels), "forward_kernels": list(found.forward_kernels)}

    def construct(self) -> dict[str, Any]:
        self.new = self.candidate.build_model(self.problem)
        return {"class": type(self.new).__name__}

    def begin(self, initial: dict[str, Tensor]) -> dict[str, Any]:
        if self.candidate.device.type == "cpu":
            torch.set_num_threads(1)
        self.subjects = replace(subjects(self.problem, self.candidate, self.new), initial=initial)
        self.last: tuple[tuple[str, Construction | None], Subjects] = ("", None), self.subjects
        return {"built": [list(place) for place in self.subjects.built]}

    def settle(
        self, shapes: Shapes, variants: tuple[Variant, ...], rounding: Rounding, shrunk: Sizes | None, kind_may_change: bool, carried: Any
    ) -> dict[str, Any]:
        found = replace(self.subjects, rounding=rounding, shrunk=shrunk, carried=set(carried))
        self.trial = Trial(found, shapes, variants, kind_may_change)
        return {}

    def check(self, name: str) -> dict[str, Any]:
        if name == "PyTorch left alone":
            torch.set_num_threads(self.threads)
            found = behaviour.left_alone(self.candidate)
        else:
            found = questions()[name](self.trial)
        if self.candidate.target == "cuda":
            torch.cuda.empty_cache()
        return {"passed": found.passed, "detail": found.detail, "number": found.number, "skipped": found.skipped}

    def trace(self) -> dict[str, Any]:
        found = forward_trace(self.trial)
        return {"kernels": found.kernels, "library_calls": found.library_calls}

    def not_run(self) -> dict[str, Any]:
        return {"kernels": list(self.candidate.not_run)}

    def built_with(self, construction: Construction) -> dict[str, Any]:
        found = self.subjects.built_with(construction)
        if found is None:
            raise Refused("the original cannot be built so")
        found, shapes = self.candidate.built_with(found, construction)
        self.last = ("", construction), found
        return {"shapes": shapes}

    def run(
        self, state: Variant, variant: Variant, inputs: list[list[Any]], way: Any, twist: str, fill: Any, without: list[str],
        construction: Construction | None, carried: Any,
    ) -> dict[str, Any]:  # fmt: skip
        if self.last[0] != (twist, construction):
            self.last = (twist, construction), self.subjects.twisted(twist) if twist else self.subjects
        found = replace(self.last[1], way=way, carried=set(carried))
        found.set_state(state)
        device = self.candidate.device
        given = [[placed(x, device) if isinstance(x, Tensor) else x for x in values] for values in inputs]
        with contextlib.ExitStack() as stack:
            for kernel in without:
                stack.enter_context(self.candidate.without(kernel))
            launched = stack.enter_context(self.candidate.launches())
            seen = found.run_on(given, variant, fill)
        return {
            "tensors": dict(seen.tensors), "structure": seen.structure, "differentiable": seen.differentiable,
            "facts": dict(seen.facts), "besides": list(seen.besides), "launched": list(launched),
        }  # fmt: skip


def answered(worker: Any, ask: str, given: dict[str, Any]) -> dict[str, Any]:
    start = time.process_time()
    answer: dict[str, Any]
    try:
        answer = getattr(worker, ask)(**given)
    except Ended as ended:
        answer = {"ended": str(ended)}
    except Refused as refused:
        answer = {"refused": str(refused)}
    except BaseException as error:  # the candidate's own code: sys.exit and KeyboardInterrupt too
        answer = {"raised": sentence(error), "memory": is_short(error)}
    return {**answer, "seconds": time.process_time() - start}


def serve(worker: Any, records: Mapping[str, type]) -> None:
    """Each of its public methods answers the question of its name, until nothing more is asked."""
    for descriptor in map(int, sys.argv[1:3]):
        os.set_inheritable(descriptor, False)  # compilers that a candidate starts must not keep them open
    logging.disable(logging.CRITICAL)
    with open(int(sys.argv[1]), "rb") as asked, open(int(sys.argv[2]), "wb") as answers, warnings.catch_warnings(), unsaid():
        warnings.simplefilter("ignore")
        while True:
            try:
                given = wire.receive(asked, records)
            except EOFError:
                return
            wire.send(answers, answered(worker, given.pop("ask"), given))


if __name__ == "__main__":
    serve(Worker(), RECORDS)
