"""The `fusewright` command: arguments in, one verified file or one clear sentence out.

Exit status: 0 done; 1 the result is not equal to the model; 2 bad input or usage; 3 a fault in Fusewright; 130 Ctrl-C.
A command is one function below; `_command` turns whatever it raises into a sentence and a status.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import logging
import math
import os
import secrets
import stat
import sys
import traceback as tracebacks
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .. import __version__
from ..errors import Ended, Refused
from ..frontend.collector import lasting
from ..frontend.quiet import unsaid
from ..options import Options
from ..process import Limits
from .console import Screen, say, show_degraded, show_report, show_variants, show_verdict, stages

if TYPE_CHECKING:
    from ..verify.verifier import Verdict

NOT_EQUAL, REFUSED, FAULT, INTERRUPTED = 1, 2, 3, 130
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)

app = typer.Typer(
    name="fusewright",
    help="Read a PyTorch model file, write the same model with a few fused CUDA kernels, and prove the two equal.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Target(str, Enum):
    auto = "auto"
    cuda = "cuda"
    host = "host"


class Sanitizer(str, Enum):
    address = "address"
    undefined = "undefined"
    thread = "thread"


class Tuning(str, Enum):
    auto = "auto"
    again = "again"
    off = "off"


class PrecisionMode(str, Enum):
    eager = "eager"
    flags = "flags"


ModelFile = Annotated[
    Path,
    typer.Argument(metavar="MODEL.py", help="A file that defines Model, get_inputs() and get_init_inputs()."),
]
TargetOption = Annotated[
    Target,
    typer.Option("--target", help="Where the kernels run: auto takes the GPU if there is one, else the host's CPU."),
]
SanitizeOption = Annotated[
    Sanitizer | None,
    typer.Option("--sanitize", help="Build the host kernels with this g++ sanitizer; implies --target host."),
]
TuneOption = Annotated[
    Tuning,
    typer.Option(
        "--tune",
        help="Where there is a GPU, choose between kernels and PyTorch's operators by timing: as an earlier run chose"
        " (auto), anew (again), or by prediction alone (off).",
    ),
]
PrecisionOption = Annotated[
    PrecisionMode,
    typer.Option(
        "--precision",
        help="How exact float32 convolutions are to be where TF32 is allowed: as PyTorch's library in fact computes them, or within"
        " 1e-4 of the rms (eager); or as the flags allow (flags).",
    ),
]
ArchOption = Annotated[
    str,
    typer.Option(
        "--arch",
        metavar="NAME",
        help="Plan for this GPU (H200, H100, A100, L4, RTX4090, B200) rather than the one that is here; nothing is tuned for another.",
    ),
]
ModesOption = Annotated[
    str,
    typer.Option("--modes", metavar="MODE,...", help="Baselines: eager, compile, reduce-overhead, max-autotune."),
]
AssumeFinite = Annotated[
    bool,
    typer.Option("--assume-finite", help="Allow laws that hold only where no value is Inf or NaN."),
]
ForwardOnly = Annotated[
    bool,
    typer.Option("--forward-only", help="For inference alone: gradients are not checked; optimize writes no kernels for them."),
]
TimeLimit = Annotated[float, typer.Option("--time-limit", metavar="S", help="Seconds until it is ended.")]
MemoryLimit = Annotated[float, typer.Option("--memory-limit", metavar="GB", help="Memory at which it is ended.")]
Alone = Annotated[
    bool,
    typer.Option("--own-process/--same-process", help="Whether the candidate's code runs in a process of its own."),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit status 1 also where kernels of ours did not build or verify and others were written."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, and Python's warnings.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="On an error, show Python's traceback as well.")]


# ---- the commands ----


def _command(body: Callable[..., int]) -> Callable[..., int]:
    """Register a command; what it raises becomes one sentence on stderr and an exit status, never a traceback."""

    @functools.wraps(body)
    def guarded(*args: Any, traceback: bool = False, verbose: bool = False, **kwargs: Any) -> int:
        try:
            with _warnings(shown=verbose):
                status = body(*args, traceback=traceback, verbose=verbose, **kwargs)
        except KeyboardInterrupt:
            if traceback:
                tracebacks.print_exc()
            status = _complain("interrupted; nothing was written", INTERRUPTED)
        except SystemExit as stop:
            status = _complain(f"the model ended Python with sys.exit({stop.code!r}); nothing was written", REFUSED)
        except Refused as refusal:
            if traceback:
                tracebacks.print_exc()
            status = _complain(str(refusal), REFUSED)
        except OSError as error:
            if traceback:
                tracebacks.print_exc()
            status = _complain(*_of_the_system(error))
        except Exception as error:
            if traceback:
                tracebacks.print_exc()
            if type(error).__name__ == "OutOfMemoryError":  # torch's: not imported for this
                raise typer.Exit(_complain(f"out of memory: {str(error).splitlines()[0]}; nothing was written", REFUSED)) from None
            what = f"internal error: {type(error).__name__}: {error}"
            status = _complain(f"{what}; rerun with --traceback and report it", FAULT)
        raise typer.Exit(status)

    return app.command()(guarded)


def _of_the_system(error: OSError) -> tuple[str, int]:
    """A place where nothing can be written is the user's matter; anything else that the system refuses is a fault of ours."""
    no_temporary = error.errno == errno.ENOENT and "temporary directory" in str(error)
    if error.errno in UNWRITABLE or no_temporary:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}cannot be written: {error.strerror or error}", REFUSED
    return f"internal error: {type(error).__name__}: {error}; rerun with --traceback and report it", FAULT


def _pipeline() -> ModuleType:
    """The line, and with it PyTorch, which a collector would go through again and again while it is imported."""
    if "torch" in sys.modules:
        return importlib.import_module(".pipeline", __package__)
    with lasting():
        return importlib.import_module(".pipeline", __package__)


@contextmanager
def _warnings(shown: bool) -> Iterator[None]:
    """Keep torch's warnings and log lines away from the one sentence that matters."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        if not shown:
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


@_command
def optimize(
    model: ModelFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.py", help="The file to write (default: MODEL_new.py beside it)."),
    ] = None,
    target: TargetOption = Target.auto,
    report: Annotated[
        Path | None,
        typer.Option("--json", metavar="REPORT.json", help="Also write what was done, verified or not, as JSON."),
    ] = None,
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Time the result where there is a GPU.")] = True,
    modes: ModesOption = "eager",
    gradients: Annotated[
        bool,
        typer.Option("--gradients/--no-gradients", help="Kernels for backward too; without, PyTorch's operators do it."),
    ] = True,
    forward_only: ForwardOnly = False,
    tune: TuneOption = Tuning.auto,
    tuning_record: Annotated[
        Path | None,
        typer.Option("--tuning-record", metavar="FILE", help="Take what timing chose from this file, and add what it lacks."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The file as predicted, verified with one seed: nothing is tuned and nothing timed.")
    ] = False,
    precision: PrecisionOption = PrecisionMode.eager,
    arch: ArchOption = "",
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="Verify every variant that tuning could choose, one at a time; status 1 if one is wrong.")
    ] = False,
    strict: Strict = False,
    sanitize: SanitizeOption = None,
    assume_finite: AssumeFinite = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Write MODEL_new.py: the same model, its memory-bound operators fused into a few CUDA kernels.

    The file is written only after its kernels were run and its results and gradients were found equal to the model's.
    """
    more = {"assume_finite": assume_finite, "bench": bench, "gradients": gradients, "tune": tune.value}
    options = _options(target, sanitize, forward_only=forward_only, precision=precision.value, arch=arch, **more)
    options = options.quickly() if quick else options
    _check_readable(model)
    output = output or model.with_name(f"{model.stem}_new.py")
    _check_writable(output, reads=[model])
    if report:
        _check_writable(report, reads=[model, output])
    if tuning_record:
        _check_writable(tuning_record, reads=[model, output, *([report] if report else [])])
    if sanitize and _needs_runtime(sanitize):
        return _under(sanitize.value)

    pipeline = _pipeline()
    from ..frontend.problem import load_problem

    options = replace(options, tuning_record=tuning_record, modes=_modes(modes), all_variants=all_variants, output=output.absolute())
    console = Screen()
    with stages(console, pipeline.ahead(options)) as progress:
        progress("load", str(model))
        problem = load_problem(model)
        with unsaid():
            run = pipeline.optimize(problem, options, progress)

    show_report(console, run.report)
    show_verdict(console, run.verdict, verbose)
    show_variants(console, run.variants)
    files = {output: run.text} if run.verdict.passed else {}
    if report:
        files[report] = json.dumps(_strict(run.report), indent=2) + "\n"
    for path in files:
        if path.exists():
            say(console, f"replacing {path}")
    _write(files)
    show_degraded(console, run.degraded)
    if not run.verdict.passed:
        return _not_equal(run.verdict, f"{output} was not written")
    say(console, f"wrote {output}", "bold green")
    wrong = [one.name for one in run.variants if one.wrong]
    if wrong:
        return _complain(f"wrong variants: {', '.join(wrong)}; {output}, another one, is equal to the model", NOT_EQUAL)
    if strict and run.degraded:
        return _complain(f"--strict: {run.degraded[0]}", NOT_EQUAL)
    return 0


@_command
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
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Check that NEW.py's ModelNew equals MODEL.py's Model: results, gradients, state and which kernels ran.

    A line for each check; the last word is `equal` or `different`. The candidate runs in a process of its own.
    """
    options = _options(target, sanitize, forward_only=forward_only, as_built=as_built, precision=precision.value)
    _check_readable(model)
    _check_readable(candidate)
    if results:
        _check_writable(results, reads=[model, candidate])
    if sanitize and _needs_runtime(sanitize):
        return _under(sanitize.value, "different")

    pipeline = _pipeline()
    from ..frontend.problem import load_problem

    console = Screen()
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
            _complain(str(ended), NOT_EQUAL)
            return _different()
    show_verdict(console, verdict, verbose=True)
    if results:
        _write({results: json.dumps(_strict(_verdict_record(model, candidate, verdict)), indent=2) + "\n"})
    if not verdict.passed:
        _not_equal(verdict, f"{candidate} does not equal {model}")
        return _different()
    say(console, "equal", "bold green")
    return 0


def _verdict_record(model: Path, candidate: Path, verdict: Verdict) -> dict[str, Any]:
    from ..report.accuracy import errors_record

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


def _under(sanitize: str, last_word: str = "") -> int:
    """This very command again in a process that has the sanitizer's runtime; what it finds becomes a sentence, and the last word."""
    from ..host.sanitize import FOUND_SOMETHING, run_sanitized, sanitizer_report
    from ..process import with_this_package

    environment = with_this_package({**os.environ, "FUSEWRIGHT_SANITIZED": sanitize})
    say(Screen(), f"under the {sanitize} sanitizer, in a process of its own: this takes several times as long")
    run = run_sanitized(["-m", "fusewright", *_given], sanitize, env=environment)
    sys.stdout.write(run.stdout)
    found = sanitizer_report(run.stderr)
    if run.returncode == FOUND_SOMETHING or found:
        if last_word and not run.stdout.endswith(f"{last_word}\n"):
            say(Screen(), last_word, "bold red")
        return _complain(f"the {sanitize} sanitizer found a fault in a kernel: {found or 'it says no more'}", NOT_EQUAL)
    sys.stderr.write(run.stderr)
    return run.returncode if run.returncode >= 0 else _complain(f"it ended with signal {-run.returncode}", FAULT)


def _needs_runtime(sanitize: Sanitizer | None) -> bool:
    return sanitize is not None and os.environ.get("FUSEWRIGHT_SANITIZED") != sanitize.value


def _alone(candidate: Path, time_limit: float, memory_limit: float) -> int:
    """This very command again in a process of its own; what ended that process before its time is a sentence too."""
    from ..process import run_alone

    status, why = run_alone([*_given, "--same-process"], Limits(time_limit, memory_limit))
    if why:
        return _complain(f"{candidate}: {why}", NOT_EQUAL)
    return status


def _different() -> int:
    """The last word, after the sentence that says why."""
    say(Screen(), "different", "bold red")
    return NOT_EQUAL


@_command
def explain(
    model: ModelFile,
    target: TargetOption = Target.auto,
    arch: ArchOption = "",
    assume_finite: AssumeFinite = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Show the graph, what each kernel would replace, its bytes, operations and predicted time; build nothing."""
    options = _options(target, None, assume_finite=assume_finite, arch=arch)

    pipeline = _pipeline()
    from ..frontend.problem import load_problem

    say(Screen(), pipeline.explain(load_problem(model), options))
    return 0


@_command
def bench(
    model: ModelFile,
    candidates: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[NEW.py ...]", help="Files that define ModelNew; without one, only the baselines."),
    ] = None,
    modes: ModesOption = "eager,compile",
    results: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT.json", help="Also write everything that was measured, for `report`."),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward/--no-backward", help="Time forward plus backward too.")] = True,
    builds: Annotated[bool, typer.Option("--builds", help="Time a cold and a warm build of each candidate.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long to time for.")] = 10.0,
    time_limit: TimeLimit = 1800.0,
    memory_limit: MemoryLimit = 64.0,
    alone: Alone = True,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Time MODEL.py and candidates side by side: interleaved, every result checked, with confidence intervals.

    Exit status 1 if a candidate's time does not stand: a wrong result, or faster than the roofline.
    """
    files = [model, *(candidates or [])]
    for path in files:
        _check_readable(path)
    if results:
        _check_writable(results, reads=files)

    from ..bench.comparison import needs_a_gpu
    from ..report.report import table
    from .bench import bench_files

    chosen = _modes(modes)
    needs_a_gpu()
    if alone and candidates:
        return _alone(candidates[0], time_limit, memory_limit)
    console = Screen()
    with stages(console) as progress:
        timing, record = bench_files(
            model, files[1:], chosen, seconds=seconds, backward=backward, builds=builds, progress=progress
        )
    record = _strict(record)
    for line in table([record]):
        say(console, line)
    if results:
        _write({results: json.dumps(record, indent=2) + "\n"})
        say(console, f"wrote {results}", "bold green")
    fallen = [row for row in timing.candidates if not row.stands]
    return _complain(f"{fallen[0].name}: {fallen[0].verdict}", NOT_EQUAL) if fallen else 0


@_command
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.json ...", help="What optimize and bench wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.html", help="Write the page here; without it, only the table."),
    ] = None,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Show runs: a compact table here, and with -o one self-contained page with pictures, charts and the CUDA."""
    if output:
        _check_writable(output, reads=runs)

    from ..report.report import report as draw

    html, lines = draw(runs)
    console = Screen()
    for line in lines:
        say(console, line)
    if output:
        _write({output: html})
        say(console, f"wrote {output}", "bold green")
    return 0


@_command
def suite(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Every model file in it and below it.")],
    results: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT.json", help="Write the results here, one by one as they come."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Models at a time; more than 1 are neither timed nor tuned.")] = 1,
    target: TargetOption = Target.auto,
    time_limit: Annotated[float, typer.Option("--time-limit", metavar="S", help="Seconds for one model.")] = 600.0,
    memory_limit: Annotated[float, typer.Option("--memory-limit", metavar="GB", help="Memory for one model.")] = 24.0,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what --json holds as verified.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A folder to keep the emitted files in.")
    ] = None,
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Time the results where there is a GPU.")] = True,
    precision: PrecisionOption = PrecisionMode.eager,
    arch: ArchOption = "",
    strict: Strict = False,
    sanitize: SanitizeOption = None,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Optimise every model of a folder, each in a process of its own, and end in a table of what came of it.

    A model that crashes, hangs or takes too much memory costs only its own line.
    """
    options = _options(target, sanitize, arch=arch)
    if results:
        _check_writable(results, reads=[])
    if output:
        output.mkdir(parents=True, exist_ok=True)
        _stage(output / "new.py", "").unlink()

    from .suite import Settings, run_suite, table

    console = Screen()
    one, limits = jobs == 1, (time_limit, memory_limit)
    settings = Settings(options.target, *limits, bench and one, options.sanitize, output, one, precision.value, arch)
    try:
        found = run_suite(folder, results, jobs, settings, resume=resume, console=console)
    except KeyboardInterrupt:
        kept = f"what was done is in {results}; go on with --resume" if results else "nothing was kept (no --json)"
        return _complain(f"interrupted; {kept}", INTERRUPTED)
    for line in table(found):
        say(console, line)
    fine = all(result.verified and not (strict and result.degraded) for result in found)
    return 0 if fine else NOT_EQUAL


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fusewright {__version__}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What stands before a command."""


def _modes(text: str) -> tuple[str, ...]:
    from ..bench.comparison import check_modes

    found = tuple(mode.strip() for mode in text.split(",") if mode.strip())
    check_modes(found)
    return found


def _options(target: Target, sanitize: Sanitizer | None, **rest: Any) -> Options:
    if sanitize and target is Target.auto:
        target = Target.host
    return Options(target=target.value, sanitize=sanitize.value if sanitize else "", **rest)


# ---- the entry point ----


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another one
    sys.exit(_main(sys.argv[1:]))


_given: list[str] = []  # the arguments of this run


def _main(arguments: list[str]) -> int:
    _given[:] = arguments
    try:
        status = app(args=arguments, prog_name="fusewright", standalone_mode=False)
    except Exception as error:
        # typer carries its own copy of click or uses the installed one; both mark a usage error with this method.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message() or "no command given"
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "fusewright"
        return _complain(f"{message.rstrip('.')}; see {where} --help", REFUSED)
    return status if isinstance(status, int) else 0


def _complain(sentence: str, status: int) -> int:
    """One line on stderr, whatever was in the message."""
    line = " ".join(sentence.split())
    print(f"fusewright: {line}{'' if line.endswith(('.', '!', '?')) else '.'}", file=sys.stderr)
    return status


def _not_equal(verdict: Verdict, consequence: str) -> int:
    failed = ", ".join(check.name for check in verdict.checks if not check.passed)
    worst = f": {verdict.worst.rstrip('.')}" if verdict.worst else ""
    return _complain(f"not equal to the model ({failed}){worst}; {consequence}", NOT_EQUAL)


# ---- files: checked before the work starts, written whole or not at all ----


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except IsADirectoryError:
        raise Refused(f"{path}: a directory, not a Python file") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror or error}") from None


def _check_writable(path: Path, reads: Iterable[Path]) -> None:
    """Refuse a place where `_write` would fail or would destroy something, by making a file there and removing it."""
    refusal = f"{path}: cannot be written: "
    place = _place(path)
    try:
        if place.is_dir():
            raise Refused(refusal + "it is a directory")
        endless_link = place.is_symlink()
        if endless_link or (place.exists() and not place.is_file()):
            raise Refused(refusal + "it is not a regular file")
        if place.exists() and not os.access(place, os.W_OK):
            raise Refused(refusal + "permission denied")
        for other in map(_place, reads):
            if place == other or (place.exists() and other.exists() and place.samefile(other)):
                raise Refused(refusal + f"it would overwrite {other.name}")
        if not place.parent.is_dir():
            raise Refused(refusal + f"there is no folder {path.parent}")
    except OSError as error:
        raise Refused(refusal + (error.strerror or str(error))) from None
    _stage(path, "").unlink()


def _write(files: Mapping[Path, str]) -> None:
    """Write every file whole, or leave none of them behind: each is completed beside its place, then moved there."""
    staged: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            staged[path] = _stage(path, text)
        for path, whole in staged.items():
            os.replace(whole, _place(path))
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        for whole in staged.values():
            whole.unlink(missing_ok=True)


def _stage(path: Path, text: str) -> Path:
    """A complete new file in the folder of `path`, with the permissions `path` has or would get."""
    place = _place(path)
    whole = place.with_name(f".fusewright-{secrets.token_hex(6)}")
    try:
        with open(whole, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if place.exists():
            whole.chmod(stat.S_IMODE(place.stat().st_mode))
    except BaseException as error:
        whole.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error
        raise
    return whole


def _place(path: Path) -> Path:
    """Where a path leads: a link is written through, not replaced."""
    return Path(os.path.realpath(path))


def _strict(value: Any) -> Any:
    """JSON has no Inf or NaN: those become null."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
