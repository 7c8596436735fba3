"""A model as registered operators: opcheck, export, compile on top, gradients, and what falls back to the model's own operators."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.driver.operators import Operated, Operator

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean:torch.jit.TracerWarning"),
]


class Block(nn.Module):
    """A convolution, norms and a head; two results, of which one has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(7, 5)
        self.register_buffer("scale", torch.rand(5))

    def forward(self, x: Tensor, power: int = 2) -> dict[str, Tensor]:
        y = self.head(F.silu(self.norm(self.conv(x)))) * self.scale**power
        return {"soft": y.softmax(-1), "best": y > 0.1}


@pytest.fixture(scope="module")
def made() -> tuple[Block, Operated, Tensor]:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(2, 3, 9)
    return model, fusewright.as_operator(model, [x], target="host", strict=True), x


def operators(operated: Operated) -> list[Operator]:
    found = [operated.planned.infer, operated.planned.forward, operated.planned.backward]
    assert all(operator is not None for operator in found)
    return found  # type: ignore[return-value]


def launches(operated: Operated) -> list[int]:
    return [sum(operator.launched.values()) for operator in operators(operated)]


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    torch.testing.assert_close(ours["soft"], theirs["soft"])
    assert torch.equal(ours["best"], theirs["best"])


def test_opcheck_of_every_operator(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    infer, forward, backward = operators(operated)
    tensors = [*model.parameters(), *model.buffers(), x]
    plain = [tensor.detach() for tensor in tensors]
    torch.library.opcheck(infer.overload, (plain,))
    torch.library.opcheck(forward.overload, (tensors,))
    torch.library.opcheck(backward.overload, (backward_arguments(operated, tensors),))


def backward_arguments(operated: Operated, tensors: list[Tensor]) -> list[Tensor]:
    """What autograd gives to backward: seen while it does."""
    seen: list[Tensor] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is operators(operated)[2].overload:
                seen.extend(tensor.detach().clone() for tensor in args[0])
            return func(*args, **(kwargs or {}))

    result = operators(operated)[1].overload(tensors)[0]
    with Watch():
        result.square().sum().backward()
    assert seen
    return seen


def test_inference_and_gradients_are_by_kernels(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    eager, before = copy.deepcopy(model), launches(operated)
    with torch.no_grad():
        same(operated(x), model(x))
    model.zero_grad()
    ours, theirs = operated(x), eager(x)
    same(ours, theirs)
    weight = torch.randn_like(ours["soft"])
    (ours["soft"] * weight).sum().backward()
    (theirs["soft"] * weight).sum().backward()
    for one, two in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)
    after = launches(operated)
    for operator, first, last in zip(operators(operated), before, after, strict=True):
        assert operator.kernels and last - first >= len(operator.kernels)


def test_export_holds_the_operator(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    program = torch.export.export(operated, (x,))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function" and "fusewright" in str(node.target)]
    assert called == [f"fusewright.{operated.planned.infer.name}.default"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    before = launches(operated)[0]
    same(torch.export.load(file).module()(x), model(x))
    assert launches(operated)[0] > before


@pytest.mark.parametrize("backend", ["aot_eager", "fusewright"])
def test_compile_on_top_is_one_graph_with_the_operators_in_it(made: tuple[Block, Operated, Tensor], backend: str) -> None:
    model, operated, x = made
    torch._dynamo.reset()
    options = {"options": {"target": "host", "fallback": "eager", "strict": True}} if backend == "fusewright" else {}
    compiled = torch.compile(operated, backend=backend, fullgraph=True, **options)
    eager, before = copy.deepcopy(model), launches(operated)
    model.zero_grad()
    ours = compiled(x)
    same(ours, eager(x))
    ours["soft"].square().sum().backward()
    eager(x)["soft"].square().sum().backward()
    for one, two in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)
    after = launches(operated)
    assert after[1] > before[1] and after[2] > before[2]
    torch._dynamo.reset()


def other_sizes(operated: Any, x: Tensor) -> Any:
    return operated(torch.cat([x, x]))["soft"]


def another_plain_value(operated: Any, x: Tensor) -> Any:
    return operated(x, 3)["soft"]


def by_vmap(operated: Any, x: Tensor) -> Any:
    return torch.func.vmap(operated)(torch.stack([x, x]))["soft"]


def by_jvp(operated: Any, x: Tensor) -> Any:
    return torch.func.jvp(lambda y: operated(y)["soft"], (x,), (x.cos(),))[1]


def forward_mode(operated: Any, x: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x.cos())
        return torch.autograd.forward_ad.unpack_dual(operated(dual)["soft"]).tangent


def under_autocast(operated: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return operated(x)["soft"]


def by_jit(operated: Any, x: Tensor) -> Any:
    return torch.jit.trace(operated, x, strict=False, check_trace=False)(x)["soft"]


@pytest.mark.parametrize(
    "way", [other_sizes, another_plain_value, by_vmap, by_jvp, forward_mode, under_autocast, by_jit], ids=lambda way: way.__name__
)
def test_others_run_the_model_itself(made: tuple[Block, Operated, Tensor], way: Any) -> None:
    model, operated, x = made
    before = launches(operated)
    torch.testing.assert_close(way(operated, x), way(model, x), rtol=0, atol=0)
    assert launches(operated) == before


def test_one_tensor_is_a_list_of_one() -> None:
    model, x = nn.Softmax(-1), torch.randn(3, 5)
    torch.testing.assert_close(fusewright.as_operator(model, x, target="host", strict=True)(x), model(x))


def test_calls_by_name_run_the_model_itself(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    before = launches(operated)
    name, *_ = inspect.signature(model.forward).parameters
    same(operated(**{name: x}), model(x))
    assert launches(operated) == before


def test_it_says_why_it_is_not_saved_whole(made: tuple[Block, Operated, Tensor]) -> None:
    with pytest.raises(TypeError, match="stay in their process: save the model"):
        pickle.dumps(made[1])


def test_a_model_in_another_mode_runs_itself(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    before = launches(operated)
    model.train()
    same(operated(x), model(x))
    assert launches(operated) == before
    model.eval()


def test_what_is_frozen_and_thawed_has_its_gradients() -> None:
    """The same forward with other gradients is another operator; gradients that were not planned for come from the model itself."""
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh()), torch.randn(3, 6)
    whole = fusewright.as_operator(model, [x], target="host", strict=True)
    model[1].weight.requires_grad_(False)
    frozen = fusewright.as_operator(model, [x], target="host", strict=True)
    assert frozen.planned.forward is not None and whole.planned.forward is not None
    assert frozen.planned.forward.name != whole.planned.forward.name
    for thawed in (False, True):
        model[1].weight.requires_grad_(thawed)
        for one in (frozen, whole):
            expected = torch.autograd.grad(model(x).square().sum(), [p for p in model.parameters() if p.requires_grad])
            found = torch.autograd.grad(one(x).square().sum(), [p for p in model.parameters() if p.requires_grad])
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs)
    assert sum(launches(frozen)[1:]) == len(frozen.planned.forward.kernels) + len(operators(frozen)[2].kernels)  # thawed, not again


def test_a_copy_has_parameters_of_its_own(made: tuple[Block, Operated, Tensor]) -> None:
    _, operated, x = made
    copied, before = copy.deepcopy(operated), launches(operated)[0]
    with torch.no_grad():
        copied.model.head.bias.add_(1)
        same(copied(x), copied.model(x))
        assert not torch.equal(copied(x)["soft"], operated(x)["soft"])
    assert launches(operated)[0] > before


def test_second_derivatives_say_so(made: tuple[Block, Operated, Tensor]) -> None:
    model, operated, x = made
    loss = operated(x)["soft"].square().sum()
    weight = model.head.weight
    (gradient,) = torch.autograd.grad(loss, [weight], create_graph=True)
    with pytest.raises(RuntimeError, match="has no gradient: call the model itself"):
        gradient.sum().backward()


def test_a_fault_of_ours_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planned badly")

    monkeypatch.setattr("fusewright.driver.graphs.emit_graph", broken)
    model, x = nn.Softmax(-1), torch.randn(3, 5)
    with pytest.warns(UserWarning, match="run the infer graph: ZeroDivisionError: planned badly"):
        operated = fusewright.as_operator(model, [x], target="host")
    assert operated.planned.infer.kernels == ()
    torch.testing.assert_close(operated(x), model(x), rtol=0, atol=0)
    torch.library.opcheck(operated.planned.infer.overload, ([x],))
    with pytest.raises(ZeroDivisionError):
        fusewright.as_operator(model, [x], target="host", strict=True)


def changing() -> tuple[nn.Module, list[Any]]:
    return nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), [torch.randn(4, 3)]


def of_lists() -> tuple[nn.Module, list[Any]]:
    return nn.ReLU(), [[torch.randn(3)]]


def no_module() -> tuple[Any, list[Any]]:
    return 3, [torch.randn(3)]


def elsewhere() -> tuple[nn.Module, list[Any]]:
    return nn.ReLU(), [torch.randn(3, device="meta")]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (changing, "^this model is no operator: forward changes a buffer or an input"),
        (of_lists, "^ReLU: input 0 is a list; only tensors and plain values"),
        (no_module, "^a int was given, not a torch.nn.Module"),
        (elsewhere, r"^ReLU: input 0 is not a dense tensor with data \(meta, "),
    ],
)
def test_what_is_no_operator_is_refused(make: Any, word: str) -> None:
    model, inputs = make()
    with pytest.raises(fusewright.Refused, match=word):
        fusewright.as_operator(model, inputs, target="host")


PROGRAM = """
import sys, torch, fusewright
from torch import nn
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.GELU()).eval(), torch.randn(4, 8)
operated = fusewright.as_operator(model, [x], target="host", strict=True)
with torch.no_grad():
    if sys.argv[1] == "package":
        found = torch._inductor.aoti_compile_and_package(torch.export.export(operated, (x,)), package_path=sys.argv[2])
        run = torch._inductor.aoti_load_package(found)
    elif sys.argv[1] == "save":
        torch.export.save(torch.export.export(operated, (x,)), sys.argv[2])
        sys.exit()
    else:
        run = torch.export.load(sys.argv[2]).module()
    before = sum(operated.planned.infer.launched.values())
    torch.testing.assert_close(run(x), model(x))
    assert sum(operated.planned.infer.launched.values()) > before
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [("save", "load"), ("package",)], ids=lambda steps: steps[-1])
def test_a_program_and_a_package_run_in_a_process_that_made_the_operators(steps: tuple[str, ...], tmp_path: Path) -> None:
    for step in steps:
        command = [sys.executable, "-c", PROGRAM, step, str(tmp_path / "program.pt2")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
