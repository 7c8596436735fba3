// kernel<<<grid, block, shared, stream>>>(arguments): checked as the driver checks it, then run to its end.
#pragma once

#include <tuple>
#include <utility>

#include "block.h"

using cudaStream_t = struct CUstream_st*;

namespace cuda_on_cpu {

struct Geometry {
  dim3 grid, block;
  size_t shared;
  Geometry(dim3 grid_, dim3 block_, size_t shared_ = 0, cudaStream_t = nullptr)
      : grid(grid_), block(block_), shared(shared_) {}
};

// Runs `body(arguments)` once for each CUDA thread. What goes wrong is kept for cudaGetLastError.
CUDA_ON_CPU_API void launch_kernel(const char* name, const Geometry& geometry, const void* kernel, void (*body)(void*),
                                   void* arguments);

template <class T>
inline T implicitly(T value) { return value; }  // converted as in a call, and no more freely

// The kernel, which is launched under this name from now on, whatever the launch calls it.
CUDA_ON_CPU_API void name_kernel(const void* kernel, const char* name);
template <class... Parameters>
inline auto known_as(const char* name, void (*kernel)(Parameters...)) {
  name_kernel((const void*)kernel, name);
  return kernel;
}

// transform.py turns `k<4><<<grid, block>>>(x, y)` into launch("k<4>", Geometry(grid, block), k<4>, x, y).
template <class... Parameters, class... Arguments>
inline void launch(const char* name, const Geometry& geometry, void (*kernel)(Parameters...),
                   Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a launch passes as many arguments as the kernel takes");
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> arguments;
  };
  Call call = {kernel, {implicitly<std::decay_t<Parameters>>(std::forward<Arguments>(arguments))...}};
  auto body = [](void* pointer) {
    Call& made = *(Call*)pointer;
    std::apply(made.kernel, made.arguments);
  };
  launch_kernel(name, geometry, (const void*)kernel, body, &call);
}

// __launch_bounds__(threads) of the kernel; the driver refuses larger blocks.
CUDA_ON_CPU_RUNTIME inline void check_launch_bounds(int threads) {
  int launched = block->thread_count;
  if (launched > threads) fail("__launch_bounds__(%d), but launched with %d threads", threads, launched);
}

}  // namespace cuda_on_cpu

#define threadIdx (static_cast<const uint3&>(cuda_on_cpu::self->index))
#define blockIdx (static_cast<const uint3&>(cuda_on_cpu::block->index))
#define blockDim (static_cast<const dim3&>(cuda_on_cpu::block->block_dim))
#define gridDim (static_cast<const dim3&>(cuda_on_cpu::block->grid_dim))
