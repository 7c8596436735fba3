"""Whether a model still is the one that a plan was made for: its classes, attributes, hooks and globals.

What stands between the two lines below is written into every emitted file as it is, and runs here too, when a plan is made: the words
for a value must be the same in both. It holds none of the words that public harnesses reject.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, var-annotated"
# ruff: noqa: B905  (emitted files run under Python 3.8, which has no strict zip)

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import types
import warnings
from pathlib import Path
from typing import Any

import torch

Model: Any = None  # of the emitted file, as are these tables
_FOLLOWED: Any = ()
_METHODS: Any = {}
_GLOBALS: Any = ()
_STATE: Any = ()
_TENSORS: Any = ()
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
_TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter}


class _Words:
    """Values as text, the same for equal values wherever they were made. What is registered in the model is followed by itself.
    Classes and functions of the module called `own` go by their names alone. `quick` says only whether a tensor has changed."""

    def __init__(self, model, own, quick=False):
        self.own, self.quick = own, quick
        self.known = {id(part) for part in (*model.modules(), *model.parameters(), *model.buffers())}

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
            return "absent" if value is _ABSENT else "registered"
        if id(value) in inside:
            return "..."
        inside = (*inside, id(value))
        if isinstance(value, torch.Tensor):
            data = value.detach().cpu().reshape(-1).contiguous() if not self.quick else None
            sign = f"{id(value)} {value._version}" if data is None else self.digest(data.view(torch.uint8).numpy().tobytes())
            return f"tensor {value.dtype} {tuple(value.shape)} {sign}"
        if isinstance(value, (list, tuple, set, frozenset)):
            items = [self.of(item, inside) for item in value]
            text = ", ".join(items if isinstance(value, (list, tuple)) else sorted(items))
            return f"[{text}]" if kind is list else f"({text})" if kind is tuple else f"{self.name(kind)}({text})"
        if isinstance(value, dict):
            return "{" + ", ".join([f"{self.of(k, inside)}: {self.of(v, inside)}" for k, v in value.items()]) + "}"
        if isinstance(value, types.MethodType):
            return f"{self.of(value.__func__, inside)} of {self.of(value.__self__, inside)}"
        if isinstance(value, types.FunctionType):
            code = value.__code__
            held = [[c for c in code.co_consts if type(c) in _VALUES], code.co_names, value.__defaults__, value.__kwdefaults__]
            held += [cell.cell_contents for cell in value.__closure__ or ()]
            return f"{self.name(value)} {self.digest(self.of(held, inside).encode())}"
        if hasattr(value, "__qualname__"):
            return self.name(value)
        if hasattr(value, "tobytes"):  # an array or a number of numpy
            return f"{self.name(kind)} {self.digest(value.tobytes())}"
        slots = [slot for base in kind.__mro__ for slot in vars(base).get("__slots__", ()) if hasattr(value, slot)]
        parts = {**{slot: getattr(value, slot) for slot in slots if slot != "__weakref__"}, **getattr(value, "__dict__", {})}
        if isinstance(value, functools.partial):
            parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
        return f"{self.name(kind)}({', '.join([f'{k}={self.of(parts[k], inside)}' for k in sorted(parts)])})"

    def digest(self, data):
        return hashlib.sha256(data).hexdigest()[:8]


def _asked(owner, name):
    """What a plan followed under this name: an attribute, the names in a table of the module, its hooks, a global."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
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
        self.homes, self.names, self.values, self.asked, self.modules, self.counted, methods = [], [], [], [], [model], set(), []
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
                    methods.append((type(module) if path or name != "forward" else Model, name, function))
                    if getattr(*methods[-1][:2], None) is not function:
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
            self.follow(home, name, before, f"the global {name}")
        self.owners, self.methods, self.functions = zip(*methods) if methods else ((), (), ())
        self.dicts = [*map(vars, self.modules)]
        self.hooked = [table for table in self.dicts[1:] if not any(_hooks_of(table))]  # the model's own run around any forward
        self.tables = [module._modules for module in self.modules if module._modules or module in self.counted]
        self.find_tensors(model)
        vars(model)["_fusewright_look"] = self
        self.before = [*map(len, self.dicts), *map(type, self.modules), *map(dict, self.tables)]

    def follow(self, owner, name, before, place):
        """One attribute or global: is it as it was, and how will a change be seen?"""
        value = _asked(owner, name)
        now = "tensor" if isinstance(value, torch.Tensor) and not isinstance(owner, dict) else self.words.of(value)
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
        return (
            self.own is vars(model)
            and all(map(operator.is_, map(dict.get, self.homes, self.names), self.values))
            and [*map(len, self.dicts), *map(type, self.modules), *self.tables] == self.before
            and all(map(operator.is_, map(getattr, self.owners, self.methods), self.functions))
            and not any(itertools.chain.from_iterable(map(_hooks_of, self.hooked)))
            and all(self.quick.of(_asked(owner, name)) == before for owner, name, before in self.asked)
        )

    def find_tensors(self, model):
        """The tables in which forward's tensors are: a module's, or a module's globals where a row of _TENSORS names those."""
        self.tensor_homes, self.tensor_names, self.computed = [], [], []
        for i, (place, _, _) in enumerate(_TENSORS):
            path, _, name = place.rpartition(".") if isinstance(place, str) else (None, None, place[1])
            module = place[0] if path is None else _module_at(model, path)
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


def _methods(owner, names):
    return {name: getattr(owner, name) for name in names.split()}


def _is_fixed(value):
    """It stays equal as long as it is the same object."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return type(value) in _VALUES or isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type))


def _homes(owner):
    """The tables in which a module, or a module's globals, keeps what it has."""
    if owner is None or isinstance(owner, dict):
        return [] if owner is None else [owner]
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
