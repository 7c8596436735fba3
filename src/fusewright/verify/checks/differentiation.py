"""Are the derivatives right: gradients, second derivatives, and every mode autograd can be in?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...frontend.stand_ins import kept
from ...process import now
from ..memory import is_short
from ..observe import Observed, filled_memory, seeded
from ..variants import Variant
from . import Outcome, Trial, sentence, skipped

MOST_SECONDS = 1.0  # for the original's second derivatives; the check takes about six times as long
# Of a gradient's largest element. The numbers are the same: what reads them wrongly is off by far more, and what the library adds in
# another order by a few bits, which are percents in bf16.
OF_A_SUM = 0.05
GIVEN_SECONDS = 15.0  # for its first ones in double at the given sizes, on a GPU: the check takes about five times as long


def gradients(trial: Trial) -> Outcome:
    """Gradients of every input and parameter, within the budget of eager's own."""
    main = replace(next(v for v in trial.variants if v.group == "seeds"), group="gradients")
    small = trial.accepted(replace(trial.usual, group="gradients", parameters="random", distribution="normal"))
    variants = [main, small]
    if any(p.requires_grad for p in trial.subjects.original.parameters()):  # as in training, where another path may be taken
        variants = [replace(main, fixed=True), small, replace(small, fixed=True, seed=1)]
    if not trial.subjects.large:
        variants += [replace(small, training=False), replace(small, layout="channels last", seed=1)]
    variants = [replace(v, derivatives=1) for v in variants]
    if not _takes_long(trial, variants[0]):
        found = _derivatives(trial, variants)
        wrong = _of_a_sum(trial, variants[0]) if found.passed and not found.skipped else ""
        return Outcome(False, wrong) if wrong else found
    found = _derivatives(trial, variants[1:])
    return replace(found, detail=f"{found.detail}; not at the given sizes, where the original's take longer than {GIVEN_SECONDS:g} s")


def _of_a_sum(trial: Trial, variant: Variant) -> str:
    """What is wrong where one number stands for the gradient of a whole result, as that of a sum does. "" where nothing is, where the
    original does no better, or where memory is short."""
    subjects, variant = trial.subjects, trial.smaller.get(variant, variant)
    wrong = _wrong_of_a_sum(trial, subjects.new, variant)
    return f"of a sum: {wrong} ({variant})" if wrong and not _wrong_of_a_sum(trial, subjects.original, variant) else ""


def _wrong_of_a_sum(trial: Trial, model: torch.nn.Module, variant: Variant) -> str:
    """One number must give the gradients of parameters that as many numbers give."""
    subjects, targets = trial.subjects, {name: p for name, p in model.named_parameters() if p.requires_grad and p.numel()}

    def found(cotangent: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        subjects.set_state(variant)
        inputs = subjects.inputs(variant)
        with kept(model), subjects.unmoved(model), torch.enable_grad(), seeded(variant.seed):
            leaves = [t for t in pytree.tree_leaves(model(*inputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            grads = torch.autograd.grad(leaves, list(targets.values()), [cotangent(t) for t in leaves], allow_unused=True)
        return [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(targets.values(), grads, strict=True)]

    if not targets:
        return ""
    try:
        drawn, many, one = found(torch.randn_like), found(torch.ones_like), found(lambda t: t.new_ones(()).expand(t.shape))
    except Exception as error:
        return "" if is_short(error) else sentence(error)
    for name, scale, a, b in zip(targets, drawn, many, one, strict=True):
        allowed = OF_A_SUM * max(float(scale.abs().max()), float(a.abs().max()))
        if bool(a.isfinite().all()) and not float((b - a).abs().max()) <= allowed:
            return f"that of {name} is not as by as many numbers"
    return ""


def _takes_long(trial: Trial, variant: Variant) -> bool:
    """Under a dispatch mode some derivatives are loops over elements (cumprod), each of which may be quick to hand over."""
    if trial.subjects.device.type == "cpu":
        return False  # the sizes are small there
    parts = trial.parts(variant)
    if parts is None:  # it will be compared at smaller sizes
        variant = replace(variant, sizes=trial.smaller_sizes(variant)[0])
        parts = trial.parts(variant) or ()
    trial.subjects.set_state(variant)
    spent = False
    for share in (1, len(parts)) if parts else (1,):  # of a part, once more: the first call loads what the others find
        patience = _Patience(GIVEN_SECONDS / share, now)
        try:
            with patience:
                trial.subjects.run_exact(variant, part=parts[0] if parts else None)
        except Exception:  # no more patience, or what the comparison will meet too
            torch.cuda.empty_cache()
        spent = spent or patience.spent
    return spent


def second_derivatives(trial: Trial) -> Outcome:
    """Gradients of gradients, where the original has them."""
    small = trial.accepted(replace(trial.usual, group="second derivatives", parameters="random", distribution="normal"))
    small = replace(small, derivatives=2)
    trial.subjects.set_state(small)
    patience = _Patience(MOST_SECONDS)
    try:
        with patience:
            trial.subjects.run_eager(small)
            trial.subjects.run_exact(small)
    except Exception as error:  # no more patience, or an operator without a second derivative
        if not patience.spent:
            return skipped("the original's do not fit in memory" if is_short(error) else "the original has none")
    if patience.spent:
        return skipped(f"the original's take longer than {MOST_SECONDS:g} s")
    return _derivatives(trial, [small])


class _Patience(TorchDispatchMode):
    """Gives up between two operators once so many seconds, of CPU if nothing else is said, have passed: some derivatives are loops."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.process_time):
        super().__init__()
        self.clock, self.until = clock, clock() + seconds

    @property
    def spent(self) -> bool:
        return self.clock() > self.until

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.spent:
            raise TimeoutError("longer than there is time for")
        return func(*args, **(kwargs or {}))


def of_their_own(trial: Trial) -> Outcome:
    """The `.grad` of two parameters is not the same memory: optimisers, and a second backward, write into it."""
    subjects = trial.subjects
    if not any(p.requires_grad for p in subjects.original.parameters()):
        return skipped("the original trains no parameter")
    variant = trial.accepted(replace(trial.usual, parameters="random", distribution="normal"))
    subjects.set_state(variant)
    try:
        with subjects.unmoved(subjects.original):
            allowed = _sharing(subjects.original, subjects.inputs(variant), variant.seed)
    except Exception as error:  # no backward, or none of these inputs
        if is_short(error):
            raise
        return skipped("the original has none")
    try:
        with subjects.unmoved(subjects.new):
            found = _sharing(subjects.new, subjects.inputs(variant), variant.seed)
    except Exception as error:
        if is_short(error):
            raise
        return Outcome(False, f"backward raised {sentence(error)}")
    more = [pair for pair in found if pair not in allowed]
    if more:
        return Outcome(False, f"the gradients of {more[0][0]} and {more[0][1]} lie in the same memory", float(len(more)))
    return Outcome(True, "no two share memory" if not allowed else "as the original's")


def _sharing(model: torch.nn.Module, inputs: list[object], seed: int) -> list[tuple[str, str]]:
    """Pairs of parameters whose gradients lie in one piece of memory after a backward."""
    parameters = dict(model.named_parameters())
    try:
        with torch.enable_grad(), seeded(seed):
            leaves = [t for t in pytree.tree_leaves(model(*inputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])
        held = [(name, p.grad.untyped_storage().data_ptr()) for name, p in parameters.items() if p.grad is not None]
    finally:
        for parameter in parameters.values():
            parameter.grad = None
    return [(a, b) for i, (a, where) in enumerate(held) for b, there in held[:i] if where == there]


def _derivatives(trial: Trial, variants: list[Variant]) -> Outcome:
    compared, without = 0, 0
    for variant in variants:
        pair = trial.compare(variant)
        if pair is None:
            continue
        ours, theirs = pair
        compared += 1
        without += theirs and not ours
    variants = [trial.smaller.get(variant, variant) for variant in variants]
    raised = [variant for variant in variants if variant in trial.errors]
    if raised:
        return Outcome(False, f"raised {trial.errors[raised[0]]} ({raised[0]})")
    if not compared:
        return skipped("the original has none")
    if without:
        return Outcome(False, "its results carry no gradient")
    found = [f for f in trial.findings if f.variant in variants]  # results and buffers too: kernels that save activations are others
    mine = [f for f in found if "gradient" in f.tensor]
    if not mine:
        return skipped("the original has none")
    lost = max(found, key=lambda f: (not f.miss.passed, "gradient" in f.tensor, f.miss.ratio))
    if not lost.miss.passed:
        return Outcome(False, str(lost), lost.miss.ratio)
    worst, tensors = max(mine, key=lambda f: f.miss.ratio), len({f.tensor for f in mine})
    return Outcome(True, f"{tensors} tensors, error {worst.miss.ratio:.2g} of its budget", worst.miss.ratio)


def autograd_modes(trial: Trial) -> Outcome:
    """Under no_grad, with gradients and in inference mode: right each time, by whichever way it is computed."""
    subjects, variant = trial.subjects, replace(trial.usual, parameters="random", training=False)
    subjects.set_state(variant)
    references = subjects.references(variant)
    modes = {"no_grad": torch.no_grad, "enable_grad": torch.enable_grad, "inference_mode": torch.inference_mode}
    for name, mode in modes.items():
        subjects.set_state(variant)  # the call before may have changed buffers
        inputs = subjects.inputs(variant)
        try:
            with kept(subjects.new), subjects.unmoved(subjects.new), filled_memory(subjects.device), mode(), seeded(variant.seed):
                leaves = pytree.tree_leaves(subjects.new(*inputs))
        except Exception as error:
            if is_short(error):
                raise
            return Outcome(False, f"under {name}: {sentence(error)}")
        outputs = {f"output {i}": t.detach().clone() for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        misses = subjects.judge(Observed(outputs, "", ()), references, variant, trial.kind_may_change)
        wrong = [f"{tensor} {misses[tensor]}" for tensor in outputs if not misses[tensor].passed]
        if wrong:
            return Outcome(False, f"under {name}: {wrong[0]}")
    return Outcome(True, ", ".join(modes))
