"""What a lane holds of a tile once it is multiplied, and where that lies in the output."""

from __future__ import annotations

from dataclasses import dataclass

from .code import shifted
from .conv_layout import Layout


@dataclass(frozen=True)
class Held:
    """A lane's elements, of channel i, fragment f and neighbour e: those of the convolution, or of its pool."""

    pooled: bool

    def at(self, f: str = "f", e: str = "e") -> str:
        return f"pooled[i][{f}][{e}]" if self.pooled else f"acc[i / 2][{f}][i % 2 * 2 + {e}]"

    @property
    def first_channel(self) -> str:
        return "pooled[0][f][e]" if self.pooled else "acc[0][f][e]"

    def __str__(self) -> str:
        return self.at()


ACCUMULATED, POOLED = Held(False), Held(True)


@dataclass(frozen=True)
class Place:
    """Where an element of a lane lies, in the convolution's output or in the pool's."""

    d: str
    h: str
    first: str  # the column at which the warp's begin,
    column: str  # and how far from there

    @property
    def w(self) -> str:
        return f"{self.first} + {self.column}"

    @property
    def axes(self) -> dict[str, str]:
        return {"d": self.d, "h": self.h, "w": self.w}


def pair_of_lane(shape: Layout, pooled: bool) -> int:
    """Neighbours in a row that a lane holds."""
    return shape.pair if pooled else 2


def positions(shape: Layout, pooled: bool, f: str = "f", lane: str = "") -> Place:
    """Where element (f, e) of a lane lies; `lane` says which position of a fragment it is, where it is not a lane's own."""
    _, fh, fw = shape.held if pooled else shape.spread
    pd, ph, pw = shape.window if pooled else (1, 1, 1)
    run = shape.run if pooled else shape.interleave
    alone = pair_of_lane(shape, pooled) == 1
    lane = lane or ("quad" if alone else "2 * quad + e")
    fragment = f if fw == 1 else f"{f} % {fw}"
    step = 4 if alone else 8
    if run == 1:
        column = lane if fw == 1 else f"{fragment} * {step} + {lane}"
    else:
        column = f"{fragment} / {run} * {8 * run} + ({lane}) * {run} + {fragment} % {run}"
    return Place(
        d=f"{over('d0', pd)} + {over(f, fh * fw)}",
        h=f"{over('h0', ph)} + {over(f, fw)} % {fh}",  # also where that is 0: without it nvcc spills 112 bytes of a maximum over channels
        first=over("w0", pw),
        column=column,
    )


def over(x: str, n: int) -> str:
    return x if n == 1 else f"{x} / {n}"


def digit(x: str, count: int, below: int, leading: bool) -> list[str]:
    """A digit of a number: there are `count` of them, each worth `below`; the leading one needs no rest. Nothing where it is 0."""
    if count == 1:
        return []
    return [over(x, below) if leading else f"{over(x, below)} % {count}"]


def in_digits(parts: list[tuple[list[str], int]]) -> list[str]:
    """The terms of a number of digits, the leading one first: of each its own terms, and how many of them there are."""
    found: list[str] = []
    for terms, count in parts:
        if found and count > 1:
            found = [f"{found[0]} * {count}" if len(found) == 1 else f"({' + '.join(found)}) * {count}"]
        found = [*found, *terms]
    return found


def first_of_pair(shape: Layout, pooled: bool) -> Place:
    """Where the first of the neighbours that a lane holds lies."""
    return positions(shape, pooled, lane="quad" if pair_of_lane(shape, pooled) == 1 else "2 * quad")


def each_element(inner: str, fragments: str, pair: str, header: str = "") -> str:
    e = f"for (int e = 0; e < {pair}; ++e)"
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        + (shifted(header, 2) + "\n" if header else "")
        + f"#pragma unroll\n  for (int f = 0; f < {fragments}; ++f)\n#pragma unroll\n    {e} {{\n"
        + shifted(inner.rstrip("\n"), 6)
        + "\n    }\n}\n"
    )
