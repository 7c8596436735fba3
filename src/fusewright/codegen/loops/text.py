"""What every kernel has in common: parameters, the launcher that picks a variant, and how the whole is printed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import sympy

from ...ir import functions as fn
from ...ir.cpp import Spelling, kind_text
from ...ir.expr import Expr, Function, Kind, Name, Number, Template, both, equal, negated, words_of
from ...ir.plan import Kernel, evaluated
from ...ir.prims import C_TYPES, Prim, Window, arithmetic_type
from ...ir.stmt import If, Launch, LaunchOneOf, Return, Statement, Variant, const, printed, words
from .evaluator import Evaluator
from .scope import pointer
from .tidy import tidied
from .walk import c_size, largest_tensor


@dataclass(frozen=True)
class Workspace:
    """Memory that a kernel needs for partial results: `words` 32-bit words for each of `count` items."""

    name: str
    count: sympy.Expr | int
    words: int


@dataclass(frozen=True)
class Parameter:
    """Of a kernel or a launcher. What a `pointer` leads to may be known to be read only, and of no other pointer."""

    kind: Kind
    name: str
    const: bool = False
    pointer: bool = False
    restrict: bool = False

    def text(self, spelling: Spelling) -> str:
        stars = "* __restrict__" if self.restrict else "*" if self.pointer else ""
        return f"{'const ' if self.const else ''}{kind_text(self.kind)}{stars} {spelling.name(self.name)}"


@dataclass(frozen=True)
class Definition:
    """A function of the CUDA unit: a kernel of so many threads a block, or a launcher."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    template: str = ""
    threads: str = ""  # of a kernel: what its launch bounds are

    @property
    def is_kernel(self) -> bool:
        return bool(self.threads)

    @property
    def calls(self) -> set[str]:
        """The words in it by which helpers may be called."""
        return words(self.body).union(*(words_of(parameter.kind) for parameter in self.parameters))

    def lines(self, spelling: Spelling) -> list[str]:
        spelling.enter(self)
        head = f"__global__ void __launch_bounds__({self.threads})" if self.is_kernel else 'extern "C" const char*'
        first = [f"template <{self.template}>"] if self.template else []
        parameters = [parameter.text(spelling) for parameter in self.parameters]
        return [
            *first,
            *wrapped(f"{head} {spelling.name(self.name)}(", parameters, ") {"),
            *printed(self.body, 1, spelling),
            "}",
        ]


@dataclass(frozen=True)
class KernelText:
    """One kernel, written out: its functions, and the order of its launcher's arguments."""

    name: str
    functions: tuple[Definition, ...]  # kernels, then the launcher
    tensors: tuple[str, ...]  # primitives: those it reads, then those it writes
    sizes: tuple[str, ...]  # symbols
    workspace: Workspace | None = None
    own: frozenset[str] = frozenset()  # names that mean something in this kernel alone
    comment: tuple[str, ...] = ()  # what is remarked above it, one line each
    spelling: Callable[[], Spelling] = Spelling

    @cached_property
    def source(self) -> str:
        return self.spelled(self.spelling())

    def spelled(self, spelling: Spelling) -> str:
        return "\n\n".join("\n".join(function.lines(spelling)) for function in self.functions) + "\n"

    @cached_property
    def shape(self) -> str:
        """Kernels of the same shape are one kernel with other arguments."""
        return self.spelled(Numbered(self.own))

    @cached_property
    def calls(self) -> set[str]:
        return set().union(*(function.calls for function in self.functions))


class Numbered(Spelling):
    """Names of a kernel's own as numbers."""

    def __init__(self, own: Collection[str]):
        self.own = own
        self.numbers: dict[str, str] = {}

    def name(self, name: str) -> str:
        return self.numbers.setdefault(name, f"@{len(self.numbers)}") if name in self.own else name


def has_window(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    return any(isinstance(prims[name].op, Window) for name in evaluated(kernel, prims))


def has_pool(kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """A window of several taps, as against a value put at some place."""
    windows = [prims[name].op for name in evaluated(kernel, prims) if isinstance(prims[name].op, Window)]
    return any(op.kind == "largest" or any(size > 1 for size in op.kernel) for op in windows)


def to_memory(prim: Prim, value: Expr) -> Expr:
    kind = C_TYPES[prim.dtype]
    return value if kind == arithmetic_type(prim.dtype) else fn.to_memory.of(kind)(value)


def parameters(kernel: Kernel, prims: dict[str, Prim]) -> list[Parameter]:
    return [
        *(Parameter(C_TYPES[prims[name].dtype], pointer(name), True, True, True) for name in kernel.read_only),
        *(Parameter(C_TYPES[prims[name].dtype], pointer(name), False, True, True) for name in kernel.written),
    ]


def launcher_pointers(kernel: Kernel, prims: dict[str, Prim]) -> list[Parameter]:
    found = [Parameter(C_TYPES[prims[name].dtype], name, const=True, pointer=True) for name in kernel.read_only]
    return found + [Parameter(C_TYPES[prims[name].dtype], name, pointer=True) for name in kernel.written]


def target(kernel: Kernel, name: str) -> Expr:
    """The pointer through which a value is stored: a buffer's own, where the value overwrites it."""
    return Name(pointer(kernel.overwrites.get(name, name)))


def nothing_to_do(count: str, of: Expr) -> list[Statement]:
    """What a launcher begins with: how many items there are, and that none need no kernel."""
    none = [] if isinstance(of, Number) and of.value > 0 else [If(equal(Name(count), 0), Return(Name("nullptr")))]
    return [const("long long", count, of), *none]


def wrapped(head: str, items: list[str], tail: str, limit: int = 140) -> list[str]:
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
    body: Iterable[Statement],
    threads: str,
    extra: list[str],
    width: int,
    conditions: list[Expr],
    setup: list[Statement],
    grid: Callable[[int], Expr],
    block: Expr,
    workspace: Workspace | None = None,
    last: tuple[Definition, Launch] | None = None,
) -> KernelText:
    """The kernel and its launcher. `grid` is that of vectors of so many lanes; `extra` are counts that the launcher hands on."""
    name = kernel.name
    wide = largest_tensor(kernel, prims)
    symbols = sorted(str(s) for s in evaluator.symbols)
    launch_symbols = sorted({str(s) for s in evaluator.symbols} | mentioned(kernel, prims))
    vector, divisors = width > 1, evaluator.divisors or {}
    arguments = [
        *parameters(kernel, prims),
        *([Parameter("unsigned", workspace.name, pointer=True, restrict=True)] if workspace else []),
        *(Parameter("Index", label) for label in extra),
        *(Parameter(Template("Divisor", ("Index",)), label) for label in divisors.values()),
        *(Parameter("Index", s) for s in symbols),
    ]
    bounds = f"{threads}, 1" if threads == "1024" else threads  # else ptxas keeps room for two such blocks, and spills
    of_template = "typename Index, int VEC" if vector else "typename Index"
    main = Definition(f"{name}_kernel", tuple(arguments), (*evaluator.declare_sizes(), *tidied(body)), of_template, bounds)

    handed = [
        *map(Name, (*kernel.read_only, *kernel.written, *([workspace.name] if workspace else []), *extra)),
        *map(c_size, divisors),
        *map(Name, symbols),
    ]

    def variant(index: str, lanes: int, test: Expr | None = None) -> Variant:
        return Variant((index, str(lanes)) if vector else (index,), grid(lanes), test)

    variants: list[Variant] = []
    setup = list(setup)
    if vector and conditions:
        setup.append(const("bool", "whole_vectors", both(*conditions)))
    if wide is not None:
        setup.append(const("bool", "wide", wide, note="offsets that need 64 bits"))
        variants.append(variant("long long", 1, Name("wide")))
    if vector and conditions:
        variants.append(variant("int", 1, negated(Name("whole_vectors"))))
    variants.append(variant("int", width if vector else 1))
    chosen: Statement
    if len(variants) > 1:
        chosen = LaunchOneOf(main.name, tuple(variants), block, tuple(handed))
    else:
        chosen = Launch(main.name, variants[0].types, variants[0].grid, block, tuple(handed))
    pointers = [*launcher_pointers(kernel, prims), *([Parameter("unsigned", workspace.name, pointer=True)] if workspace else [])]
    takes = [*pointers, *(Parameter("long long", s) for s in launch_symbols), Parameter("void", "stream", pointer=True)]
    launches = [chosen] if last is None else [chosen, last[1]]
    launcher = Definition(name, tuple(takes), (*setup, *launches, Return(Function("launch_error")())))
    tensors = (*kernel.read_only, *kernel.written)
    accumulators = {f"{member}_acc" for member, role in kernel.members.items() if role == "reduce"}
    own = evaluator.names | accumulators | {part for n in tensors for part in (n, pointer(n))} | set(launch_symbols)
    own |= {name, f"{name}_kernel", f"{name}_merge"}
    functions = (main, launcher) if last is None else (main, last[0], launcher)
    return KernelText(name, functions, tensors, tuple(launch_symbols), workspace, frozenset(own), tuple(comment))


def mentioned(kernel: Kernel, prims: dict[str, Prim]) -> set[str]:
    """Symbols in the sizes of the kernel's tensors and space: the launcher may need them."""
    shapes = [prims[n].shape for n in (*kernel.loads, *kernel.stores)] + [kernel.space]
    return {str(s) for shape in shapes for size in shape for s in sympy.sympify(size).free_symbols}
