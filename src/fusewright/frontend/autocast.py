"""torch.autocast around a call: a plan is for one state of it, and is made of a forward that turns it on itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Autocast:
    """It is on for tensors on this kind of device, which then compute in this type where PyTorch's lists say so."""

    device: str
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"torch.autocast({self.device!r}, {self.dtype})"

    def around(self) -> torch.autocast:
        return torch.autocast(self.device, self.dtype)

    def paused(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call gives while it is off: 0.3 us, where a context takes 2."""
        torch.set_autocast_enabled(self.device, False)
        try:
            return call(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(self.device, True)

    def resumed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call gives while it is on, in the middle of a call for which it is paused."""
        torch.set_autocast_enabled(self.device, True)
        try:
            return call(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(self.device, False)


def autocast_on(device: str) -> Autocast | None:
    """What is on for this kind of device, here and now."""
    return Autocast(device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """As if no autocast were around. One that is off would not do: a model's own would keep its casts of weights, those that a tracer saw
    too, until the outermost one ends."""
    on = [kind for kind in KINDS if torch.is_autocast_enabled(kind)]
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    for kind in on:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for kind in on:
            torch.set_autocast_enabled(kind, True)
        for _ in range(depth):
            torch.autocast_increment_nesting()
