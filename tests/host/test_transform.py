"""What the text of CUDA source becomes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from host_sources import PRELUDE, RIGHT, WRONG

from fusewright.host import HostCompileError, transform
from fusewright.host.transform import kernels_launched


@pytest.mark.parametrize("source", [RIGHT, WRONG, PRELUDE], ids=["right", "wrong", "prelude"])
def test_every_line_keeps_its_number(source: str) -> None:
    before, after = source.split("\n"), transform(source).split("\n")
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        touched = any(
            word in old
            for word in ("<<<", ">>>", "__shared__", "__launch_bounds__", "extern", "#include", "__noinline__")
        )
        is_edge_of_construct = new.strip() in old or old.strip() in new
        assert touched or is_edge_of_construct


def test_launch() -> None:
    assert transform("k<<<g, b>>>(x, y);") == 'cuda_on_cpu::launch("k", cuda_on_cpu::Geometry(g, b), k, x, y);'
    handed = "auto launch = [&](auto v, dim3 g) { v<<<g, 32>>>(x); }; if (a) launch(k<int, F<3>>, 4); else launch(l <1>); launch(a < b);"
    known = ('cuda_on_cpu::known_as("k<int, F<3>>", k<int, F<3>>)', 'cuda_on_cpu::known_as("l <1>", l <1>)')
    assert f"launch({known[0]}, 4)" in transform(handed) and f"launch({known[1]})" in transform(handed)
    assert "launch(a < b)" in transform(handed) and kernels_launched(handed) == ["k<int, F<3>>", "l <1>"]
    assert transform("k<<<1, 32, s, t>>>();") == 'cuda_on_cpu::launch("k", cuda_on_cpu::Geometry(1, 32, s, t), k);'


def test_launch_with_template_arguments_over_lines() -> None:
    text = "return;\n  a::k<float, (A > B), F<3>>\n  <<<dim3(n >> 2, 1),\n     f<int>(3)>>>(\n    x);"
    name = "a::k<float, (A > B), F<3>>"
    launch = f'cuda_on_cpu::launch("{name}", cuda_on_cpu::Geometry('
    expected = f"return;\n  {launch}\ndim3(n >> 2, 1),\n     f<int>(3)), {name}, \n    x);"
    assert transform(text) == expected


def test_comments_and_strings_are_left_alone() -> None:
    for text in (
        "// k<<<1, 2>>>(x)",
        "/* __shared__ float\n a[3]; */",
        'const char* s = "k<<<1, 2>>>(__shared__ int a;)";',
    ):
        assert transform(text) == text


def test_includes_of_cuda_go_others_stay() -> None:
    assert transform("#include <cuda_fp16.h>\n#include <stdint.h>\n") == "\n#include <stdint.h>\n"
    assert transform("// #include <cuda_fp16.h>") == "// #include <cuda_fp16.h>"


def test_shared_declarations() -> None:
    for text in (
        "__shared__ float tile[4][N + 1];",
        "__shared__ Pair<float, 4> tile;",
        "static __shared__ __align__(16) typename T::Element tile[sizeof(T) * 4];",
        "__shared__ alignas(128)\n  unsigned char tile[2]\n  [3];",
    ):
        result = transform(text)
        assert "cuda_on_cpu::shared_variable<tile_shared_type>(&tile_shared_name);" in result
        assert result.count("\n") == text.count("\n")
        assert "__shared__" not in result and "align" not in result
    assert "using b_shared_type = float[3];" in transform("__shared__ float a, b[3];")
    pointer = "unsigned char* const raw = cuda_on_cpu::dynamic_shared<unsigned char>();"
    assert transform("extern __shared__ __align__(16) unsigned char raw[];") == pointer


def test_launch_bounds_are_checked_in_definitions_only() -> None:
    definition = transform("__global__ void __launch_bounds__(F<2, 3>::n, 2) k(int a) {")
    assert definition == "__global__ void  k(int a) { cuda_on_cpu::check_launch_bounds(F<2, 3>::n);"
    assert "check" not in transform("__global__ void __launch_bounds__(256) k(int a);")


def test_exports() -> None:
    visible = '__attribute__((visibility("default")))'
    assert transform('extern "C" const char* f() {}') == f'extern "C" {visible} const char* f() {{}}'
    block = transform('extern "C" {\nint f() { return 1; }\n}\n')
    assert block.startswith("_Pragma") and block.endswith('} _Pragma("GCC visibility pop")\n')


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("\n\nk<<<1, 2>>;", 3, "<<< without >>>"),
        ("\nk<<<1, 2>>>;", 2, "launch that cannot be read"),
        ("k<<<(1, 2>>>(x);", 1, "never closed"),
        ("\n__shared__ ;", 2, "cannot be read"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, what: str) -> None:
    with pytest.raises(HostCompileError, match=what) as raised:
        transform(text)
    assert raised.value.line == line


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_nvcc_takes_the_same_source(architecture: str, tmp_path: Path) -> None:
    source = tmp_path / "source.cu"
    source.write_text(f"#include <stdint.h>\n{PRELUDE}\n{RIGHT}")
    cubin = tmp_path / "out.cubin"
    subprocess.run(["nvcc", f"-arch={architecture}", "-cubin", source.name, "-o", str(cubin)], cwd=tmp_path, check=True)
    for kernel in (b"gemm_tf32_kernel", b"gemm_16_bit_kernel", b"async_sum_kernel"):
        assert kernel in cubin.read_bytes()
