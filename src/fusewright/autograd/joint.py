"""Plan -> `JointPlan`: forward in regions, and what computes the gradients of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from ..ir.plan import Plan
from ..schedule.training import AS_PREDICTED, KERNELS, KERNELS_FORWARD, LIBRARY_BACKWARD, PYTORCH, UNTRAINED, Training
from ..schedule.weight_gradients import WeightOf, forward_weight
from .flow import trainable
from .gradients import Gradients, RegionGradient, find_gradients, wanted_of
from .regions import Region, Regions, with_overwrites
from .saved import storing
from .trace import Trace


@dataclass(frozen=True)
class JointPlan:
    """Forward and backward of one model."""

    regions: Regions  # of the plan in which kernels also store what backward is handed
    gradients: Mapping[str, RegionGradient]  # by region; PyTorch's operators compute those of the others
    training: Training
    untrained: frozenset[str] = frozenset()  # regions that read nothing of which training asks gradients
    weights: Mapping[str, WeightOf] = field(default_factory=dict)  # of convolutions of the library, by node, whose gradient is our kernel's

    @property
    def plan(self) -> Plan:
        return self.regions.plan

    def saved(self, region: Region) -> tuple[str, ...]:
        """Primitives inside the region that forward hands over to its gradients."""
        gradient = self.gradients.get(region.name)
        return gradient.saved if gradient is not None else ()

    def in_training(self, region: Region) -> str:
        """What computes it where gradients are asked for. Without kernels for them, ours forward would be computed beside PyTorch's."""
        if region.name in self.gradients:
            return KERNELS if self.gradients[region.name].plan.kernels else LIBRARY_BACKWARD
        if not self.regions.referable(region) or self.training.never:
            return KERNELS_FORWARD
        return UNTRAINED if region.name in self.untrained else PYTORCH


def plan_joint(
    plan: Plan,
    model: nn.Module,
    gradients: bool = True,
    training: Training = AS_PREDICTED,
    traces: dict[str, Trace | None] | None = None,
) -> JointPlan:
    """Without `gradients`, or where training runs the original's forward, all gradients are PyTorch's. `traces` of gradients are shared
    by the plans of one graph."""
    by_itself = plan.graph.own_gradients or plan.graph.trains_others
    ours = gradients and not training.original and not by_itself
    regions = Regions(with_overwrites(Regions(plan), model))
    found = find_gradients(regions, model, training.by_pytorch, traces, training.own_weights) if ours else Gradients({})
    regions = storing({name: gradient.saved for name, gradient in found.regions.items()}, regions)
    asked = trainable(regions.graph, model)
    untrained = frozenset(region.name for region in regions if not by_itself and not wanted_of(region, regions, asked))
    weights = library_weights(regions, asked, training.own_weights) if ours else {}
    return JointPlan(regions, found.regions, replace(training, heavy=found.heavy), untrained, weights)


def library_weights(regions: Regions, asked: set[str], own: frozenset[str] | None) -> dict[str, WeightOf]:
    """Weights of convolutions that the library computes forward, whose gradients kernels of ours compute: on plain data."""
    if regions.channels_last:
        return {}
    plan = regions.plan
    calls = [call.node for call in plan.calls if call.node.name in regions.flow.smooth]
    found = {node.name: forward_weight(node, plan.graph, plan.precision) for node in calls}
    return {node: of for node, of in found.items() if of is not None and of.name in asked and of.is_ours(own, plan.machine)}
