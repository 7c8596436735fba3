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

from ..codegen.loops.accumulators import CLOSER, accumulators, kind_of
from ..codegen.loops.walk import needed_reduces
from ..codegen.mma import depthwise
from ..codegen.mma.anchor import Anchor, Fused, axes_for, conv_flops, input_sizes
from ..codegen.mma.anchored import body_of
from ..codegen.mma.conv import Conv, Epilogue, OverChannels, OverPositions
from ..codegen.mma.conv import Window as ConvWindow
from ..codegen.mma.conv_spec import TOTAL
from ..codegen.mma.conv_spec import Pointwise as Chain
from ..codegen.mma.conv_tiles import expected_ms
from ..codegen.mma.conv_tiles import fits as tile_fits
from ..codegen.mma.depthwise import is_depthwise
from ..ir import sizes
from ..ir.access import accesses, same_shape, tuple_key
from ..ir.expr import Arg, Expr, Field
from ..ir.graph import Node, Ref
from ..ir.plan import Kernel, Plan
from ..ir.prims import Coordinates, Pointwise, Prim, Reshape, Window
from ..laws.law import Site
from ..laws.patterns import convolution_at
from ..target.machine import H200, Machine
from .library import Convolution

MEMORY_TB_PER_S = 4.1  # H200, measured
LAUNCH_MS = 0.003
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
TRANSPOSE_TB_PER_S = (3.0, 3.7)  # H200: what cuDNN's kernels that turn an input and a result move (s1037: 69 us for 103 MB, 108 for 198)
LIBRARY_CHANNELS = 32  # not measured beside others: the narrowest tiles of cuDNN's kernels by their names
MARGIN = 0.9  # a prediction must beat that of the library's, or of what stays in registers, by this much


@dataclass(frozen=True)
class Fusion:
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


def epilogues_of(kernel: Kernel, anchor: Anchor, plan: Plan) -> list[tuple[Kernel, Fused]]:
    """The kernel, or its statistics and what needs them apart, with how each ends the convolution; none if one cannot."""
    for kernels in ([kernel], apart(kernel, plan.lowered.prims)):
        found = [(k, fused(k, anchor, plan)) for k in kernels]
        able = [(k, how) for k, how in found if how is not None and can_end(anchor, how.epilogue, plan)]
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
    transposed = found.transposed
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
        precision = plan.precision
        allowed = tf32_allowed() and (precision is None or precision.arithmetic != "ieee")
        exact = allowed and precision is not None and precision.is_exact(called(conv))
        split = exact and precision.split
        conv = replace(conv, tf32=allowed and (not split or precision.bf16_parts), bf16_parts=split and precision.bf16_parts)
        conv = replace(conv, scaled=conv.tf32 and not conv.bf16_parts and precision is not None and precision.scaled)
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

    before = Chain()
    if window:
        source = prims[window].inputs[0]
        before = body_of(anchor, kernel, plan, root=source, leaf=anchor.value, shape=anchor.out_shape, taken=taken)
        taken |= set(before.declares)
    if not kernel.is_reduce:
        if (
            len(kernel.stores) != 1
            or not reads_leaf(kernel.stores[0])
            or DTYPES.get(prims[kernel.stores[0]].dtype) != anchor.conv.dtype
        ):
            return None
        last = body_of(anchor, kernel, plan, root=kernel.stores[0], leaf=leaf, shape=shape, at=at, taken=taken)
        return Fused(anchor, epilogue_with(before, pool, last), window)
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
    base = epilogue_with(before, pool, inner)
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
    """The pool as a convolution's epilogue knows it."""
    op = window.op
    plain = op.kernel == op.stride and not any(op.padding) and all(d == 1 for d in op.dilation) and not op.clipped
    plain = plain and op.kind != "largest"
    return ConvWindow(op.kind, op.kernel) if plain and len(op.kernel) == anchor.conv.dims else None


def elements_and_total(
    base: Epilogue,
    kernel: Kernel,
    anchor: Anchor,
    plan: Plan,
    window: str | None,
    shape: tuple[object, ...],
    at: Coordinates,
) -> Fused | None:
    """A softmax, or a norm over channels: the elements wait in registers until their position's total is known."""
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
    totals: dict[str, Expr] = {member: Field(TOTAL, prims[member].op.field) for member in part.members}
    after = body_of(anchor, kernel, plan, root=store, leaf=part.source, shape=shape, totals=totals)
    return Fused(anchor, replace(base, reduce=OverChannels(CLOSER.get(part.kind, part.kind), keep=True), after=after), window)


def epilogue_with(before: Chain, pool: ConvWindow | None, last: Chain) -> Epilogue:
    """The pointwise part that comes last stands behind the pool if there is one."""
    if pool is None:
        return Epilogue(before=last)
    return Epilogue(before=before, window=pool, between=last)


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


def pays(anchor: Anchor, readers: Sequence[Kernel], fusion: Fusion, plan: Plan, channels_last: bool = False) -> bool:
    transposed = input_transpose_ms(anchor, plan) if channels_last and not reads_from_outside(anchor, plan) else 0.0
    return fusion.ms + transposed < MARGIN * library_ms(anchor, readers, plan, channels_last)


def reads_from_outside(anchor: Anchor, plan: Plan) -> bool:
    """Its input is one of the model's, which lies as the caller gives it."""
    return any(node.is_leaf and plan.lowered.value[node.name] == anchor.input for node in plan.graph.nodes)


def input_transpose_ms(anchor: Anchor, plan: Plan) -> float:
    """To put the input's channels last, or back."""
    batch, *spatial = input_sizes(anchor, plan)
    read = batch * anchor.conv.in_channels * prod(spatial) * anchor.conv.item_bytes
    return 2 * read / plan.machine.by_memory(TRANSPOSE_TB_PER_S[0]) * 1e-9


def ours_ms(how: Fused, plan: Plan) -> float:
    conv, epilogue, at = how.anchor.conv, how.epilogue, input_sizes(how.anchor, plan)
    if is_depthwise(conv):
        return depthwise.predicted_ms(conv, epilogue, at, plan.machine)
    return expected_ms(conv, epilogue, at, plan.machine)


def can_end(anchor: Anchor, epilogue: Epilogue, plan: Plan) -> bool:
    """There is a kernel for this convolution with this epilogue."""
    return depthwise.fits(anchor.conv, epilogue) if is_depthwise(anchor.conv) else tile_fits(anchor.conv, epilogue, plan.machine)


def memory_ms(kernels: Sequence[Kernel], plan: Plan) -> float:
    """Kernels like any other: what they read and write, once."""
    graph, prims = plan.graph, plan.lowered.prims
    moved = sum(
        graph.hint(sizes.product(prims[n].shape)) * prims[n].dtype.itemsize
        for k in kernels
        for n in (*k.loads, *k.stores)
    )
    machine = plan.machine
    return moved / machine.by_memory(MEMORY_TB_PER_S) * 1e-9 + machine.by_launch(LAUNCH_MS) * len(kernels)


def library_ms(anchor: Anchor, kernels: Sequence[Kernel], plan: Plan, channels_last: bool = False) -> float:
    """The library's convolution, its result written and read again by each kernel. On channels-last data it turns nothing, but what
    comes from outside lies otherwise."""
    conv, machine = anchor.conv, plan.machine
    batch, *spatial = input_sizes(anchor, plan)
    written = batch * conv.out_channels * prod(conv.out_sizes(spatial)) * conv.item_bytes
    read = batch * conv.in_channels * prod(spatial) * conv.item_bytes
    if is_depthwise(conv):
        return depthwise.library_ms(conv, (batch, *spatial), machine) + memory_ms(kernels, plan)
    computed = conv_flops(anchor, plan) * library_padding(conv) / library_rate(conv, machine) * 1e-9
    transposed = 0.0
    if library_turns(conv):
        transposed = input_transpose_ms(anchor, plan) + 2 * written / machine.by_memory(TRANSPOSE_TB_PER_S[1]) * 1e-9
    if channels_last:
        transposed = input_transpose_ms(anchor, plan) if reads_from_outside(anchor, plan) else 0.0
    moved = (written + read) / machine.by_memory(MEMORY_TB_PER_S) * 1e-9
    convolution = max(computed + transposed, moved) + machine.by_launch(LAUNCH_MS)
    return convolution + memory_ms(kernels, plan)


def library_turns(conv: Conv) -> bool:
    """cuDNN's tensor-core kernels work on channels-last data: it turns what it reads and what it writes, in kernels of their own."""
    return not conv.is_split and conv.in_channels // conv.groups >= 16 and conv.groups == 1 and not slow_transposed(conv)


def library_padding(conv: Conv) -> float:
    """How often the library multiplies for each product: its tiles have so many output channels at least, also where there are fewer.
    1->6 channels of 5x5 took it 0.11 ms, where this counts 0.034 (benchmarks/results/few_channels.txt)."""
    return max(1.0, LIBRARY_CHANNELS / conv.out_channels) if conv.groups == 1 and not conv.transposed else 1.0


def slow_transposed(conv: Conv) -> bool:
    return conv.transposed and (conv.dims == 3 or (conv.dims == 1 and conv.is_phased))


def library_rate(conv: Conv, machine: Machine = H200) -> float:
    """TFLOP/s of cuDNN: what it is on an H200, by the rate of what it uses."""
    tensor_cores = machine.by_half if conv.is_half else machine.by_tensor_cores
    return (machine.by_fp32 if without_tensor_cores(conv) else tensor_cores)(library_rate_h200(conv))


def without_tensor_cores(conv: Conv) -> bool:
    """So the library computes it: see below."""
    few = conv.in_channels // conv.groups < 16 and not conv.is_half
    return conv.is_split or few or conv.groups > 1 or slow_transposed(conv)


def library_rate_h200(conv: Conv) -> float:
    """TFLOP/s of cuDNN on NCHW float32 with TF32 allowed, without the turning, H200 (benchmarks/results): 29 at 8 input channels (it
    does not use TF32 there), 100 at 16 (s1010), 205 at 32 (s1037), 240 at 96 and 320 at 256 (plain); in groups 3 (s1002). Images of 32
    channels or fewer that come out: 38 to 54 of 64 to 192 channels, 110 of 224 (zoo/network/densenet_block.py).

    Transposed ones: strided in two dimensions 73 (s1033, 103 us). By what whole forwards took without their kernels: strided in
    three 11 (s1006), without strides 13 (s1020, s1034), strided in one 31 (s10).

    Where TF32 is not allowed nothing was measured: taken at what matrix products reach (50), and 30 as above where they are not deep.
    Of halves nothing was measured: taken at twice that, as matrix products are (741 against 395), and with tensor cores at any depth.
    """
    depth = conv.in_channels // conv.groups
    if conv.is_split:
        return min(library_rate_h200(replace(conv, tf32=True, bf16_parts=False)), 50.0)
    if conv.is_half:
        return 2 * library_rate_h200(replace(conv, dtype="float32", in_channels=max(depth, 16) * conv.groups))
    if slow_transposed(conv):
        return 30.0 if conv.dims == 1 else 10.0
    if conv.groups > 1:
        return 6.0
    if conv.is_phased:
        return 70.0
    rate = 30.0 if depth < 16 else 100.0 if depth < 32 else 190.0 if depth < 96 else 280.0
    return min(rate, 50.0 if depth < 224 else 110.0) if conv.out_channels <= 32 and conv.dims == 2 else rate
