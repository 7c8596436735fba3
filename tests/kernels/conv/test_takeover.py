"""Small chains behind a convolution, through the whole line on the host, with our kernels whatever the cost model says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule import conv_fusion, fusion

FILE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = {conv}
        self.norm = {norm}
        self.scale = nn.Parameter(torch.rand({channels}, 1, 1) + 0.5)

    def forward(self, x):
        x = self.conv(x)
        return {chain}


def get_inputs():
    return [torch.randn{shape}]


def get_init_inputs():
    return []
"""

CHAINS = {
    "transposed 2d, pointwise": (
        "nn.ConvTranspose2d(9, 20, 4, stride=2, padding=1)", 20, "(2, 9, 5, 7)", "F.gelu(x * self.scale) * 0.5",
    ),
    "transposed 2d, logsumexp": (
        "nn.ConvTranspose2d(8, 24, 3, stride=2, padding=1, output_padding=1)", 24, "(2, 8, 6, 9)",
        "torch.tanh(torch.logsumexp(F.relu(x), dim=1, keepdim=True))",
    ),
    "transposed 2d, softmax": (
        "nn.ConvTranspose2d(8, 24, 3, stride=2)", 24, "(2, 8, 6, 9)",
        "torch.sigmoid(F.softmax(F.relu(x), dim=1) + self.scale)",
    ),
    "transposed 2d of few channels, softmax in rows that are no whole sectors": (
        "nn.ConvTranspose2d(6, 10, 4, stride=2, padding=1, output_padding=1)", 10, "(2, 6, 6, 7)",
        "torch.sigmoid((F.softmax(x, dim=1) + self.scale) * 2.0)",
    ),
    "transposed 2d, spread over the channels": (
        "nn.ConvTranspose2d(8, 16, 3, stride=2)", 16, "(2, 8, 6, 9)", "x * torch.rsqrt(x.var(1, keepdim=True) + 1e-3)",
    ),
    "convolution, spread over the channels": (
        "nn.Conv2d(8, 40, 3)", 40, "(2, 8, 8, 9)", "x / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-3)",
    ),
    "convolution, softmax": ("nn.Conv2d(8, 24, 3)", 24, "(2, 8, 8, 9)", "F.softmax(x * 2.0, dim=1) * self.scale"),
    "transposed 2d, group norm": (
        "nn.ConvTranspose2d(8, 32, 3, stride=2, bias=False)", 32, "(2, 8, 6, 9)", "F.silu(self.norm(x))",
    ),
    "transposed 2d, group norm of a chain": (
        "nn.ConvTranspose2d(8, 32, 4, stride=2)", 32, "(2, 8, 6, 9)", "self.norm(F.gelu(x))",
    ),
    "transposed 2d, norm and what follows in one kernel": (
        "nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1)", 16, "(2, 8, 6, 9)", "F.instance_norm(x) * self.scale + 1.0",
    ),
    "convolution, instance norm": ("nn.Conv2d(8, 16, 3)", 16, "(2, 8, 9, 10)", "F.leaky_relu(F.instance_norm(x) / 2.0)"),
    "transposed 3d, average pool and softmax": (
        "nn.ConvTranspose3d(5, 16, 3, stride=2, padding=1, output_padding=1)", 16, "(2, 5, 3, 4, 5)",
        "F.softmax(torch.clamp(F.avg_pool3d(x, 2), -0.1, 0.6), dim=1)",
    ),
    "transposed 2d, mean of everything": (
        "nn.ConvTranspose2d(8, 16, 3, stride=2)", 16, "(2, 8, 6, 9)", "torch.relu(x).mean(dim=(1, 2, 3)) * 2.0",
    ),
    "transposed 2d, mean": (
        "nn.ConvTranspose2d(8, 16, (3, 5), stride=(2, 3))", 16, "(2, 8, 6, 9)",
        "torch.tanh(F.hardtanh(x).mean(dim=(2, 3), keepdim=True))",
    ),
    "transposed 3d, pool and maximum": (
        "nn.ConvTranspose3d(5, 16, 3, stride=2, padding=1, output_padding=1)", 16, "(2, 5, 3, 4, 5)",
        "torch.amax(F.max_pool3d(x, 2), dim=1)",
    ),
    "depthwise, pointwise": ("nn.Conv2d(12, 12, 3, padding=1, groups=12)", 12, "(2, 12, 9, 12)", "torch.tanh(x) * self.scale"),
    "depthwise, group norm": (
        "nn.Conv2d(8, 16, 5, stride=2, padding=2, groups=8)", 16, "(2, 8, 13, 16)", "F.silu(self.norm(x))",
    ),
    "depthwise, bf16": (
        "nn.Conv2d(12, 12, 3, padding=1, groups=12).bfloat16()", 12, "(2, 12, 9, 12, dtype=torch.bfloat16)", "F.silu(x) * 2.0",
    ),
    "depthwise, fp16 mean": (
        "nn.Conv2d(12, 24, 3, padding=1, groups=12).half()", 24, "(2, 12, 9, 13, dtype=torch.float16)",
        "torch.relu(x).mean(dim=(2, 3))",
    ),
    "depthwise, mean": (
        "nn.Conv1d(10, 10, 7, padding=3, groups=10)", 10, "(3, 10, 50)", "F.softmax(F.gelu(x).mean(dim=2), dim=1)",
    ),
    "bf16, pointwise": (
        "nn.Conv2d(13, 20, 3, padding=1).bfloat16()", 20, "(2, 13, 9, 12, dtype=torch.bfloat16)", "F.silu(x) * 0.5 + 1.0",
    ),
    "fp16, pool and maximum": (
        "nn.Conv2d(9, 24, 5, stride=2, padding=2).half()", 24, "(2, 9, 17, 22, dtype=torch.float16)",
        "torch.amax(F.max_pool2d(torch.tanh(x), 2), dim=1)",
    ),
    "bf16, logsumexp": (
        "nn.Conv3d(5, 24, 3, padding=1).bfloat16()", 24, "(2, 5, 4, 6, 7, dtype=torch.bfloat16)", "torch.logsumexp(F.relu(x), dim=1)",
    ),
    "fp16, group norm": (
        "nn.Conv2d(8, 32, 3, bias=False).half()", 32, "(2, 8, 9, 10, dtype=torch.float16)", "F.silu(F.group_norm(x, 4))",
    ),
    "bf16, instance norm": (
        "nn.Conv1d(10, 16, 7, dilation=2).bfloat16()", 16, "(2, 10, 70, dtype=torch.bfloat16)", "F.leaky_relu(F.instance_norm(x) / 2.0)",
    ),
    "bf16 transposed 2d, softmax": (
        "nn.ConvTranspose2d(8, 24, 3, stride=2).bfloat16()", 24, "(2, 8, 6, 9, dtype=torch.bfloat16)", "F.softmax(x * 2.0, dim=1)",
    ),
    "fp16 transposed 3d, mean": (
        "nn.ConvTranspose3d(5, 16, 3, stride=2, padding=1, output_padding=1).half()", 16, "(2, 5, 3, 4, 5, dtype=torch.float16)",
        "torch.tanh(F.hardtanh(x).mean(dim=(2, 3, 4)))",
    ),
    "bf16, groups, a bias of its own": (
        "nn.Conv2d(12, 18, 3, groups=3, bias=False).bfloat16()", 18, "(2, 12, 9, 12, dtype=torch.bfloat16)",
        "F.gelu(x + self.scale.bfloat16())",
    ),
    "transposed 1d, groups": (
        "nn.ConvTranspose1d(12, 18, 7, stride=4, padding=2, groups=2)", 18, "(2, 12, 21)", "F.hardswish(x + 0.5)",
    ),
}  # fmt: skip


def test_depthwise_needs_no_tensor_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain fp32: taken over whatever the flags say, and the emitted file does not ask for TF32."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    monkeypatch.setattr(conv_fusion, "tf32_allowed", lambda: False)
    _, made, emitted = compile_problem(load_problem(model(tmp_path, "depthwise, pointwise")), Options(precision="flags"))
    assert made.calls == [] and "_tf32_allowed" not in emitted.text


def test_halves_ask_for_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products are exact whatever the flags of float32 say; a GPU with tensor cores is needed all the same."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    monkeypatch.setattr(conv_fusion, "tf32_allowed", lambda: False)
    monkeypatch.setattr(fusion, "MARGIN", 0.0)  # statistics are ended in registers
    for name, slices in (("bf16, pointwise", 0), ("fp16, group norm", 1)):
        _, made, emitted = compile_problem(load_problem(model(tmp_path, name)), Options(precision="flags"))
        assert made.calls == [] and "_tf32_allowed" not in emitted.text and "_has_tensor_cores(" in emitted.text
        assert emitted.text.count("def _slices(") == slices


def test_a_bias_of_another_type_is_no_bias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 plus float32 is float32: the kernel would read the wrong bytes."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    path = tmp_path / "chain.py"
    conv, shape = "nn.Conv2d(8, 16, 3, bias=False).bfloat16()", "(2, 8, 9, 9, dtype=torch.bfloat16)"
    path.write_text(FILE.format(conv=conv, norm="None", channels=16, shape=shape, chain="torch.relu(x + self.scale).bfloat16()"))
    _, made, _ = compile_problem(load_problem(path), Options(precision="flags"))
    for kernel in made.kernels:
        assert kernel.fused is None or kernel.fused.anchor.bias is None


def model(tmp_path: Path, name: str) -> Path:
    conv, channels, shape, chain = CHAINS[name]
    path = tmp_path / "chain.py"
    path.write_text(
        FILE.format(conv=conv, norm=f"nn.GroupNorm(2, {channels})", channels=channels, shape=shape, chain=chain)
    )
    return path


def test_a_kernel_computes_one_convolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two convolutions that one kernel joins, the second is written by a kernel of its own."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    path = tmp_path / "joined.py"
    text = FILE.format(
        conv="nn.Conv2d(8, 16, 3)",
        norm="nn.Conv2d(8, 16, 3)",
        channels=16,
        shape="(2, 8, 9, 9)",
        chain="torch.relu(x + y)",
    )
    path.write_text(text.replace("        x = self.conv(x)\n", "        y = self.norm(x)\n        x = self.conv(x)\n"))
    _, made, _ = compile_problem(load_problem(path), Options(precision="flags"))
    first, second = made.kernels
    assert not made.calls and first.fused is not None and second.fused is not None
    assert first.stores == (first.fused.anchor.value,) and first.stores[0] in second.loads


ALONE = {
    "returned": ("nn.Conv2d(5, 20, 3, padding=1)", "(2, 5, 7, 9)", "x"),
    "returned, without bias": ("nn.Conv1d(9, 20, 4, stride=2, bias=False)", "(2, 9, 31)", "x"),
    "returned, depthwise": ("nn.Conv2d(6, 12, 3, padding=1, groups=6)", "(2, 6, 7, 9)", "x"),
    "returned, transposed": ("nn.ConvTranspose3d(4, 6, 3, stride=2, padding=1, output_padding=1)", "(2, 4, 3, 4, 5)", "x"),
    "returned, and read by a kernel": ("nn.Conv2d(8, 16, 3, groups=2)", "(2, 8, 8, 9)", "(torch.tanh(x), x)"),
    "a library reads it": ("nn.Conv2d(3, 16, 5, stride=2, padding=2)", "(2, 3, 11, 9)", "torch.sort(x, 2)[0] + 1"),
    "returned through a view": ("nn.Conv2d(3, 16, 3)", "(2, 3, 11, 9)", "x.flatten(2).transpose(1, 2)"),
    "returned, bf16": ("nn.Conv2d(6, 12, 3).bfloat16()", "(2, 6, 7, 9, dtype=torch.bfloat16)", "x"),
}  # fmt: skip


OFTEN = ("returned", "returned, depthwise", "returned, and read by a kernel", "a library reads it")


SELDOM = [pytest.param(name, marks=pytest.mark.slow) for name in ALONE if name not in OFTEN]


@pytest.mark.parametrize("name", [*OFTEN, *SELDOM], ids=lambda name: name.replace(" ", "-"))
def test_a_convolution_alone_is_ours_and_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no kernel behind it that could end it: its result lies where the library would have put it."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    conv, shape, chain = ALONE[name]
    path = tmp_path / "alone.py"
    path.write_text(FILE.format(conv=conv, norm="None", channels=1, shape=shape, chain=chain).replace("(1, 1, 1)", "(())"))
    run = optimize(load_problem(path), Options(target="host", precision="flags"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert not any("conv" in str(call) for call in run.report["library_calls"]), run.report["library_calls"]


@pytest.mark.parametrize(
    ("conv", "shape", "ours"),
    [
        ("nn.Conv2d(1, 6, 5, 1, 2)", "(4096, 1, 28, 28)", True),  # its tiles are for 32 channels and more
        ("nn.Conv3d(32, 1, 3, 1, 1)", "(16, 32, 17, 65, 63)", True),
        ("nn.Conv2d(3, 64, 7, 2, 3)", "(16, 3, 224, 224)", True),  # of few channels the library makes 30 TFLOP/s
        ("nn.Conv2d(64, 64, 3, groups=64)", "(16, 64, 256, 256)", True),
        ("nn.ConvTranspose3d(32, 32, 3, stride=2)", "(8, 32, 16, 32, 32)", True),
        ("nn.Conv2d(512, 512, 3)", "(16, 512, 14, 14)", False),
    ],
)
def test_alone_it_is_ours_where_that_pays(conv: str, shape: str, ours: bool, tmp_path: Path) -> None:
    path = tmp_path / "alone.py"
    path.write_text(FILE.format(conv=conv, norm="None", channels=1, shape=shape, chain="x"))
    _, made, _ = compile_problem(load_problem(path), Options(precision="flags"))
    assert [kernel.fused is not None for kernel in made.kernels] == [True] * ours and len(made.calls) == (not ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS, ids=lambda name: name.replace(" ", "-"))
def test_chains_are_ours_and_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    monkeypatch.setattr(fusion, "MARGIN", 0.0)  # nothing is stored that every reader can end
    run = optimize(load_problem(model(tmp_path, name)), Options(target="host", precision="flags"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert run.report["library_calls"] == []
