"""The two CUDA files of this folder, compiled once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusewright.host import HostLibrary, compile_host

sys.path.insert(0, str(Path(__file__).parent))
from host_sources import PRELUDE, RIGHT, WRONG


@pytest.fixture(scope="session")
def right() -> HostLibrary:
    return HostLibrary(compile_host(RIGHT, include_text=PRELUDE))


@pytest.fixture(scope="session")
def wrong() -> HostLibrary:
    return HostLibrary(compile_host(WRONG, include_text=PRELUDE))
