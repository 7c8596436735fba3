"""What a graph took from Python: the file that is emitted guards it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Methods:
    """What forward looks up in a class: methods and properties."""

    words: str
    qualname: str
    names: tuple[str, ...]
    inherited: bool = False  # by `super()`: the class is asked itself, whichever modules there are


@dataclass(frozen=True)
class Reads:
    """What a graph was made of, in words: `following._Words` says them again of a model."""

    classes: Mapping[str, str] = field(default_factory=dict)  # of each module on the way, by path
    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by path, then by name
    methods: tuple[Methods, ...] = ()  # of classes in the model's own file
    globals: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by module ("" for the model's own) and name, `Class.name` too
    written: frozenset[str] = frozenset()  # of these, functions that one `def` of the model's own file makes
    tied: tuple[tuple[str, ...], ...] = ()  # modules, parameters and buffers that are one under several paths
    state: frozenset[str] = frozenset()  # attributes that forward assigns
    environment: Mapping[str, str | None] = field(default_factory=dict)  # variables that are read, None where there is none
    features: frozenset[str] = frozenset()  # what it takes to see all that again, as `following.py` names it
