"""The `bench` command: files loaded and timed, and the record that `report` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..bench.comparison import SECONDS, Timing, bench
from ..bench.trial import put_back
from ..errors import Refused
from ..frontend.problem import load_problem, shown
from ..options import Options
from ..report.record import run_record
from ..verify.candidate import Candidate, load_candidate
from .pipeline import compile_problem


def bench_files(
    model: Path,
    candidates: Sequence[Path],
    modes: Sequence[str],
    *,
    seconds: float = SECONDS,
    backward: bool = True,
    builds: bool = False,
    progress: Callable[[str, str], None] = lambda stage, detail: None,
) -> tuple[Timing, dict[str, Any]]:
    """Load and time files; the record for `report` comes with the times. This file is imported before any of them."""
    progress("load", shown(model))
    problem = load_problem(model)
    known: Any = None  # what Fusewright itself writes for this model today, where a candidate is that
    if candidates:
        progress("plan", "")
        try:
            known = compile_problem(problem, Options())
        except Refused:  # a candidate of another hand may handle what Fusewright cannot
            known = None
    loaded: list[Candidate] = []
    tampered: dict[str, list[str]] = {}
    names = [path.name for path in candidates]
    for path in candidates:
        progress("build", shown(path))
        name = path.name if names.count(path.name) == 1 else shown(path)
        loaded.append(load_candidate(path, "cuda", name=name))
        tampered[name] = put_back(loaded[-1])  # before the next one is loaded: it would be blamed
    _, plan, emitted = known if known and any(c.source == known[2].text for c in loaded) else (None, None, None)
    timing = bench(
        problem,
        loaded,
        Options(target="cuda"),
        modes,
        facts=emitted.kernels if emitted else (),
        tampered=tampered,
        seconds=seconds,
        backward=backward,
        builds=builds,
        progress=lambda detail: progress("bench", detail),
    )
    source = loaded[0].source if loaded else None
    return timing, run_record(problem, plan, emitted, None, timing, source=source)
