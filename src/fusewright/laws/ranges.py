"""What values can be: for each node an interval that holds every element, or the element is NaN.

True for all inputs and parameters, infinite ones too, in exact arithmetic; rounding may step over a bound by a few
units in the last place. The result of an operator that is not known here can be anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from ..ir import sizes
from ..ir.graph import Graph, Node, Ref
from ..ops import registry
from ..ops.declare import dims_of
from ..ops.registry import INF, Interval, aten

ANY: Interval = (-INF, INF)
Rule = Callable[["Ranges", Node, dict[str, Any]], Interval]
RULES: dict[Any, Rule] = {}


def range_of(graph: Graph, name: str) -> Interval:
    """The interval of a node's value."""
    found = graph.__dict__.get("_ranges")
    if found is None:
        found = Ranges(graph)
        object.__setattr__(graph, "_ranges", found)
    return found[name]


def keep_ranges(old: Graph, new: Graph, names: set[str]) -> None:
    """What is known of these values of `old` holds in `new`, where they are computed from the same."""
    known = old.__dict__["_ranges"].known if "_ranges" in old.__dict__ else {}
    ranges = Ranges(new)
    ranges.known = {name: known[name] for name in names & known.keys() if name in new.index}
    object.__setattr__(new, "_ranges", ranges)


def is_constant(interval: Interval) -> bool:
    return interval[0] == interval[1] and math.isfinite(interval[0])


class Ranges:
    """Intervals of a graph's values, found when asked for."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.known: dict[str, Interval] = {}

    def __getitem__(self, name: str) -> Interval:
        pending = [name]
        while pending:  # not by recursion: a graph can be thousands of nodes deep
            here = self.graph[pending[-1]]
            waiting = [n for n in here.inputs if n not in self.known]
            if here.name in self.known or not waiting:
                pending.pop()
                self.known.setdefault(here.name, tidy(self._of(here)))
            pending += waiting if here.name not in self.known else []
        return self.known[name]

    def value(self, argument: Any) -> Interval:
        """The interval of an argument: a value's, or the number itself."""
        if isinstance(argument, Ref):
            return self.known[argument.name]
        if isinstance(argument, (bool, int, float)):
            return float(argument), float(argument)
        return ANY

    def _of(self, node: Node) -> Interval:
        if node.dtype is torch.bool:
            return 0.0, 1.0
        if node.is_leaf:
            return _of_constant(node)
        if node.target in RULES:
            return RULES[node.target](self, node, node.bound() if isinstance(node.target, OpOverload) else {})
        record = registry.find(node, self.graph)
        if record is None or not (record.pointwise or record.view):
            return ANY
        if record.view:
            return self.known[node.inputs[0]]
        operands = [self.known[name] for name in node.inputs]
        found = ANY
        if record.bounds is not None:
            found = meet(found, record.bounds(*operands))
        if record.monotone and len(operands) == 1:
            found = meet(found, _by_ends(node, operands[0], record.monotone))
        return found


def _of_constant(node: Node) -> Interval:
    value = node.kwargs.get("value")
    if node.target != "constant" or not isinstance(value, torch.Tensor) or not value.numel() or value.is_complex():
        return ANY
    return float(value.min()), float(value.max())


def _by_ends(node: Node, interval: Interval, direction: int) -> Interval:
    """A monotone function takes its bounds at the ends."""
    assert isinstance(node.target, OpOverload)
    ends = []
    for end in interval if direction > 0 else reversed(interval):
        value = torch.tensor(end, dtype=torch.float64)
        ends.append(float(node.target(**{k: value if isinstance(v, Ref) else v for k, v in node.bound().items()})))
    low, high = ends
    return (low if low == low else -INF), (high if high == high else INF)


# ---- intervals


def tidy(interval: Interval) -> Interval:
    """Not a number means not known."""
    low, high = float(interval[0]), float(interval[1])
    return (low if low == low else -INF), (high if high == high else INF)


def meet(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), min(a[1], b[1])


def join(*intervals: Interval) -> Interval:
    return min(i[0] for i in intervals), max(i[1] for i in intervals)


def times(a: Interval, b: Interval) -> Interval:
    """0 times an end that is infinite is 0: values near it are as large as they like, and Inf itself times 0 is NaN."""
    corners = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]
    return min(corners), max(corners)


def plus(a: Interval, b: Interval) -> Interval:
    return tidy((a[0] + b[0], a[1] + b[1]))


def clamped(x: Interval, low: Interval, high: Interval) -> Interval:
    """As torch.clamp: the upper bound holds where they are in the wrong order."""
    return tuple(min(max(x[end], low[end]), high[end]) for end in (0, 1))  # type: ignore[return-value]


# ---- operators


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def wrap(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return wrap


def overloads(*names: str) -> list[Any]:
    """Every overload of these aten operators that computes a new tensor."""
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return [getattr(p, o) for p in packets for o in p.overloads() if "out" not in o]


@rule(*overloads("add"))
def _add(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return plus(ranges.value(a["self"]), times(ranges.value(a["other"]), ranges.value(a["alpha"])))


@rule(*overloads("sub", "subtract", "rsub"))
def _sub(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    if a["alpha"] == 1 and same_value(ranges.graph, a["self"], a["other"]):
        return 0.0, 0.0
    first, second = ("other", "self") if "rsub" in str(node.target) else ("self", "other")
    factor = times((-1.0, -1.0), ranges.value(a["alpha"]))
    return plus(ranges.value(a[first]), times(ranges.value(a[second]), factor))


@rule(*overloads("mul", "multiply"))
def _mul(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    found = times(ranges.value(a["self"]), ranges.value(a["other"]))
    return (max(found[0], 0.0), found[1]) if same_value(ranges.graph, a["self"], a["other"]) else found


@rule(aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.divide.Scalar, aten.true_divide.Tensor)
def _div(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    top, bottom = ranges.value(a["self"]), ranges.value(a["other"])
    if bottom[0] > 0 or bottom[1] < 0:
        return times(top, (1 / bottom[1], 1 / bottom[0]))
    if bottom[0] >= 0 and not math.isinf(top[0]) and top[0] >= 0:
        return 0.0, INF
    return ANY


@rule(aten.square.default)
def _square(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    found = times(ranges.value(a["self"]), ranges.value(a["self"]))
    return max(found[0], 0.0), found[1]


@rule(aten.pow.Tensor_Scalar)
def _pow(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    x, exponent = ranges.value(a["self"]), a["exponent"]
    if not isinstance(exponent, (int, float)):
        return ANY
    if x[0] >= 0 and exponent > 0:
        return x[0] ** exponent, x[1] ** exponent
    if exponent > 0 and exponent % 2 == 0:
        return 0.0, max(abs(x[0]), abs(x[1])) ** exponent
    return (0.0, INF) if x[0] >= 0 or exponent % 2 == 0 else ANY


@rule(aten.leaky_relu.default)
def _leaky_relu(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    low, high = ranges.value(a["self"])
    slope = float(a["negative_slope"])
    ends = [x if x > 0 else (slope * x if x else 0.0) for x in (low, high)]
    return join((min(ends), max(ends)), (0.0, 0.0)) if low < 0 < high else (min(ends), max(ends))


@rule(aten.elu.default, aten.celu.default)
def _elu(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    low, high = ranges.value(a["self"])
    alpha = float(a["alpha"])
    plain = alpha >= 0 and a.get("scale", 1) == 1 and a.get("input_scale", 1) == 1
    return (-alpha if low < 0 else low, max(high, 0.0)) if plain else ANY


@rule(*overloads("clamp", "clip", "clamp_min", "clamp_max"), aten.hardtanh.default)
def _clamp(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    low, high = a.get("min", a.get("min_val")), a.get("max", a.get("max_val"))
    return clamped(
        ranges.value(a["self"]),
        (-INF, -INF) if low is None else ranges.value(low),
        (INF, INF) if high is None else ranges.value(high),
    )


@rule(aten.minimum.default)
def _minimum(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    x, y = ranges.value(a["self"]), ranges.value(a["other"])
    return min(x[0], y[0]), min(x[1], y[1])


@rule(aten.maximum.default)
def _maximum(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    x, y = ranges.value(a["self"]), ranges.value(a["other"])
    return max(x[0], y[0]), max(x[1], y[1])


@rule(*overloads("where"))
def _where(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return join(ranges.value(a["self"]), ranges.value(a["other"])) if "self" in a else ANY


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return join(ranges.value(a["self"]), ranges.value(a["value"]))


@rule(aten._to_copy.default, aten.to.dtype)
def _cast(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    floats = node.dtype is not None and node.dtype.is_floating_point
    return ranges.value(a["self"]) if floats else ANY


@rule(
    *(aten.clone.default, aten.alias.default, aten.detach.default, aten.contiguous.default),
    *(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.mean.default, aten.mean.dim),
    *(aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default, aten.flip.default),
    *(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default),
)
def _among_its_own(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    """Its values lie between those of its operand."""
    return ranges.value(a["self"])


@rule(*overloads("avg_pool1d", "avg_pool2d", "avg_pool3d"))
def _avg_pool(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    if a.get("divisor_override") is not None:
        return ANY
    return join(ranges.value(a["self"]), (0.0, 0.0))  # what is padded counts as 0


@rule("getitem")
def _element(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    parent = ranges.graph[node.args[0].name]
    parts = overloads("split", "split_with_sizes", "chunk", "unbind")
    extremes = (aten.max.dim, aten.min.dim, *overloads("max_pool2d_with_indices", "max_pool3d_with_indices"))
    if parent.target in parts or (parent.target in extremes and node.args[1] == 0):
        return ranges.known[parent.inputs[0]]
    return ANY


@rule(aten.sum.default, aten.sum.dim_IntList)
def _sum(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    low, high = ranges.value(a["self"])
    count = reduced_count(ranges.graph, node, a)
    if count is not None:
        return times((low, high), (count, count))
    return (0.0 if low >= 0 else -INF), (0.0 if high <= 0 else INF)


def reduced_count(graph: Graph, node: Node, a: dict[str, Any]) -> int | None:
    """How many elements a reduction takes in, where that is known before it runs."""
    shape = graph[a["self"].name].shape or ()
    count = sizes.product(shape[d] for d in dims_of(a.get("dim"), len(shape)))
    return count if isinstance(count, int) and count > 0 else None


@rule(*overloads("softmax", "_softmax"))
def _softmax(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return (1.0, 1.0) if reduced_count(ranges.graph, node, a) == 1 else (0.0, 1.0)


@rule(*overloads("log_softmax", "_log_softmax"))
def _log_softmax(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return (0.0, 0.0) if reduced_count(ranges.graph, node, a) == 1 else (-INF, 0.0)


@rule(aten.logsumexp.default)
def _logsumexp(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    low, high = ranges.value(a["self"])
    count = reduced_count(ranges.graph, node, a)
    return (low, INF) if count is None else (low + math.log(count), high + math.log(count))


@rule(*overloads("var", "std", "norm", "linalg_vector_norm"))
def _not_negative(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return 0.0, INF


@rule(aten.layer_norm.default, aten.group_norm.default, aten.instance_norm.default)
def _norm(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    """Of n values with mean 0 and variance at most 1, none is larger than sqrt(n - 1)."""
    count = normalised_count(node)
    if count is None or a["weight"] is not None or a["bias"] is not None or not a.get("use_input_stats", True):
        return ANY
    return -math.sqrt(count - 1), math.sqrt(count - 1)


def normalised_count(node: Node) -> int | None:
    """How many values a norm takes its statistics over, where that is known before it runs."""
    a, shape = node.bound(), node.shape or ()
    if node.target is aten.layer_norm.default:
        count = sizes.product(a["normalized_shape"])
    elif node.target is aten.group_norm.default:
        count = sizes.divide(sizes.product(shape[1:]), a["num_groups"])
    else:
        count = sizes.product(shape[2:])
    return count if isinstance(count, int) and count > 0 else None


@rule(*overloads("cat", "stack"))
def _several(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return join(*[ranges.value(part) for part in a["tensors"]])


@rule(*overloads("constant_pad_nd"))
def _pad(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return join(ranges.value(a["self"]), ranges.value(a["value"]))


@rule(*overloads("full", "full_like", "new_full", "scalar_tensor"))
def _full(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return ranges.value(a.get("fill_value", a.get("s")))


@rule(*overloads("zeros", "zeros_like", "new_zeros"))
def _zeros(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return 0.0, 0.0


@rule(*overloads("ones", "ones_like", "new_ones"))
def _ones(ranges: Ranges, node: Node, a: dict[str, Any]) -> Interval:
    return 1.0, 1.0


# ---- values that are the same


def same_value(graph: Graph, a: Any, b: Any) -> bool:
    """Two arguments hold equal values, element by element as broadcasting pairs them.

    They are one node, or one is a view of the other that only adds or drops dimensions of size 1, or its mean (sum,
    maximum, …) over such dimensions.
    """
    if not (isinstance(a, Ref) and isinstance(b, Ref)):
        return False
    if a == b:
        return True
    first, second = graph[_plain(graph, a.name)], graph[_plain(graph, b.name)]
    return first.name == second.name and _lined_up(graph[a.name].shape, graph[b.name].shape)


def _lined_up(a: Any, b: Any) -> bool:
    """The shapes are equal but for ones in front."""
    rank = max(len(a), len(b))
    wide = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b)]
    return all(map(sizes.same, *wide))


OF_ONE = {aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.logsumexp.default}
REARRANGE = {
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.clone.default, aten.contiguous.default),
}


def _plain(graph: Graph, name: str) -> str:
    """The node behind views that move no element, and reductions over dimensions of size 1."""
    node = graph[name]
    while not node.is_leaf:
        source = graph[node.inputs[0]] if node.inputs else node
        if source.shape is None or node.shape is None or source.dtype != node.dtype:
            break
        same_elements = _without_ones(node.shape) == _without_ones(source.shape)
        of_one = node.target in OF_ONE and reduced_count(graph, node, node.bound()) == 1
        if of_one or (node.target in REARRANGE and same_elements):
            node = source
        else:
            break
    return node.name


def _without_ones(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(size for size in shape if not sizes.is_one(size))
