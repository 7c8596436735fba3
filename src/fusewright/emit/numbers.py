"""Kernels that differ only in how far into a tensor they read: one text, which takes these numbers as arguments.

A loop over time that a model writes in Python is as many kernels as steps, which read `x[0]`, `x[1]`, and so on.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..codegen.loops.text import Definition, KernelText, Numbered, Parameter
from ..ir.cpp import Spelling
from ..ir.expr import Binary, Call, Name, walk
from ..ir.stmt import Declare, If, Launch, LaunchOneOf, Statement

FEW = 3  # kernels alike below which each is written out, with its numbers where one looks for them
MOST_ARGUMENTS = 4


class Numbers(Spelling):
    """Of the whole numbers in a kernel's text: those that may be arguments of it, in order.

    They are factors or terms of a size or an offset: nothing is divided by them, and no type or loop depends on them.
    """

    def __init__(self) -> None:
        self.on_device, self.free = True, False
        self.found: list[str] = []

    def enter(self, part: object) -> None:
        if isinstance(part, Definition):
            self.on_device = part.is_kernel
        elif isinstance(part, Statement):
            self.free = is_offset(part) if self.on_device else not isinstance(part, Launch | LaunchOneOf)

    def number(self, text: str, divides: bool) -> str:
        if not self.free or divides:
            return text
        self.found.append(text)
        return self.spell(len(self.found) - 1, text)

    def spell(self, position: int, text: str) -> str:
        return text


class Nameless(Numbers, Numbered):
    """Neither names of the kernel's own nor numbers that may be arguments."""

    def __init__(self, text: KernelText):
        Numbers.__init__(self)
        Numbered.__init__(self, text.own)

    def spell(self, position: int, text: str) -> str:
        return "#"


class WithArguments(Numbers):
    """Names in the place of some numbers."""

    def __init__(self, named: Mapping[int, str]):
        super().__init__()
        self.named = named

    def spell(self, position: int, text: str) -> str:
        return self.named.get(position, text)


def is_offset(statement: Statement) -> bool:
    """A constant that is computed without a comparison or a cast."""
    if not isinstance(statement, Declare) or statement.kind != "Index" or statement.how != "const" or statement.note:
        return False
    parts = [part for expr in statement.exprs for part in walk(expr)]
    compares = any(isinstance(part, Binary) and part.sign in ("<", "<=") for part in parts)
    return not compares and not any(isinstance(part, Call) and part.function.types for part in parts)


def shared_texts(texts: list[KernelText]) -> dict[str, KernelText]:
    """By name: the kernel as it is launched, with its numbers behind its sizes, where several are one. The first has the source."""
    alike: dict[str, list[KernelText]] = {}
    for text in texts:
        if sum(function.is_kernel for function in text.functions) == 1:
            alike.setdefault(text.spelled(Nameless(text)), []).append(text)
    found: dict[str, KernelText] = {}
    for family in alike.values():
        if len(family) >= FEW:
            found |= joined(family)
    return found


def numbers_of(text: KernelText) -> list[str]:
    numbers = Numbers()
    text.spelled(numbers)
    return numbers.found


def joined(family: list[KernelText]) -> dict[str, KernelText]:
    """Nothing where too many numbers differ."""
    first = family[0]
    values = list(zip(*map(numbers_of, family), strict=True))
    differing = [i for i, numbers in enumerate(values) if len(set(numbers)) > 1]
    free = (name for name in map("step_{}".format, itertools.count(1)) if name not in first.own | first.calls)
    names = dict(zip(dict.fromkeys(values[i] for i in differing), free, strict=False))
    if len(names) > MOST_ARGUMENTS:
        return {}
    arguments = tuple(names.values())
    functions = tuple(with_arguments(function, arguments) for function in first.functions)
    spelling = functools.partial(WithArguments, {i: names[values[i]] for i in differing})
    found = {first.name: replace(first, functions=functions, spelling=spelling)}
    found |= {text.name: replace(text, name=first.name) for text in family[1:]}
    numbers = zip(*names, strict=True)
    return {name: replace(text, sizes=(*text.sizes, *own)) for (name, text), own in zip(found.items(), numbers, strict=True)}


def with_arguments(function: Definition, names: Sequence[str]) -> Definition:
    """The function with these numbers as its last parameters; a launcher hands them on."""
    if function.is_kernel:
        return replace(function, parameters=(*function.parameters, *(Parameter("Index", name) for name in names)))
    *others, stream = function.parameters
    parameters = (*others, *(Parameter("long long", name) for name in names), stream)
    return replace(function, parameters=parameters, body=tuple(handing_on(statement, names) for statement in function.body))


def handing_on(statement: Statement, names: Sequence[str]) -> Statement:
    match statement:
        case Launch() | LaunchOneOf():
            return replace(statement, arguments=(*statement.arguments, *map(Name, names)))
        case If(test, then, otherwise):
            return If(test, handing_on(then, names), None if otherwise is None else handing_on(otherwise, names))
    return statement
