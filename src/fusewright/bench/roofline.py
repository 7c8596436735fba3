"""How fast could it be? What a model must move and may compute, and what this GPU moves and computes, measured.

The floor of a model is what any right answer must move, inputs, parameters and outputs once, over measured bandwidth.
Operations do not count there: algebra may remove them. The ceilings of a kernel count both.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ..verify.reference import base_name, is_view
from .statistics import median

CONTRACTIONS = ("conv", "linear", "mm", "matmul", "bmm", "addmm", "einsum", "attention")
PROBES = 16  # elements of each tensor set to NaN, one at a time, where a floor is in doubt


# ---- what a model moves and computes ----


@dataclass(frozen=True)
class Work:
    """One forward: what it must move, what eager PyTorch moves, and the operations of the model as written."""

    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    eager_bytes: int
    flops: int

    @property
    def compulsory_bytes(self) -> int:
        return self.input_bytes + self.parameter_bytes + self.output_bytes


def work_of(model: nn.Module, inputs: Sequence[Any]) -> Work:
    """Count one forward: tensors by their storage, so that nothing is counted twice."""
    traffic = _Traffic()
    with torch.no_grad(), FlopCounterMode(display=False) as products, traffic:
        result = model(*inputs)
    given = _storages(pytree.tree_leaves(list(inputs)))
    held = _storages([*model.parameters(), *model.buffers()])
    made = _storages(pytree.tree_leaves(result))
    held = {key: size for key, size in held.items() if key not in given}
    made = {key: size for key, size in made.items() if key not in given and key not in held}
    flops = int(products.get_total_flops()) + traffic.elements
    return Work(sum(given.values()), sum(held.values()), sum(made.values()), traffic.bytes, flops)


class _Traffic(TorchDispatchMode):
    """Bytes read and written by every operator that is no view; one operation an element where it is no product."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.elements = 0

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = base_name(func)
        if not is_view(func) and not name.startswith(("empty", "detach", "lift")):
            tensors = [t for t in pytree.tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
            self.bytes += sum(_storages(tensors).values())
            if not is_contraction([name]):
                self.elements += max((t.numel() for t in tensors), default=0)
        return result


def _storages(leaves: Iterable[Any]) -> dict[int, int]:
    """Bytes of each distinct storage behind these tensors, at most what the tensors themselves hold."""
    found: dict[int, int] = {}
    for t in leaves:
        if isinstance(t, Tensor):
            storage = t.untyped_storage()
            held = min(storage.nbytes(), t.numel() * t.element_size())
            found[storage._cdata] = max(found.get(storage._cdata, 0), held)
    return found


def is_contraction(names: Iterable[str]) -> bool:
    """A convolution or a matrix product is among these operators."""
    return any(word in name for name in names for word in CONTRACTIONS)


def reached(model: nn.Module, inputs: Sequence[Any], seed: int = 0) -> float:
    """Which share of the bytes of inputs and parameters the result depends on, at least.

    A look-up reads a few rows of its table, a slice a part of its input: their bytes are not compulsory. A few elements
    of each floating tensor are set to NaN in turn, and the result watched.
    """
    generator = torch.Generator().manual_seed(seed)
    leaves = [t for t in [*inputs, *model.parameters()] if isinstance(t, Tensor) and t.numel()]
    total = sum(t.numel() * t.element_size() for t in leaves)
    covered = 0.0
    with torch.no_grad():
        plain = _finite(model(*inputs))
        for t in leaves:
            share = t.numel() * t.element_size() / total
            if not t.is_floating_point() or share < 0.02:
                covered += share
                continue
            hits = 0
            for _ in range(PROBES):
                at = tuple(int(torch.randint(size, (), generator=generator)) for size in t.shape)
                kept = t[at].clone()
                t[at] = math.nan
                hits += _finite(model(*inputs)) != plain
                t[at] = kept
            covered += share * least_share(hits, PROBES)
    return covered


def _finite(result: Any) -> int:
    tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.is_floating_point()]
    return sum(int(torch.isfinite(t).sum()) for t in tensors)


def least_share(hits: int, tries: int) -> float:
    """The share that so many hits make likely: all of it if every try hit, else Wilson's lower bound."""
    if hits == tries:
        return 1.0
    z, p = 1.645, hits / tries
    middle, half = p + z * z / (2 * tries), z * math.sqrt(p * (1 - p) / tries + z * z / (4 * tries * tries))
    return max(0.0, (middle - half) / (1 + z * z / tries))


# ---- what this GPU can do ----


@dataclass(frozen=True)
class Ceilings:
    """Measured on this GPU in this run. Bytes and operations a second; None where it could not be measured."""

    copy: float | None = None
    read: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    l2_bytes: int = 0

    @property
    def bandwidth(self) -> float | None:
        """The better of the two: a floor must not be too high."""
        return max(filter(None, (self.copy, self.read)), default=None)

    def rate(self, kind: str) -> float | None:
        return {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16}.get(kind)


def floor_ms(work: Work, ceilings: Ceilings) -> float | None:
    """Inputs, parameters and outputs, once."""
    return None if not ceilings.bandwidth else 1e3 * work.compulsory_bytes / ceilings.bandwidth


def limit_ms(work: Work, ceilings: Ceilings, share: float = 1.0) -> float:
    """What no right answer can beat: as the floor, but an output may still lie in the L2 cache when the call ends.

    `share` is how much of inputs and parameters the result depends on. Three percent are left to the ceilings' noise.
    """
    if not ceilings.bandwidth:
        return 0.0
    written = max(0, work.output_bytes - ceilings.l2_bytes)
    return 0.97 * 1e3 * (share * (work.input_bytes + work.parameter_bytes) + written) / ceilings.bandwidth


@dataclass(frozen=True)
class Placed:
    """One kernel against the ceilings: the share of each it reached, and the least time they allow it."""

    bytes_a_second: float
    flops_a_second: float
    bandwidth_share: float | None
    rate_share: float | None
    rate_kind: str
    floor_ms: float | None


def placed(ms: float, moved: int, flops: int, rate_kind: str, ceilings: Ceilings) -> Placed:
    seconds = ms / 1e3
    moves, computes = (moved / seconds, flops / seconds) if seconds > 0 else (0.0, 0.0)
    bandwidth, rate = ceilings.bandwidth, ceilings.rate(rate_kind)
    floors = [1e3 * moved / bandwidth if bandwidth else None, 1e3 * flops / rate if rate else None]
    return Placed(
        moves,
        computes,
        moves / bandwidth if bandwidth else None,
        computes / rate if rate else None,
        rate_kind,
        max((f for f in floors if f is not None), default=None),
    )


def rate_kind(dtype: torch.dtype, replaces: Iterable[str], tf32_convolution: bool, tf32_matmul: bool) -> str:
    """The compute ceiling a kernel may use under the flags: tensor cores only where there is a product to compute."""
    names = list(replaces)
    if not is_contraction(names):
        return "fp32"
    if dtype in (torch.bfloat16, torch.float16):
        return "bf16"
    allowed = tf32_convolution if any("conv" in name for name in names) else tf32_matmul
    return "tf32" if allowed else "fp32"


def measure(device: torch.device, timed: Callable[[Callable[[], Any]], float]) -> Ceilings:
    """Copy and read bandwidth, and matmul rates. `timed` gives the milliseconds of one call. Takes about a second."""
    free, _ = torch.cuda.mem_get_info(device)
    count = min(512 * 2**20, free // 16) // 4  # floats: 512 MiB are more than any L2
    source = torch.ones(count, device=device)
    target = torch.empty_like(source)
    total = torch.empty((), device=device)
    largest = torch.empty((), device=device)
    copied = _best(timed, lambda: target.copy_(source))
    summed = _best(timed, lambda: torch.sum(source, dim=0, out=total))
    maximum = _best(timed, lambda: torch.amax(source, dim=0, out=largest))
    copy = 2e3 * source.nbytes / copied if copied else None
    reads = [1e3 * source.nbytes / ms for ms in (summed, maximum) if ms]
    l2 = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    return Ceilings(
        copy,
        max(reads, default=None),
        matmul_rate(device, timed, torch.float32, 4096, tf32=False),
        matmul_rate(device, timed, torch.float32, 8192, tf32=True),
        matmul_rate(device, timed, torch.bfloat16, 8192),
        l2,
    )


def matmul_rate(
    device: torch.device, timed: Callable[[Callable[[], Any]], float], dtype: torch.dtype, size: int, tf32: bool = False
) -> float | None:
    """Operations a second of one square product; the user's precision flag is what it was afterwards."""
    try:
        a = torch.randn(size, size, device=device, dtype=dtype)
        b = torch.randn(size, size, device=device, dtype=dtype)
        out = torch.empty_like(a)
        with _products("tf32" if tf32 else "ieee"):
            ms = _best(timed, lambda: torch.mm(a, b, out=out))
    except RuntimeError:  # no memory for it, or no such type on this GPU
        return None
    return 2e3 * size**3 / ms if ms else None


def _best(timed: Callable[[Callable[[], Any]], float], call: Callable[[], Any], repeats: int = 7) -> float | None:
    """The median after two calls that nobody counts."""
    call()
    call()
    ms = median([timed(call) for _ in range(repeats)])
    return ms if ms > 0 else None


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """TF32 ("tf32") or fp32 ("ieee") for matrix products, by the name this torch has for it, and back.

    Where both names exist only the new one can be set and then be put back to exactly what it was.
    """
    flags: Any = torch.backends.cuda.matmul
    name = "fp32_precision" if hasattr(torch.backends, "fp32_precision") else "allow_tf32"
    before = getattr(flags, name)
    setattr(flags, name, precision if name == "fp32_precision" else precision == "tf32")
    try:
        yield
    finally:
        setattr(flags, name, before)
