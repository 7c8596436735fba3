"""Everything a run may be told."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import Refused
from .target.machine import by_name

TARGETS = ("auto", "cuda", "host")
TUNINGS = ("auto", "again", "off")
PRECISIONS = ("eager", "flags")
ARITHMETICS = ("auto", "tf32", "ieee")
SANITIZERS = ("", "address", "undefined", "thread")


@dataclass(frozen=True)
class Options:
    """One frozen value handed along the whole line; what is not here cannot be configured."""

    target: str = "auto"  # the GPU if there is one, else the host
    sanitize: str = ""  # which sanitizer the host build carries
    assume_finite: bool = False  # allow laws that hold only for finite values
    seeds: int = 2  # how many seeds verification draws; with one, the given sizes are compared once, and nothing is repeated there
    bench: bool = True  # time the result where a GPU is
    modes: tuple[str, ...] = ("eager",)  # what to time it against: eager PyTorch, and torch.compile in its modes
    gradients: bool = True  # write kernels for backward too; without them it runs PyTorch's operators
    output: Path | None = None  # where the new file is to stand; without it, beside the model's
    all_variants: bool = False  # verify every variant that tuning could choose, beside the file that is written
    as_built: bool = False  # verify: a candidate need not follow other arguments, attributes set later and hooks
    forward_only: bool = False  # nobody asks the file for gradients: they are not checked, and backward gets no kernels
    precision: str = "eager"  # eager: as exact as PyTorch's library in fact is, or within 1e-4 of the rms | flags: as its flags allow
    arithmetic: str = "auto"  # of float32 convolutions: whatever is exact enough | tf32: no fp16 in its place | ieee: float32 throughout
    arch: str = ""  # the machine to plan for (target/machine.py); without one, the GPU that is here, or else an H200
    dynamic: bool = True  # sizes vary where the model allows it; without, a plan is for the sizes that were given alone
    verify: bool = True  # run every check on what was written
    tuning_record: Path | None = None  # a file from which choices are taken, and to which new ones are added
    tune: str = "auto"  # auto: choose by timing where a GPU is, or as an earlier run chose | again: time anew | off

    def quickly(self) -> Options:
        """The same, for a first look: as predicted, one seed, nothing timed."""
        return replace(self, tune="off", seeds=1, bench=False)

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise Refused(f"target {self.target!r} is not one of {', '.join(TARGETS)}")
        if self.sanitize not in SANITIZERS:
            raise Refused(f"sanitizer {self.sanitize!r} is not one of {', '.join(filter(None, SANITIZERS))}")
        if self.sanitize and self.target == "cuda":
            raise Refused("sanitizers run on the host target only; use --target host")
        if self.tune not in TUNINGS:
            raise Refused(f"tune {self.tune!r} is not one of {', '.join(TUNINGS)}")
        if self.precision not in PRECISIONS:
            raise Refused(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.arithmetic not in ARITHMETICS:
            raise Refused(f"arithmetic {self.arithmetic!r} is not one of {', '.join(ARITHMETICS)}")
        if self.arch:
            by_name(self.arch)
        if self.seeds < 1:
            raise Refused("verification needs at least one seed")


def cache_root() -> Path:
    """Where everything is kept from one run to the next. RuntimeError: a user without a home."""
    return Path(os.environ.get("FUSEWRIGHT_CACHE") or Path.home() / ".cache" / "fusewright")


def private(folder: Path) -> Path:
    """The folder, made where it is missing, for this user alone: what lies in it is run. One of another user is refused."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise Refused(f"{folder}: the cache folder belongs to another user; set FUSEWRIGHT_CACHE to a folder of your own")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder
