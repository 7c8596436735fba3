"""The kernels of one CUDA unit: each shape once, what each stands for, and the text of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..codegen.loops.text import KernelText
from ..codegen.mma.anchor import conv_flops
from ..codegen.mma.anchored import AnchoredText
from ..ir import sizes
from ..ir.graph import Graph, Node
from ..ir.names import FORBIDDEN
from ..ir.plan import Kernel, Plan, evaluated, operator_name, origins
from ..ir.prims import Prim
from ..laws.law import Rule
from ..schedule.attention_fusion import Attended
from ..schedule.naming import only_statistics
from ..target.helpers import Helper, closure, device_texts, named
from .numbers import shared_texts

ASCII = str.maketrans(
    {
        "Σ": "sum",
        "−": "-",
        "·": "*",
        "×": "x",
        "≥": ">=",
        "≤": "<=",
        "²": "^2",
        "³": "^3",
        "…": "...",
        "–": "-",
        "—": "-",
        "→": "->",
        "’": "'",
    }
)
LONGEST_LINE = 160  # of the model that is quoted whole
LONGEST_TUPLE = 120  # of launchers that stand in one line


@dataclass(frozen=True)
class KernelFacts:
    """What the report says of a kernel before anything has run."""

    name: str
    replaces: tuple[str, ...]
    bytes: int
    flops: int


class Shared:
    """Kernels of one CUDA unit, each shape once."""

    def __init__(self) -> None:
        self.first: dict[str, KernelText] = {}
        self.anchored: dict[str, tuple[str, AnchoredText]] = {}  # those that compute a convolution or a product, and their names
        self.also: dict[str, list[str]] = {}  # by kernel: what else it stands for, as comments

    def add(self, text: KernelText) -> KernelText:
        """The text under the name by which it is launched."""
        first = self.first.setdefault(text.shape, text)
        if first is not text:
            self.also.setdefault(first.name, []).extend(text.comment[1:])
        return replace(text, name=first.name)

    def add_anchored(self, name: str, text: AnchoredText) -> AnchoredText:
        """As above, of a kernel that is `name` in its plan."""
        first, _ = self.anchored.setdefault(text.shape, (name, text))
        if first == name:
            return text
        self.also.setdefault(first, []).extend(text.comment[1:])
        return text.launched_as(first)

    def share_numbers(self) -> dict[str, KernelText]:
        """Kernels that differ only in numbers become one. By name: those that are launched otherwise from now on."""
        found = shared_texts(list(self.first.values()))
        kept: dict[str, KernelText] = {}
        for shape, text in self.first.items():
            now = found.get(text.name, text)
            if now.name == text.name:
                kept[shape] = now
            else:
                more = [*text.comment[1:], *self.also.pop(text.name, [])]
                self.also.setdefault(now.name, []).extend(more)
        self.first = kept
        return found

    @property
    def texts(self) -> dict[str, KernelText | AnchoredText]:
        """Every kernel that stands in the file, by its name."""
        return {text.name: text for text in self.first.values()} | dict(self.anchored.values())

    def helpers(self, names: Iterable[str]) -> list[Helper]:
        """What these kernels call, and what that needs, in order."""
        texts = [self.texts[name] for name in names]
        support = [part for text in texts if isinstance(text, AnchoredText) for part in text.support]
        return closure([helper for text in texts for helper in named(text.calls)], support)

    def source(self, name: str) -> str:
        """A kernel's CUDA below what it stands for, and what else it is launched for."""
        text = self.texts[name]
        more = [line for line in dict.fromkeys(self.also.get(name, [])) if line not in text.comment]
        above = [*text.comment, *(["and, with other tensors,"] if more else []), *more]
        return "\n".join([*map(remark, above), text.source])


def remark(text: str) -> str:
    """A line of comment that says `text`, whatever that holds: it neither ends nor joins a line of code."""
    plain = "".join(c if " " <= c <= "~" else "_" for c in text.translate(ASCII))
    plain = plain.replace("??", "? ?").replace("'''", '"""')  # no trigraph, which may be a backslash; no end of Python's string
    return f"// {plain}".rstrip(" \\")


def comment(kernel: Kernel, plan: Plan, stated: set[str]) -> list[str]:
    """What the kernel replaces, and the laws that led to it: what is remarked above its text. Laws in `stated` are known by now."""
    nodes = worked_on(kernel, plan)
    own = {node.name for node in nodes}
    applied = [rule for rule in plan.rules if any(made_at(name, at) for name in own for at in rule.nodes)]
    roles = "statistics of" if only_statistics(kernel, plan) else "replaces"
    return [f"{kernel.name} {roles}", *source_lines(nodes, plan.graph), *law_lines(applied, stated)]


def source_lines(nodes: Iterable[Node], graph: Graph) -> list[str]:
    """One for each line of the model that these nodes stand for, and their operators."""
    operators: dict[str, list[str]] = {}
    for node in nodes:
        code = "" if FORBIDDEN.search(node.where.code) else node.where.code
        place = f"{file_of(node)}:{node.where.line}" if node.where.line else ""
        code = code if len(code) <= LONGEST_LINE else code[:LONGEST_LINE] + " ..."
        operators.setdefault(f"{place}  {code}".strip(), []).append(operator_name(node, graph))
    return [f"  {line}  <- {', '.join(dict.fromkeys(names))}" for line, names in operators.items()]


def places(nodes: Iterable[Node]) -> str:
    """The lines of the model that these nodes stand for, by file."""
    lines: dict[str, set[int]] = {}
    for node in nodes:
        if node.where.line:
            lines.setdefault(file_of(node), set()).add(node.where.line)
    return "; ".join(f"{file}:{', '.join(map(str, sorted(numbers)))}" for file, numbers in lines.items())


def file_of(node: Node) -> str:
    return "line" if FORBIDDEN.search(node.where.file) else node.where.file or "line"


def made_at(name: str, node: str) -> bool:
    """What a law made at a node has the node's name, or one that begins with it."""
    return name == node or name.startswith(f"{node}_")


def law_lines(applied: Iterable[Rule], stated: set[str]) -> list[str]:
    """One for each law; its identity once in a file."""
    laws = {rule.law: rule.identity for rule in applied}
    lines = [f"  law: {law}" + (f": {identity}" if law not in stated else "") for law, identity in laws.items()]
    stated.update(laws)
    return lines


def worked_on(kernel: Kernel, plan: Plan) -> list[Node]:
    """The nodes whose work the kernel does, in order."""
    if isinstance(kernel.fused, Attended):
        return [plan.graph[name] for name in kernel.fused.nodes]
    return origins(kernel, plan.lowered.prims, plan.graph)


def facts(kernel: Kernel, launchers: tuple[str, ...], plan: Plan) -> list[KernelFacts]:
    """One for each function that is launched for the kernel; the first has all the numbers."""
    prims, graph = plan.lowered.prims, plan.graph
    moved = sum(
        graph.hint(sizes.product(prims[n].shape)) * prims[n].dtype.itemsize for n in (*kernel.loads, *kernel.stores)
    )
    replaces = tuple(dict.fromkeys(operator_name(node, graph) for node in worked_on(kernel, plan)))
    if isinstance(kernel.fused, Attended):
        elements, of_each = kernel.fused.flops
        flops = graph.hint(elements) * of_each
    else:
        flops = flops_of(kernel, prims, graph) + (conv_flops(kernel.fused.anchor, plan) if kernel.fused is not None else 0)
    first, *rest = launchers
    return [KernelFacts(first, replaces, moved, flops), *(KernelFacts(name, replaces, 0, 0) for name in rest)]


def flops_of(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> int:
    total = 0
    for name in evaluated(kernel, prims):
        prim = prims[name]
        of_source = prims[prim.inputs[0]].shape if prim.inputs and type(prim.op).__name__ == "Reduce" else prim.shape
        total += graph.hint(sizes.product(of_source)) * getattr(prim.op, "cost", 1)
    return total


def together(every: list[KernelFacts]) -> tuple[KernelFacts, ...]:
    """A kernel that is launched for several places moves and computes what all of them do."""
    found: dict[str, KernelFacts] = {}
    for fact in every:
        known = found.setdefault(fact.name, KernelFacts(fact.name, (), 0, 0))
        replaces = tuple(dict.fromkeys((*known.replaces, *fact.replaces)))
        found[fact.name] = KernelFacts(fact.name, replaces, known.bytes + fact.bytes, known.flops + fact.flops)
    return tuple(found.values())


ENTRY = """// What Python calls: it makes an array in half the time that handing over as many values takes.
#define ENTRY(launcher) extern "C" const char* launcher##_entry(const long long* values) { return unpacked(launcher, values); }
"""


@dataclass(frozen=True)
class CudaUnit:
    """A CUDA source: what its kernels call, the kernels, and what Python calls to launch them."""

    name: str
    helpers: Sequence[Helper]
    kernels: Sequence[str]
    launchers: Sequence[str]
    launchers_name: str
    saving_name: str = ""  # of its second build, for those who ask for what its kernels may store; none has a name

    def text(self, support: Sequence[Helper]) -> str:
        """As Python, behind the `support` that stands before it."""
        own = device_texts(helper for helper in self.helpers if helper not in support)
        own += [] if support else [ENTRY]
        entries = "\n" + "".join(f"ENTRY({name})\n" for name in self.launchers)
        cuda = string_text("\n".join([*own, *self.kernels]) + entries)
        saved = f'{self.saving_name} = "#define SAVING\\n" + {self.name}  # stores activations for backward, too\n'
        saving = saved if self.saving_name else ""
        names = f"{self.launchers_name} = ({names_text(self.launchers)})"
        return f"{self.name} = {'_CUDA_SUPPORT + ' if support else ''}{cuda}\n\n{saving}{names}"


def unit_of(name: str, launchers_name: str, unit: Shared, kernels: Sequence[str], launchers: Sequence[str]) -> CudaUnit:
    return CudaUnit(name, unit.helpers(kernels), [*map(unit.source, kernels)], launchers, launchers_name)


def units_text(units: Sequence[CudaUnit]) -> str:
    """The CUDA of a file. What all units call stands there once, in front of each."""
    support = [helper for helper in units[0].helpers if all(helper in unit.helpers for unit in units[1:])] if len(units) > 1 else []
    shared = [f"_CUDA_SUPPORT = {string_text(chr(10).join([*device_texts(support), ENTRY]))}"] if support else []
    return "\n\n".join([*shared, *(unit.text(support) for unit in units)])


def string_text(cuda: str) -> str:
    """A CUDA text as a string of Python."""
    plain = ascii_only(cuda).replace("\\", "\\\\")
    return f"'''\n{plain}'''"


def ascii_only(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "replace").decode()


def names_text(names: Sequence[str]) -> str:
    """Launchers, as the items of a tuple in Python."""
    line = "".join(f'"{name}", ' for name in names)
    return line[:-1] if len(line) < LONGEST_TUPLE else "".join(f'\n    "{name}",' for name in names) + "\n"
