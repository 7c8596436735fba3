"""The line: model file -> capture -> rewrite -> lower -> plan -> backward (`plan_joint`) -> emit -> build -> verify.

Every step is a function from value to value.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..bench.comparison import bench
from ..bench.gpu import Gpu
from ..codegen.mma.anchor import Fused
from ..emit import Emitted
from ..emit.surroundings import notes as notes_on
from ..errors import Refused, Unsupported, first_line
from ..frontend.capture import capture
from ..frontend.collector import uncollected
from ..frontend.cuda_casts import casts_for
from ..frontend.dependence import unused_inputs
from ..frontend.problem import Problem, check_output
from ..ir.graph import Graph, Ref
from ..ir.plan import Kernel, Plan
from ..laws.law import NONFINITE_KIND
from ..laws.rewrite import rewrite
from ..options import Options
from ..process import Limits
from ..report.accuracy import errors_record
from ..report.explain import explain_plan
from ..report.record import run_record
from ..steps import counted
from ..target.detect import machine_for, machine_here
from ..verify.candidate import Candidate, gpu_works, load_candidate
from ..verify.judge import Remote
from ..verify.precision import decided, split_all
from ..verify.shrink import Shapes, Sizes
from ..verify.verifier import Verdict, questions
from ..verify.verifier import verify as verify_candidate
from . import tuning_record
from .all_variants import Tried, try_all, variants
from .front import Front
from .tuning import building
from .tuning.choices import LIBRARY, LIBRARY_CHANNELS_LAST, PREDICTED, Choices
from .tuning.probe import Probe, Stopped
from .tuning.tune import Tuned, key, recall, remember, shown, tune

Progress = Callable[[str, str], None]
MOST_NAMED = 6  # kernels in a note
OF_THE_CPU = "forward turns autocast on, which casts in other places on a GPU: this was planned as it is on the CPU, so plan it anew there"
NOT_ASKED = Verdict(False, (), "not verified: it was not asked for", math.nan, math.nan, (), ())

# Checks that a fault in the kernels of backward makes fail.
OF_GRADIENTS = {
    "gradients there or not", "gradients", "gradients of their own", "second derivatives", "kernels launched", "kernels matter"
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What an optimisation gives: the file's text, whether it is right, the report, and what they were made of."""

    text: str
    verdict: Verdict
    report: dict[str, Any]
    front: Front
    made: Plan
    emitted: Emitted
    choices: Choices
    variants: tuple[Tried, ...] = ()  # with `all_variants`: what came of each

    @property
    def degraded(self) -> list[str]:
        """Sentences: where kernels of ours did not build or did not verify, and another variant is written."""
        return list(self.report["degraded"])


def silent(stage: str, detail: str = "") -> None:
    """Progress that nobody watches."""


@uncollected()
def read_problem(problem: Problem, options: Options, progress: Progress = silent) -> Front:
    progress("capture", "")
    model, inputs = on_the_cpu(problem)
    device = torch.device("cuda" if choose_target(options) == "cuda" else "cpu")
    with casts_for(device.type) as entered:
        captured = capture(model, inputs, str(problem.path), options.dynamic)
    if not any(isinstance(output.value, Ref) and output.kind == "return" for output in captured.outputs):
        check_output(model(*inputs), problem.path)
    trained = frozenset(node.name for node in captured.nodes if node.target == "input" and node.args[0] in problem.trained)
    captured = replace(captured, trained=trained)
    progress("rewrite", f"{len(captured.nodes)} nodes")
    graph, applied = rewrite(captured, options)
    progress("plan", f"{len(applied)} laws applied" if applied else "")
    precision = replace(decided(model, inputs, captured, device, options.precision), arithmetic=options.arithmetic)
    stays_here = problem.behind is not None and options.target == "host"
    notes = [OF_THE_CPU] if entered and device.type == "cpu" and not stays_here else []
    notes += fixed_sizes(captured) if options.dynamic else []
    return Front(problem, options, model, captured, graph, applied, precision, machine_for(options.arch), tuple(notes))


def fixed_sizes(captured: Graph) -> list[str]:
    """A sentence where the model takes other ways, or none, with other sizes than the example's, as far as the tracer sees."""
    inputs = [node for node in captured.nodes if node.target == "input" and node.shape]
    if not inputs or not all(isinstance(size, int) for node in inputs for size in node.shape or ()):
        return []
    named = ", ".join(f"{node.name} {'×'.join(map(str, node.shape or ()))}" for node in inputs)
    return [f"planned for inputs of the example's sizes alone: {named}; calls with others run the original"]


def on_the_cpu(problem: Problem) -> tuple[nn.Module, list[Any]]:
    """The model and its inputs where they are captured, wherever the file puts them."""
    return problem.model().cpu(), [x.cpu() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]


def compile_problem(
    problem: Problem, options: Options, progress: Progress = silent, choices: Choices = PREDICTED
) -> tuple[Graph, Plan, Emitted]:
    front = read_problem(problem, options, progress)
    made, emitted = front.finish(choices)
    progress("emit", f"{len(made.kernels)} kernels")
    return front.graph, made, emitted


def ahead(options: Options) -> tuple[str, ...]:
    """The stages that `optimize` will go through, as far as they are known before."""
    on_gpu = choose_target(options) == "cuda"
    found = ["load", "capture", "rewrite", "plan", *(["tune"] if on_gpu and options.tune != "off" else []), "emit", "build", "verify"]
    return (*found, *(["variant"] if options.all_variants else []), *(["bench"] if on_gpu and options.bench else []))


def optimize(problem: Problem, options: Options, progress: Progress = silent) -> Run:
    """Plan, choose, write and verify. On a GPU each file runs first in a process of its own: one that does not is left out."""
    target = choose_target(options)
    with probing(problem, options, target) as probe:
        return optimized(problem, options, progress, target, probe)


def optimized(problem: Problem, options: Options, progress: Progress, target: str, probe: Probe | None) -> Run:
    awake: Callable[[], None] = awakened() if target == "cuda" else lambda: None
    front = read_problem(problem, options, progress)
    awake()
    if probe is not None:
        probe.load()
    tuned = tuned_for(front, options, progress, probe) if target == "cuda" else tuned_elsewhere(front, options)
    choices, gradients, notes, degraded = tuned.choices, options.gradients, list[str](), [*tuned.degraded]
    judge = judge_of(front, target, progress, probe)
    others = [PREDICTED, *(fallbacks(tuned) if target == "cuda" else [])]  # on the host a wrong kernel is to be seen
    while True:
        made, emitted = front.finish(choices, gradients)
        progress("emit", f"{len(made.kernels)} kernels")
        if not options.verify:
            verdict = NOT_ASKED
            break
        progress("build", target)
        name, place = problem.path.stem + "_new.py", emitted.place
        apart, behind = options.all_variants, problem.behind
        candidate = load_candidate(emitted.text, target, options.sanitize, name, place, apart, behind)
        building.build(building.units_of(candidate, not options.forward_only))
        progress("verify", "")
        try:
            verdict = judge(candidate, made)
        except Stopped as stopped:
            left = next_ways(others, choices, made)
            if stopped.fault.in_training and gradients:
                gradients = False
                degraded.append(f"backward is left to PyTorch's operators: {stopped.fault}")
            elif left:
                degraded.append(f"{whose(choices, tuned)} did not run ({stopped.fault}); {instead(left[0])}")
                choices, others = left[0], left[1:]
            else:
                raise
            continue
        failed = {check.name for check in verdict.checks if not check.passed}
        if failed and target == "cuda" and not gpu_works():
            notes.append("the GPU stopped working while this file was verified: no other was tried")
            break
        if failed and not front.precision.split and any(is_coarser(kernel) for kernel in made.kernels):
            notes.append(f"operands of convolutions are split: one TF32 product did not verify ({verdict.worst})")
            front = replace(front, precision=split_all(front.precision))
            judge = judge_of(front, target, progress, probe)
        elif failed and choices.bf16_parts:
            notes.append(f"operands of convolutions are split into TF32 numbers: bf16 parts did not verify ({verdict.worst})")
            choices = replace(choices, bf16_parts=False)
        elif failed and choices.scaled:
            notes.append(f"operands of convolutions are rounded to TF32: scaled fp16 did not verify ({verdict.worst})")
            choices = replace(choices, scaled=False)
        elif failed and gradients and failed <= OF_GRADIENTS:
            gradients = False
            if any(check.name == "gradients" and check.skipped for check in verdict.checks):
                notes.append("backward is left to PyTorch's operators: there are no gradients of the original's to compare with")
            else:
                degraded.append(f"backward is left to PyTorch's operators: its kernels did not verify ({verdict.worst})")
        elif failed and (left := next_ways(others, choices, made)):
            degraded.append(f"{whose(choices, tuned)} did not verify ({verdict.worst}); {instead(left[0])}")
            choices, others = left[0], left[1:]
        else:
            break
    if verdict.passed and tuned.key and choices == tuned.choices:
        remember(tuned.key, tuned)
    if verdict.passed and tuned.record_key and options.tuning_record is not None and choices == tuned.choices:
        tuning_record.add(options.tuning_record, tuned.record_key, problem.path.name, torch.cuda.get_device_name(), tuned)
    tried: list[Tried] = []
    if options.all_variants:
        every, left_out = variants(front)
        notes += left_out
        say = functools.partial(progress, "variant")
        tried = list(try_all(front, every, target, judge, {emitted.text: verdict}, say))
    if probe is not None:
        notes += probe.notes
        probe.close()
    timing = None
    if target == "cuda" and options.bench and verdict.passed:
        step = functools.partial(progress, "bench")
        timing = bench(problem, [candidate], options, options.modes, facts=emitted.kernels, progress=step)
    record = run_record(problem, made, emitted, verdict, timing, before=made.captured, training=choices.training)
    found = record | report(problem, target, emitted, made, verdict) | {"tuning": tuned.to_dict()}
    found["precision"] = front.precision.to_dict()
    found["machine"] = {"name": front.machine.name, "rates": front.machine.rates}
    found["notes"] = [*found["notes"], *front.notes, *shown(tuned), *notes, *notes_on(front.around), *degraded]
    found |= {"degraded": degraded, "plain": not made.every_kernel, "variants": [one.to_dict() for one in tried]}
    return Run(emitted.text, verdict, found, front, made, emitted, choices, tuple(tried))


def is_coarser(kernel: Kernel) -> bool:
    """It rounds operands of a convolution that the library does not."""
    return isinstance(kernel.fused, Fused) and kernel.fused.anchor.coarser


def awakened() -> Callable[[], None]:
    """Makes the GPU's context and loads cuDNN in a thread, while the model is traced on the CPU; returns what waits for it."""

    def first_calls() -> None:
        with contextlib.suppress(RuntimeError, AssertionError):  # said where it matters
            image, weight = (torch.zeros(8, 8, 8, 8, device="cuda") for _ in range(2))
            torch.conv2d(image, weight)
            torch.cuda.synchronize()

    thread = threading.Thread(target=first_calls, daemon=True)
    thread.start()
    return thread.join


def judge_of(
    front: Front, target: str, progress: Progress = silent, probe: Probe | None = None
) -> Callable[[Candidate, Plan], Verdict]:
    """What verifies a file that was made of this model. With a `probe` it runs there first, at the sizes of verification too, or raises
    `Stopped`."""

    def judge(candidate: Candidate, made: Plan) -> Verdict:
        kind_may_change = any(NONFINITE_KIND in rule.tags for rule in made.rules)

        def run_first(sizes: Sequence[Sizes]) -> None:
            fault = probe.first_run(candidate, not front.options.forward_only, sizes) if probe is not None else None
            if fault is not None:
                raise Stopped(fault)

        def run_at(shapes: Shapes) -> None:
            run_first([sizes for sizes in dict.fromkeys([shapes.small, *shapes.others.values()]) if sizes != shapes.given])

        run_first(())
        with refused_without_a_gpu(target):
            return verify_candidate(
                front.problem,
                candidate,
                graph=front.graph,
                options=front.options,
                kind_may_change=kind_may_change,
                progress=counted(progress, len(questions()) + 1),
                first=run_at,
            )

    return judge


def fallbacks(tuned: Tuned) -> list[Choices]:
    """What is tried where kernels do not verify: the library's convolutions and products as timing liked them, or no kernel at all."""
    ms = dict(tuned.rows)
    library, channels_last = (ms.get(name, math.inf) for name in (LIBRARY, LIBRARY_CHANNELS_LAST))
    return [Choices(own=frozenset(), channels_last=channels_last < library), Choices(plain=True)]


def next_ways(others: list[Choices], choices: Choices, made: Plan) -> list[Choices]:
    """The variants that are left after one that did not verify: others for convolutions only where some are ours."""
    ours = any(kernel.fused is not None for kernel in made.every_kernel)
    return [other for other in others if other != choices and (ours or other.plain or other == PREDICTED)]


def whose(choices: Choices, tuned: Tuned) -> str:
    """What a file was made of, in words."""
    return "what timing chose" if choices == tuned.choices != PREDICTED else "the kernels"


def instead(choices: Choices) -> str:
    """What is written instead."""
    if choices == PREDICTED:
        return "this is the file as predicted"
    return "the original's forward is kept" if choices.plain else "convolutions and products are the library's"


def probing(problem: Problem, options: Options, target: str) -> contextlib.AbstractContextManager[Probe | None]:
    """The process that files run in first: on a GPU, where anything is run."""
    runs = target == "cuda" and (options.verify or options.tune != "off")
    return Probe(problem, target) if runs else contextlib.nullcontext()


def tuned_for(front: Front, options: Options, progress: Progress, probe: Probe | None = None) -> Tuned:
    """What timing on this GPU chooses, or chose when it was asked before. Where timing itself fails, the prediction stands."""
    if options.tune == "off" and options.tuning_record is None:
        return Tuned(PREDICTED)
    if options.arch and machine_here() != front.machine:
        elsewhere = tuned_elsewhere(front, options)
        return replace(elsewhere, notes=(*elsewhere.notes, f"not tuned: planned for {front.machine.name}, and the GPU here is another"))
    forward_only = functools.partial(front.finish, gradients=False)
    _, predicted = forward_only(PREDICTED)
    gpu, training = torch.cuda.get_device_name(), training_words(options)
    name, note, new = key(predicted, gpu, training, front.precision.name), "", ""
    if options.tuning_record is not None:
        new = tuning_record.key(predicted, training, front.precision.name)
        answer = tuning_record.look_up(options.tuning_record, new, front.problem.path.name, gpu, front.machine.name)
        if answer.tuned is not None and options.tune != "again":
            return answer.tuned
        note = answer.note
    if options.tune == "off":
        return Tuned(PREDICTED, record_note=f"{note}: as predicted")
    note = f"{note}: tuned here, and added" if note else ""
    known = recall(name) if options.tune == "auto" else None
    if known is not None:
        return replace(known, record_key=new, record_note=note)
    try:
        clock = Gpu(torch.device("cuda", torch.cuda.current_device()))
        trained = None if options.forward_only else front.finish
        found = tune(front.problem, forward_only, clock, progress=lambda detail: progress("tune", detail), trained=trained, probe=probe)
    except Exception as error:  # out of memory, an operator the GPU lacks, a fault of ours: the file is as right without
        first = first_line(error)
        if not gpu_works():
            raise Refused(f"{first}; with --tune off no variant but the predicted one is tried") from error
        return Tuned(PREDICTED, notes=(f"not tuned: {first}",))
    return replace(found, key=name, record_key=new, record_note=note) if found.whole else found


def tuned_elsewhere(front: Front, options: Options) -> Tuned:
    """Where nothing can be timed: what a record has of it, or what is predicted."""
    if options.tuning_record is None:
        return Tuned(PREDICTED)
    _, predicted = front.finish(PREDICTED, gradients=False)
    name = tuning_record.key(predicted, training_words(options), front.precision.name)
    answer = tuning_record.look_up(options.tuning_record, name, front.problem.path.name, None, front.machine.name)
    return answer.tuned or Tuned(PREDICTED, record_note=f"{answer.note}: as predicted")


def training_words(options: Options) -> str:
    """What was asked for of training."""
    return "no training" if options.forward_only else "kernels for gradients" if options.gradients else "PyTorch's gradients"


@contextlib.contextmanager
def refused_without_a_gpu(target: str) -> Iterator[None]:
    """What fails because a kernel ended the CUDA context is refused with a sentence: nothing else can run any more."""
    try:
        yield
    except RuntimeError as error:
        if target == "cuda" and not gpu_works():
            raise Refused(f"the GPU stopped working: {(str(error).splitlines() or [''])[0]}") from error
        raise


def choose_target(options: Options) -> str:
    if options.target == "auto":
        return "cuda" if torch.cuda.is_available() and not options.sanitize else "host"
    if options.target == "cuda" and not torch.cuda.is_available():
        raise Refused("--target cuda was asked for, but PyTorch finds no CUDA device here; use --target host")
    return options.target


def report(problem: Problem, target: str, emitted: Emitted, made: Plan, verdict: Verdict) -> dict[str, Any]:
    launched = set(verdict.kernels) or {kernel.name for kernel in emitted.kernels}  # some run only after a first call
    return {
        "model": problem.path.name,
        "verified": verdict.passed,
        "target": target,
        "kernels": [
            {"name": k.name, "replaces": list(k.replaces), "bytes": k.bytes, "flops": k.flops}
            for k in emitted.kernels
            if k.name in launched
        ],
        "library_calls": list(verdict.library_calls),
        "rules": [str(rule) for rule in made.rules],
        "max_error": verdict.max_error,
        "tolerance": verdict.tolerance,
        "errors": errors_record(verdict),
        "not_run": list(verdict.not_run),
        "notes": [*([verdict.shapes_note] if verdict.shapes_note else []), *not_run(verdict), *unused_inputs(made.graph)],
    }


def not_run(verdict: Verdict) -> Iterator[str]:
    """In words: kernels that are in the file and that no size of the verification called for."""
    if verdict.not_run:
        large = [name for name in verdict.not_run if "<long long" in name]
        others = [name for name in verdict.not_run if name not in large]
        named = [f"{name} (64-bit offsets)" for name in large] + others
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        yield f"not run: {', '.join(named[:MOST_NAMED])}{more}"


def verify(problem: Problem, candidate: Path, options: Options, progress: Progress = silent) -> Any:
    progress("capture", "")
    graph: Graph | None
    try:
        graph = capture(*on_the_cpu(problem), str(problem.path))
    except Unsupported:
        graph = None  # which sizes may vary is then found by trying
    progress("build", "")
    loaded = load_candidate(candidate, choose_target(options), options.sanitize)
    progress("verify", "")
    with refused_without_a_gpu(loaded.target):
        return verify_candidate(problem, loaded, graph=graph, options=options, progress=progress)


def verify_apart(problem: Problem, candidate: Path, options: Options, limits: Limits, progress: Progress = silent) -> Any:
    """The same, with the candidate in a process of its own: this one never runs its code."""
    with Remote(problem, candidate, choose_target(options), options.sanitize, limits) as remote:
        progress("capture", "")
        try:
            graph = capture(*on_the_cpu(problem), str(problem.path))
        except Unsupported:
            graph = None
        progress("build", "")
        remote.load()
        progress("verify", "")
        with refused_without_a_gpu(remote.target):
            return verify_candidate(problem, remote, graph=graph, options=options, progress=progress)


def explain(problem: Problem, options: Options) -> str:
    _, made, emitted = compile_problem(problem, options)
    return explain_plan(made, emitted)
