"""An emitted file follows its model: built with other arguments, changed later, hooked, keeping state, it gives what the original would."""

from __future__ import annotations

import copy
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.driver.pipeline import compile_problem
from fusewright.errors import Unsupported
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import Candidate, load_candidate

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
"""
TAIL = """
def get_inputs():
    return [torch.randn(4, 8, 6, 6)]

def get_init_inputs():
    return {arguments}
"""


class Pair:
    """A model file, and what is written for it, on the host."""

    def __init__(self, folder: Path, source: str, arguments: str = "[]", name: str = "model.py"):
        (folder / name).write_text(HEAD + textwrap.dedent(source) + TAIL.format(arguments=arguments))
        self.problem: Problem = load_problem(folder / name)
        _, _, emitted = compile_problem(self.problem, Options(target="host"))
        self.text = emitted.text
        self.candidate: Candidate = load_candidate(emitted.text, "host")

    def models(self, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        given = arguments or tuple(self.problem.namespace.get_init_inputs())
        torch.manual_seed(3)
        old = self.problem.namespace.Model(*given, **named)
        torch.manual_seed(3)
        return old, self.candidate.module.ModelNew(*given, **named)

    def same(self, old: nn.Module, new: nn.Module, kernels: bool, x: torch.Tensor | None = None) -> None:
        """Both give the same, and kernels ran or did not."""
        x = torch.randn(4, 8, 6, 6) if x is None else x
        torch.manual_seed(5)
        expected = old(x)
        torch.manual_seed(5)
        with warnings.catch_warnings(), self.candidate.launches() as launched:
            warnings.simplefilter("ignore")
            got = new(x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        assert bool(launched) == kernels, f"launched {launched}"


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., Pair]:
    return lambda source, **named: Pair(tmp_path, source, **named)


GROUPS = """
SCALE = 2.0
TABLE = {"shift": 0.5}

def shifted(x):
    return x + TABLE["shift"]

class Model(nn.Module):
    gain = 1.5

    def __init__(self, groups=4, slope=0.1):
        super().__init__()
        self.norm = nn.GroupNorm(groups, 8)
        self.act = nn.LeakyReLU(slope)
        self.slope, self.kinds, self.config = slope, ["tanh"], {"power": 2}
        self.function = torch.sigmoid

    def twice(self, x):
        return x * 2

    def forward(self, x):
        x = self.act(self.norm(x)) * self.slope * SCALE
        x = shifted(x) ** self.config["power"]
        x = torch.tanh(x) if "tanh" in self.kinds else x
        return self.twice(self.function(x)) * self.gain
"""


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("groups"), GROUPS, "[4, 0.1]")


def test_other_constructor_arguments(groups: Pair) -> None:
    groups.same(*groups.models(), kernels=True)
    groups.same(*groups.models(8), kernels=False)
    groups.same(*groups.models(4, 0.3), kernels=False)
    groups.same(*groups.models(4, 0.1), kernels=True)


CHANGES: dict[str, Callable[[Any], None]] = {
    "eps": lambda m: setattr(m.norm, "eps", 1.0),
    "number": lambda m: setattr(m, "slope", 0.7),
    "number of another type": lambda m: setattr(m, "slope", torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.2])),
    "submodule": lambda m: setattr(m, "act", nn.ReLU()),
    "submodule of the same class": lambda m: setattr(m, "act", nn.LeakyReLU(0.3)),
    "attribute of a submodule": lambda m: setattr(m.act, "negative_slope", 0.3),
    "list": lambda m: m.kinds.clear(),
    "dictionary": lambda m: m.config.update(power=3),
    "function": lambda m: setattr(m, "function", torch.relu),
    "another function": lambda m: setattr(m, "function", lambda x: x * 3),
    "class attribute": lambda m: setattr(m, "gain", 2.5),
    "method": lambda m: setattr(m, "twice", lambda x: x * 4),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 4),
    "forward of a submodule": lambda m: setattr(m.act, "forward", lambda x: x * 4),
    "weight by another tensor": lambda m: setattr(m.norm, "weight", None),
    "hook": lambda m: m.act.register_forward_hook(lambda module, args, output: output * 2),
    "pre-hook": lambda m: m.norm.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "hooks in another table": lambda m: replaced_hooks(m.act),
}


def replaced_hooks(module: nn.Module) -> None:
    module._forward_hooks = type(module._forward_hooks)()
    module.register_forward_hook(lambda module, args, output: output * 2)


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("called", [False, True], ids=["at-once", "after-a-call"])
def test_changed_later(change: str, called: bool, groups: Pair) -> None:
    old, new = groups.models()
    if called:
        groups.same(old, new, kernels=True)
    CHANGES[change](old)
    CHANGES[change](new)
    groups.same(old, new, kernels=False)
    groups.same(old, new, kernels=False)


HOOKED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Tanh(), nn.Sigmoid()
        self.first.register_forward_hook(lambda module, args, output: output.relu())

    def forward(self, x):
        return self.second(self.first(x)) * 2
"""


@pytest.mark.parametrize("change", ["pre-hook", "hook", "of another", "gone"])
@pytest.mark.parametrize("called", [False, True], ids=["at-once", "after-a-call"])
def test_hooks_beside_those_it_was_built_with(change: str, called: bool, pair: Callable[..., Pair]) -> None:
    made = pair(HOOKED)
    old, new = made.models()
    if called:
        made.same(old, new, kernels=True)
    for model in (old, new):
        if change == "gone":
            model.first._forward_hooks.clear()
        elif change == "pre-hook":
            model.first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        else:
            (model.second if change == "of another" else model.first).register_forward_hook(lambda module, args, output: output * 2)
    made.same(old, new, kernels=False)


def test_the_same_value_again_is_no_change(groups: Pair) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    new.norm.eps, new.slope, new.act = float("1e-5"), float("0.1"), nn.LeakyReLU(0.1)
    new.something_else = 3
    groups.same(old, new, kernels=True)
    old.slope = new.slope = 0.4
    groups.same(old, new, kernels=False)
    old.slope = new.slope = 0.1
    groups.same(old, new, kernels=True)


@pytest.mark.parametrize("name, value", [("SCALE", 3.0), ("TABLE", {"shift": 0.25})])
def test_globals(name: str, value: Any, groups: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    for space in (groups.problem.namespace, groups.candidate.module):
        monkeypatch.setattr(space, name, value)
    groups.same(old, new, kernels=False)


def test_contents_of_a_global(groups: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    for space in (groups.problem.namespace, groups.candidate.module):
        monkeypatch.setitem(space.TABLE, "shift", 0.75)
    groups.same(old, new, kernels=False)


@pytest.mark.parametrize("name", ["forward", "twice", "gain"])
def test_class_changed(name: str, groups: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    value: Any = 3.5 if name == "gain" else lambda self, x: x * 5
    for space in (groups.problem.namespace, groups.candidate.module):
        monkeypatch.setattr(space.Model, name, value)
    groups.same(old, new, kernels=False)


def test_says_once_what_changed(groups: Pair) -> None:
    _, new = groups.models(8)
    with pytest.warns(UserWarning, match=r"norm\.num_groups is 8, not 4.*run fusewright on the model as it is now"):
        new(torch.randn(4, 8, 6, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new(torch.randn(4, 8, 6, 6))
        _, plain = groups.models()
        plain(torch.randn(4, 8, 6, 6))
        plain.eval()(torch.randn(4, 8, 6, 6))  # another mode is nobody's mistake


def test_copies_look_for_themselves(groups: Pair) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    for copied in (copy.deepcopy(new), copy.copy(new)):
        other = copy.deepcopy(old)
        groups.same(other, copied, kernels=True)
        other.slope = copied.slope = 0.9
        groups.same(other, copied, kernels=False)
        groups.same(old, new, kernels=True)


@pytest.mark.filterwarnings("ignore:ModelNew. self.norm has hooks", "ignore:Full backward hook")
def test_backward_hooks_fire(groups: Pair) -> None:
    seen: dict[str, list[torch.Tensor]] = {"old": [], "new": []}
    for name, model in zip(seen, groups.models(), strict=True):
        model.norm.register_full_backward_hook(lambda module, inner, outer, name=name: seen[name].append(outer[0]))
        torch.manual_seed(1)
        model(torch.randn(4, 8, 6, 6)).sum().backward()
    assert len(seen["old"]) == len(seen["new"]) == 1
    torch.testing.assert_close(*(found[0] for found in seen.values()))


def test_a_hook_that_is_removed(groups: Pair) -> None:
    old, new = groups.models()
    groups.same(old, new, kernels=True)
    handles = [model.act.register_forward_hook(lambda module, args, output: output * 2) for model in (old, new)]
    groups.same(old, new, kernels=False)
    for handle in handles:
        handle.remove()
    groups.same(old, new, kernels=True)


def test_hooks_on_every_module(groups: Pair) -> None:
    old, new = groups.models()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2 if isinstance(module, nn.GroupNorm) else out)
    try:
        groups.same(old, new, kernels=False)
    finally:
        handle.remove()
    groups.same(old, new, kernels=True)


def test_hooks_of_the_model_itself_run_around_the_kernels(groups: Pair) -> None:
    old, new = groups.models()
    for model in (old, new):
        model.register_forward_hook(lambda module, args, output: output * 3)
        model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    groups.same(old, new, kernels=True)


def test_hooks_that_the_constructor_registers(pair: Callable[..., Pair]) -> None:
    source = """
    def doubled(module, args, output):
        return output * 2

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()
            self.act.register_forward_hook(doubled)
            self.register_forward_hook(doubled)

        def forward(self, x):
            return self.act(x) + 1
    """
    made = pair(source)
    old, new = made.models()
    made.same(old, new, kernels=True)
    for model in (old, new):
        model.act.register_forward_hook(lambda module, args, output: output + 1)
    made.same(old, new, kernels=False)


def test_dropout(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self, p=0.5):
            super().__init__()
            self.drop, self.act = nn.Dropout(p), nn.Hardswish()

        def forward(self, x):
            return self.act(self.drop(torch.exp(x * 0.1)))
    """)
    made.same(*made.models(), kernels=True)
    old, new = made.models()
    old.drop.p = new.drop.p = 0.1
    made.same(old, new, kernels=False)


def test_a_bias_where_there_was_none(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6, bias=False)

        def forward(self, x):
            return torch.tanh(self.norm(x))
    """)
    old, new = made.models()
    made.same(old, new, kernels=True)
    old.norm.bias = nn.Parameter(torch.ones(6))
    new.norm.bias = nn.Parameter(torch.ones(6))
    made.same(old, new, kernels=False)


def test_what_is_not_there_is_asked_for_again(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def forward(self, x):
            y = torch.tanh(x) * 2
            return y * self.extra if hasattr(self, "extra") else y
    """)
    old, new = made.models()
    made.same(old, new, kernels=True)
    old.extra = new.extra = 3.0
    made.same(old, new, kernels=False)


def test_a_sequence_grows(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self, depth=2):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Tanh() for _ in range(depth)])
            self.others = nn.ModuleList([nn.Sigmoid()])

        def forward(self, x):
            x = self.layers(x)
            for other in self.others:
                x = other(x)
            return x
    """)
    old, new = made.models()
    made.same(old, new, kernels=True)
    for model in (old, new):
        model.others.append(nn.Tanh())
    made.same(old, new, kernels=False)
    made.same(*made.models(3), kernels=False)
    made.same(*made.models(1), kernels=False)


def test_functions_made_by_the_constructor(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self, power=2.0, smooth=True):
            super().__init__()
            self.function = (lambda x: torch.tanh(x) * power) if smooth else (lambda x: torch.relu(x) * power)

        def forward(self, x):
            return self.function(x) + 1
    """)
    made.same(*made.models(), kernels=True)
    made.same(*made.models(3.0), kernels=False)
    made.same(*made.models(2.0, False), kernels=False)


# ---- tensors that are not registered ----


def test_tensors_of_other_values(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = [torch.randn(6), torch.randn(6)]
            self.plain = torch.randn(6)

        def forward(self, x):
            return torch.tanh(x * self.scales[0] + self.scales[1]) * self.plain
    """)
    old, new = made.models()  # another seed than the one of the plan
    made.same(old, new, kernels=False)
    drawn = made.problem.model()
    new.scales = drawn.scales
    old.scales = drawn.scales
    made.same(old, new, kernels=True)
    new.scales[0].mul_(2)
    made.same(old, new, kernels=False)


def test_tensors_that_are_globals(pair: Callable[..., Pair]) -> None:
    made = pair("""
    NOISE = torch.randn(6)

    class Model(nn.Module):
        def forward(self, x):
            return torch.tanh(x * NOISE)
    """)
    old, new = made.models()
    made.candidate.module.NOISE = made.problem.namespace.NOISE = torch.randn(6)
    made.same(old, new, kernels=True)
    made.problem.namespace.NOISE.mul_(2)
    made.same(old, new, kernels=True)


# ---- state ----


def test_what_forward_assigns(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Inner(nn.Module):
        def forward(self, x):
            self.largest = x.amax((2, 3))
            return torch.tanh(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.weight = Inner(), nn.Parameter(torch.randn(6))

        def forward(self, x):
            y = self.inner(x * self.weight)
            self.aux_loss = y.square().mean()
            self.shape, self.kind, self.both = x.shape, "image", {"y": y, "n": 3}
            return y * 2
    """)
    old, new = made.models()
    for _ in range(2):
        x = torch.randn(4, 8, 6, 6)
        made.same(old, new, kernels=True, x=x)
        torch.testing.assert_close(new.aux_loss, old.aux_loss)
        torch.testing.assert_close(new.inner.largest, old.inner.largest)
        torch.testing.assert_close(new.both["y"], old.both["y"])
        assert (new.shape, new.kind, new.both["n"]) == (old.shape, old.kind, old.both["n"])
        assert type(new.shape) is type(old.shape)
        gradients = [torch.autograd.grad(model.aux_loss, model.weight)[0] for model in (old, new)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("initial", ["None", "torch.zeros(4, 8, 6, 6)"])
def test_hidden_state(initial: str, pair: Callable[..., Pair]) -> None:
    made = pair(f"""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = {initial}

        def forward(self, x):
            if self.memory is None:
                self.memory = torch.zeros_like(x)
            self.memory = torch.tanh(x + 0.5 * self.memory)
            return self.memory * 2
    """)
    old, new = made.models()
    for call in range(4):
        made.same(old, new, kernels=initial != "None" or call > 0)
        torch.testing.assert_close(new.memory, old.memory, rtol=1e-4, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, fresh = made.models()
        fresh(torch.randn(4, 8, 6, 6))


def test_a_counter(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.seen = 0, 0

        def forward(self, x):
            self.calls += 1
            self.seen = self.seen + 2
            return torch.tanh(x) * 2
    """)
    old, new = made.models()
    for call in range(3):
        made.same(old, new, kernels=True)
        assert (new.calls, new.seen) == (old.calls, old.seen) == (call + 1, 2 * (call + 1))
    assert type(new.calls) is int


REFUSED = {
    "a count that is looked at": "self.calls += 1\n        x = x * 2 if self.calls > 3 else x",
    "a count that is multiplied by": "self.calls += 1\n        x = x * self.calls",
    "a count modulo": "self.calls = (self.calls + 1) % 4",
    "a bit of a count": "self.calls += 1\n        x = x * 2 if 1 & self.calls else x",
    "a decay": "self.rate = self.rate * 0.9\n        x = x * self.rate",
    "a list": "self.history.append(x.mean())",
    "a dictionary": "self.table['last'] = x.mean()",
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda name: name.replace(" ", "-"))
def test_state_that_no_graph_carries_is_refused(case: str, pair: Callable[..., Pair]) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.rate, self.history, self.table = 0, 1.0, [], {}

    def forward(self, x):
        STATE
        return torch.tanh(x)
"""
    with pytest.raises(Unsupported, match=r"model\.py:1[12]: .*keeps state in self\.(calls|rate|history|table)"):
        pair(source.replace("STATE", REFUSED[case]))


def test_buffers_that_are_assigned(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(6))

        def forward(self, x):
            self.average = 0.9 * self.average + 0.1 * x.detach().mean((0, 1, 2))
            return torch.tanh(x) * self.average
    """)
    old, new = made.models()
    for _ in range(3):
        made.same(old, new, kernels=True)
        torch.testing.assert_close(new.average, old.average)


@pytest.mark.filterwarnings("ignore:ModelNew. the global operator is")
def test_a_result_of_a_class_of_its_own(pair: Callable[..., Pair]) -> None:
    """Under a name that the file's own part has too, on a model that reads a global of such a name."""
    made = pair("""
    from collections import namedtuple
    import collections
    _Region, operator = namedtuple("_Region", "left right"), 3.0

    class Model(nn.Module):
        def forward(self, x):
            y = torch.tanh(x) * operator
            self.shape = x.shape
            return _Region(y, collections.OrderedDict(sizes=x.shape))
    """)
    old, new = made.models()
    x = torch.randn(4, 8, 6, 6)
    expected, got = old(x), new(x)
    torch.testing.assert_close(got.left, expected.left)
    assert type(got).__name__ == "_Region" and got.right == expected.right and type(got.right) is type(expected.right)
    for space in (made.problem.namespace, vars(made.candidate.module)["_MODEL_GLOBALS"]):
        (space.__setitem__ if isinstance(space, dict) else space.__setattr__)("operator", 5.0)
    torch.testing.assert_close(new(x).left, old(x).left)


# ---- who else calls it ----


def test_jit_trace(groups: Pair) -> None:
    old, new = groups.models()
    x = torch.randn(4, 8, 6, 6)
    traced = torch.jit.trace(new, (x,))
    other = torch.randn(3, 8, 6, 6)
    torch.testing.assert_close(traced(other), old(other), rtol=1e-4, atol=1e-5)


def test_torch_compile_and_export(groups: Pair) -> None:
    old, new = groups.models()
    x = torch.randn(4, 8, 6, 6)
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), old(x), rtol=1e-4, atol=1e-5)
    exported = torch.export.export(new, (x,), strict=False).module()
    torch.testing.assert_close(exported(x), old(x), rtol=1e-4, atol=1e-5)


def test_default_type(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def forward(self, x):
            return torch.tanh(x) * torch.full((6,), 0.5)
    """)
    old, new = made.models()
    made.same(old, new, kernels=True)
    torch.set_default_dtype(torch.float64)
    try:
        made.same(old, new, kernels=False, x=torch.randn(4, 8, 6, 6, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_subclass_that_overrides_a_method(groups: Pair) -> None:
    _, new = groups.models()

    class Louder(groups.candidate.module.ModelNew):  # type: ignore[name-defined, misc]
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return x * 20

    torch.manual_seed(3)
    louder = Louder(4, 0.1)
    x = torch.randn(4, 8, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(louder(x), new(x) * 10, rtol=1e-4, atol=1e-5)


# ---- what a careful reader tried: each was silently wrong ----

FOLLOWED: dict[str, tuple[str, Callable[[Any, Any], None]]] = {
    "a buffer in a dictionary": (
        """
        def __init__(self):
            super().__init__(); self.register_buffer("m", torch.zeros(6)); self.stats = {"m": self.m}
        def forward(self, x): return torch.tanh(x) * (1 + self.stats["m"])
        """,
        lambda m, space: m.m.fill_(3.0),
    ),
    "the order of modules in a list": (
        """
        def __init__(self):
            super().__init__(); self.a, self.b = nn.Tanh(), nn.Softplus(); self.order = [self.a, self.b]
        def forward(self, x):
            for f in self.order: x = f(x) * 2
            return x
        """,
        lambda m, space: m.order.reverse(),
    ),
    "a global behind a property": (
        """
        @property
        def gain(self): return SCALE
        def forward(self, x): return torch.tanh(x) * self.gain
        """,
        lambda m, space: setattr(space, "SCALE", 5.0),
    ),
    "a global of a base class": (
        """
        def forward(self, x): return super().forward(x) * 2
        """,
        lambda m, space: setattr(space, "SCALE", 5.0),
    ),
    "a global behind a decorator": (
        """
        @scaled
        def forward(self, x): return torch.tanh(x)
        """,
        lambda m, space: setattr(space, "SCALE", 5.0),
    ),
    "a global of a function that is an attribute": (
        """
        def __init__(self):
            super().__init__(); self.act = act
        def forward(self, x): return self.act(x)
        """,
        lambda m, space: setattr(space, "SCALE", 5.0),
    ),
    "an attribute of a class that is no module": (
        """
        def forward(self, x): return torch.tanh(x) * Config.SCALE
        """,
        lambda m, space: setattr(space.Config, "SCALE", 5.0),
    ),
    "a property replaced": (
        """
        @property
        def gain(self): return 2.0
        def forward(self, x): return torch.tanh(x) * self.gain
        """,
        lambda m, space: setattr(space.Model, "gain", property(lambda self: 7.0)),
    ),
    "a tensor that became a number": (
        """
        def __init__(self):
            super().__init__(); self.t = torch.tensor(2.0)
        def forward(self, x): return torch.tanh(x) * self.t.item()
        """,
        lambda m, space: m.t.fill_(5.0),
    ),
    "a global tensor that became a number": (
        """
        def forward(self, x): return torch.tanh(x) * RATE.item()
        """,
        lambda m, space: space.RATE.fill_(5.0),
    ),
    "values of a tensor in a list": (
        """
        def __init__(self):
            super().__init__(); self.scales = [torch.ones(6) * 2]
        def forward(self, x): return torch.tanh(x) * self.scales[0]
        """,
        lambda m, space: m.scales[0].data.mul_(2),
    ),
    "a dictionary in a closure": (
        """
        def __init__(self):
            super().__init__(); cfg = {"s": 2.0}; self.cfg = cfg; self.act = lambda x: torch.tanh(x) * cfg["s"]
        def forward(self, x): return self.act(x)
        """,
        lambda m, space: m.cfg.update(s=5.0),
    ),
    "an attribute of a function": (
        """
        def __init__(self):
            super().__init__(); self.act = scaled_by_attribute
        def forward(self, x): return self.act(x)
        """,
        lambda m, space: setattr(space.scaled_by_attribute, "scale", 5.0),
    ),
    "the order of a dictionary of modules": (
        """
        def __init__(self):
            super().__init__(); self.m = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Softplus()})
        def forward(self, x):
            for f in self.m.values(): x = f(x) * 2
            return x
        """,
        lambda m, space: m.m.__setitem__("a", m.m.pop("a")),
    ),
    "a method put in the place of another attribute": (
        """
        def __init__(self):
            super().__init__(); self.spare = 1
        def twice(self, x): return x * 2
        def forward(self, x): return self.twice(torch.tanh(x))
        """,
        lambda m, space: (delattr(m, "spare"), setattr(m, "twice", lambda x: x * 9)),
    ),
    "tied weights": (
        """
        def __init__(self):
            super().__init__(); self.a, self.b = nn.LayerNorm(6), nn.LayerNorm(6); self.b.weight = self.a.weight
        def forward(self, x): return self.b(torch.tanh(self.a(x)))
        """,
        lambda m, space: setattr(m.b, "weight", nn.Parameter(torch.full((6,), 3.0))),
    ),
    "a shared module": (
        """
        def __init__(self):
            super().__init__(); self.a = nn.LeakyReLU(0.1); self.b = self.a
        def forward(self, x): return self.b(torch.tanh(self.a(x)) - 1)
        """,
        lambda m, space: setattr(m, "b", nn.LeakyReLU(0.1)) or setattr(m.b, "negative_slope", 0.7),
    ),
}
SHARED = """
import functools
SCALE, RATE = 2.0, torch.tensor(2.0)

class Config:
    SCALE = 2.0

def act(x):
    return torch.tanh(x) * SCALE

def scaled_by_attribute(x):
    return torch.tanh(x) * scaled_by_attribute.scale

scaled_by_attribute.scale = 2.0

def scaled(function):
    @functools.wraps(function)
    def run(self, x):
        return function(self, x) * SCALE
    return run

class Base(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * SCALE

class Model(Base):
"""


@pytest.mark.parametrize("case", FOLLOWED, ids=lambda name: name.replace(" ", "-"))
def test_read_in_an_unusual_way(case: str, pair: Callable[..., Pair]) -> None:
    body, change = FOLLOWED[case]
    made = pair(SHARED + textwrap.indent(textwrap.dedent(body), "    "))
    old, new = made.models()
    made.same(old, new, kernels=True)
    change(old, made.problem.namespace)
    change(new, made.candidate.module)
    live = case == "a buffer in a dictionary"  # read in each call
    made.same(old, new, kernels=live)


@pytest.mark.parametrize("first, second", [("add", "mul"), ("rows", "columns")])
def test_functions_of_another_code(first: str, second: str, pair: Callable[..., Pair]) -> None:
    made = pair(
        """
        class Model(nn.Module):
            def __init__(self, act):
                super().__init__()
                self.f = {
                    "add": lambda x: torch.tanh(x) + 2, "mul": lambda x: torch.tanh(x) * 2,
                    "rows": lambda x: x.tanh().mean((2, 3)), "columns": lambda x: x.tanh().mean((0, 1)),
                }[act]

            def forward(self, x):
                return self.f(x)
        """,
        arguments=f'["{first}"]',
    )
    made.same(*made.models(), kernels=True)
    made.same(*made.models(second), kernels=False)


def test_one_of_several_functions_in_a_list(pair: Callable[..., Pair]) -> None:
    """Each is said by its own code, however short-lived the words for the one before were."""
    made = pair(
        """
        class Model(nn.Module):
            def __init__(self, act):
                super().__init__()
                self.all = [lambda x: torch.tanh(x), {"twice": lambda x: x * 2, "thrice": lambda x: x * 3}[act]]

            def forward(self, x):
                for f in self.all:
                    x = f(x)
                return x
        """,
        arguments='["twice"]',
    )
    made.same(*made.models(), kernels=True)
    made.same(*made.models("thrice"), kernels=False)


def test_methods_of_classes(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        @classmethod
        def scaled(cls, x):
            return x * 2

        @staticmethod
        def shifted(x):
            return x + 1

        def forward(self, x):
            return self.shifted(self.scaled(torch.tanh(x)))
    """)
    made.same(*made.models(), kernels=True)


def test_an_attribute_that_is_set_to_what_it_was(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.aux, self.n = None, 0

        def forward(self, x):
            self.aux, self.n = None, 0
            self.n += 1
            return torch.tanh(x) * 2
    """)
    old, new = made.models()
    for model in (old, new):
        model.aux, model.n = "something", 7
    made.same(old, new, kernels=True)
    assert (new.aux, new.n) == (old.aux, old.n) == (None, 1)


def test_a_flag_and_a_value_of_the_first_call(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.ready, self.scale = False, 1.0

        def forward(self, x):
            if not self.ready:
                self.scale, self.ready = 2.0, True
            return torch.tanh(x) * self.scale
    """)
    old, new = made.models()
    for call in range(3):
        made.same(old, new, kernels=call > 0)
        assert (new.ready, new.scale) == (old.ready, old.scale)


@pytest.mark.parametrize(
    "line",
    ["Model.calls += 1", "LOG.append(1)", "self.stats.count += 1", "global STEP; STEP += 1", "self.queue.append(1)", "CACHE[6] = x.mean()"],
)
def test_effects_that_no_graph_carries(line: str, pair: Callable[..., Pair]) -> None:
    source = f"""
import collections, types
LOG, STEP, CACHE = [], 0, {{}}
class Model(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.stats, self.queue = types.SimpleNamespace(count=0), collections.deque()

    def forward(self, x):
        {line}
        return torch.tanh(x)
"""
    with pytest.raises(Unsupported, match="keeps state in"):
        pair(source)


# ---- tensors that forward changes ----


def test_an_input_that_is_changed_in_place(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)

        def forward(self, x):
            x.mul_(2)
            return torch.tanh(self.norm(x)).sum(dim=1), x
    """)
    found = []
    for model in made.models():
        leaf = torch.ones(4, 8, 6, 6).cumsum(0).requires_grad_()
        inner = leaf * 1
        result, same = model(inner)
        assert same is inner
        (result.sum() + inner.square().sum()).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
    plain = torch.randn(4, 8, 6, 6)
    with torch.no_grad(), made.candidate.launches() as launched:
        assert made.models()[1](plain)[1] is plain and launched


def test_a_buffer_that_is_bound_anew(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.register_buffer("average", torch.zeros(6))

        def forward(self, x):
            y = torch.tanh(self.norm(x))
            self.average = 0.9 * self.average.detach() + 0.1 * y.mean((0, 1, 2))
            return y.sum(1)
    """)
    found = []
    for model in made.models():
        before = model.average
        model(torch.ones(4, 8, 6, 6).cumsum(-1))
        assert model.average is not before and not before.any() and "average" in model._buffers
        found.append(torch.autograd.grad(model.average.sum(), model.norm.weight)[0])
    torch.testing.assert_close(*found)


def test_a_value_beside_itself_detached(pair: Callable[..., Pair]) -> None:
    made = pair("""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(6))

        def forward(self, x):
            y = torch.tanh(x * self.weight)
            self.last = y.detach()
            return y
    """)
    for model in made.models():
        y = model(torch.randn(4, 8, 6, 6))
        assert y.requires_grad and not model.last.requires_grad


def test_what_is_imported_meanwhile_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a module's own code binds while it is imported are none that forward looks at, and another process may lack them."""
    (tmp_path / "imported_meanwhile.py").write_text("first = 3.0\nsecond = first + 1\n\n\ndef twice(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = Pair(tmp_path, """
    class Model(nn.Module):
        def forward(self, x):
            from imported_meanwhile import twice
            return twice(torch.tanh(x))
    """)
    assert "first" not in repr(getattr(made.candidate.module, "_GLOBALS", ()))
    made.same(*made.models(), kernels=True)


@pytest.mark.parametrize("layer", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers(tmp_path: Path, layer: str) -> None:
    """They hold weak references to their weights: every model has its own, which stand for the same."""
    pair = Pair(tmp_path, f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.recurrent = nn.{layer}(6, 10, batch_first=True)

            def forward(self, x):
                y, _ = self.recurrent(x.mean(3).relu())
                return torch.tanh(y) * 2 + y
    """)  # fmt: skip
    pair.same(*pair.models(), kernels=True)
    assert pair.text == Pair(tmp_path, (tmp_path / "model.py").read_text().removeprefix(HEAD).partition("\ndef get_inputs")[0]).text
    old, new = pair.models()
    for model in (old, new):
        model.recurrent.weight_hh_l0 = nn.Parameter(torch.ones_like(model.recurrent.weight_hh_l0))
    pair.same(old, new, kernels=False)  # the layer's own references are to the weight that was there before
