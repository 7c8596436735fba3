// Where the arrays of a block lie, and what lies between them.

#include "shared_memory.h"

namespace cuda_on_cpu {

constexpr uint32_t kGapWord = 0x5aa5c33cu;  // fills the gaps; looked at when the block ends
constexpr size_t kGapBytes = 64;

CUDA_ON_CPU_RUNTIME static void fill_words(char* begin, size_t bytes, uint32_t word) {
  uint32_t* words = (uint32_t*)begin;
  for (size_t i = 0; i < (bytes + 3) / 4; ++i) words[i] = word;
}

CUDA_ON_CPU_RUNTIME static SharedArray& add_shared_array(Block& b, const SharedName* name, size_t bytes) {
  if (b.shared_array_count == kMaxSharedArrays) fail("more than %d shared arrays", kMaxSharedArrays);
  bool fits = b.arena_used + bytes + kGapBytes + kSharedAlignment <= kArenaBytes;
  if (!fits) fail("shared array %s at line %d does not fit", name->text, name->line);
  SharedArray& array = b.shared_arrays[b.shared_array_count++];
  array = {name, b.arena_used, bytes};
  b.arena_used = (b.arena_used + bytes + kGapBytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  allow_memory(b.arena + array.offset, b.arena_used - array.offset);
  fill_words(b.arena + array.offset, bytes, kPoison);
  for (size_t i = array.offset + bytes; i < b.arena_used; ++i) b.arena[i] = (char)(kGapWord >> 8 * (i % 4));
  forbid_memory(b.arena + array.offset + bytes, b.arena_used - array.offset - bytes);
  return array;
}

static constexpr SharedName kDynamicShared = {"dynamic shared memory", 0};

// Dynamic shared memory is the first array of every block; static ones join when a thread first reaches them.
CUDA_ON_CPU_RUNTIME void begin_shared_memory(Block& b) {
#if defined(__SANITIZE_THREAD__)
  // A fresh mapping: the thread sanitizer forgets what the threads of an earlier block did here.
  mmap(b.arena, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
#endif
  forbid_memory(b.arena, kArenaBytes);
  b.arena_used = b.static_shared = 0;
  b.shared_array_count = 0;
  add_shared_array(b, &kDynamicShared, b.dynamic_shared);
}

CUDA_ON_CPU_RUNTIME void end_shared_memory(Block& b) {
#if !defined(__SANITIZE_ADDRESS__)  // which names the very line that writes into a gap
  for (int k = 0; k < b.shared_array_count && !b.failed; ++k) {
    const SharedArray& array = b.shared_arrays[k];
    size_t end = k + 1 < b.shared_array_count ? b.shared_arrays[k + 1].offset : b.arena_used;
    for (size_t i = array.offset + array.bytes; i < end; ++i) {
      if (b.arena[i] == (char)(kGapWord >> 8 * (i % 4))) continue;
      char declared[32] = "";
      if (array.name->line) snprintf(declared, sizeof declared, " declared at line %d", array.name->line);
      b.failed = true;
      snprintf(b.message, sizeof b.message,
               "kernel %.300s, block (%u,%u,%u): a write %zu bytes past the end of %s (%zu bytes%s)", b.kernel,
               b.index.x, b.index.y, b.index.z, i - array.offset - array.bytes, array.name->text, array.bytes, declared);
      break;
    }
  }
#else
  (void)b;
#endif
}

CUDA_ON_CPU_RUNTIME void* static_shared(const SharedName* name, size_t bytes) {
  Block& b = *block;
  for (int k = 0; k < b.shared_array_count; ++k)
    if (b.shared_arrays[k].name == name) return b.arena + b.shared_arrays[k].offset;
  b.static_shared += bytes;
  if (b.static_shared > kMaxStaticShared)
    fail("shared array %s at line %d: static shared memory over 48 KiB", name->text, name->line);
  if (b.static_shared + b.dynamic_shared > b.shared_limit)
    fail("shared array %s at line %d: static and dynamic shared memory together over %zu KiB", name->text, name->line,
         b.shared_limit / 1024);
  return b.arena + add_shared_array(b, name, bytes).offset;
}

}  // namespace cuda_on_cpu
