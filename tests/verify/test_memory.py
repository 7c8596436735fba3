"""Memory of verification: counted on the host, bounded by the model's own, and its running out is an outcome of its own."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from verify.counted import Counted
from verify.test_verify import COPY, problem_of

from fusewright.bench import trial
from fusewright.driver.pipeline import compile_problem, on_the_cpu
from fusewright.errors import Short
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import Problem
from fusewright.options import Options
from fusewright.verify import memory, shrink
from fusewright.verify import verifier as verifier
from fusewright.verify.batch import ROWS, SAME, SUM, kind_of, parts_of
from fusewright.verify.candidate import load_candidate
from fusewright.verify.checks import differentiation, kernels
from fusewright.verify.observe import _sample, _sample_of, cotangents, observe
from fusewright.verify.reference import Rounding, _pool, in_float64
from fusewright.verify.subjects import Subjects, subjects
from fusewright.verify.variants import Source, Variant
from fusewright.verify.verifier import Verdict, verify

CONV = ("self.conv = nn.Conv2d(4, 8, 3)", "def forward(self, x):\n    return torch.relu(self.conv(x))", "torch.rand(32, 4, 34, 34)")
NORMED = (
    "self.conv, self.norm = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)",
    "def forward(self, x):\n    return torch.relu(self.norm(self.conv(x))).mean((2, 3))",
    "torch.rand(32, 4, 34, 34)",
)
SPARE = 2 * 10**6


class Desk:
    """Verifies at the given sizes with memory counted as a GPU's is, and counts runs of the float64 twin."""

    def __init__(self, patch: pytest.MonkeyPatch, most: int = 2**62, spare: int = SPARE):
        self.counted, self.exact_runs, self.parts = Counted(most), 0, 0
        patch.setattr(shrink, "MAIN_SECONDS", 1e9)
        patch.setattr("fusewright.verify.observe.COPIED", 2**12)  # as large results are, which a GPU is for
        patch.setattr("fusewright.verify.subjects.MOST_KNOWN", 0)  # a hundred megabytes there, but much beside what is counted here
        patch.setattr(verifier, "Memory", functools.partial(memory.Memory, spare=spare))
        base, run, wide = Source._base, Subjects.run_exact, in_float64

        def kept(source: Source, seed: int) -> list[Any]:
            self.counted.most, before = 2**62, self.counted.most
            found = base(source, seed)
            self.counted.exempt(found)  # those lie in the host's memory
            self.counted.most = before
            return found

        def run_exact(found: Subjects, *given: Any, **named: Any) -> Any:
            self.parts += named.get("part", given[3] if len(given) > 3 else None) is not None
            return run(found, *given, **named)

        def counted(*given: Any) -> Any:
            self.exact_runs += 1
            return wide(*given)

        patch.setattr(Source, "_base", kept)
        patch.setattr(Subjects, "run_exact", run_exact)
        patch.setattr("fusewright.verify.subjects.in_float64", counted)

    def verdict(self, problem: Problem, new: str = COPY, metered: bool = True) -> Verdict:
        graph = capture(*on_the_cpu(problem), str(problem.path))
        self.counted.exempt(_pool(torch.device("cpu"), torch.float64))
        with self.counted:
            candidate = load_candidate(new if "_CUDA_SOURCE" in new else problem.source + new, "host")
            return verify(problem, candidate, graph=graph, meter=self.counted if metered else None)


@pytest.mark.parametrize("model", [CONV, NORMED], ids=["independent samples", "batch norm"])
def test_at_most_twice_the_models_own_peak(model: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    verdict = desk.verdict(problem_of(tmp_path, *model))
    assert verdict.passed, verdict.worst
    assert verdict.own_peak > 2_000_000
    assert verdict.peak <= 2 * verdict.own_peak + SPARE
    assert desk.counted.live() < 500_000  # nothing stays
    if model is CONV:
        assert desk.parts > 100 and not verdict.shapes_note
    else:  # a few parts at the small sizes, to see that they will not do
        assert 0 < desk.parts < 50 and verdict.shapes_note.startswith("gradients verified at batch ")


def test_without_a_meter_the_same_takes_several_times_as_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the bound above is one that could be missed."""
    desk = Desk(monkeypatch)
    verdict = desk.verdict(problem_of(tmp_path, *CONV), metered=False)
    assert verdict.passed and not desk.parts and verdict.peak == 0
    assert desk.counted.highest > 20_000_000


def test_few_runs_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two references beside the exact one are enough to accept a result, and what several checks ask for is made once: 185 runs, which
    were more than 270."""
    desk = Desk(monkeypatch)
    monkeypatch.setattr("fusewright.verify.subjects.MOST_KNOWN", 64)
    problem = problem_of(tmp_path, CONV[0], CONV[1], "torch.rand(4, 4, 16, 16)")
    new = compile_problem(problem, Options(target="host"))[2].text
    assert desk.verdict(problem, new, metered=False).passed
    assert desk.exact_runs < 190


WRONG = {
    "one sample": "y = super().forward(x)\n        return y + 1e-2 * (torch.arange(len(y)) == 29).view(-1, 1, 1, 1) * y",
    "one element": (
        "y = super().forward(x)\n        if len(y) > 30:\n            y = y.clone()\n            y[30, 2, 3, 4] += 1\n        return y"
    ),
    "bf16": "return super().forward(x.bfloat16().float()).bfloat16().float()",
    "the gradient of one sample": (
        "y = super().forward(x)\n        return y if len(y) < 20 else torch.cat([y[:17], y[17:18].detach(), y[18:]])"
    ),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.sampled(3)
def test_what_is_wrong_in_one_part_is_seen(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    new = f"\n\nclass ModelNew(Model):\n    def forward(self, x):\n        {WRONG[what]}\n"
    verdict = desk.verdict(problem_of(tmp_path, *CONV), new)
    assert desk.parts and not verdict.passed
    failed = [check for check in verdict.checks if not check.passed]
    assert failed[0].name == ("gradients" if "gradient" in what else "seeds" if what == "one element" else "precision"), failed
    if what == "one element":
        assert "at [30, 2, 3, 4]" in failed[0].detail


def test_the_original_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(tmp_path, *CONV)
    desk = Desk(monkeypatch, most=1_500_000)
    verdict = desk.verdict(problem)
    assert verdict.passed, verdict.worst
    assert "verified at batch 8, 34x34 instead of batch 32, 34x34: 0.0015 GB of memory" in verdict.shapes_note
    with pytest.raises(Short, match=r"model.py: .*out of memory"):
        Desk(monkeypatch, most=20_000).verdict(problem)


def test_a_candidate_that_runs_out_is_not_called_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more samples than a few it takes more than there is."""
    wasteful = "y = super().forward(x)\n        waste = [y * 2 for _ in range(len(x))]\n        return y + 0 * waste[-1]"
    new = f"\n\nclass ModelNew(Model):\n    def forward(self, x):\n        {wasteful}\n"
    verdict = Desk(monkeypatch, most=12_000_000).verdict(problem_of(tmp_path, *CONV), new)
    assert verdict.passed, verdict.worst
    assert "seeds verified at batch 8" in verdict.shapes_note or "seeds verified at batch 16" in verdict.shapes_note


@pytest.mark.slow
def test_parts_that_run_out_are_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is estimated may be wrong: here it says that all of it fits."""
    monkeypatch.setattr("fusewright.verify.checks.FORWARD_RUN", 0)
    monkeypatch.setattr("fusewright.verify.checks.TRAINING_RUN", 0)
    monkeypatch.setattr("fusewright.verify.checks.RESULTS", 0)
    desk = Desk(monkeypatch, most=9_000_000)
    verdict = desk.verdict(problem_of(tmp_path, *CONV))
    assert verdict.passed and desk.parts and not verdict.shapes_note


def test_kernels_for_large_sizes_alone_are_launched_and_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where references of the given sizes do not fit, a kernel that no smaller size calls for is still run, and made a no-op."""
    problem = problem_of(tmp_path, *NORMED)
    text = compile_problem(problem, Options(target="host"))[2].text
    desk = Desk(monkeypatch, spare=-2_000_000)
    with desk.counted:
        candidate = load_candidate(text, "host")
        trial = verifier._trial(
            subjects(problem, candidate, candidate.build_model(problem)), capture(*on_the_cpu(problem), str(problem.path)),
            Options(), True, memory.Memory(desk.counted, spare=-2_000_000),
        )  # fmt: skip
        main = Variant("gradients", trial.shapes.main, derivatives=1, fixed=True)
        assert trial.parts(main) is None and trial.compare(main) is not None
        assert trial.smaller and trial.launched and set(trial.launched.values()) == {main}
        assert kernels._decoys(trial, main, trial.launched) == []
        monkeypatch.setattr(type(candidate), "without", lambda self, kernel: contextlib.nullcontext())
        assert kernels._decoys(trial, main, trial.launched) == list(trial.launched)


@pytest.mark.parametrize("what", ["", "one sample"])
def test_compared_again_after_timing(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, problem = Desk(monkeypatch), problem_of(tmp_path, *CONV)
    new = f"\n\nclass ModelNew(Model):\n    def forward(self, x):\n        {WRONG[what]}\n" if what else COPY
    monkeypatch.setattr(trial, "large_on_gpu", lambda subject, got: True)
    monkeypatch.setattr(trial, "compact_trial", functools.partial(verifier.compact_trial, meter=desk.counted))
    desk.counted.exempt(_pool(torch.device("cpu"), torch.float64))
    with desk.counted:
        candidate = load_candidate(problem.source + new, "host")
        wrong, note = trial.rechecked(problem, candidate, candidate.build_model(problem), 3)
    assert desk.parts > 10 and bool(wrong) == bool(what) and not note, wrong
    assert desk.counted.highest <= 2 * 2_691_400 + SPARE


@pytest.mark.parametrize("model", [CONV, NORMED], ids=["parts", "smaller sizes"])
def test_what_takes_long_is_asked_of_a_part_or_of_smaller_sizes(
    model: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole would be more than verification may take."""
    problem, desk = problem_of(tmp_path, *model), Desk(monkeypatch, spare=0)
    with desk.counted:
        candidate = load_candidate(problem.source + COPY, "host")
        found, graph = subjects(problem, candidate, candidate.build_model(problem)), capture(*on_the_cpu(problem), str(problem.path))
        trial = verifier._trial(found, graph, Options(), True, memory.Memory(desk.counted, spare=0))
        main = Variant("gradients", trial.shapes.main, derivatives=1, fixed=True)
        monkeypatch.setattr(Subjects, "device", property(lambda self: torch.device("cuda" if sys._getframe(1).f_code is code else "cpu")))
        code = differentiation._takes_long.__code__
        asked, right = [], Subjects.run_exact
        monkeypatch.setattr(Subjects, "run_exact", lambda s, v, *a, **k: asked.append((v.sizes, k.get("part"))) or right(s, v, *a, **k))
        assert not differentiation._takes_long(trial, main)
    assert all(part is not None or sizes != main.sizes for sizes, part in asked)
    assert asked[-1][0] == main.sizes if model is CONV else main.sizes not in dict(asked)


# ---- parts ----


def test_shares_of_parts_add_up() -> None:
    gradient = torch.randn(7, 300, 401, dtype=torch.float64)
    shares = [_sample_of(gradient[p.start : p.stop], p) for p in parts_of(7, 2, frozenset({0}))]
    assert len(shares) == 4
    assert torch.allclose(sum(shares[1:], shares[0]), _sample(gradient), rtol=1e-12)
    few = torch.randn(5, 3, dtype=torch.float64)
    shares = [_sample_of(few[p.start : p.stop], p) for p in parts_of(5, 3, frozenset({0}))]
    assert torch.equal(sum(shares[1:], shares[0]), few)


def test_cotangents_of_parts_are_those_of_the_whole() -> None:
    outputs = [torch.empty(6, 500_000), torch.empty(12, 7)]
    whole = cotangents(outputs)
    parts = parts_of(6, 4, frozenset({0}))
    found = [cotangents([part.rows(t) for t in outputs], part) for part in parts]
    for number, value in enumerate(whole):
        assert torch.equal(torch.cat([c[number] for c in found]), value)
    assert 0.5 < float(whole[0].norm() / whole[1].norm()) < 2


def test_what_a_whole_is_to_its_parts() -> None:
    a, b = torch.randn(2, 3, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    assert kind_of("output 0", torch.cat([a, b]), [a, b]) == ROWS
    assert kind_of("output 0", torch.cat([b, a]), [a, b]) is None
    assert kind_of("output 0", a, [a, a]) == SAME
    assert kind_of("output 0", a.sum() + b.sum(), [a.sum(), b.sum()]) is None  # a loss is no sum of losses that anyone compares
    assert kind_of("gradient of weight", a[:1] + b, [a[:1], b]) == SUM
    assert kind_of("gradient of weight", a[:1] + 1.0001 * b, [a[:1], b]) is None


def test_parameters_are_rounded_alike_in_every_part(tmp_path: Path) -> None:
    """As one kernel rounds them for the whole batch; what is rounded of samples is not the same."""
    init, forward = "self.l = nn.Linear(5, 4, bias=False)", "def forward(self, x):\n    return self.l(x)"
    problem = problem_of(tmp_path, init, forward, "torch.ones(6, 5)")
    candidate = load_candidate(problem.source + COPY, "host")
    found = subjects(problem, candidate, candidate.build_model(problem))
    variant = Variant("test", ((6, 5),))
    coarse = Rounding(0.0, 0.0, 2.0**-8)
    rows = [found.run_exact(variant, coarse, 3, part).tensors["output 0"] for part in parts_of(6, 2, frozenset({0}))]
    exact = found.run_exact(variant).tensors["output 0"]
    off = torch.cat(rows) - exact
    assert float(off.abs().max()) > 0 and not torch.equal(rows[0], rows[1])
    shared = off.mean(0)  # what the weights' rounding alone gives is the same for each sample
    assert float(shared.norm()) > 0.5 * float((off - shared).norm(dim=1).mean())


def test_results_are_copied_where_something_may_change_them() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x * 2

    x = torch.ones(2**20 + 1)
    seen = observe(Same(), [x])
    x.zero_()
    assert bool((seen.tensors["output 0"] == 1).all())
    assert seen.tensors["output 1"].data_ptr() == seen.returned[1].data_ptr()


@pytest.mark.gpu
def test_on_a_gpu_with_little_memory(tmp_path: Path) -> None:
    """The bound is kept, and a share of the GPU's memory is enough: smaller sizes with a note, then a refusal."""
    init, forward = "self.conv = nn.Conv2d(64, 128, 3)", "def forward(self, x):\n    return torch.relu(self.conv(x))"
    problem = problem_of(tmp_path, init, forward, "torch.rand(128, 64, 128, 128)")
    graph = capture(*on_the_cpu(problem), str(problem.path))
    candidate = load_candidate(problem.source + COPY, "cuda")
    verdict = verify(problem, candidate, graph=graph)
    assert verdict.passed, verdict.worst
    assert verdict.own_peak > 2e9 and verdict.peak <= 2 * verdict.own_peak + 1e9 and not verdict.shapes_note
    total = torch.cuda.mem_get_info()[1]
    for gigabytes, note in ((8, ""), (2, "verified at batch ")):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total)
        try:
            small = verify(problem, load_candidate(problem.source + COPY, "cuda"), graph=graph)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert small.passed and note in small.shapes_note, (small.worst, small.shapes_note)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e6 / total)
    try:
        with pytest.raises(Short):
            verify(problem, load_candidate(problem.source + COPY, "cuda"), graph=graph)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

