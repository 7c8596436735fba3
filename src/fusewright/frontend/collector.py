"""Python's garbage collector, kept from looking where there is nothing to find."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Tracing makes many objects and few that only a collector finds: looking for them takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """What is made here stays until the process ends, as PyTorch's modules do: no collection goes through it, now or later."""
    with uncollected():
        yield
        gc.freeze()
