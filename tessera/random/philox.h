#pragma once

#include <array>
#include <cstdint>

namespace tessera::random {

using Words = std::array<std::uint32_t, 4>;

/// What Philox 4x32 mixes into the words of a counter, round by round.
constexpr std::array<std::uint32_t, 2> kPhiloxFactors{0xD2511F53U, 0xCD9E8D57U};
constexpr std::array<std::uint32_t, 2> kPhiloxSteps{0x9E3779B9U, 0xBB67AE85U};
constexpr int kPhiloxRounds = 10;

/// Returns the 128 random bits of Philox 4x32-10 for a counter under a key: a function without a
/// state, which is a permutation of the counters for each key.
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
constexpr Words philox(Words counter, std::uint64_t key) {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxFactors[0]} * counter[0];
    const std::uint64_t b = std::uint64_t{kPhiloxFactors[1]} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32U) ^ counter[1] ^ low,
        static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32U) ^ counter[3] ^ high,
        static_cast<std::uint32_t>(a)};
    low += kPhiloxSteps[0];
    high += kPhiloxSteps[1];
  }
  return counter;
}

} // namespace tessera::random
