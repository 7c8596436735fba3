//: section LOG2_E
constexpr float LOG2_E = 1.4426950408889634f;

//: section least_waste
// Into how many slices to cut each of `copies` samples, so that blocks fill one to four waves of `seats` with least waste.
static long long least_waste(long long tiles, long long copies, long long seats, long long tiles_at_once) {
  long long best = 1, best_cost = -1;
  for (int waves = 1; waves <= 4; ++waves) {
    long long slices = waves * seats / copies;
    slices = slices < 1 ? 1 : slices < tiles ? slices : tiles;
    const long long rounds = (copies * slices + seats - 1) / seats;
    const long long cost = rounds * ((tiles + slices * tiles_at_once - 1) / (slices * tiles_at_once) + 1);
    if (best_cost < 0 || cost < best_cost) best = slices, best_cost = cost;
  }
  return best;
}

//: section meet
// Joins two lanes' accumulators.
template <class A>
__device__ __forceinline__ void meet(A& mine, const A& other) {
  mine.merge(other);
}

//: section meet_logsumexp joins meet LogSumExp needs LOG2_E exp2_fast
// As merge, with one fast exponential: both sums come from operands that are known to TF32 only.
__device__ __forceinline__ void meet(LogSumExp& mine, const LogSumExp& other) {
  const float shrink = mine.m == other.m ? 1.0f : exp2_fast(LOG2_E * -fabsf(mine.m - other.m));
  mine.s = mine.m < other.m ? mine.s * shrink + other.s : mine.s + other.s * shrink;
  mine.m = fmaxf(mine.m, other.m);
}

//: section round_two needs half
// Two numbers as they will be read from memory; one instruction rounds both.
template <class T>
__device__ __forceinline__ void round_two(float& a, float& b);
template <>
__device__ __forceinline__ void round_two<__half>(float& a, float& b) {
  const __half2 both = __floats2half2_rn(a, b);
  a = __low2float(both), b = __high2float(both);
}
template <>
__device__ __forceinline__ void round_two<__nv_bfloat16>(float& a, float& b) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
  a = __low2float(both), b = __high2float(both);
}

//: section Relative
// A sum of exponentials relative to e^m, where lanes that meet have the same m.
struct Relative {
  float m, s;
};
__device__ __forceinline__ void meet(Relative& mine, const Relative& other) { mine.s += other.s; }
__device__ __forceinline__ Relative shuffle_xor(const Relative& mine, int mask) {
  return {mine.m, __shfl_xor_sync(0xffffffffu, mine.s, mask)};
}

//: section keep_half needs meet shuffle_xor
// Lanes that differ in one bit of `mask` hold other channels of the same COUNT positions. A lane gives half of its
// positions away and keeps the other half, merged; returns the number of the first one kept.
template <int COUNT, class A, int SIZE>
__device__ __forceinline__ int keep_half(A (&total)[SIZE], int lane, int mask) {
  const bool upper = lane & mask;
#pragma unroll
  for (int k = 0; k < COUNT / 2; ++k) {
    A kept = total[k], given = total[k + COUNT / 2];
    if (upper) {  // not ?: of places, which would have to be in memory
      const A first = kept;
      kept = given, given = first;
    }
    meet(kept, shuffle_xor(given, mask));
    total[k] = kept;
  }
  return upper ? COUNT / 2 : 0;
}

//: section merge_partials
// The statistics of the group that channel c of sample n belongs to, merged from all slices in a fixed order.
template <int GROUP_CHANNELS, int CHANNELS, class A>
__device__ __forceinline__ A merge_partials(const A* __restrict__ partials, int n, int c, int slices) {
  const A* first = partials + (long long)n * slices * CHANNELS + c / GROUP_CHANNELS * GROUP_CHANNELS;
  A total = first[0];
  for (int k = 1; k < slices * GROUP_CHANNELS; ++k)
    total.merge(first[(long long)(k / GROUP_CHANNELS) * CHANNELS + k % GROUP_CHANNELS]);
  return total;
}

//: section rotate
// x[v] becomes x[(v + by) % N] where N is 4; one or two stay. Registers are chosen by selects: `by` differs from lane to lane.
template <int N, class T> __device__ __forceinline__ void rotate(T (&x)[N], int by) {
  if constexpr (N == 4) {
    const T first = x[0];
    x[0] = by & 1 ? x[1] : x[0], x[1] = by & 1 ? x[2] : x[1], x[2] = by & 1 ? x[3] : x[2], x[3] = by & 1 ? first : x[3];
    const T third = x[2], fourth = x[3];
    x[2] = by & 2 ? x[0] : third, x[0] = by & 2 ? third : x[0], x[3] = by & 2 ? x[1] : fourth, x[1] = by & 2 ? fourth : x[1];
  }
}
