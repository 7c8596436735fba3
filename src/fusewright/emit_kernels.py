"""The kernels of one CUDA unit: each shape once, what each stands for, and the text of the whole."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch

from . import prelude
from .graph import Graph
from .kernels.kept_columns import kept_columns_kernel, sharers
from .kernels.pointwise import pointwise_kernel
from .kernels.reduce import reduce_kernel
from .kernels.scan import scan_kernel
from .kernels.text import KernelText, with_fast_functions
from .kernels.turned import turned_kernel, turned_loads, turns_results
from .kernels.turned_reduce import turned_reduce, turned_reduce_kernel
from .plan import Kernel
from .prims import Prim

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


@dataclass(frozen=True)
class KernelFacts:
    """What the report says of a kernel before anything has run."""

    name: str
    replaces: tuple[str, ...]
    bytes: int
    flops: int


def kernel_text(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    """The kernel in CUDA, by the template of its kind."""
    write = scan_kernel if kernel.is_scan else reduce_kernel if kernel.is_reduce else pointwise_kernel
    if turned_loads(kernel, prims, graph) or turns_results(kernel, prims, graph):
        write = turned_kernel
    elif turned_reduce(kernel, prims, graph) is not None:
        write = turned_reduce_kernel
    elif sharers(kernel, prims, graph):
        write = kept_columns_kernel
    text = write(kernel, prims, graph, comment)
    halves = all(prims[name].dtype in (torch.float16, torch.bfloat16) for name in kernel.stores)
    return replace(text, source=with_fast_functions(text.source)) if halves else text


class Shared:
    """Kernels of one CUDA unit, each shape once."""

    def __init__(self) -> None:
        self.first: dict[str, KernelText] = {}
        self.also: dict[str, list[str]] = {}  # by kernel: what else it stands for, as comments

    def add(self, text: KernelText) -> KernelText:
        """The text under the name by which it is launched."""
        first = self.first.setdefault(text.shape, text)
        if first is not text:
            self.also.setdefault(first.name, []).extend(comments(text.source)[1:])
        return replace(text, name=first.name)

    def source(self, name: str) -> str:
        """A kernel's CUDA with a remark of what else it is launched for; nothing if there is none of that name."""
        found = next((text for text in self.first.values() if text.name == name), None)
        if found is None:
            return ""
        known = comments(found.source)
        also = [line for line in dict.fromkeys(self.also.get(name, [])) if line not in known]
        return "\n".join([*known, *(["// and, with other tensors,"] if also else []), *also, found.source.split("\n", len(known))[-1]])


def comments(source: str) -> list[str]:
    """The lines of comment that a kernel begins with."""
    return list(itertools.takewhile(lambda line: line.startswith("//"), source.splitlines()))


def together(facts: list[KernelFacts]) -> tuple[KernelFacts, ...]:
    """A kernel that is launched for several places moves and computes what all of them do."""
    found: dict[str, KernelFacts] = {}
    for fact in facts:
        known = found.setdefault(fact.name, KernelFacts(fact.name, (), 0, 0))
        replaces = tuple(dict.fromkeys((*known.replaces, *fact.replaces)))
        found[fact.name] = KernelFacts(fact.name, replaces, known.bytes + fact.bytes, known.flops + fact.flops)
    return tuple(found.values())


ENTRIES = """
// What Python calls: it makes an array in half the time that handing over as many values takes.
#define ENTRY(launcher) extern "C" const char* launcher##_entry(const long long* values) { return unpacked(launcher, {values}); }
"""


def with_prelude(kernels: str, launchers: list[str]) -> str:
    """A CUDA source as it stands in a Python string: what the kernels use of the prelude, then the kernels."""
    kernels += ENTRIES + "".join(f"ENTRY({name})\n" for name in launchers)
    text = ascii_only("\n".join(prelude.device_text(s) for s in prelude.used(kernels)) + "\n" + kernels)
    return text.replace("\\", "\\\\").replace("'''", "")


def ascii_only(text: str) -> str:
    return text.translate(ASCII).encode("ascii", "replace").decode()
