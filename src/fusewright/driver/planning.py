"""From a module and what it is called with to its plans: the same line as the command, once for each mode that matters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..errors import Fault, Refused, Unsupported, first_line
from ..frontend.autocast import Autocast, without_autocast
from ..frontend.given import (
    Given,
    autocast_class,
    called_plainly,
    check_own_call,
    copied,
    flat_class,
    given,
    has_own_call,
    plainly_called,
    sharing,
)
from ..frontend.problem import MODULES as FILES
from ..frontend.problem import seeded_everything
from ..frontend.quiet import unsaid
from ..frontend.trees import Arguments, Flat, Leaf, Tree, flatten, is_plain, unflatten
from ..options import Options
from ..report.explain import explain_plan
from ..verify.candidate import MODULES as CANDIDATES
from .optimized import plain
from .pipeline import Run, optimize
from .plans import EVALUATION, TRAINING, Plans, PlanText, examples_of


def plan(
    module: nn.Module, arguments: Arguments, leaves: list[Any], flat: Flat, options: Options, autocast: Autocast | None = None
) -> Plans:
    """Both plans are made at once: no call of a training loop is a slow one, a saved module has what it needs, and no inputs have to be
    kept to make the second with. With `autocast` they are those of a forward that turns it on."""
    with planning():
        module = plain(copied(module))
        result = returned(module, leaves, flat)
        direct = is_direct(flat) and is_plain(result)
        kind = type(module) if autocast is None else autocast_class(type(module), autocast)
        kind = plainly_called(kind if direct else flat_class(kind, flat))
        values = list(arguments.positional) if direct else leaves
        first = TRAINING if module.training else EVALUATION
        texts = {first: run_of(problem_of(module, kind, values), options)}
        other = EVALUATION if first == TRAINING else TRAINING
        if not reads_its_mode(texts[first]):
            texts[other] = texts[first]
        elif not options.forward_only:
            texts[other] = run_of(problem_of(copied(module).train(other == TRAINING), kind, values), options)
        made = {mode: text_of(run, type(module).__name__) for mode, run in texts.items()}
    target = "host" if options.target == "host" else "cuda"
    examples = examples_of(values)
    if direct:
        return Plans(target, options, made, examples, autocast=autocast)
    return Plans(target, options, made, examples, flat, result, autocast)


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Whatever the caller is in the middle of: random numbers, modes and loaded modules are left as they were."""
    before = set(sys.modules)
    try:
        with without_autocast(), seeded_everything(0), unsaid(), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for name in [name for name in sys.modules if name.startswith((FILES, CANDIDATES)) and name not in before]:
            del sys.modules[name]


def problem_of(module: nn.Module, kind: type[nn.Module], values: list[Any]) -> Given:
    return given(module if kind is type(module) else sharing(kind, module), values)


def run_of(problem: Given, options: Options) -> Run:
    run = optimize(problem, options)
    if options.verify and not run.verdict.passed:
        raise Fault(f"what was planned did not verify ({run.verdict.worst})")
    return run


def text_of(run: Run, name: str) -> PlanText:
    """The report without the text, which is there already."""
    captured, explained = run.front.captured, explain_plan(run.made, run.emitted, run.choices.training)
    leaves_nothing = not captured.assigned and not captured.counted and all(output.kind == "return" for output in captured.outputs)
    return PlanText(run.text, {**run.report, "model": name, "emitted": None}, explained, leaves_nothing)


def returned(module: nn.Module, leaves: list[Any], flat: Flat) -> Tree:
    """The shape of what the original returns, by calling a copy."""
    name = type(module).__name__
    model, values = copied(module), [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in leaves]
    positional, named = unflatten(flat.given, values)
    try:
        with torch.no_grad():
            if has_own_call(model):
                check_own_call(model, Arguments(tuple(positional), named), name, lambda: model(*positional, **named))
            with called_plainly(model):
                result = model(*positional, **named)
    except Unsupported:
        raise
    except Exception as error:  # the user's own code
        raise Refused(f"{name}: forward() raised {type(error).__name__}: {first_line(error)}") from error
    found, tree = flatten(result, name, "what forward() returns")
    if not any(isinstance(value, torch.Tensor) for value in found):
        raise Refused(f"{name}: forward() returned no tensor")
    return tree


def is_direct(flat: Flat) -> bool:
    """A call with tensors and plain values by position alone."""
    assert not isinstance(flat.given, Leaf)
    positional, named = flat.given.items
    assert not isinstance(positional, Leaf) and not isinstance(named, Leaf)
    return not named.items and all(isinstance(item, Leaf) for item in positional.items)


def reads_its_mode(run: Run) -> bool:
    """What forward does depends on whether some module of it is in training."""
    return any("training" in names for names in run.front.captured.reads.attributes.values())
