"""What the command shows: stages as they run, and what came out of them."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ..report.accuracy import errors_record
from ..steps import Step
from ..words import counted, errors_shown, training_words

if TYPE_CHECKING:
    from ..verify.verifier import Verdict
    from .all_variants import Tried


MARKS = {"held": ("ok  ", ""), "skipped": ("skip", "dim"), "failed": ("FAIL", "red")}


class Screen(Console):
    """A console without guesses about numbers and paths; when its reader goes away (`| head`) the work goes on."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(highlight=False, quiet=quiet, file=sys.stdout)  # this very stream: what models print may go elsewhere

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Stages(Protocol):
    """Called when a stage starts, and again with another detail while it goes on."""

    def __call__(self, name: str, detail: str = "") -> None: ...


@contextmanager
def stages(console: Console, ahead: Sequence[str] = ()) -> Iterator[Stages]:
    """Show stages live on a terminal, those that are `ahead` too; as plain lines elsewhere."""
    if live(console):
        with _live(console, ahead) as show:
            yield show
    else:
        yield _lines(console)


def live(console: Console) -> bool:
    """It can be written over."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


class _Seconds(ProgressColumn):
    """How long a stage has run, or took."""

    def render(self, task: Task) -> Text:
        if not task.started:
            return Text(" " * 8)
        seconds = task.finished_time if task.finished else task.elapsed
        return Text(f"{seconds or 0:6.1f} s")


class _Spinner(SpinnerColumn):
    """Turns where something runs; what is ahead has none."""

    def render(self, task: Task) -> RenderableType:
        return super().render(task) if task.started else Text("·", style="dim")


class _Left(ProgressColumn):
    """How much of a stage is done, where it has steps that can be counted."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width, self.bar = width, BarColumn(width)

    def render(self, task: Task) -> RenderableType:
        counted = task.started and task.total is not None and task.total > 1
        return self.bar.render(task) if counted else Text(" " * self.width)


@contextmanager
def _live(console: Console, ahead: Sequence[str]) -> Iterator[Stages]:
    """One line for each stage with a spinner, its elapsed time and how much of it is left; those that are ahead below it."""
    columns = (
        _Spinner(finished_text=Text("✓", style="green")),
        TextColumn("{task.description:<9}", markup=False),
        _Seconds(),
        _Left(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False, table_column=Column(no_wrap=True)),
    )
    running: list[tuple[str, TaskID]] = []
    with Progress(*columns, console=console) as progress:
        waiting = {name: progress.add_task(name, start=False, total=1, detail="") for name in ahead}

        def finish() -> None:
            if running:
                task = next(task for task in progress.tasks if task.id == running[-1][1])
                progress.update(task.id, completed=task.total)

        def show(name: str, detail: str = "") -> None:
            if not running or running[-1][0] != name:
                finish()
                if name in waiting:
                    task_id = waiting.pop(name)
                    progress.start_task(task_id)
                else:
                    task_id = progress.add_task(name, total=1, detail=detail)
                running.append((name, task_id))
            task = next(task for task in progress.tasks if task.id == running[-1][1])
            left = detail.left if isinstance(detail, Step) else None
            progress.update(task.id, detail=detail)
            if left is not None:  # this step runs, and so many follow it
                done = task.completed + (task.total != 1)
                progress.update(task.id, completed=done, total=done + 1 + left)

        yield show
        finish()  # not reached when a stage raised: that one keeps no tick
        for task_id in waiting.values():
            progress.update(task_id, visible=False)


def _lines(console: Console) -> Stages:
    """One line for each stage when it starts, with the seconds since the first one."""
    start = time.monotonic()

    def show(name: str, detail: str = "") -> None:
        left = f"  ({detail.left} left)" if isinstance(detail, Step) and detail.left else ""
        say(console, f"{time.monotonic() - start:7.1f} s  {name:<9}{detail}{left}".rstrip())

    return show


def say(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: no markup, no highlighting, no wrapping of long lines."""
    console.print(Text(text, style=style), soft_wrap=True)


def show_report(console: Console, report: Mapping[str, Any]) -> None:
    """The kernels and what each replaces, what stayed with PyTorch, the laws applied, the error and the timing."""
    kernels = report.get("kernels") or []
    nothing = "" if kernels else ": nothing in this model could be fused"
    say(console, counted(len(kernels), "kernel") + nothing, "bold")
    width = max((len(str(kernel["name"])) for kernel in kernels), default=0)
    for kernel in kernels:
        amounts = (amount(kernel.get("bytes"), "B"), amount(kernel.get("flops"), "FLOP"))
        cost = ", ".join(filter(None, amounts)) or "cost unknown"
        say(console, f"  {kernel['name']:<{width}}  {words(kernel.get('replaces'))}  ({cost})")
    say(console, f"library calls  {words(with_counts(report.get('library_calls') or ())) or 'none'}")
    for number, rule in enumerate(report.get("rules") or ["none"]):
        say(console, f"{'' if number else 'laws applied':<14} {words(rule)}")
    if report.get("max_error") is not None and report.get("tolerance") is not None:
        say(console, f"largest error  {report['max_error']:.3g} (allowed there: {report['tolerance']:.3g})")
    if report.get("training"):
        say(console, f"in training    {training_words(report['training'])}")
    for line in errors_shown(report.get("errors") or {}):
        say(console, f"precision      {line}")
    timing = dict(report.get("timing") or {})
    peaks = timing.pop("peak_bytes", {})
    say(console, f"timing         {words(timing) if timing else 'none: not timed'}")
    if peaks:
        say(console, f"peak memory    {peak_words(peaks)}")
    for note in report.get("notes") or []:
        say(console, f"note           {note}")


def show_variants(console: Console, variants: Sequence[Tried]) -> None:
    """A line for each variant that was verified, the wrong ones in red."""
    if variants:
        wrong = sum(one.wrong for one in variants)
        say(console, f"{counted(len(variants), 'variant')}, {wrong} wrong", "bold red" if wrong else "bold")
    for one in variants:
        say(console, f"  {one}", "red" if one.wrong else "")


def show_degraded(console: Console, sentences: Sequence[str]) -> None:
    """What is right, but not what was planned first: among the last lines, so that it is seen. Of a quiet console, on stderr."""
    console = Console(highlight=False, stderr=True) if console.quiet else console
    for sentence in sentences:
        say(console, f"warning: degraded: {sentence}", "bold yellow")


def show_verdict(console: Console, verdict: Verdict, verbose: bool) -> None:
    """How many checks held, were skipped and failed, and each one that failed (each one at all when `verbose`)."""
    count = Counter(check.status for check in verdict.checks)
    words = f"{counted(count['held'], 'check')} held, {count['skipped']} skipped, {count['failed']} failed"
    say(console, words, "bold" if verdict.passed else "bold red")
    for check in verdict.checks:
        if verbose or not check.passed:
            mark, style = MARKS[check.status]
            say(console, f"  {mark}  {check.name}  {check.detail}".rstrip(), style)
    if verbose and verdict.peak:
        took = f"{verdict.seconds:.1f} s, {verdict.peak / 1e9:.3g} GB of GPU memory at most"
        say(console, f"  verified in {took}; a training step of the model takes {verdict.own_peak / 1e9:.3g} GB")
    if verbose and verdict.shapes_note:
        say(console, f"  {verdict.shapes_note}")
    for line in errors_shown(errors_record(verdict)) if verbose else ():
        say(console, f"  {line}")


def with_counts(names: Sequence[str]) -> list[str]:
    """Each name once, with how often it is there.

    >>> with_counts(["aten.mm", "aten.add", "aten.mm"])
    ['aten.mm ×2', 'aten.add']
    """
    return [name if count == 1 else f"{name} ×{count}" for name, count in Counter(names).items()]


def words(value: Any) -> str:
    """A value of the report in one line: names joined by commas, numbers with three digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        if "name" in value:
            return words(value["name"])
        return ", ".join(f"{key} {words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(words(item) for item in value)
    return str(value)


def peak_words(peaks: Mapping[str, Any]) -> str:
    """Of eager and of the new file, beyond parameters and inputs."""
    named = {"forward": "forward", "step": "training step"}
    found = [f"{named[k]}: eager {amount(v['eager'], 'B') or '0 B'}, new {amount(v['new'], 'B') or '0 B'}" for k, v in peaks.items()]
    return "; ".join(found)


def amount(value: float | None, unit: str) -> str:
    """520093696 B reads as 520 MB."""
    if not value:
        return ""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
