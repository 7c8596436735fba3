"""A compiled host library: its launchers, called as `_launch` of an emitted file calls them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..errors import Refused
from .errors import SOURCE_NAME

ORDERS = ("forward", "backward", "warps", "random")  # as enum Order in block.h

_changing = threading.Lock()  # what is counted, and what is loaded later
# A fork waits for whoever holds it: the child has no such thread, and would wait for ever.
os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)


class HostLibrary:
    """Kernels on the CPU. Counts what is launched; a kernel named in `disabled` does nothing, and is not counted.

    What `more` builds is loaded when a kernel is asked for that is not in the first library, and what `saving` builds when one is that
    is to be saving; without it one library does both.
    Several threads may call at once: their launches run one after another.
    """

    def __init__(
        self, path: Path | str, more: Callable[[], Path] | None = None, saving: Callable[[], Path] | None = None
    ) -> None:
        path = Path(path)
        self._more, self._saving = more, saving
        self._rest: HostLibrary | None = None
        self._saved: HostLibrary | None = None
        _check_sanitizer(path)
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Refused(f"The compiled kernels cannot be loaded: {error}.") from error
        self._library.cuda_on_cpu_set.argtypes = [ctypes.c_int, ctypes.c_ulonglong, ctypes.c_int]
        self._library.cuda_on_cpu_set.restype = None
        self._library.cuda_on_cpu_launched.restype = ctypes.c_char_p
        self._library.cuda_on_cpu_kernels.restype = ctypes.c_char_p
        self.path = path
        self.kernels = _lines(self._library.cuda_on_cpu_kernels())  # that its launchers choose from
        self.ran: set[str] = set()  # of these
        self.launched: Counter[str] = Counter()
        self.disabled: set[str] = set()
        self._settings = (ORDERS.index("warps"), 1, 0)

    def set_order(self, order: str = "warps", seed: int = 1, workers: int = 0) -> None:
        """In which order threads run (see block.h), and on how many OS threads (0: one for each core)."""
        self._settings = (ORDERS.index(order), seed, workers)

    def call(self, kernel: str, *args: torch.Tensor | int | None) -> None:
        """Runs one launcher to its end, whether it is to be saving or not. Raises RuntimeError with the message it returns."""
        kernel, _, saving = kernel.partition(" ")
        if kernel in self.disabled:
            return
        with _changing:
            self.launched[kernel] += 1
            if saving and self._saving is not None and self._saved is None:
                self._saved = HostLibrary(self._saving())
        if saving and self._saved is not None:
            self._handed_on(self._saved, kernel, args)
            return
        try:
            launcher = getattr(self._library, kernel)
        except AttributeError:
            self._call_more(kernel, args)
            return
        values = [*(_argument(kernel, arg) for arg in args), ctypes.c_void_p(None)]
        entry = getattr(self._library, f"{kernel}_entry", None)  # what an emitted file calls, with an array
        for function in filter(None, (launcher, entry)):
            function.restype = ctypes.c_char_p
        self._library.cuda_on_cpu_set(*self._settings)  # kept by thread, for all libraries: say it each time
        array = (ctypes.c_longlong * len(values))(*(value.value or 0 for value in values))
        message = launcher(*values) if entry is None else entry(array)
        with _changing:
            self.ran.update(_lines(self._library.cuda_on_cpu_launched()))
        if message is not None:
            raise RuntimeError(_with_line(message.decode(errors="replace"), self.path))

    @property
    def not_run(self) -> list[str]:
        """Kernels of the libraries that were loaded which no launcher has chosen yet: for other sizes, or larger tensors."""
        loaded = [library for library in (self, self._rest, self._saved) if library is not None]
        ran = set().union(*(library.ran for library in loaded))
        return [name for name in dict.fromkeys(name for library in loaded for name in library.kernels) if name not in ran]

    def _call_more(self, kernel: str, args: Sequence[torch.Tensor | int | None]) -> None:
        if self._more is None:
            raise RuntimeError(f"no launcher named {kernel} in the host library")
        with _changing:
            if self._rest is None:
                self._rest = HostLibrary(self._more())
        self._handed_on(self._rest, kernel, args)

    def _handed_on(self, library: HostLibrary, kernel: str, args: Sequence[torch.Tensor | int | None]) -> None:
        library._settings = self._settings
        library.call(kernel, *args)


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines()


def _check_sanitizer(path: Path) -> None:
    """A library built for a sanitizer ends the process that opens it without that sanitizer's runtime."""
    for sanitize, symbol in (("address", "__asan_init"), ("thread", "__tsan_init")):
        if f"-{sanitize}-" in path.name and not hasattr(ctypes.CDLL(None), symbol):
            raise RuntimeError(
                f"{path.name} is built with sanitize={sanitize!r}: open it in a process of run_sanitized"
            )


def _with_line(message: str, library: Path) -> str:
    """A crash is reported as a place in the library; says the line of the CUDA source instead."""
    place = re.search(r" \[(\S+)\+(0x[0-9a-f]+)\]$", message)
    if place is None:
        return message
    text, line = message[: place.start()], None
    if place[1] == library.name and (addr2line := shutil.which("addr2line")):
        command = [addr2line, "-i", "-e", str(library), place[2]]
        frames = subprocess.run(command, capture_output=True, text=True).stdout
        line = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", frames)
    return f"{text} at line {line[1]}" if line else text


def _argument(kernel: str, value: torch.Tensor | int | None) -> ctypes.c_void_p | ctypes.c_longlong:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, int):
        return ctypes.c_longlong(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{kernel}: an argument of type {type(value).__name__}; launchers take tensors and ints")
    if value.device.type != "cpu":
        raise ValueError(f"{kernel}: a tensor on {value.device}; the host target takes tensors on the CPU")
    return ctypes.c_void_p(value.data_ptr())
