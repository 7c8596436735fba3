"""Reductions over the output channels of a position: first those of a lane, then of the lanes and warps that hold the others."""

from __future__ import annotations

from dataclasses import replace

from ...ir.cpp import literal, to_cpp
from ...ir.expr import Expr, Name, element, substituted
from ...ir.stmt import printed, with_values
from .code import Code, calling, shifted
from .conv_layout import Layout
from .conv_places import Held, each_element, positions
from .conv_spec import TOTAL, Epilogue, OverChannels
from .conv_store import in_memory, of_halves, store_elements

EXPONENTIAL = ("exp2_fast", "LOG2_E")


def lane_total(shape: Layout, reduce: OverChannels, value: Held) -> Code:
    """total[p]: the accumulator over the lane's own channels for its position p = f × PAIR + e."""
    real = "" if shape.whole_channels else "if (channel0 + lane_channel + 8 * i < channel_end) "
    each = f"#pragma unroll\n    for (int i = 0; i < LANE_CHANNELS; ++i) {real}"
    if reduce.accumulator != "LogSumExp":
        inner = f"{each}total[f * PAIR + e].add({value});"
    elif reduce.bounded:
        inner = f"{each}total[f * PAIR + e].add(exp2_fast({value} * LOG2_E));"
    else:
        # Two passes over registers: one exponential an element, and no branch. A scaled pivot is rounded, which moves the
        # logarithm by no more than its own rounding, but would show in a quotient.
        scaled = "fmaf({x}, LOG2_E, -pivot)" if not reduce.keep else "({x} - pivot) * LOG2_E"
        pivot = "largest" if reduce.keep else "largest * LOG2_E"
        inner = (
            f"float largest = -INFINITY, sum = 0.0f;\n{each}largest = fmaxf(largest, {value});\n"
            f"    const float pivot = fabsf(largest) < INFINITY ? {pivot} : 0.0f;\n"
            f"{each}sum += exp2_fast({scaled.format(x=value)});\n"
            "    total[f * PAIR + e].m = largest;\n    total[f * PAIR + e].s = sum;"
        )
    name = accumulator(reduce)
    each = f"{name} total[HELD * PAIR];\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n"
    return calling(each + "  for (int e = 0; e < PAIR; ++e) {\n    " + inner + "\n  }\n", name, *exponential(reduce))


def accumulator(reduce: OverChannels) -> str:
    bounded = reduce.accumulator == "LogSumExp" and reduce.bounded
    return "Sum" if bounded else reduce.accumulator


def exponential(reduce: OverChannels) -> tuple[str, ...]:
    """What is called where exponentials are summed."""
    return EXPONENTIAL if reduce.accumulator == "LogSumExp" else ()


def rows(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> Code:
    """Reduce over channels and write one value a position."""
    held = shape.held[0] * shape.held[1] * shape.held[2] * shape.pair
    met, count, shared = lanes_met(held)
    own = f"(lane & {shared}) == 0" if shared else "true"
    unbounded = reduce.accumulator == "LogSumExp" and not reduce.bounded
    alone = shape.tile.warps_c == 1
    summed = unbounded and shape.tile.warpgroups
    if summed:
        text = summed_rows(shape, reduce, value, met, held, count, own)
    elif unbounded and alone:
        text = relative_rows(shape, reduce, value, met, count)
    else:
        text = lane_total(shape, reduce, value)
        text += "int position = 0;  // the first position that is whole in this lane\n" + met
    if not alone:
        text += Code() if summed else across_warps(shape, accumulator(reduce), held, count, own)
        own = f"{own} && warp_c == 0" if shared else "warp_c == 0"
    where = positions(shape, True)
    f, e = ("p / PAIR", "p % PAIR") if shape.pair == 2 else ("p", "0")
    k = "k" if count > 1 else "0"
    total = f"total[{k}]"
    reduced = f"{total}.result()" if unbounded or reduce.accumulator != "LogSumExp" else f"logf({total}.result())"
    if unbounded and (alone or summed):
        reduced = f"reduced[{k}]"
    reduced += plus(reduce)
    inner = [f"const int p = position{' + k' if count > 1 else ''}, f = {f}"]
    inner[0] += f", e = {e};" if shape.pair == 2 else ";"
    inner += [f"const int d = {where.d}, h = {where.h}, w = {where.w};"]
    condition = "d < out_d && h < out_h && w < out_w" + (f" && {own}" if own != "true" else "")
    inner += [f"if ({condition}) {{", f"  const float value = {reduced};", *printed(epilogue.after.statements, 1)]
    inner += [f"  out[(((long long)n * out_d + d) * out_h + h) * out_w + w] = {in_memory(shape, to_cpp(epilogue.after.result))};", "}"]
    body = calling(shifted("\n".join(inner), 2), *of_halves(shape, "to_memory"))
    each = f"#pragma unroll\nfor (int k = 0; k < {count}; ++k) " if count > 1 else ""
    return text + f"{each}{{\n" + body + "\n}\n"


def plus(reduce: OverChannels) -> str:
    return f" + {literal(reduce.plus, 'float')}" if reduce.plus else ""


def lanes_met(held: int) -> tuple[Code, int, int]:
    """Text that joins the totals of lanes with other channels of the same `held` positions; how many of these a lane has left,
    and the bits of its number in which lanes with the same ones differ."""
    text, count, shared = Code(), held, 0
    for mask in (16, 8, 4):
        if count % 2 == 0:
            text += calling(f"position += keep_half<{count}>(total, lane, {mask});\n", "keep_half")
            count //= 2
        else:
            loop = "#pragma unroll\n" + f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
            total = "total[k]" if count > 1 else "total[0]"
            text += calling(f"{loop}meet({total}, shuffle_xor({total}, {mask}));\n", "meet", "shuffle_xor")
            shared |= mask
    return text, count, shared


def relative_rows(shape: Layout, reduce: OverChannels, value: Held, met: Code, count: int) -> Code:
    """reduced[k]: the logarithm of the sum of exponentials, of a position that is whole in this lane. Relative to the value of the
    first channel, which the lanes of a position share, it takes no maximum and lanes just add; where one lies so far above
    that it overflows, or is not finite, the warp does it again relative to the largest."""
    real = "" if shape.whole_channels else "if (channel0 + lane_channel + 8 * i < channel_end) "
    each = f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
    unroll, k = ("#pragma unroll\n  ", "k") if count > 1 else ("", "0")
    lanes = (
        "Relative total[HELD * PAIR];\nbool fits = true;\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n"
        "  for (int e = 0; e < PAIR; ++e) {\n"
        f"    const float pivot = __shfl_sync(0xffffffffu, {value.first_channel}, quad), shift = pivot * LOG2_E;  // of the first channel\n"
        "    float sum = 0.0f;\n#pragma unroll\n"
        f"    for (int i = 0; i < LANE_CHANNELS; ++i) {real}sum += exp2_fast(fmaf({value}, LOG2_E, -shift));\n"
        "    total[f * PAIR + e] = {pivot, sum};\n    fits = fits && sum < 1e30f;\n  }\n"
        "int position = 0;  // the first position that is whole in this lane\n"
        f"float reduced[{count}];\nif (__all_sync(0xffffffffu, fits)) {{\n"
    )
    return (
        calling(lanes, "Relative", *EXPONENTIAL)
        + met.moved(2)
        + f"\n  {unroll}{each}reduced[{k}] = total[{k}].m + logf(total[{k}].s);\n"
        + "} else {  // relative to the largest\n"
        + (lane_total(shape, reduce, value) + met).moved(2)
        + f"\n  {unroll}{each}reduced[{k}] = total[{k}].result();\n}}\n"
    )


def rows_exchanged(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> Code:
    """Reduce over channels that lie in a warpgroup's warps: they meet in shared memory, where a thread finds all of a position's."""
    positions_held = shape.held[0] * shape.held[1] * shape.held[2] * 4 * shape.pair  # of a warpgroup
    threads = max(1, min(8, 128 // positions_held))
    column = "2 * quad + e" if shape.pair == 2 else "quad"
    name = accumulator(reduce)
    where = positions(shape, True, lane="p % 8" if shape.pair == 2 else "p % 4")
    reduced = "logf(total.result())" if reduce.accumulator == "LogSumExp" and reduce.bounded else "total.result()"
    reduced += plus(reduce)
    each = "for (int k = first; k < OUT_CHANNELS / 4; k += SHARERS) {\n  const float4 x = at[k];\n  "
    if reduce.accumulator != "LogSumExp":
        inner = each + "total.add(x.x), total.add(x.y), total.add(x.z), total.add(x.w);\n}\n"
    elif reduce.bounded:
        inner = each + "total.add(exp2_fast(x.x * LOG2_E)), total.add(exp2_fast(x.y * LOG2_E));\n"
        inner += "  total.add(exp2_fast(x.z * LOG2_E)), total.add(exp2_fast(x.w * LOG2_E));\n}\n"
    else:
        inner = "#pragma unroll\n" + each + "total.m = fmaxf(fmaxf(fmaxf(total.m, x.x), fmaxf(x.y, x.z)), x.w);\n}\n"
        inner += "const float pivot = fabsf(total.m) < INFINITY ? total.m * LOG2_E : 0.0f;\n"
        inner += "#pragma unroll\n" + each
        inner += "total.s += exp2_fast(fmaf(x.x, LOG2_E, -pivot)) + exp2_fast(fmaf(x.y, LOG2_E, -pivot));\n"
        inner += "  total.s += exp2_fast(fmaf(x.z, LOG2_E, -pivot)) + exp2_fast(fmaf(x.w, LOG2_E, -pivot));\n}\n"
    met = "#pragma unroll\nfor (int mask = 1; mask < SHARERS; mask *= 2) meet(total, shuffle_xor(total, mask));\n"
    own = " && first == 0" if threads > 1 else ""
    lines = [
        f"constexpr int POSITIONS = {positions_held}, SHARERS = {threads};  // positions of a warpgroup, threads for one of them",
        "constexpr int ROW = BLOCK_CHANNELS + 4;  // words, so that no bank is met twice",
        "float* const exchange = scratch_words + warp / 4 * POSITIONS * ROW;",
        each_element(f"exchange[(f * {4 * shape.pair} + {column}) * ROW + lane_channel + 8 * i] = {value};", "HELD", "PAIR").rstrip(),
        shape.meeting.text,
        "#pragma unroll 1",
        "for (int task = threadIdx.x % 128; task < POSITIONS * SHARERS; task += 128) {",
        f"  const int p = task / SHARERS, first = task % SHARERS, f = p / {4 * shape.pair};",
        "  const float4* const at = reinterpret_cast<const float4*>(exchange + p * ROW);",
        f"  {name} total;",
        shifted(inner.rstrip(), 2),
        *([shifted(met.rstrip(), 2)] if threads > 1 else []),
        f"  const int d = {where.d}, h = {where.h}, w = {where.w};",
        f"  if (d < out_d && h < out_h && w < out_w{own}) {{",
        f"    const float value = {reduced};",
        *printed(epilogue.after.statements, 2),
        f"    out[(((long long)n * out_d + d) * out_h + h) * out_w + w] = {in_memory(shape, to_cpp(epilogue.after.result))};",
        "  }",
        "}",
    ]
    meeting = (*shape.meeting.calls, *(("meet", "shuffle_xor") if threads > 1 else ()))
    return calling("\n".join(lines) + "\n", name, *exponential(reduce), *meeting, *of_halves(shape, "to_memory"))


def summed_rows(shape: Layout, reduce: OverChannels, value: Held, met: Code, held: int, count: int, own: str) -> Code:
    """reduced[k]: as `relative_rows`, where warps hold other channels of a position. These share no value to be relative to, so sums
    of plain exponentials meet; where one overflows, vanishes or is not finite, the block does it again relative to the largest."""
    real = "" if shape.whole_channels else "if (channel0 + lane_channel + 8 * i < channel_end) "
    each = f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
    unroll, k = ("#pragma unroll\n", "k") if count > 1 else ("", "0")
    plain = lane_total(shape, replace(reduce, bounded=True), value)
    largest = lane_total(shape, OverChannels("Max"), value)
    relative = calling(
        "Sum total[HELD * PAIR];\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n  for (int e = 0; e < PAIR; ++e) {\n"
        "    const float pivot = pivots[f * PAIR + e];\n#pragma unroll\n"
        f"    for (int i = 0; i < LANE_CHANNELS; ++i) {real}total[f * PAIR + e].add(exp2_fast(({value} - pivot) * LOG2_E));\n  }}\n",
        "Sum", *EXPONENTIAL,
    )  # fmt: skip
    slow = (
        f"float* const pivots = scratch_words + (warp * 4 + quad) * {held + 1};\nposition = 0;\n{{\n"
        + (largest + met + across_warps(shape, "Max", held, count, own)).moved(2)
        + f"\n  {shape.meeting.text}  // all have read what met\n{unroll}  {each}{{\n"
        + f"    reduced[{k}] = fabsf(total[{k}].result()) < INFINITY ? total[{k}].result() : 0.0f;\n"
        + f"    pivots[position + {k}] = reduced[{k}];\n  }}\n}}\n__syncwarp();\nposition = 0;\n"
        + relative
        + met
        + across_warps(shape, "Sum", held, count, own)
        + f"\n{unroll}{each}reduced[{k}] += logf(total[{k}].result());"
    )
    return (
        f"int position = 0;  // the first position that is whole in this lane\nfloat reduced[{count}];\nbool fits = true;\n{{\n"
        + (plain + met + across_warps(shape, "Sum", held, count, own)).moved(2)
        + f"\n{unroll}  {each}{{\n    const float sum = total[{k}].result();\n    fits = fits && sum > 1e-30f && sum < 1e30f;\n"
        + f"    reduced[{k}] = logf(sum);\n  }}\n}}\n"
        + some_of_all(shape, "!fits")
        + " {  // relative to the largest\n"
        + slow.moved(2)
        + "\n}\n"
    )


def some_of_all(shape: Layout, condition: str) -> Code:
    """Whether the condition holds in some thread of those that multiply: all of them learn it."""
    if not shape.tile.producers:
        return Code(f"if (__syncthreads_or({condition}))")
    visit = "at_tile" if shape.conv.scaled else "tile"  # what rises from tile to tile: a list of tiles is in any order
    return Code(f"if ({condition}) atomicMax(odd_tile, {visit});\n") + shape.meeting + f"\nif (*odd_tile == {visit})"


def across_warps(shape: Layout, name: str, held: int, count: int, own: str) -> Code:
    """Merge the totals, accumulators called `name`, of the warps that hold other channels of the same positions, in a fixed order."""
    index = f"((warp / WARPS_C * WARPS_C + {{c}}) * 4 + quad) * {held + 1} + position + k"  # lanes meet no bank twice
    return calling(
        f"{name}* const scratch = reinterpret_cast<{name}*>(scratch_words);\n"
        f"#pragma unroll\nfor (int k = 0; k < {count}; ++k)\n"
        f"  if ({own}) scratch[{index.format(c='warp_c')}] = total[k];\n"
        f"{shape.meeting.text}\n"
        f"#pragma unroll\nfor (int k = 0; k < {count}; ++k) {{\n"
        f"  total[k] = scratch[{index.format(c='0')}];\n"
        f"  for (int other = 1; other < WARPS_C; ++other) meet(total[k], scratch[{index.format(c='other')}]);\n}}\n",
        name, "meet", *shape.meeting.calls,
    )  # fmt: skip


def totals_of_all_warps(shape: Layout, name: str, held: int) -> Code:
    """Every lane learns the totals of all of its positions, accumulators called `name`: each joins those of a few, and hands them on."""
    met, count, shared = lanes_met(held)
    own = f"(lane & {shared}) == 0" if shared else "true"
    handed_on = (
        f"{name}* const handed_on = scratch + (THREADS / 32 + warp) * 4 * {held + 1} + quad * {held + 1};  // of a warp\n"
        f"#pragma unroll\nfor (int k = 0; k < {count}; ++k)\n  if ({own}) handed_on[position + k] = total[k];\n__syncwarp();\n"
        f"#pragma unroll\nfor (int k = 0; k < {held}; ++k) total[k] = handed_on[k];\n"
    )
    first = "int position = 0;  // the first position that is whole in this lane\n"
    return first + met + across_warps(shape, name, held, count, own) + handed_on


def softmax_like(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> Code:
    """Reduce over channels, then let `after` see every element together with its position's total."""
    held = shape.held[0] * shape.held[1] * shape.held[2] * shape.pair
    text = lane_total(shape, reduce, value)
    if shape.tile.warps_c > 1:
        text += totals_of_all_warps(shape, accumulator(reduce), held)
    else:
        text += calling(
            "#pragma unroll\nfor (int k = 0; k < HELD * PAIR; ++k)\n#pragma unroll\n"
            "  for (int mask = 4; mask < 32; mask *= 2) meet(total[k], shuffle_xor(total[k], mask));\n",
            "meet", "shuffle_xor",
        )  # fmt: skip
    names = ("d", "h", "w")[3 - shape.conv.dims :]
    of_position: dict[Expr, Expr] = {TOTAL: element(TOTAL, Name("f") * Name("PAIR") + Name("e"))}
    statements, result = with_values(epilogue.after.statements, of_position), substituted(epilogue.after.result, of_position)
    lines = [f"const float value = {value};", *printed(statements), f"{value} = {to_cpp(result)};"]
    where = positions(shape, True).axes
    needed = [f"const int {k} = min({where[k]}, out_{k} - 1);" for k in names if k in epilogue.after.reads]
    channel = "channel0 + lane_channel + 8 * i"
    header = f"const int c = {channel};\n" if "c" in epilogue.after.reads else ""
    text += each_element("\n".join([*needed, *lines]), "HELD", "PAIR", header)
    return text + store_elements(shape, value)
