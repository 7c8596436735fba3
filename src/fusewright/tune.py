"""Which of several right files is the fastest, by running them: the planner predicts, a GPU knows.

A file differs from another by what is left to PyTorch: convolutions and products that a kernel of ours could compute, and regions whose
kernels lose to PyTorch's own; and by how the values lie that the library's convolutions read and write. Every way is timed in
turn with eager, in several rounds; what was chosen is kept in the cache, so that the same model gives the same file again.
Where nothing beats eager, the file keeps the original's forward.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from . import __version__
from .attention import attentions
from .bench_statistics import median
from .candidate import Candidate, gpu_works, load_candidate
from .emit import Emitted
from .errors import Refused
from .graph import Graph
from .layout import is_convolution
from .options import cache_root, private
from .plan import Plan
from .problem import Problem
from .products import products
from .rules.patterns import EVERY_CONVOLUTION

ROUNDS, MOST_ROUNDS, SECONDS = 9, 60, 0.4  # of timing for each comparison: at least, at most, about
GAIN = 0.99  # a change must win by this much; below it is noise
UPDATES = (torch.ops.aten._native_batch_norm_legit_functional.default,)  # a call of it by itself has no derivative
MOST_FLIPS = 4  # convolutions, or products, that are tried one by one
BUILDING = 300.0  # seconds for writing and building ways: a file of a hundred convolutions takes a minute, and there may be eleven


@dataclass(frozen=True)
class Choices:
    """What the planner would decide by prediction, decided."""

    left: frozenset[str] = frozenset()  # nodes that stay calls to PyTorch
    own: frozenset[str] | None = None  # convolutions, products and attention that our kernels compute; None: as predicted
    plain: bool = False  # no kernel at all: the original's forward
    channels_last: bool = False  # the library's convolutions work on channels-last data
    stored: bool | None = None  # what several kernels read of our convolutions is in memory, or computed by each; None: as predicted

    def to_dict(self) -> dict[str, Any]:
        own = None if self.own is None else sorted(self.own)
        return {**vars(self), "left": sorted(self.left), "own": own}

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Choices:
        own = found["own"]
        own = None if own is None else frozenset(own)
        stored = found["stored"]
        stored = None if stored is None else bool(stored)
        return Choices(frozenset(found["left"]), own, bool(found["plain"]), bool(found["channels_last"]), stored)


PREDICTED = Choices()
LIBRARY, LIBRARY_TURNED = "library's convolutions", "the library's, channels-last"  # names of ways

Compile = Callable[[Choices], tuple[Plan, Emitted]]


class Clock(Protocol):
    """What of `bench_device.Gpu` is needed here."""

    def from_idle(self, call: Callable[[], Any]) -> tuple[Any, Any]: ...


@dataclass
class Way:
    """One way to run the model."""

    name: str
    choices: Choices
    made: Plan | None = None
    emitted: Emitted | None = None
    candidate: Candidate | None = None
    module: nn.Module | None = None
    ms: float = float("inf")


@dataclass(frozen=True)
class Tuned:
    choices: Choices
    rows: tuple[tuple[str, float], ...] = ()  # every way that was timed, and its milliseconds
    notes: tuple[str, ...] = ()
    cached: bool = False
    key: str = ""  # under which to remember it once the chosen file has verified; "" where it is not to be kept
    whole: bool = True  # no way failed, so that another run would find the same

    def to_dict(self) -> dict[str, Any]:
        rows = [{"name": name, "ms": ms} for name, ms in self.rows]
        return {"choices": self.choices.to_dict(), "timed": rows, "notes": list(self.notes), "cached": self.cached}


def tune(
    problem: Problem,
    compile_: Compile,
    clock: Clock,
    target: str = "cuda",
    progress: Callable[[str], None] = lambda detail: None,
    seconds: float = SECONDS,
) -> Tuned:
    """Time the ways to run a model and say which to take."""
    return Tuner(problem, compile_, clock, target, progress, seconds).run()


@dataclass
class Tuner:
    problem: Problem
    compile: Compile
    clock: Clock
    target: str
    progress: Callable[[str], None]
    seconds: float
    ways: list[Way] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: bool = True
    spent: float = 0.0  # seconds of writing and building
    untried: list[str] = field(default_factory=list)  # ways for which there was no time

    def run(self) -> Tuned:
        self.device = torch.device("cuda" if self.target == "cuda" else "cpu")
        self.inputs = [x.to(self.device) if isinstance(x, torch.Tensor) else x for x in self.problem.inputs()]
        self.eager = Way("eager", Choices(plain=True), module=self.problem.model().to(self.device))
        best = self.add("predicted", Choices())
        assert best.made is not None
        able = products(best.made.graph)
        multiplied = own_of(self.compile(Choices(own=able))[0]) if able else able
        known = attentions(best.made.graph)
        attended = own_of(self.compile(Choices(own=known))[0]) if known else known
        ours, can = own_of(best.made), own_of(self.compile(Choices(own=convolutions(best.made.graph)))[0])
        if not best.made.kernels and not multiplied and not attended and not can:
            return Tuned(Choices())
        if ours:
            self.add(LIBRARY, Choices(own=frozenset()))
        if can - ours:
            self.add("our convolutions", Choices(own=can))
        if any(is_convolution(node) for node in best.made.graph.nodes):
            self.add(LIBRARY_TURNED, Choices(own=frozenset(), channels_last=True))
            self.add("as predicted beside channels-last", Choices(channels_last=True))
        if can:
            self.other_storage(can)
        best = self.fastest()
        if 1 < len(can) <= MOST_FLIPS:
            best = self.flip(best, can)
        best = self.multiply(best, multiplied)
        best = self.attend(best, attended)
        best = self.relay(best)
        best = self.leave(best)
        self.time([best, self.eager])
        gained = best.ms <= self.eager.ms and best.made is not None and best.made.every_kernel
        chosen = best.choices if gained else Choices(plain=True)
        if chosen.plain:
            self.notes.append(f"kernels {best.ms:.4g} ms, PyTorch {self.eager.ms:.4g} ms: the original's forward is kept")
        if self.untried:
            self.notes.append(f"not tried, since building took {self.spent:.0f} s already: {', '.join(self.untried)}")
        rows = tuple((way.name, way.ms) for way in [self.eager, *self.ways] if way.ms < float("inf"))
        return Tuned(chosen, rows, tuple(self.notes), whole=self.whole)

    def add(self, name: str, choices: Choices) -> Way:
        """Build one way; one that cannot be built is out of the race, and so is one for which there is no time. The first has it."""
        way = Way(name, choices)
        if self.ways and self.spent > BUILDING:
            self.untried.append(name)
            return way
        start = time.monotonic()
        try:
            return self.built(way)
        finally:
            self.spent += time.monotonic() - start

    def built(self, way: Way) -> Way:
        name = way.name
        way.made, way.emitted = self.compile(way.choices)
        if any(w.emitted is not None and w.emitted.text == way.emitted.text for w in self.ways):
            return way
        self.progress(f"build: {name}")
        try:
            way.candidate = load_candidate(way.emitted.text, self.target, name=f"{self.problem.path.stem}_new.py")
            module = way.candidate.build_model(self.problem)
            module.load_state_dict(self.eager.module.state_dict())  # type: ignore[union-attr]
            way.module = module
            self.call(way)()
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # a fault is this way's, not that of whoever is timed next
        except (Refused, RuntimeError, OSError) as error:
            way.module, self.whole = None, False
            first = (str(error).splitlines() or [type(error).__name__])[0]
            if self.device.type == "cuda" and not gpu_works():
                raise Refused(f"the GPU stopped working in {name!r}: {first}") from error
            self.notes.append(f"{name}: {first}")
        self.ways.append(way)
        return way

    def call(self, way: Way) -> Callable[[], Any]:
        assert way.module is not None
        module = way.module

        def run() -> Any:
            with torch.no_grad():
                return module(*self.inputs)

        return run

    def time(self, ways: Sequence[Way]) -> None:
        """Time the ways in turn; each gets the median of its rounds."""
        running = [way for way in ways if way.module is not None]
        self.progress("time: " + ", ".join(way.name for way in running))
        found = in_turn([self.call(way) for way in running], self.clock, self.seconds)
        for way, ms in zip(running, found, strict=True):
            way.ms = ms

    def fastest(self) -> Way:
        self.time([self.eager, *self.ways])
        first, *others = self.ways
        best = first
        for way in others:
            if way.ms < GAIN * best.ms:
                best = way
        return best

    def other_storage(self, can: frozenset[str]) -> None:
        """Our convolutions with what several kernels read in memory, and computed by each: those that are not there yet."""
        self.add("our convolutions, stored", Choices(own=can, stored=True))
        self.add("our convolutions, computed again", Choices(own=can, stored=False))

    def flip(self, best: Way, can: frozenset[str]) -> Way:
        """Each convolution, or product, the other way round, kept where that is faster."""
        for name in sorted(can):
            own = own_of(best.made) if best.made is not None else frozenset()
            words = f"{name} by the library" if name in own else f"{name} by a kernel of ours"
            best = self.better(best, self.add(words, replace(best.choices, own=own ^ {name})))
        return best

    def multiply(self, best: Way, multiplied: frozenset[str]) -> Way:
        """Matrix products by kernels of ours: all of them, then each the other way round."""
        if not multiplied:
            return best
        own = own_of(best.made) if best.made is not None else frozenset()
        best = self.better(best, self.add("our products", replace(best.choices, own=own | multiplied)))
        return self.flip(best, multiplied) if 1 < len(multiplied) <= MOST_FLIPS else best

    def attend(self, best: Way, attended: frozenset[str]) -> Way:
        """Attention by one kernel: all of it, and none, then each the other way round."""
        if not attended:
            return best
        own = own_of(best.made) if best.made is not None else frozenset()
        best = self.better(best, self.add("our attention", replace(best.choices, own=own | attended)))
        best = self.better(best, self.add("attention in steps", replace(best.choices, own=own - attended)))
        return self.flip(best, attended) if 1 < len(attended) <= MOST_FLIPS else best

    def relay(self, best: Way) -> Way:
        """Convolutions that the library computes beside ours, on channels-last data."""
        own = own_of(best.made) if best.made is not None else frozenset()
        if best.choices.channels_last or not own:
            return best
        return self.better(best, self.add("the others channels-last", replace(best.choices, own=own, channels_last=True)))

    def better(self, best: Way, other: Way) -> Way:
        if other.module is None:
            return best
        self.time([best, other])
        return other if other.ms < GAIN * best.ms else best

    def leave(self, best: Way) -> Way:
        """Regions that lose to PyTorch's operators are left to them."""
        if best.module is None or best.emitted is None or best.candidate is None:
            return best
        graph, regions = best.made.graph, best.emitted.regions  # type: ignore[union-attr]
        losing = [r for r in self.losing_regions(best) if not any(graph[n].target in UPDATES for n in regions.get(r, ()))]
        nodes = {node for region in losing for node in regions.get(region, ())}
        if not nodes:
            return best
        own = own_of(best.made) if best.made is not None else frozenset()
        left = replace(best.choices, left=best.choices.left | nodes, own=own - nodes)
        return self.better(best, self.add(f"{', '.join(losing)} by PyTorch", left))

    def losing_regions(self, way: Way) -> list[str]:
        """Run the model once with each region stopped at: its kernels against its meaning in PyTorch's operators."""
        assert way.candidate is not None
        space, losing = vars(way.candidate.module), []
        whole = space.get("_run")
        if whole is None:
            return []

        def weighed(region: Any, sizes: Any, *tensors: Any) -> Any:
            calls = [lambda: region.launches(sizes, *tensors), lambda: region.meaning(sizes, *tensors)]
            ours, theirs = in_turn(calls, self.clock, self.seconds / 4)
            if theirs < GAIN * ours:
                losing.append(region.launches.__name__)
            return region.launches(sizes, *tensors)

        space["_run"] = weighed
        try:
            self.progress("time: each region")
            self.call(way)()
        except RuntimeError as error:
            self.whole = False
            self.notes.append(f"regions: {str(error).splitlines()[0]}")
        finally:
            space["_run"] = whole
        return losing


def in_turn(calls: Sequence[Callable[[], Any]], clock: Clock, seconds: float) -> list[float]:
    """The median milliseconds of each call, in rounds so that whatever disturbs one disturbs all."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    spent = 0.0
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and spent >= seconds * len(calls) * 1e3:
            break
        for found, call in zip(times, calls, strict=True):
            sample, _ = clock.from_idle(call)
            found.append(sample.ms)
            spent += sample.wall_ms
    return [median(found) for found in times]


def convolutions(graph: Graph) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.target in EVERY_CONVOLUTION)


def own_of(made: Plan) -> frozenset[str]:
    """The convolutions, products and attention that kernels of ours compute."""
    return frozenset(k.fused.anchor.node for k in made.kernels if k.fused is not None) | {s.node for s in made.shortcuts}


# ---- what was chosen is kept ----


def key(emitted: Emitted, gpu: str) -> str:
    """The same for the same file as predicted, on the same kind of GPU."""
    text = "\0".join([__version__, torch.__version__, gpu, emitted.text])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def cache_file(name: str) -> Path:
    return cache_root() / "choices" / f"{name}.json"


def recall(name: str) -> Tuned | None:
    try:
        private(cache_root())
        found = json.loads(cache_file(name).read_text())
        rows = tuple((str(row["name"]), float(row["ms"])) for row in found["timed"])
        return Tuned(Choices.from_dict(found["choices"]), rows, tuple(found["notes"]), cached=True)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):  # nothing there, or nothing that can be read
        return None


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
    yield from tuned.notes


__all__ = ["PREDICTED", "Choices", "Tuned", "key", "recall", "remember", "shown", "tune"]
