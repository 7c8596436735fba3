"""Gradients of convolutions' weights on the tensor cores: over awkward shapes on the host, in whole models, and what nvcc makes of them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from kernels.conv.harness import launch, load, source_of
from kernels.conv.test_conv_host import check_sanitized
from kernels.frame import problem_of
from kernels.nvcc import cubin_of, needs_nvcc
from torch import Tensor

from fusewright.codegen.mma.conv_spec import Conv, KernelText, triple
from fusewright.codegen.mma.weight_gradient import (
    GradientTile,
    WeightGradient,
    conflicts,
    gradient_ms,
    gradient_tile,
    weight_gradient_kernel,
)
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.ir.expr import Pointer
from fusewright.options import Options
from fusewright.schedule.conv_fusion import called
from fusewright.schedule.library import Convolution, Library
from fusewright.schedule.training import Training
from fusewright.target.machine import MACHINES
from fusewright.verify import library_arithmetic
from fusewright.verify.candidate import load_candidate
from fusewright.verify.precision import Precision, to_tf32
from fusewright.verify.verifier import verify


def plain(
    inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, dims: int = 2
) -> Conv:
    return Conv(dims, inputs, outputs, (kernel,) * dims, (stride,) * dims, (padding,) * dims, (dilation,) * dims, groups)


def transposed(inputs: int, outputs: int, kernel: int, stride: int, padding: int = 0, more: int = 0, groups: int = 1) -> Conv:
    conv = plain(inputs, outputs, kernel, stride, padding, groups=groups)
    return replace(conv, transposed=True, output_padding=(more,) * 2)


CASES = {  # the convolution, batch, sizes of its input; the tile, where it is not the one that is chosen
    "3x3": (plain(8, 40, 3), 2, (20, 37), None),
    "padded, stride 2": (plain(5, 20, 3, 2, 1), 3, (15, 17), None),
    "dilated": (plain(6, 20, 3, 1, 2, 2), 2, (11, 13), None),
    "in groups": (plain(12, 20, 3, 1, 1, groups=2), 2, (9, 10), None),
    "one by one": (plain(40, 24, 1), 2, (9, 10), None),
    "7x7 of 3 channels, stride 2": (plain(3, 18, 7, 2, 3), 2, (21, 25), None),
    "asymmetric": (Conv(2, 6, 17, (1, 5), (1, 2), (0, 2), (1, 1)), 2, (7, 33), None),
    "a line": (Conv(1, 6, 20, (7,), (1,), (3,), (2,)), 2, (101,), None),
    "a volume": (plain(6, 20, 3, 1, 1, dims=3), 1, (4, 7, 9), None),
    "a volume, strided": (plain(4, 9, 2, 2, dims=3), 2, (6, 7, 9), None),
    "transposed": (transposed(8, 12, 4, 2, 1), 2, (9, 10), None),
    "transposed in groups, with more": (transposed(8, 12, 3, 2, 1, 1, 2), 2, (6, 7), None),
    "transposed, stride 1": (transposed(8, 12, 3, 1), 2, (6, 7), None),
    "rows in vectors": (plain(8, 24, 3, 1, 1), 2, (8, 32), None),
    "warps over rows": (plain(5, 70, 3), 1, (9, 12), GradientTile(1, 3, 4, 2, 1, 2, 16)),
    "warps over positions": (plain(5, 20, 3), 2, (19, 21), GradientTile(2, 3, 1, 2, 4, 4, 16, 3)),
    "many blocks": (plain(9, 40, 3), 1, (9, 40), GradientTile(1, 2, 1, 2, 2, 1, 32, 2, 3)),
    "more slices than steps": (plain(8, 16, 3), 2, (5, 6), GradientTile(1, 4, 1, 2, 2, 2, 16, 2, 9)),
    "narrow rows": (plain(8, 16, 3, 1, 1), 2, (9, 3), GradientTile(1, 4, 1, 2, 1, 8, 4, 2, 2)),
}


def weight_shape(conv: Conv) -> tuple[int, ...]:
    rows, columns = (conv.in_channels, conv.out_channels) if conv.transposed else (conv.out_channels, conv.in_channels)
    return (rows, columns // conv.groups, *conv.kernel)


def exact(conv: Conv, x: Tensor, upstream: Tensor) -> Tensor:
    dims, weight = conv.dims, torch.zeros(weight_shape(conv)).double()
    settings = (conv.stride, conv.padding, conv.dilation, conv.transposed, conv.output_padding[-dims:], conv.groups)
    return torch.ops.aten.convolution_backward(upstream.double(), x.double(), weight, None, *settings, [False, True, False])[1]


def gradient_text(conv: Conv, split: bool, batch: int, sizes: tuple[int, ...], tile: GradientTile | None) -> KernelText:
    positions = sizes if conv.transposed else conv.out_sizes(sizes)
    gradient = WeightGradient(conv, split)
    tile = tile or gradient_tile(gradient, batch, tuple(positions))
    assert tile is not None
    return weight_gradient_kernel("k", gradient, tile)


def sizes_named(conv: Conv, batch: int, sizes: tuple[int, ...]) -> dict[str, int]:
    still, moved = (sizes, conv.out_sizes(sizes)) if conv.transposed else (conv.out_sizes(sizes), sizes)
    names = ("out_d", "out_h", "out_w", "in_d", "in_h", "in_w")
    return {"batch": batch, **dict(zip(names, (*triple(tuple(still), 1), *triple(tuple(moved), 1)), strict=True))}


def computed(conv: Conv, x: Tensor, upstream: Tensor, split: bool, tile: GradientTile | None = None) -> Tensor:
    batch, _, *sizes = x.shape
    text = gradient_text(conv, split, batch, tuple(sizes), tile)
    out = torch.full(weight_shape(conv), float("nan"))
    still, moved = (x, upstream) if conv.transposed else (upstream, x)
    launch(load(text), text, upstream=still, input=moved, out=out, **sizes_named(conv, batch, tuple(sizes)))
    return out


def drawn(conv: Conv, batch: int, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, conv.in_channels, *sizes), torch.randn(batch, conv.out_channels, *conv.out_sizes(sizes))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("split", [True, False], ids=["split", "tf32"])
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_shapes(case: str, split: bool) -> None:
    """Within the bound of what the operands are rounded to, for each element."""
    conv, batch, sizes, tile = CASES[case]
    x, upstream = drawn(conv, batch, sizes)
    rounding = 2.0**-21 if split else 2.0**-10
    allowed = rounding * exact(conv, x.abs(), upstream.abs())
    assert bool(((computed(conv, x, upstream, split, tile).double() - exact(conv, x, upstream)).abs() <= allowed).all())


@pytest.mark.parametrize("signs", ["both", "one"])
def test_as_exact_as_float32(signs: str) -> None:
    """No worse than twice the error of PyTorch's float32, though the tensor cores cut off: by far the most where all have one sign."""
    conv = plain(4, 16, 3, 1, 1)
    x, upstream = drawn(conv, 8, (40, 40))
    if signs == "one":
        x, upstream = x.abs(), upstream.abs()
    right = exact(conv, x, upstream)
    settings = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1, [False, True, False])
    eager = torch.ops.aten.convolution_backward(upstream, x, torch.zeros(16, 4, 3, 3), None, *settings)[1]
    ours, theirs = ((found.double() - right).abs().max() for found in (computed(conv, x, upstream, split=True), eager))
    assert ours <= max(2 * theirs, 2.0**-23 * right.abs().max())


@pytest.mark.parametrize("split", [True, False], ids=["split", "tf32"])
def test_what_is_not_finite(split: bool) -> None:
    """An infinity stays one, and reaches no weight whose tap does not meet it: positions beyond a row's end are no positions."""
    conv = plain(3, 16, 3)
    x, upstream = drawn(conv, 2, (9, 23))
    x[0, 1, 4, 22] = torch.inf  # the last column meets the last tap alone
    x[1, 2, 8, 0] = -torch.inf
    upstream[1, 5, 3, 20] = torch.nan
    found, right = computed(conv, x, upstream, split), exact(conv, x, upstream).float()
    assert torch.equal(found.isfinite(), right.isfinite())
    assert torch.equal(found.isnan(), right.isnan()) and torch.equal(found[found.isinf()], right[right.isinf()])


def test_deterministic_and_unaligned() -> None:
    conv = plain(8, 24, 3, 1, 1)
    x, upstream = drawn(conv, 2, (8, 32))
    elsewhere = torch.randn(upstream.numel() + 1)[1:].view_as(upstream).copy_(upstream)
    assert elsewhere.data_ptr() % 16 != 0
    first, again, unaligned = (computed(conv, x, u, split=True) for u in (upstream, upstream, elsewhere))
    assert torch.equal(first, again) and torch.equal(first, unaligned)


@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("case", ["warps over positions", "many blocks", "transposed in groups, with more"])
@pytest.mark.slow
def test_sanitized(case: str, sanitize: str) -> None:
    conv, batch, sizes, tile = CASES[case]
    text = gradient_text(conv, True, batch, sizes, tile)
    first, second = prod((batch, conv.in_channels, *sizes)), prod((batch, conv.out_channels, *conv.out_sizes(sizes)))
    still, moved = (first, second) if conv.transposed else (second, first)
    floats = {"upstream": still, "input": moved, "out": prod(weight_shape(conv))}
    floats |= {buffer: eval(count) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, sizes_named(conv, batch, sizes), sanitize, first="inf")


# ---- tiles

LARGE = {  # convolutions, batch and positions of networks and chains
    "8 to 64, 3x3": (plain(8, 64, 3), 128, (126, 126), True),
    "32 to 64, a volume": (plain(32, 64, 3, 1, 1, dims=3), 4, (32, 128, 128), False),
    "64 to 128, 3x3": (plain(64, 128, 3), 128, (126, 126), False),
    "64 to 128, 3x3, split": (plain(64, 128, 3), 128, (126, 126), True),
    "3 to 64, 7x7": (plain(3, 64, 7, 2, 3), 32, (112, 112), True),
    "256 to 256, 3x3": (plain(256, 256, 3, 1, 1), 32, (14, 14), False),
    "64 to 256, 1x1": (plain(64, 256, 1), 32, (56, 56), False),
    "transposed 4x4": (transposed(64, 128, 4, 2, 1), 16, (64, 64), False),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_there_is_a_tile_for_every_machine(machine: object) -> None:
    for conv, batch, positions, split in LARGE.values():
        gradient = WeightGradient(conv, split)
        tile = gradient_tile(gradient, batch, positions, machine)
        assert tile is not None and gradient_ms(gradient, tile, batch, positions, machine) > 0


@pytest.mark.parametrize("case", LARGE, ids=lambda name: name.replace(" ", "-"))
def test_lanes_meet_in_few_banks(case: str) -> None:
    """By the distances that are chosen for shared memory: a wavefront or little more for each fragment."""
    conv, batch, positions, split = LARGE[case]
    gradient = WeightGradient(conv, split)
    tile = gradient_tile(gradient, batch, positions)
    assert tile is not None
    fragments = min(-(-gradient.columns // 8), tile.fragments * tile.warps_n, 9)
    assert conflicts(gradient, tile) <= 1.3 * fragments


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", LARGE, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_spilled(case: str, arch: str, tmp_path: Path) -> None:
    conv, batch, positions, split = LARGE[case]
    machine = MACHINES["A100" if arch == "sm_80" else "H200"]
    gradient = WeightGradient(conv, split)
    tile = gradient_tile(gradient, batch, positions, machine)
    assert tile is not None
    found, _, _ = cubin_of(source_of(weight_gradient_kernel("k", gradient, tile, machine)), tmp_path, arch)
    assert len(found) == (3 if tile.slices > 1 else 2)
    assert {spilled for _, spilled in found.values()} == {0}, found


# ---- in models

FORWARDS = {  # the constructor's statement, what is returned, the input, how many kernels of ours compute gradients of weights
    "relu": ("self.conv = nn.Conv2d(4, 24, 3)", "torch.relu(self.conv(x))", "torch.randn(3, 4, 13, 15)", 1),
    "pool and logsumexp": (
        "self.conv = nn.Conv3d(4, 16, 3, padding=1)",
        "torch.logsumexp(F.max_pool3d(self.conv(x), 2), 1)", "torch.randn(2, 4, 6, 8, 10)", 1,
    ),
    "a mean of what is transposed": (
        "self.conv = nn.ConvTranspose2d(8, 12, 4, 2, 1)", "F.gelu(self.conv(x)).mean((2, 3))", "torch.randn(2, 8, 7, 9)", 1,
    ),
    "norm in groups": (
        "self.conv, self.norm = nn.Conv2d(8, 16, 3, groups=2, bias=False), nn.GroupNorm(4, 16)",
        "torch.tanh(self.norm(self.conv(x)))", "torch.randn(2, 8, 12, 11)", 1,
    ),
    "a sum alone": ("self.conv = nn.Conv1d(8, 16, 5)", "self.conv(x).sigmoid().sum(-1)", "torch.randn(3, 8, 60)", 1),
}  # fmt: skip


def front_of(folder: Path, case: str) -> Front:
    init, forward, x, _ = FORWARDS[case]
    return read_problem(problem_of(folder, forward, x, init=init), Options(target="host"))


def every(front: Front) -> Training:
    return Training(own_weights=frozenset(node.name for node in front.graph.nodes))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", FORWARDS, ids=lambda name: name.replace(" ", "-"))
def test_models(case: str, tmp_path: Path) -> None:
    """Whole models verify with such gradients; the library computes none then, and all where it is to."""
    front = front_of(tmp_path, case)
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    text = front.finish(Choices(own=own, training=every(front)))[1].text
    assert text.count('_launch("conv_weight_grad"') == FORWARDS[case][3] and "aten.convolution_backward(" not in text
    verdict = verify(front.problem, load_candidate(text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst
    library = front.finish(Choices(own=own, training=Training(own_weights=frozenset())))[1].text
    assert '"conv_weight_grad"' not in library and "aten.convolution_backward(" in library


def test_the_gradient_of_a_sum(tmp_path: Path) -> None:
    """One number that stands for all is put in memory for a kernel that multiplies."""
    problem = problem_of(tmp_path, "self.conv(x)", "torch.randn(2, 4, 9, 11)", init="self.conv = nn.Conv2d(4, 16, 3)")
    front = read_problem(problem, Options(target="host"))
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    new = load_candidate(front.finish(Choices(own=own, training=every(front)))[1].text, "host", name="new.py").build_model(problem)
    old = problem.model()
    new.load_state_dict(old.state_dict())
    for model in (new, old):
        model(*problem.inputs()).sum().backward()
    torch.testing.assert_close(new.conv.weight.grad, old.conv.weight.grad, rtol=1e-5, atol=1e-5)


def test_where_it_pays(tmp_path: Path) -> None:
    """Untimed: where the library is predicted to take much longer, and not for a few rows. What it computes in float32, ours does."""
    few, many = (f"self.conv = nn.Conv2d({inputs}, 64, 3)" for inputs in (8, 32))
    for init, x, paid, split in (
        (few, "torch.randn(64, 8, 128, 128)", True, True), (many, "torch.randn(64, 32, 128, 128)", True, False),
        ("self.conv = nn.Conv2d(8, 4, 3)", "torch.randn(64, 8, 128, 128)", False, False),
    ):  # fmt: skip
        front = read_problem(problem_of(tmp_path, "torch.tanh(self.conv(x)).mean(1)", x, init=init), Options(target="host"))
        own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
        text = front.finish(Choices(own=own))[1].text
        assert ("conv_weight_grad" in text) is paid
        assert not paid or f"SPLIT = {str(split).lower()};" in text
        assert not paid or ("_tf32_allowed() and _has_tensor_cores(tensors[0].device" in text) is not split


def test_the_library_is_asked(tmp_path: Path) -> None:
    """Whether it rounds the gradient of the weight is another question than whether it rounds the convolution."""
    each = Convolution(32, 64, (3, 3), (1, 1), (0, 0), (1, 1))
    assert Precision(Library()).rounds_weight_gradient(each)
    assert not Precision(Library(weights=((each, False),))).rounds_weight_gradient(each)
    assert not Precision(Library(), arithmetic="ieee").rounds_weight_gradient(each)
    assert Precision().rounds_weight_gradient(each)  # the flags alone


@pytest.mark.parametrize("conv", [plain(8, 12, 3, padding=1), transposed(8, 12, 4, 2, 1), plain(6, 8, 5, 2, dims=1)], ids=["a", "b", "c"])
@pytest.mark.parametrize("rounds", [True, False])
def test_a_library_is_found_out(rounds: bool, conv: Conv, monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbers that TF32 cannot tell from whole ones."""
    exactly = library_arithmetic._gradients

    def rounded(each: Convolution, x: Tensor, weight: Tensor, upstream: Tensor, of_input: bool = True) -> tuple[Tensor, Tensor]:
        return exactly(each, to_tf32(x), weight, to_tf32(upstream), of_input)

    monkeypatch.setattr(library_arithmetic, "_gradients", rounded if rounds else exactly)
    sizes = (3, conv.in_channels, *(20, 21)[: conv.dims])
    assert library_arithmetic.weight_gradient_asked(called(conv), sizes, torch.device("cpu")) is rounds


def test_arguments_are_in_order() -> None:
    text = weight_gradient_kernel("k", WeightGradient(plain(8, 16, 3)), GradientTile(1, 3, 1, 1, 4, 2, 32, slices=3))
    assert [arg.name for arg in text.launcher_args][:4] == ["upstream", "input", "out", "sums"]
    assert all(isinstance(arg.kind, Pointer) for arg in text.launcher_args[:4])


TWO_CONVOLUTIONS = (
    "self.first, self.second = nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(6, 16, 3, padding=1)",
    "(torch.tanh(self.first(x)) + torch.sigmoid(self.second(y))).mean(1)",
)


def test_two_convolutions_of_one_region(tmp_path: Path) -> None:
    init, forward = TWO_CONVOLUTIONS
    problem = problem_of(tmp_path, forward, "torch.randn(2, 4, 9, 11)", "torch.randn(2, 6, 9, 11)", init=init)
    front = read_problem(problem, Options(target="host"))
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    text = front.finish(Choices(own=own, training=every(front)))[1].text
    assert '_launch("first_weight_grad"' in text and '_launch("second_weight_grad"' in text
    verdict = verify(problem, load_candidate(text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst


def test_what_forward_did_not_save_is_computed_again_by_a_kernel(tmp_path: Path) -> None:
    """Where ours is the faster, and as exact as the library's: in float32, although forward may round to TF32."""
    problem = problem_of(
        tmp_path, "torch.logsumexp(torch.tanh(self.norm(self.conv(x))), 1)", "torch.rand(64, 8, 64, 64)",
        init="self.conv, self.norm = nn.Conv2d(8, 64, 3), nn.GroupNorm(16, 64)",
    )  # fmt: skip
    front = read_problem(problem, Options(target="host"))
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    text = front.finish(Choices(own=own))[1].text
    backward = text[text.index("_CUDA_GRADIENTS = ") :]
    assert "namespace conv_grad_detail" in backward and "split(" in backward.partition("conv_grad_detail")[2]
    function = backward[backward.index("_grad(sizes, tensors)") :]
    assert '_launch("conv_grad"' in function and "aten.convolution(" not in function.partition("\n\n\n")[0]
    new, old = load_candidate(text, "host", name="new.py").build_model(problem), problem.model()
    new.load_state_dict(old.state_dict())
    exact = problem.model().double()
    exact.load_state_dict(old.state_dict())
    x = torch.rand(2, 8, 13, 15)
    for model, of in ((new, x), (exact, x.double())):
        model(of).square().sum().backward()
    for ours, right in zip(new.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - right.grad).abs().max() < 1e-4 * right.grad.square().mean().sqrt()


LIBRARY_FORWARD = {  # the constructor's statement, what is returned, the input
    "plain": ("self.conv = nn.Conv2d(8, 24, 3, padding='same')", "torch.relu(self.conv(torch.tanh(x)))", "torch.randn(2, 8, 9, 11)"),
    "no bias, strided": ("self.conv = nn.Conv1d(8, 16, 5, 2, bias=False)", "self.conv(x).cumsum(-1)", "torch.randn(2, 8, 33)"),
    "transposed": ("self.conv = nn.ConvTranspose2d(8, 12, 4, 2, 1, output_padding=1)", "self.conv(x).sin()", "torch.randn(2, 8, 5, 7)"),
    "in groups, a volume": ("self.conv = nn.Conv3d(8, 16, 3, groups=2)", "self.conv(x).exp().sum(1)", "torch.randn(2, 8, 4, 5, 6)"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", LIBRARY_FORWARD, ids=lambda name: name.replace(" ", "-"))
def test_convolutions_that_the_library_computes(case: str, tmp_path: Path) -> None:
    """Forward is the library's, the gradient of the weight ours. Who asks for no gradient, or for a second one, has PyTorch's operators."""
    init, forward, x = LIBRARY_FORWARD[case]
    problem = problem_of(tmp_path, forward, x, init=init)
    front = read_problem(problem, Options(target="host", arithmetic="ieee"))
    text = front.finish(Choices(own=frozenset(), training=every(front)))[1].text
    candidate = load_candidate(text, "host", name="new.py")
    verdict = verify(problem, candidate, graph=front.graph, options=Options(target="host", arithmetic="ieee"))
    assert verdict.passed, verdict.worst
    new, (given,) = candidate.build_model(problem), problem.inputs()
    with candidate.launches() as without, torch.no_grad():
        new(given)
    with candidate.launches() as once:
        result = new(given)
        torch.autograd.grad(result.square().sum(), new.conv.weight)
    with candidate.launches() as twice:
        torch.autograd.grad(new(given).square().sum(), new.conv.weight, create_graph=True)
    assert "conv_weight_grad" in once and "conv_weight_grad" not in [*without, *twice]
    library = front.finish(Choices(own=frozenset(), training=Training(own_weights=frozenset())))[1].text
    assert "_convolved(" in text and "_convolved(" not in library


def test_layers_of_one_shape_share_a_kernel(tmp_path: Path) -> None:
    problem = problem_of(
        tmp_path, "self.b(torch.relu(self.a(x)))", "torch.randn(2, 8, 9, 11)",
        init="self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)",
    )  # fmt: skip
    front = read_problem(problem, Options(target="host"))
    _, emitted = front.finish(Choices(own=frozenset(), training=every(front)))
    assert emitted.text.count("_weight_grad_detail {") == 1 and emitted.text.count('_convolved(("a_weight_grad"') == 2
    assert [kernel.weights for kernel in emitted.weights] == [frozenset({"a_weight", "b_weight"})]
    verdict = verify(problem, load_candidate(emitted.text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst
    still = "self.a = nn.Conv2d(8, 8, 3).requires_grad_(False)"
    frozen = problem_of(tmp_path, "self.a(torch.relu(x))", "torch.randn(2, 8, 9, 11)", init=still)
    front = read_problem(frozen, Options(target="host"))
    assert "_weight_grad" not in front.finish(Choices(own=frozenset(), training=every(front)))[1].text


def test_two_convolutions_whose_gradient_is_one_view(tmp_path: Path) -> None:
    """Both ask for it to be laid out: it is one value."""
    problem = problem_of(
        tmp_path, "torch.tanh((self.first(x) + self.second(y)).permute(0, 2, 3, 1)).mean(1)",
        "torch.randn(2, 4, 9, 11)", "torch.randn(2, 6, 9, 11)", init=TWO_CONVOLUTIONS[0],
    )  # fmt: skip
    front = read_problem(problem, Options(target="host"))
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
    text = front.finish(Choices(own=own, training=every(front)))[1].text
    new, old = load_candidate(text, "host", name="new.py").build_model(problem), problem.model()
    new.load_state_dict(old.state_dict())
    for model in (new, old):
        model(*problem.inputs()).square().sum().backward()
    for ours, theirs in zip(new.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-3)
