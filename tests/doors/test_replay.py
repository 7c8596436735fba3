"""mode="reduce-overhead". Where there is no GPU, a stand-in for a CUDA graph runs the call again and writes into the same results."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from doors.models import Normed, Scaled, quickly
from doors.watch import kernels_of, launches, warned
from torch import Tensor, nn

import fusewright
from fusewright.driver import replay
from fusewright.driver.optimized import Said, _replayable, _said
from fusewright.frontend.trees import flatten


class Graphs:
    """What stands in for CUDA graphs: how many were recorded, and how often one was replayed."""

    def __init__(self) -> None:
        self.recorded = self.replays = 0

    def captured(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        result = run()
        leaves, _ = flatten(result)

        def again() -> None:
            self.replays += 1
            for old, new in zip(leaves, flatten(run())[0], strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)

        return again, result


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    found = Graphs()
    stand_ins = {
        "DEVICE": "cpu", "here": lambda: torch.device("cpu"), "stream": lambda: 0, "is_recording": lambda: False,
        "finish_work": lambda: None, "warmed_up": lambda run: run(), "captured": found.captured,
    }  # fmt: skip
    for name, value in stand_ins.items():
        monkeypatch.setattr(replay, name, value)
    yield found


def replaying(new: Any) -> Callable[..., Any]:
    """Calls of a module whose kernels run on the CPU, as those of one on a GPU are made."""
    made = fusewright.about(new)
    plan_of = functools.partial(_replayable, made.plans, made.spaces)
    return functools.partial(replay.replayed(type(new).forward, plan_of, lambda module: _said.setdefault(module, Said()).calls), new)


def sample(rows: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(rows, 12, generator=torch.Generator().manual_seed(seed))


def test_calls_alike_are_replayed(graphs: Graphs) -> None:
    original = Scaled()
    new = quickly(original, sample())
    call = replaying(new)
    with torch.no_grad(), launches(new) as launched:
        results = [call(sample(seed=seed)) for seed in range(4)]
        assert graphs.recorded == 1 and graphs.replays == 4
        for seed, found in enumerate(results):  # none is overwritten by a later call
            torch.testing.assert_close(found, original(sample(seed=seed)))
        original.norm.weight.add_(1.0)  # a graph reads weights where they are
        torch.testing.assert_close(call(sample()), original(sample()))
        assert graphs.recorded == 1 and set(launched) == kernels_of(new)


def test_what_makes_a_call_another_one(graphs: Graphs) -> None:
    original = Scaled()
    new = quickly(original, sample())
    call = replaying(new)
    with torch.no_grad():
        call(sample())
        call(sample(7))
        apart = torch.randn(7, 24)[:, ::2]  # no copy lies as it does: such calls run plainly
        torch.testing.assert_close(call(apart), original(apart))
        assert graphs.recorded == 2 and list(replay._recordings[new].found.values())[-1] is None
        new.norm.weight.data = new.norm.weight.data.clone() * 2  # elsewhere
        found = call(sample())
        assert graphs.recorded == 3
        torch.testing.assert_close(found, new(sample()))
        torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
        try:
            call(sample())
        finally:
            torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
        assert graphs.recorded == 4


def test_a_few_are_kept(graphs: Graphs) -> None:
    new = quickly(Scaled(), sample())
    call = replaying(new)
    with torch.no_grad():
        for rows in range(2, 2 + replay.MOST + 1):
            call(sample(rows))
        assert len(replay._recordings[new].found) == replay.MOST
        call(sample(3 + replay.MOST - 1))
        assert graphs.recorded == replay.MOST + 1  # kept
        call(sample(2))
        assert graphs.recorded == replay.MOST + 2  # the oldest had gone
    other = copy.deepcopy(new)
    assert other not in replay._recordings and "_recordings" not in vars(new)


def test_what_runs_plainly(graphs: Graphs) -> None:
    original = Scaled()
    new = quickly(original, sample())
    call = replaying(new)
    call(sample()).sum().backward()  # training
    x = sample().requires_grad_()
    call(x).sum().backward()
    assert x.grad is not None and new.norm.weight.grad is not None
    with torch.no_grad():
        with warned() as said:
            call(sample().as_subclass(Odd))
            with torch.autocast("cpu", torch.bfloat16):
                call(sample())
        assert not graphs.recorded and len(said) == 2
        call(sample())
        new.norm.eps = 0.5  # of the original too; no longer what was planned for
        with pytest.warns(UserWarning, match=r"norm\.eps"):
            assert torch.equal(call(sample()), original(sample()))
        assert graphs.recorded == 1 and graphs.replays == 1


class Odd(Tensor):
    ...


def test_buffers_that_a_call_changes(graphs: Graphs) -> None:
    """A batch norm in training is no graph; in evaluation it is."""
    original = Normed()
    new = quickly(copy.deepcopy(original), torch.randn(8, 6))
    call, x = replaying(new), torch.randn(8, 6)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(call(x), original(x))
        assert not graphs.recorded and torch.equal(new.norm.num_batches_tracked, original.norm.num_batches_tracked)
        new.eval()
        original.eval()
        for _ in range(2):
            torch.testing.assert_close(call(x), original(x))
        assert graphs.recorded == 1 and graphs.replays == 2


class Returning(nn.Module):
    """Returns what is not its own memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x * self.scale, -1), self.scale


def test_memory_of_the_model_is_returned_as_it_is(graphs: Graphs) -> None:
    new = quickly(Returning(), sample())
    with torch.no_grad():
        for _ in range(2):
            assert replaying(new)(sample())[1].data_ptr() == new.scale.data_ptr()
    assert not graphs.recorded


def test_on_the_host_it_runs_plainly() -> None:
    original = Scaled()
    new = quickly(original, sample(), mode="reduce-overhead")
    with torch.no_grad(), launches(new) as launched, warned() as said:
        torch.testing.assert_close(new(sample()), original(sample()))
    assert set(launched) == kernels_of(new) and not said and new not in replay._recordings
    assert "CUDA graphs" not in repr(new)
    assert fusewright.about(new).plans.mode == "reduce-overhead"
    assert type(new) is not type(quickly(original, sample()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_plan_for_a_gpu_where_there_is_none() -> None:
    new = fusewright.optimize(Scaled(), sample(), verify=False, cache=False, mode="reduce-overhead")
    assert "by CUDA graphs where no gradients are asked for" in repr(new)
    with torch.no_grad(), warned() as said:
        new(sample())
    assert len(said) == 1 and "tensors are on cpu, kernels on cuda" in said[0] and new not in replay._recordings


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu() -> None:
    original = Scaled().cuda()
    new: Any = fusewright.optimize(original, sample().cuda(), target="cuda", tune="off", verify=False, strict=True, mode="reduce-overhead")
    with torch.no_grad(), launches(new) as launched, warned() as said:
        results = [(new(x), original(x)) for x in (sample(seed=seed).cuda() for seed in range(5))]
        count = len(launched)
        torch.cuda.synchronize()
        for found, expected in results:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        new(sample().cuda())
        assert len(launched) == count and not said  # replayed: nothing is launched from Python
        (kept,) = replay._recordings[new].found.values()
        assert kept is not None
        new(sample(9).cuda())
        assert len(replay._recordings[new].found) == 2 and len(launched) > count
        with torch.inference_mode():
            torch.testing.assert_close(new(sample().cuda()), original(sample().cuda()), rtol=1e-4, atol=1e-5)
    before = len(replay._recordings[new].found)
    new(sample().cuda()).sum().backward()  # training: plain calls
    assert original.norm.weight.grad is not None and len(replay._recordings[new].found) == before
    torch.testing.assert_close(new.cpu()(sample()), original.cpu()(sample()))  # no kernels there, and no graph
