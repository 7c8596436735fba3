"""How much memory verification takes: at most twice the model's own training peak and a gigabyte, and what to do where that is short."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

SPARE = 10**9  # bytes beside twice the model's own peak


class Meter(Protocol):
    """Bytes of tensors on one device."""

    def live(self) -> int: ...

    def peak(self) -> int:
        """The most that were live since `reset`."""

    def reset(self) -> None: ...

    def limit(self) -> int:
        """As many as there may be."""


class OnGPU:
    """PyTorch's allocator keeps count itself."""

    def live(self) -> int:
        return torch.cuda.memory_allocated()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated()

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def limit(self) -> int:
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)()
        return int(torch.cuda.mem_get_info()[1] * fraction)


@dataclass(frozen=True)
class Footprint:
    """What the original takes at some sizes, alone: in bytes, its state and inputs with it."""

    training: int  # the peak of a training step
    forward: int  # the peak of a forward without gradients
    outputs: int  # elements of what it returns
    state: int = 0  # of these, what parameters and buffers take, whatever the batch
    largest: int = 0  # of those, the largest

    def of_batch(self, gradients: bool) -> int:
        """What grows with the batch."""
        return max(0, self.training - 2 * self.state if gradients else self.forward - self.state)


@dataclass
class Memory:
    """What was measured, and the bound that follows from it."""

    meter: Meter
    own: Footprint | None = None  # at the sizes of the comparisons that the file's own sizes are for
    spare: int = SPARE
    highest: int = 0  # the peak of the checks so far

    @property
    def bound(self) -> int:
        return min(2 * self.own.training + self.spare, int(0.9 * self.meter.limit())) if self.own else 0

    def note(self) -> None:
        """After each check: others may reset the meter between two of them."""
        self.highest = max(self.highest, self.meter.peak())


def measured(meter: Meter, model: nn.Module, inputs: list[Any], gradients: bool) -> Footprint:
    """One forward and one training step of the original; OutOfMemoryError where one does not fit."""
    sizes = [nbytes([t]) for t in (*model.parameters(), *model.buffers())]
    held = sum(sizes) + nbytes(pytree.tree_leaves(inputs))
    before = meter.live()
    meter.reset()
    with torch.no_grad():
        leaves = [t for t in pytree.tree_leaves(model(*inputs)) if isinstance(t, Tensor)]
    outputs = sum(t.numel() for t in leaves)
    forward = meter.peak() - before + held
    del leaves
    if gradients:
        _step(model, inputs)
    return Footprint(meter.peak() - before + held, forward, outputs, sum(sizes), max(sizes, default=0))


def _step(model: nn.Module, inputs: list[Any]) -> None:
    """Forward and backward of the sum of all that is returned; gradients of parameters, or of inputs where there are none."""
    trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        inputs = [x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    targets = trained or [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    with torch.enable_grad():
        leaves = [t for t in pytree.tree_leaves(model(*inputs)) if isinstance(t, Tensor) and t.requires_grad]
        if leaves and targets:
            torch.autograd.grad([t.sum() for t in leaves], targets, allow_unused=True)


def nbytes(values: Iterable[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in values if isinstance(t, Tensor))


def is_short(error: BaseException) -> bool:
    """Memory ran out, whoever says so: PyTorch's allocator, CUDA itself, or a library that wanted a workspace."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and any(w in words for w in ("CUDA out of memory", "error: out of memory", "ALLOC_FAILED"))


def release() -> None:
    """What a frame of an error still held, and what PyTorch's allocator keeps in blocks of other sizes."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
