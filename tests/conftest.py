"""What every test shares: markers, one thread for each worker, and how hard the property tests try."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

MODELS = Path(__file__).parent / "models"
EXAMPLES = Path(__file__).parent.parent / "examples"

settings.register_profile("test", max_examples=25, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "fuzz", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("test")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers already share the cores


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch.cuda.is_available() is false"))


CLOCKS = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")}


@pytest.fixture(autouse=True)
def clocks_stay() -> Iterator[None]:
    """A candidate that patches a clock must not decide how long another test waits."""
    yield
    changed = [name for name, function in CLOCKS.items() if getattr(time, name) is not function]
    for name in changed:
        setattr(time, name, CLOCKS[name])
    assert not changed, f"left patched: {changed}"


@pytest.fixture
def models() -> Path:
    """The folder of small model files."""
    return MODELS


@pytest.fixture
def examples() -> Path:
    """The folder of the three founding models."""
    return EXAMPLES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files of emitted text anew")
