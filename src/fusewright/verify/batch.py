"""A part of the batch: of a model that treats samples one by one, references are computed part after part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

ROWS, SUM, SAME = "rows", "sum", "same"  # what a tensor of the whole is to those of its parts


@dataclass(frozen=True)
class Part:
    """Samples `start` to `stop` of a batch; `number` of `count` parts."""

    start: int
    stop: int
    whole: int  # samples in the batch
    batched: frozenset[int]  # positions of the inputs whose first dimension is the batch
    number: int = 0
    count: int = 1

    @property
    def size(self) -> int:
        return self.stop - self.start

    def split(self, count: int) -> tuple[Part, ...]:
        """Finer parts. Each has a number of its own, so that what is put in at random is not that of another one."""
        pieces = parts_of(self.size, -(-self.size // count), self.batched)
        number = 1000 * (self.number + 1)
        return tuple(replace(self, start=self.start + p.start, stop=self.start + p.stop, number=number + p.number) for p in pieces)

    def inputs(self, values: list[Any]) -> list[Any]:
        """Their samples of each input; the others whole. In storage of their own."""
        chosen = [x[self.start : self.stop] if i in self.batched else x for i, x in enumerate(values)]
        return [x.clone() if isinstance(x, Tensor) else x for x in chosen]

    def rows(self, tensor: Tensor) -> Tensor:
        """Of a tensor with one row, or some, for each sample of the batch."""
        each = tensor.shape[0] // self.whole
        return tensor[self.start * each : self.stop * each]

    def offset(self, elements: int) -> int:
        """Where the elements of such rows begin in the whole tensor."""
        return elements // self.size * self.start

    def of_whole(self, elements: int) -> int:
        return elements // self.size * self.whole


def parts_of(whole: int, size: int, batched: frozenset[int]) -> tuple[Part, ...]:
    """Parts of about equal size, none larger than `size`."""
    count = -(-whole // max(1, size))
    bounds = [whole * i // count for i in range(count + 1)]
    return tuple(Part(a, b, whole, batched, i, count) for i, (a, b) in enumerate(itertools.pairwise(bounds)))


def kind_of(name: str, whole: Tensor, parts: list[Tensor]) -> str | None:
    """What this tensor of the whole batch is to those of the parts, if it is anything: rows of the one after rows of the other, their
    sum (gradients), or the same as each. In float64 no more than rounding tells them apart."""
    if "gradient" in name:
        return SUM if _equal(whole, sum(parts[1:], parts[0])) else None
    if all(p.shape == whole.shape for p in parts) and all(_equal(whole, p) for p in parts):
        return SAME
    joinable = whole.dim() > 0 and all(p.dim() == whole.dim() and p.shape[1:] == whole.shape[1:] for p in parts)
    return ROWS if joinable and _equal(whole, torch.cat(parts)) else None


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    finite = torch.isfinite(a)
    if not torch.equal(finite, torch.isfinite(b)):
        return False
    a, b = a[finite], b[finite]
    largest = float(a.abs().max()) if a.numel() else 0.0
    return not a.numel() or float((a - b).abs().max()) <= 1e-9 * largest


def added(total: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums of what has one name, in float64."""
    return {name: total[name] + value if name in total else value for name, value in more.items()}
