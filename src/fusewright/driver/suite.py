"""Every model file of a folder through `optimize`, each in a process of its own, and a table of what came of it.

A model that crashes, hangs or takes too much memory costs its own line, nothing else. Results are written to the JSON
file one by one, so that an interrupted suite goes on where it stopped.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import __version__
from ..errors import Refused
from ..process import POLL, Limits, now, signal_name, terminable, watch, with_this_package
from .console import counted, live, say

# What `optimize` says by its exit status; a negative one is the signal that ended it.
OUTCOMES = {0: "verified", 1: "not equal", 2: "refused", 3: "fault"}
UNREADABLE = "not Python"  # the outcome of a file that cannot be parsed
SWITCH = "FUSEWRIGHT_ZOO"  # the variable by which the zoo's files choose their sizes


@dataclass(frozen=True)
class Settings:
    """How every model of a suite is run."""

    target: str = "auto"
    time_limit: float = 600.0  # seconds for one model
    memory_limit: float = 24.0  # GB for one model, with its compilers
    bench: bool = True
    sanitize: str = ""
    output: Path | None = None  # where to keep the emitted files
    tune: bool = True  # by timing, which models that run beside one another would disturb
    precision: str = "eager"  # as exact as that, or as the flags allow
    arch: str = ""  # the machine to plan for

    @property
    def limits(self) -> Limits:
        return Limits(self.time_limit, self.memory_limit)

    def arguments(self) -> list[str]:
        found = ["--target", self.target, *(["--bench", "--modes", "eager,compile"] if self.bench else ["--no-bench"])]
        found += ["--precision", self.precision, *([] if self.tune else ["--tune", "off"])]
        found += ["--arch", self.arch] if self.arch else []
        return [*found, "--sanitize", self.sanitize] if self.sanitize else found


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
        return [str(sentence) for sentence in _items(self, "degraded")] if self.verified else []

    @property
    def original(self) -> bool:
        """No kernel is in it: the original's forward was written."""
        return self.verified and bool((self.report or {}).get("plain"))

    @property
    def family(self) -> str:
        return self.model.rpartition("/")[0] or "."


def run_suite(
    folder: Path,
    json_out: Path | None = None,
    jobs: int = 1,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> list[Result]:
    """Run every model below `folder`; the results in the order of their names.

    `resume` leaves out what `json_out` holds as verified.
    """
    settings = settings or Settings()
    models, unreadable = find_models(folder), find_unreadable(folder)
    if not models and not unreadable:
        raise Refused(f"{folder}: no model files here (a .py file that defines Model and get_inputs)")
    keys = {name: key_of(path, settings) for name, path in models.items()}
    found = _known(json_out, keys) if resume and json_out else {}
    pending = [name for name in models if name not in found]
    console = console or Console(quiet=True)
    if found:
        say(console, f"{counted(len(found), 'model')} verified before, {len(pending)} to run")
    broken = {name: Result(name, "", UNREADABLE, why, 0.0) for name, why in unreadable.items()}
    with _progress(console, len(models) + len(broken), len(found)) as show:
        for result in broken.values():
            show(result)
        at_a_time = jobs
        while pending:
            with _workers(models, keys, pending, at_a_time, settings) as results:
                for result in results:
                    found[result.model] = result
                    if at_a_time == 1 or not _short_of_memory(result):
                        show(result)
                    if json_out:
                        write_results(json_out, found.values())
            pending = [name for name in pending if at_a_time > 1 and _short_of_memory(found[name])]
            at_a_time = max(1, at_a_time // 4)
    found |= broken
    ordered = [found[name] for name in sorted(found, key=lambda name: Path(name))]
    if json_out:
        write_results(json_out, ordered)
    return ordered


def find_models(folder: Path) -> dict[str, Path]:
    """Model files by their path below the folder."""
    if not folder.is_dir():
        raise Refused(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    return {path.relative_to(folder).as_posix(): path for path in _files(folder) if is_model(path)}


def find_unreadable(folder: Path) -> dict[str, str]:
    """Python files below the folder that cannot be parsed, so that nobody knows whether they are models, and why."""
    found = {path.relative_to(folder).as_posix(): _parsed(path) for path in _files(folder)}
    return {name: why for name, why in found.items() if isinstance(why, str)}


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if not path.name.startswith((".", "_"))]


def is_model(path: Path) -> bool:
    """It defines Model and get_inputs, and is not itself the result of an optimisation."""
    tree = _parsed(path)
    if isinstance(tree, str):
        return False
    names = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return {"Model", "get_inputs"} <= names and "ModelNew" not in names


def _parsed(path: Path) -> ast.Module | str:
    """The file's syntax tree, or a sentence that says why there is none."""
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as error:
        return f"{path.name}:{error.lineno or 1}: {error.msg}"
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return f"{path.name}: {error}"


def key_of(path: Path, settings: Settings) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    ingredients = [text, __version__, *settings.arguments(), os.environ.get(SWITCH, "")]
    return hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]


def _short_of_memory(result: Result) -> bool:
    """Beside the others there was too little memory on the GPU: with fewer of them, and at last alone, there may be enough."""
    return "out of memory" in result.why.lower()


# ---- the file of results


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
    try:
        return [Result(**item) for item in json.loads(path.read_text(encoding="utf-8"))["models"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(f"{path}: not results of a suite ({type(error).__name__}: {error})") from error


def _known(path: Path, keys: Mapping[str, str]) -> dict[str, Result]:
    return {r.model: r for r in read_results(path) if r.verified and keys.get(r.model) == r.key}


# ---- processes


@contextlib.contextmanager
def _workers(
    models: Mapping[str, Path], keys: Mapping[str, str], pending: Sequence[str], jobs: int, settings: Settings
) -> Iterator[Iterator[Result]]:
    """`jobs` threads, each with one process at a time. Whatever still runs when the context is left is ended."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result] = queue.SimpleQueue()
    stop = threading.Event()
    environment = _environment(jobs)
    for name in pending:
        todo.put(name)

    def work() -> None:
        while not stop.is_set():
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            try:
                result = run_model(models[name], settings, name=name, key=keys[name], environment=environment, stop=stop)
            except OSError as error:  # no room for its report, no process to be had: whoever waits for it must hear
                result = Result(name, keys[name], "fault", f"{type(error).__name__}: {error}", 0.0)
            if result is not None:
                done.put(result)

    def results() -> Iterator[Result]:
        for _ in pending:
            while True:
                try:
                    yield done.get(timeout=POLL)
                    break
                except queue.Empty:
                    continue

    threads = [threading.Thread(target=work) for _ in range(max(1, min(jobs, len(pending))))]
    with terminable():
        for thread in threads:
            thread.start()
        try:
            yield results()
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _environment(jobs: int) -> dict[str, str]:
    threads = str(max(1, (os.cpu_count() or 1) // max(1, jobs)))
    return {"OMP_NUM_THREADS": threads, **os.environ}


def run_model(
    path: Path,
    settings: Settings,
    *,
    name: str = "",
    key: str = "",
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> Result | None:
    """One model in a process of its own; None if it was stopped."""
    start = now()
    with tempfile.TemporaryDirectory(prefix="fusewright-suite-") as scratch:
        written, report = Path(scratch) / f"{path.stem}_new.py", Path(scratch) / "report.json"
        if settings.output is not None:
            written = settings.output / (name.removesuffix(".py") + "_new.py" if name else written.name)
            written.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "fusewright", "optimize", str(path), "-o", str(written), "--json", str(report)]
        with (Path(scratch) / "output").open("w+", errors="replace") as output:
            process = subprocess.Popen(
                [*command, *settings.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env=with_this_package(environment or os.environ),
                start_new_session=True,
            )
            ended = watch(process, start, settings.limits, stop)
            if ended == "stopped":
                return None
            output.seek(0)
            errors = output.read()
            spoke = process.returncode == 0 or "fusewright: " in errors  # else Python itself ended with that status
            outcome = ended or (OUTCOMES.get(process.returncode, "crashed") if spoke else "crashed")
            why = _reason(ended, process.returncode, errors, settings)
        seconds, found = round(now() - start, 2), _report(report)
        return Result(name or path.name, key, outcome, why, seconds, found)


def _reason(ended: str, status: int, errors: str, settings: Settings) -> str:
    if ended:
        return settings.limits.why(ended)
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    sentence = next((line for line in reversed(lines) if line.startswith("fusewright: ")), lines[-1] if lines else "")
    sentence = sentence.removeprefix("fusewright: ")[:600]
    if status == 0:
        return ""
    if status < 0:
        return f"ended by {signal_name(status)}" + (f": {sentence}" if sentence else "")
    return sentence or f"exit status {status}"


def _report(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# ---- what is shown


@contextlib.contextmanager
def _progress(console: Console, total: int, before: int) -> Iterator[Callable[[Result], None]]:
    """A bar on a terminal, a line for each model elsewhere."""
    if live(console):
        last = TextColumn("{task.description}", markup=False)
        with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), last, console=console) as bar:
            task = bar.add_task("", total=total, completed=before)

            def advance(result: Result) -> None:
                bar.update(task, advance=1, description=f"{result.model}: {result.outcome}")
                if not result.verified:
                    say(console, f"{result.model}: {result.outcome}: {result.why}", "red")

            yield advance
        return
    done = before

    def line(result: Result) -> None:
        nonlocal done
        done += 1
        words = f"{result.model}  {result.outcome}  {result.why}"
        say(console, f"{done:4}/{total}  {result.seconds:6.1f} s  {words}".rstrip())

    yield line


def table(results: Sequence[Result]) -> list[str]:
    """The whole suite as text: a line for each model, the reasons of those that failed, and means."""
    timed = any(_ratio(r, "eager_ms") for r in results)
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
    kernels = sum(len(_items(r, "kernels")) for r in verified)
    calls = sum(len(_items(r, "library_calls")) for r in verified)
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
            ratios = [ratio for r in members if (ratio := _ratio(r, f"{other}_ms"))]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                means.append(f"{mean:.2f}× {other} (geometric mean of {len(ratios)}, lowest {min(ratios):.2f})")
        if means:
            lines.append(f"{family or 'all'}: {', '.join(means)}")
    return lines


def _facts(r: Result) -> list[str]:
    counts = [str(len(_items(r, key))) if r.report else "" for key in ("kernels", "library_calls", "rules")]
    return [r.model, r.outcome, *counts, f"{r.seconds:.1f}"]


def _items(r: Result, key: str) -> Sequence[Any]:
    return (r.report or {}).get(key) or []


def _time(r: Result, key: str) -> float | None:
    timing = (r.report or {}).get("timing") or {}
    value = timing.get(key) if isinstance(timing, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def _ratio(r: Result, key: str) -> float | None:
    other, new = _time(r, key), _time(r, "new_ms")
    return other / new if other and new else None


def _times(r: Result) -> list[str]:
    times = [_time(r, key) for key in ("eager_ms", "compile_ms", "new_ms")]
    ratios = [_ratio(r, key) for key in ("eager_ms", "compile_ms")]
    return [f"{t:.3f}" if t else "" for t in times] + [f"{x:.2f}" if x else "" for x in ratios]
