"""nn.Module -> Graph, by torch.export: functional, with symbolic batch and spatial sizes, every argument normalised once."""

from __future__ import annotations

import ast
import collections
import contextlib
import copy
import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import sympy
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.export import Dim as ExportDim
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from ..errors import Unsupported
from ..ir import sizes
from ..ir.graph import Graph, Node, Ref, Where, map_refs
from . import stand_ins
from .cast_inside import cast_what_is_cast_inside
from .environment import environment_read
from .exported import HOMES, ExportReader, homes_of_results
from .following import _declared, _space
from .functional import functional
from .fx import FRAME
from .given import called_plainly, check_own_call, deep_copy, has_own_call
from .no_grad import detach_what_needs_no_gradient, detached_under_autocast
from .on_gpu import NAMED, differs_on_gpu
from .problem import shown
from .reads import (
    ASKED,
    LAYOUT,
    OF_MODULES,
    Counter,
    KeepsState,
    Watch,
    drawn,
    effects,
    executed,
    globals_of,
    inherited,
    is_installed,
    watched,
)
from .tracing import (
    Hopeless,
    alike_in,
    batch_norms_whole,
    folded_where_known,
    hopeless_beyond,
    lean,
    told_alike,
    without_memory_formats,
)
from .trees import Arguments

WRITTEN_IN_PLACE = (torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default)
MOST_QUOTIENTS = 16  # values with a size that is a quotient of sizes: of so many some stay, and no such graph is taken


def capture(model: nn.Module, inputs: Sequence[Any], file: str = "", dynamic: bool = True) -> Graph:
    """The model's forward on these inputs as a graph. Sizes are symbolic where the model allows it and `dynamic` asks for it.

    A model that keeps state is captured as it is after a first call: what is None before it has a shape then.
    """
    if has_own_call(model):
        with stand_ins.kept(model), torch.no_grad():
            check_own_call(model, Arguments(tuple(inputs), {}), _shown(file), lambda: _without_computing(model, inputs))
    with called_plainly(model):
        return _captured(model, inputs, file, dynamic)


def _captured(model: nn.Module, inputs: Sequence[Any], file: str, dynamic: bool) -> Graph:
    if "forward" in vars(model):
        what = "the model's constructor assigns self.forward, which hides the forward of its class, and would hide that of ModelNew"
        raise Unsupported(f"{_shown(file)}: {what}; let forward call what was chosen")
    first = _first_look(model, inputs)
    in_order = not first.asked.isdisjoint(LAYOUT)
    graph, watch = _capture(model, inputs, file, dynamic, in_order)
    watch.globals, watch.inherited, unsettled = first.globals, first.inherited, _unsettled(watch)
    if left := [name for name in first.changed if name not in watch.assigned]:
        raise Unsupported(_keeps_state(KeepsState(left[0], "which no graph carries"), file))
    if not first.named.isdisjoint(NAMED):
        _refuse_what_differs_on_gpu(model, inputs, file)
    if unsettled:
        _call_once(model, inputs)
        graph, watch = _capture(model, inputs, file, dynamic, in_order)
        watch.globals, watch.inherited = first.globals, first.inherited
        if left := _unsettled(watch):
            raise Unsupported(_keeps_state(KeepsState(left[0], "which each call makes of what it was"), file))
    in_grad_mode = not first.asked.isdisjoint(ASKED - LAYOUT) and _depends_on_grad_mode(model, inputs, file, dynamic, graph)
    counted = {name: value - before for name, (before, value) in _carried(watch).items() if not isinstance(value, Tensor)}
    if counted:
        _check_counters(model, inputs, file, graph, counted, dynamic)
    graph = _with_places(graph, model, watch.global_tensors())
    assigned = {name: tree for name, tree in graph.assigned.items() if name not in counted}
    rebound = {o.path: i for i, o in enumerate(graph.outputs) if o.kind == "buffer" and o.path in watch.rebound}
    outputs = tuple(replace(o, kind="return", path="") if o.path in rebound and o.kind == "buffer" else o for o in graph.outputs)
    leaves = frozenset(str(node.args[0]) for node in graph.nodes if node.is_leaf and node.target != "input")
    placed = frozenset(node.kwargs["global"] for node in graph.nodes if "global" in node.kwargs)
    reads = watch.reads(frozenset([*watch.assigned, *unsettled]), leaves, placed)
    others = any(node.target == "constant" and "global" not in node.kwargs for node in graph.nodes) and _trains_others(model, inputs)
    found = replace(graph, outputs=outputs, assigned={**assigned, **rebound}, counted=counted, reads=reads)
    return replace(found, trains_others=others, asks_layout=in_order, in_grad_mode=in_grad_mode)


@dataclass(frozen=True)
class _FirstLook:
    """What a run of the model that computes nothing shows of the user's functions."""

    globals: dict[tuple[str, str], Any]  # that they read
    changed: list[str]  # attributes and globals that a call changes
    asked: set[str]  # what they ask PyTorch
    named: set[str]  # all names in them
    inherited: dict[type, dict[str, Any]]  # methods that they reach by `super()`


def _first_look(model: nn.Module, inputs: Sequence[Any]) -> _FirstLook:
    """Before anything else runs the model: a list may grow with every call."""
    asked, named = set[str](), set[str]()
    at_first = drawn()

    def run() -> None:
        with torch.no_grad():
            _without_computing(model, inputs)

    own = type(model).__module__
    kinds = (list, dict, set, collections.deque, Tensor, int, float, str, type(None))
    mine = {("", name): value for name, value in _space(own).items() if isinstance(value, kinds) and name[:2] != "__"}
    try:
        with stand_ins.kept(model):
            first = effects(model, mine)
            codes = executed(run, asked, named)
            found = globals_of(codes, own)
        with stand_ins.kept(model):
            before = effects(model, found)  # of other modules it is known only now
            run()
            after = effects(model, {place: _now(place, own) for place in found})
            before |= {name: words for name, words in first.items() if name in after}
    except Exception:  # an operator that cannot run without values: what its methods name is all that is known
        changed = [name for name, words in drawn().items() if at_first.get(name) != words]
        codes = [(f.__code__, f.__globals__) for f in _functions_of(model)]
        named.update(name for code, _ in codes for name in code.co_names)
        return _FirstLook(globals_of(codes, own), changed, named & ASKED, named, inherited(model, [code for code, _ in codes]))
    changed = [name.removeprefix("self.") for name, words in after.items() if before.get(name) != words]
    return _FirstLook(found, changed, asked, named, inherited(model, [code for code, _ in codes]))


def _refuse_what_differs_on_gpu(model: nn.Module, inputs: Sequence[Any], file: str) -> None:
    def run(around: contextlib.AbstractContextManager[Any]) -> Any:
        with torch.no_grad(), stand_ins.kept(model):
            return _without_computing(model, inputs, around)

    if place := differs_on_gpu(run):
        where = f"{_shown(place[0])}:{place[1]}" if place[0] else _shown(file)
        why = "forward asks where its tensors are, and does something else on a GPU than on the CPU, where it is captured"
        raise Unsupported(f"{where}: {why}; let the constructor choose")


def _without_computing(
    model: nn.Module, inputs: Sequence[Any], around: contextlib.AbstractContextManager[Any] | None = None
) -> Any:
    """What forward returns, its tensors without values."""
    with quiet(), stand_ins.in_place(), contextlib.redirect_stdout(io.StringIO()):
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with lean(), batch_norms_whole(), fake:
            given = pytree.tree_map_only(Tensor, fake.from_tensor, list(inputs))
            with around or contextlib.nullcontext():
                return model(*given)


def _depends_on_grad_mode(model: nn.Module, inputs: Sequence[Any], file: str, dynamic: bool, graph: Graph) -> bool:
    """Forward asks, and does something else where gradients are not enabled. (A checkpoint computes the same.)"""
    with torch.no_grad():
        other, _ = _capture(model, inputs, file, dynamic)
    calls = [str(replace(one, nodes=tuple(replace(node, where=Where()) for node in one.nodes))) for one in (graph, other)]
    return calls[0] != calls[1]


def _trains_others(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """Results have gradients though no parameter and no input has: of layers in a plain list, of globals."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    detached = pytree.tree_map_only(Tensor, Tensor.detach, list(inputs))
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        with stand_ins.kept(model), torch.enable_grad():
            results = _without_computing(model, detached)
    except Exception:  # an operator that cannot run without values
        return False
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    return any(leaf.requires_grad for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor))


def _now(place: tuple[str, str], own: str) -> Any:
    owner, _, name = place[1].rpartition(".")
    space = _space(place[0] or own)
    return getattr(space.get(owner), name, None) if owner else space.get(name)


def _functions_of(model: nn.Module) -> list[Any]:
    classes = {cls for module in model.modules() for cls in type(module).__mro__ if not is_installed(cls.__module__)}
    return [f for cls in classes for name, f in vars(cls).items() if hasattr(f, "__code__") and name != "__init__"]


def _with_places(graph: Graph, model: nn.Module, tensors: Mapping[tuple[str, str], Tensor]) -> Graph:
    """Constants that are parameters or buffers of the model, reached through a container, are those; others that are tensors under a
    global name say so: they are read there in each call."""
    parts = {path: ("parameter", p) for path, p in model.named_parameters()} | {path: ("buffer", b) for path, b in model.named_buffers()}
    leaves = {node.args[0]: node.name for node in graph.nodes if node.target in ("parameter", "buffer")}
    nodes: list[Node] = []
    same: dict[str, Ref] = {}
    for node in graph.nodes:
        value = node.kwargs.get("value") if node.target == "constant" else None
        if value is not None:
            path, (kind, _) = next(((n, p) for n, p in parts.items() if _same_memory(p[1], value)), ("", ("", None)))
            places = [place for place, tensor in tensors.items() if _same_memory(tensor, value)]
            if path in leaves:
                same[node.name] = Ref(leaves[path])
                continue
            if path:
                node, leaves[path] = replace(node, target=kind, args=(path,), kwargs={}), node.name
            elif places:
                node = replace(node, kwargs={**node.kwargs, "global": places[0]})
        nodes.append(node)
    if not same:
        return replace(graph, nodes=tuple(nodes))
    moved = [replace(n, args=map_refs(n.args, same), kwargs=map_refs(dict(n.kwargs), same)) for n in nodes]
    first = [n for n in moved if n.is_leaf]
    outputs = tuple(replace(o, value=map_refs(o.value, same)) for o in graph.outputs)
    return replace(graph, nodes=(*first, *(n for n in moved if not n.is_leaf)), outputs=outputs).check()


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def _carried(watch: Watch) -> dict[str, tuple[Any, Any]]:
    """Attributes that forward reads and then assigns: as they were and as they are."""
    found = {}
    for path, value in watch.assigned.items():
        holder, _, name = path.rpartition(".")
        if name in watch.seen.get(holder, {}):
            found[path] = watch.seen[holder][name], value
    return found


def _unsettled(watch: Watch) -> list[str]:
    """Of these, what is no tensor before and after, and no number that could be a count."""
    kinds = ((Tensor,), (int,))
    return [
        path
        for path, (before, after) in _carried(watch).items()
        if not any(isinstance(before, kind) and isinstance(after, kind) for kind in kinds) or isinstance(after, bool)
    ] + [path for path in watch.assigned if _has_of_its_class(watch.model, path)]


def _has_of_its_class(model: nn.Module, path: str) -> bool:
    """The class gives what forward assigned, as long as the module has none of its own: a default, a property that is computed once."""
    holder, _, name = path.rpartition(".")
    module = model.get_submodule(holder)
    return name not in vars(module) and _declared(type(module), name) is not None


def _call_once(model: nn.Module, inputs: Sequence[Any]) -> None:
    """The attributes of its modules as a first call leaves them; parameters and buffers stay."""
    called = deep_copy(model)
    with quiet(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        called(*copy.deepcopy(list(inputs)))
    for path, module in model.named_modules():
        after = vars(called.get_submodule(path))
        vars(module).update({name: value for name, value in after.items() if name not in OF_MODULES and not isinstance(value, nn.Module)})


def _fault_of(model: nn.Module, inputs: Sequence[Any]) -> Exception | None:
    """What its forward raises where nobody captures it."""
    try:
        with quiet(), stand_ins.kept(model), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            model(*copy.deepcopy(list(inputs)))
    except Exception as error:
        return error
    return None


def _check_counters(
    model: nn.Module, inputs: Sequence[Any], file: str, graph: Graph, counted: Mapping[str, int], dynamic: bool
) -> None:
    """Numbers that forward adds to may be left out of the graph where it is the same whatever they are, and nothing looks at them."""
    used: list[str] = []
    holders = {path: (vars(model.get_submodule(path.rpartition(".")[0])), path.rpartition(".")[2]) for path in counted}
    before = {path: home[name] for path, (home, name) in holders.items()}
    try:
        for path, (home, name) in holders.items():
            home[name] = Counter.at(before[path] + 1009, used)
        other, watch = _capture(model, inputs, file, dynamic)
    finally:
        for path, (home, name) in holders.items():
            home[name] = before[path]
    for path, step in counted.items():
        added = int.__sub__(watch.assigned[path], before[path] + 1009) if path in watch.assigned else None
        positions = {position for p in counted for position in pytree.tree_leaves(graph.assigned[p])}
        same = str(_without(graph, positions)) == str(_without(other, positions))
        if used or added != step or not same:
            raise Unsupported(_keeps_state(KeepsState(path, "a number that its results depend on"), file))


def _without(graph: Graph, positions: set[int]) -> Graph:
    return replace(graph, outputs=tuple(o for i, o in enumerate(graph.outputs) if i not in positions))


def _keeps_state(error: KeepsState, file: str) -> str:
    """The sentence, with the line that does it."""
    line = assigned_at(file, re.split(r"[. ]", error.attribute)[-1])
    return f"{_shown(file)}:{line}: {error}" if line else f"{_shown(file)}: {error}"


def _shown(file: str) -> str:
    return shown(Path(file)) if file else "the model"


def assigned_at(file: str, attribute: str) -> int | None:
    """The first line of a method, other than the constructor, that assigns the attribute, or at least names it."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name != "__init__"]
    every = [n for method in methods for n in ast.walk(method) if isinstance(n, ast.Attribute)]
    named = [n for n in every if attribute in (n.attr, getattr(n.value, "id", ""))]
    stored = [n for n in named if isinstance(n.ctx, ast.Store)]
    return min((n.lineno for n in stored or named), default=None)


def _capture(model: nn.Module, inputs: Sequence[Any], file: str, dynamic: bool, in_order: bool = False) -> tuple[Graph, Watch]:
    """`in_order`: it depends on how inputs and parameters lie in memory, too. Where that fixes the first size of an input, what is square
    may be so of any size (an adjacency, a mask): as features of a row its second size would fix its first, and others."""
    found = _capture_with(_dynamic_dims, model, inputs, file, dynamic, in_order)
    first = [shape[0] for shape in (found[0][name].shape for name in found[0].inputs) if shape]
    fixed = any(isinstance(size, int) and size > 1 for size in first)
    if not dynamic or not fixed or not any(map(_is_square, pytree.tree_leaves(list(inputs)))):
        return found
    try:
        other = _capture_with(_dynamic_squares, model, inputs, file, dynamic, in_order)
    except Unsupported:
        return found
    return max(found, other, key=lambda made: _free_sizes(made[0]))


def _free_sizes(graph: Graph) -> int:
    return sum(not isinstance(size, int) for name in graph.inputs for size in graph[name].shape or ())


def _capture_with(
    dynamic_dims: Callable[[Any], dict[int, Any] | None], model: nn.Module, inputs: Sequence[Any], file: str, dynamic: bool, in_order: bool
) -> tuple[Graph, Watch]:
    given = tuple(inputs)
    every = tuple(pytree.tree_map(dynamic_dims, argument) for argument in given)
    batches = tuple(pytree.tree_map(_dynamic_batch, argument) for argument in given)
    failure: Exception | None = None
    odd: torch.fx.Node | None = None
    taken: list[str] = []
    symbolic = [(every, 0), *((every, dims) for dims in alike_in(given)), (batches, 0)] if dynamic else []
    for shapes, dims in (*symbolic, (None, 0)):  # static sizes where symbolic ones cannot be had or say too little
        try:
            with (
                quiet(),
                stand_ins.in_place(),
                stand_ins.kept(model),
                own_functions() as own,
                gradients_taken() as taken,
                watched(model) as watch,
                environment_read() as watch.environment,
                told_alike(model, given, dims),
                stand_ins.sizes_whole(model),
            ):
                exported = _export(model, given, shapes)
            odd = _made_of_values(exported)
            if odd is None and (shapes is None or _divides_by_numbers(exported)):
                graph = ExportReader(exported, inputs, file, bool(watch.assigned), in_order).graph()
                graph = replace(graph, own_gradients=bool(own) or any(map(_has_none, graph.nodes)))
                if shapes is None or _can_be_written(graph):
                    return graph.check(), watch
            failure = None  # it can be exported: what symbolic sizes failed of is not what is wrong
        except Hopeless:
            continue
        except KeepsState as error:
            raise Unsupported(_keeps_state(error, file)) from error
        except Exception as error:  # the exporter raises many kinds
            failure = error
    if failure is None:
        frames = FRAME.findall((odd.meta.get("stack_trace") or "") if odd is not None else "")
        mine = [(line, code.strip()) for path, line, code in frames if file and path == file]
        place, line = (f"{_shown(file)}:{mine[-1][0]}", f" (`{mine[-1][1]}`)") if mine else (_shown(file), "")
        raise Unsupported(f"{place}: the values of a tensor become a number or a size here{line}, so the model is not one graph")
    if isinstance(failure, Unsupported):  # a sentence already
        raise failure
    if taken:
        raise Unsupported(f"{_shown(taken[0])}: forward takes gradients itself, which no graph carries") from failure
    fault = _fault_of(model, given)  # the model's own, then: in eager's words, with the sizes that it was given
    raise Unsupported(_why_not(fault or failure, file, fault is not None)) from fault or failure


def _has_none(node: Node) -> bool:
    """PyTorch differentiates a complex tensor written in place, but not what takes its place in a graph."""
    return node.target in WRITTEN_IN_PLACE and node.dtype is not None and node.dtype.is_complex


def _export(model: nn.Module, inputs: tuple[Any, ...], shapes: Any) -> torch.export.ExportedProgram:
    hopeless = hopeless_beyond(_has_quotient, MOST_QUOTIENTS) if shapes is not None else contextlib.nullcontext()
    with lean(), without_memory_formats(), batch_norms_whole(), folded_where_known(), hopeless:
        with detached_under_autocast():
            exported = torch.export.export(model, inputs, strict=False, dynamic_shapes=shapes)
        detach_what_needs_no_gradient(exported.graph_module)
        cast_what_is_cast_inside(exported.graph_module)
        places = places_of_parts(exported.graph_module)
        homes = homes_of_results(exported)  # as operators in place leave them
        found = functional(exported)
    found.graph_module.meta[HOMES] = homes
    for node in found.graph.nodes:
        frame = FRAME.findall(node.meta.get("stack_trace") or "")[-1:]
        if frame and frame[0][0].startswith("<eval_with_key>"):
            node.meta["stack_trace"] = places.get(frame[0][2], "")
    return found


@contextlib.contextmanager
def own_functions() -> Iterator[list[type]]:
    """The classes whose `apply` is called meanwhile: functions that define their own derivative. PyTorch's own tell the truth of theirs."""
    found: list[type] = []
    apply = torch.autograd.Function.__dict__["apply"].__func__

    def seen(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch."):
            found.append(cls)
        return apply(cls, *args, **kwargs)

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(seen)):
        yield found


@contextlib.contextmanager
def gradients_taken() -> Iterator[list[str]]:
    """Where `torch.autograd.grad` is called meanwhile."""
    found: list[str] = []
    grad = torch.autograd.grad

    def seen(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        found.append(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        return grad(*args, **kwargs)

    with mock.patch.object(torch.autograd, "grad", seen):
        yield found


def _can_be_written(graph: Graph) -> bool:
    """Sizes, numbers made of them, and what the tracer took for granted about them have a text: 1.5 times a size has none."""
    given = [(node.shape or (), node.args, dict(node.kwargs)) for node in graph.nodes]
    return all(map(sizes.printable, {*graph.guards, *(e for e in pytree.tree_leaves(given) if isinstance(e, sympy.Basic))}))


def places_of_parts(module: torch.nn.Module) -> dict[str, str]:
    """By the text that the tracer made of it: where in the model's file a part under no_grad has its nodes from.

    Such a part is traced again from that text, and its nodes are then said to stand there.
    """
    found: dict[str, str] = {}
    for part in (m for m in module.modules() if isinstance(m, torch.fx.GraphModule) and m is not module):
        lines = {line.strip().partition(" = ")[0].partition(":")[0]: line.strip() for line in part.code.splitlines()}
        found |= {lines[node.name]: node.meta.get("stack_trace") or "" for node in part.graph.nodes if node.name in lines}
    return found


def _dynamic_dims(argument: Any) -> dict[int, Any] | None:
    """Batch and spatial sizes vary; the channel dimension of an image and the features of a row are fixed."""
    if not isinstance(argument, torch.Tensor):
        return None
    rank = argument.dim()
    fixed = {1} if (rank >= 4 or rank == 2) and argument.is_floating_point() else set()
    return {dim: ExportDim.STATIC if dim in fixed else ExportDim.AUTO for dim in range(rank)}


def _is_square(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.dim() == 2 and argument.shape[0] == argument.shape[1] > 1


def _dynamic_squares(argument: Any) -> dict[int, Any] | None:
    """Both sizes of what is square vary, too."""
    return dict.fromkeys(range(2), ExportDim.AUTO) if _is_square(argument) else _dynamic_dims(argument)


def _dynamic_batch(argument: Any) -> dict[int, Any] | None:
    """The first size varies, no other."""
    if not isinstance(argument, torch.Tensor):
        return None
    return {dim: ExportDim.STATIC if dim else ExportDim.AUTO for dim in range(argument.dim())}


def _divides_by_numbers(exported: torch.export.ExportedProgram) -> bool:
    """No size is a quotient of two sizes: of such a one little can be proved, and testing the guards would take long."""
    values = [value for node in exported.graph.nodes for value in pytree.tree_leaves(node.meta.get("val"))]
    return not any(isinstance(value, torch.Tensor) and _has_quotient(value) for value in values)


def _has_quotient(value: torch.Tensor) -> bool:
    extents: list[Any] = list(value.shape)
    symbolic = [sizes.whole(size.node.expr) for size in extents if isinstance(size, torch.SymInt)]
    return any(part.args[1].free_symbols for size in symbolic for part in size.atoms(FloorDiv, Mod, PythonMod))


def _made_of_values(exported: torch.export.ExportedProgram) -> torch.fx.Node | None:
    """The first call with a size or a number that cannot be read off an input, not even as a function of what can."""
    plain: set[sympy.Symbol] = set()
    first: dict[sympy.Symbol, torch.fx.Node] = {}
    for node in exported.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, torch.Tensor) else [value]
            for size in sizes:
                if isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    expression = size.node.expr
                    for symbol in expression.free_symbols:
                        first.setdefault(symbol, node)
                    if node.op == "placeholder" and expression.is_Symbol:
                        plain.add(expression)
    return next((node for symbol, node in first.items() if symbol not in plain), None)


def _why_not(error: Exception, file: str, by_itself: bool = False) -> str:
    """One sentence: where in the user's file, and why. `by_itself`: forward raised it with nobody capturing."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if file and frame.filename == file]
    place = f"{_shown(file)}:{mine[-1].lineno}" if mine else _shown(file)
    text = str(error).strip()
    line = f" (`{mine[-1].line}`)" if mine and mine[-1].line else ""
    if isinstance(error, DynamicOutputShapeException):
        return f"{place}: the shape of what {error.func} gives depends on the values of a tensor{line}, so the model is not one graph"
    if isinstance(error, DataDependentOutputException):
        return f"{place}: {error.func} makes a number of the values of a tensor here{line}, so the model is not one graph"
    if "data-dependent" in text or "GuardOnDataDependent" in type(error).__name__:
        return f"{place}: the control flow here depends on the values of a tensor{line}, so the model is not one graph"
    first = text.splitlines()[0].replace("'FakeTensor' object", "'Tensor' object") if text else type(error).__name__  # as the user knows it
    raised_there = by_itself or (bool(mine) and frames[-1] is mine[-1])
    what = "forward() raised" if raised_there else "this model cannot be captured:"
    return f"{place}: {what} {type(error).__name__}: {first}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter's own warnings, and the graphs it prints when it gives up, are not for the user."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
