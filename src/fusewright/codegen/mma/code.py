"""Pieces of a tensor-core kernel's text, each with the words in it by which device helpers are called.

A piece says what it calls where it is written, in Python or in a header, so that nobody has to look for it in a kernel's text. In a
`.cuh` file a line `//: NAME calls A B` starts a piece that calls these helpers (`//: NAME`, one that calls none).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

HERE = Path(__file__).parent
PIECE, CALLS = "\n//: ", " calls "


@dataclass(frozen=True)
class Code:
    """A piece of text, and what it calls. Placeholders (`$name`) may stand in it."""

    text: str = ""
    calls: frozenset[str] = frozenset()

    def __add__(self, other: Code | str) -> Code:
        more = other if isinstance(other, Code) else Code(other)
        return Code(self.text + more.text, self.calls | more.calls)

    def __radd__(self, other: str) -> Code:
        return Code(other) + self

    def moved(self, spaces: int) -> Code:
        """To the right."""
        return Code(shifted(self.text, spaces), self.calls)

    def stripped(self) -> Code:
        """Without blank lines at its end."""
        return Code(self.text.rstrip(), self.calls)

    def filled(self, **pieces: Code | str) -> Code:
        """With these in the place of its placeholders: it calls what those call that have a place in it.

        >>> Code("$product(x);").filled(product=calling("mma_tf32", "mma_tf32"), other=calling("meet(x)", "meet"))
        Code(text='mma_tf32(x);', calls=frozenset({'mma_tf32'}))
        """
        places = Places(pieces)
        text = Template(self.text).substitute(places)
        return Code(text, self.calls | places.calls)


class Places(dict[str, Code | str]):
    """What placeholders stand for, as text; `calls` is what those call that were asked for."""

    calls: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> str:
        piece = super().__getitem__(name)
        if isinstance(piece, str):
            return piece
        self.calls |= piece.calls
        return piece.text


def calling(text: str, *words: str) -> Code:
    """A text in which helpers are called by these words."""
    return Code(text, frozenset(words))


def pieces_of(file: str) -> dict[str, Code]:
    """The pieces of a header beside this module, by name."""
    _, *pieces = f"\n{(HERE / file).read_text().rstrip()}".split(PIECE)
    heads = ((head.partition(CALLS), body) for head, body in (piece.split("\n", 1) for piece in pieces))
    return {name: calling(f"{body}\n", *words.split()) for (name, _, words), body in heads}


def shifted(text: str, spaces: int) -> str:
    """The text moved to the right; directives stay at the margin."""
    lines = [line.lstrip() if line.lstrip().startswith("#") else " " * spaces + line for line in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines)
