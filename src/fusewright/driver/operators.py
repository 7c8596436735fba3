"""A model in kernels as registered operators (`torch.library`): what `torch.export`, `torch.compile` and packaging can hold on to.

One namespace, `fusewright::`. A model has up to three operators, each a graph with kernels of its own, named by a hash of their texts:
`infer_…`, and for training `forward_…`, which also returns saved activations, and `backward_…`. Each takes a list of tensors (the model's
parameters and buffers, then its inputs) and returns a list; none of the results lies in memory of another or of an argument.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from ..errors import Refused, Unsupported, first_line
from ..frontend.capture import quiet
from ..frontend.given import check_module
from ..frontend.problem import check_input
from ..options import Options
from ..words import counted
from .backend import boxed, decompositions, log, partition
from .graphs import Ours, compile_fx_graph

aten = torch.ops.aten
NAMESPACE = "fusewright"
TENSOR = object()  # stands for one among a model's inputs
RENAMED = (aten.detach.default, aten.alias.default)

exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)  # which PyTorch 2.6 lacks

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_known: dict[str, Operator] = {}


@dataclass(frozen=True)
class Operator:
    """One registered operator, and the graph that it runs."""

    name: str  # in the namespace
    ours: Ours | None  # None: PyTorch's operators run the graph
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]  # shape, strides, type of each result
    overload: Any = None  # what PyTorch calls

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(fact.name for fact in self.ours.emitted.kernels) if self.ours is not None else ()

    @property
    def launched(self) -> Counter[str]:
        """On the host target, by how often."""
        return self.ours.launched if self.ours is not None else Counter()


class Operated(nn.Module):
    """A model whose forward is one registered operator, for inputs like those that it was made with; others run the model itself.

    Its parameters and buffers are the model's own, read in each call. The plan is for the model as it was: it is meant for a model that is
    done, to be exported, packaged or compiled on top. Attributes, submodules and hooks that are changed later are not looked at.
    """

    def __init__(self, model: nn.Module, planned: Planned):
        super().__init__()
        self.model, self.planned = model, planned
        self.training = model.training

    def forward(self, *inputs: Any, **named: Any) -> Any:
        planned = self.planned
        if named:
            return self.model(*inputs, **named)
        state = [*self.model.parameters(), *self.model.buffers()]
        tensors = [*state, *(value for value in inputs if isinstance(value, Tensor))]
        if (not torch.compiler.is_compiling() and transformed()) or not planned.fits(self.model, inputs, tensors):
            return self.model(*inputs)
        operator = planned.infer
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors) and not for_inference(self.model):
            if planned.forward is None or not planned.gives_gradients(tensors):
                return self.model(*inputs)
            operator = planned.forward
        return pytree.tree_unflatten(operator.overload(tensors)[: planned.results], planned.structure)

    def extra_repr(self) -> str:
        found = [self.planned.infer, self.planned.forward, self.planned.backward]
        return ", ".join(f"{operator.name}: {counted(len(operator.kernels), 'kernel')}" for operator in found if operator is not None)


@dataclass(frozen=True)
class Planned:
    """The operators of a model, and what they are for."""

    infer: Operator
    forward: Operator | None
    backward: Operator | None
    results: int
    structure: Any
    inputs: tuple[Any, ...]  # as given, with TENSOR for each tensor
    kinds: tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]  # of all tensors
    required: tuple[bool, ...]  # of which of them gradients were asked for
    modes: tuple[bool, ...]  # whether each submodule trains

    def __deepcopy__(self, memo: Any) -> Planned:
        return self  # operators are there once

    def __reduce__(self) -> Any:
        raise TypeError("registered operators stay in their process: save the model, and call fusewright.as_operator where it is loaded")

    def gives_gradients(self, tensors: list[Tensor]) -> bool:
        """Of all that ask for one."""
        return all(known or not tensor.requires_grad for tensor, known in zip(tensors, self.required, strict=True))

    def fits(self, model: nn.Module, inputs: tuple[Any, ...], tensors: list[Tensor]) -> bool:
        if len(inputs) != len(self.inputs) or len(tensors) != len(self.kinds):
            return False
        for given, planned in zip(inputs, self.inputs, strict=True):
            plain = planned is not TENSOR
            if isinstance(given, Tensor) == plain or (plain and (type(given) is not type(planned) or given != planned)):
                return False
        for tensor, (shape, dtype, device) in zip(tensors, self.kinds, strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype is not dtype or tensor.device != device:
                return False
        if torch.is_autocast_enabled(self.kinds[0][2].type):
            return False
        return tuple([module.training for module in model.modules()]) == self.modes


def for_inference(model: nn.Module) -> bool:
    """A program is exported of a model that does not train: PyTorch traces it as if gradients were asked for."""
    return not model.training and exporting()


def transformed() -> bool:
    """torch.func, forward-mode differentiation or torch.jit.trace is at work: it goes through the model's own operators."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch._C._is_tracing()


def as_operator(model: nn.Module, inputs: Sequence[Any] | Tensor, *, strict: bool = False, **options: Any) -> Operated:
    """The model with a forward that is one registered operator: it can be exported, packaged, and compiled on top.

    >>> operated = fusewright.as_operator(model.eval(), [x], target="host")
    >>> program = torch.export.export(operated, (x,))

    Sizes are those of the example. The model may not change its buffers (a batch norm in training does) and takes tensors and plain
    values. What cannot be had is refused with a sentence (`fusewright.Refused`). A fault of ours is warned of, and PyTorch's operators run
    the graph; with `strict` it is raised.
    """
    chosen = Options(**options)
    target = "host" if chosen.target == "host" or (chosen.target == "auto" and not torch.cuda.is_available()) else "cuda"
    check_module(model)
    name, inputs = type(model).__name__, [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for position, value in enumerate(inputs):
        check_input(value, name, f"input {position}")
    given = [value for value in inputs if isinstance(value, Tensor)]
    state = dict([*model.named_parameters(), *model.named_buffers()])
    tensors = [*state.values(), *given]
    if not tensors:
        raise Refused("a model without tensors has no operator")
    structure: list[Any] = []

    def flat(*values: Tensor) -> list[Tensor]:
        rest = iter(values[len(state) :])
        arguments = [next(rest) if isinstance(value, Tensor) else value for value in inputs]
        result = torch.func.functional_call(model, dict(zip(state, values, strict=False)), tuple(arguments))
        leaves, spec = pytree.tree_flatten(result)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise Unsupported("the model returns something that is no tensor")
        structure[:] = [spec]
        return leaves

    register = functools.partial(registered, target=target, options=chosen, strict=strict)
    infer = register("infer", traced(flat, tensors, training=False))
    forward = backward = None
    if any(tensor.requires_grad for tensor in tensors):
        forward, backward = trained(traced(flat, tensors, training=True), tensors, len(infer.shapes), register)
    kinds = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors)
    required = tuple(t.requires_grad for t in tensors)
    modes = tuple(module.training for module in model.modules())
    known = tuple(TENSOR if isinstance(value, Tensor) else value for value in inputs)
    planned = Planned(infer, forward, backward, len(infer.shapes), structure[0], known, kinds, required, modes)
    return Operated(model, planned)


def traced(function: Callable[..., Any], tensors: list[Tensor], training: bool) -> torch.fx.GraphModule:
    """Of aten operators, with the gradients of results as further inputs and gradients as further outputs where it trains."""
    from torch._functorch.aot_autograd import aot_export_joint_simple

    try:
        with quiet(), torch.set_grad_enabled(training):
            found: Any = aot_export_joint_simple(
                function, tuple(tensors), trace_joint=training, decompositions=decompositions(training)
            )
    except Refused:
        raise
    except Exception as error:  # the tracer raises many kinds
        if "input mutations" in str(error):
            what = "forward changes a buffer or an input (a batch norm in training does), which an operator may not"
            raise Unsupported(f"this model is no operator: {what}") from error
        raise Unsupported(f"this model is no operator: {type(error).__name__}: {first_line(error)}") from error
    return found


# ---- registration


def registered(
    kind: str, module: torch.fx.GraphModule, gradient: str = "", *, target: str, options: Options, strict: bool
) -> Operator:
    """The operator that runs a graph; `gradient` says what gives its gradients, in words that are part of its hash."""
    values = [node.meta["val"] for node in module.graph.output_node().args[0]]  # type: ignore[union-attr]
    seen = range(len(values))  # all: a fake tensor says how each lies
    ours: Ours | None = None
    by_operators = boxed(module)
    try:
        ours = compile_fx_graph(module, target, options, seen, kind == "backward", by_operators, apart=True)
    except Refused as error:
        log.info("%s: by PyTorch's operators (%s)", kind, first_line(error))
    except Exception as error:  # a fault of ours
        if strict:
            raise
        warnings.warn(f"fusewright: PyTorch's operators run the {kind} graph: {type(error).__name__}: {first_line(error)}", stacklevel=3)
    text = ours.emitted.text if ours is not None else module.code
    shapes = tuple((tuple(map(int, v.shape)), tuple(map(int, v.stride())), v.dtype) for v in values)
    name = f"{kind}_{hashlib.sha256(f'{text}{shapes}{target}{gradient}'.encode()).hexdigest()[:16]}"
    if name not in _known:
        operator = Operator(name, ours, shapes)
        define(operator, ours.run if ours is not None else by_operators, differentiable=kind == "forward")
        _known[name] = replace(operator, overload=getattr(torch.ops.fusewright, name).default)
    return _known[name]


def define(operator: Operator, run: Callable[[list[Any]], Sequence[Any]], differentiable: bool) -> None:
    """Registers it. One that is differentiable gets its gradient from `trained`."""
    name = operator.name
    whole = f"{NAMESPACE}::{name}"
    by_operators = operator.ours is None

    def compute(tensors: list[Tensor]) -> list[Tensor]:
        found = list(run(list(tensors)))
        return apart(found, tensors) if by_operators else found

    def fake(tensors: list[Tensor]) -> list[Tensor]:
        device = tensors[0].device
        return [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in operator.shapes]

    _library.define(f"{name}(Tensor[] tensors) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(whole, fake, lib=_library)
    if not differentiable:
        torch.library.register_autograd(whole, functools.partial(no_gradient, name), lib=_library)


def no_gradient(name: str, ctx: Any, *upstream: Any) -> None:
    """Of what is for inference, and of gradients themselves."""
    raise RuntimeError(f"{NAMESPACE}::{name} has no gradient: call the model itself where a derivative of this is asked for")


def apart(results: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Each in memory that no argument and no other result has."""
    taken = {tensor.untyped_storage()._cdata for tensor in tensors}
    found: list[Tensor] = []
    for result in results:
        own = result.clone() if result.untyped_storage()._cdata in taken else result
        taken.add(own.untyped_storage()._cdata)
        found.append(own)
    return found


def trained(
    joint: torch.fx.GraphModule, tensors: list[Tensor], results: int, register: Callable[..., Operator]
) -> tuple[Operator, Operator]:
    """Forward, with saved activations, and backward, which autograd runs behind it."""
    fakes = [node.meta["val"] for node in joint.graph.find_nodes(op="placeholder")]
    forward, backward = partition(joint, fakes, num_fwd_outputs=results)
    smooth = with_gradients(joint, len(tensors), results)
    sources, asked = saved_values(forward, results), gradients_asked(backward)
    second = register("backward", backward)
    first = register("forward", forward, f"{second.name} {sources} {smooth} {asked}")

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        (given,) = inputs
        ctx.save_for_backward(*(given[i] if kind == "input" else output[i] for kind, i in sources))
        ctx.device = output[0].device
        ctx.set_materialize_grads(False)

    def gradient(ctx: Any, upstream: list[Tensor | None]) -> list[Tensor | None]:
        given = [*ctx.saved_tensors]
        for number in smooth:
            shape, _, dtype = first.shapes[number]
            there = upstream[number]
            given.append(torch.zeros(shape, dtype=dtype, device=ctx.device) if there is None else there)
        found = iter(second.overload(given))
        return [next(found) if there else None for there in asked]

    if first.name not in _differentiable:
        torch.library.register_autograd(f"{NAMESPACE}::{first.name}", gradient, setup_context=setup_context, lib=_library)
        _differentiable.add(first.name)
    return first, second


_differentiable: set[str] = set()


def with_gradients(joint: torch.fx.GraphModule, tensors: int, results: int) -> list[int]:
    """The results whose gradients a joint graph takes, behind the model's tensors."""
    taken = joint.graph.find_nodes(op="placeholder")[tensors:]
    numbers = [getattr(getattr(node.meta.get("desc"), "output", None), "idx", None) for node in taken]
    if None not in numbers:  # this version of PyTorch says so
        return [int(number) for number in numbers if number is not None]
    values = [node.meta["val"] for node in joint.graph.output_node().args[0][:results]]  # type: ignore[union-attr,index]
    floating = [number for number, value in enumerate(values) if value.is_floating_point()]
    if len(floating) != len(taken):
        raise Unsupported("only some of the model's results have gradients")
    return floating


def saved_values(forward: torch.fx.GraphModule, results: int) -> list[tuple[str, int]]:
    """Where each saved activation is had: among the arguments, or among the outputs. What is only another name of an argument or of an
    output is no output of its own; the graph is changed so."""
    end = forward.graph.output_node()
    outputs: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    arguments = forward.graph.find_nodes(op="placeholder")
    kept: list[Any] = outputs[:results]
    sources: list[tuple[str, int]] = []
    for value in outputs[results:]:
        source = value
        while source.op == "call_function" and source.target in RENAMED:
            source = source.args[0]
        if source in arguments:
            sources.append(("input", arguments.index(source)))
            continue
        if source not in kept:
            kept.append(source)
        sources.append(("output", kept.index(source)))
    end.args = (tuple(kept),)
    forward.graph.eliminate_dead_code()
    forward.recompile()
    return sources


def gradients_asked(backward: torch.fx.GraphModule) -> list[bool]:
    """Which tensors backward gives gradients of; the graph is changed so that it returns these alone."""
    end = backward.graph.output_node()
    outputs: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    end.args = (tuple(value for value in outputs if value is not None),)
    backward.recompile()
    return [value is not None for value in outputs]

