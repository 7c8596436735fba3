"""`verify`: is a file's ModelNew the same model?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import Ended
from ...frontend.quiet import unsaid
from ...process import Limits
from ..console import Screen, say, show_verdict, stages
from .again import needs_runtime, under
from .app import NOT_EQUAL, complain, guarded, the_line
from .arguments import (
    Alone,
    ForwardOnly,
    MemoryLimit,
    ModelFile,
    PrecisionMode,
    PrecisionOption,
    Quiet,
    SanitizeOption,
    Target,
    TargetOption,
    TimeLimit,
    Traceback,
    Verbose,
    options_of,
)
from .files import as_json, check_readable, check_writable, write

if TYPE_CHECKING:
    from ...verify.verifier import Verdict


@guarded
def verify(
    model: ModelFile,
    candidate: Annotated[Path, typer.Argument(metavar="NEW.py", help="A file that defines ModelNew.")],
    target: TargetOption = Target.auto,
    results: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT.json", help="Also write every check, what it saw and its number."),
    ] = None,
    forward_only: ForwardOnly = False,
    as_built: Annotated[
        bool,
        typer.Option("--as-built", help="For a candidate that is right as it is built, and need not follow hooks and later changes."),
    ] = False,
    precision: PrecisionOption = PrecisionMode.eager,
    sanitize: SanitizeOption = None,
    time_limit: TimeLimit = 900.0,
    memory_limit: MemoryLimit = 24.0,
    alone: Alone = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Check that NEW.py's ModelNew equals MODEL.py's Model: results, gradients, state and which kernels ran.

    A line for each check; the last word is `equal` or `different`. The candidate runs in a process of its own.
    """
    options = options_of(target, sanitize, forward_only=forward_only, as_built=as_built, precision=precision.value)
    check_readable(model)
    check_readable(candidate)
    if results:
        check_writable(results, reads=[model, candidate])
    if sanitize and needs_runtime(sanitize):
        return under(sanitize.value, Screen(quiet), "different")

    pipeline = the_line()
    from ...frontend.problem import load_problem

    console = Screen(quiet)
    with stages(console) as progress:
        progress("load", str(model))
        problem = load_problem(model)
        try:
            with unsaid():
                if alone:
                    limits = Limits(time_limit, memory_limit)
                    verdict = pipeline.verify_apart(problem, candidate, options, limits, progress)
                else:
                    verdict = pipeline.verify(problem, candidate, options, progress)
        except Ended as ended:
            complain(str(ended), NOT_EQUAL)
            return _different(console)
    show_verdict(console, verdict, verbose=True)
    if results:
        write({results: as_json(_verdict_record(model, candidate, verdict))})
    if not verdict.passed:
        not_equal(verdict, f"{candidate} does not equal {model}")
        return _different(console)
    say(console, "equal", "bold green")
    return 0


def _verdict_record(model: Path, candidate: Path, verdict: Verdict) -> dict[str, Any]:
    from ...report.accuracy import errors_record

    checks = [
        {"name": c.name, "status": c.status, "passed": c.passed, "detail": c.detail, "number": c.number} for c in verdict.checks
    ]
    return {
        "model": model.name,
        "candidate": candidate.name,
        "verified": verdict.passed,
        "checks": checks,
        "max_error": verdict.max_error,
        "tolerance": verdict.tolerance,
        "errors": errors_record(verdict),
        "kernels": list(verdict.kernels),
        "library_calls": list(verdict.library_calls),
        "note": verdict.shapes_note,
        "seconds": verdict.seconds,
        "peak_gb": verdict.peak / 1e9,
        "own_peak_gb": verdict.own_peak / 1e9,
    }


def _different(console: Screen) -> int:
    """The last word, after the sentence that says why."""
    say(console, "different", "bold red")
    return NOT_EQUAL


def not_equal(verdict: Verdict, consequence: str) -> int:
    """The sentence for a candidate that is not the model."""
    failed = ", ".join(check.name for check in verdict.checks if not check.passed)
    worst = f": {verdict.worst.rstrip('.')}" if verdict.worst else ""
    return complain(f"not equal to the model ({failed}){worst}; {consequence}", NOT_EQUAL)
