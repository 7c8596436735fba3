"""The full line, as a user runs it: one model file in, one verified file out, and the faults only the line can see."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bad_models import GOOD, changed

ROOT = Path(__file__).parents[2]


def fusewright(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fusewright", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.smoke
def test_one_model_in_one_verified_file_out(tmp_path: Path, models: Path) -> None:
    model, new, report_file = models / "conv_norm_residual.py", tmp_path / "new.py", tmp_path / "report.json"
    run = fusewright("optimize", model, "-o", new, "--json", report_file, "--target", "host", "--precision", "flags")
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.py", "report.json"]

    report = json.loads(report_file.read_text())
    assert report["verified"] is True
    assert report["target"] == "host"
    assert report["timing"] is None
    assert report["kernels"] and all(
        {"name", "replaces", "bytes", "flops"} <= set(kernel) for kernel in report["kernels"]
    )
    assert report["library_calls"] == [] and any("conv2d" in str(kernel["replaces"]) for kernel in report["kernels"])
    assert isinstance(report["rules"], list)
    assert report["max_error"] is not None and report["tolerance"] is not None

    text = new.read_text()
    assert "class ModelNew" in text
    assert not re.search(r"import fusewright|from fusewright", text)
    assert not re.search(r"\b(try|except|pass|threading)\b", text)


@pytest.mark.slow
def test_verify_accepts_the_file_and_finds_a_fault_in_it(tmp_path: Path, models: Path) -> None:
    model, new = models / "softmax_rows.py", tmp_path / "new.py"
    assert fusewright("optimize", model, "-o", new, "--target", "host").returncode == 0
    assert fusewright("verify", model, new, "--target", "host").returncode == 0
    wrong = tmp_path / "wrong.py"
    wrong.write_text(model.read_text().replace("2.0", "2.001").replace("class Model(", "class ModelNew("))
    run = fusewright("verify", model, wrong, "--target", "host")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.slow
def test_optimize_under_a_sanitizer(tmp_path: Path, models: Path) -> None:
    run = fusewright("optimize", models / "softmax_rows.py", "-o", tmp_path / "new.py", "--sanitize", "address")
    assert run.returncode == 0 and (tmp_path / "new.py").exists(), run.stdout + run.stderr
    assert re.search(r"\d+ checks held, \d+ skipped, 0 failed", run.stdout), run.stdout


def test_explain_builds_nothing(models: Path) -> None:
    run = fusewright("explain", models / "conv_norm_residual.py", PATH="")
    assert (run.returncode, run.stderr) == (0, "")
    assert "logsumexp" in run.stdout


def one_sentence(run: subprocess.CompletedProcess[str], folder: Path) -> str:
    assert run.returncode == 2, run.stdout + run.stderr
    assert re.fullmatch(r"fusewright: [^\n]*[.!?]\n", run.stderr), run.stderr
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["model.py"]
    return run.stderr


FAULTS = {
    "an output that is no tensor": (changed("x * self.w", "x.shape[0] * 2"), r"returned an int, which holds no tensor"),
    "no output": (changed("return x * self.w", "x * self.w"), r"returned None, which holds no tensor"),
    "a forward that raises": (changed("x * self.w", "x @ self.w[:1]"), r"model\.py:8"),
    "a forward that says no": (changed("return x * self.w", "raise ValueError('no')"), r"model\.py:8: forward\(\) raised ValueError: no\."),
    "a forward that wants more": (changed("forward(self, x)", "forward(self, x, y)"), r"model\.py"),
    "a forward that exits": (changed("return x * self.w", "raise SystemExit(0)"), r"model\.py|sys\.exit"),
    "control flow on data": (
        changed("return x * self.w", "return x if x.sum() > 0 else -x"),
        r"model\.py:8",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.sampled(3)
def test_models_the_line_refuses(kind: str, tmp_path: Path) -> None:
    source, says = FAULTS[kind]
    (tmp_path / "model.py").write_text(source)
    sentence = one_sentence(fusewright("optimize", tmp_path / "model.py", "--target", "host"), tmp_path)
    assert re.search(says, sentence), sentence


def test_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(changed("x * self.w", "torch.softmax(x * self.w * 1.375, 1)"))
    sentence = one_sentence(
        fusewright("optimize", tmp_path / "model.py", "--target", "host", PATH="", CXX=""), tmp_path
    )
    assert "g++" in sentence or "compiler" in sentence


def test_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(GOOD)
    run = fusewright("optimize", tmp_path / "model.py", "--target", "cuda", CUDA_VISIBLE_DEVICES="")
    sentence = one_sentence(run, tmp_path)
    assert re.search("GPU|CUDA", sentence), sentence
