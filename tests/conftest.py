"""What every test shares: markers, its random numbers, one thread for each worker, and how hard the property tests try."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fusewright.guard import snapshot

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


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A clock, a function or a flag that one test leaves changed decides over another: by order, on some machines only."""
    before = snapshot()
    yield
    changed = [*before.patched(), *before.changed_flags()]
    before.restore()
    assert not changed, f"left changed: {changed}"


@pytest.fixture(autouse=True)
def own_random_numbers(request: pytest.FixtureRequest) -> None:
    """The same numbers whatever ran before in this process. Other ones: `--draw N`."""
    seed = zlib.crc32(request.node.nodeid.encode()) + request.config.getoption("--draw")
    random.seed(seed)
    torch.manual_seed(seed)


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
    parser.addoption("--draw", type=int, default=0, metavar="N", help="other random numbers than the usual ones")
