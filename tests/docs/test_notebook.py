"""docs/tutorial.ipynb: a page from a model to its report, and the report that shows itself."""

from __future__ import annotations

import html
import importlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs.tutorial import steps

import fusewright
from fusewright.errors import Refused
from fusewright.report.results import Result, write_results

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial.ipynb"
RECORD = {"model": "a.py", "verified": True, "kernels": [{"name": "k", "replaces": ["relu"]}], "target": "host"}
INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("nbclient", "nbformat", "ipykernel"))


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == kind]


def test_it_is_kept_without_outputs() -> None:
    found = json.loads(NOTEBOOK.read_text())
    assert found["nbformat"] == 4 and len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in found["cells"] if cell["cell_type"] == "code")


def test_its_cells_are_python() -> None:
    model, *others = cells("code")
    assert model.startswith("%%writefile model.py\n")
    (tutorial,) = (step.text for step in steps() if step.file == "model.py")
    assert model.partition("\n")[2].rstrip() == tutorial.rstrip(), "the tutorial's own model"
    for source in others:
        compile(re.sub(r"^!.*$", "", source, flags=re.MULTILINE), "cell", "exec", dont_inherit=True)


def test_a_report_shows_itself(tmp_path: Path) -> None:
    report = fusewright.Report(RECORD)
    assert dict(report) == RECORD and len(report) == 4 and report["verified"]
    assert "a.py" in repr(report) and "kernels: k" in repr(report)
    frame = report._repr_html_()
    inside = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*" title="Fusewright"></iframe>', frame)
    assert inside is not None and html.unescape(inside[1]) == report.html()
    report.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == report.html()
    with pytest.raises(Refused, match=r"none/page.html: cannot be written"):
        report.save(tmp_path / "none" / "page.html")


def test_a_report_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RECORD))
    assert fusewright.Report.load(str(tmp_path / "run.json")) == RECORD
    write_results(tmp_path / "suite.json", [Result("a.py", "k", "verified", "", 1.0, RECORD)])
    suite = fusewright.Report.load(tmp_path / "suite.json")
    assert "1 of 1 model verified" in repr(suite) and "suite.json" in suite.html() and suite["models"][0]["model"] == "a.py"
    for text, says in {"[1]": "it holds a list", '{"models": [1]}': "not results of a suite", "{}": "names no model"}.items():
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(Refused, match=says):
            fusewright.Report.load(tmp_path / "bad.json")


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="nbclient, nbformat or ipykernel is not installed: make notebook")
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = (importlib.import_module(name) for name in ("nbclient", "nbformat"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(Path(fusewright.__file__).parents[1]))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data["text/html"] for output in outputs if output.output_type == "execute_result" and "text/html" in output.data]
    assert len(shown) == 1 and "layer_norm_gelu_softmax_fwd" in shown[0]
    said = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "wrote model_new.py" in said and "largest difference" in said
