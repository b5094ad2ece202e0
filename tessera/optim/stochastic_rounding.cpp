#include "tessera/optim/stochastic_rounding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include <ATen/core/PhiloxRNGEngine.h>

#include "tessera/base/error.h"

namespace tessera::optim {

namespace {

constexpr std::int64_t kOfOneCounter = 8; // elements: 128 bits, 16 for each
constexpr std::int64_t kMostElements = kOfOneCounter << 32;
constexpr int kBitsOfHalf = 16;

// FNV-1a, which is the same on every machine.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
  }
  return hash;
}

/// The bits of elements of one whole tensor in one update. Neighbours share a counter.
class Bits {
 public:
  Bits(std::uint64_t seed, std::uint64_t stream, std::uint32_t update)
      : seed_(seed), stream_(stream), update_(update) {}

  std::uint16_t of(std::int64_t element) {
    const std::int64_t counter = element / kOfOneCounter;
    if (counter != counter_) {
      counter_ = counter;
      at::Philox4_32 engine(
          seed_,
          stream_,
          (static_cast<std::uint64_t>(update_) << 32) | static_cast<std::uint64_t>(counter));
      for (std::size_t i = 0; i < bits_.size(); i += 2) {
        const std::uint32_t two = engine();
        bits_[i] = static_cast<std::uint16_t>(two);
        bits_[i + 1] = static_cast<std::uint16_t>(two >> kBitsOfHalf);
      }
    }
    return bits_[static_cast<std::size_t>(element % kOfOneCounter)];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint32_t update_;
  std::int64_t counter_ = -1;
  std::array<std::uint16_t, kOfOneCounter> bits_{};
};

} // namespace

c10::BFloat16 round_with(float number, std::uint16_t bits) {
  if (!std::isfinite(number)) {
    return c10::BFloat16(number);
  }
  const std::uint32_t sum = std::bit_cast<std::uint32_t>(number) + bits;
  return {static_cast<std::uint16_t>(sum >> kBitsOfHalf), c10::BFloat16::from_bits()};
}

StochasticRounding::StochasticRounding(std::uint64_t seed, state::ElementPlaces places)
    : seed_(seed), places_(std::move(places)) {
  for (const std::string& name : places_.names) {
    streams_.push_back(hash_of(name));
  }
  for (const state::ElementRun& run : places_.runs) {
    const std::int64_t last = run.whole_start + (run.count - 1) * run.stride;
    if (std::max(run.whole_start, last) >= kMostElements) {
      throw ConfigError(
          str("stochastic rounding numbers the elements of a parameter up to ",
              kMostElements,
              ", and '",
              places_.names[static_cast<std::size_t>(run.tensor)],
              "' has more; leave stochastic_rounding out"));
    }
  }
}

void StochasticRounding::round(
    std::uint32_t update,
    std::int64_t first,
    const float* numbers,
    std::int64_t count,
    c10::BFloat16* into) const {
  std::int64_t done = 0;
  const auto to_nearest_until = [&](std::int64_t end) {
    for (; done < end; ++done) {
      into[done] = c10::BFloat16(numbers[done]);
    }
  };
  auto run = std::partition_point(
      places_.runs.begin(), places_.runs.end(), [&](const state::ElementRun& candidate) {
        return candidate.local_start + candidate.count <= first;
      });
  for (; run != places_.runs.end() && run->local_start < first + count; ++run) {
    to_nearest_until(run->local_start - first);
    const std::int64_t end = std::min(count, run->local_start + run->count - first);
    Bits bits(seed_, streams_[static_cast<std::size_t>(run->tensor)], update);
    for (; done < end; ++done) {
      const std::int64_t within = first + done - run->local_start;
      into[done] = round_with(numbers[done], bits.of(run->whole_start + within * run->stride));
    }
  }
  to_nearest_until(count);
}

} // namespace tessera::optim
