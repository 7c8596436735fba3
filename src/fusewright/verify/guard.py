"""What a candidate must leave alone: functions of PyTorch and Python, its operators, flags, threads."""

from __future__ import annotations

import builtins
import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .reference import rounding_of

COMPUTING = frozenset("CPU CUDA Autograd AutogradCPU AutogradCUDA CompositeExplicitAutograd CompositeImplicitAutograd".split())
MODELS = "_fusewright_model_"  # how the names of modules of model files begin
OWNERS: Mapping[str, Any] = {
    "time": time,
    "builtins": builtins,
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn.Module": torch.nn.Module,
    "torch.autograd": torch.autograd,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.linalg": torch.linalg,
    "torch._C._nn": torch._C._nn,
    "torch.testing": torch.testing,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
    "torch.profiler": torch.profiler,
}


# What else is the same for all that runs in a process: how it is asked, and how it is set. Not `cudnn.benchmark`, which changes no result.
SWITCHES: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default type": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)),
    "gradients recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "threads of PyTorch": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "anomalies looked for": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "denormal numbers flushed": (lambda: float(torch.tensor(1e-40) * 1.5) == 0.0, torch.set_flush_denormal),
    "oneDNN": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "cuDNN": (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    "cuDNN deterministic": (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "memory-efficient attention": (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    "plain attention": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
}


@dataclass(frozen=True)
class Snapshot:
    """Functions and flags as they were before a candidate's code ran."""

    functions: Mapping[tuple[str, str], Any]
    flags: Mapping[str, Any]
    owners: Mapping[str, Any] = field(repr=False)
    operators: frozenset[str] = frozenset()  # for which Python has given kernels

    def patched(self) -> list[str]:
        """Functions that are no longer the ones they were, unless PyTorch itself replaced them."""
        found = []
        for (owner, name), before in self.functions.items():
            now = vars(self.owners[owner]).get(name)
            if now is not before and not _of_torch(now):
                found.append(f"{owner}.{name}")
        return found

    def overridden(self) -> list[str]:
        """PyTorch's own operators that were given other kernels since."""
        return sorted(_operators() - self.operators)

    def changed_flags(self) -> list[str]:
        now = _flags()
        return [f"{name}: {self.flags[name]} → {now[name]}" for name in self.flags if now[name] != self.flags[name]]

    def restore(self) -> None:
        for owner, name in [tuple(path.rsplit(".", 1)) for path in self.patched()]:
            setattr(self.owners[owner], name, self.functions[owner, name])
        others = set(self.overridden())
        for library in [one for one in gc.get_objects() if type(one) is torch.library.Library] if others else []:
            if others & set(library._op_impls):
                library._destroy()
        now = _flags()
        for name, (_, put) in SWITCHES.items():
            if now[name] != self.flags[name]:
                put(self.flags[name])
        if now["matmul"] != self.flags["matmul"]:
            _set_precision(torch.backends.cuda.matmul, torch.backends.cuda.matmul, self.flags["matmul"])
        if now["convolution"] != self.flags["convolution"]:
            conv = getattr(torch.backends.cudnn, "conv", None)
            _set_precision(conv, torch.backends.cudnn, self.flags["convolution"])


def snapshot() -> Snapshot:
    modules = list(sys.modules.items())
    mine = {name: module for name, module in modules if name.split(".")[0] == "fusewright" and module}
    classes = {f"torch.nn.{name}": kind for name, kind in vars(torch.nn).items() if isinstance(kind, type)}
    for name, module in [*mine.items(), *((name, module) for name, module in modules if name.startswith(MODELS))]:
        found = ((word, kind) for word, kind in list(vars(module).items()) if isinstance(kind, type) and kind.__module__ == name)
        classes |= {f"{name}.{word}": kind for word, kind in found}
    owners = {**OWNERS, **mine, **classes}
    functions = {
        (owner, name): value
        for owner, where in owners.items()
        for name, value in list(vars(where).items())
        if callable(value) or isinstance(value, (property, staticmethod, classmethod))
    }
    return Snapshot(functions, _flags(), owners, _operators())


def _of_torch(value: Any) -> bool:
    """PyTorch's own; what a function says of its module anyone can write."""
    home = getattr(value, "__globals__", {}).get("__name__", getattr(value, "__module__", ""))
    return str(home).split(".")[0] == "torch"


def _operators() -> frozenset[str]:
    """PyTorch's operators for which Python gave kernels that compute: PyTorch itself gives others, when parts of it are imported."""
    found = [str(name).split("/") for name in getattr(torch.library, "_impls", ())]
    return frozenset("/".join(name) for name in found if name[0] == "aten" and name[-1] in COMPUTING)


def threads() -> tuple[int, int]:
    """Python's threads and, where the system tells, the process's."""
    tasks = Path("/proc/self/task")
    return threading.active_count(), len(list(tasks.iterdir())) if tasks.is_dir() else 0


def _flags() -> dict[str, Any]:
    rounding = rounding_of(torch.float32)
    return {
        **{name: ask() for name, (ask, _) in SWITCHES.items()},
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
