"""What a law shows itself on: small models, and whether it must apply to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """A small model on which a law must apply, or (`applies` False) must decline."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    applies: bool = True


class Chain(nn.Module):
    """A function of a module's output, and one before it: enough for most examples."""

    def __init__(self, module: nn.Module, after: Callable[[Any], Any], before: Callable[[Any], Any] | None = None):
        super().__init__()
        self.module, self.after, self.before = module, after, before

    def forward(self, x: Tensor) -> Any:
        return self.after(self.module(self.before(x) if self.before else x))


class OfOne(nn.Module):
    """A function of one tensor and, where `parameter` gives its shape, of one parameter."""

    def __init__(self, function: Callable[..., Any], parameter: tuple[int, ...] | None = None):
        super().__init__()
        self.function = function
        self.parameter = None if parameter is None else nn.Parameter(torch.randn(parameter))

    def forward(self, x: Tensor) -> Any:
        return self.function(x) if self.parameter is None else self.function(x, self.parameter)


class OfTwo(nn.Module):
    """A function of two tensors."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def of(
    function: Callable[..., Any], *shape: int, parameter: tuple[int, ...] | None = None, applies: bool = True
) -> Example:
    """An example on one tensor."""
    return Example(lambda: OfOne(function, parameter), (shape,), applies)


def of_two(function: Callable[[Tensor, Tensor], Any], *shapes: tuple[int, ...], applies: bool = True) -> Example:
    return Example(lambda: OfTwo(function), shapes, applies)


def after(
    module: Callable[[], nn.Module],
    function: Callable[[Any], Any],
    *shape: int,
    before: Callable[[Any], Any] | None = None,
    applies: bool = True,
) -> Example:
    """An example on a module and what follows it."""
    return Example(lambda: Chain(module(), function, before), (shape,), applies)
