"""One trace gives the program that PyTorch's `run_decompositions` gives, or leaves it to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

from fusewright.driver.pipeline import on_the_cpu
from fusewright.frontend import capture as capturing
from fusewright.frontend import composed
from fusewright.frontend.functional import Retrace, can_be_retraced, functional
from fusewright.frontend.problem import load_problem
from fusewright.ir.graph import Graph, Where

MODELS = sorted((Path(__file__).parents[1] / "models").glob("*.py"))
ZOO = Path(__file__).parents[2] / "zoo"
LISTED = ["single/inplace", "single/shapes", "single/constant_table", "single/norm_options", "network/shared_parameters"]


class Given(nn.Module):
    """A forward of one line or a few, and what it uses."""

    def __init__(self, forward: Callable[..., Any], **held: Any):
        super().__init__()
        self.line = forward
        for name, value in held.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *given: Any) -> Any:
        return self.line(self, *given)


def changes_values(m: Any, x: Tensor) -> Any:
    y = (x * 2).add_(1)
    y[1:3].mul_(3)
    y[:, 2] = 0
    return y.relu_(), y[1]


def changes_a_view_of_its_input(m: Any, x: Tensor) -> Any:
    x.view(-1)[2:5].add_(1)
    return x.sum(), x


def averages(m: Any, x: Tensor) -> Any:
    m.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
    m.last.copy_(x[0])
    return x - m.average


def assigns(m: Any, x: Tensor) -> Any:
    m.average = m.average * 0.5 + x.mean(0)
    return x - m.average


def without_gradient(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        scale = x.abs().mean()
    return x / scale


def half(m: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return m.layer(x)


def turns_its_input(m: Any, x: Tensor) -> Any:
    return x.t_() + 1


ROWS = torch.arange(24.0).reshape(4, 6)
IMAGE = torch.arange(128.0).reshape(2, 4, 4, 4)
SEQUENCE = torch.arange(48.0).reshape(2, 4, 6)

RETRACED: dict[str, tuple[nn.Module, list[Any]]] = {
    "values changed in place": (Given(changes_values), [ROWS]),
    "an input changed through a view": (Given(changes_a_view_of_its_input), [ROWS]),
    "buffers": (Given(averages, average=torch.zeros(6), last=torch.zeros(6)), [ROWS]),
    "a part of a buffer": (Given(lambda m, x: (m.b[:3].add_(1), x * m.b)[1], b=torch.zeros(6)), [ROWS]),
    "a buffer assigned": (Given(assigns, average=torch.zeros(6)), [ROWS]),
    "batch norm in training": (nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True)), [IMAGE]),
    "batch norm": (nn.BatchNorm2d(4).eval(), [IMAGE]),
    "dropout": (nn.Dropout(0.3), [ROWS]),
    "no dropout": (nn.Dropout(0.3).eval(), [ROWS]),
    "structure": (Given(lambda m, x: {"a": x + 1, "b": [x * 2, (x.mean(), 3, None)]}), [ROWS]),
    "one value twice, and an input": (Given(lambda m, x: (y := x + 1, y, x, x.t())), [ROWS]),
    "sizes": (Given(lambda m, x: (x.reshape(-1, 3), x.shape[0], x.flatten().chunk(2))), [ROWS]),
    "a list and a number": (Given(lambda m, xs, s: xs[0] + s * xs[1]), [[ROWS, ROWS + 1], 2.0]),
    "a constant": (Given(lambda m, x: x + torch.tensor([1.0, 2, 3, 4, 5, 6])), [ROWS]),
    "LSTM": (nn.LSTM(6, 5, batch_first=True), [SEQUENCE]),
    "attention": (Given(lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), [IMAGE]),
    "heads": (Given(lambda m, x: m.heads(x, x, x)[0], heads=nn.MultiheadAttention(6, 2, batch_first=True)), [SEQUENCE]),
    "einsum": (Given(lambda m, x: torch.einsum("ij,kj->ik", x, x)), [ROWS]),
    "a layer twice": (Given(lambda m, x: m.layer(m.layer(x)), layer=nn.Linear(6, 6)), [ROWS]),
    "chosen by values": (Given(lambda m, x: torch.where(x > 3, x, 0.0).masked_fill_(x < 1, 2)), [ROWS]),
}

LEFT: dict[str, tuple[nn.Module, list[Any]]] = {
    "an input twice": (Given(lambda m, x, y: x + y), [ROWS, ROWS]),
    "an input and its view": (Given(lambda m, x, y: x + y), [ROWS, ROWS[:]]),
    "an input and its view, changed": (Given(lambda m, x, y: x.add_(1) * y), [ROWS, ROWS[:]]),
    "no gradient": (Given(without_gradient), [ROWS]),
    "autocast": (Given(half, layer=nn.Linear(6, 6)), [ROWS]),
    "a parameter changed": (Given(lambda m, x: m.w.detach().add_(1) * x, w=nn.Parameter(torch.ones(6))), [ROWS]),
    "an input turned": (Given(turns_its_input), [ROWS]),
}


class Named(nn.Module):
    """Its inputs are called what the tracer would call its calls."""

    def forward(self, add: Tensor, mul: Tensor) -> Tensor:
        return add + mul * add


LEFT["calls named as inputs"] = (Named(), [ROWS, ROWS + 1])


def captured(way: Callable[[ExportedProgram], ExportedProgram], given: Any, file: str = "") -> str:
    """What capture says, or why it refuses. Files that PyTorch makes up have numbers that count, so they are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capturing, "functional", way)
        model, inputs = given
        try:
            graph: Graph = capturing.capture(model, inputs, file)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    said = {field.name: getattr(graph, field.name) for field in fields(graph)}
    said["nodes"] = [replace(node, where=Where()) if "<" in node.where.file else node for node in graph.nodes]
    return repr(said)


def pytorch(exported: ExportedProgram) -> ExportedProgram:
    return exported.run_decompositions(dict(composed.known()))


def one_trace(exported: ExportedProgram) -> ExportedProgram:
    found = Retrace(exported).program() if can_be_retraced(exported) else None
    assert found is not None
    return found


@pytest.mark.parametrize("name", RETRACED)
def test_one_trace_is_enough(name: str) -> None:
    assert captured(one_trace, RETRACED[name]) == captured(pytorch, RETRACED[name])


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_one_trace_is_enough_for_models(path: Path) -> None:
    given = on_the_cpu(load_problem(path))
    assert captured(one_trace, given, str(path)) == captured(pytorch, given, str(path))


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_to_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = captured(pytorch, LEFT[name])
    asked, theirs = [], ExportedProgram.run_decompositions
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda *given: asked.append(given) or theirs(*given))
    assert captured(functional, LEFT[name]) == wanted
    assert asked


@pytest.mark.parametrize("name", LISTED)
def test_files_are_captured_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_ZOO", "small")
    path = ZOO / f"{name}.py"
    given = on_the_cpu(load_problem(path))
    assert captured(functional, given, str(path)) == captured(pytorch, given, str(path))


def test_what_a_version_lacks_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = captured(pytorch, RETRACED["buffers"])
    monkeypatch.setattr(Retrace, "trace", lambda retrace: retrace.what_a_version_lacks)
    assert captured(functional, RETRACED["buffers"]) == wanted
