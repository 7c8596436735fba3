"""One FX graph of AOTAutograd -> a function that runs it by kernels: read, rewrite, lower, plan, emit, build."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..emit.graph import NAME, GraphText, emit_graph
from ..errors import Unsupported
from ..frontend.capture import quiet
from ..frontend.collector import uncollected
from ..frontend.fx import FxGraph, read_fx, sizes_of
from ..frontend.whole import whole
from ..host.library import HostLibrary
from ..host.loaded import on_host
from ..ir import sizes
from ..ir.plan import Plan
from ..laws.rewrite import rewrite
from ..ops.lower import lower
from ..options import Options
from ..schedule.bit_exact import bit_exact
from ..schedule.conv_fusion import tf32_allowed
from ..schedule.fusion import take_over
from ..schedule.grouping import Cyclic
from ..schedule.library import Convolution, convolution_of
from ..schedule.planner import plan
from ..target.detect import machine_for
from ..verify.library_arithmetic import library_of
from ..verify.precision import FLAGS, Precision

Boxed = Callable[[list[Any]], Sequence[Any]]  # of the flat arguments, in a list that it empties

NOTHING_TRIED = "in a graph nothing is tried out"  # why operands are split wherever the library is exact


@dataclass(frozen=True)
class Ours:
    """A graph in kernels."""

    run: Boxed
    emitted: GraphText
    library: HostLibrary | None  # where its kernels run on the CPU

    @property
    def launched(self) -> Counter[str]:
        """Kernels of the host by how often they were launched so far."""
        return Counter() if self.library is None else Counter(self.library.launched)


@uncollected()
def compile_fx_graph(
    module: torch.fx.GraphModule,
    target: str,
    options: Options,
    seen: Collection[int],
    backward: bool,
    otherwise: Boxed,
    called: Sequence[str] = (),
    apart: bool = False,
) -> Ours:
    """`seen` are the outputs that leave compiled code; `called` is what the user calls the arguments. A call for which the kernels
    are not meant (a flag that was changed, tensors larger than they address) runs `otherwise`. With `apart` no result lies in memory of
    another or of an argument.

    Raises `Unsupported` where the graph cannot be read, and where no kernel of ours would run in it.
    """
    with quiet():
        read = read_fx(module, called)
        read = replace(read, shares=(frozenset(),) * len(read.shares)) if apart else read
        on_target(read, module, target)
        try:
            made = planned(read, options, replace(precision_of(module, target, options), arithmetic=options.arithmetic), backward)
            emitted = emit_graph(made, read, seen, owns_inputs=backward)
        except (Cyclic, sizes.Unprintable) as error:
            raise Unsupported(f"no plan: {error}") from error
    with _disable_current_modes():  # fake tensors are for the tracer
        space, library = loaded(emitted.text, target)
    return Ours(runner(space, read, otherwise, target), emitted, library)


def on_target(read: FxGraph, module: torch.fx.GraphModule, target: str) -> None:
    kinds = {fx.meta["val"].device.type for fx in module.graph.find_nodes(op="placeholder") if isinstance(fx.meta.get("val"), Tensor)}
    kinds |= {constant.device.type for constant in read.constants}
    wanted = "cpu" if target == "host" else "cuda"
    if kinds != {wanted}:
        raise Unsupported(f"its tensors are on {', '.join(sorted(kinds))}, and kernels run on {wanted}")


def planned(read: FxGraph, options: Options, precision: Precision, backward: bool) -> Plan:
    graph, applied = rewrite(whole(read.graph), options)
    lowered = lower(graph)
    if backward:
        exact = bit_exact(lowered)  # what is compared for equality
        if exact is None:
            raise Unsupported("values are compared for equality that two kernels would not compute alike")
        lowered = exact
    made = replace(plan(lowered, applied, machine=machine_for(options.arch)), precision=precision)
    made = replace(take_over(made), shortcuts=())  # these stand beside steps that training would take
    if not made.kernels:
        raise Unsupported("no kernel of ours would gain on PyTorch's operators")
    return made


def precision_of(module: torch.fx.GraphModule, target: str, options: Options) -> Precision:
    """As exact as the library: a graph has no module that could be tried out, so operands are split wherever the library is exact."""
    if options.precision == "flags" or not tf32_allowed():
        return FLAGS
    found: dict[Convolution, tuple[int, ...]] = {}
    for fx in module.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default):
        args = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in fx.args]
        x: Any = args[0]
        convolution = convolution_of(torch.ops.aten.convolution.default, args, {})
        if convolution is not None and x.dtype is torch.float32:
            found.setdefault(convolution, tuple(s if isinstance(s, int) else int(s.node.hint) for s in x.shape))
    if not found:
        return FLAGS
    with _disable_current_modes():
        library = library_of(found, torch.device("cpu" if target == "host" else "cuda"))
    return Precision(library, split=True, why=NOTHING_TRIED)


def loaded(text: str, target: str) -> tuple[ModuleType, HostLibrary | None]:
    """The text as a module, its kernels built; in no table of modules, so that it goes with whoever holds it."""
    name = f"fusewright_graph_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    space = ModuleType(name)
    exec(compile(text, f"<{name}>", "exec"), vars(space))
    if target == "host":
        return space, on_host(space, "a graph of torch.compile")
    space._library(space._CUDA_SOURCE)
    return space, None


def runner(space: ModuleType, read: FxGraph, otherwise: Boxed, target: str) -> Boxed:
    """What AOTAutograd calls."""
    function, planned_for = vars(space)[NAME], vars(space)["_planned_for"]
    positions, constants, on_gpu = read.tensors, read.constants, target != "host"
    one_size = read.sizes[0].position if len(read.sizes) == 1 and read.sizes[0].dim is None else None

    def run(arguments: list[Any]) -> Sequence[Any]:
        values = (arguments[one_size],) if one_size is not None else sizes_of(read, arguments)
        tensors = [arguments[position] for position in positions]
        tensors += constants
        device = tensors[0].device
        if not planned_for(values, device):
            return otherwise(arguments)
        arguments.clear()
        if on_gpu and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                return function(values, tensors)
        return function(values, tensors)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
