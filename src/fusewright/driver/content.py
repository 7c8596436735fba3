"""A key for a module, what it is called with and what was asked for: made of content, the same in every process.

In it are the classes of its modules and the sources of those, their attributes, the types and shapes of parameters and buffers (never
their values), the inputs' types and shapes, the options, PyTorch's flags, the GPU, and the versions of both. A value that nothing is
known about has no content: then there is no key, and nothing is kept.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..frontend.autocast import Autocast
from ..frontend.following import _HOOKS, _TABLES, _Words
from ..frontend.reads import is_installed
from ..options import Options

LOOK = "_fusewright_look"  # what an optimised module keeps on itself
OF_OBJECTS = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__")


class Unknown(Exception):
    """A value about which nothing can be said that would hold in another process."""


class Content(_Words):
    """Values as text, as emitted files compare them, or `Unknown`."""

    def told(self, value: Any, kind: type, inside: tuple[int, ...]) -> str:
        found = super().told(value, kind, inside)
        if found == f"{self.name(kind)} at {id(value)}":
            raise Unknown(self.name(kind))
        return str(found)


def key_of(
    module: nn.Module, kind: type[nn.Module], call: Any, values: Sequence[Any], options: Options, autocast: Autocast | None = None
) -> str | None:
    """`kind`: the class that the module had before it was optimised, if it was. `call`: the shape of what it is given."""
    try:
        lines = [*surroundings(options), repr(autocast), repr(call), *map(input_line, values)]
        lines += [*structure(module, kind), *sources(module, kind)]
    except Exception:  # Unknown, or what objects of the user's raise when they are looked at
        return None
    return hashlib.sha256("\0".join(lines).encode("utf-8", "backslashreplace")).hexdigest()


def surroundings(options: Options) -> Iterator[str]:
    yield f"fusewright {__version__} {own_source()}, torch {torch.__version__}, Python {sys.version_info[:2]}"
    record = options.tuning_record
    yield f"{replace(options, tuning_record=None)} {record.read_text() if record is not None and record.exists() else record}"
    on_gpu = torch.cuda.is_available() and options.target != "host"
    yield f"{torch.cuda.get_device_name()} {torch.cuda.get_device_capability()}" if on_gpu else "no GPU"
    yield f"{flags()} {torch.get_default_dtype()}"


def flags() -> tuple[Any, ...]:
    """PyTorch's, by which it chooses how to compute."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # the older functions raise where newer ones were used
    if precision is None:
        return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(), deterministic
    return precision("cuda", "conv"), precision("cuda", "rnn"), precision("cuda", "matmul"), deterministic


def own_source() -> str:
    """Of a clone, which changes without a new version: when one of its files was changed last."""
    if is_installed("fusewright"):
        return ""
    return str(max(path.stat().st_mtime_ns for path in Path(__file__).parents[1].rglob("*.py")))


def input_line(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} {value.device.type} {value.requires_grad}"


def structure(module: nn.Module, kind: type[nn.Module]) -> Iterator[str]:
    """Classes, attributes and hooks of the modules, parameters and buffers by type and shape, and which of them are one."""
    words = Content(module, kind.__module__)
    first: dict[int, str] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        same = first.setdefault(id(part), path)
        yield f"module {path} {words.name(type(part))} {same}"
        if same != path:
            continue
        held = {name: value for name, value in vars(part).items() if name not in (*_TABLES, *_HOOKS, LOOK)}
        yield from (f"{name} = {words.of(value)}" for name, value in sorted(held.items()))
        yield from (words.of(list(vars(part)[name].values())) for name in _HOOKS)
    for named in (module.named_parameters, module.named_buffers):
        for path, tensor in named(remove_duplicate=False):
            facts = type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.device.type
            yield f"{named.__name__} {path} {facts} {first.setdefault(id(tensor), path)}"


def sources(module: nn.Module, kind: type[nn.Module]) -> Iterator[str]:
    """Of every module of Python's that a class of these is in, and of those of the user's that such a module names."""
    classes = dict.fromkeys([*kind.__mro__, *(cls for part in module.modules() if part is not module for cls in type(part).__mro__)])
    waiting = [cls.__module__ for cls in classes]
    for cls in classes:  # one source may make many classes
        if not is_installed(cls.__module__) and cls.__module__.partition(".")[0] != "fusewright":
            yield f"{cls.__qualname__} {compiled(cls.__module__, functions_of(cls))}"
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        space = sys.modules.get(name)
        if name in seen or space is None or name.partition(".")[0] in ("torch", "builtins", "fusewright"):
            continue
        seen.add(name)
        yield f"{name} {source_of(space)}"
        if not is_installed(name):
            held = list(vars(space).values())
            named = [value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in held]
            waiting += [other for other in named if isinstance(other, str) and not is_installed(other)]


def source_of(space: ModuleType) -> str:
    """Its file's text; where there is none, as in a notebook, what its own functions and classes were compiled to."""
    file = getattr(space, "__file__", None)
    if file and Path(file).is_file():
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    own = [value for value in vars(space).values() if getattr(value, "__module__", None) == space.__name__]
    functions = [value for value in own if isinstance(value, FunctionType)]
    functions += [function for cls in own if isinstance(cls, type) for function in functions_of(cls)]
    return compiled(space.__name__, functions)


def functions_of(cls: type) -> list[FunctionType]:
    members = [getattr(value, "__func__", value) for name, value in sorted(vars(cls).items()) if name not in OF_OBJECTS]
    return [value for value in members if isinstance(value, FunctionType)]


def compiled(own: str, functions: Sequence[FunctionType]) -> str:
    """Their code, and the values that they hold: defaults, and what they closed over."""
    words = Content(nn.Module(), own)
    try:
        return " ".join(words.of(function) for function in functions)
    except ValueError:  # a cell that nothing is in yet
        raise Unknown(own) from None
