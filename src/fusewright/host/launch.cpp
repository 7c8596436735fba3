// Launches: what the driver would refuse, blocks over OS threads, errors kept until they are asked for.

#include "launch.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "crash.h"
#include "runtime_api.h"

namespace cuda_on_cpu {

constexpr int kMaxWorkers = 16;  // each may map a stack for every CUDA thread of a block
constexpr uint64_t kThreadsWorthSharing = 8192;  // smaller launches stay on the calling OS thread
#if defined(__SANITIZE_THREAD__)
// Two blocks alternate, each with fibers of its own, and nothing orders one after the other:
// the thread sanitizer then also sees races between the blocks of a launch.
constexpr int kBlocksInTurn = 2;
#else
constexpr int kBlocksInTurn = 1;
#endif

struct Settings {
  Order order = kWarps;
  uint64_t seed = 1;
  int workers = 0;  // OS threads; 0: one for each core
};
static std::mutex launching;  // one launch at a time; also guards the grants
// Kernels allowed more than 48 KiB of dynamic shared memory, by cudaFuncSetAttribute.
static std::unordered_map<const void*, size_t> grants;
static std::unordered_map<const void*, std::string> names;  // of kernels that are handed to what launches them

struct Launch {
  const char* kernel;
  const Geometry& geometry;
  void (*body)(void*);
  void* arguments;
  size_t shared_limit;
  uint64_t block_count;
  Settings settings;
  std::atomic<uint64_t> next_block{0};  // taken by whichever OS thread is free
  std::atomic<bool> failed{false};      // the first failure ends the launch
  char message[kMessageBytes] = "";
};

// ---- forks

// A fork waits for the launch that runs, so that the child finds no lock held by a thread that it does not have, no handlers of
// ours for its signals, and no block half done.
CUDA_ON_CPU_RUNTIME static void before_fork() { launching.lock(); }
CUDA_ON_CPU_RUNTIME static void after_fork() { launching.unlock(); }
__attribute__((constructor)) static void watch_forks() { pthread_atfork(before_fork, after_fork, after_fork); }

// ---- of the OS thread that launches: how, and what went wrong

struct LastError {
  cudaError_t code = cudaSuccess;
  char message[kMessageBytes + 128] = "";
};
struct Launching {
  Settings settings;
  LastError error;
};
CUDA_ON_CPU_RUNTIME static Launching& of_this_thread() {
  static thread_local std::unique_ptr<Launching> kept;  // a pointer: see CUDA_ON_CPU_TLS
  if (!kept) kept.reset(new Launching);
  return *kept;
}

CUDA_ON_CPU_RUNTIME static LastError& last_error() { return of_this_thread().error; }
CUDA_ON_CPU_RUNTIME cudaError_t last_error_code(bool forget) {
  cudaError_t code = last_error().code;
  if (forget) last_error().code = cudaSuccess;
  return code;
}
CUDA_ON_CPU_RUNTIME const char* last_error_message() { return last_error().message; }

// The kernels that an OS thread has launched since it was last asked, one to a line.
static __thread std::string* launched_by_thread;

CUDA_ON_CPU_RUNTIME static std::string& launched() {
  if (!launched_by_thread) launched_by_thread = new std::string;
  return *launched_by_thread;
}

CUDA_ON_CPU_RUNTIME static void refuse(const char* kernel, const char* reason) {
  last_error().code = cudaErrorInvalidConfiguration;
  snprintf(last_error().message, sizeof last_error().message, "kernel %.300s: invalid launch: %s", kernel, reason);
}

// What the driver would refuse; nullptr if nothing.
CUDA_ON_CPU_RUNTIME static const char* reason_to_refuse(const Geometry& g, size_t granted) {
  uint64_t threads = (uint64_t)g.block.x * g.block.y * g.block.z;
  if (block) return "made inside a kernel";
  if (threads == 0) return "a block of no threads";
  if (threads > kMaxThreads || g.block.z > 64) return "a block of more than 1024 threads (or 64 in z)";
  if (!g.grid.x || !g.grid.y || !g.grid.z) return "a grid of no blocks";
  bool large = g.grid.x > INT_MAX || g.grid.y > 65535 || g.grid.z > 65535;
  if (large) return "a grid larger than (2147483647, 65535, 65535)";
  if (g.shared > kMaxShared) return "more than 227 KiB of dynamic shared memory";
  if (g.shared > granted) return "more dynamic shared memory than 48 KiB or what cudaFuncSetAttribute allowed";
  return nullptr;
}

CUDA_ON_CPU_RUNTIME bool grant_shared(const void* kernel, int bytes) {
  if (bytes < 0 || (size_t)bytes > kMaxShared) return false;
  std::lock_guard<std::mutex> lock(launching);
  grants[kernel] = (size_t)bytes;
  return true;
}

// ---- blocks

CUDA_ON_CPU_RUNTIME static void* zeroed_pages(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) abort();
  return pages;
}

CUDA_ON_CPU_RUNTIME static void begin_launch(Block& b, const Launch& launch) {
  const Geometry& g = launch.geometry;
  b.kernel = launch.kernel;
  b.body = launch.body;
  b.arguments = launch.arguments;
  b.block_dim = g.block;
  b.grid_dim = g.grid;
  b.thread_count = (int)(g.block.x * g.block.y * g.block.z);
  b.dynamic_shared = g.shared;
  b.shared_limit = launch.shared_limit;
  b.order = launch.settings.order;
  b.failed = false;
  adopt_this_thread(b.main);
  for (int i = 0; i < b.thread_count; ++i) {
    Thread& t = b.threads[i];
    t.index = {i % g.block.x, i / g.block.x % g.block.y, i / (g.block.x * g.block.y)};
    t.number = i;
    t.lane = i % 32;
    t.warp = i / 32;
    t.copy_count = t.copy_group = 0;
#if defined(__SANITIZE_THREAD__)
    if (!t.fiber.tsan_fiber) t.fiber.tsan_fiber = __tsan_create_fiber(0);
#endif
  }
}

// The part of a launch done by one OS thread: takes blocks until there are none left.
CUDA_ON_CPU_RUNTIME static void take_blocks(Launch& launch, Block* const* blocks) {
  SignalStack signal_stack;
  for (int i = 0; i < kBlocksInTurn; ++i) begin_launch(*blocks[i], launch);
  const Settings& settings = launch.settings;
  bool descending = settings.order == kBackward || (settings.order != kForward && settings.seed % 2);
  while (!launch.failed) {
    uint64_t turn = launch.next_block.fetch_add(1, std::memory_order_relaxed);
    if (turn >= launch.block_count) break;
    Block& b = *blocks[turn % kBlocksInTurn];
    block = &b;
    run_block(b, descending ? launch.block_count - 1 - turn : turn, settings.seed);
    bool is_first_failure = b.failed && !launch.failed.exchange(true);
    if (is_first_failure) memcpy(launch.message, b.message, sizeof b.message);
  }
  for (int i = 0; i < kBlocksInTurn; ++i) observe(&blocks[i]->ended);
  block = nullptr;
  self = nullptr;
}

// The data of the blocks OS thread `worker` runs, kept from launch to launch: stacks are expensive to make.
CUDA_ON_CPU_RUNTIME static Block* const* blocks_of(int worker) {
  static Block* blocks[kMaxWorkers][kBlocksInTurn];
  for (Block*& b : blocks[worker]) {
    if (b) continue;
    b = (Block*)zeroed_pages(sizeof(Block));
    b->arena = (char*)zeroed_pages(kArenaBytes);
  }
  return blocks[worker];
}

CUDA_ON_CPU_RUNTIME static int workers_for(const Launch& launch) {
#if defined(CUDA_ON_CPU_SANITIZED)
  return 1;
#else
  static const int cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }();
  const dim3& shape = launch.geometry.block;
  if (launch.block_count * shape.x * shape.y * shape.z < kThreadsWorthSharing) return 1;
  uint64_t count = launch.settings.workers ? launch.settings.workers : cores;
  if (count > kMaxWorkers) count = kMaxWorkers;
  return (int)(count < launch.block_count ? count : launch.block_count);
#endif
}

CUDA_ON_CPU_RUNTIME static void run(Launch& launch) {
  CrashHandlers crash_handlers;
  int count = workers_for(launch);
  std::vector<std::thread> others;
  for (int worker = 1; worker < count; ++worker) {
    Block* const* blocks = blocks_of(worker);
    try {
      others.emplace_back([&launch, blocks] { take_blocks(launch, blocks); });
    } catch (const std::system_error&) {
      break;  // no more threads to be had: those there are do the work
    }
  }
  take_blocks(launch, blocks_of(0));
  for (std::thread& other : others) other.join();
}

CUDA_ON_CPU_RUNTIME void name_kernel(const void* kernel, const char* name) {
  std::unique_lock<std::mutex> lock(launching, std::defer_lock);
  if (!block) lock.lock();
  names[kernel] = name;
}

CUDA_ON_CPU_RUNTIME void launch_kernel(const char* name, const Geometry& geometry, const void* kernel,
                                       void (*body)(void*), void* arguments) {
  std::unique_lock<std::mutex> lock(launching, std::defer_lock);
  if (!block) lock.lock();
  auto known = names.find(kernel);
  if (known != names.end()) name = known->second.c_str();
  auto grant = grants.find(kernel);
  bool has_grant = grant != grants.end() && grant->second > kMaxStaticShared;
  const char* reason = reason_to_refuse(geometry, has_grant ? grant->second : kMaxStaticShared);
  if (reason) return refuse(name, reason);
  uint64_t block_count = (uint64_t)geometry.grid.x * geometry.grid.y * geometry.grid.z;
  Launch launch{name, geometry, body, arguments, has_grant ? kMaxShared : kMaxStaticShared, block_count,
                of_this_thread().settings};
  run(launch);
  launched().append(name).append("\n");
  if (launch.failed) {
    last_error().code = cudaErrorLaunchFailure;
    snprintf(last_error().message, sizeof last_error().message, "%s", launch.message);
  }
}

}  // namespace cuda_on_cpu

// For HostLibrary.not_run. What it returns is good until this thread asks again.
extern "C" CUDA_ON_CPU_API const char* cuda_on_cpu_launched() {
  static __thread std::string* told;
  if (!told) told = new std::string;
  told->swap(cuda_on_cpu::launched());
  cuda_on_cpu::launched().clear();
  return told->c_str();
}

// For HostLibrary.set_order: how launches of this OS thread run.
extern "C" CUDA_ON_CPU_API void cuda_on_cpu_set(int order, unsigned long long seed, int workers) {
  using namespace cuda_on_cpu;
  of_this_thread().settings = {(Order)order, seed, workers};
}
