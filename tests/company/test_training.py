"""What people do around a module that they train, with one that was optimised: kernels run, and the numbers are the original's."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from company.distributed import Block, Net
from doors.watch import kernels_of, launches, warned
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fusewright

optimised = functools.partial(fusewright.optimize, target="host", verify=False, strict=True)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(x)) + 1


def pair(kind: Callable[[], nn.Module] = Net) -> tuple[nn.Module, Any]:
    """The original, and one with kernels whose parameters are its own."""
    original = kind()
    return original, optimised(copy.deepcopy(original), torch.ones(4, 8, requires_grad=kind is Block))


def batches(count: int) -> list[Tensor]:
    return [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def same(new: nn.Module, original: nn.Module) -> None:
    for (name, found), expected in zip(new.state_dict().items(), original.state_dict().values(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda words, name=name: f"{name}: {words}")


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 3) -> None:
    for x in batches(count):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torch.optim.SGD, lr=0.3, momentum=0.9, foreach=True),
        functools.partial(torch.optim.AdamW, lr=0.01, foreach=True),
        functools.partial(torch.optim.Adam, lr=0.01, fused=True),
    ],
    ids=["SGD", "AdamW", "fused Adam"],
)
def test_optimizers(make: Callable[..., torch.optim.Optimizer]) -> None:
    original, new = pair()
    trained(original, make(original.parameters()))
    with launches(new) as launched, warned() as said:
        trained(new, make(new.parameters()))
    assert set(launched) == kernels_of(new, gradients=True) and not said
    same(new, original)


def test_an_optimizer_of_the_originals_parameters() -> None:
    """They are the same: a loop may go on with the optimizer that it has."""
    original, twin = Net(), Net()
    twin.load_state_dict(original.state_dict())
    optimizer = torch.optim.SGD(original.parameters(), lr=0.3)
    new = optimised(original, torch.ones(4, 8))
    with launches(new) as launched:
        trained(new, optimizer)
    trained(twin, torch.optim.SGD(twin.parameters(), lr=0.3))
    assert launched
    same(original, twin)


def test_gradients_are_accumulated() -> None:
    original, new = pair()
    with launches(new) as launched:
        for model in (original, new):
            for x in batches(4):
                (model(x).square().mean() / 4).backward()
    assert set(launched) == kernels_of(new, gradients=True)
    for found, expected in zip(new.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(reentrant: bool) -> None:
    """Forward runs a second time in backward; hooks on saved tensors are what the other kind of them is made of."""
    original, new = pair(Block)
    x = torch.randn(4, 8, requires_grad=True)
    with launches(new) as launched, warned() as said:
        checkpoint(new, x, use_reentrant=reentrant).square().sum().backward()
    found = x.grad
    x.grad = None
    original(x).square().sum().backward()
    forward = kernels_of(new)
    assert set(launched) == kernels_of(new, gradients=True) and not said
    assert sum(kernel in forward for kernel in launched) >= 2 * len(forward)
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(new.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_checkpoints_of_a_sequence_of_blocks() -> None:
    first, second = pair(Block), pair(Block)
    x = torch.randn(4, 8, requires_grad=True)
    with launches(first[1], second[1]) as launched:
        found = checkpoint_sequential(nn.Sequential(first[1], second[1]), 2, x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
    expected = torch.autograd.grad(nn.Sequential(first[0], second[0])(x).square().sum(), x)[0]
    assert set(launched) == kernels_of(first[1], gradients=True)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_averaged_copies() -> None:
    """`AveragedModel` deep-copies: the copy runs kernels of its own, on its own parameters."""
    original, new = pair()
    averages = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)) for model in (original, new)]
    for model, average in zip((original, new), averages, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(2):
            trained(model, optimizer, 1)
            average.update_parameters(model)
    x = batches(1)[0]
    copied = averages[1].module
    with launches(copied) as launched, torch.no_grad():
        found = averages[1](x)
    assert set(launched) == kernels_of(copied) and type(copied) is type(new)
    torch.testing.assert_close(found, averages[0](x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, new(x))


def test_an_average_of_a_batch_norm() -> None:
    """`update_bn` takes the momentum away while it runs: that is followed, and said."""
    original, new = pair(Normed)
    averages = [AveragedModel(model) for model in (original, new)]
    with launches(averages[1].module) as launched, warned() as said:
        for average, model in zip(averages, (original, new), strict=True):
            average.update_parameters(model)
            update_bn(batches(3), average)
        assert not launched
        averages[1](batches(1)[0])
        averages[0](batches(1)[0])
    assert set(launched) == kernels_of(new)
    assert len(said) == 1 and "norm.momentum is None, not 0.1" in said[0]
    same(averages[1], averages[0])


def test_autocast_runs_the_original() -> None:
    """Planned outside it: what it changes is what each operator computes in. Said once; outside kernels run again."""
    original, new = pair()
    with launches(new) as launched, warned() as said:
        for x in batches(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found, expected = new(x), original(x)
            assert torch.equal(found, expected)
            found.float().sum().backward()
        assert not launched
        new(batches(1)[0])
    assert set(launched) == kernels_of(new) and len(said) == 1 and "torch.autocast is on" in said[0]


@pytest.mark.gpu
@pytest.mark.slow
def test_graphed_callables() -> None:
    """A CUDA graph of forward and one of backward, made by PyTorch."""
    original = Block().cuda()
    sample = torch.randn(4, 8, device="cuda", requires_grad=True)
    new = fusewright.optimize(copy.deepcopy(original), torch.ones(4, 8, device="cuda"), target="cuda", verify=False, strict=True)
    with launches(new) as launched:
        graphed: Any = torch.cuda.make_graphed_callables(new, (sample,))
    assert set(launched) == kernels_of(new, gradients=True)
    for seed in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).cuda().requires_grad_()
        (found,) = torch.autograd.grad(graphed(x).square().sum(), x)
        (expected,) = torch.autograd.grad(original(x).square().sum(), x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
