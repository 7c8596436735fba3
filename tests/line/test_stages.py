"""Each stage hands the next what it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from doors.models import quickly
from torch import nn

from fusewright.autograd import plan_joint
from fusewright.driver.pipeline import compile_problem, fixed_sizes, on_the_cpu
from fusewright.emit import emit
from fusewright.emit.values import packed
from fusewright.errors import Unsupported
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.ir.graph import Graph
from fusewright.ir.interpret import interpret
from fusewright.ir.plan import Call, Kernel
from fusewright.ir.prims import Reduce
from fusewright.laws.rewrite import rewrite
from fusewright.ops.lower import lower
from fusewright.options import Options
from fusewright.report.explain import explain_plan
from fusewright.schedule.fusion import take_over
from fusewright.schedule.planner import plan

EXAMPLES = Path(__file__).parents[2] / "examples"
FOUNDING = sorted(EXAMPLES.glob("*.py"))


class Small(nn.Module):
    """Training-mode batch norm, a residual, a view, an in-place operator and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.norm(x).relu_() + x
        return y.flatten(1).softmax(dim=-1)


def small_graph() -> tuple[Small, Graph, list[torch.Tensor]]:
    torch.manual_seed(0)
    model, inputs = Small(), [torch.randn(3, 4, 5, 6)]
    return model, capture(model, inputs), inputs


def test_what_the_file_puts_on_a_gpu_is_captured_on_the_cpu() -> None:
    moved = []

    class Elsewhere(torch.Tensor):
        def cpu(self) -> torch.Tensor:  # type: ignore[override]
            moved.append("input")
            return torch.zeros(self.shape)

    class Model(nn.Module):
        def cpu(self) -> nn.Module:  # type: ignore[override]
            moved.append("model")
            return super().cpu()

    x = torch.ones(2).as_subclass(Elsewhere)
    _, inputs = on_the_cpu(SimpleNamespace(model=Model, inputs=lambda: [x, 3]))  # type: ignore[arg-type]
    assert moved == ["model", "input"] and inputs[1] == 3 and type(inputs[0]) is torch.Tensor
    assert "torch.frombuffer" in packed(x) and moved[-1] == "input" and len(moved) == 3


def test_capture_is_functional_and_symbolic() -> None:
    _, graph, _ = small_graph()
    graph.check()
    assert not any(
        str(node.target).split(".")[-2].endswith("_")
        for node in graph.nodes
        if not node.is_leaf and node.target != "getitem"
    )
    assert {str(symbol) for symbol in graph.symbols} == {"x_0", "x_2", "x_3"}
    updated = {output.path for output in graph.outputs if output.kind == "buffer"}
    assert updated == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "calls"}
    assert any("norm" in node.where.module for node in graph.nodes)


def test_the_graph_means_what_the_model_computes_at_other_sizes() -> None:
    model, graph, _ = small_graph()
    other = torch.randn(2, 4, 7, 3)
    import copy

    expected = copy.deepcopy(model)(other)
    returned = [
        value
        for value, output in zip(interpret(graph, model, [other]), graph.outputs, strict=True)
        if output.kind == "return"
    ]
    torch.testing.assert_close(returned[0], expected)


def test_what_holds_for_the_sizes_of_the_example_alone_says_so() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y.sum() if x.shape == (3, 4) and y.shape[0] == 5 else x

    (said,) = fixed_sizes(capture(Fixed(), [torch.randn(3, 4), torch.randn(5)]))
    assert said == "planned for inputs of the example's sizes alone: x 3×4, y 5; calls with others run the original"
    assert fixed_sizes(small_graph()[1]) == []


def test_control_flow_on_values_is_refused_with_a_place(tmp_path: Path) -> None:
    file = tmp_path / "branch.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        if x.sum() > 0:\n            return x\n        return -x\n\n\n"
        "def get_inputs():\n    return [torch.randn(3)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    problem = load_problem(file)
    with pytest.raises(Unsupported, match=r"branch\.py:7: .*depends on the values"):
        capture(problem.model(), problem.inputs(), str(problem.path))


def test_equal_primitives_are_one_and_norms_share_their_statistics() -> None:
    _, graph, _ = small_graph()
    lowered = lower(graph)
    accumulators = [prim.op.accumulator for prim in lowered.prims.values() if isinstance(prim.op, Reduce)]
    assert accumulators.count("Moments") == 2  # mean and m2, once for the result and both running statistics


@pytest.mark.parametrize(
    ("stem", "kernels"),
    [("conv2d_groupnorm_logsumexp", 2), ("conv3d_maxpool_logsumexp", 1), ("convtranspose2d_mean_logsumexp", 3)],
)
def test_founding_models_need_few_kernels(stem: str, kernels: int) -> None:
    problem = load_problem(EXAMPLES / f"{stem}.py")
    graph, applied = rewrite(capture(problem.model(), problem.inputs(), str(problem.path)))
    made = plan(lower(graph), applied)
    assert len(made.kernels) == kernels
    calls = [step for step in made.steps if isinstance(step, Call)]
    assert all("conv" in str(call.node.target) for call in calls)
    assert [step for step in take_over(made).steps if isinstance(step, Call)] == []  # all of them are ours


def test_every_kernel_runs_after_what_it_reads() -> None:
    _, graph, _ = small_graph()
    made = plan(lower(graph))
    ready = {prim.name for prim in made.lowered.prims.values() if prim.is_load and graph[prim.origin].is_leaf}
    for step in made.steps:
        if isinstance(step, Kernel):
            assert set(step.loads) <= ready, f"{step.name} reads {set(step.loads) - ready} too early"
            ready |= set(step.stores)
        elif step.node.shape is not None:
            ready.add(made.lowered.value[step.node.name])


class Alike(nn.Module):
    """Two kernels of one shape, of which one stands in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LayerNorm(6) for _ in range(2))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.matmul(torch.tanh(layer(x)), w)
        return x


def test_every_step_is_explained_also_where_one_kernel_serves_several() -> None:
    model = Alike()
    made = plan(lower(capture(model, [torch.randn(5, 6), torch.randn(6, 6)])))
    emitted = emit(plan_joint(made, model, gradients=False), "", model)
    assert len(made.kernels) == 2 and len(emitted.kernels) == 1, "no longer one kernel for both"
    lines = explain_plan(made, emitted).splitlines()
    first, second = (kernel.name for kernel in made.kernels)
    assert f"  kernel   {first}" in lines and f"  kernel   {second}  (launches {first})" in lines
    moved = [line for line in lines if "predicted 0" in line and " B, " in line]
    assert len(moved) == 2 and moved[0] == moved[1], "each step has its own bytes"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", FOUNDING, ids=lambda path: path.stem)
def test_the_same_model_gives_the_same_text(path: Path) -> None:
    first, second = (compile_problem(load_problem(path), Options())[2].text for _ in range(2))
    assert first == second


class Windows(nn.Module):
    """Scores of windows, a mask for each place of a window among them, and their softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.randn(4, 9, 9))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        masked = scores.view(-1, 4, 3, 9, 9) + self.mask[None, :, None]
        return masked.view(-1, 3, 9, 9).softmax(-1)


def test_a_division_for_each_row_keeps_a_kernel_together() -> None:
    made = plan(lower(capture(Windows(), [torch.randn(8, 3, 9, 9)])))
    assert [kernel.reduced for kernel in made.kernels] == [(3,)], "the softmax is not written by the kernel that reduces"


def test_what_pytorch_would_copy_is_written_in_its_shape() -> None:
    class Shuffled(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            rows = torch.tanh(x).transpose(1, 2)
            return torch.pixel_shuffle(torch.relu(x), 2), rows

    made = plan(lower(capture(Shuffled(), [torch.randn(3, 8, 5, 6)])))
    stored = {made.lowered.prims[name].op.__class__.__name__ for kernel in made.kernels for name in kernel.stores}
    assert stored == {"Reshape", "Pointwise"}, "the shuffled image by its kernel, the transposed one as a view"


def test_batch_and_heads_joined_and_taken_apart_again_are_not_copied() -> None:
    """As attention modules have it; step by step PyTorch would copy."""
    class Heads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, tokens, _ = x.shape
            wide = torch.tanh(x).transpose(0, 1)
            heads = wide[..., 8:].reshape(tokens, batch * 2, 4).transpose(0, 1).reshape(batch, 2, tokens, 4)
            return torch.linalg.matrix_exp(heads @ heads.mT)

    module = Heads()
    made = plan(lower(capture(module, [torch.randn(3, 5, 16)])))
    text = emit(plan_joint(made, module, gradients=False), "", module).text
    assert ".reshape((x_0, x_1, 2, 4)).permute((0, 2, 1, 3))" in text and "[:, :, 8:16]" in text


def test_sizes_that_say_how_a_convolution_pads_are_those_of_the_example() -> None:
    """An output of a given size: what is added to it was an expression, which no kernel of ours can be asked about."""

    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(6, 5, 3, stride=2, padding=1)

        def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.up(x, output_size=skip.shape[-2:])) + skip

    model, inputs = Up(), [torch.randn(2, 6, 7, 8), torch.randn(2, 5, 14, 15)]
    graph = capture(model, inputs)
    assert graph["conv_transpose2d"].bound()["output_padding"] == [1, 0]
    assert {str(symbol) for symbol in graph.symbols} == {"x_0"}
    take_over(plan(lower(rewrite(graph)[0])))
    torch.testing.assert_close(interpret(graph, model, inputs)[0], model(*inputs))


def test_as_many_values_as_keys() -> None:
    """Attention without a mask: the tracer does not ask, PyTorch's kernels do."""

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=True)

    graph = capture(Attention(), [torch.randn(2, 3, n, 8) for n in (5, 7, 7)])
    assert "z_2" not in {str(symbol) for symbol in graph.symbols}
    assert graph["z"].shape == graph["y"].shape != graph["x"].shape


@pytest.mark.parametrize("training", [True, False])
def test_instance_norm_with_running_statistics_is_no_operator_of_its_own(training: bool) -> None:
    model = nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=0.3).train(training)
    model(torch.randn(3, 4, 5, 6) * 2 + 1)  # statistics that are not the first ones
    x = torch.randn(3, 4, 5, 6)
    graph = capture(model, [x])
    assert not plan(lower(rewrite(graph)[0])).calls
    found = dict(zip([o.path for o in graph.outputs], interpret(graph, model, [x]), strict=True))
    torch.testing.assert_close(found[""], model(x))  # which changes its buffers
    for path in ("running_mean", "running_var") if training else ():
        torch.testing.assert_close(found[path], getattr(model, path))


def test_a_reshape_of_what_is_stored_is_not_stored_again() -> None:
    """Of a mean, one kernel read it with its dimension of one and another without: it was stored as both, under one name in forward,
    and the one without a gradient was taken for the other."""

    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.s = nn.Parameter(torch.rand(5, 8, 3)), nn.Parameter(torch.rand(5, 8))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.tanh(x) @ (self.w * self.s.unsqueeze(-1)).view(8, -1)
            mean = self.w.abs().mean(-1)
            y = torch.tanh(y) @ self.s.repeat(3, 2)
            total = mean.sum()
            share = mean / total
            return torch.tanh(y), total - torch.sum(share * share.log())

    module, inputs = Penalty(), [torch.randn(5, 8)]
    made = plan(lower(capture(module, inputs)))
    stored = [name for kernel in made.kernels for name in kernel.stores]
    assert "mean" in stored and "mean_squeeze" not in stored
    new = quickly(module, *inputs)
    _, got = new(*inputs)
    (wanted,) = torch.autograd.grad(module(*inputs)[1], [module.w])
    torch.testing.assert_close(*torch.autograd.grad(got, [module.w]), wanted, rtol=1e-4, atol=1e-5)


def test_a_forward_that_fails_by_itself_is_refused_in_its_own_words(tmp_path: Path) -> None:
    """Not in the tracer's, which knows sizes by their symbols, and with the line."""
    (tmp_path / "model.py").write_text("""import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x):
        return self.inner(x)


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
""")
    problem = load_problem(tmp_path / "model.py")
    with pytest.raises(Unsupported, match=r"model\.py:11: forward\(\) raised RuntimeError: mat1 and mat2 .*\(4x6 and 7x3\)"):
        compile_problem(problem, Options(target="host"))


@pytest.mark.parametrize(
    ("function", "symbols"),
    [
        (lambda x, a: torch.softmax(torch.where(a > 0, x @ x.T, -1e9), -1) @ x, 1),  # between as many things as there are rows
        (lambda x, a: a @ x.relu(), 2),
        (lambda x, a: (a * a.sum(1, keepdim=True).rsqrt() + torch.eye(a.shape[0])) @ x, 1),
        (lambda x, a: F.linear(a, torch.ones(3, 11)) * x[:, :1], 1),  # rows of eleven features
    ],
)
def test_a_square_of_any_size(function: Callable[..., torch.Tensor], symbols: int) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
            return function(x, adjacency)

    graph = capture(Model(), [torch.randn(11, 5), torch.rand(11, 11)])
    assert len(graph.symbols) == symbols, graph.symbols
    free = not isinstance(graph["adjacency"].shape[1], int)
    inputs = [torch.randn(7, 5), torch.rand(7, 7 if free else 11)]
    torch.testing.assert_close(interpret(graph, Model(), inputs)[0], Model()(*inputs))
