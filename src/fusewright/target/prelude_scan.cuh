// Scans: what joins two neighbours, and how a block scans a row or a column.

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
