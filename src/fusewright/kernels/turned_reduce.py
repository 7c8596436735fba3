"""Reduce kernels that read one order in memory and write tensors of their whole space in the other.

Threads follow what is read. Where rows lie side by side and what is written runs along them (a softmax over the width of
channels-last data), results go through shared memory, a stretch of 32 rows at a time; where it runs along other rows (a softmax
over the height), those of a patch of rows. Where the row itself lies together and rows lie side by side in what is written (a
softmax over the channels), what is read goes through shared memory.
"""

from __future__ import annotations

from typing import Any

from .. import sizes
from ..access import accesses, axes_of, same_shape, tuple_key
from ..graph import Dim, Graph
from ..index import Coordinate
from ..plan import Kernel
from ..prims import C_TYPES, Prim, arithmetic_type
from . import text
from .accumulators import accumulators, reductions_behind
from .expression import Level, converted_to, indent, pointer
from .loops import Loop, Walk, accessed, c_product, decode, full_at, moved, needed_reduces, walk
from .reduce_columns import Columns
from .text import KernelText
from .turned import FEWEST_CHANNELS, LESS

TILE = 32  # rows of a block, and elements of a row that are turned at once
SHARE = 8  # threads that share a row
PATCH, STEPS = 16, 4  # rows along what is written that a block takes, and elements of each that are turned at once
MOST = 4  # tensors that are turned
SHARED = 40 << 10  # bytes of shared memory for what is staged; 48 KiB need no asking


def turned_reduce(kernel: Kernel, prims: dict[str, Prim], graph: Graph) -> type[Columns] | None:
    """The template for a reduce kernel that writes across the way it reads; None where there is no need or none fits."""
    full = [name for name in kernel.stores if kernel.members[name] == "full"]
    touched = (*kernel.loads, *kernel.stores)
    if not kernel.is_reduce or not full or kernel.overwrites or not any(prims[name].channels_last for name in touched):
        return None
    found, loops = accessed(kernel, prims, graph), walk(kernel, prims, graph)
    lane = lane_of(loops)
    across = [(prim, offset) for prim, offset in found.written if not follows(offset, lane)]
    ways = {d for _, offset in across for d in range(len(kernel.space)) if follows(offset, d)}
    plain = all(prim.dtype.itemsize <= 4 and all(axis.text.startswith("i") for axis in offset.terms) for prim, offset in across)
    if len(ways) != 1 or not plain:
        return None
    (way,) = ways
    along = [pair for pair in found.written if pair not in across]
    straight = min(moved([*found.read, *found.written], d, graph) for d in (lane, way))
    if moved([*found.read, *along], lane, graph) + moved(across, way, graph) >= LESS * straight:
        return None
    last = len(across) <= MOST and all(is_last(prim.name, kernel, prims) for prim, _ in across)
    if not loops.lanes_reduce and way in loops.reduced[-1].dims:
        return TurnedColumns if last else None
    beside = [loop for loop in loops.kept[:-1] if loop.dims[-1] == way and graph.hint(loop.size) >= PATCH]
    if not loops.lanes_reduce and beside and last and graph.hint(loops.kept[-1].size) >= FEWEST_CHANNELS:
        return PatchColumns
    return StagedColumns if loops.lanes_reduce and not along and staged(kernel, prims, way) else None


def lane_of(loops: Walk) -> int:
    return (loops.reduced if loops.lanes_reduce else loops.kept)[-1].dims[-1]


def follows(offset: Coordinate, dim: int) -> bool:
    """Neighbours along the dimension are neighbours in memory."""
    return any(axis.text == f"i{dim}" and sizes.is_one(factor) for axis, factor in offset.terms.items())


def is_last(name: str, kernel: Kernel, prims: dict[str, Prim]) -> bool:
    """It needs all passes over the row, so that none after it reads it."""
    turns = {member: part.turn for part in accumulators(kernel, prims) for member in part.members}
    behind = reductions_behind(name, kernel, prims)
    return max((turns[n] for n in behind), default=0) == max(turns.values())


def staged(kernel: Kernel, prims: dict[str, Prim], way: int) -> list[str]:
    """Tensors of the kernel's space that it reads only element by element, if rows of all of them fit in shared memory."""
    if len(kernel.reduced) != 1 or way in kernel.reduced or text.has_window(kernel, prims):
        return []
    at = tuple(map(Coordinate.of, axes_of(kernel.space)))
    roots = [(prims[name].inputs[0], at) for name in needed_reduces(kernel, prims)]
    roots += [(n, full_at(at, kernel, prims, prims[n])) for n in kernel.stores if kernel.members[n] == "full"]
    leaves = set(kernel.loads)
    reads = [access for name, here in roots for access in accesses(prims, name, here, leaves, name not in leaves)]
    found = [name for name in kernel.loads if same_shape(prims[name].shape, kernel.space) and prims[name].channels_last]
    plain = all(tuple_key(access.at) == tuple_key(at) for access in reads if access.leaf in found)
    length = kernel.space[kernel.reduced[0]]
    fits = isinstance(length, int) and TILE * (length | 1) * sum(prims[n].dtype.itemsize for n in found) <= SHARED
    return found if plain and fits and all(prims[n].dtype.itemsize <= 4 for n in found) else []


def turned_reduce_kernel(kernel: Kernel, prims: dict[str, Prim], graph: Graph, comment: list[str]) -> KernelText:
    template = turned_reduce(kernel, prims, graph)
    assert template is not None
    loops, share = walk(kernel, prims, graph), SHARE
    if template is StagedColumns:
        loops = walk(kernel, prims, graph, along=written_along(kernel, prims, graph, loops))
    elif template is PatchColumns:
        share = 1
    return template(kernel, prims, graph, comment, loops, accumulators(kernel, prims), share).write()


def written_along(kernel: Kernel, prims: dict[str, Prim], graph: Graph, loops: Walk) -> int:
    """The dimension along which what is turned lies together."""
    across = [offset for _, offset in accessed(kernel, prims, graph).written if not follows(offset, lane_of(loops))]
    return next(d for d in range(len(kernel.space)) if follows(across[0], d))


class Turning(Columns):
    """What is written across goes into a tile first."""

    vectors = False
    place = ""  # in the tile, of a thread's element

    def store_full(self, name: str, element: Level, lanes: Level, after: list[str]) -> None:
        prim = self.prims[name]
        at = full_at(self.at, self.kernel, self.prims, prim)
        if follows(prim.offset(at), lane_of(self.loops)):
            super().store_full(name, element, lanes, after)
            return
        value = text.to_memory(prim, converted_to(self.evaluator.value(name, at), prim))
        self.tile[name] = self.evaluator.fresh(f"{name}_tile")
        after.append(f"{self.tile[name]}{self.place} = {value};")

    def loop(self, turn: int) -> list[str]:
        """All that is turned is written in the last pass."""
        self.tile: dict[str, str] = {}
        return super().loop(turn) if turn < self.turns else self.last_loop()

    def last_loop(self) -> list[str]:
        raise NotImplementedError

    def halves(self, name: str) -> tuple[str, str]:
        """An element's offset: where its row begins, and how far it is from there."""
        offset = self.prims[name].offset(full_at(self.at, self.kernel, self.prims, self.prims[name]))
        along = {loop.variable for loop in self.loops.reduced}
        inside = Coordinate({axis: factor for axis, factor in offset.terms.items() if axis.text in along})
        return self.evaluator.offset(offset + inside * -1), self.evaluator.offset(inside)


class TurnedColumns(Turning):
    """Rows side by side; what is written along them is turned, TILE elements of TILE rows at a time."""

    def last_loop(self) -> list[str]:
        place, u, start, line = map(self.evaluator.fresh, ("place", "u", "start", "line"))
        self.place = f"[{place}][threadIdx.x]"
        length = self.evaluator.size(sizes.product(loop.size for loop in self.loops.reduced))
        decoded = decode(self.loops.reduced, "item", self.evaluator)
        element = [*decoded, *self.pass_over(self.turns)]
        places = ["#pragma unroll", f"for (int {u} = 0; {u} < {TILE}; {u} += {self.split}) {{"]
        places.append(f"  const int {place} = {u} + threadIdx.y;")
        declared, begins, stores = [], [], []
        for name, tile in self.tile.items():
            begin, (of_row, inside_row) = self.evaluator.fresh(f"{name}_begin"), self.halves(name)
            declared.append(f"__shared__ {C_TYPES[self.prims[name].dtype]} {tile}[{TILE}][{TILE + 1}];")
            declared.append(f"Index {begin}[{TILE // self.split}];  // of the rows that this thread writes")
            begins.append(f"{begin}[{u} / {self.split}] = {of_row};")
            stores.append(f"{pointer(name)}[{begin}[{u} / {self.split}] + {inside_row}] = {tile}[threadIdx.x][{place}];")
        row = f"const Index {line} = static_cast<Index>(blockIdx.x) * {TILE} + {place};"
        return [
            *declared,
            *places,
            *indent([row, *decode(self.loops.kept, line, self.evaluator), *begins]),
            "}",
            f"for (Index {start} = 0; {start} < {length}; {start} += {TILE}) {{",
            *indent(places),
            f"    const Index item = {start} + {place};",
            f"    if (inside && item < {length}) {{",
            *indent(element, 6),
            "    }",
            "  }",
            "  __syncthreads();",
            *indent(places),
            *indent([row, f"const Index item = {start} + threadIdx.x;"], 4),
            f"    if ({line} < rows && item < {length}) {{",
            *indent([*decoded, *stores], 6),
            "    }",
            "  }",
            "  __syncthreads();",
            "}",
        ]


class PatchColumns(Turning):
    """A row for each thread, TILE of them along what is read and PATCH along what is written."""

    meets = True

    def begin(self) -> list[str]:
        lane, beside, others = self.patch()
        names = ("tiles", "layers", "block", "first", "top")
        tiles, layers, block, self.first, self.top = map(self.evaluator.fresh, names)
        width, height = self.evaluator.size(lane.size), self.evaluator.size(beside.size)
        return [
            f"const Index {tiles} = ({width} + {TILE - 1}) / {TILE}, {layers} = ({height} + {PATCH - 1}) / {PATCH};",
            f"const Index {block} = static_cast<Index>(blockIdx.x);",
            f"const Index {self.first} = {block} % {tiles} * {TILE}, {self.top} = {block} / {tiles} % {layers} * {PATCH};",
            f"const bool inside = {self.first} + threadIdx.x < {width} && {self.top} + threadIdx.y < {height};",
            f"const Index {lane.variable} = inside ? {self.first} + threadIdx.x : 0;",
            f"const Index {beside.variable} = inside ? {self.top} + threadIdx.y : 0;",
            *decode(others, f"{block} / {tiles} / {layers}", self.evaluator),
        ]

    def patch(self) -> tuple[Loop, Loop, tuple[Loop, ...]]:
        """Among the kept loops: the one along what is read, the one along what is written, the others."""
        way = written_along(self.kernel, self.prims, self.graph, self.loops)
        lane, beside = self.loops.kept[-1], next(loop for loop in self.loops.kept if loop.dims[-1] == way)
        return lane, beside, tuple(loop for loop in self.loops.kept if loop not in (lane, beside))

    def launch(self) -> dict[str, Any]:
        lane, beside, others = self.patch()
        counts = [f"(({c_product([loop.size])} + {side - 1}) / {side})" for loop, side in ((lane, TILE), (beside, PATCH))]
        rest = c_product([loop.size for loop in others])
        return {
            "threads": str(TILE * PATCH),
            "extra": [],
            "setup": [f"const long long blocks = {rest} * {counts[0]} * {counts[1]};", "if (blocks == 0) return nullptr;"],
            "grid": "dim3(static_cast<unsigned>(blocks))",
            "block": f"dim3({TILE}, {PATCH})",
        }

    def last_loop(self) -> list[str]:
        u, start, thread, j, k, writes = map(self.evaluator.fresh, ("u", "start", "thread", "j", "k", "writes"))
        self.place = f"[{u}][threadIdx.y][threadIdx.x]"
        lane, beside, _ = self.patch()
        length = self.evaluator.size(sizes.product(loop.size for loop in self.loops.reduced))
        decoded = decode(self.loops.reduced, "item", self.evaluator)
        element = [*decoded, *self.pass_over(self.turns)]
        steps = ["#pragma unroll", f"for (int {u} = 0; {u} < {STEPS}; ++{u}) {{", f"  const Index item = {start} + {u};"]
        declared, begins, stores = [], [], []
        for name, tile in self.tile.items():
            begin, (of_row, inside_row) = self.evaluator.fresh(f"{name}_begin"), self.halves(name)
            # of a warp that reads, lanes that take another k are two banks further
            declared.append(f"__shared__ {C_TYPES[self.prims[name].dtype]} {tile}[{STEPS}][{PATCH}][{TILE + 2}];")
            declared.append(f"Index {begin};  // of the row that this thread writes")
            begins.append(f"{begin} = {of_row};")
            stores.append(f"{pointer(name)}[{begin} + {inside_row}] = {tile}[{u}][{k}][{j}];")
        width, height = self.evaluator.size(lane.size), self.evaluator.size(beside.size)
        turned = [f"const Index {lane.variable} = {self.first} + {j}, {beside.variable} = {self.top} + {k};", *begins]
        return [
            *declared,
            f"const int {thread} = threadIdx.y * {TILE} + threadIdx.x, {k} = {thread} % {PATCH}, {j} = {thread} / {PATCH};",
            f"const bool {writes} = {self.first} + {j} < {width} && {self.top} + {k} < {height};",
            "{",
            *indent(turned),
            "}",
            f"for (Index {start} = 0; {start} < {length}; {start} += {STEPS}) {{",
            *indent(steps),
            f"    if (inside && item < {length}) {{",
            *indent(element, 6),
            "    }",
            "  }",
            "  __syncthreads();",
            *indent(steps),
            f"    if ({writes} && item < {length}) {{",
            *indent([*decoded, *stores], 6),
            "    }",
            "  }",
            "  __syncthreads();",
            "}",
        ]


class StagedColumns(Columns):
    """Rows that lie together, TILE of them in shared memory; from there on they are columns."""

    vectors = False

    def begin(self) -> list[str]:
        return [*super().begin(), *self.staging()]

    def staging(self) -> list[str]:
        (dim,) = self.kernel.reduced
        length, (reduced,) = self.kernel.space[dim], self.loops.reduced
        names = staged(self.kernel, self.prims, lane_of(self.loops))
        n, line = self.evaluator.fresh("n"), self.evaluator.fresh("line")
        declared, reads, whole = [], [], True
        for name in names:
            prim, tile = self.prims[name], self.evaluator.fresh(f"{name}_tile")
            kind, here = arithmetic_type(prim.dtype), f"{tile}[threadIdx.x][{reduced.variable}]"
            self.evaluator.results[name] = here if C_TYPES[prim.dtype] == kind else f"to_arithmetic<{kind}>({here})"
            declared.append(f"__shared__ {C_TYPES[prim.dtype]} {tile}[{TILE}][{int(length) | 1}];")
            together = self.in_line(prim)
            whole &= together
            offset = f"{line} * {length} + {reduced.variable}" if together else self.evaluator.offset(prim.offset(self.at))
            reads.append(f"{tile}[{n} / {length}][{reduced.variable}] = {pointer(name)}[{offset}];")
        return [
            *declared,
            "#pragma unroll 4",
            f"for (int {n} = threadIdx.y * {TILE} + threadIdx.x; {n} < {TILE} * {length}; {n} += {TILE * self.split}) {{",
            f"  const Index {line} = static_cast<Index>(blockIdx.x) * {TILE} + {n} / {length};",
            f"  if ({line} >= rows) continue;",
            *indent([] if whole else decode(self.loops.kept, line, self.evaluator)),
            *indent([f"const Index {reduced.variable} = {n} % {length};", *reads]),
            "}",
            "__syncthreads();",
        ]

    def in_line(self, prim: Prim) -> bool:
        """Its rows lie one after another, in the order in which they are counted."""
        factors = {axis.text: factor for axis, factor in prim.offset(self.at).terms.items()}
        step: Dim = self.kernel.space[self.kernel.reduced[0]]
        for loop in reversed(self.loops.kept):
            if not sizes.same(factors.get(loop.variable, 0), step):
                return False
            step = sizes.tidy(step * loop.size)
        return True
