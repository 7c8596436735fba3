// __half and __nv_bfloat16: two bytes each, rounded to nearest even as the hardware does.
#pragma once

#include "device_math.h"

namespace cuda_on_cpu {

inline uint16_t half_bits(float x) {
  uint32_t bits = same_bits<uint32_t>(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;                           // the NaN every conversion gives
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);      // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000u) {                                        // below 2^-14: a multiple of 2^-24
    float units = same_bits<float>(magnitude) * 16777216.0f;
    return (uint16_t)(sign | (uint32_t)nearbyintf(units));
  }
  uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);        // to nearest, ties to even
  return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}
inline float half_value(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return same_bits<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {
    float value = (float)magnitude * (1.0f / 16777216.0f);
    return sign ? -value : value;
  }
  return same_bits<float>(sign | ((magnitude << 13) + 0x38000000u));
}
inline uint16_t bfloat16_bits(float x) {
  uint32_t bits = same_bits<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
inline float bfloat16_value(uint16_t bits) { return same_bits<float>((uint32_t)bits << 16); }

// What two words multiply to on the tensor cores: their lower elements' product and their upper ones'.
inline double f16_product(uint32_t x, uint32_t y) {
  return (double)half_value((uint16_t)x) * half_value((uint16_t)y) + (double)half_value(x >> 16) * half_value(y >> 16);
}
inline double bf16_product(uint32_t x, uint32_t y) {
  return (double)bfloat16_value((uint16_t)x) * bfloat16_value((uint16_t)y) + (double)bfloat16_value(x >> 16) * bfloat16_value(y >> 16);
}

// For a double that goes through float and must not be rounded twice: the last bit keeps that it was inexact.
inline float round_to_odd(double x) {
  float nearest = (float)x;
  if ((double)nearest == x || x != x || nearest - nearest != 0) return nearest;
  uint32_t bits = same_bits<uint32_t>(nearest);
  bool away_from_zero = fabs((double)nearest) > fabs(x);
  return same_bits<float>((bits - away_from_zero) | 1);
}

}  // namespace cuda_on_cpu

// Both types have the same functions under slightly different names: half and half2, nv_bfloat16 and nv_bfloat162.
#define CUDA_ON_CPU_SMALL_FLOAT(Name, Pair, to_bits, to_value)                                                     \
  struct alignas(2) Name {                                                                                         \
    uint16_t bits;                                                                                                 \
    Name() = default;                                                                                              \
    Name(float x) : bits(cuda_on_cpu::to_bits(x)) {}                                                               \
    Name(double x) : bits(cuda_on_cpu::to_bits(cuda_on_cpu::round_to_odd(x))) {}                                   \
    template <class Int, class = std::enable_if_t<std::is_integral<Int>::value>>                                   \
    Name(Int x) : Name((double)x) {}                                                                               \
    operator float() const { return cuda_on_cpu::to_value(bits); }                                                 \
    Name& operator+=(Name y) { return *this = Name((float)*this + (float)y); }                                     \
    Name& operator-=(Name y) { return *this = Name((float)*this - (float)y); }                                     \
    Name& operator*=(Name y) { return *this = Name((float)*this * (float)y); }                                     \
    Name& operator/=(Name y) { return *this = Name((float)*this / (float)y); }                                     \
  };                                                                                                               \
  inline Name operator+(Name x, Name y) { return x += y; }                                                         \
  inline Name operator-(Name x, Name y) { return x -= y; }                                                         \
  inline Name operator*(Name x, Name y) { return x *= y; }                                                         \
  inline Name operator/(Name x, Name y) { return x /= y; }                                                         \
  inline Name operator-(Name x) { return x.bits ^= 0x8000, x; }                                                    \
  inline bool operator==(Name x, Name y) { return (float)x == (float)y; }                                          \
  inline bool operator!=(Name x, Name y) { return (float)x != (float)y; }                                          \
  inline bool operator<(Name x, Name y) { return (float)x < (float)y; }                                            \
  inline bool operator>(Name x, Name y) { return (float)x > (float)y; }                                            \
  inline bool operator<=(Name x, Name y) { return (float)x <= (float)y; }                                          \
  inline bool operator>=(Name x, Name y) { return (float)x >= (float)y; }                                          \
  inline Name __hadd(Name x, Name y) { return x + y; }                                                             \
  inline Name __hsub(Name x, Name y) { return x - y; }                                                             \
  inline Name __hmul(Name x, Name y) { return x * y; }                                                             \
  inline Name __hdiv(Name x, Name y) { return x / y; }                                                             \
  inline Name __hneg(Name x) { return -x; }                                                                        \
  inline Name __hfma(Name x, Name y, Name z) { return Name((double)(float)x * (float)y + (float)z); }              \
  inline Name __hmax(Name x, Name y) { return Name(fmaxf(x, y)); }                                                 \
  inline Name __hmin(Name x, Name y) { return Name(fminf(x, y)); }                                                 \
  inline bool __hisnan(Name x) { return isnan((float)x); }                                                         \
  struct alignas(4) Pair {                                                                                         \
    Name x, y;                                                                                                     \
    Pair() = default;                                                                                              \
    Pair(Name x_, Name y_) : x(x_), y(y_) {}                                                                       \
  };                                                                                                               \
  inline Pair operator+(Pair a, Pair b) { return Pair(a.x + b.x, a.y + b.y); }                                     \
  inline Pair operator-(Pair a, Pair b) { return Pair(a.x - b.x, a.y - b.y); }                                     \
  inline Pair operator*(Pair a, Pair b) { return Pair(a.x * b.x, a.y * b.y); }                                     \
  inline Pair __hadd2(Pair a, Pair b) { return a + b; }                                                            \
  inline Pair __hsub2(Pair a, Pair b) { return a - b; }                                                            \
  inline Pair __hmul2(Pair a, Pair b) { return a * b; }                                                            \
  inline Pair __hfma2(Pair a, Pair b, Pair c) { return Pair(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }        \
  inline float __low2float(Pair a) { return a.x; }                                                                 \
  inline float __high2float(Pair a) { return a.y; }

CUDA_ON_CPU_SMALL_FLOAT(__half, __half2, half_bits, half_value)
CUDA_ON_CPU_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162, bfloat16_bits, bfloat16_value)
#undef CUDA_ON_CPU_SMALL_FLOAT

using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return x; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline short __half_as_short(__half x) { return (short)x.bits; }
inline __half __ushort_as_half(unsigned short bits) { return cuda_on_cpu::same_bits<__half>(bits); }
inline __half2 __floats2half2_rn(float x, float y) { return __half2(x, y); }
inline __half2 __float22half2_rn(float2 v) { return __half2(v.x, v.y); }
inline __half2 __float2half2_rn(float x) { return __half2(x, x); }
inline float2 __half22float2(__half2 v) { return make_float2(v.x, v.y); }
inline __half2 __halves2half2(__half x, __half y) { return __half2(x, y); }
inline __half2 __half2half2(__half x) { return __half2(x, x); }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }

inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 x) { return (short)x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return cuda_on_cpu::same_bits<__nv_bfloat16>(bits); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __nv_bfloat162(v.x, v.y); }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __nv_bfloat162(x, x); }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return make_float2(v.x, v.y); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return __nv_bfloat162(x, y); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return __nv_bfloat162(x, x); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
