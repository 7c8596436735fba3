"""Every way to look right without being it is caught by the check that names it; honest variants are all accepted.

A candidate is a file that says in its first lines which model it stands for and, if it cheats, what should catch it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import STAGES, Verdict, verify

HERE = Path(__file__).parent
HONEST = sorted((HERE / "honest").glob("*.py"))
TRICKS = sorted((HERE / "tricks").glob("*.py"))
NAMES = {name for stage in STAGES for name, _ in stage} | {"PyTorch left alone", "PyTorch left alone, at the end"}

# The rows of the catalogue of false speed-ups that concern correctness and can be shown without a GPU.
ROWS = {
    "output left in recycled memory, never written",
    "part of the output not written (wrong grid)",
    "no-op or identity kernel",
    "input modified in place",
    "result cached by pointer, by object, by content or on disk",
    "work on another stream, in a thread, or lazily",
    "timers or the grader patched",
    "lower precision than the model's flags allow",
    "TF32 candidate timed against an fp32 baseline",
    "model whose output hardly depends on its input",
    "output smaller than the tolerance, so zeros are accepted",
    "exploits that inputs are uniform on [0, 1)",
    "dropped bias or parameter",
    "relies on default initial values (scale 1, shift 0)",
    "keyed to one shape",
    "changed hyper-parameters or inputs",
    "error caught and the original run instead",
    "the library does all the work",
    "decoy kernel whose result is not used",
    "shared-memory overflow, uninitialised read, race",
    "behaves differently after the warm-up",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def field(path: Path, name: str) -> str:
    found = re.search(rf"^# {name}: (.*)$", path.read_text(), re.MULTILINE)
    assert found, f"{path.name} does not say its {name}"
    return found[1]


def judged(path: Path, precision: str = "eager") -> Verdict:
    problem = load_problem(HERE / "models" / field(path, "model"))
    return verify(problem, load_candidate(path, "host"), options=Options(target="host", precision=precision))


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
@pytest.mark.sampled(3)
def test_honest(path: Path) -> None:
    """Its arithmetic is right. Some are hand-written for the model as it is built, and say which later changes they do not follow."""
    by_the_flags = "# precision: flags\n" in path.read_text()
    verdict = judged(path, "flags" if by_the_flags else "eager")
    failed = {check.name: check.detail for check in verdict.checks if not check.passed}
    excepted = re.findall(r"^# right as built, but does not follow: (.*)$", path.read_text(), re.MULTILINE)
    assert list(failed) == [name for line in excepted for name in line.split(", ")], failed
    assert verdict.max_error <= verdict.tolerance


@pytest.mark.parametrize("path", TRICKS, ids=lambda path: path.stem)
def test_trick(path: Path) -> None:
    verdict = judged(path)
    failed = {check.name: check.detail for check in verdict.checks if not check.passed}
    assert not verdict.passed
    assert field(path, "caught by") in failed, failed
    assert verdict.worst


def test_tf32_of_few_channels_is_a_matter_of_the_flags() -> None:
    """The same candidate: as exact as the flags ask, and less exact than the library is. The budget says by how much."""
    path = HERE / "tricks" / "tf32_of_few_channels.py"
    by_flags, by_library = judged(path, "flags"), judged(path, "eager")
    of_rounding = {"precision", "seeds", "gradients"}
    assert not of_rounding & {check.name for check in by_flags.checks if not check.passed}
    (precision,) = [check for check in by_library.checks if check.name == "precision"]
    assert not precision.passed and precision.number is not None and precision.number > 2
    assert by_library.errors is not None and by_library.errors.ours > 1e-4 > 100 * by_library.errors.eager


def test_every_row_has_a_trick() -> None:
    rows = {field(path, "row") for path in TRICKS}
    assert {row for row in rows if not row.startswith("beyond the table")} == ROWS
    assert {field(path, "caught by") for path in TRICKS} <= NAMES


def test_there_are_enough_of_both() -> None:
    assert len(HONEST) >= 30
    assert len(TRICKS) >= 18
