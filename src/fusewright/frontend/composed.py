"""Operators that PyTorch itself computes by others: a program is captured with those others, so that they need no record.

Only such as have one formula for all devices; what the library has a kernel of its own for stays whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from ..ops.declare import ELEMENTS
from ..ops.registry import RECORDS

aten = torch.ops.aten

# Composed of others in PyTorch's own C++.
COMPOSED = (
    "arccos arccosh arcsin arcsinh arctan arctan2 arctanh atleast_1d atleast_2d atleast_3d broadcast_tensors chain_matmul "
    "column_stack concat concatenate cosine_embedding_loss cumulative_trapezoid diff divide dstack fix float_power frobenius_norm "
    "ger greater greater_equal hstack inner isclose kron less less_equal linalg_matmul linalg_matrix_norm linalg_multi_dot "
    "linalg_norm linalg_vecdot meshgrid nanmean not_equal poisson_nll_loss row_stack special_erfc special_exp2 special_expm1 "
    "special_log1p special_log_softmax special_logit special_logsumexp special_sinc special_softmax special_xlogy std_mean "
    "sum_to_size tensordot trapezoid trapz true_divide var_mean vstack"
).split()

# Composed of others by PyTorch's compilers.
DECOMPOSED = (
    "aminmax block_diag deg2rad dist isneginf isposinf logaddexp logaddexp2 logit nansum rad2deg renorm rot90 sinc "
    "soft_margin_loss special_xlog1py std_mean trace var_mean"
).split()


def overloads(names: list[str]) -> Iterator[OpOverload]:
    """Every form of these operators on tensors that this version of PyTorch has, and that changes nothing in place."""
    for name in names:
        packet = getattr(aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            found = getattr(packet, overload)
            of_tensors = "Tensor" in str(found._schema)  # those of numbers belong to TorchScript alone
            if of_tensors and not found._schema.is_mutable and isinstance(found, OpOverload):
                yield found


@functools.cache
def known() -> dict[Any, Callable[..., Any]]:
    """The formula of each operator that has no record: for `run_decompositions` and its like."""
    from torch._decomp import decomposition_table

    recorded = RECORDS.keys() | ELEMENTS.keys()
    found: dict[Any, Callable[..., Any]] = {}
    for target in overloads(COMPOSED):
        if target not in recorded and target._can_decompose():
            found[target] = functools.partial(target._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    for target in overloads(DECOMPOSED):
        if target not in recorded and target not in found and target in decomposition_table:
            found[target] = decomposition_table[target]
    return found
