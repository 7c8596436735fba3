"""What the tracer leaves out is there again for whoever asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from fusewright.frontend import capture as captured
from fusewright.frontend.capture import capture
from fusewright.frontend.tracing import batch_norms_whole, lean, recurrent_layers_whole, without_memory_formats

UNITS = """
import sys, sympy
from fusewright.frontend.tracing import UNITS, NoUnits, without_units
x = sympy.Symbol("x")
with without_units():
    assert sympy.simplify((x**2 - 1) / (x - 1)) == x + 1
    assert isinstance(sys.modules[UNITS], NoUnits)
assert UNITS not in sys.modules
with without_units():
    from sympy.physics.units import meter
    assert sympy.simplify(meter + meter) == 2 * meter
from sympy.physics.units import Quantity
assert isinstance(meter, Quantity)
with without_units():
    assert sys.modules[UNITS].Quantity is Quantity
"""


def test_units_are_imported_only_where_they_are_asked_for() -> None:
    subprocess.run([sys.executable, "-c", UNITS], check=True)


def test_registering_a_kernel_is_what_it_was() -> None:
    key, operator = torch._C.DispatchKey.AutogradXPU, torch.ops.aten.linear.default
    with lean():
        assert operator.py_impl(key)(len) is len
        try:
            operator.py_impl(key)(len)
        except RuntimeError as error:
            assert "override" in str(error)
        else:
            raise AssertionError("a second registration is an error")
        finally:
            del operator.py_kernels[key]
            operator._dispatch_cache.clear()


def test_nodes_say_all_but_their_memory_format() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    with lean(), without_memory_formats():
        traced = make_fx(torch.relu, tracing_mode="fake")(torch.rand(2, 3))
    described = next(node for node in traced.graph.nodes if node.op == "call_function").meta["tensor_meta"]
    assert described.shape == (2, 3) and described.memory_format is None


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norms_are_not_gone_through(dtype: torch.dtype, training: bool, running: bool) -> None:
    """Their results have the sizes, strides and types of PyTorch's own formula, which is many operators."""
    from torch._decomp import decompositions

    norm = torch.nn.BatchNorm2d(3, track_running_stats=running, dtype=dtype).train(training)
    if not (training or running):
        norm.training = True  # without statistics of its own it takes the batch's
    given = (norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.training, 0.1, 1e-5, True)
    for x in (torch.empty(2, 3, 4, 5, dtype=dtype), torch.empty(2, 3, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)):
        theirs = decompositions.native_batch_norm_helper(x, *given)
        with batch_norms_whole():
            ours = decompositions.native_batch_norm_helper(x, *given)
        for a, b in zip(theirs, ours, strict=True):
            assert (a is None) == (b is None)
            assert a is None or (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_a_captured_batch_norm_asks_little_of_sizes() -> None:
    """PyTorch's formula makes a dozen operators of it on symbolic sizes, each time its sizes are asked for."""
    from torch._decomp import decompositions

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    formula = decompositions.native_batch_norm_helper
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "var_mean", lambda *_, **__: pytest.fail("a batch norm was gone through"))
        graph = capture(model, [torch.randn(2, 3, 8, 8)])
    assert decompositions.native_batch_norm_helper is formula
    assert sum("batch_norm" in str(node.target) for node in graph.nodes) == 1
    assert {output.kind for output in graph.outputs} == {"buffer", "return"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("layer", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN], ids=lambda layer: layer.__name__)
def test_recurrent_layers_are_not_gone_through(layer: type[torch.nn.RNNBase], both_ways: bool, batch_first: bool) -> None:
    """Their results have the sizes and strides of PyTorch's own, and the length of the sequence stays open."""
    model = layer(6, 5, 2, bidirectional=both_ways, batch_first=batch_first)
    x = torch.randn(4, 7, 6)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, recurrent_layers_whole():
        results = pytree.tree_leaves(model(fake.from_tensor(x)))
    for found, real in zip(results, pytree.tree_leaves(model(x)), strict=True):
        assert found.shape == real.shape and found.stride() == real.stride() and found.requires_grad == real.requires_grad

    graph = capture(model, [x])
    assert [str(node.target).rsplit(".", 1)[-1] for node in graph.nodes if "aten" in str(node.target)].count("input") == 1
    assert not any(isinstance(size, int) for size in (graph[graph.inputs[0]].shape or ())[:2])


class Windows(torch.nn.Module):
    """Cut out and put back, as often as there are blocks."""

    def __init__(self, blocks: int):
        super().__init__()
        self.blocks = blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.blocks):
            b, h, w, c = x.shape
            cut = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
            x = torch.relu(cut).view(b, h // 2, w // 2, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)
        return x


def test_a_trace_that_would_not_be_taken_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of windows are quotients of sizes, which nest from block to block; with a batch that varies alone they are numbers."""
    seen: list[int] = []
    is_quotient = captured._has_quotient
    monkeypatch.setattr(captured, "_has_quotient", lambda value: seen.append(is_quotient(value)) or seen[-1])
    graph = capture(Windows(6), [torch.randn(3, 8, 8, 6)])
    assert sum(seen) == captured.MOST_QUOTIENTS + 1
    shape = graph[graph.inputs[0]].shape
    assert shape is not None and [isinstance(size, int) for size in shape] == [False, True, True, True]


def test_a_length_beside_itself_stays_any_length() -> None:
    """Heads that are mixed: the tracer writes a length times itself, divided by itself."""

    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bhij,hg->bgij", torch.matmul(x, x.mT), w).softmax(-1)

    graph = capture(Mixed(), [torch.randn(3, 4, 20, 8), torch.randn(4, 4)])
    shape = graph["x"].shape
    assert shape is not None and not isinstance(shape[2], int)


def test_strides_that_meet_by_chance_fix_no_size() -> None:
    """Rows of a table of width 12, of which the first 6 are taken for each of two samples, lie where rows of 2 x 6 would."""

    class Queries(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.key = torch.nn.Parameter(torch.randn(5, 12)), torch.nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.table[:, :6].expand(x.shape[0], -1, -1).transpose(0, 1)
            return self.key(rows).sum((0, 2)) + x.sum(1)

    graph = capture(Queries(), [torch.randn(2, 3)])
    assert not isinstance((graph["x"].shape or (0,))[0], int)
