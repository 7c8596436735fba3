"""A command that runs itself again: in a process of its own, or in one that has a sanitizer's runtime."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ...process import Limits, run_alone, with_this_package
from ..console import Screen, say
from .app import FAULT, NOT_EQUAL, complain, given
from .arguments import Sanitizer


def under(sanitize: str, console: Screen, last_word: str = "") -> int:
    """This very command again in a process that has the sanitizer's runtime; what it finds becomes a sentence, and the last word."""
    from ...host.sanitize import FOUND_SOMETHING, run_sanitized, sanitizer_report

    environment = with_this_package({**os.environ, "FUSEWRIGHT_SANITIZED": sanitize})
    say(console, f"under the {sanitize} sanitizer, in a process of its own: this takes several times as long")
    run = run_sanitized(["-m", "fusewright", *given], sanitize, env=environment)
    sys.stdout.write(run.stdout)
    found = sanitizer_report(run.stderr)
    if run.returncode == FOUND_SOMETHING or found:
        if last_word and not run.stdout.endswith(f"{last_word}\n"):
            say(console, last_word, "bold red")
        return complain(f"the {sanitize} sanitizer found a fault in a kernel: {found or 'it says no more'}", NOT_EQUAL)
    sys.stderr.write(run.stderr)
    return run.returncode if run.returncode >= 0 else complain(f"it ended with signal {-run.returncode}", FAULT)


def needs_runtime(sanitize: Sanitizer | None) -> bool:
    return sanitize is not None and os.environ.get("FUSEWRIGHT_SANITIZED") != sanitize.value


def alone_again(candidate: Path, time_limit: float, memory_limit: float) -> int:
    """This very command again in a process of its own; what ended that process before its time is a sentence too."""
    status, why = run_alone([*given, "--same-process"], Limits(time_limit, memory_limit))
    if why:
        return complain(f"{candidate}: {why}", NOT_EQUAL)
    return status
