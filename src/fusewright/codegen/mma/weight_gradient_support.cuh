//: section weight_gradient needs cp_async cp_async_commit cp_async_wait ldmatrix_x4 mma_tf32 mma_tf32_new to_tf32_even
// The gradient of a convolution's weight in float32 on the tensor cores, as one product of matrices: `upstream` [rows, positions] times
// `input` [positions, columns]. A column is an input channel and a tap; at a position it reads input at position * stride + tap.
namespace weight_gradient {

struct Sizes {
  int batch, out_d, out_h, out_w, in_d, in_h, in_w;
};

// T::HIGH x T::WIDE positions that are staged together: where they begin.
struct Step {
  int n, d, h, w;
};

template <class T> __host__ __device__ __forceinline__ long long steps_of(const Sizes& size) {
  return (long long)size.batch * size.out_d * ((size.out_h + T::HIGH - 1) / T::HIGH) * ((size.out_w + T::WIDE - 1) / T::WIDE);
}

template <class T> __device__ __forceinline__ Step step_at(int step, const Sizes& size) {
  const int across = (size.out_w + T::WIDE - 1) / T::WIDE, down = (size.out_h + T::HIGH - 1) / T::HIGH;
  const int row = step / across, plane = row / down;
  return {plane / size.out_d, plane % size.out_d, row % down * T::HIGH, step % across * T::WIDE};
}

// Calls `copy(place, set)` for each of PLACES places; where there are more threads, SETS of them share a place.
template <int PLACES, int THREADS> constexpr int SETS = THREADS >= PLACES ? THREADS / PLACES : 1;
template <int PLACES, int THREADS, class Copy> __device__ __forceinline__ void each_place(Copy copy) {
  constexpr int APART = THREADS >= PLACES ? PLACES : THREADS;
  const int set = threadIdx.x / APART;
  if (set < SETS<PLACES, THREADS>)
#pragma unroll 1
    for (int place = threadIdx.x % APART; place < PLACES; place += APART) copy(place, set);
}

// Starts the copies of one step: of upstream T::BLOCK_ROWS rows, of input what the taps of T::BLOCK_CHANNELS channels read. Zeros where
// there is nothing.
template <class T, int VECTOR>
__device__ __forceinline__ void stage_step(float* stage, const float* __restrict__ upstream, const float* __restrict__ input, const Step& at,
                                     const Sizes& size, int group, int row0, int channel0) {
  constexpr int IN_STEP = T::POSITIONS / VECTOR;
  each_place<IN_STEP, T::THREADS>([&](int place, int set) {
    constexpr int APART = SETS<IN_STEP, T::THREADS>;
    const int h = at.h + place * VECTOR / T::WIDE, w = at.w + place * VECTOR % T::WIDE;
    const bool real = h < size.out_h && w < size.out_w;
    const long long plane = (long long)size.out_d * size.out_h * size.out_w;
    const float* from = upstream + ((long long)at.n * T::ALL_ROWS + group * T::ROWS + row0 + set) * plane +
                        ((long long)at.d * size.out_h + h) * size.out_w + w;
    float* const to = stage + place * VECTOR;
#pragma unroll 4
    for (int row = set; row < T::BLOCK_ROWS; row += APART, from += APART * plane)
      cp_async<4 * VECTOR>(to + row * T::PITCH, from, real && row0 + row < T::ROWS);
  });
  constexpr int WINDOW = T::KERNEL_D * T::WINDOW_H * T::WINDOW_W;
  each_place<WINDOW, T::THREADS>([&](int place, int set) {
    constexpr int APART = SETS<WINDOW, T::THREADS>;
    const int x = place % T::WINDOW_W, y = place / T::WINDOW_W % T::WINDOW_H, z = place / (T::WINDOW_W * T::WINDOW_H);
    const int d = at.d * T::STRIDE_D - T::PADDING_D + z * T::DILATION_D, h = at.h * T::STRIDE_H - T::PADDING_H + y;
    const int w = at.w * T::STRIDE_W - T::PADDING_W + x;
    const bool real = unsigned(d) < unsigned(size.in_d) && unsigned(h) < unsigned(size.in_h) && unsigned(w) < unsigned(size.in_w);
    const long long plane = (long long)size.in_d * size.in_h * size.in_w;
    const float* from = input + ((long long)at.n * T::ALL_CHANNELS + group * T::CHANNELS + channel0 + set) * plane +
                        ((long long)d * size.in_h + h) * size.in_w + w;
    float* const to = stage + T::INPUT + z * T::WINDOW_PLANE + y * T::WINDOW_PITCH + x;
#pragma unroll 4
    for (int channel = set; channel < T::BLOCK_CHANNELS; channel += APART, from += APART * plane)
      cp_async<4>(to + channel * T::CHANNEL_PITCH, from, real && channel0 + channel < T::CHANNELS);
  });
}

// Where a chunk of 16 positions lies in a window of input; in it, where position 4 four begins.
template <class T> __device__ __forceinline__ int place_of(int chunk) {
  constexpr int IN_ROW = T::WIDE >= 16 ? T::WIDE / 16 : 1, ROWS = T::WIDE >= 16 ? 1 : 16 / T::WIDE;
  return chunk / IN_ROW * ROWS * T::STRIDE_H * T::WINDOW_PITCH + chunk % IN_ROW * 16 * T::STRIDE_W;
}
template <class T> __host__ __device__ constexpr int place_in(int four) {
  return 4 * four / T::WIDE * T::STRIDE_H * T::WINDOW_PITCH + 4 * four % T::WIDE * T::STRIDE_W;
}

// x as the sum of two TF32 numbers; as one where T does not split.
template <class T> __device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
  high = to_tf32_even(x);
  if (T::SPLIT) low = to_tf32_even(x - __uint_as_float(high));
}

// acc += upstream * input for the positions of a step, 16 at a time. Their products are summed on the tensor cores from zero and then added
// in float32: the tensor cores cut off what lies below an accumulator's last bit. A number that is split gives three products of its parts,
// the small ones first. Where a step is not WHOLE, some of its positions do not exist: upstream is zero there, and input, which may be
// infinite, is taken as zero.
template <class T, bool WHOLE>
__device__ __forceinline__ void multiply(float (&acc)[T::TILES][T::FRAGMENTS][4], const float* upstream, const float* input,
                                         const int (&column)[T::FRAGMENTS], const Step& at, const Sizes& size, int warp_k) {
  const int lane = threadIdx.x % 4;
#pragma unroll 1
  for (int chunk = warp_k; chunk < T::POSITIONS / 16; chunk += T::WARPS_K) {
    uint32_t row_high[T::TILES][2][4], row_low[T::TILES][2][4];
#pragma unroll
    for (int i = 0; i < T::TILES * 2; ++i) {
      uint32_t bits[4];
      ldmatrix_x4(bits, upstream + i / 2 * 16 * T::PITCH + chunk * 16 + i % 2 * 8);
#pragma unroll
      for (int r = 0; r < 4; ++r) split<T>(__uint_as_float(bits[r]), row_high[i / 2][i % 2][r], row_low[i / 2][i % 2][r]);
    }
    bool real[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = chunk * 16 + 4 * i;
      real[i] = WHOLE || (at.h + position / T::WIDE < size.out_h && at.w + position % T::WIDE + lane < size.out_w);
    }
    const float* const chunk_input = input + place_of<T>(chunk);
#pragma unroll
    for (int fragment = 0; fragment < T::FRAGMENTS; ++fragment) {
      const float* const from = chunk_input + column[fragment];
      uint32_t high[2][2], low[2][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) split<T>(real[i] ? from[place_in<T>(i)] : 0.0f, high[i / 2][i % 2], low[i / 2][i % 2]);
#pragma unroll
      for (int tile = 0; tile < T::TILES; ++tile) {
        float sum[4];
        if constexpr (T::SPLIT) {
          mma_tf32_new(sum, row_low[tile][0], high[0]);
          mma_tf32(sum, row_low[tile][1], high[1]);
          mma_tf32(sum, row_high[tile][0], low[0]);
          mma_tf32(sum, row_high[tile][1], low[1]);
          mma_tf32(sum, row_high[tile][0], high[0]);
        } else {
          mma_tf32_new(sum, row_high[tile][0], high[0]);
        }
        mma_tf32(sum, row_high[tile][1], high[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[tile][fragment][i] += sum[i];
      }
    }
  }
}

// One element by plain arithmetic, for sums that are not finite: the parts of an infinity do not add up to it.
template <class T>
__device__ __noinline__ float plain_sum(const float* __restrict__ upstream, const float* __restrict__ input, const Sizes size, int group,
                                        int row, int column, int first, int last) {
  const int tap = column % T::TAPS, kd = tap / (T::KERNEL_H * T::KERNEL_W), kh = tap / T::KERNEL_W % T::KERNEL_H, kw = tap % T::KERNEL_W;
  float sum = 0.0f;
#pragma unroll 1
  for (int step = first; step < last; ++step) {
    const Step at = step_at<T>(step, size);
    const float* const own = upstream + ((long long)at.n * T::ALL_ROWS + group * T::ROWS + row) * size.out_d * size.out_h * size.out_w;
    const float* const read = input + ((long long)at.n * T::ALL_CHANNELS + group * T::CHANNELS + column / T::TAPS) * size.in_d * size.in_h * size.in_w;
#pragma unroll 1
    for (int i = 0; i < T::POSITIONS; ++i) {
      const int out_h = at.h + i / T::WIDE, out_w = at.w + i % T::WIDE;
      const int d = at.d * T::STRIDE_D - T::PADDING_D + kd * T::DILATION_D, h = out_h * T::STRIDE_H - T::PADDING_H + kh * T::DILATION_H;
      const int w = out_w * T::STRIDE_W - T::PADDING_W + kw * T::DILATION_W;
      const bool inside = unsigned(d) < unsigned(size.in_d) && unsigned(h) < unsigned(size.in_h) && unsigned(w) < unsigned(size.in_w);
      if (inside && out_h < size.out_h && out_w < size.out_w)
        sum = fmaf(own[((long long)at.d * size.out_h + out_h) * size.out_w + out_w], read[((long long)d * size.in_h + h) * size.in_w + w], sum);
    }
  }
  return sum;
}

// A block's tile of the gradient, of the steps that are its slice: blockIdx.x is the tile, blockIdx.y the slice. `out` is [slices, rows,
// columns], of all groups.
template <class T, int VECTOR>
__device__ __forceinline__ void run(const float* __restrict__ upstream, const float* __restrict__ input, float* __restrict__ out,
                                    const Sizes& size, float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_k = warp % T::WARPS_K, warp_n = warp / T::WARPS_K % T::WARPS_N, warp_m = warp / (T::WARPS_K * T::WARPS_N);
  constexpr int ACROSS = (T::COLUMNS + T::BLOCK_COLUMNS - 1) / T::BLOCK_COLUMNS, DOWN = (T::ROWS + T::BLOCK_ROWS - 1) / T::BLOCK_ROWS;
  const int column0 = int(blockIdx.x) % ACROSS * T::BLOCK_COLUMNS, row0 = int(blockIdx.x) / ACROSS % DOWN * T::BLOCK_ROWS;
  const int group = int(blockIdx.x) / (ACROSS * DOWN), channel0 = column0 / T::TAPS;
  const long long steps = steps_of<T>(size);
  const int first = int(steps * blockIdx.y / gridDim.y), last = int(steps * (blockIdx.y + 1) / gridDim.y);

  int column[T::FRAGMENTS];  // where this lane's column of each fragment begins in a stage's input
#pragma unroll
  for (int fragment = 0; fragment < T::FRAGMENTS; ++fragment) {
    const int own = min(column0 + (warp_n * T::FRAGMENTS + fragment) * 8 + lane / 4, T::COLUMNS - 1), tap = own % T::TAPS;
    const int kd = tap / (T::KERNEL_H * T::KERNEL_W), kh = tap / T::KERNEL_W % T::KERNEL_H, kw = tap % T::KERNEL_W;
    column[fragment] = (own / T::TAPS - channel0) * T::CHANNEL_PITCH + kd * T::WINDOW_PLANE + kh * T::DILATION_H * T::WINDOW_PITCH +
                       kw * T::DILATION_W + lane % 4 * T::STRIDE_W;
  }
  float acc[T::TILES][T::FRAGMENTS][4] = {};
  const float* const own_rows = shared + (warp_m * T::TILES * 16 + lane % 16) * T::PITCH + lane / 16 * 4;  // as ldmatrix reads them

#pragma unroll
  for (int ahead = 0; ahead < T::STAGES - 1; ++ahead) {
    if (first + ahead < last)
      stage_step<T, VECTOR>(shared + ahead * T::STAGE, upstream, input, step_at<T>(first + ahead, size), size, group, row0, channel0);
    cp_async_commit();
  }
  int stage = 0;
#pragma unroll 1
  for (int step = first; step < last; ++step) {
    cp_async_wait<T::STAGES - 2>();
    __syncthreads();  // the step is there, and nobody reads the stage of the one before any more
    const int next = step + T::STAGES - 1, to = stage == 0 ? T::STAGES - 1 : stage - 1;
    if (next < last) stage_step<T, VECTOR>(shared + to * T::STAGE, upstream, input, step_at<T>(next, size), size, group, row0, channel0);
    cp_async_commit();
    const Step at = step_at<T>(step, size);
    const int begin = stage * T::STAGE;
    if (at.h + T::HIGH <= size.out_h && at.w + T::WIDE <= size.out_w)
      multiply<T, true>(acc, own_rows + begin, shared + begin + T::INPUT, column, at, size, warp_k);
    else
      multiply<T, false>(acc, own_rows + begin, shared + begin + T::INPUT, column, at, size, warp_k);
    stage = stage == T::STAGES - 1 ? 0 : stage + 1;
  }

  if constexpr (T::WARPS_K > 1) {  // warps that shared the positions add up what they have, one after the other
    cp_async_wait<0>();
    float* const sums = shared + warp / T::WARPS_K * T::TILES * T::FRAGMENTS * 128 + lane;
#pragma unroll 1
    for (int other = 1; other < T::WARPS_K; ++other) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < T::TILES * T::FRAGMENTS * 4; ++i)
        if (warp_k == other) sums[i * 32] = acc[i / 4 / T::FRAGMENTS][i / 4 % T::FRAGMENTS][i % 4];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < T::TILES * T::FRAGMENTS * 4; ++i)
        if (warp_k == 0) acc[i / 4 / T::FRAGMENTS][i / 4 % T::FRAGMENTS][i % 4] += sums[i * 32];
    }
    if (warp_k != 0) return;
  }
  out += ((long long)blockIdx.y * T::ALL_ROWS + group * T::ROWS) * T::COLUMNS;
#pragma unroll
  for (int i = 0; i < T::TILES * T::FRAGMENTS * 4; ++i) {
    const int tile = i / 4 / T::FRAGMENTS, fragment = i / 4 % T::FRAGMENTS;
    const int m = row0 + (warp_m * T::TILES + tile) * 16 + lane / 4 + i % 4 / 2 * 8;
    const int n = column0 + (warp_n * T::FRAGMENTS + fragment) * 8 + lane % 4 * 2 + i % 2;
    if (m >= T::ROWS || n >= T::COLUMNS) continue;
    float value = acc[tile][fragment][i % 4];
    if (T::SPLIT && !(fabsf(value) < INFINITY)) value = plain_sum<T>(upstream, input, size, group, m, n, first, last);
    out[(long long)m * T::COLUMNS + n] = value;
  }
}

// Adds the sums of all slices, in a fixed order: eight threads an element.
template <class T> __device__ __forceinline__ void merge(const float* __restrict__ sums, float* __restrict__ out, int slices) {
  __shared__ float of_thread[8][32];
  constexpr long long ELEMENTS = (long long)T::ALL_ROWS * T::COLUMNS;
  const long long element = (long long)blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  if (element < ELEMENTS)
#pragma unroll 8
    for (int slice = threadIdx.y; slice < slices; slice += 8) sum += sums[slice * ELEMENTS + element];
  of_thread[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || element >= ELEMENTS) return;
#pragma unroll
  for (int other = 1; other < 8; ++other) sum += of_thread[other][threadIdx.x];
  out[element] = sum;
}

}  // namespace weight_gradient
