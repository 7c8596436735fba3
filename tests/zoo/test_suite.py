"""`fusewright suite`: a model that crashes, hangs, eats memory or is refused costs its own line; the rest goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusewright.driver import suite
from fusewright.errors import Refused
from fusewright.driver.suite import Result, Settings, find_models, read_results, run_suite, summary, table

GOOD = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return []
"""
BAD = {
    "crash.py": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n" + GOOD,
    "hang.py": "import time\ntime.sleep(600)\n" + GOOD,
    "hungry.py": "import time\nheld = b'1' * 3 * 10**9\ntime.sleep(600)\n" + GOOD,
    "refused.py": GOOD.replace("return torch.relu(x) * 2", "return 3"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"good.py": GOOD, **BAD}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.py").write_text("print('no model here')\n")
    (tmp_path / "good_new.py").write_text(GOOD + "\n\nclass ModelNew(Model):\n    pass\n")
    return tmp_path


def test_finds_models_and_nothing_else(folder: Path) -> None:
    assert list(find_models(folder)) == ["crash.py", "good.py", "hang.py", "hungry.py", "refused.py"]
    with pytest.raises(Refused, match="no such folder"):
        find_models(folder / "nowhere")
    with pytest.raises(Refused, match="no model files"):
        (folder / "empty").mkdir()
        run_suite(folder / "empty")


@pytest.mark.slow
def test_survives_what_models_do(folder: Path) -> None:
    out = folder / "results.json"
    (folder / "hang.py").unlink()
    settings = Settings("host", time_limit=300, memory_limit=2.5, bench=False)
    results = {r.model: r for r in run_suite(folder, out, 2, settings)}
    outcomes = {name: r.outcome for name, r in results.items()}
    assert outcomes == {
        "crash.py": "crashed",
        "good.py": "verified",
        "hungry.py": "memory limit",
        "refused.py": "refused",
    }
    assert "SIGSEGV" in results["crash.py"].why
    assert "holds no tensor" in results["refused.py"].why
    assert results["good.py"].report and len(results["good.py"].report["kernels"]) == 1
    assert {r.model: r for r in read_results(out)} == results
    lines = table(list(results.values()))
    assert lines[0].split()[:2] == ["model", "outcome"] and lines[-1].startswith("1 of 4 models verified; 1 kernel")


def test_ends_what_hangs(folder: Path) -> None:
    start = time.monotonic()
    result = suite.run_model(folder / "hang.py", Settings("host", time_limit=3))
    assert result is not None and result.outcome == "time limit" and result.why == "ran longer than 3 s"
    assert time.monotonic() - start < 60


def fake(monkeypatch: pytest.MonkeyPatch, outcome: str = "verified") -> list[str]:
    """Models that take no time; the list of those that were run."""
    ran: list[str] = []

    def run_model(path: Path, settings: Settings, *, name: str, key: str, **rest: object) -> Result:
        ran.append(name)
        return Result(name, key, outcome, "" if outcome == "verified" else "because", 0.1, {"kernels": []})

    monkeypatch.setattr(suite, "run_model", run_model)
    return ran


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nModel = torch.nn.Tanh\nget_inputs = lambda: [torch.ones(2)]\nget_init_inputs = list\n",
        "from good import Model, get_inputs as more\nget_inputs = more\n",
    ],
)
def test_names_may_be_assigned_and_imported(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(text)
    assert list(find_models(tmp_path)) == ["model.py"]


def test_resumes_with_what_is_not_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "results.json"
    everything = list(find_models(folder))
    assert sorted(fake(monkeypatch)) == [] and len(run_suite(folder, out)) == 5
    assert fake(monkeypatch) == (run_suite(folder, out, resume=True) and [])
    (folder / "good.py").write_text(GOOD.replace("* 2", "* 3"))
    ran = fake(monkeypatch)
    assert [r.model for r in run_suite(folder, out, resume=True)] == everything
    assert ran == ["good.py"], "only the file that changed is run again"
    ran = fake(monkeypatch, "not equal")
    run_suite(folder, out, 1, Settings(target="host"), resume=True)
    assert ran == everything, "other settings, other results"
    ran = fake(monkeypatch)
    run_suite(folder, out, 1, Settings(target="host"), resume=True)
    assert ran == everything, "what failed is tried again"


def test_what_lacked_memory_beside_others_is_run_again_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run_model(path: Path, settings: Settings, *, name: str, key: str, **rest: object) -> Result:
        ran.append(name)
        short = name in ("crash.py", "good.py") and ran.count(name) == 1
        return Result(name, key, "not equal" if short else "verified", "CUDA out of memory" if short else "", 0.1, {})

    monkeypatch.setattr(suite, "run_model", run_model)
    results = run_suite(folder, folder / "results.json", jobs=2)
    assert all(r.verified for r in results) and len(results) == 5
    assert sorted(ran[-2:]) == ["crash.py", "good.py"] and len(ran) == 7
    ran.clear()
    run_suite(folder, jobs=1)
    assert len(ran) == 5, "alone there is nothing to gain"


def test_a_file_that_holds_no_results_is_refused(folder: Path) -> None:
    (folder / "results.json").write_text("[1, 2]")
    with pytest.raises(Refused, match="not results of a suite"):
        run_suite(folder, folder / "results.json", resume=True)


@pytest.mark.slow
def test_an_interrupted_suite_ends_its_processes_and_keeps_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD["crash.py"])
    (tmp_path / "b.py").write_text(BAD["hang.py"])
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "fusewright", "suite", str(tmp_path), "--json", str(out), "--target", "host"]
    environment = {**os.environ, "PYTHONPATH": str(Path(suite.__file__).parents[2])}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    deadline = time.monotonic() + 60
    while not (out.exists() and process.poll() is None and children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    (child,) = children(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "go on with --resume" in errors
    assert [r.model for r in read_results(out)] == ["a.py"]
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return found


def test_means_are_geometric_and_by_family() -> None:
    def result(name: str, eager: float, compiled: float, new: float) -> Result:
        report = {"kernels": [], "timing": {"eager_ms": eager, "compile_ms": compiled, "new_ms": new}}
        return Result(name, "", "verified", "", 1.0, report)

    results = [result("a/x.py", 8, 2, 1), result("a/y.py", 2, 2, 1), result("b/z.py", 1, 1, 2)]
    lines = summary(results)
    assert "a: 4.00× eager (geometric mean of 2, lowest 2.00)" in lines[1]
    assert lines[2].startswith("b: 0.50× eager") and lines[3].startswith("all: 2.00× eager")
    assert "× compile" in table(results)[0]


def test_results_are_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch)
    out = folder / "results.json"
    run_suite(folder, out)
    assert [m["model"] for m in json.loads(out.read_text())["models"]] == list(find_models(folder))
    assert os.listdir(folder).count(".results.json") == 0


def test_says_where_kernels_were_left_out() -> None:
    """Such a file is right, and slower than it should be: nobody would know."""
    fine = Result("a/fine.py", "k", "verified", "", 1.0, {"kernels": ["k1"]})
    report = {"degraded": ["the kernels did not verify (seeds: off); the original's forward is kept"], "plain": True}
    less = Result("a/less.py", "k", "verified", "", 1.0, report)
    lines = table([fine, less])
    assert any(line.startswith("a/less.py: degraded: the kernels did not verify") for line in lines)
    assert lines[-3].startswith("2 of 2 models verified") and lines[-2].startswith("1 of these degraded")
    assert lines[-1].startswith("1 of these the original's forward")
    assert len(table([fine])) == len(table([less])) - 4


def test_files_that_are_not_python_are_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "broken.py").write_text(GOOD.replace("return torch.relu(x) * 2", "return torch.relu(x"))
    ran, out = fake(monkeypatch), folder / "results.json"
    results = run_suite(folder, out)
    assert [r.model for r in results if not r.verified] == ["broken.py"] and "broken.py" not in ran
    assert "broken.py:7: '(' was never closed" in "\n".join(table(results))
    assert [r.outcome for r in read_results(out) if r.model == "broken.py"] == ["not Python"]
