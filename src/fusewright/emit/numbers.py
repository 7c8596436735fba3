"""Kernels that differ only in how far into a tensor they read: one text, which takes these numbers as arguments.

A loop over time that a model writes in Python is as many kernels as steps, which read `x[0]`, `x[1]`, and so on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..kernels.text import KernelText

NUMBER = re.compile(r"(?<![\w.@])\d+(?![\w.])")  # whole, and no part of a name or of a float
FEW = 3  # kernels alike below which each is written out, with its numbers where one looks for them
MOST_ARGUMENTS = 4


@dataclass(frozen=True)
class Place:
    """Where a number stands in the code of a kernel: between what is before and after it in its line."""

    number: str
    before: str
    line: str
    on_device: bool

    @property
    def may_vary(self) -> bool:
        """As a factor or a term of a size or an offset: nothing is divided by it, and no type or loop depends on it."""
        if "<<<" in self.line or self.before.rstrip().endswith(("/", "%")):
            return False
        return not self.on_device or bool(re.fullmatch(r"\s*const Index \w+ = [^<;]*;", self.line))


def code_lines(source: str) -> Iterator[tuple[int, str]]:
    return ((i, line) for i, line in enumerate(source.splitlines()) if not line.startswith("//"))


def places(source: str) -> list[Place]:
    found, on_device = [], True
    for _, line in code_lines(source):
        on_device = on_device and not line.startswith('extern "C"')
        found += [Place(m[0], line[: m.start()], line, on_device) for m in NUMBER.finditer(line)]
    return found


def shared_texts(texts: list[KernelText]) -> dict[str, KernelText]:
    """By name: the kernel as it is launched, with its numbers behind its sizes, where several are one. The first has the source."""
    alike: dict[str, list[KernelText]] = {}
    for text in texts:
        if text.source.count("__global__") == 1:
            alike.setdefault(NUMBER.sub("#", text.shape), []).append(text)
    found: dict[str, KernelText] = {}
    for family in alike.values():
        if len(family) >= FEW:
            found |= joined(family)
    return found


def joined(family: list[KernelText]) -> dict[str, KernelText]:
    """Nothing where a number that differs may not vary, or too many differ."""
    first = family[0]
    standing = places(first.source)
    values = list(zip(*([place.number for place in places(text.source)] for text in family), strict=True))
    differing = [i for i, numbers in enumerate(values) if len(set(numbers)) > 1]
    free = (name for name in map("step_{}".format, itertools.count(1)) if not re.search(rf"\b{name}\b", first.source))
    names = dict(zip(dict.fromkeys(values[i] for i in differing), free, strict=False))
    if len(names) > MOST_ARGUMENTS or not all(standing[i].may_vary for i in differing):
        return {}
    source = with_arguments(first, {i: names[values[i]] for i in differing}, list(names.values()))
    numbers_of = zip(*names, strict=True)
    return {
        text.name: replace(text, name=first.name, source=source if text is first else text.source, sizes=(*text.sizes, *numbers))
        for text, numbers in zip(family, numbers_of, strict=True)
    }


def with_arguments(text: KernelText, named: dict[int, str], arguments: list[str]) -> str:
    """The source with names in these places, and the names as parameters of the kernel and of its launcher."""
    lines, count = text.source.splitlines(), itertools.count()
    for i, line in code_lines(text.source):
        lines[i] = NUMBER.sub(lambda m: named.get(next(count), m[0]), line)
        if "<<<" in line:
            lines[i] = re.sub(r"\);$", f", {', '.join(arguments)});", lines[i])
    source = "\n".join(lines) + "\n"
    source = source.replace(") {\n", "".join(f", Index {name}" for name in arguments) + ") {\n", 1)  # the kernel's own comes first
    return re.sub(r"(?=,\s+void\* stream\) \{)", "".join(f", long long {name}" for name in arguments), source, count=1)
