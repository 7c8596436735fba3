// Functions for float32 in fewer instructions than CUDA's library takes: no branch, no IEEE division, and arguments of which something
// is known. Off by a few units in the last place at most, as eager PyTorch is: tests/kernels/test_short.py has the figures. Those made
// of exp(-|x|) share it where they have the same argument.

//: section choose
// One of two that are both computed: with ?: the compiler branches around what takes more than a few instructions, and a warp whose
// threads differ goes both ways.
template <typename T> __device__ __forceinline__ T choose(bool first, T a, T b) { return first ? a : b; }

//: section inverse_of needs rcp_fast
// 1 / x of x from 2^-126 to 2^126, or NaN: the reciprocal and what it lacks, to half a unit in the last place or little more.
__device__ __forceinline__ float inverse_of(float x) {
  const float y = rcp_fast(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}

//: section log1p_unit
// log(1 + x) of x from 0 to 1: the polynomial is off by 5e-9, relative.
__device__ __forceinline__ float log1p_unit(float x) {
  float q = fmaf(x, 0.00331942783f, -0.0202090424f);
  q = fmaf(x, q, 0.0576731631f);
  q = fmaf(x, q, -0.106814817f);
  q = fmaf(x, q, 0.153559744f);
  q = fmaf(x, q, -0.196956158f);
  q = fmaf(x, q, 0.249586329f);
  q = fmaf(x, q, -0.333305150f);
  q = fmaf(x, q, 0.499999344f);
  return fmaf(-x * x, q, x);
}
__device__ __forceinline__ double log1p_unit(double x) { return log1p(x); }

//: section expm1_below needs choose
// exp(x) - 1 of x up to 0: where the difference would cancel a polynomial, off by 2e-8, relative.
__device__ __forceinline__ float expm1_below(float x) {
  float q = fmaf(x, 0.00101438549f, 0.00803881232f);
  q = fmaf(x, q, 0.0415579354f);
  q = fmaf(x, q, 0.166648835f);
  q = fmaf(x, q, 0.499999046f);
  return choose(x > -0.75f, x * fmaf(x, q, 1.0f), expf(-fabsf(x)) - 1.0f);
}
__device__ __forceinline__ double expm1_below(double x) { return expm1(x); }

//: section exp_below needs choose exp2_fast
// exp(x) of x up to 0, as exact as the special-function unit's power of two; 0 from where that would be subnormal on, and of -infinity.
__device__ __forceinline__ float exp_below(float x) {
  const float y = x * 1.44269502f, e = exp2_fast(y);
  const float rest = fmaf(y, 1.90465432e-9f, fmaf(y, -0.693147182f, x));  // what the product lacks
  return choose(x > -1000.0f, fmaf(e, rest, e), e);
}

//: section whole_division defines is_minus_one whole_quotient whole_rest
// Of whole numbers. By 0, of which PyTorch says nothing on a GPU, it is 0; by -1 nothing overflows.
template <typename T> __device__ __forceinline__ bool is_minus_one(T b) { return b < T(0) && b == T(-1); }
template <typename T> __device__ __forceinline__ T whole_quotient(T a, T b) {
  return b == T(0) ? T(0) : is_minus_one(b) ? static_cast<T>(0ULL - static_cast<unsigned long long>(a)) : static_cast<T>(a / b);
}
template <typename T> __device__ __forceinline__ T whole_rest(T a, T b) { return b == T(0) || is_minus_one(b) ? T(0) : static_cast<T>(a % b); }

//: section whole_power
// Of whole numbers, modulo what fits: by squaring. A negative power is 0, but of 1 and -1.
template <typename T, typename U> __device__ __forceinline__ T whole_power(T a, U by) {
  if (by < U(0)) return a == T(1) ? T(1) : a < T(0) && a == T(-1) ? (by % 2 == 0 ? T(1) : T(-1)) : T(0);
  unsigned long long power = 1, square = static_cast<unsigned long long>(a);
  for (unsigned long long rest = static_cast<unsigned long long>(by); rest != 0; rest >>= 1, square *= square) {
    if (rest & 1) power *= square;
  }
  return static_cast<T>(power);
}

//: section common_divisor
// The greatest of two whole numbers, by Euclid; of 0 and 0 it is 0.
template <typename T> __device__ __forceinline__ T common_divisor(T a, T b) {
  a = static_cast<T>(a < T(0) ? -a : a);
  b = static_cast<T>(b < T(0) ? -b : b);
  while (a != T(0)) {
    const T rest = static_cast<T>(b % a);
    b = a;
    a = rest;
  }
  return b;
}

//: section common_multiple needs common_divisor
// The least of two whole numbers; of 0 and any it is 0.
template <typename T> __device__ __forceinline__ T common_multiple(T a, T b) {
  const T divisor = common_divisor(a, b);
  const T multiple = divisor == T(0) ? T(0) : static_cast<T>(a / divisor * b);
  return static_cast<T>(multiple < T(0) ? -multiple : multiple);
}

//: section shifted_left
// By more than there are bits, or by less than 0, nothing is left.
template <typename T, typename U> __device__ __forceinline__ T shifted_left(T a, U by) {
  return by < U(0) || by >= U(8 * sizeof(T)) ? T(0) : static_cast<T>(static_cast<unsigned long long>(a) << by);
}

//: section shifted_right
// By more than there are bits, or by less than 0, the sign is left.
template <typename T, typename U> __device__ __forceinline__ T shifted_right(T a, U by) {
  constexpr U most = 8 * sizeof(T) - (T(-1) < T(0) ? 1 : 0);
  return by < U(0) || by >= most ? static_cast<T>(a < T(0) ? -1 : 0) : static_cast<T>(a >> by);
}

//: section fmod_of needs rcp_fast whole_division
// What is left of a after a whole number of b, exactly. The quotient is never too small, and may be one too large: then less than
// nothing is left.
__device__ __forceinline__ float fmod_of(float a, float b) {
  const float x = fabsf(a), y = fabsf(b), q = truncf(x * rcp_fast(y) * 1.00000048f);
  if (!(q < 1048576.0f) || y < 1e-30f || y > 1e30f) return fmodf(a, b);
  const float rest = fmaf(-q, y, x);
  return copysignf(rest < 0.0f ? rest + y : rest, a);
}
__device__ __forceinline__ double fmod_of(double a, double b) { return fmod(a, b); }
template <typename T, typename U> __device__ __forceinline__ T fmod_of(T a, U b) { return whole_rest(a, static_cast<T>(b)); }

//: section remainder_of needs fmod_of whole_division
// Has the sign of the divisor, as Python's %.
__device__ __forceinline__ float remainder_of(float a, float b) { const float r = fmod_of(a, b); return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r; }
__device__ __forceinline__ double remainder_of(double a, double b) { const double r = fmod(a, b); return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r; }
template <typename T, typename U> __device__ __forceinline__ T remainder_of(T a, U b) { const T r = whole_rest(a, static_cast<T>(b)); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

//: section floor_divided needs fmod_of
// The whole number below a / b, as Python's //: what is left over is taken off first, so that the quotient is whole or nearly so.
template <typename T> __device__ __forceinline__ T floor_divided(T a, T b) {
  if (b == T(0)) return a / b;
  const T rest = fmod_of(a, b), quotient = (a - rest) / b - (rest != T(0) && (b < T(0)) != (rest < T(0)) ? T(1) : T(0));
  const T whole = floor(quotient);
  return quotient == T(0) ? copysign(T(0), a / b) : whole + (quotient - whole > T(0.5) ? T(1) : T(0));
}

//: section whole_floor_divided needs whole_division
template <typename T, typename U> __device__ __forceinline__ T whole_floor_divided(T a, U b) {
  const T by = static_cast<T>(b), rest = whole_rest(a, by);
  return static_cast<T>(whole_quotient(a, by) - (rest != T(0) && (rest < T(0)) != (by < T(0)) ? 1 : 0));
}

//: section whole_truncated needs whole_division
template <typename T, typename U> __device__ __forceinline__ T whole_truncated(T a, U b) { return whole_quotient(a, static_cast<T>(b)); }

//: section sigmoid_of needs choose rcp_fast
// 1 / (1 + exp(-x)); what is divided by lies between 1 and 2.
__device__ __forceinline__ float sigmoid_of(float x) {
  const float e = expf(-fabsf(x));
  return choose(x < 0.0f, e, 1.0f) * rcp_fast(1.0f + e);
}
__device__ __forceinline__ double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }

//: section sigmoid_fast needs exp_fast rcp_fast
__device__ __forceinline__ float sigmoid_fast(float x) { return rcp_fast(1.0f + exp_fast(-x)); }

//: section mish_of needs choose rcp_fast
// x tanh(log(1 + e)) = x n / (n + 2) with e = exp(x), n = e (e + 2).
__device__ __forceinline__ float mish_of(float x, float e) {
  const float n = e * (e + 2.0f);
  return choose(x > 20.0f, x, x * (n * rcp_fast(n + 2.0f)));
}
__device__ __forceinline__ double mish_of(double x, double e) {
  const double n = e * (e + 2.0);
  return x > 20.0 ? x : x * (n / (n + 2.0));
}
