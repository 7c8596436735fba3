"""What differs between the files that a model could become: choices, and the one list of variants that tuning can choose from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...emit import Emitted
from ...ir.graph import Graph
from ...ir.plan import Plan
from ...laws.patterns import EVERY_CONVOLUTION
from ...schedule.attention_fusion import attentions
from ...schedule.conv_fusion import tf32_allowed
from ...schedule.layout import coarse_calls, is_convolution
from ...schedule.product_fusion import products
from ...schedule.training import AS_PREDICTED, Training

UPDATES = (torch.ops.aten._native_batch_norm_legit_functional.default,)  # a call of it by itself has no derivative
MOST_REGIONS = 8  # that are left to PyTorch one by one where each variant is verified
MOST_FLIPS = 4  # convolutions, or products, that are tried one by one


@dataclass(frozen=True)
class Choices:
    """What the planner would decide by prediction, decided."""

    left: frozenset[str] = frozenset()  # nodes that stay calls to PyTorch
    own: frozenset[str] | None = None  # convolutions, products and attention that our kernels compute; None: as predicted
    plain: bool = False  # no kernel at all: the original's forward
    channels_last: bool = False  # the library's convolutions work on channels-last data
    stored: bool | None = None  # what several kernels read of our convolutions is in memory, or computed by each; None: as predicted
    bf16_parts: bool = False  # float32 that our convolutions split is the sum of two bf16 numbers, not of two TF32 ones
    scaled: bool = False  # what our convolutions would round to TF32 is scaled and rounded to fp16
    training: Training = AS_PREDICTED  # what the regions of this plan do where gradients are asked for

    def to_dict(self) -> dict[str, Any]:
        own = None if self.own is None else sorted(self.own)
        return {**vars(self), "left": sorted(self.left), "own": own, "training": self.training.to_dict()}

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Choices:
        own = found["own"]
        own = None if own is None else frozenset(own)
        stored = found["stored"]
        stored = None if stored is None else bool(stored)
        training = Training.from_dict(found["training"])
        parts, scaled = (bool(found.get(name, False)) for name in ("bf16_parts", "scaled"))  # records of before there were such
        return Choices(frozenset(found["left"]), own, bool(found["plain"]), bool(found["channels_last"]), stored, parts, scaled, training)


PREDICTED = Choices()
LIBRARY, LIBRARY_CHANNELS_LAST = "library's convolutions", "the library's, channels-last"  # names of variants

Compile = Callable[[Choices], tuple[Plan, Emitted]]


@dataclass(frozen=True)
class Able:
    """What of a model kernels of ours could compute."""

    convolutions: frozenset[str]
    products: frozenset[str]
    attention: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.convolutions or self.products or self.attention)


@dataclass(frozen=True)
class Named:
    """A variant: choices, and what to call them."""

    name: str
    choices: Choices


ORIGINAL = Named("the original's forward", Choices(plain=True))
Change = Callable[[Choices, frozenset[str]], Named | None]  # of the best so far and what of it is ours; None where it changes nothing


@dataclass(frozen=True)
class Candidates:
    """Every variant that tuning can choose.

    `first` are compared with one another; then each of `changes` is tried on the best so far, in order; at last some of the regions
    of what is best are left to PyTorch (`leavable`), or all of them: `ORIGINAL`.
    """

    first: tuple[Named, ...]
    changes: tuple[Change, ...]
    unflipped: tuple[str, ...]  # what is not tried one by one, being too many

    def one_by_one(self, predicted: Plan, emitted: Emitted) -> list[Named]:
        """Each of them by itself, the later ones as changes of the predicted one: never their product."""
        own = own_of(predicted)
        changed = [change(PREDICTED, own) for change in self.changes]
        left = [without_regions(PREDICTED, own, group) for group in groups(leavable(predicted, emitted))]
        return [*self.first, *(named for named in changed if named is not None), *left, ORIGINAL]


def able_of(predicted: Plan, compile_: Compile) -> Able:
    """Asked by planning: of what is named, a plan takes what it can."""
    graph = predicted.graph

    def taken(names: frozenset[str]) -> frozenset[str]:
        return own_of(compile_(Choices(own=names))[0]) if names else names

    return Able(own_of(compile_(Choices(own=convolutions(graph)))[0]), taken(products(graph)), taken(attentions(graph)))


def candidates(predicted: Plan, able: Able) -> Candidates:
    """The one list of variants: tuning times them, `--all-variants` verifies them."""
    ours, can = own_of(predicted), able.convolutions
    first = [Named("predicted", PREDICTED)]
    if ours:
        first.append(Named(LIBRARY, Choices(own=frozenset())))
    if can - ours:
        first.append(Named("our convolutions", Choices(own=can)))
    if any(is_convolution(node) for node in predicted.graph.nodes):
        first.append(Named(LIBRARY_CHANNELS_LAST, Choices(own=frozenset(), channels_last=True)))
        first.append(Named("as predicted beside channels-last", Choices(channels_last=True)))
    if can:  # what several kernels read of them, in memory or computed by each
        first.append(Named("our convolutions, stored", Choices(own=can, stored=True)))
        first.append(Named("our convolutions, recomputed", Choices(own=can, stored=False)))
    parts_do = predicted.precision is not None and predicted.precision.bf16_parts_do
    if can and parts_do:
        first.append(Named("our convolutions by bf16 parts", Choices(own=can, bf16_parts=True)))
    scaled_do = bool(can) and may_be_scaled(predicted)
    if scaled_do:
        first.append(Named("our convolutions by scaled fp16", Choices(own=can, scaled=True)))
    changes = [*([by_bf16_parts] if parts_do else []), *([by_scaled_halves] if scaled_do else []), *flips(can)]
    if able.products:
        changes += [ours_too("our products", able.products), *flips(able.products)]
    if able.attention:
        changes += [ours_too("our attention", able.attention), none_of_ours("attention in steps", able.attention), *flips(able.attention)]
    changes.append(others_channels_last)
    kinds = {"convolutions": can, "products": able.products, "attention": able.attention}
    unflipped = tuple(f"{len(names)} {kind}" for kind, names in kinds.items() if len(names) > MOST_FLIPS)
    return Candidates(tuple(first), tuple(changes), unflipped)


def flips(names: frozenset[str]) -> list[Change]:
    """Each convolution, product or attention the other way round, where they are few."""
    return [functools.partial(flipped, name) for name in sorted(names)] if 1 < len(names) <= MOST_FLIPS else []


def flipped(name: str, best: Choices, own: frozenset[str]) -> Named:
    words = f"{name} by the library" if name in own else f"{name} by a kernel of ours"
    return Named(words, replace(best, own=own ^ {name}))


def ours_too(words: str, names: frozenset[str]) -> Change:
    return lambda best, own: Named(words, replace(best, own=own | names))


def none_of_ours(words: str, names: frozenset[str]) -> Change:
    return lambda best, own: Named(words, replace(best, own=own - names))


def by_bf16_parts(best: Choices, own: frozenset[str]) -> Named | None:
    """What our convolutions split."""
    return Named("by bf16 parts", replace(best, own=own, bf16_parts=True)) if own and not best.bf16_parts else None


def by_scaled_halves(best: Choices, own: frozenset[str]) -> Named | None:
    """What our convolutions would round to TF32."""
    return Named("by scaled fp16", replace(best, own=own, scaled=True)) if own and not best.scaled else None


def may_be_scaled(predicted: Plan) -> bool:
    """Some convolution of float32 may round its operands to TF32, and kernels that scale them instead are worth trying."""
    asked = predicted.precision is not None and predicted.precision.arithmetic == "auto"
    float32 = any(node.target in EVERY_CONVOLUTION and node.dtype is torch.float32 for node in predicted.graph.nodes)
    return asked and float32 and tf32_allowed() and predicted.machine.has_wgmma


def others_channels_last(best: Choices, own: frozenset[str]) -> Named | None:
    """Convolutions that the library computes beside ours, on channels-last data."""
    if best.channels_last or not own:
        return None
    return Named("the others channels-last", replace(best, own=own, channels_last=True))


def leavable(made: Plan, emitted: Emitted) -> dict[str, tuple[str, ...]]:
    """The regions that may be left to PyTorch's operators, and their nodes."""
    return {
        region: nodes
        for region, nodes in emitted.regions.items()
        if nodes and not any(made.graph[node].target in UPDATES for node in nodes)
    }


def groups(regions: Mapping[str, tuple[str, ...]]) -> list[dict[str, tuple[str, ...]]]:
    """Each region by itself; of many, every second one, then the others: each is left to PyTorch once, beside neighbours that are not."""
    items = list(regions.items())
    if len(items) > MOST_REGIONS:
        return [dict(items[::2]), dict(items[1::2])]
    return [{region: nodes} for region, nodes in items]


def without_regions(best: Choices, own: frozenset[str], regions: Mapping[str, Sequence[str]]) -> Named:
    nodes = {node for members in regions.values() for node in members}
    words = ", ".join(regions) if len(regions) <= MOST_REGIONS else f"{len(regions)} regions from {next(iter(regions))} on"
    return Named(f"{words} by PyTorch", replace(best, left=best.left | nodes, own=own - nodes))


def convolutions(graph: Graph) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.target in EVERY_CONVOLUTION)


def own_of(made: Plan) -> frozenset[str]:
    """The convolutions, products and attention that kernels of ours compute."""
    return frozenset(k.fused.anchor.node for k in made.kernels if k.fused is not None) | {s.node for s in made.shortcuts}


def too_coarse(name: str, made: Plan) -> str:
    """Why a variant is no candidate, in words."""
    return f"{name}: no candidate, since on channels-last data the library rounds the operands of {', '.join(coarse_calls(made))} to TF32"


# ---- what was chosen is kept ----
