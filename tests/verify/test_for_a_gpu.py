"""What verification does because a GPU fails in other ways than a CPU, seen without one."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.frame import problem_of
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import fusewright.verify.observe
from fusewright.driver.pipeline import compile_problem
from fusewright.errors import Short
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.checks import Outcome, Trial, kernels, values
from fusewright.verify.observe import cotangents, filled_memory, is_misaligned, observe, settle
from fusewright.verify.reference import Rounding, in_float64
from fusewright.verify.shrink import Shapes, work
from fusewright.verify.subjects import Subjects, subjects
from fusewright.verify.variants import LAYOUTS, Variant
from fusewright.verify.verifier import _timed, _trial

LOSS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x, t):
        return nn.functional.binary_cross_entropy(x, t) * self.scale


def get_inputs():
    return [torch.rand(8, 4), torch.rand(8, 4)]


def get_init_inputs():
    return []


class ModelNew(Model):
    ...
"""
SIZES = ((8, 4), (8, 4))
SMALL = ((2, 4), (2, 4))


def with_a_twin(folder: Path, text: str = LOSS) -> Subjects:
    """The subjects as they are on a GPU, but that all of them are on the CPU."""
    (folder / "model.py").write_text(text)
    problem, candidate = load_problem(folder / "model.py"), load_candidate(text, "host")
    found = subjects(problem, candidate, candidate.build_model(problem))
    return dataclasses.replace(found, twin=problem.model())


def test_sizes_are_judged_on_the_models_own_device() -> None:
    seen = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, device="meta"))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.device.type)
            return x * self.weight

    assert work(Model(), [torch.ones(2, 4)], ((2, 4),)) is not None
    assert seen == ["meta"]


def test_what_the_original_refuses_on_the_cpu_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_a_twin(tmp_path)
    trial = Trial(found, Shapes(SIZES, SIZES, SMALL, {}), (), True)
    ran: list[nn.Module] = []
    right = Subjects.observed
    monkeypatch.setattr(Subjects, "observed", lambda self, model, *rest: (ran.append(model), right(self, model, *rest))[1])
    outside = Variant("test", SIZES, distribution="normal")
    assert trial.compare(outside) is None and trial.skipped == [outside] and not trial.errors
    assert ran == [found.twin]
    assert trial.compare(dataclasses.replace(outside, layout="channels last")) is None
    assert ran == [found.twin]  # the same values are tried once
    assert trial.compare(Variant("test", SIZES)) is not None
    assert found.new in ran and ran.count(found.twin) == 1  # the file's own values are not in doubt


def test_a_twin_that_would_take_long_is_asked_about_other_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No smaller sizes are known where values fit one size only, such as indices of one of the inputs."""
    text = LOSS.replace("nn.functional.binary_cross_entropy(x, t)", "x[t[:, 0]]")
    text = text.replace("torch.rand(8, 4), torch.rand(8, 4)", "torch.rand(8, 4), torch.randint(4, 8, (8, 4))")
    found = dataclasses.replace(with_a_twin(tmp_path, text), shrunk=SIZES)
    monkeypatch.setattr(Subjects, "_quick", lambda self, sizes, twin: False)
    variant = Variant("test", SIZES, distribution="normal")
    found.inputs(variant)
    with pytest.raises(IndexError):
        found.twisted("one dimension more").inputs(variant)


def test_a_twin_that_would_take_long_runs_at_smaller_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = dataclasses.replace(with_a_twin(tmp_path), shrunk=SMALL)
    monkeypatch.setattr(Subjects, "_quick", lambda self, sizes, twin: sizes == SMALL)
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        found.inputs(Variant("test", SIZES, distribution="normal"))
    monkeypatch.setattr(Subjects, "_quick", lambda self, sizes, twin: False)
    found.inputs(Variant("test", SIZES, distribution="normal", seed=1))  # nobody can say


def test_what_the_cpu_lacks_says_nothing(tmp_path: Path) -> None:
    text = LOSS.replace("        return nn", "        raise RuntimeError(\"not implemented for 'Half'\")\n        return nn")
    with_a_twin(tmp_path, text).inputs(Variant("test", SIZES, distribution="normal"))


def test_a_rounded_reference_keeps_its_bounds() -> None:
    for name in ("sigmoid", "tanh", "sigmoid_"):
        with in_float64(torch.float32, Rounding(1e-2, 1e-2, 1e-2)):
            assert float(getattr(torch.full((99,), 40.0, dtype=torch.float64), name)().max()) == 1.0
    with in_float64(torch.float32, Rounding(1e-2, 1e-2, 1e-2)):
        assert float(torch.softmax(torch.tensor([[40.0, 0.0]] * 99, dtype=torch.float64), 1).max()) == 1.0


def test_uninitialised_integers_may_be_made_harmless() -> None:
    with filled_memory(torch.device("cpu"), whole=1):
        assert torch.empty(3, dtype=torch.int64).tolist() == [1, 1, 1]
    with filled_memory(torch.device("cpu")):
        assert int(torch.empty(1, dtype=torch.int64)) > 2**40


def test_no_kernel_leaves_what_an_assert_of_the_device_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(with_a_twin(tmp_path), Shapes(SIZES, SIZES, SMALL, {}), (), True)
    assert [whole for _, whole in kernels._left_unwritten(trial, Variant("test", SIZES))] == [0, 1]
    monkeypatch.setattr(Subjects, "device", torch.device("cuda"))
    monkeypatch.setattr(Subjects, "operators", lambda self, variant: {"binary_cross_entropy"})
    assert kernels._left_unwritten(trial, Variant("test", SIZES)) == [(0.5, 0), (0.25, 1)]


def test_references_that_do_not_fit_are_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(with_a_twin(tmp_path), Shapes(SIZES, SIZES, SMALL, {}), (), True)
    right = Subjects.references

    def references(self: Subjects, variant: Variant, *rest: Any, **more: Any) -> Any:
        if variant.sizes == SIZES:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(self, variant, *rest, **more)

    monkeypatch.setattr(Subjects, "references", references)
    outcome = values.compared(trial, [Variant("seeds", SIZES)])
    assert outcome.passed and "1 variants" in outcome.detail and "do not fit in memory" in outcome.detail
    assert not trial.skipped and [f.variant.sizes for f in trial.findings] == [SMALL]


def test_as_many_references_are_drawn_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is wrong stays wrong where memory is short."""
    found, variant = with_a_twin(tmp_path), Variant("test", SIZES)
    found.set_state(variant)
    references, right, asked = found.references(variant), Subjects.run_exact, []
    wrong = {name: value + 1e-6 for name, value in references.eager.tensors.items()}

    def run_exact(self: Subjects, variant: Variant, rounding: Any = None, seed: int = 0, part: Any = None) -> Any:
        asked.append(seed)
        if seed > 104:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(self, variant, rounding, seed)

    monkeypatch.setattr(Subjects, "run_exact", run_exact)
    misses = found.judge(dataclasses.replace(references.eager, tensors=wrong), references, variant, True)
    assert not misses["output 0"].passed and asked == [100, 103, 104, 105, 104, 105, 104, 101]


def test_given_sizes_that_do_not_fit_are_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Subjects.run_eager

    def run_eager(self: Subjects, variant: Variant) -> Any:
        if variant.sizes == SIZES:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(self, variant)

    monkeypatch.setattr(Subjects, "run_eager", run_eager)
    trial = _trial(with_a_twin(tmp_path), None, Options(), True)
    assert trial.shapes.main == trial.shapes.small != SIZES and "do not fit" in trial.shapes.note


def test_a_check_that_runs_out_of_memory_is_asked_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    asked: list[int] = []

    def question(enough: int) -> Outcome:
        asked.append(enough)
        if len(asked) < enough:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Outcome(True, "fine")

    assert _timed("seeds", lambda: question(2)).passed and len(asked) == 2
    asked.clear()
    with pytest.raises(Short, match="memory ran out"):  # which says nothing about the candidate
        _timed("seeds", lambda: question(3))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_what_autograd_left_in_a_model_does_not_keep_it_from_being_copied() -> None:
    model = nn.utils.weight_norm(nn.Linear(3, 2))
    before = model(torch.ones(1, 3))
    assert not model.weight.is_leaf
    settle(model)
    again = copy.deepcopy(model)
    assert torch.equal(again(torch.ones(1, 3)), before) and model.weight_v.requires_grad


def test_attention_is_handed_nothing_that_begins_between_16_bytes() -> None:
    """PyTorch's kernel for float32 reads it by 16 bytes all the same: no error, and the GPU is lost."""

    class Attention(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(q, k, value=v) + q

    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is nn.functional.scaled_dot_product_attention:
                handed.extend((*args, *(kwargs or {}).values()))
            return func(*args, **(kwargs or {}))

    handed: list[Any] = []
    straight = [torch.randn(2, 3, 8, 4) for _ in range(3)]
    aside = [LAYOUTS["misaligned by one element"](x) for x in straight]
    assert all(map(is_misaligned, aside)) and not any(map(is_misaligned, straight))
    with Seen():
        found = observe(Attention(), aside, derivatives=1)
    assert len(handed) == 3 and not any(map(is_misaligned, handed))
    expected = observe(Attention(), straight, derivatives=1)
    for name, value in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], value)


def test_a_gradient_between_the_elements_of_a_sample_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large table's gradient a few rows are not 0: whether they are the right ones shows in sums of all."""
    monkeypatch.setattr(fusewright.verify.observe, "SAMPLE", 64)
    table, ids = nn.Parameter(torch.randn(1000, 3)), torch.tensor([107, 400, 993])

    class Picked(nn.Module):
        def __init__(self, rows: torch.Tensor) -> None:
            super().__init__()
            self.table, self.rows = table, rows

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table[self.rows] * x

    right, wrong = (observe(Picked(rows), [torch.ones(3, 3)], derivatives=1) for rows in (ids, ids - 50))
    name = "gradient of table"
    assert right.tensors[name].numel() < 150 and not torch.equal(right.tensors[name], wrong.tensors[name])
    total = (right.tensors[name][64:] * 47**0.5).sum()  # one in 47, and the sums of 47
    assert torch.allclose(total, torch.stack([x.sum() for x in cotangents([torch.empty(3, 3)])]).sum(), rtol=1e-5)


def test_a_kernel_matters_that_has_nothing_to_say_about_a_piece_of_a_mask(tmp_path: Path) -> None:
    """Of a piece that leaves nothing every softmax is NaN, with the kernel and without it."""
    init = "self.register_buffer('lowest', torch.tensor(float('-inf')))"
    mask = "torch.cat([torch.zeros(2, 64, 60), torch.ones(2, 64, 4)], 2)"
    problem = problem_of(tmp_path, "torch.softmax(x.masked_fill(y == 0, self.lowest), -1)", "torch.randn(2, 64, 64)", mask, init=init)
    candidate = load_candidate(compile_problem(problem, Options(gradients=False))[2].text, "host")
    found = subjects(problem, candidate, candidate.build_model(problem))
    whole, piece = ((2, 64, 64), (2, 64, 64)), ((2, 4, 4), (2, 4, 4))
    trial = Trial(found, Shapes(whole, whole, piece, {}), (), True)
    assert trial.compare(Variant("test", piece)) is not None
    assert found.run_eager(Variant("test", piece)).tensors["output 0"].isnan().all()
    outcome = kernels.matter(trial)
    assert trial.launched and outcome.passed, outcome


def test_where_the_original_has_no_number_nothing_is_compared(tmp_path: Path) -> None:
    """Of what was drawn for the sake of its size; what a NaN that was put in makes of it is compared as ever."""
    text = LOSS.replace("nn.functional.binary_cross_entropy(x, t) * self.scale", "torch.log(-x.abs() - 1) * self.scale")
    text = text.replace("    ...", "    def forward(self, x, t):\n        return torch.zeros_like(x)")
    trial = Trial(with_a_twin(tmp_path, text), Shapes(SIZES, SIZES, SMALL, {}), (), True)
    drawn, put_in = Variant("distributions", SIZES), Variant("non-finite", SIZES)
    for variant in (drawn, put_in):
        assert trial.compare(variant) is not None
    assert {finding.variant for finding in trial.findings} == {put_in}
    assert not any(finding.miss.passed for finding in trial.findings)
