//: taps
// acc += weight × input for one part of the kernel and CHUNK input channels. At each of its TURNS it calls
// stage(turn), which starts the copies of a share of the next step's operands.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int part, Stage stage) {
#pragma unroll UNROLLED_TURNS
  for (int turn = 0; turn < TURNS; ++turn) {
    const int k8 = turn / PART_COLUMNS, column = part * PART_COLUMNS + turn % PART_COLUMNS;
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
      if (kh0 == 0) stage(turn);
#pragma unroll
      for (int kh = kh0; kh < kh0 + KERNEL_ROWS_TOGETHER; ++kh)
#pragma unroll
        for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
          const uint4 four = lane_weight[((turn * KERNEL_H + kh) * BLOCK_TILES + tile) * 32];
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

//: phases
// Output position s q + r of a transposed convolution of stride s takes tap k from input position q + j, where
// k = r + padding - s j. So every tap serves one phase r, and reads one place j + halo of the window all phases share.
__device__ constexpr int phase_of(int tap, int padding, int stride) {
  return ((tap - padding) % stride + stride) % stride;
}
__device__ constexpr int place_of(int tap, int padding, int stride, int halo) {
  return halo + (phase_of(tap, padding, stride) + padding - tap) / stride;
}

// acc += weight × input for all taps and CHUNK input channels; fragments of all phases are in acc, in the output's order.
// At each of its TURNS, one for each column of the window, it calls stage(turn), which starts the copies of a share of
// the next step's operands.
template <class Stage>
__device__ __forceinline__ void multiply(float (&acc)[CHANNEL_TILES][FRAGMENTS][4], const float* lane_input,
                                         const uint4* lane_weight, int, Stage stage) {
  constexpr int ACROSS_D = FRAGMENTS_D / PHASES_D, ACROSS_H = FRAGMENTS_H / PHASES_H, ACROSS_W = FRAGMENTS_W / PHASES_W;
  constexpr int RUN = INTERLEAVE / PHASES_W;  // fragments that take turns along an input row
#pragma unroll 1
  for (int k8 = 0; k8 < CHUNK / 8; ++k8) {
    const uint4* const weight8 = lane_weight + k8 * (KERNEL_D * KERNEL_W * KERNEL_H * BLOCK_TILES * 32);
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
#pragma unroll
          for (int tile = 0; tile < CHANNEL_TILES; ++tile) {
            const uint4 four = weight8[(tap * BLOCK_TILES + tile) * 32];
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
