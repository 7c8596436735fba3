"""Loading candidates, and watching what they do."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

import fusewright
from fusewright.driver.pipeline import compile_problem
from fusewright.errors import Refused
from fusewright.frontend.problem import Problem, load_problem
from fusewright.host import FOUND_SOMETHING, run_sanitized, sanitizer_report
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

ADVERSARIAL = Path(__file__).parent.parent / "adversarial"
CUDA_KERNEL = ADVERSARIAL / "honest" / "cuda_kernel.py"


@pytest.fixture
def problem() -> Problem:
    return load_problem(ADVERSARIAL / "models" / "scale_shift.py")


def plain(body: str) -> str:
    return textwrap.dedent(
        """
        import torch
        import torch.nn as nn

        class ModelNew(nn.Module):
            def __init__(self, *arguments):
                super().__init__()

            def forward(self, x):
        """
    ) + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)


def library_calls(body: str, problem: Problem) -> list[str]:
    candidate = load_candidate(plain(body), "host")
    model = candidate.build_model(problem)
    x = torch.rand(4, 6, 50)
    with torch.no_grad(), candidate.trace() as trace:
        model(x)
    return trace.library_calls


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.relu(x)", ["aten.relu.default"]),
        ("return x.transpose(0, 1).reshape(6, -1)", ["aten.clone.default"]),
        ("return x.transpose(0, 1).contiguous()", ["aten.clone.default"]),
        ("return x.double()", ["aten._to_copy.default"]),
        ("return x.transpose(0, 1).unsqueeze(0)[..., 1:].expand(2, -1, -1, -1)", []),
        ("return torch.empty_like(x).copy_(x)", ["aten.copy_.default"]),
        ("return torch.zeros(3)", ["aten.zeros.default"]),
        ("return torch.nn.functional.linear(x, x[0, :, :])", ["aten.mm.default"]),
    ],
)
def test_what_counts_as_a_library_call(body: str, expected: list[str], problem: Problem) -> None:
    assert library_calls(body, problem) == expected


def test_kernels_run_on_the_host(problem: Problem) -> None:
    candidate = load_candidate(CUDA_KERNEL, "host")
    assert candidate.emitted
    assert candidate.kernels == ("scale_shift",)
    model, original, x = candidate.build_model(problem), problem.model(), torch.randn(4, 6, 50)
    with torch.no_grad(), candidate.trace() as trace:
        result = model(x)
    assert trace.kernels == ["scale_shift"]
    assert trace.library_calls == []
    assert torch.allclose(result, original(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:ModelNew. nvcc is not found")
def test_the_host_needs_no_nvcc_beside_a_gpu(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, emitted = compile_problem(problem, Options(target="host"))
    assert "_library(_CUDA_SOURCE)" in emitted.text
    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", lambda *args, **named: pytest.fail("nvcc was asked"))
    candidate = load_candidate(emitted.text, "host")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    candidate.module.ModelNew(*problem.namespace.get_init_inputs())


def test_a_copy_is_seen(problem: Problem) -> None:
    candidate = load_candidate(CUDA_KERNEL, "host")
    model = candidate.build_model(problem)
    x = torch.randn(4, 50, 6).transpose(1, 2)
    with torch.no_grad(), candidate.trace() as trace:
        model(x)
    assert trace.kernels == ["scale_shift"]
    assert trace.library_calls == ["aten.clone.default"]


def test_without_a_kernel_nothing_is_written(problem: Problem) -> None:
    candidate = load_candidate(CUDA_KERNEL, "host")
    model, x = candidate.build_model(problem), torch.rand(4, 6, 50)
    with torch.no_grad():
        right = model(x)
        with candidate.without("scale_shift"), candidate.launches() as launched:
            spoiled = model(x)
        again = model(x)
    assert launched == ["scale_shift"]
    assert not torch.equal(spoiled, right)
    assert torch.equal(again, right)


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    text = plain("return self.l(x)").replace("super().__init__()", "super().__init__(); self.l = nn.Linear(3, 3)")
    tail = "\n\ndef get_inputs():\n    return [torch.rand(2, 3)]\n\ndef get_init_inputs():\n    return []\n"
    path.write_text(text.replace("ModelNew", "Model") + tail)
    problem = load_problem(path)
    new, original = load_candidate(text, "host").build_model(problem, 7), problem.model(7)
    assert all(torch.equal(a, b) for a, b in zip(new.parameters(), original.parameters(), strict=True))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import torch\nx = 1\n", "defines no class named ModelNew"),
        ("def f(:\n    1\n", "not Python"),
        ("import torch\nraise KeyError('no')\n", "2: importing it raised KeyError: 'no'"),
        ("import triton\nclass ModelNew: ...\n", "needs a GPU to run"),
        ("from torch.utils.cpp_extension import load_inline\nload_inline(cuda_sources='')\n", "needs a GPU to run"),
    ],
)
def test_refused_with_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        load_candidate(text, "host", name="new.py")
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("new.py")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such file"):
        load_candidate(tmp_path / "nothing.py", "host")


def test_cuda_that_does_not_compile() -> None:
    text = CUDA_KERNEL.read_text().replace("const long long channel =", "const long long channel ==")
    with pytest.raises(Refused, match="does not compile for the host"):
        load_candidate(text, "host")


def test_target_cuda_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(Refused, match="no CUDA device"):
        load_candidate(CUDA_KERNEL, "cuda")


RUN = """
import sys, torch
from fusewright.verify.candidate import load_candidate
from fusewright.frontend.problem import load_problem
from pathlib import Path
candidate = load_candidate(Path(sys.argv[1]), "host", sanitize="address")
model = candidate.build_model(load_problem(Path(sys.argv[2])))
with torch.no_grad():
    print(model(torch.rand(4, 6, 50)).sum())
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("overruns", [False, True])
def test_in_a_sanitizer_build(overruns: bool, tmp_path: Path) -> None:
    """The same file, its kernels built with the address sanitizer: reading past the end of a tensor is named."""
    text = CUDA_KERNEL.read_text()
    candidate = tmp_path / "new.py"
    candidate.write_text(text.replace("shift[channel]", "shift[channel + channels]") if overruns else text)
    script = tmp_path / "run.py"
    script.write_text(RUN)
    model = ADVERSARIAL / "models" / "scale_shift.py"
    environment = {"PYTHONPATH": str(Path(fusewright.__file__).parents[1])}
    done = run_sanitized([str(script), str(candidate), str(model)], "address", timeout=300, env=environment)
    if overruns:
        assert done.returncode == FOUND_SOMETHING, done.stderr
        report = sanitizer_report(done.stderr)
        assert report is not None and "outside the tensor" in report
    else:
        assert done.returncode == 0, done.stderr
