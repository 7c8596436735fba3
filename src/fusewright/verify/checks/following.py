"""Does the candidate follow its model: built with other arguments, changed later, hooked, called again and again?

What is called is small. Where the candidate's bits are the original's, as where it runs the original's operators, nothing else is
computed; only where they are not, references in float64 say what is right.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...frontend.given import deep_copy
from ..held import own
from ..memory import is_short
from ..observe import Observed, Way
from ..reference import widen_module
from ..subjects import Construction, Subjects
from ..variants import Variant
from ..ways import NAMES, NEW_NAMES, OF_DATA, Backward, Calls, Change, Changed, Graded, Hooked, place_of
from . import Outcome, Trial, sentence, skipped
from .bits import same_bits

MOST_CHANGES = 24  # compared in one check
MOST_TRIES = 72  # calls of the original to find them
MOST_HOOKED = 6  # modules, of different classes
MOST_SECONDS = 1.0  # of processor time for one check, when a few changes have been compared
AT_LEAST = 4
ACTIVATIONS = frozenset(
    "ReLU ReLU6 GELU SiLU Mish ELU SELU CELU LeakyReLU Hardswish Hardtanh Hardsigmoid Sigmoid Tanh Softplus Softsign".split()
)
BACKWARD: Mapping[str, str] = {
    "again": "two calls, gradients twice", "alone": "results alone, parameters partly frozen", "ties": "equal inputs",
}  # fmt: skip
# What else a word may be, for attributes that PyTorch's modules read when they are called, and for names of activations.
WORDS: Mapping[str, tuple[str, ...]] = {
    "none": ("tanh", "mean", "sum"), "tanh": ("none", "relu"), "mean": ("sum",), "sum": ("mean",), "zeros": ("circular", "reflect"),
    "reflect": ("zeros",), "circular": ("zeros",), "replicate": ("zeros",), "nearest": ("bilinear", "linear", "trilinear"),
    "bilinear": ("nearest",), "relu": ("gelu", "tanh"), "gelu": ("relu",), "silu": ("relu",), "sigmoid": ("tanh",),
}  # fmt: skip


def _never(name: str) -> bool:
    return False


def difference(
    trial: Trial, subjects: Subjects, variant: Variant, eager: Observed, optional: Callable[[str], bool] = _never
) -> str | None:
    """What tells the candidate from the original, both called in the subjects' way; "" where nothing does, None where nobody can say:
    the results are not the same bits, and there is no float64 reference.

    `optional`: names that the candidate need not have.
    """
    try:
        with _silently():
            got = subjects.run_plainly(variant)
    except (Exception, SystemExit) as error:
        if is_short(error):
            raise
        return f"raised {sentence(error)}"
    if got.structure != eager.structure:
        return f"returns {got.structure} instead of {eager.structure}"
    if more := [what for what in got.besides if what not in eager.besides]:
        return f"{more[0]}: not so with the original"
    for name, fact in eager.facts.items():
        if got.facts.get(name) != fact and not (name not in got.facts and optional(name)):
            return f"{name} is {_words(got.facts.get(name, 'not there'))} instead of {_words(fact)}"
    wanted = {name: value for name, value in eager.tensors.items() if name in got.tensors or not optional(name)}
    if all(name in got.tensors and same_bits(got.tensors[name], value) for name, value in wanted.items()):
        return ""
    if subjects.exact is subjects.original:
        subjects = replace(subjects, exact=widen_module(deep_copy(subjects.original)))
        subjects.set_state(variant)
    try:
        with _silently():
            references = subjects.references(variant, draws=2)
    except Exception as error:  # an operator that float64 lacks
        if is_short(error):
            raise
        return None
    references = replace(references, eager=replace(references.eager, tensors=wanted))
    with _silently():
        misses = subjects.judge(got, references, variant, trial.kind_may_change)
    wrong = [f"{name} {miss}" for name, miss in misses.items() if not miss.passed and references.says_something(name)]
    return wrong[0] if wrong else ""


def _words(fact: Any) -> str:
    """A value on self comes with its structure first, which only a container has."""
    values = fact[1:] if isinstance(fact, list) else [fact]
    return str(values[0] if len(values) == 1 else values)


@contextlib.contextmanager
def _silently() -> Iterator[None]:
    """Modules and candidates warn of what nobody planned; here it is done on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _small(trial: Trial) -> Variant:
    return trial.accepted(replace(trial.usual, group="following", parameters="random", distribution="normal", seed=2))


def _taken(subjects: Subjects, variant: Variant) -> Observed | None:
    """What the original gives, or None where it does not take that."""
    try:
        with _silently():
            return subjects.run_eager(variant)
    except Exception as error:  # the user's own code, called in a way nobody promised it would take
        if is_short(error):
            raise
        return None


# ---- constructor arguments ----


def constructor(trial: Trial) -> Outcome:
    """Built with other arguments, one changed at a time, both give the same. What the original refuses is left out."""
    if trial.subjects.problem.arguments() is None:
        return skipped("a module was given, not what it was built with")
    compared, start = list[str](), trial.subjects.clock()
    done: dict[str, int] = {}
    variant = replace(trial.usual, group="following", parameters="random", seed=2)
    for what in _constructions(trial.subjects):
        if done.get(what.name, 0) >= 2 or len(compared) >= MOST_CHANGES:
            continue
        if len(compared) >= 2 and trial.subjects.clock() - start > MOST_SECONDS:
            break
        subjects = trial.subjects.built_with(what)
        if subjects is None:
            continue
        subjects.set_state(variant)
        eager = _taken(subjects, variant)
        if eager is None:
            continue
        try:
            subjects, ours = subjects.candidate.built_with(subjects, what)
        except (Exception, SystemExit) as error:
            return Outcome(False, f"with {what}: ModelNew raised {sentence(error)}")
        theirs = {name: list(value.shape) for name, value in subjects.original.state_dict().items()}
        if theirs != ours:
            return Outcome(False, f"with {what}: state_dict differs in {', '.join(_differing(theirs, ours)[:4])}")
        subjects.set_state(variant)
        found = difference(trial, subjects, variant, eager)
        if found:
            return Outcome(False, f"with {what}: {found}")
        if found is None:
            continue
        done[what.name] = done.get(what.name, 0) + 1
        compared.append(str(what))
    if not compared:
        return skipped("the original takes no other arguments")
    return Outcome(True, f"{len(compared)} other constructions: {', '.join(compared[:6])}", float(len(compared)))


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def _constructions(subjects: Subjects) -> Iterator[Construction]:
    """Arguments of get_init_inputs, and defaults that it leaves, one at a time with other values."""
    given = subjects.problem.arguments() or []
    try:
        parameters = list(inspect.signature(subjects.problem.namespace.Model).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rounds: list[list[Construction]] = []
    for position, value in enumerate(given):
        name = names[position] if position < len(names) else f"argument {position}"
        rounds.append([Construction(name, other, position) for other in _other_values(value)])
    for parameter in parameters:
        left = parameter.kind == parameter.KEYWORD_ONLY or parameter.name in names[len(given) :]
        if left and parameter.default is not parameter.empty:
            rounds.append([Construction(parameter.name, other) for other in _other_values(parameter.default)])
    for number in range(max(map(len, rounds), default=0)):  # each argument once before any of them twice
        yield from (others[number] for others in rounds if number < len(others))


def _other_values(value: Any) -> list[Any]:
    """What else such an argument or attribute may be; nothing for what is no plain value."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [v for v in dict.fromkeys((value // 2, value + 1, value * 2, value - 1)) if v != value]
    if isinstance(value, float):
        other = 0.5 * value + 0.1
        return [other if abs(other - value) > 0.01 * abs(value) else value + 0.25]
    if isinstance(value, str):
        return list(WORDS.get(value, ()))
    if type(value) is tuple and value and all(type(v) is int for v in value):
        return [tuple(v + 1 for v in value)]
    return []


# ---- attributes ----


def attributes(trial: Trial) -> Outcome:
    """Plain attributes set, submodules and parameters replaced after construction, one at a time: both follow alike."""
    variant = _small(trial)
    subjects = trial.subjects
    subjects.set_state(variant)
    before = subjects.run_eager(variant)
    start, tries, compared = subjects.clock(), 0, list[Change]()
    settled: set[tuple[str, ...]] = set()
    for kind, change in _changes(subjects.original):
        enough = len(compared) >= AT_LEAST and subjects.clock() - start > MOST_SECONDS
        if len(compared) >= MOST_CHANGES or tries >= MOST_TRIES or enough:
            break
        if kind in settled:
            continue
        tries += 1
        changed, of_data = subjects.by(Changed(change)), change.kind in OF_DATA
        asked = replace(variant, training=False) if of_data else variant  # what is folded or packed for evaluation has to follow
        subjects.set_state(asked)
        unchanged, eager = _taken(subjects, asked) if of_data else before, _taken(changed, asked)
        if eager is None or unchanged is None or not _moves(unchanged, eager):
            continue
        found = difference(trial, changed, asked, eager)
        if found:
            return Outcome(False, f"after {change}: {found}")
        if found is not None:
            settled.add(kind)
            compared.append(change)
    if not compared:
        return skipped("nothing that can be set later changes the original's result")
    return Outcome(True, f"{len(compared)} changes: {', '.join(map(str, compared[:6]))}", float(len(compared)))


def _moves(before: Observed, after: Observed) -> bool:
    if before.structure != after.structure or list(before.tensors) != list(after.tensors):
        return True
    return not all(same_bits(value, after.tensors[name]) for name, value in before.tensors.items())


def _changes(model: nn.Module) -> Iterator[tuple[tuple[str, ...], Change]]:
    """(what kind of change it is, the change). Of one kind several are tried until one has an effect: other values, then another
    module of that class. Kinds take turns, so that few changes are of many kinds; the likely ones come first."""
    kinds: dict[tuple[str, ...], list[Change]] = {}
    for path, module in model.named_modules():
        for change in [*_of_attributes(path, module), *_of_children(path, module), *_of_parameters(path, module)]:
            holder = module if change.kind not in ("submodule", "activation") else getattr(module, change.name)
            what = "" if change.kind in ("submodule", "activation") else change.name
            kind = (change.kind,) if change.kind in OF_DATA else (change.kind, type(holder).__name__, what)
            kinds.setdefault(kind, []).append(change)
    order = sorted(kinds, key=lambda kind: _unlikely(kinds[kind][0]))
    for number in range(6):
        yield from ((kind, kinds[kind][number]) for kind in order if number < len(kinds[kind]))


def _unlikely(change: Change) -> int:
    """Whole numbers of PyTorch's modules are mostly sizes that were used when it was built, and training matters to few."""
    sizes = isinstance(change.value, (int, tuple)) and not isinstance(change.value, bool) and change.path != ""
    return 1 if change.kind == "attribute" and (sizes or change.name == "training") else 0


def _of_attributes(path: str, module: nn.Module) -> Iterator[Change]:
    held = {**_public(module), **({"training": module.training} if path else {})}
    for name, value in held.items():
        yield from (Change("attribute", path, name, other) for other in _other_values(value))
        places: list[Any] = list(range(len(value))) if type(value) is list else list(value) if type(value) is dict else []
        for key in places[:2]:
            yield from (Change("item", path, name, other, key) for other in _other_values(value[key])[:2])


def _public(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in own(module).items() if not name.startswith("_")}


def _of_children(path: str, module: nn.Module) -> Iterator[Change]:
    for name, child in module.named_children():
        leaf = next(child.children(), None) is None
        if not leaf:
            continue
        settings = sorted(_public(child).items(), key=lambda item: isinstance(item[1], (int, tuple)))  # sizes last
        for attribute, value in settings:
            yield from (Change("submodule", path, name, (attribute, other)) for other in _other_values(value)[:1])
        if type(child).__name__ in ACTIVATIONS and type(child).__module__.startswith("torch."):
            yield Change("activation", path, name, "SiLU" if isinstance(child, nn.Tanh) else "Tanh")


def _of_parameters(path: str, module: nn.Module) -> Iterator[Change]:
    for name, value in module.named_parameters(recurse=False):
        if value.is_floating_point() and value.numel():
            yield from (Change(kind, path, name) for kind in ("weight", *OF_DATA))


# ---- hooks ----


def hooks(trial: Trial) -> Outcome:
    """Hooks on submodules and on the model fire as often, see the same, and what they change is changed."""
    variant = _small(trial)
    subjects = trial.subjects
    subjects.set_state(variant)
    every = tuple(path for path, _ in subjects.original.named_modules())
    called = _taken(subjects.by(Hooked("forward", every)), variant)
    if called is None:
        return skipped("the original takes no hooks")
    fired = [path for path, count in zip(every, called.facts.values(), strict=True) if count and path]
    first = {type(subjects.original.get_submodule(path)).__name__: path for path in reversed(fired)}
    inside = list(first.values())[::-1][:MOST_HOOKED]
    paths = ("", *inside)
    ways: list[tuple[Way, Variant]] = [(Hooked(kind, paths), variant) for kind in ("pre", "forward")]
    ways += [(Hooked("forward", (path,), changing=True), variant) for path in inside[:4] or [""]]
    ways += [(Hooked("pre", (path,), changing=True), variant) for path in inside[-1:]]
    if not trial.forward_only:
        with_gradients = replace(variant, derivatives=1)
        ways += [(Hooked("backward", paths), with_gradients)]
        ways += [(Hooked("backward", (path,), changing=True), with_gradients) for path in inside[:1]]
    compared, start = 0, subjects.clock()
    for way, asked in ways:
        if compared >= AT_LEAST and subjects.clock() - start > MOST_SECONDS:
            break
        hooked = subjects.by(way)
        eager = _taken(hooked, asked)
        if eager is None:
            continue
        found = difference(trial, hooked, asked, eager)
        if found:
            return Outcome(False, found)
        compared += found is not None
    if not compared:
        return skipped("the original takes no hooks")
    return Outcome(True, f"on the model and {len(inside)} of its modules, {compared} calls", float(compared))


# ---- what is on self ----


def state_on_self(trial: Trial) -> Outcome:
    """After a call the same is on `self` and on submodules; a name that only the candidate sets begins with an underscore."""
    variant = _small(trial)
    trial.subjects.set_state(variant)
    for gradients in (False,) if trial.forward_only else (True, False):  # without, where nothing has any
        subjects = trial.subjects.by(Calls((variant.sizes,), gradients))
        eager = _taken(subjects, variant)
        if eager is not None:
            break
    else:
        return skipped("the original refuses")
    found = _difference_of_calls(trial, subjects, variant, eager)
    if found:
        return Outcome(False, found)
    if found is None:
        return skipped("there is no float64 reference")
    kept = sorted(place_of(*place).removeprefix("attribute ") for place in trial.subjects.carried)
    return Outcome(True, f"the call sets {', '.join(kept[:6])}" if kept else "the call sets nothing", float(len(kept)))


def several_calls(trial: Trial) -> Outcome:
    """Three calls in a row, the second of another batch size where the original takes that: results and state after each.

    A model that keeps state is called with equal sizes too: some begin anew with another batch. It is also trained: kernels that only
    training launches may wait for what a first call leaves.
    """
    usual, found = _small(trial), list[str]()
    other = next((trial.shapes.others[name] for name in ("batch + 1", "batch − 1") if name in trial.shapes.others), usual.sizes)
    for training in (True, False) if any(trial.subjects.modes.values()) else (True,):
        variant, mode = replace(usual, training=training, seed=5), "training" if training else "evaluation"
        trial.subjects.set_state(variant)
        alike = [(usual.sizes, True)] if training and not trial.forward_only else []
        for sizes, gradients in dict.fromkeys([(other, False), (usual.sizes, False), *alike]):
            subjects = trial.subjects.by(Calls((usual.sizes, sizes, usual.sizes), gradients))
            eager = _taken(subjects, variant)
            if eager is None:
                continue
            with trial.subjects.candidate.launches() as launched:
                differs = _difference_of_calls(trial, subjects, variant, eager)
            trial.later.update(launched)
            if differs:
                return Outcome(False, f"in {mode} mode, {differs}")
            if differs is not None:
                between = ", another batch size in between" if sizes != usual.sizes else ", with gradients" if gradients else ""
                found.append(f"{mode} mode{between}")
            if not trial.subjects.carried:
                break
    return Outcome(True, f"three calls in {'; '.join(found)}", 3.0) if found else skipped("the original refuses")


def _difference_of_calls(trial: Trial, subjects: Subjects, variant: Variant, eager: Observed) -> str | None:
    """What a call sets must be there; constants that the original keeps on itself need not be."""
    kept = {place_of(*place) for place in trial.subjects.carried}

    def optional(name: str) -> bool:
        return name.startswith("attribute ") and not any(name.startswith(place) for place in kept)

    try:
        with _silently():
            ours = subjects.run_plainly(variant).facts[NAMES]
    except (Exception, SystemExit) as error:
        if is_short(error):
            raise
        return f"raised {sentence(error)}"
    own_names = {*eager.facts[NAMES], *(place_of(*place) for place in subjects.built)}
    more = [name for name in ours if name not in own_names and not re.search(r"[ .]_\w*$", name)]
    less = [name for name in eager.facts[NEW_NAMES] if name not in ours]
    if more or less:
        return f"{more[0]} is set, which the original does not set" if more else f"{less[0]} is not set"
    known = {name: fact for name, fact in eager.facts.items() if name not in (NAMES, NEW_NAMES)}
    return difference(trial, subjects, variant, replace(eager, facts=known), optional)


# ---- gradients ----


def backward_ways(trial: Trial) -> Outcome:
    """Two calls before the gradients of either, and gradients twice; of each result alone, with every other parameter frozen; of inputs
    of which many are equal."""
    small, compared = _small(trial), list[str]()
    for kind, words in BACKWARD.items():
        variant = replace(small, distribution="equal numbers") if kind == "ties" else small
        trial.subjects.set_state(variant)
        subjects = trial.subjects.by(Backward(kind))
        eager = _taken(subjects, variant)
        if eager is None or not eager.tensors:
            continue
        found = difference(trial, subjects, variant, eager)
        if found:
            return Outcome(False, found)
        if found is not None:
            compared.append(words)
    return Outcome(True, "; ".join(compared), float(len(compared))) if compared else skipped("the original has none")


def gradients_there(trial: Trial) -> Outcome:
    """Results require a gradient where the original's do, and only there: parameters trained or frozen, inputs with or without."""
    variant = _small(trial)
    trial.subjects.set_state(variant)
    trained = any(p.requires_grad for p in trial.subjects.original.parameters())
    floating = any(isinstance(x, Tensor) and x.is_floating_point() for x in trial.subjects.inputs(variant))
    compared = 0
    for frozen in (False, True) if trained else (False,):
        for inputs in (False, True) if floating else (False,):
            way = Graded(frozen, inputs)
            subjects = trial.subjects.by(way)
            eager = _taken(subjects, variant)
            if eager is None:
                continue
            found = difference(trial, subjects, variant, eager)
            if found:
                return Outcome(False, f"{found} ({way})")
            compared += found is not None
    return Outcome(True, f"as the original's in {compared} settings", float(compared)) if compared else skipped("the original refuses")
