"""Running Python under a sanitizer's runtime, and reading what the sanitizer says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fusewright.errors import Refused
from fusewright.host.compile import _compiler
from fusewright.host.errors import SOURCE_NAME

FOUND_SOMETHING = 66  # exit status of a process that a sanitizer ended

_RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
# Only the kernels are instrumented. Leaks and whatever Python or torch do are not ours to report.
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:detect_odr_violation=0:alloc_dealloc_mismatch=0:verify_asan_link_order=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:report_thread_leaks=0:history_size=2",
}


def run_sanitized(
    argv: Sequence[str], sanitize: str, *, timeout: float | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python *argv` with the runtime of `sanitize` loaded first; exit status 66 if it found something."""
    compiler = _compiler()
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
    if found := re.search(rf"{re.escape(SOURCE_NAME)}:(\d+):\d+: runtime error: (.*)", text):
        return f"{SOURCE_NAME}:{found[1]}: undefined behaviour: {found[2]}"
    if found := re.search(r"ERROR: AddressSanitizer: (\S+)", text):
        access = re.search(r"\b(READ|WRITE) of size (\d+)", text)
        size = re.search(r"is located (.*? region)", text)
        what = _ADDRESS_FINDINGS.get(found[1], found[1])
        doing = f"{access[1].lower()} of {access[2]} bytes: " if access else ""
        where = f" ({size[1]})" if size else ""
        return f"{_first_line(text[found.start():])}{doing}{what}{where}"
    if found := re.search(r"WARNING: ThreadSanitizer: (.*?) \(pid", text):
        accesses = re.split(r"\n  (?=(?:Previous )?(?:[Aa]tomic )?(?:[Rr]ead|[Ww]rite) of size )", text[found.end() :])[1:3]
        described = [f"{access.split(' of size')[0].lower()} at {_first_line(access).rstrip(': ')}" for access in accesses]
        return f"{_first_line(text[found.end():])}{found[1]}: {'; '.join(described)}"
    if found := re.search(r"ERROR: ThreadSanitizer: (.*)", text):
        return f"{_first_line(text[found.start():])}{found[1]}"
    return None


_ADDRESS_FINDINGS = {
    "heap-buffer-overflow": "outside the tensor",
    "use-after-poison": "outside a shared array",
    "heap-use-after-free": "in freed memory",
    "stack-buffer-overflow": "outside a local array",
    "dynamic-stack-buffer-overflow": "outside a local array",
    "global-buffer-overflow": "outside a constant array",
}


def _first_line(report: str) -> str:
    """`kernels.cu:31: `, of the innermost frame in the CUDA source (the innermost frames may be in the runtime)."""
    frame = re.search(rf"#\d+ .*?\b{re.escape(SOURCE_NAME)}:(\d+)", report)
    return f"{SOURCE_NAME}:{frame[1]}: " if frame else ""


def _file_of(compiler: str, name: str) -> str:
    path = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(path):
        raise Refused(f"{os.path.basename(compiler)} has no {name}: install its sanitizer runtimes.")
    return os.path.realpath(path)
