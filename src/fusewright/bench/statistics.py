"""What times mean: medians and spread, a confidence interval on a ratio, in which order to run, and the word for it.

Pure functions of numbers. `bench.py` measures, this file judges.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..words import shown_ms, times

CONFIDENCE = 0.95
RESAMPLES = 4000
FEWEST_ROUNDS = 5  # an interval drawn from fewer rounds says nothing
REPEATS = 3  # at most, in a row


@dataclass(frozen=True)
class Spread:
    """The median of some times, and where the middle half of them lies."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the baseline, with its confidence interval; below 1 it is slower."""

    value: float
    low: float
    high: float

    @property
    def spans_one(self) -> bool:
        return self.low <= 1.0 <= self.high

    def __str__(self) -> str:
        return f"{times(self.value)} ({times(self.low)} to {times(self.high)})"


def quantile(values: Sequence[float], q: float) -> float:
    """Linear between the two nearest values."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), quantile(values, 0.25), quantile(values, 0.75), len(values))


def ratio_of(baseline: Sequence[float], other: Sequence[float], seed: int = 0) -> Ratio:
    """median(baseline) / median(other), with a bootstrap interval.

    The two sequences hold one time for each round, and the rounds are drawn again in pairs: what slowed a whole round
    down (a clock, a neighbour) slowed both.
    """
    if len(baseline) != len(other):
        raise ValueError(f"{len(baseline)} rounds of one and {len(other)} of the other")
    first, second = torch.tensor(baseline, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    value = median(baseline) / median(other)
    if len(baseline) < FEWEST_ROUNDS:
        return Ratio(value, 0.0, math.inf)
    generator = torch.Generator().manual_seed(seed)
    rounds = torch.randint(len(baseline), (RESAMPLES, len(baseline)), generator=generator)
    drawn = first[rounds].quantile(0.5, dim=1) / second[rounds].quantile(0.5, dim=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = drawn.quantile(tail).item(), drawn.quantile(1 - tail).item()
    return Ratio(value, min(low, value), max(high, value))


def interleaved(names: Sequence[str], rounds: int, chance: random.Random) -> list[list[tuple[str, int]]]:
    """For each round, every subject once in a random order, with the number of calls it makes in a row."""
    plan = []
    for _ in range(rounds):
        order = list(names)
        chance.shuffle(order)
        plan.append([(name, chance.randint(1, REPEATS)) for name in order])
    return plan


def rounds_for(seconds_a_round: float, budget: float, chance: random.Random, least: int = 7, most: int = 60) -> int:
    """As many rounds as the time allows, between `least` and `most`, and a few more that nobody can foresee."""
    fitting = most if seconds_a_round * most <= budget else int(budget / seconds_a_round)
    return max(least, min(most, fitting)) + chance.randint(0, 7)


# ---- the word for it ----


@dataclass(frozen=True)
class Evidence:
    """What a verdict on one subject's time rests on."""

    ratio: Ratio | None  # against the eager baseline
    ms: float
    limit_ms: float = 0.0  # no right answer can be faster: its compulsory bytes over the measured bandwidth
    control: Ratio | None = None  # the baseline against itself
    busy_ms: float | None = None  # how long kernels ran on the device, on any stream, for one call
    late_ms: float = 0.0  # how long the device went on after the call's own stream had finished
    wall: Ratio | None = None  # the same ratio by the wall clock, from an idle device
    failed: str = ""  # why it was taken out: what it raised, or what was wrong with a result
    tampered: str = ""  # what the candidate changed in PyTorch or in Python, if anything


LATE_MS = 0.02  # an idle device answers a synchronisation in about 0.01 ms
ROOM = 1.1  # kernels in a profile run a little longer than without one


def judged(evidence: Evidence) -> tuple[bool, str]:
    """(does the number stand, the sentence). The gravest objection is the one that is named."""
    e = evidence
    if e.failed:
        return False, e.failed
    if e.tampered:
        return False, f"not comparable: it changed {e.tampered}"
    if e.limit_ms and e.ms < e.limit_ms:
        return False, f"faster than the roofline: {shown_ms(e.ms)}, but its bytes alone take {shown_ms(e.limit_ms)}"
    if e.late_ms > max(LATE_MS, 0.05 * e.ms):
        return False, f"work outside its stream: the device went on for {shown_ms(e.late_ms)} after the call"
    if e.busy_ms is not None and e.busy_ms > ROOM * e.ms + LATE_MS:
        return False, f"work outside the timed span: {shown_ms(e.busy_ms)} of kernels in a call of {shown_ms(e.ms)}"
    if e.ratio is None:
        return True, "the baseline"
    return True, compared(e.ratio, e.control, e.wall)


def compared(ratio: Ratio, control: Ratio | None = None, wall: Ratio | None = None) -> str:
    """Faster, slower or no difference. What the baseline differs from itself is no difference either."""
    noise = max(abs(math.log(control.value)), 0.0) if control else 0.0
    drowned = abs(math.log(ratio.value)) <= noise
    if ratio.spans_one or drowned:
        return f"no difference: {ratio}"
    word = "faster" if ratio.value > 1 else "slower"
    by = ratio if ratio.value > 1 else Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    sentence = f"{word}: {by}"
    opposite = wall is not None and not wall.spans_one and (wall.value > 1) != (ratio.value > 1)
    if opposite and wall is not None:
        other = "slower" if word == "faster" else "faster"
        sentence += f"; from an idle device {other} by the wall clock, {wall}"
    return sentence


def busy(spans: Sequence[tuple[float, float]]) -> float:
    """How much time is covered by the spans, where they overlap once."""
    total, end = 0.0, -math.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def by_round(samples: Mapping[int, Sequence[float]]) -> list[float]:
    """One time for each round: the median of its calls."""
    return [median(samples[number]) for number in sorted(samples)]
