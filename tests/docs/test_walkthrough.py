"""The walkthrough shows what the stages give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusewright.driver.pipeline import Front, read_problem
from fusewright.driver.tuning.choices import PREDICTED
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "walkthrough.md").read_text()


def block(head: str) -> str:
    """The block of code behind this word."""
    found = re.search(rf"^```{head}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    path = tmp_path_factory.mktemp("walkthrough") / "walk.py"
    path.write_text(block("python"))
    return read_problem(load_problem(path), Options(target="host"))


def test_graphs_are_as_shown(front: Front) -> None:
    assert str(front.captured).strip() == block("graph captured").strip()
    assert str(front.graph).strip() == block("graph rewritten").strip()


def test_kernel_is_as_shown(front: Front) -> None:
    plan, emitted = front.finish(PREDICTED)
    (kernel,) = plan.kernels
    assert f"`{kernel.name}`" in PAGE
    assert kernel.fused is not None and not plan.calls
    for line in filter(None, (line.strip() for line in block("cuda").splitlines())):
        assert line == "…" or line in emitted.text, line
