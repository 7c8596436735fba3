"""Choosing by timing, with a clock that says what each kernel and each operator of PyTorch costs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.bench.gpu import Sample
from fusewright.driver import pipeline
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, own_of
from fusewright.driver.tuning.tune import TimedVariant, Tuned, Tuner, cache_file, recall, remember, tune
from fusewright.errors import Refused
from fusewright.frontend.problem import load_problem
from fusewright.host import HostLibrary
from fusewright.options import Options
from fusewright.schedule.footprint import peak_bytes
from fusewright.verify.candidate import Trace, _Operators, load_candidate
from fusewright.verify.verifier import Check, Verdict, verify

CHAIN = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3)
        self.lin = nn.Linear(14, 12)

    def forward(self, x):
        y = torch.logsumexp(torch.tanh(self.conv(x)), 1)
        return torch.softmax(self.lin(y), -1)


def get_inputs():
    return [torch.rand(2, 8, 16, 16)]


def get_init_inputs():
    return []
"""


@dataclass
class Prices:
    """Milliseconds of a kernel whose name holds a word; an operator of PyTorch costs 1."""

    kernels: dict[str, float] = field(default_factory=dict)
    spent: float = 0.0
    heavy: str = ""
    gigabytes: float = 1.0
    launched: list[str] = field(default_factory=list)

    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        self.spent, trace = 0.0, Trace()
        with _Operators(trace):
            result = call()
        ms = self.spent + len(trace.library_calls)
        return Sample(ms, 0.0, ms), result

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """As counted; a kernel whose name holds the word `heavy` takes so many gigabytes."""
        self.launched.clear()
        peak = peak_bytes(call)
        return peak + sum(int(self.gigabytes * 10**9) for kernel in self.launched if self.heavy and self.heavy in kernel)


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prices]:
    prices, call = Prices(), HostLibrary.call

    def priced(library: HostLibrary, kernel: str, *args: Any) -> None:
        prices.launched.append(kernel)
        prices.spent += next((ms for word, ms in prices.kernels.items() if word in kernel), 0.1)
        call(library, kernel, *args)

    monkeypatch.setattr(HostLibrary, "call", priced)
    yield prices


@pytest.fixture
def front(tmp_path: Path) -> Front:
    (tmp_path / "model.py").write_text(CHAIN)
    return read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))


def tuned(front: Front, prices: Prices) -> Tuned:
    return tune(front.problem, forward_only(front), prices, "host", seconds=0.0)


def forward_only(front: Front) -> Callable[[Choices], Any]:
    """What the line hands to tuning: no gradients are written for what is only timed."""
    return functools.partial(front.finish, gradients=False)


def test_the_prediction_stands_where_it_is_right(front: Front, prices: Prices) -> None:
    found = tuned(front, prices)
    assert not found.choices.plain and not found.choices.left, found


def test_a_convolution_goes_to_whoever_is_faster(front: Front, prices: Prices) -> None:
    prices.kernels = {"conv_": 50.0}
    slow = tuned(front, prices)
    assert own_of(front.finish(slow.choices)[0]) == frozenset(), slow
    prices.kernels = {"conv_": 0.2}
    fast = tuned(front, prices)
    assert len(own_of(front.finish(fast.choices)[0])) == 1, fast


def test_what_takes_more_memory_than_eager_is_not_chosen(front: Front, prices: Prices) -> None:
    prices.kernels, prices.heavy = {"conv_": 0.2}, "conv_"
    light = tuned(front, prices)
    assert own_of(front.finish(light.choices)[0]) == frozenset() and not light.choices.plain, light
    assert any("not taken for its memory" in note for note in light.notes), light
    prices.heavy = "_fwd"  # whatever kernel of ours
    assert tuned(front, prices).choices.plain
    prices.gigabytes = 0.02  # little, and nothing else beats eager
    little = tuned(front, prices)
    assert not little.choices.plain and any("no variant that holds less beats eager" in note for note in little.notes), little


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_two_kernels_read_is_stored_or_computed_again(
    again: bool, tmp_path: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewright.driver.tuning.tune.plan_ms", lambda made: 1.0)  # so that every variant is built
    norm = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "torch.tanh(self.norm(self.conv(x)))")
    (tmp_path / "model.py").write_text(norm.replace("self.lin =", "self.norm = nn.GroupNorm(4, 16)\n        self.lin ="))
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    prices.kernels = {"conv_": 0.1, "norm": 3.0} if again else {"conv_": 0.4}
    found = tuned(front, prices)
    made, _ = front.finish(found.choices)
    assert len([k for k in made.kernels if k.fused is not None]) == (2 if again else 1), found
    assert Choices.from_dict(found.choices.to_dict()) == found.choices


WRITTEN_OUT, BY_NAME = "torch.softmax(z @ z.mT, -1) @ z", "nn.functional.scaled_dot_product_attention(z, z, z)"


@pytest.mark.parametrize(
    ("weighed", "ms", "ours"),
    [
        (WRITTEN_OUT, 0.1, True),
        (BY_NAME, 50.0, False),
        pytest.param(WRITTEN_OUT, 50.0, False, marks=pytest.mark.slow),
        pytest.param(BY_NAME, 0.1, True, marks=pytest.mark.slow),
    ],
)
def test_attention_by_one_kernel_or_in_steps(weighed: str, ms: float, ours: bool, tmp_path: Path, prices: Prices) -> None:
    text = CHAIN.replace("torch.softmax(self.lin(y), -1)", f"(lambda z: {weighed})(self.lin(y))")
    (tmp_path / "model.py").write_text(text)
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    prices.kernels = {"attention": ms}
    found = tuned(front, prices)
    assert bool(front.finish(found.choices)[0].shortcuts) is ours, found


def test_a_region_that_loses_is_left_to_pytorch(front: Front, prices: Prices) -> None:
    prices.kernels = {"softmax": 50.0}
    found = tuned(front, prices)
    assert found.choices.left and all("softmax" in name for name in found.choices.left), found
    made, emitted = front.finish(found.choices)
    assert "aten._softmax" in emitted.text or "aten.softmax" in emitted.text
    assert [k.name for k in made.kernels if "softmax" in k.name] == []
    candidate = load_candidate(emitted.text, "host", name="new.py")
    assert verify(front.problem, candidate, graph=front.graph, options=Options(target="host")).passed


class Layouts(TorchDispatchMode):
    """A library whose convolutions are quick on channels-last data alone."""

    def __init__(self, quick: float) -> None:
        super().__init__()
        self.quick, self.spent = quick, 0.0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if "conv" in str(function):
            self.spent += self.quick if arguments[0].is_contiguous(memory_format=torch.channels_last) else 20.0
        return function(*arguments, **(named or {}))

    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        self.spent = 1.0
        with self:
            result = call()
        return Sample(self.spent, 0.0, self.spent), result

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        return 0


@pytest.mark.parametrize("quick", [5.0, 40.0])
def test_values_lie_as_the_library_likes_them(quick: float, tmp_path: Path) -> None:
    two = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "self.two(self.conv(x).tanh()).tanh().amax(1)")
    two = two.replace("self.lin =", "self.two = nn.Conv2d(16, 16, 1)\n        self.lin =")
    (tmp_path / "model.py").write_text(two)
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    found = tune(front.problem, lambda choices: front.finish(replace(choices, own=frozenset()), False), Layouts(quick), "host", seconds=0.0)
    assert found.choices.channels_last == (quick < 20), found
    assert Choices.from_dict(found.choices.to_dict()) == found.choices


def test_where_nothing_is_gained_the_originals_forward_is_kept(front: Front, prices: Prices) -> None:
    prices.kernels = {"": 1000.0}
    found = tuned(front, prices)
    assert found.choices.plain and "kept" in found.notes[-1], found
    made, emitted = front.finish(found.choices)
    assert made.kernels == [] and "def forward" not in emitted.text.split("class ModelNew")[1]
    module = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    x = front.problem.inputs()[0]
    assert torch.equal(module(x), front.problem.model()(x))


def test_a_way_that_cannot_be_built_is_out_of_the_race(
    front: Front, prices: Prices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, *args: Any, **kwargs: Any) -> Any:
        if "conv_" in text.split("_KERNELS")[1].split(")")[0]:
            raise RuntimeError("nvcc is tired\nmore")
        return load_candidate(text, *args, **kwargs)

    monkeypatch.setattr("fusewright.driver.tuning.tune.load_candidate", broken)
    found = tuned(front, prices)
    assert not found.choices.plain and any("nvcc is tired" in note for note in found.notes), found
    assert own_of(front.finish(found.choices)[0]) == frozenset()
    assert any("did not build" in sentence and "nvcc is tired" in sentence for sentence in found.degraded), found


def test_no_way_is_built_when_building_took_long(front: Front, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of a hundred convolutions is built in minutes: of its eleven variants those that are named first are tried."""
    monkeypatch.setattr("fusewright.driver.tuning.tune.BUILDING", 0.0)
    prices.kernels = {"conv_": 50.0}  # the library's convolutions would be chosen
    found = tuned(front, prices)
    assert [name for name, _ in found.rows] == ["eager", "predicted"] and found.whole
    (note,) = [note for note in found.notes if note.startswith("not tried")]
    assert "our convolutions" in note and "the library's, channels-last" in note


def tuner(front: Front, prices: Prices) -> Tuner:
    return Tuner(front.problem, forward_only(front), prices, "host", lambda detail: None, 0.0)


def test_every_way_keeps_the_modes_of_the_models_parts(tmp_path: Path, prices: Prices) -> None:
    (tmp_path / "model.py").write_text(CHAIN.replace("self.lin = nn.Linear(14, 12)", "self.lin = nn.Linear(14, 12).eval()"))
    found = tuner(read_problem(load_problem(tmp_path / "model.py"), Options(target="host")), prices)
    found.run()
    modes = [variant.module.lin.training for variant in found.variants if variant.module is not None]  # type: ignore[union-attr]
    assert modes and not any(modes)


def test_a_fault_is_that_of_the_way_that_made_it(front: Front, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault() -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    found = tuner(front, prices)
    found.inputs, found.eager = front.problem.inputs(), TimedVariant("eager", Choices(plain=True), module=front.problem.model())
    found.device = SimpleNamespace(type="cuda")  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "synchronize", fault)
    with pytest.raises(Refused, match=r"stopped working in 'predicted': CUDA error: an illegal memory access$"):
        found.add("predicted", Choices())


@pytest.mark.parametrize("fails", ["", "a variant", "verification"])
def test_only_what_verified_is_remembered(
    fails: str, front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only where every variant was timed."""
    chosen = Tuned(Choices(plain=True), (("eager", 1.0),), whole=fails != "a variant")
    verdict = Verdict(fails != "verification", (Check("seeds", fails != "verification"),), "", 0.0, 0.0, (), ())
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    for name, value in {
        "fusewright.driver.pipeline.choose_target": lambda options: "cuda",
        "fusewright.driver.pipeline.probing": lambda *args: contextlib.nullcontext(),
        "fusewright.driver.pipeline.gpu_works": lambda: True,
        "fusewright.driver.pipeline.tune": lambda *args, **named: chosen,
        "fusewright.driver.pipeline.Gpu": lambda device: None,
        "fusewright.driver.pipeline.verify_candidate": lambda *args, **named: verdict,
        "fusewright.driver.pipeline.load_candidate": lambda text, target, *args, **named: load_candidate(text, "host", name="new.py"),
        "torch.cuda.get_device_name": lambda *device: "some GPU",
        "torch.cuda.current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(name, value)
    pipeline.optimize(front.problem, Options(target="cuda", bench=False, precision="flags"))
    assert len(list((tmp_path / "cache" / "choices").glob("*.json"))) == (0 if fails else 1)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, chosen: Tuned, judge: Any) -> None:
    """What `optimize` does on a GPU, with kernels of the host: timing chose this, and verification is this judge's."""
    for name, value in {
        "fusewright.driver.pipeline.choose_target": lambda options: "cuda",
        "fusewright.driver.pipeline.probing": lambda *args: contextlib.nullcontext(),
        "fusewright.driver.pipeline.tuned_for": lambda *args: chosen,
        "fusewright.driver.pipeline.gpu_works": lambda: True,
        "fusewright.driver.pipeline.verify_candidate": judge,
        "fusewright.driver.pipeline.load_candidate": lambda text, target, *args, **named: load_candidate(text, "host", name="new.py"),
    }.items():
        monkeypatch.setattr(name, value)


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_what_does_not_verify_is_not_written(wrong: int, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: what timing chose, then the file as predicted, then the original's forward; and nothing if that fails too."""
    verdicts: list[Verdict] = []

    def judge(*args: Any, **named: Any) -> Verdict:
        passed = len(verdicts) >= wrong
        verdicts.append(Verdict(passed, (Check("seeds", passed),), "seeds: far off", 0.0, 0.0, (), ()))
        return verdicts[-1]

    chosen = Tuned(Choices(own=frozenset(), channels_last=True), (("eager", 1.0),))
    as_on_a_gpu(monkeypatch, chosen, judge)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, precision="flags"))
    assert run.verdict.passed == (wrong < 3) and len(verdicts) == min(wrong + 1, 3)
    assert ("_CUDA_SOURCE" in run.text) == (wrong == 1)
    assert sum("did not verify" in note for note in run.report["notes"]) == min(wrong, 2) == len(run.degraded)
    assert run.report["plain"] == ("_CUDA_SOURCE" not in run.text)


def test_a_variant_that_tuning_could_not_build_is_said(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file verifies; nobody would know that the quicker one is missing."""
    failed = "the variant 'predicted' did not build, and was left out of tuning: 'meet' was not declared"
    as_on_a_gpu(monkeypatch, Tuned(Choices(own=frozenset()), (("eager", 1.0),), whole=False, degraded=(failed,)), passed_at_once)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, precision="flags"))
    assert run.verdict.passed and run.degraded == run.report["degraded"] == [failed]


def passed_at_once(*args: Any, **named: Any) -> Verdict:
    return Verdict(True, (Check("seeds", True),), "", 0.0, 0.0, (), ())


def test_convolutions_go_to_the_library_before_all_kernels_do(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ours do not verify; channels-last if timing found that quicker."""
    own = next(iter(front.finish(Choices(own=frozenset()))[0].calls)).node.name
    chosen = Tuned(Choices(own=frozenset({own})), (("library's convolutions", 2.0), ("the library's, channels-last", 1.0)))
    texts: list[str] = []

    def judge(problem: Any, candidate: Any, **named: Any) -> Verdict:
        texts.append(candidate.source)
        passed = "torch.channels_last" in candidate.source
        return Verdict(passed, (Check("seeds", passed),), "seeds: far off", 0.0, 0.0, (), ())

    as_on_a_gpu(monkeypatch, chosen, judge)
    monkeypatch.setattr("fusewright.driver.pipeline.PREDICTED", chosen.choices)
    run = pipeline.optimize(front.problem, Options(target="cuda", bench=False, precision="flags"))
    assert run.verdict.passed and run.text == texts[-1] and "torch.conv2d(" in run.text.split("class ModelNew")[1]
    assert any(note.endswith("convolutions and products are the library's") for note in run.report["notes"]), run.report["notes"]


def test_a_gpu_that_stopped_is_a_sentence(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(*args: Any, **named: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(pipeline, "tune", tune)
    monkeypatch.setattr(pipeline, "gpu_works", lambda: False)
    monkeypatch.setattr("fusewright.driver.pipeline.Gpu", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(Refused, match="illegal memory access; with --tune off"):
        pipeline.tuned_for(front, Options(target="cuda", tune="again"), pipeline.silent)
    with pytest.raises(Refused, match="the GPU stopped working"), pipeline.refused_without_a_gpu("cuda"):
        tune()


def test_choices_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path))
    found = Tuned(Choices(frozenset({"a"}), frozenset(), False), (("eager", 1.5),), ("note",))
    assert recall("key") is None
    remember("key", found)
    again = recall("key")
    assert again is not None and again.cached and (again.choices, again.rows) == (found.choices, found.rows)
    cache_file("key").write_text("{}")
    assert recall("key") is None
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "choices" / "key.json"))
    remember("key", found)  # nowhere to write: no matter


def test_a_wrong_kernel_of_backward_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewright.autograd import gradients as planning
    from fusewright.driver import pipeline

    right = planning.gradient_graph

    def wrong(*given: Any) -> Any:
        found = right(*given)
        assert found is not None
        turned = [replace(n, target=torch.ops.aten.cos.default) if "tanh" in str(n.target) else n for n in found.nodes]
        return replace(found, nodes=tuple(turned))

    monkeypatch.setattr(planning, "gradient_graph", wrong)
    text = CHAIN.replace("torch.softmax(self.lin(y), -1)", "torch.tanh(self.lin(y))")
    (tmp_path / "model.py").write_text(text)
    run = pipeline.optimize(load_problem(tmp_path / "model.py"), Options(target="host"))
    failed = [check for check in run.verdict.checks if not check.passed]
    assert not failed and "_grad(sizes" not in run.text
    assert any("its kernels did not verify" in note for note in run.report["notes"])


def test_products_go_to_whoever_is_faster(tmp_path: Path, prices: Prices) -> None:
    """Also where there is nothing else to do in the model."""
    alone = CHAIN.replace("nn.Linear(14, 12)", "nn.Linear(16, 24)").replace("return torch.softmax(self.lin(y), -1)", "return self.lin(x)")
    alone = alone.replace("        y = torch.logsumexp(torch.tanh(self.conv(x)), 1)\n", "")
    (tmp_path / "model.py").write_text(alone)
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    for cost, ours in ((0.2, 1), (5.0, 0)):
        prices.kernels = {"linear": cost}
        found = tuned(front, prices)
        assert len(own_of(front.finish(found.choices)[0])) == ours, found
    assert found.choices.plain
