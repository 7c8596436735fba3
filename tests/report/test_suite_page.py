"""A suite's file as a page and as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from report.test_page import Reader

from fusewright.driver import cli
from fusewright.errors import Refused
from fusewright.report.report import report
from fusewright.report.results import Result, write_results
from fusewright.report.suite_page import Suite, bins, histogram, ratios, suite_article


def result(name: str, eager: float, compiled: float | None, new: float, **more: Any) -> Result:
    timing = {"eager_ms": eager, "compile_ms": compiled, "new_ms": new}
    return Result(name, "k", "verified", "", 4.0, {"kernels": [{"name": "k"}], "library_calls": ["aten.mm"], "timing": timing, **more})


RESULTS = [
    *[result(f"conv/m{k}.py", 2.0 + k, 3.0, 1.0) for k in range(12)],
    result("conv/slow.py", 0.9, 0.5, 1.0),
    result("left.py", 1.0, 1.0, 1.0, plain=True, degraded=["the kernels did not verify; the original's forward is kept"]),
    Result("crash<b>.py", "k", "crashed", "ended by SIGSEGV & more", 90.0, None),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_results(tmp_path / "suite.json", RESULTS)
    return tmp_path / "suite.json"


def test_the_page_of_a_suite(file: Path) -> None:
    html, lines = report([file])
    reader = Reader(html)
    assert "suite-1" in reader.ids and "15 models, before and after" in reader.text and "script" not in reader.tags
    for part in ("14 of 15 models verified", "1 of these degraded", "eager's time over ours: 14 models, 1 below 1.", "torch.compile's"):
        assert part in reader.text
    slowest = reader.text.partition("Slowest against eager")[2].partition("Took longest to optimise")[0]
    assert slowest.index("conv/slow.py") < slowest.index("left.py") < slowest.index("conv/m0.py") and "conv/m9.py" not in slowest
    assert "the original's forward" in slowest and "1 kernel, 1 library call" in slowest
    assert "crash<b>.py crashed: ended by SIGSEGV & more" in reader.text
    longest = reader.text.partition("Took longest to optimise")[2]
    assert longest.index("crash<b>.py") < longest.index("conv/m0.py")
    assert lines[0].split()[:2] == ["model", "outcome"] and lines[-1].startswith("all: ")


def test_bins_are_half_doublings_and_hold_every_ratio() -> None:
    values = [0.3, 0.5, 0.99, 1.0, 1.41, 1.4143, 2.0, 23.0]
    counts = bins(values)
    assert sum(counts.values()) == len(values) and list(counts) == list(range(min(counts), max(counts) + 1))
    assert counts[-2] == 1 and counts[-1] == 1 and counts[0] == 2 and counts[1] == 1 and counts[2] == 1
    assert bins([5.0])[0] == 0, "1 is on the axis"


def test_the_histogram_is_a_picture() -> None:
    found = list(ratios(RESULTS, "eager_ms").values())
    svg = histogram(found, "eager")
    root = ElementTree.fromstring(svg)
    bars = [group for group in root if group.tag == "g"]
    assert len(bars) == len(bins(found))
    tall = [float(group[1].attrib["height"]) for group in bars]
    assert max(tall) == 150 and all(height >= 0 for height in tall)


def test_a_suite_that_was_not_timed(tmp_path: Path) -> None:
    html = suite_article(Suite("s.json", (Result("a.py", "k", "verified", "", 1.0, {"kernels": []}),)), 1)
    assert html.count("Not timed: timing needs a GPU.") == 2 and "None: every model verified" in html
    assert "suite-2" in suite_article(Suite("empty.json", ()), 2)


def test_suites_and_runs_on_one_page(file: Path, tmp_path: Path, record: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(record))
    html, lines = report([tmp_path / "run.json", file])
    reader = Reader(html)
    assert {"suite-1", "model-1"} <= set(reader.ids) and "16 models" in reader.text
    assert str(record["model"]) in lines


def test_the_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli._main(["report", str(file), "-o", str(tmp_path / "suite.html")]) == 0
    assert "14 of 15 models verified" in capsys.readouterr().out and (tmp_path / "suite.html").read_text().startswith("<!DOCTYPE")


@pytest.mark.parametrize("models", [[1], [{"model": "a.py"}], [{"model": 3, "key": "", "outcome": "", "why": "", "seconds": 1}]])
def test_files_that_hold_no_results(models: list[Any], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({"models": models}))
    with pytest.raises(Refused, match="not results of a suite"):
        report([tmp_path / "bad.json"])


def test_numbers_that_cannot_be_drawn(tmp_path: Path) -> None:
    odd = [result("inf.py", 1e308, 1.0, 1e-308), result("word.py", "fast", 1.0, 1.0), result("zero.py", 1.0, 1.0, 0.0)]  # type: ignore[arg-type]
    odd.append(Result("kernels.py", "k", "verified", "", 1.0, {"kernels": 3, "timing": [1]}))
    Reader(f"<div>{suite_article(Suite('odd', tuple(odd)), 1)}</div>")
    assert ratios(odd, "eager_ms") == {}
