"""Fusewright: a PyTorch model file in, the same model with fused CUDA kernels out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Refused", "__version__", "as_operator", "backend", "load", "optimize"]

if TYPE_CHECKING:
    from .driver import backend
    from .driver.operators import as_operator
    from .driver.pipeline import optimize_module as optimize
    from .errors import Refused
    from .host.loaded import load

_PLACES = {
    "Refused": ("errors", "Refused"),
    "as_operator": ("driver.operators", "as_operator"),
    "backend": ("driver", "backend"),
    "load": ("host.loaded", "load"),
    "optimize": ("driver.pipeline", "optimize_module"),
}


def __getattr__(name: str) -> Any:
    """What is public is imported when first asked for: it brings torch with it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, function = _PLACES[name]
    if (module, function) == ("driver", "backend"):  # a module
        return importlib.import_module(f"{__name__}.{module}.{function}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)
