#include "cli/allocator.h"

#include <climits>
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tessera::cli {

void keep_freed_memory() {
#if defined(__GLIBC__)
  constexpr int kGib = 1 << 30;
  // Larger blocks still come from the system, and go back to it. The arenas of threads of their own
  // give a heap of 64 MiB back as soon as it is empty, whatever the threshold, and the system
  // clears its pages when they are wanted again: a twentieth of a step of a wide GPT in bf16.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, kGib);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

void give_freed_memory_back() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

} // namespace tessera::cli
