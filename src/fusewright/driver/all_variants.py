"""Every variant that tuning could choose of a model, verified one at a time: `optimize --all-variants`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..emit import Emitted
from ..errors import Refused, first_line
from ..ir.plan import Plan
from ..laws.law import NONFINITE_KIND
from ..laws.nonfinite import has_welfords_means
from ..schedule.layout import coarse_calls
from ..schedule.library import Library
from ..steps import Step
from ..verify.candidate import Candidate, gpu_works, load_candidate
from ..verify.shrink import space_of
from ..verify.subjects import References, Subjects, subjects
from ..verify.variants import Variant as Case
from ..verify.verifier import Verdict
from .front import Front
from .tuning import building
from .tuning.choices import MOST_FLIPS, PREDICTED, Choices, able_of, candidates, too_coarse
from .tuning.probe import Stopped
from .tuning.training import candidates as in_training

EQUAL, DIFFERENT, SAME, NO_BUILD, STOPS, NOT_RUN = "equal", "different", "the same file as", "does not build", "does not run", "not run"
BY_PYTORCH = "gradients by PyTorch"
Judge = Callable[[Candidate, Plan], Verdict]


@dataclass(frozen=True)
class Variant:
    """One file that could be written for a model."""

    name: str
    choices: Choices
    gradients: bool
    made: Plan
    emitted: Emitted
    same_as: str = ""  # an earlier one with the same text


@dataclass(frozen=True)
class Tried:
    """What came of one variant."""

    name: str
    outcome: str  # equal | different | the same file as … | does not build | does not run | not run
    detail: str = ""
    seconds: float = 0.0
    kernels: int = 0
    original: bool = False  # no kernel is in it: the original's forward
    not_run: tuple[str, ...] = field(default=())  # kernels that no size called for

    @property
    def wrong(self) -> bool:
        return self.outcome in (DIFFERENT, NO_BUILD, STOPS, NOT_RUN)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "not_run": list(self.not_run)}

    def __str__(self) -> str:
        words = f"{self.outcome}: {self.detail}" if self.wrong else f"{self.outcome} {self.detail}".rstrip()
        kernels = "no kernels" if self.original else f"{self.kernels} kernel{'' if self.kernels == 1 else 's'}"
        return f"{self.name}  {words}  {self.seconds:.1f} s  {kernels}"


def variants(front: Front) -> tuple[list[Variant], list[str]]:
    """Each file that tuning could choose, for inference and for training, and the predicted one with PyTorch's gradients; and notes
    on what tuning leaves out itself."""
    made, emitted = front.finish(PREDICTED)
    known = candidates(made, able_of(made, lambda choices: front.finish(choices, gradients=False)))
    found: list[Variant] = []
    texts: dict[str, str] = {}
    notes: list[str] = []

    def add(name: str, choices: Choices, gradients: bool = True) -> None:
        made, emitted = front.finish(choices, gradients)
        if coarse_calls(made):
            notes.append(too_coarse(name, made))
            return
        same_as = texts.setdefault(emitted.text, name)
        found.append(Variant(name, choices, gradients, made, emitted, "" if same_as == name else same_as))

    for named in known.one_by_one(made, emitted):
        add(named.name, named.choices)
    for name, training in [] if front.options.forward_only else in_training(emitted):
        add(name, replace(PREDICTED, training=training))
    if front.options.gradients:
        add(BY_PYTORCH, PREDICTED, gradients=False)
    few = f"not flipped one by one, nor by tuning, being more than {MOST_FLIPS}"
    return found, [*notes, *([f"{few}: {', '.join(known.unflipped)}"] if known.unflipped else [])]


def try_all(
    front: Front, every: Sequence[Variant], target: str, judge: Judge, known: Mapping[str, Verdict], progress: Callable[[str], None]
) -> Iterator[Tried]:
    """Build and verify each variant. `known` are texts that were judged already."""

    def verified(variant: Variant) -> Found:
        verdict = known.get(variant.emitted.text)
        before = sum(check.seconds for check in verdict.checks) if verdict is not None else 0.0
        try:
            verdict = verdict or judge(loaded(front, variant, target), variant.made)
        except Stopped as stopped:
            return Found(STOPS, str(stopped.fault), ())
        built = not any(check.name == "constructs" and not check.passed for check in verdict.checks)
        outcome = EQUAL if verdict.passed else DIFFERENT if built else NO_BUILD
        return Found(outcome, "" if verdict.passed else verdict.worst, verdict.not_run, before)

    return one_at_a_time(every, target, verified, progress)


def sweep(front: Front, every: Sequence[Variant], target: str, progress: Callable[[str], None] = lambda detail: None) -> Iterator[Tried]:
    """Each variant's results at batches 1 to 5 and at odd sizes, and its gradients twice, within the budget that `verify` has.

    No other check runs, and references are made once for all variants: what takes the time is compiling each distinct text.
    """
    cases: list[tuple[Case, References]] = []

    def compared(variant: Variant) -> Found:
        candidate = loaded(front, variant, target)
        subject = with_its_rounding(subjects(front.problem, candidate, candidate.build_model(front.problem)), front.precision.library)
        cases.extend([] if cases else with_references(subject, front))
        if not cases:
            raise Refused("nothing to compare with: the original takes none of the sizes that were tried")
        by_a_law = any(NONFINITE_KIND in rule.tags for rule in variant.made.rules)
        kind_may_change = by_a_law or has_welfords_means(front.captured)
        misses = (missed(subject, case, references, kind_may_change) for case, references in cases)
        detail = next(filter(None, misses), "")
        return Found(DIFFERENT if detail else EQUAL, detail, candidate.not_run)

    return one_at_a_time(every, target, compared, progress)


@dataclass(frozen=True)
class Found:
    """What was found of a variant that builds."""

    outcome: str
    detail: str
    not_run: tuple[str, ...]
    seconds: float = 0.0  # that it took before


def one_at_a_time(
    every: Sequence[Variant], target: str, work: Callable[[Variant], Found], progress: Callable[[str], None]
) -> Iterator[Tried]:
    """Each distinct text is worked on once; after one that ended the GPU's context nothing else can run."""
    stopped = ""
    for number, variant in enumerate(every, 1):
        facts = (len(variant.emitted.kernels), not variant.made.every_kernel)
        if variant.same_as or stopped:
            yield Tried(variant.name, *((SAME, variant.same_as) if variant.same_as else (NOT_RUN, stopped)), 0.0, *facts)
            continue
        progress(Step(variant.name, len(every) - number))
        start = time.monotonic()
        try:
            found = work(variant)
        except (Refused, RuntimeError, OSError) as error:
            found = Found(NO_BUILD, first_line(error), ())
        if target == "cuda" and not gpu_works():
            stopped = f"the GPU stopped working in {variant.name!r}"
            found = found if found.outcome != EQUAL else Found(DIFFERENT, "the GPU stopped working", found.not_run)
        seconds = round(found.seconds + time.monotonic() - start, 2)
        yield Tried(variant.name, found.outcome, found.detail, seconds, *facts, found.not_run)


def loaded(front: Front, variant: Variant, target: str) -> Candidate:
    name = f"{front.problem.path.stem}_new.py"
    place, behind = variant.emitted.place, front.problem.behind
    candidate = load_candidate(variant.emitted.text, target, front.options.sanitize, name, place, apart=True, behind=behind)
    building.build(building.units_of(candidate, not front.options.forward_only))
    return candidate


# ---- many sizes, at little cost ----


def with_references(subject: Subjects, front: Front) -> Iterator[tuple[Case, References]]:
    """The cases that the original takes."""
    for case in cases_of(subject, front):
        subject.set_state(case)
        try:
            yield case, subject.references(case)
        except Exception:  # the user's own code refuses the size
            continue


def cases_of(subject: Subjects, front: Front) -> list[Case]:
    """Batches 1 to 5, each extent one more and one less, and the sizes as given with gradients: twice, the second with what was kept."""
    space = space_of(front.graph, subject.original, subject.source.given)
    given = space.given
    points = [{**given, **{a.symbol: batch for a in space.axes if a.batch}} for batch in (1, 2, 3, 4, 5)]
    extents = [a for a in space.axes if not a.batch]
    points += [{**points[2], **{a.symbol: (a.size | 1) + 2 * i for i, a in enumerate(extents)}}]
    points += [{**points[1], **{a.symbol: max(1, a.size - 1 - i) for i, a in enumerate(extents)}}]
    sizes = dict.fromkeys(space.at(point) for point in [given, *points])  # outside the plan too, where the original's forward runs
    cases = [Case("shapes", each, "other sizes", seed=i) for i, each in enumerate(sizes)]
    trained = any(p.requires_grad for p in subject.original.parameters())
    once = Case("gradients", space.at(given), "given sizes", derivatives=1, fixed=trained)
    return [*cases, once, replace(once, seed=1)]


def missed(subject: Subjects, case: Case, references: References, kind_may_change: bool) -> str:
    """The first tensor beyond its budget, in words; nothing where there is none."""
    subject.set_state(case)
    try:
        got = subject.run_candidate(case)
    except Exception as error:  # of the file, whose original takes this case
        return f"raised {type(error).__name__}: {first_line(error)} ({case})"
    misses = subject.judge(got, references, case, kind_may_change)
    return next((f"{tensor} {miss} ({case})" for tensor, miss in misses.items() if not miss.passed), "")


def with_its_rounding(subject: Subjects, library: Library | None) -> Subjects:
    """TF32 is allowed to convolutions: a model without any gains nothing by that, nor one whose convolutions the library does not round."""
    case = Case("first call", subject.source.sizes)
    subject.set_state(case)
    return replace(subject, rounding=subject.rounding.for_operators(subject.operators(case), library))
