"""Whose weights' gradients are computed by kernels of ours: each such kernel of a built file against the library's call, on tensors of its
sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...bench.timing import GAIN, Clock, in_turn
from ...emit.backward import WeightKernel

aten = torch.ops.aten


@dataclass(frozen=True)
class Weighed:
    own: frozenset[str]  # weights whose gradients kernels of ours compute
    rows: tuple[tuple[str, float, float], ...] = ()  # weights, milliseconds of the kernel, of the library

    @property
    def words(self) -> str:
        """Of those that are left to the library."""
        lost = [f"{names} ({ours:.3g} ms, the library {theirs:.3g} ms)" for names, ours, theirs in self.rows if not wins(ours, theirs)]
        return f"gradients by the library: {', '.join(lost)}" if lost else ""


def weighed(
    kernels: Sequence[WeightKernel], space: Mapping[str, Any], device: torch.device, clock: Clock, seconds: float
) -> Weighed:
    """Each kernel that stands in the file, and the library's call for the same convolution, in turn. One for which there is no memory is
    left to the library."""
    own: set[str] = set()
    rows: list[tuple[str, float, float]] = []
    for kernel in kernels:
        try:
            ours, theirs = in_turn(calls(kernel, space["_launch"], device), clock, seconds)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        rows.append((", ".join(sorted(kernel.weights)), ours, theirs))
        own |= kernel.weights if wins(ours, theirs) else set()
    return Weighed(frozenset(own), tuple(rows))


def wins(ours: float, theirs: float) -> bool:
    return ours < GAIN * theirs


def calls(kernel: WeightKernel, launch: Callable[..., Any], device: torch.device) -> list[Callable[[], Any]]:
    """The kernel, and the library: of random numbers, since zeros run faster than what is trained with."""
    still, moved = (torch.randn(shape, device=device) for shape in kernel.operands)
    out = torch.empty(kernel.weight, device=device)
    workspace = [torch.empty(kernel.workspace, device=device)] if kernel.workspace else []
    above, x = (moved, still) if kernel.transposed else (still, moved)

    def ours() -> torch.Tensor:
        launch(kernel.name, still, moved, out, *workspace, *kernel.sizes)
        return out

    def theirs() -> torch.Tensor:
        return aten.convolution_backward(above, x, out, None, *kernel.settings, [False, True, False])[1]

    return [ours, theirs]
