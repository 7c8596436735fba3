"""CUDA on the CPU: compiles the same kernel source with g++ and runs every CUDA thread as a fiber."""

from .compile import SANITIZERS, compile_host
from .errors import SOURCE_NAME, HostCompileError
from .library import ORDERS, HostLibrary
from .sanitize import FOUND_SOMETHING, run_sanitized, sanitizer_report
from .transform import transform

__all__ = [
    "FOUND_SOMETHING",
    "ORDERS",
    "SANITIZERS",
    "SOURCE_NAME",
    "HostCompileError",
    "HostLibrary",
    "compile_host",
    "run_sanitized",
    "sanitizer_report",
    "transform",
]
