// Stand-ins for what the prelude gives: accumulators, fast functions, the launch check. Test use only.
#ifdef CUDA_ON_CPU
static inline float exp2_fast(float x) { return exp2f(x); }
static inline float rcp_fast(float x) { return 1.0f / x; }
static inline float tanh_hardware(float x) { return tanhf(x); }
#else
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float tanh_hardware(float x) {  // relative error up to 2^-11
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }
__device__ __forceinline__ float tanh_fast(float x) { return fmaf(-2.0f, rcp_fast(1.0f + exp2_fast(x * 2.8853900817779268f)), 1.0f); }

struct Sum {
  float s = 0.0f;
  __device__ __forceinline__ void add(float x) { s += x; }
  __device__ __forceinline__ void merge(const Sum& other) { s += other.s; }
  __device__ __forceinline__ float result() const { return s; }
};
struct Max {
  float m = -INFINITY;
  __device__ __forceinline__ void add(float x) { m = x > m || x != x ? x : m; }
  __device__ __forceinline__ void merge(const Max& other) { add(other.m); }
  __device__ __forceinline__ float result() const { return m; }
};
struct Min {
  float m = INFINITY;
  __device__ __forceinline__ void add(float x) { m = x < m || x != x ? x : m; }
  __device__ __forceinline__ void merge(const Min& other) { add(other.m); }
  __device__ __forceinline__ float result() const { return m; }
};
struct LogSumExp {  // m + log(s)
  float m = -INFINITY, s = 0.0f;
  __device__ __forceinline__ void merge(const LogSumExp& other) {
    const float shrink = m == other.m ? 1.0f : exp_fast(-fabsf(m - other.m));
    s = m < other.m ? s * shrink + other.s : s + other.s * shrink;
    m = fmaxf(m, other.m);
  }
  __device__ __forceinline__ float result() const { return fabsf(m) < INFINITY ? m + logf(s) : logf(s); }
};
struct Moments {
  float n = 0.0f, mean = 0.0f, m2 = 0.0f;
  __device__ __forceinline__ void merge(const Moments& other) {
    const float whole = n + other.n, share = whole > 0.0f ? other.n / whole : 0.0f, apart = other.mean - mean;
    mean += apart * share;
    m2 += other.m2 + apart * apart * n * share;
    n = whole;
  }
};
template <class A>
__device__ __forceinline__ A shuffle_xor(A value, int mask) {
  uint32_t words[sizeof(A) / 4];
  memcpy(words, &value, sizeof(A));
#pragma unroll
  for (int k = 0; k < int(sizeof(A) / 4); ++k) words[k] = __shfl_xor_sync(0xffffffffu, words[k], mask);
  memcpy(&value, words, sizeof(A));
  return value;
}
static inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
