"""The pieces of a convolution kernel that differ by what is multiplied, and by where weights and inputs are staged."""

from __future__ import annotations

from .code import Code, calling, pieces_of, shifted
from .conv_layout import Layout
from .conv_spec import PRODUCER_REGISTERS, Conv

MULTIPLY, STAGING, WARPGROUPS = (pieces_of(file) for file in ("conv_multiply.cuh", "conv_staging.cuh", "conv_warpgroup.cuh"))
OF_PAIRS = "\n// An input is a pair of neighbouring channels, two halves of a word."
OF_SIDE = "\n// SIDE inputs lie in a word, of which it is the `second` or not."
STRAIGHT_PRODUCTS = 16  # of a warpgroup in one stretch of straight code


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


def products(shape: Layout) -> dict[str, Code | str]:
    """The pieces that differ by what is multiplied: TF32, two TF32 or bf16 numbers for each float32, or pairs of halves; taps one by one,
    by phases, or folded into the depth."""
    conv, folded = shape.conv, shape.tile.folded
    kind = "phases" if conv.is_phased else "folded" if folded else "taps"
    places = MULTIPLY["places"] if conv.is_phased else MULTIPLY["folded places"] if folded else Code()
    text = places + (MULTIPLY[f"{kind} split"] if conv.is_strict else MULTIPLY[kind].filled(**multiplied(conv, kind)))
    if conv.is_split:
        plain_place = MULTIPLY["plain place of phases" if conv.is_phased else "plain place"].stripped()
        plain = MULTIPLY["plain"].filled(**input_names(conv), plain_place=plain_place, weight_at=weight_at(conv))
        text = (text + both_parts(kind) if conv.bf16_parts else MULTIPLY["split"] + text) + plain
    at_place = STAGING["weight place, folded"].filled(**of_pair(conv)) if folded else STAGING["weight place"]
    order = "[8 taps]" if folded else "[chunk][part][8 inputs][column][kernel row]"
    read: dict[str, Code | str] = {
        "weight_order": f"{order}[high, low]" if conv.bf16_parts else order,
        "weight_part": WEIGHT_PART if conv.bf16_parts else "",
        "weight_place": at_place.stripped(),
        "quad_step": "" if folded else "quad * PLANE + ",
        "lane_offsets": lane_offsets(shape),
        "read_by": "quad, lane_offsets" if folded else "part",
    }
    if conv.packed_in == 1:
        place = "" if folded else "  const int in = chunk * CHUNK + k8 * 8 + lane % 4 + word / 2 * 4;"
        word = STAGING["weight"].filled(**input_names(conv), place=place, weight_at=weight_at(conv))
        return read | {"multiply": text, "element": "float", "ordered": "float", "of_pairs": "", "weight_word": word.stripped()}
    word = STAGING["weight parts" if conv.bf16_parts else "weight pair"].filled(
        **input_names(conv), weight_at=weight_at(conv), next_weight_at=weight_at(conv, "in + 1"),
        place="" if folded else "  const int in = 2 * (chunk * CHUNK + k8 * 8 + lane % 4 + word / 2 * 4);",
        bits_of=bits_of(conv),
    )  # fmt: skip
    return read | {
        "multiply": text, "element": conv.element, "ordered": "uint32_t", "of_pairs": OF_PAIRS, "weight_word": word.stripped(),
    }  # fmt: skip


def of_pair(conv: Conv) -> dict[str, str]:
    """How a word's number becomes that of its first channel."""
    return {"pairs": "2 * (", "end_pairs": ")"} if conv.packed_in > 1 else {"pairs": "", "end_pairs": ""}


def multiplied(conv: Conv, kind: str) -> dict[str, Code | str]:
    """What the inner loop multiplies. Of bf16 parts it is gone through twice: with one part of the inputs, then with the other."""
    name = f"mma_{conv.operands}"
    mma = calling(name, name)
    if not conv.bf16_parts:
        operand = calling("to_tf32", "to_tf32") if conv.dtype == "float32" else "__float_as_uint"
        nothing = dict.fromkeys(("weights", "each_weight", "weight_k", "end_k"), "")
        return {"mma": mma, "operand": operand, "multiply": "multiply", "lanes": "32", "is_rounded": ", which is TF32 already", **nothing}
    indent = {"phases": 10, "taps": 8, "folded": 4}[kind]
    return {
        "mma": mma, "operand": "__float_as_uint", "multiply": "multiply_part", "lanes": "64",
        "is_rounded": ", one part of the inputs and WEIGHTS of the weights", "weights": "int WEIGHTS, ",
        "each_weight": shifted("#pragma unroll\nfor (int low = WEIGHTS - 1; low >= 0; --low)", indent),
        "weight_k": "(2 * " if kind != "taps" else "2 * (",
        "end_k": " + low)" if kind != "taps" else ") + low",
    }  # fmt: skip


def both_parts(kind: str) -> Code:
    """What goes through the inner loop twice."""
    read = {"taps": ("", "int part", "part"), "folded": ("class Read, ", "int quad, Read offsets", "quad, offsets")}
    read["phases"] = read["taps"]
    return MULTIPLY["parts"].filled(**dict(zip(("read", "where", "handed"), read[kind], strict=True)))


WEIGHT_PART = """\
  const bool is_low = index / (128 * BLOCK_TILES) % 2;
  index = index / (256 * BLOCK_TILES) * (128 * BLOCK_TILES) + index % (128 * BLOCK_TILES);"""


def lane_offsets(shape: Layout) -> str:
    """Where a lane's inputs of each step of folded taps lie."""
    if not shape.tile.folded:
        return ""
    return shifted(OFFSETS_KEPT if shape.keeps_offsets else OFFSETS_READ, 2)


OFFSETS_KEPT = """\
Offsets own_offsets[K_BLOCKS];
#pragma unroll
for (int k_block = 0; k_block < K_BLOCKS; ++k_block) own_offsets[k_block] = offsets_of(k_block, quad);
auto lane_offsets = [&](int k_block) { return own_offsets[k_block]; };"""
OFFSETS_READ = """\
for (int i = threadIdx.x; i < K_BLOCKS * 4; i += THREADS) offset_table[i] = offsets_of(i / 4, i % 4);
auto lane_offsets = [&](int k_block) { return offset_table[k_block * 4 + quad]; };"""


def weight_at(conv: Conv, channel: str = "in") -> str:
    """Where the weight of a tap and an input channel lies."""
    taps, group_in = "(kd * KERNEL_H + kh) * KERNEL_W + kw", input_names(conv)["GROUP_IN"]
    if conv.transposed:
        mirrored = taps if conv.is_phased else f"(KERNEL_D * KERNEL_H * KERNEL_W - 1) - ({taps})"
        row = f"(long long)(group * {group_in} + {channel}) * GROUP_OUT + out"
        return f"weight[({row}) * (KERNEL_D * KERNEL_H * KERNEL_W) + {mirrored}]"
    row = f"(long long)(group * GROUP_OUT + out) * {group_in} + {channel}"
    return f"weight[({row}) * (KERNEL_D * KERNEL_H * KERNEL_W) + {taps}]"


def group_first_input(conv: Conv) -> str:
    return "0" if conv.groups == 1 else f"int(blockIdx.y) / GROUP_BLOCKS * {input_names(conv)['GROUP_IN']}"


def warpgroup_staging(shape: Layout) -> dict[str, Code | str]:
    """The pieces of a kernel whose products are warpgroup MMAs."""
    tile, conv = shape.tile, shape.conv
    resident, names = tile.resident, input_names(conv)
    straight = shape.k_blocks * conv.kernel[1] * tile.channel_tiles * tile.fragments[0] <= STRAIGHT_PRODUCTS
    step = " + buffer * WEIGHT_STAGE"
    if resident:
        step = "" if shape.chunks == 1 else " + chunk * WEIGHT_STAGE"
    place = (
        "const int d0 = tile_d * TILE_D + warp_d * FRAGMENTS_D, h0 = tile_h * TILE_H + warp_h * FRAGMENTS_H;\n"
        "const int w0 = tile_w * TILE_W + warp_w * FRAGMENTS_W * 8;"
    )
    steps = lane_steps(shape)
    both = with_producers(shape) | (of_scaled(shape) if conv.scaled else ONE_PASS) if tile.producers else {}
    return {
        **warpgroup_words(conv),
        "ordered_weight": warpgroup_weight(conv).stripped(),
        "multiply": warpgroup_products(shape, straight),
        "own_channels": "" if tile.warps_c == 4 else " + warp_c / 4 * (CHANNEL_TILES * 512)",
        **{name: steps[name] for name in ("warp_step_d", "warp_step_h", "warp_step_w")},
        "template": "template <int VECTOR, bool HALVES>" if conv.scaled else "template <int VECTOR>",
        "own_constants": WARPGROUPS["constants of scaled"] if conv.scaled else "",
        "which_tiles": WARPGROUPS["tiles of scaled"].filled(all_threads="ALL_THREADS") if conv.scaled else "",
        "pack_kernel": "" if resident else pack_kernel(conv),
        "exists": exists_by_four(shape),
        "warp_place": WARP_PLACE,
        "all_threads": "THREADS",
        "place_of_rows": "shared + SHARED_BYTES / 4 - 4 * (ROWS + 1)",
        "weight_stages": f"  float* const weight_stages = shared + {shape.input_stages} * INPUT_STAGE;",
        "channel_origin": channel_origin(shape),
        "group_first_input": group_first_input(conv),
        "stage_weight": "" if resident else STAGE_WEIGHTS.filled(**names).moved(2),
        "first_weight": pack_in_kernel(conv).moved(2) if resident else "  stage_weight(0, 0);",
        "wait_weight": "" if resident else WAIT_WEIGHT.moved(2),
        "wait_next_weight": "" if resident else WAIT_WEIGHT.moved(6),
        "weight_at_step": f"weight_stages{step}",
        "next_weight": "" if resident else "        if (k_block == 0) stage_weight(next_chunk, buffer ^ 1);",
        "origin_early": shifted(place, 4),
        **both,
    }


def exists_by_four(shape: Layout) -> str:
    """Whether an input channel of a row of four exists, where one may not."""
    conv = shape.conv
    if shape.group_in % (conv.packed_in * shape.tile.chunk) == 0:  # and so of TF32 numbers, of which a chunk has half as many
        return ""
    return f" && {chunk_channels(conv)} + int(row.w) + j < {input_names(conv)['GROUP_IN']}"


def chunk_channels(conv: Conv) -> str:
    """The first input channel of a chunk."""
    if conv.scaled:
        return "SIDE * chunk * CHUNK"
    return "2 * chunk * CHUNK" if conv.packed_in > 1 else "chunk * CHUNK"


def warpgroup_words(conv: Conv) -> dict[str, Code | str]:
    """The pieces that differ by what a word of warpgroup operands holds: a TF32 number, or two neighbouring channels' halves."""
    kind = "scaled" if conv.scaled else "pairs" if conv.is_half else "words"
    words, pairs = WARPGROUPS["stored words"], WARPGROUPS["stored pairs"]
    scaled = calling("scaled_halves(x[2 * k][v], x[2 * k + 1][v], scale, range)", "scaled_halves")
    stored = {
        "words": words,
        "pairs": pairs.filled(two_halves="__byte_perm(x[2 * k][v / 2], x[2 * k + 1][v / 2], v % 2 == 0 ? 0x5410 : 0x7632)"),
        "scaled": WARPGROUPS["stored scaled"].filled(
            pairs=pairs.filled(two_halves=scaled).stripped().moved(2), words=words.stripped().moved(2)
        ),
    }
    # A thread's place: of pairs, lanes side by side have the two halves of a position's 16 bytes, so that together they fill all banks.
    pair = {"words": "1", "pairs": "2", "scaled": "SIDE"}[kind]
    one = pair == "1"
    first_column = {"words": "own / 2", "pairs": "own / 4", "scaled": "own / (2 * SIDE)"}[kind]
    said = {"words": "[four channels][position][4], rounded to TF32", "pairs": "[eight channels][position][8]"}
    said["scaled"] = "[eight channels][position][8] in fp16,\n    // or [four channels][position][4] in TF32"
    return {
        "element": conv.element,
        "row_place": WARPGROUPS[f"row of {kind}"].stripped(),
        "column_of_place": "place % ROW_PLACES" if one else f"place / {pair} % ROW_PLACES",
        "row_of_place": "place / ROW_PLACES" if one else f"place / ({pair} * ROW_PLACES) * {pair} + place % {pair}",
        "first_column": f"VECTOR == 4 ? {first_column} % 4 : 0",
        "stored": stored[kind],
        "as_stored": said[kind],
        "chunk_channels": chunk_channels(conv),
        "held": "uint32_t" if conv.is_half else "float",
        "held_words": "(VECTOR + 1) / 2" if conv.is_half else "VECTOR",
        "most_rounds": "VECTOR == 4 ? 6 : 12" if conv.is_half else "12 / VECTOR",
        "load": calling("load_halves_if", "load_halves_if") if conv.is_half else calling("load_if", "load_if"),
    }


# What producers and consumers go through where all tiles of a slice are computed, once; and where some are computed once more.
ONE_PASS: dict[str, Code | str] = {
    "loaded_tile": WARPGROUPS["tiles in a row"].stripped(),
    "next_tile": WARPGROUPS["next tile in a row"].stripped(),
    "is_tile": "tile < last",
    "note_odd": "",
    "each_tile": "  for (int tile = first; tile < last; ++tile) {",
    "halves": "",
}


ODD_NOTED = """\
int* const odd_noted = reinterpret_cast<int*>(rows + ROWS + 4);  // tiles that did not fit: producers are at most STAGES tiles apart
if (threadIdx.x < 8) odd_noted[threadIdx.x] = -1;"""
EACH_TILE_LEFT = """\
for (int at_tile = next(begin); at_tile < end; at_tile = next(at_tile + 1)) {
  const int tile = tile_at(at_tile);"""


def of_scaled(shape: Layout) -> dict[str, Code | str]:
    """The pieces of a kernel whose operands are scaled and rounded to fp16, which goes through tiles that do not fit once more in TF32."""
    return {
        "first_weight": (START_WEIGHTS + "\n" + ODD_NOTED).moved(2),
        "loaded_tile": WARPGROUPS["tiles left"].stripped(),
        "next_tile": WARPGROUPS["next tile left"].stripped(),
        "is_tile": "at_tile < end",
        "fills": WARPGROUPS["fills of scaled"].stripped(),
        "note_odd": WARPGROUPS["odd tiles noted"].stripped(),
        "each_tile": shifted(EACH_TILE_LEFT, 2),
        "halves": "<HALVES>",
    }


def warpgroup_weight(conv: Conv) -> Code:
    """The function that finds a word of the weights in the order in which a warpgroup reads them."""
    pairs, names = conv.is_half, input_names(conv)
    place = f"  const int in = {'2 * (' if pairs else ''}k_block / PART_COLUMNS * 8 + four * 4 + word{')' if pairs else ''};"
    if conv.scaled:
        place = "  const int in = SIDE * (k_block / PART_COLUMNS * 8 + four * 4 + word) + second;"
    word = STAGING["weight pair" if pairs else "weight"].filled(
        **names, place=place, weight_at=weight_at(conv), next_weight_at=weight_at(conv, "in + 1"), bits_of=bits_of(conv)
    )
    return WARPGROUPS["ordered weight"].filled(
        told=", int in_channels" if conv.open_inputs else "", element=conv.element, ordered="uint32_t" if pairs else "float",
        weight_word=word.stripped(), of_pairs=OF_PAIRS if pairs else OF_SIDE if conv.scaled else "",
        of_side="template <int SIDE>\n" if conv.scaled else "", second=", int second" if conv.scaled else "",
    )  # fmt: skip


def bits_of(conv: Conv) -> str:
    return "__half_as_ushort" if conv.dtype == "float16" else "__bfloat16_as_ushort"


def with_producers(shape: Layout) -> dict[str, Code | str]:
    """Where warps of their own fill the stages."""
    resident, conv, tile = shape.tile.resident, shape.conv, shape.tile
    fewer = calling(f"warpgroup_registers<{PRODUCER_REGISTERS}, false>();", "warpgroup_registers")
    more = calling(f"warpgroup_registers<{tile.registers}, true>();", "warpgroup_registers")
    step = "stage * WEIGHT_STAGE"
    if resident:
        step = "0" if shape.chunks == 1 else "chunk * WEIGHT_STAGE"
    return {
        "first_weight": pack_in_kernel(conv, "ALL_THREADS").moved(2) if resident else START_WEIGHTS.moved(2),
        "stage_weight": "" if resident else PRODUCED_WEIGHTS.filled(**input_names(conv)).moved(4),
        "next_weight": "" if resident else f"      stage_weight(fill % {input_names(conv)['CHUNKS']}, stage);",
        "fills": f"    const int fills = (last - first) * {input_names(conv)['CHUNKS']};",
        "wait_weight": "" if resident else WAIT_PRODUCED.moved(6),
        "next_phase": "" if resident else ", phase ^= 1",
        "weight_at_step": f"weight_stages + {step}",
        "weight_stages": f"  float* const weight_stages = shared + STAGES * INPUT_STAGE + 4 * (ROWS + {shape.behind_rows});",
        "all_threads": "ALL_THREADS",
        "place_of_rows": "shared + STAGES * INPUT_STAGE",
        "fewer_registers": fewer.moved(4) if tile.moves_registers else "",
        "more_registers": more.moved(2) if tile.moves_registers else "",
    }


def warpgroup_products(shape: Layout, straight: bool) -> Code:
    """The inner loop: the positions of an instruction are a row's, or eight columns of several rows; of phases, those of one phase."""
    wide, phased = shape.is_wide, shape.conv.is_phased
    mma, of_tf32 = (f"warpgroup_mma_{kind}_{shape.instruction}" for kind in (shape.conv.operands, "tf32"))
    high, deep = ("fh", "fd * ROWS_H") if phased else ("fh * STRIDE_H", "fd * STRIDE_D * ROWS_H")
    row = "32" if wide else "4 * PITCH" if phased else "4 * STRIDE_H * PITCH"
    if phased:
        step = "PHASES_W" if wide else "PHASES_H * FRAGMENTS_W"
        of_row = "fh * PHASES_H + phase_h" if wide else "phase_h"
        first = f"((fd * PHASES_D + phase_d) * FRAGMENTS_H + {of_row}) * FRAGMENTS_W + phase_w"
    else:
        step, first = "1", "(fd * FRAGMENTS_H + fh) * FRAGMENTS_W" if wide else "fd * FRAGMENTS_H"
    of_weight = "weights, ((k_block * KERNEL_H + kh) * (BLOCK_TILES / 4) + tile) * 512"
    of_input = f"at + 4 * ({deep} + {high}) * PITCH" if wide else f"at + 4 * {deep} * PITCH"

    def multiplied_by(mma: str) -> list[str]:
        begin = [f"{mma}<{step}>(", f"    acc[tile], {first},"] if phased else [f"{mma}<{step}>(acc[tile], {first},"]
        return [*begin, f"    {of_weight}, inputs, {of_input});"]

    product, called = multiplied_by(mma), [mma]
    if shape.conv.scaled:
        both = [[f"  {line}" for line in multiplied_by(name)] for name in (mma, of_tf32)]
        product, called = ["if constexpr (HALVES)", *both[0], "else", *both[1]], [mma, of_tf32]
    if wide:
        rows = "FRAGMENTS_H / PHASES_H" if phased else "FRAGMENTS_H"
        product = ["#pragma unroll", f"for (int fh = 0; fh < {rows}; ++fh)", *(f"  {line}" for line in product)]
    kind = "phases" if phased else "taps"
    indent = 12 if phased else 10
    products = calling(shifted("\n".join(product), indent), *called)
    places = MULTIPLY["places"] if phased else Code()
    interleaved = STAGED_BETWEEN if not shape.tile.producers else ONLY_MULTIPLIED
    if shape.conv.scaled:
        interleaved = {**interleaved, "template_of_stage": "template <bool HALVES>\n"}
    one_group = shape.tile.producers  # a step's products are waited for together: they are straight code
    unrolled = str(shape.k_blocks if straight or one_group else 1)
    eights = str(shape.tile.chunk // 8 if one_group else 1)
    return places + WARPGROUPS[kind].filled(products=products, row=row, unrolled=unrolled, unrolled_eights=eights, **interleaved)


STAGED_BETWEEN: dict[str, Code | str] = {
    "remark": "Before the products of each of its K_BLOCKS it calls stage(k_block), and after the\n"
    "// last stage(K_BLOCKS): the next step's operands are on their way while the tensor cores are at work.",
    "template_of_stage": "template <class Stage>\n",
    "stage": ", Stage stage",
    "arrive": calling("  warpgroup_arrive(acc);", "warpgroup_arrive"),
    "stage_k_block": calling("    stage(k_block);\n    warpgroup_go_on();", "warpgroup_go_on"),
    "commit_k_block": calling("    warpgroup_commit();", "warpgroup_commit"),
    "last": calling("  stage(K_BLOCKS);\n  warpgroup_wait(acc);", "warpgroup_wait"),
}
ONLY_MULTIPLIED: dict[str, Code | str] = {
    "remark": "The products are on their way when it returns.",
    "template_of_stage": "",
    "stage": "",
    "arrive": calling("  warpgroup_go_on();", "warpgroup_go_on"),
    "stage_k_block": "",
    "commit_k_block": "",
    "last": calling("  warpgroup_commit();", "warpgroup_commit"),
}


def staging(shape: Layout) -> dict[str, Code | str]:
    """The pieces that differ by where weights live and where the input is rounded."""
    tile, conv = shape.tile, shape.conv
    own = " + warp * 2 * INPUT_STAGE" if tile.alone else ""
    pairs, names = conv.packed_in > 1, input_names(conv)
    channel = "2 * (chunk * CHUNK + pair * ABREAST + own_pair) + second" if pairs else "chunk * CHUNK + channel"
    exists = "" if shape.group_in % (conv.packed_in * shape.chunk) == 0 else f" && {channel} < {names['GROUP_IN']}"
    stager, placed = "lane" if tile.alone else "int(threadIdx.x)", origin(shape)
    copies = STAGING["pairs" if pairs else "words"].filled(
        element=conv.element, stager=stager, channel_exists=exists, **(ABREAST_PARTS if conv.bf16_parts else ABREAST_HALVES),
        abreast=abreast(shape), tile_state=placed.pop("tile_state"), locate_decode=placed.pop("locate_decode"),
    )  # fmt: skip
    rounding = STAGING["rounding"].filled(stager=stager) if shape.rounds_staged else Code()
    pieces: dict[str, Code | str] = {
        "input_staging": (copies.stripped() + "\n" + rounding).stripped(),
        "round_input": "            round_input(buffer);" if shape.rounds_staged else "",
        "first_input": f"  for (int k_block = 0; k_block {'<= ALL_K_BLOCKS' if pairs else '< REPEATS * PARTS * K_BLOCKS'}; ++k_block)"
        " stage_input(0, k_block, 0);",
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
            "first_weight": pack_in_kernel(conv).moved(2),
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
        "stage_weight": STAGE_WEIGHT.filled(**names).moved(2),
        "first_weight": "  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) stage_weight(0, k_block, 0);",
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


# Of 16-bit numbers, and of float32 that becomes two of them: what a thread loads, and how it stores what it has.
ABREAST_HALVES: dict[str, Code | str] = {
    "joined": "joined",
    "held": "uint32_t held[TOGETHER][ROUNDS][2][(VECTOR + 1) / 2]",
    "load": calling("load_halves_if", "load_halves_if"),
    "store": STAGING["joined"].stripped(),
}
ABREAST_PARTS: dict[str, Code | str] = {
    "joined": "in two parts",
    "held": "float held[TOGETHER][ROUNDS][2][VECTOR]",
    "load": calling("load_if", "load_if"),
    "store": STAGING["parted"].stripped(),
}


def abreast(shape: Layout) -> str:
    """How many pairs of channels threads copy side by side, as many as divide a stage's."""
    counts = [k for k in (8, 4, 2) if shape.chunk % k == 0]
    return f"  constexpr int ABREAST = {' : '.join([*(f'STAGERS >= {k} * PLACES ? {k}' for k in counts), '1'])};"


WARP_PLACE = """\
  const int warp_c = warp % WARPS_C, warp_w = warp / WARPS_C % WARPS_W;
  const int warp_h = warp / (WARPS_C * WARPS_W) % WARPS_H, warp_d = warp / (WARPS_C * WARPS_W * WARPS_H);"""
WARP_ALONE = "  constexpr int warp_c = 0, warp_d = 0, warp_h = 0, warp_w = 0;  // each warp has its own tiles"
PACK_IN_KERNEL = Code("""\
#pragma unroll 6
for (int i = threadIdx.x; i < $CHUNKS * WEIGHT_STAGE; i += $threads)
  weight_stages[i] = $word;""")
PACK_KERNEL = Code("""
// $what; `kernel` reads them so.
__global__ void pack(const $element* __restrict__ weight, float* __restrict__ packed$told) {
$chunks
  $const int BLOCK_WEIGHTS = $CHUNKS * PARTS * WEIGHT_STAGE;
  const int i = blockIdx.x * 256 + threadIdx.x, block = blockIdx.y;
  if (i < BLOCK_WEIGHTS)
    packed[(long long)block * BLOCK_WEIGHTS + i] = $word;
}
""")
LAST_INPUT = "if (part + 1 == PARTS && repeat + 1 == REPEATS) stage_input(next_chunk, ALL_K_BLOCKS, buffer ^ 1);"


def pack_in_kernel(conv: Conv, threads: str = "THREADS") -> Code:
    """A block orders its weights itself."""
    return PACK_IN_KERNEL.filled(**input_names(conv), threads=threads, word=packed_word(conv, "blockIdx.y"))


def pack_kernel(conv: Conv) -> Code:
    """A kernel of its own orders them, before."""
    if conv.scaled:
        return WARPGROUPS["scales"] + WARPGROUPS["pack scaled"]
    how = "Orders the weights" if conv.is_strict else "Rounds the weights to TF32 and orders them"
    of_pairs = "Orders the weights, two to a word" + (", in two parts" if conv.bf16_parts else "")
    return PACK_KERNEL.filled(
        **input_names(conv),
        what=how if conv.packed_in == 1 else of_pairs,
        element=conv.element,
        told=", int in_channels" if conv.open_inputs else "",
        chunks=f"  {chunks_of(conv)}" if conv.open_inputs else "",
        const="const" if conv.open_inputs else "constexpr",
        word=packed_word(conv, "block"),
    )


def packed_word(conv: Conv, block: str) -> Code:
    """The weight that is read at place `i`, as what the tensor cores take."""
    word = f"ordered_weight({', '.join(('weight', *inputs_handed(conv), block, 'i'))})"
    if conv.is_strict:
        return Code(word)
    return calling(f"__uint_as_float(to_tf32({word}))", "to_tf32") if conv.packed_in == 1 else Code(f"__uint_as_float({word})")


STAGE_WEIGHT = calling("""\
const float* const weight_from = weight + (long long)blockIdx.y * $CHUNKS * PARTS * WEIGHT_STAGE + 4 * threadIdx.x;
float* const weight_to = weight_stages + 4 * threadIdx.x;
int weight_buffer = 0;
auto stage_weight = [&](int step, int k_block, int buffer) {
#pragma unroll
  for (int k = 0; k < K_BLOCK_WEIGHTS; ++k) {
    const int i = (k_block * K_BLOCK_WEIGHTS + k) * 4 * THREADS;
    if (i + 4 * int(threadIdx.x) < WEIGHT_STAGE)
      cp_async<16>(weight_to + buffer * WEIGHT_STAGE + i, weight_from + step * WEIGHT_STAGE + i);
  }
};""", "cp_async")  # fmt: skip
STAGE_WEIGHTS = calling("""\
unsigned long long* const weights_come = reinterpret_cast<unsigned long long*>(rows + ROWS);
unsigned phase = 0;
auto stage_weight = [&](int chunk, int buffer) {
  bulk_copy(weight_stages + buffer * WEIGHT_STAGE, weight + ((long long)blockIdx.y * $CHUNKS + chunk) * WEIGHT_STAGE,
            4 * WEIGHT_STAGE, weights_come);
};
if (threadIdx.x == 0) bulk_start(weights_come);
__syncthreads();""", "bulk_copy", "bulk_start")  # fmt: skip
START_WEIGHTS = calling("""\
unsigned long long* const weights_come = reinterpret_cast<unsigned long long*>(rows + ROWS);
if (threadIdx.x < STAGES) bulk_start(weights_come + threadIdx.x);""", "bulk_start")  # fmt: skip
PRODUCED_WEIGHTS = calling("""\
unsigned phase = 0;
auto stage_weight = [&](int chunk, int stage) {
  bulk_copy(weight_stages + stage * WEIGHT_STAGE, weight + ((long long)blockIdx.y * $CHUNKS + chunk) * WEIGHT_STAGE,
            4 * WEIGHT_STAGE, weights_come + stage, own, 128);
};""", "bulk_copy")  # fmt: skip
WAIT_PRODUCED = calling("bulk_wait(weights_come + stage, phase);", "bulk_wait")
WAIT_WEIGHT = calling("bulk_wait(weights_come, phase);\nphase ^= 1;", "bulk_wait")
NEXT_WEIGHT = "stage_weight(next_step, k_block, weight_buffer ^ 1);"


def channel_origin(shape: Layout) -> str:
    if shape.channel_blocks == 1:
        return f"  constexpr int channel0 = 0, channel_end = {shape.conv.out_channels};"
    return (
        "  const int block_group = int(blockIdx.y) / GROUP_BLOCKS;\n"
        "  const int channel0 = block_group * GROUP_OUT + int(blockIdx.y) % GROUP_BLOCKS * BLOCK_CHANNELS;\n"
        "  const int channel_end = (block_group + 1) * GROUP_OUT;"
    )


