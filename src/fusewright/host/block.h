// One block of CUDA threads on one OS thread: its data. What happens with it is in block.cpp.
#pragma once

#include "fiber.h"
#include "language.h"

namespace cuda_on_cpu {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr unsigned kReadyRoom = 2 * kMaxThreads;
constexpr int kExchangeWords = 16;  // what one lane can hand to the others in one warp collective
constexpr size_t kMaxShared = 227 * 1024, kMaxStaticShared = 48 * 1024;
constexpr size_t kArenaBytes = 320 * 1024;  // dynamic and static shared memory with gaps between the arrays
constexpr int kMaxSharedArrays = 64;
constexpr int kMessageBytes = 1024;

// Which ready thread runs next. Races show only if someone runs far enough ahead of the others: taking turns in
// ascending order hides nearly all of them.
enum Order : int {
  kForward,   // first come, first served, ascending
  kBackward,  // last come, first served, descending
  kWarps,     // last come, first served; warps in random order, lanes mirrored at random
  kRandom,    // any ready thread
};

enum State : uint8_t { kNew, kReady, kAtBarrier, kAtNamed, kInWarp, kExited };
constexpr int kNamedBarriers = 16;  // the first is that of __syncthreads

struct AsyncCopy {
  void* destination;
  const void* source;  // nullptr: fill with zeros
  int bytes;
  int group;
};

struct Thread {
  uint3 index;  // threadIdx
  int number, lane, warp;
  Fiber fiber;
  const char* waits_in;  // name of the barrier or collective, while it waits
  int waits_at;          // and its line
  int waits_for;         // which of the named barriers
  AsyncCopy* copies;     // cp.async issued and not yet waited for
  int copy_count, copy_room, copy_group;
};

// The lanes named by one mask meeting in one collective (shuffle, vote, mma).
struct Meeting {
  Meeting* next;  // of the same warp, with another mask: lanes may part and meet in groups
  uint32_t mask, arrived;
  const char* name;
  unsigned count;  // meetings so far. Words are kept twice, by parity: a fast lane may be in the next meeting already
  uint32_t words[2][32][kExchangeWords];
  char done[2];    // event for the thread sanitizer
};

// Some threads of a block, at one of its other barriers.
struct NamedBarrier {
  int arrived, expected, first_line;
  unsigned count;  // how often it was passed
  char done[2];    // events for the thread sanitizer, by parity
};

struct SharedName {
  const char* text;
  int line;
};
struct SharedArray {
  const SharedName* name;  // its address identifies the declaration (one for each template instance)
  size_t offset, bytes;
};

struct Block {
  // of the launch
  const char* kernel;
  void (*body)(void*);
  void* arguments;
  dim3 block_dim, grid_dim;
  int thread_count;
  size_t dynamic_shared, shared_limit;
  Order order;

  // of the block that runs
  uint3 index;  // blockIdx
  int live;     // threads that have not ended
  State state[kMaxThreads];
  uint16_t ready[kReadyRoom];  // ring: taken from the tail (last come) or the head (first come)
  unsigned head, tail;
  uint64_t random;

  int barrier_arrived, barrier_line;
  unsigned barrier_count;
  const char* barrier_name;
  int barrier_votes[2];
  char barrier_done[2], begun, ended;  // events for the thread sanitizer

  NamedBarrier named[kNamedBarriers];

  char* arena;
  size_t arena_used, static_shared;
  SharedArray shared_arrays[kMaxSharedArrays];
  int shared_array_count;

  bool failed;
  char message[kMessageBytes];

  // kept from block to block
  Fiber main;
  Thread threads[kMaxThreads];
  Meeting* meetings[kMaxWarps];
  char* stacks[kMaxThreads];
  int stack_count;
  char* free_stacks[kMaxThreads];
  int free_count;
};

// Both live in the runtime library, once for all kernel libraries of a process: thread-local storage that can be
// reached this fast is a few hundred bytes in all, and must not be used up by loading libraries.
#define CUDA_ON_CPU_TLS __thread __attribute__((tls_model("initial-exec"), visibility("default")))
extern CUDA_ON_CPU_TLS Block* block;  // fibers never move to another OS thread
extern CUDA_ON_CPU_TLS Thread* self;

// Ends the launch with a message that names kernel, block and thread.
[[noreturn]] CUDA_ON_CPU_API void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Runs one block to its end, or to its first error: then `failed` is set, and threads are abandoned where they wait.
void run_block(Block& b, uint64_t number, uint64_t seed);

CUDA_ON_CPU_RUNTIME inline uint32_t existing_lanes(const Block& b, int warp) {
  int lanes = b.thread_count - warp * 32;
  return lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
}

}  // namespace cuda_on_cpu
