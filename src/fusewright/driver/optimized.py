"""A module that runs plans: a class derived from the user's own, so that whatever asks for that one finds it.

`forward` is that of the plan for the mode that the module is in. What lies outside the plan runs the original's, and says so once.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..frontend.autocast import KINDS, Autocast, autocast_on
from ..frontend.given import derived, sharing, signature_of
from ..frontend.trees import Arguments, Flat, arguments_of, unflatten
from ..host.loaded import around
from .content import LOOK
from .plans import EVALUATION, REDUCE_OVERHEAD, TRAINING, Example, Plans
from .replay import replayed

_making = threading.RLock()  # one class is made at a time: two threads that ask for the same one get the same
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
_classes: weakref.WeakValueDictionary[tuple[type, str], type[Optimized]] = weakref.WeakValueDictionary()
_said: weakref.WeakKeyDictionary[nn.Module, Said] = weakref.WeakKeyDictionary()
OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<fusewright_module_")


class NotInUse(UserWarning):
    """Kernels of an optimised module are not in use, and why."""


class _Shortcut:
    """An attribute of what is known about a module. What the user has under that name comes first: on the class, on the module, or
    registered with it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None:
            return self
        for table in (module._parameters, module._buffers, module._modules):
            if self.name in table:
                return table[self.name]
        return getattr(about(module), self.name)


class Optimized(nn.Module):
    """What `fusewright.optimize` returns: a module of the user's own class that runs kernels. Only classes derived from it are used."""

    if TYPE_CHECKING:

        @property
        def report(self) -> Mapping[str, Any]:
            """What was done, verified and timed, for the mode that the module is in."""

        @property
        def source(self) -> str:
            """The text that runs in the mode that the module is in."""

        def explain(self) -> str:
            """The plan for the mode that the module is in, in words and numbers."""

        def save(self, path: str | os.PathLike[str], arguments: Sequence[Any] | None = None) -> None:
            """Write the self-contained file that `fusewright optimize` would: `fusewright.save`."""
    else:
        report, source, explain, save = (_Shortcut() for _ in range(4))


def about(module: nn.Module) -> About:
    """What is known about an optimised module, whatever names its own class uses.

    `module.report`, `.source`, `.explain()` and `.save(path)` are the same, where the module has nothing else under that name.
    """
    if not isinstance(module, Optimized):
        raise TypeError(f"a {type(module).__name__} was not made by fusewright.optimize")
    return About(module, known(module))


@dataclass(frozen=True)
class Known:
    """What a class of optimised modules has."""

    kind: type[nn.Module]  # the user's
    plans: Plans
    spaces: Mapping[str, ModuleType]  # by mode: the text, run


def known(module: nn.Module) -> Known:
    """Of the class itself, or of one that it derives from: others derive classes too."""
    return next(vars(cls)["_fusewright_known"] for cls in type(module).__mro__ if "_fusewright_known" in vars(cls))


@dataclass(frozen=True)
class About:
    """An optimised module, looked at."""

    module: nn.Module
    known: Known

    @property
    def mode(self) -> str:
        return TRAINING if self.module.training else EVALUATION

    @property
    def plans(self) -> Plans:
        return self.known.plans

    @property
    def spaces(self) -> Mapping[str, ModuleType]:
        """By mode: the emitted text as a module."""
        return self.known.spaces

    @property
    def report(self) -> dict[str, Any]:
        """What was done, verified and timed, for the mode that the module is in: what `--json` writes, and `plan` (the modes that it is
        for), `autocast` (what has to be on), `cached`, `fault` (why nothing was planned)."""
        plan = self.plans.texts.get(self.mode)
        modes = [mode for mode, other in self.plans.texts.items() if plan is not None and other.text == plan.text]
        found = {**plan.report, "emitted": plan.text} if plan else {"verified": False, "kernels": [], "notes": []}
        autocast = None if self.plans.autocast is None else str(self.plans.autocast)
        return {**found, "plan": modes, "autocast": autocast, "cached": self.plans.cached, "fault": self.plans.fault}

    @property
    def source(self) -> str:
        """The text that runs in the mode that the module is in: what stands in a file behind the model's own source."""
        plan = self.plans.texts.get(self.mode)
        return plan.text if plan else ""

    def explain(self) -> str:
        """The plan for the mode that the module is in, in words and numbers."""
        plan = self.plans.texts.get(self.mode)
        return plan.explained if plan else f"nothing was planned for {self.mode}{': ' if self.plans.fault else ''}{self.plans.fault}"

    def save(self, path: str | os.PathLike[str], arguments: Sequence[Any] | None = None) -> None:
        """Write the self-contained file that `fusewright optimize` would: `fusewright.save`."""
        from .. import save  # what plans and emits takes a second to import

        save(self.module, path, arguments)

    def __str__(self) -> str:
        """What runs."""
        if not self.plans.texts:
            return f"the original: {self.plans.fault}"
        found = []
        for mode in (TRAINING, EVALUATION):
            space = self.spaces.get(mode)
            same = mode == EVALUATION and space is self.spaces.get(TRAINING)
            if space is not None and not same:
                found.append(f"{kernels_in(space)} in {' and '.join(m for m in (TRAINING, EVALUATION) if self.spaces.get(m) is space)}")
        where = "the CPU" if self.plans.target == "host" else "CUDA"
        more = "" if self.plans.autocast is None else f", under {self.plans.autocast}"
        more += ", by CUDA graphs where no gradients are asked for" if self.plans.mode == REDUCE_OVERHEAD and where == "CUDA" else ""
        return f"{'; '.join(found)}, on {where}{more}"


def kernels_in(space: ModuleType) -> str:
    names = space._KERNELS
    if not names:
        return "PyTorch's operators"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} kernel{'s' if len(names) > 1 else ''} ({', '.join(names[:3])}{more})"


# ---- classes ----


def optimized(module: nn.Module, kind: type[nn.Module], plans: Plans) -> Optimized:
    """A module that runs the plans, with the parameters, buffers and submodules of this one."""
    new = sharing(class_of(kind, plans), module)
    vars(new).pop(LOOK, None)
    vars(new).pop("_compiled_call_impl", None)  # of `module.compile()`: it calls the original
    assert isinstance(new, Optimized)
    return new


def plain(module: nn.Module) -> nn.Module:
    """A module that is nobody else's, as it was before it, and its parts, were optimised."""
    done: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> nn.Module:
        if id(module) not in done:
            found = done[id(module)] = sharing(known(module).kind, module) if isinstance(module, Optimized) else module
            vars(found).pop(LOOK, None)
            found._modules.update({name: visit(part) for name, part in found._modules.items() if part is not None})
        return done[id(module)]

    return visit(module)


def kind_of(module: nn.Module) -> type[nn.Module]:
    return known(module).kind if isinstance(module, Optimized) else type(module)


def class_of(kind: type[nn.Module], plans: Plans) -> type[Optimized]:
    """One for each class and its plans, as long as one of its modules lives."""
    with _making:
        found = _classes.get((kind, plans.key))
        if found is None:
            found = _classes[kind, plans.key] = _made(kind, plans)
        return found


def _made(kind: type[nn.Module], plans: Plans) -> type[Optimized]:
    spaces: dict[str, ModuleType] = {}
    by_text: dict[str, ModuleType] = {}
    for mode, plan in plans.texts.items():
        if plan.text not in by_text:
            original = derived(kind, {"forward": _original(kind, plans)})
            by_text[plan.text] = space = around(plan.text, original, plans.target)
            vars(space).update(Model=kind, warnings=_Warnings)  # what guards compare with, and how they speak
        spaces[mode] = by_text[plan.text]
    bases = tuple(space.ModelNew for space in by_text.values()) or (kind,)
    members: dict[str, Any] = {
        "_fusewright_known": Known(kind, plans, spaces),
        "__repr__": _repr,
        "__reduce_ex__": _reduce_ex,
        "forward": _forward(kind, plans, spaces),
    }
    made: Any = derived(kind, members, (*bases, Optimized))
    return made


class _Whole:
    """What the original returned, where a plan would have returned leaves."""

    def __init__(self, value: Any):
        self.value = value


def _original(kind: type[nn.Module], plans: Plans) -> Callable[..., Any]:
    """What a plan's forward calls where the plan does not fit."""
    flat, original = plans.flat, own_forward(kind, plans)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _say(self, args)
        return original(self, *args, **kwargs) if flat is None else _Whole(flat.call(original, self, args))

    return forward


def own_forward(kind: type[nn.Module], plans: Plans) -> Callable[..., Any]:
    """The user's own as it is when it is called: its class may have another by then. The autocast that a plan is for is off inside it,
    its casts being part of it."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs)

    return forward if plans.autocast is None else functools.partial(plans.autocast.resumed, forward)


def _forward(kind: type[nn.Module], plans: Plans, spaces: Mapping[str, ModuleType]) -> Callable[..., Any]:
    """What the class's forward is: the plan for the mode, called as it was made for."""
    planned = _planned(kind, plans, spaces)
    if plans.mode == REDUCE_OVERHEAD and plans.target != "host":
        planned = replayed(planned, functools.partial(_replayable, plans, spaces), lambda module: _said.setdefault(module, Said()).calls)
    return functools.wraps(kind.forward)(planned if plans.autocast is None else _under(plans.autocast, kind, planned))


def _under(autocast: Autocast, kind: type[nn.Module], planned: Callable[..., Any]) -> Callable[..., Any]:
    """The plans for calls under this autocast; where it is off, or another is on, the user's own forward."""
    compiling = torch.compiler.is_compiling

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return kind.forward(self, *args, **kwargs)
        now = autocast_on(autocast.device)
        if now != autocast:
            _say(self, None, f"planned for calls under {autocast}, and {'it is off' if now is None else f'{now} is on'}")
            return kind.forward(self, *args, **kwargs)
        return autocast.paused(planned, self, *args, **kwargs)

    return forward


def _replayable(plans: Plans, spaces: Mapping[str, ModuleType], module: nn.Module) -> ModuleType | None:
    """The plan for the mode that the module is in, if it has kernels and leaves nothing behind that a graph would not."""
    mode = TRAINING if module.training else EVALUATION
    space = spaces.get(mode)
    if space is None or not space._KERNELS or not plans.texts[mode].leaves_nothing:
        return None
    _with_its_own_look(module, space)
    return space


def _with_its_own_look(module: nn.Module, space: ModuleType) -> None:
    """Each plan takes looks of its own at the module."""
    look = module.__dict__.get(LOOK)
    if look is not None and type(look) is not space._Look:
        del module.__dict__[LOOK]


def _planned(kind: type[nn.Module], plans: Plans, spaces: Mapping[str, ModuleType]) -> Callable[..., Any]:
    """The plan for the mode that the module is in, or the user's own forward."""
    training, evaluation = spaces.get(TRAINING), spaces.get(EVALUATION)
    several = training is not evaluation
    signature, flat, result, count = signature_of(kind), plans.flat, plans.result, len(plans.examples)
    original, compiling = own_forward(kind, plans), torch.compiler.is_compiling

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling():  # by others, who are to see the original's operators
            return kind.forward(self, *args, **kwargs)
        space = training if self.training else evaluation
        if space is None:
            _say(self, args)
            return original(self, *args, **kwargs)
        if several:
            _with_its_own_look(self, space)
        if flat is None:
            if kwargs or len(args) != count:
                given = _arguments(signature, args, kwargs)
                if given is None or given.named or len(given.positional) != count:
                    _say(self, None)
                    return original(self, *args, **kwargs)
                args = given.positional
            return space.ModelNew.forward(self, *args)
        leaves = _leaves(signature, flat, args, kwargs)
        if leaves is None:
            _say(self, None)
            return original(self, *args, **kwargs)
        found = space.ModelNew.forward(self, *leaves)
        assert result is not None
        return found.value if type(found) is _Whole else unflatten(result, found)

    return forward


def _arguments(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments | None:
    try:
        return arguments_of(signature, args, kwargs)
    except TypeError:  # the original says so in its own words
        return None


def _leaves(signature: inspect.Signature, flat: Flat, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    given = _arguments(signature, args, kwargs)
    return None if given is None else flat.leaves_of(given)


def _repr(self: nn.Module) -> str:
    return f"{known(self).kind.__repr__(self)}  # fusewright: {about(self)}"


def _reduce_ex(self: nn.Module, protocol: Any) -> Any:
    """Copies and pickles are made by `class_of`. A model that says itself how it is pickled, and classes that others derive, stay as
    they are."""
    made = known(self)
    usual: Any = made.kind.__reduce_ex__(self, max(2, int(protocol)))
    ours = class_of(made.kind, made.plans)
    by_class = isinstance(usual, tuple) and usual[0] is copyreg.__newobj__ and usual[1][0] is ours  # type: ignore[attr-defined]
    return (_empty, (made.kind, made.plans, *usual[1][1:]), *usual[2:]) if by_class else usual


def _empty(kind: type[nn.Module], plans: Plans, *arguments: Any) -> nn.Module:
    """A module with nothing in it yet: unpickling fills it."""
    made: Any = class_of(kind, plans)
    new: nn.Module = made.__new__(made, *arguments)
    return new


# ---- where kernels are not in use ----


@dataclass
class Said:
    """What was said of a module, and how many of its calls ran the original."""

    words: set[str] = field(default_factory=set)
    calls: int = 0


def _say(module: nn.Module, args: Sequence[Any] | None, why: str = "") -> None:
    """Once for each module and reason. `args`: what the plan was called with; None where they are not those of a plan. `why`: where the
    reason is known.

    To find the reason takes longer than a call may: of many calls only the 64th, the 128th and so on are asked.
    """
    said = _said.setdefault(module, Said())
    said.calls += 1
    if said.calls > 32 and said.calls & (said.calls - 1):
        return
    why = why or next(_reasons(module, args))
    if why and why not in said.words:
        said.words.add(why)
        warn(f"{known(module).kind.__name__}: {why}; the original operators run")


def _reasons(module: nn.Module, args: Sequence[Any] | None) -> Iterator[str]:
    """Why a call is not one that was planned for; the first counts, and nothing is to be said where it is empty."""
    made, mode = known(module), TRAINING if module.training else EVALUATION
    space, plans = made.spaces.get(mode), made.plans
    if space is None:
        yield "" if plans.fault else f"planned for {' and '.join(made.spaces)} alone, and the module is in {mode}"
    assert space is not None
    if not space._KERNELS:
        yield "no kernel would gain on PyTorch's own in this plan"
    if args is None:
        yield "a call with other arguments than those planned for"
    assert args is not None
    tensors = [value for value in (*args, *module.parameters(), *module.buffers()) if isinstance(value, torch.Tensor)]
    on = [state for kind in {tensor.device.type for tensor in tensors} & {*KINDS} if (state := autocast_on(kind)) is not None]
    if on:
        yield f"torch.autocast is on, and the plan is for calls without it (fusewright.optimize called under {on[0]} plans for it)"
    if torch._C._are_functorch_transforms_active():
        yield "a transform of torch.func is at work"
    watched = space._compiling() or space._tracing() or any(space._GLOBAL_HOOKS)
    if watched or torch.get_default_dtype() is not space._DEFAULT_DTYPE:
        yield "something watches or changes what operators do (tracing, global hooks, another default type)"
    look = vars(module).get(LOOK)
    if look is not None and look.why:
        yield look.why if look.expected else ""  # else the text has said so itself
    odd = [type(tensor).__name__ for tensor in tensors if type(tensor) not in space._TENSOR_TYPES]
    if odd:
        yield f"a tensor is a {odd[0]}"
    places = {tensor.device.type for tensor in tensors}
    wanted = "cpu" if plans.target == "host" else "cuda"
    if places != {wanted}:
        there = " and ".join(sorted(places))
        yield f"tensors are on {there}, kernels on {wanted}" + ("" if wanted == "cpu" else '; with target="host" they run on the CPU')
    for example, value in zip(plans.examples, args, strict=False):
        now = Example.of(value)
        if example.dtype is None and now != example:
            yield f"{now} is given where {example} was planned for"
        if example.dtype is not None and (now.dtype != example.dtype or len(now.shape) != len(example.shape)):
            yield f"{now} is given where {example} was planned for"
    if torch.is_grad_enabled() and plans.texts[mode].report["tuning"]["choices"]["training"]["original"]:
        yield "in training PyTorch's operators were the faster ones"
    yield "sizes, types or flags are none that were planned for"


class _Warnings:
    """What emitted text knows as `warnings`: there it would point at ours, here it points at the user's line."""

    @staticmethod
    def warn(words: str, stacklevel: int = 1) -> None:
        warn(words)


def warn(words: str) -> None:
    """At the line of the user's that called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    assert frame is not None
    space = frame.f_globals
    registry = space.setdefault("__warningregistry__", {})
    warnings.warn_explicit(words, NotInUse, frame.f_code.co_filename, frame.f_lineno, space.get("__name__"), registry)
