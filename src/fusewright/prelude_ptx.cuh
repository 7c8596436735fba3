// Everything that is PTX. Each section: `#ifdef CUDA_ON_CPU` the host body, `#else` the device body, `#endif`.
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

//: section to_tf32
// Rounds to TF32 (10 bits of fraction), to nearest, ties away from zero. Infinity and NaN stay what they are.
#ifdef CUDA_ON_CPU
inline uint32_t to_tf32(float x) { return cuda_on_cpu::to_tf32(x); }
#else
__device__ __forceinline__ uint32_t to_tf32(float x) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & 0xffffe000u;
#endif
  return bits;
}
#endif

//: section mma_tf32
// d += a b on the tensor cores: a is 16 x 8, b is 8 x 8, both TF32. With g = lane / 4 and t = lane % 4, this lane holds
// a[0..3] = (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); b[0..1] = (t, g), (t + 4, g);
// d[0..3] = (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
#ifdef CUDA_ON_CPU
inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  cuda_on_cpu::mma_tf32(d, a, b, line);
}
#else
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}
#endif

//: section mma_bf16
// d += a b: a is 16 x 16, b is 16 x 8, bf16, two elements to a register, the lower k in the lower half.
// With g = lane / 4 and t = lane % 4: a[0..3] = (g, 2 t), (g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8);
// b[0..1] = (2 t, g), (2 t + 8, g); d[0..3] = (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
#ifdef CUDA_ON_CPU
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  cuda_on_cpu::mma_bf16(d, a, b, line);
}
#else
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}
#endif

//: section mma_f16
// As mma_bf16, for fp16.
#ifdef CUDA_ON_CPU
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  cuda_on_cpu::mma_f16(d, a, b, line);
}
#else
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}
#endif

//: section ldmatrix_x4
// Loads four 8 x 8 matrices of two-byte elements from shared memory. Lane 8 i + j gives the address of row j of
// matrix i (16 bytes, aligned); r[i] receives element (lane / 4, 2 (lane % 4)) of matrix i and the one to its right.
#ifdef CUDA_ON_CPU
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, int line = __builtin_LINE()) {
  cuda_on_cpu::ldmatrix_x4(r, row, false, line);
}
#else
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
  unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
#else
  __trap();
#endif
}
#endif

//: section ldmatrix_x4_trans
// As ldmatrix_x4, each matrix transposed: r[i] receives elements (2 (lane % 4), lane / 4) and the one below it.
#ifdef CUDA_ON_CPU
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, int line = __builtin_LINE()) {
  cuda_on_cpu::ldmatrix_x4(r, row, true, line);
}
#else
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
#if __CUDA_ARCH__ >= 750
  unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
#else
  __trap();
#endif
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

//: section exp_fast needs exp2_fast
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * 1.4426950408889634f); }

//: section tanh_fast needs exp2_fast rcp_fast
// Off by about 1e-7; used where the operand itself is known to TF32 only.
__device__ __forceinline__ float tanh_fast(float x) { return fmaf(-2.0f, rcp_fast(1.0f + exp2_fast(x * 2.8853900817779268f)), 1.0f); }
