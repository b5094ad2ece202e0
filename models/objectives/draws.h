#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/base/hash.h"

namespace tessera::models {

/// A stream of random numbers (SplitMix64) that is determined by its key, so that it is the same on
/// every rank and machine. Threads: one thread.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : state_(key) {}

  std::uint64_t next() {
    state_ += kMixStep;
    return mix_bits(state_);
  }
  /// Returns a number from 0 to below `count`, which is from 1 to 2^32.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(((next() >> 32U) * static_cast<std::uint64_t>(count)) >> 32U);
  }
  /// Returns a number from 0 to below 1.
  double share() {
    return static_cast<double>(next() >> 11U) * 0x1.0p-53;
  }
  /// Draws `count` elements without replacement and moves them to the front, in the order drawn.
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

/// Returns the key of a sample in training, which follows from the job's seed and the sample's
/// number in the training, so that a sample that comes again has new random numbers.
inline std::uint64_t training_key(std::uint64_t seed, std::uint64_t place) {
  return mix_bits(mix_bits(seed + kMixStep) ^ mix_bits(place + 2 * kMixStep));
}

/// Returns the key of a sample in an evaluation, the same in each evaluation.
inline std::uint64_t evaluation_key(std::uint64_t sample) {
  return mix_bits(mix_bits(sample + 3 * kMixStep));
}

} // namespace tessera::models
