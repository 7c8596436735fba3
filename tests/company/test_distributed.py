"""Two processes train one model, over gloo, with kernels on the CPU: the losses are those of one process with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from company import distributed

from fusewright.process import with_this_package

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without torch.distributed")
RANKS = 2


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the processes saw."""
    for module in (distributed.Net(), distributed.Block()):
        distributed.optimised(module)
    tests = Path(distributed.__file__).parents[1]
    environment = with_this_package(os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"})
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), environment["PYTHONPATH"]])
    meeting = tmp_path_factory.mktemp("meeting") / "place"
    commands = [[sys.executable, distributed.__file__, str(rank), str(meeting)] for rank in range(RANKS)]
    running = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for c in commands]
    done = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), done[0][1] + done[1][1]
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


def test_they_plan_nothing(seen: list[dict[str, Any]]) -> None:
    assert all(rank["cached"] for rank in seen)


@pytest.mark.parametrize("how", ["ddp", "fsdp of the whole", "fsdp of blocks"])
def test_training(how: str, seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank[how]["losses"] == pytest.approx(rank["alone"], rel=1e-4)
        assert rank[how]["launched"] == rank[how]["declared"] and rank[how]["declared"] and not rank[how]["warned"]
    assert seen[0][how]["losses"] == seen[1][how]["losses"]


def test_fsdp_of_a_part_of_what_was_optimised(seen: list[dict[str, Any]]) -> None:
    """It hooks that part: the original runs, and that is said."""
    for rank in seen:
        assert rank["fsdp inside"]["losses"] == pytest.approx(rank["alone"], rel=1e-4)
        assert rank["fsdp inside"]["launched"] == [] and len(rank["fsdp inside"]["warned"]) == 1
        assert "first is a torch.distributed.fsdp._fully_shard._fsdp_init.FSDPBlock, not a Block" in rank["fsdp inside"]["warned"][0]


def test_it_stays_what_it_was(seen: list[dict[str, Any]]) -> None:
    assert all(rank["class"] == ["FSDPNet", True, "DTensor"] for rank in seen)
