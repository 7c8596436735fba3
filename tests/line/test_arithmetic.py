"""What float32 convolutions multiply where TF32 is allowed: `--arithmetic`, and scaled fp16 in TF32's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fusewright
from fusewright.driver import pipeline
from fusewright.driver.all_variants import variants
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.suite import Settings
from fusewright.driver.tuning.choices import Choices, convolutions
from fusewright.driver.tuning.tune import Tuned, key
from fusewright.errors import Refused
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule import fusion
from fusewright.schedule.training import Training
from fusewright.target.helpers import helpers
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

SCALED = "our convolutions by scaled fp16"
MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x):
        return torch.tanh(self.conv(x) * 0.5)


def get_inputs():
    return [torch.randn(2, 32, 20, 24)]


def get_init_inputs():
    return []
"""


def front_of(folder: Path, arithmetic: str = "auto") -> Front:
    (folder / "model.py").write_text(MODEL)
    return read_problem(load_problem(folder / "model.py"), Options(target="host", arithmetic=arithmetic))


def ours(front: Front, **choices: bool) -> tuple[list[str], str]:
    """What our convolutions multiply, and the file."""
    made, emitted = front.finish(Choices(own=convolutions(front.graph), **choices))  # type: ignore[arg-type]
    convs = [kernel.fused.anchor.conv for kernel in made.kernels if kernel.fused is not None]
    return ["fp16" if conv.scaled else "tf32" if conv.tf32 else "float32" for conv in convs], emitted.text


def test_scaled_fp16_is_a_variant_that_verifies(tmp_path: Path) -> None:
    """It is chosen by timing alone, asks the flag, says above its kernel how it multiplies, and is kept in a record."""
    front = front_of(tmp_path)
    (scaled,) = [named.choices for named in variants(front)[0] if named.name == SCALED]
    assert scaled == Choices(own=convolutions(front.graph), scaled=True) == Choices.from_dict(scaled.to_dict())
    found, text = ours(front, scaled=True)
    assert found == ["fp16"] and "_tf32_allowed" in text and "//   one product of fp16 scaled by powers of two" in text
    assert ours(front)[0] == ["tf32"] and "warpgroup_mma_f16" not in ours(front)[1]
    verdict = verify(front.problem, load_candidate(text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


def test_scaled_fp16_that_does_not_verify_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file with TF32 is written, with a note; it is not degraded."""
    front = front_of(tmp_path)
    chosen = Choices(own=convolutions(front.graph), scaled=True)
    monkeypatch.setattr(pipeline, "tuned_elsewhere", lambda *_: Tuned(chosen))
    right = helpers()["scaled_halves"]
    broken = replace(right, bodies=None, text=right.text.replace("half_bits(x * scale)", "half_bits(x * scale * 0.5f)"))
    assert broken.text != right.text
    monkeypatch.setitem(helpers(), "scaled_halves", broken)
    run = pipeline.optimize(front.problem, Options(target="host"))
    assert run.verdict.passed and run.choices == replace(chosen, scaled=False)
    assert "warpgroup_mma_f16" not in run.text and run.report["degraded"] == []
    assert any("scaled fp16 did not verify" in note for note in run.report["notes"])


def test_tf32_leaves_fp16_out(tmp_path: Path) -> None:
    front = front_of(tmp_path, "tf32")
    assert SCALED not in [named.name for named in variants(front)[0]] and ours(front)[0] == ["tf32"]


def test_ieee_splits_operands(tmp_path: Path) -> None:
    front = front_of(tmp_path, "ieee")
    found, text = ours(front)
    assert found == ["float32"] and SCALED not in [named.name for named in variants(front)[0]]
    assert "//   three products of TF32 parts, as exact as float32: as was asked for" in text and "_tf32_allowed" not in text


def test_choices_are_kept_apart(tmp_path: Path) -> None:
    """Also where the predicted file has no such kernel."""
    fronts = [front_of(tmp_path, arithmetic) for arithmetic in ("auto", "tf32", "ieee")]
    choices = Choices(own=frozenset(), training=Training(own_weights=frozenset()))
    library = [front.finish(choices)[1] for front in fronts]
    assert len({emitted.text for emitted in library}) == 1
    assert len({key(emitted, "a GPU", front.precision.name) for emitted, front in zip(library, fronts, strict=True)}) == 3


def test_every_door_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    model, x = nn.Sequential(nn.Conv2d(32, 64, 3), nn.Tanh()), torch.randn(1, 32, 12, 12)
    for arithmetic, words in (("ieee", "three products of TF32 parts"), ("tf32", "one TF32 product")):
        new = fusewright.optimize(model, x, target="host", verify=False, gradients=False, cache=False, arithmetic=arithmetic)
        assert words in new.source, arithmetic
    with pytest.raises(Refused, match="arithmetic 'fp8' is not one of auto, tf32, ieee"):
        fusewright.optimize(model, x, target="host", arithmetic="fp8")
    with pytest.raises(Exception, match="arithmetic 'fp8'"):
        torch.compile(model, backend="fusewright", options={"target": "host", "arithmetic": "fp8"})(x)
    assert "--arithmetic" not in Settings().arguments() and Settings(arithmetic="ieee").arguments()[-2:] == ["--arithmetic", "ieee"]
