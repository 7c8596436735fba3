"""Which tiles can serve a convolution, and what each is expected to cost."""

from __future__ import annotations

from math import prod
from typing import Sequence

from fusewright.kernels.conv_layout import Layout, layout, refusal
from fusewright.kernels.conv_spec import Conv, Ending, OverChannels, Tile, triple, widened


def fits(conv: Conv, ending: Ending) -> bool:
    """Some tile serves this convolution and this ending."""
    return bool(candidate_tiles(conv, ending))


def candidate_tiles(conv: Conv, ending: Ending) -> list[Tile]:
    return []


def predicted_ms(conv: Conv, ending: Ending, sizes: Sequence[int], tile: Tile) -> float:
    return 0.0
