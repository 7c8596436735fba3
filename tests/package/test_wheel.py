"""The wheel: everything that the package needs is in it, and it runs where nothing else of the tree is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from docs.tutorial import run_tutorial

import fusewright
from fusewright.frontend.reads import of_a_package

ROOT = Path(__file__).resolve().parents[2]
OLDEST_SETUPTOOLS = 77  # as pyproject.toml asks for; a wheel is built here without the network

pytestmark = pytest.mark.skipif(int(version("setuptools").split(".")[0]) < OLDEST_SETUPTOOLS, reason="setuptools is too old")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a checkout in which nothing was ever built: what an older build left in `build/` would be in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "pyproject.toml"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "one"], check=True)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("fusewright/") for name in archive.namelist() if name.startswith("fusewright/")}
        baked = archive.read("fusewright/commit.txt").decode()
    source = ROOT / "src" / "fusewright"
    ours = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == ours | {"commit.txt"}
    assert {"py.typed", "host/cuda_on_cpu.h", "target/prelude.cuh", "host/block.cpp"} <= packed
    assert len(baked.strip()) >= 7


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment variables of an environment that has the wheel, and beside it only what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")  # behind the wheel's own folder
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return clean | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}


def test_packages_of_another_environment_are_no_code_of_the_user(tmp_path: Path) -> None:
    """PyTorch of the environment below this one, or of the user's own folder: what it imports is not guarded."""
    for folder in ("/usr/lib/python3/dist-packages", "/home/me/.local/lib/python3.12/site-packages", str(Path(torch.__file__).parents[1])):
        assert of_a_package(f"{folder}/typing_extensions.py")
    assert not of_a_package(str(tmp_path / "model.py"))


def test_it_runs_where_it_is_installed(installed: Mapping[str, str], tmp_path: Path) -> None:
    script = "import fusewright, fusewright.driver.cli; print(fusewright.__file__)"
    where = subprocess.run(["python", "-c", script], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert "/venv/" in where.stdout and str(ROOT) not in where.stdout, where.stderr
    said = subprocess.run(["fusewright", "--version"], env=installed, cwd=tmp_path, capture_output=True, text=True)
    assert said.stdout.startswith(f"fusewright {fusewright.__version__} ("), said.stderr


@pytest.mark.slow
def test_the_tutorial_runs_where_it_is_installed(installed: Mapping[str, str], tmp_path: Path) -> None:
    run_tutorial(tmp_path, installed)
