"""torch.compile(backend="fusewright") on the host: which graphs are ours, which kernels were launched, and results beside float64's."""

from __future__ import annotations

import copy
import importlib.metadata
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.driver import backend as door
from fusewright.driver import graphs

HOST = {"target": "host", "fallback": "eager", "strict": True}
TIMES = 4.0  # our error may be this many times eager's own against float64


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    fusewright.backend.reset_stats()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="fusewright", options=HOST | options)


def as_exact(ours: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Ours errs as eager does: at most TIMES its largest error, or as many roundings of the largest value."""
    assert ours.shape == eager.shape and ours.dtype == eager.dtype
    ulp = torch.finfo(eager.dtype).eps * float(exact.abs().max())
    limit = TIMES * max(float((eager.double() - exact).abs().max()), ulp)
    worst = float((ours.double() - exact).abs().max())
    assert worst <= limit, f"errs {worst:.3g}, where {limit:.3g} is allowed"


def all_launched() -> None:
    """Every kernel of every graph that is ours ran."""
    ours = [graph for graph in fusewright.backend.stats().graphs if graph.by == "fusewright"]
    assert ours
    for graph in ours:
        assert graph.kernels and set(graph.launched) == set(graph.kernels), str(graph)


def kinds() -> list[tuple[str, str]]:
    return [(graph.kind, graph.by) for graph in fusewright.backend.stats().graphs]


class Chain(nn.Module):
    """Layers, then a function."""

    def __init__(self, layers: list[nn.Module], after: Callable[[Tensor], Any]):
        super().__init__()
        self.layers, self.after = nn.Sequential(*layers), after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.layers(x))


CHAINS: dict[str, tuple[Callable[[], Chain], tuple[int, ...]]] = {
    "conv_group_norm": (lambda: Chain([nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)], lambda y: F.hardswish(y).mean((2, 3))), (2, 3, 9, 11)),
    "conv_batch_norm": (lambda: Chain([nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.ReLU()], lambda y: y.amax(2)), (3, 4, 17)),
    "linear_layer_norm": (lambda: Chain([nn.Linear(12, 10), nn.GELU(), nn.LayerNorm(10)], lambda y: y.softmax(-1)), (2, 5, 12)),
    "transposed_pool": (lambda: Chain([nn.ConvTranspose2d(3, 4, 3, 2), nn.MaxPool2d(2)], lambda y: y.logsumexp(1)), (2, 3, 6, 5)),
}


# ---- found and told


def test_pytorch_finds_it_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fusewright")
    assert found.load() is door.fusewright
    assert "fusewright" in torch._dynamo.list_backends()


@pytest.mark.parametrize(
    ("options", "word"),
    [({"targett": "host"}, "targett"), ({"fallback": "triton"}, "triton"), ({"target": "tpu"}, "tpu"), ({"arch": "abacus"}, "abacus")],
)
def test_an_option_that_it_does_not_know_is_refused_by_a_sentence(options: dict[str, Any], word: str) -> None:
    function = torch.compile(torch.relu, backend="fusewright", options=options)
    with pytest.raises(Exception, match=word) as caught:
        function(torch.randn(3))
    assert "Refused" in str(caught.value)


def test_a_mode_is_refused() -> None:
    with pytest.raises(Exception, match="no mode 'max-autotune'"):
        torch.compile(torch.relu, backend="fusewright", mode="max-autotune")(torch.randn(3))


# ---- right, by kernels


@pytest.mark.parametrize("name", CHAINS)
def test_inference(name: str) -> None:
    make, shape = CHAINS[name]
    model, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        as_exact(compiled(model)(x), model(x), copy.deepcopy(model).double()(x.double()))
    assert kinds() == [("inference", "fusewright")]
    all_launched()


@pytest.mark.parametrize("name", CHAINS)
def test_a_training_step(name: str) -> None:
    make, shape = CHAINS[name]
    model, x = make(), torch.randn(shape)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    results, gradients = [], []
    for one, given in ((compiled(model), x), (eager, x), (exact, x.double())):
        given = given.clone().requires_grad_()
        y = one(given)
        weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        (y * weight).sum().backward()
        results.append(y.detach())
        gradients.append(given.grad)
    as_exact(*results)
    as_exact(*gradients)
    for ours, theirs, wide in zip(model.parameters(), eager.parameters(), exact.parameters(), strict=True):
        as_exact(ours.grad, theirs.grad, wide.grad)  # type: ignore[arg-type]
    for ours, theirs, wide in zip(model.buffers(), eager.buffers(), exact.buffers(), strict=True):
        as_exact(ours, theirs, wide) if theirs.is_floating_point() else torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert kinds() == [("forward", "fusewright"), ("backward", "fusewright")]
    all_launched()


def test_several_steps_of_training_with_accumulation() -> None:
    model = Chain([nn.Linear(6, 8), nn.LayerNorm(8)], lambda y: y.tanh().square().mean())
    eager = copy.deepcopy(model)
    step, results = compiled(model), []
    for one, module in ((step, model), (eager, eager)):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        torch.manual_seed(1)
        for number in range(4):
            one(torch.randn(5, 6)).backward()
            if number % 2:
                optimiser.step()
                optimiser.zero_grad()
        results.append([p.detach().clone() for p in module.parameters()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert len(kinds()) == 2
    all_launched()


def test_whole_operators_are_put_together_again() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.Linear(8, 7), nn.LayerNorm(7)).eval()
    with torch.no_grad():
        compiled(model)(torch.randn(2, 3, 10))
    (graph,) = fusewright.backend.stats().graphs
    assert graph.ours is not None
    assert set(graph.ours.emitted.calls) == {"aten.conv1d.default", "aten.linear.default"}
    replaced = {operator for fact in graph.ours.emitted.kernels for operator in fact.replaces}
    assert {"group_norm", "layer_norm"} <= replaced
    assert "_0_weight" in graph.source and "primals" not in graph.source and "arg0" not in graph.source  # called as the user calls them


# ---- graphs of Dynamo


def test_a_graph_break_makes_two_graphs() -> None:
    def function(x: Tensor) -> Tensor:
        y = (x * 2).relu().sum(1, keepdim=True)
        torch._dynamo.graph_break()
        return (x - y).sigmoid()

    x = torch.randn(4, 6)
    as_exact(compiled(function)(x), function(x), function(x.double()))
    assert kinds() == [("inference", "fusewright")] * 2
    all_launched()


@pytest.mark.parametrize("marked", [True, False])
def test_a_changing_batch_is_one_graph(marked: bool) -> None:
    model = Chain([nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4)], lambda y: F.silu(y).mean(2))
    step = torch.compile(model, backend="fusewright", options=HOST, dynamic=None if marked else True)
    for batch in (4, 7, 3):
        x = torch.randn(batch, 3, 9)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
        model.zero_grad()
        y = step(x)
        y.square().sum().backward()
        ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
        for other, given in ((exact, x.double()), (eager, x)):
            other.zero_grad()
            other(given).square().sum().backward()
        as_exact(y.detach(), eager(x).detach(), exact(x.double()).detach())
        for one, theirs, wide in zip(ours, eager.parameters(), exact.parameters(), strict=True):
            as_exact(one, theirs.grad, wide.grad)  # type: ignore[arg-type]
    assert kinds() == [("forward", "fusewright"), ("backward", "fusewright")]
    all_launched()
    assert set(fusewright.backend.stats().launched.values()) >= {3}


def test_a_changing_size_is_one_graph() -> None:
    """PyTorch counts a size as 1 in strides where it is 0: they are products of sizes all the same."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout(0.2))
    eager, ours = copy.deepcopy(model), compiled(model)
    for size in (8, 9, 11):
        x = torch.randn(2, 3, size, size + 1)
        results = []
        for one in (eager, ours):
            torch.manual_seed(size)
            results.append(one(x))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    assert {graph.by for graph in fusewright.backend.stats().graphs} == {"fusewright"}
    assert [kind for kind, _ in kinds()].count("forward") == 2  # of one size, and of every other


@pytest.mark.parametrize("shape", [(2, 1), (2, 5), (8, 1)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    for function in (lambda x: torch.tanh(x[2:, 1:].exp() * 2), lambda x: torch.softmax(x[2:, 1:] * 2, 0)):
        x = torch.randn(shape, requires_grad=True)
        ours = compiled(function)(x)
        assert ours.shape == function(x).shape
        ours.sum().backward()
        assert x.grad is not None and not x.grad.any()
    assert {graph.by for graph in fusewright.backend.stats().graphs} <= {"fusewright", "eager"}


def test_what_forward_changes_in_place() -> None:
    def function(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum(0))
        x.mul_(0.5)
        return x.softmax(1) + total

    given = torch.randn(3, 5), torch.randn(5)
    ours, theirs, wide = ([t.clone().to(kind) for t in given] for kind in (torch.float32, torch.float32, torch.float64))
    as_exact(compiled(function)(*ours), function(*theirs), function(*wide))
    for one, two, three in zip(ours, theirs, wide, strict=True):
        as_exact(one, two, three)
    all_launched()


def test_results_have_memory_of_their_own_and_eagers_strides() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.relu()
        return y, y.clone(), x + 0, x.t(), (x * 2).t(), y.reshape(-1)

    x = torch.randn(4, 6)
    ours, theirs = compiled(function)(x), function(x)
    shared = [[a.data_ptr() == b.data_ptr() for b in (*found, x)] for found in (ours, theirs) for a in found]
    assert shared[: len(ours)] == shared[len(ours) :]
    for one, two in zip(ours, theirs, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    all_launched()


def pieces(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).exp().chunk(2)


def by_strides(x: Tensor) -> tuple[Tensor, ...]:
    y = x.relu()
    return y.as_strided((2, 2), (1, 3), 2), y


def turned(x: Tensor) -> tuple[Tensor, ...]:
    y = (x.permute(0, 2, 3, 1).contiguous() + 1).permute(0, 3, 1, 2).tanh()
    return y, y[:, 1]


@pytest.mark.parametrize(("function", "shape"), [(pieces, (4, 6)), (by_strides, (4, 6)), (turned, (2, 3, 4, 5))])
def test_results_that_share_memory_do_so(function: Callable[[Tensor], Any], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    ours, theirs = compiled(function)(x), function(x)
    for found in (ours, theirs):
        for result in found:
            result.mul_(3)
    for one, two in zip(ours, theirs, strict=True):
        assert one.stride() == two.stride()
        torch.testing.assert_close(one, two)
    assert kinds() == [("inference", "fusewright")]
    all_launched()


def test_results_that_share_memory_which_none_fills_are_left() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.relu()
        return y.as_strided((2, 2), (1, 3), 2), y[1:]

    x = torch.randn(4, 6)
    for one, two in zip(compiled(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert [graph.why for graph in fusewright.backend.stats().graphs] == ["results share memory that none of them fills"]


def test_views_of_an_input_that_is_not_contiguous() -> None:
    """They are of the input as it came, though kernels read a copy of it."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x[1:], x.relu(), x.unsqueeze(0), x

    x = torch.randn(6, 4).t()
    ours, theirs = compiled(function)(x), function(x)
    for one, two in zip(ours, theirs, strict=True):
        assert (one.stride(), one.shape, one.storage_offset()) == (two.stride(), two.shape, two.storage_offset())
        assert (one.data_ptr() == two.data_ptr()) == (two is not theirs[1])
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    all_launched()


def test_channels_last_stays_so() -> None:
    model = Chain([nn.Conv2d(3, 4, 3)], lambda y: F.hardswish(y) + 1)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        ours, theirs = compiled(model)(x), model(x)
        assert ours.stride() == theirs.stride()
        as_exact(ours, theirs, copy.deepcopy(model).double()(x.double()))
    all_launched()


def test_the_gradient_of_a_maximum_goes_where_it_is() -> None:
    """Backward compares values with their maximum: neither may be computed anew."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (F.gelu(x * w) * torch.sigmoid(w)).amax(1).sum()

    given = [torch.randn(64, 33, requires_grad=True), torch.randn(33, requires_grad=True)]
    ours = torch.autograd.grad(compiled(function)(*given), given)
    theirs = torch.autograd.grad(function(*given), given)
    wide = torch.autograd.grad(function(*(t.double() for t in given)), given)
    assert (ours[0] != 0).sum() == 64
    for one, two, three in zip(ours, theirs, wide, strict=True):
        as_exact(one, two, three.double())
    all_launched()


def test_dropout_draws_what_eager_draws() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5).exp()

    x = torch.randn(6, 7, requires_grad=True)
    found = []
    for one in (compiled(function), function):
        torch.manual_seed(3)
        y = one(x)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    all_launched()


def test_autocast_and_constants() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return (y.float() + torch.tensor([1.0, -2.0, 3.0])).tanh()

    given = torch.randn(4, 5), torch.randn(5, 3)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    all_launched()


# ---- what is not ours


def test_what_has_no_kernel_runs_by_operators_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    given = torch.randn(4, 5, requires_grad=True), torch.randn(5, 3)
    with caplog.at_level(logging.INFO, "fusewright.backend"):
        ours = compiled(torch.mm)(*given)
        ours.sum().backward()
    torch.testing.assert_close(ours, torch.mm(*given))
    assert kinds() == [("forward", "eager"), ("backward", "eager")]
    assert fusewright.backend.stats().count("eager") == 2
    assert "forward: eager (no kernel of ours would gain" in caplog.text


def test_forward_is_ours_and_backward_is_not() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    compiled(lambda x: x.sum(0))(x).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(4, 5))
    assert kinds() == [("forward", "fusewright"), ("backward", "eager")]
    all_launched()


def test_without_a_target_tensors_of_the_cpu_are_left_whole() -> None:
    x = torch.randn(5)
    function = torch.compile(torch.relu, backend="fusewright", options={"fallback": "eager"})
    torch.testing.assert_close(function(x), x.relu())
    (graph,) = fusewright.backend.stats().graphs
    assert (graph.kind, graph.by) == ("whole", "eager")
    assert graph.why == "its tensors are on cpu, and kernels run on cuda"


def test_sizes_that_depend_on_values_are_left() -> None:
    def function(x: Tensor) -> Tensor:
        return x[x > 0].relu() * 2

    x = torch.randn(9)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert [graph.why for graph in fusewright.backend.stats().graphs] == ["the values of a tensor become a size"]


def test_a_fault_of_ours_is_warned_of_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planned badly")

    monkeypatch.setattr(graphs, "emit_graph", broken)
    x = torch.randn(5)
    with pytest.warns(UserWarning, match="the inference graph is left to others: ZeroDivisionError: planned badly"):
        torch.testing.assert_close(compiled(torch.tanh, strict=False)(x), x.tanh())
    assert kinds() == [("inference", "eager")]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="planned badly"):
        compiled(torch.tanh)(x)


def test_who_takes_a_graph_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor gets the graph of Dynamo, whole; without its compiler nobody asks it."""
    taken: list[torch.fx.GraphModule] = []

    def inductor(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        taken.append(module)
        return module.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", inductor)
    given = torch.randn(4, 5), torch.randn(5, 3)
    for works, by in ((True, ("whole", "inductor")), (False, ("inference", "eager"))):
        torch._dynamo.reset()
        fusewright.backend.reset_stats()
        monkeypatch.setattr(door, "inductor_works", lambda device, works=works: works)
        torch.testing.assert_close(compiled(torch.mm, fallback="auto")(*given), torch.mm(*given))
        assert kinds() == [by]
    assert len(taken) == 1


def test_flags_that_were_changed_later_are_followed() -> None:
    """A convolution of ours that rounds to TF32 does not run where the flags no longer allow it."""
    model = Chain([nn.Conv2d(64, 64, 3, padding=1)], lambda y: y.relu().mean((2, 3))).eval()
    x = torch.randn(2, 64, 8, 8)
    exact = copy.deepcopy(model).double()(x.double())
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=True), forced_convolutions():
        step = compiled(model)
        step(x)
        (graph,) = fusewright.backend.stats().graphs
        assert graph.ours is not None and not graph.ours.emitted.calls  # the convolution is ours
        before = graph.launched
        assert before
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        as_exact(step(x), model(x), exact)
        assert graph.launched == before


class forced_convolutions:
    """Inside, our convolutions are taken to pay."""

    def __enter__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("fusewright.schedule.fusion.pays", lambda *_: True)

    def __exit__(self, *_: Any) -> None:
        self.patch.undo()


# ---- in a process of its own


@pytest.mark.slow
def test_inductor_itself_takes_what_is_not_ours() -> None:
    """The default fallback: a product forward, which is Inductor's whole; and a backward without kernels behind a forward with some."""
    program = """
import torch, fusewright
options = {"target": "host", "strict": True, "fallback": "inductor"}
a, b = torch.randn(6, 5), torch.randn(5, 4)
assert torch.allclose(torch.compile(torch.mm, backend="fusewright", options=options)(a, b), a @ b)
x = torch.randn(3, 4, requires_grad=True)
def sums(x):
    return x.sum(0)
y = torch.compile(sums, backend="fusewright", options=options)(x)
y.sum().backward()
assert torch.allclose(y, x.sum(0)) and torch.equal(x.grad, torch.ones(3, 4))
print([(g.kind, g.by) for g in fusewright.backend.stats().graphs])
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[('whole', 'inductor'), ('forward', 'fusewright'), ('backward', 'inductor')]"


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.conv(x).transpose(1, 3).relu())
        return torch.tanh(torch.rand_like(y) * y) * 2


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_random_numbers_are_drawn_in_the_order_of_memory(order: torch.memory_format) -> None:
    model, x = Drawing(), torch.randn(3, 4, 6, 5).to(memory_format=order)
    results, gradients = [], []
    for one in (compiled(model), model):
        torch.manual_seed(3)
        results.append(one(x))
        gradients.append(torch.autograd.grad(results[-1].sum(), list(model.parameters())))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4)
    all_launched()
