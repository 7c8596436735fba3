"""How fast is a candidate? Times that can be argued with by nobody: interleaved, checked, with their uncertainty.

`trial.py` runs the subjects side by side, `gpu.py` holds the clock, `statistics.py` the words.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ..errors import Refused
from ..frontend.problem import Problem, seeded_everything
from ..options import Options
from ..verify.candidate import Candidate
from ..verify.reference import type_of
from . import gpu
from .gpu import Gpu
from .roofline import Ceilings, Placed, Work, floor_ms, limit_ms, placed, rate_kind, reached
from .statistics import CONFIDENCE, Evidence, Ratio, judged
from .trial import CONTROL, MODES, Device, Runs, Subject, Trial, put_back

SECONDS = 6.0  # of interleaved rounds, forward and backward together


# ---- what comes out ----


@dataclass(frozen=True)
class Measurement:
    """One subject in one direction. Milliseconds of one call."""

    ms: float
    low_ms: float
    high_ms: float
    calls: int
    wall_ms: float  # from an idle device to an idle device, by the wall clock
    late_ms: float  # how long the device went on after the call's stream had finished
    speedup: Ratio | None = None  # against eager
    wall_speedup: Ratio | None = None
    extra_bytes: int | None = None  # at its peak, beyond parameters and inputs


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one forward call."""

    name: str
    ms: float
    own: bool  # defined in the candidate's text
    replaces: tuple[str, ...] = ()
    bytes: int | None = None
    flops: int | None = None
    placed: Placed | None = None  # against the ceilings, where its bytes and operations are known


@dataclass(frozen=True)
class Row:
    """One subject: a baseline, the control, or a candidate."""

    name: str
    kind: str  # baseline | control | candidate
    stands: bool
    verdict: str
    forward: Measurement | None = None
    backward: Measurement | None = None  # forward and backward together
    backward_verdict: str = ""
    own_share: float | None = None  # of device time, in kernels that the candidate's text defines
    busy_ms: float | None = None
    kernels: tuple[KernelTime, ...] = ()
    build: Mapping[str, float] = field(default_factory=dict)  # seconds
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timing:
    model: str
    gpu: Mapping[str, Any]
    clocks: Mapping[str, Any]
    flags: Mapping[str, Any]
    versions: Mapping[str, str]
    ceilings: Ceilings
    work: Work
    floor_ms: float | None
    rows: tuple[Row, ...]
    method: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    @property
    def candidates(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind == "candidate")

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    def summary(self) -> dict[str, Any]:
        """The few numbers a line has room for; of the first candidate."""
        found: dict[str, Any] = {"gpu": self.gpu.get("name")}
        for row in self.rows:
            if row.kind == "baseline" and row.forward:
                found[f"{row.name.replace('-', '_')}_ms"] = row.forward.ms
        for row in self.candidates[:1]:
            found |= _shown(row.forward, "new_ms") | {"verdict": row.verdict, "stands": row.stands}
            eager = self.row("eager")
            if row.backward and eager and eager.backward:
                found["backward"] = {"eager_ms": eager.backward.ms, **_shown(row.backward, "new_ms")}
            found |= {"peak_bytes": _peaks(eager, row)} if eager else {}
        return found | {"floor_ms": self.floor_ms}


def _peaks(eager: Row, new: Row) -> dict[str, Any]:
    """Peaks beyond parameters and inputs, of eager and of a candidate: of a forward, and of a training step where one was timed."""
    found: dict[str, Any] = {}
    for direction, ours, theirs in (("forward", new.forward, eager.forward), ("step", new.backward, eager.backward)):
        if ours is not None and theirs is not None:
            found[direction] = {"eager": theirs.extra_bytes, "new": ours.extra_bytes}
    return found


def _shown(measured: Measurement | None, name: str) -> dict[str, Any]:
    if measured is None:
        return {}
    ratio = measured.speedup
    return {name: measured.ms} | ({"speedup": ratio.value, "interval": [ratio.low, ratio.high]} if ratio else {})


# ---- the whole of it ----


def bench(
    problem: Problem,
    candidates: Sequence[Candidate],
    options: Options | None = None,
    modes: Sequence[str] = ("eager",),
    *,
    facts: Sequence[Any] = (),  # bytes, flops and replaced operators of kernels, by name (`emit.KernelFacts`)
    tampered: Mapping[str, list[str]] | None = None,  # what candidates changed while they were loaded, already put back
    seconds: float = SECONDS,
    backward: bool = True,
    builds: bool = False,  # measure cold and warm builds: a fresh process for each
    device: Device | None = None,
    progress: Callable[[str], None] = lambda detail: None,
) -> Timing:
    """Time the model under each mode and every candidate side by side. Refuses where there is no GPU."""
    check_modes(modes)
    if device is None:
        needs_a_gpu(options)
        device = Gpu(torch.device("cuda", torch.cuda.current_device()))
    for position, candidate in enumerate(candidates):
        if candidate.device.type != device.device.type:
            raise Refused(f"{candidate.name}: timing needs a GPU, but it was built for target {candidate.target}")
        if candidate.name in [other.name for other in candidates[:position]]:
            raise Refused(f"{candidate.name}: given twice")
    seed = secrets.randbits(32)
    try:
        with seeded_everything(seed % 2**32):
            trial = Trial(problem, device, random.Random(seed), progress)
            return _bench(trial, candidates, modes, facts, tampered or {}, seconds, backward, builds, seed)
    finally:
        for candidate in reversed(candidates):  # the first one's record is the oldest: nothing patched outlives the timing
            put_back(candidate)


def needs_a_gpu(options: Options | None = None) -> None:
    """Times of a simulated GPU would mean nothing."""
    if options and options.target == "host":
        raise Refused("timing needs a GPU: --target host cannot be timed")
    if not torch.cuda.is_available():
        raise Refused("timing needs a GPU, and PyTorch finds no CUDA device here")


def _bench(
    trial: Trial,
    candidates: Sequence[Candidate],
    modes: Sequence[str],
    facts: Sequence[Any],
    tampered: Mapping[str, list[str]],
    seconds: float,
    backward: bool,
    builds: bool,
    seed: int,
) -> Timing:
    problem, device, progress = trial.problem, trial.device, trial.progress
    flags, clocks_before = gpu.flags(), device.clocks()
    progress("ceilings")
    ceilings = device.ceilings()
    trial.admit(candidates, modes, tampered)
    work = trial.work()
    timed = {"forward": trial.run("forward", seconds * (0.6 if backward else 1.0))}
    if backward:
        timed["backward"] = trial.run("backward", seconds * 0.4)
    clocks_after = device.clocks()
    trial.recheck()
    judge = Judge(trial, timed, work, ceilings, flags, {fact.name: fact for fact in facts})
    rows = tuple(judge.row(subject) for subject in trial.subjects)
    if builds:
        progress("builds")
        rows = tuple(_with_builds(row, problem, candidates) for row in rows)
    method = {
        "seed": seed,
        "rounds": {direction: runs.rounds for direction, runs in timed.items()},
        "confidence": CONFIDENCE,
        "flush": "a buffer of twice the L2 cache written, another read, before every call",
        "forward": "torch.no_grad()",
        "backward": f"forward, then torch.autograd.grad by {'parameters' if trial.trains else 'inputs'}",
    }
    return Timing(
        problem.path.name,
        device.facts(),
        {"before": clocks_before, "after": clocks_after},
        flags,
        gpu.versions(),
        ceilings,
        work,
        judge.floor_ms,
        rows,
        method,
        (*trial.notes, *_clock_notes(clocks_after)),
    )


def check_modes(modes: Sequence[str]) -> None:
    for mode in modes:
        if mode not in MODES:
            raise Refused(f"{mode!r} is not a mode; there are {', '.join(MODES)}")


def _with_builds(row: Row, problem: Problem, candidates: Sequence[Candidate]) -> Row:
    source = next((c.source for c in candidates if c.name == row.name), None)
    found = gpu.build_seconds(problem.path, source) if source is not None else {}
    return replace(row, build={**row.build, **found})


def _clock_notes(after: Mapping[str, Any]) -> list[str]:
    held_back = after.get("held_back")
    return [f"the GPU's clocks were held back: {', '.join(held_back)}"] if held_back else []


# ---- rows ----


class Judge:
    """Turns the times of a trial into rows."""

    def __init__(
        self,
        trial: Trial,
        timed: Mapping[str, Runs],
        work: Work,
        ceilings: Ceilings,
        flags: Mapping[str, Any],
        facts: Mapping[str, Any],
    ):
        self.trial, self.timed, self.work = trial, timed, work
        self.ceilings, self.flags, self.facts = ceilings, flags, facts
        self.dtype = type_of(trial.original, trial.inputs)
        self.floor_ms, self.limit_ms = floor_ms(work, ceilings), limit_ms(work, ceilings)
        self.ask_what_is_compulsory()

    def ask_what_is_compulsory(self) -> None:
        """Where someone was faster than the bytes allow, first make sure that the model needs those bytes."""
        fastest = min((m.median for s in self.trial.subjects if (m := self.timed["forward"].ms(s.name))), default=0.0)
        if fastest >= self.limit_ms:
            return
        self.trial.progress("which bytes are compulsory")
        self.trial.prepare(self.trial.subjects[0])
        share = reached(self.trial.original, self.trial.inputs, self.trial.seed)
        if share < 1:
            needed = share * (self.work.input_bytes + self.work.parameter_bytes) + self.work.output_bytes
            self.limit_ms = limit_ms(self.work, self.ceilings, share)
            self.floor_ms = self.floor_ms and self.floor_ms * needed / max(1, self.work.compulsory_bytes)
            self.trial.notes.append(
                f"the floor counts the {share:.0%} of inputs and parameters that matter to the result"
            )

    def row(self, subject: Subject) -> Row:
        forward, backward = (self.measurement(subject, direction) for direction in ("forward", "backward"))
        busy = gpu.busy_ms(subject.spans)
        kernels = self.kernels(subject)
        total = sum(kernel.ms for kernel in kernels)
        own = sum(kernel.ms for kernel in kernels if kernel.own) / total if total else None
        stands, verdict = self.verdict(subject, forward, "forward", busy)
        again = self.verdict(subject, backward, "backward", None)[1] if backward and subject.kind == "candidate" else ""
        if not subject.gradients and subject.kind == "candidate" and self.trial.subjects[0].gradients:
            subject.notes.append("its result cannot be differentiated: backward was not timed")
        return Row(
            subject.name,
            subject.kind,
            stands,
            verdict,
            forward,
            backward,
            again,
            own if subject.candidate else None,
            busy,
            kernels,
            dict(subject.build),
            tuple(subject.notes),
        )

    def measurement(self, subject: Subject, direction: str) -> Measurement | None:
        runs = self.timed.get(direction)
        found = runs.ms(subject.name) if runs else None
        if runs is None or found is None:
            return None
        late = runs.idle_median(subject.name, lambda s: s.late_ms) - runs.idle_median("eager", lambda s: s.late_ms)
        return Measurement(
            found.median,
            found.low,
            found.high,
            found.count,
            runs.idle_median(subject.name, lambda s: s.wall_ms),
            max(0.0, late),
            runs.ratio(subject.name),
            runs.wall_ratio(subject.name),
            subject.extra_bytes.get(direction),
        )

    def verdict(
        self, subject: Subject, measured: Measurement | None, direction: str, busy: float | None
    ) -> tuple[bool, str]:
        if measured is None:
            return False, subject.failed or "not timed"
        compiled = subject.kind == "baseline" and subject.name != "eager"
        ratio = measured.speedup if subject.candidate or compiled or subject.kind == "control" else None
        evidence = Evidence(
            ratio,
            measured.ms,
            self.limit_ms if subject.candidate and direction == "forward" else 0.0,
            self.timed[direction].ratio(CONTROL) if subject.name != CONTROL else None,
            busy if subject.candidate else None,
            measured.late_ms if subject.candidate else 0.0,
            measured.wall_speedup,
            subject.failed,
            ", ".join(list(dict.fromkeys(subject.tampered))[:4]),
        )
        return judged(evidence)

    def kernels(self, subject: Subject) -> tuple[KernelTime, ...]:
        candidate = subject.candidate
        owner = gpu.own_functions(candidate.source, candidate.kernels) if candidate else {}
        found = []
        for name, ms in gpu.by_kernel(subject.spans, owner).items():
            own = name in owner.values()
            fact = self.facts.get(name) if own else None
            if fact is None or not fact.bytes:
                found.append(KernelTime(name, ms, own, tuple(fact.replaces) if fact else ()))
                continue
            tf32 = [bool(self.flags.get(f"tf32 in {what}")) for what in ("convolutions", "matmuls")]
            kind = rate_kind(self.dtype, fact.replaces, *tf32)
            where = placed(ms, fact.bytes, fact.flops, kind, self.ceilings)
            found.append(KernelTime(name, ms, own, tuple(fact.replaces), fact.bytes, fact.flops, where))
        return tuple(found)
