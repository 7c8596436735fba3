"""Resizing by kernels: the same elements as PyTorch's, or weights that differ by rounding, at any size and beside anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of, weight_of

from fusewright.codegen.loops import pointwise
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import Problem
from fusewright.options import Options

LINE, IMAGE, VOLUME = (3, 4, 17), (3, 4, 9, 13), (2, 3, 5, 6, 7)
NEAREST = {  # that are the same bits as PyTorch's
    "twice": ("scale_factor=2", IMAGE),
    "by a factor whose inverse rounds down": ("scale_factor=41", (2, 3, 3, 2)),
    "by two factors": ("scale_factor=(1.7, 2.6)", IMAGE),
    "smaller": ("scale_factor=0.37", IMAGE),
    "to a size": ("size=(23, 5)", IMAGE),
    "to one row": ("size=(1, 31)", IMAGE),
    "along one dimension only": ("scale_factor=(1, 1.9)", IMAGE),
    "along a line": ("size=40", LINE),
    "along a line, by a whole factor": ("size=51", LINE),
    "a volume": ("scale_factor=(1.3, 2, 0.6)", VOLUME),
}
LINEAR = {
    "twice": ("scale_factor=2, mode='bilinear'", IMAGE),
    "by two factors": ("scale_factor=(1.7, 2.6), mode='bilinear'", IMAGE),
    "smaller": ("scale_factor=0.37, mode='bilinear'", IMAGE),
    "to a size": ("size=(23, 5), mode='bilinear'", IMAGE),
    "to a size, corners on corners": ("size=(23, 5), mode='bilinear', align_corners=True", IMAGE),
    "twice, corners on corners": ("scale_factor=2, mode='bilinear', align_corners=True", IMAGE),
    "to one row": ("size=(1, 31), mode='bilinear', align_corners=True", IMAGE),
    "along one dimension only": ("scale_factor=(1, 3), mode='bilinear'", IMAGE),
    "as it is": ("size=(9, 13), mode='bilinear', align_corners=True", IMAGE),
    "along a line": ("size=40, mode='linear'", LINE),
    "along a line, corners on corners": ("scale_factor=2.5, mode='linear', align_corners=True", LINE),
    "a volume": ("scale_factor=(1.3, 2, 0.6), mode='trilinear'", VOLUME),
    "a volume, corners on corners": ("size=(3, 7, 11), mode='trilinear', align_corners=True", VOLUME),
    "cubic": ("scale_factor=2, mode='bicubic'", IMAGE),
    "cubic, smaller": ("size=(5, 30), mode='bicubic'", IMAGE),
    "cubic, corners on corners": ("size=(20, 7), mode='bicubic', align_corners=True", IMAGE),
}
AMONG_OTHERS = {
    "of something computed, and more": "torch.sigmoid(F.interpolate(x * self.weight, scale_factor=2, mode='bilinear')) * self.weight",
    "of something that is dear": "F.interpolate(torch.tanh(torch.sin(x)), scale_factor=2, mode='bilinear') + 1",
    "of a pool": "F.interpolate(F.avg_pool2d(x, 3, 2, 1), size=(9, 13), mode='bilinear') - x",
    "before a pool": "F.max_pool2d(F.interpolate(x, scale_factor=1.5, mode='bilinear'), 3, 2, 1)",
    "before a softmax": "torch.softmax(F.interpolate(x, scale_factor=2, mode='bilinear'), -1)",
    "before a softmax over channels": "torch.softmax(F.interpolate(x, scale_factor=2, mode='bicubic'), 1)",
    "before means": "F.interpolate(x, scale_factor=3, mode='bilinear').mean((2, 3))",
    "before running sums": "torch.cumsum(F.interpolate(x, scale_factor=1.5), -1)",
    "joined": "torch.cat((F.interpolate(x, scale_factor=2, mode='bilinear'), x.repeat_interleave(2, 2).repeat_interleave(2, 3)), 1) * 2",
    "padded": "F.pad(F.interpolate(x, scale_factor=2, mode='bilinear'), (2, 1, 1, 3)) + 1",
    "transposed": "F.interpolate(x, scale_factor=2, mode='bilinear').transpose(2, 3) * 2",
    "twice over": "F.interpolate(F.interpolate(x, scale_factor=2, mode='bilinear'), scale_factor=1.5, mode='bilinear')",
    "of a reshape": "F.interpolate(x.flatten(1, 2)[:, None], scale_factor=2, mode='bilinear') + 1",
    "of some channels": "F.interpolate(x[:, 1:3], scale_factor=2, mode='bilinear', align_corners=True) * 2",
}


@pytest.fixture(params=["rows", "vectors"])
def walked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several rows to a thread, as at sizes that fill a GPU, or with neighbouring elements."""
    if request.param == "rows":
        monkeypatch.setattr(pointwise, "resident", lambda machine: 0)


def problem_of(folder: Path, forward: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Problem:
    return frame.problem_of(folder, forward, f"torch.randn({shape}).to({dtype})", init=weight_of(shape))


def other_sizes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """What the plan takes of these is tested by kernels, the rest is PyTorch's."""
    batch, channels, *extents = shape
    found = [tuple(n + d for n in extents) for d in (1, 2, 7)] + [tuple(2 + d for d in range(len(extents)))]
    return [(batch + 1, channels, *extents), *((batch, channels, *sizes) for sizes in found)]


def check(problem: Problem, shape: tuple[int, ...], dtype: torch.dtype, exact: bool, kernels: int = 1) -> None:
    plan, _, original, new = made_of(problem)
    assert len(plan.kernels) == kernels and not plan.calls, [str(call.node.target) for call in plan.calls]
    for given in (shape, *other_sizes(shape)):
        x = torch.randn(given).to(dtype)
        with torch.no_grad():
            try:
                expected = original(x)
            except RuntimeError:
                continue  # sizes that do not fit the rest of the model
            found = new(x)
            if exact:
                assert torch.equal(found, expected), given
                continue
            apart = max(1e-5, torch.finfo(dtype).eps / 2)  # on a CPU, PyTorch rounds the weights of halves
            torch.testing.assert_close(found.double(), original.double()(x.double()), rtol=apart, atol=apart)
            original.to(dtype)


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("case", NEAREST, ids=lambda name: name.replace(" ", "-"))
def test_nearest_elements_are_the_same(tmp_path: Path, case: str, mode: str) -> None:
    given, shape = NEAREST[case]
    check(problem_of(tmp_path, f"F.interpolate(x, {given}, mode='{mode}') * 2", shape), shape, torch.float32, exact=True)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("case", LINEAR, ids=lambda name: name.replace(" ", "-"))
def test_in_between(tmp_path: Path, case: str) -> None:
    given, shape = LINEAR[case]
    check(problem_of(tmp_path, f"F.interpolate(x, {given}) + 1", shape), shape, torch.float32, exact=False)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("walked")
@pytest.mark.parametrize("case", AMONG_OTHERS, ids=lambda name: name.replace(" ", "-"))
def test_beside_other_operators(tmp_path: Path, case: str) -> None:
    stored = {"of something that is dear", "of a pool", "before a pool", "twice over"}  # what would be computed again and again
    kernels = 2 if case in stored else 1
    check(problem_of(tmp_path, AMONG_OTHERS[case], IMAGE), IMAGE, torch.float32, exact=False, kernels=kernels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", ["scale_factor=1.6", "scale_factor=2, mode='bilinear'", "size=(7, 30), mode='bicubic'"])
def test_halves(tmp_path: Path, given: str, dtype: torch.dtype) -> None:
    check(problem_of(tmp_path, f"F.interpolate(x, {given})", IMAGE, dtype), IMAGE, dtype, exact="mode" not in given)


def test_whole_numbers(tmp_path: Path) -> None:
    problem = frame.problem_of(tmp_path, "F.interpolate(x, scale_factor=1.7) + 2", "torch.randint(0, 255, (2, 3, 8, 9), dtype=torch.uint8)")
    plan, _, original, new = made_of(problem)
    x = torch.randint(0, 255, (2, 3, 8, 9), dtype=torch.uint8)
    assert not plan.calls and torch.equal(new(x), original(x))


def test_sizes_of_another_input(tmp_path: Path) -> None:
    """A decoder brings what it has to the size of what it joins: both are only known at the call."""
    forward = "F.interpolate(x, size=y.shape[2:], mode='bilinear', align_corners=True) + F.interpolate(x, size=y.shape[2:]) * y"
    plan, _, original, new = made_of(frame.problem_of(tmp_path, forward, "torch.randn(2, 3, 6, 7)", "torch.randn(2, 3, 11, 15)"))
    assert len(plan.kernels) == 1 and not plan.calls
    for small, large in (((2, 3, 6, 7), (2, 3, 11, 15)), ((4, 3, 5, 9), (4, 3, 17, 12)), ((4, 3, 9, 5), (4, 3, 4, 11))):
        x, y = torch.randn(small), torch.randn(large)
        with torch.no_grad():
            torch.testing.assert_close(new(x, y), original(x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "given",
    ["scale_factor=2, mode='bilinear'", "size=(21, 5), mode='bilinear', align_corners=True", "scale_factor=2, mode='bicubic'"],
)
def test_what_is_no_number_and_what_is_infinite(tmp_path: Path, given: str) -> None:
    """They reach as far as their weights, those that are 0 too, and no further."""
    _, _, original, new = made_of(problem_of(tmp_path, f"F.interpolate(x, {given})", IMAGE))
    for row, column in ((0, 0), (4, 6), (8, 12), (3, 0)):
        for value in (float("nan"), float("inf"), -float("inf")):
            x = torch.randn(IMAGE)
            x[1, 2, row, column] = value
            with torch.no_grad():
                torch.testing.assert_close(new(x), original(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    "given",
    [
        "scale_factor=2",
        "scale_factor=1.7",
        "scale_factor=1.7, mode='nearest-exact'",
        "scale_factor=2, mode='bilinear'",
        "size=(7, 30), mode='bilinear', align_corners=True",
        "size=(7, 30), mode='bicubic'",
    ],
)
def test_gradients(tmp_path: Path, given: str) -> None:
    problem = problem_of(tmp_path, f"torch.sigmoid(F.interpolate(F.relu(x * self.weight), {given}))", IMAGE)
    _, _, original, new = made_of(problem, gradients=True)
    original.double()
    x = torch.randn(5, *IMAGE[1:], requires_grad=True)
    y = x.detach().double().requires_grad_()
    expected, found = original(y), new(x)
    upstream = torch.randn(expected.shape)
    expected.backward(upstream.double())
    found.backward(upstream)
    torch.testing.assert_close(new.weight.grad.double(), original.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_kernels_of_gradients_call_pytorch_s_formula(tmp_path: Path, mode: str) -> None:
    """Its own kernel for the resizing; what is around it is fused. They are for every batch."""
    problem = problem_of(tmp_path, f"torch.sigmoid(F.interpolate(F.relu(x * self.weight), scale_factor=1.7, mode='{mode}'))", IMAGE)
    _, text, _, _ = made_of(problem, gradients=True)
    assert f"aten.{'_' * ('exact' in mode)}upsample_{mode.replace('-', '_')}2d_backward" in text
    assert "return None" not in text.split("_grad(sizes, tensors)")[1].split("_region = ")[0]


def test_a_factor_that_the_sizes_deny_is_left_to_pytorch(tmp_path: Path) -> None:
    """3 · 1.3 is 3 again: some of PyTorch's kernels copy, others go by the factor."""
    _, plan, _ = compile_problem(problem_of(tmp_path, "F.interpolate(x, scale_factor=1.3) + 1", (2, 4, 3, 3)), Options(gradients=False))
    assert "aten.upsample_nearest2d.vec" in [str(call.node.target) for call in plan.calls]
