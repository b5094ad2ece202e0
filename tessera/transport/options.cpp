#include "tessera/transport/options.h"

#include <cstddef>

#include <unistd.h>

#include <sched.h>

#include "tessera/base/error.h"

namespace tessera::transport {

void validate(const Options& options) {
  constexpr std::int64_t kLeast = 64 << 10;
  if (options.buffer_bytes < kLeast) {
    throw ConfigError(
        str("transport buffer_bytes is ",
            options.buffer_bytes,
            "; at least ",
            kLeast,
            " bytes are needed"));
  }
  if (!(options.zero_copy_share >= 0 && options.zero_copy_share <= 1)) {
    throw ConfigError(
        str("transport zero_copy_share is ", options.zero_copy_share, "; it must lie in 0..1"));
  }
}

bool core_for_each(int local_ranks, const std::vector<int>& processes) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < local_ranks) {
    return false;
  }
  cpu_set_t together;
  CPU_ZERO(&together);
  for (const int process : processes) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (::sched_getaffinity(process, sizeof allowed, &allowed) != 0) {
      return true; // it has ended, or the machine has more cores than a set holds
    }
    CPU_OR(&together, &together, &allowed);
  }
  return static_cast<std::size_t>(CPU_COUNT(&together)) >= processes.size();
}

} // namespace tessera::transport
