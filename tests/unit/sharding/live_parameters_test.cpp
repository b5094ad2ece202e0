// Which parameters are gathered when, and which are let go.
#include "tessera/sharding/live_parameters.h"

#include <gmock/gmock.h>

namespace tessera::sharding {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LiveParameters of_sizes(const std::vector<std::int64_t>& sizes, std::int64_t most) {
  LiveParameters live(most);
  for (const std::int64_t size : sizes) {
    live.add(size);
  }
  return live;
}

/// An operator that reads these.
LiveParameters::Changes read(LiveParameters& live, const std::vector<int>& parameters) {
  LiveParameters::Changes changes = live.begin_reading(parameters);
  const std::vector<int> released = live.end_reading(parameters);
  changes.release.insert(changes.release.end(), released.begin(), released.end());
  return changes;
}

void read_in_order(LiveParameters& live, const std::vector<int>& order) {
  live.begin_step();
  for (const int parameter : order) {
    read(live, {parameter});
  }
  live.forget();
}

TEST(LiveParameters, GatherWhatIsReadAndKeepIt) {
  LiveParameters live = of_sizes({10, 10, 10}, 100);
  live.begin_step();
  EXPECT_THAT(read(live, {0, 2}).gather, ElementsAre(0, 2));
  EXPECT_THAT(read(live, {2}).gather, IsEmpty());
  EXPECT_EQ(live.live_elements(), 20);
  live.forget(); // values change
  EXPECT_EQ(live.live_elements(), 0);
  EXPECT_THAT(read(live, {2}).gather, ElementsAre(2));
}

TEST(LiveParameters, GatherAheadInTheOrderOfTheStepBefore) {
  LiveParameters live = of_sizes(std::vector<std::int64_t>(8, 10), 1000);
  read_in_order(live, {3, 1, 4, 0, 5, 2, 7, 6});
  live.begin_step();
  EXPECT_THAT(read(live, {3}).gather, ElementsAre(3, 1, 4, 0, 5));
  EXPECT_THAT(read(live, {1}).gather, ElementsAre(2));
  EXPECT_THAT(read(live, {4}).gather, ElementsAre(7));
}

TEST(LiveParameters, TheOtherWayBack) {
  LiveParameters live = of_sizes(std::vector<std::int64_t>(6, 10), 20);
  const std::vector<int> order = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
  read_in_order(live, order);
  live.begin_step();
  std::vector<int> gathered;
  for (const int parameter : order) {
    for (const int one : read(live, {parameter}).gather) {
      gathered.push_back(one);
    }
    EXPECT_LE(live.live_elements(), 20);
  }
  // Each one before its reader comes, both ways; what is there at the turn is not gathered again.
  EXPECT_THAT(gathered, ElementsAre(0, 1, 2, 3, 4, 5, 3, 2, 1, 0));
  EXPECT_EQ(live.highest_elements(), 20);
}

TEST(LiveParameters, PauseAtTheCap) {
  LiveParameters live = of_sizes({10, 10, 50, 10}, 40);
  read_in_order(live, {0, 1, 2, 3});
  EXPECT_EQ(live.highest_elements(), 50); // an operator that reads 50 needs them
  live.begin_step();
  const auto changes = live.begin_reading({0});
  EXPECT_THAT(changes.gather, ElementsAre(0, 1)); // 2 does not fit, and 3 comes after it
  EXPECT_THAT(live.end_reading({0}), IsEmpty());
  EXPECT_THAT(live.begin_reading({1}).gather, IsEmpty());
  live.end_reading({1});
  const auto large = live.begin_reading({2});
  EXPECT_THAT(large.release, ElementsAre(0, 1));
  EXPECT_THAT(large.gather, ElementsAre(2));
  EXPECT_THAT(live.end_reading({2}), ElementsAre(2)); // above the cap while it is read, no longer
  EXPECT_EQ(live.live_elements(), 0);
}

TEST(LiveParameters, NothingIsReleasedWhileItIsRead) {
  LiveParameters live = of_sizes({10, 10, 10}, 1);
  live.begin_reading({0, 1});
  EXPECT_THAT(live.begin_reading({2}).release, IsEmpty());
  EXPECT_EQ(live.live_elements(), 30);
  EXPECT_THAT(live.end_reading({0, 1}), ElementsAre(0, 1));
  EXPECT_THAT(live.end_reading({2}), ElementsAre(2));
}

TEST(LiveParameters, AnotherWayIsGatheredWhenItIsRead) {
  LiveParameters live = of_sizes(std::vector<std::int64_t>(12, 10), 60);
  read_in_order(live, {0, 1, 2, 3, 4, 5});
  live.begin_step();
  EXPECT_THAT(read(live, {0}).gather, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(live, {9}).gather, ElementsAre(9)); // a branch of this step alone
  EXPECT_THAT(read(live, {10}).release, ElementsAre(0)); // not what is expected
  EXPECT_THAT(read(live, {1}).gather, ElementsAre(5)); // back on the way
}

TEST(LiveParameters, AnEvaluationLearnsNoEndlessOrder) {
  LiveParameters live = of_sizes({1, 1, 1}, 1);
  for (std::size_t i = 0; i < LiveParameters::kLongestOrder + 10; ++i) {
    read(live, {static_cast<int>(i % 3)});
  }
  live.begin_step();
  EXPECT_EQ(live.learnt_reads(), LiveParameters::kLongestOrder);
}

} // namespace
} // namespace tessera::sharding
