"""The subjects of a comparison, run side by side: who takes part, what each call gets, and whether its result is right.

In each round the inputs get new values in the same storage, eager PyTorch computes what is expected of them, and every
subject runs once from an idle device and a random number of times after a flush, in a random order. Each result is
compared and then overwritten with NaN, so that no later call finds a right answer in the memory it is handed. One of
the subjects is the eager model a second time: how much it differs from itself is how much nothing is.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import Refused, Short
from ..frontend.problem import Problem, check_output, shown
from ..verify.budget import GROSS
from ..verify.candidate import Candidate
from ..verify.checks import sentence
from ..verify.memory import release
from ..verify.observe import Observed, gradient_targets
from ..verify.subjects import Subjects, subjects, write_state
from ..verify.variants import Variant, named_state, overwrite
from ..verify.verifier import compact_trial
from .gpu import Sample, Span
from .roofline import Ceilings, Work, work_of
from .statistics import Ratio, Spread, by_round, interleaved, median, ratio_of, rounds_for, spread

_now = time.perf_counter  # before any candidate's code runs

MODES: Mapping[str, Mapping[str, Any] | None] = {  # baselines: what torch.compile is told; None leaves the model alone
    "eager": None,
    "compile": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
CONTROL = "eager, again"
OUTLIERS = {"forward": 1e-3, "backward": 2e-2}  # elements that may differ grossly: a maximum that moved, a jump


class Device(Protocol):
    """What times and watches a call: a GPU, or a stand-in where the logic around it is tested."""

    device: torch.device

    def queued(self, call: Callable[[], Any]) -> tuple[float, Any]: ...
    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]: ...
    def spans(self, call: Callable[[], Any]) -> list[list[Span]]: ...
    def peak_bytes(self, call: Callable[[], Any]) -> int: ...
    def ceilings(self) -> Ceilings: ...
    def settle(self) -> None: ...
    def facts(self) -> dict[str, Any]: ...
    def clocks(self) -> dict[str, Any]: ...


@dataclass(eq=False)
class Subject:
    """Something that is timed. `failed` is why it is timed no longer; `gradients` whether it has any."""

    name: str
    kind: str
    module: nn.Module  # whose parameters are read and whose buffers change
    run: Callable[..., Any]  # the module, or what torch.compile made of it
    candidate: Candidate | None = None
    failed: str = ""
    tampered: list[str] = field(default_factory=list)  # what it changed in PyTorch or Python; put back before timing
    changed_before: frozenset[str] = frozenset()  # by others, since its file was loaded: torch.compile patches too
    gradients: bool = True
    build: dict[str, float] = field(default_factory=dict)
    extra_bytes: dict[str, int] = field(default_factory=dict)
    spans: list[list[Span]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Runs:
    """Times by subject and round, of one direction."""

    rounds: int = 0
    queued: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    idle: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)

    def ms(self, name: str) -> Spread | None:
        """Of the rounds, as the ratio is; the count is of the calls."""
        times = self.queued.get(name)
        return replace(spread(by_round(times)), count=sum(map(len, times.values()))) if times else None

    def ratio(self, name: str, baseline: str = "eager") -> Ratio | None:
        return self._ratio(self.queued, name, baseline, lambda ms: ms)

    def wall_ratio(self, name: str, baseline: str = "eager") -> Ratio | None:
        return self._ratio(self.idle, name, baseline, lambda sample: sample.wall_ms)

    def _ratio(self, times: Mapping[str, Any], name: str, baseline: str, of: Callable[[Any], float]) -> Ratio | None:
        both = sorted(set(times.get(name, {})) & set(times.get(baseline, {})))
        if not both or name == baseline:
            return None
        mine, theirs = (by_round({n: [of(x) for x in times[who][n]] for n in both}) for who in (name, baseline))
        return ratio_of(theirs, mine)

    def idle_median(self, name: str, of: Callable[[Sample], float]) -> float:
        found = [of(sample) for samples in self.idle.get(name, {}).values() for sample in samples]
        return median(found) if found else 0.0


class Trial:
    """Holds the subjects and the inputs while they are timed."""

    def __init__(self, problem: Problem, device: Device, chance: random.Random, progress: Callable[[str], None]):
        self.problem, self.device, self.chance, self.progress = problem, device, chance, progress
        self.subjects: list[Subject] = []
        self.notes: list[str] = []
        self.original = problem.model().to(device.device)
        given = problem.inputs(chance.getrandbits(16))
        self.given = [x.to(device.device) if isinstance(x, Tensor) else x for x in given]
        self.inputs = [x.clone() if isinstance(x, Tensor) else x for x in self.given]
        self.state = {name: t.detach().clone() for name, t in named_state(self.original)}
        self.renewal, self.seed = (0, 1.0), 0
        self.cotangents: list[Tensor] = []
        try:
            with torch.no_grad():
                result = self.original(*self.inputs)
        except Exception as error:  # the user's own code
            raise Refused(f"{shown(problem.path)}: Model.forward() raised {sentence(error)}") from error
        check_output(result, problem.path)

    def work(self) -> Work:
        self.restore(self.original)
        return work_of(self.original, self.inputs)

    # ---- who takes part

    def admit(self, candidates: Sequence[Candidate], modes: Sequence[str], tampered: Mapping[str, list[str]]) -> None:
        """Build every subject with the original's parameters and call it a few times; one that raises stays outside."""
        while_loading = {c.name: [*tampered.get(c.name, []), *put_back(c)] for c in candidates}
        baselines = list(dict.fromkeys(["eager", *modes]))
        makers: list[tuple[str, str, Callable[[], nn.Module], Candidate | None]] = [
            (mode, "baseline", self.problem.model, None) for mode in baselines
        ]
        makers.insert(1, (CONTROL, "control", self.problem.model, None))
        makers += [(c.name, "candidate", functools.partial(c.build_model, self.problem), c) for c in candidates]
        for name, kind, make, candidate in makers:
            self.progress(name)
            known = frozenset([*candidate.before.patched(), *candidate.before.overridden()]) if candidate else frozenset()
            try:
                module = make().to(self.device.device)
            except Refused as refusal:  # it cannot even be built
                self.subjects.append(Subject(name, kind, nn.Module(), nn.Module(), candidate, str(refusal)))
                continue
            write_state(module, self.state)
            told = MODES.get(name) if kind == "baseline" else None
            run = module if told is None else torch.compile(module, **told)
            subject = Subject(name, kind, module, run, candidate, changed_before=known)
            subject.tampered += while_loading.get(name, []) if candidate else []
            self.subjects.append(subject)
            self.look_for_tampering(subject)
            self.warm_up(subject, "forward")
            self.look_for_tampering(subject)

    def look_for_tampering(self, subject: Subject) -> None:
        if subject.candidate:
            subject.tampered += put_back(subject.candidate, subject.changed_before)

    def warm_up(self, subject: Subject, direction: str) -> None:
        call = self.call(subject, direction)
        began = _now()
        try:
            for count in range(3):
                self.prepare(subject)
                self.device.from_idle(call)
                if count == 0 and direction == "forward":
                    subject.build["first_call_s"] = _now() - began
            self.prepare(subject)
            subject.extra_bytes[direction] = self.device.peak_bytes(call)
        except NoGradients:
            subject.gradients = False
        except Exception as error:  # the candidate's own code, or a mode that this model or this machine does not take
            if subject.name == "eager":
                raise Refused(f"{shown(self.problem.path)}: the {direction} raised {sentence(error)}") from error
            if direction == "forward":
                subject.failed = f"raised {sentence(error)}"
            else:
                subject.gradients = False
                subject.notes.append(f"backward raised {sentence(error)}")
        try:
            self.device.settle()
        except RuntimeError as error:
            raise Refused(f"the GPU stopped working after {subject.name}: {sentence(error)}") from error

    # ---- one call

    def call(self, subject: Subject, direction: str) -> Callable[[], Any]:
        if direction == "forward":
            return functools.partial(_forward, subject.run, self.inputs)
        inputs = self.training_inputs()
        targets = list(gradient_targets(subject.module, inputs).values())
        return functools.partial(_forward_backward, subject.run, inputs, targets, self.cotangents)

    @property
    def trains(self) -> bool:
        return any(p.requires_grad for p in self.original.parameters())

    def training_inputs(self) -> list[Any]:
        """In the same storage, without gradients as in training; with them only where the model has no parameters to train."""
        return [x.detach().requires_grad_(not self.trains) if _smooth(x) else x for x in self.inputs]

    def renew(self) -> None:
        """New values for the next round: other rows first, all of them a little smaller. They stay in their domain."""
        self.renewal = (self.chance.randrange(1 << 16), self.chance.uniform(0.5, 1.0))
        self.seed = self.chance.getrandbits(31)

    def prepare(self, subject: Subject) -> None:
        """The round's inputs in the storage they always have, the buffers and random numbers as for everyone else."""
        shift, scale = self.renewal
        with torch.no_grad():
            for target, value in zip(self.inputs, self.given, strict=True):
                if isinstance(target, Tensor):
                    rolled_into(target, value, shift)
                    if target.is_floating_point():
                        target.mul_(scale)
        self.restore(subject.module)
        torch.manual_seed(self.seed)
        if subject.run is not subject.module:
            torch.compiler.cudagraph_mark_step_begin()

    def restore(self, module: nn.Module) -> None:
        with torch.no_grad():
            for name, b in module.named_buffers():
                if name in self.state and self.state[name].shape == b.shape:
                    overwrite(b, self.state[name])

    # ---- all rounds of one direction

    def run(self, direction: str, seconds: float) -> Runs:
        runs = Runs()
        eager = self.subjects[0]
        if direction == "backward":
            self.cotangents = self.draw_cotangents()
            for subject in self.taking_part("forward"):
                self.progress(f"{subject.name}, backward")
                self.warm_up(subject, "backward")
        names = [s.name for s in self.taking_part(direction)]
        if eager.name not in names:
            self.notes.append("the result has no gradient: backward was not timed")
            return runs
        self.progress(f"{direction}: how long a round takes")
        began = _now()
        self.rounds(direction, interleaved(names, 2, self.chance), Runs())
        count = rounds_for((_now() - began) / 2, seconds, self.chance)
        self.rounds(direction, interleaved(names, count, self.chance), runs)
        runs.rounds = count
        if direction == "forward":
            self.profile()
        return runs

    def rounds(self, direction: str, plan: Sequence[Sequence[tuple[str, int]]], runs: Runs) -> None:
        for number, turn in enumerate(plan):
            if number % 10 == 0:
                self.progress(f"{direction}: round {number} of {len(plan)}")
            try:
                self.one_round(direction, turn, runs, number)
            except RuntimeError as error:  # what a subject raises is caught there; this is a GPU that gave up
                after = ", ".join(s.name for s in self.subjects if s.failed)
                where = f" after {after}" if after else ""
                raise Refused(f"the GPU stopped working{where}: {sentence(error)}") from error

    def profile(self) -> None:
        for subject in self.taking_part("forward"):
            if subject.kind == "control":
                continue
            self.progress(f"{subject.name}: profile")
            self.prepare(subject)
            try:
                subject.spans = self.device.spans(self.call(subject, "forward"))
            except RuntimeError as error:
                self.notes.append(f"{subject.name} was not profiled: {sentence(error)}")

    def taking_part(self, direction: str) -> list[Subject]:
        return [s for s in self.subjects if not s.failed and (direction == "forward" or s.gradients)]

    def one_round(self, direction: str, turn: Sequence[tuple[str, int]], runs: Runs, number: int) -> None:
        """Expected values by eager PyTorch, then everyone in turn, each result compared and wiped out."""
        eager = self.subjects[0]
        self.renew()
        self.prepare(eager)
        expected = [t.detach().clone() for t in tensors(self.call(eager, direction)())]
        for name, repeats in turn:
            subject = next(s for s in self.subjects if s.name == name)
            call = self.call(subject, direction)
            for count in range(repeats + 1):
                if subject.failed:
                    break
                self.prepare(subject)
                try:
                    if count == 0:
                        sample, result = self.device.from_idle(call)
                        runs.idle.setdefault(name, {}).setdefault(number, []).append(sample)
                    else:
                        ms, result = self.device.queued(call)
                        runs.queued.setdefault(name, {}).setdefault(number, []).append(ms)
                except Exception as error:  # the candidate's own code
                    subject.failed = f"raised {sentence(error)} in round {number} of {direction}"
                    break
                found = disagreement(tensors(result), expected, OUTLIERS[direction])
                if found and subject.kind == "baseline":
                    if found not in subject.notes and len(subject.notes) < 3:
                        subject.notes.append(f"{direction}, unlike eager: {found}")
                elif found:
                    subject.failed = f"wrong result in round {number} of {direction}: {found}"
                wipe(tensors(result), [*self.inputs, *subject.module.parameters(), *subject.module.buffers()])
                del result

    def draw_cotangents(self) -> list[Tensor]:
        self.prepare(self.subjects[0])
        with torch.enable_grad():
            result = self.original(*self.training_inputs())
        generator = torch.Generator().manual_seed(5)
        shapes = [t for t in tensors(result) if t.requires_grad]
        return [torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in shapes]

    # ---- afterwards

    def recheck(self) -> None:
        """Every candidate once more, the module that was timed, on new values and parameters, within the budget."""
        for subject in self.subjects:
            self.look_for_tampering(subject)
            if subject.candidate and not subject.failed:
                self.progress(f"{subject.name}: verified again")
                found, note = rechecked(self.problem, subject.candidate, subject.module, self.chance.getrandbits(16))
                subject.failed = f"wrong result after timing: {found}" if found else ""
                subject.notes += [note] if note else []


def put_back(candidate: Candidate, known: Set[str] = frozenset()) -> list[str]:
    """What a candidate changed in PyTorch or Python, undone: functions and flags are the same for everyone."""
    before = candidate.before
    changed = [name for name in [*before.patched(), *before.overridden(), *before.changed_flags()] if name not in known]
    if changed:
        before.restore()
    return changed


class NoGradients(Exception):
    """The result of a call cannot be differentiated where the original's can."""


def _forward(run: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    with torch.no_grad():
        return run(*inputs)


def _forward_backward(
    run: Callable[..., Any], inputs: Sequence[Any], targets: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Any:
    with torch.enable_grad():
        result = run(*inputs)
    outputs = [t for t in tensors(result) if t.requires_grad]
    if not outputs or not targets or len(outputs) != len(cotangents):
        raise NoGradients
    gradients = torch.autograd.grad(outputs, targets, cotangents, allow_unused=True)
    return [t.detach() for t in tensors(result)], [g for g in gradients if g is not None]


def _smooth(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def rolled_into(target: Tensor, value: Tensor, shift: int) -> None:
    """target = value with its first dimension rolled, without a third tensor."""
    rows = value.shape[0] if value.dim() else 1
    shift %= rows
    if shift == 0:
        target.copy_(value)
    else:
        target[: rows - shift].copy_(value[shift:])
        target[rows - shift :].copy_(value[:shift])


def wipe(results: Sequence[Tensor], kept: Sequence[Any]) -> None:
    """Fill results with NaN, unless they are a view of something that must stay."""
    held = {t.untyped_storage().data_ptr() for t in kept if isinstance(t, Tensor)}
    with torch.no_grad():
        for t in results:
            spread_out = t.numel() and all(step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1)
            if not spread_out or t.untyped_storage().data_ptr() in held:
                continue
            t = t.detach()
            if t.is_floating_point() or t.is_complex():
                t.fill_(float("nan"))
            elif t.dtype == torch.bool:
                t.logical_not_()
            else:
                t.fill_(torch.iinfo(t.dtype).max // 3)


def disagreement(got: Sequence[Tensor], expected: Sequence[Tensor], outliers: float) -> str:
    """What is grossly wrong: a stale, missing, unwritten or unfinished result. Rounding is `verify`'s to judge."""
    if len(got) != len(expected):
        return f"{len(got)} tensors instead of {len(expected)}"
    for position, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"tensor {position} is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
        if not a.numel():
            continue
        if not b.is_floating_point():
            wrong = int((a != b).sum())
        else:
            kind = torch.isfinite(a) != torch.isfinite(b)
            if bool(kind.any()):
                return f"tensor {position}: {int(kind.sum())} of {a.numel()} elements differ in what is finite"
            x, y = (torch.nan_to_num(t.detach().float(), 0.0, 0.0, 0.0) for t in (a, b))
            scale = y.abs() + torch.linalg.vector_norm(y) / a.numel() ** 0.5
            wrong = int(((x - y).abs() > GROSS * scale).sum())
        if wrong > outliers * a.numel():
            return f"tensor {position}: {wrong} of {a.numel()} elements are wrong"
    return ""


def rechecked(problem: Problem, candidate: Candidate, module: nn.Module, seed: int) -> tuple[str, str]:
    """(what is wrong with a candidate after it was timed, if anything; a note): new values, random parameters."""
    subject = subjects(problem, candidate, module)
    given = subject.source.given
    sizes = tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in given)
    variant = Variant("after timing", sizes, seed=seed, parameters="random")
    subject.set_state(variant)
    try:
        got = subject.run_candidate(variant)
    except Exception as error:  # the candidate's own code
        return f"it raised {sentence(error)}", ""
    try:
        if large_on_gpu(subject, got):
            del got
            return compared_in_parts(subject, variant), ""
        misses = subject.judge(got, subject.references(variant), variant, kind_may_change=True)
    except (torch.OutOfMemoryError, Short):  # fp64 takes twice the memory
        release()
        got = subject.run_candidate(variant)
        eager = subject.run_eager(variant)
        names = sorted(eager.tensors)
        if sorted(got.tensors) != names:
            return "it gave other tensors", ""
        rough = disagreement([got.tensors[n] for n in names], [eager.tensors[n] for n in names], OUTLIERS["forward"])
        return rough, "verified again against eager PyTorch only: an fp64 reference does not fit on this GPU"
    failed = [f"{name} {miss}" for name, miss in misses.items() if not miss.passed]
    return (failed[0] if failed else ""), ""


def large_on_gpu(subject: Subjects, got: Observed) -> bool:
    """References of the whole batch would take gigabytes."""
    return subject.device.type == "cuda" and sum(t.numel() for t in got.tensors.values()) > 2**22


def compared_in_parts(subject: Subjects, variant: Variant) -> str:
    """What is wrong, if anything, found within the memory that verification may take."""
    trial = compact_trial(subject)
    trial.compare(variant)
    failed = [f"{found.tensor} {found.miss}" for found in trial.findings if not found.miss.passed]
    return next(iter([*trial.errors.values(), *failed]), "")
