"""Attention by one kernel, where no gradients are asked for: scores are never in memory.

What it stands for are some steps of a plan: a product, one kernel that makes weights of it (a pointwise chain, a softmax over the last
dimension), and a second product that alone reads these; or PyTorch's own attention in one call. They stay in the plan, for calls whose
gradients are asked for, and so does all of backward: `Shortcut` says which steps the kernel may run in the place of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..codegen.mma.anchor import Anchor, rows_and_batch
from ..codegen.mma.attended import score_body
from ..codegen.mma.attention import MOST, Attention, attention_ms, fits, in_eights, library_attention_ms
from ..codegen.mma.conv_spec import Pointwise as Body
from ..codegen.mma.operands import Matrices, matrices
from ..codegen.mma.product import Product, library_ms, product_ms, product_tile
from ..ir import functions as fn
from ..ir import sizes
from ..ir.access import accesses, axes_of, same_shape, tuple_key
from ..ir.expr import Arg, Expr, Select, as_expr, differs, is_arithmetic, select
from ..ir.graph import Dim, Graph, Node, Ref
from ..ir.index import Axis, Coordinate, linear
from ..ir.plan import Call, Kernel, Plan, Shortcut, label, origins
from ..ir.prims import Coordinates, Iota, Load, Permute, Pointwise, Prim, Reshape, Size, View
from ..laws.law import Site
from ..laws.patterns import PRODUCTS, product_at
from .conv_fusion import LAUNCH_MS, MARGIN, MEMORY_TB_PER_S, memory_ms
from .naming import FORWARD, free
from .product_fusion import put_in, tf32_allowed

aten = torch.ops.aten
IN_ONE_CALL = aten.scaled_dot_product_attention.default
SOFTMAX = (aten.softmax.int, aten._softmax.default)


@dataclass(frozen=True)
class Attended:
    """What the kernel of a shortcut computes: for the matrices of a batch, weights of the rows of q and k, times v."""

    attention: Attention
    batch: tuple[Dim, ...]
    queries: Dim
    keys: Dim
    depth: Dim
    width: Dim
    q: Matrices
    k: Matrices  # a row for each key
    v: Matrices
    out: Matrices
    body: Body  # from a score to what the softmax takes, at z0, z1, … of the batch, query n and key c
    nodes: tuple[str, ...] = ()  # of the graph, in order: what it stands for

    @property
    def flops(self) -> tuple[Dim, int]:
        """Elements of the scores, and how often each is multiplied and added."""
        return sizes.product((*self.batch, self.queries, self.keys)), 2 * (self.attention.depth + self.attention.width)


@dataclass(frozen=True)
class Parts:
    """Where attention is found in a plan: what is multiplied, the weights' chain from `leaf` to `root`, and the result."""

    q: str  # values
    k: str
    transposed: bool  # k has a column for each key
    v: str
    v_transposed: bool  # v has a column for each key
    prims: dict[str, Prim]
    leaf: str
    root: str
    value: str  # the result
    steps: tuple[Kernel | Call, ...]  # that compute it
    name: str  # the node it is known by
    softmax: bool = True
    safe: bool = False
    causal: bool = False


def attentions(graph: Graph) -> frozenset[str]:
    """The nodes by which `shortcuts` may be told of attention: weights that a product reads, or calls that are all of it."""
    found = {node.name for node in graph.nodes if node.target is IN_ONE_CALL}
    for node in graph.nodes:
        product = product_at(Site(graph, node, {}), node)
        if product is not None and not graph[product.left.name].is_leaf and graph[product.left.name].target not in PRODUCTS:
            found.add(product.left.name)
    return frozenset(found)


def with_shortcuts(plan: Plan, own: frozenset[str] | None) -> Plan:
    """The plan with a kernel beside the steps of each attention: of those named in `own`, or else of those where that pays."""
    if tf32_allowed():
        return plan
    for node in plan.graph.nodes:
        parts = in_one_call(node, plan) if node.target is IN_ONE_CALL else written_out(node, plan)
        if parts is None or (own is not None and parts.name not in own):
            continue
        made = shortcut(parts, plan)
        if made is not None and fits(made.kernel.fused.attention, plan.machine) and (own is not None or pays(made, parts, plan)):
            plan = replace(plan, steps=side_by_side(plan.steps, made), shortcuts=(*plan.shortcuts, made))
    return plan


# ---- where it is found


def written_out(node: Node, plan: Plan) -> Parts | None:
    """The second product of attention, and what is before it."""
    graph, lowered = plan.graph, plan.lowered
    second = product_at(Site(graph, node, {}), node)
    if second is None or second.bias is not None or node.dtype is not torch.float32 or graph[second.left.name].target in PRODUCTS:
        return None
    weights = lowered.value.get(second.left.name, "")
    maker = plan.home.get(weights)
    if maker is None or maker.stores != (weights,) or maker.overwrites or maker.is_scan:
        return None
    source = graph[lowered.prims[weights].origin]
    is_softmax = source.target in SOFTMAX and lowered.value[source.name] == weights
    if maker.is_reduce and not (is_softmax and source.bound()["dim"] in (-1, len(source.shape or ()) - 1)):
        return None
    root = lowered.value[source.bound()["self"].name] if is_softmax else weights
    shape = lowered.prims[weights].shape
    scores = [name for name in leaves_of(root, plan) if is_scores(name, root, shape, plan)]
    if not scores:
        return None
    leaf = scores[0]
    first_node = graph[lowered.prims[leaf].origin]
    first = product_at(Site(graph, first_node, {}), first_node)
    making, using = maker_of(first_node, plan), maker_of(node, plan)
    if first is None or first.bias is not None or making is None or using is None:
        return None
    if not read_only_by(leaf, [maker], plan) or not read_only_by(weights, [using], plan):
        return None
    value = lowered.value
    return Parts(
        value.get(first.left.name, ""), value.get(first.right.name, ""), not first.by_rows,
        value.get(second.right.name, ""), second.by_rows, lowered.prims, leaf, root, value[node.name], (making, maker, using),
        second.left.name, softmax=is_softmax,
    )  # fmt: skip


def in_one_call(node: Node, plan: Plan) -> Parts | None:
    """PyTorch's own function: its chain as primitives, a scale and a mask."""
    graph, value, a = plan.graph, plan.lowered.value, node.bound()
    call = maker_of(node, plan)
    plain = a["dropout_p"] == 0.0 and not a.get("enable_gqa", False) and node.dtype is torch.float32
    if not plain or call is None or node.name not in value or node.shape is None:
        return None
    q, k, v = (graph[a[name].name] for name in ("query", "key", "value"))
    shapes = [x.shape for x in (q, k, v)]
    if any(shape is None or len(shape) != len(node.shape) for shape in shapes):
        return None
    if not all(same_shape(shape[:-2], node.shape[:-2]) for shape in shapes):  # type: ignore[index]
        return None
    shape = (*node.shape[:-1], k.shape[-2])  # type: ignore[index]
    rank, prims = len(shape), dict(plan.lowered.prims)

    def add(what: str, op: Any, *inputs: str, dtype: torch.dtype = torch.float32, of: tuple[Dim, ...] = shape) -> str:
        name = f"{node.name}_{what}"
        while name in prims:
            name += "_"
        prims[name] = Prim(name, op, inputs, of, dtype, node.name)
        return name

    depth, scale = q.shape[-1], a["scale"]  # type: ignore[index]
    leaf = add("scores", Load())
    if scale is None and not isinstance(depth, int):
        root = add("scaled", Pointwise(Arg(0) * (1.0 / fn.sqrt(Arg(1))), torch.float32), leaf, add("depth", Size(depth), of=()))
    elif scale is None or isinstance(scale, (int, float)):
        factor = float(depth**-0.5 if scale is None else scale)
        root = add("scaled", Pointwise(Arg(0) * factor, torch.float32), leaf)
    else:
        return None
    if a["is_causal"]:
        at = [add(which, Iota(rank - 2 + d), dtype=torch.int64) for d, which in enumerate(("query", "key"))]
        root = add("causal", Pointwise(select(Arg(2) <= Arg(1), Arg(0), -math.inf), torch.float32), root, *at)
    mask = a["attn_mask"]
    if isinstance(mask, Ref):
        held = prims.get(value.get(mask.name, ""))
        if held is None or held.dtype not in (torch.bool, torch.float32):
            return None
        added = select(differs(Arg(1), 0.0), 0.0, -math.inf) if held.dtype is torch.bool else Arg(1)  # as PyTorch has it: NaN stays NaN
        root = add("masked", Pointwise(Arg(0) + added, torch.float32), root, held.name)
    return Parts(
        value.get(q.name, ""), value.get(k.name, ""), False, value.get(v.name, ""), False, prims, leaf, root, value[node.name],
        (call,), node.name, safe=True, causal=bool(a["is_causal"]),
    )  # fmt: skip


def leaves_of(root: str, plan: Plan, prims: dict[str, Prim] | None = None) -> list[str]:
    """What is in memory that a value is computed from."""
    prims = prims or plan.lowered.prims
    at = tuple(map(Coordinate.of, axes_of(prims[root].shape)))
    found = accesses(prims, root, at, plan.home, inside=not prims[root].is_load)
    return sorted({access.leaf for access in found})


def is_scores(name: str, root: str, shape: tuple[Dim, ...], plan: Plan) -> bool:
    """A product that `root` reads only at its own place, though it may be through views that cancel."""
    prims = plan.lowered.prims
    prim = prims[name]
    product = prim.is_load and plan.graph[prim.origin].target in PRODUCTS
    if not product or len(shape) < 2 or not same_shape(prim.shape, shape) or prim.dtype is not torch.float32:
        return False
    at = tuple(map(Coordinate.of, axes_of(shape)))
    reads = [a for a in accesses(prims, root, at, plan.home, inside=root != name) if a.leaf == name]
    return bool(reads) and all(tuple_key(a.at) == tuple_key(at) and a.windows == 0 for a in reads)


def maker_of(node: Node, plan: Plan) -> Kernel | Call | None:
    """The step that computes a call of the graph: the call, or a kernel that has it in its place."""
    for step in plan.steps:
        if (step.node is node) if isinstance(step, Call) else (step.fused is not None and step.fused.anchor.node == node.name):
            return step
    return None


def read_only_by(value: str, steps: Sequence[Kernel | Call], plan: Plan) -> bool:
    """No other step reads it from memory, and no one outside gets it."""
    return all(any(reader is step for step in steps) for reader in readers(value, plan))


def readers(value: str, plan: Plan) -> Iterator[Kernel | Call | None]:
    """The steps that read a value from memory; None: it leaves the model."""
    made = plan.lowered.value
    for step in plan.steps:
        if isinstance(step, Kernel):
            read = value in step.loads
        else:
            read = any(name in made and plan.base(made[name]).name == value for name in step.node.inputs)
        if read:
            yield step
    if any(isinstance(o.value, Ref) and o.value.name in made and plan.base(made[o.value.name]).name == value for o in plan.graph.outputs):
        yield None


# ---- the kernel


def shortcut(parts: Parts, plan: Plan) -> Shortcut | None:
    """The kernel, and the steps in whose place it runs: also those that run for their sake alone."""
    ended = result_of(parts, plan)
    made = attended(parts, ended[1], plan) if ended is not None else None
    if ended is None or made is None:
        return None
    how, used = made
    memory = tuple(dict.fromkeys([how.q.memory, how.k.memory, how.v.memory, *used]))
    steps = with_their_own(ended[0], memory, plan)
    prims, graph, stored = plan.lowered.prims, plan.graph, how.out.memory
    kernels, calls = [s for s in steps if isinstance(s, Kernel)], [s for s in steps if isinstance(s, Call)]
    nodes = {node.name for k in kernels for node in origins(k, prims, graph)} | {call.node.name for call in calls}
    nodes |= {k.fused.anchor.node for k in kernels if k.fused is not None}
    how = replace(how, nodes=tuple(node.name for node in graph.in_order(nodes)))
    base = "attention" if how.attention.softmax else "two_products"
    name = free(base, FORWARD, {known.name for known in plan.every_kernel})
    kernel = Kernel(prims[stored].shape, (), {stored: "full"}, (stored,), memory, name, how)
    most = tuple((size, in_eights(plan.graph.hint(size))) for size in (how.depth, how.width) if not isinstance(size, int))
    return Shortcut(kernel, tuple(map(label, steps)), parts.name, tuple(dict.fromkeys(most)))


def attended(parts: Parts, out: Matrices, plan: Plan) -> tuple[Attended, tuple[str, ...]] | None:
    """What the kernel computes, and which tensors its chain reads; None where operands do not lie in steps, or are too deep for it."""
    q, k, v = (matrices(name, plan) for name in (parts.q, parts.k, parts.v))
    if q is None or k is None or v is None:
        return None
    k, v = k.transposed if parts.transposed else k, v.transposed if parts.v_transposed else v
    (queries, depth), (keys, width) = q.shape[-2:], v.shape[-2:]
    deep, wide, many = map(plan.graph.hint, (depth, width, keys))
    if not (0 < deep <= MOST and 0 < wide <= MOST) or many < 1 or not sizes.same(k.shape[-2], keys) or not sizes.same(k.shape[-1], depth):
        return None
    batch = finest([m for m in (q, k, v, out) if len(m.shape) > 2])
    cuts = [cut(m, batch) for m in (q, k, v, out)]
    matrix = batch_at(parts.prims[parts.root].shape[:-2], batch)
    if matrix is None or None in cuts:
        return None
    loads = leaves_of(parts.root, plan, parts.prims) if parts.root != parts.leaf else []
    at = (*matrix, Coordinate.of(Axis("n", queries)), Coordinate.of(Axis("c", keys)))
    body, used = score_body(parts.prims, loads, parts.root, parts.leaf, at)
    varies = [not isinstance(size, int) for size in (depth, width)]
    apart = parts.softmax and not parts.causal and leaves_out(parts.prims, parts.root, parts.leaf)
    attention = Attention(deep, wide, len(batch), parts.softmax, parts.safe, parts.causal, apart, *varies)
    q, k, v, out = (m for m in cuts if m is not None)
    return Attended(attention, batch, queries, keys, depth, width, q, k, v, out, body), used


LEFT_OUT = as_expr(-math.inf)


def is_score(expr: Expr) -> bool:
    return isinstance(expr, Arg) or expr == LEFT_OUT


def leaves_out(prims: dict[str, Prim], root: str, leaf: str) -> bool:
    """The chain puts -infinity in the place of some scores, by what does not depend on scores: it does so for all where it does so
    for NaN, since everything else that is done with a score is arithmetic."""
    depends: dict[str, bool] = {}

    def on_the_way(name: str) -> bool:
        if name not in depends:
            depends[name] = name == leaf or any(map(on_the_way, prims[name].inputs))
        return depends[name]

    found, stack = False, [root] if on_the_way(root) else []
    while stack:
        prim = prims[stack.pop()]
        if prim.name == leaf:
            continue
        if isinstance(prim.op, Pointwise):
            expr = prim.op.expression
            selects = isinstance(expr, Select) and expr.test == Arg(0) and all(is_score(side) for side in expr.parts[1:])
            if selects and not on_the_way(prim.inputs[0]):
                found |= LEFT_OUT in expr.parts
            elif not is_arithmetic(expr):
                return False
        elif not isinstance(prim.op, View):
            return False
        stack += [name for name in prim.inputs if on_the_way(name)]
    return found


def result_of(parts: Parts, plan: Plan) -> tuple[list[Kernel | Call], Matrices] | None:
    """The steps up to what is in memory in the end, and how the result lies there: a kernel behind them may put heads together."""
    prims, steps = plan.lowered.prims, list({id(step): step for step in parts.steps}.values())
    if isinstance(steps[-1], Call) or steps[-1].stores == (parts.value,):
        behind = list(readers(parts.value, plan))
        copies = [s for s in behind if isinstance(s, Kernel) and s.is_pointwise and len(s.stores) == 1 and not s.overwrites]
        if len(behind) == len(copies) == 1 and only_placed(prims, copies[0].stores[0], parts.value):
            steps.append(copies[0])
    stored = steps[-1].stores[0] if isinstance(steps[-1], Kernel) else parts.value
    if not only_placed(prims, stored, parts.value) or prims[stored].channels_last:
        return None
    out = put_in(stored, parts.value, plan)
    return (steps, out) if out is not None and out.is_upright else None


def only_placed(prims: dict[str, Prim], name: str, leaf: str) -> bool:
    """It has the elements of `leaf`, in another order or shape at most."""
    while name != leaf:
        if not isinstance(prims[name].op, (Permute, Reshape)):
            return False
        name = prims[name].inputs[0]
    return True


def with_their_own(steps: Sequence[Kernel | Call], memory: Sequence[str], plan: Plan) -> list[Kernel | Call]:
    """The steps and those that run for their sake alone: copies of operands that the library wants in another order."""
    found = list(steps)
    for step in reversed(plan.steps):
        if isinstance(step, Kernel) and not any(step is s for s in found) and not step.overwrites:
            alone = step.stores and all(name not in memory and read_only_by(name, found, plan) for name in step.stores)
            found += [step] if alone else []
    return [step for step in plan.steps if any(step is s for s in found)]


def side_by_side(steps: Sequence[Kernel | Call], made: Shortcut) -> tuple[Kernel | Call, ...]:
    """The steps of a shortcut one after the other, where the last of them was: nothing else reads what they leave to each other."""
    own = [step for step in steps if label(step) in made.steps]
    others = [step for step in steps if label(step) not in made.steps]
    behind = len([step for step in steps[steps.index(own[-1]) :] if label(step) not in made.steps])
    return (*others[: len(others) - behind], *own, *others[len(others) - behind :])


# ---- batches: the dimensions of one operand may be several of another's joined


def finest(operands: Sequence[Matrices]) -> tuple[Dim, ...]:
    """The sizes of the batch, by the operand that has it in most pieces. Ones do not count."""
    batches = [tuple(size for size in m.shape[:-2] if not sizes.is_one(size)) for m in operands]
    return max(batches, key=len, default=())


def cut(operand: Matrices, batch: Sequence[Dim]) -> Matrices | None:
    """The operand with a step for each of the batch; one for all has none."""
    if len(operand.shape) == 2:
        return replace(operand, shape=(*batch, *operand.shape), batch=(0,) * len(batch))
    pieces = grouped(operand.shape[:-2], batch)
    if pieces is None:
        return None
    steps: list[Dim] = []
    own = [step for size, step in zip(operand.shape, operand.batch, strict=False) if not sizes.is_one(size)]
    for (_, group), step in zip(pieces, own, strict=True):
        steps += [sizes.tidy(step * sizes.product(group[i + 1 :])) for i in range(len(group))]
    return replace(operand, shape=(*batch, *operand.shape[-2:]), batch=tuple(steps))


def grouped(shape: Sequence[Dim], batch: Sequence[Dim]) -> list[tuple[Dim, list[Dim]]] | None:
    """Each size of a shape, and the sizes of the batch that make it."""
    rest, found = list(batch), []
    for size in (s for s in shape if not sizes.is_one(s)):
        group: list[Dim] = []
        while rest and not (group and sizes.same(sizes.product(group), size)):
            group.append(rest.pop(0))
        if not group or not sizes.same(sizes.product(group), size):
            return None
        found.append((size, group))
    return found if not rest else None


def batch_at(shape: Sequence[Dim], batch: Sequence[Dim]) -> Coordinates | None:
    """Where matrix (z0, z1, …) of the batch lies in dimensions of this shape."""
    pieces, axes = grouped(shape, batch), [Axis(f"z{d}", size) for d, size in enumerate(batch)]
    if pieces is None:
        return None
    found: list[Coordinate] = []
    for size in shape:
        if sizes.is_one(size):
            found.append(Coordinate())
            continue
        _, group = pieces.pop(0)
        found.append(linear(tuple(Coordinate.of(axes.pop(0)) for _ in group), tuple(group)))
    return tuple(found)


# ---- is it cheaper?


def pays(made: Shortcut, parts: Parts, plan: Plan) -> bool:
    """The kernel is predicted to be faster than what it stands for."""
    how, hint = made.kernel.fused, plan.graph.hint
    batch, queries, keys = hint(sizes.product(how.batch)), hint(how.queries), hint(how.keys)
    others = sum(step_ms(step, parts, how, plan) for step in plan.steps if label(step) in made.steps)
    return attention_ms(how.attention, batch, queries, keys, plan.machine) < MARGIN * others


def step_ms(step: Kernel | Call, parts: Parts, how: Attended, plan: Plan) -> float:
    """What a step takes that the kernel would run in the place of."""
    hint = plan.graph.hint
    batch, queries, keys = hint(sizes.product(how.batch)), hint(how.queries), hint(how.keys)
    if isinstance(step, Kernel):
        if step.fused is None:
            return memory_ms([step], plan)
        anchor: Anchor = step.fused.anchor
        rows, many = rows_and_batch(anchor, plan)
        return product_ms(anchor.conv, product_tile(anchor.conv, rows, many, plan.machine), rows, many, plan.machine)
    if step.node.target is IN_ONE_CALL:
        return library_attention_ms(how.attention, batch, queries, keys, plan.machine)
    first = plan.lowered.value[step.node.name] == parts.leaf
    product = Product(how.attention.depth, keys) if first else Product(keys, how.attention.width)
    copied = sum(bytes_copied(m, plan) for m in ((how.q, how.k) if first else (how.v,)))
    copies = 2 * copied / plan.machine.by_memory(MEMORY_TB_PER_S) * 1e-9 + (plan.machine.by_launch(LAUNCH_MS) if copied else 0.0)
    return library_ms(product, queries, batch, plan.machine) + copies


def bytes_copied(operand: Matrices, plan: Plan) -> int:
    """A permuted operand, which the library copies first: its matrices do not lie one after the other."""
    *_, rows, columns = operand.shape
    upright = operand if operand.is_upright else operand.transposed
    follow = not operand.batch or sizes.same(operand.batch[-1], sizes.tidy(rows * columns)) or len(operand.batch) == 1
    plain = follow and (sizes.same(upright.row, upright.shape[-1]) or len(operand.batch) <= 1)
    return 0 if plain else 4 * plan.graph.hint(sizes.product(operand.shape))


__all__ = ["Attended", "attentions", "with_shortcuts"]
