"""What every test shares: markers, its random numbers, one thread for each worker, and how hard the property tests try."""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fusewright.verify.guard import snapshot

MODELS = Path(__file__).parent / "models"
EXAMPLES = Path(__file__).parent.parent / "examples"
KERNELS = Path(__file__).parent / "kernels"
SAMPLED = 3  # cases of a test of kernels, unless it says otherwise: all of them take half of the time of all tests

settings.register_profile("test", max_examples=25, deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "fuzz", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("test")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers already share the cores


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    left_out(items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="torch.cuda.is_available() is false"))


def left_out(items: Sequence[pytest.Item]) -> None:
    """Of a test that is `sampled(n)`, or of kernels and so SAMPLED, one case in n runs with every change, and one with each value that
    several cases share; the others are slow."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and one_in(item) > 1:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        taken = cases[:: one_in(cases[0])]
        shared = {name for name in cases[0].callspec.params if 2 * len({value_of(case, name) for case in cases}) <= len(cases)}
        met = {(name, value_of(case, name)) for case in taken for name in shared}
        for case in cases:
            values = {(name, value_of(case, name)) for name in shared}
            if case not in taken and values <= met:
                case.add_marker(pytest.mark.slow)
            met |= values


def one_in(case: pytest.Function) -> int:
    marker = case.get_closest_marker("sampled")
    return int(marker.args[0]) if marker else SAMPLED if KERNELS in case.path.parents else 1


def value_of(case: pytest.Function, parameter: str) -> str:
    return repr(case.callspec.params[parameter])


def pytest_collection_finish(session: pytest.Session) -> None:
    """PyTorch's tracer makes so many objects that looking for garbage among them takes a third of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


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
