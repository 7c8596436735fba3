"""What stands around the model's own text in the emitted file, so that it means there what it meant in its own."""

from __future__ import annotations

import ast
import builtins
import io
import os
import symtable
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..frontend.problem import Problem
from ..ir.pytext import quoted
from .here import holds_own

OWN_GLOBALS = 'globals().get("_MODEL_GLOBALS", globals())'  # in our part of the file: what the model's own names stand for


@dataclass(frozen=True)
class Surroundings:
    """What a model's file relies on besides its text."""

    namespace: Mapping[str, Any] = field(default_factory=dict)  # what it has bound, once it is loaded
    siblings: tuple[str, ...] = ()  # modules that it imports from its folder
    reads_its_place: bool = False  # its code says `__file__`
    original: str = ""  # where it lies, from the folder of the emitted file
    own_arguments: bool = False  # its model is built from objects of its own classes

    @property
    def is_elsewhere(self) -> bool:
        """The emitted file does not lie beside it."""
        return "/" in self.original


def surroundings(problem: Problem, place: Path) -> Surroundings:
    """Of a model's file, for one that is written at `place`."""
    try:
        original = os.path.relpath(problem.path, place.absolute().parent).replace(os.sep, "/")
    except ValueError:  # on another drive
        original = str(problem.path)
    own = holds_own(problem.arguments() or [], problem.namespace.__name__)
    return Surroundings(vars(problem.namespace), problem.siblings, problem.reads_its_place, original, own)


def notes(around: Surroundings) -> list[str]:
    """What a user has to know of a file that does not stand for itself."""
    folder = around.original.rpartition("/")[0] or "its own folder"
    found = []
    if around.siblings:
        found.append(f"the new file is not self-contained: like the model's it imports {', '.join(around.siblings)} from {folder}")
    if around.reads_its_place:
        found.append("the model reads __file__: the new file is to be imported from disk, not run from a string")
    return found


def with_surroundings(source: str, ours: str, around: Surroundings) -> str:
    """The model's text and ours in one file. Where they mean different things by a name, the model's has a namespace of its own."""
    taken = sorted(name for name in _globals(ours) if name in around.namespace and not _is_the_same(name, around.namespace[name]))
    model = _apart(source, taken, around.reads_its_place) if taken else source
    return f"{_behind_future_imports(model, _place_text(around) + _siblings_text(around))}\n\n{ours}"


def _globals(text: str) -> set[str]:
    """The names that a module binds, and those that its functions look up in it or in Python's own."""
    found: set[str] = set()

    def visit(table: symtable.SymbolTable) -> None:
        in_module = table.get_type() == "module"
        found.update(symbol.get_name() for symbol in table.get_symbols() if in_module or symbol.is_global())
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(text, "<emitted>", "exec"))
    return found


def _is_the_same(name: str, value: Any) -> bool:
    """What the model binds is what we mean by the name: a module that both import, or what Python itself means."""
    if name == "Model" or name.startswith("__"):
        return True
    if isinstance(value, ModuleType):
        return value.__name__ == name
    if name == "load_inline":
        return getattr(value, "__module__", "") == "torch.utils.cpp_extension"
    return value is torch.ops.aten if name == "aten" else hasattr(builtins, name) and value is getattr(builtins, name)


def _apart(source: str, taken: list[str], reads_its_place: bool) -> str:
    """The model's text, run in a namespace of its own; all that it binds but what is `taken` is there for others too."""
    lines = "\n".join(f"    {quoted(line)}" for line in io.StringIO(source))
    own = '"__name__": __name__' + (', "__file__": __file__' if reads_its_place else "")
    left = "".join(f", {quoted(name)}" for name in taken)
    return (
        "# The model's file has a namespace of its own: some of its names stand for something else below.\n"
        f"_MODEL_SOURCE = (\n{lines}\n)\n"
        f"_MODEL_GLOBALS = {{{own}}}\n"
        'exec(compile(_MODEL_SOURCE, "<model>", "exec"), _MODEL_GLOBALS)\n'
        f'_apart = {{"__name__", "__file__", "__builtins__"{left}}}\n'
        "globals().update({name: _MODEL_GLOBALS[name] for name in set(_MODEL_GLOBALS) - _apart})\n"
    )


def _behind_future_imports(source: str, text: str) -> str:
    """`text` in front of a model's, but for what has to stand first."""
    if not text:
        return source
    future = [n.end_lineno or 0 for n in ast.parse(source).body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    lines = list(io.StringIO(source))
    return "".join([*lines[: max(future, default=0)], text, *lines[max(future, default=0) :]])


def _place_text(around: Surroundings) -> str:
    if not around.reads_its_place or not around.is_elsewhere:
        return ""
    return (
        "# The model reads __file__, which is to be the original's.\n"
        "import os as _os\n\n"
        f"__file__ = _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), {quoted(around.original)})\n\n"
    )


def _siblings_text(around: Surroundings) -> str:
    if not around.siblings:
        return ""
    names = ", ".join(around.siblings)
    folder = quoted((around.original.rpartition("/")[0] or ".") if not _place_text(around) else ".")
    return f"""# {names}: from the folder of the original, and nothing that is called so and lies elsewhere.
import os as _os
import sys as _sys

if "__file__" in globals():
    _folder = _os.path.normpath(_os.path.join(_os.path.dirname(_os.path.abspath(__file__)), {folder}))
    _sys.path[:0] = [_folder] if _sys.path[:1] != [_folder] else []
    for _name in [name for name in _sys.modules if name.split(".")[0] in {around.siblings!r}]:
        if not str(getattr(_sys.modules[_name], "__file__", "")).startswith(_folder + _os.sep):
            del _sys.modules[_name]

"""
