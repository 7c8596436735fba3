"""The part of `bench` that touches a GPU: a clock, a profile, and what the machine says of itself. Nothing is changed.

The functions that time are kept here by their own references: this file is imported before any candidate's code runs.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .roofline import Ceilings, measure
from .statistics import busy, median

_now = time.perf_counter
_synchronize = torch.cuda.synchronize
_Event: Any = torch.cuda.Event
_record: Any = torch.cuda.Event.record
_elapsed: Any = torch.cuda.Event.elapsed_time
_profile = torch.profiler.profile
_stream = torch.cuda.current_stream

QUIET = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}


# ---- the clock ----


@dataclass(frozen=True)
class Sample:
    """One call. `ms` is on its stream; `late_ms` is how long the device went on after that stream had finished."""

    ms: float
    late_ms: float
    wall_ms: float


@dataclass(frozen=True)
class Span:
    """One kernel, copy or fill on the device, in microseconds."""

    name: str
    start: float
    stop: float


class Gpu:
    """Times calls on one GPU, each after the L2 cache was filled with something else, and watches what they do."""

    def __init__(self, device: torch.device):
        self.device = device
        self.l2_bytes = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 64 * 2**20
        count = max(2 * self.l2_bytes, 64 * 2**20) // 4
        self.written = torch.zeros(count, dtype=torch.int32, device=device)
        self.read = torch.zeros(count, dtype=torch.int32, device=device)
        self.largest = torch.zeros((), dtype=torch.int32, device=device)
        self.driver = cuda_driver()

    def flush(self) -> None:
        """Write a buffer larger than L2, then read another: what the call needs is gone, and no line waits to be
        written back at the call's expense. What somebody has told the cache to hold on to goes first."""
        if self.driver is not None:
            self.driver.cuCtxResetPersistingL2Cache()
        self.written.zero_()
        torch.amax(self.read, dim=0, out=self.largest)

    def queued(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Milliseconds of one call that was handed over while the device was busy flushing, as in a running program:
        the host's own time shows only where the device has to wait for it."""
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        stream = _stream(self.device)
        _synchronize(self.device)
        self.flush()
        _record(start, stream)
        result = call()
        _record(end, stream)
        _synchronize(self.device)
        return _elapsed(start, end), result

    def from_idle(self, call: Callable[[], Any]) -> tuple[Sample, Any]:
        """One call on an idle device, closed by a synchronisation of all of it: nothing can hide behind the flush."""
        start, end, closing = (_Event(enable_timing=True) for _ in range(3))
        stream = _stream(self.device)
        self.flush()
        _synchronize(self.device)
        began = _now()
        _record(start, stream)
        result = call()
        _record(end, stream)
        _synchronize(self.device)
        _record(closing, stream)
        _synchronize(self.device)
        wall_ms = 1e3 * (_now() - began)
        return Sample(_elapsed(start, end), _elapsed(end, closing), wall_ms), result

    def spans(self, call: Callable[[], Any], calls: int = 3) -> list[list[Span]]:
        """What ran on the device, on any stream, in each of a few calls. Empty where no profiler may watch this GPU."""
        found = []
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for _ in range(calls):
            self.flush()
            _synchronize(self.device)
            with _profile(activities=activities) as profile:
                call()
                _synchronize(self.device)
            spans = [
                Span(event.name, float(event.time_range.start), float(event.time_range.end))
                for event in profile.events() or []
                if str(event.device_type).endswith("CUDA") and not getattr(event, "is_user_annotation", False)
            ]
            found.append([span for span in spans if span.stop > span.start])
        return [spans for spans in found if spans]

    def peak_bytes(self, call: Callable[[], Any]) -> int:
        """The most memory that one call holds beyond what was held before it, its result included."""
        _synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        result = call()
        _synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        del result
        return peak

    def ceilings(self) -> Ceilings:
        return measure(self.device, lambda call: self.queued(call)[0])

    def settle(self) -> None:
        """Memory that nobody uses goes back, so that one subject's cache is not another's shortage."""
        _synchronize(self.device)
        torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
        }

    def clocks(self) -> dict[str, Any]:
        """What nvidia-smi says of this GPU now; nothing where there is no nvidia-smi."""
        tool = shutil.which("nvidia-smi")
        uuid = str(getattr(torch.cuda.get_device_properties(self.device), "uuid", ""))
        which = f"GPU-{uuid.removeprefix('GPU-')}" if uuid else str(self.device.index or 0)
        for held_back in HELD_BACK_FIELDS if tool else ():
            fields = ",".join([*QUERY.values(), held_back])
            command = [str(tool), f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-i", which]
            try:
                run = subprocess.run(command, timeout=10, **QUIET)  # type: ignore[call-overload]
            except (OSError, subprocess.SubprocessError):
                return {}
            if run.returncode == 0:
                return parsed_clocks(run.stdout)
        return {}


def cuda_driver() -> Any:
    """CUDA's own library, or None where it has another name."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


# ---- which kernels ran ----


def busy_ms(calls: Sequence[Sequence[Span]]) -> float | None:
    """How long anything ran on the device in one call."""
    return median([busy([(s.start, s.stop) for s in spans]) for spans in calls]) / 1e3 if calls else None


def by_kernel(calls: Sequence[Sequence[Span]], launcher_of: Mapping[str, str]) -> dict[str, float]:
    """Milliseconds of each kernel in one call, in the order they first ran; a launcher's functions count together."""
    order = dict.fromkeys(
        label(span.name, launcher_of) for spans in calls for span in sorted(spans, key=lambda s: s.start)
    )
    sums = [
        {name: sum(s.stop - s.start for s in spans if label(s.name, launcher_of) == name) for name in order}
        for spans in calls
    ]
    return {name: median([one[name] for one in sums]) / 1e3 for name in order}


def label(kernel: str, launcher_of: Mapping[str, str]) -> str:
    """The launcher a kernel belongs to, or its plain name."""
    path = qualified_name(kernel)
    return launcher_of.get(path) or launcher_of.get(path.rsplit("::", 1)[-1]) or plain_name(kernel)


def qualified_name(kernel: str) -> str:
    """`void ns::rows<int, 4>(float const*)` -> `ns::rows`."""
    text = kernel.replace("(anonymous namespace)::", "")
    return re.sub(r"^(?:void|static|__global__)\s+", "", re.split(r"[<(]", text, maxsplit=1)[0].strip())


GENERIC = re.compile(
    r"(vectorized|unrolled|legacy|elementwise|reduce|Reduce|func_wrapper|BinaryFunctor|AUnaryFunctor|BUnary)"
)


def plain_name(kernel: str) -> str:
    """`void ns::rows<int, 4>(float const*)` -> `rows`; PyTorch's general kernels by what they are filled with."""
    if kernel.startswith(("Mem", "mem")):
        return kernel
    text = re.sub(r"^(?:void|static|__global__)\s+", "", kernel.replace("(anonymous namespace)::", ""))
    head, _, filling = text.partition("<") if "<" in text.split("(")[0] else (text.split("(")[0], "", "")
    name = head.strip().rsplit("::", 1)[-1] or kernel
    if "native::" in head and GENERIC.match(name):
        inner = [word for word in re.findall(r"native::(\w+)", filling) if not GENERIC.match(word)]
        return inner[0] if inner else name
    return name


def own_functions(source: str, launchers: Sequence[str] = ()) -> dict[str, str]:
    """Device functions that a candidate's text defines, in CUDA or Triton -> the launcher of each, or itself."""
    spaces = namespaces(source)
    defined: list[tuple[int, str, str]] = []  # where, the name, the name with its namespaces
    for found in re.finditer(r"\b__global__\b", source):
        head = source[found.end() : found.end() + 600]
        head = re.sub(r"\b__\w+__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", " ", head)  # __launch_bounds__(...)
        named = re.match(r"[\s\w:*&<>]*?\b(\w+)\s*\(", head)
        if named:
            around = [name for start, end, name in spaces if name and start < found.start() < end]
            defined.append((found.start(), named[1], "::".join([*around, named[1]])))
    triton = r"@triton\.jit\b[^\n]*\n(?:[ \t]*(?:@[^\n]*|#[^\n]*)?\n)*[ \t]*def\s+(\w+)"
    defined += [(found.start(), found[1], found[1]) for found in re.finditer(triton, source)]
    owner = {path: name for _, name, path in defined}
    for launcher in launchers:
        pattern = rf"\b{re.escape(launcher)}\s*\([^;{{]*\{{(.*?)(?=\n(?:extern|__global__|template|namespace)|\Z)"
        body = re.search(pattern, source, re.S)
        launched = r"(\w+)\s*(?:<[^;{}]*?>)?\s*<<<|\blaunch\((\w+)<"  # as launched, or handed to what launches it
        for name in dict.fromkeys(a or b for a, b in re.findall(launched, body[1])) if body else ():
            before = [path for at, known, path in defined if known == name and body and at < body.start()]
            if before:
                owner[before[-1]] = launcher
    return owner


def namespaces(source: str) -> list[tuple[int, int, str]]:
    """(start, end, name) of every namespace in a text of CUDA, the outer ones first."""
    blank = re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: " " * len(m[0]), source, flags=re.S)
    found = []
    for opening in re.finditer(r"\bnamespace\s*([\w:]*)\s*\{", blank):
        depth, at = 1, opening.end()
        while depth and at < len(blank):
            depth += {"{": 1, "}": -1}.get(blank[at], 0)
            at += 1
        found.append((opening.start(), at, opening[1]))
    return found


# ---- how long it takes to build ----

BUILD = """
import json, sys, time
from pathlib import Path
import torch
from fusewright.verify.candidate import load_candidate
from fusewright.frontend.problem import load_problem
problem = load_problem(Path(sys.argv[1]))
inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
with torch.no_grad():
    problem.model().cuda()(*inputs)  # the device and its libraries are awake
    torch.cuda.synchronize()
    start = time.perf_counter()
    model = load_candidate(Path(sys.argv[2]), "cuda").build_model(problem)
    model(*inputs)
    torch.cuda.synchronize()
print(json.dumps(time.perf_counter() - start))
"""


def build_seconds(model: Path, source: str, limit: float = 600.0) -> dict[str, float]:
    """From a candidate's text to its first result, in a fresh process: with empty caches (cold), then again (warm)."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "candidate.py"
        text.write_text(source, encoding="utf-8")
        package = str(Path(__file__).parents[2])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")])),
            "TORCH_EXTENSIONS_DIR": str(Path(folder) / "extensions"),
            "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
        }
        found: dict[str, float] = {}
        for name in ("cold_s", "warm_s"):
            command = [sys.executable, "-c", BUILD, str(model), str(text)]
            try:
                run = subprocess.run(command, env=environment, timeout=limit, check=True, **QUIET)  # type: ignore[call-overload]
                found[name] = float(json.loads(run.stdout.splitlines()[-1]))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                break
        return found


# ---- what the machine says of itself ----

QUERY = {
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "max_sm_clock_mhz": "clocks.max.sm",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
}
HELD_BACK_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # the new name, the old one
HELD_BACK = {  # the bits of that field; an idle GPU and clocks that someone chose are no reason to doubt a time
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


def parsed_clocks(line: str) -> dict[str, Any]:
    """One line of comma-separated values, by our names; numbers as numbers, what the GPU does not tell left out."""
    values = [value.strip() for value in (line.strip().splitlines() or [""])[0].split(",")]
    found: dict[str, Any] = {}
    for name, value in zip([*QUERY, "held_back"], values, strict=False):
        number = re.fullmatch(r"-?\d+(?:\.\d+)?", value)
        if name == "held_back" and re.fullmatch(r"0x[0-9a-fA-F]+", value):
            found[name] = [word for bit, word in HELD_BACK.items() if int(value, 16) & bit]
        elif name == "driver" and value[:1].isdigit():
            found[name] = value
        elif name in QUERY and number:
            found[name] = float(value)
    return found


def flags() -> dict[str, Any]:
    """Every flag that changes what either side may compute. They hold for the baselines and for the candidates."""
    back = torch.backends
    return {
        "tf32 in convolutions": _tf32(getattr(back.cudnn, "conv", None), back.cudnn),
        "tf32 in matmuls": _tf32(back.cuda.matmul, back.cuda.matmul),
        "cudnn": _read(lambda: back.cudnn.enabled),
        "cudnn benchmark": _read(lambda: back.cudnn.benchmark),
        "cudnn deterministic": _read(lambda: back.cudnn.deterministic),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "reduced-precision bf16 sums": _read(lambda: back.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "reduced-precision fp16 sums": _read(lambda: back.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "autocast": torch.is_autocast_enabled(),
        "default type": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def _tf32(new: Any, old: Any) -> Any:
    try:
        return new.fp32_precision == "tf32"
    except (AttributeError, RuntimeError):
        return _read(lambda: old.allow_tf32)


def _read(get: Callable[[], Any]) -> Any:
    """A flag, or None where this torch has none of that name or will not tell."""
    try:
        value = get()
    except (AttributeError, RuntimeError):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or "none"),
        "cudnn": str(torch.backends.cudnn.version() or "none"),
    }
    triton = sys.modules.get("triton")
    return found | ({"triton": str(getattr(triton, "__version__", "?"))} if triton else {})
