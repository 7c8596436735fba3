"""Ways to call a model, each alike for the original, its float64 twin and the candidate: see `observe.Way`.

A way is plain data. Whatever it changes on a model it puts back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ..frontend.given import deep_copy
from .held import own
from .observe import (
    Observed,
    Once,
    buffers_put_back,
    called,
    cotangents,
    gradient_targets,
    named_alike,
    needing_gradients,
    seeded,
)
from .shrink import Sizes
from .variants import Variant

Undo = Callable[[], None]
OF_DATA = ("data", "written")
NAMES, NEW_NAMES = "names on self", "names set by a call"


# ---- several calls, and what they leave on self ----


@dataclass(frozen=True)
class Calls:
    """One call after another, each with values of its own; what is on `self` is noted after each."""

    sizes: tuple[Sizes, ...]
    gradients: bool = False  # of state as of results: a loss kept on self is one

    @property
    def values(self) -> str:
        return repr(self)

    def calls(self, variant: Variant) -> tuple[Variant, ...]:
        return tuple(replace(variant, seed=variant.seed + i, sizes=sizes) for i, sizes in enumerate(self.sizes))

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        tensors: dict[str, Tensor] = {}
        facts: dict[str, Any] = {}
        structures = []
        before = {place for place, _ in _state(model)}
        with buffers_put_back(model):
            for number, (call, values) in enumerate(zip(self.calls(variant), inputs, strict=True), 1):
                after = f" of call {number}" if len(inputs) > 1 else ""
                if self.gradients:
                    seen = self._with_gradients(model, values, call.seed)
                else:
                    seen = called(model, values, seed=call.seed)
                structures.append(seen.structure)
                tensors |= {name + after: value for name, value in seen.tensors.items()}
                facts |= {name + after: value for name, value in seen.facts.items()}
                for place, value in _state(model):
                    _note(place + after, value, tensors, facts, self.gradients)
        facts[NAMES] = [place_of(path, name) for path, module in model.named_modules() for name in own(module)]
        facts[NEW_NAMES] = [place for place in facts[NAMES] if place not in before]
        return Observed(tensors, "; ".join(structures), (), facts=facts)

    def _with_gradients(self, model: nn.Module, values: list[Any], seed: int) -> Observed:
        values = needing_gradients(values)
        with seeded(seed), torch.enable_grad():
            leaves, structure = pytree.tree_flatten(model(*values))
        results = {f"output {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        tensors = {name: t.detach().clone() for name, t in results.items() if not t.is_complex()}
        targets = gradient_targets(model, values)
        if targets and len(self.sizes) > 1:  # after one call others look at these
            tensors |= gradients_of([t for t in results.values() if t.grad_fn is not None], targets)
        for place, value in _state(model):
            kept = [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor) and t.grad_fn is not None]
            if kept and targets:
                tensors |= {f"{place}: {name}": gradient for name, gradient in gradients_of(kept, targets).items()}
        return Observed(tensors, named_alike(structure), ())


def gradients_of(values: list[Tensor], targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of Σ value · cotangent, by the targets, which may be asked again."""
    if not values:
        return {}
    found = torch.autograd.grad(values, list(targets.values()), cotangents(values), allow_unused=True, retain_graph=True)
    named = zip(targets.items(), found, strict=True)
    return {f"gradient of {name}": torch.zeros_like(t) if g is None else g for (name, t), g in named}


def _state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes of every module, named by where they are."""
    for path, module in model.named_modules():
        for name, value in own(module).items():
            yield place_of(path, name), value


def place_of(path: str, name: str) -> str:
    return f"attribute {path}.{name}" if path else f"attribute {name}"


def _note(place: str, value: Any, tensors: dict[str, Tensor], facts: dict[str, Any], gradients: bool) -> None:
    leaves, structure = pytree.tree_flatten(value)
    facts[place] = [named_alike(structure), *(_fact(leaf) for leaf in leaves)]
    for number, leaf in enumerate(leaves):
        name = f"{place}[{number}]" if len(leaves) > 1 else place
        if isinstance(leaf, Tensor) and not leaf.is_meta:
            tensors[name] = torch.view_as_real(leaf.detach()).clone() if leaf.is_complex() else leaf.detach().clone()
            if gradients:
                facts[f"{name} requires a gradient"] = leaf.requires_grad
        elif type(leaf) is float:
            tensors[name] = torch.tensor(leaf, dtype=torch.float32)


def _fact(leaf: Any) -> Any:
    """What must be equal of it; of a tensor and a float its kind alone, since its value may be rounded."""
    if isinstance(leaf, (bool, int, str, type(None))):
        return leaf
    return type(leaf).__name__


# ---- backward as training may call it ----


@dataclass(frozen=True)
class Backward(Once):
    """Gradients of a call after which another was made, twice; of each result alone, where every other parameter is frozen; or sums of
    gradients of equal inputs, since which of equal maxima has the gradient is a matter of taste.

    What they are multiplied by lies in memory in reverse order, as a transposed result of a later layer has it.
    """

    kind: str  # again, alone, ties

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        found = {"again": self._again, "alone": self._alone, "ties": self._ties}[self.kind]
        with buffers_put_back(model), torch.enable_grad():
            return Observed(found(model, inputs[0], variant), "", ())

    def _again(self, model: nn.Module, inputs: list[Any], variant: Variant) -> dict[str, Tensor]:
        first, second = needing_gradients(inputs), needing_gradients([x * 0.5 if _real(x) else x for x in inputs])
        results = [_smooth(model, values, variant.seed) for values in (first, second)]
        found: dict[str, Tensor] = {}
        for words, values, leaves in (
            ("the first of two calls", first, results[0]), ("the second of two calls", second, results[1]),
            ("the first of two calls, again", first, results[0]),
        ):  # fmt: skip
            found |= _reversed_gradients(leaves, gradient_targets(model, values), words)
        return found

    def _alone(self, model: nn.Module, inputs: list[Any], variant: Variant) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        required = {p: p.requires_grad for p in model.parameters()}
        for first in (0, 1) if required else (0,):
            values = needing_gradients(inputs)
            try:
                for parameter in list(required)[first::2]:
                    parameter.requires_grad_(False)
                leaves = _smooth(model, values, variant.seed)
                for number, leaf in enumerate(leaves):
                    words = f"result {number} alone, every other parameter frozen from number {first} on"
                    found |= _reversed_gradients([leaf], gradient_targets(model, values), words)
            finally:
                for parameter, value in required.items():
                    parameter.requires_grad_(value)
        return found


    def _ties(self, model: nn.Module, inputs: list[Any], variant: Variant) -> dict[str, Tensor]:
        values = needing_gradients(inputs)
        targets = {f"input {i}": x for i, x in enumerate(values) if _real(x)}
        found = _reversed_gradients(_smooth(model, values, variant.seed), targets, "summed over equal elements")
        return {name: _by_value(gradient, x) for (name, gradient), x in zip(found.items(), targets.values(), strict=False)}


def _by_value(gradient: Tensor, x: Tensor) -> Tensor:
    with _disable_current_modes():
        values, place = x.detach().unique(return_inverse=True)
        sums = gradient.new_zeros(values.numel(), dtype=torch.float64)
        return sums.index_add_(0, place.flatten(), gradient.detach().flatten().double()).to(gradient.dtype)


def _real(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _smooth(model: nn.Module, values: list[Any], seed: int) -> list[Tensor]:
    """The results that have gradients."""
    with seeded(seed):
        leaves = pytree.tree_leaves(model(*values))
    return [t for t in leaves if isinstance(t, Tensor) and t.requires_grad and t.is_floating_point()]


def _reversed_gradients(leaves: list[Tensor], targets: dict[str, Tensor], words: str) -> dict[str, Tensor]:
    if not leaves or not targets:
        return {}
    given = [c.permute(*reversed(range(c.dim()))).contiguous().permute(*reversed(range(c.dim()))) for c in cotangents(leaves)]
    found = torch.autograd.grad(leaves, list(targets.values()), given, allow_unused=True, retain_graph=True)
    pairs = zip(targets.items(), found, strict=True)
    return {f"gradient of {name} ({words})": (torch.zeros_like(t) if g is None else g).clone() for (name, t), g in pairs}


# ---- a change after construction ----


@dataclass(frozen=True)
class Change:
    """Something a user may do to a model that was built."""

    kind: str  # attribute, item, submodule, activation, weight, data (another tensor as a parameter's .data), written (into its .data)
    path: str  # of the module; "" is the model itself
    name: str  # of its attribute, submodule or parameter
    value: Any = None  # the attribute's new value; of a submodule, (attribute, value) of a copy that takes its place
    key: Any = None  # of an item

    def __str__(self) -> str:
        place = f"{self.path}.{self.name}".lstrip(".")
        if self.kind == "attribute":
            return f"{place} = {self.value!r}"
        if self.kind == "item":
            return f"{place}[{self.key!r}] = {self.value!r}"
        if self.kind == "submodule":
            return f"{place} = another one with {self.value[0]} = {self.value[1]!r}"
        if self.kind in OF_DATA:
            return f"{place}.data = another tensor" if self.kind == "data" else f"{place}.data.copy_(another tensor)"
        return f"{place} = {self.value}" if self.kind == "activation" else f"{place} = another parameter"

    def apply(self, model: nn.Module) -> Undo:
        """Make the change as a user would, by assignment; returns what takes it back."""
        module = model.get_submodule(self.path)
        held = getattr(module, self.name)
        if self.kind == "item":
            before = held[self.key]
            held[self.key] = self.value
            return lambda: held.__setitem__(self.key, before)
        if self.kind in OF_DATA:
            return self._with_data(held)
        setattr(module, self.name, self._new(held))
        return lambda: setattr(module, self.name, held)

    def _with_data(self, held: nn.Parameter) -> Undo:
        """Autograd counts no write through `.data`. A new tensor lies in memory in another order, as after `.to(memory_format=…)`."""
        before, new = held.data, self._new(held).data
        if self.kind == "data":
            order = tuple(reversed(range(new.dim())))
            held.data = new.permute(order).contiguous().permute(order)
            return lambda: setattr(held, "data", before)
        kept = before.clone()
        held.data.copy_(new)

        def undo() -> None:
            held.data.copy_(kept)

        return undo

    def _new(self, held: Any) -> Any:
        if self.kind == "attribute":
            return self.value
        if self.kind == "activation":
            return getattr(nn, self.value)().train(held.training)
        if self.kind == "submodule":
            other = deep_copy(held)
            setattr(other, *self.value)
            return other
        with _disable_current_modes():  # what rounds or widens is not to see this
            drawn = torch.randn(held.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float32)
            return nn.Parameter(held.detach() + 0.5 * drawn.to(held), requires_grad=held.requires_grad)


@dataclass(frozen=True)
class Changed(Once):
    """One call with a change, which is taken back."""

    change: Change

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        if self.change.kind in OF_DATA:  # nothing may be left of a call before it
            super().__call__(model, inputs, variant)
        undo = self.change.apply(model)
        try:
            return super().__call__(model, inputs, variant)
        finally:
            undo()


# ---- hooks ----


@dataclass(frozen=True)
class Hooked(Once):
    """One call with hooks on some modules, which note what they see; or which change it, where `changing` says so.

    Kinds: forward, pre (before forward), backward.
    """

    kind: str
    paths: tuple[str, ...]
    changing: bool = False

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        tensors: dict[str, Tensor] = {}
        fired = dict.fromkeys(self.paths, 0)
        with contextlib.ExitStack() as stack:
            for path in self.paths:
                handle = self._register(model.get_submodule(path), path, fired, tensors)
                stack.callback(handle.remove)
            seen = super().__call__(model, inputs, variant)
        facts = {f"{self.kind} hook of {path or 'the model'}: times it fired": count for path, count in fired.items()}
        return replace(seen, tensors={**seen.tensors, **tensors}, facts=facts)

    def _register(self, module: nn.Module, path: str, fired: dict[str, int], tensors: dict[str, Tensor]) -> Any:
        def see(values: Any) -> Any:
            fired[path] += 1
            for number, leaf in enumerate(pytree.tree_leaves(values)):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    name = f"tensor {number} in call {fired[path]} of the {self.kind} hook of {path or 'the model'}"
                    tensors[name] = leaf.detach().clone()
            return pytree.tree_map_only(Tensor, _moved, values) if self.changing else None

        if self.kind == "pre":
            return module.register_forward_pre_hook(lambda _, given: see(given))
        if self.kind == "forward":
            return module.register_forward_hook(lambda _, given, result: see(result))
        return module.register_full_backward_hook(lambda _, into, out: see(into))


def _moved(tensor: Tensor) -> Tensor:
    return tensor * 0.5 + 0.25 if tensor.is_floating_point() else tensor


# ---- gradients there or not ----


@dataclass(frozen=True)
class Graded(Once):
    """One call in which autograd records; which results require a gradient is noted."""

    frozen: bool  # no parameter requires one
    inputs: bool  # the inputs require one

    @property
    def values(self) -> str:
        return "graded"  # what requires a gradient is a fact, not a value

    def __str__(self) -> str:
        return f"parameters {'frozen' if self.frozen else 'as built'}, inputs {'with' if self.inputs else 'without'} gradients"

    def __call__(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        given = needing_gradients(inputs[0]) if self.inputs else inputs[0]
        required = {p: p.requires_grad for p in model.parameters()}
        try:
            for parameter in required:
                parameter.requires_grad_(required[parameter] and not self.frozen)
            with buffers_put_back(model), torch.enable_grad(), seeded(variant.seed):
                leaves, structure = pytree.tree_flatten(model(*given))
        finally:
            for parameter, value in required.items():
                parameter.requires_grad_(value)
        results = {f"output {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        facts = {f"whether {name} requires a gradient": t.requires_grad for name, t in results.items()}
        tensors = {name: torch.view_as_real(t.detach()) if t.is_complex() else t.detach() for name, t in results.items()}
        return Observed(tensors, named_alike(structure), (), facts=facts)
