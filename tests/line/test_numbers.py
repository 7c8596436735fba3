"""Kernels that differ only in numbers are one: the steps of a loop over time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fusewright.emit.numbers import joined, shared_texts
from fusewright.kernels.text import KernelText
from fusewright.options import Options
from fusewright.pipeline import compile_problem, optimize
from fusewright.problem import load_problem

LOOP = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(5 + 6, 6)

    def forward(self, x, hidden):
        for t in range(x.size(0)):
            hidden = torch.tanh(self.step(torch.cat((x[t], hidden), 1)))
        return hidden


def get_inputs():
    return [torch.randn(7, 3, 5), torch.randn(3, 6)]


def get_init_inputs():
    return []
"""


def test_the_steps_of_a_loop_share_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(LOOP)
    _, made, emitted = compile_problem(load_problem(path), Options(target="host"))
    joining = [kernel.name for kernel in made.kernels if "cat" in kernel.name]
    launched = re.findall(r'_launch\("(\w*cat\w*)(?<!gradient)", .*?(\d+)\)', emitted.text)
    assert len(joining) == 6  # the first step is joined by PyTorch
    assert len({name for name, _ in launched}) == 1 and len({number for _, number in launched}) == 6
    run = optimize(load_problem(path), Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))


def kernel(number: int, line: str = "const Index at = {n} * rows;", name: str = "") -> KernelText:
    name = name or f"k{number}"
    source = f"""// {name} replaces {number}
template <typename Index>
__global__ void __launch_bounds__(256) {name}_kernel(const float* __restrict__ x_ptr, float* __restrict__ y_ptr,
    Index rows) {{
  {line.format(n=number)}
  y_ptr[at] = x_ptr[at] * 0.5f + 1e-5f;
}}

extern "C" const char* {name}(const float* x, float* y, long long rows, void* stream) {{
  {name}_kernel<int><<<dim3(256), dim3(256), 0, static_cast<cudaStream_t>(stream)>>>(x, y, rows);
  return launch_error();
}}
"""
    return KernelText(name, source, ("x", "y"), ("rows",), own=frozenset({name, f"{name}_kernel"}))


def test_numbers_become_arguments() -> None:
    found = shared_texts([kernel(n) for n in (30, 41, 52)])
    assert {name: (text.name, text.sizes) for name, text in found.items()} == {
        "k30": ("k30", ("rows", "30")), "k41": ("k30", ("rows", "41")), "k52": ("k30", ("rows", "52"))
    }  # fmt: skip
    source = found["k30"].source
    assert "const Index at = step_1 * rows;" in source and "    Index rows, Index step_1) {" in source
    assert "long long rows, long long step_1, void* stream) {" in source and ">>>(x, y, rows, step_1);" in source
    assert "__launch_bounds__(256)" in source and "0.5f + 1e-5f" in source


def test_a_launcher_over_two_lines() -> None:
    broken = [replace(text, source=text.source.replace(", void* stream", ",\n    void* stream")) for text in map(kernel, (30, 41, 52))]
    assert "long long rows, long long step_1,\n    void* stream) {" in shared_texts(broken)["k30"].source


@pytest.mark.parametrize(
    "line", ["const Index at = rows / {n};", "const Index at = rows % {n};", "float held[{n}]; const Index at = rows;", "f<{n}>(rows);"]
)
def test_what_the_compiler_should_know_stays_a_number(line: str) -> None:
    assert joined([kernel(n, line) for n in (30, 41, 52)]) == {}


def test_two_are_written_out() -> None:
    assert shared_texts([kernel(30), kernel(41)]) == {}
    assert len(shared_texts([kernel(30), kernel(41), kernel(52)])) == 3
