"""torch.autocast: a module that is optimised while it is on has a plan for it, and the original runs under any other."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doors.watch import kernels_of, launches, warned
from torch import Tensor, nn

import fusewright
from fusewright.driver.content import key_of
from fusewright.frontend.autocast import Autocast
from fusewright.options import Options

optimised = functools.partial(fusewright.optimize, target="host", verify=False, strict=True)
half = functools.partial(torch.autocast, "cpu", torch.bfloat16)


class Head(nn.Module):
    """Under autocast the layers compute in bf16, and the sum of both types in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x)))
        last = self.last(hidden)
        return torch.tanh(last) + self.scale if self.training else torch.softmax(last * self.scale.to(last.dtype), -1)


def sample(seed: int = 0) -> Tensor:
    return torch.randn(6, 12, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def planned() -> tuple[Head, Any]:
    torch.manual_seed(5)
    original = Head()
    with half():
        new = optimised(original, sample())
        assert torch.is_autocast_enabled("cpu")
    return original, new


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, and the gradients of its parameters, by a loop's usual lines: backward stands outside."""
    with half():
        result = model(x)
    return [result.detach(), *torch.autograd.grad(result.float().square().sum(), list(model.parameters()))]


def no_farther(found: list[Tensor], eager: list[Tensor], exact: list[Tensor]) -> None:
    """From what float32 gives: kernels round less often than eager, which rounds each operator's result to bf16."""
    for ours, theirs, true in zip(found, eager, exact, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        errors = [(tensor.float() - true).square().mean().sqrt().item() for tensor in (ours, theirs)]
        assert errors[0] <= 2 * errors[1] + 1e-6, errors


def exactly(model: nn.Module, x: Tensor) -> list[Tensor]:
    result = model(x)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), list(model.parameters()))]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_kernels_run_under_it(planned: tuple[Head, Any], training: bool) -> None:
    original, new = planned
    for model in planned:
        model.train(training)
    with launches(new) as launched, warned() as said:
        found = step(new, sample(1))
    assert set(launched) == kernels_of(new, "training" if training else "evaluation", gradients=True) and not said
    eager, exact = step(original, sample(1)), exactly(original, sample(1))
    no_farther(found, eager, exact)
    assert found[0].dtype is (torch.float32 if training else torch.bfloat16)
    assert (found[0].float() - exact[0]).abs().max() > 1e-4  # its casts are in the plan
    assert "under torch.autocast('cpu', torch.bfloat16)" in repr(new)
    assert new.report["autocast"] == "torch.autocast('cpu', torch.bfloat16)"
    original.train()


def test_outside_it_the_original_runs(planned: tuple[Head, Any]) -> None:
    original, new = planned
    new = copy.deepcopy(new.train())
    with launches(new) as launched, warned() as said:
        for seed in range(3):
            assert torch.equal(new(sample(seed)), original.train()(sample(seed)))
    assert not launched and len(said) == 1
    assert "planned for calls under torch.autocast('cpu', torch.bfloat16), and it is off" in said[0]
    with torch.autocast("cpu", torch.float16), launches(new) as launched, warned() as said:
        found, expected = new(sample()), original(sample())
        assert torch.equal(found, expected) and not launched
    assert len(said) == 1 and "and torch.autocast('cpu', torch.float16) is on" in said[0]
    with half(), launches(new) as launched, warned() as said:
        with torch.autocast("cpu", enabled=False):
            assert new(sample()).dtype is torch.float32 and not launched
        new(sample())
        assert set(launched) == kernels_of(new)


def test_what_lies_outside_the_plan_runs_under_it(planned: tuple[Head, Any]) -> None:
    """The original's forward, called in the middle of the plan's, sees the autocast again; so does whoever comes after an error."""
    original, new = planned
    new = copy.deepcopy(new).eval()
    original = copy.deepcopy(original).eval()
    with half(), launches(new) as launched, warned() as said:
        assert torch.equal(new(sample()[None]), original(sample()[None]))  # another rank
        assert torch.equal(new(x=sample().bfloat16()), original(sample().bfloat16()))
        assert new(sample()[None]).dtype is torch.bfloat16
        with pytest.raises(RuntimeError):
            new(torch.randn(6, 5))
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert not launched and len(said) >= 1
    assert not torch.is_autocast_enabled("cpu")


def test_copies_and_pickles(planned: tuple[Head, Any]) -> None:
    _, new = planned
    file = io.BytesIO()
    torch.save(new, file)
    file.seek(0)
    for other in (copy.deepcopy(new), torch.load(file, weights_only=False)):
        with half(), launches(other) as launched:
            assert torch.equal(other.train()(sample()), new.train()(sample()))
        assert set(launched) == kernels_of(other)


def test_a_plan_for_it_is_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache does not hand out one for the other, nor one type's for another's."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path))
    model, x = nn.Sequential(nn.Softmax(-1), nn.Linear(12, 4), nn.Tanh()), sample()
    states = [None, Autocast("cpu", torch.bfloat16), Autocast("cpu", torch.float16), Autocast("cuda", torch.bfloat16)]
    assert len({key_of(model, nn.Sequential, "", [x], Options(), state) for state in states}) == 4
    plain = optimised(model, x)
    with half():
        first = optimised(model, x)
        again = optimised(model, x)
        assert torch.equal(first(x), again(x)) and first(x).dtype is torch.bfloat16
    assert not first.report["cached"] and again.report["cached"] and first.source != plain.source
    assert optimised(model, x).report["cached"] and plain(x).dtype is torch.float32


def test_named_inputs_and_dicts() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(12, 4)

        def forward(self, batch: dict[str, Tensor], *, scale: float = 1.0) -> dict[str, Tensor]:
            return {"score": torch.sigmoid(self.lin(batch["x"])) * scale}

    original, given = Named(), {"x": sample()}
    with half():
        new: Any = optimised(original, (given,), {"scale": 3.0})
        with launches(new) as launched, warned() as said:
            found = new(given, scale=3.0)["score"]
        assert set(launched) == kernels_of(new) and not said
        expected = original(given, scale=3.0)["score"]
        assert found.dtype is expected.dtype is torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-8)
        with warned() as said:
            assert torch.equal(new(given, scale=2.0)["score"], original(given, scale=2.0)["score"])
        assert len(said) == 1


def test_it_is_verified() -> None:
    """Against the original under it, in every way that verification knows."""
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Softmax(-1))
    with half():
        new = fusewright.optimize(model, sample(), target="host", strict=True, seeds=1, cache=False)
        assert new.report["verified"] is True and new(sample()).dtype is torch.bfloat16


def test_it_is_not_saved_as_a_file(planned: tuple[Head, Any], tmp_path: Path) -> None:
    with pytest.raises(fusewright.Refused, match="planned for calls under"):
        fusewright.save(planned[1], tmp_path / "new.py")
    assert not list(tmp_path.iterdir())


# ---- autocast of the model's own


class Inner(nn.Module):
    """Turns autocast on for a part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.lin(x)
        return torch.tanh(y.float()) + 1


def test_a_model_with_its_own() -> None:
    """Its casts are part of the graph. Planned inside another, it is a plan for that."""
    original, x = Inner(), sample()
    new = optimised(original, x, verify=True, seeds=1)
    with half():
        original(x)  # casts of weights are kept from now on
        inside = optimised(original, x)
    assert new.report["verified"] is True and new.report["autocast"] is None
    with launches(new) as launched:
        found = new(x)
    assert set(launched) == kernels_of(new)
    torch.testing.assert_close(found, original(x))
    with half(), launches(inside) as launched:
        torch.testing.assert_close(inside(x), original(x))
    assert set(launched) == kernels_of(inside)


class Teacher(nn.Module):
    """Computes a part without gradients, of which PyTorch's exporter knows nothing under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = torch.tanh(self.lin(x))
            with torch.enable_grad():
                again = torch.sin(self.lin(x))
        return torch.tanh(self.lin(x)) * target + again


def test_no_grad_inside_it() -> None:
    torch.manual_seed(7)
    original = Teacher()
    with half():
        new = optimised(original, sample())
    with launches(new) as launched, warned() as said:
        found = step(new, sample(3))
    assert set(launched) == kernels_of(new, gradients=True) and not said
    no_farther(found, step(original, sample(3)), exactly(original, sample(3)))


# ---- torch.compile


def run_twice(model: Callable[[Tensor], Tensor], parameters: list[Tensor]) -> list[Tensor]:
    with half():
        result = model(sample(2))
    return [result.detach(), *torch.autograd.grad(result.float().square().sum(), parameters)]


def test_the_backend_under_it() -> None:
    """AOTAutograd traces the casts, and a graph is guarded by what was on."""
    torch._dynamo.reset()
    fusewright.backend.reset_stats()
    model = Head()
    compiled: Any = torch.compile(model, backend="fusewright", options={"target": "host", "fallback": "eager", "strict": True})
    found = run_twice(compiled, list(model.parameters()))
    graphs = fusewright.backend.stats().graphs
    assert [(graph.kind, graph.by) for graph in graphs] == [("forward", "fusewright"), ("backward", "fusewright")]
    assert all(set(graph.launched) == set(graph.kernels) for graph in graphs)
    no_farther(found, run_twice(model, list(model.parameters())), exactly(model, sample(2)))
    assert found[0].dtype is torch.float32 and (found[0] - model(sample(2))).abs().max() > 1e-4
    torch.testing.assert_close(compiled(sample(2)), model(sample(2)))  # outside: another graph
    assert len(fusewright.backend.stats().graphs) == 3
    torch._dynamo.reset()


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.slow
def test_on_a_gpu() -> None:
    """CUDA's lists are others than the CPU's, on which the model is captured; verification compares with CUDA's own."""
    original = Head().cuda().eval()
    x = sample().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        new = fusewright.optimize(original, x, target="cuda", tune="off", strict=True, cache=False)
        assert new.report["verified"] is True
        with launches(new) as launched, warned() as said:
            found = new(x)
        assert set(launched) == kernels_of(new, "evaluation") and not said
        assert found.dtype is original(x).dtype is torch.float32  # a softmax on CUDA
    with warned() as said:
        assert torch.equal(new(x), original(x))
    assert len(said) == 1 and "it is off" in said[0]
