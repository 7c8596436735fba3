"""Arguments of the constructor as objects of the emitted file's own classes.

The file has copies of the classes in the model's file. Whoever builds its model from the original's `get_init_inputs()` hands it objects of
the original's: a member of an enumeration, which is none of the file's own (`is`, `==`), a configuration of a class that `isinstance`
does not know. The text between the two lines below goes into files whose example has such arguments. An object that holds such
others is copied, and does not see what is set on the original's later; one that holds none shares its attributes.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: B905  (emitted files run under Python 3.8, which has no strict zip)

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

LINE = "# " + "-" * 40 + "\n"


def here_text() -> str:
    """The part of this file that goes into others."""
    return Path(__file__).read_text(encoding="utf-8").split(LINE)[1].strip("\n")


def holds_own(value: Any, home: str, met: dict[int, Any] | None = None) -> bool:
    """Somewhere in it is a class of the module called `home`, or an object of one that is no module of PyTorch's."""
    met = {} if met is None else met
    if id(value) in met:
        return False
    met[id(value)] = value
    if isinstance(value, type):
        return value.__module__ == home
    if type(value).__module__ == home and not isinstance(value, torch.nn.Module):
        return True
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return any(holds_own(part, home, met) for part in inner)


# ----------------------------------------
def _as_here(value, space, met):
    """The value, of this file's classes where it is of classes of another file that have the same names and say the same."""
    if id(value) in met:
        return met[id(value)][1]
    met[id(value)] = value, value  # kept, so that its number stays its own
    kind = value if isinstance(value, type) else type(value)
    first, *names = kind.__qualname__.split(".")
    here = functools.reduce(lambda owner, name: getattr(owner, name, None), names, space.get(first))
    made = value
    if kind in (list, tuple):
        parts = [_as_here(part, space, met) for part in value]
        made = value if all(new is old for new, old in zip(parts, value)) else kind(parts)
    elif kind is dict:
        parts = [(_as_here(key, space, met), _as_here(part, space, met)) for key, part in value.items()]
        made = value if all(new is key and part is value[key] for key, (new, part) in zip(value, parts)) else dict(parts)
    elif isinstance(here, type) and here is not kind and _say_the_same(here, kind):
        made = _of_class(here, value, space, met)
    met[id(value)] = value, made
    return made


def _of_class(here, value, space, met):
    if isinstance(value, type):
        return here
    if hasattr(here, "__members__"):
        return here.__members__.get(value.name, value)
    if isinstance(value, tuple):
        return tuple.__new__(here, [_as_here(part, space, met) for part in value])
    hides = here.__basicsize__ > type("plain", (), {}).__basicsize__ or isinstance(value, torch.nn.Module)  # slots, or what C keeps
    if hides:
        return value
    made = object.__new__(here)
    met[id(value)] = value, made
    held = {name: _as_here(part, space, met) for name, part in vars(value).items()}
    shares = all(part is vars(value)[name] for name, part in held.items())  # then what is set on one later is set on the other
    object.__setattr__(made, "__dict__", vars(value) if shares else held)
    return made


def _say_the_same(one, other):
    """Two classes have the same functions and plain values, and so have those that they derive from."""
    same = len(one.__mro__) == len(other.__mro__)
    return same and all(a is b or (a.__qualname__, _said(a)) == (b.__qualname__, _said(b)) for a, b in zip(one.__mro__, other.__mro__))


def _said(kind):
    found = {}
    for name, value in vars(kind).items():
        parts = [getattr(value, part, None) for part in ("__func__", "fget", "fset")]
        codes = [_code(part.__code__) for part in (value, *parts) if hasattr(part, "__code__")]
        if codes or name[:2] != "__":
            is_plain = isinstance(value, (bool, int, float, complex, str, bytes, type(None)))
            found[name] = codes, repr(value) if is_plain else type(value).__qualname__
    return found, {name: repr(member.value) for name, member in getattr(kind, "__members__", {}).items()}


def _code(code):
    first, *rest = code.co_consts or (None,)
    doc = isinstance(first, str) and code.co_name != "<lambda>"  # which says nothing
    return code.co_code, code.co_names, [_code(c) if hasattr(c, "co_code") else repr(c) for c in [None if doc else first, *rest]]
# ----------------------------------------
