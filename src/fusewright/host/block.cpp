// One block of CUDA threads on one OS thread: who runs next, who waits for what, and what is said when it goes wrong.
//
// A CUDA thread runs until it must wait (a barrier, a warp collective) or ends. Threads that never wait run one after
// another on the same stack, with no switch between them: that is what makes pointwise kernels fast. A thread that
// waits keeps its stack, and the next ready thread goes on, on its own stack or a new one.

#include "block.h"

#include <cstdarg>

#include "collectives.h"
#include "shared_memory.h"

namespace cuda_on_cpu {

CUDA_ON_CPU_TLS Block* block = nullptr;
CUDA_ON_CPU_TLS Thread* self = nullptr;

// ---- going wrong: the message is kept, the block is abandoned

CUDA_ON_CPU_RUNTIME void fail(const char* format, ...) {
  Block& b = *block;
  Thread& t = *self;
  int used = snprintf(b.message, sizeof b.message, "kernel %.300s, block (%u,%u,%u), thread (%u,%u,%u): ", b.kernel,
                      b.index.x, b.index.y, b.index.z, t.index.x, t.index.y, t.index.z);
  va_list values;
  va_start(values, format);
  vsnprintf(b.message + used, sizeof b.message - used, format, values);
  va_end(values);
  b.failed = true;
  announce(&b.ended);
  self = nullptr;
  switch_fiber(t.fiber, b.main, false);
  __builtin_unreachable();
}

// Every thread waits for something. Says who waits where, and for whom.
[[noreturn]] CUDA_ON_CPU_RUNTIME __attribute__((noinline)) static void fail_deadlock() {
  Block& b = *block;
  int at_barrier = 0, at_named = 0, in_warp = 0, exited = 0, first_at_barrier = -1, first_at_named = -1, first_in_warp = -1;
  for (int i = b.thread_count - 1; i >= 0; --i) {
    if (b.state[i] == kAtBarrier) ++at_barrier, first_at_barrier = i;
    if (b.state[i] == kAtNamed) ++at_named, first_at_named = i;
    if (b.state[i] == kInWarp) ++in_warp, first_in_warp = i;
    if (b.state[i] == kExited) ++exited;
  }
  char text[512];
  int used = snprintf(text, sizeof text, "deadlock:");
  if (at_barrier)
    used += snprintf(text + used, sizeof text - used, " %d threads wait in %s at line %d (first: thread %d);",
                     at_barrier, b.barrier_name, b.barrier_line, first_at_barrier);
  if (at_named) {
    const Thread& t = b.threads[first_at_named];
    const NamedBarrier& barrier = b.named[t.waits_for];
    used += snprintf(text + used, sizeof text - used,
                     " %d threads wait at barriers of their own (first: thread %d at line %d, barrier %d has %d of %d threads);",
                     at_named, first_at_named, t.waits_at, t.waits_for, barrier.arrived, barrier.expected);
  }
  if (in_warp) {
    const Thread& t = b.threads[first_in_warp];
    uint32_t missing = 0;
    for (Meeting* m = b.meetings[t.warp]; m; m = m->next)
      if (m->arrived >> t.lane & 1) missing = m->mask & existing_lanes(b, t.warp) & ~m->arrived;
    const Thread& absent = b.threads[t.warp * 32 + __builtin_ctz(missing)];
    bool has_exited = b.state[absent.number] == kExited;
    const char* absence = has_exited ? "has exited" : "waits elsewhere";
    used += snprintf(text + used, sizeof text - used,
                     " %d threads wait in %s at line %d (first: thread %d, for lanes 0x%08x: thread %d %s);", in_warp,
                     t.waits_in, t.waits_at, first_in_warp, missing, absent.number, absence);
  }
  fail("%s %d of %d threads have exited", text, exited, b.thread_count);
}

// ---- who runs next

CUDA_ON_CPU_RUNTIME static uint32_t random_bits(Block& b) {
  b.random ^= b.random << 13;
  b.random ^= b.random >> 7;
  b.random ^= b.random << 17;
  return (uint32_t)(b.random >> 32);
}

CUDA_ON_CPU_RUNTIME static void push_ready(Block& b, int number) {
  b.ready[b.tail] = (uint16_t)number;
  b.tail = (b.tail + 1) % kReadyRoom;
}

CUDA_ON_CPU_RUNTIME static Thread* pop_ready(Block& b) {
  if (b.head == b.tail) return nullptr;
  if (b.order == kBackward || b.order == kWarps) {
    b.tail = (b.tail - 1) % kReadyRoom;
    return &b.threads[b.ready[b.tail]];
  }
  if (b.order == kRandom) {
    unsigned waiting = (b.tail - b.head) % kReadyRoom;
    unsigned chosen = (b.head + random_bits(b) % waiting) % kReadyRoom;
    uint16_t number = b.ready[chosen];
    b.ready[chosen] = b.ready[b.head];
    b.ready[b.head] = number;
  }
  Thread* next = &b.threads[b.ready[b.head]];
  b.head = (b.head + 1) % kReadyRoom;
  return next;
}

// Makes the named lanes of one warp ready.
CUDA_ON_CPU_RUNTIME static void wake_lanes(Block& b, int warp, uint32_t lanes) {
  int mirror = b.order == kWarps ? (int)(random_bits(b) & 31) : 0;
  for (int i = 0; i < 32; ++i) {
    int lane = i ^ mirror;
    if (lanes >> lane & 1) push_ready(b, warp * 32 + lane);
  }
}

// Makes every thread of the block ready: at its start and after a barrier.
CUDA_ON_CPU_RUNTIME static void wake_block(Block& b) {
  int warps = (b.thread_count + 31) / 32;
  uint8_t warp_order[kMaxWarps];
  for (int i = 0; i < warps; ++i) {
    int place = b.order == kWarps ? (int)(random_bits(b) % (unsigned)(i + 1)) : i;
    warp_order[i] = warp_order[place];
    warp_order[place] = (uint8_t)i;
  }
  for (int i = 0; i < warps; ++i) wake_lanes(b, warp_order[i], existing_lanes(b, warp_order[i]));
}

CUDA_ON_CPU_RUNTIME static char* take_stack(Block& b) {
  if (b.free_count) return b.free_stacks[--b.free_count];
  return b.stacks[b.stack_count++] = map_stack();
}

static void run_threads();

// Gives a thread that has not begun a stack, unless it inherits that of a thread that has just ended.
CUDA_ON_CPU_RUNTIME static void begin_on_own_stack(Block& b, Thread& t) {
#if defined(__SANITIZE_THREAD__)
  // The thread sanitizer remembers who touched a stack: every thread keeps its own.
  if (!t.fiber.stack) t.fiber.stack = b.stacks[b.stack_count++] = map_stack();
#else
  t.fiber.stack = take_stack(b);
#endif
  t.fiber.stack_bytes = kStackBytes;
  prepare_fiber(t.fiber, run_threads, t.number);
  b.state[t.number] = kReady;
}

// The current thread waits (its state says for what): run someone else until it is ready again.
CUDA_ON_CPU_RUNTIME static void wait(Block& b, Thread& me) {
  Thread* next = pop_ready(b);
  if (next == &me) return;  // it was the last to arrive and is the first to go on
  if (!next) fail_deadlock();
  if (b.state[next->number] == kNew) begin_on_own_stack(b, *next);
  self = next;
  switch_fiber(me.fiber, next->fiber, false);
}

CUDA_ON_CPU_RUNTIME __attribute__((noinline)) static void check_exit(Block& b, Thread& t) {
  if (t.copy_count) fail("ends with %d cp.async copies not waited for", t.copy_count);
  if (b.barrier_arrived)
    fail("ends while another thread waits in %s at line %d", b.barrier_name, b.barrier_line);
  for (int i = 0; b.live == 0 && i < kNamedBarriers; ++i)
    if (b.named[i].arrived)
      fail("the block ends, and barrier %d (line %d) has %d of its %d threads", i, b.named[i].first_line, b.named[i].arrived,
           b.named[i].expected);
}

// What every fiber runs: CUDA threads, one after another, as long as the next one to run has not begun either.
CUDA_ON_CPU_RUNTIME __attribute__((noinline)) static void run_threads() {
  enter_fiber();
  Block& b = *block;
  for (;;) {
    observe(&b.begun);
    b.body(b.arguments);
    Thread& me = *self;
    --b.live;
    b.state[me.number] = kExited;
    if (me.copy_count | b.barrier_arrived | (b.live == 0)) check_exit(b, me);
    announce(&b.ended);
    Thread* next = pop_ready(b);
    if (!next && b.live) fail_deadlock();
#if !defined(__SANITIZE_THREAD__)
    if (next && b.state[next->number] == kNew) {
      next->fiber.stack = me.fiber.stack;  // same stack, no switch
      next->fiber.stack_bytes = kStackBytes;
      b.state[next->number] = kReady;
      self = next;
      continue;
    }
    b.free_stacks[b.free_count++] = me.fiber.stack;
#else
    if (next && b.state[next->number] == kNew) begin_on_own_stack(b, *next);
#endif
    self = next;
    switch_fiber(me.fiber, next ? next->fiber : b.main, true);
    __builtin_unreachable();
  }
}

// ---- meeting

// Waits for all threads of the block; gives how many of them voted.
CUDA_ON_CPU_RUNTIME int meet_block(const char* name, int line, bool vote) {
  Block& b = *block;
  Thread& me = *self;
  unsigned parity = b.barrier_count & 1;
  int exited = b.thread_count - b.live;
  if (exited) fail("%s at line %d after %d of %d threads of the block have exited", name, line, exited, b.thread_count);
  if (b.barrier_arrived == 0) {
    b.barrier_name = name;
    b.barrier_line = line;
    b.barrier_votes[parity] = 0;
  } else if (b.barrier_line != line) {
    fail("divergent barriers: this thread is in %s at line %d, another one in %s at line %d", name, line,
         b.barrier_name, b.barrier_line);
  }
  b.barrier_votes[parity] += vote;
  announce(&b.barrier_done[parity]);
  b.state[me.number] = kAtBarrier;
  if (++b.barrier_arrived == b.thread_count) {
    b.barrier_arrived = 0;
    ++b.barrier_count;
    wake_block(b);
  }
  wait(b, me);
  b.state[me.number] = kReady;
  observe(&b.barrier_done[parity]);
  return b.barrier_votes[parity];
}

// Counts at one of the other barriers, which `threads` of the block pass together, and `waits` for them or goes on.
CUDA_ON_CPU_RUNTIME void meet_some(int which, int threads, bool waits, int line) {
  Block& b = *block;
  Thread& me = *self;
  if (which < 1 || which >= kNamedBarriers) fail("there is no barrier %d (line %d)", which, line);
  if (threads % 32 != 0 || threads <= 0 || threads > b.thread_count)
    fail("barrier %d at line %d is for %d threads of %d: not whole warps of the block", which, line, threads, b.thread_count);
  NamedBarrier& barrier = b.named[which];
  if (barrier.arrived == 0) {
    barrier.expected = threads;
    barrier.first_line = line;
  } else if (barrier.expected != threads) {
    fail("barrier %d is for %d threads at line %d, and for %d at line %d", which, barrier.expected, barrier.first_line, threads, line);
  }
  const unsigned round = barrier.count, parity = round & 1;
  announce(&barrier.done[parity]);
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.count;
    for (int i = 0; i < b.thread_count; ++i)
      if (b.state[i] == kAtNamed && b.threads[i].waits_for == which) {
        b.state[i] = kReady;
        push_ready(b, i);
      }
    if (waits) observe(&barrier.done[parity]);
    return;
  }
  if (!waits) return;
  me.waits_for = which;
  me.waits_at = line;
  b.state[me.number] = kAtNamed;
  wait(b, me);
  observe(&barrier.done[parity]);
}

// Hands `count` words to the other lanes of `mask`, waits for all of them, and gives what every lane handed in.
CUDA_ON_CPU_RUNTIME Words meet_warp(uint32_t mask, const char* name, int line, const uint32_t* given, int count,
                                    Combine combine, bool orders_memory) {
  Block& b = *block;
  Thread& me = *self;
  if (!(mask >> me.lane & 1)) fail("%s at line %d: lane %d is not in its own mask 0x%08x", name, line, me.lane, mask);
  Meeting** place = &b.meetings[me.warp];
  while (*place && (*place)->mask != mask) place = &(*place)->next;
  if (!*place) *place = (Meeting*)calloc(1, sizeof(Meeting));
  Meeting& m = **place;
  unsigned parity = m.count & 1;
  if (m.arrived == 0) {
    m.mask = mask;
    m.name = name;
  } else if (m.name != name && strcmp(m.name, name) != 0) {
    fail("%s at line %d, but another lane of the warp is in %s", name, line, m.name);
  }
  for (int i = 0; i < count; ++i) m.words[parity][me.lane][i] = given[i];
  m.arrived |= 1u << me.lane;
  me.waits_in = name;
  me.waits_at = line;
  b.state[me.number] = kInWarp;
  if (orders_memory) announce(&m.done[parity]);
  uint32_t expected = mask & existing_lanes(b, me.warp);  // a mask may name lanes past the end of the block
  if (m.arrived == expected) {
    m.arrived = 0;
    ++m.count;
    if (combine) combine(m.words[parity]);
    wake_lanes(b, me.warp, expected);
  }
  wait(b, me);
  b.state[me.number] = kReady;
  if (orders_memory) observe(&m.done[parity]);
  return m.words[parity];
}

// ---- one block from beginning to end

// After an error: threads that were waiting will not go on. Everything they held is taken back.
CUDA_ON_CPU_RUNTIME static void abandon_threads(Block& b) {
  for (int i = 0; i < b.stack_count; ++i) {
    allow_memory(b.stacks[i], kStackBytes);
    b.free_stacks[i] = b.stacks[i];
  }
  b.free_count = b.stack_count;
  for (Meeting* of_warp : b.meetings)
    for (Meeting* m = of_warp; m; m = m->next) m->arrived = 0;
  for (Thread& t : b.threads) {
    t.copy_count = 0;
#if defined(__SANITIZE_THREAD__)
    if (t.fiber.tsan_fiber) __tsan_destroy_fiber(t.fiber.tsan_fiber);
    t.fiber.tsan_fiber = nullptr;
#endif
  }
}

CUDA_ON_CPU_RUNTIME void run_block(Block& b, uint64_t number, uint64_t seed) {
  const dim3& grid = b.grid_dim;
  b.index = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y), (unsigned)(number / grid.x / grid.y)};
  b.random = ((seed * 0x9e3779b97f4a7c15u) ^ ((number + 1) * 0xbf58476d1ce4e5b9u)) | 1;
  b.live = b.thread_count;
  b.head = b.tail = 0;
  b.barrier_arrived = 0;
  memset(b.named, 0, sizeof b.named);
  memset(b.state, kNew, b.thread_count);
  begin_shared_memory(b);
  wake_block(b);
  announce(&b.begun);
  Thread& first = *pop_ready(b);
  begin_on_own_stack(b, first);
  self = &first;
  switch_fiber(b.main, first.fiber, false);
  if (b.failed)
    abandon_threads(b);
  else
    end_shared_memory(b);
}

}  // namespace cuda_on_cpu
