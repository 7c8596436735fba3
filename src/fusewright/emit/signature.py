"""What `forward` takes: its parameters, and what the arguments of the graph are called."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..errors import Unsupported
from ..ir.graph import Graph, Ref
from ..ir.names import RESERVED, value_name


class Signature:
    """Of the `forward` that is written for a graph, after that of the original."""

    def __init__(self, graph: Graph, model: nn.Module):
        self.graph, self.model = graph, model

    def argument_name(self, position: int) -> str:
        """What argument `position` of forward is called: an input's own name, or for a plain value the original's, where it may be."""
        argument = self.graph.arguments[position]
        if isinstance(argument, Ref):
            return argument.name
        accepted = self.accepted()
        own = accepted[position] if accepted is not None else ""
        return own if value_name(own) == own and self.is_free(own) else self.free(f"plain_{position}")

    def is_free(self, name: str) -> bool:
        return name not in RESERVED and name not in self.graph.index and name not in map(str, self.graph.symbols)

    def free(self, name: str) -> str:
        while not self.is_free(name):
            name += "_"
        return name

    def argument_names(self) -> list[str]:
        return [self.argument_name(position) for position in range(len(self.graph.arguments))]

    def accepted(self) -> list[str] | None:
        """The original's own parameter names, where each is one argument of the graph and none has a default."""
        accepted = list(inspect.signature(type(self.model).forward).parameters.values())[1:]
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in accepted)
        flat = self.graph.structure == tuple(range(len(self.graph.arguments)))
        names = [p.name for p in accepted]
        return names if plain and flat and len(names) == len(self.graph.arguments) else None

    def outer(self) -> list[str] | None:
        """The original's parameters, where some may not be called so where the graph is computed: they are handed on by position."""
        accepted = self.accepted()
        return accepted if accepted is not None and accepted != self.argument_names() else None

    def text(self) -> tuple[str, str]:
        """The parameters of what computes the graph, and the lines that take the graph's inputs out of them."""
        if self.accepted() is not None:
            return ", ".join(self.argument_names()), ""
        tests, takes = [f"len(arguments) == {len(self.graph.structure)}", "not named"], []

        def unpack(tree: Any, text: str) -> None:
            if isinstance(tree, int):
                takes.append(f"{self.argument_name(tree)} = {text}")
            elif isinstance(tree, (tuple, list)):
                if text != "arguments":
                    tests.append(f"len({text}) == {len(tree)}")
                for i, item in enumerate(tree):
                    unpack(item, f"{text}[{i}]")
            elif isinstance(tree, dict):
                tests.append(f"list({text}) == {list(tree)!a}")
                for key, item in tree.items():
                    unpack(item, f"{text}[{key!a}]")
            else:
                raise Unsupported(f"forward takes a {type(tree).__name__}, which is not taken apart")

        unpack(self.graph.structure, "arguments")
        lines = [f"if not ({' and '.join(tests)}):", "    return super().forward(*arguments, **named)", *takes]
        return "*arguments, **named", "".join(f"        {line}\n" for line in lines)
