"""A first run of each file in a process of its own: a kernel that crashes, or never ends, costs its file and not the run.

A kernel that faults ends the GPU's context for its whole process, and one that waits for ever cannot be ended but with its process. So a
file is called there first, twice, and where it is trained a few steps are run; then the tool's own process runs it. One such process
serves all files, one after another. One that has ended, or does not answer in time, is replaced. `probe_worker.py` is the other side.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import Raised, Refused, first_line
from ...frontend.given import Given
from ...frontend.problem import Problem, problem_of_text
from ...process import now
from ...verify.candidate import Candidate
from ...verify.guard import snapshot
from ...verify.memory import nbytes
from ...verify.peer import Peer
from ...verify.shrink import Sizes
from . import building

WORKER = "fusewright.driver.tuning.probe_worker"
STARTING = 120.0  # seconds for importing PyTorch, making the GPU's context, loading the model and calling it twice
LEAST, TIMES = 20.0, 50.0  # seconds, and calls of eager's, beside the time that loading took: what takes longer never ends
MOST_BYTES = 1 << 30  # of a module that is no file's, for handing it over


_inside = False  # this process is one for first runs


def inside() -> None:
    """Said in such a process: a file that optimises something when it is imported starts no other from there, which would do the same."""
    global _inside
    _inside = True


@dataclass(frozen=True)
class Fault:
    """What a first run of a file came to."""

    what: str
    in_training: bool = False  # a call without gradients went well

    def __str__(self) -> str:
        return f"{'first training steps' if self.in_training else 'a first run'} in a process apart {self.what}"


class Stopped(Refused):
    """A file is at fault: it is not to be run here."""

    def __init__(self, fault: Fault):
        super().__init__(str(fault))
        self.fault = fault


@dataclass
class FirstRun:
    """`fault`, once it is known: None where the file ran, where it raised as it would here too, and where nothing could be tried."""

    fault: Fault | None = None


class Probe:
    """The process that files are first run in: started on entry, so that it is ready by the time that a file is built."""

    def __init__(self, problem: Problem, target: str):
        self.problem, self.target = problem, target
        self.why = ""  # no process can be had: nothing is tried any more
        self.short = False  # memory ran out there
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._peer: Peer | None = None
        self._asked = math.nan  # when it was told what to load; nan: not yet
        self._limit = math.nan  # seconds for an answer; nan: it has not loaded yet
        self._known: dict[tuple[str, bool, tuple[Sizes, ...]], Fault | None] = {}  # by a file's text and how it was run

    def __enter__(self) -> Probe:
        if _inside:
            self.why = "this is such a process"
            return self
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="fusewright-")
            self._parcel = pack(self.problem, Path(self._folder.name))
            self._start()
        except Exception as error:  # pickle raises many kinds, of the user's classes; no process can be started, no file written
            self.why = first_line(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """What it holds of the GPU is free again."""
        if self._peer is not None:
            self._peer.kill()
            self._peer = None
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def notes(self) -> list[str]:
        if self.why:
            return [f"kernels were not run in a process of their own first: {self.why}"]
        return ["not every file was run in a process of its own first: memory ran out there"] if self.short else []

    def load(self) -> None:
        """From now on it may use the GPU. Where a GPU has one context at a time, this process is to have made its own."""
        if self._peer is None or not math.isnan(self._asked):
            return
        device = torch.cuda.current_device() if self.target == "cuda" and torch.cuda.is_initialized() else 0
        self._asked = now()
        with self._or_never():
            self._peer.send("load", parcel=str(self._parcel), target=self.target, device=device)

    @contextlib.contextmanager
    def beside(self, candidate: Candidate, training: bool = False, sizes: Sequence[Sizes] = ()) -> Iterator[FirstRun]:
        """A first run there, while something else is done here; what came of it is known at the end. `training`: steps, too. `sizes`: at
        these, after a call at the example's."""
        run, key = FirstRun(), (candidate.source, training, tuple(sizes))
        asked = candidate.kernels and key not in self._known and self._ask(candidate, training, sizes)
        try:
            yield run
        except Exception:
            if asked:
                self._known[key] = self._answer(training, sizes)
            raise
        if asked:
            self._known[key] = self._answer(training, sizes)
        run.fault = self._known.get(key)

    def first_run(self, candidate: Candidate, training: bool = False, sizes: Sequence[Sizes] = ()) -> Fault | None:
        with self.beside(candidate, training, sizes) as run:
            pass
        return run.fault

    # ---- its process ----

    def _start(self) -> None:
        self._asked = self._limit = math.nan
        self._peer = Peer(WORKER, "a process for first runs", quiet=True)

    def _again(self) -> None:
        """Another process. It loads when it is asked for: what is timed here has the GPU for itself."""
        if self._peer is not None:
            self._peer.kill()
        self._peer = None
        with self._or_never():
            self._start()

    @contextlib.contextmanager
    def _or_never(self) -> Iterator[None]:
        """What cannot be done once is not tried again."""
        try:
            yield
        except (Refused, Raised, RuntimeError, OSError) as error:
            self.why = self._peer.how if self._peer is not None and self._peer.how else first_line(error)
            if self._peer is not None:
                self._peer.kill()
            self._peer = None

    def _ready(self) -> bool:
        self.load()
        if self._peer is not None and math.isnan(self._limit):
            with self._or_never():
                found = self._peer.answer(max(1.0, STARTING - (now() - self._asked)))
                self._limit = math.ceil(LEAST + TIMES * found["call"] + 2 * found["loading"])
        return self._peer is not None

    def _ask(self, candidate: Candidate, training: bool, sizes: Sequence[Sizes]) -> bool:
        if not self._ready():
            return False
        try:
            libraries = building.libraries(building.units_of(candidate, training))
        except (Refused, RuntimeError, OSError):  # it does not build, which is said where it is run here
            return False
        place = getattr(candidate.module, "__file__", None)
        with self._or_never():
            assert self._peer is not None
            if sizes:
                self._peer.ask("choose", STARTING, sizes=tuple(sizes))
            self._peer.send("forward", text=candidate.source, name=candidate.name, place=place, libraries=libraries, training=training)
        return self._peer is not None

    def _answer(self, training: bool, sizes: Sequence[Sizes]) -> Fault | None:
        assert self._peer is not None
        peer, in_training, what = self._peer, False, "stopped the GPU"
        try:
            peer.answer(self._limit)
            if sizes:
                peer.ask("others", self._limit, training=False)
            if training:
                in_training = True
                peer.ask("others", self._limit, training=True) if sizes else peer.ask("steps", self._limit)
        except torch.OutOfMemoryError:  # this process holds what the other one lacks: no fault of the file's
            self.short, what = True, ""
        except (Refused, Raised) as error:
            what = peer.how or f"stopped the GPU: {first_line(error)}"
        if not peer.how and self._works(peer):  # and where the file raised, it does so here too
            return None
        self._again()
        return Fault(what, in_training) if what else None

    @staticmethod
    def _works(peer: Peer) -> bool:
        """And its memory is free again."""
        try:
            return peer.ask("works", LEAST)["works"] is True
        except (Refused, Raised, RuntimeError):
            return False


# ---- the same problem in another process ----


def pack(problem: Problem, folder: Path) -> Path:
    """A file from which `unpacked` makes the same problem. What cannot be had elsewhere is refused, or pickle says so."""
    parts: dict[str, Any] = {"path": problem.path}
    if isinstance(problem, Given):
        if any(type(part).__module__ == "__main__" for part in problem.module.modules()):
            raise Refused("the model's classes are those of a script, which no other process can import")
        tensors = [*problem.module.parameters(), *problem.module.buffers(), *pytree.tree_leaves(problem.values)]
        if nbytes(tensors) > MOST_BYTES:
            raise Refused(f"the module and its inputs take {nbytes(tensors) / 2**30:.1f} GB, which would be written and read")
        parts |= {"module": problem.module, "values": problem.values, "requiring": problem.requiring}
    else:
        parts["source"] = problem.source
    path = folder / "problem"
    with path.open("wb") as file:
        pickle.dump((sys.path, dict(snapshot().flags)), file)
        pickle.dump(parts, file)
    return path


def unpacked(path: Path) -> Problem:
    """In the other process: the problem, under the same flags."""
    with path.open("rb") as file:
        folders, flags = pickle.load(file)
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        parts = pickle.load(file)
    place: Path = parts.pop("path")
    problem = problem_of_text(place, parts["source"]) if "source" in parts else Given(place, "", ModuleType(place.name), **parts)
    replace(snapshot(), flags=flags).restore()
    return problem
