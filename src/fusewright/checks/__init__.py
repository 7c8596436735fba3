"""The checks of `verify`, one function each: what it saw of a candidate in a trial, and whether that is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from ..budget import Miss
from ..errors import Raised, first_line
from ..observe import Observed, References, Subjects
from ..shrink import Shapes
from ..variants import Variant


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
    as_given: list[tuple[Observed, References]] = field(default_factory=list)  # the first comparison of all
    later: set[str] = field(default_factory=set)  # kernels that several calls in a row launched
    launched: dict[str, Variant] = field(default_factory=dict)  # each kernel, and a variant that launched it: a small one

    @property
    def usual(self) -> Variant:
        """Values as given, at the small sizes."""
        shape = "given sizes" if self.shapes.small == self.shapes.given else "small sizes"
        return Variant("behaviour", self.shapes.small, shape)

    def accepts(self, variant: Variant) -> bool:
        """The original takes these values."""
        self.subjects.set_state(variant)
        try:
            self.subjects.run_eager(variant)
        except Exception:  # the user's own code
            return False
        return True

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

    def compare(self, variant: Variant) -> tuple[Observed, References] | None:
        """The candidate first, then the references; what they show is noted. None where one of them raised."""
        self.subjects.set_state(variant)
        got, error = None, ""
        try:
            got = self._observed(variant)
        except Exception as raised:  # judged below: the original may raise as well
            error = sentence(raised)
        try:
            references = self.subjects.references(variant)
        except torch.OutOfMemoryError:
            got = None
            torch.cuda.empty_cache()
            return self._compare_smaller(variant)
        except Exception:  # the original does not take this variant, or not in fp64
            self.skipped.append(variant)
            return None
        if got is None:
            self.errors[variant] = error
            return None
        if not self.as_given:
            self.as_given.append((got, references))
        for tensor, miss in self.subjects.judge(got, references, variant, self.kind_may_change).items():
            if variant.group != "distributions" or references.says_something(tensor):
                self.findings.append(Finding(variant, tensor, miss))
        return got, references

    def _observed(self, variant: Variant) -> Observed:
        """Once more where memory was short: of what earlier references took, PyTorch keeps blocks that others would need."""
        try:
            return self.observe(variant)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
        return self.observe(variant)

    def _compare_smaller(self, variant: Variant) -> tuple[Observed, References] | None:
        """The same values at the small sizes; where they are those already, there is nothing to compare with."""
        if variant.sizes == self.shapes.small:
            self.skipped.append(variant)
            return None
        self.smaller[variant] = replace(variant, sizes=self.shapes.small, shape="small sizes")
        return self.compare(self.smaller[variant])


Check = Callable[[Trial], Outcome]


def sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {first_line(error)[:200]}"
