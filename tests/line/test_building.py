"""Units built side by side: what an emitted file would build itself, asked for in threads, and each text once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from line.test_tune import CHAIN, Prices, forward_only
from line.test_tune import prices as prices  # the fixture

from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning import building
from fusewright.driver.tuning.choices import PREDICTED, Choices
from fusewright.driver.tuning.tune import Tuner, tune
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.training import Training
from fusewright.verify.candidate import Candidate, load_candidate
from fusewright.verify.guard import snapshot

NORMED = CHAIN.replace("torch.logsumexp(torch.tanh(self.conv(x)), 1)", "torch.tanh(self.norm(self.conv(x)))").replace(
    "self.lin =", "self.norm = nn.GroupNorm(4, 16)\n        self.lin ="
)


def front_of(text: str, folder: Path, **options: Any) -> Front:
    (folder / "model.py").write_text(text)
    return read_problem(load_problem(folder / "model.py"), Options(target="host", **options))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_failed", {})


def for_a_gpu(text: str, load_inline: Callable[..., str]) -> Candidate:
    """A file as it is on a GPU, but for nvcc."""
    module = ModuleType("emitted_for_a_gpu")
    exec(compile(text, "new.py", "exec"), vars(module))
    vars(module).update(load_inline=load_inline, ctypes=SimpleNamespace(CDLL=lambda path: path))
    return Candidate("new.py", text, "cuda", module, snapshot())


@pytest.fixture
def saving(tmp_path: Path) -> str:
    """A file with all kinds of units: its convolution stores what backward wants, and backward has kernels."""
    front = front_of(CHAIN.replace("16, 16)", "18, 18)").replace("Linear(14, 12)", "Linear(16, 12)"), tmp_path)
    text = front.finish(Choices(own=frozenset(n.name for n in front.graph.nodes if "conv" in str(n.target))))[1].text
    assert "#ifdef SAVING" in text and "_CUDA_GRADIENTS = " in text
    return text


def test_a_file_finds_what_was_built_before(saving: str) -> None:
    """Under the names, and of the sources, that the file itself asks for; and not a second time."""
    built: list[str] = []

    def load_inline(name: str, **given: Any) -> str:
        built.append(given["cuda_sources"])
        return name

    candidate = for_a_gpu(saving, load_inline)
    units = building.units_of(candidate)
    assert len(units) == 3 and len(building.units_of(candidate, training=False)) == 1
    building.build(units)
    assert sorted(built) == sorted(unit.source for unit in units)
    assert len({candidate.module._library(unit.source) for unit in units}) == 3 and len(built) == 3


def test_units_are_built_at_the_same_time_and_each_text_once(saving: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    together, built = threading.Barrier(4, timeout=30), list[str]()  # three units, and what is done meanwhile

    def load_inline(name: str, **given: Any) -> str:
        together.wait()
        built.append(name)
        return name

    candidates = [for_a_gpu(saving, load_inline) for _ in range(2)]
    building.build([unit for candidate in candidates for unit in building.units_of(candidate)], together.wait)
    assert len(built) == len(set(built)) == 3


def test_what_nvcc_says_is_raised_where_the_file_asks(saving: str) -> None:
    """Also by a file of the same text that is loaded later: PyTorch would not build it again, and miss its library."""

    def load_inline(name: str, **given: Any) -> str:
        if given["cuda_sources"].startswith("#define SAVING"):
            raise RuntimeError("nvcc is tired")
        return name

    first, second = (for_a_gpu(saving, load_inline) for _ in range(2))
    building.build(building.units_of(first))
    vars(second.module)["load_inline"] = lambda name, **given: name
    building.build(building.units_of(second))
    for module in (first.module, second.module):
        assert module._library(module._CUDA_SOURCE) and module._library(module._CUDA_GRADIENTS)
        with pytest.raises(RuntimeError, match="nvcc is tired"):
            module._library("#define SAVING\n" + module._CUDA_SOURCE)


def test_what_is_written_at_last_was_built_while_tuning(tmp_path: Path) -> None:
    """Where kernels compute all gradients: the file whose steps were timed. Where the original trains: the one whose forward was."""
    front = front_of(CHAIN, tmp_path)

    def sources(choices: Choices, gradients: bool = True) -> set[str]:
        candidate = for_a_gpu(front.finish(choices, gradients)[1].text, lambda name, **given: name)
        return {unit.source for unit in building.units_of(candidate)}

    measured = tuple((name, "measured") for name in front.finish(PREDICTED)[1].training)
    assert sources(Choices(training=Training(why=measured))) == sources(PREDICTED) != sources(PREDICTED, gradients=False)
    assert sources(Choices(training=Training(original=True))) == sources(PREDICTED, gradients=False)


def test_on_the_host_there_is_nothing_for_nvcc(tmp_path: Path) -> None:
    candidate = load_candidate(front_of(CHAIN, tmp_path).finish(PREDICTED, gradients=False)[1].text, "host", name="new.py")
    assert building.units_of(candidate) == []


def test_what_cannot_win_is_not_built(tmp_path: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    front = front_of(NORMED, tmp_path)

    def convolving(made: Any) -> int:
        return sum(kernel.fused is not None for kernel in made.kernels)

    predicted = convolving(front.finish(PREDICTED, gradients=False)[0])

    def plan_ms(made: Any) -> float:
        return {0: 5.0, predicted: 1.0}.get(convolving(made), 20.0)

    monkeypatch.setattr("fusewright.driver.tuning.tune.plan_ms", plan_ms)
    found = tune(front.problem, forward_only(front), prices, "host", seconds=0.0)
    timed = [name for name, _ in found.rows]
    (note,) = [note for note in found.notes if note.startswith("not built, since 1 ms")]
    left_out = [name for name in ("our convolutions, stored", "our convolutions, recomputed") if name in note]
    assert left_out and not set(left_out) & set(timed), found
    assert "predicted" in timed and "the library's, channels-last" in timed


def test_the_first_variants_are_built_in_one_go(tmp_path: Path, prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the original runs once meanwhile, for what PyTorch does only once."""
    front, batches = front_of(NORMED, tmp_path, precision="flags"), list[int]()
    build = Tuner.build

    def counted(self: Tuner, ways: Any, *rest: Any, **named: Any) -> None:
        batches.append(len(ways))
        build(self, ways, *rest, **named)

    monkeypatch.setattr(Tuner, "build", counted)
    found = tune(front.problem, forward_only(front), prices, "host", seconds=0.0)
    assert batches[0] >= 4 and sum(batches) == len(found.rows) - 1  # all but eager


def test_predictions_tell_variants_apart(tmp_path: Path) -> None:
    """Fused kernels move less than the library's convolutions and what follows them."""
    from fusewright.driver.tuning.prediction import plan_ms

    wide = CHAIN.replace("rand(2, 8, 16, 16)", "rand(64, 8, 258, 258)").replace("Linear(14, 12)", "Linear(256, 12)")
    front = front_of(wide, tmp_path)
    ours, library = (plan_ms(front.finish(choices, gradients=False)[0]) for choices in (PREDICTED, Choices(own=frozenset())))
    assert 0 < ours < library < 100


def test_another_process_loads_what_was_built(saving: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And builds what was not."""
    candidate, elsewhere = (for_a_gpu(saving, lambda name, **given: name) for _ in range(2))
    vars(candidate.module)["ctypes"] = SimpleNamespace(CDLL=lambda path: SimpleNamespace(_name=f"/built/{path}"))
    forward = building.units_of(candidate, training=False)
    paths = building.libraries(forward)
    assert len(paths) == 1 and paths[0].startswith("/built/fusewright_")
    monkeypatch.setattr("ctypes.CDLL", lambda path: f"loaded {path}")
    building.load_from(building.units_of(elsewhere, training=False), paths)
    assert elsewhere.module._library(elsewhere.module._CUDA_SOURCE) == f"loaded {paths[0]}"
    assert elsewhere.module._library(elsewhere.module._CUDA_GRADIENTS).startswith("fusewright_")
