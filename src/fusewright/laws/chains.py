"""Laws of chains: what one step undoes, repeats or could do together with the next."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from ..ir import sizes
from ..ir.graph import Ref
from ..ops import registry
from ..ops.declare import dims_of
from ..ops.placement import MOST_PARTS
from .examples import of, of_two
from .law import HIDES_NONFINITE, REASSOCIATES, Site, aten, law
from .patterns import AFFINE, CLAMPS, DIV, HALVES, MEANS, RESHAPES, SUB, SUMS, Affine, affine_at, clamp_at
from .ranges import same_value
from .sums import permutation

INF = float("inf")


# ---- read for its size alone

PADS_BACKWARD = [getattr(aten, f"{kind}_pad{dims}d_backward").default for kind in ("reflection", "replication") for dims in (1, 2, 3)]


@law(
    "gradient of a pad", at=PADS_BACKWARD,
    examples=[
        of(lambda x: aten.replication_pad2d_backward(F.pad(x, (1, 1, 2, 0)), x.tanh(), [1, 1, 2, 0]), 2, 3, 4, 5),
        of(lambda x: aten.reflection_pad1d_backward(F.pad(x, (1, 2)), x * 2, [1, 2]) + 1, 2, 3, 5),
        of(lambda x: aten.replication_pad2d_backward(F.pad(x, (1, 1, 2, 0)), x, [1, 1, 2, 0]), 2, 3, 4, 5, applies=False),
    ],
)  # fmt: skip
def gradient_of_pad(site: Site) -> Ref | None:
    """The gradient of a pad depends on the size of what was padded, not on its values."""
    padded, gradient, pads = site.bound["self"], site.bound["grad_output"], site.bound["padding"]
    source = site[padded]
    while source.target is aten.slice.Tensor:
        source = site[source.args[0]]
    cut_from_it = site[padded].target is aten.slice.Tensor and source.name == gradient.name
    if site[padded].is_leaf or cut_from_it or not all(isinstance(n, int) and n >= 0 for n in pads):
        return None
    piece, shape = gradient, site.shape(padded)
    for dim in range(len(shape) - len(pads) // 2, len(shape)):
        piece = site.slice(piece, dim, 0, shape[dim])
    return site.again(site.node, shape, {"self": piece})


POOLS_BACKWARD = [getattr(aten, f"{kind}_pool{dims}d_backward").default for kind in ("_adaptive_avg", "adaptive_max") for dims in (2, 3)]


@law(
    "gradient of an adaptive pool", at=POOLS_BACKWARD,
    examples=[
        of(lambda x: aten._adaptive_avg_pool2d_backward(x[..., :2, :3] * 2, x.tanh()), 2, 3, 5, 7),
        of(lambda x: aten._adaptive_avg_pool3d_backward(x[..., :2, :1, :3].exp(), x * 2) + 1, 2, 3, 4, 5, 7),
        of(lambda x: aten.adaptive_max_pool2d_backward(x[..., :2, :3], x.tanh(), F.adaptive_max_pool2d(x, (2, 3), True)[1]), 2, 3, 5, 7),
        of(lambda x: aten._adaptive_avg_pool2d_backward(x[..., :2, :3] * 2, x), 2, 3, 5, 7, applies=False),
    ],
)  # fmt: skip
def gradient_of_adaptive_pool(site: Site) -> Ref | None:
    """The gradient of an adaptive pool depends on the size of what was pooled, not on its values."""
    pooled, gradient = site.bound["self"], site.bound["grad_output"]
    shape = site.shape(pooled)
    if site[pooled].is_leaf or site[pooled].target is aten.expand.default or site[pooled].dtype != site[gradient].dtype:
        return None
    piece = gradient
    for dim, (size, of_gradient) in enumerate(zip(shape, site.shape(gradient), strict=True)):
        piece = piece if sizes.same(size, of_gradient) else site.slice(piece, dim, 0, 1)
    sized = site.call(aten.expand.default, piece, list(shape), shape=shape, dtype=site[pooled].dtype)
    return site.again(site.node, shape, {"self": sized})


# ---- reductions over dimensions of size 1

OF_ONE = {
    *SUMS, *MEANS, aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.logsumexp.default,
    aten.prod.default, aten.prod.dim_int,
}  # fmt: skip


@law(
    "reduction over dimensions of size 1",
    at=[*OF_ONE, "getitem"],
    examples=[
        of(lambda x: x.amax(1, keepdim=True).sum(1), 4, 5),
        of(lambda x: x.cumsum(2).mean(1), 4, 1, 5),
        of(lambda x: x.cumsum(2).logsumexp(1, keepdim=True), 4, 1, 5),
        of(lambda x: x.cumsum(2).amax(1) + x.amin(1), 4, 1, 5),
        of(lambda x: x.cumsum(2).max(1)[0], 4, 1, 5),
        of(lambda x: x.cumsum(2).prod(1), 4, 1, 5),
        of(lambda x: x.cumsum(1).sum(1), 4, 2, applies=False),
        of(lambda x: x.max(1), 4, 1, 5, applies=False),
    ],
)  # fmt: skip
def reduction_of_one(site: Site) -> Ref | None:
    """The sum, mean, product, maximum or logsumexp of one value is that value."""
    call = site.node
    if call.target == "getitem":
        call = site.graph[call.args[0].name]
        if call.target not in (aten.max.dim, aten.min.dim) or site.node.args[1] != 0 or not site.only_user(call):
            return None
    a = call.bound()
    source = site[a["self"]]
    if source.shape is None or source.dtype != site.node.dtype or site.node.shape is None:
        return None
    if not all(sizes.is_one(source.shape[d]) for d in dims_of(a.get("dim"), len(source.shape))):
        return None
    return site.reshape(Ref(source.name), site.node.shape)


@law(
    "softmax over one element",
    at=[aten.softmax.int, aten._softmax.default, aten.log_softmax.int, aten._log_softmax.default],
    examples=[
        of(lambda x: x.softmax(1), 4, 1, 5),
        of(lambda x: x.log_softmax(1), 4, 1, 5),
        of(lambda x: x.softmax(1), 4, 2, 5, applies=False),
    ],
)  # fmt: skip
def softmax_of_one(site: Site) -> Ref | None:
    """softmax of one value is 1, and x - x + 1 is NaN where it is; log_softmax is 0, x - x."""
    source = site[site.bound["self"]]
    if source.shape is None or source.dtype != site.node.dtype or not source.shape:
        return None
    if not sizes.is_one(source.shape[site.bound["dim"] % len(source.shape)]):
        return None
    nothing = site.sub(Ref(source.name), Ref(source.name))
    return nothing if "log_softmax" in str(site.node.target) else site.add(nothing, 1.0)


@law(
    "difference of a value and itself, finite", HIDES_NONFINITE,
    at=SUB,
    examples=[
        of(lambda x: x - x.mean(1, keepdim=True), 4, 1, 5),
        of(lambda x: x - x, 4, 5),
        of(lambda x: x - x.mean(1, keepdim=True), 4, 2, 5, applies=False),
    ],
)  # fmt: skip
def difference_of_same(site: Site) -> Ref | None:
    """x - x = 0."""
    a = site.bound
    if a["alpha"] != 1 or not same_value(site.graph, a["self"], a["other"]) or site.node.shape is None:
        return None
    larger = max((a["self"], a["other"]), key=lambda ref: len(site.shape(ref)))
    return site.call(aten.zeros_like.default, larger, shape=site.node.shape)


# ---- copies and dropout that does nothing


@law(
    "copy",
    at=[
        aten.clone.default, aten.contiguous.default, aten.alias.default, aten.dropout.default,
        aten._to_copy.default, aten.to.dtype,
    ],
    examples=[
        of(lambda x: torch.tanh(x.clone()), 4, 5),
        of(lambda x: torch.tanh(F.dropout(x, 0.5, training=False)) + 1, 4, 5),
        of(lambda x: x.clone(), 4, 5, applies=False),
        of(lambda x: F.dropout(x, 1.0, training=True) + 1, 4, 5, applies=False),
        of(lambda x: torch.tanh(x.half()), 4, 5, applies=False),
    ],
)  # fmt: skip
def copy(site: Site) -> Ref | None:
    """A copy of a value inside the graph is the value; so is dropout that is switched off."""
    a = site.bound
    if site.node.target is aten.dropout.default:
        return a["input"] if not a["train"] or a["p"] == 0 else None
    moved = a.get("device") is not None or a.get("layout") not in (None, torch.strided)
    reordered = a.get("memory_format") not in (None, torch.preserve_format, torch.contiguous_format)
    return a["self"] if site[a["self"]].dtype == site.node.dtype and not moved and not reordered else None


# ---- views


@law(
    "view of a view",
    at=[*RESHAPES, aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default, aten.slice.Tensor],
    examples=[
        of(lambda x: torch.tanh(x.flatten(1).unsqueeze(1)), 4, 5, 6),
        of(lambda x: torch.tanh(x.permute(2, 0, 1).transpose(0, 1)), 4, 5, 6),
        of(lambda x: torch.tanh(x.t().t()), 4, 5),
        of(lambda x: torch.tanh(x.reshape(x.shape)), 4, 5),
        of(lambda x: torch.tanh(x.expand(-1, 5)), 4, 5),
        of(lambda x: torch.tanh(x[:, 1:]), 4, 5),
        of(lambda x: torch.tanh(x.t().reshape(-1)), 4, 5, applies=False),
    ],
)  # fmt: skip
def view_of_view(site: Site) -> Ref | None:
    """A view of a view is one view of the source, or the source itself."""
    source = site[Ref(site.node.inputs[0])]
    shape = site.node.shape
    if shape is None or source.shape is None or len(site.node.inputs) != 1:
        return None
    same = len(shape) == len(source.shape) and all(map(sizes.same, shape, source.shape))
    if site.node.target in RESHAPES | {aten.expand.default, aten.slice.Tensor} and same:
        return Ref(source.name)
    if site.node.target in RESHAPES and source.target in RESHAPES:
        return site.reshape(Ref(source.inputs[0]), shape)
    order, first = permutation(site.node), permutation(source)
    if order is None:
        return None
    if order == sorted(order):
        return Ref(source.name)
    return None if first is None else site.permute(Ref(source.inputs[0]), [first[d] for d in order])


@law(
    "behind many joined tensors",
    at=[target for target, record in registry.RECORDS.items() if record.pointwise],
    examples=[
        of(lambda x: torch.relu(torch.cat([x[:, i:].sum(1, keepdim=True) for i in range(10)], 1)), 4, 12),
        of(lambda x: torch.cat([x[:, i:].sum(1, keepdim=True) for i in range(10)], 1) * 2, 4, 12),
        of(lambda x: torch.relu(torch.cat([x[:, i:].sum(1, keepdim=True) for i in range(3)], 1)), 4, 12, applies=False),
        of(lambda x: torch.relu(torch.cat([x[:, i:] for i in range(10)], 1)), 4, 12, applies=False),
        of(lambda x: (lambda y: (y, -y))(torch.cat([x[:, i:].sum(1, keepdim=True) for i in range(10)], 1)), 4, 12, applies=False),
    ],
)
def behind_many_joined(site: Site) -> Ref | None:
    """f(x_1, x_2, ... joined) = f(x_1), f(x_2), ... joined. So many are joined by PyTorch, which would be gone over once more."""
    node = site.node
    record = registry.find(node, site.graph)
    if record is None or not record.pointwise or len(node.inputs) != 1:
        return None
    joined = site[Ref(node.inputs[0])]
    if joined.target is not aten.cat.default or len(joined.args[0]) <= MOST_PARTS or not site.only_user(joined):
        return None
    parts = list(map(site.__getitem__, joined.args[0]))
    kinds = [registry.find(part, site.graph) for part in parts]
    if any(part.dtype != joined.dtype or kind is None or kind.view for part, kind in zip(parts, kinds, strict=True)):
        return None  # what no kernel computes would need one
    (name,) = (name for name, value in node.bound().items() if value == Ref(joined.name))
    made = [site.again(node, part.shape or (), {name: Ref(part.name)}) for part in parts]
    return site.call(aten.cat.default, made, joined.bound()["dim"], shape=node.shape or ())


# ---- scales and shifts by numbers


@law(
    "scales and shifts by numbers", REASSOCIATES,
    at=AFFINE,
    examples=[
        of(lambda x: x * 3 * 0.5, 4, 5),
        of(lambda x: x / 3 * 5, 4, 5),
        of(lambda x: x + 3 - 5, 4, 5),
        of(lambda x: 2 - (3 - x), 4, 5),
        of(lambda x: torch.neg(-torch.tanh(x)), 4, 5),
        of(lambda x: -(torch.tanh(x) * 3), 4, 5),
        of(lambda x: torch.tanh(x * 1 + 0), 4, 5),
        of(lambda x: (x + 3) * 5, 4, 5, applies=False),
        of(lambda x: (lambda y: (y, y * 5))(x * 3), 4, 5, applies=False),
        of(lambda x: x * 1e-30 * 1e-30, 4, 5, applies=False),
        of_two(lambda x, y: x * y * 3, (4, 5), (4, 5), applies=False),
    ],
)  # fmt: skip
def affine_of_affine(site: Site) -> Ref | None:
    """(x * a) * b = x * (a b), (x + a) + b = x + (a + b), -(-x) = x, x * 1 = x, x + 0 = x."""
    outer = affine_at(site, site.node)
    if outer is None:
        return None
    if (outer.scale, outer.shift) == (1.0, 0.0):
        return outer.operand
    source = site[outer.operand]
    inner = affine_at(site, source)
    if inner is None or not site.only_user(source):
        return None
    both = Affine(inner.operand, inner.scale * outer.scale, inner.shift * outer.scale + outer.shift)
    if not all(is_ordinary(value) for value in (both.scale, both.shift)) or both.scale == 0:
        return None
    if (both.scale, both.shift) == (1.0, 0.0):
        return both.operand
    if both.shift == 0:
        return site.mul(both.operand, both.scale)
    if both.scale == 1:
        return site.add(both.operand, both.shift)
    if both.scale == -1:
        shape = site.shape(both.operand)
        return site.call(aten.rsub.Scalar, both.operand, both.shift, shape=shape)
    return None  # two steps anyway


def is_ordinary(value: float) -> bool:
    """0, or a number that is neither too large nor too small for fp32."""
    return value == 0 or 1e-37 < abs(value) < 1e37


@law(
    "division by a number", REASSOCIATES,
    at=DIV,
    examples=[
        of(lambda x: x / 3, 4, 5),
        of(lambda x: x / 0.25, 4, 5),
        of(lambda x: x / 0, 4, 5, applies=False),
        of(lambda x: x / 1e-42, 4, 5, applies=False),
        of(lambda x: torch.div(x, 3, rounding_mode="floor"), 4, 5, applies=False),
    ],
)  # fmt: skip
def division_by_number(site: Site) -> Ref | None:
    """x / c = x * (1 / c), as PyTorch's own kernel has it."""
    found = affine_at(site, site.node)
    if found is None or not is_ordinary(found.scale) or site.node.dtype in HALVES:
        return None
    return site.mul(found.operand, found.scale)


# ---- clamps


@law(
    "clamp of a clamp",
    at=CLAMPS,
    examples=[
        of(lambda x: x.clamp(-0.5, 0.7).clamp(max=0.2), 4, 5),
        of(lambda x: torch.relu(x.clamp(-1, 0.5)), 4, 5),
        of(lambda x: torch.relu(torch.relu(x)), 4, 5),
        of(lambda x: F.hardtanh(F.relu6(x * 3), -1, 2), 4, 5),
        of(lambda x: x.clamp(-1, 0).clamp(0.5, 1), 4, 5, applies=False),
        of(lambda x: x.clamp(1, -1).clamp(-2, 2), 4, 5, applies=False),
        of(lambda x: (lambda c: (c, torch.relu(c)))(x.clamp(-1, 0.5)), 4, 5, applies=False),
    ],
)  # fmt: skip
def clamp_of_clamp(site: Site) -> Ref | None:
    """clamp(clamp(x, a, b), c, d) = clamp(x, clamp(a, c, d), clamp(b, c, d))."""
    outer = clamp_at(site, site.node)
    source = site[outer[0]] if outer else None
    inner = clamp_at(site, source) if source is not None else None
    if outer is None or inner is None or source is None or not site.only_user(source):
        return None
    low, high = (min(max(bound, outer[1]), outer[2]) for bound in inner[1:])
    if low == high:
        return None
    shape = site.shape(inner[0])
    if (low, high) == (0.0, INF):
        return site.call(aten.relu.default, inner[0], shape=shape)
    bounds = [None if math.isinf(bound) else bound for bound in (low, high)]
    return site.call(aten.clamp.default, inner[0], *bounds, shape=shape)
