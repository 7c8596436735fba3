"""Gradients of convolutions' weights by kernels of ours, where that is asked for or predicted to pay.

PyTorch's formulas ask the library for the gradients of input and weight in one call. Where the weight's is ours, that call is two: the
one that a kernel computes, and what is left of the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from ..codegen.mma.anchor import Anchor, Fused
from ..codegen.mma.conv_spec import Conv, Epilogue
from ..codegen.mma.weight_gradient import GradientTile, WeightGradient, gradient_ms, gradient_tile
from ..ir.graph import Graph, Node, Ref, map_refs
from ..ir.plan import Call, Kernel, Plan
from ..ir.prims import Reshape
from ..laws.law import Site as LawSite
from ..laws.law import is_view
from ..laws.patterns import convolution_at
from ..target.machine import Machine
from .conv_fusion import called, tf32_allowed
from .training import EVERY_WEIGHT

aten = torch.ops.aten
BACKWARD = aten.convolution_backward.default
LEAST_ROWS, LEAST_COLUMNS = 8, 8  # of a group: with fewer most of a product is padding
MARGIN = 0.7  # of the library's prediction, below which ours is taken untimed: neither was measured here
WORTH_TRYING = 1.5  # of the library's prediction, above which ours is not worth timing
# What the library takes: fitted to what the steps of five single convolutions take longer than their forward
# (H200, benchmarks/results/never_worse.txt). It reads and writes both tensors about five times, since it multiplies channels-last data.
LIBRARY_SWEEPS, LIBRARY_TF32_TFLOPS, LIBRARY_FP32_TFLOPS, MEMORY_TB_PER_S = 5.0, 95.0, 40.0, 4.1
LIBRARY_LEAST_MS = 0.02  # its kernels before and behind the product


@dataclass(frozen=True)
class WeightOf:
    """A convolution's weight, and the kernel of ours that could compute its gradient."""

    name: str  # in the forward graph
    gradient: WeightGradient
    batch: int
    positions: tuple[int, ...]
    rounded: bool  # by the library

    def ms(self, machine: Machine) -> float | None:
        """Predicted of our kernel; None where no tile fits."""
        tile = self.tile(machine)
        return gradient_ms(self.gradient, tile, self.batch, self.positions, machine) if tile is not None else None

    def tile(self, machine: Machine) -> GradientTile | None:
        return gradient_tile(self.gradient, self.batch, self.positions, machine)

    def library_ms(self, machine: Machine) -> float:
        moved = 4e-9 * self.batch * prod(self.positions) * sum(self.gradient.channels)
        rate = machine.by_tensor_cores(LIBRARY_TF32_TFLOPS) if self.rounded else machine.by_fp32(LIBRARY_FP32_TFLOPS)
        operations = 2e-9 * self.batch * prod(self.positions) * self.gradient.weights
        return LIBRARY_LEAST_MS + LIBRARY_SWEEPS * moved / machine.by_memory(MEMORY_TB_PER_S) + operations / rate

    def is_ours(self, own: frozenset[str] | None, machine: Machine) -> bool:
        """Named in `own`, and it could win; or else it is predicted to pay."""
        if own is not None and own != EVERY_WEIGHT and self.name not in own:
            return False
        ms = self.ms(machine)
        return ms is not None and ms < (MARGIN if own is None else WORTH_TRYING) * self.library_ms(machine)


@dataclass(frozen=True)
class Site:
    """A call that computes the gradient of a weight, among others."""

    call: Node
    element: Node  # the getitem that is the weight's gradient
    of: WeightOf
    upstream: str
    input: str  # where a transposed convolution's gradient comes in, and the other way round


def is_weight_gradient(kernel: Kernel) -> bool:
    """It computes the gradient of a convolution's weight."""
    return isinstance(kernel.fused, Fused) and isinstance(kernel.fused.anchor.conv, WeightGradient)


def sites(graph: Graph, precision: Any = None) -> Iterator[Site]:
    """Of each gradient of a weight that a kernel of ours could compute."""
    users = graph.users()
    for node in graph.nodes:
        if node.target is not BACKWARD:
            continue
        a = node.bound()
        weight, x, above = (graph[a[name].name] for name in ("weight", "input", "grad_output"))
        elements = [graph[user] for user in users[node.name] if user in graph.index and graph[user].args[1] == 1]
        if len(elements) != 1 or not a["output_mask"][1]:
            continue
        settings = [tuple(a[name]) for name in ("stride", "padding", "dilation", "output_padding")]
        found = weight_of(undetached(weight, graph), x, above, settings, bool(a["transposed"]), int(a["groups"]), graph, precision)
        if found is not None:
            still, moved = (x, above) if found.gradient.conv.transposed else (above, x)
            yield Site(node, elements[0], found, still.name, moved.name)


def forward_weight(node: Node, graph: Graph, precision: Any = None) -> WeightOf | None:
    """Of a convolution that the library computes forward."""
    at = convolution_at(LawSite(graph, node, {}), node)
    if at is None:
        return None
    settings = [at.stride, at.padding, at.dilation, at.output_padding]
    return weight_of(graph[at.weight.name], graph[at.input.name], node, settings, at.transposed, at.groups, graph, precision)


def weight_of(
    weight: Node, x: Node, result: Node, settings: Sequence[tuple[Any, ...]], transposed: bool, groups: int, graph: Graph, precision: Any
) -> WeightOf | None:
    """The weight of a convolution of `x`, of which `result` has the shape; None where no kernel knows it, or has nothing to multiply."""
    shape, read, made = weight.shape, x.shape, result.shape
    if {weight.dtype, x.dtype, result.dtype} != {torch.float32} or shape is None or read is None or made is None:
        return None
    if not all(isinstance(size, int) for size in (*shape, read[1], made[1])) or not 3 <= len(shape) <= 5:
        return None
    if len(read) != len(shape) or not all(isinstance(number, int) for values in settings for number in values):
        return None
    stride, padding, dilation, more = (tuple(values) for values in settings)
    conv = Conv(
        len(shape) - 2, read[1], made[1], tuple(shape[2:]), stride, padding, dilation, groups,
        bias=False, transposed=transposed, output_padding=more,
    )  # fmt: skip
    rounded = tf32_allowed() and (precision is None or precision.rounds_weight_gradient(called(conv)))
    gradient = WeightGradient(conv, split=not rounded)
    batch, _, *positions = map(graph.hint, read if transposed else made)
    large_enough = gradient.rows >= LEAST_ROWS and gradient.columns >= LEAST_COLUMNS
    return WeightOf(weight.name, gradient, batch, tuple(positions), rounded) if large_enough else None


def undetached(node: Node, graph: Graph) -> Node:
    """What a value is a detached form of."""
    while node.target in (aten.detach.default, aten.alias.default):
        node = graph[node.inputs[0]]
    return node


def chosen(graph: Graph, own: frozenset[str] | None, precision: Any, machine: Machine) -> list[Site]:
    """Those that kernels of ours compute: of the weights named in `own` what could win, or else those that are predicted to pay."""
    return [site for site in sites(graph, precision) if site.of.is_ours(own, machine)]


def separated(graph: Graph, found: list[Site]) -> Graph:
    """The graph in which each of these gradients is a call of its own, of values that lie in memory."""
    of_call = {site.call.name: site for site in found}
    now = {site.element.name: of_call[site.call.name] for site in found}
    nodes: list[Node] = []
    laid_out: dict[str, Ref] = {}  # values that several of them read are laid out once
    for node in graph.nodes:
        if node.name in of_call:
            nodes += calls_of(of_call[node.name], graph, laid_out)
        elif node.name in now:
            nodes.append(replace(node, args=(Ref(own_name(now[node.name], graph)), 1)))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes)).check()


def calls_of(site: Site, graph: Graph, laid_out: dict[str, Ref]) -> Iterator[Node]:
    """The call without the weight's gradient, if it is asked for another, and the weight's own; `laid_out` are values that earlier ones
    have put in memory."""
    a = site.call.bound()
    first, _, third = a["output_mask"]
    if first or third:
        yield replace(site.call, args=tuple({**a, "output_mask": [first, False, third]}.values()), kwargs={})
    for name in ("grad_output", "input"):
        node = graph[a[name].name]
        lies_elsewhere = is_view(node, graph) and node.target not in (aten.view.default, aten.reshape.default)  # or it repeats
        if lies_elsewhere and node.name not in laid_out:
            laid_out[node.name] = Ref(free_name(f"{node.name}_laid_out", graph))
            yield Node(laid_out[node.name].name, aten.clone.default, (Ref(node.name),), {}, node.shape, node.dtype, node.where)
    own = {**{name: map_refs(value, laid_out) for name, value in a.items()}, "output_mask": [False, True, False]}
    yield replace(site.call, name=own_name(site, graph), args=tuple(own.values()), kwargs={})


def own_name(site: Site, graph: Graph) -> str:
    return free_name(f"{site.call.name}_of_weight", graph)


def free_name(name: str, graph: Graph) -> str:
    while name in graph.index:
        name += "_"
    return name


def with_weight_gradients(made: Plan, found: list[Site]) -> Plan:
    """The plan with kernels in the place of those calls whose operands lie in memory as the kernels read them."""
    weights = {site.of.name for site in found}
    steps = list(made.steps)
    for site in sites(made.graph, made.precision):
        anchor = anchor_of(site, made) if site.of.name in weights and site.call.bound()["output_mask"] == [False, True, False] else None
        if anchor is None:
            continue
        shape = site.element.shape
        assert shape is not None
        fused = Fused(anchor, Epilogue())
        kernel = Kernel(shape, (), {anchor.value: "full"}, (anchor.value,), (anchor.input, anchor.weight), fused=fused)
        own = (site.call.name, site.element.name)
        first = next(i for i, step in enumerate(steps) if isinstance(step, Call) and step.node.name in own)
        steps[first] = kernel
        steps = [step for step in steps if not isinstance(step, Call) or step.node.name not in own]
    return replace(made, steps=tuple(steps))


def anchor_of(site: Site, made: Plan) -> Anchor | None:
    """`input` is what stands still, `weight` what the taps move over."""
    upstream, moved = (in_memory(name, made) for name in (site.upstream, site.input))
    if upstream is None or moved is None or upstream == moved:
        return None
    value = made.lowered.value[site.element.name]
    shape, *shapes = (made.graph[name].shape or () for name in (site.element.name, site.upstream, site.input))
    return Anchor(
        site.of.gradient, value, upstream, moved, None, shape, site.element.name,
        shapes=tuple(shapes), of=site.of.name, exact=not site.of.rounded,
    )  # fmt: skip


def in_memory(node: str, made: Plan) -> str | None:
    """The primitive that holds a value one element after another; None where nothing does."""
    prims = made.lowered.prims
    prim = prims[made.lowered.value[node]]
    while not prim.is_load and prim.name not in made.home:
        if not isinstance(prim.op, Reshape):
            return None
        prim = prims[prim.inputs[0]]
    return prim.name if prim.order == tuple(range(len(prim.shape))) else None
