// Host bodies for the PTX wrappers of prelude_ptx.cuh and prelude_mma.cuh: asynchronous copies, tensor-core products, ldmatrix.
// `line` is the line of the call, for messages.
#pragma once

#include "device_math.h"

namespace cuda_on_cpu {

// The copy lands at the wait; until then the destination holds NaN. Zeros instead if not valid.
CUDA_ON_CPU_API void cp_async(void* destination, const void* source, int bytes, bool valid, int line);
CUDA_ON_CPU_API void cp_async_commit();
CUDA_ON_CPU_API void cp_async_wait(int pending);  // all groups but the newest `pending` ones have landed

// cvt.rna.tf32.f32: 10 bits of fraction, to nearest, ties away from zero. Infinity stays infinite, a NaN a NaN.
inline uint32_t to_tf32(float x) {
  uint32_t bits = same_bits<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  if ((bits & 0x7fffffffu) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
}

// d += a b, truncated as tensor cores do (the model is in tensor_core.cpp).
CUDA_ON_CPU_API void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line);
CUDA_ON_CPU_API void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line);
CUDA_ON_CPU_API void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line);

CUDA_ON_CPU_API void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transposed, int line);

}  // namespace cuda_on_cpu
