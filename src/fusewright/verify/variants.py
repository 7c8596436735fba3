"""The inputs, parameters, sizes and memory layouts a candidate is verified on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..frontend.problem import Problem
from .shrink import Shapes, Sizes

CPU = torch.device("cpu")
Draw = Callable[[Tensor, torch.Generator], Tensor]


def _normal(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=g, dtype=torch.float32, device=g.device).to(x.dtype)


def _per_sample(x: Tensor, g: torch.Generator) -> Tensor:
    offsets = 10 * torch.randn(x.shape[:1] + (1,) * (x.dim() - 1) if x.dim() else (), generator=g, device=g.device)
    return x + offsets.to(x.dtype)


def _with_one(value: float) -> Draw:
    def draw(x: Tensor, g: torch.Generator) -> Tensor:
        x = _normal(x, g).flatten()
        x[int(torch.randint(x.numel(), (), generator=g, device=g.device))] = value
        return x

    return lambda x, g: draw(x, g).reshape(x.shape)


def _of_few(x: Tensor, g: torch.Generator) -> Tensor:
    """Multiples of a half, so that many are equal and many are 0."""
    return _normal(x, g).mul(2).round().div(2)


def _with_zeros(x: Tensor, g: torch.Generator) -> Tensor:
    """The same, and of the first sample nothing but zeros."""
    found = _of_few(x, g)
    found[:1] = 0
    return found


# The most telling first: with a large model only the first ones run.
DISTRIBUTIONS: Mapping[str, Draw] = {
    "as given": lambda x, g: x,
    "normal": _normal,
    "large mean": lambda x, g: 1000 + _normal(x, g),
    "far below zero": lambda x, g: _with_one(-9e3)(x, g) - 1000,
    "×3": lambda x, g: 3 * x,
    "ties and zeros": lambda x, g: _with_zeros(x, g) if x.dim() else torch.zeros_like(x),
    "one extreme": _with_one(1e4),
    "wide": lambda x, g: 10 * _normal(x, g),
    "offset for each sample": _per_sample,
    "×0.01": lambda x, g: 0.01 * x,
    "constant": lambda x, g: torch.full_like(x, 0.7),
}
NOT_FINITE: Mapping[str, Draw] = {
    "one NaN": _with_one(float("nan")),
    "one Inf": _with_one(float("inf")),
    "one −Inf": _with_one(float("-inf")),
}

OTHERS: Mapping[str, Draw] = {"equal numbers": lambda x, g: _of_few(x, g) + 0.3}  # of which none is where a function has a corner


def _in_storage(x: Tensor, storage_shape: tuple[int, ...], place: Callable[[Tensor], Tensor]) -> Tensor:
    view = place(torch.full(storage_shape, float("nan") if x.is_floating_point() else 0, dtype=x.dtype, device=x.device))
    view.copy_(x)
    return view


def _sliced(x: Tensor) -> Tensor:
    bigger = tuple(size + 2 for size in x.shape)
    return _in_storage(x, bigger, lambda s: s[tuple(slice(1, -1) for _ in x.shape)])


def _reversed(x: Tensor) -> Tensor:
    return _in_storage(x, tuple(reversed(x.shape)), lambda s: s.permute(*reversed(range(x.dim()))))


def _channels_last(x: Tensor) -> Tensor:
    order = (0, *range(2, x.dim()), 1)
    back = (0, x.dim() - 1, *range(1, x.dim() - 1))
    return x.permute(order).contiguous().permute(back) if x.dim() >= 3 else x


def _misaligned(x: Tensor) -> Tensor:
    return _in_storage(x, (x.numel() + 1,), lambda s: s[1:].view(x.shape))


def _repeated(x: Tensor) -> Tensor:
    return x[:1].contiguous().expand(x.shape) if x.dim() else x


def in_order_of(given: Tensor, x: Tensor) -> Tensor:
    """Laid out as the file's own input is: its dimensions one after another in memory, without gaps."""
    if given.is_contiguous() or given.dim() != x.dim():
        return x.contiguous()
    strides = given.stride()
    order = sorted(range(x.dim()), key=lambda d: -strides[d])
    return x.permute(order).contiguous().permute([order.index(d) for d in range(x.dim())])


AS_GIVEN = "as given"
LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    AS_GIVEN: lambda x: x,
    "contiguous": torch.Tensor.contiguous,
    "slice of a larger tensor": _sliced,
    "dimensions in reverse order": _reversed,
    "channels last": _channels_last,
    "misaligned by one element": _misaligned,
    "one sample expanded": _repeated,
}


OTHER_VALUES = frozenset({"one sample expanded"})  # the others are another order of the same values


@dataclass(frozen=True)
class Variant:
    """One way to call the model, named so that a failure can be repeated."""

    group: str  # the check it belongs to
    sizes: Sizes
    shape: str = "given sizes"
    seed: int = 0
    distribution: str = "as given"
    layout: str = AS_GIVEN
    parameters: str = "initial"
    training: bool = True
    derivatives: int = 0  # 1: gradients of inputs and parameters, 2: of those gradients as well
    fixed: bool = False  # inputs need no gradient, as in training: only the parameters' are asked for
    changed: str = ""  # an input or parameter drawn anew: "input 0", "conv.weight"

    def __str__(self) -> str:
        shapes = ", ".join("×".join(map(str, s)) or "scalar" for s in self.sizes if s is not None)
        words = [f"seed {self.seed}", f"{self.distribution} values", f"{self.shape} ({shapes})"]
        words += [self.layout] if self.layout != AS_GIVEN else []
        words += [f"{self.parameters} parameters"] if self.parameters != "initial" else []
        words += [] if self.training else ["evaluation mode"]
        words += ["gradients of parameters alone"] if self.fixed else []
        words += [f"{self.changed} drawn anew"] if self.changed else []
        return ", ".join(words)


@dataclass(frozen=True)
class Source:
    """The values `get_inputs` gives, cut or extended to other sizes. Large ones are drawn once and kept.

    Others are drawn at `home`, the device that they are for: a GPU takes milliseconds where a CPU takes seconds.
    """

    problem: Problem
    kept: dict[int, list[Any]] = field(default_factory=dict)
    last: dict[tuple[Variant, torch.device], list[Any]] = field(default_factory=dict)  # one variant is asked for often
    home: torch.device = CPU

    @property
    def given(self) -> list[Any]:
        return self._base(0)

    @property
    def sizes(self) -> Sizes:
        return tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in self.given)

    def inputs(self, variant: Variant, device: torch.device) -> list[Any]:
        """Fresh tensors each time, the same for the same variant."""
        return [_again(x) if isinstance(x, Tensor) else x for x in self.held(variant, device)]

    def held(self, variant: Variant, device: torch.device) -> list[Any]:
        """Those that fresh ones are copied from."""
        values = replace(variant, group="", shape="", parameters="", training=True, derivatives=0, fixed=False)  # what makes no other ones
        values = replace(values, changed=variant.changed if variant.changed.startswith("input ") else "")
        if (values, device) not in self.last:
            if any(known != values for known, _ in self.last):
                self.last.clear()
            self.last[values, device] = self._made(values, device)
        return self.last[values, device]

    def _made(self, variant: Variant, device: torch.device) -> list[Any]:
        base = self._base(variant.seed)
        more = self._base(variant.seed + 1) if _grows(base, variant.sizes) else base
        generator = torch.Generator().manual_seed(1000 + variant.seed)
        at_home = generator if self.home.type == "cpu" else torch.Generator(self.home).manual_seed(1000 + variant.seed)
        draw = {**DISTRIBUTIONS, **NOT_FINITE, **OTHERS}[variant.distribution]
        made = []
        for position, (value, other, size) in enumerate(zip(base, more, variant.sizes, strict=True)):
            anew = variant.changed == f"input {position}"
            if size is None:
                made.append(pytree.tree_map(lambda leaf: _other(leaf, variant.seed), value) if anew else value)
                continue
            x = _window(value, other, size, generator)
            if x.is_floating_point():
                x = draw(x.to(self.home), at_home)
                x = renewed(x, variant.seed) if anew else x
            elif anew:
                x = _other(x, variant.seed)
            x = LAYOUTS[variant.layout](in_order_of(value, x.clone()))
            made.append(placed(x, device))
        return made

    def _base(self, seed: int) -> list[Any]:
        if seed in self.kept:
            return self.kept[seed]
        elements = sum(x.numel() for values in self.kept.values() for x in values if isinstance(x, Tensor))
        if self.kept and elements > 2**24:  # one is enough to cut many windows from
            return self.kept[min(self.kept)]
        self.kept[seed] = [x.cpu() if isinstance(x, Tensor) else x for x in self.problem.inputs(seed)]
        return self.kept[seed]


def _again(x: Tensor) -> Tensor:
    """A copy in storage of its own, with the same strides and offset."""
    return x.new_empty(0).set_(x.untyped_storage().clone(), x.storage_offset(), x.size(), x.stride())


def placed(x: Tensor, device: torch.device) -> Tensor:
    """On the device with the same strides and offset."""
    if x.device == device:
        return x
    whole = x.new_empty(0).set_(x.untyped_storage())
    return whole.to(device).as_strided(x.size(), x.stride(), x.storage_offset())


def _grows(base: list[Any], sizes: Sizes) -> bool:
    return any(
        size is not None and any(a > b for a, b in zip(size, x.shape, strict=True))
        for x, size in zip(base, sizes, strict=True)
    )


def _window(x: Tensor, other: Tensor, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A part of `x` of this size at a random place; where it must grow, continued by other values."""
    for dim, extent in enumerate(size):
        while x.shape[dim] < extent:
            fill = other
            for d in range(x.dim()):
                if d != dim:
                    fill = fill.index_select(d, torch.arange(x.shape[d]) % fill.shape[d])
            x = torch.cat([x, fill], dim)
        start = int(torch.randint(x.shape[dim] - extent + 1, (), generator=generator))
        x = x.narrow(dim, start, extent)
    return x


def random_state(
    state: Mapping[str, Tensor], trained: Set[str], kind: str, seed: int, device: torch.device = CPU
) -> dict[str, Tensor]:
    """New values for every floating parameter and buffer, on the CPU; drawn on the device, which for many of them is quicker.

    Constant ones (a scale of 1, a shift of 0) get distinct values, scales of both signs; variances stay positive.
    """
    generator = torch.Generator(device).manual_seed(77 + seed)
    made = dict(state)
    for name, given in state.items():
        if not given.is_floating_point() or not given.numel():
            continue
        value = given.to(device)
        last = name.rsplit(".", 1)[-1]
        first = float(value.flatten()[0])
        constant = math.isfinite(first) and bool((value == first).all())
        noise = torch.randn(value.shape, generator=generator, device=device).to(value.dtype)
        if "var" in last and name not in trained:
            made[name] = (0.5 * noise).exp()
        elif not constant:
            made[name] = value * (1 + 0.2 * noise)
        elif name in trained:
            made[name] = value + 0.5 * noise
        else:
            made[name] = value * (0.3 * noise).exp() if first else 0.3 * noise
        if kind == "large shift" and name in trained and last == "bias":
            made[name] = made[name] + 300
        made[name] = made[name].cpu()
    return made


def _other(value: Any, seed: int) -> Any:
    """Another plain value; or tensor: masks and whole numbers, which are drawn from those between its least and its largest."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else 0.5 * value + 0.1
    if not isinstance(value, Tensor) or not value.numel() or value.is_complex():
        return value
    if value.is_floating_point():
        return renewed(value, seed)
    generator = torch.Generator(value.device).manual_seed(seed)
    low, high = (0, 1) if value.dtype == torch.bool else (int(value.min()), int(value.max()))
    if low == high:
        low, high = min(0, low), max(0, high)
    drawn = torch.randint(low, high + 1, value.shape, generator=generator, device=value.device, dtype=torch.int64)
    in_order = value.dim() == 1 and bool((value[1:] >= value[:-1]).all()) and bool((value != value[:1]).any())
    return (drawn.sort().values if in_order else drawn).to(value.dtype)


def renewed(value: Tensor, seed: int) -> Tensor:
    """Values that have nothing to do with the old ones but their size."""
    generator = torch.Generator(value.device).manual_seed(seed)
    return value + _normal(value, generator) * max(float(value.abs().mean()), 0.1)


def named_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, also those a checkpoint does not hold."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def overwrite(target: Tensor, value: Tensor) -> None:
    """target = value. Where elements of `target` share memory (`expand`), the first of them says what all hold."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


def planned(shapes: Shapes, seeds: int, contiguous: bool = True, plain: Sequence[int] = ()) -> list[Variant]:
    """Every variant for the comparisons of values. Few run at the main sizes, most at the small ones; with one seed, one alone there.
    `contiguous`: inputs as given are. `plain`: inputs that are masks, whole numbers or no tensors, which are drawn anew one by one."""
    main = Variant("seeds", shapes.main, "given sizes" if shapes.main == shapes.given else "reduced sizes")
    small = Variant("", shapes.small, "small sizes" if shapes.small != shapes.main else main.shape)
    found = [replace(main, seed=seed) for seed in range(seeds)]
    found += [
        replace(small, group="distributions", distribution=name, seed=i)
        for i, name in enumerate(DISTRIBUTIONS)
        if name != "as given"
    ]
    found += [replace(small, group="distributions", distribution="normal", seed=i, changed=f"input {i}") for i in plain]
    found += [replace(main, group="distributions", distribution=name, seed=7) for name in ("normal", "large mean") if seeds > 1]
    found += [
        replace(small, group="parameters", parameters="random", seed=i, distribution=name)
        for i, name in enumerate(("normal", "as given", "large mean"))
    ]
    found += [replace(main, group="parameters", parameters="random", seed=11, distribution="normal")] * (seeds > 1)
    found += [replace(small, group="parameters", parameters="large shift", seed=12, distribution="normal")]
    found += [
        replace(small, group="shapes", shape=name, sizes=sizes, seed=i, distribution="normal", parameters="random")
        for i, (name, sizes) in enumerate(shapes.others.items())
    ]
    found += [
        replace(small, group="layouts", layout=name, seed=1, distribution="normal", parameters="random")  # one reference for all
        for name in LAYOUTS
        if name != AS_GIVEN and not (contiguous and name == "contiguous")
    ]
    found += [
        replace(small, group="non-finite", distribution=name, seed=i) for i, name in enumerate(NOT_FINITE)
    ]
    found += [
        replace(small, group="modes", training=False, parameters="random", seed=i, distribution=name)
        for i, name in enumerate(("normal", "as given"))
    ]
    return found


def fewer(variants: list[Variant], seconds: float, most: float) -> list[Variant]:
    """As many of each group as the time allows, the first ones first, one at least."""
    share = most / max(seconds * len(variants), 1e-9)
    if share >= 1:
        return variants
    groups = dict.fromkeys(variant.group for variant in variants)
    members = {group: [variant for variant in variants if variant.group == group] for group in groups}
    return [variant for group in groups for variant in members[group][: max(1, int(share * len(members[group])))]]
