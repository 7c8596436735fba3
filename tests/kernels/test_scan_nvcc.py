"""What nvcc makes of scan kernels, with no GPU: they compile, and nothing they hold is spilled."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels.frame import cuda_of, problem_of
from kernels.nvcc import check_resources, cubin_of, needs_nvcc

from fusewright.driver.pipeline import compile_problem
from fusewright.options import Options

pytestmark = [needs_nvcc, pytest.mark.slow]

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
    problem = problem_of(tmp_path, SCANS[case], "torch.randn(512, 8192)", "torch.randn(512, 8192)")
    emitted = compile_problem(problem, Options(gradients=False))[2]
    found, _, _ = cubin_of(cuda_of(emitted.text), tmp_path)
    check_resources(found, registers=64)  # 1024 threads fit
