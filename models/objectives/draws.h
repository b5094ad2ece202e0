#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/base/hash.h"

namespace tessera::models {

/// A stream of random numbers that follows from its key alone: SplitMix64, the same on every rank
/// and machine. Threads: one thread.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : state_(key) {}

  std::uint64_t next() {
    state_ += kMixStep;
    return mix_bits(state_);
  }
  /// A number from 0 to below `count`, which is from 1 to 2^32.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(((next() >> 32U) * static_cast<std::uint64_t>(count)) >> 32U);
  }
  /// A number from 0 to below 1.
  double share() {
    return static_cast<double>(next() >> 11U) * 0x1.0p-53;
  }
  /// Brings `count` elements that are drawn without replacement to the front, in the order drawn.
  void shuffle_front(std::vector<std::int64_t>& elements, std::int64_t count) {
    const auto size = static_cast<std::int64_t>(elements.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto other = static_cast<std::size_t>(i + below(size - i));
      std::swap(elements[static_cast<std::size_t>(i)], elements[other]);
    }
  }

 private:
  std::uint64_t state_;
};

/// The key of a sample in training: of the seed of a job and the sample's place in the row of all
/// samples that it trains on, so that a sample which comes again is drawn anew.
inline std::uint64_t training_key(std::uint64_t seed, std::uint64_t place) {
  return mix_bits(mix_bits(seed + kMixStep) ^ mix_bits(place + 2 * kMixStep));
}

/// The key of a sample where losses are compared: the same in each evaluation.
inline std::uint64_t evaluation_key(std::uint64_t sample) {
  return mix_bits(mix_bits(sample + 3 * kMixStep));
}

} // namespace tessera::models
