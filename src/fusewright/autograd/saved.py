"""What forward keeps for backward: values inside a region that need not be recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from ..codegen.mma.conv_tiles import SECTOR
from ..ir import sizes
from ..ir.graph import Node, Ref
from ..ir.plan import Kernel, Plan
from ..ir.prims import Prim, Reduce
from ..schedule.attention_fusion import Attended
from ..schedule.product_fusion import is_product
from .regions import Region, Regions, is_asked_for

# H200, the first founding model, 72 products an element: 1.04 ms to write 520 MB beside all else, 0.67 for cuDNN to compute it again.
FEW_PRODUCTS = 240
MANY = 1 << 20  # elements, a microsecond of an H200's memory: not timed
FEW = 64  # elements read for each that is stored for backward's sake: who only infers pays 2 % at most


def worth_saving(region: Region, regions: Regions) -> dict[str, str]:
    """Nodes -> primitives that need not be recomputed: those that the region's kernels leave to one another in memory, and
    others that a kernel makes on its way and may as well store. What the model returns is not saved: whoever gets it may change it."""
    value, home = regions.lowered.value, regions.home
    returned = [o.value.name for o in regions.graph.outputs if isinstance(o.value, Ref)]
    outputs = {regions.plan.base(value[name]).name for name in returned if name in value}
    found: dict[str, str] = {}

    def worth(prim: Prim) -> bool:
        stored_by = home.get(prim.name)
        if stored_by is None:
            by = maker(prim, region, regions)
            return by is not None and not sooner_again(prim, by, regions)
        return regions.region_of(stored_by) is region and prim.name not in stored_by.overwrites

    for node in regions.reference_nodes(region):
        prim = regions.prims.get(value.get(node.name, ""))
        parts = [regions.prims[name] for name in regions.lowered.statistics.get(node.name, ())]
        if parts and of_many_floats(node, regions) and all(map(worth, parts)):
            found |= {part.name: part.name for part in parts}
        if prim is None or prim.name in outputs or prim.name in found.values() or not prim.dtype.is_floating_point:
            continue
        if worth(prim):
            found[node.name] = prim.name
    return {name: prim for name, prim in found.items() if not is_off(prim, found, region, regions)}


def of_many_floats(norm: Node, regions: Regions) -> bool:
    """To read what it is of once more takes longer than to make room for its statistics, in every forward."""
    found = regions.graph[norm.inputs[0]]
    return found.dtype is torch.float32 and regions.graph.hint(sizes.product(found.shape or ())) >= MANY


def of_norms(saved: Mapping[str, str], regions: Regions) -> dict[str, tuple[Node, Node]]:
    """Norms -> their mean and reciprocal deviation, as nodes, where both are saved: they are no node's value."""
    found = {norm: [regions.prims[name] for name in pair] for norm, pair in regions.lowered.statistics.items() if set(pair) <= saved.keys()}
    nodes = {norm: [Node(prim.name, "saved", (), {}, prim.shape, prim.dtype) for prim in pair] for norm, pair in found.items()}
    return {norm: (mean, rstd) for norm, (mean, rstd) in nodes.items()}


def is_off(name: str, saved: Mapping[str, str], region: Region, regions: Regions) -> bool:
    """What backward is not to have of forward, whose convolution is not the one that backward goes by.

    Where ours rounds operands that the library does not, backward has the library's and all that is made of it. Where backward
    computes a convolution again, its statistics too: deviations from another mean than their own do not add up to zero.
    """
    for kernel in region.kernels:
        if kernel.fused is None or is_product(kernel) or isinstance(kernel.fused, Attended):
            continue
        anchor, result = kernel.fused.anchor, regions.lowered.value[kernel.fused.anchor.node]
        again = not {result, anchor.value} & set(saved.values()) and anchor.conv.dtype == "float32" and anchor.conv.tf32
        if anchor.coarser and (name in (result, anchor.value) or reaches(name, result, regions.prims)):
            return True
        if again and reaches(name, result, regions.prims, through=Reduce):
            return True
    return False


def reaches(name: str, source: str, prims: Mapping[str, Prim], through: type | None = None) -> bool:
    """It is made of `source`; with `through`, by way of such a step."""
    stack, seen = [(name, through is None)], set[tuple[str, bool]]()
    while stack:
        at, passed = stack.pop()
        passed = passed or (through is not None and isinstance(prims[at].op, through))
        if at == source and passed:
            return True
        if (at, passed) not in seen:
            seen.add((at, passed))
            stack += [(other, passed) for other in prims[at].inputs]
    return False


def maker(prim: Prim, region: Region, regions: Regions) -> Kernel | None:
    """The kernel that has a value of each of its rows in registers and may store it, next to nothing beside what it reads; or the
    last that ends the convolution or matrix product, which it stores only where backward will want it."""
    hint = regions.graph.hint
    asked = [kernel for kernel in region.kernels if is_asked_for(prim.name, kernel)]
    if asked:
        return asked[-1]
    left = hint(sizes.product(prim.shape))
    for kernel in region.kernels:
        of_a_row = kernel.members.get(prim.name) in ("reduce", "row") and kernel.is_reduce
        if of_a_row and left * FEW < hint(sizes.product(kernel.space)) and not regions.condenses(kernel):
            return kernel if kernel.fused is None else None
    return None


def sooner_again(prim: Prim, kernel: Kernel, regions: Regions) -> bool:
    """A convolution of few products, whose rows do not begin at whole sectors of memory: its kernel has short pieces of them."""
    if kernel.fused is None or is_product(kernel) or regions.graph.hint(prim.shape[-1]) * prim.dtype.itemsize % SECTOR == 0:
        return False
    conv = kernel.fused.anchor.conv
    return bool(prod(conv.kernel) * conv.in_channels // conv.groups // prod(conv.phases) < FEW_PRODUCTS)


def storing(saved: Mapping[str, Sequence[str]], regions: Regions) -> Regions:
    """Those of the plan in which kernels also store what backward is handed, by region, and was in no one's memory."""
    more: dict[int, list[str]] = {}
    for region in regions:
        for name in saved.get(region.name, ()):
            kernel = maker(regions.prims[name], region, regions) if name not in regions.home else None
            if kernel is not None:
                more.setdefault(id(kernel), []).append(name)
    if not more:
        return regions
    plan: Plan = regions.plan
    steps = [
        replace(step, stores=(*step.stores, *more.get(id(step), ()))) if isinstance(step, Kernel) else step
        for step in plan.steps
    ]
    return Regions(replace(plan, steps=tuple(steps)))
