"""The checks of `verify`, one function each: what it saw of a candidate in a trial, and whether that is right."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from ...errors import Raised, Short, first_line
from ...frontend.problem import shown
from ..batch import ROWS, Part, added, kind_of, parts_of
from ..budget import GROSS, Budget, K, Miss, compare, zeros_pass
from ..memory import Memory, is_short, release
from ..observe import Observed, Once
from ..reference import DRAWING
from ..shrink import Shapes, Sizes, Steps, elements
from ..subjects import References, Subjects, doubtful
from ..variants import AS_GIVEN, Variant

# What comparing takes, counted on the host for six models: of an operator's operands there are rounded copies in float64 beside what
# backward is handed (forward 2.4 to 3.6 times the original's own bytes, a training step 1.9 to 3), and of each output the references
# and what its budget is made of (16 times 8 bytes).
FORWARD_RUN, TRAINING_RUN = 3.6, 3.0
FINER = 4  # pieces of a part in which four times as many references are drawn
RESULTS = 17 * 8  # bytes of each element that is returned


@dataclass(frozen=True)
class Outcome:
    """What one check found. `number` is its measure: an error over its budget, a count."""

    passed: bool
    detail: str = ""
    number: float | None = None
    skipped: bool = False  # nothing was looked at; `detail` says why


def skipped(why: str) -> Outcome:
    """A check that did not run: it neither held nor failed."""
    return Outcome(True, why, skipped=True)


@dataclass(frozen=True)
class Finding:
    """One tensor of one variant, compared."""

    variant: Variant
    tensor: str
    miss: Miss

    def __str__(self) -> str:
        return f"{self.tensor} {self.miss} ({self.variant})"


@dataclass(frozen=True)
class Spread:
    """How one output's error on inputs as given compares with how much it varies at all."""

    tensor: str
    blind: bool  # a constant in its place would be accepted
    share: float = 0.0  # of the output's standard deviation, its rms error
    passed: bool = True


@dataclass(frozen=True)
class Trial:
    """A candidate on trial; the findings grow as the checks run."""

    subjects: Subjects
    shapes: Shapes
    variants: tuple[Variant, ...]
    kind_may_change: bool
    forward_only: bool = False  # no gradient is asked for
    as_built: bool = False  # it need not follow changes of the model
    findings: list[Finding] = field(default_factory=list)
    errors: dict[Variant, str] = field(default_factory=dict)  # the candidate raised where the original did not
    skipped: list[Variant] = field(default_factory=list)  # the original itself raises
    smaller: dict[Variant, Variant] = field(default_factory=dict)  # compared instead: the references did not fit in memory
    spreads: list[Spread] = field(default_factory=list)  # of the first comparison of all
    memory: Memory | None = None  # without one, nothing is measured and every reference is made at once
    steps: Steps = field(default_factory=Steps)
    independent: dict[Variant, dict[str, str] | None] = field(default_factory=dict)  # what results are to those of parts of the batch
    later: set[str] = field(default_factory=set)  # kernels that several calls in a row launched
    besides: dict[str, Variant] = field(default_factory=dict)  # what the candidate alone did besides returning, and where first
    launched: dict[str, Variant] = field(default_factory=dict)  # each kernel, and a variant that launched it: a small one

    @property
    def usual(self) -> Variant:
        """Values as given, at the small sizes."""
        shape = "given sizes" if self.shapes.small == self.shapes.given else "small sizes"
        return Variant("behaviour", self.shapes.small, shape)

    def accepts(self, variant: Variant) -> bool:
        """The original takes these values."""
        return self.taken(variant) is not None

    def taken(self, variant: Variant) -> Observed | None:
        """What the original makes of these values, if it takes them."""
        self.subjects.set_state(variant)
        try:
            return replace(self.subjects.run_eager(variant), returned=())
        except Exception as error:  # the user's own code
            if is_short(error):
                raise
            return None

    def accepted(self, variant: Variant) -> Variant:
        """It, or the same with values as given where the original refuses those drawn: a loss of probabilities."""
        return variant if self.accepts(variant) else replace(variant, distribution="as given")

    def observe(self, variant: Variant, fill: float = math.nan, whole: int | None = None) -> Observed:
        """Run the candidate on a variant whose state is set, and note the kernels it launched."""
        with self.subjects.candidate.launches() as kernels:
            try:
                return self.subjects.run_candidate(variant, fill, whole)
            finally:
                for kernel in kernels:
                    known = self.launched.setdefault(kernel, variant)
                    if known.sizes != self.shapes.small == variant.sizes:
                        self.launched[kernel] = variant

    def compare(self, variant: Variant) -> tuple[bool, bool] | None:
        """The candidate first, then the references; what they show is noted. Returns whether the results of the candidate, and those of
        the original, carry gradients; None where one of them raised.

        Where memory is short references are made of parts of the batch, smaller and smaller ones, then of smaller sizes.
        """
        parts = self.parts(variant)
        if parts is None:
            self._launch(variant)
        while parts is not None:
            try:
                return self._compared(variant, parts)
            except Exception as error:
                if not is_short(error):
                    raise
            release()  # outside the handler: the error holds frames, and they hold tensors
            parts = self._finer(variant, parts)
        return self._compare_smaller(variant)

    def _launch(self, variant: Variant) -> None:
        """Run the candidate where its results will be compared at smaller sizes only: kernels that it has for these are launched."""
        self.subjects.set_state(variant)
        with contextlib.suppress(Exception):  # what it raises it raises at the smaller sizes, or nobody can say
            self.observe(variant)

    def _compared(self, variant: Variant, parts: tuple[Part, ...]) -> tuple[bool, bool] | None:
        self.subjects.set_state(variant)
        got, error = None, ""
        try:
            got = self._observed(variant)
        except Exception as raised:  # judged below: the original may raise as well
            if is_short(raised):
                raise
            error = sentence(raised)
        try:
            first, misses, eager = not self.spreads, dict[str, Miss](), None
            for part, references in self.references(variant, parts):
                eager = _left(references.eager, frozenset(references.eager.tensors))
                if got is None:
                    break
                its_got = got if len(parts) < 2 else self.its(variant, got, part)
                found = self._judged(variant, its_got, references, part)
                said = [name for name in found if variant.group != "distributions" or references.says_something(name)]
                misses |= {name: _worse(misses.get(name), found[name]) for name in said}
                self.spreads.extend(spreads(its_got, references) if first else [])
                del references, its_got  # before the next part's are made
        except Exception as raised:  # the original does not take this variant, or not in fp64
            if is_short(raised):
                raise
            self.skipped.append(variant)
            return None
        if got is None or eager is None:
            self.errors[variant] = error
            return None
        self.findings.extend(Finding(variant, tensor, miss) for tensor, miss in misses.items())
        self.besides.update({what: variant for what in got.besides if what not in (*eager.besides, *self.besides)})
        return got.differentiable, eager.differentiable

    def references(self, variant: Variant, parts: tuple[Part, ...]) -> Iterator[tuple[Part | tuple[Part, ...] | None, References]]:
        """For a variant whose state is set. In parts: of each its rows of the results, at last what is summed over all of them."""
        subjects = self.subjects
        if len(parts) < 2:
            yield None, subjects.references(variant)
            return
        eager = replace(subjects.run_eager(variant), returned=())
        rows, whole = self._rows(variant), None
        for part in parts:
            references = subjects.references(variant, part=part, eager=_of_part(eager, rows, part))
            rest = _each(replace(references, eager=eager), lambda seen: _left(seen, rows))
            whole = rest if whole is None else _joined(whole, rest)
            references = _each(references, lambda seen: _named(seen, rows))
            self._agrees(variant, references)
            yield part, references
            del references, rest
        eager = _left(eager, rows)
        assert whole is not None
        self._agrees(variant, whole)
        yield parts, whole

    def _rows(self, variant: Variant) -> frozenset[str]:
        kinds = self.independent.get(small_of(self, variant)) or {}
        return frozenset(name for name, kind in kinds.items() if kind == ROWS)

    def its(self, variant: Variant, got: Observed, part: Part | tuple[Part, ...] | None) -> Observed:
        """Of what the candidate gave, that which belongs to a part, or to no single one."""
        rows = self._rows(variant)
        return _of_part(got, rows, part) if isinstance(part, Part) else _left(got, rows)

    def _agrees(self, variant: Variant, references: References) -> None:
        """What samples do to one another may not show at the small sizes: then eager's results are far from those of the parts."""
        for name, eager in references.eager.tensors.items():
            exact = references.exact.tensors.get(name)
            if exact is None or not eager.is_floating_point():
                continue
            own, size = deviation(eager.double(), exact), deviation(exact, torch.zeros(()))
            spread = max((deviation(seen.tensors[name], exact) for seen in references.draws if name in seen.tensors), default=0.0)
            if own > max(GROSS * size, K * spread):
                self.independent[small_of(self, variant)] = None
                raise torch.OutOfMemoryError("samples depend on one another: parts of the batch will not do")

    def _judged(
        self, variant: Variant, got: Observed, references: References, part: Part | tuple[Part, ...] | None
    ) -> dict[str, Miss]:
        """Before something is condemned more references are drawn: of the rows of a part, in finer parts, which leave room for them."""
        if isinstance(part, tuple):
            return self.subjects.judge(got, references, variant, self.kind_may_change, part)
        crowded = self.memory is not None and FINER * self._need(variant) > self._free(variant)
        last = not crowded or (not self.smaller_sizes(variant) if part is None else part.size == 1)
        misses, eager = self.subjects.judge(got, references, variant, self.kind_may_change, part, condemn=last), references.eager
        if doubtful(misses) and not last and part is None:
            raise torch.OutOfMemoryError("there is no room for more references of the whole batch")
        if part is None:
            return misses
        if last or not doubtful(misses):
            return {name: _moved(miss, part.start, part.size, eager.tensors.get(name)) for name, miss in misses.items()}
        found = dict[str, Miss]()
        names = frozenset(eager.tensors)
        for finer in part.split(FINER):
            inside = Part(finer.start - part.start, finer.stop - part.start, part.size, part.batched)
            its_eager, its_got = (_of_part(seen, names, inside) for seen in (eager, got))
            its_own = self.subjects.references(variant, part=finer, eager=its_eager)
            its_own = _each(its_own, lambda seen: _named(seen, names))
            for name, miss in self.subjects.judge(its_got, its_own, variant, self.kind_may_change, finer).items():
                found[name] = _worse(found.get(name), _moved(miss, finer.start, finer.size, its_eager.tensors.get(name)))
            del its_own
        return found

    def _observed(self, variant: Variant) -> Observed:
        """Once more where memory was short: of what earlier references took, PyTorch keeps blocks that others would need."""
        try:
            return self.observe(variant)
        except torch.OutOfMemoryError:
            pass
        release()
        return self.observe(variant)

    # ---- memory ----

    @property
    def short(self) -> str:
        """What is said where memory runs out and nothing smaller is left to try."""
        name = shown(self.subjects.problem.path)
        has = f" of {self.memory.meter.limit() / 1e9:.3g} GB" if self.memory is not None else ""
        return f"{name}: verification ran out of memory{has} at the smallest sizes that the model takes; nothing was decided"

    @property
    def notes(self) -> list[str]:
        """What was compared at smaller sizes for want of memory."""
        found: dict[tuple[str, Sizes], None] = {}
        for variant, instead in self.smaller.items():
            if variant.shape != "small sizes":
                found[variant.group, instead.sizes] = None
        room = f"at most {self.memory.bound / 1e9:.3g} GB" if self.memory is not None else "for want"
        given = self.steps.name(self.shapes.main)
        name = self.steps.name
        return [f"{group} verified at {name(sizes)} instead of {given}: {room} of memory" for group, sizes in found]

    def parts(self, variant: Variant) -> tuple[Part, ...] | None:
        """The parts of the batch to make references of: none, one (the whole) or several. None: not even these would do."""
        need, free = self._need(variant), self._free(variant)
        if FINER * need <= free:
            return ()
        kinds = self._independent(variant)  # asked now: it sets another state
        if need <= free:
            return ()
        if kinds is None:
            return () if not self.smaller_sizes(variant) else None
        batch = self._batch(variant)
        return parts_of(batch, max(1, int(batch * free / need)), self.steps.batched)

    def _need(self, variant: Variant) -> float:
        """Bytes that references of the whole batch, and comparing with them, would take: of those that fewer samples make fewer."""
        if self.memory is None or self.memory.own is None:
            return 0.0
        own, gradients = self.memory.own, variant.derivatives > 0
        run = (TRAINING_RUN if gradients else FORWARD_RUN) * own.of_batch(gradients)
        return (run + RESULTS * own.outputs) * self._share(variant)

    def _free(self, variant: Variant) -> float:
        """Bytes that are left for them beside what the two models returned, rounded parameters and their gradients: a little always."""
        if self.memory is None or self.memory.own is None:
            return 0.0
        own, bound = self.memory.own, self.memory.bound
        held = 2 * 4 * own.outputs * self._share(variant) + 4 * elements(variant.sizes)
        of_state = 2 * own.largest + (2 * own.state if variant.derivatives else 0)
        return max(0.1 * bound, bound - self.memory.meter.live() - held - of_state)

    def _share(self, variant: Variant) -> float:
        return elements(variant.sizes) / max(1, elements(self.shapes.main))

    def _batch(self, variant: Variant) -> int:
        size = variant.sizes[min(self.steps.batched)]
        assert size is not None
        return size[0]

    def _finer(self, variant: Variant, parts: tuple[Part, ...]) -> tuple[Part, ...] | None:
        """Parts of half the size, after memory ran out with these."""
        if self._independent(variant) is None:
            return None
        batch = self._batch(variant)
        size = max((part.size for part in parts), default=batch)
        return parts_of(batch, size // 2, self.steps.batched) if size > 1 else None

    def _independent(self, variant: Variant) -> dict[str, str] | None:
        """What each tensor of the whole batch is to those of its parts, found at the small sizes in float64. None where samples
        depend on one another, or on random numbers that a model draws for all of them at once."""
        if not self.steps.batched or not isinstance(self.subjects.way, Once) or self.subjects.twist:
            return None
        small = small_of(self, variant)
        if small not in self.independent:
            self.independent[small] = self._kinds(small)
        return self.independent[small]

    def _kinds(self, small: Variant) -> dict[str, str] | None:
        batch, subjects = self._batch(small), self.subjects
        if batch < 2 or small.derivatives > 1:
            return None
        subjects.set_state(small)
        try:
            if subjects.operators(small) & DRAWING:
                return None
            whole = subjects.run_exact(small)
            found = [subjects.run_exact(small, part=p) for p in parts_of(batch, max(1, batch // 2), self.steps.batched)]
        except Exception as error:
            if is_short(error):
                raise
            return None
        kinds = {}
        for name, value in whole.tensors.items():
            if any(name not in part.tensors for part in found):
                return None
            kind = kind_of(name, value, [part.tensors[name] for part in found])
            if kind is None:
                return None
            kinds[name] = kind
        return kinds

    def smaller_sizes(self, variant: Variant) -> list[Sizes]:
        """Sizes below these, the largest that are thought to fit first."""
        below = self.steps.below(variant.sizes)
        if not below and elements(self.shapes.small) < elements(variant.sizes):
            below = (self.shapes.small,)
        if self._independent(variant) is not None:
            return list(below)  # each in parts
        fits = [s for s in below if self._need(replace(variant, sizes=s)) <= self._free(replace(variant, sizes=s))]
        return fits or list(below[-1:])

    def _compare_smaller(self, variant: Variant) -> tuple[bool, bool] | None:
        """The same values at smaller sizes; where there are none, nobody can say."""
        below = self.smaller_sizes(variant)
        if not below:
            raise Short(self.short)
        name = "small sizes" if below[0] == self.shapes.small else "reduced sizes"
        instead = replace(variant, sizes=below[0], shape=name)
        result = self.compare(instead)
        self.smaller[variant] = self.smaller.get(instead, instead)
        return result


def small_of(trial: Trial, variant: Variant) -> Variant:
    """The same values at the small sizes."""
    return replace(variant, group="", shape="small sizes", seed=0, sizes=trial.shapes.small, layout=AS_GIVEN)


def spreads(got: Observed, references: References) -> list[Spread]:
    """The error measured against how much each output varies at all."""
    found = []
    for name, eager in references.eager.tensors.items():
        if not name.startswith("output") or not eager.is_floating_point() or name not in got.tensors:
            continue
        limit = references.budget(name)
        if _constant_passes(limit) or got.tensors[name].shape != limit.exact.shape:
            found.append(Spread(name, blind=True))
            continue
        spread = deviation(limit.exact, limit.exact.mean()) or deviation(limit.exact, torch.zeros(()))
        share = deviation(got.tensors[name].double(), limit.exact) / spread
        found.append(Spread(name, False, share, compare(got.tensors[name], limit).passed))
    return found


def _constant_passes(limit: Budget) -> bool:
    """Would the mean, put everywhere, be accepted? Then this tensor says nothing."""
    if limit.exact.numel() == 1:
        return zeros_pass(limit)
    return compare(torch.full_like(limit.exact, float(limit.exact.mean())), limit, kind_may_change=True).passed


def deviation(a: torch.Tensor, b: torch.Tensor) -> float:
    difference = torch.nan_to_num(a - b.to(a.device), nan=0.0, posinf=0.0, neginf=0.0)
    return float(difference.square().mean().sqrt()) if difference.numel() else 0.0


# ---- results of parts of the batch ----


def _of_part(seen: Observed, rows: frozenset[str], part: Part) -> Observed:
    """Its rows of these tensors. One of another shape than expected is left as it is."""
    mine = _named(seen, rows).tensors.items()
    return replace(seen, tensors={n: part.rows(t) if t.dim() and t.shape[0] % part.whole == 0 else t for n, t in mine})


def _named(seen: Observed, names: frozenset[str]) -> Observed:
    return replace(seen, tensors={name: t for name, t in seen.tensors.items() if name in names})


def _left(seen: Observed, rows: frozenset[str]) -> Observed:
    return replace(seen, tensors={name: t for name, t in seen.tensors.items() if name not in rows})


def _each(references: References, change: Callable[[Observed], Observed]) -> References:
    made = references.draws, references.fine, references.flagged
    draws, fine, flagged = (tuple(map(change, each)) for each in made)
    return replace(references, eager=change(references.eager), exact=change(references.exact), draws=draws, fine=fine, flagged=flagged)


def _joined(total: References, more: References) -> References:
    """Gradients add up; what is the same in each part stays."""

    def join(a: Observed, b: Observed) -> Observed:
        sums = {name: t for name, t in b.tensors.items() if "gradient" in name}
        return replace(a, tensors={**a.tensors, **added(a.tensors, sums)})

    draws = tuple(join(a, b) for a, b in zip(total.draws, more.draws, strict=True))
    return replace(total, exact=join(total.exact, more.exact), draws=draws)


def _worse(a: Miss | None, b: Miss) -> Miss:
    return b if a is None else max(a, b, key=lambda miss: (not miss.passed, miss.ratio))


def _moved(miss: Miss, start: int, size: int, its: torch.Tensor | None) -> Miss:
    """The index in the whole tensor, of which these samples begin at `start`."""
    if not miss.index or its is None:
        return miss
    return replace(miss, index=(miss.index[0] + start * (its.shape[0] // size), *miss.index[1:]))


Check = Callable[[Trial], Outcome]


def sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {first_line(error)[:200]}"
