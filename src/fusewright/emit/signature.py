"""What `forward` takes: its parameters, and what the arguments of the graph are called."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..errors import Unsupported
from ..graph import Graph, Ref


class Signature:
    """Of the `forward` that is written for a graph, after that of the original."""

    def __init__(self, graph: Graph, model: nn.Module):
        self.graph, self.model = graph, model

    def argument_name(self, position: int) -> str:
        """What argument `position` of forward is called: an input's own name, or the original's for a plain value."""
        argument = self.graph.arguments[position]
        if isinstance(argument, Ref):
            return argument.name
        accepted = self.plain_parameters()
        return accepted[position] if accepted is not None else f"plain_{position}"

    def argument_names(self) -> list[str]:
        return [self.argument_name(position) for position in range(len(self.graph.arguments))]

    def plain_parameters(self) -> list[str] | None:
        """The original's own parameter names, where each is one argument of the graph and none has a default."""
        accepted = list(inspect.signature(type(self.model).forward).parameters.values())[1:]
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in accepted)
        flat = self.graph.structure == tuple(range(len(self.graph.arguments)))
        names = [p.name for p in accepted]
        same = len(names) == len(self.graph.arguments) and all(
            not isinstance(a, Ref) or a.name == name for a, name in zip(self.graph.arguments, names, strict=True)
        )
        return names if plain and flat and same else None

    def text(self) -> tuple[str, str]:
        """`forward`'s parameters, and the lines that take the graph's inputs out of them."""
        names = self.plain_parameters()
        if names is not None:
            return ", ".join(names), ""
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
                tests.append(f"list({text}) == {list(tree)!r}")
                for key, item in tree.items():
                    unpack(item, f"{text}[{key!r}]")
            else:
                raise Unsupported(f"forward takes a {type(tree).__name__}, which is not taken apart")

        unpack(self.graph.structure, "arguments")
        lines = [f"if not ({' and '.join(tests)}):", "    return super().forward(*arguments, **named)", *takes]
        return "*arguments, **named", "".join(f"        {line}\n" for line in lines)
