// Kernels with one bug each. test_wrong.py says how each must be found; the lines it looks for carry a mark.
// host_sources.py turns `LAUNCH(name, kernel, grid, block[, shared])` into a launcher.
#include <cuda_runtime.h>
#include <stdint.h>

static const char* launch_error() {
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
// ---- outside an array

__global__ void past_the_end_kernel(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x + 1];  // MARK past_the_end
}
LAUNCH(past_the_end, past_the_end_kernel, 1, 128)

__global__ void shared_overflow_kernel(const float* x, float* y) {
  __shared__ float a[64];
  __shared__ float b[64];
  a[threadIdx.x + 1] = 1.0f;  // MARK shared_overflow
  b[threadIdx.x] = 2.0f;
  __syncthreads();
  y[threadIdx.x] = b[threadIdx.x];
}
LAUNCH(shared_overflow, shared_overflow_kernel, 1, 64)

__global__ void dynamic_overflow_kernel(const float* x, float* y) {
  extern __shared__ float staged[];
  staged[threadIdx.x + 1] = 1.0f;  // MARK dynamic_overflow
  __syncthreads();
  y[threadIdx.x] = staged[threadIdx.x];
}
LAUNCH(dynamic_overflow, dynamic_overflow_kernel, 1, 64, 64 * sizeof(float))

__global__ void local_overflow_kernel(const float* x, float* y) {
  float own[8];
  for (int i = 0; i < 8; ++i) own[i] = x[i];
  int at = 8 + (int)(x[0] * 0.0f);
  y[threadIdx.x] = own[at];  // MARK local_overflow
}
LAUNCH(local_overflow, local_overflow_kernel, 1, 32)

__global__ void wild_pointer_kernel(const float* x, float* y) {
  const float* nowhere = reinterpret_cast<const float*>(64);
  y[threadIdx.x] = threadIdx.x == 33 ? nowhere[0] : x[0];
}
LAUNCH(wild_pointer, wild_pointer_kernel, 1, 64)

__global__ void misaligned_kernel(const float* x, float* y) {
  float4 v = *reinterpret_cast<const float4*>(x + 1);  // MARK misaligned
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
LAUNCH(misaligned, misaligned_kernel, 1, 32)

__device__ __noinline__ float deep(float x, int depth) {
  volatile float own[1024];
  own[0] = x;
  return depth ? deep(own[0] + 1, depth - 1) + own[0] : own[0];
}
__global__ void stack_overflow_kernel(const float* x, float* y) { y[threadIdx.x] = deep(x[0], 100000); }
LAUNCH(stack_overflow, stack_overflow_kernel, 1, 32)

__global__ void division_kernel(const float* x, float* y) {
  int zero = (int)(x[0] * 0.0f);
  y[threadIdx.x] = (float)((int)threadIdx.x / zero);
}
LAUNCH(division, division_kernel, 1, 32)

// ---- races

__global__ void no_barrier_kernel(const float* x, float* y) {
  __shared__ float staged[128];
  staged[threadIdx.x] = x[threadIdx.x];         // MARK no_barrier_write
  y[threadIdx.x] = staged[127 - threadIdx.x];   // MARK no_barrier_read
}
LAUNCH(no_barrier, no_barrier_kernel, 1, 128)

__global__ void left_neighbour_kernel(const float* x, float* y) {  // ascending order hides it
  __shared__ float staged[128];
  staged[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = threadIdx.x ? staged[threadIdx.x - 1] : 0.0f;
}
LAUNCH(left_neighbour, left_neighbour_kernel, 1, 128)

__global__ void reused_buffer_kernel(const float* x, float* y) {  // the barrier at the end of the loop is missing
  __shared__ float staged[128];
  float sum = 0.0f;
  for (int round = 0; round < 4; ++round) {
    staged[threadIdx.x] = x[threadIdx.x] + round;
    __syncthreads();
    sum += staged[(threadIdx.x + 64) % 128];
  }
  y[threadIdx.x] = sum;
}
LAUNCH(reused_buffer, reused_buffer_kernel, 1, 128)

__global__ void between_blocks_kernel(const float* x, float* y) {
  if (threadIdx.x == 0) y[0] = x[blockIdx.x];  // MARK between_blocks
}
LAUNCH(between_blocks, between_blocks_kernel, 4, 32)

__global__ void warp_write_read_kernel(const float* x, float* y) {  // a shuffle does not order memory, __syncwarp does
  __shared__ float staged[32];
  staged[threadIdx.x] = x[threadIdx.x];
  float v = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
  y[threadIdx.x] = staged[31 - threadIdx.x] + v;
}
LAUNCH(warp_write_read, warp_write_read_kernel, 1, 32)

// ---- barriers and collectives

__global__ void divergent_kernel(const float* x, float* y) {
  if (threadIdx.x < 40) __syncthreads();
  y[threadIdx.x] = x[0];
}
LAUNCH(divergent, divergent_kernel, 1, 128)

__global__ void two_barriers_kernel(const float* x, float* y) {
  if (threadIdx.x < 64)
    __syncthreads();  // MARK two_barriers
  else
    __syncthreads();
  y[threadIdx.x] = x[0];
}
LAUNCH(two_barriers, two_barriers_kernel, 1, 128)

__global__ void early_return_kernel(const float* x, float* y) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  y[threadIdx.x] = x[0];
}
LAUNCH(early_return, early_return_kernel, 1, 128)

__global__ void nobody_comes_kernel(const float* x, float* y) {
  if (threadIdx.x < 64) barrier_sync(2, 96);  // MARK nobody_comes
  y[threadIdx.x] = x[0];
}
LAUNCH(nobody_comes, nobody_comes_kernel, 1, 128)

__global__ void other_counts_kernel(const float* x, float* y) {
  barrier_sync(2, threadIdx.x < 32 ? 64 : 128);
  y[threadIdx.x] = x[0];
}
LAUNCH(other_counts, other_counts_kernel, 1, 128)

__global__ void left_behind_kernel(const float* x, float* y) {
  if (threadIdx.x < 32) barrier_arrive(3, 128);  // MARK left_behind
  y[threadIdx.x] = x[0];
}
LAUNCH(left_behind, left_behind_kernel, 1, 128)

__global__ void no_such_barrier_kernel(const float* x, float* y) {
  barrier_sync(16, 128);  // MARK no_such_barrier
  y[threadIdx.x] = x[0];
}
LAUNCH(no_such_barrier, no_such_barrier_kernel, 1, 128)

__global__ void half_a_warp_kernel(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);  // MARK half_a_warp
  y[threadIdx.x] = v;
}
LAUNCH(half_a_warp, half_a_warp_kernel, 1, 32)

__global__ void not_in_mask_kernel(const float* x, float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 1);  // MARK not_in_mask
}
LAUNCH(not_in_mask, not_in_mask_kernel, 1, 32)

__global__ void reads_outside_mask_kernel(const float* x, float* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_down_sync(0x0000ffffu, x[threadIdx.x], 8);
}
LAUNCH(reads_outside_mask, reads_outside_mask_kernel, 1, 32)

__global__ void different_masks_kernel(const float* x, float* y) {
  unsigned mask = threadIdx.x < 16 ? 0xffffffffu : 0xffff0001u;
  y[threadIdx.x] = __shfl_sync(threadIdx.x == 16 ? mask : 0xffffffffu, x[threadIdx.x], 0);
}
LAUNCH(different_masks, different_masks_kernel, 1, 32)

__global__ void short_warp_kernel(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  y[threadIdx.x] = v;
}
LAUNCH(short_warp, short_warp_kernel, 1, 48)

// ---- cp.async

__global__ void no_wait_kernel(const float* x, float* y) {
  __shared__ __align__(16) float staged[128];
  cp_async<4>(&staged[threadIdx.x], x + threadIdx.x, true);
  cp_async_commit();
  __syncthreads();
  y[threadIdx.x] = staged[threadIdx.x];
  cp_async_wait<0>();  // too late
}
LAUNCH(no_wait, no_wait_kernel, 1, 128)

__global__ void never_waits_kernel(const float* x, float* y) {
  __shared__ __align__(16) float staged[128];
  cp_async<4>(&staged[threadIdx.x], x + threadIdx.x, true);
  cp_async_commit();
  y[threadIdx.x] = 0.0f;
}
LAUNCH(never_waits, never_waits_kernel, 1, 128)

__global__ void unaligned_copy_kernel(const float* x, float* y) {
  __shared__ __align__(16) float staged[128];
  cp_async<16>(&staged[threadIdx.x + 1], x, true);  // MARK unaligned_copy
  cp_async_wait<0>();
}
LAUNCH(unaligned_copy, unaligned_copy_kernel, 1, 32)

__global__ void copy_past_the_end_kernel(const float* x, float* y) {
  __shared__ __align__(16) float staged[132];
  cp_async<4>(&staged[threadIdx.x], x + threadIdx.x + 1, true);  // MARK copy_past_the_end
  cp_async_commit();
  cp_async_wait<0>();
  y[threadIdx.x] = staged[threadIdx.x];
}
LAUNCH(copy_past_the_end, copy_past_the_end_kernel, 1, 128)

// ---- launches the driver refuses

__global__ void plain_kernel(const float* x, float* y) { y[threadIdx.x % 32] = x[0]; }
__global__ void __launch_bounds__(64) bounded_kernel(const float* x, float* y) { y[threadIdx.x % 32] = x[0]; }
LAUNCH(large_block, plain_kernel, 1, 1025)
LAUNCH(no_blocks, plain_kernel, 0, 32)
LAUNCH(too_much_shared, plain_kernel, 1, 32, 49 * 1024)
LAUNCH(plain, plain_kernel, 1, 32)
LAUNCH(bounded, bounded_kernel, 1, 128)

template <int KIB>
__global__ void much_shared_kernel(const float* x, float* y) {
  __shared__ float much[KIB * 256];
  much[threadIdx.x] = x[0];
  y[threadIdx.x] = much[threadIdx.x];
}
LAUNCH(much_shared, much_shared_kernel<49>, 1, 32)

// ---- broken promises

__global__ void assumption_kernel(const float* x, float* y) {
  __builtin_assume(threadIdx.x < 16);  // MARK assumption
  y[threadIdx.x] = x[0];
}
LAUNCH(assumption, assumption_kernel, 1, 32)
__global__ void trap_kernel(const float* x, float* y) {
  if (threadIdx.x == 3) __trap();  // MARK trap
}
LAUNCH(trap, trap_kernel, 1, 32)
