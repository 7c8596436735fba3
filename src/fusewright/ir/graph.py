"""The graph: what a model computes, as aten calls on values with symbolic sizes. Frozen; a pass makes a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import sympy
import torch
from torch._ops import OpOverload

from .reads import Reads

Dim: TypeAlias = Any  # a size: an int, or a sympy expression in the symbols of the inputs' sizes

DRAWN_IN_ORDER = frozenset(
    "native_dropout dropout rand_like randn_like randint_like bernoulli uniform normal normal_functional exponential poisson binomial "
    "random geometric cauchy log_normal rrelu rrelu_with_noise rrelu_with_noise_functional".split()
)
LEAVES = ("input", "parameter", "buffer", "constant")


@dataclass(frozen=True)
class Ref:
    """Stands in a node's arguments for the value of another node."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Where:
    """Where in the user's model a node comes from, for messages and for the comments in the emitted file."""

    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} ({self.module})" if self.module else place


@dataclass(frozen=True)
class Node:
    """One aten call, an element of one (`getitem`), or a leaf: input, parameter, buffer or constant.

    A leaf's only argument is its path (`conv.weight`) or, for an input, its position. A call that gives several tensors has
    `shape` None; its elements are `getitem` nodes. Of a call that draws random numbers, or looks into memory by itself, `strides`
    are those that the tensors it reads have in eager, one after another; None where they cannot be others. Of a leaf that these
    depend on, its own.
    """

    name: str
    target: OpOverload | str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[Dim, ...] | None = None
    dtype: torch.dtype | None = None
    where: Where = Where()
    strides: tuple[tuple[Dim, ...] | None, ...] = ()

    @property
    def is_leaf(self) -> bool:
        return self.target in LEAVES

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it reads, in order, each once."""
        return tuple(dict.fromkeys(ref.name for ref in refs((self.args, dict(self.kwargs)))))

    def bound(self) -> dict[str, Any]:
        """Arguments by their schema names, defaults filled in."""
        assert isinstance(self.target, OpOverload)
        arguments = self.target._schema.arguments
        values = {a.name: a.default_value for a in arguments if a.has_default_value()}
        values.update({a.name: v for a, v in zip(arguments, self.args, strict=False)})
        values.update(self.kwargs)
        return values


@dataclass(frozen=True)
class Binding:
    """A symbol's value is the size of dimension `dim` of argument `input`; `hint` is its value in the example."""

    input: int
    dim: int
    hint: int
    lower: int = 0


@dataclass(frozen=True)
class Output:
    """A value that leaves the graph: returned to the user, or written back to a buffer or an input."""

    value: Any  # Ref, or a plain constant that the model returns
    kind: str = "return"  # return | buffer | input
    path: str = ""  # of the buffer, or the input's name
    memory: str = ""  # of a buffer or what is returned: the leaf that it lies in, or the call of the traced program (%name)
    order: torch.memory_format | None = None  # of its elements, where forward asks for one: `.contiguous()`


@dataclass(frozen=True)
class Graph:
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    symbols: Mapping[sympy.Symbol, Binding] = field(default_factory=dict)
    guards: tuple[sympy.Basic, ...] = ()
    arguments: tuple[Any, ...] = ()  # forward's arguments, flattened: a Ref to an input, or a plain value that was baked in
    structure: Any = None  # forward's arguments as given, with positions in `arguments` as leaves
    result: Any = None  # the structure returned to the user, with positions of `outputs` as leaves
    assigned: Mapping[str, Any] = field(default_factory=dict)  # what forward leaves on its modules, by path, as in `result`
    counted: Mapping[str, int] = field(default_factory=dict)  # numbers on its modules that it adds to, by path
    reads: Reads = field(default_factory=Reads)  # what it took from Python
    trained: frozenset[str] = frozenset()  # inputs whose gradients training asks for, beside those of parameters
    trains_others: bool = False  # tensors that are no inputs, parameters or buffers have gradients: those of layers in a plain list
    asks_layout: bool = False  # forward asks how tensors lie in memory
    in_grad_mode: bool = False  # forward does something else where gradients are not enabled
    own_gradients: bool = False  # its derivatives are not its operators': a torch.autograd.Function, a complex tensor written to

    def __getitem__(self, name: str) -> Node:
        return self.index[name]

    @cached_property
    def index(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        return {node.name: number for number, node in enumerate(self.nodes)}

    def in_order(self, names: Iterable[str]) -> list[Node]:
        """Nodes as the graph has them, one after another."""
        return [self.nodes[number] for number in sorted(self.position[name] for name in names)]

    def users(self) -> dict[str, list[str]]:
        """Who reads each value: nodes by name, and `output 0` and so on."""
        return self._users

    @cached_property
    def _users(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs:
                found[name].append(node.name)
        for position, output in enumerate(self.outputs):
            if isinstance(output.value, Ref):
                found[output.value.name].append(f"output {position}")
        return found

    def check(self) -> Graph:
        """Invariants: names are unique, every value is defined before its use, every shape and type is known."""
        seen: set[str] = set()
        for node in self.nodes:
            assert node.name not in seen, f"{node.name} is defined twice"
            for name in node.inputs:
                assert name in seen, f"{node.name} uses {name} before its definition"
            assert node.is_leaf or node.shape is None or node.dtype is not None, f"{node.name} has no type"
            seen.add(node.name)
        for output in self.outputs:
            assert not isinstance(output.value, Ref) or output.value.name in seen, (
                f"output {output.value} is not defined"
            )
        return self

    def hint(self, size: Dim) -> int:
        """The value of a size in the example."""
        if isinstance(size, int):
            return size
        if size not in self._hints:
            self._hints[size] = int(size.subs({symbol: binding.hint for symbol, binding in self.symbols.items()}))
        return self._hints[size]

    @cached_property
    def _hints(self) -> dict[Dim, int]:
        return {}

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            shape = "tuple" if node.shape is None else "×".join(map(str, node.shape)) or "scalar"
            target = node.target if isinstance(node.target, str) else str(node.target).removeprefix("aten.")
            arguments = ", ".join([*map(repr, node.args), *(f"{k}={v!r}" for k, v in node.kwargs.items())])
            kind = str(node.dtype).removeprefix("torch.") if node.dtype is not None else ""
            place = f"    # {node.where}" if str(node.where) else ""
            lines.append(f"%{node.name}: {kind}[{shape}] = {target}({arguments}){place}")
        lines += [f"{output.kind} {output.value!r} {output.path}".rstrip() for output in self.outputs]
        return "\n".join(lines)


def draws(node: Node) -> bool:
    """It draws random numbers: attention does not, where nothing is dropped."""
    random = isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return random and node.bound().get("dropout_p") != 0.0


def draws_in_order(node: Node) -> bool:
    """It draws a number for each element of what it reads, in the order in which that lies in memory."""
    return draws(node) and str(node.target).split(".")[1] in DRAWN_IN_ORDER


def shows_memory(node: Node) -> bool:
    """What it gives depends on how what it reads lies in memory."""
    return draws_in_order(node) or node.target is torch.ops.aten.as_strided.default


def refs(tree: Any) -> Iterator[Ref]:
    """Every reference inside nested arguments."""
    if isinstance(tree, Ref):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from refs(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from refs(item)


def map_refs(tree: Any, change: Mapping[str, Any]) -> Any:
    """The same arguments with references replaced by `change`."""
    if isinstance(tree, Ref):
        return change.get(tree.name, tree)
    if isinstance(tree, list):
        return [map_refs(item, change) for item in tree]
    if isinstance(tree, tuple):
        return tuple(map_refs(item, change) for item in tree)
    if isinstance(tree, Mapping):
        return {key: map_refs(item, change) for key, item in tree.items()}
    return tree
