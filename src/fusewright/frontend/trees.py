"""What a call of a module is given and returns, as a list of leaves and the shape of what held them.

PyTorch's own trees know dataclasses only where they were registered, for the whole process. These know lists, tuples, named tuples,
dicts and dataclasses, and nothing is registered.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Refused

PLAIN = (bool, int, float, str, type(None))
LEAVES = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, *PLAIN)
SEQUENCE, FIELDS, MAPPING = "sequence", "fields", "mapping"


@dataclass(frozen=True)
class Leaf:
    """A tensor or a plain value."""


@dataclass(frozen=True)
class Branch:
    """A container: its class, how it is made of its items, and their names where they have any."""

    kind: type
    how: str  # sequence: of a list of items | fields: of items by name | mapping: of pairs
    keys: tuple[Any, ...]
    items: tuple[Tree, ...]


Tree = Leaf | Branch
LEAF = Leaf()


def flatten(value: Any, at: str = "", what: str = "it") -> tuple[list[Any], Tree]:
    """The leaves, in order, and the tree that held them. `at` and `what` begin the sentence that refuses what is neither."""
    leaves: list[Any] = []

    def visit(value: Any, where: str) -> Tree:
        parts = opened(value)
        if parts is None:
            if not isinstance(value, LEAVES):
                raise Refused(f"{at}: {where} is a {type(value).__name__}; only tensors, plain values and containers of them are supported")
            leaves.append(value)
            return LEAF
        how, keys, items = parts
        return Branch(type(value), how, keys, tuple(visit(item, f"{where}[{key!r}]") for key, item in zip(keys, items, strict=True)))

    return leaves, visit(value, what)


def opened(value: Any) -> tuple[str, tuple[Any, ...], list[Any]] | None:
    """How it is made of its items, their names, and the items; None for what is no container."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        return FIELDS, names, [getattr(value, name) for name in names]
    if isinstance(value, (dict, collections.OrderedDict)) and not isinstance(value, (collections.defaultdict, collections.Counter)):
        return (MAPPING, tuple(value), list(value.values())) if all(isinstance(key, PLAIN) for key in value) else None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return FIELDS, tuple(value._fields), list(value)
    if isinstance(value, (list, tuple)):
        return SEQUENCE, tuple(range(len(value))), list(value)
    return None


def unflatten(tree: Tree, leaves: Sequence[Any]) -> Any:
    """What has this shape, of these leaves."""
    remaining = iter(leaves)

    def make(tree: Tree) -> Any:
        if isinstance(tree, Leaf):
            return next(remaining)
        items = [make(item) for item in tree.items]
        if tree.how == FIELDS:
            return tree.kind(**dict(zip(tree.keys, items, strict=True)))
        return tree.kind(zip(tree.keys, items, strict=True)) if tree.how == MAPPING else tree.kind(items)

    return make(tree)


def names_of(tree: Tree, name: str = "") -> Iterator[str]:
    """What each leaf is reached by, in words that a name can be made of."""
    if isinstance(tree, Leaf):
        yield name
        return
    for key, item in zip(tree.keys, tree.items, strict=True):
        yield from names_of(item, f"{name}_{key}" if name else str(key))


def is_plain(tree: Tree) -> bool:
    """A leaf, or lists, tuples and dicts of such."""
    return isinstance(tree, Leaf) or (tree.kind in (list, tuple, dict) and all(map(is_plain, tree.items)))


# ---- calls ----


@dataclass(frozen=True)
class Arguments:
    """What a call is given, in the one way in which it can be written: by position as far as that goes, the rest by name."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any]


def arguments_of(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """TypeError where the signature does not take them. What is the default is left out."""
    bound = signature.bind(*args, **kwargs).arguments
    positional: list[Any] = []
    named: dict[str, Any] = {}
    gap = False
    several = any(p.kind is p.VAR_POSITIONAL and bound.get(n) for n, p in signature.parameters.items())
    for name, parameter in signature.parameters.items():
        value = bound.get(name, parameter.default)
        left_out = name not in bound or value is parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += bound.get(name, ())
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= bound.get(name, {})
        elif left_out and several and parameter.kind is not parameter.KEYWORD_ONLY:
            positional.append(value)  # what follows it has no name
        elif left_out:
            gap = True
        elif gap or parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return Arguments(tuple(positional), named)


def parameter_names(signature: inspect.Signature, given: Arguments) -> list[str]:
    """The parameter that each positional argument is for; a number behind one that takes several."""
    found: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [f"{name}_{i}" for i in range(len(given.positional) - len(found))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            found.append(name)
    return found[: len(given.positional)]


@dataclass(frozen=True)
class Flat:
    """How calls of a module are made of a list of tensors and plain values."""

    names: tuple[str, ...]  # of the leaves
    given: Tree  # of (positional arguments, named ones)

    def call(self, forward: Callable[..., Any], model: Any, leaves: Sequence[Any]) -> Any:
        positional, named = unflatten(self.given, leaves)
        return forward(model, *positional, **named)

    def leaves_of(self, given: Arguments) -> list[Any] | None:
        """Of a call of the same shape; None where it has another."""
        try:
            leaves, tree = flatten((given.positional, dict(given.named)))
        except Refused:
            return None
        return leaves if tree == self.given else None


def flat_call(signature: inspect.Signature, given: Arguments, at: str) -> tuple[list[Any], Flat]:
    """The leaves of a call, and how it is made of them."""
    leaves, trees = list[Any](), list[Tree]()
    words: list[str] = []
    for name, value in zip(parameter_names(signature, given), given.positional, strict=True):
        found, tree = flatten(value, at, f"the argument {name}")
        words += names_of(tree, name)
        leaves += found
        trees.append(tree)
    named, of_named = list[Any](), list[Tree]()
    for name, value in given.named.items():
        found, tree = flatten(value, at, f"the argument {name}")
        words += names_of(tree, name)
        named += found
        of_named.append(tree)
    first = Branch(tuple, SEQUENCE, tuple(range(len(trees))), tuple(trees))
    second = Branch(dict, MAPPING, tuple(given.named), tuple(of_named))
    whole = Branch(tuple, SEQUENCE, (0, 1), (first, second))
    return [*leaves, *named], Flat(distinct(words), whole)


def distinct(words: Sequence[str]) -> tuple[str, ...]:
    """Names that Python takes, no two alike."""
    found: list[str] = []
    for word in words:
        name = re.sub(r"\W", "_", word)
        name = f"_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name
        while name in (*found, "self", "call"):
            name += "_"
        found.append(name)
    return tuple(found)
