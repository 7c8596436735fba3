"""A model read and rewritten, and from there to the text of a file for each set of choices."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..autograd import plan_joint
from ..autograd.trace import Trace
from ..emit import Emitted, emit
from ..emit.surroundings import Surroundings, surroundings
from ..frontend.collector import uncollected
from ..frontend.problem import Problem
from ..ir.graph import Graph
from ..ir.plan import Plan
from ..ops.lower import lower
from ..options import Options
from ..schedule.fusion import take_over
from ..schedule.layout import channels_last, copied, with_copies
from ..schedule.planner import plan
from ..schedule.training import FORWARD_ONLY
from ..target.machine import H200, Machine
from ..verify.precision import FLAGS, Precision
from .tuning.choices import Choices


@dataclass(frozen=True)
class Front:
    """A model read and rewritten: what every way of running it has in common."""

    problem: Problem
    options: Options
    model: nn.Module
    captured: Graph
    graph: Graph
    rules: tuple[Any, ...]
    precision: Precision = FLAGS
    machine: Machine = H200
    notes: tuple[str, ...] = ()  # what capture has to say
    traces: dict[str, Trace | None] = field(default_factory=dict)  # of gradients: variants of one graph share them

    @uncollected()
    def finish(self, choices: Choices, gradients: bool = True) -> tuple[Plan, Emitted]:
        left = frozenset(self.graph.index) if choices.plain else choices.left
        made = self.planned(self.graph, left, choices)
        graph = with_copies(self.graph, made, left) if choices.channels_last and not choices.plain else self.graph
        made = made if graph is self.graph else self.planned(graph, left, choices)
        made = replace(made, captured=self.captured)
        gradients = gradients and self.options.gradients and not self.options.forward_only
        training = FORWARD_ONLY if self.options.forward_only else choices.training
        traces = self.traces if graph is self.graph else {}
        joint = plan_joint(made, self.model, gradients, training, traces)
        emitted = emit(joint, self.problem.source, self.model, self.around)
        return made, replace(emitted, place=new_file(self.problem, self.options))

    @functools.cached_property
    def around(self) -> Surroundings:
        return surroundings(self.problem, new_file(self.problem, self.options))

    def planned(self, graph: Graph, left: frozenset[str], choices: Choices) -> Plan:
        own = frozenset[str]() if choices.plain else choices.own
        precision = replace(self.precision, bf16_parts=choices.bf16_parts, scaled=choices.scaled)
        if not choices.channels_last:
            made = plan(lower(graph, left), self.rules, machine=self.machine)
            return take_over(replace(made, precision=precision), own, choices.stored)
        made = plan(copied(lower(graph, left)), self.rules, channels_last=True, machine=self.machine)
        made = replace(made, precision=precision)
        made = take_over(made, own, choices.stored, channels_last=True)
        return channels_last(replace(made, shortcuts=()))  # these read rows of plain memory


def new_file(problem: Problem, options: Options) -> Path:
    """Where the file that is written for a model is to stand."""
    return options.output or problem.path.with_name(f"{problem.path.stem}_new.py")
