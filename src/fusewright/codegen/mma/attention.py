"""Attention in float32 by one kernel: scores, the pointwise chain behind them, softmax and the weighted sum of values.

PyTorch's default does not allow TF32 to matrix products. As in product.py each number is the sum of two TF32 ones and three products of
these parts make float32's; a score is the sum of at most 128 of them, and those of KEYS keys are added to plain sums. Scores never leave
the registers of the warp that has them: it takes 16 or 32 queries, block after block of keys, with the running maximum and sum of a
softmax, and rescales what it has where a maximum grows.

Keys and values are in shared memory as they are, and are split in registers: of 8 keys and 8 of the depth a warp reads 256 bytes for 3
products of m16n8k8 (6 with 32 queries), 2 clocks of shared memory where the tensor cores take about 5 (10). Split before, they would be
512 bytes: 4 clocks. It costs 6 instructions for these 3 (6) products, whose issue takes 19 clocks (38) of a scheduler. Copies of the next
keys run while values are multiplied, and those of the next values while keys are, so that one buffer for each is enough.

By that count 32 queries and 32 keys of 96 take about 2500 issue slots and 3700 clocks of a scheduler's tensor core. No GPU has timed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.expr import Pointer
from ...ir.stmt import Return, printed
from ...target.machine import H200, Machine
from .code import Code, calling, pieces_of, shifted
from .conv_spec import KernelText, Param, Pointwise, numbers, reading
from .conv_text import by_vectors, launched, tidy
from .conv_tiles import LAUNCH_MS, MEMORY_TB_PER_S

TEMPLATE = pieces_of("attention.cuh")["kernel"]
MOST = 128  # of the depth, and of the width: more would need more registers than a thread has
WARPS, KEYS = 4, 32


@dataclass(frozen=True)
class Attention:
    """For each of a batch, Σ_j weight_ij value_j with weight = softmax_j chain(query_i · key_j), or the chain alone."""

    depth: int  # of queries and keys
    width: int  # of values
    batch: int = 1  # dimensions in front of each matrix
    softmax: bool = True
    safe: bool = False  # a row of which nothing is left gives zeros, as scaled_dot_product_attention has it, not NaN
    causal: bool = False  # the chain leaves nothing of keys behind the query: blocks of them are not looked at
    leaves_out: bool = False  # the chain may leave nothing of a score, which one of NaN tells: keys that are left out are not multiplied
    depth_varies: bool = False  # it is only known when the kernel is launched, and at most that
    width_varies: bool = False

    @property
    def told(self) -> tuple[str, ...]:
        """What the kernel is told when it is launched."""
        return tuple(name for name, varies in (("depth", self.depth_varies), ("width", self.width_varies)) if varies)


@dataclass(frozen=True)
class AttentionTile:
    """What a block computes: for each of its warps so many times 16 queries."""

    tiles: int
    blocks: int  # on a multiprocessor

    @property
    def rows(self) -> int:
        return 16 * self.tiles * WARPS


def attention_tile(attention: Attention) -> AttentionTile:
    """By registers: a lane holds 2 sums for each of the width and 16 queries, and 32 parts of weights."""
    return AttentionTile(2, 2) if attention.width <= 96 else AttentionTile(1, 3)


def in_eights(size: int) -> int:
    return -(-size // 8) * 8


def fits(attention: Attention, machine: Machine) -> bool:
    """The machine has what a block needs."""
    return machine.has_tf32 and shared_bytes(attention, attention_tile(attention)) <= machine.shared_per_block


def shared_bytes(attention: Attention, tile: AttentionTile) -> int:
    depth, width = in_eights(attention.depth), in_eights(attention.width)
    return 4 * ((tile.rows + KEYS) * pitch(depth) + KEYS * (width + 4))


def pitch(depth: int) -> int:
    """Words of a row of queries or keys: four rows of 8 words lie in different banks."""
    return depth if depth % 16 == 8 else depth + 8


def attention_kernel(
    name: str, attention: Attention, body: Pointwise | None = None, tile: AttentionTile | None = None
) -> KernelText:
    """The CUDA text of one kernel and its launcher. `body` is the chain between score and softmax at query `n` and key `c` of the
    matrices `z0`, `z1`, … of a batch.

    >>> [argument.name for argument in attention_kernel("k", Attention(64, 64)).launcher_args][-3:]
    ['batch0', 'queries', 'keys']
    """
    body, tile = body or Pointwise(), tile or attention_tile(attention)
    z = [f"z{d}" for d in range(attention.batch)]
    made = TEMPLATE.filled(
        name=name,
        constants="\n".join(constants(attention, tile)),
        steps=", ".join([*z, "row", "column"]),
        in_fours=f"{' && '.join(f'x.{step} % 4 == 0' for step in [*z, 'row'])}",
        parameters=parameters(attention, body),
        places="\n".join(places(attention)),
        setup="\n".join(printed(body.setup, 1)),
        chain="\n".join(printed([*body.statements, Return(body.result)], 2)),
        begin=BEGIN if attention.softmax else "",
        last=f"  const int last = {'min(keys, row0 + TILE_ROWS)' if attention.causal else 'keys'};",
        nothing="-INFINITY" if attention.softmax else "0.0f",
        weigh=WEIGH.moved(2) if attention.softmax else "",
        left=LEFT if attention.leaves_out else "    constexpr bool left = true;",
        unless_left=UNLESS_LEFT if attention.leaves_out else "",
        scale=scale(attention),
        store=store(attention),
        real_column="" if in_fragments(attention) else " && j / 2 * 8 + 2 * quad + j % 2 < width",
        known="\n".join(f"  constexpr int {name} = {name.upper()};" for name in ("depth", "width") if name not in attention.told),
        out=f"  out += {' + '.join(f'{d} * out_{d}' for d in z)};  // here: it is not needed before" if z else "",
        **again(attention),
        launcher="\n".join(launcher(name, attention, body)),
    )
    return KernelText(
        name=name,
        source=tidy(made.text),
        calls=made.calls | body.calls,
        launcher_args=launcher_args(attention, body),
        smem=shared_bytes(attention, tile),
    )


# What it takes on an H200, by counting: no GPU has timed it. A scheduler starts one instruction a clock, and its tensor core takes
# m16n8k8 in 6.4 (a warp's products reach about 60 % of what a warpgroup's reach); both at once go at four fifths of the slower.
CLOCK_GHZ, PRODUCT_CLOCKS, TOGETHER = 1.755, 6.4, 0.8
CHAIN_SLOTS = 20  # of an element between the products: maximum, exponential, sum, two parts, and some for the chain
LIBRARY_TFLOPS = 25.0  # PyTorch's attention in float32: taken at half of what products reach without tensor cores, not measured


def attention_ms(attention: Attention, batch: int, queries: int, keys: int, machine: Machine = H200) -> float:
    """About what the kernel takes."""
    tile, fragments = attention_tile(attention), KEYS // 8
    deep, wide = in_eights(attention.depth) // 8, in_eights(attention.width) // 8
    products = 3 * fragments * tile.tiles * (deep + wide)
    slots = deep * (14 * tile.tiles + fragments * (7 + 3 * tile.tiles)) + wide * (fragments * (8 + 3 * tile.tiles) + 8 * tile.tiles)
    slots += CHAIN_SLOTS * KEYS // 2 * tile.tiles + 150
    rounds = -(-keys // KEYS) * (0.5 + 0.5 * tile.rows / max(queries, tile.rows) if attention.causal else 1.0)
    product_clocks = machine.by_issue(PRODUCT_CLOCKS) / machine.by_warp_mma(1.0)
    block = rounds * max(products * product_clocks, slots) / TOGETHER  # clocks of a scheduler: a warp of each block is on it
    resident = min(tile.blocks, machine.shared_per_multiprocessor // (shared_bytes(attention, tile) + 1024))
    at_once, clock = machine.multiprocessors * resident, machine.by_clock(CLOCK_GHZ)
    blocks = batch * -(-queries // tile.rows)
    busy = -(-blocks // at_once) * resident * block / clock * 1e-6 if blocks > at_once else block / clock * 1e-6
    moved = 4e-9 * batch * (queries * (attention.depth + attention.width) + keys * (attention.depth + attention.width))
    return max(busy, moved / machine.by_memory(MEMORY_TB_PER_S)) + machine.by_launch(LAUNCH_MS)


def library_attention_ms(attention: Attention, batch: int, queries: int, keys: int, machine: Machine = H200) -> float:
    """About what PyTorch's attention takes in one call."""
    share = 0.5 if attention.causal else 1.0
    flops = 2e-9 * batch * queries * keys * (attention.depth + attention.width) * share
    return flops / machine.by_fp32(LIBRARY_TFLOPS) + machine.by_launch(LAUNCH_MS)


def constants(attention: Attention, tile: AttentionTile) -> Iterator[str]:
    def line(text: str, comment: str = "") -> str:
        return f"constexpr int {text};" + (f"  // {comment}" if comment else "")

    depth, width = in_eights(attention.depth), in_eights(attention.width)
    known = {"DEPTH": attention.depth, "WIDTH": attention.width}
    fixed = ", ".join(f"{name} = {size}" for name, size in known.items() if name.lower() not in attention.told)
    if fixed:
        yield line(fixed, "of queries and keys; of values" if not attention.told else "")
    yield line(f"DEPTH_8 = {depth}, WIDTH_8 = {width}", "of queries and keys, and of values, with zeros up to whole fragments")
    yield line(f"TILES = {tile.tiles}, KEYS = {KEYS}", "of 16 queries for each warp; keys of a block that are in shared memory")
    yield line(f"THREADS = {32 * WARPS}, BLOCKS = {tile.blocks}, TILE_ROWS = {tile.rows}")
    yield line(f"PITCH = {pitch(depth)}, V_PITCH = {width + 4}", "words of a row: no bank is met twice")
    yield line(f"SHARED_BYTES = {shared_bytes(attention, tile)}")


def places(attention: Attention) -> Iterator[str]:
    """The matrices of this block."""
    rest = "int(blockIdx.x) / tiles"
    for d in reversed(range(1, attention.batch)):
        yield f"  const int z{d} = {rest} % batch{d};"
        rest = f"int(blockIdx.x) / tiles / {' / '.join(f'batch{e}' for e in range(d, attention.batch))}"
    if attention.batch:
        yield f"  const int z0 = {rest};"
    for operand in ("q", "k", "v") if attention.batch else ():
        yield f"  {operand}.at += {' + '.join(f'z{d} * {operand}.z{d}' for d in range(attention.batch))};"


# A row's maximum is -infinity while nothing is left of it: nothing must be subtracted then, and a row of nothing but that is divided by 0.
BEGIN = """\
  float highest[TILES][2], total[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES * 2; ++i) highest[i / 2][i % 2] = -INFINITY, total[i / 2][i % 2] = 0.0f;"""
WEIGH = calling("""\
    // While nothing but -infinity was seen of a row, nothing is subtracted.
#pragma unroll
    for (int i = 0; i < TILES * 2; ++i) {
      float& most = highest[i / 2][i % 2];
      float now = -INFINITY;
#pragma unroll
      for (int f = 0; f < KEYS / 8; ++f) now = fmaxf(now, fmaxf(score[i / 2][f][i % 2 * 2], score[i / 2][f][i % 2 * 2 + 1]));
      now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
      now = fmaxf(most, fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2)));
      const float base = now == -INFINITY ? 0.0f : now, before = exp_below(most - base);
      if (__any_sync(0xffffffffu, now != most)) {
        total[i / 2][i % 2] *= before;
#pragma unroll
        for (int f = 0; f < WIDTH_8 / 8; ++f) sum[i / 2][f][i % 2 * 2] *= before, sum[i / 2][f][i % 2 * 2 + 1] *= before;
      }
      most = now;
      float more = 0.0f;
#pragma unroll
      for (int f = 0; f < KEYS / 8; ++f) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& weight = score[i / 2][f][i % 2 * 2 + e];
          weight = exp_below(weight - base);
          more += weight;
        }
      }
      total[i / 2][i % 2] += more;
    }""", "exp_below")  # fmt: skip


# Of keys that a mask leaves out for all queries of a warp nothing is computed. Their weights of 0 would make NaN of a value that is not
# finite: then its rows are computed again.
LEFT = """\
    bool left = false;
#pragma unroll
    for (int i = 0; i < TILES * (KEYS / 2); ++i) {
      const int n = row0 + warp_row + i / (KEYS / 2) * 16 + group + i % 4 / 2 * 8, c = key0 + i / 4 % (KEYS / 8) * 8 + 2 * quad + i % 2;
      left |= chain(NAN, min(n, queries - 1), min(c, keys - 1)) != -INFINITY;
    }
    left = __any_sync(0xffffffffu, left);"""
UNLESS_LEFT = """ else {
      bool lost = false;
#pragma unroll 4
      for (int i = 4 * lane; i < KEYS * V_PITCH; i += 128) {
        const float4 four = *reinterpret_cast<const float4*>(v_tile + i);
        const bool real = i % V_PITCH < WIDTH_8;  // behind the columns is nothing
        lost |= real && !(fabsf(four.x) < INFINITY && fabsf(four.y) < INFINITY && fabsf(four.z) < INFINITY && fabsf(four.w) < INFINITY);
      }
      if (__any_sync(0xffffffffu, lost)) odd = ~0u;
    }"""


def scale(attention: Attention) -> str:
    if not attention.softmax:
        return "    constexpr float inverse = 1.0f;"
    return "\n".join([
        "    float all = total[i / 2][i % 2];",
        "    all += __shfl_xor_sync(0xffffffffu, all, 1);",
        "    all += __shfl_xor_sync(0xffffffffu, all, 2);",
        f"    const float inverse = {inverse(attention, 'all')};",
    ])  # fmt: skip


def again(attention: Attention) -> dict[str, Code | str]:
    """How a row is computed again: by softmax in three rounds over its keys, for their maximum, for the sum, and for the result."""
    if not attention.softmax:
        return {"counts": "lost", "prepare": "", "rounds": "", "gather": "        const float weight = value;"}
    return {
        "counts": "(lost && all > 0.0f)",
        "prepare": "      float most = -INFINITY, whole = 0.0f;",
        "rounds": "#pragma unroll 1\n      for (int round = 0; round < 3; ++round)",
        "gather": GATHER.filled(inverse=inverse(attention, "whole")),
    }


GATHER = calling("""\
        if (round == 0) {
          most = fmaxf(most, value);
#pragma unroll
          for (int bits = 16; bits > 0; bits /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bits));
          continue;
        }
        float weight = exp_below(value - (most == -INFINITY ? 0.0f : most));
        if (round == 1) {
          weight = key0 + lane < last ? weight : 0.0f;
#pragma unroll
          for (int bits = 16; bits > 0; bits /= 2) weight += __shfl_xor_sync(0xffffffffu, weight, bits);
          whole += weight;
          continue;
        }
        weight *= $inverse;""", "exp_below")  # fmt: skip


def inverse(attention: Attention, total: str) -> str:
    return f"({total} == 0.0f ? 0.0f : 1.0f / {total})" if attention.safe else f"(1.0f / {total})"


def in_fragments(attention: Attention) -> bool:
    """Every column of the last fragment is there."""
    return attention.width % 8 == 0 and not attention.width_varies


def store(attention: Attention) -> str:
    """Two neighbours; together where that is aligned, and only those that are there."""
    within = [] if in_fragments(attention) else ["if (8 * f + 2 * quad >= width) continue;"]
    both = ["*reinterpret_cast<float2*>(to + 8 * f) = make_float2(first, second);"]
    single = ["to[8 * f] = first;", "if (8 * f + 2 * quad + 1 < width) to[8 * f + 1] = second;"]
    lines = both if attention.width % 2 == 0 else single
    if attention.width_varies:
        lines = ["if (width % 2 == 0) {", *(f"  {line}" for line in both), "} else {", *(f"  {line}" for line in single), "}"]
    return shifted("\n".join([*within, *lines]), 8)


def parameters(attention: Attention, body: Pointwise) -> str:
    steps = ", ".join(f"long long out_{step}" for step in [*(f"z{d}" for d in range(attention.batch)), "row"])
    lines = ["Operand q, Operand k, Operand v", f"float* __restrict__ out, {steps}"]
    lines += [param.in_kernel for param in body.params]
    lines.append(", ".join(f"int {name}" for name in size_names(attention)))
    return ",\n       ".join(lines)


def size_names(attention: Attention) -> list[str]:
    """What the kernel is told of sizes; the first of a batch it does not need."""
    return [*(f"batch{d}" for d in range(1, attention.batch)), "queries", "keys", *attention.told]


def launcher_args(attention: Attention, body: Pointwise) -> tuple[Param, ...]:
    z = [f"z{d}" for d in range(attention.batch)]
    pointers = [param for param in body.params if param.is_pointer]
    scalars = [param.name for param in body.params if not param.is_pointer]
    steps = [f"{operand}_{step}" for operand in "qkv" for step in ["at", *z, "row", "column"]]
    steps += [f"out_{step}" for step in [*z, "row"]]
    sizes = [*steps, *scalars, *(f"batch{d}" for d in range(attention.batch)), "queries", "keys", *attention.told]
    return (*reading("float", *"qkv"), Param(Pointer("float"), "out"), *pointers, *numbers(sizes))


def launcher(name: str, attention: Attention, body: Pointwise) -> Iterator[str]:
    z = [f"z{d}" for d in range(attention.batch)]
    args = ", ".join(arg.in_launcher for arg in launcher_args(attention, body))
    yield f'extern "C" const char* {name}({args}, void* stream) {{'
    yield f"  using namespace {name}_detail;"
    for operand in "qkv":
        steps = ", ".join(f"{operand}_{step}" for step in [*z, "row", "column"])
        yield f"  const Operand of_{operand} = {{{operand} + {operand}_at, {steps}}};"
    many = "".join(f"batch{d} * " for d in range(attention.batch))
    yield f"  const unsigned blocks = (unsigned)({many}((queries + TILE_ROWS - 1) / TILE_ROWS));"
    yield "  if (blocks == 0) return nullptr;"
    handed = ["of_q, of_k, of_v", "out", *(f"out_{step}" for step in [*z, "row"])]
    handed += [param.handed for param in body.params]
    handed += [f"int({size})" for size in size_names(attention)]
    call = ", ".join(handed)
    by_fours = all(s % 4 == 0 or n in attention.told for n, s in (("depth", attention.depth), ("width", attention.width)))
    fours = " && ".join([*(f"{name} % 4 == 0" for name in attention.told), *(f"in_fours(of_{name})" for name in "qkv")])
    launches = by_vectors(
        fours if by_fours else "", lambda vector: launched(f"kernel<{vector}>", "dim3(blocks)", "THREADS", "SHARED_BYTES", call)
    )
    yield from (f"  {line}" for line in launches)
    yield "  return launch_error();"
    yield "}"
