"""Where vectors do not fit: inverses for what is divided by, offsets by the running number, several elements to a thread all the same."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from kernels.frame import cuda_of, made_of, problem_of

from fusewright.driver.pipeline import compile_problem
from fusewright.options import Options
from fusewright.target.helpers import closure

SOURCE = """
#define __device__
#define __forceinline__ inline
{section}
template <typename Index> static void both(const Index* n, const Index* d, Index* quotient, Index* rest, long count) {{
  for (long i = 0; i < count; ++i) {{
    const Divisor<Index> by = static_cast<long long>(d[i]);
    quotient[i] = n[i] / by;
    rest[i] = n[i] % by;
  }}
}}
extern "C" void narrow(const int* n, const int* d, int* q, int* r, long count) {{ both(n, d, q, r, count); }}
extern "C" void wide(const long long* n, const long long* d, long long* q, long long* r, long count) {{ both(n, d, q, r, count); }}
"""


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("divisor")
    section = next(s.text for s in closure(["Divisor"]) if s.name == "Divisor")
    (folder / "divisor.cpp").write_text(SOURCE.format(section=section))
    flags = ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-static-libubsan", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", str(folder / "divisor.so"), str(folder / "divisor.cpp")], check=True)
    return ctypes.CDLL(str(folder / "divisor.so"))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_quotients_are_exact(divided: ctypes.CDLL, index: type) -> None:
    """Around every multiple that tells a wrong inverse from a right one: the last before, the first of, and the largest numbers."""
    random = np.random.default_rng(0)
    top = 2**31 - 1
    powers, drawn = 2 ** np.arange(31), [random.integers(1, top, 20000), (top / random.uniform(1, 2000, 20000)).astype(np.int64)]
    by = np.unique(np.concatenate([np.arange(1, 3000), powers, powers - 1, powers + 1, [top, top - 1], *drawn]))
    by = by[by >= 1]
    last, half = by * (top // by), by * (top // by // 2)
    near = [last, last - 1, half, half - 1, by, by - 1, 0 * by, 0 * by + top]
    near += [random.integers(0, top, by.size) for _ in range(4)]
    numbers, divisors = np.concatenate(near), np.tile(by, len(near))
    n, d = (np.ascontiguousarray(x[numbers >= 0].astype(index)) for x in (numbers, divisors))
    quotient, rest = np.empty_like(n), np.empty_like(n)
    run = divided.narrow if index is np.int32 else divided.wide
    run(*(ctypes.c_void_p(x.ctypes.data) for x in (n, d, quotient, rest)), ctypes.c_long(n.size))
    assert np.array_equal(quotient, n // d) and np.array_equal(rest, n % d)


CASES = {
    "scale of channels": ("torch.tanh(x * self.weight)", (4, 6, 9, 11)),
    "statistics of rows of images": ("torch.softmax(x, 3).var((2, 3))", (3, 4, 9, 11)),
    "norm of images of softmax": ("F.instance_norm(torch.softmax(x, 3)) * self.weight", (2, 3, 9, 11)),
    "mean over batch and space": ("(x * self.weight - (x * self.weight).mean((0, 2, 3), keepdim=True))", (4, 6, 7, 9)),
    "sum of columns": ("(x * self.weight).sum(1)", (3, 6, 7, 9)),
    "batch norm": ("F.batch_norm(x * self.weight, None, None, training=True)", (4, 6, 9, 11)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_results_at_other_sizes(case: str, tmp_path: Path) -> None:
    """Those it was planned for, those that vectors fit after all, and others that they do not."""
    expression, shape = CASES[case]
    weight = f"self.weight = nn.Parameter(torch.randn({shape[1]}, 1, 1))"
    _, text, original, new = made_of(problem_of(tmp_path, expression, f"torch.randn{shape}", init=weight))
    assert "Divisor<Index>" in text
    original.double()
    for batch, *space in (shape[:1] + shape[2:], (2, 8, 12), (5, 1, 3), (1, 13, 4)):
        x = torch.randn(batch, shape[1], *space)
        with torch.no_grad():
            torch.testing.assert_close(new(x).double(), original(x.double()), rtol=2e-5, atol=2e-5)


def test_nothing_to_do(tmp_path: Path) -> None:
    """A size of 0 is never divided by."""
    _, text, original, new = made_of(problem_of(tmp_path, "torch.softmax(x, 3).sum((2, 3))", "torch.randn(3, 4, 9, 11)"))
    assert "Divisor<Index>" in text
    for shape in ((0, 4, 9, 11), (3, 4, 0, 11), (3, 4, 9, 0)):
        torch.testing.assert_close(new(torch.randn(shape)), original(torch.randn(shape)))


def test_what_lies_in_a_row_is_read_by_the_running_number(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "F.instance_norm(torch.softmax(x, 3))", "torch.randn(2, 3, 9, 11)")
    source = cuda_of(made_of(problem)[1])
    assert re.search(r"x_ptr\[i1 \* x_stride1 \+ item\]", source) or re.search(r"x_ptr\[\w+ \* x_stride1 \+ \(?item", source)


def test_where_vectors_fit_nothing_changes(tmp_path: Path) -> None:
    source = cuda_of(made_of(problem_of(tmp_path, "torch.tanh(x * x.mean(0))", "torch.randn(8, 16, 16)"))[1])
    assert "Divisor" not in source


def test_threads_take_several_rows(tmp_path: Path) -> None:
    """A row of odd length has no vectors; one element to a thread would leave memory waiting."""
    weight = "self.weight = nn.Parameter(torch.randn(64, 1, 1))"
    problem = problem_of(tmp_path, "torch.tanh(x * self.weight)", "torch.randn(128, 64, 63, 63)", init=weight)
    _, _, emitted = compile_problem(problem, Options(gradients=False))
    assert re.search(r"constexpr int ROWS = [234];", emitted.text)
