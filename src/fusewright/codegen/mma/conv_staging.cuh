//: words calls cp_async
  // Each thread copies the same places (VECTOR columns of a row) of every channel; `source` walks from channel to
  // channel. Places outside the input become zeros.
  constexpr int ROW_PLACES = PITCH / VECTOR, PLACES = ROWS_D * ROWS_H * ROW_PLACES;
  constexpr int ROUNDS = (PLACES + STAGERS - 1) / STAGERS;
  float* const stage_to = input_stages + $stager * VECTOR;
  const float* source[ROUNDS];
  unsigned inside = 0;  // a bit for each round
$tile_state
  auto locate = [&](int tile) {
    $locate_decode
    inside = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int place = $stager + round * STAGERS, row = place / ROW_PLACES;
      const int d = tile_d * STEP_D - HALO_D + row / ROWS_H, h = tile_h * STEP_H - HALO_H + row % ROWS_H;
      const int w = tile_w * STEP_W - HALO_W - LEAD + place % ROW_PLACES * VECTOR;
      const bool real = unsigned(d) < unsigned(in_d) && unsigned(h) < unsigned(in_h) && unsigned(w) < unsigned(in_w);
      source[round] = sample + (real ? (d * in_h + h) * in_w + w : 0);
      inside |= unsigned(real) << round;
    }
  };
  auto stage_input = [&](int chunk, int k_block, int buffer) {
#pragma unroll
    for (int k = 0; k < K_BLOCK_CHANNELS; ++k) {
      const int channel = k_block * K_BLOCK_CHANNELS + k;
      if (channel < CHUNK) {
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
          if ($stager + round * STAGERS < PLACES)
            cp_async<4 * VECTOR>(stage_to + buffer * INPUT_STAGE + channel * PLANE + round * STAGERS * VECTOR, source[round],
                                 inside >> round & 1$channel_exists);
          source[round] += plane;
        }
      }
    }
  };

//: rounding calls load store to_tf32
  // What a thread copied, it rounds to TF32 where it lies before others read it: it is read once for each tap.
  auto round_input = [&](int buffer) {
#pragma unroll
    for (int channel = 0; channel < CHUNK; ++channel)
#pragma unroll
      for (int round = 0; round < ROUNDS; ++round) {
        if ($stager + round * STAGERS < PLACES) {
          float* const at = stage_to + buffer * INPUT_STAGE + channel * PLANE + round * STAGERS * VECTOR;
          float some[VECTOR];
          load<VECTOR>(at, some);
#pragma unroll
          for (int v = 0; v < VECTOR; ++v) some[v] = __uint_as_float(to_tf32(some[v]));
          store<VECTOR>(at, some);
        }
      }
  };

//: pairs
  // A word is two neighbouring channels at one position. A thread loads VECTOR columns of a row of both and stores them $joined, BETWEEN
  // k-blocks later. It copies the same places of every pair, or of each ABREAST-th where places are few; `source` walks from pair
  // to pair. Places outside the input become zeros, and so does a channel that a pair lacks.
  constexpr int ROW_PLACES = PITCH / VECTOR, PLACES = ROWS_D * ROWS_H * ROW_PLACES;
$abreast
  constexpr int SHARERS = STAGERS / ABREAST, ROUNDS = (PLACES + SHARERS - 1) / SHARERS;  // threads that share a pair
  constexpr int ALL_K_BLOCKS = REPEATS * PARTS * K_BLOCKS, OWN_PAIRS = CHUNK / ABREAST;
  constexpr int TOGETHER = (OWN_PAIRS + ALL_K_BLOCKS - 1) / ALL_K_BLOCKS, SHARES = (OWN_PAIRS + TOGETHER - 1) / TOGETHER;
  constexpr int BETWEEN = ALL_K_BLOCKS / SHARES;
  const int own_pair = $stager / SHARERS, own_place = $stager % SHARERS;
  float* const stage_to = input_stages + own_pair * PLANE + own_place * VECTOR;
  const $element* source[ROUNDS];
  $held;
  unsigned inside = 0;  // a bit for each round
$tile_state
  auto locate = [&](int tile) {
    $locate_decode
    inside = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
      const int place = own_place + round * SHARERS, row = place / ROW_PLACES;
      const int d = tile_d * STEP_D - HALO_D + row / ROWS_H, h = tile_h * STEP_H - HALO_H + row % ROWS_H;
      const int w = tile_w * STEP_W - HALO_W - LEAD + place % ROW_PLACES * VECTOR;
      const bool real = place < PLACES && unsigned(d) < unsigned(in_d) && unsigned(h) < unsigned(in_h) && unsigned(w) < unsigned(in_w);
      source[round] = sample + 2 * own_pair * plane + (real ? (d * in_h + h) * in_w + w : 0);
      inside |= unsigned(real) << round;
    }
  };
  // At k-blocks 0, BETWEEN, 2 BETWEEN ... it stores what was loaded at the one before, and loads the next share.
  auto stage_input = [&](int chunk, int k_block, int buffer) {
    if (k_block % BETWEEN != 0) return;
    const int share = k_block / BETWEEN;
    if (share > 0 && share <= SHARES) {
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        const int pair = (share - 1) * TOGETHER + k;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
$store
        }
      }
    }
    if (share < SHARES) {
#pragma unroll
      for (int k = 0; k < TOGETHER; ++k) {
        const int pair = share * TOGETHER + k;
        if (pair < OWN_PAIRS) {
#pragma unroll
          for (int round = 0; round < ROUNDS; ++round) {
#pragma unroll
            for (int second = 0; second < 2; ++second)
              $load<VECTOR>(inside >> round & 1$channel_exists, source[round] + second * plane, held[k][round][second]);
            source[round] += 2 * ABREAST * plane;
          }
        }
      }
    }
  };

//: joined calls store
          uint32_t joined[VECTOR];
#pragma unroll
          for (int v = 0; v < VECTOR; ++v)
            joined[v] = __byte_perm(held[k][round][0][v / 2], held[k][round][1][v / 2], v % 2 == 0 ? 0x5410 : 0x7632);
          if (pair < OWN_PAIRS && own_place + round * SHARERS < PLACES)
            store<VECTOR>(reinterpret_cast<uint32_t*>(stage_to + buffer * INPUT_STAGE + pair * ABREAST * PLANE + round * SHARERS * VECTOR),
                          joined);

//: parted calls bf16_parts store
          uint32_t high[VECTOR], low[VECTOR];
#pragma unroll
          for (int v = 0; v < VECTOR; ++v) bf16_parts(held[k][round][0][v], held[k][round][1][v], high[v], low[v]);
          if (pair < OWN_PAIRS && own_place + round * SHARERS < PLACES) {
            float* const at = stage_to + buffer * INPUT_STAGE + pair * ABREAST * PLANE + round * SHARERS * VECTOR;
            store<VECTOR>(reinterpret_cast<uint32_t*>(at), high);
            store<VECTOR>(reinterpret_cast<uint32_t*>(at + LOW), low);
          }

//: weight place
  const int tile = index / 128 % BLOCK_TILES, kh = index / (128 * BLOCK_TILES) % KERNEL_H;
  int rest = index / (128 * BLOCK_TILES * KERNEL_H);
  int column = rest % PART_COLUMNS;
  rest /= PART_COLUMNS;
  const int k8 = rest % (CHUNK / 8);
  rest /= CHUNK / 8;
  column += rest % PARTS * PART_COLUMNS;
  const int chunk = rest / PARTS;
  const int kd = column / KERNEL_W, kw = column % KERNEL_W;

//: weight place, folded
  const int tile = index / 128 % BLOCK_TILES, tap = index / (128 * BLOCK_TILES) * 8 + lane % 4 + word / 2 * 4;
  const int kd = tap / (KERNEL_H * KERNEL_W) % KERNEL_D, kh = tap / KERNEL_W % KERNEL_H, kw = tap % KERNEL_W;
  const int in = ${pairs}tap / (KERNEL_D * KERNEL_H * KERNEL_W)$end_pairs;

//: weight
$place
  const bool real = out < GROUP_OUT && in < $GROUP_IN;
  return real ? $weight_at : 0.0f;

//: weight parts calls bf16_parts
$place
  float even = 0.0f, odd = 0.0f;
  uint32_t high, low;
  if (out < GROUP_OUT && in < $GROUP_IN) even = $weight_at;
  if (out < GROUP_OUT && in + 1 < $GROUP_IN) odd = $next_weight_at;
  bf16_parts(even, odd, high, low);
  return is_low ? low : high;

//: weight pair
$place
  uint32_t pair = 0;
  if (out < GROUP_OUT && in < $GROUP_IN) pair = $bits_of($weight_at);
  if (out < GROUP_OUT && in + 1 < $GROUP_IN) pair |= uint32_t($bits_of($next_weight_at)) << 16;
  return pair;
