"""What nvcc makes of kernels with several rows to a thread, with no GPU: their loads are under way together, nothing is spilled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import cuda_of
from kernels.nvcc import cubin_of, needs_nvcc
from kernels.test_windows import problem_of

from fusewright.driver.pipeline import compile_problem
from fusewright.options import Options

pytestmark = [needs_nvcc, pytest.mark.slow]

LINE, IMAGE, VOLUME = (64, 192, 8192), (32, 64, 224, 224), (8, 32, 64, 64, 64)
KERNELS = {
    "a pool of an image": ("F.max_pool2d(x, 3, 2, 1)", IMAGE),
    "a pool of a line": ("F.avg_pool1d(x, 4, 2, 1)", LINE),
    "a pool of a volume": ("F.max_pool3d(x, 3, 2, 1)", VOLUME),
    "a part of a window at the end": ("F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)", IMAGE),
    "a pool of something computed": ("F.max_pool2d(F.relu(x * self.weight + 1), 3, 2, 1)", IMAGE),
    "two pools": ("F.max_pool2d(x, 2) - F.avg_pool2d(x, 2)", IMAGE),
    "pads": ("F.pad(x, (1, 2, 3, 0), value=0.5) + F.pad(x * 2, (1, 2, 2, 1), mode='reflect')", IMAGE),
    "joined": ("torch.cat((torch.tanh(x), x * 3), 1) * 2", IMAGE),
    "moved on": ("torch.roll(x, 1, 3) - torch.roll(x, (-1, 2), (3, 2))", IMAGE),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_spilled(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    forward, shape = KERNELS[case]
    emitted = compile_problem(problem_of(tmp_path, forward, shape, dtype), Options(gradients=False))[2]
    assert ("int VEC" if case == "joined" else "ROWS") in emitted.text
    found, _, _ = cubin_of(cuda_of(emitted.text), tmp_path)
    assert found
    for name, (registers, spilled) in found.items():
        most = 64  # 1024 threads fit
        if "COLUMNS" in emitted.text:  # 896 of a thread's vectors; of what vectors do not fit, and of 64-bit offsets, 512
            most = 128 if "Li1E" in name else 72
        assert spilled == 0 and registers <= most, f"{name}: {registers} registers, {spilled} bytes spilled"
