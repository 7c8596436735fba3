"""What a file does where gradients are asked for: chosen apart from what it does for inference.

A region is computed by kernels of ours, forward and backward, or by PyTorch's operators. The latter run under autograd, as eager's do,
where they can compute all that the region leaves (`Regions.referable`); elsewhere kernels run forward and backward differentiates the
region's reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KERNELS = "kernels forward and backward"
LIBRARY_BACKWARD = "kernels forward, the library's gradients backward"  # of what forward read: nothing is computed again
KERNELS_FORWARD = "kernels forward, PyTorch's operators backward"
PYTORCH = "PyTorch's operators forward and backward"
UNTRAINED = "kernels forward, nothing to train"  # it reads inputs alone, of which training asks no gradients
BY_KERNELS = KERNELS, LIBRARY_BACKWARD  # what may be left to PyTorch's operators instead
WHOLE = ""  # in the place of a region's name: the whole model
EVERY_WEIGHT = frozenset("*")  # in the place of weights' names: all whose gradients kernels of ours could be the faster for


@dataclass(frozen=True)
class Training:
    """Of the plan that inference has."""

    original: bool = False  # the original's forward, whatever inference does
    never: bool = False  # nobody asks for gradients: where some could be asked for, kernels run forward all the same
    by_pytorch: frozenset[str] = frozenset()  # regions that are left to PyTorch's operators, though there are kernels for their gradients
    why: tuple[tuple[str, str], ...] = ()  # region, or `WHOLE` -> what was measured
    heavy: frozenset[str] = frozenset()  # regions left to PyTorch for memory's sake; found anew when a file is written
    own_weights: frozenset[str] | None = None  # convolutions' weights whose gradients are of kernels of ours; None: as predicted

    def reasons(self) -> Mapping[str, str]:
        return dict(self.why)

    def to_dict(self) -> dict[str, Any]:
        chosen = {name: value for name, value in vars(self).items() if name != "heavy"}
        own = sorted(self.own_weights) if self.own_weights is not None else None
        return {**chosen, "by_pytorch": sorted(self.by_pytorch), "own_weights": own, "why": dict(self.why)}

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Training:
        why = tuple((str(region), str(words)) for region, words in found["why"].items())
        own = found.get("own_weights")
        own_weights = frozenset(map(str, own)) if own is not None else None
        by_pytorch = frozenset(map(str, found["by_pytorch"]))
        return Training(bool(found["original"]), bool(found["never"]), by_pytorch, why, own_weights=own_weights)


def why(name: str, what: str, training: Training) -> str:
    """Why a region is computed by `what` where gradients are asked for."""
    measured = training.reasons().get(WHOLE if training.original else name)
    if measured:
        return f"measured, {measured}"
    if training.never:
        return "for inference alone"
    if training.original:
        return "the original's forward was chosen"
    if name in training.by_pytorch:
        return "chosen"
    if name in training.heavy:
        return "kernels for its gradients would hold more memory at once"
    return {
        KERNELS: "predicted",
        LIBRARY_BACKWARD: "predicted",
        UNTRAINED: "gradients of inputs, where some are asked for, are PyTorch's operators'",
        PYTORCH: "no kernels for its gradients: those forward would be computed beside PyTorch's operators",
        KERNELS_FORWARD: "no kernels for its gradients, and PyTorch's operators cannot write all that it leaves",
    }[what]


def record(regions: Mapping[str, str], training: Training) -> dict[str, Any]:
    """What computes each region where gradients are asked for, plain enough for JSON."""
    found = [{"name": name, "by": what, "why": why(name, what, training)} for name, what in regions.items()]
    return {"original": training.original, "regions": found}


FORWARD_ONLY = Training(never=True)
AS_PREDICTED = Training()  # kernels backward wherever there are some; a region without any would only compute its forward twice
