// Tensor cores: operands, warp-level and warpgroup MMA, ldmatrix. Bodies as in prelude_ptx.cuh.

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

//: section to_tf32_even
// Rounds to TF32, to nearest, ties to even: one instruction on Hopper. Infinity and NaN stay what they are.
#ifdef CUDA_ON_CPU
inline uint32_t to_tf32_even(float x) {
  uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
  return bits;
}
#else
__device__ __forceinline__ uint32_t to_tf32_even(float x) {
  uint32_t bits;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
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

//: section mma_tf32_new
// As mma_tf32, with d = a b.
#ifdef CUDA_ON_CPU
inline void mma_tf32_new(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
  for (float& element : d) element = 0.0f;
  cuda_on_cpu::mma_tf32(d, a, b, line);
}
#else
__device__ __forceinline__ void mma_tf32_new(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
  __trap();
#endif
}
#endif

//: section warpgroup_operand defines WarpgroupOperand warpgroup_operand on hopper
// An operand of a warpgroup MMA, in words of shared memory: one TF32 number, or two neighbouring inputs of 16 bits. Four of eight
// words of the depth lie side by side (16 bytes), and the other four `half` words on. Neighbouring channels or positions are 16 bytes
// apart; eight of them are one fragment, the next one begins `row` words on.
#ifdef CUDA_ON_CPU
struct WarpgroupOperand {
  const float* at;
  int half, row;
};
inline WarpgroupOperand warpgroup_operand(const float* at, int half, int row) { return {at, half, row}; }
#else
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
struct WarpgroupOperand {
  uint32_t low, high;  // of the tensor cores' description: where it begins and half a row, in 16 bytes; how far fragments are apart
};
__device__ __forceinline__ WarpgroupOperand warpgroup_operand(const float* at, int half, int row) {
  return {static_cast<uint32_t>(__cvta_generic_to_shared(at)) >> 4 | static_cast<uint32_t>(half / 4) << 16, static_cast<uint32_t>(row / 4)};
}
#else
struct WarpgroupOperand {
  const float* at;
  int half, row;
};
__device__ __forceinline__ WarpgroupOperand warpgroup_operand(const float* at, int half, int row) { return {at, half, row}; }
#endif
#endif

//: section warpgroup_mma_$kind of tf32 f16 bf16 needs warpgroup_operand mma_$kind on hopper
// d += a b, where a is 64 channels x $depth and b is $depth x 8 F positions, `at_a` and `at_b` words behind where the operands begin. A
// warp holds 16 of the channels, its fragments as in mma_$kind, every STEP-th from d[first] on. On Hopper (warpgroup_mma_${kind}_F) it
// runs on its own until warpgroup_wait; elsewhere at once.
#ifdef CUDA_ON_CPU
template <int F, int STEP, int ALL>
inline void warpgroup_mma_$kind(float (&d)[ALL][4], int first, const WarpgroupOperand& a, int at_a, const WarpgroupOperand& b, int at_b) {
  const int lane = threadIdx.x % 32, channel = threadIdx.x / 32 % 4 * 16 + lane / 4;
  for (int f = 0; f < F; ++f)
    for (int r = 0; r < 4; ++r) {
      float& to = d[first + f * STEP][r];
      double sum = to;
      for (int k = 0; k < 8; ++k) {
        const float x = a.at[at_a + k / 4 * a.half + channel / 8 * a.row + (channel % 8 + r / 2 * 8) * 4 + k % 4];
        const float y = b.at[at_b + k / 4 * b.half + f * b.row + (lane % 4 * 2 + r % 2) * 4 + k % 4];
        sum += $word_product;
      }
      const float near = float(sum);
      to = fabs(double(near)) > fabs(sum) ? nextafterf(near, 0.0f) : near;  // what does not fit is cut off
    }
}
#else
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
template <int F, int STEP, int ALL>
__device__ __forceinline__ void warpgroup_mma_$kind(float (&d)[ALL][4], int first, const WarpgroupOperand& a, int at_a,
                                                   const WarpgroupOperand& b, int at_b) {
  const int lane = threadIdx.x % 32;
  const float *const own_a = a.at + at_a + threadIdx.x / 32 % 4 * 2 * a.row + lane, *const own_b = b.at + at_b + lane;
  const uint32_t weight[4] = {__float_as_uint(own_a[0]), __float_as_uint(own_a[a.row]), __float_as_uint(own_a[a.half]),
                              __float_as_uint(own_a[a.half + a.row])};
#pragma unroll
  for (int f = 0; f < F; ++f) {
    const uint32_t x[2] = {__float_as_uint(own_b[f * b.row]), __float_as_uint(own_b[b.half + f * b.row])};
    mma_$kind(d[first + f * STEP], weight, x);
  }
}
#endif
#endif

//: section warpgroup_mma_${kind}_$F of tf32 f16 bf16 each 4 5 6 7 8 9 10 11 12 13 14 15 16 17 needs warpgroup_operand warpgroup_mma_$kind on hopper
// warpgroup_mma_$kind of $positions positions.
#ifdef CUDA_ON_CPU
template <int STEP, int ALL>
inline void warpgroup_mma_${kind}_$F(float (&d)[ALL][4], int first, const WarpgroupOperand& a, int at_a, const WarpgroupOperand& b, int at_b) {
  warpgroup_mma_$kind<$F, STEP>(d, first, a, at_a, b, at_b);
}
#else
template <int STEP, int ALL>
__device__ __forceinline__ void warpgroup_mma_${kind}_$F(float (&d)[ALL][4], int first, const WarpgroupOperand& a, int at_a,
                                                     const WarpgroupOperand& b, int at_b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LANE(f) "+f"(d[first + f * STEP][0]), "+f"(d[first + f * STEP][1]), "+f"(d[first + f * STEP][2]), "+f"(d[first + f * STEP][3])
  asm volatile(
      "{ .reg .b64 a, b; mov.b64 a, {%$a0, %$a1}; mov.b64 b, {%$b0, %$b1}; "
      "wgmma.mma_async.sync.aligned.m64n${positions}k$depth.f32.$kind.$kind {"
$registers
      "}, a, b, 1, 1, 1$order; }"
      : $lanes
      : "r"(a.low + at_a / 4), "r"(a.high), "r"(b.low + at_b / 4), "r"(b.high));
#undef LANE
#else
  warpgroup_mma_$kind<$F, STEP>(d, first, a, at_a, b, at_b);
#endif
}
#endif

//: section warpgroup_mma_tf32_held needs mma_tf32 on hopper
// As warpgroup_mma_tf32, with `a` in registers: each warp holds its own 16 rows of it as in mma_tf32. On Hopper those registers must
// stay as they are until a wait for the group of this product.
#ifdef CUDA_ON_CPU
template <int F>
inline void warpgroup_mma_tf32_held(float (&d)[F][4], const uint32_t (&a)[4], const float* b, int b_half, int b_row,
                                    int line = __builtin_LINE()) {
  const int lane = threadIdx.x % 32;
  const cuda_on_cpu::Words lanes = cuda_on_cpu::meet_warp(0xffffffffu, "wgmma with registers", line, a, 4);
  double held[2][8];  // rows lane / 4 and lane / 4 + 8
  for (int i = 0; i < 16; ++i) held[i / 8][i % 8] = __uint_as_float(lanes[lane / 4 * 4 + i % 4][i % 8 / 4 * 2 + i / 8]);
  for (int f = 0; f < F; ++f)
    for (int r = 0; r < 4; ++r) {
      double sum = d[f][r];
      for (int k = 0; k < 8; ++k) sum += held[r / 2][k] * b[k / 4 * b_half + f * b_row + (lane % 4 * 2 + r % 2) * 4 + k % 4];
      const float near = float(sum);
      d[f][r] = fabs(double(near)) > fabs(sum) ? nextafterf(near, 0.0f) : near;  // what does not fit is cut off
    }
}
#else
template <int F>
__device__ __forceinline__ void warpgroup_mma_tf32_held(float (&d)[F][4], const uint32_t (&a)[4], const float* b, int b_half, int b_row) {
  static_assert(F == 8 || F == 16, "64 or 128 positions");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const uint64_t of_b = static_cast<uint64_t>(__cvta_generic_to_shared(b)) >> 4 | static_cast<uint64_t>(b_half / 4) << 16 |
                        static_cast<uint64_t>(b_row / 4) << 32;
#define LANE(f) "+f"(d[f][0]), "+f"(d[f][1]), "+f"(d[f][2]), "+f"(d[f][3])
  if constexpr (F == 8) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
        ", {%32, %33, %34, %35}, %36, 1, 1, 1;"
        : LANE(0), LANE(1), LANE(2), LANE(3), LANE(4), LANE(5), LANE(6), LANE(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
        ", {%64, %65, %66, %67}, %68, 1, 1, 1;"
        : LANE(0), LANE(1), LANE(2), LANE(3), LANE(4), LANE(5), LANE(6), LANE(7),
          LANE(8), LANE(9), LANE(10), LANE(11), LANE(12), LANE(13), LANE(14), LANE(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b));
  }
#undef LANE
#else
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int f = 0; f < F; ++f) {
    const uint32_t x[2] = {__float_as_uint(b[f * b_row + lane]), __float_as_uint(b[b_half + f * b_row + lane])};
    mma_tf32(d[f], a, x);
  }
#endif
}
#endif

//: section warpgroup_hold on hopper
// What this warpgroup wrote to the registers of its first operand is there for the products to come.
#ifdef CUDA_ON_CPU
template <int COUNT>
inline void warpgroup_hold(uint32_t (&)[COUNT][4]) {}
#else
template <int COUNT>
__device__ __forceinline__ void warpgroup_hold(uint32_t (&a)[COUNT][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
  for (int i = 0; i < COUNT * 4; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
#endif

//: section warpgroup_arrive on hopper
// What this warpgroup wrote to its accumulators is there for the products to come.
#ifdef CUDA_ON_CPU
template <int TILES, int FRAGMENTS>
inline void warpgroup_arrive(float (&)[TILES][FRAGMENTS][4]) {}
#else
template <int TILES, int FRAGMENTS>
__device__ __forceinline__ void warpgroup_arrive(float (&d)[TILES][FRAGMENTS][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
  for (int i = 0; i < TILES * FRAGMENTS * 4; ++i) asm volatile("" : "+f"(d[i / 4 / FRAGMENTS][i / 4 % FRAGMENTS][i % 4])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
#endif

//: section warpgroup_go_on on hopper
// More products on the same accumulators, in another round of a loop.
#ifdef CUDA_ON_CPU
inline void warpgroup_go_on() {}
#else
__device__ __forceinline__ void warpgroup_go_on() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
#endif

//: section warpgroup_commit on hopper
// Closes the group of the MMAs that this warpgroup has issued.
#ifdef CUDA_ON_CPU
inline void warpgroup_commit() {}
#else
__device__ __forceinline__ void warpgroup_commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
#endif

//: section warpgroup_wait on hopper
// Waits for all MMAs of this warpgroup; the accumulators hold them then.
#ifdef CUDA_ON_CPU
template <int TILES, int FRAGMENTS>
inline void warpgroup_wait(float (&)[TILES][FRAGMENTS][4]) {}
#else
template <int TILES, int FRAGMENTS>
__device__ __forceinline__ void warpgroup_wait(float (&d)[TILES][FRAGMENTS][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < TILES * FRAGMENTS * 4; ++i) asm volatile("" : "+f"(d[i / 4 / FRAGMENTS][i / 4 % FRAGMENTS][i % 4])::"memory");
#endif
}
#endif

//: section warpgroup_wait_but_one on hopper
// Waits for all MMAs of this warpgroup but those of the last group.
#ifdef CUDA_ON_CPU
inline void warpgroup_wait_but_one() {}
#else
__device__ __forceinline__ void warpgroup_wait_but_one() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
#endif
}
#endif

//: section warpgroup_registers on hopper
// From here on each thread of this warpgroup has COUNT registers: MORE than before, taken from warps that gave some back, or fewer.
#ifdef CUDA_ON_CPU
template <int COUNT, bool MORE>
inline void warpgroup_registers() {}
#else
template <int COUNT, bool MORE>
__device__ __forceinline__ void warpgroup_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (MORE)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  else
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
#endif

//: section warpgroup_operands on hopper
// What this thread wrote to shared memory can be read by warpgroup MMAs, once a barrier is passed.
#ifdef CUDA_ON_CPU
inline void warpgroup_operands() {}
#else
__device__ __forceinline__ void warpgroup_operands() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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

//: section bf16_parts
// Two numbers, each as the sum of two bf16 ones: `high` is them rounded, the first in the lower half, and `low` what that leaves.
#ifdef CUDA_ON_CPU
inline void bf16_parts(float a, float b, uint32_t& high, uint32_t& low) {
  const auto both = [](float x, float y) { return cuda_on_cpu::bfloat16_bits(x) | uint32_t(cuda_on_cpu::bfloat16_bits(y)) << 16; };
  high = both(a, b);
  low = both(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u));
}
#else
__device__ __forceinline__ void bf16_parts(float a, float b, uint32_t& high, uint32_t& low) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(b), "f"(a));
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
      : "=r"(low) : "f"(b - __uint_as_float(high & 0xffff0000u)), "f"(a - __uint_as_float(high << 16)));
#else
  __trap();
#endif
}
#endif

//: section scaled_halves defines scaled_halves HalvesRange
// scaled_halves: two numbers times a power of two, rounded to fp16, the first in the lower half; what is not a number stays that. `range`
// takes note of the least number that is not zero, as twice its bits less one, and of the largest results, two to a word. It fits where
// none has lost bits that a larger one would keep, or has become infinite.
#ifdef CUDA_ON_CPU
struct HalvesRange {
  uint32_t least = 0xffffffffu, most = 0;
  bool fits(float unscaled) const {
    return least >= 2 * __float_as_uint(0x1p-14f * unscaled) - 1 && (most & 0x7fffu) < 0x7c00u && most >> 16 < 0x7c00u;
  }
};
inline uint32_t scaled_halves(float a, float b, float scale, HalvesRange& range) {
  uint32_t both = 0;
  for (int i = 0; i < 2; ++i) {
    const float x = i == 0 ? a : b;
    const uint32_t bits = cuda_on_cpu::half_bits(x * scale), magnitude = bits & 0x7fffu, known = range.most >> 16 * i & 0xffffu;
    range.least = range.least < 2 * __float_as_uint(x) - 1 ? range.least : 2 * __float_as_uint(x) - 1;
    if (magnitude <= 0x7c00u && magnitude > known) range.most = (range.most & ~(0xffffu << 16 * i)) | magnitude << 16 * i;
    both |= bits << 16 * i;
  }
  return both;
}
#else
struct HalvesRange {
  uint32_t least = 0xffffffffu, most = 0;
  __device__ __forceinline__ bool fits(float unscaled) const {
    return least >= 2 * __float_as_uint(0x1p-14f * unscaled) - 1 && (most & 0x7fffu) < 0x7c00u && most >> 16 < 0x7c00u;
  }
};
__device__ __forceinline__ uint32_t scaled_halves(float a, float b, float scale, HalvesRange& range) {
  range.least = min(range.least, min(2 * __float_as_uint(a) - 1, 2 * __float_as_uint(b) - 1));
  uint32_t both;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b * scale), "f"(a * scale));
  asm("{ .reg .b32 t; abs.f16x2 t, %1; max.f16x2 %0, %0, t; }" : "+r"(range.most) : "r"(both));
#else
  __trap();
#endif
  return both;
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
