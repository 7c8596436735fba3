"""Kernels as a function of the file sees them: the lines of Python that allocate for them and launch them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
from ..plan import Kernel
from ..prims import Prim
from ..products import is_product
from ..pytext import shape_text
from .kernels import Shared, kernel_text
from .regions import Region, is_asked_for
from .values import Values

Scratch = dict[str, Dim]  # the parts of one allocation, and their bytes
ALIGNED = 256  # bytes: parts of known size, and those of sizes that say nothing, fill a multiple of it
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

    def lines(self, kernel: Kernel, scratch: Scratch) -> list[str]:
        """Allocations, and the launch."""
        made = [name for name in kernel.stores if name not in kernel.overwrites and name not in scratch]
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

    # ---- what only kernels see

    def scratch(self, region: Region, kept: Sequence[str] = ()) -> Scratch:
        """What only the region's kernels see, and its bytes, to lie in one allocation: each takes as long as a launch.

        No whole numbers: who fills memory with what nothing should read knows by its type that these may be places.
        """
        outputs, extra = self.regions.results(region)
        seen = {self.plan.base(self.plan.lowered.value[n]).name for n in outputs} | set(extra) | set(kept)
        needed: Scratch = {}
        for kernel in region.kernels:
            for name in (n for n in kernel.stores if n not in seen and n not in kernel.overwrites):
                prim = self.prims[name]
                if not prim.dtype.is_floating_point and prim.dtype is not torch.bool:
                    continue
                needed[name] = sizes.tidy(sizes.product(prim.shape) * prim.dtype.itemsize)
            needed |= {name: sizes.tidy(words * 4) for name, words in self.workspace(kernel).items()}
        return needed if len(needed) > 1 else {}

    def scratch_lines(self, region: Region, scratch: Scratch) -> list[str]:
        """The allocation, and where each part begins: at the end of the one before it."""
        lines = [line for kernel in region.kernels if kernel.fused is not None for line in self.anchored[kernel.name].sizes]
        if not scratch:
            return lines
        whole, bytes_ = self.values.free_name("scratch"), [padded(size) for size in scratch.values()]
        exact = sizes.tidy(sum(size for size in bytes_ if not isinstance(size, str)))
        words = [sizes.text(sizes.factored(sizes.tidy(sympy.Rational(1, 4) * exact)))] if exact != 0 else []
        words += [f"{size} // 4" for size in bytes_ if isinstance(size, str)]
        lines.append(f"{allocation(whole, (' + '.join(words),), (1,), torch.float32)}  # what only kernels see")
        start = f"{whole}.data_ptr()"
        for name, size in zip(scratch, bytes_, strict=True):
            lines.append(f"{name} = {start}")
            start = f"{name} + {size if isinstance(size, str) else sizes.text(sizes.factored(size))}"
        return lines


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
