"""Kernels that differ only in numbers are one: the steps of a loop over time."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fusewright.codegen.loops.text import Definition, KernelText, Parameter
from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.emit.numbers import shared_texts
from fusewright.frontend.problem import load_problem
from fusewright.ir import functions as fn
from fusewright.ir.expr import Name, element, select
from fusewright.ir.stmt import Assign, Do, Launch, Statement, array, const
from fusewright.options import Options

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


AT, ROWS, X, Y = (Name(name) for name in ("at", "rows", "x_ptr", "y_ptr"))


def by_factor(number: int) -> list[Statement]:
    return [const("Index", "at", number * ROWS)]


def kernel(number: int, lines: Callable[[int], list[Statement]] = by_factor, more: tuple[Parameter, ...] = ()) -> KernelText:
    name = f"k{number}"
    pointers = [Parameter("float", "x_ptr", True, True, True), Parameter("float", "y_ptr", False, True, True), *more]
    stored = Assign(element(Y, AT), element(X, AT) * 0.5 + 1e-5)
    body = (*lines(number), stored)
    main = Definition(f"{name}_kernel", (*pointers, Parameter("Index", "rows")), body, "typename Index", "256")
    handed = [Parameter("float", "x", True, True), Parameter("float", "y", pointer=True), *more, Parameter("long long", "rows")]
    launch = Launch(f"{name}_kernel", ("int",), fn.dim3(256), fn.dim3(256), (Name("x"), Name("y"), ROWS))
    launcher = Definition(name, (*handed, Parameter("void", "stream", pointer=True)), (launch,))
    return KernelText(name, (main, launcher), ("x", "y"), ("rows",), own=frozenset({name, f"{name}_kernel"}))


def test_numbers_become_arguments() -> None:
    found = shared_texts([kernel(n) for n in (30, 41, 52)])
    assert {name: (text.name, text.sizes) for name, text in found.items()} == {
        "k30": ("k30", ("rows", "30")), "k41": ("k30", ("rows", "41")), "k52": ("k30", ("rows", "52"))
    }  # fmt: skip
    source = " ".join(found["k30"].source.split())  # whatever line it is in
    assert "const Index at = step_1 * rows;" in source and "Index rows, Index step_1) {" in source
    assert "long long rows, long long step_1, void* stream) {" in source and ">>>(x, y, rows, step_1);" in source
    assert "__launch_bounds__(256)" in source and "0.5f + 9.99999975e-06f" in source


def test_a_launcher_over_two_lines() -> None:
    many = tuple(Parameter("float", f"tensor_{i}", pointer=True) for i in range(8))
    source = shared_texts([kernel(n, more=many) for n in (30, 41, 52)])["k30"].source
    assert "long long rows, long long step_1," in source.replace("\n   ", "") and "rows, step_1);" in source


@pytest.mark.parametrize(
    "lines",
    [
        lambda n: [const("Index", "at", ROWS / n)],
        lambda n: [const("Index", "at", ROWS % n)],
        lambda n: [array("float", "held", n), const("Index", "at", ROWS)],
        lambda n: [Do(fn.merge_row.of(n)(ROWS)), const("Index", "at", ROWS)],
        lambda n: [const("Index", "at", select(n > ROWS, 0, 1))],
    ],
)
def test_what_the_compiler_should_know_stays_a_number(lines: Callable[[int], list[Statement]]) -> None:
    assert shared_texts([kernel(n, lines) for n in (30, 41, 52)]) == {}


def test_two_are_written_out() -> None:
    assert shared_texts([kernel(30), kernel(41)]) == {}
    assert len(shared_texts([kernel(30), kernel(41), kernel(52)])) == 3
