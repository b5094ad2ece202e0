#pragma once

#include <optional>
#include <string>

#include "tessera/random/stream.h"

#include "tests/mpi/runtime/support.h"

/// Runs under the key "random": "layout_independent", each beside the plain loop of one process
/// that draws from the same streams: what one rank without microbatches draws.
namespace tessera::testing {

constexpr std::uint64_t kSeed = 21;

/// The stream of step `step` as one rank with one microbatch has it.
inline random::Stream plain_stream(std::int64_t step) {
  auto layout = std::make_shared<random::Layout>();
  layout->seed = kSeed;
  random::Stream stream;
  stream.layout = std::move(layout);
  stream.step = step;
  return stream;
}

inline Config independent(Config config) {
  config.random = "layout_independent";
  config.seed = kSeed;
  return config;
}

} // namespace tessera::testing
