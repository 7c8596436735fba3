"""Convolution kernels that are told how many input channels there are: one text for the layers of a dense block."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernels.conv.founding import STATISTICS
from kernels.conv.harness import launch, load
from kernels.conv.reference import convolved, dtype_of, explain, operands, stored
from kernels.conv.test_conv_host import conv2d, transposed

from fusewright.codegen.mma.conv import Conv, Epilogue, Tile, can_be_opened, conv_kernel
from fusewright.codegen.mma.conv_layout import layout
from fusewright.driver.pipeline import optimize, read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.driver.tuning.tune import Tuned
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

TILES = {
    "resident": Tile(2, (1, 2, 1), (1, 2, 2), weights="resident"),
    "alone": Tile(2, (1, 2, 1), (1, 1, 3), weights="resident", alone=True),
    "staged": Tile(1, (1, 2, 1), (1, 2, 1), warps_c=2),
    "direct": Tile(1, (1, 2, 1), (1, 2, 1), weights="direct"),
    "a warpgroup": Tile(1, (1, 8, 1), (1, 1, 1), warps_c=4, weights="staged", warpgroups=True),
    "producers": Tile(1, (1, 1, 4), (1, 2, 1), warps_c=4, weights="staged", warpgroups=True, producers=True, stages=3),
    "producers, resident": Tile(1, (1, 8, 1), (1, 1, 1), warps_c=4, weights="resident", warpgroups=True, producers=True),
}
FORMS = {"3x3": conv2d(0, 20, 3, padding=1), "1x1": conv2d(0, 20, 1), "transposed": transposed(2, 0, 20, 3, 1, 1)}


def opened(conv: Conv) -> Conv:
    return replace(conv, open_inputs=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tile", TILES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_one_text_serves_any_number_of_input_channels(form: Conv, tile: str, whole: bool, dtype: str) -> None:
    if dtype != "float32" and TILES[tile].warpgroups:
        pytest.skip("warpgroup MMAs are of TF32 only")
    step = 8 if dtype == "float32" else 16
    counts = [2 * step, 5 * step] if whole else [step + 3, 4 * step + 1]
    texts = [conv_kernel("k", opened(replace(form, in_channels=n, dtype=dtype)), Epilogue(), TILES[tile]) for n in counts]
    assert texts[0].source.split("\n", 1)[1] == texts[1].source.split("\n", 1)[1]  # but for the comment
    library = load(texts[0])
    for n, text in zip(counts, texts, strict=True):
        conv = replace(form, in_channels=n, dtype=dtype)
        x, w, b = operands(conv, 2, (9, 13))
        out = torch.full((2, 20, *conv.out_sizes((9, 13))), float("nan"), dtype=dtype_of(conv))
        launch(library, text, input=x, weight=w, bias=b, out=out, batch=2, in_channels=n, in_h=9, in_w=13)
        expected, allowed = convolved(conv, x, w, b, TILES[tile].warpgroups)
        assert explain(out, expected, stored(conv, expected, allowed)) is None


def test_what_cannot_be_opened() -> None:
    """Groups, whose inputs do not begin at the first; float32 by parts; a single chunk, whose loop is none."""
    tile = TILES["resident"]
    assert can_be_opened(conv2d(16, 32, 3), Epilogue(), tile) and can_be_opened(conv2d(16, 32, 3), STATISTICS, tile)
    assert not can_be_opened(conv2d(8, 32, 3), Epilogue(), tile)
    assert not can_be_opened(conv2d(32, 32, 3, groups=2), Epilogue(), tile)
    assert not can_be_opened(conv2d(16, 32, 3, tf32=False), Epilogue(), tile)
    assert layout(opened(conv2d(24, 32, 3)), Epilogue(), tile) == replace(
        layout(conv2d(24, 32, 3), Epilogue(), tile), conv=layout(opened(conv2d(24, 32, 3)), Epilogue(), tile).conv
    )


DENSE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(16 + 8 * i, 8, 3, padding=1, bias=False) for i in range(4)])
        self.last = nn.Conv2d(48, 12, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return torch.tanh(self.last(x))


def get_inputs():
    return [torch.randn(2, 16, 9, 12)]


def get_init_inputs():
    return []
"""


def test_layers_of_a_dense_block_share_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.py"
    path.write_text(DENSE)
    problem = load_problem(path)
    front = read_problem(problem, Options(target="host"))
    ours = Choices(own=frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target)))
    made, emitted = front.finish(ours)
    convolutions = [kernel for kernel in made.kernels if kernel.fused is not None]
    forward = emitted.text.partition("_CUDA_GRADIENTS = ")[0]
    written = re.findall(r"^namespace (\w+)_detail", forward, flags=re.MULTILINE)
    assert len(convolutions) == 5 and len(written) < 5
    assert "long long in_channels" in emitted.text and "IN_CHANNELS = 48" in emitted.text  # what nobody shares is a constant
    monkeypatch.setattr("fusewright.driver.pipeline.Tuned", lambda _: Tuned(ours))
    run = optimize(problem, Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert "long long in_channels" in run.text


NORMED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(3)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.randn(2, 16, 9, 12)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("stored", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_layers_with_norms_of_their_own_share_kernels(stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics, and what is made of them in a convolution's registers, have other names in each layer."""
    path = tmp_path / "model.py"
    path.write_text(NORMED)
    problem = load_problem(path)
    front = read_problem(problem, Options(target="host"))
    ours = Choices(own=frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target)), stored=stored)
    made, emitted = front.finish(ours, gradients=False)
    convolutions = [kernel for kernel in made.kernels if kernel.fused is not None]
    written = re.findall(r"^namespace (\w+)_detail", emitted.text, flags=re.MULTILINE)
    assert len(convolutions) == (3 if stored else 6) and len(written) == (1 if stored else 2)
    monkeypatch.setattr("fusewright.driver.pipeline.Tuned", lambda _: Tuned(ours))
    run = optimize(problem, Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
