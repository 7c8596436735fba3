"""Emitted files under other versions of PyTorch, their kernels on the CPU.

FUSEWRIGHT_TORCHES names interpreters that have such a version, separated by colons; `make versions` makes them and runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fusewright.driver import pipeline
from fusewright.driver.suite import SWITCH
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

ROOT = Path(__file__).resolve().parents[2]
INTERPRETERS = [path for path in os.environ.get("FUSEWRIGHT_TORCHES", "").split(os.pathsep) if path]
FOUNDING = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "examples").glob("*.py"))
# Their files have, among them, every part of the runtime: autograd's step, saved activations, constants, state, tables of values.
ZOO = """single/batch_norm_train single/cumsum single/constant_table linear/linear_dropout_train linear/linear_gated_bf16
    conv/conv2d_softmax_bf16 network/running_average network/structured_results network/shuffle_block network/lstm_tagger
    network/token_embedding network/momentum_queue network/transformer_block network/convnext_block""".split()

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INTERPRETERS, reason="FUSEWRIGHT_TORCHES names no interpreter")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Written by this version of PyTorch. Those of the zoo ask for their small size when they are run, too."""
    folder = tmp_path_factory.mktemp("files")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "small")
        for name in [*FOUNDING, *(f"zoo/{name}" for name in ZOO)]:
            _, _, emitted = pipeline.compile_problem(load_problem(ROOT / f"{name}.py"), Options(target="host"))
            found.append(folder / f"{Path(name).name}_new.py")
            found[-1].write_text(emitted.text)
    return found


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_files_run_their_kernels(interpreter: str, files: list[Path]) -> None:
    """Forward, backward and buffers are the model's, every kernel was launched, and nothing was said of the original operators."""
    script = Path(__file__).with_name("in_another_torch.py")
    environment = {**os.environ, SWITCH: "small", "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([interpreter, str(script), *map(str, files)], env=environment, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(one["file"]) for one in found] == files
    for one in found:
        assert one["forward"] and set(one["launched"]) == {*one["forward"], *one["gradients"]} and not one["warned"], one
