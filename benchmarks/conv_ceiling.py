"""What the tensor cores reach with less and less of a convolution kernel around them.

    PYTHONPATH=src python3 benchmarks/conv_ceiling.py

`registers` multiplies the same registers again and again; `loop` runs a generated kernel's own inner loop on one
stage in shared memory, with no copies and no epilogue. The distance to a kernel's own rate is what copies, barriers
and the epilogue cost.
"""

from __future__ import annotations

import ctypes
import tempfile
from functools import partial
from pathlib import Path

import torch
from conv_founding import CONV1, CONV2, POOLED, build, milliseconds, rounding, source_of, with_prelude
from kernels.conv.founding import STATISTICS

from fusewright.codegen.mma.conv import Tile, conv_kernel

REGISTERS = """
template <int TILES, int FRAGMENTS, bool FRAGMENT_FIRST>
__global__ void __launch_bounds__(256) peak_kernel(float* out, int rounds) {
  float acc[TILES][FRAGMENTS][4] = {};
  uint32_t a[TILES][4], b[FRAGMENTS][2];
  for (int i = 0; i < TILES; ++i) for (int k = 0; k < 4; ++k) a[i][k] = __float_as_uint(out[threadIdx.x + i * 4 + k]);
  for (int i = 0; i < FRAGMENTS; ++i)
    for (int k = 0; k < 2; ++k) b[i][k] = __float_as_uint(out[threadIdx.x + i * 2 + k]);
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int k = 0; k < TILES * FRAGMENTS; ++k) {
      const int i = FRAGMENT_FIRST ? k / FRAGMENTS : k % TILES, f = FRAGMENT_FIRST ? k % FRAGMENTS : k / TILES;
      mma_tf32(acc[i][f], a[i], b[f]);
    }
  }
  float total = 0;
  for (int i = 0; i < TILES; ++i) for (int f = 0; f < FRAGMENTS; ++f) for (int k = 0; k < 4; ++k) total += acc[i][f][k];
  out[blockIdx.x * 256 + threadIdx.x] = total;
}
extern "C" const char* run(float* out, long long rounds, long long blocks, void* stream) {
  peak_kernel<$args><<<(unsigned)blocks, 256, 0, (cudaStream_t)stream>>>(out, (int)rounds);
  return launch_error();
}
"""
BESIDE = """
// Warps 0-7 of a block multiply on the tensor cores, warps 8-15 run $op: does one slow the other?
__global__ void __launch_bounds__(512) beside_kernel(float* out, int products, int others) {
  float total = 0;
  if (threadIdx.x < 256) {
    float acc[4][4][4] = {};
    uint32_t a[4][4], b[4][2];
    for (int i = 0; i < 4; ++i) for (int k = 0; k < 4; ++k) a[i][k] = __float_as_uint(out[threadIdx.x + i * 4 + k]);
    for (int i = 0; i < 4; ++i) for (int k = 0; k < 2; ++k) b[i][k] = __float_as_uint(out[threadIdx.x + i * 2 + k]);
    for (int r = 0; r < products / 16; ++r)
#pragma unroll
      for (int k = 0; k < 16; ++k) mma_tf32(acc[k / 4][k % 4], a[k / 4], b[k % 4]);
    for (int k = 0; k < 64; ++k) total += acc[k / 16][k / 4 % 4][k % 4];
  } else {
    float v[16], scale = out[threadIdx.x], shift = out[threadIdx.x + 1];
    for (int k = 0; k < 16; ++k) v[k] = out[threadIdx.x + k];
    for (int r = 0; r < others / 16; ++r)
#pragma unroll
      for (int k = 0; k < 16; ++k) v[k] = $op;
    for (int k = 0; k < 16; ++k) total += v[k];
  }
  out[blockIdx.x * 512 + threadIdx.x] = total;
}
extern "C" const char* run(float* out, long long products, long long others, void* stream) {
  beside_kernel<<<132, 512, 0, (cudaStream_t)stream>>>(out, (int)products, (int)others);
  return launch_error();
}
"""
LOOP = """
namespace $name_detail {
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) loop_kernel(float* out, int rounds) {
  extern __shared__ __align__(16) float shared[];
  for (int i = threadIdx.x; i < SHARED_BYTES / 4; i += THREADS) shared[i] = out[i];
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float* lane_input = shared + lane % 4 * PLANE + lane / 4 + warp % 2 * 8;
  const uint4* lane_weight = reinterpret_cast<const uint4*>(shared + 2 * INPUT_STAGE) + lane;
  float acc[CHANNEL_TILES][FRAGMENTS][4] = {};
  for (int r = 0; r < rounds; ++r) multiply(acc, lane_input + r % 2, lane_weight, 0, [](int) {});
  float total = 0;
  for (int i = 0; i < CHANNEL_TILES; ++i)
    for (int f = 0; f < FRAGMENTS; ++f) total += acc[i][f][0] + acc[i][f][1] + acc[i][f][2] + acc[i][f][3];
  out[blockIdx.x * THREADS + threadIdx.x] = total;
}
}
extern "C" const char* run(float* out, long long rounds, long long blocks, void* stream) {
  using namespace $name_detail;
  cudaFuncSetAttribute(loop_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
  loop_kernel<<<(unsigned)blocks, THREADS, SHARED_BYTES, (cudaStream_t)stream>>>(out, (int)rounds);
  return launch_error();
}
"""


def rate(library: ctypes.CDLL, rounds: int, blocks: int, products: int) -> float:
    out = torch.randn(1 << 20, device="cuda")
    library.run.restype = ctypes.c_char_p

    def run() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        message = library.run(
            ctypes.c_void_p(out.data_ptr()), ctypes.c_longlong(rounds), ctypes.c_longlong(blocks), stream
        )
        assert not message, message

    return blocks * products * rounds * 2048 / milliseconds(run, 7) / 1e9


def beside(folder: Path) -> None:
    operations = {"fma": "fmaf(v[k], scale, shift)", "ex2": "exp2_fast(v[k])", "max": "fmaxf(v[k], scale * 0.5f + r)"}
    out = torch.randn(1 << 20, device="cuda")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for label, text in operations.items():
        library = build(folder, label, with_prelude(BESIDE.replace("$op", text)))
        library.run.restype = ctypes.c_char_p
        others = 24000 if label == "ex2" else 96000
        alone, other, both = (
            milliseconds(
                partial(library.run, ctypes.c_void_p(out.data_ptr()), *map(ctypes.c_longlong, counts), stream), 7
            )
            for counts in ((32000, 0), (0, others), (32000, others))
        )
        print(
            f"32000 products: {alone:.3f} ms; {others} {label}: {other:.3f} ms; side by side: {both:.3f} ms", flush=True
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        beside(folder)
        for tiles, fragments, blocks in ((1, 16, 2), (4, 4, 2), (4, 8, 1), (2, 8, 2), (4, 4, 1)):
            for first in ("true", "false"):
                source = with_prelude(REGISTERS.replace("$args", f"{tiles}, {fragments}, {first}"))
                library = build(folder, f"r{tiles}{fragments}{first}", source)
                tflops = rate(library, 32000 // (tiles * fragments), 132 * blocks, 8 * tiles * fragments)
                print(
                    f"registers {tiles}x{fragments}, fragments first {first}, {blocks} blocks: {tflops:.0f} TFLOP/s",
                    flush=True,
                )
        one = Tile(4, (1, 4, 1), (1, 2, 4), blocks_per_sm=2, weights="resident")
        two = Tile(4, (2, 4, 1), (1, 2, 4), columns=9)
        for label, conv, epilogue, tile, products in (
            ("4x4", CONV1, STATISTICS, one, 144), ("4x8", CONV2, POOLED, two, 864),
        ):  # fmt: skip
            for even in (True, False):
                text = conv_kernel("k", conv, epilogue, tile)
                library = build(folder, f"l{label}{even}", rounding(source_of(text), even) + LOOP.replace("$name", "k"))
                tflops = rate(library, 144000 // products, 132 * tile.blocks_per_sm, 8 * products)
                print(f"loop {label}, {'cvt.rn' if even else 'cvt.rna'}: {tflops:.0f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
