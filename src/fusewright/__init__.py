"""Fusewright: a PyTorch model file in, the same model with fused CUDA kernels out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "NotInUse", "Optimized", "Refused", "Report", "__version__", "about", "as_operator", "backend", "load", "optimize", "save",
]  # fmt: skip

if TYPE_CHECKING:
    from .driver import backend
    from .driver.module import optimize
    from .driver.operators import as_operator
    from .driver.optimized import NotInUse, Optimized, about
    from .driver.saving import save
    from .errors import Refused
    from .host.loaded import load
    from .report.shown import Report

_PLACES = {
    "NotInUse": ("driver.optimized", "NotInUse"),
    "Optimized": ("driver.optimized", "Optimized"),
    "Refused": ("errors", "Refused"),
    "Report": ("report.shown", "Report"),
    "about": ("driver.optimized", "about"),
    "as_operator": ("driver.operators", "as_operator"),
    "backend": ("driver.backend", ""),  # a module
    "load": ("host.loaded", "load"),
    "optimize": ("driver.module", "optimize"),
    "save": ("driver.saving", "save"),
}


def __getattr__(name: str) -> Any:
    """What is public is imported when first asked for: it brings torch with it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, function = _PLACES[name]
    found = importlib.import_module(f"{__name__}.{module}")
    return getattr(found, function) if function else found
