"""A suite on a cluster of machines: each model is a task of Ray, with a GPU of its own where there are some.

Machines need PyTorch and what the models import; this package is sent to them, and so is each model's file. What comes back is
what a process of this machine would have left: a result, and the emitted file where it is to be kept.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import Refused, first_line
from ..process import terminable
from ..report.results import Result
from . import suite
from .suite import Runner, Settings, Work

PACKAGE = Path(__file__).parents[1]
WAIT = 1.0  # seconds between two looks at a cluster
GRACE = 10.0  # seconds for tasks to end what they started


@contextlib.contextmanager
def cluster(address: str, **more: Any) -> Iterator[Runner]:
    """A `Runner` on the cluster at this address: host:port, `auto` for the one that is started here, `local` for one of this machine alone.

    Refused where Ray is not installed, or no cluster is there.
    """
    ray = _ray()
    try:
        switch = {name: os.environ[name] for name in (suite.SWITCH,) if name in os.environ}
        environment = {"py_modules": [str(PACKAGE)], "env_vars": switch}  # this very package, whatever is installed there
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level="error", **more)
    except Exception as error:  # Ray raises whatever its parts raise
        raise Refused(f"--ray {address}: no cluster can be reached: {first_line(error)}") from error
    try:
        yield lambda work, pending, jobs: _workers(ray, work, pending, jobs)
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise Refused("--ray needs Ray, which is not installed: pip install ray") from None


@contextlib.contextmanager
def _workers(ray: Any, work: Work, pending: Sequence[str], jobs: int) -> Iterator[Iterator[Result]]:
    task = ray.remote(_task).options(max_retries=0, scheduling_strategy="SPREAD", **share(ray, work.settings, jobs))
    sent = replace(work.settings, output=None if work.settings.output is None else Path("kept"))  # whether it is kept, not where
    paths = {name: work.models[name].absolute() for name in pending}
    waiting = {task.remote(name, path.read_bytes(), path, work.keys[name], sent): name for name, path in paths.items()}

    def results() -> Iterator[Result]:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=WAIT)  # in steps, so that Ctrl-C is heard
            for one in ready:
                name = waiting.pop(one)
                try:
                    result, text = ray.get(one)
                except Exception as error:  # the machine is gone, or Ray ended the task: that is one line, as a crash is
                    yield work.failed(name, "crashed", f"{type(error).__name__}: {first_line(error)}"[:600])
                    continue
                if text is not None and work.settings.output is not None:
                    place = suite.place_of(work.settings.output, name)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(text, encoding="utf-8")
                yield result

    with terminable():
        try:
            yield results()
        finally:
            for one in waiting:
                ray.cancel(one)  # its task hears KeyboardInterrupt, and ends the process that it started
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)


def share(ray: Any, settings: Settings, jobs: int) -> dict[str, float]:
    """What a task asks for, so that `jobs` of them run on each GPU at a time, or on each machine where there are none."""
    gpus = float(ray.cluster_resources().get("GPU", 0))
    if settings.target == "cuda" and not gpus:
        raise Refused("--target cuda was asked for, but no machine of the cluster has a GPU; use --target host")
    if settings.on_gpus and gpus:
        return {"num_gpus": 1 / jobs, "num_cpus": 1}
    cores = [node["Resources"].get("CPU", 1.0) for node in ray.nodes() if node["Alive"]]
    return {"num_cpus": max(1.0, min(cores, default=1.0) // jobs)}


def _task(name: str, text: bytes, path: Path, key: str, settings: Settings) -> tuple[Result, str | None]:
    """One model on a machine of the cluster: in its place where that machine has the same file there, else from a copy."""
    with tempfile.TemporaryDirectory(prefix="fusewright-ray-") as folder:
        here = path.is_file() and path.read_bytes() == text
        model = path if here else Path(folder) / path.name
        if not here:
            model.write_bytes(text)
        kept = None if settings.output is None else Path(folder) / settings.output
        result = suite.run_model(model, replace(settings, output=kept), name=name, key=key)
        assert result is not None, "nobody stops a task but Ray"
        new = suite.place_of(kept, name) if kept is not None else None
        return result, new.read_text(encoding="utf-8") if new is not None and new.is_file() else None
