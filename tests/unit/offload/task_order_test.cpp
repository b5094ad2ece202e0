// What offloading knows without any tensor: which backwards come soon, and where free space is.
#include "tessera/offload/task_order.h"

#include <gmock/gmock.h>

#include "tessera/offload/space.h"

namespace tessera::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<TaskOrder::Task> kStep =
    {{0, false}, {1, false}, {2, false}, {0, true}, {3, false}, {1, true}, {2, true}, {3, true}};

void run(TaskOrder& order, std::uint64_t kind) {
  order.step_begins(kind);
  for (const auto& task : kStep) {
    order.task_begins(task);
  }
  order.step_ended();
}

TEST(TaskOrder, ExpectsWhatTheLastStepOfTheKindDid) {
  TaskOrder order;
  order.step_begins(1);
  order.task_begins({0, false});
  EXPECT_THAT(order.backwards_within(100), IsEmpty()) << "the first step tells nothing";
  order.step_ended();
  run(order, 1);
  order.step_begins(1);
  order.task_begins({0, false});
  EXPECT_THAT(order.backwards_within(2), IsEmpty());
  EXPECT_THAT(order.backwards_within(3), ElementsAre(0));
  EXPECT_THAT(order.backwards_within(5), ElementsAre(0, 1));
  EXPECT_THAT(order.backwards_within(100), ElementsAre(0, 1, 2, 3));
  order.task_begins({1, false});
  EXPECT_THAT(order.backwards_within(2), ElementsAre(0));
  order.step_ended();
  order.step_begins(2);
  EXPECT_THAT(order.backwards_within(100), IsEmpty()) << "another kind of step";
}

TEST(TaskOrder, AnotherOrderThanExpectedLosesNoTask) {
  TaskOrder order;
  run(order, 1);
  order.step_begins(1);
  for (const int microbatch : {2, 0, 7, 1}) { // 7: not expected at all
    order.task_begins({microbatch, false});
  }
  EXPECT_THAT(order.backwards_within(1), ElementsAre(0));
  order.task_begins({1, true});
  EXPECT_THAT(order.backwards_within(100), ElementsAre(0, 2, 3));
}

TEST(TaskOrder, WhatIsBehindABackwardDoesNotDependOnWhatHasBegun) {
  TaskOrder order;
  const std::vector<TaskOrder::Task> tasks = {
      {0, false}, {1, false}, {0, true}, {1, true}, {0, true}, {2, true}};
  order.step_begins(0);
  for (const auto& task : tasks) {
    order.task_begins(task);
  }
  EXPECT_THAT(order.backwards_behind(0, 2), IsEmpty()); // no step before
  order.step_ended();
  order.step_begins(0);
  EXPECT_THAT(order.backwards_behind(0, 2), IsEmpty()); // has not begun
  order.task_begins({0, true});
  order.task_begins({1, true});
  EXPECT_THAT(order.backwards_behind(0, 1), ElementsAre(1));
  EXPECT_THAT(order.backwards_behind(1, 2), ElementsAre(0, 2));
  order.task_begins({0, true}); // its second call
  EXPECT_THAT(order.backwards_behind(0, 3), ElementsAre(2));
}

TEST(TaskOrder, AMicrobatchWithSeveralCallsIsNamedOnce) {
  TaskOrder order;
  order.step_begins(1);
  order.expect({{4, true}, {4, true}, {5, true}});
  EXPECT_THAT(order.backwards_within(2), ElementsAre(4));
  order.task_begins({4, true});
  EXPECT_THAT(order.backwards_within(2), ElementsAre(4, 5));
}

TEST(Space, FreePiecesAreUsedAgain) {
  constexpr std::int64_t kPage = Space::kAlignment;
  Space space;
  const Place a = space.take(1);
  const Place b = space.take(kPage + 1);
  const Place c = space.take(kPage);
  EXPECT_EQ(a.bytes, kPage);
  EXPECT_EQ(b.offset, kPage);
  EXPECT_EQ(b.bytes, 2 * kPage);
  EXPECT_EQ(space.size(), 4 * kPage);
  space.give_back(a);
  space.give_back(c);
  EXPECT_EQ(space.take(kPage).offset, 0);
  space.give_back({0, kPage});
  space.give_back(b); // between two free ones: all are one piece again
  EXPECT_EQ(space.free(), 4 * kPage);
  EXPECT_EQ(space.take(4 * kPage).offset, 0);
  EXPECT_EQ(space.size(), 4 * kPage);
  EXPECT_EQ(space.free(), 0);
}

TEST(Space, AFreePieceAtTheEndGrows) {
  constexpr std::int64_t kPage = Space::kAlignment;
  Space space;
  const Place a = space.take(kPage);
  space.give_back(space.take(kPage));
  const Place large = space.take(3 * kPage);
  EXPECT_EQ(large.offset, a.offset + kPage);
  EXPECT_EQ(space.size(), 4 * kPage);
}

} // namespace
} // namespace tessera::offload
