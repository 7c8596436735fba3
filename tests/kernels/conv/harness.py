"""Builds generated convolution kernels for the host target and calls them with tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from fusewright.host import HostLibrary, compile_host
from fusewright.kernels.conv import KernelText

ROOT = Path(__file__).resolve().parents[3]
PROVISIONAL = (Path(__file__).parent / "provisional.cuh").read_text()
PRELUDE = (ROOT / "src" / "fusewright" / "prelude_ptx.cuh").read_text() + PROVISIONAL


def load(*texts: KernelText, sanitize: str = "") -> HostLibrary:
    source = texts[0].support + "".join(text.source for text in texts)
    return HostLibrary(compile_host(source, include_text=PRELUDE, sanitize=sanitize))


def launch(library: HostLibrary, text: KernelText, **values: torch.Tensor | int) -> None:
    """Calls a launcher with its arguments by name; the workspace is made here, filled with NaN."""
    for name, floats in text.workspace.items():
        values.setdefault(name, torch.full((eval(floats, {}, values),), float("nan")))
    library.call(text.name, *(values[name] for _, name in text.launcher_args))
