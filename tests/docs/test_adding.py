"""The examples of docs/adding.md, run as they stand there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import lawbook

from fusewright.codegen.loops import templates
from fusewright.driver.pipeline import Run, compile_problem, explain, optimize
from fusewright.frontend.problem import Problem, load_problem
from fusewright.laws.law import LAWS
from fusewright.laws.rewrite import rewrite
from fusewright.ops.registry import RECORDS
from fusewright.options import Options
from fusewright.target.machine import MACHINES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adding.md").read_text()
HOST = Options(target="host", seeds=1, forward_only=True)


def block(name: str) -> str:
    found = re.search(rf"^```python {name}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no block {name}"
    return found[1]


def added(name: str) -> dict[str, Any]:
    """What the block defines, once it has run."""
    space: dict[str, Any] = {"__name__": f"adding_{name}"}
    exec(compile(block(name), f"docs/adding.md: {name}", "exec", dont_inherit=True), space)
    return space


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    records, laws = dict(RECORDS), list(LAWS)
    yield
    RECORDS.clear()
    RECORDS.update(records)
    LAWS[:] = laws


def problem(name: str, folder: Path) -> Problem:
    path = folder / f"{name.replace('-', '_')}.py"
    path.write_text(block(name))
    return load_problem(path)


def assert_in_one_kernel(run: Run) -> None:
    assert run.verdict.passed, [check for check in run.verdict.checks if not check.passed]
    assert len(run.report["kernels"]) == 1 and run.report["library_calls"] == []


def left_to_pytorch(model: Problem) -> list[str]:
    _, plan, _ = compile_problem(model, HOST)
    return [str(call.node.target) for call in plan.calls]


def test_operator(tmp_path: Path) -> None:
    model = problem("operator-model", tmp_path)
    assert left_to_pytorch(model) == ["aten.special_ndtr.default"]
    added("operator")
    assert_in_one_kernel(optimize(model, HOST))


def test_pool(tmp_path: Path) -> None:
    model = problem("pool-model", tmp_path)
    assert left_to_pytorch(model) == ["example.rms_pool2d.default"]
    added("pool")
    assert_in_one_kernel(optimize(model, HOST))


def test_law() -> None:
    before = len(LAWS)
    added("law")
    (law,) = LAWS[before:]
    assert {example.applies for example in law.examples} == {True, False}
    for example in law.examples:
        torch.manual_seed(0)
        model = example.make()
        graph = lawbook.captured(model, example.shapes)
        after, applied = lawbook.rewritten(graph, law)
        assert bool(applied) == example.applies
        if applied:
            lawbook.assert_same_meaning(graph, after, model)
            lawbook.assert_keeps_nonfinite(graph, model, law)
            assert not lawbook.rewritten(after, law)[1]
        together, _ = rewrite(graph, Options())
        lawbook.assert_same_meaning(graph, together, model)


def test_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = added("template")["TEMPLATE"]
    monkeypatch.setattr(templates, "TEMPLATES", (template, *templates.TEMPLATES))
    run = optimize(problem("template-model", tmp_path), HOST)
    assert_in_one_kernel(run)
    assert "item += gridDim.x * 256" in run.text


def test_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = added("machine")["A10"]
    monkeypatch.setitem(MACHINES, machine.name, machine)
    options = Options(target="host", arch="a10")
    _, plan, _ = compile_problem(problem("template-model", tmp_path), options)
    assert plan.machine == machine
    assert not machine.has_wgmma
    assert "A10" in explain(problem("template-model", tmp_path), options)
