"""`optimize --all-variants`: nothing that tuning could choose is missing, and a wrong one is seen whatever was predicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.frame import problem_of

from fusewright.bench.gpu import Sample
from fusewright.codegen.loops import pointwise
from fusewright.codegen.loops.evaluator import Evaluator
from fusewright.driver import all_variants, pipeline
from fusewright.driver.all_variants import BY_PYTORCH, Tried, sweep, try_all, variants
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import MOST_REGIONS, groups
from fusewright.driver.tuning.tune import Tuner
from fusewright.errors import Refused, first_line
from fusewright.ir.expr import Expr, Grouped, Name
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.shrink import choose, space_of
from fusewright.verify.verifier import Check, Verdict

POOLED = "self.lin(self.two(F.max_pool2d(self.conv(x), 2)).flatten(1))"
LAYERS = "self.conv, self.two, self.lin = nn.Conv2d(2, 8, 1), nn.Conv2d(8, 3, 1), nn.Linear(27, 2)"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    """A pool between convolutions, its sizes pinned by a linear layer."""
    problem = problem_of(tmp_path_factory.mktemp("pooled"), POOLED, "torch.randn(4, 2, 6, 6)", init=LAYERS)
    return read_problem(problem, Options(target="host"))


def of_this_model(name: str) -> Verdict:
    return Verdict(not name, (Check(name or "seeds", not name),), f"{name}: far off" if name else "", 0.0, 0.0, (), ())


def test_nothing_that_tuning_tries_is_missing(front: Front) -> None:
    """The predicted one is the fastest here, so that each later one is a change of it."""

    class Clock:
        def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
            self.ms = getattr(self, "ms", 0.0) + 1.0  # whoever comes first is the fastest
            return Sample(self.ms, 0.0, self.ms), call()

        def peak_bytes(self, call: Callable[[], Any]) -> int:
            return 0

    tuner = Tuner(front.problem, lambda choices: front.finish(choices, gradients=False), Clock(), "host", lambda detail: None, 0.0)
    tuner.run()
    every, _ = variants(front)
    tried = {(variant.name, variant.choices) for variant in tuner.variants}
    assert len(tried) > 3 and tried <= {(variant.name, variant.choices) for variant in every}
    names = [variant.name for variant in every]
    assert len(names) == len(set(names))
    assert names[0] == "predicted" and {"the library's, channels-last", "the original's forward", BY_PYTORCH} <= set(names)
    assert any(name.endswith("by PyTorch") and name != BY_PYTORCH for name in names)
    assert not next(variant for variant in every if variant.name == BY_PYTORCH).gradients


def test_each_text_is_judged_once(front: Front) -> None:
    every, _ = variants(front)
    judged: list[str] = []

    def judge(candidate: Any, made: Any) -> Verdict:
        judged.append(candidate.source)
        return of_this_model("")

    known = {every[0].emitted.text: of_this_model("")}
    found = list(try_all(front, every, "host", judge, known, lambda detail: None))
    assert len(judged) == len(set(judged)) == len({variant.emitted.text for variant in every}) - 1
    same = [one for one in found if one.outcome == "the same file as"]
    assert same and not any(one.wrong for one in found) and all(one.detail in {v.name for v in every} for one in same)


def test_what_is_wrong_and_what_does_not_build(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, *args: Any, **named: Any) -> Any:
        if "torch.channels_last" in text:
            raise Refused("new.py: its CUDA does not compile for the host: kernels.cu:3: 'meet' was not declared\n    meet(a);")
        return load_candidate(text, *args, **named)

    def judge(candidate: Any, made: Any) -> Verdict:
        return of_this_model("seeds" if len(made.calls) > 2 else "")

    monkeypatch.setattr(all_variants, "load_candidate", broken)
    found = {one.name: one for one in try_all(front, variants(front)[0], "host", judge, {}, lambda detail: None)}
    channels_last = found["the library's, channels-last"]
    assert channels_last.wrong and channels_last.outcome == "does not build"
    assert channels_last.detail.endswith("kernels.cu:3: 'meet' was not declared")
    different = [one for one in found.values() if one.outcome == "different"]
    assert different and all(one.detail == "seeds: far off" for one in different)


def of_one_image(self: Evaluator, below: Any, op: Any, tap: str) -> Expr:
    """The end of rows as it once was: one image's, though the loop goes through all of them."""
    assert self.rows is not None
    steps = op.stride[below.dim] * 3  # rows of an image of this model
    return Grouped(Name(self.rows.along) * below.step + Name(tap)) < steps


def test_a_kernel_that_only_tuning_could_choose_is_seen_to_be_wrong(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "resident", lambda machine: 0)
    monkeypatch.setattr(pointwise, "ALONE", {rows: 1.0 if rows == 4 else 100.0 for rows in (1, 2, 3, 4)})
    wanted = ("predicted", "the library's, channels-last")

    def outcomes() -> dict[str, Tried]:
        every = [variant for variant in variants(front)[0] if variant.name in wanted]
        return {one.name: one for one in sweep(front, every, "host")}

    assert {one.outcome for one in outcomes().values()} == {"equal"}
    monkeypatch.setattr(Evaluator, "of_some_row", of_one_image)
    found = outcomes()
    assert found["predicted"].outcome == "equal" and found["the library's, channels-last"].outcome == "different", found


def test_the_report_has_them_all(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "judge_of", lambda *args: lambda candidate, made: of_this_model(""))
    run = pipeline.optimize(front.problem, Options(target="host", all_variants=True))
    assert [one["name"] for one in run.report["variants"]] == [variant.name for variant in variants(front)[0]]
    assert run.report["degraded"] == [] and run.report["plain"] is False and not any(one.wrong for one in run.variants)


def test_many_regions_are_left_in_two_halves() -> None:
    regions = {f"r{i}": (f"n{i}",) for i in range(MOST_REGIONS + 1)}
    halves = groups(regions)
    assert len(halves) == 2 and halves[0] | halves[1] == regions and not halves[0].keys() & halves[1].keys()
    assert len(groups(dict(list(regions.items())[:3]))) == 3


NVCC = """Error building extension 'fusewright_0123': [1/2] /usr/local/cuda/bin/nvcc -O3 -c cuda.cu -o cuda.cuda.o
FAILED: [code=1] cuda.cuda.o
/usr/local/cuda/bin/nvcc -O3 -c /home/me/.cache/torch_extensions/fusewright_0123/cuda.cu -o cuda.cuda.o
/home/me/.cache/torch_extensions/fusewright_0123/cuda.cu(12): error: identifier "meet" is undefined
    meet(a);
    ^

1 error detected in the compilation of "cuda.cu".
ninja: build stopped: subcommand failed."""


def test_a_failed_build_shows_the_compilers_first_error() -> None:
    assert first_line(RuntimeError(NVCC)) == 'it does not compile: cuda.cu(12): error: identifier "meet" is undefined'
    assert first_line(RuntimeError("CUDA error: out of memory\nmore")) == "CUDA error: out of memory"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_what_no_size_called_for_is_named(tmp_path: Path) -> None:
    """Where vectors fit, and where they do not: single loads run too. Offsets of 64 bits would take a tensor of 8 GB."""
    front = read_problem(problem_of(tmp_path, "torch.tanh(x) * 2", "torch.randn(4, 64)"), Options(target="host", gradients=False))
    candidate = load_candidate(front.finish(all_variants.PREDICTED)[1].text, "host", name="new.py")
    model = candidate.build_model(front.problem)
    every = set(candidate.not_run)
    assert len(every) == 3
    model(torch.randn(4, 64))
    assert len(candidate.not_run) == 2
    model(torch.randn(257)[1:].view(4, 64))  # misaligned
    (left,) = candidate.not_run
    assert "<long long" in left
    run = pipeline.optimize(front.problem, Options(target="host", gradients=False))
    assert run.report["not_run"] == [left] and f"not run: {left} (64-bit offsets)" in run.report["notes"]


def test_sizes_with_the_remainders_of_the_given_ones(tmp_path: Path) -> None:
    front = read_problem(problem_of(tmp_path, "F.avg_pool2d(x, 2)", "torch.randn(9, 2, 236, 130)"), Options(target="host"))
    shapes = choose(space_of(front.graph, front.model, front.problem.inputs()), lambda sizes: 0.0)
    ((batch, channels, height, width),) = shapes.others["remainders as given"]  # type: ignore[misc]
    assert (height % 8, width % 8) == (236 % 8, 130 % 8) and height <= 24 and width <= 24 and channels == 2 and batch == 3


@pytest.mark.parametrize("older", [False, True])
def test_saved_activations_are_compiled_apart_as_for_a_gpu(older: bool, tmp_path: Path) -> None:
    """What forward runs before any backward is not the kernel that saves, nor on the host. Files of older versions do not name their
    second build: it is made where it is asked for."""
    lines = ["y = F.relu(self.conv(x))"]
    init = "self.conv = nn.Conv2d(8, 16, 3, padding=1)"
    front = read_problem(problem_of(tmp_path, "y.amax(1)", "torch.randn(2, 8, 16, 16)", init=init, lines=lines), Options(target="host"))
    every, _ = variants(front)
    text = next(variant.emitted.text for variant in every if "\n_CUDA_SAVING = " in variant.emitted.text)
    assert "#ifdef SAVING" in text
    text = "\n".join(line for line in text.split("\n") if not (older and line.startswith("_CUDA_SAVING = ")))
    candidate = load_candidate(text, "host", name="new.py", apart=not older)
    model, x = candidate.build_model(front.problem), torch.randn(2, 8, 16, 16)
    for _ in range(2):
        expected = front.problem.model()
        expected.load_state_dict(model.state_dict())
        model.zero_grad()
        torch.testing.assert_close(model(x), expected(x), rtol=1e-2, atol=1e-2)
        model(x).sum().backward()
        expected(x).sum().backward()
        torch.testing.assert_close(model.conv.weight.grad, expected.conv.weight.grad, rtol=2e-2, atol=2e-2)
    library = candidate.library
    assert library is not None and library._saved is not None and library._saved.ran and library.ran
