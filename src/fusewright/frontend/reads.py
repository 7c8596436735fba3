"""What forward reads from Python and what it leaves there, seen while a model is captured.

A graph holds numbers that were attributes, branches that were taken because of them, functions that were globals. `watched` notes every
attribute of the model's modules that forward looks at, so that the emitted file can see whether they still are as they were, and what
it assigned to them.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import itertools
import linecache
import random
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.utils import _pytree as pytree

from ..ir.reads import Methods, Reads
from .following import _ABSENT, _HOOKS, _TABLES, _VALUES, _asked, _declared, _home, _is_fixed, _is_plain, _Words

# What PyTorch keeps on every module. A method's name is no such thing: `self.half = 3` is the model's own.
OF_MODULES = (frozenset(vars(nn.Module())) | {"_compiled_call_impl"}) - {"training"}
TRACERS = tuple(str(Path(torch.__file__).parent / folder) for folder in ("fx", "export", "_export", "_functorch", "_dynamo"))
HERE = str(Path(__file__).parents[1])
LAYOUT = frozenset({"stride", "is_contiguous"})  # how a tensor lies in memory
ASKED = LAYOUT | {"is_grad_enabled", "is_inference_mode_enabled"}
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
PACKAGES = {"site-packages", "dist-packages"}  # folders of packages in any environment: torch may lie in another one than this


@dataclass
class Watch:
    """Grows while forward runs once."""

    model: nn.Module
    words: _Words
    before: dict[str, dict[str, Any]]  # attributes of each module when forward began
    seen: dict[str, dict[str, Any]] = field(default_factory=dict)  # values that were read, by path and name
    methods: dict[type, dict[str, Any]] = field(default_factory=dict)
    inherited: dict[type, dict[str, Any]] = field(default_factory=dict)  # methods that forward reaches by `super()`, by their class
    assigned: dict[str, Any] = field(default_factory=dict)  # by path of the attribute
    stored: set[tuple[str, str]] = field(default_factory=set)  # path and name of what was assigned so far, the same value too
    rebound: frozenset[str] = frozenset()  # buffers that forward puts another tensor in the place of
    globals: dict[tuple[str, str], Any] = field(default_factory=dict)  # that the user's functions read
    environment: dict[str, str | None] = field(default_factory=dict)  # variables of it that the user's functions read
    running: bool = False

    def read(self, path: str, module: nn.Module, name: str, value: Any) -> None:
        held = self.seen.setdefault(path, {})
        if name.startswith("__") or (name in OF_MODULES and name not in _TABLES) or name in held or (path, name) in self.stored:
            return
        declared = _declared(type(module), name)
        if name != "forward" and name not in vars(module) and declared is not None and declared is vars(nn.Module).get(name):
            return  # what every module does
        if declared is not None and name not in vars(module) and not isinstance(declared, _VALUES):  # a method, a property, a constant
            owner = next(cls for cls in type(module).__mro__ if name in vars(cls))
            if not is_installed(owner.__module__):
                self.methods.setdefault(type(module), {})[name] = declared
            if isinstance(declared, (FunctionType, classmethod, staticmethod, property)):
                return  # what a property reads is read
        if not isinstance(value, nn.Module):  # that is a module on the way itself
            held[name] = value

    def reads(self, state: frozenset[str], leaves: frozenset[str], placed: frozenset[tuple[str, str]]) -> Reads:
        """Everything in words, but for what forward assigns, and tensors that are leaves of the graph or read where they are `placed`:
        those are looked up in each call."""
        modules = dict(self.model.named_modules(remove_duplicate=False))
        touched = dict(self.seen)
        for path in list(touched):
            while path:
                path = path.rpartition(".")[0]
                touched.setdefault(path, {})
        by_id = {id(module): path for path, module in self.model.named_modules()}
        every = {path: touched[by_id[id(module)]] for path, module in modules.items() if by_id[id(module)] in touched}
        attributes = {path: self.described(path, modules[path], values, leaves) for path, values in every.items()}
        for path in every:
            for name in _HOOKS if path else ():
                if found := vars(modules[path])[name]:
                    attributes[path][name] = self.words.of(list(found.values()))
            for name in hiding(modules[path]) - attributes[path].keys():
                attributes[path][name] = self.words.of(vars(modules[path])[name])
        own = type(self.model).__module__
        spoken = {place: self.words.of(value) for place, value in self.globals.items() if place not in placed}
        methods = [
            Methods(self.words.name(cls), cls.__qualname__, tuple(names), inherited)
            for by_class, inherited in ((self.methods, False), (self.inherited, True))
            for cls, names in by_class.items()
            if cls.__module__ == own and found_under(cls)
        ]
        classes = {path: self.words.name(type_before_parametrizations(modules[path])) for path in every}
        written = frozenset(name for (home, name), value in self.globals.items() if not home and is_written(name, value, own))
        found = Reads(classes, attributes, tuple(methods), spoken, written, tied(self.model), state, self.environment)
        return replace(found, features=frozenset(self.features(found, modules)))

    def features(self, found: Reads, modules: Mapping[str, nn.Module]) -> Iterator[str]:
        yield from self.words.kinds
        of_classes = {path: names for path, names in self.globals.items() if path in found.globals and "." in path[1]}
        read = [(modules[path], name) for path, names in found.attributes.items() for name in names]
        for owner, name in read:
            value, there = _asked(owner, name), _home(owner, name)
            if name == "_modules":
                yield from ("tables", "words")
            elif not there or name in (*_TABLES, *_HOOKS) or not _is_fixed(value):
                yield from ("mutable", "words")
            elif not _is_plain(value):
                yield "words"
            if name in _HOOKS:
                yield "hooks"
        if of_classes or not all(_is_fixed(self.globals[place]) for place in found.globals):
            yield "mutable"
        if any(getattr(cls, name, None) is not getattr(cls, name, None) for cls, names in self.methods.items() for name in names):
            yield "classmethods"
        yield from ["words"] if found.globals else []
        yield from ["inherited"] if any(methods.inherited for methods in found.methods) else []
        yield from [name for name in ("globals", "tied", "state") if getattr(found, name)]

    def described(self, path: str, module: nn.Module, values: Mapping[str, Any], leaves: frozenset[str]) -> dict[str, str]:
        carried = {name.rpartition(".")[2] for name in self.assigned if name.rpartition(".")[0] == path}
        found = {}
        for name, seen in values.items():
            place = f"{path}.{name}" if path else name
            registered = name in module._parameters or name in module._buffers
            if name not in carried and not (isinstance(seen, Tensor) and (registered or place in leaves)):
                found[name] = self.words.of(_asked(module, name))  # not as the tracer has it
        return found

    def global_tensors(self) -> dict[tuple[str, str], Tensor]:
        return {place: value for place, value in self.globals.items() if isinstance(value, Tensor)}


def hiding(module: nn.Module) -> set[str]:
    """Attributes of its own that go by the name of a method. Put there later, one stands for a method that was replaced."""
    return {name for name in vars(module) if name not in OF_MODULES and callable(getattr(type(module), name, None))}


def is_written(name: str, function: Any, own: str) -> bool:
    """A function is what one plain `def` at the top of the module called `own` says, and nothing else there has its name. It is the same
    then wherever the file is run; the bytecode, by which functions are compared, is that of one version of Python."""
    if not isinstance(function, FunctionType) or function.__module__ != own or function.__closure__ or vars(function):
        return False
    bound = bindings(function.__code__.co_filename).get(name, [])
    definition = bound[0] if len(bound) == 1 else None
    if not isinstance(definition, ast.FunctionDef):
        return False
    defaults = [*definition.args.defaults, *filter(None, definition.args.kw_defaults)]
    plain = not definition.decorator_list and definition.col_offset == 0 and all(isinstance(d, ast.Constant) for d in defaults)
    return plain and definition.lineno == function.__code__.co_firstlineno


@functools.lru_cache(maxsize=8)
def bindings(file: str) -> dict[str, list[ast.AST]]:
    """What in a file gives each name a value, wherever that is; nothing where it cannot be read."""
    found: dict[str, list[ast.AST]] = {}
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        names = [node.id] if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else []
        names += [node.name] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else []
        names += [node.asname or node.name] if isinstance(node, ast.alias) else []
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def tied(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Paths that lead to the same module, parameter or buffer."""
    found: dict[int, list[str]] = {}
    for named in (model.named_modules, model.named_parameters, model.named_buffers):
        for path, part in named(remove_duplicate=False):
            found.setdefault(id(part), []).append(path)
    return tuple(tuple(paths) for paths in found.values() if len(paths) > 1)


@contextlib.contextmanager
def watched(model: nn.Module) -> Iterator[Watch]:
    """Forward of the model, called in here, is watched. Where it leaves something on modules, it returns that too, as the second of
    a pair, and the modules are as they were."""
    modules = dict(model.named_modules())
    paths = {id(vars(module)): path for path, module in modules.items()}
    watch = Watch(model, _Words(model, type(model).__module__), {})
    plain, forward, set_attribute = object.__getattribute__, model.forward, nn.Module.__setattr__
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
        if (path := paths.get(id(own))) is not None:
            watch.read(path, modules[path], name, value)

    def put(self: Any, name: str, value: Any) -> None:
        own = plain(self, "__dict__")
        if watch.running and (path := paths.get(id(own))) is not None and not any(name in own.get(table, ()) for table in _TABLES):
            watch.stored.add((path, name))
        set_attribute(self, name, value)

    @functools.wraps(forward)
    def seen(*arguments: Any, **named: Any) -> Any:
        watch.before = {path: dict(vars(module)) for path, module in model.named_modules()}
        inner = {path: contents(vars(module)) for path, module in model.named_modules()}
        buffers = dict(model.named_buffers())
        watch.seen, watch.assigned, watch.stored = {"": {}}, {}, set()
        watch.methods = {} if is_installed(type(model).__module__) else {type(model): {"forward": type(model).forward}}
        watch.running = True
        try:
            result = forward(*arguments, **named)
        finally:
            watch.running = False
        refuse_changed_containers(model, inner)
        watch.rebound = frozenset(name for name, b in model.named_buffers() if name in buffers and b is not buffers[name])
        for path, module in model.named_modules():
            same = {name: vars(module)[name] for p, name in watch.stored if p == path and name in vars(module)}
            watch.assigned |= {f"{path}.{name}" if path else name: value for name, value in same.items()}
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
        with mock.patch.object(nn.Module, "__getattribute__", get), mock.patch.object(nn.Module, "__setattr__", put):
            yield watch
    finally:
        vars(model).pop("forward", None)
        for name, held in hooks.items():
            vars(model)[name].update(held)


def looked_up(attributes: Mapping[str, Any], name: str) -> Any:
    """What a module has under a name among its parameters, buffers and modules."""
    return next((attributes[table][name] for table in _TABLES if name in attributes.get(table, ())), _ABSENT)


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
    "pow rpow rsub neg pos abs invert and rand or ror xor rxor lshift rlshift rshift rrshift divmod rdivmod round trunc floor ceil"
).split():
    setattr(Counter, f"__{_name}__", _noted(f"__{_name}__"))


class KeepsState(Exception):
    """Forward keeps something from call to call that no graph carries."""

    def __init__(self, attribute: str, what: str):
        place = attribute if attribute.startswith("the global") else f"self.{attribute}"
        super().__init__(f"forward keeps state in {place}, {what}")
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
    return known or (file is not None and of_a_package(str(Path(file))))


def of_a_package(file: str) -> bool:
    """It lies where packages are installed: of this environment, of the one below it, or of the user's own."""
    return file.startswith(INSTALLED) or not PACKAGES.isdisjoint(Path(file).parts)


@functools.cache
def of_the_user(file: str) -> bool:
    """Neither ours, nor Python's, nor of an installed package."""
    return not file.startswith((HERE, "<frozen")) and not of_a_package(file)


def executed(run: Callable[[], Any], asked: set[str], named: set[str]) -> list[tuple[CodeType, dict[str, Any]]]:
    """The user's functions that run meanwhile, of whatever kind: their code, and their globals. `asked` grows by what they ask PyTorch
    that stands in no graph (`ASKED`), `named` by all names in them."""
    found: dict[CodeType, dict[str, Any]] = {}
    theirs: dict[str, bool] = {}
    known = set(sys.modules)  # what is imported meanwhile is not read, it is run

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        asks = event == "c_call" and getattr(argument, "__name__", "") in ASKED
        if asks or (event == "call" and code not in found):
            file = code.co_filename
            if file not in theirs:
                theirs[file] = of_the_user(file)
            if asks:
                asked.update([argument.__name__] if theirs[file] else [])
                return
            name = str(frame.f_globals.get("__name__"))
            if theirs[file] and name in known and code.co_name != "<module>" and not is_installed(name):
                found[code] = frame.f_globals
                named.update(code.co_names)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(found.items())


def inherited(model: nn.Module, codes: Iterable[CodeType]) -> dict[type, dict[str, Any]]:
    """Of the user's classes, methods that ran although modules have others under their names: `super()` leads to them, and no look at a
    module tells."""
    ran, found = set(codes), dict[type, dict[str, Any]]()
    for kind in dict.fromkeys(map(type, model.modules())):
        for base in kind.__mro__[1:] if not is_installed(kind.__module__) else ():
            own = {} if is_installed(base.__module__) else vars(base)
            for name, method in own.items():
                if isinstance(method, FunctionType) and method.__code__ in ran and _declared(kind, name) is not method:
                    found.setdefault(base, {})[name] = method
    return found


def globals_of(codes: Iterable[tuple[CodeType, dict[str, Any]]], own: str) -> dict[tuple[str, str], Any]:
    """Globals that these functions read: by the module they are in and name."""
    found: dict[tuple[str, str], Any] = {}
    for code, space in codes:
        for home, name, value in names_read(code, space):
            of_a_library = hasattr(value, "__qualname__") and is_installed(getattr(value, "__module__", "") or "")
            if not isinstance(value, (ModuleType, type)) and not of_a_library:
                found["" if home == own else home, name] = value
    return found


def effects(model: nn.Module, globals_: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """All that a call could leave behind, in words: attributes of modules and of their classes, and globals."""
    words = _Words(model, type(model).__module__)
    found = {f"the global {name}": said(value, words) for (_, name), value in globals_.items()} | drawn()
    for path, module in model.named_modules():
        if not is_installed(type(module).__module__):
            held = {**words.parts(module), **vars(module)}
            place = f"self.{path}." if path else "self."
            found |= {place + name: said(value, words) for name, value in held.items() if name not in OF_MODULES}
    return found


def drawn() -> dict[str, str]:
    """Where the generators of Python and of numpy have come to: what forward draws of them would stand in the graph as a number."""
    numpy = sys.modules.get("numpy")
    generators = {"the global random": random, "the global numpy.random": numpy.random if numpy else None}
    return {name: said(generator, None) for name, generator in generators.items() if generator is not None}


def said(value: Any, words: _Words | None) -> str:
    """A value in words; of a generator of random numbers where it has come to."""
    if value is random or isinstance(value, random.Random):
        return repr(value.getstate())
    if type(value).__module__.startswith("numpy.random") or value is getattr(sys.modules.get("numpy"), "random", _ABSENT):
        return repr(value.get_state() if hasattr(value, "get_state") else getattr(getattr(value, "bit_generator", None), "state", value))
    return words.of(value) if words is not None else repr(value)


def names_read(code: CodeType, space: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(module, name, value) of each global that the code loads, through modules and classes of the user's (`config.SCALE`) as well."""
    holder: Any = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in space:
            name, value = str(step.argval), space[step.argval]
            holder = value if isinstance(value, (ModuleType, type)) else None
            yield str(space.get("__name__")), name, value
        elif holder is not None and step.opname in ("LOAD_ATTR", "LOAD_METHOD") and hasattr(holder, str(step.argval)):
            value, home = getattr(holder, str(step.argval)), holder
            holder = value if isinstance(value, (ModuleType, type)) else None
            if isinstance(home, type):
                if not is_installed(home.__module__) and found_under(home) and "." not in home.__qualname__:
                    yield home.__module__, f"{home.__qualname__}.{step.argval}", value
            elif isinstance(home, ModuleType) and sys.modules.get(home.__name__) is home and not is_installed(home.__name__):
                yield home.__name__, str(step.argval), value
        elif step.opname not in ("PUSH_NULL", "CACHE", "PRECALL"):
            holder = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_read(inner, space)
