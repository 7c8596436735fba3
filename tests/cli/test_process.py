"""Processes of their own, and what one that was ended leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusewright.process import OLD_LOCK, Limits, drop_locks, now, watch

BUILDS = """
import os, sys, time
os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)  # as torch.utils.file_baton.FileBaton does
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "fusewright_0123").mkdir()
    return tmp_path / "fusewright_0123"


def building(lock: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", BUILDS, str(lock)], start_new_session=True)
    while not lock.exists():
        time.sleep(0.01)
    return process


def test_a_build_that_was_ended_blocks_no_other(folder: Path) -> None:
    lock, start = folder / "lock", now()
    process = building(lock)
    assert watch(process, start, Limits(seconds=0.0), poll=0.01) == "time limit"
    assert not lock.exists()


def test_a_build_that_still_runs_keeps_its_lock(folder: Path) -> None:
    lock = folder / "lock"
    process = building(lock)
    try:
        drop_locks(since=0.0)
        assert lock.exists()
    finally:
        process.kill()
        process.wait()


def test_a_lock_that_nobody_holds_is_dropped_when_it_is_old(folder: Path) -> None:
    lock, others = folder / "lock", folder.parent / "another"
    others.mkdir()
    for file in (lock, others / "lock"):
        file.touch()
    drop_locks()
    assert lock.exists()  # perhaps of a process that cannot be seen from here
    for file in (lock, others / "lock"):
        os.utime(file, (time.time() - 2 * OLD_LOCK,) * 2)
    drop_locks()
    assert not lock.exists() and (others / "lock").exists()
