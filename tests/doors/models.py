"""Modules that the doors' tests optimise, and how they do so quickly."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

import fusewright

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Result:
    value: Tensor
    rows: int
    rest: Any = None


class Scaled(nn.Module):
    """Reads no mode: one plan is for both."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.width = width
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, shift: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        y = torch.tanh(self.norm(x)) * scale
        return torch.softmax(y if shift is None else y + shift, -1)


class Normed(nn.Module):
    """Reads its mode: two plans."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(x)) + 1


class Structured(nn.Module):
    def forward(self, batch: dict[str, Any], pair: Any) -> Result:
        value = torch.softmax(batch["a"] * 2 + batch["more"][0] * pair.left, -1)
        return Result(value, value.shape[0], Pair([value.sin() + 1], {"n": None}))


class Held(nn.Module):
    """What stands behind a dataclass argument."""

    def forward(self, given: Result) -> Any:
        return Pair(torch.tanh(given.value) * 2, given.rows)


class Reporting(Scaled):
    """Has names of its own where the result has some."""

    def __init__(self) -> None:
        super().__init__()
        self.source = "mine"
        self.explain = nn.Identity()

    def save(self) -> str:
        return "saved"


def local(scale: float = 2.0) -> type[nn.Module]:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) * scale + 1

    return Local


def executed() -> Any:
    space: dict[str, Any] = {"__name__": __name__}
    exec("import torch\n\n\nclass Made(torch.nn.Module):\n    def forward(self, x):\n        return torch.tanh(x) * 2 + 1\n", space)
    return space["Made"]


quickly = functools.partial(fusewright.optimize, target="host", verify=False)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
