"""`--tuning-record FILE`, `tuning_record=`: what timing chose on one machine is what every machine writes."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doors.watch import kernels_of
from torch import nn
from typer.testing import CliRunner

import fusewright
from fusewright.driver import pipeline, tuning_record
from fusewright.driver.cli import app
from fusewright.driver.tuning.choices import Choices
from fusewright.driver.tuning.tune import Tuned
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import Check, Verdict

CHOSEN = Tuned(Choices(plain=True), (("eager", 1.0), ("predicted", 2.0)), ("as timed",))
HOST = Options(target="host", verify=False)


@pytest.fixture
def problem(models: Path) -> Problem:
    return load_problem(models / "softmax_rows.py")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """A machine with a GPU of this name: what is timed there."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    verdict = Verdict(True, (Check("seeds", True),), "", 0.0, 0.0, (), ())
    timed: list[str] = []

    def tune(*given: Any, **named: Any) -> Tuned:
        timed.append(torch.cuda.get_device_name())
        return CHOSEN

    def there(name: str) -> list[str]:
        for place, value in {
            "fusewright.driver.pipeline.choose_target": lambda options: "cuda",
            "fusewright.driver.pipeline.probing": lambda *args: contextlib.nullcontext(),
            "fusewright.driver.pipeline.gpu_works": lambda: True,
            "fusewright.driver.pipeline.tune": tune,
            "fusewright.driver.pipeline.Gpu": lambda device: None,
            "fusewright.driver.pipeline.verify_candidate": lambda *given, **named: verdict,
            "fusewright.driver.pipeline.load_candidate": lambda text, target, *given, **named: load_candidate(text, "host", name="new.py"),
            "torch.cuda.get_device_name": lambda *device: name,
            "torch.cuda.current_device": lambda: 0,
        }.items():
            monkeypatch.setattr(place, value)
        return timed

    return there


def test_written_on_one_machine_and_read_on_others(problem: Problem, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record.json"
    options = Options(target="cuda", bench=False, tuning_record=record)
    timed = gpu("NVIDIA H200")
    first = pipeline.optimize(problem, options)
    said = [note for note in first.report["notes"] if "has no choices for this model as it is: tuned here, and added" in note]
    assert timed == ["NVIDIA H200"] and len(said) == 1
    written = record.read_text()
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "another machine's"))
    again = pipeline.optimize(problem, options)
    assert timed == ["NVIDIA H200"] and again.text == first.text and again.choices == CHOSEN.choices and record.read_text() == written
    assert not any("record" in note for note in again.report["notes"])
    monkeypatch.undo()
    host = pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=record))  # a machine without a GPU
    assert host.text == first.text != pipeline.optimize(problem, HOST).text and host.choices == CHOSEN.choices


def test_another_gpu_is_tuned_for_and_added(problem: Problem, gpu: Any, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = Options(target="cuda", bench=False, tuning_record=record)
    timed = gpu("NVIDIA H200")
    pipeline.optimize(problem, options)
    gpu("NVIDIA A100-SXM4")
    run = pipeline.optimize(problem, options)
    assert timed == ["NVIDIA H200", "NVIDIA A100-SXM4"]
    assert any("as it is, but of NVIDIA H200: tuned here, and added" in note for note in run.report["notes"])
    ((_, rows),) = json.loads(record.read_text())["models"].items()
    assert sorted(rows) == ["NVIDIA A100-SXM4", "NVIDIA H200"] and all("cached" not in row for row in rows.values())
    pipeline.optimize(problem, options)
    pipeline.optimize(problem, Options(target="cuda", bench=False, tuning_record=record, tune="again"))
    assert len(timed) == 3


def test_without_timing(problem: Problem, tmp_path: Path) -> None:
    """What the record lacks is as predicted, and said; the record stays as it is."""
    record = tmp_path / "record.json"
    run = pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=record))
    assert not record.exists() and run.text == pipeline.optimize(problem, HOST).text
    assert [note for note in run.report["notes"] if note.endswith("record.json has no choices for this model as it is: as predicted")]


def recorded(path: Path, problem: Problem, **changes: Any) -> None:
    """A record with choices for this model as it is predicted, of an H200."""
    front = pipeline.read_problem(problem, HOST)
    _, predicted = front.finish(Choices(), gradients=False)
    name = tuning_record.key(predicted, pipeline.training_words(HOST), front.precision.name)
    tuning_record.add(path, name, "softmax_rows.py", "NVIDIA H200", CHOSEN)
    record = json.loads(path.read_text())
    record["models"][name]["NVIDIA H200"] |= changes
    path.write_text(json.dumps(record))


def test_of_another_version(problem: Problem, tmp_path: Path) -> None:
    recorded(tmp_path / "record.json", problem, fusewright="0.0.1")
    run = pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=tmp_path / "record.json"))
    assert not run.choices.plain and any("fusewright 0.0.1 chose, and this is" in note for note in run.report["notes"])


def test_of_several_gpus_the_one_that_is_planned_for(problem: Problem, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    recorded(record, problem)
    held = json.loads(record.read_text())
    (rows,) = held["models"].values()
    rows["NVIDIA H100"] = {**rows["NVIDIA H200"], "choices": Choices().to_dict()}
    record.write_text(json.dumps(held))
    assert pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=record)).choices.plain
    del rows["NVIDIA H200"]
    rows["NVIDIA L4"] = rows["NVIDIA H100"]
    record.write_text(json.dumps(held))
    run = pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=record))
    assert any("but of NVIDIA H100, NVIDIA L4" in note for note in run.report["notes"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not JSON", "record.json: not a tuning record: not JSON"),
        ("[]", "record.json: not a tuning record: it lists no models"),
        ('{"format": 1, "models": {"a": 3}}', "record.json: not a tuning record: it lists no models"),
        ('{"format": 7, "models": {}}', "a tuning record of format 7, and this fusewright reads 1"),
    ],
)
def test_what_is_no_record(text: str, words: str, problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(fusewright.Refused, match=words):
        pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=tmp_path / "record.json"))


def test_choices_that_cannot_be_read(problem: Problem, tmp_path: Path) -> None:
    recorded(tmp_path / "record.json", problem, choices={"left": 3})
    with pytest.raises(fusewright.Refused, match=r"record.json: the choices for softmax_rows.py cannot be read"):
        pipeline.optimize(problem, Options(target="host", verify=False, tuning_record=tmp_path / "record.json"))


def test_the_command(problem: Problem, models: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "record.json", problem)
    command = ["optimize", str(models / "softmax_rows.py"), "--target", "host", "-o", str(tmp_path / "new.py"), "--tuning-record"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "record.json")])
    assert done.exit_code == 0, done.output
    assert "PyTorch's own operators are left as they are" in (tmp_path / "new.py").read_text()
    done = CliRunner().invoke(app, [*command, str(tmp_path)])
    assert done.exit_code == 2 and "it is a directory" in done.stderr


def test_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, module, x = tmp_path / "record.json", nn.Sequential(nn.Tanh(), nn.Softmax(-1)), torch.randn(4, 6)
    host = functools.partial(fusewright.optimize, module, x, target="host", verify=False, cache=False)
    assert kernels_of(host())
    front = fusewright.about(host(tuning_record=record))
    assert "has no choices" in front.report["notes"][-1]
    seen: list[str] = []
    key = tuning_record.key
    monkeypatch.setattr(tuning_record, "key", lambda *given: seen.append(key(*given)) or seen[-1])
    host(tuning_record=record)
    tuning_record.add(record, seen[0], "Sequential", "NVIDIA H200", CHOSEN)
    assert not kernels_of(host(tuning_record=record))
