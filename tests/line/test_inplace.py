"""New values of buffers are written straight into them, where that is safe; what the model computes is the original's."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

HEAD = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn({shape})]\n\n\ndef get_init_inputs():\n    return []\n"

NORM = ("self.n = nn.BatchNorm2d(6)", "return torch.relu(self.n(x))", "3, 6, 5, 4")
LARGE_NORM = (
    "self.n = nn.BatchNorm2d(6)",
    "return torch.relu(self.n(x))",
    "4, 6, 220, 220",
)  # statistics by a split kernel
COLUMNS = ("self.n = nn.BatchNorm1d(40)", "return torch.relu(self.n(x))", "9, 40")
TWICE = ("self.n = nn.BatchNorm2d(6)", "return self.n(torch.relu(self.n(x)))", "3, 6, 5, 4")
BUFFER = 'self.register_buffer("m", torch.linspace(-1.0, 1.0, 5))'
ELEMENTWISE = (
    'self.register_buffer("m", torch.ones(4, 5))',
    "self.m.mul_(0.9).add_(x.detach(), alpha=0.1)\n        return torch.tanh(x)",
    "4, 5",
)
OLD_VALUE = (
    BUFFER,
    "old = self.m.clone()\n        self.m.mul_(0.9).add_(0.1 * x.detach().mean(0))\n        return torch.tanh(x) * old",
    "7, 5",
)
FLIPPED = (
    BUFFER,
    "self.m.copy_(0.9 * self.m.flip(0) + 0.1 * x.detach().mean(0))\n        return torch.tanh(x)",
    "7, 5",
)
NEW_VALUE = (BUFFER, "self.m.mul_(0.9).add_(0.1 * x.detach().mean(0))\n        return x - self.m", "7, 5")
RETURNED = (BUFFER, "self.m.mul_(0.9).add_(0.1 * x.detach().mean(0))\n        return x * 2.0, self.m", "7, 5")
SWAPPED = (
    'self.register_buffer("m", torch.ones(7, 5))\n        self.register_buffer("k", torch.zeros(7, 5))',
    "a, b = self.m + x.detach(), self.k - x.detach()\n        self.m.copy_(b)\n        self.k.copy_(a)\n        return torch.tanh(x)",
    "7, 5",
)
ONLY_BUFFERS = (
    'self.w = nn.Linear(5, 3)\n        self.register_buffer("m", torch.ones(5))',
    "self.m.mul_(0.9).add_(0.1 * x.detach().mean(0))\n        return self.w(x)",
    "7, 5",
)
MULTIPLIED = (  # by a library call, whose backward wants the old value, through a view of it
    'self.w = nn.Linear(5, 5)\n        self.register_buffer("m", torch.ones(5, 9))',
    "y = self.w(x) @ self.m[:, 1:].clone()\n        self.m.copy_(0.9 * self.m + x.detach().mean())\n        return torch.tanh(y)",
    "7, 5",
)
MODELS = {name.lower(): value for name, value in list(globals().items()) if name.isupper() and isinstance(value, tuple)}
IN_PLACE = {"norm": 2, "large_norm": 2, "columns": 2, "elementwise": 1, "only_buffers": 1}  # buffers with no copy_
COPIED = {"flipped": 1, "new_value": 1}


def built(name: str, folder: Path) -> SimpleNamespace:
    made, forward, shape = MODELS[name]
    path = folder / f"{name}.py"
    path.write_text(f"{HEAD}        {made}\n\n    def forward(self, x):\n        {forward}\n{TAIL.format(shape=shape)}")
    problem = load_problem(path)
    text = compile_problem(problem, Options())[2].text
    candidate = load_candidate(text, "host", name=path.name)
    old, new = problem.model(), candidate.build_model(problem)
    new.load_state_dict(old.state_dict())
    return SimpleNamespace(text=text, old=old, new=new, problem=problem, candidate=candidate)


def same_state(a: torch.nn.Module, b: torch.nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_repeated_forwards_leave_what_the_original_leaves(name: str, tmp_path: Path) -> None:
    made = built(name, tmp_path)
    for seed in range(3):
        torch.manual_seed(seed)
        (x,) = made.problem.inputs()
        x = x + seed
        y = x.clone()
        with made.candidate.launches() as launched:
            got = made.new(x.requires_grad_())
        expected = made.old(y.requires_grad_())
        assert launched
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        same_state(made.new, made.old)
        loss, reference = (
            sum(t.square().sum() for t in (r if isinstance(r, tuple) else (r,))) for r in (got, expected)
        )
        loss.backward()
        reference.backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_no_copy_where_it_is_safe_and_a_copy_where_it_is_not(name: str, tmp_path: Path) -> None:
    text = built(name, tmp_path).text
    if name in IN_PLACE:
        assert "copy_(" not in text.split("class ModelNew")[1]
    if name in COPIED:
        assert text.split("class ModelNew")[1].count("copy_(") == COPIED[name]


@pytest.mark.parametrize("name", ["norm", "elementwise"])
def test_autograd_learns_of_a_change_where_the_original_tells_it(name: str, tmp_path: Path) -> None:
    made = built(name, tmp_path)
    (x,) = made.problem.inputs()
    for model in (made.new, made.old):
        before = [b._version for b in model.buffers()]
        model(x)
        model.changed = [b._version > v for b, v in zip(model.buffers(), before, strict=True)]
    assert made.new.changed == made.old.changed


def test_a_buffer_that_is_not_contiguous_is_updated_too(tmp_path: Path) -> None:
    made = built("norm", tmp_path)
    for model in (made.new, made.old):
        model.n.running_mean = torch.zeros(12)[::2]
    (x,) = made.problem.inputs()
    torch.testing.assert_close(made.new(x), made.old(x), rtol=1e-4, atol=1e-5)
    same_state(made.new, made.old)


def test_a_copied_model_has_buffers_of_its_own(tmp_path: Path) -> None:
    made = built("norm", tmp_path)
    twin = copy.deepcopy(made.new)
    (x,) = made.problem.inputs()
    made.new(x)
    assert twin.n.running_mean.abs().max() == 0 < made.new.n.running_mean.abs().max()


UNDER_NO_GRAD = {  # what changes, and forward's other input
    "an average": ("self.m.mul_(0.9).add_(y.mean(0), alpha=0.1)", ""),
    "a part of one": ("self.m[:3].lerp_(y.mean(0)[:3], 0.1)", ""),
    "a copy": ("self.m.copy_(0.9 * self.m + 0.1 * y.mean(0))", ""),
    "an input": ("m.mul_(0.9).add_(y.mean(0), alpha=0.1)", ", torch.ones(5)"),
}


@pytest.mark.parametrize("case", UNDER_NO_GRAD, ids=lambda name: name.replace(" ", "-"))
def test_what_changes_without_gradients_leaves_training_its_kernels(case: str, tmp_path: Path) -> None:
    """Of what was trained: the loss has no path through the new value. Where the changed tensor itself asks for a gradient, it has."""
    change, other = UNDER_NO_GRAD[case]
    path = tmp_path / "model.py"
    given = "x, m" if other else "x"
    body = f"with torch.no_grad():\n            {change}\n        return torch.tanh(y) * {'m' if other else 'self.m'}"
    made = f"self.w = nn.Linear(5, 5)\n        {BUFFER}\n\n    def forward(self, {given}):\n        y = self.w(x).relu()"
    path.write_text(f"{HEAD}        {made}\n        {body}\n{TAIL.format(shape='7, 5').replace(')]', f'){other}]')}")
    problem = load_problem(path)
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host", name=path.name)
    old, new = problem.model(), candidate.build_model(problem)
    for asks in (False, True):
        given = [[t.clone() for t in problem.inputs()] for _ in range(2)]
        asking = [inputs[-1] if other else model.m for model, inputs in zip((old, new), given, strict=True)]
        for tensor in asking if asks else ():
            tensor.requires_grad_()
        with candidate.launches() as launched:
            for model, inputs in zip((old, new), given, strict=True):
                model.zero_grad()
                model(*inputs).square().sum().backward()
        assert any(name.endswith("_grad") for name in launched) == (not asks)
        torch.testing.assert_close(new.w.weight.grad, old.w.weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(asking[1].grad, asking[0].grad)
        torch.testing.assert_close(given[1][-1], given[0][-1])
        same_state(new, old)


def test_a_part_of_a_buffer_that_becomes_a_trained_value(tmp_path: Path) -> None:
    """What the copy takes the place of is no part of the region: nothing that foresees its memory may read it."""
    path = tmp_path / "model.py"
    made = 'self.w = nn.Linear(5, 5)\n        self.register_buffer("m", torch.ones(7, 9, 5))\n\n    def forward(self, x):\n'
    body = "k = self.w(x).relu()\n        self.m[:, 2:4] = k[:, None]\n        return (self.m * 2).softmax(1) + k.mean()"
    path.write_text(f"{HEAD}        {made}        {body}\n{TAIL.format(shape='7, 5')}")
    problem = load_problem(path)
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host", name=path.name)
    old, new = problem.model(), candidate.build_model(problem)
    (x,) = problem.inputs()
    with torch.no_grad(), candidate.launches() as launched:
        torch.testing.assert_close(new(x), old(x), rtol=1e-4, atol=1e-5)
    assert launched
    same_state(new, old)


def test_what_is_reached_by_data(tmp_path: Path) -> None:
    """The memory without gradients, as code from before `detach` has it: averages in a buffer, a straight-through gradient."""
    path = tmp_path / "model.py"
    made = 'self.w = nn.Linear(5, 5)\n        self.register_buffer("m", torch.ones(5))\n\n    def forward(self, x):\n'
    body = "y = self.w(x).tanh()\n        self.m.data.mul_(0.9).add_(y.data.mean(0), alpha=0.1)\n"
    body += "        return (y + (y.round() - y).data) * self.w.bias.data"
    path.write_text(f"{HEAD}        {made}        {body}\n{TAIL.format(shape='7, 5')}")
    problem = load_problem(path)
    candidate = load_candidate(compile_problem(problem, Options())[2].text, "host", name=path.name)
    old, new = problem.model(), candidate.build_model(problem)
    (x,) = problem.inputs()
    with candidate.launches() as launched:
        for model in (old, new):
            model(x).square().sum().backward()
    assert any(name.endswith("_grad") for name in launched)
    torch.testing.assert_close(new.w.weight.grad, old.w.weight.grad, rtol=1e-4, atol=1e-5)
    same_state(new, old)
