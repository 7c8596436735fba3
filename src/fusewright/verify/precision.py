"""Which arithmetic our convolutions have, where PyTorch's flags allow TF32: as exact as the library in fact is, or near enough.

Our error may be at most the largest of twice eager's own, float32's, and NEAR of a result's rms. Where the library computes
a convolution in float32 although it may round, one TF32 product often misses that, and our kernels split their operands instead:
into two TF32 numbers, or, where timing likes it and results allow, into two of bf16.
Whether it does is tried out before anything is planned: the model runs in float64, with the operands of those convolutions rounded
and without, at small sizes. The library itself may be coarser on channels-last data than as eager calls it; that is tried likewise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..frontend.given import deep_copy
from ..ir.graph import Graph
from ..schedule.library import Convolution, Library, convolution_of
from .library_arithmetic import convolutions_of, library_of
from .observe import Observed, observe
from .reference import (
    CONVOLUTIONS,
    MATMULS,
    NEAR,
    TF32,
    base_name,
    in_float64,
    rounding_of,
    to_tf32,
    type_of,
    widen_module,
    widened,
)
from .shrink import FLOPS_A_SECOND, Sizes, Space, space_of, work
from .subjects import LIKELY_PARAMETERS, write_state
from .variants import named_state, random_state

SAFETY = 2.0  # errors at the full sizes may be so many times those at the small ones: more elements, a larger maximum
LIMIT = NEAR / SAFETY
TWICE = 2.0  # eager's own error, which ours may be
MOST_SECONDS = 0.5  # for the runs of one set of values, by estimate; a model that takes longer is taken to miss
RUNS = 3 * 3  # exact, as the library rounds, and as ours would; a backward is two forwards
ELEMENTS_A_SECOND = 1e8  # written by PyTorch's operators in float64, on one core
ZERO = 1e-12  # a result whose rms is below it is what float64 leaves of values that cancel
NOTHING = 1e-8  # of the largest gradient's rms: one below it is zero but for float64's own rounding


@dataclass(frozen=True)
class Precision:
    """What a plan goes by. Without a library the flags alone say what is allowed."""

    library: Library | None = None
    split: bool = False  # our kernels split the operands of convolutions that the library computes in float32
    why: str = ""  # in words, where there are such convolutions
    plain_only: frozenset[Convolution] = frozenset()  # that the library may not compute on channels-last data, where it is too coarse
    bf16_parts_do: bool = False  # where operands are split, results would be near enough with two bf16 numbers for each
    bf16_parts: bool = False  # which they are; else two of TF32
    arithmetic: str = "auto"  # what our convolutions may use: auto, tf32 (no fp16 in its place), or ieee (nothing coarser than float32)
    scaled: bool = False  # what they would round to TF32 is scaled and rounded to fp16, which has as many bits

    def is_exact(self, convolution: Convolution) -> bool:
        """The library computes it in float32, whatever the flags allow."""
        return self.library is not None and not self.library.rounds(convolution)

    def rounds_weight_gradient(self, convolution: Convolution) -> bool:
        """A kernel may round the operands of its weight's gradient to TF32, where the flags allow it: the library does so too."""
        return self.arithmetic != "ieee" and (self.library is None or self.library.rounds_weight_gradient(convolution))

    @property
    def name(self) -> str:
        """Files of one name round alike."""
        found = "flags" if self.library is None else "eager, split" if self.split else "eager"
        return found if self.arithmetic == "auto" else f"{found}, {self.arithmetic}"

    def to_dict(self) -> dict[str, Any]:
        asked = self.library.to_dict() if self.library is not None else []
        return {"mode": self.name.split(",")[0], "split": self.split, "why": self.why, "library": asked}


FLAGS = Precision()


def library_for(model: nn.Module, inputs: Sequence[Any], device: torch.device, precision: str) -> Library | None:
    """What the library does with the model's convolutions; None where only the flags count, or allow nothing coarser than float32."""
    low = type_of(model, list(inputs))
    rounding = rounding_of(low)
    if precision == "flags" or low is not torch.float32 or rounding.convolution != TF32:
        return None
    return library_of(convolutions_of(model, inputs), device)


def decided(model: nn.Module, inputs: Sequence[Any], graph: Graph | None, device: torch.device, precision: str) -> Precision:
    """For a model on the CPU that will run on `device`."""
    library = library_for(model, inputs, device, precision)
    if library is None:
        return FLAGS
    exact = [each for each in convolutions_of(model, inputs) if not library.rounds(each) and not each.is_depthwise]
    if not exact and not library.coarser:
        return Precision(library)
    sizes = sizes_to_try(model, inputs, graph)
    split, why = tried(model, inputs, sizes, library) if exact else (False, "")
    parts_do = split and sizes is not None and near_in_parts(model, inputs, sizes, library)
    shows = bool(library.coarser) and sizes is not None and shows_channels_last(model, inputs, sizes, library)
    return Precision(library, split, why, library.coarser if shows else frozenset(), parts_do)


def split_all(precision: Precision) -> Precision:
    """The same with operands split wherever the library is exact, into what is surely near enough."""
    return replace(precision, split=True, bf16_parts_do=False, why="one TF32 product did not verify as exact as the library")


# ---- would one product of TF32 numbers do? ----


Multiplied = Callable[[OpOverload, Any, Any], Any]  # a convolution's result with its operands as tensor cores are given them
Arithmetic = Callable[[str, Convolution | None], Multiplied | None]  # by an operator's name and the convolution that it is; None: exact


def by_tf32(func: OpOverload, args: Any, kwargs: Any) -> Any:
    return func(*(pytree.tree_map_only(Tensor, to_tf32, a) for a in args), **kwargs)


def by_bf16_parts(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Of each operand's two numbers three products are added up; that of the small ones is left out."""
    if func is not torch.ops.aten.convolution.default:  # a gradient, which is the library's
        return by_tf32(func, args, kwargs)
    x, w, bias, *others = args
    (x_high, x_low), (w_high, w_low) = bf16_parts(x), bf16_parts(w)
    return func(x_high + x_low, w_high + w_low, bias, *others, **kwargs) - func(x_low, w_low, None, *others, **kwargs)


def bf16_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.to(torch.bfloat16).to(x.dtype)
    return high, (x - high).to(torch.bfloat16).to(x.dtype)


class _Rounded(TorchDispatchMode):
    """Convolutions are multiplied as the arithmetic says."""

    def __init__(self, arithmetic: Arithmetic):
        super().__init__()
        self.arithmetic, self.products = arithmetic, 0

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = base_name(func)
        self.products += name in MATMULS or (name in CONVOLUTIONS and name != "convolution_backward")
        multiplied = self.arithmetic(name, convolution_of(func, args, kwargs or {})) if name in CONVOLUTIONS else None
        if multiplied is not None:
            return multiplied(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def tried(model: nn.Module, inputs: Sequence[Any], sizes: Sizes | None, library: Library) -> tuple[bool, str]:
    """Whether operands must be split, and why, in words."""
    if sizes is None:
        return True, "one TF32 product was not tried, since that would take long"

    def as_ours(name: str, convolution: Convolution | None) -> Multiplied | None:
        return by_tf32 if library.rounds(convolution) or is_ours(name, convolution) else None

    worst = 0.0
    try:
        for outputs, gradients, products in misses(model, inputs, sizes, library, as_ours):
            if outputs > LIMIT:
                return True, f"one TF32 product would err {outputs:.1e} of the rms"
            if gradients > LIMIT and products > 1:  # what follows would be differentiated at values that are off
                return True, f"gradients after one TF32 product would err {gradients:.1e} of their rms"
            worst = max(worst, outputs)
    except Exception as error:  # the model's own code, or an operator that float64 lacks
        return True, f"one TF32 product could not be tried ({type(error).__name__})"
    return False, f"one TF32 product errs {worst:.1e} of the rms where it was tried"


def near_in_parts(model: nn.Module, inputs: Sequence[Any], sizes: Sizes, library: Library) -> bool:
    """Whether two bf16 numbers do for each operand. What cannot be tried is taken to miss."""

    def as_ours(name: str, convolution: Convolution | None) -> Multiplied | None:
        if library.rounds(convolution):
            return by_tf32
        return by_bf16_parts if is_ours(name, convolution) else None

    try:
        found = misses(model, inputs, sizes, library, as_ours)
        return all(outputs <= LIMIT and (gradients <= LIMIT or products <= 1) for outputs, gradients, products in found)
    except Exception:  # as above
        return False


def is_ours(name: str, convolution: Convolution | None) -> bool:
    """A kernel of ours may compute it on tensor cores."""
    return name != "convolution_backward" and (convolution is None or not convolution.is_depthwise)


def shows_channels_last(model: nn.Module, inputs: Sequence[Any], sizes: Sizes, library: Library) -> bool:
    """Whether results or gradients tell that the library rounds more operands on channels-last data. What cannot be tried is left to
    verification."""

    def as_channels_last(name: str, convolution: Convolution | None) -> Multiplied | None:
        return by_tf32 if library.rounds(convolution, channels_last=True) else None

    try:
        return any(max(outputs, gradients) > LIMIT for outputs, gradients, _ in misses(model, inputs, sizes, library, as_channels_last))
    except Exception:  # as above
        return False


def misses(
    model: nn.Module, inputs: Sequence[Any], sizes: Sizes, library: Library, arithmetic: Arithmetic
) -> Iterator[tuple[float, float, int]]:
    """For each set of values, what convolutions so multiplied make of results and of gradients beyond what the library's own rounding does:
    the largest error over the rms; and how many products there are."""

    def as_library(name: str, convolution: Convolution | None) -> Multiplied | None:
        return by_tf32 if library.rounds(convolution) else None

    exact_model, threads = widen_module(deep_copy(model)), torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: others may want the cores
    try:
        for state, values in itertools.product(states(model), drawn(inputs, sizes)):
            write_state(exact_model, state)
            exact, products = run(exact_model, values, lambda name, convolution: None)
            errors = excess(exact, run(exact_model, values, as_library)[0], run(exact_model, values, arithmetic)[0])
            outputs, gradients = (max((e for name, e in errors.items() if ("gradient" in name) is of), default=0.0) for of in (False, True))
            yield outputs, gradients, products
    finally:
        torch.set_num_threads(threads)


def run(model: nn.Module, values: list[Any], arithmetic: Arithmetic) -> tuple[Observed, int]:
    """What the float64 model gives with convolutions so multiplied, its parameters' gradients too, and how many products it has."""
    with _Rounded(arithmetic) as mode, in_float64(torch.float32):
        return observe(model, widened(values), derivatives=1, fixed=True), mode.products


def excess(exact: Observed, theirs: Observed, ours: Observed) -> dict[str, float]:
    """The largest error over the rms of each result, buffer and gradient, where it is more than twice the library's."""
    floating = {name: t for name, t in exact.tensors.items() if t.is_floating_point() and t.numel()}
    rms = {name: float(t.square().mean().sqrt()) for name, t in floating.items()}
    most = max((value for name, value in rms.items() if name.startswith("gradient")), default=0.0)
    found = {}
    for name, tensor in floating.items():
        least = NOTHING * most if name.startswith("gradient") else ZERO
        if rms[name] > least and name in theirs.tensors and name in ours.tensors:
            library, own = (float((other.tensors[name] - tensor).abs().max()) / rms[name] for other in (theirs, ours))
            found[name] = own if own > TWICE * library else 0.0
    return found


# ---- small sizes, and values for them ----


def sizes_to_try(model: nn.Module, inputs: Sequence[Any], graph: Graph | None) -> Sizes | None:
    """Small sizes that the model accepts, as large as the time allows; None where there are none."""
    given = tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in inputs)
    tried = smaller(space_of(graph, model, inputs)) if graph is not None else ()
    for sizes in dict.fromkeys((*tried, given)):
        found = work(model, inputs, sizes)
        if found is not None and RUNS * (found[0] / FLOPS_A_SECOND + found[1] / ELEMENTS_A_SECOND) <= MOST_SECONDS:
            return sizes
    return None


def smaller(space: Space) -> Iterator[Sizes]:
    for extent, batch in ((32, 3), (16, 3), (16, 2), (8, 2)):
        point = {a.symbol: min(a.size, max(a.lower, batch if a.batch else extent)) for a in space.axes}
        if space.holds(point):
            yield space.at(point)
    yield space.at({a.symbol: min(a.size, max(a.lower, 2)) if a.batch else a.size for a in space.axes})


def drawn(inputs: Sequence[Any], sizes: Sizes) -> Iterator[list[Any]]:
    """The first elements of the inputs as given, and normal ones of the same sizes."""
    cut = [
        x[tuple(slice(0, n) for n in size)].detach().clone() if isinstance(x, Tensor) and size is not None else x
        for x, size in zip(inputs, sizes, strict=True)
    ]
    yield cut
    generator = torch.Generator().manual_seed(1)
    yield [torch.randn(x.shape, generator=generator).to(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in cut]


def states(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Parameters as they are, and others like those of a trained model."""
    initial = {name: t.detach().clone() for name, t in named_state(model)}
    trained = {name for name, _ in model.named_parameters()}
    for kind in LIKELY_PARAMETERS:
        yield initial if kind == "initial" else random_state(initial, trained, kind, seed=0)
