"""Every model file of a folder through `optimize`, each in a process of its own, and a table of what came of it.

A model that crashes, hangs or takes too much memory costs its own line, nothing else. Results are written to the JSON
file one by one, so that an interrupted suite goes on where it stopped. Where there are several GPUs, each has a worker
of its own; what runs a model may also be a cluster (`driver/on_ray.py`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import __version__
from ..errors import Refused
from ..process import POLL, Limits, now, signal_name, terminable, watch, with_this_package
from ..report.results import Result, read_results, summary, table, write_results
from ..words import counted
from .console import live, say

__all__ = ["Result", "Settings", "find_models", "read_results", "run_suite", "summary", "table"]

# What `optimize` says by its exit status; a negative one is the signal that ended it.
OUTCOMES = {0: "verified", 1: "not equal", 2: "refused", 3: "fault"}
UNREADABLE = "not Python"  # the outcome of a file that cannot be parsed
LIST_SECONDS = 20.0  # for the driver to list its GPUs; the first call after a start takes long
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
    arithmetic: str = "auto"  # what float32 convolutions may multiply

    @property
    def limits(self) -> Limits:
        return Limits(self.time_limit, self.memory_limit)

    @property
    def on_gpus(self) -> bool:
        """Models may run on GPUs, and each on one of its own."""
        return self.target != "host" and not self.sanitize

    def arguments(self) -> list[str]:
        found = ["--target", self.target, *(["--bench", "--modes", "eager,compile"] if self.bench else ["--no-bench"])]
        found += ["--precision", self.precision, *([] if self.tune else ["--tune", "off"])]
        found += ["--arch", self.arch] if self.arch else []
        found += ["--arithmetic", self.arithmetic] if self.arithmetic != "auto" else []
        return [*found, "--sanitize", self.sanitize] if self.sanitize else found


@dataclass(frozen=True)
class Work:
    """What is to be run, and how."""

    models: Mapping[str, Path]  # by their path below the folder
    keys: Mapping[str, str]
    settings: Settings

    def failed(self, name: str, outcome: str, why: str) -> Result:
        """Of a model that nobody could run."""
        return Result(name, self.keys[name], outcome, why, 0.0)


# Runs these models, so many at a time on each worker, and hands out what came of each as it comes. Whatever still runs when the
# context is left is ended.
Runner = Callable[[Work, Sequence[str], int], "contextlib.AbstractContextManager[Iterator[Result]]"]


def run_suite(
    folder: Path,
    json_out: Path | None = None,
    jobs: int = 1,
    settings: Settings | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
    runner: Runner | None = None,
) -> list[Result]:
    """Run every model below `folder`; the results in the order of their names.

    `jobs`: so many at a time, on each GPU where there are some. `resume` leaves out what `json_out` holds as verified. `runner`: what runs
    models; without one, processes of this machine, one for each visible GPU.
    """
    settings = settings or Settings()
    models, unreadable = find_models(folder), find_unreadable(folder)
    if not models and not unreadable:
        raise Refused(f"{folder}: no model files here (a .py file that defines Model and get_inputs)")
    work = Work(models, {name: key_of(path, settings) for name, path in models.items()}, settings)
    found = _known(json_out, work.keys) if resume and json_out else {}
    pending = [name for name in models if name not in found]
    console = console or Console(quiet=True)
    if found:
        say(console, f"{counted(len(found), 'model')} verified before, {len(pending)} to run")
    if runner is None:
        devices = visible_gpus() if settings.on_gpus else []
        several = len(devices) > 1
        if several:
            say(console, f"{counted(len(devices), 'GPU')}, a worker on each")
        runner = functools.partial(local_workers, devices=devices if several else ())
    broken = {name: Result(name, "", UNREADABLE, why, 0.0) for name, why in unreadable.items()}
    with _progress(console, len(models) + len(broken), len(found)) as show:
        for result in broken.values():
            show(result)
        at_a_time = jobs
        while pending:
            with runner(work, pending, at_a_time) as results:
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
    names = {name for node in tree.body for name in bound_by(node)}
    return {"Model", "get_inputs"} <= names and "ModelNew" not in names


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top of a file gives something to: a class, a function, a lambda, what another file defines."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)


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


def _known(path: Path, keys: Mapping[str, str]) -> dict[str, Result]:
    return {r.model: r for r in read_results(path) if r.verified and keys.get(r.model) == r.key}


# ---- GPUs


def visible_gpus() -> list[str]:
    """Names by which CUDA_VISIBLE_DEVICES tells GPUs apart: those that it names already, or else all that the driver lists.

    Parts of a GPU (MIG) stand for themselves. No GPU, or nothing that would list them: none.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",")]
        return names[: names.index("-1")] if "-1" in names else [name for name in names if name]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LIST_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return gpus_listed(listed)


def gpus_listed(text: str) -> list[str]:
    """Of what `nvidia-smi -L` prints: each GPU, or its parts where it has some.

    >>> gpus_listed("GPU 0: NVIDIA H200 (UUID: GPU-1)\\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\\nGPU 1: NVIDIA H200 (UUID: GPU-3)\\n")
    ['MIG-2', 'GPU-3']
    """
    found: list[list[str]] = []
    for line in text.splitlines():
        name = line.partition("(UUID: ")[2].rstrip(") ")
        if not name:
            continue
        if not line.startswith(" "):
            found.append([name])
        elif found:
            found[-1].append(name)
    return [name for gpu in found for name in (gpu[1:] or gpu)]


# ---- processes


@contextlib.contextmanager
def local_workers(work: Work, pending: Sequence[str], jobs: int, devices: Sequence[str] = ()) -> Iterator[Iterator[Result]]:
    """A `Runner`: `jobs` threads for each GPU, or in all where there is none, each with one process at a time."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result] = queue.SimpleQueue()
    stop = threading.Event()
    for name in pending:
        todo.put(name)

    def run(environment: Mapping[str, str]) -> None:
        while not stop.is_set():
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            try:
                path, key = work.models[name], work.keys[name]
                result = run_model(path, work.settings, name=name, key=key, environment=environment, stop=stop)
            except OSError as error:  # no room for its report, no process to be had: whoever waits for it must hear
                result = work.failed(name, "fault", f"{type(error).__name__}: {error}")
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

    slots = [device for _ in range(jobs) for device in devices or [""]][: max(1, len(pending))]
    threads = [threading.Thread(target=run, args=[_environment(len(slots), device)]) for device in slots]
    with terminable():
        for thread in threads:
            thread.start()
        try:
            yield results()
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _environment(workers: int, device: str) -> dict[str, str]:
    """Of one of so many workers: its share of the cores, and its GPU alone."""
    threads = str(max(1, (os.cpu_count() or 1) // max(1, workers)))
    gpu = {"CUDA_VISIBLE_DEVICES": device} if device else {}
    return {"OMP_NUM_THREADS": threads, **os.environ, **gpu}


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
            written = place_of(settings.output, name or path.name)
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


def place_of(folder: Path, name: str) -> Path:
    """Where the emitted file of a model is kept."""
    return folder / f"{name.removesuffix('.py')}_new.py"


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
