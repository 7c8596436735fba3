"""`mode="reduce-overhead"`: a call that asks for no gradients is recorded as a CUDA graph, and calls like it replay that.

A graph reads and writes memory of its own: inputs are copied in, results are cloned. A call is like another where all is the same that
kernels are chosen by or given: shapes, types and strides of inputs, plain values, addresses of the model's tensors, mode, flags, stream.
Guards of the plan are asked in each call. What cannot be recorded runs plainly.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Refused
from ..frontend.trees import Tree, flatten, unflatten
from .content import flags

MOST = 8  # graphs that a module keeps; the one that was not asked for longest goes
DEVICE = "cuda"


@dataclass(frozen=True)
class Recorded:
    """A graph, the memory that its inputs are copied to, and what it returns: tensors in its own memory, and plain values."""

    inputs: Sequence[Tensor]
    replay: Callable[[], None]
    results: Sequence[Any]
    tree: Tree

    def __call__(self, given: Sequence[Tensor]) -> Any:
        for static, tensor in zip(self.inputs, given, strict=True):
            static.copy_(tensor)
        self.replay()
        return unflatten(self.tree, [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self.results])


@dataclass
class Recordings:
    """Of one module: by what a call is like. None: such a call runs plainly."""

    found: OrderedDict[Hashable, Recorded | None] = field(default_factory=OrderedDict)
    alone: threading.RLock = field(default_factory=threading.RLock)  # a graph's memory is used by one call at a time


_recordings: weakref.WeakKeyDictionary[nn.Module, Recordings] = weakref.WeakKeyDictionary()  # no part of the module: not copied, not saved


def replayed(
    planned: Callable[..., Any], plan_of: Callable[[nn.Module], ModuleType | None], originals: Callable[[nn.Module], int]
) -> Callable[..., Any]:
    """`planned` with calls replayed. `plan_of` gives the emitted text of the plan that a module is to run, if that can be replayed;
    `originals` counts the calls that ran the original's operators instead."""
    compiling = torch.compiler.is_compiling

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        like = None if compiling() else alike(self, plan_of(self), args, kwargs)
        if like is None:
            return planned(self, *args, **kwargs)
        key, held, leaves, tree = like
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kept = _recordings.setdefault(self, Recordings())
        with kept.alone:
            if key not in kept.found:
                run, ran = functools.partial(call, planned, self, tree), functools.partial(originals, self)
                kept.found[key] = record(run, leaves, held, ran)
                if len(kept.found) > MOST:
                    finish_work()  # a graph that goes may still be running
                    kept.found.popitem(last=False)
            kept.found.move_to_end(key)
            recorded = kept.found[key]
            if recorded is not None:
                return recorded(given)
        return planned(self, *args, **kwargs)

    return forward


def call(planned: Callable[..., Any], module: nn.Module, tree: Tree, leaves: Sequence[Any]) -> Any:
    args, kwargs = unflatten(tree, leaves)
    return planned(module, *args, **kwargs)


# ---- what makes two calls alike


def alike(
    module: nn.Module, plan: ModuleType | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Hashable, list[Tensor], list[Any], Tree] | None:
    """The key of a call, the tensors that it reads of the model, its leaves and their tree; None where it is to run plainly."""
    if plan is None or watched():
        return None
    held = plan._follow(module)  # its guards
    if held is None:
        return None
    try:
        leaves, tree = flatten((tuple(args), kwargs))
    except Refused:
        return None
    tensors = [*held, *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
    if not all(type(tensor) in plan._TENSOR_TYPES and tensor.device.type == DEVICE for tensor in tensors):
        return None
    if is_recording() or {tensor.device for tensor in tensors} != {here()}:
        return None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return None
    values = [(leaf.dtype, leaf.shape, leaf.stride()) if isinstance(leaf, Tensor) else (type(leaf), leaf) for leaf in leaves]
    memory = [(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) for tensor in held]
    return (module.training, tree, tuple(values), tuple(memory), flags(), stream()), [*held], leaves, tree


def watched() -> bool:
    """Somebody is to see or change the operators of this call."""
    return (
        torch.is_autocast_enabled(DEVICE)  # that which a plan is for is off here
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
    )


# ---- graphs


def record(
    run: Callable[[Sequence[Any]], Any], leaves: Sequence[Any], held: Sequence[Tensor], originals: Callable[[], int]
) -> Recorded | None:
    """The call as a graph; None where it runs the original's operators, or returns memory that is not its own."""
    with torch.inference_mode(False), torch.no_grad():
        statics = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        before = originals()
        first, _ = flatten(warmed_up(lambda: run(statics)))
        inputs, given, results = ([leaf for leaf in some if isinstance(leaf, Tensor)] for some in (statics, leaves, first))
        laid_out_alike = all(static.stride() == tensor.stride() for static, tensor in zip(inputs, given, strict=True))
        places, others = ({tensor.untyped_storage().data_ptr() for tensor in some} for some in (results, [*inputs, *held]))
        own = all(map(is_whole, results)) and len(places) == len(results) and not places & others
        if originals() != before or not laid_out_alike or not own:
            return None
        replay, result = captured(lambda: run(statics))
        found, tree = flatten(result)
    return Recorded(inputs, replay, found, tree)


def is_whole(tensor: Tensor) -> bool:
    """It is all of its memory: no view of something larger, and a clone is laid out as it is."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def here() -> torch.device:
    return torch.device(DEVICE, torch.cuda.current_device())


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def is_recording() -> bool:
    """By somebody else: a plain call is part of that graph."""
    return torch.cuda.is_current_stream_capturing()


def finish_work() -> None:
    torch.cuda.synchronize()


def warmed_up(run: Callable[[], Any]) -> Any:
    """What it gives, in a stream of its own: libraries choose and allocate in their first calls, which no graph can record."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(3):
            result = run()
    current.wait_stream(side)
    return result


def captured(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """What replays it, and the results that each replay writes anew."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = run()
    return graph.replay, result
