"""Medians, intervals, the order of runs, and the words for what was found."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewright.bench.statistics import (
    REPEATS,
    Evidence,
    Ratio,
    busy,
    by_round,
    compared,
    interleaved,
    judged,
    median,
    quantile,
    ratio_of,
    rounds_for,
    spread,
)
from fusewright.words import is_number, percent, shown_amount, shown_ms, times


def test_quantiles_lie_between_the_nearest_values() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], q) for q in (0, 0.25, 0.5, 1)] == [1.0, 1.75, 2.5, 4.0]
    assert (median([5.0]), spread([3.0, 1.0, 2.0]).low) == (5.0, 1.5)
    assert by_round({1: [3.0, 5.0], 0: [2.0]}) == [2.0, 4.0]


def noisy(chance: random.Random, level: float, count: int, drift: list[float] | None = None) -> list[float]:
    shared = drift or [1.0] * count
    return [level * shared[i] * math.exp(chance.gauss(0, 0.03)) for i in range(count)]


def test_the_interval_holds_the_true_ratio_about_as_often_as_it_says() -> None:
    chance, held = random.Random(1), 0
    for trial in range(120):
        ratio = ratio_of(noisy(chance, 3.0, 30), noisy(chance, 2.0, 30), seed=trial)
        held += ratio.low <= 1.5 <= ratio.high
    assert 0.86 * 120 <= held <= 120, held


def test_equal_times_are_no_difference() -> None:
    chance = random.Random(2)
    spans = [ratio_of(noisy(chance, 1.0, 25), noisy(chance, 1.0, 25), seed=i).spans_one for i in range(60)]
    assert sum(spans) >= 51


def test_what_slows_a_round_slows_both() -> None:
    """A drift of 3 to 1 over the run leaves the ratio of paired rounds as narrow as without it."""
    chance = random.Random(3)
    drift = [3.0 - 2.0 * i / 39 for i in range(40)]
    ratio = ratio_of(noisy(chance, 2.0, 40, drift), noisy(chance, 1.0, 40, drift))
    assert ratio.low < 2.0 < ratio.high and ratio.high / ratio.low < 1.6


def test_few_rounds_say_nothing() -> None:
    few = ratio_of([2.0, 2.0], [1.0, 1.0])
    assert (few.value, few.spans_one) == (2.0, True)
    with pytest.raises(ValueError, match="2 rounds of one and 1 of the other"):
        ratio_of([1.0, 1.0], [1.0])


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = noisy(random.Random(4), 2.0, 20), noisy(random.Random(5), 1.0, 20)
    assert ratio_of(a, b, seed=7) == ratio_of(a, b, seed=7)


@given(st.integers(1, 5), st.integers(1, 30), st.integers(0, 1000))
def test_every_round_runs_every_subject_once(subjects: int, rounds: int, seed: int) -> None:
    names = [f"s{i}" for i in range(subjects)]
    plan = interleaved(names, rounds, random.Random(seed))
    assert len(plan) == rounds
    assert all(sorted(name for name, _ in turn) == names for turn in plan)
    assert all(1 <= repeats <= REPEATS for turn in plan for _, repeats in turn)
    assert plan == interleaved(names, rounds, random.Random(seed))


def test_orders_and_repeats_vary() -> None:
    plan = interleaved(["a", "b"], 40, random.Random(0))
    assert {turn[0][0] for turn in plan} == {"a", "b"}
    assert {repeats for turn in plan for _, repeats in turn} == {1, 2, 3}


@given(st.floats(0, 10), st.floats(0.1, 100), st.integers(0, 99))
def test_rounds_stay_within_bounds(seconds: float, budget: float, seed: int) -> None:
    assert 7 <= rounds_for(seconds, budget, random.Random(seed)) <= 67


FASTER = Ratio(2.0, 1.9, 2.1)


@pytest.mark.parametrize(
    ("evidence", "stands", "words"),
    [
        (Evidence(None, 3.0), True, "the baseline"),
        (Evidence(FASTER, 1.0), True, "faster: 2.00× (1.90× to 2.10×)"),
        (Evidence(Ratio(0.5, 0.4, 0.6), 1.0), True, "slower: 2.00× (1.67× to 2.50×)"),
        (Evidence(Ratio(1.02, 0.98, 1.05), 1.0), True, "no difference: 1.02× (0.98× to 1.05×)"),
        (Evidence(Ratio(1.02, 1.01, 1.03), 1.0, control=Ratio(0.97, 0.9, 1.1)), True, "no difference: 1.02×"),
        (Evidence(FASTER, 0.01, limit_ms=0.018), False, "faster than the roofline: 0.0100 ms, but its bytes"),
        (Evidence(FASTER, 1.0, late_ms=0.2), False, "work outside its stream"),
        (Evidence(FASTER, 1.0, late_ms=0.04), True, "faster"),
        (Evidence(FASTER, 0.1, busy_ms=1.0), False, "work outside the timed span: 1.00 ms of kernels in a"),
        (Evidence(FASTER, 1.0, busy_ms=1.08), True, "faster"),
        (Evidence(FASTER, 1.0, failed="raised RuntimeError: no"), False, "raised RuntimeError: no"),
        (Evidence(FASTER, 1.0, tampered="time.perf_counter"), False, "not comparable: it changed time.perf_counter"),
        (Evidence(FASTER, 0.01, 0.018, failed="wrong result: stale"), False, "wrong result: stale"),
    ],
)  # fmt: skip
def test_verdicts(evidence: Evidence, stands: bool, words: str) -> None:
    found, sentence = judged(evidence)
    assert found is stands
    assert sentence.startswith(words), sentence


def test_the_wall_clock_may_disagree() -> None:
    assert "slower by the wall clock" in compared(FASTER, wall=Ratio(0.5, 0.4, 0.6))
    assert "wall" not in compared(FASTER, wall=Ratio(0.9, 0.7, 1.2))


def test_busy_time_counts_overlaps_once() -> None:
    assert busy([(0, 2), (1, 3), (5, 6), (5.2, 5.4)]) == 4.0
    assert busy([]) == 0.0


def test_numbers_as_words() -> None:
    assert [shown_ms(x) for x in (6.0912, 0.3921, 0.01834, 123.4, 0, math.nan)] == [
        "6.09 ms", "0.392 ms", "0.0183 ms", "123 ms", "0 ms", "? ms"]  # fmt: skip
    assert [times(x) for x in (1.534, 19.42, 130.2, math.inf)] == ["1.53×", "19.4×", "130×", "?×"]
    assert [shown_amount(x, "B") for x in (520093696, 999, 4.19e12, 0, None, "x")] == [
        "520 MB", "999 B", "4.19 TB", "", "", ""]  # fmt: skip
    assert [percent(x) for x in (0.954, 0.031, None)] == ["95 %", "3.1 %", ""]
    assert [is_number(x) for x in (1, 1.5, True, None, math.inf, "1")] == [True, True, False, False, False, False]
