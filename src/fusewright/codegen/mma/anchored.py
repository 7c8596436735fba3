"""Kernels whose anchor is a convolution: the pointwise chains around it as the bodies that conv.py asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import sympy

from ...ir import functions as fn
from ...ir import sizes, stmt
from ...ir.cpp import AS_IT_IS, Spelling
from ...ir.expr import Expr, Field, Function, Grouped, Name, Pointer, as_expr, element, equal, method, names_in
from ...ir.graph import Dim, Graph
from ...ir.index import Axis, Coordinate
from ...ir.plan import Kernel, Plan
from ...ir.prims import C_TYPES, Coordinates, Prim
from ...ir.stmt import Assign, Declare, Do, For, If, Return, Statement, block, const, names_declared, names_read
from ...target.helpers import Helper
from ...target.machine import Machine
from ..loops import text
from ..loops.accumulators import WORDS, accumulators, kind_of
from ..loops.evaluator import Evaluator, converted_to
from ..loops.scope import Level, pointer
from ..loops.walk import row_at
from .anchor import Anchor, Fused, arithmetic, axes_for, input_sizes, rows_and_batch
from .conv import Conv, Epilogue, OverPositions, Param, Pointwise, can_be_opened, conv_kernel
from .conv_spec import VALUE
from .conv_tiles import best_tile, for_sizes
from .depthwise import depthwise_kernel, is_depthwise
from .product import Product, most_split_rows, product_kernel, product_tile
from .shortened import shortened
from .weight_gradient import GradientTile, WeightGradient, gradient_tile, weight_gradient_kernel


def body_of(
    anchor: Anchor,
    kernel: Kernel,
    plan: Plan,
    *,
    root: str,
    leaf: str,
    shape: tuple[Any, ...],
    at: Coordinates | None = None,
    row: bool = False,
    totals: dict[str, Expr] | None = None,
    taken: frozenset[str] = frozenset(),
    may_shift: bool = False,
) -> Pointwise:
    """The chain from `leaf` (the element in a register) to `root`, at one element; for a row, from the reduced value.

    `totals` gives each reduced value where the element is still there beside it; `taken` are names that another
    body of the same kernel has. With `may_shift` a constant may be left out of the result, which says so.
    """
    prims = plan.lowered.prims
    if root == leaf:
        return Pointwise()
    here = at if at is not None else axes_for(shape)
    if row:
        here = row_at(
            tuple(Coordinate() if d in kernel.reduced else x for d, x in enumerate(axes_for(shape))),
            kernel,
            prims[root],
        )
    everywhere = frozenset({"n", "c", "d", "h", "w"})
    fixed, channel, of_element = Level(frozenset()), Level(frozenset({"n", "c"})), Level(everywhere)
    loads = [name for name in kernel.loads if name != leaf]
    evaluator = Evaluator(prims, loads, [fixed, channel, of_element], vector=False)
    evaluator.index = "long long"
    of_product = isinstance(anchor.conv, Product)  # in float32, of many rows: nothing is coarse, or prepared for a sample
    evaluator.inside, evaluator.names = True, evaluator.names | taken
    evaluator.results[leaf] = VALUE
    if not row and totals is None:
        evaluator.results[anchor.value] = VALUE
    evaluator.results |= totals or {}
    members = [m for a in accumulators(kernel, prims) for m in a.members] if kernel.is_reduce else []
    for member in members:
        evaluator.results.setdefault(member, VALUE)
    result = evaluator.value(root, here)
    final = converted_to(result, prims[root])
    exact, hoist = of_product or is_depthwise(anchor.conv) or anchor.conv.is_split, not row and not of_product
    shorter = shortened(
        fixed.body + channel.body, of_element.body, final, hoist=hoist, exact=exact, may_shift=may_shift
    )
    statements = [*shorter.kept, *shorter.element]
    in_tables = [statement for table in shorter.tables for statement in table.statements]
    read = names_read([*statements, *in_tables]) | names_in(shorter.final)
    names = [name for name in loads if pointer(name) in read]
    params = [Param(Pointer(C_TYPES[prims[n].dtype], const=True), pointer(n), n) for n in names]
    params += [Param("int", str(s)) for s in sorted(evaluator.symbols, key=str)]
    setup = tuple(evaluator.declare_sizes("int"))
    return Pointwise(shorter.final, tuple(statements), tuple(params), setup, shorter.tables, shorter.left_out)


@dataclass(frozen=True)
class Launch:
    """One call of a launcher: what it is handed, as Python, in rows of which each may have a remark."""

    kernel: str
    rows: tuple[tuple[tuple[str, ...], str], ...]
    part: str = ""  # of the kernel: what the launcher's name ends with

    @property
    def name(self) -> str:
        return f"{self.kernel}{self.part}"


@dataclass(frozen=True)
class AnchoredText:
    """The CUDA of one anchored kernel, and how it is launched."""

    source: str
    shape: str  # the source with its own names numbered: kernels of the same shape are one kernel with other arguments
    comment: tuple[str, ...]  # what stands above it
    calls: frozenset[str]  # the words in it by which device helpers are called
    support: tuple[Helper, ...]
    shared_bytes: int
    sizes: tuple[str, ...]  # Python that says how large the workspace is to be
    workspace: tuple[tuple[str, Dim], ...]  # what launches take besides tensors, in floats
    launches: tuple[Launch, ...]
    tile: Any
    tensor_cores: bool = True  # and so a GPU that has them
    tf32: bool = True  # and the flag that allows convolutions to round to it

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(launch.name for launch in self.launches)

    def launched_as(self, kernel: str) -> AnchoredText:
        """The same launches of a kernel that stands in the file by another name."""
        return replace(self, launches=tuple(replace(launch, kernel=kernel) for launch in self.launches))


def anchored_kernel(
    kernel: Kernel, fused: Fused, plan: Plan, comment: list[str], argument: Any, own: str, open_inputs: bool = False
) -> AnchoredText:
    """`argument(primitive)` is the Python name of a tensor in memory; `own` ends the names of what is not one. With `open_inputs`
    the number of input channels is an argument, where it can be."""
    prims, anchor = plan.lowered.prims, fused.anchor
    if isinstance(anchor.conv, Product):
        return anchored_product(kernel, fused, plan, comment, argument, own)
    if isinstance(anchor.conv, WeightGradient):
        return anchored_weight_gradient(kernel, anchor, plan, comment, argument, own)
    conv = replace(anchor.conv, saves=anchor.value in kernel.stores[1:])
    if is_depthwise(conv):
        made = depthwise_kernel(kernel.name, conv, fused.epilogue, plan.machine)
    else:
        conv = for_sizes(conv, fused.epilogue, input_sizes(anchor, plan), plan.machine)
        tile = best_tile(conv, fused.epilogue, input_sizes(anchor, plan), plan.machine)
        conv = replace(conv, open_inputs=open_inputs and can_be_opened(conv, fused.epilogue, tile))
        if conv.dtype == "float32":
            comment = [*comment, f"  {arithmetic(replace(anchor, conv=conv), plan)}"]
        made = conv_kernel(kernel.name, conv, fused.epilogue, tile, plan.machine)
    batch, _, *spatial = prims[anchor.input].shape
    size_texts = {"batch": sizes.text(batch), "in_channels": str(anchor.conv.in_channels)}
    size_texts |= dict(zip(("in_d", "in_h", "in_w")[3 - len(spatial) :], map(sizes.text, spatial), strict=True))
    workspace: dict[str, Dim] = {
        f"{name}{own}": sizes.tidy(int(floats) + made.per_sample.get(name, 0) * batch) for name, floats in made.workspace.items()
    }
    counts: list[str] = []
    if isinstance(fused.epilogue.reduce, OverPositions):
        assert made.slices is not None
        holds_together = isinstance(batch, int) or batch.is_Symbol
        counts.append(f"slices{own} = {made.slices.format(batch=sizes.text(batch) if holds_together else f'({sizes.text(batch)})')}")
        words = anchor.conv.out_channels * WORDS[fused.epilogue.reduce.accumulator]
        slices = sympy.Symbol(f"slices{own}", integer=True, positive=True)
        workspace[f"partials{own}"] = sizes.tidy(words * batch * slices)
    handed = []
    for param in made.launcher_args:
        name = param.name
        if name in ("input", "weight", "bias"):
            handed.append(argument(getattr(anchor, name)))
        elif name == "out":
            handed.append(kernel.stores[0])  # what is stored beside a reduction stands first
        elif name == "saved":
            handed.append(anchor.value)
        elif name in size_texts:
            handed.append(size_texts[name])
        elif param.tensor:
            handed.append(argument(param.tensor))
        else:  # of this kernel alone, or a size
            handed.append(f"{name}{own}" if name in ("partials", "slices", *made.workspace) else name)
    source, calls, launches = made.source, made.calls, [Launch(kernel.name, ((tuple(handed), ""),))]
    numbered = fused.epilogue.renamed(numbers_of(fused.epilogue.bodies))
    shape = depthwise_kernel("@", conv, numbered) if made.tile is None else conv_kernel("@", conv, numbered, made.tile)
    shapes = [shape.source]
    if isinstance(fused.epilogue.reduce, OverPositions):
        merge, merged, launch = merge_kernel(kernel, fused, plan, argument, size_texts, own)
        remark = f"// Merges the partial results of {kernel.name}, in a fixed order."
        source += f"\n{remark}\n{spelled(merge, AS_IT_IS)}"
        calls = calls.union(*(function.calls for function in merge))
        shapes.append(spelled(merge, text.Numbered(merged)))
        launches.append(launch)
    return AnchoredText(
        source,
        "\n".join(shapes),
        tuple(comment),
        calls,
        made.support,
        made.smem,
        tuple(counts),
        tuple(workspace.items()),
        tuple(launches),
        made.tile,
        tensor_cores=made.tile is not None,
        tf32=anchor.conv.dtype == "float32" and anchor.conv.tf32,
    )


def anchored_product(kernel: Kernel, fused: Fused, plan: Plan, comment: list[str], argument: Any, own: str) -> AnchoredText:
    """As above, for a matrix product."""
    saves = fused.anchor.value in kernel.stores[1:]
    anchor = replace(fused.anchor, conv=replace(fused.anchor.conv, saves=saves))
    *batch, in_matrix, columns = anchor.out_shape if anchor.conv.batched else (1, 1, anchor.out_shape[-1])
    rows = sizes.tidy(sizes.product(anchor.out_shape[:-1]))
    hint, many = rows_and_batch(anchor, plan)
    tile = product_tile(anchor.conv, hint, many, plan.machine)
    most = most_split_rows(anchor.conv, tile, hint, plan.machine) if tile.splits > 1 and not isinstance(rows, int) else None
    made = product_kernel(kernel.name, anchor.conv, fused.epilogue, tile, most)
    shape = product_kernel("@", anchor.conv, fused.epilogue.renamed(numbers_of(fused.epilogue.bodies)), tile, most)
    texts = {"out": kernel.stores[0], "saved": anchor.value, "sums": f"sums{own}"}
    texts |= {"rows": sizes.text(in_matrix if anchor.conv.batched else rows), "batch": sizes.text(sizes.product(tuple(batch)))}
    texts |= {"depth": sizes.text(anchor.depth), "columns": sizes.text(columns)}
    handed = []
    for param in made.launcher_args:
        name = param.name
        if name in ("input", "weight", "bias"):
            handed.append(argument(getattr(anchor, name)))
        elif param.tensor:
            handed.append(argument(param.tensor))
        else:
            handed.append(texts.get(name, name))
    few = rows if most is None else sympy.Min(rows, most)
    workspace = {f"sums{own}": sizes.tidy(tile.splits * anchor.conv.columns * few)} if tile.splits > 1 else {}
    return AnchoredText(
        made.source, shape.source, tuple(comment), made.calls, made.support, made.smem, (), tuple(workspace.items()),
        (Launch(kernel.name, ((tuple(handed), ""),)),), tile, tf32=False,
    )  # fmt: skip


def anchored_weight_gradient(
    kernel: Kernel, anchor: Anchor, plan: Plan, comment: list[str], argument: Any, own: str
) -> AnchoredText:
    """As above, for the gradient of a convolution's weight."""
    batch, _, *positions = map(plan.graph.hint, anchor.shapes[0])
    tile = gradient_tile(anchor.conv, batch, tuple(positions), plan.machine)
    assert tile is not None  # who made the anchor has asked
    texts = {"upstream": argument(anchor.input), "input": argument(anchor.weight), "out": kernel.stores[0], "sums": f"sums{own}"}
    named = (("batch", "out_d", "out_h", "out_w"), ("", "in_d", "in_h", "in_w"))
    for axes, (first, _, *spatial) in zip(named, anchor.shapes, strict=True):
        texts |= dict(zip(axes, map(sizes.text, (first, *[1] * (3 - len(spatial)), *spatial)), strict=True))
    text = weight_gradient_text(kernel.name, anchor.conv, tile, plan.machine, [*comment, f"  {arithmetic(anchor, plan)}"])
    handed = tuple(texts[name] for name in text.launches[0].rows[0][0])
    workspace = tuple((f"{name}{own}", words) for name, words in text.workspace)
    return replace(text, workspace=workspace, launches=(Launch(kernel.name, ((handed, ""),)),))


def weight_gradient_text(
    name: str, gradient: WeightGradient, tile: GradientTile, machine: Machine, comment: list[str]
) -> AnchoredText:
    """The kernel by itself: its launch is handed what the launcher calls its arguments."""
    made, shape = (weight_gradient_kernel(called, gradient, tile, machine) for called in (name, "@"))
    workspace = tuple((buffer, sizes.tidy(int(words))) for buffer, words in made.workspace.items())
    handed = tuple(param.name for param in made.launcher_args)
    return AnchoredText(
        made.source, shape.source, tuple(comment), made.calls, made.support, made.smem, (), workspace,
        (Launch(name, ((handed, ""),)),), tile, tf32=gradient.tf32,
    )  # fmt: skip


def merge_kernel(
    kernel: Kernel, fused: Fused, plan: Plan, argument: Any, size_texts: dict[str, str], own: str
) -> tuple[tuple[text.Definition, text.Definition], set[str], Launch]:
    """Merges the partial accumulators of each row in a fixed order, computes the row's values and stores them; which names are its own."""
    prims = plan.lowered.prims
    (part,) = accumulators(kernel, prims)
    part = replace(part, kind=kind_of(part, prims))
    channels = fused.anchor.conv.out_channels
    kept = [d for d, size in enumerate(kernel.space) if d not in kernel.reduced and not sizes.is_one(size)]
    row = tuple(
        Coordinate() if d in kernel.reduced else Coordinate.of(Axis(f"i{d}", size))
        for d, size in enumerate(kernel.space)
    )
    of_row = Level(frozenset(f"i{d}" for d in kept))
    loads = [name for name in kernel.loads if name not in (fused.anchor.input, fused.anchor.weight)]
    evaluator = Evaluator(prims, loads, [of_row], vector=False)
    evaluator.index = "long long"
    for member in part.members:
        evaluator.results[member] = Field(Name(part.name), prims[member].op.field)
    rows = tuple(name for name in kernel.stores if kernel.members.get(name, "full") != "full")
    stores = []
    for name in rows:
        prim = prims[name]
        at = row if kernel.members[name] == "reduce" else row_at(row, kernel, prim)
        result = evaluator.value(name, at)
        where = element(text.target(kernel, name), evaluator.offset(prim.offset(at)))
        stores.append(Assign(where, text.to_memory(prim, converted_to(result, prim))))
    is_split = len(kernel.space) == fused.anchor.conv.dims + 3
    in_group = kernel.space[2] if is_split and 2 in kernel.reduced else 1
    if not is_split and 1 in kernel.reduced:
        in_group = channels
    decode = list[Statement]()
    rest: Expr = Name("row")
    for d in reversed(kept):
        if d == kept[0]:
            decode.append(const("long long", f"i{d}", rest))
        else:
            size = evaluator.size(kernel.space[d])
            decode.append(const("long long", f"i{d}", rest % size))
            rest = Grouped(rest / size)
    item, slices, own_part = Name("item"), Name("slices"), Name(part.name)
    group = Name("i1") if 1 in kept else as_expr(0)
    sample = item / (slices * in_group) if 0 in kernel.reduced else Name("i0") if 0 in kept else as_expr(0)
    count = slices * in_group * Name("batch") if 0 in kernel.reduced else slices * in_group
    place = (sample * slices + item / in_group % slices) * channels + group * in_group + item % in_group
    first, further = Declare("long long", "item", THREAD), Assign(item, as_expr(32), "+=")
    body: list[Statement] = [
        const("long long", "row", fn.static_cast.of("long long")(Field(Name("blockIdx"), "x")) * 4 + Field(Name("threadIdx"), "y")),
        If(Name("row") >= Name("rows"), Return()),
        *decode,
        Declare(part.kind, part.name),
        For(first, item < count, further, Do(method(own_part, "merge", element(Name("partials"), place)))),
        Assign(own_part, fn.merge_warp(own_part)),
        If(equal(THREAD, 0), block([*of_row.body, *stores])),
    ]
    read = names_read(body)
    symbols = [str(s) for s in sorted(evaluator.symbols, key=str)]
    small = replace(kernel, loads=tuple(name for name in loads if pointer(name) in read), stores=rows)
    part_of = "_merge"
    name = f"{kernel.name}{part_of}"
    scalars = [text.Parameter("long long", s) for s in ("rows", "batch", "slices", *symbols)]
    partials = text.Parameter(part.kind, "partials", const=True, pointer=True)
    parameters = (*text.parameters(small, prims), replace(partials, restrict=True), *scalars)
    merge = text.Definition(f"{name}_kernel", parameters, (*evaluator.declare_sizes("long long"), *body), threads="128")
    call = map(Name, (*small.read_only, *small.written, "partials", *(scalar.name for scalar in scalars)))
    grid = fn.ceil_div(Name("rows"), 4)
    stream = text.Parameter("void", "stream", pointer=True)
    launcher = text.Definition(
        name,
        (*text.launcher_pointers(small, prims), partials, *scalars, stream),
        (stmt.Launch(f"{name}_kernel", (), grid, fn.dim3(32, 4), tuple(call)), Return(Function("launch_error")())),
    )
    handed = (
        *map(argument, (*small.read_only, *small.written)),
        f"partials{own}",
        sizes.text(sizes.product(kernel.row_shape)),
        size_texts["batch"],
        f"slices{own}",
        *symbols,
    )
    tensors = (*small.read_only, *small.written)
    names = names_declared(merge.body).union((name, f"{name}_kernel"), tensors, map(pointer, tensors))
    return (merge, launcher), names, Launch(kernel.name, ((handed, ""),), part_of)


def spelled(functions: Iterable[text.Definition], spelling: Spelling) -> str:
    return "\n\n".join("\n".join(function.lines(spelling)) for function in functions) + "\n"


def numbers_of(bodies: Iterable[Pointwise]) -> dict[str, str]:
    """A number for each name that chains have of their own."""
    return {name: f"@{i}" for i, name in enumerate(dict.fromkeys(name for body in bodies for name in body.own_names))}


THREAD = Field(Name("threadIdx"), "x")

__all__ = ["AnchoredText", "Conv", "Epilogue", "Graph", "Launch", "Prim", "anchored_kernel", "body_of"]
