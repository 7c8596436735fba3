"""Calls of one module, and what each gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def inputs(count: int, device: str = "cpu") -> list[Tensor]:
    """Of several sizes, so that no two calls are alike."""
    return [torch.randn(1 + i % 3 + 1, 64, 6 + i % 4, 12, generator=torch.Generator().manual_seed(i)).to(device) for i in range(count)]


def forward(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [model(x)]


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result and every parameter's gradient. `grad` leaves nothing on the parameters, which other threads use too."""
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(model.parameters()))]


def at_once(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives, in threads that start together; raises what any of them raised."""
    found: list[Any] = [None] * len(work)
    raised: list[BaseException] = []
    ready = threading.Barrier(len(work))

    def run(place: int) -> None:
        try:
            ready.wait(60)
            found[place] = work[place]()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if raised:
        raise raised[0]
    return found


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
