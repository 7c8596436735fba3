// Accumulators, and how those of many threads become one.

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

//: section DoubleSum
// With what rounding took from it: a thread adds thousands of elements one after another, where PyTorch adds sums of sums.
struct DoubleSum {
  double s = 0.0, lost = 0.0;
  __device__ __forceinline__ void add(double x) {
    const double sum = s + x, added = sum - s;
    lost += (s - (sum - added)) + (x - added);  // NaN where the sum is not finite
    s = sum;
  }
  template <int N> __device__ __forceinline__ void add(const double (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) add(x[i]);
  }
  __device__ __forceinline__ void merge(const DoubleSum& other) {
    add(other.s);
    lost += other.lost;
  }
  __device__ __forceinline__ double result() const { return lost == lost ? s + lost : s; }
};

//: section IntegerProduct
struct IntegerProduct {
  unsigned long long p = 1;  // it wraps
  __device__ __forceinline__ void add(unsigned long long x) { p *= x; }
  template <int N> __device__ __forceinline__ void add(const unsigned long long (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) p *= x[i];
  }
  __device__ __forceinline__ void merge(const IntegerProduct& other) { p *= other.p; }
  __device__ __forceinline__ unsigned long long result() const { return p; }
};

//: section WideExtreme
// The largest or smallest, as `OP` says; `first` is beyond all.
template <typename T, T (*OP)(T, T), T (*first)()> struct WideExtreme {
  T m = first();
  __device__ __forceinline__ void add(T x) { m = OP(x, m); }
  template <int N> __device__ __forceinline__ void add(const T (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) add(x[i]);
  }
  __device__ __forceinline__ void merge(const WideExtreme& other) { m = OP(other.m, m); }
  __device__ __forceinline__ T result() const { return m; }
};

//: section DoubleMax defines DoubleMax larger_double lowest_double needs WideExtreme larger
__device__ __forceinline__ double larger_double(double a, double b) { return larger<double, double>(a, b); }
__device__ __forceinline__ double lowest_double() { return -INFINITY; }
using DoubleMax = WideExtreme<double, larger_double, lowest_double>;

//: section DoubleMin defines DoubleMin smaller_double highest_double needs WideExtreme smaller
__device__ __forceinline__ double smaller_double(double a, double b) { return smaller<double, double>(a, b); }
__device__ __forceinline__ double highest_double() { return INFINITY; }
using DoubleMin = WideExtreme<double, smaller_double, highest_double>;

//: section IntegerMax defines IntegerMax larger_integer lowest_integer needs WideExtreme
__device__ __forceinline__ long long larger_integer(long long a, long long b) { return a > b ? a : b; }
__device__ __forceinline__ long long lowest_integer() { return -0x7fffffffffffffffLL - 1; }
using IntegerMax = WideExtreme<long long, larger_integer, lowest_integer>;

//: section IntegerMin defines IntegerMin smaller_integer highest_integer needs WideExtreme
__device__ __forceinline__ long long smaller_integer(long long a, long long b) { return a < b ? a : b; }
__device__ __forceinline__ long long highest_integer() { return 0x7fffffffffffffffLL; }
using IntegerMin = WideExtreme<long long, smaller_integer, highest_integer>;

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

//: section FastLogSumExp needs LogSumExp exp_fast
using FastLogSumExp = LogSumExpBy<exp_fast>;

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
