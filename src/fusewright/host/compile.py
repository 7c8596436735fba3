"""CUDA source to a shared library that runs its kernels on the CPU, kept in a cache."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache as remember
from pathlib import Path

from ..errors import Refused
from ..options import cache_root, private
from .errors import SOURCE_NAME, HostCompileError
from .transform import kernels_launched, quoted, transform

SANITIZERS = ("address", "undefined", "thread")

HEADER = "cuda_on_cpu.h"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_HERE = Path(__file__).parent
# Hidden: libraries loaded side by side share only the runtime. No contraction to fma: the same results on every
# CPU. Lines (-g1) for messages. Kernels are compiled with -Og: -O1 and -O2 run them no
# faster, and a convolution takes a third longer, or twice as long, to compile.
_FLAGS = (
    "-std=c++17 -fPIC -shared -pthread -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -w -Wno-psabi "
    "-g1 -fmax-errors=5 -fdiagnostics-color=never -x c++"
).split()
_SANITIZER_FLAGS = "-fno-omit-frame-pointer -DCUDA_ON_CPU_SANITIZED".split()
# A vector access that is not aligned ends a launch on a GPU. x86 would not mind: the compiler puts a test before each.
_ALIGNMENT_TRAPS = "-fsanitize=alignment -fsanitize-undefined-trap-on-error".split()


def compile_host(cuda_source: str, *, sanitize: str = "", include_text: str = "", cache: Path | None = None) -> Path:
    """The library of `cuda_source`, built by g++ unless the cache has it. `include_text` goes in front of the source.

    Raises Refused if there is no compiler or no room on the disk, HostCompileError if the source does not compile.
    """
    if sanitize and sanitize not in SANITIZERS:
        raise ValueError(f"sanitize={sanitize!r}: one of {', '.join(SANITIZERS)}")
    folder = _cache_folder(cache)
    try:
        runtime = _runtime(sanitize, folder)
        flags = ["-Og", *_flags(sanitize), *([] if sanitize else _ALIGNMENT_TRAPS)]
        flags += [f"-I{_HERE}", "-include", HEADER]
        # The runtime is found beside the library, wherever that is.
        linked = ["-x", "none", f"-L{folder}", f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN"]
        text = _translation_unit(cuda_source, include_text)
        library = folder / _name("kernels", sanitize, text, *flags, runtime.name)
        if not library.exists():
            _build(library, [f"-I{_precompiled(flags, sanitize, folder)}", *flags], {SOURCE_NAME: text}, linked, cuda_source)
        return library
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _disk_is_full(folder) from error
        raise


def _translation_unit(cuda_source: str, include_text: str) -> str:
    in_front = f'#line 1 "host_prelude.cuh"\n{transform(include_text)}\n' if include_text else ""
    names = "\\n".join(map(quoted, kernels_launched(cuda_source)))
    listed = f'extern "C" CUDA_ON_CPU_API const char* cuda_on_cpu_kernels() {{ return "{names}"; }}'  # for HostLibrary.not_run
    return f'{in_front}#line 1 "{SOURCE_NAME}"\n{transform(cuda_source)}\n{listed}\n'


def _flags(sanitize: str) -> list[str]:
    return [*_FLAGS, *([f"-fsanitize={sanitize}", *_SANITIZER_FLAGS] if sanitize else [])]


def _runtime(sanitize: str, folder: Path) -> Path:
    """The library all kernel libraries of a process share: threads, barriers, launches, tensor cores."""
    flags = ["-O2", *_flags(sanitize), f"-I{_HERE}"]
    sources = {path.name: path.read_text() for path in sorted(_HERE.glob("*.cpp"))}
    headers = [path.read_text() for path in sorted(_HERE.glob("*.h"))]
    library = folder / _name("runtime", sanitize, *sources.values(), *headers, *flags)
    if not library.exists():
        _build(library, flags, sources, [], "")
    return library


def _precompiled(flags: Sequence[str], sanitize: str, folder: Path) -> Path:
    """A folder with the headers as g++ has read them once: it takes a small kernel two thirds the time, if it can use them."""
    headers = [path.read_text() for path in sorted(_HERE.glob("*.h"))]
    place = folder / _name("headers", sanitize, *headers, *flags).removesuffix(".so")
    if not place.exists():
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as building:
            made = Path(building) / "headers"
            made.mkdir()
            same = [flag for flag in flags if flag not in ("-x", "c++", "-shared", "-include", HEADER)]
            command = [gnu_compiler(), *same, "-x", "c++-header", str(_HERE / HEADER), "-o", str(made / f"{HEADER}.gch")]
            subprocess.run(command, capture_output=True, text=True, errors="replace")
            with contextlib.suppress(OSError):  # another was first
                made.rename(place)
    return place


def _name(kind: str, sanitize: str, *ingredients: str) -> str:
    """A file name that changes with anything the file is made from."""
    compiler = gnu_compiler()
    everything = [compiler, _version(compiler), platform.machine(), *ingredients]
    digest = hashlib.sha256("\0".join(everything).encode()).hexdigest()[:32]
    return "-".join(part for part in (kind, sanitize, digest) if part) + ".so"


def _build(
    library: Path, flags: Sequence[str], sources: Mapping[str, str], linked: Sequence[str], cuda_source: str
) -> None:
    """Builds beside its place and moves there at once: whoever else builds or reads it sees a whole file or none."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        for name, text in sources.items():
            (Path(folder) / name).write_text(text)
        command = [gnu_compiler(), f"-ffile-prefix-map={folder}=.", *flags, *sources, "-o", "built.so", *linked]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
        if result.returncode != 0:
            raise _compile_error(result, cuda_source, library.parent)
        os.replace(Path(folder) / "built.so", library)


def _compile_error(result: subprocess.CompletedProcess[str], cuda_source: str, folder: Path) -> Exception:
    output = result.stderr
    if "No space left on device" in output:
        return Refused(f"The disk is full: no room to build kernels in {tempfile.gettempdir()} or in {folder}.")
    if result.returncode < 0 or "Killed signal" in output:
        return HostCompileError("the compiler was killed (out of memory?)", compiler_output=output)
    # An error may lie in a header; the line of the CUDA source that led there is then named somewhere around it.
    here = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+):\d+: (?:fatal )?error: (.*)", output)
    anywhere = re.search(r"error: (.*)", output)
    near = re.search(rf"{re.escape(SOURCE_NAME)}:(\d+)", output)
    what = here[2] if here else anywhere[1] if anywhere else output.strip()[-500:]
    line = int(here[1]) if here else int(near[1]) if near else None
    return HostCompileError(what, line=line, source=cuda_source, compiler_output=output)


def _disk_is_full(folder: Path) -> Refused:
    return Refused(f"The disk is full: no room to build kernels in {folder}.")


def gnu_compiler() -> str:
    """$CXX if it is a g++, else the g++ there is. (The headers use what g++ adds to C++.)"""
    wanted = [name for name in (os.environ.get("CXX"), "g++") if name]
    for name in wanted:
        found = _found(name)
        if found and "Free Software Foundation" in _version(found):
            return found
    raise Refused("The host target needs g++ to compile kernels for the CPU, and none is found (set CXX to one).")


@remember
def _found(name: str) -> str | None:
    return shutil.which(name)


@remember
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


def _cache_folder(cache: Path | None) -> Path:
    try:
        wanted = cache or cache_root()
        folder = private(private(wanted.absolute()) / "host")
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise _disk_is_full(folder) from error
        warnings.warn(f"no cache for compiled kernels ({error}): they are built anew in every process", stacklevel=3)
        return Path(_temporary_folder().name)


@remember
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="fusewright-")
