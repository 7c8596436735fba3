"""What the emitted file promises, and golden files of its text (`pytest --update-golden` writes them anew)."""

from __future__ import annotations

import ast
import copy
import re
import sys
from pathlib import Path

import pytest
import torch

import fusewright
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.frontend.source import without_forbidden_remarks
from fusewright.ir.names import FORBIDDEN
from fusewright.options import Options

MODELS = Path(__file__).parents[1] / "models"
GOLDEN = Path(__file__).parents[1] / "golden"


def emitted(name: str) -> str:
    return compile_problem(load_problem(MODELS / f"{name}.py"), Options())[2].text


@pytest.mark.parametrize("name", ["softmax_rows", "batch_norm_train", "transposed_mean", "two_outputs", "running_sums"])
def test_text_is_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    text, golden = emitted(name), GOLDEN / f"{name}_new.py.txt"
    if request.config.getoption("--update-golden"):
        golden.write_text(text)
    assert golden.exists(), "no golden file: run pytest --update-golden and read what it wrote"
    assert text == golden.read_text(), "the emitted text changed: read the difference, then run pytest --update-golden"


def test_it_runs_from_a_string_with_no_file_and_no_fusewright() -> None:
    text = emitted("batch_norm_train")
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        (node.module or "").split(".")[0] for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
    }
    assert imported <= {"torch", *sys.stdlib_module_names}
    space: dict[str, object] = {}
    exec(text, space)
    torch.manual_seed(3)
    new = space["ModelNew"](*space["get_init_inputs"]())  # type: ignore[operator]
    torch.manual_seed(3)
    old = space["Model"](*space["get_init_inputs"]())  # type: ignore[operator]
    assert list(new.state_dict()) == list(old.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(new.state_dict().values(), old.state_dict().values(), strict=True))
    inputs = space["get_inputs"]()  # type: ignore[operator]
    torch.testing.assert_close(copy.deepcopy(new)(*inputs), old(*inputs))  # on the CPU: the original operators


def test_no_word_that_harnesses_reject_is_added() -> None:
    source = (MODELS / "softmax_rows.py").read_text()
    added = emitted("softmax_rows").removeprefix(without_forbidden_remarks(source))
    assert FORBIDDEN.search(added) is None
    assert added.isascii()


def test_remarks_with_such_words_are_left_out() -> None:
    source = (
        '"""We try hard."""\nimport torch\n\n\nclass A:\n    """threading of needles"""\n\n'
        "    x = 1  # pass it on\n    y = 'kept'  # fine\n\n    def f(self):\n        '''except here'''\n"
    )
    cleaned = without_forbidden_remarks(source)
    assert FORBIDDEN.search(cleaned) is None
    assert "# fine" in cleaned and "x = 1" in cleaned
    space: dict[str, object] = {}
    exec(cleaned, space)
    assert space["A"]().f() is None  # type: ignore[operator]


def test_every_kernel_says_what_it_replaces() -> None:
    text = emitted("batch_norm_train")
    names = re.findall(r'"(\w+_(?:fwd|grad))",', text)
    assert len(names) >= 2
    for name in names:
        lines = r"(replaces|statistics of)\n//   \S+\.py:\d+  .*  <- \w+"
        assert re.search(rf"^// {name} ({lines}|replaces the gradients of \S+\.py:\d+)", text, flags=re.MULTILINE), name


def test_a_module_can_be_optimised_in_python() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    inputs = [torch.randn(4, 8)]
    new = fusewright.optimize(module, inputs, target="host", verify=False)
    assert isinstance(new, torch.nn.Sequential)
    assert all(a is b for a, b in zip(new.parameters(), module.parameters(), strict=True))
    torch.testing.assert_close(new(*inputs), module(*inputs))
    with torch.no_grad():
        module[0].weight.mul_(2.0)
    torch.testing.assert_close(new(*inputs), module(*inputs))
