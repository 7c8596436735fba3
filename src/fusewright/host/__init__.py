"""CUDA on the CPU: compiles the same kernel source with g++ and runs every CUDA thread as a fiber."""

from fusewright.host.compile import SANITIZERS, compile_host
from fusewright.host.errors import SOURCE_NAME, HostCompileError
from fusewright.host.library import ORDERS, HostLibrary
from fusewright.host.sanitize import FOUND_SOMETHING, run_sanitized, sanitizer_report
from fusewright.host.transform import transform

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
