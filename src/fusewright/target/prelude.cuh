// Device functions that kernel templates share. A line `//: section NAME …` starts one; prelude.py says what else stands in it.

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

//: section Sum
struct Sum {
  float s = 0.0f;
  __device__ __forceinline__ void add(float x) { s += x; }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
    float together = x[0];  // first: fewer roundings at the size of the whole sum
#pragma unroll
    for (int i = 1; i < N; ++i) together += x[i];
    s += together;
  }
  __device__ __forceinline__ void merge(const Sum& other) { s += other.s; }
  __device__ __forceinline__ float result() const { return s; }
};

//: section IntegerSum
struct IntegerSum {
  long long s = 0;
  __device__ __forceinline__ void add(long long x) { s += x; }
  template <int N> __device__ __forceinline__ void add(const long long (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) s += x[i];
  }
  __device__ __forceinline__ void merge(const IntegerSum& other) { s += other.s; }
  __device__ __forceinline__ long long result() const { return s; }
};

//: section Product
struct Product {
  float p = 1.0f;
  __device__ __forceinline__ void add(float x) { p *= x; }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) p *= x[i];
  }
  __device__ __forceinline__ void merge(const Product& other) { p *= other.p; }
  __device__ __forceinline__ float result() const { return p; }
};

//: section Max needs larger
struct Max {
  float m = -INFINITY;
  __device__ __forceinline__ void add(float x) { m = larger(x, m); }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) add(x[i]);
  }
  __device__ __forceinline__ void merge(const Max& other) { m = larger(other.m, m); }
  __device__ __forceinline__ float result() const { return m; }
};

//: section Min needs smaller
struct Min {
  float m = INFINITY;
  __device__ __forceinline__ void add(float x) { m = smaller(x, m); }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) add(x[i]);
  }
  __device__ __forceinline__ void merge(const Min& other) { m = smaller(other.m, m); }
  __device__ __forceinline__ float result() const { return m; }
};

//: section ArgMax
// The first position of the largest value; a NaN counts as largest of all. A thread meets positions in rising order.
struct ArgMax {
  float m = -INFINITY;
  int unused = 0;
  long long index = 0x7fffffffffffffffLL;  // none yet: every value so far was -INFINITY
  __device__ __forceinline__ void add(float x, long long i) {
    if (!(x <= m) && m == m) {
      m = x;
      index = i;
    }
  }
  __device__ __forceinline__ void merge(const ArgMax& other) {
    const bool tie = other.m == m || (other.m != other.m && m != m);
    const bool taken = (tie & (other.index < index)) | (!tie & !(other.m <= m) & (m == m));
    m = taken ? other.m : m;
    index = taken ? other.index : index;
  }
  __device__ __forceinline__ float result() const { return m; }
  __device__ __forceinline__ long long position() const { return index == 0x7fffffffffffffffLL ? 0 : index; }
};

//: section ArgMin
// The first position of the smallest value; a NaN counts as smallest of all. A thread meets positions in rising order.
struct ArgMin {
  float m = INFINITY;
  int unused = 0;
  long long index = 0x7fffffffffffffffLL;  // none yet: every value so far was INFINITY
  __device__ __forceinline__ void add(float x, long long i) {
    if (!(x >= m) && m == m) {
      m = x;
      index = i;
    }
  }
  __device__ __forceinline__ void merge(const ArgMin& other) {
    const bool tie = other.m == m || (other.m != other.m && m != m);
    const bool taken = (tie & (other.index < index)) | (!tie & !(other.m >= m) & (m == m));
    m = taken ? other.m : m;
    index = taken ? other.index : index;
  }
  __device__ __forceinline__ float result() const { return m; }
  __device__ __forceinline__ long long position() const { return index == 0x7fffffffffffffffLL ? 0 : index; }
};

//: section LogSumExp defines LogSumExp LogSumExpBy exact_exp
// log of the sum of exp(x), in one sweep: the running maximum m, and s = sum of exp(x - m).
template <float (*EXP)(float)> struct LogSumExpBy {
  float m = -INFINITY, s = 0.0f;
  // The maximum, or 0 where it is infinite: subtracting it then is harmless and inf - inf never happens.
  __device__ __forceinline__ float pivot() const { return fabsf(m) == INFINITY ? 0.0f : m; }
  // What turns s into a sum relative to another pivot. Nothing has been added while m is -inf.
  __device__ __forceinline__ float scale_to(float other) const { return m == -INFINITY ? 0.0f : EXP(pivot() - other); }
  __device__ __forceinline__ void add(float x) {
    const float one[1] = {x};
    add(one);
  }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
    LogSumExpBy next = *this;
#pragma unroll
    for (int i = 0; i < N; ++i) next.m = fmaxf(next.m, x[i]);
    const float pivot = next.pivot();
    s *= scale_to(pivot);
#pragma unroll
    for (int i = 0; i < N; ++i) s += EXP(x[i] - pivot);
    m = next.m;
  }
  __device__ __forceinline__ void merge(const LogSumExpBy& other) {
    const LogSumExpBy both = {fmaxf(m, other.m), 0.0f};
    s = s * scale_to(both.pivot()) + other.s * other.scale_to(both.pivot());
    m = both.m;
  }
  // What softmax divides by: one +inf makes the whole row NaN, as inf - inf does in PyTorch.
  __device__ __forceinline__ float total() const { return m == INFINITY ? NAN : s; }
  __device__ __forceinline__ float log_total() const { return logf(total()); }
  __device__ __forceinline__ float result() const { return pivot() + logf(s); }
};
__device__ __forceinline__ float exact_exp(float x) { return expf(x); }
using LogSumExp = LogSumExpBy<exact_exp>;

//: section Moments
// Mean and sum of squared deviations (m2), by Welford's update; parts are merged by Chan's formula.
struct Moments {
  float n = 0.0f, mean = 0.0f, m2 = 0.0f;
  __device__ __forceinline__ void add(float x) {
    n += 1.0f;
    const float delta = x - mean;
    mean += delta / n;
    m2 += delta * (x - mean);
  }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
    float sum[N];  // of pairs, of pairs of these, and so on: equal elements have their own value as mean
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = x[i];
#pragma unroll
    for (int apart = 1; apart < N; apart *= 2)
#pragma unroll
      for (int i = 0; i + apart < N; i += 2 * apart) sum[i] += sum[i + apart];
    Moments tile = {static_cast<float>(N), sum[0] * (1.0f / N), 0.0f};
#pragma unroll
    for (int i = 0; i < N; ++i) tile.m2 += (x[i] - tile.mean) * (x[i] - tile.mean);
    merge(tile);
  }
  __device__ __forceinline__ void merge(const Moments& other) {
    const float total = n + other.n;
    const float share = n == 0.0f ? 1.0f : __fdividef(other.n, total);  // the first is taken as it is, others to a few roundings
    const float delta = other.mean - mean;
    mean += delta * share;
    m2 += other.m2 + delta * delta * n * share;
    n = total;
  }
};

//: section CloseMoments
// Mean and sum of squared deviations (m2), by Chan's formula, right to the last bits also where the mean is thousands of deviations:
// elements are taken relative to the mean so far, which is the sum of two numbers: the second has the bits that the first lacks.
struct CloseMoments {
  float n = 0.0f, mean = 0.0f, m2 = 0.0f, low = 0.0f;
  __device__ __forceinline__ void move(float step) {
    const float before = mean, whole = step + low;
    mean = before + whole;
    low = whole - (mean - before);
  }
  __device__ __forceinline__ void add(float x) {
    if (n == 0.0f) mean = x;
    n += 1.0f;
    const float delta = (x - mean) - low;
    move(delta / n);
    m2 += delta * ((x - mean) - low);
  }
  template <int N> __device__ __forceinline__ void add(const float (&x)[N]) {
    if (n == 0.0f) mean = x[0];
    float off[N], sum[N];  // sums of pairs, of pairs of these, and so on
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = off[i] = x[i] - mean;
#pragma unroll
    for (int apart = 1; apart < N; apart *= 2)
#pragma unroll
      for (int i = 0; i + apart < N; i += 2 * apart) sum[i] += sum[i + apart];
    const float centre = sum[0] * (1.0f / N);
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (off[i] - centre) * (off[i] - centre);
    join(static_cast<float>(N), centre - low, squares);
  }
  __device__ __forceinline__ void merge(const CloseMoments& other) {
    if (n == 0.0f) mean = other.mean, low = other.low;
    join(other.n, other.n == 0.0f ? 0.0f : (other.mean - mean) + (other.low - low), other.m2);
  }
  // As many more elements, whose mean is `delta` larger; `squares` is the sum of their squared distances from it.
  __device__ __forceinline__ void join(float more, float delta, float squares) {
    const float total = n + more;
    const float share = n == 0.0f ? 1.0f : __fdividef(more, total);  // to a few roundings
    move(delta * share);
    m2 += squares + delta * delta * n * share;
    n = total;
  }
};

//: section by_words
// What becomes of two accumulators, word by word: a choice between two objects would put them into memory.
template <typename A, typename F> __device__ __forceinline__ A by_words(const A& a, const A& b, F f) {
  static_assert(sizeof(A) % 4 == 0, "an accumulator is made of 32-bit words");
  unsigned word[sizeof(A) / 4], other[sizeof(A) / 4];
  memcpy(word, &a, sizeof(A));
  memcpy(other, &b, sizeof(A));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(A) / 4); ++i) word[i] = f(word[i], other[i]);
  A made;
  memcpy(&made, word, sizeof(A));
  return made;
}

//: section shuffle_xor needs by_words
// Exchanges a whole accumulator with the lane whose number differs in the bits of `mask`.
template <typename A> __device__ __forceinline__ A shuffle_xor(const A& mine, int mask) {
  return by_words(mine, mine, [&](unsigned word, unsigned) { return __shfl_xor_sync(0xffffffffu, word, mask); });
}

//: section merge_warp needs shuffle_xor by_words
// Merges the accumulators of a warp, or of each LANES lanes of it; every lane gets the same total.
template <int LANES = 32, typename A> __device__ __forceinline__ A merge_warp(A mine) {
#pragma unroll
  for (int mask = LANES / 2; mask > 0; mask >>= 1) {
    const A other = shuffle_xor(mine, mask);
    const bool lower = (threadIdx.x & mask) == 0;  // the same order of operands in both lanes
    const A second = by_words(other, mine, [&](unsigned theirs, unsigned own) { return lower ? theirs : own; });
    mine = by_words(mine, other, [&](unsigned own, unsigned theirs) { return lower ? own : theirs; });
    mine.merge(second);
  }
  return mine;
}

//: section merge_row needs merge_warp
// Merges the accumulators of the THREADS threads that share a row; every thread gets the total, in a fixed order.
template <int THREADS, typename A> __device__ __forceinline__ A merge_row(A mine) {
  constexpr int LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
  mine = merge_warp<LANES>(mine);
  if (WARPS == 1) return mine;
  __shared__ alignas(16) unsigned char storage[WARPS * sizeof(A)];
  A* const partial = reinterpret_cast<A*>(storage);
  __syncthreads();  // an earlier use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  return merge_warp<WARPS>(partial[threadIdx.x % WARPS]);
}

//: section merge_column
// Merges the accumulators of the SPLIT threads (threadIdx.y; a power of two) that share positions; every thread gets the totals.
template <int SPLIT, int WIDTH, int N, typename A> __device__ __forceinline__ void merge_column(A (&mine)[N]) {
  if (SPLIT == 1) return;
  constexpr int HALF = SPLIT > 1 ? SPLIT / 2 : 1, ROOM = 16384 / (HALF * WIDTH * static_cast<int>(sizeof(A)));
  constexpr int LANES = ROOM < 1 ? 1 : ROOM < N ? ROOM : N;  // merged at once
  __shared__ alignas(16) unsigned char storage[HALF * WIDTH * LANES * sizeof(A)];
  A* const theirs = reinterpret_cast<A*>(storage) + threadIdx.x;
#pragma unroll
  for (int first = 0; first < N; first += LANES) {
    for (int half = HALF; half > 0; half /= 2) {
      __syncthreads();  // what was there has been read
#pragma unroll
      for (int v = 0; v < LANES; ++v)
        if (threadIdx.y >= half && threadIdx.y < 2 * half) theirs[(v * HALF + threadIdx.y - half) * WIDTH] = mine[first + v];
      __syncthreads();
#pragma unroll
      for (int v = 0; v < LANES; ++v)
        if (threadIdx.y < half) mine[first + v].merge(theirs[(v * HALF + threadIdx.y) * WIDTH]);
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < LANES; ++v)
      if (threadIdx.y == 0) theirs[v * HALF * WIDTH] = mine[first + v];
    __syncthreads();
#pragma unroll
    for (int v = 0; v < LANES; ++v) mine[first + v] = theirs[v * HALF * WIDTH];
  }
}
template <int SPLIT, int WIDTH, typename A> __device__ __forceinline__ void merge_column(A& mine) {
  A one[1] = {mine};
  merge_column<SPLIT, WIDTH>(one);
  mine = one[0];
}

//: section ScanSum
struct ScanSum {
  template <typename T> static __device__ __forceinline__ T join(T before, T x) { return before + x; }
};

//: section ScanProduct
struct ScanProduct {
  template <typename T> static __device__ __forceinline__ T join(T before, T x) { return before * x; }
};

//: section ScanMax needs larger
struct ScanMax {
  template <typename T> static __device__ __forceinline__ T join(T before, T x) { return larger(before, x); }
};

//: section ScanMin needs smaller
struct ScanMin {
  template <typename T> static __device__ __forceinline__ T join(T before, T x) { return smaller(before, x); }
};

//: section ScanLogSumExp needs larger smaller
// log(exp(before) + exp(x)); two equal infinities are that infinity.
struct ScanLogSumExp {
  template <typename T> static __device__ __forceinline__ T join(T before, T x) {
    const T high = larger(before, x), low = smaller(before, x);
    return low == high && (low == INFINITY || low == -INFINITY) ? low : high + log1p(exp(low - high));
  }
};

//: section Carry
// What came before a chunk of a row.
template <typename Op, typename T> struct Carry {
  T value;
  __device__ __forceinline__ T lead() const { return value; }
  __device__ __forceinline__ T lead(T ahead) const { return Op::join(value, ahead); }  // of what is ahead of a thread in the chunk
  __device__ __forceinline__ T whole(T x) const { return x; }
  __device__ __forceinline__ void advance(T chunk) { value = Op::join(value, chunk); }
};

//: section CarriedSum joins Carry ScanSum
// A sum with what rounding took from it: over many chunks that would add up.
template <typename T> struct Carry<ScanSum, T> {
  T value, rest = 0;
  __device__ __forceinline__ T lead() const { return rest; }
  __device__ __forceinline__ T lead(T ahead) const { return rest + ahead; }
  __device__ __forceinline__ T whole(T x) const { return value + x; }
  __device__ __forceinline__ void advance(T chunk) {
    const T sum = value + chunk, added = sum - value;
    const T lost = (value - (sum - added)) + (chunk - added);  // NaN where the sum is not finite
    rest += lost == lost ? lost : T(0);
    value = sum;
  }
};

//: section scan_row needs Carry
// Scans a chunk of a row in place. Each of the row's THREADS threads holds STEPS runs of neighbouring elements in x; a chunk is the
// first run of every thread, then the second of every thread, and so on. `before` is what came before the chunk, and is brought forward.
template <typename Op, int THREADS, int STEPS, typename T, int N>
__device__ __forceinline__ void scan_row(T (&x)[N], Carry<Op, T>& before) {
  constexpr int RUN = N / STEPS, LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  T total[STEPS], ahead[STEPS];  // of the lanes up to this one; of what is in the chunk before this warp's run
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
#pragma unroll
    for (int i = 1; i < RUN; ++i) x[s * RUN + i] = Op::join(x[s * RUN + i - 1], x[s * RUN + i]);
    total[s] = x[s * RUN + RUN - 1];
#pragma unroll
    for (int reach = 1; reach < LANES; reach *= 2) {
      const T other = __shfl_up_sync(0xffffffffu, total[s], reach, LANES);
      if (lane >= reach) total[s] = Op::join(other, total[s]);
    }
  }
  T chunk = T();
  if (WARPS == 1) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      const T run = __shfl_sync(0xffffffffu, total[s], LANES - 1, LANES);
      ahead[s] = chunk;
      chunk = s == 0 ? run : Op::join(chunk, run);
    }
  } else {
    __shared__ T totals[STEPS * WARPS];
    __syncthreads();  // an earlier use of `totals` is over
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
      if (lane == LANES - 1) totals[s * WARPS + warp] = total[s];
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int w = 0; w < WARPS; ++w) {
        const T run = totals[s * WARPS + w];
        if (w == warp) ahead[s] = chunk;
        chunk = s == 0 && w == 0 ? run : Op::join(chunk, run);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const bool begins = s == 0 && warp == 0;  // nothing is ahead of this warp
    const T other = __shfl_up_sync(0xffffffffu, total[s], 1, LANES);
    const T mine = lane == 0 ? ahead[s] : begins ? other : Op::join(ahead[s], other);
    const T lead = begins && lane == 0 ? before.lead() : before.lead(mine);
#pragma unroll
    for (int i = 0; i < RUN; ++i) x[s * RUN + i] = before.whole(Op::join(lead, x[s * RUN + i]));
  }
  before.advance(chunk);
}

//: section scan_column needs Carry
// Scans a chunk of a column in place: N neighbouring elements in each of its SPLIT threads (threadIdx.y). `before` is what came
// before the chunk, and is brought forward.
template <typename Op, int SPLIT, int WIDTH, typename T, int N>
__device__ __forceinline__ void scan_column(T (&x)[N], Carry<Op, T>& before) {
#pragma unroll
  for (int i = 1; i < N; ++i) x[i] = Op::join(x[i - 1], x[i]);
  T chunk = x[N - 1], lead = before.lead();
  if (SPLIT > 1) {
    __shared__ T totals[SPLIT * WIDTH];
    __syncthreads();  // an earlier use of `totals` is over
    totals[threadIdx.y * WIDTH + threadIdx.x] = chunk;
    __syncthreads();
    chunk = totals[threadIdx.x];
#pragma unroll
    for (int part = 1; part < SPLIT; ++part) {
      if (part == threadIdx.y) lead = before.lead(chunk);
      chunk = Op::join(chunk, totals[part * WIDTH + threadIdx.x]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = before.whole(Op::join(lead, x[i]));
  before.advance(chunk);
}
