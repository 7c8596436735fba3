"""Convolutions on the tensor cores whose epilogue holds the rest of the chain in registers.

`conv_kernel` turns a `Conv`, an `Epilogue` and a `Tile` into CUDA text: a pure function of frozen data.

The convolution is an implicit product, channels × positions: m16n8k8 TF32 fragments with 16 output channels as rows, 8
positions as columns and 8 input channels as depth, one product for each tap of the kernel. Input tiles lie in shared
memory as they lie in the tensor ([channel][row][column]), two stages deep, copied asynchronously; of bf16 and fp16 a
word is two neighbouring channels, and a product 16 of them deep. Where TF32 is not allowed three products of parts make one
of float32. Weights lie in the order the tensor cores read them, 16 bytes a lane. A block walks over the tiles of one slice of
one sample, so that per-sample values are prepared once and the next tile is copied while this one is multiplied.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from string import Template

from ...ir import functions as fn
from ...ir.expr import Expr, Name, Pointer, element
from ...ir.stmt import Assign, Statement, printed
from ...target.machine import H200, Machine
from .conv_epilogue import epilogue_text, shifted
from .conv_layout import Layout, layout, refusal
from .conv_spec import (
    IDENTITY,
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
)
from .conv_text import extra_params, launched, out_size, outputs, parameter_lines, size_names, tidy
from .conv_tiles import candidate_tiles, fits, predicted_ms

__all__ = [
    "IDENTITY", "Conv", "Epilogue", "KernelText", "OverChannels", "OverPositions", "Param", "Pointwise", "Table", "Tile",
    "Window", "candidate_tiles", "conv_kernel", "fits", "predicted_ms",
]  # fmt: skip

HERE = Path(__file__).parent
SECTION = "\n//: "


def sections(file: str) -> dict[str, str]:
    """The pieces of a header, by what stands above each."""
    _, *pieces = f"\n{(HERE / file).read_text().rstrip()}".split(SECTION)
    return {head: f"{body}\n" for head, body in (piece.split("\n", 1) for piece in pieces)}


TEMPLATE = Template((HERE / "conv.cuh").read_text())
WARPGROUPS = Template((HERE / "conv_warpgroup.cuh").read_text())
MULTIPLY = sections("conv_multiply.cuh")
STAGING = sections("conv_staging.cuh")
TABLES_COMPLETE = "__syncthreads();  // what all threads prepared is complete\n"
STRAIGHT_PRODUCTS = 16  # of four warps in one stretch of straight code


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
    pieces = {
        "name": name,
        **input_names(conv),
        "told": ", int in_channels" if conv.open_inputs else "",
        "constants": constants(shape),
        "tiles": tiles(shape),
        "parameters": parameters(conv, epilogue, tile.resident),
        **prologue(shape, epilogue),
        "conclude": shifted(finished.conclude, 2),
        "launcher": launcher(name, shape, epilogue, machine),
    }
    if tile.warpgroups:
        pieces |= warpgroup_staging(shape) | {"state": shifted(finished.state, 2), "finish": shifted(finished.finish, 4)}
        source = WARPGROUPS.substitute(pieces)
    else:
        tables = TABLES_COMPLETE if shape.tables or shape.offset_words or tile.resident else ""
        pieces |= {
            **products(shape),
            **staging(shape),
            "state": shifted(finished.state + tables, 2),
            "finish": shifted(finished.finish, 6),
        }
        source = TEMPLATE.substitute(pieces)
    return KernelText(
        name=name,
        source=tidy(source),
        launcher_args=launcher_args(shape, epilogue),
        workspace={} if tile.resident else {"packed": str(shape.packed_floats)},
        slices=slices_expression(shape, machine) if isinstance(epilogue.reduce, OverPositions) else None,
        smem=4 * shape.shared_words,
        tile=tile,
    )


def can_be_opened(conv: Conv, epilogue: Epilogue, tile: Tile) -> bool:
    """The text is the same for any number of input channels, as far as they are whole chunks or not: the loop over chunks is one."""
    shape = layout(conv, epilogue, tile)
    plain = conv.groups == 1 and not conv.is_strict and not tile.folded
    return plain and shape.chunks > 1 and not (tile.warpgroups and tile.resident)


def input_names(conv: Conv) -> dict[str, str]:
    """What text calls the number of input channels, of one group's, and of chunks of them: constants, or variables."""
    if conv.open_inputs:
        return {"IN_CHANNELS": "in_channels", "GROUP_IN": "in_channels", "CHUNKS": "chunks"}
    return {name: name for name in ("IN_CHANNELS", "GROUP_IN", "CHUNKS")}


def inputs_handed(conv: Conv) -> tuple[str, ...]:
    return ("in_channels",) if conv.open_inputs else ()


def chunks_of(conv: Conv) -> str:
    """How many chunks the input channels are, as a statement."""
    return f"const int chunks = (int(in_channels) + {conv.packed_in} * CHUNK - 1) / ({conv.packed_in} * CHUNK);"


def products(shape: Layout) -> dict[str, str]:
    """The pieces that differ by what is multiplied: TF32, two TF32 numbers for each float32, or pairs of halves; taps one by one, by
    phases, or folded into the depth."""
    conv, folded = shape.conv, shape.tile.folded
    operand, multiply = {
        "float32": ("to_tf32", "mma_tf32"),
        "bfloat16": ("__float_as_uint", "mma_bf16"),
        "float16": ("__float_as_uint", "mma_f16"),
    }[conv.dtype]
    kind = "phases" if conv.is_phased else "folded" if folded else "taps"
    places = MULTIPLY["places"] if conv.is_phased else MULTIPLY["folded places"] if folded else ""
    text = places + Template(MULTIPLY[f"{kind} split" if conv.is_strict else kind]).substitute(operand=operand, mma=multiply)
    if conv.is_strict:
        place = MULTIPLY["plain place of phases" if conv.is_phased else "plain place"].rstrip()
        plain = Template(MULTIPLY["plain"]).substitute(input_names(conv), plain_place=place, weight_at=weight_at(conv))
        text = MULTIPLY["split"] + text + plain
    read = {
        "weight_order": "[8 taps]" if folded else "[chunk][part][8 inputs][column][kernel row]",
        "weight_place": STAGING["weight place, folded" if folded else "weight place"].rstrip(),
        "quad_step": "" if folded else "quad * PLANE + ",
        "lane_offsets": lane_offsets(shape),
        "read_by": "quad, lane_offsets" if folded else "part",
    }
    if conv.packed_in == 1:
        place = "" if folded else "  const int in = chunk * CHUNK + k8 * 8 + lane % 4 + word / 2 * 4;"
        word = Template(STAGING["weight"]).substitute(input_names(conv), place=place, weight_at=weight_at(conv))
        return read | {"multiply": text, "element": "float", "ordered": "float", "of_pairs": "", "weight_word": word.rstrip()}
    word = Template(STAGING["weight pair"]).substitute(
        input_names(conv), weight_at=weight_at(conv), next_weight_at=weight_at(conv, "in + 1"),
        bits_of="__half_as_ushort" if conv.dtype == "float16" else "__bfloat16_as_ushort",
    )  # fmt: skip
    of_pairs = "\n// An input is a pair of neighbouring channels, two halves of a word."
    return read | {
        "multiply": text, "element": conv.element, "ordered": "uint32_t", "of_pairs": of_pairs, "weight_word": word.rstrip(),
    }  # fmt: skip


def lane_offsets(shape: Layout) -> str:
    """Where a lane's inputs of each step of folded taps lie."""
    if not shape.tile.folded:
        return ""
    return shifted(OFFSETS_KEPT if shape.keeps_offsets else OFFSETS_READ, 2)


OFFSETS_KEPT = """\
Offsets own_offsets[TURNS];
#pragma unroll
for (int turn = 0; turn < TURNS; ++turn) own_offsets[turn] = offsets_of(turn, quad);
auto lane_offsets = [&](int turn) { return own_offsets[turn]; };"""
OFFSETS_READ = """\
for (int i = threadIdx.x; i < TURNS * 4; i += THREADS) offset_table[i] = offsets_of(i / 4, i % 4);
auto lane_offsets = [&](int turn) { return offset_table[turn * 4 + quad]; };"""


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

    pairs = conv.packed_in > 1
    inputs = "pairs of " if pairs else ""
    by_stride = [line(axes("STRIDE", conv.stride)), line(axes("DILATION", conv.dilation))]
    unrolled = f", UNROLLED_TURNS = {tile.unrolled or shape.turns}"
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
        steps, taps = "TURNS", shape.group_in * prod(conv.kernel)
        depth = [line(f"DEPTH = {taps}, TURNS = {shape.turns}{unrolled}, PARTS = 1", "taps of all input channels, in steps of 8")]
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
        *([] if tile.warpgroups else [line(f"INTERLEAVE = {shape.interleave}", "fragments that take turns along a row")]),
        "",
        line(f"CHUNK = {shape.chunk}{f', CHUNKS = {shape.chunks}' if fixed else ''}", f"{inputs}input channels a stage"),
        *depth,
        line(f"ROWS_D = {rd}, ROWS_H = {rh}", "input rows of a tile"),
    ]  # fmt: skip
    of_shared = line(f"SHARED_BYTES = {shared}", "" if fixed or not tile.resident else "besides the weights")
    if tile.warpgroups:
        return "\n".join([
            *lines,
            line(f"LEAD = {shape.lead}, PITCH = {shape.pitch}", "columns before the first, positions of an input row"),
            line(f"PLANE = {shape.plane}, ROWS = {shape.row_groups}", "positions of all rows; rows of four channels"),
            line("INPUT_STAGE = CHUNK * PLANE"),
            line("WEIGHT_STAGE = CHUNK / 8 * PART_COLUMNS * KERNEL_H * CHANNEL_TILES * 512"),
            line(f"TURNS = {shape.turns}, TILE_STEP = 1"),
            of_shared,
        ])  # fmt: skip
    return "\n".join([
        *lines,
        line(f"LEAD = {shape.lead}, PITCH = {shape.pitch}", "columns before the first, words of a row"),
        line(f"PLANE = {shape.plane}", f"words of a {'pair' if pairs else 'channel'}, padded so that no bank is met twice"),
        line("INPUT_STAGE = CHUNK * PLANE"),
        line(f"WEIGHT_STAGE = {steps} * BLOCK_TILES * 128"),
        line(f"STAGERS = {shape.stagers}, TILE_STEP = {shape.input_stages // 2}", "threads that share an input tile"),
        *([] if tile.folded else [line(f"TURNS = {shape.turns}{unrolled}")]),
        *([] if pairs else [line(f"TURN_CHANNELS = {shape.turn_channels}", "copies are spread over the turns of a step")]),
        *([] if tile.resident else [line(f"TURN_WEIGHTS = {shape.turn_weights}")]),
        of_shared,
    ])  # fmt: skip


def parameters(conv: Conv, epilogue: Epilogue, resident: bool) -> str:
    (weight,) = reading(conv.element if resident else "float", "weight")  # packed, where it is not resident
    others = (*(["plain_weight"] if conv.is_strict and not resident else []), *(["bias"] if conv.bias else []))
    tensors = (*reading(conv.element, "input"), weight, *reading(conv.element, *others))
    sizes = tuple(Param("int", name) for name in (*inputs_handed(conv), "in_d", "in_h", "in_w", "slices"))
    return parameter_lines((tensors, extra_params(epilogue), outputs(conv, epilogue), sizes))


def weight_at(conv: Conv, channel: str = "in") -> str:
    """Where the weight of a tap and an input channel lies."""
    taps, group_in = "(kd * KERNEL_H + kh) * KERNEL_W + kw", input_names(conv)["GROUP_IN"]
    if conv.transposed:
        turned = taps if conv.is_phased else f"(KERNEL_D * KERNEL_H * KERNEL_W - 1) - ({taps})"
        row = f"(long long)(group * {group_in} + {channel}) * GROUP_OUT + out"
        return f"weight[({row}) * (KERNEL_D * KERNEL_H * KERNEL_W) + {turned}]"
    row = f"(long long)(group * GROUP_OUT + out) * {group_in} + {channel}"
    return f"weight[({row}) * (KERNEL_D * KERNEL_H * KERNEL_W) + {taps}]"


def group_first_input(conv: Conv) -> str:
    return "0" if conv.groups == 1 else f"int(blockIdx.y) / GROUP_BLOCKS * {input_names(conv)['GROUP_IN']}"


def warpgroup_staging(shape: Layout) -> dict[str, str]:
    """The pieces of a kernel whose products are made by four warps together."""
    tile, conv = shape.tile, shape.conv
    resident, names = tile.resident, input_names(conv)
    straight = shape.turns * conv.kernel[1] * tile.channel_tiles * tile.fragments[0] <= STRAIGHT_PRODUCTS
    step = " + buffer * WEIGHT_STAGE"
    if resident:
        step = "" if shape.chunks == 1 else " + chunk * WEIGHT_STAGE"
    place = (
        "const int d0 = tile_d * TILE_D + warp_d * FRAGMENTS_D, h0 = tile_h * TILE_H + warp_h * FRAGMENTS_H;\n"
        "const int w0 = tile_w * TILE_W + warp_w * FRAGMENTS_W * 8;"
    )
    return {
        "weight_at": weight_at(conv),
        "pack_kernel": "" if resident else pack_kernel(conv),
        "unrolled": str(shape.turns if straight else 1),
        "exists": "" if shape.group_in % tile.chunk == 0 else f" && chunk * CHUNK + int(row.w) + j < {names['GROUP_IN']}",
        "warp_place": WARP_PLACE,
        "weight_stages": f"  float* const weight_stages = shared + {shape.input_stages} * INPUT_STAGE;",
        "channel_origin": channel_origin(shape),
        "group_first_input": group_first_input(conv),
        "stage_weight": "" if resident else shifted(STAGE_WEIGHTS.substitute(names), 2),
        "first_weight": shifted(pack_in_kernel(conv) if resident else "stage_weight(0, 0);", 2),
        "wait_weight": "" if resident else shifted(WAIT_WEIGHT, 2),
        "wait_next_weight": "" if resident else shifted(WAIT_WEIGHT, 6),
        "weight_at_step": f"weight_stages{step}",
        "next_weight": "" if resident else "        if (turn == 0) stage_weight(next_chunk, buffer ^ 1);",
        "origin_early": shifted(place, 4),
    }


def staging(shape: Layout) -> dict[str, str]:
    """The pieces that differ by where weights live and where the input is rounded."""
    tile, conv = shape.tile, shape.conv
    own = " + warp * 2 * INPUT_STAGE" if tile.alone else ""
    pairs, names = conv.packed_in > 1, input_names(conv)
    channel = "2 * (chunk * CHUNK + pair * ABREAST + own_pair) + second" if pairs else "chunk * CHUNK + channel"
    exists = "" if shape.group_in % (conv.packed_in * shape.chunk) == 0 else f" && {channel} < {names['GROUP_IN']}"
    stager, placed = "lane" if tile.alone else "int(threadIdx.x)", origin(shape)
    copies = Template(STAGING["pairs" if pairs else "words"]).substitute(
        element=conv.element, stager=stager, channel_exists=exists,
        tile_state=placed.pop("tile_state"), locate_decode=placed.pop("locate_decode"),
    )  # fmt: skip
    rounding = Template(STAGING["rounding"]).substitute(stager=stager) if shape.rounds_staged else ""
    pieces = {
        "input_staging": (copies.rstrip() + "\n" + rounding).rstrip(),
        "round_input": "            round_input(buffer);" if rounding else "",
        "first_input": f"  for (int turn = 0; turn {'<= ALL_TURNS' if pairs else '< REPEATS * PARTS * TURNS'}; ++turn)"
        " stage_input(0, turn, 0);",
        "last_input": shifted(LAST_INPUT, 10) if pairs else "",
        "flip_after_chunk": "buffer ^= 1;" if tile.repeats == 1 else "",
        "flip_after_tile": "" if tile.repeats == 1 else "buffer ^= 1;",
        "group_first_input": group_first_input(conv),
        "channel_origin": channel_origin(shape),
        "warp_place": WARP_ALONE if tile.alone else WARP_PLACE,
        "own_stages": own,
        "weight_stages": ""
        if tile.weights == "direct"
        else f"  float* const weight_stages = shared + {shape.input_stages} * INPUT_STAGE;",
        "first_tile": " + warp" if tile.alone else "",
        "barrier": "__syncwarp();" if tile.alone else "__syncthreads();",
    }
    pieces |= placed | lane_steps(shape)
    if tile.resident:
        return pieces | {
            "pack_kernel": "",
            "weight_base": "weight_stages",
            "stage_weight": "",
            "first_weight": shifted(pack_in_kernel(conv), 2),
            "next_weight": "",
            "next_step": "",
            "weight_buffer": "0" if shape.chunks == 1 else "chunk * (WEIGHT_STAGE / 4)",
            "flip_weight": "",
        }
    if tile.weights == "direct":
        return pieces | {
            "pack_kernel": pack_kernel(conv),
            "stage_weight": "",
            "first_weight": "",
            "next_weight": "",
            "next_step": "",
            "weight_base": f"weight + (long long)blockIdx.y * {names['CHUNKS']} * PARTS * WEIGHT_STAGE",
            "weight_buffer": "(chunk * PARTS + part) * (WEIGHT_STAGE / 4)",
            "flip_weight": "",
        }
    return pieces | {
        "pack_kernel": pack_kernel(conv),
        "weight_base": "weight_stages",
        "stage_weight": shifted(STAGE_WEIGHT.substitute(names), 2),
        "first_weight": "  for (int turn = 0; turn < TURNS; ++turn) stage_weight(0, turn, 0);",
        "next_weight": shifted(NEXT_WEIGHT, 21),
        "next_step": shifted(
            "const int next_step = part + 1 < PARTS ? chunk * PARTS + part + 1 : next_chunk * PARTS;", 10
        ),
        "weight_buffer": "weight_buffer * (WEIGHT_STAGE / 4)",
        "flip_weight": "          weight_buffer ^= 1;",
    }


def lane_steps(shape: Layout) -> dict[str, str]:
    """How far apart lanes and warps read the staged input, by what they hold of the output."""
    if shape.conv.is_phased:
        across = {a: f"(FRAGMENTS_{a} / PHASES_{a})" for a in "DHW"}
        steps = {"lane": "(INTERLEAVE / PHASES_W)", "d": across["D"], "h": across["H"], "w": f"{across['W']} * 8"}
    else:
        steps = {a.lower(): f"FRAGMENTS_{a} * {'8 * ' if a == 'W' else ''}STRIDE_{a}" for a in "DHW"}
        steps["lane"] = "INTERLEAVE * STRIDE_W"
    repeat = "" if shape.tile.repeats == 1 else " + repeat * WARPS_H * FRAGMENTS_H * STRIDE_H * PITCH"
    return {"lane_step": steps.pop("lane"), "repeat_step": repeat, **{f"warp_step_{a}": s for a, s in steps.items()}}


def origin(shape: Layout) -> dict[str, str]:
    """Where the warp's positions begin: kept from the copy's own arithmetic when a tile is one step, worked out again
    after the last step when it is many (registers are dearer there than a division)."""
    decode = "tile_d = tile / (tiles_h * tiles_w), tile_h = tile / tiles_w % tiles_h, tile_w = tile % tiles_w;"
    place = (
        "const int d0 = tile_d * TILE_D + warp_d * FRAGMENTS_D, {h} = tile_h * TILE_H + warp_h * FRAGMENTS_H;\n"
        "const int w0 = tile_w * TILE_W + warp_w * FRAGMENTS_W * 8;"
    )
    if shape.chunks * shape.parts > 1:
        late = f"const int {decode}\n" + place.format(h="h0")
        return {
            "tile_state": "",
            "locate_decode": f"const int {decode}",
            "origin_early": "",
            "origin_late": shifted(late, 6),
        }
    return {
        "tile_state": "  int tile_d, tile_h, tile_w;",
        "locate_decode": decode,
        "origin_early": shifted(place.format(h="h_tile"), 4),
        "origin_late": "      const int h0 = h_tile + repeat * WARPS_H * FRAGMENTS_H;",
    }


WARP_PLACE = """\
  const int warp_c = warp % WARPS_C, warp_w = warp / WARPS_C % WARPS_W;
  const int warp_h = warp / (WARPS_C * WARPS_W) % WARPS_H, warp_d = warp / (WARPS_C * WARPS_W * WARPS_H);"""
WARP_ALONE = "  constexpr int warp_c = 0, warp_d = 0, warp_h = 0, warp_w = 0;  // each warp has its own tiles"
PACK_IN_KERNEL = Template("""\
#pragma unroll 6
for (int i = threadIdx.x; i < $CHUNKS * WEIGHT_STAGE; i += THREADS)
  weight_stages[i] = $word;""")
PACK_KERNEL = Template("""
// $what; `kernel` reads them so.
__global__ void pack(const $element* __restrict__ weight, float* __restrict__ packed$told) {
$chunks
  $const int BLOCK_WEIGHTS = $CHUNKS * PARTS * WEIGHT_STAGE;
  const int i = blockIdx.x * 256 + threadIdx.x, block = blockIdx.y;
  if (i < BLOCK_WEIGHTS)
    packed[(long long)block * BLOCK_WEIGHTS + i] = $word;
}
""")
LAST_INPUT = "if (part + 1 == PARTS && repeat + 1 == REPEATS) stage_input(next_chunk, ALL_TURNS, buffer ^ 1);"


def pack_in_kernel(conv: Conv) -> str:
    """A block orders its weights itself."""
    return PACK_IN_KERNEL.substitute(input_names(conv), word=packed_word(conv, "blockIdx.y"))


def pack_kernel(conv: Conv) -> str:
    """A kernel of its own orders them, before."""
    how = "Orders the weights" if conv.is_strict else "Rounds the weights to TF32 and orders them"
    return PACK_KERNEL.substitute(
        input_names(conv),
        what=how if conv.packed_in == 1 else "Orders the weights, two to a word",
        element=conv.element,
        told=", int in_channels" if conv.open_inputs else "",
        chunks=f"  {chunks_of(conv)}" if conv.open_inputs else "",
        const="const" if conv.open_inputs else "constexpr",
        word=packed_word(conv, "block"),
    )


def packed_word(conv: Conv, block: str) -> str:
    """The weight that is read at place `i`, as what the tensor cores take."""
    word = f"ordered_weight({', '.join(('weight', *inputs_handed(conv), block, 'i'))})"
    if conv.is_strict:
        return word
    return f"__uint_as_float(to_tf32({word}))" if conv.packed_in == 1 else f"__uint_as_float({word})"


STAGE_WEIGHT = Template("""\
const float* const weight_from = weight + (long long)blockIdx.y * $CHUNKS * PARTS * WEIGHT_STAGE + 4 * threadIdx.x;
float* const weight_to = weight_stages + 4 * threadIdx.x;
int weight_buffer = 0;
auto stage_weight = [&](int step, int turn, int buffer) {
#pragma unroll
  for (int k = 0; k < TURN_WEIGHTS; ++k) {
    const int i = (turn * TURN_WEIGHTS + k) * 4 * THREADS;
    if (i + 4 * int(threadIdx.x) < WEIGHT_STAGE)
      cp_async<16>(weight_to + buffer * WEIGHT_STAGE + i, weight_from + step * WEIGHT_STAGE + i);
  }
};""")
STAGE_WEIGHTS = Template("""\
unsigned long long* const weights_come = reinterpret_cast<unsigned long long*>(rows + ROWS);
unsigned phase = 0;
auto stage_weight = [&](int chunk, int buffer) {
  bulk_copy(weight_stages + buffer * WEIGHT_STAGE, weight + ((long long)blockIdx.y * $CHUNKS + chunk) * WEIGHT_STAGE,
            4 * WEIGHT_STAGE, weights_come);
};
if (threadIdx.x == 0) bulk_start(weights_come);
__syncthreads();""")
WAIT_WEIGHT = """\
bulk_wait(weights_come, phase);
phase ^= 1;"""
NEXT_WEIGHT = "stage_weight(next_step, turn, weight_buffer ^ 1);"


def channel_origin(shape: Layout) -> str:
    if shape.channel_blocks == 1:
        return f"  constexpr int channel0 = 0, channel_end = {shape.conv.out_channels};"
    return (
        "  const int block_group = int(blockIdx.y) / GROUP_BLOCKS;\n"
        "  const int channel0 = block_group * GROUP_OUT + int(blockIdx.y) % GROUP_BLOCKS * BLOCK_CHANNELS;\n"
        "  const int channel_end = (block_group + 1) * GROUP_OUT;"
    )


def tiles(shape: Layout) -> str:
    """How many there are: they hold all that is left after the pool; where the convolution is kept, also what no window takes in."""
    text = "  const int tiles_h = {h}, tiles_w = {w};\n  const int tiles = {d} * tiles_h * tiles_w;"
    left = text.format(**{a: f"(out_{a} + OUT_TILE_{a.upper()} - 1) / OUT_TILE_{a.upper()}" for a in "dhw"})
    if not shape.conv.kept or shape.window == (1, 1, 1):
        return left
    all_ = text.format(**{a: f"(conv_{a} + TILE_{a.upper()} - 1) / TILE_{a.upper()}" for a in "dhw"})
    return f"#ifdef KEEPING\n{all_}\n#else\n{left}\n#endif"


def prologue(shape: Layout, epilogue: Epilogue) -> dict[str, str]:
    sizes = [
        f"  const int conv_d = {out_size(shape.conv, 0)}, conv_h = {out_size(shape.conv, 1)}, conv_w = {out_size(shape.conv, 2)};"
    ]
    pooled = [f"out_{a} = conv_{a}" + (f" / {p}" if p > 1 else "") for a, p in zip("dhw", shape.window, strict=False)]
    sizes += [f"  const int {', '.join(pooled)};"]
    tables = [table for body in epilogue.bodies for table in body.tables]
    bias = (Table("bias_of", bias_of_channel(shape.conv)),) if shape.conv.bias else ()
    base = {
        "resident": f"weight_stages + {input_names(shape.conv)['CHUNKS']} * WEIGHT_STAGE",
        "staged": "weight_stages + 2 * WEIGHT_STAGE",
        "direct": f"shared + {shape.input_stages} * INPUT_STAGE",
    }[shape.tile.weights]
    shared, compute = [f"  {chunks_of(shape.conv)}"] if shape.conv.open_inputs else [], list[Statement]()
    for k, table in enumerate((*bias, *tables)):
        shared.append(f"  float* const {table.name} = {base} + {k} * BLOCK_CHANNELS;")
        compute += [*table.statements, Assign(element(Name(table.name), Name("local")), table.value)]
    if shape.scratch_words:
        shared.append(f"  float* const scratch_words = {base} + {shape.tables} * BLOCK_CHANNELS;")
    if shape.run_words:
        shared.append(f"  float* const run_words = {base} + {shape.tables} * BLOCK_CHANNELS + {shape.scratch_words};")
    if shape.offset_words:
        before = shape.scratch_words + shape.run_words
        words = f"{base} + {shape.tables} * BLOCK_CHANNELS + {before}"
        shared.append(f"  Offsets* const offset_table = reinterpret_cast<Offsets*>({words});")
    setup = [line for body in epilogue.bodies for line in printed(body.setup, 1)]
    if compute:
        last = "" if shape.whole_channels else "min({}, channel_end - 1)"
        channel = last.format("channel0 + local") if last else "channel0 + local"
        setup.append("  for (int local = threadIdx.x; local < BLOCK_CHANNELS; local += THREADS) {")
        setup.append(f"    const int c = {channel};")
        setup += [*printed(compute, 2), "  }"]
    return {
        "out_sizes": "\n".join(sizes),
        "shared_tables": "\n".join(shared),
        "setup": "\n".join(setup),
    }


def bias_of_channel(conv: Conv) -> Expr:
    bias = element(Name("bias"), Name("c"))
    return bias if conv.packed_in == 1 else fn.to_arithmetic.of("float")(bias)


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
    packed = () if shape.tile.resident else (Param(Pointer("float"), "packed"),)
    sizes = ("batch", *inputs_handed(conv), *size_names(shape.conv))
    slices = ("slices",) if isinstance(epilogue.reduce, OverPositions) else ()
    return (*tensors, *of_launcher((*extra_params(epilogue), *outputs(conv, epilogue), *packed)), *numbers((*sizes, *slices)))


def launcher(name: str, shape: Layout, epilogue: Epilogue, machine: Machine) -> str:
    args = ", ".join(arg.in_launcher for arg in launcher_args(shape, epilogue))
    conv, tile = shape.conv, shape.tile
    weight = "weight" if tile.resident else "packed"
    plain = ["weight"] if conv.is_strict and not tile.resident else []
    handed = ["input", weight, *plain, *(["bias"] if conv.bias else [])]
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
    else:
        lines.append("  if (batch <= 0) return nullptr;")
    if tile.warpgroups:
        lines.append('  if ((CHUNK - 4) * in_d * in_h * in_w >= 1LL << 32) return "samples of this size need 64-bit offsets";')
    if not tile.resident:
        lines.append(
            f"  pack<<<dim3(({input_names(conv)['CHUNKS']} * PARTS * WEIGHT_STAGE + 255) / 256, {shape.channel_blocks}), 256, 0,"
            f" (cudaStream_t)stream>>>(weight, packed{', int(in_channels)' if conv.open_inputs else ''});"
        )
    lines.append(f"  const dim3 grid((unsigned)(batch * slices), {shape.channel_blocks});")
    call = ", ".join(handed)
    vectors = (4, 1) if conv.packed_in == 1 else (4, 2, 1)
    lines += ["  const auto launch = [&](auto variant) {"]
    lines += [f"    {line}" for line in launched("variant", "grid", "THREADS", shared, call)] + ["  };"]
    for vector in vectors:
        condition = f"if (in_w % {vector} == 0 && (size_t)input % {vector * conv.item_bytes} == 0) " if vector > 1 else ""
        lines.append(f"  {'' if vector == 4 else 'else '}{condition}launch(kernel<{vector}>);")
    lines += ["  return launch_error();", "}"]
    return "\n".join(lines)
