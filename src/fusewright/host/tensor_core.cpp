// What the PTX wrappers of prelude_ptx.cuh do on the host: asynchronous copies, tensor-core products, ldmatrix.

#include "tensor_core.h"

#include "collectives.h"
#include "half.h"
#include "shared_memory.h"

namespace cuda_on_cpu {

CUDA_ON_CPU_RUNTIME static bool in_shared_memory(const void* address, size_t bytes) {
  return (char*)address >= block->arena && (char*)address + bytes <= block->arena + block->arena_used;
}

// ---- cp.async: the copy happens at the wait. Until then the destination holds NaN, so a missing wait shows.

CUDA_ON_CPU_RUNTIME static void remember_copy(const AsyncCopy& copy) {
  Thread& t = *self;
  if (t.copy_count == t.copy_room) {
    t.copy_room = t.copy_room ? 2 * t.copy_room : 16;
    t.copies = (AsyncCopy*)realloc(t.copies, t.copy_room * sizeof(AsyncCopy));
  }
  t.copies[t.copy_count++] = copy;
}

void cp_async(void* destination, const void* source, int bytes, bool valid, int line) {
  bool aligned = (uintptr_t)destination % bytes == 0 && (!valid || (uintptr_t)source % bytes == 0);
  if (!aligned) fail("cp.async at line %d: address not aligned to %d", line, bytes);
  if (!in_shared_memory(destination, bytes)) fail("cp.async at line %d: the destination is not shared memory", line);
  // Written and read word by word, here and now, in instrumented code: the sanitizers see whose line it is.
  for (int i = 0; i < bytes / 4; ++i) {
    ((volatile uint32_t*)destination)[i] = kPoison;
    if (valid) (void)((const volatile uint32_t*)source)[i];
  }
  remember_copy({destination, valid ? source : nullptr, bytes, self->copy_group});
}

CUDA_ON_CPU_RUNTIME void cp_async_commit() { ++self->copy_group; }

void cp_async_wait(int pending) {
  Thread& t = *self;
  int kept = 0;
  for (int i = 0; i < t.copy_count; ++i) {
    AsyncCopy copy = t.copies[i];
    bool has_landed = copy.group < t.copy_group - pending;
    if (!has_landed) {
      t.copies[kept++] = copy;
      continue;
    }
    for (int word = 0; word < copy.bytes / 4; ++word)
      ((volatile uint32_t*)copy.destination)[word] = copy.source ? ((const uint32_t*)copy.source)[word] : 0u;
  }
  t.copy_count = kept;
}

// ---- tensor cores

// The innermost loop below is where a model with tensor-core kernels spends its time on the host.
// Four columns at a time: one AVX2 register, where there is one.
using Doubles = double __attribute__((vector_size(32)));
using Ints = int __attribute__((vector_size(16)));
using Shorts = int16_t __attribute__((vector_size(16)));
#define CUDA_ON_CPU_INLINE inline __attribute__((always_inline))

constexpr int16_t kZeroExponent = -4096;  // of an operand that is zero: its products never set the scale

// The exponent of the leading bit's place (for a subnormal, that of the smallest normal number).
CUDA_ON_CPU_RUNTIME static int16_t exponent_of(float x) {
  uint32_t bits = same_bits<uint32_t>(x);
  int field = bits >> 23 & 0xff;
  int exponent = (field ? field : 1) - 127;
  return (int16_t)((bits & 0x7fffffffu) == 0 ? kZeroExponent : exponent);
}

// The operands of one mma as numbers: A is 16 x K, B is K x 8, C is 16 x 8.
template <int K>
struct Operands {
  double a[16][K], b[K][8];
  int16_t a_exponent[16][K], b_exponent[K][8];
  float c[16][8];
  bool finite;

  CUDA_ON_CPU_RUNTIME void set_a(int row, int k, float x) {
    a[row][k] = x;
    a_exponent[row][k] = exponent_of(x);
    finite &= a_exponent[row][k] != 128;
  }
  CUDA_ON_CPU_RUNTIME void set_b(int k, int column, float x) {
    b[k][column] = x;
    b_exponent[k][column] = exponent_of(x);
    finite &= b_exponent[k][column] != 128;
  }
};

template <class T, class V>
CUDA_ON_CPU_RUNTIME static void load(T& to, const V& from) {
  static_assert(sizeof to == sizeof from, "a whole row");
  __builtin_memcpy(&to, &from, sizeof to);
}

CUDA_ON_CPU_RUNTIME static double power_of_two(int exponent) {
  return same_bits<double>((uint64_t)(exponent + 1023) << 52);
}

// To whole numbers, toward zero: what a conversion to int does.
CUDA_ON_CPU_RUNTIME CUDA_ON_CPU_INLINE Doubles cut_off(const Doubles& x) {
  return __builtin_convertvector(__builtin_convertvector(x, Ints), Doubles);
}

CUDA_ON_CPU_RUNTIME static float round_toward_zero(double x) {
  constexpr uint64_t kBitsOfFloat = ~((1ull << 29) - 1);
  bool is_normal = fabs(x) >= FLT_MIN;  // as a float
  if (is_normal) return (float)same_bits<double>(same_bits<uint64_t>(x) & kBitsOfFloat);
  float nearest = (float)x;
  bool away_from_zero = fabs((double)nearest) > fabs(x);
  return same_bits<float>(same_bits<uint32_t>(nearest) - away_from_zero);
}

// c += a b as a Hopper tensor core computes each element: the products are exact; they and c are aligned to the
// largest exponent among them (that of a product being the sum of its factors' exponents) and cut off, toward zero,
// two bits below the last bit of a float of that exponent; the sum of what is left is exact, and becomes a float by
// rounding toward zero. (Ampere is said to keep one bit instead of two and to take half as many products at a time.)
// The last bits may differ from the hardware's, the kind of error does not: it grows with K in one direction, so a test
// sees that a long chain of these is less exact than a chain of fp32 additions.
constexpr int kKeptBits = 23 + 2;

template <int K>
CUDA_ON_CPU_RUNTIME CUDA_ON_CPU_INLINE void multiply_rows(Operands<K>& operands) {
  for (int row = 0; row < 16; ++row) {
    float (&c)[8] = operands.c[row];
    Shorts largest;
    for (int column = 0; column < 8; ++column) largest[column] = exponent_of(c[column]);
    for (int k = 0; k < K; ++k) {
      Shorts b_exponent;
      load(b_exponent, operands.b_exponent[k]);
      Shorts exponent = b_exponent + operands.a_exponent[row][k];
      largest = exponent > largest ? exponent : largest;
    }
    double scale[8], sum[8];
    for (int column = 0; column < 8; ++column) {
      if (largest[column] < -300) largest[column] = 0;  // all terms are zero: any scale will do
      scale[column] = power_of_two(kKeptBits - largest[column]);
      sum[column] = c[column];
    }
    for (int half = 0; half < 8; half += 4) {
      Doubles scales, sums;
      __builtin_memcpy(&scales, scale + half, sizeof scales);
      __builtin_memcpy(&sums, sum + half, sizeof sums);
      sums = cut_off(sums * scales);
      for (int k = 0; k < K; ++k) {
        Doubles b;
        __builtin_memcpy(&b, operands.b[k] + half, sizeof b);
        sums += cut_off(b * operands.a[row][k] * scales);
      }
      __builtin_memcpy(sum + half, &sums, sizeof sums);
    }
    for (int column = 0; column < 8; ++column)
      c[column] = round_toward_zero(sum[column] * power_of_two(largest[column] - kKeptBits));
  }
}

template <int K>
CUDA_ON_CPU_RUNTIME void multiply_anywhere(Operands<K>& operands) {
  multiply_rows(operands);
}
#if defined(__x86_64__)
template <int K>
__attribute__((target("avx2"))) CUDA_ON_CPU_RUNTIME void multiply_avx2(Operands<K>& operands) {
  multiply_rows(operands);
}
template <int K>
CUDA_ON_CPU_RUNTIME static void multiply(Operands<K>& operands) {
  __builtin_cpu_supports("avx2") ? multiply_avx2(operands) : multiply_anywhere(operands);
}
#else
template <int K>
CUDA_ON_CPU_RUNTIME static void multiply(Operands<K>& operands) { multiply_anywhere(operands); }
#endif

// With an infinity or a NaN among the operands or in c: IEEE arithmetic says which of them the result is.
template <int K>
CUDA_ON_CPU_RUNTIME static void multiply_not_finite(Operands<K>& operands) {
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      double sum = operands.c[row][column];
      for (int k = 0; k < K; ++k) sum += operands.a[row][k] * operands.b[k][column];
      operands.c[row][column] = sum == sum ? round_toward_zero(sum) : CUDART_NAN_F;
    }
}

// What each lane hands in: words 0-3 of c, 4-7 of a, 8-9 of b. The lane that comes last computes the product for all,
// and leaves each lane's part of d in its words 0-3. Where a register's elements lie is written out in prelude_ptx.cuh.
template <int K>
CUDA_ON_CPU_RUNTIME static void multiply_for_all_lanes(Words words, Operands<K>& operands) {
  for (int g = 0; g < 8; ++g)
    for (int t = 0; t < 4; ++t) {
      const uint32_t* lane = words[g * 4 + t];
      load(operands.c[g][2 * t], lane[0]);
      load(operands.c[g][2 * t + 1], lane[1]);
      load(operands.c[g + 8][2 * t], lane[2]);
      load(operands.c[g + 8][2 * t + 1], lane[3]);
      for (int i = 0; i < 4; ++i) operands.finite &= (lane[i] & 0x7f800000u) != 0x7f800000u;
    }
  operands.finite ? multiply(operands) : multiply_not_finite(operands);
  for (int g = 0; g < 8; ++g)
    for (int t = 0; t < 4; ++t) {
      uint32_t* lane = words[g * 4 + t];
      load(lane[0], operands.c[g][2 * t]);
      load(lane[1], operands.c[g][2 * t + 1]);
      load(lane[2], operands.c[g + 8][2 * t]);
      load(lane[3], operands.c[g + 8][2 * t + 1]);
    }
}

CUDA_ON_CPU_RUNTIME static float tf32_value(uint32_t bits) { return same_bits<float>(bits & 0xffffe000u); }

CUDA_ON_CPU_RUNTIME static void combine_tf32(Words words) {
  Operands<8> operands;
  operands.finite = true;
  for (int g = 0; g < 8; ++g)
    for (int t = 0; t < 4; ++t) {
      const uint32_t *a = words[g * 4 + t] + 4, *b = a + 4;
      operands.set_a(g, t, tf32_value(a[0]));
      operands.set_a(g + 8, t, tf32_value(a[1]));
      operands.set_a(g, t + 4, tf32_value(a[2]));
      operands.set_a(g + 8, t + 4, tf32_value(a[3]));
      operands.set_b(t, g, tf32_value(b[0]));
      operands.set_b(t + 4, g, tf32_value(b[1]));
    }
  multiply_for_all_lanes(words, operands);
}

template <float (*value)(uint16_t)>
CUDA_ON_CPU_RUNTIME static void combine_16_bit(Words words) {
  Operands<16> operands;
  operands.finite = true;
  for (int g = 0; g < 8; ++g)
    for (int t = 0; t < 4; ++t)
      for (int part = 0; part < 2; ++part) {  // two elements to a register, the lower one first
        const uint32_t *a = words[g * 4 + t] + 4, *b = a + 4;
        int k = 2 * t + part, shift = 16 * part;
        operands.set_a(g, k, value((uint16_t)(a[0] >> shift)));
        operands.set_a(g + 8, k, value((uint16_t)(a[1] >> shift)));
        operands.set_a(g, k + 8, value((uint16_t)(a[2] >> shift)));
        operands.set_a(g + 8, k + 8, value((uint16_t)(a[3] >> shift)));
        operands.set_b(k, g, value((uint16_t)(b[0] >> shift)));
        operands.set_b(k + 8, g, value((uint16_t)(b[1] >> shift)));
      }
  multiply_for_all_lanes(words, operands);
}

CUDA_ON_CPU_RUNTIME static void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const char* name,
                                    Combine combine, int line) {
  bool is_whole = existing_lanes(*block, self->warp) == 0xffffffffu;
  if (!is_whole) fail("%s at line %d in a warp of fewer than 32 threads", name, line);
  uint32_t words[10];
  __builtin_memcpy(words, d, sizeof d);
  __builtin_memcpy(words + 4, a, sizeof a);
  __builtin_memcpy(words + 8, b, sizeof b);
  Words lanes = meet_warp(0xffffffffu, name, line, words, 10, combine);
  __builtin_memcpy(d, lanes[self->lane], sizeof d);
}
CUDA_ON_CPU_RUNTIME void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  mma(d, a, b, "mma.m16n8k8.tf32", combine_tf32, line);
}
CUDA_ON_CPU_RUNTIME void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  mma(d, a, b, "mma.m16n8k16.bf16", combine_16_bit<bfloat16_value>, line);
}
CUDA_ON_CPU_RUNTIME void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
  mma(d, a, b, "mma.m16n8k16.f16", combine_16_bit<half_value>, line);
}

// ---- ldmatrix: four 8 x 8 matrices of two-byte elements; lane 8 i + r says where row r of matrix i lies

void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transposed, int line) {
  const char* name = transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4";
  if ((uintptr_t)row % 16) fail("%s at line %d: row address not aligned to 16", name, line);
  if (!in_shared_memory(row, 16)) fail("%s at line %d: the row is not in shared memory", name, line);
  uint32_t words[2];
  __builtin_memcpy(words, &row, sizeof row);
  Words lanes = meet_warp(0xffffffffu, name, line, words, 2);
  auto element = [&](int matrix, int of_row, int column) -> uint32_t {
    const uint16_t* address;
    __builtin_memcpy(&address, lanes[matrix * 8 + of_row], sizeof address);
    return address[column];
  };
  int first = self->lane / 4, second = self->lane % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint32_t low = transposed ? element(matrix, second, first) : element(matrix, first, second);
    uint32_t high = transposed ? element(matrix, second + 1, first) : element(matrix, first, second + 1);
    r[matrix] = low | high << 16;
  }
}

}  // namespace cuda_on_cpu
