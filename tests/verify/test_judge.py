"""The verdict is that of a process which never runs the candidate's code."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewright.driver import cli
from fusewright.driver.pipeline import compile_problem, verify, verify_apart
from fusewright.errors import Ended
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.process import Limits
from fusewright.verify import wire
from fusewright.verify.variants import Variant

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, slope=0.1):
        super().__init__()
        self.linear = nn.Linear(features, 8)
        self.norm = nn.BatchNorm1d(8)
        self.slope, self.calls = slope, 0

    def forward(self, x):
        self.calls += 1
        return nn.functional.leaky_relu(self.norm(self.linear(x)), self.slope)


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return [6]
"""
COPY = MODEL + "\n\nclass ModelNew(Model):\n    ...\n"
WRONG = MODEL + "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        return 1.01 * super().forward(x)\n"
LIMITS = Limits(100.0, 24.0)
HOST = Options(target="host")

# Each makes a wrong result look right in the process where it runs.
ATTACKS = {
    "the comparison replaced": """
import fusewright.verify.budget, fusewright.verify.guard
fusewright.verify.guard.Snapshot.patched = lambda self: []
fusewright.verify.budget.Miss.passed = property(lambda self: True)
fine = dict(ratio=0.0, gross=0.0, why="", got=0.0, expected=0.0, allowed=1.0, index=())
fusewright.verify.budget.Miss.__init__ = lambda self, *a, **k: self.__dict__.update(fine)
""",
    "the verdict replaced": """
import fusewright.verify.verifier, fusewright.verify.guard
fusewright.verify.guard.Snapshot.patched = lambda self: []
equal = lambda checks, findings, trace, note: Verdict(True, tuple(checks), "", 0.0, 1.0, (), (), note)
fusewright.verify.verifier._verdict.__code__ = equal.__code__
""",
    "the end, with a word of its own": """
import os
os.write(1, b"equal\\n")
os._exit(0)
""",
    "nonsense on every pipe": """
import os
for descriptor in range(3, 64):
    try:
        os.write(descriptor, b"\\0" * 7 + b"\\x08not JSON")
    except OSError:
        pass
""",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_candidate_does_to_its_process_changes_no_verdict(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("new.py").write_text(WRONG + ATTACKS[name])
    status = cli._main(["verify", "model.py", "new.py", "--target", "host"])
    out, err = capfd.readouterr()
    assert status == 1 and out.splitlines()[-1] == "different" and "equal\n" not in out
    assert err.startswith("fusewright: ") and err.count("\n") == 1, err


def test_the_judge_does_not_run_the_candidate(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    marks = tmp_path / "marks"
    marks.mkdir()
    note = f"\nimport os\nopen(os.path.join({str(marks)!r}, str(os.getpid())), 'w').close()\n"
    (tmp_path / "new.py").write_text(COPY + note)
    verdict = verify_apart(load_problem(tmp_path / "model.py"), tmp_path / "new.py", HOST, LIMITS)
    assert verdict.passed, verdict.worst
    (process,) = (path.name for path in marks.iterdir())
    assert process != str(os.getpid())


def statuses(verdict: object) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["copy", "wrong", "does not follow"])
@pytest.mark.sampled(2)
def test_the_same_checks_with_the_same_outcome(kind: str, tmp_path: Path) -> None:
    """In one process and in two. The model keeps a counter and buffers, and takes other arguments."""
    (tmp_path / "model.py").write_text(MODEL)
    deaf = COPY.replace("    ...\n", "    def __init__(self, features, slope=0.1):\n        super().__init__(features)\n")
    (tmp_path / "new.py").write_text({"copy": COPY, "wrong": WRONG, "does not follow": deaf}[kind])
    problem = load_problem(tmp_path / "model.py")
    apart = verify_apart(problem, tmp_path / "new.py", HOST, LIMITS)
    together = verify(problem, tmp_path / "new.py", HOST)
    assert statuses(apart) == statuses(together)
    assert apart.passed == (kind == "copy")
    assert apart.max_error == pytest.approx(together.max_error, nan_ok=True)  # none, where state on self failed first


@pytest.mark.slow
def test_a_file_with_kernels(tmp_path: Path, models: Path) -> None:
    problem = load_problem(models / "softmax_rows.py")
    (tmp_path / "new.py").write_text(compile_problem(problem, HOST)[2].text)
    apart = verify_apart(problem, tmp_path / "new.py", HOST, LIMITS)
    together = verify(problem, tmp_path / "new.py", HOST)
    assert statuses(apart) == statuses(together)
    assert apart.kernels == together.kernels != ()
    assert statuses(apart)["kernels matter"] == statuses(apart)["kernels launched"] == "held"


def test_a_process_that_ends_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    ends = "    def forward(self, x):\n        import os\n        os.kill(os.getpid(), 11) if self.calls > 1 else None\n"
    (tmp_path / "new.py").write_text(COPY.replace("    ...\n", ends + "        return super().forward(x)\n"))
    with pytest.raises(Ended, match=r"new\.py: ended by SIGSEGV"):
        verify_apart(load_problem(tmp_path / "model.py"), tmp_path / "new.py", HOST, LIMITS)


def test_messages() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    sent: dict[str, Any] = {"t": x.t(), "late": x.flatten()[1:5], "half": x.bfloat16(), "none": x[:0], "one": x.sum()}
    sent["rest"] = [1, None, (2.5, "a"), float("inf")]
    stream = io.BytesIO()
    wire.send(stream, {**sent, "variant": Variant("g", ((3, 4), None))})
    stream.seek(0)
    got = wire.receive(stream, {"Variant": Variant})
    assert got["variant"] == Variant("g", ((3, 4), None)) and got["rest"] == sent["rest"]
    for name in ("t", "late", "half", "none", "one"):
        a, b = got[name], sent[name]
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()) and torch.equal(a, b)


@pytest.mark.parametrize(
    "header",
    [
        b'{"value": {"record": "Variant", "fields": {}}, "parts": []}',
        b'{"value": {"tensor": 0, "dtype": "float32", "size": [1000], "stride": [1], "offset": 0}, "parts": [4]}\0\0\0\0',
        b'{"value": {"tensor": 0, "dtype": "object", "size": [1], "stride": [1], "offset": 0}, "parts": [4]}\0\0\0\0',
        b'{"value": {"tensor": 0, "dtype": "float32", "size": [1], "stride": [1], "offset": -1}, "parts": [4]}\0\0\0\0',
        b"[]",
        b"not JSON",
    ],
)
def test_the_judge_takes_values_and_tensors_only(header: bytes) -> None:
    length = len(header.rstrip(b"\0"))
    with pytest.raises(wire.Nonsense):
        wire.receive(io.BytesIO(length.to_bytes(8, "big") + header))
