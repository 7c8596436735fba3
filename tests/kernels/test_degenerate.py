"""Operators where there is little to go over: a tensor without dimensions, dimensions of size 1, no dimension named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of

NUMBERS = (
    "x.argmax(), x.argmin(0), x.max(0), x.min(-1, True), x.var(0, correction=0), torch.var_mean(x, 0, correction=0), x.std(correction=0), "
    "x.aminmax(dim=0), x.count_nonzero(0), (x > 0).sum(), x.norm(), x.norm(3, 0), F.normalize(x, dim=0), x.softmax(0) * 2, "
    "x.log_softmax(-1) + 1, x.logsumexp(0), x.mean((0,), True), (x > 0).any(0), x.all(), x.prod(0), x.cumsum(0), x.cumprod(-1), "
    "x.transpose(0, -1) * 2, x.movedim(0, 0) * 2, x.flip(()) * 2"
)
ONES = (
    "x[:, None].var(1, correction=0), x[..., None].argmax(-1), x[:, None].count_nonzero(1), x[:, None].std(1, correction=0), "
    "(x[:, None] > 0).sum(1), x[:, None].max(1), torch.var_mean(x[..., None], -1, correction=0), x[:, None].long().sum(1), "
    "x[:, :, None].argmin(2, True), x[:, None].softmax(1), x.any(dim=()), x.all(dim=()), x.count_nonzero(()), x.sum(()), x.amax(()), "
    "x.var(()), torch.linalg.vector_norm(x, 2, ()), torch.flip(x, ()), x.flip((0, 1)), x[:, :1].squeeze(()), torch.prelu(x, x[0, 0])"
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("returned", "shape"), [(NUMBERS, ()), (ONES, (4, 6))], ids=["numbers", "ones"])
def test_little_to_go_over(returned: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    problem = problem_of(tmp_path, returned, f"torch.randn({shape})")
    plan, _, original, new = made_of(problem)
    assert plan.kernels
    x = torch.randn(shape)
    torch.testing.assert_close(new(x), original(x), rtol=1e-5, atol=1e-6)


def test_a_row_picked_by_a_number_has_a_gradient(tmp_path: Path) -> None:
    """PyTorch's compilers add to rows by a formula that takes no index without dimensions."""
    problem = problem_of(tmp_path, "x.index_select(1, y) * 2", "torch.randn(4, 6, 5)", "torch.tensor(2)")
    _, _, original, new = made_of(problem, gradients=True)
    found = []
    for model in (new, original):
        x, y = problem.inputs()
        model(x.requires_grad_(), y).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[1])


def test_a_call_whose_results_are_all_returned_has_gradients_beside(tmp_path: Path) -> None:
    given = ["torch.randn(4, 6)", "torch.rand(6)"]
    returned = "*torch.native_batch_norm(x, y, y, y.detach() * 0, y.detach() + 1, False, 0.1, 1e-5), y * 2"
    problem = problem_of(tmp_path, returned, *given)
    _, _, original, new = made_of(problem, gradients=True)
    found = []
    for model in (new, original):
        inputs = [x.requires_grad_() for x in problem.inputs()]
        results = model(*inputs)
        (results[0].square().sum() + results[-1].sum()).backward()
        found.append([*results, *(x.grad for x in inputs)])
    torch.testing.assert_close(found[0], found[1])
