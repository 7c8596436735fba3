"""Plans of the doors' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Plans of this run alone; what g++ built is taken from the usual place."""
    folder = tmp_path_factory.mktemp("plans")
    with mock.patch("fusewright.driver.plans.cache_root", lambda: folder):
        yield folder
