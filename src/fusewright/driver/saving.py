"""An optimised module as a self-contained file: the file of its class, `get_inputs` and `get_init_inputs`, and what the command adds."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import Fault, Refused
from ..frontend.given import copied
from ..frontend.problem import Problem, problem_of_text, shown
from ..frontend.reads import is_installed
from .content import Unknown, structure
from .optimized import Optimized, known, plain
from .pipeline import optimize
from .planning import planning
from .plans import Example


def save(module: nn.Module, path: str | os.PathLike[str], arguments: Sequence[Any] | None = None) -> None:
    """Write the self-contained file that `fusewright optimize` would write for an optimised module.

    It holds the file of the module's class; `get_init_inputs()` returns `arguments`. Without them, attributes that are called as
    the constructor's parameters are taken for them. A model built so is as this one was, but for values, or `fusewright.Refused`
    says in what it differs. It is planned and verified as it is built from the file, which is in training.
    """
    if not isinstance(module, Optimized):
        raise TypeError(f"a {type(module).__name__} was not made by fusewright.optimize")
    path, kind, plans = Path(path), known(module).kind, known(module).plans
    name = kind.__name__
    if plans.fault:
        raise Refused(f"{name}: nothing was planned: {plans.fault}")
    if plans.autocast is not None:
        raise Refused(f"{name}: planned for calls under {plans.autocast}, and a file is planned for calls outside it")
    if plans.flat is not None:
        raise Refused(f"{name}: a file's model is called with tensors and plain values by position, and this one is not")
    place, source = file_of(kind)
    arguments = list(arguments) if arguments is not None else arguments_of(kind, module)
    text = f"{source.rstrip()}\n\n\n{definitions(kind, plans.examples, arguments)}"
    with planning():
        problem = problem_of_text(place, text)
        check_alike(problem, plain(copied(module)).cpu(), kind)
        run = optimize(problem, replace(plans.options, output=path.absolute()))
    if plans.options.verify and not run.verdict.passed:
        raise Fault(f"{shown(path)} was not written: it did not verify ({run.verdict.worst})")
    try:
        path.write_text(run.text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror or error}") from None


def file_of(kind: type[nn.Module]) -> tuple[Path, str]:
    """Where the class is defined, and that file's text."""
    name = kind.__name__
    if is_installed(kind.__module__):
        raise Refused(f"{name}: its class is one of an installed package; a file needs a class of your own")
    if "." in kind.__qualname__:
        raise Refused(f"{name}: its class stands inside {kind.__qualname__.rpartition('.')[0]}, not at the top of its file")
    try:
        place = Path(inspect.getsourcefile(kind) or "")
        source = place.read_text(encoding="utf-8")
    except (TypeError, OSError, UnicodeDecodeError):
        raise Refused(f"{name}: the source of its class cannot be had; it was not defined in a file") from None
    tree = ast.parse(source)
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.walk(tree)):
        raise Refused(f"{name}: the source of its class cannot be had; {shown(place)} does not define it")
    relative = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    if relative:
        raise Refused(f"{shown(place)}:{relative[0]}: imports from its package, so that no other file can hold its text")
    return place.absolute(), source


def arguments_of(kind: type[nn.Module], module: nn.Module) -> list[Any]:
    """Attributes that are called as the constructor's parameters, by position."""
    found: list[Any] = []
    for parameter in inspect.signature(kind).parameters.values():
        needed = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        value = vars(module).get(parameter.name, parameter.empty)
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and is_literal(value):
            found.append(value)
        elif needed:
            raise Refused(f"{kind.__name__}: what {parameter.name} was when it was built is not known; pass arguments=[...]")
        else:
            break
    return found


def is_literal(value: Any) -> bool:
    """It can be written down."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def definitions(kind: type[nn.Module], examples: Sequence[Example], arguments: Sequence[Any]) -> str:
    odd = [value for value in arguments if not is_literal(value)]
    if odd:
        raise Refused(f"{kind.__name__}: a {type(odd[0]).__name__} among its constructor's arguments cannot be written down")
    alias = f"Model = {kind.__name__}\n\n\n" if kind.__name__ != "Model" else ""
    inputs = ", ".join(map(drawn, examples))
    listed = ", ".join(map(repr, arguments))
    return f"import torch\n\n{alias}def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return [{listed}]\n"


def drawn(example: Example) -> str:
    """Such an input, as an expression."""
    if example.dtype is None:
        return repr(example.value)
    if example.dtype == torch.bool:
        return f"torch.rand({example.shape}) < 0.5"
    if example.dtype.is_floating_point:
        return f"torch.randn({example.shape}, dtype={example.dtype})"
    return f"torch.randint({example.least}, {example.most + 1}, {example.shape}, dtype={example.dtype})"


def check_alike(problem: Problem, module: nn.Module, kind: type[nn.Module]) -> None:
    """Built from the file, it is the module that was optimised, but for values."""
    built = problem.model()
    now = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    then = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    differing = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    if not differing:
        try:
            ours, theirs = structure(module.train(), kind), structure(built.train(), problem.namespace.Model)
            differing = [line.partition(" ")[0] for line in sorted(set(ours) ^ set(theirs))]
        except Unknown as unknown:
            differing = [str(unknown)]
    if differing:
        listed = ", ".join(map(repr, problem.arguments() or [])) or "no arguments"
        words = f"{kind.__name__}: built with {listed}, it differs in {differing[0]}"
        raise Refused(f"{words}; pass arguments=[...] as it was built with")
