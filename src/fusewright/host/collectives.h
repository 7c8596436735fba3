// __syncthreads, warp shuffles and votes.
#pragma once

#include "block.h"

namespace cuda_on_cpu {

// Waits for all threads of the block; gives how many of them voted.
CUDA_ON_CPU_API int meet_block(const char* name, int line, bool vote);

// Counts at one of the other barriers, which `threads` of the block pass together, and `waits` for them or goes on.
CUDA_ON_CPU_API void meet_some(int which, int threads, bool waits, int line);

using Words = uint32_t (*)[kExchangeWords];  // [lane][word]
using Combine = void (*)(Words words);       // run once, by the lane that comes last

constexpr bool kOrdersMemory = true;  // __syncwarp does; shuffles and votes do not

// Hands `count` words to the other lanes of `mask`, waits for all of them, and gives what every lane handed in.
CUDA_ON_CPU_API Words meet_warp(uint32_t mask, const char* name, int line, const uint32_t* given, int count,
                                Combine combine = nullptr, bool orders_memory = false);

template <class T>
CUDA_ON_CPU_RUNTIME inline T shuffle(uint32_t mask, T value, int source, const char* name, int line) {
  static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 16, "a shuffle moves plain values");
  constexpr int count = (sizeof(T) + 3) / 4;
  uint32_t words[count] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  Words lanes = meet_warp(mask, name, line, words, count);
  bool source_is_there = (mask & existing_lanes(*block, self->warp)) >> source & 1;
  if (!source_is_there) fail("%s at line %d reads from lane %d, which is not in mask 0x%08x", name, line, source, mask);
  __builtin_memcpy(&value, lanes[source], sizeof(T));
  return value;
}

// First lane of the group of `width` lanes the current lane belongs to.
CUDA_ON_CPU_RUNTIME inline int group_start(int width) { return self->lane & ~(width - 1); }

CUDA_ON_CPU_RUNTIME inline uint32_t ballot(uint32_t mask, bool vote, const char* name, int line) {
  uint32_t word = vote, votes = 0;
  Words lanes = meet_warp(mask, name, line, &word, 1);
  uint32_t there = mask & existing_lanes(*block, self->warp);
  for (int lane = 0; lane < 32; ++lane)
    if ((there >> lane & 1) && lanes[lane][0]) votes |= 1u << lane;
  return votes;
}

}  // namespace cuda_on_cpu

// The line is an argument that fills itself in with the caller's: messages can name it.
inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_cpu::meet_block("__syncthreads", line, false); }
inline int __syncthreads_count(int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::meet_block("__syncthreads_count", line, vote != 0);
}
inline int __syncthreads_or(int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::meet_block("__syncthreads_or", line, vote != 0) != 0;
}
inline int __syncthreads_and(int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::meet_block("__syncthreads_and", line, vote == 0) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  cuda_on_cpu::meet_warp(mask, "__syncwarp", line, nullptr, 0, nullptr, cuda_on_cpu::kOrdersMemory);
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
  int lane = cuda_on_cpu::group_start(width) + (source & (width - 1));
  return cuda_on_cpu::shuffle(mask, value, lane, "__shfl_sync", line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE()) {
  int lane = cuda_on_cpu::self->lane ^ bits;
  bool in_reach = lane < cuda_on_cpu::group_start(width) + width;  // an earlier group may be read, a later one not
  return cuda_on_cpu::shuffle(mask, value, in_reach ? lane : cuda_on_cpu::self->lane, "__shfl_xor_sync", line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
  int lane = cuda_on_cpu::self->lane + (int)delta;
  bool in_reach = lane < cuda_on_cpu::group_start(width) + width;
  return cuda_on_cpu::shuffle(mask, value, in_reach ? lane : cuda_on_cpu::self->lane, "__shfl_down_sync", line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
  int lane = cuda_on_cpu::self->lane - (int)delta;
  bool in_reach = lane >= cuda_on_cpu::group_start(width);
  return cuda_on_cpu::shuffle(mask, value, in_reach ? lane : cuda_on_cpu::self->lane, "__shfl_up_sync", line);
}

inline unsigned __ballot_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::ballot(mask, vote != 0, "__ballot_sync", line);
}
inline int __any_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::ballot(mask, vote != 0, "__any_sync", line) != 0;
}
inline int __all_sync(unsigned mask, int vote, int line = __builtin_LINE()) {
  return cuda_on_cpu::ballot(mask, vote == 0, "__all_sync", line) == 0;
}
