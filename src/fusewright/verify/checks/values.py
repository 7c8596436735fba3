"""Are the results right: on every variant, to the precision the flags allow, moving with the inputs as they should?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ..budget import K
from ..shrink import BEYOND
from ..variants import Variant
from . import Check, Finding, Outcome, Trial, deviation, skipped

MOST_OF_SPREAD = 0.1  # an error beyond the budget and beyond this share of the output's spread is no result
MOST_CHANGES = 24  # inputs and parameters drawn anew one by one; of more, these are chosen evenly


def group(name: str) -> Check:
    """A check that compares every variant of one group."""

    def check(trial: Trial) -> Outcome:
        mine = [variant for variant in trial.variants if variant.group == name]
        return compared(trial, mine)

    return check


def compared(trial: Trial, variants: Iterable[Variant]) -> Outcome:
    """Compare the candidate on these variants; an error no rounding explains, or one it raised, fails."""
    variants = [tried(trial, variant) for variant in variants]
    if not variants:
        return skipped("there is no such variant for this model and these options")
    too_large = sum(variant in trial.smaller for variant in variants)
    variants = [trial.smaller.get(variant, variant) for variant in variants]
    refused = sum(variant in trial.skipped for variant in variants)
    may_refuse = not trial.subjects.candidate.emitted  # what the file's own sizes do not ask for; but not be wrong there
    beyond = [variant for variant in variants if may_refuse and variant in trial.errors and variant.shape.endswith(BEYOND)]
    raised = [variant for variant in variants if variant in trial.errors and variant not in beyond]
    if raised:
        return Outcome(False, f"raised {trial.errors[raised[0]]} ({raised[0]})", float(len(raised)))
    mine = [f for f in trial.findings if f.variant in variants and f.tensor.startswith("output")]
    wrong = [f for f in mine if is_wrong(f, trial)]
    worst = max(mine, key=lambda f: f.miss.ratio, default=None)
    if wrong:
        return Outcome(False, str(max(wrong, key=lambda f: f.miss.gross)), max(f.miss.ratio for f in wrong))
    also = f", {refused} that the original refuses left out" if refused else ""
    also += f", {too_large} at smaller sizes because the references do not fit in memory" if too_large else ""
    also += f"; refuses {beyond[0].shape}, which the original takes" if beyond else ""
    if worst is None:
        return skipped(f"nothing to compare{also}")
    ratio = worst.miss.ratio
    return Outcome(True, f"{len(variants) - refused} variants, error {ratio:.2g} of its budget{also}", ratio)


def tried(trial: Trial, variant: Variant) -> Variant:
    """Compare on it, or on values as given where the original refuses those drawn and they are not the point."""
    trial.compare(variant)
    any_values = variant.group not in ("distributions", "non-finite") and variant.distribution != "as given"
    if variant in trial.skipped and any_values:
        variant = replace(variant, distribution="as given")
        trial.compare(variant)
    return variant


def is_wrong(finding: Finding, trial: Trial) -> bool:
    """More than a matter of precision: too far off for any rounding, or off only here and not on inputs as given."""
    as_given = (f for f in trial.findings if f.variant.group == "seeds" and f.tensor.startswith("output"))
    only_here = all(f.miss.passed for f in as_given)
    return not finding.miss.passed and (finding.miss.gross > 1 or only_here)


def precision(trial: Trial) -> Outcome:
    """Lower precision than the model's type and flags allow: any error beyond the budget."""
    mine = [f for f in trial.findings if f.tensor.startswith("output")]
    worst = max(mine, key=lambda f: f.miss.ratio, default=None)
    if worst is None:
        return Outcome(False, "nothing was compared: the original refuses every variant")
    allowed = f"{trial.subjects.rounding}, k = {K:g}"
    if worst.miss.passed:
        return Outcome(True, f"error at most {worst.miss.ratio:.2g} of its budget ({allowed})", worst.miss.ratio)
    times = f"{worst.miss.ratio:.3g} times what {allowed} allows"
    return Outcome(False, f"{times}: {worst}", worst.miss.ratio)


def buffers(trial: Trial) -> Outcome:
    """Buffers after a forward: running statistics, counters."""
    mine = [f for f in trial.findings if f.tensor.startswith("buffer")]
    if not mine:
        return skipped("the model has none")
    worst = max(mine, key=lambda f: f.miss.ratio)
    if not worst.miss.passed:
        return Outcome(False, str(worst), worst.miss.ratio)
    count, ratio = len({f.tensor for f in mine}), worst.miss.ratio
    return Outcome(True, f"{count} buffers, error {ratio:.2g} of its budget", ratio)


def own_spread(trial: Trial) -> Outcome:
    """The error measured against how much the output varies at all: zeros, or any constant, must fail."""
    if not trial.findings:
        return Outcome(False, "nothing was compared")
    measured = [spread for spread in trial.spreads if not spread.blind]
    names = dict.fromkeys(spread.tensor for spread in trial.spreads)
    blind = [name for name in names if all(spread.tensor != name for spread in measured)]
    note = f"; {', '.join(blind)}: the original is a constant to within rounding" if blind else ""
    if not measured:
        return skipped("no output of floating numbers varies at all")
    worst = max(spread.share for spread in measured)
    lost = [spread for spread in measured if spread.share > MOST_OF_SPREAD and not spread.passed]
    return Outcome(not lost, f"rms error is {worst:.2g} of the output's own spread{note}", worst)


def dependence(trial: Trial) -> Outcome:
    """Draw each input and each parameter anew: the output must move as the reference's does."""
    base = trial.accepted(replace(trial.usual, parameters="random", distribution="normal", seed=1))
    inputs = trial.subjects.inputs(base)
    names = [f"input {i}" for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    parameters = [name for name, p in trial.subjects.original.named_parameters() if p.numel()]
    step = max(1, -(-len(parameters) // MOST_CHANGES))
    names += parameters[::step]
    trial.subjects.set_state(base)
    before, exact_before = trial.observe(base), trial.subjects.run_exact(base)
    unmoved, refused, worst, at = [], 0, 0.0, ""
    for name in names:
        variant = replace(base, changed=name)
        eager = trial.taken(variant)
        if eager is None:
            refused += 1
            continue
        after = trial.observe(variant)
        references = trial.subjects.references(variant, draws=1, eager=eager)
        moved = 0.0
        for tensor, exact in references.exact.tensors.items():
            if tensor not in exact_before.tensors or tensor not in after.tensors or tensor not in before.tensors:
                continue
            if not after.tensors[tensor].is_floating_point() or exact.shape != exact_before.tensors[tensor].shape:
                continue
            limit = references.budget(tensor)
            reference_move = exact - exact_before.tensors[tensor]
            move = after.tensors[tensor].double() - before.tensors[tensor].double()
            noise = deviation(limit.allowed, torch.zeros(()))
            size = deviation(reference_move, torch.zeros(()))
            if size > noise:
                moved = max(moved, size)
                share = max(0.0, deviation(move, reference_move) - noise) / size
                if share > worst:
                    worst, at = share, f"{tensor} when {name} is drawn anew"
        if not moved:
            unmoved.append(name)
    note = f"; the original does not depend measurably on {', '.join(unmoved[:4])}" if unmoved else ""
    if worst > 0.1:
        return Outcome(False, f"moves otherwise than the reference by {worst:.2g} of the movement: {at}{note}", worst)
    note += f"; the original refuses {refused} others" if refused else ""
    if len(unmoved) + refused == len(names):
        return skipped("the original depends measurably on nothing that can be drawn anew" + (note if refused else ""))
    return Outcome(True, f"{len(names) - refused} inputs and parameters drawn anew{note}", worst)
