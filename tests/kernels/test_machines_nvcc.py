"""nvcc takes the units of the founding models, planned for each kind of machine, with no GPU there."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from kernels.nvcc import cubin_of, needs_nvcc

from fusewright.driver import pipeline
from fusewright.driver.tuning.choices import PREDICTED
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

FOUNDING = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
BUILT_FOR = {"A100": "sm_80", "L4": "sm_89", "H200": "sm_90a", "B200": "sm_100", "RTX 4090": "sm_120"}  # the last: as a desktop's

CASES = [(path, machine) for path in FOUNDING for machine in BUILT_FOR]
OFTEN = [case for case in CASES if case == (FOUNDING[1], "L4")]

pytestmark = needs_nvcc


@pytest.mark.parametrize(
    ("path", "machine"),
    [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in OFTEN)],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_nvcc_takes_the_units_of_the_founding_models(path: Path, machine: str, tmp_path: Path) -> None:
    front = pipeline.read_problem(load_problem(path), Options(target="host", arch=machine, precision="flags"))
    made, emitted = front.finish(PREDICTED)
    module = ModuleType("emitted")
    exec(emitted.text, vars(module))
    found, _, _ = cubin_of(module._CUDA_SOURCE, tmp_path, BUILT_FOR[machine])
    for kernel in made.kernels:
        assert any(emitted.launched[kernel.name] in entry for entry in found), kernel.name
    if module._GRADIENT_KERNELS:
        found, _, _ = cubin_of(module._CUDA_GRADIENTS, tmp_path, BUILT_FOR[machine])
        assert len(found) >= len(module._GRADIENT_KERNELS)
