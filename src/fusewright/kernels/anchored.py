"""Kernels whose anchor is a convolution: the pointwise chains around it as the bodies that conv.py asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import sympy

from .. import sizes
from ..graph import Dim, Graph
from ..index import Axis, Coordinate
from ..plan import Kernel, Plan
from ..prelude import Helper
from ..prims import C_TYPES, Coordinates, Prim
from . import text
from .accumulators import WORDS, accumulators, kind_of
from .conv import Body, Conv, Ending, OverPositions, Pointwise, can_be_opened, conv_kernel
from .conv_tiles import best_tile, for_sizes
from .depthwise import depthwise_kernel, is_depthwise
from .expression import Evaluator, Level, converted_to, indent, paren, pointer
from .loops import row_at
from .product import Product, most_split_rows, product_kernel, product_tile
from .shortened import shortened

if TYPE_CHECKING:
    from ..takeover import Anchor, Fused


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
    totals: dict[str, str] | None = None,
    taken: frozenset[str] = frozenset(),
    may_shift: bool = False,
) -> Pointwise:
    """The chain from `leaf` (the element in a register) to `root`, at one element; for a row, from the reduced value.

    `totals` gives the text of each reduced value where the element is still there beside it; `taken` are names that another
    body of the same kernel has. With `may_shift` a constant may be left out of the result, which says so.
    """
    from ..takeover import axes_for

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
    fixed, channel, element = Level(frozenset()), Level(frozenset({"n", "c"})), Level(everywhere)
    loads = [name for name in kernel.loads if name != leaf]
    evaluator = Evaluator(prims, loads, [fixed, channel, element], vector=False)
    evaluator.index = "long long"
    of_product = isinstance(anchor.conv, Product)  # in float32, of many rows: nothing is coarse, or prepared for a sample
    evaluator.inside, evaluator.names = True, evaluator.names | taken
    evaluator.results[leaf] = "value"
    if not row and totals is None:
        evaluator.results[anchor.value] = "value"
    evaluator.results |= totals or {}
    members = [m for a in accumulators(kernel, prims) for m in a.members] if kernel.is_reduce else []
    for member in members:
        evaluator.results.setdefault(member, "value")
    result = evaluator.value(root, here)
    final = converted_to(result, prims[root])
    exact, hoist = of_product or is_depthwise(anchor.conv) or anchor.conv.is_strict, not row and not of_product
    shorter = shortened(fixed.lines + channel.lines, element.lines, final, hoist=hoist, exact=exact, may_shift=may_shift)
    element_lines, final_text, kept, tables = shorter.element, shorter.final, shorter.kept, shorter.tables
    used = " ".join(
        [*element_lines, final_text, *(t.value for t in tables), *(s for t in tables for s in t.statements), *kept]
    )
    names = [name for name in loads if re.search(rf"\b{pointer(name)}\b", used)]
    params = [(f"const {C_TYPES[prims[n].dtype]}* __restrict__", pointer(n)) for n in names]
    params += [("int", str(s)) for s in sorted(evaluator.symbols, key=str)]
    setup = tuple(line.replace("const Index", "const int") for line in evaluator.declare_sizes())

    def at_element(value: str, n: str, c: str, position: tuple[str, ...]) -> tuple[list[str], str]:
        assert (value, n) == ("value", "n"), "bodies are written for these names"
        return [*kept, *element_lines], final_text

    return Pointwise(at_element, tuple(params), setup, tables, shorter.left_out)


def names_in(body: Body) -> frozenset[str]:
    """What a body calls its values."""
    statements, _ = body.element("value", "n", "c", ("d", "h", "w"))
    lines = [*statements, *body.setup, *(s for table in body.tables for s in table.statements)]
    return frozenset(re.findall(r"\bconst \w+ (\w+) =", "\n".join(lines)))


@dataclass(frozen=True)
class AnchoredText:
    """The CUDA of one anchored kernel, and the Python lines that launch it."""

    names: tuple[str, ...]  # launchers, in order
    source: str
    comment: tuple[str, ...]  # what stands above it
    support: tuple[Helper, ...]
    shared_bytes: int
    sizes: tuple[str, ...]  # Python that says how large the workspace is to be
    workspace: tuple[tuple[str, Dim], ...]  # what the lines take besides tensors, in floats
    lines: tuple[str, ...]
    tile: Any
    tensor_cores: bool = True  # and so a GPU that has them
    tf32: bool = True  # and the flag that allows convolutions to round to it


def anchored_kernel(
    kernel: Kernel, fused: Fused, plan: Plan, comment: list[str], argument: Any, own: str, open_inputs: bool = False
) -> AnchoredText:
    """`argument(primitive)` is the Python name of a tensor in memory; `own` ends the names of what is not one. With `open_inputs`
    the number of input channels is an argument, where it can be."""
    from ..takeover import arithmetic, input_sizes

    prims, anchor = plan.lowered.prims, fused.anchor
    if isinstance(anchor.conv, Product):
        return anchored_product(kernel, fused, plan, comment, argument, own)
    if anchor.conv.dtype == "float32" and not is_depthwise(anchor.conv):
        comment = [*comment, f"  {arithmetic(anchor, plan)}"]
    anchor = replace(anchor, conv=replace(anchor.conv, kept=anchor.value in kernel.stores[1:]))
    if is_depthwise(anchor.conv):
        made = depthwise_kernel(kernel.name, anchor.conv, fused.ending)
    else:
        conv = for_sizes(anchor.conv, fused.ending, input_sizes(anchor, plan))
        tile = best_tile(conv, fused.ending, input_sizes(anchor, plan))
        conv = replace(conv, open_inputs=open_inputs and can_be_opened(conv, fused.ending, tile))
        made = conv_kernel(kernel.name, conv, fused.ending, tile)
    batch, _, *spatial = prims[anchor.input].shape
    size_texts = {"batch": sizes.text(batch), "in_channels": str(anchor.conv.in_channels)}
    size_texts |= dict(zip(("in_d", "in_h", "in_w")[3 - len(spatial) :], map(sizes.text, spatial), strict=True))
    workspace: dict[str, Dim] = {f"{name}{own}": int(floats) for name, floats in made.workspace.items()}
    counts: list[str] = []
    if isinstance(fused.ending.reduce, OverPositions):
        count = re.sub(r"\b(batch|in_[dhw])\b", lambda m: paren(size_texts[m[1]]), made.slices or "1")
        counts.append(f"slices{own} = {count}")
        words = anchor.conv.out_channels * WORDS[fused.ending.reduce.accumulator]
        slices = sympy.Symbol(f"slices{own}", integer=True, positive=True)
        workspace[f"partials{own}"] = sizes.tidy(words * batch * slices)
    handed = []
    for _kind, name in made.launcher_args:
        if name in ("input", "weight", "bias"):
            handed.append(argument(getattr(anchor, name)))
        elif name == "out":
            handed.append(kernel.stores[0])  # what is stored beside a reduction stands first
        elif name == "kept":
            handed.append(anchor.value)
        elif name in size_texts:
            handed.append(size_texts[name])
        elif name.endswith("_ptr"):
            handed.append(argument(name.removesuffix("_ptr")))
        else:  # of this kernel alone, or a size
            handed.append(f"{name}{own}" if name in ("partials", "slices", *made.workspace) else name)
    lines = [f'_launch("{kernel.name}", {", ".join(handed)})']
    source, names = made.source, [kernel.name]
    if isinstance(fused.ending.reduce, OverPositions):
        merge, launch = merge_kernel(kernel, fused, plan, argument, size_texts, own)
        source += "\n" + merge
        lines.append(launch)
        names.append(f"{kernel.name}_merge")
    return AnchoredText(
        tuple(names),
        source,
        tuple(comment),
        made.support,
        made.smem,
        tuple(counts),
        tuple(workspace.items()),
        tuple(lines),
        made.tile,
        tensor_cores=made.tile is not None,
        tf32=anchor.conv.dtype == "float32" and anchor.conv.tf32,
    )


def anchored_product(kernel: Kernel, fused: Fused, plan: Plan, comment: list[str], argument: Any, own: str) -> AnchoredText:
    """As above, for a matrix product."""
    from ..products import rows_and_batch

    kept = fused.anchor.value in kernel.stores[1:]
    anchor = replace(fused.anchor, conv=replace(fused.anchor.conv, kept=kept))
    *batch, in_matrix, columns = anchor.out_shape if anchor.conv.batched else (1, 1, anchor.out_shape[-1])
    rows = sizes.tidy(sizes.product(anchor.out_shape[:-1]))
    hint, many = rows_and_batch(anchor, plan)
    tile = product_tile(anchor.conv, hint, many)
    most = most_split_rows(anchor.conv, tile, hint) if tile.splits > 1 and not isinstance(rows, int) else None
    made = product_kernel(kernel.name, anchor.conv, fused.ending, tile, most)
    texts = {"out": kernel.stores[0], "kept": anchor.value, "sums": f"sums{own}"}
    texts |= {"rows": sizes.text(in_matrix if anchor.conv.batched else rows), "batch": sizes.text(sizes.product(tuple(batch)))}
    texts |= {"depth": sizes.text(anchor.depth), "columns": sizes.text(columns)}
    handed = []
    for _kind, name in made.launcher_args:
        if name in ("input", "weight", "bias"):
            handed.append(argument(getattr(anchor, name)))
        elif name.endswith("_ptr"):
            handed.append(argument(name.removesuffix("_ptr")))
        else:
            handed.append(texts.get(name, name))
    few = rows if most is None else sympy.Min(rows, most)
    workspace = {f"sums{own}": sizes.tidy(tile.splits * anchor.conv.columns * few)} if tile.splits > 1 else {}
    return AnchoredText(
        (kernel.name,), made.source, tuple(comment), made.support, made.smem, (), tuple(workspace.items()),
        (f'_launch("{kernel.name}", {", ".join(handed)})',), tile, tf32=False,
    )  # fmt: skip


def merge_kernel(
    kernel: Kernel, fused: Fused, plan: Plan, argument: Any, size_texts: dict[str, str], own: str
) -> tuple[str, str]:
    """Merges the partial accumulators of each row in a fixed order, computes the row's values and stores them."""
    prims, _graph = plan.lowered.prims, plan.graph
    (part,) = accumulators(kernel, prims)
    part = replace(part, kind=kind_of(part, prims))
    channels = fused.anchor.conv.out_channels
    kept = [d for d, size in enumerate(kernel.space) if d not in kernel.reduced and not sizes.is_one(size)]
    row = tuple(
        Coordinate() if d in kernel.reduced else Coordinate.of(Axis(f"i{d}", size))
        for d, size in enumerate(kernel.space)
    )
    axes = frozenset(f"i{d}" for d in kept)
    lines: list[str] = []
    loads = [name for name in kernel.loads if name not in (fused.anchor.input, fused.anchor.weight)]
    evaluator = Evaluator(prims, loads, [Level(axes, lines)], vector=False)
    evaluator.index = "long long"
    for member in part.members:
        evaluator.results[member] = f"{part.name}.{prims[member].op.field}"
    rows = tuple(name for name in kernel.stores if kernel.members.get(name, "full") != "full")
    stores = []
    for name in rows:
        prim = prims[name]
        at = row if kernel.members[name] == "reduce" else row_at(row, kernel, prim)
        result = evaluator.value(name, at)
        stores.append(
            f"{text.target(kernel, name)}[{evaluator.offset(prim.offset(at))}] = {text.to_memory(prim, converted_to(result, prim))};"
        )
    is_split = len(kernel.space) == fused.anchor.conv.dims + 3
    in_group = kernel.space[2] if is_split and 2 in kernel.reduced else 1
    if not is_split and 1 in kernel.reduced:
        in_group = channels
    decode, rest = [], "row"
    for d in reversed(kept):
        if d == kept[0]:
            decode.append(f"const long long i{d} = {rest};")
        else:
            size = evaluator.size(kernel.space[d])
            decode.append(f"const long long i{d} = {rest} % {size};")
            rest = f"({rest} / {size})"
    group = "i1" if 1 in kept else "0"
    sample = "item / (slices * %d)" % in_group if 0 in kernel.reduced else ("i0" if 0 in kept else "0")
    count = f"slices * {in_group}" + (" * batch" if 0 in kernel.reduced else "")
    where = f"({sample} * slices + item / {in_group} % slices) * {channels} + {group} * {in_group} + item % {in_group}"
    body = [
        "const long long row = static_cast<long long>(blockIdx.x) * 4 + threadIdx.y;",
        "if (row >= rows) return;",
        *decode,
        f"{part.kind} {part.name};",
        f"for (long long item = threadIdx.x; item < {count}; item += 32) {part.name}.merge(partials[{where}]);",
        f"{part.name} = merge_warp({part.name});",
        "if (threadIdx.x == 0) {",
        *indent([*lines, *stores]),
        "}",
    ]
    used = [name for name in loads if any(f"{pointer(name)}[" in line for line in body)]
    symbols = [str(s) for s in sorted(evaluator.symbols, key=str)]
    small = replace(kernel, loads=tuple(used), stores=rows)
    name = f"{kernel.name}_merge"
    scalars = ["rows", "batch", "slices", *symbols]
    parameters = [
        *text.parameters(small, prims),
        f"const {part.kind}* __restrict__ partials",
        *(f"long long {s}" for s in scalars),
    ]
    source = [
        f"// Merges the partial results of {kernel.name}, in a fixed order.",
        *text.wrapped(f"__global__ void __launch_bounds__(128) {name}_kernel(", parameters, ") {"),
    ]
    source += (
        [f"  {line.replace('const Index', 'const long long')}" for line in evaluator.declare_sizes()]
        + indent(body)
        + ["}"]
    )
    source += [
        "",
        *text.wrapped(
            f'extern "C" const char* {name}(',
            [
                *text.launcher_pointers(small, prims),
                f"const {part.kind}* partials",
                *(f"long long {s}" for s in scalars),
                "void* stream",
            ],
            ") {",
        ),
    ]
    call = ", ".join([*small.read_only, *small.written, "partials", *scalars])
    source += [
        f"  {name}_kernel<<<dim3(static_cast<unsigned>((rows + 3) / 4)), dim3(32, 4), 0, static_cast<cudaStream_t>(stream)>>>({call});"
    ]
    source += ["  return launch_error();", "}"]
    handed = [
        *map(argument, (*small.read_only, *small.written)),
        f"partials{own}",
        sizes.text(sizes.product(kernel.row_shape)),
        size_texts["batch"],
        f"slices{own}",
        *symbols,
    ]
    return "\n".join(source) + "\n", f'_launch("{name}", {", ".join(handed)})'


__all__ = ["AnchoredText", "Conv", "Ending", "Graph", "Prim", "anchored_kernel", "body_of"]
