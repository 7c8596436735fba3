"""Which of several right files is the fastest, by running them: the planner predicts, a GPU knows.

A file differs from another by what is left to PyTorch: convolutions and products that a kernel of ours could compute, and regions whose
kernels lose to PyTorch's own; and by how the values lie that the library's convolutions read and write. Every way is timed in
turn with eager, in several rounds; what was chosen is kept in the cache, so that the same model gives the same file again.
Where nothing beats eager, the file keeps the original's forward.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from .errors import Refused, first_line
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
MOST_REGIONS = 8  # that are left to PyTorch one by one where each variant is verified
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


@dataclass(frozen=True)
class Able:
    """What of a model kernels of ours could compute."""

    convolutions: frozenset[str]
    products: frozenset[str]
    attention: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.convolutions or self.products or self.attention)


@dataclass(frozen=True)
class Named:
    """A variant: choices, and what to call them."""

    name: str
    choices: Choices


ORIGINAL = Named("the original's forward", Choices(plain=True))
Change = Callable[[Choices, frozenset[str]], Named | None]  # of the best so far and what of it is ours; None where it changes nothing


@dataclass(frozen=True)
class Candidates:
    """Every variant that tuning can choose.

    `first` are compared with one another; then each of `changes` is tried on the best so far, in order; at last some of the regions
    of what is best are left to PyTorch (`leavable`), or all of them: `ORIGINAL`.
    """

    first: tuple[Named, ...]
    changes: tuple[Change, ...]
    unflipped: tuple[str, ...]  # what is not tried one by one, being too many

    def one_by_one(self, predicted: Plan, emitted: Emitted) -> list[Named]:
        """Each of them by itself, the later ones as changes of the predicted one: never their product."""
        own = own_of(predicted)
        changed = [change(PREDICTED, own) for change in self.changes]
        left = [without_regions(PREDICTED, own, group) for group in groups(leavable(predicted, emitted))]
        return [*self.first, *(named for named in changed if named is not None), *left, ORIGINAL]


def able_of(predicted: Plan, compile_: Compile) -> Able:
    """Asked by planning: of what is named, a plan takes what it can."""
    graph = predicted.graph

    def taken(names: frozenset[str]) -> frozenset[str]:
        return own_of(compile_(Choices(own=names))[0]) if names else names

    return Able(own_of(compile_(Choices(own=convolutions(graph)))[0]), taken(products(graph)), taken(attentions(graph)))


def candidates(predicted: Plan, able: Able) -> Candidates:
    """The one list of variants: tuning times them, `--all-variants` verifies them."""
    ours, can = own_of(predicted), able.convolutions
    first = [Named("predicted", PREDICTED)]
    if ours:
        first.append(Named(LIBRARY, Choices(own=frozenset())))
    if can - ours:
        first.append(Named("our convolutions", Choices(own=can)))
    if any(is_convolution(node) for node in predicted.graph.nodes):
        first.append(Named(LIBRARY_TURNED, Choices(own=frozenset(), channels_last=True)))
        first.append(Named("as predicted beside channels-last", Choices(channels_last=True)))
    if can:  # what several kernels read of them, in memory or computed by each
        first.append(Named("our convolutions, stored", Choices(own=can, stored=True)))
        first.append(Named("our convolutions, computed again", Choices(own=can, stored=False)))
    changes = flips(can)
    if able.products:
        changes += [ours_too("our products", able.products), *flips(able.products)]
    if able.attention:
        changes += [ours_too("our attention", able.attention), none_of_ours("attention in steps", able.attention), *flips(able.attention)]
    changes.append(others_channels_last)
    kinds = {"convolutions": can, "products": able.products, "attention": able.attention}
    unflipped = tuple(f"{len(names)} {kind}" for kind, names in kinds.items() if len(names) > MOST_FLIPS)
    return Candidates(tuple(first), tuple(changes), unflipped)


def flips(names: frozenset[str]) -> list[Change]:
    """Each convolution, product or attention the other way round, where they are few."""
    return [functools.partial(flipped, name) for name in sorted(names)] if 1 < len(names) <= MOST_FLIPS else []


def flipped(name: str, best: Choices, own: frozenset[str]) -> Named:
    words = f"{name} by the library" if name in own else f"{name} by a kernel of ours"
    return Named(words, replace(best, own=own ^ {name}))


def ours_too(words: str, names: frozenset[str]) -> Change:
    return lambda best, own: Named(words, replace(best, own=own | names))


def none_of_ours(words: str, names: frozenset[str]) -> Change:
    return lambda best, own: Named(words, replace(best, own=own - names))


def others_channels_last(best: Choices, own: frozenset[str]) -> Named | None:
    """Convolutions that the library computes beside ours, on channels-last data."""
    if best.channels_last or not own:
        return None
    return Named("the others channels-last", replace(best, own=own, channels_last=True))


def leavable(made: Plan, emitted: Emitted) -> dict[str, tuple[str, ...]]:
    """The regions that may be left to PyTorch's operators, and their nodes."""
    return {
        region: nodes
        for region, nodes in emitted.regions.items()
        if nodes and not any(made.graph[node].target in UPDATES for node in nodes)
    }


def groups(regions: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Each region by itself; of many, every second one, then the others: each is left to PyTorch once, beside neighbours that are not."""
    items = list(regions.items())
    if len(items) > MOST_REGIONS:
        return [dict(items[::2]), dict(items[1::2])]
    return [{region: nodes} for region, nodes in items]


def without_regions(best: Choices, own: frozenset[str], regions: Mapping[str, Sequence[str]]) -> Named:
    nodes = {node for members in regions.values() for node in members}
    words = ", ".join(regions) if len(regions) <= MOST_REGIONS else f"{len(regions)} regions from {next(iter(regions))} on"
    return Named(f"{words} by PyTorch", replace(best, left=best.left | nodes, own=own - nodes))


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
    degraded: tuple[str, ...] = ()  # ways with kernels of ours that failed: one of them may have been the fastest

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
    degraded: list[str] = field(default_factory=list)
    spent: float = 0.0  # seconds of writing and building
    untried: list[str] = field(default_factory=list)  # ways for which there was no time

    def run(self) -> Tuned:
        self.device = torch.device("cuda" if self.target == "cuda" else "cpu")
        self.inputs = [x.to(self.device) if isinstance(x, torch.Tensor) else x for x in self.problem.inputs()]
        self.eager = Way("eager", ORIGINAL.choices, module=self.problem.model().to(self.device))
        best = self.add("predicted", PREDICTED)
        assert best.made is not None
        able = able_of(best.made, self.compile)
        if not best.made.kernels and not able:
            return Tuned(PREDICTED)
        known = candidates(best.made, able)
        for named in known.first[1:]:
            self.add(named.name, named.choices)
        best = self.fastest()
        for change in known.changes:
            changed = change(best.choices, own_of(best.made) if best.made is not None else frozenset())
            if changed is not None:
                best = self.better(best, self.add(changed.name, changed.choices))
        best = self.leave(best)
        self.time([best, self.eager])
        gained = best.ms <= self.eager.ms and best.made is not None and best.made.every_kernel
        chosen = best.choices if gained else ORIGINAL.choices
        if chosen.plain:
            self.notes.append(f"kernels {best.ms:.4g} ms, PyTorch {self.eager.ms:.4g} ms: the original's forward is kept")
        if self.untried:
            self.notes.append(f"not tried, since building took {self.spent:.0f} s already: {', '.join(self.untried)}")
        rows = tuple((way.name, way.ms) for way in [self.eager, *self.ways] if way.ms < float("inf"))
        return Tuned(chosen, rows, tuple(self.notes), whole=self.whole, degraded=tuple(self.degraded))

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
            way.candidate = load_candidate(way.emitted.text, self.target, "", f"{self.problem.path.stem}_new.py", way.emitted.place)
            module = way.candidate.build_model(self.problem)
            module.load_state_dict(self.eager.module.state_dict())  # type: ignore[union-attr]
            way.module = module
            self.call(way)()
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # a fault is this way's, not that of whoever is timed next
        except (Refused, RuntimeError, OSError) as error:
            way.module, self.whole = None, False
            first = first_line(error)
            if self.device.type == "cuda" and not gpu_works():
                raise Refused(f"the GPU stopped working in {name!r}: {first}") from error
            self.notes.append(f"{name}: {first}")
            self.degraded.append(f"the variant {name!r} did not build, and was left out of tuning: {first}")
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

    def better(self, best: Way, other: Way) -> Way:
        if other.module is None:
            return best
        self.time([best, other])
        return other if other.ms < GAIN * best.ms else best

    def leave(self, best: Way) -> Way:
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


def key(emitted: Emitted, gpu: str, precision: str = "") -> str:
    """The same for the same file as predicted, on the same kind of GPU, as exact as that."""
    text = "\0".join([__version__, torch.__version__, gpu, precision, emitted.text])
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
