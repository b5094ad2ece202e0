// The order in which parameters are read: learnt in one step, expected in the next.
#include "tessera/sharding/read_order.h"

#include <gmock/gmock.h>

namespace tessera::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ReadOrder learnt(const std::vector<int>& order) {
  ReadOrder made;
  made.begin_step();
  for (const int parameter : order) {
    made.read(parameter);
  }
  made.begin_step();
  return made;
}

TEST(ReadOrder, TheNextAreThoseOfTheStepBefore) {
  ReadOrder order = learnt({3, 1, 1, 4, 0, 3, 2});
  order.read(3);
  EXPECT_THAT(order.next(4, {3}), ElementsAre(1, 4, 0, 2));
  order.read(1);
  EXPECT_THAT(order.next(2, {1}), ElementsAre(4, 0));
  order.read(2);
  EXPECT_THAT(order.next(4, {2}), IsEmpty());
}

TEST(ReadOrder, NothingIsExpectedInTheFirstStep) {
  ReadOrder order;
  order.begin_step();
  order.read(1);
  EXPECT_THAT(order.next(4, {}), IsEmpty());
}

TEST(ReadOrder, ComesBackFromAnotherWay) {
  ReadOrder order = learnt({0, 1, 2, 3});
  order.read(0);
  order.read(9); // a branch of this step alone
  EXPECT_THAT(order.next(2, {9}), ElementsAre(1, 2));
  order.read(2); // skips one
  EXPECT_THAT(order.next(2, {2}), ElementsAre(3));
}

TEST(ReadOrder, AStepThatReadsNothingForgetsNothing) {
  ReadOrder order = learnt({0, 1});
  order.begin_step();
  order.read(0);
  EXPECT_THAT(order.next(2, {0}), ElementsAre(1));
}

TEST(ReadOrder, AnEvaluationLearnsNoEndlessOrder) {
  ReadOrder order;
  for (std::size_t i = 0; i < ReadOrder::kLongest + 10; ++i) {
    order.read(static_cast<int>(i % 3));
  }
  order.begin_step();
  EXPECT_EQ(order.length(), ReadOrder::kLongest);
}

} // namespace
} // namespace tessera::sharding
