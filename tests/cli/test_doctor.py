"""`fusewright doctor`: a line for each thing, what to do where it is not well, and a status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewright.driver import cli
from fusewright.driver.commands import health
from fusewright.driver.commands.health import BAD, NOTE, WELL, Finding
from fusewright.errors import Refused


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


NAMES = ["python", "fusewright", "torch", "gpu", "g++", "nvcc", "ninja", "cache", "self-test"]


def test_a_line_for_each_thing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "self_test", lambda target: Finding("self-test", WELL, target))
    assert cli._main(["doctor", "--target", "host"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line[6:16].strip() for line in out[:-1]] == NAMES and out[-2:] == ["ok    self-test   host", "all is well"]


@pytest.mark.slow
def test_a_machine_that_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of it, with the self-test: a model is optimised and verified on the host."""
    status = cli._main(["doctor", "--target", "host"])
    out = capsys.readouterr().out
    lines = {line[6:16].strip(): line for line in out.splitlines()[:-1]}
    assert list(lines) == NAMES
    assert status == 0 and out.splitlines()[-1] == "all is well", out
    assert "self-test   a model was optimised and verified on host in " in lines["self-test"]
    assert torch.__version__ in lines["torch"] and sys.version.split()[0] in lines["python"]


def test_what_is_not_well_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("python", WELL, "3.12"), Finding("nvcc", NOTE, "none"), Finding("ninja", BAD, "none", "pip install ninja")]
    monkeypatch.setattr(health, "findings", lambda target: iter(found))
    assert cli._main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["FAIL  ninja       none; pip install ninja", "1 thing to see to"]
    assert cli._main(["doctor", "-q"]) == 1
    assert capsys.readouterr() == ("", "fusewright: ninja: none; pip install ninja.\n")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise Refused("none")

    monkeypatch.setattr(health, "gnu_compiler", none)
    monkeypatch.setenv("CXX", "clang++")
    one = health.compiler_here()
    assert one.status == BAD and "CXX=clang++ is none" in one.found and "install g++" in one.todo


@pytest.mark.parametrize("needed", [False, True])
def test_no_nvcc_and_no_ninja(needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(health.cpp_extension, "is_ninja_available", lambda: False)
    nvcc, ninja = health.nvcc_here(needed), health.ninja_here(needed)
    assert nvcc.status == ninja.status == (BAD if needed else NOTE)
    assert ("CUDA_HOME" in nvcc.todo, "pip install ninja" in ninja.todo) == (needed, needed)


def test_a_toolkit_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setattr(health.cpp_extension, "CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    one = health.nvcc_here(needed=True)
    assert one.status == NOTE and one.found.startswith("11.8 (") and "CUDA 13.0" in one.todo
    monkeypatch.setattr(torch.version, "cuda", "11.7")
    assert health.nvcc_here(needed=True).status == WELL


def test_no_gpu(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.shutil, "which", lambda name: None)
    assert health.gpu_here().status == NOTE and "nothing is timed" in health.gpu_here().found
    assert health.gpu_here(needed=True).status == BAD
    monkeypatch.setattr(health.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "install a PyTorch with CUDA" in health.gpu_here().todo
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "driver" in health.gpu_here().todo
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES=''" in health.gpu_here().found


def test_old_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    assert health.torch_here().status == BAD and "torch>=2.6" in health.torch_here().todo
    monkeypatch.setattr(health.sys, "version_info", (3, 9, 1))
    assert health.python_here().status == BAD


def test_a_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "file"))
    one = health.cache_here()
    assert one.status == BAD and "not a folder" in one.found and "FUSEWRIGHT_CACHE" in str(one)
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "new"))
    assert health.cache_here().status == WELL
    monkeypatch.setattr(health, "LEAST_ROOM", 10**18)
    assert health.cache_here().status == BAD and "cache clear" in health.cache_here().todo


FAILS = {"no such kernel": "print('no such kernel.'); sys.exit(3)", "longer than 1 s": "import time; time.sleep(60)"}


@pytest.mark.parametrize(("says", "script"), FAILS.items())
def test_a_self_test_that_fails(says: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def another(command: list[str], **rest: Any) -> Any:
        assert command[1:4] == ["-m", "fusewright", "optimize"]
        return start([sys.executable, "-c", f"import sys; {script}"], **rest)

    monkeypatch.setattr(health.subprocess, "Popen", another)
    monkeypatch.setattr(health, "LONGEST", 1.0)
    one = health.self_test("host")
    assert one.status == BAD and says in one.found and one.todo


def test_a_slow_machine_is_well_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(health.subprocess, "Popen", lambda command, **rest: start([sys.executable, "-c", ""], **rest))
    assert health.self_test("host").status == WELL
    monkeypatch.setattr(health, "EXPECTED", 0.0)
    assert health.self_test("host").status == NOTE and "busy, or slow" in health.self_test("host").todo


def test_optimize_for_a_gpu_without_ninja_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything runs: each candidate would fail to build, and a file without kernels would be written."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(health.cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(health.cpp_extension, "is_ninja_available", lambda: False)
    (tmp_path / "model.py").write_text(health.MODEL)
    assert cli._main(["optimize", str(tmp_path / "model.py")]) == 2
    said = capsys.readouterr().err
    assert "there is no nvcc (install a CUDA toolkit" in said and "ninja (pip install ninja)" in said and "--target host" in said
    health.needs_a_toolchain("host")


NO_SETUPTOOLS = "No module named 'setuptools'; pip install setuptools."
NEEDS_SETUPTOOLS = "setuptools (PyTorch's extensions need it) is not installed here: pip install setuptools."
WITHOUT = """
import sys
gone = sys.argv.pop(1)
class Without:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == gone:
            raise ModuleNotFoundError(f"No module named {gone!r}", name=gone)
sys.meta_path.insert(0, Without())
from fusewright.driver.cli import main
main()
"""


@pytest.mark.parametrize(
    ("gone", "arguments", "status", "says"),
    [
        ("torch", ["doctor"], 1, "torch: not installed; pip install torch."),
        ("torch", ["explain", "model.py"], 2, "PyTorch is not installed here: pip install torch."),
        ("torch", ["cache", "size"], 0, ""),
        pytest.param("setuptools", ["doctor"], 1, f"torch: cannot be imported: {NO_SETUPTOOLS}", marks=pytest.mark.slow),
        ("setuptools", ["optimize", "model.py"], 2, NEEDS_SETUPTOOLS),
    ],
)
def test_without_pytorch(gone: str, arguments: list[str], status: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(health.MODEL)
    environment = {"PYTHONPATH": str(Path(health.__file__).parents[2]), "FUSEWRIGHT_CACHE": str(tmp_path / "none"), "PATH": ""}
    command = [sys.executable, "-c", WITHOUT, gone, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, f"fusewright: {says}\n" if says else "")
