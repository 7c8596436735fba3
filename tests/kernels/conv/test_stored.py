"""Chains behind a convolution whose result our kernel writes to memory, alone or beside statistics of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels.conv.test_takeover import FILE

from fusewright.codegen.mma.conv import OverChannels
from fusewright.driver.front import Front
from fusewright.driver.pipeline import compile_problem, read_problem
from fusewright.driver.tuning.choices import Choices, convolutions
from fusewright.frontend.problem import load_problem
from fusewright.ir.plan import Kernel
from fusewright.options import Options
from fusewright.schedule import conv_stored
from fusewright.schedule.training import Training
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

LIBRARY = Training(own_weights=frozenset())  # gradients of weights are the library's
CHAINS = {
    "transposed 2d, a row's logsumexp": (
        "nn.ConvTranspose2d(8, 16, 3, stride=2)", "nn.BatchNorm2d(16)", 16, "(2, 8, 6, 9)",
        "torch.sigmoid(torch.logsumexp(torch.abs(self.norm(F.silu(x / 2.23))), dim=3, keepdim=True)) * x",
    ),
    "groups, a pool that overlaps": (
        "nn.Conv2d(8, 32, 3, padding=1, groups=2)", "nn.BatchNorm2d(32)", 32, "(2, 8, 9, 12)",
        "F.max_pool2d(F.silu(self.norm(x)), 3, stride=2, padding=1)",
    ),
    "1d, no bias, softmax of a row": (
        "nn.Conv1d(8, 16, 5, bias=False)", "nn.GroupNorm(2, 16)", 16, "(2, 8, 40)", "F.softmax(self.norm(x), dim=2)",
    ),
    "3d, instance norm of a chain": (
        "nn.Conv3d(4, 16, 3, padding=1)", "nn.InstanceNorm3d(16, affine=True)", 16, "(2, 4, 4, 6, 7)",
        "torch.cumsum(self.norm(F.gelu(x)), dim=4)",
    ),
    "transposed 3d, one value beside the statistics": (
        "nn.ConvTranspose3d(4, 16, 3, stride=2)", "nn.GroupNorm(4, 16)", 16, "(2, 4, 3, 4, 5)",
        "torch.amax(self.norm(F.relu(x)) + x, dim=4)",
    ),
    "pool, the same parameter in front and behind": (
        "nn.Conv2d(8, 16, 3)", "nn.BatchNorm2d(16)", 16, "(2, 8, 14, 18)",
        "torch.amax(self.norm(F.max_pool2d(torch.tanh(x) * self.scale, 2) * self.scale), dim=3)",
    ),
    "depthwise": (
        "nn.Conv2d(12, 12, 3, padding=1, groups=12)", "nn.BatchNorm2d(12)", 12, "(2, 12, 9, 12)",
        "torch.logsumexp(self.norm(torch.tanh(x)), dim=3)",
    ),
    "depthwise, bf16": (
        "nn.Conv2d(12, 12, 3, padding=1, groups=12).bfloat16()", "nn.BatchNorm2d(12).bfloat16()", 12,
        "(2, 12, 9, 13, dtype=torch.bfloat16)", "torch.amax(self.norm(x), dim=3)",
    ),
    "bf16, batch norm": (
        "nn.Conv2d(9, 20, 3, padding=1).bfloat16()", "nn.BatchNorm2d(20).bfloat16()", 20,
        "(2, 9, 9, 14, dtype=torch.bfloat16)", "torch.amax(self.norm(F.silu(x)), dim=3)",
    ),
    "fp16 transposed 2d, group norm": (
        "nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1).half()", "nn.GroupNorm(4, 16).half()", 16,
        "(2, 8, 6, 9, dtype=torch.float16)", "F.softmax(self.norm(x), dim=3) + x",
    ),
}  # fmt: skip


def front_of(tmp_path: Path, name: str, shape: str = "") -> Front:
    conv, norm, channels, usual, chain = CHAINS[name]
    path = tmp_path / "chain.py"
    path.write_text(FILE.format(conv=conv, norm=norm, channels=channels, shape=shape or usual, chain=chain))
    return read_problem(load_problem(path), Options(target="host", precision="flags"))


def own(kernels: list[Kernel]) -> Kernel:
    """The one kernel that computes the convolution."""
    (kernel,) = [k for k in kernels if k.fused is not None]
    return kernel


ALONE = ("transposed 2d, a row's logsumexp", "1d, no bias, softmax of a row", "depthwise, bf16", "bf16, batch norm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "statistics"),
    [*((name, True) for name in CHAINS), *((name, False) for name in ALONE)],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "with-statistics" if value else "alone",
)
def test_chains_are_right(name: str, statistics: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first way (the convolution's result, and no more), and the last (the last value that all share, and statistics)."""
    monkeypatch.setattr(conv_stored, "GAIN", 1e9 if statistics else 0.0)
    front = front_of(tmp_path, name)
    made, emitted = front.finish(Choices(own=convolutions(front.graph), stored=True))
    kernel = own(made.kernels)
    assert made.calls == [] and kernel.fused.epilogue.stored == statistics
    assert statistics or kernel.stores == (kernel.fused.anchor.value,)
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host", precision="flags"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


@pytest.mark.parametrize("name", ["transposed 2d, a row's logsumexp", "groups, a pool that overlaps"])
def test_the_prediction_stores_what_it_would_compute_twice(name: str, tmp_path: Path) -> None:
    conv, norm, channels, _, chain = CHAINS[name]
    wide = conv.replace("(8, ", "(32, ").replace(f" {channels},", " 64,").replace(", groups=2", "")
    wide = wide.replace(", stride=2", "")  # which the library does better
    path = tmp_path / "chain.py"
    norm = norm.replace(f"{channels}", "64")
    shape = "(32, 32, 78, 78)" if "Transpose" in conv else "(32, 32, 80, 80)"  # rows of whole sectors
    path.write_text(FILE.format(conv=wide, norm=norm, channels=64, shape=shape, chain=chain))
    _, made, _ = compile_problem(load_problem(path), Options(gradients=False, precision="flags"))
    kernel = own(made.kernels)
    assert made.calls == [] and kernel.fused.epilogue.stored
    assert kernel.stores[0] == kernel.fused.anchor.value and kernel.is_reduce
    assert all(kernel.stores[0] in k.loads for k in made.kernels[1:2])


def test_backward_reads_what_forward_stored(tmp_path: Path) -> None:
    """And does not compute the convolution again."""
    front = front_of(tmp_path, "transposed 2d, a row's logsumexp")
    _, emitted = front.finish(Choices(own=convolutions(front.graph), stored=True, training=LIBRARY))
    gradient = emitted.text.split("_grad(sizes, ")[1].split("\n\n\n")[0]
    assert "convolution_backward(" in gradient and "conv_transpose2d(" not in gradient
    assert "saved += [conv_transpose2d_add]" in emitted.text


@pytest.mark.slow
@pytest.mark.parametrize("bias", [False, True])
def test_a_later_region_reads_it_too(bias: bool, tmp_path: Path) -> None:
    """Beyond a library call: its gradient goes through the convolution once, with that of what is in front of the call."""
    path = tmp_path / "chain.py"
    conv, norm = f"nn.Conv2d(8, 16, 3, bias={bias})", "nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1))"
    path.write_text(FILE.format(conv=conv, norm=norm, channels=16, shape="(2, 8, 9, 12)", chain="torch.tanh(self.norm(x) + x)"))
    front = read_problem(load_problem(path), Options(target="host", precision="flags"))
    first = frozenset({min(convolutions(front.graph), key=front.graph.position.__getitem__)})
    made, emitted = front.finish(Choices(own=first, stored=True, training=LIBRARY))
    assert own(made.kernels).stores[0] == own(made.kernels).fused.anchor.value and len(made.calls) == 1
    assert emitted.text.count("aten.convolution_backward(") == 1
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host", precision="flags"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


GATED = """import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d({channels}, {channels}, 5, padding=2, groups={groups}, bias=False)
        self.norm = nn.BatchNorm2d({channels})
        self.gate = nn.Conv2d({channels}, {channels}, 1)

    def forward(self, x):
        y = torch.sigmoid(self.norm(self.conv(x)))
        return x + y * self.gate(y.mean((2, 3), keepdim=True))

def get_inputs():
    return [torch.randn({batch}, {channels}, {size}, {size})]

def get_init_inputs():
    return []
"""


def test_readers_on_both_sides_of_a_call_share_a_convolution_and_its_backward(tmp_path: Path) -> None:
    path = tmp_path / "gated.py"
    path.write_text(GATED.format(batch=64, channels=120, groups=120, size=56))
    _, made, emitted = compile_problem(load_problem(path), Options(precision="flags"), choices=Choices(training=LIBRARY))
    assert [call.node.target.__name__ for call in made.calls] == ["conv2d.default"]  # the gate's
    kernel = own(made.kernels)
    assert kernel.stores[0] == kernel.fused.anchor.value
    assert emitted.text.count("aten.convolution_backward(") == 1
    assert "aten.convolution(" not in emitted.text  # backward reads what forward left for the other side


@pytest.mark.parametrize("groups", [6, 1])
def test_what_is_left_for_the_other_side_serves_backward(groups: int, tmp_path: Path) -> None:
    path = tmp_path / "gated.py"
    path.write_text(GATED.format(batch=3, channels=6, groups=groups, size=9))
    front = read_problem(load_problem(path), Options(target="host", precision="flags"))
    first = min(convolutions(front.graph), key=front.graph.position.__getitem__)
    _, emitted = front.finish(Choices(own=frozenset({first}), stored=True, training=LIBRARY))
    assert emitted.text.count("aten.convolution_backward(") == 1 and "aten.convolution(" not in emitted.text
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host", precision="flags"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


def test_a_pool_is_stored_rather_than_what_it_pools(tmp_path: Path) -> None:
    front = front_of(tmp_path, "pool, the same parameter in front and behind", "(16, 8, 130, 130)")
    made, _ = front.finish(Choices(own=convolutions(front.graph), stored=True), gradients=False)
    assert "max_pool2d" in own(made.kernels).stores[0]


# What goes through a softmax, or another norm over channels, and no other way.
NORMALISED = {
    "softmax, a pool": ("nn.Conv2d(8, 16, 3)", 16, "(2, 8, 9, 12)", "F.max_pool2d(torch.softmax(torch.tanh(x), 1) * 2, 3, 2, 1)"),
    "log softmax, sums": ("nn.Conv2d(8, 32, 3, bias=False)", 32, "(2, 8, 9, 12)", "torch.log_softmax(x, 1).exp().mean((2, 3))"),
    "3d, a pool in front": ("nn.Conv3d(4, 16, 3)", 16, "(2, 4, 6, 7, 10)", "torch.softmax(F.max_pool3d(x, 2), 1).cumsum(4)"),
    "a norm of each position": (
        "nn.ConvTranspose2d(8, 24, 3, stride=2)", 24, "(2, 8, 6, 7)",
        "F.interpolate((x - x.mean(1, True)) * torch.rsqrt(x.var(1, keepdim=True) + 1e-5), scale_factor=0.6, mode='bilinear')",
    ),
    "two readers": ("nn.Conv1d(8, 16, 5)", 16, "(2, 8, 40)", "(lambda y: y.amax(2) + y.square().mean(2))(F.softmax(x, 1))"),
    "bf16": (
        "nn.Conv2d(8, 16, 3).bfloat16()", 16, "(2, 8, 9, 12, dtype=torch.bfloat16)", "F.avg_pool2d(torch.softmax(x, 1), 2)",
    ),
}  # fmt: skip


def normalised(tmp_path: Path, name: str) -> Front:
    conv, channels, shape, chain = NORMALISED[name]
    path = tmp_path / "chain.py"
    path.write_text(FILE.format(conv=conv, norm="nn.Identity()", channels=channels, shape=shape, chain=chain))
    return read_problem(load_problem(path), Options(target="host", precision="flags"))


@pytest.mark.parametrize("name", NORMALISED, ids=lambda name: name.replace(" ", "-"))
def test_what_a_total_over_channels_makes_is_stored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the convolution's result and of the totals: the next kernel reads it once."""
    monkeypatch.setattr(conv_stored, "GAIN", 1e9)
    front = normalised(tmp_path, name)
    made, emitted = front.finish(Choices(own=convolutions(front.graph), stored=True))
    kernel = own(made.kernels)
    reduce = kernel.fused.epilogue.reduce
    assert made.calls == [] and isinstance(reduce, OverChannels) and reduce.keep and len(kernel.stores) == 1
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host", precision="flags", seeds=1))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


@pytest.mark.parametrize(
    "wanted", ["y + x.amax((2, 3), keepdim=True)", "(y, torch.logsumexp(x, 1))", "y + torch.logsumexp(x, 1, keepdim=True)"]
)
def test_what_is_read_otherwise_too_is_not_hidden(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_stored, "GAIN", 1e9)
    path = tmp_path / "chain.py"
    chain = f"(lambda y: {wanted})(F.max_pool2d(torch.softmax(x, 1), 3, 1, 1))"
    path.write_text(FILE.format(conv="nn.Conv2d(8, 16, 3)", norm="nn.Identity()", channels=16, shape="(2, 8, 9, 12)", chain=chain))
    front = read_problem(load_problem(path), Options(target="host", precision="flags"))
    made, _ = front.finish(Choices(own=convolutions(front.graph), stored=True))
    assert own(made.kernels).stores[0] == own(made.kernels).fused.anchor.value
