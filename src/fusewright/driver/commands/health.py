"""What Fusewright needs of a machine, looked at one by one: what is there, and what to do where it is not well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils import cpp_extension

from ...errors import Refused, first_line
from ...host.compile import gnu_compiler
from ...options import private
from ...process import Limits, now, watch, with_this_package
from ...words import shown_amount
from .kept import everything, root_of_cache
from .version import version

OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 6)  # as pyproject.toml has them
LEAST_ROOM = 500 * 10**6  # bytes of disk: a suite's kernels for the host take about as much
EXPECTED = 10.0  # seconds for the self-test: 4.7 s on two shared cores, 8.4 s where the host's runtime is built first
LONGEST = 60.0  # seconds until it is ended
SECONDS = 20.0  # for a compiler to say which one it is

WELL, NOTE, BAD = "ok", "note", "FAIL"

MODEL = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x) * 2, dim=-1)


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `todo` says what to do where it is not well."""

    name: str
    status: str  # WELL | NOTE: it works without | BAD
    found: str
    todo: str = ""

    def __str__(self) -> str:
        return f"{self.status:<4}  {self.name:<10}  {self.found}{f'; {self.todo}' if self.todo else ''}"


def findings(target: str) -> Iterator[Finding]:
    """Each as it is found, the self-test last. `target`: auto, cuda or host."""
    gpu = torch.cuda.is_available()
    cuda = target == "cuda" or (target == "auto" and gpu)
    yield python_here()
    yield Finding("fusewright", WELL, f"{version()} in {Path(__file__).parents[1]}")
    yield torch_here()
    yield gpu_here(needed=target == "cuda")
    yield compiler_here(needed=True)
    yield nvcc_here(needed=cuda)
    yield ninja_here(needed=cuda)
    yield cache_here()
    yield self_test("cuda" if cuda else "host")


def python_here() -> Finding:
    here = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("python", BAD, here, f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Finding("python", WELL, here)


def torch_here() -> Finding:
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    here = f"{torch.__version__}, {built}"
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        return Finding("torch", BAD, here, f"pip install 'torch>={'.'.join(map(str, OLDEST_TORCH))}'")
    return Finding("torch", WELL, here)


def gpu_here(needed: bool = False) -> Finding:
    """A GPU is not needed: without one kernels are verified on the CPU, and nothing is timed."""
    absent = BAD if needed else NOTE
    without = "kernels run on the CPU and nothing is timed"
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        shown = [f"{one.name} ({one.major}.{one.minor}, {shown_amount(one.total_memory, 'B')})" for one in devices]
        return Finding("gpu", WELL, ", ".join(shown))
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", absent, f"none: {without}")
    if torch.version.cuda is None:
        return Finding("gpu", absent, f"there may be one, but this PyTorch is built without CUDA: {without}", "install a PyTorch with CUDA")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return Finding("gpu", absent, f"none is visible (CUDA_VISIBLE_DEVICES={hidden!r}): {without}", "unset it to see all of them")
    return Finding("gpu", absent, f"PyTorch sees none: {without}", "see whether nvidia-smi lists one, and whether its driver is new enough")


def compiler_here(needed: bool = True) -> Finding:
    absent = BAD if needed else NOTE
    try:
        compiler = gnu_compiler()
    except Refused:
        other = f"; CXX={os.environ['CXX']} is none" if os.environ.get("CXX") else ""
        return Finding("g++", absent, f"none is found{other}", "install g++ (Debian: apt install g++), or set CXX to one")
    said = _says([compiler, "--version"])
    return Finding("g++", WELL, f"{said.splitlines()[0] if said else 'of unknown version'} ({compiler})")


def nvcc_here(needed: bool) -> Finding:
    """Of the toolkit that PyTorch would take."""
    absent = BAD if needed else NOTE
    home = cpp_extension.CUDA_HOME
    compiler = Path(home) / "bin" / "nvcc" if home else None
    if compiler is None or not compiler.is_file():
        without = "" if needed else ": needed only where there is a GPU"
        todo = "install a CUDA toolkit with nvcc, or set CUDA_HOME to one" if needed else ""
        return Finding("nvcc", absent, f"none is found{without}", todo)
    said = [line for line in _says([str(compiler), "--version"]).splitlines() if "release" in line]
    release = said[0].partition("release ")[2].split(",")[0] if said else "?"
    here = f"{release} ({compiler})"
    theirs = torch.version.cuda
    if needed and theirs and release.split(".")[0] != theirs.split(".")[0]:
        return Finding("nvcc", NOTE, here, f"PyTorch is built with CUDA {theirs}: a toolkit of the same major version is safer")
    return Finding("nvcc", WELL, here)


def ninja_here(needed: bool) -> Finding:
    """PyTorch builds a file's CUDA with it."""
    if cpp_extension.is_ninja_available():
        return Finding("ninja", WELL, _says(["ninja", "--version"]).strip() or "there")
    if needed:
        return Finding("ninja", BAD, "none is found: PyTorch cannot build CUDA without it", "pip install ninja")
    return Finding("ninja", NOTE, "none is found: needed only where there is a GPU")


def needs_a_toolchain(target: str) -> None:
    """Refused where kernels are to be built for the GPU that is here, and nothing can build them."""
    if target == "host" or not torch.cuda.is_available():
        return
    missing = [one for one in (nvcc_here(needed=True), ninja_here(needed=True)) if one.status == BAD]
    if missing:
        what = ", ".join(f"{one.name} ({one.todo})" for one in missing)
        raise Refused(f"kernels cannot be built for the GPU: there is no {what}; --target host verifies on the CPU, doctor shows more")


def cache_here() -> Finding:
    todo = "set FUSEWRIGHT_CACHE to a folder of your own"
    try:
        folder = private(root_of_cache().absolute())
        with tempfile.TemporaryFile(dir=folder):
            room = shutil.disk_usage(folder).free
    except (Refused, OSError) as error:
        return Finding("cache", BAD, f"cannot be used: {first_line(error)}", "" if "FUSEWRIGHT_CACHE" in str(error) else todo)
    held = shown_amount(sum(one.size for one in everything()), "B") or "0 B"
    here = f"{folder}, {held} kept, {shown_amount(room, 'B') or '0 B'} free"
    if room < LEAST_ROOM:
        return Finding("cache", BAD, here, "make room: fusewright cache clear")
    return Finding("cache", WELL, here)


def self_test(target: str) -> Finding:
    """A small model through `optimize`, in a process of its own."""
    name, limits = "self-test", Limits(LONGEST)
    todo = f"fusewright optimize examples/MODEL.py --target {target} --traceback shows more"
    with tempfile.TemporaryDirectory(prefix="fusewright-doctor-") as folder:
        model, errors = Path(folder) / "self_test.py", Path(folder) / "errors"
        model.write_text(MODEL)
        command = [sys.executable, "-m", "fusewright", "optimize", str(model), "--target", target, "--quick", "--forward-only", "--quiet"]
        start = now()
        with errors.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--strict"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=with_this_package(os.environ),
                start_new_session=True,
            )
            ended = watch(process, start, limits, poll=0.02)
        took = now() - start
        said = errors.read_text(errors="replace").strip().splitlines()
    if ended:
        return Finding(name, BAD, f"on {target}: {limits.why(ended)}", "is the machine busy? Try again")
    if process.returncode != 0:
        return Finding(name, BAD, f"on {target}: {said[-1] if said else f'exit status {process.returncode}'}".rstrip("."), todo)
    here = f"a model was optimised and verified on {target} in {took:.1f} s"
    if took > EXPECTED:
        return Finding(name, NOTE, here, f"{EXPECTED:g} s are usual: this machine is busy, or slow")
    return Finding(name, WELL, here)


def _says(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


