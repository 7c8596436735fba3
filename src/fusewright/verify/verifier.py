"""Is a candidate the same model as the original? One named check for each way it could only look so.

The checks run in stages; a stage with a failed check is the last, so that a verdict names the cause, not what follows.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn

from ..errors import Ended, Refused, Short
from ..frontend.problem import Problem, shown
from ..frontend.quiet import said
from ..ir.graph import Graph
from ..laws.nonfinite import has_welfords_means
from ..options import Options
from .budget import K
from .candidate import Candidate, Trace, gpu_works
from .checks import Check as Question
from .checks import Finding, Outcome, Trial, behaviour, differentiation, following, kernels, sentence, skipped, values
from .judge import OF_THE_WORKER, Remote
from .memory import Footprint, Memory, Meter, OnGPU, is_short, measured, release
from .observe import buffers_put_back, filled_memory, seeded
from .precision import library_for
from .shrink import Shapes, Sizes, Steps, choose, seconds_for, space_of, steps_of, with_longer, work
from .subjects import Subjects, subjects
from .variants import Variant, fewer, planned


@dataclass(frozen=True)
class Check:
    """One line of a verdict."""

    name: str
    passed: bool  # it did not fail
    detail: str = ""
    number: float | None = None
    seconds: float = 0.0
    skipped: bool = False  # it did not run, and `detail` says why

    @property
    def status(self) -> str:
        return "skipped" if self.skipped else "held" if self.passed else "failed"


@dataclass(frozen=True)
class Errors:
    """Against float64, side by side: the largest error of a tensor over its rms, of the tensor on which the candidate errs most."""

    ours: float
    eager: float
    tensor: str


@dataclass(frozen=True)
class Verdict:
    passed: bool
    checks: tuple[Check, ...]
    worst: str  # the element with the largest error over its budget, or what failed
    max_error: float  # on inputs as given, at the element nearest to its budget (or farthest beyond it)
    tolerance: float  # what that element may err
    kernels: tuple[str, ...]  # launched by one forward, in order
    library_calls: tuple[str, ...]  # operators that forward left to PyTorch, in order
    shapes_note: str = ""
    k: float = K
    not_run: tuple[str, ...] = ()  # on the host: kernels of its launchers that no size called for
    seconds: float = 0.0  # that verifying took
    peak: int = 0  # bytes of tensors on the GPU at most, in the process that judges
    own_peak: int = 0  # of a training step of the original alone, at the sizes that were verified
    errors: Errors | None = None  # of results on inputs as given
    gradient_errors: Errors | None = None  # of gradients, where they were compared


# Processor time, so that the choice does not depend on what else the machine is doing.
CANDIDATE_SECONDS = 0.3  # a candidate slower than that at the small sizes (tensor cores on the host) gets smaller ones
MOST_OF_RMS = 0.1  # of eager's error over a tensor's rms
MOST_PLAIN = 6  # inputs of masks, whole numbers and plain values that are drawn anew
MOST_SECONDS = 30.0  # for all comparisons of values; with a large model fewer variants run

STAGES: tuple[tuple[tuple[str, Question], ...], ...] = (
    (("state_dict", behaviour.state), ("real tensors", behaviour.real_tensors)),
    (
        ("every element written", behaviour.written),
        ("inputs untouched", behaviour.inputs_untouched),
        ("nothing cached", behaviour.not_cached),
        ("same result again", behaviour.repeatable),
        ("any order of threads", behaviour.any_order),
        ("no work after returning", behaviour.no_threads),
    ),
    (
        ("seeds", values.group("seeds")),
        ("input distributions", values.group("distributions")),
        ("randomised parameters", values.group("parameters")),
        ("other shapes", values.group("shapes")),
        ("memory layouts", values.group("layouts")),
        ("non-finite values", values.group("non-finite")),
        ("evaluation mode", values.group("modes")),
        ("buffers", values.buffers),
        ("output's own spread", values.own_spread),
        ("depends on inputs and parameters", values.dependence),
        ("precision", values.precision),
    ),
    (("state on self", following.state_on_self),),  # before gradients, which are those of what is kept there too
    (
        ("gradients there or not", following.gradients_there),
        ("gradients", differentiation.gradients),
        ("gradients of their own", differentiation.of_their_own),
        ("second derivatives", differentiation.second_derivatives),
        ("autograd modes", differentiation.autograd_modes),
        ("copies", behaviour.copies),
        ("nothing besides", behaviour.nothing_besides),
    ),
    (
        ("other constructor arguments", following.constructor),
        ("attributes set later", following.attributes),
        ("hooks", following.hooks),
        ("several calls in a row", following.several_calls),
        ("backward in other ways", following.backward_ways),
    ),
    (
        ("kernels launched", kernels.launched),
        ("kernels matter", kernels.matter),
        ("outside the plan", kernels.fallback),
    ),
)

OF_FOLLOWING = frozenset({"other constructor arguments", "attributes set later", "hooks"})
OF_GRADIENTS = frozenset(
    {"gradients there or not", "gradients", "gradients of their own", "second derivatives", "backward in other ways"}
)


def verify(
    problem: Problem,
    candidate: Candidate | Remote,
    *,
    graph: Graph | None = None,
    options: Options | None = None,
    kind_may_change: bool = True,
    progress: Callable[[str, str], None] | None = None,
    meter: Meter | None = None,
    first: Callable[[Shapes], None] | None = None,
) -> Verdict:
    """Run every check. `kind_may_change`: a law may turn a NaN into an Inf or back, never into a finite number.

    `first`: called once the sizes are chosen, before the candidate runs at any of them; what it raises ends verification.
    `meter`: what counts memory, where it is not a GPU's; without one a host's is not counted. Where it runs out and nothing smaller
    is left to try, `Short` is raised: nothing was found out about the candidate.
    """
    try:
        return _verified(problem, candidate, graph, options or Options(), kind_may_change, progress, meter, first)
    except Exception as error:
        if isinstance(error, Short) or not is_short(error):
            raise
        words = f"{shown(problem.path)}: verification ran out of memory: {sentence(error)}"
    release()
    raise Short(words)


def _verified(
    problem: Problem,
    candidate: Candidate | Remote,
    graph: Graph | None,
    options: Options,
    kind_may_change: bool,
    progress: Callable[[str, str], None] | None,
    meter: Meter | None,
    first: Callable[[Shapes], None] | None,
) -> Verdict:
    say = progress or (lambda name, detail: None)
    checks: list[Check] = []
    say("verify", "constructing ModelNew")
    start = time.perf_counter()
    try:
        new = candidate.build_model(problem)
    except Refused as refused:
        checks.append(Check("constructs", False, str(refused), seconds=time.perf_counter() - start))
        return _verdict(checks, [], Trace(), "")
    name = new if isinstance(new, str) else type(new).__name__
    checks.append(Check("constructs", True, name, seconds=time.perf_counter() - start))
    checks.append(_timed("PyTorch left alone", lambda: _left_alone(candidate)))
    if not checks[-1].passed:
        return _verdict(checks, [], Trace(), "")
    with _one_thread(candidate.device):
        if isinstance(candidate, Remote):
            subject = candidate.begin(subjects(problem, cast(Candidate, candidate), None))
        else:
            subject = subjects(problem, candidate, cast(nn.Module, new))
        meter = OnGPU() if meter is None and candidate.device.type == "cuda" else meter
        trial = _trial(subject, graph, options, kind_may_change, None if meter is None else Memory(meter), first)
        if isinstance(candidate, Remote):
            candidate.settle(trial)
        trace = _run_stages(trial, checks, say)
    checks.append(_timed("PyTorch left alone, at the end", lambda: _left_alone(candidate)))
    if isinstance(candidate, Remote) and candidate.ended:
        raise Ended(candidate.ended)
    notes = "; ".join([*([trial.shapes.note] if trial.shapes.note else []), *trial.notes])
    memory = trial.memory
    return replace(
        _verdict(checks, trial.findings, trace, notes), not_run=candidate.not_run, seconds=time.perf_counter() - start,
        peak=memory.highest if memory else 0, own_peak=memory.own.training if memory and memory.own else 0,
    )  # fmt: skip


def _left_alone(candidate: Candidate | Remote) -> Outcome:
    return candidate.check("PyTorch left alone") if isinstance(candidate, Remote) else behaviour.left_alone(candidate)


def questions() -> dict[str, Question]:
    return dict(check for stage in STAGES for check in stage)


@contextlib.contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Small tensors gain nothing by PyTorch's threads and lose tenfold by them where other processes want the cores."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_stages(trial: Trial, checks: list[Check], say: Callable[[str, str], None]) -> Trace:
    """Append what each check found; returns what a plain forward launched."""
    trace = Trace()
    for stage in STAGES:
        for name, question in stage:
            say("verify", name)
            checks.append(_timed(name, functools.partial(_asked, trial, name, question), trial.short))
            if trial.memory is not None:
                trial.memory.note()
            if isinstance(trial.subjects.elsewhere, Remote) and trial.subjects.elsewhere.ended:
                raise Ended(trial.subjects.elsewhere.ended)  # whatever a check made of that
            if trial.subjects.device.type == "cuda":
                torch.cuda.empty_cache()  # other processes may want the memory
        if stage is STAGES[0] and all(check.passed for check in checks):
            there = trial.subjects.elsewhere
            trace = there.trace_of_forward() if isinstance(there, Remote) else forward_trace(trial)
        if not all(check.passed for check in checks):
            break
    return trace


def _asked(trial: Trial, name: str, question: Question) -> Outcome:
    if trial.as_built and name in OF_FOLLOWING:
        return skipped("--as-built: it need not follow changes of the model")
    left_out = trial.forward_only and name in OF_GRADIENTS
    if left_out:
        return skipped("forward only: no gradients were asked for")
    there = trial.subjects.elsewhere
    return there.check(name) if isinstance(there, Remote) and name in OF_THE_WORKER else question(trial)


def _trial(
    subject: Subjects,
    graph: Graph | None,
    options: Options,
    kind_may_change: bool,
    memory: Memory | None = None,
    first: Callable[[Shapes], None] | None = None,
) -> Trial:
    """Choose sizes the original accepts and the time allows, and the variants to run at them."""
    inputs = subject.source.given
    space = with_longer(space_of(graph, subject.original, inputs), subject.original, inputs)

    def seconds(sizes: Sizes) -> float | None:
        found = work(subject.original, inputs, sizes)
        return None if found is None else seconds_for(*found)

    full_size = subject.device.type == "cuda"
    shapes = choose(space, seconds, full_size)
    if first is not None:
        first(shapes)
    subject = subject.with_its_twin(shapes.small)
    _first_calls(subject, shapes.small)
    slower = _candidate_seconds(subject, shapes.small) / CANDIDATE_SECONDS
    if slower > 1:
        shapes = choose(space, seconds, full_size, slower)
    at_small, at_main = (_accepts(subject, sizes) for sizes in (shapes.small, shapes.main))
    steps = Steps()
    if at_small is None and (at_main is None or is_short(at_main)):
        steps = steps_of(space, shapes, lambda sizes: seconds(sizes) is not None)
        if memory is not None:
            shapes = _fitting(subject, shapes, steps, memory, not options.forward_only)
        elif at_main is not None:
            shapes = replace(shapes, main=shapes.small, note="verified at small sizes: the given ones do not fit in memory")
    else:
        shapes = Shapes(shapes.given, shapes.given, shapes.given, {})  # values that fit one size only, such as indices
        error = _accepts(subject, shapes.given)
        if error is not None and is_short(error):
            raise Short(f"{shown(subject.problem.path)}: out of memory{_size(memory)}: the model itself does not fit") from error
        if error is not None:
            name = shown(subject.problem.path)
            raise Refused(f"{name}: Model.forward() raised {sentence(error)}") from error
        if memory is not None:
            shapes = _fitting(subject, shapes, steps, memory, not options.forward_only)
    subject = replace(_with_its_rounding(subject, shapes, options.precision), shrunk=shapes.small)
    straight = all(x.is_contiguous() for x in subject.source.given if isinstance(x, torch.Tensor))
    plain = [i for i, x in enumerate(subject.source.given) if not (isinstance(x, torch.Tensor) and x.is_floating_point())]
    variants = planned(shapes, options.seeds, straight, plain[:MOST_PLAIN])
    if options.assume_finite:
        variants = [variant for variant in variants if variant.group != "non-finite"]
    variants = fewer(variants, _seconds_for_one(subject, shapes), MOST_SECONDS)
    kind_may_change = kind_may_change or (graph is not None and has_welfords_means(graph))
    trial = Trial(subject, shapes, tuple(variants), kind_may_change, options.forward_only, options.as_built)
    return replace(trial, memory=memory, steps=steps)


def compact_trial(subject: Subjects, meter: Meter | None = None) -> Trial:
    """A trial without checks, for one comparison at the given sizes within the memory that verification may take."""
    return _trial(subject, None, Options(seeds=1), True, Memory(meter or OnGPU()))


def _fitting(subject: Subjects, shapes: Shapes, steps: Steps, memory: Memory, gradients: bool) -> Shapes:
    """The main sizes, or the largest below them at which the original itself fits; what it takes there is measured."""
    for sizes in dict.fromkeys((shapes.main, *steps.below(shapes.main))):
        release()
        try:
            memory.own = _footprint(subject, sizes, memory.meter, gradients)
        except torch.OutOfMemoryError:
            continue
        release()
        memory.meter.reset()
        if sizes == shapes.main:
            return shapes
        instead = f"verified at {steps.name(sizes)} instead of {steps.name(shapes.given)}: {memory.meter.limit() / 1e9:.3g} GB of memory"
        return replace(shapes, main=sizes, note=instead)
    raise Short(f"{shown(subject.problem.path)}: out of memory{_size(memory)}: the model itself does not fit")


def _size(memory: Memory | None) -> str:
    return f" of {memory.meter.limit() / 1e9:.3g} GB" if memory is not None else ""


def _footprint(subject: Subjects, sizes: Sizes, meter: Meter, gradients: bool) -> Footprint:
    variant = Variant("first call", sizes)
    subject.set_state(variant)
    original = subject.original
    for with_gradients in (True, False) if gradients else (False,):
        try:
            with buffers_put_back(original), subject.unmoved(original), seeded(0):
                return measured(meter, original, subject.inputs(variant), with_gradients)
        except Exception as error:
            if is_short(error):
                raise torch.OutOfMemoryError(str(error)) from None
            if not with_gradients:
                raise
    raise AssertionError


def _first_calls(subject: Subjects, sizes: Sizes) -> None:
    """Of the original, in either mode: what it prints is shown, and which attributes it changes is known from now on."""
    for training in (True, False):
        variant = Variant("first call", sizes, training=training)
        subject.set_state(variant)
        with said() if training else contextlib.nullcontext(), contextlib.suppress(Exception):  # asked for again where it matters
            subject.run_eager(variant)


def _seconds_for_one(subject: Subjects, shapes: Shapes) -> float:
    """What a variant at the small sizes takes."""
    variant = Variant("first call", shapes.small, parameters="random")
    start = subject.clock()
    subject.set_state(variant)
    with contextlib.suppress(Exception):  # the original may refuse such parameters
        subject.references(variant)
    return subject.clock() - start + _candidate_seconds(subject, shapes.small)


def _candidate_seconds(subject: Subjects, sizes: Sizes) -> float:
    """What one run of the candidate takes; what it raises is a check's matter, not this one's."""
    variant = Variant("first call", sizes)
    subject.set_state(variant)
    start = subject.clock()
    try:
        subject.run_candidate(variant)
        if subject.device.type == "cuda":
            torch.cuda.synchronize()  # or its fault would be the original's
    except (Exception, SystemExit) as error:
        if subject.device.type == "cuda" and not gpu_works():
            raise Refused(f"{subject.candidate.name}: it ended the GPU's context: {sentence(error)}") from error
    return subject.clock() - start


def _with_its_rounding(subject: Subjects, shapes: Shapes, precision: str) -> Subjects:
    """TF32 is allowed to convolutions: a model without any gains nothing by that, nor one whose convolutions the library does not round."""
    variant = Variant("first call", shapes.small)
    subject.set_state(variant)
    try:
        met = subject.operators(variant)
    except Exception as error:  # an operator without a float64 kernel, or a type fixed in a way nobody foresaw
        name = shown(subject.problem.path)
        raise Refused(f"{name}: the model has no float64 reference: {sentence(error)}") from error
    library = library_for(subject.original, subject.source.given, subject.device, precision)
    return replace(subject, rounding=subject.rounding.for_operators(met, library))


def _accepts(subject: Subjects, sizes: Sizes) -> Exception | None:
    """What the original raises at these sizes, if it does."""
    variant = Variant("first call", sizes)
    subject.set_state(variant)
    try:
        subject.run_eager(variant)
    except Exception as error:  # the user's own code
        return error.with_traceback(None)  # whose frames would hold tensors
    return None


def forward_trace(trial: Trial) -> Trace:
    """What one plain forward at the main sizes launches and leaves to PyTorch; at the small ones where memory is short."""
    try:
        return _forward_trace(trial, next(v for v in trial.variants if v.group == "seeds"))
    except Exception as error:
        if not is_short(error):
            raise
    release()
    return _forward_trace(trial, trial.usual)


def _forward_trace(trial: Trial, variant: Variant) -> Trace:
    trial.subjects.set_state(variant)
    inputs = trial.subjects.inputs(variant)
    device = trial.subjects.device  # on a GPU the profiler would take the filling for work of the model
    filled = filled_memory(device) if device.type == "cpu" else contextlib.nullcontext()
    still = trial.subjects.unmoved(trial.subjects.new)
    with still, filled, torch.no_grad(), seeded(0), trial.subjects.candidate.trace() as trace:
        trial.subjects.new(*inputs)
    return trace


def _timed(name: str, question: Callable[[], Outcome], short: str = "memory ran out") -> Check:
    """What came out. Memory that ran out says nothing about the candidate: earlier checks may have left PyTorch blocks of other
    sizes, so it is asked once more; then `short` is all there is to say."""
    start, outcome = time.perf_counter(), None
    for again in (False, True):
        try:
            outcome = question()
            break
        except Short:
            raise
        except (Exception, SystemExit) as error:  # the candidate's own code raised
            if not is_short(error):
                outcome = Outcome(False, f"raised {sentence(error)}")
                break
            if again:
                raise Short(short) from error
        release()
    assert outcome is not None
    return Check(name, outcome.passed, outcome.detail, outcome.number, time.perf_counter() - start, outcome.skipped)


def _verdict(checks: list[Check], findings: list[Finding], trace: Trace, note: str) -> Verdict:
    passed = all(check.passed for check in checks)
    failed = [check for check in checks if not check.passed]
    as_given = [f for f in findings if f.variant.group == "seeds" and f.tensor.startswith("output")] or findings
    shown_ones = as_given if passed else [f for f in findings if not f.miss.passed] or as_given
    worst = max(shown_ones, key=lambda f: f.miss.ratio, default=None)
    words = f"{failed[0].name}: {failed[0].detail}" if failed else str(worst or "")
    error, allowed = (worst.miss.error, worst.miss.allowed) if worst else (float("nan"), float("nan"))
    of_gradients = [f for f in findings if f.variant.group == "gradients" and f.tensor.startswith("gradient")]
    return Verdict(
        passed, tuple(checks), words, error, allowed, tuple(trace.kernels), tuple(trace.library_calls), note,
        errors=_errors([f for f in as_given if f.tensor.startswith("output")]), gradient_errors=_errors(of_gradients),
    )  # fmt: skip


def _errors(findings: list[Finding]) -> Errors | None:
    """Of tensors that eager itself has to a digit at least: where it has none, a result is 0 but for rounding."""
    told = [f for f in findings if f.miss.eager < MOST_OF_RMS and f.miss.ours == f.miss.ours]
    worst = max(told, key=lambda f: f.miss.ours, default=None)
    return None if worst is None else Errors(worst.miss.ours, worst.miss.eager, worst.tensor)
