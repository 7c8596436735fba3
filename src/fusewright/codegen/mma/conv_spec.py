"""What a convolution kernel is asked to do: frozen facts, no text.

A convolution kernel multiplies on the tensor cores and then finishes the chain in registers. `Conv` states the
convolution, `Epilogue` what happens to its elements before anything is written, `Tile` how the work is cut.
Batch and spatial sizes are not here: they are arguments of the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ...ir.cpp import kind_text
from ...ir.expr import Expr, Kind, Name, Pointer, names_in, substituted, words_in, words_of
from ...ir.stmt import Declare, Statement, names_read, renamed, statements, words
from ...target.helpers import Helper

MOST_ODD = 31  # tiles of a sample that halves do not fit, each of which is computed once more by itself; of more, all are
PRODUCERS, PRODUCER_REGISTERS = 128, 88  # threads that fill stages, and the registers each keeps
ELEMENTS = {"float32": ("float", 4), "float16": ("__half", 2), "bfloat16": ("__nv_bfloat16", 2)}  # C type, bytes


@dataclass(frozen=True)
class Conv:
    """A convolution of 1 to 3 dimensions over NCHW-like tensors.

    A transposed convolution's weight is [in, out / groups, *kernel]; `padding` is PyTorch's own argument in both cases.
    """

    dims: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    bias: bool = True
    dtype: str = "float32"
    tf32: bool = True
    bf16_parts: bool = False  # float32 where TF32 is allowed: each number is the sum of two bf16 ones, 16 bits where TF32 has 11
    scaled: bool = False  # float32 where TF32 is allowed: scaled and rounded to fp16, which has as many bits; what does not fit is TF32
    transposed: bool = False
    output_padding: tuple[int, ...] = (0, 0, 0)  # the last of them count; transposed convolutions only
    saves: bool = False  # its result is written too, where there is memory given for it
    open_inputs: bool = False  # how many input channels there are is an argument of the kernel, so that layers share it
    in_runs: bool = False  # rows of the output do not begin at whole sectors of memory: a warp writes its part of each at once
    row_fragments: int = 8  # fragments side by side that suit the output's rows, where warpgroup MMAs multiply neighbours in a row

    @functools.cached_property
    def element(self) -> str:
        """The C type of what is in memory."""
        return ELEMENTS[self.dtype][0]

    @functools.cached_property
    def item_bytes(self) -> int:
        return ELEMENTS[self.dtype][1]

    @functools.cached_property
    def is_strict(self) -> bool:
        """Float32 where TF32 is not allowed: each number is the sum of two TF32 ones."""
        return self.dtype == "float32" and not self.tf32

    @functools.cached_property
    def is_half(self) -> bool:
        return self.item_bytes == 2

    @functools.cached_property
    def is_split(self) -> bool:
        """Each number is the sum of two: sums of what is not finite, which has no such parts, are recomputed by plain arithmetic."""
        return self.is_strict or self.bf16_parts

    @functools.cached_property
    def packed_in(self) -> int:
        """Input channels in a 32-bit word of shared memory: of 16-bit numbers two neighbours at one position."""
        return 2 if self.is_half or self.bf16_parts or self.scaled else 1

    @functools.cached_property
    def operands(self) -> str:
        """What the tensor cores multiply."""
        of_float = "bf16" if self.bf16_parts else "f16" if self.scaled else "tf32"
        return {"float32": of_float, "bfloat16": "bf16", "float16": "f16"}[self.dtype]

    @functools.cached_property
    def stored_parts(self) -> int:
        """Words of shared memory that hold such a word's numbers: second parts lie behind the first ones."""
        return 2 if self.bf16_parts else 1

    @functools.cached_property
    def group_words(self) -> int:
        """Words that hold one position of a group's input channels; the last may lack one."""
        return -(-self.in_channels // self.groups // self.packed_in)

    @functools.cached_property
    def phases(self) -> tuple[int, ...]:
        """Output positions that lie between one input position and the next."""
        return self.stride if self.transposed else (1,) * len(self.kernel)

    @functools.cached_property
    def is_phased(self) -> bool:
        return prod(self.phases) > 1

    @functools.cached_property
    def halo(self) -> tuple[int, ...]:
        """Zeros in front of the input, for each dimension."""
        if not self.transposed:
            return self.padding
        return tuple(
            (d * (k - 1) - p) // s
            for k, s, d, p in zip(self.kernel, self.stride, self.dilation, self.padding, strict=True)
        )

    @functools.cached_property
    def reach(self) -> tuple[int, ...]:
        """Input positions that one output position, or the phases between two input positions, read.

        Output o = s q + r of a transposed convolution takes tap k from input q + j where k = r + p - s j: every tap has
        one phase r and one offset j, and what the phases of one q read is a window that starts at q - halo.
        """
        if not self.is_phased:
            return self.kernel
        return tuple(
            (s - 1 + p) // s + halo + 1 for s, p, halo in zip(self.stride, self.padding, self.halo, strict=True)
        )

    def out_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Output sizes for these input sizes."""
        if self.transposed:
            more = self.output_padding[-len(self.kernel) :]
            return tuple(
                (size - 1) * s - 2 * p + d * (k - 1) + 1 + extra
                for size, k, s, p, d, extra in zip(
                    sizes, self.kernel, self.stride, self.padding, self.dilation, more, strict=True
                )
            )
        return tuple(
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(sizes, self.kernel, self.stride, self.padding, self.dilation, strict=False)
        )


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel: a pointer or a number."""

    kind: Kind
    name: str
    tensor: str = ""  # the primitive in memory that it leads to, where a chain reads it

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.kind, Pointer)

    @property
    def in_kernel(self) -> str:
        """As the kernel declares it."""
        return f"{kind_text(self.kind)}{' __restrict__' if self.is_pointer else ''} {self.name}"

    @property
    def in_launcher(self) -> str:
        return f"{kind_text(self.kind)} {self.name}"

    @property
    def handed(self) -> str:
        """As the launcher hands it to the kernel: it has numbers as 64 bits."""
        return self.name if self.is_pointer else f"({kind_text(self.kind)})({self.name})"


def of_launcher(params: Iterable[Param]) -> tuple[Param, ...]:
    """As arguments of the launcher: pointers first, then numbers."""
    params = tuple(params)
    return (*(p for p in params if p.is_pointer), *numbers(p.name for p in params if not p.is_pointer))


def numbers(names: Iterable[str]) -> tuple[Param, ...]:
    return tuple(Param("long long", name) for name in names)


def reading(element: str, *names: str) -> tuple[Param, ...]:
    """Pointers through which a kernel reads elements of a type."""
    return tuple(Param(Pointer(element, const=True), name) for name in names)


def words_of_params(params: Iterable[Param]) -> frozenset[str]:
    """Those by which their types are called."""
    return frozenset().union(*(words_of(param.kind) for param in params))


@dataclass(frozen=True)
class Table:
    """A value for each channel of one sample, computed once a block and kept in shared memory.

    `statements` and `value` may use `n` and `c`; element code reads it as `name[c - channel0]`.
    """

    name: str
    value: Expr
    statements: tuple[Statement, ...] = ()


VALUE = Name("value")
TOTAL = Name("total")


@dataclass(frozen=True)
class Pointwise:
    """A pointwise chain, composed from the graph: `result` of the element `value` of sample n and channel c at position d, h, w, which
    is inside the tensor; beside a reduction over channels, of its accumulator `total` too. Without more it is the identity.
    """

    result: Expr = VALUE
    statements: tuple[Statement, ...] = ()  # before the result
    params: tuple[Param, ...] = ()  # further ones of the kernel
    setup: tuple[Statement, ...] = ()  # at the start of the kernel
    tables: tuple[Table, ...] = ()
    left_out: float = 0.0  # a constant that the result lacks: what is made of it must add it

    @property
    def reads(self) -> set[str]:
        """The names that an element's code reads."""
        return names_read(self.statements) | names_in(self.result)

    @property
    def calls(self) -> frozenset[str]:
        """The words in it by which device helpers are called."""
        inside = [*self.setup, *self.statements, *(statement for table in self.tables for statement in table.statements)]
        values = [words_in(value) for value in (self.result, *(table.value for table in self.tables))]
        return words_of_params(self.params).union(words(inside), *values)

    @property
    def declares(self) -> tuple[str, ...]:
        """What the chain calls its values, in order."""
        inside = [*self.setup, *(s for table in self.tables for s in table.statements), *self.statements]
        return (*(table.name for table in self.tables), *(n for s in statements(inside) if isinstance(s, Declare) for n in s.names))

    @property
    def own_names(self) -> tuple[str, ...]:
        """Those, and of the tensors that it reads."""
        return (*(param.name for param in self.params if param.tensor), *self.declares)

    @property
    def is_identity(self) -> bool:
        """It gives the element as it is, if by another name."""
        names: set[Expr] = {VALUE}
        for statement in self.statements:
            if not isinstance(statement, Declare) or statement.kind != "float" or statement.value not in names:
                return False
            names.add(Name(statement.name))
        return self.result in names

    def renamed(self, names: Mapping[str, str]) -> Pointwise:
        """With other names for its own values and the tensors that it reads."""

        values: dict[Expr, Expr] = {Name(old): Name(new) for old, new in names.items()}

        def changed(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
            return tuple(renamed(body, names))

        return replace(
            self,
            result=substituted(self.result, values),
            statements=changed(self.statements),
            params=tuple(replace(param, name=names.get(param.name, param.name)) for param in self.params),
            setup=changed(self.setup),
            tables=tuple(Table(names.get(t.name, t.name), substituted(t.value, values), changed(t.statements)) for t in self.tables),
        )


IDENTITY = Pointwise()


@dataclass(frozen=True)
class Window:
    """A pool whose stride is its size, without padding, in floor mode."""

    kind: str  # max | sum | avg
    size: tuple[int, ...]


@dataclass(frozen=True)
class OverChannels:
    """Reduce over the output channels of each position.

    `bounded` says that the caller has proved exp cannot overflow or vanish: LogSumExp then skips the maximum.
    With `keep` the elements stay in registers, `after` sees them together with `total`, the reduced
    accumulator, and they are written in full (a softmax).
    """

    accumulator: str  # LogSumExp | Sum | Max | Min | CloseMoments
    bounded: bool = False
    keep: bool = False
    plus: float = 0.0  # added to the reduced value: a constant that every element lacks


@dataclass(frozen=True)
class OverPositions:
    """Reduce over the positions of each channel: one partial accumulator for each (n, slice, channel)."""

    accumulator: str  # CloseMoments | Sum | Max | Min


@dataclass(frozen=True)
class Epilogue:
    """What happens to the convolution's elements, in the order of the fields, and so what is written:
    partial accumulators (`OverPositions`), one value a position (`OverChannels`), or every element.

    With `stored`, which stands beside `OverPositions`, every element is written too, as it is behind the window.
    """

    before: Pointwise = IDENTITY
    window: Window | None = None
    stored: bool = False
    between: Pointwise = IDENTITY
    reduce: OverChannels | OverPositions | None = None
    after: Pointwise = IDENTITY

    @property
    def bodies(self) -> tuple[Pointwise, ...]:
        return (self.before, self.between, self.after)

    @property
    def calls(self) -> frozenset[str]:
        return frozenset().union(*(body.calls for body in self.bodies))

    def renamed(self, names: Mapping[str, str]) -> Epilogue:
        before, between, after = (body.renamed(names) for body in self.bodies)
        return replace(self, before=before, between=between, after=after)


@dataclass(frozen=True)
class Tile:
    """How a block cuts the work. Triples are (depth, height, width).

    A warp holds `channel_tiles` × 16 output channels of `fragments` × 8 positions, `repeats` times one after the
    other; of a strided transposed convolution, all phases of each of these positions. `chunk` input channels (of halves,
    pairs of them) and `columns` kernel columns (all rows of the kernel at one depth and width) are multiplied between two
    barriers; where taps are `folded` into the depth, all of them.
    """

    channel_tiles: int
    fragments: tuple[int, int, int]
    warps: tuple[int, int, int]
    warps_c: int = 1
    chunk: int = 8
    columns: int | None = None
    repeats: int = 1
    blocks_per_sm: int = 1
    weights: str = "staged"  # staged: copied step by step; resident: all in shared memory; direct: read through L1
    alone: bool = False  # each warp has its own input tiles, and no warp waits for another
    unrolled: int | None = None  # kernel columns in one stretch of straight code
    # Copies start within this share of a step's k-blocks. H200, second founding model: 0.97 ms at 1.0, 1.12 at 0.5, 1.18
    # at 0.12; the first, where a step has three k-blocks, does not care.
    early: float = 0.5
    together: bool = True  # an input row in registers serves every kernel row that needs it
    folded: bool = False  # eight taps of any input channels are a product's depth, in the order of the weight tensor
    warpgroups: bool = False  # warpgroup MMA (wgmma), the four warps over channels, both operands from shared memory: Hopper's
    producers: bool = False  # four further warps fill the stages, and those that multiply do nothing else
    stages: int = 2  # that lie in shared memory, where there are producers

    @property
    def threads(self) -> int:
        return 32 * self.warps_c * prod(self.warps)

    @property
    def all_threads(self) -> int:
        return self.threads + (PRODUCERS if self.producers else 0)

    @property
    def moves_registers(self) -> bool:
        """Producers hand registers over to those that multiply."""
        return self.producers and self.all_threads * self.blocks_per_sm > 256

    @property
    def registers(self) -> int:
        """Most that a thread may have, of those that multiply."""
        each = min(255, 65536 // (self.all_threads * self.blocks_per_sm))
        if not self.moves_registers:
            return each
        return min(240, (each // 8 * 8 * self.all_threads - PRODUCERS * PRODUCER_REGISTERS) // self.threads // 8 * 8)

    @property
    def resident(self) -> bool:
        return self.weights == "resident"


@dataclass(frozen=True)
class KernelText:
    """A kernel, its launcher and what the caller must hand it.

    `launcher_args` are in order, without the stream. `workspace` maps each buffer the caller must
    allocate to the number of floats it needs, a Python expression over the launcher's sizes. `slices`, where the
    launcher takes it, is the Python expression for that argument, with `{batch}` for the number of samples.
    """

    name: str
    source: str
    launcher_args: tuple[Param, ...]
    calls: frozenset[str]  # the words in it by which device helpers are called
    support: tuple[Helper, ...] = ()  # device functions of their own that several kernels share: each is written once
    workspace: dict[str, str] = field(default_factory=dict)
    per_sample: dict[str, int] = field(default_factory=dict)  # floats of a buffer that it needs for each sample besides
    slices: str | None = None
    smem: int = 0
    tile: Tile | None = None


def triple(values: Sequence[int], fill: int) -> tuple[int, int, int]:
    """The last three dimensions, with `fill` in front."""
    return (fill,) * (3 - len(values)) + tuple(values)  # type: ignore[return-value]


@functools.lru_cache(maxsize=1024)
def widened(conv: Conv) -> Conv:
    """The same convolution in three dimensions."""
    return replace(
        conv,
        kernel=triple(conv.kernel, 1),
        stride=triple(conv.stride, 1),
        padding=triple(conv.padding, 0),
        dilation=triple(conv.dilation, 1),
        output_padding=triple(conv.output_padding[-conv.dims :], 0),
    )
