"""One call of a model, observed: what it returned, the buffers it changed, its gradients."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from .batch import Part
from .besides import Watch
from .candidate import ALLOCATIONS
from .held import own
from .reference import base_name
from .variants import Variant, overwrite

SAMPLE = 2**18  # elements of one gradient that are compared
COPIED = 2**20  # elements: what a model returns is copied up to that; larger ones where they share memory with something else
DRAWN = 2**20  # cotangents that are drawn at a time, so that those of a part are those of the whole


@dataclass(frozen=True)
class Observed:
    """Everything one call gave, by name: `output 0`, `gradient of input 0`, `gradient of weight`, `buffer mean`."""

    tensors: Mapping[str, Tensor]
    structure: str
    returned: tuple[Any, ...]  # the leaves as they were returned, for checks of their type and storage
    differentiable: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values that are equal or not, by name
    besides: tuple[str, ...] = ()  # what the call did besides returning: a candidate may do no more of it than the original


def observe(
    model: nn.Module, inputs: list[Any], *, derivatives: int = 0, fixed: bool = False, seed: int = 0, part: Part | None = None
) -> Observed:
    """Call the model; afterwards its buffers are what they were before. `fixed` inputs need no gradient.

    `part`: which of the batch's samples these inputs are. Gradients are then its share of the whole batch's.
    """
    with buffers_put_back(model):
        return called(model, inputs, derivatives=derivatives, fixed=fixed, seed=seed, part=part)


def called(
    model: nn.Module, inputs: list[Any], *, derivatives: int = 0, fixed: bool = False, seed: int = 0, part: Part | None = None
) -> Observed:
    """What `observe` sees; buffers stay as the call leaves them."""
    if derivatives and not fixed:
        inputs = needing_gradients(inputs)
    misaligned = any(map(is_misaligned, pytree.tree_leaves(inputs)))
    aligned = AlignedAttention() if misaligned else contextlib.nullcontext()
    before = {place: id(t) for place, t in tensors_on(model)}
    watch = Watch(model, inputs)
    with seeded(seed), torch.set_grad_enabled(derivatives > 0), aligned:
        watch.seeded()
        result = model(*inputs)
        watch.drawn()
    leaves, structure = pytree.tree_flatten(result)
    outputs = {f"output {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    numbers = {f"output {i}": torch.tensor(leaf, dtype=torch.float32) for i, leaf in enumerate(leaves) if type(leaf) is float}
    outputs |= {place: t for place, t in tensors_on(model) if before.get(place) != id(t)}  # a loss that is kept for later
    shared = _storages([*inputs, *model.parameters(), *model.buffers(), *(t for _, t in tensors_on(model))])
    tensors = {name: _own(_real(leaf.detach()), shared) for name, leaf in outputs.items()}
    watch.seeded()
    found = _gradients(model, inputs, list(outputs.values()), derivatives, part) if derivatives else {}
    watch.drawn()
    for name, b in model.named_buffers():  # unchanged ones too: rounding may hide a change, or make one; backward may make one as well
        tensors[f"buffer {name}"] = b.detach().clone()
    differentiable, names = any(t.requires_grad for t in outputs.values()), named_alike(structure)
    besides = watch.found(leaves, names, derivatives > 0)
    return Observed({**tensors, **numbers, **found}, names, tuple(leaves), differentiable, besides=besides)


def _storages(values: list[Any]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in pytree.tree_leaves(values) if isinstance(t, Tensor) and t.layout == torch.strided}


def _own(leaf: Tensor, shared: set[int]) -> Tensor:
    """What was returned, where nothing changes it later: a large result in memory of its own is not copied."""
    alone = leaf.layout == torch.strided and leaf.untyped_storage().data_ptr() not in shared
    return leaf if alone and leaf.numel() > COPIED else leaf.clone()


def tensors_on(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Attributes that are tensors, by place. Names of their own, which others need not have, begin with an underscore."""
    found = []
    for path, module in model.named_modules():
        held = {name: value for name, value in sorted(own(module).items()) if not name.startswith("_")}
        found += [(f"attribute {path}.{name}" if path else f"attribute {name}", v) for name, v in held.items() if isinstance(v, Tensor)]
    return found


@contextlib.contextmanager
def buffers_put_back(model: nn.Module) -> Iterator[None]:
    """The same tensors with the same values: one that a forward assigned anew carries the history of autograd."""
    before = [
        (module._buffers, name, b, b.detach().clone())
        for module in model.modules()
        for name, b in module._buffers.items()
        if b is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for held, name, b, value in before:
                held[name] = b
                if b.shape == value.shape:
                    overwrite(b, value)


def needing_gradients(inputs: list[Any]) -> list[Any]:
    return [x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]


class Way(Protocol):
    """How a model is called and what is noted of it: `observe`, or with a hook, with an attribute changed, several times."""

    @property
    def values(self) -> str:
        """The same for ways that give the same values."""

    def calls(self, variant: Variant) -> tuple[Variant, ...]:
        """The variants whose inputs it wants."""

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed: ...


@dataclass(frozen=True)
class Once:
    """One call, nothing else."""

    @property
    def values(self) -> str:
        return repr(self)

    def calls(self, variant: Variant) -> tuple[Variant, ...]:
        return (variant,)

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        return observe(model, inputs[0], derivatives=variant.derivatives, fixed=variant.fixed, seed=variant.seed)


def is_misaligned(x: Any) -> bool:
    return isinstance(x, Tensor) and x.data_ptr() % 16 != 0


class AlignedAttention(TorchFunctionMode):
    """Copies what PyTorch's attention is given and does not begin at 16 bytes.

    Its kernel for float32 reads such a tensor by 16 bytes all the same, and the GPU is lost (pytorch issue 183484, in 2.11).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.clone() if is_misaligned(x) else x, (args, kwargs))
        return func(*args, **kwargs)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed what a forward may draw from. Not by torch.manual_seed, which notes a stack trace for a GPU yet to come."""
    generators = [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ())]
    states, python_state = [g.get_state() for g in generators], random.getstate()
    random.seed(seed)
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def named_alike(structure: Any) -> str:
    """The structure of a result; classes of the model's own file are named alike in both files."""
    return re.sub(r"\b_fusewright_(?:model|candidate)_\w+\.", "", str(structure))


def _gradients(model: nn.Module, inputs: list[Any], outputs: list[Tensor], order: int, part: Part | None) -> dict[str, Tensor]:
    """Of Σ output · cotangent, the cotangents drawn at random once, by inputs and parameters; and the same of those."""
    targets = gradient_targets(model, inputs)
    outputs = [t for t in outputs if t.is_floating_point() or t.is_complex()]  # whole numbers have no gradient
    found: dict[str, Tensor] = {}
    for derivative in ("gradient", "second gradient")[:order]:
        pairs = [(t, c) for t, c in zip(outputs, cotangents(outputs, part), strict=True) if t.requires_grad]
        if not targets or not pairs:
            break
        more = derivative == "gradient" and order == 2
        by = list(targets.values())
        smooth, given = zip(*pairs, strict=True)
        grads = torch.autograd.grad(smooth, by, given, allow_unused=True, create_graph=more)
        for (name, target), gradient in zip(targets.items(), grads, strict=True):
            value = (torch.zeros_like(target) if gradient is None else gradient).detach()
            rows = part is not None and any(name == f"input {i}" for i in part.batched)
            found[f"{derivative} of {name}"] = _sample_of(value, part) if part is not None and rows else _sample(value).clone()
        outputs = [torch.zeros_like(t) if g is None else g for t, g in zip(by, grads, strict=True)]
    return found


def settle(module: nn.Module) -> None:
    """What autograd left in attributes and buffers becomes plain values. A model with such a tensor cannot be copied."""
    for m in module.modules():
        for held in (vars(m), m._buffers):
            held.update({name: t.detach() for name, t in held.items() if isinstance(t, Tensor) and not t.is_leaf})


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _sample(gradient: Tensor) -> Tensor:
    """Of a large gradient evenly spaced elements, at a distance that meets every row and every column, and the sums of as many as lie
    between two of them, as large as one is: of a table's gradient most rows are 0, and those that are not may lie between."""
    distance = gradient.numel() // SAMPLE | 1
    if distance == 1:
        return gradient
    flat = gradient.flatten()
    whole = flat.numel() // distance * distance
    sums = flat[:whole].view(-1, distance).sum(1, dtype=torch.float64), flat[whole:].sum(0, True, dtype=torch.float64)
    return torch.cat([flat[::distance], *((s * distance**-0.5).to(flat.dtype) for s in sums)])


def _sample_of(gradient: Tensor, part: Part) -> Tensor:
    """The share that these rows have in `_sample` of the gradient of the whole batch: the shares of all parts add up to it."""
    whole, offset = part.of_whole(gradient.numel()), part.offset(gradient.numel())
    distance = whole // SAMPLE | 1
    if distance == 1:
        rows = gradient.new_zeros(part.whole, *gradient.shape[1:])
        rows[part.start : part.stop] = gradient
        return rows
    flat = gradient.flatten()
    chosen, sums = flat.new_zeros(-(-whole // distance)), flat.new_zeros(whole // distance + 1, dtype=torch.float64)
    head = -offset % distance  # elements before the next one that is chosen
    picked = flat[head::distance]
    first = (offset + head) // distance
    chosen[first : first + picked.numel()] = picked
    sums[offset // distance] += flat[:head].sum(dtype=torch.float64)
    windows = max(0, flat.numel() - head) // distance
    sums[first : first + windows] += flat[head : head + windows * distance].view(-1, distance).sum(1, dtype=torch.float64)
    rest = flat[head + windows * distance :]
    if rest.numel():
        sums[first + windows] += rest.sum(dtype=torch.float64)
    return torch.cat([chosen, (sums * distance**-0.5).to(flat.dtype)])


def gradient_targets(model: nn.Module, inputs: list[Any]) -> dict[str, Tensor]:
    of_inputs = {f"input {i}": x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad}
    return {**of_inputs, **{name: p for name, p in model.named_parameters() if p.requires_grad}}


def cotangents(outputs: list[Tensor], part: Part | None = None) -> list[Tensor]:
    """Numbers drawn at random, exact in every type: the same for all models, so out of sight of whatever widens, rounds or fills.

    As vectors they are about equally long: beside a cotangent for each of a million scores that of a loss, a single number,
    would be lost in rounding, and with it whatever is wrong with its gradient.
    """
    wholes = [t.numel() if part is None else part.of_whole(t.numel()) for t in outputs]
    offsets = [0 if part is None else part.offset(t.numel()) for t in outputs]
    lengths = [round(math.log2(max(1, n)) / 2) for n in wholes]  # as powers of 2
    middle = (max(lengths) + min(lengths)) // 2 if outputs else 0
    with _disable_current_modes():
        places = zip(outputs, offsets, wholes, lengths, strict=True)
        return [_drawn(i, t, offset, n).mul_(2.0 ** (middle - length)) for i, (t, offset, n, length) in enumerate(places)]


def _drawn(number: int, like: Tensor, offset: int, whole: int) -> Tensor:
    """Normal numbers of 8 significant bits, from `offset` on of as many as the whole has; on the device, and never all in float32."""
    made = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if whole == 1:
        return made.fill_(1.375)  # a loss: no number that may be all but 0, nor the 1 that a kernel may take for granted
    flat, generator = made.view(-1), torch.Generator(like.device)
    for block in range(offset // DRAWN, -(-(offset + flat.numel()) // DRAWN)):
        first, last = block * DRAWN, min(whole, (block + 1) * DRAWN)
        generator.manual_seed(5 + 1009 * number + 1000003 * block)
        drawn = torch.randn(last - first, generator=generator, dtype=torch.float32, device=like.device).bfloat16()
        start, stop = max(first, offset), min(last, offset + flat.numel())
        flat[start - offset : stop - offset] = drawn[start - first : stop - first]
    return made


class _Filled(TorchDispatchMode):
    """Memory that PyTorch hands out uninitialised is filled, so that what was never written shows."""

    def __init__(self, value: float, whole: int | None):
        super().__init__()
        self.value, self.whole = value, whole

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if base_name(func) in ALLOCATIONS and isinstance(result, Tensor) and not result.is_meta and result.numel():
            if result.is_floating_point() or result.is_complex():
                result.fill_(self.value)
            elif self.whole is not None:
                result.fill_(self.whole)
            elif result.dtype != torch.bool:
                result.fill_(torch.iinfo(result.dtype).max // 3)
        return result


class Met(TorchDispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(base_name(func))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def filled_memory(device: torch.device, value: float = math.nan, whole: int | None = None) -> Iterator[None]:
    """Run with uninitialised memory filled, integers with `whole` or with what is no index of anything.

    On a GPU the allocator's free blocks are filled as well.
    """
    if device.type == "cuda":
        free = []
        with contextlib.suppress(torch.OutOfMemoryError):  # then fewer will do
            for i in range(7):  # half a gigabyte
                free.append(torch.full((2**20 * 2**i,), value, device=device))
        del free
    with _Filled(value, whole):
        yield


@contextlib.contextmanager
def without_onednn(needed: bool) -> Iterator[None]:
    """Narrow types the user did not ask for must not end the process where a CPU announces what it cannot do."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not needed)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
