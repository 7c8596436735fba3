"""Channels-last values: another order in memory, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, convolutions, own_of
from fusewright.frontend.problem import load_problem
from fusewright.ir.index import Axis, Coordinate
from fusewright.ir.prims import Load, Prim
from fusewright.options import Options
from fusewright.schedule.training import Training
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

HEAD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
"""
MODELS = {
    "a residual block": (
        """
        self.first, self.norm = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.pool = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.MaxPool2d(3, 2, 1)
        self.last = nn.Linear(8 * 5 * 5, 4)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        z = torch.relu(self.second(y) + y)
        return self.last(self.pool(z).flatten(1))
""",
        (3, 6, 9, 10),
    ),
    "a volume, transposed, and its norm": (
        """
        self.up, self.norm = nn.ConvTranspose3d(4, 6, 3, 2), nn.GroupNorm(3, 6)
        self.down = nn.Conv3d(6, 5, 3)

    def forward(self, x):
        y = torch.tanh(self.norm(self.up(x)))
        return self.down(y).amax((2, 3, 4)), y.sum(1)
""",
        (2, 4, 4, 3, 5),
    ),
    "channels joined, cut and swapped": (
        """
        self.first, self.second = nn.Conv2d(4, 8, 1), nn.Conv2d(12, 6, 3, padding=1)
        self.third = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = torch.cat([torch.sigmoid(self.first(x)), x], 1)
        a, b = torch.chunk(self.second(y.transpose(2, 3)), 2, 1)
        return self.third(a * b).softmax(1), a.contiguous().view(a.shape[0], -1)
""",
        (2, 4, 7, 8),
    ),
    "what goes in and what comes out": (
        """
        self.conv, self.scale = nn.Conv2d(9, 40, 3), nn.Parameter(torch.rand(9, 1, 1))
        self.shift = nn.Parameter(torch.rand(1, 40, 5, 1))

    def forward(self, x):
        return torch.relu(self.conv(torch.tanh(x) * self.scale)) * self.shift + 1
""",
        (3, 9, 7, 13),
    ),
    "a volume in half precision": (
        """
        self.conv = nn.Conv3d(8, 33, 3).bfloat16()

    def forward(self, x):
        return torch.sigmoid(self.conv(x.bfloat16() * 2)) + 0.5
""",
        (2, 8, 5, 6, 7),
    ),
    "one that only a library reads": (
        """
        self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x):
        y = torch.nn.functional.interpolate(torch.relu(self.first(x)), scale_factor=1.5, mode="bilinear")
        return self.second(y).relu().amax((2, 3))
""",
        (2, 4, 8, 8),
    ),
}


def front_of(tmp_path: Path, model: str) -> Front:
    return read(tmp_path, *MODELS[model])


def read(tmp_path: Path, body: str, shape: tuple[int, ...]) -> Front:
    inputs = f"\n\ndef get_inputs():\n    return [torch.rand{shape}]\n\n\ndef get_init_inputs():\n    return []\n"
    (tmp_path / "model.py").write_text(HEAD + body.strip("\n") + inputs)
    return read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_results(model: str, tmp_path: Path) -> None:
    front = front_of(tmp_path, model)
    made, emitted = front.finish(Choices(own=frozenset(), channels_last=True))
    assert any(prim.channels_last and not prim.is_load for prim in made.lowered.prims.values()), "kernels write such values"
    assert "memory_format=torch.channels_last" in emitted.text
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert verdict.passed, [check for check in verdict.checks if not check.passed]


def test_memory_is_read_and_written_along_the_way_it_lies(tmp_path: Path) -> None:
    """Through shared memory where a kernel reads one order and writes the other; of what lies like its result nothing goes there."""
    front = front_of(tmp_path, "what goes in and what comes out")
    _, emitted = front.finish(Choices(own=frozenset(), channels_last=True), gradients=False)
    transposed = [part for part in emitted.text.split('extern "C"') if "_tile[k][j] = " in part]
    assert len(transposed) == 2
    assert all(part.count("__shared__") == 1 and part.count("__syncthreads") == 1 for part in transposed)


STEM = """
        self.stem, self.body = nn.Conv2d(3, {width}, 7, 2, 3), nn.Conv2d({width}, {width}, 3, padding=1)

    def forward(self, x):
        y = torch.nn.functional.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        return torch.relu(self.body(torch.relu(self.body(y)))).mean((2, 3))
"""


def test_few_channels_are_ours_beside_a_library_that_likes_them_last(tmp_path: Path) -> None:
    """Where the library turns nothing any more, only what it is slow at pays."""
    front = read(tmp_path, STEM.format(width=64), (64, 3, 224, 224))
    stem = min(convolutions(front.graph), key=front.graph.position.__getitem__)
    made, _ = front.finish(Choices(channels_last=True), gradients=False)
    assert own_of(made) == {stem} and len(made.calls) == 2
    assert own_of(front.finish(Choices(), gradients=False)[0]) > {stem}


def test_ours_lie_as_ever_beside_channels_last(tmp_path: Path) -> None:
    front = read(tmp_path, STEM.format(width=12), (2, 3, 21, 26))
    stem = min(convolutions(front.graph), key=front.graph.position.__getitem__)
    made, emitted = front.finish(Choices(own=frozenset({stem}), channels_last=True))
    assert own_of(made) == {stem} and "memory_format=torch.channels_last" in emitted.text
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert verdict.passed, [check for check in verdict.checks if not check.passed]


def test_nothing_is_copied_between_convolutions(tmp_path: Path) -> None:
    """The order of the model's input is changed, and nothing else's, not for the linear layer either."""
    front = front_of(tmp_path, "a residual block")
    _, emitted = front.finish(Choices(own=frozenset(), channels_last=True))
    candidate = load_candidate(emitted.text, "host", name="new.py")
    module = candidate.build_model(front.problem)
    with candidate.trace() as trace, torch.no_grad():
        module(*front.problem.inputs())
    assert [call for call in trace.library_calls if "clone" in call or "copy" in call] == ["aten.clone.default"]


def test_what_the_caller_sees_lies_as_ever(tmp_path: Path) -> None:
    front = front_of(tmp_path, "channels joined, cut and swapped")
    strides = []
    for last in (False, True):
        _, emitted = front.finish(Choices(own=frozenset(), channels_last=last))
        module = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
        with torch.no_grad():
            strides.append([result.stride() for result in module(*front.problem.inputs())])
    assert strides[0] == strides[1]


def test_what_training_by_pytorch_returns_lies_as_ever(tmp_path: Path) -> None:
    """After a first backward PyTorch's operators compute the region: of what the library's convolution left channels-last."""
    (tmp_path / "model.py").write_text(
        HEAD
        + "        self.conv = nn.Conv3d(4, 37, 1)\n\n    def forward(self, x):\n"
        + "        return torch.tanh(torch.nn.functional.avg_pool3d(self.conv(x), 2))\n\n\n"
        + "def get_inputs():\n    return [torch.rand(2, 4, 16, 16, 16)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    _, emitted = front.finish(Choices(own=frozenset(), channels_last=True, training=Training(by_pytorch=frozenset({"_tanh"}))))
    assert "torch.channels_last_3d" in emitted.text
    module = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    for _ in range(2):
        result = module(*front.problem.inputs())
        assert result.is_contiguous()
        result.sum().backward()


def test_a_model_without_images_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        HEAD
        + "        self.conv = nn.Conv1d(4, 4, 3)\n\n    def forward(self, x):\n        return self.conv(x).relu()\n\n\n"
        + "def get_inputs():\n    return [torch.rand(2, 4, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    plain, last = (front.finish(Choices(own=frozenset(), channels_last=flag))[1].text for flag in (False, True))
    assert plain == last


def test_offsets() -> None:
    at = tuple(Coordinate.of(Axis(f"i{d}", size)) for d, size in enumerate((2, 3, 4, 5)))
    prim = Prim("x", Load(), (), (2, 3, 4, 5), torch.float32, channels_last=True)
    assert prim.strides == torch.empty(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).stride()
    assert {axis.name: factor for axis, factor in prim.offset(at).terms.items()} == {"i0": 60, "i1": 1, "i2": 15, "i3": 3}
