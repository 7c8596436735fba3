"""What a model holds on `self` beside parameters, buffers and submodules: seen before and after a call, and put back."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

OF_PYTORCH = frozenset(vars(nn.Module()))  # `training` and the tables that every module has
Place = tuple[str, str]  # a module's path and the name of an attribute of it


def own(module: nn.Module) -> dict[str, Any]:
    """A module's attributes that its own class or its user set."""
    return {name: value for name, value in vars(module).items() if name not in OF_PYTORCH}


@dataclass(frozen=True)
class _Before:
    value: Any
    copy: Any  # what it held
    version: int  # of a tensor: how often it was written


def _before(value: Any) -> _Before:
    written = value._version if isinstance(value, Tensor) and not value.is_inference() else 0
    return _Before(value, _copy(value), written)


def _copy(value: Any) -> Any:
    """Tensors cloned, containers copied with what they hold; anything else is itself."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple, set, deque):
        return type(value)(value)
    return dict(value) if type(value) is dict else value


def _unchanged(before: _Before, now: Any) -> bool:
    if isinstance(now, Tensor):
        return now is before.value and (now.is_inference() or now._version == before.version)
    if type(now) in (list, tuple, deque):
        same_kind = now is before.value or type(now) is type(before.value)
        return same_kind and len(now) == len(before.copy) and all(map(_is, now, before.copy))
    if type(now) is dict:
        return now is before.value and list(now) == list(before.copy) and all(map(_is, now.values(), before.copy.values()))
    if type(now) is set:
        return now is before.value and now == before.copy
    return _is(now, before.value)


def _is(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b)


def _put_back(module: nn.Module, name: str, before: _Before) -> None:
    """As it was, in the same object where it can be written; assigned as a user would, where someone may be watching."""
    value = before.value
    if isinstance(value, Tensor):
        if not value.is_inference() and value._version != before.version:
            with torch.no_grad():
                value.copy_(before.copy)
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(before.copy)
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(before.copy)
    if vars(module).get(name) is not value:
        setattr(module, name, value)


@contextlib.contextmanager
def put_back(model: nn.Module, carried: set[Place], trusted: bool) -> Iterator[None]:
    """Attributes are afterwards what they were before. Which ones a call changes is noted of a `trusted` model, the original;
    of another only those are put back: what a candidate remembers beside them is for the checks to see."""
    modules = [(path, module) for path, module in model.named_modules() if trusted or any(path == p for p, _ in carried)]
    held = {
        (path, name): _before(value)
        for path, module in modules
        for name, value in own(module).items()
        if trusted or (path, name) in carried
    }
    try:
        yield
    finally:
        for path, module in modules:
            now = own(module)
            changed = {name for name, value in now.items() if (path, name) not in held or not _unchanged(held[path, name], value)}
            changed |= {name for p, name in held if p == path and name not in now}
            if trusted:
                carried.update((path, name) for name in changed)
            for name in changed:
                if (path, name) in held:
                    _put_back(module, name, held[path, name])
                elif trusted or (path, name) in carried:
                    delattr(module, name)
