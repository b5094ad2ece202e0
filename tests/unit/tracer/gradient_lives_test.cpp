#include "tessera/tracer/gradient_lives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::tracer {
namespace {

using testing::ElementsAre;

std::vector<double> bytes_of(const GradientLives& lives, std::size_t operators) {
  graph::ForwardWork work(operators);
  lives.write(work);
  std::vector<double> bytes;
  for (const graph::OperatorWork& one : work) {
    bytes.push_back(one.gradient_bytes);
  }
  return bytes;
}

TEST(GradientLives, AGradientStandsFromTheLastOperatorThatTakesToTheOneThatMade) {
  GradientLives lives;
  const auto x = lives.make(0, 1);
  const auto y = lives.make(1, 10);
  lives.take(x, 1);
  lives.take(y, 2);
  lives.take(x, 3);
  EXPECT_THAT(bytes_of(lives, 4), ElementsAre(1, 11, 11, 1));
}

TEST(GradientLives, ThatOfASumIsThatOfItsTerms) {
  GradientLives lives;
  const auto x = lives.make(0, 8);
  const auto y = lives.make(1, 8); // y = f(x)
  lives.take(x, 1);
  lives.take(x, 2);
  lives.take(y, 2);
  const auto sum = lives.make(2, 8);
  lives.unite(sum, x);
  lives.unite(sum, y);
  lives.take(sum, 3);
  lives.unite(x, y); // which they are
  EXPECT_THAT(bytes_of(lives, 4), ElementsAre(8, 8, 8, 8));
}

TEST(GradientLives, AParameterOfTwoDerivativesHasPartsAndASum) {
  GradientLives lives;
  const int tied = 0;
  const int once = 0;
  lives.take_parameter(&tied, 4, 0, 0);
  lives.take_parameter(&once, 4, 1, 1);
  lives.take_parameter(&tied, 4, 2, 2);
  lives.take_parameter(&tied, 4, 3, 2); // of the same derivative
  EXPECT_THAT(bytes_of(lives, 4), ElementsAre(3 * 4, 4, 4, 0));
}

} // namespace
} // namespace tessera::tracer
