"""What commands may be told: each option once, with the words that its help shows."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from ...options import Options


class Target(str, Enum):
    auto = "auto"
    cuda = "cuda"
    host = "host"


class Sanitizer(str, Enum):
    address = "address"
    undefined = "undefined"
    thread = "thread"


class Tuning(str, Enum):
    auto = "auto"
    again = "again"
    off = "off"


class PrecisionMode(str, Enum):
    eager = "eager"
    flags = "flags"


class ArithmeticMode(str, Enum):
    auto = "auto"
    tf32 = "tf32"
    ieee = "ieee"


ModelFile = Annotated[
    Path,
    typer.Argument(metavar="MODEL.py", help="A file that defines Model, get_inputs() and get_init_inputs()."),
]
TargetOption = Annotated[
    Target,
    typer.Option("--target", help="Where the kernels run: auto takes the GPU if there is one, else the host's CPU."),
]
SanitizeOption = Annotated[
    Sanitizer | None,
    typer.Option("--sanitize", help="Build the host kernels with this g++ sanitizer; implies --target host."),
]
TuneOption = Annotated[
    Tuning,
    typer.Option(
        "--tune",
        help="Where there is a GPU, choose between kernels and PyTorch's operators by timing: as an earlier run chose"
        " (auto), anew (again), or by prediction alone (off).",
    ),
]
PrecisionOption = Annotated[
    PrecisionMode,
    typer.Option(
        "--precision",
        help="How exact float32 convolutions are to be where TF32 is allowed: as PyTorch's library in fact computes them, or within"
        " 1e-4 of the rms (eager); or as the flags allow (flags).",
    ),
]
ArithmeticOption = Annotated[
    ArithmeticMode,
    typer.Option(
        "--arithmetic",
        help="What float32 convolutions may multiply where TF32 is allowed: whatever is exact enough (auto); TF32, but no scaled fp16 in"
        " its place (tf32); or float32, split into parts (ieee). It speaks of our kernels: PyTorch's flags decide what its library does.",
    ),
]
ArchOption = Annotated[
    str,
    typer.Option(
        "--arch",
        metavar="NAME",
        help="Plan for this GPU (H200, H100, A100, L4, RTX4090, B200) rather than the one that is here; nothing is tuned for another.",
    ),
]
ModesOption = Annotated[
    str,
    typer.Option("--modes", metavar="MODE,...", help="Baselines: eager, compile, reduce-overhead, max-autotune."),
]
AssumeFinite = Annotated[
    bool,
    typer.Option("--assume-finite", help="Allow laws that hold only where no value is Inf or NaN."),
]
ForwardOnly = Annotated[
    bool,
    typer.Option("--forward-only", help="For inference alone: gradients are not checked; optimize writes no kernels for them."),
]
TimeLimit = Annotated[float, typer.Option("--time-limit", metavar="S", help="Seconds until it is ended.")]
MemoryLimit = Annotated[float, typer.Option("--memory-limit", metavar="GB", help="Memory at which it is ended.")]
Alone = Annotated[
    bool,
    typer.Option("--own-process/--same-process", help="Whether the candidate's code runs in a process of its own."),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit status 1 also where kernels of ours did not build or verify and others were written."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say only what goes wrong: no progress, no report.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, and Python's warnings.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="On an error, show Python's traceback as well.")]


def options_of(target: Target, sanitize: Sanitizer | None, **rest: Any) -> Options:
    if sanitize and target is Target.auto:
        target = Target.host
    return Options(target=target.value, sanitize=sanitize.value if sanitize else "", **rest)


def modes_of(text: str) -> tuple[str, ...]:
    """The baselines of --modes."""
    from ...bench.comparison import check_modes

    found = tuple(mode.strip() for mode in text.split(",") if mode.strip())
    check_modes(found)
    return found
