"""What a stage is doing, in words that know how much of it is left."""

from __future__ import annotations

from collections.abc import Callable


class Step(str):
    """One step of a stage. `left`: how many are known to follow it."""

    left: int

    def __new__(cls, words: str, left: int) -> Step:
        step = super().__new__(cls, words)
        step.left = max(0, left)
        return step


def counted(say: Callable[[str, str], None], total: int) -> Callable[[str, str], None]:
    """The same progress, of a stage that has so many steps."""
    done = 0

    def next_step(stage: str, detail: str = "") -> None:
        nonlocal done
        done += 1
        say(stage, Step(detail, total - done))

    return next_step
