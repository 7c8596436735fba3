"""Calls of a graph of AOTAutograd in the form that laws and records know: what it takes apart is put together again.

`conv2d` reaches a compiler as `convolution`, `linear` as a product with a transposed weight between views, `group_norm` as the first of
three results. A form that does not fit stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..ir import sizes
from ..ir.graph import Graph, Node, Ref

aten = torch.ops.aten

CONVOLUTIONS = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
TRANSPOSED = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # operator, arguments, named ones


def whole(graph: Graph) -> Graph:
    """The same graph in whole operators; what nothing reads any more is left out."""
    made: dict[str, Node] = {}
    nodes: list[Node] = []
    users = graph.users()
    for node in graph.nodes:
        call = form_of(node, made, users)
        if call is not None:
            target, args, kwargs = call
            node = replace(node, target=target, args=args, kwargs=kwargs)
        made[node.name] = node
        nodes.append(node)
    return without_dead(replace(graph, nodes=tuple(nodes)))


def without_dead(graph: Graph) -> Graph:
    needed = {output.value.name for output in graph.outputs if isinstance(output.value, Ref)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.is_leaf or node.name in needed:
            needed.update(node.inputs)
            kept.append(node)
    return replace(graph, nodes=tuple(reversed(kept))).check()


def form_of(node: Node, made: dict[str, Node], users: dict[str, list[str]]) -> Call | None:
    """What a node is in another form; None where it stays."""
    if node.target == "getitem":
        source = made[node.args[0].name]
        alone = node.args[1] == 0 and users[source.name] == [node.name]
        form = FIRST_RESULTS.get(source.target)
        return form(source.bound(), made) if form is not None and alone else None
    if node.target is aten.convolution.default:
        return convolution(node, made)
    if node.target in (aten.addmm.default, aten.mm.default):
        return linear(node, made)
    if node.target in VIEWS:
        return linear_of_rows(node, made)
    return None


def convolution(node: Node, made: dict[str, Node]) -> Call | None:
    a = node.bound()
    weight = made[a["weight"].name].shape
    rank = len(weight or ()) - 2
    if rank not in CONVOLUTIONS or not all(isinstance(item, int) for item in (*a["padding"], *a["output_padding"])):
        return None
    if a["transposed"]:
        given = (a["input"], a["weight"], a["bias"], a["stride"], a["padding"], a["output_padding"], a["groups"], a["dilation"])
        return TRANSPOSED[rank], given, {}
    return CONVOLUTIONS[rank], (a["input"], a["weight"], a["bias"], a["stride"], a["padding"], a["dilation"], a["groups"]), {}


def linear(node: Node, made: dict[str, Node]) -> Call | None:
    """x·wᵀ (+ b) of rows."""
    a = node.bound()
    plain = node.target is aten.mm.default
    bias, rows, transposed = (None, a["self"], a["mat2"]) if plain else (a["self"], a["mat1"], a["mat2"])
    weight = untransposed(made[transposed.name], made)
    scaled = not plain and (a["alpha"] != 1 or a["beta"] != 1)
    columns = node.shape[1] if node.shape is not None else None
    is_bias = bias is None or made[bias.name].shape == (columns,)
    return (aten.linear.default, (rows, weight, bias), {}) if weight is not None and is_bias and not scaled else None


def untransposed(node: Node, made: dict[str, Node]) -> Ref | None:
    """The leaf whose transpose a node is: a weight as a layer keeps it."""
    is_transpose = node.target is aten.t.default
    is_transpose |= node.target is aten.permute.default and list(node.args[1]) == [1, 0]
    is_transpose |= node.target is aten.transpose.int and {dim % 2 for dim in node.args[1:]} == {0, 1}
    if not is_transpose or not made[node.args[0].name].is_leaf:
        return None
    found: Ref = node.args[0]
    return found


def linear_of_rows(node: Node, made: dict[str, Node]) -> Call | None:
    """linear(x as rows), seen in x's shape: linear(x)."""
    source = made[node.args[0].name]
    if source.target is not aten.linear.default or not isinstance(source.args[0], Ref):
        return None
    rows = made[source.args[0].name]
    if rows.target not in VIEWS or not isinstance(rows.args[0], Ref):
        return None
    before = made[rows.args[0].name].shape
    if before is None or node.shape is None or rows.shape is None or len(before) != len(node.shape) or len(before) < 2:
        return None
    fits = same(before[:-1], node.shape[:-1]) and same(before[-1:], rows.shape[-1:])
    return (aten.linear.default, (rows.args[0], *source.args[1:]), {}) if fits else None


def same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return len(first) == len(second) and all(sizes.same(a, b) for a, b in zip(first, second, strict=True))


# ---- the first of several results, where nothing reads the others


Nodes = dict[str, Node]


def group_norm(a: dict[str, Any], made: Nodes) -> Call:
    return aten.group_norm.default, (a["input"], a["group"], a["weight"], a["bias"], a["eps"]), {}


def layer_norm(a: dict[str, Any], made: Nodes) -> Call:
    return aten.layer_norm.default, (a["input"], a["normalized_shape"], a["weight"], a["bias"], a["eps"]), {}


def attention(a: dict[str, Any], made: Nodes) -> Call | None:
    """By any of the library's kernels for it, with as many heads for keys as for queries."""
    heads = {(made[a[name].name].shape or ())[:-2] for name in ("query", "key", "value")}
    if a.get("dropout_p", 0.0) != 0.0 or len(heads) > 1:
        return None
    mask = a.get("attn_mask", a.get("attn_bias"))
    given = (a["query"], a["key"], a["value"], mask, 0.0, a["is_causal"])
    return aten.scaled_dot_product_attention.default, given, {"scale": a["scale"]}


def pool(target: Any) -> Callable[[dict[str, Any], Nodes], Call]:
    def form(a: dict[str, Any], made: Nodes) -> Call:
        return target, (a["self"], a["kernel_size"], a["stride"], a["padding"], a["dilation"], a["ceil_mode"]), {}

    return form


FIRST_RESULTS: dict[Any, Callable[[dict[str, Any], Nodes], Call | None]] = {
    aten.native_group_norm.default: group_norm,
    aten.native_layer_norm.default: layer_norm,
    aten.max_pool2d_with_indices.default: pool(aten.max_pool2d.default),
    aten.max_pool3d_with_indices.default: pool(aten.max_pool3d.default),
}
for _name in ("flash_attention_for_cpu", "efficient_attention", "flash_attention", "cudnn_attention"):
    _packet = getattr(aten, f"_scaled_dot_product_{_name}", None)
    if _packet is not None:  # of this version of PyTorch
        FIRST_RESULTS[_packet.default] = attention
