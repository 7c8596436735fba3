"""Emitted text as a Python module: on the CPU or as it is, under a name that another process gives it too.

Files that Fusewright wrote run with no GPU: their CUDA source is compiled for the host, and `_launch`, `_on_device`, `_current_device`,
`_empty` and `_library`, the only functions that touch the device or its compiler, are replaced.
"""

from __future__ import annotations

import copyreg
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import Refused
from ..frontend.problem import _read, _user_code, shown
from ..options import TARGETS
from ..target.helpers import host_text
from . import HostCompileError, HostLibrary, compile_host

_making = threading.RLock()  # one module is made at a time: two threads that ask for the same one get the same
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def load(path: str | Path, target: str = "host") -> ModuleType:
    """A file that `fusewright optimize` wrote, as a module: `ModelNew`, `get_inputs`, `get_init_inputs`.

    >>> new = fusewright.load("model_new.py")
    >>> model = new.ModelNew(*new.get_init_inputs())
    >>> model(*new.get_inputs()).shape
    torch.Size([3, 5, 37])

    `target`: "host" runs its kernels on the CPU, compiled by g++; it is for trying and testing a file where there is no GPU, not for
    speed. "cuda" loads it as it is, "auto" does so where there is a GPU. What cannot be loaded is refused with a sentence
    (`fusewright.Refused`).

    The same text is the same module, in `sys.modules` under a name made of its hash. Models made from it can be copied, and saved
    whole with `torch.save`: the text is saved with them, so that another process needs fusewright alone to load them.
    """
    if target not in TARGETS:
        raise Refused(f"target {target!r} is not one of {', '.join(TARGETS)}")
    if target == "cuda" and not torch.cuda.is_available():
        raise Refused(f"{shown(Path(path))}: target cuda asked for, but PyTorch finds no CUDA device")
    return from_text(_read(Path(path)), str(Path(path).absolute()), target)


def from_text(text: str, path: str, target: str) -> ModuleType:
    """The module of a file's text; where the file is, or was when its model was saved, tracebacks and `__file__` say."""
    name = f"fusewright_loaded_{_hash(target, text)}"
    with _making:
        if name in sys.modules:
            return sys.modules[name]
        at = shown(Path(path))
        try:
            code = compile(text, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise Refused(f"{at}:{getattr(error, 'lineno', None) or 1}: not Python: {error}") from None
        module = ModuleType(name)
        module.__file__ = path
        sys.modules[name] = module  # pickle and dataclasses look classes up by their module's name
        try:
            with _user_code(Path(path), "importing it", at):
                exec(code, vars(module))
            if not isinstance(getattr(module, "ModelNew", None), type) or not hasattr(module, "_KERNELS"):
                raise Refused(f"{at}: not a file that Fusewright wrote: it defines no ModelNew with _KERNELS")
            _put_on(target, module, at)
        except BaseException:
            del sys.modules[name]
            raise
        _carry(module.ModelNew, from_text, text, path, target)
        return module


def around(text: str, model: type[nn.Module], target: str) -> ModuleType:
    """The module of what was emitted behind no source: `Model` is a class that exists.

    Nothing else knows the module: it lives as long as its classes do, and is not in `sys.modules`.
    """
    module = ModuleType(f"fusewright_module_{_hash(target, text)}")
    vars(module).update(Model=model, _itself=module)
    exec(compile(text, f"<{module.__name__}>", "exec", dont_inherit=True), vars(module))
    _put_on(target, module, f"the module around {model.__name__}")
    return module


def on_host(module: ModuleType, name: str, sanitize: str = "", apart: bool = False) -> HostLibrary:
    """Makes an emitted module run on the CPU, its kernels compiled there. `apart`: kernels that save activations and those that do not
    are built apart, as they are for a GPU."""

    def build(source: str) -> Path:
        try:
            return compile_host(source, sanitize=sanitize, include_text=host_text())
        except HostCompileError as error:
            raise Refused(f"{name}: its CUDA does not compile for the host: {error}") from error

    gradients = getattr(module, "_CUDA_GRADIENTS", None)
    more = (lambda: build(gradients)) if gradients else None
    saving = getattr(module, "_CUDA_SAVING", None)
    if saving and not apart:  # one library does both
        library = HostLibrary(build(saving), more)
    else:  # (files of older versions make the second source where they launch from it)
        library = HostLibrary(build(module._CUDA_SOURCE), more, lambda: build(saving or f"#define SAVING\n{module._CUDA_SOURCE}"))
    vars(module).update(_launch=library.call, _on_device=_on_cpu, _library=_no_library, _empty=_empty, _current_device=_no_device)
    return library


def _put_on(target: str, module: ModuleType, name: str) -> None:
    host = target == "host" or (target == "auto" and not torch.cuda.is_available())
    if host and module._KERNELS:
        on_host(module, name)


def _carry(new: type, build: Callable[..., ModuleType], *given: Any) -> None:
    """Copies and pickles of `new`'s instances are made by `build(*given)`: another process has no module of its name.

    A model that says itself how it is pickled (`__reduce__`) and classes derived from `new` stay as they are.
    """

    def __reduce_ex__(self: Any, protocol: int) -> Any:
        usual = super(new, self).__reduce_ex__(max(2, int(protocol)))  # type: ignore[arg-type]
        by_class = isinstance(usual, tuple) and usual[0] is copyreg.__newobj__ and usual[1][0] is new  # type: ignore[attr-defined]
        return (_instance, (build, given, *usual[1][1:]), *usual[2:]) if by_class else usual

    new.__reduce_ex__ = __reduce_ex__  # type: ignore[assignment]


def _instance(build: Callable[..., ModuleType], given: tuple[Any, ...], *arguments: Any) -> Any:
    """A `ModelNew` with nothing in it yet: unpickling fills it."""
    new = build(*given).ModelNew
    return new.__new__(new, *arguments)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


# ---- what a module on the CPU has in place of what touches a device ----


def _no_library(source: str) -> None:
    """Kernels compiled for the host need no nvcc, though there may be a GPU."""


def _no_device() -> int:
    """As tensors on the CPU number theirs."""
    return -1


# Files run under PyTorch 2.0 too, which has these under other names or not at all.
_transformed: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_by_device = hasattr(torch, "get_autocast_dtype")  # from 2.4 on


def _autocast() -> bool:
    return torch.is_autocast_enabled("cpu") if _by_device else torch.is_autocast_cpu_enabled()


def _on_cpu(*tensors: Any) -> bool:
    on_cpu = all(t.device.type == "cpu" for t in pytree.tree_flatten(tensors)[0] if isinstance(t, Tensor))
    return on_cpu and not _autocast() and not _transformed()


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
