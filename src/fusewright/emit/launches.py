"""Kernels as a function of the file sees them: the lines of Python that allocate for them and launch them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .. import sizes
from ..attention import Attended
from ..graph import Dim
from ..index import contiguous
from ..kernels.anchored import AnchoredText, anchored_kernel, names_in
from ..kernels.attended import attended_kernel
from ..kernels.expression import pointer, sizes_of
from ..kernels.text import KernelText, shape_of
from ..layout import memory_format
from ..plan import Call, Kernel
from ..prims import Prim
from ..products import is_product
from ..pytext import shape_text
from .kernels import Shared, kernel_text
from .lifetimes import Lifetime, Slots, arena, last_steps, most
from .regions import is_asked_for
from .values import Values

ALIGNED = 256  # bytes: parts of known size, and those of sizes that say nothing, fill a multiple of it
SEATS = 4  # parts that a sum is cut into where only the device says how many: few, where there are many sums
WIDEST = 16  # bytes: what one load takes; a part whose size is a multiple of it is left as it is


class Launches:
    """The kernels of one plan in CUDA, and what is launched how."""

    def __init__(self, values: Values, unit: Shared):
        self.values, self.unit = values, unit
        self.regions, self.plan, self.prims = values.regions, values.plan, values.prims
        self.texts: dict[str, KernelText] = {}
        self.anchored: dict[str, AnchoredText] = {}  # those that compute a convolution or a product

    def add(self, kernel: Kernel, comment: list[str]) -> None:
        """Write the kernel; `comment` stands above it."""
        if kernel.fused is None:
            self.texts[kernel.name] = self.unit.add(kernel_text(kernel, self.prims, self.plan.graph, comment))
            return
        text = self.anchored_text(kernel, comment, kernel.name in self.open_kernels)
        self.anchored[kernel.name] = self.unit.add_anchored(kernel.name, text, self.anchored_shape(kernel, text))

    def anchored_text(self, kernel: Kernel, comment: list[str], open_inputs: bool = False) -> AnchoredText:
        assert kernel.fused is not None
        name_of = functools.partial(self.tensor_name, kernel)
        if isinstance(kernel.fused, Attended):
            return attended_kernel(kernel, comment, name_of)
        number = [k for k in self.regions.region_of(kernel).kernels if k.fused is not None].index(kernel) + 1
        own = f"_{number}" if number > 1 else ""
        return anchored_kernel(kernel, kernel.fused, self.plan, comment, name_of, own, open_inputs)

    def anchored_shape(self, kernel: Kernel, text: AnchoredText) -> str:
        values = self.words_of_values | names_of(kernel.name)
        assert kernel.fused is not None
        bodies = [kernel.fused.body] if isinstance(kernel.fused, Attended) else kernel.fused.ending.bodies
        for body in bodies:  # what chains are made of has names of its own
            values |= names_in(body) | {table.name for table in body.tables}
        return shape_of(text.source, values)

    @functools.cached_property
    def words_of_values(self) -> set[str]:
        """Names that mean something in one kernel alone: of values, their accumulators, and their sizes."""
        words = {word for name in self.prims for word in (name, pointer(name), f"{name}_acc")}
        return words | {word for prim in self.prims.values() for word, _ in sizes_of(prim)}

    @functools.cached_property
    def open_kernels(self) -> set[str]:
        """Convolutions that differ only in how many input channels they have, as those of dense blocks do: one text serves them."""
        fused = [kernel for kernel in self.plan.every_kernel if not isinstance(kernel.fused, Attended | None)]
        convolutions = [kernel for kernel in fused if not is_product(kernel)]
        alike: dict[str, dict[str, int]] = {}
        for kernel in convolutions if len(convolutions) > 1 else ():
            shape = self.anchored_shape(kernel, self.anchored_text(kernel, [], open_inputs=True))
            alike.setdefault(shape, {})[kernel.name] = kernel.fused.anchor.conv.in_channels
        return {name for found in alike.values() if len(set(found.values())) > 1 for name in found}

    def share_numbers(self) -> None:
        """Once all are written: what differs only in numbers is launched as one."""
        found = self.unit.share_numbers()
        for kernel, text in self.texts.items():
            if text.name in found:
                now = found[text.name]
                self.texts[kernel] = replace(text, name=now.name, sizes=(*text.sizes, *now.sizes[len(text.sizes) :]))

    # ---- the kernels in the file

    @property
    def on_tensor_cores(self) -> list[AnchoredText]:
        return [text for text in self.anchored.values() if text.tensor_cores]

    def launchers(self, kernel: Kernel) -> tuple[str, ...]:
        return self.anchored[kernel.name].names if kernel.fused is not None else (self.texts[kernel.name].name,)

    def is_first(self, kernel: Kernel) -> bool:
        """It stands in the file; another of its shape is launched by its name."""
        return self.launchers(kernel)[0] == kernel.name

    def first(self) -> list[str]:
        """The kernels that stand in the file, each once."""
        added = [kernel for kernel in self.plan.every_kernel if kernel.name in self.texts or kernel.name in self.anchored]
        return [kernel.name for kernel in added if self.is_first(kernel)]

    # ---- what a kernel is given

    def lines(self, kernel: Kernel, scratch: Collection[str]) -> list[str]:
        """Allocations, and the launch."""
        made = [name for name in self.makes(kernel) if name not in scratch]
        lines = [self.allocation_of(self.prims[name]) + self.if_kept(name, kernel) for name in made]
        workspace = {name: size for name, size in self.workspace(kernel).items() if name not in scratch}
        lines += [allocation(name, (size,), (1,), torch.float32) for name, size in workspace.items()]
        if kernel.fused is not None:
            first, *others = self.anchored[kernel.name].lines
            if any(is_asked_for(name, kernel) for name in made) and not is_product(kernel):
                name = first.split('"')[1]
                first = first.replace(f'"{name}"', f'"{name}" if {self.values.free_name("kept")} is None else "{name} keeping"', 1)
            return [*lines, first, *others]
        text = self.texts[kernel.name]
        tensors = [*(self.tensor_name(kernel, name) for name in text.tensors), *self.workspace(kernel)]
        lines.append(f"_launch({', '.join([repr(text.name).replace(chr(39), chr(34)), *tensors, *text.sizes])})")
        return lines

    def if_kept(self, name: str, kernel: Kernel) -> str:
        return f" if {self.values.free_name('kept')} is not None else 0" if is_asked_for(name, kernel) else ""

    def tensor_name(self, kernel: Kernel, prim: str) -> str:
        """What a tensor that the kernel reads is called in its region."""
        return prim if prim in self.regions.own_values(kernel) else self.regions.argument_of(prim)

    def straightened(self, name: str, load: str) -> str:
        """The tensor laid out as kernels read it; the same one if it lies so."""
        prim, step = self.prims[load], self.prims[load].step
        if step:
            return f"{name}, {step} = _with_step({name})"
        if prim.op.order:
            back = tuple(map(prim.order.index, range(len(prim.order))))
            return f"{name} = {name}.permute({shape_text(prim.order)}).contiguous().permute({shape_text(back)})"
        return f"{name} = {name}.contiguous({memory_format(self.prims[load])})"

    def allocation_of(self, prim: Prim) -> str:
        shape = self.values.shaped.get(prim.name)
        strides = prim.strides if shape is None else contiguous(shape)
        return allocation(prim.name, prim.shape if shape is None else shape, strides, prim.dtype)

    def workspace(self, kernel: Kernel) -> dict[str, Dim]:
        """What the kernel needs besides its tensors, in words of four bytes."""
        if kernel.fused is not None:
            return dict(self.anchored[kernel.name].workspace)
        found = self.texts[kernel.name].workspace
        return {self.values.free_name(partial_of(kernel)): sizes.tidy(found.count * found.words)} if found is not None else {}

    # ---- how long things are needed

    def makes(self, step: Kernel | Call) -> list[str]:
        """Variables of the function that a step makes, but for its workspace."""
        return [step.node.name] if isinstance(step, Call) else [name for name in step.stores if name not in step.overwrites]

    def reads(self, steps: Sequence[Kernel | Call]) -> list[set[str]]:
        """Variables of the function that each step reads or writes into."""
        return [
            set(map(self.values.variable, step.node.inputs)) if isinstance(step, Call) else self.read_by(step)
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


class Body:
    """The steps of a function and how long each needs what: temporaries in one arena (an allocation takes as long as a launch) or freed
    after the last step that reads them. `handed` are arguments that are the function's to free; what is `kept` for backward is freed only
    where nobody asked for it; what is `leaving` stays.

    No whole numbers lie in the arena: who fills memory with what nothing should read knows by its type that these may be places.
    """

    def __init__(
        self,
        launches: Launches,
        steps: Sequence[Kernel | Call],
        leaving: Collection[str],
        handed: Collection[str],
        kept: Collection[str] = (),
    ):
        self.launches, self.steps, self.kept = launches, steps, kept
        last = last_steps(launches.reads(steps))
        self.lives = [Lifetime(name, launches.bytes(name), 0, last.get(name, 0)) for name in handed]
        workspaces: list[Lifetime] = []
        for position, step in enumerate(steps):
            for name in launches.makes(step):
                end = len(steps) - 1 if name in leaving else last.get(name, position)
                self.lives.append(Lifetime(name, launches.bytes(name), position, end))
            if isinstance(step, Kernel):
                found = launches.workspace(step).items()
                workspaces += [Lifetime(name, sizes.tidy(words * 4), position, position) for name, words in found]
        called = {launches.values.variable(name) for step in steps if isinstance(step, Call) for name in step.node.inputs}
        shared = {name for step in steps if isinstance(step, Kernel) for name in launches.makes(step) if self.may_share(name)}
        parts = [life for life in self.lives if life.name in shared - {*leaving, *kept, *called}] + workspaces
        parts.sort(key=lambda part: part.first)
        self.slots: Slots = arena(parts, [life for life in self.lives if life not in parts], launches.hint)
        if sum(map(len, self.slots)) < 2:
            self.slots = []
        self.scratch = {part.name for slot in self.slots for part in slot}
        self.every = [*self.lives, *workspaces]
        self.lives = [life for life in self.every if life.name not in self.scratch and life.name not in leaving]

    def peak(self, without: Collection[str] = ()) -> int:
        """The most bytes that the function holds at once, in the example, `without` some of its tensors."""
        hint = self.launches.hint
        return most([life for life in self.every if life.name not in without and life.name not in self.scratch], self.slots, hint)

    def may_share(self, name: str) -> bool:
        dtype = self.launches.prims[name].dtype
        return dtype.is_floating_point or dtype is torch.bool

    def first_lines(self) -> list[str]:
        """How large workspaces are."""
        kernels = [step for step in self.steps if isinstance(step, Kernel) and step.fused is not None]
        return [line for kernel in kernels for line in self.launches.anchored[kernel.name].sizes]

    def made_before(self, step: Kernel | Call) -> list[str]:
        """The arena, before the first step that needs it, and where each part begins: at the end of those before it, or where another
        lay that is not needed by then."""
        if not self.slots or self.position(step) != min(part.first for slot in self.slots for part in slot):
            return []
        lines: list[str] = []
        whole, bytes_ = self.whole, [of_slot([part.bytes for part in slot]) for slot in self.slots]
        exact = sizes.tidy(sum(size for size in bytes_ if not isinstance(size, str)))
        words = [sizes.text(sizes.factored(sizes.tidy(sympy.Rational(1, 4) * exact)))] if exact != 0 else []
        words += [f"{size} // 4" for size in bytes_ if isinstance(size, str)]
        lines.append(f"{allocation(whole, (' + '.join(words),), (1,), torch.float32)}  # what only kernels see")
        start = f"{whole}.data_ptr()"
        for slot, size in zip(self.slots, bytes_, strict=True):
            first = slot[0].name
            lines.append(f"{' = '.join(part.name for part in slot)} = {start}")
            start = f"{first} + {size if isinstance(size, str) else sizes.text(sizes.factored(size))}"
        return lines

    def position(self, step: Kernel | Call) -> int:
        return next(p for p, other in enumerate(self.steps) if other is step)

    @property
    def whole(self) -> str:
        return self.launches.values.free_name("scratch")

    def freed_after(self, step: Kernel | Call) -> list[str]:
        """What nothing needs after a step; after the last one the function returns."""
        position = self.position(step)
        if position == len(self.steps) - 1:
            return []
        called = {other.node.name for other in self.steps if isinstance(other, Call)}
        dying = [life.name for life in self.lives if life.last == position and (life.matters or life.name in called)]
        if self.slots and max(part.last for slot in self.slots for part in slot) == position:
            dying.append(self.whole)
        asked = {name for kernel in self.steps if isinstance(kernel, Kernel) for name in kernel.stores if is_asked_for(name, kernel)}
        now = [name for name in dying if name not in self.kept]
        unless = [name for name in dying if name in self.kept and name not in asked]
        lines = [f"del {', '.join(now)}"] if now else []
        if unless:
            lines += [f"if {self.launches.values.free_name('kept')} is None:", f"    del {', '.join(unless)}"]
        return lines


def of_slot(needed: Sequence[Dim]) -> Dim | str:
    """The bytes of the largest part that lies at a place; text where only the sizes of a call tell which that is."""
    largest: list[Dim] = []
    for size in needed:
        if not any(sizes.never_negative(sizes.tidy(other - size)) for other in largest):
            largest = [other for other in largest if not sizes.never_negative(sizes.tidy(size - other))] + [size]
    found = [padded(size) for size in largest]
    if len(found) == 1:
        return found[0]
    return f"max({', '.join(size if isinstance(size, str) else sizes.text(sizes.factored(size)) for size in found)})"


def unpacked(names: Sequence[str]) -> str:
    """What a sequence is assigned to, one name for each of its items."""
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)


def names_of(kernel: str) -> set[str]:
    """What the text of a kernel with an anchor calls itself and its parts."""
    return {f"{kernel}{part}" for part in ("", "_detail", "_merge", "_merge_kernel")}


def partial_of(kernel: Kernel) -> str:
    """What the region calls the partial results of a kernel."""
    return f"{kernel.name.removeprefix('fused_')}_partial"


def allocation(name: str, shape: tuple[Any, ...], strides: tuple[Any, ...], dtype: torch.dtype) -> str:
    """Memory of its own, for a kernel to write."""

    def listed(sizes_: tuple[Any, ...]) -> str:
        words = [size if isinstance(size, str) else sizes.text(sizes.factored(size)) for size in sizes_]
        return f"({', '.join(words)}{',' if len(words) == 1 else ''})"

    return f"{name} = _empty({listed(shape)}, {listed(strides)}, {dtype})"


def padded(size: Dim) -> Dim | str:
    """As many bytes as leave the next part aligned; text where that takes a division."""
    if isinstance(size, int):
        return -(-size // ALIGNED) * ALIGNED
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(sympy.expand(size))]
    if all(factor.is_Integer and factor % WIDEST == 0 for factor in factors):
        return size
    return f"({sizes.text(sizes.factored(size))} + {ALIGNED - 1}) // {ALIGNED} * {ALIGNED}"
