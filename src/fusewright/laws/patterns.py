"""What laws look for: reductions, scales and shifts, clamps, convolutions and matrix products, as plain facts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir import sizes
from ..ir.graph import Dim, Graph, Node, Ref
from ..ops import registry
from ..ops.declare import dims_of, is_ours
from .law import Site, aten, is_view

MUL = {aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, aten.multiply.Scalar}
DIV = {aten.div.Tensor, aten.div.Scalar, aten.divide.Tensor, aten.divide.Scalar, aten.true_divide.Tensor}
ADD = {aten.add.Tensor, aten.add.Scalar}
SUB = {aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, aten.subtract.Scalar}
RSUB = {aten.rsub.Tensor, aten.rsub.Scalar}
NEG = {aten.neg.default, aten.negative.default}
AFFINE = MUL | DIV | ADD | SUB | RSUB | NEG

SUMS = {aten.sum.dim_IntList, aten.sum.default}
MEANS = {aten.mean.dim, aten.mean.default}
AVG_POOLS = {aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default}
ADAPTIVE_AVG_POOLS = {
    aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default,
}  # fmt: skip

RESHAPES = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default,
}  # fmt: skip

HALVES = (torch.float16, torch.bfloat16)


def is_float(node: Node) -> bool:
    return node.shape is not None and node.dtype is not None and node.dtype.is_floating_point


SPLITS = {aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int}


def hands_on(node: Node, graph: Graph) -> bool:
    """A view, or a split into views and its parts: it reads nothing itself."""
    parent = graph[node.args[0].name].target if node.target == "getitem" else None
    return is_view(node, graph) or node.target in SPLITS or parent in SPLITS


def reads_elements(node: Node, graph: Graph) -> bool:
    """The node becomes part of a kernel of ours that reads its operand element by element."""
    record = registry.find(node, graph)
    is_identity = record is not None and record.name == "identity"
    return is_ours(node, graph) and not hands_on(node, graph) and not is_identity


def only_elements_read(site: Site, name: str) -> bool:
    """Whoever uses the value reads its elements in a kernel of ours, at most through views."""
    users = [site.graph[user] if user in site.graph.index else None for user in site.users[name]]
    return bool(users) and all(
        user is not None
        and (reads_elements(user, site.graph) or (hands_on(user, site.graph) and only_elements_read(site, user.name)))
        for user in users
    )


def stored_anyway(site: Site, name: str) -> bool:
    """Whoever uses the value needs it in memory: the caller, or a library call, at most through views."""
    users = site.users[name]
    return bool(users) and all(
        user not in site.graph.index
        or not is_ours(site.graph[user], site.graph)
        or (hands_on(site.graph[user], site.graph) and stored_anyway(site, user))
        for user in users
    )


def in_memory(site: Site, ref: Ref) -> bool:
    """The value lies in memory whatever we do: a leaf, or the result of a library call, or a view of one."""
    node = site[ref]
    while is_view(node, site.graph):
        node = site.graph[node.inputs[0]]
    return node.is_leaf or not is_ours(node, site.graph)


def is_weight(site: Site, value: Any) -> bool:
    """A number, or a value computed from parameters, buffers and constants alone."""
    pending, seen = ([value.name] if isinstance(value, Ref) else []), set()
    while pending:
        node = site[Ref(pending.pop())]
        if node.target == "input":
            return False
        new = [name for name in node.inputs if name not in seen]
        seen |= set(new)
        pending += new
    return True


# ---- sums and means


@dataclass(frozen=True)
class Reduction:
    """A sum, or a mean, of one value over some of its dimensions."""

    source: Node
    dims: list[int]
    keepdim: bool
    is_mean: bool

    @property
    def shape(self) -> tuple[Dim, ...]:
        assert self.source.shape is not None
        return self.source.shape

    def count(self, dims: Sequence[int] | None = None) -> Dim:
        """How many elements one result takes in."""
        return sizes.product(self.shape[d] for d in (self.dims if dims is None else dims))


def reduction_at(site: Site) -> Reduction | None:
    """The sum or mean of floats that the node is; the result has the type of the operand."""
    if site.node.target not in SUMS | MEANS:
        return None
    source = site[site.bound["self"]]
    if not is_float(source) or site.bound.get("dtype") not in (None, source.dtype):
        return None
    assert source.shape is not None
    dims = dims_of(site.bound.get("dim"), len(source.shape))
    return Reduction(source, dims, bool(site.bound.get("keepdim", False)), site.node.target in MEANS)


def without_dims(shape: Sequence[Dim], dims: Sequence[int]) -> list[Dim]:
    return [size for d, size in enumerate(shape) if d not in dims]


def finished(site: Site, total: Ref, found: Reduction, done: Sequence[int]) -> Ref:
    """From a sum over the dimensions `done`, still there with size 1, to the node's value.

    The rest is summed, the type restored. Where the node is a mean, that over `done` has been taken already.
    """
    rest = [d for d in found.dims if d not in done]
    if rest:
        total = site.sum(total, rest, keepdim=True)
        if found.is_mean:
            total = site.divide(total, found.count(rest))
    if not found.keepdim:
        total = site.reshape(total, without_dims(found.shape, found.dims))
    return site.cast(total, site.node.dtype)


# ---- scales and shifts


def number(value: Any) -> float | None:
    """A finite plain number."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None


@dataclass(frozen=True)
class Affine:
    """scale * operand + shift, with plain numbers."""

    operand: Ref
    scale: float
    shift: float


def affine_at(site: Site, node: Node) -> Affine | None:
    """The node as a scale and a shift of one value of its own type, by numbers."""
    if node.target not in AFFINE or not is_float(node):
        return None
    a = node.bound()
    operand, other = a["self"], a.get("other")
    if not isinstance(operand, Ref) or site[operand].dtype != node.dtype:
        return None
    if node.target in NEG:
        return Affine(operand, -1.0, 0.0)
    value, alpha = number(other), number(a.get("alpha", 1))
    if value is None or alpha is None:
        return None
    if node.target in MUL:
        return Affine(operand, value, 0.0)
    if node.target in DIV:
        return Affine(operand, 1.0 / value, 0.0) if value != 0 else None
    if node.target in ADD:
        return Affine(operand, 1.0, value * alpha)
    if node.target in SUB:
        return Affine(operand, 1.0, -value * alpha)
    return Affine(operand, -alpha, value)


@dataclass(frozen=True)
class Step:
    """One addition or multiplication: `main` joined with `other`, a number or a value that is small beside it."""

    kind: str  # mul | div | add | sub | rsub | neg
    main: Ref
    other: Any = None

    @property
    def scales(self) -> bool:
        return self.kind in ("mul", "div", "neg")


def steps_at(site: Site, node: Node) -> list[Step]:
    """How the node can be read as an arithmetic step on one of its operands; both ways round where both are values."""
    if node.target not in AFFINE or not is_float(node) or node.bound().get("alpha", 1) != 1:
        return []
    a = node.bound()
    first, second = a["self"], a.get("other")
    if any(isinstance(v, Ref) and site[v].dtype != node.dtype for v in (first, second)):
        return []
    if node.target in NEG:
        return [Step("neg", first)]
    kinds = ((MUL, "mul", "mul"), (DIV, "div", ""), (ADD, "add", "add"), (SUB, "sub", "rsub"), (RSUB, "rsub", "sub"))
    plain, transposed = next((p, t) for targets, p, t in kinds if node.target in targets)
    found = [Step(plain, first, second)] if isinstance(first, Ref) else []
    if isinstance(second, Ref) and transposed:
        found.append(Step(transposed, second, first))
    return found


def step_again(site: Site, step: Step, value: Ref, other: Any) -> Ref:
    """The same step on another value."""
    if step.kind == "neg":
        return site.unary(aten.neg.default, value)
    if step.kind == "rsub":
        if isinstance(other, Ref):
            return site.sub(other, value)
        return site.call(aten.rsub.Scalar, value, other, shape=site.shape(value), dtype=site[value].dtype)
    return {"mul": site.mul, "div": site.divide, "add": site.add, "sub": site.sub}[step.kind](value, other)


def aligned(shape: Sequence[Dim], rank: int) -> list[Dim]:
    """The shape with ones in front, as broadcasting sees it."""
    return [1] * (rank - len(shape)) + list(shape)


def constant_along(site: Site, other: Any, rank: int, dims: Sequence[int]) -> bool:
    """A number, or a value that is broadcast along these dimensions."""
    if not isinstance(other, Ref):
        return True
    shape = aligned(site.shape(other), rank)
    return all(sizes.is_one(shape[d]) for d in dims)


def spans(site: Site, ref: Ref, shape: Sequence[Dim], dims: Sequence[int]) -> bool:
    """The value has the full size along these dimensions of `shape`."""
    own = aligned(site.shape(ref), len(shape))
    return len(site.shape(ref)) <= len(shape) and all(sizes.same(own[d], shape[d]) for d in dims)


# ---- clamps


def clamp_at(site: Site, node: Node) -> tuple[Ref, float, float] | None:
    """(operand, lower bound, upper bound) where the node is a clamp by numbers in order."""
    infinite = float("inf")
    if not is_float(node):
        return None
    a = node.bound() if not isinstance(node.target, str) else {}
    if node.target is aten.relu.default:
        bounds: tuple[Any, Any] = (0.0, infinite)
    elif node.target is aten.relu6.default:
        bounds = (0.0, 6.0)
    elif node.target is aten.hardtanh.default:
        bounds = (a["min_val"], a["max_val"])
    elif node.target in (aten.clamp.default, aten.clip.default, aten.clamp_min.default, aten.clamp_max.default):
        low, high = a.get("min"), a.get("max")
        bounds = (-infinite if low is None else low, infinite if high is None else high)
    else:
        return None
    if not all(isinstance(bound, (int, float)) and bound == bound for bound in bounds) or bounds[0] > bounds[1]:
        return None
    return (a["self"], float(bounds[0]), float(bounds[1])) if site[a["self"]].dtype == node.dtype else None


CLAMPS = {
    aten.relu.default, aten.relu6.default, aten.hardtanh.default, aten.clamp.default, aten.clip.default,
    aten.clamp_min.default, aten.clamp_max.default,
}  # fmt: skip


# ---- convolutions


CONVOLUTIONS = {
    aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding,
}  # fmt: skip
TRANSPOSED = {aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input}
EVERY_CONVOLUTION = {*CONVOLUTIONS, *TRANSPOSED, aten.convolution.default}  # the last in gradients
OF_RANK = {1: aten.conv1d.default, 2: aten.conv2d.default, 3: aten.conv3d.default}
TRANSPOSED_OF_RANK = {1: aten.conv_transpose1d.default, 2: aten.conv_transpose2d.input, 3: aten.conv_transpose3d.input}


@dataclass(frozen=True)
class Convolution:
    """A convolution's arguments, each a tuple over the spatial dimensions."""

    input: Ref
    weight: Ref
    bias: Ref | None
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]
    channels_in: int
    channels_out: int

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def spatial(self) -> list[int]:
        return list(range(2, 2 + self.rank))

    @property
    def in_group(self) -> int:
        return self.channels_in // self.groups

    @property
    def out_group(self) -> int:
        return self.channels_out // self.groups


def convolution_at(site: Site, node: Node) -> Convolution | None:
    """The convolution that a node is, with everything static, batched, and in floating point."""
    if node.target not in EVERY_CONVOLUTION:
        return None
    a = node.bound()
    transposed = a.get("transposed", node.target in TRANSPOSED)
    shape_in, weight = site.shape(a["input"]), site.shape(a["weight"])
    kernel = weight[2:]
    rank = len(kernel)
    if node.shape is None or len(node.shape) != rank + 2 or not all(isinstance(k, int) for k in weight):
        return None
    if not isinstance(shape_in[1], int) or not isinstance(node.shape[1], int):
        return None

    def many(value: Any) -> tuple[int, ...]:
        value = list(value) if isinstance(value, (list, tuple)) else [value]
        return tuple(value * rank if len(value) == 1 else value)

    if isinstance(a["padding"], str):
        if a["padding"] == "same" and any((d * (k - 1)) % 2 for d, k in zip(many(a["dilation"]), kernel, strict=True)):
            return None
        half = tuple(d * (k - 1) // 2 for d, k in zip(many(a["dilation"]), kernel, strict=True))
        padding = half if a["padding"] == "same" else (0,) * rank
    else:
        padding = many(a["padding"])
    stride, dilation, more = many(a["stride"]), many(a["dilation"]), many(a.get("output_padding", 0))
    if not all(isinstance(number, int) for number in (*stride, *padding, *dilation, *more, a["groups"])):
        return None  # what an output is to measure may say how much is added to it
    return Convolution(
        *(a["input"], a["weight"], a["bias"], tuple(kernel), stride, padding, dilation),
        *(a["groups"], transposed, more, shape_in[1], node.shape[1]),
    )


def convolve(
    site: Site, conv: Convolution, input: Ref, weight: Ref, bias: Ref | None, shape: Sequence[Dim], dims: Sequence[int]
) -> Ref:
    """The convolution with another input and weight, over those of its spatial dimensions that `dims` names."""

    def kept(values: tuple[int, ...]) -> list[int]:
        return [values[d] for d in dims]

    if conv.transposed:
        args: list[Any] = [kept(conv.output_padding), conv.groups, kept(conv.dilation)]
        target = TRANSPOSED_OF_RANK[len(dims)]
    else:
        args, target = [kept(conv.dilation), conv.groups], OF_RANK[len(dims)]
    dtype = site[input].dtype
    return site.call(
        target, input, weight, bias, kept(conv.stride), kept(conv.padding), *args, shape=shape, dtype=dtype
    )


# ---- matrix products


LINEAR = aten.linear.default
MATMULS = {aten.matmul.default, aten.mm.default, aten.bmm.default}
PRODUCTS = {LINEAR, *MATMULS}


@dataclass(frozen=True)
class Product:
    """left (…, rows, k) times right: (k, columns), or with left's batch in front; a linear map's is (columns, k)."""

    left: Ref
    right: Ref
    bias: Ref | None
    by_rows: bool  # right is (columns, k)
    batched: bool  # right has left's batch dimensions


def product_at(site: Site, node: Node) -> Product | None:
    """The matrix product that a node is, of matrices or batches of them."""
    if node.target not in PRODUCTS or not is_float(node):
        return None
    a = node.bound()
    if node.target is LINEAR:
        return Product(a["input"], a["weight"], a["bias"], True, False) if len(site.shape(a["weight"])) == 2 else None
    left, right = a["self"], a["other"] if "other" in a else a["mat2"]
    shape_left, shape_right = site.shape(left), site.shape(right)
    if len(shape_left) < 2 or len(shape_right) < 2:
        return None
    if len(shape_right) == 2:
        return Product(left, right, None, False, False)
    same_batch = len(shape_left) == len(shape_right) and all(map(sizes.same, shape_left[:-2], shape_right[:-2]))
    return Product(left, right, None, False, True) if same_batch else None
