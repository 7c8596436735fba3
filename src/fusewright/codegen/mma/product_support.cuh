//: section product needs barrier_arrive barrier_sync cp_async cp_async_commit cp_async_wait ldmatrix_x4 load_here_if to_tf32_even vector warpgroup_arrive warpgroup_commit warpgroup_hold warpgroup_mma_tf32_held warpgroup_operands warpgroup_registers warpgroup_wait warpgroup_wait_but_one
// Products of matrices in float32 on the tensor cores. Each number is the sum of two TF32 ones, and three of the four products of
// these parts are taken: the fourth lies below float32's last bit.
namespace product {

constexpr int STEP = 32, STAGES = $stages, COPIES = $copies;  // of the depth; steps of columns and of rows in shared memory
constexpr int ROW_PITCH = STEP + 4, ROW_COPY = 16 * ROW_PITCH;  // words of a row, and of a warp's rows
constexpr int LOADERS = $loaders;  // warpgroups that load
constexpr int BAND = $band;  // rows of tiles, of which neighbouring blocks take one column after the other

// What a block computes: 64 rows for each of GROUPS warpgroups, FRAGMENTS of 8 columns. BY_COLUMNS: the matrix, or the rows, lie so.
template <int GROUPS_, int FRAGMENTS_, bool BY_COLUMNS_, bool ROWS_BY_COLUMNS_> struct Tile {
  static constexpr int GROUPS = GROUPS_, FRAGMENTS = FRAGMENTS_, ROWS = 64 * GROUPS, COLUMNS = 8 * FRAGMENTS;
  static constexpr bool BY_COLUMNS = BY_COLUMNS_, ROWS_BY_COLUMNS = ROWS_BY_COLUMNS_;
  static constexpr int THREADS = 128 * (GROUPS + LOADERS);
  static constexpr int LOADING_REGISTERS = $loading_registers, MULTIPLYING_REGISTERS = $multiplying_registers;
  static constexpr int PLANE = 4 * COLUMNS + 4;  // words of four of the depth, no two of which begin in one bank
  static constexpr int PART = STEP / 4 * PLANE, STAGE = 2 * PART;  // of a step's high or low parts, and of both
  static constexpr int ROUND = 128 / (STEP / 4), ROUNDS = COLUMNS / ROUND;  // columns that a warpgroup loads together
  static constexpr int READY = 1, FREE = READY + GROUPS * STAGES, DONE = FREE + STAGES;  // barriers: of stages, and of all that multiply
  static constexpr int SHARED_BYTES = 4 * (STAGES * STAGE + COPIES * GROUPS * 4 * ROW_COPY);
  template <typename I> static __host__ __device__ __forceinline__ I tiles(I rows, I columns) {
    return (rows + ROWS - 1) / ROWS * ((columns + COLUMNS - 1) / COLUMNS);
  }
};

// Four numbers of a column, of which so many are `left`; zeros behind its end.
template <int VECTOR>
__device__ __forceinline__ void load_numbers(float (&to)[4], const float* __restrict__ from, bool real, int left, int apart) {
#pragma unroll
  for (int v = 0; v < 4; v += VECTOR) {
    float some[VECTOR];
    load_here_if<VECTOR>(real && v < left, from + v * apart, some);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) to[v + j] = some[j];
  }
}

// Each number as the sum of two TF32 ones: what the first lacks is in the second, `low` words on. What is not finite makes the
// second NaN, and so every sum that it is part of.
__device__ __forceinline__ void store_split(float* to, const float (&x)[4], int low) {
  uint4 high, rest;
  high = make_uint4(to_tf32_even(x[0]), to_tf32_even(x[1]), to_tf32_even(x[2]), to_tf32_even(x[3]));
  rest = make_uint4(to_tf32_even(x[0] - __uint_as_float(high.x)), to_tf32_even(x[1] - __uint_as_float(high.y)),
                    to_tf32_even(x[2] - __uint_as_float(high.z)), to_tf32_even(x[3] - __uint_as_float(high.w)));
  *reinterpret_cast<uint4*>(to) = high;
  *reinterpret_cast<uint4*>(to + low) = rest;
}

// One element by plain arithmetic, for sums that are not finite: there the two parts of a number do not add up to it.
__device__ __forceinline__ float plain_sum(const float* __restrict__ a, int a_step, const float* __restrict__ b, int b_step, int first, int last) {
  float sum = 0.0f;
#pragma unroll 1
  for (int k = first; k < last; ++k) sum = fmaf(a[(long long)k * a_step], b[(long long)k * b_step], sum);
  return sum;
}

struct All {
  __device__ __forceinline__ bool operator()(int, int) const { return true; }
};

// Tile `tile` of the product of `input` and `weight`, whose rows (or the columns of which) are so far apart; SPLITS blocks share the depth
// of it. Each thread hands its sums to `epilogue`: at rows r and r + 8, and columns c + 8 f and the next one, of fragment f. Of a tile of
// which the epilogue takes nothing, one that is not `wanted` from its first row and column on, only the first step is multiplied.
template <class T, int MOVES, int VECTOR, int SPLITS, class Epilogue, class Wanted = All>
__device__ __forceinline__ void multiply(const float* __restrict__ input, int input_pitch, const float* __restrict__ weight, int weight_pitch,
                                         int rows, int depth, int columns, int tile, float* shared, int& any_odd, Epilogue epilogue,
                                         Wanted wanted = Wanted()) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quartet = __shfl_sync(0xffffffffu, warp / 4, 0);
  const int tiles_n = (rows + T::ROWS - 1) / T::ROWS, tiles_c = (columns + T::COLUMNS - 1) / T::COLUMNS;
  const int band = tile / (BAND * tiles_c) * BAND, high = min(tiles_n - band, BAND), place = tile % (BAND * tiles_c);
  const int row0 = (band + place % high) * T::ROWS, column0 = place / high * T::COLUMNS;
  const int steps = (depth + STEP - 1) / STEP, first = steps * int(blockIdx.y) / SPLITS;
  const int last = wanted(row0, column0) ? steps * (int(blockIdx.y) + 1) / SPLITS : first + 1;
  if (threadIdx.x == 0) any_odd = 0;
  __syncthreads();

  // The last warps split the columns, each four of them every LOADERS-th step; a thread has four numbers of a column in a round. Threads
  // side by side read what lies side by side: the depth of a column, or neighbouring columns.
  if (quartet >= T::GROUPS) {
    warpgroup_registers<T::LOADING_REGISTERS, false>();
    const int thread = threadIdx.x % 128;
    const int load_column = T::BY_COLUMNS ? thread % T::ROUND : thread / (STEP / 4);
    const int load_four = T::BY_COLUMNS ? thread / T::ROUND : thread % (STEP / 4);
    const int columns_left = columns - column0 - load_column;
    float held[T::ROUNDS][4];
    auto load = [&](int step) {
      const int k = step * STEP + 4 * load_four, left = step < last ? depth - k : 0;
      if constexpr (T::BY_COLUMNS) {
        const float* const from = weight + (long long)k * weight_pitch + column0 + load_column;
#pragma unroll
        for (int r = 0; r < T::ROUNDS; ++r) load_numbers<1>(held[r], from + r * T::ROUND, r * T::ROUND < columns_left, left, weight_pitch);
      } else {
        const float* const from = weight + (long long)(column0 + load_column) * weight_pitch + k;
#pragma unroll
        for (int r = 0; r < T::ROUNDS; ++r)
          load_numbers<VECTOR>(held[r], from + (long long)(r * T::ROUND) * weight_pitch, r * T::ROUND < columns_left, left, 1);
      }
    };
    int s = quartet - T::GROUPS;
    load(first + s);
#pragma unroll 1
    for (int step = first + s; step < last; step += LOADERS) {
      if (step >= first + STAGES) barrier_sync(T::FREE + s, 128 * (T::GROUPS + 1));
      float* const to = shared + s * T::STAGE + load_four * T::PLANE + 4 * load_column;
#pragma unroll
      for (int r = 0; r < T::ROUNDS; ++r) store_split(to + 4 * r * T::ROUND, held[r], T::PART);
      warpgroup_operands();
#pragma unroll
      for (int q = 0; q < T::GROUPS; ++q) barrier_arrive(T::READY + q * STAGES + s, 256);
      load(step + LOADERS);  // behind the fence, which would wait for it
      s = (s + LOADERS) % STAGES;
    }
    return;
  }

  warpgroup_registers<T::MULTIPLYING_REGISTERS, true>();
  // Each warp copies its own 16 rows, COPIES steps ahead, and reads them from there: nobody else waits for them.
  float* const copied = shared + STAGES * T::STAGE + warp * COPIES * ROW_COPY;
  const int copy_row = T::ROWS_BY_COLUMNS ? lane % 16 : lane / (STEP / VECTOR);
  const int copy_k = T::ROWS_BY_COLUMNS ? lane / 16 : lane % (STEP / VECTOR) * VECTOR;
  const int from_row = row0 + warp * 16 + copy_row, rows_left = rows - from_row;
  float* const copy_to = copied + copy_row * ROW_PITCH + copy_k;
  const float* const copy_from = T::ROWS_BY_COLUMNS ? input + (long long)copy_k * input_pitch + from_row : input + (long long)from_row * input_pitch + copy_k;
  auto copy = [&](int step, int to) {
    if (step < last) {
      const int left = depth - step * STEP - copy_k;
      if constexpr (T::ROWS_BY_COLUMNS) {
#pragma unroll
        for (int k = 0; k < STEP; k += 2)
          cp_async<4>(copy_to + to * ROW_COPY + k, copy_from + (long long)(step * STEP + k) * input_pitch, rows_left > 0 && k < left);
      } else {
#pragma unroll
        for (int r = 0; r < 16; r += VECTOR)
          cp_async<4 * VECTOR>(copy_to + to * ROW_COPY + r * ROW_PITCH, copy_from + step * STEP + (long long)r * input_pitch, left > 0 && r < rows_left);
      }
    }
    cp_async_commit();
  };
#pragma unroll
  for (int c = 0; c < COPIES; ++c) copy(first + c, c);
  // The next step's rows, and what their high parts lack.
  float row[STEP / 8][4];
  uint32_t high_part[STEP / 8][4], low_part[STEP / 8][4];
  int copied_to = 0;
  auto next_rows = [&](int step) {
    cp_async_wait<COPIES - 1>();
    __syncwarp();
    const float* const from = copied + copied_to * ROW_COPY + lane % 16 * ROW_PITCH + lane / 16 * 4;
#pragma unroll
    for (int k = 0; k < STEP / 8; ++k) {
      uint32_t bits[4];
      ldmatrix_x4(bits, from + 8 * k);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row[k][i] = __uint_as_float(bits[i]);
        low_part[k][i] = to_tf32_even(row[k][i] - __uint_as_float(to_tf32_even(row[k][i])));
      }
    }
    __syncwarp();
    copy(step + COPIES, copied_to);
    copied_to = copied_to == COPIES - 1 ? 0 : copied_to + 1;
  };
  next_rows(first);

  float sum[T::FRAGMENTS][4], acc[1][T::FRAGMENTS][4];
#pragma unroll
  for (int i = 0; i < T::FRAGMENTS * 4; ++i) sum[i / 4][i % 4] = acc[0][i / 4][i % 4] = 0.0f;
  auto multiply_step = [&](const uint32_t (&rows_part)[STEP / 8][4], const float* columns_part) {
#pragma unroll
    for (int k = 0; k < STEP / 8; ++k)
      warpgroup_mma_tf32_held<T::FRAGMENTS>(acc[0], rows_part[k], columns_part + 2 * k * T::PLANE, T::PLANE, 32);
  };
  // Tensor cores cut off what lies below an accumulator's last bit: it is moved to plain sums every MOVES steps. Every other
  // warpgroup does so one step later, so that while some move their sums the tensor cores have the others' products.
  int s = 0, step = first;
  while (step < last) {
    const int end = min(step + (step == first && quartet % 2 == 1 ? 1 : MOVES), last);
    warpgroup_arrive(acc);
    int before = s;
#pragma unroll 1
    for (bool begun = false; step < end; ++step, begun = true) {
      const float* const stage = shared + s * T::STAGE;
      barrier_sync(T::READY + quartet * STAGES + s, 256);
      warpgroup_hold(low_part);
      multiply_step(low_part, stage);  // the small products first: the sum that they are cut off from is small then
      warpgroup_commit();
      if (begun) {
        warpgroup_wait_but_one();  // the high parts of the step before are no longer read, nor is its stage
        if (step - 1 + STAGES < last) barrier_arrive(T::FREE + before, 128 * (T::GROUPS + 1));
      }
#pragma unroll
      for (int i = 0; i < STEP / 2; ++i) high_part[i / 4][i % 4] = to_tf32_even(row[i / 4][i % 4]);
      warpgroup_hold(high_part);
      multiply_step(high_part, stage + T::PART);
      multiply_step(high_part, stage);
      warpgroup_commit();
      warpgroup_wait_but_one();  // the low parts are no longer read: the next ones are made while the high ones are multiplied
      next_rows(step + 1);
      before = s, s = s == STAGES - 1 ? 0 : s + 1;
    }
    warpgroup_wait(acc);
    if (step - 1 + STAGES < last) barrier_arrive(T::FREE + before, 128 * (T::GROUPS + 1));
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i) sum[i / 4][i % 4] += acc[0][i / 4][i % 4], acc[0][i / 4][i % 4] = 0.0f;
  }

  const int lane_row = warp * 16 + lane / 4, lane_column = lane % 4 * 2;
  bool odd = false;
#pragma unroll
  for (int i = 0; i < T::FRAGMENTS * 4; ++i) odd |= !(fabsf(sum[i / 4][i % 4]) < INFINITY);
  if (odd) atomicOr(&any_odd, 1);
  barrier_sync(T::DONE, T::GROUPS * 128);
  if (any_odd) {
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i)
      shared[(lane_row + i % 4 / 2 * 8) * T::COLUMNS + i / 4 * 8 + lane_column + i % 2] = sum[i / 4][i % 4];
    barrier_sync(T::DONE, T::GROUPS * 128);
    for (int i = threadIdx.x; i < T::ROWS * T::COLUMNS; i += T::GROUPS * 128) {
      const int n = row0 + i / T::COLUMNS, c = column0 + i % T::COLUMNS;
      if (!(fabsf(shared[i]) < INFINITY) && n < rows && c < columns)
        shared[i] = plain_sum(T::ROWS_BY_COLUMNS ? input + n : input + (long long)n * input_pitch, T::ROWS_BY_COLUMNS ? input_pitch : 1,
                              T::BY_COLUMNS ? weight + c : weight + (long long)c * weight_pitch, T::BY_COLUMNS ? weight_pitch : 1,
                              first * STEP, min(last * STEP, depth));
    }
    barrier_sync(T::DONE, T::GROUPS * 128);
#pragma unroll
    for (int i = 0; i < T::FRAGMENTS * 4; ++i)
      sum[i / 4][i % 4] = shared[(lane_row + i % 4 / 2 * 8) * T::COLUMNS + i / 4 * 8 + lane_column + i % 2];
  }
  epilogue(sum, row0 + lane_row, column0 + lane_column);
}

}  // namespace product
