"""A module that exists, and what it is called with, as a `Problem`: what the line asks of a model file is answered by copies of it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from ..errors import Refused, Unsupported, first_line
from .autocast import Autocast
from .problem import Problem, check_input
from .reads import is_installed
from .trees import Arguments, Flat, arguments_of, flatten


@dataclass(frozen=True)
class Given(Problem):
    """Copies of a module stand for `Model(*get_init_inputs())`, its inputs and others like them for `get_inputs()`.

    There is no source: emitted text stands behind the module's class. What it was built with is not known.
    """

    module: nn.Module = field(default_factory=nn.Module)  # nobody else's: it is only copied
    values: tuple[Any, ...] = ()
    requiring: frozenset[int] = frozenset()  # positions of inputs that require a gradient

    def model(self, seed: int = 0) -> nn.Module:
        return copied(self.module)

    @property
    def behind(self) -> type[nn.Module]:
        return type(self.module)

    @property
    def trained(self) -> frozenset[int]:
        """As they were given: a block in the middle of a network has inputs that require a gradient."""
        return self.requiring

    def arguments(self, seed: int = 0) -> list[Any] | None:
        return None

    def built(self, kind: type[nn.Module], seed: int = 0) -> nn.Module:
        return sharing(kind, copied(self.module))

    def inputs(self, seed: int = 0) -> list[Any]:
        """As given; under other seeds the numbers of each tensor are in another order. Indices and masks stay as they are."""
        generator = torch.Generator().manual_seed(seed)
        return [redrawn(value, generator) if seed else again(value) for value in self.values]


def given(module: nn.Module, values: Sequence[Any]) -> Given:
    """Of a module that nobody else has, called with these tensors and plain values; or a sentence that says why not."""
    name = type(module).__name__
    for position, value in enumerate(values):
        check_input(value, name, f"input {position}")
    if not any(isinstance(value, torch.Tensor) for value in values):
        raise Refused(f"{name}: there is no tensor among its inputs")
    requiring = frozenset(i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad)
    return Given(place_of(type(module)), "", ModuleType(name), module=module, values=tuple(map(again, values)), requiring=requiring)


def check_module(module: Any) -> None:
    """Refuse what is no module that can be derived from and called."""
    if not isinstance(module, nn.Module):
        raise Refused(f"a {type(module).__name__} was given, not a torch.nn.Module")
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise Refused(f"{name}: it is a TorchScript module, which has no Python to capture; give the module that it was made of")
    if type(module).__module__.startswith("torch._dynamo"):
        raise Refused(f"{name}: it was made by torch.compile; give the module that was compiled")
    if type(module).forward is nn.Module.forward:
        raise Refused(f"{name}: it has no forward()")
    try:
        derived(type(module), {})
    except Exception as error:  # the user's own code
        words = f"{name}: no class can be derived from its own, which planning has to: {type(error).__name__}: {first_line(error)}"
        raise Refused(words) from error
    if "forward" in vars(module):
        raise Refused(f"{name}: its forward was replaced on the module itself, which no class derived from its own would run")
    for path, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise Refused(f"{name}: {path} is lazy and has no shape yet; call the module once before")
        if tensor.is_meta:
            raise Refused(f"{name}: {path} is on the meta device and has no values")


def place_of(kind: type) -> Path:
    """The file that a class of the user's is in, which places in the graph are named by; the class's name for one of a library."""
    file = None if is_installed(kind.__module__) else getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).absolute() if file else Path(kind.__name__)


def copied(module: nn.Module) -> nn.Module:
    try:
        return deep_copy(module)
    except Exception as error:  # the user's own code
        words = f"{type(module).__name__}: it cannot be copied, which planning has to: {type(error).__name__}: {first_line(error)}"
        raise Refused(words) from error


def deep_copy(module: nn.Module) -> nn.Module:
    """What autograd computed (a weight that a hook makes of others, as pruning does) is copied as a value. A resource (a lock, an open
    file) is that of the module itself, and so is what only is what it is (a bare `object()`)."""
    held = [value for part in module.modules() for value in (*vars(part).values(), *part.buffers(recurse=False))]
    computed = {id(value): value.detach().clone() for value in held if isinstance(value, torch.Tensor) and not value.is_leaf}
    same = {id(value): value for value in held if is_resource(value) or type(value) is object}
    return copy.deepcopy(module, {**computed, **same})


def is_resource(value: Any) -> bool:
    """What is used by `with`, of a class that is not the user's: a forward leaves nothing in it that a later one reads."""
    module = type(value).__module__
    found = hasattr(type(value), "__exit__") and (is_installed(module) or module in sys.builtin_module_names)
    return found and not isinstance(value, (torch.Tensor, nn.Module))


def sharing(kind: type[nn.Module], module: nn.Module) -> nn.Module:
    """A module of another class with the same parameters, buffers, submodules, hooks and attributes."""
    new: nn.Module = kind.__new__(kind)
    vars(new).update(vars(module))
    return new


def again(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def redrawn(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return again(value)
    order = torch.randperm(value.numel(), generator=generator).to(value.device)
    return value.detach().reshape(-1)[order].reshape(value.shape)


# ---- calls that are not a list of tensors ----


def flat_class(kind: type[nn.Module], flat: Flat) -> type[nn.Module]:
    """The class with a forward that takes leaves and returns a tuple of them."""

    def call(self: Any, *leaves: Any) -> Any:
        found, _ = flatten(flat.call(kind.forward, self, leaves), kind.__name__, "what forward() returns")
        return tuple(found)

    names = ", ".join(flat.names)  # which the exporter and the emitted text ask for
    forward = eval(compile(f"lambda self, {names}: call(self, {names})", __file__, "eval"), {"__name__": __name__, "call": call})
    return derived(kind, {"forward": forward})


def has_own_call(module: nn.Module) -> bool:
    return type(module).__call__ is not nn.Module.__call__


def check_own_call(module: nn.Module, expected: Arguments, at: str, call: Callable[[], Any]) -> None:
    """A `__call__` of the module's own stays around what its forward becomes, which is planned for what the module is called with: refuse
    one that gives forward anything else."""
    given: list[Arguments] = []
    signature = signature_of(type(module))

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append(arguments_of(signature, args, kwargs))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    with contextlib.suppress(Exception):  # of the user's own code: where forward is captured it is said
        call()
    handle.remove()
    asked, found = in_words(expected), list(map(in_words, given))
    if other := [words for words in found if words != asked]:
        what = f"its class defines __call__, which calls forward with {other[0]} where the model is called with {asked}"
        raise Unsupported(f"{at}: {what}; let forward do it")


def in_words(given: Arguments) -> str:
    """The types and shapes of what a call is given, and its plain values."""

    def word(value: Any) -> str:
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)

    positional, named = pytree.tree_map(word, (given.positional, dict(given.named)))
    return f"({', '.join([*map(str, positional), *(f'{name}={value}' for name, value in named.items())])})"


@contextlib.contextmanager
def called_plainly(module: nn.Module) -> Iterator[None]:
    """A call is of its forward, and of hooks."""
    kind = type(module)
    module.__class__ = plainly_called(kind)
    try:
        yield
    finally:
        module.__class__ = kind


def plainly_called(kind: type[nn.Module]) -> type[nn.Module]:
    return kind if kind.__call__ is nn.Module.__call__ else derived(kind, {"__call__": nn.Module.__call__})


def autocast_class(kind: type[nn.Module], autocast: Autocast) -> type[nn.Module]:
    """The class with a forward that turns autocast on, so that its casts are seen where the forward is captured."""

    @functools.wraps(kind.forward)  # whose signature the exporter and the emitted text ask for
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast.around():
            return kind.forward(self, *args, **kwargs)

    return derived(kind, {"forward": forward})


def derived(kind: type[nn.Module], members: dict[str, Any], others: tuple[type, ...] = ()) -> type[nn.Module]:
    """A class that says of itself what `kind` does: its name, where it is defined, what it is for."""
    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    metaclass: Any = type(kind)
    made: type[nn.Module] = metaclass(kind.__name__, others or (kind,), {**same, **members})
    return made


def signature_of(kind: type[nn.Module]) -> inspect.Signature:
    """Of its forward, without `self`."""
    parameters = list(inspect.signature(kind.forward).parameters.values())
    return inspect.Signature(parameters[1:])
