"""Pieces cut out of a tensor and put together again: one kernel, also of both, and each is the other's gradient."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from kernels.frame import compare, cuda_of, made_of, problem_of

from fusewright.driver.pipeline import compile_problem
from fusewright.host import compile_host, run_sanitized, sanitizer_report
from fusewright.options import Options
from fusewright.target.helpers import host_text

WEIGHT = "self.weight = nn.Parameter(torch.randn(4, 1, 1))"
LINES = ["y = x * self.weight"]

# forward, of y; the input's shape; another one that fits, where there is one
CASES = [
    ("F.fold(F.unfold(y, 3, padding=1) * 2, (6, 9), 3, padding=1)", (2, 4, 6, 9), (5, 4, 6, 9)),
    ("F.fold(F.unfold(y, 3, padding=1).relu(), x.shape[2:], 3, padding=1)", (2, 4, 6, 9), (3, 4, 5, 14)),
    ("F.fold(F.unfold(y, (2, 3), stride=(2, 3)).tanh(), (6, 9), (2, 3), stride=(2, 3))", (2, 4, 6, 9), (3, 4, 6, 9)),
    ("F.fold(F.unfold(y, 2, stride=2).tanh(), x.shape[2:], 2, stride=2)", (2, 4, 6, 10), (3, 4, 8, 4)),
    ("F.fold(F.unfold(y, 3, stride=2, padding=1).tanh(), x.shape[2:], 3, stride=2, padding=1)", (2, 4, 7, 9), (3, 4, 8, 5)),
    ("F.fold(F.unfold(y, (3, 2), (2, 3), (2, 1), (2, 1)).tanh(), (11, 9), (3, 2), (2, 3), (2, 1), (2, 1))", (2, 4, 11, 9), (3, 4, 11, 9)),
    ("F.fold(y.sin().reshape(x.shape[0], 16, 12), (7, 8), 2, dilation=3, stride=(1, 2)) + 1", (2, 4, 6, 8), (3, 4, 6, 8)),
    ("F.fold(F.avg_pool2d(y, 3, 1, 1).reshape(x.shape[0], 48, 10), (6, 9), (4, 3), 1, 1, (3, 2))", (2, 4, 12, 10), (3, 4, 12, 10)),
    ("F.unfold(y, 3, stride=2) * 2", (2, 4, 7, 9), (3, 4, 6, 10)),
    ("F.unfold(F.unfold(y, 2, stride=2)[..., None], (3, 1), padding=(1, 0)) + 1", (2, 4, 6, 8), (3, 4, 6, 8)),
    ("y.unfold(2, 3, 1).unfold(3, 4, 2).tanh().sum((-1, -2))", (2, 4, 7, 12), (3, 4, 6, 9)),
    ("y.unfold(2, 4, 3).tanh().amax(-1)", (2, 4, 14, 12), (3, 4, 11, 5)),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("forward", "shape", "other"), CASES, ids=[case[0] for case in CASES])
def test_is_cut_and_put_together(tmp_path: Path, forward: str, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
    plan, _, original, new = made_of(problem_of(tmp_path, forward, f"torch.randn{shape}", init=WEIGHT, lines=LINES), gradients=True)
    pooled = "avg_pool" in forward
    assert not plan.calls and len(plan.kernels) == (2 if pooled else 1), [kernel.name for kernel in plan.kernels]
    compare(original, new, (shape, other))


def test_the_gradient_is_no_scatter(tmp_path: Path) -> None:
    """Positions look at the windows they lie in, in backward too."""
    problem = problem_of(tmp_path, "F.unfold(y, 3, padding=1, stride=2).tanh()", "torch.randn(2, 4, 7, 9)", init=WEIGHT, lines=LINES)
    text = compile_problem(problem, Options())[2].text
    backward = text.partition("_grad(sizes")[2].partition("\n\n\n")[0]
    assert "_launch(" in backward and "aten." not in backward


def test_many_pieces_are_left(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "F.fold(x * 2, (12, 12), 7)", "torch.randn(2, 196, 36)")
    plan = compile_problem(problem, Options(gradients=False))[1]
    assert [str(call.node.target) for call in plan.calls] == ["aten.col2im.default"]


def test_halves(tmp_path: Path) -> None:
    """Added in float32, as PyTorch does, and rounded once."""
    forward = "F.fold(F.unfold(x, 3, stride=2, padding=1) * 2, x.shape[2:], 3, stride=2, padding=1)"
    _, _, original, new = made_of(problem_of(tmp_path, forward, "torch.randn(2, 4, 7, 9, dtype=torch.bfloat16)"))
    x = torch.randn(3, 4, 10, 5, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(new(x).double(), original(x.double()), rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_sanitized(sanitize: str, tmp_path: Path) -> None:
    """A value put at some place that is made of another one put at some place is read inside of both."""
    forward = "F.fold(F.unfold(x, 3, stride=2, padding=1) * 2, x.shape[2:], 3, stride=2, padding=1)"
    _, plan, emitted = compile_problem(problem_of(tmp_path, forward, "torch.randn(2, 4, 7, 9)"), Options(gradients=False))
    (kernel,) = plan.kernels
    library = compile_host(cuda_of(emitted.text), include_text=host_text(), sanitize=sanitize)
    script = Path(__file__).parent.parent / "host" / "sanitized_calls.py"
    arguments = [*[str(2 * 4 * 7 * 9)] * 2, 2, 7, 9]
    process = run_sanitized([str(script), str(library), json.dumps([[kernel.name, arguments]])], sanitize, env={"PYTHONMALLOC": "malloc"})
    assert sanitizer_report(process.stderr) is None, process.stderr[-2000:]
    assert process.returncode == 0 and "nothing found" in process.stdout, process.stderr[-2000:]
