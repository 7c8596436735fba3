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
