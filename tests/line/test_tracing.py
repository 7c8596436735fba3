"""What the tracer leaves out is there again for whoever asks for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from fusewright.capture import capture
from fusewright.tracing import lean, recurrent_layers_whole, without_memory_formats

UNITS = """
import sys, sympy
from fusewright.tracing import UNITS, NoUnits, without_units
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
