//: kernel calls cp_async cp_async_commit cp_async_wait mma_tf32 to_tf32_even
namespace ${name}_detail {

$constants

// A tensor as it lies in memory: how far apart its matrices, their rows and their columns are.
struct Operand {
  const float* at;
  long long $steps;
};

// Whether its rows can be read by 16 bytes.
inline bool in_fours(const Operand& x) {
  return (size_t)x.at % 16 == 0 && x.column == 1 && $in_fours;
}

// Starts copying ROWS rows to shared memory, with zeros for rows that are not `left` and columns that are not `real`. Neighbouring
// lanes read what lies side by side: a row, or a column of a matrix that lies transposed.
template <int VECTOR, int ROWS, int COLUMNS, int PITCH>
__device__ __forceinline__ void copy_rows(float* to, const float* from, const Operand& x, int left, int real) {
  constexpr int ACROSS = COLUMNS / VECTOR, LANES = ACROSS > 16 ? 32 : ACROSS > 8 ? 16 : ACROSS > 4 ? 8 : ACROSS > 2 ? 4 : 2;
  if (VECTOR > 1 || x.column == 1) {
    const int row = threadIdx.x / LANES, column = threadIdx.x % LANES * VECTOR;
    to += row * PITCH + column, from += row * x.row + column;
#pragma unroll
    for (int r = 0; r < ROWS; r += THREADS / LANES) {
#pragma unroll
      for (int c = 0; c < COLUMNS; c += LANES * VECTOR)
        if (row + r < ROWS && column + c < COLUMNS)
          cp_async<4 * VECTOR>(to + r * PITCH + c, from + c, row + r < left && column + c < real);
      from += THREADS / LANES * x.row;
    }
  } else {
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
      const int row = i % ROWS, column = i / ROWS;
      cp_async<4>(to + row * PITCH + column, from + row * x.row + column * x.column, row < left && column < real);
    }
  }
}

// Each number as the sum of two TF32 ones. What is not finite makes the second NaN, and so every sum that it is part of.
__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
  high = to_tf32_even(x);
  low = to_tf32_even(x - __uint_as_float(high));
}

// d += a b in three products; those with a small part have a sum of their own, which is not cut off where the large one would be.
__device__ __forceinline__ void multiply(float (&large)[4], float (&small)[4], const uint32_t (&a_high)[4], const uint32_t (&a_low)[4],
                                         const uint32_t (&b_high)[2], const uint32_t (&b_low)[2]) {
  mma_tf32(small, a_low, b_high);
  mma_tf32(small, a_high, b_low);
  mma_tf32(large, a_high, b_high);
}

template <int VECTOR>
__global__ void __launch_bounds__(THREADS, VECTOR == 4 ? BLOCKS : 1)
kernel($parameters) {
  extern __shared__ __align__(16) float shared[];
  float* const q_tile = shared;
  float* const k_tile = q_tile + TILE_ROWS * PITCH;
  float* const v_tile = k_tile + KEYS * PITCH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;  // a lane holds rows group and group + 8 of each 16, and two of every eight columns
  const int tiles = (queries + TILE_ROWS - 1) / TILE_ROWS, row0 = int(blockIdx.x) % tiles * TILE_ROWS;
$known
$places
$setup
  const auto chain = [&](float value, int n, int c) -> float {
$chain
  };

  copy_rows<VECTOR, TILE_ROWS, DEPTH_8, PITCH>(q_tile, q.at + (long long)row0 * q.row, q, queries - row0, depth);
  copy_rows<VECTOR, KEYS, DEPTH_8, PITCH>(k_tile, k.at, k, keys, depth);
  cp_async_commit();
  copy_rows<VECTOR, KEYS, WIDTH_8, V_PITCH>(v_tile, v.at, v, keys, width);
  cp_async_commit();

  float sum[TILES][WIDTH_8 / 8][4];
#pragma unroll
  for (int i = 0; i < TILES * (WIDTH_8 / 2); ++i) sum[i / (WIDTH_8 / 2)][i / 4 % (WIDTH_8 / 8)][i % 4] = 0.0f;
$begin
  unsigned odd = 0;  // a bit for each row that has a score which is not finite
  const int warp_row = warp * 16 * TILES;
  const float* const q_rows = q_tile + (warp_row + group) * PITCH + 2 * quad;
  const float* const k_rows = k_tile + group * PITCH + 2 * quad;
  const float* const v_rows = v_tile + 2 * quad * V_PITCH + group;
$last
#pragma unroll 1
  for (int key0 = 0; key0 < last; key0 += KEYS) {
$left
    cp_async_wait<1>();
    __syncthreads();

    // Scores. Of eight of the depth, a lane has the neighbours 2 quad and 2 quad + 1 for the products' numbers quad and quad + 4.
    float score[TILES][KEYS / 8][4], small[TILES][KEYS / 8][4];
#pragma unroll
    for (int i = 0; i < TILES * (KEYS / 2); ++i)
      score[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4] = small[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4] = 0.0f;
#pragma unroll 2
    for (int d = 0; d < (left ? DEPTH_8 : 0); d += 8) {
      uint32_t q_high[TILES][4], q_low[TILES][4];
#pragma unroll
      for (int i = 0; i < TILES * 2; ++i) {
        const float2 two = *reinterpret_cast<const float2*>(q_rows + i * 8 * PITCH + d);
        split(two.x, q_high[i / 2][i % 2], q_low[i / 2][i % 2]);
        split(two.y, q_high[i / 2][i % 2 + 2], q_low[i / 2][i % 2 + 2]);
      }
#pragma unroll
      for (int f = 0; f < KEYS / 8; ++f) {
        const float2 two = *reinterpret_cast<const float2*>(k_rows + f * 8 * PITCH + d);
        uint32_t k_high[2], k_low[2];
        split(two.x, k_high[0], k_low[0]);
        split(two.y, k_high[1], k_low[1]);
#pragma unroll
        for (int i = 0; i < TILES; ++i) multiply(score[i][f], small[i][f], q_high[i], q_low[i], k_high, k_low);
      }
    }
    __syncthreads();
    copy_rows<VECTOR, KEYS, DEPTH_8, PITCH>(k_tile, k.at + (long long)(key0 + KEYS) * k.row, k, last - key0 - KEYS, depth);
    cp_async_commit();

    if (left) {
#pragma unroll
      for (int i = 0; i < TILES * (KEYS / 2); ++i) {
        float& here = score[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4];
        here += small[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4];
        odd |= !(fabsf(here) < INFINITY) ? 1u << (i / (KEYS / 2) * 2 + i % 4 / 2) : 0u;
      }
#pragma unroll
      for (int i = 0; i < TILES * (KEYS / 2); ++i) {
        float& here = score[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4];
        const int n = row0 + warp_row + i / (KEYS / 2) * 16 + group + i % 4 / 2 * 8, c = key0 + i / 4 % (KEYS / 8) * 8 + 2 * quad + i % 2;
        here = chain(here, min(n, queries - 1), min(c, keys - 1));
      }
      if (key0 + KEYS > keys) {
#pragma unroll
        for (int i = 0; i < TILES * (KEYS / 2); ++i)
          if (key0 + i / 4 % (KEYS / 8) * 8 + 2 * quad + i % 2 >= keys) score[i / (KEYS / 2)][i / 4 % (KEYS / 8)][i % 4] = $nothing;
      }
$weigh
    }

    // The columns 2 quad and 2 quad + 1 that a lane has of eight scores are the numbers quad and quad + 4 of the next product, whose
    // other operand is read at the same keys: weights never leave their registers.
    uint32_t high[TILES][KEYS / 8][4], low[TILES][KEYS / 8][4];
#pragma unroll
    for (int i = 0; i < TILES * (KEYS / 8); ++i) {
      const float(&here)[4] = score[i / (KEYS / 8)][i % (KEYS / 8)];
      uint32_t(&h)[4] = high[i / (KEYS / 8)][i % (KEYS / 8)], (&l)[4] = low[i / (KEYS / 8)][i % (KEYS / 8)];
      split(here[0], h[0], l[0]), split(here[2], h[1], l[1]), split(here[1], h[2], l[2]), split(here[3], h[3], l[3]);
    }
    cp_async_wait<1>();
    __syncthreads();
    if (left) {
#pragma unroll
      for (int f = 0; f < WIDTH_8 / 8; ++f) {
        float large[TILES][4], rest[TILES][4];
#pragma unroll
        for (int i = 0; i < TILES * 4; ++i) large[i / 4][i % 4] = rest[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
          uint32_t v_high[2], v_low[2];
          split(v_rows[j * 8 * V_PITCH + 8 * f], v_high[0], v_low[0]);
          split(v_rows[(j * 8 + 1) * V_PITCH + 8 * f], v_high[1], v_low[1]);
#pragma unroll
          for (int i = 0; i < TILES; ++i) multiply(large[i], rest[i], high[i][j], low[i][j], v_high, v_low);
        }
#pragma unroll
        for (int i = 0; i < TILES * 4; ++i) sum[i / 4][f][i % 4] += large[i / 4][i % 4] + rest[i / 4][i % 4];
      }
    }$unless_left
    __syncthreads();
    copy_rows<VECTOR, KEYS, WIDTH_8, V_PITCH>(v_tile, v.at + (long long)(key0 + KEYS) * v.row, v, last - key0 - KEYS, width);
    cp_async_commit();
  }
  cp_async_wait<0>();

$out

#pragma unroll
  for (int i = 0; i < TILES * 2; ++i) {
    const int n = row0 + warp_row + i * 8 + group;
$scale
    bool lost = false;
#pragma unroll
    for (int j = 0; j < WIDTH_8 / 4; ++j) {
      float& here = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
      here *= inverse;
      lost |= !(fabsf(here) < INFINITY)$real_column;
    }
    if (n < queries) {
      float* const to = out + n * out_row + 2 * quad;
#pragma unroll
      for (int f = 0; f < WIDTH_8 / 8; ++f) {
        const float first = sum[i / 2][f][i % 2 * 2], second = sum[i / 2][f][i % 2 * 2 + 1];
$store
      }
    }
    // A row with something that is not finite is computed again by plain arithmetic, all lanes together, each with a key of 32: the
    // two parts of an infinity do not add up to it. Not one of which nothing but -infinity was left.
    unsigned again = __ballot_sync(0xffffffffu, n < queries && ((odd >> i & 1u) != 0 || $counts));
#pragma unroll 1
    while (again != 0) {
      const int holder = (__ffs(again) - 1) / 4, row = n - group + holder;
      again &= ~(0xfu << 4 * holder);
      __syncwarp();
      float found[(WIDTH_8 + 31) / 32];
#pragma unroll
      for (int b = 0; b < (WIDTH_8 + 31) / 32; ++b) found[b] = 0.0f;
$prepare
$rounds
#pragma unroll 1
      for (int key0 = 0; key0 < last; key0 += 32) {
        const int c = min(key0 + lane, last - 1);
        float sum = 0.0f;
#pragma unroll 1
        for (int d = 0; d < depth; ++d) sum = fmaf(q.at[row * q.row + d * q.column], k.at[c * k.row + d * k.column], sum);
        const float value = chain(sum, row, c);
$gather
#pragma unroll 1
        for (int j = 0; j < min(32, last - key0); ++j) {
          const float factor = __shfl_sync(0xffffffffu, weight, j);
#pragma unroll
          for (int b = 0; b < (WIDTH_8 + 31) / 32; ++b)
            if (lane + 32 * b < width) found[b] = fmaf(factor, v.at[(key0 + j) * v.row + (lane + 32 * b) * v.column], found[b]);
        }
      }
#pragma unroll
      for (int b = 0; b < (WIDTH_8 + 31) / 32; ++b)
        if (lane + 32 * b < width) out[row * out_row + lane + 32 * b] = found[b];
    }
  }
}

}  // namespace ${name}_detail

$launcher
