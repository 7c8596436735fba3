"""Memory without a GPU: the most bytes that a call holds at once, counted by the tensors that exist.

A dispatch mode sees what every operator leaves, and a storage says when it is freed, whoever held it: a local of Python's, autograd, or
a tuple that nobody thought of. On the `meta` device tensors have sizes and no memory, so that a model runs at the sizes of a large GPU.
What an operator takes and gives back within itself (a workspace of cuDNN's) is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Footprint(TorchDispatchMode):
    """Counts the bytes of storages that were made since it began and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        self.meet((arguments, named), counted=False)  # was there before, or is known already
        result = function(*arguments, **(named or {}))
        self.meet(result, counted=True)
        return result

    def meet(self, tree: Any, counted: bool) -> None:
        for tensor in (item for item in pytree.tree_leaves(tree) if isinstance(item, Tensor)):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.known:
                size = storage.nbytes() if counted else 0
                self.bytes += size
                self.known[key] = weakref.ref(storage, lambda _, key=key, size=size: self.freed(key, size))  # type: ignore[misc]
        self.peak = max(self.peak, self.bytes)

    def freed(self, key: int, size: int) -> None:
        self.bytes -= size
        self.known.pop(key, None)


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes that a call holds beyond what was there before it, its result included."""
    with Footprint() as footprint:
        result = call()
    del result
    return footprint.peak


def on_meta(tree: Any) -> Any:
    """The same tensors with no memory."""
    return pytree.tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, tree)


def placeless(space: dict[str, Any]) -> list[str]:
    """Makes an emitted file run on the `meta` device: kernels are not launched, what they would be given is allocated. Returns the list
    to which the names of kernels are added as they would be launched."""
    launched: list[str] = []

    def empty(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

    space.update(
        _launch=lambda kernel, *arguments: launched.append(kernel),
        _on_device=lambda *tensors: all(t.is_meta for t in pytree.tree_leaves(tensors) if isinstance(t, Tensor)),
        _library=lambda source: None,
        _current_device=lambda: -1,  # as such tensors say
        _empty=empty,
    )
    return launched


def bound(eager: int) -> float:
    """What a model may hold at its peak where the original holds so much."""
    return 1.05 * eager + (8 << 20)


@dataclass(frozen=True)
class Peaks:
    """Bytes; a step is None where nothing can be trained."""

    inference: int
    step: int | None  # gradients of results are given, each a tensor of its own
    summed: int | None = None  # the results are summed: their gradient is one number, expanded


def peaks_of(model: nn.Module, inputs: Sequence[Any]) -> Peaks:
    """Of a model on the CPU or without memory, beyond parameters and inputs. A step is a forward and the gradients of all parameters, or of
    inputs where there are none; not the first, in which PyTorch and emitted files decide what the others do."""
    with torch.no_grad():
        inference = max(peak_bytes(lambda: model(*inputs)) for _ in range(2))
    parameters = [p for p in model.parameters() if p.requires_grad]
    given = [x.requires_grad_() if not parameters and isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    targets: list[Tensor] = list(parameters) or [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    results = [t for t in pytree.tree_leaves(model(*given)) if isinstance(t, Tensor) and t.requires_grad]
    if not targets or not results:
        return Peaks(inference, None)
    upstream = [torch.empty_like(t) for t in results]
    del results

    def results_of() -> list[Tensor]:
        return [t for t in pytree.tree_leaves(model(*given)) if isinstance(t, Tensor) and t.requires_grad]

    def step() -> Any:
        return torch.autograd.grad(results_of(), targets, upstream, allow_unused=True)

    def summed() -> Any:
        results = results_of()  # which whoever trains may look at later
        losses = [t.sum(dtype=torch.float32) for t in results]
        return torch.autograd.grad(losses, targets, allow_unused=True)

    step()
    counted = Peaks(inference, peak_bytes(step))
    return counted if any(t.is_complex() for t in upstream) else replace(counted, summed=peak_bytes(summed))


def built(kind: type[nn.Module], arguments: Sequence[Any]) -> nn.Module:
    """A model on the meta device, made there, so that parameters that are shared stay so; or moved, where it computes while it is made."""
    try:
        with torch.device("meta"):
            return kind(*arguments)
    except RuntimeError:
        return kind(*arguments).to("meta")
