"""A process of its own for code that may crash, hang or take all the memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL = 0.1  # seconds between two looks at a running process
OLD_LOCK = 300.0  # seconds; no build takes as long
now = time.monotonic  # as it was before any candidate's code ran: a limit must not trust a patched clock


@dataclass(frozen=True)
class Limits:
    """What a process may take, with the compilers it starts."""

    seconds: float = 600.0
    gigabytes: float = 24.0

    def why(self, ended: str) -> str:
        """The sentence for what `watch` ended a process for."""
        return f"ran longer than {self.seconds:g} s" if ended == "time limit" else f"needed more than {self.gigabytes:g} GB"


def with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Other processes import this very fusewright, installed or not."""
    own = str(Path(__file__).parents[1])
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [own, environment.get("PYTHONPATH")]))}


def watch(
    process: subprocess.Popen[bytes], start: float, limits: Limits, stop: threading.Event | None = None, poll: float = POLL
) -> str:
    """Wait for the end of a process that leads a session; "" if it came by itself, else what it was ended for."""
    ended = ""
    try:
        while process.poll() is None and not ended:
            time.sleep(poll)
            if stop is not None and stop.is_set():
                ended = "stopped"
            elif now() - start > limits.seconds:
                ended = "time limit"
            elif memory_of(process.pid) > limits.gigabytes * 1e9:
                ended = "memory limit"
    finally:
        end(process, start)
    return ended


def end(process: subprocess.Popen[bytes], start: float) -> None:
    """End a process that leads a session, with its compilers; it began at `start`."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    drop_locks(since=time.time() - (now() - start))


def drop_locks(since: float | None = None) -> None:
    """Remove locks on builds of ours whose process was ended: PyTorch would wait for them for ever.

    Those made `since` then, or long ago, that no process holds open.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        for lock in [*extensions_root().glob("fusewright_*/lock"), *extensions_root().glob("*/fusewright_*/lock")]:
            made = lock.stat().st_mtime
            left = time.time() - made > OLD_LOCK or (since is not None and made >= since - 1)  # clocks of files are coarse
            if left and not held_open(lock):
                lock.unlink(missing_ok=True)


def extensions_root() -> Path:
    """Where PyTorch keeps what it builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(cache) / "torch_extensions")


def held_open(path: Path) -> bool:
    """Some process of this machine has the file open, as far as the system tells."""
    file = str(path.resolve())
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry) == file:
                return True
    return False


def memory_of(session: int) -> int:
    """Bytes in memory of all processes of a session; 0 where the system does not tell."""
    pages = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = entry.read_text().rpartition(")")[2].split()  # state, parent, group, session, …
            if int(fields[3]) == session:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def signal_name(status: int) -> str:
    """Of a negative exit status."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """A termination signal ends this process as Ctrl-C does: with the processes it started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_alone(arguments: Sequence[str], limits: Limits) -> tuple[int, str]:
    """(exit status, what ended it before its time) of `fusewright ARGUMENTS` in a process of its own that speaks for itself."""
    start = now()
    with terminable():
        process = subprocess.Popen(
            [sys.executable, "-m", "fusewright", *arguments],
            stdin=subprocess.DEVNULL,
            env=with_this_package(os.environ),
            start_new_session=True,
        )
        ended = watch(process, start, limits, poll=0.02)
    if ended:
        return process.returncode, limits.why(ended)
    return process.returncode, f"ended by {signal_name(process.returncode)}" if process.returncode < 0 else ""
