"""Whether a model still is the one that a plan was made for: its classes, attributes, hooks and globals.

What stands between the two lines below goes into emitted files, and runs here too, when a plan is made: the words for a value must be the
same in both. A file has only what its own model calls for (`chosen.py`): a value of a kind that was not read then is never what was
planned for, so nothing is lost. It holds none of the words that public harnesses reject.

    classmethods, tables (of modules), hooks, tied, globals, state    such were read
    mutable       something may change and stay the same object, or is computed or looked for in each call
    parameters    forward reads tensors of the model, some perhaps as by a parametrization: `in modules` all, or some `in globals`
    deep          values that are not plain: containers, functions, objects, tensors
    words         any of these, but for plain values that modules hold themselves
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
_INHERITED: Any = ()
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
_VALUES = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
_TENSOR_TYPES = {torch.Tensor, torch.nn.Parameter}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = ("_modules", "_parameters", "_buffers")  # if: words
_hooks_of = operator.itemgetter(*_HOOKS)
_GLOBAL_HOOKS = [vars(torch.nn.modules.module).get(f"_global{name}", {}) for name in _HOOKS]
_ABSENT = type("absent", (), {})()  # stands for an attribute that is not there
_DEPTH = 12  # of objects inside objects  # if: deep
_tracing, _compiling = torch._C._get_tracing_state, getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _name(thing, own):  # if: words
    """A class or a function, as the tables name it: by its name alone where the module called `own` defines it."""
    home = getattr(thing, "__module__", None) or ""
    return thing.__qualname__ if home in (own, "builtins") else f"{home}.{thing.__qualname__}"


def _class_name(value):
    """Its class, as the tables name it; of a module whose weights are parametrized, without that."""
    kind = torch.nn.utils.parametrize.type_before_parametrizations(value)
    return _name(kind, Model.__module__)  # if: words
    home = kind.__module__  # unless: words
    return kind.__qualname__ if home in (Model.__module__, "builtins") else f"{home}.{kind.__qualname__}"  # unless: words


def _is_plain(value):
    """Its text says all that there is to know of it."""
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in _VALUES


class _Words:  # if: words
    """Values as text, the same for equal values wherever they were made."""

    def __init__(self, model, own, quick=False):
        self.own = own
        self.quick = quick  # says only whether a tensor has changed  # if: tensors
        self.kinds = set()  # if: never
        self.alive, self.said = [], {}  # if: deep
        kinds = [base for base in type(model).__mro__ if base.__module__ == own and "forward" in vars(base)]  # if: sentinels
        self.space = getattr(vars(kinds[-1])["forward"], "__globals__", {}) if kinds else {}  # if: sentinels
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())  # if: deep
        self.known = {id(part): f"registered {path}" for path, part in parts}  # these are followed by themselves  # if: deep

    def name(self, thing):
        return _name(thing, self.own)

    def of(self, value, inside=()):
        kind = type(value)
        if _is_plain(value):
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
        if kind is object:  # which one it is, is all that there is to it  # if: sentinels
            self.kinds.add("sentinels")  # if: never
            return f"object {self.called(value)}"
        if kind in (range, slice):  # if: objects
            self.kinds.add("objects")  # if: never
            return repr(value)
        self.kinds.add("objects")  # if: never
        if hasattr(kind, "__members__"):  # an enumeration's: what else it holds differs between versions of Python  # if: objects
            return f"{self.name(kind)}.{value.name} {self.of(value.value, inside)}"
        held = self.held(value, inside)  # if: objects
        is_empty = hasattr(value, "__dict__") and kind.__basicsize__ <= type(_ABSENT).__basicsize__  # nothing hidden in C  # if: objects
        return f"{self.name(kind)}({held})" if held or is_empty else f"{self.name(kind)} at {id(value)}"  # if: objects
        return f"{self.name(kind)} at {id(value)}"  # of which nothing is known  # unless: objects

    def called(self, value):  # if: sentinels
        """What the model's module, or a class there, calls an object; its address, if nothing."""
        classes = [thing for thing in self.space.values() if isinstance(thing, type) and thing.__module__ == self.own]
        places = [("", self.space), *[(f"{kind.__qualname__}.", vars(kind)) for kind in classes]]
        return min([f"{where}{name}" for where, held in places for name, thing in held.items() if thing is value] or [f"at {id(value)}"])

    def held(self, value, inside):  # if: objects
        return ", ".join([f"{k}={self.of(v, inside)}" for k, v in sorted(self.parts(value).items())])

    def parts(self, value):  # if: objects
        """What an object holds, and what its classes do beside methods."""
        classes = [base for base in type(value).__mro__ if base.__module__ != "builtins"]
        found = {k: v for base in reversed(classes) for k, v in vars(base).items() if self.is_data(base, k, v)}
        slots = [slot for base in classes for slot in vars(base).get("__slots__", ()) if hasattr(value, slot)]
        return {**found, **{slot: getattr(value, slot) for slot in slots if slot[:2] != "__"}, **getattr(value, "__dict__", {})}

    def is_data(self, base, name, value):  # if: objects
        """What a class has under a name is no method, nor what Python and PyTorch keep there for themselves."""
        if type(value) in _VALUES:
            return name[:2] != "__"
        if name[:1] == "_" or base.__module__.partition(".")[0] == "torch" or type(value).__module__ == "typing":
            return False
        is_method = callable(value) or hasattr(type(value), "__get__") or isinstance(value, types.ModuleType)
        holds = isinstance(value, (tuple, list, dict, set, frozenset)) or bool(getattr(value, "__dict__", None))
        return holds and not is_method

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
    """What a look at the model found: `why` it is not the one that was planned for, if it is not, and what must stay as it is for
    that to stay true. `holds` goes over objects by identity; where one was replaced or changed, a new look is taken."""

    def __init__(self, model):
        self.own, self.modules, self.slots, self.methods = vars(model), [model], [], []
        self.words = _Words(model, Model.__module__)  # if: words
        self.asked, self.quick = [], _Words(model, Model.__module__, quick=True)  # if: mutable
        self.iterated = []  # if: tables
        self.tied = []  # if: tied
        parts = dict(model.named_modules(remove_duplicate=False))
        self.expected, self.why = min(self.differences(parts), key=operator.itemgetter(0), default=(False, ""))
        same = [getattr(owner, name, None) is now for owner, name, now in self.methods]  # not a classmethod  # if: classmethods
        self.bound = [(*m[:2], _declared(*m[:2])) for m, is_same in zip(self.methods, same) if not is_same]  # if: classmethods
        self.methods = [m for m, is_same in zip(self.methods, same) if is_same]  # if: classmethods
        self.tables, self.keys, self.values = [*zip(*self.slots)] or [()] * 3
        self.owners, self.names, self.functions = [*zip(*self.methods)] or [()] * 3
        places = [(parts.get(path), name) for path, _, name in (path.rpartition(".") for path in _TENSORS)]  # if: parameters in modules
        places = [_place(parts, place) for place in _TENSORS]  # if: parameters in globals
        self.homes, self.held = [_home(*place) for place in places], [name for _, name in places]  # if: parameters
        self.computed = [(i, *places[i]) for i, home in enumerate(self.homes) if not home]  # as by a parametrization  # if: parameters
        self.own["_fusewright_look"] = self
        self.dicts, self.children = [*map(vars, self.modules)], [module._modules for module in self.modules if module._modules]
        self.hookless = [(table, name) for table in self.dicts[1:] for name in _HOOKS if not table[name]]  # if: hooks
        self.orders = [*map(list, self.iterated)]  # if: tables
        self.before = [*self.state(), *map(dict, self.children)]

    def differences(self, parts):
        """What is other than planned, and whether such a change is ordinary: then it is worth no warning."""
        for kind, attributes, paths in _GUARDED:
            for path in paths:
                module, place = parts.get(path), f"self.{path}" if path else "self"
                if path and _class_name(module) != kind:
                    yield False, f"{place} is a {_class_name(module)}, not a {kind}"
                if module is None:
                    continue
                self.modules += [module] if path else []
                for name, before in attributes.items():
                    yield from self.follow(module, name, before, f"{place}.{name}")
                for name in vars(module):
                    if name not in attributes and callable(getattr(type(module), name, None)):
                        yield False, f"{place}.{name} was replaced"
                for name, function in _METHODS.get(kind, {}).items():
                    owner = type(module) if path or name != "forward" else Model
                    self.methods.append((owner, name, getattr(owner, name, None)))
                    self.slots.append((vars(module), name, vars(module).get(name)))  # it would hide the method
                    if _declared(owner, name) is not function:  # if: classmethods
                        yield False, f"{name} of {owner.__qualname__} was replaced"
                    if getattr(owner, name, None) is not function:  # unless: classmethods
                        yield False, f"{name} of {owner.__qualname__} was replaced"
                if path and any(_hooks_of(vars(module))):  # unless: hooks
                    yield False, f"{place} has hooks"
                for name, hooks in zip(_HOOKS, _hooks_of(vars(module))):  # if: hooks
                    if path and hooks and name not in attributes:
                        yield from self.follow(module, name, "[]", f"{place}.{name}")
        for owner, name, function in _INHERITED:  # if: inherited
            self.methods.append((owner, name, getattr(owner, name, None)))
            if getattr(owner, name, None) is not function:
                yield False, f"{name} of {owner.__qualname__} was replaced"
        for home, name, before in _GLOBALS:  # if: globals
            space = _space(home)
            owner, _, name = name.rpartition(".")  # of a class, or the module itself
            yield from self.follow(space.get(owner, _ABSENT) if owner else space, name, before, f"the global {name}")
        for paths in _TIED:  # if: tied
            first, *others = [(_home(parts.get(path), name), name) for path, _, name in (path.rpartition(".") for path in paths)]
            self.tied += [(first, part) for part in others]
            if any(part[0].get(part[1]) is not first[0].get(first[1]) for part in others):
                yield False, f"{' and '.join(paths)} are no longer the same"

    def follow(self, owner, name, before, place):
        """One attribute or global: is it as it was, and how will a change be seen?"""  # if: globals
        """One attribute: is it as it was, and how will a change be seen?"""  # unless: globals
        home = _home(owner, name)
        value = home.get(name, _ABSENT)  # unless: words
        now = repr(value) if _is_plain(value) else _class_name(value)  # unless: words
        value = _asked(owner, name)  # if: words
        now = self.words.of(value)  # if: words
        if now != before:
            yield name == "training", f"{place} is {now}, not {before}"  # unless: state
            yield name == "training" or place in _STATE, f"{place} is {now}, not {before}"  # if: state
        if name == "_modules":  # if: tables
            self.iterated.append(owner._modules)
            return
        if not home or name in (*_TABLES, *_HOOKS) or not _is_fixed(value):  # if: mutable
            self.asked.append((owner, name, self.quick.of(value)))
            if not home or name in (*_TABLES, *_HOOKS):
                return
        self.slots.append((home, name, home.get(name, _ABSENT)))  # if: words
        self.slots.append((home, name, value))  # unless: words

    def state(self):
        hooks = itertools.chain.from_iterable(map(_hooks_of, self.dicts[1:]))  # the model's own run around any forward  # unless: hooks
        hooks = itertools.chain.from_iterable((table[name],) for table, name in self.hookless)  # if: hooks
        return [*map(len, self.dicts), *map(type, self.modules), any(hooks)]

    def holds(self, model):
        """Nothing that the look went by has changed."""
        return (
            self.own is vars(model)
            and all(map(operator.is_, map(dict.get, self.tables, self.keys), self.values))
            and all(map(operator.is_, map(getattr, self.owners, self.names), self.functions))
            and [*self.state(), *self.children] == self.before
            and [*map(list, self.iterated)] == self.orders  # if: tables
            and all(self.quick.of(_asked(owner, name)) == before for owner, name, before in self.asked)  # if: mutable
            and all(first[0].get(first[1]) is other[0].get(other[1]) for first, other in self.tied)  # if: tied
            and all(_declared(owner, name) is function for owner, name, function in self.bound)  # if: classmethods
        )

    def __reduce__(self):
        return type(None), ()  # copies and pickles of the model look for themselves


def _asked(owner, name):  # if: words
    """What a plan followed under this name: an attribute, the names in a table of the module, its hooks, a global."""
    if isinstance(owner, dict):
        return owner.get(name, _ABSENT)
    if isinstance(owner, type):
        return getattr(owner, name, _ABSENT)
    if name in _TABLES:
        return list(vars(owner)[name])
    return list(vars(owner)[name].values()) if name in _HOOKS else getattr(owner, name, _ABSENT)


def _home(owner, name):
    """The table in which a module has what goes by this name; where none does, an empty one."""
    tables = [vars(owner), owner._parameters, owner._buffers, owner._modules] if isinstance(owner, torch.nn.Module) else []
    tables = [owner] if isinstance(owner, dict) else tables  # if: globals
    return next((table for table in tables if name in table), {})


def _place(parts, place):  # if: parameters in globals
    """What has a tensor, and its name there: a module of the model, or the globals of one of Python's."""
    path, _, name = place.rpartition(".") if isinstance(place, str) else ("", "", place[1])
    return parts.get(path) if isinstance(place, str) else _space(place[0]), name


def _space(home):  # if: globals
    """The globals of a module; of the model's own, where it has no name."""
    return (vars(sys.modules[home]) if home in sys.modules else {}) if home else _SPACE


def _declared(owner, name):  # if: classmethods
    """What a class, or one it derives from, has under a name: a function, a property."""
    return next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)


def _is_fixed(value):  # if: mutable
    """It stays equal as long as it is the same object."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    if isinstance(value, types.FunctionType):
        return not (value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value))
    return type(value) in (*_VALUES, object) or isinstance(value, (types.BuiltinFunctionType, type))


def _follow(model):
    """The tensors that forward reads of the model; None where it is not what was planned for, or someone watches its operators."""
    if _compiling() or _tracing() or any(_GLOBAL_HOOKS) or torch.get_default_dtype() is not _DEFAULT_DTYPE:
        return None
    look = vars(model).get("_fusewright_look")
    if look is None or not look.holds(model):
        before, look = look, _Look(model)
        if look.why and not look.expected and (before is None or before.why != look.why):
            what = f"{type(model).__name__}: {look.why}. The original operators run; for kernels, run fusewright on the model as it is now."
            warnings.warn(what, stacklevel=3)
    if look.why:
        return None
    found = [*map(dict.get, look.homes, look.held)]  # if: parameters
    for i, module, name in look.computed:  # if: parameters
        found[i] = getattr(module, name, None)
    return found  # if: parameters
    return ()  # unless: parameters
# ----------------------------------------
