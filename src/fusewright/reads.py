"""What forward reads from Python and what it leaves there, seen while a model is captured.

A graph holds numbers that were attributes, branches that were taken because of them, functions that were globals. `watched` notes every
attribute of the model's modules that forward looks at, so that the emitted file can see whether they still are as they were, and what
it assigned to them.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .following import _ABSENT, _HOOKS, _TABLES, _VALUES, _asked, _Words

OF_MODULES = (frozenset(vars(nn.Module())) | frozenset(vars(nn.Module))) - {"training", "forward"}  # what every module has
TRACERS = tuple(str(Path(torch.__file__).parent / folder) for folder in ("fx", "export", "_export", "_functorch", "_dynamo"))
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Methods:
    """What forward calls of a class: where the class is found, and the names."""

    words: str
    module: str  # "" for the model's own
    qualname: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Reads:
    """What a graph was made of, in words: `following._Words` says them again of a model."""

    classes: Mapping[str, str] = field(default_factory=dict)  # of each module on the way, by path
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by path, then by name
    methods: tuple[Methods, ...] = ()  # of classes of the user's
    globals: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by module ("" for the model's own) and name
    state: frozenset[str] = frozenset()  # attributes that forward assigns


@dataclass
class Watch:
    """Grows while forward runs once."""

    model: nn.Module
    words: _Words
    before: dict[str, dict[str, Any]]  # attributes of each module when forward began
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)  # values that were read, by path and name
    methods: dict[type, dict[str, Any]] = field(default_factory=dict)
    assigned: dict[str, Any] = field(default_factory=dict)  # by path of the attribute
    running: bool = False

    def read(self, path: str, module: nn.Module, name: str, value: Any) -> None:
        held = self.seen.setdefault(path, {})
        if name.startswith("__") or (name in OF_MODULES and name not in _TABLES) or name in held:
            return
        mine = vars(module)
        if name in mine and name not in OF_MODULES and self.before[path].get(name, _ABSENT) is not mine[name]:
            return  # forward has just assigned it
        if isinstance(value, (MethodType, FunctionType)) and name not in mine:
            owner = next((cls for cls in type(module).__mro__ if name in vars(cls)), nn.Module)
            if not is_installed(owner.__module__):
                self.methods.setdefault(type(module), {})[name] = getattr(value, "__func__", value)
            return
        if isinstance(value, nn.Module) or isinstance(getattr(type(module), name, None), property):
            return  # it is a module on the way itself; what a property reads is read
        held[name] = value

    def reads(self, state: frozenset[str]) -> Reads:
        """Everything in words. What forward assigns is not asked for, unless it is read first."""
        modules = dict(self.model.named_modules(remove_duplicate=False))
        touched = dict(self.seen)
        for path in list(touched):
            while path:
                path = path.rpartition(".")[0]
                touched.setdefault(path, {})
        by_id = {id(module): path for path, module in self.model.named_modules()}
        every = {path: touched[by_id[id(module)]] for path, module in modules.items() if by_id[id(module)] in touched}
        attributes = {path: self.described(path, values) for path, values in every.items()}
        for path in every:
            for name in _HOOKS if path else ():
                if found := vars(modules[path])[name]:
                    attributes[path][name] = self.words.of(list(found.values()))
        own = type(self.model).__module__
        spoken = {key: self.words.of(value) for key, value in self.globals.items() if not isinstance(value, Tensor)}
        methods = [
            Methods(self.words.name(cls), "" if cls.__module__ == own else cls.__module__, cls.__qualname__, tuple(names))
            for cls, names in self.methods.items()
            if found_under(cls)
        ]
        classes = {path: self.words.kind(modules[path]) for path in every}
        return Reads(classes, attributes, tuple(methods), spoken, state)

    @functools.cached_property
    def globals(self) -> dict[tuple[str, str], Any]:
        """What the user's functions read of globals."""
        functions = [function for found in self.methods.values() for function in found.values()]
        return globals_of(functions, type(self.model).__module__)

    def global_tensors(self) -> dict[tuple[str, str], Tensor]:
        return {place: value for place, value in self.globals.items() if isinstance(value, Tensor)}

    def described(self, path: str, values: Mapping[str, Any]) -> dict[str, str]:
        carried = {name.rpartition(".")[2] for name in self.assigned if name.rpartition(".")[0] == path}
        found = {}
        for name, value in values.items():
            if not isinstance(value, Tensor) and name not in carried:  # tensors are read anew in each call
                found[name] = self.words.of(_asked(self.model.get_submodule(path), name))  # not as the tracer has it
        return found


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Forward of the model, called in here, is watched. Where it leaves something on modules, it returns that too, as the second of
    a pair, and the modules are as they were."""
    modules = dict(model.named_modules())
    paths = {id(vars(module)): path for path, module in modules.items()}
    watch = Watch(model, _Words(model, type(model).__module__), {})
    plain, forward = object.__getattribute__, model.forward
    hooks = {name: dict(vars(model)[name]) for name in _HOOKS}  # they run around the new model as well

    def get(self: Any, name: str) -> Any:
        try:
            value = plain(self, name)
        except AttributeError:
            if watch.running:
                note(self, name, looked_up(plain(self, "__dict__"), name))
            raise  # Python goes on to __getattr__, which the tracer has replaced
        if watch.running:
            note(self, name, value)
        return value

    def note(self: Any, name: str, value: Any) -> None:
        if sys._getframe(2).f_code.co_filename.startswith(TRACERS):
            return
        own = plain(self, "__dict__")  # the tracer's stand-ins for modules share it with them
        if (path := paths.get(id(own))) is not None and not (value is _ABSENT and computes_attributes(type(self))):
            watch.read(path, modules[path], name, value)

    @functools.wraps(forward)
    def seen(*arguments: Any, **named: Any) -> Any:
        watch.before = {path: dict(vars(module)) for path, module in model.named_modules()}
        inner = {path: contents(vars(module)) for path, module in model.named_modules()}
        watch.seen, watch.assigned = {"": {}}, {}
        watch.methods = {} if is_installed(type(model).__module__) else {type(model): {"forward": type(model).forward}}
        watch.running = True
        try:
            result = forward(*arguments, **named)
        finally:
            watch.running = False
        refuse_changed_containers(model, inner)
        for path, module in model.named_modules():
            watch.assigned |= taken_back(module, watch.before[path], path)
        for path, value in list(watch.assigned.items()):
            holder, _, name = path.rpartition(".")
            odd = [leaf for leaf in pytree.tree_leaves(value) if not isinstance(leaf, (Tensor, *SYMBOLIC, *_VALUES))]
            if is_installed(type(modules[holder]).__module__) and (odd or name.startswith("_")):
                del watch.assigned[path]  # what a module of PyTorch's keeps for itself
            elif odd:
                raise KeepsState(path, f"a {type(odd[0]).__name__}")
        plainly = {name: int.__add__(value, 0) if isinstance(value, Counter) else value for name, value in watch.assigned.items()}
        return (result, plainly) if plainly else result

    for name in _HOOKS:
        vars(model)[name].clear()
    vars(model)["forward"] = seen
    try:
        with mock.patch.object(nn.Module, "__getattribute__", get):
            yield watch
    finally:
        vars(model).pop("forward", None)
        for name, held in hooks.items():
            vars(model)[name].update(held)


def looked_up(attributes: Mapping[str, Any], name: str) -> Any:
    """What a module has under a name among its parameters, buffers and modules."""
    return next((attributes[table][name] for table in _TABLES if name in attributes.get(table, ())), _ABSENT)


def computes_attributes(kind: type) -> bool:
    """The class finds attributes in a way of its own."""
    return any("__getattr__" in vars(cls) for cls in kind.__mro__ if cls is not nn.Module and not is_installed(cls.__module__))


def taken_back(module: nn.Module, before: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Attributes that are others than before, by path; the module has its old ones again."""
    now = vars(module)
    names = [name for name in now if name not in OF_MODULES and now[name] is not before.get(name, _ABSENT)]
    found = {f"{path}.{name}" if path else name: now[name] for name in names}
    for name in names:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    return found


def contents(attributes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is inside each attribute that is a container, for a look whether forward changed it."""
    held = {name: value for name, value in attributes.items() if name not in OF_MODULES and isinstance(value, (list, dict, set))}
    return {name: list(flat(value)) for name, value in held.items()}


def flat(value: Any) -> Iterator[Any]:
    """The items of nested containers, keys of dictionaries too."""
    if isinstance(value, (list, tuple, set, dict)):
        for item in itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            yield from flat(item)
    else:
        yield value


def refuse_changed_containers(model: nn.Module, before: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """PyTorch's own modules keep lists for themselves."""
    for path, module in model.named_modules():
        for name, old in before[path].items() if not is_installed(type(module).__module__) else ():
            now = list(flat(vars(module).get(name)))
            if len(now) != len(old) or any(a is not b for a, b in zip(now, old, strict=True)):
                raise KeepsState(f"{path}.{name}" if path else name, "a container that it changes")


class Counter(int):
    """A number on the model that forward may only add to: any other use of it in Python is noted in `used`."""

    used: list[str]

    @staticmethod
    def at(value: int, used: list[str]) -> Counter:
        found = Counter(value)
        found.used = used
        return found

    def __add__(self, other: int) -> Counter:
        return Counter.at(int.__add__(self, other), self.used)

    __radd__ = __add__

    def __sub__(self, other: int) -> Counter:
        return Counter.at(int.__sub__(self, other), self.used)


def _noted(name: str) -> Any:
    def use(self: Counter, *others: Any) -> Any:
        self.used.append(name)
        return getattr(int, name)(self, *others)

    return use


for _name in (
    "bool eq ne lt le gt ge hash int float index str repr format mul rmul mod rmod floordiv rfloordiv truediv rtruediv "
    "pow rpow rsub neg and or xor lshift rshift divmod"
).split():
    setattr(Counter, f"__{_name}__", _noted(f"__{_name}__"))


class KeepsState(Exception):
    """Forward keeps something from call to call that no graph carries."""

    def __init__(self, attribute: str, what: str):
        super().__init__(f"forward keeps state in self.{attribute}, {what}")
        self.attribute = attribute


def found_under(cls: type) -> bool:
    """Its module has it under its name."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


# ---- globals ----


def is_installed(module: str) -> bool:
    """PyTorch, the standard library and other installed packages: what is in them is taken to stay."""
    file = getattr(sys.modules.get(module), "__file__", None)
    known = module.partition(".")[0] in ("builtins", "torch")  # torch.ops and the like are no files
    return known or (file is not None and str(Path(file)).startswith(INSTALLED))


def globals_of(functions: list[Any], own: str) -> dict[tuple[str, str], Any]:
    """Globals that these functions, and the user's functions they call, read: by the module they are in and name."""
    found: dict[tuple[str, str], Any] = {}
    done: set[int] = set()
    waiting = [unwrapped(function) for function in functions]
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in done or is_installed(function.__module__):
            continue
        done.add(id(function))
        for home, name, value in names_read(function.__code__, function.__globals__):
            of_a_library = hasattr(value, "__qualname__") and is_installed(getattr(value, "__module__", "") or "")
            if isinstance(value, (ModuleType, type)) or of_a_library:
                continue  # of a class, the methods are not followed
            found["" if home == own else home, name] = value
            waiting.append(unwrapped(value))
    return found


def unwrapped(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def names_read(code: CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(module, name, value) of each global that the code loads, through modules of the user's (`config.SCALE`) as well."""
    holder: ModuleType | None = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in space:
            value = space[step.argval]
            holder = value if isinstance(value, ModuleType) else None
            yield str(space.get("__name__")), str(step.argval), value
        elif holder is not None and step.opname in ("LOAD_ATTR", "LOAD_METHOD") and hasattr(holder, str(step.argval)):
            value, home = getattr(holder, str(step.argval)), holder
            holder = value if isinstance(value, ModuleType) else None
            if sys.modules.get(home.__name__) is home and not is_installed(home.__name__):
                yield home.__name__, str(step.argval), value
        elif step.opname not in ("PUSH_NULL", "CACHE", "PRECALL"):
            holder = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_read(inner, space)
