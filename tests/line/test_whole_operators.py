"""Operators that are captured whole keep PyTorch's own meaning and derivatives; what stands beside them in a model does not matter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.autograd.flow import trainable
from fusewright.autograd.trace import gradient_graph
from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.errors import Unsupported
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.frontend.trees import Arguments, arguments_of
from fusewright.ir.graph import Graph
from fusewright.ir.interpret import interpret
from fusewright.ops.lower import lower
from fusewright.options import Options
from fusewright.schedule.planner import plan
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify


class Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


def targets(graph: Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if not node.is_leaf]


@pytest.mark.parametrize("function", [F.hardshrink, F.softshrink, torch.special.entr])
def test_an_operator_with_a_record_has_it_and_a_gradient_by_kernels(function: Callable[..., Any]) -> None:
    graph = capture(Called(function), [torch.randn(5, 6)])
    (node,) = [node for node in graph.nodes if not node.is_leaf]
    assert function.__name__ in str(node.target)
    assert not plan(lower(graph)).calls
    gradient = gradient_graph(graph, [node], ["given_0"], [node.name], ["given_0"])
    assert gradient is not None
    assert not plan(lower(gradient)).calls


def test_a_loss_that_drops_nan_drops_it() -> None:
    loss, x = Called(lambda x, t: F.multi_margin_loss(x, t, p=2)), torch.randn(4, 5)
    x[1, 2] = torch.nan
    given = [x, torch.tensor([0, 1, 4, 2])]
    (found,) = interpret(capture(loss, given), loss, given)
    assert torch.isfinite(found)
    torch.testing.assert_close(found, loss(*given))


def test_what_has_no_derivative_says_so_as_in_pytorch() -> None:
    model, given = Called(torch.heaviside), [torch.randn(4, requires_grad=True), torch.zeros(())]
    graph = capture(model, given)
    assert not plan(lower(graph)).calls
    (found,) = interpret(graph, model, given)
    assert found.requires_grad
    with pytest.raises(RuntimeError, match="not implemented"):
        found.sum().backward()


class Counted(nn.Module):
    def __init__(self, count: Tensor) -> None:
        super().__init__()
        self.register_buffer("count", count)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x / self.count


def test_a_changed_buffer_may_have_two_names() -> None:
    count = torch.zeros(())
    model = nn.Sequential(Counted(count), Counted(count))
    graph, x = capture(model, [torch.randn(4, 5)]), torch.randn(4, 5)
    changed = [output.path for output in graph.outputs if output.kind == "buffer"]
    assert len(changed) == 1
    before = float(count)
    *_, found = interpret(graph, model, [x])
    torch.testing.assert_close(found, x / (before + 1) / (before + 2))


def test_numbers_drawn_in_the_size_of_a_value_have_no_gradient() -> None:
    model = Called(lambda x: torch.softmax(x + torch.rand_like(x) * torch.randn_like(x), -1))
    graph = capture(model, [torch.randn(4, 5)])
    found = trainable(graph, model)
    assert {"given_0", "softmax"} <= found
    assert not any("rand" in name for name in found)


def test_an_input_that_forward_changes_is_not_trained() -> None:
    model = Called(lambda x, y: x.add_(y).relu())
    assert "given_0" not in trainable(capture(model, [torch.randn(4), torch.randn(4)]), model)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x[x > 0] * 2, "the values of a tensor become a number or a size"),
        (lambda x: x.foo(), "AttributeError: 'Tensor' object has no attribute 'foo'"),
        (lambda x: torch.linalg.lstsq(x, x)[1], "the shape of what aten.linalg_lstsq.default gives depends on the values of a tensor"),
        (lambda x: x * torch.equal(x, x + 1), "makes a number of the values of a tensor here"),
    ],
)
def test_what_depends_on_values_is_refused_in_words(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        capture(Called(function), [torch.randn(4, 5)])


CTC = {
    "numbers": lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (9, 9, 8), (4, 0, 3)),
    "numbers in lists": lambda x, t: F.ctc_loss(x.log_softmax(-1), t, [9, 9, 8], [4, 4, 4], blank=2, reduction="sum"),
    "of each": lambda x, t: F.ctc_loss(x.log_softmax(-1), t, (9, 2, 8), (4, 4, 3), reduction="none", zero_infinity=True),
    "labels one after another": lambda x, t: F.ctc_loss(x.log_softmax(-1), t.flatten()[:10], (9, 9, 8), (4, 3, 3)),
    "tensors": lambda x, t: F.ctc_loss(x.log_softmax(-1), t, torch.tensor([9, 9, 8]), torch.tensor([4, 3, 4])),
    "of one": lambda x, t: F.ctc_loss(x[:, 0].log_softmax(-1), t[0], torch.tensor(9), torch.tensor(4)),
}


@pytest.mark.parametrize("case", CTC, ids=lambda name: name.replace(" ", "-"))
def test_a_ctc_loss_is_the_original_operator(case: str) -> None:
    """Its lengths are numbers or tensors: PyTorch's tracer takes the sizes of its results for a matter of values."""
    model, given = Called(CTC[case]), [torch.randn(9, 3, 7), torch.tensor([[1, 3, 3, 4], [5, 6, 1, 3], [4, 1, 1, 6]])]
    (found,) = interpret(capture(model, given), model, given)
    torch.testing.assert_close(found, model(*given))


BESIDE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3, padding=1)

    def forward(self, x, y):
        return torch.relu(self.conv(x)) - {other}


def get_inputs():
    return [torch.randn(32, 16, 128, 128), torch.randn(32, 32, 128, 128)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("other", ["y.mean((2, 3), keepdim=True)", "y.cumsum(3)", "y.softmax(1)"])
def test_a_convolution_beside_what_its_reader_reduces(other: str, tmp_path: Path) -> None:
    """The reader has the statistics of another tensor only once it has gone over its rows: the convolution's kernel has not."""
    (tmp_path / "model.py").write_text(BESIDE.format(other=other))
    made = compile_problem(load_problem(tmp_path / "model.py"), Options())[1]
    assert made.kernels


UNSTEADY = """
import itertools

import torch
from torch import nn

COUNT = itertools.count()


class Model(nn.Module):
    def forward(self, x):
        return x.sum() {given}


def get_inputs():
    return [torch.randn(4, 5)]


def get_init_inputs():
    return []


class ModelNew(Model):
    def forward(self, x):
        return x.sum() {new}
"""


@pytest.mark.parametrize(("given", "passes"), [("+ (1000.0 * (next(COUNT) // 12) if len(x) == 0 else 0.0)", True), ("", False)])
def test_what_the_original_does_not_give_again_is_asked_of_nobody(given: str, passes: bool, tmp_path: Path) -> None:
    """PyTorch returns memory that nobody wrote from `multi_margin_loss` of no samples. What it gives each time is asked for."""
    (tmp_path / "model.py").write_text(UNSTEADY.format(given=given, new="+ (3.0 if len(x) == 0 else 0.0)"))
    problem = load_problem(tmp_path / "model.py")
    verdict = verify(problem, load_candidate(problem.source, "host"))
    (check,) = [check for check in verdict.checks if check.name == "outside the plan"]
    assert check.passed == passes, check


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[1]
        if width not in self.cache:
            self.cache[width] = torch.arange(width, dtype=x.dtype)
        return x + self.cache[width]


def test_a_container_that_forward_fills_is_refused_by_name_and_left_empty() -> None:
    model = Cached()
    with pytest.raises(Unsupported, match=r"keeps state in self\.cache, a container that it changes"):
        capture(model, [torch.randn(4, 5)])
    assert not model.cache


def test_a_complex_tensor_that_is_written_to_has_derivatives_only_in_the_original() -> None:
    def low_pass(x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros_like(spectrum)
        kept[:, :3] = spectrum[:, :3]
        return torch.relu(torch.fft.irfft(kept, n=10))

    assert capture(Called(low_pass), [torch.randn(4, 10)]).own_gradients
    assert not capture(Called(torch.relu), [torch.randn(4, 10)]).own_gradients


def takes_several(first: Tensor, second: Any = None, *rest: Tensor, scale: float = 2.0) -> None: ...


def test_what_can_only_be_named_is_no_positional_argument() -> None:
    signature = inspect.signature(takes_several)
    assert arguments_of(signature, (1, 2, 3, 4), {}) == Arguments((1, 2, 3, 4), {})
    assert arguments_of(signature, (1, None, 3), {"scale": 5.0}) == Arguments((1, None, 3), {"scale": 5.0})


WITHOUT_GRADIENTS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        total = torch.empty_like(x)
        torch.add(x, y, out=total)  # which PyTorch does not differentiate
        return torch.relu(total)


def get_inputs():
    return [torch.randn(4, 5), torch.randn(4, 5)]


def get_init_inputs():
    return []
"""


def test_where_the_original_has_no_gradients_nothing_is_degraded(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(WITHOUT_GRADIENTS)
    run = optimize(load_problem(tmp_path / "model.py"), Options(target="host"))
    assert run.verdict.passed
    assert not run.degraded
    assert any("no gradients of the original's" in note for note in run.report["notes"])


def test_a_decoder_finds_out_nothing_about_its_mask() -> None:
    """PyTorch compares the values of a mask with those of a causal one, for a hint."""
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    called, given = Called(lambda t, m: model(t, m, tgt_mask=mask)), [torch.randn(2, 4, 8), torch.randn(2, 5, 8)]
    called.model = model
    (found,) = interpret(capture(called, given), called, given)
    torch.testing.assert_close(found, called(*given))


def test_gradients_that_forward_takes_are_refused_with_the_line() -> None:
    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(torch.tanh(x).sum(), x)[0]

    with pytest.raises(Unsupported, match=r"test_whole_operators\.py:\d+: forward takes gradients itself"):
        capture(Called(slope), [torch.randn(4, 5)])


def test_values_that_become_a_number_are_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(BESIDE.format(other="x.mean().item()"))
    problem = load_problem(tmp_path / "model.py")
    with pytest.raises(
        Unsupported, match=r"model\.py:12: the values of a tensor become a number or a size here \(`return"
    ):
        capture(problem.model(), [torch.randn(2, 16, 8, 8), torch.randn(2, 32, 8, 8)], str(problem.path))


OVERFLOWS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return (x * x).mean()


def get_inputs():
    return [torch.randn(4, 300).half() * 2000]


def get_init_inputs():
    return []
"""


def test_a_kernel_whose_result_overflows_on_the_given_values_matters_on_others(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OVERFLOWS)
    run = optimize(load_problem(tmp_path / "model.py"), Options(target="host"))
    assert run.verdict.passed, run.verdict.worst
