"""What nvcc makes of kernels whose instructions were taken out, with no GPU: nothing is spilled, and nothing divides by the book."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from kernels.frame import cuda_of, problem_of
from kernels.nvcc import NVCC, check_resources, cubin_of, needs_nvcc

from fusewright.driver.pipeline import compile_problem
from fusewright.options import Options

pytestmark = [needs_nvcc, pytest.mark.slow]

KERNELS = {
    "activations": ("F.silu(x) + F.elu(x) + F.softplus(x) + F.logsigmoid(x) + F.mish(x) + F.hardtanh(x)", "4096, 4096"),
    "softmax": ("torch.softmax(x * 2, -1)", "4096, 1024"),
    "softmax of bf16": ("torch.softmax(x.bfloat16(), -1)", "4096, 512"),
    "softmax of longer rows": ("torch.softmax(x, -1)", "4096, 8192"),
    "norm of activations": ("F.layer_norm(F.gelu(x), (4096,))", "4096, 4096"),
    "shortest rows": ("torch.softmax(x, -1)", "65536, 4"),
    "rolls": ("torch.roll(x, (1, -2), (0, 1)) * 2 + F.pad(x[None], (1, 0, 0, 0), mode='circular')[0, :, 1:]", "4096, 4096"),
}


@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_spilled_or_divided(case: str, tmp_path: Path) -> None:
    forward, shape = KERNELS[case]
    problem = problem_of(tmp_path, forward, f"torch.randn({shape})")
    source = cuda_of(compile_problem(problem, Options(gradients=False))[2].text)
    found, _, _ = cubin_of(source, tmp_path)
    found = {name: used for name, used in found.items() if "Ix" not in name}  # 64-bit offsets: tensors of 8 GB
    check_resources(found, registers=64)
    assert "norm" in case or not re.search(r"\bdiv\.rn\.f32\b", ptx(tmp_path / "kernel.cu", tmp_path)), "an IEEE division"


def ptx(source: Path, folder: Path) -> str:
    subprocess.run([str(NVCC), "-arch=sm_90", "-std=c++17", "-ptx", "-o", str(folder / "k.ptx"), str(source)], check=True)
    return (folder / "k.ptx").read_text()
