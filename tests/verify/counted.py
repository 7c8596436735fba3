"""Memory of a host, counted as a GPU's allocator counts its own: what tensors hold at once, the most of it, and a limit."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    """A `memory.Meter`: bytes of the storages that operators returned while it was on. Beyond `most` it runs out."""

    def __init__(self, most: int = 2**62):
        super().__init__()
        self.most, self.bytes, self.highest = most, 0, 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves((result, args)):
            if isinstance(tensor, Tensor) and not tensor.is_meta and not hasattr(tensor, "fake_mode"):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known[key] = size
        self.bytes += size
        weakref.finalize(storage, self._gone, key)
        self.highest = max(self.highest, self.bytes)
        if self.bytes > self.most:
            raise torch.OutOfMemoryError(f"{self.bytes} bytes of {self.most}")

    def _gone(self, key: int) -> None:
        self.bytes -= self.known.pop(key, 0)

    def exempt(self, values: Any) -> None:
        """These are not counted: on a GPU's machine they lie in the host's memory."""
        for tensor in pytree.tree_leaves(values):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    weakref.finalize(storage, self._gone, storage._cdata)
                self.bytes -= self.known.get(storage._cdata, 0)
                self.known[storage._cdata] = 0

    # ---- memory.Meter ----

    def live(self) -> int:
        return self.bytes

    def peak(self) -> int:
        return self.highest

    def reset(self) -> None:
        self.highest = self.bytes

    def limit(self) -> int:
        return self.most
