"""What a model reads of the classes of its plain objects, a configuration's, is followed as what the objects hold themselves is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from line.test_follows import Pair

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


def test_an_enumeration_is_said_without_what_python_keeps_in_it(tmp_path: Path) -> None:
    """Which other versions of Python keep otherwise: the file would never run its kernels there."""
    assert """"kind": "Kind.SMOOTH 'tanh'\"""" in Pair(tmp_path, SOURCE).text
