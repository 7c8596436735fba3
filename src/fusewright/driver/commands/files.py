"""Files that commands read and write: checked before the work starts, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import Refused


def check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except IsADirectoryError:
        raise Refused(f"{path}: a directory, not a Python file") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror or error}") from None


def check_writable(path: Path, reads: Iterable[Path]) -> None:
    """Refuse a place where `write` would fail or would destroy something, by making a file there and removing it."""
    refusal = f"{path}: cannot be written: "
    place = _place(path)
    try:
        if place.is_dir():
            raise Refused(refusal + "it is a directory")
        endless_link = place.is_symlink()
        if endless_link or (place.exists() and not place.is_file()):
            raise Refused(refusal + "it is not a regular file")
        if place.exists() and not os.access(place, os.W_OK):
            raise Refused(refusal + "permission denied")
        for other in map(_place, reads):
            if place == other or (place.exists() and other.exists() and place.samefile(other)):
                raise Refused(refusal + f"it would overwrite {other.name}")
        if not place.parent.is_dir():
            raise Refused(refusal + f"there is no folder {path.parent}")
    except OSError as error:
        raise Refused(refusal + (error.strerror or str(error))) from None
    staged(path, "").unlink()


def write(files: Mapping[Path, str]) -> None:
    """Write every file whole, or leave none of them behind: each is completed beside its place, then moved there."""
    whole_files: dict[Path, Path] = {}
    try:
        for path, text in files.items():
            whole_files[path] = staged(path, text)
        for path, whole in whole_files.items():
            os.replace(whole, _place(path))
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        for whole in whole_files.values():
            whole.unlink(missing_ok=True)


def staged(path: Path, text: str) -> Path:
    """A complete new file in the folder of `path`, with the permissions `path` has or would get."""
    place = _place(path)
    whole = place.with_name(f".fusewright-{secrets.token_hex(6)}")
    try:
        with open(whole, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if place.exists():
            whole.chmod(stat.S_IMODE(place.stat().st_mode))
    except BaseException as error:
        whole.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error
        raise
    return whole


def _place(path: Path) -> Path:
    """Where a path leads: a link is written through, not replaced."""
    return Path(os.path.realpath(path))


def as_json(value: Any) -> str:
    """The text of a JSON file."""
    return json.dumps(strict_json(value), indent=2) + "\n"


def strict_json(value: Any) -> Any:
    """JSON has no Inf or NaN: those become null."""
    if isinstance(value, Mapping):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
