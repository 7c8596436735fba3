//: kernel calls load
namespace ${name}_detail {

$constants

// acc += weight × input for the strip of ROWS × COLUMNS outputs that begins at (d0, h0, w0) of one channel. An input row is
// in registers once, for every output row that needs it. Places outside the input are zeros.
template <int VECTOR>
__device__ __forceinline__ void convolve(float (&acc)[ROWS][COLUMNS], const Element* __restrict__ plane,
                                         const float (&tap)[TAPS], int d0, int h0, int w0, int in_d, int in_h, int in_w) {
  const int first = w0 * STRIDE_W - PADDING_W - LEAD;
#pragma unroll
  for (int kd = 0; kd < KERNEL_D; ++kd) {
    const int d = d0 * STRIDE_D - PADDING_D + kd * DILATION_D;
#pragma unroll
    for (int row = 0; row < INPUT_ROWS; ++row) {
      const int h = h0 * STRIDE_H - PADDING_H + row;
      const bool real = unsigned(d) < unsigned(in_d) && unsigned(h) < unsigned(in_h);
      const Element* const line = plane + ((long long)d * in_h + h) * in_w + first;
      float x[SEGMENT];  // what no tap uses is never read
#pragma unroll
      for (int k = 0; k < SEGMENT; k += VECTOR) {
        const bool inside = real && unsigned(first + k) < unsigned(in_w);
        float some[VECTOR] = {};
        if (inside) load<VECTOR>(line + k, some);
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) x[k + v] = some[v];
      }
#pragma unroll
      for (int kh = 0; kh < KERNEL_H; ++kh) {
        const int from = row - kh * DILATION_H, r = from / STRIDE_H;
        if (from < 0 || from % STRIDE_H != 0 || r >= ROWS) continue;  // decided at compile time
#pragma unroll
        for (int kw = 0; kw < KERNEL_W; ++kw)
#pragma unroll
          for (int column = 0; column < COLUMNS; ++column)
            acc[r][column] = fmaf(x[LEAD + column * STRIDE_W + kw * DILATION_W],
                                  tap[(kd * KERNEL_H + kh) * KERNEL_W + kw], acc[r][column]);
      }
    }
  }
}

template <int VECTOR>
__global__ void __launch_bounds__(THREADS$blocks)
kernel($parameters) {
  const int out_d = $out_d, out_h = $out_h, out_w = $out_w;
  const int strips_h = (out_h + ROWS - 1) / ROWS, strips_w = (out_w + COLUMNS - 1) / COLUMNS;
  const int strips = out_d * strips_h * strips_w;
$setup
$begin
}

}  // namespace ${name}_detail

$launcher
