"""How a law is held to its word: both sides of it, run in float64 on random draws, sizes and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import Tensor, nn

import fusewright.laws.book  # noqa: F401  fills LAWS
from fusewright.frontend.capture import capture
from fusewright.ir.graph import Graph, Node, Output, Ref
from fusewright.ir.interpret import interpret
from fusewright.laws.law import LAWS, NONFINITE_KIND, Applied, Law
from fusewright.laws.ranges import range_of
from fusewright.laws.rewrite import rewrite
from fusewright.options import Options

FINITE = Options(assume_finite=True)  # laws that need it are tried too
NAMES = {law.name: law for law in LAWS}


def captured(model: nn.Module, shapes: Sequence[Sequence[int]]) -> Graph:
    return capture(model, [torch.randn(*shape) for shape in shapes])


def rewritten(graph: Graph, *laws: Law) -> tuple[Graph, tuple[Applied, ...]]:
    return rewrite(graph, FINITE, laws=list(laws) if laws else None)


def sizes_to_test(graph: Graph) -> Iterator[list[tuple[int, ...]]]:
    """The example's own input shapes, then with every symbolic size changed, where the model's guards allow it."""
    for change in (0, 1, 2, 5):
        values = {s: b.hint + change * (1 + i % 2) for i, (s, b) in enumerate(graph.symbols.items())}
        if all(bool(sympy.sympify(guard).subs(values)) for guard in graph.guards) and (values or not change):
            yield [tuple(_size(size, values) for size in graph[name].shape or ()) for name in graph.inputs]


def _size(size: Any, values: dict[sympy.Symbol, int]) -> int:
    return size if isinstance(size, int) else int(size.subs(values))


def draw(shapes: Sequence[tuple[int, ...]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def redraw_parameters(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))


def values_and_gradients(graph: Graph, model: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, and the gradients of a random combination of them for every input and parameter."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = [o for o in run(graph, model, leaves) if isinstance(o, Tensor)]
    generator = torch.Generator().manual_seed(7)
    smooth = [o for o in outputs if o.is_floating_point() and o.requires_grad]
    loss = sum((o * torch.randn(o.shape, generator=generator, dtype=o.dtype)).sum() for o in smooth)
    wanted = [*leaves, *[p for p in model.parameters() if p.requires_grad]]
    if not isinstance(loss, Tensor):
        return outputs, [torch.zeros_like(w) for w in wanted]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return outputs, [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


def run(graph: Graph, model: nn.Module, inputs: Sequence[Tensor]) -> list[Any]:
    """A graph's results; random numbers are the same each time."""
    torch.manual_seed(3)
    return interpret(graph, model, inputs)


def assert_same_meaning(before: Graph, after: Graph, model: nn.Module) -> None:
    """Equal values, gradients and shapes in float64, on several draws and sizes."""
    model = model.double()
    for seed, shapes in enumerate(sizes_to_test(before)):
        redraw_parameters(model, seed)
        inputs = draw(shapes, seed)
        old, old_gradients = values_and_gradients(before, model, inputs)
        new, new_gradients = values_and_gradients(after, model, inputs)
        assert len(old) == len(new)
        for a, b in zip([*old, *old_gradients], [*new, *new_gradients], strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(b.double(), a.double(), rtol=1e-9, atol=1e-9, equal_nan=True)
        check_shapes(after, model, inputs)


def check_shapes(graph: Graph, model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """What a node says of its shape is what it has."""
    values = {s: inputs[b.input].shape[b.dim] for s, b in graph.symbols.items()}
    nodes = [node for node in graph.nodes if node.shape is not None]
    every = Graph(graph.nodes, graph.inputs, tuple(Output(Ref(node.name)) for node in nodes), graph.symbols)
    for node, value in zip(nodes, interpret(every, model, inputs), strict=True):
        said = tuple(_size(size, values) for size in node.shape or ())
        assert said == tuple(value.shape), f"{node.name} says {said} and is {tuple(value.shape)}"


def assert_keeps_nonfinite(before: Graph, model: nn.Module, *laws: Law) -> None:
    """One NaN or Inf in an input: finite stays finite, non-finite stays non-finite, of its kind unless a law says so.

    The same where a tanh follows, which makes a finite number of an Inf.
    """
    model = model.double()
    shapes = next(iter(sizes_to_test(before)))
    for original in (before, with_tanh(before)):
        after, applied = rewrite(original, Options(), laws=list(laws) or None)
        kind_may_change = any(NONFINITE_KIND in step.tags for step in applied)
        for inputs, what in spoiled(shapes) if applied else ():
            with torch.no_grad():
                old, new = (run(g, model, inputs) for g in (original, after))
            for a, b in zip(old, new, strict=True):
                if isinstance(a, Tensor) and a.is_floating_point():
                    assert torch.equal(torch.isfinite(a), torch.isfinite(b)), what
                    assert kind_may_change or torch.equal(torch.isnan(a), torch.isnan(b)), f"{what}: another kind"


def spoiled(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[list[Tensor], str]]:
    """Inputs with one value that is not finite, and its description."""
    for value in (float("nan"), float("inf"), float("-inf")):
        for position in range(len(shapes)):
            inputs = draw(shapes, 3)
            flat = inputs[position].view(-1)
            flat[flat.numel() // 2] = value
            yield inputs, f"one {value} in input {position}"


def assert_in_range(graph: Graph, model: nn.Module) -> None:
    """Every value of the graph lies in its interval or is NaN, on ordinary, huge and infinite inputs."""
    model = model.double()
    shapes = next(iter(sizes_to_test(graph)))
    nodes = [node for node in graph.nodes if node.shape is not None and node.dtype is not None]
    every = Graph(graph.nodes, graph.inputs, tuple(Output(Ref(node.name)) for node in nodes), graph.symbols)
    large = [[1e3 * x for x in draw(shapes, 5)], [1e30 * x for x in draw(shapes, 6)]]
    for inputs in (draw(shapes, 4), *large, *(inputs for inputs, _ in spoiled(shapes))):
        with torch.no_grad():
            values = interpret(every, model, inputs)
        for node, value in zip(nodes, values, strict=True):
            low, high = range_of(graph, node.name)
            known = value.double()[~torch.isnan(value.double())]
            slack = 1e-7 * (1 + known.abs())
            inside = (known >= low - slack) & (known <= high + slack) | torch.isinf(known)
            assert bool(inside.all()), f"{node.name} = {known[~inside]} is not in [{low}, {high}]"
            infinite = known[torch.isinf(known)]
            assert bool(((infinite >= low) & (infinite <= high)).all()), (
                f"{node.name} is infinite, not in [{low}, {high}]"
            )


def with_tanh(graph: Graph) -> Graph:
    """The graph with a tanh on each of its floating-point results."""
    nodes, outputs = list(graph.nodes), []
    for i, output in enumerate(graph.outputs):
        node = graph[output.value.name] if isinstance(output.value, Ref) else None
        if node is None or node.dtype is None or not node.dtype.is_floating_point:
            outputs.append(output)
            continue
        nodes.append(Node(f"tanh_of_{i}", torch.ops.aten.tanh.default, (output.value,), {}, node.shape, node.dtype))
        outputs.append(Output(Ref(f"tanh_of_{i}")))
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs)).check()
