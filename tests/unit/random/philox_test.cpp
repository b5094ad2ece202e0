// The known answers that the generator's authors publish, and libtorch's own Philox.
#include "tessera/random/philox.h"

#include <ATen/core/PhiloxRNGEngine.h>

#include <gtest/gtest.h>

namespace tessera::random {
namespace {

constexpr std::uint32_t kOnes = 0xFFFFFFFFU;

// Source: kat_vectors of Random123 1.09, the lines of philox4x32 with 10 rounds.
static_assert(philox({0, 0, 0, 0}, 0) == Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
static_assert(
    philox({kOnes, kOnes, kOnes, kOnes}, ~std::uint64_t{0}) ==
    Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
static_assert(
    philox({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, 0x299f31d0a4093822ULL) ==
    Words{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});

TEST(Philox, AgreesWithLibtorch) {
  const std::uint64_t seed = 0x123456789abcdef0ULL;
  const std::uint64_t subsequence = 0xfedcba9876543210ULL;
  const std::uint64_t offset = 77;
  at::philox_engine engine(seed, subsequence, offset);
  const Words words = philox(
      {static_cast<std::uint32_t>(offset),
       0,
       static_cast<std::uint32_t>(subsequence),
       static_cast<std::uint32_t>(subsequence >> 32U)},
      seed);
  for (const std::uint32_t word : words) {
    EXPECT_EQ(engine(), word);
  }
}

} // namespace
} // namespace tessera::random
