// Kernels that are right. Each shows a part of CUDA that the host target must run; nvcc takes this file too.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>

static const char* launch_error() {
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// ---- pointwise: four elements at a time and a tail

__global__ void __launch_bounds__(256) gelu_kernel(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * 4;
  if (i + 4 <= n) {
    float4 v = __ldg(reinterpret_cast<const float4*>(x + i));
    float* each = &v.x;
#pragma unroll
    for (int k = 0; k < 4; ++k) each[k] = 0.5f * each[k] * (1.0f + erff(each[k] * 0.70710678f));
    __stcs(reinterpret_cast<float4*>(y + i), v);
  } else {
    for (; i < n; ++i) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
  }
}
extern "C" const char* gelu(const float* x, float* y, long long n, void* stream) {
  const int threads = 256;
  gelu_kernel<<<(unsigned)((n + 4 * threads - 1) / (4 * threads)), threads, 0, (cudaStream_t)stream>>>(x, y, n);
  return launch_error();
}

__global__ void relu_kernel(const float* __restrict__ x, float* __restrict__ y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
extern "C" const char* relu(const float* x, float* y, long long n, void* stream) {
  relu_kernel<<<(unsigned)((n + 255) / 256), 256, 0, (cudaStream_t)stream>>>(x, y, n);
  return launch_error();
}

// ---- reductions: warp, block, static shared memory with a size that depends on the template

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS, 1)
row_sum_kernel(const T* __restrict__ x, float* __restrict__ y, int columns) {
  constexpr int WARPS = THREADS / 32;
  __shared__ float partial[WARPS], total;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += (float)x[(size_t)blockIdx.x * columns + i];
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = warp_sum(lane < WARPS ? partial[lane] : 0.0f);
    if (lane == 0) total = sum;
  }
  __syncthreads();
  if (threadIdx.x == THREADS - 1) y[blockIdx.x] = total;
}
extern "C" const char* row_sum(const float* x, const void* x_half, float* y, long long rows, long long columns,
                               long long threads, void* stream) {
  // launches over several lines, with commas in template arguments; <<<comments>>> are not launches
  if (threads == 128)
    row_sum_kernel<float, 128><<<(unsigned)rows, 128, 0, (cudaStream_t)stream>>>(x, y, (int)columns);
  else if (threads == 1024)
    row_sum_kernel<float, 1024>
        <<<dim3((unsigned)rows, 1, 1),
           dim3(1024),  // a block
           0, (cudaStream_t)stream>>>(
            x, y,
            (int)columns);
  else
    row_sum_kernel<__half, (256 > 128 ? 256 : 128)>
        <<<(unsigned)rows, 256>>>(static_cast<const __half*>(x_half), y, (int)columns);
  return launch_error();
}

// ---- dynamic shared memory above 48 KiB, and a struct in static shared memory

struct Extent {
  int first, last;
};
template <int SIZE>
__global__ void reverse_kernel(const float* x, float* y, int n) {
  extern __shared__ __align__(16) unsigned char raw[];
  __shared__ Extent extent;
  float* staged = reinterpret_cast<float*>(raw);
  if (threadIdx.x == 0) extent = Extent{0, n - 1};
  for (int i = threadIdx.x; i < n; i += blockDim.x) staged[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = staged[extent.last - i + extent.first];
}
extern "C" const char* reverse(const float* x, float* y, long long n, void* stream) {
  cudaFuncSetAttribute(reverse_kernel<4>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(n * sizeof(float)));
  reverse_kernel<4><<<1, 128, n * sizeof(float), (cudaStream_t)stream>>>(x, y, (int)n);
  return launch_error();
}

// ---- atomics: a histogram, the extremes, and "the last block adds the partial sums"

__global__ void histogram_kernel(const int* x, int* bins, int* extremes, long long n) {
  __shared__ int local[16];
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) {
    atomicAdd(&local[x[i]], 1);
    atomicMin(&extremes[0], x[i]);
    atomicMax(&extremes[1], x[i]);
  }
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}
extern "C" const char* histogram(const int* x, int* bins, int* extremes, long long n, void*) {
  histogram_kernel<<<(unsigned)((n + 127) / 128), 128>>>(x, bins, extremes, n);
  return launch_error();
}

__global__ void total_kernel(const float* x, float* partial, unsigned* arrived, float* y, long long n) {
  __shared__ bool is_last;
  float sum = 0.0f;
  for (long long i = blockIdx.x * 32ll + threadIdx.x; i < n; i += 32ll * gridDim.x) sum += x[i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicAdd(arrived, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  sum = 0.0f;
  for (int i = threadIdx.x; i < gridDim.x; i += 32) sum += __ldcg(partial + i);
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *y = sum;
}
extern "C" const char* total(const float* x, float* partial, unsigned* arrived, float* y, long long n, long long blocks,
                             void*) {
  total_kernel<<<(unsigned)blocks, 32>>>(x, partial, arrived, y, n);
  return launch_error();
}

// ---- shuffles and votes of every kind

template <typename T>
__device__ __noinline__ void shuffle_all(T* out, int lane) {
  T value = (T)(lane * 3 + 1);
  out[lane] = __shfl_sync(0xffffffffu, value, 7);
  out[32 + lane] = __shfl_sync(0xffffffffu, value, lane + 1, 8);
  out[64 + lane] = __shfl_up_sync(0xffffffffu, value, 2);
  out[96 + lane] = __shfl_down_sync(0xffffffffu, value, 3, 16);
  out[128 + lane] = __shfl_xor_sync(0xffffffffu, value, 5);
}
__global__ void shuffles_kernel(float* f, int* i, unsigned* u, long long* l, double* d) {
  shuffle_all(f, threadIdx.x);
  shuffle_all(i, threadIdx.x);
  shuffle_all(u, threadIdx.x);
  shuffle_all(l, threadIdx.x);
  shuffle_all(d, threadIdx.x);
}
extern "C" const char* shuffles(float* f, int* i, unsigned* u, long long* l, double* d, void*) {
  shuffles_kernel<<<1, 32>>>(f, i, u, l, d);
  return launch_error();
}

__global__ void votes_kernel(int* out) {
  const int t = threadIdx.x, lane = t % 32;
  const unsigned exist = t < 32 ? 0xffffffffu : 0x0000ffffu;  // a block of 48: the second warp is half a warp
  out[t] = (int)__ballot_sync(exist, lane % 3 == 0);
  out[48 + t] = __any_sync(0xffffffffu, t == 40);
  out[96 + t] = __all_sync(exist, t < 40);
  out[144 + t] = __syncthreads_count(t % 5 == 0);
  out[192 + t] = __syncthreads_or(t == 47) * 2 + __syncthreads_and(t < 47);
  unsigned half = lane < 8 ? 0x000000ffu : exist & ~0x000000ffu;  // two groups of one warp, each on its own
  out[240 + t] = __popc(__ballot_sync(half, 1));
  __syncwarp(exist);
}
extern "C" const char* votes(int* out, void*) {
  votes_kernel<<<1, 48>>>(out);
  return launch_error();
}

// ---- three dimensions

__global__ void where_kernel(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread] = block * 1000 + thread;
}
extern "C" const char* where(int* out, void*) {
  where_kernel<<<dim3(3, 2, 2), dim3(4, 3, 5)>>>(out);
  return launch_error();
}

// ---- two-byte floats

__global__ void to_small_kernel(const float* x, __half* h, __nv_bfloat16* b, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __float2half_rn(x[i]);
  b[i] = __float2bfloat16_rn(x[i]);
}
__global__ void from_small_kernel(const __half* h, const __nv_bfloat16* b, float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  x[i] = __half2float(h[i]);
  y[i] = __bfloat162float(b[i]);
}
extern "C" const char* to_small(const float* x, void* h, void* b, long long n, void*) {
  to_small_kernel<<<(unsigned)((n + 255) / 256), 256>>>(x, static_cast<__half*>(h), static_cast<__nv_bfloat16*>(b), n);
  return launch_error();
}
extern "C" const char* from_small(const void* h, const void* b, float* x, float* y, long long n, void*) {
  const __half* halves = static_cast<const __half*>(h);
  const __nv_bfloat16* bfloats = static_cast<const __nv_bfloat16*>(b);
  from_small_kernel<<<(unsigned)((n + 255) / 256), 256>>>(halves, bfloats, x, y, n);
  return launch_error();
}

// ---- functions of the device

__global__ void functions_kernel(const float* x, float* out) {
  const float v = x[threadIdx.x];
  float results[] = {rsqrtf(v), __expf(v), __logf(v), exp2f(v), __frcp_rn(v), __fdividef(1.0f, v), tanhf(v),
                     normcdff(v), fmaxf(CUDART_NAN_F, v), fminf(v, INFINITY), max(CUDART_NAN_F, v), __saturatef(v),
                     log1pf(v), __powf(v, 1.5f),
                     (float)rsqrt((double)v), fmaf(v, v, 1.0f), __int_as_float(__float_as_int(v)), CUDART_INF_F,
                     (float)min(3ll, 5ll), (float)max(3, 7u), (float)__popc(255u), (float)__clz(1), (float)__ffs(8),
                     (float)__float2int_rn(2.5f), (float)(__umulhi(1u << 31, 6u))};
  constexpr int count = sizeof(results) / sizeof(float);
  for (int i = 0; i < count; ++i) out[i * blockDim.x + threadIdx.x] = results[i];
}
extern "C" const char* functions(const float* x, float* out, long long n, void*) {
  functions_kernel<<<1, (unsigned)n>>>(x, out);
  return launch_error();
}

// ---- barriers of some threads: one warp hands numbers to each of two others through two buffers; all run at their own pace

__global__ void handed_on_kernel(const float* x, float* y, int rounds) {
  constexpr int READY = 1, FREE = 3;  // of each buffer
  __shared__ float buffers[2][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 2) {
    for (int round = 0; round < rounds; ++round) {
      const int buffer = round % 2;
      if (round >= 2) barrier_sync(FREE + buffer, 96);
      buffers[buffer][lane] = x[round * 32 + lane];
      barrier_arrive(READY + buffer, 96);
    }
    return;
  }
  float sum = 0.0f;
  for (int round = 0; round < rounds; ++round) {
    const int buffer = round % 2;
    barrier_sync(READY + buffer, 96);
    sum += buffers[buffer][warp == 0 ? lane : 31 - lane];
    if (round + 2 < rounds) barrier_arrive(FREE + buffer, 96);
  }
  y[threadIdx.x] = sum;
}
extern "C" const char* handed_on(const float* x, float* y, long long rounds, void*) {
  handed_on_kernel<<<1, 96>>>(x, y, (int)rounds);
  return launch_error();
}

// ---- cp.async: two buffers, the next tile in flight while this one is summed; the last tile is filled with zeros

__global__ void async_sum_kernel(const float* x, float* y, int n) {
  __shared__ __align__(16) float tile[2][4 * 64];
  auto fetch = [&](int start, int buffer) {
    int i = start + 4 * threadIdx.x;
    cp_async<16>(&tile[buffer][4 * threadIdx.x], i < n ? x + i : x, i < n);
    cp_async_commit();
  };
  float sum = 0.0f;
  fetch(0, 0);
  int buffer = 0;
  for (int start = 0; start < n; start += 256, buffer ^= 1) {
    if (start + 256 < n) {
      fetch(start + 256, buffer ^ 1);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    for (int k = 0; k < 4; ++k) sum += tile[buffer][(threadIdx.x + 1) % 64 * 4 + k];  // a neighbour's
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
extern "C" const char* async_sum(const float* x, float* y, long long n, void*) {
  async_sum_kernel<<<1, 64>>>(x, y, (int)n);
  return launch_error();
}

// ---- tensor cores: one warp, c (16 x 8) = a (16 x K) b (K x 8)

__global__ void gemm_tf32_kernel(const float* a, const float* b, float* c, int K, bool round) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  auto operand = [&](float v) { return round ? to_tf32(v) : __float_as_uint(v); };
  float d[4] = {};
  for (int k = 0; k < K; k += 8) {
    uint32_t left[4] = {operand(a[g * K + k + t]), operand(a[(g + 8) * K + k + t]), operand(a[g * K + k + t + 4]),
                        operand(a[(g + 8) * K + k + t + 4])};
    uint32_t right[2] = {operand(b[(k + t) * 8 + g]), operand(b[(k + t + 4) * 8 + g])};
    mma_tf32(d, left, right);
  }
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
extern "C" const char* gemm_tf32(const float* a, const float* b, float* c, long long K, long long round, void*) {
  gemm_tf32_kernel<<<1, 32>>>(a, b, c, (int)K, round != 0);
  return launch_error();
}

template <bool IS_BF16>
__global__ void gemm_16_bit_kernel(const uint16_t* a, const uint16_t* b, float* c, int K) {
  __shared__ __align__(16) uint16_t left_tile[16][16];
  __shared__ __align__(16) uint16_t right_tile[32][8];  // two steps of k at once: x4 loads four 8 x 8 matrices
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  float d[4] = {};
  for (int k = 0; k < K; k += 32) {
    uint32_t right[4], left[4];
    for (int i = lane; i < 32 * 8; i += 32) right_tile[i / 8][i % 8] = b[k * 8 + i];
    __syncwarp();
    ldmatrix_x4_trans(right, right_tile[lane]);
    for (int half = 0; half < 2; ++half) {
      for (int i = lane; i < 16 * 16; i += 32) left_tile[i / 16][i % 16] = a[i / 16 * K + k + half * 16 + i % 16];
      __syncwarp();
      ldmatrix_x4(left, &left_tile[lane % 16][lane / 16 * 8]);
      uint32_t pair[2] = {right[2 * half], right[2 * half + 1]};
      if (IS_BF16) mma_bf16(d, left, pair);
      else mma_f16(d, left, pair);
      __syncwarp();
    }
  }
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
extern "C" {
const char* gemm_bf16(const uint16_t* a, const uint16_t* b, float* c, long long K, void*) {
  gemm_16_bit_kernel<true><<<1, 32>>>(a, b, c, (int)K);
  return launch_error();
}
const char* gemm_f16(const uint16_t* a, const uint16_t* b, float* c, long long K, void*) {
  gemm_16_bit_kernel<false><<<1, 32>>>(a, b, c, (int)K);
  return launch_error();
}
}

__global__ void round_tf32_kernel(const float* x, uint32_t* y) { y[threadIdx.x] = to_tf32(x[threadIdx.x]); }
extern "C" const char* round_tf32(const float* x, uint32_t* y, long long n, void*) {
  round_tf32_kernel<<<1, (unsigned)n>>>(x, y);
  return launch_error();
}

// ---- the device, as launchers see it

extern "C" const char* device_facts(int* out, void*) {
  int device = -1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&out[0], cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&out[1], cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out[2], relu_kernel, 256, 0);
  return launch_error();
}
