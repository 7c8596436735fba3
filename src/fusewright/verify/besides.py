"""What a call does besides giving numbers: inputs it changes, random numbers it draws, memory that its results share with others.

A candidate may do of this what its original does, and nothing more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

COPIED = 2**22  # bytes of an input that is copied; of a larger one two sums are kept


class Watch:
    """Looks at a model and its inputs before a call, and says afterwards what else was done."""

    def __init__(self, model: nn.Module, inputs: list[Any]):
        self.model = model
        self.inputs = {f"input {i}": _strided(x) for i, x in enumerate(inputs)}
        with _disable_current_modes():
            self.before = {name: [_content(t) for t in tensors] for name, tensors in self.inputs.items()}
        self.without = [(name, p) for name, p in model.named_parameters() if p.grad is None]
        self.numbers: list[Any] = []
        self.drew = False

    def seeded(self) -> None:
        """From here on no random number is to be drawn."""
        self.numbers = _numbers()

    def drawn(self) -> None:
        """Until here."""
        with _disable_current_modes():
            self.drew = self.drew or any(not _equal(a, b) for a, b in zip(self.numbers, _numbers(), strict=True))

    def found(self, leaves: list[Any], structure: str, recording: bool) -> tuple[str, ...]:
        said = [f"it returns {structure}"] + ["random numbers are drawn"] * self.drew
        outputs = {f"output {i}": leaf for i, leaf in enumerate(leaves)}
        said += [f"{name} is {leaf!r}" for name, leaf in outputs.items() if isinstance(leaf, (bool, int, str))]
        tensors = {name: leaf for name, leaf in outputs.items() if isinstance(leaf, Tensor)}
        said += [f"{name} is a {type(t).__name__}" for name, t in tensors.items() if type(t) is not Tensor]
        with _disable_current_modes():
            for name, given in self.inputs.items():
                if any(not _equal(before, _content(t)) for before, t in zip(self.before[name], given, strict=True)):
                    said.append(f"{name} is changed")
        for name, parameter in self.without:
            if parameter.grad is not None:
                said.append(f"something is put into the .grad of {name}")
                parameter.grad = None
        returned = {name: t for name, t in tensors.items() if t.layout == torch.strided and t.numel()}
        state = {name: [t] for name, t in (*self.model.named_parameters(), *self.model.named_buffers())}
        said += _shared(returned, {**self.inputs, **state})
        if not recording:
            said += [f"{name} requires a gradient where none are recorded" for name, t in returned.items() if t.requires_grad]
        return tuple(said)


def _shared(returned: Mapping[str, Tensor], others: Mapping[str, list[Tensor]]) -> list[str]:
    """Whoever writes into a result would change something else with it."""
    places = {name: {t.untyped_storage().data_ptr() for t in tensors if t.layout == torch.strided} for name, tensors in others.items()}
    said, met = list[str](), dict[int, list[str]]()
    for name, t in returned.items():
        at = t.untyped_storage().data_ptr()
        said += [f"{name} lies in the memory of {other}" for other, where in places.items() if at in where]
        said += [f"{name} lies in the memory of {other}" for other in met.setdefault(at, [])]
        met[at].append(name)
        if any(size > 1 and stride == 0 for size, stride in zip(t.shape, t.stride(), strict=True)):
            said.append(f"{name} has one place in memory for several elements")
    return said


def _strided(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor) and t.layout == torch.strided and not t.is_meta]


def _content(tensor: Tensor) -> Tensor:
    """Of its whole storage, gaps included."""
    held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    if held.numel() <= COPIED:
        return held.clone()
    words = held[: held.numel() // 4 * 4].view(torch.int32)
    return torch.stack([words.sum(dtype=torch.int64), words[::7].sum(dtype=torch.int64)])


def _numbers() -> list[Any]:
    """The state of what a forward may draw from."""
    generators = [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
    with _disable_current_modes():
        return [random.getstate(), *(g.get_state() for g in generators)]


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)
