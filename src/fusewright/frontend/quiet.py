"""What a model prints while it runs hundreds of times: said once."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

_spoken_to: list[TextIO] = []  # where `print` would have gone, outermost first


@contextlib.contextmanager
def unsaid() -> Iterator[None]:
    """Nothing that Python code prints is shown, but for what `said` lets through."""
    _spoken_to.append(sys.stdout)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        _spoken_to.pop()


@contextlib.contextmanager
def said() -> Iterator[None]:
    """Inside `unsaid`: printed as if that were not there."""
    with contextlib.redirect_stdout(_spoken_to[0]) if _spoken_to else contextlib.nullcontext():
        yield
