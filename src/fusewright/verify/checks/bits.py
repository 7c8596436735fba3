"""Whether two tensors are the same, bit by bit: NaN equals NaN, and 0 does not equal −0."""

from __future__ import annotations

import torch
from torch import Tensor


def bits(tensor: Tensor) -> Tensor:
    """NaN-proof: a tensor's bytes as integers, one row an element."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    size = flat.element_size()
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    return flat.view(whole) if whole else torch.view_as_real(flat)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def same(a: object, b: object) -> bool:
    return same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
