#include "tessera/runtime/stream_seed.h"

#include "tessera/runtime/protocol.h"

namespace tessera::runtime {

std::uint64_t stream_seed(std::uint64_t seed, std::int64_t step, std::uint64_t task) {
  return mix(mix(seed, static_cast<std::uint64_t>(step)), task);
}

std::uint64_t step_function_id(int microbatch) {
  return mix(0x726f6f74, static_cast<std::uint64_t>(microbatch)); // "root"
}

} // namespace tessera::runtime
