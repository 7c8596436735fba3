// The few functions of the CUDA runtime that launchers call. The device pretended is an H100-class one.
#pragma once

#include "launch.h"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorLaunchFailure = 719,
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};

namespace cuda_on_cpu {
CUDA_ON_CPU_API cudaError_t last_error_code(bool forget);
CUDA_ON_CPU_API const char* last_error_message();
CUDA_ON_CPU_API bool grant_shared(const void* kernel, int bytes);
}  // namespace cuda_on_cpu

// All inline: nothing here may be taken for the real runtime's function of that name, nor the other way round.
inline cudaError_t cudaGetLastError() { return cuda_on_cpu::last_error_code(true); }
inline cudaError_t cudaPeekAtLastError() { return cuda_on_cpu::last_error_code(false); }
inline const char* cudaGetErrorString(cudaError_t code) {  // the text of the last failed launch, in full
  if (code == cudaSuccess) return "no error";
  return code == cudaErrorInvalidValue ? "invalid argument" : cuda_on_cpu::last_error_message();
}

template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return cuda_on_cpu::grant_shared((const void*)kernel, value) ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaPeekAtLastError(); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaPeekAtLastError(); }

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrL2CacheSize: *value = 60 * 1024 * 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    default: return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

// By threads and dynamic shared memory alone: the host knows nothing of registers.
template <class Kernel>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads, size_t shared) {
  if (threads < 1 || threads > cuda_on_cpu::kMaxThreads) return cudaErrorInvalidValue;
  int by_threads = 2048 / ((threads + 31) / 32 * 32);
  int by_shared = (int)(228 * 1024 / (shared + 1024));  // the driver keeps 1 KiB for each block
  *blocks = by_threads < 32 ? by_threads : 32;
  if (by_shared < *blocks) *blocks = by_shared;
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* memory, int byte, size_t bytes, cudaStream_t = nullptr) {
  return memset(memory, byte, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t = nullptr) {
  return memmove(to, from, bytes), cudaSuccess;
}
template <class Symbol>
inline cudaError_t cudaMemcpyToSymbol(Symbol& symbol, const void* from, size_t bytes, size_t offset = 0) {
  return memcpy((char*)&symbol + offset, from, bytes), cudaSuccess;
}
