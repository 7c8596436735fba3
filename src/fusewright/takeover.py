"""Convolutions of our own: where a kernel that computes one and goes on is cheaper than the library's and our kernels behind it.

The library writes the product to memory and our kernels read it back. A kernel whose anchor is the convolution computes it
and goes on. Either every kernel that reads the result does so: where statistics are needed first, it is computed twice
and never stored. Or one kernel does, and writes it to memory for the others (`stored.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from . import sizes
from .access import accesses, same_shape, tuple_key
from .arithmetic import Convolution
from .graph import Graph, Node, Ref
from .index import Axis, Coordinate
from .ir.expr import Arg
from .kernels import depthwise
from .kernels.conv import Conv, Ending, OverChannels, OverPositions
from .kernels.conv import Window as ConvWindow
from .kernels.conv_tiles import expected_ms
from .kernels.conv_tiles import fits as tile_fits
from .kernels.depthwise import is_depthwise
from .kernels.product import Product
from .plan import Call, Kernel, Plan, name_kernels
from .prims import Coordinates, Pointwise, Prim, Reshape, Window
from .rewrite import Site
from .rules.patterns import TRANSPOSED, convolution_at

MEMORY_TB_PER_S = 4.1  # H200, measured
LAUNCH_MS = 0.003
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
TURNED_TB_PER_S = (3.0, 3.7)  # H200: what cuDNN's kernels that turn an input and a result move (s1037: 69 us for 103 MB, 108 for 198)
LIBRARY_CHANNELS = 32  # not measured beside others: the narrowest tiles of cuDNN's kernels by their names
MARGIN = 0.9  # a prediction must beat that of the library's, or of what stays in registers, by this much


@dataclass(frozen=True)
class Anchor:
    """A convolution or product that a kernel computes itself. `value` is the primitive that holds its result, bias included."""

    conv: Any  # kernels.conv.Conv or kernels.product.Product
    value: str
    input: str
    weight: str
    bias: str | None
    out_shape: tuple[object, ...]
    node: str  # in the graph
    depth: Any = 0  # of a product: how many numbers a sum has
    exact: bool = False  # of a convolution: the library computes it in float32, although the flags allow TF32

    @property
    def coarser(self) -> bool:
        """Our kernel rounds operands that the library does not."""
        return self.exact and bool(self.conv.tf32)


@dataclass(frozen=True)
class Fused:
    """How a kernel ends its convolution."""

    anchor: Anchor
    ending: Ending
    window: str | None = None  # the primitive of the pool inside the tile


@dataclass(frozen=True)
class Way:
    """A convolution computed by us: for each kernel that reads its result, the kernels in its place."""

    kernels: tuple[tuple[Kernel, ...], ...]
    ms: float  # predicted


def tf32_allowed() -> bool:
    """What the user's flags allow to convolutions."""
    return allows_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn)


def allows_tf32(new: Any, old: Any) -> bool:
    """By the newer name of the flag where it says something, else by the older one."""
    precision = getattr(new, "fp32_precision", None)
    return bool(precision == "tf32" if precision in ("tf32", "ieee") else old.allow_tf32)


def take_over(
    plan: Plan, own: frozenset[str] | None = None, stored: bool | None = None, channels_last: bool = False
) -> Plan:
    """The plan with convolutions and products computed by kernels of ours: those named in `own`, or else those that pay.

    `stored` says whether a result that several kernels read is written to memory, or computed by each of them; where it
    does not say, or it cannot be had, the prediction decides. `channels_last` is how the library's convolutions will lie.
    """
    from .attention import with_shortcuts
    from .products import pays as product_pays
    from .products import product_of, with_product
    from .stored import written_way

    steps = list(plan.steps)
    for call in plan.calls:
        if own is not None and call.node.name not in own:
            continue
        if (product := product_of(call.node, replace(plan, steps=tuple(steps)))) is not None:
            reading = [k for k in steps if isinstance(k, Kernel) and product.value in k.loads]
            if not too_large(reading, plan, product) and (own is not None or product_pays(product, plan)):
                steps = with_product(product, call, steps, plan)
            continue
        anchor = anchor_of(call.node, plan)
        if anchor is None:
            continue
        readers = [k for k in steps if isinstance(k, Kernel) and plan.lowered.value[call.node.name] in k.loads]
        several_anchors = any(kernel.fused is not None for kernel in readers)
        if not readers or several_anchors or is_needed_elsewhere(call.node, plan) or too_large(readers, plan):
            anchor, readers = own_result(anchor, plan), []  # whoever reads it finds it where the library would have put it
            way = written_way(anchor, plan)
        else:
            way = best_way(anchor, readers, steps, plan, stored)
        if way is None or (own is None and not pays(anchor, readers, way, plan, channels_last)):
            continue
        replaced: Sequence[Kernel | Call] = readers or [call]
        for step, kernels in zip(replaced, way.kernels, strict=True):
            position = next(i for i, other in enumerate(steps) if other is step)
            steps[position : position + 1] = kernels
        steps = [step for step in steps if step is not call]
    result_plan = replace(plan, steps=tuple(without_unread(steps, plan)))
    name_kernels(result_plan)
    return with_shortcuts(result_plan, own)


def without_unread(steps: Sequence[Kernel | Call], plan: Plan) -> list[Kernel | Call]:
    """Without the copies that library calls would have read: our products read what they are copies of."""
    value, made = plan.lowered.value, replace(plan, steps=tuple(steps))
    wanted = [o.value.name for o in plan.graph.outputs if isinstance(o.value, Ref)]
    wanted += [name for call in made.calls for name in call.node.inputs]
    read = {made.base(value[name]).name for name in wanted if name in value}
    read |= {name for kernel in made.kernels for name in kernel.loads}
    return [s for s in steps if not isinstance(s, Kernel) or not s.is_pointwise or s.overwrites or not read.isdisjoint(s.stores)]


def best_way(
    anchor: Anchor, readers: Sequence[Kernel], steps: Sequence[Kernel | Call], plan: Plan, stored: bool | None
) -> Way | None:
    """The way that is asked for, or else the one predicted to be the cheapest."""
    from .stored import stored_way

    ended, kept = ended_way(anchor, readers, plan), stored_way(anchor, readers, steps, plan)
    if ended is None or kept is None:
        return ended or kept
    computed_again = sum(map(len, ended.kernels)) > 1
    if stored is not None:
        return kept if stored and computed_again else ended
    # Readers with a library call between them are differentiated apart: each would compute the convolution's backward, too.
    if computed_again and call_between(readers, steps):
        return kept if MARGIN * kept.ms < ended.ms else ended
    return kept if kept.ms < MARGIN * ended.ms else ended


def call_between(kernels: Sequence[Kernel], steps: Sequence[Kernel | Call]) -> bool:
    at = [position for position, step in enumerate(steps) if any(step is kernel for kernel in kernels)]
    return any(isinstance(step, Call) for step in steps[at[0] : at[-1]])


def ended_way(anchor: Anchor, readers: Sequence[Kernel], plan: Plan) -> Way | None:
    """Every kernel that reads the result computes it and ends it in registers."""
    endings = [endings_of(kernel, anchor, plan) for kernel in readers]
    if not all(endings):
        return None
    kernels = tuple(tuple(with_convolution(kernel, how, plan) for kernel, how in pairs) for pairs in endings)
    return Way(kernels, sum(ours_ms(how, plan) for pairs in endings for _, how in pairs))


def with_convolution(kernel: Kernel, how: Fused, plan: Plan) -> Kernel:
    """The kernel that computes the convolution itself: it reads its operands, not its result."""
    anchor, result = how.anchor, plan.lowered.value[how.anchor.node]
    operands = [anchor.input, anchor.weight, *([anchor.bias] if anchor.bias else [])]
    others = (name for name in kernel.loads if name not in (result, anchor.value, *operands))
    return replace(kernel, loads=(*operands, *dict.fromkeys(others)), fused=how)


def too_large(readers: Sequence[Kernel], plan: Plan, product: Anchor | None = None) -> bool:
    """Our convolutions and products count the elements of a tensor by 32 bits."""
    names = [name for kernel in readers for name in (*kernel.loads, *kernel.stores)]
    names += [product.value, product.input, product.weight] if product is not None else []
    return any(plan.graph.hint(sizes.product(plan.lowered.prims[name].shape)) >= 1 << 31 for name in names)


def endings_of(kernel: Kernel, anchor: Anchor, plan: Plan) -> list[tuple[Kernel, Fused]]:
    """The kernel, or its statistics and what needs them apart, with the way each ends the convolution; none if one cannot."""
    for kernels in ([kernel], apart(kernel, plan.lowered.prims)):
        found = [(k, fused(k, anchor, plan)) for k in kernels]
        able = [(k, how) for k, how in found if how is not None and can_end(anchor, how.ending)]
        if able and len(able) == len(found):
            return able
    return []


def apart(kernel: Kernel, prims: dict[str, Prim]) -> list[Kernel]:
    """A kernel that goes over its rows again once their statistics are known, as one kernel for these and one for each tensor."""
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    rows = {name: role for name, role in kernel.members.items() if role != "full"}
    if not kernel.is_reduce or not full:
        return []
    behind = read_by(prims, full, [*rows, *kernel.loads])
    stored = tuple(name for name in rows if name in behind or name in kernel.stores)
    wanted = read_by(prims, stored, kernel.loads)
    statistics = Kernel(
        kernel.space, kernel.reduced, rows, stored, tuple(name for name in kernel.loads if name in wanted)
    )
    kernels = [statistics]
    for name in full:
        reads = read_by(prims, [name], [*rows, *kernel.loads])
        loads = tuple(n for n in (*kernel.loads, *stored) if n in reads)
        kernels.append(Kernel(prims[name].shape, (), {name: "full"}, (name,), loads))
    return kernels


def read_by(prims: dict[str, Prim], roots: Collection[str], stops: Collection[str]) -> set[str]:
    """Of `stops`, those that `roots` are computed from directly."""
    found, stack, seen = set(), list(roots), set()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in stops and name not in roots:
            found.add(name)
        else:
            stack += prims[name].inputs
    return found


def is_needed_elsewhere(node: Node, plan: Plan) -> bool:
    """The convolution's result must be in memory: a library call reads it, or it is returned."""
    value = plan.lowered.value[node.name]

    def behind(name: str) -> str:
        prim = plan.lowered.prims[plan.lowered.value[name]] if name in plan.lowered.value else None
        while prim is not None and prim.inputs and not isinstance(prim.op, (Pointwise, Window)) and prim.name not in (value, *plan.home):
            prim = plan.lowered.prims[prim.inputs[0]]
        return prim.name if prim is not None else ""

    wanted = [o.value.name for o in plan.graph.outputs if isinstance(o.value, Ref)]
    wanted += [name for other in plan.calls if other.node is not node for name in other.node.inputs]
    return any(behind(name) == value for name in wanted)


def anchor_of(node: Node, plan: Plan) -> Anchor | None:
    graph, lowered = plan.graph, plan.lowered
    found = convolution_at(Site(graph, node, {}), node)
    if found is None or node.dtype not in DTYPES or node.shape is None:
        return None
    transposed = node.target in TRANSPOSED
    strided = any(s != 1 for s in found.stride)
    if transposed and (any(found.output_padding) if not strided else any(d != 1 for d in found.dilation)):
        return None
    in_channels = graph[found.input.name].shape[1]  # type: ignore[index]
    if not isinstance(in_channels, int) or not isinstance(node.shape[1], int):
        return None
    if any(size == 1 for size in node.shape[2:]):  # a matrix product, or nearly: nothing to slide over
        return None
    if found.input.name not in lowered.value or not lowered.prims[lowered.value[found.weight.name]].is_load:
        return None
    conv = Conv(
        found.rank, in_channels, node.shape[1], found.kernel, found.stride, found.padding, found.dilation, found.groups,
        bias=True, dtype=DTYPES[node.dtype], transposed=transposed, output_padding=found.output_padding,
    )  # fmt: skip
    exact = False
    if not is_depthwise(conv) and node.dtype is torch.float32:
        allowed, precision = tf32_allowed(), plan.precision
        exact = allowed and precision is not None and precision.is_exact(called(conv))
        conv = replace(conv, tf32=allowed and not (exact and precision.split))
    result = lowered.value[node.name]
    bias = lowered.value[found.bias.name] if found.bias is not None else None
    value = result
    if bias is None:
        added = bias_added(result, plan)
        if added is not None:
            value, bias = added
    input_ = lowered.value[found.input.name]
    weight = lowered.value[found.weight.name]
    if not lowered.prims[input_].is_load and input_ not in {name for k in plan.kernels for name in k.stores}:
        return None  # a view of something: the library reads it with its strides
    return Anchor(replace(conv, bias=bias is not None), value, input_, weight, bias, node.shape, node.name, exact=exact)


def called(conv: Conv) -> Convolution:
    """The convolution as the library is called for it."""
    window = (conv.kernel, conv.stride, conv.padding, conv.dilation)
    return Convolution(conv.in_channels // conv.groups, conv.out_channels, *window, conv.groups, conv.transposed)


def arithmetic(anchor: Anchor, plan: Plan) -> str:
    """How a convolution on the tensor cores multiplies float32 numbers, and why, in words."""
    conv, followed = anchor.conv, plan.precision is not None and plan.precision.library is not None
    if conv.is_strict:
        why = "the library computes this convolution in float32" if anchor.exact else "TF32 is not allowed"
        return f"three products of TF32 parts, as exact as float32: {why}"
    if anchor.exact:
        return "one TF32 product: results stay within 1e-4 of their rms of the library's, which is float32"
    return f"one TF32 product, as {'the library has it' if followed else 'the flags allow'}"


def own_result(anchor: Anchor, plan: Plan) -> Anchor:
    """The same with nothing but what its node gives: no bias that is added to that elsewhere."""
    result = plan.lowered.value[anchor.node]
    return anchor if anchor.value == result else replace(anchor, conv=replace(anchor.conv, bias=False), value=result, bias=None)


def bias_added(result: str, plan: Plan) -> tuple[str, str] | None:
    """(sum, bias) where the only thing done with the result is to add a value for each channel."""
    prims = plan.lowered.prims
    users = [prim for prim in prims.values() if result in prim.inputs]
    if len(users) != 1 or not isinstance(users[0].op, Pointwise) or users[0].op.expression != Arg(0) + Arg(1):
        return None
    first, second = users[0].inputs
    shaped = prims[second]
    if first != result or not isinstance(shaped.op, Reshape) or not prims[shaped.inputs[0]].is_load:
        return None
    bias = prims[shaped.inputs[0]]
    if bias.dtype != prims[result].dtype:
        return None
    per_channel = len(bias.shape) == 1 and len(shaped.shape) == len(prims[result].shape) - 1
    return (users[0].name, bias.name) if per_channel and sizes.same(shaped.shape[0], bias.shape[0]) else None


# ---- does a kernel's work fit the end of a convolution?


def axes_for(shape: tuple[object, ...]) -> Coordinates:
    names = ("n", "c", *("d", "h", "w")[5 - len(shape) :])
    return tuple(Coordinate.of(Axis(name, size)) for name, size in zip(names, shape, strict=True))


def reads_only_here(
    prims: dict[str, Prim], root: str, at: Coordinates, leaf: str, shape: tuple[object, ...], others: set[str]
) -> bool:
    """Evaluating `root` at `at` reads `leaf` only at the same place."""
    here = tuple_key(axes_for(shape))
    found = [a for a in accesses(prims, root, at, {leaf} | others, inside=root != leaf) if a.leaf == leaf]
    return bool(found) and all(tuple_key(a.at) == here and a.windows == 0 for a in found)


def placed(kernel_space: tuple[object, ...], shape: tuple[object, ...]) -> Coordinates | None:
    """Coordinates in a kernel's space of the element (n, c, position) of a tensor of this shape."""
    at = axes_for(shape)
    if same_shape(kernel_space, shape):
        return at
    split = len(kernel_space) == len(shape) + 1 and same_shape(
        (kernel_space[0], *kernel_space[3:]), (shape[0], *shape[2:])
    )
    if split and isinstance(kernel_space[2], int) and sizes.same(kernel_space[1] * kernel_space[2], shape[1]):  # type: ignore[operator]
        group, member = at[1].split(kernel_space[2])
        return (at[0], group, member, *at[2:])
    return None


def fused(kernel: Kernel, anchor: Anchor, plan: Plan, taken: frozenset[str] = frozenset()) -> Fused | None:
    """How the kernel can end the convolution, or None. `taken` are names that its text may not use."""
    from .kernels.accumulators import kind_of
    from .kernels.anchored import body_of, names_in
    from .kernels.loops import needed_reduces
    from .kernels.reduce import accumulators

    prims = plan.lowered.prims
    windows = windows_of(kernel, prims, anchor)
    if windows is None or len(kernel.stores) == 0 or kernel.is_scan:
        return None
    window = windows[0] if windows else None
    shape = prims[window].shape if window else anchor.out_shape
    leaf = window or anchor.value
    pool = None
    if window:
        pool = pool_of(prims[window], anchor)
        if pool is None or not reads_only_here(
            prims, prims[window].inputs[0], axes_for(anchor.out_shape), anchor.value, anchor.out_shape, set()
        ):  # fmt: skip
            return None
    at = placed(kernel.space, shape)
    if at is None:
        return None
    others = {anchor.value} if window else set()

    def reads_leaf(root: str) -> bool:
        direct = {a.leaf for a in accesses(prims, root, at, {leaf, anchor.value}, inside=root != leaf)}
        return reads_only_here(prims, root, at, leaf, shape, others) and not (window and anchor.value in direct)

    before = None
    if window:
        source = prims[window].inputs[0]
        before = body_of(anchor, kernel, plan, root=source, leaf=anchor.value, shape=anchor.out_shape, taken=taken)
        taken |= names_in(before)
    if not kernel.is_reduce:
        if (
            len(kernel.stores) != 1
            or not reads_leaf(kernel.stores[0])
            or DTYPES.get(prims[kernel.stores[0]].dtype) != anchor.conv.dtype
        ):
            return None
        last = body_of(anchor, kernel, plan, root=kernel.stores[0], leaf=leaf, shape=shape, at=at, taken=taken)
        return Fused(anchor, ending_with(before, pool, last), window)
    parts = accumulators(kernel, prims)
    if len(parts) != 1 or len(needed_reduces(kernel, prims)) == 0 or not reads_leaf(parts[0].source):
        return None
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    over_channels = kernel.reduced == (1,) and same_shape(kernel.space, shape)
    to_rows = over_channels and not full and len(kernel.stores) == 1
    inner = body_of(
        anchor, kernel, plan, root=parts[0].source, leaf=leaf, shape=shape, at=at, taken=taken,
        may_shift=to_rows and parts[0].kind == "LogSumExp",
    )  # fmt: skip
    base = ending_with(before, pool, inner)
    if to_rows and parts[0].kind in ("LogSumExp", "Sum", "Max", "Min"):
        store = kernel.stores[0]
        if DTYPES.get(prims[store].dtype) != anchor.conv.dtype:
            return None
        fields = {prims[m].op.field for m in parts[0].members}
        if fields != {"result()"}:
            return None
        after = body_of(anchor, kernel, plan, root=store, leaf=parts[0].members[0], shape=shape, row=True)
        return Fused(anchor, replace(base, reduce=OverChannels(parts[0].kind, plus=inner.left_out), after=after), window)
    if (
        over_channels
        and full
        and len(kernel.stores) == 1
        and parts[0].kind in ("LogSumExp", "Sum", "Max", "Min", "Moments")
    ):
        return elements_and_total(base, kernel, anchor, plan, window, shape, at)
    positions = set(range(len(kernel.space) - anchor.conv.dims, len(kernel.space)))
    over_positions = positions <= set(kernel.reduced) and not full and parts[0].kind in ("Moments", "Sum", "Max", "Min")
    channel_dims = set(range(1, len(kernel.space) - anchor.conv.dims))
    rest = set(kernel.reduced) - positions
    whole_group = rest <= {0} or rest == {2} or (rest == {1, 2} and len(channel_dims) == 2 and kernel.space[1] == 1)
    all_channels = rest == channel_dims == {1}
    if over_positions and (whole_group or all_channels):
        return Fused(anchor, replace(base, reduce=OverPositions(kind_of(parts[0], prims))), window)
    return None


def pool_of(window: Prim, anchor: Anchor) -> ConvWindow | None:
    """The pool as a convolution's ending knows it."""
    op = window.op
    plain = op.kernel == op.stride and not any(op.padding) and all(d == 1 for d in op.dilation) and not op.clipped
    plain = plain and op.kind != "largest"
    return ConvWindow(op.kind, op.kernel) if plain and len(op.kernel) == anchor.conv.dims else None


def elements_and_total(
    base: Ending,
    kernel: Kernel,
    anchor: Anchor,
    plan: Plan,
    window: str | None,
    shape: tuple[object, ...],
    at: Coordinates,
) -> Fused | None:
    """A softmax, or a norm over channels: the elements wait in registers until their position's total is known."""
    from .kernels.accumulators import CLOSER
    from .kernels.anchored import body_of
    from .kernels.reduce import accumulators

    prims = plan.lowered.prims
    (part,), (store,) = accumulators(kernel, prims), kernel.stores
    if not same_shape(prims[store].shape, shape):
        return None
    before = {anchor.value, *([window] if window else [])} - {part.source}  # gone by then
    reads = {a.leaf for a in accesses(prims, store, at, {part.source} | before, inside=store != part.source)}
    if reads & before or part.source not in reads or DTYPES.get(prims[store].dtype) != anchor.conv.dtype:
        return None
    if not reads_only_here(prims, store, at, part.source, shape, before):
        return None
    totals = {member: f"total.{prims[member].op.field}" for member in part.members}
    after = body_of(anchor, kernel, plan, root=store, leaf=part.source, shape=shape, totals=totals)
    return Fused(anchor, replace(base, reduce=OverChannels(CLOSER.get(part.kind, part.kind), keep=True), after=after), window)


def ending_with(before: object, pool: ConvWindow | None, last: object) -> Ending:
    """The pointwise part that comes last stands behind the pool if there is one."""
    if pool is None:
        return Ending(before=last)  # type: ignore[arg-type]
    return Ending(before=before, window=pool, between=last)  # type: ignore[arg-type]


def windows_of(kernel: Kernel, prims: dict[str, Prim], anchor: Anchor) -> list[str] | None:
    """Pools between the convolution and what the kernel stores; None if more than one."""
    found: list[str] = []
    stack, seen = list(kernel.stores), set()
    while stack:
        name = stack.pop()
        if name in seen or name in kernel.loads or name == anchor.value:
            continue
        seen.add(name)
        if isinstance(prims[name].op, Window):
            found.append(name)
        stack += prims[name].inputs
    return found if len(found) <= 1 else None


# ---- is it cheaper?


def input_sizes(anchor: Anchor, plan: Plan) -> tuple[int, ...]:
    batch, _, *spatial = plan.lowered.prims[anchor.input].shape
    return tuple(plan.graph.hint(size) for size in (batch, *spatial))


def pays(anchor: Anchor, readers: Sequence[Kernel], way: Way, plan: Plan, channels_last: bool = False) -> bool:
    turned = input_turned_ms(anchor, plan) if channels_last and not reads_from_outside(anchor, plan) else 0.0
    return way.ms + turned < MARGIN * library_ms(anchor, readers, plan, channels_last)


def reads_from_outside(anchor: Anchor, plan: Plan) -> bool:
    """Its input is one of the model's, which lies as the caller gives it."""
    return any(node.is_leaf and plan.lowered.value[node.name] == anchor.input for node in plan.graph.nodes)


def input_turned_ms(anchor: Anchor, plan: Plan) -> float:
    """To put the input's channels last, or back."""
    batch, *spatial = input_sizes(anchor, plan)
    read = batch * anchor.conv.in_channels * prod(spatial) * anchor.conv.item_bytes
    return 2 * read / TURNED_TB_PER_S[0] * 1e-9


def ours_ms(how: Fused, plan: Plan) -> float:
    conv, ending, at = how.anchor.conv, how.ending, input_sizes(how.anchor, plan)
    if is_depthwise(conv):
        return depthwise.predicted_ms(conv, ending, at)
    return expected_ms(conv, ending, at)


def can_end(anchor: Anchor, ending: Ending) -> bool:
    """There is a kernel for this convolution with this ending."""
    fits = depthwise.fits if is_depthwise(anchor.conv) else tile_fits
    return fits(anchor.conv, ending)


def memory_ms(kernels: Sequence[Kernel], plan: Plan) -> float:
    """Kernels like any other: what they read and write, once."""
    graph, prims = plan.graph, plan.lowered.prims
    moved = sum(
        graph.hint(sizes.product(prims[n].shape)) * prims[n].dtype.itemsize
        for k in kernels
        for n in (*k.loads, *k.stores)
    )
    return moved / MEMORY_TB_PER_S * 1e-9 + LAUNCH_MS * len(kernels)


def library_ms(anchor: Anchor, kernels: Sequence[Kernel], plan: Plan, channels_last: bool = False) -> float:
    """The library's convolution, its result written and read again by each kernel. On channels-last data it turns nothing, but what
    comes from outside lies otherwise."""
    conv = anchor.conv
    batch, *spatial = input_sizes(anchor, plan)
    written = batch * conv.out_channels * prod(conv.out_sizes(spatial)) * conv.item_bytes
    read = batch * conv.in_channels * prod(spatial) * conv.item_bytes
    if is_depthwise(conv):
        return depthwise.library_ms(conv, (batch, *spatial)) + memory_ms(kernels, plan)
    computed = conv_flops(anchor, plan) * library_padding(conv) / library_rate(conv) * 1e-9
    turned = input_turned_ms(anchor, plan) + 2 * written / TURNED_TB_PER_S[1] * 1e-9 if library_turns(conv) else 0.0
    if channels_last:
        turned = input_turned_ms(anchor, plan) if reads_from_outside(anchor, plan) else 0.0
    convolution = max(computed + turned, (written + read) / MEMORY_TB_PER_S * 1e-9) + LAUNCH_MS
    return convolution + memory_ms(kernels, plan)


def conv_flops(anchor: Anchor, plan: Plan) -> int:
    """Of the convolution, or of the product."""
    conv = anchor.conv
    if isinstance(conv, Product):
        return 2 * plan.graph.hint(sizes.product(anchor.out_shape)) * conv.depth
    batch, *spatial = input_sizes(anchor, plan)
    positions = prod(spatial if conv.is_phased else conv.out_sizes(spatial))  # each of them meets every tap
    return 2 * batch * positions * conv.out_channels * conv.in_channels // conv.groups * prod(conv.kernel)


def library_turns(conv: Conv) -> bool:
    """cuDNN's tensor-core kernels work on channels-last data: it turns what it reads and what it writes, in kernels of their own."""
    return not conv.is_strict and conv.in_channels // conv.groups >= 16 and conv.groups == 1 and not slow_transposed(conv)


def library_padding(conv: Conv) -> float:
    """How often the library multiplies for each product: its tiles have so many output channels at least, also where there are fewer.
    1->6 channels of 5x5 took it 0.11 ms, where this counts 0.034 (benchmarks/results/few_channels.txt)."""
    return max(1.0, LIBRARY_CHANNELS / conv.out_channels) if conv.groups == 1 and not conv.transposed else 1.0


def slow_transposed(conv: Conv) -> bool:
    return conv.transposed and (conv.dims == 3 or (conv.dims == 1 and conv.is_phased))


def library_rate(conv: Conv) -> float:
    """TFLOP/s of cuDNN on NCHW float32 with TF32 allowed, without the turning, H200 (benchmarks/results): 29 at 8 input channels (it
    does not use TF32 there), 100 at 16 (s1010), 205 at 32 (s1037), 240 at 96 and 320 at 256 (plain); in groups 3 (s1002). Images of 32
    channels or fewer that come out: 38 to 54 of 64 to 192 channels, 110 of 224 (zoo/network/densenet_block.py).

    Transposed ones: strided in two dimensions 73 (s1033, 103 us). By what whole forwards took without their kernels: strided in
    three 11 (s1006), without strides 13 (s1020, s1034), strided in one 31 (s10).

    Where TF32 is not allowed nothing was measured: taken at what matrix products reach (50), and 30 as above where they are not deep.
    Of halves nothing was measured: taken at twice that, as matrix products are (741 against 395), and with tensor cores at any depth.
    """
    depth = conv.in_channels // conv.groups
    if conv.is_strict:
        return min(library_rate(replace(conv, tf32=True)), 50.0)
    if conv.packed_in > 1:
        return 2 * library_rate(replace(conv, dtype="float32", in_channels=max(depth, 16) * conv.groups))
    if slow_transposed(conv):
        return 30.0 if conv.dims == 1 else 10.0
    if conv.groups > 1:
        return 6.0
    if conv.is_phased:
        return 70.0
    rate = 30.0 if depth < 16 else 100.0 if depth < 32 else 190.0 if depth < 96 else 280.0
    return min(rate, 50.0 if depth < 224 else 110.0) if conv.out_channels <= 32 and conv.dims == 2 else rate


__all__ = ["Anchor", "Call", "Fused", "Graph", "take_over", "tf32_allowed"]
