#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <sys/resource.h>

#include "tessera/context/context.h"
#include "tessera/tessera.h"

/// Dynamic, static and fast mode in the benchmarks, and what a step costs
/// besides time: counts, which other load on the machine does not change.
namespace tessera::bench {

inline constexpr int kRecordedSteps = 3;

/// `mode`: "dynamic", "static" or "fast".
inline void set_mode(Config& config, const std::string& mode) {
  config.static_mode = mode != "dynamic";
  config.fast_mode = mode == "fast";
  if (config.static_mode) {
    config.static_mode_steps = kRecordedSteps;
  }
}

/// Steps before the first that is of the mode, and one of it.
inline int warm_up_of(const Config& config) {
  return config.static_mode ? kRecordedSteps + (config.fast_mode ? 1 : 0) + 1 : 2;
}

/// Sums over the ranks of this pipeline.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
  std::int64_t switches = 0; // voluntary context switches of all threads

  Traffic operator-(const Traffic& other) const {
    return {messages - other.messages, bytes - other.bytes, switches - other.switches};
  }
};

/// Collective over the world.
inline Traffic traffic() {
  Traffic own;
  if (const auto& transport = context().transport) {
    own.messages = transport->counters().messages_sent;
    own.bytes = transport->counters().bytes_sent;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  own.switches = usage.ru_nvcsw;
  Traffic sum;
  for (const auto& [messages, rest] : allgather(
           std::make_pair(own.messages, std::make_pair(own.bytes, own.switches)), Group::kPP)) {
    sum.messages += messages;
    sum.bytes += rest.first;
    sum.switches += rest.second;
  }
  return sum;
}

} // namespace tessera::bench
