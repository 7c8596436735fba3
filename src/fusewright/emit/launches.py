"""Kernels as a function of the file sees them: the lines of Python that allocate for them and launch them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from ..autograd.regions import is_asked_for
from ..autograd.storage import Steps, Storage
from ..codegen.loops.text import KernelText, wrapped
from ..codegen.mma.anchored import AnchoredText, Launch
from ..ir import sizes
from ..ir.graph import Dim
from ..ir.index import contiguous
from ..ir.plan import Call, Kernel
from ..ir.prims import Prim
from ..ir.pytext import shape_text
from ..schedule.layout import memory_format
from ..schedule.product_fusion import is_product
from .kernels import Shared
from .lines import WIDTH, contiguous_lines
from .values import Values

ALIGNED = 256  # bytes: parts of known size, and those of sizes that say nothing, fill a multiple of it
AT_ONCE = 32  # elements: more than any thread reads in one piece
LONGEST_SIZE = 100  # letters of a sum that stands in a line with others
WIDEST = 16  # bytes: what one load takes; a part whose size is a multiple of it is left as it is


class Launches(Steps):
    """The kernels of one plan in CUDA, and what is launched how. `written` are those that an earlier stage has in CUDA."""

    def __init__(self, values: Values, unit: Shared, written: Mapping[str, KernelText | AnchoredText] | None = None):
        super().__init__(values, written)
        self.values, self.unit = values, unit
        self.texts: dict[str, KernelText] = {}
        self.anchored: dict[str, AnchoredText] = {}  # those that compute a convolution or a product
        self.apart = False  # some are built apart for those who ask for what they may store
        self.steps = False  # some tensor is read with a step

    def add(self, kernel: Kernel, comment: list[str]) -> None:
        """Write the kernel; `comment` stands above it."""
        text = self.write(kernel)
        if isinstance(text, KernelText):
            self.texts[kernel.name] = self.unit.add(replace(text, comment=(*comment, *text.comment)))
        else:
            self.anchored[kernel.name] = self.unit.add_anchored(kernel.name, replace(text, comment=(*comment, *text.comment)))

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
        lines = [line for name in made for line in self.allocation_of(self.prims[name], self.if_saved(name, kernel))]
        workspace = {name: size for name, size in self.workspace(kernel).items() if name not in scratch}
        lines += [line for name, size in workspace.items() for line in allocation(name, (size,), (1,), torch.float32)]
        if kernel.fused is not None:
            saves = any(is_asked_for(name, kernel) for name in made) and not is_product(kernel)
            self.apart |= saves
            first, *others = self.anchored[kernel.name].launches
            lines += launch_lines(first, self.values.free_name("saved") if saves else "")
            return [*lines, *(line for launch in others for line in launch_lines(launch))]
        text = self.texts[kernel.name]
        tensors = [*(self.tensor_name(kernel, name) for name in text.tensors), *self.workspace(kernel)]
        return [*lines, *launch_lines(Launch(text.name, (((*tensors, *text.sizes), ""),)))]

    def if_saved(self, name: str, kernel: Kernel) -> str:
        return f" if {self.values.free_name('saved')} is not None else 0" if is_asked_for(name, kernel) else ""

    def straightened(self, loads: Sequence[tuple[str, str]], alone: Collection[str] = ()) -> list[str]:
        """Tensors (name, what it is loaded as) laid out as kernels read them; the same ones where they lie so. Of those that are `alone`,
        each original is freed before the next one is copied."""
        together = [(name, load) for name, load in loads if name not in alone and self.is_plainly_contiguous(load)]
        others = [self.straightened_alone(*one) for one in loads if one not in together]
        return [*contiguous_lines([name for name, _ in together]), *others]

    def is_plainly_contiguous(self, load: str) -> bool:
        """The kernels that load it read one element after another, in the order of its dimensions."""
        prim = self.prims[load]
        return not (prim.step or prim.op.order or memory_format(prim))

    def straightened_alone(self, name: str, load: str) -> str:
        prim, step = self.prims[load], self.prims[load].step
        if step:
            self.steps = True
            return f"{name}, {step} = _with_step({name}{f', {AT_ONCE}' if prim.op.repeated else ''})"
        if prim.op.order:
            back = tuple(map(prim.order.index, range(len(prim.order))))
            return f"{name} = {name}.permute({shape_text(prim.order)}).contiguous().permute({shape_text(back)})"
        return f"{name} = {name}.contiguous({memory_format(prim)})"

    def allocation_of(self, prim: Prim, condition: str) -> list[str]:
        shape = self.values.shaped.get(prim.name)
        strides = prim.strides if shape is None else contiguous(shape)
        return allocation(prim.name, prim.shape if shape is None else shape, strides, prim.dtype, condition)


class Body(Storage):
    """The steps of a function: where its temporaries are allocated and freed, as lines."""

    def __init__(
        self,
        launches: Launches,
        steps: Sequence[Kernel | Call],
        leaving: Collection[str],
        handed: Collection[str],
        saved: Collection[str] = (),
    ):
        super().__init__(launches, steps, leaving, handed, saved)
        self.launches = launches

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
        for often in [size for size, count in Counter(bytes_).items() if isinstance(size, str) and count > 1]:
            first = next(slot[0].name for slot, size in zip(self.slots, bytes_, strict=True) if size == often)
            name = self.launches.values.free_name(f"{first}_bytes")
            lines.append(f"{name} = {often}")
            bytes_ = [name if size == often else size for size in bytes_]
        exact = sizes.tidy(sum(size for size in bytes_ if not isinstance(size, str)))
        words = [sizes.text(sizes.factored(sizes.tidy(sympy.Rational(1, 4) * exact)))] if exact != 0 else []
        counts = Counter(size for size in bytes_ if isinstance(size, str))
        words += [f"{size} // 4" if count == 1 else f"{count} * {size} // 4" for size, count in counts.items()]
        total = " + ".join(words)
        if len(total) > LONGEST_SIZE:
            total = self.launches.values.free_name("floats")
            lines += wrapped(f"{total} = sum((", words, ",))", limit=WIDTH)
        lines += allocation(whole, (total,), (1,), torch.float32, "  # what only kernels see")
        start = f"{whole}.data_ptr()"
        for slot, size in zip(self.slots, bytes_, strict=True):
            first = slot[0].name
            lines.append(f"{' = '.join(part.name for part in slot)} = {start}")
            start = f"{first} + {size if isinstance(size, str) else sizes.text(sizes.factored(size))}"
        return lines

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
        now = [name for name in dying if name not in self.saved]
        unless = [name for name in dying if name in self.saved and name not in asked]
        lines = [f"del {', '.join(now)}"] if now else []
        if unless:
            lines += [f"if {self.launches.values.free_name('saved')} is None:", f"    del {', '.join(unless)}"]
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


def launch_lines(launch: Launch, saved: str = "") -> list[str]:
    """The call in Python; where `saved` names a list, by the kernel that stores values for backward if there is one."""
    name = f'"{launch.name}" if {saved} is None else "{launch.name} saving"' if saved else f'"{launch.name}"'
    if not any(remark for _, remark in launch.rows):
        return wrapped("_launch(", [name, *(argument for arguments, _ in launch.rows for argument in arguments)], ")", limit=WIDTH)
    rows = [", ".join(arguments) for arguments, _ in launch.rows]
    rows = [f"_launch({name}, {rows[0]}", *(f"    {row}" for row in rows[1:])]
    remarks = [f"  # {remark}" if remark else "" for _, remark in launch.rows]
    ends = [*("," for _ in rows[1:]), ")"]
    return [row + end + remark for row, end, remark in zip(rows, ends, remarks, strict=True)]


def allocation(name: str, shape: tuple[Any, ...], strides: tuple[Any, ...], dtype: torch.dtype, behind: str = "") -> list[str]:
    """Memory of its own, for a kernel to write; `behind` it something else may stand."""

    def listed(sizes_: tuple[Any, ...]) -> str:
        words = [size if isinstance(size, str) else sizes.text(sizes.factored(size)) for size in sizes_]
        return f"({', '.join(words)}{',' if len(words) == 1 else ''})"

    return wrapped(f"{name} = _empty(", [listed(shape), listed(strides), str(dtype)], f"){behind}", limit=WIDTH)


def padded(size: Dim) -> Dim | str:
    """As many bytes as leave the next part aligned; text where that takes a division."""
    if isinstance(size, int):
        return -(-size // ALIGNED) * ALIGNED
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(sympy.expand(size))]
    if all(factor.is_Integer and factor % WIDEST == 0 for factor in factors):
        return size
    return f"({sizes.text(sizes.factored(size))} + {ALIGNED - 1}) // {ALIGNED} * {ALIGNED}"
