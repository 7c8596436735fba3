"""What nvcc makes of scan kernels, with no GPU: they compile, and nothing they hold is spilled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kernels.conv.test_conv_nvcc import resources
from kernels.test_scan import FILE

from fusewright.options import Options
from fusewright.pipeline import compile_problem
from fusewright.problem import load_problem

NVCC = shutil.which("nvcc")
pytestmark = [pytest.mark.skipif(NVCC is None, reason="nvcc is not on the PATH"), pytest.mark.slow]

SCANS = {
    "rows": "torch.cumsum(x, 1)",
    "rows of bf16": "torch.cumsum(x.bfloat16() * y.bfloat16(), 1)",
    "rows, masked and from the end": "torch.cumsum((x * (y > 0)).flip(1), 1).flip(1) - x",
    "rows that no vector divides": "torch.cumsum(F.pad(x, (1, 0)), 1)",
    "two scans": "torch.exp(torch.cumsum(x, 1)) * torch.cumprod(x, 1)",
    "a scan of a scan": "torch.cumsum(torch.cumsum(x, 1) * y, 1)",
    "columns": "torch.logcumsumexp(x * y, 0)",
    "whole numbers": "torch.cumsum(x > y, 1)",
}


@pytest.mark.parametrize("case", SCANS, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_spilled(case: str, tmp_path: Path) -> None:
    file, source = tmp_path / "model.py", tmp_path / "kernel.cu"
    inputs = "torch.randn(512, 8192), torch.randn(512, 8192)"
    file.write_text(FILE.format(names="x, y", forward=SCANS[case], inputs=inputs))
    emitted = compile_problem(load_problem(file), Options(gradients=False))[2]
    source.write_text(emitted.text.partition("_CUDA_SOURCE = '''")[2].partition("'''")[0])
    command = [str(NVCC), "-arch=sm_90", "-std=c++17", "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "k"), str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found = resources(result.stderr)
    assert found
    for name, (registers, spilled) in found.items():
        assert spilled == 0 and registers <= 64, f"{name}: {registers} registers, {spilled} bytes spilled"  # 1024 threads fit
