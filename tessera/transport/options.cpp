#include "tessera/transport/options.h"

#include <unistd.h>

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

bool core_for_each(int local_ranks) {
  return ::sysconf(_SC_NPROCESSORS_ONLN) >= local_ranks;
}

} // namespace tessera::transport
