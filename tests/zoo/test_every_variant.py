"""Every variant that tuning could choose, of a few small models that have each kind, at batches 1 to 5 and at odd sizes.

`benchmarks/all_variants.py` does so for the whole zoo. One model more, another one each day, with the slow tests.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from zoo.test_zoo import DAY, MODELS

from fusewright.driver.all_variants import sweep, variants
from fusewright.options import Options
from fusewright.driver.pipeline import read_problem
from fusewright.driver.front import Front
from fusewright.frontend.problem import load_problem
from fusewright.driver.suite import SWITCH

KINDS = {  # and some of the variants that each has
    "conv/conv2d_batch_norm_pool.py": ["the library's, channels-last", "our convolutions, stored", "our convolutions, recomputed"],
    "network/causal_attention.py": ["our attention", "attention in steps", "our products"],
    "linear/linear_pool_sum.py": ["gradients by PyTorch"],
}
TODAY = list(MODELS)[DAY % len(MODELS)]


def front_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Front:
    monkeypatch.setenv(SWITCH, "small")
    return read_problem(load_problem(MODELS[name]), Options(target="host"))


@pytest.mark.parametrize("name", [*KINDS, *([] if TODAY in KINDS else [pytest.param(TODAY, marks=pytest.mark.slow)])])
def test_every_variant_is_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    front = front_of(name, monkeypatch)
    every, _ = variants(front)
    assert set(KINDS.get(name, [])) <= {variant.name for variant in every}
    wrong = [str(one) for one in sweep(front, every, "host") if one.wrong]
    assert not wrong, wrong


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "all_variants.py"
    spec = importlib.util.spec_from_file_location("all_variants_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_goes_on_where_it_stopped(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of this commit are left out, and rows of the same texts are taken over; a wrong one is a line and a status."""
    rows, ran, commit = tmp_path / "rows.jsonl", list[tuple[str, str]](), "c1"
    outcomes = {"zoo/single/gelu.py": "wrong"}

    def run(path: Path, name: str, known: str, arguments: object, commit: str) -> dict[str, object]:
        ran.append((name, known))
        row = {"commit": commit, "model": name, "sizes": "small", "target": "host", "checks": "sizes", "seconds": 1.0, "plain": True}
        if known:
            return {**row, "outcome": "known", "texts": known}
        outcome = outcomes.get(name, "equal")
        bad = [{"name": "ours", "outcome": "different", "detail": "far off"}] if outcome == "wrong" else []
        return {**row, "texts": f"of {name}", "outcome": outcome, "variants": bad}

    def call(*arguments: str) -> int:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["all_variants.py", str(MODELS["single/gelu.py"].parents[1]), "--json", str(rows), *arguments])
        return int(script.main())

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "commit_of", lambda: commit)
    assert call() == 1 and len(ran) == len(MODELS)
    said = capsys.readouterr().out
    assert "WRONG zoo/single/gelu.py: ours: different: far off" in said and f"{len(MODELS)} originals written" in said
    outcomes.clear()
    assert call("--resume") == 0 and ran == [("zoo/single/gelu.py", "")]
    commit = "c2"
    assert call("--resume", "--part", "0/2") == 0 and len(ran) == -(-len(MODELS) // 2) and all(known for _, known in ran)
    assert {row["commit"] for row in map(json.loads, rows.read_text().splitlines())} == {"c1", "c2"}
    assert call("--resume", "--part", "0/2") == 0 and not ran
