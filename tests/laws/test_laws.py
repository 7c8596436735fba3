"""Every law on every one of its examples: it applies where it must, declines where it must, and says the truth."""

from __future__ import annotations

import re

import pytest
import torch
from laws import lawbook

from fusewright.ir.names import FORBIDDEN
from fusewright.laws.book import Example
from fusewright.laws.law import HIDES_NONFINITE, LAWS, NONFINITE_KIND, REASSOCIATES, Law
from fusewright.laws.rewrite import rewrite
from fusewright.options import Options


def marks_of(number: int, law: Law) -> list[pytest.MarkDecorator]:
    """The first example that applies, the first that does not and every third run with every change."""
    first = law.examples[number].applies not in [example.applies for example in law.examples[:number]]
    return [] if first or number % 3 == 0 else [pytest.mark.slow]


CASES = [
    pytest.param(
        law,
        example,
        id=f"{re.sub('[^a-z]+', '_', law.name)}-{'' if example.applies else 'not-'}{number}",
        marks=marks_of(number, law),
    )
    for law in LAWS
    for number, example in enumerate(law.examples)
]


@pytest.mark.parametrize(("law", "example"), CASES)
def test_law_on_its_example(law: Law, example: Example) -> None:
    torch.manual_seed(0)
    model = example.make()
    before = lawbook.captured(model, example.shapes)
    after, applied = lawbook.rewritten(before, law)
    assert bool(applied) == example.applies, f"{law.name}\n{before}"
    lawbook.assert_in_range(before, model)
    if applied:
        lawbook.assert_same_meaning(before, after, model)
        if HIDES_NONFINITE not in law.tags:
            lawbook.assert_keeps_nonfinite(before, model, law)
        again, nothing = lawbook.rewritten(after, law)
        assert not nothing and again is after, "a law must settle"
        repeated, _ = lawbook.rewritten(before, law)
        assert str(repeated) == str(after), "a law must be deterministic"
    together, others = rewrite(before, Options())
    if others and str(together) != str(after):
        lawbook.assert_same_meaning(before, together, model)
        lawbook.assert_keeps_nonfinite(before, model)
        lawbook.assert_in_range(together, model)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: re.sub("[^a-z]+", "_", law.name))
def test_law_states_itself(law: Law) -> None:
    assert law.identity.isascii() and not FORBIDDEN.search(f"{law.name} {law.identity}"), "it lands in emitted files"
    assert len(law.identity) <= 120 and law.identity.endswith(".")
    assert law.tags <= {REASSOCIATES, NONFINITE_KIND, HIDES_NONFINITE}
    assert any(example.applies for example in law.examples)
    assert any(not example.applies for example in law.examples)
