"""A compiled host library: its launchers, called as `_launch` of an emitted file calls them."""

from __future__ import annotations

import ctypes
from collections import Counter
from pathlib import Path

import torch

from fusewright.errors import Refused

ORDERS = ("forward", "backward", "warps", "random")  # as enum Order in block.h


class HostLibrary:
    """Kernels on the CPU. Counts what is launched; a kernel named in `disabled` does nothing."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise Refused(f"The compiled kernels cannot be loaded: {error}.") from error
        self._library.cuda_on_cpu_set.argtypes = [ctypes.c_int, ctypes.c_ulonglong, ctypes.c_int]
        self._library.cuda_on_cpu_set.restype = None
        self.path = path
        self.launched: Counter[str] = Counter()
        self.disabled: set[str] = set()
        self._settings = (ORDERS.index("warps"), 1, 0)

    def set_order(self, order: str = "warps", seed: int = 1, workers: int = 0) -> None:
        """In which order threads run (see block.h), and on how many OS threads (0: one for each core)."""
        self._settings = (ORDERS.index(order), seed, workers)

    def call(self, kernel: str, *args: torch.Tensor | int | None) -> None:
        """Runs one launcher to its end. Raises RuntimeError with the message it returns."""
        self.launched[kernel] += 1
        if kernel in self.disabled:
            return
        try:
            launcher = getattr(self._library, kernel)
        except AttributeError:
            raise RuntimeError(f"no launcher named {kernel} in the host library") from None
        launcher.restype = ctypes.c_char_p
        self._library.cuda_on_cpu_set(*self._settings)  # a library opened twice is one library: say it each time
        message = launcher(*(_argument(kernel, arg) for arg in args), ctypes.c_void_p(None))
        if message is not None:
            raise RuntimeError(message.decode(errors="replace"))


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
