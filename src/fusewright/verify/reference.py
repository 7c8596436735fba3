"""What a model means: its results in float64, exactly, or with the rounding its flags allow put in at random."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..schedule.library import Convolution, Library, convolution_of

# Some virtual machines announce AMX and then refuse it, and a bf16 product ends the process. oneDNN reads this once.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

UNIT_ROUNDOFF = {  # half the distance between 1 and the next number
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
TF32 = 2.0**-11
NEAR = 1e-4  # of a result's rms: what TF32 may err where the library itself computes a convolution in float32
STRETCH = {"cpu": 2**18, "cuda": 2**22}  # random numbers drawn once and used again elsewhere: drawing is dearer than rounding
WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}

CONVOLUTIONS = frozenset(
    "convolution _convolution cudnn_convolution convolution_backward conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d mkldnn_convolution".split()
)
MATMULS = frozenset(
    "mm addmm bmm baddbmm addbmm linear addmv mv dot vdot matmul einsum addr scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward".split()
)
SUMS = frozenset(
    "sum mean prod cumsum cumprod norm linalg_vector_norm logsumexp logcumsumexp nansum _softmax _log_softmax "
    "_softmax_backward_data _log_softmax_backward_data avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d".split()
)
STATISTICS = frozenset(
    "var var_mean std std_mean native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional _batch_norm_with_update "
    "cudnn_batch_norm _fused_rms_norm native_layer_norm_backward native_group_norm_backward "
    "native_batch_norm_backward".split()
)
BATCH_NORMS = frozenset(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update cudnn_batch_norm".split()
)
# Operators that move, choose or negate values: they round nothing.
EXACT = frozenset(
    "clone _to_copy copy copy_ lift lift_fresh lift_fresh_copy cat stack index index_put index_put_ index_select "
    "gather scatter scatter_ slice_scatter select_scatter as_strided_scatter constant_pad_nd reflection_pad1d "
    "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d flip roll repeat "
    "repeat_interleave embedding where masked_fill masked_fill_ masked_select masked_scatter tril triu diag_embed "
    "relu relu_ relu6 hardtanh hardtanh_ clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ maximum minimum "
    "fmax fmin max min amax amin aminmax max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d "
    "adaptive_max_pool3d max_pool1d max_pool2d max_pool3d mode median sort topk kthvalue cummax cummin neg neg_ "
    "abs abs_ sign sgn floor ceil round trunc fill fill_ zero_ zeros zeros_like ones ones_like full full_like "
    "new_zeros new_ones new_full arange linspace eye scalar_tensor threshold threshold_backward im2col "
    "unfold_copy pixel_shuffle pixel_unshuffle channel_shuffle one_hot upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d empty empty_like empty_strided new_empty new_empty_strided _unsafe_view set_ resize_ "
    "nan_to_num heaviside hardshrink".split()
)
# A result outside these bounds is no rounding, and operators that take probabilities refuse it.
BOUNDS = {"sigmoid": (0.0, 1.0), "sigmoid_": (0.0, 1.0), "_softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "tanh_": (-1.0, 1.0)}
WITH_MASK = frozenset(["multilabel_margin_loss_forward"])  # beside its result it has ones and zeros, as numbers, which backward checks
RANDOM = frozenset(
    "bernoulli bernoulli_ rand randn rand_like randn_like randint randint_like randperm normal normal_ uniform "
    "uniform_ random random_ exponential_ multinomial poisson geometric_ cauchy_ log_normal_ rrelu_with_noise "
    "rrelu_with_noise_".split()
)
DRAWING = RANDOM | {"native_dropout"}
OF_MEMORY = DRAWING | {"stride", "as_strided"}  # the order in memory shows in what these give


TO_NEAREST = 100  # the seed of the first of the rounded references


@dataclass(frozen=True)
class Rounding:
    """What the model's type and the user's flags let one operator lose, as relative errors."""

    unit: float  # of each result
    convolution: float  # of each operand of a convolution
    matmul: float  # of each operand of a matrix product
    library: Library | None = None  # of convolutions, only where it rounds them itself; without it, wherever the flags allow
    kinds: frozenset[bool] = frozenset({True})  # of the model's convolutions: whether the library rounds them

    @property
    def coarse(self) -> bool:
        """Products may be coarser than the model's own type."""
        return max(self.convolution if True in self.kinds else self.unit, self.matmul) > self.unit

    @property
    def spares(self) -> bool:
        """The flags allow some convolution to be coarser than the library computes it."""
        return self.library is not None and False in self.kinds and self.convolution > self.unit

    @property
    def as_flagged(self) -> Rounding:
        """What the flags allow, whatever the library does."""
        return replace(self, library=None, kinds=frozenset({True}))

    @property
    def fine(self) -> Rounding:
        """What the model's own type loses, whatever the flags allow."""
        return Rounding(self.unit, self.unit, self.unit)

    def at_least(self, unit: float) -> Rounding:
        """Of operators that autocast computes in a type of this unit."""
        return replace(self, unit=max(self.unit, unit), convolution=max(self.convolution, unit), matmul=max(self.matmul, unit))

    def for_operators(self, met: Set[str | Convolution], library: Library | None = None) -> Rounding:
        """What a model that runs only these operators and convolutions may lose."""
        convolution = self.convolution if met & CONVOLUTIONS else self.unit
        rounding = Rounding(self.unit, convolution, self.matmul if met & MATMULS else self.unit)
        if library is None or convolution == self.unit:
            return rounding
        kinds = frozenset(library.rounds(each) for each in met if isinstance(each, Convolution))
        return replace(rounding, library=library, kinds=kinds or frozenset({True}))

    def of_convolution(self, convolution: Convolution | None) -> float:
        """Of each operand of this one."""
        return self.convolution if self.library is None or self.library.rounds(convolution) else self.unit

    def __str__(self) -> str:
        if self.spares:
            return f"{self.as_flagged}, where the library computes them in fp32 within {NEAR:g} of the rms"
        names = {TF32: "TF32", 2.0**-8: "bf16", 2.0**-24: "fp32", 2.0**-53: "fp64"}
        type_ = "fp16" if self.unit == 2.0**-11 else names.get(self.unit, f"{self.unit:.1e}")
        products = {"convolutions": self.convolution, "matmuls": self.matmul}
        allowed = [f"{names.get(delta, delta)} {kind}" for kind, delta in products.items() if delta > self.unit]
        return " with ".join([type_, " and ".join(allowed)]) if allowed else type_


def rounding_of(dtype: torch.dtype) -> Rounding:
    """A model of this type under the flags as they stand now; on a CPU, as they would act on a GPU."""
    unit = UNIT_ROUNDOFF[dtype]
    if dtype != torch.float32:
        return Rounding(unit, unit, unit)
    flags = torch.backends
    convolution = _allowed(getattr(flags.cudnn, "conv", None), flags.cudnn)
    matmul = _allowed(flags.cuda.matmul, flags.cuda.matmul)
    return Rounding(unit, max(unit, convolution), max(unit, matmul))


def _allowed(new: Any, old: Any) -> float:
    """The flag by its new name where this torch has one: reading the old name can raise once the new one was set."""
    try:
        precision = new.fp32_precision
    except (AttributeError, RuntimeError):
        precision = "tf32" if old.allow_tf32 else "ieee"
    return {"tf32": TF32, "bf16": 2.0**-8}.get(precision, 0.0)


def type_of(model: nn.Module, inputs: list[Any]) -> torch.dtype:
    """The narrowest floating type among parameters and inputs: the type the model computes in."""
    tensors = [*model.parameters(), *(x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor))]
    found = {t.dtype for t in tensors if t.dtype in UNIT_ROUNDOFF}
    return max(found or {torch.get_default_dtype()}, key=lambda dtype: UNIT_ROUNDOFF[dtype])


def widened(tree: Any) -> Any:
    """Every floating tensor in float64, detached; its strides kept."""
    return pytree.tree_map_only(Tensor, lambda t: t.detach().to(WIDE[t.dtype]) if t.dtype in WIDE else t.detach(), tree)


def widen_module(model: nn.Module) -> nn.Module:
    """Turn a module, in place, into float64: parameters, buffers, and tensors kept as plain attributes."""
    model.double()
    for module in model.modules():
        for name, value in vars(module).items():
            if name.startswith("_") or isinstance(value, nn.Module):
                continue
            if isinstance(value, (Tensor, list, tuple, dict)):
                vars(module)[name] = pytree.tree_map_only(
                    Tensor, lambda t: t if isinstance(t, nn.Parameter) else t.to(WIDE.get(t.dtype, t.dtype)), value
                )
    return model


@dataclass(frozen=True)
class OneOfParts:
    """What a run on a part of the batch has to know of the others: its parameters are rounded alike in each, and sums that go over
    the batch go on in the next."""

    number: int = 0
    count: int = 1
    state: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # shapes of parameters and buffers, by their storage

    def continues(self, name: str, args: Any) -> bool:
        """This call computes a parameter's gradient."""
        if name == "convolution_backward":
            return True
        if name != "mm" or not self.state:
            return False
        shape = args[0].shape[0], args[1].shape[1]
        return shape in self.state.values() or shape[::-1] in self.state.values()


WHOLE = OneOfParts()


@contextlib.contextmanager
def in_float64(
    low: torch.dtype, rounding: Rounding | None = None, seed: int = 0, part: OneOfParts = WHOLE
) -> Iterator[set[str | Convolution]]:
    """Run a widened model so that nothing in it falls back to the narrow type `low`, rounded at random if asked.

    Gives the names of the operators it met, and the convolutions.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with autocasts() as entered, _InFloat64(low, rounding, seed, part, entered) as mode, _LaterKeysLeftOut(mode.met):
            yield mode.met
    finally:
        torch.set_default_dtype(default)


@dataclass
class Autocasts:
    """Those that a model turns on itself. They change no float64, so only this says in what type an operator computes."""

    within: list[torch.dtype | None] = field(default_factory=list)  # the innermost last; None for one that is off
    coarsest: torch.dtype | None = None  # of all so far: what backward, which has left them, may compute in

    def now(self) -> torch.dtype | None:
        if self.within:
            return self.within[-1]
        in_backward = self.coarsest is not None and torch._C._current_autograd_node() is not None
        return self.coarsest if in_backward else None


@contextlib.contextmanager
def autocasts() -> Iterator[Autocasts]:
    found, enter, leave = Autocasts(), torch.autocast.__enter__, torch.autocast.__exit__

    def entered(self: Any) -> Any:
        dtype = self.fast_dtype if self._enabled else None
        found.within.append(dtype)
        found.coarsest = max((t for t in (found.coarsest, dtype) if t is not None), key=UNIT_ROUNDOFF.__getitem__, default=None)
        return enter(self)

    def left(self: Any, *raised: Any) -> Any:
        found.within.pop()
        return leave(self, *raised)

    with mock.patch.object(torch.autocast, "__enter__", entered), mock.patch.object(torch.autocast, "__exit__", left):
        yield found


class _LaterKeysLeftOut(TorchFunctionMode):
    """Causal attention in which no later key counts, a NaN among them neither, as PyTorch's fused kernels have it; and whether the model
    asks how a tensor lies in memory.

    PyTorch's plain attention, which float64 and some sizes take, adds -infinity to scores, and a NaN stays one: either is right.
    """

    def __init__(self, met: set[str | Convolution]):
        super().__init__()
        self.met = met

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.stride, Tensor.is_contiguous):
            self.met.add("stride")
        if func is nn.functional.scaled_dot_product_attention:
            found = left_out(*args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


def left_out(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    if not is_causal or dropout_p or attn_mask is not None:
        return None
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.ops.aten._safe_softmax.default(scores.masked_fill(later, -math.inf), -1) @ v  # zeros where nothing is left


def to_tf32(x: Tensor) -> Tensor:
    """To the nearest number of 11 significant bits, half away from zero. A bias is no operand of a product."""
    if not x.is_floating_point() or x.dim() < 2:
        return x
    single = x.float()
    nearest = ((single.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return torch.where(torch.isfinite(single), nearest, single).to(x.dtype)


class _InFloat64(TorchDispatchMode):
    """Below autograd: types named in the model widen, and random numbers are drawn in the model's own type.

    With a `rounding`, each operator's result, and its operands where it accumulates, are multiplied by 1 + δu, |u| ≤ 1. With the
    seed TO_NEAREST operands of products that may be TF32 are rounded as tensor cores are given them: equal ones err equally.
    Where the model turns autocast on, and in the backward of such a model, the rounding is that of autocast's type.
    """

    def __init__(self, low: torch.dtype, rounding: Rounding | None, seed: int, part: OneOfParts, autocasts: Autocasts):
        super().__init__()
        self.low, self.outside, self.seed, self.part, self.autocasts = low, rounding, seed, part, autocasts
        self.places = torch.Generator().manual_seed(seed + 7919 * part.number)
        self.places_of_state = torch.Generator().manual_seed(seed)  # the same in each part
        self.met: set[str | Convolution] = set()

    @property
    def rounding(self) -> Rounding | None:
        dtype = self.autocasts.now()
        return self.outside if self.outside is None or dtype is None else self.outside.at_least(UNIT_ROUNDOFF[dtype])

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = base_name(func), dict(kwargs or {})
        convolution = convolution_of(func, args, kwargs) if name in CONVOLUTIONS else None
        self.met |= {name} if convolution is None else {name, convolution}
        if name in ("rrelu_with_noise", "rrelu_with_noise_"):
            return self._leaky(func, *args, **kwargs)
        if name in RANDOM:
            return self._random(func, args, kwargs)
        if name == "native_dropout":
            return self._dropout(func, *args, **kwargs)
        if name in ("nan_to_num", "nan_to_num_"):
            args = self._numbers(*args, **kwargs)
            kwargs = {}
        if func is not torch.ops.aten.view.dtype:
            args, kwargs = self._wide(func, args, kwargs)
        if self.rounding is None:
            return func(*args, **kwargs)
        written = _written(func)
        if self.rounds_to_tf32(name, convolution):
            args = tuple(a if i in written else mapped(a, to_tf32) for i, a in enumerate(args))
            delta = self.rounding.unit * self._roundings(name, args)
        else:
            delta = self._operand_delta(name, args, convolution)
        if delta:
            args = tuple(a if i in written else self._perturb(a, delta) for i, a in enumerate(args))
        result = func(*args, **kwargs)
        if name in BATCH_NORMS and result[2].numel():  # none where running statistics are used
            self._shift_means(args[0], args[1], *result[:3])
        if name in EXACT or is_view(func):
            return result
        if _written(func):
            for tensor in tensors_in(result):
                if tensor.is_floating_point():
                    self._times_noise(tensor, self.rounding.unit)
            return result.clamp_(*BOUNDS[name]) if name in BOUNDS else result
        unit = max(self.rounding.unit, delta if name in SUMS else 0.0)
        if name in WITH_MASK:
            return (self._rounded(result[0], unit, (args, kwargs)), *result[1:])
        result = self._rounded(result, unit, (args, kwargs))
        return result.clamp_(*BOUNDS[name]) if name in BOUNDS else result

    def _wide(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        written = _written(func)

        def widen(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(WIDE[value.dtype]) if value.dtype in WIDE else value
            return WIDE.get(value, value) if isinstance(value, torch.dtype) else mapped(value, widen)

        wide = tuple(a if i in written else widen(a) for i, a in enumerate(args))
        return wide, {k: v if k == "out" else widen(v) for k, v in kwargs.items()}

    def _numbers(self, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
        """The arguments of nan_to_num, where an infinity is the largest number of the model's type if nothing else is said."""
        info = torch.finfo(self.low) if self.low.is_floating_point else torch.finfo(torch.float32)
        return x, nan, info.max if posinf is None else posinf, info.min if neginf is None else neginf

    def rounds_to_tf32(self, name: str, convolution: Convolution | None) -> bool:
        if self.rounding is None or self.seed != TO_NEAREST:
            return False
        of_matmul = self.rounding.matmul if name in MATMULS else 0.0
        allowed = self.rounding.of_convolution(convolution) if name in CONVOLUTIONS else of_matmul
        return allowed == TF32 > self.rounding.unit

    def _operand_delta(self, name: str, args: Any, convolution: Convolution | None) -> float:
        assert self.rounding is not None
        accumulated = self.rounding.unit * self._roundings(name, args)
        if name in CONVOLUTIONS:
            return max(accumulated, self.rounding.of_convolution(convolution))
        return max(accumulated, self.rounding.matmul) if name in MATMULS else accumulated

    def _roundings(self, name: str, args: Any) -> float:
        return roundings(name, args, self.part.count if self.part.continues(name, args) else 1)

    def _shift_means(self, x: Tensor, scale: Tensor | None, y: Tensor, mean: Tensor, inverse_deviation: Tensor) -> None:
        """The mean that a batch norm takes away is merged of parts, whose means are rounded: it is off by units of these, which may be
        far from one another, not by what is left when the errors of single elements average out."""
        assert self.rounding is not None
        parts = x.flatten(2).mean(2) if x.dim() > 2 else x
        off = (self._times_noise(parts.clone(), self.rounding.unit) - parts).mean(0)
        mean += off
        off = off * inverse_deviation * (1.0 if scale is None else scale)
        y -= off.view(-1, *(1 for _ in x.shape[2:]))

    def _perturb(self, tree: Any, delta: float) -> Any:
        def change(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            of_state = bool(self.part.state) and t.untyped_storage().data_ptr() in self.part.state
            return self._times_noise(t.clone(), delta, self.places_of_state if of_state else None)

        return mapped(tree, change)

    def _rounded(self, result: Any, delta: float, given: Any) -> Any:
        """As `_perturb`, in place where an operator's result is new and dense: as it mostly is."""
        taken = {t.untyped_storage().data_ptr() for t in tensors_in(given)}

        def change(t: Tensor) -> Tensor:
            if not t.is_floating_point():
                return t
            own = _dense(t) and t.untyped_storage().data_ptr() not in taken
            return self._times_noise(t if own else t.clone(), delta)

        return mapped(result, change)

    def _times_noise(self, tensor: Tensor, delta: float, places: torch.Generator | None = None) -> Tensor:
        """Multiply in place by 1 + δ·u. The numbers u come from one pool, each stretch from a place of its own."""
        pool, stretch = _pool(tensor.device, tensor.dtype), STRETCH[tensor.device.type]
        dense = _dense(tensor)
        flat = tensor.as_strided((tensor.numel(),), (1,)) if dense else tensor.flatten()
        for start in range(0, flat.numel(), stretch):
            part = flat[start : start + stretch]
            place = int(torch.randint(stretch, (), generator=places or self.places))
            share = (part * pool[place : place + part.numel()]).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            part.add_(share, alpha=delta)  # an infinity stays one
        return tensor if dense else tensor.copy_(flat.view(tensor.shape))

    def _random(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """The same draw as in the model's own type: the generator is asked for `low` numbers, then they are widened."""

        def narrow(value: Any) -> Any:
            return value.to(self.low) if isinstance(value, Tensor) and value.dtype == torch.float64 else value

        usual = [a.default_value for a in func._schema.arguments if a.name == "dtype"]  # None: floats; a permutation is of whole numbers
        if kwargs.get("dtype") is torch.float64 or (usual == [None] and kwargs.get("dtype") is None):
            kwargs["dtype"] = self.low
        if _written(func):
            narrowed = narrow(args[0])
            func(narrowed, *args[1:], **kwargs)
            return args[0].copy_(narrowed)
        result = func(*pytree.tree_map(narrow, args), **kwargs)
        return pytree.tree_map_only(Tensor, lambda t: t.to(WIDE.get(t.dtype, t.dtype)), result)

    def _leaky(self, func: OpOverload, x: Tensor, noise: Tensor, *settings: Any, **named: Any) -> Any:
        """In training slopes are drawn, in the model's own type: that of what is positive is 1."""
        trains = settings[2] if len(settings) > 2 else named.get("training", False)
        if not trains:
            return func(x, noise, *settings, **named)
        drawn = torch.empty_like(noise, dtype=self.low)
        func(x.to(self.low, copy=True), drawn, *settings, **named)
        noise.copy_(drawn)
        return x.mul_(noise) if 0 in _written(func) else x * noise

    def _dropout(self, func: OpOverload, x: Tensor, p: float, train: bool | None) -> Any:
        if train is False:
            return func(x, p, train)
        _, mask = func(torch.ones_like(x, dtype=self.low), p, train)
        return (x * mask / (1 - p) if p < 1 else torch.zeros_like(x)), mask


def _dense(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@functools.lru_cache(maxsize=4)
def _pool(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Uniform in [−1, 1)."""
    numbers = torch.rand(2 * STRETCH[device.type], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return numbers.mul_(2).sub_(1).to(device, dtype)


def roundings(name: str, args: Any, times: int = 1) -> float:
    """How many units an operand of this call may be off by, in effect, when an honest kernel adds in its own order; `times` as many
    terms as this call has.

    One thread may add a product's terms one after another, as matrix kernels do, and up to a thousand terms of a plain
    sum; n such additions err as if the operands were off by √n / 4 units. Statistics are merged as a tree: √log₂ n.
    """
    n = times * max(1, terms(name, args)) if name in CONVOLUTIONS | MATMULS | SUMS | STATISTICS else 0
    if not n:
        return 0.0
    if name in STATISTICS:
        return math.sqrt(1 + math.log2(n))
    return 1 + math.sqrt(min(n, 1024 if name in SUMS else 16384)) / 4


def terms(name: str, args: Any) -> int:
    """How many terms each sum of this call has, roughly."""
    first = args[0] if args and isinstance(args[0], Tensor) else None
    if first is None or not first.numel():
        return 1
    if name == "convolution_backward":
        return first.numel() // first.shape[1]
    if name in CONVOLUTIONS:
        return int(args[1].numel() // args[1].shape[0])
    if name in MATMULS:
        factor = args[1] if name.startswith(("add", "badd")) else first
        return int(factor.shape[-1]) if factor.dim() else 1
    if name == "native_layer_norm":
        return math.prod(args[1])
    if name == "native_group_norm":
        return int(args[4] * args[5] // args[6])
    if "batch_norm" in name:
        return first.numel() // first.shape[1]
    argument = args[1] if len(args) > 1 and "pool" not in name else None
    named = argument if isinstance(argument, (list, tuple)) else [argument]
    dims = [int(d) for d in named if isinstance(d, int) and -first.dim() <= d < first.dim()]
    return int(math.prod(first.shape[d] for d in dims)) if dims else first.numel()


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The tensors of an operator's argument or result changed: it is one, or a list of some. pytree takes ten times as long."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(change(v) if isinstance(v, Tensor) else mapped(v, change) for v in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


@functools.cache
def base_name(func: OpOverload) -> str:
    """`aten.add_.Tensor` -> `add_`."""
    return func._schema.name.split("::")[-1]


@functools.cache
def is_view(func: OpOverload) -> bool:
    """Its result shares its argument's storage and nothing was written."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


@functools.cache
def _written(func: OpOverload) -> frozenset[int]:
    """Positions of the arguments the operator writes."""
    if base_name(func) in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"):
        return frozenset({3, 4})  # the running statistics, which the schema does not mention
    return frozenset(i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
