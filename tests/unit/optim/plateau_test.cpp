#include "tessera/optim/plateau.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/learning_rate.h"

namespace tessera::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> factors(Plateau& plateau, const std::vector<double>& losses) {
  std::vector<double> found;
  for (const double loss : losses) {
    const double before = plateau.factor();
    const bool fell = plateau.observe(loss);
    EXPECT_EQ(fell, plateau.factor() != before) << loss;
    found.push_back(plateau.factor());
  }
  return found;
}

TEST(Plateau, FallsAfterSoManyEvaluationsWithoutALowerLoss) {
  Plateau plateau({.factor = 0.5, .patience = 2});
  EXPECT_THAT(
      factors(plateau, {3, 2, 2.5, 1.9, 2, 1.9, 1.95, 1.91, 1.8, 1.8, 1.8}),
      ElementsAre(1, 1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125));
}

TEST(Plateau, ALossIsLowerByAShareOfTheLowest) {
  Plateau plateau({.factor = 0.1, .patience = 1, .threshold = 0.01});
  EXPECT_THAT(factors(plateau, {100, 99.5, 98}), ElementsAre(1, 0.1, 0.1));
  Plateau below({.factor = 0.1, .patience = 1, .threshold = 0.01});
  EXPECT_THAT(factors(below, {-100, -102, -102.5}), ElementsAre(1, 1, 0.1));
}

TEST(Plateau, WhatIsNoNumberIsNotLower) {
  Plateau plateau({.factor = 0.5, .patience = 2});
  const double none = std::nan("");
  EXPECT_THAT(
      factors(plateau, {none, none, 3, none, 2, none, none}),
      ElementsAre(1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25));
}

TEST(Plateau, GoesOnFromItsState) {
  const std::vector<double> losses{3, 2, 2.5, 1.0 / 3, 2, 1.9, 0.3, 0.4, 0.5, 0.3, 0.2};
  const PlateauOptions options{.factor = 0.7, .patience = 2};
  Plateau whole(options);
  const auto wanted = factors(whole, losses);
  for (std::size_t cut = 0; cut <= losses.size(); ++cut) {
    Plateau first(options);
    auto found = factors(first, {losses.begin(), losses.begin() + static_cast<long>(cut)});
    Plateau second(options);
    second.set_state(first.to_json(), "state");
    for (const double factor :
         factors(second, {losses.begin() + static_cast<long>(cut), losses.end()})) {
      found.push_back(factor);
    }
    EXPECT_EQ(found, wanted) << cut;
  }
}

TEST(Plateau, LowersARateDownToItsMinimum) {
  LearningRate rate;
  rate.decay = "plateau";
  rate.peak = 0.8;
  rate.minimum = 0.3;
  rate.warmup = 3;
  rate.total = 10;
  rate.validate();
  EXPECT_DOUBLE_EQ(rate.at(9), 0.8);
  EXPECT_DOUBLE_EQ(rate.at(9, 0.5), 0.4);
  EXPECT_DOUBLE_EQ(rate.at(9, 0.25), 0.3);
  EXPECT_DOUBLE_EQ(rate.at(0, 0.5), 0.1); // of the warm-up
}

TEST(Plateau, WrongValuesAreNamed) {
  const auto said = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto of = [&](const PlateauOptions& options) {
    return said([&] { const Plateau made(options); });
  };
  EXPECT_EQ(of({}), "accepted");
  EXPECT_THAT(of({.factor = 1}), HasSubstr("plateau_factor is 1"));
  EXPECT_THAT(of({.factor = 0}), HasSubstr("plateau_factor is 0"));
  EXPECT_THAT(of({.patience = 0}), HasSubstr("plateau_patience is 0"));
  EXPECT_THAT(of({.threshold = 1}), HasSubstr("plateau_threshold is 1"));
  Plateau plateau({});
  EXPECT_THAT(
      said([&] { plateau.set_state(R"({"factor": 2, "without": 0})", "step_3"); }),
      HasSubstr("step_3"));
}

} // namespace
} // namespace tessera::optim
