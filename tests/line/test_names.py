"""Every name in an emitted file is defined: at full sizes other kernels are chosen than at those the host can run."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kernels.frame import made_of, problem_of
from torch import nn
from torch.nn import functional as F

from fusewright.autograd import plan_joint
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.emit import emit
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.ir.names import RESERVED, value_name
from fusewright.ops.lower import lower
from fusewright.options import Options
from fusewright.report.code import cuda_source
from fusewright.schedule.naming import BACKWARD, FORWARD, free, joined
from fusewright.schedule.planner import plan
from fusewright.target.helpers import device_names

ROOT = Path(__file__).parent.parent.parent
CHANNELS_LAST = Choices(own=frozenset(), channels_last=True)
MODELS = {
    "two convolutions of our own": ("zoo/network/residual_block.py", Choices()),
    "stored": ("benchmarks/chains/s1005_conv_transpose2d_divide_silu_batch_norm.py", Choices()),
    "channels-last": ("benchmarks/chains/s1033_conv_transpose2d_batch_norm_clamp_silu.py", CHANNELS_LAST),
    "a warpgroup": ("examples/conv3d_maxpool_logsumexp.py", Choices()),
}


@pytest.mark.parametrize("case", MODELS, ids=lambda name: name.replace(" ", "-"))
def test_every_name_is_defined(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEWRIGHT_ZOO", raising=False)
    file, choices = MODELS[case]
    _, emitted = read_problem(load_problem(ROOT / file), Options(target="host")).finish(choices)
    (tmp_path / "new.py").write_text(emitted.text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path / "new.py")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


KERNELS = {
    "pointwise": (lambda a, b: torch.tanh(a) * b, (33, 40), (40,)),
    "transposed": (lambda a, b: a.transpose(1, 2) * b, (4, 64, 64), (64,)),
    "rows": (lambda a, b: torch.softmax(a * b, -1), (64, 1000), (1000,)),
    "long rows": (lambda a, b: F.layer_norm(a * b, (60000,)), (64, 60000), (60000,)),
    "columns": (lambda a, b: (a * b).sum(1), (64, 130, 1030), (1030,)),
    "register columns": (lambda a, b: torch.softmax(a * b, 1), (64, 64, 1024), (1024,)),
    "split": (lambda a, b: (a * b).sum(), (640, 10300), (10300,)),
    "scan along": (lambda a, b: torch.cumsum(a * b, -1), (640, 1000), (1000,)),
    "scan across": (lambda a, b: torch.cumsum(a * b, 0), (640, 1000), (1000,)),
    "pool": (lambda a, b: F.max_pool2d(a * b, 3, 2), (16, 32, 64, 64), (64,)),
    "joined": (lambda a, b: torch.cat([F.pad(a, (1, 2)), b], -1), (16, 64), (16, 9)),
    "rolled": (lambda a, b: torch.roll(a, 3, 1) * b, (16, 64), (64,)),
    "resized": (lambda a, b: F.interpolate(a, scale_factor=2, mode="bilinear") * b, (2, 3, 16, 16), (32,)),
}  # fmt: skip


class Named(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, aardvark: torch.Tensor, buffalo: torch.Tensor) -> torch.Tensor:
        return self.function(aardvark, buffalo)


@pytest.mark.parametrize("case", KERNELS, ids=lambda name: name.replace(" ", "-"))
def test_no_value_is_called_as_a_variable_of_a_template(case: str) -> None:
    """A model's input may be called anything: what kernels call their own variables is taken, or made of a value's name."""
    function, *shapes = KERNELS[case]
    model = Named(function)
    made = plan(lower(capture(model, [torch.zeros(shape) for shape in shapes])))
    source = cuda_source(emit(plan_joint(made, model, gradients=False), "", model).text)
    kernels = "\n".join(part for part in source.split("\n\n") if "__global__" in part and "_kernel(" in part)
    declared = re.findall(r"\b(?:int|Index|bool|float|unsigned|long long) (?:const )?(\w+)(?= =|;|\[|:|,|\))", kernels)
    values = tuple(made.lowered.prims)
    own = {re.sub(r"_\d+$", "", name) for name in declared if not name.startswith((*values, "source"))}
    assert own, "nothing was looked at"
    may_be = {name for name in own - RESERVED if value_name(name) == name}
    assert not may_be, f"{may_be} may be the name of a model's input"


def test_what_is_computed_without_gradients_stands_where_it_was_written(tmp_path: Path) -> None:
    """The exporter traces such a part again from a text of its own, and says so."""
    lines = ["with torch.no_grad():", "    scale = x.abs().amax(1, keepdim=True)"]
    _, text, _, _ = made_of(problem_of(tmp_path, "x / scale", "torch.randn(5, 6)", lines=lines))
    assert "eval_with_key" not in text
    assert re.search(r"//   model.py:\d+  scale = x.abs\(\).amax\(1, keepdim=True\)  <- abs, amax\n", text)


@pytest.mark.parametrize(
    ("init", "forward", "shape", "names"),
    [
        ("self.conv = nn.Conv2d(4, 8, 3)", "F.max_pool2d(torch.tanh(self.conv(x)), 2)", "2, 4, 9, 9", {"conv_pool_tanh_fwd"}),
        ("pass", "torch.relu(x * 2 + 1)", "4, 8", {"relu_fwd"}),
        ("pass", "x * 2 + 1", "4, 8", {"mul_add_fwd"}),
        ("self.norm = nn.LayerNorm(8)", "self.norm(x).exp().sin().cos().amax(1)", "4, 8", {"layer_norm_max_fwd"}),
    ],
)  # fmt: skip
def test_kernels_are_named_for_their_role(init: str, forward: str, shape: str, names: set[str], tmp_path: Path) -> None:
    _, text, _, _ = made_of(problem_of(tmp_path, forward, f"torch.randn({shape})", init=init))
    found = set(re.findall(r'_launch\("(\w+_fwd)"', text))
    assert found and found <= names


def test_gradients_are_named_for_what_they_are_of(tmp_path: Path) -> None:
    init = "self.shift = nn.Parameter(torch.randn(6))"
    _, text, _, _ = made_of(problem_of(tmp_path, "torch.softmax(x + self.shift, 1)", "torch.randn(5, 6)", init=init), gradients=True)
    assert "shift_grad" in re.findall(r'_launch\("(\w+_grad)"', text)


def test_names_of_kernels_are_short_and_no_helpers() -> None:
    assert joined(["a" * 30, "b" * 30]) == "a" * 30 + "_b"
    assert joined(["conv", "pool", "norm", "tanh", "lse"]) == "conv_pool_to_lse"
    taken: set[str] = set()
    assert [free("sum", FORWARD, taken) for _ in range(3)] == ["sum_fwd", "sum_2_fwd", "sum_3_fwd"]
    assert not any(name.endswith((FORWARD, BACKWARD)) for name in device_names())


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "golden").glob("*.txt")), ids=lambda path: path.name.partition(".")[0])
def test_no_value_hides_a_builtin_that_its_function_calls(path: Path) -> None:
    """An input may be called `map`; the function that it is given to calls that one."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    called = {node.id for function in functions for node in ast.walk(function) if isinstance(node, ast.Name) and hasattr(builtins, node.id)}
    assert {name for name in called if name.islower()} - RESERVED - {"staticmethod"} == set()
