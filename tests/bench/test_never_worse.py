"""`benchmarks/never_worse.py`: its bounds, its rows and what it measures, as far as that needs no GPU."""

from __future__ import annotations

import fcntl
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fusewright.frontend.problem import load_problem
from fusewright.verify.candidate import load_candidate

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def script() -> ModuleType:
    return importlib.import_module("never_worse")


@pytest.fixture
def one() -> ModuleType:
    return importlib.import_module("never_worse_model")


def row_of(model: str, commit: str = "c1", **changed: Any) -> Row:
    """A row that keeps every bound, but for what is changed."""
    error = {"tensor": "output 0", "eager": 1e-6, "new": 1e-6, "allowed": 1e-4, "own": None}
    row: Row = {
        "commit": commit, "model": model, "sizes": "full", "target": "cuda", "checks": "tuned", "outcome": "measured", "seconds": 5.0,
        "texts": f"of {model}", "text": "t", "plain": False, "notes": [], "optimize": {"seconds": 4.0, "mb": 900.0, "verified": False},
        "ms": {"eager": 2.0, "new": 1.0}, "step_ms": {"eager": 3.0, "new": 2.0},
        "peaks": {"inference": {"eager": 100.0, "new": 100.0}, "step": {"eager": 200.0, "new": 200.0}},
        "errors": {"batch": "", "random": False, "outputs": error, "gradients": {**error, "tensor": "gradient of weight"}},
    }  # fmt: skip
    return {**row, **changed}


def written(path: Path, rows: Sequence[Row], more: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + more)
    return path


def called(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["never_worse.py", *map(str, arguments)])
    return int(script.main())


# ---- bounds ----

INSIDE: list[Row] = [
    {"ms": {"eager": 0.98, "new": 1.0}},
    {"step_ms": {"eager": 0.98, "new": 1.0}},
    {"peaks": {"inference": {"eager": 100.0, "new": 112.9}}},
    {"peaks": {"inference": {"eager": 1.0, "new": 1.0}, "step": {"eager": 200.0, "new": 217.9}}},
    {"errors": {"outputs": {"tensor": "o", "eager": 2e-4, "new": 3.9e-4, "allowed": 4e-4, "own": None}}},
    {"errors": {"gradients": {"tensor": "g", "eager": math.inf, "new": math.inf, "allowed": math.inf, "own": None}}},
    {"errors": {"skipped": "random draws differ"}},
    {"optimize": {"seconds": 4.0, "mb": 1399.0, "verified": True}},
    {"optimize": {"seconds": 4.0, "mb": 80000.0, "verified": False}},  # nobody promises how much tuning takes
]
OUTSIDE: list[tuple[Row, str]] = [
    ({"ms": {"eager": 0.96, "new": 1.0}}, "forward >= 0.97: 1 of 1 outside"),
    ({"step_ms": {"eager": 0.96, "new": 1.0}}, "step >= 0.97: 1 of 1 outside"),
    ({"peaks": {"inference": {"eager": 100.0, "new": 113.1}}}, "peak of inference <= eager + 5 % + 8 MB: 1 of 1 outside"),
    ({"peaks": {"step": {"eager": 200.0, "new": 218.1}}}, "peak of a step <= eager + 5 % + 8 MB: 1 of 1 outside"),
    ({"errors": {"outputs": {"tensor": "o", "eager": 1e-6, "new": 1.1e-4, "allowed": 1e-4, "own": 1e-5}}}, "eager 1.0e-06, ours 1.1e-04"),
    ({"errors": {"gradients": {"tensor": "g", "eager": 0.2, "new": 27.0, "allowed": 0.4, "own": 0.3}}}, "of gradients <= the same: 1 of 1"),
    ({"optimize": {"seconds": 4.0, "mb": 1401.0, "verified": True}}, "memory of verification: 1 of 1 outside"),
    ({"outcome": "out of memory", "why": "times: no room"}, "out of memory: times: no room"),
    ({"outcome": "time limit", "why": "ran longer than 300 s"}, "1 time limit"),
]


@pytest.mark.parametrize("changed", INSIDE, ids=range(len(INSIDE)))
def test_what_keeps_the_bounds(script: ModuleType, changed: Row) -> None:
    rows = [row_of("zoo/a.py", **changed)]
    assert script.status(rows) == 0 and "OUTSIDE" not in "\n".join(script.table(rows))


@pytest.mark.parametrize(("changed", "words"), OUTSIDE, ids=range(len(OUTSIDE)))
def test_what_breaks_a_bound(script: ModuleType, changed: Row, words: str) -> None:
    rows = [row_of("zoo/a.py", **changed)]
    assert script.status(rows) == 1 and words in "\n".join(script.table(rows))


def test_the_table_shows_the_worst_five_the_means_and_the_originals(script: ModuleType) -> None:
    rows = [row_of(f"zoo/{i}.py", ms={"eager": 0.5 * 2**i, "new": 1.0}, plain=i == 0) for i in range(7)]
    rows.append(row_of("examples/x.py", ms={"eager": 4.0, "new": 1.0}, no_step="no result has a gradient", step_ms=None))
    text = "\n".join(script.table(rows))
    of_forward = text.partition("forward >= 0.97: 1 of 8 outside")[2].partition("step >= 0.97: 0 of 7 outside")[0]
    assert [line.split()[:2] for line in of_forward.splitlines()[1:]] == [
        ["OUTSIDE", "zoo/0.py"], ["inside", "zoo/1.py"], ["inside", "zoo/2.py"], ["inside", "zoo/3.py"], ["inside", "examples/x.py"]
    ]  # fmt: skip
    assert "geometric mean, all: forward 4.000 of 8, lowest 0.500; step 1.500 of 7" in text
    assert "geometric mean, examples: forward 4.000 of 1" in text
    assert "8 models: 8 measured; 1 originals written in place of kernels" in text and "no step: no result has a gradient" in text


def test_a_table_is_made_of_joined_files(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last row of a model counts, and a line that was cut off is none."""
    slow = row_of("zoo/a.py", ms={"eager": 0.5, "new": 1.0})
    cut_off = json.dumps(slow)[:60]
    good = written(tmp_path / "good.jsonl", [slow, row_of("zoo/b.py"), row_of("zoo/a.py", "c2")], cut_off)
    assert called(script, monkeypatch, "--table", good) == 0
    assert "2 models: 2 measured" in capsys.readouterr().out
    bad = written(tmp_path / "bad.jsonl", [row_of("zoo/a.py", "c2"), row_of("zoo/b.py"), slow])
    assert called(script, monkeypatch, "--table", bad) == 1
    assert called(script, monkeypatch, "--table", bad, ROOT / "examples") == 0, "of these models only"


# ---- many models ----


class Faked:
    """Stands in for the processes: what was asked for, and rows made here."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.changed: dict[str, Row] = {}  # of a model, in a run of all of it
        self.times: Row = {}  # of a file that is only timed
        self.alone: Row = {}  # of a run of all of it with nothing beside it

    def __call__(self, runner: Any, name: str, path: Path, *flags: str) -> Row:
        self.asked.append((name, flags))
        if "--text" in flags:
            Path(flags[flags.index("--ready") + 1]).touch()
            return row_of(name, runner.commit, **self.times)
        known = flags[flags.index("--known") + 1] if "--known" in flags else ""
        if known == f"of {name}":
            return {**row_of(name, runner.commit), "outcome": "known"}
        row = row_of(name, runner.commit, **(self.changed.get(name, {}) if flags else self.alone))
        row["checks"] = "verified" if runner.arguments.verify else "tuned"
        row["text"] = f"text-of-{path.stem}"
        (runner.keep / f"{row['text']}.py").touch()
        return row


@pytest.fixture
def faked(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Faked:
    fake = Faked()
    monkeypatch.setattr(script.Runner, "row_of", lambda self, *given: fake(self, *given))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/nonexistent")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    return fake


def test_it_goes_on_where_it_stopped(script: ModuleType, faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, examples = tmp_path / "rows.jsonl", ROOT / "examples"
    names = sorted(script.models_of([examples]))

    def asked(*arguments: object) -> list[str]:
        faked.asked.clear()
        assert called(script, monkeypatch, examples, "--json", rows, "--resume", *arguments) == 0
        return [name for name, _ in faked.asked]

    assert len(names) == 3 and all(name.startswith("examples/") for name in names)
    assert sorted(asked("--commit", "c1", "--part", "0/2") + asked("--commit", "c1", "--part", "1/2")) == names
    assert asked("--commit", "c1") == []
    assert sorted(asked("--commit", "c2")) == names, "another commit"
    assert all(flags[:2] == ("--known", f"of {name}") for name, flags in faked.asked), "its rows are taken over where texts are the same"
    assert asked("--commit", "c2") == [] and len(rows.read_text().splitlines()) == 6
    assert sorted(asked("--commit", "c2", "--verify")) == names and all(flags[1] == "" for _, flags in faked.asked)
    assert asked("--commit", "c2", "--verify") == asked("--commit", "c2") == []
    assert sorted(asked("--commit", "c3+")) == sorted(asked("--commit", "c3+")) == names, "not as committed: always again"


def test_what_failed_is_tried_again(script: ModuleType, faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = ROOT / "examples" / "conv3d_maxpool_logsumexp.py", tmp_path / "rows.jsonl"
    faked.changed["examples/conv3d_maxpool_logsumexp.py"] = {"outcome": "crashed", "why": "SIGSEGV"}
    arguments = (model, "--json", rows, "--resume", "--commit", "c1")
    assert called(script, monkeypatch, *arguments) == 1
    faked.changed.clear()
    assert called(script, monkeypatch, *arguments) == 0 and len(faked.asked) == 2


def test_nothing_is_started_when_it_is_late(
    script: ModuleType, faked: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(script, monkeypatch, ROOT / "examples", "--commit", "c1", "--until", -1) == 1
    assert not faked.asked and "not started, out of time: 3 models" in capsys.readouterr().out


def test_what_gains_little_is_timed_alone(script: ModuleType, faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = ROOT / "examples" / "conv3d_maxpool_logsumexp.py", tmp_path / "rows.jsonl"
    name = "examples/conv3d_maxpool_logsumexp.py"
    faked.changed[name] = {"step_ms": {"eager": 1.0, "new": 1.2}}
    faked.times = {"step_ms": {"eager": 1.0, "new": 0.99}}
    assert called(script, monkeypatch, model, "--json", rows, "--commit", "c1") == 0
    last = json.loads(rows.read_text().splitlines()[-1])
    assert len(faked.asked) == 2 and last["alone"] == "timed" and last["step_ms"]["new"] == 0.99
    assert last["before"]["step_ms"] == {"eager": 1.0, "new": 1.2} and last["peaks"] == row_of(name)["peaks"]


@pytest.mark.parametrize("short", [{"outcome": "out of memory", "why": "no room"}, {"notes": ["not tuned: no room"]}])
def test_what_ran_out_of_memory_is_measured_alone(
    script: ModuleType, faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: Row
) -> None:
    model, rows = ROOT / "examples" / "conv3d_maxpool_logsumexp.py", tmp_path / "rows.jsonl"
    faked.changed["examples/conv3d_maxpool_logsumexp.py"] = short
    assert called(script, monkeypatch, model, "--json", rows, "--commit", "c1") == 0 and len(faked.asked) == 2
    last = json.loads(rows.read_text().splitlines()[-1])
    assert last["alone"] == "tuned" and last["outcome"] == "measured" and not last["notes"]
    faked.alone = {"outcome": "out of memory"}
    assert called(script, monkeypatch, model, "--json", rows, "--commit", "c1") == ("outcome" in short)


@pytest.mark.parametrize(("alone", "expected"), [({"eager": 1.0, "new": 1.0}, 0), ({"eager": 1.0, "new": 1.1}, 1)])
def test_what_is_outside_even_so_is_tuned_alone(
    script: ModuleType, faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Row, expected: int
) -> None:
    model, rows = ROOT / "examples" / "conv3d_maxpool_logsumexp.py", tmp_path / "rows.jsonl"
    faked.changed["examples/conv3d_maxpool_logsumexp.py"] = faked.times = {"ms": {"eager": 1.0, "new": 1.3}}
    faked.alone = {"ms": alone}
    assert called(script, monkeypatch, model, "--json", rows, "--commit", "c1") == expected
    last = json.loads(rows.read_text().splitlines()[-1])
    assert len(faked.asked) == 3 and last["alone"] == "tuned" and last["ms"] == alone


# ---- one model ----

MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)
    def forward(self, x):
        return torch.tanh(self.linear(x)), x.argmax(1)
def get_inputs():
    return [torch.randn(6, 16)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def sides_of(one: ModuleType, tmp_path: Path, result: str) -> Any:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    new = MODEL.replace("class Model(", "class ModelNew(").replace("torch.tanh(self.linear(x))", result)
    return one.Sides(load_problem(path), load_candidate(new, "host"))


def test_equal_sides_err_equally(one: ModuleType, tmp_path: Path, lock: str) -> None:
    found = one.errors_at(sides_of(one, tmp_path, "torch.tanh(self.linear(x))"), lock, True, 1)
    for kind in ("outputs", "gradients"):
        assert found[kind]["eager"] == found[kind]["new"] < 1e-6 and found[kind]["allowed"] == 1e-4 and found[kind]["own"] is None


@pytest.mark.parametrize("wrong", ["torch.tanh(self.linear(x.half().float()))", "torch.tanh(self.linear(x)) * 1.001"])
def test_a_coarser_product_is_outside(one: ModuleType, script: ModuleType, tmp_path: Path, lock: str, wrong: str) -> None:
    found = one.errors_at(sides_of(one, tmp_path, wrong), lock, True, 1)
    assert found["outputs"]["new"] > 2e-4 > found["outputs"]["allowed"] >= 1e-4
    assert 0 < found["outputs"]["own"] < 1e-4, "what float32 itself may err was asked"
    assert script.status([row_of("zoo/a.py", errors=found)]) == 1


def test_an_error_without_gradients_shows_too(one: ModuleType, tmp_path: Path, lock: str) -> None:
    """Other kernels run where nobody asks for gradients."""
    wrong = "torch.tanh(self.linear(x)) * (1.0 if torch.is_grad_enabled() else 1.01)"
    found = one.errors_at(sides_of(one, tmp_path, wrong), lock, True, 1)
    assert found["outputs"]["new"] > 1e-3 and found["gradients"]["new"] < 1e-6


def test_other_random_draws_are_no_error(one: ModuleType, tmp_path: Path, lock: str) -> None:
    drawn = MODEL.replace("torch.tanh(self.linear(x))", "torch.dropout(self.linear(x), 0.5, True)")
    path = tmp_path / "model.py"
    path.write_text(drawn)
    new = drawn.replace("class Model(", "class ModelNew(")
    same = one.errors_at(one.Sides(load_problem(path), load_candidate(new, "host")), lock, True, 1)
    assert same["random"] and same["outputs"]["new"] < 1e-6
    other = new.replace("def forward(self, x):", "def forward(self, x):\n        torch.rand(3)")
    assert one.errors_at(one.Sides(load_problem(path), load_candidate(other, "host")), lock, True, 1) == {"skipped": "random draws differ"}


def test_errors_are_relative_to_the_rms_and_finite_where_they_must_be(one: ModuleType) -> None:
    exact = torch.tensor([3.0, -4.0, math.inf], dtype=torch.float64)
    rms = math.sqrt(25 / 3)
    assert one.gap(torch.tensor([3.0, -4.5, 7.0]), exact) == pytest.approx(0.5 / rms)
    assert one.gap(torch.tensor([math.nan, -4.0, math.inf]), exact) == math.inf
    assert one.gap(torch.tensor([3.0, -4.0]), exact) == math.inf and one.gap(None, exact) == math.inf
    assert one.gap(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5


def test_memory_that_runs_out_in_float64_makes_the_batch_smaller(one: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides, plain = sides_of(one, tmp_path, "torch.tanh(self.linear(x))"), one.widened
    batches: list[int] = []

    def widened(inputs: list[Any]) -> Any:
        batches.append(inputs[0].shape[0])
        if inputs[0].shape[0] > 2:
            raise torch.OutOfMemoryError("no room")
        return plain(inputs)

    monkeypatch.setattr(one, "widened", widened)
    found = one.errors(sides, str(tmp_path / "lock"), True)["errors"]
    assert batches == [6, 3, 1] and found["batch"] == "1/4" and found["outputs"]["new"] < 1e-6


def test_tuning_holds_the_lock_while_it_times(one: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is timed inside another one does not wait for it."""
    gpu, lock, free = one.gpu.Gpu, tmp_path / "lock", list[bool]()

    def from_idle(self: Any, call: Any) -> tuple[Any, Any]:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append(True)
            except BlockingIOError:
                free.append(False)
        return one.gpu.Sample(1.0, 0.0, 2.0), call()

    monkeypatch.setattr(gpu, "from_idle", from_idle)
    with one.taking_turns(str(lock), 2.5):
        device = object.__new__(gpu)
        sample, (inner, _) = device.from_idle(lambda: device.from_idle(lambda: None))
    assert free == [False, False] and (sample.ms, sample.wall_ms, inner.wall_ms) == (1.0, 5.0, 2.0)
    assert gpu.from_idle is from_idle, "put back"


def test_a_peak_is_that_of_the_second_call(one: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before does not count, nor does what the first call took beside it."""
    memory, calls = {"now": 50e6, "most": 500e6}, list[int]()

    def take(module: Any, inputs: list[Any]) -> Any:
        memory["now"] += 30e6  # parameters and inputs

        def run() -> None:
            calls.append(1)
            memory["most"] = max(memory["most"], memory["now"] + (400e6 if len(calls) == 1 else 20e6))

        return run

    def reset() -> None:
        memory["most"] = memory["now"]

    fakes = {"memory_allocated": lambda: memory["now"], "max_memory_allocated": lambda: memory["most"], "reset_peak_memory_stats": reset}
    for name, fake in {**fakes, "synchronize": lambda: None, "empty_cache": lambda: None}.items():
        monkeypatch.setattr(one.torch.cuda, name, fake)
    sides = sides_of(one, tmp_path, "torch.tanh(self.linear(x))")
    assert one.peak(sides, sides.eager, take) == 50.0 and len(calls) == 2


def run(tmp_path: Path, text: str, *arguments: str) -> tuple[int, Row, str]:
    path, rows = tmp_path / "small.py", tmp_path / "rows.jsonl"
    path.write_text(text)
    command = [sys.executable, str(ROOT / "benchmarks" / "never_worse.py"), str(path), "--json", str(rows), "--commit", "c1", "--jobs", "1"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    return done.returncode, json.loads(rows.read_text().splitlines()[0]), done.stdout + done.stderr


def test_a_small_model_on_the_host(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its file, which was kept, timed once more when it is ready."""
    status, row, said = run(tmp_path, MODEL, "--target", "host", "--keep", str(tmp_path / "kept"))
    assert status == 0, "no bound on times"
    assert row["outcome"] == "measured", said
    assert row["ms"]["new"] > 0 and row["step_ms"]["eager"] > 0 and "peaks" not in row and row["optimize"]["mb"] is None
    assert {"outputs", "gradients"} <= set(row["errors"]) and len(row["texts"]) == len(row["text"]) == 16
    assert "1 models: 1 measured" in said
    monkeypatch.setattr(sys, "argv", ["never_worse.py", "--target", "host"])
    runner = script.Runner(script.parsed(), "c1", str(tmp_path / "lock"), tmp_path / "kept", 0.0)
    again = runner.timed_alone([row], [tmp_path / "small.py"])[0]
    assert again["alone"] == "timed" and again["before"] == {key: row[key] for key in ("ms", "step_ms")}
    assert again["ms"]["new"] > 0 and again["errors"] == row["errors"]


@pytest.mark.parametrize(("text", "outcome", "why"), [
    (MODEL.replace("return []", "import os; os.abort()"), "crashed", "SIGABRT"),
    (MODEL.replace("return []", "return 3"), "refused", "not a list or tuple"),
    (MODEL.replace("return []", "import time; time.sleep(60)"), "time limit", "ran longer than 5 s"),
])  # fmt: skip
def test_a_model_that_goes_wrong_is_a_row(tmp_path: Path, text: str, outcome: str, why: str) -> None:
    status, row, said = run(tmp_path, text, "--target", "host", "--time-limit", "5" if outcome == "time limit" else "120")
    assert row["outcome"] == outcome and why in row["why"] and why in said
    assert status == (0 if outcome == "refused" else 1)


@pytest.mark.gpu
def test_a_small_model_on_a_gpu(tmp_path: Path) -> None:
    _, row, said = run(tmp_path, MODEL, "--verify")
    assert row["outcome"] == "measured", said
    assert row["ms"]["new"] > 0 and row["step_ms"]["new"] > 0 and row["optimize"]["verified"] and row["optimize"]["mb"] > 0
    for kind in ("inference", "step"):
        assert 0 < row["peaks"][kind]["eager"] < 100 and 0 < row["peaks"][kind]["new"] < 100
    assert row["errors"]["outputs"]["new"] <= row["errors"]["outputs"]["allowed"]
