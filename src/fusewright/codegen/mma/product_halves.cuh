// The same products at twice the rate, by fp16: a number times a power of two is the sum of two fp16 ones, 22 bits, and three of the four
// products of these parts are taken. Each step of the depth has scales of its own: one for 16 rows, one for all columns of the tile. With
// u = 2^-24 and sums S of magnitudes, a sum over K of the depth is off by at most (24 + K / 32) u S, and by what numbers lack that are
// tiny beside the largest of their step: `lost`. Where K u S might not cover both, |sum| standing for S, an element is computed again in
// plain float32; where that is the case for many, the tile is computed by TF32.
namespace product {

constexpr int MOST_AGAIN = 64;  // elements of a tile that are computed again by plain arithmetic
constexpr float UNIT = 0x1p-24f;  // of rounding, in float32

template <class T> struct Halves {
  static constexpr int STAGES = 4, COPIES = 5;  // steps of columns and of rows in shared memory
  static constexpr int PLANE = 4 * T::COLUMNS + 8;  // words of eight of the depth, two to a word
  static constexpr int PART = STEP / 8 * PLANE, STAGE = 2 * PART;
  static constexpr int ROUND = 128 / (STEP / 8), ROUNDS = T::COLUMNS / ROUND;  // columns that four warps load together
  static constexpr int ROW_PITCH = STEP + 16, ROW_COPY = 16 * ROW_PITCH;  // words of a row, and of a warp's rows
  static constexpr int ROWS_AT = STAGES * STAGE, SCALES = ROWS_AT + COPIES * T::GROUPS * 4 * ROW_COPY;  // words before rows, and before scales
  static constexpr int LARGEST = SCALES + STAGES;  // before the largest numbers, twice those of each warp that loads
  // Barriers: of stages, of each four warps that load, of all.
  static constexpr int READY = 1, FREE = READY + T::GROUPS * STAGES, LOADING = FREE + STAGES, DONE = LOADING + LOADERS;
  static_assert(4 * (LARGEST + 8 * LOADERS) <= T::SHARED_BYTES, "no more shared memory than TF32 takes");
};

// Powers of two: what brings the largest magnitude of a step to 2^14 or more, below 2^15; and back, or 0 where all numbers are 0.
struct Scale {
  float there, back;
};
__device__ __forceinline__ Scale scale_of(uint32_t largest) {
  const int exponent = min(268 - int(largest >> 23), 253);
  return {__uint_as_float(exponent << 23), largest == 0 ? 0.0f : __uint_as_float((254 - exponent) << 23)};
}

// Two numbers as fp16, and what these lack as fp16.
__device__ __forceinline__ void split_halves(float x, float y, uint32_t& high, uint32_t& low) {
  const __half2 near = __floats2half2_rn(x, y);
  const float2 nearest = __half22float2(near);
  const __half2 rest = __floats2half2_rn(x - nearest.x, y - nearest.y);
  high = *reinterpret_cast<const uint32_t*>(&near), low = *reinterpret_cast<const uint32_t*>(&rest);
}

// As `multiply`. False: nothing was handed to the epilogue, and the tile wants TF32's range.
template <class T, int VECTOR, int SPLITS, class Epilogue, class Wanted = All>
__device__ __forceinline__ bool multiply_halves(const float* __restrict__ input, int input_pitch, const float* __restrict__ weight,
                                                int weight_pitch, int rows, int depth, int columns, Corner corner, float* shared, int& any_odd,
                                                Epilogue epilogue, Wanted wanted = Wanted()) {
  using H = Halves<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quartet = __shfl_sync(0xffffffffu, warp / 4, 0);
  const int row0 = corner.row, column0 = corner.column;
  const int steps = (depth + STEP - 1) / STEP, first = steps * int(blockIdx.y) / SPLITS;
  const bool is_wanted = wanted(row0, column0);
  const int last = is_wanted ? steps * (int(blockIdx.y) + 1) / SPLITS : first + 1;
  uint32_t* const words = reinterpret_cast<uint32_t*>(shared);
  if (threadIdx.x == 0) any_odd = 0;
  __syncthreads();

  // All meet here once the tile is multiplied: is it done, but for a few elements?
  auto is_done = [&] {
    barrier_sync(H::DONE, T::THREADS);
    const bool done = any_odd <= MOST_AGAIN;
    barrier_sync(H::DONE, T::THREADS);
    return done;
  };
  // The last warps split the columns, each four of them every LOADERS-th step; a thread has eight numbers of a column in a round.
  if (quartet >= T::GROUPS) {
    warpgroup_registers<T::LOADING_REGISTERS, false>();
    const int thread = threadIdx.x % 128, loader = quartet - T::GROUPS;
    const int load_column = T::BY_COLUMNS ? thread % H::ROUND : thread / (STEP / 8);
    const int load_eight = T::BY_COLUMNS ? thread / H::ROUND : thread % (STEP / 8);
    const int columns_left = columns % T::COLUMNS == 0 ? T::COLUMNS : columns - column0 - load_column;
    float held[H::ROUNDS][8];
    auto load = [&](int step) {
      const int k = min(step, last - 1) * STEP + 8 * load_eight, left = depth % STEP == 0 ? STEP : depth - k;
      const float* const from = weight + (T::BY_COLUMNS ? (long long)k * weight_pitch + column0 + load_column
                                                        : (long long)(column0 + load_column) * weight_pitch + k);
#pragma unroll
      for (int r = 0; r < H::ROUNDS; ++r) {
        const bool real = r * H::ROUND < columns_left;
        if constexpr (T::BY_COLUMNS)
          load_numbers<1>(held[r], from + r * H::ROUND, real, left, weight_pitch);
        else
          load_numbers<VECTOR>(held[r], from + (long long)(r * H::ROUND) * weight_pitch, real, left, 1);
      }
    };
    int s = loader, turn = 0;
    load(first + s);
#pragma unroll 1
    for (int step = first + s; step < last; step += LOADERS, turn ^= 1) {
      float most[8] = {};
#pragma unroll
      for (int i = 0; i < H::ROUNDS * 8; ++i) most[i % 8] = fmaxf(most[i % 8], fabsf(held[i / 8][i % 8]));
#pragma unroll
      for (int i = 4; i > 0; i /= 2)
#pragma unroll
        for (int j = 0; j < i; ++j) most[j] = fmaxf(most[j], most[j + i]);
      const uint32_t of_warp = warp_largest(__float_as_uint(most[0]));
      uint32_t* const largest = words + H::LARGEST + 8 * loader + 4 * turn;  // who is late still reads the other
      if (lane == 0) largest[warp % 4] = of_warp;
      if (step >= first + H::STAGES) barrier_sync(H::FREE + s, 128 * (T::GROUPS + 1));
      barrier_sync(H::LOADING + loader, 128);
      const uint4 all = *reinterpret_cast<const uint4*>(largest);
      const Scale scale = scale_of(max(max(all.x, all.y), max(all.z, all.w)));
      if (thread == 0) shared[H::SCALES + s] = scale.back;
      // Threads that multiply hold four of the depth that lie side by side as the tensor cores' 2t, 2t + 1, 2t + 8 and 2t + 9.
      uint32_t* const to = words + s * H::STAGE + load_eight / 2 * 2 * H::PLANE + 4 * load_column + load_eight % 2 * 2;
#pragma unroll
      for (int r = 0; r < H::ROUNDS; ++r)
#pragma unroll
        for (int two = 0; two < 2; ++two) {
          const float(&x)[8] = held[r];
          uint2 high_part, low_part;
          split_halves(x[2 * two] * scale.there, x[2 * two + 1] * scale.there, high_part.x, low_part.x);
          split_halves(x[2 * two + 4] * scale.there, x[2 * two + 5] * scale.there, high_part.y, low_part.y);
          uint32_t* const at = to + 4 * r * H::ROUND + two * H::PLANE;
          *reinterpret_cast<uint2*>(at) = high_part;
          *reinterpret_cast<uint2*>(at + H::PART) = low_part;
        }
      warpgroup_operands();
#pragma unroll
      for (int q = 0; q < T::GROUPS; ++q) barrier_arrive(H::READY + q * H::STAGES + s, 256);
      load(step + LOADERS);  // behind the fence, which would wait for it
      s = (s + LOADERS) % H::STAGES;
    }
    return is_done();
  }

  warpgroup_registers<T::MULTIPLYING_REGISTERS, true>();
  // Each warp copies its own 16 rows, COPIES steps ahead, and splits them in registers: nobody else waits for them.
  float* const copied = shared + H::ROWS_AT + warp * H::COPIES * H::ROW_COPY;
  const int copy_row = T::ROWS_BY_COLUMNS ? lane % 16 : lane / (STEP / VECTOR);
  const int copy_k = T::ROWS_BY_COLUMNS ? lane / 16 : lane % (STEP / VECTOR) * VECTOR;
  const int from_row = row0 + warp * 16 + copy_row, rows_left = rows - from_row;
  float* const copy_to = copied + copy_row * H::ROW_PITCH + copy_k;
  const float* const copy_from = T::ROWS_BY_COLUMNS ? input + (long long)copy_k * input_pitch + from_row : input + (long long)from_row * input_pitch + copy_k;
  auto copy = [&](int step, int to) {
    if (step < last) {
      const int left = depth - step * STEP - copy_k;
      if constexpr (T::ROWS_BY_COLUMNS) {
#pragma unroll
        for (int k = 0; k < STEP; k += 2)
          cp_async<4>(copy_to + to * H::ROW_COPY + k, copy_from + (long long)(step * STEP + k) * input_pitch, rows_left > 0 && k < left);
      } else {
#pragma unroll
        for (int r = 0; r < 16; r += VECTOR)
          cp_async<4 * VECTOR>(copy_to + to * H::ROW_COPY + r * H::ROW_PITCH, copy_from + step * STEP + (long long)r * input_pitch,
                               left > 0 && r < rows_left);
      }
    }
    cp_async_commit();
  };
#pragma unroll
  for (int c = 0; c < H::COPIES; ++c) copy(first + c, c);
  uint32_t high_part[2][STEP / 16][4], low_part[2][STEP / 16][4];
  float row_most[2] = {0.0f, 0.0f}, back = 0.0f;
  int copied_to = 0;
  auto next_rows = [&](int step, uint32_t (&high)[STEP / 16][4], uint32_t (&low)[STEP / 16][4]) {
    cp_async_wait<H::COPIES - 1>();
    __syncwarp();
    const float* const from = copied + copied_to * H::ROW_COPY + lane / 4 * H::ROW_PITCH + lane % 4 * 4;
    float raw[STEP / 16 * 2][4], most[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < STEP / 16 * 2; ++i) {
      const float4 four = *reinterpret_cast<const float4*>(from + i % 2 * 8 * H::ROW_PITCH + i / 2 * 16);
      raw[i][0] = four.x, raw[i][1] = four.y, raw[i][2] = four.z, raw[i][3] = four.w;
#pragma unroll
      for (int j = 0; j < 4; ++j) most[i % 2] = fmaxf(most[i % 2], fabsf(raw[i][j]));
    }
    __syncwarp();
    copy(step + H::COPIES, copied_to);
    copied_to = copied_to == H::COPIES - 1 ? 0 : copied_to + 1;
    row_most[0] = fmaxf(row_most[0], most[0]), row_most[1] = fmaxf(row_most[1], most[1]);
    const Scale scale = scale_of(warp_largest(__float_as_uint(fmaxf(most[0], most[1]))));
    back = scale.back;
#pragma unroll
    for (int i = 0; i < STEP / 16 * 4; ++i) {
      const float(&four)[4] = raw[i / 4 * 2 + i % 2];
      const int two = i % 4 / 2 * 2;
      split_halves(four[two] * scale.there, four[two + 1] * scale.there, high[i / 4][i % 4], low[i / 4][i % 4]);
    }
  };
  float sum[T::FRAGMENTS][4], acc[1][T::FRAGMENTS][4], lost = 0.0f;
#pragma unroll
  for (int i = 0; i < T::FRAGMENTS * 4; ++i) sum[i / 4][i % 4] = acc[0][i / 4][i % 4] = 0.0f;
  int s = 0;
  auto one_step = [&](int step, uint32_t (&high)[STEP / 16][4], uint32_t (&low)[STEP / 16][4], uint32_t (&next_high)[STEP / 16][4],
                      uint32_t (&next_low)[STEP / 16][4]) {
    const uint32_t* const stage = words + s * H::STAGE;
    const float of_rows = back;
    barrier_sync(H::READY + quartet * H::STAGES + s, 256);
    const float of_columns = shared[H::SCALES + s];
    warpgroup_arrive(acc);
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) {  // the small products first: the sum that they are cut off from is small then
      warpgroup_mma_f16_held<T::FRAGMENTS>(acc[0], low[k], stage + 2 * k * H::PLANE, H::PLANE, 32, k > 0);
      warpgroup_mma_f16_held<T::FRAGMENTS>(acc[0], high[k], stage + H::PART + 2 * k * H::PLANE, H::PLANE, 32, true);
    }
#pragma unroll
    for (int k = 0; k < STEP / 16; ++k) warpgroup_mma_f16_held<T::FRAGMENTS>(acc[0], high[k], stage + 2 * k * H::PLANE, H::PLANE, 32, true);
    warpgroup_commit();
    next_rows(step + 1, next_high, next_low);
    warpgroup_hold(next_high, next_low);
    warpgroup_wait(acc);
    if (step + H::STAGES < last) barrier_arrive(H::FREE + s, 128 * (T::GROUPS + 1));
    const float factor = of_rows * of_columns;
    lost += of_rows == 0.0f || of_columns == 0.0f ? 0.0f : fmaxf(factor, 0x1p-100f);
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i) sum[i / 4][i % 4] = fmaf(acc[0][i / 4][i % 4], factor, sum[i / 4][i % 4]);
    s = s == H::STAGES - 1 ? 0 : s + 1;
  };
  next_rows(first, high_part[0], low_part[0]);
  warpgroup_hold(high_part[0], low_part[0]);
#pragma unroll 1
  for (int step = first; step < last; step += 2) {
    one_step(step, high_part[0], low_part[0], high_part[1], low_part[1]);
    if (step + 1 < last) one_step(step + 1, high_part[1], low_part[1], high_part[0], low_part[0]);
  }

  // A tiny number is off by 2^-25 of its scale at most, so a step of 32 by 2^-4 of both scales.
  const int lane_row = warp * 16 + lane / 4, lane_column = lane % 4 * 2, length = min(last * STEP, depth) - first * STEP;
  const float spare = (length - 24 - length / STEP) * UNIT;
  int odd = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row_most[r] = fmaxf(row_most[r], __shfl_xor_sync(0xffffffffu, row_most[r], 1));
    row_most[r] = fmaxf(row_most[r], __shfl_xor_sync(0xffffffffu, row_most[r], 2));
    const float least = row_most[r] == 0.0f ? 0.0f : 0x1p-4f * lost;  // a row of zeros lacks nothing
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 2; ++i) {
      float& one = sum[i / 2][2 * r + i % 2];
      if (!is_wanted || (fabsf(one) * spare >= least && fabsf(one) < INFINITY)) continue;
      if (row0 + lane_row + 8 * r < rows && column0 + lane_column + i / 2 * 8 + i % 2 < columns) ++odd;
      one = NAN;
    }
  }
  if (odd) atomicAdd(&any_odd, odd);
  if (!is_done()) return false;
  if (any_odd > 0) {
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i)
      shared[(lane_row + i % 4 / 2 * 8) * T::COLUMNS + i / 4 * 8 + lane_column + i % 2] = sum[i / 4][i % 4];
    barrier_sync(H::DONE, T::GROUPS * 128);
    // A warp for an element: its lanes share the depth, and add up in a fixed order.
    for (int i = warp * 32; i < T::ROWS * T::COLUMNS; i += T::GROUPS * 128) {
      const int n = row0 + i / T::COLUMNS, c = column0 + (i + lane) % T::COLUMNS;
      uint32_t some = __ballot_sync(0xffffffffu, isnan(shared[i + lane]) && n < rows && c < columns);
      while (some != 0) {
        const int which = __ffs(some) - 1, of = column0 + (i + which) % T::COLUMNS;
        some &= some - 1;
        const float* const a = T::ROWS_BY_COLUMNS ? input + n : input + (long long)n * input_pitch;
        const float* const b = T::BY_COLUMNS ? weight + of : weight + (long long)of * weight_pitch;
        float one = 0.0f;
#pragma unroll 8
        for (int k = first * STEP + lane; k < min(last * STEP, depth); k += 32)
          one = fmaf(a[(long long)k * (T::ROWS_BY_COLUMNS ? input_pitch : 1)], b[(long long)k * (T::BY_COLUMNS ? weight_pitch : 1)], one);
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) one += __shfl_xor_sync(0xffffffffu, one, mask);
        if (lane == which) shared[i + lane] = one;
      }
    }
    barrier_sync(H::DONE, T::GROUPS * 128);
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i)
      sum[i / 4][i % 4] = shared[(lane_row + i % 4 / 2 * 8) * T::COLUMNS + i / 4 * 8 + lane_column + i % 2];
  }
  epilogue(sum, row0 + lane_row, column0 + lane_column);
  return true;
}

}  // namespace product
