"""What a candidate must leave alone: functions of PyTorch and Python, precision flags, threads."""

from __future__ import annotations

import builtins
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .reference import rounding_of

OWNERS: Mapping[str, Any] = {
    "time": time,
    "builtins": builtins,
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn.Module": torch.nn.Module,
    "torch.autograd": torch.autograd,
    "torch.testing": torch.testing,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
    "torch.profiler": torch.profiler,
}


@dataclass(frozen=True)
class Snapshot:
    """Functions and flags as they were before a candidate's code ran."""

    functions: Mapping[tuple[str, str], Any]
    flags: Mapping[str, Any]
    owners: Mapping[str, Any] = field(repr=False)

    def patched(self) -> list[str]:
        """Functions that are no longer the ones they were, unless PyTorch itself replaced them."""
        found = []
        for (owner, name), before in self.functions.items():
            now = vars(self.owners[owner]).get(name)
            by_torch = str(getattr(now, "__module__", "")).split(".")[0] == "torch"
            if now is not before and not by_torch:
                found.append(f"{owner}.{name}")
        return found

    def changed_flags(self) -> list[str]:
        now = _flags()
        return [f"{name}: {self.flags[name]} → {now[name]}" for name in self.flags if now[name] != self.flags[name]]

    def restore(self) -> None:
        for owner, name in [tuple(path.rsplit(".", 1)) for path in self.patched()]:
            setattr(self.owners[owner], name, self.functions[owner, name])
        now = _flags()
        if now["default type"] != self.flags["default type"]:
            torch.set_default_dtype(self.flags["default type"])
        if now["gradients recorded"] != self.flags["gradients recorded"]:
            torch.set_grad_enabled(self.flags["gradients recorded"])
        if now["threads of PyTorch"] != self.flags["threads of PyTorch"]:
            torch.set_num_threads(self.flags["threads of PyTorch"])
        if now["matmul"] != self.flags["matmul"]:
            _set_precision(torch.backends.cuda.matmul, torch.backends.cuda.matmul, self.flags["matmul"])
        if now["convolution"] != self.flags["convolution"]:
            conv = getattr(torch.backends.cudnn, "conv", None)
            _set_precision(conv, torch.backends.cudnn, self.flags["convolution"])


def snapshot() -> Snapshot:
    mine = {name: module for name, module in list(sys.modules.items()) if name.split(".")[0] == "fusewright" and module}
    owners = {**OWNERS, **mine}
    functions = {
        (owner, name): value
        for owner, where in owners.items()
        for name, value in list(vars(where).items())
        if callable(value) or isinstance(value, (property, staticmethod, classmethod))
    }
    return Snapshot(functions, _flags(), owners)


def threads() -> tuple[int, int]:
    """Python's threads and, where the system tells, the process's."""
    tasks = Path("/proc/self/task")
    return threading.active_count(), len(list(tasks.iterdir())) if tasks.is_dir() else 0


def _flags() -> dict[str, Any]:
    rounding = rounding_of(torch.float32)
    return {
        "default type": torch.get_default_dtype(),
        "gradients recorded": torch.is_grad_enabled(),
        "threads of PyTorch": torch.get_num_threads(),
        "convolution": rounding.convolution,
        "matmul": rounding.matmul,
    }


def _set_precision(new: Any, old: Any, rounding: float) -> None:
    coarse = rounding > 2.0**-24
    old.allow_tf32 = coarse  # by the older name first: PyTorch does not let it be read after only the newer was set
    try:
        new.fp32_precision = "tf32" if coarse else "ieee"
    except (AttributeError, RuntimeError):
        return
