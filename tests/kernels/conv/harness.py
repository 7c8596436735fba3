"""Builds generated convolution kernels for the host target and calls them with tensors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from fusewright.codegen.mma.conv import KernelText
from fusewright.host import HostLibrary, compile_host
from fusewright.target.helpers import closure, device_texts, host_text, named

ON_DEVICE = os.environ.get("FUSEWRIGHT_CONV_TARGET") == "cuda"


def source_of(*texts: KernelText) -> str:
    """The translation unit of these kernels: what they use of the prelude, what they share, and themselves."""
    kernels = "".join(text.source for text in texts)
    saving = "#define SAVING\n" if "#ifdef SAVING" in kernels else ""
    wanted = [helper for text in texts for helper in named(text.calls)]
    return saving + "".join(device_texts(closure(wanted, [part for text in texts for part in text.support]))) + kernels


def load(*texts: KernelText, sanitize: str = "", path: bool = False) -> HostLibrary | Path:
    if ON_DEVICE:
        return DeviceLibrary(source_of(*texts))
    library = compile_host(source_of(*texts), include_text=host_text(), sanitize=sanitize)
    return library if path else HostLibrary(library)


def launch(library: HostLibrary, text: KernelText, **values: torch.Tensor | int) -> None:
    """Calls a launcher with its arguments by name; the workspace is made here, filled with NaN."""
    for name, floats in text.workspace.items():
        more = text.per_sample.get(name, 0) * int(values.get("batch", 0))
        values.setdefault(name, torch.full((eval(floats, {}, values) + more,), float("nan")))
    library.call(text.name, *(values[arg.name] for arg in text.launcher_args))


def architecture() -> str:
    """The GPU's own, with what Hopper has for groups of warps."""
    return "sm_90a" if torch.cuda.get_device_capability() == (9, 0) else "native"


class DeviceLibrary:
    """The same kernels built by nvcc and run on the GPU, with the interface of HostLibrary."""

    def __init__(self, source: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernels.cu"
            path.write_text(source)
            command = [
                "nvcc",
                f"-arch={architecture()}",
                "-std=c++17",
                "-w",
                "-shared",
                "-Xcompiler",
                "-fPIC",
                "-o",
                f"{folder}/k.so",
                str(path),
            ]
            subprocess.run(command, check=True, capture_output=True)
            self._library = ctypes.CDLL(f"{folder}/k.so")

    def call(self, kernel: str, *args: torch.Tensor | int) -> None:
        moved = [arg.cuda() if isinstance(arg, torch.Tensor) else arg for arg in args]
        launcher = getattr(self._library, kernel)
        launcher.restype = ctypes.c_char_p
        pointers = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_longlong(a) for a in moved
        ]
        message = launcher(*pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        torch.cuda.synchronize()
        if message is not None:
            raise RuntimeError(message.decode())
        for arg, copy in zip(args, moved, strict=True):
            if isinstance(arg, torch.Tensor):
                arg.copy_(copy)
