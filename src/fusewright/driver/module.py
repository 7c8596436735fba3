"""`fusewright.optimize`: a module in, the same module with fused kernels out."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import Refused, first_line
from ..frontend.autocast import autocast_on
from ..frontend.given import check_module, signature_of
from ..frontend.problem import check_input
from ..frontend.trees import arguments_of, flat_call
from ..options import Options
from .content import LOOK, key_of
from .optimized import Optimized, kind_of, known, optimized, warn
from .plans import DEFAULT, REDUCE_OVERHEAD, Plans, recall, remember

MODES = (DEFAULT, REDUCE_OVERHEAD)
_one_at_a_time = threading.RLock()  # tracing changes PyTorch for the whole process


def _in_a_child() -> None:
    """Of a fork: the thread that planned meanwhile is not there."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


os.register_at_fork(after_in_child=_in_a_child)


def optimize(
    module: nn.Module,
    inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    tune: str = "auto",
    verify: bool = True,
    precision: str = "eager",
    arithmetic: str = "auto",
    dynamic: bool = True,
    mode: str = "default",
    strict: bool = False,
    gradients: bool = True,
    forward_only: bool = False,
    assume_finite: bool = False,
    seeds: int = 2,
    arch: str = "",
    tuning_record: str | Path | None = None,
    cache: bool = True,
) -> Optimized:
    """The same module with fused kernels, verified, and tuned where there is a GPU. It shares parameters, buffers and submodules.

    `inputs` are the positional arguments of a call: a list or tuple of them, or one tensor, dict or dataclass. `kwargs` are the named
    ones. Other sizes than theirs are planned for too, unless `dynamic=False`. Backward has kernels for the gradients of parameters, and
    for those of inputs that require one, as inputs of a block in the middle of a network do.

    >>> import torch, fusewright
    >>> norm = torch.nn.Sequential(torch.nn.Softmax(-1), torch.nn.GELU())
    >>> x = torch.randn(4, 8)
    >>> new = fusewright.optimize(norm, x, target="host")
    >>> new.report["verified"], torch.allclose(new(x), norm(x), atol=1e-6)
    (True, True)
    >>> new[0] is norm[0]
    True
    >>> print(new)
    Sequential(
      (0): Softmax(dim=-1)
      (1): GELU(approximate='none')
    )  # fusewright: 1 kernel (softmax_gelu_fwd) in training and evaluation, on the CPU

    A module whose forward depends on `.train()` and `.eval()` gets a plan for each, at once; `forward_only=True` plans for the mode that
    it is in, and for no gradients.

    Called under `torch.autocast`, it plans for calls under that autocast, casts included; outside it the original runs, which is said.

    What the result knows: `.report` (a mapping), `.explain()`, `.source`, `.save(path)`; `fusewright.about(new)` has the same where
    the module itself uses one of these names. Copies, `torch.save` and `torch.load` work; another process needs fusewright and the
    module's own class.

    `target`: "cuda"; "host" runs the kernels on the CPU, for trying and testing; "auto" plans for a GPU and verifies where it can.
    `mode="reduce-overhead"`: on a GPU, calls that ask for no gradients and change nothing but what they return are replayed as CUDA graphs.
    `verify=False`, `tune="off"`: leave that out. `precision`, `arithmetic`, `gradients`, `assume_finite`, `seeds`, `arch`,
    `tuning_record`: as the command's. `cache=False`: plan anew, whatever an earlier process found.

    Where kernels are not in use, a warning (`fusewright.NotInUse`) says why, once. What cannot be planned for raises
    `fusewright.Refused` with one sentence:

    >>> fusewright.optimize(norm, torch.randn(4, 8, dtype=torch.complex64))
    Traceback (most recent call last):
        ...
    fusewright.errors.Refused: Sequential: the argument input is complex (torch.complex64); only real tensors are supported

    A fault of ours while planning, building or verifying leaves the original in place, with a warning; with `strict=True` it is raised.
    """
    if mode not in MODES:
        raise Refused(f"mode {mode!r} is not one of {', '.join(MODES)}")
    options = Options(
        target=target, tune=tune, verify=verify, precision=precision, arithmetic=arithmetic, dynamic=dynamic, gradients=gradients,
        forward_only=forward_only, assume_finite=assume_finite, seeds=seeds, arch=arch, bench=False,
        tuning_record=Path(tuning_record) if tuning_record else None,
    )  # fmt: skip
    if target == "cuda" and not torch.cuda.is_available():
        raise Refused("target 'cuda' was asked for, but PyTorch finds no CUDA device here; use target='host'")
    check_module(module)
    kind, name = kind_of(module), kind_of(module).__name__
    args = tuple(inputs) if type(inputs) in (list, tuple) else (inputs,)
    try:
        arguments = arguments_of(signature_of(kind), args, kwargs or {})
    except TypeError as error:
        raise Refused(f"{name}: forward() does not take these inputs: {error}") from None
    leaves, flat = flat_call(signature_of(kind), arguments, name)
    for leaf, words in zip(leaves, flat.names, strict=True):
        check_input(leaf, name, f"the argument {words}")
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise Refused(f"{name}: there is no tensor among its inputs")

    autocast = autocast_on("cpu" if target == "host" else "cuda") if target == "host" or torch.cuda.is_available() else None
    with _one_at_a_time:
        key = key_of(module, kind, flat, leaves, options, autocast) if cache else None
        found = recall(key) if key is not None and tune != "again" else None
        try:
            new = _fitting(module, kind, replace(found, mode=mode)) if found is not None else None
            if new is not None:
                return new
            from .planning import plan  # a second to import: not where the plan is known

            plans = plan(module, arguments, leaves, flat, options, autocast)
            new = optimized(module, kind, replace(plans, mode=mode))
            _build(new)
        except Refused:
            raise
        except Exception as error:
            if strict:
                raise
            why = f"a fault in fusewright: {type(error).__name__}: {first_line(error)}"
            warn(f"{name}: {why}; the original operators run (with strict=True it is raised)")
            return optimized(module, kind, Plans("host" if target == "host" else "cuda", options, fault=why))
        key = key_of(module, kind, flat, leaves, options, autocast) if cache else None  # a tuning record may have grown
        if key is not None:
            remember(key, plans)
        return new


def _fitting(module: nn.Module, kind: type[nn.Module], plans: Plans) -> Optimized | None:
    """The module with plans that were kept, if they were made for what it is: globals that forward reads are in no key."""
    new = optimized(module, kind, plans)
    for space in set(known(new).spaces.values()):
        if space._KERNELS:
            look = space._Look(new)
            vars(new).pop(LOOK, None)
            if look.why and not look.expected:
                return None
    _build(new)
    return new


def _build(new: Optimized) -> None:
    """On a GPU at once, so that no first call is slow."""
    made = known(new)
    if made.plans.target == "cuda" and torch.cuda.is_available():
        for space in made.spaces.values():
            if space._KERNELS:
                space._library(space._CUDA_SOURCE)


__all__: Sequence[str] = ["Optimized", "optimize"]
