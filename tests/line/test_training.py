"""What a file does where gradients are asked for, and how tuning chooses it, with a clock that says what everything costs."""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from line.test_tune import CHAIN, Prices, forward_only
from line.test_tune import prices as prices  # the fixture
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.driver import pipeline
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, convolutions
from fusewright.driver.tuning.training import EAGER, EVERY_KERNEL, NO_KERNEL, Step, candidates
from fusewright.driver.tuning.tune import Tuned, key, tune
from fusewright.emit import Emitted
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.attention_fusion import attentions
from fusewright.schedule.training import KERNELS, KERNELS_FORWARD, LIBRARY_BACKWARD, PYTORCH, UNTRAINED, WHOLE, Training
from fusewright.verify.candidate import Candidate, load_candidate
from fusewright.verify.verifier import verify

# A norm and a softmax, and a product of the library between them.
TWO = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "torch.tanh(self.norm(x.mean(1)))").replace(
    "self.lin =", "self.norm = nn.LayerNorm(16)\n        self.lin ="
).replace("nn.Linear(14, 12)", "nn.Linear(16, 12)")

# The second kernel reads what the first one made, which PyTorch's operators leave as x lies: transposed.
TRANSPOSED = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "torch.tanh(x.mT * self.scale)").replace(
    "torch.softmax(self.lin(y), -1)", "torch.sigmoid(self.lin(y) + y.sum(-1, keepdim=True)) * y"
).replace("self.lin = nn.Linear(14, 12)", "self.scale = nn.Parameter(torch.rand(16))\n        self.lin = nn.Linear(16, 16)")

# Kernels write the running statistics: PyTorch's operators cannot stand for all that the region does.
NORMED = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "torch.tanh(self.norm(self.conv(x))).amax(1)").replace(
    "self.lin =", "self.norm = nn.BatchNorm2d(16)\n        self.lin ="
)

ALONE = CHAIN.replace("torch.softmax(self.lin(y), -1)", "y").replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "self.conv(x)")


def front_of(text: str, folder: Path, **options: Any) -> Front:
    (folder / "model.py").write_text(text)
    return read_problem(load_problem(folder / "model.py"), Options(target="host", **options))


def loaded(emitted: Emitted) -> Candidate:
    return load_candidate(emitted.text, "host", name="new.py")


def launched(candidate: Candidate, front: Front) -> tuple[list[str], list[str]]:
    """By a call without gradients, and by a training step after the first."""
    module, inputs = candidate.build_model(front.problem), front.problem.inputs()
    Step(module, inputs)()
    with candidate.launches() as calls, torch.no_grad():
        module(*inputs)
    with candidate.launches() as steps:
        Step(module, inputs)()
    return calls, steps


def holds(front: Front, emitted: Emitted) -> bool:
    return verify(front.problem, loaded(emitted), graph=front.graph, options=Options(target="host")).passed


def tuned(front: Front, prices: Prices) -> Tuned:
    return tune(front.problem, forward_only(front), prices, "host", seconds=0.0, trained=front.finish)


# ---- what is predicted ----


class Operators(TorchDispatchMode):
    """The operators of PyTorch that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_what_has_no_kernels_backward_is_not_computed_twice(tmp_path: Path) -> None:
    """A convolution of ours by itself: backward is the library's, of what forward read."""
    front = front_of(ALONE, tmp_path)
    library = Training(own_weights=frozenset())  # a kernel for the gradient of its weight is another matter
    _, emitted = front.finish(Choices(own=convolutions(front.graph), training=library))
    assert set(emitted.training.values()) == {LIBRARY_BACKWARD}
    candidate = loaded(emitted)
    calls, steps = launched(candidate, front)
    assert calls and calls == steps
    with Operators() as operators:
        Step(candidate.build_model(front.problem), front.problem.inputs())()
    assert "aten.convolution_backward.default" in operators.seen and "aten.convolution.default" not in operators.seen
    assert holds(front, emitted)
    for name, training in candidates(emitted):
        if training.own_weights is not None:
            continue
        _, left = front.finish(Choices(own=convolutions(front.graph), training=training))
        assert set(left.training.values()) == {PYTORCH}, name
        assert not launched(loaded(left), front)[1] and holds(front, left), name


def test_kernels_backward_are_used_where_there_are_some(tmp_path: Path) -> None:
    front = front_of(TWO, tmp_path)
    _, emitted = front.finish(Choices())
    assert set(emitted.training.values()) == {KERNELS} and "by_pytorch=True" not in emitted.text
    calls, steps = launched(loaded(emitted), front)
    assert calls and any(name.endswith("_grad") for name in steps)


def test_training_by_the_original_asks_nothing_else_first(tmp_path: Path) -> None:
    """The original is right whatever the model is by now: its guards cost a training step nothing."""
    front = front_of(TWO, tmp_path)
    candidate = loaded(front.finish(Choices(training=Training(original=True)))[1])
    module, space = candidate.build_model(front.problem), vars(candidate.module)
    module(*front.problem.inputs()).sum().backward()
    looked, follow = list[Any](), space["_follow"]
    space["_follow"] = lambda model: looked.append(model) or follow(model)
    module(*front.problem.inputs())
    assert not looked
    with candidate.launches() as seen, torch.no_grad():
        module(*front.problem.inputs())
    assert looked and seen


def test_without_gradients_a_frozen_model_infers(tmp_path: Path) -> None:
    """Nothing requires a gradient: the kernels of inference run, though gradients are recorded."""
    front = front_of(TWO, tmp_path)
    candidate = loaded(front.finish(Choices(training=Training(original=True)))[1])
    module = candidate.build_model(front.problem).requires_grad_(False)
    with candidate.launches() as seen, torch.enable_grad():
        module(*front.problem.inputs())
    assert seen


@pytest.mark.parametrize("original", [False, True])
def test_who_only_runs_forward_has_the_kernels(original: bool, tmp_path: Path) -> None:
    """With gradients enabled, too: until there is a backward, nobody trains."""
    front = front_of(ALONE, tmp_path)
    regions = frozenset(front.finish(Choices(own=convolutions(front.graph)))[1].training)
    training = Training(original=True) if original else Training(by_pytorch=regions)
    candidate = loaded(front.finish(Choices(own=convolutions(front.graph), training=training))[1])
    module, inputs = candidate.build_model(front.problem), front.problem.inputs()
    with candidate.launches() as seen:
        module(*inputs)
        result = module(*inputs)
    assert len(seen) == 2 * len(set(seen))
    result.sum().backward()
    with candidate.launches() as seen:
        module(*inputs)
    assert not seen


ATTENTION = CHAIN.replace("torch.softmax(self.lin(y), -1)", "(lambda z: torch.softmax(z @ z.mT, -1) @ z)(self.lin(y))")


def test_kernels_that_only_training_launches_stay_there(tmp_path: Path) -> None:
    """Where attention has a kernel, its steps run in training alone: by PyTorch's operators, nothing would launch them."""
    front = front_of(ATTENTION, tmp_path)
    ours = Choices(own=attentions(front.graph))
    made, predicted = front.finish(ours)
    assert made.shortcuts
    every = replace(ours, training=Training(by_pytorch=frozenset(predicted.training)))
    _, emitted = front.finish(every)
    assert KERNELS_FORWARD in emitted.training.values()
    assert holds(front, emitted)


def test_what_the_original_trains_has_no_steps_of_attention(tmp_path: Path) -> None:
    front = front_of(ATTENTION, tmp_path)
    ours = Choices(own=attentions(front.graph))
    _, predicted = front.finish(ours)
    _, emitted = front.finish(replace(ours, training=Training(original=True)))
    assert set(emitted.launched) < set(predicted.launched) and any("attention" in name for name in emitted.launched)
    calls, steps = launched(loaded(emitted), front)
    assert any("attention" in name for name in calls) and not steps
    assert holds(front, emitted)


def test_what_nobody_trains_runs_its_kernels_always(tmp_path: Path) -> None:
    front = front_of(ALONE, tmp_path, forward_only=True)
    candidate = loaded(front.finish(Choices(own=convolutions(front.graph)))[1])
    assert all(launched(candidate, front))


def kernels_of_gradients(front: Front, region: str) -> list[str]:
    """Those that backward of regions with this in their name launches."""
    text = front.finish(Choices())[1].text
    functions = re.findall(rf"^def \w*{region}\w*_grad\(.*?(?=\n\n\n)", text, flags=re.MULTILINE | re.DOTALL)
    return [name for function in functions for name in re.findall(r'_launch\("(\w+)"', function)]


# ---- every choice is right ----


@pytest.mark.parametrize("text", [TWO, TRANSPOSED, NORMED, ALONE], ids=["two", "transposed", "normed", "alone"])
def test_every_candidate_for_training_is_right(text: str, tmp_path: Path) -> None:
    front = front_of(text, tmp_path)
    _, predicted = front.finish(Choices())
    found = candidates(predicted)
    assert found[-1][1].original if predicted.training else not found
    for name, training in found:
        _, emitted = front.finish(Choices(training=training))
        assert holds(front, emitted), name
        calls, steps = launched(loaded(emitted), front)
        assert calls and (not steps or not training.original)
        for region in training.by_pytorch:
            assert emitted.training[region] in (PYTORCH, KERNELS_FORWARD)
            assert not set(kernels_of_gradients(front, region)) & set(steps)


def test_kernels_read_what_pytorch_made_as_it_should_lie(tmp_path: Path) -> None:
    front = front_of(TRANSPOSED, tmp_path)
    _, predicted = front.finish(Choices())
    first = next(iter(predicted.training))
    assert first in predicted.referable
    text = front.finish(Choices(training=Training(by_pytorch=frozenset({first}))))[1].text
    assert ".contiguous()" in text.split(f"def {first}_reference")[1].split("\n\n\n")[0].splitlines()[-1]


def test_running_statistics_are_written_by_kernels(tmp_path: Path) -> None:
    front = front_of(NORMED, tmp_path)
    _, predicted = front.finish(Choices())
    norm = next(name for name in predicted.training if "norm" in name)
    assert norm not in predicted.referable
    _, emitted = front.finish(Choices(training=Training(by_pytorch=frozenset({norm}))))
    assert emitted.training[norm] == KERNELS_FORWARD
    _, steps = launched(loaded(emitted), front)
    assert any("norm" in name for name in steps)


# ---- what tuning chooses ----


def test_kernels_backward_stay_where_they_are_faster(tmp_path: Path, prices: Prices) -> None:
    found = tuned(front_of(TWO, tmp_path), prices)
    assert not found.choices.plain and found.choices.training.by_pytorch == frozenset() and not found.choices.training.original
    times = dict(found.steps)
    assert times[EVERY_KERNEL] < times[NO_KERNEL] and times[EVERY_KERNEL] < times[EAGER]
    assert all("kernels 0." in why for _, why in found.choices.training.why)


@pytest.mark.parametrize("slow", ["softmax", "norm"])
def test_a_region_whose_gradients_lose_is_left_to_pytorch(slow: str, tmp_path: Path, prices: Prices) -> None:
    front = front_of(TWO, tmp_path)
    prices.kernels = dict.fromkeys(kernels_of_gradients(front, slow), 50.0)
    found = tuned(front, prices)
    training = found.choices.training
    assert training.by_pytorch and all(slow in name for name in training.by_pytorch), found
    made, emitted = front.finish(found.choices)
    assert [kernel for kernel in made.kernels if slow in kernel.name]  # inference has them
    assert all((what == PYTORCH) == (slow in name) for name, what in emitted.training.items())
    assert "# training: PyTorch's operators forward and backward (measured, PyTorch's operators " in emitted.text
    assert holds(front, emitted)


def test_the_originals_forward_is_kept_for_training(tmp_path: Path, prices: Prices) -> None:
    """Kernels lose backward, and PyTorch's operators do more than the original's: a law has taken a bias out of a convolution."""
    front = front_of(CHAIN, tmp_path)
    prices.kernels = {"_grad": 50.0}
    found = tuned(front, prices)
    assert not found.choices.plain and found.choices.training.original, found
    assert "eager's step" in found.choices.training.reasons()[WHOLE]
    _, emitted = front.finish(found.choices)
    assert "not (_Differentiable.trained and _needs_gradients(" in emitted.text
    assert "_CUDA_GRADIENTS" not in emitted.text
    calls, steps = launched(loaded(emitted), front)
    assert calls and not steps
    assert holds(front, emitted)
    assert any("the original's forward is kept for training" in words for words in pipeline.shown(found))


@pytest.mark.parametrize("fast", [True, False])
def test_gradients_of_weights_go_to_whoever_is_faster(fast: bool, tmp_path: Path, prices: Prices) -> None:
    front = front_of(CHAIN, tmp_path)
    prices.kernels = {"conv_weight_grad": 0.2 if fast else 50.0, "conv_": 0.2}
    found = tuned(front, prices)
    assert found.choices.training.own_weights == (frozenset({"conv_weight"}) if fast else frozenset()), found
    _, emitted = front.finish(found.choices)
    candidate = loaded(emitted)
    assert ("conv_weight_grad" in launched(candidate, front)[1]) is fast
    assert ("aten.convolution_backward(" in emitted.text) is not fast
    assert fast or any("gradients by the library: conv_weight (100" in note for note in found.notes), found.notes
    assert holds(front, emitted)


def test_what_is_not_trained_is_not_timed_so(tmp_path: Path, prices: Prices) -> None:
    front = front_of(TWO, tmp_path)
    assert tune(front.problem, forward_only(front), prices, "host", seconds=0.0).steps == ()
    frozen = front_of(TWO.replace("    def forward", "        self.requires_grad_(False)\n\n    def forward"), tmp_path)
    found = tuned(frozen, prices)  # its inputs may ask for gradients
    assert found.steps and dict(found.steps)[EAGER] > 0
    whole = front_of(TWO.replace("return torch.softmax", "with torch.no_grad():\n            return torch.softmax"), tmp_path)
    assert tuned(whole, prices).steps == ()


def test_steps_that_fail_leave_what_is_predicted(tmp_path: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    def tired(*args: Any) -> Any:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr("fusewright.driver.tuning.training.Trainer.run", tired)
    found = tuned(front_of(TWO, tmp_path), prices)
    assert found.choices.training == Training() and not found.whole
    assert "training steps were not timed: out of memory" in found.notes


def test_the_whole_line_writes_what_was_chosen_and_finds_it_again(tmp_path: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with kernels of the host: tuned, verified, written, and kept for the next run."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    front = front_of(TWO, tmp_path)

    def verified(*args: Any, **named: Any) -> Any:
        return verify(*args, **{**named, "options": Options(target="host")})

    for name, value in {
        "fusewright.driver.pipeline.choose_target": lambda options: "cuda",
        "fusewright.driver.pipeline.probing": lambda *args: contextlib.nullcontext(),
        "fusewright.driver.pipeline.gpu_works": lambda: True,
        "fusewright.driver.pipeline.tune": functools.partial(tune, target="host", seconds=0.0),
        "fusewright.driver.pipeline.Gpu": lambda device: prices,
        "fusewright.driver.pipeline.verify_candidate": verified,
        "fusewright.driver.pipeline.load_candidate": lambda text, target, *args, **named: load_candidate(text, "host", name="new.py"),
        "torch.cuda.get_device_name": lambda: "some GPU",
        "torch.cuda.current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(name, value)
    prices.kernels = dict.fromkeys(kernels_of_gradients(front, "softmax"), 50.0)
    first = pipeline.optimize(front.problem, Options(target="cuda", bench=False))
    assert first.verdict.passed and not first.degraded
    by = {region["name"]: region["by"] for region in first.report["training"]["regions"]}
    assert len(by) == 2 and all(what == (PYTORCH if "softmax" in name else KERNELS) for name, what in by.items())
    assert {row["name"] for row in first.report["tuning"]["steps"]} >= {EAGER, EVERY_KERNEL, NO_KERNEL}
    prices.kernels = {}  # whoever timed again would choose otherwise
    again = pipeline.optimize(front.problem, Options(target="cuda", bench=False))
    assert again.report["tuning"]["cached"] and again.text == first.text
    anew = pipeline.optimize(front.problem, Options(target="cuda", bench=False, tune="again"))
    assert not anew.report["tuning"]["choices"]["training"]["by_pytorch"]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("text", [ALONE, CHAIN], ids=["alone", "chain"])
def test_a_step_on_a_gpu_is_not_slower_than_eagers(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    large = text.replace("Conv2d(8, 16, 3)", "Conv2d(64, 128, 3)").replace("rand(2, 8, 16, 16)", "rand(64, 64, 66, 66)")
    (tmp_path / "model.py").write_text(large.replace("Linear(14, 12)", "Linear(64, 12)"))
    run = pipeline.optimize(load_problem(tmp_path / "model.py"), Options(target="cuda", tune="again"))
    assert run.verdict.passed and not run.degraded
    step = run.report["timing"]["backward"]
    assert step["new_ms"] < 1.1 * step["eager_ms"], run.report["tuning"]


def test_a_step_takes_no_more_memory_than_eagers(tmp_path: Path, prices: Prices) -> None:
    front = front_of(TWO, tmp_path)
    prices.heavy = "_grad"
    some = tuned(front, prices)
    _, emitted = front.finish(some.choices)
    assert KERNELS not in emitted.training.values() and not some.choices.training.original, some


# ---- said and kept ----


def test_what_runs_in_training_is_said(tmp_path: Path) -> None:
    problem = front_of(TWO, tmp_path).problem
    words = pipeline.explain(problem, Options(target="host")).split("where gradients are asked for\n")[1]
    assert words.count("kernels forward and backward (predicted)") == 2
    run = pipeline.optimize(problem, Options(target="host", gradients=False))
    assert [region["by"] for region in run.report["training"]["regions"]] == [PYTORCH, PYTORCH]
    assert all("no kernels for its gradients" in region["why"] for region in run.report["training"]["regions"])
    assert "# training: PyTorch's operators forward and backward (no kernels" in run.text


PREPARED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(9, 5)

    def forward(self, x):
        return torch.tanh(self.lin((x - 0.5).exp())) * 2

def get_inputs():
    return [torch.randn(4, 9)]

def get_init_inputs():
    return []
"""


def test_what_reads_inputs_alone_runs_its_kernels_in_training(tmp_path: Path) -> None:
    """It was said to be computed by PyTorch's operators there: those run only where gradients of inputs are asked for."""
    (tmp_path / "model.py").write_text(PREPARED)
    run = pipeline.optimize(load_problem(tmp_path / "model.py"), Options(target="host", seeds=1))
    assert [region["by"] for region in run.report["training"]["regions"]] == [UNTRAINED, KERNELS] and run.verdict.passed
    candidate = load_candidate(run.text, "host")
    with candidate.launches() as launched:
        candidate.module.ModelNew()(*candidate.module.get_inputs()).sum().backward()
    assert len(launched) >= 3  # forward twice, and backward


def test_choices_for_training_are_kept() -> None:
    training = Training(True, False, frozenset({"_b", "_a"}), (("", "measured"),), own_weights=frozenset({"w"}))
    choices = Choices(training=training)
    assert Choices.from_dict(choices.to_dict()) == choices != replace(choices, training=Training())


def test_what_was_chosen_without_training_is_not_taken_for_it(tmp_path: Path) -> None:
    _, emitted = front_of(TWO, tmp_path).finish(Choices(), gradients=False)
    assert len({key(emitted, "some GPU", training) for training in ("no training", "kernels for gradients", "")}) == 3
