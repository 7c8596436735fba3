"""Scan kernels on the host, against float64: every way they are written, over awkward shapes and types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of
from torch import Tensor, nn

from fusewright.ir.plan import Plan


def made(folder: Path, forward: str, *inputs: str) -> tuple[Plan, str, nn.Module, nn.Module]:
    """The plan for these inputs, the emitted text, the original and what was made of it, on the host."""
    return made_of(problem_of(folder, forward, *inputs))


def same(original: nn.Module, new: nn.Module, *given: Tensor, tolerance: float = 2e-6) -> None:
    """As the original in float64, relative to the largest value; exactly where it is no float."""
    wide = [x.double() if x.is_floating_point() else x for x in given]
    with torch.no_grad():
        results, exact = new(*given), original(*wide)
    pairs = zip(results, exact, strict=True) if isinstance(results, tuple) else [(results, exact)]
    for result, expected in pairs:
        if not result.is_floating_point():
            assert torch.equal(result, expected.to(result.dtype))
            continue
        finite = expected[expected.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 1.0
        torch.testing.assert_close(result.double(), expected.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def one_kernel(plan: Plan) -> None:
    assert [kernel.is_scan for kernel in plan.kernels] == [True] and not plan.calls


@pytest.mark.parametrize("length", [2, 3, 12, 33, 64, 100, 130, 1000, 1027, 3001, 4096])
def test_rows_of_any_length(tmp_path: Path, length: int) -> None:
    """Parts of a warp, warps and blocks; single elements and vectors; the last chunk not full, the last block neither."""
    plan, _, original, new = made(tmp_path, "torch.cumsum(x, -1)", f"torch.randn(7, {length})")
    one_kernel(plan)
    same(original, new, torch.randn(5, length))


@pytest.mark.parametrize("length", [8, 100, 1024])
def test_rows_planned_at_one_length_are_right_at_others(tmp_path: Path, length: int) -> None:
    plan, text, original, new = made(tmp_path, "torch.cumsum(x * 2, -1)", f"torch.randn(6, {length})")
    one_kernel(plan)
    for other in (2, 4, 20, 1028, 5001):
        same(original, new, torch.randn(3, other))
    assert "scan_row<ScanSum" in text


@pytest.mark.parametrize(("shape", "dim"), [((5, 7, 3), 1), ((4000, 2), 0), ((3, 1029, 40), 1), ((2, 9, 200, 33), -3), ((17, 200), 0)])
def test_columns(tmp_path: Path, shape: tuple[int, ...], dim: int) -> None:
    """Rows that lie side by side, alone or shared by several threads."""
    plan, text, original, new = made(tmp_path, f"torch.cumsum(x, {dim})", f"torch.randn({shape})")
    one_kernel(plan)
    assert "scan_column<ScanSum" in text
    same(original, new, torch.randn(shape))
    same(original, new, torch.randn(shape[0] + 3, *shape[1:]))


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("torch.cumsum(x, 1).flip(1)", ["torch.randn(3, 77)"]),
        ("torch.cumsum(x.flip(1), 1).flip(1)", ["torch.randn(3, 1200)"]),
        ("torch.cumsum(x.flip(1), 1).flip(1)", ["torch.randn(3, 77)"]),
        ("torch.exp(-torch.cumsum(x.flip(1).abs(), 1)).flip(1) * x", ["torch.randn(3, 1200)"]),
        ("torch.cumsum(x.flip(0), 0).flip(0) - x", ["torch.randn(300, 40)"]),
        ("torch.cumsum(x, 1).flip([0, 1])", ["torch.randn(4, 64)"]),
        ("torch.cumsum(x, 1).transpose(0, 1) + 1", ["torch.randn(4, 64)"]),
        ("torch.cumsum(x.transpose(1, 2)[:, ::2], -1)", ["torch.randn(3, 40, 30)"]),
        ("torch.cumsum(x * y, 1)", ["torch.randn(5, 512)", "torch.rand(5, 512) > 0.5"]),
        ("torch.cumsum(F.pad(x, (1, 0))[:, :-1], 1)", ["torch.randn(5, 512)"]),
        ("torch.cumsum(x, 1) - x", ["torch.randn(5, 512)"]),
        ("torch.cumsum(torch.cumsum(x, 1) * y, 1) + x", ["torch.randn(5, 300)", "torch.randn(5, 1)"]),
        ("(torch.cumsum(x, 1), torch.cumsum(x * x, 1) / 2)", ["torch.randn(5, 300)"]),
        ("torch.relu(torch.cumsum(x, 2)).reshape(-1, 30) * 2", ["torch.randn(4, 6, 30)"]),
    ],
)
def test_what_surrounds_a_scan_is_in_its_kernel(tmp_path: Path, forward: str, inputs: list[str]) -> None:
    plan, _, original, new = made(tmp_path, forward, *inputs)
    one_kernel(plan)
    torch.manual_seed(3)
    given = [eval(text, {"torch": torch}) for text in inputs]
    same(original, new, *given)


def test_a_scan_and_one_from_the_other_end_do_not_share_a_kernel(tmp_path: Path) -> None:
    """They read the row from both ends."""
    forward = "(torch.cumsum(x, 1), torch.cumsum(x.flip(1), 1).flip(1))"
    plan, _, original, new = made(tmp_path, forward, "torch.randn(4, 640)")
    assert len(plan.kernels) == 2
    same(original, new, torch.randn(4, 640))


def test_a_reverse_scan_reads_and_writes_vectors(tmp_path: Path) -> None:
    _, text, _, _ = made(tmp_path, "torch.cumsum(x.flip(1), 1).flip(1)", "torch.randn(64, 1024)")
    assert "load(&x_ptr[" in text and "store(&flip" in text


@pytest.mark.parametrize("shape", [(6, 40), (6, 41), (40, 6)])
@pytest.mark.parametrize(
    ("forward", "tolerance"),
    [
        ("torch.cumprod(x, {dim})", 2e-6),
        ("torch.logcumsumexp(x, {dim})", 2e-6),
        ("torch.cummax(x, {dim}).values", 0.0),
        ("torch.cummin(x, {dim})[0] + 1", 1e-7),
    ],
)
def test_other_scans(tmp_path: Path, forward: str, tolerance: float, shape: tuple[int, int]) -> None:
    dim = 1 if shape[1] > shape[0] else 0
    plan, _, original, new = made(tmp_path, forward.format(dim=dim), f"torch.randn{shape}")
    one_kernel(plan)
    x = torch.randn(shape)
    same(original, new, x, tolerance=tolerance)


@pytest.mark.parametrize("operator", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_what_is_not_finite_goes_where_it_goes_in_pytorch(tmp_path: Path, operator: str) -> None:
    forward = f"torch.{operator}(x, 1)" + (".values" if operator in ("cummax", "cummin") else "")
    plan, _, original, new = made(tmp_path, forward, "torch.randn(8, 300)")
    one_kernel(plan)
    inf, nan = float("inf"), float("nan")
    x = torch.randn(8, 300)
    x[0, 10], x[1, 20], x[2, 30], x[3, 40:60] = inf, -inf, nan, 0.0
    x[4, 5], x[4, 200] = inf, -inf
    x[5, :7], x[6, 3], x[6, 50] = -inf, 0.0, inf
    x[7, 100:] *= 8
    x[7, 60] = 0.0
    same(original, new, x)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"])
def test_types(tmp_path: Path, dtype: str) -> None:
    """Halves are added in float and rounded once; whole numbers and truths in int64."""
    inputs = f"torch.randint(0, 2, (5, 70)).to(torch.{dtype})"
    plan, _, original, new = made(tmp_path, "torch.cumsum(x, 1)", inputs)
    one_kernel(plan)
    kind = getattr(torch, dtype)
    x = torch.randn(5, 70).to(kind) if kind.is_floating_point else torch.randint(0, 2, (5, 70)).to(kind)
    coarse = {"float16": 2**-10, "bfloat16": 2**-7, "float64": 1e-14}.get(dtype, 2e-6)
    with torch.no_grad():
        assert new(x).dtype == original(x).dtype
    same(original, new, x, tolerance=coarse)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_the_type_that_is_asked_for(tmp_path: Path, dtype: str) -> None:
    forward = f"torch.cumsum(x, 1, dtype=torch.{dtype})"
    plan, _, original, new = made(tmp_path, forward, "torch.randn(5, 70)")
    one_kernel(plan)
    x = torch.randn(5, 70) * 5
    with torch.no_grad():
        assert new(x).dtype == original(x).dtype
        torch.testing.assert_close(new(x), original(x), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("shape", "dim"), [((), 0), ((1,), 0), ((4, 1), 1)])
def test_nothing_to_scan(tmp_path: Path, shape: tuple[int, ...], dim: int) -> None:
    """A single element: with something to do beside it, so that there is a kernel."""
    _, _, original, new = made(tmp_path, f"torch.cumsum(x, {dim}) + 1", f"torch.randn({shape})")
    same(original, new, torch.randn(shape))


@pytest.mark.parametrize("dim", [0, 1])
def test_no_elements(tmp_path: Path, dim: int) -> None:
    plan, _, original, new = made(tmp_path, f"torch.cumsum(x[:, y.shape[0] :], {dim})", "torch.randn(40, 160)", "torch.randn(9)")
    one_kernel(plan)
    same(original, new, torch.randn(0, 160), torch.randn(9))
    same(original, new, torch.randn(40, 160), torch.randn(160))


def test_tensors_of_any_strides(tmp_path: Path) -> None:
    _, _, original, new = made(tmp_path, "torch.cumsum(x, 1)", "torch.randn(24, 64)")
    same(original, new, torch.randn(64, 24).t())
    same(original, new, torch.randn(24, 128)[:, ::2])
    same(original, new, torch.randn(24 * 64 + 1)[1:].view(24, 64))  # not aligned for vectors


def test_positions_are_pytorchs(tmp_path: Path) -> None:
    plan, _, original, new = made(tmp_path, "torch.cummax(x + 1, 1)", "torch.randn(5, 70)")
    assert not any(kernel.is_scan for kernel in plan.kernels)
    same(original, new, torch.randn(5, 70))


def test_one_long_row_is_pytorchs(tmp_path: Path) -> None:
    """A block alone would take longer than PyTorch, which cuts the row into pieces."""
    plan, _, _, _ = made(tmp_path, "torch.cumsum(x * 2, 0) + 1", "torch.randn(1 << 15)")
    assert not any(kernel.is_scan for kernel in plan.kernels) and plan.calls


@pytest.mark.parametrize("forward", ["torch.cumsum(x, 1)", "torch.cumsum(x.T.contiguous(), 0)"])
def test_a_long_row_keeps_its_precision(forward: str, tmp_path: Path) -> None:
    """Many small numbers: chunks that were added up without what rounding takes would be off by some units in the last place."""
    _, _, original, new = made(tmp_path, forward, "torch.rand(2, 1 << 17)")
    same(original, new, torch.rand(2, 1 << 17), tolerance=7e-8)


def test_a_row_that_overflows_stays_infinite(tmp_path: Path) -> None:
    """What rounding takes from an infinite sum is no number; it must not reach the row."""
    _, _, original, new = made(tmp_path, "torch.cumsum(x, 1)", "torch.rand(3, 5000)")
    x = torch.rand(3, 5000)
    x[0, 2000], x[1, 3000], x[1, 4000], x[2, 100] = torch.inf, -torch.inf, torch.inf, torch.nan
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), equal_nan=True, rtol=1e-6, atol=1e-6)


def test_what_reads_a_scan_elsewhere_reads_memory(tmp_path: Path) -> None:
    """The last of the row is needed by its first: that is a kernel of its own."""
    plan, _, original, new = made(tmp_path, "torch.cumsum(x, 1) / torch.cumsum(x, 1)[:, -1:]", "torch.rand(5, 70)")
    assert len(plan.kernels) == 2
    same(original, new, torch.rand(5, 70))


def trained(folder: Path, forward: str) -> tuple[str, Tensor, Tensor]:
    """The emitted text, and the gradients of the weight by the original in float64 and by the kernels."""
    init = "self.weight = nn.Parameter(torch.randn(300))"
    _, text, original, new = made_of(problem_of(folder, forward, "torch.randn(20, 300)", init=init), gradients=True)
    x, upstream = torch.randn(20, 300), torch.randn(20, 300)
    original.double()
    original(x.double()).backward(upstream.double())
    new(x).backward(upstream)
    return text.partition("\n_CUDA_GRADIENTS = ")[2], original.weight.grad, new.weight.grad


@pytest.mark.parametrize("forward", ["torch.cumsum(x * self.weight, 1) * 2", "torch.cumsum(x.flip(1) * self.weight, 1).flip(1)"])
def test_the_gradient_of_a_scan_is_a_scan_from_the_other_end(tmp_path: Path, forward: str) -> None:
    gradients, expected, found = trained(tmp_path, forward)
    assert "scan_row<ScanSum" in gradients
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_the_gradient_of_a_product_is_pytorchs(tmp_path: Path) -> None:
    """PyTorch looks for zeros first."""
    gradients, expected, found = trained(tmp_path, "torch.cumprod(1 + 0.1 * x * self.weight, 1)")
    assert "scan_row" not in gradients
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_what_is_made_of_a_scan_is_in_the_scans_kernel(tmp_path: Path) -> None:
    """Not in another one that reads the same tensor."""
    forward = "(torch.cumsum(x, 1), torch.cumsum(x.flip(1), 1).flip(1) - x)"
    plan, _, original, new = made(tmp_path, forward, "torch.randn(4, 640)")
    assert [len(kernel.stores) for kernel in plan.kernels] == [1, 1]
    same(original, new, torch.randn(4, 640))
