// CUDA on the CPU: compiles and runs the very same kernel source with g++, one fiber for each CUDA thread.
//
// Kernels are compiled against these headers, and linked with the runtime library (the .cpp files, built once):
//
//   language.h         keywords, vector types, dim3         fiber.h            stacks and the switch between them
//   block.h .cpp       one block: who runs, who waits       collectives.h      __syncthreads, shuffles, votes
//   shared_memory.*    shared arrays, filled with NaN       launch.h .cpp      <<<>>>: checks, blocks over OS threads
//   tensor_core.h .cpp mma, ldmatrix, cp.async              runtime_api.h      cudaGetLastError and its neighbours
//   atomics.h  device_math.h  half.h                        crash.h            faults become messages
//
// Not here: cooperative groups, clusters, wgmma, the bulk copy engine, textures, blocks that wait for other blocks.
#pragma once

#define CUDA_ON_CPU 1
#if (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)) && !defined(CUDA_ON_CPU_SANITIZED)
#define CUDA_ON_CPU_SANITIZED 1  // compile.py also says so for the undefined-behaviour sanitizer, which has no macro
#endif

#include "language.h"

#include "block.h"
#include "collectives.h"
#include "launch.h"
#include "shared_memory.h"

#include "atomics.h"
#include "device_math.h"
#include "half.h"
#include "runtime_api.h"
#include "tensor_core.h"
