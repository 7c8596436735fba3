"""Convolutions of float32 where TF32 is not allowed: two TF32 numbers for each, on the host target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from kernels.conv.founding import STATISTICS
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, explain, operands
from kernels.conv.test_conv_host import (
    AWKWARD,
    PHASED,
    PHASED_TILES,
    REDUCTIONS,
    SANITIZED,
    TILES,
    WINDOWS,
    check_moments,
    check_sanitized,
    conv2d,
    run,
    transposed,
)
from kernels.conv.test_takeover import FILE

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    OverChannels,
    OverPositions,
    Pointwise,
    Tile,
    Window,
    candidate_tiles,
    conv_kernel,
)
from fusewright.codegen.mma.conv_spec import TOTAL, VALUE
from fusewright.driver.pipeline import compile_problem, optimize, read_problem
from fusewright.driver.tuning.choices import Choices, convolutions
from fusewright.frontend.problem import load_problem
from fusewright.ir import functions as fn
from fusewright.ir.expr import Field
from fusewright.options import Options
from fusewright.schedule import conv_stored, fusion
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

CASES = AWKWARD | {f"phases: {name}": case for name, case in PHASED.items()}


def strict(conv: Conv) -> Conv:
    return replace(conv, tf32=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_elements(case: str) -> None:
    conv, batch, sizes = CASES[case]
    out, found = run(strict(conv), Epilogue(), batch, sizes)
    assert explain(out, *found) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "stored moments"])
def test_tiles(name: str, epilogue: str) -> None:
    conv, tile = strict(conv2d(20, 32, 3, padding=1)), TILES[name]
    if epilogue == "stored moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 10, 21), slices=2, tile=tile, beside=True)
        return
    rows = Epilogue(reduce=OverChannels("LogSumExp"))
    out, (value, allowed) = run(conv, rows if epilogue == "rows" else Epilogue(), 2, (10, 20), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("name", PHASED_TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "moments"])
def test_tiles_of_phases(name: str, epilogue: str) -> None:
    conv, tile = strict(transposed(2, 20, 32, 3, 2, 1, 1)), PHASED_TILES[name]
    if epilogue == "moments":
        check_moments(conv, OverPositions("CloseMoments"), (2, 5, 21), slices=2, tile=tile)
        return
    out, found = run(conv, Epilogue(), 2, (5, 21), tile)
    assert explain(out, *found) is None


@pytest.mark.parametrize("name", ["max 2x2", "avg 2x5"], ids=lambda name: name.replace(" ", "-"))
def test_windows(name: str) -> None:
    window = WINDOWS[name]
    out, found = run(strict(conv2d(8, 24, 3, padding=1)), Epilogue(window=window), 1, (13, 35))
    pool = F.max_pool2d if window.kind == "max" else F.avg_pool2d
    value, allowed = (pool(part, window.size) for part in found)
    assert explain(out, value, allowed + (0 if window.kind == "max" else 2e-7)) is None


@pytest.mark.parametrize("accumulator", REDUCTIONS)
def test_over_channels(accumulator: str) -> None:
    """In several warps, of which the last lacks some."""
    out, found = run(strict(conv2d(8, 144, 3)), Epilogue(reduce=OverChannels(accumulator)), 2, (7, 19))
    assert explain(out, *REDUCTIONS[accumulator](*found)) is None


def test_softmax_over_channels() -> None:
    after = Pointwise(fn.exp(VALUE - Field(TOTAL, "m")) / Field(TOTAL, "s"))
    epilogue = Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=after)
    out, (value, allowed) = run(strict(conv2d(8, 40, 3)), epilogue, 2, (6, 13))
    expected = value.softmax(1)
    assert explain(out, expected, expected * (2 * allowed.amax(1, keepdim=True) + 1e-6)) is None


def chain(conv: Conv, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One float32 multiply-add after the other, as a thread would sum."""
    columns, rows = F.unfold(x, conv.kernel, padding=conv.padding)[0], w.flatten(1)
    total = torch.zeros(rows.shape[0], columns.shape[1])
    for k in range(columns.shape[0]):
        total = (total.double() + rows[:, k : k + 1].double() * columns[k].double()).float()
    return total


ROWS_TOGETHER = Tile(2, (1, 8, 1), (1, 1, 2), chunk=16)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("conv", [conv2d(256, 32, 1, bias=False), conv2d(96, 32, 3, bias=False), conv2d(48, 16, 5, bias=False)])
def test_as_exact_as_plain_sums(conv: Conv, positive: bool) -> None:
    """Against float64 it errs no more than a chain of float32 sums, also where all have one sign and what is cut off adds up."""
    conv = strict(conv)
    x, w, _ = operands(conv, 1, (12, 12))
    x, w = (x.abs(), w.abs()) if positive else (x, w)
    value, _ = convolved(conv, x, w, None)
    plain = (chain(conv, x, w).reshape(value.shape).double() - value).square().mean().sqrt()
    for tile in (candidate_tiles(conv, Epilogue())[0], ROWS_TOGETHER):
        text, out = conv_kernel("k", conv, Epilogue(), tile), torch.full(value.shape, float("nan"))
        launch(load(text), text, input=x, weight=w, out=out, batch=1, in_h=12, in_w=12)
        assert (out.double() - value).square().mean().sqrt() < 0.6 * plain  # of TF32 alone: 30 to 500 times


ODD = {
    "not finite": {(0, 3, 2, 2): float("nan"), (0, 1, 9, 9): float("inf"), (0, 4, 5, 9): -float("inf")},
    "too large for TF32, though not for float32": {(0, 3, 2, 2): 3.4028e38, (0, 1, 9, 9): -3.4028e38},
}


@pytest.mark.parametrize("odd", ODD, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize(
    "conv",
    [
        conv2d(8, 16, 3, padding=1),
        conv2d(16, 40, 3, stride=2, padding=1, groups=2),
        conv2d(9, 16, (2, 3), padding=(1, 2), transposed=True),
        transposed(2, 10, 20, 3, 2, 1, 1),
        transposed(2, 8, 16, (4, 2), (2, 3), (1, 0), groups=2),
    ],
    ids=["plain", "groups", "transposed", "phases", "phases in groups"],
)
@pytest.mark.parametrize("resident", [True, False])
def test_numbers_without_parts(odd: str, conv: Conv, resident: bool) -> None:
    """Infinities, NaN, and what would round to an infinity: as plain float32 arithmetic has it."""
    conv = strict(conv)
    x, w, b = operands(conv, 1, (12, 12))
    for at, number in ODD[odd].items():
        x[at] = number
    w = w.clamp(-0.9, 0.9)
    tile = Tile(1, (1, 2, 1), (1, 1, 2), weights="resident" if resident else "staged")
    text = conv_kernel("k", conv, Epilogue(), tile)
    out = torch.zeros(1, conv.out_channels, *conv.out_sizes((12, 12)))
    launch(load(text), text, input=x, weight=w, bias=b, out=out, batch=1, in_h=12, in_w=12)
    value, allowed = convolved(conv, x, w, b)
    assert torch.equal(out.isnan(), value.isnan())
    assert torch.equal(out.isinf(), value.isinf() | (value.abs() > 3.4028235e38))
    assert torch.equal(out.isposinf(), value > 3.4028235e38)
    assert (out.isnan().any() and out.isinf().any()) or odd != "not finite"
    here = out.isfinite()
    assert explain(out[here], value[here], allowed[here].nan_to_num(posinf=0.0)) is None


def test_an_infinite_weight() -> None:
    conv = strict(conv2d(8, 16, 3, padding=1))
    x, w, b = operands(conv, 1, (9, 12))
    w[3, 2, 1, 1], w[5, 0, 0, 0] = float("inf"), float("nan")
    text, out = conv_kernel("k", conv, Epilogue()), torch.zeros(1, 16, 9, 12)
    launch(load(text), text, input=x, weight=w, bias=b, out=out, batch=1, in_h=9, in_w=12)
    value, _ = convolved(conv, x, w, b)
    # Outside the input there is nothing, where PyTorch multiplies by zero: 0 × NaN at the edge of channel 5.
    assert torch.equal(out[:, :5], out[:, :5].where(value[:, :5].isfinite(), value[:, :5].float()))
    assert out[0, 5, 1:, 1:].isnan().all() and out[:, 6:].isfinite().all() and out[0, 3].isinf().all()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("name", SANITIZED)
@pytest.mark.parametrize("kind", ["rows", "stored moments", "phases"])
def test_sanitized(sanitize: str, name: str, kind: str) -> None:
    """With an infinity in the input, so that some sums are made again."""
    conv, tile = strict(conv2d(11, 20, 3, padding=1)), SANITIZED[name]
    rows = Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp"))
    epilogue = {"rows": rows, "stored moments": replace(STATISTICS, stored=True), "phases": Epilogue()}[kind]
    if kind == "phases":
        conv, tile = strict(transposed(2, 11, 20, 3, 2, 1, 1)), replace(tile, columns=None)
    text = conv_kernel("k", conv, epilogue, tile)
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "partials": 2 * 2 * 20 * 4}
    floats["out"] = {"rows": 2 * 4 * 6, "phases": 2 * 20 * 18 * 26}.get(kind, 2 * 20 * 9 * 13)
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13, "slices": 2}, sanitize, first="inf")


CHAINS = {
    "pointwise": ("nn.Conv2d(13, 20, 3, padding=1)", 20, "(2, 13, 9, 12)", "torch.tanh(x * self.scale) + x"),
    "pool and logsumexp": ("nn.Conv3d(5, 24, 3, padding=1)", 24, "(2, 5, 4, 6, 8)", "torch.logsumexp(F.max_pool3d(x, 2), dim=1)"),
    "group norm": ("nn.Conv2d(8, 32, 5, stride=2, bias=False)", 32, "(2, 8, 17, 18)", "F.silu(self.norm(x))"),
    "softmax": ("nn.Conv1d(12, 24, 7, dilation=2)", 24, "(2, 12, 60)", "F.softmax(F.gelu(x), dim=1)"),
    "transposed 2d": ("nn.ConvTranspose2d(9, 20, 4, stride=2, padding=1)", 20, "(2, 9, 5, 7)", "F.gelu(x * self.scale) * 0.5"),
    "transposed 2d, mean": (
        "nn.ConvTranspose2d(8, 16, (3, 5), stride=(2, 3))", 16, "(2, 8, 6, 9)", "torch.tanh(F.hardtanh(x).mean(dim=(2, 3)))",
    ),
    "groups": ("nn.Conv2d(12, 18, 3, groups=3)", 18, "(2, 12, 9, 12)", "F.hardswish(x)"),
}  # fmt: skip


def model(folder: Path, name: str) -> Path:
    conv, channels, shape, chain = CHAINS[name]
    path = folder / "chain.py"
    path.write_text(FILE.format(conv=conv, norm=f"nn.GroupNorm(2, {channels})", channels=channels, shape=shape, chain=chain))
    return path


@pytest.fixture
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS, ids=lambda name: name.replace(" ", "-"))
def test_chains_are_ours_and_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_tf32: None) -> None:
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    monkeypatch.setattr(fusion, "MARGIN", 0.0)  # nothing is stored that every reader can end
    run = optimize(load_problem(model(tmp_path, name)), Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert run.report["library_calls"] == [] and "mma_tf32_new" in run.text


@pytest.mark.slow
def test_stored_beside_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_tf32: None) -> None:
    monkeypatch.setattr(conv_stored, "GAIN", 1e9)
    front = read_problem(load_problem(model(tmp_path, "group norm")), Options(target="host"))
    made, emitted = front.finish(Choices(own=convolutions(front.graph), stored=True))
    assert made.calls == [] and made.kernels[0].fused.epilogue.stored
    verdict = verify(front.problem, load_candidate(emitted.text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


def test_the_flag_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made without TF32 is right whatever the flag says later, and asks no more; what was made with it asks."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    _, _, coarse = compile_problem(load_problem(model(tmp_path, "pointwise")), Options(precision="flags"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    _, made, exact = compile_problem(load_problem(model(tmp_path, "pointwise")), Options())
    assert made.kernels[0].fused.anchor.conv.is_strict
    assert "_tf32_allowed() and" in coarse.text and "_tf32_allowed" not in exact.text
    assert "tanh_fast" in coarse.text and "tanh_fast" not in exact.text
    assert "_has_tensor_cores(" in exact.text
