// The kernels against conversions written the slow way.
#include "tessera/comm/reduce_kernels.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

/// The value of an f16 by its definition (IEEE 754-2008, binary16).
double value_of_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

double value_of_bf16(std::uint16_t bits) {
  const int exponent = (bits >> 7) & 255;
  const int mantissa = bits & 127;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134);
  if (exponent == 255) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

template <typename T>
std::vector<T> reduce_all(
    DataType type,
    ReduceOp op,
    const std::vector<std::vector<T>>& inputs,
    double scale = 1) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) {
    sources.push_back(input.data());
  }
  std::vector<T> out(inputs[0].size());
  reduce(
      type,
      op,
      out.data(),
      sources.data(),
      static_cast<int>(inputs.size()),
      static_cast<std::int64_t>(out.size()),
      scale);
  return out;
}

// Adding zero must give every finite value back, whichever path widens it.
void check_round_trip(DataType type, double (*value_of)(std::uint16_t)) {
  std::vector<std::uint16_t> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back(static_cast<std::uint16_t>(bits));
  }
  const std::vector<std::uint16_t> zeros(all.size(), 0);
  for (const std::size_t count : {2U, 3U, 4U, 5U}) {
    std::vector<std::vector<std::uint16_t>> inputs(count, zeros);
    inputs[1] = all;
    const auto out = reduce_all(type, ReduceOp::kSum, inputs);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double expected = value_of(all[i]);
      const double found = value_of(out[i]);
      ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
          << "bits " << i << " of " << name_of(type) << " gave " << out[i];
    }
  }
}

TEST(ReduceKernels, EveryF16SurvivesASumWithZero) {
  check_round_trip(DataType::kF16, value_of_f16);
}

TEST(ReduceKernels, EveryBf16SurvivesASumWithZero) {
  check_round_trip(DataType::kBF16, value_of_bf16);
}

// Sums of two are exact in f64 for f16; the result must be the nearest f16, the
// even one of two equally near.
TEST(ReduceKernels, F16SumsRoundToNearestEven) {
  std::uint32_t state = 1;
  std::vector<std::vector<std::uint16_t>> inputs(2);
  for (int i = 0; i < 200000; ++i) {
    for (auto& input : inputs) {
      state = state * 1664525U + 1013904223U;
      input.push_back(static_cast<std::uint16_t>(state >> 16));
    }
  }
  const auto out = reduce_all(DataType::kF16, ReduceOp::kSum, inputs);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double sum = value_of_f16(inputs[0][i]) + value_of_f16(inputs[1][i]);
    const double found = value_of_f16(out[i]);
    if (!std::isfinite(sum)) {
      ASSERT_EQ(std::isnan(found), std::isnan(sum));
      continue;
    }
    if (std::abs(sum) >= 65520) {
      ASSERT_TRUE(std::isinf(found)) << sum;
      continue;
    }
    for (const int step : {-1, 1}) {
      const auto neighbour = static_cast<std::uint16_t>(out[i] + step);
      const double other = value_of_f16(neighbour);
      if (std::isfinite(other) && std::signbit(other) == std::signbit(found)) {
        const double here = std::abs(found - sum);
        const double there = std::abs(other - sum);
        ASSERT_TRUE(here < there || (here == there && out[i] % 2 == 0))
            << sum << " became " << found;
      }
    }
  }
}

TEST(ReduceKernels, MaxAndMinHandNaNOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t count : {2U, 3U, 4U}) {
    for (std::size_t place = 0; place < count; ++place) {
      std::vector<std::vector<float>> inputs(count, std::vector<float>(9, 1));
      inputs[place].assign(9, nan);
      for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
        EXPECT_TRUE(std::isnan(reduce_all(DataType::kF32, op, inputs)[8]));
      }
    }
  }
}

TEST(ReduceKernels, TheOutputMayBeAnySource) {
  for (const int count : {2, 3, 4, 6}) {
    for (int place = 0; place < count; ++place) {
      std::vector<std::vector<std::int32_t>> inputs;
      for (int i = 0; i < count; ++i) {
        inputs.emplace_back(3000, 1 << i);
      }
      std::vector<const void*> sources;
      for (const auto& input : inputs) {
        sources.push_back(input.data());
      }
      auto& out = inputs[static_cast<std::size_t>(place)];
      reduce(DataType::kI32, ReduceOp::kSum, out.data(), sources.data(), count, 3000);
      EXPECT_EQ(out, std::vector<std::int32_t>(3000, (1 << count) - 1));
    }
  }
}

TEST(ReduceKernels, AScaledSumIsRoundedOnce) {
  // 60000 in f16; two of them are more than it holds.
  for (const std::size_t count : {1U, 2U, 3U, 4U, 5U}) {
    const std::vector<std::vector<std::uint16_t>> halves(
        count, std::vector<std::uint16_t>(70, 0x7B53));
    EXPECT_EQ(
        reduce_all(DataType::kF16, ReduceOp::kSum, halves, 1.0 / static_cast<double>(count)),
        halves[0]);
    const std::vector<std::vector<float>> thirds(count, std::vector<float>(70, 1.0F / 3));
    EXPECT_EQ(
        reduce_all(DataType::kF32, ReduceOp::kSum, thirds, 3.0)[69], static_cast<float>(count));
  }
  const std::vector<std::vector<std::int32_t>> integers(2, {1, 2});
  EXPECT_THROW(reduce_all(DataType::kI32, ReduceOp::kSum, integers, 0.5), Error);
}

} // namespace
} // namespace tessera::comm
