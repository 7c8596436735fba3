"""A candidate: any file that defines `ModelNew`, loaded and made to run on a target, its launches watched.

A file that Fusewright wrote also runs with no GPU (`loaded.on_host`).
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Ended, Refused, first_line
from ..frontend.problem import Problem, seeded_everything, shown, started_as
from ..host import HostLibrary
from ..host.loaded import on_host
from ..process import drop_locks
from .guard import Snapshot, snapshot
from .reference import base_name, is_view

EMITTED = ("_CUDA_SOURCE", "_KERNELS", "_launch", "_on_device")  # what a file written by Fusewright defines
ALLOCATIONS = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())
BOOKKEEPING = frozenset("_unsafe_view lift_fresh set_ _local_scalar_dense is_same_size sym_size detach alias".split())
NEEDS_A_GPU = re.compile(r"\bcuda_sources\b|^\s*(?:import|from)\s+(?:triton|cupy|pycuda|numba)\b|\.cu\b", re.MULTILINE)

MODULES = "_fusewright_candidate_"  # how the names of candidates' modules begin
_serial = itertools.count()


@dataclass(eq=False)
class Trace:
    """What one stretch of a candidate's run did: its own kernels, and the operators it left to PyTorch, in order."""

    kernels: list[str] = field(default_factory=list)
    library_calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    name: str
    source: str
    target: str  # cuda | host
    module: ModuleType
    before: Snapshot  # functions and flags as they were before its code ran
    library: HostLibrary | None = None  # where its CUDA was compiled for the host
    disabled: set[str] = field(default_factory=set)
    traces: list[Trace] = field(default_factory=list)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The launchers it declares; empty for a file that Fusewright did not write."""
        gradients = getattr(self.module, "_GRADIENT_KERNELS", ())
        return (*self.forward_kernels, *gradients) if self.emitted else ()

    @property
    def forward_kernels(self) -> tuple[str, ...]:
        """Those of them that need no gradient to be launched."""
        return tuple(self.module._KERNELS) if self.emitted else ()

    @property
    def not_run(self) -> tuple[str, ...]:
        """On the host: kernels that its launchers have never chosen, of those that were built."""
        return tuple(self.library.not_run) if self.library is not None else ()

    @property
    def emitted(self) -> bool:
        return all(hasattr(self.module, name) for name in EMITTED)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.target == "cuda" else "cpu")

    def build_model(self, problem: Problem, seed: int = 0) -> nn.Module:
        """`ModelNew`, made as the original was: with its arguments, under its seed."""
        with _its_own_errors(self.name, "ModelNew(*get_init_inputs())"):
            model = problem.built(self.module.ModelNew, seed)
        if not isinstance(model, nn.Module):
            raise Refused(f"{self.name}: ModelNew(...) made a {type(model).__name__}, not a torch.nn.Module")
        return model.to(self.device)

    def built_with(self, subjects: Any, construction: Any) -> tuple[Any, dict[str, list[int]]]:  # subjects.Subjects know this class
        """The subjects with `ModelNew` so built, and the shapes in its state_dict."""
        new = construction.build(subjects.problem, self.module.ModelNew).to(self.device)
        return replace(subjects, new=new), {name: list(value.shape) for name, value in new.state_dict().items()}

    @contextlib.contextmanager
    def launches(self) -> Iterator[list[str]]:
        """Record only the kernels launched."""
        trace = Trace()
        self.traces.append(trace)
        try:
            yield trace.kernels
        finally:
            self.traces.remove(trace)

    @contextlib.contextmanager
    def trace(self) -> Iterator[Trace]:
        """Record the kernels launched and the operators run by PyTorch while this context is open."""
        trace = Trace()
        self.traces.append(trace)
        watch = _profiled(trace, self.emitted) if self.target == "cuda" else _Operators(trace)
        try:
            with watch:
                yield trace
        finally:
            self.traces.remove(trace)

    @contextlib.contextmanager
    def without(self, kernel: str) -> Iterator[None]:
        """Make one kernel a no-op."""
        self.disabled.add(kernel)
        try:
            yield
        finally:
            self.disabled.discard(kernel)

    def _launched(self, launch: Callable[..., None]) -> Callable[..., None]:
        def watched(kernel: Any, *arguments: Any) -> None:
            if not self.disabled and not self.traces:  # nobody watches: cost a timing nothing
                return launch(kernel, *arguments)
            name = str(kernel).partition(" ")[0]  # it may be one that is `saving`
            if name not in self.disabled:
                launch(kernel, *arguments)
            for trace in self.traces:  # after it: a launch that raised was none
                trace.kernels.append(name)

        return watched


def load_candidate(
    text_or_path: str | Path,
    target: str,
    sanitize: str = "",
    name: str = "",
    place: Path | None = None,
    apart: bool = False,
    behind: type[nn.Module] | None = None,
) -> Candidate:
    """Run a candidate's file and make it run on the target, or refuse with one sentence. A text is run as one that stands at `place`.

    `behind`: the class that it calls `Model`, where it has no source of its own for it.
    `apart`: on the host, kernels that save activations and those that do not are built apart, as they are for a GPU. Else the
    former do the work of both, which takes half the compiling.
    """
    source, name = _read(text_or_path, name)
    place = text_or_path if isinstance(text_or_path, Path) else place
    if target == "auto":
        target = "cuda" if torch.cuda.is_available() else "host"
    if target == "cuda" and not torch.cuda.is_available():
        raise Refused(f"{name}: target cuda asked for, but PyTorch finds no CUDA device")
    from_fusewright = all(re.search(rf"^(?:def )?{word}\b", source, re.MULTILINE) for word in EMITTED)
    if target == "host" and not from_fusewright and NEEDS_A_GPU.search(source):
        raise Refused(f"{name}: its CUDA is not in the form Fusewright writes, so it needs a GPU to run")
    before = snapshot()
    module = _execute(source, name, place, behind)
    if not isinstance(getattr(module, "ModelNew", None), type):
        raise Refused(f"{name}: defines no class named ModelNew")
    candidate = Candidate(name, source, target, module, before)
    if not candidate.emitted:
        return candidate
    if target == "cuda":
        drop_locks()
        allocating = _allocating(candidate.device, getattr(module, "_empty", None))
        vars(module).update(_launch=candidate._launched(module._launch), _empty=allocating)
        return candidate

    library = on_host(module, name, sanitize, apart)
    candidate = Candidate(name, source, target, module, before, library)
    vars(module)["_launch"] = candidate._launched(library.call)
    return candidate


def _allocating(device: torch.device, quick: Callable[..., Tensor] | None) -> Callable[..., Tensor]:
    """What a file allocates with, seen by dispatch modes: verification fills such memory. Where there is none, the file's own."""

    def allocated(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if quick is None or torch._C._len_torch_dispatch_stack():
            return torch.empty_strided(shape, strides, dtype=dtype, device=device)
        return quick(shape, strides, dtype)

    return allocated


def gpu_works() -> bool:
    """A kernel that faulted leaves a CUDA context in which every later call fails."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


# ---- reading and running the file ----


def _read(text_or_path: str | Path, name: str) -> tuple[str, str]:
    is_text = isinstance(text_or_path, str) and "\n" in text_or_path
    if is_text:
        return str(text_or_path), name or "the candidate"
    path = Path(text_or_path)
    try:
        return path.read_text(encoding="utf-8"), name or shown(path)
    except FileNotFoundError:
        raise Refused(f"{shown(path)}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{shown(path)}: cannot be read: {error}") from None


def _execute(source: str, name: str, place: Path | None, behind: type[nn.Module] | None) -> ModuleType:
    file = f"<{name}>"
    try:
        code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise Refused(f"{name}:{getattr(error, 'lineno', None) or 1}: not Python: {error}") from None
    module = ModuleType(f"{MODULES}{next(_serial)}")
    if behind is not None:
        vars(module)["Model"] = behind
    elif place is not None:
        module.__file__ = str(place.absolute())
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks and for Triton
    sys.modules[module.__name__] = module  # pickle looks classes up by their module's name
    with seeded_everything(0), started_as(place or Path(name)), _its_own_errors(name, "importing it"):
        exec(code, module.__dict__)
    return module


@contextlib.contextmanager
def _its_own_errors(name: str, doing: str) -> Iterator[None]:
    """What the candidate's code raises becomes one sentence."""
    try:
        yield
    except (KeyboardInterrupt, Refused):
        raise
    except SystemExit as stop:
        raise Ended(f"{name}: {doing} ended Python with sys.exit({stop.code!r})") from stop
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == f"<{name}>"]
        place = f"{name}:{lines[-1]}" if lines else name
        raise Refused(f"{place}: {doing} raised {type(error).__name__}: {first_line(error)}") from error


# ---- watching what PyTorch does ----


class _Operators(TorchDispatchMode):
    """Notes every operator that does work: allocations and views do not, copies do."""

    def __init__(self, trace: Trace):
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = base_name(func)
        if name not in ALLOCATIONS and name not in BOOKKEEPING and not is_view(func):
            self.trace.library_calls.append(str(func))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _profiled(trace: Trace, emitted: bool) -> Iterator[None]:
    """On a GPU the profiler says which operators put work on the device, and which kernels belong to none of them."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        yield
        torch.cuda.synchronize()
    of_pytorch: set[str] = set()
    for event in sorted(profile.events() or [], key=lambda e: e.time_range.start):
        if event.name.startswith("aten::") and event.kernels:
            trace.library_calls.append(event.name.replace("::", ".", 1))
            of_pytorch |= {kernel.name for kernel in event.kernels}
    if not emitted:  # a file of another hand: its kernels are the ones no operator launched
        on_device = [e for e in profile.events() or [] if str(e.device_type).endswith("CUDA")]
        trace.kernels += [e.name for e in on_device if e.name not in of_pytorch and not e.name.startswith("Mem")]
