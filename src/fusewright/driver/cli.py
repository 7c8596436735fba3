"""The `fusewright` command: the entry point, and what stands before a command. The commands are in `commands/`."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from .commands.app import REFUSED, complain, given
from .commands.cache import cache
from .commands.doctor import doctor
from .commands.measure import bench, report, suite
from .commands.optimize import explain, optimize
from .commands.verify import verify
from .commands.version import version

app = typer.Typer(
    name="fusewright",
    help="Read a PyTorch model file, write the same model with a few fused CUDA kernels, and prove the two equal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (optimize, verify, explain, bench, report, suite, doctor):  # in the order of `--help`
    app.command()(command)
app.add_typer(cache, name="cache")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fusewright {version()}")
        raise typer.Exit()


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and the commit, and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What stands before a command."""


def main() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another one
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    given[:] = arguments
    try:
        status = app(args=arguments, prog_name="fusewright", standalone_mode=False)
    except Exception as error:
        # typer carries its own copy of click or uses the installed one; both mark a usage error with this method.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message() or "no command given"
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "fusewright"
        see = " See" if message.endswith("?") else "; see"
        return complain(f"{message.rstrip('.')}{see} {where} --help", REFUSED)
    return status if isinstance(status, int) else 0
