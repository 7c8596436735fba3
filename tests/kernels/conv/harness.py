"""Builds generated convolution kernels for the host target and calls them with tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from fusewright.host import HostLibrary, compile_host
from fusewright.kernels.conv import KernelText
from fusewright.prelude import device_text, host_text, used

def source_of(*texts: KernelText) -> str:
    """The translation unit of these kernels: what they use of the prelude, what they share, and themselves."""
    shared = dict.fromkeys(piece for text in texts for piece in text.support)
    kernels = "".join([*shared, *(text.source for text in texts)])
    return "".join(device_text(section) for section in used(kernels)) + kernels


def load(*texts: KernelText, sanitize: str = "", path: bool = False) -> HostLibrary | Path:
    library = compile_host(source_of(*texts), include_text=host_text(), sanitize=sanitize)
    return library if path else HostLibrary(library)


def launch(library: HostLibrary, text: KernelText, **values: torch.Tensor | int) -> None:
    """Calls a launcher with its arguments by name; the workspace is made here, filled with NaN."""
    for name, floats in text.workspace.items():
        values.setdefault(name, torch.full((eval(floats, {}, values),), float("nan")))
    library.call(text.name, *(values[name] for _, name in text.launcher_args))
