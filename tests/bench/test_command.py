"""`fusewright bench`: what it refuses, what it writes, and with which status it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.desk import FORWARD, MODEL, Desk, candidate_text

import fusewright.bench.comparison
from fusewright.driver import cli
from fusewright.verify import candidate


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "new.py").write_text(candidate_text(f"return {FORWARD}"))
    (tmp_path / "wrong.py").write_text(candidate_text("return torch.tanh(x)"))
    return tmp_path


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, with a stand-in for the GPU."""
    measure, load = fusewright.bench.comparison.bench, candidate.load_candidate

    def on_desk(problem: Any, candidates: Any, options: Any, modes: Any, **rest: Any) -> Any:
        # time for as many rounds as there ever are, on the busiest machine: what the desk's noise makes of them is always the same
        return measure(problem, candidates, None, modes, **{**rest, "device": Desk(), "seconds": 60.0})

    monkeypatch.setattr(fusewright.bench.comparison.secrets, "randbits", lambda bits: 1)
    monkeypatch.setattr(fusewright.bench.comparison, "needs_a_gpu", lambda options=None: None)
    monkeypatch.setattr("fusewright.driver.bench.bench", on_desk)
    monkeypatch.setattr("fusewright.driver.bench.load_candidate", lambda path, target, name: load(path, "host", name=name))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli._main(["bench", *arguments, "--same-process"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(outcome: tuple[int, str, str]) -> str:
    status, _, err = outcome
    assert status == 2 and re.fullmatch(r"fusewright: [^\n]*[.!?]\n", err), outcome
    return err


def test_bad_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.py: no such file" in refused(run(capsys, "gone.py"))
    assert "gone.py: no such file" in refused(run(capsys, "model.py", "gone.py"))
    assert "'fast' is not a mode" in refused(run(capsys, "model.py", "--modes", "eager,fast"))
    assert "there is no folder" in refused(run(capsys, "model.py", "--json", "nowhere/out.json"))
    assert "would overwrite new.py" in refused(run(capsys, "model.py", "new.py", "--json", "new.py"))
    assert "--seconds" in refused(run(capsys, "model.py", "--seconds", "-1"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "timing needs a GPU" in refused(run(capsys, "model.py", "new.py"))


def test_a_candidate_that_stands(folder: Path, desk: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "model.py", "new.py", "--modes", "eager", "--json", "out.json")
    assert (status, err) == (0, "")
    assert re.search(r"new\.py: no difference: ", out) and out.endswith("wrote out.json\n")
    record = json.loads((folder / "out.json").read_text())
    assert record["model"] == "model.py" and record["timing"]["stands"] is True
    assert [row["name"] for row in record["bench"]["rows"]] == ["eager", "eager, again", "new.py"]
    assert record["emitted"] == (folder / "new.py").read_text() and record["graph"] is None
    assert cli._main(["report", "out.json", "-o", "report.html"]) == 0
    assert "no difference" in (folder / "report.html").read_text()


def test_a_candidate_that_falls(folder: Path, desk: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "model.py", "new.py", "wrong.py", "--modes", "eager", "--no-backward")
    assert status == 1 and err.startswith("fusewright: wrong.py: wrong result in round 0 of forward: ")
    assert "wrong.py (!)" in out


def test_only_baselines(folder: Path, desk: None, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "model.py", "--modes", "eager")
    assert (status, err) == (0, "") and "eager" in out


def test_what_fusewright_writes_comes_with_its_plan(
    folder: Path, desk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from fusewright.driver.pipeline import compile_problem
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    emitted = compile_problem(load_problem(folder / "model.py"), Options())[2]
    (folder / "new.py").write_text(emitted.text)
    status, _, err = run(capsys, "model.py", "new.py", "--modes", "eager", "--json", "out.json")
    assert (status, err) == (0, "")
    record = json.loads((folder / "out.json").read_text())
    assert record["graph"]["nodes"] and record["steps"]
    assert [kernel["name"] for kernel in record["kernels"]] == [kernel.name for kernel in emitted.kernels]
