"""Pointwise kernel: each thread computes VEC neighbouring elements of every output from whatever they depend on."""

from __future__ import annotations

from ..graph import Dim, Graph
from ..index import Coordinate
from ..plan import Kernel
from ..prims import Prim, arithmetic_type
from . import text
from .expression import LANE, Evaluator, Level, converted_to, indent
from .loops import c_product, decode, vector_conditions, vector_width, walk
from .text import KernelText

THREADS = 256


def pointwise_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    loops = walk(kernel, prims, graph)
    has_window = text.has_window(kernel, prims)
    width = 1 if has_window else vector_width(kernel, prims, loops.kept)
    axes = frozenset(loop.variable for loop in loops.kept)
    body, lanes = Level(axes), Level(axes | {LANE})
    evaluator = Evaluator(prims, kernel.loads, [body, lanes], vector=width > 1)
    at, _ = loops.at(kernel, lane=width > 1)
    stores: list[tuple[str, Coordinate]] = []
    after: list[str] = []
    for name in kernel.stores:
        prim = prims[name]
        kind, offset = arithmetic_type(prim.dtype), prim.offset(at)
        result = evaluator.value(name, at)
        if width > 1 and LANE in offset.depends:
            out = evaluator.fresh(f"{name}_out")
            body.lines.append(f"{kind} {out}[VEC];")
            lanes.lines.append(f"{out}[{LANE}] = {result.text};")
            where = evaluator.offset(offset, without_lane=True)
            if any(axis.text == LANE and factor == 1 for axis, factor in offset.terms.items()):
                after.append(f"store(&{text.target(kernel, name)}[{where}], {out});")
                stores.append((kernel.overwrites.get(name, name), offset))
            else:
                after += [
                    "#pragma unroll",
                    f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {text.target(kernel, name)}[{evaluator.offset(offset)}] = {text.to_memory(prim, f'{out}[{LANE}]')};",  # noqa: E501
                ]
        else:
            body_or_lane = lanes if LANE in result.depends else body
            assert body_or_lane is body
            after.append(
                f"{text.target(kernel, name)}[{evaluator.offset(offset)}] = {text.to_memory(prim, converted_to(result, prim))};"
            )
    lines = list(body.lines)
    if lanes.lines:
        lines += ["#pragma unroll", f"for (int {LANE} = 0; {LANE} < VEC; ++{LANE}) {{", *indent(lanes.lines), "}"]
    lines += after

    total = c_product([loop.size for loop in loops.kept])
    element = "element"
    position = [
        f"const Index {element} = (static_cast<Index>(blockIdx.x) * {THREADS} + threadIdx.x)"
        + (" * VEC;" if width > 1 else ";"),
        f"if ({element} >= elements) return;",
        *decode(loops.kept, element, evaluator),
    ]
    inner: Dim = loops.kept[-1].size if loops.kept else 1
    conditions = vector_conditions(evaluator, stores, inner, width, prims) if width > 1 else []
    setup = [f"const long long elements = {total};", "if (elements == 0) return nullptr;"]
    return text.finish(
        kernel,
        prims,
        evaluator,
        comment,
        lines=[*position, *lines],
        threads=str(THREADS),
        extra=[("Index", "elements")],
        width=width,
        conditions=conditions,
        setup=setup,
        grid="dim3(static_cast<unsigned>((elements + {span} - 1) / {span}))",
        block=f"dim3({THREADS})",
        span=THREADS,
    )
