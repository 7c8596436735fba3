"""The cache, errors told in one sentence, and calling launchers."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewright.errors import Refused
from fusewright.host import HostCompileError, HostLibrary, compile_host

SOURCE = """
__global__ void fill_kernel(float* y, long long n, float value) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = value;
}
extern "C" const char* fill(float* y, long long n, long long value, void* stream) {
  fill_kernel<<<(unsigned)((n + 63) / 64), 64, 0, (cudaStream_t)stream>>>(y, n, (float)value);
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_built_once(cache: Path) -> None:
    first = compile_host(SOURCE, cache=cache)
    built = first.stat().st_mtime_ns
    assert compile_host(SOURCE, cache=cache) == first
    assert first.stat().st_mtime_ns == built
    assert compile_host(SOURCE + "\n", cache=cache) != first
    assert sorted(path.suffix for path in first.parent.iterdir()) == ["", *[".so"] * 3]  # two, the runtime they share, and headers


def test_built_by_many_at_once(tmp_path: Path, cache: Path) -> None:
    compile_host(SOURCE, cache=cache)  # in whichever order the tests run, there is a runtime
    runtime = next((cache / "host").glob("runtime-*"))
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / runtime.name).hardlink_to(runtime)
    with ThreadPoolExecutor(4) as pool:
        libraries = list(pool.map(lambda _: compile_host(SOURCE, cache=tmp_path), range(4)))
    assert len(set(libraries)) == 1
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "host").iterdir()) == ["headers", "kernels", "runtime"]
    y = torch.zeros(5)
    HostLibrary(libraries[0]).call("fill", y, 5, 3)
    assert y.tolist() == [3.0] * 5


def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """g++ passes over headers that were read with other flags, and says so only if it is asked."""
    run, said = subprocess.run, list[str]()

    def asked(command: list[str], **how: Any) -> Any:
        done = run([*command, "-H"] if "-include" in command else command, **how)
        said.append(done.stderr)
        return done

    monkeypatch.setattr(subprocess, "run", asked)
    for source in (SOURCE, SOURCE.replace("fill", "fill_all")):
        folder = compile_host(source, cache=tmp_path).parent
        assert re.search(r"^! .*/headers-\w+/cuda_on_cpu\.h\.gch$", said[-1], flags=re.MULTILINE), said[-1]
    assert len(list(folder.glob("headers-*"))) == 1


def test_cache_from_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(cache))
    assert compile_host(SOURCE) == compile_host(SOURCE, cache=cache)


def test_cache_that_cannot_be_written(tmp_path: Path, cache: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.warns(UserWarning, match="no cache for compiled kernels"):
        library = compile_host(SOURCE, cache=in_the_way)
    y = torch.zeros(2)
    HostLibrary(library).call("fill", y, 2, 1)
    assert y.tolist() == [1.0, 1.0]


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewright.host.compile._found", lambda name: None)
    with pytest.raises(Refused, match=r"needs g\+\+"):
        compile_host(SOURCE, cache=cache)


def test_cxx_that_is_no_gnu_compiler_is_passed_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "c++"
    other.write_text("#!/bin/sh\necho some other compiler\n")
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    assert compile_host(SOURCE, cache=cache).exists()


def test_disk_full(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="disk is full"):
        compile_host(SOURCE + "// full", cache=cache)


def test_disk_full_in_the_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "fatal error: error writing to /x.s: No space left on device")
    compile_host(SOURCE, cache=cache)
    monkeypatch.setattr("fusewright.host.compile.subprocess.run", lambda *args, **kwargs: failed)
    with pytest.raises(Refused, match="disk is full"):
        compile_host(SOURCE + "// full", cache=cache)


def test_compile_error_names_the_line(cache: Path) -> None:
    with pytest.raises(HostCompileError, match=r"kernels.cu:3: .*nonsense.*\n    long long i = nonsense") as raised:
        compile_host(SOURCE.replace("= blockIdx.x", "= nonsense"), cache=cache)
    assert raised.value.line == 3
    assert "error:" in raised.value.compiler_output


def test_error_inside_a_header_names_the_line_that_led_there(cache: Path) -> None:
    wrong = SOURCE.replace("(y, n, (float)value)", "(y, n)")
    with pytest.raises(HostCompileError) as raised:
        compile_host(wrong, cache=cache)
    assert raised.value.line == 7


def test_sanitizer_that_does_not_exist(cache: Path) -> None:
    with pytest.raises(ValueError, match="sanitize='memory'"):
        compile_host(SOURCE, sanitize="memory", cache=cache)


def test_calls_are_counted_and_can_be_disabled(cache: Path) -> None:
    library, y = HostLibrary(compile_host(SOURCE, cache=cache)), torch.zeros(3)
    library.call("fill", y, 3, 2)
    library.disabled.add("fill")
    library.call("fill", y, 3, 9)
    assert y.tolist() == [2.0] * 3
    assert library.launched == {"fill": 1}


def test_arguments(cache: Path) -> None:
    library, y = HostLibrary(compile_host(SOURCE, cache=cache)), torch.zeros(3)
    with pytest.raises(TypeError, match="fill: an argument of type float"):
        library.call("fill", y, 3, 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on meta"):
        library.call("fill", y.to("meta"), 3, 2)
    with pytest.raises(RuntimeError, match="no launcher named fil"):
        library.call("fil", y)
    with pytest.raises(RuntimeError, match="a grid of no blocks"):
        library.call("fill", y, 0, 1)


def test_a_library_for_a_sanitizer_is_not_opened_without_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="run_sanitized"):
        HostLibrary(tmp_path / "kernels-address-0.so")


def test_what_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "kernels-0.so").write_text("nonsense")
    with pytest.raises(Refused, match="cannot be loaded"):
        HostLibrary(tmp_path / "kernels-0.so")


def test_many_libraries_in_one_process(cache: Path) -> None:
    """Each takes nothing from what a process has little of: thread-local storage, mappings."""
    original = compile_host(SOURCE, cache=cache)
    y = torch.zeros(100)
    for copy in range(150):
        path = original.with_name(f"kernels-copy{copy}.so")
        path.write_bytes(original.read_bytes())
        HostLibrary(path).call("fill", y, 100, copy)
        assert y[99] == copy
        path.unlink()
