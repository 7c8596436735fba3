"""Runs a graph with PyTorch's operators: the meaning of a graph, in any precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import nn

from .graph import Graph, Node, Ref


def interpret(graph: Graph, model: nn.Module, inputs: Sequence[Any]) -> list[Any]:
    """The graph's outputs (returned values and buffer updates) for these inputs and the model's parameters."""
    symbols = {symbol: inputs[b.input].shape[b.dim] for symbol, b in graph.symbols.items()}
    values: dict[str, Any] = {}
    for node in graph.nodes:
        values[node.name] = _leaf(node, model, inputs) if node.is_leaf else call(node, values, symbols)
    return [values[o.value.name] if isinstance(o.value, Ref) else o.value for o in graph.outputs]


def _leaf(node: Node, model: nn.Module, inputs: Sequence[Any]) -> Any:
    if node.target == "input":
        return inputs[node.args[0]]
    if node.target == "constant" and "value" in node.kwargs:
        value = node.kwargs["value"]
        like = next((x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()), None)
        return value.to(like.dtype) if like is not None and value.is_floating_point() else value
    owner: Any = model
    for part in node.args[0].split("."):
        owner = getattr(owner, part)
    return owner


def call(node: Node, values: Mapping[str, Any], symbols: Mapping[sympy.Symbol, int]) -> Any:
    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return values[value.name]
        if isinstance(value, (list, tuple)):
            return [argument(item) for item in value]
        if isinstance(value, sympy.Basic):
            number = value.subs(symbols)
            return int(number) if number.is_Integer else float(number)
        return value

    if node.target == "getitem":
        return values[node.args[0].name][node.args[1]]
    assert not isinstance(node.target, str)
    return node.target(*[argument(a) for a in node.args], **{k: argument(v) for k, v in node.kwargs.items()})
