#include "tessera/optim/stochastic_rounding.h"

#include <array>
#include <cmath>
#include <limits>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

using state::ElementPlaces;
using state::ElementRun;

torch::Tensor rounded(
    const StochasticRounding& rounding,
    const torch::Tensor& numbers,
    std::uint32_t update = 1) {
  auto into = torch::empty(numbers.sizes(), torch::kBFloat16);
  // In pieces, as the optimizer does.
  const auto* from = numbers.data_ptr<float>();
  for (std::int64_t start = 0; start < numbers.numel(); start += 100) {
    const std::int64_t count = std::min<std::int64_t>(100, numbers.numel() - start);
    rounding.round(update, start, from + start, count, into.data_ptr<c10::BFloat16>() + start);
  }
  return into;
}

StochasticRounding of(const char* name, std::int64_t elements, std::uint64_t seed = 9) {
  return {seed, ElementPlaces::identity(name, elements)};
}

// With 16 bits the probability of rounding up is the remainder, to 2^-16.
TEST(StochasticRoundingTest, TheMeanIsTheNumber) {
  constexpr std::int64_t kCount = 1 << 18;
  for (const float remainder : {0.1F, 0.5F, 0.93F}) {
    for (const float sign : {1.0F, -1.0F}) {
      const float step = 1.0F / 128; // of bf16 between 1 and 2
      const float number = sign * (1 + step * remainder);
      const auto got = rounded(of("a", kCount), torch::full({kCount}, number)).to(torch::kDouble);
      const double up = got.sub(sign).abs().gt(0).to(torch::kDouble).mean().item<double>();
      // Five standard deviations of a mean of independent choices.
      EXPECT_NEAR(up, remainder, 5 * std::sqrt(0.25 / kCount));
      EXPECT_EQ(got.abs().max().item<double>(), 1 + step);
      EXPECT_EQ(got.abs().min().item<double>(), 1);
    }
  }
}

TEST(StochasticRoundingTest, WhatABf16HoldsStays) {
  torch::manual_seed(1);
  const auto numbers = torch::randn({1000}).to(torch::kBFloat16);
  EXPECT_TRUE(rounded(of("a", 1000), numbers.to(torch::kFloat)).equal(numbers));
}

TEST(StochasticRoundingTest, WhatIsNotFiniteStaysSo) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto got = rounded(
      of("a", 3), torch::tensor({infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}));
  EXPECT_EQ(got[0].item<float>(), infinity);
  EXPECT_EQ(got[1].item<float>(), -infinity);
  EXPECT_TRUE(std::isnan(got[2].item<float>()));
}

TEST(StochasticRoundingTest, BitsGoBySeedNameAndUpdate) {
  torch::manual_seed(1);
  const auto numbers = torch::randn({1000});
  const auto wanted = rounded(of("a", 1000), numbers);
  EXPECT_TRUE(rounded(of("a", 1000), numbers).equal(wanted));
  EXPECT_FALSE(rounded(of("b", 1000), numbers).equal(wanted));
  EXPECT_FALSE(rounded(of("a", 1000), numbers, 2).equal(wanted));
  EXPECT_FALSE(rounded(of("a", 1000, 10), numbers).equal(wanted));
}

using Words = std::array<std::uint32_t, 4>;

/// Philox4x32-10 from the paper's formulas.
Words philox(Words counter, std::uint32_t low_key, std::uint32_t high_key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ low_key,
        static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ high_key,
        static_cast<std::uint32_t>(a)};
    low_key += 0x9E3779B9;
    high_key += 0xBB67AE85;
  }
  return counter;
}

// The key is the seed; the counter the element's eighth, the update, and the name's hash.
TEST(StochasticRoundingTest, BitsAreThoseOfPhilox) {
  // The known answer of its authors.
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint64_t kHashOfA = 0xaf63dc4c8601ec8c; // FNV-1a's known answer
  constexpr std::uint64_t kSeed = 0x123456789abcdef0;
  torch::manual_seed(1);
  const auto numbers = torch::randn({200});
  const auto got = rounded(of("a", 200, kSeed), numbers, 77);
  for (std::uint32_t i = 0; i < 200; ++i) {
    const Words words = philox(
        {i / 8,
         77,
         static_cast<std::uint32_t>(kHashOfA),
         static_cast<std::uint32_t>(kHashOfA >> 32)},
        static_cast<std::uint32_t>(kSeed),
        static_cast<std::uint32_t>(kSeed >> 32));
    const auto bits = static_cast<std::uint16_t>(words[i % 8 / 2] >> (i % 2 * 16));
    EXPECT_EQ(got.data_ptr<c10::BFloat16>()[i].x, round_with(numbers.data_ptr<float>()[i], bits).x)
        << i;
  }
}

// A rank that holds some columns, and one that stores them transposed.
TEST(StochasticRoundingTest, PartsAreRoundedAsTheWhole) {
  torch::manual_seed(1);
  const auto numbers = torch::randn({30, 50});
  const auto whole = rounded(of("a", numbers.numel()), numbers);
  ElementPlaces columns{.names = {"a"}, .runs = {}};
  for (int row = 0; row < 30; ++row) {
    columns.runs.push_back({.local_start = row * 13L, .count = 13, .whole_start = row * 50L + 20});
  }
  const auto part = numbers.slice(1, 20, 33).contiguous();
  EXPECT_TRUE(rounded({9, columns}, part).equal(whole.slice(1, 20, 33)));
  ElementPlaces transposed{.names = {"b", "a"}, .runs = {}};
  for (int column = 0; column < 50; ++column) {
    transposed.runs.push_back(
        {.local_start = column * 30L,
         .count = 30,
         .tensor = 1,
         .whole_start = column,
         .stride = 50});
  }
  EXPECT_TRUE(rounded({9, transposed}, numbers.t().contiguous()).equal(whole.t()));
  const ElementPlaces slice = ElementPlaces::identity("a", numbers.numel()).slice(333, 500);
  EXPECT_TRUE(rounded({9, slice}, numbers.flatten().slice(0, 333, 833).contiguous())
                  .equal(whole.flatten().slice(0, 333, 833)));
}

TEST(StochasticRoundingTest, PaddingIsRoundedToTheNearest) {
  torch::manual_seed(1);
  const auto numbers = torch::randn({300});
  const ElementPlaces places{
      .names = {"a"},
      .runs = {{.local_start = 40, .count = 100}, {.local_start = 180, .count = 20}}};
  const auto got = rounded({9, places}, numbers);
  const auto nearest = numbers.to(torch::kBFloat16);
  const auto whole = rounded(of("a", 100), numbers.slice(0, 40, 140).contiguous());
  EXPECT_TRUE(got.slice(0, 0, 40).equal(nearest.slice(0, 0, 40)));
  EXPECT_TRUE(got.slice(0, 40, 140).equal(whole));
  EXPECT_TRUE(got.slice(0, 140, 180).equal(nearest.slice(0, 140, 180)));
  EXPECT_FALSE(got.slice(0, 40, 140).equal(nearest.slice(0, 40, 140)));
  EXPECT_TRUE(got.slice(0, 200, 300).equal(nearest.slice(0, 200, 300)));
}

} // namespace
} // namespace tessera::optim
