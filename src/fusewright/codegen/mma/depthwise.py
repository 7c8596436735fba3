"""Depthwise convolutions in plain fp32 arithmetic, whose epilogue holds the rest of the chain.

Every output channel reads one input channel, so there is nothing to multiply matrices with: the kernel is as good as its
memory traffic. A thread computes a strip of a few rows × 4 columns and reads each input row once, 4 elements at a time;
what neighbouring strips share comes from cache. Input and output cross memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...ir.cpp import to_cpp
from ...ir.stmt import printed
from ...target.machine import H200, Machine
from .code import Code, calling, pieces_of, shifted
from .conv_layout import round_up
from .conv_spec import (
    ELEMENTS,
    VALUE,
    Conv,
    Epilogue,
    KernelText,
    OverChannels,
    OverPositions,
    Param,
    Pointwise,
    numbers,
    of_launcher,
    reading,
    triple,
    widened,
    words_of_params,
)
from .conv_text import extra_params, out_size, outputs, parameter_lines, size_names, tidy
from .conv_tiles import LAUNCH_MS, MEMORY_TB_PER_S, SPECIAL_SLOTS, instructions, issue_per_ms

TEMPLATE = pieces_of("depthwise.cuh")["kernel"]
THREADS = 128
COLUMNS = 4
MOST_TAPS = 64  # they are kept in registers
MOST_SEGMENT = 32  # so is a piece of an input row
SHARE_OF_MEMORY = 0.8  # not measured: of the bandwidth of a plain copy
LIBRARY_TAPS_PER_MS = 1.5e9  # H200: 5x5 (zoo/network/squeeze_excite.py) 0.397 ms for 602 million, 7x7 (convnext_block.py) 0.320 for 472
WAVEFRONTS_PER_MS = 132 * 1.76e6  # H200: 128 bytes from L1, one a cycle of each multiprocessor


def is_depthwise(conv: Conv) -> bool:
    return conv.groups == conv.in_channels > 1 and not conv.transposed


def fits(conv: Conv, epilogue: Epilogue) -> bool:
    return (
        is_depthwise(conv)
        and conv.dtype in ELEMENTS
        and prod(conv.kernel) <= MOST_TAPS
        and segment(conv)[1] <= MOST_SEGMENT
        and epilogue.window is None
        and not isinstance(epilogue.reduce, OverChannels)
    )


def rows_of(conv: Conv) -> int:
    """Output rows of a thread: many reuse more of the input, few leave more threads."""
    if conv.dims == 1:
        return 1
    return 8 if conv.stride[-2] == 1 else 4


def segment(conv: Conv) -> tuple[int, int]:
    """Columns staged in front of the first one needed, so that 16-byte loads are aligned; and all of a row's."""
    lead = -conv.padding[-1] % 4
    return lead, round_up(lead + (COLUMNS - 1) * conv.stride[-1] + (conv.kernel[-1] - 1) * conv.dilation[-1] + 1, 4)


def depthwise_kernel(name: str, conv: Conv, epilogue: Epilogue, machine: Machine = H200) -> KernelText:
    """The CUDA text of one depthwise convolution and its launcher.

    >>> depthwise_kernel("k", Conv(2, 8, 8, (3, 3), (1, 1), (1, 1), (1, 1), 8), Epilogue()).launcher_args[0]
    Param(kind=Pointer(to='float', const=True), name='input', tensor='')
    """
    if not fits(conv, epilogue):
        raise ValueError(f"{name}: not a depthwise convolution that this kernel can end so")
    wide = widened(conv)
    made = TEMPLATE.filled(
        name=name,
        constants=constants(wide),
        parameters=parameters(conv, epilogue),
        blocks=", 4" if epilogue.reduce and not epilogue.stored else "",  # ptxas takes 96 registers of its own accord, and spills
        setup="\n".join(line for body in epilogue.bodies for line in printed(body.setup, 1)),
        begin=(strip_of_each_lane(wide, epilogue) if epilogue.reduce else strip_of_each_thread(wide, epilogue)).moved(2),
        launcher=launcher(name, conv, epilogue),
        **{f"out_{axis}": out_size(wide, k) for k, axis in enumerate("dhw")},
    )
    return KernelText(
        name=name,
        source=tidy(made.text),
        calls=made.calls | epilogue.calls | words_of_params(launcher_args(conv, epilogue)),
        launcher_args=launcher_args(conv, epilogue),
        slices=slices_expression(conv, machine) if epilogue.reduce else None,
    )


def constants(conv: Conv) -> str:
    """Of the convolution widened to three dimensions."""
    rows, (lead, length) = rows_of(conv), segment(conv)
    input_rows = (rows - 1) * conv.stride[1] + (conv.kernel[1] - 1) * conv.dilation[1] + 1

    def axes(name: str, values: tuple[int, ...]) -> str:
        return "constexpr int " + ", ".join(f"{name}_{a} = {v}" for a, v in zip("DHW", values, strict=True)) + ";"

    return "\n".join([
        f"using Element = {conv.element};",
        f"constexpr int IN_CHANNELS = {conv.in_channels}, OUT_CHANNELS = {conv.out_channels};",
        axes("KERNEL", conv.kernel), axes("STRIDE", conv.stride),
        axes("PADDING", conv.padding), axes("DILATION", conv.dilation),
        f"constexpr int TAPS = {prod(conv.kernel)}, THREADS = {THREADS};",
        f"constexpr int ROWS = {rows}, COLUMNS = {COLUMNS};  // outputs of a thread",
        f"constexpr int INPUT_ROWS = {input_rows}, SEGMENT = {length};  // and the input rows and columns it reads",
        f"constexpr int LEAD = {lead};  // columns before the first one needed",
    ])  # fmt: skip


def parameters(conv: Conv, epilogue: Epilogue) -> str:
    sizes = tuple(Param("int", name) for name in ("batch", "in_d", "in_h", "in_w", *(("slices",) if epilogue.reduce else ())))
    return parameter_lines((operands(conv), extra_params(epilogue), outputs(conv, epilogue), sizes))


def operands(conv: Conv) -> tuple[Param, ...]:
    return reading(conv.element, "input", "weight", *(["bias"] if conv.bias else []))


def channel_values(conv: Conv, epilogue: Epilogue) -> Code:
    """What a thread knows of its channel: the weights, the start of every sum, and each table's one entry."""
    start = "to_arithmetic<float>(bias[c])" if conv.bias else "0.0f"
    tables = [table for body in epilogue.bodies for table in body.tables]
    channel = "c" if conv.out_channels == conv.in_channels else f"c / {conv.out_channels // conv.in_channels}"
    lines = [
        f"const Element* const plane = input + ((long long)n * IN_CHANNELS + {channel}) * in_d * in_h * in_w;",
        "float tap[TAPS];",
        "#pragma unroll",
        "for (int k = 0; k < TAPS; ++k) tap[k] = to_arithmetic<float>(weight[c * TAPS + k]);",
        f"const float start = {start};",
    ]
    if tables:
        lines.append("const int channel0 = c;  // the only channel of this thread")
    for table in tables:
        lines += [*printed(table.statements), f"const float {table.name}[1] = {{{to_cpp(table.value)}}};"]
    return calling("\n".join(lines), "to_arithmetic")


STRIP = """\
const int w0 = strip % strips_w * COLUMNS, h0 = strip / strips_w % strips_h * ROWS, d = strip / (strips_w * strips_h);
float acc[ROWS][COLUMNS];
#pragma unroll
for (int r = 0; r < ROWS; ++r)
#pragma unroll
  for (int column = 0; column < COLUMNS; ++column) acc[r][column] = start;
convolve<VECTOR>(acc, plane, tap, d, h0, w0, in_d, in_h, in_w);
"""


def each_element(conv: Conv, body: Pointwise) -> str:
    """The pointwise chain on the strip. Outside the tensor it sees the nearest element's position."""
    names = ("d", "h", "w")[3 - conv.dims :]
    if not body.statements and body.result == VALUE:
        return ""
    place = {"h": "const int h = min(h0 + r, out_h - 1);", "w": "const int w = min(w0 + column, out_w - 1);"}
    lines = [line for name, line in place.items() if name in names and name in body.reads]
    lines += ["const float value = acc[r][column];", *printed(body.statements), f"acc[r][column] = {to_cpp(body.result)};"]
    return over_strip("\n".join(lines))


def over_strip(inner: str) -> str:
    return (
        "#pragma unroll\nfor (int r = 0; r < ROWS; ++r)\n#pragma unroll\n"
        "  for (int column = 0; column < COLUMNS; ++column) {\n" + shifted(inner, 4) + "\n  }\n"
    )


STORE = calling("""\
#pragma unroll
for (int r = 0; r < ROWS; ++r) {
  if (h0 + r >= out_h) break;
  Element* const at = out + ((((long long)n * OUT_CHANNELS + c) * out_d + d) * out_h + h0 + r) * out_w + w0;
  if (out_w % 4 == 0) {
    store<COLUMNS>(at, acc[r]);
  } else {
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column)
      if (w0 + column < out_w) at[column] = to_memory<Element>(acc[r][column]);
  }
}
""", "store", "to_memory")  # fmt: skip


def strip_of_each_thread(conv: Conv, epilogue: Epilogue) -> Code:
    """Every thread has one strip of any channel."""
    return (
        "const long long item = (long long)blockIdx.x * THREADS + threadIdx.x;\n"
        "const int at_channel = int(item / strips), strip = int(item % strips);\n"
        "const int n = at_channel / OUT_CHANNELS, c = at_channel % OUT_CHANNELS;\n"
        "if (n >= batch) return;\n" + channel_values(conv, epilogue) + "\n" + STRIP + each_element(conv, epilogue.before) + STORE
    )


def strip_of_each_lane(conv: Conv, epilogue: Epilogue) -> Code:
    """Every warp has a slice of one channel's strips, and leaves one partial accumulator, perhaps beside the elements."""
    assert isinstance(epilogue.reduce, OverPositions)
    name = epilogue.reduce.accumulator
    inside = "h0 + r < out_h && w0 + column < out_w"
    if name == "CloseMoments":
        add = (
            "const int count = min(ROWS, out_h - h0) * min(COLUMNS, out_w - w0);\nfloat sum = 0.0f, squares = 0.0f;\n"
            "if (total.n == 0.0f) total.mean = acc[0][0];\n"
            + over_strip(f"sum += {inside} ? acc[r][column] - total.mean : 0.0f;")
            + "const float centre = sum / count;\n"
            + over_strip(f"const float off = {inside} ? acc[r][column] - total.mean - centre : 0.0f;\nsquares += off * off;")
            + "total.join(float(count), centre - total.low, squares);\n"
        )
    else:
        add = over_strip(f"if ({inside}) total.add(acc[r][column]);")
    stored = STORE if epilogue.stored else Code()
    loop = STRIP + each_element(conv, epilogue.before) + stored + each_element(conv, epilogue.between) + add
    begin = (
        "const long long item = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;\n"
        "const int c = int(item % OUT_CHANNELS), slice = int(item / OUT_CHANNELS % slices);\n"
        "const int n = int(item / OUT_CHANNELS / slices), lane = threadIdx.x % 32;\n"
        "if (n >= batch) return;\n"
        "const int last = int((long long)strips * (slice + 1) / slices);\n"
    )
    each = f"\n{name} total;\nfor (int strip = int((long long)strips * slice / slices) + lane; strip < last; strip += 32) {{\n"
    merged = "total = merge_warp(total);\nif (lane == 0) partials[((long long)n * slices + slice) * OUT_CHANNELS + c] = total;"
    return begin + channel_values(conv, epilogue) + calling(each, name) + loop.moved(2) + "\n}\n" + calling(merged, "merge_warp")


def slices_expression(conv: Conv, machine: Machine) -> str:
    """Python over `{batch}`: enough slices that every multiprocessor has 32 warps."""
    return f"max(1, min(64, {32 * machine.multiprocessors} // max(1, {{batch}} * {conv.out_channels})))"


def launcher_args(conv: Conv, epilogue: Epilogue) -> tuple[Param, ...]:
    handed = of_launcher((*extra_params(epilogue), *outputs(conv, epilogue)))
    return (*operands(conv), *handed, *numbers(("batch", *size_names(conv), *(("slices",) if epilogue.reduce else ()))))


def launcher(name: str, conv: Conv, epilogue: Epilogue) -> str:
    args = ", ".join(arg.in_launcher for arg in launcher_args(conv, epilogue))
    handed = [param.handed for param in (*operands(conv), *extra_params(epilogue), *outputs(conv, epilogue))]
    handed += [f"int({size})" for size in ("batch", "in_d", "in_h", "in_w", *(("slices",) if epilogue.reduce else ()))]
    lines = [f'extern "C" const char* {name}({args}, void* stream) {{', f"  using namespace {name}_detail;"]
    missing = [size for size in ("in_d", "in_h", "in_w") if size not in size_names(conv)]
    if missing:
        lines.append("  const long long " + ", ".join(f"{size} = 1" for size in missing) + ";")
    if epilogue.reduce:
        lines.append("  const long long blocks = (batch * slices * OUT_CHANNELS + THREADS / 32 - 1) / (THREADS / 32);")
    else:
        sizes = [out_size(widened(conv), k) for k in range(3)]
        strips = f"({sizes[0]}) * (({sizes[1]} + ROWS - 1) / ROWS) * (({sizes[2]} + COLUMNS - 1) / COLUMNS)"
        lines.append(f"  const long long strips = {strips};")
        lines.append("  const long long blocks = (batch * OUT_CHANNELS * strips + THREADS - 1) / THREADS;")
    lines.append("  if (blocks <= 0) return nullptr;")
    call = ", ".join(handed)
    launch = "<<<dim3((unsigned)blocks), THREADS, 0, (cudaStream_t)stream>>>"
    lines += [
        "  if (in_w % 4 == 0 && (size_t)input % (4 * sizeof(Element)) == 0) {",
        f"    kernel<4>{launch}({call});",
        "  } else {",
        f"    kernel<1>{launch}({call});",
        "  }",
        "  return launch_error();",
        "}",
    ]
    return "\n".join(lines)


def predicted_ms(conv: Conv, epilogue: Epilogue, sizes: Sequence[int], machine: Machine = H200) -> float:
    """Milliseconds for `sizes` = (batch, *spatial sizes of the input): the slowest of memory, L1 and arithmetic."""
    batch, spatial = sizes[0], sizes[1:]
    out = triple(conv.out_sizes(spatial), 1)
    rows, wide = rows_of(conv), widened(conv)
    outputs_ = batch * conv.out_channels * prod(out)
    writes = epilogue.stored or not epilogue.reduce
    strips = batch * conv.out_channels * out[0] * -(-out[1] // rows) * -(-out[2] // COLUMNS)
    input_rows = wide.kernel[0] * ((rows - 1) * wide.stride[1] + (wide.kernel[1] - 1) * wide.dilation[1] + 1)
    loads = input_rows * segment(conv)[1] // 4
    wavefronts = strips / 32 * (4 * wide.stride[2] * loads + prod(conv.kernel))
    special = machine.by_special(SPECIAL_SLOTS)
    element = prod(conv.kernel) + 2.0 + instructions(epilogue.before, special) + instructions(epilogue.between, special)
    element += (4.0 if epilogue.reduce else 0.0) + (1.0 if writes else 0.0)
    slots = strips * rows * COLUMNS / 32 * element + strips / 32 * loads * 4
    each = conv.item_bytes
    moved = each * (batch * conv.in_channels * prod(spatial) + (outputs_ if writes else 0))
    memory = moved / (SHARE_OF_MEMORY * machine.by_memory(MEMORY_TB_PER_S)) * 1e-9
    cached = wavefronts / machine.by_issue(WAVEFRONTS_PER_MS)
    return max(memory, cached, slots / (0.7 * issue_per_ms(machine))) + machine.by_launch(LAUNCH_MS)


def library_ms(conv: Conv, sizes: Sequence[int], machine: Machine = H200) -> float:
    """The library's kernel: a thread for each output, which goes from tap to tap."""
    outputs_ = sizes[0] * conv.out_channels * prod(conv.out_sizes(sizes[1:]))
    moved = conv.item_bytes * (sizes[0] * conv.in_channels * prod(sizes[1:]) + outputs_)
    memory = moved / (SHARE_OF_MEMORY * machine.by_memory(MEMORY_TB_PER_S)) * 1e-9
    taps = outputs_ * prod(conv.kernel) / machine.by_issue(LIBRARY_TAPS_PER_MS)
    return max(memory, taps) + machine.by_launch(LAUNCH_MS)
