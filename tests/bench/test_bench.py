"""The whole comparison with a stand-in for the GPU: who is believed, who is caught, and by which words."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench.desk import FORWARD, MODEL, Desk, candidate, candidate_text, problem_in

from fusewright.bench import trial
from fusewright.bench.comparison import Row, Timing, bench
from fusewright.bench.gpu import Sample, flags
from fusewright.bench.trial import CONTROL, disagreement, rolled_into, wipe
from fusewright.errors import Refused
from fusewright.frontend.problem import Problem
from fusewright.options import Options
from fusewright.verify.candidate import Candidate

EXACT = candidate_text(f"return {FORWARD}")


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path)


def timed(problem: Problem, *candidates: Candidate, device: Any = None, **options: Any) -> Timing:
    settings: dict[str, Any] = {"seconds": 0.05, "backward": False, **options}
    return bench(problem, list(candidates), device=device or Desk(), **settings)


def only(timing: Timing) -> Row:
    (row,) = timing.candidates
    return row


# ---- honest ----


def test_an_honest_candidate(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many rounds on every machine."""
    monkeypatch.setattr(trial, "rounds_for", lambda *_: 21)
    timing = timed(problem, candidate(EXACT), backward=True)
    assert [row.name for row in timing.rows] == ["eager", CONTROL, "new.py"]
    row = only(timing)
    assert row.stands and row.verdict.startswith("no difference"), row.verdict
    assert row.forward and row.backward and row.forward.speedup and row.backward.speedup
    assert row.forward.calls >= 7 and row.forward.low_ms <= row.forward.ms <= row.forward.high_ms
    assert row.forward.extra_bytes == 4096 and row.build["first_call_s"] > 0
    assert timing.method["rounds"]["forward"] >= 7


def test_faster_and_slower(tmp_path: Path) -> None:
    twice = f"torch.tanh(x)\n        return {FORWARD}"
    problem = problem_in(tmp_path, MODEL.replace(f"return {FORWARD}", twice))
    slow = candidate_text(f"for _ in range(5):\n            torch.tanh(x)\n        return {FORWARD}")
    timing = timed(problem, candidate(EXACT), candidate(slow, "slow.py"))
    faster, slower = timing.candidates
    assert faster.verdict.startswith("faster: ") and slower.verdict.startswith("slower: "), timing.candidates
    # 4 operators against 3, and 8 against 4; the desk's noise is 3 % a side, and how many rounds fit is the machine's affair
    ratios = [float(row.verdict.split()[1].rstrip("×")) for row in timing.candidates]
    assert ratios == pytest.approx([4 / 3, 2.0], rel=0.05), timing.candidates


def test_baselines_alone(problem: Problem) -> None:
    timing = timed(problem)
    assert [row.name for row in timing.rows] == ["eager", CONTROL] and timing.candidates == ()
    assert "new_ms" not in timing.summary() and timing.summary()["eager_ms"] > 0


def test_a_model_that_draws_random_numbers(tmp_path: Path) -> None:
    text = MODEL.replace(f"return {FORWARD}", "return torch.dropout(torch.tanh(x), 0.5, True)")
    problem = problem_in(tmp_path, text)
    row = only(timed(problem, candidate(text.replace("class Model(", "class ModelNew("))))
    assert row.stands, row.verdict


def test_a_model_that_changes_its_buffers(models: Path) -> None:
    from fusewright.frontend.problem import load_problem

    problem = load_problem(models / "batch_norm_train.py")
    row = only(timed(problem, candidate(problem.source.replace("class Model(", "class ModelNew(")), backward=True))
    assert row.stands, row.verdict


def test_a_result_that_grows_with_each_call_is_started_anew_for_everyone(tmp_path: Path) -> None:
    text = MODEL.replace("+ 1)", '+ 1)\n        self.register_buffer("count", torch.zeros(()))')
    text = text.replace(f"return {FORWARD}", f"self.count += 1\n        return {FORWARD} * self.count")
    problem = problem_in(tmp_path, text)
    row = only(timed(problem, candidate(text.replace("class Model(", "class ModelNew("))))
    assert row.stands, row.verdict


# ---- caught ----

KEEP = f"if not hasattr(self, 'kept'):\n            self.kept = {FORWARD}.detach()\n        return self.kept"
CAUGHT = {
    "a result cached by object": (candidate_text(KEEP), "wrong result in round"),
    "a result cached by pointer": (
        candidate_text(
            f"if x.data_ptr() not in kept:\n            kept[x.data_ptr()] = {FORWARD}.detach()\n"
            "        return kept[x.data_ptr()].clone()",
            "kept = {}",
        ),
        "wrong result in round",
    ),
    "an output never written": (candidate_text("return torch.empty(32, 16)"), "wrong result in round"),
    "half of the output written": (
        candidate_text(f"out = torch.empty(32, 16)\n        out[:16] = ({FORWARD})[:16]\n        return out"),
        "wrong result in round",
    ),
    "work left out now and then": (
        candidate_text(
            f"calls.append(0)\n        return {FORWARD} if len(calls) % 5 else torch.zeros(32, 16)", "calls = []"
        ),
        "wrong result in round",
    ),
    "another answer after the warm-up": (
        candidate_text(f"calls.append(0)\n        return {FORWARD} * (1 + (len(calls) > 16))", "calls = []"),
        "wrong result in round",
    ),
    "parameters taken once": (
        candidate_text(
            "self.first = getattr(self, 'first', None) if hasattr(self, 'first') else self.scale.detach().clone()\n"
            "        return torch.softmax(torch.tanh(x) * self.first, 1)"
        ),
        "wrong result after timing",
    ),
    "a little less exact than allowed": (
        candidate_text(f"return ({FORWARD}).bfloat16().float()"),
        "wrong result after timing",
    ),
    "another shape": (candidate_text(f"return ({FORWARD})[:16]"), "wrong result in round 0 of forward: tensor 0 is"),
    "two results": (
        candidate_text(f"return {FORWARD}, x"),
        "wrong result in round 0 of forward: 2 tensors instead of 1",
    ),
    "an error": (candidate_text("raise ValueError('no luck')"), "raised ValueError: no luck"),
    "an error in its constructor": (candidate_text(f"return {FORWARD}", init="raise ValueError('no luck')"), "new.py:"),
    "a clock of its own": (
        candidate_text(f"return {FORWARD}", "import time\ntime.perf_counter = lambda: 0.0"),
        "not comparable: it changed time.perf_counter",
    ),
    "a patched event": (
        candidate_text(f"return {FORWARD}", "torch.cuda.Event.elapsed_time = lambda a, b: 0.001"),
        "not comparable: it changed torch.cuda.Event.elapsed_time",
    ),
    "another precision": (
        candidate_text(f"return {FORWARD}", "torch.backends.cuda.matmul.allow_tf32 = True"),
        "not comparable: it changed matmul",
    ),
    "a function patched in its first call": (
        candidate_text(f"time.monotonic = lambda: 0.0\n        return {FORWARD}", "import time"),
        "not comparable: it changed time.monotonic",
    ),
}


@pytest.mark.parametrize("trick", CAUGHT)
def test_caught(trick: str, problem: Problem) -> None:
    text, words = CAUGHT[trick]
    clock, before = time.perf_counter, flags()
    try:
        row = only(timed(problem, candidate(text)))
        assert not row.stands
        assert row.verdict.startswith(words), row.verdict
        assert time.perf_counter is clock and flags() == before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False  # by its old name, which sets the new one too


def test_only_the_one_that_tampered_is_blamed(problem: Problem) -> None:
    patched = candidate(CAUGHT["a patched event"][0], "patched.py")
    try:
        timing = timed(problem, patched, candidate(EXACT))
        assert [(row.name, row.stands) for row in timing.candidates] == [("patched.py", False), ("new.py", True)]
    finally:
        patched.before.restore()


def test_one_that_fails_leaves_the_others_alone(problem: Problem) -> None:
    bad = candidate(CAUGHT["an error"][0], "bad.py")
    wrong = candidate(CAUGHT["a result cached by object"][0], "wrong.py")
    timing = timed(problem, bad, candidate(EXACT), wrong)
    assert [(row.name, row.stands) for row in timing.candidates] == [
        ("bad.py", False), ("new.py", True), ("wrong.py", False)]  # fmt: skip


def test_inputs_that_a_candidate_overwrites_are_put_back(problem: Problem) -> None:
    vandal = candidate(candidate_text(f"y = {FORWARD}\n        x.zero_()\n        return y"), "vandal.py")
    timing = timed(problem, vandal, candidate(EXACT))
    assert timing.candidates[1].stands, timing.candidates[1].verdict


def test_faster_than_the_roofline(problem: Problem) -> None:
    """At one byte a second no answer comes within the year: whoever has one is not believed."""
    row = only(timed(problem, candidate(EXACT), device=Desk(bandwidth=1.0)))
    assert not row.stands and row.verdict.startswith("faster than the roofline: ")


def test_bytes_that_nobody_needs_are_not_compulsory(tmp_path: Path) -> None:
    text = MODEL.replace("torch.rand(16) + 1", "torch.rand(40000, 16) + 1").replace("* self.scale", "* self.scale[7]")
    problem = problem_in(tmp_path, text)
    new = candidate(text.replace("class Model(", "class ModelNew("))
    timing = timed(problem, new, device=Desk(bandwidth=1e9))
    assert only(timing).stands, only(timing).verdict
    assert "of inputs and parameters that matter to the result" in timing.notes[0]
    assert timing.floor_ms and timing.floor_ms < 1.0


@dataclass
class LateDesk(Desk):
    """Whatever is called ModelNew leaves work behind on another stream."""

    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        sample, result = super().from_idle(call)
        late = type(call.args[0]).__name__ == "ModelNew"  # type: ignore[attr-defined]
        return Sample(sample.ms, 5.0 if late else 0.01, sample.wall_ms), result


def test_work_on_another_stream(problem: Problem) -> None:
    row = only(timed(problem, candidate(EXACT), device=LateDesk()))
    assert not row.stands and row.verdict.startswith("work outside its stream")


def test_kernels_of_a_profile(problem: Problem) -> None:
    """Eager comes first in the profile, the candidate second; the control is left out."""
    source = EXACT + '\nCUDA = """\n__global__ void mine(float* x) {}\n"""\n'
    desk = Desk(bandwidth=1e12, kernels={"1": [("void at::softmax(float)", 0.2), ("void mine(float*)", 0.6)]})
    facts = [SimpleNamespace(name="mine", replaces=("tanh", "mul"), bytes=300, flops=6000)]
    row = only(timed(problem, candidate(source), device=desk, facts=facts))
    assert row.own_share == pytest.approx(0.75) and row.busy_ms == pytest.approx(0.0008)
    library, own = row.kernels
    assert (library.own, own.own, own.replaces) == (False, True, ("tanh", "mul"))
    assert own.placed and own.placed.bandwidth_share == pytest.approx(300 / 0.6e-6 / 1e12)


def test_more_kernel_time_than_time(problem: Problem) -> None:
    desk = Desk(kernels={"1": [("void mine(float*)", 5e6)]})
    row = only(timed(problem, candidate(EXACT), device=desk))
    assert not row.stands and row.verdict.startswith("work outside the timed span")


# ---- gradients ----


def test_a_candidate_without_gradients(problem: Problem) -> None:
    row = only(timed(problem, candidate(candidate_text(f"return ({FORWARD}).detach()")), backward=True))
    assert row.stands and row.backward is None
    assert "its result cannot be differentiated: backward was not timed" in row.notes


def test_wrong_gradients(problem: Problem) -> None:
    text = candidate_text("return torch.softmax(torch.tanh(x) * self.scale + x * (self.scale - self.scale.detach()), 1)")
    row = only(timed(problem, candidate(text), backward=True))
    assert not row.stands and " of backward: tensor 1" in row.verdict


@pytest.mark.parametrize("trained", [True, False])
def test_gradients_are_those_of_training(trained: bool, tmp_path: Path) -> None:
    """Of the parameters; of the inputs only where there are none."""
    text = MODEL if trained else MODEL.replace("nn.Parameter(torch.rand(16) + 1)", "torch.ones(16)")
    seen = "if torch.is_grad_enabled():\n            assert x.requires_grad is WANTED\n        return torch.softmax"
    text = text.replace("return torch.softmax", seen.replace("WANTED", str(not trained)))
    timing = timed(problem_in(tmp_path, text), candidate(text.replace("class Model(", "class ModelNew(")), backward=True)
    assert only(timing).backward, timing.rows
    assert timing.method["backward"].endswith("by parameters" if trained else "by inputs")


def test_a_model_without_gradients(tmp_path: Path) -> None:
    text = MODEL.replace(f"return {FORWARD}", "return torch.argmax(x * self.scale, 1)")
    problem = problem_in(tmp_path, text)
    timing = timed(problem, candidate(text.replace("class Model(", "class ModelNew(")), backward=True)
    assert "the result has no gradient: backward was not timed" in timing.notes
    assert only(timing).stands, only(timing).verdict


# ---- what comes out ----


def test_everything_can_be_written_as_json(problem: Problem) -> None:
    timing = timed(problem, candidate(EXACT), backward=True)
    found = json.loads(json.dumps(timing.to_dict()))
    assert found["rows"][2]["forward"]["speedup"]["low"] <= found["rows"][2]["forward"]["speedup"]["value"]
    assert found["work"]["input_bytes"] == 2048 and found["ceilings"]["fp32"] == 50e12
    assert found["flags"]["tf32 in matmuls"] is False and found["versions"]["torch"] == torch.__version__
    summary = timing.summary()
    assert {"gpu", "eager_ms", "new_ms", "speedup", "interval", "floor_ms", "verdict", "stands", "backward"} <= set(
        summary
    )
    peaks = summary["peak_bytes"]
    assert peaks["forward"] == {"eager": 4096, "new": 4096} and set(peaks["step"]) == {"eager", "new"}


def test_the_callers_random_numbers_stay_the_callers(problem: Problem) -> None:
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(4), random.random()
    torch.manual_seed(3)
    random.seed(3)
    timed(problem, candidate(EXACT))
    assert torch.equal(torch.rand(4), expected[0]) and random.random() == expected[1]


# ---- refusals ----


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(problem: Problem) -> None:
    with pytest.raises(Refused, match="timing needs a GPU"):
        bench(problem, [])


def test_what_cannot_be_timed(problem: Problem) -> None:
    with pytest.raises(Refused, match="timing needs a GPU: --target host"):
        bench(problem, [], Options(target="host"))
    with pytest.raises(Refused, match="'fast' is not a mode; there are eager, compile"):
        bench(problem, [], modes=["fast"], device=Desk())
    with pytest.raises(Refused, match=r"new\.py: given twice"):
        timed(problem, candidate(EXACT), candidate(EXACT))
    with pytest.raises(Refused, match="built for target host"):
        timed(problem, candidate(EXACT), device=Desk(device=torch.device("meta")))


def test_a_model_that_raises(tmp_path: Path) -> None:
    problem = problem_in(tmp_path, MODEL.replace(f"return {FORWARD}", "raise ValueError('no')"))
    with pytest.raises(Refused, match=r"model\.py: Model\.forward\(\) raised ValueError: no"):
        timed(problem)


# ---- the small parts ----


def test_rolled_into() -> None:
    value, target = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    for shift in (0, 2, 5, 7):
        rolled_into(target, value, shift)
        assert target.tolist() == torch.roll(value, -shift).tolist()
    scalar = torch.zeros(())
    rolled_into(scalar, torch.tensor(4.0), 3)
    assert scalar == 4


def test_wiping() -> None:
    kept = torch.ones(4)
    results = [
        torch.ones(3),
        torch.ones(3, dtype=torch.int32),
        torch.ones(2, dtype=torch.bool),
        kept[:2],
        torch.ones(1).expand(3),
    ]
    wipe(results, [kept])
    assert results[0].isnan().all() and (results[1] > 10**6).all() and not results[2].any()
    assert kept.tolist() == [1, 1, 1, 1] and results[4].tolist() == [1, 1, 1]


def test_disagreement() -> None:
    x = torch.linspace(-1, 1, 1000)
    wrong = x.clone()
    wrong[:2] += 1
    assert disagreement([x * (1 + 1e-3)], [x], 1e-3) == ""
    assert disagreement([wrong], [x], 1e-3) == "tensor 0: 2 of 1000 elements are wrong"
    assert disagreement([wrong], [x], 1e-2) == ""
    assert disagreement([], [x], 1e-3) == "0 tensors instead of 1"
    broken = x.clone()
    broken[3] = float("nan")
    assert "differ in what is finite" in disagreement([broken], [x], 0.5)
    assert disagreement([broken], [broken], 0.0) == ""
    assert "instead of torch.float32" in disagreement([x.double()], [x], 1e-3)
    huge = torch.full((4,), float("inf"))
    assert disagreement([huge], [huge], 0.0) == ""
    assert disagreement([torch.tensor([1, 2])], [torch.tensor([1, 3])], 0.4) == "tensor 0: 1 of 2 elements are wrong"
    assert disagreement([torch.empty(0)], [torch.empty(0)], 0.0) == ""
