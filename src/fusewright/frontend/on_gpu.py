"""Whether forward does something else on a GPU than on the CPU, where it is captured.

It runs twice without computing, on the same tensors of the CPU. The second time the user's own code is told that they are on a GPU, and
what it puts there as well stays on the CPU. `device=x.device` is then the same call; a branch on the device is not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .following import _VALUES
from .reads import of_the_user

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
ANSWERS = {"is_cuda": True, "is_cpu": False, "device": GPU}
NAMED = frozenset({*ANSWERS, "get_device", "is_available"})  # a forward that names none of these asks nothing
plain_autocast = torch.autocast.__init__
Around = contextlib.AbstractContextManager[Any]
Places = list[tuple[str, int]]


def differs_on_gpu(run: Callable[[Around], Any]) -> tuple[str, int] | None:
    """File and line where forward asks last before its calls differ; an empty file where that is not known. `run` enters what it is
    given around forward."""
    places: Places = []
    here = calls_of(run, [])
    with told_of_gpu(places):
        there = calls_of(run, places)
    for position, (call, place) in enumerate(there):
        if position >= len(here) or call != here[position][0]:
            return place
    return there[-1][1] if len(here) > len(there) else None


def calls_of(run: Callable[[Around], Any], places: Places) -> list[tuple[str, tuple[str, int]]]:
    """What is called of PyTorch, and what comes of it all; with each the place that asked last."""
    calls = Calls(places)
    try:
        with mock.patch.object(torch.autocast, "__init__", autocast_on_cpu):
            calls.add("returns", run(calls))
    except Exception as error:
        calls.add(type(error).__name__, None)
    return calls.made


def autocast_on_cpu(self: Any, device_type: str, *rest: Any, **named: Any) -> None:
    """Whichever device it is for: with which casts a model is captured is decided elsewhere (`cuda_casts.py`)."""
    plain_autocast(self, "cpu", *rest, **named)


class Calls(TorchFunctionMode):
    """Notes the calls of PyTorch's functions, and turns devices they are given into the CPU."""

    def __init__(self, places: Places):
        super().__init__()
        self.places, self.made = places, list[tuple[str, tuple[str, int]]]()
        self.numbers, self.alive = dict[int, int](), list[Tensor]()  # an object that is gone could lend its id to another

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map(on_cpu, (args, kwargs or {}))
        owner = getattr(function, "__self__", None)  # of the getter of an attribute
        names = [getattr(owner, "__name__", ""), getattr(function, "__name__", str(function))]
        if NAMED.isdisjoint(names):  # the second time not all of these come here
            self.add(".".join(names), (args, kwargs))
        result = function(*args, **kwargs)
        self.said(result)  # has its number from here on
        return result

    def add(self, name: str, given: Any) -> None:
        self.made.append((f"{name} {self.said(given)}", self.places[-1] if self.places else ("", 0)))

    def said(self, value: Any) -> str:
        leaves, structure = pytree.tree_flatten(value)
        return f"{list(map(self.leaf, leaves))} {structure}"

    def leaf(self, value: Any) -> str:
        if isinstance(value, Tensor):
            self.alive += [] if id(value) in self.numbers else [value]
            return f"tensor {self.numbers.setdefault(id(value), len(self.numbers))}"
        if isinstance(value, slice):
            return f"slice {[self.leaf(part) for part in (value.start, value.stop, value.step)]}"
        return repr(on_cpu(value)) if isinstance(value, _VALUES) else type(value).__name__


def on_cpu(value: Any) -> Any:
    """Where something goes, as a device: what goes to the GPU stays."""
    named = isinstance(value, str) and value in ("cpu", "cuda", "cuda:0")
    return CPU if named or (isinstance(value, torch.device) and value.type == "cuda") else value


@contextlib.contextmanager
def told_of_gpu(places: Places) -> Iterator[None]:
    """The user's own code is told that each tensor is on a GPU; `places` grows by where it asked."""

    def asked() -> bool:
        frame = sys._getframe(2)
        mine = of_the_user(frame.f_code.co_filename)
        if mine:
            places.append((frame.f_code.co_filename, frame.f_lineno))
        return mine

    def attribute(owner: type, name: str) -> property:
        plain: Any = getattr(owner, name)
        return property(lambda self: ANSWERS[name] if asked() else plain.__get__(self))

    def get_device(self: Tensor) -> int:
        return 0 if asked() else plain_get_device(self)

    def is_available() -> bool:
        return asked() or plain_is_available()

    plain_get_device, plain_is_available = torch.Tensor.get_device, torch.cuda.is_available
    with contextlib.ExitStack() as stack:
        for name in ANSWERS:
            stack.enter_context(mock.patch.object(Tensor, name, attribute(Tensor, name)))
        stack.enter_context(mock.patch.object(FakeTensor, "device", attribute(FakeTensor, "device")))
        stack.enter_context(mock.patch.object(Tensor, "get_device", get_device))
        stack.enter_context(mock.patch.object(torch.cuda, "is_available", is_available))
        yield
