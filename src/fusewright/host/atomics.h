// Atomics and fences. CUDA's atomics are relaxed and ordered by fences. The thread sanitizer does not understand
// fences: under it every atomic orders memory, so that "the last block adds the partial sums" raises no false alarm.
#pragma once

#include "block.h"

namespace cuda_on_cpu {

#if defined(__SANITIZE_THREAD__)
constexpr int kAtomicOrder = __ATOMIC_ACQ_REL, kAtomicLoad = __ATOMIC_ACQUIRE;
#else
constexpr int kAtomicOrder = __ATOMIC_RELAXED, kAtomicLoad = __ATOMIC_RELAXED;
#endif

template <class T>
struct Plain { using type = T; };
template <class T>
using Value = typename Plain<T>::type;  // not deduced: atomicAdd(unsigned*, 1) must compile

// Replaces *p by change(*p); gives the old value.
template <class T, class Change>
inline T atomic_change(T* p, Change change) {
  T earlier, later;
  __atomic_load(p, &earlier, kAtomicLoad);
  do later = change(earlier);
  while (!__atomic_compare_exchange(p, &earlier, &later, true, kAtomicOrder, kAtomicLoad));
  return earlier;
}

}  // namespace cuda_on_cpu

template <class T>
inline T atomicAdd(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x + v; });
}
template <class T>
inline T atomicSub(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x - v; });
}
template <class T>
inline T atomicMin(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return v < x ? v : x; });
}
template <class T>
inline T atomicMax(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x < v ? v : x; });
}
template <class T>
inline T atomicAnd(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x & v; });
}
template <class T>
inline T atomicOr(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x | v; });
}
template <class T>
inline T atomicXor(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T x) -> T { return x ^ v; });
}
template <class T>
inline T atomicExch(T* p, cuda_on_cpu::Value<T> v) {
  return cuda_on_cpu::atomic_change(p, [v](T) -> T { return v; });
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return cuda_on_cpu::atomic_change(p, [last](unsigned x) { return x >= last ? 0u : x + 1; });
}
inline unsigned atomicDec(unsigned* p, unsigned last) {
  return cuda_on_cpu::atomic_change(p, [last](unsigned x) { return x == 0 || x > last ? last : x - 1; });
}
template <class T>
inline T atomicCAS(T* p, cuda_on_cpu::Value<T> expected, cuda_on_cpu::Value<T> v) {
  __atomic_compare_exchange(p, &expected, &v, false, cuda_on_cpu::kAtomicOrder, cuda_on_cpu::kAtomicLoad);
  return expected;
}

inline void __threadfence() { __atomic_signal_fence(__ATOMIC_SEQ_CST), __sync_synchronize(); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
