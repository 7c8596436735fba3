"""PyTorch's tracer, without work whose results nobody here reads."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import keyword
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import sympy
import torch
from torch.utils import _pytree as pytree

UNITS = "sympy.physics.units"


class NoUnits(ModuleType):
    """Stands for sympy's module of physical units, which is imported if asked for more than what a quantity is."""

    class Quantity(sympy.AtomicExpr):
        """A physical quantity, of which there is none."""

    def __init__(self) -> None:
        super().__init__(UNITS)
        self.__path__ = [f"{path}/physics/units" for path in sympy.__path__]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(UNITS), name)

    def leave(self) -> None:
        if sys.modules.get(UNITS) is self:
            del sys.modules[UNITS]


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """A trace in here gives the same graph, names and guards as elsewhere, sooner. What a version of PyTorch lacks is left alone."""
    import torch._dynamo  # which the exporter and fake tensors need: half a second
    import torch._export.utils as export_utils

    with contextlib.ExitStack() as stack:
        # Filling it takes a quarter of the time, and little is met again.
        stack.enter_context(torch._dynamo.config.patch(fake_tensor_cache_enabled=False))
        # The names of all operators made of others, looked up anew for each of PyTorch's two dozen libraries.
        if hasattr(export_utils, "_materialize_cpp_cia_ops"):
            once = functools.cache(export_utils._materialize_cpp_cia_ops)
            stack.enter_context(mock.patch.object(export_utils, "_materialize_cpp_cia_ops", once))
        stack.enter_context(mock.patch.object(torch._ops.OperatorBase, "py_impl", registration(torch._ops.OperatorBase.py_impl)))
        stack.enter_context(without_units())
        stack.enter_context(recurrent_layers_whole())
        stack.enter_context(losses_and_shrinks_whole())
        stack.enter_context(losses_as_composed())
        stack.enter_context(ctc_losses_sized())
        stack.enter_context(resizing_sized())
        if hasattr(torch.fx.graph, "_format_target"):
            stack.enter_context(mock.patch.object(torch.fx.graph, "_format_target", attribute))
        yield


def attribute(base: str, target: str) -> str:
    """An attribute as fx writes it, whatever it is called: a key of a ModuleDict may be a keyword or hold quotes."""
    for name in target.split("."):
        plain = name.isidentifier() and not keyword.iskeyword(name)
        base = f"{base}.{name}" if plain else f"getattr({base}, {name!r})"
    return base


@contextlib.contextmanager
def recurrent_layers_whole() -> Iterator[None]:
    """The sizes of a recurrent layer's results, without its steps: PyTorch learns them by going through the sequence."""
    import torch._decomp

    operators = [torch.ops.aten.gru.input, torch.ops.aten.lstm.input, torch.ops.aten.rnn_tanh.input, torch.ops.aten.rnn_relu.input]
    tables = [torch._decomp.decomposition_table, torch._decomp.meta_table]
    with contextlib.ExitStack() as stack:
        for table in tables:
            known = [operator for operator in operators if operator in table]
            stack.enter_context(mock.patch.dict(table, dict.fromkeys(known, recurrent_results)))
        for operator in operators:
            stack.enter_context(mock.patch.dict(operator.py_kernels, dict.fromkeys(operator.py_kernels, recurrent_results)))
            operator._dispatch_cache.clear()
            stack.callback(operator._dispatch_cache.clear)
        yield


@contextlib.contextmanager
def losses_and_shrinks_whole() -> Iterator[None]:
    """Operators that a trace would have by the formula of PyTorch's compilers, though they have a kernel and derivatives of their own
    that mean something else: a NaN in `multi_margin_loss`, second derivatives of `hardshrink`."""
    autograd = torch._C.DispatchKey.Autograd
    with contextlib.ExitStack() as stack:
        for operator in by_formula():
            others = {key: kernel for key, kernel in operator.py_kernels.items() if key != autograd}
            stack.enter_context(mock.patch.dict(operator.py_kernels, others, clear=True))
            operator._dispatch_cache.clear()
            stack.callback(operator._dispatch_cache.clear)
        yield


@contextlib.contextmanager
def losses_as_composed() -> Iterator[None]:
    """Losses of symbolic sizes by the operators that PyTorch itself composes them of. Its formulas in Python want the word for a
    reduction, are given its number, and fail of any but the mean."""
    import torch._decomp

    table = torch._decomp.decomposition_table
    named = [torch.ops.aten.margin_ranking_loss.default, torch.ops.aten.hinge_embedding_loss.default, torch.ops.aten.nll_loss.default]
    with mock.patch.dict(table):  # put back as it was
        for operator in named:
            table.pop(operator, None)
        yield


@contextlib.contextmanager
def ctc_losses_sized() -> Iterator[None]:
    """The sizes of a CTC loss. PyTorch takes them for a matter of values: of its second result, which only backward reads, one is."""
    import torch._subclasses.fake_impls as fake_impls

    known = getattr(fake_impls, "op_implementations_dict", {})
    operators = [getattr(torch.ops.aten._ctc_loss, overload) for overload in ("default", "Tensor")]
    with mock.patch.dict(known, dict.fromkeys(operators, ctc_results)):
        yield


def ctc_results(
    mode: Any, operator: Any, scores: torch.Tensor, targets: torch.Tensor, lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> tuple[torch.Tensor, ...]:
    """(loss of each sequence, what backward reads). A length that is a tensor's value is taken to be the longest that fits."""
    steps, batch = scores.shape[:2]
    for given in (lengths, target_lengths):
        torch._check((given.numel() if isinstance(given, torch.Tensor) else len(given)) == batch)
    longest = targets.shape[-1] if isinstance(target_lengths, torch.Tensor) else max(target_lengths, default=0)
    with mode:
        return scores.new_empty((batch,)), scores.new_empty((batch, steps, 2 * longest + 1))


RESIZES = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip


@contextlib.contextmanager
def resizing_sized() -> Iterator[None]:
    """The sizes of a resizing's gradient, which its arguments say. PyTorch asks kernels, which take no symbols."""
    import torch._subclasses.fake_impls as fake_impls

    known = getattr(fake_impls, "op_implementations_dict", {})
    operators = [getattr(torch.ops.aten, f"{name}_backward").default for name in RESIZES]
    with mock.patch.dict(known, dict.fromkeys(operators, before_resizing)):
        yield


def before_resizing(mode: Any, operator: Any, gradient: torch.Tensor, output_size: Any, input_size: Any, *options: Any) -> torch.Tensor:
    with mode:
        return gradient.new_empty(input_size)


@functools.cache
def by_formula() -> tuple[Any, ...]:
    """Operators with a formula in the place of their derivative, which PyTorch itself does not compose of others."""
    import torch._decomp

    autograd, composed = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd
    operators = [operator for operator in torch._decomp.decomposition_table if isinstance(operator, torch._ops.OpOverload)]
    return tuple(o for o in operators if autograd in o.py_kernels and composed not in o.py_kernels)


def recurrent_results(x: torch.Tensor, states: Any, parameters: Any, *options: Any) -> tuple[torch.Tensor, ...]:
    """Step after step in memory, whichever dimension comes first."""
    *_, both_ways, batch_first = options
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    features = (2 if both_ways else 1) * states[0].shape[-1]
    first, second = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    steps = x.new_empty((first, second, features))
    results = [steps.transpose(0, 1) if batch_first else steps, *map(torch.empty_like, states)]
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *parameters))
    return tuple(t.requires_grad_(needed) for t in results)


@contextlib.contextmanager
def batch_norms_whole() -> Iterator[None]:
    """The sizes of a batch norm's results, without its arithmetic: PyTorch learns them by a dozen operators on symbolic sizes, four
    times for each norm, which was half of the time that a residual network in training mode took to capture. Not for gradients,
    where what it computes is what is traced."""
    import torch._decomp.decompositions as decompositions

    if not hasattr(decompositions, "native_batch_norm_helper"):
        yield
        return
    with mock.patch.object(decompositions, "native_batch_norm_helper", batch_norm_results):
        yield


def batch_norm_results(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, functional: bool
) -> tuple[Any, ...]:
    """(normalised, mean and deviation of the batch, what the running statistics become). On the CPU, where models are captured,
    the batch's own are empty in evaluation."""
    channels = x.shape[1]
    torch._check(x.dim() >= 2)
    arithmetic = torch.promote_types(x.dtype, torch.float32)
    running = [old if old is None else old.new_empty(old.shape, dtype=torch.promote_types(arithmetic, old.dtype)) for old in (mean, var)]
    for old, new in zip((mean, var), running, strict=True):
        if training and not functional and old is not None:
            old.copy_(new)
    saved = [x.new_empty((channels,) if training else (0,)) for _ in range(2)]
    return (torch.empty_like(x), *saved, *running)


@contextlib.contextmanager
def folded_where_known() -> Iterator[None]:
    """Whether a product takes its rows together goes by what is known of strides. PyTorch asks the example as well, so a batch whose rows
    lie by chance as far apart as a table's was the only one planned for. Either way the product is the same."""
    import torch._decomp.decompositions as decompositions
    from torch.fx.experimental import symbolic_shapes

    known = getattr(symbolic_shapes, "statically_known_true", None)
    if known is None or not hasattr(decompositions, "should_fold") or not hasattr(symbolic_shapes, "guard_or_false"):
        yield
        return
    should_fold = decompositions.should_fold

    def folded(*given: Any, **named: Any) -> bool:
        with mock.patch.object(symbolic_shapes, "guard_or_false", known):
            return should_fold(*given, **named)

    with mock.patch.object(decompositions, "should_fold", folded):
        yield


class Hopeless(Exception):
    """A trace that would not be taken is not finished."""


@contextlib.contextmanager
def hopeless_beyond(is_bad: Callable[[torch.Tensor], bool], most: int) -> Iterator[None]:
    """A trace in here ends as soon as more than so many of its values are bad: windows cut from images whose sizes are symbols nest
    deeper with every block, and a network of twelve took 70 s before the same answer came."""
    import torch.fx.experimental.proxy_tensor as proxy_tensor

    described: Any = getattr(proxy_tensor, "_extract_tensor_metadata", None)
    if described is None:
        yield
        return
    found = 0

    def describe(value: torch.Tensor, *options: Any, **named: Any) -> Any:
        nonlocal found
        found += is_bad(value)
        if found > most:
            raise Hopeless
        return described(value, *options, **named)

    with mock.patch.object(proxy_tensor, "_extract_tensor_metadata", describe):
        yield


def alike_in(inputs: Any) -> list[int]:
    """Of the first and the first two dimensions: in which several tensors have the same size, in the last of them at least."""
    shapes = [leaf.shape for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    found = [[shape[dim] for shape in shapes if len(shape) > dim] for dim in (0, 1)]
    return [dim + 1 for dim, extents in enumerate(found) if len(set(extents)) < len(extents)]


@contextlib.contextmanager
def told_alike(model: torch.nn.Module, inputs: Any, dims: int) -> Iterator[None]:
    """Forward of the watched model, called in here, is told first that tensors which have one size in the example always have, in so many
    dimensions: batches. Where it is seen only later that two sizes are one, what was made of them before is a quotient of both
    (queries and keys of an attention, as heads of a batch)."""
    forward, given = vars(model)["forward"], pytree.tree_leaves(inputs)

    @functools.wraps(forward)
    def told(*arguments: Any, **named: Any) -> Any:
        first: dict[tuple[int, int], Any] = {}
        for leaf, example in zip(pytree.tree_leaves((arguments, named)), given, strict=False):
            for dim in range(min(dims, example.dim()) if isinstance(example, torch.Tensor) else 0):
                torch._check(first.setdefault((dim, example.shape[dim]), leaf.shape[dim]) == leaf.shape[dim])
        return forward(*arguments, **named)

    vars(model)["forward"] = told if dims else forward
    try:
        yield
    finally:
        vars(model)["forward"] = forward


@contextlib.contextmanager
def without_memory_formats() -> Iterator[None]:
    """Nodes do not say in which format their tensors lie: it takes long to prove of symbolic sizes. The tracer asks less about sizes
    then, and numbers in names count what it asked: some differ. Not for gradients, whose guards are told apart by who asked first."""
    import torch.fx.experimental.proxy_tensor as proxy_tensor

    described: Any = getattr(proxy_tensor, "_extract_tensor_metadata", None)
    if described is None or "include_contiguity" not in inspect.signature(described).parameters:
        yield
        return
    with mock.patch.object(proxy_tensor, "_extract_tensor_metadata", functools.partial(described, include_contiguity=False)):
        yield


def registration(py_impl: Any) -> Any:
    """`OperatorBase.py_impl` for dispatch keys, as it is, without the types in its signature: they are made anew for each of the
    twelve thousand calls with which PyTorch keeps composite operators whole."""
    from torch._C import DispatchKey

    def register(operator: Any, key: Any) -> Any:
        if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in operator.py_kernels:
            return py_impl(operator, key)

        def put(function: Any) -> Any:
            operator.py_kernels[key] = function
            operator._dispatch_cache.clear()
            return function

        return put

    return register


@contextlib.contextmanager
def without_units() -> Iterator[None]:
    """`sympy.simplify` asks at last whether there are physical units in its result, and imports all of them for it (0.11 s).
    Where nobody has imported them yet, there are none."""
    if UNITS in sys.modules:
        yield
        return
    units = sys.modules[UNITS] = NoUnits()
    try:
        yield
    finally:
        units.leave()
