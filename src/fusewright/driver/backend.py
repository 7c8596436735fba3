"""`torch.compile(model, backend="fusewright")`: a backend of TorchDynamo, by AOTAutograd, found through its entry point.

Each graph that AOTAutograd makes (inference, forward, backward) becomes kernels, or is left to Inductor or to PyTorch's operators. Which
it was, and why, is logged (`fusewright.backend`) and kept: `fusewright.backend.stats()`.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..autograd.trace import EXTREMES, NORMS, formulas
from ..errors import Refused, first_line
from ..frontend.fx import argument_names
from ..frontend.whole import FIRST_RESULTS
from ..options import Options
from ..words import counted
from .graphs import Boxed, Ours, compile_fx_graph

aten = torch.ops.aten
log = logging.getLogger("fusewright.backend")

FALLBACKS = ("auto", "inductor", "eager")
OF_A_RUN = ("target", "precision", "arithmetic", "arch", "assume_finite")  # of `Options`
OWN = ("fallback", "strict")

# What such an operator saves, its backward alone knows how to read: PyTorch's formula for it saves something else.
WITH_THEIR_OWN_BACKWARD = [target for target in formulas() if "_scaled_dot_product" in target.name()]

FUSEWRIGHT, INDUCTOR, EAGER = "fusewright", "inductor", "eager"


@dataclass(frozen=True)
class BackendOptions:
    """What `options={…}` of torch.compile may say.

    `fallback`: who runs a graph that is not ours: "inductor", "eager", or "auto": Inductor where it has its compiler.
    `strict`: a fault of ours is raised; else it is warned of, and the graph falls back.
    The others are those of `Options`; without a target only tensors on a GPU go through kernels.
    """

    run: Options = field(default_factory=Options)
    fallback: str = "auto"
    strict: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BackendOptions:
        given = dict(given or {})
        if unknown := sorted(set(given) - {*OF_A_RUN, *OWN}):
            raise Refused(f"backend fusewright: no option {unknown[0]!r}; there are {', '.join([*OF_A_RUN, *OWN])}")
        if given.get("fallback", "auto") not in FALLBACKS:
            raise Refused(f"backend fusewright: fallback {given['fallback']!r} is not one of {', '.join(FALLBACKS)}")
        own = {name: given.pop(name) for name in OWN if name in given}
        return cls(Options(**given), **own)

    @property
    def target(self) -> str:
        return "host" if self.run.target == "host" else "cuda"


# ---- what became of graphs


@dataclass(frozen=True)
class CompiledGraph:
    """One graph, and who runs it."""

    kind: str  # inference | forward | backward | whole: of Dynamo, before AOTAutograd
    by: str  # fusewright | inductor | eager
    why: str = ""  # where it is not ours
    ours: Ours | None = None

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(fact.name for fact in self.ours.emitted.kernels) if self.ours is not None else ()

    @property
    def source(self) -> str:
        """The Python and CUDA that was written for it."""
        return self.ours.emitted.text if self.ours is not None else ""

    @property
    def launched(self) -> Counter[str]:
        """Its kernels by how often they were launched, on the host target."""
        return self.ours.launched if self.ours is not None else Counter()

    def __str__(self) -> str:
        if self.ours is None:
            return f"{self.kind}: {self.by} ({self.why})"
        return f"{self.kind}: {counted(len(self.kernels), 'kernel')}, {counted(len(self.ours.emitted.calls), 'library call')}"


@dataclass(frozen=True)
class Stats:
    """The graphs that were compiled since the last `reset_stats`."""

    graphs: tuple[CompiledGraph, ...]

    def count(self, by: str) -> int:
        return sum(graph.by == by for graph in self.graphs)

    @property
    def launched(self) -> Counter[str]:
        return sum((graph.launched for graph in self.graphs), Counter[str]())

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "no graph was compiled"


_calls: list[list[CompiledGraph]] = []  # the graphs of each call of the backend
_keeping = threading.Lock()


def stats() -> Stats:
    """What became of the graphs that torch.compile(backend="fusewright") compiled in this process.

    >>> compiled = torch.compile(model, backend="fusewright", options={"target": "host"})
    >>> result = compiled(x)
    >>> print(fusewright.backend.stats())
    inference: 1 kernel, 1 library call
    """
    with _keeping:
        return Stats(tuple(graph for found in _calls for graph in found))


def reset_stats() -> None:
    with _keeping:
        _calls.clear()


# ---- the backend


class NotOurs(Exception):
    """The forward of a graph of Dynamo has no kernel of ours: Inductor takes the whole of it, before AOTAutograd."""


def fusewright(module: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str = "") -> Any:
    """The compiler that Dynamo calls with each graph."""
    chosen = BackendOptions.of(options)
    if mode:
        raise Refused(f"backend fusewright: no mode {mode!r}; its options are {', '.join([*OF_A_RUN, *OWN])}")
    found: list[CompiledGraph] = []
    with _keeping:
        _calls.append(found)
    compiler = _Compiler(chosen, found, argument_names(module))
    if why := elsewhere(module, inputs, chosen.target):
        return compiler.left_whole(module, inputs, why)
    training = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(module, inputs))
    try:
        return compiler.by_aot(module, inputs, training)
    except NotOurs as error:
        found.clear()
        return compiler.left_whole(module, inputs, str(error))


def tensors_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Tensor]:
    yield from (value for value in inputs if isinstance(value, Tensor))
    yield from module.parameters()
    yield from module.buffers()


def elsewhere(module: torch.fx.GraphModule, inputs: Sequence[Any], target: str) -> str:
    """Why no kernel could run: no tensor is where they do."""
    kinds = {tensor.device.type for tensor in tensors_of(module, inputs)}
    wanted = "cpu" if target == "host" else "cuda"
    return "" if wanted in kinds else f"its tensors are on {', '.join(sorted(kinds)) or 'no device'}, and kernels run on {wanted}"


class _Compiler:
    """Compiles the graphs of one call of the backend, and backward's perhaps later."""

    def __init__(self, options: BackendOptions, found: list[CompiledGraph], called: Sequence[str]):
        self.options, self.found, self.called = options, found, called

    def by_aot(self, module: torch.fx.GraphModule, inputs: Sequence[Any], training: bool) -> Any:
        from torch._dynamo.backends.common import aot_autograd

        compiled = aot_autograd(
            fw_compiler=functools.partial(self.compile, "forward"),
            bw_compiler=functools.partial(self.compile, "backward"),
            inference_compiler=functools.partial(self.compile, "inference"),
            decompositions=decompositions(training),
            partition_fn=partition,
        )
        return compiled(module, inputs)

    def compile(self, kind: str, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
        """A forward or backward graph of aten operators."""
        by_operators = boxed(module)
        try:
            target, run, seen = self.options.target, self.options.run, outputs_seen(kind, module)
            ours = compile_fx_graph(module, target, run, seen, kind == "backward", by_operators, self.called)
        except Refused as error:
            return self.left(kind, module, inputs, first_line(error), by_operators)
        except Exception as error:  # a fault of ours
            if self.options.strict:
                raise
            warnings.warn(f"fusewright: the {kind} graph is left to others: {type(error).__name__}: {first_line(error)}", stacklevel=2)
            return self.left(kind, module, inputs, f"a fault: {type(error).__name__}: {first_line(error)}", by_operators)
        self.keep(CompiledGraph(kind, FUSEWRIGHT, ours=ours))
        return ours.run

    def left(self, kind: str, module: torch.fx.GraphModule, inputs: Sequence[Any], why: str, by_operators: Boxed) -> Boxed:
        """A graph of AOTAutograd that is not ours."""
        if not self.by_inductor(inputs):
            self.keep(CompiledGraph(kind, EAGER, why))
            return by_operators
        if kind != "backward":
            raise NotOurs(why)
        self.keep(CompiledGraph(kind, INDUCTOR, why))
        return backward_by_inductor(module, inputs)

    def left_whole(self, module: torch.fx.GraphModule, inputs: Sequence[Any], why: str) -> Any:
        """A graph of Dynamo that is not ours."""
        inductor = self.by_inductor(list(tensors_of(module, inputs)))
        self.keep(CompiledGraph("whole", INDUCTOR if inductor else EAGER, why))
        if not inductor:
            return module.forward
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(module, list(inputs))

    def by_inductor(self, inputs: Sequence[Any]) -> bool:
        if self.options.fallback != "auto":
            return self.options.fallback == "inductor"
        kinds = {value.device.type for value in inputs if isinstance(value, Tensor)}
        return all(map(inductor_works, kinds or {"cpu"}))

    def keep(self, graph: CompiledGraph) -> None:
        log.info("%s", graph)
        with _keeping:
            self.found.append(graph)


def decompositions(training: bool) -> dict[Any, Callable[..., Any]]:
    """What AOTAutograd takes apart: what has no record of ours. Random numbers are drawn as eager draws them.

    Where no gradients are asked for, operators stay whole of which only the first result is read (`frontend/whole.py`); in training the
    others are saved for backward, so norms are formulas there.
    """
    left = {aten.bernoulli.default, *WITH_THEIR_OWN_BACKWARD, *(() if training else FIRST_RESULTS)}
    return {target: formula for target, formula in {**formulas(), **NORMS}.items() if target not in left}


def partition(joint: torch.fx.GraphModule, inputs: Any, **others: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Forward and backward of a joint graph, as Inductor cuts it: cheap values are recomputed in backward. Maxima and what they are
    compared with are saved: two kernels need not round alike."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if node.target in EXTREMES:
            for value in (node, node.args[0]):
                value.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, **others)


def outputs_seen(kind: str, module: torch.fx.GraphModule) -> range:
    """Positions of outputs that leave compiled code; others are saved activations, or gradients, whose layout nobody sees."""
    if kind == "backward":
        return range(0)
    count = len(module.graph.output_node().args[0])  # type: ignore[arg-type]
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return range(count if kind == "inference" or metadata is None else metadata.num_forward)


# ---- who runs the others


def boxed(module: torch.fx.GraphModule) -> Boxed:
    """PyTorch's operators, one after another."""

    def run(arguments: list[Any]) -> Sequence[Any]:
        given = list(arguments)
        arguments.clear()
        return module(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def backward_by_inductor(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Boxed:
    """A graph of our decompositions, in those that Inductor expects."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(module, decomposition_table=select_decomp_table(), _allow_non_fake_inputs=True)(*inputs)
    compiled: Any = compile_fx_inner(traced, list(inputs), is_backward=True)
    return compiled


@functools.cache
def inductor_works(device: str) -> bool:
    """It has what it compiles with for this kind of device."""
    try:
        if device == "cuda":
            from torch.utils._triton import has_triton

            return bool(has_triton())
        from torch._inductor.cpp_builder import get_cpp_compiler

        return device == "cpu" and bool(get_cpp_compiler())
    except Exception:  # Inductor's own, of a compiler that is not there
        return False
