"""Operators that autocast does not cast, composed of some that it does: `einsum` on the CPU, `cross_entropy` and padding="same" on CUDA.

They stay whole in a graph, below autocast, and would compute in the types that they are given. So they are given what they compute in.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from .cuda_casts import narrow


def cast_what_is_cast_inside(program: torch.nn.Module) -> None:
    """In the parts of an exported program that stand under autocast."""
    for outer in [part for part in program.modules() if isinstance(part, torch.fx.GraphModule)]:
        for region in outer.graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_autocast):
            kind, _, enabled, _, body, *_ = region.args
            if enabled:
                part: Any = outer.get_submodule(str(body.target))
                for call in [node for node in part.graph.nodes if node.op == "call_function"]:
                    dtype = cast_inside(call, kind)
                    if dtype is not None:
                        cast_arguments(part.graph, call, dtype)
                part.recompile()


def cast_inside(call: torch.fx.Node, kind: str) -> torch.dtype | None:
    """The type of its results under autocast, where it would have another without."""
    target = call.target
    if not isinstance(target, OpOverload) or not target._can_decompose() or is_cast(target):
        return None
    args, kwargs = torch.fx.map_arg((call.args, dict(call.kwargs)), lambda node: node.meta["val"])
    fake, found, plainly = detect_fake_mode((args, kwargs)), types_of(call.meta["val"]), list[torch.dtype]()
    with contextlib.suppress(RuntimeError), fake or contextlib.nullcontext(), torch.autocast(kind, enabled=False), torch.no_grad():
        plainly = types_of(target(*args, **kwargs))  # it need not take tensors of several types
    return found[0] if found != plainly and len(set(found)) == 1 else None


def is_cast(target: OpOverload) -> bool:
    """Autocast has a kernel of its own for it. Models are captured on the CPU, whosever casts these are."""
    name, key = target.name(), "AutocastCPU"
    has, left_alone = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough
    return has(name, key) and not left_alone(name, key)


def cast_arguments(graph: torch.fx.Graph, call: torch.fx.Node, dtype: torch.dtype) -> None:
    with graph.inserting_before(call):
        for given in call.all_input_nodes:
            value: Any = given.meta.get("val")
            if narrow(value) and value.dtype is not dtype:
                cast = graph.call_function(torch.ops.aten._to_copy.default, (given,), {"dtype": dtype})
                cast.meta = {**call.meta, "val": value.to(dtype)}
                call.replace_input_with(given, cast)


def types_of(value: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
