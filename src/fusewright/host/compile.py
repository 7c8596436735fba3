"""CUDA source to a shared library that runs its kernels on the CPU, kept in a cache."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from functools import cache as remember
from pathlib import Path

from fusewright.errors import Refused
from fusewright.host.errors import SOURCE_NAME, HostCompileError
from fusewright.host.transform import transform

SANITIZERS = ("address", "undefined", "thread")

_HEADERS = Path(__file__).parent
# -O1 runs kernels as fast as -O2 and compiles in two thirds of the time. Hidden: libraries loaded side by side must not
# share the runtime's state. No contraction to fma: the same results on every CPU.
_FLAGS = (
    "-std=c++17 -O1 -fPIC -shared -pthread -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -w "
    "-fmax-errors=5 -fdiagnostics-color=never"
).split()
_SANITIZER_FLAGS = ["-g1", "-fno-omit-frame-pointer", "-DCUDA_ON_CPU_SANITIZED"]


def compile_host(
    cuda_source: str, *, sanitize: str = "", include_text: str = "", cache: Path | None = None
) -> Path:
    """The library of `cuda_source`, built by g++ unless the cache has it. `include_text` goes in front of the source.

    Raises Refused if there is no compiler or no room on the disk, HostCompileError if the source does not compile.
    """
    if sanitize and sanitize not in SANITIZERS:
        raise ValueError(f"sanitize={sanitize!r}: one of {', '.join(SANITIZERS)}")
    compiler = _compiler()
    flags = [*_FLAGS, *([f"-fsanitize={sanitize}", *_SANITIZER_FLAGS] if sanitize else [])]
    text = _translation_unit(cuda_source, include_text)
    ingredients = [text, *_header_texts(), *flags, compiler, _version(compiler), platform.machine()]
    name = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:32] + ".so"
    folder = _cache_folder(cache)
    library = folder / name
    if not library.exists():
        try:
            _build(compiler, flags, text, cuda_source, library)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Refused(f"The disk is full: no room to build kernels in {folder}.") from error
            raise
    return library


def _translation_unit(cuda_source: str, include_text: str) -> str:
    in_front = f'#line 1 "host_prelude.cuh"\n{transform(include_text)}\n' if include_text else ""
    return f'#include "cuda_on_cpu.h"\n{in_front}#line 1 "{SOURCE_NAME}"\n{transform(cuda_source)}\n'


def _build(compiler: str, flags: list[str], text: str, cuda_source: str, library: Path) -> None:
    """Builds beside its place and moves there at once: whoever else builds or reads it sees a whole file or none."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        source, built = Path(folder) / "source.cpp", Path(folder) / "built.so"
        source.write_text(text)
        command = [compiler, *flags, f"-I{_HEADERS}", f"-ffile-prefix-map={folder}=.", "source.cpp", "-o", "built.so"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        if result.returncode != 0:
            raise _compile_error(result, cuda_source, library.parent)
        os.replace(built, library)


def _compile_error(result: subprocess.CompletedProcess[str], cuda_source: str, folder: Path) -> Exception:
    output = result.stderr
    if "No space left on device" in output:
        return Refused(f"The disk is full: no room to build kernels in {folder}.")
    if result.returncode < 0 or "Killed signal" in output:
        return HostCompileError("the compiler was killed (out of memory?)", compiler_output=output)
    error = re.search(r"(?:fatal )?error: (.*)", output)
    # The error may lie in a header; the line of the CUDA source that led there is then named before or after it.
    here = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+):\d+: (?:fatal )?error: (.*)", output)
    near = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", output)
    line = int((here or near)[1]) if here or near else None  # type: ignore[index]
    what = here[2] if here else error[1] if error else output.strip()[-500:]
    return HostCompileError(what, line=line, source=cuda_source, compiler_output=output)


def _compiler() -> str:
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise Refused(f"The host target needs a C++ compiler, and {wanted} is not found (set CXX to a g++).")
    return found


@remember
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


@remember
def _header_texts() -> tuple[str, ...]:
    return tuple(header.read_text() for header in sorted(_HEADERS.glob("*.h")))


def _cache_folder(cache: Path | None) -> Path:
    wanted = cache or Path(os.environ.get("FUSEWRIGHT_CACHE") or Path.home() / ".cache" / "fusewright")
    folder = wanted / "host"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Refused(f"The disk is full: no room to build kernels in {folder}.") from error
        warnings.warn(f"{folder} cannot be written ({error.strerror}); kernels are built anew in every process", stacklevel=3)
        return _temporary_folder()


@remember
def _temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fusewright-"))
