"""What PyTorch's library computes float32 convolutions in, where the flags allow TF32: as it answered, and a rule for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

# H200, cuDNN of PyTorch 2.11: it errs 1e-6 of the rms where a group has 3 to 16 input channels, as float32 does, and as TF32 does above.
FEW_CHANNELS = 16


@dataclass(frozen=True)
class Convolution:
    """What of a convolution's call says which of the library's algorithms serve it; tuples over the spatial dimensions."""

    inputs: int  # channels of one group
    outputs: int  # of all groups
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False

    @property
    def is_depthwise(self) -> bool:
        """Tensor cores have nothing to multiply: neither the library's kernels nor ours use them."""
        return self.inputs == 1 and self.groups > 1 and not self.transposed


@dataclass(frozen=True)
class Library:
    """Which convolutions the library rounds the operands of: as a GPU answered, and by the rule for those it was not asked about."""

    asked: tuple[tuple[Convolution, bool], ...] = ()
    coarser: frozenset[Convolution] = frozenset()  # those of them that it rounds on channels-last data alone
    coarser_gradients: frozenset[Convolution] = frozenset()  # those with a gradient that it rounds on channels-last data alone
    weights: tuple[tuple[Convolution, bool], ...] = ()  # those whose weight's gradient was asked about, on plain data

    def rounds(self, convolution: Convolution | None, channels_last: bool = False) -> bool:
        """It multiplies TF32 numbers; else float32's. On a host, where none can be asked: not of few input channels."""
        if convolution is None or (channels_last and convolution in self.coarser):
            return True
        known = next((rounds for other, rounds in self.asked if other == convolution), None)
        return convolution.inputs > FEW_CHANNELS if known is None else known

    def rounds_weight_gradient(self, convolution: Convolution) -> bool:
        """It multiplies TF32 numbers for the gradient of the weight. Where none was asked: as it computes the convolution."""
        known = next((rounds for other, rounds in self.weights if other == convolution), None)
        return self.rounds(convolution) if known is None else known

    def to_dict(self) -> list[dict[str, Any]]:
        return [
            {
                **asdict(convolution),
                "tf32": rounds,
                "tf32_channels_last": self.rounds(convolution, channels_last=True),
                "coarser_gradients_channels_last": convolution in self.coarser_gradients,
                "tf32_weight_gradient": self.rounds_weight_gradient(convolution),
            }
            for convolution, rounds in self.asked
        ]


def convolution_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Convolution | None:
    """The convolution that an aten call is, or is the gradient of; None where it is none."""
    arguments = func._schema.arguments
    bound: dict[str, Any] = {a.name: a.default_value for a in arguments if a.has_default_value()}
    bound |= {a.name: value for a, value in zip(arguments, args, strict=False)} | dict(kwargs)
    weight = bound.get("weight")
    if not isinstance(weight, Tensor) or weight.dim() < 3:
        return None
    rank, groups = weight.dim() - 2, int(bound.get("groups", 1))
    transposed = bool(bound.get("transposed", "transpose" in func._schema.name))

    def many(name: str, default: int) -> tuple[int, ...]:
        value = bound.get(name, default)
        listed = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, int) for item in listed):
            return ()  # "same", which is worked out below this call
        return tuple(listed * rank if len(listed) == 1 else listed)

    first, second = int(weight.shape[0]), int(weight.shape[1])
    inputs, outputs = (first // groups, second * groups) if transposed else (second, first)
    kernel = tuple(int(size) for size in weight.shape[2:])
    return Convolution(inputs, outputs, kernel, many("stride", 1), many("padding", 0), many("dilation", 1), groups, transposed)
