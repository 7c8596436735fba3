"""A file whose kernels crash, or never end, is left out: it runs first in a process of its own. Kernels of the host, altered so that they
do what a faulty one would."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from line.test_tune import CHAIN, Prices
from line.test_tune import prices as prices  # the fixture
from torch import nn

from fusewright.driver import pipeline
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning import building
from fusewright.driver.tuning import probe as probing
from fusewright.driver.tuning.choices import LIBRARY_CHANNELS_LAST, PREDICTED, Choices
from fusewright.driver.tuning.probe import Fault, Probe
from fusewright.driver.tuning.tune import tune
from fusewright.emit import Emitted
from fusewright.errors import Ended, Raised
from fusewright.frontend.given import given
from fusewright.frontend.problem import load_problem
from fusewright.ir.plan import Plan
from fusewright.options import Options
from fusewright.process import with_this_package
from fusewright.verify.candidate import Candidate, gpu_works, load_candidate
from fusewright.verify.verifier import verify

SEGFAULT = "*(volatile int*)stream = 0;"  # in the launcher: the host's runtime catches a kernel's
HANG = "for (volatile int i = 0;; i = i + 1) {}"
EXIT = "_exit(3);"
RAISE = 'return "CUDA error: tired";'
SHORT = f'if (getppid() == {os.getpid()}) return "CUDA error: out of memory";'  # in the other process alone
BF16 = "our convolutions by bf16 parts"


@pytest.fixture
def front(tmp_path: Path) -> Front:
    (tmp_path / "model.py").write_text(CHAIN)
    return read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LEAST", 1.0)


@pytest.fixture
def probe(front: Front) -> Iterator[Probe]:
    with Probe(front.problem, "host") as found:
        yield found


def doing(emitted: Emitted, statement: str, launcher: str = r"\w+") -> Emitted:
    """The file with a statement at the start of launchers that are called so."""
    text, count = re.subn(rf'(extern "C" const char\* {launcher}\([^)]*\) {{)', rf"\1 {statement}", emitted.text)
    assert count
    return replace(emitted, text=text.replace("#include <string.h>", "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>"))


def is_ours(choices: Choices) -> bool:
    return bool(choices.own) and not choices.bf16_parts


def is_channels_last(choices: Choices) -> bool:
    return choices.channels_last


def altered(front: Front, *faults: tuple[Callable[[Choices], bool], str]) -> Callable[[Choices], tuple[Plan, Emitted]]:
    """What the line hands to tuning, where some choices make files that are at fault."""

    def finish(choices: Choices) -> tuple[Plan, Emitted]:
        made, emitted = front.finish(choices, gradients=False)
        statement = next((statement for condition, statement in faults if condition(choices)), "")
        return made, doing(emitted, statement) if statement and not choices.plain else emitted

    return finish


def candidate_of(front: Front, statement: str = "", launcher: str = r"\w+", gradients: bool = False) -> Candidate:
    _, emitted = front.finish(PREDICTED, gradients)
    return load_candidate((doing(emitted, statement, launcher) if statement else emitted).text, "host", name="new.py")


def workers() -> list[int]:
    """Processes that this one started, and that are still there."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if "probe_worker" in Path(f"/proc/{pid}/cmdline").read_text()]


# ---- tuning ----


def test_variants_that_crash_or_hang_are_left_out(front: Front, prices: Prices, probe: Probe) -> None:
    """The others are timed, and the best of them is chosen."""
    finish = altered(front, (is_ours, SEGFAULT), (lambda choices: choices.bf16_parts, HANG), (is_channels_last, RAISE))
    prices.kernels = {"conv_": 0.05}  # ours would win
    found = tune(front.problem, finish, prices, "host", seconds=0.0, probe=probe)
    assert [name for name, _ in found.rows] == ["eager", "predicted"]
    assert found.choices == PREDICTED and not found.whole
    why = {"our convolutions": "ended by SIGSEGV", BF16: "ran longer than", LIBRARY_CHANNELS_LAST: "CUDA error: tired"}
    for name, words in why.items():
        assert any(note.startswith(f"{name}: ") and words in note for note in found.notes), found.notes
        assert any(repr(name) in sentence and words in sentence for sentence in found.degraded), found.degraded
    assert not probe.notes


def test_the_best_of_those_that_run_is_chosen(front: Front, prices: Prices, probe: Probe) -> None:
    """Where the predicted file crashes."""
    prices.kernels = {"conv_": 0.05}
    found = tune(front.problem, altered(front, (lambda choices: choices == PREDICTED, EXIT)), prices, "host", seconds=0.0, probe=probe)
    assert "predicted" not in dict(found.rows) and {"our convolutions", LIBRARY_CHANNELS_LAST} <= set(dict(found.rows))
    assert found.choices.own and not found.choices.channels_last
    (sentence,) = found.degraded
    assert sentence == "the variant 'predicted' was left out of tuning: a first run in a process apart ended its process with status 3"


def test_where_nothing_runs_the_originals_forward_is_kept(front: Front, prices: Prices, probe: Probe) -> None:
    made, emitted = front.finish(PREDICTED, gradients=False)
    broken = made, doing(emitted, EXIT)
    found = tune(front.problem, lambda choices: broken, prices, "host", seconds=0.0, probe=probe)
    assert found.choices.plain and "no variant runs: the original's forward is kept" in found.notes


def test_too_little_memory_there_is_no_fault(front: Front, prices: Prices, probe: Probe) -> None:
    found = tune(front.problem, altered(front, (is_ours, SHORT)), prices, "host", seconds=0.0, probe=probe)
    assert "our convolutions" in dict(found.rows) and found.whole and not found.degraded
    assert probe.notes == ["not every file was run in a process of its own first: memory ran out there"]


def test_gradients_that_crash_are_not_taken(front: Front, prices: Prices, probe: Probe) -> None:
    def trained(choices: Choices) -> tuple[Plan, Emitted]:
        made, emitted = front.finish(choices)
        return made, doing(emitted, SEGFAULT, r"\w+_grad\w*")

    found = tune(front.problem, altered(front), prices, "host", seconds=0.0, trained=trained, probe=probe)
    assert found.steps == () and not found.whole and not found.choices.plain and found.choices.training.original
    what = "first training steps in a process apart ended by SIGSEGV"
    kept = "the original's forward is kept for training"
    assert found.degraded == (f"gradients of weights are the library's: {what}", f"{kept}: {what}")


def test_gradients_of_weights_that_crash_are_the_librarys(front: Front, prices: Prices, probe: Probe) -> None:
    """The others stay kernels'."""
    def trained(choices: Choices) -> tuple[Plan, Emitted]:
        made, emitted = front.finish(choices)
        return made, doing(emitted, SEGFAULT, r"\w+_weight_grad") if emitted.weights else emitted

    found = tune(front.problem, altered(front), prices, "host", seconds=0.0, trained=trained, probe=probe)
    assert found.steps and not found.whole and not found.choices.training.original
    assert found.choices.training.own_weights == frozenset()
    assert found.degraded == ("gradients of weights are the library's: first training steps in a process apart ended by SIGSEGV",)


@pytest.mark.parametrize("worker", ["fusewright.nothing", ""])
def test_without_such_a_process_files_run_here(worker: str, front: Front, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **named: Any) -> Any:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(probing, "WORKER", worker) if worker else monkeypatch.setattr("fusewright.verify.peer.subprocess.Popen", refuse)
    with Probe(front.problem, "host") as probe:
        found = tune(front.problem, altered(front), prices, "host", seconds=0.0, probe=probe)
    assert len(found.rows) > 2 and found.whole and not found.degraded
    why = "ended its process with status 1" if worker else "Resource temporarily unavailable"
    assert probe.notes == [f"kernels were not run in a process of their own first: {why}"]


def test_files_run_here_where_the_original_fails_there(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU that does not work: whether it does here is found here."""
    source = front.problem.source.replace("return torch.softmax", "raise RuntimeError('broken')\n        return torch.softmax")
    broken = replace(front.problem, source=source)
    with Probe(broken, "host") as probe:
        assert probe.first_run(candidate_of(front)) is None
    assert probe.notes == ["kernels were not run in a process of their own first: RuntimeError: broken"]


# ---- one file ----


def test_a_file_runs_there_once(front: Front) -> None:
    """Whatever became of it is known; the process is replaced where it ended, and gone at the end."""
    good, bad = candidate_of(front, gradients=True), candidate_of(front, SEGFAULT)
    with Probe(front.problem, "host") as probe:
        assert probe.first_run(good, training=True) is None
        before = workers()
        assert probe.first_run(bad) == Fault("ended by SIGSEGV") == probe.first_run(bad)
        assert probe.first_run(good, training=True) is None
        assert until(lambda: len(workers()) == 1, 10) and workers() != before  # what it runs is known a moment later
    assert workers() == []


def test_what_raises_raises_here(front: Front, probe: Probe) -> None:
    """Nothing is known of it but that it did no harm."""
    assert probe.first_run(candidate_of(front, RAISE)) is None
    assert len(workers()) == 1


class Answers:
    """Of a process on a GPU: an error, and whether the GPU works afterwards."""

    def __init__(self, error: Exception | None, works: bool | None):
        self.error, self.works, self.how = error, works, ""

    def answer(self, within: float) -> Any:
        if self.error is not None:
            raise self.error

    def ask(self, what: str, within: float) -> Any:
        if self.works is None:
            raise Ended("gone")
        return {"works": self.works}

    def kill(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "works", "fault"),
    [
        (Raised("AcceleratorError: CUDA error: an illegal memory access"), False, True),
        (Raised("AcceleratorError: CUDA error: an illegal memory access"), None, True),
        (Raised("RuntimeError: too much shared memory"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory"), False, False),
        (None, True, False),
        (None, False, True),
    ],
)
def test_an_error_that_stays_is_a_fault(error: Exception | None, works: bool | None, fault: bool, front: Front, probe: Probe) -> None:
    first = probe._peer
    assert first is not None
    probe._peer = Answers(error, works)  # type: ignore[assignment]
    found = probe._answer(training=False, sizes=())
    assert (found is not None) == fault and (probe._peer is not None)
    assert isinstance(probe._peer, Answers) == (works is True)
    assert not fault or str(found) == "a first run in a process apart stopped the GPU" + (f": {error}" if error else "")
    first.kill()


def test_a_module_in_memory_is_handed_over() -> None:
    """Where another process can import its class."""
    problem = given(nn.Sequential(nn.Softmax(-1), nn.GELU()), [torch.randn(4, 8)])
    front = read_problem(problem, Options(target="host"))
    _, emitted = front.finish(PREDICTED, gradients=False)
    with Probe(problem, "host") as probe:
        for text, fault in ((emitted.text, None), (doing(emitted, EXIT).text, Fault("ended its process with status 3"))):
            assert probe.first_run(load_candidate(text, "host", name="new.py", behind=problem.behind)) == fault
        assert not probe.notes


def test_a_module_of_a_script_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    with Probe(given(Model(), [torch.randn(4)]), "host") as probe:
        assert "Model" in probe.notes[0], probe.notes  # pickle's words: a class inside a function
    monkeypatch.setattr(Model, "__module__", "__main__")
    with Probe(given(Model(), [torch.randn(4)]), "host") as probe:
        assert "classes are those of a script" in probe.notes[0]
    monkeypatch.setattr(probing, "MOST_BYTES", 8)
    with Probe(given(nn.ReLU(), [torch.randn(4)]), "host") as probe:
        assert "would be written and read" in probe.notes[0]


SCRIPT = """
import signal
from pathlib import Path
from fusewright.driver.tuning.probe import Probe
from fusewright.frontend.problem import load_problem
from fusewright.verify.candidate import load_candidate

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with Probe(load_problem(Path("model.py")), "host") as probe:
    print(probe._peer.process.pid, flush=True)
    probe.first_run(load_candidate(Path("new.py"), "host"))
"""


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_no_process_is_left(ended_by: signal.Signals, front: Front, tmp_path: Path) -> None:
    """Of a tool that is ended while a kernel hangs."""
    hung = doing(front.finish(PREDICTED, gradients=False)[1], f'fclose(fopen("{tmp_path / "hangs"}", "w")); {HANG}')
    (tmp_path / "new.py").write_text(hung.text)
    tool = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=with_this_package(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert tool.stdout is not None
    with contextlib.closing(tool.stdout):
        worker = int(tool.stdout.readline())
        assert until(lambda: (tmp_path / "hangs").exists(), 60)
        tool.send_signal(ended_by)
        assert tool.wait(10) != 0
    assert until(lambda: not Path(f"/proc/{worker}").exists(), 10)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("statement", "words"),
    [("*(volatile int*)64 = 1;", "stopped the GPU"), ("for (volatile int i = 0; i >= 0;) {}", "ran longer than")],
    ids=["an illegal address", "never ends"],
)
def test_on_a_gpu_a_kernel_costs_its_file_alone(statement: str, words: str, tmp_path: Path) -> None:
    """The GPU works on, here and there."""
    (tmp_path / "model.py").write_text(CHAIN)
    problem = load_problem(tmp_path / "model.py")
    _, emitted = read_problem(problem, Options(target="cuda")).finish(PREDICTED)
    text, count = re.subn(r"(__global__ void[^{]*\{)", rf"\1 {statement}", emitted.text)
    assert count
    bad, good = (load_candidate(each, "cuda", name="new.py") for each in (text, emitted.text))
    with Probe(problem, "cuda") as probe:
        for candidate in (bad, good):
            building.build(building.units_of(candidate))
        fault = probe.first_run(bad, training=True)
        assert fault is not None and words in str(fault)
        assert probe.first_run(good, training=True) is None and not probe.notes
    assert gpu_works()
    assert verify(problem, good).passed


# ---- the whole line ----


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, alter: Callable[[Choices, bool, Emitted], Emitted]) -> None:
    """What `optimize` does on a GPU, with kernels of the host; files are altered before they are loaded."""
    finish = Front.finish

    def finished(self: Front, choices: Choices, gradients: bool = True) -> tuple[Plan, Emitted]:
        made, emitted = finish(self, choices, gradients)
        return made, alter(choices, gradients, emitted)

    def verified(*args: Any, **named: Any) -> Any:
        return verify(*args, **{**named, "options": Options(target="host")})

    for name, value in {
        "fusewright.driver.pipeline.choose_target": lambda options: "cuda",
        "fusewright.driver.pipeline.probing": lambda problem, options, target: Probe(problem, "host"),
        "fusewright.driver.pipeline.verify_candidate": verified,
        "fusewright.driver.pipeline.load_candidate": lambda text, target, *args, **named: load_candidate(text, "host", name="new.py"),
        "fusewright.driver.front.Front.finish": finished,
    }.items():
        monkeypatch.setattr(name, value)


def test_a_predicted_file_that_crashes_is_another_one(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tuning, too."""
    as_on_a_gpu(monkeypatch, lambda choices, gradients, emitted: emitted if choices.plain else doing(emitted, SEGFAULT))
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="off"))
    assert run.verdict.passed and run.report["plain"]
    why = "the kernels did not run (a first run in a process apart ended by SIGSEGV); the original's forward is kept"
    assert run.degraded == [why] and why in run.report["notes"]
    assert workers() == []


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_kernels_that_crash_at_other_sizes(where: str, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """At those of verification, before it runs them here."""
    crash = f"if (x_0 != 2) {SEGFAULT}"  # the batch

    def alter(choices: Choices, gradients: bool, emitted: Emitted) -> Emitted:
        altered = gradients if where == "backward" else not choices.plain
        which = r"(?!\w*weight_grad)\w+_grad\w*" if where == "backward" else r"softmax_fwd"  # weights' are told no x_0
        return doing(emitted, crash, which) if altered else emitted

    as_on_a_gpu(monkeypatch, alter)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="off"))
    assert run.verdict.passed and run.report["plain"] == (where == "forward")
    (sentence,) = run.degraded
    assert "SIGSEGV" in sentence and sentence.startswith("backward is left" if where == "backward" else "the kernels did not run")


def test_the_librarys_convolutions_come_next(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Choices(own=frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target)))
    monkeypatch.setattr(pipeline, "PREDICTED", ours)
    as_on_a_gpu(monkeypatch, lambda choices, gradients, emitted: doing(emitted, HANG) if choices.own else emitted)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="off"))
    assert run.verdict.passed and not run.report["plain"] and run.choices.own == frozenset()
    (sentence,) = run.degraded
    assert "ran longer than" in sentence and sentence.endswith("convolutions and products are the library's")


def test_backward_that_crashes_is_left_to_pytorch(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def alter(choices: Choices, gradients: bool, emitted: Emitted) -> Emitted:
        return doing(emitted, SEGFAULT, r"\w+_grad\w*") if gradients else emitted

    as_on_a_gpu(monkeypatch, alter)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="off"))
    assert run.verdict.passed and not run.report["plain"] and "_CUDA_GRADIENTS" not in run.text
    why = "backward is left to PyTorch's operators: first training steps in a process apart ended by SIGSEGV"
    assert run.degraded == [why]


@pytest.mark.slow
def test_all_variants_go_on_after_one_that_crashes(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch, lambda choices, gradients, emitted: doing(emitted, SEGFAULT) if is_ours(choices) else emitted)
    every, _ = pipeline.variants(front)
    wanted = {"our convolutions", LIBRARY_CHANNELS_LAST}
    few = [variant for variant in every if variant.name in wanted]
    monkeypatch.setattr("fusewright.driver.all_variants.load_candidate", pipeline.load_candidate)
    with Probe(front.problem, "host") as probe:
        judge = pipeline.judge_of(front, "host", probe=probe)
        found = {one.name: one for one in pipeline.try_all(front, few, "host", judge, {}, lambda detail: None)}
    assert found["our convolutions"].outcome == "does not run" and "SIGSEGV" in found["our convolutions"].detail
    assert found["our convolutions"].wrong and not found[LIBRARY_CHANNELS_LAST].wrong


def test_the_whole_line_takes_the_best_that_runs(front: Front, prices: Prices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tries again the next time."""
    as_on_a_gpu(monkeypatch, lambda choices, gradients, emitted: doing(emitted, SEGFAULT) if is_ours(choices) else emitted)
    for name, value in {
        "fusewright.driver.pipeline.gpu_works": lambda: True,
        "fusewright.driver.pipeline.tune": functools.partial(tune, target="host", seconds=0.0),
        "fusewright.driver.pipeline.Gpu": lambda device: prices,
        "torch.cuda.get_device_name": lambda: "some GPU",
        "torch.cuda.current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(name, value)
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    prices.kernels = {"conv_": 50.0}
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, seeds=1, forward_only=True))
    assert run.verdict.passed and not run.report["plain"] and not run.choices.own
    why = "the variant 'our convolutions' was left out of tuning: a first run in a process apart ended by SIGSEGV"
    assert run.degraded == [why] and why in run.report["notes"]
    assert not (tmp_path / "cache" / "choices").exists()


def test_such_a_process_starts_no_other(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original's file may optimise something when it is imported."""
    monkeypatch.setattr(probing, "_inside", True)
    with Probe(front.problem, "host") as probe:
        assert probe.first_run(candidate_of(front)) is None and probe._peer is None


def test_what_was_not_run_first_is_said(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    as_on_a_gpu(monkeypatch, lambda choices, gradients, emitted: emitted)
    monkeypatch.setattr(probing, "WORKER", "fusewright.nothing")
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="off", seeds=1))
    assert run.verdict.passed and not run.degraded
    assert "kernels were not run in a process of their own first: ended its process with status 1" in run.report["notes"]


def test_on_the_host_nothing_is_started(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    with pipeline.probing(front.problem, Options(target="host"), "host") as probe:
        assert probe is None
    with pipeline.probing(front.problem, Options(target="cuda", tune="off", verify=False), "cuda") as probe:
        assert probe is None
