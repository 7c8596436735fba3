"""`fusewright.optimize`: a module in, the same module with kernels out. On the host target; every test sees which kernels ran."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from company.work import at_once
from doors.models import Held, Normed, Pair, Reporting, Result, Scaled, Structured, quickly, same
from doors.watch import kernels_of, launches, warned
from torch import Tensor, nn
from torch.nn.utils import prune

import fusewright
from fusewright.driver import module, optimized, planning
from fusewright.driver.plans import EVALUATION, TRAINING
from fusewright.errors import Fault

# ---- what comes back ----


def test_it_is_verified_and_shares_its_parts() -> None:
    original, x = Scaled(), torch.randn(5, 12)
    new = fusewright.optimize(original, x, target="host")
    assert new.report["verified"] is True and new.report["target"] == "host" and new.report["fault"] == ""
    skipped = {check["name"] for check in new.report["verdict"]["checks"] if check["status"] == "skipped"}
    assert "other constructor arguments" in skipped and "kernels matter" not in skipped
    assert isinstance(new, Scaled) and isinstance(new, fusewright.Optimized)
    assert all(a is b for a, b in zip(new.parameters(), original.parameters(), strict=True)) and new.norm is original.norm
    with launches(new) as launched:
        result = new(x)
    assert set(launched) == kernels_of(new) and new.report["plan"] == [TRAINING, EVALUATION]
    same(result, original(x))
    with torch.no_grad():
        original.norm.weight.mul_(3.0)
    same(new(x), original(x))
    assert list(new.state_dict()) == list(original.state_dict())


def test_what_it_says_of_itself() -> None:
    new = quickly(Scaled(), torch.randn(5, 12))
    (kernel,) = kernels_of(new)
    assert repr(new).startswith("Scaled(\n  (norm): LayerNorm")
    assert repr(new).endswith(f")  # fusewright: 1 kernel ({kernel}) in training and evaluation, on the CPU")
    assert kernel in new.source and "class ModelNew(Model)" in new.source
    assert kernel in new.explain() and "planned for" in new.explain()
    assert new.report["verified"] is False and new.report["kernels"][0]["name"] == kernel


def test_gradients_are_the_originals() -> None:
    original, x = Scaled(), torch.randn(5, 12)
    new, twin = quickly(copy.deepcopy(original), x), original
    with launches(new) as launched:
        new(x).square().sum().backward()
    twin(x).square().sum().backward()
    assert set(launched) == kernels_of(new, gradients=True)
    same([p.grad for p in new.parameters()], [p.grad for p in twin.parameters()])


def test_other_sizes_and_none() -> None:
    original, x = Scaled(), torch.randn(5, 12)
    new, fixed = quickly(original, x), quickly(original, x, dynamic=False)
    other = torch.randn(9, 12)
    with launches(new, fixed) as launched, warned() as said:
        same(new(other), original(other))
        assert launched
        launched.clear()
        same(fixed(other), original(other))
        same(fixed(other), original(other))
        assert not launched
        same(fixed(x), original(x))
        assert launched
    assert len(said) == 1 and said[0].startswith("Scaled: ") and said[0].endswith("; the original operators run")


def test_another_batch_where_each_sample_has_its_own_weights() -> None:
    """The number of groups is then the batch: a size, not a number."""

    class Modulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.style = nn.Parameter(torch.randn(6, 4, 3, 3)), nn.Linear(7, 4)

        def forward(self, x: Tensor, style: Tensor) -> Tensor:
            batch, channels, height, width = x.shape
            weight = self.weight * self.style(style).view(batch, 1, channels, 1, 1)
            rows = x.reshape(1, batch * channels, height, width)
            y = nn.functional.conv2d(rows, weight.view(batch * 6, channels, 3, 3), padding=1, groups=batch)
            return torch.tanh(y.view(batch, 6, height, width))

    original = Modulated()
    new = quickly(original, [torch.randn(3, 4, 9, 11), torch.randn(3, 7)])
    other = torch.randn(2, 4, 8, 5), torch.randn(2, 7)
    with launches(new) as launched:
        same(new(*other), original(*other))
    assert set(launched) == kernels_of(new)



# ---- calls ----


@pytest.mark.parametrize(
    ("model", "inputs", "kwargs", "other"),
    [
        (Scaled, lambda: torch.randn(4, 12), None, lambda: ((torch.randn(4, 12),), {})),
        (Scaled, lambda: [torch.randn(4, 12), torch.randn(12)], None, lambda: ((torch.randn(3, 12),), {"shift": torch.randn(12)})),
        (Scaled, lambda: torch.randn(4, 12), {"scale": 2.0}, lambda: ((), {"x": torch.randn(3, 12), "scale": 2.0})),
        (Scaled, list, {"x": torch.ones(4, 12), "shift": torch.ones(12)}, lambda: ((torch.randn(3, 12), torch.randn(12)), {})),
        (
            Structured,
            lambda: ({"a": torch.randn(4, 6), "more": [torch.randn(4, 6)]}, Pair(torch.randn(6), 2)),
            None,
            lambda: (({"a": torch.randn(4, 6), "more": [torch.randn(4, 6)]},), {"pair": Pair(torch.randn(6), 2)}),
        ),
        (Held, lambda: Result(torch.randn(4, 6), 3), None, lambda: ((Result(torch.randn(4, 6), 3),), {})),
    ],
    ids=["tensor", "list", "keyword", "only keywords", "dict, list, named tuple", "dataclass"],
)
def test_calls(model: Callable[[], nn.Module], inputs: Any, kwargs: Any, other: Any) -> None:
    """Named, nested, and written in another way than when it was planned."""
    original = model()
    new = quickly(original, inputs(), kwargs, strict=True)
    args, named = other()
    with launches(new) as launched, warned() as said:
        found = new(*args, **named)
    assert set(launched) == kernels_of(new) and not said
    expected = original(*args, **named)
    assert type(found) is type(expected)
    same(flat(found), flat(expected))


class Called(nn.Module):
    """Its call is more than its forward."""

    def __init__(self, other: Callable[[Tensor], Tensor] = Tensor.clone) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(12), other

    def __call__(self, *args: Any, x: Tensor | None = None) -> Any:
        if x is None:
            return super().__call__(self.other(args[0]) * 2) + 1
        return super().__call__(x=x)["y"] + 1

    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.norm(x))


class Named(Called):
    def forward(self, x: Tensor) -> Any:
        return {"y": super().forward(x)}


@pytest.mark.parametrize(("model", "named"), [(Called, False), (Named, True)])
def test_a_call_of_its_own_stays_around_forward(model: Callable[[], nn.Module], named: bool) -> None:
    original, x = model(), torch.randn(5, 12)
    new = fusewright.optimize(original, [] if named else x, {"x": x} if named else None, target="host", strict=True, seeds=1)
    with launches(new) as launched, warned() as said:
        result = new(x=x) if named else new(x)
    assert set(launched) == kernels_of(new) and not said
    same(result, original(x=x) if named else original(x))


def flat(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def test_a_nested_call_is_verified_too() -> None:
    new = fusewright.optimize(Held(), Result(torch.randn(4, 6), 3), target="host", strict=True)
    assert new.report["verified"] is True and [c["name"] for c in new.report["verdict"]["checks"]].count("kernels matter") == 1


def test_a_call_of_another_shape_is_the_originals() -> None:
    original = Held()
    new = quickly(original, Result(torch.randn(4, 6), 3))
    odd = Result(torch.randn(4, 6), 3, torch.ones(2))
    with launches(new) as launched, warned() as said:
        found = new(odd), new(odd), new(Result(torch.randn(4, 6), 5))
    assert not launched and len(said) == 2
    assert "float32[2] is given where None was planned for" in said[0] and "5 is given where 3 was planned for" in said[1]
    same(found[0].left, original(odd).left)
    assert type(found[2]) is Pair and found[2].right == 5
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"), warned():
        new(nonsense=1)


# ---- modes ----


def test_training_and_evaluation() -> None:
    original, x = Normed(), torch.randn(8, 6)
    new, twin = quickly(original, x), copy.deepcopy(original)
    assert kernels_of(new, TRAINING) and kernels_of(new, EVALUATION) and new.report["plan"] == [TRAINING]
    with launches(new) as launched, warned() as said:
        for mode in (True, False, True, False):
            new.train(mode)
            twin.train(mode)
            launched.clear()
            same(new(x), twin(x))
            assert set(launched) == kernels_of(new, TRAINING if mode else EVALUATION)
            same(dict(new.named_buffers()), dict(twin.named_buffers()))
        new.norm.train()  # a part of it in another mode: planned for by neither
        twin.norm.train()
        launched.clear()
        same(new(x), twin(x))
        assert not launched
        new.training = True  # what it says of itself is in no plan: its parts are in training
        same(new(x), twin(x))
        assert set(launched) == kernels_of(new, TRAINING)
    assert len(said) == 1 and "norm.training is True" in said[0] and new.report["plan"] == [TRAINING]


def test_forward_only_is_for_one_mode() -> None:
    new = quickly(Normed().eval(), torch.randn(8, 6), forward_only=True)
    assert set(fusewright.about(new).spaces) == {EVALUATION}
    with launches(new) as launched, warned() as said:
        new(torch.randn(3, 6))
        assert set(launched) == kernels_of(new, EVALUATION)
        new.train()(torch.randn(3, 6))
    assert len(said) == 1 and "planned for evaluation alone" in said[0] and new.explain() == "nothing was planned for training"


# ---- names ----


def test_the_users_own_names_stay() -> None:
    new = quickly(Reporting(), torch.randn(5, 12))
    assert new.save() == "saved" and new.source == "mine" and isinstance(new.explain, nn.Identity)
    assert new.report["fault"] == "" and "class ModelNew" in fusewright.about(new).source
    new.report = 3
    assert new.report == 3 and fusewright.about(new).report["fault"] == ""
    with launches(new) as launched:
        new(torch.randn(5, 12))
    assert launched
    with pytest.raises(TypeError, match="a Scaled was not made by"):
        fusewright.about(Scaled())


# ---- copies ----


def test_copies_and_pickles() -> None:
    x = Result(torch.randn(4, 6), 3)
    for original, given in ((Normed(), torch.randn(8, 6)), (Held(), x)):
        new = quickly(original, given)
        file = io.BytesIO()
        torch.save(new, file)
        file.seek(0)
        for made in (copy.deepcopy(new), copy.copy(new), torch.load(file, weights_only=False)):
            assert type(made) is type(new)
            with launches(made) as launched:
                found = made.eval()(given)
            assert set(launched) == kernels_of(new, EVALUATION)
            same(found, original.eval()(given))


def test_a_forward_that_its_class_is_given_later(monkeypatch: pytest.MonkeyPatch) -> None:
    original, x = Scaled(), torch.randn(5, 12)
    direct, flat = quickly(original, x), quickly(original, [], {"x": x, "scale": 2.0})
    monkeypatch.setattr(Scaled, "forward", lambda self, x, scale=1.0, shift=None: x * 0 + scale)
    with warned() as said:
        same(direct(x), original(x))
    assert len(said) == 1 and said[0].startswith("Scaled: forward of Scaled was replaced. The original operators run")
    same(flat(x=x, scale=3.0), original(x, 3.0))


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class Inheriting(Root):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_a_forward_that_super_leads_to_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    original, x = Inheriting(), torch.randn(5, 12)
    new = quickly(original, x)
    same(new(x), original(x))
    monkeypatch.setattr(Root, "forward", lambda self, x: x * 0 + 1)
    with warned() as said:
        same(new(x), original(x))
    assert len(said) == 1 and said[0].startswith("Inheriting: forward of Root was replaced. The original operators run")


class Guarded(nn.Module):
    """Has what `copy.deepcopy` does not copy."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lock = nn.LayerNorm(12), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return torch.tanh(self.norm(x))


def test_what_is_not_copied() -> None:
    """A lock, and a weight that pruning computes of others."""
    guarded, pruned, x = Guarded(), nn.Sequential(nn.Linear(12, 12), nn.Tanh()), torch.randn(5, 12)
    prune.l1_unstructured(pruned[0], "weight", 0.5)
    assert not pruned[0].weight.is_leaf
    for original in (guarded, pruned):
        new = fusewright.optimize(original, x, target="host", strict=True, seeds=1)
        assert new.report["verified"]
        with launches(new) as launched:
            same(new(x), original(x))
        assert set(launched) == kernels_of(new)
    with torch.no_grad():
        pruned[0].weight_orig.mul_(3.0)
    same(new(x), pruned(x))


def test_nothing_is_left_when_it_is_collected() -> None:
    before = set(sys.modules)
    new = fusewright.optimize(Held(), Result(torch.randn(4, 6), 3), target="host")
    new(Result(torch.randn(4, 6), 3))
    space = weakref.ref(fusewright.about(new).spaces[TRAINING])
    kind = weakref.ref(type(new))
    assert {name for name in set(sys.modules) - before if "fusewright_" in name} == set()
    del new
    gc.collect()
    assert space() is None and kind() is None


# ---- one another ----


def test_an_optimised_module_again_and_inside_another() -> None:
    x = torch.randn(5, 12)
    block = quickly(Scaled(), x)
    again = quickly(block, x)
    assert type(again).__mro__.count(Scaled) == 1 and fusewright.about(again).source == block.source
    whole = nn.Sequential(block, nn.Tanh())
    with launches(block) as launched:
        expected = whole(x)
    assert set(launched) == kernels_of(block)
    new = quickly(whole, x)
    with launches(new) as launched, launches(block) as inside:
        same(new(x), expected)
    assert set(launched) == kernels_of(new) and not inside and whole[0] is block


def test_threads_get_the_same() -> None:
    x = torch.randn(5, 12)
    first, second = at_once([lambda: quickly(Scaled(), x)] * 2)
    with launches(first, second) as launched:
        at_once([lambda: first(x), lambda: second(x)])
    assert len(launched) == 2 * len(kernels_of(first))


def test_the_callers_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    original = Normed()
    torch.manual_seed(3)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        new = quickly(original, torch.ones(8, 6))
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    assert torch.equal(torch.rand(2), expected) and int(original.norm.num_batches_tracked) == 0 and original.training
    assert torch.equal(original.norm.running_mean, torch.zeros(6))
    with torch.autocast("cpu", dtype=torch.bfloat16), launches(new) as launched:
        new(torch.randn(8, 6)).sum().backward()
    assert set(launched) == kernels_of(new, TRAINING, gradients=True)


# ---- where kernels are not in use ----


def test_what_is_said_and_once() -> None:
    original, x = Scaled(), torch.randn(5, 12)
    new = quickly(original, x)
    calls: dict[str, Callable[[], Any]] = {
        "torch.autocast is on": lambda: autocast(new, x),
        "float64[5, 12] is given where float32[5, 12] was planned for": lambda: new(x.double()) if new.double() is new else None,
        "a transform of torch.func": lambda: torch.func.vmap(new.float())(torch.randn(2, 5, 12)),
        "a tensor is a Odd": lambda: new.float()(x.as_subclass(Odd)),
    }
    for words, call in calls.items():
        with launches(new) as launched, warned() as said:
            call()
            call()
        assert not launched and len(said) == 1 and words in said[0], words
    handle = new.norm.register_forward_hook(lambda *given: None)
    with launches(new) as launched, pytest.warns(UserWarning, match="norm has hooks"):
        new(x)
    handle.remove()
    with launches(new) as launched, warned() as said:
        new(x)
    assert launched and not said


class Odd(Tensor):
    ...


def autocast(new: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return new(x)


def test_a_plan_for_a_gpu_on_the_cpu() -> None:
    new = fusewright.optimize(Scaled(), torch.randn(5, 12), verify=False, cache=False)
    with warned() as said:
        new(torch.randn(5, 12))
        new(torch.randn(7, 12))
    assert said == ['Scaled: tensors are on cpu, kernels on cuda; with target="host" they run on the CPU; the original operators run']


def test_a_plan_without_kernels() -> None:
    new = quickly(nn.Linear(4, 4), torch.randn(2, 4))
    with warned() as said:
        new(torch.randn(2, 4))
    assert len(said) == 1 and "no kernel would gain" in said[0] and "PyTorch's operators in training and evaluation" in repr(new)


def test_compiled_by_others() -> None:
    """PyTorch's compiler sees the original's operators."""
    original, x = Scaled(), torch.randn(5, 12)
    new = quickly(original, x)
    with warned() as said:
        same(torch.compile(new, backend="eager")(x), original(x))
    assert not said
    torch._dynamo.reset()
    for name in [name for name in vars(optimized) if name.startswith("__compiled_fn")]:  # it leaves them where forward was written
        delattr(optimized, name)


# ---- faults and refusals ----


def test_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("in the planner")

    monkeypatch.setattr(planning, "optimize", broken)
    original, x = Scaled(), torch.randn(5, 12)
    with warned() as said:
        new = quickly(original, x, seeds=3)
        same(new(x), original(x))
    why = "a fault in fusewright: ZeroDivisionError: in the planner"
    assert said == [f"Scaled: {why}; the original operators run (with strict=True it is raised)"]
    assert new.report["fault"] == why and why in repr(new) and new.source == "" and why in new.explain()
    assert copy.deepcopy(new).report["fault"] == why
    with pytest.raises(ZeroDivisionError):
        quickly(original, x, strict=True, cache=False)
    with pytest.raises(fusewright.Refused, match="nothing was planned"):
        new.save("nowhere.py")
    monkeypatch.undo()
    assert quickly(original, x, seeds=3).report["fault"] == ""  # it was not kept


def test_a_fault_in_building_what_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no nvcc any more."""
    original, x = Scaled(), torch.randn(5, 12)
    assert quickly(original, x).report["fault"] == "" and quickly(original, x).report["cached"]
    monkeypatch.setattr(module, "_build", lambda new: 1 / 0)
    with warned() as said:
        new = quickly(original, x)
        same(new(x), original(x))
    assert len(said) == 1 and "ZeroDivisionError" in said[0] and new.report["verified"] is False
    with pytest.raises(ZeroDivisionError):
        quickly(original, x, strict=True)


def test_what_does_not_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any) -> Any:
        run = optimize_(*given)
        return dataclasses.replace(run, verdict=dataclasses.replace(run.verdict, passed=False, worst="output 0 is wrong"))

    optimize_ = planning.optimize
    monkeypatch.setattr(planning, "optimize", wrong)
    with pytest.raises(Fault, match=r"did not verify \(output 0 is wrong\)"):
        fusewright.optimize(Held(), Result(torch.randn(4, 6), 4), target="host", strict=True)
    with warned() as said:
        fusewright.optimize(Held(), Result(torch.randn(4, 6), 4), target="host")
    assert len(said) == 1 and "did not verify (output 0 is wrong)" in said[0]


def test_what_raises_when_it_runs_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    new = quickly(Scaled(), torch.randn(5, 12))
    monkeypatch.setattr(fusewright.about(new).spaces[TRAINING], "_launch", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        new(torch.randn(5, 12))


def replaced() -> nn.Module:
    made = Scaled()
    made.forward = lambda x: x  # type: ignore[method-assign, assignment]
    return made


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x


class Uncopied(Scaled):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("mine alone")


class Final(nn.Module):
    def __init_subclass__(cls) -> None:
        raise TypeError("no more of us")

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class Worded(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return object()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quickly(3, torch.ones(2)), "a int was given, not a torch.nn.Module"),
        (lambda: quickly(nn.Module(), torch.ones(2)), "Module: it has no forward()"),
        (lambda: quickly(nn.LazyLinear(2), torch.ones(2, 2)), "LazyLinear: weight is lazy"),
        (lambda: quickly(Scaled().to("meta"), torch.ones(2, 12)), "Scaled: norm.weight is on the meta device"),
        (lambda: quickly(torch.jit.script(nn.ReLU()), torch.ones(2)), "it is a TorchScript module"),
        (lambda: quickly(torch.compile(Scaled()), torch.ones(2, 12)), "OptimizedModule: it was made by torch.compile"),
        (lambda: quickly(replaced(), torch.ones(2, 12)), "Scaled: its forward was replaced on the module itself"),
        (lambda: quickly(Scaled(), []), "Scaled: forward() does not take these inputs: missing a required argument: 'x'"),
        (lambda: quickly(Scaled(), torch.ones(2, 12), {"y": 1}), "these inputs: got an unexpected keyword argument 'y'"),
        (lambda: quickly(Scaled(), torch.ones(2, 5)), "Scaled: forward() raised RuntimeError: Given normalized_shape=[12]"),
        (lambda: quickly(Scaled(), torch.ones(0, 12)), "Scaled: the argument x has size zero"),
        (lambda: quickly(Scaled(), object()), "Scaled: the argument x is a object; only tensors, plain values and containers"),
        (lambda: quickly(Scaled(), 3), "Scaled: there is no tensor among its inputs"),
        (lambda: quickly(Worded(), torch.ones(2)), "Worded: what forward() returns is a object"),
        (lambda: quickly(Branching(), torch.ones(2)), "the control flow here depends on the values of a tensor"),
        (lambda: quickly(Uncopied(), torch.ones(2, 12)), "Uncopied: it cannot be copied, which planning has to: RuntimeError: mine alone"),
        (lambda: quickly(Final(), torch.ones(2)), "Final: no class can be derived from its own, which planning has to: TypeError: no more"),
        (lambda: quickly(Called(lambda x: x[None]), torch.ones(2, 12)), "which calls forward with (float32[1, 2, 12]) where"),
        (lambda: quickly(nn.ReLU(), torch.nested.nested_tensor([torch.ones(2)])), "is not a dense tensor with data (nested, "),
        (lambda: quickly(Scaled(), torch.ones(2, 12), tune="never"), "tune 'never' is not one of"),
        (lambda: quickly(Scaled(), torch.ones(2, 12), mode="max-autotune"), "mode 'max-autotune' is not one of default, reduce-overhead"),
    ],
)
def test_what_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(fusewright.Refused) as refusal:
        call()
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_gradients_of_inputs_that_require_one() -> None:
    """As in the middle of a network: kernels compute them where the example said so."""
    original = Scaled()
    x = torch.randn(5, 12, requires_grad=True)
    data, inner = quickly(original, x.detach()), fusewright.optimize(original, x, target="host", strict=True)
    (expected,) = torch.autograd.grad(original(x).square().sum(), x)
    for new, planned in ((data, False), (inner, True)):
        with launches(new) as launched:
            (found,) = torch.autograd.grad(new(x).square().sum(), x)
        same(found, expected)
        assert (set(launched) == kernels_of(new, gradients=True)) == planned
    assert inner.report["verified"] is True


def test_in_inference_mode() -> None:
    """A caller may be in it: what is planned trains all the same."""
    with torch.inference_mode():
        original, x = Normed(), torch.randn(8, 6)
        new = quickly(original, x, strict=True)
        with launches(new) as launched:
            found = new(x)
        assert set(launched) == kernels_of(new)
        same(found, original(x))
