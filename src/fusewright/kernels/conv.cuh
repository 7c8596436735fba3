$comment
namespace ${name}_detail {

$constants

// Calls visit(channel, row, column) for this thread's share of a stage's places; a place is VECTOR columns.
template <int VECTOR, class Visit>
__device__ __forceinline__ void for_places(int part, Visit visit) {
  constexpr int ROW_PLACES = PITCH / VECTOR;
  constexpr int PLACES = ROWS_D * ROWS_H * ROW_PLACES;
  constexpr int ITEMS = PLACES * (CHUNK / ITEM_CHANNELS);
  const int end = ITEMS * (part + 1) / PARTS;
  for (int item = ITEMS * part / PARTS + int(threadIdx.x); item < end; item += THREADS) {
    const int place = item % PLACES;
    visit(item / PLACES * ITEM_CHANNELS, place / ROW_PLACES, place % ROW_PLACES * VECTOR);
  }
}

// Starts copying one part of an input tile to shared memory. What lies outside the input becomes zero.
template <int VECTOR>
__device__ __forceinline__ void stage_input(float* stage, const float* input, int channels, long long plane, int part,
                                            int d0, int h0, int w0, int in_d, int in_h, int in_w) {
  for_places<VECTOR>(part, [&](int channel, int row, int column) {
    const int d = d0 + row / ROWS_H, h = h0 + row % ROWS_H, w = w0 + column;
    const bool inside = unsigned(d) < unsigned(in_d) && unsigned(h) < unsigned(in_h) && unsigned(w) < unsigned(in_w);
    const float* from = input + (inside ? channel * plane + (d * in_h + h) * in_w + w : 0);
    float* to = stage + channel * PLANE + row * PITCH + column;
#pragma unroll
    for (int k = 0; k < ITEM_CHANNELS; ++k) {
      const bool real = inside && channel + k < channels;
      cp_async<4 * VECTOR>(to + k * PLANE, real ? from + k * plane : input, real);
    }
  });
}
$round_staged
// The weight that lies at `index` in the order the tensor cores read: [chunk][part][8 inputs][column][kernel row]
// [16 channels][lane][4], where a lane's four are its two channels (8 apart) for its two inputs (4 apart).
__device__ __forceinline__ float ordered_weight(const float* __restrict__ weight, int block, int index) {
  const int word = index % 4, lane = index / 4 % 32;
  const int tile = index / 128 % BLOCK_TILES, kh = index / (128 * BLOCK_TILES) % KERNEL_H;
  int rest = index / (128 * BLOCK_TILES * KERNEL_H);
  int column = rest % PART_COLUMNS;
  rest /= PART_COLUMNS;
  const int k8 = rest % (CHUNK / 8);
  rest /= CHUNK / 8;
  column += rest % PARTS * PART_COLUMNS;
  const int chunk = rest / PARTS;
  const int kd = column / KERNEL_W, kw = column % KERNEL_W;
  const int group = block / GROUP_BLOCKS;
  const int out = block % GROUP_BLOCKS * BLOCK_CHANNELS + tile * 16 + lane / 4 + word % 2 * 8;
  const int in = chunk * CHUNK + k8 * 8 + lane % 4 + word / 2 * 4;
  const bool real = out < GROUP_OUT && in < GROUP_IN;
  return real ? $weight_at : 0.0f;
}
$pack_kernel
// acc += weight × input for one part of the kernel and CHUNK input channels.
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int part) {
#pragma unroll
  for (int k8 = 0; k8 < CHUNK / 8; ++k8) {
#pragma unroll
    for (int column = 0; column < PART_COLUMNS; ++column) {
      const int kd = (part * PART_COLUMNS + column) / KERNEL_W, kw = (part * PART_COLUMNS + column) % KERNEL_W;
      const float* window = lane_input + k8 * 8 * PLANE + kd * DILATION_D * ROWS_H * PITCH + kw * DILATION_W;
#pragma unroll
      for (int kh0 = 0; kh0 < KERNEL_H; kh0 += KERNEL_ROWS_TOGETHER) {
        uint32_t x[FRAGMENTS_D][WINDOW_ROWS][FRAGMENTS_W][2];  // rows that no tap uses cost nothing
#pragma unroll
        for (int fd = 0; fd < FRAGMENTS_D; ++fd)
#pragma unroll
          for (int row = 0; row < WINDOW_ROWS; ++row)
#pragma unroll
            for (int fw = 0; fw < FRAGMENTS_W; ++fw) {
              const float* at = window + (fd * STRIDE_D * ROWS_H + kh0 * DILATION_H + row) * PITCH +
                                (fw / INTERLEAVE * 8 * INTERLEAVE + fw % INTERLEAVE) * STRIDE_W;
              x[fd][row][fw][0] = $load_low;
              x[fd][row][fw][1] = $load_high;
            }
#pragma unroll
        for (int kh = kh0; kh < kh0 + KERNEL_ROWS_TOGETHER; ++kh)
#pragma unroll
          for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
            const uint4 quad =
                lane_weight[(((k8 * PART_COLUMNS + column) * KERNEL_H + kh) * BLOCK_TILES + tile) * 32];
            const uint32_t w[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (int f = 0; f < FRAGMENTS; ++f)
              mma_tf32(acc[tile][f], w,
                       x[f / (FRAGMENTS_H * FRAGMENTS_W)]
                        [f / FRAGMENTS_W % FRAGMENTS_H * STRIDE_H + (kh - kh0) * DILATION_H][f % FRAGMENTS_W]);
          }
      }
    }
  }
}

template <int VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
kernel($parameters) {
  extern __shared__ __align__(16) float shared[];
  float* const input_stages = shared;
  float* const weight_stages = input_stages + 2 * INPUT_STAGE;
$shared_tables
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;  // a lane holds channels group + 8i at positions 2 quad, 2 quad + 1
  const int warp_c = warp % WARPS_C, warp_w = warp / WARPS_C % WARPS_W;
  const int warp_h = warp / (WARPS_C * WARPS_W) % WARPS_H, warp_d = warp / (WARPS_C * WARPS_W * WARPS_H);
  const int n = int(blockIdx.x) / slices, slice = int(blockIdx.x) % slices;
$channel_origin
$out_sizes
  const int tiles_h = (out_h + OUT_TILE_H - 1) / OUT_TILE_H, tiles_w = (out_w + OUT_TILE_W - 1) / OUT_TILE_W;
  const int tiles = (out_d + OUT_TILE_D - 1) / OUT_TILE_D * tiles_h * tiles_w;
  const int first = int((long long)tiles * slice / slices), last = int((long long)tiles * (slice + 1) / slices);
  const long long plane = (long long)in_d * in_h * in_w;
  const float* const sample = input + ((long long)n * IN_CHANNELS + $group_first_input) * plane;
$setup
  auto stage_tile = [&](int tile, int chunk, int part, int buffer) {
    const int d = tile / (tiles_h * tiles_w), h = tile / tiles_w % tiles_h, w = tile % tiles_w;
    stage_input<VECTOR>(input_stages + buffer * INPUT_STAGE, sample + chunk * CHUNK * plane, GROUP_IN - chunk * CHUNK,
                        plane, part, d * TILE_D * STRIDE_D - HALO_D, h * TILE_H * STRIDE_H - HALO_H,
                        w * TILE_W * STRIDE_W - HALO_W - LEAD, in_d, in_h, in_w);
  };
$stage_weight
  if (first < last) {
    for (int part = 0; part < PARTS; ++part) stage_tile(first, 0, part, 0);
$first_weight
  }
  cp_async_commit();

  const int lane_channel = warp_c * CHANNEL_TILES * 16 + group;
  const float* const lane_input =
      input_stages + quad * PLANE + group * INTERLEAVE * STRIDE_W + LEAD + warp_w * FRAGMENTS_W * 8 * STRIDE_W +
      (warp_d * FRAGMENTS_D * STRIDE_D * ROWS_H + warp_h * FRAGMENTS_H * STRIDE_H) * PITCH;
  const uint4* const lane_weight =
      reinterpret_cast<const uint4*>(weight_stages) + warp_c * CHANNEL_TILES * 32 + lane;
  int buffer = 0;
$state
  for (int tile = first; tile < last; ++tile) {
#pragma unroll 1
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
      float acc[CHANNEL_TILES][FRAGMENTS][4];
$initialise
#pragma unroll 1
      for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll 1
        for (int part = 0; part < PARTS; ++part) {
          if (repeat == 0) {
            cp_async_wait<0>();
$round_call
            __syncthreads();
            // While this step is multiplied, the next one's operands are copied.
            const bool last_chunk = chunk + 1 == CHUNKS;
            const int next_tile = tile + last_chunk, next_chunk = last_chunk ? 0 : chunk + 1;
            if (next_tile < last) stage_tile(next_tile, next_chunk, part, buffer ^ 1);
$next_weight
            cp_async_commit();
          }
          multiply(acc, lane_input + buffer * INPUT_STAGE + repeat * WARPS_H * FRAGMENTS_H * STRIDE_H * PITCH,
                   lane_weight + $weight_buffer, part);
$flip_weight
        }
        $flip_after_chunk
      }
      const int d0 = tile / (tiles_h * tiles_w) * TILE_D + warp_d * FRAGMENTS_D;
      const int h0 = tile / tiles_w % tiles_h * TILE_H + (repeat * WARPS_H + warp_h) * FRAGMENTS_H;
      const int w0 = tile % tiles_w * TILE_W + warp_w * FRAGMENTS_W * 8;
$finish
    }
    $flip_after_tile
  }
$conclude
}

}  // namespace ${name}_detail

$launcher
