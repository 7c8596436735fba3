"""What a model reads of the classes of its plain objects, a configuration's, is followed as what the objects hold themselves is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from line.test_follows import Pair

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.capture import capture
from fusewright.frontend.following import _Words
from fusewright.frontend.problem import in_terms_of, load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

SOURCE = """
import abc
import enum
from types import SimpleNamespace


class Kind(enum.Enum):
    SMOOTH = "tanh"
    SHARP = "relu"


class Base(abc.ABC):
    sizes = [1.0, 2.0]
    table = {"shift": 0.5}

    @property
    def twice(self):
        return 2 * self.sizes[1]


class Config(Base):
    pair = (0.5, 1.5)
    nested = SimpleNamespace(eps=0.25)
    _cache = object()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config, self.kind = Config(), Kind.SMOOTH

    def forward(self, x):
        x = getattr(torch, self.kind.value)(x * self.config.pair[1] + self.config.table["shift"])
        return x * self.config.twice + self.config.nested.eps
"""
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "a tuple": lambda space, model: setattr(space.Config, "pair", (1.0, 3.0)),
    "a list": lambda space, model: space.Base.sizes.append(1.0) or space.Base.sizes.reverse(),
    "a dictionary": lambda space, model: space.Base.table.update(shift=2.0),
    "an object": lambda space, model: setattr(space.Config.nested, "eps", 1.0),
    "another object": lambda space, model: setattr(space.Config, "nested", type(space.Config.nested)(eps=3.0)),
    "one of an enumeration": lambda space, model: setattr(model, "kind", space.Kind.SHARP),
}


@pytest.mark.parametrize("change", CHANGES)
def test_data_of_classes(change: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, SOURCE)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    CHANGES[change](pair.problem.namespace, old)
    CHANGES[change](pair.candidate.module, new)
    pair.same(old, new, kernels=False)


INHERITING = """
class Root(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * self.gain()

    def gain(self):
        return 2.0


class Part(Root):
    def gain(self):
        return super().gain() + 1.0

    def forward(self, x):
        return super().forward(x).sigmoid()


class Model(Root):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return super().forward(x) + self.part(x)
"""


@pytest.mark.parametrize("name", ["forward", "gain"])
def test_methods_that_super_leads_to(name: str, tmp_path: Path) -> None:
    """Replaced on the class that has them: no attribute of a module says so."""
    pair = Pair(tmp_path, INHERITING)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    pair.same(*(again.__class__() for again in (old, new)), kernels=True)
    for space in (pair.problem.namespace, pair.candidate.module):
        setattr(space.Root, name, (lambda self, x: x * 3) if name == "forward" else (lambda self: 0.5))
    pair.same(old, new, kernels=False)


def test_objects_that_hold_nothing(tmp_path: Path) -> None:
    """Another one of the same class is the same; one of another class is not. What hides what it holds is itself alone."""
    pair = Pair(
        tmp_path,
        """
        class Square:
            def __call__(self, x): return x * x

        class Cube(Square):
            def __call__(self, x): return x * x * x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.acts = [Square(), Cube()]

            def forward(self, x):
                for act in self.acts:
                    x = act(torch.tanh(x))
                return x
        """,
    )
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    for model, space in ((old, pair.problem.namespace), (new, pair.candidate.module)):
        model.acts[1] = space.Square()
    pair.same(old, new, kernels=False)
    words, lock = _Words(old, ""), threading.Lock()
    assert words.of(lock) == f"_thread.lock at {id(lock)}"


def test_an_ellipsis_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Most functions that take the last elements have one: by its address, no other process ran their kernels."""
    pair = Pair(
        tmp_path,
        """
        def halves(x):
            return x[..., 1:], x[..., :-1]

        halves = halves  # by more than its def: such a one is told by its bytecode

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = (..., -1)

            def forward(self, x):
                a, b = halves(torch.tanh(x))
                return (a * b)[self.last]
        """,
    )
    pair.same(*pair.models(), kernels=True)
    assert str(id(...)) not in pair.text and "(Ellipsis, -1)" in pair.text
    (said,) = {line for line in pair.text.splitlines() if "_GLOBALS =" in line}
    source = (
        "import sys; from torch import nn; from fusewright.frontend.following import _Words; "
        "from fusewright.frontend.problem import load_problem; space = load_problem(sys.argv[1]).namespace; "
        "print(_Words(nn.Module(), space.halves.__module__).of(space.halves))"
    )
    command, here = [sys.executable, "-c", source, str(tmp_path / "model.py")], os.pathsep.join(sys.path)
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": here})
    assert f'"{run.stdout.strip()}"' in said


def test_an_enumeration_is_said_without_what_python_keeps_in_it(tmp_path: Path) -> None:
    """Which other versions of Python keep otherwise: the file would never run its kernels there."""
    assert """"kind": "Kind.SMOOTH 'tanh'\"""" in Pair(tmp_path, SOURCE).text


OTHERS = """
LAYER = nn.Linear(6, 6)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = {what}

    def forward(self, x):
        return torch.relu({how})
"""


@pytest.mark.parametrize(
    ("name", "what", "how"),
    [
        ("layers", "[nn.Linear(6, 6)]", "self.layers[0](x)"),
        ("weights", "[torch.ones(6, requires_grad=True)]", "x * self.weights[0]"),
        ("weight", "None", "LAYER(x)"),
    ],
)
def test_gradients_of_what_is_no_parameter_are_the_originals(name: str, what: str, how: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, OTHERS.format(name=name, what=what, how=how))
    old = pair.problem.namespace.Model()
    new = pair.candidate.module.ModelNew()
    x = torch.randn(4, 8, 6, 6)
    assert old(x).requires_grad
    assert new(x).requires_grad
    graph = capture(old, [x])
    assert graph.trains_others
    assert not any(parameter.requires_grad is False for parameter in old.parameters())


def test_a_constant_without_a_gradient_leaves_training_its_kernels(tmp_path: Path) -> None:
    pair = Pair(tmp_path, OTHERS.format(name="weights", what="[torch.ones(6)]", how="x * self.weights[0]"))
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    assert not capture(old, [torch.randn(4, 8, 6, 6)]).trains_others


COMPUTED = """
class Core(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(6), 2.0

    def forward(self, x):
        return self.norm(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = Core()

    def __getattr__(self, name):
        if name == "made_up":
            return 3.0
        modules = vars(self)["_modules"]
        return modules[name] if name in modules else getattr(modules["core"], name)

    def forward(self, x):
        x = torch.relu(self.core(x)) * self.scale + self.made_up
        return x * 2 if hasattr(self, "doubled") else x
"""


@pytest.mark.parametrize("name", ["scale", "made_up", "doubled"])
def test_an_attribute_in_the_place_of_one_that_is_computed(name: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path, COMPUTED)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    for model in (old, new):
        setattr(model, name, 5.0)
    pair.same(old, new, kernels=False)


OF_A_METHODS_NAME: dict[str, tuple[str, Callable[[Any], None]]] = {
    "an attribute": (
        """
        def __init__(self):
            super().__init__(); self.half, self.type, self.float = 3, "a", 2.0
        def forward(self, x): return (x * self.half + self.float).relu() if self.type == "a" else x * self.float
        """,
        lambda m: setattr(m, "half", 5),
    ),
    "an attribute that forward does not read": (
        """
        def __init__(self):
            super().__init__(); self.type = "a"
        def forward(self, x): return torch.tanh(x) * 2
        """,
        lambda m: setattr(m, "type", lambda kind: m),
    ),
    "an attribute of the class, set on the model": (
        "half = 3\ndef forward(self, x): return torch.tanh(x) * self.half",
        lambda m: setattr(m, "half", 5),
    ),
    "an attribute of the class, set on the class": (
        "half = 3\ndef forward(self, x): return torch.tanh(x) * self.half",
        lambda m: setattr(type(m), "half", 5),
    ),
    "an attribute where PyTorch has a number": (
        """
        def __init__(self):
            super().__init__(); self._version = 3
        def forward(self, x): return torch.tanh(x) * self._version
        """,
        lambda m: setattr(m, "_version", 5),
    ),
    "a method of the model's own": (
        "def half(self, x): return x * 3\ndef forward(self, x): return self.half(torch.tanh(x))",
        lambda m: setattr(type(m), "half", lambda self, x: x * 5),
    ),
    "a property": (
        "@property\ndef half(self): return 3\ndef forward(self, x): return torch.tanh(x) * self.half",
        lambda m: setattr(type(m), "half", property(lambda self: 5)),
    ),
}


@pytest.mark.parametrize("case", OF_A_METHODS_NAME, ids=lambda name: name.replace(" ", "-"))
def test_what_has_the_name_of_a_method_of_every_module(case: str, tmp_path: Path) -> None:
    """`self.half = 3` is the model's own, as is `half` of its class; nn.Module has methods and numbers under such names."""
    body, change = OF_A_METHODS_NAME[case]
    pair = Pair(tmp_path, "\nclass Model(nn.Module):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    change(old)
    change(new)
    pair.same(old, new, kernels=False)


ARGUMENTS = """
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import nn


class Kind(Enum):
    SUM = "sum"
    LARGEST = "largest"


@dataclass(frozen=True)
class Config:
    scale: float
    kinds: tuple


class Sizes(NamedTuple):
    width: int


class Block(nn.Module):
    def forward(self, x):
        return torch.tanh(x) * x


class Model(nn.Module):
    def __init__(self, config, sizes, block):
        super().__init__()
        self.config, self.block, self.wide = config, block(), isinstance(sizes, Sizes)
        self.weight = nn.Parameter(torch.rand(sizes.width))

    def forward(self, x):
        y = self.block(x * self.weight) * self.config.scale
        for kind in self.config.kinds:
            y = y + (y.sum(-1, keepdim=True) if kind is Kind.SUM else y.amax(-1, keepdim=True))
        return y if self.wide else -y


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return [Config(2.0, (Kind.SUM, Kind.LARGEST)), Sizes(6), Block]
"""


def test_arguments_of_the_files_own_classes(tmp_path: Path) -> None:
    """The new file has classes of its own that are called so: whoever builds its model there has objects of these."""
    (tmp_path / "configured.py").write_text(ARGUMENTS)
    problem = load_problem(tmp_path / "configured.py")
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host", name="configured_new.py")
    new, old = candidate.build_model(problem), problem.model()
    (x,) = problem.inputs()
    with candidate.launches() as kernels, torch.no_grad():
        torch.testing.assert_close(new(x), old(x))
    assert kernels and type(new.config) is candidate.module.Config and new.config.kinds[0] is candidate.module.Kind.SUM


def test_arguments_that_cannot_be_copied_stay_themselves(tmp_path: Path) -> None:
    (tmp_path / "configured.py").write_text(ARGUMENTS)
    problem = load_problem(tmp_path / "configured.py")
    plain, bound = [1, "two", torch.ones(3)], [problem.arguments()[0], lambda x: x]
    there = type("Model", (), {"__module__": __name__})
    assert in_terms_of(there, problem.namespace, plain) is plain
    assert in_terms_of(there, problem.namespace, bound) is bound
    assert in_terms_of(problem.namespace.Model, problem.namespace, bound) is bound


HELPERS = """
import math

SHIFT = 0.5

def plain(x, by=2.0):
    return torch.tanh(x * by) + SHIFT

def twice(f):
    return lambda x: f(f(x))

@twice
def decorated(x):
    return x * 0.5

def first(x):
    return x.sigmoid()

def second(x):
    return x.relu()

chosen = first if math.pi > 3 else second
if math.pi > 3:
    def conditional(x):
        return x + 1
else:
    def conditional(x):
        return x - 1


class Model(nn.Module):
    def forward(self, x):
        return conditional(chosen(decorated(plain(x))))
"""


def test_functions_that_one_def_makes_are_what_the_file_says_in_any_python(tmp_path: Path) -> None:
    """Of others, the bytecode of the Python that wrote the file is compared. Either is seen where it is replaced."""
    pair = Pair(tmp_path, HELPERS)
    old, new = pair.models()
    pair.same(old, new, kernels=True)
    asked = [line.strip() for line in pair.text.splitlines() if line.strip().startswith('("", "')]
    assert '("", "plain", _written(_SPACE["plain"])),' in asked and not any("_written" in line for line in asked if "plain" not in line)
    for space in (pair.problem.namespace, pair.candidate.module):
        space.plain.__defaults__ = (3.0,)
    pair.same(old, new, kernels=False)
    for space in (pair.problem.namespace, pair.candidate.module):
        space.plain.__defaults__ = (2.0,)
        space.chosen = space.second
    pair.same(old, new, kernels=False)
