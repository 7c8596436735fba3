"""What nvcc makes of a kernel, with no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH")

Resources = dict[str, tuple[int, int]]  # by kernel: registers, and bytes that are spilled


def cubin_of(source: str, folder: Path, arch: str = "sm_90") -> tuple[Resources, str, Path]:
    """What each kernel takes, ptxas's report, and the file it wrote. The flags are those that PyTorch builds with: halves convert to
    nothing by themselves."""
    file, cubin = folder / "kernel.cu", folder / "kernel.cubin"
    file.write_text(source)
    command = [str(NVCC), f"-arch={arch}", "-std=c++17", *COMMON_NVCC_FLAGS, "-cubin", "-Xptxas", "-v", "-o", str(cubin), str(file)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return resources(result.stderr), result.stderr, cubin


def resources(report: str) -> Resources:
    """Registers and spilled bytes of each kernel in ptxas's report."""
    found, name, spilled = {}, "", 0
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            name = match[1]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(match[1]) + int(match[2])
        elif match := re.search(r"Used (\d+) registers", line):
            found[name] = int(match[1]), spilled
    return found


def check_resources(found: Resources, registers: int, spilled: int = 0) -> None:
    """Every kernel takes at most so many registers, and spills at most so many bytes."""
    assert found
    for name, (taken, lost) in found.items():
        assert lost <= spilled and taken <= registers, f"{name}: {taken} registers, {lost} bytes spilled"


def machine_code(cubin: Path, kernel: str) -> str | None:
    """The instructions of the kernel whose name holds this; None without a disassembler."""
    disassembler = shutil.which("cuobjdump")
    if not disassembler:
        return None
    listing = subprocess.run([disassembler, "-sass", str(cubin)], capture_output=True, text=True).stdout
    return next(part for part in listing.split("Function :") if kernel in part.split("\n")[0])


def spills_between_products(listing: str) -> bool:
    """Some stretch of code from one product to the next, with no barrier between, reads or writes local memory."""
    found = re.findall(r"\b(HMMA|BAR|BRA|LDL|STL)\b", listing)
    return re.search(r"HMMA( HMMA)*( LDL| STL)+ HMMA", " ".join(found)) is not None
