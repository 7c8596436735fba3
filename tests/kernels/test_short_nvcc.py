"""What nvcc makes of kernels whose instructions were taken out, with no GPU: nothing is spilled, and nothing divides by the book."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kernels.conv.test_conv_nvcc import resources
from kernels.test_rows import FILE

from fusewright.options import Options
from fusewright.pipeline import compile_problem
from fusewright.problem import load_problem

NVCC = shutil.which("nvcc")
pytestmark = [pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH"), pytest.mark.slow]

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
    file, source = tmp_path / "model.py", tmp_path / "kernel.cu"
    file.write_text(FILE.format(init="pass", forward=forward, shape=shape))
    emitted = compile_problem(load_problem(file), Options(gradients=False))[2]
    source.write_text(emitted.text.partition("_CUDA_SOURCE = '''")[2].partition("'''")[0])
    command = [str(NVCC), "-arch=sm_90", "-std=c++17", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "k"), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found = {name: used for name, used in resources(result.stderr).items() if "Ix" not in name}  # 64-bit offsets: tensors of 8 GB
    assert found
    for name, (registers, spilled) in found.items():
        assert spilled == 0 and registers <= 64, f"{name}: {registers} registers, {spilled} bytes spilled"
    assert "norm" in case or not re.search(r"\bdiv\.rn\.f32\b", ptx(source, tmp_path)), "an IEEE division"


def ptx(source: Path, folder: Path) -> str:
    subprocess.run([str(NVCC), "-arch=sm_90", "-std=c++17", "-ptx", "-o", str(folder / "k.ptx"), str(source)], check=True)
    return (folder / "k.ptx").read_text()
