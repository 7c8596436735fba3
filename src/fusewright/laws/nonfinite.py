"""Where a NaN or an Inf goes: which operators hand either on, and which tell them apart.

tanh(NaN) is NaN and tanh(Inf) is 1; the larger of NaN and 3 is NaN, of -Inf and 3 is 3. So a law that turns a NaN into
an Inf may be used only where nothing that follows makes a finite number of an Inf: else it would hide that something
went wrong.
"""

from __future__ import annotations

from torch._ops import OpOverload

from ..ir.graph import Graph, Node, Ref
from ..ops import registry
from ..ops.registry import INF, aten
from .ranges import range_of

# Records (by name) whose result is non-finite wherever an operand is, whatever its kind.
CARRY = set(
    "add sub rsub mul neg abs square sqrt log log2 log10 log1p sinh leaky_relu gelu silu mish hardswish "
    "view permute slice select flip stack identity cast sum cumsum mean avg_pool adaptive_avg_pool "
    "var norm group_norm layer_norm instance_norm batch_norm".split()
)
# Library calls that do.
CARRYING_CALLS = {
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
    *(aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default, aten.cat.default),
    *(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit_no_training.default),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int),
}
# Maxima and minima hand on NaN, and the Inf that lies on their side.
MAXIMA = {
    *(aten.max.default, aten.max.dim, aten.amax.default),
    *(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default),
}
MINIMA = {aten.min.default, aten.min.dim, aten.amin.default}
PARTS = {aten.max.dim, aten.min.dim}  # which give positions too

# Their means are Welford's: there an Inf is a NaN but where it stands last, with PyTorch as with us.
WELFORDS = {getattr(aten.var_mean, name) for name in aten.var_mean.overloads() if "out" not in name} | {
    getattr(aten.std_mean, name) for name in aten.std_mean.overloads() if "out" not in name
}


def has_welfords_means(graph: Graph) -> bool:
    """Some value is a mean of which the kind of a non-finite one says nothing."""
    return any(node.target == "getitem" and node.args[1] == 1 and graph[node.inputs[0]].target in WELFORDS for node in graph.nodes)


def tells_apart(graph: Graph, users: dict[str, list[str]], name: str) -> bool:
    """Something computed from this value may be finite where the value is Inf and would not be where it is NaN."""
    pending, seen = [name], set()
    while pending:
        here = pending.pop()
        if here in seen:
            continue
        seen.add(here)
        for user in users[here]:
            if user not in graph.index:
                continue  # the caller
            if not carries(graph, graph[user], here):
                return True
            pending.append(user)
    return False


def carries(graph: Graph, user: Node, operand: str) -> bool:
    if user.target in CARRYING_CALLS:
        return True
    if user.target in MAXIMA:
        return range_of(graph, operand)[0] > -INF
    if user.target in MINIMA:
        return range_of(graph, operand)[1] < INF
    if user.target == "getitem":
        parent = graph[operand].target
        return parent in CARRYING_CALLS or (parent in PARTS and user.args[1] == 0)
    record = registry.find(user, graph)
    if record is None:
        return False
    if record.name == "div":  # x / Inf is 0
        bound = user.bound() if isinstance(user.target, OpOverload) else {}
        return bound.get("other") != Ref(operand)
    return record.name in CARRY
