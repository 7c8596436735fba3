//: kernel calls cp_async_commit cp_async_wait
namespace ${name}_detail {

$constants

// The weight that lies at `index` in the order the tensor cores read: $weight_order
// [16 channels][lane][4], where a lane's four are its two channels (8 apart) for its two inputs (4 apart).$of_pairs
__device__ __forceinline__ $ordered ordered_weight(const $element* __restrict__ weight$told, int block, int index) {
  const int word = index % 4, lane = index / 4 % 32;
$weight_part
$weight_place
  const int group = block / GROUP_BLOCKS;
  const int out = block % GROUP_BLOCKS * BLOCK_CHANNELS + tile * 16 + lane / 4 + word % 2 * 8;
$weight_word
}
$pack_kernel
$multiply
template <int VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
kernel($parameters) {
  extern __shared__ __align__(16) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;  // a lane holds channels group + 8i at positions 2 quad, 2 quad + 1
$warp_place
  float* const input_stages = shared$own_stages;
$weight_stages
$shared_tables
  const int n = int(blockIdx.x) / slices, slice = int(blockIdx.x) % slices;
$channel_origin
$out_sizes
$tiles
  const int first = int((long long)tiles * slice / slices)$first_tile, last = int((long long)tiles * (slice + 1) / slices);
  const long long plane = (long long)in_d * in_h * in_w;
  const $element* const sample = input + ((long long)n * $IN_CHANNELS + $group_first_input) * plane;

$input_staging
$stage_weight
  int buffer = 0;
  locate(first);
$first_input
$first_weight
  cp_async_commit();
$setup
  const int lane_channel = warp_c * CHANNEL_TILES * 16 + group;
  const float* const lane_input =
      input_stages + ${quad_step}group * $lane_step + LEAD + warp_w * $warp_step_w +
      (warp_d * $warp_step_d * ROWS_H + warp_h * $warp_step_h) * PITCH;
  const uint4* const lane_weight =
      reinterpret_cast<const uint4*>($weight_base) + warp_c * CHANNEL_TILES * 32 + lane;
$lane_offsets
$state
  for (int tile = first; tile < last; tile += TILE_STEP) {
$origin_early
#pragma unroll 1
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
      float acc[CHANNEL_TILES][FRAGMENTS][4];
#pragma unroll
      for (int tile_c = 0; tile_c < CHANNEL_TILES; ++tile_c)
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
          for (int r = 0; r < 4; ++r) acc[tile_c][f][r] = 0.0f;
#pragma unroll 1
      for (int chunk = 0; chunk < $CHUNKS; ++chunk) {
        // K-block by k-block, the next step's operands are copied while this one is multiplied.
        const int next_chunk = chunk + 1 == $CHUNKS ? 0 : chunk + 1;
        if (next_chunk == 0 && repeat == 0) locate(tile + TILE_STEP);
#pragma unroll 1
        for (int part = 0; part < PARTS; ++part) {
          if (repeat == 0) {
            cp_async_wait<0>();
$round_input
            $barrier
          }
$next_step
          multiply(acc, lane_input + buffer * INPUT_STAGE$repeat_step,
                   lane_weight + $weight_buffer, $read_by, [&](int k_block) {
                     stage_input(next_chunk, (repeat * PARTS + part) * K_BLOCKS + k_block, buffer ^ 1);
$next_weight
                   });
$last_input
          cp_async_commit();
$flip_weight
        }
        $flip_after_chunk
      }
$origin_late
$finish
    }
    $flip_after_tile
  }
  cp_async_wait<0>();
$conclude
}

}  // namespace ${name}_detail

$launcher
