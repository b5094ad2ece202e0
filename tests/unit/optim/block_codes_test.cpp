#include "tessera/optim/block_codes.h"

#include <cmath>
#include <limits>

#include <torch/torch.h>

#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

const ByteValues& values_of(bool with_sign) {
  return with_sign ? ByteValues::with_sign() : ByteValues::without_sign();
}

class ByteValuesOf : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Signs, ByteValuesOf, ::testing::Bool());

TEST_P(ByteValuesOf, AreAscendingAndHoldZeroAndOne) {
  const ByteValues& values = values_of(GetParam());
  for (int code = 1; code < 256; ++code) {
    EXPECT_LT(values.value(code - 1), values.value(code)) << code;
  }
  EXPECT_EQ(values.value(255), 1);
  EXPECT_EQ(values.value(values.zero()), 0);
  // The highest decade of bitsandbytes' map: cells of 0.9 / 64, of 0.9 / 128 without sign.
  const double cells = GetParam() ? 64 : 128;
  EXPECT_FLOAT_EQ(values.value(254), static_cast<float>(1 - 0.45 / cells));
  EXPECT_FLOAT_EQ(values.value(0), GetParam() ? static_cast<float>(-(1 - 0.45 / 64)) : 0);
}

TEST_P(ByteValuesOf, TheNearestIsFound) {
  const ByteValues& values = values_of(GetParam());
  torch::manual_seed(1);
  const auto exponents = torch::rand({20000}) * -7;
  const auto signs = GetParam() ? torch::sign(torch::randn({20000})) : torch::ones({20000});
  const auto numbers = (torch::pow(10, exponents) * signs).to(torch::kFloat);
  for (std::int64_t i = 0; i < numbers.numel(); ++i) {
    const float x = numbers.data_ptr<float>()[i];
    float least = std::numeric_limits<float>::infinity();
    for (int code = GetParam() ? 0 : 1; code < 256; ++code) {
      least = std::min(least, std::abs(values.value(code) - x));
    }
    // Middles are f32 too.
    ASSERT_LE(std::abs(values.value(values.nearest(x)) - x), least * (1 + 1e-4F) + 1e-9F) << x;
  }
}

// Half of a cell of the highest decade, in units of the block's scale.
TEST_P(ByteValuesOf, TheErrorIsBounded) {
  torch::manual_seed(2);
  auto numbers = torch::randn({37, 100});
  numbers = GetParam() ? numbers : numbers.abs();
  const BlockCodes codes = BlockCodes::encode(numbers, values_of(GetParam()));
  EXPECT_EQ(codes.codes.sizes(), numbers.sizes());
  EXPECT_EQ(codes.scales.numel(), (numbers.numel() + kBlock - 1) / kBlock);
  const auto flat = numbers.flatten();
  const auto again = codes.decode(values_of(GetParam())).flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const double scale = std::abs(codes.scales.data_ptr<float>()[i / kBlock]);
    const double cell = GetParam() ? 0.45 / 64 : 0.45 / 128;
    ASSERT_LE(std::abs(flat[i].item<double>() - again[i].item<double>()), cell * scale * 1.001)
        << i;
  }
  EXPECT_LT(((flat - again).norm() / flat.norm()).item<double>(), 0.02);
}

// A checkpoint in f32 loses nothing.
TEST_P(ByteValuesOf, WhatWasDecodedIsEncodedAlike) {
  torch::manual_seed(3);
  for (const double size : {1e-25, 1e-8, 1.0, 1e20}) {
    auto numbers = torch::randn({5000}) * torch::pow(10, torch::rand({5000}) * -8) * size;
    numbers = GetParam() ? numbers : numbers.abs();
    numbers[7] = -numbers.abs().max(); // the furthest number with each sign
    numbers = GetParam() ? numbers : numbers.abs();
    const BlockCodes once = BlockCodes::encode(numbers, values_of(GetParam()));
    const BlockCodes twice =
        BlockCodes::encode(once.decode(values_of(GetParam())), values_of(GetParam()));
    EXPECT_TRUE(once.codes.equal(twice.codes)) << size;
    EXPECT_TRUE(once.scales.equal(twice.scales)) << size;
  }
}

TEST(BlockCodesTest, ADivisorNeverBecomesZero) {
  auto roots = torch::full({kBlock}, 1e-12F);
  roots[0] = 1;
  roots[1] = 0;
  const auto again =
      BlockCodes::encode(roots, ByteValues::without_sign()).decode(ByteValues::without_sign());
  EXPECT_EQ(again[1].item<float>(), 0);
  EXPECT_GT(again[2].item<float>(), 0);
}

TEST(BlockCodesTest, WhatIsNotFiniteShows) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto numbers = torch::ones({3 * kBlock});
    numbers[kBlock + 5] = bad;
    const auto again =
        BlockCodes::encode(numbers, ByteValues::with_sign()).decode(ByteValues::with_sign());
    EXPECT_TRUE(again.slice(0, 0, kBlock).equal(torch::ones({kBlock})));
    EXPECT_TRUE(again.slice(0, kBlock, 2 * kBlock).isnan().all().item<bool>());
    EXPECT_TRUE(again.slice(0, 2 * kBlock).equal(torch::ones({kBlock})));
  }
}

TEST(BlockCodesTest, ZerosAreZeros) {
  for (const bool with_sign : {false, true}) {
    const BlockCodes zeros = BlockCodes::zeros({3, 200}, values_of(with_sign));
    EXPECT_TRUE(zeros.decode(values_of(with_sign)).equal(torch::zeros({3, 200})));
    const BlockCodes tiny = BlockCodes::encode(torch::full({600}, 1e-38F), values_of(with_sign));
    EXPECT_TRUE(tiny.decode(values_of(with_sign)).equal(torch::zeros({600})));
  }
}

} // namespace
} // namespace tessera::optim
