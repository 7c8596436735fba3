"""What came of the models of a suite: the file that holds it, and its table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import Refused
from ..words import counted, is_number


@dataclass(frozen=True)
class Result:
    """What came of one model."""

    model: str  # its path below the folder
    key: str  # of the file, the version and the settings: an equal key need not be run again
    outcome: str  # verified, or one of the ways it was not
    why: str
    seconds: float
    report: Mapping[str, Any] | None = None  # what `optimize --json` wrote

    @property
    def verified(self) -> bool:
        return self.outcome == "verified"

    @property
    def degraded(self) -> list[str]:
        """The file is right because kernels that were not, or that did not build, are left out of it."""
        return [str(sentence) for sentence in items(self, "degraded")] if self.verified else []

    @property
    def original(self) -> bool:
        """No kernel is in it: the original's forward was written."""
        return self.verified and bool((self.report or {}).get("plain"))

    @property
    def family(self) -> str:
        return self.model.rpartition("/")[0] or "."


def write_results(path: Path, results: Sequence[Result] | Any) -> None:
    """The whole file or the one before it, whatever happens meanwhile."""
    text = json.dumps({"fusewright": __version__, "models": [asdict(result) for result in results]}, indent=1)
    whole = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        whole.write_text(text + "\n", encoding="utf-8")
        os.replace(whole, path)
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        whole.unlink(missing_ok=True)


def read_results(path: Path) -> list[Result]:
    """What the file holds; nothing where there is no file. Refused: it holds something else."""
    try:
        return results_in(json.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: not results of a suite ({type(error).__name__}: {error})") from error


def results_in(value: Any, path: Path) -> list[Result]:
    """Of a file that was read already."""
    try:
        found = [Result(**item) for item in value["models"]]
    except (TypeError, KeyError) as error:
        raise Refused(f"{path}: not results of a suite ({type(error).__name__}: {error})") from error
    for r in found:
        texts = all(isinstance(text, str) for text in (r.model, r.key, r.outcome, r.why))
        if not texts or not is_number(r.seconds) or not isinstance(r.report, (dict, type(None))):
            raise Refused(f"{path}: not results of a suite ({str(r.model)[:60]!r} is no result)")
    return found


def table(results: Sequence[Result]) -> list[str]:
    """The whole suite as text: a line for each model, the reasons of those that failed, and means."""
    timed = any(ratio_of(r, "eager_ms") for r in results)
    head = ["model", "outcome", "kernels", "library", "rules", "seconds"]
    head += ["eager ms", "compile ms", "new ms", "× eager", "× compile"] if timed else []
    rows = [[*_facts(r), *(_times(r) if timed else [])] for r in results]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    text = [
        "  ".join(row[i].ljust(width) if i < 2 else row[i].rjust(width) for i, width in enumerate(widths)).rstrip()
        for row in [head, *rows]
    ]
    failed = [f"{r.model}: {r.outcome}: {r.why}" for r in results if not r.verified]
    degraded = [f"{r.model}: degraded: {sentence}" for r in results for sentence in r.degraded]
    return [*text, "", *([*failed, ""] if failed else []), *([*degraded, ""] if degraded else []), *summary(results)]


def summary(results: Sequence[Result]) -> list[str]:
    verified = [r for r in results if r.verified]
    kernels = sum(len(items(r, "kernels")) for r in verified)
    calls = sum(len(items(r, "library_calls")) for r in verified)
    parts = f"{counted(kernels, 'kernel')}, {counted(calls, 'library call')}"
    lines = [f"{len(verified)} of {counted(len(results), 'model')} verified; {parts}"]
    degraded, original = sum(bool(r.degraded) for r in results), sum(r.original for r in results)
    lines += [f"{degraded} of these degraded: kernels that did not build or verify are left out"] if degraded else []
    lines += [f"{original} of these the original's forward, with no kernel in its place"] if original else []
    families = sorted({r.family for r in verified})
    for family in [*families, ""] if len(families) > 1 else [""]:
        members = [r for r in verified if r.family == family or not family]
        means = []
        for other in ("eager", "compile"):
            ratios = [ratio for r in members if (ratio := ratio_of(r, f"{other}_ms"))]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                means.append(f"{mean:.2f}× {other} (geometric mean of {len(ratios)}, lowest {min(ratios):.2f})")
        if means:
            lines.append(f"{family or 'all'}: {', '.join(means)}")
    return lines


def _facts(r: Result) -> list[str]:
    counts = [str(len(items(r, key))) if r.report else "" for key in ("kernels", "library_calls", "rules")]
    return [r.model, r.outcome, *counts, f"{r.seconds:.1f}"]


def items(r: Result, key: str) -> Sequence[Any]:
    """A list of the model's report; nothing where there is none."""
    found = (r.report or {}).get(key)
    return found if isinstance(found, (list, tuple)) else ()


def time_of(r: Result, key: str) -> float | None:
    """Milliseconds: `eager_ms`, `compile_ms` or `new_ms`."""
    timing = (r.report or {}).get("timing") or {}
    value = timing.get(key) if isinstance(timing, Mapping) else None
    return float(value) if is_number(value) and value > 0 else None


def ratio_of(r: Result, key: str) -> float | None:
    """The other's time over ours."""
    other, new = time_of(r, key), time_of(r, "new_ms")
    ratio = other / new if other and new else None
    return ratio if is_number(ratio) and ratio > 0 else None


def _times(r: Result) -> list[str]:
    times = [time_of(r, key) for key in ("eager_ms", "compile_ms", "new_ms")]
    ratios = [ratio_of(r, key) for key in ("eager_ms", "compile_ms")]
    return [f"{t:.3f}" if t else "" for t in times] + [f"{x:.2f}" if x else "" for x in ratios]
