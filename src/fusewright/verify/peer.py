"""A process that answers questions, one after another: plain values and tensors, over two pipes. `worker.serve` is its side of them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import Ended, Raised, Refused
from ..process import Limits, end, now, signal_name, watch, with_this_package
from . import wire

LEAVING = 0.5  # seconds in which a process that is asked nothing more ends by itself


class Peer:
    """It is started at once, and leads a session of its own. What ends it before its time raises `Ended`, then and whenever it is asked
    again.

    `module`: what it runs. `name`: whom a sentence is about. `limits`: of its whole life. `quiet`: what it writes to stderr is not shown.
    """

    def __init__(self, module: str, name: str, limits: Limits | None = None, quiet: bool = False):
        self.name, self.seconds = name, 0.0
        self.how = ""  # it ended, once it has
        self._limits, self._ended_for = limits, list[str]()
        questions, answers = os.pipe(), os.pipe()
        theirs, ours = (questions[0], answers[1]), (questions[1], answers[0])
        self.start = now()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what a candidate prints is no answer
                stderr=subprocess.DEVNULL if quiet else None,
                env=with_this_package(os.environ),
                start_new_session=True,
                pass_fds=theirs,
            )
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._to, self._from = os.fdopen(ours[0], "wb"), os.fdopen(ours[1], "rb")
        self._watcher = threading.Thread(target=self._watched, daemon=True)
        if limits is not None:
            self._watcher.start()

    def _watched(self) -> None:
        assert self._limits is not None
        self._ended_for.append(watch(self.process, self.start, self._limits, poll=0.02))

    def close(self) -> None:
        """Nothing more is asked."""
        with contextlib.suppress(OSError):
            self._to.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=LEAVING)
        self.kill()

    def kill(self) -> None:
        """At once."""
        with contextlib.suppress(OSError):
            self._to.close()
        if self._limits is None and not self.how:
            end(self.process, self.start)
        elif self._limits is not None:
            if self.process.poll() is None:
                self.process.kill()
            self._watcher.join()
        self._from.close()

    def ask(self, what: str, within: float | None = None, **given: Any) -> dict[str, Any]:
        self.send(what, **given)
        return self.answer(within)

    def send(self, what: str, **given: Any) -> None:
        """A question, which `answer` has the answer to. Nothing else is asked before that was called."""
        if self.how:
            raise Ended(self.ended)
        try:
            wire.send(self._to, {"ask": what, **given})
        except OSError as error:
            raise self._gone() from error

    def answer(self, within: float | None = None) -> dict[str, Any]:
        """`within`: seconds, after which the process is ended."""
        if self.how:
            raise Ended(self.ended)
        if within is not None and not self._has_answered(within):
            raise self._gone(Limits(within).why("time limit"))
        try:
            answer: Mapping[str, Any] = wire.receive(self._from)
            self.seconds += float(answer["seconds"])
            known = {name: answer[name] for name in ("refused", "ended", "raised") if name in answer}
        except EOFError as error:
            raise self._gone() from error
        except (wire.Nonsense, KeyError, TypeError, ValueError) as error:
            raise self._gone("its process answered nonsense") from error
        if "refused" in known:
            raise Refused(str(known["refused"]))
        if "ended" in known:
            raise Ended(str(known["ended"]))
        if "raised" in known:
            raise (torch.OutOfMemoryError if answer.get("memory") is True else Raised)(str(known["raised"]))
        return dict(answer)

    def _has_answered(self, within: float) -> bool:
        """It has begun to, or has ended."""
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        return bool(poll.poll(max(0.0, within) * 1e3))

    @property
    def ended(self) -> str:
        """A sentence; "" while it can be asked."""
        return f"{self.name}: {self.how}" if self.how else ""

    def _gone(self, why: str = "") -> Ended:
        """It has ended, or is ended now; says what for."""
        with contextlib.suppress(OSError):
            self._to.close()
        if why:
            self.process.kill()
        elif self._limits is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its pipes close before it has a status
                self.process.wait(timeout=LEAVING)
        if self._limits is None:
            end(self.process, self.start)
        else:
            self._watcher.join()
        status, limit = self.process.returncode, next(iter(self._ended_for), "")
        how = f"ended by {signal_name(status)}" if status < 0 else f"ended its process with status {status}"
        self.how = why or (self._limits.why(limit) if limit and self._limits is not None else how)
        return Ended(self.ended)
