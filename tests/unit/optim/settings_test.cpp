// What ranks' optimizers have to have alike, compared without ranks.
#include "tessera/optim/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// One optimizer of 12 parameters in two groups, after 5 updates.
const Settings kOne = {{12, 5, {0.1, 0.01}, {"momentum 0.5", "momentum 0.5"}}};

TEST(Settings, AlikeAreNoDifference) {
  EXPECT_EQ(difference(kOne, 1, kOne, 0), "");
  EXPECT_EQ(difference({}, 1, {}, 0), "");
  EXPECT_EQ(digest(kOne), digest(Settings(kOne)));
}

TEST(Settings, AnotherRateIsNamedWithBothRanks) {
  const Settings other = {{12, 5, {0.1, 0.02}, kOne[0].options}};
  EXPECT_NE(digest(kOne), digest(other));
  const std::string text = difference(other, 3, kOne, 0);
  EXPECT_THAT(text, StartsWith("ranks have different states of one optimizer: rank 0 has made 5 "));
  EXPECT_THAT(text, HasSubstr("learning rates 0.1, 0.01, rank 3 has made 5 updates"));
  EXPECT_THAT(text, HasSubstr("learning rates 0.1, 0.02;"));
}

TEST(Settings, AnotherNumberOfUpdatesOrOptimizersIsNamed) {
  EXPECT_THAT(
      difference({{12, 6, {0.1, 0.01}, {}}}, 1, kOne, 0), HasSubstr("rank 1 has made 6 updates"));
  Settings two = kOne;
  two.push_back({3, 5, {0.5}, {"momentum 0"}});
  EXPECT_THAT(difference(two, 1, kOne, 0), StartsWith("rank 1 has 2 optimizers and rank 0 1;"));
  EXPECT_THAT(difference(kOne, 1, two, 0), StartsWith("rank 1 has 1 optimizer and rank 0 2;"));
  Settings second = two;
  second.back().rates = {0.25};
  EXPECT_THAT(difference(second, 1, two, 0), HasSubstr("one optimizer, number 2 of 2: rank 0"));
}

TEST(Settings, AnotherOptionIsNamedWithItsGroup) {
  Settings other = kOne;
  other[0].options[1] = "momentum 0.9";
  EXPECT_NE(digest(kOne), digest(other));
  const std::string text = difference(other, 3, kOne, 0);
  EXPECT_THAT(
      text, StartsWith("ranks have different options of one optimizer: parameter group 1 "));
  EXPECT_THAT(text, HasSubstr("has momentum 0.5 on rank 0 and momentum 0.9 on rank 3;"));
}

// Groups of a rank's own parameters have rates of their own.
TEST(Settings, OptimizersOfOtherParametersMayHaveOtherRates) {
  EXPECT_EQ(difference({{11, 5, {0.1, 0.02}, {"momentum 0", ""}}}, 1, kOne, 0), "");
  EXPECT_EQ(difference({{12, 5, {0.3}, {"momentum 0"}}}, 1, kOne, 0), "");
  EXPECT_NE(difference({{11, 6, {0.1, 0.02}, {}}}, 1, kOne, 0), "");
}

} // namespace
} // namespace tessera::optim
