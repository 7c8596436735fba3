// Shared memory: one arena for each block, filled with NaN before every block, with a gap after every array.
#pragma once

#include "block.h"

namespace cuda_on_cpu {

// What shared memory holds before anyone writes it: a NaN as fp32, fp64, fp16 and bf16, which rounding to TF32 keeps,
// and as an integer an index far outside any array.
constexpr uint32_t kPoison = 0x7ff87ff8u;
constexpr size_t kSharedAlignment = 128;

void begin_shared_memory(Block& b);
void end_shared_memory(Block& b);
CUDA_ON_CPU_API void* static_shared(const SharedName* name, size_t bytes);

// transform.py turns `__shared__ float tile[4][5];` into a reference to one of these.
template <class T>
inline T& shared_variable(const SharedName* name) {
  static_assert(alignof(T) <= kSharedAlignment, "alignment of shared memory");
  return *reinterpret_cast<T*>(static_shared(name, sizeof(T)));
}
template <class T>
inline T* dynamic_shared() {
  return reinterpret_cast<T*>(block->arena);
}

}  // namespace cuda_on_cpu
