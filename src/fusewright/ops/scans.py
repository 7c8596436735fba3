"""Operators that give every element of a row what comes before it in the row, together with itself."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import sizes
from ..ir.graph import Node
from ..ir.prims import Scan
from .declare import element_of, float_result, lowers, value_of
from .lowering import Lowering
from .registry import aten

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LONG_ROW = 1 << 14  # elements from which a row that is alone is cut into pieces by PyTorch; a kernel of ours keeps it in one block


def running(build: Lowering, kind: str, source: str, dim: int, dtype: torch.dtype) -> str | None:
    """A scan of the source in the type of the result."""
    source, shape = float_result(build, source, dtype), build[source].shape
    if not shape or sizes.is_one(shape[dim]):
        return source
    rows = sizes.product(size for d, size in enumerate(shape) if d != dim % len(shape))
    if build.graph.hint(rows) == 1 and build.graph.hint(shape[dim]) >= LONG_ROW:
        return None
    return build.add("", Scan(kind, dim % len(shape)), [source], shape, dtype)


@lowers("cumsum", aten.cumsum.default)
def cumsum(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if node.dtype not in (*FLOATS, torch.int64, torch.int32):
        return None
    return running(build, "Sum", value_of(build, a["self"]), a["dim"], node.dtype)


@lowers("cumprod", aten.cumprod.default)
def cumprod(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if node.dtype not in (*FLOATS, torch.int64, torch.int32):
        return None
    return running(build, "Product", value_of(build, a["self"]), a["dim"], node.dtype)


@lowers("logcumsumexp", aten.logcumsumexp.default)
def logcumsumexp(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    if node.dtype not in FLOATS:
        return None
    return running(build, "LogSumExp", value_of(build, a["self"]), a["dim"], node.dtype)


@element_of(aten.cummax.default, aten.cummin.default)
def running_extreme(build: Lowering, node: Node, a: dict[str, Any], i: int, parent: Node) -> str | None:
    """The values alone; where the positions are wanted too, PyTorch computes both at once."""
    users = build.graph.users()
    elements = [n for n in build.graph.nodes if n.target == "getitem" and n.args[0].name == parent.name]
    only_values = all(not users[n.name] for n in elements if n.args[1] != 0)
    if node.dtype not in FLOATS or i != 0 or not only_values:
        return None
    kind = "Max" if "cummax" in str(parent.target) else "Min"
    return running(build, kind, value_of(build, a["self"]), a["dim"], node.dtype)
