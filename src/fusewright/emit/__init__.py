"""Plan -> one self-contained Python file. `file.py` has the entry; everything else is one part of the file, or what it rests on."""

from .file import Emitted, emit

__all__ = ["Emitted", "emit"]
