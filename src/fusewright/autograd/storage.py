"""Where the values of one function lie and until when: what each step reads and makes, and which temporaries share an arena."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

import torch

from ..codegen.loops.templates import kernel_text
from ..codegen.loops.text import KernelText
from ..codegen.mma.anchored import AnchoredText, anchored_kernel
from ..codegen.mma.attended import attended_kernel
from ..codegen.mma.conv_spec import Conv
from ..ir import sizes
from ..ir.graph import Dim
from ..ir.plan import Call, Kernel
from ..schedule.attention_fusion import Attended
from .lifetimes import Lifetime, Slots, arena, last_steps, most
from .regions import Regions

SEATS = 4  # parts that a sum is cut into where only the device says how many: few, where there are many sums


class Variables:
    """The names of values in a function that launches kernels: its arguments go by their own, what kernels store by the primitives'."""

    def __init__(self, regions: Regions):
        self.regions, self.plan, self.home = regions, regions.plan, regions.home
        self.graph, self.lowered, self.prims = regions.graph, regions.lowered, regions.prims

    def variable(self, name: str) -> str:
        """The tensor that a node's value is, or is a view of."""
        if self.graph[name].is_leaf or name in self.lowered.library:
            return name
        base = self.plan.base(self.lowered.value[name]).name
        return base if base in self.home else self.prims[base].origin

    def free_name(self, name: str) -> str:
        """A name for something of ours that no value of the model has."""
        while name in self.graph.index or name in self.prims:
            name += "_"
        return name


class Steps:
    """Kernels and library calls as a function sees them: what each reads, makes, and needs besides."""

    def __init__(self, variables: Variables, written: Mapping[str, KernelText | AnchoredText] | None = None):
        self.variables, self.regions, self.plan, self.prims = variables, variables.regions, variables.plan, variables.prims
        self.written = dict(written or {})  # kernels in CUDA, by name

    def write(self, kernel: Kernel) -> KernelText | AnchoredText:
        """The kernel in CUDA, written once."""
        if kernel.name not in self.written:
            self.written[kernel.name] = (
                kernel_text(kernel, self.prims, self.plan.graph, self.plan.machine)
                if kernel.fused is None
                else self.anchored_text(kernel, kernel.name in self.open_kernels)
            )
        return self.written[kernel.name]

    def anchored_text(self, kernel: Kernel, open_inputs: bool = False) -> AnchoredText:
        assert kernel.fused is not None
        name_of = functools.partial(self.tensor_name, kernel)
        if isinstance(kernel.fused, Attended):
            return attended_kernel(kernel, [], name_of)
        number = [k for k in self.regions.region_of(kernel).kernels if k.fused is not None].index(kernel) + 1
        own = f"_{number}" if number > 1 else ""
        return anchored_kernel(kernel, kernel.fused, self.plan, [], name_of, own, open_inputs)

    @functools.cached_property
    def open_kernels(self) -> set[str]:
        """Convolutions that differ only in how many input channels they have, as those of dense blocks do: one text serves them."""
        fused = [kernel for kernel in self.plan.every_kernel if not isinstance(kernel.fused, Attended | None)]
        convolutions = [kernel for kernel in fused if isinstance(kernel.fused.anchor.conv, Conv)]
        alike: dict[str, dict[str, int]] = {}
        for kernel in convolutions if len(convolutions) > 1 else ():
            shape = self.anchored_text(kernel, open_inputs=True).shape
            alike.setdefault(shape, {})[kernel.name] = kernel.fused.anchor.conv.in_channels
        return {name for found in alike.values() if len(set(found.values())) > 1 for name in found}

    def tensor_name(self, kernel: Kernel, prim: str) -> str:
        """What a tensor that the kernel reads is called in its region."""
        return prim if prim in self.regions.own_values(kernel) else self.regions.argument_of(prim)

    def workspace(self, kernel: Kernel) -> dict[str, Dim]:
        """What the kernel needs besides its tensors, in words of four bytes."""
        text = self.write(kernel)
        if isinstance(text, AnchoredText):
            return dict(text.workspace)
        found = text.workspace
        return {self.variables.free_name(partial_of(kernel)): sizes.tidy(found.count * found.words)} if found is not None else {}

    def makes(self, step: Kernel | Call) -> list[str]:
        """Variables of the function that a step makes, but for its workspace."""
        return [step.node.name] if isinstance(step, Call) else [name for name in step.stores if name not in step.overwrites]

    def reads(self, steps: Sequence[Kernel | Call]) -> list[set[str]]:
        """Variables of the function that each step reads or writes into."""
        return [
            set(map(self.variables.variable, step.node.inputs)) if isinstance(step, Call) else self.read_by(step)
            for step in steps
        ]

    def read_by(self, kernel: Kernel) -> set[str]:
        return {self.tensor_name(kernel, name) for name in (*kernel.loads, *kernel.overwrites.values())}

    def bytes(self, name: str) -> Dim:
        """Of a primitive or a node."""
        prim = self.prims.get(name) or self.plan.graph.index.get(name)
        if prim is None or prim.shape is None or prim.dtype is None:
            return 0
        return sizes.tidy(sizes.product(prim.shape) * prim.dtype.itemsize)

    def may_be_large(self, name: str) -> bool:
        node = self.plan.graph.index.get(name)
        several = node is not None and node.shape is None
        return several or Lifetime(name, self.bytes(name), 0, 0).matters

    def hint(self, size: Dim) -> int:
        """The bytes of a part in the example."""
        symbols = {} if isinstance(size, int) else dict.fromkeys(size.free_symbols - set(self.plan.graph.symbols), SEATS)
        return self.plan.graph.hint(size.subs(symbols) if symbols else size)


class Storage:
    """The steps of a function and how long each needs what: temporaries in one arena (an allocation takes as long as a launch) or freed
    after the last step that reads them. `handed` are arguments that are the function's to free; saved activations (`saved`) are freed only
    where no backward will follow; what is `leaving` stays.

    No whole numbers lie in the arena: who fills memory with what nothing should read knows by its type that these may be places.
    """

    def __init__(
        self,
        of: Steps,
        steps: Sequence[Kernel | Call],
        leaving: Collection[str],
        handed: Collection[str],
        saved: Collection[str] = (),
    ):
        self.of, self.steps, self.saved = of, steps, saved
        last = last_steps(of.reads(steps))
        self.lives = [Lifetime(name, of.bytes(name), 0, last.get(name, 0)) for name in handed]
        workspaces: list[Lifetime] = []
        for position, step in enumerate(steps):
            for name in of.makes(step):
                end = len(steps) - 1 if name in leaving else last.get(name, position)
                self.lives.append(Lifetime(name, of.bytes(name), position, end))
            if isinstance(step, Kernel):
                found = of.workspace(step).items()
                workspaces += [Lifetime(name, sizes.tidy(words * 4), position, position) for name, words in found]
        called = {of.variables.variable(name) for step in steps if isinstance(step, Call) for name in step.node.inputs}
        shared = {name for step in steps if isinstance(step, Kernel) for name in of.makes(step) if self.may_share(name)}
        parts = [life for life in self.lives if life.name in shared - {*leaving, *saved, *called}] + workspaces
        parts.sort(key=lambda part: part.first)
        self.slots: Slots = arena(parts, [life for life in self.lives if life not in parts], of.hint)
        if sum(map(len, self.slots)) < 2:
            self.slots = []
        self.scratch = {part.name for slot in self.slots for part in slot}
        self.every = [*self.lives, *workspaces]
        self.lives = [life for life in self.every if life.name not in self.scratch and life.name not in leaving]

    def peak(self, without: Collection[str] = ()) -> int:
        """The most bytes that the function holds at once, in the example, `without` some of its tensors."""
        apart = [life for life in self.every if life.name not in without and life.name not in self.scratch]
        return most(apart, self.slots, self.of.hint)

    def may_share(self, name: str) -> bool:
        dtype = self.of.prims[name].dtype
        return dtype.is_floating_point or dtype is torch.bool

    def position(self, step: Kernel | Call) -> int:
        return next(p for p, other in enumerate(self.steps) if other is step)


def partial_of(kernel: Kernel) -> str:
    """What the region calls the partial results of a kernel."""
    return f"{kernel.name}_partial"
