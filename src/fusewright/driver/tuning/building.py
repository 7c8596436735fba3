"""CUDA units built side by side: each by an nvcc of its own, on all cores, and the same text once.

A file builds its units itself, one when a model is made and others at the first backward (`_built` in the emitted text). Asked before, in
threads, they are built at the same time, in the same place and under the same names: later calls find them there.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType

from ...verify.candidate import Candidate


@dataclass(frozen=True)
class Unit:
    """One CUDA source of a loaded file, and what builds it."""

    source: str
    module: ModuleType

    def build(self) -> None:
        self.module._built(self.source)


def units_of(candidate: Candidate, training: bool = True) -> list[Unit]:
    """Those of a file of ours that nvcc builds; what only a backward calls, where `training` is asked for."""
    module = candidate.module
    if candidate.target != "cuda" or not candidate.forward_kernels:
        return []
    found = [Unit(module._CUDA_SOURCE, module)]
    more = [name for name in ("_CUDA_SAVING", "_CUDA_GRADIENTS") if training and hasattr(module, name)]
    return found + [Unit(getattr(module, name), module) for name in more]


_failed: dict[str, Exception] = {}  # by source: PyTorch builds nothing a second time in one process, and would only miss the library


def build(units: Iterable[Unit], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Builds them, and does something else meanwhile. A file asks for its units again, and then raises what nvcc said."""
    units = list(units)
    distinct = {unit.source: unit for unit in units if unit.source not in _failed}
    if distinct:
        flags = sys.getdlopenflags()  # PyTorch changes them while it loads a library, and puts them back: not in threads
        with ThreadPoolExecutor(min(len(distinct), os.cpu_count() or 1)) as pool:
            running = {source: pool.submit(unit.build) for source, unit in distinct.items()}
            meanwhile()
        sys.setdlopenflags(flags)
        _failed.update({source: error for source, future in running.items() if isinstance(error := future.exception(), Exception)})
    else:
        meanwhile()
    for unit in units:
        if unit.source in _failed:
            vars(unit.module)["_built"] = functools.partial(_built_or_not, unit.module._built, unit.source, _failed[unit.source])


def _built_or_not(built: Callable[[str], object], failed: str, error: Exception, source: str) -> object:
    if source == failed:
        raise error
    return built(source)


# ---- in another process ----


def libraries(units: Iterable[Unit]) -> list[str]:
    """Where they were built."""
    return [str(unit.module._built(unit.source)._name) for unit in units]


def load_from(units: Sequence[Unit], paths: Sequence[str]) -> None:
    """Their files load these libraries, and run no compiler, nor ask ninja whether there is anything to do."""
    known = {unit.source: path for unit, path in zip(units, paths, strict=True)}
    for module in {unit.module for unit in units}:
        vars(module)["_built"] = functools.lru_cache(maxsize=None)(functools.partial(_loaded_or_built, known, module._built))


def _loaded_or_built(known: Mapping[str, str], built: Callable[[str], object], source: str) -> object:
    return ctypes.CDLL(known[source]) if source in known else built(source)
