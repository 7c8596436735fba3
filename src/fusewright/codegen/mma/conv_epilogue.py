"""The text of an epilogue: what a warp does with its accumulators once a tile is multiplied.

A lane holds LANE_CHANNELS channels (8 apart) of FRAGMENTS × 2 positions in `acc`; after a pool, of HELD × PAIR
positions in `pooled`. Loops stay loops in the emitted text; `#pragma unroll` keeps every array in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

from ...ir.cpp import to_cpp
from ...ir.stmt import printed
from .code import Code, calling, shifted
from .conv_channels import rows, rows_exchanged, softmax_like
from .conv_layout import Layout
from .conv_places import ACCUMULATED, POOLED, Held, digit, each_element, in_digits, positions
from .conv_spec import Epilogue, OverChannels, OverPositions, Pointwise
from .conv_store import as_stored, store_elements

NOTHING = Code()
ODD_TILE = (
    "int* const odd_tile = reinterpret_cast<int*>(rows + ROWS + 3);  // the last one with sums that overflow, or vanish\n"
    "if (threadIdx.x == 0) *odd_tile = -1;\n"
)


@dataclass(frozen=True)
class EpilogueText:
    state: Code = NOTHING  # before the loop over tiles
    finish: Code = NOTHING  # after each tile, in every warp
    conclude: Code = NOTHING  # after the last tile


def pointwise(shape: Layout, body: Pointwise, value: Held, pooled: bool) -> str:
    """Apply a body to every element a lane holds. Outside the tensor it sees the nearest element's position."""
    if body.is_identity:
        return ""
    names = ("d", "h", "w")[3 - shape.conv.dims :]
    fragments, pair = ("HELD", "PAIR") if pooled else ("FRAGMENTS", "2")
    where = positions(shape, pooled).axes
    prefix = "out" if pooled else "conv"
    lines = [f"const int {k} = min({where[k]}, {prefix}_{k} - 1);" for k in names if k in body.reads]
    channel = "channel0 + lane_channel + 8 * i"
    if not shape.whole_channels:
        channel = f"min({channel}, channel_end - 1)"
    header = f"const int c = {channel};\n" if "c" in body.reads else ""
    inner = "\n".join([*lines, f"const float value = {value};", *printed(body.statements), f"{value} = {to_cpp(body.result)};"])
    return each_element(inner, fragments, pair, header)


def pool(shape: Layout, kind: str) -> Code:
    """Join each window's elements; all of them are in one lane."""
    pd, ph, pw = shape.window
    _fd, fh, fw = shape.spread
    hd, hh, hw = shape.held
    across = shape.across  # window columns in neighbouring fragments
    inside = 2 if shape.pair == 1 else 1  # window columns in the lane's own pair
    count = pd * ph * pw
    own = digit("f", hd, hh * hw, True), digit("f", hh, hw, hd == 1), digit("f", hw, 1, hd * hh == 1)
    tap = digit("k", pd, ph * across, True), digit("k", ph, across, pd == 1), digit("k", across, 1, pd * ph == 1)
    d, h, w = (in_digits([(mine, 1), (taps, count)]) for mine, taps, count in zip(own, tap, (pd, ph, across), strict=True))
    fragment = " + ".join(in_digits([(d, 1), (h, fh), (w, fw)])) or "0"
    register = f"acc[i / 2][{fragment}][i % 2 * 2 + {'pair' if inside == 2 else 'e'}]"
    start, join = ("-INFINITY", "larger({x}, joined)") if kind == "max" else ("0.0f", "joined + {x}")
    lines = [f"float joined = {start};", "#pragma unroll", f"for (int k = 0; k < {pd * ph * across}; ++k)"]
    if inside == 2:
        lines += ["#pragma unroll", "  for (int pair = 0; pair < 2; ++pair)"]
    lines += [f"    joined = {join.format(x=register)};"]
    lines += [f"{POOLED} = joined" + (f" * (1.0f / {count}.0f);" if kind == "avg" else ";")]
    text = "float pooled[LANE_CHANNELS][HELD][PAIR];\n" + each_element("\n".join(lines), "HELD", "PAIR")
    return calling(text, *(["larger"] if kind == "max" else []))


def moments_of_tile(shape: Layout, value: Held) -> str:
    """Add the tile to each channel's running moments. Every channel of a lane has the same count.

    Welford's update for many elements at once: with x relative to the mean so far, Σ x² − (Σ x)² / n joins the squared deviations.
    No more of Σ x² cancels than the tile's share of all n elements; so the first tile is taken relative to its own mean. A plain
    sum of the elements would be off by more than a rounding of the mean, which shows where that is a thousand deviations.
    """
    where = positions(shape, True)
    inside = f"{where.d} < out_d && {where.h} < out_h && {where.w} < out_w"
    starts = [f"{axis}0 / {size}" if size > 1 else f"{axis}0" for axis, size in zip("dhw", shape.window, strict=True)]
    spans = (*shape.held[:2], shape.held[2] * (8 if shape.pair == 2 else 4))
    whole = " && ".join(f"{a} + {b} <= out_{c}" for a, b, c in zip(starts, spans, "dhw", strict=True))
    return (
        dedent(f"""
        const bool whole = {whole};
        auto add_tile = [&](auto inside, float added) {{
          const float inverse = 1.0f / (count + added);
          if (count == 0.0f) {{
        #pragma unroll
            for (int i = 0; i < LANE_CHANNELS; ++i) {{
              float sum = 0.0f;
        #pragma unroll
              for (int f = 0; f < HELD; ++f)
        #pragma unroll
                for (int e = 0; e < PAIR; ++e) sum += inside(f, e) ? {value} : 0.0f;
              mean[i] = sum * inverse;
            }}
          }}
        #pragma unroll
          for (int i = 0; i < LANE_CHANNELS; ++i) {{
            float sum = 0.0f, squares = 0.0f;
        #pragma unroll
            for (int f = 0; f < HELD; ++f)
        #pragma unroll
              for (int e = 0; e < PAIR; ++e) {{
                const float off = inside(f, e) ? {value} - mean[i] : 0.0f;
                sum += off;
                squares += off * off;
              }}
            const float step = sum * inverse, moved = mean[i] + step, more = squares - sum * step;
            mean[i] = moved;
            m2[i] += more < 0.0f ? 0.0f : more;  // of equal elements nothing is left but rounding
          }}
          count += added;
        }};
        if (whole) {{
          add_tile([](int, int) {{ return true; }}, float(HELD * PAIR));
        }} else {{
          const auto inside = [&](int f, int e) {{ return {inside}; }};
          int added = 0;
        #pragma unroll
          for (int f = 0; f < HELD; ++f)
        #pragma unroll
            for (int e = 0; e < PAIR; ++e) added += inside(f, e);
          if (added > 0) add_tile(inside, float(added));
        }}
    """).strip("\n")
        + "\n"
    )


def accumulate_tile(shape: Layout, value: Held) -> str:
    where = positions(shape, True)
    inner = (
        f"const bool inside = {where.d} < out_d && {where.h} < out_h && {where.w} < out_w;\n"
        f"if (inside) total_lane[i].add({value});"
    )
    return each_element(inner, "HELD", "PAIR")


def partials(shape: Layout, reduce: OverPositions, shifted: bool = False) -> Code:
    """Merge the lanes and warps that hold other positions of a channel, in a fixed order, and write the partial."""
    name = reduce.accumulator
    gather = f"{name} total = {{count, mean[i], m2[i]}};"
    if name != "CloseMoments":
        gather = f"{name} total = total_lane[i];"
    warps = shape.tile.warps[0] * shape.tile.warps[1] * shape.tile.warps[2]
    return calling(
        dedent(f"""
        {name}* const scratch = reinterpret_cast<{name}*>(scratch_words);  // [warps of positions][BLOCK_CHANNELS]
        #pragma unroll
        for (int i = 0; i < LANE_CHANNELS; ++i) {{
          {gather}
          total.merge(shuffle_xor(total, 1));
          total.merge(shuffle_xor(total, 2));
          if (quad == 0) scratch[warp / WARPS_C * BLOCK_CHANNELS + lane_channel + 8 * i] = total;
        }}
        {shape.meeting.text}
        for (int local = threadIdx.x; local < BLOCK_CHANNELS; local += THREADS) {{
          {name} total = scratch[local];
          for (int other = 1; other < {warps}; ++other)
            total.merge(scratch[other * BLOCK_CHANNELS + local]);
          {"if (total.n > 0.0f) total.move(bias_of[local]);" if shifted else ""}
          if (channel0 + local < channel_end)
            partials[((long long)n * slices + slice) * OUT_CHANNELS + channel0 + local] = total;
        }}
    """).strip("\n")
        + "\n",
        name, "shuffle_xor", *shape.meeting.calls,
    )  # fmt: skip


def with_bias(shape: Layout, epilogue: Epilogue) -> str:
    """The bias is added to the finished sum: the tensor cores cut off what lies below an accumulator's last bit, product by
    product, and would begin with that of a large bias. The moments of the sums alone lack it in their mean only."""
    if not shape.conv.bias or moments_alone(shape, epilogue):
        return ""
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n  const float shift = bias_of[lane_channel + 8 * i];\n"
        "#pragma unroll\n  for (int f = 0; f < FRAGMENTS; ++f)\n#pragma unroll\n"
        f"    for (int e = 0; e < 2; ++e) {ACCUMULATED} += shift;\n}}\n"
    )


def unscaled(shape: Layout) -> str:
    """Sums of scaled halves become what they stand for: exact, since it is a power of two."""
    if not shape.conv.scaled:
        return ""
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n  const float power = unscaled[lane_channel + 8 * i];\n"
        "#pragma unroll\n  for (int f = 0; f < FRAGMENTS; ++f)\n#pragma unroll\n"
        f"    for (int e = 0; e < 2; ++e) {ACCUMULATED} *= power;\n}}\n"
    )


def for_backward(shape: Layout) -> Code:
    """The convolution itself is written where backward will want it: by the library that is built for training, since registers
    are short, and those for the places of these elements would be missed in every forward."""
    if not shape.conv.saves:
        return NOTHING
    stores = store_elements(shape, ACCUMULATED, pooled=False, to="saved").moved(2)
    return "#ifdef SAVING\nif (saved != nullptr) {\n" + stores + "\n}\n#endif\n"


def moments_alone(shape: Layout, epilogue: Epilogue) -> bool:
    plain = epilogue.before.is_identity and epilogue.between.is_identity and epilogue.window is None
    plain = plain and not epilogue.stored and not shape.conv.saves
    return plain and epilogue.reduce == OverPositions("CloseMoments")


def plain_again(shape: Layout) -> str:
    """Sums that are not finite once more, by plain arithmetic; they wait in local memory for that, which others never do."""
    where = positions(shape, False)
    inside = "".join(f" && {a} < conv_{a}" for a in "dhw")
    weight = "weight" if shape.tile.resident else "plain_weight"
    index = "again[(i * FRAGMENTS + f) * 2 + e]"
    return (
        "bool odd = false;\n"
        + each_element(f"odd |= !(fabsf({ACCUMULATED}) < INFINITY);", "FRAGMENTS", "2")
        + "if (odd) {\n  float again[LANE_CHANNELS * FRAGMENTS * 2];\n"
        + shifted(each_element(f"{index} = {ACCUMULATED};", "FRAGMENTS", "2"), 2)
        + "\n#pragma unroll 1\n  for (int k = 0; k < LANE_CHANNELS * FRAGMENTS * 2; ++k) {\n"
        "    const int e = k % 2, f = k / 2 % FRAGMENTS, c = channel0 + lane_channel + k / (2 * FRAGMENTS) * 8;\n"
        f"    const int d = {where.d}, h = {where.h}, w = {where.w};\n"
        f"    if (!(fabsf(again[k]) < INFINITY) && c < channel_end{inside})\n"
        f"      again[k] = plain_sum(sample, {weight}, c, d, h, w, in_d, in_h, in_w);\n  }}\n"
        + shifted(each_element(f"{ACCUMULATED} = {index};", "FRAGMENTS", "2"), 2)
        + "\n}\n"
    )


def epilogue_text(shape: Layout, epilogue: Epilogue) -> EpilogueText:
    value = POOLED if epilogue.window else ACCUMULATED
    finish = Code(plain_again(shape)) if shape.conv.is_split else NOTHING
    finish += unscaled(shape) + with_bias(shape, epilogue) + for_backward(shape) + pointwise(shape, epilogue.before, ACCUMULATED, False)
    if epilogue.window:
        finish += pool(shape, epilogue.window.kind)
    if epilogue.stored:
        finish += as_stored(shape, value, epilogue.window is not None) + store_elements(shape, value)
    finish += pointwise(shape, epilogue.between, value, True)
    match epilogue.reduce:
        case OverPositions(accumulator="CloseMoments") as reduce:
            state = (
                "float count = 0.0f, mean[LANE_CHANNELS], m2[LANE_CHANNELS];  // of the lane's positions so far\n"
                "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) mean[i] = m2[i] = 0.0f;\n"
            )
            shifted_mean = shape.conv.bias and moments_alone(shape, epilogue)
            return EpilogueText(Code(state), finish + moments_of_tile(shape, value), partials(shape, reduce, shifted_mean))
        case OverPositions(accumulator=name) as reduce:
            state = f"{name} total_lane[LANE_CHANNELS];  // of the lane's positions so far\n"
            return EpilogueText(calling(state, name), finish + accumulate_tile(shape, value), partials(shape, reduce))
        case OverChannels(keep=False) as reduce if shape.exchanges:
            return EpilogueText(finish=finish + rows_exchanged(shape, epilogue, reduce, value))
        case OverChannels(keep=True) as reduce:
            return EpilogueText(finish=finish + softmax_like(shape, epilogue, reduce, value))
        case OverChannels() as reduce:
            asks = shape.tile.producers and reduce.accumulator == "LogSumExp" and not reduce.bounded
            return EpilogueText(Code(ODD_TILE if asks else ""), finish + rows(shape, epilogue, reduce, value))
        case _:
            return EpilogueText(finish=finish + store_elements(shape, value))
