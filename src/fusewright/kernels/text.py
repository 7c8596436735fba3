"""What every kernel's text has in common: parameters, the comment above it, the launcher that picks a variant."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

import sympy

from ..ir import functions as fn
from ..plan import Kernel, evaluated
from ..prims import C_TYPES, Prim, Window, arithmetic_type
from .expression import Evaluator, indent, pointer
from .loops import c_size, largest_tensor


@dataclass(frozen=True)
class Workspace:
    """Memory that a kernel needs for partial results: `words` 32-bit words for each of `count` items."""

    name: str
    count: sympy.Expr | int
    words: int


@dataclass(frozen=True)
class KernelText:
    """One kernel, written out: its CUDA, and the order of its launcher's arguments."""

    name: str
    source: str
    tensors: tuple[str, ...]  # primitives: those it reads, then those it writes
    sizes: tuple[str, ...]  # symbols
    workspace: Workspace | None = None
    own: frozenset[str] = frozenset()  # names that mean something in this kernel alone
    comment: tuple[str, ...] = ()  # what is remarked above it, one line each

    @property
    def shape(self) -> str:
        return shape_of(self.source, self.own)


def shape_of(source: str, own: Container[str]) -> str:
    """The source with its own names numbered: kernels of the same shape are one kernel with other arguments.

    What follows a dot is a member's name, whatever a value may be called: threadIdx.x is none of the model's x.
    """
    numbers: dict[str, str] = {}
    code = " ".join(word for line in source.splitlines() if not line.startswith("//") for word in line.split())
    return re.sub(r"(?<![.\w])[A-Za-z_]\w*", lambda m: numbers.setdefault(m[0], f"@{len(numbers)}") if m[0] in own else m[0], code)


def has_window(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    return any(isinstance(prims[name].op, Window) for name in evaluated(kernel, prims))


def has_pool(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """A window of several taps, as against a value put at some place."""
    windows = [prims[name].op for name in evaluated(kernel, prims) if isinstance(prims[name].op, Window)]
    return any(op.kind == "largest" or any(size > 1 for size in op.kernel) for op in windows)


def to_memory(prim: Prim, value: str) -> str:
    kind = C_TYPES[prim.dtype]
    return value if kind == arithmetic_type(prim.dtype) else f"to_memory<{kind}>({value})"


def parameters(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    found = [f"const {C_TYPES[prims[name].dtype]}* __restrict__ {pointer(name)}" for name in kernel.read_only]
    return found + [f"{C_TYPES[prims[name].dtype]}* __restrict__ {pointer(name)}" for name in kernel.written]


def launcher_pointers(kernel: Kernel, prims: dict[str, Prim]) -> list[str]:
    found = [f"const {C_TYPES[prims[name].dtype]}* {name}" for name in kernel.read_only]
    return found + [f"{C_TYPES[prims[name].dtype]}* {name}" for name in kernel.written]


def target(kernel: Kernel, name: str) -> str:
    """The pointer through which a value is stored: a buffer's own, where the value overwrites it."""
    return pointer(kernel.overwrites.get(name, name))


def wrapped(head: str, items: list[str], tail: str, limit: int = 130) -> list[str]:
    """head(item, item, …)tail, broken into lines."""
    lines, line = [], head
    for i, item in enumerate(items):
        piece = item + (", " if i + 1 < len(items) else tail)
        if len(line) + len(piece) > limit and line.strip():
            lines.append(line.rstrip())
            line = "    "
        line += piece
    return [*lines, line if items else head + tail]


def finish(
    kernel: Kernel,
    prims: dict[str, Prim],
    evaluator: Evaluator,
    comment: list[str],
    *,
    lines: list[str],
    threads: str,
    extra: list[tuple[str, str]],
    width: int,
    conditions: list[str],
    setup: list[str],
    grid: str,
    block: str,
    span: int = 1,
    workspace: Workspace | None = None,
    workspace_parameter: str = "",
    constants: list[str] | None = None,
    last: tuple[list[str], list[str]] | None = None,
) -> KernelText:
    """The kernel and its launcher. `{span}` in `grid` is the number of elements a block takes on, by vector width."""
    name = kernel.name
    wide = largest_tensor(kernel, prims)
    symbols = sorted(str(s) for s in evaluator.symbols)
    launch_symbols = sorted({str(s) for s in evaluator.symbols} | mentioned(kernel, prims))
    vector = width > 1
    head = "template <typename Index, int VEC>" if vector else "template <typename Index>"
    arguments = parameters(kernel, prims) + ([workspace_parameter] if workspace_parameter else [])
    divisors = evaluator.divisors or {}
    arguments += [f"{kind} {label}" for kind, label in extra] + [f"Divisor<Index> {label}" for label in divisors.values()]
    arguments += [f"Index {s}" for s in symbols]
    source = [*(constants or []), head]
    bounds = f"{threads}, 1" if threads == "1024" else threads  # else ptxas keeps room for two such blocks, and spills
    source += wrapped(f"__global__ void __launch_bounds__({bounds}) {name}_kernel(", arguments, ") {")
    source += [f"  {line}" for line in evaluator.declare_sizes()]
    source += indent(lines)
    source += ["}"]
    if last is not None:
        source += ["", *last[0]]

    pointers = launcher_pointers(kernel, prims)
    pointers += [f"unsigned* {workspace.name}"] if workspace else []
    source += [
        "",
        *wrapped(
            f'extern "C" const char* {name}(',
            [*pointers, *(f"long long {s}" for s in launch_symbols), "void* stream"],
            ") {",
        ),
    ]
    source += indent(setup)
    passed = (
        [*kernel.read_only, *kernel.written]
        + ([workspace.name] if workspace else [])
        + [label for _, label in extra]
        + [c_size(size) for size in divisors]
        + symbols
    )
    call = ", ".join(passed)

    def launch(index: str, lanes: int) -> str:
        where = grid.replace("{span}", str(span * lanes)).replace("{lanes}", str(lanes))
        variant = f"{name}_kernel<{index}, {lanes}>" if vector else f"{name}_kernel<{index}>"
        return f"{variant}<<<{where}, {block}, 0, static_cast<cudaStream_t>(stream)>>>({call});"

    if vector and conditions:
        source += [f"  const bool whole_vectors = {' && '.join(conditions)};"]
    choices: list[tuple[str, str]] = []
    if wide is not None:
        source += [f"  const bool wide = {wide};  // offsets that need 64 bits"]
        choices.append(("wide", launch("long long", 1)))
    if vector and conditions:
        choices.append(("!whole_vectors", launch("int", 1)))
    otherwise = launch("int", width if vector else 1)
    if not choices:
        source += [f"  {otherwise}"]
    for i, (condition, text) in enumerate(choices):
        source += [f"  {'else ' if i else ''}if ({condition}) {text}"]
    if choices:
        source += [f"  else {otherwise}"]
    if last is not None:
        source += indent(last[1])
    source += ["  return launch_error();", "}"]
    tensors = (*kernel.read_only, *kernel.written)
    accumulators = {f"{member}_acc" for member, role in kernel.members.items() if role == "reduce"}
    own = evaluator.names | accumulators | {part for n in tensors for part in (n, pointer(n))} | set(launch_symbols)
    own |= {name, f"{name}_kernel", f"{name}_merge"}
    return KernelText(name, "\n".join(source) + "\n", tensors, tuple(launch_symbols), workspace, frozenset(own), tuple(comment))


def mentioned(kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """Symbols in the sizes of the kernel's tensors and space: the launcher may need them."""
    shapes = [prims[n].shape for n in (*kernel.loads, *kernel.stores)] + [kernel.space]
    return {str(s) for shape in shapes for size in shape for s in sympy.sympify(size).free_symbols}


# Off by 1e-5 at most: for what is rounded to 8 or 11 bits when it is stored, or was to TF32 before.
FAST = {function.name: function.fast for function in fn.WITH_FAST} | {"LogSumExp": "FastLogSumExp"}


def with_fast_functions(source: str) -> str:
    return re.sub(rf"(?<!\w)({'|'.join(FAST)})\b", lambda m: FAST[m[1]], source)
