"""What is kept from one run to the next: what there is of it, how much room it takes, and how it goes.

Links are never followed: of a folder of ours that is a link, nothing is counted and nothing removed. Whatever else lies in the cache
folder is not ours, and stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import Refused
from ...options import cache_root
from ...process import extensions_root

# Folders of the cache, and what each holds. What is not named here is never removed.
KINDS = {
    "host": "kernels compiled for the CPU by g++",
    "choices": "which kernels were fastest on this GPU, by timing",
    "modules": "plans of modules that fusewright.optimize was given",
    "arithmetic": "how exact PyTorch's own convolutions were found to be",
}
CUDA = "cuda"  # PyTorch keeps what nvcc builds in a folder of its own
CUDA_HOLDS = "kernels compiled for the GPU by nvcc, kept by PyTorch"
ALL = (*KINDS, CUDA)


@dataclass(frozen=True)
class Kept:
    """One kind of what is kept."""

    kind: str
    holds: str
    places: tuple[Path, ...]  # folders; of a kind that is a link, none
    files: int = 0
    size: int = 0  # bytes
    newest: float | None = None  # seconds since the epoch
    link: Path | None = None  # the folder is a link, which is left alone


def everything() -> list[Kept]:
    """Every kind, in order; those that hold nothing too."""
    root = root_of_cache()
    found = [_kept(kind, holds, [root / kind]) for kind, holds in KINDS.items()]
    return [*found, _kept(CUDA, CUDA_HOLDS, _extensions())]


def root_of_cache() -> Path:
    """Refused: a user without a home, or a file where the folder should be."""
    try:
        root = cache_root()
        if root.exists() and not root.is_dir():
            raise Refused(f"{root}: the cache folder is not a folder; set FUSEWRIGHT_CACHE to one")
        return root
    except RuntimeError as error:
        raise Refused(f"no cache folder: {error}; set FUSEWRIGHT_CACHE to one") from None


def not_ours() -> list[str]:
    """Names in the cache folder that no kind of ours has."""
    try:
        return sorted(entry.name for entry in os.scandir(root_of_cache()) if entry.name not in KINDS)
    except OSError:
        return []


def chosen(kinds: Sequence[str]) -> list[Kept]:
    """Of these kinds; of all where none is named."""
    wrong = [kind for kind in kinds if kind not in ALL]
    if wrong:
        raise Refused(f"{wrong[0]!r} is not kept here; there are {', '.join(ALL)}")
    return [one for one in everything() if not kinds or one.kind in kinds]


def removed(kept: Kept) -> tuple[int, int]:
    """(files, bytes) that are gone. What cannot be removed stays, and what others remove meanwhile is not counted."""
    files = size = 0
    for place in kept.places:
        for path, facts in _below(place):
            try:
                path.unlink()
            except OSError:
                continue
            files, size = files + 1, size + facts.st_size
        _remove_empty(place)
    return files, size


# ---- folders


def _kept(kind: str, holds: str, folders: Sequence[Path]) -> Kept:
    link = next((folder for folder in folders if folder.is_symlink()), None)
    places = tuple(folder for folder in folders if not folder.is_symlink() and folder.is_dir())
    facts = [facts for place in places for _, facts in _below(place)]
    newest = max((one.st_mtime for one in facts), default=None)
    return Kept(kind, holds, places, len(facts), sum(one.st_size for one in facts), newest, link)


def _extensions() -> list[Path]:
    """Folders of our builds, in the folder that PyTorch keeps, and one below it (for its version)."""
    try:
        root = extensions_root()
        return sorted(path for path in [*root.glob("fusewright_*"), *root.glob("*/fusewright_*")] if not path.is_symlink())
    except (OSError, RuntimeError):
        return []


def _below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file below a folder, links as what they are."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            facts = entry.stat(follow_symlinks=False)
        except OSError:  # gone meanwhile
            continue
        if stat.S_ISDIR(facts.st_mode):
            yield from _below(Path(entry.path))
        else:
            yield Path(entry.path), facts


def _remove_empty(folder: Path) -> None:
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                _remove_empty(Path(entry.path))
        folder.rmdir()
    except OSError:  # something stayed in it, or it is gone
        return
