"""A file of what timing chose, to be kept beside the models: with it a team gets the same files on every machine.

    {"format": 1, "models": {KEY: {GPU: {"model": …, "fusewright": …, "choices": …, "timed": …, "steps": …, "notes": …}}}}

The key is made of the file as predicted, what was asked for of training, and how exact it is; not of PyTorch's version. Where there is
no GPU, what was chosen on one is taken as it is. What another version of fusewright chose, or another GPU, is not taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..emit import Emitted
from ..errors import Refused
from ..frontend.problem import shown
from .tuning.tune import Tuned, from_dict

FORMAT = 1


def key(emitted: Emitted, training: str, precision: str) -> str:
    """The same for the same file as predicted, for the same kind of training, as exact as that."""
    return hashlib.sha256("\0".join([training, precision, emitted.text]).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Answer:
    """What a record has of a model: choices, or in words why they are not taken."""

    tuned: Tuned | None = None
    note: str = ""


def look_up(path: Path, name: str, model: str, gpu: str | None, machine: str) -> Answer:
    """`gpu`: the one that is here; None where there is none: then the machine that is planned for says which."""
    models = read(path)["models"]
    known: dict[str, Any] = models.get(name, {})
    if gpu is None:
        alike = [there for there in known if re.search(rf"\b{re.escape(machine)}\b", there)]
        gpu = next(iter(alike if len(known) != 1 else known), None)
    found = known.get(gpu) if gpu is not None else None
    if found is None:
        return Answer(note=f"{shown(path)} has no choices for this model as it is{others(models, known, model)}")
    if found.get("fusewright") != __version__:
        return Answer(note=f"{shown(path)}: fusewright {found.get('fusewright')} chose, and this is {__version__}")
    try:
        return Answer(from_dict(found))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{shown(path)}: the choices for {model} cannot be read") from None


def others(models: dict[str, Any], known: dict[str, Any], model: str) -> str:
    """In words: what the record has instead."""
    if known:
        return f", but of {', '.join(sorted(known))}"
    rows = [row for entry in models.values() for row in entry.values() if row.get("model") == model]
    versions = sorted({str(row.get("fusewright")) for row in rows} - {__version__})
    return f"; of fusewright {', '.join(versions)} it has" if versions else ""


def add(path: Path, name: str, model: str, gpu: str, tuned: Tuned) -> None:
    """The record with these choices, written whole; what was there under the same key and GPU is replaced."""
    record = read(path)
    row = {"model": model, "fusewright": __version__, **tuned.to_dict()}
    row.pop("cached")
    record["models"].setdefault(name, {})[gpu] = row
    try:
        with tempfile.NamedTemporaryFile("w", dir=path.absolute().parent, delete=False, encoding="utf-8") as file:
            file.write(json.dumps(record, indent=1, sort_keys=True) + "\n")
        os.replace(file.name, path)
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be written: {error.strerror or error}") from None


def read(path: Path) -> dict[str, Any]:
    """The record in a file; an empty one where there is no file yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"format": FORMAT, "models": {}}
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise Refused(f"{shown(path)}: not a tuning record: not JSON") from None
    models = found.get("models") if isinstance(found, dict) else None
    rows = [*models.values()] if isinstance(models, dict) else [None]
    if not all(isinstance(row, dict) and all(isinstance(choice, dict) for choice in row.values()) for row in rows):
        raise Refused(f"{shown(path)}: not a tuning record: it lists no models")
    if found.get("format") != FORMAT:
        raise Refused(f"{shown(path)}: a tuning record of format {found.get('format')}, and this fusewright reads {FORMAT}")
    return dict(found)
