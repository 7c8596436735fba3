// What is PTX: copies, barriers, functions of the special-function unit; prelude_mma.cuh has tensor cores. Each section: `#ifdef
// CUDA_ON_CPU` the host body, `#else` the device body, `#endif`.
// Host bodies take one more argument, which fills itself in: the line of the call, for messages.

//: section cp_async
// Starts copying N = 4, 8 or 16 bytes from global to shared memory; zeros if not valid (the source is not read then).
#ifdef CUDA_ON_CPU
template <int N>
inline void cp_async(void* destination, const void* source, bool valid = true, int line = __builtin_LINE()) {
  static_assert(N == 4 || N == 8 || N == 16, "cp.async copies 4, 8 or 16 bytes");
  cuda_on_cpu::cp_async(destination, source, N, valid, line);
}
#else
template <int N>
__device__ __forceinline__ void cp_async(void* destination, const void* source, bool valid = true) {
  static_assert(N == 4 || N == 8 || N == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(destination));
  int bytes = valid ? N : 0;
  if (N == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(source), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(source), "n"(N), "r"(bytes)
                 : "memory");
#else
  for (int word = 0; word < N / 4; ++word)
    static_cast<unsigned*>(destination)[word] = valid ? static_cast<const unsigned*>(source)[word] : 0u;
#endif
}
#endif

//: section cp_async_commit
// Closes the group of the copies this thread has started.
#ifdef CUDA_ON_CPU
inline void cp_async_commit() { cuda_on_cpu::cp_async_commit(); }
#else
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
#endif

//: section cp_async_wait
// Waits until all of this thread's groups but the newest K have landed. Other threads see them after a barrier.
#ifdef CUDA_ON_CPU
template <int K>
inline void cp_async_wait() {
  cuda_on_cpu::cp_async_wait(K);
}
#else
template <int K>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(K) : "memory");
#endif
}
#endif

//: section exactly
// x itself, but the compiler does not know: it joins nothing before with anything after into one rounding.
#ifdef CUDA_ON_CPU
inline float exactly(float x) {
  volatile float same = x;
  return same;
}
#else
__device__ __forceinline__ float exactly(float x) {
  asm("" : "+f"(x));
  return x;
}
#endif

//: section load_if
// N = 1 or 4 neighbouring floats from global memory, or zeros: the address is not read then. No branch, and the load starts here.
#ifdef CUDA_ON_CPU
template <int N>
inline void load_if(bool real, const float* from, float (&to)[N]) {
  for (int v = 0; v < N; ++v) to[v] = real ? from[v] : 0.0f;
}
#else
template <int N>
__device__ __forceinline__ void load_if(bool real, const float* from, float (&to)[N]) {
  static_assert(N == 1 || N == 4, "one or four");
#pragma unroll
  for (int v = 0; v < N; ++v) to[v] = 0.0f;
  if constexpr (N == 4)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                 : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]) : "l"(from), "r"(int(real)));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.nc.f32 %0, [%1]; }" : "+f"(to[0]) : "l"(from), "r"(int(real)));
}
#endif

//: section load_here_if
// As load_if, and stays behind a fence that stands before it: over that the compiler moves loads of what it is told is constant.
#ifdef CUDA_ON_CPU
template <int N>
inline void load_here_if(bool real, const float* from, float (&to)[N]) {
  for (int v = 0; v < N; ++v) to[v] = real ? from[v] : 0.0f;
}
#else
template <int N>
__device__ __forceinline__ void load_here_if(bool real, const float* from, float (&to)[N]) {
  static_assert(N == 1 || N == 4, "one or four");
#pragma unroll
  for (int v = 0; v < N; ++v) to[v] = 0.0f;
  if constexpr (N == 4)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
                 : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]) : "l"(from), "r"(int(real)));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.f32 %0, [%1]; }" : "+f"(to[0]) : "l"(from), "r"(int(real)));
}
#endif

//: section load_halves_if
// N = 1, 2 or 4 neighbouring elements of two bytes from global memory, two to a word, the lower half first; or zeros: the address is
// not read then. No branch, and the load starts here.
#ifdef CUDA_ON_CPU
template <int N>
inline void load_halves_if(bool real, const void* from, uint32_t (&to)[(N + 1) / 2]) {
  const uint16_t* const elements = static_cast<const uint16_t*>(from);
  if (real && (uintptr_t)from % (2 * N) != 0) cuda_on_cpu::fail("load_halves_if: address not aligned to %d", 2 * N);
  for (uint32_t& word : to) word = 0;
  for (int v = 0; v < N; ++v) to[v / 2] |= uint32_t(real ? elements[v] : 0) << 16 * (v % 2);
}
#else
template <int N>
__device__ __forceinline__ void load_halves_if(bool real, const void* from, uint32_t (&to)[(N + 1) / 2]) {
  static_assert(N == 1 || N == 2 || N == 4, "one, two or four");
#pragma unroll
  for (int i = 0; i < (N + 1) / 2; ++i) to[i] = 0;
  if constexpr (N == 4)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
                 : "+r"(to[0]), "+r"(to[1]) : "l"(from), "r"(int(real)));
  else if constexpr (N == 2)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.nc.b32 %0, [%1]; }" : "+r"(to[0]) : "l"(from), "r"(int(real)));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.nc.u16 %0, [%1]; }" : "+r"(to[0]) : "l"(from), "r"(int(real)));
}
#endif

//: section bulk_start
// For copies of many bytes to shared memory, one after the other. One thread prepares what counts them, before a barrier.
#ifdef CUDA_ON_CPU
inline void bulk_start(unsigned long long*) {}
#else
__device__ __forceinline__ void bulk_start(unsigned long long* counter) {
#if __CUDA_ARCH__ >= 900
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(counter));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
#endif

//: section bulk_copy needs bulk_start cp_async cp_async_commit
// Starts a copy of a multiple of 16 bytes. All threads of the block call it, or `threads` of it, of which this one is number `thread`; on
// Hopper one of them hands it to the copy engine.
#ifdef CUDA_ON_CPU
inline void bulk_copy(void* to, const void* from, int bytes, unsigned long long*, int thread = threadIdx.x, int threads = blockDim.x) {
  for (int i = 16 * thread; i < bytes; i += 16 * threads) memcpy((char*)to + i, (const char*)from + i, 16);
}
#else
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, unsigned long long* counter,
                                          int thread = threadIdx.x, int threads = blockDim.x) {
#if __CUDA_ARCH__ >= 900
  if (thread == 0) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(counter));
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(from), "r"(bytes), "r"(at)
                 : "memory");
  }
#else
  for (int i = 16 * thread; i < bytes; i += 16 * threads)
    cp_async<16>(static_cast<char*>(to) + i, static_cast<const char*>(from) + i);
  cp_async_commit();
#endif
}
#endif

//: section bulk_wait needs bulk_start cp_async_wait
// Waits for a copy: the first one has phase 0, the next one 1, and so on in turn. Other threads see it after a barrier.
#ifdef CUDA_ON_CPU
inline void bulk_wait(unsigned long long*, unsigned) {}
#else
__device__ __forceinline__ void bulk_wait(unsigned long long* counter, unsigned phase) {
#if __CUDA_ARCH__ >= 900
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(counter));
  int done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at), "r"(phase) : "memory");
#else
  cp_async_wait<0>();
#endif
}
#endif

//: section barrier_sync
// Waits until `threads` of the block have come to barrier `which` (1 to 15; 0 is that of __syncthreads).
#ifdef CUDA_ON_CPU
inline void barrier_sync(int which, int threads, int line = __builtin_LINE()) { cuda_on_cpu::meet_some(which, threads, true, line); }
#else
__device__ __forceinline__ void barrier_sync(int which, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
#endif

//: section barrier_arrive
// Counts at barrier `which` and goes on: what was written before is there for those who wait at it.
#ifdef CUDA_ON_CPU
inline void barrier_arrive(int which, int threads, int line = __builtin_LINE()) { cuda_on_cpu::meet_some(which, threads, false, line); }
#else
__device__ __forceinline__ void barrier_arrive(int which, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
#endif

//: section exp2_fast
// 2^x by the special-function unit: off by 2 units in the last place at most.
#ifdef CUDA_ON_CPU
inline float exp2_fast(float x) { return exp2f(x); }
#else
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

//: section rcp_fast
// 1 / x by the special-function unit: off by 1 unit in the last place at most.
#ifdef CUDA_ON_CPU
inline float rcp_fast(float x) { return 1.0f / x; }
#else
__device__ __forceinline__ float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

//: section div_fast
// a / b, off by 2 units in the last place at most, at any size of either.
#ifdef CUDA_ON_CPU
inline float div_fast(float a, float b) { return a / b; }
#else
__device__ __forceinline__ float div_fast(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

//: section turn_of
// x without its whole turns of 2 pi: exact to 1e-6 up to 1e5. Further out an operand that is known to TF32 only has no angle.
__device__ __forceinline__ float turn_of(float x) {
  const float turns = rintf(x * 0.15915494f);
  return fmaf(turns, 1.7484556e-7f, fmaf(turns, -6.2831855f, x));
}

//: section sin_fast needs turn_of
#ifdef CUDA_ON_CPU
inline float sin_fast(float x) { return sinf(x); }
#else
__device__ __forceinline__ float sin_fast(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(turn_of(x)));
  return y;
}
#endif

//: section cos_fast needs turn_of
#ifdef CUDA_ON_CPU
inline float cos_fast(float x) { return cosf(x); }
#else
__device__ __forceinline__ float cos_fast(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(turn_of(x)));
  return y;
}
#endif

//: section exp_fast needs exp2_fast
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

//: section tanh_part defines tanh_part TANH_FACTOR needs exp2_fast rcp_fast
// r of tanh x = 1 - 2r, from TANH_FACTOR x. Off by about 1e-7; used where the operand itself is known to TF32 only.
constexpr float TANH_FACTOR = 2.8853900817779268f;  // 2 / ln 2
__device__ __forceinline__ float tanh_part(float multiple) { return rcp_fast(1.0f + exp2_fast(multiple)); }

//: section tanh_of needs tanh_part
// tanh of x from TANH_FACTOR x.
__device__ __forceinline__ float tanh_of(float multiple) { return fmaf(-2.0f, tanh_part(multiple), 1.0f); }

//: section tanh_fast needs tanh_of tanh_part
__device__ __forceinline__ float tanh_fast(float x) { return tanh_of(x * TANH_FACTOR); }
