"""Fusewright: a PyTorch model file in, the same model with fused CUDA kernels out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "optimize"]

if TYPE_CHECKING:
    from .pipeline import optimize_module as optimize


def __getattr__(name: str) -> Any:
    """`fusewright.optimize` is imported when first asked for: it brings torch with it."""
    if name == "optimize":
        from .pipeline import optimize_module

        return optimize_module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
