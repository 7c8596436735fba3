"""Plan -> the text of one self-contained Python file, and what each of its kernels stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from torch import nn

from .. import __version__
from ..autograd import JointPlan
from ..frontend.chosen import chosen
from ..frontend.following import runtime_text
from ..frontend.source import without_forbidden_remarks
from ..ir.names import FORBIDDEN
from ..ir.plan import label
from ..schedule.training import PYTORCH
from .assumptions import Assumptions
from .backward import Backward, WeightKernel
from .forward import Forward
from .functions import Functions
from .here import here_text
from .kernels import KernelFacts, Shared, comment, facts, together, unit_of, units_text
from .launches import Launches
from .signature import Signature
from .surroundings import OWN_GLOBALS, Surroundings, with_surroundings
from .template import FILE, HERE_IMPORTS, IMPORTS, RUNTIME, UNCHANGED, UNCHANGED_CONSTRUCTOR
from .values import ForwardValues

MANY = 12  # kernels that are worth several threads of nvcc: the hundred of a dense network take one 65 s

ALONE = Surroundings()


@dataclass(frozen=True)
class Emitted:
    text: str
    kernels: tuple[KernelFacts, ...]
    calls: tuple[str, ...]
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the nodes that each of its functions computes
    launched: Mapping[str, str] = field(default_factory=dict)  # by kernel of the plan: the function that is launched for it
    place: Path | None = None  # where the file is to stand
    training: Mapping[str, str] = field(default_factory=dict)  # what computes each region where gradients are asked for
    weights: tuple[WeightKernel, ...] = ()  # kernels of backward for the weights of convolutions
    referable: frozenset[str] = frozenset()  # regions that PyTorch's operators could compute as a whole


def emit(joint: JointPlan, source: str, model: nn.Module, around: Surroundings = ALONE) -> Emitted:
    calls = tuple(str(call.node.target) for call in joint.plan.calls if call.node.target != "getitem")
    if not joint.plan.every_kernel:
        return Emitted(behind(source, unchanged(around), around), (), calls)
    return replace(with_kernels(joint, source, model, around), calls=calls)


def unchanged(around: Surroundings) -> str:
    here, given = constructed(around)
    imports, constructor = (HERE_IMPORTS, UNCHANGED_CONSTRUCTOR) if here else ("", "")
    parts = {"imports": imports, "here": here, "constructor": Template(constructor).substitute(given=given)}
    return Template(UNCHANGED).substitute(version=__version__, **parts)


def constructed(around: Surroundings) -> tuple[str, str]:
    """What stands in front of `ModelNew` for its constructor's sake, and how that calls the original's."""
    if not around.own_arguments:
        return "", "super().__init__(*arguments, **named)"
    space = f"space = {OWN_GLOBALS}  # where this file's own classes are"
    call = "super().__init__(*_as_here(arguments, space, {}), **_as_here(named, space, {}))"
    return f"\n\n\n{here_text()}", f"{space}\n        {call}"


def with_kernels(joint: JointPlan, source: str, model: nn.Module, around: Surroundings) -> Emitted:
    """The file. Regions are written first, then `forward`: only then is known what is read of the model."""
    regions, plan, training = joint.regions, joint.plan, joint.training
    backward = Backward(joint.gradients, regions, joint.weights)
    values, signature = ForwardValues(regions, model, backward.convolved), Signature(plan.graph, model)
    launches = Launches(values, Shared())
    unused = {name for shortcut in plan.shortcuts for name in shortcut.steps} if training.original else set()  # training's alone
    kernels = [kernel for kernel in plan.every_kernel if label(kernel) not in unused]
    stated: set[str] = set()
    for kernel in kernels:
        launches.add(kernel, comment(kernel, plan, stated))
    launches.share_numbers()
    launchers = list(dict.fromkeys(name for kernel in kernels for name in launches.launchers(kernel)))
    functions = Functions(launches, values, joint, backward.functions)
    texts = [functions.unused(region) if label(region.kernels[0]) in unused else functions.text(region) for region in regions]
    texts += map(functions.shortcut_text, plan.shortcuts)
    forward = Forward(values, functions, signature)
    method = forward.text()
    assumptions = Assumptions(values, launches, functions, signature, forward, in_file=bool(source), training=training)
    units = [unit_of("_CUDA_SOURCE", "_KERNELS", launches.unit, launches.first(), launchers)]
    units = [replace(units[0], saving_name="_CUDA_SAVING")] if launches.apart else units
    if backward.kernels:
        units.append(unit_of("_CUDA_GRADIENTS", "_GRADIENT_KERNELS", backward.unit, backward.kernels, backward.kernels))
    features = {*functions.features, *assumptions.features, *assumptions.flags, *backward.flags}
    looks = plan.shortcuts or plan.graph.own_gradients or training.original or values.behind_changes()
    at_once = training.original and not plan.shortcuts
    there = {
        "needs gradients": looks, "trains": at_once or plan.graph.own_gradients, "trained": at_once, "copies": values.copies,
        "laid out": values.lays_out,
        "plain gradients": values.plain_gradients, "convolved": backward.convolved,
        "elsewhere": not source and assumptions.names_its_own, "model": True,
        "constants": values.constants, "packed": values.packs, "backward": backward.kernels, "apart": launches.apart,
        "steps": backward.steps, "unfit": backward.unfit, "versions": forward.versions,
        "unread fit": "unread" in features and not backward.unfit, "unread late": features >= {"unread", "late"},
        "many": max(len(launchers), len(backward.kernels)) > MANY,
        "saves early": "saves" in features and "late" not in features,
        "hopper": any(helper.on_hopper for helper in units[0].helpers),
    }  # fmt: skip
    features |= {name for name, needed in there.items() if needed}
    here, given = constructed(around)
    ours = Template(FILE).substitute(
        here=here,
        given=given,
        version=__version__,
        imports=chosen(IMPORTS, features),
        runtime=chosen(RUNTIME, features),
        guards=runtime_text(features),
        tables=assumptions.held_text().rstrip("\n"),
        cuda=units_text(units) + values.constants_text(),
        functions="\n\n\n".join(filter(None, [*texts, assumptions.planned_text()])),
        forward=method,
    )
    added = set(FORBIDDEN.findall(ours)) - set(FORBIDDEN.findall(without_forbidden_remarks(source)))
    assert not added, f"the emitted text holds the words {added}"
    known = together([fact for kernel in kernels for fact in facts(kernel, launches.launchers(kernel), plan)])
    nodes = {region.name: tuple(node.name for node in regions.reference_nodes(region)) for region in regions}
    launched = {kernel.name: launches.launchers(kernel)[0] for kernel in kernels}
    trained = {region.name: PYTORCH if training.original else joint.in_training(region) for region in regions if nodes[region.name]}
    referable = frozenset(region.name for region in regions if regions.referable(region))
    emitted = Emitted(behind(source, ours, around), known, (), nodes, launched)
    return replace(emitted, training=trained, referable=referable, weights=backward.weights())


def behind(source: str, ours: str, around: Surroundings) -> str:
    """The model's file, and what we add to it."""
    return with_surroundings(without_forbidden_remarks(source), ours.strip("\n") + "\n", around)
