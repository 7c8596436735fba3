"""Does the candidate behave like a function of its arguments: nothing cached, left unwritten, or touched besides?"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import math
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..candidate import Candidate
from ..guard import threads
from ..observe import Observed, filled_memory, observe, seeded, settle
from ..variants import Variant, named_state
from . import Outcome, Trial, sentence, skipped
from .bits import bits, same, same_bits

MANY_CALLS = 30
FEW_CALLS = 5
MANY_SECONDS = 1.0


def left_alone(candidate: Candidate) -> Outcome:
    """The candidate replaced no function of PyTorch, Python or the verifier, and changed no flag."""
    before = candidate.before
    patched, flags = [*before.patched(), *before.overridden()], before.changed_flags()
    before.restore()
    changes = [*patched, *flags]
    if changes:
        return Outcome(False, f"replaced or changed {', '.join(changes[:6])}", float(len(changes)))
    return Outcome(True, f"{len(before.functions)} functions and {len(before.flags)} flags as they were", 0.0)


def state(trial: Trial) -> Outcome:
    """state_dict: the same keys, shapes, types, and initial values under the same seed; each loads the other's, where the original loads
    its own: one with a buffer that was expanded does not."""
    original, new = trial.subjects.original, trial.subjects.new
    theirs, ours = original.state_dict(), new.state_dict()
    if list(theirs) != list(ours):
        difference = sorted(set(theirs) ^ set(ours)) or ["their order"]
        return Outcome(False, f"state_dict differs in {', '.join(difference[:6])}")
    for name, value in theirs.items():
        other = ours[name]
        if value.shape != other.shape or value.dtype != other.dtype:
            return Outcome(False, f"{name} is {_typed(other)} instead of {_typed(value)}")
        if not same_bits(value, other):
            return Outcome(False, f"{name} starts with other values under the same seed")
    trained = {name: p.requires_grad for name, p in original.named_parameters()}
    if trained != {name: p.requires_grad for name, p in new.named_parameters()}:
        return Outcome(False, "other parameters are trained")
    others = sorted({name for name, _ in named_state(original)} ^ {name for name, _ in named_state(new)})
    if others:
        return Outcome(False, f"parameters or buffers differ in {', '.join(others[:6])}")
    try:
        original.load_state_dict(copy.deepcopy(theirs))
    except RuntimeError as error:
        return Outcome(True, f"{len(theirs)} entries; the original does not load its own: {sentence(error)}", float(len(theirs)))
    new.load_state_dict(copy.deepcopy(theirs))
    original.load_state_dict(copy.deepcopy(ours))
    return Outcome(True, f"{len(theirs)} entries, each checkpoint loads into the other", float(len(theirs)))


def real_tensors(trial: Trial) -> Outcome:
    """The result has the original's structure; its tensors are plain, of the same type, shape and device."""
    variant = trial.usual
    trial.subjects.set_state(variant)
    got, eager = trial.observe(variant), trial.subjects.run_eager(variant)
    if got.structure != eager.structure:
        return Outcome(False, f"returns {got.structure} instead of {eager.structure}")
    for position, (a, b) in enumerate(zip(got.returned, eager.returned, strict=True)):
        where = f"output {position}"
        if not isinstance(b, Tensor):
            if type(a) is not type(b) or (a != b and not isinstance(b, float)):  # numbers are compared as results are
                return Outcome(False, f"{where} is {a!r} instead of {b!r}")
            continue
        if type(a) is not type(b):
            return Outcome(False, f"{where} is a {type(a).__name__} instead of a {type(b).__name__}")
        if a.is_meta or a.layout != b.layout or a.untyped_storage().nbytes() == 0 < a.numel():
            return Outcome(False, f"{where} has no storage")
        if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
            return Outcome(False, f"{where} is {_typed(a)} on {a.device} instead of {_typed(b)} on {b.device}")
    return Outcome(True, ", ".join(_typed(t) for t in got.returned if isinstance(t, Tensor)))


def written(trial: Trial) -> Outcome:
    """Uninitialised memory filled with NaN, then with a number: the result must be the same, and no NaN of ours."""
    variant = trial.usual
    trial.subjects.set_state(variant)
    first, second, third = (trial.observe(variant, fill) for fill in (math.nan, math.nan, -7.25))
    eager = trial.subjects.run_eager(variant)
    seen = 0
    for name, value in first.tensors.items():
        if not same_bits(value, second.tensors[name]):
            continue  # not repeatable at all, which is another check's matter
        seen += 1
        unwritten = (bits(value) != bits(third.tensors[name])).reshape(-1)
        if unwritten.any() and name in _varying(trial, variant):
            unwritten = ~_near(value, third.tensors[name]).reshape(-1)
        if name in eager.tensors and eager.tensors[name].shape == value.shape:
            unwritten = unwritten | (torch.isnan(value) & ~torch.isnan(eager.tensors[name])).reshape(-1)
        count = int(unwritten.sum())
        if count:
            what = f"{name}: {count} of {value.numel()} elements are what uninitialised memory held"
            return Outcome(False, what, float(count))
    if not seen:
        return skipped("the same call gives other bits each time")
    return Outcome(True, "the result does not depend on what memory held before", 0.0)


def inputs_untouched(trial: Trial) -> Outcome:
    """Inputs afterwards are what they were, or what the original makes of them; so are the parameters."""
    variant = trial.accepted(replace(trial.usual, distribution="normal", seed=3))
    trial.subjects.set_state(variant)
    inputs, same = trial.subjects.inputs(variant), trial.subjects.inputs(variant)
    parameters = {name: p.detach().clone() for name, p in trial.subjects.new.named_parameters()}
    for model, values in ((trial.subjects.new, inputs), (trial.subjects.original, same)):
        with trial.subjects.unmoved(model):
            observe(model, values, seed=variant.seed)
    pairs = zip(inputs, same, trial.subjects.inputs(variant), strict=True)
    for position, (a, b, before) in enumerate(pairs):
        if not isinstance(a, Tensor):
            continue
        kept = same_bits(b, before)
        if not (same_bits(a, b) if kept else torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)):
            changed = int((a != b).sum())
            return Outcome(False, f"input {position}: {changed} of {a.numel()} elements were changed", float(changed))
    for name, p in trial.subjects.new.named_parameters():
        if not same_bits(p, parameters[name]):
            return Outcome(False, f"parameter {name} was changed")
    return Outcome(True, "inputs and parameters as they were", 0.0)


def nothing_besides(trial: Trial) -> Outcome:
    """In no call so far did the candidate do what the original does not: results are the whole of it."""
    for what, variant in trial.besides.items():
        return Outcome(False, f"{what}: not so with the original ({variant})", float(len(trial.besides)))
    return Outcome(True, "no input changed, nothing drawn, no memory shared that the original does not", 0.0)


def not_cached(trial: Trial) -> Outcome:
    """New values in the same storage give new results; an equal call does equal work; old results stay as they were."""
    variant = trial.accepted(replace(trial.usual, distribution="normal", seed=40))
    other = replace(variant, seed=41)
    subjects = trial.subjects
    still = functools.partial(subjects.unmoved, subjects.new)
    subjects.set_state(variant)
    with filled_memory(subjects.device), torch.no_grad():
        inputs = subjects.inputs(variant)
        with still(), seeded(0), subjects.candidate.trace() as first_work:
            first = subjects.new(*inputs)
        kept = _cloned(first)
        with still(), seeded(0), subjects.candidate.trace() as second_work:
            subjects.new(*inputs)
        for target, value in zip(inputs, subjects.inputs(other), strict=True):
            if isinstance(target, Tensor):
                target.copy_(value)
        subjects.set_state(variant)  # each of the two starts from the same buffers
        with still(), seeded(0):
            reused = _cloned(subjects.new(*inputs))
        subjects.set_state(variant)
        with still(), seeded(0):
            fresh = _cloned(subjects.new(*subjects.inputs(other)))
    unmoved = _same(reused, kept) and not _constant(kept)  # a constant is not cached: another check is there for it
    old = not _same(reused, fresh) and not (_all_near(reused, fresh) and _varying(trial, other))
    if old or (unmoved and _moves(trial, variant, other)):
        return Outcome(False, "new values in the same storage gave an old result")
    steps, again = (len(work.kernels) + len(work.library_calls) for work in (first_work, second_work))
    if again < steps:
        return Outcome(False, f"the same call again did less: {steps} launches and operators, then {again}")
    results = enumerate(zip(pytree.tree_leaves(first), pytree.tree_leaves(kept), strict=True))
    moved = {position for position, (a, b) in results if not same(a, b)}
    if moved:
        moved -= _in_state(subjects.original, subjects.run_eager(variant).returned)
    aliases = _aliases_input(first, inputs)
    if moved and not aliases:
        return Outcome(False, "a later call overwrote the result of an earlier one")
    return Outcome(True, f"{steps} launches and operators in each call", float(steps))


def _in_state(model: nn.Module, returned: Sequence[Any]) -> set[int]:
    """Positions of results that lie in the memory of the model's own parameters and buffers: a later call changes them."""
    state = {t.untyped_storage().data_ptr() for _, t in named_state(model)}
    return {i for i, value in enumerate(returned) if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in state}


def repeatable(trial: Trial) -> Outcome:
    """The same call gives the same bits, also after many others; at most a second is spent on it."""
    subjects, variant = trial.subjects, trial.accepted(replace(trial.usual, distribution="normal", seed=1))
    subjects.set_state(variant)
    if moody := _moody(trial, variant):
        words = f"the original itself gives another {moody} for the same values after the same seed"
        return Outcome(False, f"{words}: nothing can be compared with it")
    first = trial.observe(variant)
    between = itertools.cycle([replace(variant, seed=seed) for seed in (2, 3)])
    calls, held = 0, _tensors()  # which may take as long as a second
    start = time.perf_counter()
    while calls < MANY_CALLS and time.perf_counter() - start < MANY_SECONDS:
        trial.observe(next(between))
        again = trial.observe(variant)
        calls += 2
        for name, value in first.tensors.items():
            if name not in again.tensors or not same_bits(value, again.tensors[name]):
                if name in again.tensors and name in _varying(trial, variant):
                    return Outcome(True, f"{name} varies from call to call, and so does the original's", float(calls))
                return Outcome(False, f"{name} of the same call, {calls} calls on: {_difference(value, again, name)}")
    if _tensors() - held >= calls > FEW_CALLS:  # what is kept once, references say, comes back no second time
        more, theirs = (_kept_by(call, calls) for call in (lambda: trial.observe(variant), lambda: subjects.run_eager(variant)))
        if more >= calls > theirs:
            return Outcome(False, f"{more} tensors more are held after {calls} calls", float(more))
    return Outcome(True, f"{calls} calls, the same bits", float(calls))


def _kept_by(call: Callable[[], Any], calls: int) -> int:
    """Tensors more that are held after so many calls."""
    gc.collect()
    before = _tensors()
    for _ in range(calls):
        call()
    gc.collect()
    return _tensors() - before


def _tensors() -> int:
    """That Python holds."""
    gc.collect(0)
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())


def _moody(trial: Trial, variant: Variant) -> str:
    """A result of the original's that two equal calls leave far apart: it asks the clock, or draws what no seed reaches."""
    first, second = (trial.subjects.run_eager(replace(variant, derivatives=0)).tensors for _ in range(2))
    others = ((name, value, second.get(name)) for name, value in first.items())
    return next((n for n, a, b in others if b is None or a.shape != b.shape or not (same(a, b) or bool(_near(a, b).all()))), "")


def _varying(trial: Trial, variant: Variant) -> set[str]:
    """What the original itself gives other bits of in some of many equal calls: PyTorch adds in any order in a few operators."""
    calls = [trial.subjects.run_eager(replace(variant, derivatives=0)) for _ in range(20)]
    return {name for name, t in calls[0].tensors.items() if any(not same(t, c.tensors.get(name)) for c in calls[1:])}


def _near(a: Tensor, b: Tensor) -> Tensor:
    """No further from each other than sums in another order are; what was never written is nowhere near."""
    scale = a.double().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    return torch.isclose(a.double(), b.double(), rtol=1e-3, atol=float(1e-3 * scale), equal_nan=True)


def _alike(a: Tensor, b: Tensor | None) -> bool:
    """The same, or nearly where a library may add in another order: it looks at where its operands lie in memory."""
    return same(a, b) or (a.is_cuda and b is not None and a.shape == b.shape and bool(_near(a, b).all()))


def _all_near(a: object, b: object) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(bool(_near(x, y).all()) for x, y in pairs if isinstance(x, Tensor))


def any_order(trial: Trial) -> Outcome:
    """A kernel's threads in another order: a race, or a read before another thread's write, changes the bits."""
    subjects, variant = trial.subjects, trial.accepted(replace(trial.usual, distribution="normal", seed=1))
    library = subjects.candidate.library
    if library is None:
        return skipped("its kernels do not run on the host")
    subjects.set_state(variant)
    first, tried = trial.observe(variant), []
    try:
        start = time.perf_counter()
        for order, seed in (("backward", 1), ("random", 1), ("forward", 1), ("random", 2)):
            if time.perf_counter() - start > MANY_SECONDS:
                break
            library.set_order(order, seed)
            again = trial.observe(variant)
            for name, value in first.tensors.items():
                if not same(value, again.tensors.get(name)):
                    return Outcome(False, f"{name}, threads in {order} order: {_difference(value, again, name)}")
            tried.append(order)
    finally:
        library.set_order()
    return Outcome(True, f"the same bits in {', '.join(dict.fromkeys(tried))} order")


def no_threads(trial: Trial) -> Outcome:
    """When the call returns the work is done: no thread was started, and the result does not change afterwards."""
    subjects, variant = trial.subjects, trial.usual
    subjects.set_state(variant)
    inputs = subjects.inputs(variant)
    original, new = subjects.original, subjects.new
    with subjects.unmoved(original), subjects.unmoved(new), torch.no_grad(), seeded(0):
        original(*subjects.inputs(variant))
        new(*inputs)  # pools of threads are started now, if they are
        python_before, all_before = threads()
        with filled_memory(subjects.device):
            result = new(*inputs)
        python_after, all_after = threads()
    at_once = _cloned(result)
    time.sleep(0.05)
    later = [not same(a, b) for a, b in zip(pytree.tree_leaves(result), pytree.tree_leaves(at_once), strict=True)]
    if any(later):
        return Outcome(False, "the result changed after the call had returned")
    if python_after > python_before or all_after > all_before:
        started = max(python_after - python_before, all_after - all_before)
        return Outcome(False, f"{started} threads were started by the call", float(started))
    return Outcome(True, f"threads: {python_after} before and after", float(python_after))


def copies(trial: Trial) -> Outcome:
    """deepcopy and pickle, where the original has them, give models that compute the same."""
    subjects, variant = trial.subjects, replace(trial.usual, parameters="random")
    subjects.set_state(variant)
    expected = subjects.run_plainly(variant)  # as the copies run: under a mode PyTorch computes some operators by others
    for model in (subjects.original, subjects.new):
        settle(model)  # which of them last ran with gradients is chance
    made, notes = dict[str, tuple[nn.Module, Callable[[Any], Any]]](), list[str]()
    ways = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}
    for how, way in ways.items():
        try:
            way(subjects.original)
        except Exception as error:  # then the candidate need not either
            notes.append(f"the original has no {how} ({sentence(error)})")
        else:
            made[how] = way(subjects.new), way
    for how, (model, way) in made.items():
        with subjects.unmoved(model):
            got = observe(model, subjects.inputs(variant), seed=variant.seed)
        differs = [name for name, value in expected.tensors.items() if not _alike(value, got.tensors.get(name))]
        if differs:  # the original's own copy may be another: an object that only is what it is is none then
            theirs = way(subjects.original)
            with subjects.unmoved(theirs):
                other = observe(theirs, subjects.inputs(variant), seed=variant.seed)
            differs = [name for name in differs if not _alike(other.tensors[name], got.tensors.get(name))]
        if differs and not set(differs) <= _varying(trial, variant):
            return Outcome(False, f"after {how}, {differs[0]} differs")
    return Outcome(True, "; ".join([" and ".join(made), *notes])) if made else skipped("; ".join(notes))


def _same(a: object, b: object) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(same_bits(x, y) for x, y in pairs if isinstance(x, Tensor))


def _constant(tree: object) -> bool:
    """Every tensor holds one value throughout."""
    tensors = [t.reshape(-1) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]
    return all(bool((t == t[:1]).all()) for t in tensors)


def _moves(trial: Trial, variant: Variant, other: Variant) -> bool:
    """The original's results on the two are not nearly the same."""
    results = []
    for inputs in (trial.subjects.inputs(variant), trial.subjects.inputs(other)):
        trial.subjects.set_state(variant)
        with trial.subjects.unmoved(trial.subjects.original), torch.no_grad(), seeded(0):
            results.append(_cloned(trial.subjects.original(*inputs)))
    pairs = zip(*map(pytree.tree_leaves, results), strict=True)
    return any(not torch.allclose(a, b, rtol=0.01, equal_nan=True) for a, b in pairs if isinstance(a, Tensor))


def _cloned(tree: object) -> object:
    return pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), tree)


def _aliases_input(result: object, inputs: list[object]) -> bool:
    held = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
    return any(t.untyped_storage().data_ptr() in held for t in pytree.tree_leaves(result) if isinstance(t, Tensor))


def _difference(value: Tensor, again: Observed, name: str) -> str:
    other = again.tensors.get(name)
    if other is None or other.shape != value.shape:
        return "another shape"
    differs = (bits(value) != bits(other)).reshape(-1)
    position = int(differs.double().argmax())
    before, after = value.reshape(-1)[position].item(), other.reshape(-1)[position].item()
    return f"{before:.9g}, then {after:.9g} ({int(differs.sum())} of {value.numel()} elements)"


def _typed(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"
