// Device functions: arithmetic, bits, cache hints, checks. What C's <math.h> already has is used as it is; the fast
// approximations (__expf, ...) are the exact functions here, so the host is never the less accurate side.
#pragma once

#include "block.h"

// ---- constants of math_constants.h

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_MAX_NORMAL_F FLT_MAX
#define CUDART_MIN_DENORM_F 1.401298464e-45f
#define CUDART_NEG_ZERO_F -0.0f
#define CUDART_ZERO_F 0.0f
#define CUDART_ONE_F 1.0f
#define CUDART_PI_F 3.141592654f
#define CUDART_PIO2_F 1.570796327f
#define CUDART_SQRT_HALF_F 0.707106781f
#define CUDART_SQRT_TWO_F 1.414213562f
#define CUDART_L2E_F 1.442695041f
#define CUDART_LN2_F 0.693147181f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_SQRT_HALF 7.0710678118654757e-1

// ---- min and max: for the pairs of types CUDA has them for, so that what nvcc finds ambiguous (int and long long)
// does not compile here either. Of floats they are fminf and fmaxf, which ignore a NaN (std::max does not).

#define CUDA_ON_CPU_MIN_MAX(A, B, Result)                                                          \
  constexpr Result min(A a, B b) { return (Result)b < (Result)a ? (Result)b : (Result)a; }         \
  constexpr Result max(A a, B b) { return (Result)a < (Result)b ? (Result)b : (Result)a; }
#define CUDA_ON_CPU_MIN_MAX_OF(Signed, Unsigned)       \
  CUDA_ON_CPU_MIN_MAX(Signed, Signed, Signed)          \
  CUDA_ON_CPU_MIN_MAX(Unsigned, Unsigned, Unsigned)    \
  CUDA_ON_CPU_MIN_MAX(Signed, Unsigned, Unsigned)      \
  CUDA_ON_CPU_MIN_MAX(Unsigned, Signed, Unsigned)
CUDA_ON_CPU_MIN_MAX_OF(int, unsigned)
CUDA_ON_CPU_MIN_MAX_OF(long, unsigned long)
CUDA_ON_CPU_MIN_MAX_OF(long long, unsigned long long)
#undef CUDA_ON_CPU_MIN_MAX_OF
#undef CUDA_ON_CPU_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

// ---- floating point

// glibc declares some of these names itself, with other linkage: macros, not functions.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
#define __sincosf(x, s, c) sincosf(x, s, c)
#define __fdividef(x, y) ((float)(x) / (float)(y))
#define __saturatef(x) fminf(fmaxf((x), 0.0f), 1.0f)

inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float fdividef(float x, float y) { return x / y; }
inline float normcdff(float x) { return (float)(0.5 * erfc(-(double)x * 0.70710678118654752440)); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// ---- bits and conversions

namespace cuda_on_cpu {
template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
// Conversions to integers saturate on the device, and make a NaN zero.
template <class Int>
inline Int to_integer(double x) {
  constexpr Int low = std::is_signed<Int>::value ? (Int)(1ull << (8 * sizeof(Int) - 1)) : 0, high = (Int)~low;
  if (x != x) return 0;
  if (x <= (double)low) return low;
  if (x >= (double)high) return high;
  return (Int)x;
}
}  // namespace cuda_on_cpu
inline int __float_as_int(float x) { return cuda_on_cpu::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_cpu::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return cuda_on_cpu::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cuda_on_cpu::same_bits<double>(x); }
inline int __float2int_rn(float x) { return cuda_on_cpu::to_integer<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return cuda_on_cpu::to_integer<int>(x); }
inline int __float2int_rd(float x) { return cuda_on_cpu::to_integer<int>(floorf(x)); }
inline int __float2int_ru(float x) { return cuda_on_cpu::to_integer<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return cuda_on_cpu::to_integer<unsigned>(nearbyintf(x)); }
inline long long __float2ll_rn(float x) { return cuda_on_cpu::to_integer<long long>(nearbyintf(x)); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __double2float_rn(double x) { return (float)x; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1) << (31 - i);
  return reversed;
}
inline int __mul24(int x, int y) { return ((x << 8) >> 8) * ((y << 8) >> 8); }
inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long bytes = (unsigned long long)y << 32 | x;
  unsigned chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}

// ---- loads and stores with a hint for the caches

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *p; }
template <class T, class V> inline void __stwb(T* p, V v) { *p = v; }
template <class T, class V> inline void __stcg(T* p, V v) { *p = v; }
template <class T, class V> inline void __stcs(T* p, V v) { *p = v; }
template <class T, class V> inline void __stwt(T* p, V v) { *p = v; }

// ---- what the kernel promises is checked

[[noreturn]] inline void __trap(int line = __builtin_LINE()) { cuda_on_cpu::fail("__trap at line %d", line); }
#define __builtin_assume(condition) \
  ((condition) ? (void)0 : cuda_on_cpu::fail("__builtin_assume(%s) does not hold at line %d", #condition, __LINE__))
#define __assume(condition) __builtin_assume(condition)
#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : cuda_on_cpu::fail("assert(%s) fails at line %d", #condition, __LINE__))
inline void __nanosleep(unsigned) {}
