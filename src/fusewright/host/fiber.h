// Fibers: a stack for each CUDA thread that has to wait, and the switch from one stack to another.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "sanitizers.h"

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(CUDA_ON_CPU_UCONTEXT)
#define CUDA_ON_CPU_UCONTEXT 1
#endif
#if defined(CUDA_ON_CPU_UCONTEXT)
#include <ucontext.h>
#endif

namespace cuda_on_cpu {

#if defined(CUDA_ON_CPU_SANITIZED)
constexpr size_t kStackBytes = 512 * 1024;  // instrumented frames are several times larger
#else
constexpr size_t kStackBytes = 128 * 1024;
#endif
constexpr size_t kGuardBytes = 64 * 1024;  // unmapped below each stack: a local array that is too large faults here

struct Fiber {
  char* stack;             // lowest address; nullptr for a fiber that runs on an OS thread's own stack
  size_t stack_bytes;
#if defined(CUDA_ON_CPU_UCONTEXT)
  ucontext_t context;
#else
  void* stack_pointer;     // while it does not run: everything else is saved on its stack
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan_fiber;
#endif
};

CUDA_ON_CPU_RUNTIME inline char* map_stack() {
  char* low = (char*)mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (low == (char*)MAP_FAILED) abort();
  mprotect(low, kGuardBytes, PROT_NONE);
  return low + kGuardBytes;
}

#if defined(CUDA_ON_CPU_UCONTEXT)

// Any other CPU: portable, but every switch is a system call.
CUDA_ON_CPU_RUNTIME inline void prepare_fiber(Fiber& fiber, void (*entry)(), int) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
CUDA_ON_CPU_RUNTIME inline void switch_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

#else

// Saves the registers a callee must preserve on the running stack, and restores those of the other one.
extern "C" void cuda_on_cpu_switch(void** save_stack_pointer, void* load_stack_pointer)
    __attribute__((visibility("hidden")));
#if defined(__x86_64__)
constexpr int kFrameWords = 8;  // six registers, the address to go on at, and one word that keeps calls aligned
constexpr int kEntryWord = 6;
#else
constexpr int kFrameWords = 20;
constexpr int kEntryWord = 11;  // x30
#endif

// Lays out a stack so that the first switch to it enters `entry`. Stacks are a multiple of a page apart: without a
// shift of their own (`number`) the tops of all of them would compete for the same few sets of the first-level cache.
CUDA_ON_CPU_RUNTIME inline void prepare_fiber(Fiber& fiber, void (*entry)(), int number) {
  void** top = (void**)(fiber.stack + fiber.stack_bytes - (number % 32) * 128);
  void** frame = top - kFrameWords;
  for (int word = 0; word < kFrameWords; ++word) frame[word] = nullptr;
  frame[kEntryWord] = (void*)entry;
  fiber.stack_pointer = frame;
}
CUDA_ON_CPU_RUNTIME inline void switch_stacks(Fiber& from, Fiber& to) {
  cuda_on_cpu_switch(&from.stack_pointer, to.stack_pointer);
}

#endif

// Runs `to` from where it stopped. Returns when someone switches back to `from`, never if `from` is finished.
CUDA_ON_CPU_RUNTIME inline void switch_fiber(Fiber& from, Fiber& to, bool from_is_finished) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(from_is_finished ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  constexpr unsigned kNoOrder = 1;  // a switch is bookkeeping of ours, not something CUDA threads may rely on
  __tsan_switch_to_fiber(to.tsan_fiber, kNoOrder);
#endif
  (void)from_is_finished;
  switch_stacks(from, to);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The first thing a fiber does on its new stack.
CUDA_ON_CPU_RUNTIME inline void enter_fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

// Makes `fiber` stand for the OS thread that is running now.
CUDA_ON_CPU_RUNTIME inline void adopt_this_thread(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* low = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &fiber.stack_bytes);
  pthread_attr_destroy(&attributes);
  fiber.stack = (char*)low;
#endif
#if defined(__SANITIZE_THREAD__)
  fiber.tsan_fiber = __tsan_get_current_fiber();
#endif
  (void)fiber;
}

}  // namespace cuda_on_cpu
