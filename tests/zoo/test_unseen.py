"""The 60 model files that judge work which came after them: their format and their two sizes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from fusewright.frontend.problem import load_problem
from fusewright.driver.suite import SWITCH, find_models

ROOT = Path(__file__).parents[2]
UNSEEN = find_models(ROOT / "benchmarks" / "unseen")
SMALL_BYTES, FULL_BYTES = 1 << 18, 1 << 32  # of inputs


def test_there_are_sixty_and_none_has_the_name_of_another_model() -> None:
    others = [path.stem for place in ("zoo", "examples", "benchmarks") for path in (ROOT / place).rglob("*.py")]
    others = [name for name in others if name in {path.stem for path in UNSEEN.values()}]
    assert len(UNSEEN) == 60
    assert sorted(others) == sorted(path.stem for path in UNSEEN.values()), "one name, one model"


@pytest.mark.parametrize("name", list(UNSEEN))
def test_a_model_loads_and_runs_at_its_small_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    problem = load_problem(UNSEEN[name])
    inputs = problem.inputs()
    results = problem.model()(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    assert all(torch.isfinite(result).all() for result in results)
    assert sum(x.numel() * x.element_size() for x in inputs) < SMALL_BYTES


@pytest.mark.parametrize("name", list(UNSEEN))
def test_a_model_is_documented_and_has_a_full_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are made on the meta device, which has shapes and no memory."""
    monkeypatch.setenv(SWITCH, "")
    text = UNSEEN[name].read_text()
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    assert len((ast.get_docstring(classes["Model"]) or "").splitlines()) == 1
    namespace: dict[str, object] = {"__name__": name}
    with torch.device("meta"):
        exec(compile(text, name, "exec"), namespace)
        namespace["Model"](*namespace["get_init_inputs"]())  # type: ignore[operator]
        inputs = namespace["get_inputs"]()  # type: ignore[operator]
    assert SMALL_BYTES < sum(x.numel() * x.element_size() for x in inputs) < FULL_BYTES
