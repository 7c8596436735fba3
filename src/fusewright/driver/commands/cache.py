"""`cache list`, `cache size` and `cache clear`: what is kept from one run to the next."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from ...errors import Refused
from ...words import counted, shown_amount
from ..console import Screen, say
from .app import guarded
from .arguments import Quiet, Traceback, Verbose

cache = typer.Typer(
    help="What is kept from one run to the next: compiled kernels and what timing chose. FUSEWRIGHT_CACHE names its folder.",
    no_args_is_help=True,
)
Kinds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KIND ...]", help="host, choices, arithmetic or cuda; without one, all of them."),
]


@cache.command("list")
@guarded
def list_(kinds: Kinds = None, verbose: Verbose = False, traceback: Traceback = False) -> int:
    """Show what is kept, where, how much it is, and how old the newest of it is; with -v each folder."""
    from .kept import chosen, not_ours, root_of_cache

    console = Screen()
    say(console, str(root_of_cache()), "bold")
    for one in chosen(kinds or []):
        amount = shown_amount(one.size, "B") or "0 B"
        age = f"newest {_ago(one.newest)}" if one.newest else ""
        where = f"left alone: {one.link} is a link" if one.link else one.holds
        say(console, f"  {one.kind:<10}  {counted(one.files, 'file'):>11}  {amount:>8}  {where}{f', {age}' if age else ''}")
        for place in one.places if verbose else ():
            say(console, f"    {place}", "dim")
    others = not_ours() if not kinds else []
    if others:
        say(console, f"  not ours, and never removed: {', '.join(others)}", "dim")
    return 0


@cache.command()
@guarded
def size(
    kinds: Kinds = None,
    in_bytes: Annotated[bool, typer.Option("--bytes", help="The bare number of bytes, for scripts.")] = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Show how much room it takes."""
    from .kept import chosen

    total = sum(one.size for one in chosen(kinds or []))
    say(Screen(), str(total) if in_bytes else shown_amount(total, "B") or "0 B")
    return 0


@cache.command()
@guarded
def clear(
    kinds: Kinds = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Remove what is kept, and say what that freed. Kernels are built again when they are next needed, and choices timed again.

    Asks before it removes anything. Links are not followed, and what is not ours stays.
    """
    from .kept import chosen, removed

    console = Screen(quiet)
    found = [one for one in chosen(kinds or []) if one.places]
    total, files = sum(one.size for one in found), sum(one.files for one in found)
    if not files:
        say(console, "nothing is kept")
        return 0
    what = f"{counted(files, 'file')}, {shown_amount(total, 'B') or '0 B'}, of {', '.join(one.kind for one in found if one.files)}"
    if not yes:
        if not sys.stdin.isatty():
            raise Refused(f"this would remove {what}; say --yes to do so")
        if not _agreed(f"Remove {what}?"):
            say(console, "nothing was removed")
            return 0
    gone_files = gone = 0
    for one in found:
        number, freed = removed(one)
        gone_files, gone = gone_files + number, gone + freed
    say(console, f"removed {counted(gone_files, 'file')}, freed {shown_amount(gone, 'B') or '0 B'}", "bold green")
    left = files - gone_files
    if left > 0:
        say(console, f"{counted(left, 'file')} could not be removed")
    return 0


def _agreed(question: str) -> bool:
    try:
        return bool(typer.confirm(question))
    except typer.Abort:  # Ctrl-C, or the end of the input
        return False


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"
