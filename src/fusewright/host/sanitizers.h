// What the sanitizers must be told, and names for telling it. Empty in an ordinary build.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#endif

// The runtime itself is left uninstrumented: it moves between stacks and reads poisoned memory on purpose.
// (Only in sanitized builds: g++ does not inline across functions whose sanitizer attributes differ.)
#if defined(CUDA_ON_CPU_SANITIZED)
#define CUDA_ON_CPU_RUNTIME __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))
#else
#define CUDA_ON_CPU_RUNTIME
#endif

// The runtime library exports this to kernel libraries.
#define CUDA_ON_CPU_API __attribute__((visibility("default")))

namespace cuda_on_cpu {

// Shared memory outside every array is out of bounds to the address sanitizer.
CUDA_ON_CPU_RUNTIME inline void forbid_memory(void* begin, unsigned long bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(begin, bytes);
#else
  (void)begin, (void)bytes;
#endif
}
CUDA_ON_CPU_RUNTIME inline void allow_memory(void* begin, unsigned long bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(begin, bytes);
#else
  (void)begin, (void)bytes;
#endif
}

// The thread sanitizer sees every CUDA thread as a thread of its own. All it knows about barriers is what is said here:
// whoever waits for `event` comes after everyone who announced it.
CUDA_ON_CPU_RUNTIME inline void announce(void* event) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(event);
#else
  (void)event;
#endif
}
CUDA_ON_CPU_RUNTIME inline void observe(void* event) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(event);
#else
  (void)event;
#endif
}

}  // namespace cuda_on_cpu
