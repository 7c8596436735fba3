"""`doctor`: is everything here that Fusewright needs?"""

from __future__ import annotations

from ...errors import first_line
from ...words import counted
from ..console import Screen, say
from .app import NOT_EQUAL, complain, guarded
from .arguments import Quiet, Target, TargetOption, Traceback, Verbose

STYLES = {"ok": "", "note": "dim", "FAIL": "red"}


@guarded
def doctor(target: TargetOption = Target.auto, quiet: Quiet = False, verbose: Verbose = False, traceback: Traceback = False) -> int:
    """Look at everything that is needed here, and try it: a line for each thing, with what to do where it is not well.

    Python, PyTorch, GPU, compilers, ninja, the cache folder, and a small model that is optimised and verified, which takes some 10 seconds.
    Exit status 0 if all is well, 1 if not. A `note` is nothing to worry about.
    """
    try:
        from .health import BAD, findings
    except (ImportError, OSError) as error:  # no PyTorch, or one whose libraries are not here
        missing = getattr(error, "name", None)
        why = "not installed" if missing == "torch" else f"cannot be imported: {first_line(error)}"
        return complain(f"torch: {why}; pip install {missing or 'torch'}", NOT_EQUAL)
    console = Screen(quiet)
    found = []
    for one in findings(target.value):
        found.append(one)
        if one.status == BAD and quiet:
            complain(f"{one.name}: {one.found}{f'; {one.todo}' if one.todo else ''}", NOT_EQUAL)
        say(console, str(one), STYLES[one.status])
    bad = sum(one.status == BAD for one in found)
    say(console, f"{counted(bad, 'thing')} to see to" if bad else "all is well", "bold red" if bad else "bold green")
    return NOT_EQUAL if bad else 0
