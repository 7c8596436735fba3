"""Whether a model still is the one that a plan was made for: its classes, attributes, hooks and globals.

What stands between the two lines below is written into every emitted file as it is, and runs here too, when a plan is made: the words
for a value must be the same in both. It holds none of the words that public harnesses reject.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated"
# ruff: noqa: B905  (emitted files run under Python 3.8, which has no strict zip)

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import operator
import sys
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import torch

Model: Any = None  # of the emitted file, as are these tables
_FOLLOWED: Any = ()
_METHODS: Any = {}
_GLOBALS: Any = ()
_STATE: Any = ()
_TENSORS: Any = ()
_TIED: Any = ()
_SPACE: Any = {}
_DEFAULT_DTYPE: Any = torch.float32
LINE = "# " + "-" * 40 + "\n"


def runtime_text() -> str:
    """The part of this file that goes into every emitted one."""
    return Path(__file__).read_text(encoding="utf-8").split(LINE)[1].strip("\n")


# ----------------------------------------
_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_TABLES = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [vars(torch.nn.modules.module).get(f"_global{name}", {}) for name in _HOOKS]
_hooks_of = operator.itemgetter(*_HOOKS)
_ABSENT = type("absent", (), {})  # stands for an attribute that is not there
_tracing = torch._C._get_tracing_state
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_DEPTH = 12  # of objects inside objects
_TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter}


class _Words:
    """Values as text, the same for equal values wherever they were made. What is registered in the model is followed by itself.
    Classes and functions of the module called `own` go by their names alone. `quick` says only whether a tensor has changed."""

    def __init__(self, model, own, quick=False):
        self.own, self.quick, self.alive, self.said = own, quick, [], {}
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
        self.known = {id(part): f"registered {path}" for path, part in parts}

    def name(self, thing):
        home = getattr(thing, "__module__", None) or ""
        return thing.__qualname__ if home in (self.own, "builtins") else f"{home}.{thing.__qualname__}"

    def kind(self, module):
        """Its class; a weight that is parametrized is asked of the module all the same."""
        return self.name(torch.nn.utils.parametrize.type_before_parametrizations(module))

    def of(self, value, inside=()):
        kind = type(value)
        if kind in _VALUES:
            return repr(value)
        if value is _ABSENT or id(value) in self.known:
            return self.known.get(id(value), "absent")
        if id(value) in inside or len(inside) > _DEPTH:
            return "..."
        if not inside:
            self.said = {}
        if id(value) not in self.said:  # an object may be reached in many ways; it is kept, so that its number stays its own
            self.said[id(value)] = value, self.told(value, kind, (*inside, id(value)))
        return self.said[id(value)][1]

    def told(self, value, kind, inside):
        if isinstance(value, torch.Tensor):
            return f"tensor {value.dtype} {tuple(value.shape)} {self.contents(value)}"
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            items = [self.of(item, inside) for item in value]
            text = ", ".join(sorted(items) if isinstance(value, (set, frozenset)) else items)
            if kind in (list, tuple):
                return f"[{text}]" if kind is list else f"({text})"
            return f"{self.name(kind)}({text}; {self.held(value, inside)})"
        if isinstance(value, dict):
            text = ", ".join([f"{self.of(k, inside)}: {self.of(v, inside)}" for k, v in value.items()])
            return f"{{{text}}}" if kind is dict else f"{self.name(kind)}({text}; {self.held(value, inside)})"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, weakref.ReferenceType):  # recurrent layers have such of their weights
            return f"weak {self.of(value(), inside)}"
        if isinstance(value, types.MethodType):
            return f"{self.of(value.__func__, inside)} of {self.of(value.__self__, inside)}"
        if isinstance(value, types.CodeType):
            first, *rest = value.co_consts or (None,)
            doc = isinstance(first, str) and value.co_name != "<lambda>"  # which says nothing
            return f"{value.co_code!r} {value.co_names} {self.of([None if doc else first, *rest], inside)}"
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = [value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells]
            return f"{self.name(value)} {self.digest(self.of(held, inside).encode())}"
        if hasattr(value, "__qualname__"):
            return self.name(value)
        if isinstance(value, functools.partial):
            return f"partial({self.of([value.func, value.args, value.keywords], inside)})"
        if hasattr(value, "tobytes"):  # an array or a number of numpy
            return f"{self.name(kind)} {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')} {self.digest(value.tobytes())}"
        if kind in (range, slice):
            return repr(value)
        held = self.held(value, inside)
        return f"{self.name(kind)}({held})" if held else f"{self.name(kind)} at {id(value)}"  # of which nothing is known

    def held(self, value, inside):
        return ", ".join([f"{k}={self.of(v, inside)}" for k, v in sorted(self.parts(value).items())])

    def parts(self, value):
        """What an object holds, and the plain values that its classes do."""
        classes = [base for base in type(value).__mro__ if base.__module__ != "builtins"]
        found = {k: v for base in reversed(classes) for k, v in vars(base).items() if type(v) in _VALUES and k[:2] != "__"}
        slots = [slot for base in classes for slot in vars(base).get("__slots__", ()) if hasattr(value, slot)]
        return {**found, **{slot: getattr(value, slot) for slot in slots if slot[:2] != "__"}, **getattr(value, "__dict__", {})}

    def contents(self, tensor):
        """Of a tensor that is not registered: its values stand in the plan. On a GPU a quick look takes its version for them."""
        if type(tensor) not in _TENSOR_TYPES:
            return "unknown"
        if self.quick and tensor.is_cuda and not tensor.is_inference():
            self.alive.append(tensor)  # another one cannot have its number
            return f"{id(tensor)} {tensor._version}"
        return self.digest(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())

    def digest(self, data):
        return hashlib.sha256(data).hexdigest()[:8]


def _asked(owner, name):
    """What a plan followed under this name: an attribute, the names in a table of the module, its hooks, a global."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
    if isinstance(owner, type):
        return getattr(owner, name, _ABSENT)
    if name in _TABLES:
        return list(vars(owner)[name])
    return list(vars(owner)[name].values()) if name in _HOOKS else getattr(owner, name, _ABSENT)


def _module_at(model, path):
    """None where there is none."""
    for name in filter(None, path.split(".")):
        model = model._modules.get(name) if model is not None else None
    return model


class _Look:
    """What a look at a model found: `why` it is not the one that was planned for, if it is not, and what must stay as it is for
    that to stay true. `holds` goes over objects by identity; where one was replaced or changed, a new look is taken."""

    def __init__(self, model):
        self.why, self.expected, self.own = "", False, vars(model)
        self.words, self.quick = _Words(model, Model.__module__), _Words(model, Model.__module__, quick=True)
        self.homes, self.names, self.values, self.asked, self.tied, methods = [], [], [], [], [], []
        self.modules, self.counted = [model], set()
        for kind, attributes, paths in _FOLLOWED:
            for path in paths:
                module, place = _module_at(model, path), f"{path}." if path else ""
                if module is None:
                    self.note(f"{path} is gone")
                    continue
                found = self.words.kind(module)
                if path and found != kind:
                    self.note(f"{path} is a {found}, not a {kind}")
                self.modules += [module] if path else []
                for name, function in _METHODS.get(kind, {}).items():
                    methods.append((type(module) if path or name != "forward" else Model, name, function, vars(module)))
                    if _declared(*methods[-1][:2]) is not function:
                        self.note(f"{place}{name} was replaced")
                for name in vars(module):
                    if name not in attributes and callable(getattr(type(module), name, None)):
                        self.note(f"{place}{name} was replaced")
                for name, before in attributes.items():
                    self.follow(module, name, before, f"{place}{name}")
                for name, hooks in zip(_HOOKS, _hooks_of(vars(module))):
                    if path and hooks and name not in attributes:
                        self.follow(module, name, "[]", f"{place}{name}")
        for home, name, before in _GLOBALS:
            space = _space(home)
            owner, _, name = name.rpartition(".")  # of a class, or the module itself
            self.follow(space.get(owner, _ABSENT) if owner else space, name, before, f"the global {name}")
        for paths in _TIED:
            first, *others = [_part_at(model, path) for path in paths]
            if any(part[0].get(part[1]) is not first[0].get(first[1]) for part in others):
                self.note(f"{' and '.join(paths)} are no longer the same")
            self.tied += [(first, part) for part in others]
        self.bound = [method for method in methods if isinstance(method[2], classmethod)]  # another object at each look
        methods = [(owner, name, getattr(owner, name, None), table) for owner, name, f, table in methods if not isinstance(f, classmethod)]
        self.owners, self.methods, self.functions, self.hiding = zip(*methods) if methods else ((), (), (), ())
        self.dicts = [*map(vars, self.modules)]
        self.hooked = [table for table in self.dicts[1:] if not any(_hooks_of(table))]  # the model's own run around any forward
        self.tables = [module._modules for module in self.modules if module._modules or module in self.counted]
        self.find_tensors(model)
        vars(model)["_fusewright_look"] = self
        self.iterated = [module._modules for module in self.modules if module in self.counted]
        self.orders = [*map(list, self.iterated)]
        self.before = [*map(len, self.dicts), *map(type, self.modules), *map(dict, self.tables)]
        self.rare = bool(self.asked or self.iterated or self.tied or self.bound)

    def follow(self, owner, name, before, place):
        """One attribute or global: is it as it was, and how will a change be seen?"""
        value = _asked(owner, name)
        now = "tensor" if before == "None" and isinstance(value, torch.Tensor) else self.words.of(value)
        if now != before:
            self.note(f"{place} is {now}, not {before}", name == "training" or place in _STATE)
        home = next((table for table in _homes(owner) if name in table), None)
        if home is not None and name not in (*_TABLES, *_HOOKS):
            self.homes.append(home)
            self.names.append(name)
            self.values.append(value)
        if name == "_modules":
            self.counted.add(owner)
        elif home is None or not (now == "tensor" or _is_fixed(value)):
            self.asked.append((owner, name, self.quick.of(value)))

    def note(self, why, expected=False):
        """The first thing that is other than planned; what changes in the ordinary course of things is worth no warning."""
        if not self.why or (self.expected and not expected):
            self.why, self.expected = why, expected

    def holds(self, model):
        """Nothing that the look went by has changed."""
        return (
            self.own is vars(model)
            and all(map(operator.is_, map(dict.get, self.homes, self.names), self.values))
            and [*map(len, self.dicts), *map(type, self.modules), *self.tables] == self.before
            and all(map(operator.is_, map(getattr, self.owners, self.methods), self.functions))
            and not any(map(dict.__contains__, self.hiding, self.methods))
            and not any(itertools.chain.from_iterable(map(_hooks_of, self.hooked)))
            and (not self.rare or self.rare_hold())
        )

    def rare_hold(self):
        """What few models have: containers and objects that may change inside, containers of modules, tied tensors, class methods."""
        return (
            all(self.quick.of(_asked(owner, name)) == before for owner, name, before in self.asked)
            and [*map(list, self.iterated)] == self.orders
            and all(first[0].get(first[1]) is other[0].get(other[1]) for first, other in self.tied)
            and all(_declared(owner, name) is function for owner, name, function, _ in self.bound)
        )

    def find_tensors(self, model):
        """The tables in which forward's tensors are: a module's, or a module's globals where a row of _TENSORS names those."""
        self.tensor_homes, self.tensor_names, self.computed = [], [], []
        for i, (place, _, _) in enumerate(_TENSORS):
            path, _, name = place.rpartition(".") if isinstance(place, str) else (None, None, place[1])
            module = _space(place[0]) if path is None else _module_at(model, path)
            home = next((table for table in _homes(module) if name in table), None)
            self.computed += [(i, module)] if home is None else []  # as by a parametrization
            self.tensor_homes.append(home or {})
            self.tensor_names.append(name)

    def tensors(self):
        """The model's tensors, in the order of _TENSORS."""
        found = [*map(dict.get, self.tensor_homes, self.tensor_names)]
        for i, module in self.computed:
            found[i] = getattr(module, self.tensor_names[i], None)
        return found

    def __reduce__(self):
        return type(None), ()  # copies and pickles of the model look for themselves


def _space(home):
    """The globals of a module; of the model's own, where it has no name."""
    return (vars(sys.modules[home]) if home in sys.modules else {}) if home else _SPACE


def _part_at(model, path):
    """The table that has a module, parameter or buffer, and its name there."""
    holder, _, name = path.rpartition(".")
    tables = _homes(_module_at(model, holder))[1:]
    return next((table for table in tables if name in table), {}), name


def _declared(owner, name):
    """What a class, or one it derives from, has under a name: a function, a property."""
    for base in owner.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def _methods(owner, names):
    return {name: _declared(owner, name) for name in names.split()}


def _is_fixed(value):
    """It stays equal as long as it is the same object."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    if isinstance(value, types.FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value))
    return type(value) in _VALUES or isinstance(value, (types.BuiltinFunctionType, type))


def _homes(owner):
    """The tables in which a module, or a module's globals, keeps what it has."""
    if not isinstance(owner, torch.nn.Module):
        return [owner] if isinstance(owner, dict) else []
    return [vars(owner), owner._parameters, owner._buffers, owner._modules]


def _undisturbed():
    """Nothing watches or records the operators that the original would run, or changes what they do."""
    return not (_compiling() or _tracing() or any(_GLOBAL_HOOKS)) and torch.get_default_dtype() is _DEFAULT_DTYPE


def _follow(model):
    """The last look at the model, or a new one where something changed since."""
    look = vars(model).get("_fusewright_look")
    if look is None or not look.holds(model):
        before, look = look, _Look(model)
        if look.why and not look.expected and (before is None or before.why != look.why):
            what = f"{type(model).__name__}: {look.why}. The original operators run; for kernels, run fusewright on the model as it is now."
            warnings.warn(what, stacklevel=3)
    return look
# ----------------------------------------
