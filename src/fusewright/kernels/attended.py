"""The kernel of a shortcut as text: the chain between score and softmax, and the lines of Python that launch it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .. import sizes
from ..operands import Matrices
from ..plan import Kernel
from ..prims import C_TYPES, Coordinates, Prim
from .anchored import AnchoredText
from .attention import attention_kernel, attention_tile
from .conv_spec import Pointwise
from .expression import Evaluator, Level, converted_to, pointer


def score_body(
    prims: dict[str, Prim], loads: Sequence[str], root: str, leaf: str, at: Coordinates
) -> tuple[Pointwise, tuple[str, ...]]:
    """The chain from a score to what softmax takes, or to the weight, and the tensors in memory that it reads."""
    if root == leaf:
        return Pointwise(), ()
    fixed, element = Level(frozenset()), Level(frozenset().union(*(c.depends for c in at)) | {"n", "c"})
    others = [name for name in loads if name != leaf]
    evaluator = Evaluator(prims, others, [fixed, element], vector=False)
    evaluator.index = "long long"
    evaluator.inside = True
    evaluator.results[leaf] = "value"
    final = converted_to(evaluator.value(root, at), prims[root])
    lines = [*fixed.lines, *element.lines]
    text = " ".join([*lines, final])
    used = tuple(name for name in others if re.search(rf"\b{pointer(name)}\b", text))
    params = [(f"const {C_TYPES[prims[n].dtype]}* __restrict__", pointer(n)) for n in used]
    params += [("int", str(symbol)) for symbol in sorted(evaluator.symbols, key=str)]
    setup = tuple(line.replace("const Index", "const int") for line in evaluator.declare_sizes())
    return Pointwise(lambda value, n, c, position: (lines, final), tuple(params), setup), used


def attended_kernel(kernel: Kernel, comment: list[str], argument: Callable[[str], str]) -> AnchoredText:
    """`argument(primitive)` is the Python name of a tensor in memory."""
    how: Any = kernel.fused
    made = attention_kernel(kernel.name, how.attention, how.body)
    texts = {name: sizes.text(getattr(how, name)) for name in ("queries", "keys", "depth", "width")} | {"out": kernel.stores[0]}
    texts |= {f"batch{d}": sizes.text(size) for d, size in enumerate(how.batch)}
    steps: dict[str, dict[str, str]] = {}
    for name in OPERANDS:
        lies: Matrices = getattr(how, name)
        ways = {**{f"z{d}": step for d, step in enumerate(lies.batch)}, "row": lies.row, "column": lies.column, "at": lies.offset}
        steps[name] = {f"{name}_{way}": sizes.text(step) for way, step in ways.items()}
        texts |= steps[name]
    texts |= {name: argument(getattr(how, name).memory) for name in "qkv"}
    names = [name for _, name in made.launcher_args]
    handed = {name: argument(name.removesuffix("_ptr")) if name.endswith("_ptr") else texts.get(name, name) for name in names}
    pointers = [handed.pop(name) for kind, name in made.launcher_args if kind.endswith("*")]
    lines = [f'_launch("{kernel.name}", {", ".join(pointers)},']
    for operand, words in OPERANDS.items():
        own = [handed.pop(name) for name in list(handed) if name in steps[operand]]
        lines.append(f"    {', '.join(own)},  # {words}")
    lines.append(f"    {', '.join(handed.values())})")
    tile = attention_tile(how.attention)
    return AnchoredText((kernel.name,), made.source, tuple(comment), (), made.smem, (), (), tuple(lines), tile, tf32=False)


OPERANDS = {
    "q": "queries: where they begin, and how far it is from one to the next along each dimension", "k": "keys", "v": "values",
    "out": "the result",
}  # fmt: skip
