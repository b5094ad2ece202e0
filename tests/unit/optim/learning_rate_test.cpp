#include "tessera/optim/learning_rate.h"

#include <cmath>
#include <functional>
#include <string>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

using ::testing::HasSubstr;

LearningRate rate_of(const std::string& decay) {
  LearningRate rate;
  rate.peak = 0.8;
  rate.minimum = 0.05;
  rate.warmup = 10;
  rate.total = 100;
  rate.decay = decay;
  return rate;
}

class Decay : public ::testing::TestWithParam<const char*> {};

TEST_P(Decay, WarmsUpLinearlyToThePeak) {
  const LearningRate rate = rate_of(GetParam());
  // Eleven equal steps, of which the first is not lost on a rate of 0.
  for (int step = 0; step <= 10; ++step) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.8 * (step + 1) / 11) << step;
  }
}

TEST_P(Decay, StartsAtThePeakWithoutWarmUp) {
  LearningRate rate = rate_of(GetParam());
  rate.warmup = 0;
  EXPECT_DOUBLE_EQ(rate.at(0), 0.8);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Decay,
    ::testing::Values("constant", "linear", "cosine", "exponential"));

class Falling : public ::testing::TestWithParam<const char*> {};

// Not at twice the warm-up, not a few steps before: when all steps are done.
TEST_P(Falling, EndsAtTheMinimumWhenAllStepsAreDone) {
  const LearningRate rate = rate_of(GetParam());
  for (int step = 11; step < 100; ++step) {
    EXPECT_LT(rate.at(step), rate.at(step - 1)) << step;
    EXPECT_GT(rate.at(step), 0.05) << step;
  }
  for (const int step : {100, 101, 1000000}) {
    EXPECT_DOUBLE_EQ(rate.at(step), 0.05) << step;
  }
  // No jump at the end: the last step down is of the size of the one before.
  const double last = rate.at(99) - rate.at(100);
  const double before = rate.at(98) - rate.at(99);
  EXPECT_GT(last, 0.3 * before);
  EXPECT_LT(last, 1.01 * before);
}

INSTANTIATE_TEST_SUITE_P(All, Falling, ::testing::Values("linear", "cosine", "exponential"));

TEST(LearningRate, EachDecayHasItsForm) {
  // Half of the way from step 10 to step 100.
  EXPECT_DOUBLE_EQ(rate_of("linear").at(55), (0.8 + 0.05) / 2);
  EXPECT_DOUBLE_EQ(rate_of("cosine").at(55), (0.8 + 0.05) / 2);
  EXPECT_DOUBLE_EQ(rate_of("exponential").at(55), std::sqrt(0.8 * 0.05));
  // A third: cos(pi / 3) = 1 / 2.
  EXPECT_DOUBLE_EQ(rate_of("linear").at(40), 0.8 - 0.75 / 3);
  EXPECT_DOUBLE_EQ(rate_of("cosine").at(40), 0.05 + 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(rate_of("exponential").at(40), 0.8 * std::cbrt(0.05 / 0.8));
  for (const int step : {10, 55, 99, 100, 1000}) {
    EXPECT_DOUBLE_EQ(rate_of("constant").at(step), 0.8);
  }
}

TEST(LearningRate, DecaysToZero) {
  for (const char* decay : {"linear", "cosine"}) {
    LearningRate rate = rate_of(decay);
    rate.minimum = 0;
    EXPECT_GT(rate.at(99), 0) << decay;
    EXPECT_EQ(rate.at(100), 0) << decay;
  }
}

TEST(LearningRate, WrongValuesAreNamed) {
  const auto error_of = [](const std::function<void(LearningRate&)>& change) {
    LearningRate rate = rate_of("exponential");
    rate.validate();
    change(rate);
    try {
      rate.validate();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using Rate = LearningRate;
  EXPECT_THAT(error_of([](Rate& r) { r.peak = 0; }), HasSubstr("learning_rate is 0"));
  EXPECT_THAT(error_of([](Rate& r) { r.peak = std::nan(""); }), HasSubstr("learning_rate is nan"));
  EXPECT_THAT(
      error_of([](Rate& r) { r.minimum = 0.9; }),
      HasSubstr("min_learning_rate is 0.9; write 0 to the learning rate, 0.8"));
  EXPECT_THAT(error_of([](Rate& r) { r.minimum = -0.1; }), HasSubstr("min_learning_rate is -0.1"));
  EXPECT_THAT(
      error_of([](Rate& r) { r.minimum = 0; }), HasSubstr("exponential decay never reaches 0"));
  EXPECT_THAT(
      error_of([](Rate& r) { r.warmup = 100; }),
      HasSubstr("warm-up of 100 steps in a schedule of 100"));
  EXPECT_THAT(error_of([](Rate& r) { r.warmup = -1; }), HasSubstr("warm-up of -1"));
  EXPECT_THAT(error_of([](Rate& r) { r.decay = "cosin"; }), HasSubstr("decay is 'cosin'"));
}

TEST(LearningRate, SetsEveryParameterGroup) {
  const auto a = torch::ones({2}).requires_grad_();
  const auto b = torch::ones({2}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{a});
  groups.emplace_back(std::vector<torch::Tensor>{b});
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.5));
  set_learning_rate(optimizer, 0.25);
  (a.sum() + b.sum()).backward();
  optimizer.step();
  EXPECT_TRUE(a.equal(torch::full({2}, 0.75)));
  EXPECT_TRUE(b.equal(torch::full({2}, 0.75)));
}

} // namespace
} // namespace tessera::optim
