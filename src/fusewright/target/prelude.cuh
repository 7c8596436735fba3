// Device functions that kernel templates share. A line `//: section NAME …` starts one; helpers.py says what else stands in it.

//: section base defines launch_error
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>
#include <string.h>
#include <utility>

// The message of a failed launch, or nullptr.
static const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

//: section unpacked defines unpacked called_with
// Calls a launcher with the values of an array, each as the type that it takes.
template <typename... T, size_t... I>
const char* called_with(const long long* values, const char* (*launcher)(T...), std::index_sequence<I...>) {
  return launcher((T)values[I]...);
}
template <typename... T> const char* unpacked(const char* (*launcher)(T...), const long long* values) {
  return called_with(values, launcher, std::index_sequence_for<T...>());
}

//: section half defines __half __half2 __nv_bfloat16 __nv_bfloat162
#include <cuda_bf16.h>
#include <cuda_fp16.h>

//: section aligned
static bool aligned(const void* pointer, int bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

//: section Count
// A number that is known as the kernel is built.
template <int N> struct Count { constexpr __host__ __device__ operator int() const { return N; } };

//: section ceil_div
// How many blocks of so many items.
static unsigned ceil_div(long long items, long long each) { return static_cast<unsigned>((items + each - 1) / each); }

//: section Divisor
// What many numbers are divided by: the launcher computes its inverse once, and a quotient is a product and a shift.
template <typename Index> struct Divisor {
  Index value;
  Divisor(long long value) : value(value) {}
  friend __device__ __forceinline__ Index operator/(Index n, Divisor by) { return n / by.value; }
  friend __device__ __forceinline__ Index operator%(Index n, Divisor by) { return n % by.value; }
};
template <> struct Divisor<int> {  // n / value = n * inverse >> shift, for all n from 0 to 2^31 - 1
  int value, shift;
  unsigned inverse;
  Divisor(long long by) : value(static_cast<int>(by)), shift(31) {
    while ((1ll << (shift - 31)) < by) ++shift;
    inverse = by > 0 ? static_cast<unsigned>(((1ull << shift) + by - 1) / by) : 0;
  }
  friend __device__ __forceinline__ int operator/(int n, Divisor by) {
    return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(n)) * by.inverse >> by.shift);
  }
  friend __device__ __forceinline__ int operator%(int n, Divisor by) { return n - n / by * by.value; }
};

//: section convert defines to_arithmetic to_memory
// Memory holds T, arithmetic is done in A (float for the half types).
template <typename A, typename T> __device__ __forceinline__ A to_arithmetic(T x) { return static_cast<A>(x); }
template <typename T, typename A> __device__ __forceinline__ T to_memory(A x) { return static_cast<T>(x); }

//: section convert_half joins half convert
template <> __device__ __forceinline__ float to_arithmetic<float, __half>(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ float to_arithmetic<float, __nv_bfloat16>(__nv_bfloat16 x) { return __bfloat162float(x); }
template <> __device__ __forceinline__ __half to_memory<__half, float>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 to_memory<__nv_bfloat16, float>(float x) { return __float2bfloat16_rn(x); }

//: section vector defines Pack load store needs convert
// N neighbouring elements in as few loads and stores as their alignment allows (16 bytes at most).
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T element[N]; };
template <int N, typename T, typename A> __device__ __forceinline__ void load(const T* from, A (&to)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int v = 0; v < N; ++v) to[v] = to_arithmetic<A>(pack.element[v]);
}
template <int N, typename T, typename A> __device__ __forceinline__ void store(T* to, const A (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int v = 0; v < N; ++v) pack.element[v] = to_memory<T>(from[v]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

//: section larger
// The larger of two; NaN if either is NaN, as PyTorch has it.
template <typename T, typename U> __device__ __forceinline__ auto larger(T a, U b) -> decltype(a + b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float larger(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a > b || a != a ? a : b;
#endif
}

//: section smaller
// The smaller of two; NaN if either is NaN, as PyTorch has it.
template <typename T, typename U> __device__ __forceinline__ auto smaller(T a, U b) -> decltype(a + b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float smaller(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return a < b || a != a ? a : b;
#endif
}

//: section absolute
template <typename T> __device__ __forceinline__ T absolute(T x) { return x < 0 ? -x : x; }
template <> __device__ __forceinline__ float absolute<float>(float x) { return fabsf(x); }
template <> __device__ __forceinline__ double absolute<double>(double x) { return fabs(x); }

//: section sign_of
template <typename T> __device__ __forceinline__ T sign_of(T x) { return static_cast<T>(x > 0) - static_cast<T>(x < 0); }

//: section wrapped
// Positions beyond the ends of n go on from the other end.
template <typename I, typename N> __device__ __forceinline__ I wrapped(I i, N n) {
  const I rest = i % static_cast<I>(n);
  return rest < 0 ? rest + static_cast<I>(n) : rest;
}

//: section wrapped_once
// The same, of positions less than n beyond either end: what would be negative is large as an unsigned number.
template <typename I, typename N> __device__ __forceinline__ I wrapped_once(I i, N n) {
  const unsigned long long here = i, before = i - static_cast<I>(n), behind = i + static_cast<I>(n);
  const unsigned long long one = here < before ? here : before;
  return static_cast<I>(one < behind ? one : behind);
}
template <typename N> __device__ __forceinline__ int wrapped_once(int i, N n) {
  const unsigned here = i, before = i - static_cast<int>(n), behind = i + static_cast<int>(n);
  const unsigned one = here < before ? here : before;
  return static_cast<int>(one < behind ? one : behind);
}

//: section mirrored
// Positions beyond the ends of n are those as far inside; the ends are the mirrors.
template <typename I, typename N> __device__ __forceinline__ I mirrored(I i, N n) {
  const I from_start = i < 0 ? -i : i, from_end = 2 * (static_cast<I>(n) - 1) - from_start;
  return from_start < from_end ? from_start : from_end;
}

//: section clamped
// Positions beyond the ends of n are the ends.
template <typename I, typename N> __device__ __forceinline__ I clamped(I i, N n) {
  return i < 0 ? 0 : i < static_cast<I>(n) ? i : static_cast<I>(n) - 1;
}

//: section cornered
// Where element i of a resized dimension lies in its source, as PyTorch computes it: with the first elements at the same place.
template <typename I> __device__ __forceinline__ float cornered(I i, float scale) { return scale * static_cast<float>(i); }

//: section halfway
// Where the middle of element i of a resized dimension lies in its source, as PyTorch computes it: from the first one's beginning.
template <typename I> __device__ __forceinline__ float halfway(I i, float scale) { return scale * (static_cast<float>(i) + 0.5f); }

//: section centred
// Where the middle of element i of a resized dimension lies in its source, as PyTorch computes it: from the first one's middle. The
// product is not rounded.
template <typename I> __device__ __forceinline__ float centred(I i, float scale) { return fmaf(scale, static_cast<float>(i) + 0.5f, -0.5f); }

//: section centred_inside needs centred
// The same, not before it.
template <typename I> __device__ __forceinline__ float centred_inside(I i, float scale) { return fmaxf(centred(i, scale), 0.0f); }

//: section ratio_of
// Of sizes, as a float; of nothing, 0.
template <typename N, typename M> __device__ __forceinline__ float ratio_of(N size, M resized) {
  return resized > 0 ? static_cast<float>(size) / static_cast<float>(resized) : 0.0f;
}

//: section floor_of
__device__ __forceinline__ int floor_of(float x) { return static_cast<int>(floorf(x)); }

//: section sampled needs floor_of
// The element of n at a place, and `tap` elements on; beyond the ends, the ends. I is the type in which offsets are computed.
template <typename I, typename N> __device__ __forceinline__ I sampled(I, float place, int tap, N n) {
  const int i = floor_of(place) + tap, last = static_cast<int>(n) - 1;
  return i < 0 ? 0 : i < last ? i : last;
}

//: section cubic_near
// The weight of an element x away, less than 1, in a cubic interpolation; the slope at the elements is PyTorch's.
__device__ __forceinline__ float cubic_near(float x) { return (1.25f * x - 2.25f) * x * x + 1.0f; }

//: section cubic_far
// The weight of an element x away, between 1 and 2, in a cubic interpolation.
__device__ __forceinline__ float cubic_far(float x) { return ((-0.75f * x + 3.75f) * x - 6.0f) * x + 3.0f; }

//: section first_tap
// Where the first tap inside the input lies, of a window that begins at `start` and has one every `step`.
template <typename I> __device__ __forceinline__ I first_tap(I start, int step) {
  return start < 0 ? start + (-start + step - 1) / step * step : start;
}

//: section Largest
// The largest of a window and where it lies, as PyTorch's pools have it: the first of equals, but of NaNs the last.
template <typename I> struct Largest {
  float value;
  I position;
  __device__ __forceinline__ void add(float x, I i) {
    const bool taken = (x > value) | (x != x);
    value = taken ? x : value;
    position = taken ? i : position;
  }
};

//: section load_run defines load_run piece needs vector clamped
// The N elements of a row from `first` on, in pieces as wide as alignment allows: `first` lies LEAD behind a whole number of VEC
// elements, which the row's size and its place in memory are. What lies beyond the ends of the row is some other part of it.
constexpr __host__ __device__ int piece(int place, int left, int most) {
  return place % most == 0 && left >= most ? most : piece(place, left, most / 2);
}
template <int VEC, int LEAD, int AT = 0, typename T, typename Index, typename Size, typename A, int N>
__device__ __forceinline__ void load_run(const T* row, Index first, Size size, A (&to)[N]) {
  if constexpr (AT < N) {
    constexpr int WIDTH = piece(AT + LEAD, N - AT, VEC);
    A part[WIDTH];
    load(row + clamped<Index>(first + AT, size - WIDTH + 1), part);
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) to[AT + v] = part[v];
    load_run<VEC, LEAD, AT + WIDTH>(row, first, size, to);
  }
}
