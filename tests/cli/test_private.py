"""The cache folder is the user's alone: what lies in it is loaded and run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fusewright.errors import Refused
from fusewright.host import compile_host
from fusewright.options import private

SOURCE = """
#include <cuda_runtime.h>
__global__ void one_kernel(float* x) { x[0] = 1.0f; }
extern "C" const char* one(float* x, void* stream) { one_kernel<<<1, 1>>>(x); return nullptr; }
"""


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "deep" / "cache"))
    before = os.umask(0)
    try:
        compile_host(SOURCE)
    finally:
        os.umask(before)
    root = tmp_path / "deep" / "cache"
    assert mode(root) == mode(root / "host") == 0o700


def test_a_folder_that_others_may_read_is_tightened(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o775)
    assert private(folder) == folder
    assert mode(folder) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(Refused, match="belongs to another user; set FUSEWRIGHT_CACHE"):
        private(folder)
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(folder))
    with pytest.raises(Refused, match="belongs to another user"):
        compile_host(SOURCE)
