"""Convolutions on the tensor cores whose epilogue holds the rest of the chain in registers.

`conv_kernel` makes of a `Conv`, an `Epilogue` and a `Tile` into CUDA text: a pure function of frozen data.

The convolution is an implicit product, channels × positions: m16n8k8 TF32 fragments with 16 output channels as rows, 8
positions as columns and 8 input channels as depth, one product for each tap of the kernel. Input tiles lie in shared
memory as they lie in the tensor ([channel][row][column]), two stages deep, copied asynchronously; of bf16 and fp16 a
word is two neighbouring channels, and a product 16 of them deep. Where TF32 is not allowed three products of parts make one
of float32. Weights lie in the order the tensor cores read them, 16 bytes a lane. A block walks over the tiles of one slice of
one sample, so that per-sample values are prepared once and the next tile is copied while this one is multiplied.
"""

from __future__ import annotations

from math import prod

from ...ir import functions as fn
from ...ir.expr import Expr, Name, Pointer, Select, as_expr, element
from ...ir.stmt import Assign, Statement, printed, words
from ...target.machine import H200, Machine
from .code import Code, calling, pieces_of
from .conv_epilogue import epilogue_text
from .conv_layout import Layout, layout, refusal
from .conv_pieces import chunks_of, input_names, inputs_handed, products, staging, warpgroup_staging
from .conv_spec import (
    IDENTITY,
    MOST_ODD,
    PRODUCERS,
    Conv,
    Epilogue,
    KernelText,
    OverChannels,
    OverPositions,
    Param,
    Pointwise,
    Table,
    Tile,
    Window,
    numbers,
    of_launcher,
    reading,
    words_of_params,
)
from .conv_text import extra_params, launched, out_size, outputs, parameter_lines, size_names, tidy
from .conv_tiles import candidate_tiles, fits, predicted_ms

__all__ = [
    "IDENTITY", "Conv", "Epilogue", "KernelText", "OverChannels", "OverPositions", "Param", "Pointwise", "Table", "Tile",
    "Window", "candidate_tiles", "conv_kernel", "fits", "predicted_ms",
]  # fmt: skip

TEMPLATE, WARPGROUPS = pieces_of("conv.cuh")["kernel"], pieces_of("conv_warpgroup.cuh")
TABLES_COMPLETE = "__syncthreads();  // what all threads prepared is complete\n"


def conv_kernel(name: str, conv: Conv, epilogue: Epilogue, tile: Tile | None = None, machine: Machine = H200) -> KernelText:
    """The CUDA text of one convolution kernel and its launcher.

    >>> conv_kernel("k", Conv(2, 8, 64, (3, 3), (1, 1), (0, 0), (1, 1)), Epilogue()).launcher_args[0]
    Param(kind=Pointer(to='float', const=True), name='input', tensor='')
    """
    tile = tile or candidate_tiles(conv, epilogue, machine)[0]
    shape = layout(conv, epilogue, tile)
    reason = refusal(shape, epilogue, machine)
    if reason:
        raise ValueError(f"{name}: {reason}")
    finished = epilogue_text(shape, epilogue)
    pieces: dict[str, Code | str] = {
        "name": name,
        **input_names(conv),
        "told": ", int in_channels" if conv.open_inputs else "",
        "constants": constants(shape),
        "tiles": tiles(shape),
        "parameters": parameters(conv, epilogue, tile.resident),
        **prologue(shape, epilogue),
        "conclude": finished.conclude.moved(2),
        "launcher": launcher(name, shape, epilogue, machine),
    }
    if tile.warpgroups:
        pieces |= warpgroup_staging(shape) | {"state": finished.state.moved(2), "finish": finished.finish.moved(4)}
        pieces["begin"] = WARPGROUPS["begin"].filled(**pieces).stripped()
        made = WARPGROUPS["kernel with producers" if tile.producers else "kernel"].filled(**pieces)
    else:
        tables = TABLES_COMPLETE if shape.tables or shape.offset_words or tile.resident else ""
        pieces |= {
            **products(shape),
            **staging(shape),
            "state": (finished.state + tables).moved(2),
            "finish": finished.finish.moved(6),
        }
        made = TEMPLATE.filled(**pieces)
    return KernelText(
        name=name,
        source=tidy(made.text),
        calls=made.calls | epilogue.calls | words_of_params(launcher_args(shape, epilogue)),
        launcher_args=launcher_args(shape, epilogue),
        workspace=workspace_of(shape),
        per_sample={"scales": 2 + 2 * MOST_ODD} if conv.scaled else {},
        slices=slices_expression(shape, machine) if isinstance(epilogue.reduce, OverPositions) else None,
        smem=4 * shape.shared_words,
        tile=tile,
    )


def can_be_opened(conv: Conv, epilogue: Epilogue, tile: Tile) -> bool:
    """The text is the same for any number of input channels, as far as they are whole chunks or not: the loop over chunks is one."""
    shape = layout(conv, epilogue, tile)
    plain = conv.groups == 1 and not conv.is_split and not conv.scaled and not tile.folded
    return plain and shape.chunks > 1 and (tile.producers or not (tile.warpgroups and tile.resident))


def workspace_of(shape: Layout) -> dict[str, str]:
    """The floats of each buffer that the launcher wants."""
    if shape.tile.resident:
        return {}
    scales = {"scales": str(shape.channel_blocks * shape.block_channels)} if shape.conv.scaled else {}
    return {"packed": str(shape.packed_floats), **scales}


def constants(shape: Layout) -> str:
    conv, tile = shape.conv, shape.tile
    (td, th, tw), (rd, rh, _), (pd, ph, pw) = shape.tile_sizes, shape.rows, shape.window
    (fd, fh, fw), (wd, wh, ww) = shape.spread, shape.warps
    window_rows = (
        (tile.fragments[1] - 1) * shape.input_stride[1] + (shape.kernel_rows_together - 1) * conv.dilation[1] + 1
    )

    def axes(name: str, values: tuple[int, ...]) -> str:
        return ", ".join(f"{name}_{axis} = {value}" for axis, value in zip("DHW", values, strict=False))

    def line(text: str, comment: str = "") -> str:
        return f"constexpr int {text};" + (f"  // {comment}" if comment else "")

    pairs, times = conv.packed_in > 1, "2 * " if conv.bf16_parts else ""
    inputs = "pairs of " if pairs else ""
    chunks = f", CHUNKS = {shape.chunks}"
    if conv.scaled:
        inputs, chunks = "pairs of halves, or TF32 numbers of ", f", HALVES_CHUNKS = {shape.chunks}, TF32_CHUNKS = {shape.tf32_chunks}"
    by_stride = [line(axes("STRIDE", conv.stride)), line(axes("DILATION", conv.dilation))]
    unrolled = f", UNROLLED_K_BLOCKS = {tile.unrolled or shape.k_blocks}"
    if conv.is_phased:
        by_stride = [
            line(axes("PHASES", conv.stride), "output positions for each input position"),
            line(axes("PADDING", conv.padding)),
            line(axes("REACH", conv.reach), "input positions that all phases together read"),
        ]
        unrolled = ""
    steps = "CHUNK / 8 * PART_COLUMNS * KERNEL_H"
    depth = [
        line(f"PART_COLUMNS = {shape.part_columns}, PARTS = {shape.parts}", "columns of the kernel a step"),
        *([] if tile.warpgroups else [line(f"KERNEL_ROWS_TOGETHER = {shape.kernel_rows_together}, WINDOW_ROWS = {window_rows}")]),
    ]
    if tile.folded:
        steps, taps = "K_BLOCKS", shape.chunk * prod(conv.kernel)
        depth = [line(f"DEPTH = {taps}, K_BLOCKS = {shape.k_blocks}{unrolled}, PARTS = 1", "taps of all input channels, in steps of 8")]
    fixed = not conv.open_inputs
    inputs_of = (f"IN_CHANNELS = {conv.in_channels}, ", f"GROUP_IN = {shape.group_in}, ") if fixed else ("", "")
    shared = 4 * (shape.shared_words if fixed or not tile.resident else shape.shared_words - shape.chunks * shape.weight_stage)
    lines = [
        line(f"{inputs_of[0]}OUT_CHANNELS = {conv.out_channels}"),
        line(f"{inputs_of[1]}GROUP_OUT = {shape.group_out}", "channels of one group"),
        line(axes("KERNEL", conv.kernel)),
        *by_stride,
        line(axes("HALO", conv.halo), "zeros in front of the input"),
        "",
        line(f"WARPS_C = {tile.warps_c}, {axes('WARPS', (wd, wh, ww))}", "warps over channels and positions"),
        line(f"CHANNEL_TILES = {tile.channel_tiles}", "of 16 channels, in a warp"),
        line(axes("FRAGMENTS", (fd, fh, fw)), "of 8 positions, in a warp"),
        line(f"FRAGMENTS = {shape.fragments}" + ("" if tile.warpgroups else f", REPEATS = {tile.repeats}")),
        line(f"THREADS = {tile.threads}, BLOCKS_PER_SM = {tile.blocks_per_sm}"),
        line(f"LANE_CHANNELS = {2 * tile.channel_tiles}, BLOCK_TILES = {tile.channel_tiles * tile.warps_c}"),
        line(f"BLOCK_CHANNELS = {shape.block_channels}, GROUP_BLOCKS = {shape.group_blocks}"),
        line(axes("TILE", (td, th, tw)), "output positions of a block"),
        line(axes("STEP", shape.input_step), "input positions from one to the next"),
        line(axes("OUT_TILE", (td // pd, th // ph, tw // pw)), "and what is left of them after the pool"),
        line(f"HELD = {shape.held[0] * shape.held[1] * shape.held[2]}, PAIR = {shape.pair}",
             "fragments and neighbours a lane holds then"),
        *([] if tile.warpgroups else [line(f"INTERLEAVE = {shape.interleave}", "fragments interleaved along a row")]),
        "",
        line(f"CHUNK = {shape.chunk}{chunks if fixed else ''}", f"{inputs}input channels a stage"),
        *depth,
        line(f"ROWS_D = {rd}, ROWS_H = {rh}", "input rows of a tile"),
    ]  # fmt: skip
    of_shared = line(f"SHARED_BYTES = {shared}", "" if fixed or not tile.resident else "besides the weights")
    if tile.warpgroups:
        producers = [
            line(f"ALL_THREADS = THREADS + {PRODUCERS}", "with the warpgroup that fills the stages"),
            line(f"STAGES = {tile.stages}, FULL = 2, EMPTY = {2 + tile.stages}", "barriers of the first stage"),
        ]  # fmt: skip
        rows_of = f"SIDE_ROWS = {shape.row_groups // 2}" if conv.scaled else f"ROWS = {shape.row_groups}"
        of_scales = [line(f"PACKED_CHANNELS = {shape.channel_blocks * shape.block_channels}, MOST_ODD = {MOST_ODD}")]
        return "\n".join([
            *lines,
            *(producers if tile.producers else []),
            line(f"LEAD = {shape.lead}, PITCH = {shape.pitch}", "columns before the first, positions of an input row"),
            line(f"PLANE = {shape.plane}, {rows_of}", "positions of all rows; rows of four channels"),
            *(of_scales if conv.scaled else []),
            line("INPUT_STAGE = CHUNK * PLANE"),
            line("WEIGHT_STAGE = CHUNK / 8 * PART_COLUMNS * KERNEL_H * BLOCK_TILES * 128"),
            line(f"K_BLOCKS = {shape.k_blocks}, TILE_STEP = 1"),
            of_shared,
        ])  # fmt: skip
    return "\n".join([
        *lines,
        line(f"LEAD = {shape.lead}, PITCH = {shape.pitch}", "columns before the first, words of a row"),
        line(f"PLANE = {shape.plane}", f"words of a {'pair' if pairs else 'channel'}, padded so that no bank is met twice"),
        *([line("LOW = CHUNK * PLANE", "where second parts begin")] if conv.bf16_parts else []),
        line(f"INPUT_STAGE = {times}CHUNK * PLANE"),
        line(f"WEIGHT_STAGE = {times}{steps} * BLOCK_TILES * 128"),
        line(f"STAGERS = {shape.stagers}, TILE_STEP = {shape.input_stages // 2}", "threads that share an input tile"),
        *([] if tile.folded else [line(f"K_BLOCKS = {shape.k_blocks}{unrolled}")]),
        *([] if pairs else [line(f"K_BLOCK_CHANNELS = {shape.k_block_channels}", "copies are spread over the k-blocks of a step")]),
        *([] if tile.resident else [line(f"K_BLOCK_WEIGHTS = {shape.k_block_weights}")]),
        of_shared,
    ])  # fmt: skip


def parameters(conv: Conv, epilogue: Epilogue, resident: bool) -> str:
    (weight,) = reading(conv.element if resident else "float", "weight")  # packed, where it is not resident
    others = (*(["plain_weight"] if conv.is_split and not resident else []), *(["bias"] if conv.bias else []))
    scales = (Param(Pointer("float"), "scales"),) if conv.scaled else ()
    tensors = (*reading(conv.element, "input"), weight, *scales, *reading(conv.element, *others))
    sizes = tuple(Param("int", name) for name in (*inputs_handed(conv), "in_d", "in_h", "in_w", "slices"))
    return parameter_lines((tensors, extra_params(epilogue), outputs(conv, epilogue), sizes))


def tiles(shape: Layout) -> str:
    """How many there are: they hold all that is left after the pool; where the convolution is kept, also what no window takes in."""
    text = "  const int tiles_h = {h}, tiles_w = {w};\n  const int tiles = {d} * tiles_h * tiles_w;"
    left = text.format(**{a: f"(out_{a} + OUT_TILE_{a.upper()} - 1) / OUT_TILE_{a.upper()}" for a in "dhw"})
    if not shape.conv.saves or shape.window == (1, 1, 1):
        return left
    all_ = text.format(**{a: f"(conv_{a} + TILE_{a.upper()} - 1) / TILE_{a.upper()}" for a in "dhw"})
    return f"#ifdef SAVING\n{all_}\n#else\n{left}\n#endif"


def prologue(shape: Layout, epilogue: Epilogue) -> dict[str, Code | str]:
    sizes = [
        f"  const int conv_d = {out_size(shape.conv, 0)}, conv_h = {out_size(shape.conv, 1)}, conv_w = {out_size(shape.conv, 2)};"
    ]
    pooled = [f"out_{a} = conv_{a}" + (f" / {p}" if p > 1 else "") for a, p in zip("dhw", shape.window, strict=False)]
    sizes += [f"  const int {', '.join(pooled)};"]
    tables = [table for body in epilogue.bodies for table in body.tables]
    bias, tile = (Table("bias_of", bias_of_channel(shape.conv)),) if shape.conv.bias else (), shape.tile
    unscaled = (Table("unscaled", unscaled_of_channel()),) if shape.conv.scaled else ()
    base = {
        "resident": f"weight_stages + {input_names(shape.conv)['CHUNKS']} * WEIGHT_STAGE",
        "staged": f"weight_stages + {tile.stages if tile.producers else 2} * WEIGHT_STAGE",
        "direct": f"shared + {shape.input_stages} * INPUT_STAGE",
    }[tile.weights]
    shared, compute = [f"  {chunks_of(shape.conv)}"] if shape.conv.open_inputs else [], list[Statement]()
    for k, table in enumerate((*bias, *unscaled, *tables)):
        shared.append(f"  float* const {table.name} = {base} + {k} * BLOCK_CHANNELS;")
        compute += [*table.statements, Assign(element(Name(table.name), Name("local")), table.value)]
    if shape.scratch_words:
        shared.append(f"  float* const scratch_words = {base} + {shape.tables} * BLOCK_CHANNELS;")
    if shape.run_words:
        shared.append(f"  float* const run_words = {base} + {shape.tables} * BLOCK_CHANNELS + {shape.scratch_words};")
    if shape.offset_words:
        before = shape.scratch_words + shape.run_words
        place = f"{base} + {shape.tables} * BLOCK_CHANNELS + {before}"
        shared.append(f"  Offsets* const offset_table = reinterpret_cast<Offsets*>({place});")
    setup = [line for body in epilogue.bodies for line in printed(body.setup, 1)]
    if compute:
        last = "" if shape.whole_channels else "min({}, channel_end - 1)"
        channel = last.format("channel0 + local") if last else "channel0 + local"
        setup.append(f"  for (int local = threadIdx.x; local < BLOCK_CHANNELS; local += {all_threads(shape.tile)}) {{")
        setup.append(f"    const int c = {channel};")
        setup += [*printed(compute, 2), "  }"]
    return {
        "out_sizes": "\n".join(sizes),
        "shared_tables": "\n".join(shared),
        "setup": calling("\n".join(setup), *words(compute)),
    }


def all_threads(tile: Tile) -> str:
    return "ALL_THREADS" if tile.producers else "THREADS"


def unscaled_of_channel() -> Expr:
    """What a channel's sums of scaled halves are multiplied by."""
    place = Name("blockIdx.y") * Name("BLOCK_CHANNELS") + Name("local")
    both = element(Name("scaled.of_channel"), place) * Name("unscaled_sample")
    return Select(Name("HALVES"), both, as_expr(1.0))


def bias_of_channel(conv: Conv) -> Expr:
    bias = element(Name("bias"), Name("c"))
    return fn.to_arithmetic.of("float")(bias) if conv.is_half else bias


def slices_expression(shape: Layout, machine: Machine) -> str:
    """Python over `{batch}` for the number of slices; the function stands in the file (`emit/template.py`)."""
    copies = "{batch}" if shape.channel_blocks == 1 else f"{{batch}} * {shape.channel_blocks}"
    return f"_slices({copies}, {seats_of(shape, machine)})"


def seats_of(shape: Layout, machine: Machine) -> int:
    """Blocks that the machine runs at once: a grid of so many is one full wave."""
    return machine.multiprocessors * shape.tile.blocks_per_sm


def launcher_args(shape: Layout, epilogue: Epilogue) -> tuple[Param, ...]:
    conv = shape.conv
    tensors = reading(conv.element, "input", "weight", *(["bias"] if conv.bias else []))
    packed = tuple(Param(Pointer("float"), name) for name in workspace_of(shape))
    sizes = ("batch", *inputs_handed(conv), *size_names(shape.conv))
    slices = ("slices",) if isinstance(epilogue.reduce, OverPositions) else ()
    return (*tensors, *of_launcher((*extra_params(epilogue), *outputs(conv, epilogue), *packed)), *numbers((*sizes, *slices)))


def launcher(name: str, shape: Layout, epilogue: Epilogue, machine: Machine) -> Code:
    args = ", ".join(arg.in_launcher for arg in launcher_args(shape, epilogue))
    conv, tile = shape.conv, shape.tile
    weight = "weight" if tile.resident else "packed"
    plain = ["weight"] if conv.is_split and not tile.resident else []
    handed = ["input", weight, *(["scales"] if conv.scaled else []), *plain, *(["bias"] if conv.bias else [])]
    handed += [param.handed for param in (*extra_params(epilogue), *outputs(conv, epilogue))]
    handed += [f"int({size})" for size in (*inputs_handed(conv), "in_d", "in_h", "in_w", "slices")]
    lines = [f'extern "C" const char* {name}({args}, void* stream) {{', f"  using namespace {name}_detail;"]
    shared = "SHARED_BYTES"
    if conv.open_inputs and tile.resident:
        shared = "shared_bytes"
        lines += [f"  {chunks_of(conv)}", "  const int shared_bytes = SHARED_BYTES + 4 * chunks * WEIGHT_STAGE;"]
    elif conv.open_inputs:
        lines.append(f"  {chunks_of(conv)}")
    missing = [size for size in ("in_d", "in_h", "in_w") if size not in size_names(conv)]
    if missing:
        lines.append("  const long long " + ", ".join(f"{size} = 1" for size in missing) + ";")
    if not isinstance(epilogue.reduce, OverPositions):
        for axis, letter in enumerate("dhw"):
            size = out_size(shape.conv, axis)
            pooled = f"({size}) / {shape.window[axis]}" if shape.window[axis] > 1 else size
            lines.append(f"  const long long out_{letter} = {pooled};")
        tiles = " * ".join(f"((out_{a} + OUT_TILE_{a.upper()} - 1) / OUT_TILE_{a.upper()})" for a in "dhw")
        lines.append(f"  const long long tiles = {tiles};")
        lines.append("  if (batch * tiles <= 0) return nullptr;")
        lines.append(
            f"  const long long slices = least_waste(tiles, batch * {shape.channel_blocks}, {seats_of(shape, machine)},"
            " TILE_STEP);"
        )
        calls = ["least_waste"]
    else:
        lines.append("  if (batch <= 0) return nullptr;")
        calls = []
    if tile.warpgroups:
        chunk = "2 * CHUNK" if conv.packed_in > 1 else "CHUNK"
        lines.append(f'  if (({chunk} - 3) * in_d * in_h * in_w >= 1LL << 32) return "samples of this size need 64-bit offsets";')
    if conv.scaled:
        lines.append(
            "  pack<<<(unsigned)(PACKED_CHANNELS + batch), 256, 0, (cudaStream_t)stream>>>(weight, input, packed, scales,"
            " IN_CHANNELS * in_d * in_h * in_w);"
        )
    elif not tile.resident:
        lines.append(
            f"  pack<<<dim3(({input_names(conv)['CHUNKS']} * PARTS * WEIGHT_STAGE + 255) / 256, {shape.channel_blocks}), 256, 0,"
            f" (cudaStream_t)stream>>>(weight, packed{', int(in_channels)' if conv.open_inputs else ''});"
        )
    lines.append(f"  const dim3 grid((unsigned)(batch * slices), {shape.channel_blocks});")
    call = ", ".join(handed)
    vectors = (4, 2, 1) if conv.is_half else (4, 1)
    lines += ["  const auto launch = [&](auto variant) {"]
    lines += [f"    {line}" for line in launched("variant", "grid", all_threads(tile), shared, call)] + ["  };"]
    for vector in vectors:
        condition = f"if (in_w % {vector} == 0 && (size_t)input % {vector * conv.item_bytes} == 0) " if vector > 1 else ""
        lines.append(f"  {'' if vector == 4 else 'else '}{condition}launch(kernel<{vector}{', true' if conv.scaled else ''}>);")
    if conv.scaled:
        lines.append("  launch(kernel<1, false>);  // tiles that halves do not fit: none, as a rule")
    lines += ["  return launch_error();", "}"]
    return calling("\n".join(lines), *calls)
