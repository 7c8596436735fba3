"""Which kernels an optimised module launches, and what it says meanwhile."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch import nn

import fusewright


@contextlib.contextmanager
def launches(*modules: nn.Module) -> Iterator[list[str]]:
    """The kernels that these launch in here, by name."""
    found: list[str] = []

    def watched(launch: Any) -> Any:
        def noted(kernel: str, *arguments: Any) -> None:
            launch(kernel, *arguments)
            found.append(kernel.partition(" ")[0])

        return noted

    with contextlib.ExitStack() as stack:
        spaces = {id(space): space for module in modules for space in fusewright.about(module).spaces.values()}
        for space in spaces.values():
            if space._KERNELS:
                stack.enter_context(mock.patch.object(space, "_launch", watched(space._launch)))
        yield found


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """What is said of kernels that are not in use."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(one.message) for one in caught if issubclass(one.category, fusewright.NotInUse)]


def kernels_of(module: nn.Module, mode: str = "training", gradients: bool = False) -> set[str]:
    """Those that its plan declares."""
    space = fusewright.about(module).spaces[mode]
    return {*space._KERNELS, *(getattr(space, "_GRADIENT_KERNELS", ()) if gradients else ())}
