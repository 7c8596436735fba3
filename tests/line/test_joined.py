"""Values joined, cut and reshaped between kernels' own work: how many kernels that takes, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

MODEL = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(10)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, {names}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def front_of(tmp_path: Path, body: str, inputs: str) -> Front:
    names = ", ".join("xyz"[: inputs.count("torch.")])
    (tmp_path / "model.py").write_text(MODEL.format(names=names, body=body, inputs=inputs))
    return read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))


def gradients(module: torch.nn.Module, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    result = module(*given)
    by = [*(x for x in given if x.requires_grad), *module.parameters()]
    found = torch.autograd.grad(result.sin().sum(), by, allow_unused=True)
    return result, [g for g in found if g is not None]


# (body, inputs, kernels, calls to PyTorch beside convolutions)
CASES = {
    "parts that are computed": (
        "return torch.cat([x.relu(), y.tanh(), x[:, :3]], 1)",
        "torch.randn(3, 8), torch.randn(3, 5)", 1, 0,
    ),
    "a number of rows that varies": (
        "return torch.cat([x.relu(), y.sigmoid()], 0).softmax(-1)",
        "torch.randn(3, 8), torch.randn(5, 8)", 1, 0,
    ),
    "halves turned round": (
        "n = x.shape[-1] // 2; return x * y.cos() + torch.cat((-x[..., n:], x[..., :n]), -1) * y.sin()",
        "torch.randn(2, 3, 8), torch.randn(2, 3, 8)", 1, 0,
    ),
    "a token in front": (
        "return F.layer_norm(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1), (8,))",
        "torch.randn(2, 6, 8)", 1, 0,
    ),
    "read by statistics": ("return self.norm(torch.cat([self.conv(x), x], 1)).relu()", "torch.randn(2, 4, 7, 6)", 1, 0),
    "in memory, read by statistics": (
        "return self.norm(torch.cat([x, y], 1)).relu()", "torch.randn(2, 4, 7, 6), torch.randn(2, 6, 7, 6)", 1, 0,
    ),
    "in memory, read by what has two results": (
        "return torch.cat([x, y], 1).max(1)[0] * 2", "torch.randn(3, 8), torch.randn(3, 5)", 1, 0,
    ),
    "more parts in memory, read by statistics": (
        "return self.norm(torch.cat([x, x[:, :2], x[:, :2], x[:, 2:]], 1)).relu()", "torch.randn(2, 4, 7, 6)", 1, 1,
    ),
    "a single part": ("return self.conv(torch.cat([x], 1))", "torch.randn(2, 4, 5, 5)", 0, 0),
    "moved for the library alone": (
        "return self.conv(torch.cat([x[:, :1], y], 1))",
        "torch.randn(2, 4, 5, 5), torch.randn(2, 3, 5, 5)", 0, 1,
    ),
    "a part that PyTorch would copy first": (
        "return torch.cat([x.transpose(1, 2).flatten(1), y], 1)", "torch.randn(2, 3, 4), torch.randn(2, 5)", 1, 0,
    ),
    "signs of zeros": ("return 1 / torch.cat([x * 0.0, -(x * 0.0)], 1)", "torch.rand(2, 4)", 1, 0),
    "a softmax over positions, as an image again": (
        "return x.flatten(2).softmax(-1).view_as(x) * x", "torch.randn(2, 3, 4, 5)", 1, 0,
    ),
    "a number made of sizes": ("return x * (x.shape[1] * x.shape[2]) ** -0.5", "torch.randn(2, 3, 4)", 1, 0),
    "an image half as large again": (
        "return F.interpolate(self.conv(x).relu(), scale_factor=1.5, mode='bilinear')",
        "torch.randn(2, 4, 6, 6)", 1, 0,
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    body, inputs, kernels, calls = CASES[case]
    front = front_of(tmp_path, body, inputs)
    made, emitted = front.finish(Choices(own=frozenset()))
    beside = [call for call in made.calls if "conv" not in str(call.node.target)]
    assert (len(made.kernels), len(beside)) == (kernels, calls), [k.name for k in made.kernels]
    original, new = front.problem.model(), load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    new.load_state_dict(original.state_dict())
    same_values(original, new, front.problem.inputs)


def same_values(original: torch.nn.Module, new: torch.nn.Module, draw: Callable[[], list[torch.Tensor]]) -> None:
    given = draw()
    expected, theirs = gradients(original, given)
    result, ours = gradients(new, given)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


SEVERAL = {
    "what is made of a result": ("y = x * 2; return y, y.relu() + y", 1),
    "turned": ("y = x * 2; return y, y.t() + 1", 2),
    "pooled": ("y = x.tanh(); return y, F.max_pool1d(y[None], 3, 1, 1)[0]", 2),
    "summed": ("y = x * 2; return y, y.sum(1)", 1),
}


ALIKE = {
    "beside a softmax of the same rows": ("return x.tanh() + 1, x.softmax(-1)", 1),
    "of a triangle, beside a softmax under a mask": ("return x.triu(1), x.masked_fill(x < 0, -1e9).softmax(-1)", 1),
    "beside sums, which read nothing twice": ("return x * 2, (x * x).sum(-1)", 1),
    "two, beside a norm": ("return x * 2, x.relu(), F.layer_norm(x, (44,))", 1),
    "of something else": ("return y * 2, F.softmax(x, -1)", 2),
    "of another element": ("return x.flip(1) * 2, F.softmax(x, -1)", 2),
    "of a further tensor": ("return x + y, F.softmax(x, -1)", 2),
    "that is made of the other's result": ("p = x.softmax(-1); return p.t() + 1, p", 2),
}


@pytest.mark.parametrize("case", ALIKE, ids=lambda name: name.replace(" ", "-"))
def test_one_look_at_a_tensor(case: str, tmp_path: Path) -> None:
    """What is made of a tensor element by element is written where a reduction reads the same elements."""
    body, kernels = ALIKE[case]
    front = front_of(tmp_path, body, "torch.randn(33, 44), torch.randn(33, 44)")
    made, emitted = front.finish(Choices(), gradients=False)
    assert len(made.kernels) == kernels, [k.name for k in made.kernels]
    original, new = front.problem.model(), load_candidate(emitted.text, "host").build_model(front.problem)
    for rows in (33, 600, 7):
        given = [torch.randn(rows, 44), torch.randn(rows, 44)]
        with torch.no_grad():
            for a, b in zip(new(*given), original(*given), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", SEVERAL, ids=lambda name: name.replace(" ", "-"))
def test_results_made_of_results(case: str, tmp_path: Path) -> None:
    """An element that a kernel writes is at hand there for what is made of it, its neighbours are not."""
    body, kernels = SEVERAL[case]
    front = front_of(tmp_path, body, "torch.randn(33, 44)")
    made, emitted = front.finish(Choices(), gradients=False)
    assert len(made.kernels) == kernels
    x = torch.randn(6, 10)
    got, expected = load_candidate(emitted.text, "host").build_model(front.problem)(x), front.problem.model()(x)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


class Called(TorchDispatchMode):
    """The operators of PyTorch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("made", "copies"),
    [
        ("x.tanh().transpose(1, 2)", False),  # each row of the map is a column of what the kernel makes
        ("F.layer_norm(x, (6,)).transpose(1, 2)", False),
        ("x.tanh().unflatten(1, (5, 1)).permute(0, 2, 3, 1)", False),
        ("x.transpose(1, 2)", True),  # no kernel makes it
    ],
)
def test_a_linear_map_is_given_rows(made: str, copies: bool, tmp_path: Path) -> None:
    """PyTorch would flatten what it is given by a copy, and add the bias in a sweep of its own."""
    (tmp_path / "model.py").write_text(f"""import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(5, 4)

    def forward(self, x):
        return self.map({made}).relu() * 2


def get_inputs():
    return [torch.randn(3, 5, 6)]


def get_init_inputs():
    return []
""")
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    _, emitted = front.finish(Choices())
    original, new = front.problem.model(), load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    new.load_state_dict(original.state_dict())
    with Called() as called:
        new(*front.problem.inputs())
    assert ("clone" in called.names or "add_" in called.names) == copies, called.names
    same_values(original, new, front.problem.inputs)
