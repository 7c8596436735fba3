"""Calls timed in turn: what the choice between variants rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .statistics import median

ROUNDS, MOST_ROUNDS, SECONDS = 9, 60, 0.4  # of timing for each comparison: at least, at most, about
GAIN = 0.99  # a change must win by this much; below it is noise


class Clock(Protocol):
    """What of `bench_device.Gpu` is needed here."""

    def from_idle(self, call: Callable[[], Any]) -> tuple[Any, Any]: ...

    def peak_bytes(self, call: Callable[[], Any]) -> int: ...


def in_turn(
    calls: Sequence[Callable[[], Any]], clock: Clock, seconds: float, prepare: Callable[[int], None] = lambda number: None
) -> list[float]:
    """The median milliseconds of each call, in rounds so that whatever disturbs one disturbs all. `prepare` is not timed."""
    for number, call in enumerate(calls):
        prepare(number)
        call()
    times: list[list[float]] = [[] for _ in calls]
    spent = 0.0
    for round_ in range(MOST_ROUNDS):
        if round_ >= ROUNDS and spent >= seconds * len(calls) * 1e3:
            break
        for number, (found, call) in enumerate(zip(times, calls, strict=True)):
            prepare(number)
            sample, _ = clock.from_idle(call)
            found.append(sample.ms)
            spent += sample.wall_ms
    return [median(found) for found in times]
