"""Operators that PyTorch composes of others are captured as those others, which mean the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fusewright.frontend.capture import capture
from fusewright.frontend.composed import COMPOSED, DECOMPOSED, known
from fusewright.ir.interpret import interpret
from fusewright.laws.rewrite import rewrite
from fusewright.ops.lower import lower
from fusewright.ops.registry import RECORDS
from fusewright.schedule.planner import plan

Function = Callable[[torch.Tensor, torch.Tensor], Any]

CASES: dict[str, Function] = {
    "arctan2": torch.arctan2,
    "broadcast_tensors": lambda x, y: torch.broadcast_tensors(x[:, None], y[0]),
    "chain_matmul": lambda x, y: torch.linalg.multi_dot([x, y.T, x]),
    "column_stack": lambda x, y: torch.column_stack([x, y]),
    "concat": lambda x, y: torch.concat([x, y], 1),
    "cosine_embedding_loss": lambda x, y: F.cosine_embedding_loss(x, y, torch.sign(y[:, 0] + 0.1), margin=0.2),
    "cumulative_trapezoid": lambda x, y: torch.cumulative_trapezoid(x, dx=0.5),
    "diff": lambda x, y: torch.diff(x, n=2, dim=0),
    "divide": lambda x, y: torch.divide(x, y, rounding_mode="floor"),
    "dstack": lambda x, y: torch.dstack([x, y]),
    "frobenius_norm": lambda x, y: torch.norm(x, "fro", dim=[0, 1]),
    "greater": torch.greater,
    "hstack": lambda x, y: torch.hstack([x, y]),
    "inner": torch.inner,
    "isclose": torch.isclose,
    "kron": torch.kron,
    "linalg_matrix_norm": lambda x, y: torch.linalg.matrix_norm(x, ord=1),
    "linalg_norm": lambda x, y: torch.linalg.norm(x),
    "linalg_vecdot": torch.linalg.vecdot,
    "logaddexp": torch.logaddexp,
    "logit": lambda x, y: torch.logit(torch.sigmoid(x), eps=1e-3),
    "meshgrid": lambda x, y: torch.meshgrid(x[0], y[0], indexing="ij"),
    "nanmean": lambda x, y: torch.nanmean(x, 1),
    "poisson_nll_loss": lambda x, y: F.poisson_nll_loss(x, y.abs(), full=True),
    "renorm": lambda x, y: torch.renorm(x, 2, 0, 1.0),
    "rot90": lambda x, y: torch.rot90(x, 3),
    "sinc": lambda x, y: torch.sinc(x),
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, torch.sign(y)),
    "special_log_softmax": lambda x, y: torch.special.log_softmax(x, 1),
    "tensordot": lambda x, y: torch.tensordot(x, y, ([1], [1])),
    "trace": lambda x, y: torch.trace(x),
    "vstack": lambda x, y: torch.vstack([x, y]),
}


class Two(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


@pytest.mark.parametrize("name", CASES)
def test_captured_as_what_it_is_composed_of(name: str) -> None:
    model, inputs = Two(CASES[name]), [torch.randn(5, 6), torch.randn(5, 6)]
    inputs[0][0, 0] = inputs[1][0, 0] = 0.0
    graph = capture(model, inputs)
    assert not any(str(node.target).startswith(f"aten.{name}.") for node in graph.nodes)
    expected = model(*inputs)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    for found, wanted in zip(interpret(graph, model, inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


def test_no_operator_has_both_a_record_and_a_formula() -> None:
    assert not known().keys() & RECORDS.keys()
    names = {str(target).split(".")[1] for target in known()}
    assert {"kron", "soft_margin_loss"} <= names <= {*COMPOSED, *DECOMPOSED}


@pytest.mark.parametrize("name", ["cosine_embedding_loss", "diff", "kron", "logaddexp", "logit", "renorm", "sinc", "soft_margin_loss"])
def test_and_left_to_no_library(name: str) -> None:
    graph, _ = rewrite(capture(Two(CASES[name]), [torch.randn(5, 6), torch.randn(5, 6)]))
    assert not plan(lower(graph)).calls
