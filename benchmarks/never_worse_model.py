"""One model of `never_worse.py`, in a process of its own: it writes the file as `optimize` would, then measures it beside eager.

Prints its row, a line of JSON, after every stage, so that one that hangs or runs out of memory keeps what was measured before.
Whatever is timed, and whatever keeps the GPU busy for long, happens while this process holds the lock; builds and single calls do not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import hashlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from zoo_gpu import alone, interleaved

import fusewright
from fusewright.bench import gpu
from fusewright.driver.front import Front, new_file
from fusewright.driver.pipeline import optimize, read_problem, tuned_for
from fusewright.driver.tuning.choices import PREDICTED, able_of, candidates
from fusewright.driver.tuning.tune import Tuned
from fusewright.errors import Refused, first_line
from fusewright.frontend.given import deep_copy
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.verify.budget import K
from fusewright.verify.candidate import Candidate, load_candidate
from fusewright.verify.reference import (
    RANDOM,
    TO_NEAREST,
    Rounding,
    in_float64,
    rounding_of,
    type_of,
    widen_module,
    widened,
)

REPEATS, STEPS = 25, 15  # timings of a forward and of a training step, each
HURRY = 2.5  # beside others tuning takes fewer rounds: 0.16 s a comparison instead of 0.4
CLOSE = 1e-4  # of the rms: an error that is always allowed
APART = 0.1  # of the rms: of a model that draws random numbers, no rounding but another draw
CUTS = (1, 2, 4, 8, 16, 32)  # parts of the batch at which errors are tried where memory runs out
CHOOSERS = ("driver/tuning/t*.py", "bench/timing.py", "schedule/training.py", "bench/gpu.py")  # the sources that choose one of the variants
Step = Callable[[], Any]


# ---- the file ----


@dataclass(frozen=True)
class Written:
    """What `optimize` would write."""

    text: str
    plain: bool  # the original, in place of kernels
    notes: list[str]
    choices: Mapping[str, Any]
    failed: str = ""  # with verification: the worst check


def write(problem: Problem, front: Front | None, options: Options, progress: Callable[[str, str], None]) -> Written:
    """The one place that knows the pipeline: tuned and finished from its front, or without one the whole of it, verified."""
    if front is None:
        run = optimize(problem, options, progress)
        failed = "" if run.verdict.passed else str(run.verdict.worst)
        return Written(run.text, run.report["plain"], run.report["notes"], run.report["tuning"]["choices"], failed)
    tuned = tuned_for(front, options, progress) if options.target == "cuda" else Tuned(PREDICTED)
    made, emitted = front.finish(tuned.choices)
    return Written(emitted.text, not made.every_kernel, [*tuned.notes, *tuned.degraded], tuned.choices.to_dict())


def remembering(front: Front) -> Front:
    """The same front, which finishes nothing twice: what is hashed here is what tuning asks for next."""
    vars(front)["finish"] = functools.cache(front.finish)
    return front


def candidates_hash(front: Front) -> str:
    """Of the texts that tuning begins with, of the predicted one with its gradients, and of what chooses."""
    forward_only = functools.partial(front.finish, gradients=False)
    made, _ = forward_only(PREDICTED)
    first = [named.choices for named in candidates(made, able_of(made, forward_only)).first]
    texts = [forward_only(choices)[1].text for choices in first] + [front.finish(PREDICTED)[1].text]
    folder = Path(fusewright.__file__).parent
    sources = [path.read_text() for name in CHOOSERS for path in sorted(folder.glob(name))]
    return short_hash("\0".join([*texts, *sources]))


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def taking_turns(lock: str, hurry: float) -> Iterator[None]:
    """Each call that tuning times is alone on the GPU; in a hurry each counts for more of the time that it may take."""
    plain, held = gpu.Gpu.from_idle, False

    def from_idle(clock: gpu.Gpu, call: Step) -> tuple[gpu.Sample, Any]:
        nonlocal held
        if held:  # a part of what is timed: the lock is ours, and is not given twice
            return plain(clock, call)
        with alone(lock):
            held = True
            try:
                sample, result = plain(clock, call)
            finally:
                held = False
        return replace(sample, wall_ms=hurry * sample.wall_ms), result

    gpu.Gpu.from_idle = from_idle  # type: ignore[method-assign]
    try:
        yield
    finally:
        gpu.Gpu.from_idle = plain  # type: ignore[method-assign]


# ---- both sides ----


@dataclass(frozen=True)
class Sides:
    """The model and its new file on one device, made anew whenever they are asked for."""

    problem: Problem
    candidate: Candidate

    @property
    def device(self) -> torch.device:
        return self.candidate.device

    @functools.cached_property
    def original(self) -> nn.Module:
        """As it was made: never called, never moved."""
        return self.problem.model()

    @functools.cached_property
    def given(self) -> list[Any]:
        return self.problem.inputs()

    def eager(self) -> nn.Module:
        return deep_copy(self.original).to(self.device)

    def new(self) -> nn.Module:
        module = self.candidate.build_model(self.problem)
        module.load_state_dict(self.original.state_dict())
        return module

    def each(self) -> dict[str, Callable[[], nn.Module]]:
        return {"eager": self.eager, "new": self.new}

    def inputs(self, cut: int = 1) -> list[Any]:
        """Copies, of a part of the batch: of the first size of the first tensor, wherever it is the first."""
        whole = next((x.shape[0] for x in self.given if isinstance(x, Tensor) and x.dim()), 0)

        def moved(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            of_the_batch = cut > 1 and x.dim() and x.shape[0] == whole
            return (x[: max(1, whole // cut)] if of_the_batch else x).to(self.device, copy=True)

        return [moved(x) for x in self.given]


def forward(module: nn.Module, inputs: list[Any]) -> Step:
    def run() -> Any:
        with torch.no_grad():
            return module(*inputs)

    return run


def training_step(module: nn.Module, inputs: list[Any]) -> Step:
    """Forward, the sum of all float results, backward; by the parameters, or by the inputs where there are none."""
    given, by = trained(module, inputs)

    def run() -> None:
        for tensor in by.values():
            tensor.grad = None
        results = [t for t in pytree.tree_leaves(module(*given)) if is_smooth(t)]
        if not results:
            raise RuntimeError("no result has a gradient")
        sum(t.sum(dtype=torch.float32) for t in results).backward()  # type: ignore[union-attr]

    return run


def trained(module: nn.Module, inputs: list[Any]) -> tuple[list[Any], dict[str, Tensor]]:
    """The inputs to call it with, and what gradients are taken of."""
    parameters: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if parameters:
        return inputs, parameters
    given = [x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    return given, {f"input {i}": x for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad}


def is_smooth(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()


# ---- times ----


def on_the_host(runs: dict[str, Step], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: round(statistics.median(found), 5) for name, found in times.items()}


def times(sides: Sides, lock: str, until: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Median milliseconds of both sides. Everything is built, by a first call, before the lock is taken, or before what is waited for."""
    modules = {name: make() for name, make in sides.each().items()}
    inputs, found = sides.inputs(), dict[str, Any]()
    forwards, steps = ({side: call(module, inputs) for side, module in modules.items()} for call in (forward, training_step))
    timed = [("ms", forwards, REPEATS)]
    forwards["new"]()
    if why := why_no_step(steps["eager"]):
        found["no_step"] = why
    else:
        steps["new"]()
        timed.append(("step_ms", steps, STEPS))
    until()
    clock = interleaved if sides.device.type == "cuda" else on_the_host
    with alone(lock):
        return found | {name: clock(runs, repeats) for name, runs, repeats in timed}


def waiting(ready: Path | None, go: Path | None) -> Callable[[], None]:
    """Says that it is ready, and waits for the word."""

    def wait() -> None:
        if ready is not None and go is not None:
            ready.touch()
            while not go.exists():
                time.sleep(0.02)

    return wait


def why_no_step(eager: Step) -> str:
    """What the original itself says where it cannot be trained."""
    try:
        eager()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return first_line(error)
    return ""


# ---- memory ----


def cleared() -> None:
    gc.collect()
    if torch.cuda.is_available():
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()  # each side pays for its own
        torch.cuda.empty_cache()


def peak(sides: Sides, make: Callable[[], nn.Module], call: Callable[[nn.Module, list[Any]], Step]) -> float:
    """MB at the most while it is called a second time, with only its parameters and the inputs beside it."""
    cleared()
    before = torch.cuda.memory_allocated()
    run = call(make(), sides.inputs())
    run()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e6, 3)


def peaks(sides: Sides, with_step: bool) -> dict[str, Any]:
    calls = {"inference": forward} | ({"step": training_step} if with_step else {})
    return {"peaks": {name: {side: peak(sides, make, call) for side, make in sides.each().items()} for name, call in calls.items()}}


class Watched:
    """The most GPU memory in use since, asked at every stage: a stage may reset what PyTorch counts."""

    def __init__(self) -> None:
        self.bytes, self.start = 0, time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def __call__(self, stage: str, detail: str = "") -> None:
        if torch.cuda.is_available():
            self.bytes = max(self.bytes, torch.cuda.max_memory_allocated())

    def found(self) -> dict[str, Any]:
        self("end")
        return {"seconds": round(time.perf_counter() - self.start, 1), "mb": round(self.bytes / 1e6, 1) if self.bytes else None}


# ---- errors ----


@contextlib.contextmanager
def busy(lock: str) -> Iterator[None]:
    """Nobody times anything until what this process gave the GPU to do is done."""
    with alone(lock):
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def observed(module: nn.Module, inputs: list[Any], gradients: bool) -> dict[str, Tensor]:
    """Its results, and the gradients of Σ result · cotangent: the same cotangents for every side, exact in every type."""
    torch.manual_seed(1)
    given, by = trained(module, inputs) if gradients else (inputs, {})
    with torch.set_grad_enabled(gradients):
        leaves = [leaf for leaf in pytree.tree_leaves(module(*given)) if isinstance(leaf, Tensor)]
    found = {f"output {i}": (torch.view_as_real(t) if t.is_complex() else t).detach() for i, t in enumerate(leaves)}
    smooth = [t for t in leaves if is_smooth(t)]
    if not gradients or not smooth:
        return found
    grads = torch.autograd.grad(smooth, list(by.values()), cotangents(smooth), allow_unused=True)
    return found | {f"gradient of {name}": g for name, g in zip(by, grads, strict=True) if g is not None}


def cotangents(results: list[Tensor]) -> list[Tensor]:
    """Odd numbers of eighths, out of sight of whatever widens and rounds."""
    generator = torch.Generator(results[0].device).manual_seed(5)
    with _disable_current_modes():
        drawn = [torch.randint(0, 8, t.shape, generator=generator, device=t.device, dtype=torch.int8) for t in results]
        return [(2 * c - 7).to(t.dtype) / 8 for c, t in zip(drawn, results, strict=True)]


def gap(got: Tensor | None, exact: Tensor) -> float:
    """The largest error relative to the exact tensor's rms; of whole numbers, the share that differs."""
    if got is None or got.shape != exact.shape:
        return float("inf")
    if not exact.is_floating_point():
        return float((got != exact).double().mean()) if exact.numel() else 0.0
    finite = torch.isfinite(exact)
    rms = float(torch.where(finite, exact, 0.0).square().mean().sqrt()) if exact.numel() else 0.0
    error = torch.where(finite, (got.double() - exact).abs(), 0.0).nan_to_num_(nan=torch.inf)
    return float(error.max()) / (rms or 1.0) if exact.numel() else 0.0


def gaps(got: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: gap(got.get(name), value) for name, value in exact.items()}


def errors_at(sides: Sides, lock: str, gradients: bool, cut: int) -> dict[str, Any]:
    """The worst result and the worst gradient against float64: errors of both sides, and what is allowed.

    Allowed is the largest of twice eager's, CLOSE, and what the model's own type gives: K (as in verification) times the error of
    a float64 run whose operators are all rounded at random as that type rounds. That run is only made where it decides.
    """
    low = type_of(sides.original, sides.given)

    def in_double(rounding: Rounding | None) -> tuple[dict[str, Tensor], set[str]]:
        module, inputs = widen_module(sides.eager()), widened(sides.inputs(cut))
        with busy(lock), in_float64(low, rounding, TO_NEAREST + 1) as met:
            return observed(module, inputs, gradients), met

    def as_it_is(module: nn.Module, gradients: bool) -> dict[str, Tensor]:
        inputs = sides.inputs(cut)
        with busy(lock):
            return observed(module, inputs, gradients)

    exact, met = in_double(None)
    eager = gaps(as_it_is(sides.eager(), gradients), exact)
    new = gaps(as_it_is(sides.new(), gradients), exact)
    if gradients:  # without gradients other kernels run
        apart = gaps(as_it_is(sides.new(), False), {n: t for n, t in exact.items() if n.startswith("output")})
        new |= {name: max(error, new[name]) for name, error in apart.items()}
    random = bool(met & (RANDOM | {"native_dropout", "_fused_dropout"}))
    of_results = [error for side in (eager, new) for name, error in side.items() if name.startswith("output")]
    if random and max(of_results, default=0.0) > APART:
        return {"skipped": "random draws differ"}
    allowed = {name: max(2 * error, CLOSE) for name, error in eager.items()}
    own: dict[str, float] = {}
    if any(new[name] > allowed[name] for name in exact):
        own = {name: K * error for name, error in gaps(in_double(rounding_of(low).fine)[0], exact).items()}
        allowed |= {name: max(allowed[name], error) for name, error in own.items()}
    found: dict[str, Any] = {"batch": f"1/{cut}" if cut > 1 else "", "random": random}
    for kind in ("output", "gradient"):
        names = [name for name in exact if name.startswith(kind)]
        if names:
            worst = max(names, key=lambda name: new[name] / allowed[name])
            both = {"eager": eager[worst], "new": new[worst]}
            found[f"{kind}s"] = {"tensor": worst, **both, "allowed": allowed[worst], "own": own.get(worst)}
    return found


def errors(sides: Sides, lock: str, gradients: bool) -> dict[str, Any]:
    for cut in CUTS:
        cleared()
        try:
            return {"errors": errors_at(sides, lock, gradients, cut)}
        except torch.OutOfMemoryError:
            continue
        except Exception as error:  # of another batch, perhaps, which the model does not take
            if cut == 1:
                raise
            return {"errors": {"skipped": f"out of memory in float64, and a part of the batch: {first_line(error)}"}}
    return {"errors": {"skipped": "out of memory in float64 at every size"}}


# ---- a row ----


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The row as it grows."""
    options = Options(target=arguments.target, bench=False, tune="again")
    row: dict[str, Any] = {"outcome": "measured"}
    problem = load_problem(arguments.model)
    if arguments.text:
        text = arguments.text.read_text()
    else:
        watched = Watched()
        front = None if arguments.verify else remembering(read_problem(problem, options, watched))
        row |= {"texts": candidates_hash(front)} if front is not None else {}
        if row.get("texts") == arguments.known != "":
            yield {"outcome": "known", "texts": arguments.known}
            return
        with taking_turns(arguments.lock, arguments.hurry):
            written = write(problem, front, options, watched)
        text = written.text
        row |= {"text": short_hash(text), "plain": written.plain, "notes": written.notes, "choices": written.choices}
        row["optimize"] = watched.found() | {"verified": arguments.verify}
        row |= {"outcome": "not equal", "why": written.failed} if written.failed else {}
        if arguments.keep:
            (arguments.keep / f"{row['text']}.py").write_text(text)
        del front
        yield row
    cleared()
    name = f"{problem.path.stem}_new.py"
    sides = Sides(problem, load_candidate(text, arguments.target, "", name, new_file(problem, options)))
    stages: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("times", lambda: times(sides, arguments.lock, waiting(arguments.ready, arguments.go)))
    ]
    if not arguments.text:
        if arguments.target == "cuda":
            stages.append(("peaks", lambda: peaks(sides, "step_ms" in row)))
        stages.append(("errors", lambda: errors(sides, arguments.lock, "step_ms" in row)))
    for name, stage in stages:
        cleared()
        try:
            row |= stage()
        except torch.OutOfMemoryError as error:
            row |= {"outcome": "out of memory", "why": f"{name}: {first_line(error)}"}
        except (Refused, RuntimeError, TypeError, ValueError) as error:
            row |= {"outcome": "fails", "why": f"{name}: {first_line(error)}"}
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--lock", required=True)
    parser.add_argument("--target", choices=("host", "cuda"), default="cuda")
    parser.add_argument("--known", default="", help="the hash of texts whose row is at hand")
    parser.add_argument("--keep", type=Path, help="a folder for the file that is written")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--hurry", type=float, default=1.0)
    parser.add_argument("--text", type=Path, help="a file that was written before: only its times are taken")
    parser.add_argument("--ready", type=Path, help="a file to make when everything is built, before anything is timed")
    parser.add_argument("--go", type=Path, help="a file to wait for then")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="of GPU memory that this process may take")
    arguments = parser.parse_args()
    if arguments.target == "host":
        torch.set_num_threads(1)
    elif arguments.gigabytes:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.gigabytes * 1e9 / total))
    try:
        for row in measure(arguments):
            print(json.dumps(row), flush=True)
    except Refused as refusal:
        print(json.dumps({"outcome": "refused", "why": str(refusal)}), flush=True)
    except torch.OutOfMemoryError as error:
        print(json.dumps({"outcome": "out of memory", "why": first_line(error)}), flush=True)


if __name__ == "__main__":
    main()
