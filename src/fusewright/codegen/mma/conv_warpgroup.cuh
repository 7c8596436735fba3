//: begin
namespace ${name}_detail {

$constants

$ordered_weight
$pack_kernel
$multiply
$template
__global__ void __launch_bounds__($all_threads, BLOCKS_PER_SM)
kernel($parameters) {
  extern __shared__ __align__(128) float shared[];
$own_constants
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = lane / 4, quad = lane % 4;  // a lane holds channels group + 8i at positions 2 quad, 2 quad + 1
$warp_place
  float* const input_stages = shared;
$weight_stages
$shared_tables
  uint4* const rows = reinterpret_cast<uint4*>($place_of_rows);
  const int n = int(blockIdx.x) / slices, slice = int(blockIdx.x) % slices;
$channel_origin
$out_sizes
$tiles
  const int first = int((long long)tiles * slice / slices), last = int((long long)tiles * (slice + 1) / slices);
$which_tiles
  const long long plane = (long long)in_d * in_h * in_w;
  const $element* const sample = input + ((long long)n * $IN_CHANNELS + $group_first_input) * plane;
  for (int i = threadIdx.x; i < ROWS; i += $all_threads) {  // where each row of four channels lies, and its place in the tile
    $row_place
    rows[i] = make_uint4(unsigned(4 * four * plane) + (d * in_h + h) * in_w, d, h, 4 * four);
  }

//: kernel calls load_if rotate to_tf32_even warpgroup_operands
$begin
  // A thread loads VECTOR columns of four channels and stores them as positions side by side: [four channels][position][4],
  // rounded to TF32. Its rounds are spread over the k-blocks of a step: what one loads, a later one stores. Places
  // outside the input become zeros.
  constexpr int ROW_PLACES = (LEAD + PITCH + VECTOR - 1) / VECTOR, PLACES = ROWS * ROW_PLACES;
  constexpr int ROUNDS = (PLACES + THREADS - 1) / THREADS;
  constexpr int TOGETHER = (ROUNDS + K_BLOCKS - 1) / K_BLOCKS, BETWEEN = K_BLOCKS / ((ROUNDS + TOGETHER - 1) / TOGETHER);
  __syncthreads();
  float held[TOGETHER][4][VECTOR];
  // Where there is a k-block to spare, every other warpgroup does so a k-block later: the tensor cores are kept busy.
  const int late = (ROUNDS + TOGETHER - 1) / TOGETHER * BETWEEN < K_BLOCKS ? warp / 4 % 2 : 0;
  int tile_d = first / (tiles_h * tiles_w), tile_h = first / tiles_w % tiles_h, tile_w = first % tiles_w;  // that is loaded
  auto load_input = [&](int chunk, int k_block) {
    const int from_d = tile_d * STEP_D - HALO_D, from_h = tile_h * STEP_H - HALO_H, from_w = tile_w * STEP_W - HALO_W - LEAD;
    const float* const from = sample + chunk * CHUNK * plane + ((long long)from_d * in_h + from_h) * in_w + from_w;
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const int place = (k_block / BETWEEN * TOGETHER + k) * THREADS + threadIdx.x;
      const int w = place % ROW_PLACES * VECTOR;
      const uint4 row = rows[min(place / ROW_PLACES, ROWS - 1)];
      const bool real = place < PLACES && from_d + row.y < unsigned(in_d) && from_h + row.z < unsigned(in_h) &&
                        unsigned(from_w + w) < unsigned(in_w);
#pragma unroll
      for (int j = 0; j < 4; ++j) load_if<VECTOR>(real$exists, from + row.x + w + j * plane, held[k][j]);
    }
  };
  auto store_input = [&](int k_block, float* stage) {
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      const int place = ((k_block / BETWEEN - 1) * TOGETHER + k) * THREADS + threadIdx.x;
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
  for (int k_block = 0; k_block <= K_BLOCKS; ++k_block) {
    if (k_block % BETWEEN == 0 && k_block > 0) store_input(k_block, input_stages);
    if (k_block % BETWEEN == 0 && k_block < K_BLOCKS) load_input(0, k_block);
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
      multiply(acc, warp_input + buffer * INPUT_STAGE, $weight_at_step$own_channels, [&](int k_block) {
$next_weight
        k_block -= late;
        if (k_block % BETWEEN == 0 && k_block > 0) store_input(k_block, input_stages + (buffer ^ 1) * INPUT_STAGE);
        if (k_block % BETWEEN == 0 && k_block >= 0 && k_block < K_BLOCKS - late) load_input(next_chunk, k_block);
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

//: row of words
const int four = i / (ROWS_D * ROWS_H), d = i / ROWS_H % ROWS_D, h = i % ROWS_H;

//: constants of scaled
  // The same stages hold halves, two channels to a word, or TF32 numbers of half as many channels.
  constexpr int SIDE = HALVES ? 2 : 1, ROWS = SIDE * SIDE_ROWS, CHUNKS = HALVES ? HALVES_CHUNKS : TF32_CHUNKS;

//: tiles of scaled
  // In halves all of them, unless the powers of two by which numbers are scaled would be out of range; in TF32 those that are left.
  Scales& scaled = *reinterpret_cast<Scales*>(scales);
  OfSample& of_sample = scaled.of_sample[n];
  const float unscaled_sample = of_sample.unscaled;
  bool left = unscaled_sample == 0.0f;
  for (int local = threadIdx.x; local < BLOCK_CHANNELS; local += $all_threads) left |= scaled.of_channel[blockIdx.y * BLOCK_CHANNELS + local] == 0.0f;
  left = __syncthreads_or(left);
  const int odd_tiles = HALVES ? 0 : of_sample.odd_tiles;
  if (HALVES ? left : !left && odd_tiles == 0) return;
  const bool every = HALVES || left || odd_tiles > MOST_ODD;
  const int begin = every ? first : 0, end = every ? last : odd_tiles;
  auto is_own = [&](int2 odd) { return odd.x == int(blockIdx.y) && first <= odd.y && odd.y < last; };
  auto next = [&](int at) {
    if (!every)
      while (at < end && !is_own(of_sample.odd_tile[at])) ++at;
    return at;
  };
  auto tile_at = [&](int at) { return every ? at : at < end ? of_sample.odd_tile[at].y : 0; };
  if constexpr (!HALVES) weight += (long long)gridDim.y * HALVES_CHUNKS * WEIGHT_STAGE;

//: tiles in a row
    int tile_d = first / (tiles_h * tiles_w), tile_h = first / tiles_w % tiles_h, tile_w = first % tiles_w;  // that is loaded
    int tile = first, chunk = 0, from_d, from_h, from_w;

//: tiles left calls HalvesRange
    const float scale = 1.0f / unscaled_sample;
    HalvesRange range;
    int at_tile = next(begin), chunk = 0, tile_d, tile_h, tile_w, from_d, from_h, from_w;  // that is loaded
    auto decode = [&] {
      const int tile = tile_at(at_tile);
      tile_d = tile / (tiles_h * tiles_w), tile_h = tile / tiles_w % tiles_h, tile_w = tile % tiles_w;
    };
    decode();

//: next tile in a row
            chunk = 0, ++tile;
            if (++tile_w == tiles_w) {
              tile_w = 0;
              if (++tile_h == tiles_h) tile_h = 0, ++tile_d;
            }

//: next tile left
            chunk = 0, at_tile = next(at_tile + 1);
            decode();

//: fills of scaled
    int fills = (end - begin) * CHUNKS;
    if (!every) {
      fills = 0;
      for (int at = begin; (at = next(at)) < end; ++at) fills += CHUNKS;
    }

//: odd tiles noted calls HalvesRange
      if constexpr (HALVES) {
        const int tile = first + fill / CHUNKS;
        if (!range.fits(unscaled_sample) && atomicExch(&odd_noted[tile % 8], tile) != tile) of_sample.note(blockIdx.y, tile);
        range = HalvesRange{};
      }

//: row of scaled
const int four = i / (SIDE * ROWS_D * ROWS_H) * SIDE + i % SIDE, d = i / SIDE / ROWS_H % ROWS_D, h = i / SIDE % ROWS_H;

//: row of pairs
const int four = i / (2 * ROWS_D * ROWS_H) * 2 + i % 2, d = i / 2 / ROWS_H % ROWS_D, h = i / 2 % ROWS_H;

//: ordered weight
// The weight that lies at `index` in the order the tensor cores read: [chunk][8 inputs][column][kernel row]
// [64 channels][four inputs][channel][4]. A warp has 16 channels of each 64; those of a warp are neighbours.$of_pairs
${of_side}__device__ __forceinline__ $ordered ordered_weight(const $element* __restrict__ weight$told, int block, int index$second) {
  const int word = index % 4, row = index / 4 % 64, four = index / 256 % 2;
  constexpr int TILES = CHANNEL_TILES * WARPS_C / 4;
  const int tile = index / 512 % CHANNEL_TILES, fours = index / 512 % TILES / CHANNEL_TILES, kh = index / (512 * TILES) % KERNEL_H;
  const int k_block = index / (512 * TILES * KERNEL_H), column = k_block % PART_COLUMNS;
  const int kd = column / KERNEL_W, kw = column % KERNEL_W;
  const int group = block / GROUP_BLOCKS;
  const int out = block % GROUP_BLOCKS * BLOCK_CHANNELS + ((fours * 4 + row / 16) * CHANNEL_TILES + tile) * 16 + row % 16;
$weight_word
}

//: stored words calls rotate to_tf32_even
      uint4* const to = into + place / ROW_PLACES * PITCH + column;
#pragma unroll
      for (int j = 0; j < 4; ++j) rotate<VECTOR>(x[j], by);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        const int at = (v + by) % VECTOR;
        if (place < PLACES && unsigned(column + at) < unsigned(PITCH))
          to[at] = make_uint4(to_tf32_even(x[0][v]), to_tf32_even(x[1][v]), to_tf32_even(x[2][v]), to_tf32_even(x[3][v]));
      }

//: stored pairs calls rotate
      uint2* const to = reinterpret_cast<uint2*>(into) + 2 * (place / (2 * ROW_PLACES) * PITCH + column) + place % 2;
      uint32_t words[2][VECTOR];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) words[k][v] = $two_halves;
        rotate<VECTOR>(words[k], by);
      }
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        const int at = (v + by) % VECTOR;
        if (place < PLACES && unsigned(column + at) < unsigned(PITCH)) to[2 * at] = make_uint2(words[0][v], words[1][v]);
      }

//: stored scaled
      if constexpr (HALVES) {
$pairs
      } else {
$words
      }

//: scales
// By which powers of two operands are scaled before they are rounded to fp16, and which tiles do not fit that: a number would be
// infinite, or have fewer bits than TF32. What sums are multiplied by is 0 where the power would be out of range.
struct OfSample {
  float unscaled;
  int odd_tiles;
  int2 odd_tile[MOST_ODD];  // block of channels, tile

  __device__ __forceinline__ void note(int block, int tile) {
    const int at = atomicAdd(&odd_tiles, 1);
    if (at < MOST_ODD) odd_tile[at] = make_int2(block, tile);
  }
};
struct Scales {
  float of_channel[PACKED_CHANNELS];
  OfSample of_sample[1];
};

//: pack scaled calls scaled_halves HalvesRange to_tf32
// A block for each channel scales its weights, rounds them to fp16 and orders them, two to a word; behind these, as TF32. Of each sample
// a block finds the power of two that brings the largest of some thousand numbers to 2^13: seven in eight of fp16's are above it, and
// TF32's 11 bits are there down to 2^-14. `kernel` reads them so.
__global__ void __launch_bounds__(256) pack(const float* __restrict__ weight, const float* __restrict__ input, float* __restrict__ packed,
                                            float* __restrict__ scales, long long elements) {
  constexpr int CHANNEL_WORDS = WEIGHT_STAGE / BLOCK_CHANNELS, TILES = CHANNEL_TILES * WARPS_C / 4;
  __shared__ uint32_t least_of[8], most_of[8];
  Scales& scaled = *reinterpret_cast<Scales*>(scales);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sample = int(blockIdx.x) - PACKED_CHANNELS;
  const int block = int(blockIdx.x) / BLOCK_CHANNELS, local = int(blockIdx.x) % BLOCK_CHANNELS, fours = local / 16 / CHANNEL_TILES;
  const int place = (fours / 4 * CHANNEL_TILES + local / 16 % CHANNEL_TILES) * 512 + (fours % 4 * 16 + local % 16) * 4;
  auto index_of = [&](int i) { return i / 8 * (TILES * 512) + place + i / 4 % 2 * 256 + i % 4; };
  uint32_t least = 0xffffffffu, most = 0;  // of magnitudes; least is that of those that are not zero, less one
  auto see = [&](float x, bool all) {
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    if (all || bits < 0x7f800000u) least = min(least, bits - 1), most = max(most, bits);
  };
  if (sample < 0) {
    for (int i = threadIdx.x; i < TF32_CHUNKS * CHANNEL_WORDS; i += 256) see(ordered_weight<1>(weight, block, index_of(i), 0), true);
  } else {
    const float* const from = input + sample * elements;
    const long long step = max(32LL, (elements / (256 * 32) | 1) * 32);  // odd: not the same columns of each row
    for (int line = warp; line < 256; line += 8)
      if (line * step + lane < elements) see(from[line * step + lane], false);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    least = min(least, __shfl_xor_sync(0xffffffffu, least, offset));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
  }
  if (lane == 0) least_of[warp] = least, most_of[warp] = most;
  __syncthreads();
  for (int other = 0; other < 8; ++other) least = min(least, least_of[other]), most = max(most, most_of[other]);
  const int up = most == 0 ? 0 : (sample < 0 ? 14 : 13) + 127 - int(most >> 23);
  const bool in_range = up >= -60 && up <= 60 && most < 0x7f800000u;
  const float scale = in_range ? __uint_as_float(uint32_t(127 + up) << 23) : 1.0f;
  if (sample >= 0) {
    if (threadIdx.x == 0) scaled.of_sample[sample].unscaled = in_range ? 1.0f / scale : 0.0f, scaled.of_sample[sample].odd_tiles = 0;
    return;
  }
  const bool fits = in_range && (most == 0 || __uint_as_float(least + 1) * scale >= 0x1p-14f);
  if (threadIdx.x == 0) scaled.of_channel[blockIdx.x] = fits ? 1.0f / scale : 0.0f;
  HalvesRange range;
  for (int i = threadIdx.x; i < HALVES_CHUNKS * CHANNEL_WORDS; i += 256) {
    const int index = index_of(i);
    const float even = ordered_weight<2>(weight, block, index, 0), odd = ordered_weight<2>(weight, block, index, 1);
    packed[(long long)block * HALVES_CHUNKS * WEIGHT_STAGE + index] = __uint_as_float(scaled_halves(even, odd, scale, range));
  }
  packed += (long long)(PACKED_CHANNELS / BLOCK_CHANNELS) * HALVES_CHUNKS * WEIGHT_STAGE;
  for (int i = threadIdx.x; i < TF32_CHUNKS * CHANNEL_WORDS; i += 256) {
    const int index = index_of(i);
    packed[(long long)block * TF32_CHUNKS * WEIGHT_STAGE + index] = __uint_as_float(to_tf32(ordered_weight<1>(weight, block, index, 0)));
  }
}

//: kernel with producers calls barrier_arrive barrier_sync warpgroup_arrive warpgroup_operands warpgroup_wait warpgroup_wait_but_one
$begin
$first_weight
$setup
  warpgroup_operands();
  __syncthreads();  // what all threads prepared is complete

  if (warp >= THREADS / 32) {
    // Producers: a warpgroup that fills one stage after the other, as soon as its last products are made. A thread loads VECTOR columns
    // of four channels and stores them as positions side by side: $as_stored. Places outside the
    // input become zeros. As soon as it stored one load it starts the next: TOGETHER of them are on their way, of the next stage too.
$fewer_registers
    constexpr int ROW_PLACES = (LEAD + PITCH + VECTOR - 1) / VECTOR, PLACES = ROWS * ROW_PLACES;
    constexpr int ROUNDS = (PLACES + 127) / 128, MOST = $most_rounds;
    constexpr int TOGETHER = (ROUNDS + (ROUNDS + MOST - 1) / MOST - 1) / ((ROUNDS + MOST - 1) / MOST);
    const int own = threadIdx.x - THREADS, by = $first_column;  // lanes store other columns first: no bank is met twice
    $held held[TOGETHER][4][$held_words];
$loaded_tile
    const $element* from;
    auto locate = [&] {
      from_d = tile_d * STEP_D - HALO_D, from_h = tile_h * STEP_H - HALO_H, from_w = tile_w * STEP_W - HALO_W - LEAD;
      from = sample + $chunk_channels * plane + ((long long)from_d * in_h + from_h) * in_w + from_w;
    };
    auto load_round = [&](int round, $held (&to)[4][$held_words]) {
      const int place = round * 128 + own, w = $column_of_place * VECTOR;
      const uint4 row = rows[min($row_of_place, ROWS - 1)];
      const bool real = $is_tile && place < PLACES && from_d + row.y < unsigned(in_d) && from_h + row.z < unsigned(in_h) &&
                        unsigned(from_w + w) < unsigned(in_w);
#pragma unroll
      for (int j = 0; j < 4; ++j) $load<VECTOR>(real$exists, from + row.x + w + j * plane, to[j]);
    };
    auto store_round = [&](int round, $held (&x)[4][$held_words], uint4* into) {
      const int place = round * 128 + own, column = $column_of_place * VECTOR - LEAD;
$stored
    };
    locate();
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) load_round(k, held[k]);
$fills
    int stage = 0, next_round = TOGETHER;
$stage_weight
#pragma unroll 1
    for (int fill = 0; fill < fills; ++fill) {
      if (fill >= STAGES) barrier_sync(EMPTY + stage, ALL_THREADS);
$next_weight
      uint4* const into = reinterpret_cast<uint4*>(input_stages + stage * INPUT_STAGE);
#pragma unroll 1
      for (int round = 0; round < ROUNDS; round += TOGETHER) {
        if (next_round >= ROUNDS) {  // those of the next stage
          next_round = 0;
          if (++chunk == $CHUNKS) {
$next_tile
          }
          locate();
        }
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k) {
          store_round(round + k, held[k], into);
          load_round(next_round + k, held[k]);
        }
        next_round += TOGETHER;
      }
$note_odd
$wait_weight
      warpgroup_operands();
      barrier_arrive(FULL + stage, ALL_THREADS);
      if (++stage == STAGES) stage = 0$next_phase;
    }
    for (int i = 0; i < STAGES; ++i)
      if (i < fills) barrier_sync(EMPTY + i, ALL_THREADS);
    return;
  }

  // Consumers multiply, and finish a tile while producers fill the stages of the next one.
$more_registers
  const int lane_channel = warp_c * CHANNEL_TILES * 16 + group;
  const float* const warp_input = input_stages + 4 * (warp_w * $warp_step_w + (warp_d * $warp_step_d * ROWS_H +
      warp_h * $warp_step_h) * PITCH);
  int stage = 0;
$state
$each_tile
    float acc[CHANNEL_TILES][FRAGMENTS][4];
#pragma unroll
    for (int tile_c = 0; tile_c < CHANNEL_TILES; ++tile_c)
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f)
#pragma unroll
        for (int r = 0; r < 4; ++r) acc[tile_c][f][r] = 0.0f;
    warpgroup_arrive(acc);
#pragma unroll 1
    for (int chunk = 0; chunk < $CHUNKS; ++chunk) {
      barrier_sync(FULL + stage, ALL_THREADS);
      multiply$halves(acc, warp_input + stage * INPUT_STAGE, $weight_at_step$own_channels);
      if (chunk > 0) {  // the step before is through
        warpgroup_wait_but_one();
        barrier_arrive(EMPTY + (stage == 0 ? STAGES - 1 : stage - 1), ALL_THREADS);
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    warpgroup_wait(acc);
    barrier_arrive(EMPTY + (stage == 0 ? STAGES - 1 : stage - 1), ALL_THREADS);
    const int tile_d = tile / (tiles_h * tiles_w), tile_h = tile / tiles_w % tiles_h, tile_w = tile % tiles_w;
$origin_early
$finish
  }
$conclude
}

}  // namespace ${name}_detail

$launcher

//: taps calls WarpgroupOperand warpgroup_operand
// acc += weight x input for CHUNK input channels. $remark
${template_of_stage}__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* input,
                                         const float* weight$stage) {
  const WarpgroupOperand weights = warpgroup_operand(weight, 256, 32), inputs = warpgroup_operand(input, 4 * PLANE, $row);
$arrive
#pragma unroll $unrolled
  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
    const int k8 = k_block / PART_COLUMNS, column = k_block % PART_COLUMNS;
    const int kd = column / KERNEL_W, kw = column % KERNEL_W;
$stage_k_block
#pragma unroll
    for (int kh = 0; kh < KERNEL_H; ++kh) {
      const int at = 4 * (k8 * 2 * PLANE + (kd * DILATION_D * ROWS_H + kh * DILATION_H) * PITCH + kw * DILATION_W);
#pragma unroll
      for (int tile = 0; tile < CHANNEL_TILES; ++tile)
#pragma unroll
        for (int fd = 0; fd < FRAGMENTS_D; ++fd)
$products
    }
$commit_k_block
  }
$last
}

//: phases calls WarpgroupOperand warpgroup_operand
// acc += weight x input for all taps and CHUNK input channels; fragments of all phases are in acc, in the output's order.
// $remark
${template_of_stage}__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* input,
                                         const float* weight$stage) {
  const WarpgroupOperand weights = warpgroup_operand(weight, 256, 32), inputs = warpgroup_operand(input, 4 * PLANE, $row);
$arrive
#pragma unroll $unrolled_eights
  for (int k8 = 0; k8 < CHUNK / 8; ++k8)
#pragma unroll
    for (int column = 0; column < PART_COLUMNS; ++column) {
      const int k_block = k8 * PART_COLUMNS + column, kd = column / KERNEL_W, kw = column % KERNEL_W;
      const int phase_d = phase_of(kd, PADDING_D, PHASES_D), phase_w = phase_of(kw, PADDING_W, PHASES_W);
$stage_k_block
#pragma unroll
      for (int kh = 0; kh < KERNEL_H; ++kh) {
        const int phase_h = phase_of(kh, PADDING_H, PHASES_H);
        const int place_d = place_of(kd, PADDING_D, PHASES_D, HALO_D), place_h = place_of(kh, PADDING_H, PHASES_H, HALO_H);
        const int at = 4 * (k8 * 2 * PLANE + (place_d * ROWS_H + place_h) * PITCH + place_of(kw, PADDING_W, PHASES_W, HALO_W));
#pragma unroll
        for (int tile = 0; tile < CHANNEL_TILES; ++tile)
#pragma unroll
          for (int fd = 0; fd < FRAGMENTS_D / PHASES_D; ++fd)
$products
      }
$commit_k_block
    }
$last
}
