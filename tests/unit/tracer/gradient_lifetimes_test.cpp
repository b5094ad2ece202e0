#include "tessera/tracer/gradient_lifetimes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::tracer {
namespace {

using testing::ElementsAre;

std::vector<double> bytes_of(const GradientLifetimes& lifetimes, std::size_t operators) {
  graph::ForwardWork work(operators);
  lifetimes.write(work);
  std::vector<double> bytes;
  for (const graph::OperatorWork& one : work) {
    bytes.push_back(one.gradient_bytes);
  }
  return bytes;
}

TEST(GradientLifetimes, AGradientStandsFromTheLastOperatorThatTakesToTheOneThatMade) {
  GradientLifetimes lifetimes;
  const auto x = lifetimes.make(0, 1);
  const auto y = lifetimes.make(1, 10);
  lifetimes.take(x, 1);
  lifetimes.take(y, 2);
  lifetimes.take(x, 3);
  EXPECT_THAT(bytes_of(lifetimes, 4), ElementsAre(1, 11, 11, 1));
}

TEST(GradientLifetimes, ThatOfASumIsThatOfItsTerms) {
  GradientLifetimes lifetimes;
  const auto x = lifetimes.make(0, 8);
  const auto y = lifetimes.make(1, 8); // y = f(x)
  lifetimes.take(x, 1);
  lifetimes.take(x, 2);
  lifetimes.take(y, 2);
  const auto sum = lifetimes.make(2, 8);
  lifetimes.unite(sum, x);
  lifetimes.unite(sum, y);
  lifetimes.take(sum, 3);
  lifetimes.unite(x, y); // which they are
  EXPECT_THAT(bytes_of(lifetimes, 4), ElementsAre(8, 8, 8, 8));
}

TEST(GradientLifetimes, AParameterOfTwoDerivativesHasPartsAndASum) {
  GradientLifetimes lifetimes;
  const int tied = 0;
  const int once = 0;
  lifetimes.take_parameter(&tied, 4, 0, 0);
  lifetimes.take_parameter(&once, 4, 1, 1);
  lifetimes.take_parameter(&tied, 4, 2, 2);
  lifetimes.take_parameter(&tied, 4, 3, 2); // of the same derivative
  EXPECT_THAT(bytes_of(lifetimes, 4), ElementsAre(3 * 4, 4, 4, 0));
}

} // namespace
} // namespace tessera::tracer
