"""The text of an epilogue: what a warp does with its accumulators once a tile is multiplied.

A lane holds LANE_CHANNELS channels (8 apart) of FRAGMENTS × 2 positions in `acc`; after a pool, of HELD × PAIR
positions in `pooled`. Loops stay loops in the emitted text; `#pragma unroll` keeps every array in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from textwrap import dedent

from ...ir.expr import Expr, Name, element, literal, substituted, to_cpp
from ...ir.stmt import printed, with_values
from .conv_layout import Layout
from .conv_spec import TOTAL, Epilogue, OverChannels, OverPositions, Pointwise


@dataclass(frozen=True)
class Held:
    """A lane's elements, of channel i, fragment f and neighbour e: those of the convolution, or of its pool."""

    pooled: bool

    def at(self, f: str = "f", e: str = "e") -> str:
        return f"pooled[i][{f}][{e}]" if self.pooled else f"acc[i / 2][{f}][i % 2 * 2 + {e}]"

    @property
    def first_channel(self) -> str:
        return "pooled[0][f][e]" if self.pooled else "acc[0][f][e]"

    def __str__(self) -> str:
        return self.at()


ACCUMULATED, POOLED = Held(False), Held(True)


@dataclass(frozen=True)
class Place:
    """Where an element of a lane lies, in the convolution's output or in the pool's."""

    d: str
    h: str
    first: str  # the column at which the warp's begin,
    column: str  # and how far from there

    @property
    def w(self) -> str:
        return f"{self.first} + {self.column}"

    @property
    def axes(self) -> dict[str, str]:
        return {"d": self.d, "h": self.h, "w": self.w}


@dataclass(frozen=True)
class EpilogueText:
    state: str = ""  # before the loop over tiles
    finish: str = ""  # after each tile, in every warp
    conclude: str = ""  # after the last tile


def shifted(text: str, spaces: int) -> str:
    """The text moved to the right; directives stay at the margin."""
    lines = [line.lstrip() if line.lstrip().startswith("#") else " " * spaces + line for line in text.splitlines()]
    return "\n".join(line.rstrip() for line in lines)


def pair_of_lane(shape: Layout, pooled: bool) -> int:
    """Neighbours in a row that a lane holds."""
    return shape.pair if pooled else 2


def positions(shape: Layout, pooled: bool, f: str = "f", lane: str = "") -> Place:
    """Where element (f, e) of a lane lies; `lane` says which position of a fragment it is, where it is not a lane's own."""
    _, fh, fw = shape.held if pooled else shape.spread
    pd, ph, pw = shape.window if pooled else (1, 1, 1)
    run = shape.run if pooled else shape.interleave
    alone = pair_of_lane(shape, pooled) == 1
    lane = lane or ("quad" if alone else "2 * quad + e")
    fragment = f if fw == 1 else f"{f} % {fw}"
    step = 4 if alone else 8
    if run == 1:
        column = lane if fw == 1 else f"{fragment} * {step} + {lane}"
    else:
        column = f"{fragment} / {run} * {8 * run} + ({lane}) * {run} + {fragment} % {run}"
    return Place(
        d=f"{over('d0', pd)} + {over(f, fh * fw)}",
        h=f"{over('h0', ph)} + {over(f, fw)} % {fh}",  # also where that is 0: without it nvcc spills 112 bytes of a maximum over channels
        first=over("w0", pw),
        column=column,
    )


def over(x: str, n: int) -> str:
    return x if n == 1 else f"{x} / {n}"


def digit(x: str, count: int, below: int, leading: bool) -> list[str]:
    """A digit of a number: there are `count` of them, each worth `below`; the leading one needs no rest. Nothing where it is 0."""
    if count == 1:
        return []
    return [over(x, below) if leading else f"{over(x, below)} % {count}"]


def in_digits(parts: list[tuple[list[str], int]]) -> list[str]:
    """The terms of a number of digits, the leading one first: of each its own terms, and how many of them there are."""
    found: list[str] = []
    for terms, count in parts:
        if found and count > 1:
            found = [f"{found[0]} * {count}" if len(found) == 1 else f"({' + '.join(found)}) * {count}"]
        found = [*found, *terms]
    return found


def first_of_pair(shape: Layout, pooled: bool) -> Place:
    """Where the first of the neighbours that a lane holds lies."""
    return positions(shape, pooled, lane="quad" if pair_of_lane(shape, pooled) == 1 else "2 * quad")


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


def each_element(inner: str, fragments: str, pair: str, header: str = "") -> str:
    e = f"for (int e = 0; e < {pair}; ++e)"
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        + (shifted(header, 2) + "\n" if header else "")
        + f"#pragma unroll\n  for (int f = 0; f < {fragments}; ++f)\n#pragma unroll\n    {e} {{\n"
        + shifted(inner.rstrip("\n"), 6)
        + "\n    }\n}\n"
    )


def pool(shape: Layout, kind: str) -> str:
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
    return "float pooled[LANE_CHANNELS][HELD][PAIR];\n" + each_element("\n".join(lines), "HELD", "PAIR")


def in_memory(shape: Layout, value: str) -> str:
    """The number as the type in which it is stored."""
    element = shape.conv.element
    return value if element == "float" else f"to_memory<{element}>({value})"


def store_side_by_side(shape: Layout, at: str, values: list[str]) -> str:
    """One statement that writes neighbours at once."""
    if shape.conv.element == "float":
        kind = f"float{len(values)}"
        return f"*reinterpret_cast<{kind}*>({at}) = make_{kind}({', '.join(values)});"
    return f"store<{len(values)}>({at}, {{{', '.join(values)}}});"


def as_stored(shape: Layout, value: Held, pooled: bool) -> str:
    """Elements of halves as whoever reads them from memory will find them: statistics beside them are of these."""
    if shape.conv.element == "float":
        return ""
    first, second = value.at(e="0"), value.at(e="1")
    alone = pair_of_lane(shape, pooled) == 1
    inner = "float nothing = 0.0f;\n" if alone else ""
    inner += f"round_two<{shape.conv.element}>({first}, {'nothing' if alone else second});"
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i)\n#pragma unroll\n"
        f"  for (int f = 0; f < {'HELD' if pooled else 'FRAGMENTS'}; ++f) {{\n" + shifted(inner, 4) + "\n  }\n"
    )


def store_elements(shape: Layout, value: Held, pooled: bool = True, to: str = "out") -> str:
    """Write every element a lane holds, of the pool or of the convolution itself, to a tensor."""
    run, pair = (shape.run, shape.pair) if pooled else (shape.interleave, 2)
    fragments, sizes = ("HELD", "out") if pooled else ("FRAGMENTS", "conv")
    where = first_of_pair(shape, pooled)
    inside = " && ".join(f"{axis} < {sizes}_{axis}" for axis in "dhw")
    place = f"{to} + ((((long long)n * OUT_CHANNELS + c) * {sizes}_d + d) * {sizes}_h + h) * {sizes}_w + w"
    if shape.turns_rows and pooled:
        return store_turned(shape, value, inside, place)
    if run > 1:
        return store_runs(shape, value, where, run, fragments, inside, place, f"{sizes}_w")
    guard = "" if shape.whole_channels else "if (c < channel_end)"
    first, second = value.at(e="0"), value.at(e="1")
    body = dedent(f"""
        const int d = {where.d}, h = {where.h}, w = {where.w};
        if ({inside}) {{
          {shape.conv.element}* const at = {place};
        """).strip("\n")
    if pair == 1:
        body += f"\n  *at = {in_memory(shape, first)};\n}}"
    else:
        both = dedent(f"""
          if ({sizes}_w % 2 == 0) {{
            {store_side_by_side(shape, "at", [first, second])}
          }} else {{
            at[0] = {in_memory(shape, first)};
            if (w + 1 < {sizes}_w) at[1] = {in_memory(shape, second)};
          }}
        """).strip()
        body += "\n" + shifted(both, 2) + "\n}"
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        "  const int c = channel0 + lane_channel + 8 * i;\n"
        + (f"  {guard}\n" if guard else "")
        + f"#pragma unroll\n  for (int f = 0; f < {fragments}; ++f) {{\n"
        + shifted(body, 4)
        + "\n  }\n}\n"
    )


def store_turned(shape: Layout, value: Held, inside: str, place: str) -> str:
    """As above, by way of shared memory, a row of fragments of eight channels at a time: all lanes write side by side. A part of a
    sector of memory takes as long to write as several whole ones, and rows that begin anywhere have such parts at their ends only."""
    _, _, wide = shape.held
    rows, pitch, columns = shape.held[0] * shape.held[1], shape.run_pitch, shape.run_columns
    abreast, turns = max(1, 32 // columns), -(-columns // 32)  # channels that a warp writes at once, or how often it does for one
    each = 8 // abreast * turns  # elements of a lane
    lot = max(k for k in range(1, 9) if each % k == 0)
    where, at = positions(shape, True), positions(shape, True, f=f"row * {wide}")
    own = ("", "lane") if abreast == 1 else (f"lane / {columns} + ", f"lane % {columns}")
    which = f"const int channel = {own[0]}(k + j) / {turns} * {abreast}, column = {own[1]} + (k + j) % {turns} * 32;"
    ends = [] if columns % 32 == 0 or abreast > 1 else [f"column < {columns}"]
    exists = " && ".join([inside, *ends, *([] if shape.whole_channels else ["c < channel_end"])])
    return dedent(f"""
        float* const side = run_words + warp * {8 * pitch};
        #pragma unroll
        for (int i = 0; i < LANE_CHANNELS; ++i) {{
        #pragma unroll
          for (int row = 0; row < {rows}; ++row) {{
        #pragma unroll
            for (int f = row * {wide}; f < (row + 1) * {wide}; ++f)
        #pragma unroll
              for (int e = 0; e < PAIR; ++e) side[group * {pitch} + {where.column}] = {value};
            __syncwarp();
            const int d = {at.d}, h = {at.h};
        #pragma unroll
            for (int k = 0; k < {each}; k += {lot}) {{
              float lot[{lot}];  // read together, so that no store waits for its own
        #pragma unroll
              for (int j = 0; j < {lot}; ++j) {{
                {which}
                lot[j] = side[channel * {pitch} + column];
              }}
        #pragma unroll
              for (int j = 0; j < {lot}; ++j) {{
                {which}
                const int c = channel0 + lane_channel - group + 8 * i + channel, w = {where.first} + column;
                if ({exists}) *({place}) = {in_memory(shape, "lot[j]")};
              }}
            }}
            __syncwarp();
          }}
        }}
    """).strip("\n") + "\n"


def store_runs(
    shape: Layout, value: Held, where: Place, run: int, fragments: str, inside: str, place: str, width_of_row: str
) -> str:
    """As above, where `run` fragments take turns along a row: 2 × run of a lane's elements lie side by side."""
    width = 4 if run % 2 == 0 else 2
    elements = [value.at(f=f"f + {k % run}", e=str(k // run)) for k in range(2 * run)]
    wide = store_side_by_side(shape, "at + k", [f"side[k + {j}]" for j in range(width)])
    body = dedent(f"""
        const int d = {where.d}, h = {where.h}, w = {where.w};
        if ({inside}) {{
          {shape.conv.element}* const at = {place};
          const float side[] = {{{", ".join(elements)}}};
          if ({width_of_row} % {width} == 0) {{
        #pragma unroll
            for (int k = 0; k < {2 * run}; k += {width})
              if (w + k < {width_of_row}) {wide}
          }} else {{
        #pragma unroll
            for (int k = 0; k < {2 * run}; ++k)
              if (w + k < {width_of_row}) at[k] = {in_memory(shape, "side[k]")};
          }}
        }}
    """).strip("\n")
    guard = "" if shape.whole_channels else "  if (c < channel_end)\n"
    return (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        "  const int c = channel0 + lane_channel + 8 * i;\n"
        f"{guard}#pragma unroll\n  for (int f = 0; f < {fragments}; f += {run}) {{\n" + shifted(body, 4) + "\n  }\n}\n"
    )


def lane_total(shape: Layout, reduce: OverChannels, value: Held) -> str:
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
    return (
        f"{accumulator(reduce)} total[HELD * PAIR];\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n"
        "  for (int e = 0; e < PAIR; ++e) {\n    " + inner + "\n  }\n"
    )


def accumulator(reduce: OverChannels) -> str:
    bounded = reduce.accumulator == "LogSumExp" and reduce.bounded
    return "Sum" if bounded else reduce.accumulator


def rows(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> str:
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
        text += "" if summed else across_warps(shape, accumulator(reduce), held, count, own)
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
    body = shifted("\n".join(inner), 2)
    if count > 1:
        return text + f"#pragma unroll\nfor (int k = 0; k < {count}; ++k) {{\n{body}\n}}\n"
    return text + "{\n" + body + "\n}\n"


def plus(reduce: OverChannels) -> str:
    return f" + {literal(reduce.plus, 'float')}" if reduce.plus else ""


def lanes_met(held: int) -> tuple[str, int, int]:
    """Text that joins the totals of lanes with other channels of the same `held` positions; how many of these a lane has left,
    and the bits of its number in which lanes with the same ones differ."""
    text, count, shared = "", held, 0
    for mask in (16, 8, 4):
        if count % 2 == 0:
            text += f"position += keep_half<{count}>(total, lane, {mask});\n"
            count //= 2
        else:
            loop = "#pragma unroll\n" + f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
            total = "total[k]" if count > 1 else "total[0]"
            text += loop + f"meet({total}, shuffle_xor({total}, {mask}));\n"
            shared |= mask
    return text, count, shared


def relative_rows(shape: Layout, reduce: OverChannels, value: Held, met: str, count: int) -> str:
    """reduced[k]: the logarithm of the sum of exponentials, of a position that is whole in this lane. Relative to the value of the
    first channel, which the lanes of a position share, it takes no maximum and lanes just add; where one lies so far above
    that it overflows, or is not finite, the warp does it again relative to the largest."""
    real = "" if shape.whole_channels else "if (channel0 + lane_channel + 8 * i < channel_end) "
    each = f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
    unroll, k = ("#pragma unroll\n  ", "k") if count > 1 else ("", "0")
    return (
        "Relative total[HELD * PAIR];\nbool fits = true;\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n"
        "  for (int e = 0; e < PAIR; ++e) {\n"
        f"    const float pivot = __shfl_sync(0xffffffffu, {value.first_channel}, quad), shift = pivot * LOG2_E;  // of the first channel\n"
        "    float sum = 0.0f;\n#pragma unroll\n"
        f"    for (int i = 0; i < LANE_CHANNELS; ++i) {real}sum += exp2_fast(fmaf({value}, LOG2_E, -shift));\n"
        "    total[f * PAIR + e] = {pivot, sum};\n    fits = fits && sum < 1e30f;\n  }\n"
        "int position = 0;  // the first position that is whole in this lane\n"
        f"float reduced[{count}];\nif (__all_sync(0xffffffffu, fits)) {{\n"
        + shifted(met, 2)
        + f"\n  {unroll}{each}reduced[{k}] = total[{k}].m + logf(total[{k}].s);\n"
        + "} else {  // relative to the largest\n"
        + shifted(lane_total(shape, reduce, value) + met, 2)
        + f"\n  {unroll}{each}reduced[{k}] = total[{k}].result();\n}}\n"
    )


def rows_exchanged(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> str:
    """Reduce over channels that lie in four warps: they meet in shared memory, where a thread finds all of a position's."""
    positions_held = shape.held[0] * shape.held[1] * shape.held[2] * 4 * shape.pair  # of four warps
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
        f"constexpr int POSITIONS = {positions_held}, SHARERS = {threads};  // positions of four warps, threads for one of them",
        "constexpr int ROW = BLOCK_CHANNELS + 4;  // words, so that no bank is met twice",
        "float* const exchange = scratch_words + warp / 4 * POSITIONS * ROW;",
        each_element(f"exchange[(f * {4 * shape.pair} + {column}) * ROW + lane_channel + 8 * i] = {value};", "HELD", "PAIR").rstrip(),
        "__syncthreads();",
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
    return "\n".join(lines) + "\n"


def summed_rows(shape: Layout, reduce: OverChannels, value: Held, met: str, held: int, count: int, own: str) -> str:
    """reduced[k]: as `relative_rows`, where warps hold other channels of a position. These share no value to be relative to, so sums
    of plain exponentials meet; where one overflows, vanishes or is not finite, the block does it again relative to the largest."""
    real = "" if shape.whole_channels else "if (channel0 + lane_channel + 8 * i < channel_end) "
    each = f"for (int k = 0; k < {count}; ++k) " if count > 1 else ""
    unroll, k = ("#pragma unroll\n", "k") if count > 1 else ("", "0")
    plain = lane_total(shape, replace(reduce, bounded=True), value)
    largest = lane_total(shape, OverChannels("Max"), value)
    relative = (
        "Sum total[HELD * PAIR];\n#pragma unroll\nfor (int f = 0; f < HELD; ++f)\n#pragma unroll\n  for (int e = 0; e < PAIR; ++e) {\n"
        "    const float pivot = pivots[f * PAIR + e];\n#pragma unroll\n"
        f"    for (int i = 0; i < LANE_CHANNELS; ++i) {real}total[f * PAIR + e].add(exp2_fast(({value} - pivot) * LOG2_E));\n  }}\n"
    )
    slow = [
        f"float* const pivots = scratch_words + (warp * 4 + quad) * {held + 1};",
        "position = 0;",
        "{",
        shifted(largest + met + across_warps(shape, "Max", held, count, own), 2),
        "  __syncthreads();  // all have read what met",
        f"{unroll}  {each}{{",
        f"    reduced[{k}] = fabsf(total[{k}].result()) < INFINITY ? total[{k}].result() : 0.0f;",
        f"    pivots[position + {k}] = reduced[{k}];",
        "  }",
        "}",
        "__syncwarp();",
        "position = 0;",
        relative + met + across_warps(shape, "Sum", held, count, own),
        f"{unroll}{each}reduced[{k}] += logf(total[{k}].result());",
    ]
    return (
        f"int position = 0;  // the first position that is whole in this lane\nfloat reduced[{count}];\nbool fits = true;\n{{\n"
        + shifted(plain + met + across_warps(shape, "Sum", held, count, own), 2)
        + f"\n{unroll}  {each}{{\n    const float sum = total[{k}].result();\n    fits = fits && sum > 1e-30f && sum < 1e30f;\n"
        + f"    reduced[{k}] = logf(sum);\n  }}\n}}\n"
        + "if (__syncthreads_or(!fits)) {  // relative to the largest\n"
        + shifted("\n".join(slow), 2)
        + "\n}\n"
    )


def across_warps(shape: Layout, name: str, held: int, count: int, own: str) -> str:
    """Merge the totals, accumulators called `name`, of the warps that hold other channels of the same positions, in a fixed order."""
    index = f"((warp / WARPS_C * WARPS_C + {{c}}) * 4 + quad) * {held + 1} + position + k"  # lanes meet no bank twice
    return (
        f"{name}* const scratch = reinterpret_cast<{name}*>(scratch_words);\n"
        f"#pragma unroll\nfor (int k = 0; k < {count}; ++k)\n"
        f"  if ({own}) scratch[{index.format(c='warp_c')}] = total[k];\n"
        "__syncthreads();\n"
        f"#pragma unroll\nfor (int k = 0; k < {count}; ++k) {{\n"
        f"  total[k] = scratch[{index.format(c='0')}];\n"
        f"  for (int other = 1; other < WARPS_C; ++other) meet(total[k], scratch[{index.format(c='other')}]);\n}}\n"
    )


def softmax_like(shape: Layout, epilogue: Epilogue, reduce: OverChannels, value: Held) -> str:
    """Reduce over channels, then let `after` see every element together with its position's total."""
    held = shape.held[0] * shape.held[1] * shape.held[2] * shape.pair
    text = lane_total(shape, reduce, value)
    text += (
        "#pragma unroll\nfor (int k = 0; k < HELD * PAIR; ++k)\n#pragma unroll\n"
        "  for (int mask = 4; mask < 32; mask *= 2) meet(total[k], shuffle_xor(total[k], mask));\n"
    )
    if shape.tile.warps_c > 1:
        text += "const int position = 0;\n" + across_warps(shape, accumulator(reduce), held, held, "group == 0")
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


def partials(shape: Layout, reduce: OverPositions, shifted: bool = False) -> str:
    """Merge the lanes and warps that hold other positions of a channel, in a fixed order, and write the partial."""
    name = reduce.accumulator
    gather = f"{name} total = {{count, mean[i], m2[i]}};"
    if name != "CloseMoments":
        gather = f"{name} total = total_lane[i];"
    warps = shape.tile.warps[0] * shape.tile.warps[1] * shape.tile.warps[2]
    return (
        dedent(f"""
        {name}* const scratch = reinterpret_cast<{name}*>(scratch_words);  // [warps of positions][BLOCK_CHANNELS]
        #pragma unroll
        for (int i = 0; i < LANE_CHANNELS; ++i) {{
          {gather}
          total.merge(shuffle_xor(total, 1));
          total.merge(shuffle_xor(total, 2));
          if (quad == 0) scratch[warp / WARPS_C * BLOCK_CHANNELS + lane_channel + 8 * i] = total;
        }}
        __syncthreads();
        for (int local = threadIdx.x; local < BLOCK_CHANNELS; local += THREADS) {{
          {name} total = scratch[local];
          for (int other = 1; other < {warps}; ++other)
            total.merge(scratch[other * BLOCK_CHANNELS + local]);
          {"if (total.n > 0.0f) total.move(bias_of[local]);" if shifted else ""}
          if (channel0 + local < channel_end)
            partials[((long long)n * slices + slice) * OUT_CHANNELS + channel0 + local] = total;
        }}
    """).strip("\n")
        + "\n"
    )


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


def for_backward(shape: Layout) -> str:
    """The convolution itself is written where backward will want it: by the library that is built for training, since registers
    are short, and those for the places of these elements would be missed in every forward."""
    if not shape.conv.kept:
        return ""
    stores = shifted(store_elements(shape, ACCUMULATED, pooled=False, to="kept"), 2)
    return f"#ifdef KEEPING\nif (kept != nullptr) {{\n{stores}\n}}\n#endif\n"


def moments_alone(shape: Layout, epilogue: Epilogue) -> bool:
    plain = epilogue.before.is_identity and epilogue.between.is_identity and epilogue.window is None
    plain = plain and not epilogue.stored and not shape.conv.kept
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
    finish = plain_again(shape) if shape.conv.is_strict else ""
    finish += with_bias(shape, epilogue) + for_backward(shape) + pointwise(shape, epilogue.before, ACCUMULATED, False)
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
            return EpilogueText(state, finish + moments_of_tile(shape, value), partials(shape, reduce, shifted_mean))
        case OverPositions(accumulator=name) as reduce:
            state = f"{name} total_lane[LANE_CHANNELS];  // of the lane's positions so far\n"
            return EpilogueText(state, finish + accumulate_tile(shape, value), partials(shape, reduce))
        case OverChannels() as reduce if shape.exchanges:
            return EpilogueText(finish=finish + rows_exchanged(shape, epilogue, reduce, value))
        case OverChannels(keep=True) as reduce:
            return EpilogueText(finish=finish + softmax_like(shape, epilogue, reduce, value))
        case OverChannels() as reduce:
            return EpilogueText(finish=finish + rows(shape, epilogue, reduce, value))
        case _:
            return EpilogueText(finish=finish + store_elements(shape, value))
