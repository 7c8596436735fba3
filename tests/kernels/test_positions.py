"""Max pools that say where their maxima are: values and positions in one kernel, the same as PyTorch's to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of
from kernels.test_windows import IMAGE, LINE, MAXIMA, VOLUME, other_sizes, problem_of

from fusewright.codegen.loops import pointwise
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

POOLS = {name: (forward[:-1] + ", return_indices=True)", shape) for name, (forward, shape) in MAXIMA.items()}
BESIDE = {
    "of something computed": ("(lambda v, i: (v * 2, i + 1))(*F.max_pool2d(x * self.weight, 3, 2, 1, return_indices=True))", IMAGE),
    "positions alone": ("F.max_pool2d(x, 2, return_indices=True)[1] % 7", IMAGE),
    "under a softmax": ("(lambda v, i: (v.softmax(-1), i))(*F.max_pool2d(x, 2, return_indices=True))", IMAGE),
    "added up": ("(lambda v, i: (v.sum(-1), i.sum(-1)))(*F.max_pool1d(x, 3, 2, 1, return_indices=True))", LINE),
    "pooled again": ("(lambda v, i: (F.max_pool2d(v, 2, 1), i))(*F.max_pool2d(x, 2, return_indices=True))", IMAGE),
    "single elements": ("F.max_pool3d(x, 1, 2, return_indices=True)", VOLUME),
}


@pytest.fixture(params=["rows", "elements"], autouse=True)
def walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several rows to a thread, as at sizes that fill a GPU, or element by element."""
    monkeypatch.setattr(pointwise, "resident", lambda machine: 0 if request.param == "rows" else 1 << 60)


def kinds_of(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """All different; equals side by side; what is no number, or infinite, here and there; nothing but minus infinities."""
    equals = torch.randint(-2, 2, shape).float()
    special = torch.randn(shape)
    special[torch.rand(shape) < 0.2] = float("nan")
    special[torch.rand(shape) < 0.3] = -float("inf")
    special[torch.rand(shape) < 0.1] = float("inf")
    return [torch.randn(shape), equals, special, torch.full(shape, -float("inf"))]


def check(folder: Path, forward: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, kernels: int = 1) -> None:
    plan, _, original, new = made_of(problem_of(folder, forward, shape, dtype))
    assert len(plan.kernels) == kernels and not plan.calls, [str(call.node.target) for call in plan.calls]
    tested = 0
    for given in (shape, *other_sizes(shape)):
        for x in kinds_of(given):
            with torch.no_grad():
                try:
                    expected = original(x.to(dtype))
                except (RuntimeError, ValueError):
                    continue  # windows larger than what they are laid over
                found = new(x.to(dtype))
            tested += 1
            pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
            for f, e in pairs:
                exact = not f.is_floating_point() or "lambda" not in forward
                torch.testing.assert_close(f, e, equal_nan=True, **({"rtol": 0, "atol": 0} if exact else {}))
    assert tested >= 16


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", POOLS, ids=lambda name: name.replace(" ", "-"))
def test_values_and_positions(tmp_path: Path, case: str) -> None:
    check(tmp_path, *POOLS[case])


@pytest.mark.parametrize("case", BESIDE, ids=lambda name: name.replace(" ", "-"))
def test_beside_other_operators(tmp_path: Path, case: str) -> None:
    kernels = {"pooled again": 2}.get(case, 1)
    check(tmp_path, *BESIDE[case], kernels=kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(tmp_path: Path, dtype: torch.dtype) -> None:
    """A sum of halves is rounded before it is compared: what is first of equals depends on it."""
    check(tmp_path, "F.max_pool2d(x + x * 0.25, 3, 2, 1, return_indices=True)", IMAGE, dtype)


@pytest.mark.parametrize("pool", ["F.max_pool2d(y, 3, 2, 1)", "F.max_pool2d(y, 2, return_indices=True)[0]"])
def test_gradients(tmp_path: Path, pool: str) -> None:
    problem = problem_of(tmp_path, f"(lambda y: torch.tanh({pool}))(x * self.weight)", IMAGE)
    _, _, original, new = made_of(problem, gradients=True)
    original.double()
    x = torch.randn(5, *IMAGE[1:])
    expected, found = original(x.double()), new(x)
    upstream = torch.randn(expected.shape)
    expected.backward(upstream.double())
    found.backward(upstream)
    torch.testing.assert_close(new.weight.grad.double(), original.weight.grad, rtol=1e-4, atol=1e-4)


def test_positions_that_were_never_written_do_no_harm(tmp_path: Path) -> None:
    """Verification makes each kernel a no-op, also the one that finds the positions for PyTorch's gradient, which looks at none."""
    problem = problem_of(tmp_path, "torch.tanh(F.max_pool2d(x * self.weight, 3, 2, 1))", IMAGE)
    graph, _, emitted = compile_problem(problem, Options(target="host"))
    assert "max_pool2d_grad" in emitted.text
    verdict = verify(problem, load_candidate(emitted.text, "host"), graph=graph, options=Options(target="host"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


def test_rows_that_lie_end_to_end(tmp_path: Path) -> None:
    """Rows of a known, even length: memory is one long line, but a position counts from the beginning of its own row."""
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(6, 16)\n\n"
        "    def forward(self, x):\n        return F.max_pool1d(self.linear(x).unsqueeze(1), 2, return_indices=True)\n\n\n"
        "def get_inputs():\n    return [torch.randn(5, 6)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    _, _, original, new = made_of(load_problem(path))
    x = torch.randn(7, 6)
    for found, expected in zip(new(x), original(x), strict=True):
        torch.testing.assert_close(found, expected)
