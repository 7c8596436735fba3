//: taps
// acc += weight × input for one part of the kernel and CHUNK input channels. At each of its K_BLOCKS it calls
// stage(k_block), which starts the copies of a share of the next step's operands.
template <${weights}class Stage>
__device__ __forceinline__ void $multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int part, Stage stage) {
#pragma unroll UNROLLED_K_BLOCKS
  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
    const int k8 = k_block / PART_COLUMNS, column = part * PART_COLUMNS + k_block % PART_COLUMNS;
    const int kd = column / KERNEL_W, kw = column % KERNEL_W;
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
            x[fd][row][fw][0] = $operand(at[0]);
            x[fd][row][fw][1] = $operand(at[4 * PLANE]);
          }
      if (kh0 == 0) stage(k_block);
#pragma unroll
      for (int kh = kh0; kh < kh0 + KERNEL_ROWS_TOGETHER; ++kh)
$each_weight
#pragma unroll
        for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
          const uint4 four = lane_weight[((${weight_k}k_block * KERNEL_H + kh$end_k) * BLOCK_TILES + tile) * 32];
          const uint32_t w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int f = 0; f < FRAGMENTS; ++f)
            $mma(acc[tile][f], w,
                     x[f / (FRAGMENTS_H * FRAGMENTS_W)]
                      [f / FRAGMENTS_W % FRAGMENTS_H * STRIDE_H + (kh - kh0) * DILATION_H][f % FRAGMENTS_W]);
        }
    }
  }
}

//: folded places
// The depth of the products is all taps of all input channels, in the order of the weight tensor: its columns first. Eight taps are
// a step, of which a lane reads two, 4 apart.
struct __align__(8) Offsets {
  int first, second;
};
__device__ __forceinline__ constexpr int place_of(int tap) {
  const int kd = tap / (KERNEL_H * KERNEL_W) % KERNEL_D, kh = tap / KERNEL_W % KERNEL_H, kw = tap % KERNEL_W;
  return tap / (KERNEL_D * KERNEL_H * KERNEL_W) * PLANE + (kd * DILATION_D * ROWS_H + kh * DILATION_H) * PITCH + kw * DILATION_W;
}
__device__ __forceinline__ Offsets offsets_of(int step, int quad) {  // beyond the last tap, of any that exists
  const int first = step * 8 + quad, second = first + 4;
  return {place_of(first < DEPTH ? first : 0), place_of(second < DEPTH ? second : 0)};
}
__device__ __forceinline__ constexpr int fragment_place(int f) {
  const int fd = f / (FRAGMENTS_H * FRAGMENTS_W), fh = f / FRAGMENTS_W % FRAGMENTS_H, fw = f % FRAGMENTS_W;
  return (fd * STRIDE_D * ROWS_H + fh * STRIDE_H) * PITCH + (fw / INTERLEAVE * 8 * INTERLEAVE + fw % INTERLEAVE) * STRIDE_W;
}
__device__ __forceinline__ bool exists(int k_block, int tap) {  // of a step's eight: only the last step may lack some
  return DEPTH % 8 == 0 || k_block + 1 < K_BLOCKS || tap < DEPTH % 8;
}

//: folded
// acc += weight × input$is_rounded, for all taps. `offsets(k_block)` says where a lane's two inputs of a step lie; those beyond
// the last tap are zeros, whatever lies there. At each of its K_BLOCKS, one for each step, it calls stage(k_block), which starts the copies of
// a share of the next tile.
template <${weights}class Read, class Stage>
__device__ __forceinline__ void $multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int quad, Read offsets, Stage stage) {
#pragma unroll UNROLLED_K_BLOCKS
  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
    const Offsets at = offsets(k_block);
    const float *const first = lane_input + at.first, *const second = lane_input + at.second;
    uint32_t x[FRAGMENTS][2];
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
      x[f][0] = __float_as_uint(exists(k_block, quad) ? first[fragment_place(f)] : 0.0f);
      x[f][1] = __float_as_uint(exists(k_block, quad + 4) ? second[fragment_place(f)] : 0.0f);
    }
    stage(k_block);
$each_weight
#pragma unroll
    for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
      const uint4 four = lane_weight[(${weight_k}k_block$end_k * BLOCK_TILES + tile) * 32];
      const uint32_t w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f) $mma(acc[tile][f], w, x[f]);
    }
  }
}

//: places
// Output position s q + r of a transposed convolution of stride s takes tap k from input position q + j, where
// k = r + padding - s j. So every tap serves one phase r, and reads one place j + halo of the window all phases share.
__device__ constexpr int phase_of(int tap, int padding, int stride) {
  return ((tap - padding) % stride + stride) % stride;
}
__device__ constexpr int place_of(int tap, int padding, int stride, int halo) {
  return halo + (phase_of(tap, padding, stride) + padding - tap) / stride;
}

//: phases
// acc += weight × input for all taps and CHUNK input channels; fragments of all phases are in acc, in the output's order.
// At each of its K_BLOCKS, one for each column of the window, it calls stage(k_block), which starts the copies of a share of
// the next step's operands.
template <${weights}class Stage>
__device__ __forceinline__ void $multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int, Stage stage) {
  constexpr int ACROSS_D = FRAGMENTS_D / PHASES_D, ACROSS_H = FRAGMENTS_H / PHASES_H, ACROSS_W = FRAGMENTS_W / PHASES_W;
  constexpr int RUN = INTERLEAVE / PHASES_W;  // fragments interleaved along an input row
#pragma unroll 1
  for (int k8 = 0; k8 < CHUNK / 8; ++k8) {
    const uint4* const weight8 = lane_weight + k8 * (KERNEL_D * KERNEL_W * KERNEL_H * BLOCK_TILES * $lanes);
#pragma unroll
    for (int column = 0; column < REACH_D * REACH_W; ++column) {
      const int place_d = column / REACH_W, place_w = column % REACH_W;
      const float* window = lane_input + k8 * 8 * PLANE + place_d * ROWS_H * PITCH + place_w;
#pragma unroll
      for (int first = 0; first < REACH_H; first += KERNEL_ROWS_TOGETHER) {
        uint32_t x[ACROSS_D][WINDOW_ROWS][ACROSS_W][2];
#pragma unroll
        for (int fd = 0; fd < ACROSS_D; ++fd)
#pragma unroll
          for (int row = 0; row < WINDOW_ROWS; ++row)
#pragma unroll
            for (int fw = 0; fw < ACROSS_W; ++fw) {
              const float* at = window + (fd * ROWS_H + first + row) * PITCH + fw / RUN * 8 * RUN + fw % RUN;
              x[fd][row][fw][0] = $operand(at[0]);
              x[fd][row][fw][1] = $operand(at[4 * PLANE]);
            }
        if (first == 0) stage(k8 * REACH_D * REACH_W + column);
#pragma unroll
        for (int tap = 0; tap < KERNEL_D * KERNEL_W * KERNEL_H; ++tap) {
          const int kd = tap / (KERNEL_W * KERNEL_H), kw = tap / KERNEL_H % KERNEL_W, kh = tap % KERNEL_H;
          const int place_h = place_of(kh, PADDING_H, PHASES_H, HALO_H);
          const bool here = place_of(kd, PADDING_D, PHASES_D, HALO_D) == place_d &&
                            place_of(kw, PADDING_W, PHASES_W, HALO_W) == place_w && place_h >= first &&
                            place_h < first + KERNEL_ROWS_TOGETHER;
          if (!here) continue;  // decided at compile time
          const int phase_d = phase_of(kd, PADDING_D, PHASES_D), phase_h = phase_of(kh, PADDING_H, PHASES_H);
          const int phase_w = phase_of(kw, PADDING_W, PHASES_W);
$each_weight
#pragma unroll
          for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
            const uint4 four = weight8[(${weight_k}tap$end_k * BLOCK_TILES + tile) * 32];
            const uint32_t w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int f = 0; f < ACROSS_D * ACROSS_H * ACROSS_W; ++f) {
              const int fd = f / (ACROSS_H * ACROSS_W), fh = f / ACROSS_W % ACROSS_H, fw = f % ACROSS_W;
              const int out_d = fd * PHASES_D + phase_d, out_h = fh * PHASES_H + phase_h;
              $mma(acc[tile][(out_d * FRAGMENTS_H + out_h) * FRAGMENTS_W + fw * PHASES_W + phase_w], w,
                       x[fd][fh + place_h - first][fw]);
            }
          }
        }
      }
    }
  }
}

//: parts
// acc += weight × input, each number as the sum of two bf16 ones: three products make float32's, the small ones first. The fourth is left
// out, so that what they add up to is off by at most 3 * 2^-16 of it.
template <${read}class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, $where, Stage stage) {
  multiply_part<1>(acc, lane_input + LOW, lane_weight, $handed, [](int) {});
  multiply_part<2>(acc, lane_input, lane_weight, $handed, stage);
}

//: split calls to_tf32_even
// x as the sum of two TF32 numbers, to half a unit of its last bit or little more. What is not finite has no such parts: `low` is
// not finite then, and nor is a sum that it is part of.
__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
  high = to_tf32_even(x);
  low = to_tf32_even(x - __uint_as_float(high));
}
__device__ __forceinline__ void split(const uint4& four, uint32_t (&high)[4], uint32_t (&low)[4]) {
  split(__uint_as_float(four.x), high[0], low[0]);
  split(__uint_as_float(four.y), high[1], low[1]);
  split(__uint_as_float(four.z), high[2], low[2]);
  split(__uint_as_float(four.w), high[3], low[3]);
}

//: taps split calls mma_tf32 mma_tf32_new
// acc += weight × input for one part of the kernel and CHUNK input channels, each number as two TF32 ones: three products make
// float32's (the fourth lies below its last bit), the small ones first. Tensor cores cut off what lies below an accumulator's last
// bit, so the products of a kernel column are summed there from zero and then added in float32. At each of its K_BLOCKS it calls
// stage(k_block), which starts the copies of a share of the next step's operands.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int part, Stage stage) {
#pragma unroll UNROLLED_K_BLOCKS
  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
    const int k8 = k_block / PART_COLUMNS, column = part * PART_COLUMNS + k_block % PART_COLUMNS;
    const int kd = column / KERNEL_W, kw = column % KERNEL_W;
    const float* window = lane_input + k8 * 8 * PLANE + kd * DILATION_D * ROWS_H * PITCH + kw * DILATION_W;
#pragma unroll 1
    for (int kh0 = 0; kh0 < KERNEL_H; kh0 += KERNEL_ROWS_TOGETHER) {
      uint32_t high[FRAGMENTS_D][WINDOW_ROWS][FRAGMENTS_W][2], low[FRAGMENTS_D][WINDOW_ROWS][FRAGMENTS_W][2];
#pragma unroll
      for (int fd = 0; fd < FRAGMENTS_D; ++fd)
#pragma unroll
        for (int row = 0; row < WINDOW_ROWS; ++row)  // rows that no tap uses cost nothing
#pragma unroll
          for (int fw = 0; fw < FRAGMENTS_W; ++fw) {
            const float* at = window + (fd * STRIDE_D * ROWS_H + kh0 * DILATION_H + row) * PITCH +
                              (fw / INTERLEAVE * 8 * INTERLEAVE + fw % INTERLEAVE) * STRIDE_W;
            split(at[0], high[fd][row][fw][0], low[fd][row][fw][0]);
            split(at[4 * PLANE], high[fd][row][fw][1], low[fd][row][fw][1]);
          }
      if (kh0 == 0) stage(k_block);
#pragma unroll
      for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
        float sum[FRAGMENTS][4];
        uint32_t w_high[KERNEL_ROWS_TOGETHER][4];
        auto add = [&](bool first, int kh, const uint32_t (&w)[4], const uint32_t (&x)[FRAGMENTS_D][WINDOW_ROWS][FRAGMENTS_W][2]) {
#pragma unroll
          for (int f = 0; f < FRAGMENTS; ++f) {
            const int fd = f / (FRAGMENTS_H * FRAGMENTS_W), fw = f % FRAGMENTS_W;
            const int row = f / FRAGMENTS_W % FRAGMENTS_H * STRIDE_H + kh * DILATION_H;
            first ? mma_tf32_new(sum[f], w, x[fd][row][fw]) : mma_tf32(sum[f], w, x[fd][row][fw]);
          }
        };
#pragma unroll
        for (int kh = 0; kh < KERNEL_ROWS_TOGETHER; ++kh) {
          uint32_t w_low[4];
          split(lane_weight[((k_block * KERNEL_H + kh0 + kh) * BLOCK_TILES + tile) * 32], w_high[kh], w_low);
          add(kh == 0, kh, w_low, high);
          add(false, kh, w_high[kh], low);
        }
#pragma unroll
        for (int kh = 0; kh < KERNEL_ROWS_TOGETHER; ++kh) add(false, kh, w_high[kh], high);
#pragma unroll
        for (int i = 0; i < FRAGMENTS * 4; ++i) acc[tile][i / 4][i % 4] += sum[i / 4][i % 4];
      }
    }
  }
}

//: folded split calls mma_tf32 mma_tf32_new
// acc += weight × input for all taps, each number as two TF32 ones: three products make float32's (the fourth lies below its last bit),
// the small ones first. Tensor cores cut off what lies below an accumulator's last bit, so the products of a step are summed there from
// zero and then added in float32. `offsets(k_block)` says where a lane's two inputs of a step lie; those beyond the last tap are zeros,
// whatever lies there. At each of its K_BLOCKS, one for each step, it calls stage(k_block), which starts the copies of a share of the next tile.
template <class Read, class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int quad, Read offsets, Stage stage) {
#pragma unroll UNROLLED_K_BLOCKS
  for (int k_block = 0; k_block < K_BLOCKS; ++k_block) {
    const Offsets at = offsets(k_block);
    const float *const first = lane_input + at.first, *const second = lane_input + at.second;
    uint32_t high[FRAGMENTS][2], low[FRAGMENTS][2];
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
      split(exists(k_block, quad) ? first[fragment_place(f)] : 0.0f, high[f][0], low[f][0]);
      split(exists(k_block, quad + 4) ? second[fragment_place(f)] : 0.0f, high[f][1], low[f][1]);
    }
    stage(k_block);
#pragma unroll
    for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
      uint32_t w_high[4], w_low[4];
      split(lane_weight[(k_block * BLOCK_TILES + tile) * 32], w_high, w_low);
      float sum[FRAGMENTS][4];
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f) mma_tf32_new(sum[f], w_low, high[f]);
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f) mma_tf32(sum[f], w_high, low[f]);
#pragma unroll
      for (int f = 0; f < FRAGMENTS; ++f) mma_tf32(sum[f], w_high, high[f]);
#pragma unroll
      for (int i = 0; i < FRAGMENTS * 4; ++i) acc[tile][i / 4][i % 4] += sum[i / 4][i % 4];
    }
  }
}

//: phases split calls mma_tf32 mma_tf32_new
// acc += weight × input for all taps and CHUNK input channels, each number as two TF32 ones: three products make float32's (the
// fourth lies below its last bit), the small ones first. Tensor cores cut off what lies below an accumulator's last bit, so the
// products of a tap are summed there from zero and then added in float32. Fragments of all phases are in acc, in the output's
// order. At each of its K_BLOCKS, one for each column of the window, it calls stage(k_block), which starts the copies of a share of the
// next step's operands.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int, Stage stage) {
  constexpr int ACROSS_D = FRAGMENTS_D / PHASES_D, ACROSS_H = FRAGMENTS_H / PHASES_H, ACROSS_W = FRAGMENTS_W / PHASES_W;
  constexpr int RUN = INTERLEAVE / PHASES_W;  // fragments interleaved along an input row
#pragma unroll 1
  for (int k8 = 0; k8 < CHUNK / 8; ++k8) {
    const uint4* const weight8 = lane_weight + k8 * (KERNEL_D * KERNEL_W * KERNEL_H * BLOCK_TILES * 32);
#pragma unroll
    for (int column = 0; column < REACH_D * REACH_W; ++column) {
      const int place_d = column / REACH_W, place_w = column % REACH_W;
      const float* window = lane_input + k8 * 8 * PLANE + place_d * ROWS_H * PITCH + place_w;
#pragma unroll
      for (int first = 0; first < REACH_H; first += KERNEL_ROWS_TOGETHER) {
        uint32_t high[ACROSS_D][WINDOW_ROWS][ACROSS_W][2], low[ACROSS_D][WINDOW_ROWS][ACROSS_W][2];
#pragma unroll
        for (int fd = 0; fd < ACROSS_D; ++fd)
#pragma unroll
          for (int row = 0; row < WINDOW_ROWS; ++row)
#pragma unroll
            for (int fw = 0; fw < ACROSS_W; ++fw) {
              const float* at = window + (fd * ROWS_H + first + row) * PITCH + fw / RUN * 8 * RUN + fw % RUN;
              split(at[0], high[fd][row][fw][0], low[fd][row][fw][0]);
              split(at[4 * PLANE], high[fd][row][fw][1], low[fd][row][fw][1]);
            }
        if (first == 0) stage(k8 * REACH_D * REACH_W + column);
#pragma unroll
        for (int tap = 0; tap < KERNEL_D * KERNEL_W * KERNEL_H; ++tap) {
          const int kd = tap / (KERNEL_W * KERNEL_H), kw = tap / KERNEL_H % KERNEL_W, kh = tap % KERNEL_H;
          const int place_h = place_of(kh, PADDING_H, PHASES_H, HALO_H);
          const bool here = place_of(kd, PADDING_D, PHASES_D, HALO_D) == place_d &&
                            place_of(kw, PADDING_W, PHASES_W, HALO_W) == place_w && place_h >= first &&
                            place_h < first + KERNEL_ROWS_TOGETHER;
          if (!here) continue;  // decided at compile time
          const int phase_d = phase_of(kd, PADDING_D, PHASES_D), phase_h = phase_of(kh, PADDING_H, PHASES_H);
          const int phase_w = phase_of(kw, PADDING_W, PHASES_W);
#pragma unroll
          for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
            uint32_t w_high[4], w_low[4];
            split(weight8[(tap * BLOCK_TILES + tile) * 32], w_high, w_low);
            float sum[ACROSS_D * ACROSS_H * ACROSS_W][4];
#pragma unroll
            for (int product = 0; product < 3; ++product)
#pragma unroll
              for (int f = 0; f < ACROSS_D * ACROSS_H * ACROSS_W; ++f) {
                const int fd = f / (ACROSS_H * ACROSS_W), row = f / ACROSS_W % ACROSS_H + place_h - first, fw = f % ACROSS_W;
                if (product == 0) mma_tf32_new(sum[f], w_low, high[fd][row][fw]);
                if (product == 1) mma_tf32(sum[f], w_high, low[fd][row][fw]);
                if (product == 2) mma_tf32(sum[f], w_high, high[fd][row][fw]);
              }
#pragma unroll
            for (int i = 0; i < ACROSS_D * ACROSS_H * ACROSS_W * 4; ++i) {
              const int fd = i / 4 / (ACROSS_H * ACROSS_W), fh = i / 4 / ACROSS_W % ACROSS_H, fw = i / 4 % ACROSS_W;
              const int out_d = fd * PHASES_D + phase_d, out_h = fh * PHASES_H + phase_h;
              acc[tile][(out_d * FRAGMENTS_H + out_h) * FRAGMENTS_W + fw * PHASES_W + phase_w][i % 4] += sum[i / 4][i % 4];
            }
          }
        }
      }
    }
  }
}

//: plain
// One element by plain arithmetic, for sums that are not finite: the two parts of what is not finite do not add up to it.
__device__ __forceinline__ float plain_sum(const float* __restrict__ sample, const float* __restrict__ weight, int c, int out_d,
                                           int out_h, int out_w, int in_d, int in_h, int in_w) {
  const int group = c / GROUP_OUT, out = c % GROUP_OUT;
  float sum = 0.0f;
#pragma unroll 1
  for (int in = 0; in < $GROUP_IN; ++in)
#pragma unroll 1
    for (int tap = 0; tap < KERNEL_D * KERNEL_H * KERNEL_W; ++tap) {
      const int kd = tap / (KERNEL_H * KERNEL_W), kh = tap / KERNEL_W % KERNEL_H, kw = tap % KERNEL_W;
$plain_place
      if (real) sum = fmaf(sample[((long long)in * in_d + d) * in_h * in_w + h * in_w + w], $weight_at, sum);
    }
  return sum;
}

//: plain place
      const int d = out_d * STRIDE_D - HALO_D + kd * DILATION_D, h = out_h * STRIDE_H - HALO_H + kh * DILATION_H;
      const int w = out_w * STRIDE_W - HALO_W + kw * DILATION_W;
      const bool real = unsigned(d) < unsigned(in_d) && unsigned(h) < unsigned(in_h) && unsigned(w) < unsigned(in_w);

//: plain place of phases
      const int from_d = out_d + PADDING_D - kd, from_h = out_h + PADDING_H - kh, from_w = out_w + PADDING_W - kw;
      const int d = from_d / PHASES_D, h = from_h / PHASES_H, w = from_w / PHASES_W;
      const bool real = from_d >= 0 && d < in_d && from_h >= 0 && h < in_h && from_w >= 0 && w < in_w &&
                        from_d % PHASES_D == 0 && from_h % PHASES_H == 0 && from_w % PHASES_W == 0;
