"""Every name in an emitted file is defined: at full sizes other kernels are chosen than at those the host can run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fusewright.options import Options
from fusewright.pipeline import read_problem
from fusewright.problem import load_problem
from fusewright.tune import Choices

ROOT = Path(__file__).parent.parent.parent
CHANNELS_LAST = Choices(own=frozenset(), channels_last=True)
MODELS = {
    "two convolutions of our own": ("zoo/network/residual_block.py", Choices()),
    "stored": ("benchmarks/chains/s1005_conv_transpose2d_divide_silu_batch_norm.py", Choices()),
    "channels-last": ("benchmarks/chains/s1033_conv_transpose2d_batch_norm_clamp_silu.py", CHANNELS_LAST),
    "four warps": ("examples/conv3d_maxpool_logsumexp.py", Choices()),
}


@pytest.mark.parametrize("case", MODELS, ids=lambda name: name.replace(" ", "-"))
def test_every_name_is_defined(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEWRIGHT_ZOO", raising=False)
    file, choices = MODELS[case]
    _, emitted = read_problem(load_problem(ROOT / file), Options(target="host")).finish(choices)
    (tmp_path / "new.py").write_text(emitted.text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path / "new.py")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
