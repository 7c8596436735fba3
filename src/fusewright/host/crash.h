// A kernel that reads through a wild pointer or at a misaligned address, overflows its stack or divides an integer by
// zero ends its launch with a message, not the whole process.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include "block.h"

namespace cuda_on_cpu {

constexpr int kCrashSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int kCrashSignalCount = 5;
constexpr size_t kSignalStackBytes = 64 * 1024;
inline struct sigaction earlier_actions[kCrashSignalCount];

// Where in which library the fault happened, as `name.so+0x12ab`: library.py looks up the line.
CUDA_ON_CPU_RUNTIME inline void describe_place(const void* context, char* text, size_t room) {
  const mcontext_t& machine = ((const ucontext_t*)context)->uc_mcontext;
#if defined(__x86_64__)
  char* instruction = (char*)machine.gregs[REG_RIP];
#elif defined(__aarch64__)
  char* instruction = (char*)machine.pc;
#else
  char* instruction = nullptr;
  (void)machine;
#endif
  Dl_info library;
  text[0] = 0;
  if (!dladdr(instruction, &library)) return;
  const char* slash = strrchr(library.dli_fname, '/');
  const char* name = slash ? slash + 1 : library.dli_fname;
  snprintf(text, room, " [%s+0x%zx]", name, (size_t)(instruction - (char*)library.dli_fbase));
}

CUDA_ON_CPU_RUNTIME inline void on_crash(int signal, siginfo_t* info, void* context) {
  if (!block || !self) {  // not ours: the fault happens again, and whoever handled it before does
    for (int i = 0; i < kCrashSignalCount; ++i)
      if (kCrashSignals[i] == signal) sigaction(signal, &earlier_actions[i], nullptr);
    return;
  }
  char place[256];
  describe_place(context, place, sizeof place);
  char* address = (char*)info->si_addr;
  char* stack = self->fiber.stack;
  if (signal == SIGFPE) fail("integer division by zero%s", place);
  bool is_trap = signal == SIGILL || signal == SIGTRAP;  // put there by the compiler: see compile.py
  if (is_trap) fail("an access that is not aligned as its type asks%s", place);
  if (address >= stack - kGuardBytes && address < stack)
    fail("stack overflow: its local variables take more than %zu KiB%s", kStackBytes / 1024, place);
  fail("invalid memory access near %p%s", (void*)address, place);
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
