"""The CUDA of these tests built by nvcc and run on a GPU: what the host target does must be what a GPU does."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from host_sources import PRELUDE, RIGHT
from torch.utils.cpp_extension import CUDA_HOME


def source() -> str:
    return "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <stdint.h>\n" + PRELUDE + RIGHT


def build(folder: Path, arch: str) -> Path:
    (folder / "right.cu").write_text(source())
    compiler = str(Path(CUDA_HOME) / "bin" / "nvcc") if CUDA_HOME else "nvcc"
    flags = ["-std=c++17", f"-arch={arch}", "-Xcompiler", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, "-o", str(folder / "right.so"), str(folder / "right.cu")], check=True)
    return folder / "right.so"


class GpuLibrary:
    """As `HostLibrary`, with the arguments moved to the GPU and back."""

    def __init__(self) -> None:
        major, minor = torch.cuda.get_device_capability()
        self._library = ctypes.CDLL(str(build(Path(tempfile.mkdtemp()), f"sm_{major}{minor}")))

    def set_order(self, order: str = "warps", seed: int = 1) -> None:
        """The GPU has an order of its own."""

    def call(self, kernel: str, *args: torch.Tensor | int | None) -> None:
        launcher = getattr(self._library, kernel)
        launcher.restype = ctypes.c_char_p
        moved = [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_longlong(a or 0) for a in moved
        ]
        message = launcher(*values, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if message is not None:
            raise RuntimeError(message.decode())
        torch.cuda.synchronize()
        for there, here in zip(moved, args, strict=True):
            if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
                here.copy_(there)
