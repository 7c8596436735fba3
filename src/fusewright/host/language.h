// The words CUDA adds to C++, its vector types and launch geometry.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
// Not here: __noinline__ (libstdc++ writes __attribute__((__noinline__))), __launch_bounds__, __shared__, <<<>>>.
// transform.py rewrites those in the text.

// name1 .. name4, aligned as CUDA aligns them: 2 and 4 elements to their size (at most 16), 1 and 3 to one element.
#define CUDA_ON_CPU_VECTORS(name, element)                                                                     \
  struct name##1 { element x; };                                                                               \
  struct alignas(2 * sizeof(element)) name##2 { element x, y; };                                               \
  struct name##3 { element x, y, z; };                                                                         \
  struct alignas(sizeof(element) < 4 ? 4 * sizeof(element) : 16) name##4 { element x, y, z, w; };              \
  inline name##1 make_##name##1(element x) { return {x}; }                                                     \
  inline name##2 make_##name##2(element x, element y) { return {x, y}; }                                       \
  inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }                         \
  inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTORS(char, signed char)
CUDA_ON_CPU_VECTORS(uchar, unsigned char)
CUDA_ON_CPU_VECTORS(short, short)
CUDA_ON_CPU_VECTORS(ushort, unsigned short)
CUDA_ON_CPU_VECTORS(int, int)
CUDA_ON_CPU_VECTORS(uint, unsigned)
CUDA_ON_CPU_VECTORS(long, long)
CUDA_ON_CPU_VECTORS(ulong, unsigned long)
CUDA_ON_CPU_VECTORS(longlong, long long)
CUDA_ON_CPU_VECTORS(ulonglong, unsigned long long)
CUDA_ON_CPU_VECTORS(float, float)
CUDA_ON_CPU_VECTORS(double, double)
#undef CUDA_ON_CPU_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

constexpr int warpSize = 32;
