"""The verdict: what it holds, and models of every kind whose exact copy must pass."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.errors import Refused
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.checks import differentiation
from fusewright.verify.checks.differentiation import _Patience
from fusewright.verify.verifier import STAGES, Verdict, verify

ADVERSARIAL = Path(__file__).parent.parent / "adversarial"
COPY = "\n\nclass ModelNew(Model):\n    ...\n"


def problem_of(folder: Path, init: str, forward: str, inputs: str) -> Problem:
    lines = ["import torch", "import torch.nn as nn", "", "", "class Model(nn.Module):", "    def __init__(self):"]
    lines += ["        super().__init__()", textwrap.indent(textwrap.dedent(init).strip(), " " * 8), ""]
    lines += [textwrap.indent(textwrap.dedent(forward).strip(), " " * 4), "", ""]
    lines += ["def get_inputs():", f"    return [{inputs}]", "", "", "def get_init_inputs():", "    return []", ""]
    path = folder / "model.py"
    path.write_text("\n".join(lines))
    return load_problem(path)


def copy_of(problem: Problem) -> Verdict:
    return verify(problem, load_candidate(problem.source + COPY, "host"))


MODELS = {
    "a buffer that is assigned anew": (
        "self.register_buffer('mean', torch.zeros(8))",
        "def forward(self, x):\n    self.mean = self.mean * 0.9 + x.mean(0) * 0.1\n    return x - self.mean",
        "torch.rand(3, 8)",
    ),
    "dropout": ("self.d = nn.Dropout(0.3)", "def forward(self, x):\n    return self.d(x) * 2", "torch.randn(8, 16)"),
    "tokens": (
        "self.e, self.l = nn.Embedding(50, 16), nn.Linear(16, 50)",
        "def forward(self, tokens):\n    return self.l(torch.tanh(self.e(tokens)))",
        "torch.randint(0, 50, (4, 12))",
    ),
    "a loss": (
        "",
        "def forward(self, x, t):\n    return nn.functional.cross_entropy(x, t)",
        "torch.randn(64, 10), torch.randint(0, 10, (64,))",
    ),
    "a loss of probabilities": (
        "self.scale = nn.Parameter(torch.ones(4))",
        "def forward(self, x, t):\n    return nn.functional.binary_cross_entropy(x, t) * self.scale",
        "torch.rand(8, 4), torch.rand(8, 4)",
    ),
    "indices in a dict": (
        "self.l = nn.Linear(16, 32)",
        """
        def forward(self, x):
            values, indices = self.l(x).topk(3, -1)
            return {"values": values, "indices": indices, "positive": values > 0, "nothing": None, "three": 3}
        """,
        "torch.randn(8, 16)",
    ),
    "a number among the inputs": ("", "def forward(self, x, k):\n    return x.relu() * k", "torch.rand(4, 4), 2.0"),
    "its input in place": ("", "def forward(self, x):\n    return x.relu_()", "torch.randn(8, 4)"),
    "its input returned": ("", "def forward(self, x):\n    return x, x.t()", "torch.randn(8, 4)"),
    "random numbers": ("", "def forward(self, x):\n    return x + torch.randn_like(x)", "torch.randn(8, 4)"),
    "always zero": (
        "",
        "def forward(self, x):\n    x = x.amax(1, keepdim=True)\n    return torch.tanh(x - x.mean(1, keepdim=True))",
        "torch.randn(8, 16)",
    ),
    "frozen": (
        "self.l = nn.Linear(8, 8)\nself.l.weight.requires_grad_(False)",
        "def forward(self, x):\n    return self.l(x)",
        "torch.randn(4, 8)",
    ),
    "not differentiable": ("", "def forward(self, x):\n    return x.argmax(-1)", "torch.randn(8, 16)"),
    "one size only": (
        "self.w = nn.Parameter(torch.randn(6, 5))",
        "def forward(self, x):\n    return x.view(4, 6, 5) * self.w",
        "torch.randn(4, 30)",
    ),
    "a recurrent net": (
        "self.r = nn.GRU(6, 8, batch_first=True)",
        "def forward(self, x):\n    return self.r(x)[0][:, -1]",
        "torch.randn(4, 5, 6)",
    ),
    "constants of its own": (
        "self.t = torch.tensor([1.5, 2.5])\nself.register_buffer('m', torch.ones(2), persistent=False)",
        "def forward(self, x):\n    return x.float() * self.t + self.m + torch.arange(2, dtype=torch.float32)",
        "torch.randn(8, 2)",
    ),
    "a buffer that was expanded": (
        "self.register_buffer('k', torch.tensor([1.0, 3.0, 1.0]).expand(6, 1, 3))",
        "def forward(self, x):\n    return nn.functional.conv1d(x, self.k, groups=6).relu()",
        "torch.randn(2, 6, 9)",
    ),
    "logarithm of what may be negative": ("", "def forward(self, x):\n    return x.log()", "torch.rand(8, 4)"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_an_exact_copy_passes(name: str, tmp_path: Path) -> None:
    verdict = copy_of(problem_of(tmp_path, *MODELS[name]))
    assert verdict.passed, [f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed]


def test_what_a_verdict_holds() -> None:
    problem = load_problem(ADVERSARIAL / "models" / "scale_shift.py")
    candidate = load_candidate(ADVERSARIAL / "honest" / "cuda_kernel.py", "host")
    said: list[str] = []
    graph = capture(problem.model(), problem.inputs())
    verdict = verify(problem, candidate, graph=graph, options=Options(seeds=3), progress=lambda _, s: said.append(s))
    assert verdict.passed
    assert verdict.kernels == ("scale_shift",)
    assert verdict.library_calls == ()
    assert 0 <= verdict.max_error <= verdict.tolerance < 1e-5
    assert verdict.shapes_note == ""
    assert "got" in verdict.worst and "seed" in verdict.worst
    names = [check.name for check in verdict.checks]
    assert [name for stage in STAGES for name, _ in stage] == names[2:-1]
    assert set(names[2:-1]) <= set(said)
    seeds = next(check for check in verdict.checks if check.name == "seeds")
    assert seeds.detail.startswith("3 variants")
    assert all(check.seconds >= 0 for check in verdict.checks)


def test_the_worst_element_is_shown() -> None:
    problem = load_problem(ADVERSARIAL / "models" / "linear_softmax.py")
    verdict = verify(problem, load_candidate(ADVERSARIAL / "tricks" / "bfloat16_product.py", "host"))
    assert not verdict.passed
    assert verdict.max_error > verdict.tolerance
    for words in ("precision", "output 0", "at [", "got", "expected", "allowed", "seed"):
        assert words in verdict.worst


def test_a_large_model_is_verified_at_a_smaller_size(tmp_path: Path) -> None:
    problem = problem_of(
        tmp_path,
        "self.c = nn.Conv2d(8, 32, 3)",
        "def forward(self, x):\n    return torch.logsumexp(self.c(x), 1)",
        "torch.rand(64, 8, 128, 128)",
    )
    verdict = copy_of(problem)
    assert verdict.passed
    assert verdict.shapes_note.startswith("verified at batch ")
    assert verdict.shapes_note.endswith("instead of batch 64, 128x128")


def test_a_model_that_fails_is_refused(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "", "def forward(self, x):\n    raise ValueError('not today')", "torch.rand(2, 2)")
    with pytest.raises(Refused, match=r"Model.forward\(\) raised ValueError: not today"):
        copy_of(problem)


@pytest.mark.parametrize(
    ("new", "check"),
    [
        ("    def __init__(self):\n        raise ValueError('not built')", "constructs"),
        ("    def forward(self, x):\n        raise ValueError('not run')", "real tensors"),
    ],
)
def test_a_candidate_that_raises_fails_the_check_it_raised_in(new: str, check: str, tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "", "def forward(self, x):\n    return x.relu()", "torch.rand(4, 4)")
    candidate = load_candidate(problem.source + f"\n\nclass ModelNew(Model):\n{new}\n", "host")
    verdict = verify(problem, candidate)
    failed = [line for line in verdict.checks if not line.passed]
    assert failed[0].name == check
    assert "ValueError: not " in failed[0].detail
    assert failed[0].detail in verdict.worst


def test_flags_changed_by_a_candidate_are_put_back(tmp_path: Path) -> None:
    import torch

    problem = problem_of(tmp_path, "", "def forward(self, x):\n    return x.relu()", "torch.rand(4, 4)")
    text = "import time\n" + problem.source + "torch.set_default_dtype(torch.float64)\ntime.time = lambda: 0.0\n" + COPY
    verdict = verify(problem, load_candidate(text, "host"))
    failed = [line for line in verdict.checks if not line.passed]
    assert [line.name for line in failed] == ["PyTorch left alone"]
    assert "time.time" in failed[0].detail and "default type" in failed[0].detail
    import time

    assert time.time() > 1e9
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("every", [2, 3, 4, 5])
def test_bits_that_vary_in_the_original_may_vary(every: int, tmp_path: Path) -> None:
    """As where PyTorch adds by atomic operations: the last bit of every second, third… call is another one."""
    forward = f"""
    def forward(self, x):
        Model.calls = getattr(Model, "calls", 0) + 1
        return torch.tanh(x) * (1 + 1e-7 * (Model.calls % {every} == 0))
    """
    problem = problem_of(tmp_path, "pass", forward, "torch.rand(4, 8)")
    verdict = verify(problem, load_candidate(problem.source + COPY, "host"))
    checks = {check.name: check for check in verdict.checks}
    assert checks["same result again"].passed
    assert "so does the original's" in checks["same result again"].detail or every % 2 == 0  # its calls come in pairs
    assert checks["every element written"].passed and checks["nothing cached"].passed


def test_derivatives_that_loop_over_elements_are_given_up() -> None:
    x = torch.randn(2, 4096, requires_grad=True)
    patience = _Patience(0.2)
    with pytest.raises(TimeoutError), patience:  # under a mode, autograd takes a step for each of the 4096
        torch.autograd.grad(torch.cumprod(x, 1).sum(), x, create_graph=True)
    assert patience.spent
    with _Patience(60) as patience:
        torch.autograd.grad((x * x).sum(), x, create_graph=True)
    assert not patience.spent


@pytest.mark.parametrize("wrong", [False, True])
def test_derivatives_that_take_long_are_compared_at_small_sizes(wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differentiation, "_takes_long", lambda trial, variant: True)
    problem = problem_of(tmp_path, "pass", "def forward(self, x):\n    return torch.tanh(x)", "torch.rand(4, 8)")
    wrongly = COPY + "\n    def forward(self, x):\n        y = torch.tanh(x)\n        return y.detach() + 2 * (y - y.detach())\n"
    verdict = verify(problem, load_candidate(problem.source + (wrongly if wrong else COPY), "host"))
    (check,) = [check for check in verdict.checks if check.name == "gradients"]
    assert check.passed != wrong and "not at the given sizes" in check.detail


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_a_module_that_takes_another_way_under_a_dispatch_mode(tmp_path: Path) -> None:
    """An encoder in evaluation has a path of its own, with another type under autocast, but not where operators are watched."""
    layer = "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)"
    problem = problem_of(
        tmp_path, f"self.m = nn.TransformerEncoder({layer}, 1)", "def forward(self, x):\n    return self.m(x)", "torch.rand(2, 3, 8)"
    )
    emitted = compile_problem(problem, Options(target="host", gradients=False))[2]
    verdict = verify(problem, load_candidate(emitted.text, "host"))
    failed = [check for check in verdict.checks if not check.passed]
    assert not failed, failed[0].detail


def test_copies_run_as_what_they_are_compared_with(tmp_path: Path) -> None:
    """Under a dispatch mode PyTorch finds eigenvalues with their vectors, to other bits: copies of a copy are no other model."""
    forward = "def forward(self, x):\n    return torch.linalg.eigvalsh(self.w * x @ x.mT)"
    verdict = copy_of(problem_of(tmp_path, "self.w = nn.Parameter(torch.ones(()))", forward, "torch.randn(3, 6, 6)"))
    assert [check.name for check in verdict.checks if not check.passed] == []


def test_the_gradient_of_a_loss_shows_beside_many_scores(tmp_path: Path) -> None:
    """Its value is right, its gradient that of another class. The scores' cotangents are many, and no longer for that."""
    forward = """
        def forward(self, x, t):
            scores = self.scores(x)
            return scores, 1e-6 * nn.functional.cross_entropy(scores, t)
    """
    inputs = "torch.randn(4, 16), torch.randint(0, 2000, (4,))"
    problem = problem_of(tmp_path, "self.scores = nn.Linear(16, 2000)", forward, inputs)
    assert copy_of(problem).passed
    wrong = """

        class ModelNew(Model):
            def forward(self, x, t):
                scores, loss = super().forward(x, t)
                other = 1e-6 * nn.functional.cross_entropy(scores, (t + 1) % 2000)
                return scores, loss.detach() + other - other.detach()
    """
    verdict = verify(problem, load_candidate(problem.source + textwrap.dedent(wrong), "host"))
    assert "gradients" in [check.name for check in verdict.checks if not check.passed]


def test_a_gradient_that_is_off_by_little_is_seen(tmp_path: Path) -> None:
    """The references are given the cotangents that eager is given, or its error would be the difference between them."""
    forward = "def forward(self, x):\n    return torch.tanh(x * self.scale)"
    problem = problem_of(tmp_path, "self.scale = nn.Parameter(torch.ones(32))", forward, "torch.randn(16, 32)")
    wrong = """

        class ModelNew(Model):
            def forward(self, x):
                y = super().forward(x)
                return y.detach() + 1.0001 * (y - y.detach())
    """
    verdict = verify(problem, load_candidate(problem.source + textwrap.dedent(wrong), "host"))
    assert "gradients" in [check.name for check in verdict.checks if not check.passed]


def test_kernels_matter_on_values_that_the_model_takes(tmp_path: Path) -> None:
    """Of logarithms of what is drawn everything is NaN, with and without a kernel."""
    forward = "def forward(self, x):\n    return (x.log().softmax(0) * 3).softmax(1)"
    problem = problem_of(tmp_path, "", forward, "torch.rand(5, 12) + 0.1")
    emitted = compile_problem(problem, Options(target="host"))[2]
    assert emitted.text.count("_grad_kernel(") > 1  # one on the way to another
    verdict = verify(problem, load_candidate(emitted.text, "host"))
    failed = [check for check in verdict.checks if not check.passed]
    assert not failed, failed[0].detail


def test_kernels_matter_behind_a_gate_that_is_closed_as_built(tmp_path: Path) -> None:
    """All that the convolution gives lies where softshrink gives 0, whatever the kernels behind it make of their gradients."""
    init = "self.c = nn.Conv1d(3, 4, 3)\nself.c.weight.data *= 0.01"
    forward = """
        def forward(self, x):
            x = self.c(x)
            return (nn.functional.softshrink(x).softmax(-1) * 3).softmax(1), x.sum()
        """
    problem = problem_of(tmp_path, init, forward, "torch.randn(2, 3, 9)")
    emitted = compile_problem(problem, Options(target="host"))[2]
    assert emitted.text.count("_grad_kernel(") > 1  # one on the way to another
    verdict = verify(problem, load_candidate(emitted.text, "host"))
    failed = [check for check in verdict.checks if not check.passed]
    assert not failed, failed[0].detail


def test_results_that_share_memory_where_the_original_s_do_not(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "", "def forward(self, x):\n    y = x.tanh()\n    return y, y.clone(), y[1:]", "torch.randn(4, 6)")
    new = "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        y = x.tanh()\n        return y, {}, y[1:]\n"
    detail = "output 1 lies in the memory of output 0: not so with the original"
    for returned, wrong in (("y + 0", False), ("y", True)):
        verdict = verify(problem, load_candidate(problem.source + new.format(returned), "host"))
        failed = {check.name: check.detail for check in verdict.checks if not check.passed}
        assert list(failed) == ["nothing besides"] * wrong
        assert not wrong or failed["nothing besides"].startswith(detail)


def test_results_that_share_memory_at_another_offset_and_in_evaluation_alone(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "", "def forward(self, x):\n    y = x.tanh()\n    return y, y[1:].clone()", "torch.randn(4, 6)")
    new = """
class ModelNew(Model):
    def forward(self, x):
        y = x.tanh()
        return y, y[1:].clone() if self.training else y[1:]
"""
    verdict = verify(problem, load_candidate(problem.source + new, "host"))
    assert [check.name for check in verdict.checks if not check.passed] == ["nothing besides"]


def test_a_result_of_no_elements_has_no_kernel(tmp_path: Path) -> None:
    """None that could matter: the operator stays PyTorch's."""
    init = "self.register_buffer('none', torch.zeros(0, 6))"
    forward = "def forward(self, x):\n    return torch.cat([self.none * 2, x.tanh()]).sum(0), self.none + 1"
    problem = problem_of(tmp_path, init, forward, "torch.randn(4, 6)")
    emitted = compile_problem(problem, Options(target="host"))[2]
    assert len(emitted.kernels) == 1
    verdict = verify(problem, load_candidate(emitted.text, "host"))
    assert verdict.passed, [f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed]


@pytest.mark.parametrize("wrong", [False, True])
def test_whole_numbers_are_as_honest_results_have_them(wrong: bool, tmp_path: Path) -> None:
    """What lies within rounding of a whole number may be on either side of it, on elements too where the references agree. So few are;
    more are not."""
    forward = "def forward(self, x):\n    return (x * 1.7).tanh().mul(60000).to(torch.int32)"
    problem = problem_of(tmp_path, "", forward, "torch.rand(4, 4000)")
    other = "(1.7 * x.double()).tanh().float() * 60000" + " + 0.1" * wrong  # rounded otherwise
    new = f"\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return ({other}).to(torch.int32)\n"
    verdict = verify(problem, load_candidate(problem.source + new, "host"))
    failed = {check.name for check in verdict.checks if not check.passed}
    assert bool(failed) == wrong, failed


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_are_compared_beside_whole_numbers(wrong: bool, tmp_path: Path) -> None:
    """A result of integers has no gradient, the one beside it has."""
    init, forward = "self.l = nn.Linear(6, 5)", "def forward(self, x):\n    y = self.l(x)\n    return y.tanh(), y.argmax(-1), y > 0"
    problem = problem_of(tmp_path, init, forward, "torch.randn(4, 6)")
    new = COPY if not wrong else "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        y, *others = super().forward(x)\n"
    new += "        return y.detach() + (y - y.detach()) * 0.5, *others\n" if wrong else ""
    verdict = verify(problem, load_candidate(problem.source + new, "host"))
    (gradients,) = [check for check in verdict.checks if check.name == "gradients"]
    assert gradients.status == ("failed" if wrong else "held"), gradients


@pytest.mark.parametrize("call", ["torch.var_mean(x, 0)", "torch.std_mean(x, dim=(0, 1), keepdim=True)"])
def test_a_mean_by_welford_may_be_nan_or_infinite(call: str, tmp_path: Path) -> None:
    """Which of both it is for an Inf depends on where that stands, with PyTorch as with us."""
    text = f"""
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return {call}

    def get_inputs():
        return [torch.randn(8, 6)]

    def get_init_inputs():
        return []
    """
    (tmp_path / "model.py").write_text(textwrap.dedent(text))
    run = optimize(load_problem(tmp_path / "model.py"), Options(target="host"))
    assert run.verdict.passed and not run.degraded, run.verdict.worst
