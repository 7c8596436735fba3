"""The command: what it writes, what it says, and with which status it ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bad_models import BAD, GOOD

import fusewright
from fusewright.driver import cli
from fusewright.driver.all_variants import Tried
from fusewright.driver.commands import files
from fusewright.driver.commands.version import commit
from fusewright.driver.commands.version import version as version_of
from fusewright.driver.suite import Settings
from fusewright.errors import Unsupported
from fusewright.options import Options
from fusewright.verify.verifier import Check, Errors, Verdict

ROOT = Path(__file__).parents[2]
REPORT = {
    "verified": True,
    "target": "host",
    "kernels": [{"name": "row_softmax", "replaces": ["mul", "softmax"], "bytes": 1_500_000, "flops": 12}],
    "library_calls": ["aten.convolution.default"],
    "rules": ["scale_into_softmax"],
    "max_error": 1.25e-7,
    "tolerance": 5e-7,
    "timing": None,
    "notes": ["verified at batch 2"],
}


@dataclass
class Pipeline:
    """Stands in for the line: says what it is told to say, and records what it was given."""

    passed: bool = True
    raises: BaseException | None = None
    report: dict[str, Any] = field(default_factory=lambda: dict(REPORT))
    options: Options | None = None
    calls: int = 0
    variants: tuple[Tried, ...] = ()
    degraded: list[str] = field(default_factory=list)

    def _start(self, options: Options) -> None:
        self.options = options
        self.calls += 1

    def _verdict(self) -> Verdict:
        checks = (
            Check("state_dict", True, "equal", 0.0),
            Check("forward, seed 0", self.passed, "at (3, 1)", 2.0),
            Check("buffers", True, "the model has none", skipped=True),
        )
        worst = "" if self.passed else "element (3, 1) is 2.5 and should be 0.5."
        verdict = Verdict(self.passed, checks, worst, 2.0, 1.0, (), ())
        return replace(verdict, seconds=3.5, peak=2 * 10**9, own_peak=10**9, errors=Errors(2e-6, 1e-6, "output 0"))

    def ahead(self, options: Options) -> tuple[str, ...]:
        return ("load", "capture", "build", "bench")

    def optimize(self, problem: Any, options: Options, progress: Any) -> SimpleNamespace:
        self._start(options)
        progress("capture")
        progress("build", "one kernel")
        progress("build", "two kernels")
        if self.raises:
            raise self.raises
        report = self.report | {"verified": self.passed}
        return SimpleNamespace(
            text="class ModelNew: ...\n", verdict=self._verdict(), report=report, variants=self.variants, degraded=self.degraded
        )

    def verify(self, problem: Any, candidate: Path, options: Options, progress: Any) -> SimpleNamespace:
        self._start(options)
        progress("verify", candidate.name)
        if self.raises:
            raise self.raises
        return self._verdict()

    def explain(self, problem: Any, options: Options) -> str:
        self._start(options)
        return "graph [x] of a line " + "long " * 60


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    stand_in = Pipeline()
    monkeypatch.setitem(sys.modules, "fusewright.driver.pipeline", stand_in)
    monkeypatch.setattr(fusewright.driver, "pipeline", stand_in, raising=False)
    return stand_in


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a good model in it."""
    (tmp_path / "model.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> Outcome:
        status = cli._main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


def one_sentence(outcome: Outcome, status: int) -> str:
    assert outcome.status == status, outcome
    assert re.fullmatch(r"fusewright: [^\n]*[.!?]\n", outcome.err), outcome.err
    assert "Traceback" not in outcome.err + outcome.out
    return outcome.err.removeprefix("fusewright: ").rstrip("\n")


# ---- optimize ----


def test_optimize_writes_beside_the_model(folder: Path, command: Any, pipeline: Pipeline) -> None:
    outcome = command("optimize", "model.py")
    assert (outcome.status, outcome.err) == (0, "")
    assert names(folder) == ["model.py", "model_new.py"]
    assert (folder / "model_new.py").read_text() == "class ModelNew: ...\n"
    assert pipeline.options == Options(output=folder / "model_new.py")


def test_optimize_says_what_it_did(folder: Path, command: Any, pipeline: Pipeline) -> None:
    out = command("optimize", "model.py").out
    for part in (
        "capture",
        "build    two kernels",
        "1 kernel\n",
        "row_softmax  mul, softmax  (1.5 MB, 12 FLOP)",
        "library calls  aten.convolution.default",
        "laws applied   scale_into_softmax",
        "largest error  1.25e-07 (allowed there: 5e-07)",
        "timing         none: not timed",
        "note           verified at batch 2",
        "2 checks held, 1 skipped, 0 failed",
        "wrote model_new.py",
    ):
        assert part in out
    assert "state_dict" not in out
    assert "\x1b" not in out
    assert "  ok    state_dict  equal" in command("optimize", "model.py", "-v").out


def test_optimize_takes_its_options(
    folder: Path, command: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_SANITIZED", "address")
    flags = ["--target", "host", "--no-bench", "--sanitize", "address", "--assume-finite"]
    assert command("optimize", "model.py", "-o", "out.py", "--json", "report.json", *flags).status == 0
    expected = Options(target="host", sanitize="address", assume_finite=True, bench=False, output=folder / "out.py")
    assert pipeline.options == expected
    assert names(folder) == ["model.py", "out.py", "report.json"]
    assert json.loads((folder / "report.json").read_text()) == REPORT


def test_a_quick_run_is_the_predicted_file_with_one_seed(folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert command("optimize", "model.py", "--quick").status == 0
    assert pipeline.options == Options(tune="off", seeds=1, bench=False, output=folder / "model_new.py")


def test_a_suite_is_timed_against_torch_compile(folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert command("optimize", "model.py", *Settings(target="host").arguments()).status == 0
    assert command("optimize", "model.py", *Settings(target="host", precision="flags").arguments()).status == 0
    assert pipeline.options and pipeline.options.bench and pipeline.options.modes == ("eager", "compile")
    assert pipeline.options.precision == "flags"
    refused = command("optimize", "model.py", "--modes", "fast")
    assert refused.status == 2 and "'fast' is not a mode" in refused.err


def test_a_sanitizer_implies_the_host(
    folder: Path, command: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_SANITIZED", "thread")
    assert command("optimize", "model.py", "--sanitize", "thread").status == 0
    assert pipeline.options and pipeline.options.target == "host"


@pytest.mark.parametrize("name", ["optimize", "verify"])
def test_precision(name: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "new.py").write_text("")
    files = ["model.py"] if name == "optimize" else ["model.py", "new.py", "--same-process"]
    command(name, *files)
    assert pipeline.options and pipeline.options.precision == "eager"
    command(name, *files, "--precision", "flags")
    assert pipeline.options.precision == "flags"
    assert command(name, *files, "--precision", "half").status == 2


def test_timing_is_shown(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.report["timing"] = {"eager_ms": 3.5812, "new_ms": 0.4, "gpu": "H200", "compile_ms": None}
    assert "timing         eager_ms 3.58, new_ms 0.4, gpu H200\n" in command("optimize", "model.py").out


def test_a_model_with_nothing_to_fuse(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.report |= {"kernels": [], "library_calls": [], "rules": [], "max_error": None}
    out = command("optimize", "model.py").out
    assert "0 kernels: nothing in this model could be fused" in out
    assert "library calls  none" in out


def test_the_report_is_strict_json(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.report |= {"max_error": float("nan"), "tolerance": float("inf"), "shape": (1, 2)}
    command("optimize", "model.py", "--json", "report.json")
    report = json.loads((folder / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (report["max_error"], report["tolerance"], report["shape"]) == (None, None, [1, 2])


def test_not_equal_writes_no_file(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.passed = False
    (folder / "model_new.py").write_text("older")
    outcome = command("optimize", "model.py", "--json", "report.json")
    sentence = one_sentence(outcome, status=1)
    assert "element (3, 1) is 2.5 and should be 0.5;" in sentence
    assert sentence.endswith("model_new.py was not written.")
    assert "FAIL  forward, seed 0  at (3, 1)" in outcome.out
    assert (folder / "model_new.py").read_text() == "older"
    assert json.loads((folder / "report.json").read_text())["verified"] is False


def test_an_output_that_is_there_is_named_before_it_is_replaced(folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert "replacing" not in command("optimize", "model.py").out
    said = command("optimize", "model.py").out.splitlines()
    assert said.index("replacing model_new.py") < said.index("wrote model_new.py")


def test_what_is_degraded_is_among_the_last_lines(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.degraded = ["the kernels did not verify (seeds: far off); the original's forward is kept"]
    done = command("optimize", "model.py")
    assert done.status == 0 and done.out.splitlines()[-2] == f"warning: degraded: {pipeline.degraded[0]}"
    done = command("optimize", "model.py", "--strict")
    assert done.status == 1 and "--strict: the kernels did not verify" in done.err


def test_a_wrong_variant_is_a_status(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.variants = (Tried("predicted", "equal", "", 1.0, 2), Tried("library", "the same file as", "predicted", 0.0, 2))
    done = command("optimize", "model.py", "--all-variants")
    assert done.status == 0 and pipeline.options is not None and pipeline.options.all_variants
    assert "  predicted  equal  1.0 s  2 kernels" in done.out and "  library  the same file as predicted  0.0 s" in done.out
    pipeline.variants += (Tried("ours", "does not build", "kernels.cu:3: 'meet' was not declared", 0.5, 1),)
    done = command("optimize", "model.py", "--all-variants")
    assert done.status == 1 and "wrong variants: ours" in done.err
    assert "  ours  does not build: kernels.cu:3: 'meet' was not declared  0.5 s  1 kernel" in done.out


@pytest.mark.parametrize("name", ["a cache", "temporary files"])
def test_a_read_only_file_system_is_a_sentence(name: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.raises = OSError(errno.EROFS, "Read-only file system", "/cache/choices")
    says = "/cache/choices: cannot be written: Read-only file system"
    if name == "temporary files":
        pipeline.raises, says = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "No usable temporary"
    done = command("optimize", "model.py")
    assert done.status == 2 and says in done.err


def test_a_read_only_folder_for_a_suite_is_a_sentence(folder: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs: a model that cannot be written would be waited for."""

    def read_only(path: Path, *args: Any, **named: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", read_only)
    done = command("suite", ".", "-o", "kept")
    assert done.status == 2 and "kept: cannot be written: Read-only file system" in done.err


def test_permissions_are_kept_and_links_followed(folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "real.py").write_text("older")
    (folder / "real.py").chmod(0o640)
    (folder / "link.py").symlink_to("real.py")
    assert command("optimize", "model.py", "-o", "link.py").status == 0
    assert (folder / "link.py").is_symlink()
    assert (folder / "real.py").stat().st_mode & 0o777 == 0o640
    assert (folder / "real.py").read_text() == "class ModelNew: ...\n"


# ---- verify and explain ----


def test_verify(folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "new.py").write_text("")
    outcome = command("verify", "model.py", "new.py", "--target", "host", "--same-process")
    assert (outcome.status, outcome.err) == (0, "")
    assert "ok    state_dict  equal" in outcome.out and outcome.out.endswith("\nequal\n")
    assert "verified in 3.5 s, 2 GB of GPU memory at most; a training step of the model takes 1 GB" in outcome.out
    assert "skip  buffers  the model has none" in outcome.out and pipeline.options == Options(target="host")
    pipeline.passed = False
    outcome = command("verify", "model.py", "new.py", "--same-process", "--json", "out.json")
    assert "(forward, seed 0): element (3, 1) is 2.5" in one_sentence(outcome, status=1)
    assert outcome.out.endswith("\ndifferent\n")
    found = json.loads((folder / "out.json").read_text())
    assert (found["seconds"], found["peak_gb"], found["own_peak_gb"]) == (3.5, 2.0, 1.0)
    assert "results: largest error over rms 2.0e-06, eager 1.0e-06 (output 0)" in outcome.out
    assert found["errors"] == {"results": {"ours": 2e-6, "eager": 1e-6, "tensor": "output 0"}, "gradients": None}
    assert found["verified"] is False and found["checks"][1]["number"] == 2.0
    assert [check["status"] for check in found["checks"]] == ["held", "failed", "skipped"]
    assert [check["passed"] for check in found["checks"]] == [True, False, True]


ENDS = {
    "crash": ("import os\nos.kill(os.getpid(), 11)\n", "new.py: ended by SIGSEGV"),
    "exit": ("import sys\nsys.exit(0)\n", "new.py: importing it ended Python with sys.exit(0)"),
    "exit later": (GOOD + "\n\nclass ModelNew(Model):\n    def forward(self, x):\n        raise SystemExit(0)\n", "SystemExit: 0"),
    "hang": ("import time\ntime.sleep(1000)\n", "new.py: ran longer than 1 s"),
    "memory": ("import time\nx = bytearray(2 * 10**9)\nx[::4096] = b'1' * len(x[::4096])\ntime.sleep(1000)\n", "needed more than 1 GB"),
}


@pytest.mark.parametrize("kind", ENDS)
def test_verify_survives_its_candidate(kind: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The sentence says what happened, and the last word is there all the same."""
    source, says = ENDS[kind]
    (folder / "new.py").write_text(source)
    limits = ["--time-limit", "1" if kind == "hang" else "100", "--memory-limit", "1" if kind == "memory" else "24"]
    status = cli._main(["verify", "model.py", "new.py", "--target", "host", *limits])
    outcome = Outcome(status, *capfd.readouterr())
    assert says in one_sentence(outcome, status=1)
    assert outcome.out.splitlines()[-1] == "different"


SAYS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        print("forward of", tuple(x.shape)[1:])
        return x.relu()


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("name", ["optimize", "verify"])
def test_what_forward_prints_is_shown_once(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "model.py").write_text(SAYS)
    (folder / "new.py").write_text(SAYS + "\n\nclass ModelNew(Model):\n    ...\n")
    status = cli._main([name, "model.py", *(["new.py"] if name == "verify" else []), "--target", "host"])
    outcome = Outcome(status, *capfd.readouterr())
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.count("forward of (6,)\n") == outcome.out.count("forward of") == 1
    assert "build" in outcome.out and "checks held" in outcome.out


def test_verify_without_a_candidate(folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert one_sentence(command("verify", "model.py", "new.py"), status=2) == "new.py: no such file."
    assert "directory" in one_sentence(command("verify", "model.py", "."), status=2)
    assert "NEW.py" in one_sentence(command("verify", "model.py"), status=2)
    assert pipeline.calls == 0


def test_explain(folder: Path, command: Any, pipeline: Pipeline) -> None:
    outcome = command("explain", "model.py", "--assume-finite")
    assert outcome == Outcome(0, "graph [x] of a line " + "long " * 60 + "\n", "")
    assert pipeline.options == Options(assume_finite=True)
    assert names(folder) == ["model.py"]


# ---- bad input: status 2, one sentence, nothing written ----


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["optimize", "verify", "explain"])
def test_bad_model_files(kind: str, name: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    bad = BAD[kind]
    (folder / "model.py").write_bytes(bad.source.encode() if isinstance(bad.source, str) else bad.source)
    (folder / "new.py").write_text("")
    sentence = one_sentence(command(name, "model.py", *(["new.py", "--same-process"] if name == "verify" else [])), status=2)
    assert re.search(bad.says, sentence.removesuffix(".")), sentence
    assert names(folder) == ["model.py", "new.py"]
    assert pipeline.calls == 0


@pytest.mark.parametrize("name", ["optimize", "explain"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("gone.py", "gone.py: no such file."),
        ("no/gone.py", "no/gone.py: no such file."),
        (".", ".: a directory, not a"),
        ("model.py/x.py", "model.py/x.py: cannot be read: Not a directory."),
        ("x" * 300 + ".py", "cannot be read: File name too long."),
    ],
)
def test_no_model_file(name: str, path: str, says: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert says in one_sentence(command(name, path), status=2)
    assert names(folder) == ["model.py"]


@pytest.mark.parametrize("option", ["-o", "--json"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        (".", "cannot be written: it is a directory."),
        ("no/out.py", "cannot be written: there is no folder no."),
        ("model.py", "cannot be written: it would overwrite model.py."),
        ("./link.py", "cannot be written: it would overwrite model.py."),
        ("hard.py", "cannot be written: it would overwrite model.py."),
        ("model.py/out.py", "cannot be written: "),
        ("loop.py", "cannot be written: it is not a regular file."),
        ("/dev/null", "cannot be written: it is not a regular file."),
        ("/proc/out.py", "cannot be written: "),
        ("x" * 300, "cannot be written: File name too long."),
    ],
)
def test_unwritable_places(option: str, path: str, says: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "link.py").symlink_to("model.py")
    (folder / "hard.py").hardlink_to("model.py")
    (folder / "loop.py").symlink_to("loop.py")
    before = names(folder)
    assert says in one_sentence(command("optimize", "model.py", option, path), status=2)
    assert names(folder) == before
    assert pipeline.calls == 0, "the place is checked before the work starts"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_places_without_permission(folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "closed").mkdir(mode=0o500)
    (folder / "closed.py").touch(mode=0o400)
    for path in ("closed/out.py", "closed.py"):
        assert "cannot be written: " in one_sentence(command("optimize", "model.py", "-o", path), status=2)


def test_one_place_for_two_files(folder: Path, command: Any, pipeline: Pipeline) -> None:
    sentence = one_sentence(command("optimize", "model.py", "-o", "a", "--json", "a"), status=2)
    assert "would overwrite a" in sentence


def test_a_disk_that_fills_up(folder: Path, command: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, path: Path, *_: Any, **__: Any) -> None:
            Path(path).touch()

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, text: str) -> None:
            if text:
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "open", Full, raising=False)
    sentence = one_sentence(command("optimize", "model.py"), status=2)
    assert sentence == "model_new.py: cannot be written: No space left on device."
    assert names(folder) == ["model.py"]


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (OSError(errno.EIO, "I/O error"), 2)])
def test_nothing_is_left_when_the_last_step_fails(
    error: BaseException,
    status: int,
    folder: Path,
    command: Any,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    one_sentence(command("optimize", "model.py", "--json", "report.json"), status=status)
    assert names(folder) == ["model.py"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no command given; see fusewright --help."),
        (["optimise"], "No such command 'optimise'. Did you mean 'optimize'? See fusewright --help."),
        (["suite", ".", "--resume"], "--resume leaves out what --json holds as verified, and no --json is given"),
        (["optimize"], "Missing argument 'MODEL.py'; see fusewright optimize --help."),
        (["optimize", "model.py", "--fast"], "No such option: --fast"),
        (["optimize", "model.py", "--target", "tpu"], "'tpu' is not one of"),
        (["optimize", "model.py", "--sanitize", "memory"], "'memory' is not one of"),
        (
            ["optimize", "model.py", "--sanitize", "thread", "--target", "cuda"],
            "sanitizers run on the host target only",
        ),
        (["optimize", "model.py", "other.py"], "unexpected extra argument"),
        (["optimize", "model.py", "-o"], "requires an argument"),
    ],
)
def test_bad_usage(arguments: list[str], says: str, folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert says in one_sentence(command(*arguments), status=2)
    assert pipeline.calls == 0


# ---- what goes wrong inside ----


def test_a_model_that_cannot_be_captured(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.raises = Unsupported("aten.foo.default at model.py:31 (encoder.norm):\n  no record in ops.py")
    sentence = one_sentence(command("optimize", "model.py"), status=2)
    assert sentence == "aten.foo.default at model.py:31 (encoder.norm): no record in ops.py."
    assert names(folder) == ["model.py"]


def test_a_fault_of_ours(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.raises = KeyError("conv")
    sentence = one_sentence(command("optimize", "model.py"), status=3)
    assert sentence == "internal error: KeyError: 'conv'; rerun with --traceback and report it."
    with_traceback = command("optimize", "model.py", "--traceback")
    assert with_traceback.status == 3
    assert with_traceback.err.startswith("Traceback")
    assert with_traceback.err.endswith("; rerun with --traceback and report it.\n")


def test_a_refusal_with_its_traceback(folder: Path, command: Any, pipeline: Pipeline) -> None:
    (folder / "model.py").write_text("1 / 0\n")
    err = command("explain", "model.py", "--traceback").err
    assert "Traceback" in err and "1 / 0" in err and err.endswith("division by zero.\n")


def test_a_forward_that_exits(folder: Path, command: Any, pipeline: Pipeline) -> None:
    pipeline.raises = SystemExit(0)
    assert "sys.exit(0)" in one_sentence(command("optimize", "model.py"), status=2)


def test_warnings_stay_away_from_the_sentence(folder: Path, command: Any, pipeline: Pipeline) -> None:
    source = "import logging, warnings\nwarnings.warn('beware')\nlogging.error('mind')\n"
    (folder / "model.py").write_text(source + "1 / 0\n")
    assert "division by zero" in one_sentence(command("explain", "model.py"), status=2)
    (folder / "model.py").write_text(source + GOOD)
    with pytest.warns(UserWarning, match="beware"):
        assert command("explain", "model.py", "-v").status == 0


# ---- the process: entry points, signals, pipes ----


def python(*arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, **changes
    )


def test_version_and_help() -> None:
    version = python("-m", "fusewright", "--version")
    assert (version.returncode, version.stderr) == (0, "")
    assert re.fullmatch(rf"fusewright {re.escape(fusewright.__version__)}( \([0-9a-f]{{7,}}(, changed)?\))?\n", version.stdout)
    assert "optimize" in python("-m", "fusewright", "--help").stdout
    usage = python("-m", "fusewright", "optimize", "--help").stdout
    for option in ("--output", "--target", "--json", "--no-bench", "--sanitize", "--assume-finite", "--verbose"):
        assert option in usage


def test_the_commit_is_git_s_or_what_the_wheel_has(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "fusewright"
    package.mkdir(parents=True)
    assert version_of(package) == fusewright.__version__
    (package / "commit.txt").write_text("1234567\n")
    assert version_of(package) == f"{fusewright.__version__} (1234567)"
    checkout = tmp_path / "checkout" / "src" / "fusewright"
    checkout.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path / "checkout"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert version_of(checkout) == fusewright.__version__, "no commit yet"
    (checkout / "a.py").touch()
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    assert re.fullmatch(r"[0-9a-f]{7,}", commit(checkout))
    (checkout / "a.py").write_text("changed")
    assert commit(checkout).endswith(", changed")


def test_completion() -> None:
    """As a shell asks for it."""
    asked = {"_FUSEWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": "fusewright op", "COMP_CWORD": "1", "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, "-m", "fusewright"], env=os.environ | asked, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["optimize"], run.stderr
    asked |= {"COMP_WORDS": "fusewright cache ", "COMP_CWORD": "2"}
    run = subprocess.run([sys.executable, "-m", "fusewright"], env=os.environ | asked, capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["list", "size", "clear"], run.stderr


def test_quiet_says_only_what_goes_wrong(folder: Path, command: Any, pipeline: Pipeline) -> None:
    assert command("optimize", "model.py", "-q") == Outcome(0, "", "") and (folder / "model_new.py").exists()
    (folder / "new.py").write_text("")
    assert command("verify", "model.py", "new.py", "--same-process", "--quiet") == Outcome(0, "", "")
    pipeline.degraded = ["the kernels did not verify"]
    assert command("optimize", "model.py", "-q") == Outcome(0, "", "warning: degraded: the kernels did not verify\n")
    pipeline.passed = False
    outcome = command("verify", "model.py", "new.py", "--same-process", "-q")
    assert outcome.out == "" and "not equal to the model" in one_sentence(outcome, status=1)


def test_importing_fusewright_brings_no_torch() -> None:
    run = python("-c", "import sys, fusewright, fusewright.driver.cli; print('torch' in sys.modules)")
    assert run.stdout == "False\n", run.stderr


def test_the_process_ends_with_the_status(tmp_path: Path) -> None:
    run = python("-m", "fusewright", "optimize", "gone.py", cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", "fusewright: gone.py: no such file.\n")


SLOW_MODEL = "import time\nprint('started', flush=True)\ntime.sleep(100)\n"

STAND_IN = """\
import sys, time, types
from fusewright.driver import cli
pipeline = types.ModuleType("fusewright.driver.pipeline")
def optimize(problem, options, progress):
    progress("build", "started")
    time.sleep(100)
pipeline.optimize, pipeline.ahead = optimize, lambda options: ()
sys.modules["fusewright.driver.pipeline"] = pipeline
cli.main()
"""


@pytest.mark.parametrize("where", ["while the file is imported", "while a stage runs"])
def test_ctrl_c(where: str, folder: Path) -> None:
    if where == "while the file is imported":
        (folder / "model.py").write_text(SLOW_MODEL)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", STAND_IN, "optimize", "model.py", "--json", "report.json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout
        for line in process.stdout:
            if "started" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "fusewright: interrupted; nothing was written.\n")
    assert names(folder) == ["model.py"]


LONG_EXPLANATION = """\
import sys, types
from fusewright.driver import cli
pipeline = types.ModuleType("fusewright.driver.pipeline")
pipeline.explain = lambda problem, options: "line\\n" * 200_000
sys.modules["fusewright.driver.pipeline"] = pipeline
cli.main()
"""


def test_a_reader_that_goes_away(folder: Path) -> None:
    line = f"'{sys.executable}' -c \"$SCRIPT\" explain model.py | head -n 1"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "SCRIPT": LONG_EXPLANATION}
    run = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("line\n", "")


def test_running_out_of_memory_is_no_fault_of_ours(folder: Path, command: Any, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch's is named, which no other command imports."""

    def optimize(*_: Any) -> Any:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")

    monkeypatch.setattr(pipeline, "optimize", optimize)
    outcome = command("optimize", "model.py")
    assert "out of memory" in one_sentence(outcome, status=2) and not (folder / "model_new.py").exists()
