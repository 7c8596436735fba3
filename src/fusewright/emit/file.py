"""Plan -> the text of one self-contained Python file, and what each of its kernels stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from torch import nn

from .. import __version__
from ..following import runtime_text
from ..gradient import Trace
from ..plan import Plan, label
from ..source import FORBIDDEN, without_forbidden_remarks
from ..training import AS_PREDICTED, PYTORCH, Training
from .assumptions import Assumptions
from .forward import Forward
from .functions import Functions
from .gradient import Gradients, find_gradients
from .kept import storing
from .kernels import KernelFacts, Shared, comment, cuda_text, facts, names_text, together
from .launches import Launches
from .regions import Regions, with_overwrites
from .signature import Signature
from .surroundings import Surroundings, with_surroundings
from .template import AS_IT_WAS, FILE, FOR_HOPPER, NEEDS_GRADIENTS, SIDE_BY_SIDE, TRAINS, UNCHANGED
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
    referable: frozenset[str] = frozenset()  # regions that PyTorch's operators could compute as a whole


def emit(
    plan: Plan,
    source: str,
    model: nn.Module,
    gradients: bool = True,
    around: Surroundings = ALONE,
    training: Training = AS_PREDICTED,
    traces: dict[str, Trace | None] | None = None,
) -> Emitted:
    gradients = gradients and not training.original and not plan.graph.own_gradients
    regions = Regions(with_overwrites(Regions(plan), model))
    backward = find_gradients(regions, model, training.by_pytorch, traces) if gradients else Gradients()
    training = replace(training, heavy=backward.heavy)
    regions = storing({name: gradient.kept for name, gradient in backward.regions.items()}, regions)
    calls = tuple(str(call.node.target) for call in plan.calls if call.node.target != "getitem")
    if not plan.every_kernel:
        return Emitted(behind(source, Template(UNCHANGED).substitute(version=__version__), around), (), calls)
    return with_kernels(regions, backward, source, model, calls, around, training)


def with_kernels(
    regions: Regions,
    backward: Gradients,
    source: str,
    model: nn.Module,
    calls: tuple[str, ...],
    around: Surroundings,
    training: Training,
) -> Emitted:
    """The file. Regions are written first, then `forward`: only then is known what is read of the model."""
    plan = regions.plan
    values, signature = ForwardValues(regions, model), Signature(plan.graph, model)
    launches = Launches(values, Shared())
    unused = {name for shortcut in plan.shortcuts for name in shortcut.steps} if training.original else set()  # training's alone
    kernels = [kernel for kernel in plan.every_kernel if label(kernel) not in unused]
    for kernel in kernels:
        launches.add(kernel, comment(kernel, plan))
    launches.share_numbers()
    launchers = list(dict.fromkeys(name for kernel in kernels for name in launches.launchers(kernel)))
    cuda = cuda_text(launches.unit, launches.first(), launchers)
    on_hopper = any(helper.on_hopper for helper in launches.unit.helpers(launches.first()))
    functions = Functions(launches, values, backward.regions, training)
    texts = [functions.unused(region) if label(region.kernels[0]) in unused else functions.text(region) for region in regions]
    regions_text = "\n\n\n".join([*filter(None, texts), *map(functions.shortcut_text, plan.shortcuts)])
    forward = Forward(values, functions, signature).text()
    assumptions = Assumptions(values, launches, backward.unit, signature, in_file=bool(source), training=training)
    looks = plan.shortcuts or plan.graph.own_gradients or training.original or values.behind_changes()
    asks = NEEDS_GRADIENTS if looks else ""
    asks += TRAINS if training.original and not plan.shortcuts else ""
    asks += AS_IT_WAS if values.copies else ""
    many = max(len(launchers), len(backward.kernels)) > MANY
    ours = Template(FILE).substitute(
        version=__version__,
        cuda=cuda,
        kernels=names_text(launchers),
        gradients=backward.text(),
        flags=assumptions.flags_text(),
        for_hopper=FOR_HOPPER if on_hopper else "",
        side_by_side=SIDE_BY_SIDE if many else "",
        options=(", *_for_hopper()" if on_hopper else "") + (", *_side_by_side()" if many else ""),
        held=assumptions.held_text(),
        follow=runtime_text(),
        constants=values.constants_text(),
        planned=assumptions.planned_text(),
        regions=asks + regions_text,
        forward=forward,
    )
    ours = re.sub(r"\n{4,}", "\n\n\n", ours)
    added = set(FORBIDDEN.findall(ours)) - set(FORBIDDEN.findall(without_forbidden_remarks(source)))
    assert not added, f"the emitted text holds the words {added}"
    known = together([fact for kernel in kernels for fact in facts(kernel, launches.launchers(kernel), plan)])
    nodes = {region.name: tuple(node.name for node in regions.meaning_nodes(region)) for region in regions}
    launched = {kernel.name: launches.launchers(kernel)[0] for kernel in kernels}
    trained = {region.name: PYTORCH if training.original else functions.in_training(region) for region in regions if nodes[region.name]}
    referable = frozenset(region.name for region in regions if regions.referable(region))
    emitted = Emitted(behind(source, ours, around), known, calls, nodes, launched)
    return replace(emitted, training=trained, referable=referable)


def behind(source: str, ours: str, around: Surroundings) -> str:
    """The model's file, and what we add to it."""
    return with_surroundings(without_forbidden_remarks(source), ours.strip("\n") + "\n", around)
