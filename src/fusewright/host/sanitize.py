"""Running Python under a sanitizer's runtime, and reading what the sanitizer says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ..errors import Refused
from .compile import gnu_compiler
from .errors import SOURCE_NAME

FOUND_SOMETHING = 66  # exit status of a process that a sanitizer ended

_RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# Only the kernels are instrumented. Leaks and whatever Python or torch do are not ours to report.
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:detect_odr_violation=0:alloc_dealloc_mismatch=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:report_thread_leaks=0:history_size=2",
}


def run_sanitized(
    argv: Sequence[str], sanitize: str, *, timeout: float | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python *argv` with the runtime of `sanitize` loaded first; exit status 66 if it found something."""
    compiler = gnu_compiler()
    preload = [_file_of(compiler, _RUNTIMES[sanitize]), _file_of(compiler, "libstdc++.so.6")]
    environment = {
        **os.environ,
        **(env or {}),
        **{name: f"{options}:exitcode={FOUND_SOMETHING}" for name, options in _OPTIONS.items()},
        "LD_PRELOAD": " ".join(preload),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *argv]
    if sanitize == "thread" and (setarch := shutil.which("setarch")):
        command = [setarch, "-R", *command]  # older runtimes cannot place their tables under address randomisation
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout)


def sanitizer_report(text: str) -> str | None:
    """The first finding in a process's output as one line with its lines of the CUDA source; None if there is none."""
    if found := re.search(r"(\S+):(\d+):\d+: runtime error: (.*)", text):
        inside = os.path.basename(found[1]) != SOURCE_NAME  # a function of the prelude or the runtime
        place = _first_line(text[found.end() :]) if inside else f"{SOURCE_NAME}:{found[2]}"
        return f"{place}: undefined behaviour: {found[3]}"
    if found := re.search(r"ERROR: AddressSanitizer: (\S+)", text):
        report = text[found.start() :]
        access = re.search(r"\b(READ|WRITE) of size (\d+)", report)
        region = re.search(r"is located (.*? region)", report)
        doing = f"{access[1].lower()} of {access[2]} bytes " if access else ""
        where = f", {region[1]}" if region else ""
        return f"{_first_line(report)}: {doing}{_ADDRESS_FINDINGS.get(found[1], found[1])}{where}"
    if found := re.search(r"WARNING: ThreadSanitizer: (.*?) \(pid", text):
        report = text[found.end() :]
        accesses = _ACCESS.findall(report)
        described = [f"{access[1].lower()} at {_first_line(access[0])}" for access in accesses[:2]]
        return f"{_first_line(report)}: {found[1]}: {', '.join(described)}"
    return None


_ACCESS = re.compile(
    r"\n  (((?:previous )?(?:atomic )?(?:read|write)) of size .*?)(?=\n\n|\Z)", re.DOTALL | re.IGNORECASE
)
_ADDRESS_FINDINGS = {
    "heap-buffer-overflow": "outside the tensor",
    "use-after-poison": "outside a shared array",
    "heap-use-after-free": "in freed memory",
    "stack-buffer-overflow": "outside a local array",
    "dynamic-stack-buffer-overflow": "outside a local array",
    "global-buffer-overflow": "outside a constant array",
}


def _first_line(report: str) -> str:
    """`kernels.cu:31`, of the innermost frame in the CUDA source (the innermost frames of all may be the runtime's)."""
    frame = re.search(rf"#\d+ .*?\b{re.escape(SOURCE_NAME)}:(\d+)", report)
    return f"{SOURCE_NAME}:{frame[1]}" if frame else "in a kernel"


def _file_of(compiler: str, name: str) -> str:
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(path):
        raise Refused(f"{os.path.basename(compiler)} has no {name}: install its sanitizer runtimes.")
    return os.path.realpath(path)
