"""The zoo: its files keep to the format, and a part of them, another one each day, goes through the whole line.

FUSEWRIGHT_ZOO_DAY=n chooses the part of day n of the year. `make zoo` runs all of them.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fusewright.driver import pipeline
from fusewright.verify.candidate import load_candidate
from fusewright.host import compile_host
from fusewright.options import Options
from fusewright.target.helpers import host_text
from fusewright.frontend.problem import load_problem
from fusewright.driver.suite import SWITCH, Settings, find_models, run_model

ZOO = Path(__file__).parents[2] / "zoo"
PARTS, FEW = 20, 80  # so that a part takes some minutes on two cores, and that which goes with every change half a minute
MODELS = find_models(ZOO)
DAY = int(os.environ.get("FUSEWRIGHT_ZOO_DAY") or datetime.date.today().timetuple().tm_yday)
SHORT = list(MODELS)[DAY % FEW :: FEW]
LONG = [name for name in list(MODELS)[DAY % PARTS :: PARTS] if name not in SHORT]
TODAY = [*SHORT, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


@pytest.mark.parametrize("name", TODAY)
def test_a_part_of_the_zoo_verifies(name: str) -> None:
    environment = {**os.environ, SWITCH: "small", "OMP_NUM_THREADS": "1"}
    result = run_model(MODELS[name], Settings("host", time_limit=300, bench=False), name=name, environment=environment)
    assert result is not None and result.verified, f"{name}: {result and result.outcome}: {result and result.why}"


@pytest.mark.parametrize("name", [SHORT[0], *(pytest.param(name, marks=pytest.mark.slow) for name in [*SHORT[1:], *LONG])])
def test_a_part_of_the_zoo_compiles_at_full_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tiles and rows than at the small one, and so other text: what a GPU would be given, forward and backward, not run."""
    monkeypatch.setenv(SWITCH, "")
    _, _, emitted = pipeline.compile_problem(load_problem(MODELS[name]), Options())
    module = load_candidate(emitted.text, "host", name="new.py").module
    if module._KERNELS:
        compile_host(getattr(module, "_CUDA_SAVING", module._CUDA_SOURCE), include_text=host_text())
    if getattr(module, "_GRADIENT_KERNELS", ()):
        compile_host(module._CUDA_GRADIENTS, include_text=host_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS)[DAY % 5 :: 5])
def test_a_part_of_the_zoo_is_explained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "small")
    text = pipeline.explain(load_problem(MODELS[name]), Options(gradients=False))
    assert "steps" in text and "kernels predicted" in text


def test_the_zoo_is_large_and_in_families() -> None:
    families = {name.split("/")[0] for name in MODELS}
    assert len(MODELS) >= 60
    assert families == {"single", "conv", "transposed", "linear", "network", "generated"}


def test_the_generated_part_is_what_the_generator_writes() -> None:
    done = subprocess.run([sys.executable, str(ZOO / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", ["small", ""], ids=["small", "full"])
def test_every_model_has_two_sizes(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are made on the meta device, which has shapes and no memory."""
    monkeypatch.setenv(SWITCH, size)
    for name, path in MODELS.items():
        namespace: dict[str, object] = {"__name__": name}
        with torch.device("meta"):
            exec(compile(path.read_text(), str(path), "exec"), namespace)
            inputs = namespace["get_inputs"]()  # type: ignore[operator]
        bytes_ = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
        assert bytes_ < (1 << 18 if size else 1 << 32), f"{name}: {bytes_} bytes of inputs"
