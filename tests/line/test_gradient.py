"""The graph of a gradient computes what autograd computes, at sizes other than those it was traced at."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusewright.autograd.trace import gradient_graph
from fusewright.driver.pipeline import compile_problem, optimize
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.ir.graph import Graph, Ref
from fusewright.ir.interpret import interpret
from fusewright.laws.rewrite import rewrite
from fusewright.ops.lower import lower
from fusewright.options import Options
from fusewright.schedule.bit_exact import bit_exact
from fusewright.schedule.planner import plan
from fusewright.verify.candidate import load_candidate


class Of(nn.Module):
    """A function of an image, with a weight and a bias for each of its 6 channels."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function
        self.weight, self.bias = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.randn(6))
        self.register_buffer("mean", torch.randn(6))
        self.register_buffer("var", torch.rand(6) + 0.5)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight, self.bias, self.mean, self.var)


def at(v: Tensor) -> Tensor:
    return v[:, None, None]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "activations": lambda x, w, b, m, v: torch.tanh(F.gelu(x) * at(w)) + F.silu(F.elu(x + at(b))),
    "hard activations": lambda x, w, b, m, v: F.hardswish(x * at(w)) + F.leaky_relu(x) * F.hardtanh(x) + F.relu(x + at(b)),
    "more activations": lambda x, w, b, m, v: F.mish(x) * F.softplus(x * at(w)) + F.softsign(x) + torch.sigmoid(x - at(b)),
    "softmax": lambda x, w, b, m, v: torch.softmax(x * at(w), 1) * torch.log_softmax(x + at(b), -1),
    "logsumexp": lambda x, w, b, m, v: torch.logsumexp(x * at(w), 1),
    "sums": lambda x, w, b, m, v: (x * at(w)).mean((2, 3)).sum(0) + (x * x).sum(),
    "extremes": lambda x, w, b, m, v: x.amax((2, 3)) * w + x.flatten(1).amin() + (x * at(w)).max(2).values.sum(),
    "variance": lambda x, w, b, m, v: x.var((2, 3)) + (x * at(w)).std(1).mean(),
    "norm of vectors": lambda x, w, b, m, v: x * at(w) / torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "group norm": lambda x, w, b, m, v: torch.relu(F.group_norm(x, 3, w, b)),
    "group norm without weights": lambda x, w, b, m, v: F.group_norm(x * at(w), 2),
    "instance norm": lambda x, w, b, m, v: torch.tanh(F.instance_norm(x, weight=w, bias=b)),
    "layer norm": lambda x, w, b, m, v: F.layer_norm(x.permute(0, 2, 3, 1), (6,), w, b),
    "batch norm": lambda x, w, b, m, v: torch.relu(F.batch_norm(x, None, None, w, b, True)),
    "batch norm in eval": lambda x, w, b, m, v: torch.relu(F.batch_norm(x, m, v, w, b, False)),
    "views": lambda x, w, b, m, v: torch.cat([x.flatten(2).transpose(1, 2) * w, x.flatten(2).mT], 1)[:, 1:].flip(1),
    "pools": lambda x, w, b, m, v: F.max_pool2d(x * at(w), 2) + F.avg_pool2d(x, 2),
    "convolution": lambda x, w, b, m, v: torch.tanh(F.conv2d(x, w.expand(4, 6)[:, :, None, None] * 0.3)),
    "where": lambda x, w, b, m, v: torch.where(x > 0, x * at(w), x.clamp(-0.5, 0.5)).masked_fill(x > 1.5, 0.0) ** 2,
    "running sums": lambda x, w, b, m, v: torch.cumsum(x * at(w), 3).flip(3) + torch.cumsum((x + at(b)).flip(2), 2).flip(2),
    "running logsumexp": lambda x, w, b, m, v: torch.logcumsumexp(x * at(w), 1),
    "two results": lambda x, w, b, m, v: (torch.exp(x * at(w)), (x + at(b)).sum(1)),
    "broadcast": lambda x, w, b, m, v: x * x.mean((2, 3), keepdim=True) + at(w) * at(b),
}


def derived(model: nn.Module, x: Tensor, wanted: list[str]) -> tuple[Graph, Graph, list[str]]:
    graph = capture(model, [x])
    nodes = [n for n in graph.nodes if not n.is_leaf]
    inner = {n.name for n in nodes}
    arguments = list(dict.fromkeys(i for n in nodes for i in n.inputs if i not in inner))
    outputs = [o.value.name for o in graph.outputs if isinstance(o.value, Ref)]
    found = gradient_graph(graph, nodes, arguments, outputs, [a for a in arguments if graph[a].args[0] in wanted])
    assert found is not None
    return graph, found, arguments


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wanted", [["weight", "bias"], ["weight", "bias", 0]], ids=["parameters", "all"])
def test_equals_autograd(name: str, wanted: list[Any]) -> None:
    torch.manual_seed(0)
    model = Of(FUNCTIONS[name]).double()
    graph, found, arguments = derived(model, torch.randn(3, 6, 8, 10, dtype=torch.float64), wanted)
    rewritten, _ = rewrite(found, Options())
    plan(lower(rewritten))  # it can be planned
    for shape in ((3, 6, 8, 10), (5, 6, 12, 6)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        known = {**dict(model.named_parameters()), **dict(model.named_buffers()), 0: x}
        values = [known[graph[a].args[0]] for a in arguments]
        results = model(x)
        results = list(results) if isinstance(results, tuple) else [results]
        upstream = [torch.randn_like(r) for r in results]
        by = [known[graph[a].args[0]] for a in arguments if graph[a].args[0] in wanted]
        expected = torch.autograd.grad(results, by, upstream, allow_unused=True)
        for version in (found, rewritten):
            with torch.no_grad():
                got = interpret(version, model, [*values, *upstream])
            for mine, theirs in zip(got, expected, strict=True):
                if theirs is None:
                    assert mine is None
                else:
                    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_halves_are_summed_in_float() -> None:
    model = Of(FUNCTIONS["group norm"]).to(torch.bfloat16)
    _, found, _ = derived(model, torch.randn(3, 6, 8, 10, dtype=torch.bfloat16), ["weight", "bias"])
    sums = [n for n in found.nodes if "sum" in str(n.target)]
    assert sums and all(n.dtype is torch.float32 for n in sums)
    assert all(found[o.value.name].dtype is torch.bfloat16 for o in found.outputs)


def test_what_cannot_be_differentiated_is_declined() -> None:
    model = Of(lambda x, w, b, m, v: torch.argmax(x * at(w), 1))
    graph = capture(model, [torch.randn(2, 6, 4, 4)])
    nodes = [n for n in graph.nodes if not n.is_leaf]
    assert gradient_graph(graph, nodes, ["x", "weight"], [nodes[-1].name], ["weight"]) is None


PARTS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6))

    def forward(self, x):
        sizes = x.abs()
        first = torch.sort(sizes, -1).values
        with torch.no_grad():
            largest = (x * self.weight).amax(-1, keepdim=True)
        learned = torch.tanh(x * self.weight) + largest
        return learned, first, x / (x.abs() + 1), (learned > 0).float(), learned.detach() * 2, first * x.abs(), largest


def get_inputs():
    return [torch.randn(5, 6)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("of_weight", [False, True])
def test_results_have_gradients_where_the_originals_do(of_input: bool, of_weight: bool, tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text(PARTS)
    problem = load_problem(path)
    new = load_candidate(compile_problem(problem, Options())[2].text, "host", name="parts.py").build_model(problem)
    old = problem.model()
    new.load_state_dict(old.state_dict())
    x = problem.inputs()[0]
    found = []
    for model in (new, old):
        model.weight.requires_grad_(of_weight)
        given = x.clone().requires_grad_(of_input)
        results = model(given)
        wanted = [t for t in (given, model.weight) if t.requires_grad]
        smooth = [r for r in results if r.requires_grad]
        gradients = torch.autograd.grad([r.sum() for r in smooth], wanted) if wanted else ()
        found.append(([r.requires_grad for r in results], [*results, *gradients]))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-5)


DETACHED = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.first(x)
        again = self.second(y.detach().unsqueeze(0)).squeeze(0)
        fixed = F.linear(x, self.first.weight.detach())
        return torch.tanh(again + fixed) * y, torch.matmul(y, y.detach().t()).sin(), y.detach()


def get_inputs():
    return [torch.randn(5, 6)]


def get_init_inputs():
    return []
"""


def test_library_calls_are_given_what_was_detached_without_its_gradient(tmp_path: Path) -> None:
    """Also through a view of it: what was detached is in memory with what has the gradient."""
    path = tmp_path / "detached.py"
    path.write_text(DETACHED)
    problem = load_problem(path)
    new = load_candidate(compile_problem(problem, Options())[2].text, "host", name="detached.py").build_model(problem)
    old = problem.model()
    new.load_state_dict(old.state_dict())
    (x,) = problem.inputs()
    found = []
    for model in (new, old):
        results = model(x)
        gradients = torch.autograd.grad([r.sum() for r in results if r.requires_grad], list(model.parameters()))
        found.append(([r.requires_grad for r in results], [*results, *gradients]))
    assert found[0][0] == found[1][0] == [True, True, False]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-5, atol=1e-5)


MAXIMA = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 1, 1)), nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x):
        y = x * self.weight + self.bias
        return F.gelu(y).amax(1), torch.relu(y * y - 0.3).amin((2, 3)), torch.maximum(y, x).max(), F.silu(F.max_pool2d(y, 2)).amax(1)


def get_inputs():
    return [torch.randn(3, 6, 12, 12)]


def get_init_inputs():
    return []
"""


def test_values_that_are_compared_are_computed_alike(tmp_path: Path) -> None:
    """The gradient of a maximum goes where the value equals it, also in another kernel than the one that found it."""
    path = tmp_path / "maxima.py"
    path.write_text(MAXIMA)
    run = optimize(load_problem(path), Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    assert "_CUDA_GRADIENTS = " in run.text
    backward = run.text[run.text.index("_CUDA_GRADIENTS = ") :]
    assert re.search(r"= exactly\(exactly\(\w+(\[v\])?\) \* exactly\(weight\w*\)\);", backward)


def test_what_may_not_be_alike_is_declined() -> None:
    """Functions of halves are the special unit's in one kernel and not in another; the order of a pool's sum is its kernel's own."""
    pooled = Of(lambda x, w, b, m, v: F.avg_pool2d(x * at(w) + at(b), 2).amax(1))
    halves = Of(lambda x, w, b, m, v: torch.exp(x * at(w).half() + at(b).half()).amax(1))
    for model, x in ((pooled, torch.randn(2, 6, 4, 4)), (halves, torch.randn(2, 6, 4, 4).half())):
        graph = capture(model, [x])
        nodes = [n for n in graph.nodes if not n.is_leaf]
        found = gradient_graph(graph, nodes, ["x", "weight", "bias"], [nodes[-1].name], ["weight"])
        assert found is not None and bit_exact(lower(rewrite(found)[0])) is None


SUMMANDS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(1, 8))

    def forward(self, x):
        return torch.tanh(x + self.a + self.b)


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
"""


def test_gradients_of_parameters_share_no_memory(tmp_path: Path) -> None:
    """Two summands have the same gradient; each is added to in place at the next backward."""
    (tmp_path / "model.py").write_text(SUMMANDS)
    problem = load_problem(tmp_path / "model.py")
    candidate = load_candidate(compile_problem(problem, Options(target="host"))[2].text, "host", name="new.py")
    model, new = problem.model(), candidate.build_model(problem)
    new.load_state_dict(model.state_dict())
    x = torch.rand(4, 8)
    with candidate.launches() as launched:
        for _ in range(2):
            model(x).sum().backward()
            new(x).sum().backward()
    assert any(name.endswith("_grad") for name in launched)
    assert new.a.grad.data_ptr() != new.b.grad.data_ptr()
    torch.testing.assert_close(new.a.grad, model.a.grad)
    torch.testing.assert_close(new.b.grad, model.b.grad)


POOLS = [
    "F.max_pool2d(y, 2)", "F.max_pool2d(y, 3, 2, 1)", "F.max_pool2d(y, (3, 2), (2, 1), (1, 0), ceil_mode=True)", "F.max_pool2d(y, 3, 1, 1)",
    "F.max_pool2d(y, 2, 3)", "F.max_pool2d(y, 1, 2)", "F.max_pool2d(y, 2, 2, dilation=2)", "F.max_pool3d(y, 2)",
    "F.max_pool1d(y[:, 0], 3, 2)",
    "F.avg_pool2d(y, 2)", "F.avg_pool2d(y, 3, 2, 1)", "F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)", "F.avg_pool2d(y, 3, 1, 1)",
    "F.avg_pool2d(y, 2, 3)", "F.avg_pool2d(y, 3, 2, ceil_mode=True)", "F.avg_pool2d(y, 3, 2, 1, divisor_override=5)",
    "F.avg_pool3d(y, (1, 3, 3), (1, 2, 2), (0, 1, 1))", "F.avg_pool1d(y[:, 0], 3, 2)",
]  # fmt: skip


def test_pools_are_differentiated_by_kernels(tmp_path: Path) -> None:
    """Windows apart, side by side and over one another, beyond the edge, of gaps; at other sizes than those of the file too."""
    path = tmp_path / "pools.py"
    first, last = MAXIMA.index("        return F.gelu"), MAXIMA.index("\n\n\ndef get_inputs")
    path.write_text((MAXIMA[:first] + f"        return {', '.join(POOLS)}" + MAXIMA[last:]).replace("12, 12", "13, 14"))
    run = optimize(load_problem(path), Options(target="host"))
    assert run.verdict.passed, "\n".join(map(str, run.verdict.checks))
    backward = run.text[run.text.index("_grad(sizes") :]
    assert "pool" in backward and "_backward(" not in backward.split("_region = ")[0]



LAUNCHED = {
    "a mask that is drawn": ("1", "nn.functional.max_pool1d(nn.functional.dropout1d(torch.tanh(self.conv(x)), 0.3), 2)"),
    "what only chooses": ("1", "self.conv.bias[(self.conv(x) * 2 + 1).argmin(1)] * x.mean(1)[:, 2:]"),
    "running statistics of halves": (
        "nn.BatchNorm1d(6).bfloat16()", "nn.functional.hardswish(self.norm(self.conv(x).bfloat16())).mean(2)",
    ),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_kernels_of_backward_are_launched_beside(name: str, tmp_path: Path) -> None:
    """No kernel computes a gradient that there is not, and what has none keeps no kernel of the others from being launched."""
    path, (norm, forward) = tmp_path / "model.py", LAUNCHED[name]
    path.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.conv, self.norm = nn.Conv1d(4, 6, 3), {norm}\n\n    def forward(self, x):\n        return {forward}\n\n\n"
        "def get_inputs():\n    return [torch.randn(3, 4, 10)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    run = optimize(load_problem(path), Options(target="host", seeds=1))
    assert run.verdict.passed and not run.degraded, run.degraded
    assert any(kernel["name"] in run.text.partition("_GRADIENT_KERNELS")[2] for kernel in run.report["kernels"])


ONE_IMAGE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.eval()

    def forward(self, x):
        return self.norm(self.conv(x)).tanh() * 2

def get_inputs():
    return [torch.randn(1, 3, 9, 9)]

def get_init_inputs():
    return []
"""


def test_second_derivatives_of_one_image_that_lies_channels_last(tmp_path: Path) -> None:
    """What is differentiated again lies as it did: a view would have other strides where there is one image, and PyTorch's
    batch norm another gradient on the CPU."""
    (tmp_path / "model.py").write_text(ONE_IMAGE)
    problem = load_problem(tmp_path / "model.py")
    _, _, emitted = compile_problem(problem, Options(target="host", arithmetic="ieee"))
    torch.manual_seed(0)
    old, new = problem.namespace.Model(), load_candidate(emitted.text, "host").module.ModelNew()
    new.load_state_dict(old.state_dict())
    x = torch.randn(1, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    cotangent, found = torch.randn(1, 4, 7, 7), []
    for model, dtype in ((old.double(), torch.float64), (new, torch.float32)):
        first = torch.autograd.grad((model(x.to(dtype)) * cotangent).sum(), model.conv.weight, create_graph=True)[0]
        found.append([first, *torch.autograd.grad((first**2).sum(), [model.norm.weight, model.conv.weight])])
    for exact, got in zip(*found, strict=True):
        assert (got - exact).abs().max() < 1e-4 * exact.abs().max()


def test_a_value_in_another_shape_and_back_is_written_once(tmp_path: Path) -> None:
    """PyTorch's formulas hand a group norm's mean on as (batch, groups), and look at it as (batch, groups, 1, 1) again."""
    path = tmp_path / "norm.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(4, 16, 3)\n        self.norm = nn.GroupNorm(4, 16)\n\n"
        "    def forward(self, x):\n        return torch.tanh(self.norm(self.conv(x)))\n\n\n"
        "def get_inputs():\n    return [torch.randn(64, 4, 64, 64)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    text = compile_problem(load_problem(path), Options(target="host"))[2].text
    for kernel in text.split("_CUDA_GRADIENTS = ")[1].split("__global__")[1:]:
        stored = re.findall(r"^ *\w+_ptr\[.*\] = (\w+);", kernel, re.MULTILINE)
        assert len(stored) == len(set(stored)), stored
    launch = text[text.index('_launch("conv_bias_grad"') :].partition(")")[0]
    assert "group_norm_weight" in launch or "norm_weight" in launch, "what is added up for a bias is added up as it is written"
