"""What a text of CUDA calls, by its words: the program itself is told (`Code.calls`), and reads no text. Tests compare the two."""

from __future__ import annotations

import re

from fusewright.target.helpers import named


def called(code: str) -> frozenset[str]:
    """The helpers that are called. Values have other names (`device_names`); remarks and placeholders are no code."""
    plain = [re.sub(r"\$(\w+|\{\w+\})", "", line.partition("//")[0]) for line in code.splitlines()]
    return named(word for line in plain for word in re.findall(r"\w+", line))
