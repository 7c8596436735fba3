"""Which of several right files is the fastest, by running them: the planner predicts, a GPU knows.

A file differs from another by what is left to PyTorch: convolutions and products that a kernel of ours could compute, and regions whose
kernels lose to PyTorch's own; and by how the values lie that the library's convolutions read and write. Every variant is timed in
turn with eager, in several rounds; what was chosen is kept in the cache, so that the same model gives the same file again.
Where nothing beats eager, the file keeps the original's forward.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import __version__
from ...bench.timing import GAIN, SECONDS, Clock, in_turn
from ...emit import Emitted
from ...errors import Refused, first_line
from ...frontend.problem import Problem
from ...ir.plan import Plan
from ...options import cache_root, private
from ...schedule.footprint import bound
from ...schedule.layout import coarse_calls
from ...schedule.training import AS_PREDICTED, EVERY_WEIGHT, Training
from ...steps import Step
from ...verify.candidate import Candidate, gpu_works, load_candidate
from . import building
from .choices import (
    LIBRARY,
    ORIGINAL,
    PREDICTED,
    Choices,
    Compile,
    Named,
    able_of,
    candidates,
    leavable,
    own_of,
    too_coarse,
    without_regions,
)
from .prediction import plan_ms
from .probe import Fault, Probe, Stopped
from .training import EVERY_KERNEL, Trainer, left_words
from .weights import weighed

EVERY_KERNEL_OF_OURS = Training(own_weights=EVERY_WEIGHT)  # as training is timed
HOPELESS = 2.0  # times what is predicted of the best: such a variant is not built
LITTLE = 56 << 20  # bytes beyond eager's bound of 8 MB that speed is worth, where nothing else beats eager
BUILDING = 45.0  # seconds for writing and building variants, after which none is begun: a network is to be through in 90


@dataclass(eq=False)
class TimedVariant:
    """One file that the model could become, and what was measured of it."""

    name: str
    choices: Choices
    made: Plan | None = None
    emitted: Emitted | None = None
    candidate: Candidate | None = None
    module: nn.Module | None = None
    error: Exception | None = None  # why it cannot be loaded
    ms: float = float("inf")
    peak: int = -1  # bytes that a call holds beyond what is there before it; not known yet


@dataclass(frozen=True)
class Tuned:
    choices: Choices
    rows: tuple[tuple[str, float], ...] = ()  # every variant that was timed, and its milliseconds
    notes: tuple[str, ...] = ()
    cached: bool = False
    key: str = ""  # under which to remember it once the chosen file has verified; "" where it is not to be kept
    record_key: str = ""  # and to add it to a record
    record_note: str = ""  # why a record's choices were not taken
    whole: bool = True  # no variant failed, so that another run would find the same
    degraded: tuple[str, ...] = ()  # variants with kernels of ours that failed: one of them may have been the fastest
    steps: tuple[tuple[str, float], ...] = ()  # every way to train that was timed, and the milliseconds of a step

    def to_dict(self) -> dict[str, Any]:
        rows, steps = ([{"name": name, "ms": ms} for name, ms in found] for found in (self.rows, self.steps))
        return {"choices": self.choices.to_dict(), "timed": rows, "steps": steps, "notes": list(self.notes), "cached": self.cached}


def tune(
    problem: Problem,
    compile_: Compile,
    clock: Clock,
    target: str = "cuda",
    progress: Callable[[str], None] = lambda detail: None,
    seconds: float = SECONDS,
    trained: Compile | None = None,
    probe: Probe | None = None,
) -> Tuned:
    """Time the variants to run a model and say which to take. `trained` writes kernels for gradients too; None: nobody trains it.
    `probe`: where each file runs first; None: here."""
    return Tuner(problem, compile_, clock, target, progress, seconds, trained, probe).run()


@dataclass
class Tuner:
    problem: Problem
    compile: Compile
    clock: Clock
    target: str
    progress: Callable[[str], None]
    seconds: float
    trained: Compile | None = None
    probe: Probe | None = None
    variants: list[TimedVariant] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: bool = True
    degraded: list[str] = field(default_factory=list)
    spent: float = 0.0  # seconds of writing and building
    untried: list[str] = field(default_factory=list)  # variants for which there was no time
    steps: tuple[tuple[str, float], ...] = ()
    ahead: TimedVariant | None = None  # a file with kernels for gradients
    expected: float = math.inf  # milliseconds that are predicted of the best variant so far
    left: int = 0  # steps that will be said, at most
    library_expected: float = 0.0  # and with the library's convolutions and products

    def run(self) -> Tuned:
        self.device = torch.device("cuda" if self.target == "cuda" else "cpu")
        self.inputs = [x.to(self.device) if isinstance(x, torch.Tensor) else x for x in self.problem.inputs()]
        self.eager = TimedVariant("eager", ORIGINAL.choices, module=self.problem.model().to(self.device))
        predicted, _ = self.compile(PREDICTED)
        able = able_of(predicted, self.compile)
        if not predicted.kernels and not able:
            return Tuned(PREDICTED)
        known = candidates(predicted, able)
        build_and_time, regions, last, training = 2, 1, 1, 3 if self.trained is not None else 0
        self.left = build_and_time * (1 + len(known.changes)) + regions + last + training
        self.add_all(known.first, trained_too=True)
        best = self.fastest()
        self.build_ahead(change(best.choices, self.own_of(best)) for change in known.changes)
        for change in known.changes:
            changed = change(best.choices, self.own_of(best))
            if changed is not None:
                best = self.better(best, self.add(changed.name, changed.choices))
        best = self.leave(best)
        self.time([best, self.eager])
        best = best if self.gains(best) and not self.is_heavy(best) else self.little_heavier() or best
        chosen = best.choices if self.gains(best) and self.holds_little(best) else ORIGINAL.choices
        if chosen.plain:
            times = f"kernels {best.ms:.4g} ms, PyTorch {self.eager.ms:.4g} ms"
            self.notes.append(f"{times if best.module is not None else 'no variant runs'}: the original's forward is kept")
        elif self.trained is not None:
            chosen = replace(chosen, training=self.in_training(chosen))
        for variant in self.variants:
            holds = f"{variant.peak / 2**20:.0f} MB where eager holds {self.eager.peak / 2**20:.0f}"
            if variant is best and not chosen.plain and self.is_heavy(variant):
                self.notes.append(f"{variant.name}: {holds}; no variant that holds less beats eager")
            elif self.is_heavy(variant) and variant.ms < GAIN * min(best.ms, self.eager.ms):
                self.notes.append(f"{variant.name} ({variant.ms:.4g} ms) was not taken for its memory: {holds}")
        if self.untried:
            self.notes.append(f"not tried, since building took {self.spent:.0f} s already: {', '.join(self.untried)}")
        rows = tuple((variant.name, variant.ms) for variant in [self.eager, *self.variants] if variant.ms < float("inf"))
        return Tuned(chosen, rows, tuple(self.notes), whole=self.whole, degraded=tuple(self.degraded), steps=self.steps)

    def in_training(self, choices: Choices) -> Training:
        """What the regions of the chosen plan do in training. Where that cannot be timed, what is predicted."""
        assert self.trained is not None and self.eager.module is not None
        try:
            variant, own = self.with_fast_weights(choices)
            assert variant.candidate is not None and variant.module is not None and variant.emitted is not None
            space = vars(variant.candidate.module)
            trainer = Trainer(variant.emitted, space, variant.module, self.eager.module, self.inputs, self.clock, self.seconds, self.say)
            found = trainer.run()
            self.synchronize()
        except Stopped as stopped:
            self.degraded.append(f"the original's forward is kept for training: {stopped}")
            self.whole = False
            return Training(original=True)
        except (Refused, RuntimeError, OSError) as error:  # out of memory, too: what trains takes more than what infers
            first, self.whole = first_line(error), False
            if self.device.type == "cuda" and not gpu_works():
                raise Refused(f"the GPU stopped working in training: {first}") from error
            self.notes.append(f"training steps were not timed: {first}")
            return AS_PREDICTED
        self.steps = found.rows
        return replace(found.training, own_weights=own)

    def with_fast_weights(self, choices: Choices) -> tuple[TimedVariant, frozenset[str]]:
        """The file with kernels for gradients, started, in which those of weights are ours where they beat the library's; and of which."""
        try:
            variant = self.started_in_training(replace(choices, training=EVERY_KERNEL_OF_OURS))
        except Stopped as stopped:
            if self.ahead is None or self.ahead.emitted is None or not self.ahead.emitted.weights:
                raise  # these are not at fault
            self.degraded.append(f"gradients of weights are the library's: {stopped}")
            self.whole = False
            return self.started_in_training(replace(choices, training=Training(own_weights=frozenset()))), frozenset()
        assert variant.candidate is not None and variant.emitted is not None
        kernels = variant.emitted.weights
        if not kernels:
            return variant, frozenset()
        self.progress(Step("time: gradients of weights", self.left))
        found = weighed(kernels, vars(variant.candidate.module), self.device, self.clock, self.seconds / max(2, len(kernels)))
        self.notes += [found.words] if found.words else []
        if found.own == frozenset().union(*(kernel.weights for kernel in kernels)):
            return variant, found.own
        return self.started_in_training(replace(choices, training=Training(own_weights=found.own))), found.own

    def started_in_training(self, choices: Choices) -> TimedVariant:
        """Built with its kernels for gradients, and run; Stopped where it is at fault."""
        variant = self.trained_variant(choices)
        self.say("build: gradients")
        self.build([variant], training=True)
        if (fault := self.started(variant, training=True)) is not None:
            raise Stopped(fault)
        return variant

    def synchronize(self) -> None:
        """A fault is that of whatever ran last, not of whoever is timed next."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def say(self, words: str) -> None:
        """What is done now; how many such steps are left is known once the variants are."""
        self.left -= 1
        self.progress(Step(words, self.left))

    # ---- building

    def add(self, name: str, choices: Choices) -> TimedVariant:
        """One more variant to run the model: without a module where it is no other than an earlier one, or out of the race."""
        return next(iter(self.add_all([Named(name, choices)])), TimedVariant(name, choices))

    def add_all(self, offered: Iterable[Named], trained_too: bool = False) -> list[TimedVariant]:
        """Build variants side by side, each distinct text once. One that cannot be built is out of the race, and so is one that cannot win,
        and one for which there is no time. The first has it. `trained_too`: with what training will need of the first."""
        start = time.monotonic()
        variants: list[TimedVariant] = []
        for named in offered:
            if (self.variants or variants) and self.spent + time.monotonic() - start > BUILDING:
                self.untried.append(named.name)
                continue
            variant = TimedVariant(named.name, named.choices)
            variant.made, variant.emitted = self.compile(variant.choices)
            if coarse_calls(variant.made):
                self.notes.append(too_coarse(named.name, variant.made))
                continue
            if all(w.emitted is None or w.emitted.text != variant.emitted.text for w in (*self.variants, *variants)):
                variants.append(variant)
        variants = self.promising(variants)
        more = []
        if trained_too and self.trained is not None:
            more.append(self.trained_variant(replace(variants[0].choices, training=EVERY_KERNEL_OF_OURS)))
        self.say("build: " + ", ".join(variant.name for variant in variants))
        self.build(variants, more)
        for variant in variants:
            self.begin(variant)
        self.variants += variants
        self.spent += time.monotonic() - start
        return variants

    def build_ahead(self, offered: Iterable[Named | None]) -> None:
        """What the changes of the best variant need, side by side: they are tried one after another, and most do not change it."""
        named = [one for one in offered if one is not None]
        if len(named) < 2 or self.spent > BUILDING:
            return
        start = time.monotonic()
        variants = [TimedVariant(one.name, one.choices) for one in named]
        for variant in variants:
            variant.made, variant.emitted = self.compile(variant.choices)
        built = {variant.emitted.text for variant in self.variants if variant.emitted is not None}
        variants = [v for v in variants if v.made is not None and v.emitted is not None and not coarse_calls(v.made)]
        variants = self.promising([v for v in variants if v.emitted is not None and v.emitted.text not in built], note=False)
        if variants:
            self.say(f"build: {len(variants)} changes of the best")
            self.build(variants)
        self.spent += time.monotonic() - start

    def trained_variant(self, choices: Choices) -> TimedVariant:
        """The file of these choices with kernels for gradients."""
        assert self.trained is not None
        if self.ahead is None or self.ahead.choices != choices:
            self.ahead = TimedVariant(EVERY_KERNEL, choices)
            self.ahead.made, self.ahead.emitted = self.trained(choices)
        return self.ahead

    def promising(self, variants: list[TimedVariant], note: bool = True) -> list[TimedVariant]:
        """Without those that are predicted to take more than twice as long as another, and longer than with the library's convolutions
        and products."""
        predicted = {variant.name: plan_ms(variant.made) for variant in variants if variant.made is not None}
        self.expected = min([self.expected, *predicted.values()])
        library = predicted.get(LIBRARY, self.library_expected)
        self.library_expected = library
        kept = (PREDICTED.own, frozenset[str]())  # what is predicted, and the library's: these are measured, whatever is said of them
        most = max(HOPELESS * self.expected, library)
        hopeless = [variant for variant in variants if predicted[variant.name] > most and variant.choices.own not in kept]
        if note and hopeless:
            words = ", ".join(f"{variant.name} ({predicted[variant.name]:.3g} ms)" for variant in hopeless)
            self.notes.append(f"not built, since {self.expected:.3g} ms are predicted of another: {words}")
        return [variant for variant in variants if variant not in hopeless]

    def build(self, variants: Sequence[TimedVariant], more: Sequence[TimedVariant] = (), training: bool = False) -> None:
        """Load files and build their units, side by side; the original runs for the first time meanwhile."""
        name = f"{self.problem.path.stem}_new.py"
        units: list[building.Unit] = []
        for variant in (*variants, *more):
            assert variant.emitted is not None
            try:
                variant.candidate = variant.candidate or self.loaded(variant.emitted, name)
                units += building.units_of(variant.candidate, training or variant in more)
            except (Refused, RuntimeError, OSError) as error:
                variant.error = error
        building.build(units, self.first_call)

    def loaded(self, emitted: Emitted, name: str) -> Candidate:
        return load_candidate(emitted.text, self.target, "", name, emitted.place, behind=self.problem.behind)

    def first_call(self) -> None:
        """What PyTorch does once, such as loading cuDNN, is done while others are built. What it raises is said where it is timed."""
        with contextlib.suppress(RuntimeError):
            self.call(self.eager)()

    def start(self, variant: TimedVariant) -> None:
        """Its module, with the original's state."""
        if variant.error is not None:
            raise variant.error
        assert variant.candidate is not None and self.eager.module is not None
        variant.module = variant.candidate.build_model(self.problem)
        variant.module.load_state_dict(self.eager.module.state_dict())

    def started(self, variant: TimedVariant, training: bool = False) -> Fault | None:
        """Its module here, made while it runs for the first time in another process; says what went wrong there."""
        if self.probe is None or variant.candidate is None or variant.error is not None:
            self.start(variant)
            return None
        with self.probe.beside(variant.candidate, training) as first:
            self.start(variant)
        return first.fault

    def begin(self, variant: TimedVariant) -> None:
        """Run it for the first time."""
        try:
            fault = self.started(variant)
            if fault is not None:
                self.leave_out(variant, str(fault), f"the variant {variant.name!r} was left out of tuning: {fault}")
                return
            self.call(variant)()
            self.synchronize()
        except (Refused, RuntimeError, OSError) as error:
            first = first_line(error)
            if self.device.type == "cuda" and not gpu_works():
                raise Refused(f"the GPU stopped working in {variant.name!r}: {first}") from error
            self.leave_out(variant, first, f"the variant {variant.name!r} did not build, and was left out of tuning: {first}")

    def leave_out(self, variant: TimedVariant, why: str, sentence: str) -> None:
        variant.module, self.whole = None, False
        self.notes.append(f"{variant.name}: {why}")
        self.degraded.append(sentence)

    # ---- timing

    def own_of(self, variant: TimedVariant) -> frozenset[str]:
        return own_of(variant.made) if variant.made is not None else frozenset()

    def call(self, variant: TimedVariant) -> Callable[[], Any]:
        assert variant.module is not None
        module = variant.module

        def run() -> Any:
            with torch.no_grad():
                return module(*self.inputs)

        return run

    def time(self, variants: Sequence[TimedVariant]) -> None:
        """Time the variants in turn; each gets the median of its rounds, and once what it holds in memory."""
        running = [variant for variant in variants if variant.module is not None]
        self.say("time: " + ", ".join(variant.name for variant in running))
        found = in_turn([self.call(variant) for variant in running], self.clock, self.seconds)
        for variant, ms in zip(running, found, strict=True):
            variant.ms = ms
            variant.peak = self.clock.peak_bytes(self.call(variant)) if variant.peak < 0 else variant.peak

    def is_heavy(self, variant: TimedVariant) -> bool:
        """It holds more memory than eager may be exceeded by."""
        return variant.peak > bound(max(self.eager.peak, 0))

    def holds_little(self, variant: TimedVariant) -> bool:
        """Not so much more than eager that its speed is not worth it."""
        return variant.peak <= bound(max(self.eager.peak, 0)) + LITTLE

    def little_heavier(self) -> TimedVariant | None:
        """Where nothing within eager's memory beats it: the fastest that takes little more."""
        found = [variant for variant in self.variants if self.gains(variant) and self.holds_little(variant)]
        return min(found, key=lambda variant: variant.ms, default=None)

    def gains(self, variant: TimedVariant) -> bool:
        return variant.ms <= self.eager.ms and variant.made is not None and bool(variant.made.every_kernel)

    def beats(self, variant: TimedVariant, other: TimedVariant) -> bool:
        """Faster, or within eager's memory where the other is not."""
        if variant.module is None or self.is_heavy(variant) != self.is_heavy(other):
            return variant.module is not None and self.is_heavy(other)
        return variant.ms < GAIN * other.ms

    def fastest(self) -> TimedVariant:
        self.time([self.eager, *self.variants])
        first, *others = self.variants
        best = first
        for variant in others:
            if self.beats(variant, best):
                best = variant
        return best

    def better(self, best: TimedVariant, other: TimedVariant) -> TimedVariant:
        if other.module is None:
            return best
        self.time([best, other])
        return other if self.beats(other, best) else best

    def leave(self, best: TimedVariant) -> TimedVariant:
        """Regions that lose to PyTorch's operators are left to them."""
        if best.module is None or best.emitted is None or best.candidate is None:
            return best
        assert best.made is not None
        regions = leavable(best.made, best.emitted)
        losing = {region: regions[region] for region in self.losing_regions(best) if region in regions}
        if not losing:
            return best
        left = without_regions(best.choices, own_of(best.made), losing)
        return self.better(best, self.add(left.name, left.choices))

    def losing_regions(self, variant: TimedVariant) -> list[str]:
        """Run the model once with each region stopped at: its kernels against its reference in PyTorch's operators."""
        assert variant.candidate is not None
        space, losing = vars(variant.candidate.module), []
        whole = space.get("_run")
        seconds = self.seconds / max(4, len(variant.emitted.regions) if variant.emitted is not None else 0)
        if whole is None:
            return []

        def weighed(region: Any, sizes: Any, tensors: list[Any]) -> Any:
            calls = [lambda: region.launches(sizes, list(tensors)), lambda: region.reference(sizes, *tensors)]
            ours, theirs = in_turn(calls, self.clock, seconds)
            if theirs < GAIN * ours:
                losing.append(region.launches.__name__)
            return region.launches(sizes, tensors)

        space["_run"] = weighed
        try:
            self.say("time: each region")
            self.call(variant)()
        except RuntimeError as error:
            self.whole = False
            self.notes.append(f"regions: {str(error).splitlines()[0]}")
        finally:
            space["_run"] = whole
        return losing


def key(emitted: Emitted, gpu: str, training: str, precision: str = "") -> str:
    """The same for the same file as predicted, on the same kind of GPU, where the same kind of training was asked for, as exact as that."""
    text = "\0".join([__version__, torch.__version__, gpu, training, precision, emitted.text])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def cache_file(name: str) -> Path:
    return cache_root() / "choices" / f"{name}.json"


def recall(name: str) -> Tuned | None:
    try:
        private(cache_root())
        return from_dict(json.loads(cache_file(name).read_text()))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # nothing there, or nothing that can be read
        return None


def from_dict(found: Mapping[str, Any]) -> Tuned:
    """What `Tuned.to_dict` made, found again. ValueError, KeyError, TypeError: it is none."""
    rows, steps = (tuple((str(row["name"]), float(row["ms"])) for row in found[kind]) for kind in ("timed", "steps"))
    return Tuned(Choices.from_dict(found["choices"]), rows, tuple(found["notes"]), cached=True, steps=steps)


def remember(name: str, tuned: Tuned) -> None:
    """Keep it if that is possible; a cache that cannot be written only costs time."""
    try:
        path = cache_file(name)
        private(private(cache_root()) / path.parent.name)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(tuned.to_dict(), file, indent=2)
        os.replace(file.name, path)
    except (OSError, RuntimeError):
        return


def shown(tuned: Tuned) -> Iterable[str]:
    """What timing chose, in words."""
    if tuned.rows:
        times = ", ".join(f"{name} {ms:.4g} ms" for name, ms in tuned.rows)
        yield f"chosen by timing{' (kept from an earlier run)' if tuned.cached else ''}: {times}"
    if tuned.steps:
        yield f"training step: {', '.join(f'{name} {ms:.4g} ms' for name, ms in tuned.steps)}; {in_training(tuned.choices.training)}"
    yield from tuned.notes
    if tuned.record_note:
        yield tuned.record_note


def in_training(training: Training) -> str:
    """What was chosen for it, in words."""
    if training.original:
        return "the original's forward is kept for training"
    return f"in training {left_words(training.by_pytorch)}" if training.by_pytorch else "kernels backward where there are some"


__all__ = ["PREDICTED", "Choices", "Tuned", "key", "recall", "remember", "shown", "tune"]
