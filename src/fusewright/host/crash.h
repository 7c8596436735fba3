// A kernel that reads through a wild pointer, overflows its stack or divides an integer by zero ends its launch with a
// message, not the whole process.
#pragma once

#include <signal.h>

#include "block.h"

namespace cuda_on_cpu {

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kCrashSignalCount = 4;
constexpr size_t kSignalStackBytes = 64 * 1024;
inline struct sigaction earlier_actions[kCrashSignalCount];

CUDA_ON_CPU_RUNTIME inline void on_crash(int signal, siginfo_t* info, void*) {
  if (!block || !self) {  // not ours: the fault happens again, and whoever handled it before does
    for (int i = 0; i < kCrashSignalCount; ++i)
      if (kCrashSignals[i] == signal) sigaction(signal, &earlier_actions[i], nullptr);
    return;
  }
  char* address = (char*)info->si_addr;
  char* stack = self->fiber.stack;
  if (signal == SIGFPE) fail("integer division by zero (or overflow)");
  if (signal == SIGILL) fail("reached code that cannot be reached");
  if (address >= stack - kGuardBytes && address < stack)
    fail("stack overflow: its local variables take more than %zu KiB", kStackBytes / 1024);
  fail("invalid memory access near %p (wild pointer, or a vector access that is not aligned)", (void*)address);
}

// While a launch runs. The sanitizers have better handlers of their own.
struct CrashHandlers {
  CrashHandlers() {
#if !defined(CUDA_ON_CPU_SANITIZED)
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler may not return: it leaves for another stack
    for (int i = 0; i < kCrashSignalCount; ++i) sigaction(kCrashSignals[i], &action, &earlier_actions[i]);
#endif
  }
  ~CrashHandlers() {
#if !defined(CUDA_ON_CPU_SANITIZED)
    for (int i = 0; i < kCrashSignalCount; ++i) sigaction(kCrashSignals[i], &earlier_actions[i], nullptr);
#endif
  }
};

// A handler cannot run on a stack that has just overflowed: each OS thread that runs blocks has one for it.
struct SignalStack {
  stack_t earlier;
  char* memory;
  SignalStack() {
#if !defined(CUDA_ON_CPU_SANITIZED)
    memory = (char*)mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t mine;
    memset(&mine, 0, sizeof mine);
    mine.ss_sp = memory;
    mine.ss_size = kSignalStackBytes;
    sigaltstack(&mine, &earlier);
#endif
  }
  ~SignalStack() {
#if !defined(CUDA_ON_CPU_SANITIZED)
    sigaltstack(&earlier, nullptr);
    munmap(memory, kSignalStackBytes);
#endif
  }
};

}  // namespace cuda_on_cpu
