"""Every law on every one of its examples: it applies where it must, declines where it must, and says the truth."""

from __future__ import annotations

import re

import pytest
import torch
from laws import lawbook

from fusewright.rewrite import HIDES_NONFINITE, LAWS, Law
from fusewright.rules import Example

CASES = [
    pytest.param(
        law, example, id=f"{re.sub(r'[^a-z]+', '_', law.name)}-{number}{'' if example.applies else '-declines'}"
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
    if not example.applies:
        return
    lawbook.assert_same_meaning(before, after, model)
    if HIDES_NONFINITE not in law.tags:
        lawbook.assert_keeps_nonfinite(law, before, model)
    again, nothing = lawbook.rewritten(after, law)
    assert not nothing and again is after, "a law must settle"
    repeated, _ = lawbook.rewritten(before, law)
    assert str(repeated) == str(after), "a law must be deterministic"
