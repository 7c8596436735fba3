"""Records: what a run leaves behind, and which files are none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fusewright.driver import cli
from fusewright.errors import Refused
from fusewright.report.report import joined, load_records, report, run_record


def test_what_a_record_holds(record: dict[str, Any]) -> None:
    assert record["format"] == 1 and record["model"] == "conv_norm_residual.py"
    names = [node["name"] for node in record["graph"]["nodes"]]
    assert all(source in names for node in record["graph"]["nodes"] for source in node["inputs"])
    conv = next(node for node in record["before"]["nodes"] if node["op"] == "conv2d.default")
    assert conv["shape"] == [3, 8, 9, 7] and conv["bytes"] == 3 * 8 * 9 * 7 * 4
    assert (conv["file"], conv["code"]) == ("conv_norm_residual.py", "x = self.conv(x)")
    kernels = [step for step in record["steps"] if "kernel" in step]
    assert kernels and all(set(step["nodes"]) <= set(names) and step["reads"] and step["writes"] for step in kernels)
    assert {kernel["kernel"] for kernel in kernels} <= {kernel["name"] for kernel in record["kernels"]}
    assert record["verdict"]["checks"][0]["passed"] is True and record["timing"]["stands"] is True
    assert "class ModelNew" in record["emitted"] and "class Model(" in record["source"]


def test_no_machine_paths_in_a_record(record: dict[str, Any]) -> None:
    assert str(Path(__file__).parents[2]) not in json.dumps(record)


def test_a_record_of_nothing() -> None:
    empty = run_record(None)
    assert {key: value for key, value in empty.items() if value is not None} == {"format": 1}


def test_records_of_one_model_are_joined() -> None:
    runs = [
        {"model": "a.py", "graph": {"x": 1}, "bench": None, "verified": True},
        {"model": "b.py"},
        {"model": "a.py", "graph": None, "bench": {"y": 2}},
    ]
    assert joined(runs) == [
        {"model": "a.py", "graph": {"x": 1}, "bench": {"y": 2}, "verified": True},
        {"model": "b.py"},
    ]


BAD = {
    "not JSON": ("{", r":1: not JSON: "),
    "not text": (b"\xff\xfe\x00", "not JSON: not UTF-8 text"),
    "a list": ("[1]", "not a run record: it holds a list"),
    "no model": ('{"kernels": []}', "not a run record: it names no model"),
    "an empty name": ('{"model": ""}', "not a run record"),
    "of verify": ('{"model": "x.py", "candidate": "y.py", "checks": []}', "not a run record: `verify --json` wrote it"),
    "a newer format": ('{"model": "x.py", "format": 99}', "written by a newer Fusewright"),
    "nested too deep": ("[" * 200_000, "not JSON"),
    "empty": ("", r":1: not JSON: "),
    "a number too long": ('{"model": "x.py", "n": ' + "9" * 10_000 + "}", "not JSON that can be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_records(kind: str, tmp_path: Path) -> None:
    content, says = BAD[kind]
    path = tmp_path / "run.json"
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    with pytest.raises(Refused, match=says):
        load_records([path])


# ---- the command ----


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = cli._main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def sentence(outcome: tuple[int, str, str]) -> str:
    status, _, err = outcome
    assert status == 2 and re.fullmatch(r"fusewright: [^\n]*[.!?]\n", err), outcome
    return err


def test_the_command_writes_a_page(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(json.dumps(record))
    status, out, err = run(capsys, "report", "run.json", "-o", "report.html")
    assert (status, err) == (0, "") and "model_new.py" in out and out.endswith("wrote report.html\n")
    assert Path("report.html").read_text() == report([Path("run.json")])[0]
    assert run(capsys, "report", "run.json")[0] == 0, "without -o only the table"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.json"]


def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text('{"model": "x.py"}')
    Path("folder").mkdir()
    assert "gone.json: no such file" in sentence(run(capsys, "report", "gone.json", "-o", "report.html"))
    assert "a directory" in sentence(run(capsys, "report", "folder"))
    assert "there is no folder" in sentence(run(capsys, "report", "run.json", "-o", "nowhere/report.html"))
    assert "it is a directory" in sentence(run(capsys, "report", "run.json", "-o", "folder"))
    assert "would overwrite run.json" in sentence(run(capsys, "report", "run.json", "-o", "run.json"))
    assert "RUN.json" in sentence(run(capsys, "report"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "run.json"]
