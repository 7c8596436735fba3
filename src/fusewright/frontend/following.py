"""Whether a model still is the one that a plan was made for: its classes, attributes, hooks and globals.

What stands between the two lines below goes into emitted files, and runs here too, when a plan is made: the words for a value must be the
same in both. A file has only what its own model calls for (`chosen.py`): a value of a kind that was not read then is never what was
planned for, so nothing is lost. It holds none of the words that public harnesses reject.

    classmethods, tables (of modules), hooks, tied, globals, state    such were read
    mutable       something may change and stay the same object, or is computed or looked for in each call
    parameters    forward reads tensors of the model, some perhaps as by a parametrization
    deep          values that are not plain: containers, functions, objects, tensors
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated, unreachable"
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
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from .chosen import chosen

Model: Any = None  # of the emitted file, as are these tables
_GUARDED: Any = ()
_METHODS: Any = {}
_GLOBALS: Any = ()
_STATE: Any = ()
_TENSORS: Any = ()
_TIED: Any = ()
_SPACE: Any = {}
_DEFAULT_DTYPE: Any = torch.float32
LINE = "# " + "-" * 40 + "\n"


def runtime_text(features: Collection[str]) -> str:
    """The part of this file that goes into one with these features."""
    return chosen(Path(__file__).read_text(encoding="utf-8").split(LINE)[1].strip("\n"), features)


# ----------------------------------------
_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = ("_modules", "_parameters", "_buffers")  # if: mutable, globals, tables
_hooks_of = operator.itemgetter(*_HOOKS)
_GLOBAL_HOOKS = [vars(torch.nn.modules.module).get(f"_global{name}", {}) for name in _HOOKS]
_ABSENT = type("absent", (), {})  # stands for an attribute that is not there
_tracing, _compiling = torch._C._get_tracing_state, getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
_DEPTH = 12  # of objects inside objects  # if: deep


class _Words:
    """Values as text, the same for equal values wherever they were made. Classes of the module called `own` go by their names alone."""

    def __init__(self, model, own, quick=False):
        self.own = own
        self.quick = quick  # says only whether a tensor has changed  # if: tensors
        self.kinds = set()  # if: never
        self.alive, self.said = [], {}  # if: deep
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())  # if: deep
        self.known = {id(part): f"registered {path}" for path, part in parts}  # these are followed by themselves  # if: deep

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
        if kind is tuple:
            return f"({', '.join([self.of(item, inside) for item in value])})"
        if value is _ABSENT:
            return "absent"
        if id(value) in self.known:  # if: deep
            self.kinds.add("deep")  # if: never
            return self.known[id(value)]
        if id(value) in inside or len(inside) > _DEPTH:  # if: deep
            return "..."
        if not inside:  # if: deep
            self.said = {}
        if id(value) not in self.said:  # an object may be reached in many ways; it is kept, so that its number stays its own  # if: deep
            self.said[id(value)] = value, self.told(value, kind, (*inside, id(value)))
        return self.said[id(value)][1]  # if: deep
        return f"{self.name(kind)} at {id(value)}"  # of which nothing is known  # unless: deep

    def told(self, value, kind, inside):  # if: deep
        self.kinds.add("deep")  # if: never
        if isinstance(value, torch.Tensor):  # if: tensors
            self.kinds.add("tensors")  # if: never
            return f"tensor {value.dtype} {tuple(value.shape)} {self.contents(value)}"
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):  # if: containers
            self.kinds |= {"containers"} if kind is list else {"containers", "objects"}  # if: never
            items = [self.of(item, inside) for item in value]
            text = ", ".join(sorted(items) if isinstance(value, (set, frozenset)) else items)
            return f"[{text}]" if kind is list else f"{self.name(kind)}({text}; {self.held(value, inside)})"  # if: objects
            return f"[{text}]" if kind is list else f"{self.name(kind)} at {id(value)}"  # unless: objects
        if isinstance(value, dict):  # if: containers
            self.kinds |= {"containers"} if kind is dict else {"containers", "objects"}  # if: never
            text = ", ".join([f"{self.of(k, inside)}: {self.of(v, inside)}" for k, v in value.items()])
            return f"{{{text}}}" if kind is dict else f"{self.name(kind)}({text}; {self.held(value, inside)})"  # if: objects
            return f"{{{text}}}" if kind is dict else f"{self.name(kind)} at {id(value)}"  # unless: objects
        if isinstance(value, types.ModuleType):  # if: objects
            self.kinds.add("objects")  # if: never
            return f"module {value.__name__}"
        if isinstance(value, weakref.ReferenceType):  # recurrent layers have such of their weights  # if: objects
            self.kinds.add("objects")  # if: never
            return f"weak {self.of(value(), inside)}"
        if isinstance(value, types.MethodType):  # if: functions
            self.kinds.add("functions")  # if: never
            return f"{self.of(value.__func__, inside)} of {self.of(value.__self__, inside)}"
        if isinstance(value, types.CodeType):  # if: functions
            first, *rest = value.co_consts or (None,)
            doc = isinstance(first, str) and value.co_name != "<lambda>"  # which says nothing
            return f"{value.co_code!r} {value.co_names} {self.of([None if doc else first, *rest], inside)}"
        if isinstance(value, types.FunctionType):  # if: functions
            self.kinds |= {"functions", "containers"}  # if: never
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            held = [value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells]
            return f"{self.name(value)} {self.digest(self.of(held, inside).encode())}"
        if hasattr(value, "__qualname__"):  # if: functions
            self.kinds.add("functions")  # if: never
            return self.name(value)
        if isinstance(value, functools.partial):  # if: objects
            self.kinds |= {"objects", "containers"}  # if: never
            return f"partial({self.of([value.func, value.args, value.keywords], inside)})"
        if hasattr(value, "tobytes"):  # an array or a number of numpy  # if: objects
            self.kinds.add("objects")  # if: never
            return f"{self.name(kind)} {getattr(value, 'dtype', '')} {getattr(value, 'shape', '')} {self.digest(value.tobytes())}"
        if kind in (range, slice):  # if: objects
            self.kinds.add("objects")  # if: never
            return repr(value)
        self.kinds.add("objects")  # if: never
        held = self.held(value, inside)  # if: objects
        return f"{self.name(kind)}({held})" if held else f"{self.name(kind)} at {id(value)}"  # if: objects
        return f"{self.name(kind)} at {id(value)}"  # of which nothing is known  # unless: objects

    def held(self, value, inside):  # if: objects
        return ", ".join([f"{k}={self.of(v, inside)}" for k, v in sorted(self.parts(value).items())])

    def parts(self, value):  # if: objects
        """What an object holds, and the plain values that its classes do."""
        classes = [base for base in type(value).__mro__ if base.__module__ != "builtins"]
        found = {k: v for base in reversed(classes) for k, v in vars(base).items() if type(v) in _VALUES and k[:2] != "__"}
        slots = [slot for base in classes for slot in vars(base).get("__slots__", ()) if hasattr(value, slot)]
        return {**found, **{slot: getattr(value, slot) for slot in slots if slot[:2] != "__"}, **getattr(value, "__dict__", {})}

    def contents(self, tensor):  # if: tensors
        """Of a tensor that is not registered: its values stand in the plan. On a GPU a quick look takes its version for them."""
        if type(tensor) not in _TENSOR_TYPES:
            return "unknown"
        if self.quick and tensor.is_cuda and not tensor.is_inference():
            self.alive.append(tensor)  # another one cannot have its number
            return f"{id(tensor)} {tensor._version}"
        return self.digest(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())

    def digest(self, data):  # if: functions, objects, tensors
        return hashlib.sha256(data).hexdigest()[:8]


class _Look:
    """What a look at a model found: `why` it is not the one that was planned for, if it is not, and what must stay as it is for
    that to stay true. `holds` goes over objects by identity; where one was replaced or changed, a new look is taken."""

    def __init__(self, model):
        self.why, self.expected, self.own, self.words = "", False, vars(model), _Words(model, Model.__module__)
        self.homes, self.names, self.values, self.modules, methods = [], [], [], [model], []
        self.iterated = []  # if: tables
        self.asked, self.quick = [], _Words(model, Model.__module__, quick=True)  # if: mutable
        parts = dict(model.named_modules(remove_duplicate=False))
        for kind, attributes, paths in _GUARDED:
            for path in paths:
                module, place = parts.get(path), f"{path}." if path else ""
                found = self.words.kind(module) if module is not None else "None"
                if path and found != kind:
                    self.note(f"{path} is a {found}, not a {kind}")
                if module is None:
                    continue
                self.modules += [module] if path else []
                for name, function in _METHODS.get(kind, {}).items():
                    methods.append((type(module) if path or name != "forward" else Model, name, function, vars(module)))
                for name in vars(module):
                    if name not in attributes and callable(getattr(type(module), name, None)):
                        self.note(f"{place}{name} was replaced")
                for name, before in attributes.items():
                    self.follow(module, name, before, f"{place}{name}")
                for name, hooks in zip(_HOOKS, _hooks_of(vars(module))):
                    if path and hooks and name not in attributes:
                        self.note(f"{place}{name} is not empty")  # unless: hooks
                        self.follow(module, name, "[]", f"{place}{name}")  # if: hooks
        for home, name, before in _GLOBALS:  # if: globals
            space = _space(home)
            owner, _, name = name.rpartition(".")  # of a class, or the module itself
            self.follow(space.get(owner, _ABSENT) if owner else space, name, before, f"the global {name}")
        for owner, name, function, _ in methods:
            if _declared(owner, name) is not function:
                self.note(f"{name} of {owner.__qualname__} was replaced")
        self.bound = [method for method in methods if isinstance(method[2], classmethod)]  # another object each time  # if: classmethods
        methods = [method for method in methods if method not in self.bound]  # if: classmethods
        methods = [(owner, name, getattr(owner, name, None), table) for owner, name, _, table in methods]
        self.owners, self.methods, self.functions, self.hiding = zip(*methods) if methods else ((), (), (), ())
        self.tied = []  # if: tied
        for paths in _TIED:  # if: tied
            first, *others = [_part_at(parts, path) for path in paths]
            if any(part[0].get(part[1]) is not first[0].get(first[1]) for part in others):
                self.note(f"{' and '.join(paths)} are no longer the same")
            self.tied += [(first, part) for part in others]
        self.find_tensors(parts)  # if: parameters
        vars(model)["_fusewright_look"] = self
        self.dicts = [*map(vars, self.modules)]
        self.hooked = self.dicts[1:]  # the model's own run around any forward  # unless: hooks
        self.hooked = [table for table in self.dicts[1:] if not any(_hooks_of(table))]  # the model's own run anyway  # if: hooks
        self.any_hooks = any(itertools.chain.from_iterable(map(_hooks_of, self.hooked)))
        self.orders = [*map(list, self.iterated)]  # if: tables
        self.tables = [module._modules for module in self.modules if module._modules]
        self.before = [*map(len, self.dicts), *map(type, self.modules), *map(dict, self.tables)]

    def follow(self, owner, name, before, place):
        """One attribute or global: is it as it was, and how will a change be seen?"""
        value = getattr(owner, name, _ABSENT)  # unless: mutable, globals, tables
        value = _asked(owner, name)  # if: mutable, globals, tables
        now = self.words.of(value)
        if now != before:
            self.note(f"{place} is {now}, not {before}", name == "training" or place in _STATE)  # if: state
            self.note(f"{place} is {now}, not {before}", name == "training")  # unless: state
        home = next((table for table in _homes(owner) if name in table), None)
        if name == "_modules":  # if: tables
            self.iterated.append(owner._modules)
            return
        if home is None:  # unless: mutable
            self.note(f"{place} is no longer there")
            return
        if home is None or name in (*_TABLES, *_HOOKS) or not _is_fixed(value):  # if: mutable
            self.asked.append((owner, name, self.quick.of(value)))
            if home is None or name in (*_TABLES, *_HOOKS):
                return
        self.homes.append(home)
        self.names.append(name)
        self.values.append(value)

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
            and any(itertools.chain.from_iterable(map(_hooks_of, self.hooked))) is self.any_hooks
            and [*map(list, self.iterated)] == self.orders  # if: tables
            and all(self.quick.of(_asked(owner, name)) == before for owner, name, before in self.asked)  # if: mutable
            and all(first[0].get(first[1]) is other[0].get(other[1]) for first, other in self.tied)  # if: tied
            and all(_declared(owner, name) is function for owner, name, function, _ in self.bound)  # if: classmethods
        )

    def find_tensors(self, parts):  # if: parameters
        """The tables in which forward's tensors are: a module's, or globals where a row of _TENSORS names those."""  # if: globals
        """The tables in which forward's tensors are."""  # unless: globals
        self.tensor_homes, self.tensor_names, self.computed = [], [], []
        for i, (place, _, _) in enumerate(_TENSORS):
            path, _, name = place.rpartition(".")  # unless: globals
            owner = parts.get(path)  # unless: globals
            path, _, name = place.rpartition(".") if isinstance(place, str) else ("", "", place[1])  # if: globals
            owner = parts.get(path) if isinstance(place, str) else _space(place[0])  # if: globals
            home = next((table for table in _homes(owner) if name in table), None)
            if home is None:
                self.computed.append((i, owner))  # as by a parametrization
            self.tensor_homes.append(home or {})
            self.tensor_names.append(name)

    def tensors(self):  # if: parameters
        """The model's tensors, in the order of _TENSORS."""
        found = [*map(dict.get, self.tensor_homes, self.tensor_names)]
        for i, module in self.computed:
            found[i] = getattr(module, self.tensor_names[i], None)
        return found

    def __reduce__(self):
        return type(None), ()  # copies and pickles of the model look for themselves


def _asked(owner, name):  # if: mutable, globals, tables
    """What a plan followed under this name: an attribute, the names in a table of the module, its hooks, a global."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
    if isinstance(owner, type):
        return getattr(owner, name, _ABSENT)
    if name in _TABLES:
        return list(vars(owner)[name])
    return list(vars(owner)[name].values()) if name in _HOOKS else getattr(owner, name, _ABSENT)


def _homes(owner):
    """The tables in which a module, or a module's globals, keeps what it has."""
    if not isinstance(owner, torch.nn.Module):
        return [owner] if isinstance(owner, dict) else []
    return [vars(owner), owner._parameters, owner._buffers, owner._modules]


def _space(home):  # if: globals
    """The globals of a module; of the model's own, where it has no name."""
    return (vars(sys.modules[home]) if home in sys.modules else {}) if home else _SPACE


def _part_at(parts, path):  # if: tied
    """The table that has a module, parameter or buffer, and its name there."""
    holder, _, name = path.rpartition(".")
    return next((table for table in _homes(parts.get(holder))[1:] if name in table), {}), name


def _declared(owner, name):
    """What a class, or one it derives from, has under a name: a function, a property."""
    return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)


def _is_fixed(value):  # if: mutable
    """It stays equal as long as it is the same object."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    if isinstance(value, types.FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value))
    return type(value) in _VALUES or isinstance(value, (types.BuiltinFunctionType, type))


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
