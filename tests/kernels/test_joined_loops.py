"""Dimensions that run together as one loop, with several rows, columns or lanes of it to a thread: drawn at random, against PyTorch.

Sizes are pinned by a linear layer, so that windows are known to lie in their input and the batch joins the dimension below it.
The batch alone varies at run time: the last thread's rows reach beyond the end of the loop for most batches.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from kernels.frame import models_of, problem_of

from fusewright.codegen.loops import pointwise
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.options import Options

FINISHES = ("{}", "torch.tanh({})", "{} * self.weight", "{} * self.weight + 1")
POOLS = ("F.max_pool{rank}d(y, {kernel}, {stride})", "F.avg_pool{rank}d(y, {kernel}, {stride})")
OTHERS = (
    "torch.tanh(y)",
    "F.pad(y, (1, 1)) + 1",
    "torch.roll(y, 1, -1)",
    "y.flip(2)",
    "torch.cat((y, y.exp()), 1)",
    "torch.softmax(y, 1)",
    "y - y.amax(-1, True)",
)


@dataclass(frozen=True)
class Drawn:
    """A model, and how its kernel is to walk."""

    forward: str
    channels: int
    extents: tuple[int, ...]
    channels_last: bool  # it reads what a convolution of the library left,
    stays: bool  # and another reads what it writes; else that is transposed on the way out
    rows: int  # to a thread
    busy: float  # below which no columns are tried: 0 tries them always
    batch: int  # that is planned for

    def __str__(self) -> str:
        order = ("channels-last" if self.stays else "transposed") if self.channels_last else "plain"
        return f"{self.forward} of {self.batch}x{self.channels}x{self.extents}, {order}, {self.rows} rows, busy {self.busy}"


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    rank = draw.choice((1, 2, 2, 2, 3))
    kernel = [draw.choice((1, 2, 2, 3, 4) if rank > 1 else (2, 3, 4, 8)) for _ in range(rank)]
    if draw.random() < 0.3:
        kernel = [*([1] * (rank - 1)), 8]  # runs of a line
    stride = [k + draw.choice((0, 0, 0, 1)) for k in kernel]
    extents = tuple(s * draw.randint(1, 4) + draw.choice((0, 0, 0, 1)) for s in stride)
    pool = draw.random() < 0.8
    text = draw.choice(POOLS if pool else OTHERS).format(rank=rank, kernel=tuple(kernel), stride=tuple(stride))
    forward = draw.choice(FINISHES).format(text) if "cat" not in text else text
    channels_last = draw.random() < 0.5
    channels = draw.choice((3, 5, 8, 9, 16)) if channels_last else draw.choice((1, 2, 3, 5))
    rows, busy, batch = draw.choice((2, 3, 4)), draw.choice((0.0, 0.5)), draw.choice((2, 5, 10))
    return Drawn(forward, channels, extents, channels_last, draw.random() < 0.6, rows, busy, batch)


def result_of(case: Drawn) -> torch.Size:
    """The shape that it makes of one image."""
    self, y = SimpleNamespace(weight=torch.ones(case.channels, *[1] * len(case.extents))), torch.zeros(1, case.channels, *case.extents)
    return torch.Size(eval(case.forward, {"torch": torch, "F": F, "self": self, "y": y}).shape)


def check(folder: Path, case: Drawn, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pointwise, "resident", lambda machine: 0)
    monkeypatch.setattr(pointwise, "BUSY", case.busy)
    monkeypatch.setattr(pointwise, "ALONE", {rows: 1.0 if rows == case.rows else 100.0 for rows in (1, 2, 3, 4)})
    rank, ones = len(case.extents), ", ".join(["1"] * len(case.extents))
    weight = f"self.weight = nn.Parameter(torch.rand({case.channels}, {ones}) + 0.5)"
    made = result_of(case)
    conv = f"self.conv = nn.Conv{rank}d(2, {case.channels}, 1)" if case.channels_last else "pass"
    last = f"nn.Conv{rank}d({made[1]}, 4, 1)" if case.channels_last and case.stays else "nn.Identity()"
    linear = f"nn.Linear({made.numel() // made[1] * (made[1] if 'Identity' in last else 4)}, 2)"
    inside = 2 if case.channels_last else case.channels
    shape = (case.batch, inside, *case.extents)
    problem = problem_of(
        folder,
        "(z, self.pin(z.flatten(1)))",
        f"torch.randn{shape}",
        init=f"{weight}; {conv}; self.last = {last}; self.pin = {linear}",
        lines=[f"y = {'self.conv(x)' if case.channels_last else 'x'}", f"z = self.last({case.forward})"],
    )
    front = read_problem(problem, Options(target="host", gradients=False))
    _, emitted = front.finish(Choices(own=frozenset(), channels_last=case.channels_last))
    original, new = models_of(problem, emitted.text)
    for batch in (case.batch, 2, 3, 4, 5, 7):
        x = torch.randn(batch, *shape[1:])
        with torch.no_grad():
            for expected, found in zip(original(x), new(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, b=batch: f"batch {b} of {case}: {m}")
    return emitted.text


TELLING = (27, 47, 61, 62, 74)  # that had wrong rows, or wrong runs, while their ends were those of one image or line


@pytest.mark.parametrize(
    "seed", [*TELLING, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(150) if seed not in TELLING)]
)
def test_drawn(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(tmp_path, drawn(seed), monkeypatch)


FOUND = {
    "three rows of several images": Drawn("F.max_pool2d(y, 2)", 16, (28, 28), True, True, 3, 0.5, 10),
    "rows of several channels": Drawn("F.max_pool2d(y, 2)", 3, (6, 6), False, False, 4, 0.5, 10),
    "windows apart": Drawn("F.avg_pool2d(y, 2, (3, 2))", 8, (9, 6), True, True, 2, 0.5, 5),
    "a run of several lines": Drawn("F.avg_pool2d(y, (1, 8)) * self.weight", 8, (5, 16), False, False, 4, 0.0, 10),
}


@pytest.mark.parametrize("case", FOUND, ids=lambda name: name.replace(" ", "-"))
def test_found(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ROWS" in check(tmp_path, FOUND[case], monkeypatch)
