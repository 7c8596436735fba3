"""The kernel of a shortcut as text: the chain between score and softmax, and the lines of Python that launch it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir import sizes
from ...ir.expr import Pointer, names_in
from ...ir.plan import Kernel
from ...ir.prims import C_TYPES, Coordinates, Prim
from ...ir.stmt import names_read
from ..loops.evaluator import Evaluator, converted_to
from ..loops.scope import Level, pointer
from .anchored import AnchoredText, Launch, numbers_of
from .attention import attention_kernel, attention_tile
from .conv_spec import VALUE, Param, Pointwise
from .operands import Matrices


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
    evaluator.results[leaf] = VALUE
    final = converted_to(evaluator.value(root, at), prims[root])
    statements = (*fixed.body, *element.body)
    read = names_read(statements) | names_in(final)
    used = tuple(name for name in others if pointer(name) in read)
    params = [Param(Pointer(C_TYPES[prims[n].dtype], const=True), pointer(n), n) for n in used]
    params += [Param("int", str(symbol)) for symbol in sorted(evaluator.symbols, key=str)]
    return Pointwise(final, statements, tuple(params), tuple(evaluator.declare_sizes("int"))), used


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
    handed = {p.name: argument(p.tensor) if p.tensor else texts.get(p.name, p.name) for p in made.launcher_args}
    pointers = [handed.pop(param.name) for param in made.launcher_args if param.is_pointer]
    rows = [(tuple(pointers), "")]
    for operand, words in OPERANDS.items():
        rows.append((tuple(handed.pop(name) for name in list(handed) if name in steps[operand]), words))
    rows.append((tuple(handed.values()), ""))
    launches = (Launch(kernel.name, tuple(rows)),)
    shape = attention_kernel("@", how.attention, how.body.renamed(numbers_of([how.body]))).source
    return AnchoredText(
        made.source, shape, tuple(comment), made.calls, (), made.smem, (), (), launches, attention_tile(how.attention), tf32=False
    )


OPERANDS = {
    "q": "queries: where they begin, and how far it is from one to the next along each dimension", "k": "keys", "v": "values",
    "out": "the result",
}  # fmt: skip
