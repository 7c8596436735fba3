"""What a file does in training, by running steps: a forward with gradients, and the gradients.

One file is built, in which kernels compute all gradients that they can; what is compared is which of its regions are handed to
PyTorch's operators, which needs no other build. Each region is timed by itself on what it is given in a step, then the combinations
are timed on whole steps, beside the original's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...bench.timing import GAIN, Clock, in_turn
from ...emit import Emitted
from ...schedule.footprint import bound
from ...schedule.training import AS_PREDICTED, BY_KERNELS, EVERY_WEIGHT, WHOLE, Training

SLOWER = 1.01  # than the original's step: beyond this the original's forward is kept for training
MOST_ALONE = 2  # regions that are left to PyTorch one by one where each variant is verified
MOST_NAMED = 6  # regions in the name of a step
EAGER, EVERY_KERNEL, NO_KERNEL = "eager", "kernels backward", "PyTorch's backward"  # names of steps


class NoGradients(Exception):
    """The model's results have no gradient: there is no training step."""


@dataclass(frozen=True)
class Step:
    """A forward with gradients, and the gradients of what is trained: of parameters, or of inputs where there are none."""

    module: nn.Module
    inputs: Sequence[Any]
    upstream: list[Tensor] = field(default_factory=list)  # made in the first call

    @functools.cached_property
    def targets(self) -> list[Tensor]:
        return [t for t in self.module.parameters() if t.requires_grad]

    @functools.cached_property
    def given(self) -> list[Any]:
        def smooth(x: Any) -> bool:
            return isinstance(x, Tensor) and x.is_floating_point()

        return [x.detach().requires_grad_(not self.targets) if smooth(x) else x for x in self.inputs]

    def __call__(self) -> Any:
        targets = self.targets or [x for x in self.given if isinstance(x, Tensor) and x.requires_grad]
        with torch.enable_grad():
            leaves = pytree.tree_leaves(self.module(*self.given))
        results = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        if not results or not targets:
            raise NoGradients
        if not self.upstream:
            self.upstream.extend(torch.ones_like(t) for t in results)
        return torch.autograd.grad(results, targets, self.upstream, allow_unused=True)


def read_of(region: Any, tensors: list[Any]) -> list[Any]:
    """What a region's reference reads of the tensors that the region is given: the first ones."""
    return tensors[: region.reference.__code__.co_argcount - 1]  # after the sizes


@dataclass
class Switch:
    """Hands regions of a loaded file to PyTorch's operators, and back to kernels."""

    space: dict[str, Any]
    emitted: Emitted

    def __post_init__(self) -> None:
        found = [name for name, what in self.emitted.training.items() if what in BY_KERNELS]
        self.regions = {name: self.space[f"{name}_region"] for name in found}
        self.saved = {name: region.saves for name, region in self.regions.items() if hasattr(region, "saves")}
        self.gradients = {name: region.gradient for name, region in self.regions.items()}
        self.run, self.left = self.space.get("_run"), set[int]()  # regions whose reference runs, by number
        if self.run is not None:
            self.space["_run"] = self.run_or_reference

    def run_or_reference(self, region: Any, sizes: Any, tensors: list[Any]) -> Any:
        """`_run` of the file, where a region that is left to PyTorch's operators is its reference."""
        if id(region) in self.left and torch.is_grad_enabled() and any(t.requires_grad for t in read_of(region, tensors)):
            return region.reference(sizes, *tensors)
        assert self.run is not None
        return self.run(region, sizes, tensors)

    def to_pytorch(self, names: frozenset[str]) -> None:
        """These; all others are computed by kernels."""
        for name, region in self.regions.items():
            left = name in names
            if name in self.emitted.referable:
                self.left = self.left | {id(region)} if left else self.left - {id(region)}
            else:
                region.gradient = None if left else self.gradients[name]
            if name in self.saved:  # as from the first backward on
                region.saves = region.saving = self.saved[name] and not (left and name not in self.emitted.referable)


@dataclass(frozen=True)
class Found:
    training: Training
    rows: tuple[tuple[str, float], ...] = ()  # each step that was timed, and its milliseconds


@dataclass
class Trainer:
    """Times the steps of one file and of the original."""

    emitted: Emitted
    space: dict[str, Any]  # what the loaded file defines
    module: nn.Module
    eager: nn.Module
    inputs: Sequence[Any]
    clock: Clock
    seconds: float
    progress: Callable[[str], None] = lambda detail: None
    alone: dict[str, tuple[float, float]] = field(default_factory=dict)  # region -> milliseconds of kernels, of PyTorch's operators

    def run(self) -> Found:
        eager, ours = (Step(module, self.inputs) for module in (self.eager, self.module))
        try:
            eager()
        except (NoGradients, RuntimeError):  # the model has no backward, by its nature or by an operator without one
            return Found(AS_PREDICTED)
        switch = Switch(self.space, self.emitted)
        try:
            self.weigh(ours, switch)
        except torch.OutOfMemoryError:  # each region runs beside what a whole forward has saved: whole steps may do
            self.alone.clear()
            torch.cuda.empty_cache()
        sets = combinations(self.alone, switch.regions)
        self.progress("time: training steps")

        def prepare(number: int) -> None:
            switch.to_pytorch(sets[names[number - 1]] if number else frozenset())

        names = list(sets)
        eager_ms, *found = in_turn([eager, *[ours] * len(names)], self.clock, self.seconds, prepare)
        peaks = self.peaks(eager, ours, [sets[name] for name in names], switch)
        light = [number for number, peak in enumerate(peaks[1:]) if peak <= bound(peaks[0])]
        rows = ((EAGER, eager_ms), *zip(names, found, strict=True))
        best = light[0] if light else found.index(min(found))
        for number in light:
            if found[number] < GAIN * found[best]:
                best = number
        if found[best] > SLOWER * eager_ms or not light:
            why = f"eager's step {eager_ms:.3g} ms, with kernels {found[best]:.3g} ms"
            why += "" if light else f" and {peaks[1 + best] / 2**20:.0f} MB where eager holds {peaks[0] / 2**20:.0f}"
            return Found(Training(original=True, why=((WHOLE, why),)), rows)
        return Found(Training(by_pytorch=sets[names[best]], why=tuple(reasons(self.alone, sets[names[best]]).items())), rows)

    def peaks(self, eager: Step, ours: Step, sets: Sequence[frozenset[str]], switch: Switch) -> list[int]:
        """Bytes that a step holds beyond what is there before it: eager's first, then with each of these regions left to PyTorch."""
        found = [self.clock.peak_bytes(eager)]
        for left in sets:
            switch.to_pytorch(left)
            found.append(self.clock.peak_bytes(ours))
        return found

    def weigh(self, step: Step, switch: Switch) -> None:
        """Run a step in which each region is stopped at: it and its gradients by kernels, and by PyTorch's operators."""
        if not switch.regions:
            return
        run, named = self.space["_run"], {id(region): name for name, region in switch.regions.items()}
        seconds = self.seconds / max(4, len(named))

        def weighed(region: Any, sizes: Any, tensors: list[Any]) -> Any:
            name = named.get(id(region), "")
            if name and torch.is_grad_enabled() and any(t.requires_grad for t in read_of(region, tensors)):
                given = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
                wanted = [t for t in read_of(region, given) if t.requires_grad]
                call = functools.partial(_with_gradients, run, region, sizes, given, wanted, list[Tensor]())
                switched = (frozenset[str](), frozenset({name}))
                ours, theirs = in_turn([call, call], self.clock, seconds, lambda number: switch.to_pytorch(switched[number]))
                switch.to_pytorch(frozenset())
                self.alone[name] = (ours, theirs)
            return run(region, sizes, tensors)

        self.progress("time: each region in training")
        with replaced(self.space, "_run", weighed):
            step()


def _with_gradients(
    run: Callable[..., Any], region: Any, sizes: Any, given: Sequence[Tensor], wanted: Sequence[Tensor], upstream: list[Tensor]
) -> Any:
    """One region and its gradients. `upstream` is made in the first call."""
    with torch.enable_grad():
        results = [t for t in run(region, sizes, list(given)) if t.requires_grad]
    if not upstream:
        upstream.extend(torch.ones_like(t) for t in results)
    return torch.autograd.grad(results, wanted, upstream, allow_unused=True) if results else ()


@contextmanager
def replaced(space: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    before = space[name]
    space[name] = value
    try:
        yield
    finally:
        space[name] = before


def combinations(alone: Mapping[str, tuple[float, float]], regions: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Which regions are handed to PyTorch's operators: none, those that lose by themselves, all."""
    losing = frozenset(name for name, (ours, theirs) in alone.items() if theirs < GAIN * ours)
    every = frozenset(regions)
    found = {EVERY_KERNEL if every else NO_KERNEL: frozenset[str]()}
    if losing and losing != every:
        found[left_words(losing)] = losing
    if every:
        found[NO_KERNEL] = every
    return found


def reasons(alone: Mapping[str, tuple[float, float]], left: frozenset[str]) -> dict[str, str]:
    """What was measured of each region, what was chosen first."""
    by = ("kernels", "PyTorch's operators")
    found = {}
    for name, times in alone.items():
        first = name in left
        found[name] = f"{by[first]} {times[first]:.3g} ms, {by[not first]} {times[not first]:.3g} ms"
    return found


def left_words(names: frozenset[str]) -> str:
    listed = sorted(names)
    words = ", ".join(listed) if len(listed) <= MOST_NAMED else f"{len(listed)} regions from {listed[0]} on"
    return f"{words} by PyTorch"


def candidates(emitted: Emitted) -> list[tuple[str, Training]]:
    """Every kind of choice for training, for whoever verifies variants: each region by PyTorch's operators (of many, every second one,
    then the others), all of them, gradients of weights by kernels of ours and by the library, and the original's forward."""
    names = [name for name, what in emitted.training.items() if what in BY_KERNELS]
    groups = [names[::2], names[1::2]] if len(names) > MOST_ALONE else [[name] for name in names]
    sets = list(dict.fromkeys([*map(frozenset, groups), *([frozenset(names)] if names else [])]))
    found = [(f"training: {left_words(left)}", Training(by_pytorch=left)) for left in sets]
    if emitted.training:
        found.append(("training: gradients of weights by kernels", Training(own_weights=EVERY_WEIGHT)))
        found.append(("training: gradients of weights by the library", Training(own_weights=frozenset())))
    return [*found, ("training: the original's forward", Training(original=True))] if emitted.training else []
