"""What values can be, what follows from it, and what the user is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import lawbook
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.frontend.dependence import unused_inputs
from fusewright.laws.examples import Chain, OfOne, OfTwo
from fusewright.laws.ranges import range_of
from fusewright.laws.rewrite import rewrite

INF = float("inf")

RANGES: list[tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = [
    (lambda x: torch.tanh(x) * 3 - 1, (-4, 2)),
    (lambda x: 2 - torch.sigmoid(x), (1, 2)),
    (lambda x: torch.exp(torch.tanh(x)), (math.exp(-1), math.e)),
    (lambda x: x * x + 1, (1, INF)),
    (lambda x: (lambda t: t * t)(torch.tanh(x)), (0, 1)),
    (lambda x: x.clamp(-2, 3).sum(1), (-10, 15)),
    (lambda x: torch.relu(x).sum(0), (0, INF)),
    (lambda x: x.softmax(1).log(), (-INF, 0)),
    (lambda x: torch.sigmoid(x) / (torch.sigmoid(x) + 1), (0, 1)),
    (lambda x: F.layer_norm(x, (5,)), (-2, 2)),
    (lambda x: F.elu(x), (-1, INF)),
    (lambda x: F.leaky_relu(torch.tanh(x), 0.5), (-0.5, 1)),
    (lambda x: torch.where(x > 0, torch.sigmoid(x), -2.0), (-2, 1)),
    (lambda x: torch.cat([torch.sigmoid(x), torch.tanh(x)]), (-1, 1)),
    (lambda x: torch.sigmoid(x).logsumexp(1), (math.log(5), 1 + math.log(5))),
    (lambda x: F.hardtanh(x).view(-1, 5, 1).permute(0, 2, 1).amax(2), (-1, 1)),
    (lambda x: x.abs().sqrt(), (0, INF)),
    (lambda x: torch.maximum(torch.sigmoid(x), torch.tanh(x)), (0, 1)),
    (lambda x: x.clamp(-2, 1) ** 2, (0, 4)),
    (lambda x: x - x, (0, 0)),
    (lambda x: x + 1, (-INF, INF)),
]


@pytest.mark.parametrize(("function", "expected"), RANGES)
def test_range(function: Callable[[Tensor], Tensor], expected: tuple[float, float]) -> None:
    model = OfOne(function)
    graph = lawbook.captured(model, [(4, 5)])
    found = range_of(graph, graph.outputs[0].value.name)
    assert found == pytest.approx(expected)
    lawbook.assert_in_range(graph, model)


def warned(model: nn.Module, *shapes: tuple[int, ...]) -> list[str]:
    graph = lawbook.captured(model, shapes)
    before, after = unused_inputs(graph), unused_inputs(rewrite(graph)[0])
    assert bool(before) == bool(after), "a law must not change what is known of the model"
    return after


DEAD: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "never read": (lambda x, y: torch.tanh(x), ((4, 5), (4, 5))),
    "minus its own mean over one": (lambda x, y: F.gelu(y - y.mean(1, keepdim=True)) + x, ((4, 5), (4, 1))),
    "softmax over one": (lambda x, y: x * y.softmax(1), ((4, 5), (4, 1))),
    "group norm of one value": (lambda x, y: F.group_norm(y, 3) + x, ((4, 3), (4, 3))),
    "relu of what is never positive": (lambda x, y: x + torch.relu(-torch.exp(y)), ((4, 5), (4, 5))),
    "times zero": (lambda x, y: x + y * 0, ((4, 5), (4, 5))),
}


@pytest.mark.parametrize("why", DEAD)
def test_an_input_without_influence_is_reported(why: str) -> None:
    function, shapes = DEAD[why]
    found = warned(OfTwo(function), *shapes)
    assert len(found) == 1 and found[0].startswith("output does not depend on input 1 (y)")
    if why != "never read":
        assert "is always" in found[0] and "examples.py:" in found[0]


def test_every_other_input_is_not() -> None:
    assert not warned(OfTwo(lambda x, y: x - y.mean(1, keepdim=True)), (4, 5), (4, 5))
    assert not warned(Chain(nn.Linear(6, 5), lambda y: y - y.sum(1, keepdim=True)), (4, 6))
    assert not warned(OfTwo(lambda x, y: torch.relu(x) + y.softmax(1)), (4, 5), (4, 5))
