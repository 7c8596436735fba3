"""Records that every test of the page shares; made once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from report.sample import record_of

MODELS = Path(__file__).parent.parent / "models"


@pytest.fixture(scope="session")
def made() -> dict[str, Any]:
    return record_of(MODELS / "conv_norm_residual.py")


@pytest.fixture
def record(made: dict[str, Any]) -> dict[str, Any]:
    """A whole record: graph, kernels, verdict, times, text."""
    return copy.deepcopy(made)


@pytest.fixture(scope="session")
def records(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Whole, untimed, failed, and nearly empty."""
    law = "max pool before relu at two_outputs.py:12 (pool), two_outputs.py:14 and 2 more (4 times): relu(pool(x)) = pool(relu(x))"
    untimed = record_of(MODELS / "batch_norm_train.py", timed=False, rules=(law, "a law of another form"))
    failed = record_of(MODELS / "two_outputs.py", passed=False)
    return [made, untimed, failed, {"model": "older.py", "verified": True, "target": "host", "kernels": []}]
