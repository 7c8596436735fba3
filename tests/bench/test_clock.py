"""The class that touches the GPU, with a GPU made of stand-ins: that every line of it runs, and in which order."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusewright.bench import gpu as bench_gpu
from fusewright.bench import roofline
from fusewright.bench.gpu import Gpu

CPU = torch.device("cpu")


class World:
    """One clock for all: every step that is noted takes a millisecond."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def note(self, what: str) -> float:
        self.steps.append(what)
        return float(len(self.steps))


class FakeEvent:
    world: World

    def __init__(self, enable_timing: bool = False):
        assert enable_timing
        self.at = 0.0

    def record(self, stream: Any) -> None:
        self.at = self.world.note("record")

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at - self.at


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(FakeEvent, "world", world, raising=False)
    properties = SimpleNamespace(
        name="Stand-in", major=9, minor=0, multi_processor_count=132, total_memory=1, L2_cache_size=1 << 20, uuid="abc"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    for name in ("reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *device, name=name: world.note(name))
    held = iter([100, 100])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(held))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 24, 1 << 25))
    monkeypatch.setattr(bench_gpu, "_Event", FakeEvent)
    monkeypatch.setattr(bench_gpu, "_record", FakeEvent.record)
    monkeypatch.setattr(bench_gpu, "_elapsed", FakeEvent.elapsed_time)
    monkeypatch.setattr(bench_gpu, "_synchronize", lambda device: world.note("synchronize"))
    monkeypatch.setattr(bench_gpu, "_stream", lambda device: None)
    monkeypatch.setattr(Gpu, "flush", lambda self: world.note("flush"))
    return world


def test_a_queued_call_follows_the_flush_at_once(world: World) -> None:
    ms, result = Gpu(CPU).queued(lambda: world.note("call"))
    assert world.steps == ["synchronize", "flush", "record", "call", "record", "synchronize"]
    assert (ms, result) == (2.0, 4.0)


def test_a_call_from_idle_is_closed_by_a_synchronisation(world: World) -> None:
    sample, _ = Gpu(CPU).from_idle(lambda: world.note("call"))
    assert world.steps == ["flush", "synchronize", "record", "call", "record", "synchronize", "record", "synchronize"]
    assert (sample.ms, sample.late_ms) == (2.0, 2.0) and sample.wall_ms > 0


def test_flushing_writes_and_reads() -> None:
    gpu = Gpu.__new__(Gpu)
    gpu.written, gpu.read, gpu.largest, gpu.driver = torch.ones(8), torch.ones(8), torch.zeros(()), None
    gpu.flush()
    assert not gpu.written.any() and gpu.largest == 1


def test_memory_beyond_what_was_held(world: World) -> None:
    assert Gpu(CPU).peak_bytes(lambda: world.note("call")) == 600
    assert world.steps.index("reset_peak_memory_stats") < world.steps.index("call")


def test_ceilings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "matmul_rate", lambda device, timed, dtype, size, tf32=False: timed(lambda: None))
    found = Gpu(CPU).ceilings()
    moved = (1 << 24) // 16
    assert found.copy == pytest.approx(2 * moved / 1e-3) and found.read == pytest.approx(moved / 1e-3)
    assert found.l2_bytes == 1 << 20 and found.fp32 == 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_profile_of_a_machine_without_a_gpu_is_empty(world: World) -> None:
    assert Gpu(CPU).spans(lambda: torch.ones(4) + 1) == []


def test_facts_and_settling(world: World) -> None:
    gpu = Gpu(CPU)
    assert gpu.facts()["name"] == "Stand-in" and gpu.facts()["capability"] == "9.0"
    gpu.settle()
    assert world.steps == ["synchronize", "empty_cache"]


SMI = """#!/bin/sh
case "$*" in *clocks_event_reasons*) echo "not a valid field" ; exit 2 ;; esac
echo "$*" > "$(dirname "$0")/asked"
echo "570.10, 1980, 2619, 1980, 34, 75.92, 700.00, 0x0000000000000008"
"""


def test_clocks_by_nvidia_smi(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer name of a field is asked for first, then the older one; only this GPU, by its name."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = Gpu(CPU).clocks()
    assert found["held_back"] == ["hardware slowdown"] and found["sm_clock_mhz"] == 1980
    asked = (tmp_path / "asked").read_text()
    assert "clocks_throttle_reasons.active" in asked and "-i GPU-abc" in asked


def test_no_nvidia_smi(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Gpu(CPU).clocks() == {}
