"""How a warp writes the elements that it holds."""

from __future__ import annotations

from textwrap import dedent

from .code import Code, calling, shifted
from .conv_layout import Layout
from .conv_places import Held, Place, first_of_pair, pair_of_lane, positions


def of_halves(shape: Layout, *words: str) -> tuple[str, ...]:
    """Helpers that are called for elements of 16 bits only."""
    return () if shape.conv.element == "float" else words


def in_memory(shape: Layout, value: str) -> str:
    """The number as the type in which it is stored; of halves it calls `to_memory`."""
    element = shape.conv.element
    return value if element == "float" else f"to_memory<{element}>({value})"


def store_side_by_side(shape: Layout, at: str, values: list[str]) -> str:
    """One statement that writes neighbours at once; of halves it calls `store`."""
    if shape.conv.element == "float":
        kind = f"float{len(values)}"
        return f"*reinterpret_cast<{kind}*>({at}) = make_{kind}({', '.join(values)});"
    return f"store<{len(values)}>({at}, {{{', '.join(values)}}});"


def as_stored(shape: Layout, value: Held, pooled: bool) -> Code:
    """Elements of halves as whoever reads them from memory will find them: statistics beside them are of these."""
    if shape.conv.element == "float":
        return Code()
    first, second = value.at(e="0"), value.at(e="1")
    alone = pair_of_lane(shape, pooled) == 1
    inner = "float nothing = 0.0f;\n" if alone else ""
    inner += f"round_two<{shape.conv.element}>({first}, {'nothing' if alone else second});"
    each = (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i)\n#pragma unroll\n"
        f"  for (int f = 0; f < {'HELD' if pooled else 'FRAGMENTS'}; ++f) {{\n"
    )
    return calling(each + shifted(inner, 4) + "\n  }\n", "round_two")


def store_elements(shape: Layout, value: Held, pooled: bool = True, to: str = "out") -> Code:
    """Write every element a lane holds, of the pool or of the convolution itself, to a tensor."""
    run, pair = (shape.run, shape.pair) if pooled else (shape.interleave, 2)
    fragments, sizes = ("HELD", "out") if pooled else ("FRAGMENTS", "conv")
    where = first_of_pair(shape, pooled)
    inside = " && ".join(f"{axis} < {sizes}_{axis}" for axis in "dhw")
    place = f"{to} + ((((long long)n * OUT_CHANNELS + c) * {sizes}_d + d) * {sizes}_h + h) * {sizes}_w + w"
    if shape.transposes_rows and pooled:
        return store_transposed(shape, value, inside, place)
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
        calls = of_halves(shape, "to_memory")
        body += f"\n  *at = {in_memory(shape, first)};\n}}"
    else:
        calls = of_halves(shape, "store", "to_memory")
        both = dedent(f"""
          if ({sizes}_w % 2 == 0) {{
            {store_side_by_side(shape, "at", [first, second])}
          }} else {{
            at[0] = {in_memory(shape, first)};
            if (w + 1 < {sizes}_w) at[1] = {in_memory(shape, second)};
          }}
        """).strip()
        body += "\n" + shifted(both, 2) + "\n}"
    text = (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        "  const int c = channel0 + lane_channel + 8 * i;\n"
        + (f"  {guard}\n" if guard else "")
        + f"#pragma unroll\n  for (int f = 0; f < {fragments}; ++f) {{\n"
        + shifted(body, 4)
        + "\n  }\n}\n"
    )
    return calling(text, *calls)


def store_transposed(shape: Layout, value: Held, inside: str, place: str) -> Code:
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
    text = dedent(f"""
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
    return calling(text, *of_halves(shape, "to_memory"))


def store_runs(
    shape: Layout, value: Held, where: Place, run: int, fragments: str, inside: str, place: str, width_of_row: str
) -> Code:
    """As above, where `run` fragments alternate along a row: 2 × run of a lane's elements lie side by side."""
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
    each = (
        "#pragma unroll\nfor (int i = 0; i < LANE_CHANNELS; ++i) {\n"
        "  const int c = channel0 + lane_channel + 8 * i;\n"
        f"{guard}#pragma unroll\n  for (int f = 0; f < {fragments}; f += {run}) {{\n"
    )
    return calling(each + shifted(body, 4) + "\n  }\n}\n", *of_halves(shape, "store", "to_memory"))
