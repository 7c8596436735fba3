"""What every command shares: what becomes of whatever it raises, its statuses, its sentences.

Exit status: 0 done; 1 the result is not equal to the model; 2 bad input or usage; 3 a fault in Fusewright; 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import functools
import importlib
import logging
import sys
import traceback as tracebacks
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import typer

from ...errors import Refused
from ...frontend.collector import lasting

NOT_EQUAL, REFUSED, FAULT, INTERRUPTED = 1, 2, 3, 130
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
NEEDED = {"torch": "PyTorch", "setuptools": "setuptools (PyTorch's extensions need it)"}  # beside what this package itself imports

given: list[str] = []  # the arguments of this run


def guarded(body: Callable[..., int]) -> Callable[..., int]:
    """The command; what it raises becomes one sentence on stderr and an exit status, never a traceback."""

    @functools.wraps(body)
    def run(*args: Any, traceback: bool = False, verbose: bool = False, **kwargs: Any) -> int:
        try:
            with _warnings(shown=verbose):
                status = body(*args, traceback=traceback, verbose=verbose, **kwargs)
        except KeyboardInterrupt:
            if traceback:
                tracebacks.print_exc()
            status = complain("interrupted; nothing was written", INTERRUPTED)
        except SystemExit as stop:
            status = complain(f"the model ended Python with sys.exit({stop.code!r}); nothing was written", REFUSED)
        except Refused as refusal:
            if traceback:
                tracebacks.print_exc()
            status = complain(str(refusal), REFUSED)
        except OSError as error:
            if traceback:
                tracebacks.print_exc()
            status = complain(*_of_the_system(error))
        except Exception as error:
            if traceback:
                tracebacks.print_exc()
            if isinstance(error, ModuleNotFoundError) and error.name in NEEDED:
                raise typer.Exit(complain(f"{NEEDED[error.name]} is not installed here: pip install {error.name}", REFUSED)) from None
            if type(error).__name__ == "OutOfMemoryError":  # torch's: not imported for this
                raise typer.Exit(complain(f"out of memory: {str(error).splitlines()[0]}; nothing was written", REFUSED)) from None
            what = f"internal error: {type(error).__name__}: {error}"
            status = complain(f"{what}; rerun with --traceback and report it", FAULT)
        raise typer.Exit(status)

    return run


def _of_the_system(error: OSError) -> tuple[str, int]:
    """A place where nothing can be written is the user's matter; anything else that the system refuses is a fault of ours."""
    no_temporary = error.errno == errno.ENOENT and "temporary directory" in str(error)
    if error.errno in UNWRITABLE or no_temporary:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}cannot be written: {error.strerror or error}", REFUSED
    return f"internal error: {type(error).__name__}: {error}; rerun with --traceback and report it", FAULT


def the_line() -> ModuleType:
    """The line, and with it PyTorch, which a collector would go through again and again while it is imported."""
    if "torch" in sys.modules:
        return importlib.import_module("..pipeline", __package__)
    with lasting():
        return importlib.import_module("..pipeline", __package__)


@contextmanager
def _warnings(shown: bool) -> Iterator[None]:
    """Keep torch's warnings and log lines away from the one sentence that matters."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        if not shown:
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def complain(sentence: str, status: int) -> int:
    """One line on stderr, whatever was in the message."""
    line = " ".join(sentence.split())
    print(f"fusewright: {line}{'' if line.endswith(('.', '!', '?')) else '.'}", file=sys.stderr)
    return status
