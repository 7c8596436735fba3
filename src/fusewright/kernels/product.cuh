$comment
namespace ${name}_detail {

$constants

// Four numbers of a column, of which so many are `left`; zeros behind its end.
template <int VECTOR>
__device__ __forceinline__ void load_numbers(float (&to)[4], const float* __restrict__ from, bool real, int left, int apart) {
#pragma unroll
  for (int v = 0; v < 4; v += VECTOR) {
    float some[VECTOR];
    load_if<VECTOR, true>(real && v < left, from + v * apart, some);
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
__device__ __forceinline__ float plain_sum(const float* __restrict__ input, const float* __restrict__ weight, int n, int c,
                                           int rows, int depth, int columns, int first, int last$sum_parameters) {
  float sum = 0.0f;
#pragma unroll 1
  for (int k = first; k < last; ++k) sum = fmaf($input_element, $weight_element, sum);
  return sum;
}

template <int VECTOR, int SPLITS>
__global__ void __launch_bounds__(THREADS, 1)
kernel($parameters) {
  extern __shared__ __align__(128) float shared[];
  __shared__ int any_odd;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quartet = __shfl_sync(0xffffffffu, warp / 4, 0);
$sizes
  // Neighbouring blocks share rows and columns: they take BAND rows of tiles, one column of these after the other.
  const int tiles_n = (rows + TILE_ROWS - 1) / TILE_ROWS, tiles_c = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
$matrix
  const int band = tile / (BAND * tiles_c) * BAND, high = min(tiles_n - band, BAND), place = tile % (BAND * tiles_c);
  const int row0 = (band + place % high) * TILE_ROWS, column0 = place / high * TILE_COLUMNS;
  const int steps = (depth + STEP - 1) / STEP, first = steps * int(blockIdx.y) / SPLITS, last = steps * (int(blockIdx.y) + 1) / SPLITS;
  if (threadIdx.x == 0) any_odd = 0;
  __syncthreads();

  // The last warps split the columns, each four of them every LOADERS-th step; a thread has four numbers of a column in a round.
  if (quartet >= QUARTETS) {
    warpgroup_registers<LOADING_REGISTERS, false>();
    const int thread = threadIdx.x % 128;
$places
    float held[COLUMN_ROUNDS][4];
    auto load = [&](int step) {
$loads
    };
    int s = quartet - QUARTETS;
    load(first + s);
#pragma unroll 1
    for (int step = first + s; step < last; step += LOADERS) {
      if (step >= first + STAGES) barrier_sync(FREE + s, 128 * (QUARTETS + 1));
      float* const to = shared + s * STAGE + load_four * COLUMN_PLANE + 4 * load_column;
#pragma unroll
      for (int r = 0; r < COLUMN_ROUNDS; ++r) store_split(to + 4 * r * ROUND, held[r], COLUMN_STAGE);
      warpgroup_operands();
#pragma unroll
      for (int q = 0; q < QUARTETS; ++q) barrier_arrive(READY + q * STAGES + s, 256);
      load(step + LOADERS);  // behind the fence, which would wait for it
      s = (s + LOADERS) % STAGES;
    }
    return;
  }

  warpgroup_registers<MULTIPLYING_REGISTERS, true>();
$setup
  // Each warp copies its own 16 rows, COPIES steps ahead, and reads them from there: nobody else waits for them.
  float* const copied = shared + STAGES * STAGE + warp * COPIES * ROW_COPY;
$copy_place
  auto copy = [&](int step, int to) {
    if (step < last) {
$copy
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

  float sum[FRAGMENTS][4], acc[1][FRAGMENTS][4];
#pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; ++i) sum[i / 4][i % 4] = acc[0][i / 4][i % 4] = 0.0f;
  auto multiply = [&](const uint32_t (&rows_part)[STEP / 8][4], const float* columns_part) {
#pragma unroll
    for (int k = 0; k < STEP / 8; ++k)
      warpgroup_mma_tf32_held<FRAGMENTS>(acc[0], rows_part[k], columns_part + 2 * k * COLUMN_PLANE, COLUMN_PLANE, 32);
  };
  // Tensor cores cut off what lies below an accumulator's last bit: it is moved to plain sums every MOVES steps. Every other
  // four warps do so one step later, so that while some move their sums the tensor cores have the others' products.
  int s = 0, step = first;
  while (step < last) {
    const int end = min(step + (step == first && quartet % 2 == 1 ? 1 : MOVES), last);
    warpgroup_arrive(acc);
    int before = s;
#pragma unroll 1
    for (bool begun = false; step < end; ++step, begun = true) {
      const float* const stage = shared + s * STAGE;
      barrier_sync(READY + quartet * STAGES + s, 256);
      warpgroup_hold(low_part);
      multiply(low_part, stage);  // the small products first: the sum that they are cut off from is small then
      warpgroup_commit();
      if (begun) {
        warpgroup_wait_but_one();  // the high parts of the step before are no longer read, nor is its stage
        if (step - 1 + STAGES < last) barrier_arrive(FREE + before, 128 * (QUARTETS + 1));
      }
#pragma unroll
      for (int i = 0; i < STEP / 2; ++i) high_part[i / 4][i % 4] = to_tf32_even(row[i / 4][i % 4]);
      warpgroup_hold(high_part);
      multiply(high_part, stage + COLUMN_STAGE);
      multiply(high_part, stage);
      warpgroup_commit();
      warpgroup_wait_but_one();  // the low parts are no longer read: the next ones are made while the high ones are multiplied
      next_rows(step + 1);
      before = s, s = s == STAGES - 1 ? 0 : s + 1;
    }
    warpgroup_wait(acc);
    if (step - 1 + STAGES < last) barrier_arrive(FREE + before, 128 * (QUARTETS + 1));
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; ++i) sum[i / 4][i % 4] += acc[0][i / 4][i % 4], acc[0][i / 4][i % 4] = 0.0f;
  }

  const int group = lane / 4, quad = lane % 4;  // a lane holds rows group and group + 8 of its warp's 16, at columns 2 quad and 2 quad + 1
  const int lane_row = warp * 16 + group, lane_column = 2 * quad;
  bool odd = false;
#pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; ++i) odd |= !(fabsf(sum[i / 4][i % 4]) < INFINITY);
  if (odd) atomicOr(&any_odd, 1);
  barrier_sync(DONE, QUARTETS * 128);
  if (any_odd) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; ++i)
      shared[(lane_row + i % 4 / 2 * 8) * TILE_COLUMNS + i / 4 * 8 + lane_column + i % 2] = sum[i / 4][i % 4];
    barrier_sync(DONE, QUARTETS * 128);
    for (int i = threadIdx.x; i < TILE_ROWS * TILE_COLUMNS; i += QUARTETS * 128) {
      const int n = row0 + i / TILE_COLUMNS, c = column0 + i % TILE_COLUMNS;
      if (!(fabsf(shared[i]) < INFINITY) && n < rows && c < columns)
        shared[i] = plain_sum(input, weight, n, c, rows, depth, columns, first * STEP, min(last * STEP, depth)$sum_arguments);
    }
    barrier_sync(DONE, QUARTETS * 128);
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; ++i)
      sum[i / 4][i % 4] = shared[(lane_row + i % 4 / 2 * 8) * TILE_COLUMNS + i / 4 * 8 + lane_column + i % 2];
  }
$finish
}
$merge
}  // namespace ${name}_detail

$launcher
