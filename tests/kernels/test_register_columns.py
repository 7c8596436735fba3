"""Reductions over channels that keep what they read: planned for large images, run on the host at small ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from kernels.frame import cuda_of, models_of, problem_of

from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.host import compile_host, run_sanitized, sanitizer_report
from fusewright.options import Options
from fusewright.target.helpers import host_text

CASES = {
    "softmax": "torch.softmax(x * 2, 1)",
    "log softmax": "F.log_softmax(x, 1) + 1",
    "norm": "x / torch.sqrt(x.square().mean(1, keepdim=True) + 1e-5)",
    "variance": "(x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, correction=0) + 1e-5)",
    "largest, and one for each row": "(lambda m: (x - m, m))(x.amax(1, keepdim=True))",
}


def front_of(folder: Path, forward: str, channels: int, dtype: str = "float32") -> Front:
    problem = problem_of(folder, forward, f"torch.randn(32, {channels}, 64, 64, dtype=torch.{dtype})")
    return read_problem(problem, Options(target="host"))


def steps(text: str) -> int | None:
    """Elements that a thread keeps, in the kernel of forward."""
    found = re.search(r"constexpr int STEPS = (\d+);", text.partition("\n_CUDA_GRADIENTS = ")[0])
    return int(found[1]) if found else None


def check(front: Front, shape: tuple[int, ...]) -> str:
    _, emitted = front.finish(Choices())
    original, new = models_of(front.problem, emitted.text)
    x = torch.randn(shape).to(front.problem.inputs()[0].dtype)
    expected, got = original(x.double()), new(x)
    expected, got = (r if isinstance(r, tuple) else (r,) for r in (expected, got))
    near = 2e-2 if x.dtype is torch.bfloat16 else 2e-5
    for a, b in zip(got, expected, strict=True):
        assert a.dtype is x.dtype and torch.allclose(a.double(), b, rtol=near, atol=near)
    return emitted.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("channels", [5, 64, 100])
def test_values(case: str, channels: int, tmp_path: Path) -> None:
    """Widths that are and are not whole vectors; more rows than a block has, and fewer."""
    front = front_of(tmp_path, CASES[case], channels)
    text = check(front, (3, channels, 5, 7))
    assert steps(text) is not None and steps(text) * 4 <= 32  # type: ignore[operator]
    check(front, (2, channels, 12, 24))


def test_halves(tmp_path: Path) -> None:
    text = check(front_of(tmp_path, CASES["softmax"], 64, "bfloat16"), (2, 64, 4, 12))
    assert steps(text) == 4, "eight elements in a vector"
    assert "FastLogSumExp" in text and "exp_fast" in text


@pytest.mark.parametrize("forward, channels", [(CASES["softmax"], 200), ("torch.logsumexp(x, 1)", 64)])
def test_what_is_long_or_read_once_is_not_kept(forward: str, channels: int, tmp_path: Path) -> None:
    assert steps(check(front_of(tmp_path, forward, channels), (2, channels, 4, 12))) is None


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_sanitized(sanitize: str, tmp_path: Path) -> None:
    _, emitted = front_of(tmp_path, CASES["softmax"], 20).finish(Choices(), gradients=False)
    source = cuda_of(emitted.text)
    launcher = re.findall(r'extern "C" const char\* (\w+)\(', source)[0]
    arguments = [*[str(2 * 20 * 3 * 12)] * 2, 2, 3, 12]
    library = compile_host(source, include_text=host_text(), sanitize=sanitize)
    script = Path(__file__).parent.parent / "host" / "sanitized_calls.py"
    command = [str(script), str(library), json.dumps([[launcher, arguments]])]
    process = run_sanitized(command, sanitize, env={"PYTHONMALLOC": "malloc"})
    assert sanitizer_report(process.stderr) is None, process.stderr[-2000:]
    assert process.returncode == 0 and "nothing found" in process.stdout, process.stderr[-2000:]
