"""What a model computes under no_grad leaves it detached: the exporter knows such parts, and its decompositions forget them.

Under autocast the exporter itself forgets them: it cuts the program at each change of the grad mode, and takes a piece that begins with
autocast for one of the mode that is there already. So there they are detached before it cuts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._export.passes import replace_set_grad_with_hop_pass as passes

PASS = "replace_set_grad_with_hop_pass"


@contextlib.contextmanager
def detached_under_autocast() -> Iterator[None]:
    """While a model is exported."""
    cut = getattr(passes, PASS)

    def detached_and_cut(module: torch.fx.GraphModule, *others: Any) -> Any:
        if any(node.target is torch.amp.autocast_mode._enter_autocast for node in module.graph.nodes):
            detach_between_modes(module)
        return cut(module, *others)

    with mock.patch.object(passes, PASS, detached_and_cut):
        yield


def detach_between_modes(module: torch.fx.GraphModule) -> None:
    """What is computed while no gradients are asked for, and read while they are."""
    graph, enabled = module.graph, True
    without: set[torch.fx.Node] = set()  # what was computed so
    detached: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch._C._set_grad_enabled:
            enabled = bool(node.args[0])
        elif not enabled and node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            without.add(node)
        elif enabled:
            for given in [one for one in node.all_input_nodes if one in without]:
                if given not in detached:
                    with graph.inserting_before(node):
                        detached[given] = graph.call_function(torch.ops.aten.detach.default, (given,))
                    detached[given].meta = dict(given.meta)
                node.replace_input_with(given, detached[given])
    module.recompile()


def detach_what_needs_no_gradient(module: torch.nn.Module) -> None:
    """In the parts of an exported program that the exporter cut out."""
    for inner in (m for m in module.modules() if isinstance(m, torch.fx.GraphModule)):
        for call in inner.graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap_with_set_grad_enabled):
            part: Any = inner.get_submodule(str(call.args[1].target))
            if call.args[0]:  # enabled
                continue
            graph = part.graph
            output = graph.output_node()
            with graph.inserting_before(output):
                for changed in written(graph):
                    new = graph.call_function(torch.ops.aten.detach.default, (changed,))
                    put = graph.call_function(torch.ops.aten.copy_.default, (changed, new))
                    new.meta, put.meta = dict(changed.meta), dict(changed.meta)
                for result in output.all_input_nodes:
                    if isinstance(result.meta.get("val"), torch.Tensor):
                        detached = graph.call_function(torch.ops.aten.detach.default, (result,))
                        detached.meta = dict(result.meta)
                        output.replace_input_with(result, detached)
            part.recompile()


def written(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What such a part is given and changes in place: a buffer's average. Its new value has no gradient either."""
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None or not schema.is_mutable:
            continue
        given = [*zip(schema.arguments, node.args, strict=False), *((a, node.kwargs.get(a.name)) for a in schema.arguments)]
        for argument, value in given:
            while argument.is_write and isinstance(value, torch.fx.Node) and is_memory_of_another(value):
                value = value.args[0]
            if argument.is_write and isinstance(value, torch.fx.Node) and value.op == "placeholder":
                found[value] = None
    return list(found)


def is_memory_of_another(node: torch.fx.Node) -> bool:
    """It is its first argument, changed, or a view of it."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.returns) and schema.returns[0].alias_info is not None
