"""Products of matrices in float32 on the tensor cores, whose epilogue holds the pointwise chain behind them.

PyTorch's default does not allow TF32 to matrix products, and the library computes them without tensor cores. Here each number
is the sum of two TF32 ones, and three of the four products of these parts are taken: the fourth lies below float32's last bit.
The tensor cores cut off what lies below the last bit of their accumulators; these are moved into sums in plain registers after
every step. A sum that is not finite is computed again by plain arithmetic, which keeps an infinity one.

A block has TILE_ROWS × TILE_COLUMNS of the result, a warpgroup for 64 rows of it, and eight more warps that only load columns: these
split what they read into its two parts and store them as the tensor cores read them ([four of the depth][column][4]), four steps
deep. Rows are in nobody's way: no two warps have the same ones, so each copies its own as they are, reads them as fragments, and
splits them in registers while the tensor cores have the step before. Shared memory, which bounds a product that reads both operands
from it (208 KB of a step at 128 bytes a cycle: 1625 cycles, where the tensor cores take 1536), then moves 160 KB.
Producers and consumers meet at a barrier for each stage alone, so each warpgroup runs at its own pace. Where
the result has too few tiles for the GPU, SPLITS blocks share the depth of one, and a second kernel adds their sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from ...ir.cpp import to_cpp
from ...ir.expr import Pointer
from ...ir.stmt import printed
from ...target.helpers import Helper, section
from ...target.machine import H200, Machine
from .code import shifted
from .conv_spec import Epilogue, KernelText, Param, numbers, of_launcher, reading
from .conv_text import by_vectors, extra_params, launched, parameter_lines, tidy
from .conv_tiles import LAUNCH_MS, MEMORY_TB_PER_S

TEMPLATE, SUPPORT = (Template((Path(__file__).parent / name).read_text()) for name in ("product.cuh", "product_support.cuh"))
STEP, STAGES, COPIES, BAND = 32, 4, 4, 8
# TFLOP/s of 4096 cubed on an H200: 128 as it is; by one group of warps that load 111, with both operands from shared memory 113,
# where all warps load and multiply 82 to 91; of the library 49.
LOADERS = 2  # warpgroups that fill the stages in turn
DEEP = 512  # from this depth on accumulators are moved every second step: as exact by then, and 7 % faster
REGISTERS = {16: (56, 200), 8: (104, 152)}  # of threads that load and that multiply, by fragments: without spills, and 256 of two
MOST_SPLITS = 8
LEAST_STEPS = 8  # of a split
# What it takes on an H200, fitted to benchmarks/results/products.txt: within 5 % of the best of each shape there.
STEP_US = 1.03  # a step of a deep product; where accumulators are moved every step, or operands lie otherwise, so many times as long
SHALLOW, NARROW, TURNED, BY_NUMBERS = 1.08, 0.9, 1.07, 1.55
TILE_US = 4.0  # to fill the stages, and to write a tile
START_MS = 0.002
LIBRARY_TFLOPS, LIBRARY_SMALL_MS = 50.0, 0.015  # cuBLAS without TF32; what it takes longer where there is little to do


@dataclass(frozen=True)
class Place:
    """Where the rows of matrices lie: numbers, or C++ text of sizes and `matrix`, which counts the matrices of a batch."""

    pitch: int | str  # from row to row; where the matrix is transposed, from one of the depth to the next
    begin: str = ""  # of a matrix: at 0
    whole: int = 1  # a power of two: every row begins at a multiple of so many elements, up to 4


@dataclass(frozen=True)
class Triangle:
    """The elements of a matrix that are taken: those at and below a diagonal, or at and above it."""

    lower: bool
    diagonal: int = 0

    def reaches(self, rows: range, columns: range) -> bool:
        """Some of these elements are taken."""
        return columns[0] - rows[-1] <= self.diagonal if self.lower else columns[-1] - rows[0] >= self.diagonal


@dataclass(frozen=True)
class Product:
    """input [rows, depth] times weight [columns, depth], plus a bias for each column. Where they are transposed, they lie
    as [depth, rows] and [depth, columns]."""

    depth: int
    columns: int
    bias: bool = False
    transposed: bool = False
    rows_transposed: bool = False
    varies: bool = False  # the depth is only known when the kernel is launched: it is about the one above
    columns_vary: bool = False  # so are the columns
    batched: bool = False  # many products, of matrices that lie one after the other on both sides
    saves: bool = False  # the product itself is written too, where there is memory given for it
    input_place: Place | None = None  # None: rows, or matrices, lie one after the other
    weight_place: Place | None = None
    out_place: Place | None = None
    symbols: tuple[str, ...] = ()  # sizes that places mention
    triangle: Triangle | None = None  # all that the epilogue takes of it; None: everything

    dtype = "float32"


@dataclass(frozen=True)
class ProductTile:
    """What a block computes, and how many blocks share the depth of it."""

    quartets: int = 2  # of warps, for 64 rows each
    fragments: int = 16  # of 8 columns
    splits: int = 1

    @property
    def rows(self) -> int:
        return 64 * self.quartets

    @property
    def columns(self) -> int:
        return 8 * self.fragments

    @property
    def threads(self) -> int:
        return 128 * (self.quartets + LOADERS)

    @property
    def shared_words(self) -> int:
        """High and low parts of the columns of some steps, each plane padded so that no bank is met twice; rows as they are, padded too."""
        return STAGES * 2 * STEP // 4 * (4 * self.columns + 4) + COPIES * self.rows * (STEP + 4)

    @property
    def shared_bytes(self) -> int:
        return 4 * self.shared_words


def block_shape(product: Product, machine: Machine) -> tuple[int, int] | None:
    """Quartets and fragments of a block: the most that shared memory and registers hold; None where they do not hold the least. Without
    Hopper's `setmaxnreg` the threads that load have as many registers as those that multiply."""
    wanted = (2, 8 if product.columns <= 64 else 16)
    for quartets, fragments in dict.fromkeys((wanted, (2, 8), (1, 8))):
        tile = ProductTile(quartets, fragments)
        registers = machine.has_wgmma or tile.threads * REGISTERS[fragments][1] <= machine.registers
        if machine.has_tf32 and registers and tile.shared_bytes <= machine.shared_per_block:
            return quartets, fragments
    return None


def product_tile(product: Product, rows: int, batch: int = 1, machine: Machine = H200) -> ProductTile:
    """The tile for so many rows of each product: narrow where there are few columns, and split where there would be few blocks."""
    shape = block_shape(product, machine)
    if shape is None:
        raise ValueError(f"{machine.name}: no tile of a product fits")
    (quartets, fragments), steps = shape, -(-product.depth // STEP)
    splits = [s for s in range(1, MOST_SPLITS + 1) if s == 1 or steps // s >= LEAST_STEPS]
    whole = product.batched or product.out_place is not None
    tiles = [ProductTile(quartets, fragments, s) for s in splits if s == 1 or not whole]
    return min(tiles, key=lambda tile: (product_ms(product, tile, rows, batch, machine), tile.splits))


def product_ms(product: Product, tile: ProductTile, rows: int, batch: int = 1, machine: Machine = H200) -> float:
    """What it takes. The sums of blocks that share a depth cross memory twice."""
    steps = -(-product.depth // (STEP * tile.splits))
    tiles, wanted = -(-rows // tile.rows) * -(-product.columns // tile.columns), wanted_tiles(product, tile, rows)
    blocks = batch * wanted * tile.splits
    transposed = product.transposed or product.rows_transposed
    by_numbers = not in_vectors(product) and not (product.transposed and product.rows_transposed)
    step_us = STEP_US * (1 if moves(product) > 1 else SHALLOW) * (BY_NUMBERS if by_numbers else TURNED if transposed else 1)
    step_us *= (NARROW if tile.columns < 128 else 1) * tile.quartets / 2 / step_rate(machine)
    tile_us, across = TILE_US / machine.by_clock(1.0), machine.multiprocessors
    busy = -(-blocks // across) * (steps * step_us + tile_us) * 1e-3
    busy += batch * (tiles - wanted) * tile.splits / across * (step_us + tile_us) * 1e-3
    written = batch * rows * product.columns
    memory, launch = machine.by_memory(MEMORY_TB_PER_S), machine.by_launch(LAUNCH_MS)
    moved = 4e-9 * (batch * product.depth * (rows + product.columns) + written) / memory
    merged = 8e-9 * tile.splits * written / memory + launch if tile.splits > 1 else 0.0
    return max(busy, moved) + merged + machine.by_launch(START_MS)


def step_rate(machine: Machine) -> float:
    """How fast the tensor cores of a multiprocessor are, against the H200's, which bound a step there."""
    whole = machine.by_wgmma(1.0) if machine.has_wgmma else machine.warp_tf32_tflops / H200.warpgroup_tf32_tflops
    return whole * (H200.multiprocessors / machine.multiprocessors)


def wanted_tiles(product: Product, tile: ProductTile, rows: int) -> int:
    """Tiles of which the epilogue takes something."""
    high, wide = (range(0, size, step) for size, step in ((rows, tile.rows), (product.columns, tile.columns)))
    if product.triangle is None:
        return len(high) * len(wide)
    within = [(range(n, min(n + tile.rows, rows)), range(c, min(c + tile.columns, product.columns))) for n in high for c in wide]
    return sum(product.triangle.reaches(*place) for place in within)


def in_vectors(product: Product) -> bool:
    """What is read along the depth may be read 16 bytes at a time, if memory begins so."""
    places = [product.input_place if not product.rows_transposed else None, product.weight_place if not product.transposed else None]
    return product.depth % 4 == 0 and all(place is None or place.whole % 4 == 0 for place in places)


def library_ms(product: Product, rows: int, batch: int = 1, machine: Machine = H200) -> float:
    """What cuBLAS takes where TF32 is not allowed."""
    computed = 2e-9 * batch * rows * product.depth * product.columns / machine.by_fp32(LIBRARY_TFLOPS)
    return computed + min(machine.by_launch(LIBRARY_SMALL_MS), 0.35 * computed) + machine.by_launch(LAUNCH_MS)


def moves(product: Product) -> int:
    """Steps between two moves of the accumulators."""
    return 2 if product.depth >= DEEP and not product.varies else 1


def most_split_rows(product: Product, tile: ProductTile, rows: int, machine: Machine = H200) -> int:
    """Up to how many rows to split the depth: beyond, there are blocks enough, and the sums would fill memory."""
    whole = ProductTile(tile.quartets, tile.fragments)
    while product_ms(product, tile, 2 * rows, 1, machine) < product_ms(product, whole, 2 * rows, 1, machine):
        rows *= 2
    return rows


def product_kernel(
    name: str, product: Product, epilogue: Epilogue, tile: ProductTile, split_rows: int | None = None
) -> KernelText:
    """The CUDA text of one product, its merging kernel where the depth is split, and their launcher. The depth of more than
    `split_rows` rows is not split; None: of all.

    >>> product_kernel("k", Product(64, 128), Epilogue(), ProductTile()).launcher_args[-1]
    Param(kind='long long', name='rows', tensor='')
    """
    split = tile.splits > 1
    source = TEMPLATE.substitute(
        name=name,
        constants="\n".join(constants(product, tile)),
        parameters=parameters(product, epilogue, split),
        setup=setup(epilogue),
        sizes="\n".join(f"  constexpr int {name} = {name.upper()};" for name in ("depth", "columns") if name not in size_names(product)),
        matrix=shifted("\n".join(matrix(product)), 2),
        input_pitch=pitch_of("input", product),
        weight_pitch=pitch_of("weight", product),
        finish=shifted(finish(product, epilogue, tile), 4),
        corner=f"  {corner(product)}\n" if product.triangle is not None else "",
        wanted=", wanted" if product.triangle is not None else "",
        merge=merge(product, epilogue, tile.splits) if split else "",
        launcher="\n".join(launcher(name, product, epilogue, tile, split_rows)),
    )
    return KernelText(
        name=name,
        source=tidy(source),
        calls=epilogue.calls,
        support=(support(),),
        launcher_args=launcher_args(product, epilogue, split),
        smem=tile.shared_bytes,
    )


def support() -> Helper:
    """What products of all shapes share."""
    loading, multiplying = (f"FRAGMENTS == 16 ? {REGISTERS[16][i]} : {REGISTERS[8][i]}" for i in range(2))
    text = SUPPORT.substitute(
        stages=STAGES, copies=COPIES, loaders=LOADERS, band=BAND, loading_registers=loading, multiplying_registers=multiplying
    )
    return section(text)


def constants(product: Product, tile: ProductTile) -> Iterator[str]:
    known = {"depth": product.depth, "columns": product.columns}
    fixed = [f"{name.upper()} = {size}" for name, size in known.items() if name not in size_names(product)]
    if fixed:
        yield f"constexpr int {', '.join(fixed)};"
    pitches = [f"{name.upper()} = {place.pitch}" for name, place in all_places(product).items() if isinstance(place.pitch, int)]
    if pitches:
        yield f"constexpr int {', '.join(pitches)};  // from row to row"
    lie = [what for what, transposed in (("the matrix lies", product.transposed), ("rows lie", product.rows_transposed)) if transposed]
    flags = f"{str(product.transposed).lower()}, {str(product.rows_transposed).lower()}"
    words = f"{tile.rows} rows, {tile.columns} columns" + (f"; {' and '.join(lie)} by columns" if lie else "")
    yield f"using Tile = product::Tile<{tile.quartets}, {tile.fragments}, {flags}>;  // {words}"
    yield f"constexpr int MOVES = {moves(product)};  // steps between two moves of the accumulators"


def pitch_of(name: str, product: Product) -> str:
    """What the distance of an operand's rows is called: where they lie one after the other it is their length."""
    place, transposed = (product.input_place, product.rows_transposed) if name == "input" else (product.weight_place, product.transposed)
    if place is None:
        return ("rows" if name == "input" else "columns") if transposed else "depth"
    return f"{name.upper()}_PITCH" if isinstance(place.pitch, int) else f"{name}_pitch"


def corner(product: Product) -> str:
    """Whether anything is taken of the tile that begins at a row and a column. What is saved for backward is whole."""
    assert product.triangle is not None
    row, column = "min(row0 + Tile::ROWS, rows)", "min(column0 + Tile::COLUMNS, columns)"  # behind the last ones
    diagonal = product.triangle.diagonal
    test = f"column0 - {row} < {diagonal}" if product.triangle.lower else f"{column} - row0 > {diagonal}"
    saved = "saved != nullptr || " if product.saves else ""
    return f"auto wanted = [&](int row0, int column0) {{ return {saved}{test}; }};"


def setup(epilogue: Epilogue) -> str:
    return "\n".join(printed(epilogue.before.setup, 1))


def parameters(product: Product, epilogue: Epilogue, split: bool) -> str:
    scalars = [*placing(product, epilogue), *size_names(product)]
    sums = [Param(Pointer("float"), "sums")] if split else []
    found = [*reading("float", "input", "weight"), *sums, *finishing(product, epilogue), *(Param("int", name) for name in scalars)]
    return parameter_lines([found[:2], *([param] for param in found[2:-2]), found[-2:]])


def placing(product: Product, epilogue: Epilogue) -> list[str]:
    """Sizes that places mention and the epilogue does not."""
    return [name for name in product.symbols if Param("int", name) not in finishing(product, epilogue)]


def size_names(product: Product) -> tuple[str, ...]:
    """What the kernel is told when it is launched."""
    return ("rows", *(["depth"] if product.varies else []), *(["columns"] if product.columns_vary else []))


def matrix(product: Product) -> Iterator[str]:
    """Which tile of which matrix a block has, and where these matrices lie."""
    if product.batched:
        yield "const int tiles = Tile::tiles(rows, columns), tile = int(blockIdx.x) % tiles, matrix = int(blockIdx.x) / tiles;"
    else:
        yield "const int tile = blockIdx.x;"
    behind = {"input": "(long long)matrix * rows * depth", "weight": "(long long)matrix * depth * columns"}
    places = {"input": product.input_place, "weight": product.weight_place}
    begins = {name: place.begin if place is not None else behind[name] * product.batched for name, place in places.items()}
    moved = [f"{name} += {begin}" for name, begin in begins.items() if begin]
    yield from [f"{', '.join(moved)};"] if moved else []
    pitches = [f"{name} = {place.pitch}" for name, place in all_places(product).items() if isinstance(place.pitch, str)]
    yield from [f"const int {', '.join(pitches)};"] if pitches else []


def all_places(product: Product) -> dict[str, Place]:
    found = {"input_pitch": product.input_place, "weight_pitch": product.weight_place, "out_pitch": product.out_place}
    return {name: place for name, place in found.items() if place is not None}


def finishing(product: Product, epilogue: Epilogue) -> list[Param]:
    """What the epilogue reads and writes."""
    bias = reading("float", "bias") if product.bias else ()
    return [*bias, *extra_params(epilogue), *(Param(Pointer("float"), name) for name in ("out", *(["saved"] if product.saves else [])))]


def element(product: Product, epilogue: Epilogue, value: str, result: str, saved: str) -> list[str]:
    """The chain at (n, c), from the sum to what is written; the product itself, where that is saved, goes to `saved`."""
    sum_ = f"{value} + bias[c]" if product.bias else value
    saving = [saved] if product.saves else []
    chain = [*printed(epilogue.before.statements), f"{result} = {to_cpp(epilogue.before.result)};"]
    return [f"const float value = {sum_};", *saving, *chain]


def each_pair(product: Product, lines: list[str]) -> str:
    """`lines` for every two neighbours that a lane holds, at row n and columns c0 and c0 + 1."""
    name = "in_matrix" if product.batched else "n"
    row = [f"const int {name} = row + 8 * i;", f"if ({name} >= rows) continue;"]
    row += ["const int n = matrix * rows + in_matrix;"] if product.batched else []
    return "\n".join([
        "#pragma unroll",
        "for (int i = 0; i < 2; ++i) {",
        *(f"  {line}" for line in row),
        "#pragma unroll",
        "  for (int f = 0; f < Tile::FRAGMENTS; ++f) {",
        "    const int c0 = column + 8 * f;",
        shifted("\n".join(lines), 4),
        "  }",
        "}",
        "",
    ])  # fmt: skip


def store_elements(product: Product, epilogue: Epilogue, tile: ProductTile) -> str:
    known = not product.columns_vary
    whole, even = known and product.columns % tile.columns == 0, known and product.columns % 2 == 0
    inner = element(product, epilogue, "sum[f][2 * i + e]", "done[e]", "product[e] = value;")
    saving = ["if (saved != nullptr) {", shifted(stored("saved", "product[0]", "product[1]", product), 2), "}"]
    return each_pair(product, [
        *([] if whole else ["if (c0 >= columns) continue;"]),
        f"float done[2]{', product[2]' if product.saves else ''};",
        "#pragma unroll",
        f"for (int e = 0; e < 2; ++e) {'' if even else 'if (c0 + e < columns) '}{{",
        "  const int c = c0 + e;",
        shifted("\n".join(inner), 2),
        "}",
        stored("out", "done[0]", "done[1]", product, product.out_place),
        *(saving if product.saves else []),
    ])  # fmt: skip


def finish(product: Product, epilogue: Epilogue, tile: ProductTile) -> str:
    elements = store_elements(product, epilogue, tile)
    if product.out_place is not None and product.out_place.begin:
        elements = f"out += {product.out_place.begin};\n{elements}"
    if tile.splits == 1:
        return elements
    sums = store_sums(product, tile)
    return f"if constexpr (SPLITS > 1) {{\n{shifted(sums, 2)}\n}} else {{\n{shifted(elements, 2)}\n}}\n"


def store_sums(product: Product, tile: ProductTile) -> str:
    whole = not product.columns_vary and product.columns % tile.columns == 0
    first = [] if whole else ["if (c0 >= columns) continue;"]
    row = "((long long)blockIdx.y * rows + n)"
    return each_pair(product, [*first, stored("sums", "sum[f][2 * i]", "sum[f][2 * i + 1]", product, row=row)])


def stored(to: str, first: str, second: str, product: Product, place: Place | None = None, row: str = "(long long)n") -> str:
    """Two neighbours; together where that is aligned."""
    where = f"{to} + {row} * columns + c0"
    if place is not None:
        pitch = "OUT_PITCH" if isinstance(place.pitch, int) else "out_pitch"
        where = f"{to} + (long long){'in_matrix' if product.batched else 'n'} * {pitch} + c0"
    both = f"*reinterpret_cast<float2*>({where}) = make_float2({first}, {second});"
    apart = f"float* const at = {where};\nat[0] = {first};\nif (c0 + 1 < columns) at[1] = {second};"
    if not product.columns_vary or (place is not None and place.whole % 2 != 0):
        return both if product.columns % 2 == 0 and (place is None or place.whole % 2 == 0) else apart
    return f"if (columns % 2 == 0) {{\n  {both}\n}} else {{\n{shifted(apart, 2)}\n}}"


def merge(product: Product, epilogue: Epilogue, splits: int) -> str:
    """The kernel behind a product whose depth several blocks share."""
    sizes = ["rows", *(["columns"] if product.columns_vary else [])]
    params = [*reading("float", "sums"), *finishing(product, epilogue), *(Param("int", size) for size in sizes)]
    body = [
        *([] if product.columns_vary else ["constexpr int columns = COLUMNS;"]),
        "const long long at = (long long)blockIdx.x * 256 + threadIdx.x, elements = (long long)rows * columns;",
        "if (at >= elements) return;",
        "const int n = int(at / columns), c = int(at % columns);",
        *printed(epilogue.before.setup),
        "float sum = 0.0f;",
        "#pragma unroll",
        f"for (int split = 0; split < {splits}; ++split) sum += sums[split * elements + at];",
        *element(product, epilogue, "sum", "out[at]", "if (saved != nullptr) saved[at] = value;"),
    ]
    head = [
        "",
        "// Adds the sums of all blocks of an element, in a fixed order, and ends it.",
        "__global__ void __launch_bounds__(256)",
        f"merge({', '.join(param.in_kernel for param in params)}) {{",
    ]
    return "\n".join([*head, shifted("\n".join(body), 2), "}", ""])


def launcher_args(product: Product, epilogue: Epilogue, split: bool) -> tuple[Param, ...]:
    sums = [Param(Pointer("float"), "sums")] if split else []
    sizes = (*placing(product, epilogue), *(["batch"] if product.batched else []), *size_names(product))
    return (*reading("float", "input", "weight"), *of_launcher((*finishing(product, epilogue), *sums)), *numbers(sizes))


def launcher(name: str, product: Product, epilogue: Epilogue, tile: ProductTile, split_rows: int | None) -> Iterator[str]:
    split = tile.splits > 1
    args = ", ".join(arg.in_launcher for arg in launcher_args(product, epilogue, split))
    handed = [param.handed for param in finishing(product, epilogue)]
    sizes = [f"int({size})" for size in (*placing(product, epilogue), *size_names(product))]
    call = ", ".join(["input", "weight", *(["sums"] if split else []), *handed, *sizes])
    yield f'extern "C" const char* {name}({args}, void* stream) {{'
    yield f"  using namespace {name}_detail;"
    columns = "columns" if product.columns_vary else "COLUMNS"
    tiles = f"Tile::tiles{'' if product.columns_vary else '<long long>'}(rows, {columns})"
    yield f"  const unsigned tiles = (unsigned)({'batch * ' if product.batched else ''}{tiles});"
    yield "  if (tiles == 0) return nullptr;"
    both = split and split_rows is not None
    for splits in (tile.splits, 1) if both else (tile.splits,):
        lines = [*vector_variants(product, splits, call)]
        if splits > 1:
            merged = ", ".join(["sums", *handed, "int(rows)", *(["int(columns)"] if product.columns_vary else [])])
            lines.append(f"merge<<<dim3((unsigned)((rows * {columns} + 255) / 256)), 256, 0, (cudaStream_t)stream>>>({merged});")
        if both:
            yield f"  if (rows <= {split_rows}) {{  // too few tiles otherwise" if splits > 1 else "  } else {"
        yield shifted("\n".join(lines), 4 if both else 2)
    if both:
        yield "  }"
    yield "  return launch_error();"
    yield "}"


def vector_variants(product: Product, splits: int, call: str) -> Iterator[str]:
    """By 16 bytes where operands that are read along the depth are aligned."""
    wide = [name for name, transposed in (("input", product.rows_transposed), ("weight", product.transposed)) if not transposed]
    tests = [*(["depth % 4 == 0"] if product.varies else []), *(f"(size_t){name} % 16 == 0" for name in wide)]
    able = wide and in_vectors(replace(product, depth=4) if product.varies else product)
    grid = f"dim3(tiles, {splits})"
    return by_vectors(
        " && ".join(tests) if able else "",
        lambda vector: launched(f"kernel<{vector}, {splits}>", grid, "Tile::THREADS", "Tile::SHARED_BYTES", call),
    )
