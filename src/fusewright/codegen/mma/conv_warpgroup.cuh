//: kernel calls load_if rotate to_tf32_even warpgroup_arrive warpgroup_operands warpgroup_wait
namespace ${name}_detail {

$constants

// The weight that lies at `index` in the order the tensor cores read: [chunk][8 inputs][column][kernel row]
// [64 channels][four inputs][channel][4]. A warp has 16 channels of each 64; those of a warp are neighbours.
__device__ __forceinline__ float ordered_weight(const float* __restrict__ weight$told, int block, int index) {
  const int word = index % 4, row = index / 4 % 64, four = index / 256 % 2;
  constexpr int TILES = CHANNEL_TILES * WARPS_C / 4;
  const int tile = index / 512 % CHANNEL_TILES, fours = index / 512 % TILES / CHANNEL_TILES, kh = index / (512 * TILES) % KERNEL_H;
  const int turn = index / (512 * TILES * KERNEL_H), column = turn % PART_COLUMNS;
  const int kd = column / KERNEL_W, kw = column % KERNEL_W;
  const int group = block / GROUP_BLOCKS;
  const int out = block % GROUP_BLOCKS * BLOCK_CHANNELS + ((fours * 4 + row / 16) * CHANNEL_TILES + tile) * 16 + row % 16;
  const int in = turn / PART_COLUMNS * 8 + four * 4 + word;
  const bool real = out < GROUP_OUT && in < $GROUP_IN;
  return real ? $weight_at : 0.0f;
}
$pack_kernel
$multiply
template <int VECTOR>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
kernel($parameters) {
  extern __shared__ __align__(128) float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;  // a lane holds channels group + 8i at positions 2 quad, 2 quad + 1
$warp_place
  float* const input_stages = shared;
$weight_stages
$shared_tables
  uint4* const rows = reinterpret_cast<uint4*>(shared + SHARED_BYTES / 4 - 4 * (ROWS + 1));
  const int n = int(blockIdx.x) / slices, slice = int(blockIdx.x) % slices;
$channel_origin
$out_sizes
$tiles
  const int first = int((long long)tiles * slice / slices), last = int((long long)tiles * (slice + 1) / slices);
  const long long plane = (long long)in_d * in_h * in_w;
  const float* const sample = input + ((long long)n * $IN_CHANNELS + $group_first_input) * plane;

  // A thread loads VECTOR columns of four channels and stores them as positions side by side: [four channels][position][4],
  // rounded to TF32. Its rounds are spread over the turns of a step: what one loads, a later one stores. Places
  // outside the input become zeros. Where each row lies is worked out once, in `rows`.
  constexpr int ROW_PLACES = (LEAD + PITCH + VECTOR - 1) / VECTOR, PLACES = ROWS * ROW_PLACES;
  constexpr int ROUNDS = (PLACES + THREADS - 1) / THREADS;
  constexpr int TOGETHER = (ROUNDS + TURNS - 1) / TURNS, BETWEEN = TURNS / ((ROUNDS + TOGETHER - 1) / TOGETHER);
  for (int i = threadIdx.x; i < ROWS; i += THREADS) {
    const int four = i / (ROWS_D * ROWS_H), d = i / ROWS_H % ROWS_D, h = i % ROWS_H;
    rows[i] = make_uint4(unsigned(4 * four * plane) + (d * in_h + h) * in_w, d, h, 4 * four);
  }
  __syncthreads();
  float held[TOGETHER][4][VECTOR];
  // Where there is a turn to spare, every other four warps do so a turn later: the tensor cores are kept busy.
  const int late = (ROUNDS + TOGETHER - 1) / TOGETHER * BETWEEN < TURNS ? warp / 4 % 2 : 0;
  int tile_d = first / (tiles_h * tiles_w), tile_h = first / tiles_w % tiles_h, tile_w = first % tiles_w;  // that is loaded
  auto load_input = [&](int chunk, int turn) {
    const int from_d = tile_d * STEP_D - HALO_D, from_h = tile_h * STEP_H - HALO_H, from_w = tile_w * STEP_W - HALO_W - LEAD;
    const float* const from = sample + chunk * CHUNK * plane + ((long long)from_d * in_h + from_h) * in_w + from_w;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const int place = (turn / BETWEEN * TOGETHER + k) * THREADS + threadIdx.x;
      const int w = place % ROW_PLACES * VECTOR;
      const uint4 row = rows[min(place / ROW_PLACES, ROWS - 1)];
      const bool real = place < PLACES && from_d + row.y < unsigned(in_d) && from_h + row.z < unsigned(in_h) &&
                        unsigned(from_w + w) < unsigned(in_w);
#pragma unroll
      for (int j = 0; j < 4; ++j) load_if<VECTOR>(real$exists, from + row.x + w + j * plane, held[k][j]);
    }
  };
  auto store_input = [&](int turn, float* stage) {
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const int place = ((turn / BETWEEN - 1) * TOGETHER + k) * THREADS + threadIdx.x;
      const int column = place % ROW_PLACES * VECTOR - LEAD;
      uint4* const to = reinterpret_cast<uint4*>(stage) + place / ROW_PLACES * PITCH + column;
      const int by = VECTOR == 4 ? threadIdx.x / 2 % 4 : 0;  // lanes store other columns first, so that they meet in no bank
#pragma unroll
      for (int j = 0; j < 4; ++j) rotate<VECTOR>(held[k][j], by);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        const int at = (v + by) % VECTOR;
        if (place < PLACES && unsigned(column + at) < unsigned(PITCH))
          to[at] = make_uint4(to_tf32_even(held[k][0][v]), to_tf32_even(held[k][1][v]), to_tf32_even(held[k][2][v]),
                              to_tf32_even(held[k][3][v]));
      }
    }
  };
$stage_weight
  int buffer = 0;
  for (int turn = 0; turn <= TURNS; ++turn) {
    if (turn % BETWEEN == 0 && turn > 0) store_input(turn, input_stages);
    if (turn % BETWEEN == 0 && turn < TURNS) load_input(0, turn);
  }
$first_weight
$setup
  const int lane_channel = warp_c * CHANNEL_TILES * 16 + group;
  const float* const warp_input = input_stages + 4 * (warp_w * $warp_step_w + (warp_d * $warp_step_d * ROWS_H +
      warp_h * $warp_step_h) * PITCH);
$state
$wait_weight
  warpgroup_operands();
  __syncthreads();  // what all threads prepared is complete
  for (int tile = first; tile < last; ++tile) {
$origin_early
    float acc[CHANNEL_TILES][FRAGMENTS][4];
#pragma unroll
    for (int tile_c = 0; tile_c < CHANNEL_TILES; ++tile_c)
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int r = 0; r < 4; ++r) acc[tile_c][f][r] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < $CHUNKS; ++chunk) {
      const int next_chunk = chunk + 1 == $CHUNKS ? 0 : chunk + 1;
      if (next_chunk == 0 && ++tile_w == tiles_w) {
        tile_w = 0;
        if (++tile_h == tiles_h) tile_h = 0, ++tile_d;
      }
      multiply(acc, warp_input + buffer * INPUT_STAGE, $weight_at_step$own_channels, [&](int turn) {
$next_weight
        turn -= late;
        if (turn % BETWEEN == 0 && turn > 0) store_input(turn, input_stages + (buffer ^ 1) * INPUT_STAGE);
        if (turn % BETWEEN == 0 && turn >= 0 && turn < TURNS - late) load_input(next_chunk, turn);
      });
$wait_next_weight
      warpgroup_operands();
      __syncthreads();
      buffer ^= 1;
    }
$finish
  }
$conclude
}

}  // namespace ${name}_detail

$launcher

//: taps calls warpgroup_arrive warpgroup_commit warpgroup_go_on warpgroup_wait
// acc += weight x input for CHUNK input channels. Before the products of each of its TURNS it calls stage(turn), and after the
// last stage(TURNS): the next step's operands are on their way while the tensor cores are at work.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* input, const float* weight,
                                         Stage stage) {
  warpgroup_arrive(acc);
#pragma unroll $unrolled
  for (int turn = 0; turn < TURNS; ++turn) {
    const int k8 = turn / PART_COLUMNS, column = turn % PART_COLUMNS;
    const int kd = column / KERNEL_W, kw = column % KERNEL_W;
    stage(turn);
    warpgroup_go_on();
#pragma unroll
    for (int kh = 0; kh < KERNEL_H; ++kh) {
      const float* const at =
          input + 4 * (k8 * 2 * PLANE + (kd * DILATION_D * ROWS_H + kh * DILATION_H) * PITCH + kw * DILATION_W);
#pragma unroll
      for (int tile = 0; tile < CHANNEL_TILES; ++tile)
#pragma unroll
        for (int fd = 0; fd < FRAGMENTS_D; ++fd)
          $products
    }
    warpgroup_commit();
  }
  stage(TURNS);
  warpgroup_wait(acc);
}

//: phases calls warpgroup_arrive warpgroup_commit warpgroup_go_on warpgroup_wait
// acc += weight x input for all taps and CHUNK input channels; fragments of all phases are in acc, in the output's order. Before the
// products of each of its TURNS, one for each kernel column, it calls stage(turn), and after the last stage(TURNS): the next step's
// operands are on their way while the tensor cores are at work.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* input, const float* weight,
                                         Stage stage) {
  warpgroup_arrive(acc);
#pragma unroll 1
  for (int k8 = 0; k8 < CHUNK / 8; ++k8)
#pragma unroll
    for (int column = 0; column < PART_COLUMNS; ++column) {
      const int turn = k8 * PART_COLUMNS + column, kd = column / KERNEL_W, kw = column % KERNEL_W;
      const int phase_d = phase_of(kd, PADDING_D, PHASES_D), phase_w = phase_of(kw, PADDING_W, PHASES_W);
      stage(turn);
      warpgroup_go_on();
#pragma unroll
      for (int kh = 0; kh < KERNEL_H; ++kh) {
        const int phase_h = phase_of(kh, PADDING_H, PHASES_H);
        const float* const at =
            input + 4 * (k8 * 2 * PLANE + (place_of(kd, PADDING_D, PHASES_D, HALO_D) * ROWS_H +
                                           place_of(kh, PADDING_H, PHASES_H, HALO_H)) * PITCH +
                         place_of(kw, PADDING_W, PHASES_W, HALO_W));
#pragma unroll
        for (int tile = 0; tile < CHANNEL_TILES; ++tile)
#pragma unroll
          for (int fd = 0; fd < FRAGMENTS_D / PHASES_D; ++fd)
            $products
      }
      warpgroup_commit();
    }
  stage(TURNS);
  warpgroup_wait(acc);
}
