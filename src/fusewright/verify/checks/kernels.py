"""Do the candidate's own kernels run, does each of them matter, and does what lies outside their plan still work?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from ..batch import Part
from ..budget import Miss, compare
from ..memory import is_short
from ..observe import Observed, filled_memory
from ..subjects import References, Subjects
from ..variants import Variant
from . import Outcome, Trial, sentence, skipped
from .bits import same

# Kernels of PyTorch that end a CUDA context when what they read is no probability.
OF_PROBABILITIES = frozenset("binary_cross_entropy bernoulli bernoulli_ multinomial".split())
NOT_PLANNED = ("autocast", "float64", "bfloat16", "one dimension less", "one dimension more", "empty batch")
CALLS = 20


def launched(trial: Trial) -> Outcome:
    """Every kernel the file declares was launched, in some variant at least."""
    candidate = trial.subjects.candidate
    declared = candidate.forward_kernels if trial.forward_only else candidate.kernels
    if not declared:
        return skipped("it declares no kernels")
    missing = [kernel for kernel in declared if kernel not in trial.launched and kernel not in trial.later]
    if missing:
        return Outcome(False, f"never launched: {', '.join(missing)}", float(len(missing)))
    later = [kernel for kernel in declared if kernel not in trial.launched]
    words = f", {len(later)} of them only after a first call: those were not made no-ops" if later else ""
    return Outcome(True, f"{len(declared)} declared, all launched{words}", float(len(declared)))


def matter(trial: Trial) -> Outcome:
    """With any one kernel a no-op, the result, a buffer or a gradient is wrong.

    Values that were drawn may be none that the model takes (a logarithm of what is negative, a piece of a mask that leaves
    nothing): where everything is NaN nothing can be spoilt. What seems not to matter there is tried with the values that the file
    gives, with normal ones (a half may overflow on those of the file), with parameters drawn anew and with large values too (a gate may
    be closed to all that is small), then at the sizes that it gives.
    """
    launched = {kernel: trial.smaller.get(variant, variant) for kernel, variant in trial.launched.items()}
    if not launched:
        return skipped("no kernel was launched")
    decoys = _all_decoys(trial, launched)
    as_launched = {kernel: variant.parameters for kernel, variant in launched.items()}
    drawn_anew = dict.fromkeys(launched, "random")
    for distribution, parameters in (
        ("as given", as_launched), ("normal", as_launched), ("normal", drawn_anew), ("large mean", drawn_anew),
    ):  # fmt: skip
        again = {
            kernel: trial.accepted(replace(launched[kernel], distribution=distribution, parameters=parameters[kernel]))
            for kernel in decoys
        }
        decoys = _all_decoys(trial, again)
    if decoys and trial.shapes.small != trial.shapes.main:
        larger = {kernel: replace(launched[kernel], distribution="as given", sizes=trial.shapes.main) for kernel in decoys}
        with contextlib.suppress(torch.OutOfMemoryError):
            decoys = _all_decoys(trial, larger)
    if decoys:
        return Outcome(False, f"the result is the same without {', '.join(decoys)}", float(len(decoys)))
    count = len(launched)
    return Outcome(True, f"{count} made no-ops one by one, each spoils the result", float(count))


def _all_decoys(trial: Trial, launched: Mapping[str, Variant]) -> list[str]:
    found = [kernel for variant in dict.fromkeys(launched.values()) for kernel in _decoys(trial, variant, launched)]
    return [kernel for kernel in launched if kernel in found]


def _decoys(trial: Trial, variant: Variant, launched: Mapping[str, Variant]) -> list[str]:
    """Of the kernels to be tried on this variant, those that change nothing: in no part of the batch, where memory is short."""
    parts = trial.parts(variant)
    trial.subjects.set_state(variant)
    fills = _left_unwritten(trial, variant)
    left = [kernel for kernel, on in launched.items() if on == variant]
    if parts is None:  # no room for references: then its own result is the measure
        result = trial.observe(variant)
        return [kernel for kernel in left if all(_alike_without(kernel, trial, variant, result, *fill) for fill in fills)]
    for part, references in trial.references(variant, parts):
        gradients = [value for name, value in references.eager.tensors.items() if "gradient" in name]
        if variant.derivatives and gradients and not any(value.any() for value in gradients):
            return []  # where every gradient is 0, a kernel on the way to it has nothing to say
        left = [kernel for kernel in left if all(_same_without(kernel, trial, variant, part, references, *fill) for fill in fills)]
        del references
        if not left:
            break
    return left


def _left_unwritten(trial: Trial, variant: Variant) -> list[tuple[float, int]]:
    """What memory holds that a no-op leaves: positions that any table and any pool takes, two of them, since not all of PyTorch's
    kernels look first. On a GPU numbers that any probability takes, too."""
    probabilities = trial.subjects.device.type != "cpu" and _of_probabilities(trial, variant)
    return [(0.5, 0), (0.25, 1)] if probabilities else [(math.nan, 0), (math.nan, 1)]


def _of_probabilities(trial: Trial, variant: Variant) -> bool:
    """The original runs operators that take them, as seen at the small sizes."""
    return bool(trial.subjects.operators(replace(variant, sizes=trial.shapes.small, shape="small sizes")) & OF_PROBABILITIES)


def _alike_without(kernel: str, trial: Trial, variant: Variant, result: Observed, fill: float, whole: int) -> bool:
    """The same bits without the kernel."""
    try:
        with trial.subjects.candidate.without(kernel):
            got = trial.observe(variant, fill, whole)
    except Exception as error:  # without it nothing works: it matters
        if is_short(error):
            raise
        return False
    return all(same(value, got.tensors.get(name)) for name, value in result.tensors.items())


def _same_without(
    kernel: str,
    trial: Trial,
    variant: Variant,
    part: Part | tuple[Part, ...] | None,
    references: References,
    fill: float,
    whole: int,
) -> bool:
    try:
        with trial.subjects.candidate.without(kernel):
            got = trial.observe(variant, fill, whole)
        got = got if part is None else trial.its(variant, got, part)
    except Exception as error:  # without it nothing works: it matters
        if is_short(error):
            raise
        return False
    met = [name for name in references.eager.tensors if name in got.tensors]
    return all(compare(got.tensors[name], references.budget(name), kind_may_change=True).passed for name in met)


def fallback(trial: Trial) -> Outcome:
    """Other types, ranks, autocast, an empty batch: what the original accepts gives the original's results."""
    base = replace(trial.usual, parameters="random", distribution="normal", training=False)
    strict = trial.subjects.candidate.emitted  # others need not keep to types nobody asked for, but not be nonsense
    taken, refused = [], []
    for twist in NOT_PLANNED:
        subjects = trial.subjects.twisted(twist)
        subjects.set_state(base)
        try:
            with filled_memory(subjects.device):  # as the candidate runs: some modules take another way under a dispatch mode
                references = subjects.references(base, draws=2)
        except Exception as error:  # the original does not take it
            if is_short(error):
                raise
            continue
        try:
            got = subjects.run_candidate(base)
        except Exception as error:
            if is_short(error):
                raise
            if strict:
                return Outcome(False, f"{twist}: raised {sentence(error)}")
            refused.append(twist)
            continue
        misses = subjects.judge(got, references, base, trial.kind_may_change)
        if any(not miss.passed for miss in misses.values()):
            nonsense = _missed_by_itself(subjects, references, base)
            misses = {name: miss for name, miss in misses.items() if name not in nonsense}
        failed = _differences(misses, got, references, strict)
        if failed:
            return Outcome(False, f"{twist}: {failed[0]}")
        taken.append(twist)
    also = f"; refuses {', '.join(refused)}, which the original takes" if refused else ""
    if not taken:
        return skipped(f"nothing else is accepted by {'both' if refused else 'the original'}{also}")
    return Outcome(True, ", ".join(taken) + also, float(len(taken)))


def _missed_by_itself(subjects: Subjects, references: References, variant: Variant) -> set[str]:
    """Results that the original itself does not give again in equal calls, by any budget: PyTorch returns memory that nobody wrote in
    a few operators of no elements (`multi_margin_loss`). Results are held, so that each call has memory of its own."""
    calls = [subjects.run_eager(variant) for _ in range(CALLS)]
    found = [(name, miss) for call in calls for name, miss in subjects.misses(call, references, True, call.tensors).items()]
    return {name for name, miss in found if not miss.passed}


def _differences(misses: Mapping[str, Miss], got: Observed, references: References, strict: bool) -> list[str]:
    if not strict:
        return [f"{name} {miss}" for name, miss in misses.items() if not miss.passed and miss.gross > 1]
    types = [
        f"{name} is {got.tensors[name].dtype} instead of {eager.dtype}"
        for name, eager in references.eager.tensors.items()
        if name in got.tensors and got.tensors[name].dtype != eager.dtype
    ]
    return types + [f"{name} {miss}" for name, miss in misses.items() if not miss.passed]
