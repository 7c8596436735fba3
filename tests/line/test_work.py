"""How often things are done between capture and the file: counts, which say more than seconds on a machine with other work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusewright.autograd import trace
from fusewright.autograd.trace import Trace
from fusewright.codegen.mma import conv_tiles
from fusewright.codegen.mma.conv_spec import VALUE, Conv, Epilogue, Pointwise
from fusewright.driver import front as driver_front
from fusewright.driver import pipeline
from fusewright.driver.tuning.choices import PREDICTED
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.ir import functions as fn
from fusewright.ir.expr import Name
from fusewright.options import Options

MODELS = Path(__file__).parents[1] / "models"


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> list[Any]:
    """What a function is called with, from now on."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *given, **named: calls.append(given) or real(*given, **named))
    return calls


def test_layers_of_one_form_share_the_search_for_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = Conv(2, 48, 80, (3, 3), (1, 1), (1, 1), (1, 1))
    first, second = (Epilogue(Pointwise(VALUE + Name(name))) for name in "ab")
    tiles = conv_tiles.candidate_tiles(conv, first)
    layouts = counted(monkeypatch, conv_tiles, "layout")
    assert tiles and conv_tiles.candidate_tiles(conv, second) == tiles
    assert layouts == []


def test_one_tile_is_enough_to_know_that_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = Conv(2, 40, 72, (3, 3), (1, 1), (1, 1), (1, 1))
    layouts = counted(monkeypatch, conv_tiles, "layout")
    assert conv_tiles.fits(conv, Epilogue())
    few = len(layouts)
    assert len(conv_tiles.candidate_tiles(conv, Epilogue())) > 1
    assert few < (len(layouts) - few) / 4


def test_instructions_of_a_chain_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counted(monkeypatch, conv_tiles, "slots")
    body = Pointwise(fn.fmax(VALUE, 0.731))
    conv_tiles.best_tile(Conv(2, 56, 88, (3, 3), (1, 1), (1, 1), (1, 1)), Epilogue(body), (4, 32, 32))
    assert [part for part, *_ in counts].count(body.result) == 1


def test_a_plan_is_made_once_and_gradients_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    front = pipeline.read_problem(load_problem(MODELS / "conv_norm_residual.py"), Options())
    plans, traces = counted(monkeypatch, driver_front, "plan"), counted(monkeypatch, trace, "Trace")
    made, _ = front.finish(PREDICTED)
    assert len(plans) == 1
    assert 0 < len(traces) <= len(made.kernels)


def test_regions_that_differ_in_names_share_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = capture(nn.Sequential(*(nn.Sequential(nn.GELU(), nn.LayerNorm(8)) for _ in range(3))), [torch.randn(4, 8)])
    calls = [node for node in graph.nodes if not node.is_leaf]
    leaves = [node.name for node in graph.nodes if node.target == "parameter"]
    each, traces = len(calls) // 3, dict[str, Trace | None]()
    asked = counted(monkeypatch, trace, "Trace")
    source = graph.inputs[0]
    for number in range(3):
        nodes = calls[number * each : (number + 1) * each]
        arguments = [source, *leaves[2 * number : 2 * number + 2]]
        source = next(node.name for node in reversed(nodes) if node.shape is not None)
        assert trace.gradient_graph(graph, nodes, arguments, [source], arguments, traces) is not None
    assert len(asked) == 1


def test_what_was_kept_has_one_name_for_each_size() -> None:
    """Nothing has to be proved equal to the sizes of what computed it, and nothing is left to test in backward."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.InstanceNorm2d(4), nn.Tanh())
    graph = capture(model, [torch.randn(2, 3, 17, 15)])
    nodes = [node for node in graph.nodes if not node.is_leaf]
    given = [node for node in graph.nodes if node.is_leaf]
    wanted = [node.name for node in given if node.target == "parameter"]
    kept = next(node for node in nodes if "conv" in str(node.target))
    assert Trace(graph, nodes, given, [nodes[-1]], wanted, [kept]).guards == ()
